//! `kill -9` in the commands that `killed.rs` leaves out: those that start others, go on behind damage, look at many
//! sessions, or write beside the journal. And the proof that no kind of call is left out.

use crate::killed::{
    self, and_all_that_change, at_each_point, at_points, crashed, decisions, explained, sound, steps,
};
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
    if can_trace() {
        kill_run("echo effect >>effects; echo output");
    }
}

fn kill_run(body: &str) {
    let sandbox = Sandbox::in_memory();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    let tool = sandbox.script("tool.sh", body);
    let words = ["step", "--ticket", &ticket, "run", "--tool", "sh", "one", "--", tool.to_str().unwrap()];
    let points = at_each_point(&sandbox, &words, "", |point| {
        tool_ended(&tool);
        explained(&sandbox, point);
        let again = sandbox.run(words);
        assert!([0, 7].contains(&again.code()), "{point}: {}", again.all());
        assert!(effects(&sandbox) <= 1, "{point}: {} effects", effects(&sandbox));
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

/// The admission of the turn of [`crashed`] once more.
pub const RESUME: [&str; 11] =
    ["admit", "s", "--turn", "t1", "--delivery", "k", "--text", "Do it", "--owner-pid", "none", "--resume"];

#[test]
fn admit_that_is_resumed() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    crashed(&sandbox, "branch");
    let points = at_each_point(&sandbox, &RESUME, "", |point| {
        explained(&sandbox, point);
        let ran = sandbox.run(RESUME).ok();
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

/// Kills a takeover at each point. Whoever goes on with it, by `resume` where that will do and else by the same words,
/// comes to the same decisions, and then has nothing more to write.
fn kill_takeover(sandbox: &Sandbox, words: &[&str], resume: &[&str]) {
    let before = sandbox.everything();
    let whole = sandbox.run(words);
    // A turn that waits for a person is taken all the same; who asks again is told of it by the exit code too.
    let codes = [whole.code(), 14];
    assert!([0, 14].contains(&whole.code()), "{}", whole.all());
    restore(sandbox, &before);
    let points = at_each_point(sandbox, words, "", |point| {
        explained(sandbox, point);
        let stood = sandbox.journal_bytes("s");
        let resumed = sandbox.run(resume);
        let is_taken = resumed.json()["ticket"].is_string();
        let taken = if is_taken { resumed } else { sandbox.run(words) };
        assert!(codes.contains(&taken.code()), "{point}: {}", taken.all());
        assert_eq!(decisions(&taken.json()), decisions(&whole.json()), "{point}");
        let end = stood.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        assert!(sandbox.journal_bytes("s").starts_with(&stood[..end]), "{point}: a record was changed");
        sound(sandbox, point);
        let done = sandbox.everything();
        let again = sandbox.run(resume);
        assert!(codes.contains(&again.code()), "{point}: {}", again.all());
        assert!(sandbox.everything() == done, "{point}: written twice");
    });
    assert!(points >= 8, "only {points} points of {words:?}");
}

/// `recover s` for an owner, with options.
fn takeover<'a>(pid: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    [&["recover", "s", "--owner-pid", pid, "--json"][..], options].concat()
}

/// A crashed turn that was taken over by one that lives and holds a call.
pub fn held_by_one_that_hangs(sandbox: &Sandbox) -> Owner {
    crashed(sandbox, "branch");
    let hangs = Owner::start();
    let ticket = sandbox.recover(&hangs, "s", &[]);
    sandbox.step(&ticket, ["claim", "again"]).ok();
    hangs
}

pub const FORCE: [&str; 3] = ["--force", "--why", "it hangs"];

#[test]
fn recover_by_force() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    let _hangs = held_by_one_that_hangs(&sandbox);
    let other = Owner::start();
    let pid = other.pid().to_string();
    sandbox.run(takeover(&pid, &[])).exits(4);
    kill_takeover(&sandbox, &takeover(&pid, &FORCE), &takeover(&pid, &[]));
}

#[test]
fn recover_that_closes_calls() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    crashed(&sandbox, "append");
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    let words = takeover(&pid, &["--close-calls"]);
    kill_takeover(&sandbox, &words, &words);
}

#[test]
fn recover_onto_what_the_agent_wrote() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    crashed(&sandbox, "branch");
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    let words = takeover(&pid, &["--onto", "live"]);
    kill_takeover(&sandbox, &words, &words);
}

/// A crashed turn whose journal lost something, which a person has acknowledged.
pub fn salvaged(sandbox: &Sandbox) {
    crashed(sandbox, "branch");
    let journal = sandbox.journal_bytes("s");
    std::fs::write(sandbox.journal_path("s"), [&journal, &b"no record\n"[..]].concat()).unwrap();
    sandbox.run(["recover", "s", "--owner-pid", "none", "--salvage", "--why", "the disk"]).exits(14);
}

pub const UNPARK: [&str; 5] = ["--unpark", "--by", "bob", "--why", "seen"];

#[test]
fn recover_that_unparks() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    salvaged(&sandbox);
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    sandbox.run(takeover(&pid, &[])).exits(14);
    kill_takeover(&sandbox, &takeover(&pid, &UNPARK), &takeover(&pid, &[]));
}

