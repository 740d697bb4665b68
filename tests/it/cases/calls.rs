//! Reports about calls and turns: run twice, never run, answered for one another, lost with the process.

use super::{claimed_and_dead, decisions, text, whole};
use crate::fixtures::journal::Journal;
use crate::kit::{Owner, Sandbox, assistant_ending};
use serde_json::json;

/// A tool was running when its agent died; the model was told that it had failed, and it ran again.
#[test]
fn claimed_unsafe_no_result() {
    let sandbox = Sandbox::new();
    let seq = claimed_and_dead(&sandbox, "bash", &[]);
    let next = Owner::start();
    let document = sandbox.recover_json(&next, &[]);
    assert_eq!(decisions(&document), [("call_1".into(), "interrupt".into())]);
    let journal = sandbox.journal("s");
    let told = journal.iter().find(|record| record["kind"] == "interrupted").unwrap();
    assert_eq!(told["ref"], format!("{seq}.0"));
    let explanation = told["explanation"].as_str().unwrap();
    assert!(
        explanation.contains("outcome is unknown") && explanation.contains("may still be running"),
        "{explanation}"
    );
    for wrong in ["was rejected", "was not run", "succeeded", "try again"] {
        assert!(!explanation.contains(wrong), "{explanation}");
    }
    let ticket = crate::kit::text(&document["ticket"]);
    sandbox.unchanged("s", || sandbox.step(&ticket, ["run", "call_1", "--", "touch", "ran"]).exits(10));
    assert!(!sandbox.path("ran").exists());
}

/// Safe when it was stored, unsafe by now.
#[test]
fn replay_stored_safe_now_unsafe() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "grep", "replay": "safe"}]));
    claimed_and_dead(&sandbox, "grep", &[]);
    sandbox.policy(json!([{"tool": "grep", "replay": "never"}]));
    let document = sandbox.recover_json(&Owner::start(), &[]);
    let decided = &document["decisions"][0];
    assert_eq!(decided["decision"], "interrupt");
    assert_eq!((&decided["replay_stored"], &decided["replay_now"]), (&json!("safe"), &json!("never")));
    assert_eq!(sandbox.last("s")["decisions"][0]["replay_now"], "never");
}

/// Not known when it was stored, safe by now: a policy never upgrades.
#[test]
fn replay_stored_absent_now_safe() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "read", "replay": "safe"}]));
    claimed_and_dead(&sandbox, "grep", &[]);
    sandbox.policy(json!([{"tool": "grep", "replay": "safe"}]));
    let document = sandbox.recover_json(&Owner::start(), &[]);
    let decided = &document["decisions"][0];
    assert_eq!(decided["decision"], "interrupt");
    assert_eq!((&decided["replay_stored"], &decided["replay_now"]), (&json!("never"), &json!("safe")));
}

/// Cancelled work came back to life, since both policies say safe.
#[test]
fn replay_safe_but_turn_cancelled() {
    let sandbox = Sandbox::new();
    claimed_and_dead(&sandbox, "read", &[]);
    sandbox.run(["step", "cancel", "--session", "s", "--by", "ann"]).ok();
    let document = sandbox.recover_json(&Owner::start(), &[]);
    assert_eq!(decisions(&document), [("call_1".into(), "interrupt".into())]);
    let journal = sandbox.journal("s");
    let told = journal.iter().find(|record| record["kind"] == "interrupted").unwrap();
    assert!(told["explanation"].as_str().unwrap().contains("cancelled"), "{told}");
}

/// A batch of four: one answered, one claimed, one not, one claimed and safe. It was decided as a whole.
#[test]
fn parallel_batch_half_done() {
    let sandbox = Sandbox::new();
    sandbox.write("t.jsonl", text(&whole()));
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--tree", "t.jsonl"]);
    let calls = [("call_1", "read"), ("call_2", "bash"), ("call_3", "bash"), ("call_4", "read")];
    sandbox.announce(&ticket, &calls.map(|(id, tool)| (id, tool, json!({"for": id}))));
    for call in ["call_1", "call_2", "call_4"] {
        sandbox.step(&ticket, ["claim", call]).ok();
    }
    sandbox.step_in(&ticket, ["result", "call_1", "-"], "A").ok();
    owner.die();
    let document = sandbox.recover_json(&Owner::start(), &[]);
    let does: Vec<_> =
        document["calls"].as_array().unwrap().iter().map(|call| crate::kit::text(&call["do"])).collect();
    assert_eq!(does, ["redeliver", "redeliver", "run", "rerun"]);
    let decided = decisions(&document);
    for (id, decision) in [("call_2", "interrupt"), ("call_3", "run"), ("call_4", "rerun")] {
        assert!(decided.contains(&(id.into(), decision.into())), "{decided:?}");
    }
    let tree = sandbox.tree("t.jsonl");
    let results: Vec<_> = tree
        .iter()
        .skip(5)
        .filter(|line| line["message"]["role"] == "toolResult")
        .map(|line| line["message"]["toolCallId"].clone())
        .collect();
    assert_eq!(results, ["call_1", "call_2"], "in the order of the calls, the others when they come");
}

