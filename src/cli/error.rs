//! From what went wrong to what a user is told: the one place that knows exit codes, kinds and hints.
//!
//! Every failure has a stable `kind`, finer than its exit code, a message (what happened, why) and a hint (what to
//! do): one without a hint does not compile. Library errors become failures here and nowhere else.

use crate::branch::Trouble;
use crate::draft::DraftError;
use crate::journal::{Damage, JournalError};
use crate::json::{Raw, RawError};
use crate::lock::LockError;
use crate::message::MessageError;
use crate::paths::{self, PathError};
use crate::policy::PolicyError;
use crate::recovery::Refusal;
use crate::tree;
use crate::treefile::TreeFileError;
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// How a command ends. The numbers are contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exit {
    /// Done, sound.
    Done,
    /// Unexpected, or could not look.
    Unexpected,
    /// Usage or bad input, nothing written.
    Usage,
    /// Damaged.
    Damaged,
    /// Busy: lock, live owner, open turn.
    Busy,
    /// Fenced.
    Fenced,
    /// Conflict.
    Conflict,
    /// Outcome unknown, may not run.
    Unknown,
    /// Not found.
    NotFound,
    /// Not durable: nothing was acknowledged.
    NotDurable,
    /// Already done, do not act again.
    AlreadyDone,
    /// Not permitted (approval).
    NotPermitted,
    /// Newer or older format.
    OtherFormat,
    /// Needs recovery (`verify` only).
    NeedsRecovery,
    /// Waiting for somebody else.
    Waiting,
    /// Ended by a signal.
    Signal(u8),
    /// The exit status of a command that was run.
    OfCommand(u8),
}

impl Exit {
    /// Every code of the contract but 128+n, in order.
    pub const ALL: [Self; 15] = [
        Self::Done,
        Self::Unexpected,
        Self::Usage,
        Self::Damaged,
        Self::Busy,
        Self::Fenced,
        Self::Conflict,
        Self::Unknown,
        Self::NotFound,
        Self::NotDurable,
        Self::AlreadyDone,
        Self::NotPermitted,
        Self::OtherFormat,
        Self::NeedsRecovery,
        Self::Waiting,
    ];

    /// The number.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Unexpected => 1,
            Self::Usage => 2,
            Self::Damaged => 3,
            Self::Busy => 4,
            Self::Fenced => 5,
            Self::Conflict => 6,
            Self::Unknown => 7,
            Self::NotFound => 8,
            Self::NotDurable => 9,
            Self::AlreadyDone => 10,
            Self::NotPermitted => 11,
            Self::OtherFormat => 12,
            Self::NeedsRecovery => 13,
            Self::Waiting => 14,
            Self::Signal(signal) => 128_u8.saturating_add(signal),
            Self::OfCommand(status) => status,
        }
    }

    /// What it means, as the documentation says it.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Done => "done, sound",
            Self::Unexpected => "unexpected, or could not look",
            Self::Usage => "usage or bad input, nothing written",
            Self::Damaged => "damaged",
            Self::Busy => "busy (lock, live owner, open turn)",
            Self::Fenced => "fenced",
            Self::Conflict => "conflict",
            Self::Unknown => "outcome unknown, may not run",
            Self::NotFound => "not found",
            Self::NotDurable => "not durable, nothing was acknowledged",
            Self::AlreadyDone => "already done, do not act again",
            Self::NotPermitted => "not permitted (approval)",
            Self::OtherFormat => "newer or older format",
            Self::NeedsRecovery => "needs recovery (`verify` only)",
            Self::Waiting => "waiting for somebody else",
            Self::Signal(_) => "ended by signal n",
            Self::OfCommand(_) => "the exit status of the command that was run",
        }
    }
}

/// What to do about a turn id that is none.
pub const TURN_ID_HINT: &str = "`turnkeep inspect SESSION` shows the ids of its turns; nothing was written";

/// What to do about a policy that cannot be used.
pub const BAD_POLICY_HINT: &str = "nothing was written: mend the policy, or name another one with --policy";

/// What to do instead of unparking.
pub const NOT_PARKED_HINT: &str = "nothing has to be unparked: `turnkeep recover` without --unpark goes on";

/// The kind of a failure by which the session file knows more than the journal.
pub const RECORDS_LOST: &str = "records_lost";

