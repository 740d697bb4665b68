//! What a model is shown next, by format and by what happened.

use super::dialect::{Ids, derived};
use super::*;
use crate::chain::{LINE_BYTES_MAX, digest};
use crate::draft::Draft;
use crate::policy::Policy;
use crate::record::{
    Admitted, AdmittedTree, At, Attempt, Cause, Claimed, Entry, FORMAT, Message, Opened, Outcome, Steered,
    TreeMode, TurnId,
};
use crate::recovery::intents;
use std::collections::HashSet;

/// A turn in the making.
struct Story {
    draft: Draft,
    turn: TurnId,
}

impl Story {
    fn begin(input: &str, tree: Option<AdmittedTree>) -> Self {
        let at: At = "2026-11-29T15:26:00.123456Z".parse().expect("a time");
        let opened = Opened { format: FORMAT.into(), session: "s".into(), id: "i".into() };
        let draft = Draft::genesis(opened, at, LINE_BYTES_MAX).expect("a genesis");
        let turn: TurnId = "t1".parse().expect("an id");
        let mut story = Self { draft, turn: turn.clone() };
        let input = raw(input);
        let input_sha256 = digest(input.get().as_bytes());
        story.push(Admitted {
            turn: turn.clone(),
            delivery: None,
            input,
            input_sha256,
            tree,
            policy_sha256: None,
            meta: None,
        });
        story.push(Attempt { turn, attempt: 1, cause: Cause::Admit, why: None, owner: None, lease_ms: None });
        story
    }

    fn push(&mut self, kind: impl Into<Kind>) -> u64 {
        self.draft.push(kind).expect("a legal record").seq
    }

    fn message(&mut self, format: Format, body: &str) -> u64 {
        let message = raw(body);
        let meaning = message::meaning(format, &message).expect("a message");
        let seq = self.draft.next_seq();
        let mut calls = intents(&self.draft.session, &self.turn, seq, &meaning, &Policy::built_in());
        for (count, call) in calls.iter_mut().enumerate() {
            // As --assign-ids does.
            if call.id.as_deref() == Some("") {
                call.id = Some(format!("assigned_{count}"));
            }
        }
        let calls = (!calls.is_empty()).then_some(calls);
        let (format, role) = (format.word().to_owned(), meaning.role_word);
        self.push(Message { turn: self.turn.clone(), attempt: 1, format, role, message, calls })
    }

    fn entry(&mut self, body: &str) -> u64 {
        let entry = raw(body);
        let meaning = crate::recovery::meaning_of(&entry);
        let seq = self.draft.next_seq();
        let calls = meaning
            .map(|meaning| intents(&self.draft.session, &self.turn, seq, &meaning, &Policy::built_in()));
        let calls = calls.filter(|calls| !calls.is_empty());
        self.push(Entry { turn: self.turn.clone(), attempt: 1, entry, calls })
    }

    fn steer(&mut self, input: &str) {
        let input = raw(input);
        let input_sha256 = digest(input.get().as_bytes());
        self.push(Steered { turn: self.turn.clone(), delivery: None, input, input_sha256 });
    }

