//! The conversation that the next model request of a turn begins with.
//!
//! Pure. What stood before the turn comes from the session tree, as Pi would read it; the turn's own part comes
//! from the journal, in the order of the branch. Each call has exactly one answer directly behind its message,
//! no answer stands without its call, and what ended in error or abort is left out.

mod anthropic;
mod entries;
mod openai_chat;
mod openai_responses;

use crate::branch;
use crate::draft::History;
use crate::json::{ObjectWriter, Raw, View, sha256_hex};
use crate::message::{self, Asked, Format, Role};
use crate::record::{CallRef, Kind};
use crate::tree::Tree;
use crate::turn::{Turn, What};
use std::collections::HashSet;

/// The messages, and what a caller should know about them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// In order, each in the format that was asked for.
    pub messages: Vec<Raw>,
    /// What could not be said in them.
    pub notes: Vec<&'static str>,
}

/// Why there is no context.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContextError {
    /// The model may not be asked now.
    #[error("the model may not be asked now: no answer for {}", list(.0))]
    Unanswered(Vec<(CallRef, String)>),
    /// The entry that the turn was admitted on is not in the session file.
    #[error("entry {0}, on which the turn was admitted, is not in the session file")]
    NoLeaf(String),
}

/// The messages for the next model request of a turn, in `format`.
///
/// `tree` is the session tree of the turn; without it the conversation begins with the turn.
pub fn build(
    turn: &Turn,
    history: &History,
    tree: Option<&Tree>,
    format: Format,
) -> Result<Context, ContextError> {
    let open: Vec<(CallRef, String)> =
        turn.open_calls().map(|call| (call.r#ref, call.tool.clone())).collect();
    if !open.is_empty() {
        return Err(ContextError::Unanswered(open));
    }
    let mut lines = match tree {
        Some(tree) => before(turn, tree)?,
        None => Vec::new(),
    };
    for piece in branch::pieces(turn, history) {
        lines.push(entries::Line { text: piece.entry, seq: Some(piece.seq) });
    }
    let said = entries::project(&lines).into_iter().map(|said| with_own(said, history)).collect();
    let nodes = paired(said);
    Ok(match format.stored() {
        Format::Pi => Context { messages: flat(&nodes), notes: Vec::new() },
        Format::Anthropic => anthropic::render(&nodes),
        Format::OpenaiResponses => openai_responses::render(&nodes),
        Format::OpenaiChat | Format::AnthropicSse | Format::OpenaiChatSse => openai_chat::render(&nodes),
    })
}

/// The format of the turn's last model message, else of its newest message, else Pi's.
pub fn format_of(turn: &Turn, history: &History) -> Format {
    let of_seq = |seq: u64| match &history.get(seq)?.kind {
        Kind::Message(message) => message.format.parse::<Format>().ok().map(Format::stored),
        Kind::Entry(_) => Some(Format::Pi),
        _ => None,
    };
    let last = turn.last_model().map(|(fact, _, _)| fact.mark.seq);
    let said = turn.facts.iter().rev().filter(|fact| matches!(fact.what, What::Said(_)));
    last.into_iter().chain(said.map(|fact| fact.mark.seq)).find_map(of_seq).unwrap_or(Format::Pi)
}

/// The lines of the session tree down to the entry that the turn was admitted on.
fn before(turn: &Turn, tree: &Tree) -> Result<Vec<entries::Line>, ContextError> {
    let Some(leaf) = turn.tree.as_ref().and_then(|admitted| admitted.leaf.as_deref()) else {
        return Ok(Vec::new());
    };
    let index = tree.find(leaf).ok_or_else(|| ContextError::NoLeaf(leaf.to_owned()))?;
    let line = |index: &usize| Some(entries::Line { text: Raw::parse(tree.text(*index)).ok()?, seq: None });
    Ok(tree.path(index).entries.iter().filter_map(line).collect())
}

/// One message of the conversation.
#[derive(Debug, Clone)]
struct Said {
    /// As Pi's.
    pi: Raw,
    /// Who speaks.
    role: Role,
    /// The record whose form it has; `None` for one of the session tree, or one that was edited.
    seq: Option<u64>,
    /// As a provider said it, or is to be told it.
    own: Option<(Format, Raw)>,
}

impl Said {
    /// The body in a provider's own format, where that is what is asked for.
    fn own(&self, format: Format) -> Option<&Raw> {
        self.own.as_ref().filter(|(own, _)| *own == format).map(|(_, raw)| raw)
    }
}

/// A message in its place.
enum Node {
    System(Said),
    User(Said),
    Model(Model),
}

/// A model's message with the answers of its calls.
struct Model {
    said: Said,
    calls: Vec<Asked>,
    /// One per call.
    answers: Vec<Said>,
}

/// Finds the provider's own form of what a record says.
fn with_own(mut said: Said, history: &History) -> Said {
    let Some(record) = said.seq.and_then(|seq| history.get(seq)) else { return said };
    said.own = match &record.kind {
        Kind::Message(message) if said.role == Role::ToolResult => {
            let call = said.pi.view().object().and_then(|object| object.string("toolCallId"));
            let meaning = message.format.parse().ok().and_then(|format: Format| {
                message::meaning(format, &message.message).ok().map(|meaning| (format, meaning))
            });
            meaning.and_then(|(format, meaning)| {
                let mine =
                    meaning.answers.into_iter().find(|answer| Some(&answer.call_id) == call.as_ref())?;
                Some((format.stored(), mine.raw))
            })
        }
        Kind::Message(message) => {
            message.format.parse::<Format>().ok().map(|format| (format.stored(), message.message.clone()))
        }
        Kind::Admitted(admitted) => user_own(&admitted.input),
        Kind::Steered(steered) => user_own(&steered.input),
        Kind::Outcome(result) => result.content.as_ref().and_then(result_own),
        Kind::Reconciled(reconciled) => reconciled.content.as_ref().and_then(result_own),
        _ => None,
    };
    said
}

/// An input that is a user message of a provider.
fn user_own(input: &Raw) -> Option<(Format, Raw)> {
    let format = message::detect(input)?;
    let meaning = message::meaning(format, input).ok()?;
    (meaning.role == Role::User && meaning.answers.is_empty()).then(|| (format, input.clone()))
}

/// A result that is a provider's block, message or item for it.
fn result_own(content: &Raw) -> Option<(Format, Raw)> {
    let object = content.view().object()?;
    let kind = object.string("type").unwrap_or_default();
    let role = object.string("role").unwrap_or_default();
    let format = match (kind.as_str(), role.as_str()) {
        ("tool_result", _) => Format::Anthropic,
        (_, "tool" | "function") => Format::OpenaiChat,
        (kind, _) if kind.ends_with("_call_output") => Format::OpenaiResponses,
        _ => return None,
    };
    Some((format, content.clone()))
}

/// Puts each answer behind the message that asked; what answers nothing is left out.
fn paired(said: Vec<Said>) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut answers: Vec<Vec<Option<Said>>> = Vec::new();
    for said in said {
        match said.role {
            Role::System => nodes.push(Node::System(said)),
            Role::User | Role::Other(_) => nodes.push(Node::User(said)),
            Role::Assistant => {
                let Ok(meaning) = message::meaning(Format::Pi, &said.pi) else { continue };
                if meaning.ending.is_failed() {
                    continue;
                }
                answers.resize_with(nodes.len(), Vec::new);
                answers.push(meaning.calls.iter().map(|_| None).collect());
                nodes.push(Node::Model(Model { said, calls: meaning.calls, answers: Vec::new() }));
            }
            Role::ToolResult => {
                if let Some(slot) = slot(&nodes, &mut answers, &said.pi) {
                    *slot = Some(said);
                }
            }
        }
    }
    for (node, answers) in nodes.iter_mut().zip(answers) {
        if let Node::Model(model) = node {
            let filled = model.calls.iter().zip(answers);
            model.answers =
                filled.map(|(call, answer)| answer.unwrap_or_else(|| no_result(&model.said, call))).collect();
        }
    }
    nodes
}

/// Where the answer of a call belongs: at the nearest message above that asked for it.
fn slot<'a>(nodes: &[Node], answers: &'a mut [Vec<Option<Said>>], pi: &Raw) -> Option<&'a mut Option<Said>> {
    let id = pi.view().object()?.string("toolCallId")?;
    let asked = |call: &Asked| call.id.as_deref().unwrap_or_default() == id;
    for (node, answers) in nodes.iter().zip(answers.iter_mut()).rev() {
        let Node::Model(model) = node else { continue };
        if model.calls.iter().any(asked) {
            let free = model.calls.iter().zip(answers).find(|(call, answer)| asked(call) && answer.is_none());
            return free.map(|(_, answer)| answer);
        }
    }
    None
}

