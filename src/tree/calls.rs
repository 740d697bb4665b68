//! Whether the calls of the active branch have their results on it.
//!
//! Calls and results belong together by their place in the tree: a result answers the nearest assistant
//! message above it that asked for its call, since providers use call ids again.

use super::Tree;
use super::finding::{Finding, Severity, at_entry, list, name};
use super::shape::{Shape, Step, set, walk};
use crate::json::{Object, View};
use std::collections::HashMap;

/// Calls and results of the active branch.
pub(super) fn calls(tree: &Tree, shape: &Shape, found: &mut Vec<Finding>) {
    let mut open: HashMap<String, Vec<usize>> = HashMap::new();
    let mut answers: HashMap<(usize, String), Vec<usize>> = HashMap::new();
    let mut asked: Vec<Vec<String>> = vec![Vec::new(); tree.entries.len()];
    // Places on the active branch, which the walk goes down in order.
    let mut users = Vec::new();
    walk(tree, |step| match step {
        Step::Enter(index) => match conversation(tree, index) {
            Some(Said::Calls(ids)) => {
                for id in &ids {
                    open.entry(id.clone()).or_default().push(index);
                }
                set(&mut asked, index, ids);
            }
            Some(Said::Result(id)) => {
                let call = open.get(&id).and_then(|asking| asking.last()).copied();
                if let Some(call) = call.filter(|call| shape.is_active(*call)) {
                    answers.entry((call, id)).or_default().push(index);
                }
            }
            Some(Said::User) if shape.is_active(index) => users.push(index),
            Some(Said::User) | None => {}
        },
        Step::Leave(index) => {
            for id in asked.get(index).into_iter().flatten() {
                if let Some(asking) = open.get_mut(id) {
                    asking.pop();
                }
            }
        }
    });
    for index in &shape.active {
        for id in asked.get(*index).into_iter().flatten() {
            if let Some(results) = answers.remove(&(*index, id.clone())) {
                answered(tree, shape, *index, id, &results, &users, found);
            }
        }
    }
}

/// Judges where the results of a call of the active branch stand.
fn answered(
    tree: &Tree,
    shape: &Shape,
    call: usize,
    id: &str,
    results: &[usize],
    users: &[usize],
    found: &mut Vec<Finding>,
) {
    let Some(asking) = tree.entries.get(call) else { return };
    let Some(result) = results.iter().copied().find(|result| shape.is_active(*result)) else {
        let stray = list(
            results.iter().filter_map(|result| tree.entries.get(*result)).map(|entry| name(entry).to_owned()),
        );
        let next =
            shape.next(call).and_then(|next| tree.entries.get(next)).map_or("nothing", |entry| name(entry));
        let message = format!(
            "call {id} of {} has no result on the active branch, which goes on with {next}, but one on another: {stray}",
            name(asking)
        );
        return found.push(at_entry(asking, "tree-result-elsewhere", Severity::Damage, message));
    };
    let behind = users.partition_point(|user| shape.place(*user) < shape.place(call));
    let between = users.get(behind).filter(|user| shape.place(**user) < shape.place(result));
    if let Some(user) = between.and_then(|index| tree.entries.get(*index)) {
        let message = format!(
            "user message {} stands between call {id} of {} and its result; the result is there, some providers refuse this order",
            name(user),
            name(asking)
        );
        found.push(at_entry(user, "tree-user-between", Severity::Note, message));
    }
}

/// What a message means for calls and results.
enum Said {
    Calls(Vec<String>),
    Result(String),
    User,
}

fn conversation(tree: &Tree, index: usize) -> Option<Said> {
    if &*tree.entries.get(index)?.kind != "message" {
        return None;
    }
    let message = View::of(tree.message(index)?).object()?;
    match message.string("role")?.as_str() {
        "user" => Some(Said::User),
        "toolResult" => Some(Said::Result(message.string("toolCallId")?)),
        "assistant" => Some(Said::Calls(call_ids(&message))),
        _ => None,
    }
}

/// The ids of the calls of an assistant message, each once; Pi sends none of one that ended badly.
fn call_ids(message: &Object<'_>) -> Vec<String> {
    if matches!(message.string("stopReason").as_deref(), Some("error" | "aborted")) {
        return Vec::new();
    }
    let mut ids: Vec<String> = message
        .array("content")
        .unwrap_or_default()
        .into_iter()
        .filter(|item| item.contains("oolCall"))
        .filter_map(|item| View::of(item).object())
        .filter(|item| item.string("type").as_deref() == Some("toolCall"))
        .filter_map(|item| item.string("id"))
        .collect();
    ids.sort();
    ids.dedup();
    ids
}
