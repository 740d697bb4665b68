//! What is wrong with a session file as such, and what must hold before it is written to.
//!
//! Knows nothing of journals: whether a branch says what its journal says is judged elsewhere. Every loop is
//! linear in the file, chains are followed without recursion, and lists in messages are cut short.

use super::calls::calls;
use super::finding::{
    Finding, Severity, at_entry, at_header, at_line, at_other, list, name, span, whole_file,
};
use super::said::said;
use super::sent::sent;
use super::shape::{Shape, set};
use super::{
    DEPTH_MAX, EntryLine, HeaderFault, Leaf, Other, OtherLine, Parent, Path, Tail, Top, Tree, Writable,
};
use crate::json::{View, depth, lone_surrogates};
use memchr::memmem;
use std::collections::HashSet;

/// Why a file is not written to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Pi converts it on opening, and gives new ids to a file of version 1.
    #[error("session file has version {version}, and only version 3 is written to: let Pi convert it first")]
    Older {
        /// The version found.
        version: u64,
    },
    /// A newer Pi wrote it.
    #[error("session file has version {version}, which is newer than the version 3 that is known")]
    Newer {
        /// The version found.
        version: u64,
    },
    /// It is damaged where it would be written to.
    #[error("session file is damaged: {}", summary(.0))]
    Damage(Vec<Finding>),
}

/// Everything that is wrong with the file, or worth knowing, by line.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    header(tree, &mut found);
    if tree.tail != Tail::Empty {
        tail(tree, &mut found);
        let shape = Shape::of(tree);
        lines(tree, &shape, &mut found);
        entries(tree, &shape, &mut found);
        links(tree, &shape, &mut found);
        cycles(tree, &shape, &mut found);
        forks(tree, &shape, &mut found);
        leaf(tree, &shape, &mut found);
        let said: Vec<_> = (0..tree.entries.len()).map(|index| said(tree, index)).collect();
        calls(tree, &shape, &said, &mut found);
        sent(tree, &shape.active, &said, &mut found);
    }
    found.sort_by_key(|finding| (finding.line.unwrap_or(0), finding.severity));
    found
}

/// What must hold before anything is appended below `leaf` (`None`: below no entry, as a new root).
///
/// An empty file is refused too: whoever has a header to begin it with looks at [`Tree::tail`] first.
pub fn check_path(tree: &Tree, leaf: Option<&str>) -> Result<(), Refusal> {
    let mut found = Vec::new();
    header(tree, &mut found);
    found.retain(|finding| finding.severity <= Severity::NeedsRecovery);
    if !found.is_empty() {
        return Err(Refusal::Damage(found));
    }
    match tree.writable() {
        Writable::Older { version } => return Err(Refusal::Older { version }),
        Writable::Newer { version } => return Err(Refusal::Newer { version }),
        Writable::Yes | Writable::NoHeader => {}
    }
    match leaf.map(|id| (id, tree.find(id))) {
        None => {}
        Some((id, None)) => found.push(whole_file(
            tree,
            "tree-leaf-missing",
            Severity::Damage,
            format!("entry {id}, on which the branch is to hang, is not in the file"),
        )),
        Some((_, Some(index))) => path(tree, &tree.path(index), &mut found),
    }
    if found.is_empty() { Ok(()) } else { Err(Refusal::Damage(found)) }
}

/// What is damaged in these entries themselves, where they stand on a path that is written behind.
pub fn damaged_entries(tree: &Tree, entries: &[usize]) -> Vec<Finding> {
    let mut found = Vec::new();
    for index in entries {
        envelope(tree, *index, Severity::Damage, &mut found);
        doubled_id(tree, *index, Severity::Damage, &mut found);
    }
    // What is only odd about an entry does not keep anybody from writing behind it.
    found.retain(|finding| finding.severity <= Severity::NeedsRecovery);
    found
}

/// What is damaged from the root down to an entry.
pub fn damaged_path(tree: &Tree, index: usize) -> Vec<Finding> {
    let mut found = Vec::new();
    path(tree, &tree.path(index), &mut found);
    found
}

