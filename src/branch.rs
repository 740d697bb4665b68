//! The branch of a turn on its session tree: what it has to hold, what is there, and what is to be written.
//!
//! Pure. Ids come from the records that entries stand for, so whatever was written before is found again, and a
//! plan made twice writes nothing twice. A line that is there keeps its place. The abandoned branch stays.

mod body;
mod chain;
mod compose;
mod found;
mod script;
mod stranger;
mod write;

pub use compose::content_of;
pub(crate) use compose::unknown_text;
pub use stranger::{is_stranger, lost_by_journal};

use crate::draft::History;
use crate::json::Raw;
use crate::message;
use crate::record::{Kind, TreeMode};
use crate::tree::{self, Leaf, Tree};
use crate::turn::{Attempt, Mark, Turn};
use compose::milliseconds;
use found::{Base, Found, markers};
use script::{Part, Script};
use std::collections::{HashSet, VecDeque};
use write::Writer;

/// How much of the turn is ours to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Everything committed, and a marker at the end: what `recover` does.
    Recover,
    /// Everything committed: each step in `append` mode.
    Steps,
    /// What the last recovery committed, and answers of calls that were open then: `branch` mode otherwise.
    Late,
}

/// What is to be done to a session file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The entry that the branch hangs on; `None` is the root.
    pub from: Option<String>,
    /// Lines to append, in order.
    pub write: Vec<Raw>,
    /// Ids of those among them that were there before and are gone, with others of ours still hanging on them.
    pub lost: Vec<String>,
    /// The last entry of the branch once they are there; `None` for a branch without entries.
    pub leaf: Option<String>,
    /// How many entries the branch then has.
    pub entries: u64,
    /// The newest record that it then carries.
    pub head: Option<Mark>,
}

/// Why a branch cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// An id of ours stands for something else.
    #[error("line {line}: entry {id} has an id of this journal and other content")]
    Content {
        /// Its line.
        line: usize,
        /// Its id.
        id: String,
    },
    /// A marker of this turn names a record that the journal lacks.
    #[error("line {line}: marker {id} carries record {head}, which the journal lacks")]
    Marker {
        /// Its line.
        line: usize,
        /// Its id.
        id: String,
        /// The record it names.
        head: String,
    },
    /// An entry stands on the branch as if it were ours, and stands for no record.
    #[error(
        "line {line}: entry {id} stands on this turn's branch under an id as turnkeep gives them, and no record \
         explains it: the journal lost records, or another journal is written to this session file"
    )]
    Unexplained {
        /// Its line.
        line: usize,
        /// Its id.
        id: String,
    },
    /// An entry of ours hangs elsewhere than the journal has it.
    #[error("line {line}: entry {id} has an id of this journal and is not in its place: {why}")]
    Place {
        /// Its line.
        line: usize,
        /// Its id.
        id: String,
        /// What is wrong with its place.
        why: &'static str,
    },
    /// An entry of ours hangs on one that is gone and that cannot be written anew.
    #[error(
        "line {line}: entry {id} of this journal's branch hangs on {parent}, which is gone and is not the journal's to write"
    )]
    Lost {
        /// Its line.
        line: usize,
        /// Its id.
        id: String,
        /// The entry that is gone.
        parent: String,
    },
    /// The path that our entries stand on is damaged.
    #[error(transparent)]
    Damage(tree::Refusal),
}

/// Plans the branch of a turn, where its newest recovery put it.
pub fn plan(
    session: &str,
    turn: &Turn,
    history: &History,
    tree: &Tree,
    extent: Extent,
) -> Result<Plan, Trouble> {
    let tip = recovered_onto(turn, history).or_else(|| begun_onto(turn, history, tree));
    plan_onto(session, turn, history, tree, extent, tip.as_deref())
}

