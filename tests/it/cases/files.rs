//! Reports about session files: torn, cut, edited, forked, made by other versions.

use super::{claimed_and_dead, text, verify, whole};
use crate::kit::{Owner, Sandbox, assistant, entry, header, lines, tool_result, user};
use serde_json::{Value, json};

const CUT: &str = r#"{"type":"message","id":"a5","parentId":"a4","message":{"role":"user","con"#;

/// Header to a4, some bytes, and then more lines.
fn with(middle: &[u8], behind: &[Value]) -> Vec<u8> {
    [text(&whole()).as_bytes(), middle, text(behind).as_bytes()].concat()
}

/// The report whose line is about this finding.
fn finding(document: &Value, name: &str) -> Value {
    let found = document["findings"].as_array().unwrap().iter().find(|finding| finding["name"] == name);
    found.unwrap_or_else(|| panic!("no {name}: {document}")).clone()
}

/// Leaves of the branch that a recover of session `s` wrote onto `t.jsonl`.
fn branch_from(sandbox: &Sandbox) -> String {
    let branch = sandbox.last("s")["branch"].clone();
    crate::kit::text(&branch["from"])
}

/// A process died while it appended to its session file, and the session was shown as empty.
#[test]
fn torn_tail_mid_json() {
    let sandbox = Sandbox::new();
    let torn = with(CUT.as_bytes(), &[]);
    sandbox.write("t.jsonl", &torn);
    let (ran, found) = verify(&sandbox, "t.jsonl", 13);
    assert_eq!(found, ["tree-torn-tail"]);
    let told = finding(&ran.json(), "tree-torn-tail");
    let offset = torn.len() - CUT.len();
    assert_eq!(
        (&told["line"], &told["offset"], &told["bytes"]),
        (&json!(6), &json!(offset), &json!(CUT.len()))
    );
    claimed_and_dead(&sandbox, "bash", &["--tree", "t.jsonl"]);
    assert!(
        std::fs::read(sandbox.path("t.jsonl")).unwrap() == torn,
        "only a command that writes the tree mends it"
    );
    let owner = Owner::start();
    sandbox.recover(&owner, "s", &[]);
    let mended = std::fs::read(sandbox.path("t.jsonl")).unwrap();
    assert!(
        mended.starts_with(&[torn.as_slice(), b"\n{"].concat()),
        "the torn bytes stay, on a line of their own"
    );
}

/// The same, then a newline and more lines behind: everything behind the bad line was dropped.
#[test]
fn sealed_bad_line_mid_file() {
    let sandbox = Sandbox::new();
    let more = [entry("a6", Some("a4"), &user("Again")), entry("a7", Some("a6"), &assistant("Yes.", &[]))];
    sandbox.write("t.jsonl", with(format!("{CUT}\n").as_bytes(), &more));
    let (ran, found) = verify(&sandbox, "t.jsonl", 0);
    assert_eq!(found, ["tree-dead-line"]);
    let document = ran.json();
    assert_eq!(document["records"], 6);
    assert_eq!(finding(&document, "tree-dead-line")["line"], 6);
    claimed_and_dead(&sandbox, "bash", &["--tree", "t.jsonl"]);
    assert_eq!(sandbox.journal("s")[1]["tree"]["leaf"], "a7");
}

/// A last line without its newline was dropped, or the next line was glued to it.
#[test]
fn valid_last_line_no_newline() {
    let sandbox = Sandbox::new();
    let whole = text(&whole());
    sandbox.write("t.jsonl", whole.trim_end());
    let (_, found) = verify(&sandbox, "t.jsonl", 0);
    assert_eq!(found, ["tree-no-newline"]);
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--tree", "t.jsonl", "--tree-mode", "append"]);
    sandbox.announce(&ticket, &[]);
    let now = std::fs::read_to_string(sandbox.path("t.jsonl")).unwrap();
    assert!(now.starts_with(&whole));
    assert_eq!(lines(now.as_bytes()).len(), 7);
}

