//! What a message of each known format means: its role, how it ended, its calls, results and text.
//!
//! Pure. A body is read one level at a time and never changed: the stored bytes stay the provider's, and a
//! meaning is derived from them anew each time. Unknown fields and blocks are passed over. What is not
//! plainly a message (an API error, an unfinished stream, several choices) is refused by [`take`].

mod anthropic;
mod openai_chat;
mod openai_responses;
mod pi;
mod sse;

use crate::json::{ObjectWriter, Raw, RawError, View};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

pub use pi::{pi_message, pi_opened, pi_opens, pi_result, pi_user};

/// A message format. A stored message is never in a stream's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Pi's own messages.
    Pi,
    /// Anthropic Messages.
    Anthropic,
    /// A saved event stream of Anthropic Messages.
    AnthropicSse,
    /// OpenAI Chat Completions.
    OpenaiChat,
    /// A saved event stream of OpenAI Chat Completions.
    OpenaiChatSse,
    /// OpenAI Responses.
    OpenaiResponses,
}

/// Who speaks in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// The operator: `system`, `developer`.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool: `toolResult`, `tool`, `function`, or a message of nothing but tool results.
    ToolResult,
    /// Anybody else, as spelled; empty where the body names nobody.
    Other(String),
}

/// How a message ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// As the model meant it, or nothing is said about it.
    Complete,
    /// Anthropic's `pause_turn`: complete, and the model wants to be called again.
    Paused,
    /// Before it was whole, for this reason: its calls must not run.
    CutOff(String),
    /// In an error or an abort, with this reason: cut off, and no message of the conversation.
    Failed(String),
}

/// One call that a message asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The provider's id. `None`: the field is missing.
    pub id: Option<String>,
    /// Tool name; empty where there is none.
    pub tool: String,
    /// Arguments; `{}` where there are none.
    pub args: Raw,
}

/// One tool result that a message holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// The provider's id of the call; empty where there is none.
    pub call_id: String,
    /// Tool name, where it is said.
    pub tool: Option<String>,
    /// Whether the tool failed.
    pub error: bool,
    /// The part of the message that is this result, fit for [`pi_result`].
    pub raw: Raw,
}

/// What a message means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meaning {
    /// Its format, never a stream's.
    pub format: Format,
    /// Who speaks.
    pub role: Role,
    /// The role as the body spells it; empty where it names none.
    pub role_word: String,
    /// How it ended.
    pub ending: Ending,
    /// The calls it asks for, in order.
    pub calls: Vec<Asked>,
    /// The tool results in it, in order.
    pub answers: Vec<Answered>,
    /// Its plain text.
    pub text: String,
}

/// Why something is not taken as a message.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MessageError {
    /// Nothing was given.
    #[error("the message is empty")]
    Empty,
    /// Not JSON and no event stream either, or too deep.
    #[error("the message is neither JSON nor a saved event stream: {0}")]
    Json(#[source] RawError),
    /// JSON that is no message of any known format.
    #[error(
        "not a message of a known format: accepted are a message with a role and content, a whole response \
         or a saved event stream of pi, anthropic or openai-chat, and a response or items of openai-responses"
    )]
    Unknown,
    /// JSON that is no message of the format that was asked for.
    #[error("not a message of format {format}: {why}")]
    Shape {
        /// The format.
        format: Format,
        /// What is missing or wrong.
        why: &'static str,
    },
    /// The body is plainly of another format than was said.
    #[error("said to be of format {given}, but it is of format {seen}")]
    OtherFormat {
        /// What was said.
        given: Format,
        /// What it is.
        seen: Format,
    },
    /// No role in the body, and none was given.
    #[error("the message has no role: give one")]
    NoRole,
    /// The body has another role than was given.
    #[error("the message has the role {body:?}, not {given:?}")]
    OtherRole {
        /// In the body.
        body: String,
        /// Given beside it.
        given: String,
    },
    /// A response with no choice, or with several: which one is the conversation?
    #[error("the response holds {0} choices; a message is exactly one")]
    Choices(usize),
    /// A call without a tool name.
    #[error("the call at position {position} names no tool")]
    NoTool {
        /// Its position, from 0.
        position: usize,
    },
    /// A Pi message with content that Pi cannot go on from.
    #[error(
        "Pi opens a session only where the content of each message is an array of blocks or a string: the content \
         of this {role} message {found}"
    )]
    PiContent {
        /// Who speaks.
        role: String,
        /// What there is instead.
        found: Content,
    },
    /// A line of a session tree.
    #[error("this is an entry of a session tree, not a message: give it to `step entry`")]
    TreeEntry,
    /// The provider answered with an error.
    #[error("the provider answered with an error, not with a message: {0}")]
    Provider(String),
    /// A stream that does not come to its end.
    #[error("the event stream is unfinished: no {0}")]
    Unfinished(&'static str),
    /// A stream whose events do not fit together.
    #[error("the event stream is broken at event {event}: {why}")]
    Stream {
        /// Number of the event, from 1.
        event: usize,
        /// What does not fit.
        why: String,
    },
}

