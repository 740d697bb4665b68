//! What an agent wrote on its session tree itself before it died.
//!
//! Pi writes an entry before an extension can journal it. Entries that continue the journaled path are the dead
//! agent's own and are journaled by the recovery; anything else that came after admission is somebody else's and is
//! reported, and a user's message among it means that the conversation moved on.

use crate::branch;
use crate::chain::call_key;
use crate::draft::{Draft, DraftError};
use crate::json::Raw;
use crate::message::{self, Format, Meaning, Role};
use crate::policy::Policy;
use crate::record::{Attempt, CallIntent, CallRef, Cause, Entry, TurnId, Unparked};
use crate::tree::finding::list_of;
use crate::tree::{Parent, Tree};
use crate::turn::{Session, Turn, What};
use std::collections::HashSet;

/// Entries that a note names at most.
const NAMED_MAX: usize = 5;

/// What was found on the tree after admission.
#[derive(Debug, Clone, Default)]
pub struct Adoption {
    /// The agent's own entries that the journal does not have, in order.
    pub entries: Vec<Raw>,
    /// The line of the first user's message that is not of this turn.
    pub moved_on: Option<usize>,
    /// The line of a result of a call that was neither claimed nor answered, and that call's id.
    pub unjournaled: Option<(usize, String)>,
    /// What a person should know.
    pub notes: Vec<String>,
}

/// Looks at what the tree holds behind the admission of a turn.
pub fn adopt(draft: &Draft, id: &TurnId, tree: &Tree, policy: &Policy) -> Adoption {
    let Some(turn) = draft.session.turn(id) else { return Adoption::default() };
    let mut known = journaled(turn);
    known.extend(branch::ours(&draft.session.id, turn, &draft.history, tree));
    let mut adoption = Adoption::default();
    if turn.settled.is_some() {
        // Nothing is journaled any more, but what the agent wrote is still its own.
        let echoes = branch::echoes(turn, &draft.history, tree);
        known.extend(echoes.iter().filter_map(|index| tree.entries.get(*index)).map(|e| e.id.to_string()));
    } else {
        walk(&mut adoption, draft, turn, tree, policy, &mut known);
    }
    report_foreign(&mut adoption, turn, tree, &known);
    adoption
}

/// Journals an entry of the agent's; calls of a message that was cut off never run.
pub(super) fn journal(
    draft: &mut Draft,
    turn: &TurnId,
    entry: &Raw,
    policy: &Policy,
) -> Result<(), DraftError> {
    let record = entry_record(draft, turn, entry, policy);
    draft.push(record)?;
    close_cut_off(draft, turn)
}

/// Calls of a message that was cut off never run: each that is open gets its `not_run`.
pub fn close_cut_off(draft: &mut Draft, turn: &TurnId) -> Result<(), DraftError> {
    for not_run in draft.session.turn(turn).map(super::cut_off_calls).unwrap_or_default() {
        draft.push(not_run)?;
    }
    Ok(())
}

/// A draft that entries can be tried on: the turn is unparked there, has an attempt, and no cut-off call is open.
pub(super) fn trial_of(draft: &Draft, turn: &Turn) -> Result<Draft, DraftError> {
    let mut trial = draft.clone();
    if turn.parked.is_some() {
        let (why, by) = ("a trial".to_owned(), "turnkeep".to_owned());
        trial.push(Unparked { turn: turn.id.clone(), why, by })?;
    }
    if turn.current().is_none() {
        let (turn, attempt, cause) = (turn.id.clone(), 1, Cause::Recover);
        trial.push(Attempt { turn, attempt, cause, why: None, owner: None, lease_ms: None })?;
    }
    close_cut_off(&mut trial, &turn.id)?;
    Ok(trial)
}

/// The `entry` record for an entry of the agent's, with its calls and the policy for them.
pub fn entry_record(draft: &Draft, turn: &TurnId, entry: &Raw, policy: &Policy) -> Entry {
    let attempt = draft.session.turn(turn).map_or(0, Turn::current_number);
    let calls =
        meaning_of(entry).map(|meaning| intents(&draft.session, turn, draft.next_seq(), &meaning, policy));
    Entry {
        turn: turn.clone(),
        attempt,
        entry: entry.clone(),
        calls: calls.filter(|calls| !calls.is_empty()),
    }
}

