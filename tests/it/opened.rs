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

// Depth.

fn nested(levels: usize) -> String {
    "[".repeat(levels) + &"]".repeat(levels)
}

/// A body of as many levels as a body may have.
fn deep(head: &str, tail: &str) -> String {
    format!(
        "{head}{}{tail}",
        nested(1_000 - head.matches(['{', '[']).count() + head.matches(['}', ']']).count())
    )
}

#[track_caller]
fn twice_sound(sandbox: &Sandbox) {
    sound(sandbox);
    recover(sandbox, &[]).ok();
    sound(sandbox);
    let before = bytes(sandbox);
    recover(sandbox, &["--json"]).ok();
    assert_eq!(bytes(sandbox), before, "nothing twice");
}

#[test]
fn the_deepest_body_is_sound_on_the_tree() {
    let call =
        |content: &str| format!(r#"{{"role":"assistant","content":[{content}],"stopReason":"toolUse"}}"#);
    let messages = [
        // Each is what `step message` is given, the call it asks for, and the result of that.
        (deep(r#"{"role":"assistant","content":[],"d":"#, r#","stopReason":"stop"}"#), None),
        (
            deep(
                r#"{"role":"assistant","content":[{"type":"toolCall","id":"c","name":"t","arguments":"#,
                r#"}],"stopReason":"toolUse"}"#,
            ),
            Some(nested(1_000)),
        ),
        (
            deep(
                r#"{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"t","input":"#,
                r#"}],"stop_reason":"tool_use"}"#,
            ),
            Some(deep(
                r#"{"type":"tool_result","tool_use_id":"c","content":[{"type":"image","data":"","x":"#,
                "}]}",
            )),
        ),
        // Arguments in a string are a body of their own, wherever the string stands.
        (
            format!(
                r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"c","type":"function","function":{{"name":"t","arguments":"{}"}}}}]}}"#,
                nested(1_000)
            ),
            Some(deep(r#"{"content":[{"type":"text","text":"x"}],"details":"#, "}")),
        ),
        (
            format!(
                r#"{{"object":"response","status":"completed","output":[{{"type":"function_call","call_id":"c","name":"t","arguments":"{}"}}]}}"#,
                nested(1_000)
            ),
            Some(deep(r#"[{"type":"image","data":"","mimeType":"a/b","x":"#, "}]")),
        ),
        (
            call(r#"{"type":"toolCall","id":"c","name":"t","arguments":{}}"#),
            Some(deep(
                r#"{"role":"toolResult","toolCallId":"c","toolName":"t","content":"x","details":"#,
                "}",
            )),
        ),
    ];
    for (mode, (message, result)) in
        ["append", "branch"].into_iter().flat_map(|mode| messages.clone().map(|m| (mode, m)))
    {
        let sandbox = Sandbox::new();
        let ticket = admitted(&sandbox, mode);
        sandbox.step_in(&ticket, ["message", "-"], message.clone()).ok();
        if let Some(result) = result {
            sandbox.step(&ticket, ["claim", "c"]).ok();
            sandbox.step_in(&ticket, ["result", "c", "-"], result).ok();
        }
        let what = &message[..70];
        if mode == "branch" {
            recover(&sandbox, &[]).ok();
        }
        twice_sound(&sandbox);
        // The next turn stands on it: nothing is lost from what the model is asked with.
        let depths = |format: &str| {
            let ran = sandbox.run(["inspect", "s", "--context", "--format", format]).ok();
            ran.stdout.matches(&"[".repeat(900)).count()
        };
        let formats = ["pi", "anthropic", "openai-chat", "openai-responses"];
        let now = formats.map(depths);
        assert!(now[0] > 0, "{now:?}");
        settle(&sandbox);
        let next =
            ["admit", "s", "--text", "And", "--owner-pid", "none", "--tree", FILE, "--tree-mode", mode];
        sandbox.run(next).ok();
        // A provider's own form goes back within its turn alone.
        let then = formats.map(depths);
        assert_eq!(then[0], now[0], "{mode}: {what}");
        assert!(
            then.iter().zip(now).all(|(then, now)| *then >= now.min(1)),
            "{mode}: {what}: {now:?} {then:?}"
        );
        sound(&sandbox);
    }
}

fn settle(sandbox: &Sandbox) {
    let ticket = recover(sandbox, &[]).ok().line();
    sandbox.step(&ticket, ["settle", "--status", "failed"]).ok();
}

#[test]
fn the_deepest_input_is_sound_on_the_tree() {
    for input in [
        deep(r#"{"role":"user","content":"x","d":"#, "}"),
        deep(r#"[{"type":"image","data":"","mimeType":"a/b","x":"#, "}]"),
        nested(1_000),
    ] {
        let sandbox = Sandbox::new();
        sandbox.write("deep", &input);
        let words =
            ["admit", "s", "--input", "deep", "--owner-pid", "none", "--tree", FILE, "--tree-mode", "append"];
        let ticket = sandbox.run(words).ok().line();
        twice_sound(&sandbox);
        sandbox.step_in(&ticket, ["steer", "-", "--session", "s"], input.clone()).ok();
        twice_sound(&sandbox);
        let shown = sandbox.run(["inspect", "s", "--draw-tree"]).ok();
        assert!(!shown.stdout.contains("user \n"), "{}", shown.stdout);
    }
}

#[test]
fn the_deepest_entry_is_copied() {
    let sandbox = Sandbox::new();
    let ticket = admitted(&sandbox, "branch");
    for entry in [
        deep(
            r#"{"type":"message","id":"e1","parentId":null,"timestamp":"2026-01-05T09:00:01.000Z","message":{"role":"assistant","content":"x","d":"#,
            "}}",
        ),
        deep(
            r#"{"type":"custom","customType":"x","id":"e2","parentId":"e1","timestamp":"2026-01-05T09:00:01.000Z","data":"#,
            "}",
        ),
    ] {
        sandbox.step_in(&ticket, ["entry", "-"], entry).ok();
    }
    recover(&sandbox, &[]).ok();
    assert_eq!(bytes(&sandbox).matches(&"[".repeat(900)).count(), 2);
    twice_sound(&sandbox);
}

#[test]
fn a_dry_run_shows_the_deepest_records_and_entries() {
    let sandbox = Sandbox::new();
    admitted(&sandbox, "branch");
    let header =
        r#"{"type":"session","version":3,"id":"h","timestamp":"2026-01-05T09:00:00.000Z","cwd":"/"}"#;
    let own = deep(
        r#"{"type":"message","id":"u9","parentId":null,"timestamp":"2026-01-05T09:00:01.000Z","message":{"role":"user","content":"Go","d":"#,
        "}}",
    );
    sandbox.write(FILE, format!("{header}\n{own}\n"));
    let plan = recover(&sandbox, &["--dry-run", "--json"]).ok().stdout;
    // Journaled, and copied to the branch.
    assert_eq!(plan.matches(&"[".repeat(900)).count(), 2);
}

#[test]
fn a_result_that_is_refused_is_kept_however_deep() {
    let sandbox = Sandbox::new();
    let ticket = admitted(&sandbox, "append");
    sandbox.announce(&ticket, &[("c1", "bash", json!({}))]);
    sandbox.step(&ticket, ["claim", "c1"]).ok();
    recover(&sandbox, &["--force", "--why", "x"]).ok();
    for levels in [999, 1_000] {
        for _ in 0..2 {
            let ran = sandbox.step_in(&ticket, ["--json", "result", "c1", "-"], nested(levels)).exits(5);
            ran.error("straggler");
        }
        // One level stands around it; what has none to spare is kept as its text.
        let journal = String::from_utf8(sandbox.journal_bytes("s")).unwrap();
        let quote = if levels == 1_000 { "\"" } else { "" };
        assert_eq!(
            journal
                .matches(&format!(
                    r#""content":{{"error":false,"content":{quote}{}{quote}}}"#,
                    nested(levels)
                ))
                .count(),
            1
        );
    }
    sound(&sandbox);
}

#[test]
fn a_receipt_that_is_refused_is_kept_however_deep() {
    let sandbox = Sandbox::new();
    let ticket =
        sandbox.run(["admit", "s", "--text", "x", "--delivery", "k", "--owner-pid", "none"]).ok().line();
    sandbox.step_in(&ticket, ["message", "-"], assistant("hi", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    sandbox.step(&ticket, ["deliver", "--begin"]).ok();
    sandbox.step(&ticket, ["deliver", "--receipt", "sent"]).ok();
    sandbox.step(&ticket, ["deliver", "--receipt", &nested(1_000)]).exits(5);
    let journal = String::from_utf8(sandbox.journal_bytes("s")).unwrap();
    assert!(journal.contains(&format!(r#""content":{{"receipt":"{}"}}"#, nested(1_000))));
}

#[test]
fn the_tree_is_read_as_deep_as_our_own_lines_go_and_no_deeper() {
    let sandbox = Sandbox::new();
    let line = |levels: usize| {
        format!(
            "{}{{\"type\":\"custom\",\"customType\":\"x\",\"id\":\"z9\",\"parentId\":null,\"timestamp\":\"2026-01-05T09:00:00.000Z\",\"data\":{}}}\n",
            small_tree(),
            nested(levels - 1)
        )
    };
    sandbox.write(FILE, line(1_005));
    assert_eq!(sandbox.run(["verify", "./chat.jsonl"]).code(), 0);
    sandbox.write(FILE, line(1_006));
    assert!(sandbox.run(["verify", "./chat.jsonl"]).exits(3).stdout.contains("TK095"));
}
