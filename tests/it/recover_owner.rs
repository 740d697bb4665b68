//! Who may take a turn over, when, and what becomes of the one before.

use crate::forge;
use crate::kit::*;
use serde_json::{Value, json};

/// A turn with one claimed call; its ticket and the call.
fn claimed(sandbox: &Sandbox, owner: &Owner, args: &[&str]) -> (String, String) {
    let ticket = sandbox.admit(owner, "s", args);
    let call = format!("{}.0", sandbox.announce(&ticket, &[("c1", "bash", json!({"command": "make"}))]));
    sandbox.step(&ticket, ["claim", &call]).ok();
    (ticket, call)
}

fn attempts(sandbox: &Sandbox) -> Vec<Value> {
    sandbox.journal("s").into_iter().filter(|record| record["kind"] == "attempt").collect()
}

#[test]
fn a_living_owner_is_left_alone() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    claimed(&sandbox, &owner, &["--turn", "t1"]);
    let other = Owner::start();
    let pid = other.pid().to_string();
    let before = sandbox.everything();
    let ran = sandbox.run(["recover", "s", "--owner-pid", &pid, "--json"]).exits(4);
    let error = ran.error("owner_alive");
    assert_eq!(error["pid"], owner.pid(), "who it is");
    assert!(text(&error["message"]).contains("t1"));
    assert!(text(&error["hint"]).contains("--force --why"));
    sandbox.run(["recover", "s:t1", "--dry-run"]).exits(4);
    sandbox.run(["recover", "s", "--", "true"]).exits(4);
    assert_eq!(sandbox.everything(), before, "nothing is written");
    // Stopped is not dead.
    signal(owner.pid(), "STOP");
    sandbox.run(["recover", "s", "--owner-pid", &pid]).exits(4);
    signal(owner.pid(), "CONT");
}

#[test]
fn a_zombie_is_dead() {
    let sandbox = Sandbox::new();
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = child.id().to_string();
    sandbox.run(["admit", "s", "--text", "x", "--owner-pid", &pid]).ok();
    child.kill().unwrap();
    until("the zombie", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('Z')
    });
    let owner = Owner::start();
    assert!(sandbox.recover(&owner, "s", &[]).ends_with(":2"));
    assert_eq!(attempts(&sandbox)[1]["cause"], "recover");
    child.wait().unwrap();
}