/// The intents of a model's message that will be the record of this seq.
pub fn intents(
    session: &Session,
    turn: &TurnId,
    seq: u64,
    meaning: &Meaning,
    policy: &Policy,
) -> Vec<CallIntent> {
    let asked = meaning.calls.iter().zip(0..).filter(|_| meaning.role == Role::Assistant);
    asked
        .map(|(asked, position)| {
            let r#ref = CallRef { seq, position };
            let rule = policy.classify(&asked.tool, asked.args.get());
            CallIntent {
                r#ref,
                id: asked.id.clone(),
                tool: asked.tool.clone(),
                args_sha256: crate::chain::digest(asked.args.get().as_bytes()),
                replay: rule.replay,
                approval: rule.approval,
                unknown: rule.unknown,
                key: call_key(&session.genesis, turn, r#ref),
            }
        })
        .collect()
}

/// What the message in an entry means, if it is one.
pub fn meaning_of(entry: &Raw) -> Option<Meaning> {
    let object = entry.view().object()?;
    if object.string("type")? != "message" {
        return None;
    }
    message::meaning(Format::Pi, &Raw::parse(object.get("message")?).ok()?).ok()
}

/// The ids of everything that the journal already accounts for.
fn journaled(turn: &Turn) -> HashSet<String> {
    let leaf = turn.tree.iter().filter_map(|tree| tree.leaf.clone());
    let said = turn.facts.iter().filter_map(|fact| match &fact.what {
        What::Said(said) => said.entry_id.clone(),
        What::Attempt | What::Steered(_) | What::Answer(_) => None,
    });
    leaf.chain(said).collect()
}

/// Follows the path from its journaled end, as far as the dead agent can have written it.
fn walk(
    adoption: &mut Adoption,
    draft: &Draft,
    turn: &Turn,
    tree: &Tree,
    policy: &Policy,
    known: &mut HashSet<String>,
) {
    let since = turn.tree.as_ref().map_or(0, |tree| tree.bytes);
    let echoes = branch::echoes(turn, &draft.history, tree);
    let Ok(mut trial) = trial_of(draft, turn) else { return };
    let mut tip = tree.entries.iter().rposition(|entry| known.contains(&*entry.id));
    loop {
        let children = match tip {
            Some(tip) => tree.children(tip),
            None => tree.roots(),
        };
        let fresh = |index: &usize| {
            tree.entries.get(*index).is_some_and(|entry| {
                entry.offset >= since
                    && !known.contains(&*entry.id)
                    && (tip.is_some() || entry.parent == Parent::Root)
                    && !branch::is_stranger(turn, &draft.history, &entry.id)
            })
        };
        let fresh: Vec<usize> = children.iter().copied().filter(fresh).collect();
        let mut unjournaled = None;
        // Several siblings: at most one of them is the dead agent's.
        let step = fresh.into_iter().find_map(|index| {
            let entry = tree.entries.get(index)?;
            if echoes.contains(&index) {
                return Some((index, None));
            }
            let raw = Raw::parse(tree.text(index)).ok()?;
            if let Some(stop) = stop_at(&trial, turn, &raw) {
                if let Stop::Unjournaled(id) = stop {
                    unjournaled.get_or_insert((entry.line, id));
                }
                return None;
            }
            journal(&mut trial, &turn.id, &raw, policy).ok()?;
            Some((index, Some(raw)))
        });
        let Some((index, raw)) = step else {
            adoption.unjournaled = unjournaled;
            return;
        };
        known.extend(tree.entries.get(index).map(|entry| entry.id.to_string()));
        adoption.entries.extend(raw);
        tip = Some(index);
    }
}

/// Why an entry that may follow is not taken for the dead agent's own.
enum Stop {
    /// A result of a call that nobody claimed.
    Unjournaled(String),
    /// Something that this agent would not have written in this turn.
    Foreign,
}

fn stop_at(trial: &Draft, turn: &Turn, raw: &Raw) -> Option<Stop> {
    let turn = trial.session.turn(&turn.id)?;
    let meaning = meaning_of(raw)?;
    for answer in &meaning.answers {
        let told = turn.call_told(&answer.call_id);
        // Behind lost records its claim may be one of them.
        if told.is_none_or(|index| turn.check_told(index).is_err()) && !turn.lost_records {
            return Some(Stop::Unjournaled(answer.call_id.clone()));
        }
    }
    match meaning.role {
        Role::User => {
            let joined = turn.awaits_steered(&meaning.text);
            (turn.has_model_message() && !joined).then_some(Stop::Foreign)
        }
        _ => None,
    }
}

fn report_foreign(adoption: &mut Adoption, turn: &Turn, tree: &Tree, known: &HashSet<String>) {
    let since = turn.tree.as_ref().map_or(0, |tree| tree.bytes);
    let foreign: Vec<usize> = (0..tree.entries.len())
        .filter(|index| {
            tree.entries.get(*index).is_some_and(|entry| entry.offset >= since && !known.contains(&*entry.id))
        })
        .collect();
    let by_user = foreign.iter().find(|index| tree.role(**index).as_deref() == Some("user"));
    adoption.moved_on = by_user.and_then(|index| tree.entries.get(*index)).map(|entry| entry.line);
    if !foreign.is_empty() {
        let lines = foreign
            .iter()
            .filter_map(|index| tree.entries.get(*index))
            .map(|entry| format!("{} (line {})", entry.id, entry.line));
        let entries = if foreign.len() == 1 { "entry" } else { "entries" };
        adoption.notes.push(format!(
            "the session file has {} {entries} since admission that this turn does not have: {}",
            foreign.len(),
            list_of(NAMED_MAX, lines)
        ));
    }
    let leaves = leaves_since(turn, tree);
    if !foreign.is_empty() && leaves.len() > 1 {
        let named = list_of(NAMED_MAX, leaves.iter().map(|id| (*id).to_owned()));
        adoption.notes.push(format!("the session file has {} leaves since admission: {named}", leaves.len()));
    }
    if let Some(last) = tree.last_entry().filter(|last| foreign.contains(last)) {
        let last = tree.entries.get(last).map(|entry| entry.id.to_string()).unwrap_or_default();
        adoption.notes.push(format!("the last line, which Pi would open, is {last}"));
    }
}

/// The ends of branches that came after admission, and the entry of the admission where nothing hangs below it.
fn leaves_since<'a>(turn: &Turn, tree: &'a Tree) -> Vec<&'a str> {
    let Some(on) = turn.tree.as_ref() else { return Vec::new() };
    let ends = tree.entries.iter().enumerate().filter(|(index, _)| tree.children(*index).is_empty());
    ends.filter(|(_, entry)| entry.offset >= on.bytes || on.leaf.as_deref() == Some(&*entry.id))
        .map(|(_, entry)| &*entry.id)
        .collect()
}
