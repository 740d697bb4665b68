//! The model: a list of what was acknowledged, and what follows from the records that are there.
//!
//! It reads journal and session file as plain JSON lines and shares no code with what it judges.

use super::world::{self, Ack, Came, Front, JOURNAL, TREE, Trouble, in_root};
use crate::cli::error::Exit;
use crate::storage::{MemoryStorage, Op, OpKind, Remains};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A call: what the decision table looks at.
struct Call {
    replay: String,
    claimed: bool,
    answered: bool,
}

/// The turn as the records tell it.
#[derive(Default)]
struct Turn {
    calls: BTreeMap<String, Call>,
    /// How each call stood when the newest attempt began.
    before: BTreeMap<String, &'static str>,
    open: bool,
    appends: bool,
    delivery: Option<String>,
    messages: usize,
    answered: BTreeSet<String>,
    owner: Option<u64>,
    cause: String,
    finished: bool,
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
    let expected = Turn::of(&records);

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

    let (files, before) = (disk.files(), disk.ops().len());
    let second = world::run(disk, front, &recover_words(), Trouble::Nothing);
    expect(second.exit == first.exit, || format!("the second recover ends with {:?}", second.exit))?;
    expect(decisions(&second) == decided, || format!("the second recover decides {:?}", decisions(&second)))?;
    let writes: Vec<_> = disk.ops().into_iter().skip(before).filter(|op| op.kind == OpKind::Append).collect();
    expect(files == disk.files() && writes.is_empty(), || format!("the second recover writes: {writes:?}"))?;

    for cut in disk.power_cuts() {
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
    let turn = Turn::of(&records);
    branch_is_complete(disk, &turn)
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
    let silent = matches!(came.exit, None | Some(Exit::Done | Exit::AlreadyDone | Exit::Waiting));
    expect(silent || came.ack().is_none(), || format!("{:?}, and acknowledged: {}", came.exit, came.out))?;
    let is_short = matches!(trouble, Trouble::Short(..) | Trouble::ShortThenFull(..));
    let mut failed = came.ops.iter().filter(|op| op.faulty).skip(usize::from(is_short));
    let vital = |op: &&Op| match op.kind {
        OpKind::Append | OpKind::SyncData | OpKind::SyncAll | OpKind::Truncate => in_root(&op.path),
        OpKind::OpenAppend => op.path.to_str() == Some(JOURNAL),
        _ => false,
    };
    let Some(fault) = failed.find(vital) else { return Ok(()) };
    expect(matches!(came.exit, None | Some(Exit::NotDurable)), || {
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
    fn of(records: &[Value]) -> Self {
        let mut turn = Self::default();
        for record in records {
            let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
            let call = text("ref");
            match record["kind"].as_str().unwrap_or_default() {
                "admitted" => {
                    turn.open = true;
                    turn.appends = record["tree"]["mode"] == "append";
                }
                "attempt" => {
                    let goes_on = !turn.finished && turn.cause != "admit" && !turn.cause.is_empty();
                    if !goes_on {
                        turn.before = turn.standing();
                    }
                    (turn.owner, turn.cause) = (record["owner"]["pid"].as_u64(), text("cause"));
                    turn.finished = false;
                }
                "recovered" => turn.finished = true,
                "message" => {
                    turn.messages += 1;
                    for call in record["calls"].as_array().into_iter().flatten() {
                        let replay = call["replay"].as_str().unwrap_or_default().to_owned();
                        let name = call["ref"].as_str().unwrap_or_default().to_owned();
                        turn.calls.insert(name, Call { replay, claimed: false, answered: false });
                    }
                }
                "claimed" => turn.call(&call).claimed = true,
                "result" | "interrupted" | "not_run" => {
                    turn.call(&call).answered = true;
                    turn.answered.insert(call);
                }
                "delivery" => turn.delivery = Some(text("state")),
                _ => {}
            }
        }
        turn
    }

    fn call(&mut self, name: &str) -> &mut Call {
        self.calls.get_mut(name).unwrap_or_else(|| panic!("no message asked for call {name}"))
    }

    /// What is decided about each call.
    fn standing(&self) -> BTreeMap<String, &'static str> {
        let rule = |call: &Call| match (call.answered, call.claimed, call.replay.as_str()) {
            (true, _, _) => "redeliver",
            (false, false, _) => "run",
            (false, true, "safe" | "keyed") => "rerun",
            (false, true, _) => "interrupt",
        };
        self.calls.iter().map(|(name, call)| (name.clone(), rule(call))).collect()
    }

    /// What the next recover has to decide: of an attempt of its own, or of the one that it goes on with.
    fn decisions(&self) -> BTreeMap<String, String> {
        let of_us = self.owner == Some(u64::from(std::process::id()));
        let goes_on = self.cause != "admit" && (!self.finished || of_us);
        let standing = if goes_on { self.before.clone() } else { self.standing() };
        let open = self.exit() != Exit::AlreadyDone;
        standing.into_iter().filter(|_| open).map(|(name, rule)| (name, rule.to_owned())).collect()
    }

    fn exit(&self) -> Exit {
        match self.delivery.as_deref() {
            _ if !self.open => Exit::AlreadyDone,
            Some("sent") => Exit::AlreadyDone,
            Some(_) => Exit::Waiting,
            None => Exit::Done,
        }
    }
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

/// Input, each message and each answer stand once on the branch that ends in the last line.
fn branch_is_complete(disk: &MemoryStorage, turn: &Turn) -> Result<(), String> {
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
    let wanted = (1, turn.messages, turn.answered.len());
    // What was said last in a turn that nobody goes on with is the agent's to write, unless each step is written.
    let agents = turn.exit() != Exit::Done && !turn.appends;
    let found = if agents { (found.0, turn.messages, found.2) } else { found };
    expect(!turn.open || found == wanted, || {
        let text = String::from_utf8_lossy(&bytes);
        format!("inputs, messages and answers on the branch are {found:?}, not {wanted:?}:\n{text}")
    })
}

fn expect(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}
