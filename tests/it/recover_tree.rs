//! The session file: the branch that `recover` makes, what it finds there, and what it refuses.

use crate::forge;
use crate::kit::*;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;

const FILE: &str = "chat.jsonl";

fn append(sandbox: &Sandbox, entries: &[Value]) {
    let mut bytes = std::fs::read(sandbox.path(FILE)).unwrap_or_default();
    bytes.extend(tree(entries).into_bytes());
    std::fs::write(sandbox.path(FILE), bytes).unwrap();
}

fn bytes(sandbox: &Sandbox) -> Vec<u8> {
    std::fs::read(sandbox.path(FILE)).unwrap()
}

/// The agent writes entries to its file and then journals them, as an extension of Pi does.
fn agent_writes(sandbox: &Sandbox, ticket: &str, entries: &[Value]) {
    append(sandbox, entries);
    sandbox.step_in(ticket, ["entry", "-"], tree(entries)).ok();
}

fn calls() -> [(&'static str, &'static str, Value); 2] {
    [("c1", "bash", json!({"command": "make"})), ("c2", "read", json!({"path": "a"}))]
}

/// Admitted on `a2`; the agent wrote and journaled the question and a message with two calls; both are claimed, the
/// second has a result that the agent did not write.
fn crashed(sandbox: &Sandbox) -> String {
    sandbox.write(FILE, small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--text", "Build it", "--tree", FILE]);
    let said = assistant("I will.", &calls());
    agent_writes(
        sandbox,
        &ticket,
        &[entry("b1", Some("a2"), &user("Build it")), entry("b2", Some("b1"), &said)],
    );
    sandbox.step(&ticket, ["claim", "c1"]).ok();
    sandbox.step(&ticket, ["claim", "c2"]).ok();
    sandbox.step_in(&ticket, ["result", "c2", "-"], "content of a").ok();
    owner.die();
    ticket
}

fn recover(sandbox: &Sandbox, more: &[&str]) -> Value {
    let words = [&["recover", "s", "--owner-pid", "none", "--json"], more].concat();
    let status = sandbox.run(words).ok().json();
    let ran = sandbox.run(["verify", "s", "--with-tree"]);
    assert_eq!(ran.code(), 0, "{}", ran.all());
    status
}

/// Runs `recover` and demands that it refuses and touches nothing.
#[track_caller]
fn refused(sandbox: &Sandbox, code: i32, kind: &str) -> Value {
    let before = sandbox.everything();
    let ran = sandbox.run(["recover", "s", "--owner-pid", "none", "--json"]).exits(code);
    assert!(sandbox.everything() == before, "something was written");
    ran.error(kind)
}

fn hash(sandbox: &Sandbox, which: impl Fn(&Value) -> bool) -> String {
    text(&sandbox.journal("s").iter().find(|record| which(record)).unwrap()["hash"])
}

#[test]
fn the_branch_holds_the_committed_turn_and_the_old_one_stays() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    let before = bytes(&sandbox);
    let status = recover(&sandbox, &[]);
    assert!(bytes(&sandbox).starts_with(&before), "the abandoned branch stays");
    let entries = lines(&bytes(&sandbox)[before.len()..]);
    let of_entry = |id: &str| hash(&sandbox, |record| record["entry"]["id"] == id);
    let of_kind = |kind: &str| hash(&sandbox, |record| record["kind"] == kind);
    // Each fact in the agent's own form where it was journaled, under the id of its record.
    let ids = [
        forge::entry_id("t1", &of_entry("b1"), "entry"),
        forge::entry_id("t1", &of_entry("b2"), "entry"),
        forge::entry_id("t1", &of_kind("interrupted"), "entry"),
        forge::entry_id("t1", &of_kind("result"), "entry"),
    ];
    let found: Vec<String> = entries.iter().map(|entry| text(&entry["id"])).collect();
    assert_eq!(found[..4], ids);
    let parents: Vec<String> = entries.iter().map(|entry| text(&entry["parentId"])).collect();
    assert_eq!(parents[0], "a2", "the admission leaf");
    assert_eq!(parents[1..], found[..4], "a chain");
    assert_eq!(entries[0]["message"], user("Build it"));
    assert_eq!(entries[1]["message"], assistant("I will.", &calls()));
    // Results directly behind their message, in the order of its calls.
    let results: Vec<&Value> = entries[2..4].iter().map(|entry| &entry["message"]).collect();
    assert_eq!((&results[0]["toolCallId"], &results[0]["isError"]), (&json!("c1"), &json!(true)));
    assert_eq!((&results[1]["toolCallId"], &results[1]["isError"]), (&json!("c2"), &json!(false)));
    assert!(results[0]["content"].to_string().contains("unknown"));
    assert!(results[1]["content"].to_string().contains("content of a"));
    // The marker is the last line and so the leaf, and names the newest record that the branch carries.
    let marker = &entries[4];
    assert_eq!((&marker["type"], &marker["customType"]), (&json!("custom"), &json!("turnkeep.branch")));
    let newest = sandbox.journal("s").into_iter().rfind(|record| record["kind"] == "interrupted").unwrap();
    let head = format!("{}:{}", newest["seq"], text(&newest["hash"]));
    assert_eq!(marker["data"], json!({"session": "s", "turn": "t1", "head": head}));
    assert_eq!(found[4], forge::entry_id("t1", &text(&newest["hash"]), &found[3]));
    assert_eq!(entries.len(), 5);
    let recorded = sandbox.last("s");
    let path = sandbox.path(FILE).display().to_string();
    assert_eq!(recorded["branch"], json!({"path": path, "from": "a2", "leaf": found[4], "entries": 5}));
    assert_eq!(status["tree"]["branch_leaf"], found[4]);
    assert_eq!(status["next"]["do"], "call_model");
}