/// A command that did not do what it was asked for.
#[derive(Debug, Clone)]
pub struct Failure {
    /// How it ends.
    pub exit: Exit,
    /// Its stable name.
    pub kind: &'static str,
    /// What happened and why.
    pub message: String,
    /// What to do.
    pub hint: String,
    /// More for scripts: each becomes a member of the error document.
    pub more: Vec<(&'static str, Raw)>,
}

impl Failure {
    /// What happened; its hint makes it a failure.
    pub fn of(exit: Exit, kind: &'static str, message: impl fmt::Display) -> Happened {
        Happened(Self { exit, kind, message: message.to_string(), hint: String::new(), more: Vec::new() })
    }

    /// Bad input or usage.
    pub fn usage(kind: &'static str, message: impl fmt::Display) -> Happened {
        Self::of(Exit::Usage, kind, message)
    }

    /// Something stands against it.
    pub fn conflict(kind: &'static str, message: impl fmt::Display) -> Happened {
        Self::of(Exit::Conflict, kind, message)
    }

    /// Adds a member to the error document.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: &(impl Serialize + ?Sized)) -> Self {
        if let Some(raw) = serde_json::to_string(value).ok().and_then(|text| Raw::composed(&text)) {
            self.more.push((key, raw));
        }
        self
    }

    /// The system did not let us look.
    pub fn io(message: impl fmt::Display) -> Self {
        Self::of(Exit::Unexpected, "io", message)
            .hint("nothing was written; mend what the system complains of, and run the command again")
    }

    /// What should not happen.
    pub fn unexpected(message: impl fmt::Display) -> Self {
        Self::of(Exit::Unexpected, "unexpected", message)
            .hint("`turnkeep inspect` shows what is recorded; if the same happens again, this is a defect to report")
    }
}

/// What happened and why, before it is said what to do.
#[must_use]
pub struct Happened(Failure);

impl Happened {
    /// Adds a member to the error document.
    pub fn with(self, key: &'static str, value: &(impl Serialize + ?Sized)) -> Self {
        Self(self.0.with(key, value))
    }

    /// Says what to do.
    pub fn hint(self, hint: impl Into<String>) -> Failure {
        Failure { hint: hint.into(), ..self.0 }
    }
}

/// An error with the chain of its causes, the system's words last.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::NoSession { .. } => Self::of(Exit::NotFound, "no_session", &error)
                .hint("`turnkeep inspect` lists the sessions; `turnkeep admit` begins a new one"),
            JournalError::OtherSession { .. } => Self::conflict("other_session", &error)
                .hint("a copy of a journal belongs outside `sessions`: move it away; where two ids meet in one file name, use another id or another --root"),
            JournalError::Damaged { path, damage } => damaged(&path, &damage),
            JournalError::OtherFormat { ref path, ref found } => {
                Self::of(Exit::OtherFormat, "other_format", &error)
                    .with("path", path)
                    .with("found", found)
                    .with("known", crate::record::FORMAT)
                    .hint("use the version of turnkeep that wrote it; nothing was changed")
            }
            JournalError::Lock(error) => error.into(),
            JournalError::Path(error) => error.into(),
            JournalError::Draft(error) => error.into(),
            JournalError::NotDurable { .. } => Self::of(Exit::NotDurable, "not_durable", chain(&error))
                .hint("nothing was acknowledged; make room or mend the disk, and run the command again"),
            JournalError::Io { ref source, .. } if source.kind() == std::io::ErrorKind::OutOfMemory => {
                Self::of(Exit::Unexpected, "out_of_memory", chain(&error))
                    .hint("nothing was changed; allow it more memory (`ulimit -v`), or look at what made the file so large")
            }
            JournalError::Io { .. } => Self::io(chain(&error)),
            JournalError::Poisoned { .. } => Self::of(Exit::NotDurable, "poisoned", &error)
                .hint("run the command again: a new process reads the journal afresh"),
            JournalError::Signal { signal } => {
                Self::of(Exit::Signal(u8::try_from(signal).unwrap_or(0)), "signal", &error)
                    .hint("nothing was acknowledged; run the command again")
            }
        }
    }
}

