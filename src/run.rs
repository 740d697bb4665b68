//! Runs the command of a tool or a publisher: feeds it, passes its output through while keeping it, waits for it.
//!
//! It knows nothing of journals: claiming before and recording after are the caller's. Nothing of a run is made
//! durable here; the spool files outlive a killed runner, not a power cut.
//! Invariants: every error but [`RunError::Lost`] means that CMD was not started, so all that can fail is made
//! ready before the spawn; once CMD runs, no trouble with our own output or the spool ends it.

mod keep;
mod pump;
mod spool;

#[cfg(test)]
mod tests;

pub use keep::Kept;
pub use spool::{SpoolPaths, read_spool, remove_spool};

use crate::record::Hash;
use pump::{Pair, Pump, Pumped};
use rustix::fs::{Access, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// How many bytes of each stream are kept, where a record may be long enough.
pub const KEEP_BYTES_MAX: usize = 256 * 1024;

/// How many bytes of each stream fit into one record of this length, however JSON escapes them: both at six bytes for
/// one, and what stands around them.
pub fn keep_bytes_max(line_bytes_max: u64) -> usize {
    usize::try_from(line_bytes_max / 16).unwrap_or(KEEP_BYTES_MAX).min(KEEP_BYTES_MAX)
}

/// Shortest time between two calls of `on_tick`.
const TICK_MIN: Duration = Duration::from_millis(1);

/// What is to be run, and what becomes of its output.
#[derive(Debug)]
pub struct Command<'a> {
    /// Program and arguments; the program is looked for in `PATH` as `env` does.
    pub argv: &'a [OsString],
    /// All that CMD finds on its stdin. That it does not read it is no error.
    pub stdin: &'a [u8],
    /// Environment variables to set.
    pub env_set: Vec<(String, OsString)>,
    /// Environment variables that CMD must not see.
    pub env_remove: Vec<&'a str>,
    /// What is shown of the output while it is kept.
    pub echo: Echo,
    /// Files that hold the output so far, for when the runner is killed. Their folder is there already.
    pub spool: Option<SpoolPaths>,
    /// How many bytes of each stream are kept for the answer; see [`keep_bytes_max`].
    pub keep_bytes_max: usize,
}

/// What is shown of CMD's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    /// Its stdout to our stdout, its stderr to our stderr.
    Through,
    /// Both to our stderr.
    ToStderr,
    /// Its stdout is kept and not shown, its stderr goes to our stderr.
    CaptureOnly,
}

/// How CMD ended and what it said.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Exit status, where it exited.
    pub exit: Option<i32>,
    /// Name such as `SIGKILL` of the signal that ended it.
    pub signal: Option<&'static str>,
    /// Number of that signal, for an exit of 128+n.
    pub signal_number: Option<i32>,
    /// What is kept of stdout.
    pub stdout: Kept,
    /// What is kept of stderr.
    pub stderr: Kept,
    /// Bytes of a stream were left out.
    pub truncated: bool,
    /// SHA-256 of all bytes of stdout, then all of stderr. None where stderr was longer than what is kept and
    /// was not spooled whole.
    pub output_sha256: Option<Hash>,
    /// From the start of CMD to its end.
    pub duration_ms: u64,
    /// First trouble with the spool: path and the system's words.
    pub spool_error: Option<String>,
    /// First trouble with our own stdout or stderr, in the system's words; a closed pipe is none.
    pub echo_error: Option<String>,
}

/// Why there is no [`Finished`].
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no such program (or no interpreter of the script): `env` exits 127. Not started.
    #[error("no command {program:?} found")]
    NotFound {
        /// The program as it was named.
        program: OsString,
        /// The system's words.
        source: io::Error,
    },
    /// The program is there and cannot be executed: `env` exits 126. Not started.
    #[error("command {program:?} cannot be executed")]
    NotExecutable {
        /// The program as it was named.
        program: OsString,
        /// The system's words.
        source: io::Error,
    },
    /// Not started for want of something else: processes, memory, descriptors, an empty command line.
    #[error("command not started: cannot {action}")]
    NotStarted {
        /// What did not work.
        action: &'static str,
        /// The system's words.
        source: io::Error,
    },
    /// CMD was started and how it ended cannot be told: its outcome is unknown.
    #[error("command started, but how it ended is unknown")]
    Lost {
        /// The system's words.
        source: io::Error,
    },
}

