//! `admit`: a turn is accepted once.

use crate::kit::{Owner, Sandbox, assistant, at, entry, header, lines, small_tree, text, tree, user};
use serde_json::{Value, json};

#[test]
fn a_turn_is_three_records_and_a_ticket() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(["admit", "room-42", "--turn", "t1", "--delivery", "msg-1", "--text", "Hi"]).ok();
    assert_eq!(ran.line(), "room-42:t1:1");
    assert_eq!(sandbox.kinds("room-42"), ["opened", "admitted", "attempt"]);
    let records = sandbox.journal("room-42");
    assert_eq!(records[0]["format"], "turnkeep/1");
    assert_eq!(records[0]["session"], "room-42");
    assert_eq!(records[1]["input"], "Hi");
    assert_eq!(records[1]["delivery"], "msg-1");
    assert!(records[1].get("policy_sha256").is_none(), "the built-in list has no digest");
    assert_eq!(records[2]["cause"], "admit");
    assert_eq!(records[2]["owner"]["pid"], std::process::id(), "the parent owns the turn");
    ran.says_not("error");
}

#[test]
fn the_status_document_comes_with_json() {
    let sandbox = Sandbox::new();
    let document = sandbox.run(["--json", "admit", "s", "--turn", "t1", "--text", "Hi"]).ok().json();
    assert_eq!(document["schema"], "turnkeep.status/1");
    assert_eq!(document["ticket"], "s:t1:1");
    assert_eq!(document["state"], "open");
    assert_eq!(document["next"]["do"], "call_model");
    assert_eq!(document["receipt"]["seq"], 2);
    assert_eq!(document["receipt"]["hash"], sandbox.last("s")["hash"]);
    assert_eq!(document["head"]["hash"], sandbox.last("s")["hash"]);
    assert_eq!(document["owner"]["alive"], true);
    assert_eq!(document["input"], "Hi");
}

#[test]
fn a_turn_id_is_a_uuid_unless_it_is_given() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "a:b", "--text", "Hi"]).ok().line();
    let turn = ticket.strip_prefix("a:b:").unwrap().strip_suffix(":1").unwrap();
    assert_eq!((turn.len(), turn.as_bytes()[14]), (36, b'7'), "{turn}");
    // The ticket is parsed from the right, so a session id may hold colons.
    sandbox.step(&ticket, ["settle"]).ok();
    for bad in ["", "a b", "a/b", "a:b", &"x".repeat(129)] {
        sandbox.run(["admit", "s", "--text", "Hi", "--turn", bad]).exits(2);
    }
    sandbox.run(["admit", "s", "--text", "Hi", "--turn", &"x".repeat(128)]).ok();
}

#[test]
fn without_input_nothing_is_written() {
    let sandbox = Sandbox::new();
    for words in [
        vec!["--json", "admit", "s"],
        vec!["--json", "admit", "s", "--text", ""],
        vec!["--json", "admit", "s", "--text", " \n"],
        vec!["--json", "admit", "s", "--input", "-"],
    ] {
        let ran = sandbox.cmd(&words).stdin("").go().exits(2);
        ran.error("no_input");
        ran.says("stdin");
    }
    sandbox.run(["--json", "admit", "s", "--input", "no-such-file"]).exits(2).error("no_file");
    sandbox.run(["admit", "s", "--text", "a", "--input", "-"]).exits(2);
    assert_eq!(sandbox.everything(), [], "something was written");
}

#[test]
fn text_is_text_and_a_file_may_hold_json() {
    let sandbox = Sandbox::new();
    let input = |session: &str| sandbox.journal(session)[1]["input"].clone();
    sandbox.run(["admit", "a", "--text", "{\"x\": 1}"]).ok();
    assert_eq!(input("a"), "{\"x\": 1}");
    sandbox.cmd(["admit", "b", "--input", "-"]).stdin("{\"x\": 1}\n").go().ok();
    assert_eq!(input("b"), json!({"x": 1}));
    sandbox.cmd(["admit", "c", "--input", "-"]).stdin("hello\nthere\n").go().ok();
    assert_eq!(input("c"), "hello\nthere\n");
    let file = sandbox.write("in.txt", "[1, 2]");
    sandbox.run(["admit", "d", "--input", file.to_str().unwrap()]).ok();
    assert_eq!(input("d"), json!([1, 2]));
}

