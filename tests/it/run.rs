//! `step run`: claim, run, record.

use crate::kit::{Owner, Running, Sandbox, at, signal, text, until};
use serde_json::{Value, json};
use std::time::Duration;

/// A turn whose model asked for one call, `c1`, of `tool`; its ticket and the call's ref.
fn asked(sandbox: &Sandbox, owner: &Owner, tool: &str) -> (String, String) {
    let ticket = sandbox.admit(owner, "s", &["--turn", "t"]);
    let seq = sandbox.announce(&ticket, &[("c1", tool, json!({"b": 1, "a": "x"}))]);
    (ticket, format!("{seq}.0"))
}

/// A turn of a plain script; its ticket.
fn script(sandbox: &Sandbox) -> String {
    sandbox.run(["admit", "s", "--turn", "t", "--text", "Nightly"]).ok().line()
}

fn has_child(running: &Running) -> u32 {
    let mut found = None;
    until("the command", || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap().flatten();
        let children =
            tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
        let children = children.collect::<Vec<_>>().join(" ");
        found = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn an_announced_call_is_claimed_run_and_recorded() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let (ticket, call) = asked(&sandbox, &owner, "bash");
    sandbox.script("tool.sh", "cat; echo; echo \"$TURNKEEP_TOOL $TURNKEEP_CALL $TURNKEEP_KEY ${TURNKEEP_TICKET-none}\"; echo oops >&2; exit 3");
    let ran =
        sandbox.step_cmd(&ticket, ["run", &call, "--", "./tool.sh"]).env("TURNKEEP_TICKET", &ticket).go();
    // The exit is ours: 0 = recorded.
    let ran = ran.ok();
    let records = sandbox.journal("s");
    let key = text(at(&records[3], "/calls/0/key"));
    let args = String::from_utf8(sandbox.journal_bytes("s")).unwrap();
    assert!(args.contains("\"arguments\":{\"a\":\"x\",\"b\":1}"));
    let wanted = format!("{{\"a\":\"x\",\"b\":1}}\nbash {call} {key} none\n");
    assert_eq!(ran.stdout, wanted, "output passes through, and nothing of ours is on stdout");
    assert_eq!(ran.stderr, "oops\n");
    let (claimed, result) = (&records[4], &records[5]);
    assert_eq!((&claimed["kind"], &claimed["key"]), (&json!("claimed"), &json!(key)));
    assert!(at(claimed, "/runner/pid").is_u64());
    assert_eq!(
        (&result["kind"], &result["error"], &result["exit"]),
        (&json!("result"), &json!(true), &json!(3))
    );
    assert_eq!((&result["stdout"], &result["stderr"]), (&json!(wanted), &json!("oops\n")));
    assert!(result.get("content").is_none() && result.get("truncated").is_none());
    assert!(result["duration_ms"].is_u64());
    let both = sandbox.program("sha256sum", [""; 0]).stdin(format!("{wanted}oops\n")).go().ok();
    assert_eq!(text(&result["output_sha256"]), both.stdout.split(' ').next().unwrap());
    // Finished: printed again, and never run again.
    sandbox.write("tool.sh", "#!/bin/sh\ntouch again\n");
    sandbox.unchanged("s", || {
        let again = sandbox.step(&ticket, ["run", &call, "--", "./tool.sh"]).exits(10);
        assert_eq!(again.stdout, wanted);
        again.says("oops").says("not run");
    });
    assert!(!sandbox.path("again").exists());
    let spools =
        sandbox.everything().into_iter().filter(|(path, _)| path.to_string_lossy().contains("spool/"));
    assert_eq!(spools.count(), 0, "the spools of a finished run are gone");
}

#[test]
fn preserve_status_gives_cmds() {
    for (script, code) in [("exit 0", 0), ("exit 9", 9), ("kill -TERM $$", 143), ("kill -KILL $$", 137)] {
        let (sandbox, owner) = (Sandbox::new(), Owner::start());
        let (ticket, call) = asked(&sandbox, &owner, "bash");
        sandbox.step(&ticket, ["run", &call, "--preserve-status", "--", "sh", "-c", script]).exits(code);
        let (sandbox, owner) = (Sandbox::new(), Owner::start());
        let (ticket, call) = asked(&sandbox, &owner, "bash");
        sandbox.step(&ticket, ["run", &call, "sh", "-c", script]).ok();
        let record = sandbox.last("s");
        assert_eq!(record["error"], code != 0);
        if code > 128 {
            assert_eq!(
                (record.get("exit"), &record["signal"]),
                (None, &json!(if code == 143 { "SIGTERM" } else { "SIGKILL" }))
            );
        } else {
            assert_eq!((&record["exit"], record.get("signal")), (&json!(code), None));
        }
    }
}

#[test]
fn json_puts_the_output_on_stderr_and_one_document_on_stdout() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let (ticket, call) = asked(&sandbox, &owner, "bash");
    let words = ["--json", "run", &call, "--", "sh", "-c", "echo out; echo err >&2"];
    let ran = sandbox.step(&ticket, words).ok();
    ran.json();
    assert_eq!(at(&ran.json(), "/calls/0/state"), "result");
    assert_eq!(at(&ran.json(), "/receipt/seq"), &sandbox.last("s")["seq"]);
    assert!(ran.stderr.contains("out\n") && ran.stderr.contains("err\n"), "{}", ran.stderr);
    // Of a script, once run and once stored.
    for repeated in [None, Some(true)] {
        let ran = sandbox
            .step(&ticket, ["--json", "run", "--tool", "sh", "one", "--", "sh", "-c", "echo hi; exit 4"])
            .exits(4);
        assert_eq!(ran.json().pointer("/receipt/repeated").and_then(Value::as_bool), repeated);
        assert!(ran.stderr.contains("hi\n"));
    }
    let ran =
        sandbox.step(&ticket, ["--json", "run", "--tool", "sh", "two", "--", "no-such-command"]).exits(127);
    assert_eq!(at(&ran.json(), "/schema"), "turnkeep.status/1");
}

