//! What is asked about the session file of a turn: whose it is, whether it can be written to, and whether it is behind
//! the journal or ahead of it. Plans nothing and writes nothing.

use super::Refusal;
use super::adopt::{self, Adoption};
use crate::branch;
use crate::draft::{Draft, DraftError, History};
use crate::json::Raw;
use crate::record::{Kind, TreeMode};
use crate::tree::{self, Tree};
use crate::turn::decide::{Holder, Now};
use crate::turn::{Session, Stands, Turn, What, next};

/// Whether the tree of a turn is still its own: no later turn was admitted on it.
pub fn owns_tree(session: &Session, turn: &Turn) -> bool {
    session.turn(&turn.id).is_some_and(|turn| turn.tree.is_some() && !turn.tree_passed_on)
}

/// What must hold before the branch of a turn is written.
pub fn check_tree(turn: &Turn, tree: &Tree) -> Result<(), Refusal> {
    let Some(admitted) = &turn.tree else { return Ok(()) };
    if !needs_header(tree) {
        tree::check_path(tree, admitted.leaf.as_deref())?;
        return check_header(turn, tree);
    }
    if admitted.bytes > 0 {
        let (path, committed) = (admitted.path.clone(), turn.facts.len());
        return Err(Refusal::TreeMissing { path, committed });
    }
    Ok(())
}

/// Whether the file is the one that the turn was admitted on, by the id in its header. A file that was not there yet, or
/// a header without an id, is no other one.
pub fn check_header(turn: &Turn, tree: &Tree) -> Result<(), Refusal> {
    let expected = turn.tree.as_ref().and_then(|admitted| admitted.header_id.clone());
    let found = tree.header.as_ref().and_then(|header| header.id.clone());
    match (expected, found) {
        (Some(expected), Some(found)) if expected != found => Err(Refusal::OtherTree { expected, found }),
        _ => Ok(()),
    }
}

/// Whether a session file is still to be begun: it is not there, it is empty, or its first writes were cut off.
pub fn needs_header(tree: &Tree) -> bool {
    tree.is_unbegun()
}

/// Whether the session tree is behind the journal, so that `recover` comes next.
pub fn branch_behind(
    session: &Session,
    turn: &Turn,
    history: &History,
    tree: &Tree,
) -> Result<bool, branch::Trouble> {
    let Some(admitted) = turn.tree.as_ref().filter(|_| owns_tree(session, turn)) else { return Ok(false) };
    if admitted.mode == TreeMode::Branch && branch::last_branch(turn).is_none() {
        return Ok(turn.settled.is_some() && !branch::lacks_nothing(turn, history, tree));
    }
    if let Some(trouble) = branch::lost_by_journal(&session.id, turn, history, tree) {
        return Err(trouble);
    }
    let plan = branch::plan(&session.id, turn, history, tree, branch::extent_of(admitted.mode))?;
    let misplaced_end = || branch::ends_in_the_middle(&session.id, turn, history, &plan, tree);
    if turn.settled.is_some() {
        let lacks = !plan.write.is_empty() && !branch::lacks_nothing(turn, history, tree);
        return Ok(lacks || misplaced_end());
    }
    Ok(!plan.write.is_empty() || !branch::last_line_continues(&plan, tree))
}

/// Whether the file holds entries of a dead agent with which a recover of the turn, which waits by what is journaled,
/// would go on.
pub fn is_ahead(session: &Session, turn: &Turn, history: &History, tree: &Tree, now: &Now<'_>) -> bool {
    let gone =
        turn.current().is_some_and(|attempt| matches!(now.holder(attempt), Holder::Gone | Holder::Lapsed));
    let open = turn.settled.is_none() && turn.parked.is_none();
    if !gone || !open || !owns_tree(session, turn) || !next::waits(turn, now) {
        return false;
    }
    // Nothing of it is written, so where its lines would stand is of no account.
    let (offset, line_bytes_max) = (turn.newest.offset, crate::chain::LINE_BYTES_MAX);
    let draft = Draft::new(session.clone(), history.clone(), now.at.clone(), offset, line_bytes_max);
    let adoption = adopt::adopt(&draft, &turn.id, tree, now.policy);
    // A recover that refuses does not go on either.
    let refused = adoption.moved_on.is_some() || adoption.unjournaled.is_some();
    !refused && waits_with(&draft, turn, &adoption, now).is_ok_and(|waits| !waits)
}

/// Whether a recover of the turn would wait for somebody else, with the entries counted that it would journal.
pub(super) fn waits_with(
    draft: &Draft,
    turn: &Turn,
    adoption: &Adoption,
    now: &Now<'_>,
) -> Result<bool, DraftError> {
    if adoption.entries.is_empty() {
        return Ok(next::waits(turn, now));
    }
    let mut trial = adopt::trial_of(draft, turn)?;
    for entry in &adoption.entries {
        adopt::journal(&mut trial, &turn.id, entry, now.policy)?;
    }
    Ok(trial.session.turn(&turn.id).is_some_and(|turn| next::waits(turn, now)))
}

/// The header of a session file that has to be made: the agent's own where it is known.
pub fn header_for(turn: &Turn, history: &History) -> Raw {
    let own = turn.facts.iter().find_map(|fact| match &fact.what {
        What::Said(said) if said.stands == Stands::Header => match &history.get(fact.mark.seq)?.kind {
            Kind::Entry(entry) => Some(entry.entry.clone()),
            _ => None,
        },
        _ => None,
    });
    own.unwrap_or_else(|| {
        // Where the write of the admission was torn before it, the record of the turn still knows whose it was.
        let known = turn.tree.as_ref().and_then(|tree| tree.header_id.clone());
        let made = || tree::entry_id(turn.id.as_str(), turn.admitted.hash.as_str(), "session");
        let id = known.unwrap_or_else(made);
        let at = turn.admitted.at.as_str();
        let path = turn.tree.as_ref().map_or("/", |tree| tree.path.as_str());
        let cwd = std::path::Path::new(path).parent().map_or("/".into(), |folder| folder.to_string_lossy());
        tree::header_line(&id, &format!("{}Z", at.get(..23).unwrap_or(at)), &cwd)
    })
}
