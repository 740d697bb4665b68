//! `step claim`, `result`, `dispatch`: what happened to a call.

use crate::forge::replaced_later;
use crate::kit::{Owner, Sandbox, assistant, at, entry, text, tool_result, until};
use serde_json::{Value, json};

struct Turn {
    sandbox: Sandbox,
    owner: Option<Owner>,
    ticket: String,
    call: String,
}

/// A turn whose model asked for one call of `tool`.
fn turn_with(tool: &str) -> Turn {
    let sandbox = Sandbox::new();
    turn_in(sandbox, tool)
}

fn turn_in(sandbox: Sandbox, tool: &str) -> Turn {
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t"]);
    let seq = sandbox.announce(&ticket, &[("c1", tool, json!({"path": "a"}))]);
    Turn { sandbox, owner: Some(owner), ticket, call: format!("{seq}.0") }
}

impl Turn {
    fn step(&self, words: &[&str]) -> crate::kit::Ran {
        self.sandbox.step(&self.ticket, words)
    }

    fn step_in(&self, words: &[&str], stdin: &str) -> crate::kit::Ran {
        self.sandbox.step_in(&self.ticket, words, stdin)
    }

    fn claimed(self) -> Self {
        self.step(&["claim", &self.call]).ok();
        self
    }

    /// Its owner dies and another takes it over.
    fn taken_over(&mut self) -> (String, Owner) {
        self.owner.take().unwrap().die();
        let owner = Owner::start();
        let ticket = self.sandbox.recover(&owner, "s", &[]);
        (ticket, owner)
    }
}

#[test]
fn a_claim_comes_before_the_effect_and_a_result_behind_it() {
    let turn = turn_with("bash");
    turn.sandbox.unchanged("s", || {
        let early = turn.step_in(&["--json", "result", &turn.call, "-"], "ok").exits(6);
        early.error("unclaimed_result");
    });
    let receipt = turn.step(&["claim", "c1", "--link", "{ \"url\" : \"x\" }"]).ok();
    let record = turn.sandbox.last("s");
    assert_eq!(receipt.json(), json!({"seq": record["seq"], "hash": record["hash"]}));
    assert_eq!((&record["ref"], &record["link"]), (&json!(turn.call), &json!({"url": "x"})));
    let message = &turn.sandbox.journal("s")[3];
    assert_eq!(&record["key"], at(message, "/calls/0/key"));
    let status = turn.step_in(&["--json", "result", &turn.call, "-"], "all right\n").ok().json();
    assert_eq!(turn.sandbox.last("s")["content"], "all right\n");
    assert_eq!(turn.sandbox.last("s")["error"], false);
    assert_eq!(at(&status, "/calls/0/state"), "result");
    assert_eq!(at(&status, "/next/do"), "call_model");
    assert_eq!(at(&status, "/receipt/hash"), &turn.sandbox.last("s")["hash"]);
}

#[test]
fn a_claim_is_a_gate_and_never_repeats() {
    let turn = turn_with("bash").claimed();
    turn.sandbox.unchanged("s", || {
        let again = turn.step(&["--json", "claim", &turn.call]).exits(7);
        let error = again.error("claimed");
        assert_eq!(error["ref"], turn.call);
        assert!(text(&error["hint"]).contains("reconcile"), "{error}");
        turn.step(&["--json", "dispatch", &turn.call, "--to", "x"]).exits(7).error("claimed");
        turn.step(&["--json", "run", &turn.call, "--", "touch", "ran"]).exits(7).error("claimed");
    });
    turn.step_in(&["result", &turn.call, "-"], "out").ok();
    turn.sandbox.unchanged("s", || {
        let error = turn.step(&["--json", "claim", &turn.call]).exits(10).error("answered");
        assert_eq!(error["answer"], "out");
        turn.step(&["--json", "dispatch", &turn.call, "--to", "x"]).exits(10).error("answered");
        turn.step(&["--json", "run", &turn.call, "--", "touch", "ran"]).exits(10).error("answered");
        assert_eq!(turn.step(&["run", &turn.call, "--", "touch", "ran"]).exits(10).stdout, "out");
        assert_eq!(turn.step(&["claim", &turn.call]).exits(10).stdout, "out");
    });
    assert!(!turn.sandbox.path("ran").exists());
}

