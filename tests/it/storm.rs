//! A storm on the lock: many processes contend for one session, half of them killed, some of them stopped.
//!
//! What an answered process was told must stand, under a number that nobody else was told. The state root is spelled
//! in three ways, so two spellings of one session meet. Ordinarily some hundred processes; with `TURNKEEP_SLOW=1`
//! thousands.

use crate::kit::*;
use crate::points::{can_trace, slow};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How many are started, and how many of them at a time.
fn crowd() -> (usize, usize) {
    if slow() { (2_000, 12) } else { (400, 8) }
}

/// Numbers without a pattern, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// How one process of the storm ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Answered,
    Killed,
    Other(i32),
}

/// What one process was told.
#[derive(Debug, Clone)]
struct Told {
    /// What it wrote: no other process writes the same.
    said: String,
    end: End,
    /// The receipt on its stdout, also of one that was killed behind it.
    receipt: Option<(u64, String)>,
    stderr: String,
}

fn receipt(stdout: &[u8]) -> Option<(u64, String)> {
    // Half a line is no answer.
    let line = stdout.strip_suffix(b"\n")?;
    let found: Value = serde_json::from_slice(line).ok()?;
    Some((found["seq"].as_u64()?, found["hash"].as_str()?.to_owned()))
}

/// What is wrong: two told the same number, a record told and not there, one there twice, an end of its own kind.
fn judge(told: &[Told], journal: &[Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut numbers: HashMap<u64, &str> = HashMap::new();
    let by_seq: HashMap<u64, &Value> =
        journal.iter().filter_map(|record| Some((record["seq"].as_u64()?, record))).collect();
    for (at, record) in journal.iter().enumerate() {
        if record["seq"] != at as u64 {
            wrong.push(format!("record {at} has the number {}", record["seq"]));
        }
    }
    for told in told {
        if let End::Other(code) = told.end {
            wrong.push(format!("{} ended with {code}: {}", told.said, told.stderr));
        }
        if told.end == End::Answered && told.receipt.is_none() {
            wrong.push(format!("{} was not answered", told.said));
        }
        let Some((seq, hash)) = &told.receipt else { continue };
        if let Some(other) = numbers.insert(*seq, &told.said) {
            wrong.push(format!("{seq} was told to {other} and to {}", told.said));
        }
        match by_seq.get(seq) {
            None => wrong.push(format!("{seq} was told to {} and is not there", told.said)),
            Some(record) => {
                let (content, found) = (record["content"].as_str(), record["hash"].as_str());
                if content != Some(&told.said) || found != Some(hash) {
                    wrong.push(format!("{seq} was told to {} and is {record}", told.said));
                }
            }
        }
    }
    let mut contents = HashSet::new();
    for content in journal.iter().filter_map(|record| record["content"].as_str()) {
        if !contents.insert(content) {
            wrong.push(format!("{content} stands twice"));
        }
    }
    let known: HashSet<&str> = told.iter().map(|told| told.said.as_str()).collect();
    let strangers = contents.iter().filter(|content| !known.contains(**content));
    wrong.extend(strangers.map(|content| format!("nobody wrote {content}")));
    wrong
}

/// What becomes of a process on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lives,
    DiesAfter(Duration),
    StopsAfter(Duration),
    /// On entry to the k-th call of a kind: where a clock hits too seldom.
    DiesAt(&'static str, u32),
}

/// Before its write, between the write and the sync, behind the sync, and with its answer on the lips.
const DEATHS: [(&str, u32); 5] = [("write", 1), ("fdatasync", 2), ("write", 2), ("flock", 1), ("fsync", 2)];

fn fate(dice: &mut Dice, usual_micros: u64, traces: bool) -> Fate {
    // Anywhere on its way, and sometimes a little too late.
    let after = Duration::from_micros(dice.below(usual_micros + usual_micros / 4 + 1));
    match dice.below(100) {
        0..10 if traces => {
            let (call, index) = DEATHS[dice.below(DEATHS.len() as u64) as usize];
            Fate::DiesAt(call, index)
        }
        0..70 => Fate::DiesAfter(after),
        70..73 => Fate::StopsAfter(after),
        _ => Fate::Lives,
    }
}

fn one(sandbox: &Sandbox, root: &Path, ticket: &str, number: u64, fate: Fate) -> Told {
    let said = format!("note {number}");
    sandbox.write(format!("notes/{number}"), &said);
    let mut command = match fate {
        Fate::DiesAt(call, index) => {
            let (trace, inject) =
                (format!("trace={call}"), format!("inject={call}:signal=KILL:when={index}"));
            let mut command = Command::new("strace");
            command.args(["-o", "/dev/null", "-e", &trace, "-e", &inject, BIN]);
            command
        }
        Fate::Lives | Fate::DiesAfter(_) | Fate::StopsAfter(_) => Command::new(BIN),
    };
    command.args(["step", "--ticket", ticket, "--wait", "50", "note"]).arg(format!("notes/{number}"));
    command.current_dir(sandbox.dir()).env_clear().env("TURNKEEP_ROOT", root);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    match fate {
        Fate::Lives | Fate::DiesAt(..) => {}
        Fate::DiesAfter(after) => {
            std::thread::sleep(after);
            child.kill().unwrap();
        }
        Fate::StopsAfter(after) => {
            std::thread::sleep(after);
            // It may be over; nobody else has its number before it is waited for.
            signal(child.id(), "STOP");
            std::thread::sleep(Duration::from_millis(30));
            signal(child.id(), "CONT");
        }
    }
    let output = child.wait_with_output().unwrap();
    let end = match (output.status.code(), output.status.signal()) {
        (Some(0), _) => End::Answered,
        (_, Some(9)) => End::Killed,
        (code, signal) => End::Other(code.unwrap_or_else(|| 128 + signal.unwrap_or(0))),
    };
    Told { said, end, receipt: receipt(&output.stdout), stderr: string(output.stderr) }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

#[test]
fn no_number_is_told_twice_and_no_record_lost() {
    let sandbox = Sandbox::in_memory();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    std::os::unix::fs::symlink("state", sandbox.path("linked")).unwrap();
    let roots = [sandbox.root(), "state/../state".into(), sandbox.path("linked")];
    let (count, at_a_time) = crowd();
    let traces = can_trace();
    let next = AtomicU64::new(0);
    // How long those take that nobody disturbs, on this machine and in this crowd.
    let usual = AtomicU64::new(5_000);
    let worker = |seed: u64| {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let mut told = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count as u64 {
                return told;
            }
            let root = &roots[usize::try_from(number).unwrap() % roots.len()];
            let fate = fate(&mut dice, usual.load(Ordering::Relaxed), traces);
            let started = Instant::now();
            told.push(one(&sandbox, root, &ticket, number, fate));
            if fate == Fate::Lives {
                usual.store(
                    u64::midpoint(usual.load(Ordering::Relaxed), micros(started.elapsed())),
                    Ordering::Relaxed,
                );
            }
        }
    };
    let mut told = Vec::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=at_a_time as u64).map(|seed| scope.spawn(move || worker(seed))).collect();
        for worker in workers {
            told.extend(worker.join().unwrap());
        }
    });
    // The last of them may have been killed in the middle of its write.
    sandbox.step(&ticket, ["heartbeat"]).ok();
    sandbox.run(["verify", "s"]).ok();
    let journal = sandbox.journal("s");
    let wrong = judge(&told, &journal);
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    let ended = |end: End| told.iter().filter(|told| told.end == end).count();
    let (answered, killed) = (ended(End::Answered), ended(End::Killed));
    let unanswered = journal.iter().filter(|record| record["kind"] == "note").count()
        - told.iter().filter(|told| told.receipt.is_some()).count();
    eprintln!(
        "{count} processes: {answered} answered, {killed} killed, {unanswered} of these behind their write"
    );
    assert!(!traces || unanswered > 0, "nobody was killed between its write and its answer");
    assert!(killed * 4 > count, "only {killed} of {count} were killed");
    assert!(answered * 4 > count, "only {answered} of {count} were answered");
}

