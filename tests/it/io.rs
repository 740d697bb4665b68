//! Full devices, closed pipes, size limits, stdin that nobody feeds, and progress that nobody watches.

use crate::fixtures::journal::Journal;
use crate::kit::{BIN, Sandbox, text, until};
use serde_json::json;
use std::fs::OpenOptions;
use std::process::Stdio;

fn ticket(sandbox: &Sandbox) -> String {
    sandbox.run(["admit", "s", "--turn", "t", "--text", "Hi"]).ok().line()
}

#[test]
fn a_file_size_limit_is_told_in_the_systems_words() {
    let sandbox = Sandbox::new();
    if !sandbox.has("prlimit") {
        return;
    }
    let ticket = ticket(&sandbox);
    let before = sandbox.journal_bytes("s");
    let limit = format!("--fsize={}", before.len() + 100);
    let words = ["--json", "step", "--ticket", &ticket, "heartbeat"];
    let ran = sandbox.program("prlimit", [&[limit.as_str(), BIN], &words[..]].concat()).go().exits(9);
    let error = ran.error("not_durable");
    assert!(text(&error["message"]).contains("File too large"), "{error}");
    assert_eq!(sandbox.journal_bytes("s"), before, "cut back to where the write began");
    // The same where whoever started us ignores the signal.
    let ran = sandbox
        .program("sh", ["-c", "trap '' XFSZ; exec prlimit \"$@\"", "sh", &limit, BIN])
        .arg("step")
        .arg("--ticket")
        .arg(&ticket)
        .arg("heartbeat")
        .go()
        .exits(9);
    ran.says("File too large");
    assert_eq!(sandbox.journal_bytes("s"), before);
    sandbox.step(&ticket, ["heartbeat"]).ok();
    // A new session cannot even begin.
    let ran = sandbox.program("prlimit", ["--fsize=100", BIN, "admit", "new", "--text", "Hi"]).go().exits(9);
    ran.says("File too large");
    sandbox.run(["admit", "new", "--text", "Hi"]).ok();
}

#[test]
fn a_closed_pipe_is_quiet_and_the_record_stands() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    for words in [vec!["heartbeat"], vec!["--json", "heartbeat"]] {
        let before = sandbox.kinds("s").len();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ran = sandbox.step_cmd(&ticket, words).stdout(writer).ok();
        assert_eq!(ran.stderr, "");
        assert_eq!(sandbox.kinds("s").len(), before + 1);
    }
}

#[test]
fn a_full_device_is_1_and_the_record_stands() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let full = || Stdio::from(OpenOptions::new().write(true).open("/dev/full").unwrap());
    sandbox
        .step_cmd(&ticket, ["heartbeat"])
        .stdout(full())
        .exits(1)
        .says("No space left on device")
        .says("stands");
    assert_eq!(sandbox.last("s")["kind"], "heartbeat");
    for words in [&["--help"] as &[&str], &["--version"], &["step", "--help"], &["inspect", "s"]] {
        sandbox.cmd(words).stdout(full()).exits(1).says("No space left on device");
    }
    sandbox.cmd(["admit", "new", "--text", "Hi"]).stdout(full()).exits(1);
    assert_eq!(sandbox.kinds("new"), ["opened", "admitted", "attempt"]);
    sandbox.step_cmd(&ticket, ["run", "--tool", "sh", "one", "--", "echo", "hi"]).stdout(full());
    assert_eq!(sandbox.last("s")["stdout"], "hi\n", "the tool was not told, and its result stands");
}

#[test]
fn closed_streams_lose_no_record() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let before = sandbox.kinds("s").len();
        let script = format!("turnkeep step --ticket '{ticket}' heartbeat {closed}");
        let code = sandbox.sh(&script).code();
        assert!([0, 1].contains(&code), "{closed}: {code}");
        assert_eq!(sandbox.kinds("s").len(), before + 1, "{closed}");
    }
}

#[test]
fn stdin_that_nobody_feeds_is_read_only_for_a_dash() {
    let sandbox = Sandbox::new();
    let (reader, _open) = std::io::pipe().unwrap();
    // Nothing here may wait for a stdin that stays open.
    let script = |words: &str| {
        let mut command = std::process::Command::new("timeout");
        command.args(["20", "sh", "-c", words]).current_dir(sandbox.dir()).env_clear();
        command
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("TURNKEEP_ROOT", sandbox.root())
            .env("T", BIN);
        command.stdin(reader.try_clone().unwrap()).output().unwrap()
    };
    assert_eq!(script("$T admit s").status.code(), Some(2));
    assert!(!sandbox.root().exists());
    let admitted = script("$T admit s --turn t --text Hi --owner-pid none");
    assert_eq!(admitted.stdout, b"s:t:1\n");
    for words in ["message", "entry", "note"] {
        let ran = script(&format!("$T step --ticket s:t:1 {words}"));
        assert_eq!(ran.status.code(), Some(2), "{words}");
    }
    for words in ["claim x --tool y", "result x", "heartbeat", "run --tool sh z -- true", "settle", "settle"]
    {
        let ran = script(&format!("$T step --ticket s:t:1 {words}"));
        assert_eq!(ran.status.code(), Some(0), "{words}: {}", String::from_utf8_lossy(&ran.stderr));
    }
    assert_eq!(script("$T recover s </dev/null").status.code(), Some(10));
}

