//! What Pi needs to go on: the content of a model's message and of a tool result is an array on the session tree,
//! whatever the body was that was journaled. The journal keeps that body as it came.

use crate::kit::*;
use serde_json::{Value, json};

const FILE: &str = "chat.jsonl";
const SAID: &str = r#"{"role":"assistant", "n":1e2,"content":"d\u006fne","stopReason":"stop","n":1E2}"#;

fn admitted(sandbox: &Sandbox, mode: &str) -> String {
    let words = ["admit", "s", "--text", "Go", "--owner-pid", "none", "--tree", FILE, "--tree-mode", mode];
    sandbox.run(words).ok().line()
}

fn recover(sandbox: &Sandbox, more: &[&str]) -> Ran {
    sandbox.run([&["recover", "s", "--owner-pid", "none"], more].concat())
}

fn bytes(sandbox: &Sandbox) -> String {
    std::fs::read_to_string(sandbox.path(FILE)).unwrap()
}

/// The contents of the model's messages and the results, from the tree and from `--context --format pi`.
#[track_caller]
fn contents(sandbox: &Sandbox) -> Vec<Value> {
    let of = |message: &Value| {
        let told = message["role"] == "assistant" || message["role"] == "toolResult";
        told.then(|| message["content"].clone())
    };
    let tree: Vec<Value> = sandbox.tree(FILE).iter().filter_map(|entry| of(&entry["message"])).collect();
    let context = sandbox.run(["--json", "inspect", "s", "--context", "--format", "pi"]).ok().json();
    let context: Vec<Value> = context.as_array().unwrap().iter().filter_map(of).collect();
    assert!(tree.ends_with(&context), "{tree:?} {context:?}");
    tree
}

#[track_caller]
fn sound(sandbox: &Sandbox) {
    let ran = sandbox.run(["verify", "s", "--with-tree"]);
    assert_eq!(ran.code(), 0, "{}", ran.all());
}

fn text_block(said: &str) -> Value {
    json!([{"type": "text", "text": said}])
}

#[test]
fn a_string_of_the_model_is_a_text_block_on_the_tree_and_itself_in_the_journal() {
    for mode in ["append", "branch"] {
        let sandbox = Sandbox::new();
        let ticket = admitted(&sandbox, mode);
        sandbox.step_in(&ticket, ["message", "-"], SAID).ok();
        let journal = String::from_utf8(sandbox.journal_bytes("s")).unwrap();
        assert!(journal.contains(&SAID.replace(", ", ",")), "{journal}");
        // The same again is the same message.
        sandbox.step_in(&ticket, ["message", "-"], SAID).ok().repeated();
        if mode == "branch" {
            recover(&sandbox, &[]).ok();
        }
        let on_the_tree = r#""message":{"role":"assistant","n":1e2,"content":[{"type":"text","text":"d\u006fne"}],"stopReason":"stop","n":1E2}}"#;
        assert!(bytes(&sandbox).contains(on_the_tree), "{mode}: {}", bytes(&sandbox));
        assert_eq!(contents(&sandbox), [text_block("done")]);
        sound(&sandbox);
        let before = bytes(&sandbox);
        recover(&sandbox, &[]).ok();
        assert_eq!(contents(&sandbox), [text_block("done")], "{mode}: nothing twice: {before}");
        sound(&sandbox);
    }
}