/// Runs a command to its end; `on_tick` is called about every `tick` meanwhile, on this thread.
///
/// Ends when CMD ends: what is in its pipes then is still taken, what a process it left behind says later is not.
/// TERM, INT and HUP are passed on to CMD, but those that we ignore (as under `nohup`) and an INT typed at a
/// terminal (CMD has got that one itself). From the first call on these signals no longer end this process.
/// One of them that comes after CMD's end gives up on showing output that nobody reads.
pub fn run(command: &Command<'_>, on_tick: &mut dyn FnMut(), tick: Duration) -> Result<Finished, RunError> {
    let (stdout, stderr) = (io::stdout(), io::stderr());
    // What is buffered comes before CMD's output; a failure shows again at the first echo.
    let _ = stdout.lock().flush();
    run_into(command, &Pair { out: stdout.as_fd(), err: stderr.as_fd() }, on_tick, tick)
}

/// [`run`] with other files in the place of our stdout and stderr.
fn run_into(
    command: &Command<'_>,
    shown: &Pair<BorrowedFd<'_>>,
    on_tick: &mut dyn FnMut(),
    tick: Duration,
) -> Result<Finished, RunError> {
    let failed = |action| move |source| RunError::NotStarted { action, source };
    let signals = pump::watch_signals().map_err(failed("watch signals"))?;
    let (theirs, ours) = pipes().map_err(failed("make pipes"))?;
    let (end_reader, end_writer) = io::pipe().map_err(failed("make pipes"))?;
    let spool = spool::Spool::create(command.spool.as_ref());
    let pump = Pump::new(command, ours, shown, spool, signals, end_reader);

    thread::scope(|scope| {
        let (pump_start, pump_started) = mpsc::channel::<Pid>();
        let (wait_start, wait_started) = mpsc::channel::<Pid>();
        let (done, pumped) = mpsc::channel::<Pumped>();
        thread::Builder::new()
            .spawn_scoped(scope, move || {
                if let Ok(pid) = pump_started.recv() {
                    // The receiver is there as long as this thread is not joined.
                    let _ = done.send(pump.run(pid));
                }
            })
            .map_err(failed("start a thread"))?;
        thread::Builder::new()
            .spawn_scoped(scope, move || {
                if let Ok(pid) = wait_started.recv() {
                    wait_for_end(pid);
                }
                drop(end_writer);
            })
            .map_err(failed("start a thread"))?;

        let child = spawn(command, &theirs);
        // Without our copies of CMD's ends the end of its output can be seen.
        drop(theirs);
        let mut child = child?;
        let pid = Pid::from_child(&child);
        let _ = (pump_start.send(pid), wait_start.send(pid));
        let pumped = loop {
            match pumped.recv_timeout(tick.max(TICK_MIN)) {
                Ok(pumped) => break Some(pumped),
                Err(RecvTimeoutError::Timeout) => on_tick(),
                Err(RecvTimeoutError::Disconnected) => break None,
            }
        };
        // Only here the child is reaped, behind the last signal to it: its pid cannot name another process before.
        let status = child.wait().map_err(|source| RunError::Lost { source })?;
        let pumped =
            pumped.ok_or_else(|| RunError::Lost { source: io::Error::other("output thread died") })?;
        Ok(finished(status, pumped))
    })
}

fn finished(status: ExitStatus, pumped: Pumped) -> Finished {
    let (stdout, stderr) = (pumped.recorded.out.keep.kept(), pumped.recorded.err.keep.kept());
    let duration_ms = u64::try_from(pumped.duration.as_millis()).unwrap_or(u64::MAX);
    let echo_error = pumped.echo_error;
    let (output_sha256, spool_error) = pump::digest(pumped.recorded);
    Finished {
        exit: status.code(),
        signal: status.signal().and_then(signal_name),
        signal_number: status.signal(),
        truncated: stdout.left_out > 0 || stderr.left_out > 0,
        stdout,
        stderr,
        output_sha256,
        duration_ms,
        spool_error,
        echo_error,
    }
}

/// Returns when the process has ended, and leaves it to be reaped.
fn wait_for_end(pid: Pid) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    // Any other error means that there is no such child any more, which is an end too.
    let _ = rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::Pid(pid), options));
}

