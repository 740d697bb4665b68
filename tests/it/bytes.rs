//! A journal of every kind of record, with any bit flipped and cut at any byte.
//!
//! Each is found, but for a cut behind a whole line: a chain cannot show that its own end is missing. A head that was
//! kept elsewhere and the session file can. The command is asked here about some of the bits, and about more of
//! them with TURNKEEP_SLOW; `tests/fuzz/tests/every_bit.rs` asks the library about all of them.

use crate::fixtures::journal::offsets;
use crate::forge;
use crate::kit::{Sandbox, lines, objects};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Files that one `verify` is given.
const BATCH: usize = 100;

fn project(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(project("fixtures/every-kind").join(name)).unwrap()
}

/// Every how many places are tried; more of them where there is time.
fn stride(quick: usize, slow: usize) -> usize {
    if std::env::var_os("TURNKEEP_SLOW").is_some() { slow } else { quick }
}

/// What `verify` says of each of these journals: the document and the exit code in it.
fn judged(journals: impl IntoIterator<Item = (String, Vec<u8>)>) -> BTreeMap<String, Value> {
    let mut verdicts = BTreeMap::new();
    let mut journals = journals.into_iter().peekable();
    while journals.peek().is_some() {
        let sandbox = Sandbox::new();
        for (name, bytes) in journals.by_ref().take(BATCH) {
            sandbox.write(format!("batch/{name}.jsonl"), bytes);
        }
        let ran = sandbox.run(["--json", "verify", "./batch"]);
        for line in ran.stdout.lines() {
            let document: Value = serde_json::from_str(line).unwrap();
            let path = PathBuf::from(document["path"].as_str().unwrap());
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            assert!(verdicts.insert(name, document).is_none());
        }
    }
    verdicts
}

#[test]
fn the_journal_holds_every_kind_and_every_field() {
    let format = std::fs::read_to_string(project("docs/format.md")).unwrap();
    let table = format.split("## Kinds").nth(1).unwrap().split("\n\n`decision`").next().unwrap();
    let journal = fixture("journal.jsonl");
    // One line is lost on purpose, and another has half a surrogate pair, which this reader refuses.
    let text = String::from_utf8(journal).unwrap().replace(r"\ud83d", "?");
    let sound: String =
        text.split_inclusive('\n').filter(|line| serde_json::from_str::<Value>(line).is_ok()).collect();
    let mut there: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for record in lines(sound.as_bytes()) {
        let fields = there.entry(record["kind"].as_str().unwrap().to_owned()).or_default();
        let mut parts = vec![&record];
        while let Some(part) = parts.pop() {
            match part {
                Value::Object(object) => {
                    fields.extend(object.keys().cloned());
                    parts.extend(object.values());
                }
                Value::Array(items) => parts.extend(items),
                _ => {}
            }
        }
    }
    let mut kinds = 0;
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let kind = cells[1].trim_matches('`');
        let fields = there.get(kind).unwrap_or_else(|| panic!("no {kind}"));
        // Words in parentheses are values.
        let mut names = String::new();
        let mut within = 0;
        for char in cells[3].chars() {
            within += i32::from(char == '(');
            names.extend((within == 0).then_some(char));
            within -= i32::from(char == ')');
        }
        for name in names.split('`').skip(1).step_by(2).map(|name| name.trim_end_matches('?')) {
            assert!(fields.contains(name) || name == "owner", "{kind} without {name}: {fields:?}");
        }
        kinds += 1;
    }
    assert_eq!(kinds, 24);
}

#[test]
fn every_flipped_bit_is_found() {
    let journal = fixture("journal.jsonl");
    // Odd, so that each bit of a byte has its turn.
    let bits: Vec<usize> = (0..journal.len() * 8).step_by(stride(331, 41)).collect();
    let flipped = |bit: &usize| {
        let mut flipped = journal.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        (format!("{bit:07}"), flipped)
    };
    let verdicts = judged(bits.iter().map(flipped));
    assert_eq!(verdicts.len(), bits.len());
    for (bit, document) in verdicts {
        is_found(bit.parse().unwrap(), &document);
    }
}

