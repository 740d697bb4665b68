//! Disks that lie, each as a mistake in the code would: the loops must find every one of them.

use super::loops::{Loop, Reach};
use super::script;
use super::world::ROOT;
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
}

struct Lying {
    disk: MemoryStorage,
    lie: Lie,
    syncs: Arc<AtomicUsize>,
}

struct LyingFile {
    file: Box<dyn StoredFile>,
    lie: Lie,
    syncs: Arc<AtomicUsize>,
    written: bool,
}

impl Lying {
    fn file(&self, file: io::Result<Box<dyn StoredFile>>) -> io::Result<Box<dyn StoredFile>> {
        let (lie, syncs) = (self.lie, Arc::clone(&self.syncs));
        Ok(Box::new(LyingFile { file: file?, lie, syncs, written: false }))
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
        self.file(self.disk.open_read(path))
    }
    fn open_append(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        self.file(self.disk.open_append(path))
    }
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        self.file(self.disk.create_new(path))
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

impl StoredFile for LyingFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buf)
    }
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written = true;
        let written = self.file.append(bytes)?;
        Ok(if self.lie == Lie::ShortIsWhole { bytes.len() } else { written })
    }
    fn sync_data(&self) -> io::Result<()> {
        let skipped = match self.lie {
            Lie::NoDataSync => true,
            Lie::EverySecondDataSync => self.syncs.fetch_add(1, Ordering::Relaxed) % 2 == 1,
            Lie::NoSyncOfFound => !self.written,
            _ => false,
        };
        if skipped { Ok(()) } else { self.sync(|file| file.sync_data()) }
    }
    fn sync_all(&self) -> io::Result<()> {
        if self.lie == Lie::NoFullSync { Ok(()) } else { self.sync(|file| file.sync_all()) }
    }
    fn truncate(&mut self, len: u64) -> io::Result<()> {
        if self.lie == Lie::NoCut { Ok(()) } else { self.file.truncate(len) }
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

/// Loops over a workload on a disk that lies, until each of these words was said.
fn found(lie: Lie, script: &script::Script, until: &'static [&'static str]) {
    let front = |disk: &MemoryStorage| -> Arc<dyn Storage> {
        Arc::new(Lying { disk: disk.clone(), lie, syncs: Arc::default() })
    };
    // What a command found is synced by what it writes behind it, so only one that writes nothing shows this.
    let inner_stride = usize::from(lie == Lie::NoSyncOfFound);
    let mut found = Loop::new(&front, Reach { stride: 1, inner_stride, until });
    found.over(script);
    for words in until {
        let said = found.problems.iter().any(|problem| problem.contains(words));
        assert!(said, "{lie:?} is not found by {words:?}, but {:#?}", found.problems);
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
