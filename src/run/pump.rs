//! Moves bytes and signals between us and a running command: one thread, one `poll`, nothing that blocks.
//!
//! Each chunk is recorded (digest, spool, kept part) before it is shown. A slow reader of ours slows CMD down and
//! never grows memory; once CMD has ended, what is left in its pipes is recorded at once and shown as it can be.

use super::keep::Keep;
use super::spool::Spool;
use super::{Command, Echo, OurEnds};
use crate::json;
use crate::record::Hash;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest, Sha256};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

/// Read from CMD at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// Written to our reader at once: a pipe that polls as writable takes this much without blocking (`PIPE_BUF`).
const SHOW_BYTES: usize = 4096;
/// Between two tries where `poll` itself fails, as it does for want of memory.
const POLL_PAUSE: Duration = Duration::from_millis(10);

/// Something for stdout and for stderr.
#[derive(Debug)]
pub(super) struct Pair<T> {
    pub(super) out: T,
    pub(super) err: T,
}

#[derive(Debug, Clone, Copy)]
enum Side {
    Out,
    Err,
}

impl<T> Pair<T> {
    fn get(&self, side: Side) -> &T {
        match side {
            Side::Out => &self.out,
            Side::Err => &self.err,
        }
    }
    fn get_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::Out => &mut self.out,
            Side::Err => &mut self.err,
        }
    }
}

/// What is left when CMD has ended and its output is shown.
pub(super) struct Pumped {
    pub(super) recorded: Pair<Recorder>,
    pub(super) duration: Duration,
    pub(super) echo_error: Option<String>,
}

/// Records one stream.
pub(super) struct Recorder {
    hasher: Sha256,
    spool: Option<Spool>,
    pub(super) keep: Keep,
}

impl Recorder {
    fn record(&mut self, chunk: &[u8]) {
        self.hasher.update(chunk);
        if let Some(spool) = &mut self.spool {
            spool.write(chunk);
        }
        self.keep.push(chunk);
    }
}

/// SHA-256 of all bytes of stdout, then of stderr, and what went wrong with the spools.
pub(super) fn digest(recorded: Pair<Recorder>) -> (Option<Hash>, Option<String>) {
    let Pair { out, mut err } = recorded;
    let mut hasher = out.hasher;
    let complete = match (err.keep.whole(), &mut err.spool) {
        (Some(whole), _) => {
            hasher.update(&whole);
            true
        }
        (None, Some(spool)) => spool.hash(&mut hasher, err.keep.bytes()),
        (None, None) => false,
    };
    let hash = complete.then(|| json::hex(&hasher.finalize())).and_then(|hex| hex.parse().ok());
    (hash, out.spool.and_then(Spool::error).or_else(|| err.spool.and_then(Spool::error)))
}

type Signals = SignalDelivery<UnixStream, WithRawSiginfo>;

/// Catches the signals that are passed on, but those that are ignored: CMD has to inherit that.
///
/// CHLD is caught too, since where it is ignored (which is inherited) the system reaps CMD and forgets its status.
pub(super) fn watch_signals() -> io::Result<Signals> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let passed_on = [SIGTERM, SIGINT, SIGHUP].into_iter().filter(|signal| !is_ignored(&status, *signal));
    let (read, write) = UnixStream::pair()?;
    SignalDelivery::with_pipe(read, write, WithRawSiginfo, passed_on.chain([SIGCHLD]))
}

/// Whether the text of `/proc/PID/status` says that a signal is ignored.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// The signal to pass on, if it is one. An INT that the kernel sent was typed at the terminal and went to the whole
/// foreground group, CMD among it; a second one means "stop at once" to many programs.
fn passed_on(signal: i32, code: i32) -> Option<Signal> {
    match signal {
        SIGTERM => Some(Signal::TERM),
        SIGHUP => Some(Signal::HUP),
        SIGINT if code <= 0 => Some(Signal::INT),
        _ => None,
    }
}

/// One of CMD's output pipes.
struct Stream {
    pipe: Option<PipeReader>,
    recorder: Recorder,
    shown_on: Option<Side>,
}

/// One of our own outputs.
struct Sink<'a> {
    fd: BorrowedFd<'a>,
    pending: Vec<u8>,
    written: usize,
    broken: bool,
    error: Option<String>,
}

