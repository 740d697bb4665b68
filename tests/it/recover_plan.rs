//! `recover --dry-run` over generated turns: what it shows is what `recover` then writes, and showing writes nothing.

use crate::kit::*;
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt as _;

/// A small generator: the same seed is the same turn.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }
}

const TOOLS: [&str; 5] = ["bash", "look", "put", "charge", "deploy"];

fn seeds() -> u64 {
    if std::env::var_os("TURNKEEP_SLOW").is_some() { 400 } else { 30 }
}

/// A turn in any state, its owner gone; and how `recover` is to be asked.
fn generate(sandbox: &Sandbox, dice: &mut Dice) -> Vec<&'static str> {
    sandbox.policy(json!([
        {"tool": "look", "replay": "safe"},
        {"tool": "put", "replay": "keyed"},
        {"tool": "charge", "replay": "never", "unknown": "hold"},
        {"tool": "deploy", "replay": "safe", "approval": "required"},
    ]));
    let owner = Owner::start();
    let mut words = vec!["--turn", "t1"];
    let tree = dice.roll(4);
    match tree {
        0 => {}
        1 => {
            sandbox.write("chat.jsonl", small_tree());
            words.extend(["--tree", "chat.jsonl"]);
        }
        2 => {
            sandbox.write("chat.jsonl", small_tree());
            words.extend(["--tree", "chat.jsonl", "--tree-mode", "append"]);
        }
        _ => words.extend(["--tree", "chat.jsonl"]),
    }
    if dice.one_in(2) {
        words.extend(["--delivery", "k"]);
    }
    let mut ticket = sandbox.admit(&owner, "s", &words);
    let mut owner = owner;
    let mut number = 0;
    for _ in 0..dice.roll(4) {
        play(sandbox, dice, &ticket, &mut number);
        if dice.one_in(4) {
            owner.die();
            owner = Owner::start();
            let pid = owner.pid().to_string();
            let ran = sandbox.run(["recover", "s", "--owner-pid", &pid]);
            if ran.code() != 0 {
                break;
            }
            ticket = ran.line();
        }
    }
    if dice.one_in(4) {
        sandbox.run(["step", "cancel", "--session", "s", "--by", "alice"]);
    }
    if dice.one_in(4) {
        sandbox.step(&ticket, ["settle", "--status", "failed"]);
    }
    owner.die();
    spoil(sandbox, dice);
    let mut asked = Vec::new();
    if dice.one_in(4) {
        asked.push("--close-calls");
    }
    asked
}

/// A message with calls, and something done about each of them; what is refused is no part of the turn.
fn play(sandbox: &Sandbox, dice: &mut Dice, ticket: &str, number: &mut u64) {
    let mut calls = Vec::new();
    for _ in 0..dice.roll(4) {
        *number += 1;
        calls.push((
            format!("c{number}"),
            TOOLS[usize::try_from(dice.roll(5)).unwrap()],
            json!({"n": number}),
        ));
    }
    let named: Vec<(&str, &str, Value)> =
        calls.iter().map(|(id, tool, args)| (id.as_str(), *tool, args.clone())).collect();
    let message = match dice.roll(8) {
        0 => assistant_ending("length", "cut", &named),
        1 => assistant_ending("error", "", &named),
        _ => assistant("said", &named),
    };
    sandbox.step_in(ticket, ["message", "-"], message.to_string());
    if dice.one_in(4) {
        sandbox.run(["step", "steer", "--session", "s", "--text", "and this"]);
    }
    for (id, tool, _) in &calls {
        if *tool == "deploy" && dice.one_in(2) {
            let word = if dice.one_in(3) { "deny" } else { "approve" };
            sandbox.run(["step", word, id, "--by", "alice", "--session", "s"]);
        }
        match dice.roll(5) {
            0 => {}
            1 => {
                sandbox.step(ticket, ["dispatch", id, "--to", "farm"]);
            }
            state => {
                sandbox.step(ticket, ["claim", id]);
                if state > 2 {
                    sandbox.step_in(ticket, ["result", id, "-"], "the result");
                }
            }
        }
    }
}