#[test]
fn a_result_repeats_and_another_contradicts() {
    let turn = turn_with("bash").claimed();
    let seq = turn.step_in(&["result", &turn.call, "-"], "out").ok().seq();
    turn.sandbox.unchanged("s", || {
        assert_eq!(turn.step_in(&["result", &turn.call, "-"], "out").ok().repeated(), seq);
        let document = turn.step_in(&["--json", "result", "c1", "-"], "out").ok().json();
        assert_eq!(at(&document, "/receipt/repeated"), true);
        turn.step_in(&["--json", "result", &turn.call, "-"], "other").exits(6).error("other_result");
        turn.step_in(&["result", &turn.call, "--error", "-"], "out").exits(6);
        turn.step(&["result", &turn.call]).exits(6);
        turn.step(&["result", &turn.call, "--not-run"]).exits(6);
    });
}

#[test]
fn no_file_argument_means_no_content() {
    let turn = turn_with("bash").claimed();
    turn.sandbox.step_cmd(&turn.ticket, ["result", &turn.call]).stdin("never read").go().ok();
    assert!(turn.sandbox.last("s").get("content").is_none());
    let seq = turn.sandbox.last("s")["seq"].as_u64().unwrap();
    turn.sandbox.unchanged("s", || assert_eq!(turn.step(&["result", &turn.call]).ok().repeated(), seq));
}

#[test]
fn the_body_of_a_result_is_a_message_a_structure_or_text() {
    for (body, stored, error) in [
        ("{\"a\": 1}", json!({"a": 1}), false),
        ("[1]", json!([1]), false),
        ("42", json!("42"), false),
        ("\"quoted\"", json!("\"quoted\""), false),
        ("null", json!("null"), false),
        ("", json!(""), false),
        ("{broken", json!("{broken"), false),
        (&tool_result("c1", "bash", "no", true).to_string(), tool_result("c1", "bash", "no", true), true),
    ] {
        let turn = turn_with("bash").claimed();
        turn.step_in(&["result", &turn.call, "-"], body).ok();
        let record = turn.sandbox.last("s");
        assert_eq!((&record["content"], &record["error"]), (&stored, &json!(error)), "{body}");
    }
}

#[test]
fn not_run_answers_a_call_that_never_started() {
    let turn = turn_with("bash");
    let seq = turn.step(&["result", &turn.call, "--not-run"]).ok().seq();
    let record = turn.sandbox.last("s");
    assert_eq!((&record["kind"], &record["why"]), (&json!("not_run"), &json!("refused")));
    turn.sandbox.unchanged("s", || {
        assert_eq!(turn.step(&["result", &turn.call, "--not-run"]).ok().repeated(), seq);
        turn.step(&["claim", &turn.call]).exits(10);
    });
    // Its only claim is of this attempt, without a runner.
    let turn = turn_with("bash").claimed();
    turn.step(&["result", &turn.call, "--not-run"]).ok();
    assert_eq!(turn.sandbox.last("s")["kind"], "not_run");
    // A result that finds its call not run is kept, and is no answer.
    let late = turn.step_in(&["--json", "result", &turn.call, "-"], "it ran").exits(5);
    late.error("straggler");
    assert_eq!(turn.sandbox.last("s")["kind"], "straggler");
    assert_eq!(turn.sandbox.last("s")["content"], json!({"error": false, "content": "it ran"}));
    turn.sandbox.unchanged("s", || {
        turn.step_in(&["--json", "result", &turn.call, "-"], "it ran").exits(5).error("straggler");
    });
    turn.step_in(&["result", &turn.call, "-"], "it ran otherwise").exits(5);
    assert_eq!(at(&turn.sandbox.last("s"), "/content/content"), "it ran otherwise");
    turn.sandbox.unchanged("s", || {
        turn.step_in(&["result", &turn.call, "--not-run", "-"], "x").exits(2);
        turn.step(&["result", &turn.call, "--not-run", "--error"]).exits(2);
    });
}

