//! OpenAI Chat Completions: a message alone, a whole `chat.completion` of one choice, and saved streams.
//!
//! A stream is kept as the `chat.completion` that it adds up to, so that its finish reason is kept too.

use super::sse::{self, Fields, broken, inside};
use super::{Answered, Asked, Block, Ending, Format, MessageError, Parts, args, pi};
use crate::json::{Object, ObjectWriter, Raw, View};
use std::borrow::Cow;

/// Also of Responses: the words of both are OpenAI's.
pub(super) const COMPLETE: [&str; 4] = ["stop", "tool_calls", "function_call", "completed"];

pub(super) fn read(raw: &Raw) -> Result<Parts<'_>, MessageError> {
    let wrong = |why| MessageError::Shape { format: Format::OpenaiChat, why };
    let object = raw.view().object().ok_or_else(|| wrong("not an object"))?;
    let whole = object.get("choices").is_some();
    let (message, reason) = match object.view("choices") {
        Some(View::Array(choices)) => {
            let [choice] = *choices else { return Err(MessageError::Choices(choices.len())) };
            let choice = View::of(choice).object().ok_or_else(|| wrong("its choice is not an object"))?;
            let message = choice
                .object("message")
                .ok_or_else(|| wrong("its choice has no message; a stream is given whole"))?;
            (message, choice.get("finish_reason"))
        }
        Some(_) => return Err(wrong("its choices are no array")),
        None => {
            let reason = object.get("finish_reason");
            (object, reason)
        }
    };
    let ending = Ending::read(reason, &COMPLETE, &[]);
    // A whole response is the model's, whether it says so or not.
    let role = message.string("role").or_else(|| whole.then(|| "assistant".to_owned()));
    if matches!(role.as_deref(), Some("tool" | "function")) {
        let answer = Answered {
            call_id: message.string("tool_call_id").unwrap_or_default(),
            tool: message.string("name"),
            error: false,
            raw: raw.clone(),
        };
        let mut blocks = texts(&message);
        blocks.push(Block::Answer(answer));
        return Ok(Parts { role, ending, blocks });
    }
    let known = ["content", "tool_calls", "function_call", "refusal"];
    if known.iter().all(|key| message.get(key).is_none()) {
        return Err(wrong("no content and no calls"));
    }
    let mut blocks = texts(&message);
    for call in message.array("tool_calls").unwrap_or_default() {
        blocks.extend(View::of(call).object().map(|call| Block::Call(asked(&call))));
    }
    if let Some(call) = message.object("function_call") {
        blocks.push(Block::Call(named(None, &call)));
    }
    Ok(Parts { role, ending, blocks })
}

fn texts<'a>(message: &Object<'a>) -> Vec<Block<'a>> {
    let mut blocks = match message.get("content").map(|content| (content, View::of(content))) {
        Some((content, View::String(_))) => vec![Block::Text(Cow::Borrowed(content))],
        Some((_, View::Array(parts))) => parts.into_iter().filter_map(pi::part).collect(),
        _ => Vec::new(),
    };
    if let Some(refusal) = message.get("refusal").filter(|refusal| refusal.starts_with('"')) {
        blocks.push(Block::Text(Cow::Borrowed(refusal)));
    }
    blocks
}

fn asked(call: &Object<'_>) -> Asked {
    let id = call.string("id");
    match call.object("function").or_else(|| call.object("custom")) {
        Some(function) => named(id, &function),
        None => named(id, call),
    }
}

fn named(id: Option<String>, function: &Object<'_>) -> Asked {
    let value = function.get("arguments").or_else(|| function.get("input"));
    Asked { id, tool: function.string("name").unwrap_or_default(), args: args(value) }
}

/// The completion that a stream adds up to.
#[derive(Default)]
struct Assembly {
    completion: Fields,
    message: Fields,
    calls: Vec<Growing>,
    function_call: Option<Fields>,
    /// Index of the only choice, as spelled.
    choice: Option<String>,
    finish_reason: Option<String>,
    ended: bool,
}

/// One call while its deltas come.
#[derive(Default)]
struct Growing {
    index: Option<String>,
    fields: Fields,
    /// Key and content of its `function` or `custom`.
    function: Option<(String, Fields)>,
}

pub(super) fn assemble(events: &[String]) -> Result<Raw, MessageError> {
    let mut assembly = Assembly::default();
    for (number, data) in events.iter().enumerate() {
        if assembly.ended {
            return Err(broken(number, "the stream has already ended"));
        }
        if data.trim() == "[DONE]" {
            assembly.ended = true;
            continue;
        }
        let raw = sse::event(number, data)?;
        let chunk = raw.view().object().ok_or_else(|| broken(number, "not an object"))?;
        assembly.take(number, &chunk)?;
    }
    assembly.finish()
}