/// What a crash, or another writer, leaves at the ends of the files.
fn spoil(sandbox: &Sandbox, dice: &mut Dice) {
    let journal = sandbox.journal_path("s");
    let tail: &[u8] = match dice.roll(6) {
        0 => b"{\"seq\":7,\"at\":\"20",
        1 => &[0; 64],
        _ => b"",
    };
    let mut bytes = std::fs::read(&journal).unwrap();
    if dice.one_in(6) {
        bytes.pop();
    }
    if bytes.ends_with(b"\n") || tail.first() == Some(&0) {
        bytes.extend(tail);
    }
    std::fs::write(&journal, bytes).unwrap();
    let tree = sandbox.path("chat.jsonl");
    if let Ok(mut bytes) = std::fs::read(&tree) {
        match dice.roll(5) {
            0 => bytes.extend(b"{\"type\":\"message\",\"id\":\"x"),
            1 => {
                let on = whole_lines(&bytes).get(1).map(|entry| entry["id"].clone());
                let label = json!({"type": "label", "id": "x1", "parentId": on, "targetId": on, "label": "l",
                                   "timestamp": "2026-01-05T09:00:09.000Z"});
                bytes.extend(format!("{label}\n").into_bytes());
            }
            2 => {
                bytes.pop();
            }
            _ => {}
        }
        std::fs::write(&tree, bytes).unwrap();
    }
}

/// Every path with its bytes and the times that a write changes.
fn with_times(sandbox: &Sandbox) -> Vec<(std::path::PathBuf, Option<Vec<u8>>, [i64; 4])> {
    let times = |path: &std::path::Path| {
        let meta = std::fs::symlink_metadata(path).unwrap();
        [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()]
    };
    sandbox.everything().into_iter().map(|(path, bytes)| (path.clone(), bytes, times(&path))).collect()
}

/// A record but for what differs from run to run.
fn plain(record: &Value) -> Value {
    let mut record = record.clone();
    let object = record.as_object_mut().unwrap();
    for key in ["at", "owner", "prev", "hash", "id", "base"] {
        object.remove(key);
    }
    if let Some(branch) = object.get_mut("branch").and_then(Value::as_object_mut) {
        branch.remove("leaf");
    }
    record
}

/// Entries but for what differs: ids become their place in the list, heads lose their hash.
fn plain_entries(entries: &[Value], known: &[Value]) -> Vec<Value> {
    let ids: Vec<Value> = entries.iter().map(|entry| entry["id"].clone()).collect();
    let place = |id: &Value| match ids.iter().position(|known| known == id) {
        Some(place) => json!(place),
        None => id.clone(),
    };
    let is_known = |id: &Value| id.is_null() || known.iter().any(|entry| entry["id"] == *id);
    let one = |entry: &Value| {
        let mut entry = entry.clone();
        let object = entry.as_object_mut().unwrap();
        object.remove("timestamp");
        if object["type"] != "session" {
            let parent = object["parentId"].clone();
            assert!(ids.contains(&parent) || is_known(&parent), "hangs on nothing: {parent}");
            object.insert("parentId".into(), place(&parent));
        }
        let id = object["id"].clone();
        object.insert("id".into(), place(&id));
        if let Some(head) = object.get_mut("data").and_then(|data| data.get_mut("head")) {
            let seq = text(head).split(':').next().unwrap().to_owned();
            *head = json!(seq);
        }
        if let Some(message) = object.get_mut("message").and_then(Value::as_object_mut) {
            message.remove("timestamp");
        }
        entry
    };
    entries.iter().map(one).collect()
}

