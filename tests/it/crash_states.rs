//! A log of whole turns (`tests/crash/turn.sh` under strace), turned into every state in which a crash may leave the
//! disk; and the same log with syncs or their order taken away, which must be found.
//!
//! Where strace cannot be used the tests say so and pass. `TURNKEEP_SLOW=1` judges every state instead of some;
//! with a release build in `TURNKEEP_BIN` there are more of them.

mod judge;
mod model;
mod states;
mod strace;

use crate::kit::*;
use judge::Judge;
use model::{Event, Op, What};
use states::Depth;
use std::collections::HashSet;

/// The state root and the journal, in the watched folder.
const ROOT: &str = "home/state";
const JOURNAL: &str = "home/state/sessions/s.jsonl";
/// How many states are judged where not all are.
const SOME: usize = 100;

/// Turns that were played, and what they did to the disk.
struct Played {
    events: Vec<Event>,
    judge: Judge,
}

/// Plays the turns under strace; `None` where it cannot be used.
fn play(mode: &str) -> Option<Played> {
    let sandbox = Sandbox::in_memory();
    if !sandbox.has("strace") || sandbox.sh("strace -f -o /dev/null true").code() != 0 {
        eprintln!("skipped: strace cannot be used here, so there is no log to make crashes of");
        return None;
    }
    let work = sandbox.path("work");
    std::fs::create_dir(&work).unwrap();
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/crash");
    let script = format!("{tests}/turn.sh");
    let words = ["-f", "-y", "-xx", "-s", "1000000", "-o", "log", "bash", &script, mode];
    sandbox
        .program("strace", words)
        .env("WORK", &work)
        .env("TURNKEEP_ROOT", work.join(ROOT))
        .env("TURNKEEP_POLICY", format!("{tests}/policy.json"))
        .go()
        .ok();
    let judge = Judge::new(sandbox, work, mode == "append");
    let events = judge.read(&judge.log()).unwrap_or_else(|why| panic!("{why}"));
    Some(Played { events, judge })
}

fn slow() -> bool {
    std::env::var_os("TURNKEEP_SLOW").is_some()
}

/// A debug build is too slow for the full depth.
fn depth() -> Depth {
    let release = std::env::var_os("TURNKEEP_BIN").is_some();
    if slow() && release { Depth::Full } else { Depth::Some }
}

/// Judges the states of whole turns.
fn crashes(mode: &str) {
    let Some(played) = play(mode) else { return };
    let states = states::of(&played.events, depth());
    let step = if slow() { 1 } else { states.len().div_ceil(SOME) };
    let mut bad = Vec::new();
    for state in &states {
        // The cheap half of all, also of those that are not judged.
        bad.extend(played.judge.kept(state).err().map(|why| format!("{}\n{why}", state.label)));
    }
    for state in states.iter().step_by(step) {
        bad.extend(played.judge.judge(state).err().map(|why| format!("{}\n{why}", state.label)));
    }
    eprintln!("{mode}: {} states, of which {} were judged", states.len(), states.len().div_ceil(step));
    assert!(states.len() > 200, "only {} states", states.len());
    bad.truncate(5);
    assert!(bad.is_empty(), "{}", bad.join("\n\n"));
}

#[test]
fn a_session_file_that_turnkeep_writes() {
    crashes("append");
}

#[test]
fn a_session_file_that_the_agent_writes() {
    crashes("branch");
}

/// Demands that some state of an edited history is found out.
fn found(played: &Played, known: &HashSet<u64>, edited: &[Event], what: &str) {
    let states = states::of(edited, Depth::Some);
    let lost = states.iter().find_map(|state| played.judge.kept(state).err());
    let judged = || {
        let new = states.iter().filter(|state| !known.contains(&state.key));
        new.take(80).find_map(|state| played.judge.judge(state).err())
    };
    let why = lost.or_else(judged).unwrap_or_else(|| panic!("{what}: not found in {} states", states.len()));
    eprintln!("{what}: {}", why.lines().take(3).collect::<Vec<_>>().join(" "));
}

