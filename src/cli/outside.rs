//! What a command gets from outside: the disk, the two streams, the time, fresh ids, and whether signals reach it.
//!
//! A process has the real ones. Whoever runs commands inside another program, as the crash tests do, gives others;
//! the commands cannot tell the difference.

use crate::record::At;
use crate::storage::{FileStorage, Storage};
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex};

/// The outside of a command.
#[derive(Clone)]
pub struct Outside {
    /// The disk.
    pub storage: Arc<dyn Storage>,
    /// Where answers and notes go.
    pub streams: Streams,
    /// The time.
    pub now: fn() -> At,
    /// A fresh id, of a turn or a journal.
    pub fresh_id: fn() -> String,
    /// Whether signals that ask the process to end are the command's to handle.
    pub signals: Signalled,
}

/// Who handles signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signalled {
    /// The command.
    Command,
    /// The program that it runs in.
    Host,
}

/// The two streams. Clones write to the same places.
#[derive(Clone)]
pub struct Streams {
    out: Arc<Mutex<dyn Write + Send>>,
    err: Arc<Mutex<dyn Write + Send>>,
    out_is_terminal: bool,
    err_is_terminal: bool,
}

impl Outside {
    /// The outside of a process of its own.
    pub fn process() -> Self {
        Self {
            storage: Arc::new(FileStorage),
            streams: Streams::process(),
            now: || At::from_micros(chrono::Utc::now().timestamp_micros()),
            fresh_id: || uuid::Uuid::now_v7().to_string(),
            signals: Signalled::Command,
        }
    }
}

impl Streams {
    /// Streams that nobody sits in front of.
    #[cfg(test)]
    pub fn new(out: Arc<Mutex<dyn Write + Send>>, err: Arc<Mutex<dyn Write + Send>>) -> Self {
        Self { out, err, out_is_terminal: false, err_is_terminal: false }
    }

    /// Those of the process.
    fn process() -> Self {
        let (out, err) = (io::stdout(), io::stderr());
        let (out_is_terminal, err_is_terminal) = (out.is_terminal(), err.is_terminal());
        Self {
            out: Arc::new(Mutex::new(out)),
            err: Arc::new(Mutex::new(err)),
            out_is_terminal,
            err_is_terminal,
        }
    }

    /// Whether stdout is a terminal.
    pub fn out_is_terminal(&self) -> bool {
        self.out_is_terminal
    }

    /// Whether stderr is a terminal.
    pub fn err_is_terminal(&self) -> bool {
        self.err_is_terminal
    }

    /// Writes to stdout and hands it on.
    pub fn out(&self, bytes: &[u8]) -> io::Result<()> {
        write(&self.out, bytes)
    }

    /// Writes to stderr.
    pub fn err(&self, bytes: &[u8]) -> io::Result<()> {
        write(&self.err, bytes)
    }
}

fn write(stream: &Mutex<dyn Write + Send>, bytes: &[u8]) -> io::Result<()> {
    let mut stream = stream.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    stream.write_all(bytes)?;
    stream.flush()
}
