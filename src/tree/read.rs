//! Bytes of a session file to a [`Tree`].
//!
//! Lines are split at 0x0A before they are decoded; bytes that are not UTF-8 become U+FFFD; what is not JSON
//! is kept as a line of its own kind and never ends the reading. Linear in the size of the file.

use super::{
    Children, Crlf, EntryLine, Header, HeaderFault, Leaf, Other, OtherLine, Parent, Tail, Tree, VERSION,
};
use crate::json::{Object, View};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

const NO_IDS: &str = "entries of version 1 have no ids";

/// Memory that reading and checking a session file may take, at most, beside its bytes.
pub fn memory_for(bytes: &[u8]) -> u64 {
    /// A line: its places, its id in the index, its children, and a remark about it with path and hint.
    const LINE: u64 = 1024;
    /// A call, or a result: its place among what waits for an answer, and a remark about it.
    const CALL: u64 = 512;
    // Parts that are parsed; and text that is decoded anew, each byte of it as the three of U+FFFD.
    let copies = if std::str::from_utf8(bytes).is_ok() { 4 } else { 12 };
    let lines = memchr::memchr_iter(b'\n', bytes).count() as u64 + 1;
    let calls = memchr::memmem::find_iter(bytes, "toolCall").count() as u64;
    (bytes.len() as u64)
        .saturating_mul(copies)
        .saturating_add(lines.saturating_mul(LINE))
        .saturating_add(calls.saturating_mul(CALL))
}

/// Reads a session file. Never fails: what is wrong with it is told by [`super::check()`].
pub fn read(bytes: impl Into<Vec<u8>>) -> Tree {
    let bytes = bytes.into();
    let size = bytes.len() as u64;
    let ends = bytes.last() == Some(&b'\n');
    let (text, spans) = decode(bytes);
    let verbatim = spans.iter().all(|span| !span.lossy);
    let mut reader = Reader::default();
    let count = spans.len();
    for (position, span) in spans.into_iter().enumerate() {
        let ended = ends || position + 1 < count;
        reader.line(&text, position + 1, span, ended);
    }
    reader.finish(text, verbatim, size)
}

/// One line: where it stands in the file and in the decoded text.
struct Span {
    offset: u64,
    len: u64,
    text: Range<usize>,
    lossy: bool,
}

/// Decodes the file; a valid one is not copied.
fn decode(bytes: Vec<u8>) -> (String, Vec<Span>) {
    match String::from_utf8(bytes) {
        Ok(text) => {
            let spans = lines(text.as_bytes())
                .map(|line| Span {
                    offset: line.start as u64,
                    len: line.len() as u64,
                    text: line,
                    lossy: false,
                })
                .collect();
            (text, spans)
        }
        Err(broken) => decode_lossily(broken.as_bytes()),
    }
}

fn decode_lossily(bytes: &[u8]) -> (String, Vec<Span>) {
    let mut text = String::with_capacity(bytes.len());
    let spans = lines(bytes)
        .map(|line| {
            let (offset, len) = (line.start as u64, line.len() as u64);
            let from = text.len();
            let decoded = String::from_utf8_lossy(bytes.get(line).unwrap_or_default());
            text.push_str(&decoded);
            Span { offset, len, text: from..text.len(), lossy: matches!(decoded, std::borrow::Cow::Owned(_)) }
        })
        .collect();
    (text, spans)
}

/// The lines of a file without their newlines; what stands behind the last newline is a line if it is not empty.
fn lines(bytes: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    let ended = memchr::memchr_iter(b'\n', bytes).map(move |at| {
        let line = from..at;
        from = at + 1;
        line
    });
    let last = memchr::memrchr(b'\n', bytes).map_or(0, |at| at + 1)..bytes.len();
    ended.chain((!last.is_empty()).then_some(last))
}

