//! The messages of `inspect --context` after every kind of crash, in every format, under the judges of `strict`.
//!
//! Each story is told in the model's messages of every provider, and looked at behind every crash in it;
//! with `TURNKEEP_SLOW=1` behind every step.

use crate::kit::*;
use crate::strict::{Provider, Use};
use serde_json::{Value, json};

/// How a provider spells what a story says.
#[derive(Clone, Copy)]
struct Speech(Provider);

type Call<'a> = (&'a str, &'a str, &'a str);

impl Speech {
    /// A model's message: text, then calls (id, tool, arguments as they are sent), and how it ended.
    fn message(self, said: &str, calls: &[Call], ending: Ending) -> Value {
        let asks = !calls.is_empty();
        let parsed = |arguments: &str| serde_json::from_str(arguments).unwrap_or(json!(arguments));
        match self.0 {
            Provider::Pi => {
                let calls: Vec<(&str, &str, Value)> =
                    calls.iter().map(|(id, tool, arguments)| (*id, *tool, whole(arguments))).collect();
                let stop = match ending {
                    Ending::Good => ["stop", "toolUse"][usize::from(asks)],
                    Ending::CutOff => "length",
                    Ending::Failed => "error",
                };
                assistant_ending(stop, said, &calls)
            }
            Provider::Anthropic => {
                let text = (!said.is_empty()).then(|| json!({"type": "text", "text": said}));
                let calls = calls.iter().map(
                    |(id, tool, arguments)| json!({"type": "tool_use", "id": id, "name": tool, "input": parsed(arguments)}),
                );
                let content: Vec<Value> = text.into_iter().chain(calls).collect();
                let stop = match ending {
                    Ending::Good => ["end_turn", "tool_use"][usize::from(asks)],
                    Ending::CutOff => "max_tokens",
                    Ending::Failed => "refusal",
                };
                json!({"id": "msg", "type": "message", "role": "assistant", "model": "m", "content": content,
                       "stop_reason": stop, "usage": {"input_tokens": 1, "output_tokens": 1}})
            }
            Provider::OpenaiChat => {
                let content = if said.is_empty() { Value::Null } else { json!(said) };
                let mut message = json!({"role": "assistant", "content": content, "refusal": null});
                if asks {
                    message["tool_calls"] = calls
                        .iter()
                        .map(|(id, tool, arguments)| {
                            json!({"id": id, "type": "function", "function": {"name": tool, "arguments": arguments}})
                        })
                        .collect();
                }
                let finish = match ending {
                    Ending::Good => ["stop", "tool_calls"][usize::from(asks)],
                    Ending::CutOff => "length",
                    Ending::Failed => "content_filter",
                };
                json!({"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": finish}]})
            }
            Provider::OpenaiResponses => {
                let text = (!said.is_empty()).then(|| {
                    json!({"type": "message", "role": "assistant", "content": [
                        {"type": "output_text", "text": said, "annotations": []}]})
                });
                let calls = calls.iter().map(|(id, tool, arguments)| {
                    json!({"type": "function_call", "call_id": id, "name": tool, "arguments": arguments})
                });
                let output: Vec<Value> = text.into_iter().chain(calls).collect();
                let status = match ending {
                    Ending::Good => "completed",
                    Ending::CutOff => "incomplete",
                    Ending::Failed => "failed",
                };
                json!({"object": "response", "status": status, "output": output})
            }
        }
    }

    /// Whether a message that ended so is left out, with its calls.
    fn leaves_out(self, ending: Ending) -> bool {
        ending == Ending::Failed && matches!(self.0, Provider::Pi | Provider::OpenaiResponses)
    }

    /// A result in the provider's own form.
    fn result(self, id: &str, tool: &str, said: &str) -> Value {
        match self.0 {
            Provider::Pi => tool_result(id, tool, said, false),
            Provider::Anthropic => {
                json!({"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": said}]})
            }
            Provider::OpenaiChat => json!({"role": "tool", "tool_call_id": id, "content": said}),
            Provider::OpenaiResponses => {
                json!({"type": "function_call_output", "call_id": id, "output": said})
            }
        }
    }

    /// Results that say nothing, in the ways there are.
    fn silent_results(self, id: &str, tool: &str) -> Vec<Value> {
        let whole = self.result(id, tool, "");
        let key = if self.0 == Provider::OpenaiResponses { "output" } else { "content" };
        let with = |content: Value| {
            let mut result = whole.clone();
            result[key] = content;
            result
        };
        let mut without = whole.clone();
        without.as_object_mut().unwrap().remove(key);
        let blank = match self.0 {
            Provider::OpenaiResponses => json!([{"type": "input_text", "text": ""}]),
            _ => json!([{"type": "text", "text": " "}]),
        };
        vec![whole.clone(), with(json!([])), with(Value::Null), with(blank), without]
    }

    /// A user's message in the provider's own form.
    fn user(self, said: &str) -> Value {
        match self.0 {
            Provider::OpenaiResponses => {
                json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": said}]})
            }
            Provider::OpenaiChat => json!({"role": "user", "content": said}),
            Provider::Anthropic => json!({"role": "user", "content": [{"type": "text", "text": said}]}),
            Provider::Pi => user(said),
        }
    }
}

