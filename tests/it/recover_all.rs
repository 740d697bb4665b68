//! `recover --all`: every session at once, each CMD the owner of its turn.

use crate::kit::*;
use serde_json::{Value, json};

/// A session with one turn whose owner is gone.
fn orphan(sandbox: &Sandbox, session: &str) {
    let owner = Owner::start();
    sandbox.admit(&owner, session, &["--turn", "t1"]);
    owner.die();
}

fn damaged(sandbox: &Sandbox, session: &str) {
    orphan(sandbox, session);
    let mut bytes = sandbox.journal_bytes(session);
    bytes[400] ^= 1;
    std::fs::write(sandbox.journal_path(session), bytes).unwrap();
}

fn waiting(sandbox: &Sandbox, session: &str) {
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, session, &["--turn", "t1"]);
    sandbox.step(&ticket, ["claim", "c", "--tool", "bash", "--args", "{}"]).ok();
    owner.die();
}

fn driver(sandbox: &Sandbox) -> String {
    let script = sandbox.script(
        "driver.sh",
        "echo \"$TURNKEEP_TICKET $TURNKEEP_SESSION $$\" >>started\nturnkeep step heartbeat >/dev/null",
    );
    script.display().to_string()
}

fn started(sandbox: &Sandbox) -> Vec<String> {
    let text = std::fs::read_to_string(sandbox.path("started")).unwrap_or_default();
    let mut tickets: Vec<String> =
        text.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    tickets.sort();
    tickets
}

#[test]
fn each_turn_gets_a_cmd_that_owns_it() {
    let sandbox = Sandbox::new();
    for session in ["a", "b", "room:1"] {
        orphan(&sandbox, session);
    }
    let alive = Owner::start();
    sandbox.admit(&alive, "held", &[]);
    let driver = driver(&sandbox);
    let ran = sandbox.run(["recover", "--all", "--json", "--", &driver]).ok();
    assert_eq!(ran.stdout, "", "nothing of ours is on stdout");
    assert_eq!(started(&sandbox), ["a:t1:2", "b:t1:2", "room:1:t1:2"]);
    let text_of = std::fs::read_to_string(sandbox.path("started")).unwrap();
    for line in text_of.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let name = words[1].replace(':', "%3A");
        let attempt = sandbox.journal(&name).into_iter().rfind(|record| record["kind"] == "attempt").unwrap();
        assert_eq!(attempt["owner"]["pid"].to_string(), words[2], "the owner is CMD itself");
        assert_eq!(sandbox.last(&name)["kind"], "heartbeat");
    }
    assert_eq!(sandbox.kinds("held").len(), 3, "a living owner is left alone");
}

#[test]
fn the_exit_code_is_the_worst_whatever_the_cmds_return() {
    let sandbox = Sandbox::new();
    orphan(&sandbox, "a");
    sandbox.run(["recover", "--all", "--", "false"]).ok();
    sandbox.run(["recover", "--all", "--match", "a*", "--", "false"]).ok();
    waiting(&sandbox, "b");
    sandbox.run(["recover", "--all", "--", "false"]).exits(14);
    std::fs::write(sandbox.root().join("sessions/newer.jsonl"), {
        orphan(&sandbox, "newer");
        crate::forge::replaced(&sandbox.journal_bytes("newer"), "turnkeep/1", "turnkeep/2")
    })
    .unwrap();
    sandbox.run(["recover", "--all", "--", "true"]).exits(1).says("turnkeep/2");
    damaged(&sandbox, "c");
    let ran = sandbox.run(["recover", "--all", "--", "true"]).exits(3);
    assert!(ran.stderr.contains("session c"), "{}", ran.stderr);
    // Each is judged on its own: those that can be recovered were.
    assert_eq!(sandbox.kinds("a").iter().filter(|kind| *kind == "attempt").count(), 5);
    sandbox.run(["recover", "--all", "--match", "[bx]", "--", "true"]).exits(14);
    sandbox.run(["recover", "--all", "--match", "nothing*", "--", "true"]).ok();
    sandbox.run(["recover", "--all", "--match", "[", "--", "true"]).exits(2);
}