#[test]
fn the_same_key_and_input_is_no_new_turn() {
    let sandbox = Sandbox::new();
    let admit = |more: &[&str]| {
        let mut words = vec!["admit", "s", "--delivery", "k", "--text", "Hi"];
        words.extend(more);
        sandbox.run(words)
    };
    let ticket = admit(&[]).ok().line();
    sandbox.unchanged("s", || {
        let again = admit(&[]).exits(10);
        assert_eq!(again.stdout, "", "no ticket, and no reply yet");
        let document = admit(&["--json"]).exits(10).json();
        assert_eq!(document["state"], "open");
        assert_eq!(document["ticket"], Value::Null);
        let other = sandbox.run(["--json", "admit", "s", "--delivery", "k", "--text", "Ho"]).exits(6);
        other.error("other_input");
    });
    sandbox.step_in(&ticket, ["message", "-"], assistant("Hello.", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    sandbox.unchanged("s", || assert_eq!(admit(&[]).exits(10).stdout, "Hello.\n", "the stored reply"));
    sandbox.step(&ticket, ["deliver", "--begin"]).ok();
    sandbox.step(&ticket, ["deliver", "--receipt", "r"]).ok();
    sandbox.unchanged("s", || {
        let closed = admit(&["--json"]).exits(10).json();
        assert_eq!(closed["state"], "closed");
        assert_eq!(at(&closed, "/reply/content/0/text"), "Hello.");
        assert_eq!(admit(&[]).exits(10).stdout, "Hello.\n");
        sandbox.run(["admit", "s", "--delivery", "k", "--text", "Ho"]).exits(6);
    });
}

#[test]
fn the_same_turn_id_is_no_new_turn_either() {
    let sandbox = Sandbox::new();
    sandbox.run(["admit", "s", "--turn", "t", "--text", "Hi"]).ok();
    sandbox.unchanged("s", || {
        sandbox.run(["admit", "s", "--turn", "t", "--text", "Hi"]).exits(10);
        sandbox.run(["--json", "admit", "s", "--turn", "t", "--text", "Ho"]).exits(6).error("other_input");
        let keyed = ["--json", "admit", "s", "--turn", "t", "--delivery", "k", "--text", "Hi"];
        sandbox.run(keyed).exits(6).error("other_key");
    });
}

#[test]
fn a_key_and_an_id_of_two_turns_do_not_meet() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "s", "--turn", "t1", "--delivery", "k", "--text", "Hi"]).ok().line();
    sandbox.step(&ticket, ["settle"]).ok();
    sandbox.run(["admit", "s", "--turn", "t2", "--text", "Hi"]).ok();
    sandbox.unchanged("s", || {
        for turn in ["t2", "t3"] {
            let words = ["--json", "admit", "s", "--turn", turn, "--delivery", "k", "--text", "Hi"];
            sandbox.run(words).exits(6).error("other_turn");
        }
    });
}

#[test]
fn the_key_is_looked_at_before_the_session_file() {
    let sandbox = Sandbox::new();
    let file = sandbox.write("chat.jsonl", small_tree());
    let words = ["admit", "s", "--delivery", "k", "--text", "Hi", "--tree", "chat.jsonl", "--leaf", "a2"];
    sandbox.run(words).ok();
    std::fs::write(&file, "damaged\n").unwrap();
    sandbox.unchanged("s", || sandbox.run(words).exits(10));
}

#[test]
fn while_a_turn_is_open_another_is_refused_or_joins() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t"]);
    let seq = sandbox.announce(&ticket, &[("c1", "bash", json!({}))]);
    let busy = sandbox.run(["--json", "admit", "s", "--text", "More"]).exits(4);
    let error = busy.error("turn_open");
    assert!(text(&error["message"]).contains("turn t is open"), "{error}");
    assert!(text(&error["message"]).contains(&format!("{seq}.0 bash intent")), "{error}");

    let mut steer = vec!["admit", "s", "--text", "More", "--delivery", "k2", "--when-busy", "steer"];
    let joined = sandbox.run(&steer).ok();
    assert_eq!(sandbox.last("s")["kind"], "steered");
    assert_eq!(joined.json(), json!({"seq": sandbox.last("s")["seq"], "hash": sandbox.last("s")["hash"]}));
    sandbox.unchanged("s", || {
        steer.push("--json");
        let again = sandbox.run(&steer).exits(10).json();
        assert_eq!(again["ticket"], Value::Null);
        assert_eq!(at(&again, "/steered/0/delivery"), "k2");
        let other = ["admit", "s", "--text", "Other", "--delivery", "k2", "--when-busy", "steer"];
        sandbox.run(other).exits(6);
    });
    // CMD is not started for what joined.
    let words = ["admit", "s", "--text", "And", "--when-busy", "steer", "--", "touch", "started"];
    sandbox.run(words).ok();
    assert!(!sandbox.path("started").exists());
    sandbox.run(["step", "cancel", "--by", "ann", "--session", "s"]).ok();
    sandbox.unchanged("s", || {
        sandbox.run(["admit", "s", "--text", "And", "--when-busy", "steer"]).exits(4).says("is cancelled");
    });
}