#[test]
fn arguments_come_as_they_were_given() {
    let sandbox = Sandbox::new();
    let ticket = script(&sandbox);
    let args = r#"{"z": 18446744073709551616, "a": 1e400, "s": "\ud800  x"}"#;
    let kept = r#"{"z":18446744073709551616,"a":1e400,"s":"\ud800  x"}"#;
    let ran = sandbox.step(&ticket, ["run", "--tool", "cat", "--args", args, "one", "--", "cat"]).ok();
    assert_eq!(ran.stdout, kept);
    let ran = sandbox.step(&ticket, ["run", "--tool", "cat", "two", "--", "cat"]).ok();
    assert_eq!(ran.stdout, r#"{"argv":["cat"]}"#);
    // A CMD that does not read them is no error.
    let long = format!("[\"{}\"]", "x".repeat(100_000));
    sandbox.step(&ticket, ["run", "--tool", "cat", "--args", &long, "three", "--", "true"]).ok();
}

#[test]
fn a_script_sees_cmds_exit_and_is_not_run_twice() {
    let sandbox = Sandbox::new();
    let ticket = script(&sandbox);
    sandbox.script("tool.sh", "echo \"run $1\" | tee -a ran; echo err >&2; exit $1");
    for (id, code) in [("one", 0), ("two", 6), ("three", 125)] {
        for _ in 0..3 {
            let ran = sandbox
                .step(&ticket, ["run", "--tool", "sh", id, "--", "./tool.sh", &code.to_string()])
                .exits(code);
            assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), (&*format!("run {code}\n"), "err\n"));
        }
    }
    assert_eq!(std::fs::read_to_string(sandbox.path("ran")).unwrap(), "run 0\nrun 6\nrun 125\n");
    // Other arguments or another tool under a known id.
    sandbox.unchanged("s", || {
        sandbox
            .step(&ticket, ["--json", "run", "--tool", "sh", "one", "--", "./tool.sh", "1"])
            .exits(6)
            .error("other_call");
        sandbox
            .step(&ticket, ["--json", "run", "--tool", "zsh", "one", "--", "./tool.sh", "0"])
            .exits(6)
            .error("other_call");
        sandbox
            .step(&ticket, ["--json", "run", "--tool", "sh", "7.0", "--", "true"])
            .exits(2)
            .error("bad_call_id");
        sandbox.step(&ticket, ["run", "--tool", "sh", "--args", "{", "x", "--", "true"]).exits(2);
    });
    // A stored failure is declared anew; a success is not.
    sandbox.step(&ticket, ["run", "--tool", "sh", "--retry-failed", "one", "--", "./tool.sh", "0"]).ok();
    sandbox.step(&ticket, ["run", "--tool", "sh", "--retry-failed", "two", "--", "./tool.sh", "6"]).exits(6);
    assert_eq!(std::fs::read_to_string(sandbox.path("ran")).unwrap(), "run 0\nrun 6\nrun 125\nrun 6\n");
    // Now its newest run counts.
    sandbox.unchanged("s", || {
        sandbox.step(&ticket, ["run", "--tool", "sh", "two", "--", "./tool.sh", "6"]).exits(6)
    });
    sandbox.step(&ticket, ["settle"]).ok();
    sandbox.unchanged("s", || {
        // A closed turn's script finds its steps done.
        assert_eq!(
            sandbox.step(&ticket, ["run", "--tool", "sh", "one", "--", "./tool.sh", "0"]).ok().stdout,
            "run 0\n"
        );
        sandbox.step(&ticket, ["run", "--tool", "sh", "new", "--", "touch", "new"]).exits(125).says("closed");
    });
    assert!(!sandbox.path("new").exists());
}