/// NULs in the middle after a power failure: the list showed the newest message, the replay ended before them.
#[test]
fn nul_block_mid_file() {
    let sandbox = Sandbox::new();
    let more = [entry("a6", Some("a4"), &user("Again"))];
    sandbox.write("t.jsonl", with(&[[0; 237].as_slice(), b"\n"].concat(), &more));
    let (ran, found) = verify(&sandbox, "t.jsonl", 0);
    assert_eq!(found, ["tree-nul-line"]);
    let told = finding(&ran.json(), "tree-nul-line");
    assert!(told["message"].as_str().unwrap().contains("237 NUL bytes"), "{told}");
    let ticket = sandbox.admit(&Owner::start(), "s", &["--tree", "t.jsonl"]);
    assert_eq!(ticket.matches(':').count(), 2);
    let context = sandbox.run(["inspect", "s", "--context"]).ok().json();
    assert_eq!(context.as_array().unwrap().len(), 6, "five messages of the file and the input: {context}");
}

/// A lone surrogate escape: strict parsers lost the line and with it a tool's result.
#[test]
fn lone_surrogate_escape() {
    let sandbox = Sandbox::new();
    let odd = r#"{"type":"message","id":"a5","parentId":"a4","timestamp":"2026-01-05T09:00:01.000Z","message":{"role":"user","content":"half \ud83d"}}"#;
    sandbox.write("t.jsonl", with(format!("{odd}\n").as_bytes(), &[]));
    let (_, found) = verify(&sandbox, "t.jsonl", 0);
    assert_eq!(found, ["tree-lone-surrogate"]);
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--tree", "t.jsonl"]);
    sandbox.announce(&ticket, &[("call_1", "bash", json!({}))]);
    sandbox.step(&ticket, ["claim", "call_1"]).ok();
    let result = r#"{"role":"toolResult","toolCallId":"call_1","toolName":"bash","content":[{"type":"text","text":"\udc00"}],"isError":false}"#;
    sandbox.step_in(&ticket, ["result", "call_1", "-"], result).ok();
    owner.die();
    let next = Owner::start();
    let recovered = sandbox.recover_json(&next, &[]);
    assert_eq!(recovered["calls"][0]["do"], "redeliver");
    let file = std::fs::read_to_string(sandbox.path("t.jsonl")).unwrap();
    assert!(file.contains(odd) && file.contains(r#""text":"\udc00""#));
}

/// Lines that end in CR LF: the CR became a part of values, or the file was rewritten.
#[test]
fn crlf_line_endings() {
    let sandbox = Sandbox::new();
    let dos = text(&whole()).replace('\n', "\r\n");
    sandbox.write("t.jsonl", &dos);
    let (_, found) = verify(&sandbox, "t.jsonl", 0);
    assert_eq!(found, ["tree-crlf"]);
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--tree", "t.jsonl", "--tree-mode", "append"]);
    sandbox.announce(&ticket, &[]);
    let now = std::fs::read_to_string(sandbox.path("t.jsonl")).unwrap();
    assert!(now.starts_with(&dos) && !now[dos.len()..].contains('\r'));
    // In the journal the same is damage: its hashes are of exact bytes.
    let journal = String::from_utf8(sandbox.journal_bytes("s")).unwrap();
    std::fs::write(sandbox.journal_path("s"), journal.replace('\n', "\r\n")).unwrap();
    sandbox.run(["verify", "s"]).exits(3);
}

/// Lines that parse and are no entries: the last of them was taken for the leaf.
#[test]
fn valid_json_wrong_shape() {
    let sandbox = Sandbox::new();
    let odd = "\nnull\n7\n\"x\"\n[]\n{}\n{\"type\":\"message\"}\n{\"type\":\"message\",\"id\":7,\"parentId\":null}\n";
    sandbox.write("t.jsonl", with(odd.as_bytes(), &[]));
    let (ran, found) = verify(&sandbox, "t.jsonl", 3);
    assert_eq!(found.iter().filter(|name| *name == "tree-no-entry").count(), 7);
    assert!(found.contains(&"tree-blank-line".to_owned()));
    assert_eq!(ran.json()["records"], 4);
    sandbox.unchanged_files(|| {
        sandbox.run(["admit", "s", "--text", "x", "--tree", "t.jsonl", "--owner-pid", "none"]).exits(3)
    });
    // A child of such a line has no parent at all.
    let cut_off = format!("{odd}{{\"type\":\"message\",\"id\":\"c1\",\"message\":{}}}\n", user("x"));
    sandbox.write("t.jsonl", with(cut_off.as_bytes(), &[]));
    let (_, found) = verify(&sandbox, "t.jsonl", 3);
    assert!(found.contains(&"tree-parent-missing".to_owned()));
}

/// A file deleted under a live writer came back without its header.
#[test]
fn header_missing() {
    let sandbox = Sandbox::new();
    sandbox.write("t.jsonl", text(&whole()[1..]));
    let (_, found) = verify(&sandbox, "t.jsonl", 3);
    assert_eq!(found, ["tree-header-missing"]);
    let admit =
        ["admit", "s", "--text", "x", "--tree", "t.jsonl", "--tree-mode", "append", "--owner-pid", "none"];
    sandbox.unchanged_files(|| sandbox.run(admit).exits(3).says("no line is a session header"));
}

/// Entries that are each other's parents: readers never ended, or ran out of memory.
#[test]
fn parent_cycle() {
    let sandbox = Sandbox::new();
    for (ring, names) in
        [(vec![("a1", "a3"), ("a2", "a1"), ("a3", "a2")], "a1, a2, a3"), (vec![("a1", "a1")], "a1")]
    {
        let entries = ring.iter().map(|(id, parent)| entry(id, Some(parent), &user("Round")));
        sandbox.write("t.jsonl", text(&std::iter::once(header()).chain(entries).collect::<Vec<_>>()));
        let (ran, found) = verify(&sandbox, "t.jsonl", 3);
        assert_eq!(found, ["tree-cycle"]);
        let message = crate::kit::text(&finding(&ran.json(), "tree-cycle")["message"]);
        assert_eq!(message.matches(names).count(), 1, "{message}");
        let admit = ["admit", "s", "--text", "x", "--tree", "t.jsonl", "--owner-pid", "none"];
        sandbox.unchanged_files(|| sandbox.run(admit).exits(3));
    }
}

/// A record that carries no message was the last line, and the answer went onto its branch.
#[test]
fn bookkeeping_entry_moves_the_leaf() {
    let sandbox = Sandbox::new();
    let label = json!({"type": "custom", "id": "b1", "parentId": "a1", "timestamp": "2026-01-05T09:00:02.000Z", "customType": "x"});
    sandbox.write("t.jsonl", with(b"", &[label]));
    let (_, found) = verify(&sandbox, "t.jsonl", 0);
    assert_eq!(found, ["tree-bookkeeping-leaf"]);
    claimed_and_dead(&sandbox, "bash", &["--tree", "t.jsonl", "--leaf", "a4"]);
    let owner = Owner::start();
    sandbox.recover(&owner, "s", &[]);
    assert_eq!(branch_from(&sandbox), "a4");
}

/// Results of parallel calls as siblings: one of them was taken for missing and its tool ran again.
#[test]
fn parallel_results_as_siblings() {
    let sandbox = Sandbox::new();
    let calls = [("call_1", "write", json!({})), ("call_2", "write", json!({}))];
    sandbox.write(
        "t.jsonl",
        text(&[
            header(),
            entry("a1", None, &user("Two files")),
            entry("a2", Some("a1"), &assistant("", &calls)),
            entry("a3", Some("a2"), &tool_result("call_1", "write", "1", false)),
            entry("a4", Some("a2"), &tool_result("call_2", "write", "2", false)),
        ]),
    );
    let (ran, found) = verify(&sandbox, "t.jsonl", 3);
    assert_eq!(found, ["tree-result-elsewhere"]);
    let message = crate::kit::text(&finding(&ran.json(), "tree-result-elsewhere")["message"]);
    assert!(message.contains("call_1") && message.contains("a3"), "{message}");
    // A branch of ours has them in one chain, in the order of the calls.
    sandbox.write("t.jsonl", text(&whole()));
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--tree", "t.jsonl", "--tree-mode", "append"]);
    sandbox.announce(&ticket, &calls);
    for call in ["call_2", "call_1"] {
        sandbox.step(&ticket, ["claim", call]).ok();
    }
    for call in ["call_2", "call_1"] {
        sandbox.step_in(&ticket, ["result", call, "-"], call).ok();
    }
    owner.die();
    sandbox.write("t.jsonl", text(&whole()));
    sandbox.recover(&Owner::start(), "s", &[]);
    let tree = sandbox.tree("t.jsonl");
    let (first, second) = (&tree[tree.len() - 3], &tree[tree.len() - 2]);
    assert_eq!(
        (&first["message"]["toolCallId"], &second["message"]["toolCallId"]),
        (&json!("call_1"), &json!("call_2"))
    );
    assert_eq!(second["parentId"], first["id"]);
}

/// A user's message between a call and its result: a made-up result was added.
#[test]
fn user_message_between_call_and_result() {
    let sandbox = Sandbox::new();
    let mut lines = whole();
    lines.insert(3, entry("u1", Some("a2"), &user("Hurry")));
    lines[4]["parentId"] = json!("u1");
    sandbox.write("t.jsonl", text(&lines));
    let (_, found) = verify(&sandbox, "t.jsonl", 0);
    assert_eq!(found, ["tree-user-between"]);
}

/// A compaction that keeps from an entry that is not on its branch.
#[test]
fn compaction_keeps_unknown_entry() {
    let sandbox = Sandbox::new();
    let compaction = json!({"type": "compaction", "id": "c1", "parentId": "a4", "timestamp": "2026-01-05T09:00:02.000Z",
                            "summary": "Logs.", "firstKeptEntryId": "0ff", "tokensBefore": 9});
    sandbox.write("t.jsonl", with(b"", &[compaction, entry("a6", Some("c1"), &user("And now?"))]));
    let (_, found) = verify(&sandbox, "t.jsonl", 3);
    assert_eq!(found, ["tree-compaction-target"]);
    claimed_and_dead(&sandbox, "bash", &["--tree", "t.jsonl"]);
    sandbox.recover(&Owner::start(), "s", &[]);
    assert_eq!(branch_from(&sandbox), "a6", "the chain itself is whole");
}

/// Two writers on one file: six messages in file order were shown as one conversation.
#[test]
fn two_writers_forked_the_tree() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "t.jsonl",
        with(
            b"",
            &[
                entry("c1", Some("a4"), &user("One")),
                entry("d1", Some("a4"), &user("Two")),
                entry("c2", Some("c1"), &assistant("1", &[])),
                entry("d2", Some("d1"), &assistant("2", &[])),
            ],
        ),
    );
    let (ran, found) = verify(&sandbox, "t.jsonl", 0);
    assert_eq!(found, ["tree-forked"]);
    let message = crate::kit::text(&finding(&ran.json(), "tree-forked")["message"]);
    assert!(message.contains("c2") && message.contains("d2"), "{message}");
    claimed_and_dead(&sandbox, "bash", &["--tree", "t.jsonl", "--leaf", "c2"]);
    sandbox.recover(&Owner::start(), "s", &[]);
    assert_eq!(branch_from(&sandbox), "c2");
}

