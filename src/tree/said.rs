//! What an entry says to a model, as Pi takes it.

use super::Tree;
use crate::json::{Object, View};

/// What a message means for calls and results.
pub(super) enum Said {
    /// A model's message and the ids of its calls, in order. Pi sends none that ended in error or abort.
    Model { calls: Vec<String>, sent: bool },
    /// The result of the call with this id.
    Result(String),
    /// What Pi gives the model as a user's message.
    User,
}

/// What an entry says; `None` where nothing of it is sent, or only what keeps no call from its results.
pub(super) fn said(tree: &Tree, index: usize) -> Option<Said> {
    match &*tree.entries.get(index)?.kind {
        "message" => message(&View::of(tree.message(index)?).object()?),
        "custom_message" => Some(Said::User),
        "branch_summary" => {
            tree.object(index).string("summary").filter(|summary| !summary.is_empty()).map(|_| Said::User)
        }
        _ => None,
    }
}

fn message(message: &Object<'_>) -> Option<Said> {
    match message.string("role")?.as_str() {
        "user" | "custom" | "branchSummary" | "compactionSummary" => Some(Said::User),
        "bashExecution" => (message.get("excludeFromContext") != Some("true")).then_some(Said::User),
        // Without an id both are as in Pi: one that answers the other.
        "toolResult" => Some(Said::Result(message.string("toolCallId").unwrap_or_default())),
        "assistant" => {
            let bad = matches!(message.string("stopReason").as_deref(), Some("error" | "aborted"));
            Some(Said::Model { calls: call_ids(message), sent: !bad })
        }
        // A system message waits in Pi until the results are sent.
        _ => None,
    }
}

/// The ids of the calls in a message's content.
pub(super) fn call_ids(message: &Object<'_>) -> Vec<String> {
    message
        .array("content")
        .unwrap_or_default()
        .into_iter()
        .filter(|item| item.contains("oolCall"))
        .filter_map(|item| View::of(item).object())
        .filter(|item| item.string("type").as_deref() == Some("toolCall"))
        .map(|item| item.string("id").unwrap_or_default())
        .collect()
}
