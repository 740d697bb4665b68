//! Each rule of what a message means, by format.

use super::*;

fn raw(text: &str) -> Raw {
    Raw::parse(text).expect("valid JSON")
}

fn took(text: &str) -> Meaning {
    take(text, None, None).map_or_else(|error| panic!("{error}: {text}"), |(_, meaning)| meaning)
}

fn refused(text: &str) -> MessageError {
    take(text, None, None).map(|(raw, _)| panic!("took {raw:?}")).unwrap_err()
}

fn calls(meaning: &Meaning) -> Vec<(Option<&str>, &str, &str)> {
    meaning.calls.iter().map(|call| (call.id.as_deref(), call.tool.as_str(), call.args.get())).collect()
}

fn pi(text: &str) -> String {
    pi_message(&took(text), &raw(text), &[], 7).get().to_owned()
}

const PI: &str = r#"{"role":"assistant","content":[{"type":"thinking","thinking":"x"},{"type":"text","text":"All."},{"type":"toolCall","id":"c1","name":"read","arguments":{"b":1e2,"a":18446744073709551616}},{"type":"text","text":"two"},{"type":"toolCall","name":"mail"}],"stopReason":"toolUse","timestamp":3,"new":{}}"#;
const ANTHROPIC: &str = r#"{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"thinking","thinking":"x","signature":"s"},{"type":"text","text":"On "},{"type":"text","text":"it"},{"type":"server_tool_use","id":"srv","name":"web_search","input":{}},{"type":"tool_use","id":"toolu_1","name":"mail","input":{"to":"a"}}],"stop_reason":"tool_use","stop_sequence":null,"usage":{"output_tokens":3}}"#;
const CHAT: &str = r#"{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"mail","arguments":"{ \"to\" : \"a b\" }"}},{"id":"call_2","type":"custom","custom":{"name":"sh","input":"ls -l"}}]},"finish_reason":"tool_calls"}]}"#;
const RESPONSES: &str = r#"{"id":"resp_1","object":"response","status":"completed","error":null,"output":[{"type":"reasoning","id":"rs","summary":[]},{"type":"message","id":"m","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Hi","annotations":[]},{"type":"refusal","refusal":"!"}]},{"type":"web_search_call","id":"ws","status":"failed"},{"type":"function_call","id":"fc_1","call_id":"call_1","name":"mail","arguments":"{}","status":"completed"},{"type":"local_shell_call","id":"l","call_id":"call_2","action":{"command":["ls"]},"status":"completed"}]}"#;

#[test]
fn formats_have_one_word_each() {
    for format in Format::ALL {
        assert_eq!(format.to_string().parse(), Ok(format));
    }
    assert_eq!(Format::AnthropicSse.stored(), Format::Anthropic);
    assert_eq!(Format::OpenaiChatSse.stored(), Format::OpenaiChat);
    assert!("auto".parse::<Format>().is_err());
}

