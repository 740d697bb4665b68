//! The agent's session tree: a Pi session file, read as tolerantly as Pi reads it.
//!
//! Pure: bytes in, values out; nothing here opens, locks or writes a file. Reading never fails and never
//! recurses along parents. The file's text is kept once and everything else refers into it. What is wrong
//! with a file is a value ([`check()`], [`check_path`]), and what would be written is built by [`build`].

pub mod build;
mod calls;
pub mod check;
pub mod finding;
mod read;
mod said;
pub mod sent;
mod shape;
#[cfg(test)]
mod tests;

pub use build::{
    Marker, entry_id, entry_with, header_line, looks_like_ours, marker, marker_entry, message_entry,
    same_entry,
};
pub use check::{Refusal, check, check_path};
pub use finding::{Finding, Severity};
pub use read::{memory_for, read};

use crate::json::{self, Object, Raw, View};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// The version that is written to; older ones Pi rewrites when it opens them.
pub const VERSION: u64 = 3;

/// Lines of a session file are read if they nest at most this many levels, which is what our own may have.
///
/// The deepest body on a line of ours is arguments that a provider gave in a string: they stand in an object of their
/// own if they are none, in their block, the content, the message and the entry.
pub const DEPTH_MAX: usize = json::DEPTH_MAX + 5;

/// A session file, line by line.
#[derive(Debug)]
pub struct Tree {
    /// Size of the file in bytes.
    pub size: u64,
    /// The file begins with a byte order mark, and Pi refuses it.
    pub bom: bool,
    /// The header, also where [`Tree::header_fault`] says that Pi would not take it.
    pub header: Option<Header>,
    /// Why Pi refuses the file, if it does for its header.
    pub header_fault: Option<HeaderFault>,
    /// The entries in file order.
    pub entries: Vec<EntryLine>,
    /// All lines that are neither the header nor an entry, in file order.
    pub others: Vec<OtherLine>,
    /// How the file ends.
    pub tail: Tail,
    /// Lines that end in CR LF.
    pub crlf: Crlf,
    text: String,
    /// The text is the file's bytes as they are: all of them were UTF-8.
    verbatim: bool,
    last: Leaf,
    index: HashMap<Arc<str>, Option<usize>>,
    doubled: BTreeMap<Arc<str>, Vec<usize>>,
    up: Vec<Option<usize>>,
    children: Children,
}

/// The first line of a session file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The session's id; `None` where it is no string.
    pub id: Option<String>,
    /// The format version; absent in the file means 1. `None` where it is no whole number.
    pub version: Option<u64>,
    /// Line number, from 1.
    pub line: usize,
    /// Where its line begins, in bytes.
    pub offset: u64,
    /// Length of its line in bytes, without the newline.
    pub len: u64,
    text: Range<usize>,
}

/// Why Pi refuses a file for its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderFault {
    /// No line is a header.
    Missing,
    /// The first JSON value of the file is not the header.
    Behind {
        /// Line of that value.
        line: usize,
    },
    /// The header cannot be used.
    Invalid {
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Where an entry hangs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parent {
    /// `"parentId":null`
    Root,
    /// The id of another entry, which need not exist.
    Id(Arc<str>),
    /// No `parentId`, or one that is no id. Pi takes such an entry for a root.
    Missing,
}

/// One entry of the tree.
#[derive(Debug, Clone)]
pub struct EntryLine {
    /// Its id; empty in a file of version 1, where Pi gives new ids whenever it opens the file.
    pub id: Arc<str>,
    /// Where it hangs. In a file of version 1 [`Tree::parent`] is the entry before.
    pub parent: Parent,
    /// Its `type`; empty where there is none.
    pub kind: Arc<str>,
    /// Line number, from 1.
    pub line: usize,
    /// Where its line begins, in bytes.
    pub offset: u64,
    /// Length of its line in bytes, without the newline.
    pub len: u64,
    /// A key that occurs twice in the entry itself, its bodies apart.
    pub doubled_key: Option<Box<str>>,
    /// Its bytes were not UTF-8 and read as U+FFFD.
    pub lossy: bool,
    text: Range<usize>,
    message: Option<Range<usize>>,
}

/// A line that is neither the header nor an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherLine {
    /// Line number, from 1.
    pub line: usize,
    /// Where the line begins, in bytes.
    pub offset: u64,
    /// Length of the line in bytes, without the newline.
    pub len: u64,
    /// What it is.
    pub what: Other,
    text: Range<usize>,
}

