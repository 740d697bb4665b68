//! One pass over the bytes of a journal: decoded on two cores, folded in order, nothing kept but the state.
//!
//! While one batch of lines is folded, the next one is decoded. Memory is bounded by two batches, each of them at
//! most as long as twice the longest line, and by the turns.

use crate::chain::{self, Fault};
use crate::journal::load::{Damage, Follower};
use crate::record::{Hash, Kind, Record, Repaired};
use crate::scan::Tail;
use crate::storage::StoredFile;
use crate::turn::Retain;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are read at once, unless a line is longer.
const BATCH_BYTES: u64 = 1024 * 1024;
/// Lines that a core takes at once.
const SHARE_LINES: usize = 32;
/// Shorter batches are not worth a second core.
const SHARED_BYTES_MIN: usize = 64 * 1024;

/// What a pass found.
pub(super) struct Passed {
    /// The state and the place where the pass ended.
    pub(super) follower: Follower,
    /// What stands behind the last newline.
    pub(super) tail: Tail,
    /// How many records decode.
    pub(super) records: u64,
    /// The last record that checks: seq and hash.
    pub(super) head: Option<(u64, Hash)>,
    /// Every `repaired`, with its line and offset.
    pub(super) repaired: Vec<(u64, u64, Repaired)>,
    /// Which of the wanted records are there.
    pub(super) found: Vec<bool>,
    /// What did not check, in order, as much as is worth listing.
    pub(super) damage: Vec<Damage>,
    /// How much more did not check.
    pub(super) more: u64,
}

/// Damage that is listed one by one.
pub(super) const LISTED_MAX: usize = 10_000;

/// Reads the first `end` bytes. `wanted` are records that must be there; `progress` hears of bytes done.
pub(super) fn pass(
    file: &dyn StoredFile,
    end: u64,
    wanted: &[(u64, Hash)],
    progress: &dyn Fn(u64),
) -> io::Result<Passed> {
    let mut batches = Batches { file, at: 0, end, carry: Vec::new() };
    let mut passed = Passed {
        follower: Follower::new(Retain::Unclosed),
        tail: Tail::Clean,
        records: 0,
        head: None,
        repaired: Vec::new(),
        found: vec![false; wanted.len()],
        damage: Vec::new(),
        more: 0,
    };
    let mut waiting: Option<(Batch, Decoded)> = None;
    while let Some(batch) = batches.next()? {
        let folded = waiting.take();
        let decoded = decode(&batch, || {
            if let Some((batch, decoded)) = folded {
                passed.fold(&batch, decoded, wanted);
                progress(batch.offset + batch.bytes.len() as u64);
            }
        });
        if passed.follower.other_format.is_some() {
            return Ok(passed);
        }
        waiting = Some((batch, decoded));
    }
    if let Some((batch, decoded)) = waiting {
        passed.fold(&batch, decoded, wanted);
        progress(end);
    }
    Ok(passed)
}

impl Passed {
    fn fold(&mut self, batch: &Batch, decoded: Decoded, wanted: &[(u64, Hash)]) {
        for (range, decoded) in batch.lines.iter().zip(decoded) {
            let (offset, bytes) = batch.line(range);
            let before = self.follower.damage.len();
            if let Some(record) = self.follower.take_line(offset, bytes, decoded) {
                self.saw(offset, &record, wanted, self.follower.damage.len() == before);
            }
            if self.follower.other_format.is_some() {
                return;
            }
            self.take_damage();
        }
        let rest = batch.rest();
        if rest.is_empty() {
            return;
        }
        self.tail = self.follower.take_tail(batch.offset + batch.ended() as u64, rest);
        if let Tail::NoNewline { record, offset, .. } = self.tail.clone() {
            self.saw(offset, &record, wanted, self.follower.damage.is_empty());
        }
        self.take_damage();
    }

    fn saw(&mut self, offset: u64, record: &Record, wanted: &[(u64, Hash)], checks: bool) {
        self.records += 1;
        if checks || self.head.is_none() {
            self.head = Some((record.seq, record.hash.clone()));
        }
        for ((seq, hash), found) in wanted.iter().zip(&mut self.found) {
            *found |= *seq == record.seq && *hash == record.hash;
        }
        if let Kind::Repaired(repaired) = &record.kind {
            self.repaired.push((self.follower.line, offset, repaired.clone()));
        }
    }