#[test]
fn every_cut_of_the_branch_is_completed() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    let before = bytes(&sandbox);
    recover(&sandbox, &[]);
    let whole = bytes(&sandbox);
    let journal = sandbox.journal_bytes("s");
    let stride = if std::env::var_os("TURNKEEP_SLOW").is_some() { 1 } else { 37 };
    let ends: Vec<usize> =
        whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
    let cuts = (before.len()..whole.len()).step_by(stride).chain(ends.iter().flat_map(|end| [*end, end + 1]));
    for cut in cuts.filter(|cut| *cut >= before.len()) {
        // A torn write: the journal has `recovered` only behind the branch, so it lacks that too; and with it, in
        // case the file was cut by a power failure of its disk.
        let end = journal[..journal.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        for journal in [&journal[..end], &journal] {
            std::fs::write(sandbox.path(FILE), &whole[..cut]).unwrap();
            std::fs::write(sandbox.journal_path("s"), journal).unwrap();
            recover(&sandbox, &[]);
            assert!(bytes(&sandbox).starts_with(&whole[..cut]), "cut at {cut}");
            let after: Vec<Value> = bytes(&sandbox)
                .split(|byte| *byte == b'\n')
                .filter_map(|line| serde_json::from_slice::<Value>(line).ok())
                .collect();
            let mut ids: Vec<String> = after.iter().map(|entry| text(&entry["id"])).collect();
            let expected: Vec<String> = lines(&whole).iter().map(|entry| text(&entry["id"])).collect();
            let count = ids.len();
            ids.dedup();
            assert_eq!(ids.len(), count, "cut at {cut}: nothing twice");
            assert!(expected.iter().all(|id| ids.contains(id)), "cut at {cut}: {ids:?} for {expected:?}");
            assert!(count <= expected.len() + 1, "cut at {cut}: {ids:?}");
        }
    }
}

