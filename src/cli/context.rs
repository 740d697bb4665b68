//! What every command starts from: state root, policy, time, processes, signals, and the two streams.

use super::args::{Global, OwnerArgs, OwnerPid, UsesPolicy};
use super::error::{BAD_POLICY_HINT, Exit, Failure, chain};
use super::output::Output;
use super::outside::{Outside, Signalled};
use crate::journal::{self, Journal, Loaded, Reach, Setting};
use crate::json::Raw;
use crate::lock::Clock;
use crate::owner::{self, Here, Liveness, OwnerError};
use crate::paths::{self, Root};
use crate::policy::Policy;
use crate::record::{At, Owner};
use crate::storage::{self, ItemKind, Storage};
use crate::turn::decide::{Now, Sighting};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The surroundings of one command.
pub struct Context {
    /// The disk.
    pub storage: Arc<dyn Storage>,
    /// The state root.
    pub root: Root,
    /// The state root as the user named it, where it was named: a CMD that is started needs it too.
    pub root_given: Option<PathBuf>,
    /// The policy in force now.
    pub policy: Policy,
    /// Its file, where it was named.
    pub policy_given: Option<PathBuf>,
    /// The two streams.
    pub out: Output,
    clock: StoppableClock,
    wait: Duration,
    /// How long a line of a journal may be.
    pub line_bytes_max: u64,
    sight: Box<dyn Fn(&Owner) -> Sighting + Send + Sync>,
    signals: Signals,
    outside: Outside,
}

/// Signals that ask this process to end, remembered instead of obeyed at once.
#[derive(Clone, Default)]
struct Signals {
    came: Arc<AtomicUsize>,
}

struct StoppableClock {
    started: Instant,
    signals: Signals,
}

impl Clock for StoppableClock {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }
    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
    fn stopped(&self) -> bool {
        self.signals.came.load(Ordering::SeqCst) != 0
    }
}

