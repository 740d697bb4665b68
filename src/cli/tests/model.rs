//! The model: a list of what was acknowledged, and what follows from the records that are there.
//!
//! It reads journal and session file as plain JSON lines and shares no code with what it judges but the digest.

use super::script;
use super::world::{self, Ack, Came, Front, JOURNAL, TREE, Trouble, in_root};
use crate::cli::error::Exit;
use crate::storage::{MemoryStorage, Op, OpKind, Prefixes, Remains};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A call: what the decision table looks at.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Default)]
struct Call {
    rule: Rule,
    /// Asked for by a message of a model, and so answered on the branch.
    from_model: bool,
    claimed: bool,
    dispatched: bool,
    /// The claim is of a `step run` whose process lives.
    runs: bool,
    approved: bool,
    denied: bool,
    answered: bool,
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

/// The turn as the records tell it.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Default)]
struct Turn {
    calls: BTreeMap<String, Call>,
    /// How each call stood when the newest attempt began.
    before: BTreeMap<String, &'static str>,
    open: bool,
    tree: Option<Value>,
    delivery: Option<String>,
    messages: usize,
    steered: usize,
    owner: Option<u64>,
    cause: String,
    finished: bool,
    cancelled: bool,
    settled: bool,
}

/// The words of the recover that follows each crash; its owner is this process, which lives.
pub(super) fn recover_words() -> Vec<String> {
    let pid = std::process::id().to_string();
    ["recover", "s", "--json", "--owner-pid", &pid].into_iter().map(str::to_owned).collect()
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Reopens a disk, recovers and compares; says what is not as it must be.
pub(super) fn judge(
    disk: &MemoryStorage,
    front: Front<'_>,
    remains: Remains,
    acked: &[Ack],
) -> Result<(), String> {
    if let Some((disk, acked)) = rebooted(disk, acked) {
        judge_as_it_is(&disk, front, remains, &acked).map_err(|why| format!("{why}, behind a reboot"))?;
    }
    judge_as_it_is(disk, front, remains, acked)
}

fn judge_as_it_is(
    disk: &MemoryStorage,
    front: Front<'_>,
    remains: Remains,
    acked: &[Ack],
) -> Result<(), String> {
    let run = |text: &str| world::run(disk, front, &words(text), Trouble::Nothing);
    let records = records(disk);
    every_ack_is_there(&records, acked)?;
    // Garbage in the session file is a dead line, which the agent that wrote it would pass over too.
    let verdict = run(if remains == Remains::Garbage { "verify s" } else { "verify s --with-tree" });
    let sound = match verdict.exit {
        Some(Exit::Done | Exit::NeedsRecovery) => true,
        Some(Exit::NotFound) if !disk.files().contains_key(&PathBuf::from(JOURNAL)) => true,
        Some(Exit::Damaged) if remains == Remains::Garbage => return damage_is_told(disk, front),
        _ => false,
    };
    expect(sound, || format!("verify says {:?}: {}{}", verdict.exit, verdict.out, verdict.err))?;
    let expected = Turn::of(disk);

    let first = world::run(disk, front, &recover_words(), Trouble::Nothing);
    if !disk.files().contains_key(&PathBuf::from(JOURNAL)) {
        return expect(first.exit == Some(Exit::NotFound), || format!("recover of nothing: {first:?}"));
    }
    expect(first.exit == Some(expected.exit()), || {
        format!("recover ends with {:?}, not {:?}: {}{}", first.exit, expected.exit(), first.out, first.err)
    })?;
    let decided = decisions(&first);
    expect(decided == expected.decisions(), || {
        format!("decisions {decided:?}, not {:?}", expected.decisions())
    })?;
    let mut acked = acked.to_vec();
    acked.extend(first.ack());
    whole(disk, front, &acked).map_err(|why| format!("behind recover: {why}"))?;
    let expected = Turn::of(disk);

    let (files, before) = (disk.files(), disk.ops_count());
    let second = world::run(disk, front, &recover_words(), Trouble::Nothing);
    expect(second.exit == Some(expected.exit()), || {
        format!("the second recover ends with {:?}", second.exit)
    })?;
    expect(decisions(&second) == decided, || format!("the second recover decides {:?}", decisions(&second)))?;
    let writes: Vec<_> = disk.ops_from(before).into_iter().filter(|op| op.kind == OpKind::Append).collect();
    expect(files == disk.files() && writes.is_empty(), || format!("the second recover writes: {writes:?}"))?;

    // Where all is durable a power cut leaves what was just looked at.
    let cuts = if disk.is_durable() { Vec::new() } else { disk.power_cuts(Prefixes::Some) };
    for cut in cuts {
        whole(&cut.storage, &world::honest, &acked)
            .map_err(|why| format!("power cut behind recover: {why}"))?;
    }
    Ok(())
}

/// After a recover: what was acknowledged, a sound journal, a complete branch, kept bytes of torn tails.
fn whole(disk: &MemoryStorage, front: Front<'_>, acked: &[Ack]) -> Result<(), String> {
    let records = records(disk);
    every_ack_is_there(&records, acked)?;
    let verdict = world::run(disk, front, &words("verify s --with-tree"), Trouble::Nothing);
    // A settled turn that the file does not lack is not written, so a torn last line waits for who writes next.
    let torn_tree = verdict.exit == Some(Exit::NeedsRecovery)
        && verdict.out.contains("TK081")
        && records.iter().any(|record| record["kind"] == "settled");
    let sound = verdict.exit == Some(Exit::Done) || torn_tree;
    expect(sound, || format!("verify says {:?}: {}{}", verdict.exit, verdict.out, verdict.err))?;
    tails_are_kept(disk, &records)?;
    branch_is_complete(disk, &Turn::of(disk))
}

/// Bytes that nobody wrote are told, and nothing is written behind them.
fn damage_is_told(disk: &MemoryStorage, front: Front<'_>) -> Result<(), String> {
    let files = disk.files();
    let came = world::run(disk, front, &recover_words(), Trouble::Nothing);
    let told = came.exit == Some(Exit::Damaged) && came.ticket().is_none() && files == disk.files();
    expect(told, || format!("recover on damage ends with {:?}: {}{}", came.exit, came.out, came.err))
}

/// What a command with a fault may have done and said.
pub(super) fn audit(came: &Came, trouble: Trouble) -> Result<(), String> {
    let mut failed_sync = BTreeSet::new();
    for op in came.ops.iter().filter(|op| matches!(op.kind, OpKind::SyncData | OpKind::SyncAll)) {
        expect(!failed_sync.contains(&op.handle), || format!("synced again after a failed sync: {op:?}"))?;
        if op.faulty {
            failed_sync.insert(op.handle);
        }
    }
    // A script that runs its own call ends as that did.
    let silent = matches!(
        came.exit,
        None | Some(Exit::Done | Exit::AlreadyDone | Exit::Waiting | Exit::OfCommand(script::CMD_EXIT))
    );
    expect(silent || came.ack().is_none(), || format!("{:?}, and acknowledged: {}", came.exit, came.out))?;
    let is_short = matches!(trouble, Trouble::Short(..) | Trouble::ShortThenFull(..));
    let mut failed = came.ops.iter().filter(|op| op.faulty).skip(usize::from(is_short));
    let vital = |op: &&Op| match op.kind {
        OpKind::Append | OpKind::SyncData | OpKind::SyncAll | OpKind::Truncate => in_root(&op.path),
        OpKind::OpenAppend => op.path.to_str() == Some(JOURNAL),
        _ => false,
    };
    let Some(fault) = failed.find(vital) else { return Ok(()) };
    // A script that runs its own calls is told 125 where CMD was not started, 124 where it was and stands nowhere.
    let told = matches!(came.exit, None | Some(Exit::NotDurable | Exit::OfCommand(124 | 125)));
    expect(told, || {
        format!("{fault:?} failed, and the command ends with {:?}: {}{}", came.exit, came.out, came.err)
    })?;
    // The bytes of a write that failed, or whose sync failed, are cut off at once.
    let of_file = |op: &&Op| op.handle == fault.handle && op.path.to_str() == Some(JOURNAL);
    let before = came.ops.iter().filter(of_file).take_while(|op| op.index < fault.index);
    let last_change =
        before.filter(|op| matches!(op.kind, OpKind::Append | OpKind::SyncData | OpKind::SyncAll)).last();
    let wrote = fault.kind == OpKind::Append || last_change.is_some_and(|op| op.kind == OpKind::Append);
    let next = came.ops.iter().filter(of_file).find(|op| op.index > fault.index);
    let must_cut = of_file(&fault) && wrote && came.exit.is_some();
    expect(!must_cut || next.is_some_and(|op| op.kind == OpKind::Truncate), || {
        format!("no cut behind {fault:?}, but {next:?}")
    })
}

impl Turn {
    fn of(disk: &MemoryStorage) -> Self {
        let policy = disk.files().remove(&PathBuf::from(world::ROOT).join("policy.json"));
        let policy =
            policy.map(|bytes| serde_json::from_slice(&bytes).expect("a policy")).unwrap_or_default();
        let mut turn = Self::default();
        for record in records(disk) {
            turn.take(&record, &policy);
        }
        turn
    }

    fn take(&mut self, record: &Value, policy: &Value) {
        let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
        let name = text("ref");
        match record["kind"].as_str().unwrap_or_default() {
            "admitted" => {
                self.open = true;
                self.tree = record.get("tree").cloned();
            }
            "attempt" => {
                let goes_on = !self.finished && self.cause != "admit" && !self.cause.is_empty();
                if !goes_on {
                    self.before = self.standing();
                }
                (self.owner, self.cause) = (record["owner"]["pid"].as_u64(), text("cause"));
                self.finished = false;
            }
            "recovered" => self.finished = true,
            "message" => {
                self.messages += 1;
                for call in record["calls"].as_array().into_iter().flatten() {
                    let name = call["ref"].as_str().unwrap_or_default().to_owned();
                    let rule = Rule::recorded(call).with(Rule::now(policy, &call["tool"]));
                    self.calls.insert(name, Call { rule, from_model: true, ..Call::default() });
                }
            }
            "intent" => {
                let rule = Rule::recorded(record).with(Rule::now(policy, &record["tool"]));
                self.calls.insert(format!("{}.0", record["seq"]), Call { rule, ..Call::default() });
            }
            "claimed" => self.call(&name).claim(lives(&record["runner"])),
            "dispatched" => {
                self.call(&name).claim(false);
                self.call(&name).dispatched = true;
            }
            "approval" => {
                let granted = record["decision"] == "granted";
                (self.call(&name).approved, self.call(&name).denied) = (granted, !granted);
            }
            "reconciled" if record["outcome"] == "not_applied" => {
                let call = self.call(&name);
                (call.claimed, call.dispatched, call.runs) = (false, false, false);
            }
            "result" | "interrupted" | "not_run" | "reconciled" => self.call(&name).answered = true,
            "steered" => self.steered += 1,
            "cancelled" => self.cancelled = true,
            "settled" => self.settled = true,
            "delivery" => self.delivery = Some(text("state")),
            _ => {}
        }
    }

    fn call(&mut self, name: &str) -> &mut Call {
        self.calls.get_mut(name).unwrap_or_else(|| panic!("nobody asked for call {name}"))
    }

    /// What is decided about each call.
    fn standing(&self) -> BTreeMap<String, &'static str> {
        let decided = |(name, call): (&String, &Call)| (name.clone(), call.decision(self.cancelled));
        self.calls.iter().map(decided).collect()
    }

    /// What the next recover has to decide: of an attempt of its own, or of the one that it goes on with.
    fn decisions(&self) -> BTreeMap<String, String> {
        let of_us = self.owner == Some(u64::from(std::process::id()));
        let goes_on = self.is_recovered() && (!self.finished || of_us);
        let standing = if goes_on { self.before.clone() } else { self.standing() };
        let open = self.exit() != Exit::AlreadyDone;
        standing.into_iter().filter(|_| open).map(|(name, rule)| (name, rule.to_owned())).collect()
    }

    fn is_recovered(&self) -> bool {
        !self.cause.is_empty() && self.cause != "admit"
    }

    fn exit(&self) -> Exit {
        match self.delivery.as_deref() {
            _ if !self.open => Exit::AlreadyDone,
            Some("sent") => Exit::AlreadyDone,
            Some(_) => Exit::Waiting,
            // Without a model's last message there is no reply to deliver.
            None if self.settled && self.cancelled => Exit::AlreadyDone,
            None if self.is_recovered() && !self.finished => Exit::Done,
            None if self.waits() => Exit::Waiting,
            None => Exit::Done,
        }
    }

    /// Whether only somebody else can move it.
    fn waits(&self) -> bool {
        let mut open = self.calls.values().filter(|call| !call.answered).peekable();
        let with_others = |call: &Call| matches!(call.decision(self.cancelled), "ask" | "await" | "hold");
        open.peek().is_some() && open.all(with_others)
    }

    fn appends(&self) -> bool {
        self.tree.as_ref().is_some_and(|tree| tree["mode"] == "append")
    }

    /// Answers that belong on the branch.
    fn answers(&self) -> usize {
        self.calls.values().filter(|call| call.from_model && call.answered).count()
    }

    /// The input, and what joined it; that waits for its place while a call is unanswered.
    fn inputs(&self) -> usize {
        let all_answered = self.answers() == self.calls.values().filter(|call| call.from_model).count();
        1 + if all_answered { self.steered } else { 0 }
    }
}

impl Call {
    fn claim(&mut self, runs: bool) {
        (self.claimed, self.runs, self.approved) = (true, runs, false);
    }

