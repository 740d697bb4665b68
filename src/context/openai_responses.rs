//! The conversation as `input` items of a Responses request.
//!
//! A model's own items go back as they came, reasoning included; each call has one output item behind them.

use super::dialect::Dialect;
use super::{Block, Model, Said, arguments, array, blocks, joined, mended, texts, told, with_members};
use crate::json::{ObjectWriter, Raw, View};
use crate::message::{Asked, Format};

const OWN: Format = Format::OpenaiResponses;

pub(super) struct Responses;

impl Dialect for Responses {
    const FORMAT: Format = OWN;

    fn system(text: &str) -> Option<Raw> {
        Some(message("system", Raw::text(text).get()))
    }

    fn own_system(own: &Raw) -> Vec<Raw> {
        items(own)
    }

    fn user(pi: &Raw) -> Option<Raw> {
        let parts = parts(&blocks(pi));
        (!parts.is_empty()).then(|| message("user", &array(&parts)))
    }

    fn own_user(own: &Raw) -> Vec<Raw> {
        items(own)
    }

    fn exchange(model: &Model, ids: &[String]) -> Vec<Raw> {
        let mut kinds = Vec::new();
        let mut messages = match model.said.own(OWN) {
            Some(own) => own_items(own, model, ids, &mut kinds),
            None => {
                let calls = model.calls.iter().zip(ids).map(|(call, id)| function_call(call, id));
                said(&texts(&blocks(&model.said.pi))).into_iter().chain(calls).collect()
            }
        };
        for (position, (answer, id)) in model.answers.iter().zip(ids).enumerate() {
            let kind = kinds.get(position).map_or("function_call", String::as_str);
            messages.push(output(answer, id, kind));
        }
        messages
    }
}

/// The items of what was stored: a response, an array of items, or one item.
fn items(own: &Raw) -> Vec<Raw> {
    let items = match own.view() {
        View::Array(items) => items,
        View::Object(object) => match object.array("output") {
            Some(items) if !is_output(own.get()) => items,
            _ if object.string("object").as_deref() == Some("response") => Vec::new(),
            _ => vec![own.get()],
        },
        _ => Vec::new(),
    };
    items.into_iter().filter_map(telling_item).collect()
}

/// An item without text that says nothing; `None` where it then says nothing itself.
fn telling_item(item: &str) -> Option<Raw> {
    let object = View::of(item).object()?;
    let is_message = object.string("type").map_or(object.get("role").is_some(), |kind| kind == "message");
    if is_message {
        Some(with_members(item, &[("content", &told(object.get("content"))?)]))
    } else {
        Raw::parse(item).ok()
    }
}

/// A model's own items, under the ids that its calls go by; `kinds` gets those of the calls.
fn own_items(own: &Raw, model: &Model, ids: &[String], kinds: &mut Vec<String>) -> Vec<Raw> {
    let mut kept = Vec::new();
    for item in items(own).into_iter().filter(|item| !is_output(item.get())) {
        let Some(object) = item.view().object() else { continue };
        let kind = object.string("type").unwrap_or_default();
        let is_call = kind.ends_with("_call") && object.string("call_id").is_some();
        let call = model.calls.get(kinds.len()).zip(ids.get(kinds.len())).filter(|_| is_call);
        let Some((call, id)) = call else {
            kept.push(item);
            continue;
        };
        let (id, arguments) = (Raw::text(id), mended(object.get("arguments"), call));
        let mut members = vec![("call_id", id.get())];
        if let Some(arguments) = arguments.as_ref().filter(|_| kind == "function_call") {
            members.push(("arguments", arguments.get()));
        }
        kept.push(with_members(item.get(), &members));
        kinds.push(kind);
    }
    // What was cut off may have been thought and never said, and is refused so.
    while kept.last().is_some_and(is_reasoning) {
        kept.pop();
    }
    kept
}

fn is_reasoning(item: &Raw) -> bool {
    item.view().object().is_some_and(|item| item.string("type").as_deref() == Some("reasoning"))
}

fn output(answer: &Said, id: &str, kind: &str) -> Raw {
    if let Some(own) = answer.own(OWN) {
        let id = Raw::text(id);
        let mut members = vec![("call_id", id.get())];
        let said = own.view().object().and_then(|own| own_output(own.get("output").unwrap_or("null")));
        members.extend(said.as_deref().map(|said| ("output", said)));
        return with_members(own.get(), &members);
    }
    let blocks = blocks(&answer.pi);
    let images = blocks.iter().any(|block| matches!(block, Block::Image(..)));
    let output = if images { array(&parts(&blocks)) } else { joined(&texts(&blocks)) };
    let item = ObjectWriter::default().string("type", &format!("{kind}_output")).string("call_id", id);
    item.raw("output", &output).finish()
}

/// A list that says nothing is refused; the output of some tools is an object.
fn own_output(output: &str) -> Option<String> {
    match View::of(output) {
        View::Array(_) => Some(told(Some(output)).unwrap_or_else(|| "\"\"".to_owned())),
        View::Null => Some("\"\"".to_owned()),
        _ => None,
    }
}

fn said(texts: &[&str]) -> Option<Raw> {
    let part = |text: &&str| {
        let part = ObjectWriter::default().string("type", "output_text").raw("text", text);
        part.raw("annotations", "[]").finish()
    };
    let parts: Vec<Raw> = texts.iter().map(part).collect();
    (!parts.is_empty()).then(|| message("assistant", &array(&parts)))
}

fn function_call(call: &Asked, id: &str) -> Raw {
    let item = ObjectWriter::default().string("type", "function_call").string("call_id", id);
    item.string("name", &call.tool).string("arguments", arguments(call).get()).finish()
}

fn parts(blocks: &[Block<'_>]) -> Vec<Raw> {
    let part = |block: &Block<'_>| match block {
        Block::Text(spelled) => {
            Some(ObjectWriter::default().string("type", "input_text").raw("text", spelled).finish())
        }
        Block::Image(mime, data) => {
            let image = ObjectWriter::default().string("type", "input_image");
            Some(image.string("image_url", &format!("data:{mime};base64,{data}")).finish())
        }
        Block::Thinking(..) => None,
    };
    blocks.iter().filter_map(part).collect()
}

fn is_output(item: &str) -> bool {
    let kind = View::of(item).object().and_then(|item| item.string("type"));
    kind.is_some_and(|kind| kind.ends_with("_call_output"))
}

fn message(role: &str, content: &str) -> Raw {
    let item = ObjectWriter::default().string("type", "message").string("role", role);
    item.raw("content", content).finish()
}
