//! The decision table through real processes: what `recover` decides about each call, records and says.

use crate::kit::*;
use serde_json::{Value, json};

/// A turn of attempt 1 with these calls, held by `owner`; the ticket and the seq of the message.
fn turn(sandbox: &Sandbox, owner: &Owner, calls: &[(&str, &str, Value)]) -> (String, u64) {
    let ticket = sandbox.admit(owner, "s", &["--turn", "t1"]);
    let seq = sandbox.announce(&ticket, calls);
    (ticket, seq)
}

fn recover(sandbox: &Sandbox) -> Value {
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    let status = sandbox.run(["recover", "s", "--owner-pid", &pid, "--json"]).ok().json();
    let ran = sandbox.run(["verify", "s"]);
    assert_eq!(ran.code(), 0, "{}", ran.all());
    status
}

fn decided(status: &Value) -> Vec<String> {
    status["decisions"].as_array().unwrap().iter().map(|one| text(&one["decision"])).collect()
}

fn rule(replay: &str) -> Value {
    if replay == "absent" { json!([]) } else { json!([{"tool": "grep", "replay": replay}]) }
}

#[test]
fn the_stored_and_the_current_policy_both_have_to_agree() {
    for (stored, now, decision) in [
        ("safe", "safe", "rerun"),
        ("safe", "keyed", "rerun"),
        ("keyed", "safe", "rerun"),
        ("keyed", "keyed", "rerun"),
        ("safe", "never", "interrupt"),
        ("safe", "absent", "interrupt"),
        ("keyed", "never", "interrupt"),
        ("never", "safe", "interrupt"),
        ("absent", "safe", "interrupt"),
        ("absent", "absent", "interrupt"),
    ] {
        let sandbox = Sandbox::new();
        sandbox.policy(rule(stored));
        let owner = Owner::start();
        let (ticket, seq) = turn(&sandbox, &owner, &[("call_1", "grep", json!({"pattern": "TODO"}))]);
        sandbox.step(&ticket, ["claim", "call_1"]).ok();
        owner.die();
        sandbox.policy(rule(now));
        let status = recover(&sandbox);
        let one = &status["decisions"][0];
        let what = format!("stored {stored}, now {now}: {one}");
        assert_eq!(one["decision"], decision, "{what}");
        let spelled = |replay: &str| if replay == "absent" { "never".to_owned() } else { replay.to_owned() };
        assert_eq!(one["replay_stored"], spelled(stored), "{what}");
        assert_eq!(one["replay_now"], spelled(now), "{what}");
        // The report names both sides, and the record too.
        let why = text(&one["why"]);
        assert!(why.contains(&format!("stored {}", spelled(stored))), "{why}");
        assert!(why.contains(&format!("now {}", spelled(now))), "{why}");
        let records = sandbox.journal("s");
        let recorded = &records.last().unwrap()["decisions"][0];
        assert_eq!(recorded["ref"], format!("{seq}.0"));
        assert_eq!((&recorded["why"], &recorded["replay_now"]), (&one["why"], &one["replay_now"]));
        assert_eq!(
            records[usize::try_from(seq).unwrap()]["calls"][0]["replay"],
            spelled(stored),
            "stays as it was written"
        );
        let interrupted: Vec<&Value> =
            records.iter().filter(|record| record["kind"] == "interrupted").collect();
        assert_eq!(interrupted.len(), usize::from(decision == "interrupt"), "{what}");
        for record in interrupted {
            explains(&text(&record["explanation"]), &records, seq);
        }
    }
}

/// What an interrupted explanation has to say, and what not.
#[track_caller]
fn explains(said: &str, records: &[Value], seq: u64) {
    let claimed = records.iter().find(|record| record["kind"] == "claimed").unwrap();
    let call = &records[usize::try_from(seq).unwrap()]["calls"][0];
    for needed in [
        text(&call["tool"]),
        text(&call["args_sha256"]),
        text(&claimed["at"]),
        text(&call["key"]),
        "attempt 1".to_owned(),
        "unknown".to_owned(),
        "may still be running".to_owned(),
    ] {
        assert!(said.contains(&needed), "{needed:?} is missing: {said}");
    }
    for wrong in ["failed", "did not run", "succeeded", "try again", "rejected"] {
        assert!(!said.to_lowercase().contains(wrong), "{wrong:?} is said: {said}");
    }
}

