//! From bytes to lines and records: where lines end, and what an unfinished last line is.
//!
//! Lines end at byte 0x0A alone and are split before they are decoded. Nothing here writes, and nothing here
//! decides what to do about what was found.

use crate::chain::{self, Fault, HASH_SUFFIX_BYTES};
use crate::json;
use crate::record::{Hash, Record};
use memchr::{memchr, memmem};
use sha2::{Digest, Sha256};

/// A run of bytes of a journal, its newline not included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// Offset of its first byte in the file.
    pub offset: u64,
    /// Its bytes, without the newline.
    pub bytes: &'a [u8],
    /// Whether its newline is there.
    pub ended: bool,
}

impl Line<'_> {
    /// Offset of the byte behind the line and its newline.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64 + u64::from(self.ended)
    }
}

/// Splits bytes that begin at `offset` of a file.
pub fn lines(bytes: &[u8], offset: u64) -> impl Iterator<Item = Line<'_>> {
    let (mut rest, mut offset) = (bytes, offset);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let line = match memchr(b'\n', rest) {
            Some(at) => {
                let (bytes, behind) = rest.split_at(at);
                rest = behind.get(1..).unwrap_or_default();
                Line { offset, bytes, ended: true }
            }
            None => Line { offset, bytes: std::mem::take(&mut rest), ended: false },
        };
        offset = line.end();
        Some(line)
    })
}

/// What stands behind the last newline of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    Clean,
    /// A whole record that lacks only its newline; NULs may follow it.
    NoNewline {
        /// The record.
        record: Box<Record>,
        /// Offset of the record.
        offset: u64,
        /// Offset of the byte behind it.
        end: u64,
        /// How many NULs follow.
        nuls: u64,
    },
    /// Bytes that were never acknowledged.
    Torn {
        /// Where they begin.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// Bytes that an interrupted write does not explain.
    Damaged {
        /// Where they begin.
        offset: u64,
        /// How many.
        bytes: u64,
        /// What is wrong.
        fault: TailFault,
    },
}

/// Why an unended last line is not a torn tail.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TailFault {
    /// A whole record is there, and something that is not its newline behind or before it.
    #[error("a whole record stands in an unfinished line together with other bytes")]
    RecordWithin,
    /// A whole line whose hash holds, but which is no record here.
    #[error(transparent)]
    Line(#[from] Fault),
}

/// Judges the bytes behind the last newline, and so many NULs behind them, which need not be read. Whether a record
/// there continues the chain is not asked here.
pub fn tail(bytes: &[u8], more_nuls: u64, offset: u64) -> Tail {
    let whole = bytes.len() as u64 + more_nuls;
    let kept = bytes.len() - bytes.iter().rev().take_while(|byte| **byte == 0).count();
    let text = bytes.get(..kept).unwrap_or_default();
    if whole == 0 {
        return Tail::Clean;
    }
    if text.is_empty() {
        return Tail::Torn { offset, bytes: whole };
    }
    let damaged = |fault| Tail::Damaged { offset, bytes: whole, fault };
    if chain::hash_holds(text) {
        return match chain::decode(text) {
            Ok(record) => Tail::NoNewline {
                record: Box::new(record),
                offset,
                end: offset + text.len() as u64,
                nuls: whole - text.len() as u64,
            },
            Err(fault) => damaged(TailFault::Line(fault)),
        };
    }
    if holds_record(text) { damaged(TailFault::RecordWithin) } else { Tail::Torn { offset, bytes: whole } }
}

/// What a record begins with.
const BEGIN: &[u8] = br#"{"seq":"#;
/// What stands before its hash.
const END: &[u8] = br#","hash":""#;

