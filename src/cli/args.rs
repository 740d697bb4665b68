//! The command line, as clap sees it. No meaning lives here.

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// A crash-safe journal of agent turns: did it happen, and what may be done now?
#[derive(Debug, Parser)]
#[command(name = "turnkeep", version, max_term_width = 100, args_override_self = false)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
pub struct Global {
    /// State root: the private folder that holds everything [default: $XDG_STATE_HOME/turnkeep, else
    /// ~/.local/state/turnkeep]
    #[arg(long, global = true, env = "TURNKEEP_ROOT", value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Replay policy in force now [default: ROOT/policy.json, else the built-in list]
    #[arg(long, global = true, env = "TURNKEEP_POLICY", value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Exactly one JSON document on stdout (a line each where many are listed), also on failure
    #[arg(long, global = true)]
    pub json: bool,
    /// How long to wait for the lock, in seconds
    #[arg(long, global = true, value_name = "SECS", default_value = "10", value_parser = seconds)]
    pub wait: f64,
    /// Colour on a terminal
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
    /// No notes on stderr; errors stay
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Longest record, in bytes
    #[arg(long, global = true, value_name = "BYTES", default_value_t = crate::chain::LINE_BYTES_MAX)]
    pub max_record: u64,
}

/// When to use colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, without NO_COLOR, unless TERM is dumb
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Accept a turn: record its input, session file and leaf, then print its ticket or become CMD
    Admit(AdmitArgs),
    /// Record one step of a turn
    Step(StepArgs),
    /// After a process died: decide about each call, bring the session tree up to date, take the turn over
    Recover(RecoverArgs),
    /// Show sessions, turns, calls and what comes next; never writes
    Inspect(InspectArgs),
    /// Check journals and session trees strictly; never writes
    Verify(VerifyArgs),
}

/// Whether a command decides by the replay policy in force now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsesPolicy {
    /// It records intents with it, or decides about calls.
    ToDecide,
    /// At most to show what it says.
    ToShow,
}

impl Command {
    /// Whether it decides by the replay policy. What was done can be told, whatever became of the policy's file.
    pub fn uses_policy(&self) -> UsesPolicy {
        let decides = match self {
            Self::Admit(_) | Self::Recover(_) => true,
            Self::Inspect(args) => args.next,
            Self::Verify(_) => false,
            Self::Step(step) => match &step.kind {
                StepKind::Message(_)
                | StepKind::Entry(_)
                | StepKind::Claim(_)
                | StepKind::Run(_)
                | StepKind::Dispatch(_)
                | StepKind::Approve(_)
                | StepKind::Deny(_) => true,
                // A last message may ask for calls.
                StepKind::Settle(args) => args.file.is_some(),
                StepKind::Result(_)
                | StepKind::Deliver(_)
                | StepKind::Heartbeat
                | StepKind::Note(_)
                | StepKind::Reconcile(_)
                | StepKind::Cancel(_)
                | StepKind::Steer(_) => false,
            },
        };
        if decides { UsesPolicy::ToDecide } else { UsesPolicy::ToShow }
    }
}

/// Who will hold a turn, and for how long.
#[derive(Debug, Args)]
pub struct OwnerArgs {
    /// Lease in seconds: once it ran out, others may take the turn over although the owner lives
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub lease: Option<f64>,
    /// The process that owns the turn, or `none` [default: CMD, else the parent process]
    #[arg(long, value_name = "PID|none", value_parser = owner_pid)]
    pub owner_pid: Option<OwnerPid>,
}

/// An owner named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerPid {
    /// Nobody holds the turn.
    Nobody,
    /// This process does.
    Pid(u32),
}