#[test]
fn settled_turns_do_not_block_the_next_one() {
    let sandbox = Sandbox::new();
    for turn in ["t1", "t2", "t3"] {
        let ticket =
            sandbox.run(["admit", "s", "--turn", turn, "--delivery", turn, "--text", "Hi"]).ok().line();
        sandbox.step_in(&ticket, ["message", "-"], assistant("Hello.", &[]).to_string()).ok();
        sandbox.step(&ticket, ["settle"]).ok();
    }
    assert_eq!(sandbox.kinds("s").iter().filter(|kind| *kind == "settled").count(), 3);
}

#[test]
fn a_turn_without_its_first_attempt_gets_it_now() {
    let sandbox = Sandbox::new();
    let words = ["admit", "s", "--turn", "t", "--delivery", "k", "--text", "Hi"];
    sandbox.run(words).ok();
    let bytes = sandbox.journal_bytes("s");
    let second = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(1).unwrap().0;
    std::fs::write(sandbox.journal_path("s"), &bytes[..=second]).unwrap();
    assert_eq!(sandbox.run(words).ok().line(), "s:t:1");
    assert_eq!(sandbox.kinds("s"), ["opened", "admitted", "attempt"]);
    // Torn in the middle of the attempt: repaired first.
    let cut = bytes.len() - 30;
    std::fs::write(sandbox.journal_path("s"), &bytes[..cut]).unwrap();
    assert_eq!(sandbox.run(words).ok().line(), "s:t:1");
    assert_eq!(sandbox.kinds("s"), ["opened", "admitted", "repaired", "attempt"]);
    // Torn in the middle of the genesis.
    std::fs::write(sandbox.journal_path("s"), &bytes[..50]).unwrap();
    assert_eq!(sandbox.run(words).ok().line(), "s:t:1");
    assert_eq!(sandbox.kinds("s"), ["opened", "repaired", "admitted", "attempt"]);
    let saved = sandbox.root().join(text(&sandbox.journal("s")[1]["saved_as"]));
    assert_eq!(std::fs::read(saved).unwrap(), &bytes[..50]);
}

#[test]
fn resume_goes_on_with_a_turn_whose_owner_is_gone() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    sandbox.admit(&owner, "s", &["--turn", "t", "--delivery", "k", "--text", "Hi"]);
    let words = ["admit", "s", "--delivery", "k", "--text", "Hi", "--resume"];
    sandbox.unchanged("s", || sandbox.run(words).exits(4).says("pid"));
    owner.die();
    assert_eq!(sandbox.run(words).ok().line(), "s:t:2");
    let ticket = "s:t:2";
    sandbox.step_in(ticket, ["message", "-"], assistant("Hello.", &[]).to_string()).ok();
    sandbox.step(ticket, ["settle"]).ok();
    sandbox.step(ticket, ["deliver", "--begin"]).ok();
    sandbox.step(ticket, ["deliver", "--receipt", "r"]).ok();
    sandbox.unchanged("s", || assert_eq!(sandbox.run(words).exits(10).stdout, "Hello.\n"));
}

#[test]
fn resume_of_a_turn_that_nobody_holds_recovers() {
    let sandbox = Sandbox::new();
    let words = ["admit", "s", "--delivery", "k", "--text", "Hi", "--resume", "--owner-pid", "none"];
    let first = sandbox.run(words).ok().line();
    assert!(first.ends_with(":1"));
    assert!(sandbox.journal("s")[2].get("owner").is_none(), "a field without a value is absent");
    let second = sandbox.run(words).ok().line();
    assert!(second.ends_with(":2"), "{second}");
    sandbox.step(&first, ["settle"]).exits(5);
    sandbox.step(&second, ["settle"]).ok();
}

