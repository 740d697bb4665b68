//! Every system call of every writing command refused by the system, one at a time, with each error that fits.
//!
//! Every step, `admit` and `recover` in each option that writes: a test reads the help texts and fails where one is
//! missing. Of an option beside the plain `admit` and `recover` only the writes and syncs of the journal are refused
//! in the usual form, and at fewer calls of the steps in branch mode than in append mode.
//! Of `recover --all`, whose children write, it is the calls on one journal.
//!
//! After each: the exit code and the system's words fit, nothing is acknowledged that does not stand, what stood
//! before stands, the journal is sound, and the same command run again does it. `TURNKEEP_SLOW=1` tries every error
//! at every call; otherwise one error at a call, in rotation. What a disk loses that lied about a sync is not seen.

use crate::forge;
use crate::killed;
use crate::killed_others::{
    FORCE, JOIN, RESUME, UNPARK, busy, demand_no_writer_left_out, held_by_one_that_hangs, salvaged,
    two_to_drive,
};
use crate::kit::*;
use crate::points::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The errors that a call can give.
fn errors(call: &str) -> &'static [&'static str] {
    match call {
        "write" => &["EIO", "ENOSPC", "EINTR", "EFBIG", "EROFS"],
        "fdatasync" | "fsync" => &["EIO", "ENOSPC", "EINTR", "EROFS"],
        "openat" => &["EIO", "EMFILE", "ENOSPC", "EINTR", "EROFS"],
        "flock" => &["EIO", "EINTR", "ENOLCK"],
        "rename" => &["EIO", "ENOSPC", "EINTR", "EROFS"],
        "mkdir" | "unlink" => &["EIO", "ENOSPC", "EROFS"],
        "ftruncate" => &["EIO", "ENOSPC", "EINTR", "EROFS"],
        "fchmod" | "chmod" => &["EROFS"],
        "close" => &["EIO"],
        other => panic!("no errors are known for {other}"),
    }
}

/// The calls at which a command must not go wrong, and the errors that are to be tried at each.
const CALLS: [&str; 7] = ["write", "fdatasync", "fsync", "openat", "flock", "rename", "ftruncate"];
const ERRORS: [&str; 6] = ["EIO", "ENOSPC", "EINTR", "EMFILE", "ENOLCK", "EROFS"];

/// Errors that a system does not give at these calls.
fn is_impossible(call: &str, errno: &str) -> bool {
    match errno {
        // Only what opens a file needs a free descriptor, and only what locks needs room for a lock.
        "EMFILE" => call != "openat",
        "ENOLCK" => call != "flock",
        // flock writes nothing.
        "ENOSPC" | "EROFS" => call == "flock",
        _ => false,
    }
}

/// Each pair that can be is one that is tried, and no other.
#[test]
fn every_error_that_can_be_is_tried() {
    for call in CALLS {
        for errno in ERRORS {
            assert_ne!(errors(call).contains(&errno), is_impossible(call, errno), "{errno} at {call}");
        }
    }
}

/// The system's words for an error.
fn words_of(errno: &str) -> &'static str {
    match errno {
        "EIO" => "Input/output error",
        "ENOSPC" => "No space left on device",
        "EINTR" => "Interrupted system call",
        "EFBIG" => "File too large",
        "EROFS" => "Read-only file system",
        "EMFILE" => "Too many open files",
        "ENOLCK" => "No locks available",
        other => panic!("no words for {other}"),
    }
}

/// How a command may end whose call was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// As ever: the call is made again, or nothing hangs on it.
    AsEver,
    /// 9 and nothing acknowledged.
    NotDurable,
    /// 1.
    CouldNot,
    /// As ever, with the system's words as a note, or 1: the record stands, or nothing was begun.
    Noted,
    /// As ever or 1: a look at the surroundings, of which only some are needed.
    AsEverOrCouldNot,
}

/// What a refusal at a point must lead to.
fn end_of(sandbox: &Sandbox, point: &Point, errno: &str, kind: &str) -> End {
    let args = point.args.replace(&sandbox.dir().display().to_string(), "D");
    let call = point.call.as_str();
    if call == "close" || args.contains("LOCK_UN") {
        return End::AsEver;
    }
    // Nothing was done yet: it is simply done again. A sync is not: what it met is told only once.
    if errno == "EINTR" && ["write", "openat", "flock", "ftruncate"].contains(&call) {
        return End::AsEver;
    }
    if call == "write" && args.starts_with("1<") {
        return End::CouldNot;
    }
    if call == "write" && args.starts_with("2<") {
        return End::AsEver;
    }
    if args.contains("/spool") {
        // Output so far is for whoever finds the runner dead; without it a command runs all the same.
        return if call == "mkdir" || call == "fsync" { End::NotDurable } else { End::AsEver };
    }
    if call == "flock" && errno == "ENOLCK" {
        return End::CouldNot;
    }
    if args.contains("D/state/policy.json") {
        return End::CouldNot;
    }
    if args.contains("D/state") {
        return End::NotDurable;
    }
    if args.contains("D/chat.jsonl")
        && args.contains("O_RDONLY")
        && ["recovered", "repaired", "attempt"].contains(&kind)
    {
        // The last look is for the status alone, and that tells it only with --json.
        return End::AsEverOrCouldNot;
    }
    if args.contains("D/") || call == "fsync" || args.contains("O_DIRECTORY") {
        return End::Noted;
    }
    End::AsEverOrCouldNot
}

/// One command, what it is fed, and what is to come of it.
struct Case {
    words: Vec<String>,
    stdin: String,
    /// The kind of record that it makes.
    kind: &'static str,
    /// How many of these may stand when it was run again.
    at_most: usize,
    /// Exit codes of the same command run again.
    again: &'static [i32],
    /// Whether it writes once. Others leave what they have written for the next try.
    writes: Writes,
    /// Verdicts that are right before it was run again.
    verdicts: &'static [i32],
    speaks: Speaks,
}

/// Whose words are on stdout, and whose code the exit code is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaks {
    Turnkeep,
    /// CMD's output is passed through.
    Cmd,
    /// So is its exit code; ours are 124 and 125.
    CmdAndItsCode,
}

