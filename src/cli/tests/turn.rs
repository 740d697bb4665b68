//! The model's turns: what the records say of each, what is decided about its calls, and how a recover of it ends.
//!
//! Records and policy are read as plain JSON. No workload takes an approval back or names a lease of another machine.

use super::tree::{self, SessionFile};
use super::world::{self, JOURNAL, POLICY};
use crate::cli::error::Exit;
use crate::storage::MemoryStorage;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// All turns of the session, in the order of their admission.
#[derive(Default)]
pub(super) struct Turns(Vec<Turn>);

/// A call: what the decision table looks at.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Default)]
struct Call {
    /// As the provider, or the script, names it.
    id: String,
    rule: Rule,
    /// Asked for by a message of a model, and so answered on the branch.
    from_model: bool,
    /// The message was cut off before its end.
    cut_off: bool,
    /// The call that it is nested in.
    parent: Option<String>,
    claimed: bool,
    dispatched: bool,
    /// The claim is of a `step run` whose process lives.
    runs: bool,
    approved: bool,
    denied: bool,
    answered: bool,
    /// Whatever was recorded of it may be lost.
    lost: bool,
}

/// What a policy says of a tool; the default is what it says of one that it does not know.
#[derive(Default, Clone, Copy)]
struct Rule {
    replay: Replay,
    asks: bool,
    holds: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Replay {
    #[default]
    Never,
    Keyed,
    Safe,
}

/// Who has a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// Nobody, or nobody who lives.
    Free,
    /// This process, whose recover it was.
    Us,
    /// Another process, which lives; and when its lease runs out, where it has one.
    Other(Option<i64>),
}

/// A turn as the records tell it.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Default)]
pub(super) struct Turn {
    /// None where there is no turn.
    pub(super) id: Option<String>,
    calls: BTreeMap<String, Call>,
    /// How each call stood when the newest attempt began.
    before: BTreeMap<String, &'static str>,
    pub(super) tree: Option<Value>,
    /// The ids of the agent's own entries that the journal has.
    pub(super) entries: Vec<String>,
    pub(super) messages: usize,
    /// The agent's own entries that are no messages.
    pub(super) remarks: usize,
    steered: usize,
    has_key: bool,
    has_reply: bool,
    delivery: Option<String>,
    owner: Option<u64>,
    /// How long the owner asked to have it, and when that began to count, in microseconds.
    lease: Option<(i64, i64)>,
    cause: String,
    finished: bool,
    /// Attempts in a row that came to nothing.
    fruitless: u64,
    /// The newest attempt.
    attempt: u64,
    /// How many attempts may come to nothing.
    limit: u64,
    parked: bool,
    cancelled: bool,
    settled: bool,
}

impl Turns {
    pub(super) fn of(disk: &MemoryStorage) -> Self {
        let policy = disk.files().remove(&PathBuf::from(POLICY));
        let policy =
            policy.map(|bytes| serde_json::from_slice(&bytes).expect("a policy")).unwrap_or_default();
        let mut turns = Self::default();
        for record in records(disk) {
            turns.take(&record, &policy);
        }
        // Who recovers acknowledges the damage first.
        if damage(disk).is_some() {
            turns.0.iter_mut().for_each(Turn::lose);
        }
        let file = SessionFile::of(disk);
        for turn in &mut turns.0 {
            for entry in file.left_by_agent(turn) {
                turn.take_entry(&entry, &Value::Null, &policy);
            }
        }
        turns
    }

    fn take(&mut self, record: &Value, policy: &Value) {
        match record["kind"].as_str().unwrap_or_default() {
            "admitted" => self.0.push(Turn::admitted(record, policy)),
            "repaired" if record.get("saved_as").is_none() => self.0.iter_mut().for_each(Turn::lose),
            _ => {
                let of_it = |turn: &&mut Turn| turn.id.as_deref() == record["turn"].as_str();
                if let Some(turn) = self.0.iter_mut().find(of_it) {
                    turn.take(record, policy);
                }
            }
        }
    }

    /// The turn that a recover takes which names none.
    pub(super) fn taken(&self) -> Turn {
        let mut unclosed = self.0.iter().filter(|turn| !turn.is_closed()).peekable();
        let oldest = unclosed.peek().copied();
        // A recover that was killed is gone on with by who asks again.
        let is_free = |turn: &&Turn| match turn.holder() {
            Holder::Free => !turn.waits(),
            Holder::Us => turn.is_unfinished() && !turn.waits(),
            Holder::Other(_) => false,
        };
        let free = unclosed.find(is_free);
        free.or(oldest).or(self.0.last()).cloned().unwrap_or_default()
    }

    /// Those that are not done with.
    pub(super) fn unclosed(self) -> impl Iterator<Item = Turn> {
        self.0.into_iter().filter(|turn| !turn.is_closed())
    }

