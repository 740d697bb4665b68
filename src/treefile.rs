//! The session file on disk: read whole, appended to by one write and a sync, created with its header.
//!
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
    match storage::read_whole(storage, path) {
        Ok(bytes) => Ok(tree::read(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(tree::read(Vec::new())),
        Err(source) => Err(failed("read", path, source)),
    }
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
            storage.resolve(folder).map(|_| ()).map_err(|source| failed("create", path, source))
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
