//! Records that are about to be written, or that would be: encoded, checked against the state, and folded into it.
//!
//! Pure. The journal writes the bytes of a draft; a dry run shows them. Both go through here, so what a plan
//! promises is what is written.

use crate::chain;
use crate::record::{At, Hash, Kind, Opened, Record};
use crate::turn::{Illegal, Mark, Retain, Session};
use std::sync::Arc;

/// The records of unclosed turns with their bodies, by seq.
#[derive(Debug, Clone, Default)]
pub struct History {
    records: Vec<(u64, Arc<Record>)>,
}

impl History {
    /// The record of this seq.
    pub fn get(&self, seq: u64) -> Option<&Record> {
        let index = self.records.binary_search_by_key(&seq, |(_, record)| record.seq).ok()?;
        self.records.get(index).map(|(_, record)| record.as_ref())
    }

    /// Adds the next record, whose line begins at `offset`.
    pub fn push(&mut self, offset: u64, record: Record) {
        self.records.push((offset, Arc::new(record)));
    }

    /// The records with the offsets of their lines, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &Record)> {
        self.records.iter().map(|(offset, record)| (*offset, record.as_ref()))
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// Why a record was not drafted.
#[derive(Debug, thiserror::Error)]
pub enum DraftError {
    /// The record does not fit the state.
    #[error(transparent)]
    Illegal(#[from] Illegal),
    /// The line would be longer than a line may be.
    #[error("the record would be {bytes} bytes long, more than the {max} that a line may have")]
    TooLong {
        /// Its length.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// A body nests too deeply, or cannot be read back.
    #[error("the record would not be readable: {0}")]
    Unreadable(#[from] chain::Fault),
}

/// Records in the making, behind the newest one of a session.
#[derive(Debug, Clone)]
pub struct Draft {
    /// The state with everything drafted so far.
    pub session: Session,
    /// The records with everything drafted so far.
    pub history: History,
    /// The time that the records carry.
    pub at: At,
    /// The encoded lines, each with its newline.
    pub bytes: Vec<u8>,
    offset: u64,
    line_bytes_max: u64,
}

impl Draft {
    /// Begins a draft whose first line will stand at `offset`, the records written at the time `at`.
    pub fn new(session: Session, history: History, at: At, offset: u64, line_bytes_max: u64) -> Self {
        Self { session, history, at, bytes: Vec::new(), offset, line_bytes_max }
    }

    /// Begins a draft with a genesis: the first line of a journal.
    pub fn genesis(opened: Opened, at: At, line_bytes_max: u64) -> Result<Self, DraftError> {
        let id = opened.session.clone();
        let (mut line, _) = chain::encode(0, &at, &opened.into(), 0, &Hash::none());
        let record = chain::decode(&line)?;
        line.push(b'\n');
        let session = Session::begin(id, &record, Retain::Unclosed);
        let offset = line.len() as u64;
        Ok(Self { session, history: History::default(), at, bytes: line, offset, line_bytes_max })
    }

    /// Encodes one more record and folds it into the state.
    ///
    /// What was encoded is decoded again and has to be the same: a line that could not be read back is never
    /// written.
    pub fn push(&mut self, kind: impl Into<Kind>) -> Result<Mark, DraftError> {
        let kind = kind.into();
        let base = self.session.base_after(&kind, self.offset);
        let (line, _) = chain::encode(self.next_seq(), &self.at, &kind, base, &self.session.head.hash);
        let bytes = line.len() as u64;
        if bytes > self.line_bytes_max {
            return Err(DraftError::TooLong { bytes, max: self.line_bytes_max });
        }
        let record = chain::decode(&line)?;
        self.session.apply(&record, self.offset)?;
        self.history.push(self.offset, record);
        self.offset += bytes + 1;
        self.bytes.extend_from_slice(&line);
        self.bytes.push(b'\n');
        Ok(self.session.head.clone())
    }

    /// The seq that the next record gets.
    pub fn next_seq(&self) -> u64 {
        self.session.next_seq()
    }

    /// Offset behind the last drafted line.
    pub fn end(&self) -> u64 {
        self.offset
    }
}
