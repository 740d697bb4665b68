//! `step settle`: the end of a turn.

use crate::kit::{Owner, Sandbox, assistant, assistant_ending, at, text};
use serde_json::json;

fn ticket(sandbox: &Sandbox, more: &[&str]) -> String {
    sandbox.run([&["admit", "s", "--turn", "t", "--text", "Hi"], more].concat()).ok().line()
}

#[test]
fn the_reply_is_the_last_model_message() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox, &["--delivery", "k"]);
    let body = assistant("Done.", &[]);
    sandbox.step_in(&ticket, ["message", "-"], body.to_string()).ok();
    let seq = sandbox.step(&ticket, ["settle"]).ok().seq();
    let record = sandbox.last("s");
    assert_eq!((&record["status"], &record["reply"]), (&json!("completed"), &body));
    sandbox.unchanged("s", || {
        assert_eq!(sandbox.step(&ticket, ["settle"]).ok().repeated(), seq);
        assert_eq!(sandbox.step(&ticket, ["settle", "--status", "completed"]).ok().repeated(), seq);
        sandbox.step(&ticket, ["--json", "settle", "--status", "failed"]).exits(6).error("settled");
        sandbox.step(&ticket, ["settle", "--reason", "x"]).exits(6);
        sandbox.step_in(&ticket, ["settle", "-"], "another reply").exits(6);
        sandbox.step(&ticket, ["settle", "--status", "done"]).exits(2);
    });
    // Settled and not closed: nothing of the conversation is accepted any more.
    sandbox.unchanged("s", || {
        sandbox.step_in(&ticket, ["message", "-"], assistant("More.", &[]).to_string()).exits(6);
        sandbox.step(&ticket, ["claim", "x", "--tool", "bash"]).exits(6);
        sandbox.run(["step", "cancel", "--by", "ann", "--session", "s:t"]).exits(6);
        sandbox.run(["step", "steer", "--text", "x", "--session", "s:t"]).exits(6);
    });
    sandbox.step(&ticket, ["heartbeat"]).ok();
    sandbox.step(&ticket, ["note", "-"]).ok();
}

#[test]
fn settling_repeats_after_the_turn_is_closed_too() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox, &[]);
    sandbox.step_in(&ticket, ["message", "-"], assistant("Done.", &[]).to_string()).ok();
    let seq = sandbox.step(&ticket, ["settle"]).ok().seq();
    sandbox.unchanged("s", || {
        let document = sandbox.step(&ticket, ["--json", "settle"]).ok().json();
        assert_eq!(at(&document, "/receipt/repeated"), true);
        assert_eq!(at(&document, "/receipt/seq"), seq);
        assert_eq!(at(&document, "/state"), "closed");
        sandbox.step(&ticket, ["settle", "--status", "failed"]).exits(6);
    });
    let next = sandbox.run(["admit", "s", "--text", "Next"]).ok().line();
    sandbox.step(&next, ["settle"]).ok();
    sandbox.unchanged("s", || {
        let document = sandbox.step(&ticket, ["--json", "settle"]).ok().json();
        assert_eq!(at(&document, "/receipt/seq"), seq);
        assert_eq!(at(&document, "/turn"), "t");
        assert_eq!(at(&document, "/state"), "closed");
    });
}

#[test]
fn a_file_that_is_another_message_is_recorded_first() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox, &[]);
    let body = assistant("Done.", &[]);
    let seq = sandbox.step_in(&ticket, ["settle", "-"], body.to_string()).ok().seq();
    assert_eq!(sandbox.kinds("s")[3..], ["message", "settled"]);
    assert_eq!(sandbox.last("s")["reply"], body);
    sandbox.unchanged("s", || {
        assert_eq!(sandbox.step_in(&ticket, ["settle", "-"], body.to_string()).ok().repeated(), seq);
    });
}

#[test]
fn a_file_that_is_the_last_message_is_not_recorded_again() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox, &[]);
    let body = assistant("Done.", &[]).to_string();
    sandbox.step_in(&ticket, ["message", "-"], body.clone()).ok();
    sandbox.step_in(&ticket, ["settle", "-"], body.clone()).ok();
    assert_eq!(sandbox.kinds("s")[3..], ["message", "settled"]);
}

#[test]
fn a_file_may_be_any_reply() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox, &[]);
    sandbox.step_in(&ticket, ["settle", "-"], "plain text\n").ok();
    assert_eq!(sandbox.last("s")["reply"], "plain text\n");
    assert_eq!(sandbox.kinds("s")[3..], ["settled"]);
}

