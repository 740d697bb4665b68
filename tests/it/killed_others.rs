//! `kill -9` in the commands that `killed.rs` leaves out: those that start others, go on behind damage, look at many
//! sessions, or write beside the journal. And the proof that no kind of call is left out.

use crate::killed::{at_each_point, at_points, crashed, explained, sound};
use crate::kit::*;
use crate::points::*;
use serde_json::json;
use std::collections::BTreeSet;

fn effects(sandbox: &Sandbox) -> usize {
    std::fs::read_to_string(sandbox.path("effects")).unwrap_or_default().lines().count()
}

/// Waits until nothing of a killed command is left that could still act.
fn tool_ended(tool: &std::path::Path) {
    let name = tool.to_str().unwrap().as_bytes().to_vec();
    until("the tool's end", || {
        let runs = |pid: std::fs::DirEntry| {
            let line = std::fs::read(pid.path().join("cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).take(2).any(|word| word == name)
        };
        !std::fs::read_dir("/proc").unwrap().any(|pid| pid.is_ok_and(runs))
    });
}

#[test]
fn a_run_without_a_model() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    let tool = sandbox.script("tool.sh", "echo effect >>effects; echo output");
    let words = ["step", "--ticket", &ticket, "run", "--tool", "sh", "one", "--", tool.to_str().unwrap()];
    let points = at_each_point(&sandbox, &words, "", |point| {
        tool_ended(&tool);
        explained(&sandbox, point);
        let again = sandbox.run(words);
        assert!([0, 7].contains(&again.code()), "{point}: {}", again.all());
        assert!(effects(&sandbox) <= 1, "{point}");
        assert_eq!(again.code() == 0, sandbox.kinds("s").contains(&"result".to_owned()), "{point}");
        sound(&sandbox, point);
    });
    assert!(points >= 12, "only {points} points");
}

#[test]
fn entries_and_declared_claims() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    sandbox.write("chat.jsonl", small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--tree", "chat.jsonl"]);
    let raw = [
        entry("e1", Some("a2"), &user("Do it")).to_string(),
        entry("e2", Some("e1"), &assistant("", &[("a", "bash", json!({}))])).to_string(),
    ];
    let steps: [(&[&str], String, &str, &[i32]); 3] = [
        (&["entry", "-"], raw.join("\n"), "entry", &[0]),
        (&["claim", "a"], String::new(), "claimed", &[0, 7]),
        (&["claim", "n1", "--tool", "curl", "--args", "{}"], String::new(), "intent", &[0, 7]),
    ];
    let mut points = 0;
    for (words, stdin, kind, again) in steps {
        let words = [&["step", "--ticket", &ticket], words].concat();
        let mut stood = BTreeSet::new();
        points += at_each_point(&sandbox, &words, &stdin, |point| {
            explained(&sandbox, point);
            let ran = sandbox.cmd(&words).stdin(stdin.clone()).go();
            assert!(again.contains(&ran.code()), "{point}: {}", ran.all());
            stood.insert(sandbox.kinds("s").iter().filter(|found| *found == kind).count());
            sound(&sandbox, point);
        });
        assert_eq!(stood.len(), 1, "{kind}: as often whenever it was killed: {stood:?}");
        sandbox.cmd(&words).stdin(stdin).go().ok();
    }
    assert!(points >= 9, "only {points} points");
}

#[test]
fn admit_that_is_resumed() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    crashed(&sandbox, "branch");
    let admitted =
        ["admit", "s", "--turn", "t1", "--delivery", "k", "--text", "Do it", "--owner-pid", "none"];
    let words = [&admitted[..], &["--resume"]].concat();
    let points = at_each_point(&sandbox, &words, "", |point| {
        explained(&sandbox, point);
        let ran = sandbox.run(&words).ok();
        // Held by nobody, the killed one may be going on: then the next attempt is the one that counts.
        assert!(["s:t1:2", "s:t1:3"].contains(&ran.line().as_str()), "{point}: {}", ran.all());
        sandbox.step(&ran.line(), ["heartbeat"]).ok();
        sound(&sandbox, point);
    });
    assert!(points >= 8, "only {points} points");
}

#[test]
fn recover_behind_damage() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    crashed(&sandbox, "branch");
    let mut journal = sandbox.journal_bytes("s");
    journal.extend(b"no record\n");
    std::fs::write(sandbox.journal_path("s"), &journal).unwrap();
    let words = ["recover", "s", "--owner-pid", "none", "--salvage", "--why", "the disk"];
    let points = at_each_point(&sandbox, &words, "", |point| {
        let code = sandbox.run(["verify", "s"]).code();
        assert!([0, 3, 13].contains(&code), "{point}: {code}");
        sandbox.run(words).exits(14);
        assert!(sandbox.journal_bytes("s").starts_with(&journal), "{point}: something was removed");
        let repaired = |line: &&[u8]| line.windows(19).any(|found| found == b"\"kind\":\"repaired\",\"");
        let bytes = sandbox.journal_bytes("s");
        assert_eq!(bytes.split(|byte| *byte == b'\n').filter(repaired).count(), 1, "{point}");
        sandbox.run(["verify", "s"]).ok();
        // And a person goes on with it.
        sandbox.run(["recover", "s", "--owner-pid", "none", "--unpark", "--by", "bob", "--why", "seen"]).ok();
        sandbox.run(["verify", "s", "--with-tree"]).ok();
    });
    assert!(points >= 3, "only {points} points");
}