/// Sound, or torn and behind as a crash explains it.
const EXPLAINED: &[i32] = &[0, 13];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writes {
    Once,
    InParts,
}

impl Case {
    fn words(&self) -> Vec<&str> {
        self.words.iter().map(String::as_str).collect()
    }

    fn run(&self, sandbox: &Sandbox) -> Ran {
        sandbox.cmd(&self.words).stdin(self.stdin.clone()).go()
    }

    /// The same words. A turn that is unparked already is taken without `--unpark`.
    fn run_again(&self, sandbox: &Sandbox) -> Ran {
        let ran = self.run(sandbox);
        match self.words.iter().position(|word| word == "--unpark") {
            Some(at) if ran.code() == 6 && ran.stderr.contains("is not parked") => {
                sandbox.cmd(&self.words[..at]).go()
            }
            _ => ran,
        }
    }
}

fn journal(sandbox: &Sandbox) -> Vec<u8> {
    std::fs::read(sandbox.journal_path("s")).unwrap_or_default()
}

fn whole_lines(journal: &[u8]) -> &[u8] {
    let end = journal.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    &journal[..end]
}

/// Whole lines of a kind, also of a journal that is damaged.
fn count(sandbox: &Sandbox, kind: &str) -> usize {
    let is = |line: &[u8]| serde_json::from_slice::<Value>(line).is_ok_and(|record| record["kind"] == kind);
    whole_lines(&journal(sandbox)).split(|byte| *byte == b'\n').filter(|line| is(line)).count()
}

/// What CMD did, sorted.
fn effects(sandbox: &Sandbox) -> Vec<String> {
    let effects = std::fs::read_to_string(sandbox.path("effects")).unwrap_or_default();
    let mut found: Vec<String> = effects.lines().map(str::to_owned).collect();
    found.sort();
    found
}

/// What it did twice.
fn repeated_effects(sandbox: &Sandbox) -> Vec<String> {
    effects(sandbox).windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0].clone()).collect()
}

/// The tickets told on stdout that no record gives.
fn untrue_tickets(journal: &[u8], ran: &Ran) -> Vec<String> {
    let records = whole_lines(journal).split(|byte| *byte == b'\n');
    let records: Vec<Value> = records.filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let told = ran.stdout.lines().filter_map(|line| Some((line, line.strip_prefix("s:")?.split_once(':')?)));
    let given = |turn: &str, number: &str| {
        records.iter().any(|record| {
            let is_turns = record["kind"] == "attempt" && record["turn"] == turn;
            is_turns && record["attempt"].as_u64() == number.parse().ok()
        })
    };
    told.filter(|(_, (turn, number))| !given(turn, number)).map(|(ticket, _)| ticket.to_owned()).collect()
}

/// What was acknowledged on stdout: receipts.
fn receipts(ran: &Ran) -> Vec<(u64, String)> {
    let found = |line: &str| {
        let document: Value = serde_json::from_str(line).ok()?;
        let receipt = document.get("receipt").unwrap_or(&document);
        Some((receipt["seq"].as_u64()?, receipt["hash"].as_str()?.to_owned()))
    };
    ran.stdout.lines().filter_map(found).collect()
}

fn stands(journal: &[u8], (seq, hash): &(u64, String)) -> bool {
    let (head, end) = (format!("{{\"seq\":{seq},"), format!(",\"hash\":\"{hash}\"}}\n"));
    let mut lines = journal.split_inclusive(|byte| *byte == b'\n');
    lines.any(|line| line.starts_with(head.as_bytes()) && line.ends_with(end.as_bytes()))
}

/// What is wrong with what a command left behind, whatever the system did to it.
fn judge(sandbox: &Sandbox, earlier: &[u8], ran: &Ran, verdicts: &[i32]) -> Vec<String> {
    let mut wrong = Vec::new();
    let now = journal(sandbox);
    if !now.starts_with(earlier) {
        wrong.push("an earlier record is gone".to_owned());
    }
    for receipt in receipts(ran) {
        if !stands(&now, &receipt) {
            wrong.push(format!("record {} was acknowledged and does not stand", receipt.0));
        }
    }
    for ticket in untrue_tickets(&now, ran) {
        wrong.push(format!("the ticket {ticket} was told and its attempt does not stand"));
    }
    if sandbox.journal_path("s").exists() {
        let verdict = sandbox.run(["verify", "s", "--with-tree"]);
        if !verdicts.contains(&verdict.code()) {
            wrong.push(format!("verify: {}", verdict.all()));
        }
    }
    wrong
}

/// Whether an end is one of those that a refusal may have.
fn judge_end(end: End, ran: &Ran, whole: i32, errno: &str, added: bool, speaks: Speaks) -> Option<String> {
    let told = ran.stderr.contains(words_of(errno));
    let silent = match speaks {
        Speaks::Turnkeep => ran.stdout.is_empty(),
        Speaks::Cmd | Speaks::CmdAndItsCode => receipts(ran).is_empty(),
    };
    let code = match (speaks, ran.code()) {
        (Speaks::CmdAndItsCode, 124 | 125) => {
            if end == End::NotDurable {
                9
            } else {
                1
            }
        }
        (Speaks::CmdAndItsCode, 9 | 1) => return Some("CMD's exit code was forged".to_owned()),
        (_, code) => code,
    };
    let fits = match (end, code) {
        (End::AsEver | End::AsEverOrCouldNot, code) if code == whole => true,
        // Who cannot be looked for lives.
        (End::AsEverOrCouldNot, 4) => silent && !added,
        (End::Noted, code) if code == whole => told,
        (End::NotDurable, 9) => told && silent && !added,
        (End::CouldNot | End::AsEverOrCouldNot | End::Noted, 1) => told,
        // The folder of the session file is that of the state root here.
        (End::Noted, 9) => told && silent,
        _ => false,
    };
    (!fits).then(|| format!("not {end:?}: told {told}, silent {silent}, added {added}"))
}

/// A failed sync tells its error once; a second one on the same descriptor would say nothing but "done".
fn judge_syncs(point: &Point, trace: &str) -> Option<String> {
    let same = format!("{}({})", point.call, point.args);
    let behind = trace.lines().skip_while(|line| !line.ends_with("(INJECTED)")).skip(1);
    let again = point.args.contains(".jsonl") && behind.into_iter().any(|line| line.starts_with(&same));
    (point.call.ends_with("sync") && again).then(|| "the descriptor was synced again".to_owned())
}