#[test]
fn a_reused_pid_is_another_process() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    claimed(&sandbox, &owner, &[]);
    let started = attempts(&sandbox)[0]["owner"]["started"].to_string();
    let mut earlier = started.clone().into_bytes();
    let last = earlier.last_mut().unwrap();
    *last = if *last == b'1' { b'2' } else { b'1' };
    let earlier = String::from_utf8(earlier).unwrap();
    let changed = forge::replaced(
        &sandbox.journal_bytes("s"),
        &format!(r#""started":{started}"#),
        &format!(r#""started":{earlier}"#),
    );
    std::fs::write(sandbox.journal_path("s"), changed).unwrap();
    let other = Owner::start();
    assert!(sandbox.recover(&other, "s", &[]).ends_with(":2"), "the pid alone names nobody");
}

/// The journal of a living owner, as if it had been written elsewhere.
fn elsewhere(sandbox: &Sandbox, field: &str) -> Owner {
    let owner = Owner::start();
    claimed(sandbox, &owner, &["--turn", "t1"]);
    move_owner(sandbox, field);
    owner
}

fn move_owner(sandbox: &Sandbox, field: &str) {
    let value = attempts(sandbox)[0]["owner"][field].to_string();
    let other: String = value
        .chars()
        .map(|char| match char {
            '0'..='8' => char::from(char as u8 + 1),
            '9' => '1',
            _ => char,
        })
        .collect();
    let changed = forge::replaced(
        &sandbox.journal_bytes("s"),
        &format!(r#""{field}":{value}"#),
        &format!(r#""{field}":{other}"#),
    );
    std::fs::write(sandbox.journal_path("s"), changed).unwrap();
}

#[test]
fn after_a_reboot_every_owner_is_gone_at_once() {
    let sandbox = Sandbox::new();
    let _alive = elsewhere(&sandbox, "boot");
    let owner = Owner::start();
    assert!(sandbox.recover(&owner, "s", &[]).ends_with(":2"));
    assert_eq!(attempts(&sandbox)[1]["cause"], "recover");
    assert_eq!(sandbox.last("s")["decisions"][0]["decision"], "interrupt");
}

#[test]
fn on_another_host_or_in_another_namespace_the_lease_decides() {
    for field in ["host", "pidns"] {
        let sandbox = Sandbox::new();
        let gone = elsewhere(&sandbox, field);
        gone.die();
        let owner = Owner::start();
        let pid = owner.pid().to_string();
        sandbox.run(["recover", "s", "--owner-pid", &pid]).exits(4).says("t1");
        // The default lease, 120 s, ran out long ago.
        let at = text(&sandbox.journal("s")[0]["at"]);
        let long_ago = forge::replaced_later(
            &sandbox.journal_bytes("s"),
            &format!(r#""at":"{}"#, &at[..4]),
            r#""at":"2020"#,
        );
        std::fs::write(sandbox.journal_path("s"), long_ago).unwrap();
        assert!(sandbox.recover(&owner, "s", &[]).ends_with(":2"));
        assert_eq!(attempts(&sandbox)[1]["cause"], "takeover", "it may live: {field}");
    }
}

#[test]
fn a_lease_that_ran_out_replaces_a_living_owner_until_then_its_steps_count() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--lease", "0.3"]);
    assert_eq!(attempts(&sandbox)[0]["lease_ms"], 300);
    let other = Owner::start();
    let pid = other.pid().to_string();
    // Before it runs out: busy. Then gone for everybody else, while the owner's own steps renew it.
    until("the lease to run out", || {
        sandbox.run(["recover", "s", "--owner-pid", &pid, "--dry-run"]).code() == 0
    });
    sandbox.step(&ticket, ["heartbeat"]).ok();
    let call = format!("{}.0", sandbox.announce(&ticket, &[("c1", "bash", json!({}))]));
    sandbox.step(&ticket, ["claim", &call]).ok();
    until("the lease to run out", || sandbox.run(["recover", "s", "--owner-pid", &pid]).code() == 0);
    assert_eq!(attempts(&sandbox)[1]["cause"], "takeover");
    assert_eq!(sandbox.last("s")["decisions"][0]["decision"], "interrupt");
    sandbox.step(&ticket, ["heartbeat"]).exits(5);
}

/// Whoever looks from outside is told the same in each place: the owner counts as gone, and its claim as nobody's.
#[test]
fn a_lease_that_ran_out_is_told_alike_everywhere() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "charge", "replay": "never", "unknown": "hold"}]));
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--lease", "0.3"]);
    sandbox.announce(&ticket, &[("a", "charge", json!({}))]);
    sandbox.step(&ticket, ["claim", "a"]).ok();
    let document = |ticket: &str| {
        sandbox.cmd(["inspect", "s", "--json"]).env("TURNKEEP_TICKET", ticket).go().ok().json()
    };
    until("the lease to run out", || at(&document(""), "/next/do") == "reconcile");
    let seen = document("");
    assert_eq!((at(&seen, "/calls/0/do"), at(&seen, "/owner/alive")), (&json!("hold"), &json!(false)));
    let shown = sandbox.run(["inspect", "s"]).ok().stdout;
    assert!(shown.contains("let its lease run out at") && !shown.contains("which lives"), "{shown}");
    assert!(shown.contains("no result"), "{shown}");
    // To itself it is as it was.
    let seen = document(&ticket);
    assert_eq!((at(&seen, "/calls/0/do"), at(&seen, "/owner/alive")), (&json!("await"), &json!(true)));
    assert_eq!(at(&seen, "/next/do"), "await");
}

#[test]
fn a_long_lease_does_not_keep_a_dead_owner() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    claimed(&sandbox, &owner, &["--lease", "3600"]);
    owner.die();
    let owner = Owner::start();
    assert!(sandbox.recover(&owner, "s", &["--lease", "60"]).ends_with(":2"));
    assert_eq!(attempts(&sandbox)[1]["lease_ms"], 60_000);
}