/// What stands as content where it cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Something else than an array or a string.
    Is(&'static str),
    /// An array whose item at this position is no block, or a text block without its text.
    Item(usize),
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(what) => write!(f, "is {what}"),
            Self::Item(position) => {
                write!(
                    f,
                    "has an item at position {position} that is no block, or a text block without a text"
                )
            }
        }
    }
}

/// Takes what `step message` is given: a message alone, a provider's whole response, or a saved stream.
///
/// `format` is `None` for `auto`. `role` counts where the body names none; the body is kept without it, so
/// whoever reads it again has to say it again ([`Meaning::with_role`]).
pub fn take(text: &str, format: Option<Format>, role: Option<&str>) -> Result<(Raw, Meaning), MessageError> {
    if text.trim().is_empty() {
        return Err(MessageError::Empty);
    }
    let (format, raw) = match format {
        Some(format @ (Format::AnthropicSse | Format::OpenaiChatSse)) => {
            (format.stored(), assemble(format, text)?)
        }
        Some(format) if sse::is_stream(text) => {
            return Err(MessageError::Shape {
                format,
                why: "it is an event stream, whose format ends in -sse",
            });
        }
        Some(format) => (format, Raw::parse(text).map_err(MessageError::Json)?),
        None => recognize(text)?,
    };
    refuse_no_message(&raw)?;
    if let Some(Guess::Sure(seen)) = guess(&raw)
        && seen != format
    {
        return Err(MessageError::OtherFormat { given: format, seen });
    }
    let meaning = match (meaning(format, &raw)?, role) {
        (meaning, None) if meaning.role_word.is_empty() => return Err(MessageError::NoRole),
        (meaning, Some(given)) if !meaning.role_word.is_empty() && meaning.role_word != given => {
            return Err(MessageError::OtherRole { body: meaning.role_word, given: given.to_owned() });
        }
        (meaning, Some(given)) => meaning.with_role(given),
        (meaning, None) => meaning,
    };
    if meaning.format == Format::Pi {
        pi::check_content(&raw, &meaning.role_word)?;
    }
    // A cut-off call never runs, so it may lack even its name.
    match meaning.calls.iter().position(|call| call.tool.is_empty()) {
        Some(position) if !meaning.ending.is_cut_off() => Err(MessageError::NoTool { position }),
        _ => Ok((raw, meaning)),
    }
}

/// The format of a body, if it is a message, response or item of a known one.
pub fn detect(raw: &Raw) -> Option<Format> {
    guess(raw).map(|guess| match guess {
        Guess::Sure(format) | Guess::Likely(format) => format,
    })
}