#[test]
fn content_that_says_nothing_is_an_empty_array() {
    for content in [r#""content":"","#, r#""content":null,"#, ""] {
        let sandbox = Sandbox::new();
        let ticket = admitted(&sandbox, "append");
        let said = format!(r#"{{"role":"assistant",{content}"stopReason":"stop"}}"#);
        sandbox.step_in(&ticket, ["message", "-"], said).ok();
        assert_eq!(contents(&sandbox), [json!([])], "{content}");
        sound(&sandbox);
    }
}

#[test]
fn a_result_is_an_array_on_the_tree_however_it_came() {
    let results = [
        (r#""made""#, text_block("made")),
        (r#""""#, json!([])),
        ("null", json!([])),
        // What Pi could not show is shown as JSON.
        ("7", text_block("7")),
        (r#"{"a":1}"#, text_block(r#"{"a":1}"#)),
        (
            r#"["a",null,{"type":"odd"}]"#,
            json!([{"type":"text","text":"a"},{"type":"text","text":"null"},{"type":"odd"}]),
        ),
    ];
    for (content, shown) in results {
        let sandbox = Sandbox::new();
        let ticket = admitted(&sandbox, "append");
        sandbox.announce(&ticket, &[("c1", "bash", json!({}))]);
        sandbox.step(&ticket, ["claim", "c1"]).ok();
        let result = format!(
            r#"{{"role":"toolResult","toolCallId":"c1","toolName":"bash","content":{content},"isError":false,"x":1e2}}"#
        );
        sandbox.step_in(&ticket, ["result", "c1", "-"], result.clone()).ok();
        assert!(String::from_utf8(sandbox.journal_bytes("s")).unwrap().contains(&result));
        assert_eq!(contents(&sandbox)[1], shown, "{content}");
        assert!(bytes(&sandbox).contains(r#""isError":false,"x":1e2}"#));
        sound(&sandbox);
    }
    // The same as a message, also where it tells what is stored already.
    for stored in [true, false] {
        let sandbox = Sandbox::new();
        let ticket = admitted(&sandbox, "append");
        sandbox.announce(&ticket, &[("c1", "bash", json!({}))]);
        sandbox.step(&ticket, ["claim", "c1"]).ok();
        if stored {
            sandbox.step_in(&ticket, ["result", "c1", "-"], "made").ok();
        }
        let told = r#"{"role":"toolResult","toolCallId":"c1","toolName":"bash","content":"made"}"#;
        sandbox.step_in(&ticket, ["message", "-"], told).ok();
        assert_eq!(contents(&sandbox)[1..], [text_block("made")]);
        sound(&sandbox);
    }
}

#[test]
fn a_message_that_pi_cannot_open_is_refused_and_nothing_is_recorded() {
    let sandbox = Sandbox::new();
    let ticket = admitted(&sandbox, "append");
    let before = bytes(&sandbox);
    for message in [
        r#"{"role":"assistant","content":7,"stopReason":"stop"}"#,
        r#"{"role":"assistant","content":{"type":"text","text":"x"},"stopReason":"stop"}"#,
        r#"{"role":"assistant","content":[null],"stopReason":"stop"}"#,
        r#"{"role":"assistant","content":["x"],"stopReason":"stop"}"#,
        r#"{"role":"assistant","content":[{"type":"text"}],"stopReason":"stop"}"#,
        r#"{"role":"toolResult","toolCallId":"c1","content":true}"#,
        r#"{"role":"user","content":7,"stopReason":"stop"}"#,
    ] {
        sandbox.unchanged("s", || {
            let ran = sandbox.step_in(&ticket, ["--json", "message", "-"], message).exits(2);
            let told = text(&ran.error("bad_message")["message"]);
            assert!(told.contains("Pi opens") && told.contains("content"), "{message}: {told}");
            // As the last word it is no reply by accident.
            if message.contains("assistant") {
                sandbox.step_in(&ticket, ["settle", "-"], message).exits(2);
            }
        });
    }
    assert_eq!(bytes(&sandbox), before);
    // A user's string is content to Pi.
    sandbox.step_in(&ticket, ["message", "-"], r#"{"role":"user","content":"and","timestamp":7}"#).ok();
    assert!(bytes(&sandbox).contains(r#""message":{"role":"user","content":"and","timestamp":7}"#));
}

fn own(id: &str, parent: &str, content: &Value) -> String {
    let message = json!({"role": "assistant", "content": content, "stopReason": "stop"});
    format!("{}\n", entry(id, Some(parent), &message))
}

fn append(sandbox: &Sandbox, more: &str) {
    sandbox.write(FILE, bytes(sandbox) + more);
}

#[test]
fn what_the_agent_wrote_with_a_string_is_no_damage_and_its_copy_is_an_array() {
    for journaled in [true, false] {
        let sandbox = Sandbox::new();
        sandbox.write(FILE, small_tree());
        let leaf = text(&sandbox.tree(FILE).last().unwrap()["id"]);
        let ticket = admitted(&sandbox, "branch");
        append(&sandbox, &format!("{}\n", entry("u9", Some(&leaf), &user("Go"))));
        append(&sandbox, &own("a9", "u9", &json!("done")));
        if journaled {
            let entries: Vec<String> = bytes(&sandbox).lines().rev().take(2).map(str::to_owned).collect();
            let entries = format!("{}\n{}\n", entries[1], entries[0]);
            sandbox.step_in(&ticket, ["entry", "-"], entries).ok();
        }
        sound(&sandbox);
        recover(&sandbox, &[]).ok();
        sound(&sandbox);
        let tree = sandbox.tree(FILE);
        let said = |entry: &&Value| entry["message"]["role"] == "assistant" && entry["id"] != "a9";
        assert_eq!(tree.iter().rev().find(said).unwrap()["message"]["content"], text_block("done"));
        assert_eq!(tree.iter().find(|entry| entry["id"] == "a9").unwrap()["message"]["content"], "done");
        let journal = String::from_utf8(sandbox.journal_bytes("s")).unwrap();
        assert!(journal.contains(r#""content":"done""#), "the agent's own form is kept");
    }
}

#[test]
fn a_live_branch_that_pi_cannot_go_on_from_is_not_gone_on_with() {
    for (content, goes_on) in [(json!("done"), false), (text_block("done"), true)] {
        let sandbox = Sandbox::new();
        sandbox.write(FILE, small_tree());
        let leaf = text(&sandbox.tree(FILE).last().unwrap()["id"]);
        let _ticket = admitted(&sandbox, "branch");
        append(&sandbox, &format!("{}\n", entry("u9", Some(&leaf), &user("Go"))));
        append(&sandbox, &own("a9", "u9", &content));
        recover(&sandbox, &["--onto", "live"]).ok();
        let behind = sandbox.tree(FILE).iter().any(|entry| entry["parentId"] == "a9");
        assert_eq!(behind, goes_on, "{content}");
        sound(&sandbox);
    }
}

#[test]
fn a_message_that_the_agent_wrote_itself_says_the_same_as_array_and_as_string() {
    for own_content in [json!("done"), text_block("done")] {
        let sandbox = Sandbox::new();
        sandbox.write(FILE, small_tree());
        let leaf = text(&sandbox.tree(FILE).last().unwrap()["id"]);
        let ticket = admitted(&sandbox, "branch");
        sandbox
            .step_in(
                &ticket,
                ["message", "-"],
                r#"{"role":"assistant","content":"done","stopReason":"stop"}"#,
            )
            .ok();
        append(&sandbox, &format!("{}\n", entry("u9", Some(&leaf), &user("Go"))));
        append(&sandbox, &own("a9", "u9", &own_content));
        recover(&sandbox, &[]).ok();
        sound(&sandbox);
        let said = sandbox
            .journal("s")
            .iter()
            .filter(|record| record["kind"] == "entry" && record["entry"]["id"] == "a9")
            .count();
        assert_eq!(said, 0, "journaled a second time: {own_content}");
    }
}

#[test]
fn a_line_of_ours_that_became_a_string_is_damage() {
    let sandbox = Sandbox::new();
    let ticket = admitted(&sandbox, "append");
    sandbox
        .step_in(&ticket, ["message", "-"], r#"{"role":"assistant","content":"done","stopReason":"stop"}"#)
        .ok();
    sandbox.write(FILE, bytes(&sandbox).replace(r#"[{"type":"text","text":"done"}]"#, r#""done""#));
    assert!(sandbox.run(["verify", "s", "--with-tree"]).exits(3).stdout.contains("TK071"));
}