#[test]
fn a_message_with_calls_ends_no_turn() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox, &[]);
    sandbox.unchanged("s", || {
        let body = assistant("", &[("c1", "bash", json!({}))]).to_string();
        sandbox.step_in(&ticket, ["--json", "settle", "-"], body).exits(6).error("message_refused");
        let body = assistant_ending("error", "", &[]).to_string();
        sandbox.step_in(&ticket, ["settle", "-"], body).exits(6);
    });
}

#[test]
fn failed_and_cancelled_close_what_is_open_first() {
    for (status, why) in [("failed", "refused"), ("cancelled", "cancelled")] {
        let sandbox = Sandbox::new();
        let ticket = ticket(&sandbox, &["--delivery", "k"]);
        let seq = sandbox.announce(&ticket, &[("c1", "bash", json!({})), ("c2", "bash", json!({}))]);
        sandbox.step(&ticket, ["claim", "c1"]).ok();
        sandbox.unchanged("s", || sandbox.step(&ticket, ["settle"]).exits(6).says(&format!("{seq}.0")));
        let words = ["settle", "--status", status, "--reason", "gave up"];
        let settled = sandbox.step(&ticket, words).ok().seq();
        let records = sandbox.journal("s");
        let tail = &records[records.len() - 3..];
        assert_eq!((&tail[0]["kind"], &tail[0]["ref"]), (&json!("interrupted"), &json!(format!("{seq}.0"))));
        assert_eq!((&tail[1]["kind"], &tail[1]["why"]), (&json!("not_run"), &json!(why)));
        assert_eq!((&tail[2]["status"], &tail[2]["reason"]), (&json!(status), &json!("gave up")));
        assert!(tail[2].get("reply").is_none(), "only a completed turn takes the last message as its reply");
        let told = text(&tail[0]["explanation"]);
        assert!(told.contains("bash") && told.contains("unknown"), "{told}");
        // Without a reply there is nothing to deliver: the turn is closed.
        sandbox.unchanged("s", || {
            assert_eq!(sandbox.step(&ticket, words).ok().repeated(), settled);
            sandbox.step(&ticket, ["deliver", "--begin"]).exits(6);
        });
        sandbox.run(["admit", "s", "--text", "Next"]).ok();
    }
}

#[test]
fn a_failed_turn_may_say_why_to_the_user() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox, &["--delivery", "k"]);
    sandbox.announce(&ticket, &[("c1", "bash", json!({}))]);
    let body = assistant("It did not work.", &[]);
    sandbox.step_in(&ticket, ["settle", "--status", "failed", "-"], body.to_string()).ok();
    assert_eq!(sandbox.kinds("s")[4..], ["not_run", "message", "settled"]);
    assert_eq!(sandbox.last("s")["reply"], body);
    sandbox.step(&ticket, ["deliver", "--begin"]).ok();
}

#[test]
fn completed_waits_until_a_steered_input_was_seen() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox, &[]);
    sandbox.step_in(&ticket, ["message", "-"], assistant("Done.", &[]).to_string()).ok();
    sandbox.run(["step", "steer", "--text", "And this", "--session", "s"]).ok();
    sandbox.unchanged("s", || sandbox.step(&ticket, ["settle"]).exits(6).says("steered"));
    // The first message behind it may have been under way: it is not seen before another one.
    sandbox.step_in(&ticket, ["message", "-"], assistant("Done too.", &[]).to_string()).ok();
    sandbox.unchanged("s", || sandbox.step(&ticket, ["settle"]).exits(6));
    sandbox.step_in(&ticket, ["message", "-"], assistant("All done.", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
}

#[test]
fn a_script_without_a_model_settles_without_a_reply() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox, &["--delivery", "k"]);
    sandbox.step(&ticket, ["run", "--tool", "sh", "one", "--", "true"]).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    let status = sandbox.run(["--json", "admit", "s", "--delivery", "k", "--text", "Hi"]).exits(10).json();
    assert_eq!(status["state"], "closed");
}

#[test]
fn an_old_attempt_settles_nothing() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let old = sandbox.admit(&owner, "s", &["--turn", "t"]);
    owner.die();
    let owner = Owner::start();
    let new = sandbox.recover(&owner, "s", &[]);
    sandbox.step(&new, ["settle"]).ok();
    sandbox.unchanged("s", || {
        sandbox.step(&old, ["--json", "settle", "--status", "failed"]).exits(5).error("fenced");
        sandbox.step(&old, ["--json", "claim", "x"]).exits(5).error("fenced");
        sandbox.step_in(&old, ["--json", "note", "-"], "x").exits(5).error("fenced");
    });
}