/// What a line holds.
enum Content<'a> {
    Blank,
    Nul,
    Dead,
    /// A value that JavaScript takes for false: Pi passes over it like a line that is not JSON.
    Falsy(&'static str),
    Odd(&'static str),
    Object(Object<'a>),
}

fn content(text: &str) -> Content<'_> {
    if text.chars().all(is_blank) {
        return Content::Blank;
    }
    if text.bytes().all(|byte| byte == 0) {
        return Content::Nul;
    }
    match View::of(text) {
        View::Other => Content::Dead,
        View::Null => Content::Falsy("it is null"),
        View::Bool(false) => Content::Falsy("it is false"),
        View::Number(number) if number.parse() == Ok(0f64) => Content::Falsy("it is a number"),
        View::String(string) if string.is_empty() => Content::Falsy("it is a string"),
        View::Bool(true) => Content::Odd("it is true"),
        View::Number(_) => Content::Odd("it is a number"),
        View::String(_) => Content::Odd("it is a string"),
        View::Array(_) => Content::Odd("it is an array"),
        View::Object(object) => Content::Object(object),
    }
}

/// What JavaScript's `trim` takes away.
fn is_blank(char: char) -> bool {
    char == '\u{feff}' || (char.is_whitespace() && char != '\u{85}')
}

#[derive(Default)]
struct Reader {
    bom: bool,
    header: Option<Header>,
    fault: Option<HeaderFault>,
    entries: Vec<EntryLine>,
    others: Vec<OtherLine>,
    tail: Option<Tail>,
    crlf: Crlf,
    last: Option<Leaf>,
    index: HashMap<Arc<str>, Option<usize>>,
    doubled: BTreeMap<Arc<str>, Vec<usize>>,
    kinds: HashSet<Arc<str>>,
}

impl Reader {
    fn line(&mut self, text: &str, line: usize, mut span: Span, ended: bool) {
        if line == 1 && text.starts_with('\u{feff}') {
            self.bom = true;
            span.text.start += '\u{feff}'.len_utf8();
        }
        let slice = text.get(span.text.clone()).unwrap_or_default();
        if ended && slice.ends_with('\r') {
            self.crlf.first = if self.crlf.lines == 0 { line } else { self.crlf.first };
            self.crlf.lines += 1;
        }
        let content = content(slice);
        if !ended {
            let (offset, len) = (span.offset, span.len);
            self.tail = Some(match content {
                Content::Dead => Tail::Torn { offset, len },
                Content::Nul => Tail::Nul { offset, len },
                _ => Tail::NoNewline,
            });
        }
        match content {
            Content::Blank => self.other(line, span, Other::Blank),
            Content::Nul => self.other(line, span, Other::Nul),
            Content::Dead => self.other(line, span, Other::Dead),
            Content::Falsy(why) => self.other(line, span, Other::NoEntry { why }),
            Content::Odd(why) => self.no_entry(line, span, why),
            Content::Object(object) if object.string("type").as_deref() == Some("session") => {
                self.header(line, span, &object);
            }
            Content::Object(object) => self.entry(line, span, &object, text),
        }
    }

    fn other(&mut self, line: usize, span: Span, what: Other) {
        self.others.push(OtherLine { line, offset: span.offset, len: span.len, what, text: span.text });
    }

    fn no_entry(&mut self, line: usize, span: Span, why: &'static str) {
        self.no_header_yet(line);
        self.last = Some(Leaf::Undefined { line, why });
        self.other(line, span, Other::NoEntry { why });
    }

    fn header(&mut self, line: usize, span: Span, object: &Object<'_>) {
        if self.header.is_some() {
            return self.other(line, span, Other::Header);
        }
        let (id, version) = (object.string("id"), version(object));
        if self.fault.is_none() && id.is_none() {
            self.fault = Some(HeaderFault::Invalid { why: "its id is not a string" });
        } else if self.fault.is_none() && version.is_none() {
            self.fault = Some(HeaderFault::Invalid { why: "its version is not a whole number" });
        }
        self.header = Some(Header { id, version, line, offset: span.offset, len: span.len, text: span.text });
    }

    /// A value that stands where Pi looks for the header.
    fn no_header_yet(&mut self, line: usize) {
        if self.header.is_none() && self.fault.is_none() {
            self.fault = Some(HeaderFault::Behind { line });
        }
    }

    fn is_version_1(&self) -> bool {
        self.header.as_ref().and_then(|header| header.version).is_some_and(|version| version < 2)
    }

    fn entry(&mut self, line: usize, span: Span, object: &Object<'_>, text: &str) {
        let id = match object.view("id") {
            _ if self.is_version_1() => String::new(),
            Some(View::String(id)) if !id.is_empty() => id,
            Some(View::String(_)) => return self.no_entry(line, span, "its id is empty"),
            Some(_) => return self.no_entry(line, span, "its id is not a string"),
            None => return self.no_entry(line, span, "it has no id"),
        };
        self.no_header_yet(line);
        let index = self.entries.len();
        let parent = match object.view("parentId") {
            Some(View::Null) => Parent::Root,
            Some(View::String(parent)) if !parent.is_empty() => Parent::Id(self.intern(&parent)),
            _ => Parent::Missing,
        };
        self.last =
            Some(if id.is_empty() { Leaf::Undefined { line, why: NO_IDS } } else { Leaf::Entry(index) });
        let entry = EntryLine {
            id: if id.is_empty() { Arc::from("") } else { self.register(&id, index) },
            parent,
            kind: self.kind(&object.string("type").unwrap_or_default()),
            line,
            offset: span.offset,
            len: span.len,
            doubled_key: object.doubled().map(Box::from),
            lossy: span.lossy,
            message: object.get("message").map(|message| place(text, message)),
            text: span.text,
        };
        self.entries.push(entry);
    }

    /// Takes an id for the entry at `index`; the last line with an id holds it.
    fn register(&mut self, id: &str, index: usize) -> Arc<str> {
        let id = self.intern(id);
        if let Some(earlier) = self.index.insert(id.clone(), Some(index)).flatten() {
            self.doubled.entry(id.clone()).or_insert_with(|| vec![earlier]).push(index);
        }
        id
    }

    fn intern(&mut self, id: &str) -> Arc<str> {
        if let Some((known, _)) = self.index.get_key_value(id) {
            return known.clone();
        }
        let id: Arc<str> = Arc::from(id);
        self.index.insert(id.clone(), None);
        id
    }

    fn kind(&mut self, kind: &str) -> Arc<str> {
        if let Some(known) = self.kinds.get(kind) {
            return known.clone();
        }
        let kind: Arc<str> = Arc::from(kind);
        self.kinds.insert(kind.clone());
        kind
    }

    fn finish(self, text: String, verbatim: bool, size: u64) -> Tree {
        let version_1 = self.is_version_1();
        let up: Vec<Option<usize>> = self
            .entries
            .iter()
            .enumerate()
            .map(|(index, entry)| match &entry.parent {
                // Version 1 is a list: each entry follows the one before.
                _ if version_1 => index.checked_sub(1),
                Parent::Id(id) => self.index.get(id).copied().flatten(),
                Parent::Root | Parent::Missing => None,
            })
            .collect();
        let fault = if self.header.is_none() { Some(HeaderFault::Missing) } else { self.fault };
        Tree {
            size,
            bom: self.bom,
            header: self.header,
            header_fault: fault,
            entries: self.entries,
            others: self.others,
            tail: self.tail.unwrap_or(if size == 0 { Tail::Empty } else { Tail::Clean }),
            crlf: self.crlf,
            text,
            verbatim,
            last: self.last.unwrap_or(Leaf::None),
            index: self.index,
            doubled: self.doubled,
            children: Children::of(&up),
            up,
        }
    }
}

/// The version of a header: absent and null are 1, as in Pi.
fn version(header: &Object<'_>) -> Option<u64> {
    match header.view("version") {
        None | Some(View::Null) => Some(1),
        Some(View::Number(number)) => number.parse().ok().or_else(|| {
            // Other spellings of the version that is written, such as 3.0.
            (number.parse::<f64>() == Ok(3.0)).then_some(VERSION)
        }),
        Some(_) => None,
    }
}

/// Where `part` stands in `whole`, of which it is a slice.
fn place(whole: &str, part: &str) -> Range<usize> {
    let from = part.as_ptr().addr() - whole.as_ptr().addr();
    from..from + part.len()
}