#[test]
fn what_may_have_run_is_never_called_not_run() {
    // Dispatched.
    let turn = turn_with("bash");
    turn.step(&["dispatch", &turn.call, "--to", "farm"]).ok();
    turn.sandbox.unchanged("s", || {
        turn.step(&["--json", "result", &turn.call, "--not-run"]).exits(6).error("may_have_run");
    });
    // Claimed by an older attempt, and by this one anew.
    let mut turn = turn_with("read").claimed();
    let (ticket, _owner) = turn.taken_over();
    turn.sandbox.unchanged("s", || turn.sandbox.step(&ticket, ["result", &turn.call, "--not-run"]).exits(6));
    turn.sandbox.step(&ticket, ["claim", &turn.call]).ok();
    turn.sandbox.unchanged("s", || {
        turn.sandbox.step(&ticket, ["result", &turn.call, "--not-run"]).exits(6);
        turn.step(&["--json", "result", &turn.call, "--not-run"]).exits(5).error("fenced");
    });
    // Claimed by a runner, which was killed.
    let turn = turn_with("bash");
    let running = turn.sandbox.step_cmd(&turn.ticket, ["run", &turn.call, "--", "sleep", "1000"]).start();
    crate::kit::until("the claim", || turn.sandbox.last("s")["kind"] == "claimed");
    let sleeper = child_of(running.pid());
    running.signal("KILL");
    running.wait();
    crate::kit::signal(sleeper, "KILL");
    turn.sandbox.unchanged("s", || turn.step(&["result", &turn.call, "--not-run"]).exits(6));
}

fn child_of(pid: u32) -> u32 {
    let mut found = None;
    crate::kit::until("the child", || {
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let all = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let texts = all.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
        let texts: String = texts.chain([children]).collect::<Vec<_>>().join(" ");
        found = texts.split_whitespace().next().and_then(|pid| pid.parse().ok());
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn calls_are_named_by_ref_id_or_entry() {
    let turn = turn_with("bash");
    turn.sandbox.unchanged("s", || {
        for unknown in ["99.0", "c9", "e.0", ""] {
            turn.step(&["--json", "claim", unknown]).exits(8).error("no_call");
            turn.step(&["--json", "result", unknown]).exits(8).error("no_call");
        }
    });
    turn.step(&["result", "c1", "--not-run"]).ok();
    // The provider reuses the id: it names the live one.
    let seq = turn.sandbox.announce(&turn.ticket, &[("c1", "bash", json!({}))]);
    turn.step(&["claim", "c1"]).ok();
    assert_eq!(turn.sandbox.last("s")["ref"], format!("{seq}.0"));
    turn.step(&["result", "c1"]).ok();
    assert_eq!(turn.sandbox.last("s")["ref"], format!("{seq}.0"));
}

#[test]
fn a_call_may_be_declared_and_claimed_at_once() {
    let turn = turn_with("bash");
    let words = ["claim", "step-1", "--tool", "deploy", "--args", "{ \"n\": 1.0 }", "--parent", &turn.call];
    turn.step(&["claim", &turn.call]).ok();
    let seq = turn.step(&words).ok().seq();
    let records = turn.sandbox.journal("s");
    let (intent, claimed) = (&records[records.len() - 2], &records[records.len() - 1]);
    assert_eq!(claimed["seq"], seq);
    assert_eq!(
        (&intent["kind"], &intent["id"], &intent["tool"]),
        (&json!("intent"), &json!("step-1"), &json!("deploy"))
    );
    assert_eq!(intent["parent"], turn.call);
    assert_eq!(claimed["ref"], format!("{}.0", intent["seq"]));
    assert_eq!(claimed["key"], intent["key"]);
    turn.sandbox.unchanged("s", || {
        turn.step(&words).exits(7);
        turn.step(&["--json", "claim", "step-1", "--tool", "deploy"]).exits(6).error("other_call");
        turn.step(&["--json", "claim", "step-1", "--tool", "other", "--args", "{\"n\":1.0}"]).exits(6);
        turn.step(&["--json", "claim", "7.0", "--tool", "deploy"]).exits(2).error("bad_call_id");
        turn.step(&["--json", "claim", "", "--tool", "deploy"]).exits(2).error("bad_call_id");
        turn.step(&["claim", "x", "--args", "{}"]).exits(2);
        turn.step(&["claim", "x", "--tool", "y", "--args", "{"]).exits(2);
        turn.step(&["claim", "x", "--tool", "y", "--parent", "99.0"]).exits(8);
    });
    turn.step_in(&["result", "step-1", "-"], "deployed").ok();
    turn.sandbox.unchanged("s", || {
        let error = turn.step(&[&["--json"], &words[..]].concat()).exits(10).error("answered");
        assert_eq!(error["answer"], "deployed");
    });
    // Without --args a declared call has none.
    turn.step(&["claim", "step-2", "--tool", "deploy"]).ok();
    let records = turn.sandbox.journal("s");
    assert_eq!(records[records.len() - 2]["args"], json!({}));
}

#[test]
fn an_approval_is_asked_for_before_a_claim() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "deploy", "replay": "never", "approval": "required"}]));
    let turn = turn_in(sandbox, "deploy");
    turn.sandbox.unchanged("s", || {
        for words in [
            vec!["--json", "claim", &turn.call],
            vec!["--json", "run", &turn.call, "--", "touch", "ran"],
            vec!["--json", "dispatch", &turn.call, "--to", "farm"],
        ] {
            let error = turn.step(&words).exits(11).error("approval_needed");
            assert!(text(&error["hint"]).contains("step approve"), "{error}");
        }
        turn.sandbox.run(["step", "approve", &turn.call, "--by", "ann"]).exits(2).says("--session");
        let env = turn.sandbox.cmd(["step", "approve", &turn.call, "--by", "ann"]);
        env.env("TURNKEEP_TICKET", &turn.ticket).go().exits(2).says("TURNKEEP_TICKET");
    });
    assert!(!turn.sandbox.path("ran").exists());
    // With --tool the declaration stands, the claim does not.
    turn.step(&["--json", "claim", "d1", "--tool", "deploy"]).exits(11).error("approval_needed");
    assert_eq!(turn.sandbox.last("s")["kind"], "intent");
    assert_eq!(turn.sandbox.last("s")["approval"], "required");
    turn.sandbox.unchanged("s", || turn.step(&["claim", "d1", "--tool", "deploy"]).exits(11));
    turn.sandbox
        .run(["step", "approve", "d1", "--by", "ann", "--session", "s"])
        .ok()
        .says("session s, turn t, call");
    turn.step(&["claim", "d1", "--tool", "deploy"]).ok();
    // The claim has used the approval up.
    turn.step(&["claim", &turn.call]).exits(11);
}

