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
    sandbox.run(["step", "approve", "inner", "--by", "ada", "--session", "s"]).ok();
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