/// Whether a whole record stands anywhere in bytes that are no record as a whole.
///
/// Looked for from the beginning of the bytes, and from what looks like the beginning of a record shortly behind
/// what looks like the end of one. The work grows with the bytes alone, whatever bodies hold.
fn holds_record(bytes: &[u8]) -> bool {
    let ends: Vec<usize> = memmem::find_iter(bytes, END).collect();
    let mut hasher = Sha256::new();
    let mut hashed = 0;
    for (index, end) in ends.iter().enumerate() {
        hasher.update(bytes.get(hashed..*end).unwrap_or_default());
        hashed = *end;
        // A suffix that is not there in full ends no record.
        let Some(suffix) = bytes.get(*end..end + HASH_SUFFIX_BYTES) else { break };
        let stored = suffix.strip_prefix(END).and_then(|rest| rest.strip_suffix(br#""}"#));
        if stored == Some(json::hex(&hasher.clone().finalize()).as_bytes()) {
            return true;
        }
        // A record that begins behind this end can only reach to one of the next few.
        let behind = end + HASH_SUFFIX_BYTES;
        let near = bytes.get(behind..bytes.len().min(behind + 64)).unwrap_or_default();
        let Some(begin) = memmem::find(near, BEGIN).map(|at| behind + at) else { continue };
        let whole = |end: &usize| bytes.get(begin..end + HASH_SUFFIX_BYTES).is_some_and(chain::hash_holds);
        if ends.iter().skip(index + 1).take(4).any(whole) {
            return true;
        }
    }
    holds_record_behind_torn_one(bytes, &ends)
}

/// Whether a whole record stands behind bytes that end no record: a torn one that something was glued to.
fn holds_record_behind_torn_one(bytes: &[u8], ends: &[usize]) -> bool {
    // Bodies may hold any number of what looks like a beginning; a few more than a torn record has will do.
    const BEGINS_MAX: usize = 16;
    let begins = memmem::find_iter(bytes, BEGIN).filter(|begin| *begin > 0).take(BEGINS_MAX);
    begins.into_iter().any(|begin| {
        let mut hasher = Sha256::new();
        let mut hashed = begin;
        ends.iter().filter(|end| **end > begin).any(|end| {
            hasher.update(bytes.get(hashed..*end).unwrap_or_default());
            hashed = *end;
            let stored = bytes
                .get(*end..end + HASH_SUFFIX_BYTES)
                .and_then(|suffix| suffix.strip_prefix(END)?.strip_suffix(br#""}"#));
            stored == Some(json::hex(&hasher.clone().finalize()).as_bytes())
        })
    })
}

/// What the next record of a chain must carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Its `seq`.
    pub seq: u64,
    /// Its `prev`; `None` where the record before was not read.
    pub prev: Option<Hash>,
}

impl Expected {
    /// At the beginning of a journal.
    pub fn genesis() -> Self {
        Self { seq: 0, prev: Some(Hash::none()) }
    }

    /// Behind a record.
    pub fn behind(record: &Record) -> Self {
        Self { seq: record.seq + 1, prev: Some(record.hash.clone()) }
    }

    /// Whether a record continues the chain.
    pub fn fits(&self, record: &Record) -> bool {
        record.seq == self.seq && self.prev.as_ref().is_none_or(|prev| *prev == record.prev)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Raw;
    use crate::record::{At, Kind, Note, Opened};

    fn at() -> At {
        At::from_micros(1_700_000_000_000_000)
    }

    fn genesis() -> Vec<u8> {
        let kind = Kind::from(Opened { format: "turnkeep/1".into(), session: "s".into(), id: "u".into() });
        chain::encode(0, &at(), &kind, 0, &Hash::none()).0
    }

    fn note(seq: u64, prev: &Hash, text: &str) -> (Vec<u8>, Hash) {
        let kind = Kind::from(Note { turn: "t".parse().expect("id"), attempt: 1, content: Raw::text(text) });
        chain::encode(seq, &at(), &kind, 0, prev)
    }

    #[test]
    fn only_line_feeds_end_lines() {
        let bytes = "a\r\n\u{2028}b\n\nc".as_bytes();
        let found: Vec<_> =
            lines(bytes, 10).map(|line| (line.offset, line.bytes.len(), line.ended)).collect();
        assert_eq!(found, [(10, 2, true), (13, 4, true), (18, 0, true), (19, 1, false)]);
    }

    #[test]
    fn every_cut_of_a_last_record_is_torn_until_it_is_whole() {
        let line = genesis();
        for cut in 1..line.len() {
            let seen = tail(&line[..cut], 0, 5);
            assert_eq!(seen, Tail::Torn { offset: 5, bytes: cut as u64 }, "cut at {cut}");
        }
        let end = 5 + line.len() as u64;
        match tail(&line, 0, 5) {
            Tail::NoNewline { offset: 5, end: found, nuls: 0, .. } => assert_eq!(found, end),
            other => panic!("{other:?}"),
        }
        let mut padded = line.clone();
        padded.extend([0; 9]);
        assert!(matches!(tail(&padded, 0, 5), Tail::NoNewline { nuls: 9, .. }));
        assert_eq!(tail(&[0; 9], 0, 5), Tail::Torn { offset: 5, bytes: 9 });
    }

    #[test]
    fn nuls_that_were_counted_are_as_good_as_nuls_that_were_read() {
        let line = genesis();
        let (half, damaged) = (&line[..line.len() / 2], [&line, b"\x0b".as_slice()].concat());
        for text in [b"".as_slice(), half, &line, &damaged] {
            for (read, counted) in [(0, 0), (0, 3), (3, 0), (2, 1)] {
                let nuls = read + counted;
                let whole = [text, &vec![0; nuls]].concat();
                let seen = tail(&[text, &vec![0; read]].concat(), counted as u64, 5);
                assert_eq!(seen, tail(&whole, 0, 5), "{} bytes, {read} and {counted}", text.len());
            }
        }
        assert_eq!(tail(b"", 0, 5), Tail::Clean);
        assert_eq!(tail(b"", 3, 5), Tail::Torn { offset: 5, bytes: 3 });
    }

    #[test]
    fn a_record_that_lost_its_newline_to_something_else_is_damage() {
        let mut line = genesis();
        line.push(b'\x0b');
        assert!(matches!(tail(&line, 0, 0), Tail::Damaged { .. }));
        // Two records whose newline between them was flipped, the second one torn.
        let first = genesis();
        let hash = chain::decode(&first).expect("decodes").hash;
        let (second, _) = note(1, &hash, "x");
        for joint in [b"".as_slice(), b"\x0b", b"  "] {
            let torn = [first.as_slice(), joint, &second[..second.len() - 3]].concat();
            assert!(matches!(tail(&torn, 0, 0), Tail::Damaged { .. }));
            let behind = [&first[3..], joint, second.as_slice()].concat();
            assert!(matches!(tail(&behind, 0, 0), Tail::Damaged { .. }));
            let glued = [&first[..9], joint, second.as_slice()].concat();
            assert!(matches!(tail(&glued, 0, 0), Tail::Damaged { .. }));
        }
    }

    #[test]
    fn a_record_is_found_however_many_beginnings_stand_before_it() {
        // A record whose hash does not hold, with more beginnings in its body than are tried one by one.
        let body = format!("[{}0]", r#"{"seq":1},"#.repeat(40));
        let kind =
            Note { turn: "t".parse().expect("id"), attempt: 1, content: Raw::parse(&body).expect("JSON") };
        let (mut first, hash) = chain::encode(1, &at(), &kind.into(), 0, &Hash::none());
        first[30] ^= 1;
        let (second, _) = note(2, &hash, "x");
        for joint in [b"".as_slice(), b"\x0b", &[b' '; 57]] {
            for end in [b"".as_slice(), b"{"] {
                let glued = [first.as_slice(), joint, &second, end].concat();
                assert!(matches!(tail(&glued, 0, 0), Tail::Damaged { .. }), "{joint:?} {end:?}");
            }
            let torn = [first.as_slice(), joint, &second[..second.len() - 1]].concat();
            assert!(matches!(tail(&torn, 0, 0), Tail::Torn { .. }), "{joint:?}");
        }
    }

    #[test]
    fn the_next_record_has_the_next_number_and_the_hash_of_the_last() {
        let (first, hash) = note(1, &Hash::none(), "x");
        let expected = Expected::behind(&chain::decode(&first).expect("decodes"));
        for (seq, prev, fits) in [(2, &hash, true), (3, &hash, false), (2, &Hash::none(), false)] {
            let next = chain::decode(&note(seq, prev, "y").0).expect("decodes");
            assert_eq!(expected.fits(&next), fits, "{seq} {prev}");
        }
    }

    #[test]
    fn text_that_looks_like_a_record_is_still_torn() {
        let (line, _) = note(1, &Hash::none(), r#"{"seq":1,"hash":"0"} and more"#);
        assert!(matches!(tail(&line[..line.len() - 1], 0, 0), Tail::Torn { .. }));
    }
}