/// A file of an older version was converted in place, and a crash in between lost the history.
#[test]
fn older_session_version() {
    let sandbox = Sandbox::new();
    let mut second = whole();
    second[0]["version"] = json!(2);
    let mut first = header();
    first.as_object_mut().unwrap().remove("version");
    let old = json!({"type": "message", "timestamp": "2026-01-05T09:00:01.000Z", "message": user("Old")});
    for (lines, entries) in [(second, 4), (vec![first, old], 1)] {
        sandbox.write("t.jsonl", text(&lines));
        let (ran, found) = verify(&sandbox, "t.jsonl", 0);
        assert_eq!((found, &ran.json()["records"]), (vec!["tree-older-version".to_owned()], &json!(entries)));
        let admit = ["admit", "s", "--text", "x", "--tree", "t.jsonl", "--owner-pid", "none"];
        sandbox.unchanged_files(|| sandbox.run(admit).exits(12).says("let Pi convert it first"));
    }
}

/// Pi takes no lock: it wrote behind the admission, and the answer was put below its lines.
#[test]
fn pi_writes_without_our_lock() {
    for typed in [user("Typed meanwhile."), assistant("Thought meanwhile.", &[])] {
        let by_user = typed["role"] == "user";
        let sandbox = Sandbox::new();
        sandbox.write("t.jsonl", text(&whole()));
        let owner = Owner::start();
        let ticket = sandbox.admit(&owner, "s", &["--tree", "t.jsonl", "--tree-mode", "append"]);
        let input = crate::kit::text(&sandbox.tree("t.jsonl")[5]["id"]);
        // Another Pi goes on from the leaf that it had loaded.
        let foreign =
            [entry("c1", Some("a4"), &typed), entry("c2", Some("c1"), &assistant("Pi answers.", &[]))];
        let before = std::fs::read_to_string(sandbox.path("t.jsonl")).unwrap();
        let before = format!("{before}{}", text(&foreign));
        sandbox.write("t.jsonl", &before);
        sandbox.step_in(&ticket, ["message", "-"], assistant("Ours.", &[]).to_string()).ok();
        // The process died when its answer was in the journal alone.
        owner.die();
        sandbox.write("t.jsonl", &before);
        let ran = sandbox.unchanged_files(|| sandbox.run(["--json", "verify", "s", "--with-tree"])).exits(13);
        finding(&ran.json(), "branch-behind");
        let recover = ["recover", "s", "--owner-pid", "none"];
        let told = |ran: &crate::kit::Ran| {
            for words in [
                "the session file has 2 entries since admission that this turn does not have: c1 (line 7), c2 (line 8)",
                &format!("the session file has 2 leaves since admission: {input}, c2"),
                "the last line, which Pi would open, is c2",
            ] {
                assert!(ran.stderr.contains(words), "{words:?} is not said: {}", ran.stderr);
            }
        };
        if by_user {
            // A person wrote on: nothing goes on behind their back.
            told(
                &sandbox.unchanged_files(|| sandbox.run(recover).exits(6).says("the conversation moved on")),
            );
            told(&sandbox.run([&recover[..], &["--force", "--why", "seen"]].concat()).ok());
        } else {
            told(&sandbox.run(recover).ok());
        }
        let tree = sandbox.tree("t.jsonl");
        let bytes = std::fs::read_to_string(sandbox.path("t.jsonl")).unwrap();
        assert!(bytes.starts_with(&before), "the other branch stays");
        let ours: Vec<&Value> = tree[8..].iter().collect();
        assert_eq!(ours[0]["parentId"], input.as_str(), "below the input, where it was admitted");
        assert!(tree.iter().all(|line| line["parentId"] != "c2"), "and nothing of ours is below theirs");
        assert_eq!(branch_from(&sandbox), "a4");
        sandbox.run(["verify", "s", "--with-tree"]).ok();
        let drawn = sandbox.run(["inspect", "s", "--draw-tree"]).ok().stdout;
        // By its own column: an id of ours may have any two digits somewhere.
        let theirs = drawn.lines().find(|line| line.trim_start().starts_with("c2 "));
        assert!(theirs.is_some_and(|line| line.starts_with("    c2 ") && !line.contains("leaf")), "{drawn}");
        assert!(
            drawn.lines().any(|line| line.starts_with('*') && line.ends_with("<- active leaf")),
            "{drawn}"
        );
    }
}

