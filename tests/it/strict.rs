//! What providers refuse in the messages of a request, one judge for each format of a context.
//!
//! Stricter than any one provider: what some of them refuse is refused. Nothing here knows how a context is built.

use serde_json::{Map, Value};
use std::collections::HashSet;

/// Whose rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    Pi,
    Anthropic,
    OpenaiChat,
    OpenaiResponses,
}

/// What the messages are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// The model is to answer: somebody must have said something to it.
    Request,
    /// To be looked at, or kept: the model may have had the last word.
    History,
}

impl Provider {
    pub const ALL: [Self; 4] = [Self::Pi, Self::Anthropic, Self::OpenaiChat, Self::OpenaiResponses];

    /// The word of `--format`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pi => "pi",
            Self::Anthropic => "anthropic",
            Self::OpenaiChat => "openai-chat",
            Self::OpenaiResponses => "openai-responses",
        }
    }

    /// Why the provider would refuse these messages, naming the first that is wrong.
    pub fn refusal(self, messages: &[Value], meant: Use) -> Option<String> {
        let judged = match self {
            Self::Pi => pi(messages, meant),
            Self::Anthropic => anthropic(messages, meant),
            Self::OpenaiChat => chat(messages, meant),
            Self::OpenaiResponses => responses(messages, meant),
        };
        judged.err()
    }
}

type Judged = Result<(), String>;

/// Calls that have no answer yet, and every id there ever was.
#[derive(Default)]
struct Calls {
    open: Vec<String>,
    ever: HashSet<String>,
}

impl Calls {
    fn ask(&mut self, id: &str) -> Judged {
        demand(!id.is_empty(), || "a call without an id".to_owned())?;
        demand(self.ever.insert(id.to_owned()), || format!("a second call {id:?}"))?;
        self.open.push(id.to_owned());
        Ok(())
    }

    fn answer(&mut self, id: &str) -> Judged {
        let at = self.open.iter().position(|open| open == id);
        self.open.remove(at.ok_or_else(|| format!("a result of {id:?}, which is no open call"))?);
        Ok(())
    }

    fn none_open(&self, before: &str) -> Judged {
        demand(self.open.is_empty(), || format!("{before} while calls have no result: {:?}", self.open))
    }
}

fn demand(good: bool, why: impl FnOnce() -> String) -> Judged {
    if good { Ok(()) } else { Err(why()) }
}

/// Judges one message after the other and says which one is wrong.
fn each(messages: &[Value], mut judge: impl FnMut(&Map<String, Value>) -> Judged) -> Judged {
    demand(!messages.is_empty(), || "no messages".to_owned())?;
    for (at, message) in messages.iter().enumerate() {
        let object = message.as_object().ok_or_else(|| format!("messages[{at}]: no object"));
        object.and_then(|object| judge(object).map_err(|why| format!("messages[{at}]: {why}: {message}")))?;
    }
    Ok(())
}

fn word<'a>(object: &'a Map<String, Value>, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn name(object: &Map<String, Value>) -> Judged {
    demand(!word(object, "name").is_empty(), || "a call without a name".to_owned())
}

/// Some providers read the arguments and hand them on as an object.
fn arguments(object: &Map<String, Value>) -> Judged {
    let text = object.get("arguments").and_then(Value::as_str).ok_or("arguments that are no string")?;
    let value: Value = serde_json::from_str(text).map_err(|error| format!("arguments: {error}"))?;
    demand(value.is_object(), || "arguments that are no object".to_owned())
}

fn only(object: &Map<String, Value>, known: &[&str]) -> Judged {
    let unknown = object.keys().find(|key| !known.contains(&key.as_str()));
    unknown.map_or(Ok(()), |key| Err(format!("unknown member {key}")))
}

/// A list of objects that is not empty.
fn objects(value: Option<&Value>) -> Result<Vec<&Map<String, Value>>, String> {
    let items = value.and_then(Value::as_array).ok_or("no list")?;
    demand(!items.is_empty(), || "an empty list".to_owned())?;
    items.iter().map(|item| item.as_object().ok_or_else(|| "an item that is no object".to_owned())).collect()
}

/// Text that says something.
fn says(value: Option<&Value>) -> Judged {
    let text = value.and_then(Value::as_str).ok_or("text that is no string")?;
    demand(!text.trim().is_empty(), || "empty text".to_owned())
}

// Chat Completions: <https://platform.openai.com/docs/api-reference/chat/create>, and what compatible servers add.