/// Pi hands on what it could read of arguments that were cut off.
fn whole(arguments: &str) -> Value {
    serde_json::from_str(arguments).ok().filter(Value::is_object).unwrap_or(json!({}))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Good,
    CutOff,
    Failed,
}

/// A story while it is told.
struct Play {
    sandbox: Sandbox,
    speech: Speech,
    owner: Option<Owner>,
    ticket: String,
    /// The model wants to be asked again for the rest of its own message.
    paused: bool,
    /// Calls of the turn that its context has to hold.
    calls: usize,
    /// Calls that stood in the session file before.
    calls_before: usize,
}

const TREE: [&str; 4] = ["--tree", "chat.jsonl", "--tree-mode", "append"];

impl Play {
    fn begin(provider: Provider) -> Self {
        Self::admitted(provider, &TREE)
    }

    fn admitted(provider: Provider, args: &[&str]) -> Self {
        let sandbox = Sandbox::new();
        sandbox.policy(json!([
            {"tool": "look", "replay": "safe"},
            {"tool": "put", "replay": "keyed"},
            {"tool": "charge", "replay": "never", "unknown": "hold"},
            {"tool": "deploy", "replay": "never", "approval": "required"},
        ]));
        sandbox.write("chat.jsonl", earlier());
        let owner = Owner::start();
        let ticket = sandbox.admit(&owner, "s", &[&["--turn", "t1"], args].concat());
        let calls_before = if args.contains(&"--tree") { 2 } else { 0 };
        let play = Self {
            sandbox,
            speech: Speech(provider),
            owner: Some(owner),
            ticket,
            paused: false,
            calls: 0,
            calls_before,
        };
        play.look("admitted");
        play
    }

    /// Records a model's message and answers with its seq.
    fn says(&mut self, said: &str, calls: &[Call]) -> u64 {
        self.says_ending(said, calls, Ending::Good)
    }

    fn says_ending(&mut self, said: &str, calls: &[Call], ending: Ending) -> u64 {
        let body = self.speech.message(said, calls, ending);
        self.records(&body, if self.speech.leaves_out(ending) { 0 } else { calls.len() })
    }

    fn records(&mut self, body: &Value, calls: usize) -> u64 {
        let seq = self.sandbox.step_in(&self.ticket, ["message", "-"], body.to_string()).ok().seq();
        self.calls += calls;
        self.glance(&format!("message {seq}"));
        seq
    }

    fn step(&self, words: &[&str]) -> Ran {
        let ran = self.sandbox.step(&self.ticket, words);
        self.glance(&words.join(" "));
        ran
    }

    /// A look that is worth its time only where there is much.
    #[track_caller]
    fn glance(&self, when: &str) {
        if std::env::var_os("TURNKEEP_SLOW").is_some() {
            self.look(when);
        }
    }