#[test]
fn what_cannot_be_started_is_told_as_env_does() {
    let sandbox = Sandbox::new();
    let ticket = script(&sandbox);
    sandbox.write("plain.txt", "x");
    for (id, cmd, code) in
        [("a", "no-such-command", 127), ("b", "./no-such", 127), ("c", "./plain.txt", 126), ("d", "/", 126)]
    {
        for _ in 0..2 {
            sandbox.step(&ticket, ["run", "--tool", "sh", id, "--", cmd]).exits(code);
        }
        assert_eq!(sandbox.last("s")["exit"], code);
        assert_eq!(sandbox.last("s")["error"], true);
    }
    let seq = sandbox.announce(&ticket, &[("c1", "bash", json!({}))]);
    let ran = sandbox.step(&ticket, ["run", &format!("{seq}.0"), "--", "no-such-command"]).ok();
    ran.says("no-such-command");
    assert!(
        text(&sandbox.last("s")["content"]).contains("No such file"),
        "the model is told in the system's words"
    );
}

#[test]
fn where_cmd_is_not_started_a_script_gets_125() {
    let sandbox = Sandbox::new();
    let run = ["step", "--json", "run", "--tool", "sh", "one", "--", "touch", "ran"];
    let no_ticket = sandbox.run(run).exits(125);
    no_ticket.error("no_ticket");
    no_ticket.says("no ticket");
    let with = |ticket: &str| sandbox.cmd(run).env("TURNKEEP_TICKET", ticket).go();
    with("s:t:1").exits(125).error("no_session");
    with("nonsense").exits(125);
    sandbox.cmd(["step", "--ticket", "nonsense"].iter().chain(&run[1..])).go().exits(125);
    // Nor is what went wrong before the step began CMD's exit status.
    let policy = sandbox.write("policy.json", "no policy");
    sandbox
        .cmd(["--policy", policy.to_str().unwrap()].iter().chain(&run))
        .go()
        .exits(125)
        .error("bad_policy");
    let owner = Owner::start();
    let old = sandbox.admit(&owner, "s", &["--turn", "t"]);
    owner.die();
    with(&old).exits(125).error("owner_gone");
    let owner = Owner::start();
    let new = sandbox.recover(&owner, "s", &[]);
    with(&old).exits(125).error("fenced");
    // Somebody holds the lock.
    let file = std::fs::OpenOptions::new().append(true).open(sandbox.journal_path("s")).unwrap();
    file.lock().unwrap();
    let words = ["--wait", "0", "step", "--json", "run", "--tool", "sh", "one", "--", "touch", "ran"];
    let busy = sandbox.cmd(words).env("TURNKEEP_TICKET", &new).go().exits(125);
    assert!(
        text(&busy.error("locked")["message"]).contains(&std::process::id().to_string()),
        "{}",
        busy.stdout
    );
    file.unlock().unwrap();
    assert!(!sandbox.path("ran").exists());
    with(&new).ok();
    assert!(sandbox.path("ran").exists());
}