/// How much is tried at the points of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tries {
    Every,
    OneAtEach,
    OneAtEachThird,
    /// At writes and syncs of a journal, the errors of a disk in turn.
    OneAtEachOfTheJournal,
}

impl Tries {
    fn usual() -> Self {
        if slow() { Self::Every } else { Self::OneAtEach }
    }

    /// For what writes by the same ways as another that is tried as usual.
    fn of_a_variant() -> Self {
        if slow() { Self::Every } else { Self::OneAtEachOfTheJournal }
    }
}

struct Loop {
    sandbox: Sandbox,
    points: usize,
    wrong: Vec<String>,
    rotation: usize,
    /// What was refused, and with what.
    pairs: BTreeSet<(String, &'static str)>,
}

impl Loop {
    fn new(sandbox: Sandbox) -> Self {
        Self { sandbox, points: 0, wrong: Vec::new(), rotation: 0, pairs: BTreeSet::new() }
    }

    /// The errors to be tried at a point.
    fn errors(&mut self, point: &Point, tries: Tries) -> Vec<&'static str> {
        let all = errors(&point.call);
        if tries == Tries::Every {
            return all.to_vec();
        }
        if tries == Tries::OneAtEachOfTheJournal {
            let is_journal = point.path().ends_with(".jsonl") && point.path().contains("/state/sessions/");
            if !is_journal || !["write", "fdatasync"].contains(&point.call.as_str()) {
                return Vec::new();
            }
            self.rotation += 1;
            return vec![["EIO", "ENOSPC"][self.rotation % 2]];
        }
        let outside = !point.args.contains(&self.sandbox.dir().display().to_string());
        if point.call == "close" || outside && point.call == "openat" {
            return Vec::new();
        }
        self.rotation += 1;
        if tries == Tries::OneAtEachThird && !self.rotation.is_multiple_of(3) {
            return Vec::new();
        }
        vec![all[self.rotation % all.len()]]
    }

    /// Refuses each call of a command, then lets it do its work.
    fn refuse(&mut self, case: &Case, tries: Tries) {
        let before = self.sandbox.everything();
        let earlier = whole_lines(&journal(&self.sandbox)).to_vec();
        let had = count(&self.sandbox, case.kind);
        let (points, whole) = points(&self.sandbox, CHANGING, &case.words(), &case.stdin);
        let kinds = |call: &str| points.iter().filter(|point| point.call == call).count();
        assert!(kinds("write") >= 1 && kinds("fdatasync") >= 1, "too few points of {:?}", case.words);
        for point in &points {
            for errno in self.errors(point, tries) {
                restore(&self.sandbox, &before);
                let what = format!("error={errno}");
                let done = at_point(&self.sandbox, point, &what, &case.words(), &case.stdin);
                self.points += 1;
                self.pairs.insert((point.call.clone(), errno));
                let mut wrong = self.judge(case, point, errno, &done, (&earlier, had, whole.code()), &before);
                if done.injected() != 1 {
                    wrong.push(format!("{} calls were refused", done.injected()));
                }
                let name = format!("{errno} at {point} of {:?}", case.words);
                let told = |wrong| format!("{name}: {wrong}\n{}", done.ran.all());
                self.wrong.extend(wrong.into_iter().map(told));
            }
        }
        restore(&self.sandbox, &before);
        let ran = case.run(&self.sandbox);
        assert_eq!(ran.code(), whole.code(), "{}", ran.all());
    }

    fn judge(
        &self,
        case: &Case,
        point: &Point,
        errno: &str,
        done: &Interfered,
        (earlier, had, whole): (&[u8], usize, i32),
        before: &Files,
    ) -> Vec<String> {
        let sandbox = &self.sandbox;
        let added = case.writes == Writes::Once && journal(sandbox) != earlier;
        let end = end_of(sandbox, point, errno, case.kind);
        let mut wrong: Vec<String> =
            judge_end(end, &done.ran, whole, errno, added, case.speaks).into_iter().collect();
        wrong.extend(judge_syncs(point, &done.trace));
        if sandbox.everything() == *before {
            // As if it had not been run: what comes of running it is known.
            wrong.extend(receipts(&done.ran).iter().map(|_| "a receipt of nothing".to_owned()));
            wrong.extend(
                untrue_tickets(earlier, &done.ran).iter().map(|ticket| format!("no attempt {ticket}")),
            );
            return wrong;
        }
        wrong.extend(judge(sandbox, earlier, &done.ran, case.verdicts));
        let again = case.run_again(sandbox);
        if !case.again.contains(&again.code()) {
            wrong.push(format!("again: {}", again.all()));
        }
        let found = count(sandbox, case.kind) - had;
        if !(1..=case.at_most).contains(&found) {
            wrong.push(format!("{found} records of {}", case.kind));
        }
        let behind = judge(sandbox, earlier, &again, EXPLAINED);
        wrong.extend(behind.into_iter().map(|wrong| format!("again: {wrong}")));
        wrong.extend(repeated_effects(sandbox).iter().map(|effect| format!("again done: {effect}")));
        wrong
    }

    /// Demands that nothing was wrong, and that there was something to look at.
    #[track_caller]
    fn end(self, at_least: usize) {
        eprintln!("{} calls refused", self.points);
        let wrong = &self.wrong;
        assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), self.points, wrong.join("\n----\n"));
        assert!(self.points >= at_least, "only {} points", self.points);
    }
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn policy(sandbox: &Sandbox) {
    sandbox.policy(json!([
        {"tool": "look", "replay": "safe"},
        {"tool": "charge", "replay": "never", "unknown": "hold"},
        {"tool": "deploy", "replay": "never", "approval": "required"},
    ]));
}

/// A step, and what is to come of it.
struct Step {
    words: Vec<&'static str>,
    stdin: String,
    kind: &'static str,
    at_most: usize,
    again: &'static [i32],
}