#[test]
fn the_explanation_names_the_link_and_the_output_so_far() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let (ticket, seq) = turn(&sandbox, &owner, &[("a", "bash", json!({})), ("b", "bash", json!({"n": 2}))]);
    sandbox.step(&ticket, ["claim", "a", "--link", r#"{"job":"ci-4711"}"#]).ok();
    let tool = sandbox.script("tool.sh", "echo half done; touch started; exec sleep 1000");
    let call = format!("{seq}.1");
    let run = sandbox.step_cmd(&ticket, ["run", &call, "--"]).arg(&tool).start();
    until("the tool", || sandbox.path("started").exists());
    let tool_pid = children(run.pid());
    // While its runner lives it is awaited.
    owner.die();
    let before = recover(&sandbox);
    assert_eq!(decided(&before), ["interrupt", "await"]);
    let said = sandbox.journal("s").iter().find(|record| record["kind"] == "interrupted").cloned().unwrap();
    assert!(text(&said["explanation"]).contains("ci-4711"), "{said}");
    run.signal("KILL");
    run.wait();
    for pid in tool_pid {
        signal(pid, "KILL");
    }
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    let status =
        sandbox.run(["recover", "s", "--owner-pid", &pid, "--force", "--why", "x", "--json"]).ok().json();
    assert_eq!(decided(&status), ["redeliver", "interrupt"]);
    let record = sandbox.journal("s").into_iter().rfind(|record| record["kind"] == "interrupted").unwrap();
    assert!(text(&record["output_so_far"]).contains("half done"), "{record}");
    assert!(text(&record["explanation"]).contains("half done"), "{record}");
    let spools = std::fs::read_dir(sandbox.root().join("spool")).map_or(0, Iterator::count);
    assert_eq!(spools, 0, "the output stands in the journal now");
}

fn children(pid: u32) -> Vec<u32> {
    let found = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    found.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn a_batch_is_decided_call_by_call() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let calls = [
        ("call_1", "read", json!({"path": "a"})),
        ("call_2", "bash", json!({"command": "systemctl restart web"})),
        ("call_3", "bash", json!({"command": "df -h"})),
        ("call_4", "read", json!({"path": "b"})),
    ];
    let (ticket, seq) = turn(&sandbox, &owner, &calls);
    for call in ["call_1", "call_2", "call_4"] {
        sandbox.step(&ticket, ["claim", call]).ok();
    }
    sandbox.step_in(&ticket, ["result", "call_1", "-"], "A").ok();
    owner.die();
    let status = recover(&sandbox);
    assert_eq!(decided(&status), ["redeliver", "interrupt", "run", "rerun"]);
    assert_eq!(status["next"]["do"], "run_calls");
    assert_eq!(status["next"]["refs"], json!([format!("{seq}.2"), format!("{seq}.3")]));
    // The record has those without an answer before this attempt.
    let recorded = sandbox.last("s");
    let refs: Vec<String> =
        recorded["decisions"].as_array().unwrap().iter().map(|one| text(&one["ref"])).collect();
    assert_eq!(refs, [1, 2, 3].map(|position| format!("{seq}.{position}")));
    // The order of writing.
    assert_eq!(sandbox.kinds("s")[8..], ["attempt", "interrupted", "recovered"]);
}

#[test]
fn a_rerun_is_accepted_once_with_the_same_key_and_ends_the_old_claim() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "put", "replay": "keyed"}]));
    let owner = Owner::start();
    let (old, _) = turn(&sandbox, &owner, &[("c", "put", json!({}))]);
    sandbox.step(&old, ["claim", "c"]).ok();
    owner.die();
    let owner = Owner::start();
    let ticket = sandbox.recover(&owner, "s", &[]);
    // The old claim's result comes too late, though the call has no answer yet.
    sandbox.step_in(&old, ["result", "c", "-"], "late").exits(5);
    assert_eq!(sandbox.last("s")["kind"], "straggler");
    sandbox.step(&ticket, ["claim", "c"]).ok();
    sandbox.step(&ticket, ["claim", "c", "--link", "2"]).exits(7);
    let keys: Vec<Value> = sandbox
        .journal("s")
        .into_iter()
        .filter(|record| record["kind"] == "claimed")
        .map(|record| record["key"].clone())
        .collect();
    assert_eq!(keys[0], keys[1], "the same idempotency key");
    sandbox.step_in(&ticket, ["result", "c", "-"], "done").ok();
    sandbox.step(&ticket, ["claim", "c"]).exits(10);
}

