//! Runs commands in this process on a disk in memory, up to the operation at which they are stopped.

use crate::cli::args::Cli;
use crate::cli::error::Exit;
use crate::cli::outside::{Outside, Signalled, Streams};
use crate::record::At;
use crate::storage::{Fault, MemoryStorage, Op, OpKind, Storage};
use clap::{CommandFactory, FromArgMatches};
use rustix::io::Errno;
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The state root; the folder `/home/me` is there before.
pub(super) const ROOT: &str = "/home/me/state/turnkeep";
/// The session file.
pub(super) const TREE: &str = "/home/me/chat.jsonl";
/// The policy.
pub(super) const POLICY: &str = "/home/me/state/turnkeep/policy.json";
/// The journal.
pub(super) const JOURNAL: &str = "/home/me/state/turnkeep/sessions/s.jsonl";

/// What goes wrong at an operation, counted from 0 in its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    Nothing,
    /// The process is gone before the operation.
    Stop(usize),
    /// The operation fails.
    Once(usize),
    /// It fails, and so does every one behind it.
    ForEver(usize),
    /// It moves this many bytes.
    Short(usize, usize),
    /// The same, and the next write finds no room.
    ShortThenFull(usize, usize),
}

/// What came of a command.
#[derive(Debug)]
pub(super) struct Came {
    /// None where the process was stopped.
    pub(super) exit: Option<Exit>,
    pub(super) out: String,
    pub(super) err: String,
    pub(super) ops: Vec<Op>,
}

/// Proof of a durable append.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Ack {
    pub(super) seq: u64,
    /// None of a result that came too late, of which only the place is told.
    pub(super) hash: Option<String>,
}

/// The storage that commands see in front of a disk.
pub(super) type Front<'a> = &'a dyn Fn(&MemoryStorage) -> Arc<dyn Storage>;

pub(super) fn honest(disk: &MemoryStorage) -> Arc<dyn Storage> {
    Arc::new(disk.clone())
}

struct Stopped;

thread_local! {
    /// What every clock shows, in microseconds.
    static CLOCK: Cell<i64> = const { Cell::new(BEGIN) };
    /// Commands see another clock, which stands still.
    static STANDS_STILL: Cell<bool> = const { Cell::new(false) };
}

const BEGIN: i64 = 1_796_000_000_000_000;

pub(super) fn clock() -> i64 {
    CLOCK.get()
}

/// From now on the commands of this test see a clock that stands still.
pub(super) fn stop_clock_of_commands() {
    STANDS_STILL.set(true);
}

pub(super) fn set_clock(micros: i64) {
    CLOCK.set(micros);
}

/// A process that lives as long as this one and is another: its parent.
pub(super) fn other_process() -> u32 {
    std::os::unix::process::parent_id()
}

/// Runs one command line on a disk.
pub(super) fn run(disk: &MemoryStorage, front: Front<'_>, words: &[String], trouble: Trouble) -> Came {
    let begin = disk.ops_count();
    arm(disk, begin, trouble);
    let (out, err) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let outside = Outside {
        storage: front(disk),
        streams: Streams::new(out.clone(), err.clone()),
        now: || At::from_micros(if STANDS_STILL.get() { BEGIN } else { clock() }),
        fresh_id: || "01934c5e-0000-7000-8000-00000000002a".to_owned(),
        signals: Signalled::Host,
    };
    let cli = parsed(words);
    let ended = catch_unwind(AssertUnwindSafe(|| crate::cli::run_parsed(&outside, cli)));
    disk.clear_hook();
    let exit = match ended {
        Ok(exit) => Some(exit),
        Err(payload) if payload.is::<Stopped>() => None,
        Err(payload) => resume_unwind(payload),
    };
    let text =
        |stream: &Mutex<Vec<u8>>| String::from_utf8_lossy(&stream.lock().expect("a stream")).into_owned();
    Came { exit, out: text(&out), err: text(&err), ops: disk.ops_from(begin) }
}

thread_local! {
    /// The command line as clap knows it: to build it anew takes as long as a command on a small journal.
    static COMMAND: RefCell<clap::Command> = RefCell::new(Cli::command());
}

fn parsed(words: &[String]) -> Cli {
    let all = ["turnkeep", "--root", ROOT].into_iter().chain(words.iter().map(String::as_str));
    let matches = COMMAND.with_borrow_mut(|command| command.try_get_matches_from_mut(all));
    Cli::from_arg_matches(&matches.expect("a command line")).expect("a command line")
}

fn arm(disk: &MemoryStorage, begin: usize, trouble: Trouble) {
    let broken = || Some(Fault::Error(Errno::IO.into()));
    let mut full = false;
    disk.set_hook(move |op| {
        let at = op.index - begin;
        match trouble {
            Trouble::Stop(stop) if at == stop => resume_unwind(Box::new(Stopped)),
            Trouble::Once(once) if at == once => broken(),
            Trouble::ForEver(from) if at >= from => broken(),
            Trouble::Short(short, bytes) if at == short => Some(Fault::Short(bytes)),
            Trouble::ShortThenFull(short, bytes) if at == short => {
                full = true;
                Some(Fault::Short(bytes))
            }
            Trouble::ShortThenFull(..) if full && op.kind == OpKind::Append => {
                full = false;
                Some(Fault::Error(Errno::NOSPC.into()))
            }
            _ => None,
        }
    });
}

impl Came {
    /// The JSON document on stdout.
    pub(super) fn document(&self) -> Option<Value> {
        serde_json::from_str(&self.out).ok()
    }

    pub(super) fn ticket(&self) -> Option<String> {
        Some(self.document()?.get("ticket")?.as_str()?.to_owned())
    }

    /// What was acknowledged: a receipt, the head of a status document, or what came too late and is kept.
    pub(super) fn ack(&self) -> Option<Ack> {
        let document = self.document()?;
        if let Some(seq) = document.get("straggler").and_then(Value::as_u64) {
            return Some(Ack { seq, hash: None });
        }
        let proof = [document.get("receipt"), document.get("head"), Some(&document)];
        proof.into_iter().flatten().find_map(|proof| {
            let (seq, hash) = (proof.get("seq")?.as_u64()?, proof.get("hash")?.as_str()?.to_owned());
            Some(Ack { seq, hash: Some(hash) })
        })
    }
}

/// Whether an operation changes what a power cut leaves.
pub(super) fn changes(kind: OpKind) -> bool {
    match kind {
        OpKind::CreateNew
        | OpKind::CreateDir
        | OpKind::SyncDir
        | OpKind::RemoveFile
        | OpKind::Rename
        | OpKind::Append
        | OpKind::SyncData
        | OpKind::SyncAll
        | OpKind::Truncate => true,
        OpKind::OpenRead
        | OpKind::OpenAppend
        | OpKind::List
        | OpKind::Inspect
        | OpKind::LinkTarget
        | OpKind::Resolve
        | OpKind::Len
        | OpKind::ReadAt
        | OpKind::Identity
        | OpKind::TryLock
        | OpKind::Unlock => false,
    }
}

/// Whether a path is of the state root.
pub(super) fn in_root(path: &Path) -> bool {
    path.starts_with(ROOT)
}