#[test]
fn without_cmd_the_plan_is_printed_and_nothing_written() {
    let sandbox = Sandbox::new();
    orphan(&sandbox, "a");
    waiting(&sandbox, "b");
    let done = Owner::start();
    let ticket = sandbox.admit(&done, "done", &[]);
    sandbox.step_in(&ticket, ["message", "-"], assistant("x", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    let before = sandbox.everything();
    let ran = sandbox.run(["recover", "--all", "--json"]).exits(14);
    let plans: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(plans.len(), 2);
    for plan in &plans {
        let keys: Vec<&String> = plan.as_object().unwrap().keys().collect();
        assert_eq!(keys.len(), 4, "{keys:?}");
    }
    assert_eq!((&plans[0]["session"], &plans[0]["turn"]), (&json!("a"), &json!("t1")));
    assert_eq!(plans[0]["next"]["do"], "call_model");
    assert_eq!(
        (&plans[1]["decisions"][0]["decision"], &plans[1]["next"]["do"]),
        (&json!("hold"), &json!("reconcile"))
    );
    let human = sandbox.run(["recover", "--all"]).exits(14);
    assert_eq!(human.stdout.lines().count(), 2);
    assert!(human.stdout.contains("a:t1") && human.stdout.contains("hold"), "{}", human.stdout);
    sandbox.run(["recover", "--all", "--dry-run", "--", "touch", "started"]).exits(14);
    assert!(sandbox.everything() == before, "nothing is written");
    let ran = sandbox.run(["recover", "--all", "--match", "done", "--json"]).ok();
    assert_eq!(ran.stdout, "");
}

#[test]
fn a_lock_is_not_waited_for() {
    let sandbox = Sandbox::new();
    orphan(&sandbox, "a");
    orphan(&sandbox, "b");
    let file = std::fs::OpenOptions::new().append(true).open(sandbox.journal_path("a")).unwrap();
    fs2::FileExt::lock_exclusive(&file).unwrap();
    let driver = driver(&sandbox);
    // Busy is a note.
    let ran = sandbox.run(["recover", "--all", "--wait", "50", "--", &driver]).ok();
    assert_eq!(started(&sandbox), ["b:t1:2"]);
    let said: Vec<&str> = ran.stderr.lines().filter(|line| line.contains('a')).collect();
    let told = "turnkeep: note: turn t1 of session a is busy: another process has its lock or has taken it";
    assert_eq!(said, [told]);
    let ran = sandbox.run(["recover", "--all", "-q", "--", &driver]).ok();
    assert_eq!(ran.stderr, "");
}

#[test]
fn a_line_limit_holds_for_each_session() {
    let sandbox = Sandbox::new();
    orphan(&sandbox, "a");
    let driver = driver(&sandbox);
    let before = sandbox.everything();
    // No record is so short: the plan and the recovery refuse alike.
    sandbox.run(["--max-record", "200", "recover", "--all"]).exits(1);
    sandbox.run(["--max-record", "200", "recover", "--all", "--", &driver]).exits(1);
    assert!(sandbox.everything() == before);
}

#[test]
fn a_script_gets_a_document_of_each_failure() {
    let sandbox = Sandbox::new();
    damaged(&sandbox, "a");
    orphan(&sandbox, "b");
    let ran = sandbox.run(["recover", "--all", "--json"]).exits(3);
    let documents: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(documents.len(), 2);
    assert_eq!(documents[0]["schema"], "turnkeep.error/1");
    assert_eq!((&documents[0]["session"], &documents[0]["exit"]), (&json!("a"), &json!(3)));
    assert_eq!((&documents[1]["session"], &documents[1]["turn"]), (&json!("b"), &json!("t1")));
    // Nothing of ours is on stdout where CMD is started.
    let driver = driver(&sandbox);
    let ran = sandbox.run(["recover", "--all", "--json", "--", &driver]).exits(3);
    assert_eq!(ran.stdout, "");
}

#[test]
fn two_turns_of_one_session_are_driven_at_once() {
    for _ in 0..4 {
        let sandbox = Sandbox::new();
        let owner = Owner::start();
        let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--delivery", "k"]);
        sandbox.step_in(&ticket, ["message", "-"], assistant("One.", &[]).to_string()).ok();
        sandbox.step(&ticket, ["settle"]).ok();
        sandbox.admit(&owner, "s", &["--turn", "t2"]);
        owner.die();
        let driver = driver(&sandbox);
        sandbox.run(["recover", "--all", "--", &driver]).ok();
        assert_eq!(started(&sandbox), ["s:t1:2", "s:t2:2"]);
        sandbox.run(["verify", "s"]).ok();
    }
}

#[test]
fn a_crash_loop_is_parked_under_cron_too() {
    let sandbox = Sandbox::new();
    orphan(&sandbox, "s");
    let codes: Vec<i32> = (0..8).map(|_| sandbox.run(["recover", "--all", "--", "false"]).code()).collect();
    assert_eq!(codes, [0, 0, 0, 0, 14, 14, 14, 14]);
    let kinds = sandbox.kinds("s");
    assert_eq!(kinds.iter().filter(|kind| *kind == "parked").count(), 1, "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| *kind == "attempt").count(), 5);
    // An operator lets it go on.
    let driver = driver(&sandbox);
    sandbox.run(["recover", "s", "--unpark", "--by", "alice", "--why", "mended", "--", &driver]).ok();
    assert_eq!(started(&sandbox), ["s:t1:6"]);
}

#[test]
fn options_of_one_session_are_refused_for_all() {
    let sandbox = Sandbox::new();
    orphan(&sandbox, "s");
    let before = sandbox.everything();
    for words in
        [vec!["--unpark", "--by", "a", "--why", "b"], vec!["--tree-file", "x"], vec!["--owner-pid", "none"]]
    {
        let all = [&["recover", "--all"][..], &words, &["--", "true"]].concat();
        sandbox.run(all).exits(2);
    }
    sandbox.run(["recover"]).exits(2);
    sandbox.run(["recover", "s", "--all"]).exits(2);
    sandbox.run(["recover", "s", "--match", "x"]).exits(2);
    sandbox.run(["recover", "--all", "--", "no-such-command"]).exits(2);
    assert!(sandbox.everything() == before);
    let empty = Sandbox::new();
    empty.run(["recover", "--all", "--", "true"]).exits(8);
    assert!(!empty.root().exists(), "nothing is made");
}

#[test]
fn one_damaged_turn_does_not_hide_another_of_its_session() {
    let sandbox = Sandbox::new();
    sandbox.write("chat.jsonl", small_tree());
    let owner = Owner::start();
    let words = ["--turn", "t1", "--delivery", "k", "--tree", "chat.jsonl"];
    let ticket = sandbox.admit(&owner, "s", &words);
    sandbox.step_in(&ticket, ["message", "-"], assistant("One.", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    sandbox.admit(&owner, "s", &["--turn", "t2"]);
    owner.die();
    std::fs::remove_file(sandbox.path("chat.jsonl")).unwrap();
    let driver = driver(&sandbox);
    sandbox.run(["recover", "--all", "--", &driver]).exits(3);
    assert_eq!(started(&sandbox), ["s:t2:2"]);
}

/// What is listed is what a recover of that turn would say, its branch counted as written.
#[test]
fn what_is_listed_is_what_a_dry_run_of_the_turn_shows() {
    let sandbox = Sandbox::new();
    sandbox.write("chat.jsonl", small_tree());
    for (session, tree) in [("plain", None), ("branch", Some("branch")), ("append", Some("append"))] {
        let owner = Owner::start();
        let mut words = vec!["--turn", "t1"];
        words.extend(tree.iter().flat_map(|mode| ["--tree", "chat.jsonl", "--tree-mode", mode]));
        let ticket = sandbox.admit(&owner, session, &words);
        sandbox.announce(&ticket, &[("c1", "read", json!({})), ("c2", "bash", json!({}))]);
        sandbox.step(&ticket, ["claim", "c2"]).ok();
        owner.die();
        let listed = sandbox.run(["recover", "--all", "--match", session, "--json"]).ok().json();
        let shown = sandbox.run(["recover", session, "--dry-run", "--json"]).ok().json();
        assert_eq!(listed["next"], shown["next"], "{session}");
        assert_eq!(listed["next"]["do"], "run_calls", "{session}");
        assert_eq!(listed["decisions"], shown["decisions"], "{session}");
    }
}

#[test]
fn who_has_to_act_is_told_where_no_driver_is_started() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "deploy", "replay": "never", "approval": "required"}]));
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t"]);
    sandbox.announce(&ticket, &[("a", "deploy", json!({}))]);
    owner.die();
    let ran = sandbox.run(["recover", "--all", "--", "touch", "ran"]).exits(14);
    ran.says("turn t of session s waits: next is ask").says("turnkeep step approve");
    assert!(!sandbox.path("ran").exists());
}
