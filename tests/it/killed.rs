//! `kill -9` at each system call that matters, in every command that writes; then the same command again.
//!
//! strace delivers the signal on entry to the k-th call of its kind; that it was deadly is demanded at each. Where
//! it cannot be used the tests say so and pass. `TURNKEEP_SLOW=1` kills at every call that changes a file or a lock,
//! opens or closes one. Others of their kind are in `killed_others.rs`.

use crate::forge;
use crate::kit::*;
use crate::points::*;
use serde_json::{Value, json};
use std::collections::HashSet;

/// Calls at which commands are killed: all that change a file, or some of these.
fn syscalls() -> Vec<&'static str> {
    if slow() { CHANGING.to_vec() } else { vec!["write", "fdatasync", "fsync", "ftruncate", "mkdir"] }
}

/// These calls, and with `TURNKEEP_SLOW=1` every one that changes a file.
pub fn and_all_that_change(calls: &[&'static str]) -> Vec<&'static str> {
    let others = CHANGING.iter().filter(|call| slow() && !calls.contains(call));
    calls.iter().chain(others).copied().collect()
}

/// Does `judge` after a kill at each point of a command, always from the same beginning.
///
/// Answers with the number of points.
pub fn at_each_point(sandbox: &Sandbox, words: &[&str], stdin: &str, judge: impl FnMut(&str)) -> usize {
    at_points(sandbox, &syscalls(), words, stdin, judge)
}

/// The same at calls of these kinds. That each was really killed there is demanded at each.
pub fn at_points(
    sandbox: &Sandbox,
    calls: &[&str],
    words: &[&str],
    stdin: &str,
    mut judge: impl FnMut(&str),
) -> usize {
    let before = sandbox.everything();
    let (points, _) = points(sandbox, calls, words, stdin);
    for point in &points {
        restore(sandbox, &before);
        let killed = at_point(sandbox, point, "signal=KILL", words, stdin);
        assert_eq!(killed.ran.code(), 137, "not killed at {point} of {words:?}: {}", killed.ran.all());
        let what = format!("killed at {point} of {words:?}");
        kept(sandbox, &before, &what);
        judge(&what);
        kept(sandbox, &before, &what);
    }
    restore(sandbox, &before);
    points.len()
}

/// Every whole line that stood in a journal or session file before stands there still, at its place.
#[track_caller]
pub fn kept(sandbox: &Sandbox, before: &Files, point: &str) {
    let now = sandbox.everything();
    for (path, bytes) in before {
        let Some(bytes) = bytes.as_ref().filter(|_| path.extension().is_some_and(|end| end == "jsonl"))
        else {
            continue;
        };
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let found = now.iter().find(|(found, _)| found == path).and_then(|(_, bytes)| bytes.as_ref());
        let stands = found.is_some_and(|found| found.starts_with(&bytes[..end]));
        assert!(stands, "{point}: a line of {} is gone or changed", path.display());
    }
}

/// A killed writer leaves nothing but what a crash explains.
#[track_caller]
pub fn explained(sandbox: &Sandbox, point: &str) {
    if sandbox.journal_path("s").exists() {
        let ran = sandbox.run(["verify", "s", "--with-tree"]);
        assert!([0, 13].contains(&ran.code()), "{point}: {}", ran.all());
    }
}

#[track_caller]
pub fn sound(sandbox: &Sandbox, point: &str) {
    let ran = sandbox.run(["verify", "s", "--with-tree"]);
    // A settled turn whose agent has not written its file is behind, and that is all.
    let unwritten = ran.code() == 13 && ran.stdout.contains("branch-behind") && branch_is_the_agents(sandbox);
    assert!(ran.code() == 0 || unwritten, "{point}: {}", ran.all());
    let tree = sandbox.path("chat.jsonl");
    if tree.exists() {
        demand_single_entries(sandbox, point);
    }
}

fn branch_is_the_agents(sandbox: &Sandbox) -> bool {
    let records = sandbox.journal("s");
    let kinds: Vec<String> = records.iter().map(|record| text(&record["kind"])).collect();
    records[1]["tree"]["mode"] == "branch"
        && kinds.contains(&"settled".to_owned())
        && !kinds.contains(&"recovered".to_owned())
}

#[track_caller]
fn demand_single_entries(sandbox: &Sandbox, point: &str) {
    let entries = sandbox.tree("chat.jsonl");
    let ids: Vec<String> = entries.iter().map(|entry| text(&entry["id"])).collect();
    let distinct: HashSet<&String> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len(), "{point}: an id twice: {ids:?}");
    let results: Vec<String> = entries
        .iter()
        .filter_map(|entry| Some(entry["message"]["toolCallId"].as_str()?.to_owned()))
        .collect();
    let distinct: HashSet<&String> = results.iter().collect();
    assert_eq!(distinct.len(), results.len(), "{point}: a result twice");
}

fn policy(sandbox: &Sandbox) {
    sandbox.policy(json!([
        {"tool": "look", "replay": "safe"},
        {"tool": "put", "replay": "keyed"},
        {"tool": "charge", "replay": "never", "unknown": "hold"},
        {"tool": "deploy", "replay": "never", "approval": "required"},
    ]));
}

/// A turn with a call for each row that can be had without other processes, whose owner died.
pub fn crashed(sandbox: &Sandbox, mode: &str) -> u64 {
    policy(sandbox);
    sandbox.write("chat.jsonl", small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(
        &owner,
        "s",
        &["--turn", "t1", "--tree", "chat.jsonl", "--tree-mode", mode, "--delivery", "k"],
    );
    let none = json!({});
    let seq = sandbox.announce(
        &ticket,
        &[
            ("done", "bash", none.clone()),
            ("maybe", "bash", none.clone()),
            ("again", "look", none.clone()),
            ("keyed", "put", none.clone()),
            ("held", "charge", none.clone()),
            ("later", "bash", none.clone()),
            ("asked", "deploy", none.clone()),
        ],
    );
    for position in 0..5 {
        sandbox.step(&ticket, ["claim", &format!("{seq}.{position}")]).ok();
    }
    sandbox.step_in(&ticket, ["result", &format!("{seq}.0"), "-"], "it is done").ok();
    owner.die();
    seq
}

pub fn decisions(status: &Value) -> Vec<(String, String)> {
    let decided = status["decisions"].as_array().unwrap();
    decided.iter().map(|decided| (text(&decided["ref"]), text(&decided["decision"]))).collect()
}

/// What entries say, without ids and times.
fn said(entries: &[Value]) -> Vec<String> {
    let what = |entry: &Value| {
        let message = &entry["message"];
        format!("{} {} {} {}", entry["type"], message["role"], message["toolCallId"], entry["customType"])
    };
    entries.iter().map(what).collect()
}

fn kill_recover(mode: &str) {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    crashed(&sandbox, mode);
    let before = sandbox.everything();
    let owner = Owner::start();
    let other = Owner::start();
    let (pid, other) = (owner.pid().to_string(), other.pid().to_string());
    let whole = sandbox.run(["recover", "s", "--owner-pid", &pid, "--json"]).ok().json();
    let whole_tree = said(&sandbox.tree("chat.jsonl"));
    let expected: Vec<&str> = vec!["redeliver", "interrupt", "rerun", "rerun", "hold", "run", "ask"];
    assert_eq!(decisions(&whole).into_iter().map(|(_, decision)| decision).collect::<Vec<_>>(), expected);
    let records = sandbox.journal("s").len();
    restore(&sandbox, &before);
    let words = ["recover", "s", "--owner-pid", &pid, "--json"];
    let points = at_each_point(&sandbox, &words, "", |point| {
        explained(&sandbox, point);
        let (journal, tree) =
            (sandbox.journal_bytes("s"), std::fs::read(sandbox.path("chat.jsonl")).unwrap());
        let after_kill = sandbox.everything();
        let began = sandbox.kinds_so_far("s").iter().filter(|kind| *kind == "attempt").count() > 1;
        let again = sandbox.run(words);
        assert_eq!(again.code(), 0, "{point}: {}", again.all());
        let again = again.json();
        assert_eq!(decisions(&again), decisions(&whole), "{point}: other decisions");
        assert_eq!(again["ticket"], "s:t1:2", "{point}");
        assert_eq!(again["next"], whole["next"], "{point}");
        assert!(sandbox.journal_bytes("s").starts_with(&journal), "{point}: a record was changed");
        let now = std::fs::read(sandbox.path("chat.jsonl")).unwrap();
        assert!(now.starts_with(&tree), "{point}: an entry was changed");
        assert_eq!(said(&sandbox.tree("chat.jsonl")), whole_tree, "{point}: other entries");
        let grown = sandbox.journal("s").len();
        assert!(grown <= records + usize::from(began), "{point}: {grown} records for {records}");
        sound(&sandbox, point);
        // And once more: nothing is left to do.
        let done = sandbox.everything();
        sandbox.run(words).ok();
        assert!(sandbox.everything() == done, "{point}: written twice");
        // Somebody else goes on with it, the first one being gone.
        restore(&sandbox, &after_kill);
        let forced = ["recover", "s", "--owner-pid", &other, "--force", "--why", "the other one hangs"];
        let ran = sandbox.run(forced);
        assert_eq!(ran.code(), 0, "{point}: {}", ran.all());
        let took = ran.line();
        let number = if began { "s:t1:3" } else { "s:t1:2" };
        assert_eq!(took, number, "{point}: the next number where the old one may live");
        assert_eq!(
            said(&sandbox.tree("chat.jsonl"))[..whole_tree.len()],
            whole_tree,
            "{point}: other entries"
        );
        sound(&sandbox, point);
    });
    assert!(points >= 8, "only {points} points");
}

trait SoFar {
    fn kinds_so_far(&self, session: &str) -> Vec<String>;
}

impl SoFar for Sandbox {
    /// Kinds of the records that have their newline.
    fn kinds_so_far(&self, session: &str) -> Vec<String> {
        let bytes = self.journal_bytes(session);
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        lines(&bytes[..end]).iter().map(|record| text(&record["kind"])).collect()
    }
}

#[test]
pub fn recover_in_branch_mode() {
    kill_recover("branch");
}

#[test]
fn recover_in_append_mode() {
    kill_recover("append");
}

#[test]
fn recover_of_a_torn_tail_and_of_a_torn_tree() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    crashed(&sandbox, "branch");
    let mut journal = sandbox.journal_bytes("s");
    journal.extend(b"{\"seq\":99,\"at\":\"2026");
    std::fs::write(sandbox.journal_path("s"), &journal).unwrap();
    let mut tree = std::fs::read(sandbox.path("chat.jsonl")).unwrap();
    tree.extend(b"{\"type\":\"message\",\"id\":\"tor");
    std::fs::write(sandbox.path("chat.jsonl"), &tree).unwrap();
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    let words = ["recover", "s", "--owner-pid", &pid];
    let points = at_each_point(&sandbox, &words, "", |point| {
        sandbox.run(words).ok();
        let records = sandbox.journal("s");
        let repaired: Vec<&Value> = records.iter().filter(|record| record["kind"] == "repaired").collect();
        // Killed between the cut and the record, the cut stands alone; its bytes are kept all the same.
        assert!(repaired.len() <= 1, "{point}");
        let kept: Vec<_> = std::fs::read_dir(sandbox.root().join("quarantine"))
            .unwrap()
            .map(|item| std::fs::read(item.unwrap().path()).unwrap())
            .collect();
        assert_eq!(kept, [b"{\"seq\":99,\"at\":\"2026".to_vec()], "{point}");
        let now = std::fs::read(sandbox.path("chat.jsonl")).unwrap();
        assert!(now.starts_with(&[&tree[..], b"\n"].concat()), "{point}: glued to a torn line");
        let ran = sandbox.run(["verify", "s", "--with-tree"]);
        assert_eq!(ran.code(), 0, "{point}: {}", ran.all());
    });
    assert!(points >= 12, "only {points} points");
}

fn kill_admit(sandbox: &Sandbox, extra: &[&str]) {
    let mut words =
        vec!["admit", "s", "--turn", "t1", "--delivery", "k", "--text", "Hello", "--owner-pid", "none"];
    words.extend(extra);
    let resumed: Vec<&str> = words.iter().copied().chain(["--resume"]).collect();
    let earlier = if sandbox.journal_path("s").exists() { sandbox.journal("s").len() } else { 0 };
    let points = at_each_point(sandbox, &words, "", |point| {
        explained(sandbox, point);
        let after_kill = sandbox.everything();
        let again = sandbox.run(&words);
        assert!([0, 10].contains(&again.code()), "{point}: {}", again.all());
        let check = || {
            let kinds = sandbox.kinds("s")[earlier..].to_vec();
            let admitted = kinds.iter().filter(|kind| *kind == "admitted").count();
            assert_eq!(admitted, 1, "{point}: {kinds:?}");
            assert!(kinds.contains(&"attempt".to_owned()), "{point}: {kinds:?}");
        };
        check();
        // Killed with the turn admitted but no ticket told: --resume gives one.
        restore(sandbox, &after_kill);
        let ran = sandbox.run(&resumed);
        assert_eq!(ran.code(), 0, "{point}: {}", ran.all());
        let ticket = ran.line();
        check();
        sandbox.step(&ticket, ["heartbeat"]).ok();
        sound(sandbox, point);
        if extra.contains(&"--tree") {
            let tree = sandbox.tree("chat.jsonl");
            let users = tree.iter().filter(|entry| entry["message"].to_string().contains("Hello")).count();
            assert!(users == 1, "{point}: the input stands {users} times");
        }
    });
    assert!(points >= 3, "only {points} points");
}

#[test]
pub fn admit_to_a_new_session() {
    if can_trace() {
        kill_admit(&Sandbox::in_memory(), &[]);
    }
}

#[test]
fn admit_to_a_session_that_is_there() {
    if can_trace() {
        let sandbox = Sandbox::in_memory();
        let owner = Owner::start();
        let ticket = sandbox.admit(&owner, "s", &[]);
        sandbox.step_in(&ticket, ["message", "-"], assistant("Done.", &[]).to_string()).ok();
        sandbox.step(&ticket, ["settle"]).ok();
        kill_admit(&sandbox, &[]);
    }
}

#[test]
fn admit_with_a_tree_that_is_appended_to() {
    if can_trace() {
        let sandbox = Sandbox::in_memory();
        sandbox.write("chat.jsonl", small_tree());
        kill_admit(&sandbox, &["--tree", "chat.jsonl", "--tree-mode", "append"]);
    }
}

#[test]
pub fn admit_with_a_tree_that_is_made() {
    if can_trace() {
        let header = header().to_string();
        kill_admit(
            &Sandbox::in_memory(),
            &["--tree", "chat.jsonl", "--tree-mode", "append", "--tree-header", &header],
        );
    }
}

/// What the same step says behind one that stands.
#[derive(Clone, Copy)]
enum Again {
    /// Its receipt.
    Repeats,
    /// 7: its caller would act next.
    Gates,
}

/// Kills a step at each point and demands that the same step then stands once.
fn kill_step(sandbox: &Sandbox, words: &[&str], stdin: &str, kind: &str, at_most: usize, how: Again) {
    let count = |kinds: Vec<String>| kinds.iter().filter(|found| *found == kind).count();
    let earlier = count(sandbox.kinds("s"));
    let calls = if slow() { syscalls() } else { vec!["write", "fdatasync", "fsync"] };
    let points = at_points(sandbox, &calls, words, stdin, |point| {
        explained(sandbox, point);
        let again = sandbox.cmd(words).stdin(stdin).go();
        let allowed: &[i32] = match how {
            Again::Repeats => &[0],
            Again::Gates => &[0, 7],
        };
        assert!(allowed.contains(&again.code()), "{point}: {}", again.all());
        let found = count(sandbox.kinds("s")) - earlier;
        assert!((1..=at_most).contains(&found), "{point}: {found} records of {kind}");
        sound(sandbox, point);
    });
    assert!(points >= 3, "only {points} points of {words:?}");
    sandbox.cmd(words).stdin(stdin).go().ok();
    sound(sandbox, "the end");
}

/// A step that is killed, and how many records of its kind may come of that.
pub struct Step {
    pub words: Vec<&'static str>,
    stdin: String,
    kind: &'static str,
    at_most: usize,
}

/// A whole turn.
pub fn steps() -> Vec<Step> {
    let step = |words: &[&'static str], stdin: &str, kind, at_most| Step {
        words: words.to_vec(),
        stdin: stdin.to_owned(),
        kind,
        at_most,
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
    let reconcile =
        ["reconcile", "g", "--outcome", "applied", "--by", "bob", "--force", "--why", "seen", "-"];
    vec![
        step(&["message", "-"], &assistant("", &calls).to_string(), "message", 1),
        step(&["claim", "a"], "", "claimed", 1),
        step(&["result", "a", "-"], "done", "result", 1),
        step(&["result", "b", "--not-run"], "", "not_run", 1),
        step(&["approve", "d", "--by", "alice"], "", "approval", 1),
        step(&["deny", "e", "--by", "alice", "--reason", "no"], "", "not_run", 1),
        step(&["dispatch", "f", "--to", "farm"], "", "dispatched", 1),
        step(&["dispatch", "f", "--to", "farm", "--receipt", "job 7"], "", "dispatched", 2),
        step(&["result", "f", "-"], "done remotely", "result", 1),
        step(&["note", "-"], "a remark", "note", 2),
        step(&["heartbeat"], "", "heartbeat", 2),
        step(&["steer", "--text", "And hurry", "--delivery", "k2"], "", "steered", 1),
        step(&["claim", "d"], "", "claimed", 1),
        step(&["result", "d", "-"], "deployed", "result", 1),
        step(&["claim", "c", "--link", "{\"id\":7}"], "", "claimed", 1),
        step(&["result", "c", "-", "--error"], "refused", "result", 1),
        step(&["claim", "g"], "", "claimed", 1),
        step(&reconcile, "it happened", "reconciled", 1),
        step(&["message", "-"], &assistant("All done.", &[]).to_string(), "message", 1),
        step(&["settle"], "", "settled", 1),
        step(&["deliver", "--begin"], "", "delivery", 1),
        step(&["deliver", "--not-sent", "--by", "bob"], "", "delivery", 2),
        step(&["deliver", "--begin"], "", "delivery", 2),
        step(&["deliver", "--receipt", "r1"], "", "delivery", 2),
    ]
}

fn kill_steps(mode: &str) {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    policy(&sandbox);
    sandbox.write("chat.jsonl", small_tree());
    let owner = Owner::start();
    let tree = ["--turn", "t1", "--delivery", "k", "--tree", "chat.jsonl", "--tree-mode", mode];
    let ticket = sandbox.admit(&owner, "s", &tree);
    for Step { words, stdin, kind, at_most } in steps() {
        let gates = ["claim", "dispatch"].contains(&words[0]) || words == ["deliver", "--begin"];
        let how = if gates { Again::Gates } else { Again::Repeats };
        let words = [&["step", "--ticket", &ticket][..], &words].concat();
        kill_step(&sandbox, &words, &stdin, kind, at_most, how);
    }
}

#[test]
fn every_step_in_branch_mode() {
    kill_steps("branch");
}

#[test]
fn every_step_in_append_mode() {
    kill_steps("append");
}

#[test]
pub fn cancel_and_waive() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--delivery", "k"]);
    sandbox.step_in(&ticket, ["message", "-"], assistant("Hm.", &[]).to_string()).ok();
    kill_step(
        &sandbox,
        &["step", "cancel", "--session", "s", "--by", "alice"],
        "",
        "cancelled",
        1,
        Again::Repeats,
    );
    kill_step(&sandbox, &["step", "--ticket", &ticket, "settle"], "", "settled", 1, Again::Repeats);
    let sandbox = Sandbox::in_memory();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--delivery", "k"]);
    sandbox.step_in(&ticket, ["message", "-"], assistant("Hm.", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    let waive = ["step", "--ticket", &ticket, "deliver", "--waive", "--why", "nobody waits", "--by", "alice"];
    kill_step(&sandbox, &waive, "", "delivery", 1, Again::Repeats);
}

/// Kills `turnkeep` and not what it started; the effect is a line in a file.
fn effects(sandbox: &Sandbox) -> usize {
    std::fs::read_to_string(sandbox.path("effects")).unwrap_or_default().lines().count()
}

#[test]
fn a_run_has_its_effect_at_most_once() {
    if can_trace() {
        kill_run("echo effect >>effects; echo output");
    }
}

fn kill_run(body: &str) {
    let sandbox = Sandbox::in_memory();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    let call = format!("{}.0", sandbox.announce(&ticket, &[("a", "bash", json!({}))]));
    let tool = sandbox.script("tool.sh", body);
    let words = ["step", "--ticket", &ticket, "run", &call, "--", tool.to_str().unwrap()];
    let other = Owner::start();
    let mut ends = HashSet::new();
    let calls = and_all_that_change(&["fdatasync", "clone3", "wait4", "waitid", "close", "ppoll"]);
    at_points(&sandbox, &calls, &words, "", |point| {
        // Whatever became of the tool, it is not started behind a claim that stands.
        until("the tool's end", || !runs(tool.to_str().unwrap()));
        let again = sandbox.run(words);
        ends.insert(again.code());
        let kinds = sandbox.kinds("s");
        match again.code() {
            0 | 10 => assert_eq!(kinds.iter().filter(|kind| *kind == "result").count(), 1, "{point}"),
            7 => assert!(!kinds.contains(&"result".to_owned()), "{point}"),
            other => panic!("{point}: exit {other}: {}", again.all()),
        }
        assert!(effects(&sandbox) <= 1, "{point}: {} effects", effects(&sandbox));
        let pid = other.pid().to_string();
        let forced = ["recover", "s", "--owner-pid", &pid, "--force", "--why", "test", "--json"];
        let status = sandbox.run(forced).ok().json();
        let expected = if again.code() == 7 { "interrupt" } else { "redeliver" };
        assert_eq!(status["decisions"][0]["decision"], expected, "{point}");
        sound(&sandbox, point);
    });
    assert_eq!(ends, HashSet::from([0, 7, 10]), "each end was seen");
}

fn runs(program: &str) -> bool {
    let found = |pid: std::fs::DirEntry| {
        let line = std::fs::read(pid.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).take(2).any(|word| word == program.as_bytes())
    };
    std::fs::read_dir("/proc").unwrap().any(|pid| pid.is_ok_and(found))
}

#[test]
fn a_reply_is_published_at_most_once() {
    if can_trace() {
        kill_reply("cat >/dev/null; echo effect >>effects; echo receipt-1");
    }
}

fn kill_reply(body: &str) {
    let sandbox = Sandbox::in_memory();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--delivery", "k"]);
    sandbox.step_in(&ticket, ["message", "-"], assistant("Hello.", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    let post = sandbox.script("post.sh", body);
    let words = ["step", "--ticket", &ticket, "deliver", "--", post.to_str().unwrap()];
    let mut ends = HashSet::new();
    let calls = and_all_that_change(&["fdatasync", "clone3", "wait4", "close"]);
    at_points(&sandbox, &calls, &words, "", |point| {
        until("the publisher's end", || !runs(post.to_str().unwrap()));
        let again = sandbox.run(words);
        ends.insert(again.code());
        assert!([0, 7, 10].contains(&again.code()), "{point}: {}", again.all());
        assert!(effects(&sandbox) <= 1, "{point}: {} effects", effects(&sandbox));
        if again.code() == 7 {
            // Only a person can tell, and says so once.
            let by_person = ["step", "deliver", "--session", "s:t1", "--receipt", "seen", "--by", "bob"];
            sandbox.run(by_person.into_iter().chain(["--force", "--why", "seen"])).ok();
        }
        assert_eq!(sandbox.last("s")["state"], "sent", "{point}");
        sound(&sandbox, point);
    });
    assert!(ends.contains(&7) && ends.len() > 1, "{ends:?}");
}

#[test]
fn a_journal_replaced_under_the_lock_is_noticed_before_anything_is_acknowledged() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    let path = sandbox.journal_path("s");
    let before = sandbox.journal_bytes("s");
    for k in 1..=2 {
        // Stopped with the lock: before its sync of what it found (1), or of what it wrote (2).
        let inject = format!("inject=fdatasync:signal=STOP:when={k}");
        let words = [
            "-f",
            "-q",
            "-o",
            "log",
            "-e",
            "trace=fdatasync",
            "-e",
            &inject,
            bin(),
            "step",
            "--ticket",
            &ticket,
            "heartbeat",
        ];
        let tracer = sandbox.program("strace", words).start();
        let mut stopped = 0;
        until("the stop", || {
            let path = format!("/proc/{0}/task/{0}/children", tracer.pid());
            let child = std::fs::read_to_string(path).unwrap_or_default();
            let Ok(child) = child.trim().parse() else { return false };
            stopped = child;
            std::fs::read_to_string(sandbox.path("log")).unwrap_or_default().contains("stopped by SIGSTOP")
        });
        let (copy, aside) = (sandbox.path("copy"), sandbox.path("aside"));
        std::fs::write(&copy, &before).unwrap();
        std::fs::rename(&path, &aside).unwrap();
        std::fs::rename(&copy, &path).unwrap();
        signal(stopped, "CONT");
        let ran = tracer.wait();
        assert_eq!(ran.code(), 9, "{}", ran.all());
        assert!(ran.stdout.is_empty(), "nothing is acknowledged");
        assert!(ran.stderr.contains("was replaced"), "{}", ran.stderr);
        assert_eq!(string(sandbox.journal_bytes("s")), string(before.clone()));
        std::fs::remove_file(sandbox.path("log")).unwrap();
    }
    sandbox.step(&ticket, ["heartbeat"]).ok();
}

// Mistakes on purpose: each of these checks can fail.

/// A turn with a call that was claimed and has its result.
fn acknowledged(sandbox: &Sandbox) -> String {
    sandbox.write("chat.jsonl", small_tree());
    let tree = ["--text", "Hello", "--owner-pid", "none", "--tree", "chat.jsonl", "--tree-mode", "append"];
    let ticket = sandbox.run(["admit", "s", "--turn", "t1"].into_iter().chain(tree)).ok().line();
    sandbox.announce(&ticket, &[("a", "bash", json!({}))]);
    sandbox.step(&ticket, ["claim", "a"]).ok();
    sandbox.step_in(&ticket, ["result", "a", "-"], "done").ok();
    sandbox.step(&ticket, ["heartbeat"]).ok();
    ticket
}

/// The journal without one of its records: the rest numbered and chained anew.
fn without(journal: &[u8], gone: usize) -> Vec<u8> {
    let mut heads = forge::heads(journal);
    heads.remove(gone);
    for (seq, head) in heads.iter_mut().enumerate().skip(gone) {
        let (_, rest) = head.split_once(',').unwrap();
        *head = format!("{{\"seq\":{seq},{rest}");
    }
    forge::chain(&heads)
}

#[test]
fn records_that_are_lost_behind_a_kill_are_found() {
    let sandbox = Sandbox::in_memory();
    let ticket = acknowledged(&sandbox);
    let (before, journal) = (sandbox.everything(), sandbox.journal_bytes("s"));
    kept(&sandbox, &before, "as it was");
    let path = sandbox.journal_path("s");
    let records = journal.split_inclusive(|byte| *byte == b'\n').count();
    for gone in 1..records {
        std::fs::write(&path, without(&journal, gone)).unwrap();
        objects("is gone or changed", || kept(&sandbox, &before, "chained anew"));
    }
    // The last one, at the end of a line: nothing but what stood before can show that.
    std::fs::write(&path, without(&journal, records - 1)).unwrap();
    sandbox.run(["verify", "s"]).ok();
    std::fs::remove_file(&path).unwrap();
    objects("is gone or changed", || kept(&sandbox, &before, "no journal"));
    restore(&sandbox, &before);
    let tree = std::fs::read_to_string(sandbox.path("chat.jsonl")).unwrap();
    let shorter = tree[..tree.len() - 1].rfind('\n').unwrap() + 1;
    sandbox.write("chat.jsonl", &tree[..shorter]);
    objects("chat.jsonl is gone or changed", || kept(&sandbox, &before, "an entry less"));
    if !can_trace() {
        return;
    }
    // The loop itself looks: behind the kill, and behind what is done with it.
    restore(&sandbox, &before);
    let words = ["step", "--ticket", &ticket, "heartbeat"];
    objects("is gone or changed", || {
        at_points(&sandbox, &["write"], &words, "", |_| {
            std::fs::write(&path, without(&journal, records - 1)).unwrap();
        })
    });
    restore(&sandbox, &before);
    at_points(&sandbox, &["write"], &words, "", |_| {});
}

#[test]
fn garbage_behind_a_kill_is_found() {
    let sandbox = Sandbox::in_memory();
    acknowledged(&sandbox);
    let (before, journal) = (sandbox.everything(), sandbox.journal_bytes("s"));
    explained(&sandbox, "as it was");
    sound(&sandbox, "as it was");
    let path = sandbox.journal_path("s");
    let last = journal[..journal.len() - 1].rsplit(|byte| *byte == b'\n').next().unwrap();
    for garbage in [&b"garbage\n"[..], b"{}\n", &[last, b"\n"].concat(), b"\0\0\0\0\n"] {
        std::fs::write(&path, [&journal[..], garbage].concat()).unwrap();
        objects("exit 3", || explained(&sandbox, "garbage"));
        objects("exit 3", || sound(&sandbox, "garbage"));
    }
    // A torn line is what a kill explains, and not what may be left behind the next command.
    std::fs::write(&path, [&journal[..], &last[..20]].concat()).unwrap();
    explained(&sandbox, "torn");
    objects("exit 13", || sound(&sandbox, "torn"));
    restore(&sandbox, &before);
    let tree = std::fs::read_to_string(sandbox.path("chat.jsonl")).unwrap();
    let result = tree.lines().last().unwrap();
    for twice in [result.to_owned(), result.replace("\"id\":\"", "\"id\":\"f")] {
        sandbox.write("chat.jsonl", format!("{tree}{twice}\n"));
        objects("twice", || demand_single_entries(&sandbox, "an entry more"));
    }
}

#[test]
fn effects_and_records_that_come_twice_are_found() {
    if !can_trace() {
        return;
    }
    objects("2 effects", || kill_run("echo effect >>effects; echo effect >>effects; echo output"));
    let twice = "cat >/dev/null; echo effect >>effects; echo effect >>effects; echo receipt-1";
    objects("2 effects", || kill_reply(twice));
    let sandbox = Sandbox::in_memory();
    let ticket = acknowledged(&sandbox);
    // A heartbeat killed behind its write stands, and so does the next one.
    let words = ["step", "--ticket", &ticket, "heartbeat"];
    let count = |kind, at_most| kill_step(&sandbox, &words, "", kind, at_most, Again::Repeats);
    let before = sandbox.everything();
    objects("2 records of heartbeat", || count("heartbeat", 1));
    restore(&sandbox, &before);
    objects("0 records of note", || count("note", 1));
}
