//! One pass over the bytes of a journal: decoded on two cores, folded in order, nothing kept but the state.
//!
//! While one batch of lines is folded, the next one is decoded. Memory is bounded by two batches, each of them at
//! most as long as twice the longest line, and by the turns. NULs at the end of the file are counted and not held.

use crate::chain::{self, Fault};
use crate::journal::load::{Damage, Follower, LINE_COPIES};
use crate::record::{Hash, Kind, Record, Repaired};
use crate::scan::Tail;
use crate::storage::{self, StoredFile};
use crate::turn::Retain;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are read at once, unless a line is longer.
const BATCH_BYTES: u64 = 1024 * 1024;
/// Lines of a batch at most: a decoded line takes more memory than a short one has bytes.
const BATCH_LINES: usize = 4 * 1024;
/// Lines that a core takes at once.
const SHARE_LINES: usize = 32;
/// Shorter batches are not worth a second core. Longer ones hold one long line, which one core decodes anyway: its
/// memory was asked for, and a second thread with a heap of its own could not be held to the answer.
const SHARED_BYTES: Range<u64> = 64 * 1024..2 * BATCH_BYTES;

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
    let nuls = storage::nuls_before(file, end)?;
    let mut batches = Batches::new(file, end - nuls);
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
                progress(batch.offset + batch.span.end as u64);
            }
        });
        if passed.follower.other_format.is_some() {
            return Ok(passed);
        }
        waiting = Some((batch, decoded));
    }
    if let Some((batch, decoded)) = waiting {
        passed.fold(&batch, decoded, wanted);
    }
    if passed.follower.other_format.is_none() {
        passed.fold_tail(&batches, nuls, wanted);
    }
    progress(end);
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
    }

    fn fold_tail(&mut self, batches: &Batches<'_>, nuls: u64, wanted: &[(u64, Hash)]) {
        let (offset, rest) = batches.rest();
        if rest.is_empty() && nuls == 0 {
            return;
        }
        self.tail = self.follower.take_tail(offset, rest, nuls);
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
    if !SHARED_BYTES.contains(&(batch.span.len() as u64)) {
        first();
        return in_order(share(batch, &cursor));
    }
    let shares = std::thread::scope(|scope| {
        // Where the system gives no thread, this one does all of it.
        let helper = std::thread::Builder::new().spawn_scoped(scope, || share(batch, &cursor));
        first();
        let mut shares = share(batch, &cursor);
        match helper.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(more)) => shares.extend(more),
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => {}
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

/// Some whole lines.
struct Batch {
    /// Where `bytes` begin in the file.
    offset: u64,
    bytes: Arc<Vec<u8>>,
    /// The whole lines, without their newlines.
    lines: Vec<Range<usize>>,
    /// From the first of them to behind the newline of the last.
    span: Range<usize>,
}

impl Batch {
    fn line(&self, range: &Range<usize>) -> (u64, &[u8]) {
        (self.offset + range.start as u64, self.bytes.get(range.clone()).unwrap_or_default())
    }
}

struct Batches<'f> {
    file: &'f dyn StoredFile,
    /// Where to read on.
    at: u64,
    end: u64,
    /// What was read last.
    bytes: Arc<Vec<u8>>,
    /// How much of it was handed out in batches.
    handed: usize,
}

impl<'f> Batches<'f> {
    fn new(file: &'f dyn StoredFile, end: u64) -> Self {
        Self { file, at: 0, end, bytes: Arc::default(), handed: 0 }
    }

    fn next(&mut self) -> io::Result<Option<Batch>> {
        if let Some(batch) = self.batch() {
            return Ok(Some(batch));
        }
        let carry = self.bytes.get(self.handed..).unwrap_or_default();
        storage::headroom(carry.len() as u64)?;
        let mut bytes = carry.to_vec();
        (self.bytes, self.handed) = (Arc::default(), 0);
        loop {
            let searched = bytes.len();
            // A long line is read in growing steps, so that it is not searched and moved over and over.
            let step = BATCH_BYTES.max(searched as u64).min(self.end - self.at);
            if step > BATCH_BYTES {
                storage::headroom((searched as u64 + step) * LINE_COPIES)?;
            }
            bytes.resize(searched + usize::try_from(step).unwrap_or(0), 0);
            let read = self.file.read_at(self.at, bytes.get_mut(searched..).unwrap_or_default())?;
            bytes.truncate(searched + read);
            self.at += read as u64;
            let whole = memchr::memchr(b'\n', bytes.get(searched..).unwrap_or_default()).is_some();
            if read == 0 || whole {
                self.bytes = Arc::new(bytes);
                return Ok(self.batch());
            }
        }
    }

    /// Lines that are read already.
    fn batch(&mut self) -> Option<Batch> {
        let unread = self.bytes.get(self.handed..).unwrap_or_default();
        let mut from = self.handed;
        let lines: Vec<Range<usize>> = memchr::memchr_iter(b'\n', unread)
            .take(BATCH_LINES)
            .map(|at| std::mem::replace(&mut from, self.handed + at + 1)..self.handed + at)
            .collect();
        let span = std::mem::replace(&mut self.handed, from)..from;
        let offset = self.at - self.bytes.len() as u64;
        (!lines.is_empty()).then(|| Batch { offset, bytes: self.bytes.clone(), lines, span })
    }

    /// What stands behind the last newline, once every batch was handed out, and where it begins.
    fn rest(&self) -> (u64, &[u8]) {
        let rest = self.bytes.get(self.handed..).unwrap_or_default();
        (self.at - rest.len() as u64, rest)
    }
}
