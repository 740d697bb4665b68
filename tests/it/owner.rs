//! Whoever admits owns the turn: short-lived parents are caught before any effect.

use crate::kit::{Owner, Sandbox, at, text, until};
use serde_json::json;

/// The hint that every refusal gives.
const HINT: &str = "--owner-pid $$";

#[test]
fn a_subshell_that_admitted_owns_nothing_any_more() {
    for shell in ["sh", "bash", "dash"] {
        let sandbox = Sandbox::new();
        if !sandbox.has(shell) {
            continue;
        }
        // The command substitution is a subshell of its own where the shell does not exec its last command.
        let script = "t=$( { turnkeep admit s --text Hi; code=$?; exit $code; } ) || exit; \
                      turnkeep step --ticket \"$t\" run --tool sh one -- touch ran; echo \"exit $?\"";
        let ran = sandbox.program(shell, ["-c", script]).go();
        if ran.stdout.contains("exit 0") {
            // This shell forked no subshell that ended: its own process is the owner, and lives.
            assert!(sandbox.path("ran").exists(), "{shell}");
            continue;
        }
        assert!(ran.stdout.contains("exit 125"), "{shell}: {}", ran.all());
        ran.says(HINT).says("-- CMD");
        assert!(!sandbox.path("ran").exists(), "{shell}: before any effect");
    }
}

#[test]
fn a_wrapper_that_ends_is_no_owner() {
    let sandbox = Sandbox::new();
    // `sh -c` with two commands stays alive until turnkeep ends, then it is gone.
    let ticket = sandbox.sh("sh -c 'turnkeep admit s --text Hi; true'").ok().line();
    for words in [
        vec!["settle"],
        vec!["claim", "x", "--tool", "y"],
        vec!["message", "-"],
        vec!["heartbeat"],
        vec!["note", "-"],
    ] {
        let words = [&["--json"], &words[..]].concat();
        let body = r#"{"role":"assistant","content":[],"stopReason":"stop"}"#;
        let ran = sandbox.unchanged("s", || sandbox.step_in(&ticket, words, body));
        let error = ran.exits(5).error("owner_gone");
        assert!(text(&error["hint"]).contains(HINT), "{error}");
    }
}

#[test]
fn make_starts_a_shell_for_each_line() {
    let sandbox = Sandbox::new();
    if !sandbox.has("make") {
        return;
    }
    sandbox.write(
        "Makefile",
        "all:\n\t@turnkeep admit s --text Hi >ticket; true\n\t@turnkeep step --ticket \"$$(cat ticket)\" settle; echo \"exit $$?\"\n",
    );
    let ran = sandbox.program("make", ["-s"]).go();
    assert!(ran.stdout.contains("exit 5"), "{}", ran.all());
    ran.says(HINT);
}

#[test]
fn the_shells_own_pid_and_cmd_are_good_owners() {
    for shell in ["sh", "bash", "dash"] {
        let sandbox = Sandbox::new();
        if !sandbox.has(shell) {
            continue;
        }
        let script = "t=$( { turnkeep admit s --turn t --text Hi --owner-pid $$; } ); turnkeep step --ticket \"$t\" settle";
        sandbox.program(shell, ["-c", script]).go().ok();
        let script = "turnkeep admit s2 --text Hi -- sh -c 'turnkeep step settle; true'";
        sandbox.program(shell, ["-c", script]).go().ok();
    }
}

#[test]
fn node_is_the_owner_of_what_it_admits_itself() {
    let sandbox = Sandbox::new();
    if !sandbox.has("node") {
        return;
    }
    let script = r#"
        const {execFileSync} = require('node:child_process');
        const t = execFileSync('turnkeep', ['admit', 's', '--text', 'Hi'], {encoding: 'utf8'}).trim();
        execFileSync('turnkeep', ['step', '--ticket', t, 'settle']);
        try { execFileSync('sh', ['-c', 'turnkeep admit s --turn x --text Hi; true']); } catch (e) { console.log('no'); }
        try { execFileSync('turnkeep', ['step', '--ticket', 's:x:1', 'settle'], {stdio: 'pipe'}); }
        catch (e) { console.log(e.status); }
    "#;
    let ran = sandbox.program("node", ["-e", script]).go().ok();
    assert_eq!(ran.stdout, "5\n", "{}", ran.all());
}