#[test]
fn calls_and_texts_of_each_format() {
    let message = took(PI);
    assert_eq!(
        (message.format, message.role, message.text.as_str()),
        (Format::Pi, Role::Assistant, "All.\ntwo")
    );
    assert_eq!(
        calls(&took(PI)),
        [(Some("c1"), "read", r#"{"b":1e2,"a":18446744073709551616}"#), (None, "mail", "{}")]
    );
    let message = took(ANTHROPIC);
    assert_eq!((message.format, message.text.as_str()), (Format::Anthropic, "On it"));
    assert_eq!(calls(&message), [(Some("toolu_1"), "mail", r#"{"to":"a"}"#)]);
    let message = took(CHAT);
    assert_eq!((message.format, message.text.as_str()), (Format::OpenaiChat, ""));
    assert_eq!(
        calls(&message),
        [(Some("call_1"), "mail", r#"{"to":"a b"}"#), (Some("call_2"), "sh", "\"ls -l\"")]
    );
    let message = took(RESPONSES);
    assert_eq!((message.format, message.text.as_str()), (Format::OpenaiResponses, "Hi!"));
    assert_eq!(
        calls(&message),
        [(Some("call_1"), "mail", "{}"), (Some("call_2"), "local_shell", r#"{"command":["ls"]}"#)]
    );
    for text in [PI, ANTHROPIC, CHAT, RESPONSES] {
        let (kept, message) = take(&text.replace(":{", " : {"), None, None).expect("a message");
        assert_eq!(
            (kept.get(), &message.ending, message.role_word.as_str()),
            (text, &Ending::Complete, "assistant")
        );
        assert_eq!(meaning(message.format, &kept), Ok(message));
    }
}

#[test]
fn old_and_bare_forms_are_messages_too() {
    let legacy = took(r#"{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{}"}}"#);
    assert_eq!(calls(&legacy), [(None, "f", "{}")]);
    let bare = took(
        r#"{"role":"assistant","content":"Hi","tool_calls":[{"id":"","type":"function","function":{"name":"f"}}]}"#,
    );
    assert_eq!((calls(&bare), bare.text.as_str()), (vec![(Some(""), "f", "{}")], "Hi"));
    let refusal = took(r#"{"role":"assistant","content":null,"refusal":"No."}"#);
    assert_eq!((refusal.format, refusal.text.as_str()), (Format::OpenaiChat, "No."));
    let silent = took(r#"{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}"#);
    assert_eq!(silent.role, Role::Assistant);
    let items = took(
        r#"[{"type":"reasoning","id":"r","summary":[]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}","status":"incomplete"}]"#,
    );
    assert_eq!((items.role, items.ending), (Role::Assistant, Ending::CutOff("incomplete".to_owned())));
    let items = took(
        r#"[{"type":"web_search_call","id":"w","status":"failed"},{"type":"message","role":"assistant","content":"x"}]"#,
    );
    assert_eq!((items.ending, items.text.as_str()), (Ending::Complete, "x"));
    let plain = [
        (r#"{"role":"assistant","content":[{"type":"text","text":"x"}]}"#, Format::Pi),
        (r#"{"role":"user","content":"x","timestamp":1}"#, Format::Pi),
        (r#"{"role":"user","content":"x"}"#, Format::OpenaiChat),
        (
            r#"{"type":"message","role":"assistant","content":[{"type":"text","text":"x"}]}"#,
            Format::Anthropic,
        ),
        (
            r#"{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]}"#,
            Format::OpenaiResponses,
        ),
    ];
    for (text, format) in plain {
        assert_eq!((took(text).format, took(text).text.as_str()), (format, "x"), "{text}");
    }
}

#[test]
fn string_arguments_are_the_json_in_them() {
    let deep = "[".repeat(1_001) + &"]".repeat(1_001);
    let cases = [
        (r#""{ \"a\" : [1, 2] }""#.to_owned(), r#"{"a":[1,2]}"#.to_owned()),
        (r#""{\"a\":\"\\ud800\"}""#.to_owned(), r#"{"a":"\ud800"}"#.to_owned()),
        (r#""5""#.to_owned(), "5".to_owned()),
        (r#""{\"a\":\u0020""#.to_owned(), r#""{\"a\":\u0020""#.to_owned()),
        (r#""""#.to_owned(), r#""""#.to_owned()),
        (format!("\"{deep}\""), format!("\"{deep}\"")),
        ("null".to_owned(), "{}".to_owned()),
        ("[1]".to_owned(), "[1]".to_owned()),
    ];
    for (given, kept) in cases {
        let text = format!(
            r#"{{"role":"assistant","tool_calls":[{{"id":"c","function":{{"name":"f","arguments":{given}}}}}]}}"#
        );
        assert_eq!(calls(&took(&text)), [(Some("c"), "f", kept.as_str())]);
    }
}

#[test]
fn lone_surrogates_in_names_and_ids_are_replaced() {
    let text = r#"{"role":"assistant","content":[{"type":"toolCall","id":"a\ud800","name":"\udc00b","arguments":{"x":"\ud800"}}],"stopReason":"toolUse"}"#;
    assert_eq!(calls(&took(text)), [(Some("a\u{fffd}"), "\u{fffd}b", r#"{"x":"\ud800"}"#)]);
}

#[test]
fn of_doubled_keys_the_last_counts() {
    let text = r#"{"role":"user","role":"assistant","content":"a","stopReason":"length","content":[{"type":"toolCall","id":"1","id":"2","name":"f"}],"stopReason":"stop"}"#;
    let message = took(text);
    assert_eq!((message.role.clone(), message.ending.clone()), (Role::Assistant, Ending::Complete));
    assert_eq!(calls(&message), [(Some("2"), "f", "{}")]);
}

#[test]
fn only_known_stop_reasons_are_complete() {
    let pi = |reason: &str| {
        format!(
            r#"{{"role":"assistant","content":[{{"type":"toolCall","id":"c","name":"f"}}],"stopReason":{reason}}}"#
        )
    };
    let anthropic = |reason: &str| {
        ANTHROPIC.replace(r#""stop_reason":"tool_use""#, &format!(r#""stop_reason":{reason}"#))
    };
    let chat = |reason: &str| {
        CHAT.replace(r#""finish_reason":"tool_calls""#, &format!(r#""finish_reason":{reason}"#))
    };
    let responses = |reason: &str| {
        RESPONSES.replace(r#""status":"completed","error""#, &format!(r#""status":{reason},"error""#))
    };
    let ending = |text: String| took(&text).ending;
    let cut = |word: &str| Ending::CutOff(word.to_owned());
    let failed = |word: &str| Ending::Failed(word.to_owned());
    for complete in ["\"stop\"", "\"toolUse\""] {
        assert_eq!(ending(pi(complete)), Ending::Complete);
    }
    for complete in ["\"end_turn\"", "\"stop_sequence\"", "\"tool_use\"", "null"] {
        assert_eq!(ending(anthropic(complete)), Ending::Complete);
    }
    for complete in ["\"stop\"", "\"tool_calls\"", "\"function_call\"", "null"] {
        assert_eq!(ending(chat(complete)), Ending::Complete);
    }
    assert_eq!(ending(anthropic("\"pause_turn\"")), Ending::Paused);
    assert_eq!(ending(pi("\"length\"")), cut("length"));
    assert_eq!(ending(pi("\"tool_use\"")), cut("tool_use"));
    assert_eq!(ending(pi("7")), cut("7"));
    assert_eq!(ending(pi("\"error\"")), failed("error"));
    assert_eq!(ending(pi("\"aborted\"")), failed("aborted"));
    assert_eq!(ending(anthropic("\"max_tokens\"")), cut("max_tokens"));
    assert_eq!(ending(anthropic("\"refusal\"")), cut("refusal"));
    assert_eq!(ending(chat("\"length\"")), cut("length"));
    assert_eq!(ending(chat("\"pause_turn\"")), cut("pause_turn"));
    assert_eq!(ending(chat("\"error\"")), cut("error"), "failed is Pi's and Responses' word only");
    for word in ["incomplete", "in_progress", "queued"] {
        assert_eq!(ending(responses(&format!("\"{word}\""))), cut(word));
    }
    for word in ["failed", "cancelled"] {
        assert_eq!(ending(responses(&format!("\"{word}\""))), failed(word));
    }
    assert!(cut("x").is_cut_off() && failed("x").is_cut_off() && !Ending::Paused.is_cut_off());
    assert!(!cut("x").is_failed() && failed("x").is_failed());
}

#[test]
fn tool_results_are_found_in_each_format() {
    let cases = [
        (
            r#"{"role":"toolResult","toolCallId":"c","toolName":"f","content":[{"type":"text","text":"x"}],"isError":true}"#,
            Some("f"),
            true,
        ),
        (r#"{"role":"tool","tool_call_id":"c","content":"x"}"#, None, false),
        (
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"x","is_error":true}]}"#,
            None,
            true,
        ),
        (r#"{"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":"x"}]}"#, None, false),
        (r#"{"type":"function_call_output","call_id":"c","output":"x"}"#, None, false),
        (
            r#"{"type":"custom_tool_call_output","call_id":"c","output":[{"type":"input_text","text":"x"}]}"#,
            None,
            false,
        ),
    ];
    for (text, tool, error) in cases {
        let message = took(text);
        assert_eq!(message.role, Role::ToolResult, "{text}");
        let [answer] = message.answers.as_slice() else { panic!("{text}") };
        assert_eq!(
            (answer.call_id.as_str(), answer.tool.as_deref(), answer.error),
            ("c", tool, error),
            "{text}"
        );
        let expected = format!(
            r#"{{"role":"toolResult","toolCallId":"d","toolName":"f","content":[{{"type":"text","text":"x"}}],"isError":{error}"#
        );
        let result = pi_result("d", "f", &answer.raw, answer.error, 7);
        assert!(result.get().starts_with(&expected), "{} from {text}", result.get());
        assert_eq!(pi_result("d", "f", &raw(text), answer.error, 7), result);
    }
    let mixed = took(
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"x"},{"type":"text","text":"and"}]}"#,
    );
    assert_eq!((mixed.role, mixed.answers.len(), mixed.text.as_str()), (Role::User, 1, "and"));
}

#[test]
fn what_is_no_message_is_refused_with_its_reason() {
    assert_eq!(refused(" \n"), MessageError::Empty);
    assert!(matches!(refused("Hello"), MessageError::Json(RawError::Syntax(_))));
    assert!(matches!(refused(&"[".repeat(5_000)), MessageError::Json(RawError::TooDeep { depth: 5_000 })));
    for text in ["7", "\"Hello\"", "{}", "[]", "[1]", r#"{"role":"assistant"}"#, r#"{"output":[{"a":1}]}"#] {
        assert_eq!(refused(text), MessageError::Unknown, "{text}");
    }
    let choice = r#"{"message":{"role":"assistant","content":"x"}}"#;
    assert_eq!(refused(&format!(r#"{{"choices":[{choice},{choice}]}}"#)), MessageError::Choices(2));
    assert_eq!(refused(r#"{"choices":[]}"#), MessageError::Choices(0));
    assert!(matches!(refused(r#"{"choices":[{"delta":{"content":"x"}}]}"#), MessageError::Shape { .. }));
    assert_eq!(
        refused(r#"{"error":{"message":"overloaded"}}"#),
        MessageError::Provider(r#"{"message":"overloaded"}"#.to_owned())
    );
    assert_eq!(
        refused(r#"{"type":"message","id":"a","parentId":null,"message":{"role":"user","content":"x"}}"#),
        MessageError::TreeEntry
    );
    let unnamed = r#"{"role":"assistant","content":[{"type":"toolCall","id":"c"}],"stopReason":"toolUse"}"#;
    assert_eq!(refused(unnamed), MessageError::NoTool { position: 0 });
    took(&unnamed.replace("toolUse", "length"));
    let failed =
        took(r#"{"object":"response","status":"failed","error":{"code":"server_error"},"output":[]}"#);
    assert_eq!(failed.ending, Ending::Failed("failed".to_owned()));
}

#[test]
fn a_said_format_and_role_must_fit() {
    let said = |text: &str, format, role| take(text, format, role).map(|(_, meaning)| meaning);
    for (text, seen) in [
        (PI, Format::Pi),
        (ANTHROPIC, Format::Anthropic),
        (CHAT, Format::OpenaiChat),
        (RESPONSES, Format::OpenaiResponses),
    ] {
        assert!(said(text, Some(seen), None).is_ok());
        for given in [Format::Pi, Format::Anthropic, Format::OpenaiChat, Format::OpenaiResponses] {
            if given != seen {
                assert_eq!(said(text, Some(given), None), Err(MessageError::OtherFormat { given, seen }));
            }
        }
    }
    let plain = r#"{"role":"assistant","content":"x"}"#;
    assert_eq!(
        said(plain, Some(Format::Anthropic), None).map(|message| message.format),
        Ok(Format::Anthropic)
    );
    let nobody = r#"{"content":[{"type":"text","text":"x"}]}"#;
    assert_eq!(said(nobody, None, None), Err(MessageError::NoRole));
    let message = said(nobody, None, Some("assistant")).expect("a message");
    assert_eq!((message.role.clone(), message.role_word.as_str()), (Role::Assistant, "assistant"));
    assert_eq!(meaning(Format::Pi, &raw(nobody)).expect("stored").with_role("assistant"), message);
    assert_eq!(
        pi_message(&message, &raw(nobody), &[], 7).get(),
        r#"{"role":"assistant","content":[{"type":"text","text":"x"}]}"#
    );
    let (body, given) = ("assistant".to_owned(), "user".to_owned());
    assert_eq!(said(plain, None, Some("user")), Err(MessageError::OtherRole { body, given }));
    assert!(said(plain, None, Some("assistant")).is_ok());
    assert!(matches!(
        said("data: [DONE]\n\n", Some(Format::OpenaiChat), None),
        Err(MessageError::Shape { .. })
    ));
    assert!(matches!(said(CHAT, Some(Format::OpenaiChatSse), None), Err(MessageError::Shape { .. })));
}

const ANTHROPIC_SSE: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":9,"output_tokens":1}}}

event: ping
data: {"type": "ping"}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"S=="}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Hé \ud83d"}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"\ude00 \"q\""}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"toolu_1","name":"mail","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"to\": \"a"}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":" b\"}"}}

event: content_block_start
data: {"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"toolu_2","name":"now","input":{}}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":null,"output_tokens":89}}

event: message_stop
data: {"type":"message_stop"}

"#;

const ANTHROPIC_ASSEMBLED: &str = r#"{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"S=="},{"type":"text","text":"Hé \ud83d\ude00 \"q\""},{"type":"tool_use","id":"toolu_1","name":"mail","input":{"to":"a b"}},{"type":"tool_use","id":"toolu_2","name":"now","input":{}}],"model":"m","stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":9,"output_tokens":89}}"#;

const CHAT_SSE: &str = r#": a comment
data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","service_tier":"s","choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}],"usage":null}

data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"O"},"finish_reason":null}]}

data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"n it"},"finish_reason":null}]}

data: {"id":"x","choices":[{"index":0,"delta":{"content":null,"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"mail","arguments":""}}]},"finish_reason":null}]}

data: {"id":"x","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"now","arguments":"{}"}}]},"finish_reason":null}]}

data: {"id":"x","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"to\":"}}]},"finish_reason":null}]}

data: {"id":"x","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"a\"}"}}]},"finish_reason":null}]}

data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: {"id":"x","service_tier":null,"choices":[],"usage":{"total_tokens":5}}

data: [DONE]

"#;

const CHAT_ASSEMBLED: &str = r#"{"id":"x","object":"chat.completion","created":1,"model":"m","service_tier":"s","usage":{"total_tokens":5},"choices":[{"index":0,"message":{"role":"assistant","content":"On it","tool_calls":[{"id":"call_1","type":"function","function":{"name":"mail","arguments":"{\"to\":\"a\"}"}},{"id":"call_2","type":"function","function":{"name":"now","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}"#;

#[test]
fn a_stream_is_kept_as_the_message_it_adds_up_to() {
    let cases = [
        (ANTHROPIC_SSE, ANTHROPIC_ASSEMBLED, Format::AnthropicSse, "Hé 😀 \"q\""),
        (CHAT_SSE, CHAT_ASSEMBLED, Format::OpenaiChatSse, "On it"),
    ];
    for (stream, assembled, format, text) in cases {
        for said in [None, Some(format)] {
            for stream in
                [stream.to_owned(), stream.replace('\n', "\r\n"), format!("\u{feff}{}", stream.trim_end())]
            {
                let (kept, message) = take(&stream, said, None).expect("a stream");
                assert_eq!(kept.get(), assembled);
                assert_eq!((message.format, message.text.as_str()), (format.stored(), text));
                assert_eq!((message.role, message.ending), (Role::Assistant, Ending::Complete));
            }
        }
        assert_eq!(took(assembled).calls, took(stream).calls);
    }
    assert_eq!(
        calls(&took(ANTHROPIC_SSE)),
        [(Some("toolu_1"), "mail", r#"{"to":"a b"}"#), (Some("toolu_2"), "now", "{}")]
    );
    assert_eq!(
        calls(&took(CHAT_SSE)),
        [(Some("call_1"), "mail", r#"{"to":"a"}"#), (Some("call_2"), "now", "{}")]
    );
}

#[test]
fn an_event_may_take_several_lines() {
    let lines =
        "data: {\"choices\":\ndata:[{\"delta\":{\"content\":\"x\"}}]}\nid: 1\n\ndata:\n\ndata: [DONE]\n\n";
    for end in ["\n", "\r\n", "\r"] {
        assert_eq!(took(&lines.replace('\n', end)).text, "x", "{end:?}");
    }
}

#[test]
fn an_unfinished_stream_is_never_a_message() {
    for (stream, format) in [(ANTHROPIC_SSE, Format::AnthropicSse), (CHAT_SSE, Format::OpenaiChatSse)] {
        let whole = stream.trim_end().len();
        for cut in (0..whole).filter(|cut| stream.is_char_boundary(*cut)) {
            for said in [None, Some(format)] {
                let answer = take(&stream[..cut], said, None);
                assert!(answer.is_err(), "{:?} of {:?}", answer, &stream[cut.saturating_sub(40)..cut]);
            }
        }
    }
    let unfinished = take(&CHAT_SSE.replace("data: [DONE]", ""), None, None);
    assert_eq!(unfinished.map(|_| ()), Err(MessageError::Unfinished("[DONE]")));
    let unfinished = take(&ANTHROPIC_SSE.replace("message_stop", "other"), None, None);
    assert_eq!(unfinished.map(|_| ()), Err(MessageError::Unfinished("message_stop")));
}

#[test]
fn a_broken_stream_is_refused() {
    let lost = ANTHROPIC_SSE.replace(r#""index":1,"content_block""#, r#""index":2,"content_block""#);
    assert!(matches!(refused(&lost), MessageError::Stream { event: 7, .. }));
    assert!(matches!(refused(&ANTHROPIC_SSE.repeat(2)), MessageError::Stream { event: 18, .. }));
    assert!(matches!(refused(&CHAT_SSE.repeat(2)), MessageError::Stream { event: 11, .. }));
    let begun_twice =
        ANTHROPIC_SSE.replace(r#"{"type": "ping"}"#, r#"{"type":"message_start","message":{}}"#);
    assert!(matches!(refused(&begun_twice), MessageError::Stream { event: 2, .. }));
    let error = r#"data: {"type":"error","error":{"type":"overloaded_error"}}"#;
    let failed = ANTHROPIC_SSE.replace(r#"data: {"type":"message_stop"}"#, error);
    assert_eq!(refused(&failed), MessageError::Provider(r#"{"type":"overloaded_error"}"#.to_owned()));
    assert_eq!(refused(error), MessageError::Provider(r#"{"type":"overloaded_error"}"#.to_owned()));
    let failed = CHAT_SSE.replace(r#""choices":[],"usage""#, r#""error":{"code":502},"usage""#);
    assert_eq!(refused(&failed), MessageError::Provider(r#"{"code":502}"#.to_owned()));
    let several =
        CHAT_SSE.replacen(r#""index":0,"delta":{"content":"n"#, r#""index":1,"delta":{"content":"n"#, 1);
    assert_eq!(refused(&several), MessageError::Choices(2));
    assert!(matches!(refused("data: {\"type\":\"response.created\"}\n\n"), MessageError::Shape { .. }));
}

#[test]
fn a_stream_cut_off_by_its_length_keeps_half_an_argument_as_text() {
    let stream = ANTHROPIC_SSE
        .replace(r#" b\"}"#, " b")
        .replace(r#""stop_reason":"tool_use""#, r#""stop_reason":"max_tokens""#);
    let message = took(&stream);
    assert_eq!(message.ending, Ending::CutOff("max_tokens".to_owned()));
    assert_eq!(message.calls.first().map(|call| call.args.get()), Some(r#""{\"to\": \"a b""#));
}

#[test]
fn calls_that_a_provider_counts_alike_stay_apart() {
    let chunk = |delta: &str| {
        format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{delta}]}}}}]}}\n\n")
    };
    let call = |index: &str, id: &str, args: &str| {
        chunk(&format!(
            r#"{{{index}"id":"{id}","type":"function","function":{{"name":"f","arguments":"{args}"}}}}"#
        ))
    };
    for index in ["\"index\":0,", ""] {
        let stream = [
            call(index, "a", "[1"),
            call(index, "a", "]"),
            call(index, "b", "[2]"),
            "data: [DONE]".to_owned(),
        ];
        assert_eq!(
            calls(&took(&stream.concat())),
            [(Some("a"), "f", "[1]"), (Some("b"), "f", "[2]")],
            "{index}"
        );
    }
}

#[test]
fn other_formats_stand_as_pi_messages() {
    assert_eq!(pi(PI), PI, "Pi's own stays as it is");
    assert_eq!(
        pi(ANTHROPIC),
        r#"{"role":"assistant","content":[{"type":"text","text":"On "},{"type":"text","text":"it"},{"type":"toolCall","id":"toolu_1","name":"mail","arguments":{"to":"a"}}],"stopReason":"toolUse","timestamp":7}"#
    );
    assert_eq!(
        pi(CHAT),
        r#"{"role":"assistant","content":[{"type":"toolCall","id":"call_1","name":"mail","arguments":{"to":"a b"}},{"type":"toolCall","id":"call_2","name":"sh","arguments":{"arguments":"ls -l"}}],"stopReason":"toolUse","timestamp":7}"#
    );
    assert_eq!(
        pi(r#"{"role":"assistant","content":"caf\u00e9 \ud800"}"#),
        r#"{"role":"assistant","content":[{"type":"text","text":"caf\u00e9 \ud800"}],"stopReason":"stop","timestamp":7}"#
    );
    assert_eq!(
        pi(r#"{"role":"developer","content":"Be brief"}"#),
        r#"{"role":"system","content":"Be brief","timestamp":7}"#
    );
    assert_eq!(
        pi(
            r#"{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]}"#
        ),
        r#"{"role":"user","content":[{"type":"text","text":"see"},{"type":"image","data":"AA==","mimeType":"image/png"}],"timestamp":7}"#
    );
    assert_eq!(
        pi(r#"{"role":"tool","tool_call_id":"c","name":"f","content":"x"}"#),
        r#"{"role":"toolResult","toolCallId":"c","toolName":"f","content":[{"type":"text","text":"x"}],"isError":false,"timestamp":7}"#
    );
}

#[test]
fn assigned_ids_replace_the_bodys() {
    let ids = [Some("new-1".to_owned()), Some("new-2".to_owned())];
    let stands =
        |text: &str, ids: &[Option<String>]| pi_message(&took(text), &raw(text), ids, 7).get().to_owned();
    let expected = PI
        .replace(r#""id":"c1""#, r#""id":"new-1""#)
        .replace(r#"{"type":"toolCall","name":"mail"}"#, r#"{"id":"new-2","type":"toolCall","name":"mail"}"#);
    assert_eq!(stands(PI, &ids), expected);
    assert_eq!(stands(PI, &[None, Some("new-2".to_owned())]), expected.replace("new-1", "c1"));
    assert_eq!(stands(CHAT, &ids), pi(CHAT).replace("call_1", "new-1").replace("call_2", "new-2"));
    assert_eq!(stands(CHAT, &[None, Some("new-2".to_owned())]), pi(CHAT).replace("call_2", "new-2"));
}

#[test]
fn inputs_stand_as_user_messages() {
    let user = |input: &str| pi_user(&raw(input), 7).get().to_owned();
    let text = |spelled: &str| {
        format!(r#"{{"role":"user","content":[{{"type":"text","text":{spelled}}}],"timestamp":7}}"#)
    };
    assert_eq!(user(r#""a \ud800""#), text(r#""a \ud800""#));
    assert_eq!(user(r#"{"a":"b"}"#), text(r#""{\"a\":\"b\"}""#));
    assert_eq!(user("[]"), text("\"[]\""));
    assert_eq!(user("[1]"), text("\"[1]\""));
    assert_eq!(
        user(r#"[{"type":"text","text":"x","k":1}]"#),
        r#"{"role":"user","content":[{"type":"text","text":"x","k":1}],"timestamp":7}"#
    );
    let own = r#"{"content":[{"type":"text","text":"x"}],"role":"user","extra":1,"timestamp":3}"#;
    assert_eq!(user(own), own);
    assert_eq!(
        user(r#"{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]}"#),
        text("\"x\"")
    );
}

#[test]
fn results_stand_as_tool_results() {
    let result = |content: &str| pi_result("c", "f", &raw(content), true, 7).get().to_owned();
    let stands = |content: &str| {
        format!(
            r#"{{"role":"toolResult","toolCallId":"c","toolName":"f","content":{content},"isError":true,"timestamp":7}}"#
        )
    };
    let text = |spelled: &str| stands(&format!(r#"[{{"type":"text","text":{spelled}}}]"#));
    assert_eq!(result(r#""a \ud800""#), text(r#""a \ud800""#));
    assert_eq!(result("17"), text("\"17\""));
    assert_eq!(result("[]"), text("\"[]\""));
    assert_eq!(result(r#"[{"type":"row"}]"#), text(r#""[{\"type\":\"row\"}]""#));
    assert_eq!(result(r#"{"content":"x"}"#), text(r#""{\"content\":\"x\"}""#));
    assert_eq!(result(r#"{"content":[],"n":0}"#), text(r#""{\"content\":[],\"n\":0}""#));
    let blocks = r#"[{"type":"text","text":"x"},{"type":"image","data":"AA==","mimeType":"image/png"}]"#;
    assert_eq!(result(blocks), stands(blocks));
    assert_eq!(
        result(&format!(r#"{{"details":{{"d":1}},"content":{blocks},"isError":false}}"#)),
        stands(&format!(r#"{blocks},"details":{{"d":1}}"#))
    );
    assert_eq!(result(r#"{"content":[],"details":{}}"#), stands(r#"[],"details":{}"#));
    assert_eq!(result(r#"{"role":"tool","tool_call_id":"z"}"#), stands("[]"));
    let both = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"A"},{"type":"tool_result","tool_use_id":"c","content":"C"}]}"#;
    assert_eq!(result(both), text("\"C\""));
}

#[test]
fn a_pi_result_is_kept_whole_but_for_the_id() {
    let own = r#"{"x":1e2,"role":"toolResult","toolCallId":"z","toolCallId":"y","toolName":"g","details":{"a":1,"a":2},"content":[],"isError":true,"timestamp":3}"#;
    let result = |body: &str, error| pi_result("c", "f", &raw(body), error, 7).get().to_owned();
    assert_eq!(result(own, true), own.replace("\"y\"", "\"c\""));
    assert_eq!(
        result(own, false),
        own.replace("\"y\"", "\"c\"").replace("true", "false"),
        "the record decides"
    );
    assert_eq!(
        result(r#"{"role":"toolResult","content":[]}"#, false),
        r#"{"toolName":"f","toolCallId":"c","role":"toolResult","content":[]}"#
    );
}

#[test]
fn the_text_of_a_reply() {
    let text = |body: &str| text_of(&raw(body));
    assert_eq!(text(r#""Hi\n""#), "Hi\n");
    assert_eq!(text(ANTHROPIC), "On it");
    assert_eq!(text(RESPONSES), "Hi!");
    assert_eq!(
        text(r#"{"role":"assistant","content":[{"type":"text","text":"x"}],"stopReason":"stop"}"#),
        "x"
    );
    for data in [
        r#"{"a":1}"#,
        "17",
        r#"{"content":"x"}"#,
        r#"{"output":[{"a":1}]}"#,
        r#"[{"type":"text","text":"x"}]"#,
    ] {
        assert_eq!(text(data), data);
    }
}

#[test]
fn a_result_says_itself_whether_it_failed() {
    let says = |body: &str| result_is_error(&raw(body));
    assert_eq!(says(r#"{"role":"toolResult","isError":true}"#), Some(true));
    assert_eq!(says(r#"{"role":"toolResult","isError":false}"#), Some(false));
    assert_eq!(says(r#"{"content":[],"isError":true}"#), Some(true));
    assert_eq!(says(r#"{"type":"tool_result","is_error":true}"#), Some(true));
    assert_eq!(says(r#"{"role":"user","content":[{"type":"tool_result","is_error":true}]}"#), Some(true));
    for silent in [
        r#"{"role":"toolResult"}"#,
        r#"{"isError":true}"#,
        r#"{"is_error":true}"#,
        "\"x\"",
        r#"{"role":"tool","content":"x"}"#,
    ] {
        assert_eq!(says(silent), None, "{silent}");
    }
    assert_eq!(result_body("{ \"a\": 1 }\n").map(|body| body.get().to_owned()), Ok("{\"a\":1}".to_owned()));
    assert_eq!(result_body("true").map(|body| body.get().to_owned()), Ok("\"true\"".to_owned()));
}

#[test]
fn a_stream_that_ends_in_a_half_said_call_without_a_reason_is_unfinished() {
    let chat = |arguments: &str| {
        let call = format!(
            r#"{{"index":0,"id":"a","type":"function","function":{{"name":"f","arguments":{arguments}}}}}"#
        );
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{call}]}}}}]}}\n\ndata: [DONE]\n\n"
        )
    };
    take(&chat(r#""{\"x\":1}""#), None, None).expect("whole arguments");
    let half = take(&chat(r#""{\"x\":""#), None, None).expect_err("half of them");
    assert!(matches!(half, MessageError::Unfinished("finish_reason")), "{half}");
    let anthropic = |input: &str| {
        let events = [
            r#"{"type":"message_start","message":{"id":"m","type":"message","role":"assistant","content":[]}}"#.to_owned(),
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"f","input":{}}}"#.to_owned(),
            format!(r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"input_json_delta","partial_json":{input}}}}}"#),
            r#"{"type":"message_stop"}"#.to_owned(),
        ];
        events.map(|event| format!("data: {event}\n\n")).concat()
    };
    take(&anthropic(r#""{\"x\":1}""#), None, None).expect("a whole input");
    let half = take(&anthropic(r#""{\"x\":""#), None, None).expect_err("half of it");
    assert!(matches!(half, MessageError::Unfinished("stop_reason")), "{half}");
}

#[test]
fn pi_goes_on_from_content_that_is_an_array() {
    let opened = |role: &str, content: &str| {
        let message =
            raw(&format!(r#"{{"content":0,"role":"{role}","n":1e2,"content":{content},"d\u0061y":1}}"#));
        let opened = pi_opened(&message);
        assert_eq!(pi_opened(&opened), opened, "said again");
        assert_eq!(pi_opens(&message), content == "null" || opened == message, "{content}");
        let around =
            opened.get().strip_prefix(&format!(r#"{{"content":0,"role":"{role}","n":1e2,"content":"#));
        around.and_then(|rest| rest.strip_suffix(r#","d\u0061y":1}"#)).expect("all else stays").to_owned()
    };
    for role in ["assistant", "toolResult"] {
        assert_eq!(opened(role, r#""a\u0062\ud800""#), r#"[{"type":"text","text":"a\u0062\ud800"}]"#);
        assert_eq!(opened(role, r#""""#), "[]");
        assert_eq!(opened(role, "null"), "[]");
    }
    for role in ["user", "system"] {
        for content in [r#""a""#, r#""""#, "null", r#"[{"type":"text","text":"a"}]"#] {
            assert_eq!(opened(role, content), content);
        }
    }
    for role in ["assistant", "toolResult", "user", "system"] {
        assert_eq!(opened(role, "1e2"), r#"[{"type":"text","text":"1e2"}]"#);
        let mixed = r#"[{"type":"odd","x":1},"a",null,{"type":"text"}]"#;
        let shown = r#"[{"type":"odd","x":1},{"type":"text","text":"a"},{"type":"text","text":"null"},{"type":"text","text":"{\"type\":\"text\"}"}]"#;
        assert_eq!(opened(role, mixed), shown);
    }
    // Roles of Pi's own are its own business.
    assert_eq!(opened("bashExecution", "1"), "1");
    assert_eq!(pi_opened(&raw(r#"{"role":"assistant"}"#)).get(), r#"{"content":[],"role":"assistant"}"#);
    assert_eq!(pi_opened(&raw("7")), raw("7"));
}

#[test]
fn content_that_pi_cannot_go_on_from_is_refused() {
    let found = |content: &str, role: &str| {
        let refused = take(&format!(r#"{{"content":{content}}}"#), Some(Format::Pi), Some(role)).unwrap_err();
        let MessageError::PiContent { role: of, found } = refused else { panic!("{refused}") };
        assert_eq!(of, role);
        found
    };
    for role in ["assistant", "toolResult", "user", "system"] {
        assert_eq!(found("7", role), Content::Is("a number"));
        assert_eq!(found("{}", role), Content::Is("an object"));
        assert_eq!(found("true", role), Content::Is("true or false"));
        assert_eq!(found(r#"[{"type":"odd"},"x"]"#, role), Content::Item(1));
        assert_eq!(found(r#"[{"type":"text","text":7}]"#, role), Content::Item(0));
    }
    for fine in [r#""x""#, "null", "[]", r#"[{"type":"odd"}]"#] {
        take(&format!(r#"{{"content":{fine}}}"#), Some(Format::Pi), Some("assistant")).expect("taken");
    }
    take(r#"{"content":7}"#, Some(Format::Pi), Some("custom")).expect("Pi's own");
    let told =
        take(r#"{"role":"assistant","content":7,"stopReason":"stop"}"#, None, None).unwrap_err().to_string();
    assert!(told.ends_with("the content of this assistant message is a number"), "{told}");
}