#[test]
fn force_takes_over_and_fences_the_one_before() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let (ticket, call) = claimed(&sandbox, &owner, &["--turn", "t1"]);
    let other = Owner::start();
    let pid = other.pid().to_string();
    sandbox.run(["recover", "s", "--force"]).exits(2).says("--why");
    let taken = sandbox.recover(&other, "s", &["--force", "--why", "it hangs"]);
    assert_eq!(taken, "s:t1:2");
    let attempt = &attempts(&sandbox)[1];
    assert_eq!((&attempt["cause"], &attempt["why"]), (&json!("takeover"), &json!("it hangs")));
    assert_eq!(attempt["owner"]["pid"], other.pid());
    // The old one writes nothing any more, but its late result is kept as evidence.
    for words in
        [vec!["note", "-"], vec!["heartbeat"], vec!["claim", &call], vec!["settle"], vec!["message", "-"]]
    {
        let said = assistant("late", &[]).to_string();
        let ran = sandbox.step_in(&ticket, &words, said).exits(5);
        assert!(ran.stderr.contains("taken over"), "{words:?}: {}", ran.stderr);
    }
    assert_eq!(sandbox.last("s")["kind"], "recovered");
    sandbox.step_in(&ticket, ["result", &call, "-"], "finished after all").exits(5).says("interrupted");
    let straggler = sandbox.last("s");
    assert_eq!(straggler["kind"], "straggler");
    assert_eq!((&straggler["attempt"], &straggler["ref"]), (&json!(1), &json!(call)));
    assert!(straggler["content"].to_string().contains("finished after all"), "{straggler}");
    sandbox.step(&taken, ["heartbeat"]).ok();
    // The one that took over is alive now.
    sandbox.run(["recover", "s", "--owner-pid", &owner.pid().to_string()]).exits(4);
    sandbox.run(["verify", "s"]).ok();
    drop(pid);
}

#[test]
fn force_without_a_living_owner_is_a_recover_that_says_why() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    claimed(&sandbox, &owner, &[]);
    owner.die();
    let other = Owner::start();
    sandbox.recover(&other, "s", &["--force", "--why", "to be sure"]);
    let attempt = &attempts(&sandbox)[1];
    assert_eq!((&attempt["cause"], &attempt["why"]), (&json!("recover"), &json!("to be sure")));
}

#[test]
fn a_turn_held_by_nobody_is_taken_at_any_time() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "s", "--text", "x", "--owner-pid", "none"]).ok().line();
    assert!(attempts(&sandbox)[0].get("owner").is_none());
    sandbox.step(&ticket, ["heartbeat"]).ok();
    let again = sandbox.run(["recover", "s", "--owner-pid", "none"]).ok().line();
    assert!(again.ends_with(":2"));
    sandbox.step(&ticket, ["heartbeat"]).exits(5);
    sandbox.step(&again, ["heartbeat"]).ok();
}

#[test]
fn the_parent_is_the_owner() {
    let sandbox = Sandbox::new();
    let ran = sandbox.sh("turnkeep admit s --turn t1 --text x; turnkeep recover s; turnkeep step --ticket s:t1:1 heartbeat; echo $$");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines[..2], ["s:t1:1", "s:t1:1"], "the same owner asked again: {}", ran.all());
    assert_eq!(attempts(&sandbox)[0]["owner"]["pid"].to_string(), lines[3]);
    // That shell is gone; a step for it is refused, with what to do instead.
    sandbox.step("s:t1:1", ["heartbeat"]).exits(5).says("--owner-pid $$");
    let pid = std::process::id();
    assert_eq!(sandbox.run(["recover", "s"]).ok().line(), "s:t1:2");
    assert_eq!(attempts(&sandbox)[1]["owner"]["pid"], pid);
    sandbox.run(["recover", "s", "--owner-pid", "4194303"]).exits(2);
    sandbox.run(["recover", "s", "--owner-pid", "0"]).exits(2);
}