/// The session file was removed between two steps and came back without its head.
#[test]
fn session_deleted_under_the_tool() {
    let sandbox = Sandbox::new();
    sandbox.write("t.jsonl", text(&whole()));
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--tree", "t.jsonl"]);
    std::fs::remove_file(sandbox.path("t.jsonl")).unwrap();
    sandbox.announce(&ticket, &[("call_1", "bash", json!({}))]);
    let ran = sandbox.run(["--json", "verify", "s", "--with-tree"]).exits(3);
    let told = finding(&ran.json(), "tree-missing");
    assert!(told["message"].as_str().unwrap().contains("safe in the journal"), "{told}");
    owner.die();
    let pid = Owner::start();
    let id = pid.pid().to_string();
    sandbox.unchanged_files(|| sandbox.run(["recover", "s", "--owner-pid", &id]).exits(3));
}

/// 200 levels lost a tool call; 100,000 levels overflowed the stack.
#[test]
fn deep_nesting() {
    let sandbox = Sandbox::new();
    let nested = |levels: usize| {
        format!(
            r#"{{"type":"message","id":"a5","parentId":"a4","timestamp":"2026-01-05T09:00:01.000Z","message":{{"role":"user","content":"x","deep":{}{}}}}}"#,
            "[".repeat(levels),
            "]".repeat(levels)
        )
    };
    sandbox.write("t.jsonl", with(format!("{}\n", nested(200)).as_bytes(), &[]));
    let (ran, found) = verify(&sandbox, "t.jsonl", 0);
    assert_eq!((found.len(), &ran.json()["records"]), (0, &json!(5)));
    sandbox.write("t.jsonl", with(format!("{}\n", nested(100_000)).as_bytes(), &[]));
    let (ran, found) = verify(&sandbox, "t.jsonl", 3);
    assert_eq!(found, ["tree-too-deep"]);
    assert_eq!(finding(&ran.json(), "tree-too-deep")["line"], 6);
    // The same in an argument that a model gave.
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let note = sandbox.unchanged("s", || sandbox.step_in(&ticket, ["note", "-"], deep).code());
    assert_eq!(note, 2);
}

