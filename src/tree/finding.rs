//! One remark about a session file, and how remarks are worded and placed.

use super::{EntryLine, OtherLine, Tree};

/// Ids named in one message; the rest is counted.
const NAMED_MAX: usize = 20;

/// How bad a finding is, from the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The file lost something, or cannot be understood in one way only.
    Damage,
    /// A write was cut off; nothing that was acknowledged is lost.
    NeedsRecovery,
    /// Worth a look; what is there is whole.
    Warning,
    /// Good to know.
    Note,
}

/// Something about a session file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Stable name, `tree-…`.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// Line number, from 1; absent for the file as a whole.
    pub line: Option<usize>,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How many bytes it spans.
    pub len: u64,
    /// What happened and why it matters.
    pub message: String,
}

/// Offset and length of a line, whatever it holds.
pub(super) fn span(tree: &Tree, line: usize) -> (u64, u64) {
    let entry = tree.entries.binary_search_by_key(&line, |entry| entry.line).ok();
    let other = tree.others.binary_search_by_key(&line, |other| other.line).ok();
    let entry = entry.and_then(|at| tree.entries.get(at)).map(|entry| (entry.offset, entry.len));
    let other = other.and_then(|at| tree.others.get(at)).map(|other| (other.offset, other.len));
    let header = tree.header.as_ref().map(|header| (header.offset, header.len));
    entry.or(other).or(header).unwrap_or((0, tree.size))
}

/// What an entry is called in messages.
pub(super) fn name(entry: &EntryLine) -> &str {
    if entry.id.is_empty() { "without an id" } else { &entry.id }
}

/// Names joined by commas, the many cut short.
pub(crate) fn list(names: impl Iterator<Item = String>) -> String {
    list_of(NAMED_MAX, names)
}

/// The same, cut to `most`.
pub(crate) fn list_of(most: usize, mut names: impl Iterator<Item = String>) -> String {
    let shown = names.by_ref().take(most).collect::<Vec<_>>().join(", ");
    match names.count() {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

pub(super) fn whole_file(tree: &Tree, code: &'static str, severity: Severity, message: String) -> Finding {
    Finding { code, severity, line: None, offset: 0, len: tree.size, message }
}

pub(super) fn at_header(tree: &Tree, code: &'static str, severity: Severity, message: String) -> Finding {
    let line = tree.header.as_ref().map_or(1, |header| header.line);
    at_line(tree, line, code, severity, message)
}

pub(super) fn at_line(
    tree: &Tree,
    line: usize,
    code: &'static str,
    severity: Severity,
    message: String,
) -> Finding {
    let (offset, len) = span(tree, line);
    Finding { code, severity, line: Some(line), offset, len, message }
}

pub(super) fn at_entry(
    entry: &EntryLine,
    code: &'static str,
    severity: Severity,
    message: String,
) -> Finding {
    Finding { code, severity, line: Some(entry.line), offset: entry.offset, len: entry.len, message }
}

pub(super) fn at_other(
    other: &OtherLine,
    code: &'static str,
    severity: Severity,
    message: String,
) -> Finding {
    Finding { code, severity, line: Some(other.line), offset: other.offset, len: other.len, message }
}
