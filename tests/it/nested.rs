//! Calls nested in calls: declared by the tool that they are nested in, never run by themselves.

use crate::kit::{Owner, Sandbox};
use serde_json::json;

fn declare<'a>(id: &'a str, tool: &'a str, parent: &'a str) -> Vec<&'a str> {
    vec!["claim", id, "--tool", tool, "--args", "{}", "--parent", parent]
}

#[test]
fn one_that_waits_for_approval_is_asked_about_while_its_parent_runs() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "deploy", "replay": "never", "approval": "required"}]));
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    sandbox.announce(&ticket, &[("outer", "code", json!({}))]);
    sandbox.step(&ticket, ["claim", "outer"]).ok();
    sandbox.step(&ticket, declare("inner", "deploy", "outer")).exits(11);
    let next =
        || sandbox.run(["inspect", "s", "--next"]).ok().stdout.lines().next().unwrap_or_default().to_owned();
    assert_eq!(next(), "ask");
    // The living owner that asks again keeps it.
    let pid = owner.pid().to_string();
    sandbox.run(["recover", "s", "--owner-pid", &pid]).ok();
    assert_eq!(next(), "ask");
    approve_inner(&sandbox);
    assert_eq!(next(), "await");
    sandbox.step(&ticket, declare("inner", "deploy", "outer")).ok();
    sandbox.step_in(&ticket, ["result", "inner", "-"], "deployed").ok();
    sandbox.step_in(&ticket, ["result", "outer", "-"], "ran").ok();
    assert_eq!(next(), "call_model");
    assert_eq!(sandbox.run(["verify", "s"]).code(), 0);
}

#[test]
fn behind_a_crash_they_are_closed_and_their_parent_is_bold_only_if_they_are() {
    for (inner, outer) in [("never", "interrupt"), ("safe", "rerun")] {
        let sandbox = Sandbox::new();
        sandbox.policy(json!([{"tool": "code", "replay": "safe"}, {"tool": "step", "replay": inner}]));
        let owner = Owner::start();
        let ticket = sandbox.admit(&owner, "s", &[]);
        sandbox.announce(&ticket, &[("outer", "code", json!({}))]);
        sandbox.step(&ticket, ["claim", "outer"]).ok();
        sandbox.step(&ticket, declare("inner", "step", "outer")).ok();
        owner.die();
        let status = sandbox.run(["recover", "s", "--owner-pid", "none", "--json"]).ok().json();
        let decided: Vec<_> =
            status["decisions"].as_array().unwrap().iter().map(|one| one["decision"].clone()).collect();
        assert_eq!(decided, [json!(outer), json!("interrupt")], "inner {inner}");
        let why = status["decisions"][0]["why"].as_str().unwrap();
        assert!(why.contains("replay stored safe, now safe"), "{why}");
        assert_eq!(why.contains("nested in it"), inner == "never", "{why}");
        assert_eq!(sandbox.run(["verify", "s"]).code(), 0);
    }
}

#[test]
fn nothing_is_nested_in_a_call_that_is_over() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    sandbox.announce(&ticket, &[("outer", "code", json!({}))]);
    sandbox.step(&ticket, ["claim", "outer"]).ok();
    sandbox.step_in(&ticket, ["result", "outer", "-"], "ran").ok();
    sandbox.unchanged("s", || {
        sandbox.step(&ticket, declare("inner", "read", "outer")).exits(6).says("answered already");
    });
}