/// Demands that a flipped bit is damage, said of the line that holds it.
#[track_caller]
fn is_found(bit: u64, document: &Value) {
    let found = document["findings"].as_array().unwrap().iter();
    let damage: Vec<&Value> = found.filter(|finding| finding["severity"] == "damage").collect();
    assert_eq!((&document["exit"], &document["verdict"]), (&3.into(), &"damaged".into()), "bit {bit}");
    assert!(!damage.is_empty(), "bit {bit}: {document}");
    // Said of the line that holds the bit, or of the record that acknowledges what is there.
    let byte = bit / 8;
    let near = damage.iter().any(|finding| {
        let offset = finding["offset"].as_u64().unwrap();
        offset <= byte && byte <= offset + finding["bytes"].as_u64().unwrap() || finding["code"] == "TK026"
    });
    assert!(near, "bit {bit}: nothing near: {damage:?}");
}

/// Mistakes on purpose: a bit that is flipped and forged away, or found elsewhere, is objected to.
#[test]
fn a_bit_that_nothing_finds_is_objected_to() {
    let sandbox = Sandbox::new();
    sandbox.run(["admit", "s", "--turn", "t", "--text", "Hi", "--owner-pid", "none"]).ok();
    sandbox.step_in("s:t:1", ["note", "-"], "some text").ok();
    let journal = sandbox.journal_bytes("s");
    // One bit of a letter; its line and what is behind it are hashed and chained anew.
    let byte = journal.windows(9).position(|window| window == b"some text").unwrap();
    let forged = forge::replaced_later(&journal, "some text", "rome text");
    let mut flipped = journal.clone();
    flipped[byte] ^= 1;
    assert_eq!(flipped[byte], forged[byte]);
    let verdicts = judged([
        ("forged".to_owned(), forged),
        ("flipped".to_owned(), flipped),
        ("whole".to_owned(), journal.clone()),
    ]);
    let bit = byte as u64 * 8;
    is_found(bit, &verdicts["flipped"]);
    objects("right: (Number(3)", || is_found(bit, &verdicts["forged"]));
    objects("right: (Number(3)", || is_found(bit, &verdicts["whole"]));
    let mut exit = verdicts["flipped"].clone();
    exit["exit"] = 0.into();
    objects("right: (Number(3)", || is_found(bit, &exit));
    objects("nothing near", || is_found(3, &verdicts["flipped"]));
    let mut unsaid = verdicts["flipped"].clone();
    unsaid["findings"] = Value::Array(Vec::new());
    objects("\"findings\":[]", || is_found(bit, &unsaid));
    // A cut that counts as whole where no line ends, and one behind a line that does not.
    for (code, at_end) in [(0, true), (13, false), (3, false)] {
        is_clean(1, code, at_end);
    }
    objects("exit 0", || is_clean(1, 0, false));
    objects("exit 1", || is_clean(1, 1, true));
    // What only a head and the session file show, where nothing was cut.
    let whole = fixture("journal.jsonl");
    objects("exit", || what_only_others_show(&whole, &[whole.len()]));
}

/// Whether a cut is one that nothing in the file shows, which is so behind a line alone.
#[track_caller]
fn is_clean(cut: usize, code: i64, at_end: bool) -> bool {
    match (code, at_end) {
        (0, true) => true,
        // Between a lost line and the record that acknowledges it.
        (3 | 13, _) => false,
        (code, at_end) => panic!("cut at {cut}: exit {code}, at the end of a line: {at_end}"),
    }
}

#[test]
fn every_cut_is_found_but_those_behind_a_line() {
    let journal = fixture("journal.jsonl");
    let ends = offsets(&journal);
    let near = ends.iter().flat_map(|end| end.saturating_sub(2)..(end + 2).min(journal.len()));
    let cuts: BTreeSet<usize> = (0..journal.len()).step_by(stride(37, 5)).chain(near).collect();
    let verdicts = judged(cuts.iter().map(|cut| (format!("{cut:07}"), journal[..*cut].to_vec())));
    assert_eq!(verdicts.len(), cuts.len());
    let mut clean = Vec::new();
    for (cut, document) in verdicts {
        let cut: usize = cut.parse().unwrap();
        let code = document["exit"].as_i64().unwrap();
        if is_clean(cut, code, ends.contains(&cut) && cut > 0) {
            clean.push(cut);
        }
    }
    let lost_line = 1;
    assert_eq!(
        clean.len(),
        ends.len() - 2 - lost_line,
        "whole lines, the first cut and the whole file apart"
    );
    what_only_others_show(&journal, &clean);
}