/// What Pi tells a model about a call of an earlier turn that nobody answered.
fn no_result(said: &Said, call: &Asked) -> Said {
    let timestamp = said.pi.view().object().and_then(|message| message.get("timestamp")?.parse().ok());
    let id = call.id.as_deref().unwrap_or_default();
    let content = Raw::text("No result provided");
    let pi = message::pi_result(id, &call.tool, &content, true, timestamp.unwrap_or(0));
    Said { pi, role: Role::ToolResult, seq: None, own: None }
}

fn flat(nodes: &[Node]) -> Vec<Raw> {
    let mut messages = Vec::new();
    for node in nodes {
        match node {
            Node::System(said) | Node::User(said) => messages.push(said.pi.clone()),
            Node::Model(model) => {
                messages.push(model.said.pi.clone());
                messages.extend(model.answers.iter().map(|answer| answer.pi.clone()));
            }
        }
    }
    messages
}

/// Ids of calls as a provider takes them: none twice, none empty, of plain characters.
#[derive(Default)]
struct Ids {
    used: HashSet<String>,
}

impl Ids {
    /// The id of a message that goes back as its provider made it: kept unless it was used before.
    fn own(&mut self, id: &str) -> String {
        let plain = if id.is_empty() { derived(id, 0) } else { id.to_owned() };
        self.unused(id, plain)
    }