    fn claim(&self, call: &str) {
        self.step(&["claim", call]).ok();
    }

    fn result(&self, call: &str, body: &str) {
        self.sandbox.step_in(&self.ticket, ["result", call, "-"], body).ok();
        self.glance(&format!("result of {call}"));
    }

    fn runs(&self, call: &str) {
        self.claim(call);
        self.result(call, &format!("done {call}"));
    }

    fn person(&self, words: &[&str]) {
        let words: Vec<&str> =
            ["step"].iter().chain(words).chain(&["--session", "s", "--by", "ada"]).copied().collect();
        self.sandbox.cmd(&words).stdin("as ada saw it").go().ok();
        self.glance(&words.join(" "));
    }

    fn steers(&self, words: &str) {
        self.sandbox.run(["step", "steer", "--session", "s", "--text", words]).ok();
        self.look("steered");
    }

    /// The owner dies, and nobody has taken the turn over yet.
    fn dies(&mut self) {
        self.owner.take().unwrap().die();
        self.glance("the owner died");
    }

    /// The owner dies and another process takes the turn over.
    fn crash(&mut self) {
        self.crash_recovering(&[]);
    }

    fn crash_recovering(&mut self, args: &[&str]) {
        self.dies();
        let owner = Owner::start();
        self.ticket = self.sandbox.recover(&owner, "s", args);
        self.owner = Some(owner);
        self.look("recovered");
    }

    /// The model is asked again, says the last word, and the turn ends; a crash before each.
    fn ends(&mut self) {
        self.crash();
        assert_eq!(self.next(), "call_model");
        self.says("That is all.", &[]);
        self.crash();
        self.step(&["settle"]).ok();
        self.look_at(&["--turn", "t1"], "closed");
    }

    fn next(&self) -> String {
        let next = self.sandbox.run(["inspect", "s", "--next"]).ok().stdout;
        next.split_whitespace().next().unwrap().to_owned()
    }

    #[track_caller]
    fn look(&self, when: &str) {
        self.look_at(&[], when);
    }

    /// What each provider would be asked with now is what it accepts.
    #[track_caller]
    fn look_at(&self, args: &[&str], when: &str) {
        let next = self.next();
        let meant = if next == "call_model" && !self.paused { Use::Request } else { Use::History };
        for provider in Provider::ALL {
            let format = provider.word();
            let how = format!("{} messages as {format}, {when}", self.speech.0.word());
            let words = ["inspect", "s", "--context", "--format", format];
            let ran = self.sandbox.run(words.iter().chain(args));
            if ran.code() == 6 {
                assert_ne!(next, "call_model", "{how}: {}", ran.all());
                assert!(ran.stderr.contains("no answer for call"), "{how}: {}", ran.all());
                return;
            }
            let context = ran.ok().json();
            let messages = context.as_array().unwrap();
            if let Some(why) = provider.refusal(messages, meant) {
                panic!("{how}: refused: {why}\n{context:#}");
            }
            let found = calls_in(provider, messages);
            assert_eq!(found, self.calls_before + self.calls, "{how}: calls of {context:#}");
        }
    }
}

fn calls_in(provider: Provider, messages: &[Value]) -> usize {
    let blocks = |message: &Value, kind: &str| {
        let blocks = message["content"].as_array().into_iter().flatten();
        blocks.filter(|block| block["type"] == kind).count()
    };
    let count = |message: &Value| match provider {
        Provider::Pi => blocks(message, "toolCall"),
        Provider::Anthropic => blocks(message, "tool_use"),
        Provider::OpenaiChat => message["tool_calls"].as_array().map_or(0, Vec::len),
        Provider::OpenaiResponses => usize::from(
            message["call_id"].is_string() && !message["type"].as_str().unwrap().ends_with("_output"),
        ),
    };
    messages.iter().map(count).sum()
}