    /// The turn of this id.
    pub(super) fn named(&self, id: Option<&String>) -> Turn {
        self.0.iter().find(|turn| turn.id.as_ref() == id).cloned().unwrap_or_default()
    }
}

impl Turn {
    fn admitted(record: &Value, policy: &Value) -> Self {
        Self {
            id: record["turn"].as_str().map(str::to_owned),
            tree: record.get("tree").cloned(),
            has_key: record.get("delivery").is_some(),
            limit: policy["limits"]["attempts"].as_u64().unwrap_or(5),
            ..Self::default()
        }
    }

    fn take(&mut self, record: &Value, policy: &Value) {
        let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
        let name = text("ref");
        if record["attempt"].as_u64() == Some(self.attempt) {
            self.lease = self.lease.map(|(_, lease)| (micros(record), lease));
        }
        match record["kind"].as_str().unwrap_or_default() {
            "attempt" => self.begin(record),
            "recovered" => self.finished = true,
            "message" => {
                self.messages += 1;
                self.ask(record, policy, record["message"]["stopReason"] == "length");
                self.fruitless = 0;
            }
            "entry" => self.take_entry(&record["entry"], record, policy),
            "intent" => {
                let rule = Rule::recorded(record).with(Rule::now(policy, &record["tool"]));
                let parent = record["parent"].as_str().map(str::to_owned);
                let call = Call { id: text("id"), rule, parent, ..Call::default() };
                self.calls.insert(format!("{}.0", record["seq"]), call);
                self.fruitless = 0;
            }
            "claimed" => self.call(&name).claim(lives(&record["runner"])),
            "dispatched" => {
                self.call(&name).claim(false);
                self.call(&name).dispatched = true;
                self.fruitless = 0;
            }
            "approval" => {
                let granted = record["decision"] == "granted";
                (self.call(&name).approved, self.call(&name).denied) = (granted, !granted);
                self.fruitless = 0;
            }
            "reconciled" if record["outcome"] == "not_applied" => {
                let call = self.call(&name);
                (call.claimed, call.dispatched, call.runs, call.lost) = (false, false, false, false);
                self.fruitless = 0;
            }
            "interrupted" | "not_run" => self.call(&name).answered = true,
            "result" | "reconciled" => {
                self.call(&name).answered = true;
                self.fruitless = 0;
            }
            "steered" => (self.steered, self.fruitless) = (self.steered + 1, 0),
            "cancelled" => self.cancelled = true,
            "settled" => {
                (self.settled, self.has_reply, self.fruitless) = (true, record.get("reply").is_some(), 0);
            }
            "delivery" => (self.delivery, self.fruitless) = (Some(text("state")), 0),
            "parked" => self.parked = true,
            "unparked" => (self.parked, self.fruitless) = (false, 0),
            _ => {}
        }
    }

    fn begin(&mut self, record: &Value) {
        if !self.is_unfinished() {
            self.before = self.standing();
        }
        let number = record["attempt"].as_u64().unwrap_or_default();
        if number != self.attempt {
            self.fruitless += 1;
        }
        self.attempt = number;
        self.owner = record["owner"]["pid"].as_u64();
        self.lease = record["lease_ms"].as_i64().map(|lease| (micros(record), lease * 1000));
        self.cause = record["cause"].as_str().unwrap_or_default().to_owned();
        self.finished = false;
    }

    /// An entry of the agent's: its record, or the line alone, of which a recover makes one.
    fn take_entry(&mut self, entry: &Value, record: &Value, policy: &Value) {
        self.entries.push(tree::id(entry).to_owned());
        let message = &entry["message"];
        match message["role"].as_str() {
            Some("assistant") => {
                self.messages += 1;
                let cut_off = message["stopReason"] == "length";
                if record.is_null() {
                    self.ask(&tree::asked_in(entry), policy, cut_off);
                } else {
                    self.ask(record, policy, cut_off);
                }
                self.fruitless = 0;
            }
            Some("toolResult") => {
                let answers = |call: &Call| message["toolCallId"] == call.id.as_str();
                let name = self.calls.iter().find(|(_, call)| answers(call)).map(|(name, _)| name.clone());
                let name = name.expect("a call that was asked for");
                self.call(&name).answered = true;
                if self.is_unfinished() {
                    self.before.insert(name, "redeliver");
                }
                self.fruitless = 0;
            }
            Some(_) => {}
            None if entry["type"] == "session" => {}
            None => self.remarks += 1,
        }
    }