    /// Taken away line by line, so that a file full of damage does not fill the memory.
    fn take_damage(&mut self) {
        for damage in self.follower.damage.drain(..) {
            if self.damage.len() < LISTED_MAX {
                self.damage.push(damage);
            } else {
                self.more += 1;
            }
        }
    }
}

type Decoded = Vec<Result<Record, Fault>>;

/// Decodes a batch on two cores; this one does `first` before it helps.
fn decode(batch: &Batch, first: impl FnOnce()) -> Decoded {
    let cursor = AtomicUsize::new(0);
    if batch.bytes.len() < SHARED_BYTES_MIN {
        first();
        return in_order(share(batch, &cursor));
    }
    let shares = std::thread::scope(|scope| {
        let helper = scope.spawn(|| share(batch, &cursor));
        first();
        let mut shares = share(batch, &cursor);
        match helper.join() {
            Ok(more) => shares.extend(more),
            Err(panic) => std::panic::resume_unwind(panic),
        }
        shares
    });
    in_order(shares)
}

fn in_order(mut shares: Vec<(usize, Decoded)>) -> Decoded {
    shares.sort_unstable_by_key(|(position, _)| *position);
    shares.into_iter().flat_map(|(_, decoded)| decoded).collect()
}

/// Takes lines as long as there are any that nobody has taken.
fn share(batch: &Batch, cursor: &AtomicUsize) -> Vec<(usize, Decoded)> {
    let mut shares = Vec::new();
    loop {
        let from = cursor.fetch_add(SHARE_LINES, Ordering::Relaxed);
        let until = (from + SHARE_LINES).min(batch.lines.len());
        let Some(lines) = batch.lines.get(from..until).filter(|lines| !lines.is_empty()) else {
            return shares;
        };
        shares.push((from, lines.iter().map(|range| chain::decode(batch.line(range).1)).collect()));
    }
}

/// Some whole lines; the last batch of a file may have a rest behind them.
struct Batch {
    offset: u64,
    bytes: Vec<u8>,
    /// The whole lines, without their newlines.
    lines: Vec<Range<usize>>,
}

impl Batch {
    fn new(offset: u64, bytes: Vec<u8>) -> Self {
        let mut from = 0;
        let lines =
            memchr::memchr_iter(b'\n', &bytes).map(|at| std::mem::replace(&mut from, at + 1)..at).collect();
        Self { offset, bytes, lines }
    }

    fn line(&self, range: &Range<usize>) -> (u64, &[u8]) {
        (self.offset + range.start as u64, self.bytes.get(range.clone()).unwrap_or_default())
    }

    fn ended(&self) -> usize {
        self.lines.last().map_or(0, |last| last.end + 1)
    }

    fn rest(&self) -> &[u8] {
        self.bytes.get(self.ended()..).unwrap_or_default()
    }
}

struct Batches<'f> {
    file: &'f dyn StoredFile,
    at: u64,
    end: u64,
    /// The beginning of a line whose end was not read yet.
    carry: Vec<u8>,
}

impl Batches<'_> {
    fn next(&mut self) -> io::Result<Option<Batch>> {
        let mut bytes = std::mem::take(&mut self.carry);
        let offset = self.at - bytes.len() as u64;
        loop {
            let searched = bytes.len();
            // A long line is read in growing steps, so that it is not searched and moved over and over.
            let step = BATCH_BYTES.max(searched as u64).min(self.end - self.at);
            if step == 0 {
                return Ok((!bytes.is_empty()).then(|| Batch::new(offset, bytes)));
            }
            bytes.resize(searched + usize::try_from(step).unwrap_or(0), 0);
            let read = self.file.read_at(self.at, bytes.get_mut(searched..).unwrap_or_default())?;
            bytes.truncate(searched + read);
            self.at += read as u64;
            if read == 0 {
                // Somebody cut it meanwhile.
                self.end = self.at;
            } else if let Some(newline) = memchr::memrchr(b'\n', bytes.get(searched..).unwrap_or_default()) {
                self.carry = bytes.split_off(searched + newline + 1);
                return Ok(Some(Batch::new(offset, bytes)));
            }
        }
    }
}
