//! The conversation as `messages` of an Anthropic request.
//!
//! The answers of a message stand together in the one user message behind it. System text is no message there.

use super::dialect::{self, Dialect};
use super::{
    Block, Model, Node, Said, Shown, arguments, array, blocks, is_error, telling, told, with_members,
};
use crate::json::{ObjectWriter, Raw, View};
use crate::message::{Asked, Format};

const OWN: Format = Format::Anthropic;

pub(super) fn render(nodes: &[Node]) -> Vec<Raw> {
    alternating(dialect::render::<Anthropic>(nodes))
}

/// Whoever speaks twice in a row says it in one message: roles are to alternate.
fn alternating(messages: Vec<Raw>) -> Vec<Raw> {
    let mut turns: Vec<(String, Vec<Raw>)> = Vec::new();
    for message in messages {
        let role = message.view().object().and_then(|message| message.string("role")).unwrap_or_default();
        match turns.last_mut().filter(|(last, _)| *last == role) {
            Some((_, together)) => together.push(message),
            None => turns.push((role, vec![message])),
        }
    }
    turns.into_iter().flat_map(|(role, together)| one_message(&role, together)).collect()
}

fn one_message(role: &str, together: Vec<Raw>) -> Vec<Raw> {
    if together.len() < 2 {
        return together;
    }
    let mut content = Vec::new();
    for object in together.iter().filter_map(|message| message.view().object()) {
        match object.view("content") {
            Some(View::Array(items)) => content.extend(items.into_iter().map(str::to_owned)),
            _ => content.extend(object.get("content").map(|spelled| text_block(spelled).get().to_owned())),
        }
    }
    vec![message(role, &format!("[{}]", content.join(",")))]
}

pub(super) struct Anthropic;

impl Dialect for Anthropic {
    const FORMAT: Format = OWN;

    fn system(_: &str) -> Option<Raw> {
        None
    }

    fn own_system(_: &Raw) -> Vec<Raw> {
        Vec::new()
    }

    fn user(pi: &Raw) -> Option<Raw> {
        let content = content(pi);
        (!content.is_empty()).then(|| message("user", &array(&content)))
    }

    fn own_user(own: &Raw) -> Vec<Raw> {
        let Some(own) = own.view().object() else { return Vec::new() };
        let content = match own.view("content") {
            // Results stand behind their calls already.
            Some(View::Array(items)) => {
                let kept: Vec<&str> = items.into_iter().filter(|item| !is_result(item)).collect();
                told(Some(&format!("[{}]", kept.join(","))))
            }
            _ => told(own.get("content")),
        };
        content.map(|content| message("user", &content)).into_iter().collect()
    }

    /// The answers stand together in the one message behind.
    fn exchange(model: &Model, ids: &[String]) -> Vec<Raw> {
        let own = model.said.own(OWN).and_then(|own| own.view().object());
        let said = if let Some(own) = own {
            match own.view("content") {
                Some(View::Array(items)) => own_blocks(&items, model, ids),
                _ => told(own.get("content")).unwrap_or_else(|| "[]".to_owned()),
            }
        } else {
            let calls = model.calls.iter().zip(ids).map(|(call, id)| tool_use(call, id));
            array(&content(&model.said.pi).into_iter().chain(calls).collect::<Vec<_>>())
        };
        let said = without_last_thoughts(&said);
        if said == "[]" {
            return Vec::new();
        }
        let results: Vec<Raw> =
            model.answers.iter().zip(ids).map(|(said, id)| tool_result(said, id)).collect();
        let answered = (!results.is_empty()).then(|| message("user", &array(&results)));
        [message("assistant", &said)].into_iter().chain(answered).collect()
    }
}

/// A message may not end in a thought: one that nothing came of is left out.
fn without_last_thoughts(content: &str) -> String {
    let View::Array(mut items) = View::of(content) else { return content.to_owned() };
    let thinks = |item: &str| {
        let kind = View::of(item).object().and_then(|block| block.string("type"));
        kind.is_some_and(|kind| kind == "thinking" || kind == "redacted_thinking")
    };
    while items.last().is_some_and(|item| thinks(item)) {
        items.pop();
    }
    format!("[{}]", items.join(","))
}

/// The blocks of a model's own message, under the ids that its calls go by.
fn own_blocks(items: &[&str], model: &Model, ids: &[String]) -> String {
    let mut calls = model.calls.iter().zip(ids);
    let blocks: Vec<Raw> = telling(items)
        .into_iter()
        .filter_map(|item| {
            let block = View::of(item).object()?;
            let call = (block.string("type").as_deref() == Some("tool_use")).then(|| calls.next()).flatten();
            let Some((call, id)) = call else { return Raw::parse(item).ok() };
            let id = Raw::text(id);
            let mut members = vec![("id", id.get())];
            // Half an input, of a message that was cut off, is a string.
            let input = arguments(call);
            if block.object("input").is_none() {
                members.push(("input", input.get()));
            }
            Some(with_members(item, &members))
        })
        .collect();
    array(&blocks)
}

fn is_result(item: &str) -> bool {
    View::of(item).object().is_some_and(|block| block.string("type").as_deref() == Some("tool_result"))
}

fn content(pi: &Raw) -> Vec<Raw> {
    let block = |block: &Block<'_>| match block {
        Block::Text(spelled) => text_block(spelled),
        Block::Image(mime, data) => {
            let source = ObjectWriter::default().string("type", "base64");
            let source = source.string("media_type", mime).string("data", data).finish();
            ObjectWriter::default().string("type", "image").raw("source", source.get()).finish()
        }
        Block::Thinking(text, signature, Shown::Yes) => {
            let thinking = ObjectWriter::default().string("type", "thinking");
            thinking.raw("thinking", text).raw("signature", signature).finish()
        }
        Block::Thinking(_, data, Shown::No) => {
            ObjectWriter::default().string("type", "redacted_thinking").raw("data", data).finish()
        }
    };
    blocks(pi).iter().map(block).collect()
}

fn tool_use(call: &Asked, id: &str) -> Raw {
    let block = ObjectWriter::default().string("type", "tool_use").string("id", id);
    block.string("name", &call.tool).raw("input", arguments(call).get()).finish()
}

fn text_block(spelled: &str) -> Raw {
    ObjectWriter::default().string("type", "text").raw("text", spelled).finish()
}

fn tool_result(said: &Said, id: &str) -> Raw {
    if let Some(own) = said.own(OWN) {
        let said = own.view().object().and_then(|own| told(own.get("content")));
        let failed = own.view().object().is_some_and(|own| own.get("is_error") == Some("true"));
        let content = result_content(said.unwrap_or_else(|| "[]".to_owned()), failed);
        return with_members(own.get(), &[("tool_use_id", Raw::text(id).get()), ("content", &content)]);
    }
    let block = ObjectWriter::default().string("type", "tool_result").string("tool_use_id", id);
    let block = block.raw("content", &result_content(array(&content(&said.pi)), is_error(&said.pi)));
    if is_error(&said.pi) { block.raw("is_error", "true").finish() } else { block.finish() }
}

/// An error has to say something.
fn result_content(content: String, failed: bool) -> String {
    if content != "[]" || !failed {
        return content;
    }
    array(&[text_block("\"(the tool failed and said nothing)\"")])
}

fn message(role: &str, content: &str) -> Raw {
    ObjectWriter::default().string("role", role).raw("content", content).finish()
}