    /// A message of a model asks for calls.
    fn ask(&mut self, record: &Value, policy: &Value, cut_off: bool) {
        for call in record["calls"].as_array().into_iter().flatten() {
            let name = call["ref"].as_str().unwrap_or_default().to_owned();
            let id = call["id"].as_str().unwrap_or_default().to_owned();
            let now = Rule::now(policy, &call["tool"]);
            // What is no record yet is written down under the policy of now.
            let rule = if call.get("replay").is_some() { Rule::recorded(call).with(now) } else { now };
            self.calls.insert(name.clone(), Call { id, rule, from_model: true, cut_off, ..Call::default() });
            if self.is_unfinished() {
                let decision = self.decision(&name);
                self.before.insert(name, decision);
            }
        }
    }

    /// Records are lost, and each may have been anything.
    fn lose(&mut self) {
        if self.is_closed() {
            return;
        }
        for call in self.calls.values_mut().filter(|call| !call.answered) {
            (call.claimed, call.lost, call.approved, call.denied) = (true, true, false, false);
        }
        self.delivery.get_or_insert_with(|| "begun".to_owned());
        self.parked |= !self.settled;
    }

    fn call(&mut self, name: &str) -> &mut Call {
        self.calls.get_mut(name).unwrap_or_else(|| panic!("nobody asked for call {name}"))
    }

    /// What is decided about each call.
    fn standing(&self) -> BTreeMap<String, &'static str> {
        self.calls.keys().map(|name| (name.clone(), self.decision(name))).collect()
    }

    /// What the next recover has to decide about the calls, by their ids: of an attempt of its own, or of the one that
    /// it goes on with.
    pub(super) fn decisions(&self) -> BTreeMap<String, String> {
        let goes_on = self.is_recovered() && (!self.finished || self.holder() == Holder::Us);
        let standing = if goes_on && !self.parked { self.before.clone() } else { self.standing() };
        let open = !matches!(self.exit(), Exit::AlreadyDone | Exit::Busy);
        let told = |(name, decision): (String, &str)| (self.calls[&name].id.clone(), decision.to_owned());
        standing.into_iter().filter(|_| open).map(told).collect()
    }

    fn is_recovered(&self) -> bool {
        !self.cause.is_empty() && self.cause != "admit"
    }

    /// The newest attempt is of a recover that did not come to its end.
    pub(super) fn is_unfinished(&self) -> bool {
        self.is_recovered() && !self.finished
    }

    pub(super) fn is_closed(&self) -> bool {
        let delivered = matches!(self.delivery.as_deref(), Some("sent" | "waived"));
        self.id.is_none() || (self.settled && (delivered || !self.has_key || !self.has_reply))
    }

    /// As `recover` wants it named.
    pub(super) fn name(&self) -> String {
        self.id.as_ref().map_or("s".to_owned(), |id| format!("s:{id}"))
    }

    /// The same for who may take it from another process that lives.
    pub(super) fn taken_over(self) -> Self {
        let owner = self.owner.filter(|_| self.holder() == Holder::Us);
        Self { owner, ..self }
    }

    /// The same behind a person's word.
    pub(super) fn unparked(&self) -> Self {
        Self { parked: false, fruitless: 0, ..self.clone() }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    pub(super) fn is_parked(&self) -> bool {
        self.parked
    }

    pub(super) fn holder(&self) -> Holder {
        match self.owner {
            Some(pid) if pid == u64::from(std::process::id()) => Holder::Us,
            Some(pid) if pid == u64::from(world::other_process()) => match self.lease {
                None => Holder::Other(None),
                Some((since, lease)) if world::clock() < since + lease => Holder::Other(Some(since + lease)),
                Some(_) => Holder::Free,
            },
            _ => Holder::Free,
        }
    }

    pub(super) fn exit(&self) -> Exit {
        match () {
            () if self.is_closed() => Exit::AlreadyDone,
            () if matches!(self.holder(), Holder::Other(_)) => Exit::Busy,
            () if self.parked => Exit::Waiting,
            () if self.settled && self.delivery.is_some() => Exit::Waiting,
            () if self.is_unfinished() => Exit::Done,
            () if self.waits() || self.is_due_to_park() => Exit::Waiting,
            () => Exit::Done,
        }
    }

    /// Whether only somebody else can move it.
    fn waits(&self) -> bool {
        let mut open = self.calls.iter().filter(|(_, call)| !call.answered).peekable();
        let with_others = |name: &String| matches!(self.decision(name), "ask" | "await" | "hold");
        let all_wait = !self.settled && open.peek().is_some() && open.all(|(name, _)| with_others(name));
        self.parked || (self.settled && self.delivery.is_some()) || all_wait
    }

    /// Whether the next attempt would be one too many.
    fn is_due_to_park(&self) -> bool {
        self.fruitless >= self.limit && self.holder() != Holder::Us
    }

    pub(super) fn appends(&self) -> bool {
        self.tree.as_ref().is_some_and(|tree| tree["mode"] == "append")
    }

    /// Answers that belong on the branch.
    pub(super) fn answers(&self) -> usize {
        self.calls.values().filter(|call| call.from_model && call.answered).count()
    }

    /// The input, and what joined it; that waits for its place while a call is unanswered.
    pub(super) fn inputs(&self) -> usize {
        let all_answered = self.answers() == self.calls.values().filter(|call| call.from_model).count();
        1 + if all_answered { self.steered } else { 0 }
    }

    /// The decision table of the contract, row by row.
    fn decision(&self, name: &str) -> &'static str {
        let call = &self.calls[name];
        let unapproved = call.rule.asks && !call.approved;
        let nested = call.parent.is_some();
        let never = call.lost || self.nests_what_may_not_run_again(name);
        let replay = if never { Replay::Never } else { call.rule.replay };
        match (call.claimed, replay) {
            _ if call.answered => "redeliver",
            _ if call.cut_off => "not_run",
            _ if call.dispatched || call.runs => "await",
            (true, _) if self.cancelled || nested => "interrupt",
            (true, Replay::Safe | Replay::Keyed) if call.denied => "interrupt",
            (true, Replay::Safe | Replay::Keyed) if unapproved => "ask",
            (true, Replay::Safe | Replay::Keyed) => "rerun",
            (true, Replay::Never) if call.rule.holds || !call.from_model => "hold",
            (true, Replay::Never) => "interrupt",
            (false, _) if self.cancelled || nested || call.denied => "not_run",
            (false, _) if unapproved => "ask",
            (false, _) => "run",
        }
    }

    /// Whether a call that was claimed is nested in this one and is not safe.
    fn nests_what_may_not_run_again(&self, name: &str) -> bool {
        self.calls.values().any(|call| {
            call.parent.as_deref() == Some(name) && call.claimed && call.rule.replay != Replay::Safe
        })
    }
}