#[test]
fn a_signal_before_the_write_writes_nothing() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        let file = OpenOptions::new().append(true).open(sandbox.journal_path("s")).unwrap();
        file.lock().unwrap();
        let running = sandbox.cmd(["--wait", "60", "step", "--ticket", &ticket, "heartbeat"]).start();
        let waits = || {
            let fds =
                std::fs::read_dir(format!("/proc/{}/fd", running.pid())).into_iter().flatten().flatten();
            fds.into_iter()
                .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == sandbox.journal_path("s")))
        };
        until("the wait for the lock", waits);
        sandbox.unchanged("s", || {
            running.signal(name);
            running.wait().exits(128 + number);
        });
        drop(file);
    }
    // While it still reads its input, it ends at once.
    sandbox.program("mkfifo", ["gate"]).go().ok();
    let running = sandbox.step_cmd(&ticket, ["message", "gate"]).start();
    until("the wait for input", || {
        std::fs::read_to_string(format!("/proc/{}/stat", running.pid())).unwrap_or_default().contains(") S ")
    });
    running.signal("TERM");
    running.wait().exits(143);
}

#[test]
fn a_held_lock_names_its_holder() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let file = OpenOptions::new().append(true).open(sandbox.journal_path("s")).unwrap();
    file.lock().unwrap();
    let ran = sandbox.cmd(["--json", "--wait", "0", "step", "--ticket", &ticket, "heartbeat"]).go().exits(4);
    let error = ran.error("locked");
    assert!(text(&error["message"]).contains(&std::process::id().to_string()), "{error}");
    assert_eq!(error["pid"], json!(std::process::id()));
}

#[test]
fn quiet_says_nothing_but_errors() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(["-q", "admit", "s", "--text", "Hi"]).ok();
    assert_eq!(ran.stderr, "");
    let ran = sandbox.run(["-q", "admit", "s", "--text", "Ho"]).exits(4);
    ran.says("is open");
}

#[test]
fn what_is_untrusted_is_escaped_where_people_read_it() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    sandbox.announce(&ticket, &[("c1", "rm\u{1b}[2J\u{202e}", json!({}))]);
    let ran = sandbox.step(&ticket, ["settle"]).exits(6);
    assert!(!ran.stderr.contains('\u{1b}') && !ran.stderr.contains('\u{202e}'), "{}", ran.stderr);
    let ran = sandbox.step(&ticket, ["result", "c1"]).exits(6);
    assert!(ran.stderr.contains("\\u{1b}") && !ran.stderr.contains('\u{1b}'), "{}", ran.stderr);
}

/// A terminal is shown no character that it obeys, in the document of a failure either; a pipe gets it as it is.
#[test]
fn a_document_of_a_failure_is_escaped_on_a_terminal() {
    let sandbox = Sandbox::new();
    if !sandbox.has("script") {
        eprintln!("skipped: there is no script to make a terminal");
        return;
    }
    let ticket = ticket(&sandbox);
    sandbox.announce(&ticket, &[("c1", "read", json!({}))]);
    sandbox.step(&ticket, ["claim", "c1"]).ok();
    sandbox.step_in(&ticket, ["result", "c1", "-"], "a\u{202e}b").ok();
    let words = ["--json", "step", "--ticket", &ticket, "claim", "c1"];
    let piped = sandbox.run(words).exits(10);
    assert!(piped.stdout.contains("a\u{202e}b"), "{}", piped.stdout);
    let line = format!("turnkeep {}", words.join(" "));
    let shown = sandbox.program("script", ["-qec", &line, "/dev/null"]).env("TERM", "xterm").go().exits(10);
    assert!(shown.stdout.contains("a\\u202eb") && !shown.stdout.contains('\u{202e}'), "{}", shown.stdout);
}

/// A journal of more than 64 MiB: with a dead line in it, since hashing takes its time where nothing is optimized, and
/// with `TURNKEEP_SLOW=1` also a sound one of two large notes.
#[test]
fn a_long_verify_shows_progress_to_who_watches_stderr() {
    let sandbox = Sandbox::in_memory();
    if !sandbox.has("script") {
        eprintln!("skipped: there is no script to make a terminal");
        return;
    }
    sandbox.run(["admit", "s", "--text", "Hi", "--owner-pid", "none"]).ok();
    const HALF: usize = 33 << 20;
    let mut dead = Journal::opened("s");
    dead.admit("t", None, "\"Hi\"", "");
    let mut sound = dead.clone();
    dead.bytes.resize(dead.bytes.len() + 2 * HALF, 0);
    dead.bytes.push(b'\n');
    let mut journals = vec![(dead, 3)];
    if std::env::var_os("TURNKEEP_SLOW").is_some() {
        let content = format!(r#""turn":"t","attempt":1,"content":"{}""#, "x".repeat(HALF));
        sound.add("attempt", r#""turn":"t","attempt":1,"cause":"admit""#);
        sound.add("note", &content);
        sound.add("note", &content);
        journals.push((sound, 0));
    }
    // What a terminal saw of it.
    let on_terminal = |line: &str, code: i32| {
        let ran = sandbox.program("script", ["-qec", line, "/dev/null"]).env("TERM", "xterm").go();
        ran.exits(code).stdout
    };
    let bar = |said: &str| said.contains('█') || said.contains('░');
    for (journal, code) in journals {
        std::fs::write(sandbox.journal_path("s"), journal.bytes).unwrap();
        let file = |name: &str| std::fs::read_to_string(sandbox.path(name)).unwrap();
        assert!(bar(&on_terminal("turnkeep verify s >out", code)), "no progress");
        assert!(file("out").contains("s.jsonl: ") && !bar(&file("out")), "{}", file("out"));
        // stdout is a terminal, stderr is a pipe.
        let seen = on_terminal("exec 3>&1; turnkeep verify s 2>&1 >&3 | cat >err", 0);
        assert!(seen.contains("s.jsonl: ") && !bar(&seen), "{seen}");
        assert!(!bar(&file("err")) && !file("err").contains('\u{1b}'), "{}", file("err"));
        assert_eq!(on_terminal("turnkeep -q verify s >out", code), "");
    }
}
