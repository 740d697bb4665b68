//! `step message` and `step entry`: what was said.

use crate::kit::{
    Owner, Sandbox, assistant, assistant_ending, at, entry, header, small_tree, text, tool_result, user,
};
use serde_json::{Value, json};

fn ticket(sandbox: &Sandbox) -> String {
    sandbox.run(["admit", "s", "--turn", "t", "--text", "Hi"]).ok().line()
}

#[test]
fn intents_are_durable_with_the_message() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let seq = sandbox.announce(&ticket, &[("c1", "read", json!({"path": "a"})), ("c2", "bash", json!({}))]);
    let record = sandbox.last("s");
    assert_eq!(record["seq"], seq);
    assert_eq!((&record["format"], &record["role"]), (&json!("pi"), &json!("assistant")));
    let calls = record["calls"].as_array().unwrap();
    assert_eq!(calls[0]["ref"], format!("{seq}.0"));
    assert_eq!(calls[0]["id"], "c1");
    assert_eq!(calls[0]["replay"], "safe", "the built-in list");
    assert_eq!(calls[1]["replay"], "never");
    assert!(text(&calls[1]["key"]).starts_with("tk_") && text(&calls[1]["key"]).len() == 35);
    assert_eq!(text(&calls[1]["args_sha256"]), sha256(&sandbox, "{}"));
}

fn sha256(sandbox: &Sandbox, text: &str) -> String {
    let ran = sandbox.program("sha256sum", [""; 0]).stdin(text).go().ok();
    ran.stdout.split(' ').next().unwrap().to_owned()
}

#[test]
fn a_key_can_be_computed_by_anybody() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let seq = sandbox.announce(&ticket, &[("c1", "bash", json!({}))]);
    let genesis = text(&sandbox.journal("s")[0]["hash"]);
    let wanted = format!("tk_{}", &sha256(&sandbox, &format!("{genesis}:t:{seq}.0"))[..32]);
    assert_eq!(at(&sandbox.last("s"), "/calls/0/key"), &wanted);
}

#[test]
fn a_message_repeats_only_the_newest_record() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let body = assistant("", &[("c1", "bash", json!({}))]).to_string();
    let seq = sandbox.step_in(&ticket, ["message", "-"], body.clone()).ok().seq();
    sandbox.unchanged("s", || {
        let again = sandbox.step_in(&ticket, ["message", "-"], body.clone()).ok();
        assert_eq!(again.repeated(), seq);
        let spaced = body.replace("\":", "\" : ");
        assert_eq!(sandbox.step_in(&ticket, ["message", "-"], spaced).ok().repeated(), seq);
        // Another message while a call has no answer.
        let other = assistant("Other", &[]).to_string();
        let ran = sandbox.step_in(&ticket, ["--json", "message", "-"], other).exits(6);
        ran.error("message_refused");
    });
    let call = format!("{seq}.0");
    sandbox.step(&ticket, ["claim", &call]).ok();
    // It is no longer the newest record, and a call has no answer.
    sandbox.unchanged("s", || sandbox.step_in(&ticket, ["message", "-"], body.clone()).exits(6));
    sandbox.step_in(&ticket, ["result", &call, "-"], "ok").ok();
    // The model said the same again: that is another message.
    let second = sandbox.step_in(&ticket, ["message", "-"], body).ok();
    assert!(second.json().get("repeated").is_none());
    assert!(second.seq() > seq);
}