    fn claim(&mut self, call: &str) {
        let r#ref: CallRef = call.parse().expect("a ref");
        let turn = self.turn.clone();
        let key = self.turn().call(r#ref).expect("a call").key.clone();
        self.push(Claimed { turn, attempt: 1, r#ref, key, link: None, runner: None });
    }

    fn result(&mut self, call: &str, content: &str, error: bool) {
        self.claim(call);
        self.push(Outcome {
            turn: self.turn.clone(),
            attempt: 1,
            r#ref: call.parse().expect("a ref"),
            error,
            content: Some(raw(content)),
            exit: None,
            signal: None,
            stdout: None,
            stderr: None,
            truncated: None,
            output_sha256: None,
            duration_ms: None,
        });
    }

    fn turn(&self) -> &Turn {
        self.draft.session.turn(&self.turn).expect("the turn")
    }

    fn context(&self, format: Format) -> Vec<String> {
        self.context_on(None, format)
    }

    fn context_on(&self, tree: Option<&Tree>, format: Format) -> Vec<String> {
        let built = build(self.turn(), &self.draft.history, tree, format).expect("a context");
        check(format, &built.messages);
        built.messages.iter().map(|message| message.get().to_owned()).collect()
    }
}

fn raw(text: &str) -> Raw {
    Raw::parse(text).expect("JSON")
}

const ANTHROPIC: &str = r#"{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"thinking","thinking":"hm","signature":"sig"},{"type":"text","text":""},{"type":"text","text":"Both."},{"type":"tool_use","id":"toolu_1","name":"read","input":{"n":1e2}},{"type":"tool_use","id":"toolu_2","name":"mail","input":{}}],"stop_reason":"tool_use","usage":{"input_tokens":1}}"#;

fn asked_of_anthropic() -> Story {
    let mut story = Story::begin(r#""Do both""#, None);
    let seq = story.message(Format::Anthropic, ANTHROPIC);
    story.result(&format!("{seq}.1"), r#""sent""#, false);
    story.steer(r#""hurry""#);
    story.result(
        &format!("{seq}.0"),
        r#"{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"document","x":1}],"is_error":true}"#,
        true,
    );
    story
}

#[test]
fn a_message_goes_back_as_its_provider_made_it() {
    let messages = asked_of_anthropic().context(Format::Anthropic);
    assert_eq!(
        messages,
        [
            r#"{"role":"user","content":[{"type":"text","text":"Do both"}]}"#,
            r#"{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"sig"},{"type":"text","text":"Both."},{"type":"tool_use","id":"toolu_1","name":"read","input":{"n":1e2}},{"type":"tool_use","id":"toolu_2","name":"mail","input":{}}]}"#,
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"document","x":1}],"is_error":true},{"type":"tool_result","tool_use_id":"toolu_2","content":[{"type":"text","text":"sent"}]},{"type":"text","text":"hurry"}]}"#,
        ]
    );
}

#[test]
fn the_same_turn_in_the_other_formats() {
    let story = asked_of_anthropic();
    assert_eq!(
        story.context(Format::OpenaiChat),
        [
            r#"{"role":"user","content":"Do both"}"#,
            r#"{"role":"assistant","content":"Both.","tool_calls":[{"id":"toolu_1","type":"function","function":{"name":"read","arguments":"{\"n\":1e2}"}},{"id":"toolu_2","type":"function","function":{"name":"mail","arguments":"{}"}}]}"#,
            r#"{"role":"tool","tool_call_id":"toolu_1","content":"{\"type\":\"tool_result\",\"tool_use_id\":\"toolu_1\",\"content\":[{\"type\":\"document\",\"x\":1}],\"is_error\":true}"}"#,
            r#"{"role":"tool","tool_call_id":"toolu_2","content":"sent"}"#,
            r#"{"role":"user","content":"hurry"}"#,
        ]
    );
    assert_eq!(
        story.context(Format::OpenaiResponses),
        [
            r#"{"type":"message","role":"user","content":[{"type":"input_text","text":"Do both"}]}"#,
            r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Both.","annotations":[]}]}"#,
            r#"{"type":"function_call","call_id":"toolu_1","name":"read","arguments":"{\"n\":1e2}"}"#,
            r#"{"type":"function_call","call_id":"toolu_2","name":"mail","arguments":"{}"}"#,
            r#"{"type":"function_call_output","call_id":"toolu_1","output":"{\"type\":\"tool_result\",\"tool_use_id\":\"toolu_1\",\"content\":[{\"type\":\"document\",\"x\":1}],\"is_error\":true}"}"#,
            r#"{"type":"function_call_output","call_id":"toolu_2","output":"sent"}"#,
            r#"{"type":"message","role":"user","content":[{"type":"input_text","text":"hurry"}]}"#,
        ]
    );
    let pi = story.context(Format::Pi);
    assert_eq!(pi.len(), 5);
    assert_eq!(
        pi[3],
        r#"{"role":"toolResult","toolCallId":"toolu_2","toolName":"mail","content":[{"type":"text","text":"sent"}],"isError":false,"timestamp":1795965960123}"#
    );
    assert_eq!(format_of(story.turn(), &story.draft.history), Format::Anthropic);
}

#[test]
fn a_model_is_not_asked_while_a_call_has_no_answer() {
    let mut story = Story::begin(r#""go""#, None);
    let seq = story.message(Format::Anthropic, ANTHROPIC);
    story.result(&format!("{seq}.0"), r#""x""#, false);
    let refused = build(story.turn(), &story.draft.history, None, Format::Pi);
    let call = CallRef { seq, position: 1 };
    assert_eq!(refused, Err(ContextError::Unanswered(vec![(call, "mail".to_owned())])));
    assert_eq!(
        refused.expect_err("refused").to_string(),
        format!("the model may not be asked now: no answer for call {seq}.1 (mail)")
    );
}

#[test]
fn a_whole_completion_goes_back_as_its_message() {
    let mut story = Story::begin(r#""go""#, None);
    let seq = story.message(
        Format::OpenaiChat,
        r#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":null,"refusal":null,"tool_calls":[{"id":"","type":"function","function":{"name":"read","arguments":"{}"}}],"reasoning_content":"so"},"finish_reason":"tool_calls"}]}"#,
    );
    story.result(&format!("{seq}.0"), r#"{"role":"tool","tool_call_id":"?","content":"one"}"#, false);
    let messages = story.context(Format::OpenaiChat);
    assert_eq!(
        messages,
        [
            r#"{"role":"user","content":"go"}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"assigned_0","type":"function","function":{"name":"read","arguments":"{}"}}],"reasoning_content":"so"}"#,
            r#"{"role":"tool","tool_call_id":"assigned_0","content":"one"}"#,
        ]
    );
}

#[test]
fn the_items_of_a_response_go_back_with_outputs_of_their_kind() {
    let mut story = Story::begin(r#""go""#, None);
    let seq = story.message(
        Format::OpenaiResponses,
        r#"{"object":"response","status":"completed","output":[{"type":"reasoning","id":"rs_1","summary":[]},{"type":"custom_tool_call","call_id":"c1","name":"patch","input":"x"},{"type":"function_call","call_id":"c2","name":"read","arguments":"{}"}]}"#,
    );
    story.result(&format!("{seq}.0"), r#""a""#, false);
    story.result(
        &format!("{seq}.1"),
        r#"{"content":[{"type":"text","text":"see"},{"type":"image","data":"QQ==","mimeType":"image/png"}]}"#,
        false,
    );
    assert_eq!(
        story.context(Format::OpenaiResponses),
        [
            r#"{"type":"message","role":"user","content":[{"type":"input_text","text":"go"}]}"#,
            r#"{"type":"reasoning","id":"rs_1","summary":[]}"#,
            r#"{"type":"custom_tool_call","call_id":"c1","name":"patch","input":"x"}"#,
            r#"{"type":"function_call","call_id":"c2","name":"read","arguments":"{}"}"#,
            r#"{"type":"custom_tool_call_output","call_id":"c1","output":"a"}"#,
            r#"{"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"see"},{"type":"input_image","image_url":"data:image/png;base64,QQ=="}]}"#,
        ]
    );
    let chat = story.context(Format::OpenaiChat);
    assert_eq!(
        chat[3..],
        [
            r#"{"role":"tool","tool_call_id":"c2","content":"see"}"#,
            r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,QQ=="}}]}"#,
        ]
    );
}

#[test]
fn half_arguments_of_a_message_that_was_cut_off_stand_inside_an_object() {
    let half = r#""{\"to\": \"ad""#;
    for (format, body) in [
        (
            Format::OpenaiChat,
            format!(
                r#"{{"role":"assistant","content":"","tool_calls":[{{"id":"c","type":"function","function":{{"name":"mail","arguments":{half}}}}}]}}"#
            ),
        ),
        (
            Format::Anthropic,
            format!(
                r#"{{"role":"assistant","content":[{{"type":"tool_use","id":"c","name":"mail","input":{half}}}]}}"#
            ),
        ),
        (
            Format::OpenaiResponses,
            format!(
                r#"[{{"type":"reasoning","id":"r","summary":[]}},{{"type":"function_call","call_id":"c","name":"mail","arguments":{half}}},{{"type":"reasoning","id":"r2","summary":[]}}]"#
            ),
        ),
    ] {
        let mut story = Story::begin(r#""go""#, None);
        let seq = story.message(format, &body);
        story.result(&format!("{seq}.0"), r#""""#, false);
        let arguments = r#"{"arguments":"{\"to\": \"ad"}"#;
        let spelled = Raw::text(arguments);
        for shown in [Format::OpenaiChat, Format::OpenaiResponses, Format::Anthropic] {
            let context = story.context(shown).concat();
            let expected = if shown == Format::Anthropic { arguments } else { spelled.get() };
            assert!(context.contains(expected), "{format} as {shown}: {context}");
            assert!(!context.contains("r2"), "reasoning that leads to nothing: {context}");
        }
    }
}

#[test]
fn what_joined_behind_the_last_word_of_the_model_is_what_it_is_asked() {
    let mut story = Story::begin(r#""go""#, None);
    story.message(Format::OpenaiChat, r#"{"role":"assistant","content":"Done."}"#);
    story.steer(r#""really?""#);
    let asked = r#"{"role":"user","content":"really?"}"#;
    assert_eq!(story.context(Format::OpenaiChat)[2..], [asked]);
    // An answer that was on its way before the model knew of it stays in front.
    story.message(Format::OpenaiChat, r#"{"role":"assistant","content":"Bye."}"#);
    assert_eq!(story.context(Format::OpenaiChat)[3..], [asked]);
    let anthropic = story.context(Format::Anthropic);
    assert_eq!(anthropic.len(), 3, "roles alternate: {anthropic:#?}");
}

const TREE: &str = r#"{"type":"session","version":3,"id":"sess"}
{"type":"message","id":"s","parentId":null,"timestamp":"2026-11-29T15:00:00.000Z","message":{"role":"system","content":"Be brief.","sections":{"cwd":"/a","x":"y"},"timestamp":1}}
{"type":"message","id":"a","parentId":"s","message":{"role":"user","content":"old","timestamp":2}}
{"type":"message","id":"b","parentId":"a","message":{"role":"assistant","content":[{"type":"text","text":"older answer"}],"stopReason":"stop","timestamp":3}}
{"type":"message","id":"c","parentId":"b","message":{"role":"user","content":"kept","timestamp":4}}
{"type":"message","id":"c2","parentId":"c","message":{"role":"system","content":"Patch.","timestamp":4}}
{"type":"message","id":"d","parentId":"c2","message":{"role":"assistant","content":[{"type":"toolCall","id":"","name":"read","arguments":{"p":1}},{"type":"toolCall","id":"call|2","name":"read","arguments":{"p":2}}],"stopReason":"toolUse","timestamp":5}}
{"type":"message","id":"e","parentId":"d","message":{"role":"toolResult","toolCallId":"call|2","toolName":"read","content":[{"type":"text","text":"two"}],"isError":false,"timestamp":6}}
{"type":"message","id":"e2","parentId":"e","message":{"role":"toolResult","toolCallId":"nobody","toolName":"read","content":[],"isError":false,"timestamp":6}}
{"type":"compaction","id":"f","parentId":"e2","timestamp":"1970-01-01T00:00:00.007Z","summary":"They spoke.","firstKeptEntryId":"c","tokensBefore":9,"systemMessage":{"role":"system","content":"Be brief.","sections":{"cwd":"/b","x":null},"timestamp":7}}
{"type":"message","id":"g","parentId":"f","message":{"role":"assistant","content":[],"stopReason":"error","timestamp":8}}
{"type":"custom_message","id":"h","parentId":"g","timestamp":"1970-01-01T00:00:00.009Z","customType":"note","content":"by the way","display":false}
{"type":"message","id":"i","parentId":"h","message":{"role":"assistant","content":[{"type":"text","text":"secret"}],"stopReason":"stop","timestamp":10}}
{"type":"context_edit","id":"j","parentId":"i","targetId":"i","replacement":{"content":"(edited)"}}
{"type":"message","id":"k","parentId":"j","message":{"role":"bashExecution","command":"ls","output":"x","exitCode":2,"timestamp":11}}
{"type":"message","id":"z","parentId":"a","message":{"role":"user","content":"elsewhere","timestamp":12}}
"#;

fn on_tree() -> (Story, Tree) {
    let tree = crate::tree::read(TREE.as_bytes().to_vec());
    let admitted = AdmittedTree {
        path: "/p/chat.jsonl".into(),
        format: "pi/3".into(),
        header_id: Some("sess".into()),
        leaf: Some("k".into()),
        leaf_at: Some(1),
        bytes: TREE.len() as u64,
        mode: TreeMode::Branch,
    };
    (Story::begin(r#""now""#, Some(admitted)), tree)
}

#[test]
fn what_stood_before_is_read_as_pi_reads_it() {
    let (story, tree) = on_tree();
    let summary = r"The conversation history before this point was compacted into the following summary:\n\n<summary>\nThey spoke.\n</summary>";
    assert_eq!(
        story.context_on(Some(&tree), Format::Pi),
        [
            r#"{"role":"system","content":"Be brief.","sections":{"cwd":"/b","x":null},"timestamp":7}"#,
            &format!(r#"{{"role":"user","content":[{{"type":"text","text":"{summary}"}}],"timestamp":7}}"#),
            r#"{"role":"user","content":"kept","timestamp":4}"#,
            r#"{"role":"assistant","content":[{"type":"toolCall","id":"","name":"read","arguments":{"p":1}},{"type":"toolCall","id":"call|2","name":"read","arguments":{"p":2}}],"stopReason":"toolUse","timestamp":5}"#,
            r#"{"role":"toolResult","toolCallId":"","toolName":"read","content":[{"type":"text","text":"No result provided"}],"isError":true,"timestamp":5}"#,
            r#"{"role":"toolResult","toolCallId":"call|2","toolName":"read","content":[{"type":"text","text":"two"}],"isError":false,"timestamp":6}"#,
            r#"{"role":"user","content":[{"type":"text","text":"by the way"}],"timestamp":9}"#,
            r#"{"role":"assistant","content":[{"type":"text","text":"(edited)"}],"stopReason":"stop","timestamp":10}"#,
            r#"{"role":"user","content":[{"type":"text","text":"Ran `ls`\n```\nx\n```\n\nCommand exited with code 2"}],"timestamp":11}"#,
            r#"{"role":"user","content":[{"type":"text","text":"now"}],"timestamp":1795965960123}"#,
        ]
    );
}

#[test]
fn ids_that_a_provider_would_refuse_are_replaced_on_both_sides() {
    let (story, tree) = on_tree();
    let chat = story.context_on(Some(&tree), Format::OpenaiChat);
    assert_eq!(chat[0], r#"{"role":"system","content":"Be brief.\n\n/b"}"#);
    let (empty, odd) = (derived("", 0), derived("call|2", 0));
    assert!(chat[3].contains(&empty) && chat[3].contains(&odd), "{}", chat[3]);
    assert_eq!(
        chat[4],
        format!(r#"{{"role":"tool","tool_call_id":"{empty}","content":"No result provided"}}"#)
    );
    assert_eq!(chat[5], format!(r#"{{"role":"tool","tool_call_id":"{odd}","content":"two"}}"#));
    let anthropic =
        build(story.turn(), &story.draft.history, Some(&tree), Format::Anthropic).expect("a context");
    check(Format::Anthropic, &anthropic.messages);
    assert_eq!(anthropic.notes.len(), 1);
}

#[test]
fn an_id_that_was_used_before_is_not_used_again() {
    let mut ids = Ids::default();
    assert_eq!(ids.own("a"), "a");
    let second = ids.own("a");
    assert_ne!(second, "a");
    assert_ne!(ids.foreign("a"), second);
    assert_eq!(ids.foreign("b|c"), derived("b|c", 0));
}

#[test]
fn a_turn_of_entries_keeps_the_agents_own_messages_and_its_compaction() {
    let (mut story, tree) = on_tree();
    story.entry(r#"{"type":"message","id":"m1","parentId":"k","message":{"role":"user","content":"now","timestamp":20}}"#);
    let seq = story.entry(
        r#"{"type":"message","id":"m2","parentId":"m1","message":{"role":"assistant","content":[{"type":"toolCall","id":"call_1","name":"read","arguments":{}}],"stopReason":"toolUse","timestamp":21}}"#,
    );
    story.claim(&format!("{seq}.0"));
    story.entry(r#"{"type":"message","id":"m3","parentId":"m2","message":{"role":"toolResult","toolCallId":"call_1","toolName":"read","content":[],"isError":false,"timestamp":22}}"#);
    story.entry(r#"{"type":"compaction","id":"m4","parentId":"m3","timestamp":"1970-01-01T00:00:00.023Z","summary":"All.","firstKeptEntryId":"m2","tokensBefore":1}"#);
    story.entry(r#"{"type":"message","id":"m5","parentId":"m4","message":{"role":"assistant","content":[{"type":"text","text":"no"}],"stopReason":"error","timestamp":24}}"#);
    let pi = story.context_on(Some(&tree), Format::Pi);
    assert_eq!(pi.len(), 3, "{pi:#?}");
    assert!(pi[0].contains("All."));
    assert!(pi[1].contains("call_1") && pi[1].contains("\"timestamp\":21"));
    assert!(pi[2].contains("\"timestamp\":22"));
    assert_eq!(format_of(story.turn(), &story.draft.history), Format::Pi);
    let anthropic = story.context_on(Some(&tree), Format::Anthropic);
    assert_eq!(anthropic.len(), 3);
}

#[test]
fn a_leaf_that_is_not_there_is_no_empty_history() {
    let (story, _) = on_tree();
    let other = crate::tree::read(b"{\"type\":\"session\",\"version\":3,\"id\":\"sess\"}\n".to_vec());
    let refused = build(story.turn(), &story.draft.history, Some(&other), Format::Pi);
    assert_eq!(refused, Err(ContextError::NoLeaf("k".to_owned())));
}

/// What a provider demands: each call answered once, directly behind its message, and nothing else answered.
fn check(format: Format, messages: &[Raw]) {
    let mut open: Vec<String> = Vec::new();
    let mut ever = HashSet::new();
    for message in messages {
        let (asked, answered) = calls_and_answers(format, message);
        let continues = format == Format::OpenaiResponses && !asked.is_empty();
        assert!(
            open.is_empty() || !answered.is_empty() || continues,
            "unanswered {open:?} before {message:?}"
        );
        for id in answered {
            let at = open.iter().position(|known| *known == id);
            assert!(at.is_some(), "an answer without its call: {id:?} in {message:?}");
            open.remove(at.expect("there"));
        }
        for id in asked {
            assert!(format == Format::Pi || (!id.is_empty() && ever.insert(id.clone())), "id {id:?}");
            open.push(id);
        }
        if format == Format::Anthropic {
            let object = message.view().object().expect("an object");
            let keys: Vec<&str> = object.0.iter().map(|(key, _)| key.as_str()).collect();
            assert_eq!(keys, ["role", "content"]);
        }
    }
    assert!(open.is_empty(), "unanswered at the end: {open:?}");
}

fn calls_and_answers(format: Format, message: &Raw) -> (Vec<String>, Vec<String>) {
    let object = message.view().object().expect("an object");
    let named = |items: Vec<&str>, kind: &str, key: &str| -> Vec<String> {
        let objects = items.into_iter().filter_map(|item| View::of(item).object());
        objects
            .filter(|item| kind.is_empty() || item.string("type").as_deref() == Some(kind))
            .filter_map(|item| item.string(key))
            .collect()
    };
    let content = || object.array("content").unwrap_or_default();
    match format {
        Format::Pi => {
            let answered = object.string("toolCallId").into_iter().collect();
            (named(content(), "toolCall", "id"), answered)
        }
        Format::Anthropic => {
            (named(content(), "tool_use", "id"), named(content(), "tool_result", "tool_use_id"))
        }
        Format::OpenaiChat => {
            let calls = object.array("tool_calls").unwrap_or_default();
            (named(calls, "", "id"), object.string("tool_call_id").into_iter().collect())
        }
        _ => {
            let kind = object.string("type").unwrap_or_default();
            let id = object.string("call_id").into_iter().collect();
            if kind.ends_with("_call") { (id, Vec::new()) } else { (Vec::new(), id) }
        }
    }
}

#[test]
fn half_characters_are_not_handed_on() {
    let cases = [
        (r#"{"a":"x\ud83d"}"#, r#"{"a":"x\ufffd"}"#),
        (r#"{"a":"\ude00\ud83d\ude00"}"#, r#"{"a":"\ufffd\ud83d\ude00"}"#),
        (r#"{"a":"\\ud83d\n\u00e9"}"#, r#"{"a":"\\ud83d\n\u00e9"}"#),
        (r#"{"a":"\ud83d\ud83d\ude00\""}"#, r#"{"a":"\ufffd\ud83d\ude00\""}"#),
    ];
    for (given, wanted) in cases {
        assert_eq!(super::dialect::whole_characters(&Raw::parse(given).expect("JSON")).get(), wanted);
    }
}
