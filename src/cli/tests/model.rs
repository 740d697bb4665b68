//! The model: a list of what was acknowledged, and what follows from the records that are there.
//!
//! It reads journal and session file as plain JSON lines and shares no code with what it judges but the digest.

use super::script;
use super::tree::SessionFile;
use super::turn::{self, Holder, Turn, Turns};
use super::world::{self, Ack, Came, Front, JOURNAL, Trouble, in_root};
use crate::cli::error::Exit;
use crate::storage::{MemoryStorage, Op, OpKind, Prefixes, Remains};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// The words of the recover that follows each crash, behind the leases; its owner is this process, which lives. What
/// needs a person's word has it: damage, and an owner that lives and has no lease.
pub(super) fn recover_words(disk: &MemoryStorage) -> Vec<String> {
    let more = if turn::damage(disk).is_some() {
        "--salvage --why a-bad-sector"
    } else if Turns::of(disk).taken().holder() == Holder::Other(None) {
        "--force --why it-hangs"
    } else {
        ""
    };
    recover_of("s", more)
}

fn recover_of(turn: &str, more: &str) -> Vec<String> {
    let pid = std::process::id();
    words(&format!("recover {turn} --json --owner-pid {pid} {more}"))
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The time at which no lease of another process is in the way of a recover.
pub(super) fn behind_leases(disk: &MemoryStorage) -> i64 {
    match Turns::of(disk).taken().holder() {
        Holder::Other(Some(until)) => until,
        _ => world::clock(),
    }
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
    let now = world::clock();
    let judged = judge_from_now_on(disk, front, remains, acked);
    world::set_clock(now);
    judged
}

fn judge_from_now_on(
    disk: &MemoryStorage,
    front: Front<'_>,
    remains: Remains,
    acked: &[Ack],
) -> Result<(), String> {
    let run = |text: &str| world::run(disk, front, &words(text), Trouble::Nothing);
    every_ack_is_there(&turn::records(disk), acked)?;
    // Garbage in the session file is a dead line, which the agent that wrote it would pass over too.
    let verdict = run(if remains == Remains::Garbage { "verify s" } else { "verify s --with-tree" });
    let damaged = remains == Remains::Explained && turn::damage(disk).is_some();
    let sound = match verdict.exit {
        Some(Exit::Damaged) if damaged => true,
        Some(Exit::Done | Exit::NeedsRecovery) => !damaged,
        Some(Exit::NotFound) if !disk.files().contains_key(&PathBuf::from(JOURNAL)) => true,
        Some(Exit::Damaged) if remains == Remains::Garbage => return damage_is_told(disk, front),
        _ => false,
    };
    expect(sound, || format!("verify says {:?}: {}{}", verdict.exit, verdict.out, verdict.err))?;
    if damaged {
        damage_is_told(disk, front)?;
    }
    let turn = Turns::of(disk).taken();
    if turn.exit() == Exit::Busy {
        nothing_is_taken_from_the_living(disk, front)?;
    }
    let words = recover_words(disk);
    world::set_clock(behind_leases(disk));
    let turn = turn.taken_over();
    let came = world::run(disk, front, &words, Trouble::Nothing);
    if !disk.files().contains_key(&PathBuf::from(JOURNAL)) {
        return expect(came.exit == Some(Exit::NotFound), || format!("recover of nothing: {came:?}"));
    }
    let mut acked = acked.to_vec();
    recovers(disk, front, &mut acked, &came, &turn)?;
    for other in Turns::of(disk).unclosed().filter(|other| other.id != turn.id) {
        let came = world::run(disk, front, &recover_of(&other.name(), ""), Trouble::Nothing);
        recovers(disk, front, &mut acked, &came, &other)?;
    }
    Ok(())
}

/// A recover of a turn came to its end: it did what follows from the records, all of it, and does it once.
fn recovers(
    disk: &MemoryStorage,
    front: Front<'_>,
    acked: &mut Vec<Ack>,
    first: &Came,
    turn: &Turn,
) -> Result<(), String> {
    decides(first, turn)?;
    let decided = decisions(first);
    acked.extend(first.ack());
    whole(disk, front, acked, turn).map_err(|why| format!("behind recover: {why}"))?;
    let turn = Turns::of(disk).named(turn.id.as_ref());

    let (files, before) = (disk.files(), disk.ops_count());
    let second = world::run(disk, front, &recover_of(&turn.name(), ""), Trouble::Nothing);
    expect(second.exit == Some(turn.exit()), || format!("the second recover ends with {:?}", second.exit))?;
    expect(decisions(&second) == decided, || format!("the second recover decides {:?}", decisions(&second)))?;
    let writes: Vec<_> = disk.ops_from(before).into_iter().filter(|op| op.kind == OpKind::Append).collect();
    expect(files == disk.files() && writes.is_empty(), || format!("the second recover writes: {writes:?}"))?;

    // Where all is durable a power cut leaves what was just looked at.
    let cuts = if disk.is_durable() { Vec::new() } else { disk.power_cuts(Prefixes::Some) };
    for cut in cuts {
        whole(&cut.storage, &world::honest, acked, &turn)
            .map_err(|why| format!("power cut behind recover: {why}"))?;
    }
    if turn.is_parked() { person_unparks(disk, front, acked, &turn) } else { Ok(()) }
}

/// It ends as it must for this turn, and decides about each call as the table does.
fn decides(came: &Came, turn: &Turn) -> Result<(), String> {
    expect(came.exit == Some(turn.exit()), || {
        format!("recover ends with {:?}, not {:?}: {}{}", came.exit, turn.exit(), came.out, came.err)
    })?;
    let id = came.document().and_then(|document| Some(document.get("turn")?.as_str()?.to_owned()));
    expect(id == turn.id, || format!("recover takes turn {id:?}, not {:?}", turn.id))?;
    let (found, wanted) = (decisions(came), turn.decisions());
    expect(found == wanted, || format!("decisions {found:?}, not {wanted:?}"))
}

/// A person's word, and the turn is gone on with.
fn person_unparks(
    disk: &MemoryStorage,
    front: Front<'_>,
    acked: &mut Vec<Ack>,
    turn: &Turn,
) -> Result<(), String> {
    let words = recover_of(&turn.name(), "--unpark --by ann --why she-looked");
    let came = world::run(disk, front, &words, Trouble::Nothing);
    decides(&came, &turn.unparked()).map_err(|why| format!("unparked, {why}"))?;
    acked.extend(came.ack());
    whole(disk, front, acked, turn).map_err(|why| format!("unparked: {why}"))
}

/// An owner that lives has its turn, until its lease runs out or a person takes it away.
fn nothing_is_taken_from_the_living(disk: &MemoryStorage, front: Front<'_>) -> Result<(), String> {
    let files = disk.files();
    let came = world::run(disk, front, &recover_of("s", ""), Trouble::Nothing);
    let refused = came.exit == Some(Exit::Busy) && came.ticket().is_none() && files == disk.files();
    expect(refused, || {
        format!("recover of what another has ends with {:?}: {}{}", came.exit, came.out, came.err)
    })
}

/// After a recover: what was acknowledged, a sound journal, a complete branch, kept bytes of torn tails.
fn whole(disk: &MemoryStorage, front: Front<'_>, acked: &[Ack], turn: &Turn) -> Result<(), String> {
    let records = turn::records(disk);
    every_ack_is_there(&records, acked)?;
    let verdict = world::run(disk, front, &words("verify s --with-tree"), Trouble::Nothing);
    // A settled turn that the file does not lack is not written, so a torn last line waits for who writes next.
    let torn_tree = verdict.exit == Some(Exit::NeedsRecovery)
        && verdict.out.contains("TK081")
        && records.iter().any(|record| record["kind"] == "settled");
    let sound = verdict.exit == Some(Exit::Done) || torn_tree;
    expect(sound, || format!("verify says {:?}: {}{}", verdict.exit, verdict.out, verdict.err))?;
    tails_are_kept(disk, &records)?;
    SessionFile::of(disk).holds(&Turns::of(disk).named(turn.id.as_ref()))
}

/// Bytes that nobody wrote are told, and nothing is written behind them.
fn damage_is_told(disk: &MemoryStorage, front: Front<'_>) -> Result<(), String> {
    let files = disk.files();
    let came = world::run(disk, front, &recover_of("s", ""), Trouble::Nothing);
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
    // A script that runs its own call ends as that did; a result that came too late is kept, and refused.
    let silent = matches!(
        came.exit,
        None | Some(
            Exit::Done | Exit::AlreadyDone | Exit::Waiting | Exit::Fenced | Exit::OfCommand(script::CMD_EXIT)
        )
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
        acked
            .iter_mut()
            .filter(|ack| ack.hash.as_ref() == Some(&old))
            .for_each(|ack| ack.hash = Some(new.clone()));
        journal.push_str(&line.replace(&old, &new));
        prev = Some(new);
    }
    let disk = disk.fork();
    disk.write(JOURNAL, journal.as_bytes());
    Some((disk, acked))
}

/// The claim of the call whose CMD ran between these two; as good as acknowledged, since its effect is there.
pub(super) fn claim_of_effect(before: &MemoryStorage, after: &MemoryStorage) -> Result<Ack, String> {
    let known = turn::records(before).len();
    let claim = turn::records(after).into_iter().skip(known).find(|record| record["kind"] == "claimed");
    let claim = claim.ok_or("CMD ran, and no claim is there")?;
    let hash = claim["hash"].as_str().unwrap_or_default().to_owned();
    Ok(Ack { seq: claim["seq"].as_u64().unwrap_or_default(), hash: Some(hash) })
}

/// Behind every power cut there is what was acknowledged.
pub(super) fn is_durable(disk: &MemoryStorage, acked: &[Ack]) -> Result<(), String> {
    let cuts = disk.power_cuts(Prefixes::Some);
    cuts.iter().try_for_each(|cut| every_ack_is_there(&turn::records(&cut.storage), acked))
}

fn every_ack_is_there(records: &[Value], acked: &[Ack]) -> Result<(), String> {
    for ack in acked {
        let there = records.iter().any(|record| {
            let of_hash = match &ack.hash {
                Some(hash) => record["hash"].as_str() == Some(hash),
                None => record["kind"] == "straggler",
            };
            record["seq"].as_u64() == Some(ack.seq) && of_hash
        });
        expect(there, || format!("record {} was acknowledged and is not there", ack.seq))?;
    }
    Ok(())
}

fn decisions(came: &Came) -> BTreeMap<String, String> {
    let document = came.document().unwrap_or_default();
    let all = document["decisions"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    all.map(|decided| (text(&decided["id"]), text(&decided["decision"]))).collect()
}

/// Every torn tail that was cut off has its bytes in quarantine; damage stands where it is.
fn tails_are_kept(disk: &MemoryStorage, records: &[Value]) -> Result<(), String> {
    let files = disk.files();
    for record in records.iter().filter(|record| record.get("saved_as").is_some()) {
        let name = record["saved_as"].as_str().unwrap_or_default();
        let saved = files.get(&PathBuf::from(world::ROOT).join(name));
        let right = saved
            .is_some_and(|bytes| Some(crate::chain::digest(bytes).as_str()) == record["sha256"].as_str());
        expect(right, || format!("the bytes of {record} are not kept"))?;
    }
    Ok(())
}

fn expect(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}