#[test]
fn an_orphan_has_no_owner_to_name() {
    let sandbox = Sandbox::new();
    sandbox.program("mkfifo", ["input"]).go().ok();
    // The shell execs nothing and ends at once; turnkeep is handed to another parent while it reads its input.
    let running =
        sandbox.program("bash", ["-c", "turnkeep --json admit s --input input >out 2>err & wait"]).start();
    until("the command", || sandbox.path("out").exists());
    let child = loop {
        let children =
            std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", running.pid())).unwrap();
        if let Some(pid) = children.split_whitespace().next() {
            let cmd = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if cmd.starts_with("turnkeep") {
                break pid.to_owned();
            }
        }
        std::thread::yield_now();
    };
    // It has read its parent once it waits for the other end of the pipe.
    let waits = || {
        std::fs::read_to_string(format!("/proc/{child}/wchan")).unwrap_or_default().contains("fifo")
            || std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default().contains(") S ")
    };
    until("the wait for input", waits);
    running.signal("KILL");
    running.wait();
    std::fs::write(sandbox.path("input"), "Hi").unwrap();
    until("its answer", || std::fs::read_to_string(sandbox.path("out")).unwrap().ends_with('\n'));
    let answer: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(sandbox.path("out")).unwrap()).unwrap();
    assert_eq!((&answer["exit"], &answer["kind"]), (&json!(2), &json!("owner_gone")), "{answer}");
    assert!(text(&answer["hint"]).contains(HINT));
    assert!(!sandbox.journal_path("s").exists());
}

/// Started by a process that is gone already: its parent is whoever adopted it. Where that is pid 1, which is never
/// gone, it is said; in a container pid 1 may be the driver, so it is not refused.
#[test]
fn an_orphan_from_the_start_is_told_who_owns_its_turn() {
    let sandbox = Sandbox::new();
    sandbox.program("mkfifo", ["gate"]).go().ok();
    let script = "(read -r _ <gate; exec turnkeep admit s --text Hi) >out 2>err & exit 0";
    sandbox.program("sh", ["-c", script]).go().ok();
    std::fs::write(sandbox.path("gate"), "go\n").unwrap();
    until("its answer", || std::fs::read_to_string(sandbox.path("out")).is_ok_and(|out| out.ends_with('\n')));
    let owner = sandbox.last("s")["owner"].clone();
    let said = std::fs::read_to_string(sandbox.path("err")).unwrap();
    assert_eq!(said.contains("the parent process is pid 1 "), owner["pid"] == 1, "{owner}: {said}");
    let owned = Owner::start();
    let named =
        sandbox.cmd(["admit", "t", "--text", "Hi", "--owner-pid", &owned.pid().to_string()]).go().ok();
    named.says_not("pid 1");
}

#[test]
fn persons_and_late_results_need_no_living_owner() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t"]);
    sandbox.announce(&ticket, &[("c1", "bash", json!({})), ("c2", "bash", json!({}))]);
    sandbox.step(&ticket, ["claim", "c1"]).ok();
    owner.die();
    sandbox.step_in(&ticket, ["result", "c1", "-"], "out").ok();
    sandbox.run(["step", "steer", "--text", "More", "--session", "s"]).ok();
    let status = sandbox.run(["--json", "step", "cancel", "--by", "ann", "--session", "s"]).ok().json();
    assert_eq!(at(&status, "/owner/alive"), false);
    assert_eq!(at(&status, "/next/do"), "recover");
}