/// Under other keys, and whatever became of the old ones, which keep their answers and their refs.
#[test]
fn a_rerun_declares_its_nested_calls_anew() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "code", "replay": "safe"}, {"tool": "step", "replay": "safe"}]));
    let owner = Owner::start();
    let first = sandbox.admit(&owner, "s", &["--turn", "t"]);
    sandbox.announce(&first, &[("outer", "code", json!({}))]);
    sandbox.step(&first, ["claim", "outer"]).ok();
    let declare = |ticket: &str, id: &str, args: &str, parent: &str| {
        sandbox.step(ticket, ["claim", id, "--tool", "step", "--args", args, "--parent", parent])
    };
    declare(&first, "done", "{}", "outer").ok();
    sandbox.step_in(&first, ["result", "done", "-"], "the first time").ok();
    declare(&first, "open", "{}", "outer").ok();
    declare(&first, "deep", "{}", "open").ok();
    let old = sandbox.journal("s");
    let old_key = |id: &str| {
        let intent = old.iter().find(|record| record["kind"] == "intent" && record["id"] == id).unwrap();
        (intent["seq"].clone(), intent["key"].clone())
    };
    owner.die();
    for attempt in [2, 3] {
        let owner = Owner::start();
        let ticket = sandbox.recover(&owner, "s", &[]);
        assert_eq!(ticket, format!("s:t:{attempt}"));
        // Before the rerun is claimed the old ones are meant.
        declare(&ticket, "done", "{}", "outer").exits(10);
        sandbox.step(&ticket, ["claim", "outer"]).ok();
        for (id, args, parent) in
            [("done", "{}", "outer"), ("open", "{\"n\":2}", "outer"), ("deep", "{}", "open")]
        {
            declare(&ticket, id, args, parent).ok();
            let intent = sandbox.journal("s").into_iter().rfind(|record| record["kind"] == "intent").unwrap();
            assert_eq!(intent["id"], id);
            assert_ne!((intent["seq"].clone(), intent["key"].clone()), old_key(id));
            // From now on it is the one that is meant.
            declare(&ticket, id, args, parent).exits(7);
            declare(&ticket, id, "{\"n\":3}", parent).exits(6);
        }
        owner.die();
    }
    let owner = Owner::start();
    let ticket = sandbox.recover(&owner, "s", &[]);
    sandbox.step(&ticket, ["claim", "outer"]).ok();
    declare(&ticket, "done", "{}", "outer").ok();
    sandbox.step_in(&ticket, ["result", "done", "-"], "again").ok();
    declare(&ticket, "done", "{}", "outer").exits(10);
    let answer = |call: &str| sandbox.run(["inspect", "s", "--call", call]).ok().stdout;
    assert!(answer("done").ends_with("):\nagain\n"), "{}", answer("done"));
    let oldest = answer(&format!("{}.0", old_key("done").0));
    assert!(oldest.ends_with("):\nthe first time\n"), "{oldest}");
    sandbox.step_in(&ticket, ["result", "outer", "-"], "ran").ok();
    assert_eq!(sandbox.run(["verify", "s"]).code(), 0);
}

/// A sandbox in which `code` may be rerun, with an announced and claimed call `outer` of it.
fn around(replay: &str, inner: serde_json::Value) -> (Sandbox, Owner, String) {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "code", "replay": replay, "unknown": "hold"}, inner]));
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t"]);
    sandbox.announce(&ticket, &[("outer", "code", json!({}))]);
    sandbox.step(&ticket, ["claim", "outer"]).ok();
    (sandbox, owner, ticket)
}

/// The same, and a call `inner` nested in it, of the same policy, that a remote executor has.
fn around_dispatched(replay: &str) -> (Sandbox, Owner) {
    let inner = json!({"tool": "step", "replay": replay, "approval": "required"});
    let (sandbox, owner, ticket) = around(replay, inner);
    sandbox.step(&ticket, declare("inner", "step", "outer")).exits(11);
    approve_inner(&sandbox);
    sandbox.step(&ticket, ["dispatch", "inner", "--to", "far"]).ok();
    (sandbox, owner)
}

fn approve_inner(sandbox: &Sandbox) {
    sandbox.run(["step", "approve", "inner", "--by", "ada", "--session", "s"]).ok();
}

fn intents(sandbox: &Sandbox, id: &str) -> Vec<serde_json::Value> {
    let named = |record: &serde_json::Value| record["kind"] == "intent" && record["id"] == id;
    sandbox.journal("s").into_iter().filter(named).collect()
}