#[test]
fn a_denied_call_is_answered_at_once() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "deploy", "replay": "never", "approval": "required"}]));
    let turn = turn_in(sandbox, "deploy");
    let deny = ["step", "deny", &turn.call, "--by", "ann", "--reason", "no", "--session", "s"];
    let seq = turn.sandbox.run(deny).ok().seq();
    let records = turn.sandbox.journal("s");
    let index = usize::try_from(seq).unwrap();
    assert_eq!(
        (records[index]["kind"].clone(), records[index]["decision"].clone()),
        (json!("approval"), json!("denied"))
    );
    assert_eq!(
        (records[index + 1]["kind"].clone(), records[index + 1]["why"].clone()),
        (json!("not_run"), json!("denied"))
    );
    turn.sandbox.unchanged("s", || {
        assert_eq!(turn.sandbox.run(deny).ok().repeated(), seq);
        turn.step(&["claim", &turn.call]).exits(10);
        turn.sandbox.run(["step", "approve", &turn.call, "--by", "ann", "--session", "s"]).exits(6);
        turn.sandbox.run(["step", "deny", &turn.call, "--by", "bob", "--session", "s"]).exits(6);
    });
    let status = turn.step(&["--json", "heartbeat"]).ok().json();
    assert_eq!(at(&status, "/next/do"), "call_model");
}

