//! The conversation that the next model request of a turn begins with.
//!
//! Pure. What stood before the turn comes from the session tree, as Pi would read it; the turn's own part comes
//! from the journal, in the order of the branch. Each call has exactly one answer directly behind its message,
//! no answer stands without its call, and what ended in error or abort is left out.

mod anthropic;
mod dialect;
mod entries;
mod openai_chat;
mod openai_responses;

use crate::branch;
use crate::draft::History;
use crate::json::{ObjectWriter, Raw, View};
use crate::message::{self, Asked, Format, Role};
use crate::record::{CallRef, Kind};
use crate::tree::Tree;
use crate::turn::{Turn, What};

const NO_SYSTEM_MESSAGE: &str = "the system prompt is no message in this format: give it as `system`";

/// The messages, and what a caller should know about them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// In order, each in the format that was asked for.
    pub messages: Vec<Raw>,
    /// What could not be said in them.
    pub notes: Vec<&'static str>,
}

/// Why there is no context.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContextError {
    /// The model may not be asked now.
    #[error("the model may not be asked now: no answer for {}", list(.0))]
    Unanswered(Vec<(CallRef, String)>),
    /// The entry that the turn was admitted on is not in the session file.
    #[error("entry {0}, on which the turn was admitted, is not in the session file")]
    NoLeaf(String),
}

