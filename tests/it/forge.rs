//! Journals made or changed by hand: an independent writer of the format, so that the tests do not believe the code.
#![allow(dead_code, reason = "each test module uses its part")]

use sha2::{Digest as _, Sha256};

/// SHA-256, lower-case hex.
pub fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut hex = String::new();
    for byte in Sha256::digest(bytes) {
        write!(hex, "{byte:02x}").unwrap();
    }
    hex
}

/// The id of the entry that stands for a record.
pub fn entry_id(turn: &str, hash: &str, what: &str) -> String {
    sha256(format!("{turn}:{hash}:{what}").as_bytes())[..16].to_owned()
}

/// Every line up to its `prev`, its newline left out.
pub fn heads(journal: &[u8]) -> Vec<String> {
    let text = std::str::from_utf8(journal).unwrap();
    text.lines().map(|line| line[..line.rfind(r#","prev":""#).unwrap()].to_owned()).collect()
}

/// Chains lines anew, each given up to its `prev`.
pub fn chain(heads: &[String]) -> Vec<u8> {
    let mut prev = "0".repeat(64);
    let mut journal = Vec::new();
    for head in heads {
        let line = format!(r#"{head},"prev":"{prev}""#);
        prev = sha256(line.as_bytes());
        journal.extend(format!("{line},\"hash\":\"{prev}\"}}\n").into_bytes());
    }
    journal
}

/// A journal with some text replaced by other text of the same length in every record, the chain made to fit.
///
/// The length has to stay, since offsets are recorded.
pub fn replaced(journal: &[u8], from: &str, to: &str) -> Vec<u8> {
    replaced_from(0, journal, from, to)
}

/// The same behind the genesis, whose hash goes into the keys of calls.
pub fn replaced_later(journal: &[u8], from: &str, to: &str) -> Vec<u8> {
    replaced_from(1, journal, from, to)
}

fn replaced_from(first: usize, journal: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len(), "offsets would change");
    let change = |(line, head): (usize, &String)| {
        if line < first { head.clone() } else { head.replace(from, to) }
    };
    let heads: Vec<String> = heads(journal).iter().enumerate().map(change).collect();
    let changed = chain(&heads);
    assert_ne!(journal, changed, "nothing was replaced");
    changed
}
