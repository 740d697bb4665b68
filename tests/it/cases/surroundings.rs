//! Reports about what surrounds a journal: locks, links, clocks, disks, modes, names, terminals.

use super::{claimed_and_dead, text, whole};
use crate::fixtures::journal::Journal;
use crate::kit::{BIN, Owner, Sandbox, signal, until};
use serde_json::json;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

const ADMIT: [&str; 6] = ["admit", "s", "--text", "Do it", "--owner-pid", "none"];

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A test that this machine cannot make says so.
#[expect(clippy::print_stderr, reason = "tests speak on stderr")]
fn skipped(why: &str) {
    eprintln!("skipped: {why}");
}

/// Whether system calls can be traced and made to fail here; said where not.
fn can_inject() -> bool {
    let works = has("strace")
        && std::process::Command::new("strace")
            .args(["-qq", "-e", "trace=none", "-e", "inject=flock:error=ENOLCK", "true"])
            .output()
            .is_ok_and(|done| done.status.success());
    if !works {
        skipped("strace does not work here");
    }
    works
}

/// A lock file named a living process that had nothing to do with it: the session was locked for ever.
#[test]
fn lock_names_a_living_stranger() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    let stranger = std::process::id();
    let lock = sandbox.root().join("sessions/s.jsonl.lock");
    std::fs::write(&lock, json!({"pid": stranger, "host": "elsewhere"}).to_string()).unwrap();
    sandbox.announce(&ticket, &[]);
    assert!(std::fs::read_to_string(lock).unwrap().contains("elsewhere"), "no such file is ours");
}

/// The holder of a lock was suspended; another process took over after a time, and then both wrote.
#[test]
fn holder_suspended() {
    if !has("flock") {
        skipped("there is no flock");
        return;
    }
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    let journal = sandbox.journal_path("s").display().to_string();
    let holder =
        sandbox.program("flock", ["-x", &journal, "sh", "-c", "echo $$ >held; kill -STOP $$"]).start();
    until("the lock is held", || {
        std::fs::read_to_string(sandbox.path("held")).is_ok_and(|pid| pid.ends_with('\n'))
    });
    let held: u32 = std::fs::read_to_string(sandbox.path("held")).unwrap().trim().parse().unwrap();
    sandbox.unchanged("s", || {
        sandbox.cmd(["--wait", "0.1", "step", "--ticket", &ticket, "note", "-"]).stdin("x").go().exits(4);
    });
    until("the holder is stopped", || {
        std::fs::read_to_string(format!("/proc/{held}/stat")).is_ok_and(|stat| stat.contains(") T "))
    });
    signal(held, "CONT");
    holder.wait().ok();
    sandbox.step_in(&ticket, ["note", "-"], "x").ok();
}

/// A link in place of a journal or folder: its target was truncated or appended to.
#[test]
fn lock_path_is_a_symlink() {
    let sandbox = Sandbox::new();
    let victim = sandbox.write("victim.txt", "keep");
    let private = |path: &Path| {
        std::fs::create_dir_all(path).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
    };
    private(&sandbox.root());
    private(&sandbox.root().join("sessions"));
    std::os::unix::fs::symlink(&victim, sandbox.journal_path("s")).unwrap();
    sandbox.unchanged_files(|| {
        let ran = sandbox.run(ADMIT);
        assert_ne!(ran.code(), 0);
        ran.says("link");
        sandbox.run(["verify", "s"]).exits(6);
    });
    std::fs::remove_dir_all(sandbox.root()).unwrap();
    private(&sandbox.root());
    private(&sandbox.path("elsewhere"));
    std::os::unix::fs::symlink(sandbox.path("elsewhere"), sandbox.root().join("sessions")).unwrap();
    sandbox.unchanged_files(|| {
        let ran = sandbox.run(ADMIT);
        assert_ne!(ran.code(), 0);
        ran.says("elsewhere");
    });
    // A linked root is an operator's choice.
    std::fs::remove_dir_all(sandbox.root()).unwrap();
    std::os::unix::fs::symlink(sandbox.path("elsewhere"), sandbox.root()).unwrap();
    sandbox.run(ADMIT).ok();
    assert_eq!(std::fs::read_to_string(victim).unwrap(), "keep");
}