#[test]
fn an_uncertain_step_of_a_script_is_7_and_never_run() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t"]);
    let run = ["run", "--tool", "sh", "one", "--", "./tool.sh"];
    sandbox.script("tool.sh", "echo working; echo x >>ran; exec sleep 1000");
    let running = sandbox.step_cmd(&ticket, run).start();
    until("the effect", || sandbox.path("ran").exists());
    // Its runner lives.
    sandbox
        .unchanged("s", || sandbox.step(&ticket, [&["--json"], &run[..]].concat()).exits(7).error("claimed"));
    let child = has_child(&running);
    running.signal("KILL");
    running.wait();
    sandbox.unchanged("s", || {
        sandbox.step(&ticket, run).exits(7).says("recover");
    });
    owner.die();
    // Held: a script has no model that could be told.
    sandbox.run(["recover", "s", "--owner-pid", "none"]).exits(14).says("reconcile");
    signal(child, "KILL");
    let words = ["step", "reconcile", "one", "--by", "ann", "--session", "s", "--outcome", "applied", "-"];
    sandbox.cmd(words).stdin("it was done").go().ok();
    let owner = Owner::start();
    let ticket = sandbox.recover(&owner, "s", &[]);
    let again = sandbox.step(&ticket, run).ok();
    assert_eq!(again.stdout, "it was done");
    assert_eq!(std::fs::read_to_string(sandbox.path("ran")).unwrap(), "x\n");
}

#[test]
fn a_runner_that_was_killed_leaves_its_output_so_far() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let (ticket, call) = asked(&sandbox, &owner, "bash");
    sandbox.script("tool.sh", "echo step 1 done; echo trouble >&2; touch said; exec sleep 1000");
    let running = sandbox.step_cmd(&ticket, ["run", &call, "--", "./tool.sh"]).start();
    until("the output", || sandbox.path("said").exists());
    let spooled = || {
        sandbox.everything().iter().any(|(path, bytes)| {
            path.starts_with(sandbox.root()) && bytes.as_ref().is_some_and(|bytes| bytes == b"step 1 done\n")
        })
    };
    until("the live spool", spooled);
    let child = has_child(&running);
    running.signal("KILL");
    running.wait();
    owner.die();
    let owner = Owner::start();
    let ticket = sandbox.recover(&owner, "s", &[]);
    signal(child, "KILL");
    let records = sandbox.journal("s");
    let interrupted = records.iter().find(|record| record["kind"] == "interrupted").unwrap();
    assert!(text(&interrupted["explanation"]).contains("step 1 done"), "{interrupted}");
    assert!(text(&interrupted["output_so_far"]).contains("step 1 done"), "{interrupted}");
    sandbox.unchanged("s", || sandbox.step(&ticket, ["run", &call, "--", "touch", "again"]).exits(10));
    assert!(!sandbox.path("again").exists());
}

#[test]
fn a_runner_that_outlives_its_driver_is_awaited_and_its_result_accepted() {
    let (sandbox, owner) = (Sandbox::new(), Owner::start());
    let (ticket, call) = asked(&sandbox, &owner, "bash");
    sandbox.script("tool.sh", "touch started; read line <gate; echo \"got $line\"");
    sandbox.program("mkfifo", ["gate"]).go().ok();
    let running = sandbox.step_cmd(&ticket, ["run", &call, "--", "./tool.sh"]).start();
    until("the command", || sandbox.path("started").exists());
    owner.die();
    let waiting = sandbox.run(["recover", "s", "--owner-pid", "none"]).exits(14);
    waiting.says("await");
    std::fs::write(sandbox.path("gate"), "it\n").unwrap();
    let ran = running.wait().ok();
    assert_eq!(ran.stdout, "got it\n");
    let record = sandbox.last("s");
    assert_eq!(
        (&record["kind"], &record["attempt"], &record["stdout"]),
        (&json!("result"), &json!(1), &json!("got it\n"))
    );
}