/// Says file, line, offset, which check failed, which turns are touched, and the next command.
pub fn damaged(path: &Path, damage: &[Damage]) -> Failure {
    let session = path.file_stem().and_then(|name| paths::session_id(name.to_str()?));
    let session = session.map_or_else(|| "SESSION".to_owned(), |id| super::advice::quoted(&id));
    let Some(first) = damage.first() else {
        return Failure::of(Exit::Damaged, "damaged", format!("{} is damaged", path.display()))
            .hint(format!("`turnkeep verify {session}` shows what is wrong"));
    };
    let turns: Vec<String> = first.turns.iter().map(ToString::to_string).collect();
    let touched = if first.line == 1 {
        "nothing behind it can be read".to_owned()
    } else if turns.is_empty() {
        "no unclosed turn is touched".to_owned()
    } else {
        format!("turns touched: {}", turns.join(", "))
    };
    let more = match damage.len() {
        1 => String::new(),
        several => format!(" ({} more)", several - 1),
    };
    Failure::of(
        Exit::Damaged,
        "damaged",
        format!(
            "{} is damaged in line {}, {} bytes from byte {}: {}; {touched}{more}",
            path.display(),
            first.line,
            first.bytes,
            first.offset,
            first.flaw
        ),
    )
    .with("path", path)
    .with("line", &first.line)
    .with("offset", &first.offset)
    .with("turns", &turns)
    .hint(if first.line == 1 {
        format!("`turnkeep verify {session}` shows all of it; {}", crate::verify::Code::NoGenesis.what_to_do())
    } else {
        format!(
            "`turnkeep verify {session}` shows all of it; `turnkeep recover {session} --salvage --why TEXT` goes on \
             behind it"
        )
    })
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        let text = chain(&error);
        match error {
            LockError::Busy { holder, .. } => {
                let failure = Self::of(Exit::Busy, "locked", text);
                match holder {
                    Some(holder) if holder.stopped => failure
                        .with("pid", &holder.pid)
                        .hint("the holder is stopped: `kill -CONT` it, or end it"),
                    Some(holder) => {
                        failure.with("pid", &holder.pid).hint("wait for it, or give a longer --wait")
                    }
                    None => failure.hint("try again, or give a longer --wait"),
                }
            }
            LockError::Stopped { .. } => Self::of(Exit::Busy, "lock_wait_stopped", text)
                .hint("nothing was written; run the command again"),
            LockError::Unsupported { .. } => Self::of(Exit::Unexpected, "locks_unsupported", text).hint(
                "a single writer cannot be guaranteed there: put the state root (--root) on a local file system",
            ),
            LockError::Replaced { .. } => Self::of(Exit::NotDurable, "journal_replaced", text)
                .hint("somebody renamed or removed the journal; nothing was acknowledged"),
            LockError::NotFound { .. } => Self::of(Exit::NotFound, "no_session", text)
                .hint("`turnkeep inspect` lists the sessions; `turnkeep admit` begins a new one"),
            // A journal that cannot be opened for writing is one that nothing can be acknowledged on.
            LockError::Io { .. } => Self::of(Exit::NotDurable, "not_durable", text)
                .hint("nothing was acknowledged; mend what the system complains of, and run the command again"),
        }
    }
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Self {
        let text = chain(&error);
        match error {
            PathError::IdEmpty | PathError::IdTooLong { .. } | PathError::IdControl { .. } => {
                Self::usage("bad_session_id", text).hint("give the session another id; nothing was written")
            }
            PathError::Link { .. } => Self::conflict("link_in_root", text)
                .hint("a linked state root is fine, links inside it are not: nothing was touched"),
            PathError::NoRoot { .. } => Self::of(Exit::NotFound, "no_root", text)
                .hint("`--root` or TURNKEEP_ROOT names the state root; `turnkeep admit` makes it"),
            PathError::NotAFolder { .. } | PathError::Inspect { .. } => Self::io(text),
            PathError::Create { .. } | PathError::Sync { .. } => {
                Self::of(Exit::NotDurable, "not_durable", text)
                    .hint("nothing was acknowledged; after a power cut the session may be missing")
            }
        }
    }
}

impl From<DraftError> for Failure {
    fn from(error: DraftError) -> Self {
        match error {
            DraftError::Illegal(illegal) => Self::conflict("illegal", illegal)
                .hint("nothing was written; `turnkeep inspect SESSION --next` says what can be done with the turn now"),
            DraftError::TooLong { .. } => {
                Self::usage("too_long", error).hint("--max-record sets the limit; nothing was written")
            }
            DraftError::Unreadable(_) => Self::usage("unreadable", error)
                .hint("nothing was written; `turnkeep verify SESSION` tells whether the journal is sound"),
        }
    }
}

impl From<RawError> for Failure {
    fn from(error: RawError) -> Self {
        match error {
            RawError::Syntax(_) => {
                Self::usage("not_json", error).hint("nothing was written; give one JSON value")
            }
            RawError::TooDeep { .. } => Self::usage("too_deep", error)
                .hint("nothing was written; give what is deeper as a text (a string)"),
        }
    }
}

