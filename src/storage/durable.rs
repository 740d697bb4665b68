//! What a power cut leaves of a file or a folder in memory.
//!
//! A change is durable once its file, or the folder of its name, was synced; until then any number of the newest
//! changes may be lost, and the first one that is lost may be there in part. A failed sync makes nothing durable,
//! and a later one that succeeds does not make up for it: the system takes those bytes for stored.

use std::collections::BTreeMap;
use std::ffi::OsString;

/// How far the remains of a write are explained by a write that did not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remains {
    /// All of the changes, some of them, or a prefix of one, with NULs behind it or not.
    Explained,
    /// Bytes that nobody wrote.
    Garbage,
}

/// Which beginnings of a write that was not synced a power cut may leave alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefixes {
    /// A byte, half, and those around the end of each line.
    Some,
    /// Each, the shortest first.
    Each,
}

/// The bytes of a file.
#[derive(Clone, Default)]
pub(super) struct Content {
    /// As every process sees them.
    pub(super) bytes: Vec<u8>,
    /// What may be on the medium without the changes that are pending; one, unless a sync failed.
    disk: Vec<Vec<u8>>,
    pending: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Cut { len: usize },
}

/// The names in a folder.
#[derive(Clone, Default)]
pub(super) struct Names {
    /// As every process sees them.
    pub(super) now: BTreeMap<OsString, u64>,
    disk: BTreeMap<OsString, u64>,
    pending: Vec<Vec<NameChange>>,
}

/// A name that stands for a file from now on, or for none.
pub(super) type NameChange = (OsString, Option<u64>);

impl Content {
    /// Bytes that are durable.
    pub(super) fn durable(bytes: Vec<u8>) -> Self {
        Self { disk: vec![bytes.clone()], bytes, pending: Vec::new() }
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.change(Change::Write { offset: self.bytes.len(), bytes: bytes.to_vec() });
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.change(Change::Cut { len });
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.bytes);
        self.pending.push(change);
    }

    /// A sync that succeeded.
    pub(super) fn synced(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        self.disk = with(&self.disk, &pending);
        self.disk.dedup();
    }

    /// A sync that failed: what was pending is on the medium, or NULs in its place, or not at all.
    pub(super) fn sync_failed(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return;
        }
        let lengths: Vec<Change> = pending.iter().map(Change::without_bytes).collect();
        let (whole, empty) = (with(&self.disk, &pending), with(&self.disk, &lengths));
        self.disk.extend(empty);
        self.disk.extend(whole);
        self.disk.dedup();
    }

    /// Whether a power cut leaves exactly what every process sees.
    pub(super) fn is_durable(&self) -> bool {
        self.pending.is_empty() && self.disk.iter().all(|disk| *disk == self.bytes)
    }

    /// Whether a sync failed and its bytes are still seen: no sync from now on says anything about them.
    pub(super) fn is_doubtful(&self) -> bool {
        with(&self.disk, &self.pending).iter().any(|disk| *disk != self.bytes)
    }

    /// Everything that a power cut may leave, what was synced alone first.
    pub(super) fn remains(&self, prefixes: Prefixes) -> Vec<(Vec<u8>, Remains)> {
        let mut all: Vec<(Vec<u8>, Remains)> = Vec::new();
        let mut add = |bytes: Vec<u8>, remains| {
            if !all.iter().any(|(known, _)| *known == bytes) {
                all.push((bytes, remains));
            }
        };
        for disk in &self.disk {
            let mut before = disk.clone();
            add(before.clone(), Remains::Explained);
            for change in &self.pending {
                for (part, remains) in change.parts(prefixes) {
                    let mut bytes = before.clone();
                    part.apply(&mut bytes);
                    add(bytes, remains);
                }
                change.apply(&mut before);
                add(before.clone(), Remains::Explained);
            }
        }
        all
    }
}

/// Each of these with all changes.
fn with(disks: &[Vec<u8>], changes: &[Change]) -> Vec<Vec<u8>> {
    let changed = |disk: &Vec<u8>| {
        let mut disk = disk.clone();
        for change in changes {
            change.apply(&mut disk);
        }
        disk
    };
    disks.iter().map(changed).collect()
}

