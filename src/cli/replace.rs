//! A file of the user's, written anew as a whole: under a temporary name first, then renamed.

use super::context::Context;
use super::error::{Exit, Failure, chain};
use crate::storage;
use std::io;
use std::path::{Path, PathBuf};

/// Puts `bytes` in the place of a file, which may be a link to it or not be there yet. Durable when this returns;
/// `kind` and `hint` tell what it means that it could not be written.
pub fn replace(
    context: &Context,
    path: &Path,
    bytes: &[u8],
    kind: &'static str,
    hint: &str,
) -> Result<(), Failure> {
    try_replace(context, path, bytes).map_err(|error| {
        let message = format!("could not write {}: {}", path.display(), chain(&error));
        Failure::of(Exit::Unexpected, kind, message).hint(hint)
    })
}

fn try_replace(context: &Context, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let storage = context.storage.as_ref();
    let path = match storage.resolve(path) {
        Ok(real) => real,
        Err(error) if error.kind() == io::ErrorKind::NotFound => spelled_once(context, path),
        Err(error) => return Err(error),
    };
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file name"));
    };
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = folder.join(temporary);
    let mut file = storage.create_new(&temporary)?;
    let written = storage::append_all(file.as_mut(), bytes)
        .map_err(|error| error.source)
        .and_then(|()| file.sync_all())
        .and_then(|()| storage.rename(&temporary, &path));
    if let Err(error) = written {
        // Nothing depends on it; the file is as it was.
        let _best_effort = storage.remove_file(&temporary);
        return Err(error);
    }
    storage.sync_dir(folder)
}

/// One spelling for each file: its folder without links, its own name as it is.
pub fn spelled_once(context: &Context, path: &Path) -> PathBuf {
    let storage = context.storage.as_ref();
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (absolute.parent().and_then(|folder| storage.resolve(folder).ok()), absolute.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => absolute,
    }
}
