//! One line of a journal and the record in it.
//!
//! Decoding accepts exactly the bytes that encoding would write: the framing is taken apart from both ends,
//! the hash is checked first, and at last the record is encoded again and compared. So white space, key order,
//! doubled or unknown keys and odd spellings are found without a rule for each. Chains (`seq`, `prev`) and
//! states are judged elsewhere.

use crate::json::{self, DEPTH_MAX, View};
use crate::record::{At, CallRef, FORMAT, Hash, Kind, NUMBER_MAX, Record, TurnId, decimal};
use sha2::{Digest, Sha256};

/// A line holds at most this many bytes unless `--max-record` says otherwise, its newline not counted.
pub const LINE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Longest session id, in bytes.
const SESSION_BYTES_MAX: usize = 4_096;
/// `,"hash":"<64 hex>"}`: the last bytes of a line before its newline.
pub const HASH_SUFFIX_BYTES: usize = 75;
/// `,"prev":"<64 hex>"`.
const PREV_BYTES: usize = 74;

/// Why a line is no record of this format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The bytes are not UTF-8.
    #[error("not UTF-8 at byte {0} of the line")]
    Utf8(usize),
    /// The line does not end as every record does.
    #[error("does not end in ,\"hash\":\"<64 hex>\"}}")]
    Suffix,
    /// The hash is another one.
    #[error("hash mismatch: the line says {stored}, its bytes give {computed}")]
    Hash {
        /// What the line says.
        stored: Hash,
        /// What its bytes give.
        computed: Hash,
    },
    /// The parts that every record has are not as they must be.
    #[error("envelope: {0}")]
    Envelope(String),
    /// A kind that format `turnkeep/1` does not have.
    #[error("unknown kind {0:?}")]
    UnknownKind(String),
    /// The fields of the kind are not as they must be.
    #[error("fields of {kind}: {source_text}")]
    Fields {
        /// The record's kind.
        kind: String,
        /// What the parser said.
        source_text: String,
    },
    /// A body nests too deeply.
    #[error("nests {0} levels deep, more than the {DEPTH_MAX} that are allowed")]
    TooDeep(usize),
    /// The same record is spelled differently.
    #[error("not spelled as this format spells it, from byte {0} of the line on")]
    Spelling(usize),
    /// A genesis of another version; this is not damage.
    #[error("format {0:?}, this version knows {FORMAT:?}")]
    OtherFormat(String),
}