/// A call that kills its agent each time was run for ever.
#[test]
fn recover_does_not_feed_a_crash_loop() {
    let sandbox = Sandbox::new();
    claimed_and_dead(&sandbox, "read", &[]);
    // The first attempt has the model's message; then come five without progress, since a claim is none.
    for attempt in 2..=6 {
        let owner = Owner::start();
        let ticket = sandbox.recover(&owner, "s", &[]);
        assert!(ticket.ends_with(&format!(":{attempt}")), "{ticket}");
        sandbox.step(&ticket, ["claim", "call_1"]).ok();
        owner.die();
    }
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    sandbox.run(["recover", "s", "--owner-pid", &pid]).exits(14);
    assert_eq!(sandbox.last("s")["kind"], "parked");
    sandbox.unchanged("s", || sandbox.run(["recover", "s", "--owner-pid", &pid]).exits(14));
    let status = sandbox.run(["--json", "inspect", "s"]).ok().json();
    assert_eq!((&status["state"], &status["next"]["do"]), (&json!("parked"), &json!("unpark")));
    assert_eq!(status["calls"][0]["attempt"], 6);
    let messages = sandbox.kinds("s").iter().filter(|kind| *kind == "message").count();
    assert_eq!(messages, 1, "the conversation does not grow");
}

/// The job went on and finished after its call was settled: two results, or the first one replaced.
#[test]
fn late_result_after_interrupted() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    sandbox.announce(&ticket, &[("call_1", "bash", json!({}))]);
    sandbox.step(&ticket, ["claim", "call_1"]).ok();
    owner.die();
    let next = Owner::start();
    sandbox.recover(&next, "s", &[]);
    sandbox.step_in(&ticket, ["result", "call_1", "-"], "finished after all").exits(5);
    let late = sandbox.last("s");
    assert_eq!(late["kind"], "straggler");
    assert!(late["content"].to_string().contains("finished after all"));
    assert!(!sandbox.kinds("s").contains(&"result".to_owned()));
    sandbox.run(["verify", "s"]).ok();
    let status = sandbox.run(["--json", "inspect", "s"]).ok().json();
    assert_eq!(status["calls"][0]["state"], "interrupted");
}

/// Two drivers took the same call.
#[test]
fn second_claim_while_claimed() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    sandbox.announce(&ticket, &[("call_1", "bash", json!({}))]);
    sandbox.step(&ticket, ["claim", "call_1"]).ok();
    sandbox.unchanged("s", || {
        sandbox.step(&ticket, ["claim", "call_1"]).exits(7);
        sandbox.step(&ticket, ["run", "call_1", "--", "touch", "ran"]).exits(7);
    });
    assert!(!sandbox.path("ran").exists());
    sandbox.run(["verify", "s"]).ok();
}

/// A provider numbers its calls anew in each turn: the result of one was delivered for the other.
#[test]
fn tool_call_ids_reused_across_turns() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let first = sandbox.admit(&owner, "s", &["--text", "one"]);
    sandbox.announce(&first, &[("call_0", "read", json!({"path": "a"}))]);
    sandbox.step(&first, ["claim", "call_0"]).ok();
    sandbox.step_in(&first, ["result", "call_0", "-"], "A").ok();
    sandbox.announce(&first, &[]);
    sandbox.step(&first, ["settle"]).ok();
    let second = sandbox.admit(&owner, "s", &["--text", "two"]);
    sandbox.announce(&second, &[("call_0", "bash", json!({"command": "make"}))]);
    sandbox.step(&second, ["claim", "call_0"]).ok();
    owner.die();
    let document = sandbox.recover_json(&Owner::start(), &[]);
    assert_eq!(decisions(&document), [("call_0".into(), "interrupt".into())]);
    let journal = sandbox.journal("s");
    let keys: std::collections::HashSet<_> = journal
        .iter()
        .filter(|record| record["kind"] == "claimed")
        .map(|record| record["key"].to_string())
        .collect();
    assert_eq!(keys.len(), 2);
}

/// Calls without ids were accepted, and the resume failed.
#[test]
fn empty_tool_call_id() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    let message = crate::kit::assistant(
        "",
        &[("", "bash", json!({"command": "a"})), ("", "bash", json!({"command": "b"}))],
    )
    .to_string();
    sandbox.unchanged("s", || {
        sandbox.step_in(&ticket, ["message", "-"], message.clone()).exits(2).says("--assign-ids")
    });
    let seq = sandbox.step_in(&ticket, ["message", "--assign-ids", "-"], message).ok().seq();
    let calls = sandbox.last("s")["calls"].clone();
    assert_eq!(calls[1]["ref"], format!("{seq}.1"));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
}