#[test]
fn a_cancelled_turn_runs_nothing_again() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "grep", "replay": "safe"}]));
    let owner = Owner::start();
    let (ticket, _) = turn(&sandbox, &owner, &[("a", "grep", json!({})), ("b", "grep", json!({}))]);
    sandbox.step(&ticket, ["claim", "a"]).ok();
    sandbox.run(["step", "cancel", "--session", "s", "--by", "alice", "--reason", "changed my mind"]).ok();
    owner.die();
    let status = recover(&sandbox);
    assert_eq!(decided(&status), ["interrupt", "not_run"]);
    assert!(text(&status["decisions"][0]["why"]).contains("cancelled"));
    let records = sandbox.journal("s");
    let answers: Vec<&Value> = records
        .iter()
        .filter(|record| ["interrupted", "not_run"].contains(&record["kind"].as_str().unwrap()))
        .collect();
    assert!(text(&answers[0]["explanation"]).contains("cancelled"), "{}", answers[0]);
    assert!(text(&answers[0]["explanation"]).contains("unknown"), "{}", answers[0]);
    assert_eq!(answers[1]["why"], "cancelled");
    assert_eq!(status["next"]["do"], "settle");
    let ticket = text(&status["ticket"]);
    assert_eq!(ticket, "s:t1:2");
}

#[test]
fn held_calls_wait_for_a_person_who_is_told_what_to_type() {
    for declared in [false, true] {
        let sandbox = Sandbox::new();
        sandbox.policy(json!([{"tool": "charge", "replay": "never", "unknown": "hold"}]));
        let owner = Owner::start();
        let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
        let call = if declared {
            sandbox.step(&ticket, ["claim", "c", "--tool", "bash", "--args", "{}"]).ok();
            "3.0".to_owned()
        } else {
            let seq = sandbox.announce(&ticket, &[("c", "charge", json!({"eur": 7}))]);
            sandbox.step(&ticket, ["claim", "c"]).ok();
            format!("{seq}.0")
        };
        owner.die();
        let head = sandbox.journal_bytes("s");
        let owner = Owner::start();
        let pid = owner.pid().to_string();
        let ran = sandbox.run(["recover", "s", "--owner-pid", &pid, "--json"]).exits(14);
        let status = ran.json();
        assert_eq!(decided(&status), ["hold"]);
        assert_eq!((&status["next"]["do"], &status["next"]["refs"]), (&json!("reconcile"), &json!([call])));
        assert!(status["ticket"].is_null(), "no attempt, no ticket");
        assert_eq!(sandbox.journal_bytes("s"), head, "no attempt and no record");
        let typed = format!("turnkeep step reconcile {call} --outcome");
        assert!(ran.stderr.contains(&typed) && ran.stderr.contains("--session s"), "{}", ran.stderr);
        let human = sandbox.run(["recover", "s", "--owner-pid", &pid]).exits(14);
        assert!(human.stdout.is_empty() && human.stderr.contains(&typed));
        sandbox.run(["recover", "s", "--", "touch", "started"]).exits(14);
        assert!(!sandbox.path("started").exists(), "CMD is not started");
        // The person acts, and the turn goes on.
        let words =
            ["step", "reconcile", &call, "--outcome", "not_applied", "--by", "bob", "--session", "s:t1"];
        sandbox.run(words).ok();
        let status = sandbox.run(["recover", "s", "--owner-pid", &pid, "--json"]).ok().json();
        assert_eq!(decided(&status), ["run"]);
    }
}