// The judge itself.

fn heard() -> (Vec<Told>, Vec<Value>) {
    let record = |seq: u64| json!({"seq": seq, "content": format!("note {seq}"), "hash": format!("h{seq}")});
    let told = |seq: u64| Told {
        said: format!("note {seq}"),
        end: End::Answered,
        receipt: Some((seq, format!("h{seq}"))),
        stderr: String::new(),
    };
    ((0..4).map(told).collect(), (0..4).map(record).collect())
}

#[test]
fn the_judge_of_the_storm_finds_what_it_is_there_for() {
    let (told, journal) = heard();
    assert_eq!(judge(&told, &journal), Vec::<String>::new());
    let wrong = |told: &[Told], journal: &[Value]| judge(told, journal).join("\n");

    let (mut doubled, _) = heard();
    doubled[2].receipt.clone_from(&told[1].receipt);
    assert!(wrong(&doubled, &journal).contains("1 was told to note 1 and to note 2"));

    assert!(wrong(&told, &journal[..3]).contains("3 was told to note 3 and is not there"));

    let mut replaced = journal.clone();
    replaced[1] = json!({"seq": 1, "content": "note 9", "hash": "h9"});
    assert!(wrong(&told, &replaced).contains("1 was told to note 1 and is"));

    let mut twice = journal.clone();
    twice.push(json!({"seq": 4, "content": "note 3", "hash": "h4"}));
    assert!(wrong(&told, &twice).contains("note 3 stands twice"));

    let mut gap = journal.clone();
    gap[3]["seq"] = json!(4);
    assert!(wrong(&told, &gap).contains("record 3 has the number 4"));

    let mut silent = told.clone();
    silent[0].receipt = None;
    assert!(wrong(&silent, &journal).contains("note 0 was not answered"));

    let mut busy = told.clone();
    busy[0].end = End::Other(4);
    assert!(wrong(&busy, &journal).contains("note 0 ended with 4"));
}

