//! The conversation as `messages` of a Chat Completions request.
//!
//! Each answer is a message of role `tool`, which holds text alone: images follow in a user message.

use super::dialect::Dialect;
use super::{Block, Model, Said, arguments, array, blocks, joined, mended, texts, told, with_members};
use crate::json::{Object, ObjectWriter, Raw, View};
use crate::message::{Asked, Format};

const OWN: Format = Format::OpenaiChat;

pub(super) struct Chat;

impl Dialect for Chat {
    const FORMAT: Format = OWN;

    fn system(text: &str) -> Option<Raw> {
        Some(message("system", Raw::text(text).get()))
    }

    fn own_system(own: &Raw) -> Vec<Raw> {
        vec![own.clone()]
    }

    fn user(pi: &Raw) -> Option<Raw> {
        let blocks = blocks(pi);
        match blocks.as_slice() {
            [] => None,
            [Block::Text(spelled)] => Some(message("user", spelled)),
            blocks => Some(message("user", &array(&parts(blocks)))),
        }
    }

    fn own_user(own: &Raw) -> Vec<Raw> {
        let content = own.view().object().and_then(|own| told(own.get("content")));
        let said = |content: String| with_members(own.get(), &[("role", "\"user\""), ("content", &content)]);
        content.map(said).into_iter().collect()
    }

    fn exchange(model: &Model, ids: &[String]) -> Vec<Raw> {
        let own = model.said.own(OWN).and_then(own_message);
        // The old way to ask has no ids: there the answer names the function.
        let asked = match &own {
            Some(own) if own.object("function_call").is_some() => Asking::ByName,
            _ => Asking::ById,
        };
        let said = match &own {
            Some(own) => own_said(own, model, ids),
            None => said(model, ids),
        };
        let Some(said) = said else { return Vec::new() };
        let answers = model.answers.iter().zip(&model.calls).zip(ids);
        let results = answers.map(|((answer, call), id)| result(answer, call, id, asked));
        let mut messages: Vec<Raw> = [said].into_iter().chain(results).collect();
        let images: Vec<Raw> = model.answers.iter().flat_map(images).collect();
        if !images.is_empty() {
            messages.push(message("user", &array(&images)));
        }
        messages
    }
}

/// How a model asks, and is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asking {
    ById,
    ByName,
}

fn result(answer: &Said, call: &Asked, id: &str, asked: Asking) -> Raw {
    if let Some(own) = answer.own(OWN).filter(|_| asked == Asking::ById) {
        let content = own.view().object().and_then(|own| own_content(&own)).unwrap_or("\"\"".to_owned());
        let id = Raw::text(id);
        let members = [("role", "\"tool\""), ("tool_call_id", id.get()), ("content", &content)];
        return with_members(own.get(), &members);
    }
    let head = match asked {
        Asking::ByName => ObjectWriter::default().string("role", "function").string("name", &call.tool),
        Asking::ById => ObjectWriter::default().string("role", "tool").string("tool_call_id", id),
    };
    head.raw("content", &joined(&texts(&blocks(&answer.pi)))).finish()
}

/// A tool may say nothing in a string, but not in a list.
fn own_content(own: &Object<'_>) -> Option<String> {
    match own.view("content")? {
        View::String(_) => own.get("content").map(str::to_owned),
        _ => told(own.get("content")),
    }
}

/// What an answer shows and cannot say in its own message.
fn images(answer: &Said) -> Vec<Raw> {
    if answer.own(OWN).is_some() {
        return Vec::new();
    }
    let shown: Vec<Block<'_>> =
        blocks(&answer.pi).into_iter().filter(|block| matches!(block, Block::Image(..))).collect();
    parts(&shown)
}

/// The message inside what was stored: a whole response, or the message alone.
fn own_message(own: &Raw) -> Option<Object<'_>> {
    let object = own.view().object()?;
    match object.array("choices") {
        Some(choices) => View::of(choices.first()?).object()?.object("message"),
        None => Some(object),
    }
}