/// A session file with a call that nobody answered, and one that was.
fn earlier() -> String {
    let asked = [("old|1", "look", json!({})), ("old|2", "look", json!({}))];
    tree(&[
        header(),
        entry("a0", None, &json!({"role": "system", "content": "Be brief.", "timestamp": 1})),
        entry("a1", Some("a0"), &user("What changed today?")),
        entry("a2", Some("a1"), &assistant("", &asked)),
        entry("a3", Some("a2"), &tool_result("old|2", "look", "nothing", false)),
        entry("a4", Some("a3"), &assistant("Nothing.", &[])),
    ])
}

/// Tells a story in the messages of every provider.
fn in_each(story: impl Fn(Play)) {
    for provider in Provider::ALL {
        story(Play::begin(provider));
    }
}

const ARGS: &str = r#"{"n":1}"#;

#[test]
fn before_and_after_each_step_of_a_call() {
    in_each(|mut play| {
        play.crash();
        let seq = play.says("", &[("c1", "look", ARGS), ("c2", "mail", ARGS), ("c3", "mail", "{}")]);
        play.crash();
        play.claim(&format!("{seq}.0"));
        play.crash();
        play.runs(&format!("{seq}.0"));
        play.crash();
        // In the middle of the batch.
        play.claim(&format!("{seq}.1"));
        play.crash();
        play.runs(&format!("{seq}.2"));
        play.ends();
    });
}

#[test]
fn every_row_of_the_decision_table() {
    for outcome in ["applied", "not_applied", "unknown"] {
        in_each(|mut play| {
            let seq = play.says(
                "All of it.",
                &[
                    ("c0", "mail", ARGS),
                    ("c1", "mail", ARGS),
                    ("c2", "look", ARGS),
                    ("c3", "put", ARGS),
                    ("c4", "charge", ARGS),
                    ("c5", "mail", ARGS),
                    ("c6", "deploy", ARGS),
                    ("c7", "deploy", "{}"),
                ],
            );
            let call = |position: u8| format!("{seq}.{position}");
            play.runs(&call(0));
            (1..5).for_each(|position| play.claim(&call(position)));
            play.crash();
            play.crash();
            [2, 3, 5].iter().for_each(|position| play.runs(&call(*position)));
            play.person(&["approve", &call(6)]);
            play.person(&["deny", &call(7), "--reason", "too late"]);
            play.runs(&call(6));
            match outcome {
                "applied" => play.person(&["reconcile", &call(4), "--outcome", "applied", "-"]),
                outcome => play.person(&["reconcile", &call(4), "--outcome", outcome]),
            }
            if outcome == "not_applied" {
                play.crash();
                play.runs(&call(4));
            }
            play.crash();
            play.ends();
        });
    }
}