impl Context {
    /// Reads the environment; touches no journal and writes nothing.
    pub fn new(global: &Global, uses: UsesPolicy, outside: &Outside, out: Output) -> Result<Self, Failure> {
        let root = Root::new(root_path(global.root.as_deref())?);
        let policy = match (policy(global.policy.as_deref(), &root, outside.storage.as_ref()), uses) {
            (Ok(policy), _) => policy,
            // A look that the system refuses may succeed the next time.
            (Err(failure), _) if failure.exit != Exit::Usage => return Err(failure),
            (Err(failure), UsesPolicy::ToDecide) => {
                return Err(Failure { hint: BAD_POLICY_HINT.to_owned(), ..failure });
            }
            (Err(failure), UsesPolicy::ToShow) => {
                out.note(&format!("{}; until that is mended every call counts as never", failure.message));
                Policy::unreadable()
            }
        };
        let signals = Signals::default();
        if outside.signals == Signalled::Command {
            // A size limit is an error to be told, not a death: a handler, since ignoring would be inherited.
            signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)))
                .map_err(Failure::unexpected)?;
        }
        Ok(Self {
            storage: Arc::clone(&outside.storage),
            root,
            root_given: global.root.clone(),
            policy,
            policy_given: global.policy.as_deref().and_then(|path| std::path::absolute(path).ok()),
            out,
            clock: StoppableClock { started: Instant::now(), signals: signals.clone() },
            wait: Duration::from_secs_f64(global.wait),
            line_bytes_max: global.max_record,
            sight: Box::new(sight(Here::read())),
            signals,
            outside: outside.clone(),
        })
    }

    /// From now on TERM, INT and HUP end the command before its next write and not in the middle of one.
    ///
    /// Called behind the last read of stdin, which they must be able to end.
    pub fn arm(&self) -> Result<(), Failure> {
        if self.outside.signals == Signalled::Host {
            return Ok(());
        }
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP]
        {
            let number = usize::try_from(signal).unwrap_or(0);
            signal_hook::flag::register_usize(signal, Arc::clone(&self.signals.came), number)
                .map_err(Failure::unexpected)?;
        }
        Ok(())
    }

    /// The signal that asked this process to end, if one came since [`Context::arm`].
    pub fn signal(&self) -> Option<i32> {
        match self.signals.came.load(Ordering::SeqCst) {
            0 => None,
            signal => i32::try_from(signal).ok(),
        }
    }

    /// What opening and reading journals needs.
    pub fn setting<'a>(&'a self, signal: &'a dyn Fn() -> Option<i32>) -> Setting<'a> {
        Setting {
            storage: self.storage.as_ref(),
            root: &self.root,
            clock: &self.clock,
            wait: self.wait,
            line_bytes_max: self.line_bytes_max,
            signal,
        }
    }

    /// The same, waiting for the lock as long as it takes.
    pub fn patient_setting<'a>(&'a self, signal: &'a dyn Fn() -> Option<i32>) -> Setting<'a> {
        Setting { wait: Duration::MAX, ..self.setting(signal) }
    }

    /// Reads a session's journal without a lock.
    pub fn read(&self, id: &str, reach: Reach) -> Result<Loaded, Failure> {
        let path = self.root.journal(id)?;
        self.root.refuse_links(self.storage.as_ref())?;
        paths::refuse_link(self.storage.as_ref(), &path)?;
        if !self.has_session(id) {
            self.root.check_absent(self.storage.as_ref(), id)?;
            return Err(journal::JournalError::NoSession {
                id: id.to_owned(),
                root: self.root.path().to_owned(),
            }
            .into());
        }
        self.read_at(&path, reach)
    }

    /// Reads a journal where it is. Inside the root it must have the name that its genesis gives it.
    pub fn read_at(&self, path: &Path, reach: Reach) -> Result<Loaded, Failure> {
        let loaded = journal::read(self.setting(&|| None), path, reach)?;
        let is_in_root = path.parent() == Some(&self.root.sessions_dir());
        let named = loaded.session.as_ref().filter(|_| is_in_root && loaded.other_format.is_none());
        if let Some(session) = named
            && self.root.journal(&session.id).ok().as_deref() != Some(path)
        {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let asked = paths::session_id(&name).unwrap_or_else(|| name.into_owned());
            let (path, found) = (path.to_owned(), session.id.clone());
            return Err(journal::JournalError::OtherSession { path, found, asked }.into());
        }
        Ok(loaded)
    }

    /// Opens a session's journal for writing.
    pub fn open<'a>(&'a self, id: &str, signal: &'a dyn Fn() -> Option<i32>) -> Result<Journal<'a>, Failure> {
        Ok(Journal::open(self.setting(signal), id)?)
    }

    /// The time.
    pub fn at(&self) -> At {
        (self.outside.now)()
    }

    /// A fresh id.
    pub fn fresh_id(&self) -> String {
        (self.outside.fresh_id)()
    }

    /// Whether the state root has a journal of this session.
    pub fn has_session(&self, id: &str) -> bool {
        self.root.journal(id).is_ok_and(|path| self.storage.inspect(&path).is_ok())
    }

    /// What a path leads to, links followed.
    pub fn kind_of(&self, path: &Path) -> std::io::Result<ItemKind> {
        let real = self.storage.resolve(path)?;
        Ok(self.storage.inspect(&real)?.kind)
    }

    /// How it stands with a process.
    pub fn look(&self, owner: &Owner) -> Sighting {
        (self.sight)(owner)
    }

    /// What is true at that time and stands in no record.
    pub fn now(&self, at: At) -> Now<'_> {
        Now { at, policy: &self.policy, look: self.sight.as_ref() }
    }

    /// Who will hold a turn: CMD (this process becomes it), the process that is named, or the parent.
    pub fn owner(&self, args: &OwnerArgs, with_cmd: WithCmd) -> Result<Option<Owner>, Failure> {
        let found = match (args.owner_pid, with_cmd) {
            (Some(OwnerPid::Nobody), _) => return Ok(None),
            (Some(OwnerPid::Pid(pid)), _) => owner::process(pid),
            (None, WithCmd::Yes) => owner::this_process(),
            (None, WithCmd::No) => owner::parent().inspect(|parent| self.warn_of_init(parent)),
        };
        found.map(Some).map_err(|error| no_owner(&error))
    }

    /// An orphan has process 1 for a parent. In a container that may be the driver itself, so nothing is refused.
    fn warn_of_init(&self, parent: &Owner) {
        if parent.pid == 1 {
            self.out.note(&format!(
                "the parent process is pid 1 ({}), which owns the turn now and never goes: where that is not the \
                 driver, name it by --owner-pid",
                parent.cmd
            ));
        }
    }

    /// The parent must still be the one that was read at the start: a subshell may be gone by now.
    pub fn check_parent(
        &self,
        args: &OwnerArgs,
        with_cmd: WithCmd,
        owner: Option<&Owner>,
    ) -> Result<(), Failure> {
        if args.owner_pid.is_some() || with_cmd == WithCmd::Yes {
            return Ok(());
        }
        let same = match (owner, owner::parent()) {
            (Some(before), Ok(now)) => owner::same(before, &now),
            (_, Err(error @ OwnerError::Read { .. })) => return Err(no_owner(&error)),
            (None, Ok(_)) | (_, Err(_)) => false,
        };
        if same {
            return Ok(());
        }
        Err(Failure::usage("owner_gone", "the parent process, which would own the turn, is gone already")
            .hint(OWNER_HINT))
    }
}