/// A file system without locks: the tool went on without one.
#[test]
fn file_system_without_locks() {
    if !can_inject() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.run(ADMIT).ok();
    let errors = [
        ("ENOLCK", "No locks available"),
        ("ENOSYS", "Function not implemented"),
        ("EBADF", "Bad file descriptor"),
    ];
    for (error, word) in errors {
        let inject = format!("inject=flock:error={error}");
        let words = [
            "-qq",
            "-f",
            "-o",
            "/dev/null",
            "-e",
            "trace=flock",
            "-e",
            &inject,
            BIN,
            "admit",
            "s",
            "--text",
            "x",
            "--owner-pid",
            "none",
            "--turn",
            "t2",
        ];
        let ran = sandbox.unchanged_files(|| sandbox.program("strace", words).go().exits(1));
        // The path, the type of its file system, the system's word, and what cannot be given there.
        let told = format!("{} is on a file system without locks (", sandbox.journal_path("s").display());
        let (_, of) = ran.stderr.split_once(&told).unwrap_or_else(|| panic!("{told:?}: {}", ran.stderr));
        let (of, rest) = of.split_once("): ").unwrap();
        let magic = sandbox.program("stat", ["-f", "-c", "%t", "state/sessions"]).go().ok().line();
        let known = [("ef53", "ext4"), ("1021994", "tmpfs"), ("794c7630", "overlay"), ("58465342", "xfs")];
        let known = known.into_iter().chain([("9123683e", "btrfs")]);
        let name = known.into_iter().find(|(number, _)| *number == magic).map(|(_, name)| name);
        assert_eq!(of, name.map_or_else(|| format!("of type 0x{magic}"), str::to_owned), "{}", ran.stderr);
        assert!(rest.starts_with(word), "{}", ran.stderr);
        assert!(rest.contains("a single writer cannot be guaranteed there"), "{}", ran.stderr);
    }
}