#[test]
fn current_rules_ask_for_hold_and_approval_too() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let (ticket, _) = turn(&sandbox, &owner, &[("a", "charge", json!({})), ("b", "deploy", json!({}))]);
    sandbox.step(&ticket, ["claim", "a"]).ok();
    owner.die();
    sandbox.policy(json!([
        {"tool": "charge", "replay": "never", "unknown": "hold"},
        {"tool": "deploy", "replay": "never", "approval": "required"},
    ]));
    let ran = sandbox.run(["recover", "s", "--owner-pid", "none", "--json"]).exits(14);
    assert_eq!(decided(&ran.json()), ["hold", "ask"]);
    assert_eq!(ran.json()["next"]["do"], "ask");
    assert!(ran.stderr.contains("turnkeep step approve 3.1 --by WHO --session s"), "{}", ran.stderr);
    sandbox.run(["step", "approve", "b", "--by", "alice", "--session", "s"]).ok();
    let status = sandbox.run(["recover", "s", "--owner-pid", "none", "--json"]).ok().json();
    assert_eq!(decided(&status), ["hold", "run"]);
    sandbox.run(["step", "deny", "b", "--by", "alice", "--session", "s"]).exits(6);
}

#[test]
fn an_approval_is_asked_for_again_before_a_rerun() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "deploy", "replay": "safe", "approval": "required"}]));
    for (word, decision) in [("approve", "rerun"), ("deny", "interrupt")] {
        let owner = Owner::start();
        let session = word;
        let ticket = sandbox.admit(&owner, session, &["--turn", "t1"]);
        sandbox.announce(&ticket, &[("c", "deploy", json!({}))]);
        sandbox.step(&ticket, ["claim", "c"]).exits(11);
        sandbox.run(["step", "approve", "c", "--by", "alice", "--session", session]).ok();
        sandbox.step(&ticket, ["claim", "c"]).ok();
        owner.die();
        let status = sandbox.run(["recover", session, "--owner-pid", "none", "--json"]).exits(14).json();
        assert_eq!(decided(&status), ["ask"], "the claim used the approval up");
        sandbox.run(["step", word, "c", "--by", "bob", "--session", session]).ok();
        let status = sandbox.run(["recover", session, "--owner-pid", "none", "--json"]).ok().json();
        assert_eq!(decided(&status), [decision]);
    }
}

#[test]
fn a_dispatched_call_is_awaited_for_ever() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let (ticket, _) = turn(&sandbox, &owner, &[("c", "farm", json!({})), ("d", "bash", json!({}))]);
    sandbox.step(&ticket, ["dispatch", "c", "--to", "farm-7"]).ok();
    owner.die();
    let status = recover(&sandbox);
    assert_eq!(decided(&status), ["await", "run"]);
    // Its result is accepted from any attempt not older than the dispatch.
    sandbox.step_in(&ticket, ["result", "c", "-"], "done far away").ok();
    assert_eq!(sandbox.last("s")["kind"], "result");
}

#[test]
fn wait_result_waits_for_a_runner_and_gives_the_lock_back() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let (ticket, _) = turn(&sandbox, &owner, &[("c", "bash", json!({}))]);
    let tool = sandbox
        .script("tool.sh", "touch started; while ! [ -e go ]; do sleep 0.01; done; echo late but fine");
    let run = sandbox.step_cmd(&ticket, ["run", "c", "--"]).arg(&tool).start();
    until("the tool", || sandbox.path("started").exists());
    owner.die();
    let before = sandbox.journal_bytes("s");
    // Its time over, it says what it waits for.
    let status =
        sandbox.run(["recover", "s", "--owner-pid", "none", "--wait-result", "0.1", "--json"]).exits(14);
    assert_eq!(decided(&status.json()), ["await"]);
    assert_eq!(status.json()["next"]["do"], "await");
    assert_eq!(sandbox.journal_bytes("s"), before);
    let waiting =
        sandbox.cmd(["recover", "s", "--owner-pid", "none", "--wait-result", "50", "--json"]).start();
    sandbox.write("go", "");
    let status = waiting.wait().ok().json();
    assert_eq!(decided(&status), ["redeliver"]);
    run.wait().ok();
    assert_eq!(sandbox.kinds("s")[5..], ["result", "attempt", "recovered"]);
    // A signal ends the waiting.
    let ticket = text(&status["ticket"]);
    sandbox.step_in(&ticket, ["message", "-"], assistant("", &[("d", "bash", json!({}))]).to_string()).ok();
    std::fs::remove_file(sandbox.path("go")).unwrap();
    std::fs::remove_file(sandbox.path("started")).unwrap();
    let run = sandbox.step_cmd(&ticket, ["run", "d", "--"]).arg(&tool).start();
    until("the tool", || sandbox.path("started").exists());
    let before = sandbox.journal_bytes("s");
    let waiting = sandbox.cmd(["recover", "s", "--owner-pid", "none", "--wait-result", "50"]).start();
    until("the handlers", || catches(waiting.pid(), 15));
    waiting.signal("TERM");
    waiting.wait().exits(143);
    assert_eq!(sandbox.journal_bytes("s"), before);
    sandbox.write("go", "");
    run.wait().ok();
}