fn chat(messages: &[Value], meant: Use) -> Judged {
    let mut calls = Calls::default();
    // The old way to ask: one function, answered by its name.
    let mut function: Option<String> = None;
    let mut last = String::new();
    each(messages, |message| {
        let role = word(message, "role");
        if !matches!(role, "tool" | "function") {
            calls.none_open(role)?;
            demand(function.is_none(), || format!("{role} while a function has no result"))?;
        }
        role.clone_into(&mut last);
        match role {
            "system" | "developer" => chat_content(message, &["text"]),
            "user" => chat_content(message, &["text", "image_url", "input_audio", "file"]),
            "assistant" => {
                if let Some(asked) = message.get("function_call") {
                    let asked = asked.as_object().ok_or("a function_call that is no object")?;
                    name(asked)?;
                    arguments(asked)?;
                    function = Some(word(asked, "name").to_owned());
                }
                chat_said(message, &mut calls)
            }
            "tool" => {
                calls.answer(word(message, "tool_call_id"))?;
                chat_result(message)
            }
            "function" => {
                let asked = function.take().ok_or("a result of a function that was not asked for")?;
                demand(asked == word(message, "name"), || format!("the result of {asked} has another name"))?;
                chat_result(message)
            }
            _ => Err("an unknown role".to_owned()),
        }
    })?;
    calls.none_open("the end")?;
    demand(function.is_none(), || "the end while a function has no result".to_owned())?;
    ends_with(meant, &["user", "tool", "function"], &last)
}

fn ends_with(meant: Use, asking: &[&str], last: &str) -> Judged {
    demand(meant == Use::History || asking.contains(&last), || {
        format!("nothing to answer: the last word is of {last:?}")
    })
}

fn chat_content(message: &Map<String, Value>, kinds: &[&str]) -> Judged {
    match message.get("content") {
        Some(Value::Array(_)) => objects(message.get("content"))?.iter().try_for_each(|part| {
            let kind = word(part, "type");
            demand(kinds.contains(&kind), || format!("a part of type {kind:?}"))?;
            if kind == "text" { says(part.get("text")) } else { Ok(()) }
        }),
        content => says(content),
    }
}

fn chat_said(message: &Map<String, Value>, calls: &mut Calls) -> Judged {
    let asks = message.contains_key("tool_calls") || message.contains_key("function_call");
    let silent = matches!(message.get("content"), None | Some(Value::Null)) || message["content"] == "";
    if !silent {
        chat_content(message, &["text", "refusal"])?;
    }
    demand(!silent || asks || message.contains_key("refusal"), || "a message that says nothing".to_owned())?;
    let null = message.iter().find(|(key, value)| value.is_null() && *key != "content");
    demand(null.is_none(), || format!("a member that is null: {null:?}"))?;
    if !message.contains_key("tool_calls") {
        return Ok(());
    }
    objects(message.get("tool_calls"))?.into_iter().try_for_each(|call| {
        calls.ask(word(call, "id"))?;
        match word(call, "type") {
            "function" => {
                let function = call.get("function").and_then(Value::as_object).ok_or("no function")?;
                name(function)?;
                arguments(function)
            }
            "custom" => name(call.get("custom").and_then(Value::as_object).ok_or("no custom")?),
            kind => Err(format!("a call of type {kind:?}")),
        }
    })
}

/// A tool may have nothing to say, in a string; a list holds text that is none.
fn chat_result(message: &Map<String, Value>) -> Judged {
    match message.get("content") {
        Some(Value::String(_)) => Ok(()),
        Some(Value::Array(_)) => chat_content(message, &["text"]),
        _ => Err("a result without content".to_owned()),
    }
}

// Anthropic Messages: <https://docs.anthropic.com/en/api/messages>, roles alternating as Bedrock demands it.

fn anthropic(messages: &[Value], meant: Use) -> Judged {
    let mut calls = Calls::default();
    // The first message is the user's.
    let mut last = "assistant".to_owned();
    each(messages, |message| {
        only(message, &["role", "content"])?;
        let role = word(message, "role");
        demand(matches!(role, "user" | "assistant"), || "an unknown role".to_owned())?;
        demand(role != last, || format!("two messages of role {role} in a row"))?;
        role.clone_into(&mut last);
        if role == "assistant" {
            calls.none_open("the model")?;
        }
        let content = message.get("content");
        if matches!(content, Some(Value::String(_))) {
            calls.none_open("plain text")?;
            return says(content);
        }
        let blocks = objects(content)?;
        for block in &blocks {
            anthropic_block(role, block, &mut calls)?;
        }
        let thinks = blocks.last().is_some_and(|block| word(block, "type").ends_with("thinking"));
        demand(!thinks, || "a message that ends in thinking".to_owned())?;
        if role == "user" { calls.none_open("the end of the message behind them") } else { Ok(()) }
    })?;
    calls.none_open("the end")?;
    ends_with(meant, &["user"], &last)
}