/// The steps of a whole turn.
fn steps(mode: &str) -> Vec<Step> {
    let mut all = Vec::new();
    let mut step =
        |words: &[&'static str], stdin: &str, kind: &'static str, at_most: usize, again: &'static [i32]| {
            all.push(Step { words: words.to_vec(), stdin: stdin.to_owned(), kind, at_most, again });
        };
    let calls = [
        ("a", "bash", json!({})),
        ("b", "bash", json!({})),
        ("c", "charge", json!({})),
        ("d", "deploy", json!({})),
        ("e", "deploy", json!({"n": 2})),
        ("f", "remote", json!({})),
        ("g", "bash", json!({"n": 7})),
    ];
    let once: &[i32] = &[0];
    // The caller would act next: what stands is not told as new.
    let gate: &[i32] = &[0, 7];
    step(&["message", "-"], &assistant("", &calls).to_string(), "message", 1, once);
    step(&["claim", "a"], "", "claimed", 1, gate);
    step(&["result", "a", "-"], "done", "result", 1, once);
    step(&["result", "b", "--not-run"], "", "not_run", 1, once);
    step(&["approve", "d", "--by", "alice"], "", "approval", 1, once);
    step(&["deny", "e", "--by", "alice", "--reason", "no"], "", "not_run", 1, once);
    step(&["dispatch", "f", "--to", "farm"], "", "dispatched", 1, gate);
    step(&["dispatch", "f", "--to", "farm", "--receipt", "job 7"], "", "dispatched", 1, once);
    step(&["result", "f", "-"], "done remotely", "result", 1, once);
    step(&["note", "-"], "a remark", "note", 2, once);
    step(&["heartbeat"], "", "heartbeat", 2, once);
    step(&["steer", "--text", "And hurry", "--delivery", "k2"], "", "steered", 1, once);
    step(&["claim", "d"], "", "claimed", 1, gate);
    step(&["result", "d", "-", "--error"], "refused", "result", 1, once);
    step(&["claim", "c", "--link", "{\"id\":7}"], "", "claimed", 1, gate);
    step(&["result", "c", "-"], "charged", "result", 1, once);
    step(&["claim", "g"], "", "claimed", 1, gate);
    let reconcile =
        ["reconcile", "g", "--outcome", "applied", "--by", "bob", "--force", "--why", "seen", "-"];
    step(&reconcile, "it happened", "reconciled", 1, once);
    step(&["claim", "n1", "--tool", "curl", "--args", "{}"], "", "intent", 1, gate);
    step(&["result", "n1", "-"], "fetched", "result", 1, once);
    let raw = entry("e1", Some("a2"), &assistant("All done.", &[])).to_string();
    if mode == "branch" {
        step(&["entry", "-"], &raw, "entry", 1, once);
    } else {
        step(&["message", "-"], &assistant("All done.", &[]).to_string(), "message", 1, once);
    }
    step(&["settle"], "", "settled", 1, once);
    step(&["deliver", "--begin"], "", "delivery", 1, gate);
    step(&["deliver", "--not-sent", "--by", "bob"], "", "delivery", 1, once);
    step(&["deliver", "--waive", "--why", "nobody waits", "--by", "bob"], "", "delivery", 1, once);
    all
}

fn refuse_steps(mode: &str, tries: Tries, at_least: usize) {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    policy(&sandbox);
    sandbox.write("chat.jsonl", small_tree());
    let owner = Owner::start();
    let tree = ["--turn", "t1", "--delivery", "k", "--tree", "chat.jsonl", "--tree-mode", mode];
    let ticket = sandbox.admit(&owner, "s", &tree);
    let mut points = Loop::new(sandbox);
    for Step { words, stdin, kind, at_most, again } in steps(mode) {
        // Made in branch mode only, so this is all that it gets.
        let tries = if words[0] == "entry" { Tries::usual() } else { tries };
        let words = strings(&[&["step", "--ticket", &ticket], &words[..]].concat());
        let (verdicts, speaks) = (EXPLAINED, Speaks::Turnkeep);
        let case = Case { words, stdin, kind, at_most, again, writes: Writes::Once, verdicts, speaks };
        points.refuse(&case, tries);
    }
    points.end(at_least);
}

#[test]
fn every_step_in_append_mode() {
    refuse_steps("append", Tries::usual(), 200);
}

#[test]
fn every_step_in_branch_mode() {
    // What is written is the same but for the session file and `entry`.
    refuse_steps("branch", if slow() { Tries::Every } else { Tries::OneAtEachThird }, 60);
}

#[test]
fn cancel() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    let owner = Owner::start();
    sandbox.admit(&owner, "s", &["--turn", "t1"]);
    let mut points = Loop::new(sandbox);
    let words = strings(&["step", "cancel", "--session", "s", "--by", "alice"]);
    let case = Case {
        words,
        stdin: String::new(),
        kind: "cancelled",
        at_most: 1,
        again: &[0],
        writes: Writes::Once,
        verdicts: EXPLAINED,
        speaks: Speaks::Turnkeep,
    };
    points.refuse(&case, Tries::usual());
    points.end(8);
}

fn admit(tree: &[&str], file: Option<String>, at_least: usize) {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    if let Some(file) = file {
        sandbox.write("chat.jsonl", file);
    }
    let base = ["admit", "s", "--turn", "t1", "--delivery", "k", "--text", "Hello", "--owner-pid", "none"];
    let case = Case {
        words: strings(&[&base, tree].concat()),
        stdin: String::new(),
        kind: "admitted",
        at_most: 1,
        again: &[0, 10],
        writes: Writes::Once,
        verdicts: EXPLAINED,
        speaks: Speaks::Turnkeep,
    };
    let mut points = Loop::new(sandbox);
    points.refuse(&case, Tries::usual());
    points.end(at_least);
}

#[test]
fn admit_to_a_new_session() {
    admit(&[], None, 20);
}

#[test]
fn admit_with_a_tree() {
    admit(&["--tree", "chat.jsonl", "--tree-mode", "append"], Some(small_tree()), 25);
    let header = header().to_string();
    admit(&["--tree", "chat.jsonl", "--tree-mode", "append", "--tree-header", &header], None, 25);
}

