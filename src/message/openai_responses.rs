//! OpenAI Responses: a response object, its items in an array, or one item alone.
//!
//! Items that OpenAI runs itself (web or file search, code interpreter, MCP) are no calls of the driver.

use super::openai_chat::COMPLETE;
use super::{Answered, Asked, Block, Ending, Format, MessageError, Parts, args, keep, pi};
use crate::json::{Object, Raw, View};
use std::borrow::Cow;

const FAILED: [&str; 2] = ["failed", "cancelled"];

pub(super) fn read(raw: &Raw) -> Result<Parts<'_>, MessageError> {
    let wrong = |why| MessageError::Shape { format: Format::OpenaiResponses, why };
    match raw.view() {
        View::Array(items) if !items.is_empty() => from_items(&items),
        View::Object(object) => match object.view("output") {
            Some(View::Array(items)) if !is_output(&object) => {
                let parts = from_items(&items)?;
                let ending = match object.get("status") {
                    Some(status) => Ending::read(Some(status), &COMPLETE, &FAILED),
                    None => parts.ending,
                };
                Ok(Parts { role: Some("assistant".to_owned()), ending, blocks: parts.blocks })
            }
            // A response that failed early may have none.
            None if object.string("object").as_deref() == Some("response") => {
                let ending = Ending::read(object.get("status"), &COMPLETE, &FAILED);
                Ok(Parts { role: Some("assistant".to_owned()), ending, blocks: Vec::new() })
            }
            _ if object.get("type").is_some() || object.get("content").is_some() => from_items(&[raw.get()]),
            _ => Err(wrong("no output and no item")),
        },
        _ => Err(wrong("neither a response nor items")),
    }
}

/// Whether a value is an item that means something here.
pub(super) fn is_item(raw: &str) -> bool {
    let Some(item) = View::of(raw).object() else { return false };
    let Some(kind) = item.string("type") else { return false };
    match kind.as_str() {
        "message" => item.get("role").is_some(),
        "reasoning" => item.get("summary").is_some() || item.get("id").is_some(),
        _ => is_output(&item) || call(&kind).is_some() || kind.ends_with("_call") && item.get("id").is_some(),
    }
}

fn from_items<'a>(items: &[&'a str]) -> Result<Parts<'a>, MessageError> {
    let mut parts = Parts { role: None, ending: Ending::Complete, blocks: Vec::new() };
    for raw in items {
        let item = View::of(raw).object().ok_or(MessageError::Shape {
            format: Format::OpenaiResponses,
            why: "an item is not an object",
        })?;
        let kind = item
            .string("type")
            .unwrap_or_else(|| if item.get("role").is_some() { "message".to_owned() } else { String::new() });
        if kind == "message" {
            parts.blocks.extend(content(&item));
        } else if let Some(fields) = call(&kind) {
            parts.blocks.push(Block::Call(asked(&kind, &item, fields)));
        } else if is_output(&item) {
            parts.blocks.push(Block::Answer(Answered {
                call_id: item.string("call_id").unwrap_or_default(),
                tool: None,
                error: false,
                raw: keep(raw),
            }));
        }
        // A model's item outranks what it was given.
        let role = role(&kind, &item);
        if parts.role.is_none() || role.as_deref() == Some("assistant") {
            parts.role = role.or(parts.role);
        }
        // What OpenAI ran itself may have failed without any harm to the message.
        if !parts.ending.is_cut_off() && (kind == "message" || call(&kind).is_some()) {
            parts.ending = Ending::read(item.get("status"), &COMPLETE, &[]);
        }
    }
    Ok(parts)
}

fn role(kind: &str, item: &Object<'_>) -> Option<String> {
    match kind {
        "message" => item.string("role"),
        "" => None,
        _ if is_output(item) => Some("tool".to_owned()),
        _ => Some("assistant".to_owned()),
    }
}

fn content<'a>(item: &Object<'a>) -> Vec<Block<'a>> {
    match item.get("content").map(|content| (content, View::of(content))) {
        Some((content, View::String(_))) => vec![Block::Text(Cow::Borrowed(content))],
        Some((_, View::Array(parts))) => parts.into_iter().filter_map(pi::part).collect(),
        _ => Vec::new(),
    }
}

/// The field with the arguments, of a kind of item that asks the driver to do something.
fn call(kind: &str) -> Option<&'static str> {
    match kind {
        "function_call" => Some("arguments"),
        "custom_tool_call" => Some("input"),
        // Tools without a name of their own: the model works through the driver's machine.
        "computer_call" | "local_shell_call" | "shell_call" => Some("action"),
        "apply_patch_call" => Some("operation"),
        _ => None,
    }
}

fn asked(kind: &str, item: &Object<'_>, field: &str) -> Asked {
    let own = kind.strip_suffix("_call").unwrap_or(kind);
    let unnamed = !matches!(kind, "function_call" | "custom_tool_call");
    Asked {
        id: item.string("call_id"),
        tool: item.string("name").or_else(|| unnamed.then(|| own.to_owned())).unwrap_or_default(),
        args: args(item.get(field)),
    }
}

fn is_output(item: &Object<'_>) -> bool {
    item.string("type").is_some_and(|kind| kind.ends_with("_call_output"))
}