fn name(intent: &serde_json::Value) -> String {
    format!("{}.0", intent["seq"])
}

#[test]
fn one_declared_before_the_rerun_is_claimed_belongs_to_it() {
    let (sandbox, owner, _) = around("safe", json!({"tool": "step", "replay": "safe"}));
    owner.die();
    let owner = Owner::start();
    let ticket = sandbox.recover(&owner, "s", &[]);
    sandbox.step(&ticket, declare("inner", "step", "outer")).ok();
    sandbox.step(&ticket, declare("inner", "step", "outer")).exits(7);
    sandbox.step(&ticket, ["claim", "outer"]).ok();
    sandbox.step(&ticket, declare("inner", "step", "outer")).exits(7);
    sandbox.step_in(&ticket, ["result", "inner", "-"], "once").ok();
    sandbox.step(&ticket, declare("inner", "step", "outer")).exits(10);
    assert_eq!(intents(&sandbox, "inner").len(), 1);
    assert_eq!(sandbox.run(["verify", "s"]).code(), 0);
}

/// Who says that the parent was not applied does not say so of what it had begun.
#[test]
fn a_parent_found_not_applied_declares_anew_what_may_run_again() {
    for (replay, told) in [("safe", true), ("never", true), ("never", false)] {
        let (sandbox, owner, ticket) = around("never", json!({"tool": "step", "replay": replay}));
        sandbox.step(&ticket, declare("inner", "step", "outer")).ok();
        if told {
            sandbox.step_in(&ticket, ["result", "inner", "-"], "the first time").ok();
        }
        owner.die();
        // The parent is held, and without a result the nested call is interrupted first.
        sandbox.run(["recover", "s", "--owner-pid", "none"]).exits(if told { 14 } else { 0 });
        not_applied(&sandbox, "outer");
        let owner = Owner::start();
        let ticket = sandbox.recover(&owner, "s", &[]);
        sandbox.step(&ticket, declare("inner", "step", "outer")).exits(10);
        sandbox.step(&ticket, ["claim", "outer"]).ok();
        let again = sandbox.step(&ticket, declare("inner", "step", "outer"));
        if replay == "safe" {
            again.ok();
            sandbox.step(&ticket, declare("inner", "step", "outer")).exits(7);
            let [first, second] = &intents(&sandbox, "inner")[..] else { panic!("two intents") };
            assert_ne!(first["key"], second["key"]);
        } else {
            let said = if told { "the first time" } else { "unknown" };
            assert!(again.exits(10).stdout.contains(said), "{replay} {told}");
            sandbox.step(&ticket, ["claim", "inner", "--tool", "step", "--parent", "outer"]).exits(10);
            let other = ["claim", "inner", "--tool", "step", "--args", "[1]", "--parent", "outer"];
            sandbox.step(&ticket, other).exits(6);
            assert_eq!(intents(&sandbox, "inner").len(), 1);
        }
        assert_eq!(sandbox.run(["verify", "s"]).code(), 0);
    }
}

fn not_applied(sandbox: &Sandbox, call: &str) {
    sandbox
        .run(["step", "reconcile", call, "--outcome", "not_applied", "--by", "ada", "--session", "s"])
        .ok();
}

/// What an earlier run began, and nobody knows the end of, is looked up first, whatever became of its parent.
#[test]
fn one_that_an_earlier_run_left_open_is_not_begun_anew() {
    let (sandbox, owner) = around_dispatched("never");
    owner.die();
    sandbox.run(["recover", "s"]).exits(14);
    not_applied(&sandbox, "outer");
    let owner = Owner::start();
    let ticket = sandbox.recover(&owner, "s", &[]);
    sandbox.step(&ticket, ["claim", "outer"]).ok();
    let old = name(&intents(&sandbox, "inner")[0]);
    let hint = format!("step reconcile {old}");
    sandbox.unchanged("s", || {
        sandbox.step(&ticket, declare("inner", "step", "outer")).exits(7).says("dispatched").says(&hint);
    });
    not_applied(&sandbox, &old);
    sandbox.step(&ticket, declare("inner", "step", "outer")).exits(11);
    assert_eq!(intents(&sandbox, "inner").len(), 2);
    assert_eq!(sandbox.run(["verify", "s"]).code(), 0);
}