fn crashed(sandbox: &Sandbox) {
    policy(sandbox);
    sandbox.write("chat.jsonl", small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--tree", "chat.jsonl"]);
    let calls = [("a", "bash", json!({})), ("b", "look", json!({})), ("c", "bash", json!({}))];
    let seq = sandbox.announce(&ticket, &calls);
    sandbox.step(&ticket, ["claim", &format!("{seq}.0")]).ok();
    sandbox.step(&ticket, ["claim", &format!("{seq}.1")]).ok();
    owner.die();
}

/// Demands that all errors of these calls were tried.
fn demand_pairs(pairs: &BTreeSet<(String, &str)>, calls: &[&str]) {
    let wanted = calls.iter().flat_map(|call| errors(call).iter().map(|errno| ((*call).to_owned(), *errno)));
    let missing: Vec<_> = wanted.filter(|pair| !pairs.contains(pair)).collect();
    assert!(missing.is_empty(), "never refused: {missing:?}");
}

/// The calls that a `recover` makes which repairs; only `verify --heads` renames.
const OF_A_REPAIR: [&str; 6] = ["write", "fdatasync", "fsync", "openat", "flock", "ftruncate"];

fn recover(
    words: &[&str],
    kind: &'static str,
    verdicts: &'static [i32],
    again: &'static [i32],
    spoil: impl Fn(&Sandbox),
) -> BTreeSet<(String, &'static str)> {
    if !can_trace() {
        return BTreeSet::new();
    }
    let sandbox = Sandbox::in_memory();
    crashed(&sandbox);
    spoil(&sandbox);
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    let words = strings(&[&["recover", "s", "--owner-pid", &pid], words].concat());
    let writes = Writes::InParts;
    let case = Case {
        words,
        stdin: String::new(),
        kind,
        at_most: 1,
        again,
        writes,
        verdicts,
        speaks: Speaks::Turnkeep,
    };
    let mut points = Loop::new(sandbox);
    points.refuse(&case, Tries::usual());
    let pairs = points.pairs.clone();
    points.end(20);
    pairs
}

#[test]
fn recover_with_a_branch() {
    recover(&[], "recovered", EXPLAINED, &[0], |_| ());
}

fn append_to(path: &std::path::Path, bytes: &[u8]) {
    let held = std::fs::read(path).unwrap();
    std::fs::write(path, [&held, bytes].concat()).unwrap();
}

#[test]
fn recover_with_a_repair() {
    let pairs = recover(&[], "recovered", EXPLAINED, &[0], |sandbox| {
        append_to(&sandbox.journal_path("s"), b"{\"seq\":99,\"at\":\"2026");
        append_to(&sandbox.path("chat.jsonl"), b"{\"type\":\"message\",\"id\":\"tor");
    });
    if slow() && !pairs.is_empty() {
        demand_pairs(&pairs, &OF_A_REPAIR);
    }
}

#[test]
fn recover_behind_damage() {
    // An open turn is parked behind lost records: 14.
    recover(&["--salvage", "--why", "the disk"], "repaired", &[0, 3, 13], &[14], |sandbox| {
        append_to(&sandbox.journal_path("s"), b"no record\n");
    });
}

/// An option of `admit` or `recover` that changes what is written.
fn variant(
    sandbox: Sandbox,
    words: &[&str],
    kind: &'static str,
    at_most: usize,
    again: &'static [i32],
    at_least: usize,
) {
    let (stdin, writes, verdicts) = (String::new(), Writes::InParts, EXPLAINED);
    let speaks = Speaks::Turnkeep;
    let case = Case { words: strings(words), stdin, kind, at_most, again, writes, verdicts, speaks };
    let mut points = Loop::new(sandbox);
    points.refuse(&case, Tries::of_a_variant());
    let pairs = points.pairs.clone();
    points.end(at_least);
    for call in ["write", "fdatasync"] {
        assert!(pairs.iter().any(|(found, _)| found == call), "no {call} of {words:?} was refused");
    }
}

/// `recover s` with options, for an owner of its own.
fn takeover(sandbox: Sandbox, options: &[&str], kind: &'static str, again: &'static [i32]) {
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    let words = [&["recover", "s", "--owner-pid", &pid][..], options].concat();
    variant(sandbox, &words, kind, 2, again, 2);
}

#[test]
fn recover_by_force() {
    if can_trace() {
        let sandbox = Sandbox::in_memory();
        let _hangs = held_by_one_that_hangs(&sandbox);
        takeover(sandbox, &FORCE, "attempt", &[0, 14]);
    }
}

#[test]
fn recover_onto_what_the_agent_wrote() {
    if can_trace() {
        let sandbox = Sandbox::in_memory();
        killed::crashed(&sandbox, "branch");
        takeover(sandbox, &["--onto", "live"], "attempt", &[0, 14]);
    }
}

#[test]
fn recover_that_unparks() {
    if can_trace() {
        let sandbox = Sandbox::in_memory();
        salvaged(&sandbox);
        takeover(sandbox, &UNPARK, "attempt", &[0, 14]);
    }
}

#[test]
fn recover_that_closes_calls() {
    if can_trace() {
        let sandbox = Sandbox::in_memory();
        killed::crashed(&sandbox, "append");
        takeover(sandbox, &["--close-calls"], "attempt", &[0, 14]);
    }
}

/// The process that writes a session first is one that `recover --all` started, so all are traced.
#[test]
fn recover_of_everything() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    let driver = two_to_drive(&sandbox);
    let words = ["recover", "--all", "--", driver.to_str().unwrap()];
    let before = sandbox.everything();
    let earlier = journal(&sandbox);
    let file = sandbox.journal_path("s").display().to_string();
    let calls: &[&str] =
        if slow() { &["write", "fdatasync", "openat", "flock"] } else { &["write", "fdatasync"] };
    let mut rotation = 0;
    let mut refused = BTreeSet::new();
    for call in calls {
        restore(&sandbox, &before);
        let whole = on_file(&sandbox, &[call], &file, None, &words);
        whole.ran.ok();
        assert_eq!(effects(&sandbox), ["b", "s"]);
        let by = |line: &str| line.split_once(&format!(" {call}(")).map(|(pid, _)| pid.trim().to_owned());
        let pids: Vec<String> = whole.trace.lines().filter_map(by).collect();
        let most = pids.iter().filter(|pid| **pid == pids[0]).count();
        for index in 1..=most {
            let all = errors(call);
            let disk = ["EIO", "ENOSPC"];
            rotation += 1;
            let errnos = if slow() { all } else { &disk[rotation % 2..][..1] };
            for errno in errnos {
                let point = Point { call: (*call).to_owned(), index, args: file.clone() };
                let what = format!("error={errno}");
                restore(&sandbox, &before);
                let done = on_file(&sandbox, &[call], &file, Some((&point, &what)), &words);
                let name = format!("{errno} at {point}: {}\n{}", done.ran.all(), done.trace);
                assert!(done.injected() >= 1, "nothing was refused: {name}");
                refused.insert((point.call.clone(), index));
                assert_eq!(judge(&sandbox, &earlier, &done.ran, EXPLAINED), Vec::<String>::new(), "{name}");
                let found = effects(&sandbox);
                let writes = ["write", "fdatasync"].contains(call);
                if writes && (*call, *errno) != ("write", "EINTR") {
                    assert_eq!(done.ran.code(), 1, "{name}");
                    assert!(done.ran.stderr.contains(words_of(errno)), "{name}");
                    assert_eq!(found, ["b"], "the turn is not the driver's: {name}");
                }
                assert!(found.contains(&"b".to_owned()), "the other session waits for nothing: {name}");
                let again = sandbox.run(words);
                assert_eq!(
                    judge(&sandbox, &earlier, &again, EXPLAINED),
                    Vec::<String>::new(),
                    "again: {name}"
                );
                let found = effects(&sandbox);
                assert!(
                    !writes || again.code() == 0 && found == ["b", "s"],
                    "again: {}\n{name}",
                    again.all()
                );
                assert_eq!(repeated_effects(&sandbox), Vec::<String>::new(), "{name}");
            }
        }
    }
    assert!(refused.len() >= 5, "only {refused:?}");
}