#[test]
fn a_cut_off_message_answers_its_calls_in_the_same_write() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    for stop in ["length", "error", "aborted"] {
        let body =
            assistant_ending(stop, "", &[("c1", "bash", json!({})), ("c2", "bash", json!({}))]).to_string();
        let seq = sandbox.step_in(&ticket, ["message", "-"], body.clone()).ok().seq();
        let records = sandbox.journal("s");
        let tail: Vec<_> =
            records[usize::try_from(seq).unwrap()..].iter().map(|record| text(&record["kind"])).collect();
        assert_eq!(tail, ["message", "not_run", "not_run"], "{stop}");
        assert_eq!(sandbox.last("s")["why"], "cut_off");
        sandbox.unchanged("s", || {
            assert_eq!(sandbox.step_in(&ticket, ["message", "-"], body).ok().repeated(), seq, "{stop}");
            sandbox.step(&ticket, ["claim", &format!("{seq}.0")]).exits(10);
            sandbox.step(&ticket, ["run", &format!("{seq}.0"), "--", "touch", "ran"]).exits(10);
        });
    }
    assert!(!sandbox.path("ran").exists());
}

#[test]
fn empty_and_doubled_ids_are_refused_unless_they_are_to_be_assigned() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let calls = [
        ("", "bash", json!({})),
        ("x", "bash", json!({})),
        ("x", "read", json!({})),
        ("", "read", json!({})),
    ];
    let body = assistant("", &calls).to_string();
    sandbox.unchanged("s", || {
        let ran = sandbox.step_in(&ticket, ["--json", "message", "-"], body.clone()).exits(2);
        let error = ran.error("bad_call_ids");
        assert!(text(&error["message"]).contains("0, 2, 3"), "{error}");
        ran.says("--assign-ids");
    });
    let seq = sandbox.step_in(&ticket, ["message", "--assign-ids", "-"], body.clone()).ok().seq();
    let record = sandbox.last("s");
    let ids: Vec<String> = record["calls"].as_array().unwrap().iter().map(|call| text(&call["id"])).collect();
    let mut unique = ids.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), 4, "{ids:?}");
    assert_eq!(ids[1], "x", "the first of doubled ids keeps it");
    assert_eq!(at(&record, "/message/content/0/id"), "", "the body stays as it came");
    sandbox.unchanged("s", || {
        assert_eq!(sandbox.step_in(&ticket, ["message", "--assign-ids", "-"], body).ok().repeated(), seq);
    });
    // Assigned ids name calls on the command line, and stand on the branch.
    sandbox.step(&ticket, ["claim", &ids[0]]).ok();
}

#[test]
fn assigned_ids_replace_the_bodys_on_the_branch() {
    let sandbox = Sandbox::new();
    let words = ["admit", "s", "--text", "Hi", "--tree", "chat.jsonl", "--tree-mode", "append"];
    let ticket = sandbox.run(words).ok().line();
    let body = assistant("", &[("", "bash", json!({}))]).to_string();
    let seq = sandbox.step_in(&ticket, ["message", "--assign-ids", "-"], body).ok().seq();
    let id = at(&sandbox.last("s"), "/calls/0/id").clone();
    sandbox.step(&ticket, ["claim", &format!("{seq}.0")]).ok();
    sandbox.step_in(&ticket, ["result", &format!("{seq}.0"), "-"], "ok").ok();
    let entries = sandbox.tree("chat.jsonl");
    assert_eq!(at(&entries[2], "/message/content/0/id"), &id);
    assert_eq!(at(&entries[3], "/message/toolCallId"), &id);
}

