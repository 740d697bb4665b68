//! Any text as a message of each format, a stream too.
//!
//! The first byte says which format is asked for. What is taken can be taken again from what is stored, with the same
//! meaning, and stands in Pi's format with the same calls.

use turnkeep::json::{self, DEPTH_MAX, Raw};
use turnkeep::message::{self, Format, Meaning, MessageError, Role};

const FORMATS: [Option<Format>; 7] = [
    None,
    Some(Format::Pi),
    Some(Format::Anthropic),
    Some(Format::AnthropicSse),
    Some(Format::OpenaiChat),
    Some(Format::OpenaiChatSse),
    Some(Format::OpenaiResponses),
];
const ROLES: [Option<&str>; 3] = [None, Some("assistant"), Some("tool")];

/// What takes a message, as `message::take` does.
pub type Take<'a> = &'a dyn Fn(&str, Option<Format>, Option<&str>) -> Result<(Raw, Meaning), MessageError>;
/// What writes a message in Pi's format, as `message::pi_message` does.
pub type ToPi<'a> = &'a dyn Fn(&Meaning, &Raw, &[Option<String>], i64) -> Raw;

pub fn run(bytes: &[u8]) {
    judge_by(bytes, &message::take, &message::pi_message);
}

pub fn judge_by(bytes: &[u8], take: Take, to_pi: ToPi) {
    let Some((first, text)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(text);
    let index = usize::from(first.wrapping_sub(b'0'));
    let (format, role) = (FORMATS[index % 7], ROLES[index / 7 % 3]);
    match take(&text, format, role) {
        Ok((raw, meaning)) => {
            assert!(format.is_none_or(|format| format.stored() == meaning.format), "another format");
            taken(&raw, &meaning, role, take, to_pi);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    // Data of a driver goes through these.
    for raw in [Raw::text(&text)].into_iter().chain(message::result_body(&text).ok()) {
        let _text = message::text_of(&raw);
        let _error = message::result_is_error(&raw);
        well_formed(&message::pi_user(&raw, 7));
        well_formed(&message::pi_result("c", "t", &raw, true, 7));
    }
}

fn taken(raw: &Raw, meaning: &Meaning, role: Option<&str>, take: Take, to_pi: ToPi) {
    well_formed(raw);
    assert_eq!(meaning.format, meaning.format.stored());
    assert!(!meaning.role_word.is_empty());
    let again = message::meaning(meaning.format, raw).expect("what was taken is read again");
    let again = role.map_or(again.clone(), |role| again.with_role(role));
    assert_eq!(&again, meaning, "read again");
    let (stored, second) = take(raw.get(), Some(meaning.format), role).expect("what is stored is taken");
    assert!(&stored == raw && &second == meaning, "taken again");
    for call in &meaning.calls {
        well_formed(&call.args);
        assert!(meaning.ending.is_cut_off() || !call.tool.is_empty(), "a call without a tool");
    }
    for answer in &meaning.answers {
        well_formed(&answer.raw);
        well_formed(&message::pi_result(&answer.call_id, "t", &answer.raw, answer.error, 7));
    }
    let ids: Vec<Option<String>> = meaning.calls.iter().map(|call| call.id.clone()).collect();
    let pi = to_pi(meaning, raw, &ids, 1_796_000_000_000);
    well_formed(&pi);
    let read = message::meaning(Format::Pi, &pi).expect("a message in Pi's format is one");
    if meaning.role == Role::Assistant {
        // Pi hands on objects alone: other arguments stand inside one.
        let args = |raw: &Raw| match raw.get() {
            object if object.starts_with('{') => object.to_owned(),
            other => format!(r#"{{"arguments":{other}}}"#),
        };
        let calls = |meaning: &Meaning| -> Vec<(String, String)> {
            meaning.calls.iter().map(|call| (call.tool.clone(), args(&call.args))).collect()
        };
        assert_eq!(calls(&read), calls(meaning), "the same calls in {}", pi.get());
        // A failed message is left out of every branch, so its Pi form does not matter.
        assert!(meaning.ending.is_failed() || !read.ending.is_failed(), "{}", pi.get());
    }
}

/// One line, and no deeper than a body may be.
fn well_formed(raw: &Raw) {
    assert!(json::is_compact(raw.get()) && !raw.get().contains('\n'), "{raw:?}");
    assert!(json::depth(raw.get()) <= DEPTH_MAX + 8, "too deep");
    Raw::parse(raw.get()).map_or_else(|error| assert!(matches!(error, json::RawError::TooDeep { .. })), drop);
}