/// Whether a process has a handler for a signal.
fn catches(pid: u32, number: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    line.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() >> (number - 1) & 1 == 1)
}

#[test]
fn close_calls_ends_what_the_agent_cannot_run() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let (ticket, _) = turn(&sandbox, &owner, &[("a", "read", json!({})), ("b", "bash", json!({}))]);
    sandbox.step(&ticket, ["claim", "a"]).ok();
    owner.die();
    let status = sandbox.run(["recover", "s", "--close-calls", "--owner-pid", "none", "--json"]).ok().json();
    assert_eq!(decided(&status), ["interrupt", "not_run"]);
    let records = sandbox.journal("s");
    let not_run = records.iter().find(|record| record["kind"] == "not_run").unwrap();
    assert_eq!(not_run["why"], "refused");
    assert_eq!(status["next"]["do"], "call_model");
    sandbox.run(["verify", "s"]).ok();
}

#[test]
fn a_cut_off_message_runs_nothing() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    for (stop, id) in [("length", "call_1"), ("aborted", "call_2")] {
        let message = assistant_ending(stop, "", &[(id, "write", json!({"content": "half of a fi"}))]);
        sandbox.step_in(&ticket, ["message", "-"], message.to_string()).ok();
        sandbox.step(&ticket, ["claim", id]).exits(10);
    }
    owner.die();
    let status = recover(&sandbox);
    assert_eq!(decided(&status), ["redeliver", "redeliver"]);
    assert_eq!(status["calls"][0]["state"], "not_run");
    assert_eq!(status["next"]["do"], "call_model", "the turn is cut off, not finished");
}

#[test]
fn ids_that_are_reused_do_not_meet() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let (ticket, _) = turn(&sandbox, &owner, &[("call_0", "read", json!({"path": "a"}))]);
    sandbox.step(&ticket, ["claim", "call_0"]).ok();
    sandbox.step_in(&ticket, ["result", "call_0", "-"], "A").ok();
    sandbox.step_in(&ticket, ["message", "-"], assistant("fine", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t2"]);
    let seq = sandbox.announce(&ticket, &[("call_0", "bash", json!({"command": "make"}))]);
    sandbox.step(&ticket, ["claim", "call_0"]).ok();
    owner.die();
    let status = recover(&sandbox);
    assert_eq!(status["turn"], "t2");
    assert_eq!(decided(&status), ["interrupt"]);
    assert_eq!(status["decisions"][0]["ref"], format!("{seq}.0"));
    sandbox.run(["recover", "s:t1"]).exits(10);
}

#[test]
fn a_late_result_is_evidence_and_no_answer() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let (ticket, _) = turn(&sandbox, &owner, &[("call_1", "bash", json!({}))]);
    sandbox.step(&ticket, ["claim", "call_1"]).ok();
    owner.die();
    recover(&sandbox);
    let ran = sandbox.step_in(&ticket, ["result", "call_1", "-"], "finished after all").exits(5);
    assert!(ran.stderr.contains("interrupted"), "{}", ran.stderr);
    let kinds = sandbox.kinds("s");
    assert_eq!(kinds.last().unwrap(), "straggler");
    assert!(!kinds.contains(&"result".to_owned()));
    sandbox.run(["verify", "s"]).ok();
}