fn anthropic_block(role: &str, block: &Map<String, Value>, calls: &mut Calls) -> Judged {
    let kind = word(block, "type");
    if role == "user" && kind != "tool_result" {
        calls.none_open("other content in front of the results")?;
    }
    match (role, kind) {
        (_, "text") => says(block.get("text")),
        ("assistant", "thinking") => {
            demand(!word(block, "signature").is_empty(), || "thinking without a signature".to_owned())
        }
        ("assistant", "redacted_thinking") => says(block.get("data")),
        ("assistant", "tool_use") => {
            let id = word(block, "id");
            let plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '-');
            demand(id.chars().all(plain), || format!("an id of other characters: {id:?}"))?;
            name(block)?;
            demand(block.get("input").is_some_and(Value::is_object), || {
                "an input that is no object".to_owned()
            })?;
            calls.ask(id)
        }
        // What Anthropic runs itself.
        ("assistant", kind) if kind.starts_with("server_tool") || kind.ends_with("_tool_result") => Ok(()),
        ("user", "image" | "document") => Ok(()),
        ("user", "tool_result") => {
            calls.answer(word(block, "tool_use_id"))?;
            let error = block.get("is_error").is_none_or(Value::is_boolean);
            demand(error, || "an is_error that is neither true nor false".to_owned())?;
            let silent = match block.get("content") {
                None => true,
                Some(Value::String(text)) => text.is_empty(),
                Some(content) => content.as_array().is_some_and(Vec::is_empty),
            };
            let failed = block.get("is_error") == Some(&Value::Bool(true));
            demand(!(silent && failed), || "an error that says nothing".to_owned())?;
            match block.get("content") {
                None | Some(Value::String(_)) => Ok(()),
                Some(Value::Array(parts)) => parts.iter().try_for_each(|part| match part["type"].as_str() {
                    Some("text") => says(part.get("text")),
                    Some("image" | "document" | "search_result") => Ok(()),
                    kind => Err(format!("a part of type {kind:?} in a result")),
                }),
                Some(_) => Err("a result whose content is neither text nor a list".to_owned()),
            }
        }
        _ => Err(format!("a block of type {kind:?} in a message of role {role:?}")),
    }
}

// Responses: <https://platform.openai.com/docs/api-reference/responses/create>.

fn responses(items: &[Value], meant: Use) -> Judged {
    let mut calls = Calls::default();
    let mut kinds: Vec<(String, String)> = Vec::new();
    let mut ids = HashSet::new();
    // Reasoning is refused without what it led to.
    let mut reasoned = false;
    // Several calls of one answer stand one behind the other, in front of their results.
    let mut answering = false;
    let mut last = String::new();
    each(items, |item| {
        let kind = word(item, "type");
        let role = word(item, "role");
        let id = word(item, "id");
        demand(id.is_empty() || ids.insert(id.to_owned()), || format!("a second item {id:?}"))?;
        if reasoned && (role == "user" || role == "system" || kind.ends_with("_output")) {
            return Err("reasoning that leads to nothing stands in front".to_owned());
        }
        reasoned = kind == "reasoning";
        if let Some(asked) = kind.strip_suffix("_output") {
            let called = word(item, "call_id");
            calls.answer(called)?;
            let pair = (called.to_owned(), asked.to_owned());
            demand(kinds.contains(&pair), || format!("{kind} for a call of another type"))?;
            answering = true;
            "tool".clone_into(&mut last);
            return output(item);
        }
        if answering || kind == "message" || kind == "reasoning" {
            calls.none_open(kind)?;
            answering = false;
        }
        match kind {
            "message" => {
                role.clone_into(&mut last);
                responses_message(role, item)
            }
            "reasoning" => demand(item.get("summary").is_some_and(Value::is_array), || {
                "reasoning without a summary".to_owned()
            }),
            "function_call" | "custom_tool_call" | "computer_call" | "local_shell_call" | "shell_call"
            | "apply_patch_call" => {
                "assistant".clone_into(&mut last);
                let called = word(item, "call_id");
                kinds.push((called.to_owned(), kind.to_owned()));
                calls.ask(called)?;
                match kind {
                    "function_call" => name(item).and_then(|()| arguments(item)),
                    "custom_tool_call" => name(item),
                    _ => Ok(()),
                }
            }
            _ if kind.ends_with("_call") => Ok(()),
            _ => Err(format!("an item of type {kind:?}")),
        }
    })?;
    calls.none_open("the end")?;
    demand(!reasoned, || "reasoning that leads to nothing at the end".to_owned())?;
    ends_with(meant, &["user", "tool"], &last)
}