/// What a body of `format` means; total on what [`take`] accepts.
pub fn meaning(format: Format, raw: &Raw) -> Result<Meaning, MessageError> {
    let parts = parts(format, raw)?;
    let only_answers =
        parts.blocks.iter().all(|block| matches!(block, Block::Answer(_))) && !parts.blocks.is_empty();
    let role_word = parts.role.unwrap_or_default();
    let role = if only_answers { Role::ToolResult } else { Role::of(&role_word) };
    let mut meaning = Meaning {
        format: format.stored(),
        role,
        role_word,
        ending: parts.ending,
        calls: Vec::new(),
        answers: Vec::new(),
        text: String::new(),
    };
    let mut texts = Vec::new();
    for block in parts.blocks {
        match block {
            Block::Text(spelled) => texts.extend(View::of(&spelled).string()),
            Block::Call(call) => meaning.calls.push(call),
            Block::Answer(answer) => meaning.answers.push(answer),
            Block::Image(_) => {}
        }
    }
    // Pi shows its text blocks line by line; the other providers split running text into blocks.
    meaning.text = texts.join(if meaning.format == Format::Pi { "\n" } else { "" });
    Ok(meaning)
}

/// The text of a reply: of a JSON string itself, of a message its text, of anything else the JSON.
pub fn text_of(raw: &Raw) -> String {
    if let View::String(text) = raw.view() {
        return text;
    }
    detect(raw)
        .and_then(|format| meaning(format, raw).ok())
        // Data may look like a message; one that names nobody is data.
        .filter(|meaning| !meaning.role_word.is_empty())
        .map_or_else(|| raw.get().to_owned(), |meaning| meaning.text)
}

/// The body of a result: a tool-result message, a JSON object or array as it is, else text.
pub fn result_body(text: &str) -> Result<Raw, RawError> {
    // A tool-result message is an object, so one rule covers all three.
    Raw::structured_or_text(text)
}

/// Whether a result's body itself says that the tool failed, or did not; `None` where it says nothing.
pub fn result_is_error(raw: &Raw) -> Option<bool> {
    let flag = |text: &str, key: &str| match View::of(text).object()?.view(key)? {
        View::Bool(error) => Some(error),
        _ => None,
    };
    let object = raw.view().object()?;
    let blocks = object.array("content");
    if object.string("type").as_deref() == Some("tool_result") {
        return flag(raw.get(), "is_error");
    }
    if object.string("role").as_deref() == Some("toolResult")
        || blocks.is_some() && object.get("isError").is_some()
    {
        return flag(raw.get(), "isError");
    }
    let [result] = *blocks?
        .into_iter()
        .filter(|block| type_of(block).as_deref() == Some("tool_result"))
        .collect::<Vec<_>>()
    else {
        return None;
    };
    flag(result, "is_error")
}

impl Format {
    const ALL: [Self; 6] = [
        Self::Pi,
        Self::Anthropic,
        Self::AnthropicSse,
        Self::OpenaiChat,
        Self::OpenaiChatSse,
        Self::OpenaiResponses,
    ];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pi => "pi",
            Self::Anthropic => "anthropic",
            Self::AnthropicSse => "anthropic-sse",
            Self::OpenaiChat => "openai-chat",
            Self::OpenaiChatSse => "openai-chat-sse",
            Self::OpenaiResponses => "openai-responses",
        }
    }

    /// The format in which such a message is stored: a stream as the message assembled from it.
    #[must_use]
    pub fn stored(self) -> Self {
        match self {
            Self::AnthropicSse => Self::Anthropic,
            Self::OpenaiChatSse => Self::OpenaiChat,
            Self::Pi | Self::Anthropic | Self::OpenaiChat | Self::OpenaiResponses => self,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Format {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|format| format.word() == text)
            .ok_or_else(|| format!("expected one of: {}", Self::ALL.map(Self::word).join(", ")))
    }
}

impl Role {
    /// The role that a word of any format means.
    pub fn of(word: &str) -> Self {
        match word {
            "system" | "developer" => Self::System,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "toolResult" | "tool" | "function" => Self::ToolResult,
            other => Self::Other(other.to_owned()),
        }
    }

