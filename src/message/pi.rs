//! Pi messages: what they mean, and how messages, inputs and results of other formats stand as Pi's.
//!
//! A body that is Pi's already keeps its bytes; where an id has to differ, or Pi could not go on from its content,
//! only that value is replaced.
//! Nothing here knows a session tree: entries, ids and parents are built around these messages.

use super::{
    Answered, Asked, Block, Content, Ending, Format, Meaning, MessageError, Parts, Role, args, parts, type_of,
};
use crate::json::{Object, ObjectWriter, Raw, View};
use std::borrow::Cow;

const COMPLETE: [&str; 2] = ["stop", "toolUse"];
const FAILED: [&str; 2] = ["error", "aborted"];

/// The Pi message with the texts and calls of `raw`, whose meaning is `meaning`.
///
/// A Pi body stays as it is, but for what [`pi_opened`] does. `ids` replace the ids of its calls, by position, where
/// they are `Some`. A message of tool results becomes that of its first one; a message of several is given to
/// [`pi_result`] one by one.
pub fn pi_message(meaning: &Meaning, raw: &Raw, ids: &[Option<String>], timestamp_ms: i64) -> Raw {
    let assigned = |position: usize| ids.get(position).and_then(Option::as_deref);
    if meaning.format == Format::Pi {
        return pi_opened(&with_ids(&with_role(raw, &meaning.role_word), &assigned));
    }
    if let (Role::ToolResult, Some(answer)) = (&meaning.role, meaning.answers.first()) {
        let tool = answer.tool.as_deref().unwrap_or_default();
        return pi_result(&answer.call_id, tool, &answer.raw, answer.error, timestamp_ms);
    }
    let message = ObjectWriter::default().string("role", meaning.role.word());
    let message = match meaning.role {
        Role::System => message.string("content", &meaning.text),
        Role::User | Role::ToolResult | Role::Other(_) => {
            message.raw("content", &blocks(meaning, raw, &assigned))
        }
        Role::Assistant => message
            .raw("content", &blocks(meaning, raw, &assigned))
            .string("stopReason", if meaning.calls.is_empty() { "stop" } else { "toolUse" }),
    };
    message.raw("timestamp", &timestamp_ms.to_string()).finish()
}

/// The Pi user message for an input: text, content blocks, a user message, or other JSON as its text.
pub fn pi_user(input: &Raw, timestamp_ms: i64) -> Raw {
    let content = match input.view() {
        View::Object(object) if object.string("role").as_deref() == Some("user") => match object
            .view("content")
        {
            Some(View::Array(items)) if !items.iter().all(|item| is_block(item)) => content_blocks(&items),
            Some(View::Array(_) | View::String(_)) => return input.clone(),
            _ => None,
        },
        View::Array(items) if !items.is_empty() => content_blocks(&items),
        _ => None,
    };
    ObjectWriter::default()
        .string("role", "user")
        .raw("content", &content.unwrap_or_else(|| text_block(input)))
        .raw("timestamp", &timestamp_ms.to_string())
        .finish()
}

/// The Pi toolResult message for a result's `content`, as the answer to `call_id`.
///
/// A body that is one already is kept whole but for the id, `isError` where the record says otherwise, and what
/// [`pi_opened`] does.
pub fn pi_result(call_id: &str, tool: &str, content: &Raw, is_error: bool, timestamp_ms: i64) -> Raw {
    let (blocks, beside) = match structure(content.get()) {
        Some(View::Object(message)) if message.string("role").as_deref() == Some("toolResult") => {
            return pi_opened(&readdressed(content, &message, call_id, tool, is_error));
        }
        Some(View::Object(object)) => result_blocks(&object, call_id),
        Some(View::Array(items)) if !items.is_empty() => (content_blocks(&items), Vec::new()),
        _ => (None, Vec::new()),
    };
    let message = ObjectWriter::default()
        .string("role", "toolResult")
        .string("toolCallId", call_id)
        .string("toolName", tool)
        .raw("content", &blocks.unwrap_or_else(|| text_block(content)));
    beside
        .into_iter()
        .fold(message, |message, (key, value)| message.raw(&key, value))
        .raw("isError", if is_error { "true" } else { "false" })
        .raw("timestamp", &timestamp_ms.to_string())
        .finish()
}

/// A Pi message with content that Pi can go on from; all its other bytes stay.
///
/// Pi opens what it likes and goes through the content of a model's message or a tool result as an array: a string
/// becomes one text block, nothing an empty array. What Pi could not show is shown as JSON.
pub fn pi_opened(message: &Raw) -> Raw {
    let Some(object) = message.view().object() else { return message.clone() };
    let Some(opened) = opened(&object) else { return message.clone() };
    let mut edits = Edits::of(message);
    edits.set(&object, "content", &opened);
    edits.finish()
}