#[test]
fn a_parent_that_is_gone_before_the_write_owns_nothing() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    sandbox.admit(&owner, "s", &[]);
    owner.die();
    let path = sandbox.journal_path("s");
    let file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    fs2::FileExt::lock_exclusive(&file).unwrap();
    let before = sandbox.journal_bytes("s");
    sandbox.sh("turnkeep recover s --wait 50 >out 2>err & while ! [ -e /proc/$!/fd ] || ! ls -l /proc/$!/fd | grep -q s.jsonl; do :; done");
    drop(file);
    let err = sandbox.path("err");
    until("the refusal", || std::fs::read_to_string(&err).unwrap().contains("hint"));
    let said = std::fs::read_to_string(err).unwrap();
    assert!(said.contains("is gone already") && said.contains("--owner-pid $$"), "{said}");
    assert_eq!(std::fs::read(sandbox.path("out")).unwrap(), b"");
    assert_eq!(sandbox.journal_bytes("s"), before);
}

#[test]
fn the_same_owner_gets_its_ticket_and_the_recorded_decisions_again() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "look", "replay": "safe"}]));
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    let seq = sandbox.announce(
        &ticket,
        &[("c1", "bash", json!({})), ("c2", "look", json!({})), ("c3", "bash", json!({"n": 3}))],
    );
    sandbox.step(&ticket, ["claim", &format!("{seq}.0")]).ok();
    sandbox.step(&ticket, ["claim", &format!("{seq}.1")]).ok();
    owner.die();
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    let first = sandbox.run(["recover", "s", "--owner-pid", &pid, "--json"]).ok().json();
    let head = sandbox.journal_bytes("s");
    let again = sandbox.run(["recover", "s", "--owner-pid", &pid, "--json"]).ok().json();
    assert_eq!(sandbox.journal_bytes("s"), head, "asking again writes nothing");
    assert_eq!(first["ticket"], "s:t1:2");
    assert_eq!(again["ticket"], first["ticket"]);
    let kinds = |status: &Value| -> Vec<String> {
        status["decisions"].as_array().unwrap().iter().map(|decided| text(&decided["decision"])).collect()
    };
    assert_eq!(kinds(&first), ["interrupt", "rerun", "run"]);
    assert_eq!(again["decisions"], first["decisions"], "the recorded ones");
    assert_eq!(again["next"], first["next"]);
    // A claim of its own, without a runner, is its own business.
    let ticket = text(&first["ticket"]);
    sandbox.step(&ticket, ["claim", &format!("{seq}.1")]).ok();
    sandbox.step(&ticket, ["claim", &format!("{seq}.2")]).ok();
    let head = sandbox.journal_bytes("s");
    let mine = sandbox.run(["recover", "s", "--owner-pid", &pid, "--json"]).ok().json();
    assert_eq!(sandbox.journal_bytes("s"), head);
    assert_eq!(mine["ticket"], "s:t1:2");
    sandbox.step_in(&ticket, ["result", &format!("{seq}.2"), "-"], "done").ok();
    sandbox.run(["verify", "s"]).ok();
}

#[test]
fn what_became_due_for_the_same_owner_is_decided_under_the_same_attempt() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    let call = format!("{}.0", sandbox.announce(&ticket, &[("c1", "bash", json!({}))]));
    let run = sandbox.step_cmd(&ticket, ["run", &call, "--", "sleep", "1000"]).start();
    until("the claim", || sandbox.kinds("s").contains(&"claimed".to_owned()));
    let pid = owner.pid().to_string();
    // The runner lives: await, and nothing else could be done.
    let waits = sandbox.run(["recover", "s", "--owner-pid", &pid]).exits(14);
    assert_eq!(waits.line(), "s:t1:1", "its owner gets the ticket again");
    let tool = child_of(run.pid());
    run.signal("KILL");
    run.wait();
    signal(tool, "KILL");
    let status = sandbox.run(["recover", "s", "--owner-pid", &pid, "--json"]).ok().json();
    assert_eq!((&status["ticket"], &status["attempt"]), (&json!("s:t1:1"), &json!(1)));
    assert_eq!(status["decisions"][0]["decision"], "interrupt");
    assert_eq!(sandbox.kinds("s")[4..], ["claimed", "interrupted", "recovered"]);
    assert_eq!(status["next"]["do"], "call_model");
    // Asked once more: as recorded.
    let again = sandbox.run(["recover", "s", "--owner-pid", &pid, "--json"]).ok().json();
    assert_eq!(again["decisions"], status["decisions"]);
    sandbox.run(["verify", "s"]).ok();
}

