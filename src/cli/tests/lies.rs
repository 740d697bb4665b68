//! Disks that lie, each as a mistake in the code would: the loops must find every one of them.

use super::loops::{Loop, Reach};
use super::script;
use super::world::{self, JOURNAL, POLICY, ROOT, TREE};
use crate::storage::{Identity, Item, LockKind, MemoryStorage, Meta, Storage, StoredFile};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is done otherwise than asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// An fdatasync does nothing.
    NoDataSync,
    /// Every second fdatasync does nothing.
    EverySecondDataSync,
    /// An fdatasync of an open file that was not written to does nothing.
    NoSyncOfFound,
    /// An fsync of a file does nothing.
    NoFullSync,
    /// An fsync of a folder does nothing.
    NoDirSync,
    /// The same of the folder of the journals alone.
    NoSyncOfJournalFolder,
    /// The same of the folders above the state root alone.
    NoSyncOfParents,
    /// The same of the quarantine alone.
    NoSyncOfQuarantine,
    /// A write that comes short counts as whole.
    ShortIsWhole,
    /// A failed sync counts as done.
    FailedSyncIsDone,
    /// A failed sync is tried again.
    FailedSyncAgain,
    /// A cut does nothing.
    NoCut,
    /// A cut of exactly this many bytes does nothing.
    NoCutOf(u64),
    /// What is written to the journal is written and synced when the command lets go of it, behind its answer.
    LateAppend,
    /// A policy is read as if it asked for no approval.
    NoApproval,
    /// The same as if it held nothing.
    NoHold,
    /// The same as if there were no limit of attempts.
    NoLimit,
    /// The same as if a tool that may not run again were safe still.
    NoVeto,
    /// The session file is read as if an entry of the agent's hung nowhere.
    NoEntryOfAgent,
}

/// Words, and what is read in their place, which is not longer.
type Misread = (&'static str, &'static str);

struct Lying {
    disk: MemoryStorage,
    lie: Lie,
    syncs: Arc<AtomicUsize>,
}

struct LyingFile {
    file: Box<dyn StoredFile>,
    path: PathBuf,
    disk: MemoryStorage,
    lie: Lie,
    syncs: Arc<AtomicUsize>,
    written: bool,
    /// What is written later; none where that is no lie.
    late: Option<Vec<u8>>,
    /// What is read otherwise than it stands there.
    misread: Option<Misread>,
}