#[test]
fn admit_that_is_resumed() {
    if can_trace() {
        let sandbox = Sandbox::in_memory();
        killed::crashed(&sandbox, "branch");
        variant(sandbox, &RESUME, "attempt", 2, &[0], 2);
    }
}

#[test]
fn an_admission_that_joins_the_open_turn() {
    if can_trace() {
        let sandbox = Sandbox::in_memory();
        let _owner = busy(&sandbox);
        variant(sandbox, &JOIN, "steered", 1, &[0, 10], 2);
    }
}

/// A command that starts another: its effect happens at most once, whatever is refused around it.
fn starts(words: &[&str], speaks: Speaks, kind: &'static str, prepare: impl Fn(&Sandbox, &str)) {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    policy(&sandbox);
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--delivery", "k"]);
    prepare(&sandbox, &ticket);
    sandbox.script("tool.sh", "cat >/dev/null; echo effect >>effects; echo output");
    let words = strings(&[&["step", "--ticket", &ticket], words].concat());
    let (again, writes): (&[i32], _) = (&[0, 7, 10], Writes::InParts);
    let case =
        Case { words, stdin: String::new(), kind, at_most: 2, again, writes, verdicts: EXPLAINED, speaks };
    let mut points = Loop::new(sandbox);
    points.refuse(&case, Tries::usual());
    points.end(20);
}

#[test]
fn a_run() {
    starts(&["run", "a", "--", "./tool.sh"], Speaks::Cmd, "claimed", |sandbox, ticket| {
        sandbox.announce(ticket, &[("a", "bash", json!({}))]);
    });
}

#[test]
fn a_run_without_a_model() {
    starts(&["run", "--tool", "sh", "one", "--", "./tool.sh"], Speaks::CmdAndItsCode, "claimed", |_, _| ());
}

#[test]
fn a_delivery() {
    starts(&["deliver", "--", "./tool.sh"], Speaks::Cmd, "delivery", |sandbox, ticket| {
        sandbox.step_in(ticket, ["message", "-"], assistant("Hello.", &[]).to_string()).ok();
        sandbox.step(ticket, ["settle"]).ok();
    });
}

/// What is refused beside [`steps`], and where.
const REFUSED: &[(&str, fn())] = &[
    ("admit", admit_to_a_new_session),
    ("admit --tree", admit_with_a_tree),
    ("admit --tree-mode", admit_with_a_tree),
    ("admit --tree-header", admit_with_a_tree),
    ("admit --resume", admit_that_is_resumed),
    ("admit --when-busy", an_admission_that_joins_the_open_turn),
    ("recover", recover_with_a_branch),
    ("recover --all", recover_of_everything),
    ("recover --close-calls", recover_that_closes_calls),
    ("recover --force", recover_by_force),
    ("recover --onto", recover_onto_what_the_agent_wrote),
    ("recover --salvage", recover_behind_damage),
    ("recover --unpark", recover_that_unparks),
    ("step cancel", cancel),
    ("step run", a_run),
];

#[test]
fn no_command_that_writes_is_left_out() {
    let steps: Vec<String> = ["append", "branch"]
        .iter()
        .flat_map(|mode| steps(mode))
        .map(|step| format!("step {}", step.words[0]))
        .collect();
    demand_no_writer_left_out(|what| {
        steps.iter().any(|step| step == what) || REFUSED.iter().any(|(refused, _)| *refused == what)
    });
}