    /// The decision table of the contract, row by row; no workload has a message that was cut off.
    fn decision(&self, cancelled: bool) -> &'static str {
        let unapproved = self.rule.asks && !self.approved;
        match (self.claimed, self.rule.replay) {
            _ if self.answered => "redeliver",
            _ if self.dispatched || self.runs => "await",
            (true, _) if cancelled => "interrupt",
            (true, Replay::Safe | Replay::Keyed) if self.denied => "interrupt",
            (true, Replay::Safe | Replay::Keyed) if unapproved => "ask",
            (true, Replay::Safe | Replay::Keyed) => "rerun",
            (true, Replay::Never) if self.rule.holds || !self.from_model => "hold",
            (true, Replay::Never) => "interrupt",
            (false, _) if cancelled || self.denied => "not_run",
            (false, _) if unapproved => "ask",
            (false, _) => "run",
        }
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

/// Whether a recorded process is this one, which lives, and of the time since the machine was started.
fn lives(process: &Value) -> bool {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id");
    process["pid"] == std::process::id() && process["boot"] == boot.trim()
}

/// The same disk where the machine was started anew since, so that no `step run` on it lives; nothing where there is
/// none. No other machine can be had here, so the records are of another time: each is chained anew.
fn rebooted(disk: &MemoryStorage, acked: &[Ack]) -> Option<(MemoryStorage, Vec<Ack>)> {
    let text = String::from_utf8(disk.files().remove(&PathBuf::from(JOURNAL))?).ok()?;
    if !text.contains(r#""runner":{"#) {
        return None;
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id");
    let boot = boot.trim();
    let (mut journal, mut acked) = (String::new(), acked.to_vec());
    let mut prev: Option<String> = None;
    for line in text.split_inclusive('\n') {
        let kept = line.trim_end_matches(['\n', '\0']);
        let Ok(record) = serde_json::from_str::<Value>(kept) else {
            journal.push_str(line);
            continue;
        };
        let hash = |record: &Value, key: &str| record[key].as_str().unwrap_or_default().to_owned();
        let (old, old_prev) = (hash(&record, "hash"), hash(&record, "prev"));
        let line = line.replace(boot, &"0".repeat(boot.len()));
        let line = line.replace(&old_prev, prev.as_ref().unwrap_or(&old_prev));
        let body = line.split(r#","hash":""#).next().unwrap_or_default();
        let new = crate::chain::digest(body.as_bytes()).as_str().to_owned();
        acked.iter_mut().filter(|ack| ack.hash == old).for_each(|ack| ack.hash.clone_from(&new));
        journal.push_str(&line.replace(&old, &new));
        prev = Some(new);
    }
    let disk = disk.fork();
    disk.write(JOURNAL, journal.as_bytes());
    Some((disk, acked))
}

/// The claim of the call whose CMD ran between these two; as good as acknowledged, since its effect is there.
pub(super) fn claim_of_effect(before: &MemoryStorage, after: &MemoryStorage) -> Result<Ack, String> {
    let known = records(before).len();
    let claim = records(after).into_iter().skip(known).find(|record| record["kind"] == "claimed");
    let claim = claim.ok_or("CMD ran, and no claim is there")?;
    let hash = claim["hash"].as_str().unwrap_or_default().to_owned();
    Ok(Ack { seq: claim["seq"].as_u64().unwrap_or_default(), hash })
}

/// The records in whole lines.
fn records(disk: &MemoryStorage) -> Vec<Value> {
    let bytes = disk.files().remove(&PathBuf::from(JOURNAL)).unwrap_or_default();
    let records = bytes.split(|byte| *byte == b'\n').filter_map(|line| {
        // A record that lacks its newline is one also where NULs follow it.
        let kept = line.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
        serde_json::from_slice(&line[..kept]).ok()
    });
    records.collect()
}

/// Behind every power cut there is what was acknowledged.
pub(super) fn is_durable(disk: &MemoryStorage, acked: &[Ack]) -> Result<(), String> {
    let cuts = disk.power_cuts(Prefixes::Some);
    cuts.iter().try_for_each(|cut| every_ack_is_there(&records(&cut.storage), acked))
}

fn every_ack_is_there(records: &[Value], acked: &[Ack]) -> Result<(), String> {
    for ack in acked {
        let there = records.iter().any(|record| {
            record["seq"].as_u64() == Some(ack.seq) && record["hash"].as_str() == Some(&ack.hash)
        });
        expect(there, || format!("record {} was acknowledged and is not there", ack.seq))?;
    }
    Ok(())
}

fn decisions(came: &Came) -> BTreeMap<String, String> {
    let document = came.document().unwrap_or_default();
    let all = document["decisions"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    all.map(|decided| (text(&decided["ref"]), text(&decided["decision"]))).collect()
}

/// Every `repaired` has its bytes in quarantine.
fn tails_are_kept(disk: &MemoryStorage, records: &[Value]) -> Result<(), String> {
    let files = disk.files();
    for record in records.iter().filter(|record| record["kind"] == "repaired") {
        let name = record["saved_as"].as_str().unwrap_or_default();
        let saved = files.get(&PathBuf::from(world::ROOT).join(name));
        let right = saved
            .is_some_and(|bytes| Some(crate::chain::digest(bytes).as_str()) == record["sha256"].as_str());
        expect(right, || format!("the bytes of {record} are not kept"))?;
    }
    Ok(())
}

/// Inputs, each message and each answer stand once on the branch that ends in the last line.
fn branch_is_complete(disk: &MemoryStorage, turn: &Turn) -> Result<(), String> {
    if turn.tree.is_none() {
        return Ok(());
    }
    let bytes = disk.files().remove(&PathBuf::from(TREE)).unwrap_or_default();
    let lines = bytes.split(|byte| *byte == b'\n');
    let entries: Vec<Value> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let ids: Vec<&str> = entries.iter().filter_map(|entry| entry["id"].as_str()).collect();
    let distinct: BTreeSet<&str> = ids.iter().copied().collect();
    expect(ids.len() == distinct.len(), || {
        format!("an entry stands twice: {}", String::from_utf8_lossy(&bytes))
    })?;
    let mut path = Vec::new();
    let mut at = entries.last();
    while let Some(entry) = at {
        path.push(entry);
        let parent = entry["parentId"].as_str();
        at = parent.and_then(|parent| entries.iter().find(|entry| entry["id"] == parent));
    }
    let message = |role: &str| {
        let of_role = |entry: &&&Value| {
            entry["message"]["role"] == role
                && entry["id"].as_str().is_some_and(|id| !id.starts_with("aa00000"))
        };
        path.iter().filter(of_role).count()
    };
    let found = (message("user"), message("assistant"), message("toolResult"));
    let wanted = (turn.inputs(), turn.messages, turn.answers());
    // What was said last in a turn that nobody goes on with is the agent's to write, unless each step is written.
    let agents = turn.exit() != Exit::Done && !turn.appends();
    let found = if agents { (found.0, turn.messages, found.2) } else { found };
    expect(!turn.open || found == wanted, || {
        let text = String::from_utf8_lossy(&bytes);
        format!("inputs, messages and answers on the branch are {found:?}, not {wanted:?}:\n{text}")
    })
}

fn expect(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}