#[test]
fn approvals_repeat_until_they_are_spent_and_may_run_out() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "deploy", "replay": "safe", "approval": "required"}]));
    let turn = turn_in(sandbox, "deploy");
    let approve = ["step", "approve", "c1", "--by", "ann", "--session", "s:t"];
    let seq = turn.sandbox.run(approve).ok().seq();
    turn.sandbox.unchanged("s", || {
        assert_eq!(turn.sandbox.run(approve).ok().repeated(), seq);
        // A word that stands is not contradicted.
        turn.sandbox.run(["step", "deny", "c1", "--by", "ann", "--session", "s"]).exits(6);
    });
    turn.step(&["claim", "c1"]).ok();
    turn.sandbox.unchanged("s", || {
        let ran = turn.sandbox.run([&["--json"], &approve[..]].concat()).exits(4);
        ran.error("claimant_alive");
    });
    turn.step(&["result", "c1"]).ok();
    turn.sandbox.unchanged("s", || turn.sandbox.run(approve).exits(6).says("answered"));
    // For no time at all: it has run out at once.
    let seq = turn.sandbox.announce(&turn.ticket, &[("c2", "deploy", json!({}))]);
    let call = format!("{seq}.0");
    turn.sandbox.run(["step", "approve", &call, "--by", "ann", "--session", "s", "--for", "0"]).ok();
    assert!(text(&turn.sandbox.last("s")["expires"]).ends_with('Z'));
    turn.step(&["claim", &call]).exits(11);
    turn.sandbox.run(["step", "approve", &call, "--by", "ann", "--session", "s", "--for", "3600"]).ok();
    turn.step(&["claim", &call]).ok();
}

#[test]
fn a_claimed_call_is_approved_only_where_its_row_is_ask() {
    let turn = turn_with("bash").claimed();
    turn.sandbox.unchanged("s", || {
        for act in ["approve", "deny"] {
            let words = ["--json", "step", act, "c1", "--by", "ann", "--session", "s"];
            turn.sandbox.run(words).exits(6).error("claimed");
        }
    });
}

#[test]
fn a_dispatched_call_is_never_resent() {
    let turn = turn_with("bash");
    let seq = turn.step(&["dispatch", &turn.call, "--to", "farm"]).ok().seq();
    let record = turn.sandbox.last("s");
    assert_eq!((&record["seq"], &record["to"]), (&json!(seq), &json!("farm")));
    turn.sandbox.unchanged("s", || {
        turn.step(&["dispatch", &turn.call, "--to", "farm"]).exits(7);
        turn.step(&["claim", &turn.call]).exits(7).says("farm");
        turn.step(&["dispatch", &turn.call, "--to", "other", "--receipt", "r1"]).exits(7);
    });
    let receipt = ["dispatch", &turn.call, "--to", "farm", "--receipt", "{\"job\": 7}"];
    let seq = turn.step(&receipt).ok().seq();
    assert_eq!(turn.sandbox.last("s")["receipt"], json!({"job": 7}));
    turn.sandbox.unchanged("s", || {
        assert_eq!(turn.step(&receipt).ok().repeated(), seq);
        let other = ["--json", "dispatch", &turn.call, "--to", "farm", "--receipt", "r2"];
        turn.step(&other).exits(6).error("other_receipt");
    });
    let status = turn.step(&["--json", "heartbeat"]).ok().json();
    assert_eq!(at(&status, "/calls/0/state"), "dispatched");
    assert_eq!(at(&status, "/next/do"), "await");
    turn.step_in(&["result", &turn.call, "-"], "done").ok();
}

/// An operator sees with whom the calls are, and for how long, in `inspect` and where `recover` waits.
#[test]
fn who_is_at_a_call_and_since_when_is_told() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
    let seq = sandbox.announce(&ticket, &[("c1", "charge", json!({})), ("c2", "bash", json!({}))]);
    let (farmed, run) = (format!("{seq}.0"), format!("{seq}.1"));
    sandbox.step(&ticket, ["dispatch", &farmed, "--to", "farm", "--receipt", "job-7"]).ok();
    let running = sandbox.step_cmd(&ticket, ["run", &run, "--", "sleep", "60"]).start();
    until("the claim", || sandbox.kinds("s").contains(&"claimed".to_owned()));
    owner.die();
    // Made a while ago: the same records with another day.
    let day = text(&sandbox.last("s")["at"])[..11].to_owned();
    let older = replaced_later(&sandbox.journal_bytes("s"), &day, "2026-11-01T");
    std::fs::write(sandbox.journal_path("s"), older).unwrap();
    for ran in [sandbox.run(["inspect", "s"]).ok(), sandbox.run(["recover", "s"]).exits(14)] {
        let (all, runner) = (ran.all(), running.pid());
        let told = |begin: &str, end: &str| {
            let line = all.lines().find(|line| line.contains(begin));
            assert!(line.is_some_and(|line| line.contains(" d ") && line.contains(end)), "{begin}: {all}");
        };
        told(&format!("{farmed} charge: dispatched to farm "), "ago, receipt \"job-7\"");
        told(&format!("{run} bash: run by pid {runner} ("), "ago");
    }
    let call = sandbox.run(["inspect", "s", "--call", &farmed]).ok();
    assert!(call.stdout.contains(" d ") && call.stdout.contains(" ago\n"), "{}", call.stdout);
    running.signal("KILL");
}

