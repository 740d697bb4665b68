//! The conversation as `input` items of a Responses request.
//!
//! A model's own items go back as they came, reasoning included; each call has one output item behind them.

use super::{
    Block, Context, Ids, Model, Node, Said, array, blocks, joined, system_prompt, texts, with_members,
};
use crate::json::{ObjectWriter, Raw, View};
use crate::message::{Asked, Format};

const OWN: Format = Format::OpenaiResponses;

pub(super) fn render(nodes: &[Node]) -> Context {
    let mut ids = Ids::default();
    let system = system_prompt(nodes, OWN).map(|text| message("system", Raw::text(&text).get()));
    let mut messages: Vec<Raw> = system.into_iter().collect();
    for node in nodes {
        match node {
            Node::System(said) => messages.extend(said.own(OWN).map(items).unwrap_or_default()),
            Node::User(said) => match said.own(OWN) {
                Some(own) => messages.extend(items(own)),
                None => messages.extend(user(&said.pi)),
            },
            Node::Model(model) => exchange(model, &mut ids, &mut messages),
        }
    }
    Context { messages, notes: Vec::new() }
}

fn user(pi: &Raw) -> Option<Raw> {
    let parts = parts(&blocks(pi));
    (!parts.is_empty()).then(|| message("user", &array(&parts)))
}

fn exchange(model: &Model, ids: &mut Ids, messages: &mut Vec<Raw>) {
    let own = model.said.own(OWN);
    let shown: Vec<String> = model
        .calls
        .iter()
        .map(|call| {
            let id = call.id.as_deref().unwrap_or_default();
            if own.is_some() { ids.own(id) } else { ids.foreign(id) }
        })
        .collect();
    let mut kinds = Vec::new();
    if let Some(own) = own {
        own_items(own, &shown, &mut kinds, messages);
    } else {
        let blocks = blocks(&model.said.pi);
        messages.extend(said(&texts(&blocks)));
        messages.extend(model.calls.iter().zip(&shown).map(|(call, id)| function_call(call, id)));
    }
    for (position, (answer, id)) in model.answers.iter().zip(&shown).enumerate() {
        let kind = kinds.get(position).map_or("function_call", String::as_str);
        messages.push(output(answer, id, kind));
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
    items.into_iter().filter_map(|item| Raw::parse(item).ok()).collect()
}

fn own_items(own: &Raw, ids: &[String], kinds: &mut Vec<String>, messages: &mut Vec<Raw>) {
    for item in items(own) {
        let object = item.view().object();
        let kind = object.as_ref().and_then(|item| item.string("type")).unwrap_or_default();
        let called = object.as_ref().and_then(|item| item.string("call_id"));
        if is_output(item.get()) {
            continue;
        }
        let is_call = kind.ends_with("_call") && called.is_some();
        match ids.get(kinds.len()).filter(|_| is_call) {
            Some(id) => {
                messages.push(with_members(item.get(), &[("call_id", Raw::text(id).get())]));
                kinds.push(kind);
            }
            None => messages.push(item),
        }
    }
}

fn output(answer: &Said, id: &str, kind: &str) -> Raw {
    if let Some(own) = answer.own(OWN) {
        return with_members(own.get(), &[("call_id", Raw::text(id).get())]);
    }
    let blocks = blocks(&answer.pi);
    let images = blocks.iter().any(|block| matches!(block, Block::Image(..)));
    let output = if images { array(&parts(&blocks)) } else { joined(&texts(&blocks)) };
    let item = ObjectWriter::default().string("type", &format!("{kind}_output")).string("call_id", id);
    item.raw("output", &output).finish()
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
    item.string("name", &call.tool).string("arguments", call.args.get()).finish()
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