/// CMD's ends of its three pipes.
struct TheirEnds {
    stdin: PipeReader,
    stdout: PipeWriter,
    stderr: PipeWriter,
}

/// Our ends, none of which ever blocks us.
struct OurEnds {
    stdin: PipeWriter,
    stdout: PipeReader,
    stderr: PipeReader,
}

fn pipes() -> io::Result<(TheirEnds, OurEnds)> {
    let (their_stdin, stdin) = io::pipe()?;
    let (stdout, their_stdout) = io::pipe()?;
    let (stderr, their_stderr) = io::pipe()?;
    for end in [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()] {
        rustix::fs::fcntl_setfl(end, rustix::fs::fcntl_getfl(end)? | OFlags::NONBLOCK)?;
    }
    let theirs = TheirEnds { stdin: their_stdin, stdout: their_stdout, stderr: their_stderr };
    Ok((theirs, OurEnds { stdin, stdout, stderr }))
}

/// Starts CMD.
fn spawn(command: &Command<'_>, theirs: &TheirEnds) -> Result<Child, RunError> {
    let empty = io::Error::new(io::ErrorKind::InvalidInput, "empty command line");
    let (program, arguments) =
        command.argv.split_first().ok_or(RunError::NotStarted { action: "run it", source: empty })?;
    let mut started = spawn_program(command, program, arguments, theirs);
    if let Err(error) = &started
        && Errno::from_io_error(error) == Some(Errno::NOEXEC)
        && let Some(script) = find(program)
    {
        // A script without `#!`: `env` and the shells give it to sh, std does not.
        let arguments: Vec<OsString> =
            [script.into_os_string()].into_iter().chain(arguments.to_vec()).collect();
        started = spawn_program(command, OsStr::new("/bin/sh"), &arguments, theirs);
    }
    started.map_err(|source| {
        let program = program.clone();
        match Errno::from_io_error(&source) {
            Some(Errno::NOENT) => RunError::NotFound { program, source },
            None | Some(Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE) => {
                RunError::NotStarted { action: "start a process", source }
            }
            Some(_) => RunError::NotExecutable { program, source },
        }
    })
}

fn spawn_program(
    command: &Command<'_>,
    program: &OsStr,
    arguments: &[OsString],
    theirs: &TheirEnds,
) -> io::Result<Child> {
    let mut child = process::Command::new(program);
    child.args(arguments);
    for name in &command.env_remove {
        child.env_remove(name);
    }
    child.envs(command.env_set.iter().map(|(name, value)| (name, value)));
    child.stdin(Stdio::from(theirs.stdin.try_clone()?));
    child.stdout(Stdio::from(theirs.stdout.try_clone()?));
    child.stderr(Stdio::from(theirs.stderr.try_clone()?));
    child.spawn()
}

/// The file that a program name stands for.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let executable = |path: &Path| path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok();
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|path| executable(path))
}

/// The name of a signal, such as `SIGKILL`.
pub fn signal_name(number: i32) -> Option<&'static str> {
    signal_hook::low_level::signal_name(number).or_else(|| rare_signal_name(number))
}

/// Names that signal-hook lacks.
#[cfg(target_os = "linux")]
fn rare_signal_name(number: i32) -> Option<&'static str> {
    const REALTIME_FIRST: i32 = 32;
    const REALTIME: [&str; 33] = [
        "SIG32", "SIG33", "SIG34", "SIG35", "SIG36", "SIG37", "SIG38", "SIG39", "SIG40", "SIG41", "SIG42",
        "SIG43", "SIG44", "SIG45", "SIG46", "SIG47", "SIG48", "SIG49", "SIG50", "SIG51", "SIG52", "SIG53",
        "SIG54", "SIG55", "SIG56", "SIG57", "SIG58", "SIG59", "SIG60", "SIG61", "SIG62", "SIG63", "SIG64",
    ];
    match number {
        16 => Some("SIGSTKFLT"),
        30 => Some("SIGPWR"),
        _ => REALTIME.get(usize::try_from(number.checked_sub(REALTIME_FIRST)?).ok()?).copied(),
    }
}

#[cfg(not(target_os = "linux"))]
fn rare_signal_name(_: i32) -> Option<&'static str> {
    None
}

/// The line that stands in the place of bytes that were left out.
struct LeftOut(u64);

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "[turnkeep: {} bytes left out]", self.0)
    }
}