/// Plans the branch of a turn behind what the agent wrote of it itself, up to the entry `tip`; without a tip from
/// the admission leaf on.
pub fn plan_onto(
    session: &str,
    turn: &Turn,
    history: &History,
    tree: &Tree,
    extent: Extent,
    tip: Option<&str>,
) -> Result<Plan, Trouble> {
    let script = Script::of(turn, history, extent);
    // What is there is judged by all that the turn committed, however much of it is to be written now.
    let late = (extent == Extent::Late).then(|| Script::of(turn, history, Extent::Steps));
    let whole = late.as_ref().unwrap_or(&script);
    let admitted = turn.tree.as_ref().and_then(|tree| tree.leaf.clone());
    let from = tip.map(str::to_owned).or(admitted);
    let live = tip.map_or_else(HashSet::new, |tip| standing_above(turn, tree, whole, tip));
    let found = Found::on(session, turn, history, tree, whole, Base { from: from.as_deref(), live }, extent)?;
    let mut writer = Writer::new(session, turn, tree, whole, &found, from);
    writer.follow()?;
    let mut plan = writer.append(&script.missing(&found, extent))?;
    // An entry that closes a gap is no end of the branch.
    let in_the_middle = plan.write.last().is_some_and(|last| id_in(last) != plan.leaf);
    if extent == Extent::Recover || in_the_middle {
        end_with_marker(&mut plan, session, turn, tree);
    }
    plan.refuse_taken_ids(tree)?;
    Ok(plan)
}

impl Plan {
    /// Nothing is written under an id that stands on the file already.
    fn refuse_taken_ids(&self, tree: &Tree) -> Result<(), Trouble> {
        let taken = self.write.iter().find_map(|entry| tree.entry(&id_in(entry)?));
        taken.map_or(Ok(()), |taken| Err(Trouble::Content { line: taken.line, id: taken.id.to_string() }))
    }
}

fn id_in(entry: &Raw) -> Option<String> {
    entry.view().object()?.string("id")
}

/// The end of the live branch, if the file holds exactly the beginning of the committed turn below the admission
/// leaf, in the agent's own entries and without anything else, and Pi can go on from them: then only what is missing
/// needs to be written there.
pub fn live_tip(turn: &Turn, history: &History, tree: &Tree) -> Option<String> {
    let script = Script::of(turn, history, Extent::Steps);
    let later = behind_admission(turn, tree);
    let leaf = turn.tree.as_ref().and_then(|tree| tree.leaf.as_deref());
    let mut tip = leaf.map(|leaf| tree.find(leaf)).unwrap_or_default();
    let mut parts = script.parts.iter();
    for index in &later {
        let continues = tree.parent(*index) == tip;
        let part = parts.next().filter(|part| continues && part.stands_at(tree, *index))?;
        if tree.raw_message(*index).is_some_and(|message| !message::pi_opens(&message)) {
            return None;
        }
        // A line of ours begins a branch of ours, which is gone on with.
        let entry = tree.entries.get(*index)?;
        if part.forms.iter().any(|form| form.id == *entry.id) {
            return None;
        }
        tip = Some(*index);
    }
    later.last().and_then(|last| tree.entries.get(*last)).map(|entry| entry.id.to_string())
}

/// The entry that the newest recovery with a branch went on from, where that is not the admission leaf.
fn recovered_onto(turn: &Turn, history: &History) -> Option<String> {
    let recovered = match &history.get(last_branch(turn)?)?.kind {
        Kind::Recovered(recovered) => recovered.branch.as_ref()?,
        _ => return None,
    };
    let admitted = turn.tree.as_ref().and_then(|tree| tree.leaf.as_ref());
    recovered.from.clone().filter(|from| Some(from) != admitted)
}

/// The same for a recovery that was killed before it said so: where the first entry of ours hangs behind entries of the
/// agent's that are exactly the beginning of the turn.
fn begun_onto(turn: &Turn, history: &History, tree: &Tree) -> Option<String> {
    if !turn.attempts.iter().any(Attempt::unfinished) {
        return None;
    }
    let script = Script::of(turn, history, Extent::Steps);
    let places = script.places();
    let (first, index) = tree
        .entries
        .iter()
        .enumerate()
        .filter_map(|(index, entry)| Some((*places.get(&*entry.id)?, index)))
        .min()?;
    let tip = tree.parent(index).filter(|_| first > 0)?;
    let since = turn.tree.as_ref().map_or(0, |tree| tree.bytes);
    let path = tree.path(tip).entries;
    let leaf = turn.tree.as_ref().and_then(|tree| tree.leaf.as_deref());
    let below = match leaf {
        Some(leaf) => {
            path.iter().position(|index| tree.entries.get(*index).is_some_and(|e| *e.id == *leaf))? + 1
        }
        None => 0,
    };
    let own = path.get(below..).filter(|own| own.len() == first)?;
    let is_the_agents = |(index, part): (&usize, &Part<'_>)| {
        let entry = tree.entries.get(*index);
        entry.is_some_and(|entry| entry.offset >= since && !places.contains_key(&*entry.id))
            && part.stands_at(tree, *index)
    };
    let stands = own.iter().zip(&script.parts).all(is_the_agents);
    stands.then(|| tree.entries.get(tip).map(|entry| entry.id.to_string())).flatten()
}