#[test]
fn recover_behind_acknowledged_damage() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    salvaged(&sandbox);
    let first = Owner::start();
    let ticket = sandbox.recover(&first, "s", &UNPARK);
    sandbox.step(&ticket, ["claim", "n1", "--tool", "look", "--args", "{}"]).ok();
    let seen = ["step", "reconcile", "held", "--session", "s", "--outcome", "not_applied", "--by", "bob"];
    sandbox.run([&seen[..], &["--force", "--why", "seen"]].concat()).ok();
    first.die();
    let journal = sandbox.journal_bytes("s");
    std::fs::write(sandbox.journal_path("s"), [&journal, &b"{\"seq\":99,\"at"[..]].concat()).unwrap();
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    let words = takeover(&pid, &[]);
    kill_takeover(&sandbox, &words, &words);
}

/// An open turn, and an admission that joins it.
pub fn busy(sandbox: &Sandbox) -> Owner {
    let owner = Owner::start();
    sandbox.admit(&owner, "s", &["--turn", "t1", "--delivery", "k"]);
    owner
}

pub const JOIN: [&str; 10] =
    ["admit", "s", "--delivery", "k2", "--text", "And hurry", "--when-busy", "steer", "--owner-pid", "none"];

#[test]
fn an_admission_that_joins_the_open_turn() {
    if !can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    let _owner = busy(&sandbox);
    let points = at_each_point(&sandbox, &JOIN, "", |point| {
        explained(&sandbox, point);
        let again = sandbox.run(JOIN);
        assert!([0, 10].contains(&again.code()), "{point}: {}", again.all());
        let steered = sandbox.kinds("s").iter().filter(|kind| *kind == "steered").count();
        assert_eq!(steered, 1, "{point}");
        sound(&sandbox, point);
    });
    assert!(points >= 3, "only {points} points");
}

/// Two sessions that crashed, and a driver whose work is one effect a turn, once its turn is its own.
pub fn two_to_drive(sandbox: &Sandbox) -> std::path::PathBuf {
    two_driven_by(sandbox, "turnkeep step run a -- sh -c \"echo $TURNKEEP_SESSION >>effects\"")
}

fn two_driven_by(sandbox: &Sandbox, driver: &str) -> std::path::PathBuf {
    for session in ["s", "b"] {
        let owner = Owner::start();
        let ticket = sandbox.admit(&owner, session, &["--turn", "t1"]);
        sandbox.announce(&ticket, &[("a", "bash", json!({}))]);
        owner.die();
    }
    sandbox.script("driver.sh", driver)
}

#[test]
fn recover_of_everything() {
    if can_trace() {
        kill_recover_all(two_to_drive);
    }
}