    /// Pi's word for it.
    pub fn word(&self) -> &str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::ToolResult => "toolResult",
            Self::Other(word) => word,
        }
    }
}

impl Ending {
    /// Whether the message is not whole, so that its calls must not run.
    pub fn is_cut_off(&self) -> bool {
        match self {
            Self::CutOff(_) | Self::Failed(_) => true,
            Self::Complete | Self::Paused => false,
        }
    }

    /// Whether it ended in an error or an abort, so that it is no message of the conversation.
    pub fn is_failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    /// What a raw stop reason means, where `complete` and `failed` are the format's words for these.
    fn read(reason: Option<&str>, complete: &[&str], failed: &[&str]) -> Self {
        let Some(raw) = reason.filter(|reason| *reason != "null") else { return Self::Complete };
        let word = View::of(raw).string().unwrap_or_else(|| raw.to_owned());
        match word.as_str() {
            "pause_turn" if complete.contains(&"pause_turn") => Self::Paused,
            known if complete.contains(&known) => Self::Complete,
            known if failed.contains(&known) => Self::Failed(word),
            _ => Self::CutOff(word),
        }
    }
}

impl Meaning {
    /// The same message with the role that stands beside a body that names none.
    #[must_use]
    pub fn with_role(mut self, word: &str) -> Self {
        if self.role_word.is_empty() {
            word.clone_into(&mut self.role_word);
            if self.role != Role::ToolResult {
                self.role = Role::of(word);
            }
        }
        self
    }
}

/// What a body is made of, in its own order.
struct Parts<'a> {
    role: Option<String>,
    ending: Ending,
    blocks: Vec<Block<'a>>,
}

/// One part of a message that means something here; all else is passed over.
enum Block<'a> {
    /// A JSON string in its own spelling.
    Text(Cow<'a, str>),
    /// An image as a Pi content block.
    Image(Cow<'a, str>),
    /// A call.
    Call(Asked),
    /// A tool result.
    Answer(Answered),
}

fn parts(format: Format, raw: &Raw) -> Result<Parts<'_>, MessageError> {
    match format.stored() {
        Format::Pi => pi::read(raw),
        Format::Anthropic => anthropic::read(raw),
        Format::OpenaiResponses => openai_responses::read(raw),
        Format::OpenaiChat | Format::AnthropicSse | Format::OpenaiChatSse => openai_chat::read(raw),
    }
}

/// How sure the format of a body is. Plain role and text look alike in all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guess {
    Sure(Format),
    Likely(Format),
}

fn guess(raw: &Raw) -> Option<Guess> {
    use Format::{Anthropic, OpenaiChat, OpenaiResponses, Pi};
    let object = match raw.view() {
        View::Object(object) => object,
        View::Array(items) => {
            let items_alone = !items.is_empty() && items.iter().all(|item| openai_responses::is_item(item));
            return items_alone.then_some(Guess::Sure(OpenaiResponses));
        }
        _ => return None,
    };
    let has = |key: &str| object.get(key).is_some_and(|value| value != "null");
    let role = object.string("role");
    let kind = object.string("type");
    let content = object.view("content");
    let blocks: Vec<String> = match &content {
        Some(View::Array(items)) => items.iter().filter_map(|item| type_of(item)).collect(),
        _ => Vec::new(),
    };
    let typed = |items: Vec<&str>| items.iter().all(|item| type_of(item).is_some());
    let holds = |words: &[&str]| blocks.iter().any(|block| words.contains(&block.as_str()));
    if object.array("choices").is_some() {
        Some(Guess::Sure(OpenaiChat))
    } else if object.string("object").as_deref() == Some("response")
        || object.array("output").is_some_and(typed)
    {
        Some(Guess::Sure(OpenaiResponses))
    } else if kind.as_deref() == Some("tool_result") {
        Some(Guess::Sure(Anthropic))
    } else if kind.as_deref() != Some("message") && role.is_none() && openai_responses::is_item(raw.get()) {
        Some(Guess::Sure(OpenaiResponses))
    } else if role.as_deref() == Some("toolResult") || has("stopReason") || holds(&["toolCall"]) {
        Some(Guess::Sure(Pi))
    } else if has("tool_calls") || has("function_call") || has("tool_call_id") || holds(&["image_url"]) {
        Some(Guess::Sure(OpenaiChat))
    } else if object.get("stop_reason").is_some() || holds(&["tool_use", "tool_result"]) {
        Some(Guess::Sure(Anthropic))
    } else if holds(&["input_text", "output_text"]) {
        Some(Guess::Sure(OpenaiResponses))
    } else if kind.as_deref() == Some("message") && content.is_some() {
        let format = if matches!(content, Some(View::Array(_))) { Anthropic } else { OpenaiResponses };
        Some(Guess::Likely(format))
    } else if matches!(content, Some(View::Array(_))) || content.is_some() && has("timestamp") {
        Some(Guess::Likely(Pi))
    } else if content.is_some() || has("refusal") {
        Some(Guess::Likely(OpenaiChat))
    } else {
        None
    }
}