/// The clock ran backwards: records were sorted by time, or an append into the past was refused.
#[test]
fn clock_runs_backwards() {
    let sandbox = Sandbox::new();
    sandbox.run(ADMIT).ok();
    // A journal whose clock jumped: a record from 2039, and then this machine's time.
    let mut journal = Journal::opened("s");
    journal.admit("t1", None, "\"Do it\"", "");
    for (at, fields) in [
        ("2039-01-01T00:00:00.000000Z", r#""kind":"attempt","turn":"t1","attempt":1,"cause":"admit""#),
        ("1999-12-31T23:59:58.000000Z", r#""kind":"note","turn":"t1","attempt":1,"content":1"#),
    ] {
        let (seq, prev) = (journal.seq, journal.prev.clone());
        let base = journal.offsets()[1];
        journal.raw(&format!(r#"{{"seq":{seq},"at":"{at}",{fields},"base":{base},"prev":"{prev}""#));
    }
    std::fs::write(sandbox.journal_path("s"), &journal.bytes).unwrap();
    sandbox.run(["verify", "s"]).ok();
    sandbox.announce("s:t1:1", &[]);
    sandbox.cmd(["step", "--ticket", "s:t1:1", "settle"]).env("TZ", "Asia/Tokyo").go().ok();
    sandbox.run(["verify", "s"]).ok();
    let seqs: Vec<_> = sandbox.journal("s").iter().map(|record| record["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (0..seqs.len() as u64).collect::<Vec<_>>());
    assert!(sandbox.last("s")["at"].as_str().unwrap().ends_with('Z'));
    sandbox.run(["inspect", "s"]).ok();
}

/// A write met a file size limit: the process died of the signal, or took a short write for done.
#[test]
fn file_size_limit_short_write() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    let note = "x".repeat(3_000);
    let limit = sandbox.journal_bytes("s").len().div_ceil(1_024) + 1;
    for ignore in ["", "trap '' XFSZ; "] {
        let before = sandbox.journal_bytes("s");
        let script = format!("{ignore}ulimit -f {limit}; exec turnkeep step --ticket {ticket} note -");
        let ran = sandbox.program("bash", ["-c", &script]).stdin(note.clone()).go().exits(9);
        assert!(ran.stderr.contains("File too large"), "{}", ran.stderr);
        assert_eq!(ran.stdout, "");
        assert!(sandbox.journal_bytes("s").starts_with(&before));
        let verdict = sandbox.run(["verify", "s"]).code();
        assert!([0, 13].contains(&verdict), "{verdict}");
    }
    sandbox.step_in(&ticket, ["note", "-"], note).ok();
    sandbox.run(["verify", "s"]).ok();
}

/// The folder of a new session was not synced, and the session was gone after a power failure.
#[test]
fn new_session_directory_not_durable() {
    if !can_inject() {
        return;
    }
    let sandbox = Sandbox::new();
    let words = |extra: &[&'static str]| {
        let mut words =
            vec!["-qq", "-f", "-y", "-o", "trace", "-e", "trace=openat,mkdir,mkdirat,write,fsync,fdatasync"];
        words.extend(extra);
        words.push(BIN);
        words.extend(ADMIT);
        words
    };
    sandbox.program("strace", words(&[])).go().ok();
    let trace = std::fs::read_to_string(sandbox.path("trace")).unwrap();
    let answer = trace.lines().position(|line| line.contains("write(1<")).unwrap();
    let root = sandbox.root().display().to_string();
    for folder in [root.clone(), format!("{root}/sessions"), sandbox.dir().display().to_string()] {
        let synced =
            trace.lines().position(|line| line.contains("sync(") && line.contains(&format!("<{folder}>")));
        assert!(synced.is_some_and(|at| at < answer), "{folder} is not synced before the answer:\n{trace}");
    }
    let data = trace.lines().position(|line| line.contains("sync(") && line.contains("s.jsonl>"));
    assert!(data.is_some_and(|at| at < answer), "{trace}");
    std::fs::remove_dir_all(sandbox.root()).unwrap();
    let ran = sandbox.program("strace", words(&["-e", "inject=fsync:error=EIO"])).go().exits(9);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("Input/output error"), "{}", ran.stderr);
}

/// Files of a session were readable for others, depending on the umask.
#[test]
fn private_by_default() {
    let sandbox = Sandbox::new();
    for umask in ["000", "277"] {
        let script = format!("umask {umask}; exec turnkeep admit m{umask} --text x --owner-pid none");
        sandbox.sh(&script).ok();
    }
    claimed_and_dead(&sandbox, "bash", &[]);
    let mut torn = sandbox.journal_bytes("s");
    torn.extend(b"{\"seq\":");
    std::fs::write(sandbox.journal_path("s"), torn).unwrap();
    sandbox.sh("umask 000; exec turnkeep recover s --owner-pid none").ok();
    let mut folders = vec![sandbox.root()];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o7777, 0o700, "{}", folder.display());
        for item in std::fs::read_dir(folder).unwrap() {
            let path = item.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                seen += 1;
                assert_eq!(
                    path.metadata().unwrap().permissions().mode() & 0o7777,
                    0o600,
                    "{}",
                    path.display()
                );
            }
        }
    }
    assert!(seen >= 4, "three journals and the cut bytes");
    std::fs::set_permissions(sandbox.root(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = sandbox.run(["verify", "s"]).ok().stdout;
    assert!(said.contains("open-to-others"), "{said}");
    assert_eq!(
        sandbox.root().metadata().unwrap().permissions().mode() & 0o7777,
        0o755,
        "an operator's own folder stays"
    );
}

/// Ids that differ met in one file, or were too long for one of their files.
#[test]
fn ids_that_collide() {
    let sandbox = Sandbox::new();
    let long = ["x".repeat(241), "x".repeat(242), "語".repeat(80), "語".repeat(1_365)];
    let ids = ["my-bot", "My-Bot", "a.b", "a_b", "a:b", "a%3Ab", ".", "..", "a/b"];
    for id in ids.iter().copied().chain(long.iter().map(String::as_str)) {
        sandbox.run(["admit", id, "--text", id, "--owner-pid", "none"]).ok();
    }
    for id in ids.iter().copied().chain(long.iter().map(String::as_str)) {
        let status = sandbox.run(["--json", "inspect", id]).ok().json();
        assert_eq!((&status["session"], &status["input"]), (&json!(id), &json!(id)));
    }
    let files = std::fs::read_dir(sandbox.root().join("sessions")).unwrap().count();
    assert_eq!(files, ids.len() + long.len());
    for wrong in ["", "a\nb", &"x".repeat(4_097)] {
        sandbox
            .unchanged_files(|| sandbox.run(["admit", wrong, "--text", "x", "--owner-pid", "none"]).exits(2));
    }
    // A file system that folds case would give the first one's journal to the second.
    std::fs::copy(sandbox.journal_path("my-bot"), sandbox.journal_path("MY-BOT")).unwrap();
    sandbox.unchanged_files(|| {
        sandbox.run(["admit", "MY-BOT", "--text", "x", "--owner-pid", "none"]).exits(6).says("my-bot")
    });
}

/// "status: error" with exit 0, empty output with exit 0, one number for everything.
#[test]
fn status_tells_the_truth() {
    let sandbox = Sandbox::new();
    sandbox.write("t.jsonl", text(&whole()));
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--tree", "t.jsonl"]);
    sandbox.announce(&ticket, &[("call_1", "bash", json!({}))]);
    let step = |words: &[&str]| {
        [&["--json", "step", "--ticket", &ticket], words]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let old =
        |words: &[&str]| [&["--json"], words].concat().into_iter().map(str::to_owned).collect::<Vec<_>>();
    for (words, exit) in [
        (old(&["admit", "s", "--text", "x", "--owner-pid", "none"]), 4),
        (old(&["inspect", "nobody"]), 8),
        (old(&["verify", "nobody"]), 8),
        (old(&["recover", "nobody", "--owner-pid", "none"]), 8),
        (old(&["recover", "s", "--owner-pid", "none"]), 4),
        (old(&["step", "--ticket", "s:none:1", "settle"]), 8),
        (step(&["result", "call_1", "-"]), 6),
        (step(&["result", "call_9", "-"]), 8),
        (step(&["claim", "call_9"]), 8),
        (step(&["settle"]), 6),
        (step(&["message", "missing.json"]), 2),
    ] {
        let ran = sandbox.unchanged("s", || sandbox.cmd(&words).stdin("x").go());
        assert_eq!(ran.code(), exit, "{words:?}\n{}\n{}", ran.stdout, ran.stderr);
        let document = ran.json();
        assert_eq!(
            (&document["schema"], &document["exit"]),
            (&json!("turnkeep.error/1"), &json!(exit)),
            "{words:?}"
        );
    }
    let ok = sandbox.cmd(step(&["claim", "call_1"])).go().ok();
    assert_eq!(ok.json()["schema"], "turnkeep.status/1");
    let piped = sandbox.program("bash", ["-c", "set -o pipefail; turnkeep verify nobody | cat"]).go();
    assert_eq!(piped.code(), 8);
}

/// Escape bytes in a pipe, and a panic in a locale that is not UTF-8.
#[test]
fn colour_and_terminals() {
    let sandbox = Sandbox::new();
    claimed_and_dead(&sandbox, "bash", &["--text", "語 \u{1b}[31m"]);
    let plain = sandbox.run(["inspect", "s"]).ok();
    assert!(!plain.stdout.contains('\u{1b}'), "{}", plain.stdout);
    for locale in ["C", "POSIX", "xx_XX.ISO-8859-1"] {
        let ran = sandbox.cmd(["inspect", "s"]).env("LC_ALL", locale).go().ok();
        assert_eq!(ran.stdout, plain.stdout);
    }
    if !has("script") {
        skipped("there is no script to make a terminal");
        return;
    }
    let on_terminal = |variables: &str| {
        let words = ["-qec", &format!("env TERM=xterm {variables} turnkeep inspect s"), "/dev/null"];
        let ran = sandbox.program("script", words).go().ok();
        assert!(!ran.stdout.contains("\u{1b}[31m語"), "untrusted text is escaped");
        ran.stdout.contains('\u{1b}')
    };
    assert!(on_terminal("A=1"), "colour on a terminal");
    assert!(!on_terminal("NO_COLOR=1"));
    assert!(on_terminal("NO_COLOR="), "an empty NO_COLOR does not count");
    assert!(!on_terminal("TERM=dumb"));
}

/// A command waited for ever on stdin in CI, or took nothing for an empty turn.
#[test]
fn stdin_nobody_feeds() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    sandbox.unchanged_files(|| {
        sandbox.run(["admit", "s", "--owner-pid", "none"]).exits(2);
        sandbox.run(["admit", "s", "--input", "-", "--owner-pid", "none"]).exits(2);
        sandbox.run(["admit", "s", "--text", "", "--owner-pid", "none"]).exits(2);
    });
    let ticket = sandbox.admit(&owner, "s", &[]);
    // No file argument means no content: stdin is not read, though somebody keeps it open.
    let mut idle = std::process::Command::new(BIN);
    idle.args(["step", "--ticket", &ticket, "note"]).env_clear().env("TURNKEEP_ROOT", sandbox.root());
    let mut idle = idle
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let kept_open = idle.stdin.take();
    let status = idle.wait().unwrap();
    drop(kept_open);
    assert!([0, 2].contains(&status.code().unwrap()), "{status}");
    owner.die();
    sandbox.run(["recover", "s", "--owner-pid", "none"]).ok();
}

/// Looking at a session changed it: a newline, a lock file, an index, a folder.
#[test]
fn looking_changes_nothing() {
    let sandbox = Sandbox::new();
    let whole = text(&whole());
    sandbox.write("t.jsonl", whole.trim_end());
    sandbox.unchanged_files(|| {
        sandbox.run(["inspect"]);
        sandbox.run(["inspect", "missing"]).exits(8);
        sandbox.run(["verify", "--all"]).exits(8);
        sandbox.run(["verify", "./t.jsonl"]).ok();
    });
    claimed_and_dead(&sandbox, "bash", &["--tree", "t.jsonl", "--delivery", "d1"]);
    let mut torn = sandbox.journal_bytes("s");
    torn.extend(b"{\"seq\":5,");
    std::fs::write(sandbox.root().join("sessions/torn.jsonl"), torn).unwrap();
    let times = || -> Vec<_> {
        sandbox
            .everything()
            .into_iter()
            .map(|(path, bytes)| {
                let meta = path.metadata().unwrap();
                (path, bytes, meta.modified().unwrap(), meta.permissions().mode())
            })
            .collect()
    };
    let before = times();
    for words in [
        vec!["inspect"],
        vec!["inspect", "s"],
        vec!["inspect", "s", "--next"],
        vec!["inspect", "s", "--records"],
        vec!["inspect", "s", "--draw-tree"],
        vec!["inspect", "s", "--at", "2"],
        vec!["inspect", "s", "--call", "call_1"],
        vec!["inspect", "--delivery", "d1"],
        vec!["inspect", "torn"],
        vec!["inspect", "missing"],
        vec!["inspect", "s", "--context"],
        vec!["verify", "s"],
        vec!["verify", "--all", "--with-tree"],
        vec!["verify", "torn"],
        vec!["verify", "missing"],
        vec!["recover", "s", "--dry-run", "--owner-pid", "none"],
        vec!["recover", "--all"],
        vec!["inspect", "s", "--until-change", "0"],
    ] {
        sandbox.run(&words);
        assert!(before == times(), "{words:?} changed something");
    }
}

/// A typo in an id started a new, empty session and said that all was well.
#[test]
fn missing_session_is_not_a_new_one() {
    let sandbox = Sandbox::new();
    let typo = |sandbox: &Sandbox| {
        sandbox.unchanged_files(|| {
            sandbox.run(["inspect", "room-24"]).exits(8);
            sandbox.run(["inspect", "room-24", "--next"]).exits(8);
            sandbox.run(["recover", "room-24", "--owner-pid", "none"]).exits(8);
            sandbox.run(["verify", "room-24"]).exits(8);
            sandbox.run(["step", "--ticket", "room-24:t1:1", "settle"]).exits(8);
            sandbox.run(["step", "cancel", "--session", "room-24", "--by", "ann"]).exits(8);
        });
    };
    typo(&sandbox);
    sandbox.run(["admit", "room-42", "--text", "x", "--owner-pid", "none"]).ok();
    typo(&sandbox);
    sandbox.run(["inspect", "room-24"]).exits(8).says("room-42");
    // What cannot be read is not missing. Root reads everything, so this is a folder.
    std::fs::create_dir(sandbox.journal_path("odd")).unwrap();
    assert_ne!(sandbox.run(["inspect", "odd"]).code(), 8);
}