#[test]
fn a_crash_loop_is_parked_at_the_limit_and_grows_little() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let (ticket, _) = turn(&sandbox, &owner, &[("call_1", "read", json!({"path": "huge.log"}))]);
    sandbox.step(&ticket, ["claim", "call_1"]).ok();
    owner.die();
    let mut sizes = Vec::new();
    let mut codes = Vec::new();
    for _ in 0..50 {
        let owner = Owner::start();
        let pid = owner.pid().to_string();
        let ran = sandbox.run(["recover", "s", "--owner-pid", &pid]);
        if ran.code() == 0 {
            sandbox.step(&ran.line(), ["claim", "call_1"]).ok();
        }
        codes.push(ran.code());
        owner.die();
        sizes.push(sandbox.journal_bytes("s").len());
    }
    // The message is progress of attempt 1; five attempts without any are the limit.
    let parked = codes.iter().position(|code| *code == 14).unwrap();
    assert_eq!(codes, [vec![0; parked], vec![14; 50 - parked]].concat());
    assert_eq!(parked, 5, "the newest 5 attempts had no progress");
    assert!(sizes[4] - sizes[3] < 2048, "small growth a round");
    assert!(sizes[parked..].iter().all(|size| *size == sizes[parked]), "parked once, and nothing more");
    let record = sandbox.last("s");
    assert_eq!((&record["kind"], &record["by"]), (&json!("parked"), &json!("turnkeep")));
    assert!(text(&record["why"]).contains('5'), "{record}");
    let status = sandbox.run(["recover", "s", "--owner-pid", "none", "--json"]).exits(14).json();
    assert_eq!((&status["state"], &status["next"]["do"]), (&json!("parked"), &json!("unpark")));
    let ran = sandbox.run(["recover", "s"]).exits(14).says("--unpark --by WHO --why TEXT");
    assert!(ran.stderr.contains("turnkeep recover s:t1"), "{}", ran.stderr);
    let claims = sandbox.journal("s").into_iter().filter(|record| record["kind"] == "claimed").count();
    assert_eq!(claims, 6, "an attempt number on every claim");
    sandbox.run(["verify", "s"]).ok();
}

#[test]
fn the_limit_is_the_policys_and_counts_what_got_nowhere() {
    let sandbox = Sandbox::new();
    let limited = r#"{"format":"turnkeep-policy/1","rules":[],"limits":{"attempts":2}}"#;
    let policy = sandbox.write("strict.json", limited);
    let crash = || {
        let owner = Owner::start();
        let pid = owner.pid().to_string();
        let ran = sandbox.cmd(["recover", "s", "--owner-pid", &pid, "--policy"]).arg(&policy).go();
        (ran, owner)
    };
    let owner = Owner::start();
    sandbox.admit(&owner, "s", &["--turn", "t1"]);
    owner.die();
    let (ran, owner) = crash();
    let ticket = ran.ok().line();
    owner.die();
    // Two attempts, the admission's among them, and no progress.
    let (ran, _owner) = crash();
    ran.exits(14);
    assert_eq!(sandbox.kinds("s")[3..], ["attempt", "recovered", "parked"]);
    sandbox.step(&ticket, ["heartbeat"]).exits(5);
    // Unparked it counts anew.
    let words =
        ["recover", "s", "--unpark", "--by", "alice", "--why", "disk is mended", "--owner-pid", "none"];
    let ticket = sandbox.run(words).ok().line();
    assert_eq!(ticket, "s:t1:3");
    let unparked = sandbox.journal("s").into_iter().find(|record| record["kind"] == "unparked").unwrap();
    assert_eq!((&unparked["by"], &unparked["why"]), (&json!("alice"), &json!("disk is mended")));
    // A message is progress.
    sandbox.step_in(&ticket, ["message", "-"], assistant("", &[("c", "bash", json!({}))]).to_string()).ok();
    for _ in 0..2 {
        let (ran, owner) = crash();
        ran.ok();
        owner.die();
    }
    crash().0.exits(14);
    sandbox.run(["verify", "s"]).ok();
}