fn path(tree: &Tree, path: &Path, found: &mut Vec<Finding>) {
    found.extend(damaged_entries(tree, &path.entries));
    match (&path.top, path.entries.first()) {
        (Top::Unknown { .. }, Some(first)) => unknown_parent(tree, *first, None, found),
        (Top::Cycle { len }, _) => {
            let ring = path.entries.get(..*len).unwrap_or_default().to_vec();
            cycle(tree, &from_first_line(ring), &path.entries, Severity::Damage, found);
        }
        (Top::Root | Top::Missing, _) | (_, None) => {}
    }
}

fn header(tree: &Tree, found: &mut Vec<Finding>) {
    if tree.tail == Tail::Empty {
        let text = "the file is empty: it has no header yet".to_owned();
        return found.push(whole_file(tree, "tree-empty", Severity::NeedsRecovery, text));
    }
    if tree.bom {
        let text = "the file begins with a byte order mark; Pi refuses to open it".to_owned();
        let finding = whole_file(tree, "tree-bom", Severity::Damage, text);
        found.push(Finding { line: Some(1), len: 3, ..finding });
    }
    match &tree.header_fault {
        None => version(tree, found),
        Some(HeaderFault::Missing) => {
            let severity = if tree.is_unbegun() { Severity::NeedsRecovery } else { Severity::Damage };
            let text = "no line is a session header, so Pi refuses to open the file; most likely it was deleted \
                        under a live writer and made anew by its next append";
            found.push(whole_file(tree, "tree-header-missing", severity, text.to_owned()));
        }
        Some(HeaderFault::Behind { line }) => {
            let text =
                format!("line {line} stands before the session header, so Pi refuses to open the file");
            found.push(at_line(tree, *line, "tree-header-missing", Severity::Damage, text));
        }
        Some(HeaderFault::Invalid { why }) => {
            let text = format!("the session header cannot be used: {why}");
            found.push(at_header(tree, "tree-header-invalid", Severity::Damage, text));
        }
    }
}

fn version(tree: &Tree, found: &mut Vec<Finding>) {
    match tree.writable() {
        Writable::Yes | Writable::NoHeader => {}
        Writable::Older { version } => {
            let ids =
                if version < 2 { "; its entries have no ids, so there is no leaf to admit on" } else { "" };
            let text = format!(
                "session version {version}; version 3 is needed for writing, let Pi convert the file first{ids}"
            );
            found.push(at_header(tree, "tree-older-version", Severity::Note, text));
        }
        Writable::Newer { version } => {
            let text = format!("session version {version} is newer than version 3; it may be misread here");
            found.push(at_header(tree, "tree-newer-version", Severity::Warning, text));
        }
    }
}

fn tail(tree: &Tree, found: &mut Vec<Finding>) {
    let last = last_line(tree);
    let (code, severity, offset, len, text) = match tree.tail {
        Tail::Clean | Tail::Empty => return,
        Tail::NoNewline => {
            let text = "the last line is complete but has no line ending; it will be ended before anything is appended";
            let (offset, len) = span(tree, last);
            ("tree-no-newline", Severity::Note, offset, len, text.to_owned())
        }
        Tail::Torn { offset, len } => {
            let text = format!(
                "torn tail: the last line only, {len} bytes at byte {offset}, was cut off while it was written; \
                 {} complete entries stand before it",
                tree.entries.len()
            );
            ("tree-torn-tail", Severity::NeedsRecovery, offset, len, text)
        }
        Tail::Nul { offset, len } => {
            let text = format!(
                "the file ends in {len} NUL bytes at byte {offset}, as a power failure leaves them; \
                 {} complete entries stand before them",
                tree.entries.len()
            );
            ("tree-nul-tail", Severity::NeedsRecovery, offset, len, text)
        }
    };
    found.push(Finding { code, severity, line: Some(last), offset, len, message: text });
}

fn last_line(tree: &Tree) -> usize {
    let header = tree.header.as_ref().map(|header| header.line);
    let entry = tree.entries.last().map(|entry| entry.line);
    let other = tree.others.last().map(|other| other.line);
    header.max(entry).max(other).unwrap_or(0)
}