fn responses_message(role: &str, item: &Map<String, Value>) -> Judged {
    let kinds: &[&str] = match role {
        "user" => &["input_text", "input_image", "input_file"],
        "system" | "developer" => &["input_text"],
        "assistant" => &["output_text", "refusal"],
        _ => return Err("an unknown role".to_owned()),
    };
    if matches!(item.get("content"), Some(Value::String(_))) {
        return says(item.get("content"));
    }
    objects(item.get("content"))?.into_iter().try_for_each(|part| {
        let kind = word(part, "type");
        demand(kinds.contains(&kind), || format!("a part of type {kind:?} in a message of role {role:?}"))?;
        if kind.ends_with("_text") { says(part.get("text")) } else { Ok(()) }
    })
}

fn output(item: &Map<String, Value>) -> Judged {
    match item.get("output") {
        Some(Value::String(_)) => Ok(()),
        Some(Value::Array(_)) => objects(item.get("output"))?.into_iter().try_for_each(|part| {
            let kind = word(part, "type");
            demand(kind.starts_with("input_"), || format!("a part of type {kind:?} in an output"))
        }),
        Some(Value::Object(_)) if word(item, "type") == "computer_call_output" => Ok(()),
        _ => Err("an output that is neither text nor a list".to_owned()),
    }
}

// Pi's own messages, as it hands them to any provider.

fn pi(messages: &[Value], meant: Use) -> Judged {
    let mut calls = Calls::default();
    let mut tools: Vec<(String, String)> = Vec::new();
    let mut last = String::new();
    each(messages, |message| {
        let role = word(message, "role");
        role.clone_into(&mut last);
        if role != "toolResult" {
            calls.none_open(role)?;
        }
        demand(message.get("timestamp").is_none_or(Value::is_u64), || "a timestamp that is none".to_owned())?;
        match role {
            "system" => demand(message.get("content").is_some_and(Value::is_string), || {
                "a system message that is no text".to_owned()
            }),
            "user" if matches!(message.get("content"), Some(Value::String(_))) => {
                says(message.get("content"))
            }
            "user" => pi_blocks(message, &["text", "image"]),
            "toolResult" => {
                let (id, tool) = (word(message, "toolCallId"), word(message, "toolName"));
                calls.answer(id)?;
                let known = tools.iter().any(|(asked, name)| asked == id && name == tool);
                demand(known, || format!("the result names another tool: {tool:?}"))?;
                demand(message.get("isError").is_some_and(Value::is_boolean), || {
                    "an isError that is neither true nor false".to_owned()
                })?;
                pi_blocks(message, &["text", "image"])
            }
            "assistant" => {
                let stop = word(message, "stopReason");
                demand(!matches!(stop, "error" | "aborted" | ""), || format!("stop reason {stop:?}"))?;
                pi_blocks(message, &["text", "thinking", "toolCall"])?;
                // Pi makes doubled ids of different messages distinct itself.
                calls.ever.clear();
                tools.clear();
                let blocks = message["content"].as_array().ok_or("no list")?;
                blocks.iter().filter(|block| block["type"] == "toolCall").try_for_each(|block| {
                    let call = block.as_object().ok_or("a block that is no object")?;
                    name(call)?;
                    demand(call.get("arguments").is_some_and(Value::is_object), || {
                        "arguments that are no object".to_owned()
                    })?;
                    tools.push((word(call, "id").to_owned(), word(call, "name").to_owned()));
                    calls.ask(word(call, "id"))
                })
            }
            _ => Err("a role that Pi does not hand on".to_owned()),
        }
    })?;
    calls.none_open("the end")?;
    ends_with(meant, &["user", "toolResult"], &last)
}