/// Spells a record as a line, without its newline, and tells its hash.
#[expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "records hold nothing that cannot be serialized"
)]
pub fn encode(seq: u64, at: &At, kind: &Kind, base: u64, prev: &Hash) -> (Vec<u8>, Hash) {
    let head = format!(r#"{{"seq":{seq},"at":"{at}","kind":"{}","#, kind.word());
    let mut line = head.into_bytes();
    let opening = line.len();
    kind.write(&mut line).expect("records serialize");
    // The payload is an object of its own: its braces give way to the envelope's.
    line.remove(opening);
    line.pop();
    line.extend_from_slice(format!(r#","base":{base},"prev":"{prev}""#).as_bytes());
    let hash = digest(&line);
    line.extend_from_slice(format!(r#","hash":"{hash}"}}"#).as_bytes());
    (line, hash)
}

/// Reads one line, without its newline.
pub fn decode(line: &[u8]) -> Result<Record, Fault> {
    let text = checked_text(line)?;
    let parts = Parts::of(text)?;
    let depth = json::depth(text);
    // Bodies are members of the record itself, so its own braces count one.
    if depth > DEPTH_MAX + 1 {
        return Err(Fault::TooDeep(depth - 1));
    }
    let payload = format!("{{{}}}", parts.payload);
    let kind = Kind::read(parts.kind, payload.as_bytes())
        .ok_or_else(|| Fault::UnknownKind(parts.kind.to_owned()))?
        .map_err(|source| Fault::Fields { kind: parts.kind.to_owned(), source_text: source.to_string() })?;
    if let Kind::Opened(opened) = &kind
        && opened.format != FORMAT
    {
        return Err(Fault::Envelope(format!("{:?} is no format of a journal", opened.format)));
    }
    if let Kind::Opened(opened) = &kind
        && (opened.session.is_empty()
            || opened.session.len() > SESSION_BYTES_MAX
            || opened.session.chars().any(char::is_control))
    {
        return Err(Fault::Envelope("session is no session id".to_owned()));
    }
    check_numbers(&kind)?;
    // The envelope was taken apart strictly, so what is left to compare is how the payload is spelled.
    let mut rest = Rest(payload.as_bytes());
    let written = kind.write(&mut rest);
    let (Ok(()), []) = (written, rest.0) else {
        let same = payload.len() - rest.0.len();
        return Err(Fault::Spelling((parts.payload_at + same).saturating_sub(1)));
    };
    if !json::is_compact(text) {
        return Err(Fault::Spelling(0));
    }
    Ok(Record { seq: parts.seq, at: parts.at, kind, base: parts.base, prev: parts.prev, hash: parts.hash })
}

/// What is still expected; what is written otherwise is an error, and leaves it at the byte that differs.
struct Rest<'a>(&'a [u8]);

impl std::io::Write for Rest<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // Nearly always they are the same, which is seen at memory speed.
        if let Some(rest) = self.0.strip_prefix(bytes) {
            self.0 = rest;
            return Ok(bytes.len());
        }
        let same = self.0.iter().zip(bytes).take_while(|(ours, theirs)| ours == theirs).count();
        self.0 = self.0.get(same..).unwrap_or_default();
        Err(std::io::ErrorKind::InvalidData.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Whether the line's own hash holds. Says nothing about the rest.
pub fn hash_holds(line: &[u8]) -> bool {
    split_hash(line).is_some_and(|(covered, stored)| digest(covered).as_str().as_bytes() == stored)
}

/// The idempotency key of a call for the outside world, equal across attempts.
pub fn call_key(genesis: &Hash, turn: &TurnId, call: CallRef) -> String {
    let digest = json::sha256_hex(format!("{genesis}:{turn}:{call}").as_bytes());
    format!("tk_{}", digest.get(..32).unwrap_or_default())
}

/// SHA-256 of some bytes.
#[expect(clippy::missing_panics_doc, reason = "hex of a digest is a hash")]
pub fn digest(bytes: &[u8]) -> Hash {
    let hex = json::hex(&Sha256::digest(bytes));
    #[expect(clippy::expect_used, reason = "64 lower-case hex digits are a hash")]
    hex.parse().expect("hex of a digest")
}

/// The bytes that are hashed, and the hash that stands behind them.
fn split_hash(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let (covered, suffix) = line.split_at_checked(line.len().checked_sub(HASH_SUFFIX_BYTES)?)?;
    let stored = suffix.strip_prefix(br#","hash":""#)?.strip_suffix(br#""}"#)?;
    stored.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).then_some((covered, stored))
}

fn checked_text(line: &[u8]) -> Result<&str, Fault> {
    let (covered, stored) = split_hash(line).ok_or(Fault::Suffix)?;
    let stored: Hash =
        std::str::from_utf8(stored).ok().and_then(|hex| hex.parse().ok()).ok_or(Fault::Suffix)?;
    let computed = digest(covered);
    if computed != stored {
        return Err(Fault::Hash { stored, computed });
    }
    std::str::from_utf8(line).map_err(|error| Fault::Utf8(error.valid_up_to()))
}

/// A line taken apart.
struct Parts<'a> {
    seq: u64,
    at: At,
    kind: &'a str,
    payload: &'a str,
    /// Offset of the payload in the line.
    payload_at: usize,
    base: u64,
    prev: Hash,
    hash: Hash,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Result<Self, Fault> {
        let wrong = |what: &str| Fault::Envelope(what.to_owned());
        if let Some(format) = other_format(text) {
            return Err(Fault::OtherFormat(format));
        }
        let rest = text.strip_prefix(r#"{"seq":"#).ok_or_else(|| wrong("does not begin with seq"))?;
        let (seq, rest) = rest.split_once(',').ok_or_else(|| wrong("seq"))?;
        let seq = decimal(seq).ok_or_else(|| wrong("seq is not a plain decimal"))?;
        let rest = rest.strip_prefix(r#""at":""#).ok_or_else(|| wrong("at does not follow seq"))?;
        let (at, rest) = rest.split_once('"').ok_or_else(|| wrong("at"))?;
        let at = at.parse().map_err(wrong)?;
        let rest = rest.strip_prefix(r#","kind":""#).ok_or_else(|| wrong("kind does not follow at"))?;
        let (kind, rest) = rest.split_once('"').ok_or_else(|| wrong("kind"))?;
        let rest = rest.strip_prefix(',').ok_or_else(|| wrong("nothing follows kind"))?;
        let payload_at = text.len() - rest.len();

        let hash_at = rest.len().checked_sub(HASH_SUFFIX_BYTES);
        let (rest, suffix) = hash_at.and_then(|at| rest.split_at_checked(at)).ok_or_else(|| wrong("hash"))?;
        let prev_at = rest.len().checked_sub(PREV_BYTES);
        let (rest, prev) = prev_at.and_then(|at| rest.split_at_checked(at)).ok_or_else(|| wrong("prev"))?;
        let hash = suffix.get(9..73).and_then(|hex| hex.parse().ok()).ok_or_else(|| wrong("hash"))?;
        let prev = prev
            .strip_prefix(r#","prev":""#)
            .and_then(|prev| prev.strip_suffix('"'))
            .and_then(|hex| hex.parse().ok())
            .ok_or_else(|| wrong("prev is not 64 lower-case hex digits before hash"))?;
        let (payload, base) =
            rest.rsplit_once(r#","base":"#).ok_or_else(|| wrong("base does not stand before prev"))?;
        let base = decimal(base).ok_or_else(|| wrong("base is not a plain decimal"))?;
        Ok(Self { seq, at, kind, payload, payload_at, base, prev, hash })
    }
}

/// The format that a genesis names, if it is not ours. Its framing is the same in every version.
fn other_format(text: &str) -> Option<String> {
    // Only a genesis has seq 0, so other lines need no second look.
    text.starts_with(r#"{"seq":0,"#).then_some(())?;
    let object = View::of(text).object()?;
    let format = object.string("format")?;
    (object.string("kind")? == "opened" && format != FORMAT && format.starts_with("turnkeep/"))
        .then_some(format)
}

/// Plain decimals end at 2^63-1, which the types alone do not say.
fn check_numbers(kind: &Kind) -> Result<(), Fault> {
    let numbers: Vec<u64> = match kind {
        Kind::Admitted(admitted) => {
            admitted.tree.iter().flat_map(|tree| [tree.leaf_at.unwrap_or(0), tree.bytes]).collect()
        }
        Kind::Attempt(attempt) => {
            attempt.owner.iter().flat_map(owner_numbers).chain(attempt.lease_ms).collect()
        }
        Kind::Claimed(claimed) => claimed.runner.iter().flat_map(owner_numbers).collect(),
        Kind::Delivery(delivery) => delivery.runner.iter().flat_map(owner_numbers).collect(),
        Kind::Outcome(result) => result.exit.into_iter().chain(result.duration_ms).collect(),
        Kind::Heartbeat(heartbeat) => vec![heartbeat.lease_ms],
        Kind::Recovered(recovered) => recovered.branch.iter().map(|branch| branch.entries).collect(),
        Kind::Repaired(repaired) => vec![repaired.offset, repaired.bytes],
        Kind::Opened(_)
        | Kind::Message(_)
        | Kind::Entry(_)
        | Kind::Intent(_)
        | Kind::Interrupted(_)
        | Kind::NotRun(_)
        | Kind::Dispatched(_)
        | Kind::Approval(_)
        | Kind::Reconciled(_)
        | Kind::Straggler(_)
        | Kind::Steered(_)
        | Kind::Cancelled(_)
        | Kind::Settled(_)
        | Kind::Parked(_)
        | Kind::Unparked(_)
        | Kind::Note(_) => Vec::new(),
    };
    let attempt = kind.attempt().unwrap_or(0);
    match numbers.into_iter().chain([attempt]).find(|number| *number > NUMBER_MAX) {
        Some(number) => Err(Fault::Envelope(format!("{number} is beyond 2^63-1"))),
        None => Ok(()),
    }
}

fn owner_numbers(owner: &crate::record::Owner) -> [u64; 3] {
    [owner.pid, owner.started, owner.pidns]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Raw;
    use crate::record::{Note, Opened};

    fn at() -> At {
        "2026-11-29T15:26:00.123456Z".parse().expect("a time")
    }

    fn genesis() -> Vec<u8> {
        let kind = Kind::from(Opened {
            format: FORMAT.to_owned(),
            session: "room-42".to_owned(),
            id: "01934c5e-0000-7000-8000-00000000002a".to_owned(),
        });
        encode(0, &at(), &kind, 0, &Hash::none()).0
    }

    fn note(content: &str) -> Vec<u8> {
        let turn = "t1".parse().expect("an id");
        let kind = Kind::from(Note { turn, attempt: 1, content: Raw::parse(content).expect("JSON") });
        encode(7, &at(), &kind, 4182, &Hash::none()).0
    }

    /// Puts a hash that holds behind changed bytes: what is left to find is not the hash.
    fn rehashed(text: &str) -> Vec<u8> {
        let covered = &text[..text.len() - HASH_SUFFIX_BYTES];
        format!(r#"{covered},"hash":"{}"}}"#, digest(covered.as_bytes())).into_bytes()
    }

    #[test]
    fn an_independent_genesis_has_these_bytes() {
        let known = r#"{"seq":0,"at":"2026-11-29T15:26:00.123456Z","kind":"opened","format":"turnkeep/1","session":"room-42","id":"01934c5e-0000-7000-8000-00000000002a","base":0,"prev":"0000000000000000000000000000000000000000000000000000000000000000","hash":"cb07f060d6d5e749c8f39cf40fbc480e3722ae44dcfda9a68488d504c6bd3364"}"#;
        assert_eq!(String::from_utf8(genesis()).expect("text"), known);
        let record = decode(known.as_bytes()).expect("decodes");
        assert_eq!((record.seq, record.base), (0, 0));
        let key = call_key(&record.hash, &"t1".parse().expect("an id"), "3.0".parse().expect("a ref"));
        assert_eq!(key, "tk_84d8f18899c282bc28dd8e118d4ced87");
    }

    #[test]
    fn bodies_keep_their_bytes() {
        for body in ["null", "1e2", r#"{"a":1,"a":"\ud800 , ","base":1}"#, r#""\u0000\u2028 \" ,\"base\":1""#]
        {
            let line = note(body);
            match decode(&line).expect("decodes").kind {
                Kind::Note(note) => assert_eq!(note.content.get(), body),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        for line in [genesis(), note(r#"{"k":[1,"x"]}"#)] {
            for index in 0..line.len() * 8 {
                let mut flipped = line.clone();
                flipped[index / 8] ^= 1 << (index % 8);
                assert!(decode(&flipped).is_err(), "bit {index}");
            }
        }
    }

    #[test]
    fn spelling_is_judged_behind_a_good_hash() {
        let text = String::from_utf8(note(r#"{"k":1}"#)).expect("text");
        for (from, to) in [
            (r#""attempt":1"#, r#""attempt": 1"#),
            (r#""attempt":1"#, r#""attempt":1,"more":2"#),
            (r#""attempt":1"#, r#""attempt":1,"attempt":1"#),
            (r#""turn":"t1","attempt":1"#, r#""attempt":1,"turn":"t1""#),
            (r#""turn":"t1""#, r#""turn":"\u00741""#),
            (r#"{"k":1}"#, r#"{"k": 1}"#),
            (r#""seq":7"#, r#""seq":07"#),
            (r#""base":4182"#, r#""base":9223372036854775808"#),
            (r#""kind":"note""#, r#""kind":"novelty""#),
        ] {
            let changed = rehashed(&text.replacen(from, to, 1));
            assert!(hash_holds(&changed));
            assert!(decode(&changed).is_err(), "{to}");
        }
    }

    #[test]
    fn the_first_byte_that_is_spelled_otherwise_is_named() {
        let text = String::from_utf8(note(r#"{"k":1}"#)).expect("text");
        for (from, to) in [
            (r#""turn":"t1""#, r#""turn": "t1""#),
            (r#""attempt":1"#, r#""attempt": 1"#),
            (r#""turn":"t1""#, r#""turn":"\u00741""#),
            (r#""turn":"t1""#, r#" "turn":"t1""#),
        ] {
            let changed = text.replacen(from, to, 1);
            let place = changed.bytes().zip(text.bytes()).take_while(|(new, old)| new == old).count();
            assert_eq!(decode(&rehashed(&changed)), Err(Fault::Spelling(place)), "{to}");
        }
    }

    #[test]
    fn a_genesis_names_a_session() {
        let named = |session: &str| {
            let opened = Opened {
                format: FORMAT.to_owned(),
                session: session.to_owned(),
                id: "01934c5e-0000-7000-8000-00000000002a".to_owned(),
            };
            decode(&encode(0, &at(), &opened.into(), 0, &Hash::none()).0)
        };
        assert!(named("a").is_ok());
        assert!(named(&"a".repeat(4_096)).is_ok());
        for wrong in ["", &"a".repeat(4_097), "a\nb", "\u{7f}"] {
            assert!(matches!(named(wrong), Err(Fault::Envelope(_))), "{wrong:?}");
        }
    }

    #[test]
    fn the_limits_are_those_of_the_format() {
        assert_eq!(LINE_BYTES_MAX, 67_108_864);
        assert_eq!(format!(r#","hash":"{}"}}"#, Hash::none()).len(), HASH_SUFFIX_BYTES);
        assert_eq!(format!(r#","prev":"{}""#, Hash::none()).len(), PREV_BYTES);
    }

    #[test]
    fn no_number_is_beyond_63_bits() {
        let journal = include_str!("../fixtures/every-kind/journal.jsonl");
        let keys = [
            "attempt",
            "lease_ms",
            "pid",
            "started",
            "pidns",
            "leaf_at",
            "bytes",
            "entries",
            "offset",
            "exit",
            "duration_ms",
        ];
        for key in keys {
            let begin = format!(r#""{key}":"#);
            let mut kinds = Vec::new();
            for line in journal.lines().filter(|line| hash_holds(line.as_bytes())) {
                let Some(at) = line.find(&begin).map(|at| at + begin.len()) else { continue };
                let digits = line[at..].bytes().take_while(u8::is_ascii_digit).count();
                let with = |number: &str| rehashed(&[&line[..at], number, &line[at + digits..]].concat());
                let kind = decode(line.as_bytes()).expect("decodes").kind.word();
                assert!(decode(&with("9223372036854775807")).is_ok(), "{key} of {kind}");
                let fault = decode(&with("9223372036854775808"));
                assert!(matches!(fault, Err(Fault::Envelope(_))), "{key} of {kind}: {fault:?}");
                kinds.push(kind);
            }
            assert!(!kinds.is_empty(), "{key}");
        }
    }

    #[test]
    fn a_newer_genesis_is_not_damage() {
        let text = String::from_utf8(genesis()).expect("text");
        let newer =
            rehashed(&text.replace(r#""format":"turnkeep/1""#, r#""format":"turnkeep/2","extra":[1]"#));
        assert_eq!(decode(&newer), Err(Fault::OtherFormat("turnkeep/2".to_owned())));
        let mut damaged = newer;
        damaged[20] ^= 1;
        assert!(matches!(decode(&damaged), Err(Fault::Hash { .. })));
    }

    #[test]
    fn a_body_may_nest_a_thousand_levels() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(decode(&note(&nested(DEPTH_MAX))).is_ok());
        let text = String::from_utf8(note("1")).expect("text");
        let deep =
            rehashed(&text.replace(r#""content":1"#, &format!(r#""content":{}"#, nested(DEPTH_MAX + 1))));
        assert_eq!(decode(&deep), Err(Fault::TooDeep(DEPTH_MAX + 1)));
    }
}