/// The parts that stand, in the agent's own entries, from admission up to `tip`; by the id of their first form.
fn standing_above(turn: &Turn, tree: &Tree, script: &Script<'_>, tip: &str) -> HashSet<String> {
    let since = turn.tree.as_ref().map_or(0, |tree| tree.bytes);
    let path = tree.find(tip).map(|tip| tree.path(tip).entries).unwrap_or_default();
    let later = path.into_iter().filter(|index| tree.entries.get(*index).is_some_and(|e| e.offset >= since));
    // Results stand in the order in which they came: what of them is known now may be in another one.
    let mut left: VecDeque<&Part<'_>> = script.parts.iter().collect();
    let mut standing = HashSet::new();
    for index in later {
        let results = left.iter().take_while(|part| part.answered.is_some()).count();
        let Some(at) = left.iter().take(results + 1).position(|part| part.stands_at(tree, index)) else {
            left.pop_front();
            continue;
        };
        let part = left.remove(at);
        standing.extend(part.and_then(|part| part.forms.first()).map(|form| form.id.clone()));
    }
    standing
}

/// Whether the file holds everything that the turn committed, in whatever form.
///
/// Asked for a settled turn that the agent wrote itself.
pub fn lacks_nothing(turn: &Turn, history: &History, tree: &Tree) -> bool {
    let script = Script::of(turn, history, Extent::Steps);
    let later = behind_admission(turn, tree);
    script.parts.iter().all(|part| {
        part.ids().any(|id| tree.find(id).is_some())
            || later.iter().any(|index| part.says_the_same(tree, *index))
    })
}

/// Entries behind admission that the agent wrote itself and that say what the journal holds as a message.
///
/// An agent may journal what it says and keep its file by itself: then nothing in the file is new. Results that no
/// message told are not among them, since the agent's own form of a result is worth journaling.
pub fn echoes(turn: &Turn, history: &History, tree: &Tree) -> HashSet<usize> {
    let script = Script::of(turn, history, Extent::Steps);
    let known: HashSet<&str> = script.parts.iter().flat_map(Part::ids).collect();
    let mut unknown = behind_admission(turn, tree);
    unknown.retain(|index| tree.entries.get(*index).is_some_and(|entry| !known.contains(&*entry.id)));
    let mut echoes = HashSet::new();
    for part in script.parts.iter().filter(|part| part.agent_ids.is_empty() && part.may_echo(turn)) {
        let found =
            unknown.iter().find(|index| !echoes.contains(*index) && part.says_the_same(tree, **index));
        echoes.extend(found.copied());
    }
    echoes
}

fn behind_admission(turn: &Turn, tree: &Tree) -> Vec<usize> {
    let since = turn.tree.as_ref().map_or(0, |tree| tree.bytes);
    let later = |index: &usize| tree.entries.get(*index).is_some_and(|entry| entry.offset >= since);
    (0..tree.entries.len()).filter(later).collect()
}

/// The ids of ours on a file: entries of the branch and markers.
pub fn ours(session: &str, turn: &Turn, history: &History, tree: &Tree) -> HashSet<String> {
    let script = Script::of(turn, history, Extent::Steps);
    let forms = script.parts.iter().flat_map(|part| &part.forms);
    let mut ids: HashSet<String> =
        forms.map(|form| form.id.clone()).filter(|id| tree.find(id).is_some()).collect();
    ids.extend(
        markers(session, turn, tree)
            .filter_map(|(index, _)| tree.entries.get(index))
            .map(|entry| entry.id.to_string()),
    );
    ids
}

