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