/// The format of a text, and its body: of a stream the assembled message.
fn recognize(text: &str) -> Result<(Format, Raw), MessageError> {
    match Raw::parse(text) {
        Ok(raw) => {
            // Errors and tree entries first: their reason says more than that the format is unknown.
            refuse_no_message(&raw)?;
            detect(&raw).map(|format| (format, raw)).ok_or(MessageError::Unknown)
        }
        Err(RawError::Syntax(_)) if sse::is_stream(text) => {
            let format = sse::format(text)?;
            Ok((format.stored(), assemble(format, text)?))
        }
        Err(source) => Err(MessageError::Json(source)),
    }
}

/// One message from a saved stream, or an error where the stream does not come to its end.
fn assemble(format: Format, text: &str) -> Result<Raw, MessageError> {
    if !sse::is_stream(text) {
        return Err(MessageError::Shape { format, why: "no event stream" });
    }
    match format {
        Format::AnthropicSse => anthropic::assemble(&sse::events(text)),
        Format::OpenaiChatSse => openai_chat::assemble(&sse::events(text)),
        Format::Pi | Format::Anthropic | Format::OpenaiChat | Format::OpenaiResponses => {
            Raw::parse(text).map_err(MessageError::Json)
        }
    }
}

/// Refuses what looks like a message and is none.
fn refuse_no_message(raw: &Raw) -> Result<(), MessageError> {
    let Some(object) = raw.view().object() else { return Ok(()) };
    let failed = object.get("error").filter(|error| *error != "null");
    // A failed Responses object carries its error inside: that one is a message that ended so.
    if let Some(error) =
        failed.filter(|_| ["role", "choices", "output", "status"].iter().all(|key| object.get(key).is_none()))
    {
        return Err(MessageError::Provider(error.to_owned()));
    }
    let entry = object.object("message").is_some() && object.get("parentId").is_some();
    if entry { Err(MessageError::TreeEntry) } else { Ok(()) }
}

/// The arguments of a call: the JSON in a string, if it parses, else the value as it is; `{}` for none.
fn args(value: Option<&str>) -> Raw {
    let Some(value) = value.filter(|value| *value != "null") else { return ObjectWriter::default().finish() };
    if let View::String(text) = View::of(value)
        && let Ok(inner) = Raw::parse(&text)
    {
        return inner;
    }
    keep(value)
}

/// A part of a body as a body of its own.
fn keep(part: &str) -> Raw {
    // A part of a valid body is valid.
    Raw::composed(part).unwrap_or_else(|| Raw::text(part))
}

fn type_of(item: &str) -> Option<String> {
    View::of(item).object()?.string("type")
}

#[cfg(test)]
mod tests;