#[test]
fn each_format_is_recognized() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let anthropic = json!({"type": "message", "id": "msg_1", "role": "assistant", "model": "m", "stop_reason": "tool_use",
        "content": [{"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"b": 1, "a": 2}}]});
    let seq = sandbox.step_in(&ticket, ["message", "-"], anthropic.to_string()).ok().seq();
    assert_eq!(sandbox.last("s")["format"], "anthropic");
    sandbox.step(&ticket, ["result", &format!("{seq}.0"), "--not-run"]).ok();
    // A whole response, whose arguments are a string.
    let openai = json!({"object": "chat.completion", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
        "role": "assistant", "content": null,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": "{ \"b\": 1.0 }"}}]}}]});
    let seq = sandbox.step_in(&ticket, ["message", "-"], openai.to_string()).ok().seq();
    assert_eq!(sandbox.last("s")["format"], "openai-chat");
    assert_eq!(at(&sandbox.last("s"), "/calls/0/args_sha256"), &sha256(&sandbox, "{\"b\":1.0}"));
    sandbox.step(&ticket, ["claim", &format!("{seq}.0")]).ok();
    // Its result as a message of the provider's.
    let told = json!({"role": "tool", "tool_call_id": "call_1", "content": "42"});
    sandbox.step_in(&ticket, ["message", "-"], told.to_string()).ok();
    sandbox.unchanged("s", || {
        let stated = sandbox.step(&ticket, ["--json", "claim", &format!("{seq}.0")]).exits(10);
        stated.error("answered");
    });
    let responses = json!({"object": "response", "id": "r", "status": "completed", "output": [
        {"type": "function_call", "call_id": "call_2", "name": "bash", "arguments": "not json"}]});
    sandbox.step_in(&ticket, ["message", "-"], responses.to_string()).ok();
    assert_eq!(sandbox.last("s")["format"], "openai-responses");
    assert_eq!(at(&sandbox.last("s"), "/calls/0/args_sha256"), &sha256(&sandbox, "\"not json\""));
}

#[test]
fn what_is_no_message_is_refused_and_nothing_written() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    sandbox.unchanged("s", || {
        for body in ["", "hello", "{\"a\":1}", "{", "[]", "null", "{\"error\":{\"message\":\"overloaded\"}}"]
        {
            let ran = sandbox.step_in(&ticket, ["--json", "message", "-"], body).exits(2);
            assert_eq!(ran.json()["exit"], 2, "{body}");
        }
        sandbox.step(&ticket, ["--json", "message"]).exits(2).error("no_content");
        sandbox.step(&ticket, ["message", "--format", "xml", "-"]).exits(2);
        sandbox
            .step_in(&ticket, ["message", "--format", "anthropic", "-"], assistant("x", &[]).to_string())
            .exits(2);
    });
    let bare = json!({"content": [{"type": "text", "text": "x"}]}).to_string();
    sandbox.unchanged("s", || {
        sandbox.step_in(&ticket, ["message", "--format", "anthropic", "-"], bare.clone()).exits(2)
    });
    sandbox.step_in(&ticket, ["message", "--format", "anthropic", "--role", "assistant", "-"], bare).ok();
    assert_eq!(sandbox.last("s")["role"], "assistant");
}

#[test]
fn a_result_in_a_message_needs_a_claim() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let seq = sandbox.announce(&ticket, &[("c1", "bash", json!({}))]);
    let told = tool_result("c1", "bash", "ok", false).to_string();
    sandbox.unchanged("s", || {
        sandbox.step_in(&ticket, ["--json", "message", "-"], told.clone()).exits(6).error("unclaimed_result");
        let unknown = tool_result("c9", "bash", "ok", false).to_string();
        sandbox.step_in(&ticket, ["message", "-"], unknown).exits(6);
        let raw = entry("e1", None, &tool_result("c1", "bash", "ok", false)).to_string();
        sandbox.step_in(&ticket, ["--json", "entry", "-"], raw).exits(6).error("unclaimed_result");
    });
    sandbox.step(&ticket, ["claim", &format!("{seq}.0")]).ok();
    sandbox.step_in(&ticket, ["message", "-"], told).ok();
    let status = sandbox.step(&ticket, ["--json", "heartbeat"]).ok().json();
    assert_eq!(at(&status, "/calls/0/state"), "result");
}

