//! Reading a journal: the genesis, then either every record or those from the newest `base` on.
//!
//! Nothing here writes. Damage is a value: reading goes on behind it and tells all of it, and whoever wants to
//! write refuses when there is any.

use crate::chain::{self, Fault};
use crate::draft::History;
use crate::record::{Hash, Kind, Record, Repaired, TurnId};
use crate::scan::{self, Expected, Tail, TailFault};
use crate::storage::{self, Growth, StoredFile};
use crate::turn::{Illegal, Retain, Session};
use sha2::{Digest, Sha256};
use std::io;

/// How much of a journal is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// From the newest `base` on: all that unclosed turns need, whatever the length of the journal.
    Base,
    /// Everything; closed turns are kept or not.
    All(Retain),
}

/// What was read.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The state; `None` while the genesis is still to be written, or where it is damaged.
    pub session: Option<Session>,
    /// The records that were read, without the genesis.
    pub history: History,
    /// What stands behind the last newline.
    pub tail: Tail,
    /// Offset behind the last record.
    pub end: u64,
    /// What does not check.
    pub damage: Vec<Damage>,
    /// The format of the genesis, where it is not ours; then nothing else was read.
    pub other_format: Option<String>,
}

/// Something that does not check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Line number, from 1.
    pub line: u64,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes, its newline included.
    pub bytes: u64,
    /// What is wrong.
    pub flaw: Flaw,
    /// Turns that may have lost something.
    pub turns: Vec<TurnId>,
}

