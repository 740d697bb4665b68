//! Every state in which a crash may leave the watched folder.
//!
//! A sync of a file makes its content and length durable and nothing else; only a sync of a folder makes its names
//! durable. Every other operation may be lost in any combination, and a write that is not lost may be torn or stand
//! as zeros, one at a time. What bounds the number: the newest [`WINDOW`] operations that a later sync covers are taken
//! in all combinations; the rest (mostly of spools, which nobody ever syncs) with all kept and with all lost; and a write
//! is torn with all else kept and with all else lost. With [`Depth::Full`] each of the rest is also alone lost and alone
//! kept, and a write is torn where one other operation is lost.

use super::model::{Disk, Event, Ino, Name, Op, ROOT, What};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// How many of the newest pending operations are lost in every combination.
const WINDOW: usize = 5;

/// How much of the rest is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    Some,
    Full,
}

/// What became of an operation that was not durable yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Fate {
    Kept,
    Lost,
    /// Only so many of its bytes are there.
    Torn(usize),
    /// It has its length, but zeros in place of its bytes.
    Zeros,
}

/// One state of the disk, and what was promised before.
pub struct State {
    /// Which crash it is and what was lost, for people.
    pub label: String,
    pub disk: Disk,
    /// So many bytes of the journal were acknowledged.
    pub acked: usize,
    /// Everything that was written was acknowledged, and nobody is at work.
    pub quiet: bool,
    /// Something that the agent wrote, and never synced, is not there as it was written.
    pub agent_lost: bool,
    /// Equal for states that are judged alike, but for what was acknowledged.
    pub key: u64,
}

/// Which states there are, seen from the last crash to the first: of those that are alike only the one of which
/// most was promised.
pub fn of(events: &[Event], depth: Depth) -> Vec<State> {
    let durable = durable_at(events);
    let mut seen = HashSet::new();
    let mut states = Vec::new();
    for crash in (0..=events.len()).rev() {
        let past = &events[..crash];
        let acked = past.iter().fold(0, |acked, event| match event.what {
            What::Acked(end) => acked.max(end),
            What::Did(_) => acked,
        });
        let quiet = past.last().is_some_and(|last| !last.working && matches!(last.what, What::Acked(_)));
        let pending: Vec<usize> =
            (0..crash).filter(|at| is_change(&events[*at]) && durable[*at] >= crash).collect();
        let (covered, rest): (Vec<usize>, Vec<usize>) =
            pending.iter().copied().partition(|at| durable[*at] < events.len());
        let (old, new) = covered.split_at(covered.len().saturating_sub(WINDOW));
        for kept in combinations(&[old, &rest].concat(), new, depth) {
            let mut fates: HashMap<usize, Fate> = pending
                .iter()
                .map(|at| (*at, if kept.contains(at) { Fate::Kept } else { Fate::Lost }))
                .collect();
            let mut add = |fates: &HashMap<usize, Fate>| {
                let key = key(past, fates, quiet);
                if seen.insert(key) {
                    let disk = disk(past, fates);
                    let label = label(events, crash, fates);
                    let agent_lost =
                        fates.iter().any(|(at, fate)| events[*at].foreign && *fate != Fate::Kept);
                    states.push(State { label, disk, acked, quiet, agent_lost, key });
                }
            };
            add(&fates);
            let lost = pending.len() - kept.len();
            let tears = lost == 0 || kept.len() == 1 || (depth == Depth::Full && lost == 1);
            for at in kept.into_iter().filter(|_| tears) {
                let What::Did(Op::Write { bytes, .. }) = &events[at].what else { continue };
                let len = bytes.len();
                let torn: HashSet<usize> =
                    [1, len / 2, len - 1].into_iter().filter(|n| (1..len).contains(n)).collect();
                let mut torn: Vec<usize> = torn.into_iter().collect();
                torn.sort_unstable();
                for fate in torn.into_iter().map(Fate::Torn).chain([Fate::Zeros]) {
                    fates.insert(at, fate);
                    add(&fates);
                }
                fates.insert(at, Fate::Kept);
            }
        }
    }
    states
}

fn is_change(event: &Event) -> bool {
    !matches!(event.what, What::Acked(_) | What::Did(Op::Sync(_) | Op::SyncDir(_)))
}