#[test]
fn after_cancelled_a_message_with_calls_is_refused_unless_it_was_cut_off() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    sandbox.run(["step", "cancel", "--by", "ann", "--session", "s"]).ok();
    let calls = [("c1", "bash", json!({}))];
    sandbox.unchanged("s", || {
        // There is no call that could be answered first, so settling is what is left.
        let refused = sandbox.step_in(&ticket, ["message", "-"], assistant("", &calls).to_string()).exits(6);
        refused.says("hint: nothing may begin any more: `turnkeep step settle` ends the turn");
        let raw = entry("e1", None, &assistant("", &calls)).to_string();
        sandbox.step_in(&ticket, ["entry", "-"], raw).exits(6);
        sandbox.step(&ticket, ["claim", "d1", "--tool", "bash"]).exits(6);
        sandbox.step(&ticket, ["run", "--tool", "bash", "d1", "--", "touch", "ran"]).exits(125);
        sandbox.run(["step", "steer", "--session", "s", "--text", "More"]).exits(6);
    });
    assert!(!sandbox.path("ran").exists());
    sandbox.step_in(&ticket, ["message", "-"], assistant_ending("aborted", "", &calls).to_string()).ok();
    sandbox.step_in(&ticket, ["message", "-"], assistant("Stopped.", &[]).to_string()).ok();
    sandbox.unchanged("s", || sandbox.step(&ticket, ["settle", "--status", "completed"]).exits(6));
    sandbox.step(&ticket, ["settle"]).ok();
    assert_eq!(sandbox.last("s")["status"], "cancelled");
    assert!(sandbox.last("s").get("reply").is_none());
}

#[test]
fn entries_are_journaled_once_each() {
    let sandbox = Sandbox::new();
    sandbox.write("chat.jsonl", small_tree());
    let ticket = sandbox.run(["admit", "s", "--text", "Hi", "--tree", "chat.jsonl"]).ok().line();
    let asked = entry("b1", Some("a2"), &user("Hi"));
    let calls =
        entry("b2", Some("b1"), &assistant("", &[("c1", "bash", json!({})), ("c1", "bash", json!({}))]));
    let both = format!("{asked}\r\n\n{calls}\n");
    let seq = sandbox.step_in(&ticket, ["entry", "-"], both.clone()).ok().seq();
    let records = sandbox.journal("s");
    assert_eq!(records[3]["entry"], asked);
    assert!(records[3].get("calls").is_none());
    assert_eq!(records[4]["entry"], calls);
    assert_eq!(
        at(&records[4], "/calls/1/ref"),
        &format!("{seq}.1"),
        "doubled ids stand in the agent's file already"
    );
    sandbox.unchanged("s", || {
        assert_eq!(sandbox.step_in(&ticket, ["entry", "-"], both).ok().repeated(), seq);
        assert_eq!(sandbox.step_in(&ticket, ["entry", "-"], asked.to_string()).ok().repeated(), 3);
    });
    // By its place in the entry; the doubled id names no call.
    sandbox
        .unchanged("s", || sandbox.step(&ticket, ["--json", "claim", "c1"]).exits(2).error("ambiguous_call"));
    sandbox.step(&ticket, ["claim", "b2.1"]).ok();
    assert_eq!(sandbox.last("s")["ref"], format!("{seq}.1"));
    sandbox.step_in(&ticket, ["result", "b2.1", "-"], "ok").ok();
    sandbox.step(&ticket, ["claim", "c1"]).ok();
    assert_eq!(sandbox.last("s")["ref"], format!("{seq}.0"), "one live call has the id now");
}

#[test]
fn an_entry_id_of_decimal_digits_names_its_calls_too() {
    let sandbox = Sandbox::new();
    sandbox.write("chat.jsonl", small_tree());
    let ticket = sandbox.run(["admit", "s", "--text", "Hi", "--tree", "chat.jsonl"]).ok().line();
    // Pi's ids are eight hex digits, so about one in forty looks like this, and ENTRYID.POS then like a ref.
    let asked = entry("36550612", Some("a2"), &assistant("", &[("c1", "bash", json!({}))]));
    let seq = sandbox.step_in(&ticket, ["entry", "-"], asked.to_string()).ok().seq();
    sandbox.step(&ticket, ["claim", "36550612.0"]).ok();
    assert_eq!(sandbox.last("s")["ref"], format!("{seq}.0"));
    sandbox.step(&ticket, ["--json", "claim", "36550612.1"]).exits(8).error("no_call");
    sandbox.step(&ticket, ["--json", "claim", &format!("{seq}.1")]).exits(8).error("no_call");
}