#[test]
fn heads_are_the_old_ones_or_the_new_ones() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    let ticket = sandbox.run(["admit", "s", "--text", "x", "--owner-pid", "none"]).ok().line();
    let words = ["verify", "s", "--heads", "heads"];
    sandbox.run(words).ok();
    sandbox.step_in(&ticket, ["note", "-"], "one").ok();
    let before = sandbox.everything();
    let old = sandbox.tree_text("heads");
    let (points, whole) = points(&sandbox, CHANGING, &words, "");
    whole.ok();
    let new = sandbox.tree_text("heads");
    assert_ne!(old, new);
    assert!(points.iter().any(|point| point.call == "rename"), "{points:?}");
    let mut refused = 0;
    let mut pairs = BTreeSet::new();
    for point in &points {
        for errno in errors(&point.call) {
            restore(&sandbox, &before);
            pairs.insert((point.call.clone(), *errno));
            let done = at_point(&sandbox, point, &format!("error={errno}"), &words, "");
            assert_eq!(done.injected(), 1, "{errno} at {point}");
            refused += 1;
            let found = sandbox.tree_text("heads");
            match done.ran.code() {
                0 => assert_eq!(found, new, "{errno} at {point}: {}", done.ran.all()),
                1 => {
                    assert!(found == old || found == new, "{errno} at {point}: {found}");
                    assert!(
                        done.ran.all().contains(words_of(errno)),
                        "{errno} at {point}: {}",
                        done.ran.all()
                    );
                }
                other => panic!("{errno} at {point}: exit {other}: {}", done.ran.all()),
            }
            sandbox.run(words).ok();
            assert_eq!(sandbox.tree_text("heads"), new, "{errno} at {point}");
        }
    }
    assert!(refused >= 15, "only {refused}");
    demand_pairs(&pairs, &["rename"]);
}

trait Text {
    fn tree_text(&self, name: &str) -> String;
}

impl Text for Sandbox {
    fn tree_text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }
}

/// From one call on the disk refuses everything of that kind, and cuts too.
#[test]
fn a_disk_that_stays_dead() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    let words = ["step", "--ticket", &ticket, "heartbeat"];
    let before = sandbox.everything();
    let earlier = journal(&sandbox);
    let (points, _) = points(&sandbox, &["write", "fdatasync", "fsync"], &words, "");
    let file = sandbox.journal_path("s").display().to_string();
    let mut refused = 0;
    let mut uncut = 0;
    for (at, point) in points.iter().enumerate().filter(|(_, point)| point.args.contains("/state")) {
        restore(&sandbox, &before);
        // Stderr works: of other files strace looks away.
        let paths = [file.as_str(), point.path()];
        let same = |earlier: &&Point| earlier.call == point.call && paths.contains(&earlier.path());
        let index = points[..at].iter().filter(same).count() + 1;
        let done = from_point(&sandbox, (&point.call, index), "error=EIO", &paths, &["ftruncate"], &words);
        assert!(done.injected() >= 1, "{point}: nothing was refused:\n{}", done.trace);
        refused += 1;
        let ran = &done.ran;
        assert_eq!(ran.code(), 9, "{point}: {}", ran.all());
        assert!(ran.stdout.is_empty() && ran.stderr.contains("Input/output error"), "{point}: {}", ran.all());
        uncut += usize::from(journal(&sandbox) != earlier);
        assert_eq!(judge(&sandbox, &earlier, ran, EXPLAINED), Vec::<String>::new(), "{point}");
        assert_eq!(judge_syncs(point, &done.trace), None, "{point}: {}", done.trace);
        sandbox.run(words).ok();
        assert_eq!(judge(&sandbox, &earlier, ran, &[0]), Vec::<String>::new(), "{point}");
    }
    assert!(refused >= 5, "only {refused} points");
    assert_eq!(uncut, 1, "the sync behind the write, and none else");
}

/// Whoever cannot look at the surroundings says so, and calls no living owner gone.
#[test]
fn a_look_that_fails_calls_nobody_gone() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    let owner = Owner::start();
    let other = Owner::start();
    sandbox.admit(&owner, "s", &["--turn", "t1"]);
    // Long ago, so that a lease would have run out.
    let year = text(&sandbox.last("s")["at"])[..4].to_owned();
    let old = forge::replaced(&sandbox.journal_bytes("s"), &format!("\"at\":\"{year}"), "\"at\":\"2019");
    std::fs::write(sandbox.journal_path("s"), old).unwrap();
    let before = sandbox.everything();
    let pid = other.pid().to_string();
    let words = ["recover", "s", "--owner-pid", &pid];
    sandbox.run(words).exits(4).says("lives");
    let (points, _) = points(&sandbox, &["openat", "readlink"], &words, "");
    let looks = |point: &&Point| ["/proc/", "/etc/"].iter().any(|place| point.args.contains(place));
    let points: Vec<&Point> = points.iter().filter(looks).collect();
    let met = |place: &str| points.iter().any(|point| point.args.contains(place));
    assert!(met("machine-id") && met("boot_id") && met("/stat"), "{points:?}");
    for point in points {
        for errno in ["EMFILE", "EIO"] {
            restore(&sandbox, &before);
            let done = at_point(&sandbox, point, &format!("error={errno}"), &words, "");
            assert_eq!(done.injected(), 1, "{errno} at {point}");
            assert!([1, 4].contains(&done.ran.code()), "{errno} at {point}: {}", done.ran.all());
            assert!(sandbox.everything() == before, "{errno} at {point}");
        }
    }
}

/// A session file that cannot be read may be behind: nobody is told to go on with the model.
#[test]
fn what_comes_next_is_not_guessed() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    sandbox.write("chat.jsonl", small_tree());
    let owner = Owner::start();
    let tree = ["--turn", "t1", "--tree", "chat.jsonl", "--tree-mode", "append"];
    let ticket = sandbox.admit(&owner, "s", &tree);
    let behind = std::fs::read(sandbox.path("chat.jsonl")).unwrap();
    sandbox.step_in(&ticket, ["message", "-"], assistant("Done.", &[]).to_string()).ok();
    let next = ["inspect", "s", "--next"];
    for (file, expected) in [(None, "settle\n"), (Some(behind), "recover\n")] {
        if let Some(file) = file {
            std::fs::write(sandbox.path("chat.jsonl"), file).unwrap();
        }
        let (points, whole) = points(&sandbox, &["openat", "pread64", "readlink"], &next, "");
        assert_eq!(whole.ok().stdout, expected);
        let of_files = |point: &&Point| point.args.contains("jsonl");
        let points: Vec<&Point> = points.iter().filter(of_files).collect();
        assert!(points.len() >= 3, "{points:?}");
        for point in points.iter().filter(|point| point.call != "readlink") {
            let done = at_point(&sandbox, point, "error=EIO", &next, "");
            assert_eq!(done.injected(), 1, "{point}");
            let ran = done.ran;
            match ran.code() {
                0 => assert_eq!(ran.stdout, "recover\n", "{point}: {}", ran.all()),
                1 => assert!(ran.stderr.contains("Input/output error"), "{point}: {}", ran.all()),
                other => panic!("{point}: exit {other}: {}", ran.all()),
            }
        }
    }
}

