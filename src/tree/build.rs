//! Entries that `turnkeep` writes onto a session tree, and how its own are known again.
//!
//! Ids come from what an entry stands for, so that a repeated recovery finds what is there. An entry of the
//! agent is copied by replacing the ids in its text and nothing else. Nothing here reads or writes a file.

use super::{DEPTH_MAX, VERSION};
use crate::json::{Object, ObjectWriter, Raw, View, depth, same, sha256_hex};
use crate::message;

/// `customType` of the entry that ends a branch of ours.
pub const MARKER_TYPE: &str = "turnkeep.branch";

/// Keys of entries whose values are ids of other entries.
const REFERENCES: [&str; 3] = ["firstKeptEntryId", "targetId", "fromId"];

/// What a marker says: whose branch it ends, and the newest record that the branch carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// Session id.
    pub session: String,
    /// Turn id.
    pub turn: String,
    /// `seq:hash` of the newest record on the branch.
    pub head: String,
}

/// The id of an entry: `hash` is that of the record it stands for, and `suffix` is `entry`, or for a marker
/// the id of its parent.
pub fn entry_id(turn: &str, hash: &str, suffix: &str) -> String {
    let mut id = sha256_hex(format!("{turn}:{hash}:{suffix}").as_bytes());
    id.truncate(16);
    id
}

/// Whether an id has the form of those that [`entry_id`] gives; Pi's own have 8 digits.
pub fn looks_like_ours(id: &str) -> bool {
    id.len() == 16 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The header of a new session file.
pub fn header_line(id: &str, timestamp: &str, cwd: &str) -> Raw {
    ObjectWriter::default()
        .string("type", "session")
        .raw("version", &VERSION.to_string())
        .string("id", id)
        .string("timestamp", timestamp)
        .string("cwd", cwd)
        .finish()
}

/// An entry around a Pi message.
pub fn message_entry(id: &str, parent: Option<&str>, timestamp: &str, message: &Raw) -> Raw {
    ObjectWriter::default()
        .string("type", "message")
        .string("id", id)
        .raw("parentId", &spelled(parent))
        .string("timestamp", timestamp)
        .raw("message", message.get())
        .finish()
}

/// The entry that ends a branch of ours; it is in no model context.
pub fn marker_entry(
    id: &str,
    parent: Option<&str>,
    timestamp: &str,
    session: &str,
    turn: &str,
    head: &str,
) -> Raw {
    let data =
        ObjectWriter::default().string("session", session).string("turn", turn).string("head", head).finish();
    ObjectWriter::default()
        .string("type", "custom")
        .string("customType", MARKER_TYPE)
        .raw("data", data.get())
        .string("id", id)
        .raw("parentId", &spelled(parent))
        .string("timestamp", timestamp)
        .finish()
}

/// What the marker in `entry` says, if it is one.
pub fn marker(entry: &str) -> Option<Marker> {
    let object = View::of(entry).object()?;
    if object.string("type")? != "custom" || object.string("customType")? != MARKER_TYPE {
        return None;
    }
    let data = object.object("data")?;
    Some(Marker { session: data.string("session")?, turn: data.string("turn")?, head: data.string("head")? })
}

/// A copy of an agent's entry under another id and parent; all else keeps its bytes and its order, but for content of
/// a message that Pi could not go on from ([`message::pi_opened`]).
///
/// The ids of other entries in it (`firstKeptEntryId`, `targetId`, `fromId`) go through `map`, which returns
/// an id that it does not know as it is, and `None` for an entry that is left out: then this one is left out
/// too. A compaction that keeps from itself on keeps from its copy on. `None` also for what is no object.
pub fn entry_with(
    entry: &str,
    id: &str,
    parent: Option<&str>,
    map: &dyn Fn(&str) -> Option<String>,
) -> Option<Raw> {
    let entry = entry.trim_matches([' ', '\t', '\r', '\n']);
    let object = View::of(entry).object()?;
    if object.doubled().is_some() {
        return entry_with(once_each(&object).get(), id, parent, map);
    }
    let old = object.string("id");
    let is_message = object.string("type").as_deref() == Some("message");
    let (id, parent) = (spelled(Some(id)), spelled(parent));
    let mut copy = String::with_capacity(entry.len() + 32);
    let mut rest = entry;
    for (key, value) in &object.0 {
        let replacement = match key.as_str() {
            "id" => id.clone(),
            "parentId" => parent.clone(),
            "message" if is_message => message::pi_opened(&Raw::composed(value)?).get().to_owned(),
            key if REFERENCES.contains(&key) => match View::of(value) {
                View::String(target) if Some(&target) == old.as_ref() => id.clone(),
                View::String(target) => spelled(Some(&map(&target)?)),
                _ => continue,
            },
            _ => continue,
        };
        let (before, behind) = around(rest, value)?;
        copy.push_str(before);
        copy.push_str(&replacement);
        rest = behind;
    }
    copy.push_str(rest);
    for (key, value) in [("id", &id), ("parentId", &parent)] {
        if object.get(key).is_none() {
            add_member(&mut copy, key, value);
        }
    }
    Raw::parse(&copy).ok()
}

/// An entry with each key once, the last as in Pi: nothing is written behind one that holds a key twice.
fn once_each(object: &Object<'_>) -> Raw {
    let members = object.0.iter().enumerate();
    let last = |at: usize, key: &str| object.0.iter().skip(at + 1).all(|(later, _)| later != key);
    members
        .filter(|(at, (key, _))| last(*at, key))
        .fold(ObjectWriter::default(), |writer, (_, (key, value))| writer.raw(key, value))
        .finish()
}

/// Whether two entries say the same: their parents and time stamps apart, those of their messages too.
pub fn same_entry(left: &str, right: &str) -> bool {
    // Comparing goes down both at once, so one bound is enough; what nests deeper is compared as text.
    if depth(left) > DEPTH_MAX {
        return left == right;
    }
    let message = |entry| View::of(entry).object()?.get("message");
    same(left, right, &["parentId", "timestamp", "message"])
        && match (message(left), message(right)) {
            (Some(left), Some(right)) => same(left, right, &["timestamp"]),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
}

/// An id as JSON; none is null.
fn spelled(id: Option<&str>) -> String {
    id.map_or_else(|| "null".to_owned(), |id| Raw::text(id).get().to_owned())
}

/// What stands before and behind `part` in `whole`, of which it is a slice.
fn around<'a>(whole: &'a str, part: &str) -> Option<(&'a str, &'a str)> {
    let from = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    Some((whole.get(..from)?, whole.get(from + part.len()..)?))
}

/// Adds a member at the end of an object's text.
fn add_member(object: &mut String, key: &str, value: &str) {
    object.pop();
    if !object.trim_end().ends_with('{') {
        object.push(',');
    }
    for part in ["\"", key, "\":", value, "}"] {
        object.push_str(part);
    }
}
