//! The conversation as `messages` of an Anthropic request.
//!
//! The answers of a message stand together in the one user message behind it. System text is no message there.

use super::{Block, Context, Ids, Model, Node, Said, Shown, array, blocks, is_error, with_members};
use crate::json::{ObjectWriter, Raw, View};
use crate::message::{Asked, Format};

const OWN: Format = Format::Anthropic;

pub(super) fn render(nodes: &[Node]) -> Context {
    let mut ids = Ids::default();
    let mut context = Context { messages: Vec::new(), notes: Vec::new() };
    for node in nodes {
        match node {
            Node::System(_) if context.notes.is_empty() => {
                context.notes.push("the system prompt is no message in this format: give it as `system`");
            }
            Node::System(_) => {}
            Node::User(said) => context.messages.extend(user(said)),
            Node::Model(model) => context.messages.extend(exchange(model, &mut ids)),
        }
    }
    context
}

fn user(said: &Said) -> Option<Raw> {
    let content = match said.own(OWN).and_then(|own| own.view().object()) {
        Some(own) => match own.view("content") {
            // Results stand behind their calls already.
            Some(View::Array(items)) => keep_blocks(&items, |kind| kind != "tool_result"),
            _ => own.get("content").unwrap_or("\"\"").to_owned(),
        },
        None => array(&content(&said.pi)),
    };
    (content != "[]").then(|| message("user", &content))
}

/// A model's message and, where it asked for calls, the message with their answers.
fn exchange(model: &Model, ids: &mut Ids) -> Vec<Raw> {
    let own = model.said.own(OWN).and_then(|own| own.view().object());
    let shown: Vec<String> = model
        .calls
        .iter()
        .map(|call| {
            let id = call.id.as_deref().unwrap_or_default();
            if own.is_some() { ids.own(id) } else { ids.foreign(id) }
        })
        .collect();
    let said = if let Some(own) = own {
        match own.view("content") {
            Some(View::Array(items)) => own_blocks(&items, &shown),
            _ => own.get("content").unwrap_or("[]").to_owned(),
        }
    } else {
        let calls = model.calls.iter().zip(&shown).map(|(call, id)| tool_use(call, id));
        array(&content(&model.said.pi).into_iter().chain(calls).collect::<Vec<_>>())
    };
    if said == "[]" || said == "\"\"" {
        return Vec::new();
    }
    let results: Vec<Raw> =
        model.answers.iter().zip(&shown).map(|(said, id)| tool_result(said, id)).collect();
    let answered = (!results.is_empty()).then(|| message("user", &array(&results)));
    [message("assistant", &said)].into_iter().chain(answered).collect()
}

/// The blocks of a model's own message, under the ids that its calls go by.
fn own_blocks(items: &[&str], ids: &[String]) -> String {
    let mut ids = ids.iter();
    let blocks: Vec<Raw> = items
        .iter()
        .filter_map(|item| {
            let block = View::of(item).object()?;
            let id = (block.string("type").as_deref() == Some("tool_use")).then(|| ids.next()).flatten();
            match id {
                Some(id) if block.string("id").as_ref() != Some(id) => {
                    Some(with_members(item, &[("id", Raw::text(id).get())]))
                }
                _ if is_empty_text(item) => None,
                _ => Raw::parse(item).ok(),
            }
        })
        .collect();
    array(&blocks)
}

fn keep_blocks(items: &[&str], keep: impl Fn(&str) -> bool) -> String {
    let kept = items.iter().filter(|item| {
        let kind = View::of(item).object().and_then(|block| block.string("type")).unwrap_or_default();
        keep(&kind) && !is_empty_text(item)
    });
    format!("[{}]", kept.copied().collect::<Vec<_>>().join(","))
}

fn is_empty_text(item: &str) -> bool {
    View::of(item).object().is_some_and(|block| {
        block.string("type").as_deref() == Some("text")
            && block.string("text").is_none_or(|text| text.trim().is_empty())
    })
}

fn content(pi: &Raw) -> Vec<Raw> {
    let block = |block: &Block<'_>| match block {
        Block::Text(spelled) => ObjectWriter::default().string("type", "text").raw("text", spelled).finish(),
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
    block.string("name", &call.tool).raw("input", call.args.get()).finish()
}

fn tool_result(said: &Said, id: &str) -> Raw {
    if let Some(own) = said.own(OWN) {
        return with_members(own.get(), &[("tool_use_id", Raw::text(id).get())]);
    }
    let block = ObjectWriter::default().string("type", "tool_result").string("tool_use_id", id);
    let block = block.raw("content", &array(&content(&said.pi)));
    if is_error(&said.pi) { block.raw("is_error", "true").finish() } else { block.finish() }
}

fn message(role: &str, content: &str) -> Raw {
    ObjectWriter::default().string("role", role).raw("content", content).finish()
}