#[test]
fn a_result_behind_a_forced_takeover_is_kept_and_the_exit_says_so() {
    for (tool, code) in [(None, 5), (Some("sh"), 124)] {
        let (sandbox, owner) = (Sandbox::new(), Owner::start());
        let (ticket, call) = asked(&sandbox, &owner, "bash");
        sandbox.script("tool.sh", "touch started; read line <gate; echo \"got $line\"");
        sandbox.program("mkfifo", ["gate"]).go().ok();
        let words = match tool {
            None => vec!["run", &call, "--", "./tool.sh"],
            Some(tool) => vec!["run", "--tool", tool, "one", "--", "./tool.sh"],
        };
        let running = sandbox.step_cmd(&ticket, words).start();
        until("the command", || sandbox.path("started").exists());
        let words = match tool {
            None => ["step", "reconcile", "c1", "--outcome", "unknown"],
            Some(_) => ["step", "reconcile", "one", "--outcome", "unknown"],
        };
        let why = ["--by", "ann", "--session", "s", "--force", "--why", "it hangs"];
        sandbox.run([&words[..], &why].concat()).ok();
        std::fs::write(sandbox.path("gate"), "it\n").unwrap();
        let ran = running.wait().exits(code);
        assert_eq!(ran.stdout, "got it\n");
        ran.says("kept as evidence");
        assert_eq!(sandbox.last("s")["kind"], "straggler");
        assert!(sandbox.last("s")["content"].to_string().contains("got it"));
    }
}

#[test]
fn signals_are_passed_on_to_cmd() {
    for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        let sandbox = Sandbox::new();
        let ticket = script(&sandbox);
        sandbox.script(
            "tool.sh",
            &format!("trap 'echo got {name}; exit 3' {name}; touch started; while :; do sleep 0.01; done"),
        );
        let running = sandbox.step_cmd(&ticket, ["run", "--tool", "sh", "one", "--", "./tool.sh"]).start();
        until("the trap", || sandbox.path("started").exists());
        running.signal(name);
        let ran = running.wait().exits(3);
        assert_eq!(ran.stdout, format!("got {name}\n"));
        assert_eq!(sandbox.last("s")["exit"], 3);
        // Without a trap it ends CMD, whose end is recorded.
        let running =
            sandbox.step_cmd(&ticket, ["run", "--tool", "sleep", "two", "--", "sleep", "1000"]).start();
        until("the claim", || sandbox.last("s")["kind"] == "claimed");
        has_child(&running);
        until("the command itself", || {
            let child = has_child(&running);
            std::fs::read_to_string(format!("/proc/{child}/cmdline"))
                .is_ok_and(|cmd| cmd.starts_with("sleep"))
        });
        running.signal(name);
        running.wait().exits(128 + number);
        assert_eq!(sandbox.last("s")["signal"], format!("SIG{name}"));
    }
}

#[test]
fn the_lock_is_not_held_while_cmd_runs() {
    let sandbox = Sandbox::new();
    let ticket = script(&sandbox);
    sandbox.script(
        "tool.sh",
        &format!("turnkeep --wait 0 step --ticket {ticket} heartbeat >/dev/null; echo fine"),
    );
    let ran = sandbox.step(&ticket, ["run", "--tool", "sh", "one", "--", "./tool.sh"]).ok();
    assert_eq!(ran.stdout, "fine\n");
}