impl Change {
    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Self::Cut { len } => file.resize(*len, 0),
            Self::Write { offset, bytes } => {
                let end = offset + bytes.len();
                if file.len() < end {
                    file.resize(end, 0);
                }
                file.iter_mut().skip(*offset).zip(bytes).for_each(|(to, from)| *to = *from);
            }
        }
    }

    /// The same for the length of the file alone.
    fn without_bytes(&self) -> Self {
        match self {
            Self::Cut { len } => Self::Cut { len: *len },
            Self::Write { offset, bytes } => Self::Write { offset: *offset, bytes: vec![0; bytes.len()] },
        }
    }

    /// What else than all or nothing of a write may be there.
    fn parts(&self, prefixes: Prefixes) -> Vec<(Self, Remains)> {
        let Self::Write { offset, bytes } = self else { return Vec::new() };
        let len = bytes.len();
        let cuts = match prefixes {
            Prefixes::Some => cuts_around_lines(bytes),
            Prefixes::Each => (1..len).collect(),
        };
        let begin = |cut: usize| bytes.iter().take(cut).copied().collect::<Vec<u8>>();
        let nuls_behind = |cut: usize| {
            let mut bytes = begin(cut);
            bytes.resize(len, 0);
            bytes
        };
        let flipped = |kept: &[usize]| -> Vec<u8> {
            let flip = |(at, byte): (usize, &u8)| {
                if at < len / 2 || kept.contains(&at) { *byte } else { byte ^ 0x10 }
            };
            bytes.iter().enumerate().map(flip).collect()
        };
        let explained = cuts.iter().map(|cut| begin(*cut));
        let explained = explained.chain([0, len / 2].into_iter().map(nuls_behind));
        let garbage = [flipped(&[]), flipped(&[len.saturating_sub(1)])];
        let write = |bytes| Self::Write { offset: *offset, bytes };
        explained
            .map(|bytes| (write(bytes), Remains::Explained))
            .chain(garbage.into_iter().map(|bytes| (write(bytes), Remains::Garbage)))
            .collect()
    }
}