impl Call {
    fn claim(&mut self, runs: bool) {
        (self.claimed, self.runs, self.approved) = (true, runs, false);
    }
}

impl Rule {
    /// As it was written down with a call, or as a rule of a policy file spells it.
    fn recorded(spelled: &Value) -> Self {
        let replay = match spelled["replay"].as_str() {
            Some("safe") => Replay::Safe,
            Some("keyed") => Replay::Keyed,
            _ => Replay::Never,
        };
        Self { replay, asks: spelled["approval"] == "required", holds: spelled["unknown"] == "hold" }
    }

    /// As the policy file has it, or the built-in list where there is none.
    fn now(policy: &Value, tool: &Value) -> Self {
        match policy["rules"].as_array() {
            Some(rules) => {
                rules.iter().find(|rule| rule["tool"] == *tool).map(Self::recorded).unwrap_or_default()
            }
            None if tool == "read" => Self { replay: Replay::Safe, ..Self::default() },
            None => Self::default(),
        }
    }

    /// The policy in force can veto and never upgrade.
    fn with(self, now: Self) -> Self {
        Self {
            replay: self.replay.min(now.replay),
            asks: self.asks || now.asks,
            holds: self.holds || now.holds,
        }
    }
}

/// The records in whole lines.
pub(super) fn records(disk: &MemoryStorage) -> Vec<Value> {
    let bytes = disk.files().remove(&PathBuf::from(JOURNAL)).unwrap_or_default();
    bytes.split(|byte| *byte == b'\n').filter_map(record).collect()
}

/// A record that lacks its newline is one also where NULs follow it.
fn record(line: &[u8]) -> Option<Value> {
    let kept = line.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    serde_json::from_slice(&line[..kept]).ok()
}

/// Where a whole line of the journal is none that anybody wrote, unless somebody acknowledged that.
pub(super) fn damage(disk: &MemoryStorage) -> Option<usize> {
    let bytes = disk.files().remove(&PathBuf::from(JOURNAL)).unwrap_or_default();
    let mut offset = 0;
    let mut damaged = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if line.ends_with(b"\n") && record(&line[..line.len() - 1]).is_none() {
            damaged.push(offset);
        }
        offset += line.len();
    }
    let acknowledged = |offset: &usize| {
        let known = |record: &Value| {
            record["kind"] == "repaired" && record["offset"].as_u64() == Some(*offset as u64)
        };
        records(disk).iter().any(known)
    };
    damaged.into_iter().find(|offset| !acknowledged(offset))
}

/// When a record was made.
fn micros(record: &Value) -> i64 {
    let at = chrono::DateTime::parse_from_rfc3339(record["at"].as_str().unwrap_or_default());
    at.expect("a time").timestamp_micros()
}

/// Whether a recorded process is this one, which lives, and of the time since the machine was started.
fn lives(process: &Value) -> bool {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id");
    process["pid"] == std::process::id() && process["boot"] == boot.trim()
}