/// The lines that are no entries, and how lines end.
fn lines(tree: &Tree, shape: &Shape, found: &mut Vec<Finding>) {
    if tree.crlf.lines > 0 {
        let text = format!(
            "{} lines end in CR LF, the first being line {}; probably edited or copied on another system",
            tree.crlf.lines, tree.crlf.first
        );
        found.push(whole_file(tree, "tree-crlf", Severity::Note, text));
    }
    let need = need(tree, shape);
    // The tail has its own finding.
    let tail = match tree.tail {
        Tail::Torn { offset, .. } | Tail::Nul { offset, .. } => Some(offset),
        Tail::Clean | Tail::NoNewline | Tail::Empty => None,
    };
    let mut blank: Option<(usize, usize)> = None;
    for other in tree.others.iter().filter(|other| Some(other.offset) != tail) {
        match other.what {
            Other::Blank => blank_line(other, &mut blank, found),
            Other::Nul | Other::Dead => found.push(dead_line(tree, other, need)),
            Other::NoEntry { why } => {
                let text = format!("no entry: {why}");
                found.push(at_other(other, "tree-no-entry", need.severity(), text));
            }
            Other::Header => {
                let text = "a second session header, which Pi ignores".to_owned();
                found.push(at_other(other, "tree-second-header", Severity::Note, text));
            }
        }
    }
}

/// Who may miss what stood on a line that is no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The branch that Pi opens: it is cut off, or there is none.
    Active,
    /// An entry of another branch.
    Elsewhere,
    /// Nobody.
    Nobody,
}

impl Need {
    fn severity(self) -> Severity {
        match self {
            Self::Active => Severity::Damage,
            Self::Elsewhere | Self::Nobody => Severity::Warning,
        }
    }
}

fn need(tree: &Tree, shape: &Shape) -> Need {
    let version_1 = tree.writable() == (Writable::Older { version: 1 });
    let rooted = |top: &EntryLine| version_1 || top.parent == Parent::Root;
    let top = shape.active.first().and_then(|top| tree.entries.get(*top));
    let opens = version_1 || !matches!(tree.leaf(), Leaf::Undefined { .. });
    let cut_off = |(index, entry): (usize, &EntryLine)| {
        matches!(entry.parent, Parent::Id(_)) && tree.parent(index).is_none()
    };
    if !opens || !top.is_none_or(rooted) {
        Need::Active
    } else if tree.entries.iter().enumerate().any(cut_off) {
        Need::Elsewhere
    } else {
        Need::Nobody
    }
}

/// Blank lines in a row are one note.
fn blank_line(other: &OtherLine, run: &mut Option<(usize, usize)>, found: &mut Vec<Finding>) {
    let line = other.line;
    if let Some((position, until)) = *run
        && until + 1 == line
        && let Some(finding) = found.get_mut(position)
    {
        let first = finding.line.unwrap_or(line);
        finding.message = format!("lines {first} to {line} are blank");
        finding.len = other.offset + other.len - finding.offset;
        *run = Some((position, line));
        return;
    }
    *run = Some((found.len(), line));
    found.push(at_other(other, "tree-blank-line", Severity::Note, format!("line {line} is blank")));
}

fn dead_line(tree: &Tree, other: &OtherLine, need: Need) -> Finding {
    let before = tree.entries.partition_point(|entry| entry.line < other.line);
    let behind = tree.entries.len() - before;
    let text = tree.other_text(other);
    let (code, what) = if other.what == Other::Nul {
        ("tree-nul-line", format!("{} NUL bytes, as a power failure leaves them", other.len))
    } else {
        ("tree-dead-line", format!("unreadable, {} bytes: {}", other.len, why_dead(text)))
    };
    let needed = match need {
        Need::Nobody => {
            "no entry names a parent that was on it; Pi leaves such a line behind when it opens a file with a torn tail"
        }
        Need::Elsewhere => {
            "an entry of another branch than the active one names a parent that is not in the file and may have stood here"
        }
        Need::Active => "an entry names a parent that is not in the file and may have stood here",
    };
    let message = format!(
        "line {} at byte {} is {what}; {before} entries stand before it and {behind} behind it; {needed}",
        other.line, other.offset
    );
    at_other(other, code, need.severity(), message)
}

