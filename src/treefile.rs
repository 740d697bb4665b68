//! The session file on disk: read whole, appended to by one write and a sync, created with its header.
//!
//! It is held whole, so whether there is memory for it is asked before it is read, and before its lines are.
//! What is written is decided elsewhere. A link at the end of the path is followed: the file is the agent's.

use crate::json::Raw;
use crate::storage::{self, Storage};
use crate::tree::{self, Tree};
use std::io;
use std::path::{Path, PathBuf};

/// Why a session file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TreeFileError {
    /// The system said no.
    #[error("could not {action} the session file {}", path.display())]
    Io {
        /// What failed.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody else wrote between reading and appending.
    #[error("the session file {} grew from {read} to {found} bytes while it was being judged", path.display())]
    Changed {
        /// Which file.
        path: PathBuf,
        /// Its size when it was read.
        read: u64,
        /// Its size now.
        found: u64,
    },
}

/// Reads a session file; one that does not exist reads as an empty one.
pub fn read(storage: &dyn Storage, path: &Path) -> Result<Tree, TreeFileError> {
    match load(storage, path) {
        Ok(tree) => Ok(tree),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(tree::read(Vec::new())),
        Err(source) => Err(failed("read", path, source)),
    }
}

/// Reads a session file once more; where it holds what was read as `known`, that is given back and not taken apart again.
pub fn read_again(storage: &dyn Storage, path: &Path, known: Tree) -> Result<Tree, TreeFileError> {
    let same = known.bytes().map_or(Ok(false), |bytes| storage::holds(storage, path, bytes));
    match same {
        Ok(true) => Ok(known),
        Ok(false) => {
            // There may not be memory for both.
            drop(known);
            read(storage, path)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(tree::read(Vec::new())),
        Err(source) => Err(failed("read", path, source)),
    }
}

/// Reads a session file that exists; a link at its end is followed, since the file is the agent's.
pub fn load(storage: &dyn Storage, path: &Path) -> io::Result<Tree> {
    let bytes = storage::read_whole(storage, path)?;
    storage::headroom(tree::memory_for(&bytes))?;
    Ok(tree::read(bytes))
}

/// Makes what a session file holds durable, and its name too; Pi never does.
pub fn sync(storage: &dyn Storage, path: &Path) -> Result<(), TreeFileError> {
    let synced = storage
        .resolve(path)
        .and_then(|real| storage.open_read(&real)?.sync_all().and_then(|()| sync_parent(storage, &real)));
    synced.map_err(|source| failed("sync", path, source))
}

/// Whether a session file can be appended to, or created where it is not there yet; changes nothing.
pub fn check_writable(storage: &dyn Storage, path: &Path) -> Result<(), TreeFileError> {
    match storage.resolve(path) {
        Ok(real) => storage.open_append(&real).map(|_| ()).map_err(|source| failed("open", path, source)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().unwrap_or(Path::new("/"));
            let free = match storage.inspect(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => storage.may_create(folder),
                Err(error) => Err(error),
                // Whoever else made the link knows what is to be there.
                Ok(_) => Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "a link stands there that leads nowhere",
                )),
            };
            free.map_err(|source| failed("create", path, source))
        }
        Err(source) => Err(failed("open", path, source)),
    }
}

/// Appends entries behind what was read as `tree`; durable when this returns.
///
/// A torn last line is ended first, also where there is nothing to append. A file that is not there yet is created and begins with `header`.
pub fn append(
    storage: &dyn Storage,
    path: &Path,
    tree: &Tree,
    header: Option<&Raw>,
    entries: &[Raw],
) -> Result<(), TreeFileError> {
    let mut bytes = Vec::new();
    if tree.needs_newline() {
        // Glued to a torn line, both would be lost.
        bytes.push(b'\n');
    }
    for line in header.into_iter().chain(entries) {
        bytes.extend_from_slice(line.get().as_bytes());
        bytes.push(b'\n');
    }
    let (mut file, real) = open(storage, path, header)?;
    let found = file.len().map_err(|source| failed("look at", path, source))?;
    if found != tree.size {
        return Err(TreeFileError::Changed { path: path.to_owned(), read: tree.size, found });
    }
    if bytes.is_empty() {
        return Ok(());
    }
    storage::append_all(file.as_mut(), &bytes).map_err(|error| failed("write to", path, error.source))?;
    file.sync_all().map_err(|source| failed("sync", path, source))?;
    if header.is_some() {
        sync_parent(storage, &real).map_err(|source| failed("sync the folder of", path, source))?;
    }
    Ok(())
}