/// Pi leaves out empty text itself.
fn pi_blocks(message: &Map<String, Value>, kinds: &[&str]) -> Judged {
    let items = message.get("content").and_then(Value::as_array).ok_or("content that is no list")?;
    items.iter().try_for_each(|block| {
        let kind = block["type"].as_str().unwrap_or_default();
        demand(kinds.contains(&kind), || format!("a block of type {kind:?}"))?;
        demand(kind != "text" || block["text"].is_string(), || "text that is no string".to_owned())
    })
}

mod tests {
    //! Each rule refuses what it is there for, and good requests pass.

    use super::*;
    use serde_json::json;

    /// A request that is accepted, and edits of it that are not, each with a part of its reason.
    fn judge(provider: Provider, good: &Value, bad: &[(&str, Value, &str)]) {
        let refusal = |messages: &Value| provider.refusal(messages.as_array().unwrap(), Use::Request);
        assert_eq!(refusal(good), None);
        for (place, value, why) in bad {
            let mut edited = good.clone();
            let (parent, key) = place.rsplit_once('/').unwrap();
            match edited.pointer_mut(parent).unwrap() {
                Value::Array(items) if value.is_null() => {
                    items.remove(key.parse().unwrap());
                }
                Value::Array(items) if key.starts_with('+') => {
                    items.insert(key[1..].parse().unwrap(), value.clone())
                }
                Value::Array(items) => items[key.parse::<usize>().unwrap()] = value.clone(),
                Value::Object(object) if value == "-" => {
                    object.remove(key);
                }
                object => object[key] = value.clone(),
            }
            let refused = refusal(&edited).unwrap_or_else(|| panic!("accepted: {edited}"));
            assert!(refused.contains(why), "{place}: {refused:?} and not {why:?}");
        }
    }

    #[test]
    fn chat_completions() {
        let call =
            |id: &str| json!({"id": id, "type": "function", "function": {"name": "read", "arguments": "{}"}});
        let good = json!([
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": null, "tool_calls": [call("a"), call("b")]},
            {"role": "tool", "tool_call_id": "b", "content": ""},
            {"role": "tool", "tool_call_id": "a", "content": "x"},
        ]);
        let user = json!({"role": "user", "content": "more"});
        judge(
            Provider::OpenaiChat,
            &good,
            &[
                ("/3", Value::Null, "the end while calls have no result: [\"a\"]"),
                ("/1", Value::Null, "no open call"),
                ("/3/tool_call_id", json!("b"), "no open call"),
                ("/+2", user, "user while calls have no result"),
                ("/1/tool_calls/1/id", json!("a"), "a second call"),
                ("/1/tool_calls/1/id", json!(""), "without an id"),
                ("/1/tool_calls/0/function/arguments", json!("{\"a"), "arguments"),
                ("/1/tool_calls/0/function/arguments", json!("7"), "no object"),
                ("/1/tool_calls/0/type", json!("tool"), "a call of type"),
                ("/1/tool_calls", json!([]), "an empty list"),
                ("/2/content", Value::Null, "without content"),
                ("/0/content", json!(""), "empty text"),
                ("/0/content", json!([]), "an empty list"),
                ("/0/role", json!("custom"), "unknown role"),
                ("/+4", json!({"role": "assistant", "content": null}), "says nothing"),
                ("/+4", json!({"role": "assistant", "content": "bye"}), "nothing to answer"),
            ],
        );
        let old = json!([
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": null, "function_call": {"name": "read", "arguments": "{}"}},
            {"role": "function", "name": "read", "content": "x"},
        ]);
        judge(
            Provider::OpenaiChat,
            &old,
            &[
                ("/2/name", json!("write"), "another name"),
                ("/2", Value::Null, "while a function has no result"),
                ("/1", Value::Null, "not asked for"),
            ],
        );
    }