#[test]
fn recover_of_everything() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    for session in ["s", "b"] {
        let owner = Owner::start();
        let ticket = sandbox.admit(&owner, session, &["--turn", "t1"]);
        sandbox.announce(&ticket, &[("a", "bash", json!({}))]);
        owner.die();
    }
    // The driver's work is one effect a turn, once its turn is its own.
    let driver =
        sandbox.script("driver.sh", "turnkeep step run a -- sh -c \"echo $TURNKEEP_SESSION >>effects\"");
    let words = ["recover", "--all", "--", driver.to_str().unwrap()];
    let calls: &[&str] = if slow() {
        &["write", "fdatasync", "fsync", "clone3", "openat"]
    } else {
        &["write", "fdatasync", "clone3"]
    };
    let points = at_points(&sandbox, calls, &words, "", |point| {
        tool_ended(&driver);
        until("the effects", || {
            sandbox.run(&words).ok();
            effects(&sandbox) == 2
        });
        let told = std::fs::read_to_string(sandbox.path("effects")).unwrap();
        assert_eq!(told.lines().collect::<BTreeSet<_>>().len(), 2, "{point}: {told}");
        for session in ["s", "b"] {
            let verdict = sandbox.run(["verify", session]);
            assert_eq!(verdict.code(), 0, "{point}: {}", verdict.all());
        }
    });
    assert!(points >= 2, "only {points} points");
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
    let read = || std::fs::read_to_string(sandbox.path("heads")).unwrap();
    let old = read();
    sandbox.run(words).ok();
    let new = read();
    restore(&sandbox, &before);
    let points = at_points(&sandbox, CHANGING, &words, "", |point| {
        let found = read();
        assert!(found == old || found == new, "{point}: {found}");
        sandbox.run(words).ok();
        assert_eq!(read(), new, "{point}");
    });
    assert!(points >= 8, "only {points} points");
}

/// Calls that change nothing outside the process, or only read.
const HARMLESS: &[&str] = &[
    "access",
    "arch_prctl",
    "brk",
    "clone3",
    "dup2",
    "execve",
    "exit",
    "exit_group",
    "fcntl",
    "fstat",
    "futex",
    "getdents64",
    "getegid",
    "geteuid",
    "getgid",
    "getpgrp",
    "getpid",
    "getppid",
    "getrandom",
    "gettid",
    "getuid",
    "getcwd",
    "ioctl",
    "kill",
    "lseek",
    "lstat",
    "madvise",
    "mmap",
    "mprotect",
    "mremap",
    "munmap",
    "newfstatat",
    "pipe2",
    "poll",
    "ppoll",
    "pread64",
    "prlimit64",
    "read",
    "readlink",
    "recvfrom",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sched_getaffinity",
    "sched_yield",
    "sendto",
    "set_robust_list",
    "set_tid_address",
    "sigaltstack",
    "socketpair",
    "stat",
    "statfs",
    "statx",
    "sysinfo",
    "uname",
    "wait4",
    "waitid",
    "clock_nanosleep",
    "pidfd_send_signal",
    "prctl",
];

/// Every kind of call that some command makes is one at which it is killed, or one that changes nothing.
#[test]
fn no_call_that_changes_a_file_is_left_out() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    sandbox.write("chat.jsonl", small_tree());
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut seen = BTreeSet::new();
    let mut trace = |words: &[&str], stdin: &str| {
        let options = ["-qq", "-o", log.path().to_str().unwrap(), bin()];
        let ran = sandbox.program("strace", options.iter().chain(words)).stdin(stdin).go();
        let trace = String::from_utf8_lossy(&std::fs::read(log.path()).unwrap()).into_owned();
        let calls = trace.lines().filter_map(|line| Some(line.split_once('(')?.0.to_owned()));
        seen.extend(calls.filter(|call| {
            call.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        }));
        ran
    };
    let tree = ["--tree", "chat.jsonl", "--tree-mode", "append"];
    let admit = ["admit", "s", "--turn", "t1", "--delivery", "k", "--text", "Hi", "--owner-pid", "none"];
    trace(&[&admit[..], &tree].concat(), "").ok();
    let step = |words: &[&'static str]| [&["step", "--ticket", "s:t1:1"], words].concat();
    trace(
        &step(&["message", "-"]),
        &assistant("", &[("a", "bash", json!({})), ("b", "bash", json!({}))]).to_string(),
    )
    .ok();
    trace(&step(&["run", "a", "--", "echo", "hi"]), "").ok();
    trace(&step(&["claim", "b"]), "").ok();
    let journal = sandbox.journal_bytes("s");
    std::fs::write(sandbox.journal_path("s"), [&journal[..], b"{\"seq\":9"].concat()).unwrap();
    trace(&["recover", "s", "--force", "--why", "x", "--owner-pid", "none"], "").ok();
    trace(&["step", "--ticket", "s:t1:2", "message", "-"], &assistant("Done.", &[]).to_string()).ok();
    trace(&["step", "--ticket", "s:t1:2", "settle"], "").ok();
    trace(&["step", "--ticket", "s:t1:2", "deliver", "--", "cat"], "").ok();
    trace(&["verify", "s", "--heads", "heads"], "").ok();
    trace(&["recover", "--all", "--", "true"], "").ok();
    let changing: Vec<&String> = seen.iter().filter(|call| CHANGING.contains(&call.as_str())).collect();
    let unknown: Vec<&String> = seen
        .iter()
        .filter(|call| !CHANGING.contains(&call.as_str()) && !HARMLESS.contains(&call.as_str()))
        .collect();
    assert!(unknown.is_empty(), "at these nobody is killed: {unknown:?}");
    for call in ["write", "fdatasync", "fsync", "openat", "mkdir", "rename", "ftruncate", "flock", "unlink"] {
        assert!(changing.iter().any(|found| *found == call), "no command makes a {call}: {changing:?}");
    }
}
