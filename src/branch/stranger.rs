//! Entries that hang on a branch as if they were ours, and stand for no record.
//!
//! An id of ours cannot be told from another of its form without the record. So what has the form, hangs on the branch
//! and is the newest of it speaks of records that the journal lost, unless it may be somebody else's: the agent's, where
//! its own ids look like ours, or another turn's, which begins with what a user said.

use super::{Trouble, ours, recovered_onto, steps_write};
use crate::draft::History;
use crate::record::{Hash, Kind};
use crate::tree::{self, Tree};
use crate::turn::{Turn, What};

/// What on the file tells that the journal of an open turn lost records: a call that only they claimed must not be taken
/// for one that nobody began.
pub fn lost_by_journal(session: &str, turn: &Turn, history: &History, tree: &Tree) -> Option<Trouble> {
    if turn.settled.is_some() || !tells_ours_apart(turn) {
        return None;
    }
    let ours = ours(session, turn, history, tree);
    let is_ours = |index: usize| tree.entries.get(index).is_some_and(|entry| ours.contains(&*entry.id));
    // Whoever wrote behind a stranger knew of it.
    let newest = (0..tree.entries.len()).rev().find(|index| is_ours(*index));
    let admitted = turn.tree.as_ref();
    let since = admitted.map_or(0, |tree| tree.bytes);
    let from = recovered_onto(turn, history).or_else(|| admitted.and_then(|tree| tree.leaf.clone()));
    let top = from.and_then(|from| tree.find(&from));
    let on_branch =
        |index: usize| tree.parent(index).is_some_and(|parent| is_ours(parent) || Some(parent) == top);
    let (index, stranger) = tree.entries.iter().enumerate().find(|(index, entry)| {
        entry.offset >= since
            && newest.is_none_or(|newest| *index > newest)
            && on_branch(*index)
            && is_unexplained(history, &entry.id)
            // Those of this turn are looked at by themselves, and another turn's are no facts of this one.
            && tree::marker(tree.text(*index)).is_none()
    })?;
    let by_user = tree.role(index).as_deref() == Some("user");
    (!by_user).then(|| Trouble::Unexplained { line: stranger.line, id: stranger.id.to_string() })
}

/// Whether an entry that the journal does not know is not to be taken for the agent's own.
pub fn is_stranger(turn: &Turn, history: &History, id: &str) -> bool {
    is_unexplained(history, id) && tells_ours_apart(turn)
}

/// Whether there may be entries of ours, and the agent's cannot be meant by the form of an id. Behind acknowledged
/// damage its record may be among those that are lost.
fn tells_ours_apart(turn: &Turn) -> bool {
    let agents_look_like_ours = || {
        turn.facts.iter().any(|fact| match &fact.what {
            What::Said(said) => said.entry_id.as_deref().is_some_and(tree::looks_like_ours),
            What::Attempt | What::Steered(_) | What::Answer(_) => false,
        })
    };
    steps_write(turn) && !turn.lost_records && !agents_look_like_ours()
}

/// Whether an id has the form of ours, and no record stands behind it.
fn is_unexplained(history: &History, id: &str) -> bool {
    let explained = || {
        history.iter().any(|(_, record)| {
            let given = |hash: &Hash| {
                let turn = record.kind.turn();
                turn.is_some_and(|turn| tree::entry_id(turn.as_str(), hash.as_str(), "entry") == id)
            };
            let own = match &record.kind {
                Kind::Entry(entry) => entry.entry.view().object().and_then(|entry| entry.string("id")),
                _ => None,
            };
            own.as_deref() == Some(id) || given(&record.hash)
        })
    };
    tree::looks_like_ours(id) && !explained()
}