fn kill_recover_all(set_up: impl Fn(&Sandbox) -> std::path::PathBuf) {
    let sandbox = Sandbox::in_memory();
    let driver = set_up(&sandbox);
    let words = ["recover", "--all", "--", driver.to_str().unwrap()];
    let calls = and_all_that_change(&["write", "fdatasync", "clone3"]);
    let points = at_points(&sandbox, &calls, &words, "", |point| {
        tool_ended(&driver);
        until("the effects", || {
            sandbox.run(&words).ok();
            effects(&sandbox) >= 2
        });
        sandbox.run(words).ok();
        let told = std::fs::read_to_string(sandbox.path("effects")).unwrap();
        assert_eq!(effects(&sandbox), 2, "{point}: {told}");
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

/// Mistakes on purpose: what is demanded behind a kill can fail.
#[test]
fn effects_that_come_twice_and_decisions_that_change_are_found() {
    if !can_trace() {
        return;
    }
    objects("2 effects", || kill_run("echo effect >>effects; echo effect >>effects; echo output"));
    // A driver that does its work without a claim does it in each of its runs.
    objects("right: 2", || {
        kill_recover_all(|sandbox| {
            two_driven_by(sandbox, "for session in s b b; do echo $session >>effects; done")
        });
    });
    let sandbox = Sandbox::in_memory();
    crashed(&sandbox, "append");
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    // Who takes it and who goes on with it want different ends of the calls that are open.
    let (words, other) = (takeover(&pid, &["--close-calls"]), takeover(&pid, &[]));
    let before = sandbox.everything();
    objects("assertion `left == right` failed: killed at", || kill_takeover(&sandbox, &words, &other));
    restore(&sandbox, &before);
    // An owner that is gone is another one each time: it is written again.
    let other = takeover("none", &[]);
    objects("written twice", || kill_takeover(&sandbox, &other, &other));
}

/// What is killed beside [`steps`], and where.
const KILLED: &[(&str, fn())] = &[
    ("admit", killed::admit_to_a_new_session),
    ("admit --tree", killed::admit_with_a_tree_that_is_made),
    ("admit --tree-mode", killed::admit_with_a_tree_that_is_made),
    ("admit --tree-header", killed::admit_with_a_tree_that_is_made),
    ("admit --resume", admit_that_is_resumed),
    ("admit --when-busy", an_admission_that_joins_the_open_turn),
    ("recover", killed::recover_in_branch_mode),
    ("recover --all", recover_of_everything),
    ("recover --close-calls", recover_that_closes_calls),
    ("recover --force", recover_by_force),
    ("recover --onto", recover_onto_what_the_agent_wrote),
    ("recover --salvage", recover_behind_damage),
    ("recover --unpark", recover_that_unparks),
    ("step cancel", killed::cancel_and_waive),
    ("step entry", entries_and_declared_claims),
    ("step run", a_run_without_a_model),
];

/// Options that change what is said, or a value in what is written, and no write.
const OF_NO_ACCOUNT: &[&str] = &[
    "--by",
    "--color",
    "--delivery",
    "--dry-run",
    "--help",
    "--input",
    "--json",
    "--leaf",
    "--lease",
    "--match",
    "--max-record",
    "--meta",
    "--owner-pid",
    "--policy",
    "--quiet",
    "--root",
    "--text",
    "--tree-file",
    "--turn",
    "--wait",
    "--wait-result",
    "--why",
];

/// The commands in a help text that do not say that they never write.
fn writers(help: &str) -> Vec<String> {
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let mut found: Vec<(String, String)> = Vec::new();
    for line in listed {
        match (line.starts_with("   "), found.last_mut()) {
            (true, Some((_, about))) => about.push_str(line),
            _ => found.push((line.split_whitespace().next().unwrap().to_owned(), line.to_owned())),
        }
    }
    found.retain(|(name, about)| name != "help" && !about.contains("never writes"));
    found.into_iter().map(|(name, _)| name).collect()
}

/// The long options in a help text.
fn options(help: &str) -> Vec<String> {
    let words =
        help.lines().filter(|line| line.trim_start().starts_with('-')).flat_map(str::split_whitespace);
    words.filter(|word| word.starts_with("--")).map(str::to_owned).collect()
}

/// What writes, by its own help, and is not among what is tried.
fn left_out(tried: impl Fn(&str) -> bool, help: impl Fn(&[&str]) -> String) -> Vec<String> {
    let mut found = Vec::new();
    for command in writers(&help(&[])) {
        if command == "step" {
            found.extend(writers(&help(&["step"])).iter().map(|step| format!("step {step}")));
            continue;
        }
        let account = |option: &String| !OF_NO_ACCOUNT.contains(&option.as_str());
        let options = options(&help(&[&command])).into_iter().filter(account);
        found.extend(options.map(|option| format!("{command} {option}")));
        found.push(command);
    }
    found.retain(|what| !tried(what));
    found
}

/// Demands that every command, step and option that writes is among what is tried.
#[track_caller]
pub fn demand_no_writer_left_out(tried: impl Fn(&str) -> bool) {
    let sandbox = Sandbox::new();
    let help = |words: &[&str]| sandbox.run(words.iter().chain(&["--help"])).ok().stdout;
    assert_eq!(left_out(&tried, help), Vec::<String>::new(), "these are tried nowhere");
    // New ones would be found.
    let more = |words: &[&str]| match words {
        [] => help(words).replace("\n  help ", "\n  forget   Forget a session\n  help "),
        ["step"] => help(words).replace("\n  help ", "\n  hold       A person holds a call\n  help "),
        ["forget"] => String::new(),
        _ => format!("{}      --harder\n", help(words)),
    };
    assert_eq!(left_out(&tried, more), ["admit --harder", "step hold", "recover --harder", "forget"]);
    // And so would one that is no longer tried.
    let but_one = |what: &str| what != "recover --force" && tried(what);
    assert_eq!(left_out(but_one, help), ["recover --force"]);
}

#[test]
fn no_command_that_writes_is_left_out() {
    let steps: Vec<String> = steps().iter().map(|step| format!("step {}", step.words[0])).collect();
    demand_no_writer_left_out(|what| {
        steps.iter().any(|step| step == what) || KILLED.iter().any(|(killed, _)| *killed == what)
    });
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