impl Lie {
    fn misread(self, path: &Path) -> Option<Misread> {
        match self {
            Self::NoEntryOfAgent if path == Path::new(TREE) => Some((r#""parentId":"bb000002","#, "")),
            _ if path != Path::new(POLICY) => None,
            Self::NoApproval => Some((r#","approval":"required""#, "")),
            Self::NoHold => Some((r#","unknown":"hold""#, "")),
            Self::NoLimit => Some((r#","limits":{"attempts":2}"#, "")),
            Self::NoVeto => Some((r#""put","replay":"never""#, r#""put","replay":"safe""#)),
            _ => None,
        }
    }
}

impl Lying {
    fn file(&self, path: &Path, file: io::Result<Box<dyn StoredFile>>) -> io::Result<Box<dyn StoredFile>> {
        let (lie, syncs) = (self.lie, Arc::clone(&self.syncs));
        let late = (lie == Lie::LateAppend && path == Path::new(JOURNAL)).then(Vec::new);
        let misread = lie.misread(path);
        let (path, disk) = (path.to_owned(), self.disk.clone());
        Ok(Box::new(LyingFile { file: file?, path, disk, lie, syncs, written: false, late, misread }))
    }

    fn skips_folder(&self, path: &Path) -> bool {
        match self.lie {
            Lie::NoDirSync => true,
            Lie::NoSyncOfJournalFolder => path == Path::new(ROOT).join("sessions"),
            Lie::NoSyncOfParents => Path::new(ROOT).starts_with(path) && path != Path::new(ROOT),
            Lie::NoSyncOfQuarantine => path == Path::new(ROOT).join("quarantine"),
            _ => false,
        }
    }
}

impl Storage for Lying {
    fn open_read(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        self.file(path, self.disk.open_read(path))
    }
    fn open_append(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        self.file(path, self.disk.open_append(path))
    }
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        self.file(path, self.disk.create_new(path))
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        if self.skips_folder(path) { Ok(()) } else { self.disk.sync_dir(path) }
    }
    fn list(&self, path: &Path) -> io::Result<Vec<Item>> {
        self.disk.list(path)
    }
    fn inspect(&self, path: &Path) -> io::Result<Meta> {
        self.disk.inspect(path)
    }
    fn link_target(&self, path: &Path) -> io::Result<PathBuf> {
        self.disk.link_target(path)
    }
    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        self.disk.resolve(path)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_file(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
}

impl LyingFile {
    fn sync(&self, sync: impl Fn(&dyn StoredFile) -> io::Result<()>) -> io::Result<()> {
        match (self.lie, sync(self.file.as_ref())) {
            (Lie::FailedSyncIsDone, Err(_)) => Ok(()),
            (Lie::FailedSyncAgain, Err(_)) => sync(self.file.as_ref()),
            (_, done) => done,
        }
    }
}

/// Puts other words, and white space behind them, where these stand.
fn misread(bytes: &mut [u8], (words, others): Misread) {
    let others = format!("{others:<width$}", width = words.len());
    let text = String::from_utf8_lossy(bytes).replace(words, &others);
    bytes.copy_from_slice(text.as_bytes());
}

impl Drop for LyingFile {
    fn drop(&mut self) {
        let late = self.late.take().unwrap_or_default();
        // A process that was stopped writes nothing any more.
        if !late.is_empty() && !std::thread::panicking() {
            let _unheard = self.file.append(&late).and_then(|_| self.file.sync_data());
        }
    }
}

impl StoredFile for LyingFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.len()? + self.late.as_ref().map_or(0, |late| late.len() as u64))
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(offset, buf)?;
        if let Some(words) = self.misread {
            misread(&mut buf[..read], words);
        }
        Ok(read)
    }
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written = true;
        if let Some(late) = &mut self.late {
            late.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        let written = self.file.append(bytes)?;
        Ok(if self.lie == Lie::ShortIsWhole { bytes.len() } else { written })
    }
    fn sync_data(&self) -> io::Result<()> {
        let skipped = match self.lie {
            Lie::NoDataSync => true,
            Lie::EverySecondDataSync => self.syncs.fetch_add(1, Ordering::Relaxed) % 2 == 1,
            Lie::NoSyncOfFound => !self.written,
            Lie::LateAppend => self.late.as_ref().is_some_and(|late| !late.is_empty()),
            _ => false,
        };
        if skipped { Ok(()) } else { self.sync(|file| file.sync_data()) }
    }
    fn sync_all(&self) -> io::Result<()> {
        if self.lie == Lie::NoFullSync { Ok(()) } else { self.sync(|file| file.sync_all()) }
    }
    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let skipped = match self.lie {
            Lie::NoCut => true,
            // Looked at from outside: what a mistake looks at is no operation of the disk.
            Lie::NoCutOf(bytes) => self.disk.read(&self.path).len() as u64 == len + bytes,
            _ => false,
        };
        if skipped { Ok(()) } else { self.file.truncate(len) }
    }
    fn identity(&self) -> io::Result<Identity> {
        self.file.identity()
    }
    fn try_lock(&self, kind: LockKind) -> io::Result<bool> {
        self.file.try_lock(kind)
    }
    fn unlock(&self) -> io::Result<()> {
        self.file.unlock()
    }
}

const LOST: &str = "was acknowledged and is not there";

/// What is looped over until each of these words was said.
fn until(words: &'static [&'static str]) -> Reach {
    Reach { stride: 1, inner_stride: 0, inner_reads: 8, each_prefix: 0, until: words }
}

/// Loops over a workload on a disk that lies.
fn problems(lie: Lie, script: &script::Script, reach: Reach) -> Vec<String> {
    let front = |disk: &MemoryStorage| -> Arc<dyn Storage> {
        Arc::new(Lying { disk: disk.clone(), lie, syncs: Arc::default() })
    };
    let mut found = Loop::new(&front, reach);
    found.over(script);
    found.problems
}

/// Loops until each of these words was said.
fn found(lie: Lie, script: &script::Script, words: &'static [&'static str]) {
    found_within(lie, script, until(words));
}

fn found_within(lie: Lie, script: &script::Script, reach: Reach) {
    let problems = problems(lie, script, reach);
    for words in reach.until {
        let said = problems.iter().any(|problem| problem.contains(words));
        assert!(said, "{lie:?} is not found by {words:?}, but {problems:#?}");
    }
}

#[test]
fn an_fdatasync_that_does_nothing_is_found() {
    found(Lie::NoDataSync, &script::branch(), &[LOST]);
}

#[test]
fn an_fdatasync_that_is_missing_every_second_time_is_found() {
    found(Lie::EverySecondDataSync, &script::branch(), &[LOST]);
}

#[test]
fn found_bytes_that_are_not_synced_are_found() {
    let mut script = script::fresh();
    script.begin_at(9);
    found(Lie::NoSyncOfFound, &script, &[LOST]);
}

#[test]
fn an_fsync_that_does_nothing_is_found() {
    found(Lie::NoFullSync, &script::torn(), &["quarantine"]);
    let mut script = script::branch();
    script.begin_at(6);
    found(Lie::NoFullSync, &script, &["verify says Some(Damaged)"]);
}

#[test]
fn folders_that_are_not_synced_are_found() {
    found(Lie::NoDirSync, &script::fresh(), &[LOST]);
    found(Lie::NoSyncOfJournalFolder, &script::fresh(), &[LOST]);
    found(Lie::NoSyncOfParents, &script::fresh(), &[LOST]);
    found(Lie::NoSyncOfQuarantine, &script::torn(), &["quarantine-missing"]);
}

#[test]
fn a_short_write_that_counts_as_whole_is_found() {
    found(Lie::ShortIsWhole, &script::branch(), &[LOST]);
}

#[test]
fn a_failed_sync_that_counts_as_done_is_found() {
    found(Lie::FailedSyncIsDone, &script::branch(), &[LOST]);
}

#[test]
fn a_failed_sync_that_is_tried_again_is_found() {
    found(Lie::FailedSyncAgain, &script::branch(), &["synced again after a failed sync", LOST]);
}

#[test]
fn a_cut_that_does_nothing_is_found() {
    found(Lie::NoCut, &script::torn(), &["is damaged in line"]);
}

/// A mistake that one length of a torn tail shows, and no other: only who keeps each beginning of a write sees it.
#[test]
fn a_mistake_about_one_length_of_a_torn_tail_is_found() {
    let mut script = script::branch();
    script.begin_at(2);
    script.keep(&[0]);
    let length = 7;
    let some = Reach { stride: 1, ..until(&[]) };
    assert_eq!(problems(Lie::NoCutOf(length), &script, some), [""; 0]);
    let each = Reach { each_prefix: 1, ..until(&["hash-mismatch"]) };
    found_within(Lie::NoCutOf(length), &script, each);
}

#[test]
fn an_answer_that_comes_before_the_write_is_found() {
    let mut script = script::branch();
    script.begin_at(2);
    found(Lie::LateAppend, &script, &[LOST]);
    let mut script = script::runs();
    script.begin_at(2);
    found(Lie::LateAppend, &script, &["CMD ran, and no claim is there"]);
}

#[test]
fn a_policy_of_which_something_is_forgotten_is_found() {
    let mut script = script::asked();
    script.begin_at(1);
    // The message whose calls are classified, and the claim of one that is to be held.
    script.keep(&[0, 6]);
    for (lie, stride) in [(Lie::NoApproval, 1), (Lie::NoHold, 17)] {
        found_within(lie, &script, Reach { stride, ..until(&["decisions"]) });
    }
}

#[test]
fn a_limit_of_attempts_that_is_forgotten_is_found() {
    let mut script = script::parked();
    script.begin_at(11);
    script.keep(&[0, 1]);
    found(Lie::NoLimit, &script, &["recover ends with Some(Done), not Waiting"]);
}

#[test]
fn a_veto_of_the_policy_of_now_that_is_forgotten_is_found() {
    let mut script = script::forced();
    script.begin_at(9);
    script.keep(&[0]);
    found(Lie::NoVeto, &script, &["decisions"]);
}

#[test]
fn an_entry_of_the_agents_that_is_passed_over_is_found() {
    let mut script = script::entries();
    script.begin_at(2);
    script.keep(&[0]);
    found(Lie::NoEntryOfAgent, &script, &["decisions"]);
}

#[test]
fn a_lease_that_never_runs_out_is_found() {
    world::stop_clock_of_commands();
    let mut script = script::forced();
    script.keep(&[0, 1]);
    let mut looped = Loop::new(&world::honest, until(&["recover ends with Some(Busy), not Done"]));
    looped.over(&script);
    let said = looped.problems.last().map(String::as_str).unwrap_or_default();
    assert!(said.contains("recover ends with Some(Busy), not Done"), "{said}");
}

#[test]
fn a_result_that_came_too_late_and_is_not_kept_is_found() {
    let mut script = script::forced();
    script.begin_at(10);
    script.keep(&[0]);
    found(Lie::LateAppend, &script, &[LOST]);
}