/// The one child of a process.
fn child_of(pid: u32) -> u32 {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let mut found = String::new();
    until("the child", || {
        found = std::fs::read_to_string(&path).unwrap_or_default();
        !found.trim().is_empty()
    });
    found.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn cmd_gets_ticket_session_and_root_and_is_the_owner() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    sandbox.admit(&owner, "s", &["--turn", "t1"]);
    owner.die();
    let driver = sandbox.script(
        "driver.sh",
        "echo \"$$ $TURNKEEP_TICKET $TURNKEEP_SESSION $TURNKEEP_ROOT $*\"; turnkeep step heartbeat >&2; exit 7",
    );
    let ran = sandbox
        .cmd(["recover", "s", "--"])
        .arg(&driver)
        .arg("--flag")
        .arg("two words")
        .env("TURNKEEP_TICKET", "other:t9:1")
        .go()
        .exits(7);
    let line = ran.line();
    let (pid, rest) = line.split_once(' ').unwrap();
    assert_eq!(rest, format!("s:t1:2 s {} --flag two words", sandbox.root().display()));
    let attempt = &attempts(&sandbox)[1];
    assert_eq!(attempt["owner"]["pid"].to_string(), pid, "the process becomes CMD");
    assert_eq!(sandbox.last("s")["kind"], "heartbeat", "its steps are accepted");
    // A command that is not there is found out before anything is written.
    sandbox.unchanged("s", || sandbox.run(["recover", "s", "--", "no-such-command"]).exits(2));
    // --json: nothing of ours on stdout.
    let ran = sandbox.run(["recover", "s", "--json", "--", "echo", "mine"]).ok();
    assert_eq!(ran.stdout, "mine\n");
}

/// A journal that lost its end on a line is sound, so the ticket is all that knows of the turn.
#[test]
fn a_ticket_of_a_turn_that_the_journal_lacks_is_not_done_and_gets_no_other_turn() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let first = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    sandbox.step_in(&first, ["message", "-"], assistant("done", &[]).to_string()).ok();
    sandbox.step(&first, ["settle"]).ok();
    let older = sandbox.journal_bytes("s");
    let lost = sandbox.admit(&owner, "s", &["--turn", "t2"]);
    std::fs::write(sandbox.journal_path("s"), &older).unwrap();
    let with = |ticket: &str, words: &[&str]| sandbox.cmd(words).env("TURNKEEP_TICKET", ticket).go();
    let (next, recover) = (["inspect", "s", "--next"], ["recover", "s", "--owner-pid", "none"]);
    let all_unknown = |ticket: &str, turn: &str| {
        for words in [&next[..], &recover, &["recover", "s", "--dry-run", "--owner-pid", "none"]] {
            let ran = sandbox.unchanged("s", || with(ticket, words)).exits(8);
            assert!(ran.stderr.contains(turn) && ran.stderr.contains("older copy"), "{}", ran.stderr);
        }
    };
    all_unknown(&lost, "t2");
    // Nor is it another turn's work that it is sent to.
    let open = sandbox.admit(&owner, "s", &["--turn", "t3"]);
    assert_eq!(with(&open, &next).ok().line(), "call_model");
    owner.die();
    all_unknown(&lost, "t2");
    // One that is closed is done, and says of itself alone that it is.
    let seen = with(&first, &["inspect", "s", "--next", "--json"]).ok().json();
    assert_eq!(at(&seen, "/next"), &json!({"do": "done", "refs": [], "why": "the turn is closed"}));
    with(&first, &recover).exits(10).says("turn t1 is closed");
    // And the one that is there goes on.
    with(&open, &recover).ok();
}