/// Which check failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// A line is no record.
    #[error(transparent)]
    Line(#[from] Fault),
    /// The unended last line is neither torn nor whole.
    #[error(transparent)]
    Tail(#[from] TailFault),
    /// A record does not continue the chain.
    #[error("chain: record {found} stands where record {expected} belongs, or its prev is another hash")]
    Chain {
        /// The seq that belongs here.
        expected: u64,
        /// The seq that is here.
        found: u64,
    },
    /// A record does not fit the state before it.
    #[error("illegal: {0}")]
    Illegal(#[from] Illegal),
    /// The first line is no genesis.
    #[error("the first record is not a genesis")]
    NoGenesis,
}

/// A damaged range: whole lines with their newlines, or the place of a break in the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub bytes: u64,
}

impl Range {
    /// The ranges that damage comes to, in order.
    pub fn of(damage: &[Damage]) -> Vec<Self> {
        let mut ranges: Vec<Self> = Vec::new();
        for damage in damage {
            let bytes = match &damage.flaw {
                Flaw::Chain { expected, found } if found >= expected => 0,
                // The newline that the line lacks is written before anything else.
                Flaw::Tail(_) => damage.bytes + 1,
                // A record of an earlier seq goes on behind nothing: its whole line is damage.
                Flaw::Line(_) | Flaw::Illegal(_) | Flaw::NoGenesis | Flaw::Chain { .. } => damage.bytes,
            };
            match ranges.last_mut() {
                Some(last) if damage.offset <= last.end() => {
                    last.bytes = last.bytes.max(damage.offset + bytes - last.offset);
                }
                _ => ranges.push(Self { offset: damage.offset, bytes }),
            }
        }
        ranges
    }

    /// Offset of the byte behind it.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }

    /// Whether acknowledging this range acknowledges the damage.
    pub fn covers(&self, damage: &Damage) -> bool {
        let whole = self.offset <= damage.offset && damage.offset + damage.bytes <= self.end();
        match &damage.flaw {
            // The record behind lost lines may have any later seq and any prev.
            Flaw::Chain { expected, found } => whole || (found >= expected && self.end() == damage.offset),
            Flaw::Line(_) | Flaw::Tail(_) | Flaw::Illegal(_) | Flaw::NoGenesis => whole,
        }
    }
}

/// The range that a `repaired` acknowledges, if its bytes are still the same.
pub fn acknowledged(file: &dyn StoredFile, repaired: &Repaired, behind: u64) -> io::Result<Option<Range>> {
    let range = Range { offset: repaired.offset, bytes: repaired.bytes };
    if repaired.saved_as.is_some() || range.end() > behind {
        return Ok(None);
    }
    let same = digest_range(file, &range)? == repaired.sha256;
    Ok(same.then_some(range))
}

/// Digest of a range of a file, in bounded memory.
pub fn digest_range(file: &dyn StoredFile, range: &Range) -> io::Result<Hash> {
    digest_with(file, range, b"")
}

/// Digest of a damaged range as it will be: the newline that an unended line lacks is written first.
pub fn digest_ended(file: &dyn StoredFile, range: &Range) -> io::Result<Hash> {
    let held = range.end().min(file.len()?);
    let there = Range { offset: range.offset, bytes: held.saturating_sub(range.offset) };
    digest_with(file, &there, if there.bytes < range.bytes { b"\n" } else { b"" })
}

fn digest_with(file: &dyn StoredFile, range: &Range, behind: &[u8]) -> io::Result<Hash> {
    let mut hasher = Sha256::new();
    each_chunk(file, range, |chunk| {
        hasher.update(chunk);
        Ok(())
    })?;
    hasher.update(behind);
    crate::json::hex(&hasher.finalize()).parse().map_err(io::Error::other)
}

/// Calls `take` with the bytes of a range, a bounded number at a time.
pub fn each_chunk(
    file: &dyn StoredFile,
    range: &Range,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    const CHUNK: u64 = 256 * 1024;
    let mut at = range.offset;
    while at < range.end() {
        let to = range.end().min(at + CHUNK);
        take(&storage::read_exact_range(file, at, to)?)?;
        at = to;
    }
    Ok(())
}

/// Reads a journal. Damage that a person acknowledged is passed over.
pub fn load(file: &dyn StoredFile, reach: Reach) -> io::Result<Loaded> {
    if reach == Reach::Base
        && let Some(from) = newest_base(file)?
    {
        let loaded = Reader::new(Retain::Unclosed).read(file, from)?;
        // Damage is told with its line number, and which turn a record behind it is of may stand before the base.
        let lost = loaded.session.as_ref().is_some_and(Session::has_lost);
        if loaded.damage.is_empty() && !lost {
            return Ok(loaded);
        }
    }
    let retain = match reach {
        Reach::All(retain) => retain,
        Reach::Base => Retain::Unclosed,
    };
    Reader::new(retain).read(file, 0)
}

/// Where the records begin that the newest whole line still needs; `None` where that cannot be told.
fn newest_base(file: &dyn StoredFile) -> io::Result<Option<u64>> {
    let end = file.len()?;
    let Some(tail) = last_newline(file, end)? else { return Ok(None) };
    let start = last_newline(file, tail)?.map_or(0, |newline| newline + 1);
    storage::headroom((tail - start).saturating_mul(LINE_COPIES))?;
    let line = read_range(file, start, tail)?;
    let Ok(record) = chain::decode(&line) else { return Ok(None) };
    let at_line_start =
        record.base <= start && record.base > 0 && read_range(file, record.base - 1, record.base)? == b"\n";
    Ok(at_line_start.then_some(record.base))
}

/// Offset of the last newline before `end`.
fn last_newline(file: &dyn StoredFile, end: u64) -> io::Result<Option<u64>> {
    const CHUNK: u64 = 64 * 1024;
    let mut end = end;
    while end > 0 {
        let from = end.saturating_sub(CHUNK);
        let chunk = read_range(file, from, end)?;
        if let Some(at) = memchr::memrchr(b'\n', &chunk) {
            return Ok(Some(from + at as u64));
        }
        end = from;
    }
    Ok(None)
}

/// The bytes from `from` to `to`, or up to the end of the file.
fn read_range(file: &dyn StoredFile, from: u64, to: u64) -> io::Result<Vec<u8>> {
    storage::headroom(to.saturating_sub(from))?;
    let mut bytes = vec![0; usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX)];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(from + filled as u64, rest)? {
            0 => break,
            read => filled += read,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

struct Reader {
    follower: Follower,
    history: History,
}

impl Reader {
    fn new(retain: Retain) -> Self {
        Self { follower: Follower::new(retain), history: History::default() }
    }

    /// Reads the genesis and then everything from `from` on.
    fn read(mut self, file: &dyn StoredFile, from: u64) -> io::Result<Loaded> {
        /// What a line comes to beside its bytes: the record, its place, or a remark about it.
        const LINE_COST: u64 = 512;
        let mut lines = Lines::new(file, 0)?;
        let mut tail = Tail::Clean;
        let mut growth = Growth::default();
        while let Some((offset, ended)) = lines.advance()? {
            let bytes = lines.line();
            growth.take(bytes.len() as u64 + LINE_COST)?;
            // The genesis itself is no part of the history, and neither is what stands behind a damaged one.
            let begun = self.follower.session.is_some();
            let record = if ended {
                self.follower.take_line(offset, bytes, chain::decode(bytes))
            } else {
                tail = self.follower.take_tail(offset, bytes, lines.nuls());
                match &tail {
                    Tail::NoNewline { record, .. } => Some(record.as_ref().clone()),
                    Tail::Clean | Tail::Torn { .. } | Tail::Damaged { .. } => None,
                }
            };
            if let Some(record) = record.filter(|_| begun) {
                self.history.push(offset, record);
            }
            if self.follower.other_format.is_some() {
                break;
            }
            if self.follower.line == 1 && from > self.follower.end {
                self.follower.skip_to_base();
                lines = Lines::new(file, from)?;
            }
        }
        let damage = self.unacknowledged(file)?;
        Ok(Loaded {
            session: self.follower.session,
            history: self.history,
            tail,
            end: self.follower.end,
            damage,
            other_format: self.follower.other_format,
        })
    }
}

impl Reader {
    /// The damage that no `repaired` behind it acknowledges.
    fn unacknowledged(&mut self, file: &dyn StoredFile) -> io::Result<Vec<Damage>> {
        let mut damage = std::mem::take(&mut self.follower.damage);
        if damage.is_empty() {
            return Ok(damage);
        }
        for (offset, record) in self.history.iter() {
            let Kind::Repaired(repaired) = &record.kind else { continue };
            if let Some(range) = acknowledged(file, repaired, offset)? {
                damage.retain(|damage| !range.covers(damage));
            }
        }
        Ok(damage)
    }
}

/// Follows a journal line by line: its chain, its states, its damage.
///
/// It keeps no record, so its memory is bounded by the turns, as long as somebody takes the damage away.
/// Reading, writing and verifying all go through it and cannot disagree.
#[derive(Debug)]
pub struct Follower {
    /// The state; `None` while the genesis is still to come, or where it is damaged.
    pub session: Option<Session>,
    /// What did not check.
    pub damage: Vec<Damage>,
    /// The format of the genesis, where it is not ours.
    pub other_format: Option<String>,
    /// How many lines were taken.
    pub line: u64,
    /// Offset behind the last of them.
    pub end: u64,
    retain: Retain,
    expected: Expected,
    /// Behind a line that is no record: what goes on as if that line were not there.
    unbroken: Option<Expected>,
}

impl Follower {
    /// Begins in front of the genesis.
    pub fn new(retain: Retain) -> Self {
        Self {
            session: None,
            damage: Vec::new(),
            other_format: None,
            line: 0,
            end: 0,
            retain,
            expected: Expected::genesis(),
            unbroken: None,
        }
    }

    /// Takes the next whole line, already decoded. Gives the record back if it is one.
    pub fn take_line(&mut self, offset: u64, bytes: &[u8], decoded: Result<Record, Fault>) -> Option<Record> {
        self.line += 1;
        let size = bytes.len() as u64 + 1;
        self.end = offset + size;
        match decoded {
            Ok(record) => {
                self.take_record(offset, size, &record);
                Some(record)
            }
            Err(Fault::OtherFormat(format)) if self.line == 1 => {
                self.other_format = Some(format);
                None
            }
            Err(fault) => {
                self.note(offset, size, fault.into(), Some(bytes));
                // The line stands for a record, and then `prev` of the one behind it cannot be judged; or it was put
                // there, and the chain goes on around it.
                let lost = Expected { seq: self.expected.seq.saturating_add(1), prev: None };
                let before = std::mem::replace(&mut self.expected, lost);
                self.unbroken = self.unbroken.take().or(Some(before).filter(|before| before.prev.is_some()));
                if let Some(session) = &mut self.session {
                    session.pass_damage(offset);
                }
                None
            }
        }
    }

    /// Takes the bytes behind the last newline, and how many NULs stand behind them.
    pub fn take_tail(&mut self, offset: u64, bytes: &[u8], nuls: u64) -> Tail {
        self.end = offset;
        let tail = scan::tail(bytes, nuls, offset);
        match &tail {
            Tail::NoNewline { record, offset, end, .. } => {
                self.line += 1;
                // What is wrong with it is wrong with the whole line; its newline is written before anything else.
                self.take_record(*offset, end - offset + 1, record);
                self.end = *end;
            }
            Tail::Damaged { offset, bytes, fault } => {
                self.line += 1;
                let (offset, size, flaw) = (*offset, *bytes, fault.clone().into());
                self.note(offset, size, flaw, None);
                self.end = offset + size;
                if let Some(session) = &mut self.session {
                    session.pass_damage(offset);
                }
            }
            Tail::Clean | Tail::Torn { .. } => {}
        }
        tail
    }

    /// The next line is the one that the newest `base` names; only the base knows what lies between.
    fn skip_to_base(&mut self) {
        if let Some(session) = &mut self.session {
            session.skip_to_base();
        }
        self.expected = Expected { seq: u64::MAX, prev: None };
    }

    fn take_record(&mut self, offset: u64, size: u64, record: &Record) {
        if self.expected.seq == u64::MAX {
            self.expected.seq = record.seq;
        }
        let unbroken = self.unbroken.take();
        let fits = self.expected.fits(record)
            || unbroken.is_some_and(|unbroken| unbroken.fits(record))
            || self.salvages(record);
        let first = self.line == 1;
        if !fits && !first {
            let flaw = Flaw::Chain { expected: self.expected.seq, found: record.seq };
            self.note(offset, size, flaw, None);
            if record.seq < self.expected.seq {
                return;
            }
            if let Some(session) = &mut self.session {
                session.pass_break(offset);
            }
        }
        self.expected = Expected::behind(record);
        match (&mut self.session, &record.kind) {
            (None, Kind::Opened(opened)) if first && fits && record.base == 0 => {
                self.session = Some(Session::begin(opened.session.clone(), record, self.retain));
            }
            // Without a genesis there is no state; behind the first line that was told already.
            (None, _) => {
                if first {
                    self.note(offset, size, Flaw::NoGenesis, None);
                }
            }
            (Some(session), _) => {
                if let Err(illegal) = session.apply(record, offset) {
                    session.pass_illegal(record.seq, offset);
                    self.note(offset, size, illegal.into(), None);
                }
            }
        }
    }

    /// A `repaired` that acknowledges damage goes on behind the last record that checks.
    fn salvages(&self, record: &Record) -> bool {
        let Some(session) = &self.session else { return false };
        let acknowledges = matches!(&record.kind, Kind::Repaired(repaired) if repaired.saved_as.is_none());
        acknowledges
            && record.prev == session.head.hash
            && record.seq > session.head.seq
            && session.head.seq + 1 < session.next_seq()
    }

    fn note(&mut self, offset: u64, bytes: u64, flaw: Flaw, text: Option<&[u8]>) {
        let mut turns: Vec<TurnId> =
            self.session.iter().flat_map(|session| session.unclosed().map(|turn| turn.id.clone())).collect();
        if let Some(named) = text.and_then(turn_named).filter(|turn| !turns.contains(turn)) {
            turns.push(named);
        }
        self.damage.push(Damage { line: self.line, offset, bytes, flaw, turns });
    }
}

/// The turn that an unreadable line still seems to name.
fn turn_named(bytes: &[u8]) -> Option<TurnId> {
    const KEY: &[u8] = br#","turn":""#;
    let at = memchr::memmem::find(bytes, KEY)? + KEY.len();
    let rest = bytes.get(at..)?;
    std::str::from_utf8(rest.get(..memchr::memchr(b'"', rest)?)?).ok()?.parse().ok()
}

/// The lines of a file, one at a time, in memory bounded by the longest of them.
///
/// NULs at the end of the file are counted and belong to no line: after a power cut there may be any number of them.
pub struct Lines<'f> {
    file: &'f dyn StoredFile,
    /// Bytes that were read and not handed out yet.
    buffer: Vec<u8>,
    /// Where `buffer` begins in the file.
    offset: u64,
    /// The line handed out last: a part of `buffer`, its newline included if it has one.
    handed: usize,
    ended: bool,
    nuls: u64,
    /// Where the NULs begin; a file without any is read as far as it goes, also where it grows meanwhile.
    until: Option<u64>,
}

impl<'f> Lines<'f> {
    /// Begins at `offset`.
    pub fn new(file: &'f dyn StoredFile, offset: u64) -> io::Result<Self> {
        let end = file.len()?;
        let nuls = storage::nuls_before(file, end)?.min(end.saturating_sub(offset));
        let until = (nuls > 0).then_some(end - nuls);
        Ok(Self { file, buffer: Vec::new(), offset, handed: 0, ended: true, nuls, until })
    }

    /// Goes to the next line: its offset, and whether its newline is there. NULs that follow a newline stand behind
    /// an unended line of their own, which is empty.
    pub fn advance(&mut self) -> io::Result<Option<(u64, bool)>> {
        const CHUNK: usize = 256 * 1024;
        if !self.ended {
            return Ok(None);
        }
        self.buffer.drain(..self.handed);
        self.offset += self.handed as u64;
        self.handed = 0;
        let mut searched = 0;
        loop {
            let fresh = self.buffer.get(searched..).unwrap_or_default();
            if let Some(at) = memchr::memchr(b'\n', fresh) {
                self.handed = searched + at + 1;
                return Ok(Some((self.offset, true)));
            }
            searched = self.buffer.len();
            // A long line is read in growing steps, so that it is not searched and moved over and over.
            if searched == 0 {
                // Zeroed by the system, page by page as far as they are used.
                self.buffer = vec![0; CHUNK];
            } else {
                let longer = searched + CHUNK.max(searched);
                storage::headroom(longer as u64 * LINE_COPIES)?;
                self.buffer.resize(longer, 0);
            }
            let space = self.buffer.get_mut(searched..).unwrap_or_default();
            let at = self.offset + searched as u64;
            let left = self.until.map_or(u64::MAX, |until| until.saturating_sub(at));
            let space_max = usize::try_from(left).unwrap_or(usize::MAX).min(space.len());
            let read = self.file.read_at(at, space.get_mut(..space_max).unwrap_or_default())?;
            self.buffer.truncate(searched + read);
            if read == 0 {
                self.handed = searched;
                self.ended = false;
                return Ok((searched > 0 || self.nuls > 0).then_some((self.offset, false)));
            }
        }
    }

    /// The line, without its newline.
    pub fn line(&self) -> &[u8] {
        self.buffer.get(..self.handed - usize::from(self.ended && self.handed > 0)).unwrap_or_default()
    }

    /// How many NULs stand at the end of the file, behind an unended line.
    pub fn nuls(&self) -> u64 {
        self.nuls
    }
}

/// How many times a long line is held at once while it is read, decoded and taken.
pub const LINE_COPIES: u64 = 6;