/// A message was cut off in the middle of an argument, and half of it ran.
#[test]
fn truncated_assistant_message_with_calls() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    for (stop, call) in [("length", "call_1"), ("aborted", "call_2")] {
        let message = assistant_ending(stop, "", &[(call, "bash", json!({"command": "rm -rf /va"}))]);
        sandbox.step_in(&ticket, ["message", "-"], message.to_string()).ok();
        assert_eq!(
            (&sandbox.last("s")["kind"], &sandbox.last("s")["why"]),
            (&json!("not_run"), &json!("cut_off"))
        );
        sandbox.unchanged("s", || sandbox.step(&ticket, ["run", call, "--", "touch", "ran"]).exits(10));
    }
    owner.die();
    let document = sandbox.recover_json(&Owner::start(), &[]);
    assert_eq!(document["state"], "open");
    assert_eq!(document["next"]["do"], "call_model");
    assert!(!sandbox.path("ran").exists());
}

/// A new message landed between a call and its result.
#[test]
fn admit_while_a_turn_is_open() {
    let sandbox = Sandbox::new();
    claimed_and_dead(&sandbox, "bash", &[]);
    let ran = sandbox.unchanged("s", || {
        sandbox.run(["--json", "admit", "s", "--text", "Next.", "--owner-pid", "none"]).exits(4)
    });
    let error = ran.json();
    assert_eq!(error["exit"], 4);
    assert!(error["hint"].as_str().unwrap().contains("recover"), "{error}");
}

/// A turn was settled in the journal and its last entries were missing from the session file.
#[test]
fn settled_turn_missing_from_session() {
    let sandbox = Sandbox::new();
    sandbox.write("t.jsonl", text(&whole()));
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--tree", "t.jsonl", "--delivery", "d1"]);
    sandbox.announce(&ticket, &[]);
    sandbox.step(&ticket, ["settle"]).ok();
    owner.die();
    sandbox.run(["verify", "s", "--with-tree"]).exits(13);
    sandbox.recover(&Owner::start(), "s", &[]);
    let tree = std::fs::read(sandbox.path("t.jsonl")).unwrap();
    sandbox.recover(&Owner::start(), "s", &[]);
    assert!(tree == std::fs::read(sandbox.path("t.jsonl")).unwrap(), "nothing is written twice");
    sandbox.run(["verify", "s", "--with-tree"]).ok();
}

/// A journal cut at every byte of its last record, in the middle of characters too.
#[test]
fn journal_torn_in_multibyte() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let first = sandbox.admit(&owner, "s", &[]);
    sandbox.announce(&first, &[]);
    sandbox.step(&first, ["settle"]).ok();
    sandbox.run(["admit", "s", "--text", "結果をまとめて", "--owner-pid", "none"]).ok();
    let whole = sandbox.journal_bytes("s");
    let lines = crate::fixtures::journal::offsets(&whole);
    let admitted = &whole[..lines[lines.len() - 2]];
    let from = lines[lines.len() - 3];
    let path = sandbox.journal_path("s");
    let texts = admitted
        .windows("結果をまとめて".len())
        .position(|window| window == "結果をまとめて".as_bytes())
        .unwrap();
    // Every byte of the text, and every seventh of the rest.
    let cuts = (from + 1..admitted.len()).filter(|cut| (texts..texts + 21).contains(cut) || cut % 7 == 0);
    for cut in cuts.chain([admitted.len() - 1]) {
        std::fs::write(&path, &admitted[..cut]).unwrap();
        let ran = sandbox.unchanged("s", || sandbox.run(["--json", "verify", "s"]).exits(13));
        let torn = cut < admitted.len() - 1;
        let finding = ran.json()["findings"][0].clone();
        assert_eq!(finding["name"], if torn { "torn-tail" } else { "missing-newline" }, "cut at {cut}");
        if torn {
            assert_eq!((&finding["offset"], &finding["bytes"]), (&json!(from), &json!(cut - from)));
        }
    }
    for cut in [texts + 1, admitted.len() - 1] {
        std::fs::write(&path, &admitted[..cut]).unwrap();
        let code = sandbox.run(["recover", "s", "--owner-pid", "none"]).code();
        assert_eq!(code, if cut == texts + 1 { 10 } else { 0 });
        sandbox.run(["verify", "s"]).ok();
        assert_eq!(sandbox.kinds("s").contains(&"repaired".to_owned()), cut == texts + 1);
    }
}

