//! Anthropic Messages: the message object, a bare `tool_result` block, and saved streams.
//!
//! Blocks that Anthropic runs itself (`server_tool_use`, `mcp_tool_use`) are no calls of the driver.

use super::sse::{self, Fields, broken, inside};
use super::{Answered, Asked, Block, Ending, Format, MessageError, Parts, args, keep, pi};
use crate::json::{Object, Raw, View};
use std::borrow::Cow;

const COMPLETE: [&str; 4] = ["end_turn", "stop_sequence", "tool_use", "pause_turn"];

pub(super) fn read(raw: &Raw) -> Result<Parts<'_>, MessageError> {
    let wrong = |why| MessageError::Shape { format: Format::Anthropic, why };
    let message = raw.view().object().ok_or_else(|| wrong("not an object"))?;
    if message.string("type").as_deref() == Some("tool_result") {
        let blocks = block(raw.get()).into_iter().collect();
        return Ok(Parts { role: Some("user".to_owned()), ending: Ending::Complete, blocks });
    }
    let blocks = match message.get("content").map(|content| (content, View::of(content))) {
        Some((content, View::String(_))) => vec![Block::Text(Cow::Borrowed(content))],
        Some((_, View::Array(blocks))) => blocks.into_iter().filter_map(block).collect(),
        _ => return Err(wrong("no content")),
    };
    let ending = Ending::read(message.get("stop_reason"), &COMPLETE, &[]);
    Ok(Parts { role: message.string("role"), ending, blocks })
}

fn block(raw: &str) -> Option<Block<'_>> {
    let block = View::of(raw).object()?;
    match block.string("type")?.as_str() {
        "text" => Some(Block::Text(Cow::Borrowed(block.get("text")?))),
        "tool_use" => Some(Block::Call(Asked {
            id: block.string("id"),
            tool: block.string("name").unwrap_or_default(),
            args: args(block.get("input")),
        })),
        "tool_result" => Some(Block::Answer(Answered {
            call_id: block.string("tool_use_id").unwrap_or_default(),
            tool: None,
            error: block.get("is_error") == Some("true"),
            raw: keep(raw),
        })),
        "image" => pi::image(raw).map(Block::Image),
        _ => None,
    }
}

/// One content block while its deltas come.
struct Growing {
    fields: Fields,
    /// The fragments of its input, inside a JSON string.
    input: String,
}

/// The message that a stream adds up to.
#[derive(Default)]
struct Assembly {
    message: Option<Fields>,
    usage: Fields,
    blocks: Vec<Growing>,
    ended: bool,
}

pub(super) fn assemble(events: &[String]) -> Result<Raw, MessageError> {
    let mut assembly = Assembly::default();
    for (number, data) in events.iter().enumerate() {
        let raw = sse::event(number, data)?;
        let event = raw.view().object().ok_or_else(|| broken(number, "not an object"))?;
        assembly.take(number, &event)?;
    }
    assembly.finish()
}

impl Assembly {
    fn take(&mut self, number: usize, event: &Object<'_>) -> Result<(), MessageError> {
        let kind = event.string("type").unwrap_or_default();
        if kind == "error" {
            return Err(MessageError::Provider(event.get("error").unwrap_or("{}").to_owned()));
        }
        if kind == "ping" {
            return Ok(());
        }
        if self.ended {
            return Err(broken(number, "the message has already stopped"));
        }
        match kind.as_str() {
            "message_start" => self.start(number, event),
            "content_block_start" => self.start_block(number, event),
            "content_block_delta" => self.grow_block(number, event),
            "message_delta" => self.grow(number, event),
            "message_stop" => {
                self.ended = true;
                Ok(())
            }
            // `content_block_stop` says nothing new, and new kinds of events may come.
            _ => Ok(()),
        }
    }

    fn start(&mut self, number: usize, event: &Object<'_>) -> Result<(), MessageError> {
        if self.message.is_some() {
            return Err(broken(number, "a second message starts"));
        }
        let message = event.object("message").ok_or_else(|| broken(number, "it starts no message"))?;
        if let Some(usage) = message.object("usage") {
            self.usage = Fields::of(&usage);
        }
        self.message = Some(Fields::of(&message));
        Ok(())
    }

    fn start_block(&mut self, number: usize, event: &Object<'_>) -> Result<(), MessageError> {
        // A hole would be a block, perhaps a call, that got lost.
        if index(event) != Some(self.blocks.len()) {
            return Err(broken(number, "its content block does not follow the one before"));
        }
        let block = event.object("content_block").ok_or_else(|| broken(number, "it starts no block"))?;
        self.blocks.push(Growing { fields: Fields::of(&block), input: String::new() });
        Ok(())
    }

    fn grow_block(&mut self, number: usize, event: &Object<'_>) -> Result<(), MessageError> {
        let block = index(event)
            .and_then(|index| self.blocks.get_mut(index))
            .ok_or_else(|| broken(number, "its content block was never started"))?;
        let delta = event.object("delta").ok_or_else(|| broken(number, "it has no delta"))?;
        match delta.string("type").unwrap_or_default().as_str() {
            "input_json_delta" => block.input.push_str(inside(delta.get("partial_json").unwrap_or(""))),
            "citations_delta" => block.fields.push("citations", delta.get("citation").unwrap_or("null")),
            // `text_delta`, `thinking_delta`, `signature_delta` and what may come name the field they grow.
            _ => delta
                .0
                .iter()
                .filter(|(key, _)| key != "type")
                .for_each(|(key, value)| block.fields.grow(key, value)),
        }
        Ok(())
    }

    fn grow(&mut self, number: usize, event: &Object<'_>) -> Result<(), MessageError> {
        let message = self.message.as_mut().ok_or_else(|| broken(number, "no message was started"))?;
        for (key, value) in event.object("delta").map(|delta| delta.0).unwrap_or_default() {
            message.set(&key, value);
        }
        for (key, value) in event.object("usage").map(|usage| usage.0).unwrap_or_default() {
            // Counts are totals so far; a `null` says nothing.
            if value != "null" || !self.usage.has(&key) {
                self.usage.set(&key, value);
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Raw, MessageError> {
        let mut message = self.message.ok_or(MessageError::Unfinished("message_start"))?;
        if !self.ended {
            return Err(MessageError::Unfinished("message_stop"));
        }
        // A stream that does not tell why it ends, and leaves an input half said, was cut in front of that.
        if message.text("stop_reason").is_empty() && self.blocks.iter().any(Growing::is_half_said) {
            return Err(MessageError::Unfinished("stop_reason"));
        }
        let blocks: Vec<String> = self.blocks.into_iter().map(Growing::finish).collect();
        message.set("content", &format!("[{}]", blocks.join(",")));
        let usage = self.usage.finish();
        if usage.get() != "{}" {
            message.set("usage", usage.get());
        }
        Ok(message.finish())
    }
}

impl Growing {
    fn is_half_said(&self) -> bool {
        let said = args(Some(&format!("\"{}\"", self.input)));
        !self.input.is_empty() && matches!(said.view(), View::String(_))
    }

    fn finish(mut self) -> String {
        if !self.input.is_empty() {
            // Half an input, of a message that was cut off, stays the string that it is.
            self.fields.set("input", args(Some(&format!("\"{}\"", self.input))).get());
        }
        self.fields.finish().get().to_owned()
    }
}

fn index(event: &Object<'_>) -> Option<usize> {
    event.get("index")?.parse().ok()
}
