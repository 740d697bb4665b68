//! From entries of a session tree to the messages a model is asked with, as Pi does it.
//!
//! The newest compaction stands for everything before the first entry that it keeps; context edits replace the
//! content of their target; what only Pi shows (bookkeeping, custom entries) says nothing.

use super::Said;
use crate::json::{Object, ObjectWriter, Raw, View};
use crate::message::{self, Role};
use std::collections::HashMap;

const COMPACTION: (&str, &str) = (
    "The conversation history before this point was compacted into the following summary:\n\n<summary>\n",
    "\n</summary>",
);
const BRANCH: (&str, &str) = (
    "The following is a summary of a branch that this conversation came back from:\n\n<summary>\n",
    "</summary>",
);

/// An entry, and the record whose form it has.
pub(super) struct Line {
    /// The entry.
    pub(super) text: Raw,
    /// The record; `None` for one that stood on the tree before.
    pub(super) seq: Option<u64>,
}

/// The messages of a path of entries, root first.
pub(super) fn project(lines: &[Line]) -> Vec<Said> {
    let path: Vec<Seen<'_>> = lines.iter().filter_map(Seen::of).collect();
    let kept = compacted(&path);
    let edits: HashMap<String, &Seen<'_>> = kept
        .iter()
        .filter(|seen| seen.kind == "context_edit")
        .filter_map(|seen| Some((seen.entry.string("targetId")?, *seen)))
        .collect();
    let mut said = Vec::new();
    for (index, seen) in kept.iter().enumerate() {
        // An older compaction inside what the newest one keeps says nothing any more.
        if seen.kind == "compaction" && index > 0 {
            continue;
        }
        let edit = edits.get(&seen.id).and_then(|edit| edit.entry.get("replacement"));
        for message in messages(seen) {
            said.extend(match edit {
                None => finished(&message, seen.seq),
                Some(replacement) => edited(&message, replacement).and_then(|raw| finished(&raw, None)),
            });
        }
    }
    said
}

/// An entry, one level deep.
struct Seen<'a> {
    entry: Object<'a>,
    id: String,
    kind: String,
    seq: Option<u64>,
}

impl<'a> Seen<'a> {
    fn of(line: &'a Line) -> Option<Self> {
        let entry = line.text.view().object()?;
        let id = entry.string("id").unwrap_or_default();
        let kind = entry.string("type").unwrap_or_default();
        Some(Self { entry, id, kind, seq: line.seq })
    }

    fn is_system(&self) -> bool {
        self.kind == "message"
            && self.entry.object("message").and_then(|message| message.string("role")).as_deref()
                == Some("system")
    }

    fn milliseconds(&self) -> String {
        let text = self.entry.string("timestamp").unwrap_or_default();
        chrono::DateTime::parse_from_rfc3339(&text).map_or(0, |time| time.timestamp_millis()).to_string()
    }
}

/// The newest compaction, what it keeps, and what stands behind it.
fn compacted<'s, 'a>(path: &'s [Seen<'a>]) -> Vec<&'s Seen<'a>> {
    let Some(at) = path.iter().rposition(|seen| seen.kind == "compaction") else {
        return path.iter().collect();
    };
    let (before, from) = path.split_at(at);
    let first = from.first().and_then(|compaction| compaction.entry.string("firstKeptEntryId"));
    let kept =
        before.iter().skip_while(|seen| Some(&seen.id) != first.as_ref()).filter(|seen| !seen.is_system());
    from.iter().take(1).chain(kept).chain(from.iter().skip(1)).collect()
}

/// What an entry says in Pi's own words; roles that no provider knows are still to be translated.
fn messages(seen: &Seen<'_>) -> Vec<Raw> {
    let raw = Raw::composed;
    match seen.kind.as_str() {
        "message" => seen.entry.get("message").and_then(raw).into_iter().collect(),
        "custom_message" => {
            let content = seen.entry.get("content").filter(|content| *content != "null").unwrap_or("[]");
            vec![user(content, &seen.milliseconds())]
        }
        "branch_summary" => {
            let summary = seen.entry.string("summary").filter(|summary| !summary.is_empty());
            summary.map(|summary| framed(BRANCH, &summary, &seen.milliseconds())).into_iter().collect()
        }
        "compaction" => {
            let system = seen.entry.get("systemMessage").filter(|system| system.starts_with('{'));
            let summary = seen.entry.string("summary").unwrap_or_default();
            let summary = framed(COMPACTION, &summary, &seen.milliseconds());
            system.and_then(raw).into_iter().chain([summary]).collect()
        }
        _ => Vec::new(),
    }
}

