//! The conversation as `messages` of a Chat Completions request.
//!
//! Each answer is a message of role `tool`, which holds text alone: images follow in a user message.

use super::{Block, Context, Ids, Model, Node, array, blocks, joined, system_prompt, texts, with_members};
use crate::json::{Object, ObjectWriter, Raw, View};
use crate::message::{Asked, Format};

const OWN: Format = Format::OpenaiChat;

pub(super) fn render(nodes: &[Node]) -> Context {
    let mut ids = Ids::default();
    let system = system_prompt(nodes, OWN).map(|text| message("system", Raw::text(&text).get()));
    let mut messages: Vec<Raw> = system.into_iter().collect();
    for node in nodes {
        match node {
            Node::System(said) => messages.extend(said.own(OWN).cloned()),
            Node::User(said) => match said.own(OWN) {
                Some(own) => messages.push(with_members(own.get(), &[("role", "\"user\"")])),
                None => messages.extend(user(&said.pi)),
            },
            Node::Model(model) => exchange(model, &mut ids, &mut messages),
        }
    }
    Context { messages, notes: Vec::new() }
}

fn user(pi: &Raw) -> Option<Raw> {
    let blocks = blocks(pi);
    match blocks.as_slice() {
        [] => None,
        [Block::Text(spelled)] => Some(message("user", spelled)),
        blocks => Some(message("user", &array(&parts(blocks)))),
    }
}

fn exchange(model: &Model, ids: &mut Ids, messages: &mut Vec<Raw>) {
    let own = model.said.own(OWN).and_then(own_message);
    // The old way to ask has no ids: there the answer names the function.
    let old = own.as_ref().is_some_and(|own| own.object("function_call").is_some());
    let shown: Vec<String> = model
        .calls
        .iter()
        .map(|call| {
            let id = call.id.as_deref().unwrap_or_default();
            if own.is_some() { ids.own(id) } else { ids.foreign(id) }
        })
        .collect();
    let said = match &own {
        Some(own) => own_said(own, &shown),
        None => said(model, &shown),
    };
    let Some(said) = said else { return };
    messages.push(said);
    let mut images = Vec::new();
    for ((answer, call), id) in model.answers.iter().zip(&model.calls).zip(&shown) {
        let blocks = blocks(&answer.pi);
        if let Some(own) = answer.own(OWN).filter(|_| !old) {
            messages.push(with_members(
                own.get(),
                &[("role", "\"tool\""), ("tool_call_id", Raw::text(id).get())],
            ));
            continue;
        }
        let head = ObjectWriter::default();
        let head = if old {
            head.string("role", "function").string("name", &call.tool)
        } else {
            head.string("role", "tool").string("tool_call_id", id)
        };
        messages.push(head.raw("content", &joined(&texts(&blocks))).finish());
        images.extend(parts(
            &blocks.into_iter().filter(|block| matches!(block, Block::Image(..))).collect::<Vec<_>>(),
        ));
    }
    if !images.is_empty() {
        messages.push(message("user", &array(&images)));
    }
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
fn own_said(own: &Object<'_>, ids: &[String]) -> Option<Raw> {
    let has_calls = own.array("tool_calls").is_some_and(|calls| !calls.is_empty());
    let mut writer = ObjectWriter::default().string("role", "assistant");
    let mut says = false;
    for (key, value) in &own.0 {
        let empty = *value == "null" || (key == "tool_calls" && !has_calls);
        let passed_over = matches!(key.as_str(), "role" | "finish_reason") || (empty && key != "content");
        if passed_over || own.get(key) != Some(*value) {
            continue;
        }
        says |= !empty && *value != "\"\"";
        writer =
            if key == "tool_calls" { writer.raw(key, &own_calls(own, ids)) } else { writer.raw(key, value) };
    }
    says.then(|| writer.finish())
}

fn own_calls(own: &Object<'_>, ids: &[String]) -> String {
    let calls = own.array("tool_calls").unwrap_or_default();
    let renamed = calls.iter().enumerate().map(|(position, call)| match ids.get(position) {
        Some(id) => with_members(call, &[("id", Raw::text(id).get())]).get().to_owned(),
        None => (*call).to_owned(),
    });
    format!("[{}]", renamed.collect::<Vec<_>>().join(","))
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
    let function = ObjectWriter::default().string("name", &call.tool).string("arguments", call.args.get());
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