/// `turnkeep admit`
#[derive(Debug, Args)]
pub struct AdmitArgs {
    /// Session id
    pub session: String,
    /// Key under which the reply will be published; admitting it again is no new turn
    #[arg(long, value_name = "KEY")]
    pub delivery: Option<String>,
    /// Turn id [default: a fresh UUIDv7]
    #[arg(long, value_name = "ID")]
    pub turn: Option<String>,
    /// The input
    #[arg(long, value_name = "TEXT", conflicts_with = "input")]
    pub text: Option<String>,
    /// The input from a file, or `-` for stdin: a JSON object or array, else text
    #[arg(long, value_name = "FILE|-")]
    pub input: Option<PathBuf>,
    /// The agent's session file (Pi, version 3)
    #[arg(long, value_name = "FILE")]
    pub tree: Option<PathBuf>,
    /// The entry to admit on, or `root` [default: the one that Pi would open]
    #[arg(long, value_name = "ID|root", requires = "tree")]
    pub leaf: Option<String>,
    /// Header of a session file that does not exist yet
    #[arg(long, value_name = "JSON", requires = "tree")]
    pub tree_header: Option<String>,
    /// Who writes the session file
    #[arg(long, value_name = "MODE", requires = "tree", value_enum, default_value_t = Mode::Branch)]
    pub tree_mode: Mode,
    #[command(flatten)]
    pub owner: OwnerArgs,
    /// What to do while another turn is open
    #[arg(long, value_enum, default_value_t = WhenBusy::Reject)]
    pub when_busy: WhenBusy,
    /// Go on with the turn if it was admitted before
    #[arg(long)]
    pub resume: bool,
    /// The driver's own data
    #[arg(long, value_name = "JSON")]
    pub meta: Option<String>,
    /// The driver: this process becomes it
    #[arg(last = true, value_name = "CMD")]
    pub cmd: Vec<OsString>,
}

/// Who writes the session file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// The agent; turnkeep only in `recover` and for late answers
    Branch,
    /// turnkeep, each committed step as it happens
    Append,
}

/// What to do while another turn is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WhenBusy {
    /// Exit 4
    Reject,
    /// The input joins the open turn
    Steer,
}

/// `turnkeep step`
#[derive(Debug, Args)]
pub struct StepArgs {
    /// The handle that admit or recover printed [default: $TURNKEEP_TICKET]
    #[arg(long, value_name = "SESSION:TURN:ATTEMPT")]
    pub ticket: Option<String>,
    #[command(subcommand)]
    pub kind: StepKind,
}

/// The steps.
#[derive(Debug, Subcommand)]
pub enum StepKind {
    /// Record a message; its calls are durable before anything is dispatched
    Message(MessageArgs),
    /// Record raw session-tree entries (NDJSON) as the agent persisted them
    Entry(FileArgs),
    /// State that a call is about to run, before its effect
    Claim(ClaimArgs),
    /// Record what a tool answered
    Result(ResultArgs),
    /// Claim a call, run CMD, record its result
    Run(RunArgs),
    /// Hand a call to a remote executor
    Dispatch(DispatchArgs),
    /// End the turn
    Settle(SettleArgs),
    /// Publish the reply, or say how that went
    Deliver(DeliverArgs),
    /// Renew the lease
    Heartbeat,
    /// Keep a remark
    Note(FileArgs),
    /// A person agrees to a call
    Approve(ApproveArgs),
    /// A person does not agree to a call
    Deny(DenyArgs),
    /// A person found out about a call
    Reconcile(ReconcileArgs),
    /// The user stops the turn
    Cancel(CancelArgs),
    /// A message joins the open turn
    Steer(SteerArgs),
}

/// A file, or stdin.
#[derive(Debug, Args)]
pub struct FileArgs {
    /// A file, or `-` for stdin
    #[arg(value_name = "FILE|-")]
    pub file: Option<PathBuf>,
}

/// `turnkeep step message`
#[derive(Debug, Args)]
pub struct MessageArgs {
    /// The message, a provider's whole response, or a saved event stream; `-` for stdin
    #[arg(value_name = "FILE|-")]
    pub file: Option<PathBuf>,
    /// auto, pi, anthropic, anthropic-sse, openai-chat, openai-chat-sse or openai-responses
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = format)]
    pub format: FormatArg,
    /// The role, where the body names none
    #[arg(long, value_name = "ROLE")]
    pub role: Option<String>,
    /// Give ids to calls whose ids are empty or doubled
    #[arg(long)]
    pub assign_ids: bool,
}

/// A message format, or `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormatArg(pub Option<crate::message::Format>);