#[test]
fn unpark_stands_where_what_follows_waits_and_nowhere_else() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "charge", "replay": "never", "unknown": "hold"}]));
    sandbox.write("chat.jsonl", small_tree());
    let limited = json!({"format": "turnkeep-policy/1", "limits": {"attempts": 1},
        "rules": [{"tool": "charge", "replay": "never", "unknown": "hold"}]});
    let policy = sandbox.write("strict.json", limited.to_string());
    let owner = Owner::start();
    sandbox.admit(&owner, "s", &["--turn", "t1", "--tree", "chat.jsonl"]);
    owner.die();
    sandbox.cmd(["recover", "s", "--owner-pid", "none", "--policy"]).arg(&policy).go().exits(14);
    assert_eq!(sandbox.last("s")["kind"], "parked");
    let unpark = ["recover", "s", "--unpark", "--by", "alice", "--why", "go", "--owner-pid", "none"];
    for missing in ["--by", "--why"] {
        let at = unpark.iter().position(|word| *word == missing).unwrap();
        let words = [&unpark[..at], &unpark[at + 2..]].concat();
        sandbox.unchanged("s", || sandbox.run(words).exits(2));
    }
    // A damaged tree: everything that can refuse refuses before the first write.
    let tree = std::fs::read(sandbox.path("chat.jsonl")).unwrap();
    std::fs::write(sandbox.path("chat.jsonl"), [b"\xef\xbb\xbf", &tree[..]].concat()).unwrap();
    sandbox.unchanged("s", || sandbox.run(unpark).exits(3));
    std::fs::write(sandbox.path("chat.jsonl"), &tree).unwrap();
    // A dry run shows it and writes nothing.
    let shown =
        sandbox.unchanged("s", || sandbox.run(unpark.iter().chain(&["--dry-run", "--json"])).ok().json());
    let kinds: Vec<String> =
        shown["records"].as_array().unwrap().iter().map(|record| text(&record["kind"])).collect();
    assert_eq!(kinds, ["unparked", "attempt", "recovered"]);
    let ticket = sandbox.run(unpark).ok().line();
    sandbox.unchanged("s", || sandbox.run(unpark).exits(6).says("not parked"));
    // What follows is 14: a call is held.
    let seq = sandbox.announce(&ticket, &[("c", "charge", json!({}))]);
    sandbox.step(&ticket, ["claim", &format!("{seq}.0")]).ok();
    let with_policy = |words: &[&str]| sandbox.cmd(words).env("TURNKEEP_POLICY", &policy).go();
    with_policy(&["recover", "s", "--owner-pid", "none"]).exits(14);
    assert_ne!(sandbox.last("s")["kind"], "parked", "waiting is no attempt");
    sandbox.run(["step", "reconcile", "c", "--outcome", "unknown", "--by", "bob", "--session", "s"]).ok();
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    let ticket = with_policy(&["recover", "s", "--owner-pid", &pid]).ok().line();
    let seq = sandbox.announce(&ticket, &[("d", "charge", json!({}))]);
    sandbox.step(&ticket, ["claim", &format!("{seq}.0")]).ok();
    sandbox.run(["verify", "s"]).ok();
}

#[test]
fn unpark_stands_though_a_living_owner_is_in_the_way() {
    let sandbox = Sandbox::new();
    let limited = r#"{"format":"turnkeep-policy/1","rules":[],"limits":{"attempts":1}}"#;
    let policy = sandbox.write("strict.json", limited);
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    let other = Owner::start();
    let pid = other.pid().to_string();
    let taken = ["recover", "s", "--owner-pid", &pid, "--force", "--why", "it hangs", "--policy"];
    sandbox.cmd(taken).arg(&policy).go().exits(14);
    assert_eq!(sandbox.last("s")["kind"], "parked");
    sandbox.step(&ticket, ["heartbeat"]).exits(6);
    let unpark = ["recover", "s", "--unpark", "--by", "alice", "--why", "go", "--owner-pid", &pid];
    sandbox.unchanged("s", || sandbox.run(unpark.iter().chain(&["--dry-run"])).exits(4));
    sandbox.run(unpark).exits(4);
    let unparked = sandbox.last("s");
    assert_eq!((&unparked["kind"], &unparked["by"]), (&json!("unparked"), &json!("alice")));
    // The one that lives goes on.
    sandbox.step(&ticket, ["heartbeat"]).ok();
    sandbox.unchanged("s", || sandbox.run(unpark).exits(6));
}