/// A model's own message as it is sent back: `null` members say nothing and are refused in places.
fn own_said(own: &Object<'_>, model: &Model, ids: &[String]) -> Option<Raw> {
    let has_calls = own.array("tool_calls").is_some_and(|calls| !calls.is_empty());
    let mut writer = ObjectWriter::default().string("role", "assistant");
    let mut says = false;
    for (key, value) in &own.0 {
        let empty = *value == "null" || (key == "tool_calls" && !has_calls);
        let passed_over = matches!(key.as_str(), "role" | "finish_reason") || (empty && key != "content");
        if passed_over || own.get(key) != Some(*value) {
            continue;
        }
        let kept = match key.as_str() {
            "tool_calls" => own_calls(own, model, ids),
            "function_call" => own_function(value, model.calls.first()),
            "content" => told(Some(value)).unwrap_or_else(|| "null".to_owned()),
            _ => (*value).to_owned(),
        };
        says |= !matches!(kept.as_str(), "null" | "\"\"");
        writer = writer.raw(key, &kept);
    }
    says.then(|| writer.finish())
}

fn own_calls(own: &Object<'_>, model: &Model, ids: &[String]) -> String {
    let calls = own.array("tool_calls").unwrap_or_default();
    let known = calls.iter().enumerate().map(|(position, call)| {
        let Some((asked, id)) = model.calls.get(position).zip(ids.get(position)) else {
            return (*call).to_owned();
        };
        let function = View::of(call).object().and_then(|call| call.get("function"));
        let function = function.map(|function| own_function(function, Some(asked)));
        let id = Raw::text(id);
        let mut members = vec![("id", id.get())];
        members.extend(function.as_deref().map(|function| ("function", function)));
        with_members(call, &members).get().to_owned()
    });
    format!("[{}]", known.collect::<Vec<_>>().join(","))
}

/// What is asked of a function, with arguments that can be read.
fn own_function(function: &str, asked: Option<&Asked>) -> String {
    let spelled = View::of(function).object().and_then(|function| function.get("arguments"));
    match asked.and_then(|asked| mended(spelled, asked)) {
        Some(arguments) => with_members(function, &[("arguments", arguments.get())]).get().to_owned(),
        None => function.to_owned(),
    }
}

fn said(model: &Model, ids: &[String]) -> Option<Raw> {
    let blocks = blocks(&model.said.pi);
    let texts = texts(&blocks);
    if texts.is_empty() && model.calls.is_empty() {
        return None;
    }
    let content = if texts.is_empty() { "null".to_owned() } else { joined(&texts) };
    let writer = ObjectWriter::default().string("role", "assistant").raw("content", &content);
    if model.calls.is_empty() {
        return Some(writer.finish());
    }
    let calls: Vec<Raw> = model.calls.iter().zip(ids).map(|(call, id)| tool_call(call, id)).collect();
    Some(writer.raw("tool_calls", &array(&calls)).finish())
}

fn tool_call(call: &Asked, id: &str) -> Raw {
    let function =
        ObjectWriter::default().string("name", &call.tool).string("arguments", arguments(call).get());
    let call = ObjectWriter::default().string("id", id).string("type", "function");
    call.raw("function", function.finish().get()).finish()
}

fn parts(blocks: &[Block<'_>]) -> Vec<Raw> {
    let part = |block: &Block<'_>| match block {
        Block::Text(spelled) => {
            Some(ObjectWriter::default().string("type", "text").raw("text", spelled).finish())
        }
        Block::Image(mime, data) => {
            let url = ObjectWriter::default().string("url", &format!("data:{mime};base64,{data}")).finish();
            Some(ObjectWriter::default().string("type", "image_url").raw("image_url", url.get()).finish())
        }
        Block::Thinking(..) => None,
    };
    blocks.iter().filter_map(part).collect()
}

fn message(role: &str, content: &str) -> Raw {
    ObjectWriter::default().string("role", role).raw("content", content).finish()
}