#[test]
fn a_new_session_file_is_begun_and_every_cut_of_its_first_write_completed() {
    for own_header in [false, true] {
        let sandbox = Sandbox::new();
        let header = header();
        let text_of_header = header.to_string();
        let owner = Owner::start();
        let mut words = vec!["--turn", "t1", "--text", "Hello", "--tree", FILE];
        if own_header {
            words.extend(["--tree-header", &text_of_header]);
        }
        let ticket = sandbox.admit(&owner, "s", &words);
        sandbox.announce(&ticket, &calls());
        sandbox.step(&ticket, ["claim", "c1"]).ok();
        owner.die();
        assert!(!sandbox.path(FILE).exists());
        let journal = sandbox.journal_bytes("s");
        recover(&sandbox, &[]);
        let whole = bytes(&sandbox);
        let entries = lines(&whole);
        assert_eq!(entries[0]["type"], "session");
        assert_eq!(entries[0]["version"], 3);
        if own_header {
            assert_eq!(entries[0], header, "the agent's own");
        }
        assert_eq!(entries[1]["parentId"], Value::Null);
        assert_eq!(entries[1]["message"]["role"], "user");
        assert_eq!(entries.last().unwrap()["customType"], "turnkeep.branch");
        assert_eq!(sandbox.path(FILE).metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let after = sandbox.journal_bytes("s");
        let end = after[..after.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        let stride = if std::env::var_os("TURNKEEP_SLOW").is_some() { 1 } else { 41 };
        for cut in (0..whole.len()).step_by(stride) {
            // Killed in the middle of its first write.
            std::fs::write(sandbox.path(FILE), &whole[..cut]).unwrap();
            std::fs::write(sandbox.journal_path("s"), &after[..end]).unwrap();
            recover(&sandbox, &[]);
            let found = bytes(&sandbox);
            let found =
                found.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
            let found: Vec<Value> = found.collect();
            assert_eq!(found[0]["type"], "session", "cut at {cut}");
            assert_eq!(found.len(), entries.len(), "cut at {cut}");
        }
        std::fs::write(sandbox.journal_path("s"), journal).unwrap();
    }
}

#[test]
fn what_the_dead_agent_wrote_itself_is_journaled_first() {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--text", "Build it", "--tree", FILE]);
    agent_writes(&sandbox, &ticket, &[entry("b1", Some("a2"), &user("Build it"))]);
    // Pi writes before an extension can journal.
    let own = [
        json!({"type": "model_change", "id": "b2", "parentId": "b1", "timestamp": "2026-01-05T09:00:02.000Z",
               "provider": "demo", "modelId": "demo-1"}),
        entry("b3", Some("b2"), &assistant("I will.", &calls())),
    ];
    append(&sandbox, &own);
    owner.die();
    let status = recover(&sandbox, &[]);
    let kinds = sandbox.kinds("s");
    assert_eq!(kinds[4..], ["attempt", "entry", "entry", "recovered"]);
    let records = sandbox.journal("s");
    assert_eq!((&records[5]["entry"], &records[6]["entry"]), (&own[0], &own[1]));
    assert_eq!(records[6]["attempt"], 2);
    let decided: Vec<String> =
        status["decisions"].as_array().unwrap().iter().map(|one| text(&one["decision"])).collect();
    assert_eq!(decided, ["run", "run"]);
    assert_eq!(status["next"]["do"], "run_calls");
    // `ENTRYID.POS` names a call of an entry.
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    let ticket = sandbox.run(["recover", "s", "--owner-pid", &pid]).ok().line();
    sandbox.step(&ticket, ["claim", "b3.1"]).ok();
}

#[test]
fn what_follows_an_own_cut_off_message_is_closed() {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--text", "Build it", "--tree", FILE]);
    agent_writes(&sandbox, &ticket, &[entry("b1", Some("a2"), &user("Build it"))]);
    append(&sandbox, &[entry("b2", Some("b1"), &assistant_ending("length", "", &calls()))]);
    owner.die();
    let status = recover(&sandbox, &[]);
    assert_eq!(sandbox.kinds("s")[4..], ["attempt", "entry", "not_run", "not_run", "recovered"]);
    let decided: Vec<String> =
        status["decisions"].as_array().unwrap().iter().map(|one| text(&one["decision"])).collect();
    assert_eq!(decided, ["not_run", "not_run"]);
}

#[test]
fn a_result_without_a_claim_ran_unjournaled() {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--text", "Build it", "--tree", FILE]);
    let said = entry("b2", Some("b1"), &assistant("", &calls()));
    agent_writes(&sandbox, &ticket, &[entry("b1", Some("a2"), &user("Build it")), said]);
    append(&sandbox, &[entry("b3", Some("b2"), &tool_result("c1", "bash", "ran", false))]);
    owner.die();
    let error = refused(&sandbox, 6, "unjournaled_result");
    assert!(text(&error["message"]).contains("line 6") && text(&error["message"]).contains("c1"), "{error}");
    recover(&sandbox, &["--force", "--why", "looked at it"]);
    // Claimed, it is the agent's own and the call's result.
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--text", "Build it", "--tree", FILE]);
    let said = entry("b2", Some("b1"), &assistant("", &calls()));
    agent_writes(&sandbox, &ticket, &[entry("b1", Some("a2"), &user("Build it")), said]);
    sandbox.step(&ticket, ["claim", "c1"]).ok();
    append(&sandbox, &[entry("b3", Some("b2"), &tool_result("c1", "bash", "ran", false))]);
    owner.die();
    let status = recover(&sandbox, &[]);
    assert_eq!(status["calls"][0]["state"], "result");
    assert_eq!(status["decisions"][0]["decision"], "redeliver", "{}", status["decisions"]);
}

#[test]
fn a_conversation_that_moved_on_is_a_conflict() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    append(
        &sandbox,
        &[
            entry("x1", Some("a2"), &user("Something else")),
            entry("x2", Some("x1"), &assistant("Sure.", &[])),
        ],
    );
    let error = refused(&sandbox, 6, "moved_on");
    assert!(text(&error["message"]).contains("line 6"), "{error}");
    assert!(text(&error["hint"]).contains("--force --why"), "{error}");
    let ran = sandbox.run(["recover", "s", "--owner-pid", "none", "--dry-run"]);
    assert_eq!(ran.code(), 6);
    let before = bytes(&sandbox);
    let words = ["recover", "s", "--owner-pid", "none", "--force", "--why", "both are wanted"];
    let ran = sandbox.run(words).ok();
    // What is not ours is reported, and which line Pi would have opened.
    assert!(ran.stderr.contains("2 entries"), "{}", ran.stderr);
    assert!(ran.stderr.contains("x1") && ran.stderr.contains("x2"), "{}", ran.stderr);
    assert!(bytes(&sandbox).starts_with(&before));
    let fresh = lines(&bytes(&sandbox)[before.len()..]);
    assert_eq!(fresh[0]["parentId"], "a2", "below the place of the admission");
}

#[test]
fn foreign_entries_that_no_user_wrote_are_reported() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    let foreign = json!({"type": "label", "id": "x1", "parentId": "a2", "timestamp": "2026-01-05T09:00:09.000Z",
                         "targetId": "a1", "label": "kept"});
    append(&sandbox, &[foreign]);
    let ran = sandbox.run(["recover", "s", "--owner-pid", "none"]).ok();
    assert!(ran.stderr.contains("x1"), "{}", ran.stderr);
    let last = sandbox.tree(FILE).pop().unwrap();
    assert_eq!(last["customType"], "turnkeep.branch", "our branch is the one that Pi opens");
    // A foreign line behind our branch makes it due again.
    append(
        &sandbox,
        &[json!({"type": "label", "id": "x2", "parentId": "a1", "timestamp": "2026-01-05T09:00:09.000Z",
                              "targetId": "a1", "label": "again"})],
    );
    assert_eq!(sandbox.run(["inspect", "s", "--next"]).ok().stdout.lines().next().unwrap(), "recover");
    recover(&sandbox, &[]);
    assert_eq!(sandbox.tree(FILE).pop().unwrap()["customType"], "turnkeep.branch");
}