/// By which event each operation is durable; the number of events where by none.
pub fn durable_at(events: &[Event]) -> Vec<usize> {
    let synced = |from: usize, wanted: Op| {
        let found =
            events[from..].iter().position(|event| matches!(&event.what, What::Did(op) if *op == wanted));
        found.map_or(events.len(), |behind| from + behind)
    };
    let durable = |(at, event): (usize, &Event)| match &event.what {
        What::Did(Op::Create { name, .. } | Op::Mkdir { name, .. } | Op::Unlink { name }) => {
            synced(at, Op::SyncDir(name.dir))
        }
        What::Did(Op::Rename { from, to, .. }) => {
            synced(at, Op::SyncDir(from.dir)).max(synced(at, Op::SyncDir(to.dir)))
        }
        What::Did(Op::Write { ino, .. } | Op::Length { ino, .. }) => synced(at, Op::Sync(*ino)),
        What::Did(Op::Sync(_) | Op::SyncDir(_)) | What::Acked(_) => at,
    };
    events.iter().enumerate().map(durable).collect()
}

/// Which of the pending operations are kept.
fn combinations(rest: &[usize], new: &[usize], depth: Depth) -> Vec<Vec<usize>> {
    let mut rests = vec![rest.to_vec()];
    if !rest.is_empty() {
        rests.push(Vec::new());
    }
    if depth == Depth::Full && rest.len() > 1 {
        for one in rest {
            rests.push(rest.iter().copied().filter(|at| at != one).collect());
            rests.push(vec![*one]);
        }
    }
    let mut all = Vec::new();
    for rest in rests {
        for mask in 0..1_usize << new.len() {
            let new = new.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1).map(|(_, at)| *at);
            all.push(rest.iter().copied().chain(new).collect());
        }
    }
    all
}

fn fate(fates: &HashMap<usize, Fate>, at: usize) -> Fate {
    fates.get(&at).copied().unwrap_or(Fate::Kept)
}

fn disk(past: &[Event], fates: &HashMap<usize, Fate>) -> Disk {
    let mut disk = Disk::new();
    for (at, event) in past.iter().enumerate() {
        let What::Did(op) = &event.what else { continue };
        match (fate(fates, at), op) {
            (Fate::Kept, op) => disk.apply(op),
            (Fate::Torn(len), Op::Write { ino, at, bytes }) => {
                disk.apply(&Op::Write { ino: *ino, at: *at, bytes: bytes[..len].to_vec() });
            }
            (Fate::Zeros, Op::Write { ino, at, bytes }) => {
                disk.apply(&Op::Write { ino: *ino, at: *at, bytes: vec![0; bytes.len()] });
            }
            (Fate::Lost | Fate::Torn(_) | Fate::Zeros, _) => {}
        }
    }
    disk
}

/// Made of the names that are there and of what became of each operation on the files behind them.
fn key(past: &[Event], fates: &HashMap<usize, Fate>, quiet: bool) -> u64 {
    let mut names: Vec<(&Name, Ino)> = Vec::new();
    let mut contents: Vec<(Ino, usize, Fate)> = Vec::new();
    for (at, event) in past.iter().enumerate() {
        let (fate, What::Did(op)) = (fate(fates, at), &event.what) else { continue };
        match op {
            Op::Sync(_) | Op::SyncDir(_) => {}
            _ if fate == Fate::Lost => {}
            Op::Write { ino, .. } | Op::Length { ino, .. } => contents.push((*ino, event.id, fate)),
            Op::Create { name, ino } | Op::Mkdir { name, ino } => {
                names.retain(|(other, _)| *other != name);
                names.push((name, *ino));
            }
            Op::Rename { from, to, ino } => {
                names.retain(|(other, found)| *other != to && (*other != from || found != ino));
                names.push((to, *ino));
            }
            Op::Unlink { name } => names.retain(|(other, _)| *other != name),
        }
    }
    // A folder's name stands before the names in it, since it was made before them.
    let mut reachable = vec![ROOT];
    names.retain(|(name, ino)| {
        let there = reachable.contains(&name.dir);
        if there {
            reachable.push(*ino);
        }
        there
    });
    names.sort();
    contents.retain(|(ino, ..)| reachable.contains(ino));
    contents.sort_by_key(|(ino, ..)| *ino);
    let mut hasher = DefaultHasher::new();
    (quiet, names, contents).hash(&mut hasher);
    hasher.finish()
}

fn label(events: &[Event], crash: usize, fates: &HashMap<usize, Fate>) -> String {
    let before = crash.checked_sub(1).map_or("nothing yet", |at| &events[at].label);
    let mut lost: Vec<_> = fates.iter().filter(|(_, fate)| **fate != Fate::Kept).collect();
    lost.sort_by_key(|(at, _)| **at);
    let lost: Vec<String> =
        lost.iter().map(|(at, fate)| format!("{fate:?}: {}", events[**at].label)).collect();
    format!(
        "crash behind [{before}]; {}",
        if lost.is_empty() { "nothing lost".to_owned() } else { lost.join("; ") }
    )
}