/// Whether Pi can go on from a message as it is; no content at all it reads as an empty array itself.
pub fn pi_opens(message: &Raw) -> bool {
    let Some(object) = message.view().object() else { return false };
    object.get("content").is_none_or(|content| content == "null") || opened(&object).is_none()
}

/// Refuses a message that says something Pi has no place for.
pub(super) fn check_content(raw: &Raw, role: &str) -> Result<(), MessageError> {
    let content = raw.view().object().and_then(|message| message.get("content")).unwrap_or("null");
    let found = match View::of(content) {
        _ if ContentForm::of(role) == ContentForm::Foreign => return Ok(()),
        View::Null | View::String(_) => return Ok(()),
        View::Array(items) => match items.iter().position(|item| !is_opened(item)) {
            None => return Ok(()),
            Some(position) => Content::Item(position),
        },
        View::Object(_) => Content::Is("an object"),
        View::Number(_) => Content::Is("a number"),
        View::Bool(_) => Content::Is("true or false"),
        View::Other => Content::Is("not JSON"),
    };
    Err(MessageError::PiContent { role: role.to_owned(), found })
}

/// In which form Pi takes the content of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentForm {
    /// An array of blocks.
    Blocks,
    /// The same, or a string.
    BlocksOrText,
    /// A role of Pi's own, which is its own business.
    Foreign,
}

impl ContentForm {
    fn of(role: &str) -> Self {
        match role {
            "assistant" | "toolResult" => Self::Blocks,
            "user" | "system" => Self::BlocksOrText,
            _ => Self::Foreign,
        }
    }
}

/// The content of a message in a form that Pi takes; `None` where it is in one.
fn opened(message: &Object<'_>) -> Option<String> {
    let form = ContentForm::of(&message.string("role").unwrap_or_default());
    let content = message.get("content").unwrap_or("null");
    match (form, View::of(content)) {
        (ContentForm::Foreign, _) | (ContentForm::BlocksOrText, View::Null | View::String(_)) => None,
        (ContentForm::Blocks, View::Null) => Some("[]".to_owned()),
        // Providers refuse empty text.
        (ContentForm::Blocks, View::String(text)) if text.is_empty() => Some("[]".to_owned()),
        (_, View::Array(items)) if items.iter().all(|item| is_opened(item)) => None,
        (_, View::Array(items)) => {
            let block = |item: &&str| if is_opened(item) { (*item).to_owned() } else { as_text(item) };
            Some(format!("[{}]", items.iter().map(block).collect::<Vec<_>>().join(",")))
        }
        (_, _) => Some(format!("[{}]", as_text(content))),
    }
}

/// Whether Pi gets past an item of a content: it reads the type of each, and the text of a text.
fn is_opened(item: &str) -> bool {
    let Some(block) = View::of(item).object() else { return false };
    block.string("type").as_deref() != Some("text") || block.get("text").is_some_and(is_string)
}

pub(super) fn read(raw: &Raw) -> Result<Parts<'_>, MessageError> {
    let message =
        raw.view().object().ok_or(MessageError::Shape { format: Format::Pi, why: "not an object" })?;
    let mut blocks = match message.get("content").map(|content| (content, View::of(content))) {
        Some((content, View::String(_))) => vec![Block::Text(Cow::Borrowed(content))],
        Some((_, View::Array(items))) => items.into_iter().filter_map(block).collect(),
        // Pi itself reads a missing or null content as none.
        _ => Vec::new(),
    };
    let role = message.string("role");
    if role.as_deref() == Some("toolResult") {
        blocks.push(Block::Answer(Answered {
            call_id: message.string("toolCallId").unwrap_or_default(),
            tool: message.string("toolName"),
            error: message.get("isError") == Some("true"),
            raw: raw.clone(),
        }));
    }
    Ok(Parts { role, ending: Ending::read(message.get("stopReason"), &COMPLETE, &FAILED), blocks })
}

/// A text or image part of any format.
pub(super) fn part(raw: &str) -> Option<Block<'_>> {
    let object = View::of(raw).object()?;
    let text = |key: &str| object.get(key).filter(|text| is_string(text));
    match object.string("type")?.as_str() {
        "text" | "input_text" | "output_text" => text("text").map(|text| Block::Text(Cow::Borrowed(text))),
        "refusal" => text("refusal").map(|text| Block::Text(Cow::Borrowed(text))),
        "image" | "image_url" | "input_image" => image(raw).map(Block::Image),
        _ => None,
    }
}