/// Why a process cannot hold a turn; a look that failed says nothing against it.
fn no_owner(error: &OwnerError) -> Failure {
    match error {
        OwnerError::Read { .. } => Failure::io(chain(error)),
        OwnerError::NoProcess { .. }
        | OwnerError::NoParent
        | OwnerError::ForeignProc { .. }
        | OwnerError::Odd { .. } => Failure::usage("no_owner", chain(error)).hint(OWNER_HINT),
    }
}

/// A file that the user named could not be read: a bad name is his, a failing system is not.
fn unreadable(kind: &'static str, what: &str, path: &Path, error: &std::io::Error) -> Failure {
    use std::io::ErrorKind as Kind;
    let of_the_user = matches!(
        error.kind(),
        Kind::NotFound
            | Kind::NotADirectory
            | Kind::IsADirectory
            | Kind::PermissionDenied
            | Kind::InvalidFilename
    );
    let message = format!("could not read {what}{}: {error}", path.display());
    if of_the_user {
        Failure::usage(kind, message).hint("nothing was written; give a file that can be read")
    } else {
        Failure::io(message)
    }
}

/// Looks for processes from here.
fn sight(here: Result<Here, OwnerError>) -> impl Fn(&Owner) -> Sighting {
    move |owner| match &here {
        Ok(here) => match here.liveness(owner) {
            Liveness::Alive => Sighting::Alive,
            Liveness::Gone => Sighting::Gone,
            Liveness::Elsewhere => Sighting::Elsewhere,
        },
        // A /proc of another pid namespace: whoever it shows, we cannot look for anybody.
        Err(OwnerError::ForeignProc { .. }) => Sighting::Elsewhere,
        // The look itself failed. Nobody is called gone for that, and no lease counted.
        Err(_) => Sighting::Alive,
    }
}

/// What to do where the parent is no good owner.
pub const OWNER_HINT: &str = "subshells, `sh -c` and make have short lives: give --owner-pid $$, or let turnkeep become the driver with -- CMD";

/// Whether the process becomes a CMD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithCmd {
    /// It does.
    Yes,
    /// It does not.
    No,
}

impl WithCmd {
    /// From the words of a CMD.
    pub fn of(cmd: &[std::ffi::OsString]) -> Self {
        if cmd.is_empty() { Self::No } else { Self::Yes }
    }
}

/// How many times the longest record may be read for one: a stream of events, or entries that become many.
const READ_PER_RECORD: u64 = 4;

/// Reads what FILE or `-` names, as text; bytes that are not UTF-8 become U+FFFD, and a note says so.
///
/// A byte order mark in front of JSON is no part of it; in front of text it stays.
pub fn read_file(context: &Context, file: &Path) -> Result<String, Failure> {
    let bytes_max = context.line_bytes_max.max(crate::chain::LINE_BYTES_MAX).saturating_mul(READ_PER_RECORD);
    let limit = bytes_max.saturating_add(1);
    let read = if file.as_os_str() == "-" {
        read_at_most(std::io::stdin().lock(), limit)
    } else {
        std::fs::File::open(file).and_then(|content| read_at_most(content, limit))
    };
    let bytes = read.map_err(|error| {
        let kind = if error.kind() == std::io::ErrorKind::NotFound { "no_file" } else { "unreadable_file" };
        unreadable(kind, "", file, &error)
    })?;
    if bytes.len() as u64 > bytes_max {
        let text = format!("{} has more than {bytes_max} bytes, which no record can come of", file.display());
        return Err(
            Failure::usage("too_long", text).hint("nothing was written; many entries may be given in parts")
        );
    }
    let text = String::from_utf8(bytes).unwrap_or_else(|error| {
        let at = error.utf8_error().valid_up_to();
        let shown = file.display();
        context
            .out
            .note(&format!("{shown} is not UTF-8 from byte {at} on: U+FFFD stands in place of what is not"));
        String::from_utf8_lossy(error.as_bytes()).into_owned()
    });
    let behind_mark = text.strip_prefix('\u{feff}').filter(|rest| rest.trim_start().starts_with(['{', '[']));
    Ok(behind_mark.map(str::to_owned).unwrap_or(text))
}