/// What a chain cannot show of itself: each of these cuts is found by a head, and by the session file.
fn what_only_others_show(journal: &[u8], clean: &[usize]) {
    let sandbox = Sandbox::new();
    sandbox.write("tree.jsonl", fixture("tree.jsonl"));
    sandbox.write("journal.jsonl", journal);
    let with_tree = ["--json", "verify", "./journal.jsonl", "--with-tree", "--tree-file", "./tree.jsonl"];
    let whole = sandbox.run(with_tree).ok().json();
    let (seq, hash) = (whole["head"]["seq"].as_u64().unwrap(), whole["head"]["hash"].as_str().unwrap());
    let head = format!("{seq}:{hash}");
    let with_head = ["--json", "verify", "./journal.jsonl", "--expect-head", &head];
    sandbox.run(with_head).ok();
    for cut in clean {
        sandbox.write("journal.jsonl", &journal[..*cut]);
        let by_head = sandbox.run(with_head).exits(6).json();
        let found = by_head["findings"].as_array().unwrap().iter();
        assert!(found.map(|finding| &finding["code"]).any(|code| code == "TK031"), "cut at {cut}: {by_head}");
        let by_tree = sandbox.run(with_tree).exits(3).json();
        let codes: Vec<&str> = by_tree["findings"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|finding| finding["severity"] == "damage")
            .map(|finding| finding["code"].as_str().unwrap())
            .collect();
        assert!(codes.iter().any(|code| ["TK072", "TK074"].contains(code)), "cut at {cut}: {codes:?}");
    }
}

/// A branch that `recover` wrote: what no record vouches for in it are time stamps alone.
#[test]
fn every_flipped_bit_of_a_recovered_branch_is_found() {
    let sandbox = Sandbox::new();
    sandbox.write("chat.jsonl", crate::kit::small_tree());
    let words = ["admit", "s", "--text", "Build it", "--owner-pid", "none", "--tree", "chat.jsonl"];
    let ticket = sandbox.run(words).ok().line();
    sandbox.announce(&ticket, &[("c1", "bash", serde_json::json!({"command": "make"}))]);
    sandbox.step(&ticket, ["claim", "c1"]).ok();
    let before = std::fs::read(sandbox.path("chat.jsonl")).unwrap().len();
    sandbox.run(["recover", "s", "--owner-pid", "none"]).ok();
    let tree = std::fs::read(sandbox.path("chat.jsonl")).unwrap();
    let verify = ["verify", "s", "--with-tree", "-q"];
    sandbox.run(verify).ok();
    let text = std::str::from_utf8(&tree).unwrap();
    let stamps_at: Vec<std::ops::Range<usize>> = text
        .match_indices("\"timestamp\":")
        .map(|(at, key)| {
            let value = at + key.len();
            value..value + text[value + 1..].find(['"', ',', '}']).unwrap() + 2
        })
        .collect();
    let stamp = |byte: usize| {
        stamps_at.iter().any(|range| range.start - "'timestamp':".len() <= byte && byte < range.end)
    };
    let mut stamps = 0;
    // Odd, so that each bit of a byte has its turn.
    for bit in (before * 8..(tree.len() - 1) * 8).step_by(stride(61, 7)) {
        let mut flipped = tree.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        sandbox.write("chat.jsonl", &flipped);
        let ran = sandbox.run(verify);
        match ran.code() {
            0 if stamp(bit / 8) => stamps += 1,
            3 | 13 => {}
            code => panic!("bit {bit}: exit {code}: {}", ran.all()),
        }
    }
    assert!(stamps > 0, "time stamps are not compared");
    for cut in (before..tree.len() - 1).step_by(stride(17, 1)) {
        sandbox.write("chat.jsonl", &tree[..cut]);
        let ran = sandbox.run(verify);
        assert!([3, 13].contains(&ran.code()), "cut at {cut}: {}", ran.all());
    }
}