#[test]
fn a_message_that_was_cut_off() {
    in_each(|mut play| {
        play.says_ending("", &[("c1", "look", ARGS), ("c2", "mail", r#"{"to": "ad"#)], Ending::CutOff);
        play.crash();
        // Arguments that can be read and are none.
        let seq = play.says("", &[("c3", "look", "7"), ("c4", "look", r#""x""#), ("c5", "look", "[]")]);
        (0..3).for_each(|position| play.runs(&format!("{seq}.{position}")));
        let seq = play.says("", &[("c6", "look", "")]);
        play.runs(&format!("{seq}.0"));
        play.ends();
    });
}

#[test]
fn a_message_that_ended_in_an_error() {
    in_each(|mut play| {
        play.says_ending("Hm", &[("c1", "mail", ARGS)], Ending::Failed);
        play.crash();
        let seq = play.says("", &[("c2", "look", ARGS)]);
        play.runs(&format!("{seq}.0"));
        play.says_ending("", &[], Ending::Failed);
        play.crash();
        play.steers("Are you there?");
        play.ends();
    });
}

#[test]
fn a_model_that_says_nothing() {
    in_each(|mut play| {
        play.says("", &[]);
        play.steers("Well?");
        play.crash();
        play.says(" ", &[]);
        play.steers("Say it.");
        let seq = play.says(" ", &[("c1", "look", "{}")]);
        play.runs(&format!("{seq}.0"));
        play.ends();
    });
}

#[test]
fn a_turn_that_was_cancelled() {
    in_each(|mut play| {
        let seq = play.says("", &[("c1", "mail", ARGS), ("c2", "mail", ARGS), ("c3", "look", ARGS)]);
        play.claim(&format!("{seq}.0"));
        play.runs(&format!("{seq}.2"));
        play.person(&["cancel"]);
        play.crash();
        play.says("Stopped.", &[]);
        play.step(&["settle"]).ok();
        play.look_at(&["--turn", "t1"], "cancelled");
    });
}

#[test]
fn calls_that_are_closed_or_never_run() {
    in_each(|mut play| {
        let seq = play.says("", &[("c1", "look", ARGS), ("c2", "mail", ARGS), ("c3", "look", ARGS)]);
        play.claim(&format!("{seq}.0"));
        play.step(&["result", &format!("{seq}.2"), "--not-run"]).ok();
        play.crash_recovering(&["--close-calls"]);
        play.ends();
    });
}

#[test]
fn work_that_was_handed_on() {
    in_each(|mut play| {
        let seq = play.says("", &[("c1", "mail", ARGS), ("c2", "mail", ARGS), ("c3", "mail", ARGS)]);
        let call = |position: u8| format!("{seq}.{position}");
        play.step(&["dispatch", &call(0), "--to", "farm", "--receipt", "job 1"]).ok();
        play.step(&["dispatch", &call(1), "--to", "farm"]).ok();
        let first = play.ticket.clone();
        play.crash();
        play.runs(&call(2));
        // From the attempt that handed it on.
        play.sandbox.step_in(&first, ["result", &call(0), "-"], "done there").ok();
        play.look("a result of an earlier attempt");
        play.person(&["reconcile", &call(1), "--outcome", "unknown"]);
        play.ends();
    });
}

#[test]
fn messages_that_joined_the_turn() {
    in_each(|mut play| {
        play.steers("one");
        play.crash();
        let seq = play.says("", &[("c1", "look", ARGS), ("c2", "mail", ARGS)]);
        play.steers("two");
        play.runs(&format!("{seq}.0"));
        let body = play.speech.user("three").to_string();
        let words = ["step", "steer", "--session", "s", "-"];
        play.sandbox.cmd(words).stdin(body).go().ok();
        play.claim(&format!("{seq}.1"));
        play.crash();
        play.steers("four");
        play.says("So be it.", &[]);
        play.steers("five");
        play.ends();
    });
}

#[test]
fn entries_of_the_agent_and_their_compaction() {
    // From the call on, and from its result on, which then answers nothing.
    for (kept, calls) in [("m2", 1), ("m3", 0)] {
        in_each(|mut play| {
            let line = |id: &str, parent: &str, message: &Value| entry(id, Some(parent), message).to_string();
            let enter = |play: &Play, line: String| {
                play.sandbox.step_in(&play.ticket, ["entry", "-"], line).ok().seq()
            };
            enter(&play, line("m1", "a4", &user("Do it")));
            let seq = enter(&play, line("m2", "m1", &assistant("", &[("k", "look", json!({}))])));
            play.calls = 1;
            play.claim(&format!("{seq}.0"));
            enter(&play, line("m3", "m2", &tool_result("k", "look", "", false)));
            play.look("the agent's own result");
            play.crash();
            let compaction = json!({"type": "compaction", "id": "m4", "parentId": "m3", "summary": "They spoke.",
                "timestamp": "2026-01-05T09:00:09.000Z", "firstKeptEntryId": kept, "tokensBefore": 9});
            enter(&play, compaction.to_string());
            (play.calls, play.calls_before) = (calls, 0);
            play.look("compacted");
            let note = json!({"type": "custom_message", "id": "m5", "parentId": "m4", "customType": "note",
                "content": "by the way", "display": true, "timestamp": "2026-01-05T09:00:09.000Z"});
            enter(&play, note.to_string());
            play.look("a note");
            let seq = play.says("", &[("k", "mail", ARGS)]);
            play.claim(&format!("{seq}.0"));
            play.ends();
        });
    }
}

#[test]
fn calls_inside_calls() {
    in_each(|mut play| {
        let seq = play.says("", &[("c1", "look", ARGS), ("c2", "mail", ARGS)]);
        let parent = format!("{seq}.0");
        play.claim(&parent);
        play.step(&["claim", "n1", "--tool", "mail", "--args", "{}", "--parent", &parent]).ok();
        play.crash();
        play.runs(&format!("{seq}.1"));
        play.ends();
    });
}

#[test]
fn results_that_came_too_late() {
    in_each(|mut play| {
        let seq = play.says("", &[("c1", "mail", ARGS), ("c2", "look", ARGS)]);
        let call = format!("{seq}.0");
        play.claim(&call);
        play.claim(&format!("{seq}.1"));
        let old = play.ticket.clone();
        play.crash();
        for call in [&call, &format!("{seq}.1")] {
            play.sandbox.step_in(&old, ["result", call, "-"], "late").exits(5);
            play.look("a straggler");
        }
        play.runs(&format!("{seq}.1"));
        play.ends();
    });
}

#[test]
fn a_turn_that_was_parked() {
    in_each(|mut play| {
        for _ in 0..4 {
            play.crash();
        }
        play.dies();
        play.sandbox.run(["recover", "s", "--owner-pid", "none"]).exits(14);
        assert_eq!(play.next(), "unpark");
        play.look("parked");
        let owner = Owner::start();
        play.ticket = play.sandbox.recover(&owner, "s", &["--unpark", "--by", "ada", "--why", "mended"]);
        play.owner = Some(owner);
        play.look("unparked");
        play.ends();
    });
}

#[test]
fn ids_that_are_used_again_or_missing() {
    in_each(|mut play| {
        for _ in 0..3 {
            let seq = play.says("", &[("call_0", "mail", ARGS), ("call_1", "mail", ARGS)]);
            play.runs(&format!("{seq}.0"));
            play.claim(&format!("{seq}.1"));
            play.crash();
        }
        let body = play.speech.message(
            "",
            &[("", "look", ARGS), ("x", "look", ARGS), ("x", "look", ARGS)],
            Ending::Good,
        );
        let seq =
            play.sandbox.step_in(&play.ticket, ["message", "--assign-ids", "-"], body.to_string()).ok().seq();
        play.calls += 3;
        (0..3).for_each(|position| play.runs(&format!("{seq}.{position}")));
        play.ends();
    });
}

#[test]
fn results_in_the_providers_own_form() {
    in_each(|mut play| {
        let silent = play.speech.silent_results("c", "look").len();
        for which in 0..silent {
            let seq = play.says("", &[("c", "look", ARGS), ("d", "mail", ARGS), ("e", "mail", ARGS)]);
            let call = |position: u8| format!("{seq}.{position}");
            play.claim(&call(0));
            play.claim(&call(1));
            play.result(&call(0), &play.speech.silent_results("c", "look")[which].to_string());
            play.result(&call(1), &play.speech.result("d", "mail", "sent").to_string());
            play.claim(&call(2));
            // As a message of its own.
            let told = play.speech.silent_results("e", "mail")[which].clone();
            let told = if play.speech.0 == Provider::Anthropic {
                json!({"role": "user", "content": [told, {"type": "text", "text": "and more"}]})
            } else {
                told
            };
            play.records(&told, 0);
            play.crash();
        }
        play.ends();
    });
}

#[test]
fn results_that_are_images_or_data() {
    in_each(|mut play| {
        let image =
            json!({"content": [{"type": "image", "data": "QQ==", "mimeType": "image/png"}]}).to_string();
        let seq = play
            .says("", &[("c", "look", ARGS), ("d", "look", ARGS), ("e", "look", ARGS), ("f", "look", ARGS)]);
        for (position, body) in [image.as_str(), "", r#"{"a": [1]}"#, "[]"].iter().enumerate() {
            let call = format!("{seq}.{position}");
            play.claim(&call);
            if body.is_empty() {
                play.step(&["result", &call, "--error"]).ok();
            } else {
                play.result(&call, body);
            }
        }
        play.steers("look at it");
        play.ends();
    });
}

#[test]
fn runs_with_and_without_output() {
    in_each(|mut play| {
        let seq = play.says("", &[("c", "mail", ARGS), ("d", "mail", ARGS), ("e", "mail", ARGS)]);
        for (position, command) in ["true", "exit 3", "echo yes"].iter().enumerate() {
            play.step(&["run", &format!("{seq}.{position}"), "--", "sh", "-c", command]).ok();
        }
        play.ends();
    });
}

#[test]
fn inputs_of_every_form() {
    for provider in Provider::ALL {
        for speaker in Provider::ALL {
            let input = Speech(speaker).user("Do it").to_string();
            let mut play = Play::admitted(provider, &[]);
            play.ends();
            let owner = Owner::start();
            play.sandbox.write("input.json", input);
            play.ticket = play.sandbox.admit(&owner, "s", &["--turn", "t2", "--input", "input.json"]);
            play.owner = Some(owner);
            play.look("another turn");
            let seq = play.says("", &[("c", "mail", ARGS)]);
            play.claim(&format!("{seq}.0"));
            play.crash();
        }
    }
}

#[test]
fn what_a_model_thought() {
    let thoughts = [
        (
            Provider::Anthropic,
            json!({"type": "message", "role": "assistant", "stop_reason": "tool_use", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": ""},
                {"type": "tool_use", "id": "c", "name": "look", "input": {}}]}),
            json!({"type": "message", "role": "assistant", "stop_reason": "pause_turn", "content": [
                {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "srv", "content": []}]}),
        ),
        (
            Provider::OpenaiChat,
            json!({"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}),
            json!({"choices": [{"message": {"role": "assistant", "content": "", "reasoning_content": null},
                "finish_reason": "length"}]}),
        ),
        (
            Provider::OpenaiResponses,
            json!({"object": "response", "status": "completed", "output": [
                {"type": "reasoning", "id": "rs", "summary": []},
                {"type": "function_call", "id": "fc", "call_id": "c", "name": "look", "arguments": "{}"}]}),
            json!({"object": "response", "status": "incomplete", "output": [
                {"type": "reasoning", "id": "rs2", "summary": []},
                {"type": "message", "id": "ms", "role": "assistant", "status": "incomplete", "content": []}]}),
        ),
        (
            Provider::Pi,
            json!({"role": "assistant", "api": "anthropic-messages", "stopReason": "toolUse", "timestamp": 1,
                "content": [{"type": "thinking", "thinking": "hm", "thinkingSignature": "s"},
                {"type": "toolCall", "id": "c", "name": "look", "arguments": {}}]}),
            json!({"role": "assistant", "content": [], "stopReason": "length", "timestamp": 1}),
        ),
    ];
    for (provider, asks, only_thinks) in thoughts {
        let mut play = Play::begin(provider);
        let seq = play.records(&asks, 1);
        play.claim(&format!("{seq}.0"));
        play.crash();
        play.runs(&format!("{seq}.0"));
        play.crash();
        play.paused = provider == Provider::Anthropic;
        play.records(&only_thinks, 0);
        play.paused = false;
        play.steers("Go on.");
        play.ends();
    }
}

#[test]
fn a_later_turn_on_the_same_session_file() {
    in_each(|mut play| {
        let seq = play.says("", &[("c", "mail", ARGS), ("d", "mail", r#""x""#)]);
        play.claim(&format!("{seq}.0"));
        play.runs(&format!("{seq}.1"));
        play.ends();
        play.calls_before += 2;
        play.calls = 0;
        let owner = Owner::start();
        play.ticket = play.sandbox.admit(&owner, "s", &[&["--turn", "t2"], &TREE[..]].concat());
        play.owner = Some(owner);
        play.look("a later turn");
        let seq = play.says("", &[("c", "look", ARGS)]);
        play.claim(&format!("{seq}.0"));
        play.crash();
        play.runs(&format!("{seq}.0"));
        play.crash();
    });
}
