//! The record types of format `turnkeep/1`, field for field as they stand on disk.
//!
//! Field order here is key order in the file: a record is encoded by serializing these structs, and decoding
//! demands the very bytes that encoding would write. No meaning lives here, only shapes.

use crate::json::{Raw, present};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The format that this version writes.
pub const FORMAT: &str = "turnkeep/1";
/// Largest value of a plain decimal.
pub const NUMBER_MAX: u64 = i64::MAX as u64;
/// `prev` of a genesis.
pub const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// A lower-case hex SHA-256, such as the `hash` of a record.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Hash(String);

impl Hash {
    /// `prev` of a genesis: 64 zeros.
    pub fn none() -> Self {
        Self(NO_HASH.to_owned())
    }
    /// The 64 hex digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Hash {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            Ok(Self(text.to_owned()))
        } else {
            Err("a hash is 64 lower-case hex digits")
        }
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The id of a turn: `[A-Za-z0-9._-]{1,128}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct TurnId(String);

impl TurnId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TurnId {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        if (1..=128).contains(&text.len()) && text.bytes().all(plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err("a turn id is 1 to 128 of A-Z a-z 0-9 . _ -")
        }
    }
}

impl<'de> Deserialize<'de> for TurnId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for TurnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names a call: the seq of its message, entry or intent, and its position there from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallRef {
    /// Seq of the record that asked for the call.
    pub seq: u64,
    /// Position among the calls of that record.
    pub position: u64,
}

impl FromStr for CallRef {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "a ref is SEQ.POSITION, two plain decimals";
        let (seq, position) = text.split_once('.').ok_or(WRONG)?;
        Ok(Self { seq: decimal(seq).ok_or(WRONG)?, position: decimal(position).ok_or(WRONG)? })
    }
}

impl fmt::Display for CallRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.seq, self.position)
    }
}

impl Serialize for CallRef {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CallRef {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A plain decimal up to 2^63-1: no sign, no leading zero.
pub fn decimal(text: &str) -> Option<u64> {
    let plain = text == "0" || (!text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()));
    text.parse().ok().filter(|number| plain && *number <= NUMBER_MAX)
}

/// A time as it is spelled everywhere: `2026-11-29T15:26:34.123456Z`, always six digits and `Z`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct At(String);

impl At {
    /// Spells microseconds since 1970.
    pub fn from_micros(micros: i64) -> Self {
        let time = chrono::DateTime::from_timestamp_micros(micros).unwrap_or_default();
        Self(time.format("%Y-%m-%dT%H:%M:%S%.6fZ").to_string())
    }
    /// Microseconds since 1970.
    pub fn micros(&self) -> i64 {
        chrono::DateTime::parse_from_rfc3339(&self.0).map_or(0, |time| time.timestamp_micros())
    }
    /// The spelling.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for At {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Looked at byte by byte: every record has one, and a general parser takes longer than its hash.
        let spelled = text.len() == 27
            && text.bytes().enumerate().all(|(place, byte)| match place {
                4 | 7 => byte == b'-',
                10 => byte == b'T',
                13 | 16 => byte == b':',
                19 => byte == b'.',
                26 => byte == b'Z',
                _ => byte.is_ascii_digit(),
            });
        let number =
            |from: usize, to: usize| text.get(from..to).and_then(|digits| digits.parse::<u32>().ok());
        let day = || {
            let year = i32::try_from(number(0, 4)?).ok()?;
            chrono::NaiveDate::from_ymd_opt(year, number(5, 7)?, number(8, 10)?)?.and_hms_opt(
                number(11, 13)?,
                number(14, 16)?,
                number(17, 19)?,
            )
        };
        match spelled.then(day).flatten() {
            Some(_) => Ok(Self(text.to_owned())),
            None => Err("a time is spelled 2026-11-29T15:26:34.123456Z"),
        }
    }
}

impl<'de> Deserialize<'de> for At {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Declares an enum whose variants stand on disk as fixed words.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$doc])* #[serde(rename = $word)] $variant,)+ }

        impl $name {
            /// The word on disk.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }

        impl FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(format!("expected one of: {}", [$($word),+].join(", "))),
                }
            }
        }
    };
}

words! {
    /// What a policy says about running a call again. Ordered: never < keyed < safe.
    Replay {
        /// Running again may do it twice.
        Never = "never",
        /// Running again with the same key does it once.
        Keyed = "keyed",
        /// Running again does no harm.
        Safe = "safe",
    }
}
words! {
    /// A person has to agree before a call runs.
    ApprovalRule {
        /// An approval is needed.
        Required = "required",
    }
}
words! {
    /// What happens to a call whose outcome is unknown.
    UnknownRule {
        /// Nobody is told anything before a person reconciled it.
        Hold = "hold",
    }
}
words! {
    /// Why an attempt began.
    Cause {
        /// The turn was admitted.
        Admit = "admit",
        /// `recover` found the owner gone.
        Recover = "recover",
        /// The owner may still live: `--force`, or a lease that ran out.
        Takeover = "takeover",
    }
}
words! {
    /// Who writes the session tree.
    TreeMode {
        /// The agent; `turnkeep` only in `recover` and for late answers.
        Branch = "branch",
        /// `turnkeep`, each committed step as it happens.
        Append = "append",
    }
}
words! {
    /// Why a call never ran and never will.
    NotRunWhy {
        /// Its message did not end properly.
        CutOff = "cut_off",
        /// The turn was cancelled.
        Cancelled = "cancelled",
        /// A person said no.
        Denied = "denied",
        /// All else.
        Refused = "refused",
    }
}
words! {
    /// A person's answer to a request for approval.
    ApprovalDecision {
        /// Yes.
        Granted = "granted",
        /// No.
        Denied = "denied",
    }
}
words! {
    /// What a person found out about a call.
    ReconciledOutcome {
        /// It happened.
        Applied = "applied",
        /// It did not happen and will not.
        NotApplied = "not_applied",
        /// Nobody can tell.
        Unknown = "unknown",
    }
}
words! {
    /// How a turn ended.
    SettledStatus {
        /// With an answer.
        Completed = "completed",
        /// Without one.
        Failed = "failed",
        /// The user stopped it.
        Cancelled = "cancelled",
    }
}
words! {
    /// How far the delivery of a reply came.
    DeliveryState {
        /// About to be published.
        Begun = "begun",
        /// Published; there is a receipt.
        Sent = "sent",
        /// A person found that it was not published.
        NotSent = "not_sent",
        /// A person ended it without publishing.
        Waived = "waived",
    }
}
words! {
    /// What `recover` decides about a call.
    Decision {
        /// Its stored answer stands.
        Redeliver = "redeliver",
        /// It may run: it was never claimed.
        Run = "run",
        /// It may run again.
        Rerun = "rerun",
        /// A person has to approve.
        Ask = "ask",
        /// Somebody else is at it.
        Await = "await",
        /// A person has to find out.
        Hold = "hold",
        /// Its outcome is unknown and stays so.
        Interrupt = "interrupt",
        /// It will never run.
        NotRun = "not_run",
    }
}

/// The process that an attempt belongs to, or the runner of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// Process id.
    pub pid: u64,
    /// Start time in clock ticks after boot.
    pub started: u64,
    /// Boot id of the kernel.
    pub boot: String,
    /// Inode number of the pid namespace.
    pub pidns: u64,
    /// Machine id, else the host name.
    pub host: String,
    /// Command line, for people.
    pub cmd: String,
}

/// The session tree of a turn at its admission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdmittedTree {
    /// Absolute path of the session file.
    pub path: String,
    /// `pi/3`.
    pub format: String,
    /// `id` of the file's header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header_id: Option<String>,
    /// The entry that the turn was admitted on; absent for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf: Option<String>,
    /// Byte offset of the leaf's line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf_at: Option<u64>,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Who writes it.
    pub mode: TreeMode,
}

/// One call of a message or entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallIntent {
    /// Its name in this journal.
    pub r#ref: CallRef,
    /// The provider's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Tool name.
    pub tool: String,
    /// Digest of the arguments' stored bytes.
    pub args_sha256: Hash,
    /// Stored replay policy.
    pub replay: Replay,
    /// Stored approval rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalRule>,
    /// Stored rule for an unknown outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<UnknownRule>,
    /// Idempotency key for the outside world.
    pub key: String,
}

/// One decision of a recovery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decided {
    /// The call.
    pub r#ref: CallRef,
    /// What was decided.
    pub decision: Decision,
    /// Why, for people.
    pub why: String,
    /// Replay policy stored with the intent.
    pub replay_stored: Replay,
    /// Replay policy in force at the decision.
    pub replay_now: Replay,
}

/// The branch that a recovery made sure of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    /// The session file.
    pub path: String,
    /// Where it leaves the tree; absent for the root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Its last entry.
    pub leaf: String,
    /// How many entries it has.
    pub entries: u64,
}

/// Declares the payload structs and the enum over them.
macro_rules! kinds {
    ($($(#[$meta:meta])* $name:ident = $word:literal { $($(#[$fmeta:meta])* $field:ident : $type:ty,)* })+) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
            #[serde(deny_unknown_fields)]
            pub struct $name { $($(#[$fmeta])* pub $field: $type,)* }

            impl From<$name> for Kind {
                fn from(payload: $name) -> Self {
                    Self::$name(payload)
                }
            }
        )+

        /// What a record says, by kind.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Kind { $($(#[$meta])* $name($name),)+ }

        impl Kind {
            /// The word in the record's `kind`.
            pub fn word(&self) -> &'static str {
                match self { $(Self::$name(_) => $word,)+ }
            }

            /// All kinds, in the order of the format's table.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// Reads the payload of a record of kind `word`: the record without its envelope.
            ///
            /// `None` for an unknown kind.
            pub(crate) fn read(word: &str, payload: &[u8]) -> Option<Result<Self, serde_json::Error>> {
                match word {
                    $($word => Some(serde_json::from_slice::<$name>(payload).map(Self::$name)),)+
                    _ => None,
                }
            }

            /// Writes the payload as a JSON object.
            pub(crate) fn write(&self, out: impl std::io::Write) -> Result<(), serde_json::Error> {
                match self { $(Self::$name(payload) => serde_json::to_writer(out, payload),)+ }
            }
        }
    };
}

kinds! {
    /// Genesis of a journal.
    Opened = "opened" {
        /// `turnkeep/1`.
        format: String,
        /// Session id.
        session: String,
        /// A fresh UUID.
        id: String,
    }
    /// A turn was admitted.
    Admitted = "admitted" {
        /// The turn.
        turn: TurnId,
        /// Delivery key, unique in its session.
        #[serde(skip_serializing_if = "Option::is_none")] delivery: Option<String>,
        /// What is to be answered.
        input: Raw,
        /// Digest of the input's stored bytes.
        input_sha256: Hash,
        /// The session tree, if there is one.
        #[serde(skip_serializing_if = "Option::is_none")] tree: Option<AdmittedTree>,
        /// Digest of the policy file; absent for the built-in list.
        #[serde(skip_serializing_if = "Option::is_none")] policy_sha256: Option<Hash>,
        /// The driver's own data.
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")] meta: Option<Raw>,
    }
    /// A worker began to advance the turn.
    Attempt = "attempt" {
        /// The turn.
        turn: TurnId,
        /// Its number, the fencing token.
        attempt: u64,
        /// Why it began.
        cause: Cause,
        /// A person's reason.
        #[serde(skip_serializing_if = "Option::is_none")] why: Option<String>,
        /// Who holds it; absent for nobody.
        #[serde(skip_serializing_if = "Option::is_none")] owner: Option<Owner>,
        /// Lease in milliseconds, where one was asked for.
        #[serde(skip_serializing_if = "Option::is_none")] lease_ms: Option<u64>,
    }
    /// A message of the conversation.
    Message = "message" {
        /// The turn.
        turn: TurnId,
        /// The attempt.
        attempt: u64,
        /// Message format, such as `pi`.
        format: String,
        /// Role, such as `assistant`.
        role: String,
        /// The message as given.
        message: Raw,
        /// Its calls.
        #[serde(skip_serializing_if = "Option::is_none")] calls: Option<Vec<CallIntent>>,
    }
    /// One raw session-tree entry as the agent itself persisted it.
    Entry = "entry" {
        /// The turn.
        turn: TurnId,
        /// The attempt.
        attempt: u64,
        /// The entry as it stands in the agent's file.
        entry: Raw,
        /// Its calls, if it is an assistant message.
        #[serde(skip_serializing_if = "Option::is_none")] calls: Option<Vec<CallIntent>>,
    }
    /// One call declared without a model message.
    Intent = "intent" {
        /// The turn.
        turn: TurnId,
        /// The attempt.
        attempt: u64,
        /// The driver's id.
        id: String,
        /// Tool name.
        tool: String,
        /// Arguments.
        args: Raw,
        /// Digest of the arguments' stored bytes.
        args_sha256: Hash,
        /// Stored replay policy.
        replay: Replay,
        /// Stored approval rule.
        #[serde(skip_serializing_if = "Option::is_none")] approval: Option<ApprovalRule>,
        /// Stored rule for an unknown outcome.
        #[serde(skip_serializing_if = "Option::is_none")] unknown: Option<UnknownRule>,
        /// Idempotency key for the outside world.
        key: String,
        /// The call that this one is nested in.
        #[serde(skip_serializing_if = "Option::is_none")] parent: Option<CallRef>,
    }
    /// This attempt is about to run this call.
    Claimed = "claimed" {
        /// The turn.
        turn: TurnId,
        /// The attempt.
        attempt: u64,
        /// The call.
        r#ref: CallRef,
        /// Its idempotency key.
        key: String,
        /// Where to look it up.
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")] link: Option<Raw>,
        /// The process of `step run`.
        #[serde(skip_serializing_if = "Option::is_none")] runner: Option<Owner>,
    }
    /// What a tool answered.
    Outcome = "result" {
        /// The turn.
        turn: TurnId,
        /// The attempt that held the claim.
        attempt: u64,
        /// The call.
        r#ref: CallRef,
        /// Whether the tool failed.
        error: bool,
        /// The answer.
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")] content: Option<Raw>,
        /// Exit status of a `step run`.
        #[serde(skip_serializing_if = "Option::is_none")] exit: Option<u64>,
        /// Name of the signal that ended it.
        #[serde(skip_serializing_if = "Option::is_none")] signal: Option<String>,
        /// Its standard output.
        #[serde(skip_serializing_if = "Option::is_none")] stdout: Option<String>,
        /// Its standard error.
        #[serde(skip_serializing_if = "Option::is_none")] stderr: Option<String>,
        /// Whether output was left out.
        #[serde(skip_serializing_if = "Option::is_none")] truncated: Option<bool>,
        /// Digest of stdout's, then stderr's true bytes.
        #[serde(skip_serializing_if = "Option::is_none")] output_sha256: Option<Hash>,
        /// How long it ran, in milliseconds.
        #[serde(skip_serializing_if = "Option::is_none")] duration_ms: Option<u64>,
    }
    /// The outcome of a call is unknown.
    Interrupted = "interrupted" {
        /// The turn.
        turn: TurnId,
        /// The attempt.
        attempt: u64,
        /// The call.
        r#ref: CallRef,
        /// What the model is told.
        explanation: String,
        /// What the tool had printed.
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")] output_so_far: Option<Raw>,
    }
    /// A call never ran and never will.
    NotRun = "not_run" {
        /// The turn.
        turn: TurnId,
        /// The attempt.
        attempt: u64,
        /// The call.
        r#ref: CallRef,
        /// Why.
        why: NotRunWhy,
        /// What the model is told.
        explanation: String,
    }
    /// A call was handed to a remote executor.
    Dispatched = "dispatched" {
        /// The turn.
        turn: TurnId,
        /// The attempt.
        attempt: u64,
        /// The call.
        r#ref: CallRef,
        /// The executor.
        to: String,
        /// Its receipt.
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")] receipt: Option<Raw>,
    }
    /// A person agreed to a call, or did not.
    Approval = "approval" {
        /// The turn.
        turn: TurnId,
        /// The call.
        r#ref: CallRef,
        /// Yes or no.
        decision: ApprovalDecision,
        /// Who.
        by: String,
        /// Until when.
        #[serde(skip_serializing_if = "Option::is_none")] expires: Option<At>,
        /// Why.
        #[serde(skip_serializing_if = "Option::is_none")] reason: Option<String>,
    }
    /// A person found out about a call.
    Reconciled = "reconciled" {
        /// The turn.
        turn: TurnId,
        /// The call.
        r#ref: CallRef,
        /// What was found.
        outcome: ReconciledOutcome,
        /// Who.
        by: String,
        /// Proof.
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")] receipt: Option<Raw>,
        /// What the tool answered.
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")] content: Option<Raw>,
    }
    /// A result that came too late.
    Straggler = "straggler" {
        /// The turn.
        turn: TurnId,
        /// The attempt of the ticket that brought it.
        attempt: u64,
        /// The call; absent for a delivery receipt.
        #[serde(skip_serializing_if = "Option::is_none")] r#ref: Option<CallRef>,
        /// What the result would have held.
        content: Raw,
        /// Why it was too late.
        why: String,
    }
    /// A message that joined the open turn.
    Steered = "steered" {
        /// The turn.
        turn: TurnId,
        /// Its own delivery key.
        #[serde(skip_serializing_if = "Option::is_none")] delivery: Option<String>,
        /// The message.
        input: Raw,
        /// Digest of its stored bytes.
        input_sha256: Hash,
    }
    /// The owner still lives.
    Heartbeat = "heartbeat" {
        /// The turn.
        turn: TurnId,
        /// The attempt.
        attempt: u64,
        /// Lease in milliseconds.
        lease_ms: u64,
    }
    /// The user stopped the turn.
    Cancelled = "cancelled" {
        /// The turn.
        turn: TurnId,
        /// Who.
        by: String,
        /// Why.
        #[serde(skip_serializing_if = "Option::is_none")] reason: Option<String>,
    }
    /// The turn ended.
    Settled = "settled" {
        /// The turn.
        turn: TurnId,
        /// The attempt.
        attempt: u64,
        /// How.
        status: SettledStatus,
        /// The answer.
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")] reply: Option<Raw>,
        /// Why.
        #[serde(skip_serializing_if = "Option::is_none")] reason: Option<String>,
    }
    /// How far the delivery of the reply came.
    Delivery = "delivery" {
        /// The turn.
        turn: TurnId,
        /// The attempt.
        attempt: u64,
        /// How far.
        state: DeliveryState,
        /// The delivery key.
        key: String,
        /// Proof of publishing.
        #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")] receipt: Option<Raw>,
        /// Who.
        #[serde(skip_serializing_if = "Option::is_none")] by: Option<String>,
        /// Why.
        #[serde(skip_serializing_if = "Option::is_none")] why: Option<String>,
        /// The process of `deliver -- CMD`.
        #[serde(skip_serializing_if = "Option::is_none")] runner: Option<Owner>,
    }
    /// A recovery is complete.
    Recovered = "recovered" {
        /// The turn.
        turn: TurnId,
        /// The attempt.
        attempt: u64,
        /// One per call that had no answer before this attempt.
        decisions: Vec<Decided>,
        /// The branch on the session tree.
        #[serde(skip_serializing_if = "Option::is_none")] branch: Option<Branch>,
    }
    /// Not to be retried without a person.
    Parked = "parked" {
        /// The turn.
        turn: TurnId,
        /// Why.
        why: String,
        /// Who; `turnkeep` for the limit.
        by: String,
    }
    /// A person lets the turn go on.
    Unparked = "unparked" {
        /// The turn.
        turn: TurnId,
        /// Why.
        why: String,
        /// Who.
        by: String,
    }
    /// A torn tail was cut, or damage acknowledged.
    Repaired = "repaired" {
        /// Where it began, in bytes.
        offset: u64,
        /// How long it was, in bytes.
        bytes: u64,
        /// Digest of the bytes.
        sha256: Hash,
        /// Where the cut bytes are, relative to the state root.
        #[serde(skip_serializing_if = "Option::is_none")] saved_as: Option<String>,
        /// Why.
        why: String,
    }
    /// The driver's own remark.
    Note = "note" {
        /// The turn.
        turn: TurnId,
        /// The attempt.
        attempt: u64,
        /// The remark.
        content: Raw,
    }
}

impl Kind {
    /// The turn that the record speaks of.
    pub fn turn(&self) -> Option<&TurnId> {
        match self {
            Self::Opened(_) | Self::Repaired(_) => None,
            Self::Admitted(Admitted { turn, .. })
            | Self::Attempt(Attempt { turn, .. })
            | Self::Message(Message { turn, .. })
            | Self::Entry(Entry { turn, .. })
            | Self::Intent(Intent { turn, .. })
            | Self::Claimed(Claimed { turn, .. })
            | Self::Outcome(Outcome { turn, .. })
            | Self::Interrupted(Interrupted { turn, .. })
            | Self::NotRun(NotRun { turn, .. })
            | Self::Dispatched(Dispatched { turn, .. })
            | Self::Approval(Approval { turn, .. })
            | Self::Reconciled(Reconciled { turn, .. })
            | Self::Straggler(Straggler { turn, .. })
            | Self::Steered(Steered { turn, .. })
            | Self::Heartbeat(Heartbeat { turn, .. })
            | Self::Cancelled(Cancelled { turn, .. })
            | Self::Settled(Settled { turn, .. })
            | Self::Delivery(Delivery { turn, .. })
            | Self::Recovered(Recovered { turn, .. })
            | Self::Parked(Parked { turn, .. })
            | Self::Unparked(Unparked { turn, .. })
            | Self::Note(Note { turn, .. }) => Some(turn),
        }
    }

    /// The attempt that wrote the record, where its kind carries one.
    pub fn attempt(&self) -> Option<u64> {
        match self {
            Self::Opened(_)
            | Self::Repaired(_)
            | Self::Admitted(_)
            | Self::Approval(_)
            | Self::Reconciled(_)
            | Self::Steered(_)
            | Self::Cancelled(_)
            | Self::Parked(_)
            | Self::Unparked(_) => None,
            Self::Attempt(Attempt { attempt, .. })
            | Self::Message(Message { attempt, .. })
            | Self::Entry(Entry { attempt, .. })
            | Self::Intent(Intent { attempt, .. })
            | Self::Claimed(Claimed { attempt, .. })
            | Self::Outcome(Outcome { attempt, .. })
            | Self::Interrupted(Interrupted { attempt, .. })
            | Self::NotRun(NotRun { attempt, .. })
            | Self::Dispatched(Dispatched { attempt, .. })
            | Self::Straggler(Straggler { attempt, .. })
            | Self::Heartbeat(Heartbeat { attempt, .. })
            | Self::Settled(Settled { attempt, .. })
            | Self::Delivery(Delivery { attempt, .. })
            | Self::Recovered(Recovered { attempt, .. })
            | Self::Note(Note { attempt, .. }) => Some(*attempt),
        }
    }
}

/// One committed line of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Number, dense from 0.
    pub seq: u64,
    /// When it was written. Order never comes from it.
    pub at: At,
    /// What it says.
    pub kind: Kind,
    /// Byte offset of the first record still needed after this one.
    pub base: u64,
    /// `hash` of the record before.
    pub prev: Hash,
    /// SHA-256 of the line up to its own hash.
    pub hash: Hash,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_decimals_only() {
        assert_eq!(decimal("0"), Some(0));
        assert_eq!(decimal("9223372036854775807"), Some(NUMBER_MAX));
        for wrong in ["", "00", "01", "+1", "-1", "1.0", "9223372036854775808", "18446744073709551616"] {
            assert_eq!(decimal(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn refs_turns_and_times_have_one_spelling() {
        assert_eq!("7.0".parse::<CallRef>().map(|call| call.to_string()), Ok("7.0".to_owned()));
        assert!("7".parse::<CallRef>().is_err());
        assert!("07.0".parse::<CallRef>().is_err());
        assert!("a/b".parse::<TurnId>().is_err());
        assert!("a".repeat(129).parse::<TurnId>().is_err());
        assert_eq!("t-1".parse::<TurnId>().expect("a turn id").as_str(), "t-1");
        let at = "2026-11-29T15:26:34.123456Z".parse::<At>().expect("a time");
        assert_eq!(At::from_micros(at.micros()), at);
        assert_eq!((at.as_str(), format!("{at:?}").as_str()), (at.to_string().as_str(), at.as_str()));
        for wrong in [
            "2026-11-29T15:26:34Z",
            "2026-11-29T15:26:34.123456+00:00",
            "2026-13-29T15:26:34.123456Z",
            "2026-11-29T15:26:34.123456Z0",
            "2026-11-29T15:26:60.123456Z",
            "2026-11-29 15:26:34.123456Z",
        ] {
            assert!(wrong.parse::<At>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_hash_is_64_lower_case_hex_digits() {
        let digits = "0123456789abcdef".repeat(4);
        let hash = digits.parse::<Hash>().expect("a hash");
        assert_eq!((hash.as_str(), format!("{hash:?}")), (digits.as_str(), digits.clone()));
        for wrong in [&digits[1..], &format!("{digits}0"), &digits.to_uppercase(), &digits.replace('f', "g")]
        {
            assert!(wrong.parse::<Hash>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn replay_is_ordered() {
        assert!(Replay::Never < Replay::Keyed && Replay::Keyed < Replay::Safe);
    }
}