#[test]
fn recover_by_a_driver_that_waits_for_nobody_else() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--delivery", "k"]);
    sandbox.step_in(&ticket, ["message", "-"], assistant("Hello.", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    owner.die();
    // Settled and not begun: a driver delivers.
    let status = recover(&sandbox);
    assert_eq!((&status["state"], &status["next"]["do"]), (&json!("settled"), &json!("deliver")));
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    let ticket = sandbox.run(["recover", "s", "--owner-pid", &pid, "--force", "--why", "x"]).ok().line();
    sandbox.step(&ticket, ["deliver", "--begin"]).ok();
    owner.die();
    // Begun: only a person can tell.
    let ran = sandbox.run(["recover", "s", "--owner-pid", "none", "--json"]).exits(14);
    assert_eq!(ran.json()["next"]["do"], "reconcile_delivery");
    assert!(ran.stderr.contains("turnkeep step deliver --session s:t1 --receipt"), "{}", ran.stderr);
    sandbox.run(["step", "deliver", "--session", "s", "--receipt", "r", "--by", "bob"]).ok();
    sandbox.run(["recover", "s"]).exits(10);
    sandbox.run(["recover", "s", "--", "touch", "started"]).exits(10);
    assert!(!sandbox.path("started").exists());
}

#[test]
fn the_turn_that_is_taken() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--delivery", "k1"]);
    sandbox.step_in(&ticket, ["message", "-"], assistant("One.", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    sandbox.step(&ticket, ["deliver", "--begin"]).ok();
    sandbox.admit(&owner, "s", &["--turn", "t2", "--delivery", "k2"]);
    owner.die();
    let take = |words: &[&str]| {
        let ran = sandbox.run([&["recover", "--dry-run", "--json", "--owner-pid", "none"], words].concat());
        (ran.code(), ran.json()["turn"].clone())
    };
    // The oldest one that a driver can advance; t1 waits for a person.
    assert_eq!(take(&["s"]), (0, json!("t2")));
    assert_eq!(take(&["s:t1"]), (14, json!("t1")));
    assert_eq!(take(&["s:t2"]), (0, json!("t2")));
    let ran = sandbox.cmd(["recover", "s", "--dry-run", "--json"]).env("TURNKEEP_TICKET", &ticket).go();
    assert_eq!(ran.exits(14).json()["turn"], "t1", "the ticket's turn");
    // Held by a living owner, the oldest unclosed one is taken, and waits.
    let owner = Owner::start();
    sandbox.recover(&owner, "s", &[]);
    assert_eq!(take(&["s"]).0, 14);
}

#[test]
fn admit_again_resumes() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    let admit = |more: &[&str]| {
        let words = ["admit", "s", "--delivery", "k", "--text", "x", "--turn", "t1"];
        sandbox.run([&words, more].concat())
    };
    assert_eq!(admit(&["--owner-pid", &pid]).ok().line(), "s:t1:1");
    let other = Owner::start();
    let by_other = other.pid().to_string();
    // Without --resume: recorded before.
    let status = admit(&["--owner-pid", &by_other, "--json"]).exits(10).json();
    assert!(status["ticket"].is_null());
    // With it: the owner lives.
    sandbox.unchanged("s", || admit(&["--resume", "--owner-pid", &by_other]).exits(4));
    owner.die();
    assert_eq!(admit(&["--resume", "--owner-pid", &by_other]).ok().line(), "s:t1:2");
    other.die();
    let ran = admit(&["--resume", "--", "sh", "-c", "echo $TURNKEEP_TICKET"]).ok();
    assert_eq!(ran.line(), "s:t1:3");
    // Other input under the key.
    sandbox.run(["admit", "s", "--delivery", "k", "--text", "y", "--resume"]).exits(6);
    let owner = Owner::start();
    let ticket = sandbox.recover(&owner, "s", &[]);
    sandbox.step_in(&ticket, ["message", "-"], assistant("The reply.", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    sandbox.step(&ticket, ["deliver", "--begin"]).ok();
    sandbox.step(&ticket, ["deliver", "--receipt", "r"]).ok();
    let ran = admit(&["--resume"]).exits(10);
    assert_eq!(ran.stdout, "The reply.\n");
    // Nobody holds: as recover.
    let words = ["admit", "n", "--delivery", "k", "--text", "x", "--owner-pid", "none", "--resume"];
    assert!(sandbox.run(words).ok().line().ends_with(":1"));
    assert!(sandbox.run(words).ok().line().ends_with(":2"));
}

#[test]
fn admit_while_a_turn_is_open_names_it() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let (ticket, _) = turn(&sandbox, &owner, &[("call_1", "bash", json!({}))]);
    sandbox.step(&ticket, ["claim", "call_1"]).ok();
    let ran = sandbox.unchanged("s", || sandbox.run(["admit", "s", "--text", "Next."]).exits(4));
    for needed in ["t1", "claimed", "recover"] {
        assert!(ran.stderr.contains(needed), "{needed}: {}", ran.stderr);
    }
}