#[test]
fn the_process_becomes_cmd_and_owns_the_turn() {
    let sandbox = Sandbox::new();
    sandbox.script(
        "driver.sh",
        "echo \"$TURNKEEP_SESSION $TURNKEEP_TICKET $$\"; turnkeep step settle >/dev/null; exit 7",
    );
    let running = sandbox.cmd(["admit", "a:b", "--turn", "t", "--text", "Hi", "--", "./driver.sh"]).start();
    let pid = running.pid();
    let ran = running.wait().exits(7);
    assert_eq!(ran.stdout, format!("a:b a:b:t:1 {pid}\n"), "nothing of ours on stdout");
    let records = lines(&std::fs::read(sandbox.root().join("sessions/a%3Ab.jsonl")).unwrap());
    assert_eq!(at(&records[2], "/owner/pid"), pid);
    assert_eq!(records[3]["kind"], "settled");
}

#[test]
fn the_root_and_policy_that_were_named_are_there_for_cmd() {
    let sandbox = Sandbox::new();
    sandbox.write("p.json", r#"{"format":"turnkeep-policy/1","rules":[]}"#);
    std::fs::create_dir(sandbox.path("elsewhere")).unwrap();
    sandbox.script("driver.sh", "cd elsewhere; turnkeep step settle; echo \"$TURNKEEP_POLICY\"");
    let words = ["--root", "other", "--policy", "p.json", "admit", "s", "--text", "Hi", "--", "./driver.sh"];
    let ran = sandbox.cmd(words).env_remove("TURNKEEP_ROOT").go().ok();
    assert!(ran.stdout.contains("\"seq\":3"), "{}", ran.stdout);
    assert!(sandbox.path("other/sessions/s.jsonl").exists());
    let policy = std::fs::canonicalize(sandbox.path("p.json")).unwrap();
    assert!(ran.stdout.contains(policy.to_str().unwrap()), "{}", ran.stdout);
}

#[test]
fn a_cmd_that_cannot_be_started_is_refused_before_anything_is_written() {
    let sandbox = Sandbox::new();
    sandbox.write("plain.txt", "");
    for cmd in ["no-such-command", "./no-such-file", "./plain.txt", "/"] {
        let ran = sandbox.run(["--json", "admit", "s", "--text", "Hi", "--", cmd]).exits(2);
        ran.error("no_command");
    }
    assert!(!sandbox.root().exists());
}

#[test]
fn an_owner_that_is_not_there_is_refused() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    owner.die();
    let ran = sandbox.run(["--json", "admit", "s", "--text", "Hi", "--owner-pid", &pid]).exits(2);
    ran.error("no_owner");
    sandbox.run(["admit", "s", "--text", "Hi", "--owner-pid", "0"]).exits(2);
    assert!(!sandbox.root().exists());
}

#[test]
fn a_refused_admission_leaves_no_journal() {
    let sandbox = Sandbox::new();
    let long = "x".repeat(2_000);
    let ran = sandbox.run(["--json", "--max-record", "1000", "admit", "s", "--text", &long]).exits(2);
    ran.error("too_long");
    sandbox.run(["admit", "s", "--text", "Hi", "--meta", "{"]).exits(2).says("--meta");
    sandbox.write("bad.jsonl", "no json\n");
    sandbox.run(["admit", "s", "--text", "Hi", "--tree", "bad.jsonl"]).exits(3);
    assert!(!sandbox.journal_path("s").exists(), "an empty journal was left");
}

