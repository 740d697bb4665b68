//! What surrounds journals in a state root: who may read it, links, and files that nobody needs.

use super::{Code, Finding, Report, What};
use crate::paths::{self, PathError, Root};
use crate::storage::{DIR_MODE, FILE_MODE, Item, ItemKind, Meta, Storage};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// Where a journal lies.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// Among the sessions of a state root, whose rules hold for it.
    InRoot(&'a Root),
    /// Anywhere else.
    Alone,
}

/// That a file is not to be opened; the report says why.
pub(super) struct Refused;

/// Looks at the folders above a journal and at the journal itself, without opening it.
pub(super) fn journal(
    storage: &dyn Storage,
    path: &Path,
    place: Place<'_>,
    user: u32,
    report: &mut Report,
) -> Result<(), Refused> {
    let Place::InRoot(root) = place else { return Ok(()) };
    if let Err(error) = root.refuse_links(storage).and_then(|()| paths::refuse_link(storage, path)) {
        let code = match error {
            PathError::Link { .. } => Code::Link,
            _ => Code::Unreadable,
        };
        report.add(Finding::new(code, path, error));
        return Err(Refused);
    }
    // The root itself may be a link.
    let real = storage.resolve(root.path()).unwrap_or_else(|_| root.path().to_owned());
    for folder in [real, root.sessions_dir()] {
        mode(storage, &folder, DIR_MODE, user, report);
    }
    mode(storage, path, FILE_MODE, user, report);
    Ok(())
}

/// Checks what a state root holds beside its journals; `saved` are the files in quarantine that journals name.
pub fn root(storage: &dyn Storage, root: &Root, saved: &BTreeSet<String>, user: u32) -> Report {
    let mut report = Report::new(What::Root, root.path());
    for folder in [root.quarantine_dir(), root.spool_dir()] {
        mode(storage, &folder, DIR_MODE, user, &mut report);
        for item in list(storage, &folder, &mut report) {
            plain_file(storage, &folder, &item, user, &mut report);
        }
    }
    mode(storage, &root.policy_file(), FILE_MODE, user, &mut report);
    for item in list(storage, root.path(), &mut report) {
        let name = item.name.to_string_lossy();
        if name.starts_with('.') || name.ends_with(".tmp") {
            leftover(&root.path().join(&item.name), "a file that a write left behind", &mut report);
        }
    }
    for item in list(storage, &root.sessions_dir(), &mut report) {
        let path = root.sessions_dir().join(&item.name);
        if path.extension().is_none_or(|ending| ending != "jsonl") {
            leftover(&path, "only journals belong here, and they end in .jsonl", &mut report);
        }
    }
    for item in list(storage, &root.quarantine_dir(), &mut report) {
        let name = format!("{}/{}", paths::QUARANTINE, item.name.to_string_lossy());
        if !saved.contains(&name) {
            let why = "no journal names these bytes: a repair was cut off, or their session is gone";
            leftover(&root.path().join(&name), why, &mut report);
        }
    }
    report
}

fn leftover(path: &Path, why: &str, report: &mut Report) {
    report.add(Finding::new(Code::LeftoverFile, path, why));
}

fn list(storage: &dyn Storage, folder: &Path, report: &mut Report) -> Vec<Item> {
    match storage.list(folder) {
        Ok(items) => items,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            report.could_not("list", folder, &error);
            Vec::new()
        }
    }
}

fn plain_file(storage: &dyn Storage, folder: &Path, item: &Item, user: u32, report: &mut Report) {
    let path = folder.join(&item.name);
    match item.kind {
        ItemKind::File => mode(storage, &path, FILE_MODE, user, report),
        ItemKind::Link => {
            report.add(Finding::new(Code::Link, &path, "a link, and links inside a state root are refused"));
        }
        ItemKind::Dir => mode(storage, &path, DIR_MODE, user, report),
        ItemKind::Other => leftover(&path, "a pipe, socket or device", report),
    }
}

/// Whether others may read or change it, under another name too; what is missing is no finding.
fn mode(storage: &dyn Storage, path: &Path, wanted: u32, user: u32, report: &mut Report) {
    let meta: Meta = match storage.inspect(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => return report.could_not("look at", path, &error),
    };
    if meta.mode & 0o077 != 0 {
        let message = format!("mode {:04o}: others may get at it; it should be {wanted:04o}", meta.mode);
        report.add(Finding::new(Code::OpenToOthers, path, message));
    }
    if meta.kind == ItemKind::File && meta.names > 1 {
        let message = format!("it has {} names (hard links)", meta.names);
        report.add(Finding::new(Code::OtherName, path, message));
    }
    if meta.uid != user {
        let message = format!("it belongs to user {}, and this is user {user}", meta.uid);
        report.add(Finding::new(Code::ForeignOwner, path, message));
    }
}