/// `turnkeep step claim`
#[derive(Debug, Args)]
pub struct ClaimArgs {
    /// A ref, the provider's id where one live call has it, or ENTRYID.POS; with --tool a new id
    pub call: String,
    /// Where to look the effect up
    #[arg(long, value_name = "JSON")]
    pub link: Option<String>,
    /// Declare the call too: its tool
    #[arg(long, value_name = "NAME", value_parser = not_blank)]
    pub tool: Option<String>,
    /// Its arguments
    #[arg(long, value_name = "JSON", requires = "tool")]
    pub args: Option<String>,
    /// The call that it is nested in
    #[arg(long, value_name = "CALL", requires = "tool")]
    pub parent: Option<String>,
}

/// `turnkeep step result`
#[derive(Debug, Args)]
pub struct ResultArgs {
    /// The call
    pub call: String,
    /// A tool-result message, a JSON object or array, else text; `-` for stdin
    #[arg(value_name = "FILE|-")]
    pub file: Option<PathBuf>,
    /// The tool failed
    #[arg(long, conflicts_with = "not_run")]
    pub error: bool,
    /// The call never started
    #[arg(long)]
    pub not_run: bool,
}

/// `turnkeep step run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The call; with --tool an id of the script's own
    pub call: String,
    /// Exit as CMD did
    #[arg(long)]
    pub preserve_status: bool,
    /// Declare the call: a step of a script, without a model
    #[arg(long, value_name = "NAME", value_parser = not_blank)]
    pub tool: Option<String>,
    /// Its arguments [default: {"argv":[CMD...]}]
    #[arg(long, value_name = "JSON", requires = "tool")]
    pub args: Option<String>,
    /// Run again what failed
    #[arg(long, requires = "tool")]
    pub retry_failed: bool,
    /// What to run
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub cmd: Vec<OsString>,
}

/// `turnkeep step dispatch`
#[derive(Debug, Args)]
pub struct DispatchArgs {
    /// The call
    pub call: String,
    /// The executor
    #[arg(long, value_name = "NAME", value_parser = not_blank)]
    pub to: String,
    /// Its receipt
    #[arg(long, value_name = "R")]
    pub receipt: Option<String>,
}

/// `turnkeep step settle`
#[derive(Debug, Args)]
pub struct SettleArgs {
    /// The reply, or the last message [default: the last model message]
    #[arg(value_name = "FILE|-")]
    pub file: Option<PathBuf>,
    /// completed, failed or cancelled [default: cancelled after cancel, else completed]
    #[arg(long, value_name = "STATUS")]
    pub status: Option<crate::record::SettledStatus>,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// `turnkeep step deliver`
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("act").required(true).multiple(false)
    .args(["begin", "receipt", "not_sent", "waive", "cmd"]))]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct DeliverArgs {
    /// The reply is about to be published
    #[arg(long)]
    pub begin: bool,
    /// It was published; proof
    #[arg(long, value_name = "R")]
    pub receipt: Option<String>,
    /// A person found that it was not published
    #[arg(long)]
    pub not_sent: bool,
    /// A person ends it without publishing
    #[arg(long, requires = "why")]
    pub waive: bool,
    /// Why
    #[arg(long, value_name = "TEXT", value_parser = not_blank)]
    pub why: Option<String>,
    /// CMD gets the reply's bytes, not its text
    #[arg(long)]
    pub raw: bool,
    /// Who says so
    #[arg(long, value_name = "WHO", value_parser = not_blank)]
    pub by: Option<String>,
    #[command(flatten)]
    pub person: PersonArgs,
    /// Publishes the reply: gets it on stdin and the key in TURNKEEP_KEY; its stdout is the receipt
    #[arg(last = true, value_name = "CMD")]
    pub cmd: Vec<OsString>,
}

/// Where a person acts.
#[derive(Debug, Args)]
pub struct PersonArgs {
    /// The session, or SESSION:TURN
    #[arg(long, value_name = "SESSION[:TURN]")]
    pub session: Option<String>,
    /// Act although the claimant lives; needs --why
    #[arg(long, requires = "why")]
    pub force: bool,
}

/// `turnkeep step approve`
#[derive(Debug, Args)]
pub struct ApproveArgs {
    /// The call
    pub call: String,
    /// Who agrees
    #[arg(long, value_name = "WHO", value_parser = not_blank)]
    pub by: String,
    /// For how many seconds [default: until the call is claimed]
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub r#for: Option<f64>,
    #[command(flatten)]
    pub person: PersonArgs,
    /// Why the act is forced
    #[arg(long, value_name = "TEXT", value_parser = not_blank, requires = "force")]
    pub why: Option<String>,
}