#[test]
fn of_two_recoverers_at_once_one_gets_the_turn() {
    for _ in 0..5 {
        let sandbox = Sandbox::new();
        let owner = Owner::start();
        claimed(&sandbox, &owner, &[]);
        owner.die();
        let owners: Vec<Owner> = (0..6).map(|_| Owner::start()).collect();
        let pids: Vec<String> = owners.iter().map(|owner| owner.pid().to_string()).collect();
        let started: Vec<Running> =
            pids.iter().map(|pid| sandbox.cmd(["recover", "s", "--owner-pid", pid]).start()).collect();
        let mut codes: Vec<i32> = started.into_iter().map(|running| running.wait().code()).collect();
        codes.sort_unstable();
        assert_eq!(codes, [0, 4, 4, 4, 4, 4]);
        assert_eq!(sandbox.kinds("s")[5..], ["attempt", "interrupted", "recovered"]);
        sandbox.run(["verify", "s"]).ok();
    }
}

#[test]
fn an_original_and_a_recoverer_at_once() {
    for _ in 0..5 {
        let sandbox = Sandbox::new();
        let owner = Owner::start();
        let (ticket, call) = claimed(&sandbox, &owner, &[]);
        let other = Owner::start();
        let pid = other.pid().to_string();
        let taken = sandbox.cmd(["recover", "s", "--owner-pid", &pid, "--force", "--why", "race"]).start();
        let result = sandbox.step_cmd(&ticket, ["result", &call, "-"]).stdin("done").start();
        taken.wait().ok();
        let result = result.wait();
        let kinds = sandbox.kinds("s");
        let (results, stragglers) = (
            kinds.iter().filter(|kind| *kind == "result").count(),
            kinds.iter().filter(|kind| *kind == "straggler").count(),
        );
        let interrupted = kinds.iter().filter(|kind| *kind == "interrupted").count();
        match result.code() {
            0 => assert_eq!((results, interrupted, stragglers), (1, 0, 0)),
            5 => assert_eq!((results, interrupted, stragglers), (0, 1, 1)),
            other => panic!("exit {other}: {}", result.stderr),
        }
        sandbox.run(["verify", "s"]).ok();
    }
}

/// Words that nobody would read are refused: whoever gave them meant something by them.
#[test]
fn a_reason_goes_with_what_it_is_the_reason_of() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    sandbox.admit(&owner, "s", &["--turn", "t1"]);
    sandbox.unchanged("s", || {
        for words in [["--why", "I looked"], ["--by", "ann"]] {
            sandbox.run([["recover", "s"], words].concat()).exits(2).says(words[0]);
            sandbox.run([["recover", "--all"], words].concat()).exits(2).says(words[0]);
        }
        for blank in ["", " ", "\t\n", "\u{a0}"] {
            sandbox.run(["recover", "s", "--force", "--why", blank]).exits(2).says("--why");
        }
        sandbox.run(["recover", "s", "--force"]).exits(2).says("--why");
    });
    sandbox.run(["recover", "s", "--force", "--why", "I looked", "--owner-pid", "none"]).ok();
}

/// Of two unclosed turns: killed before it was done and run again by the same owner, a recover goes on with its turn.
#[test]
fn a_recover_that_was_killed_goes_on_with_the_same_turn() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let first = sandbox.admit(&owner, "s", &["--turn", "t1", "--delivery", "k"]);
    sandbox.step_in(&first, ["message", "-"], assistant("done", &[]).to_string()).ok();
    sandbox.step(&first, ["settle"]).ok();
    sandbox.admit(&owner, "s", &["--turn", "t2"]);
    owner.die();
    let driver = Owner::start();
    let ticket = sandbox.recover(&driver, "s", &[]);
    assert_eq!(ticket, "s:t1:2");
    // Killed before its last record.
    let journal = String::from_utf8(sandbox.journal_bytes("s")).unwrap();
    let whole = journal.trim_end();
    let (kept, last) = whole.split_at(whole.rfind('\n').unwrap() + 1);
    assert!(last.contains(r#""kind":"recovered""#), "{last}");
    std::fs::write(sandbox.journal_path("s"), kept).unwrap();
    // Another one takes what is free.
    let other = Owner::start();
    let dry = ["recover", "s", "--dry-run", "--json", "--owner-pid", &other.pid().to_string()];
    assert_eq!(sandbox.run(dry).ok().json()["turn"], "t2");
    assert_eq!(sandbox.recover(&driver, "s", &[]), ticket);
    // Done with it, it gets the next one.
    assert_eq!(sandbox.recover(&driver, "s", &[]), "s:t2:2");
}