#[test]
fn a_receipt_of_a_dispatch_needs_no_living_owner() {
    let mut turn = turn_with("bash");
    turn.step(&["dispatch", &turn.call, "--to", "farm"]).ok();
    turn.owner.take().unwrap().die();
    turn.step(&["dispatch", &turn.call, "--to", "farm", "--receipt", "r"]).ok();
    turn.step_in(&["result", &turn.call, "-"], "done").ok();
}

#[test]
fn a_dispatched_call_takes_its_result_from_any_attempt_not_older() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let old = sandbox.admit(&owner, "s", &["--turn", "t"]);
    let seq = sandbox.announce(&old, &[("c1", "bash", json!({})), ("c2", "bash", json!({}))]);
    let (first, second) = (format!("{seq}.0"), format!("{seq}.1"));
    sandbox.step(&old, ["dispatch", &first, "--to", "farm"]).ok();
    owner.die();
    let owner = Owner::start();
    let new = sandbox.recover(&owner, "s", &[]);
    sandbox.step(&new, ["dispatch", &second, "--to", "farm"]).ok();
    // The receipt: also the attempt that dispatched.
    sandbox.step(&old, ["dispatch", &first, "--to", "farm", "--receipt", "r"]).ok();
    let late = sandbox.step_in(&old, ["--json", "result", &second, "-"], "x").exits(5);
    late.error("straggler");
    sandbox.step_in(&new, ["result", &second, "-"], "y").ok();
    sandbox.step_in(&old, ["result", &first, "-"], "z").ok();
    assert_eq!(sandbox.last("s")["attempt"], 1);
}

#[test]
fn a_late_result_is_evidence_and_never_an_answer() {
    let mut turn = turn_with("bash").claimed();
    let (new, _owner) = turn.taken_over();
    assert!(turn.sandbox.kinds("s").contains(&"interrupted".to_owned()));
    let late = turn.step_in(&["--json", "result", &turn.call, "-"], "it worked").exits(5);
    let error = late.error("straggler");
    let record = turn.sandbox.last("s");
    assert_eq!(error["straggler"], record["seq"]);
    assert_eq!(
        (&record["kind"], &record["attempt"], &record["ref"]),
        (&json!("straggler"), &json!(1), &json!(turn.call))
    );
    assert_eq!(record["content"], json!({"error": false, "content": "it worked"}));
    // Also from the current attempt.
    turn.sandbox.step_in(&new, ["result", &turn.call, "-"], "it worked").exits(5);
    assert_eq!(turn.sandbox.last("s")["attempt"], 2);
    turn.sandbox.unchanged("s", || {
        let error = turn.sandbox.step(&new, ["--json", "claim", &turn.call]).exits(10).error("answered");
        assert!(text(&error["answer"]).contains("unknown"), "{error}");
    });
    // And after the turn was closed.
    turn.sandbox.step(&new, ["settle", "--status", "failed"]).ok();
    turn.step_in(&["result", &turn.call, "-"], "it worked again").exits(5);
    assert_eq!(at(&turn.sandbox.last("s"), "/content/content"), "it worked again");
    turn.sandbox.unchanged("s", || turn.step_in(&["result", "99.0", "-"], "x").exits(8));
}