/// Whole lines were removed from the end: the chain alone calls it sound.
#[test]
fn journal_tail_cut_on_a_line() {
    let sandbox = Sandbox::new();
    sandbox.write("t.jsonl", text(&whole()));
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--tree", "t.jsonl", "--tree-mode", "append"]);
    sandbox.announce(&ticket, &[("call_1", "bash", json!({}))]);
    sandbox.step(&ticket, ["claim", "call_1"]).ok();
    sandbox.step_in(&ticket, ["result", "call_1", "-"], "x").ok();
    let last = sandbox.last("s");
    let head = format!("{}:{}", last["seq"], last["hash"].as_str().unwrap());
    let whole = sandbox.journal_bytes("s");
    let lines = crate::fixtures::journal::offsets(&whole);
    for (cut, alone) in [(1, 0), (3, 0), (lines.len() - 1, 13)] {
        std::fs::write(sandbox.journal_path("s"), &whole[..lines[lines.len() - 1 - cut]]).unwrap();
        let ran = sandbox.run(["--json", "verify", "s"]).exits(alone);
        assert!(ran.json()["proves"].as_str().unwrap().contains("not that none were removed"));
        sandbox.run(["verify", "s", "--expect-head", &head]).exits(6);
        // Where the genesis is gone too, only a marker names the session.
        if alone == 0 {
            sandbox.run(["verify", "s", "--with-tree"]).exits(3);
        }
    }
}

/// A journal of a newer version was called corrupt, or its unknown fields were dropped.
#[test]
fn journal_from_the_future() {
    let sandbox = Sandbox::new();
    let make = |change: &dyn Fn(&mut Journal)| {
        let mut journal = Journal::opened("s");
        journal.admit("t1", None, "\"Do it\"", "");
        change(&mut journal);
        journal.bytes
    };
    let put = |bytes: Vec<u8>| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::create_dir_all(sandbox.root().join("sessions")).unwrap();
        std::fs::write(sandbox.journal_path("s"), bytes).unwrap();
        std::fs::set_permissions(sandbox.journal_path("s"), std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    let admit = ["admit", "s", "--text", "x", "--owner-pid", "none"];
    let mut newer = Journal::opened("s");
    newer.bytes.clear();
    newer.seq = 0;
    newer.raw(&format!(r#"{{"seq":0,"at":"2025-01-05T09:00:00.000000Z","kind":"opened","format":"turnkeep/2","session":"s","base":0,"prev":"{}""#, "0".repeat(64)));
    put(newer.bytes);
    sandbox.unchanged_files(|| {
        let said = sandbox.run(["verify", "s"]).exits(12);
        assert!(said.stdout.contains("turnkeep/2") && said.stdout.contains("turnkeep/1"), "{}", said.stdout);
        sandbox.run(admit).exits(12);
        sandbox.run(["recover", "s", "--owner-pid", "none"]).exits(12);
    });
    // Our version holds no kind and no field that it does not know.
    put(make(&|journal| _ = journal.add("novelty", r#""turn":"t1""#)));
    sandbox.unchanged_files(|| {
        sandbox.run(["verify", "s"]).exits(3);
        sandbox.run(admit).exits(3);
        sandbox.run(["--json", "inspect", "s"]).exits(3);
    });
    put(make(&|journal| _ = journal.add("cancelled", r#""turn":"t1","by":"ann","mood":1"#)));
    sandbox.unchanged_files(|| sandbox.run(["verify", "s"]).exits(3));
}

/// Arguments were parsed and printed again: digits lost, keys sorted.
#[test]
fn numbers_and_key_order() {
    let sandbox = Sandbox::new();
    let args =
        r#"{"z":2512292042121000001,"a":18446744073709551616,"f":1e400,"one":1.0,"neg":-0,"hex":"\u0041"}"#;
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    let message = format!(
        r#"{{"role":"assistant","content":[{{"type":"toolCall","id":"call_1","name":"bash","arguments":{args}}}],"stopReason":"toolUse"}}"#
    );
    sandbox.step_in(&ticket, ["message", "-"], message).ok();
    let journal = String::from_utf8(sandbox.journal_bytes("s")).unwrap();
    assert!(journal.contains(args));
    let shown = sandbox.run(["--json", "inspect", "s"]).ok();
    assert!(shown.stdout.contains(args));
    sandbox.step(&ticket, ["run", "call_1", "--", "sh", "-c", "cat >args"]).ok();
    assert_eq!(std::fs::read_to_string(sandbox.path("args")).unwrap().trim_end(), args);
    owner.die();
    let recovered = sandbox.run(["--json", "recover", "s", "--owner-pid", "none"]).ok();
    assert!(recovered.stdout.contains(args));
}