/// The messages for the next model request of a turn, in `format`.
///
/// `tree` is the session tree of the turn; without it the conversation begins with the turn.
pub fn build(
    turn: &Turn,
    history: &History,
    tree: Option<&Tree>,
    format: Format,
) -> Result<Context, ContextError> {
    let open: Vec<(CallRef, String)> =
        turn.open_calls().map(|call| (call.r#ref, call.tool.clone())).collect();
    if !open.is_empty() {
        return Err(ContextError::Unanswered(open));
    }
    let mut lines = match tree {
        Some(tree) => before(turn, tree)?,
        None => Vec::new(),
    };
    for piece in branch::pieces(turn, history) {
        lines.push(entries::Line { text: piece.entry, seq: Some(piece.seq) });
    }
    let mut said = entries::project(&lines);
    if said.last().is_some_and(|said| said.role == Role::Assistant) {
        said.extend(joined_last(turn));
    }
    let nodes = paired(said.into_iter().map(|said| with_own(said, history)).collect());
    let messages = match format.stored() {
        Format::Pi => flat(&nodes),
        Format::Anthropic => anthropic::render(&nodes),
        Format::OpenaiResponses => dialect::render::<openai_responses::Responses>(&nodes),
        Format::OpenaiChat | Format::AnthropicSse | Format::OpenaiChatSse => {
            dialect::render::<openai_chat::Chat>(&nodes)
        }
    };
    let prompted = nodes.iter().any(|node| matches!(node, Node::System(_)));
    let unsaid = format.stored() == Format::Anthropic && prompted;
    Ok(Context { messages, notes: unsaid.then_some(NO_SYSTEM_MESSAGE).into_iter().collect() })
}

/// Inputs that joined the turn and have no place on the branch yet.
///
/// A model that was asked before they came does not know them. Behind a last word of the model they are what it is
/// asked for now: without them there would be nothing to answer, which providers refuse.
fn joined_last(turn: &Turn) -> impl Iterator<Item = Said> {
    let waiting = turn.steered.iter().filter(|steered| turn.anchor_of(steered).is_none());
    waiting.map(|steered| {
        let pi = message::pi_user(&steered.input, steered.mark.at.micros().div_euclid(1_000));
        Said { pi, role: Role::User, seq: Some(steered.mark.seq), own: None }
    })
}

/// The format of the turn's last model message, else of its newest message, else Pi's.
pub fn format_of(turn: &Turn, history: &History) -> Format {
    let of_seq = |seq: u64| match &history.get(seq)?.kind {
        Kind::Message(message) => message.format.parse::<Format>().ok().map(Format::stored),
        Kind::Entry(_) => Some(Format::Pi),
        _ => None,
    };
    let last = turn.last_model().map(|(fact, _, _)| fact.mark.seq);
    let said = turn.facts.iter().rev().filter(|fact| matches!(fact.what, What::Said(_)));
    last.into_iter().chain(said.map(|fact| fact.mark.seq)).find_map(of_seq).unwrap_or(Format::Pi)
}

/// The lines of the session tree down to the entry that the turn was admitted on.
fn before(turn: &Turn, tree: &Tree) -> Result<Vec<entries::Line>, ContextError> {
    let Some(leaf) = turn.tree.as_ref().and_then(|admitted| admitted.leaf.as_deref()) else {
        return Ok(Vec::new());
    };
    let index = tree.find(leaf).ok_or_else(|| ContextError::NoLeaf(leaf.to_owned()))?;
    let line = |index: &usize| Some(entries::Line { text: tree.raw(*index)?, seq: None });
    Ok(tree.path(index).entries.iter().filter_map(line).collect())
}

/// One message of the conversation.
#[derive(Debug, Clone)]
struct Said {
    /// As Pi's.
    pi: Raw,
    /// Who speaks.
    role: Role,
    /// The record whose form it has; `None` for one of the session tree, or one that was edited.
    seq: Option<u64>,
    /// As a provider said it, or is to be told it.
    own: Option<(Format, Raw)>,
}

impl Said {
    /// The body in a provider's own format, where that is what is asked for.
    fn own(&self, format: Format) -> Option<&Raw> {
        self.own.as_ref().filter(|(own, _)| *own == format).map(|(_, raw)| raw)
    }
}

/// A message in its place.
enum Node {
    System(Said),
    User(Said),
    Model(Model),
}

/// A model's message with the answers of its calls.
struct Model {
    said: Said,
    calls: Vec<Asked>,
    /// One per call.
    answers: Vec<Said>,
}

/// Finds the provider's own form of what a record says.
fn with_own(mut said: Said, history: &History) -> Said {
    let Some(record) = said.seq.and_then(|seq| history.get(seq)) else { return said };
    said.own = match &record.kind {
        Kind::Message(message) if said.role == Role::ToolResult => {
            let call = said.pi.view().object().and_then(|object| object.string("toolCallId"));
            let meaning = message.format.parse().ok().and_then(|format: Format| {
                message::meaning(format, &message.message).ok().map(|meaning| (format, meaning))
            });
            meaning.and_then(|(format, meaning)| {
                let mine =
                    meaning.answers.into_iter().find(|answer| Some(&answer.call_id) == call.as_ref())?;
                Some((format.stored(), mine.raw))
            })
        }
        Kind::Message(message) => {
            message.format.parse::<Format>().ok().map(|format| (format.stored(), message.message.clone()))
        }
        Kind::Admitted(admitted) => user_own(&admitted.input),
        Kind::Steered(steered) => user_own(&steered.input),
        Kind::Outcome(result) => result.content.as_ref().and_then(result_own),
        Kind::Reconciled(reconciled) => reconciled.content.as_ref().and_then(result_own),
        _ => None,
    };
    said
}

/// An input that is a user message of a provider.
fn user_own(input: &Raw) -> Option<(Format, Raw)> {
    let format = message::detect(input)?;
    let meaning = message::meaning(format, input).ok()?;
    (meaning.role == Role::User && meaning.answers.is_empty()).then(|| (format, input.clone()))
}

/// A result that is a provider's block, message or item for it.
fn result_own(content: &Raw) -> Option<(Format, Raw)> {
    let object = content.view().object()?;
    let kind = object.string("type").unwrap_or_default();
    let role = object.string("role").unwrap_or_default();
    let format = match (kind.as_str(), role.as_str()) {
        ("tool_result", _) => Format::Anthropic,
        (_, "tool" | "function") => Format::OpenaiChat,
        (kind, _) if kind.ends_with("_call_output") => Format::OpenaiResponses,
        _ => return None,
    };
    Some((format, content.clone()))
}

/// Puts each answer behind the message that asked; what answers nothing is left out.
fn paired(said: Vec<Said>) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut answers: Vec<Vec<Option<Said>>> = Vec::new();
    for said in said {
        match said.role {
            Role::System => nodes.push(Node::System(said)),
            Role::User | Role::Other(_) => nodes.push(Node::User(said)),
            Role::Assistant => {
                let Ok(meaning) = message::meaning(Format::Pi, &said.pi) else { continue };
                if meaning.ending.is_failed() {
                    continue;
                }
                answers.resize_with(nodes.len(), Vec::new);
                answers.push(meaning.calls.iter().map(|_| None).collect());
                nodes.push(Node::Model(Model { said, calls: meaning.calls, answers: Vec::new() }));
            }
            Role::ToolResult => {
                if let Some(slot) = slot(&nodes, &mut answers, &said.pi) {
                    *slot = Some(said);
                }
            }
        }
    }
    for (node, answers) in nodes.iter_mut().zip(answers) {
        if let Node::Model(model) = node {
            let filled = model.calls.iter().zip(answers);
            model.answers =
                filled.map(|(call, answer)| answer.unwrap_or_else(|| no_result(&model.said, call))).collect();
        }
    }
    nodes
}

/// Where the answer of a call belongs: at the nearest message above that asked for it.
fn slot<'a>(nodes: &[Node], answers: &'a mut [Vec<Option<Said>>], pi: &Raw) -> Option<&'a mut Option<Said>> {
    let id = pi.view().object()?.string("toolCallId")?;
    let asked = |call: &Asked| call.id.as_deref().unwrap_or_default() == id;
    for (node, answers) in nodes.iter().zip(answers.iter_mut()).rev() {
        let Node::Model(model) = node else { continue };
        if model.calls.iter().any(asked) {
            let free = model.calls.iter().zip(answers).find(|(call, answer)| asked(call) && answer.is_none());
            return free.map(|(_, answer)| answer);
        }
    }
    None
}