/// What a line is that is neither the header nor an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Other {
    /// White space only.
    Blank,
    /// NULs only.
    Nul,
    /// Not JSON: torn, overwritten, or glued to another line. Pi passes over it.
    Dead,
    /// JSON, but no entry.
    NoEntry {
        /// Why not.
        why: &'static str,
    },
    /// A second header, which Pi ignores.
    Header,
}

/// How the file ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// With a newline.
    Clean,
    /// The last line is whole and lacks its newline.
    NoNewline,
    /// The last line is not JSON and lacks its newline.
    Torn {
        /// Where it begins.
        offset: u64,
        /// How many bytes it has.
        len: u64,
    },
    /// The last line is NULs and lacks its newline.
    Nul {
        /// Where it begins.
        offset: u64,
        /// How many bytes it has.
        len: u64,
    },
    /// There is not one byte.
    Empty,
}

/// Lines that end in CR LF.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Crlf {
    /// The first of them; 0 where there is none.
    pub first: usize,
    /// How many there are.
    pub lines: usize,
}

/// The leaf that Pi would open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaf {
    /// An entry, by its index in [`Tree::entries`].
    Entry(usize),
    /// There is no entry yet.
    None,
    /// The last value of the file has no id that could be a leaf; Pi then opens with an empty context.
    Undefined {
        /// Its line.
        line: usize,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Whether `turnkeep` may write to a file, by its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writable {
    /// Version 3.
    Yes,
    /// Pi has to convert it first.
    Older {
        /// The version found.
        version: u64,
    },
    /// Written by a newer Pi.
    Newer {
        /// The version found.
        version: u64,
    },
    /// Pi itself would refuse it.
    NoHeader,
}

/// The entries from a root, or from where the chain breaks, to one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// Indices in [`Tree::entries`], each entry once, the leaf last.
    pub entries: Vec<usize>,
    /// What the first of them hangs on.
    pub top: Top,
}

/// What the topmost entry of a [`Path`] hangs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Top {
    /// Nothing: it is a root.
    Root,
    /// It has no `parentId`, and so Pi takes it for a root.
    Missing,
    /// A parent that is not in the file.
    Unknown {
        /// The id it names.
        id: Arc<str>,
    },
    /// A loop: the first `len` entries of the path, the last of them being the parent of the first.
    Cycle {
        /// How many entries the loop has.
        len: usize,
    },
}

/// Children of each entry in file order, as one list with bounds; the last list is that of the roots.
#[derive(Debug, Default)]
struct Children {
    bounds: Vec<usize>,
    items: Vec<usize>,
}

impl Children {
    fn of(up: &[Option<usize>]) -> Self {
        let place = |parent: &Option<usize>| parent.unwrap_or(up.len());
        let mut bounds = vec![0; up.len() + 2];
        for parent in up {
            if let Some(count) = bounds.get_mut(place(parent) + 1) {
                *count += 1;
            }
        }
        let mut sum = 0;
        for bound in &mut bounds {
            sum += *bound;
            *bound = sum;
        }
        let (mut next, mut items) = (bounds.clone(), vec![0; up.len()]);
        for (index, parent) in up.iter().enumerate() {
            if let Some(slot) = next.get_mut(place(parent)) {
                if let Some(item) = items.get_mut(*slot) {
                    *item = index;
                }
                *slot += 1;
            }
        }
        Self { bounds, items }
    }

    fn list(&self, place: usize) -> &[usize] {
        match (self.bounds.get(place), self.bounds.get(place + 1)) {
            (Some(from), Some(to)) => self.items.get(*from..*to).unwrap_or_default(),
            _ => &[],
        }
    }
}

impl Tree {
    /// The entry with this id: of doubled ids the last in the file, as in Pi.
    pub fn find(&self, id: &str) -> Option<usize> {
        self.index.get(id).copied().flatten()
    }

    /// The entry with this id: of doubled ids the last in the file, as in Pi.
    pub fn entry(&self, id: &str) -> Option<&EntryLine> {
        self.entries.get(self.find(id)?)
    }

    /// Indices of all entries with this id, if there are several.
    pub fn doubled(&self, id: &str) -> Option<&[usize]> {
        self.doubled.get(id).map(Vec::as_slice)
    }

    /// Index of the parent of an entry, if it is in the file.
    pub fn parent(&self, index: usize) -> Option<usize> {
        self.up.get(index).copied().flatten()
    }

    /// Indices of the children of an entry, in file order.
    pub fn children(&self, index: usize) -> &[usize] {
        if index < self.entries.len() { self.children.list(index) } else { &[] }
    }

    /// Indices of the entries whose parent is not in the file, roots among them, in file order.
    pub fn roots(&self) -> &[usize] {
        self.children.list(self.entries.len())
    }