    /// The id of a call that another agent or provider named.
    fn foreign(&mut self, id: &str) -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let fits = (1..=40).contains(&id.len()) && id.bytes().all(plain);
        let plain = if fits { id.to_owned() } else { derived(id, 0) };
        self.unused(id, plain)
    }

    fn unused(&mut self, id: &str, plain: String) -> String {
        let mut unused = plain;
        let mut count = 1;
        while !self.used.insert(unused.clone()) {
            unused = derived(id, count);
            count += 1;
        }
        unused
    }
}

/// The same wherever the conversation is built again, so that a provider's cache of it holds.
fn derived(id: &str, count: u64) -> String {
    let digest = sha256_hex(format!("{id}#{count}").as_bytes());
    format!("call_{}", digest.get(..24).unwrap_or_default())
}

/// The system prompt that the system messages of Pi's add up to: later content is appended, sections are
/// replaced by name. Those that go back in a provider's own form are not counted.
fn system_prompt(nodes: &[Node], format: Format) -> Option<String> {
    let mut contents: Vec<String> = Vec::new();
    let mut sections: Vec<(String, String)> = Vec::new();
    for node in nodes {
        let Node::System(said) = node else { continue };
        if said.own(format).is_some() {
            continue;
        }
        if let Ok(meaning) = message::meaning(Format::Pi, &said.pi) {
            contents.push(meaning.text);
        }
        let patch = said.pi.view().object().and_then(|message| message.object("sections"));
        for (name, value) in patch.map(|patch| patch.0).unwrap_or_default() {
            match (View::of(value), sections.iter_mut().find(|(known, _)| *known == name)) {
                (View::String(text), Some((_, section))) => *section = text,
                (View::String(text), None) => sections.push((name, text)),
                _ => sections.retain(|(known, _)| *known != name),
            }
        }
    }
    let texts: Vec<String> = contents
        .into_iter()
        .chain(sections.into_iter().map(|(_, text)| text))
        .filter(|text| !text.is_empty())
        .collect();
    (!texts.is_empty()).then(|| texts.join("\n\n"))
}