fn why_dead(text: &str) -> String {
    let nuls = text.bytes().filter(|byte| *byte == 0).count();
    // A torn line takes the line that was glued to it along.
    let glued = memmem::rfind(text.as_bytes(), br#"{"type":""#)
        .and_then(|at| View::of(text.get(at..)?).object()?.string("id"));
    let why = match serde_json::from_str::<&serde_json::value::RawValue>(text) {
        _ if nuls > 0 => format!("it holds {nuls} NUL bytes"),
        _ if text.starts_with('\u{feff}') => "it begins with a byte order mark".to_owned(),
        Err(source) => format!("not JSON at column {}", source.column()),
        Ok(_) => "not JSON".to_owned(),
    };
    match glued {
        Some(id) => format!("{why}; entry {id} was glued to it and is lost with it"),
        None => why,
    }
}

/// What each entry shows by itself.
fn entries(tree: &Tree, shape: &Shape, found: &mut Vec<Finding>) {
    for (index, entry) in tree.entries.iter().enumerate() {
        let active = severity(shape, index);
        envelope(tree, index, active, found);
        // Once for each id, at the line that holds it.
        if tree.find(&entry.id) == Some(index) {
            doubled_id(tree, index, active, found);
        }
        let text = tree.text(index);
        if let Some(depth) = too_deep(text) {
            let message = format!(
                "entry {} on line {} nests {depth} levels deep, more than {DEPTH_MAX}",
                name(entry),
                entry.line
            );
            found.push(at_entry(entry, "tree-too-deep", active, message));
        }
        if entry.lossy {
            let message = "bytes that are not UTF-8 read as U+FFFD, as in Pi".to_owned();
            found.push(at_entry(entry, "tree-invalid-utf8", Severity::Note, message));
        }
        if lone_surrogates(text).next().is_some() {
            let message = format!(
                "an unpaired surrogate in the text of line {}; it is readable here, but a model provider may refuse it",
                entry.line
            );
            found.push(at_entry(entry, "tree-lone-surrogate", Severity::Note, message));
        }
    }
}

/// What is missing or doubled in an entry itself.
fn envelope(tree: &Tree, index: usize, severity: Severity, found: &mut Vec<Finding>) {
    let Some(entry) = tree.entries.get(index) else { return };
    let identified = !entry.id.is_empty();
    if entry.parent == Parent::Missing && identified {
        let message = format!(
            "entry {} on line {} has no parentId that is an id or null, so it is cut off from the rest",
            name(entry),
            entry.line
        );
        found.push(at_entry(entry, "tree-parent-missing", severity, message));
    }
    if let Some(key) = &entry.doubled_key {
        let message = format!(
            "entry {} on line {} holds the key {key:?} twice; the last one counts",
            name(entry),
            entry.line
        );
        found.push(at_entry(entry, "tree-doubled-key", severity, message));
    }
    if &*entry.kind == "message" && !tree.message(index).is_some_and(|message| message.starts_with('{')) {
        let fails = match severity {
            Severity::Damage => "Pi fails on it",
            _ => "Pi would fail on a branch that leads through it",
        };
        let message =
            format!("entry {} on line {} is a message without its message; {fails}", name(entry), entry.line);
        found.push(at_entry(entry, "tree-message-missing", severity, message));
    }
    if entry.kind.is_empty() {
        let message = format!("entry {} on line {} has no type", name(entry), entry.line);
        found.push(at_entry(entry, "tree-type-missing", Severity::Warning, message));
    }
}

fn doubled_id(tree: &Tree, index: usize, severity: Severity, found: &mut Vec<Finding>) {
    let Some(entry) = tree.entries.get(index) else { return };
    let Some(all) = tree.doubled(&entry.id) else { return };
    let lines =
        list(all.iter().filter_map(|index| tree.entries.get(*index)).map(|entry| entry.line.to_string()));
    let message =
        format!("id {} stands on lines {lines}; the last one counts, also for older children", entry.id);
    found.push(at_entry(entry, "tree-doubled-id", severity, message));
}

/// Parents that are not in the file, and compactions that keep from an entry not above them.
fn links(tree: &Tree, shape: &Shape, found: &mut Vec<Finding>) {
    for (index, entry) in tree.entries.iter().enumerate() {
        if matches!(entry.parent, Parent::Id(_)) && tree.parent(index).is_none() {
            unknown_parent(tree, index, Some(shape), found);
        }
        if &*entry.kind != "compaction" {
            continue;
        }
        let Some(kept) = tree.object(index).string("firstKeptEntryId") else { continue };
        if !tree.find(&kept).is_some_and(|kept| shape.is_above(kept, index)) {
            let message = format!(
                "compaction {} on line {} keeps from {kept}, which is not on its branch; readers keep nothing from before it",
                name(entry),
                entry.line
            );
            found.push(at_entry(entry, "tree-compaction-target", severity(shape, index), message));
        }
    }
}

fn unknown_parent(tree: &Tree, index: usize, shape: Option<&Shape>, found: &mut Vec<Finding>) {
    let Some(entry) = tree.entries.get(index) else { return };
    let Parent::Id(parent) = &entry.parent else { return };
    let below = shape.map_or(0, |shape| shape.below(index));
    let severity = shape.map_or(Severity::Damage, |shape| severity(shape, index));
    let hang = if below > 0 { format!(" ({below} more entries hang on it)") } else { String::new() };
    let message = format!(
        "entry {} on line {} names the parent {parent}, which is not in the file: the history above it is cut off{hang}",
        name(entry),
        entry.line
    );
    found.push(at_entry(entry, "tree-unknown-parent", severity, message));
}

/// Every loop once, with the entries that end in it.
fn cycles(tree: &Tree, shape: &Shape, found: &mut Vec<Finding>) {
    const NEW: usize = usize::MAX;
    let count = tree.entries.len();
    // Which walk saw an entry first; a walk that meets itself has found a loop.
    let mut seen = vec![NEW; count];
    let mut ends: Vec<Option<usize>> = vec![None; count];
    let mut rings: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
    for start in 0..count {
        let (mut at, mut walked) = (Some(start), Vec::new());
        while let Some(index) = at
            && seen.get(index) == Some(&NEW)
        {
            set(&mut seen, index, start);
            walked.push(index);
            at = tree.parent(index);
        }
        let ring = match at {
            Some(index) if seen.get(index) == Some(&start) => {
                let from = walked.iter().position(|walked| *walked == index).unwrap_or(0);
                let down = walked.get(from..).unwrap_or_default().iter().rev().copied().collect();
                rings.push((from_first_line(down), Vec::new()));
                Some(rings.len() - 1)
            }
            Some(index) => ends.get(index).copied().flatten(),
            None => None,
        };
        if ring.is_some() {
            for index in walked {
                set(&mut ends, index, ring);
            }
        }
    }
    for (index, ring) in ends.iter().enumerate() {
        if let Some((_, lost)) = ring.and_then(|ring| rings.get_mut(ring)) {
            lost.push(index);
        }
    }
    for (ring, lost) in &rings {
        // Pi goes up from the leaf that it opens alone.
        let active = lost.iter().any(|index| shape.is_active(*index));
        let severity = if active { Severity::Damage } else { Severity::Warning };
        cycle(tree, ring, lost, severity, found);
    }
}

/// A loop turned so that it begins with its first line.
fn from_first_line(mut ring: Vec<usize>) -> Vec<usize> {
    let first = ring.iter().enumerate().min_by_key(|(_, index)| **index).map_or(0, |(position, _)| position);
    ring.rotate_left(first);
    ring
}

fn cycle(tree: &Tree, ring: &[usize], lost: &[usize], severity: Severity, found: &mut Vec<Finding>) {
    let Some(first) = ring.first().and_then(|first| tree.entries.get(*first)) else { return };
    let ids = |indices: &[usize]| {
        list(indices.iter().filter_map(|index| tree.entries.get(*index)).map(|entry| entry.id.to_string()))
    };
    let loops = if ring.len() == 1 {
        format!("entry {} on line {} is its own parent", first.id, first.line)
    } else {
        let lines = list(
            ring.iter().filter_map(|index| tree.entries.get(*index)).map(|entry| entry.line.to_string()),
        );
        format!(
            "a loop of {} entries on lines {lines}, each the parent of the next: {}",
            ring.len(),
            ids(ring)
        )
    };
    let members: HashSet<&usize> = ring.iter().collect();
    let outside: Vec<usize> = lost.iter().filter(|index| !members.contains(index)).copied().collect();
    let besides =
        if outside.is_empty() { String::new() } else { format!(": those of the loop and {}", ids(&outside)) };
    let message = format!("{loops}; Pi never ends on it; {} no root{besides}", reach(lost.len()));
    found.push(at_entry(first, "tree-cycle", severity, message));
}

/// Branches below one entry whose lines alternate.
fn forks(tree: &Tree, shape: &Shape, found: &mut Vec<Finding>) {
    // An entry whose parent is lost is no branch of the root.
    let is_root = |index: &usize| tree.entries.get(*index).is_some_and(|entry| entry.parent == Parent::Root);
    let roots: Vec<usize> = tree.roots().iter().copied().filter(is_root).collect();
    let below = (0..tree.entries.len()).map(|index| (Some(index), tree.children(index)));
    for (at, children) in below.chain([(None, roots.as_slice())]) {
        let alternate = children.windows(2).any(|pair| match pair {
            [left, right] => shape.last(*left) > shape.first(*right),
            _ => false,
        });
        if !alternate {
            continue;
        }
        let leaves = list(
            children
                .iter()
                .filter_map(|child| tree.entries.get(shape.last(*child)))
                .map(|entry| name(entry).to_owned()),
        );
        let fork = at.and_then(|index| tree.entries.get(index));
        let below = fork.map_or_else(|| "at the root".to_owned(), |entry| format!("below {}", name(entry)));
        let message = format!(
            "{} branches {below} whose lines alternate, as two writers at once leave them; their leaves: {leaves}",
            children.len()
        );
        found.push(match fork {
            Some(entry) => at_entry(entry, "tree-forked", Severity::Note, message),
            None => whole_file(tree, "tree-forked", Severity::Note, message),
        });
    }
}

/// The leaf that Pi would open is none, or is not where the conversation went on.
fn leaf(tree: &Tree, shape: &Shape, found: &mut Vec<Finding>) {
    match tree.leaf() {
        Leaf::None => {}
        Leaf::Undefined { .. } if tree.writable() == (Writable::Older { version: 1 }) => {}
        Leaf::Undefined { line, why } => {
            let last = tree.last_entry().and_then(|index| tree.entries.get(index));
            let last = last.map_or_else(
                || "there is no entry".to_owned(),
                |entry| format!("the last entry is {} on line {}", name(entry), entry.line),
            );
            let message = format!(
                "line {line} comes last and has no id ({why}), so Pi would open the file with an empty context; {last}"
            );
            found.push(at_line(tree, line, "tree-leaf-undefined", Severity::Damage, message));
        }
        Leaf::Entry(index) => bookkeeping(tree, shape, index, found),
    }
}

/// The last line carries no message, and the newest message is not above it.
fn bookkeeping(tree: &Tree, shape: &Shape, leaf: usize, found: &mut Vec<Finding>) {
    let Some(entry) = tree.entries.get(leaf) else { return };
    if matches!(&*entry.kind, "message" | "custom_message" | "compaction" | "branch_summary") {
        return;
    }
    let Some(newest) = tree.entries.iter().rposition(|entry| &*entry.kind == "message") else { return };
    if shape.is_active(newest) {
        return;
    }
    let hangs = match &entry.parent {
        Parent::Id(id) => format!("hangs on {id}"),
        Parent::Root | Parent::Missing => "hangs on nothing".to_owned(),
    };
    let newest = tree.entries.get(newest).map_or("", |entry| name(entry));
    let message = format!(
        "the last line, {}, is a record ({}) that carries no message and {hangs}; the newest message is {newest}; \
         the two differ, and Pi would open {}",
        name(entry),
        entry.kind,
        name(entry)
    );
    found.push(at_entry(entry, "tree-bookkeeping-leaf", Severity::Note, message));
}

/// What hurts on the active branch is only worth a look elsewhere.
fn severity(shape: &Shape, index: usize) -> Severity {
    if shape.is_active(index) { Severity::Damage } else { Severity::Warning }
}

/// How deep a line nests, if that is too deep.
fn too_deep(text: &str) -> Option<usize> {
    // Most lines have few brackets: counting them is much cheaper than following them.
    memchr::memchr2_iter(b'{', b'[', text.as_bytes()).nth(DEPTH_MAX)?;
    Some(depth(text)).filter(|depth| *depth > DEPTH_MAX)
}

fn reach(entries: usize) -> String {
    if entries == 1 { "1 entry reaches".to_owned() } else { format!("{entries} entries reach") }
}

fn summary(found: &[Finding]) -> String {
    list(found.iter().map(|finding| finding.message.clone()))
}