    /// The leaf that Pi would open: the last value of the file that is no header, whatever it is.
    pub fn leaf(&self) -> Leaf {
        self.last
    }

    /// Index of the last entry of the file, also where Pi would find no leaf.
    pub fn last_entry(&self) -> Option<usize> {
        self.entries.len().checked_sub(1)
    }

    /// The chain from a root down to an entry.
    pub fn path(&self, index: usize) -> Path {
        let mut entries = Vec::new();
        let mut position = HashMap::new();
        let mut at = index;
        let top = loop {
            if let Some(first) = position.insert(at, entries.len()) {
                break Top::Cycle { len: entries.len() - first };
            }
            entries.push(at);
            if let Some(parent) = self.parent(at) {
                at = parent;
                continue;
            }
            break match self.entries.get(at).map(|entry| &entry.parent) {
                Some(Parent::Id(id)) => Top::Unknown { id: id.clone() },
                Some(Parent::Root) | None => Top::Root,
                Some(Parent::Missing) => Top::Missing,
            };
        };
        entries.reverse();
        Path { entries, top }
    }

    /// Whether this file may be written to, by its header.
    pub fn writable(&self) -> Writable {
        match (&self.header_fault, &self.header) {
            (None, Some(Header { version: Some(version), .. })) => match (*version).cmp(&VERSION) {
                std::cmp::Ordering::Less => Writable::Older { version: *version },
                std::cmp::Ordering::Equal => Writable::Yes,
                std::cmp::Ordering::Greater => Writable::Newer { version: *version },
            },
            _ => Writable::NoHeader,
        }
    }

    /// Whether the file was never begun: there is nothing in it, or nothing but first writes that were cut off, each
    /// ended by whoever tried next.
    pub fn is_unbegun(&self) -> bool {
        let last = self.others.len().saturating_sub(1);
        let cut_off = |(at, line): (usize, &OtherLine)| match line.what {
            Other::Nul => true,
            Other::Dead if at == last && self.needs_newline() => true,
            Other::Dead => self.other_text(line).starts_with('{'),
            Other::Blank | Other::NoEntry { .. } | Other::Header => false,
        };
        let nothing = self.header.is_none() && self.entries.is_empty() && !self.bom;
        nothing && self.others.iter().enumerate().all(cut_off)
    }

    /// The bytes of the file; `None` where some of them were no text and are not kept.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.verbatim.then_some(self.text.as_bytes())
    }

    /// Whether a newline has to be written before anything is appended.
    pub fn needs_newline(&self) -> bool {
        match self.tail {
            Tail::Clean | Tail::Empty => false,
            Tail::NoNewline | Tail::Torn { .. } | Tail::Nul { .. } => true,
        }
    }

    /// The header's line, decoded.
    pub fn header_text(&self) -> Option<&str> {
        self.header.as_ref().map(|header| self.slice(&header.text))
    }

    /// An entry's line, decoded.
    pub fn text(&self, index: usize) -> &str {
        self.entries.get(index).map_or("", |entry| self.slice(&entry.text))
    }

    /// The text of a line that is no entry, decoded.
    pub fn other_text(&self, other: &OtherLine) -> &str {
        self.slice(&other.text)
    }

    /// An entry, one level deep.
    pub fn object(&self, index: usize) -> Object<'_> {
        View::of(self.text(index)).object().unwrap_or(Object(Vec::new()))
    }

    /// An entry as a value of its own; `None` where it nests too deeply to be read.
    pub fn raw(&self, index: usize) -> Option<Raw> {
        readable(self.text(index))
    }

    /// An entry's message as a value of its own; `None` where there is none, or it nests too deeply to be read.
    pub fn raw_message(&self, index: usize) -> Option<Raw> {
        readable(self.message(index)?)
    }

    /// The raw JSON of an entry's `message`, of whatever kind the entry is.
    pub fn message(&self, index: usize) -> Option<&str> {
        Some(self.slice(self.entries.get(index)?.message.as_ref()?))
    }

    /// The `role` of the message of a `message` entry.
    pub fn role(&self, index: usize) -> Option<String> {
        if &*self.entries.get(index)?.kind != "message" {
            return None;
        }
        View::of(self.message(index)?).object()?.string("role")
    }

    fn slice(&self, range: &Range<usize>) -> &str {
        self.text.get(range.clone()).unwrap_or_default()
    }
}

fn readable(text: &str) -> Option<Raw> {
    if json::depth(text) <= DEPTH_MAX { Raw::composed(text) } else { None }
}