/// One block of a Pi message.
enum Block<'a> {
    /// A JSON string in its own spelling.
    Text(&'a str),
    /// Media type and base64.
    Image(String, String),
    /// Thinking that Anthropic signed: its text, its signature, and whether the text is hidden.
    Thinking(&'a str, &'a str, Shown),
}

#[derive(PartialEq, Eq)]
enum Shown {
    Yes,
    No,
}

/// Whether a message's thinking can go back: a signature is the provider's own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Thinking {
    Signed,
    LeftOut,
}

/// The blocks of a Pi message, calls apart; empty text is left out, as providers refuse it.
fn blocks(pi: &Raw) -> Vec<Block<'_>> {
    let Some(message) = pi.view().object() else { return Vec::new() };
    let thinking = match message.string("api").as_deref() {
        Some("anthropic-messages") => Thinking::Signed,
        _ => Thinking::LeftOut,
    };
    let content = message.get("content").unwrap_or("null");
    let items = match View::of(content) {
        View::String(text) if !text.trim().is_empty() => return vec![Block::Text(content)],
        View::Array(items) => items,
        _ => return Vec::new(),
    };
    items.into_iter().filter_map(|item| block(item, thinking)).collect()
}

fn block(item: &str, thinking: Thinking) -> Option<Block<'_>> {
    let block = View::of(item).object()?;
    match block.string("type")?.as_str() {
        "text" => {
            let text = block.string("text").filter(|text| !text.trim().is_empty());
            text.and_then(|_| block.get("text")).map(Block::Text)
        }
        "image" => Some(Block::Image(block.string("mimeType")?, block.string("data")?)),
        "thinking" if thinking == Thinking::Signed => {
            let shown = if block.get("redacted") == Some("true") { Shown::No } else { Shown::Yes };
            block.string("thinkingSignature").filter(|signature| !signature.is_empty())?;
            let text = block.get("thinking").unwrap_or("\"\"");
            Some(Block::Thinking(text, block.get("thinkingSignature")?, shown))
        }
        _ => None,
    }
}

/// Several JSON strings as one, line by line, in their own spelling.
fn joined(spelled: &[&str]) -> String {
    let inner = |text: &&str| text.get(1..text.len().saturating_sub(1)).unwrap_or_default().to_owned();
    format!("\"{}\"", spelled.iter().map(inner).collect::<Vec<_>>().join("\\n"))
}

fn texts<'a>(blocks: &[Block<'a>]) -> Vec<&'a str> {
    let text = |block: &Block<'a>| match block {
        Block::Text(spelled) => Some(*spelled),
        Block::Image(..) | Block::Thinking(..) => None,
    };
    blocks.iter().filter_map(text).collect()
}

/// Whether a Pi toolResult says that its tool failed.
fn is_error(pi: &Raw) -> bool {
    pi.view().object().is_some_and(|message| message.get("isError") == Some("true"))
}

/// An object with some members replaced, or added at its end; all others keep their bytes.
fn with_members(raw: &str, members: &[(&str, &str)]) -> Raw {
    let object = View::of(raw).object().unwrap_or(crate::json::Object(Vec::new()));
    let mut writer = ObjectWriter::default();
    for (key, value) in &object.0 {
        let replaced = members.iter().find(|(name, _)| name == key);
        writer = writer.raw(key, replaced.map_or(value, |(_, value)| value));
    }
    for (key, value) in members.iter().filter(|(key, _)| object.get(key).is_none()) {
        writer = writer.raw(key, value);
    }
    writer.finish()
}

fn array(items: &[Raw]) -> String {
    format!("[{}]", items.iter().map(Raw::get).collect::<Vec<_>>().join(","))
}

fn list(calls: &[(CallRef, String)]) -> String {
    calls.iter().map(|(call, tool)| format!("call {call} ({tool})")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