/// What Pi tells a model about a call of an earlier turn that nobody answered.
fn no_result(said: &Said, call: &Asked) -> Said {
    let timestamp = said.pi.view().object().and_then(|message| message.get("timestamp")?.parse().ok());
    let id = call.id.as_deref().unwrap_or_default();
    let content = Raw::text("No result provided");
    let pi = message::pi_result(id, &call.tool, &content, true, timestamp.unwrap_or(0));
    Said { pi, role: Role::ToolResult, seq: None, own: None }
}

fn flat(nodes: &[Node]) -> Vec<Raw> {
    let mut messages = Vec::new();
    for node in nodes {
        match node {
            Node::System(said) | Node::User(said) => messages.push(said.pi.clone()),
            Node::Model(model) => {
                messages.push(model.said.pi.clone());
                messages.extend(model.answers.iter().map(|answer| answer.pi.clone()));
            }
        }
    }
    messages
}

/// One block of a Pi message.
enum Block<'a> {
    /// A JSON string in its own spelling.
    Text(&'a str),
    /// Media type and base64.
    Image(String, String),
    /// Thinking that Anthropic signed: its text, its signature, and whether the text is hidden.
    Thinking(&'a str, &'a str, Shown),
}

#[derive(PartialEq, Eq)]
enum Shown {
    Yes,
    No,
}

/// Whether a message's thinking can go back: a signature is the provider's own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Thinking {
    Signed,
    LeftOut,
}

/// The blocks of a Pi message, calls apart; empty text is left out, as providers refuse it.
fn blocks(pi: &Raw) -> Vec<Block<'_>> {
    let Some(message) = pi.view().object() else { return Vec::new() };
    let thinking = match message.string("api").as_deref() {
        Some("anthropic-messages") => Thinking::Signed,
        _ => Thinking::LeftOut,
    };
    let content = message.get("content").unwrap_or("null");
    let items = match View::of(content) {
        View::String(text) if !text.trim().is_empty() => return vec![Block::Text(content)],
        View::Array(items) => items,
        _ => return Vec::new(),
    };
    items.into_iter().filter_map(|item| block(item, thinking)).collect()
}