/// Reads a JSON option.
pub fn json_option(name: &str, text: &str) -> Result<Raw, Failure> {
    Raw::parse(text).map_err(|error| {
        let failure = Failure::from(error);
        Failure { message: format!("{name}: {}", failure.message), ..failure }
    })
}

/// A value that may be JSON, and is text otherwise: receipts.
pub fn json_or_text(text: &str) -> Result<Raw, Failure> {
    Ok(Raw::structured_or_text(text)?)
}

/// Milliseconds of a number of seconds.
pub fn milliseconds(seconds: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(seconds).as_millis()).unwrap_or(u64::MAX)
}

fn root_path(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let from_env = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let path = match given {
        Some(path) if !path.as_os_str().is_empty() => path.to_owned(),
        _ => match (from_env("XDG_STATE_HOME").filter(|path| path.is_absolute()), from_env("HOME")) {
            (Some(state), _) => state.join("turnkeep"),
            (None, Some(home)) => home.join(".local/state/turnkeep"),
            (None, None) => {
                return Err(Failure::usage(
                    "no_root",
                    "there is no state root: no --root, TURNKEEP_ROOT or HOME",
                )
                .hint("name the folder that is to hold everything with --root or TURNKEEP_ROOT"));
            }
        },
    };
    std::path::absolute(&path).map_err(|error| {
        Failure::usage("bad_root", format!("{}: {error}", path.display())).hint(ABSOLUTE_HINT)
    })
}

const ABSOLUTE_HINT: &str = "give it as an absolute path";

/// A file as an absolute path, and spelled as a record can name it.
pub fn nameable(path: &Path) -> Result<(PathBuf, String), Failure> {
    let bad = |text: String| Failure::usage("bad_path", text);
    let path = std::path::absolute(path)
        .map_err(|error| bad(format!("{}: {error}", path.display())).hint(ABSOLUTE_HINT))?;
    let Some(spelled) = path.to_str().map(str::to_owned) else {
        return Err(bad(format!("{} is not UTF-8, and a record has to name it", path.display()))
            .hint("give the file a name that is UTF-8; nothing was written"));
    };
    Ok((path, spelled))
}

/// Longest policy file, in bytes.
const POLICY_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// What may have no end, up to a bound.
fn read_at_most(source: impl Read, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn policy(given: Option<&Path>, root: &Root, storage: &dyn Storage) -> Result<Policy, Failure> {
    let default = root.policy_file();
    let (path, named) = match given {
        Some(path) if !path.as_os_str().is_empty() => (path, true),
        _ => (default.as_path(), false),
    };
    // What a person names may be a pipe, or have no end.
    let read = if named {
        std::fs::File::open(path).and_then(|content| read_at_most(content, POLICY_BYTES_MAX + 1))
    } else {
        storage::read_whole(storage, path)
    };
    match read {
        Ok(bytes) if bytes.len() as u64 > POLICY_BYTES_MAX => Err(Failure::usage(
            "bad_policy",
            format!("the policy {} has more than {POLICY_BYTES_MAX} bytes, which none needs", path.display()),
        )
        .hint(BAD_POLICY_HINT)),
        Ok(bytes) => Ok(Policy::parse(&bytes, &path.display().to_string())?),
        Err(error)
            if !named
                && matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) =>
        {
            Ok(Policy::built_in())
        }
        Err(error) => Err(unreadable("bad_policy", "the policy ", path, &error)),
    }
}