/// An owner that is recorded is the true one, or none is.
#[test]
fn an_owner_is_never_recorded_with_half_a_look() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    let words = ["admit", "s", "--turn", "t1", "--text", "x", "--owner-pid", &pid];
    let before = sandbox.everything();
    let (points, whole) = points(&sandbox, &["openat"], &words, "");
    whole.ok();
    let mut expected = sandbox.last("s")["owner"].clone();
    expected["cmd"] = json!("");
    let looks = |point: &&Point| ["/proc/", "/etc/"].iter().any(|place| point.args.contains(place));
    for point in points.iter().filter(looks) {
        restore(&sandbox, &before);
        let done = at_point(&sandbox, point, "error=EMFILE", &words, "");
        assert_eq!(done.injected(), 1, "{point}");
        if done.ran.code() == 1 {
            assert!(done.ran.stderr.contains("Too many open files"), "{point}: {}", done.ran.all());
            assert!(!sandbox.journal_path("s").exists(), "{point}");
            continue;
        }
        let recorded = sandbox.last("s");
        let mut owner = recorded["owner"].clone();
        owner["cmd"] = json!("");
        assert_eq!((done.ran.code(), owner), (0, expected.clone()), "{point}: {}", done.ran.all());
    }
}

// The judge itself.

fn one_note() -> (Sandbox, Vec<String>, Vec<u8>) {
    let sandbox = Sandbox::in_memory();
    let ticket = sandbox.run(["admit", "s", "--text", "x", "--owner-pid", "none"]).ok().line();
    let earlier = journal(&sandbox);
    (sandbox, strings(&["step", "--ticket", &ticket, "note", "-"]), earlier)
}

fn verdict(sandbox: &Sandbox, earlier: &[u8], ran: &Ran) -> String {
    judge(sandbox, earlier, ran, EXPLAINED).join("\n")
}

#[test]
fn the_judge_misses_a_record_that_was_acknowledged() {
    let (sandbox, words, _) = one_note();
    sandbox.cmd(&words).stdin("one").go().ok();
    let earlier = journal(&sandbox);
    let ran = sandbox.cmd(&words).stdin("two").go().ok();
    assert_eq!(verdict(&sandbox, &earlier, &ran), "");
    // The last one, cut on a line boundary: the chain itself cannot show it.
    std::fs::write(sandbox.journal_path("s"), &earlier).unwrap();
    sandbox.run(["verify", "s"]).ok();
    assert!(verdict(&sandbox, &earlier, &ran).contains("acknowledged and does not stand"));
    // An earlier one, its successors chained anew.
    let mut heads = forge::heads(&earlier);
    let last = heads.len() - 1;
    heads[last] = heads[last].replace("\"one\"", "\"eno\"");
    std::fs::write(sandbox.journal_path("s"), forge::chain(&heads)).unwrap();
    sandbox.run(["verify", "s"]).ok();
    assert!(verdict(&sandbox, &earlier, &ran).contains("an earlier record is gone"));
}

#[test]
fn the_judge_misses_an_attempt_whose_ticket_was_told() {
    let sandbox = Sandbox::in_memory();
    sandbox.run(["admit", "s", "--turn", "t1", "--text", "x", "--owner-pid", "none"]).ok();
    let earlier = journal(&sandbox);
    let ran = sandbox.run(["recover", "s", "--owner-pid", "none", "--force", "--why", "x"]).ok();
    assert_eq!(ran.line(), "s:t1:2");
    assert_eq!(verdict(&sandbox, &earlier, &ran), "");
    std::fs::write(sandbox.journal_path("s"), &earlier).unwrap();
    assert!(verdict(&sandbox, &earlier, &ran).contains("the ticket s:t1:2 was told"));
}

#[test]
fn the_judge_sees_writes_that_lied() {
    if !can_trace() {
        return;
    }
    let (sandbox, words, earlier) = one_note();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let before = sandbox.everything();
    let (points, _) = points(&sandbox, &["write", "fdatasync"], &words, "one");
    let at = |call: &str| {
        let mut found = points.iter().filter(|point| point.call == call && point.args.contains("s.jsonl"));
        found.next_back().unwrap_or_else(|| panic!("no {call} of the journal: {points:?}"))
    };
    let bytes = journal(&sandbox).len() - earlier.len();
    for lie in [bytes, 50] {
        // It says that so many bytes were written, and none were.
        restore(&sandbox, &before);
        let done = at_point(&sandbox, at("write"), &format!("retval={lie}"), &words, "one");
        assert_eq!((done.injected(), done.ran.code()), (1, 0), "{}", done.ran.all());
        let found = verdict(&sandbox, &earlier, &done.ran);
        assert!(found.contains("acknowledged and does not stand"), "{lie}: {found}");
    }
    // A sync that lied is seen by nobody here: the page cache outlives every process.
    restore(&sandbox, &before);
    let done = at_point(&sandbox, at("fdatasync"), "retval=0", &words, "one");
    assert_eq!((done.injected(), done.ran.code()), (1, 0), "{}", done.ran.all());
    assert_eq!(verdict(&sandbox, &earlier, &done.ran), "");
}

#[test]
fn the_judge_of_ends_refuses_what_does_not_fit() {
    let (sandbox, words, _) = one_note();
    let ran = sandbox.cmd(&words).stdin("one").go();
    assert_eq!(judge_end(End::AsEver, &ran, 0, "EIO", true, Speaks::Turnkeep), None);
    for end in [End::NotDurable, End::CouldNot, End::Noted] {
        assert!(
            judge_end(end, &ran, 0, "EIO", true, Speaks::Turnkeep).is_some(),
            "acknowledged as if nothing had been: {end:?}"
        );
    }
    let point = Point { call: "fdatasync".into(), index: 1, args: "3</s.jsonl>".into() };
    let again =
        "fdatasync(3</s.jsonl>) = -1 EIO (Input/output error) (INJECTED)\nfdatasync(3</s.jsonl>) = 0\n";
    assert!(judge_syncs(&point, again).is_some());
}