impl From<MessageError> for Failure {
    fn from(error: MessageError) -> Self {
        Self::usage("bad_message", chain(&error)).hint(
            "nothing was written; give one whole message or stream, as the model sent it (--format says in which format)",
        )
    }
}

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Self {
        Self::usage("bad_policy", chain(&error)).hint(BAD_POLICY_HINT)
    }
}

impl From<TreeFileError> for Failure {
    fn from(error: TreeFileError) -> Self {
        let text = chain(&error);
        match error {
            TreeFileError::Io { .. } => Self::of(Exit::Unexpected, "tree_io", text).hint(
                "what the journal has acknowledged stands; where that is more than the session file holds, `turnkeep \
                 recover` completes the file",
            ),
            TreeFileError::Changed { .. } => Self::of(Exit::Busy, "tree_changed", text)
                .hint("somebody writes to it: end that process, and run the command again"),
        }
    }
}

impl From<tree::Refusal> for Failure {
    fn from(error: tree::Refusal) -> Self {
        match error {
            tree::Refusal::Older { version } | tree::Refusal::Newer { version } => {
                let hint = if version < tree::VERSION {
                    "let Pi open the session once, so that it has version 3; nothing was changed"
                } else {
                    "a newer Pi wrote it: use a turnkeep that knows that version; nothing was changed"
                };
                Self::of(Exit::OtherFormat, "tree_version", &error)
                    .with("found", &version)
                    .with("known", &tree::VERSION)
                    .hint(hint)
            }
            tree::Refusal::Damage(_) => Self::of(Exit::Damaged, "tree_damaged", &error)
                .hint("`turnkeep verify ./FILE` lists what is wrong; nothing was written"),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(error: Refusal) -> Self {
        match error {
            Refusal::OwnerAlive { ref owner, .. } => {
                let pid = owner.as_ref().map(|owner| owner.pid);
                let who = owner.as_ref().map(|owner| format!(" (pid {}: {})", owner.pid, owner.cmd));
                Self::of(Exit::Busy, "owner_alive", format!("{error}{}", who.unwrap_or_default()))
                    .with("pid", &pid)
                    .hint(
                        "wait for it or end it; `turnkeep recover SESSION --force --why TEXT` takes the turn over all \
                         the same",
                    )
            }
            Refusal::Tree(refusal) => refusal.into(),
            Refusal::Branch(trouble @ Trouble::Unexplained { .. }) => {
                Self::of(Exit::Damaged, RECORDS_LOST, trouble).hint(
                    "nothing was written: bring the newest copy of the journal back; where that is gone, or \
                     the lines are not of this session, look at what they say was done: `recover --force --why \
                     TEXT` leaves them out, and what only they tell may be done again",
                )
            }
            Refusal::Branch(trouble @ Trouble::Marker { .. }) => Self::of(Exit::Damaged, RECORDS_LOST, trouble)
                .hint(
                    "nothing was written: bring the newest copy of the journal back; where that is gone, look \
                     at what the lines say was done, and name a copy of the session file without them with \
                     --tree-file",
                ),
            Refusal::Branch(trouble) => Self::of(Exit::Damaged, "tree_damaged", trouble)
                .hint("`turnkeep verify --with-tree` lists what differs; nothing was written"),
            Refusal::TreeMissing { committed, .. } => Self::of(Exit::Damaged, "tree_missing", &error)
                .with("committed", &committed)
                .hint("put the file back, or name its new place with --tree-file; the journal has every step"),
            Refusal::OtherTree { .. } => Self::of(Exit::Damaged, "tree_other", &error)
                .hint("put the right session file back, or name it with --tree-file; nothing was written"),
            Refusal::MovedOn { .. } => Self::conflict("moved_on", &error).hint(
                "look at both branches with `turnkeep inspect SESSION --draw-tree`; `--force --why TEXT` branches all the same",
            ),
            Refusal::Unjournaled { .. } => Self::conflict("unjournaled_result", &error)
                .hint(
                    "a tool may have run without a claim: look that up first; `--force --why TEXT` leaves the \
                     result out, and the call counts as never begun: it may run again",
                ),
            Refusal::NotParked(_) => Self::conflict("not_parked", &error).hint(NOT_PARKED_HINT),
            Refusal::Draft(error) => error.into(),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::unexpected(format!("{error:#}"))
    }
}