impl Sink<'_> {
    fn is_pending(&self) -> bool {
        self.written < self.pending.len()
    }

    fn show(&mut self, chunk: &[u8]) {
        if !self.broken {
            self.pending.drain(..self.written);
            self.written = 0;
            self.pending.extend_from_slice(chunk);
        }
    }

    fn write_some(&mut self) {
        let (_, left) = self.pending.split_at(self.written);
        let (piece, _) = left.split_at(left.len().min(SHOW_BYTES));
        match rustix::io::write(self.fd, piece) {
            Ok(written) => self.written += written,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => {
                self.broken = true;
                self.written = self.pending.len();
                // A reader that went away is not trouble.
                self.error = (error != Errno::PIPE).then(|| io::Error::from(error).to_string());
            }
        }
    }
}

/// What `poll` waits for.
#[derive(Debug, Clone, Copy)]
enum Source {
    Signals,
    Stdin,
    Stream(Side),
    Sink(Side),
    End,
}

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// CMD runs.
    Running,
    /// CMD has ended; what it said is being shown.
    Showing,
    /// A signal came behind CMD's end: show what our reader takes at once.
    Hurrying,
}

pub(super) struct Pump<'a> {
    stdin: Option<PipeWriter>,
    stdin_left: &'a [u8],
    streams: Pair<Stream>,
    sinks: Pair<Sink<'a>>,
    signals: Signals,
    /// Hangs up when CMD has ended.
    end: PipeReader,
    phase: Phase,
    chunk: Vec<u8>,
}

impl<'a> Pump<'a> {
    pub(super) fn new(
        command: &Command<'a>,
        ours: OurEnds,
        shown: &Pair<BorrowedFd<'a>>,
        spool: Pair<Option<Spool>>,
        signals: Signals,
        end: PipeReader,
    ) -> Self {
        let (out_on, err_on) = match command.echo {
            Echo::Through => (Some(Side::Out), Some(Side::Err)),
            Echo::ToStderr => (Some(Side::Err), Some(Side::Err)),
            Echo::CaptureOnly => (None, Some(Side::Err)),
        };
        let stream = |pipe, spool, shown_on| {
            let keep = Keep::new(command.keep_bytes_max);
            Stream { pipe: Some(pipe), recorder: Recorder { hasher: Sha256::new(), spool, keep }, shown_on }
        };
        let sink = |fd| Sink { fd, pending: Vec::new(), written: 0, broken: false, error: None };
        Self {
            stdin: Some(ours.stdin),
            stdin_left: command.stdin,
            streams: Pair {
                out: stream(ours.stdout, spool.out, out_on),
                err: stream(ours.stderr, spool.err, err_on),
            },
            sinks: Pair { out: sink(shown.out), err: sink(shown.err) },
            signals,
            end,
            phase: Phase::Running,
            chunk: vec![0; CHUNK_BYTES],
        }
    }

    /// Works until CMD has ended and its output is recorded and shown.
    pub(super) fn run(mut self, pid: Pid) -> Pumped {
        let started = Instant::now();
        let mut duration = Duration::ZERO;
        while self.phase == Phase::Running || self.sinks.out.is_pending() || self.sinks.err.is_pending() {
            let ready = self.wait();
            if ready.is_empty() && self.phase == Phase::Hurrying {
                break;
            }
            for source in ready {
                match source {
                    Source::Signals => self.take_signals(pid),
                    Source::Stdin => self.feed(),
                    Source::Stream(side) => self.read(side),
                    Source::Sink(side) => self.sinks.get_mut(side).write_some(),
                    Source::End => {
                        duration = started.elapsed();
                        self.end();
                    }
                }
            }
        }
        Pumped {
            recorded: Pair { out: self.streams.out.recorder, err: self.streams.err.recorder },
            duration,
            echo_error: self.sinks.out.error.or(self.sinks.err.error),
        }
    }