fn block(item: &str, thinking: Thinking) -> Option<Block<'_>> {
    let block = View::of(item).object()?;
    match block.string("type")?.as_str() {
        "text" => {
            let text = block.string("text").filter(|text| !text.trim().is_empty());
            text.and_then(|_| block.get("text")).map(Block::Text)
        }
        "image" => Some(Block::Image(block.string("mimeType")?, block.string("data")?)),
        "thinking" if thinking == Thinking::Signed => {
            let shown = if block.get("redacted") == Some("true") { Shown::No } else { Shown::Yes };
            block.string("thinkingSignature").filter(|signature| !signature.is_empty())?;
            let text = block.get("thinking").unwrap_or("\"\"");
            Some(Block::Thinking(text, block.get("thinkingSignature")?, shown))
        }
        _ => None,
    }
}

/// Several JSON strings as one, line by line, in their own spelling.
fn joined(spelled: &[&str]) -> String {
    let inner = |text: &&str| text.get(1..text.len().saturating_sub(1)).unwrap_or_default().to_owned();
    format!("\"{}\"", spelled.iter().map(inner).collect::<Vec<_>>().join("\\n"))
}

fn texts<'a>(blocks: &[Block<'a>]) -> Vec<&'a str> {
    let text = |block: &Block<'a>| match block {
        Block::Text(spelled) => Some(*spelled),
        Block::Image(..) | Block::Thinking(..) => None,
    };
    blocks.iter().filter_map(text).collect()
}

/// Whether a Pi toolResult says that its tool failed.
fn is_error(pi: &Raw) -> bool {
    pi.view().object().is_some_and(|message| message.get("isError") == Some("true"))
}

/// An object with some members replaced, or added at its end; all others keep their bytes.
fn with_members(raw: &str, members: &[(&str, &str)]) -> Raw {
    let object = View::of(raw).object().unwrap_or(crate::json::Object(Vec::new()));
    let mut writer = ObjectWriter::default();
    for (key, value) in &object.0 {
        let replaced = members.iter().find(|(name, _)| name == key);
        writer = writer.raw(key, replaced.map_or(value, |(_, value)| value));
    }
    for (key, value) in members.iter().filter(|(key, _)| object.get(key).is_none()) {
        writer = writer.raw(key, value);
    }
    writer.finish()
}

/// Parts of a provider's own content without text that says nothing, which providers refuse.
fn telling<'a>(parts: &[&'a str]) -> Vec<&'a str> {
    let tells = |part: &&&str| {
        let Some(part) = View::of(part).object() else { return true };
        let is_text = part.string("type").is_some_and(|kind| kind == "text" || kind.ends_with("_text"));
        !is_text || part.string("text").is_some_and(|text| !text.trim().is_empty())
    };
    parts.iter().filter(tells).copied().collect()
}

/// A provider's own content without what says nothing; `None` where nothing is left.
fn told(content: Option<&str>) -> Option<String> {
    let content = content?;
    match View::of(content) {
        View::String(text) => (!text.trim().is_empty()).then(|| content.to_owned()),
        View::Array(parts) => {
            let parts = telling(&parts);
            (!parts.is_empty()).then(|| format!("[{}]", parts.join(",")))
        }
        _ => None,
    }
}

/// The arguments of a call as the object that providers hand on; what is none stands inside one, as on a branch.
fn arguments(call: &Asked) -> Raw {
    match call.args.view() {
        View::Object(_) => call.args.clone(),
        _ => ObjectWriter::default().raw("arguments", call.args.get()).finish(),
    }
}

/// What stands for a provider's own arguments in a string that are no object, as those of a message that was cut
/// off: providers that read them refuse them. `None`: they go back as they are.
fn mended(spelled: Option<&str>, call: &Asked) -> Option<Raw> {
    let text = spelled.and_then(|spelled| View::of(spelled).string()).unwrap_or_default();
    if text.trim().is_empty() {
        return Some(Raw::text("{}"));
    }
    match Raw::parse(&text) {
        Ok(raw) if raw.get().starts_with('{') => None,
        _ => Some(Raw::text(arguments(call).get())),
    }
}

fn array(items: &[Raw]) -> String {
    format!("[{}]", items.iter().map(Raw::get).collect::<Vec<_>>().join(","))
}

fn list(calls: &[(CallRef, String)]) -> String {
    calls.iter().map(|(call, tool)| format!("call {call} ({tool})")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