/// Whoever has the journal open and locked, and then starts turnkeep, shuts himself out: it does not take the lock
/// that it inherited for its own.
#[test]
fn an_inherited_lock_is_not_ours() {
    let sandbox = Sandbox::new();
    if !sandbox.has("flock") {
        eprintln!("skipped: there is no flock(1) here");
        return;
    }
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    let journal = sandbox.journal_path("s");
    let script = format!(
        "exec 9>>'{}'; flock 9; turnkeep --wait 0 step --ticket {ticket} heartbeat; code=$?; exec 9>&-; exit $code",
        journal.display()
    );
    sandbox.unchanged("s", || sandbox.sh(&script).exits(4).says("is locked by"));
    // Open and not locked, it is in nobody's way.
    let script = format!("turnkeep step --ticket {ticket} heartbeat 9>>'{}'", journal.display());
    sandbox.sh(&script).ok();
    sandbox.run(["verify", "s"]).ok();
}

/// A tool that lives on, in the background and with every stream open, keeps neither the lock nor a descriptor.
#[test]
fn a_tool_inherits_no_descriptor() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    let tool = sandbox
        .script("tool.sh", "ls -l /proc/self/fd; sleep 1000 >/dev/null 2>&1 </dev/null & echo $! >left");
    let ran = sandbox.step(&ticket, ["run", "--tool", "sh", "one", "--", tool.to_str().unwrap()]).ok();
    let left = std::fs::read_to_string(sandbox.path("left")).unwrap();
    let left: u32 = left.trim().parse().unwrap();
    let open = |pid: u32| -> Vec<String> {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        files.map(|file| std::fs::read_link(file.unwrap().path()).unwrap().display().to_string()).collect()
    };
    let held = open(left);
    signal(left, "KILL");
    assert!(!ran.stdout.contains("/state/"), "{}", ran.stdout);
    assert!(held.iter().all(|path| !path.contains("/state/")), "{held:?}");
    sandbox.cmd(["--wait", "0", "step", "--ticket", &ticket, "heartbeat"]).go().ok();
}