#[test]
fn a_bad_line_among_entries_refuses_all_of_them() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let good = entry("b1", None, &user("Hi")).to_string();
    sandbox.unchanged("s", || {
        for bad in
            ["{", "[]", "{\"type\":\"message\"}", "{\"id\":\"x\"}", "{\"type\":\"message\",\"id\":\"x\"}"]
        {
            let ran = sandbox.step_in(&ticket, ["--json", "entry", "-"], format!("{good}\n{bad}\n")).exits(2);
            assert!(text(&ran.error("bad_entry")["message"]).contains("line 2"), "{bad}: {}", ran.stdout);
        }
        sandbox.step_in(&ticket, ["entry", "-"], "\n\n").exits(2);
        sandbox.step(&ticket, ["entry"]).exits(2);
    });
}

#[test]
fn a_header_is_an_entry_too() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "s", "--text", "Hi", "--tree", "new.jsonl"]).ok().line();
    let seq = sandbox.step_in(&ticket, ["entry", "-"], header().to_string()).ok().seq();
    assert_eq!(sandbox.last("s")["entry"], header());
    sandbox.unchanged("s", || {
        assert_eq!(sandbox.step_in(&ticket, ["entry", "-"], header().to_string()).ok().repeated(), seq);
    });
}

#[test]
fn only_the_current_attempt_says_anything() {
    let sandbox = Sandbox::new();
    let (first, second) = (Owner::start(), Owner::start());
    let old = sandbox.admit(&first, "s", &["--turn", "t"]);
    let body = assistant("Hello.", &[]).to_string();
    first.die();
    let new = sandbox.recover(&second, "s", &[]);
    assert_eq!(new, "s:t:2");
    sandbox.unchanged("s", || {
        let raw = entry("b1", None, &user("Hi")).to_string();
        for ran in [
            sandbox.step_in(&old, ["--json", "message", "-"], body.clone()),
            sandbox.step_in(&old, ["--json", "entry", "-"], raw),
            sandbox.step(&old, ["--json", "claim", "d1", "--tool", "x"]),
            sandbox.step(&old, ["--json", "settle"]),
            sandbox.step(&old, ["--json", "heartbeat"]),
            sandbox.step_in(&old, ["--json", "note", "-"], "x"),
            sandbox.step(&old, ["--json", "deliver", "--begin"]),
        ] {
            let error = ran.exits(5).error("fenced");
            assert_eq!(error["current"], 2);
            assert!(text(&error["hint"]).contains("cannot be stopped"), "{error}");
        }
    });
    sandbox.step_in(&new, ["message", "-"], body).ok();
}

#[test]
fn a_step_of_a_closed_turn_is_a_conflict() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    sandbox.step_in(&ticket, ["message", "-"], assistant("Hello.", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    sandbox.unchanged("s", || {
        let ran = sandbox
            .step_in(&ticket, ["--json", "message", "-"], assistant("More.", &[]).to_string())
            .exits(6);
        ran.error("turn_closed");
        sandbox.step(&ticket, ["--json", "heartbeat"]).exits(6);
        sandbox.step(&ticket, ["--json", "claim", "x"]).exits(6);
    });
    // A remark may still be made.
    sandbox.step_in(&ticket, ["note", "-"], "seen").ok();
    assert_eq!(sandbox.last("s")["content"], "seen");
    let noted = sandbox.step_in(&ticket, ["--json", "note", "-"], "{\"a\": 1}").ok().json();
    assert_eq!(noted["state"], "closed");
    assert_eq!(sandbox.last("s")["content"], json!({"a": 1}));
    assert_eq!(noted["ticket"], Value::Null);
}
