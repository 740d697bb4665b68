//! A session file that is damaged where our branch stands, or beside it: what `recover` and steps make of it, and that
//! `verify` says the same.
//!
//! Whatever happened to the file, three things hold: `recover` refuses and writes nothing, or the agent then opens the
//! whole turn; what `recover` accepted `verify` calls sound; and `verify` never calls a file sound that the agent opens
//! with anything else than the turn.

use crate::kit::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const FILE: &str = "chat.jsonl";

fn bytes(sandbox: &Sandbox) -> Vec<u8> {
    std::fs::read(sandbox.path(FILE)).unwrap()
}

fn split(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

fn nothing_of(line: &[u8]) -> Vec<u8> {
    [vec![0; line.len() - 1], b"\n".to_vec()].concat()
}

fn verdict(sandbox: &Sandbox) -> Ran {
    sandbox.run(["verify", "s", "--with-tree"])
}

fn recover(sandbox: &Sandbox) -> Ran {
    sandbox.run(["recover", "s", "--owner-pid", "none", "--json"])
}

/// Demands that `recover` refuses and touches nothing.
#[track_caller]
fn refused(sandbox: &Sandbox, kind: &str) -> Value {
    let before = sandbox.everything();
    let ran = recover(sandbox).exits(3);
    assert!(sandbox.everything() == before, "something was written");
    ran.error(kind)
}

/// The messages that the agent would open, as Pi finds them: up from the last value of the file. Where Pi would not end,
/// or finds no leaf, there are none.
fn opened(bytes: &[u8]) -> Vec<Value> {
    let values =
        bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let values: Vec<Value> = values.filter(|value| value["type"] != "session" && !value.is_null()).collect();
    let by_id: BTreeMap<&str, &Value> =
        values.iter().filter_map(|value| Some((value["id"].as_str()?, value))).collect();
    let mut path = Vec::new();
    let mut at = values.last().and_then(|last| last["id"].as_str());
    while let Some(entry) = at.and_then(|id| by_id.get(id)) {
        if path.len() > values.len() {
            return Vec::new();
        }
        path.push(*entry);
        at = entry["parentId"].as_str();
    }
    path.reverse();
    path.into_iter()
        .filter(|entry| entry["type"] == "message")
        .map(|entry| entry["message"].clone())
        .collect()
}

fn asks() -> [(&'static str, &'static str, Value); 2] {
    [("c1", "bash", json!({"command": "make"})), ("c2", "bash", json!({"command": "ls"}))]
}

/// Mode append: the question, a message with two calls, the result of the first.
fn appended() -> (Sandbox, String) {
    let sandbox = Sandbox::new();
    let words =
        ["admit", "s", "--text", "Build it", "--owner-pid", "none", "--tree", FILE, "--tree-mode", "append"];
    let ticket = sandbox.run(words).ok().line();
    sandbox.announce(&ticket, &asks());
    sandbox.step(&ticket, ["claim", "c1"]).ok();
    sandbox.step_in(&ticket, ["result", "c1", "-"], "made").ok();
    (sandbox, ticket)
}

// What is lost in the middle of our branch.

#[test]
fn an_entry_lost_in_the_middle_is_written_where_it_stood() {
    type Damage = fn(&[u8]) -> Vec<u8>;
    let damages: [Damage; 2] = [nothing_of, |_| Vec::new()];
    for (line, damage) in (1..3).flat_map(|line| damages.map(|damage| (line, damage))) {
        for by_step in [false, true] {
            let (sandbox, ticket) = appended();
            let sound = bytes(&sandbox);
            let mut lines = split(&sound);
            lines[line] = damage(&lines[line]);
            std::fs::write(sandbox.path(FILE), lines.concat()).unwrap();
            assert!(verdict(&sandbox).exits(3).stdout.contains("TK073"));
            assert_eq!(sandbox.run(["inspect", "s", "--next"]).ok().stdout, "recover\n");
            if by_step {
                sandbox.step(&ticket, ["claim", "c2"]).ok();
            } else {
                recover(&sandbox).ok().says("lost 1 entries in the middle of the branch");
            }
            assert!(bytes(&sandbox).starts_with(&lines.concat()), "nothing is changed");
            assert_eq!(opened(&bytes(&sandbox)), opened(&sound));
            let ran = verdict(&sandbox);
            assert_eq!(ran.code(), 0, "line {line}, by a step: {by_step}: {}", ran.all());
            assert!(!ran.stdout.contains("TK102"), "no id twice");
        }
    }
}

/// The hint of such a finding says what `recover` does, and that it may not do it once the turn is closed.
#[test]
fn what_the_hint_of_a_lost_entry_says_is_so() {
    let lose = |sandbox: &Sandbox, what: &str| {
        let mut lines = split(&bytes(sandbox));
        let is_it = |line: &Vec<u8>| String::from_utf8_lossy(line).contains(what);
        let at = lines.iter().rposition(is_it).unwrap();
        lines[at] = nothing_of(&lines[at]);
        std::fs::write(sandbox.path(FILE), lines.concat()).unwrap();
        let told = verdict(sandbox).exits(3).stdout;
        assert!(told.contains("TK073") && told.contains("what is missing then, of a closed turn"), "{told}");
    };
    let recovered = |closed: bool| {
        let sandbox = Sandbox::new();
        sandbox.write(FILE, small_tree());
        let words = ["admit", "s", "--text", "Go", "--owner-pid", "none", "--tree", FILE];
        let ticket = sandbox.run(words).ok().line();
        sandbox.announce(&ticket, &asks()[..1]);
        sandbox.step(&ticket, ["claim", "c1"]).ok();
        let ticket = sandbox.run(["recover", "s", "--owner-pid", "none"]).ok().line();
        if closed {
            sandbox.step_in(&ticket, ["message", "-"], assistant("Done.", &[]).to_string()).ok();
            sandbox.step(&ticket, ["settle"]).ok();
        }
        sandbox
    };
    for closed in [false, true] {
        let sandbox = recovered(closed);
        lose(&sandbox, "toolResult");
        recover(&sandbox).exits(if closed { 10 } else { 0 });
        assert_eq!(verdict(&sandbox).code(), 0, "closed: {closed}");
    }
    let sandbox = recovered(true);
    lose(&sandbox, "turnkeep.branch");
    recover(&sandbox).exits(10);
    assert!(verdict(&sandbox).exits(3).stdout.contains("TK073"), "a marker of a closed turn");
}

#[test]
fn a_branch_that_is_unsound_is_not_written_behind() {
    type Change = fn(&[Vec<u8>]) -> Vec<u8>;
    let id = |line: &[u8]| text(&serde_json::from_slice::<Value>(line).unwrap()["id"]);
    let ids: [(&str, Change); 3] = [
        ("an entry of ours twice", |lines| [lines, &lines[2..3]].concat().concat()),
        ("a loop inside of it", |lines| {
            let value = |at: usize| serde_json::from_slice::<Value>(&lines[at]).unwrap();
            let mut first = value(1);
            first["parentId"] = value(3)["id"].clone();
            [&lines[..1], &[format!("{first}\n").into_bytes()], &lines[2..]].concat().concat()
        }),
        ("the question beside the answer", |lines| {
            let mut answer = serde_json::from_slice::<Value>(&lines[2]).unwrap();
            answer["parentId"] = Value::Null;
            [&lines[..2], &[format!("{answer}\n").into_bytes()], &lines[3..]].concat().concat()
        }),
    ];
    for (what, change) in ids {
        let (sandbox, ticket) = appended();
        let lines = split(&bytes(&sandbox));
        assert_eq!((lines.len(), id(&lines[1]).len()), (4, 16));
        std::fs::write(sandbox.path(FILE), change(&lines)).unwrap();
        verdict(&sandbox).exits(3);
        refused(&sandbox, "tree_damaged");
        sandbox.run(["recover", "s", "--owner-pid", "none", "--dry-run"]).exits(3);
        // What a step records stands; the file is left alone, and whoever looks is told.
        let before = bytes(&sandbox);
        sandbox.step(&ticket, ["claim", "c2"]).ok().says("nothing was written to the session file");
        sandbox.step_in(&ticket, ["result", "c2", "-"], "a b c").ok().says("what was recorded stands");
        assert!(bytes(&sandbox) == before, "{what}");
        assert_eq!(sandbox.last("s")["kind"], "result");
        let inspected = sandbox.run(["inspect", "s"]).ok();
        assert!(inspected.stdout.contains("the session file cannot be written to: "), "{}", inspected.stdout);
        assert_eq!(sandbox.run(["inspect", "s", "--next"]).ok().stdout, "recover\n", "{what}");
    }
}

// What stands elsewhere than it should.

#[test]
fn a_last_line_of_ours_from_the_middle_of_the_branch_is_no_end() {
    let (sandbox, _) = appended();
    recover(&sandbox).ok();
    let sound = bytes(&sandbox);
    let mut lines = split(&sound);
    let question = lines.remove(1);
    lines.push(question);
    std::fs::write(sandbox.path(FILE), lines.concat()).unwrap();
    assert_eq!(opened(&lines.concat()).len(), 1, "the agent would open the question alone");
    verdict(&sandbox).exits(13);
    assert_eq!(sandbox.run(["inspect", "s", "--next"]).ok().stdout, "recover\n");
    recover(&sandbox).ok();
    assert_eq!(opened(&bytes(&sandbox)), opened(&sound));
    verdict(&sandbox).ok();
}

#[test]
fn an_entry_that_hangs_elsewhere_is_damage() {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let words = ["admit", "s", "--text", "Build it", "--owner-pid", "none", "--tree", FILE];
    let ticket = sandbox.run(words).ok().line();
    sandbox.announce(&ticket, &asks());
    recover(&sandbox).ok();
    let question = text(&sandbox.tree(FILE)[3]["id"]);
    let file = string(bytes(&sandbox));
    let changed = file.replace(&format!(r#""parentId":"{question}""#), r#""parentId":"a2""#);
    assert_ne!(file, changed);
    std::fs::write(sandbox.path(FILE), changed).unwrap();
    let ran = verdict(&sandbox).exits(3);
    assert!(ran.stdout.contains("TK077 branch-place"), "the question is in no context: {}", ran.stdout);
    let error = refused(&sandbox, "tree_damaged");
    assert!(text(&error["message"]).contains("is not in its place"), "{error}");
}

// Another session's file.

#[test]
fn the_file_of_another_session_is_not_written_to() {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let words = ["admit", "s", "--text", "x", "--owner-pid", "none", "--tree", FILE, "--tree-mode", "append"];
    let ticket = sandbox.run(words).ok().line();
    let own = bytes(&sandbox);
    let other = string(own.clone()).replace("0190a000", "0190b000");
    std::fs::write(sandbox.path(FILE), &other).unwrap();
    assert!(verdict(&sandbox).exits(3).stdout.contains("TK075"));
    let error = refused(&sandbox, "tree_other");
    assert!(text(&error["hint"]).contains("--tree-file"), "{error}");
    sandbox.announce(&ticket, &asks());
    assert!(bytes(&sandbox) == other.as_bytes(), "the record stands, the file is another's");
    let inspected = sandbox.run(["inspect", "s"]).ok();
    assert!(inspected.stdout.contains("the session file cannot be written to: "), "{}", inspected.stdout);
    // The right one under another name.
    sandbox.write("moved.jsonl", own);
    let words = ["recover", "s", "--owner-pid", "none", "--tree-file", "moved.jsonl"];
    sandbox.run(words).ok();
    sandbox.run(["verify", "s", "--with-tree", "--tree-file", "moved.jsonl"]).ok();
}

#[test]
fn a_file_that_the_agent_made_after_admission_is_its_own() {
    for journaled in [false, true] {
        let sandbox = Sandbox::new();
        let words = ["admit", "s", "--text", "x", "--owner-pid", "none", "--tree", FILE];
        let ticket = sandbox.run(words).ok().line();
        let own = [header(), entry("b1", None, &user("x"))];
        sandbox.write(FILE, tree(&own));
        if journaled {
            sandbox.step_in(&ticket, ["entry", "-"], tree(&own)).ok();
        }
        recover(&sandbox).ok();
        verdict(&sandbox).ok();
    }
}

// What is damaged beside our branch.

#[test]
fn what_the_agent_passes_over_keeps_nobody_from_recovering() {
    let odd = [
        "123",
        "[1]",
        "{}",
        r#"{"type":"message","id":"z"}"#,
        r#"{"type":"message","id":"z","parentId":"a2"}"#,
        r#"{"type":"message","id":"z","parentId":"nowhere","message":{"role":"assistant","content":"x"}}"#,
        r#"{"type":"message","id":"z","parentId":"z","message":{"role":"assistant","content":"x"}}"#,
    ];
    for (line, mode) in odd.iter().flat_map(|line| [(line, "append"), (line, "branch")]) {
        let sandbox = Sandbox::new();
        sandbox.write(FILE, small_tree());
        let words =
            ["admit", "s", "--text", "Go", "--owner-pid", "none", "--tree", FILE, "--tree-mode", mode];
        let ticket = sandbox.run(words).ok().line();
        sandbox.announce(&ticket, &asks());
        for recovered in [false, true] {
            let file = string(bytes(&sandbox)) + line + "\n";
            std::fs::write(sandbox.path(FILE), file).unwrap();
            if *line == "123" {
                verdict(&sandbox).exits(3);
            }
            recover(&sandbox).ok();
            assert_eq!(opened(&bytes(&sandbox)).len(), 4, "{line}, {mode}, recovered: {recovered}");
            let ran = verdict(&sandbox);
            assert_eq!(ran.code(), 0, "{line}, {mode}, recovered: {recovered}: {}", ran.all());
            if line.contains(r#""z""#) {
                break;
            }
        }
    }
}

// All of it.

/// A turn that was recovered twice: each kind of line that a branch of ours has.
fn long(mode: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let words =
        ["admit", "s", "--text", "Build it", "--owner-pid", "none", "--tree", FILE, "--tree-mode", mode];
    let ticket = sandbox.run(words).ok().line();
    sandbox.announce(&ticket, &asks());
    sandbox.step(&ticket, ["claim", "c1"]).ok();
    sandbox.step_in(&ticket, ["result", "c1", "-"], "made").ok();
    let ticket = text(&recover(&sandbox).ok().json()["ticket"]);
    sandbox.step(&ticket, ["claim", "c2"]).ok();
    sandbox.step_in(&ticket, ["result", "c2", "-"], "a b c").ok();
    sandbox.run(["step", "steer", "--session", "s", "--text", "And test it"]).ok();
    sandbox.announce(&ticket, &[("c3", "bash", json!({"command": "test"}))]);
    let ticket = text(&recover(&sandbox).ok().json()["ticket"]);
    sandbox.step(&ticket, ["claim", "c3"]).ok();
    sandbox.step_in(&ticket, ["result", "c3", "-"], "tested").ok();
    verdict(&sandbox).ok();
    sandbox
}

/// What may happen to a line.
fn damages(lines: &[Vec<u8>], at: usize, ids: &[String]) -> Vec<(String, Vec<Vec<u8>>)> {
    let with = |line: Vec<u8>| [&lines[..at], &[line], &lines[at + 1..]].concat();
    let moved = |to: usize| {
        let mut lines = lines.to_vec();
        let line = lines.remove(at);
        lines.insert(to.min(lines.len()), line);
        lines
    };
    let mut all = vec![
        ("NULs".to_owned(), with(nothing_of(&lines[at]))),
        ("gone".to_owned(), with(Vec::new())),
        ("torn".to_owned(), with([&lines[at][..lines[at].len() / 2], b"\n"].concat())),
        ("glued".to_owned(), with(lines[at][..lines[at].len() - 1].to_vec())),
        ("twice".to_owned(), with(lines[at].repeat(2))),
        ("again".to_owned(), [lines, &lines[at..=at]].concat()),
        ("last".to_owned(), moved(lines.len())),
        ("first".to_owned(), moved(1)),
        ("cut".to_owned(), lines[..at].to_vec()),
    ];
    let value: Value = serde_json::from_slice(&lines[at]).unwrap();
    for id in ids.iter().map(|id| json!(id)).chain([Value::Null, json!("nowhere")]) {
        let mut changed = value.clone();
        changed["parentId"] = id.clone();
        all.push((format!("parent {id}"), with(format!("{changed}\n").into_bytes())));
    }
    all
}

/// Recovers from a damaged file and demands what has to hold; whether it was recovered.
fn judged(sandbox: &Sandbox, journal: &[u8], whole: &[Value], file: &[u8], what: &str) -> bool {
    std::fs::write(sandbox.journal_path("s"), journal).unwrap();
    std::fs::write(sandbox.path(FILE), file).unwrap();
    if verdict(sandbox).code() == 0 {
        assert_eq!(opened(file), whole, "{what}: called sound");
    }
    let ran = recover(sandbox);
    if ran.code() == 3 {
        assert!(bytes(sandbox) == file && sandbox.journal_bytes("s") == journal, "{what}: written");
        return false;
    }
    assert_eq!(ran.code(), 0, "{what}: {}", ran.all());
    assert!(bytes(sandbox).starts_with(file), "{what}: nothing is changed");
    assert_eq!(opened(&bytes(sandbox)), whole, "{what}: {}", string(bytes(sandbox)));
    let ran = verdict(sandbox);
    assert_eq!(ran.code(), 0, "{what}: {}\n{}", ran.all(), string(bytes(sandbox)));
    let next = sandbox.run(["inspect", "s", "--next"]).ok().stdout;
    assert!(next.starts_with("call_model"), "{what}: {next}");
    true
}

fn every_damage(mode: &str) {
    let sandbox = long(mode);
    let (journal, sound) = (sandbox.journal_bytes("s"), bytes(&sandbox));
    let (lines, whole) = (split(&sound), opened(&sound));
    assert_eq!(whole.len(), 9, "{}", string(sound.clone()));
    let ids: Vec<String> = sandbox.tree(FILE)[1..].iter().map(|entry| text(&entry["id"])).collect();
    let (mut recovered, mut seen) = (0, 0);
    let slow = std::env::var_os("TURNKEEP_SLOW").is_some();
    for at in 3..lines.len() {
        // Of the parents that it might hang on the outermost, and those around it.
        let near = |id: usize| id < 3 || (at.saturating_sub(3)..=at).contains(&id) || id + 1 == ids.len();
        let ids: Vec<String> =
            (0..ids.len()).filter(|id| slow || near(*id)).map(|id| ids[id].clone()).collect();
        for (what, damaged) in damages(&lines, at, &ids) {
            let what = format!("{mode}, line {}: {what}", at + 1);
            recovered += usize::from(judged(&sandbox, &journal, &whole, &damaged.concat(), &what));
            seen += 1;
        }
    }
    assert!(seen > 120 && recovered > 40, "{recovered} of {seen}");
}

#[test]
fn every_damage_to_an_appended_branch_is_refused_or_mended() {
    every_damage("append");
}

#[test]
fn every_damage_to_a_recovered_branch_is_refused_or_mended() {
    every_damage("branch");
}

// Of a turn that is over, and that a later one was admitted behind.

fn other_content(line: &[u8]) -> Vec<u8> {
    let mut value: Value = serde_json::from_slice(line).unwrap();
    value["message"]["content"] = json!([{"type": "text", "text": "something else"}]);
    format!("{value}\n").into_bytes()
}

#[test]
fn what_was_recovered_is_compared_whatever_came_behind_it() {
    for mode in ["append", "branch"] {
        let sandbox = long(mode);
        let ticket = text(&recover(&sandbox).ok().json()["ticket"]);
        sandbox.step_in(&ticket, ["message", "-"], assistant("Built.", &[]).to_string()).ok();
        sandbox.step(&ticket, ["settle"]).ok();
        let first = split(&bytes(&sandbox)).len();
        let words =
            ["admit", "s", "--text", "And now?", "--owner-pid", "none", "--tree", FILE, "--tree-mode", mode];
        let ticket = sandbox.run(words).ok().line();
        sandbox.announce(&ticket, &asks());
        for recovered in [false, true] {
            if recovered {
                recover(&sandbox).ok();
            }
            verdict(&sandbox).ok();
            let lines = split(&bytes(&sandbox));
            let file = sandbox.path(FILE);
            // Under another header it is another file.
            let other = string(lines.concat()).replace("0190a000", "0190b000");
            std::fs::write(&file, &other).unwrap();
            assert!(!verdict(&sandbox).exits(3).stdout.contains("TK073"));
            std::fs::write(&file, lines.concat()).unwrap();
            let ours = (3..first).filter(|at| !string(lines[*at].clone()).contains("turnkeep.branch"));
            for at in ours {
                for (what, line) in [("other", other_content(&lines[at])), ("gone", nothing_of(&lines[at]))] {
                    let damaged = [&lines[..at], &[line], &lines[at + 1..]].concat().concat();
                    std::fs::write(sandbox.path(FILE), &damaged).unwrap();
                    let ran = verdict(&sandbox);
                    assert_eq!(ran.code(), 3, "{mode}, line {}, {what}: {}", at + 1, ran.all());
                    std::fs::write(sandbox.path(FILE), lines.concat()).unwrap();
                }
            }
        }
    }
}

/// What steps wrote may be gone from the end of an older turn, where nothing hangs on it: that is told.
#[test]
fn an_older_turn_that_lost_its_end_is_warned_of() {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let turn = |text: &str| {
        let words = ["admit", "s", "--text", text, "--owner-pid", "none", "--tree", FILE];
        let ticket =
            sandbox.run([&words[..], &["--tree-mode", "append", "--leaf", "a2"]].concat()).ok().line();
        sandbox.step_in(&ticket, ["message", "-"], assistant("Done.", &[]).to_string()).ok();
        sandbox.step(&ticket, ["settle"]).ok();
    };
    turn("one");
    let first = split(&bytes(&sandbox)).len();
    turn("two");
    assert!(!verdict(&sandbox).ok().stdout.contains("TK073"));
    let mut lines = split(&bytes(&sandbox));
    lines.remove(first - 1);
    std::fs::write(sandbox.path(FILE), lines.concat()).unwrap();
    assert!(verdict(&sandbox).ok().stdout.contains("TK073 branch-entry-missing warning"));
}

/// A file that was not there at the first admission, and another one in its place later.
#[test]
fn a_file_that_took_the_place_of_another_is_not_that_one() {
    for mode in ["append", "branch"] {
        let sandbox = Sandbox::new();
        let turn = || {
            let words =
                ["admit", "s", "--text", "x", "--owner-pid", "none", "--tree", FILE, "--tree-mode", mode];
            let ticket = sandbox.run(words).ok().line();
            sandbox.step_in(&ticket, ["message", "-"], assistant("Done.", &[]).to_string()).ok();
            let ticket = text(&recover(&sandbox).ok().json()["ticket"]);
            sandbox.step(&ticket, ["settle"]).ok();
        };
        turn();
        std::fs::rename(sandbox.path(FILE), sandbox.path("old.jsonl")).unwrap();
        sandbox.write(FILE, small_tree());
        turn();
        assert!(!verdict(&sandbox).ok().stdout.contains("TK073"), "{mode}");
    }
}

#[test]
fn where_nothing_can_be_created_nothing_is_written() {
    let sandbox = Sandbox::new();
    std::os::unix::fs::symlink("nowhere", sandbox.path(FILE)).unwrap();
    sandbox.run(["admit", "s", "--text", "x", "--owner-pid", "none", "--tree", FILE]).ok();
    let before = sandbox.everything();
    sandbox.run(["recover", "s", "--owner-pid", "none", "--dry-run"]).exits(1).says("leads nowhere");
    recover(&sandbox).exits(1);
    assert!(sandbox.everything() == before, "something was written");
    sandbox.write("nowhere", small_tree());
    recover(&sandbox).ok();
}

// What a strict provider refuses of what the agent would send.

/// Session files that Pi opens and no strict provider takes: what `verify` calls it, the entry to name with its line,
/// and the entry to go back to.
fn refused_requests() -> Vec<(&'static str, Vec<Value>, &'static str, &'static str)> {
    let call = [("c1", "bash", json!({"command": "ls"}))];
    let answer = |id: &str, parent: &str| entry(id, Some(parent), &tool_result("c1", "bash", "x", false));
    let asked = |stop: &str| {
        let mut message = assistant("", &call);
        message["stopReason"] = json!(stop);
        vec![header(), entry("a1", None, &user("Go")), entry("a2", Some("a1"), &message)]
    };
    let then = |mut lines: Vec<Value>, more: &[Value]| {
        lines.extend(more.iter().cloned());
        lines
    };
    let said = |id: &str, parent: &str| entry(id, Some(parent), &assistant("Done.", &[]));
    let compaction = json!({"type": "compaction", "id": "a5", "parentId": "a4", "summary": "s",
        "firstKeptEntryId": "a3", "tokensBefore": 9, "timestamp": "2026-01-05T09:00:02.000Z"});
    vec![
        (
            "tree-result-orphan",
            vec![header(), entry("a1", None, &user("Go")), answer("a2", "a1"), said("a3", "a2")],
            "on line 3, entry a2",
            "a1",
        ),
        (
            "tree-result-orphan",
            then(asked("aborted"), &[answer("a3", "a2"), said("a4", "a3")]),
            "on line 4, entry a3",
            "a2",
        ),
        (
            "tree-result-doubled",
            then(asked("toolUse"), &[answer("a3", "a2"), answer("a4", "a3"), said("a5", "a4")]),
            "on line 5, entry a4",
            "a3",
        ),
        (
            "tree-compaction-cut",
            then(asked("toolUse"), &[answer("a3", "a2"), said("a4", "a3"), compaction]),
            "on line 6, entry a5",
            "a4",
        ),
    ]
}

fn notes(status: &Value) -> String {
    status["notes"].to_string()
}

#[test]
fn a_file_whose_request_is_refused_is_damaged_and_admitted_on_with_a_note() {
    for (code, lines, spot, way) in refused_requests() {
        let sandbox = Sandbox::new();
        sandbox.write(FILE, tree(&lines));
        let told = sandbox.run(["--json", "verify", &format!("./{FILE}")]).exits(3).json();
        assert_eq!(told["findings"].as_array().unwrap().len(), 1, "{told}");
        assert_eq!(told["findings"][0]["name"], code);
        let admit = ["--json", "admit", "s", "--text", "Next", "--owner-pid", "none", "--tree", FILE];
        let ran = sandbox.run(admit).ok();
        let way = format!("`--leaf {way}` at the next admit");
        for said in [ran.stderr.clone(), notes(&ran.json())] {
            assert!(said.contains(spot) && said.contains(&way), "{code}: {said}");
        }
        let ticket = text(&ran.json()["ticket"]);
        sandbox.announce(&ticket, &asks()[..1]);
        let dry = sandbox.run(["recover", "s", "--dry-run", "--json"]).ok();
        let done = recover(&sandbox).ok();
        for said in [notes(&dry.json()), done.stderr.clone(), notes(&done.json())] {
            assert!(said.contains(spot) && said.contains(&way), "{code}: {said}");
        }
        // It was so before the admission: no journal lost it.
        let told = verdict(&sandbox).exits(0).stdout;
        assert!(told.contains(code), "{told}");
        let told = sandbox.run(["--json", "verify", &format!("./{FILE}")]).exits(3).json();
        assert_eq!(told["findings"][0]["name"], code, "the branch goes on from there");
    }
}

#[test]
fn the_way_that_the_note_tells_is_sound() {
    for (code, lines, _, way) in refused_requests() {
        let sandbox = Sandbox::new();
        sandbox.write(FILE, tree(&lines));
        let admit =
            ["--json", "admit", "s", "--text", "x", "--owner-pid", "none", "--tree", FILE, "--leaf", way];
        for ran in [sandbox.run(admit).ok(), recover(&sandbox).ok()] {
            assert!(!ran.all().contains("strict provider"), "{code}: {}", ran.all());
        }
        let told = sandbox.run(["--json", "verify", &format!("./{FILE}")]).exits(0).stdout;
        assert!(!told.contains(code), "{told}");
    }
}

/// Damage that came after the admission is no old one.
#[test]
fn a_request_that_was_spoiled_in_the_turn_is_damage_of_its_file() {
    let (sandbox, _) = appended();
    let mut lines = split(&bytes(&sandbox));
    let mut last: Value = serde_json::from_slice(lines.last().unwrap()).unwrap();
    (last["parentId"], last["id"]) = (last["id"].clone(), json!("again"));
    lines.push(format!("{last}\n").into_bytes());
    std::fs::write(sandbox.path(FILE), lines.concat()).unwrap();
    assert!(verdict(&sandbox).exits(3).stdout.contains("tree-result-doubled"));
}