/// The history without some syncs.
fn without(played: &Played, dropped: impl Fn(&Event) -> bool) -> Vec<Event> {
    let is_sync = |event: &Event| matches!(event.what, What::Did(Op::Sync(_) | Op::SyncDir(_)));
    let left: Vec<Event> =
        played.events.iter().filter(|event| !(is_sync(event) && dropped(event))).cloned().collect();
    assert!(left.len() < played.events.len(), "there is no such sync");
    left
}

fn keys(played: &Played) -> HashSet<u64> {
    states::of(&played.events, Depth::Some).iter().map(|state| state.key).collect()
}

#[test]
fn syncs_that_are_missing_are_found() {
    let Some(played) = play("append") else { return };
    let known = keys(&played);
    let of = |name: &'static str| move |event: &Event| event.label.ends_with(&format!("sync of {name}"));
    for name in ["s.jsonl", "sessions", "state", "home", "the watched folder", "chat.jsonl", "quarantine"] {
        found(&played, &known, &without(&played, of(name)), name);
    }
    let saved = |event: &Event| event.label.contains("sync of s.") && !event.label.ends_with(".jsonl");
    found(&played, &known, &without(&played, saved), "the file in quarantine");
    let created = played.events.iter().find(|event| event.label.ends_with("create chat.jsonl")).unwrap().id;
    let behind = |event: &Event| event.id > created && of("the watched folder")(event);
    found(&played, &known, &without(&played, behind), "the folder of a new session file");
}

#[test]
fn a_session_file_that_is_not_synced_at_admission_is_found() {
    let Some(played) = play("branch") else { return };
    let admitted = played.events.iter().find(|event| matches!(event.what, What::Acked(_))).unwrap().id;
    let before = |event: &Event| event.id < admitted && event.label.ends_with("sync of chat.jsonl");
    found(&played, &keys(&played), &without(&played, before), "the session file at admission");
}

#[test]
fn answers_that_come_before_the_sync_are_found() {
    let Some(played) = play("append") else { return };
    let mut edited = played.events.clone();
    for at in 0..edited.len() {
        if let What::Acked(_) = edited[at].what {
            let synced = |event: &Event| event.label.ends_with("sync of s.jsonl");
            let sync = edited[..at].iter().rposition(synced).unwrap();
            edited[sync..=at].rotate_right(1);
        }
    }
    found(&played, &keys(&played), &edited, "told before the sync");
}

/// Each single sync that an answer rests on.
#[test]
fn every_sync_that_an_answer_rests_on_is_missed() {
    let Some(played) = play("append") else { return };
    let durable = states::durable_at(&played.events);
    let mut missed = 0;
    for (at, event) in played.events.iter().enumerate() {
        let rests = |other: &Event| matches!(other.what, What::Acked(_));
        let is_journal = |event: &Event| event.label.ends_with("sync of s.jsonl");
        let wrote = (0..at).any(|write| {
            durable[write] == at && matches!(played.events[write].what, What::Did(Op::Write { .. }))
        });
        let told = played.events[at..].iter().skip(1).take_while(|event| !is_journal(event)).any(rests);
        if !(is_journal(event) && wrote && told) || (!slow() && missed > 3) {
            continue;
        }
        missed += 1;
        let states = states::of(&without(&played, |other| other.id == event.id), Depth::Some);
        let found = states.iter().any(|state| played.judge.kept(state).is_err());
        assert!(found, "without {} nothing is lost", event.label);
    }
    assert!(missed > 3, "only {missed} syncs");
}

#[test]
fn a_call_that_is_not_known_is_refused() {
    let Some(played) = play("append") else { return };
    let log = played.judge.log();
    let refused = |from: &str, to: &str, words: &str| {
        let edited = log.replacen(from, to, 1);
        assert_ne!(edited, log, "there is no {from}");
        let why = played.judge.read(&edited).unwrap_err();
        assert!(why.contains(words), "{why}");
    };
    refused(" mkdir(", " symlink(", "symlink touches");
    refused(" fdatasync(", " sync_file_range(", "sync_file_range touches");
    refused("O_CREAT|O_EXCL|O_APPEND", "O_CREAT|O_EXCL|O_APPEND|O_SYNC", "O_SYNC is not modelled");
    refused(" exit_group(0)", " sync()         = 0\n1 exit_group(0)", "sync is not modelled");
}
