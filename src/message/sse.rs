//! Saved event streams: server-sent events as text, and fields that grow by their deltas.
//!
//! Knows the framing only; what the events mean is the formats' business. Fragments are joined in their JSON
//! spelling, so an escape that was split between two events (half a surrogate pair) comes together again.

use super::{Format, MessageError};
use crate::json::{Object, ObjectWriter, Raw, View};

/// The data of each event that has some, in order.
pub(super) fn events(text: &str) -> Vec<String> {
    let text = text.trim_start_matches('\u{feff}').replace("\r\n", "\n").replace('\r', "\n");
    let mut events = Vec::new();
    let mut data: Vec<&str> = Vec::new();
    // The end of the text ends the last event too: one that was cut there is no JSON and is refused as such.
    for line in text.split('\n').chain([""]) {
        if line.is_empty() {
            let joined = std::mem::take(&mut data).join("\n");
            events.extend(Some(joined).filter(|data| !data.is_empty()));
        } else if let Some(value) = line.strip_prefix("data:") {
            data.push(value.strip_prefix(' ').unwrap_or(value));
        } else if line == "data" {
            data.push("");
        }
    }
    events
}

/// Whether a text is an event stream at all.
pub(super) fn is_stream(text: &str) -> bool {
    let first = text.trim_start_matches('\u{feff}').trim_start();
    ["data:", "event:", "id:", "retry:", ":"].iter().any(|field| first.starts_with(field))
}

/// Whose stream it is.
pub(super) fn format(text: &str) -> Result<Format, MessageError> {
    for data in events(text) {
        let Some(object) = View::of(&data).object() else { continue };
        let kind = object.string("type").unwrap_or_default();
        if object.get("choices").is_some() {
            return Ok(Format::OpenaiChatSse);
        }
        if kind.starts_with("response.") {
            return Err(MessageError::Shape {
                format: Format::OpenaiResponses,
                why: "a stream of it is not read; give the `response` of its last event",
            });
        }
        if let Some(error) = object.get("error") {
            return Err(MessageError::Provider(error.to_owned()));
        }
        if kind.starts_with("message_") || kind.starts_with("content_block_") || kind == "ping" {
            return Ok(Format::AnthropicSse);
        }
    }
    Err(MessageError::Unknown)
}

/// One event as an object, or an error that says which one.
pub(super) fn event(number: usize, data: &str) -> Result<Raw, MessageError> {
    Raw::parse(data).map_err(|source| broken(number, &source.to_string()))
}

/// An error at event `number`, counted from 0.
pub(super) fn broken(number: usize, why: &str) -> MessageError {
    MessageError::Stream { event: number + 1, why: why.to_owned() }
}

/// An object that grows, in the order in which its keys came.
#[derive(Default)]
pub(super) struct Fields(Vec<(String, Value)>);

enum Value {
    /// The inside of a JSON string, as spelled.
    Text(String),
    /// Items of an array, raw.
    Items(Vec<String>),
    /// Anything else, raw.
    Other(String),
}

impl Value {
    fn of(raw: &str) -> Self {
        match View::of(raw) {
            View::String(_) => Self::Text(inside(raw).to_owned()),
            View::Array(items) => Self::Items(items.into_iter().map(str::to_owned).collect()),
            _ => Self::Other(raw.to_owned()),
        }
    }
}

impl Fields {
    pub(super) fn of(object: &Object<'_>) -> Self {
        let mut fields = Self::default();
        for (key, value) in &object.0 {
            fields.set(key, value);
        }
        fields
    }

    /// Replaces a value, at its old place.
    pub(super) fn set(&mut self, key: &str, raw: &str) {
        let value = Value::of(raw);
        match self.find(key) {
            Some(old) => *old = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    /// Lets a value grow: strings and arrays by their end; `null` adds nothing; all else replaces.
    pub(super) fn grow(&mut self, key: &str, raw: &str) {
        let Some(old) = self.find(key) else { return self.set(key, raw) };
        match (old, Value::of(raw)) {
            (_, Value::Other(null)) if null == "null" => {}
            (Value::Text(old), Value::Text(more)) => old.push_str(&more),
            (Value::Items(old), Value::Items(more)) => old.extend(more),
            (old, new) => *old = new,
        }
    }

    /// As `grow`, but a string that is given again in full is no fragment.
    pub(super) fn grow_once(&mut self, key: &str, raw: &str) {
        let repeated = matches!(self.find(key), Some(Value::Text(old)) if old == inside(raw));
        if !repeated {
            self.grow(key, raw);
        }
    }

    /// Adds an item to an array, which begins where there is none.
    pub(super) fn push(&mut self, key: &str, raw: &str) {
        match self.find(key) {
            Some(Value::Items(items)) => items.push(raw.to_owned()),
            _ => self.set(key, &format!("[{raw}]")),
        }
    }

    /// The string at `key` in its spelling, without quotes; empty where there is none.
    pub(super) fn text(&mut self, key: &str) -> String {
        match self.find(key) {
            Some(Value::Text(text)) => text.clone(),
            _ => String::new(),
        }
    }

    pub(super) fn has(&mut self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// The object as it is now.
    pub(super) fn finish(&self) -> Raw {
        let object = self.0.iter().fold(ObjectWriter::default(), |object, (key, value)| match value {
            Value::Text(text) => object.raw(key, &format!("\"{text}\"")),
            Value::Items(items) => object.raw(key, &format!("[{}]", items.join(","))),
            Value::Other(raw) => object.raw(key, raw),
        });
        object.finish()
    }

    fn find(&mut self, key: &str) -> Option<&mut Value> {
        self.0.iter_mut().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

/// The inside of a JSON string; nothing of any other value.
pub(super) fn inside(raw: &str) -> &str {
    raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"')).unwrap_or("")
}