#[test]
fn recording_waits_for_the_lock_as_long_as_it_takes() {
    let sandbox = Sandbox::new();
    let ticket = script(&sandbox);
    sandbox.script("tool.sh", "touch started; read line <gate; touch ended");
    sandbox.program("mkfifo", ["gate"]).go().ok();
    let words = ["--wait", "0", "run", "--tool", "sh", "one", "--", "./tool.sh"];
    let running = sandbox.step_cmd(&ticket, words).start();
    until("the command", || sandbox.path("started").exists());
    let file = std::fs::OpenOptions::new().append(true).open(sandbox.journal_path("s")).unwrap();
    file.lock().unwrap();
    std::fs::write(sandbox.path("gate"), "x\n").unwrap();
    until("the end of the command", || sandbox.path("ended").exists());
    // Longer than it was told to wait for anything else; its lock attempts fail meanwhile.
    std::thread::sleep(Duration::from_millis(100));
    file.unlock().unwrap();
    running.wait().ok();
    assert_eq!(sandbox.last("s")["kind"], "result");
}

#[test]
fn it_ends_when_cmd_ends_and_not_when_its_pipes_close() {
    let sandbox = Sandbox::new();
    let ticket = script(&sandbox);
    sandbox.script("tool.sh", "sleep 1000 & echo $! >pid; echo done");
    let ran = sandbox.step(&ticket, ["run", "--tool", "sh", "one", "--", "./tool.sh"]).ok();
    assert_eq!(ran.stdout, "done\n");
    let pid = std::fs::read_to_string(sandbox.path("pid")).unwrap();
    signal(pid.trim().parse().unwrap(), "KILL");
}

#[test]
fn output_that_is_not_utf_8_passes_through_and_is_kept_in_words() {
    let sandbox = Sandbox::new();
    let ticket = script(&sandbox);
    let ran = sandbox.step(&ticket, ["run", "--tool", "printf", "one", "--", "printf", "a\\377b\\000c"]).ok();
    assert_eq!(ran.stdout_bytes, b"a\xffb\0c");
    let record = sandbox.last("s");
    assert_eq!(record["stdout"], "a\u{fffd}b\0c");
    let true_bytes = sandbox.sh("printf 'a\\377b\\000c' | sha256sum").ok();
    assert_eq!(text(&record["output_sha256"]), true_bytes.stdout.split(' ').next().unwrap());
}

#[test]
fn long_output_passes_through_whole_and_is_kept_in_part() {
    let sandbox = Sandbox::new();
    let ticket = script(&sandbox);
    let ran = sandbox
        .step(&ticket, ["run", "--tool", "head", "one", "--", "head", "-c", "3000000", "/dev/zero"])
        .ok();
    assert_eq!(ran.stdout_bytes.len(), 3_000_000);
    let record = sandbox.last("s");
    assert_eq!(record["truncated"], true);
    assert!(text(&record["stdout"]).len() < 1_000_000);
    let whole = sandbox.sh("head -c 3000000 /dev/zero | sha256sum").ok();
    assert_eq!(text(&record["output_sha256"]), whole.stdout.split(' ').next().unwrap(), "of its true bytes");
}

#[test]
fn a_lease_is_renewed_while_cmd_runs() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "s", "--text", "Hi", "--lease", "0.3"]).ok().line();
    sandbox.script("tool.sh", "touch started; read line <gate");
    sandbox.program("mkfifo", ["gate"]).go().ok();
    let running = sandbox.step_cmd(&ticket, ["run", "--tool", "sh", "one", "--", "./tool.sh"]).start();
    until("two heartbeats", || sandbox.kinds("s").iter().filter(|kind| *kind == "heartbeat").count() >= 2);
    std::fs::write(sandbox.path("gate"), "x\n").unwrap();
    running.wait().ok();
}

/// A journal that was put back under a command does not have its claim.
#[test]
fn a_claim_that_is_gone_is_not_said_to_stand() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    sandbox.announce(&ticket, &[("a", "pay", json!({}))]);
    let (older, journal) = (sandbox.write("older", sandbox.journal_bytes("s")), sandbox.journal_path("s"));
    let put_back = ["--", "cp", older.to_str().unwrap(), journal.to_str().unwrap()];
    // A script must not take it for one that it may run again.
    for (words, code) in [(&["run", "a"][..], 6), (&["run", "--tool", "pay", "b"], 124)] {
        let ran = sandbox.step(&ticket, [words, &put_back].concat()).exits(code);
        ran.says("could not be recorded").says("bring the newest copy back").says_not("nothing was written");
    }
}
