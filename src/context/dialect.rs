//! What every provider's messages have in common: who says what, in order, under which ids.
//!
//! How a message is spelled is the dialect's. Nothing is said without content, and no id of a call is used twice.

use super::{Model, Node};
use crate::json::{Raw, View, lone_surrogates, sha256_hex};
use crate::message::{self, Format};
use std::collections::HashSet;

/// How one provider spells messages.
pub(super) trait Dialect {
    /// Bodies of this format go back in their own form.
    const FORMAT: Format;
    /// The system prompt; `None` where no message can hold it.
    fn system(text: &str) -> Option<Raw>;
    /// A system message in the provider's own form.
    fn own_system(own: &Raw) -> Vec<Raw>;
    /// A user message of another form.
    fn user(pi: &Raw) -> Option<Raw>;
    /// A user message in the provider's own form.
    fn own_user(own: &Raw) -> Vec<Raw>;
    /// A model's message and the answers of its calls, which go by `ids`.
    fn exchange(model: &Model, ids: &[String]) -> Vec<Raw>;
}

/// The conversation in a dialect: the system prompt, then everything in order.
pub(super) fn render<D: Dialect>(nodes: &[Node]) -> Vec<Raw> {
    let mut ids = Ids::default();
    let prompt = system_prompt(nodes, D::FORMAT).and_then(|text| D::system(&text));
    let mut messages: Vec<Raw> = prompt.into_iter().collect();
    for node in nodes {
        match node {
            Node::System(said) => messages.extend(said.own(D::FORMAT).map(D::own_system).unwrap_or_default()),
            Node::User(said) => match said.own(D::FORMAT) {
                Some(own) => messages.extend(D::own_user(own)),
                None => messages.extend(D::user(&said.pi)),
            },
            Node::Model(model) => messages.extend(D::exchange(model, &ids.of(model, D::FORMAT))),
        }
    }
    messages.iter().map(whole_characters).collect()
}

/// Half a surrogate pair, which a journal keeps and no provider takes, becomes U+FFFD.
pub(super) fn whole_characters(message: &Raw) -> Raw {
    let text = message.get();
    let mut whole = String::with_capacity(text.len());
    let mut kept = 0;
    for lone in lone_surrogates(text) {
        whole.push_str(text.get(kept..lone.start).unwrap_or_default());
        whole.push_str("\\ufffd");
        kept = lone.end;
    }
    whole.push_str(text.get(kept..).unwrap_or_default());
    Raw::composed(&whole).unwrap_or_else(|| message.clone())
}

/// Ids of calls as a provider takes them: none twice, none empty, of plain characters.
#[derive(Default)]
pub(super) struct Ids {
    used: HashSet<String>,
}

impl Ids {
    /// One per call of a message.
    fn of(&mut self, model: &Model, format: Format) -> Vec<String> {
        let is_own = model.said.own(format).is_some();
        let ids = model.calls.iter().map(|call| call.id.as_deref().unwrap_or_default());
        ids.map(|id| if is_own { self.own(id) } else { self.foreign(id) }).collect()
    }

    /// The id of a message that goes back as its provider made it: kept unless it was used before.
    pub(super) fn own(&mut self, id: &str) -> String {
        let plain = if id.is_empty() { derived(id, 0) } else { id.to_owned() };
        self.unused(id, plain)
    }

    /// The id of a call that another agent or provider named.
    pub(super) fn foreign(&mut self, id: &str) -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let fits = (1..=40).contains(&id.len()) && id.bytes().all(plain);
        let plain = if fits { id.to_owned() } else { derived(id, 0) };
        self.unused(id, plain)
    }

    fn unused(&mut self, id: &str, plain: String) -> String {
        let mut unused = plain;
        let mut count = 1;
        while !self.used.insert(unused.clone()) {
            unused = derived(id, count);
            count += 1;
        }
        unused
    }
}

/// The same wherever the conversation is built again, so that a provider's cache of it holds.
pub(super) fn derived(id: &str, count: u64) -> String {
    let digest = sha256_hex(format!("{id}#{count}").as_bytes());
    format!("call_{}", digest.get(..24).unwrap_or_default())
}

/// The system prompt that the system messages of Pi's add up to: later content is appended, sections are
/// replaced by name. Those that go back in a provider's own form are not counted.
fn system_prompt(nodes: &[Node], format: Format) -> Option<String> {
    let mut contents: Vec<String> = Vec::new();
    let mut sections: Vec<(String, String)> = Vec::new();
    for node in nodes {
        let Node::System(said) = node else { continue };
        if said.own(format).is_some() {
            continue;
        }
        if let Ok(meaning) = message::meaning(Format::Pi, &said.pi) {
            contents.push(meaning.text);
        }
        let patch = said.pi.view().object().and_then(|message| message.object("sections"));
        for (name, value) in patch.map(|patch| patch.0).unwrap_or_default() {
            match (View::of(value), sections.iter_mut().find(|(known, _)| *known == name)) {
                (View::String(text), Some((_, section))) => *section = text,
                (View::String(text), None) => sections.push((name, text)),
                _ => sections.retain(|(known, _)| *known != name),
            }
        }
    }
    let texts: Vec<String> = contents
        .into_iter()
        .chain(sections.into_iter().map(|(_, text)| text))
        .filter(|text| !text.is_empty())
        .collect();
    (!texts.is_empty()).then(|| texts.join("\n\n"))
}