/// An image of any format as Pi's block, if its bytes are in it.
pub(super) fn image(raw: &str) -> Option<Cow<'_, str>> {
    let object = View::of(raw).object()?;
    if object.get("data").is_some() {
        return Some(Cow::Borrowed(raw));
    }
    let block = |mime: &str, data: &str| {
        let block = ObjectWriter::default().string("type", "image").string("data", data);
        Some(Cow::Owned(block.string("mimeType", mime).finish().get().to_owned()))
    };
    if let Some(source) = object.object("source") {
        return block(&source.string("media_type")?, &source.string("data")?);
    }
    let url = match object.view("image_url")? {
        View::Object(url) => url.string("url")?,
        View::String(url) => url,
        _ => return None,
    };
    let (mime, data) = url.strip_prefix("data:")?.split_once(";base64,")?;
    block(mime, data)
}

fn block(raw: &str) -> Option<Block<'_>> {
    let object = View::of(raw).object()?;
    if object.string("type")? != "toolCall" {
        return part(raw);
    }
    Some(Block::Call(Asked {
        id: object.string("id"),
        tool: object.string("name").unwrap_or_default(),
        args: args(object.get("arguments")),
    }))
}

/// The content of a message of another format as Pi's blocks.
fn blocks<'i>(meaning: &Meaning, raw: &Raw, assigned: &impl Fn(usize) -> Option<&'i str>) -> String {
    let mut calls = 0;
    let mut content = Vec::new();
    for block in parts(meaning.format, raw).map(|parts| parts.blocks).unwrap_or_default() {
        match block {
            // Providers refuse empty text.
            Block::Text(spelled) if spelled == "\"\"" => {}
            Block::Text(spelled) => content.push(spelled_block(&spelled)),
            Block::Image(block) => content.push(block.into_owned()),
            Block::Call(call) => {
                let id = assigned(calls).or(call.id.as_deref()).unwrap_or_default();
                content.push(tool_call(id, &call));
                calls += 1;
            }
            Block::Answer(_) => {}
        }
    }
    format!("[{}]", content.join(","))
}

fn tool_call(id: &str, call: &Asked) -> String {
    let arguments = if call.args.get().starts_with('{') {
        call.args.clone()
    } else {
        // Pi hands arguments on as an object and nothing else; what is none stands inside one.
        ObjectWriter::default().raw("arguments", call.args.get()).finish()
    };
    let block =
        ObjectWriter::default().string("type", "toolCall").string("id", id).string("name", &call.tool);
    block.raw("arguments", arguments.get()).finish().get().to_owned()
}

/// The blocks of a result that is an object, and what else of it is kept beside them.
fn result_blocks<'a>(object: &Object<'a>, call_id: &str) -> (Option<String>, Vec<(String, &'a str)>) {
    let kind = object.string("type").unwrap_or_default();
    let role = object.string("role");
    let blocks_in = |key: &str| match object.get(key).map(|value| (value, View::of(value))) {
        Some((text, View::String(_))) => Some(format!("[{}]", spelled_block(text))),
        Some((_, View::Array(items))) => content_blocks(&items),
        _ => None,
    };
    if matches!(role.as_deref(), Some("tool" | "function")) || kind == "tool_result" {
        // Without content the tool had nothing to say; content that Pi cannot show is shown as JSON.
        let silent = object.get("content").is_none_or(|content| content == "null");
        return (if silent { Some("[]".to_owned()) } else { blocks_in("content") }, Vec::new());
    }
    if kind.ends_with("_call_output") {
        return (blocks_in("output"), Vec::new());
    }
    let Some(items) = object.array("content") else { return (None, Vec::new()) };
    let results: Vec<Object<'a>> = items
        .iter()
        .filter(|item| type_of(item).as_deref() == Some("tool_result"))
        .filter_map(|item| View::of(item).object())
        .collect();
    let ours = results.iter().find(|result| result.string("tool_use_id").as_deref() == Some(call_id));
    if let Some(result) = ours.or(results.first()) {
        return result_blocks(result, call_id);
    }
    // A bare empty list is more likely data than a result without content.
    let meant = !items.is_empty() || object.get("details").is_some() || object.get("isError").is_some();
    let Some(content) = content_blocks(&items).filter(|_| meant) else { return (None, Vec::new()) };
    let ours = ["role", "toolCallId", "toolName", "content", "isError", "timestamp"];
    let beside = object.0.iter().filter(|(key, _)| !ours.contains(&key.as_str())).cloned().collect();
    (Some(content), beside)
}

/// The items as Pi content, if each is a content block that Pi can show.
fn content_blocks(items: &[&str]) -> Option<String> {
    let blocks: Option<Vec<Cow<'_, str>>> = items
        .iter()
        .map(|item| match part(item)? {
            _ if is_block(item) => Some(Cow::Borrowed(*item)),
            Block::Text(spelled) => Some(Cow::Owned(spelled_block(&spelled))),
            Block::Image(image) => Some(image),
            Block::Call(_) | Block::Answer(_) => None,
        })
        .collect();
    blocks.map(|blocks| format!("[{}]", blocks.join(",")))
}

/// Whether a value is a content block as Pi itself writes it.
fn is_block(raw: &str) -> bool {
    let Some(block) = View::of(raw).object() else { return false };
    match block.string("type").as_deref() {
        Some("text") => block.get("text").is_some_and(is_string),
        Some("image") => block.get("data").is_some(),
        _ => false,
    }
}

/// A body as one text block: a string as itself, in its own spelling, other JSON as its text.
fn text_block(body: &Raw) -> String {
    let body = body.get();
    if is_string(body) { text_array(body) } else { text_array(Raw::text(body).get()) }
}

fn as_text(value: &str) -> String {
    if is_string(value) { spelled_block(value) } else { spelled_block(Raw::text(value).get()) }
}

/// Whether a JSON value is a string, as its first byte tells: a long one need not be decoded for that.
fn is_string(value: &str) -> bool {
    value.starts_with('"')
}

/// A text as an array of one block; text may be long, so it is copied once.
fn text_array(spelled: &str) -> String {
    format!("[{{\"type\":\"text\",\"text\":{spelled}}}]")
}

/// A value one level deep, if it is no string.
fn structure(value: &str) -> Option<View<'_>> {
    (!is_string(value)).then(|| View::of(value))
}