#[test]
fn a_torn_or_nul_tail_gets_a_newline_first() {
    for tail in [&b"{\"type\":\"message\",\"id\":\"to"[..], b"\0\0\0\0", b"\xff\xfe", b"\n\n{"] {
        let sandbox = Sandbox::new();
        crashed(&sandbox);
        let torn = [&bytes(&sandbox)[..], tail].concat();
        std::fs::write(sandbox.path(FILE), &torn).unwrap();
        sandbox.run(["recover", "s", "--owner-pid", "none"]).ok();
        let after = bytes(&sandbox);
        assert!(after.starts_with(&[&torn[..], b"\n{"].concat()), "glued to {tail:?}");
        lines(&after[torn.len() + 1..]);
        assert_eq!(sandbox.run(["verify", "s", "--with-tree"]).code(), 0);
    }
    // A good last line that lacks its newline.
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    let whole = bytes(&sandbox);
    std::fs::write(sandbox.path(FILE), &whole[..whole.len() - 1]).unwrap();
    recover(&sandbox, &[]);
    assert!(bytes(&sandbox).starts_with(&whole));
}

#[test]
fn a_torn_line_behind_our_branch_is_ended_also_where_nothing_follows() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    recover(&sandbox, &[]);
    let torn = [&bytes(&sandbox)[..], b"{\"type\":\"mess"].concat();
    std::fs::write(sandbox.path(FILE), &torn).unwrap();
    sandbox.run(["verify", "s", "--with-tree"]).exits(13);
    recover(&sandbox, &[]);
    assert_eq!(string(bytes(&sandbox)), string([&torn[..], b"\n"].concat()), "the marker stays the leaf");
}

#[test]
fn other_versions_are_not_written_to() {
    for version in ["1", "2", "4", "null"] {
        let sandbox = Sandbox::new();
        crashed(&sandbox);
        let text_of = string(bytes(&sandbox)).replace("\"version\":3", &format!("\"version\":{version}"));
        std::fs::write(sandbox.path(FILE), text_of).unwrap();
        let error = refused(&sandbox, 12, "tree_version");
        assert_eq!(error["known"], 3, "{error}");
        sandbox.run(["recover", "s", "--owner-pid", "none", "--dry-run"]).exits(12);
    }
}