fn open(
    storage: &dyn Storage,
    path: &Path,
    header: Option<&Raw>,
) -> Result<(Box<dyn storage::StoredFile>, PathBuf), TreeFileError> {
    match storage.resolve(path) {
        Ok(real) => {
            let file = storage.open_append(&real).map_err(|source| failed("open", path, source))?;
            Ok((file, real))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && header.is_some() => {
            let file = storage.create_new(path).map_err(|source| failed("create", path, source))?;
            Ok((file, path.to_owned()))
        }
        Err(source) => Err(failed("open", path, source)),
    }
}

fn sync_parent(storage: &dyn Storage, path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| storage.sync_dir(folder))
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> TreeFileError {
    TreeFileError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{Fault, MemoryStorage, OpKind};

    const FILE: &str = "/home/chat.jsonl";
    const HEADER: &str = r#"{"type":"session","version":3,"id":"s","timestamp":"t","cwd":"/"}"#;

    fn raw(json: &str) -> Raw {
        Raw::parse(json).expect("JSON")
    }

    fn disk(content: Option<&str>) -> MemoryStorage {
        let disk = MemoryStorage::new();
        disk.create_dir(Path::new("/home")).expect("a folder");
        disk.sync_dir(Path::new("/")).expect("synced");
        if let Some(content) = content {
            disk.write(FILE, content.as_bytes());
        }
        disk
    }

    /// Refuses every operation of one kind.
    fn refusing(disk: &MemoryStorage, kind: OpKind) {
        let denied = || Fault::Error(io::ErrorKind::PermissionDenied.into());
        disk.set_hook(move |op| (op.kind == kind).then(denied));
    }

    fn ops(disk: &MemoryStorage, kind: OpKind) -> Vec<PathBuf> {
        disk.ops().into_iter().filter(|op| op.kind == kind).map(|op| op.path).collect()
    }

    #[test]
    fn only_a_file_that_is_not_there_reads_as_an_empty_one() {
        let path = Path::new(FILE);
        assert_eq!(read(&disk(None), path).expect("empty").size, 0);
        let there = disk(Some(HEADER));
        assert!(read(&there, path).expect("read").header.is_some());
        refusing(&there, OpKind::OpenRead);
        assert!(matches!(read(&there, path), Err(TreeFileError::Io { action: "read", .. })));
    }

    #[test]
    fn what_is_read_again_is_what_stands_there_now() {
        let (path, disk) = (Path::new(FILE), disk(Some(HEADER)));
        let entry =
            |id: &str| format!("{HEADER}\n{{\"type\":\"custom\",\"id\":\"{id}\",\"parentId\":null}}\n");
        let again = |known: Tree| read_again(&disk, path, known).expect("read");
        let ids = |tree: &Tree| tree.entries.iter().map(|entry| entry.id.to_string()).collect::<Vec<_>>();
        let mut tree = read(&disk, path).expect("read");
        for id in ["a", "b", "long", "\u{fffd}", "b"] {
            disk.write(FILE, entry(id).as_bytes());
            tree = again(again(tree));
            assert_eq!((ids(&tree), tree.bytes()), (vec![id.to_owned()], Some(entry(id).as_bytes())));
        }
        // Of bytes that are no text, what they are read as is kept, and others may be read as the same.
        let cut: Vec<u8> = entry("\u{1f600}").into_bytes().into_iter().filter(|byte| *byte != 0x80).collect();
        disk.write(FILE, &cut);
        tree = again(tree);
        assert_eq!((ids(&tree), tree.bytes()), (vec!["\u{fffd}".to_owned()], None));
        disk.write(FILE, entry("\u{fffd}").as_bytes());
        assert_eq!(tree.size, entry("\u{fffd}").len() as u64);
        assert!(again(tree).bytes().is_some());
        let tree = read(&disk, path).expect("read");
        refusing(&disk, OpKind::OpenRead);
        assert!(matches!(read_again(&disk, path, tree), Err(TreeFileError::Io { action: "read", .. })));
    }

    #[test]
    fn a_sync_is_of_the_file_and_of_its_name() {
        let path = Path::new(FILE);
        let there = disk(Some(HEADER));
        sync(&there, path).expect("synced");
        assert_eq!(ops(&there, OpKind::SyncAll), [path]);
        assert_eq!(ops(&there, OpKind::SyncDir).last().map(PathBuf::as_path), Some(Path::new("/home")));
        for kind in [OpKind::SyncAll, OpKind::SyncDir, OpKind::OpenRead] {
            refusing(&there, kind);
            assert!(sync(&there, path).is_err(), "{kind:?}");
        }
    }

    #[test]
    fn whether_it_can_be_written_is_known_before() {
        let path = Path::new(FILE);
        check_writable(&disk(Some(HEADER)), path).expect("it is there");
        check_writable(&disk(None), path).expect("its folder is there");
        let linked = disk(None);
        linked.link(FILE, "/home/nothing");
        assert!(matches!(check_writable(&linked, path), Err(TreeFileError::Io { action: "create", .. })));
        let nowhere = Path::new("/nowhere/chat.jsonl");
        assert!(matches!(
            check_writable(&disk(None), nowhere),
            Err(TreeFileError::Io { action: "create", .. })
        ));
        for kind in [OpKind::OpenAppend, OpKind::Resolve] {
            let there = disk(Some(HEADER));
            refusing(&there, kind);
            let found = check_writable(&there, path);
            assert!(matches!(found, Err(TreeFileError::Io { action: "open", .. })), "{kind:?}");
        }
    }

    #[test]
    fn a_new_file_begins_with_its_header_and_keeps_its_name() {
        let (path, disk) = (Path::new(FILE), disk(None));
        let empty = read(&disk, path).expect("empty");
        assert!(append(&disk, path, &empty, None, &[raw("1")]).is_err(), "nothing to begin it with");
        assert!(disk.files().is_empty());
        append(&disk, path, &empty, Some(&raw(HEADER)), &[raw("1"), raw("2")]).expect("written");
        assert_eq!(disk.read(FILE), format!("{HEADER}\n1\n2\n").as_bytes());
        assert!(disk.is_durable());
        // A path that cannot be looked at is not one where nothing is.
        let hidden = self::disk(None);
        refusing(&hidden, OpKind::Resolve);
        assert!(append(&hidden, path, &empty, Some(&raw(HEADER)), &[]).is_err());
        assert!(hidden.files().is_empty());
    }

    #[test]
    fn entries_go_behind_what_was_read_and_nothing_else() {
        let path = Path::new(FILE);
        let disk = disk(Some(&format!("{HEADER}\n{{\"torn")));
        let seen = read(&disk, path).expect("read");
        append(&disk, path, &seen, None, &[raw("1")]).expect("written");
        let ended = format!("{HEADER}\n{{\"torn\n1\n");
        assert_eq!(disk.read(FILE), ended.as_bytes(), "what is torn ends in a line of its own");
        // What was read is not what is there any more.
        let again = append(&disk, path, &seen, None, &[raw("2")]);
        assert!(matches!(again, Err(TreeFileError::Changed { read, found, .. }) if read < found));
        assert_eq!(disk.read(FILE), ended.as_bytes());
        let seen = read(&disk, path).expect("read");
        let before = disk.ops().len();
        append(&disk, path, &seen, None, &[]).expect("nothing to do");
        assert!(
            disk.ops()[before..].iter().all(|op| op.kind != OpKind::Append && op.kind != OpKind::SyncAll)
        );
        for kind in [OpKind::Append, OpKind::SyncAll, OpKind::Len] {
            refusing(&disk, kind);
            assert!(append(&disk, path, &seen, None, &[raw("2")]).is_err(), "{kind:?}");
            disk.clear_hook();
            disk.write(FILE, ended.as_bytes());
        }
    }
}
