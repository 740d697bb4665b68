//! Any text as a body: what is taken is kept, means the same when it is read again, and is one line.

use turnkeep::json::{self, DEPTH_MAX, Raw, RawError, View};

pub fn run(bytes: &[u8]) {
    judge_by(bytes, Raw::parse);
}

/// Demands it of whatever takes a text as a body.
pub fn judge_by(bytes: &[u8], parse: impl Fn(&str) -> Result<Raw, RawError>) {
    let text = String::from_utf8_lossy(bytes);
    let depth = json::depth(&text);
    match parse(&text) {
        Ok(raw) => {
            assert!(depth <= DEPTH_MAX, "too deep");
            assert!(json::is_compact(raw.get()) && !raw.get().contains('\n'));
            assert!(parse(raw.get()).as_ref() == Ok(&raw), "compact twice");
            assert!(letters(&text) == letters(raw.get()), "more than white space went");
            assert_ne!(raw.view(), View::Other);
            assert!(json::same(raw.get(), &text, &[]) || has_doubled(raw.get()), "not the same as itself");
            walk(raw.get());
        }
        Err(RawError::TooDeep { depth: told }) => {
            assert!(told == depth && depth > DEPTH_MAX, "too deep: told {told}, is {depth}")
        }
        Err(RawError::Syntax(why)) => assert!(!why.is_empty(), "no reason"),
    }
    let kept = Raw::text(&text);
    assert_eq!(kept.view(), View::String(text.clone().into_owned()), "text is kept");
    if let Ok(raw) = Raw::structured_or_text(&text) {
        assert!(matches!(raw.view(), View::Object(_) | View::Array(_)) || raw == kept);
    }
}

/// Everything but white space.
fn letters(text: &str) -> String {
    text.chars().filter(|char| !matches!(char, ' ' | '\t' | '\r' | '\n')).collect()
}

fn has_doubled(text: &str) -> bool {
    match View::of(text) {
        View::Object(object) => {
            object.doubled().is_some() || object.0.iter().any(|(_, value)| has_doubled(value))
        }
        View::Array(items) => items.into_iter().any(has_doubled),
        _ => false,
    }
}

/// No part of a valid value is unreadable.
fn walk(text: &str) {
    match View::of(text) {
        View::Object(object) => object.0.iter().for_each(|(_, value)| walk(value)),
        View::Array(items) => items.into_iter().for_each(walk),
        View::Other => panic!("a part of a valid value is none: {text}"),
        View::Null | View::Bool(_) | View::Number(_) | View::String(_) => {}
    }
}