    /// Waits until something can be done. Signals come first: one that ended CMD is not one behind its end.
    fn wait(&self) -> Vec<Source> {
        let mut wanted = vec![(Source::Signals, PollFd::new(self.signals.get_read(), PollFlags::IN))];
        if let Some(stdin) = &self.stdin {
            wanted.push((Source::Stdin, PollFd::new(stdin, PollFlags::OUT)));
        }
        for side in [Side::Out, Side::Err] {
            let stream = self.streams.get(side);
            let shown = stream.shown_on.is_none_or(|sink| !self.sinks.get(sink).is_pending());
            if let Some(pipe) = stream.pipe.as_ref().filter(|_| shown) {
                wanted.push((Source::Stream(side), PollFd::new(pipe, PollFlags::IN)));
            }
            let sink = self.sinks.get(side);
            if sink.is_pending() {
                wanted.push((Source::Sink(side), PollFd::from_borrowed_fd(sink.fd, PollFlags::OUT)));
            }
        }
        if self.phase == Phase::Running {
            wanted.push((Source::End, PollFd::new(&self.end, PollFlags::IN)));
        }
        let (sources, mut fds): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut fds, (self.phase == Phase::Hurrying).then_some(&at_once)).is_err() {
            thread::sleep(POLL_PAUSE);
            return Vec::new();
        }
        let ready = sources.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        ready.map(|(source, _)| source).collect()
    }

    fn take_signals(&mut self, pid: Pid) {
        for info in self.signals.pending() {
            match (passed_on(info.si_signo, info.si_code), self.phase) {
                // CMD is not reaped before this thread has ended, so the pid is still its own.
                (Some(signal), Phase::Running) => drop(kill_process(pid, signal)),
                (Some(_), Phase::Showing | Phase::Hurrying) => self.phase = Phase::Hurrying,
                (None, _) => {}
            }
        }
    }

    fn feed(&mut self) {
        let Some(stdin) = &self.stdin else { return };
        match rustix::io::write(stdin, self.stdin_left) {
            Ok(written) => self.stdin_left = self.stdin_left.split_at(written).1,
            Err(Errno::INTR | Errno::AGAIN) => {}
            // CMD does not want to read it.
            Err(_) => self.stdin_left = &[],
        }
        if self.stdin_left.is_empty() {
            self.stdin = None;
        }
    }

    fn read(&mut self, side: Side) {
        let stream = self.streams.get_mut(side);
        let Some(pipe) = &stream.pipe else { return };
        match rustix::io::read(pipe, &mut *self.chunk) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            Ok(0) | Err(_) => stream.pipe = None,
            Ok(read) => self.take(side, read),
        }
    }

    /// Records what was read, and only then lets it be shown.
    fn take(&mut self, side: Side, read: usize) {
        let (chunk, _) = self.chunk.split_at(read);
        let stream = self.streams.get_mut(side);
        stream.recorder.record(chunk);
        if let Some(shown_on) = stream.shown_on {
            self.sinks.get_mut(shown_on).show(chunk);
        }
    }

    fn end(&mut self) {
        self.phase = Phase::Showing;
        self.stdin = None;
        self.drain(Side::Out);
        self.drain(Side::Err);
    }

    /// Takes what is in the pipe now. Not until it is empty: a process that CMD left behind may fill it for ever.
    fn drain(&mut self, side: Side) {
        let Some(pipe) = self.streams.get_mut(side).pipe.take() else { return };
        let mut left =
            rustix::io::ioctl_fionread(&pipe).map_or(0, |bytes| usize::try_from(bytes).unwrap_or(0));
        while left > 0 {
            let (piece, _) = self.chunk.split_at_mut(left.min(CHUNK_BYTES));
            match retry_on_intr(|| rustix::io::read(pipe.as_fd(), &mut *piece)) {
                Ok(0) | Err(_) => return,
                Ok(read) => {
                    left -= read;
                    self.take(side, read);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_seen() {
        let status =
            "Name:\tx\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\nSigCgt:\tffffffffffffffff\n";
        assert_eq!(
            [1, 2, 13, 15, 64].map(|signal| is_ignored(status, signal)),
            [true, false, true, false, false]
        );
        assert!(!is_ignored("", SIGHUP));
    }

    #[test]
    fn an_interrupt_from_the_terminal_is_not_passed_on() {
        const SI_KERNEL: i32 = 0x80;
        const SI_USER: i32 = 0;
        assert_eq!(passed_on(SIGINT, SI_USER), Some(Signal::INT));
        assert_eq!(passed_on(SIGINT, SI_KERNEL), None);
        assert_eq!(passed_on(SIGHUP, SI_KERNEL), Some(Signal::HUP));
        assert_eq!(passed_on(SIGTERM, SI_USER), Some(Signal::TERM));
        assert_eq!(passed_on(SIGCHLD, SI_USER), None);
    }
}
