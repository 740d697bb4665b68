//! Any bytes as a policy file, its tools classified.
//!
//! Behind a NUL stand the arguments of a call. What cannot be decided is never bolder than what can.

use turnkeep::chain;
use turnkeep::json::View;
use turnkeep::policy::{Policy, Rule};
use turnkeep::record::Replay;

pub fn run(bytes: &[u8]) {
    judge_by(bytes, Policy::classify);
}

/// Demands it of whatever classifies a tool's arguments.
pub fn judge_by(bytes: &[u8], classify: impl Fn(&Policy, &str, &str) -> Rule) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let file = parts.next().unwrap_or_default();
    let args = String::from_utf8_lossy(parts.next().unwrap_or(b"{}")).into_owned();
    let policy = match Policy::parse(file, "p.json") {
        Ok(policy) => policy,
        Err(error) => {
            let said = error.to_string();
            let line = file.iter().filter(|byte| **byte == b'\n').count() + 1;
            return assert!(said.starts_with("policy p.json, line ") && error.line <= line, "{said}");
        }
    };
    assert!(policy.attempts_max() >= 1);
    assert_eq!(policy.sha256(), Some(&chain::digest(file)));
    let text = std::str::from_utf8(file).expect("a policy is text");
    assert_eq!(classify(&policy, "no such tool", &args).replay, Replay::Never, "no such tool");
    for tool in tools(text) {
        let given = classify(&policy, &tool, &args);
        assert_eq!(given, classify(&policy, &tool, &format!(" {args}\n")), "white space");
        // A tool may read the other one of doubled keys.
        if let Some(doubled) = doubled(&args) {
            let undecided = classify(&policy, &tool, &doubled);
            assert!(
                bolder_or_same(given, undecided),
                "{tool}, doubled: {undecided:?} for {doubled}, {given:?} for {args}"
            );
        }
        let nothing = classify(&policy, &tool, "\"text\"");
        assert!(bolder_or_same(given, nothing), "{tool}: {nothing:?} for no object, {given:?} for {args}");
    }
}

fn tools(text: &str) -> Vec<String> {
    let rules = View::of(text).object().and_then(|policy| policy.array("rules")).unwrap_or_default();
    rules.into_iter().filter_map(|rule| View::of(rule).object()?.string("tool")).collect()
}

/// The same object with its first member once more.
fn doubled(args: &str) -> Option<String> {
    let object = View::of(args).object()?;
    let (key, value) = object.0.first()?;
    let key = serde_json::to_string(key).ok()?;
    Some(args.trim_end().strip_suffix('}')?.to_owned() + &format!(",{key}:{value}}}"))
}

/// Whether `one` allows at least what `other` allows.
fn bolder_or_same(one: Rule, other: Rule) -> bool {
    one.replay >= other.replay
        && (one.approval.is_none() || other.approval.is_some())
        && (one.unknown.is_none() || other.unknown.is_some())
}