#[test]
fn an_id_stays_with_the_call_in_which_it_was_first_declared() {
    let (sandbox, owner, ticket) = around("safe", json!({"tool": "step", "replay": "safe"}));
    for id in ["one", "two"] {
        sandbox.step(&ticket, declare(id, "step", "outer")).ok();
    }
    owner.die();
    let owner = Owner::start();
    let ticket = sandbox.recover(&owner, "s", &[]);
    sandbox.step(&ticket, ["claim", "outer"]).ok();
    sandbox.step(&ticket, declare("one", "step", "outer")).ok();
    sandbox.unchanged("s", || {
        sandbox.step(&ticket, declare("two", "step", "one")).exits(6).says("nested in");
        sandbox.step(&ticket, ["claim", "two", "--tool", "step", "--args", "{}"]).exits(6).says("nested in");
        sandbox.step(&ticket, ["run", "--tool", "step", "two", "--", "true"]).exits(6);
    });
    sandbox.step(&ticket, ["claim", "three", "--tool", "step", "--args", "{}"]).ok();
    sandbox.step(&ticket, declare("three", "step", "outer")).exits(6).says("nested in no call");
}

/// A remote executor may still be at what an earlier run sent to it; that has its ref.
#[test]
fn a_word_names_what_the_newest_run_declared() {
    for begin in ["claim", "dispatch"] {
        let (sandbox, owner) = around_dispatched("safe");
        owner.die();
        let owner = Owner::start();
        let ticket = sandbox.recover(&owner, "s", &[]);
        let far = if begin == "dispatch" { &["--to", "far"][..] } else { &[] };
        sandbox.step(&ticket, [&[begin, "outer"], far].concat()).ok();
        sandbox.step(&ticket, declare("inner", "step", "outer")).exits(11);
        approve_inner(&sandbox);
        sandbox.step(&ticket, declare("inner", "step", "outer")).ok();
        let [old, new] = &intents(&sandbox, "inner")[..] else { panic!("two intents, begun by {begin}") };
        sandbox.step_in(&ticket, ["result", "inner", "-"], "near").ok();
        assert_eq!(sandbox.last("s")["ref"], name(new));
        assert_eq!(sandbox.step(&ticket, declare("inner", "step", "outer")).exits(10).stdout, "near");
        sandbox.step_in(&ticket, ["result", &name(old), "-"], "far").ok();
        assert_eq!(sandbox.last("s")["ref"], name(old));
        assert!(sandbox.run(["inspect", "s", "--call", "inner"]).ok().stdout.contains("near"));
        assert_eq!(sandbox.run(["verify", "s"]).code(), 0);
    }
}

#[test]
fn a_failure_that_is_tried_again_declares_them_anew() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "step", "replay": "safe"}]));
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    let declares = "turnkeep step --ticket \"$1\" claim inner --tool step --parent outer
        echo \"try $2\" | turnkeep step --ticket \"$1\" result inner -
        exit \"$2\"";
    sandbox.script("tool.sh", declares);
    let run = |end: &str| {
        let words = ["run", "--tool", "code", "--args", "{}", "--retry-failed", "outer", "--", "./tool.sh"];
        sandbox.step(&ticket, [&words[..], &[&ticket, end]].concat()).exits(end.parse().unwrap())
    };
    run("1");
    run("0");
    assert_eq!(intents(&sandbox, "inner").len(), 2);
    assert!(sandbox.run(["inspect", "s", "--call", "inner"]).ok().stdout.contains("try 0"));
    assert_eq!(sandbox.run(["verify", "s"]).code(), 0);
}
