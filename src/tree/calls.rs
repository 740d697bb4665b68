//! Whether the calls of the active branch have their results on it, or on another one.
//!
//! Calls and results belong together by their place in the tree: a result answers the nearest assistant
//! message above it that asked for its call, since providers use call ids again.

use super::Tree;
use super::finding::{Finding, Severity, at_entry, list, name};
use super::said::Said;
use super::shape::{Shape, Step, walk};
use std::collections::HashMap;

/// Calls of the active branch whose results stand on another. `said` has what each entry says.
pub(super) fn calls(tree: &Tree, shape: &Shape, said: &[Option<Said>], found: &mut Vec<Finding>) {
    let mut open: HashMap<&str, Vec<usize>> = HashMap::new();
    let mut answers: HashMap<(usize, &str), Vec<usize>> = HashMap::new();
    let asked = |index: usize| match said.get(index) {
        Some(Some(Said::Model { calls, sent: true })) => calls.as_slice(),
        _ => &[],
    };
    walk(tree, |step| match step {
        Step::Enter(index) => {
            for id in asked(index) {
                open.entry(id).or_default().push(index);
            }
            if let Some(Some(Said::Result(id))) = said.get(index) {
                let call = open.get(id.as_str()).and_then(|asking| asking.last()).copied();
                if let Some(call) = call.filter(|call| shape.is_active(*call)) {
                    answers.entry((call, id)).or_default().push(index);
                }
            }
        }
        Step::Leave(index) => {
            for id in asked(index) {
                if let Some(asking) = open.get_mut(id.as_str()) {
                    asking.pop();
                }
            }
        }
    });
    for index in &shape.active {
        for id in asked(*index) {
            if let Some(results) = answers.remove(&(*index, id.as_str())) {
                elsewhere(tree, shape, *index, id, &results, found);
            }
        }
    }
}

/// Tells a call of the active branch none of whose results is on it.
fn elsewhere(tree: &Tree, shape: &Shape, call: usize, id: &str, results: &[usize], found: &mut Vec<Finding>) {
    let Some(asking) = tree.entries.get(call) else { return };
    if results.iter().any(|result| shape.is_active(*result)) {
        return;
    }
    let stray = list(
        results.iter().filter_map(|result| tree.entries.get(*result)).map(|entry| name(entry).to_owned()),
    );
    let next =
        shape.next(call).and_then(|next| tree.entries.get(next)).map_or("nothing", |entry| name(entry));
    let message = format!(
        "call {id} of {} has no result on the active branch, which goes on with {next}, but one on another: {stray}",
        name(asking)
    );
    found.push(at_entry(asking, "tree-result-elsewhere", Severity::Damage, message));
}