#[test]
fn a_rerun_that_was_decided_ends_the_old_claim() {
    let mut turn = turn_with("read").claimed();
    let (new, _owner) = turn.taken_over();
    let late = turn.step_in(&["--json", "result", &turn.call, "-"], "old").exits(5);
    late.error("straggler");
    turn.sandbox.step(&new, ["claim", &turn.call]).ok();
    turn.sandbox.unchanged("s", || turn.sandbox.step(&new, ["claim", &turn.call]).exits(7));
    turn.sandbox.step_in(&new, ["result", &turn.call, "-"], "new").ok();
}

#[test]
fn the_result_of_a_dead_owners_claim_is_accepted_until_somebody_recovers() {
    let mut turn = turn_with("bash").claimed();
    turn.owner.take().unwrap().die();
    turn.sandbox.unchanged("s", || {
        for words in
            [vec!["claim", "c1"], vec!["settle"], vec!["heartbeat"], vec!["run", "c1", "--", "touch", "ran"]]
        {
            let ran = turn.step(&words).exits(5);
            ran.says("--owner-pid $$").says("-- CMD");
        }
    });
    turn.step_in(&["result", "c1", "-"], "out").ok();
    assert!(!turn.sandbox.path("ran").exists());
}

#[test]
fn a_model_message_waits_for_every_answer() {
    let turn = turn_with("bash").claimed();
    let raw = entry("e9", None, &assistant("Done.", &[])).to_string();
    turn.sandbox.unchanged("s", || {
        turn.step_in(&["--json", "message", "-"], &assistant("Done.", &[]).to_string())
            .exits(6)
            .error("message_refused");
        turn.step_in(&["--json", "entry", "-"], &raw).exits(6).error("message_refused");
        turn.step(&["--json", "settle"]).exits(6).error("not_settleable");
    });
    turn.step(&["result", "c1"]).ok();
    turn.step_in(&["entry", "-"], &raw).ok();
}

#[test]
fn heartbeats_and_remarks_never_repeat() {
    let turn = turn_with("bash");
    for words in [["heartbeat"].as_slice(), &["note", "-"]] {
        let first = turn.step_in(words, "x").ok();
        let second = turn.step_in(words, "x").ok();
        assert!(second.seq() > first.seq());
        assert!(second.json().get("repeated").is_none());
    }
    turn.sandbox.unchanged("s", || turn.step(&["--json", "note"]).exits(2).error("no_content"));
}

#[test]
fn a_heartbeat_gives_no_lease_that_nobody_asked_for() {
    let turn = turn_with("bash");
    let status = turn.step(&["--json", "heartbeat"]).ok().json();
    assert_eq!(
        at(&status, "/owner/lease_until"),
        &Value::Null,
        "a living owner without a lease is not replaced"
    );
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "s", "--text", "Hi", "--lease", "60"]).ok().line();
    assert_eq!(sandbox.last("s")["lease_ms"], 60_000);
    let status = sandbox.step(&ticket, ["--json", "heartbeat"]).ok().json();
    assert!(at(&status, "/owner/lease_until").is_string());
    assert_eq!(sandbox.last("s")["lease_ms"], 60_000);
}

#[test]
fn a_lease_that_ran_out_does_not_end_the_owners_own_steps() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "s", "--text", "Hi", "--lease", "0"]).ok().line();
    sandbox.announce(&ticket, &[("c1", "bash", json!({}))]);
    let other = Owner::start();
    let taken = sandbox.recover(&other, "s", &[]);
    assert!(taken.ends_with(":2"));
    sandbox.step(&ticket, ["claim", "c1"]).exits(5);
}

/// Nobody ever claimed it, so its result is no straggler, whoever brings it.
#[test]
fn a_late_result_of_a_call_that_was_never_claimed_is_refused() {
    let mut turn = turn_with("bash");
    let (new, _owner) = turn.taken_over();
    for ticket in [turn.ticket.clone(), new] {
        turn.sandbox.unchanged("s", || {
            let ran = turn.sandbox.step_in(&ticket, ["--json", "result", &turn.call, "-"], "late");
            ran.exits(6).error("unclaimed_result");
        });
    }
}