/// Lengths between nothing and all: a byte, half, and before and behind the end of each line.
fn cuts_around_lines(bytes: &[u8]) -> Vec<usize> {
    let len = bytes.len();
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
    let mut cuts: Vec<usize> = ends.flat_map(|at| [at, at + 1]).chain([1, len / 2]).collect();
    cuts.retain(|cut| (1..len).contains(cut));
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

impl Names {
    /// Changes that are there together or not at all.
    pub(super) fn change(&mut self, changes: Vec<NameChange>) {
        apply(&changes, &mut self.now);
        self.pending.push(changes);
    }

    pub(super) fn synced(&mut self) {
        self.pending.clear();
        self.disk = self.now.clone();
    }

    /// Whether a power cut leaves exactly what every process sees.
    pub(super) fn is_durable(&self) -> bool {
        self.pending.is_empty()
    }

    /// A folder that holds these and no others, durably.
    pub(super) fn durable(now: BTreeMap<OsString, u64>) -> Self {
        Self { disk: now.clone(), now, pending: Vec::new() }
    }

    /// Everything that a power cut may leave, what was synced alone first.
    pub(super) fn remains(&self) -> Vec<BTreeMap<OsString, u64>> {
        let mut names = self.disk.clone();
        let mut all = vec![names.clone()];
        for changes in &self.pending {
            apply(changes, &mut names);
            all.push(names.clone());
        }
        all
    }
}

fn apply(changes: &[NameChange], names: &mut BTreeMap<OsString, u64>) {
    for (name, ino) in changes {
        match ino {
            Some(ino) => names.insert(name.clone(), *ino),
            None => names.remove(name),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fault, MemoryStorage, OpKind, Storage, StoredFile};
    use super::*;
    use rustix::io::Errno;
    use std::path::Path;

    fn new_file(storage: &MemoryStorage) -> Box<dyn StoredFile> {
        storage.create_new(Path::new("/f")).expect("created")
    }

    /// What power cuts leave of `/f`, as text, NULs shown as dots; nothing where the name is gone.
    fn left(storage: &MemoryStorage) -> Vec<(String, Remains)> {
        let text = |cut: super::super::PowerCut| {
            let file = cut.storage.files().remove(Path::new("/f"));
            let text = String::from_utf8_lossy(&file.unwrap_or_else(|| b"gone".to_vec())).replace('\0', ".");
            (text, cut.remains)
        };
        storage.power_cuts(Prefixes::Some).into_iter().map(text).collect()
    }

    fn explained(storage: &MemoryStorage) -> Vec<String> {
        let left = left(storage).into_iter().filter(|(_, remains)| *remains == Remains::Explained);
        left.map(|(text, _)| text).collect()
    }

    #[test]
    fn a_name_lasts_once_its_folder_is_synced_and_bytes_once_their_file_is() {
        let storage = MemoryStorage::new();
        let mut file = new_file(&storage);
        assert_eq!(explained(&storage), ["gone", ""]);
        storage.sync_dir(Path::new("/")).expect("synced");
        assert_eq!(explained(&storage), [""]);
        file.append(b"ab\ncd\n").expect("written");
        assert_eq!(explained(&storage), ["", "a", "ab", "ab\n", "ab\ncd", "......", "ab\n...", "ab\ncd\n"]);
        let garbage = left(&storage).into_iter().filter(|(_, remains)| *remains == Remains::Garbage);
        assert_eq!(garbage.map(|(text, _)| text).collect::<Vec<_>>(), ["ab\nst\u{1a}", "ab\nst\n"]);
        assert!(!storage.is_durable());
        file.sync_data().expect("synced");
        assert_eq!(left(&storage), [("ab\ncd\n".to_owned(), Remains::Explained)]);
        assert!(storage.is_durable());
        file.truncate(3).expect("cut");
        assert_eq!(explained(&storage), ["ab\ncd\n", "ab\n"]);
        // What a power cut left is durable, and another tree.
        let cut = storage.power_cuts(Prefixes::Some).remove(0).storage;
        assert!(cut.is_durable() && !storage.is_durable());
        let fork = storage.fork();
        file.sync_all().expect("synced");
        assert_eq!((explained(&fork).len(), explained(&storage).len()), (2, 1));
    }

    #[test]
    fn each_beginning_of_a_write_may_be_all_that_is_left_of_it() {
        let storage = MemoryStorage::new();
        storage.write("/f", b"a\n");
        let mut file = storage.open_append(Path::new("/f")).expect("opened");
        file.append(b"bcde\n").expect("written");
        let left = storage.power_cuts(Prefixes::Each).into_iter();
        let left = left.filter(|cut| cut.remains == Remains::Explained);
        let left: Vec<_> = left.map(|cut| cut.storage.read("/f")).collect();
        let whole = b"a\nbcde\n";
        let beginnings = (2..whole.len()).map(|len| whole[..len].to_vec());
        let with_nuls = [b"a\n\0\0\0\0\0", b"a\nbc\0\0\0"].map(|bytes| bytes.to_vec());
        assert_eq!(left, beginnings.chain(with_nuls).chain([whole.to_vec()]).collect::<Vec<_>>());
    }

    #[test]
    fn no_later_sync_makes_up_for_a_failed_one() {
        let storage = MemoryStorage::new();
        let mut file = new_file(&storage);
        storage.sync_dir(Path::new("/")).expect("synced");
        file.append(b"ab\n").expect("written");
        storage.set_hook(|op| (op.kind == OpKind::SyncData).then(|| Fault::Error(Errno::IO.into())));
        file.sync_data().expect_err("a fault");
        storage.clear_hook();
        file.sync_data().expect("says so");
        assert_eq!(explained(&storage), ["", "...", "ab\n"]);
        assert!(storage.is_doubtful());
        file.truncate(0).expect("cut");
        assert!(!storage.is_doubtful());
        file.append(b"c").expect("written");
        file.sync_data().expect("synced");
        assert_eq!(explained(&storage), ["c"]);
    }

    #[test]
    fn a_name_that_moves_is_in_one_place_and_one_that_is_removed_may_come_back() {
        let storage = MemoryStorage::new();
        storage.write("/f", b"old");
        storage.write("/g", b"new");
        storage.rename(Path::new("/g"), Path::new("/f")).expect("renamed");
        let names = |cut: &super::super::PowerCut| {
            let files =
                cut.storage.files().into_values().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            files.collect::<Vec<_>>()
        };
        let cuts: Vec<_> = storage.power_cuts(Prefixes::Some).iter().map(names).collect();
        assert_eq!(cuts, [vec!["old", "new"], vec!["new"]]);
        storage.remove_file(Path::new("/f")).expect("removed");
        storage.sync_dir(Path::new("/")).expect("synced");
        assert_eq!(explained(&storage), ["gone"]);
    }
}