#[test]
fn the_leaf_is_the_one_that_pi_would_open_or_the_one_that_is_named() {
    let sandbox = Sandbox::new();
    let chat = small_tree();
    sandbox.write("chat.jsonl", &chat);
    let admitted = |session: &str, more: &[&str]| {
        let mut words = vec!["admit", session, "--text", "Hi", "--tree", "chat.jsonl"];
        words.extend(more);
        sandbox.run(words).ok();
        sandbox.journal(session)[1]["tree"].clone()
    };
    let path = sandbox.path("chat.jsonl");
    let tree = admitted("a", &[]);
    assert_eq!(tree["path"], path.to_str().unwrap());
    assert_eq!(tree["format"], "pi/3");
    assert_eq!(tree["header_id"], header()["id"]);
    assert_eq!(tree["leaf"], "a2");
    assert_eq!(tree["leaf_at"], chat.find(r#"{"id":"a2""#).unwrap_or_else(|| chat.rfind("{\"id\"").unwrap()));
    assert_eq!(tree["bytes"], chat.len());
    assert_eq!(tree["mode"], "branch");
    assert_eq!(admitted("b", &["--leaf", "a1"])["leaf"], "a1");
    let root = admitted("c", &["--leaf", "root"]);
    assert_eq!((root.get("leaf"), root.get("leaf_at")), (None, None));
    sandbox
        .run(["--json", "admit", "d", "--text", "Hi", "--tree", "chat.jsonl", "--leaf", "zz"])
        .exits(8)
        .error("no_leaf");
    assert_eq!(std::fs::read_to_string(path).unwrap(), chat, "admission writes nothing to it in branch mode");
}

#[test]
fn older_and_newer_session_files_are_never_written_to() {
    let sandbox = Sandbox::new();
    for version in [1, 2, 4] {
        let mut head = header();
        head["version"] = version.into();
        sandbox.write("old.jsonl", tree(&[head, entry("a1", None, &user("Hi"))]));
        let ran = sandbox.run(["--json", "admit", "s", "--text", "Hi", "--tree", "old.jsonl"]).exits(12);
        ran.error("tree_version");
    }
    assert!(!sandbox.journal_path("s").exists());
}

#[test]
fn a_session_file_that_is_not_there_yet_has_no_leaf() {
    let sandbox = Sandbox::new();
    let head = header().to_string();
    sandbox.run(["admit", "a", "--text", "Hi", "--tree", "new.jsonl", "--tree-header", &head]).ok();
    let records = sandbox.journal("a");
    assert_eq!(at(&records[1], "/tree/bytes"), 0);
    assert_eq!(at(&records[1], "/tree/header_id"), &header()["id"]);
    assert!(records[1]["tree"].get("leaf").is_none());
    assert_eq!(records[3]["kind"], "entry", "the header is kept");
    assert_eq!(records[3]["entry"], header());
    assert!(!sandbox.path("new.jsonl").exists(), "Pi creates it");
    sandbox.run(["admit", "b", "--text", "Hi", "--tree", "new.jsonl", "--leaf", "root"]).ok();
    sandbox.run(["admit", "c", "--text", "Hi", "--tree", "new.jsonl", "--leaf", "a1"]).exits(8);
    sandbox.run(["admit", "c", "--text", "Hi", "--tree", "new.jsonl", "--tree-header", "{}"]).exits(2);
    sandbox.run(["admit", "c", "--text", "Hi", "--leaf", "a1"]).exits(2);
    // Pi made it meanwhile, or another session did.
    sandbox.write("new.jsonl", small_tree());
    sandbox.run(["admit", "c", "--text", "Hi", "--tree", "new.jsonl", "--tree-header", &head]).ok();
    let other = head.replace(&text(&header()["id"]), "another");
    let words = ["--json", "admit", "d", "--text", "Hi", "--tree", "new.jsonl", "--tree-header", &other];
    sandbox.run(words).exits(6).error("other_header");
    assert!(!sandbox.journal_path("d").exists());
}

#[test]
fn append_mode_writes_each_step_onto_the_session_file() {
    let sandbox = Sandbox::new();
    let words = ["admit", "s", "--text", "Hi", "--tree", "chat.jsonl", "--tree-mode", "append"];
    let ticket = sandbox.run(words).ok().line();
    let roles = || -> Vec<String> {
        let entries = sandbox.tree("chat.jsonl");
        entries
            .iter()
            .map(|entry| entry.pointer("/message/role").map_or_else(|| text(&entry["type"]), text))
            .collect()
    };
    assert_eq!(roles(), ["session", "user"]);
    let seq = sandbox.announce(&ticket, &[("c1", "bash", json!({})), ("c2", "bash", json!({}))]);
    assert_eq!(roles(), ["session", "user", "assistant"]);
    for position in ["1", "0"] {
        let call = format!("{seq}.{position}");
        sandbox.step(&ticket, ["claim", &call]).ok();
        sandbox.step_in(&ticket, ["result", &call, "-"], format!("out {position}")).ok();
    }
    assert_eq!(roles(), ["session", "user", "assistant", "toolResult", "toolResult"]);
    let entries = sandbox.tree("chat.jsonl");
    assert_eq!(at(&entries[3], "/message/toolCallId"), "c2", "results that come later follow in their order");
    assert_eq!(at(&entries[4], "/message/toolCallId"), "c1");
    for pair in entries[1..].windows(2) {
        assert_eq!(pair[1]["parentId"], pair[0]["id"]);
    }
    sandbox.step_in(&ticket, ["message", "-"], assistant("Done.", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    assert_eq!(roles().len(), 6);
    // The next turn goes on behind it.
    sandbox.run(words).ok();
    let entries = sandbox.tree("chat.jsonl");
    assert_eq!(at(&entries[6], "/message/role"), "user");
    assert_eq!(entries[6]["parentId"], entries[5]["id"]);
}

#[test]
fn meta_is_kept_as_it_was_given() {
    let sandbox = Sandbox::new();
    sandbox.run(["admit", "s", "--text", "Hi", "--meta", r#"{"b": 1.50, "a": "x  y", "b": null}"#]).ok();
    let bytes = String::from_utf8(sandbox.journal_bytes("s")).unwrap();
    assert!(bytes.contains(r#""meta":{"b":1.50,"a":"x  y","b":null},"base""#), "{bytes}");
}

#[test]
fn a_delivery_key_has_no_control_characters() {
    let sandbox = Sandbox::new();
    for key in ["", "a\nb"] {
        sandbox
            .run(["--json", "admit", "s", "--text", "Hi", "--delivery", key])
            .exits(2)
            .error("bad_delivery_key");
    }
    sandbox.run(["admit", "s", "--text", "Hi", "--delivery", "ключ:1"]).ok();
}

#[test]
fn a_missing_session_is_not_a_new_one() {
    let sandbox = Sandbox::new();
    sandbox.run(["--json", "step", "--ticket", "s:t:1", "settle"]).exits(8).error("no_session");
    sandbox.run(["--json", "step", "cancel", "--by", "ann", "--session", "s"]).exits(8).error("no_session");
    assert!(!sandbox.root().exists());
    sandbox.run(["admit", "s", "--turn", "t", "--text", "Hi"]).ok();
    sandbox.unchanged("s", || {
        sandbox.run(["--json", "step", "--ticket", "s:x:1", "settle"]).exits(8).error("no_turn");
        sandbox.run(["--json", "step", "--ticket", "s:t:9", "settle"]).exits(8).error("no_attempt");
        sandbox.run(["--json", "step", "--ticket", "s:t:9", "note", "-"]).exits(8).error("no_attempt");
        sandbox.run(["--json", "step", "--ticket", "nonsense", "settle"]).exits(2).error("bad_ticket");
        sandbox.run(["--json", "step", "settle"]).exits(2).error("no_ticket");
    });
}

#[test]
fn usage_is_one_document_too() {
    let sandbox = Sandbox::new();
    let error = sandbox.run(["--json", "admit", "s", "--nonsense"]).exits(2).error("usage");
    assert!(text(&error["message"]).contains("--nonsense"), "{error}");
    sandbox.run(["admit", "s", "--nonsense"]).exits(2).says("--nonsense");
    assert!(sandbox.run(["--version"]).ok().stdout.starts_with("turnkeep "));
    assert!(sandbox.run(["--help"]).ok().stdout.contains("recover"));
}

#[test]
fn refusals_say_what_helps() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("folder")).unwrap();
    let no_file = sandbox.run(["admit", "s", "--text", "x", "--tree", "folder"]);
    assert_ne!(no_file.code(), 0);
    assert!(!sandbox.journal_path("s").exists());
    no_file.says("folder").says_not("completes the session file");
    let data = sandbox.write("data", "no program");
    let data = data.to_str().unwrap();
    sandbox.run(["admit", "s", "--text", "x", "--", data]).exits(2).says("no file that can be executed");
    sandbox.run(["admit", "s", "--text", "x", "--", "/none/there"]).exits(2).says("there is no command");
    // A turn that waits for a person.
    std::fs::create_dir_all(sandbox.root()).unwrap();
    let policy = json!({"format": "turnkeep-policy/1", "rules": [], "limits": {"attempts": 1}}).to_string();
    let policy = sandbox.write("one.json", policy);
    sandbox.run(["admit", "p", "--text", "x", "--owner-pid", "none"]).ok();
    let recover = ["--policy", policy.to_str().unwrap(), "recover", "p"];
    sandbox.run(recover).exits(14);
    sandbox.run(["admit", "p", "--text", "y"]).exits(4).says("is parked").says("turnkeep recover p --unpark");
}
