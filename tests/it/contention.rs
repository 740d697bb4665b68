//! Many processes on one session: the lock, its holder, and journals that are replaced under it.

use crate::kit::*;
use serde_json::json;
use std::os::fd::AsFd as _;

/// How many processes contend.
fn crowd() -> usize {
    if std::env::var_os("TURNKEEP_SLOW").is_some() { 200 } else { 60 }
}

#[test]
fn contending_steps_lose_nothing() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    let count = crowd();
    let started: Vec<Running> = (0..count)
        .map(|number| {
            sandbox
                .cmd(["step", "--ticket", &ticket, "--wait", "50", "note", "-"])
                .stdin(number.to_string())
                .start()
        })
        .collect();
    let mut seqs: Vec<u64> = started.into_iter().map(|running| running.wait().ok().seq()).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (3..3 + count as u64).collect::<Vec<_>>(), "each has a number of its own");
    let mut notes: Vec<String> = sandbox
        .journal("s")
        .iter()
        .filter(|record| record["kind"] == "note")
        .map(|record| text(&record["content"]))
        .collect();
    notes.sort_by_key(|note| note.parse::<usize>().unwrap());
    assert_eq!(notes, (0..count).map(|number| number.to_string()).collect::<Vec<_>>());
    sandbox.run(["verify", "s"]).ok();
}

#[test]
fn of_contending_claims_one_wins() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    let call = format!("{}.0", sandbox.announce(&ticket, &[("c1", "bash", json!({}))]));
    // The links differ, so none of them repeats another.
    let started: Vec<Running> = (0..20)
        .map(|number| sandbox.step_cmd(&ticket, ["claim", &call, "--link", &number.to_string()]).start())
        .collect();
    let mut codes: Vec<i32> = started.into_iter().map(|running| running.wait().code()).collect();
    codes.sort_unstable();
    let lost = codes.split_off(1);
    assert_eq!(codes, [0]);
    assert!(lost.iter().all(|code| *code == 7), "{lost:?}");
    assert_eq!(sandbox.kinds("s").iter().filter(|kind| *kind == "claimed").count(), 1);
}

#[test]
fn contending_admissions_of_one_key_make_one_turn() {
    let sandbox = Sandbox::new();
    let started: Vec<Running> = (0..12)
        .map(|_| {
            let words = ["admit", "s", "--delivery", "k", "--text", "x", "--owner-pid", "none"];
            sandbox.cmd(words).start()
        })
        .collect();
    let mut codes: Vec<i32> = started.into_iter().map(|running| running.wait().code()).collect();
    codes.sort_unstable();
    assert_eq!(codes, [&[0][..], &[10; 11]].concat());
    assert_eq!(sandbox.kinds("s"), ["opened", "admitted", "attempt"]);
}

/// Locks the journal in a process of its own: flock(1), which waits for a child that does not have the lock.
struct Holder {
    process: std::process::Child,
    child: u32,
}

impl Holder {
    fn of(sandbox: &Sandbox) -> Self {
        let mark = sandbox.path("locked");
        let _none = std::fs::remove_file(&mark);
        let script = format!("echo $$ >'{0}.new' && mv '{0}.new' '{0}' && exec sleep 1000", mark.display());
        let mut command = std::process::Command::new("flock");
        command.arg("-o").arg(sandbox.journal_path("s")).args(["sh", "-c", &script]);
        let process = command.spawn().unwrap();
        until("the lock", || mark.exists());
        let child = std::fs::read_to_string(&mark).unwrap().trim().parse().unwrap();
        std::fs::remove_file(mark).unwrap();
        Self { process, child }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
        signal(self.child, "KILL");
    }
}

fn has_flock() -> bool {
    let there = std::process::Command::new("flock").arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: there is no flock(1) here");
    }
    there
}