/// `turnkeep step deny`
#[derive(Debug, Args)]
pub struct DenyArgs {
    /// The call
    pub call: String,
    /// Who does not agree
    #[arg(long, value_name = "WHO", value_parser = not_blank)]
    pub by: String,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    #[command(flatten)]
    pub person: PersonArgs,
    /// Why the act is forced
    #[arg(long, value_name = "TEXT", value_parser = not_blank, requires = "force")]
    pub why: Option<String>,
}

/// `turnkeep step reconcile`
#[derive(Debug, Args)]
pub struct ReconcileArgs {
    /// The call
    pub call: String,
    /// applied, not_applied or unknown
    #[arg(long, value_name = "OUTCOME")]
    pub outcome: crate::record::ReconciledOutcome,
    /// Who found out
    #[arg(long, value_name = "WHO", value_parser = not_blank)]
    pub by: String,
    /// Proof
    #[arg(long, value_name = "R")]
    pub receipt: Option<String>,
    /// What the tool answered; `-` for stdin
    #[arg(value_name = "FILE|-")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub person: PersonArgs,
    /// Why the act is forced
    #[arg(long, value_name = "TEXT", value_parser = not_blank, requires = "force")]
    pub why: Option<String>,
}

/// `turnkeep step cancel`
#[derive(Debug, Args)]
pub struct CancelArgs {
    /// Who stops it
    #[arg(long, value_name = "WHO", value_parser = not_blank)]
    pub by: String,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// The session, or SESSION:TURN
    #[arg(long, value_name = "SESSION[:TURN]")]
    pub session: Option<String>,
}

/// `turnkeep step steer`
#[derive(Debug, Args)]
pub struct SteerArgs {
    /// The message
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    pub text: Option<String>,
    /// The message; `-` for stdin
    #[arg(value_name = "FILE|-")]
    pub file: Option<PathBuf>,
    /// Its own delivery key
    #[arg(long, value_name = "KEY")]
    pub delivery: Option<String>,
    /// The session, or SESSION:TURN
    #[arg(long, value_name = "SESSION[:TURN]")]
    pub session: Option<String>,
}

/// `turnkeep recover`
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct RecoverArgs {
    /// The session, or SESSION:TURN
    #[arg(value_name = "SESSION[:TURN]", required_unless_present = "all", conflicts_with = "all")]
    pub session: Option<String>,
    /// Every session: print the plan, or start one CMD for each turn that a driver can advance
    #[arg(long)]
    pub all: bool,
    /// With --all: only sessions whose id fits
    #[arg(long, value_name = "GLOB", requires = "all")]
    pub r#match: Option<String>,
    /// Print the plan with its exact records and entries; write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Take over although the owner lives or the conversation moved on; needs --why
    #[arg(long, requires = "why")]
    pub force: bool,
    /// Go on behind damage, every damaged range acknowledged; needs --why
    #[arg(long, requires = "why")]
    pub salvage: bool,
    /// Let a parked turn go on; needs --by and --why
    #[arg(long, requires = "why", requires = "by")]
    pub unpark: bool,
    /// Why
    #[arg(long, value_name = "TEXT", value_parser = not_blank)]
    pub why: Option<String>,
    /// Who
    #[arg(long, value_name = "WHO", value_parser = not_blank)]
    pub by: Option<String>,
    /// Where the branch begins
    #[arg(long, value_enum, default_value_t = Onto::Admission)]
    pub onto: Onto,
    /// The agent cannot run a call outside its own loop: close what would run
    #[arg(long)]
    pub close_calls: bool,
    /// First wait so long for results of calls that others are at
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub wait_result: Option<f64>,
    /// The session file, where it was moved
    #[arg(long, value_name = "FILE")]
    pub tree_file: Option<PathBuf>,
    #[command(flatten)]
    pub owner: OwnerArgs,
    /// Started by `recover --all`, which tells itself that a turn is busy or was finished meanwhile
    #[arg(long, hide = true, conflicts_with = "all")]
    pub one_of_all: bool,
    /// The driver: this process becomes it
    #[arg(last = true, value_name = "CMD")]
    pub cmd: Vec<OsString>,
}