/// A chain of so many entries.
fn long(entries: usize) -> String {
    let header = header();
    let mut lines = format!("{header}\n");
    let mut parent = "null".to_owned();
    for index in 0..entries {
        let id = format!("\"{:08x}\"", index + 1);
        lines.push_str(&format!(
            r#"{{"type":"message","id":{id},"parentId":{parent},"timestamp":"2026-01-05T09:00:01.000Z","message":{{"role":"user","content":"entry {index}","timestamp":1}}}}"#
        ));
        lines.push('\n');
        parent = id;
    }
    lines
}

/// How often a command reads, and how many bytes; its own calls, as strace counts them.
fn reads(sandbox: &Sandbox, words: &[&str], stdin: &str) -> (u64, u64) {
    let log = sandbox.path("reads");
    let options = ["-qq", "-e", "trace=read,pread64", "-e", "signal=none", "-o", log.to_str().unwrap()];
    let all = [&options[..], &[crate::kit::bin()], words].concat();
    sandbox.program("strace", all).stdin(stdin).go().ok();
    let trace = std::fs::read_to_string(log).unwrap();
    let answers = trace.lines().filter_map(|line| line.rsplit_once(" = ")?.1.parse::<u64>().ok());
    answers.fold((0, 0), |(calls, bytes), answer| (calls + 1, bytes + answer))
}