/// One entry that the branch has to hold, and the record whose form it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The entry, under our id and without a parent.
    pub(crate) entry: Raw,
    /// Seq of the record.
    pub(crate) seq: u64,
}

/// What the branch of a turn holds of its conversation, whatever is on the file already.
pub(crate) fn pieces(turn: &Turn, history: &History) -> Vec<Piece> {
    let script = Script::of(turn, history, Extent::Steps);
    let mut ids = script.ids(&Found::default());
    let mut pieces = Vec::new();
    for part in &script.parts {
        let Some(form) = part.forms.first() else { continue };
        match form.build(None, &|id| ids.map(id)) {
            Some(entry) => pieces.push(Piece { entry, seq: form.mark.seq }),
            // It points at an entry that is left out, so it is left out too.
            None => ids.leave_out(part),
        }
    }
    pieces
}

/// Whether the last line of the file continues the branch, so that the agent opens it.
pub fn last_line_continues(plan: &Plan, tree: &Tree) -> bool {
    let last = match tree.leaf() {
        Leaf::Entry(last) => last,
        Leaf::None => return true,
        // The agent would open the file with an empty context.
        Leaf::Undefined { .. } => return false,
    };
    let Some(leaf) = plan.leaf.as_deref().or(plan.from.as_deref()).and_then(|id| tree.find(id)) else {
        return true;
    };
    tree.path(last).entries.contains(&leaf)
}

/// Whether the last line of the file is one of ours that stands before the end of the branch.
pub fn ends_in_the_middle(session: &str, turn: &Turn, history: &History, plan: &Plan, tree: &Tree) -> bool {
    let last = tree.last_entry().and_then(|last| tree.entries.get(last));
    last.is_some_and(|last| {
        Some(&*last.id) != plan.leaf.as_deref() && ours(session, turn, history, tree).contains(&*last.id)
    })
}

/// Seq of the newest `recovered` of the turn that made sure of a branch.
pub fn last_branch(turn: &Turn) -> Option<u64> {
    turn.attempts.iter().rev().find_map(|attempt| attempt.branched.as_ref()).map(|mark| mark.seq)
}

/// Whether steps of this turn write to its tree: in `append` mode always, else once a recovery made a branch.
pub fn steps_write(turn: &Turn) -> bool {
    let appends = turn.tree.as_ref().is_some_and(|tree| tree.mode == TreeMode::Append);
    appends || turn.attempts.iter().any(|attempt| attempt.recovered.is_some())
}

/// Ends the branch with a marker, unless it ends with one that is the last line already.
pub fn end_with_marker(plan: &mut Plan, session: &str, turn: &Turn, tree: &Tree) {
    let parent = plan.leaf.clone().or_else(|| plan.from.clone());
    let (parent, head) = (parent.as_deref(), plan.head.as_ref().unwrap_or(&turn.admitted));
    let is_marker = |index: usize| {
        let id = tree.entries.get(index).map(|entry| &*entry.id);
        id == plan.leaf.as_deref() && markers(session, turn, tree).any(|(marker, _)| marker == index)
    };
    if plan.write.is_empty() && matches!(tree.leaf(), Leaf::Entry(last) if is_marker(last)) {
        return;
    }
    let id = tree::entry_id(turn.id.as_str(), head.hash.as_str(), parent.unwrap_or("root"));
    plan.write.push(marker_entry(&id, parent, session, turn, head));
    plan.entries += 1;
    plan.leaf = Some(id);
}

fn marker_entry(id: &str, parent: Option<&str>, session: &str, turn: &Turn, head: &Mark) -> Raw {
    tree::marker_entry(id, parent, &milliseconds(&head.at), session, turn.id.as_str(), &head.head())
}

fn newest(head: Option<Mark>, mark: &Mark) -> Mark {
    head.filter(|head| head.seq >= mark.seq).unwrap_or_else(|| mark.clone())
}

/// Which extent applies outside a recovery.
pub fn extent_of(mode: TreeMode) -> Extent {
    match mode {
        TreeMode::Append => Extent::Steps,
        TreeMode::Branch => Extent::Late,
    }
}

#[cfg(test)]
mod tests;