#[test]
fn damage_on_the_path_is_told_with_its_lines() {
    type Change = fn(&str) -> String;
    let changes: Vec<(&str, Change, &str)> = vec![
        ("a byte order mark", |text| format!("\u{feff}{text}"), "byte order mark"),
        ("a cycle", |text| text.replacen(r#""parentId":null"#, r#""parentId":"a2""#, 1), "lines 2, 3"),
        ("a self parent", |text| text.replacen(r#""parentId":"a1""#, r#""parentId":"a2""#, 1), "line 3"),
        ("an unknown parent", |text| text.replacen(r#""parentId":null"#, r#""parentId":"zz""#, 1), "zz"),
        ("no header", |text| text.split_once('\n').unwrap().1.to_owned(), "header"),
        ("the leaf is gone", |text| text.replace(r#""id":"a2""#, r#""id":"zz""#), "a2"),
        (
            "a doubled id",
            |text| text.to_owned() + &entry("a1", None, &user("again")).to_string() + "\n",
            "line",
        ),
        ("a doubled key", |text| text.replacen(r#""id":"a1""#, r#""id":"a1","id":"a1""#, 1), "line 2"),
    ];
    for (what, change, said) in changes {
        let sandbox = Sandbox::new();
        crashed(&sandbox);
        std::fs::write(sandbox.path(FILE), change(&string(bytes(&sandbox)))).unwrap();
        let error = refused(&sandbox, 3, "tree_damaged");
        let message = text(&error["message"]);
        assert!(message.contains(said), "{what}: {message}");
    }
}

#[test]
fn a_session_file_that_is_gone_is_not_made_anew() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    let file = bytes(&sandbox);
    std::fs::remove_file(sandbox.path(FILE)).unwrap();
    let error = refused(&sandbox, 3, "tree_missing");
    assert!(text(&error["message"]).contains("gone"), "{error}");
    assert!(error["committed"].as_u64().unwrap() > 0, "how much is safe in the journal: {error}");
    std::fs::write(sandbox.path(FILE), "").unwrap();
    refused(&sandbox, 3, "tree_missing");
    // Steps go on: the journal is ours.
    std::fs::write(sandbox.path("moved.jsonl"), file).unwrap();
    std::fs::remove_file(sandbox.path(FILE)).unwrap();
    // Where it was moved to is recorded, and counts from then on.
    let words = ["recover", "s", "--owner-pid", "none", "--tree-file", "moved.jsonl", "--json"];
    let status = sandbox.run(words).ok().json();
    assert!(!sandbox.path(FILE).exists());
    let moved = sandbox.path("moved.jsonl").display().to_string();
    assert_eq!(sandbox.last("s")["branch"]["path"], moved);
    assert_eq!((&status["tree"]["path"], &status["next"]["do"]), (&json!(moved), &json!("call_model")));
    let ran = sandbox.run(["verify", "s", "--with-tree", "--tree-file", "moved.jsonl"]);
    assert_eq!(ran.code(), 0, "{}", ran.all());
    assert_eq!(sandbox.run(["inspect", "s", "--next"]).ok().stdout, "call_model\n");
    recover(&sandbox, &[]);
}

#[test]
fn a_step_goes_on_without_the_session_file() {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--tree", FILE, "--tree-mode", "append"]);
    std::fs::remove_file(sandbox.path(FILE)).unwrap();
    sandbox.step_in(&ticket, ["message", "-"], assistant("Hm.", &calls()).to_string()).ok();
    assert!(!sandbox.path(FILE).exists(), "it is not made without its head");
    assert_eq!(sandbox.run(["inspect", "s", "--next"]).ok().stdout.lines().next().unwrap(), "recover");
    owner.die();
    refused(&sandbox, 3, "tree_missing");
}

#[test]
fn an_own_id_with_other_content_is_damage() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    recover(&sandbox, &[]);
    let file = string(bytes(&sandbox));
    let forged = file.replace("content of a", "content of b");
    assert_ne!(file, forged);
    std::fs::write(sandbox.path(FILE), forged).unwrap();
    let error = refused(&sandbox, 3, "tree_damaged");
    assert!(text(&error["message"]).contains("other content"), "{error}");
    // Its place and its time stamp may differ.
    let moved = file.replace(r#""timestamp":"2026-"#, r#""timestamp":"2025-"#);
    assert_ne!(file, moved);
    std::fs::write(sandbox.path(FILE), moved).unwrap();
    sandbox.run(["recover", "s", "--owner-pid", "none"]).ok();
}

#[test]
fn a_journal_cut_on_a_line_is_seen_in_the_tree() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    recover(&sandbox, &[]);
    let journal = sandbox.journal_bytes("s");
    let ends: Vec<usize> =
        journal.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect();
    // Without `recovered` the chain and the tree still agree; without what the marker names they do not.
    let cut = ends[ends.len() - 3];
    std::fs::write(sandbox.journal_path("s"), &journal[..cut]).unwrap();
    let error = refused(&sandbox, 3, "records_lost");
    assert!(text(&error["message"]).contains("which the journal lacks"), "{error}");
}

/// Its calls may have been claimed in what is lost, so none is taken for one that nobody began.
#[test]
fn a_journal_older_than_its_branch_is_not_gone_on_with() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--tree", FILE, "--tree-mode", "append"]);
    let mut older = Vec::new();
    for id in ["a", "b"] {
        older.push(sandbox.journal_bytes("s"));
        sandbox.announce(&ticket, &[(id, "send", json!({}))]);
        sandbox.step(&ticket, ["claim", id]).ok();
        sandbox.step_in(&ticket, ["result", id, "-"], "sent").ok();
    }
    owner.die();
    let newest = sandbox.journal_bytes("s");
    for journal in older {
        std::fs::write(sandbox.journal_path("s"), &journal).unwrap();
        sandbox.run(["verify", "s", "--with-tree"]).exits(3);
        let error = refused(&sandbox, 3, "records_lost");
        assert!(text(&error["message"]).contains("the journal lost records"), "{error}");
        assert_eq!(sandbox.run(["inspect", "s", "--next"]).ok().stdout, "recover\n");
    }
    let older = sandbox.journal_bytes("s");
    let file = bytes(&sandbox);
    std::fs::write(sandbox.journal_path("s"), newest).unwrap();
    sandbox.run(["recover", "s", "--owner-pid", "none"]).ok();
    sandbox.run(["verify", "s", "--with-tree"]).ok();
    // Where the newest one is gone for good, a person goes on: with a file that holds what the journal knows, or
    // beside the lines that nobody explains.
    let known: Vec<Value> = lines(&file).into_iter().take(4).collect();
    sandbox.write("known.jsonl", tree(&known[..]));
    for words in [["--tree-file", "known.jsonl"].as_slice(), &["--force", "--why", "it was sent"]] {
        std::fs::write(sandbox.journal_path("s"), &older).unwrap();
        std::fs::write(sandbox.path(FILE), &file).unwrap();
        let ticket = sandbox.run([&["recover", "s", "--owner-pid", "none"], words].concat()).ok().line();
        assert!(
            sandbox.journal("s").iter().all(|record| record["kind"] != "entry"),
            "nothing is taken for the agent's"
        );
        assert_eq!(sandbox.run(["inspect", "s", "--next"]).ok().stdout, "call_model\n");
        sandbox.announce(&ticket, &[("b", "send", json!({}))]);
        sandbox.step(&ticket, ["claim", "b"]).ok();
        sandbox.step_in(&ticket, ["result", "b", "-"], "again").ok();
        sandbox.run(["recover", "s", "--owner-pid", "none"]).ok();
    }
}

/// The driver lives, and an older journal is put back under it: what it is about to do may be done.
#[test]
fn no_call_begins_behind_a_journal_older_than_its_branch() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--tree", FILE, "--tree-mode", "append"]);
    sandbox.announce(&ticket, &[("a", "pay", json!({})), ("b", "pay", json!({}))]);
    let older = sandbox.journal_bytes("s");
    sandbox.step(&ticket, ["run", "a", "--", "sh", "-c", "echo paid >>effects"]).ok();
    std::fs::write(sandbox.journal_path("s"), &older).unwrap();
    let file = bytes(&sandbox);
    for words in [
        &["run", "a", "--", "sh", "-c", "echo paid >>effects"][..],
        &["claim", "a"],
        &["dispatch", "b", "--to", "far"],
        &["run", "--tool", "pay", "c", "--", "touch", "effects2"],
    ] {
        let code = if words.contains(&"--tool") { 125 } else { 3 };
        sandbox.unchanged("s", || sandbox.step(&ticket, words).exits(code).says("the journal lost records"));
    }
    assert_eq!(std::fs::read_to_string(sandbox.path("effects")).unwrap(), "paid\n");
    assert!(!sandbox.path("effects2").exists());
    // What was done can be told.
    sandbox.step_in(&ticket, ["note", "-"], "x").ok();
    assert_eq!(bytes(&sandbox), file);
    assert_eq!(sandbox.run(["inspect", "s", "--next"]).ok().stdout, "recover\n");
}

/// Two sessions on one file: the other's entries are somebody else's, and begin with what a user said.
#[test]
fn entries_of_another_session_are_foreign_and_not_damage() {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let owner = Owner::start();
    let tree = ["--tree", FILE, "--tree-mode", "append"];
    let ticket = sandbox.admit(&owner, "s", &tree);
    sandbox.step_in(&ticket, ["message", "-"], assistant("Mine.", &[]).to_string()).ok();
    owner.die();
    let other = Owner::start();
    let theirs = sandbox.admit(&other, "other", &tree);
    sandbox.step_in(&theirs, ["message", "-"], assistant("Theirs.", &[]).to_string()).ok();
    refused(&sandbox, 6, "moved_on");
    let forced = ["recover", "s", "--owner-pid", "none", "--force", "--why", "mine"];
    let ticket = sandbox.run(forced).ok().line();
    assert!(!string(sandbox.journal_bytes("s")).contains("Theirs"));
    sandbox.step(&ticket, ["settle"]).ok();
    sandbox.run(["verify", "s"]).ok();
}

/// An agent whose own ids have the form of ours is known by those that it journaled.
#[test]
fn an_agent_with_ids_like_ours_is_taken_up_where_it_died() {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--text", "Build it", "--tree", FILE]);
    let id = |digit: &str| digit.repeat(16);
    agent_writes(&sandbox, &ticket, &[entry(&id("a"), Some("a2"), &user("Build it"))]);
    owner.die();
    let owner = Owner::start();
    sandbox.recover(&owner, "s", &[]);
    let leaf = text(&at(&sandbox.run(["inspect", "s", "--json"]).ok().json(), "/tree/branch_leaf").clone());
    append(&sandbox, &[entry(&id("b"), Some(&leaf), &assistant("Built.", &[]))]);
    owner.die();
    sandbox.run(["recover", "s", "--owner-pid", "none"]).ok();
    assert!(string(sandbox.journal_bytes("s")).contains("Built."));
    assert_eq!(sandbox.run(["inspect", "s", "--next"]).ok().stdout, "settle\n");
}

#[test]
fn a_settled_turn_that_the_file_lacks_is_completed_once() {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--text", "Build it", "--tree", FILE]);
    agent_writes(&sandbox, &ticket, &[entry("b1", Some("a2"), &user("Build it"))]);
    sandbox.step_in(&ticket, ["message", "-"], assistant("Built.", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    owner.die();
    sandbox.run(["verify", "s", "--with-tree"]).exits(13);
    let journal = sandbox.journal_bytes("s");
    // Shown first, then written.
    let shown = sandbox.run(["recover", "s", "--dry-run", "--json"]).exits(10).json();
    let before = bytes(&sandbox);
    sandbox.run(["recover", "s"]).exits(10);
    let fresh = lines(&bytes(&sandbox)[before.len()..]);
    assert_eq!(json!(fresh), shown["entries"]);
    assert_eq!(fresh.len(), 3, "question, answer, marker");
    assert_eq!(fresh[0]["parentId"], "a2");
    let once = bytes(&sandbox);
    sandbox.run(["recover", "s"]).exits(10);
    assert!(bytes(&sandbox) == once, "nothing twice");
    assert!(sandbox.journal_bytes("s") == journal, "and no record");
    sandbox.run(["verify", "s", "--with-tree"]).ok();
    // One that the agent wrote itself is left alone.
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--text", "Build it", "--tree", FILE]);
    let own =
        [entry("b1", Some("a2"), &user("Build it")), entry("b2", Some("b1"), &assistant("Built.", &[]))];
    agent_writes(&sandbox, &ticket, &own);
    sandbox.step(&ticket, ["settle"]).ok();
    let before = bytes(&sandbox);
    sandbox.run(["recover", "s"]).exits(10);
    assert!(bytes(&sandbox) == before);
    sandbox.run(["verify", "s", "--with-tree"]).ok();
}

#[test]
fn a_settled_undelivered_turn_is_recovered_without_a_second_branch() {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(
        &owner,
        "s",
        &["--turn", "t1", "--text", "Build it", "--tree", FILE, "--delivery", "k"],
    );
    let own =
        [entry("b1", Some("a2"), &user("Build it")), entry("b2", Some("b1"), &assistant("Built.", &[]))];
    agent_writes(&sandbox, &ticket, &own);
    sandbox.step(&ticket, ["settle"]).ok();
    owner.die();
    // The conversation going on is of no account where the file lacks nothing.
    append(&sandbox, &[entry("x1", Some("b2"), &user("Thanks"))]);
    let before = bytes(&sandbox);
    let status = recover(&sandbox, &[]);
    assert!(bytes(&sandbox) == before, "the file lacks nothing");
    assert!(sandbox.last("s").get("branch").is_none());
    assert_eq!(status["next"]["do"], "deliver");
}

#[test]
fn the_tree_of_a_turn_behind_which_another_was_admitted_is_left_alone() {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(
        &owner,
        "s",
        &["--turn", "t1", "--text", "Build it", "--tree", FILE, "--delivery", "k"],
    );
    sandbox.step_in(&ticket, ["message", "-"], assistant("Built.", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    sandbox.admit(&owner, "s", &["--turn", "t2", "--text", "More", "--tree", FILE]);
    owner.die();
    let before = bytes(&sandbox);
    sandbox.run(["recover", "s:t1", "--owner-pid", "none"]).ok();
    assert!(bytes(&sandbox) == before);
    sandbox.run(["recover", "s:t2", "--owner-pid", "none"]).ok();
    let fresh = lines(&bytes(&sandbox)[before.len()..]);
    assert!(fresh[0]["message"].to_string().contains("More"));
    sandbox.run(["verify", "s", "--with-tree"]).ok();
}

#[test]
fn late_results_follow_on_the_branch_and_a_second_crash_goes_on_along_it() {
    for mode in ["branch", "append"] {
        let sandbox = Sandbox::new();
        sandbox.write(FILE, small_tree());
        let owner = Owner::start();
        let words = ["--turn", "t1", "--text", "Build it", "--tree", FILE, "--tree-mode", mode];
        let ticket = sandbox.admit(&owner, "s", &words);
        sandbox.announce(&ticket, &[("c1", "bash", json!({})), ("c2", "bash", json!({"n": 2}))]);
        owner.die();
        let owner = Owner::start();
        let ticket = sandbox.recover(&owner, "s", &[]);
        let said = |sandbox: &Sandbox| -> Vec<String> {
            let name = |entry: &Value| match entry["customType"].as_str() {
                Some(_) => "marker".to_owned(),
                None => entry["message"]["toolCallId"]
                    .as_str()
                    .or(entry["message"]["role"].as_str())
                    .unwrap()
                    .to_owned(),
            };
            sandbox.tree(FILE)[3..].iter().map(name).collect()
        };
        assert_eq!(said(&sandbox), ["user", "assistant", "marker"], "{mode}");
        // The calls that were open are answered on the branch, in the order in which the results come.
        for (call, result) in [("c2", "two"), ("c1", "one")] {
            sandbox.step(&ticket, ["claim", call]).ok();
            sandbox.step_in(&ticket, ["result", call, "-"], result).ok();
        }
        assert_eq!(
            said(&sandbox),
            ["user", "assistant", "marker", "c2", "c1"],
            "{mode}: no marker after them"
        );
        chained(&sandbox);
        sandbox
            .step_in(&ticket, ["message", "-"], assistant("", &[("c3", "bash", json!({}))]).to_string())
            .ok();
        sandbox.step(&ticket, ["claim", "c3"]).ok();
        let behind: &[&str] = if mode == "append" { &["assistant"] } else { &[] };
        assert_eq!(said(&sandbox)[5..], *behind, "{mode}: the agent writes its own file in branch mode");
        owner.die();
        let owner = Owner::start();
        let before = bytes(&sandbox);
        let ticket = sandbox.recover(&owner, "s", &[]);
        assert!(bytes(&sandbox).starts_with(&before));
        assert_eq!(said(&sandbox)[5..], ["assistant", "c3", "marker"], "{mode}");
        chained(&sandbox);
        let ran = sandbox.run(["verify", "s", "--with-tree"]);
        assert_eq!(ran.code(), 0, "{}", ran.all());
        // A third recover finds everything there.
        owner.die();
        let before = bytes(&sandbox);
        recover(&sandbox, &[]);
        assert!(bytes(&sandbox) == before, "{mode}: a marker that is the last line stays the leaf");
        drop(ticket);
    }
}

/// Every line of the branch hangs on the one before.
fn chained(sandbox: &Sandbox) {
    let entries = sandbox.tree(FILE);
    for pair in entries[2..].windows(2) {
        assert_eq!(pair[1]["parentId"], pair[0]["id"], "{}", pair[1]);
    }
}

#[test]
fn calls_are_closed_on_the_branch_for_an_agent_that_cannot_run_them() {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--text", "Build it", "--tree", FILE]);
    let said = entry("b2", Some("b1"), &assistant("", &calls()));
    agent_writes(&sandbox, &ticket, &[entry("b1", Some("a2"), &user("Build it")), said]);
    sandbox.step(&ticket, ["claim", "c2"]).ok();
    owner.die();
    let status = recover(&sandbox, &["--close-calls"]);
    assert_eq!(status["next"]["do"], "call_model");
    let entries = sandbox.tree(FILE);
    let results: Vec<&Value> = entries
        .iter()
        .map(|entry| &entry["message"])
        .filter(|message| message["role"] == "toolResult")
        .collect();
    assert_eq!(results.len(), 2);
    assert!(results.iter().all(|result| result["isError"] == true));
    assert_eq!((&results[0]["toolCallId"], &results[1]["toolCallId"]), (&json!("c1"), &json!("c2")));
    chained_from(&entries, "a2");
}

fn chained_from(entries: &[Value], leaf: &str) {
    let start = entries.iter().rposition(|entry| entry["parentId"] == leaf).unwrap();
    for pair in entries[start..].windows(2) {
        assert_eq!(pair[1]["parentId"], pair[0]["id"]);
    }
    assert_eq!(entries.last().unwrap()["customType"], "turnkeep.branch");
}

#[test]
fn waiting_brings_a_branch_that_is_there_up_to_date() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "charge", "replay": "never", "unknown": "hold"}]));
    sandbox.write(FILE, small_tree());
    let owner = Owner::start();
    let words = ["--turn", "t1", "--text", "Pay", "--tree", FILE, "--tree-mode", "append"];
    let ticket = sandbox.admit(&owner, "s", &words);
    let before = bytes(&sandbox);
    sandbox.announce(&ticket, &[("c", "charge", json!({}))]);
    sandbox.step(&ticket, ["claim", "c"]).ok();
    owner.die();
    // The message was journaled, its line not written.
    std::fs::write(sandbox.path(FILE), &before).unwrap();
    assert_eq!(sandbox.run(["inspect", "s", "--next"]).ok().stdout.lines().next().unwrap(), "recover");
    let journal = sandbox.journal_bytes("s");
    sandbox.run(["recover", "s", "--owner-pid", "none"]).exits(14).says("reconcile");
    assert!(sandbox.journal_bytes("s") == journal, "no record");
    assert_eq!(lines(&bytes(&sandbox)[before.len()..]).len(), 1);
    assert_eq!(sandbox.run(["inspect", "s", "--next"]).ok().stdout.lines().next().unwrap(), "reconcile");
}

#[test]
fn ids_inside_copied_entries_are_mapped() {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--text", "Build it", "--tree", FILE]);
    let own = [
        entry("b1", Some("a2"), &user("Build it")),
        json!({"type": "compaction", "id": "b2", "parentId": "b1", "timestamp": "2026-01-05T09:00:02.000Z",
               "summary": "…", "firstKeptEntryId": "b1", "tokensBefore": 7}),
        json!({"type": "label", "id": "b3", "parentId": "b2", "timestamp": "2026-01-05T09:00:03.000Z",
               "targetId": "a1", "label": "old"}),
    ];
    agent_writes(&sandbox, &ticket, &own);
    owner.die();
    recover(&sandbox, &[]);
    let entries = sandbox.tree(FILE);
    let copy = |kind: &str| entries.iter().rfind(|entry| entry["type"] == kind).unwrap();
    let question = entries.iter().rfind(|entry| entry["message"]["role"] == "user").unwrap();
    assert_ne!(question["id"], "b1");
    assert_eq!(copy("compaction")["firstKeptEntryId"], question["id"]);
    assert_eq!(copy("label")["targetId"], "a1", "outside of the turn it stays");
}

#[test]
fn a_writer_between_reading_and_appending_is_noticed() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    // The file is a link to where the agent keeps it: followed, since it is the agent's.
    let real = sandbox.path("real.jsonl");
    std::fs::rename(sandbox.path(FILE), &real).unwrap();
    std::os::unix::fs::symlink(&real, sandbox.path(FILE)).unwrap();
    recover(&sandbox, &[]);
    assert!(sandbox.path(FILE).is_symlink());
    assert_eq!(lines(&std::fs::read(real).unwrap()).last().unwrap()["customType"], "turnkeep.branch");
}

/// What keeps a recovery from writing is told by whoever looks, with the id to look for.
#[test]
fn a_session_file_that_cannot_be_written_to_is_told_by_inspect() {
    let sandbox = Sandbox::new();
    sandbox.write("chat.jsonl", small_tree());
    let owner = Owner::start();
    sandbox.admit(&owner, "s", &["--tree", "chat.jsonl"]);
    let quiet = sandbox.run(["inspect", "s"]).ok();
    assert!(!quiet.stdout.contains("cannot be written to"), "{}", quiet.stdout);
    let lines = small_tree();
    sandbox.write("chat.jsonl", lines.split_once('\n').unwrap().1);
    for ran in [sandbox.run(["inspect", "s"]).ok(), sandbox.run(["inspect", "s", "--json"]).ok()] {
        assert!(ran.stdout.contains("the session file cannot be written to: "), "{}", ran.stdout);
        assert!(ran.stdout.contains("header"), "{}", ran.stdout);
    }
    let id = text(&sandbox.journal("s")[1]["tree"]["header_id"]);
    let ran = sandbox.run(["verify", "s", "--with-tree"]).exits(3);
    let told = ran.stdout.lines().find(|line| line.contains("tree-header-missing")).unwrap_or_default();
    assert!(told.contains(&format!("the journal recorded the session id {id:?}")), "{}", ran.stdout);
}

/// A held call whose agent had written the result into its own file: nobody has to find out anything.
#[test]
fn what_the_dead_agent_wrote_itself_is_counted_by_next() {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, small_tree());
    sandbox.policy(json!([{"tool": "pay", "replay": "never", "unknown": "hold"}]));
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--tree", FILE]);
    let said = [
        entry("u1", Some("a2"), &user("go")),
        entry("m1", Some("u1"), &assistant("Paying.", &[("c1", "pay", json!({}))])),
    ];
    append(&sandbox, &said);
    sandbox.step_in(&ticket, ["entry", "-"], tree(&said)).ok();
    sandbox.step(&ticket, ["claim", "c1"]).ok();
    owner.die();
    let next = || sandbox.run(["inspect", "s", "--next"]).ok().stdout;
    assert!(next().starts_with("reconcile\n"), "{}", next());
    append(&sandbox, &[entry("r1", Some("m1"), &tool_result("c1", "pay", "Paid.", false))]);
    assert_eq!(next(), "recover\n");
    let ran = sandbox.run(["recover", "s", "--owner-pid", "none", "--json"]).ok().json();
    assert_eq!((at(&ran, "/calls/0/state"), at(&ran, "/next/do")), (&json!("result"), &json!("call_model")));
}