/// Sessions of many thousand entries: recursion down the chain, or work that grows faster than the file.
///
/// Counted, not timed: how often is read does not grow, and every byte is read the same few times. Where a
/// command writes to the session file it reads it, since Pi may have written to it since.
#[test]
fn many_entries() {
    if !crate::points::can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    let message = assistant("", &[("c", "bash", json!({}))]).to_string();
    let step = |words: &[&'static str]| [&["step", "--ticket", "s:t:1"], words].concat();
    let tree = ["--owner-pid", "none", "--tree", "t.jsonl", "--tree-mode", "append"];
    let admit = [&["admit", "s", "--turn", "t", "--text", "x"][..], &tree].concat();
    // What is read, and how often the session file may be read for it.
    let commands: [(Vec<&str>, u64); 7] = [
        (vec!["verify", "./t.jsonl"], 1),
        (admit, 3),
        (step(&["message", "-"]), 2),
        (step(&["claim", "c"]), 2),
        (step(&["heartbeat"]), 2),
        (vec!["inspect", "s"], 1),
        (vec!["inspect", "s", "--draw-tree"], 1),
    ];
    let measured = [2_000, 8_000].map(|entries| {
        let _none = std::fs::remove_dir_all(sandbox.root());
        sandbox.write("t.jsonl", long(entries));
        let size = std::fs::metadata(sandbox.path("t.jsonl")).unwrap().len();
        commands.each_ref().map(|(words, times)| {
            let (calls, bytes) = reads(&sandbox, words, &message);
            let most = times * size + 120_000;
            assert!(bytes <= most, "{words:?} on {entries} entries, {size} bytes: {bytes} were read");
            calls
        })
    });
    let [few, many] = measured;
    for ((few, many), (words, _)) in few.iter().zip(&many).zip(&commands) {
        assert!(*many <= few + 2, "{words:?}: {few} reads became {many}");
    }
    // Down a long chain with little stack, and to its end.
    sandbox.write("t.jsonl", long(80_000));
    let ran = sandbox.sh("ulimit -s 1024; exec turnkeep --json verify ./t.jsonl").ok();
    let document = ran.json();
    assert_eq!((&document["findings"], &document["records"]), (&json!([]), &json!(80_000)));
    let words =
        "turnkeep admit l --turn t --text x --owner-pid none --tree t.jsonl; turnkeep inspect l --draw-tree";
    let ran = sandbox.sh(&format!("ulimit -s 1024; {words}")).ok();
    assert!(ran.stdout.contains("00013880"), "its end is drawn");
}

/// A step costs the same behind few turns and behind many: it reads from the last base. An admission reads the journal
/// once, all of it, since any earlier turn may have had its delivery.
#[test]
fn many_turns() {
    if !crate::points::can_trace() {
        return;
    }
    let sandbox = Sandbox::in_memory();
    let long = "x".repeat(50_000);
    let mut turns = 0;
    let measured = [3, 20].map(|behind| {
        while turns < behind {
            turns += 1;
            let ticket = sandbox.run(["admit", "s", "--text", "x", "--owner-pid", "none"]).ok().line();
            sandbox.step_in(&ticket, ["note", "-"], &*long).ok();
            sandbox.step_in(&ticket, ["message", "-"], assistant("Done.", &[]).to_string()).ok();
            sandbox.step(&ticket, ["settle"]).ok();
        }
        let turn = format!("last-{behind:02}");
        let ticket = format!("s:{turn}:1");
        let (_, admit) =
            reads(&sandbox, &["admit", "s", "--turn", &turn, "--text", "x", "--owner-pid", "none"], "");
        let (_, step) = reads(&sandbox, &["step", "--ticket", &ticket, "heartbeat"], "");
        sandbox.step_in(&ticket, ["message", "-"], assistant("Done.", &[]).to_string()).ok();
        sandbox.step(&ticket, ["settle"]).ok();
        (admit, step, sandbox.journal_bytes("s").len() as u64)
    });
    let [few, many] = measured;
    let grown = many.2 - few.2;
    assert!(grown > 800_000 && many.0 <= few.0 + grown * 5 / 4, "an admission: {measured:?}");
    assert!(many.1 <= few.1 + grown / 4, "a step: {measured:?}");
}

/// A session file was taken for a damaged journal, and a salvage of it advised.
#[test]
fn a_session_file_is_no_damaged_journal() {
    let sandbox = Sandbox::new();
    sandbox.write("t.jsonl", text(&whole()));
    verify(&sandbox, "t.jsonl", 0);
    let records = ["inspect", "./t.jsonl", "--records"];
    sandbox.unchanged_files(|| sandbox.run(records).exits(2).says("is a session file, not a journal"));
}