    #[test]
    fn anthropic_messages() {
        let good = json!([
            {"role": "user", "content": [{"type": "text", "text": "go"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "", "signature": "s"},
                {"type": "tool_use", "id": "a", "name": "read", "input": {}},
                {"type": "tool_use", "id": "b", "name": "read", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": true},
                {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "x"}]},
                {"type": "text", "text": "and hurry"}]},
        ]);
        let text = json!({"type": "text", "text": "first"});
        judge(
            Provider::Anthropic,
            &good,
            &[
                ("/2", Value::Null, "the end while calls have no result"),
                ("/2/content/0", Value::Null, "while calls have no result: [\"a\"]"),
                ("/2/content/+0", text, "in front of the results"),
                ("/2/content/1/tool_use_id", json!("a"), "no open call"),
                ("/2/content/1/content/0/text", json!(" "), "empty text"),
                ("/2/content/2/text", json!(""), "empty text"),
                ("/2/content", json!("x"), "plain text while calls"),
                ("/0", Value::Null, "two messages of role assistant in a row"),
                ("/+1", json!({"role": "user", "content": "more"}), "in a row"),
                ("/1/content/1/input", json!("half"), "no object"),
                (
                    "/1/content/+3",
                    json!({"type": "thinking", "thinking": "", "signature": "s"}),
                    "ends in thinking",
                ),
                ("/2/content/0/content", json!([]), "says nothing"),
                ("/1/content/1/id", json!("a|b"), "other characters"),
                ("/1/content/2/id", json!("a"), "a second call"),
                ("/1/content/0/signature", json!(""), "without a signature"),
                ("/0/content", json!([]), "an empty list"),
                ("/0/role", json!("system"), "unknown role"),
                ("/0/timestamp", json!(1), "unknown member"),
                ("/+3", json!({"role": "assistant", "content": "bye"}), "nothing to answer"),
            ],
        );
    }

    #[test]
    fn responses_items() {
        let good = json!([
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
            {"type": "reasoning", "id": "rs", "summary": []},
            {"type": "function_call", "id": "fc", "call_id": "a", "name": "read", "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "x"},
            {"type": "function_call_output", "call_id": "a", "output": ""},
            {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "y"}]},
        ]);
        let said = json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]});
        judge(
            Provider::OpenaiResponses,
            &good,
            &[
                ("/5", Value::Null, "the end while calls have no result"),
                ("/2", Value::Null, "no open call"),
                ("/5/call_id", json!("a"), "no open call"),
                ("/5/type", json!("function_call_output"), "another type"),
                ("/+4", said.clone(), "while calls have no result"),
                ("/+6", said, "nothing to answer"),
                ("/+1", json!({"type": "reasoning", "id": "fc", "summary": []}), "a second item"),
                ("/+6", json!({"type": "reasoning", "id": "r2", "summary": []}), "leads to nothing"),
                ("/2/arguments", json!("{"), "arguments"),
                ("/2/call_id", json!(""), "without an id"),
                ("/3/call_id", json!("a"), "a second call"),
                ("/4/output", Value::Null, "neither text nor a list"),
                ("/0/content/0/type", json!("output_text"), "a part of type"),
                ("/0/content/0/text", json!(""), "empty text"),
                ("/0/content", json!([]), "an empty list"),
                ("/0/role", json!("tool"), "unknown role"),
            ],
        );
    }

    #[test]
    fn pi_messages() {
        let good = json!([
            {"role": "user", "content": "go", "timestamp": 1},
            {"role": "assistant", "stopReason": "toolUse", "timestamp": 2, "content": [
                {"type": "toolCall", "id": "a", "name": "read", "arguments": {}}]},
            {"role": "toolResult", "toolCallId": "a", "toolName": "read", "content": [], "isError": false,
             "timestamp": 3},
        ]);
        judge(
            Provider::Pi,
            &good,
            &[
                ("/2", Value::Null, "the end while calls have no result"),
                ("/1", Value::Null, "no open call"),
                ("/2/toolName", json!("write"), "another tool"),
                ("/2/isError", json!("-"), "isError"),
                ("/2/timestamp", json!("now"), "a timestamp that is none"),
                ("/1/stopReason", json!("error"), "stop reason"),
                ("/1/content/0/arguments", json!("x"), "no object"),
                ("/1/content/0/id", json!(""), "without an id"),
                ("/0/role", json!("custom"), "does not hand on"),
                ("/+2", json!({"role": "user", "content": "more", "timestamp": 4}), "user while calls"),
            ],
        );
    }

    #[test]
    fn the_last_word_may_be_the_models_in_a_history() {
        let said = [json!({"role": "user", "content": "go"}), json!({"role": "assistant", "content": "bye"})];
        assert_eq!(Provider::OpenaiChat.refusal(&said, Use::History), None);
        assert!(Provider::OpenaiChat.refusal(&said, Use::Request).is_some());
        assert!(Provider::OpenaiChat.refusal(&[], Use::History).is_some());
    }
}