impl Assembly {
    fn take(&mut self, number: usize, chunk: &Object<'_>) -> Result<(), MessageError> {
        if let Some(error) = chunk.get("error").filter(|error| *error != "null") {
            return Err(MessageError::Provider(error.to_owned()));
        }
        for (key, value) in &chunk.0 {
            match key.as_str() {
                "choices" => {}
                "object" => self.completion.set(key, "\"chat.completion\""),
                // The counts come last, behind a `null` in each chunk before.
                _ if *value != "null" => self.completion.set(key, value),
                _ => {}
            }
        }
        for choice in chunk.array("choices").unwrap_or_default() {
            let choice =
                View::of(choice).object().ok_or_else(|| broken(number, "its choice is no object"))?;
            let index = choice.get("index").unwrap_or("0").to_owned();
            if *self.choice.get_or_insert_with(|| index.clone()) != index {
                return Err(MessageError::Choices(2));
            }
            if let Some(reason) = choice.get("finish_reason").filter(|reason| *reason != "null") {
                self.finish_reason = Some(reason.to_owned());
            }
            self.grow(&choice.object("delta").unwrap_or(Object(Vec::new())));
        }
        Ok(())
    }

    fn grow(&mut self, delta: &Object<'_>) {
        for (key, value) in &delta.0 {
            match (key.as_str(), View::of(value)) {
                ("tool_calls", View::Array(calls)) => {
                    calls.iter().filter_map(|call| View::of(call).object()).for_each(|call| self.call(&call));
                }
                ("function_call", View::Object(call)) => {
                    grow_function(self.function_call.get_or_insert_default(), &call);
                }
                ("tool_calls" | "function_call", _) => {}
                ("role", _) => self.message.grow_once(key, value),
                _ => self.message.grow(key, value),
            }
        }
    }

    fn call(&mut self, delta: &Object<'_>) {
        let index = delta.get("index").filter(|index| *index != "null").map(str::to_owned);
        let id = inside(delta.get("id").unwrap_or("")).to_owned();
        let same = |call: &mut Growing| {
            let place = index.is_none() || call.index == index;
            let theirs = call.fields.text("id");
            // Some providers count every call as 0: another id begins another call.
            place && (id.is_empty() || id == theirs || theirs.is_empty() && index.is_some())
        };
        let found = self.calls.iter_mut().rposition(same);
        let at = found.unwrap_or_else(|| {
            self.calls.push(Growing { index, ..Growing::default() });
            self.calls.len() - 1
        });
        let Some(call) = self.calls.get_mut(at) else { return };
        for (key, value) in &delta.0 {
            match (key.as_str(), View::of(value)) {
                ("index", _) | (_, View::Null) => {}
                ("function" | "custom", View::Object(function)) => {
                    let (_, fields) = call.function.get_or_insert_with(|| (key.clone(), Fields::default()));
                    grow_function(fields, &function);
                }
                ("id" | "type", _) if call.fields.text(key).is_empty() => call.fields.set(key, value),
                ("id" | "type", _) => {}
                _ => call.fields.grow(key, value),
            }
        }
    }

    fn finish(mut self) -> Result<Raw, MessageError> {
        if self.choice.is_none() {
            return Err(MessageError::Unfinished("choice"));
        }
        if !self.ended {
            return Err(MessageError::Unfinished("[DONE]"));
        }
        // A stream that does not tell why it ends, and leaves arguments half said, was cut in front of that.
        if self.finish_reason.is_none() && self.calls.iter_mut().any(Growing::is_half_said) {
            return Err(MessageError::Unfinished("finish_reason"));
        }
        if !self.message.has("role") {
            self.message.set("role", "\"assistant\"");
        }
        if !self.message.has("content") {
            self.message.set("content", "null");
        }
        if !self.calls.is_empty() {
            let calls: Vec<String> = self.calls.into_iter().map(Growing::finish).collect();
            self.message.set("tool_calls", &format!("[{}]", calls.join(",")));
        }
        if let Some(call) = self.function_call {
            self.message.set("function_call", call.finish().get());
        }
        let choice = ObjectWriter::default()
            .raw("index", self.choice.as_deref().unwrap_or("0"))
            .raw("message", self.message.finish().get())
            .raw("finish_reason", self.finish_reason.as_deref().unwrap_or("null"))
            .finish();
        self.completion.set("choices", &format!("[{}]", choice.get()));
        Ok(self.completion.finish())
    }
}

impl Growing {
    fn is_half_said(&mut self) -> bool {
        let arguments = self.function.as_mut().map(|(_, function)| function.text("arguments"));
        let said = arguments.and_then(|arguments| Raw::parse(&format!("\"{arguments}\"")).ok());
        said.is_some_and(|said| match said.view() {
            View::String(text) => !text.trim().is_empty() && Raw::parse(&text).is_err(),
            _ => false,
        })
    }

    fn finish(mut self) -> String {
        if let Some((key, function)) = self.function {
            self.fields.set(&key, function.finish().get());
        }
        self.fields.finish().get().to_owned()
    }
}

fn grow_function(fields: &mut Fields, delta: &Object<'_>) {
    for (key, value) in &delta.0 {
        if key == "name" {
            // Some providers repeat the name in each chunk.
            fields.grow_once(key, value);
        } else {
            fields.grow(key, value);
        }
    }
}