fn spelled_block(spelled: &str) -> String {
    format!("{{\"type\":\"text\",\"text\":{spelled}}}")
}

/// A toolResult message as the answer to another id.
fn readdressed(raw: &Raw, message: &Object<'_>, call_id: &str, tool: &str, is_error: bool) -> Raw {
    let mut edits = Edits::of(raw);
    if message.string("toolCallId").as_deref() != Some(call_id) {
        edits.set(message, "toolCallId", Raw::text(call_id).get());
    }
    if message.string("toolName").is_none() {
        edits.set(message, "toolName", Raw::text(tool).get());
    }
    let says = message.get("isError") == Some("true");
    if says != is_error {
        edits.set(message, "isError", if is_error { "true" } else { "false" });
    }
    edits.finish()
}

fn with_role(raw: &Raw, role: &str) -> Raw {
    match raw.view() {
        View::Object(message) if message.get("role").is_none() => {
            let mut edits = Edits::of(raw);
            edits.set(&message, "role", Raw::text(role).get());
            edits.finish()
        }
        _ => raw.clone(),
    }
}

fn with_ids<'i>(raw: &Raw, assigned: &impl Fn(usize) -> Option<&'i str>) -> Raw {
    let content = raw.view().object().and_then(|message| message.array("content")).unwrap_or_default();
    let calls = content.into_iter().filter(|item| type_of(item).as_deref() == Some("toolCall"));
    let mut edits = Edits::of(raw);
    for (position, call) in calls.enumerate() {
        if let (Some(id), Some(call)) =
            (assigned(position), View::of(call).object().map(|object| (call, object)))
        {
            edits.set_in(call.0, &call.1, "id", Raw::text(id).get());
        }
    }
    edits.finish()
}

/// Replaces single values in a body and leaves every other byte alone.
struct Edits<'a> {
    raw: &'a Raw,
    /// Where, how many bytes, and what stands there instead.
    list: Vec<(usize, usize, String)>,
}

impl<'a> Edits<'a> {
    fn of(raw: &'a Raw) -> Self {
        Self { raw, list: Vec::new() }
    }

    fn set(&mut self, object: &Object<'_>, key: &str, value: &str) {
        let whole = self.raw.get();
        self.set_in(whole, object, key, value);
    }

    /// Sets `key` of `object`, which stands at `place` in the body; a new key comes first.
    fn set_in(&mut self, place: &str, object: &Object<'_>, key: &str, value: &str) {
        let at = |part: &str| part.as_ptr().addr() - self.raw.get().as_ptr().addr();
        let edit = if let Some(old) = object.get(key) {
            (at(old), old.len(), value.to_owned())
        } else {
            let comma = if object.0.is_empty() { "" } else { "," };
            (at(place) + 1, 0, format!("{}:{value}{comma}", Raw::text(key).get()))
        };
        self.list.push(edit);
    }

    fn finish(mut self) -> Raw {
        if self.list.is_empty() {
            return self.raw.clone();
        }
        // In the order of the places; of new keys at the same one the last comes first.
        self.list.reverse();
        self.list.sort_by_key(|(at, ..)| *at);
        let whole = self.raw.get();
        let (mut text, mut copied) = (String::with_capacity(whole.len()), 0);
        for (at, bytes, value) in &self.list {
            text.push_str(whole.get(copied..*at).unwrap_or_default());
            text.push_str(value);
            copied = at + bytes;
        }
        text.push_str(whole.get(copied..).unwrap_or_default());
        Raw::composed(&text).unwrap_or_else(|| self.raw.clone())
    }
}
