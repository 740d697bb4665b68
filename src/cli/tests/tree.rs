//! The session file as the model reads it: what the agent left there that no record has, and whether the branch is whole.

use super::turn::Turn;
use super::world::TREE;
use crate::cli::error::Exit;
use crate::storage::MemoryStorage;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Ids that begin with this are of what the agent wrote before the admission.
pub(super) const BEFORE: &str = "aa00000";
/// Ids that begin with this are of what it wrote since.
pub(super) const SINCE: &str = "bb00000";

/// Its lines that are whole.
pub(super) struct SessionFile {
    text: String,
    entries: Vec<Value>,
}

impl SessionFile {
    pub(super) fn of(disk: &MemoryStorage) -> Self {
        let bytes = disk.files().remove(&PathBuf::from(TREE)).unwrap_or_default();
        let lines = bytes.split(|byte| *byte == b'\n');
        let entries = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        Self { text: String::from_utf8_lossy(&bytes).into_owned(), entries }
    }

    /// Lines that the agent wrote and nobody journaled: they follow one another behind the newest line that is known.
    pub(super) fn left_by_agent(&self, turn: &Turn) -> Vec<Value> {
        let mut left: Vec<Value> = Vec::new();
        if turn.tree.is_none() || turn.is_settled() {
            return left;
        }
        let is_new = |entry: &&Value| {
            id(entry).starts_with(SINCE) && !turn.entries.iter().any(|known| known == id(entry))
        };
        let known = self.entries.iter().rev().find(|entry| !is_new(entry) && entry["type"] != "session");
        let mut tip = known.map(id);
        while let Some(next) =
            self.entries.iter().filter(is_new).find(|entry| entry["parentId"].as_str() == tip)
        {
            tip = Some(id(next));
            left.push(next.clone());
        }
        left
    }

    /// Inputs, each message, each answer and each remark stand once on the branch that ends in the last line.
    pub(super) fn holds(&self, turn: &Turn) -> Result<(), String> {
        if turn.tree.is_none() {
            return Ok(());
        }
        let ids: Vec<&str> = self.entries.iter().filter_map(|entry| entry["id"].as_str()).collect();
        let distinct: BTreeSet<&str> = ids.iter().copied().collect();
        if ids.len() != distinct.len() {
            return Err(format!("an entry stands twice: {}", self.text));
        }
        let path: Vec<&Value> =
            self.path().into_iter().filter(|entry| !id(entry).starts_with(BEFORE)).collect();
        let count = |of_it: &dyn Fn(&Value) -> bool| path.iter().filter(|entry| of_it(entry)).count();
        let message = |role: &str| count(&|entry| entry["message"]["role"] == role);
        let remarks = count(&|entry| entry["type"] != "message" && entry["customType"] != "turnkeep.branch");
        let found = (message("user"), message("assistant"), message("toolResult"), remarks);
        let wanted = (turn.inputs(), turn.messages, turn.answers(), turn.remarks);
        // What was said last in a turn that nobody goes on with is the agent's to write, unless each step is written.
        let agents = turn.exit() != Exit::Done && !turn.appends();
        let found = if agents { (found.0, turn.messages, found.2, found.3) } else { found };
        if found == wanted {
            return Ok(());
        }
        Err(format!(
            "inputs, messages, answers and remarks on the branch are {found:?}, not {wanted:?}:\n{}",
            self.text
        ))
    }

    /// From the last line up to the first.
    fn path(&self) -> Vec<&Value> {
        let mut path = Vec::new();
        let mut at = self.entries.last().filter(|entry| entry["type"] != "session");
        while let Some(entry) = at {
            path.push(entry);
            let parent = entry["parentId"].as_str();
            at = parent.and_then(|parent| self.entries.iter().find(|entry| entry["id"] == parent));
        }
        path
    }
}

pub(super) fn id(entry: &Value) -> &str {
    entry["id"].as_str().unwrap_or_default()
}

/// The calls in a message of a model, as the record of it would name them, but for the refs.
pub(super) fn asked_in(entry: &Value) -> Value {
    let parts = entry["message"]["content"].as_array().into_iter().flatten();
    let calls = parts.filter(|part| part["type"] == "toolCall");
    let calls: Vec<Value> =
        calls.map(|call| json!({"ref": call["id"], "id": call["id"], "tool": call["name"]})).collect();
    json!({ "calls": calls })
}