/// The whole lines of a file; what is no JSON is left out.
fn whole_lines(bytes: &[u8]) -> Vec<Value> {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    bytes[..end].split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[test]
fn a_dry_run_shows_exactly_what_recover_writes() {
    let mut seen = std::collections::BTreeMap::new();
    for seed in 1..=seeds() {
        let sandbox = Sandbox::new();
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let asked = generate(&sandbox, &mut dice);
        let owner = Owner::start();
        let pid = owner.pid().to_string();
        let words = [&["recover", "s", "--owner-pid", &pid, "--json"][..], &asked].concat();
        let before = with_times(&sandbox);
        let shown = sandbox.run(words.iter().copied().chain(["--dry-run"]));
        assert!(with_times(&sandbox) == before, "seed {seed}: a dry run wrote something");
        let journal = whole_lines(&sandbox.journal_bytes("s"));
        let tree = std::fs::read(sandbox.path("chat.jsonl")).unwrap_or_default();
        let ran = sandbox.run(&words);
        assert_eq!(shown.code(), ran.code(), "seed {seed}: {} {}", shown.all(), ran.all());
        *seen.entry(ran.code()).or_insert(0) += 1;
        assert!([0, 10, 14].contains(&ran.code()), "seed {seed}: {}", ran.all());
        let (promised, done) = (shown.json(), ran.json());
        let written = sandbox.journal("s")[journal.len()..].to_vec();
        let records = promised["records"].as_array().unwrap();
        let plainly = |records: &[Value]| records.iter().map(plain).collect::<Vec<_>>();
        assert_eq!(plainly(records), plainly(&written), "seed {seed}: records");
        let known = whole_lines(&tree);
        let after = std::fs::read(sandbox.path("chat.jsonl")).unwrap_or_default();
        assert!(after.starts_with(&tree), "seed {seed}");
        let fresh = whole_lines(&after)[known.len()..].to_vec();
        let entries = promised["entries"].as_array().unwrap();
        assert_eq!(plain_entries(entries, &known), plain_entries(&fresh, &known), "seed {seed}: entries");
        assert_eq!(promised["decisions"], done["decisions"], "seed {seed}");
        assert_eq!(promised["next"], done["next"], "seed {seed}");
        let verified = sandbox.run(["verify", "s", "--with-tree"]);
        // A turn that waits is not written to, and a torn line of its file is mended by the next write.
        let torn = ran.code() != 0
            && ["tree-torn-tail", "branch-behind"].iter().any(|code| verified.stdout.contains(code));
        assert_eq!(verified.code(), if torn { 13 } else { 0 }, "seed {seed}: {}", verified.all());
        // The same owner again: nothing is left to do.
        let files = sandbox.everything();
        let again = sandbox.run(&words);
        // Where it decided about the last call that it could, the rest waits for others.
        assert!([ran.code(), 14].contains(&again.code()), "seed {seed}: {}", again.all());
        if ran.code() == 0 {
            assert_eq!(again.json()["ticket"], done["ticket"], "seed {seed}");
            assert_eq!(again.json()["decisions"], done["decisions"], "seed {seed}");
        }
        assert!(sandbox.everything() == files, "seed {seed}: written twice");
    }
    assert!(seen.len() == 3 || seeds() < 100 && seen.len() > 1, "too tame: {seen:?}");
}

#[test]
fn a_dry_run_for_people_names_decisions_records_and_entries() {
    let sandbox = Sandbox::new();
    sandbox.write("chat.jsonl", small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--tree", "chat.jsonl"]);
    sandbox.announce(&ticket, &[("c", "bash", json!({}))]);
    sandbox.step(&ticket, ["claim", "c"]).ok();
    owner.die();
    let before = with_times(&sandbox);
    let ran = sandbox.run(["recover", "s", "--dry-run"]).ok();
    assert!(with_times(&sandbox) == before);
    let first_words: Vec<&str> = ran.stdout.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(first_words, [&["turn", "decision"][..], &["record"; 3], &["entry"; 4]].concat());
    assert!(ran.stdout.contains("decision 3.0: interrupt"), "{}", ran.stdout);
    // A CMD is not started.
    sandbox.run(["recover", "s", "--dry-run", "--", "touch", "started"]).ok();
    assert!(!sandbox.path("started").exists());
    assert!(with_times(&sandbox) == before);
}