/// Where the branch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Onto {
    /// At the entry that the turn was admitted on
    Admission,
    /// Behind what the file already holds of the turn
    Live,
}

/// `turnkeep inspect`
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[command(group(ArgGroup::new("listing").multiple(true)))]
pub struct InspectArgs {
    /// A session, or the path of a journal or a session file [default: a table of all sessions]
    #[arg(value_name = "SESSION|FILE")]
    pub session: Option<String>,
    /// What comes next, then one call per line
    #[arg(long)]
    pub next: bool,
    /// One turn
    #[arg(long, value_name = "ID")]
    pub turn: Option<String>,
    /// The turn with this delivery key, in all sessions
    #[arg(long, value_name = "KEY")]
    pub delivery: Option<String>,
    /// One call, with its arguments and answer
    #[arg(long, value_name = "CALL")]
    pub call: Option<String>,
    /// The records
    #[arg(long, group = "listing")]
    pub records: bool,
    /// With --records or --follow: from this seq on
    #[arg(long, value_name = "SEQ", requires = "listing")]
    pub from: Option<u64>,
    /// With --records or --follow: of this kind
    #[arg(long, value_name = "KIND", requires = "listing")]
    pub kind: Option<String>,
    /// The records as they come, until it is ended; with --from those before, too
    #[arg(long, group = "listing", conflicts_with = "at")]
    pub follow: bool,
    /// The state as of this record
    #[arg(long, value_name = "SEQ")]
    pub at: Option<u64>,
    /// The session tree: admission leaf, branch and active leaf
    #[arg(long)]
    pub draw_tree: bool,
    /// The messages for the next model request, as one JSON array
    #[arg(long)]
    pub context: bool,
    /// With --context: in this format [default: that of the last model message]
    #[arg(long, value_name = "FORMAT", requires = "context")]
    pub format: Option<crate::message::Format>,
    /// Write one page with the time line of turns, attempts and calls to FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Return at the next record, or with 14 after so many seconds
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub until_change: Option<f64>,
}

/// `turnkeep verify`
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Sessions, journals, session files or folders
    #[arg(value_name = "SESSION|FILE|DIR")]
    pub targets: Vec<String>,
    /// Every session of the state root
    #[arg(long)]
    pub all: bool,
    /// The journal must contain this record
    #[arg(long, value_name = "SEQ:HASH")]
    pub expect_head: Option<String>,
    /// Heads to demand, one `SEQ:HASH PATH` a line; rewritten when all is sound
    #[arg(long, value_name = "FILE")]
    pub heads: Option<PathBuf>,
    /// The session trees too
    #[arg(long)]
    pub with_tree: bool,
    /// The session file, where it was moved
    #[arg(long, value_name = "FILE")]
    pub tree_file: Option<PathBuf>,
    /// Acknowledged damage is damage
    #[arg(long)]
    pub strict: bool,
    /// Write the verdicts to FILE too, as JUnit XML, whatever they are
    #[arg(long, value_name = "junit=FILE", value_parser = report)]
    pub report: Option<PathBuf>,
}

fn report(text: &str) -> Result<PathBuf, String> {
    match text.split_once('=') {
        Some(("junit", file)) if !file.is_empty() => Ok(file.into()),
        _ => Err("junit=FILE".to_owned()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds".to_owned())?;
    // A year is longer than anybody waits, and keeps every unit of time in range.
    if (0.0..=31_536_000.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("a number of seconds, at most a year".to_owned())
    }
}

fn not_blank(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("it has to say something".to_owned()) } else { Ok(text.to_owned()) }
}

fn owner_pid(text: &str) -> Result<OwnerPid, String> {
    match text {
        "none" => Ok(OwnerPid::Nobody),
        _ => match text.parse() {
            Ok(pid) if pid > 0 => Ok(OwnerPid::Pid(pid)),
            _ => Err("a process id, or none".to_owned()),
        },
    }
}

fn format(text: &str) -> Result<FormatArg, String> {
    if text == "auto" { Ok(FormatArg(None)) } else { text.parse().map(|format| FormatArg(Some(format))) }
}