/// Each says what is true: who did not start the call, and why.
#[test]
fn a_call_that_was_not_run_says_who_did_not_start_it() {
    let told = |act: &dyn Fn(&Turn)| {
        let turn = turn_with("bash");
        act(&turn);
        let journal = turn.sandbox.journal("s");
        text(&journal.iter().find(|record| record["kind"] == "not_run").unwrap()["explanation"])
    };
    let blocked = told(&|turn| {
        turn.step(&["result", &turn.call, "--not-run"]).ok();
    });
    assert!(blocked.contains("the agent did not start it"), "{blocked}");
    let settled = told(&|turn| {
        turn.step(&["settle", "--status", "failed"]).ok();
    });
    assert!(settled.contains("the turn was settled before it began"), "{settled}");
    for text in [blocked, settled] {
        assert!(!text.contains("ended before"), "{text}");
    }
}

#[test]
fn a_call_behind_a_not_applied_is_run_and_said_to_be_so() {
    let mut turn = turn_with("bash").claimed();
    turn.owner.take().unwrap().die();
    let person = ["--by", "ada", "--session", "s"];
    let words = ["step", "reconcile", &turn.call, "--outcome", "not_applied"];
    turn.sandbox.run(words.iter().chain(&person)).ok();
    let ran = turn.sandbox.run(["recover", "s", "--owner-pid", "none", "--json"]).ok().json();
    let decided = at(&ran, "/decisions/0");
    assert_eq!(decided["decision"], "run");
    assert_eq!(decided["why"], "it was not applied, and not claimed since");
}

/// What was done can be told, and what there is can be looked at, whatever became of the policy's file.
#[test]
fn a_policy_that_cannot_be_read_keeps_nothing_but_decisions_back() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "look", "replay": "safe"}]));
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t", "--delivery", "k"]);
    sandbox
        .announce(&ticket, &[("a", "look", json!({})), ("b", "look", json!({})), ("c", "look", json!({}))]);
    sandbox.step(&ticket, ["claim", "a"]).ok();
    std::fs::write(sandbox.root().join("policy.json"), "{broken").unwrap();
    sandbox.unchanged("s", || {
        let one = sandbox.write("one.json", assistant("x", &[]).to_string());
        let one = one.to_str().unwrap();
        for words in [
            &["claim", "b"][..],
            &["run", "b", "--", "true"],
            &["claim", "d", "--tool", "look"],
            &["dispatch", "b", "--to", "far"],
            &["message", one],
            &["entry", one],
            &["settle", one],
        ] {
            sandbox.step(&ticket, words).exits(2).says("policy.json").says("nothing was written");
        }
        sandbox.run(["recover", "s"]).exits(2).says("nothing was written");
        sandbox.run(["inspect", "s", "--next"]).exits(2);
        sandbox.run(["inspect", "s", "--next", "--policy", "/dev/zero"]).exits(2).says("which none needs");
        let status = sandbox.run(["inspect", "s", "--json"]).ok().says("counts as never").json();
        assert_eq!(at(&status, "/calls/0/replay_now"), "never");
        assert!(!status["notes"].to_string().contains("built-in"), "{}", status["notes"]);
        sandbox.run(["inspect"]).ok();
        sandbox.run(["verify", "--all"]).ok();
    });
    sandbox.step_in(&ticket, ["result", "a", "-"], "seen").ok().says("policy.json");
    sandbox.step(&ticket, ["result", "b", "--not-run"]).ok();
    sandbox.step(&ticket, ["heartbeat"]).ok();
    sandbox.step_in(&ticket, ["note", "-"], "still here").ok();
    sandbox.run(["step", "cancel", "--by", "ada", "--session", "s"]).ok();
    sandbox.step(&ticket, ["result", "c", "--not-run"]).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    sandbox.policy(json!([]));
    assert_eq!(sandbox.run(["verify", "s"]).code(), 0);
}

#[test]
fn who_may_not_begin_a_dispatched_call_is_told_what_ends_it() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t"]);
    let seq = sandbox.announce(&ticket, &[("a", "far", json!({}))]);
    sandbox.step(&ticket, ["dispatch", "a", "--to", "far"]).ok();
    let ran = sandbox.step(&ticket, ["claim", "a"]).exits(7);
    ran.says(&format!("turnkeep step result {seq}.0")).says("step reconcile").says_not("turnkeep recover");
}