#[test]
fn a_holder_that_does_not_let_go_is_named() {
    if !has_flock() {
        return;
    }
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    owner.die();
    let holder = Holder::of(&sandbox);
    let pid = holder.process.id();
    signal(pid, "STOP");
    let before = sandbox.everything();
    for words in [
        vec!["recover", "s", "--wait", "0", "--json"],
        vec!["step", "--ticket", &ticket, "--wait", "0.05", "note", "-", "--json"],
        vec!["admit", "s", "--text", "x", "--wait", "0", "--json"],
    ] {
        let ran = sandbox.cmd(&words).stdin("x").go().exits(4);
        let error = ran.error("locked");
        assert_eq!(error["pid"], pid, "{error}");
        let message = text(&error["message"]);
        assert!(message.contains(&pid.to_string()) && message.contains("flock"), "{message}");
        assert!(text(&error["hint"]).contains("CONT"), "it is stopped: {error}");
    }
    assert_eq!(sandbox.everything(), before, "nothing is written without the lock");
    signal(pid, "CONT");
    drop(holder);
    let owner = Owner::start();
    sandbox.recover(&owner, "s", &[]);
}

#[test]
fn a_signal_ends_the_wait_for_the_lock_and_nothing_is_written() {
    if !has_flock() {
        return;
    }
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    let _holder = Holder::of(&sandbox);
    let before = sandbox.everything();
    for (name, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let pid = owner.pid().to_string();
        for words in [
            vec!["step", "--ticket", &ticket, "--wait", "50", "heartbeat"],
            vec!["recover", "s", "--owner-pid", &pid, "--wait", "50"],
            vec!["admit", "s", "--text", "x", "--wait", "50"],
        ] {
            let waiting = sandbox.cmd(&words).start();
            // It waits for the lock once it has the journal open.
            until("the wait", || has_open(waiting.pid(), &sandbox.journal_path("s")));
            waiting.signal(name);
            let ran = waiting.wait().exits(code);
            assert!(ran.stderr.contains("signal"), "{}", ran.stderr);
        }
    }
    assert_eq!(sandbox.everything(), before);
}

fn has_open(pid: u32, path: &std::path::Path) -> bool {
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let mut links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    links.any(|link| link == path)
}

#[test]
fn a_journal_replaced_while_waiting_for_the_lock_is_opened_anew() {
    if !has_flock() {
        return;
    }
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    let path = sandbox.journal_path("s");
    let holder = Holder::of(&sandbox);
    let waiting = sandbox.cmd(["step", "--ticket", &ticket, "--wait", "50", "heartbeat"]).start();
    until("the wait", || has_open(waiting.pid(), &path));
    let (copy, aside) = (sandbox.path("copy"), sandbox.path("aside"));
    std::fs::copy(&path, &copy).unwrap();
    std::fs::rename(&path, &aside).unwrap();
    std::fs::rename(&copy, &path).unwrap();
    drop(holder);
    waiting.wait().ok();
    assert_eq!(sandbox.last("s")["kind"], "heartbeat", "it is in the journal that is found");
    assert_eq!(lines(&std::fs::read(aside).unwrap()).len(), 3, "and the other one is left alone");
}

#[test]
fn the_lock_is_not_kept_by_a_command_that_was_started() {
    let sandbox = Sandbox::new();
    let running = sandbox.cmd(["admit", "s", "--text", "x", "--", "sleep", "1000"]).start();
    until("the turn", || sandbox.journal_path("s").exists() && sandbox.journal_bytes("s").ends_with(b"\n"));
    until("sleep", || {
        std::fs::read_to_string(format!("/proc/{}/comm", running.pid())).unwrap_or_default().trim() == "sleep"
    });
    sandbox.run(["recover", "s", "--wait", "0"]).exits(4).says("whose owner lives");
    let file = std::fs::File::open(sandbox.journal_path("s")).unwrap();
    fs2::FileExt::try_lock_exclusive(&file).unwrap();
    let _open = file.as_fd();
    running.signal("KILL");
    running.wait();
}