/// A message with the content of a context edit; `None` where the edit takes it out.
fn edited(message: &Raw, replacement: &str) -> Option<Raw> {
    if replacement == "null" {
        return None;
    }
    let object = message.view().object()?;
    let role = object.string("role").unwrap_or_default();
    let content = View::of(replacement).object()?.get("content")?.to_owned();
    let content = match role.as_str() {
        "assistant" | "toolResult" if content.starts_with('"') => text_block(&content),
        "user" | "assistant" | "toolResult" | "custom" => content,
        _ => return Some(message.clone()),
    };
    Some(super::with_members(message.get(), &[("content", &content)]))
}

/// A message in a role that providers know; `None` for one that the model is not to see.
fn finished(message: &Raw, seq: Option<u64>) -> Option<Said> {
    let object = message.view().object()?;
    let word = object.string("role")?;
    let timestamp = object.get("timestamp").unwrap_or("0");
    let said = |pi: Raw| Some(Said { role: Role::of(&word), pi, seq, own: None });
    let as_user = |pi: Raw| Some(Said { role: Role::User, pi, seq: None, own: None });
    match word.as_str() {
        "system" | "user" | "assistant" | "toolResult" => {
            if object.get("content").is_some_and(|content| content != "null") {
                return said(message::pi_opened(message));
            }
            // Old or edited files may lack it; Pi reads that as nothing.
            let nothing = if word == "system" { "\"\"" } else { "[]" };
            said(super::with_members(message.get(), &[("content", nothing)]))
        }
        "custom" => as_user(user(object.get("content").unwrap_or("[]"), timestamp)),
        "branchSummary" => as_user(framed(BRANCH, &object.string("summary")?, timestamp)),
        "compactionSummary" => as_user(framed(COMPACTION, &object.string("summary")?, timestamp)),
        "bashExecution" if object.get("excludeFromContext") != Some("true") => {
            as_user(user(&text_block(Raw::text(&bash(&object)).get()), timestamp))
        }
        _ => None,
    }
}

fn bash(message: &Object<'_>) -> String {
    let text = |key: &str| message.string(key).filter(|text| !text.is_empty());
    let output = text("output").map_or("(no output)".to_owned(), |output| format!("```\n{output}\n```"));
    let exit = message.get("exitCode").filter(|exit| !matches!(*exit, "null" | "0"));
    let ended = match exit {
        _ if message.get("cancelled") == Some("true") => "\n\n(command cancelled)".to_owned(),
        Some(exit) => format!("\n\nCommand exited with code {exit}"),
        None => String::new(),
    };
    let whole = text("fullOutputPath").filter(|_| message.get("truncated") == Some("true"));
    let whole = whole.map(|path| format!("\n\n[Output truncated. Full output: {path}]")).unwrap_or_default();
    format!("Ran `{}`\n{output}{ended}{whole}", message.string("command").unwrap_or_default())
}

fn framed((before, behind): (&str, &str), text: &str, timestamp: &str) -> Raw {
    user(&text_block(Raw::text(&format!("{before}{text}{behind}")).get()), timestamp)
}

/// A user message; content that is a string becomes a block.
fn user(content: &str, timestamp: &str) -> Raw {
    let blocks = if content.starts_with('"') { text_block(content) } else { content.to_owned() };
    let message = ObjectWriter::default().string("role", "user").raw("content", &blocks);
    message.raw("timestamp", timestamp).finish()
}

fn text_block(spelled: &str) -> String {
    format!("[{{\"type\":\"text\",\"text\":{spelled}}}]")
}
