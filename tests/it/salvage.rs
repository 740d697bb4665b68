//! `recover --salvage`: going on behind damage, with every byte kept and every doubt counted against us.

use crate::kit::{Owner, Ran, Sandbox, assistant, entry, small_tree, text};
use serde_json::json;

struct Session {
    sandbox: Sandbox,
    ticket: String,
}

impl Session {
    /// A turn with a claimed safe call, an unclaimed one and a few notes behind them.
    fn new() -> Self {
        let sandbox = Sandbox::new();
        sandbox.policy(json!([{"tool": "read", "replay": "safe"}]));
        let nobody = ["admit", "s", "--delivery", "d1", "--text", "Pay it", "--owner-pid", "none"];
        let ticket = sandbox.run(nobody).ok().line();
        sandbox.announce(&ticket, &[("c1", "read", json!({})), ("c2", "mail", json!({}))]);
        sandbox.step(&ticket, ["claim", "c1"]).ok();
        for note in ["one", "two", "three"] {
            sandbox.step_in(&ticket, ["note", "-"], note).ok();
        }
        Self { sandbox, ticket }
    }

    fn lines(&self) -> Vec<Vec<u8>> {
        self.sandbox.journal_bytes("s").split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
    }

    fn put(&self, lines: &[Vec<u8>]) {
        std::fs::write(self.sandbox.journal_path("s"), lines.concat()).unwrap();
    }

    fn salvage(&self, more: &[&str]) -> Ran {
        let words = ["recover", "s", "--owner-pid", "none", "--salvage", "--why", "the disk"];
        self.sandbox.run(words.iter().chain(more))
    }

    /// Nothing is lost, and what cannot be known is counted against us.
    fn judge(&self, damaged: &[u8], refused: bool) {
        if refused {
            self.sandbox.step_in(&self.ticket, ["note", "-"], "x").exits(3).says("--salvage");
            self.sandbox.run(["recover", "s", "--owner-pid", "none"]).exits(3);
        }
        assert_eq!(self.sandbox.journal_bytes("s"), damaged, "refusing writes nothing");
        self.salvage(&[]).exits(14).says("--unpark");
        assert!(self.sandbox.journal_bytes("s").starts_with(damaged), "salvage removes nothing");
        assert_eq!(self.sandbox.run(["verify", "s"]).code(), 0);
        assert_eq!(self.sandbox.run(["verify", "s", "--strict"]).code(), 3);
        let status = self.sandbox.run(["inspect", "s", "--json"]).ok().json();
        assert_eq!((&status["state"], &status["next"]["do"]), (&json!("parked"), &json!("unpark")));
        // Safe or not: neither may be run again before somebody looked.
        let told: Vec<_> =
            status["calls"].as_array().unwrap().iter().map(|call| call["state"].clone()).collect();
        assert_eq!(told, [json!("claimed"), json!("claimed")]);
        let go = ["recover", "s", "--unpark", "--by", "ada", "--why", "looked", "--owner-pid", "none"];
        let ticket = self.sandbox.run(go).ok().line();
        let settled = self.sandbox.run(["inspect", "s", "--json"]).ok().json();
        let told: Vec<_> =
            settled["calls"].as_array().unwrap().iter().map(|call| call["state"].clone()).collect();
        assert_eq!(told, [json!("interrupted"), json!("interrupted")]);
        self.sandbox.step_in(&ticket, ["message", "-"], assistant("Done.", &[]).to_string()).ok();
        self.sandbox.step(&ticket, ["settle"]).ok();
        assert_eq!(self.sandbox.run(["verify", "s"]).code(), 0);
        // What the model said is not sent by itself: a delivery may have been begun in what was lost.
        self.sandbox.step(&ticket, ["deliver", "--begin"]).exits(7);
        let sent = ["step", "deliver", "--session", "s", "--receipt", "post 1", "--by", "ada"];
        self.sandbox.run(sent).ok();
        assert_eq!(self.sandbox.run(["verify", "s"]).code(), 0);
    }
}

#[test]
fn a_damaged_line_in_the_middle() {
    let session = Session::new();
    let mut lines = session.lines();
    lines[5][40] ^= 1;
    session.put(&lines);
    session.judge(&lines.concat(), true);
}

#[test]
fn damaged_lines_at_the_end() {
    let session = Session::new();
    let mut lines = session.lines();
    let last = lines.len() - 1;
    lines[last][40] ^= 1;
    lines[last - 1][40] ^= 1;
    session.put(&lines);
    session.judge(&lines.concat(), true);
    let journal = String::from_utf8_lossy(&session.sandbox.journal_bytes("s")).into_owned();
    let repaired = journal.lines().find(|line| line.contains(r#""kind":"repaired""#)).unwrap();
    // Two numbers are left to the two lines that are lost.
    assert!(repaired.starts_with(&format!(r#"{{"seq":{},"#, last + 1)), "{repaired}");
}

#[test]
fn a_line_that_is_gone() {
    let session = Session::new();
    let mut lines = session.lines();
    lines.remove(5);
    session.put(&lines);
    session.judge(&lines.concat(), true);
}

#[test]
fn a_last_record_whose_newline_became_something_else() {
    let session = Session::new();
    let mut bytes = session.sandbox.journal_bytes("s");
    *bytes.last_mut().unwrap() = b'\x0b';
    std::fs::write(session.sandbox.journal_path("s"), &bytes).unwrap();
    session.judge(&bytes, true);
}

#[test]
fn attempts_go_on_behind_those_that_may_be_lost() {
    let session = Session::new();
    let mut lines = session.lines();
    lines[5][40] ^= 1;
    session.put(&lines);
    session.salvage(&["--unpark", "--by", "ada"]).ok();
    let attempt = session.sandbox.journal_bytes("s");
    let attempt = String::from_utf8_lossy(&attempt).into_owned();
    let newest = attempt.lines().rfind(|line| line.contains(r#""kind":"attempt""#)).unwrap().to_owned();
    assert!(newest.contains(r#""attempt":3"#), "{newest}");
    session.sandbox.step_in(&session.ticket, ["result", "c1", "-"], "late").exits(5);
}

#[test]
fn a_dry_run_shows_it_and_writes_nothing() {
    let session = Session::new();
    let mut lines = session.lines();
    lines[5][40] ^= 1;
    session.put(&lines);
    let before = session.sandbox.everything();
    let shown = session.salvage(&["--dry-run", "--json"]).exits(14).json();
    assert_eq!(shown["records"][0]["kind"], "repaired");
    assert_eq!(session.sandbox.everything(), before);
}

#[test]
fn acknowledged_damage_that_changes_again_is_damage() {
    let session = Session::new();
    let mut lines = session.lines();
    lines[5][40] ^= 1;
    session.put(&lines);
    session.salvage(&[]).exits(14);
    let mut bytes = session.sandbox.journal_bytes("s");
    let at = lines[..5].concat().len() + 41;
    bytes[at] ^= 1;
    std::fs::write(session.sandbox.journal_path("s"), &bytes).unwrap();
    assert_eq!(session.sandbox.run(["verify", "s"]).code(), 3);
    session.sandbox.run(["recover", "s", "--owner-pid", "none"]).exits(3);
}

#[test]
fn a_sound_journal_needs_none() {
    let session = Session::new();
    let owner = Owner::start();
    let ticket = session.sandbox.recover(&owner, "s", &["--salvage", "--why", "x"]);
    assert!(ticket.ends_with(":2"), "{ticket}");
    assert!(!session.sandbox.kinds("s").contains(&"repaired".to_owned()));
}

#[test]
fn a_damaged_genesis_cannot_be_salvaged() {
    let session = Session::new();
    let mut lines = session.lines();
    lines[0][40] ^= 1;
    session.put(&lines);
    // Nobody is sent in circles.
    for ran in
        [session.salvage(&[]), session.sandbox.run(["inspect", "s"]), session.sandbox.run(["verify", "s"])]
    {
        let all = ran.exits(3).all();
        assert!(!all.contains("--salvage --why") && all.contains("bring back a copy"), "{all}");
    }
    assert_eq!(session.sandbox.journal_bytes("s"), lines.concat());
}

#[test]
fn a_turn_whose_admission_is_lost_is_not_forgotten() {
    for gone in [false, true] {
        let session = Session::new();
        let mut lines = session.lines();
        if gone {
            lines.remove(1);
        } else {
            lines[1][60] ^= 1;
        }
        session.put(&lines);
        session.salvage(&[]).exits(14).says("--unpark");
        assert_eq!(session.sandbox.run(["verify", "s"]).code(), 0, "gone {gone}");
        let status = session.sandbox.run(["inspect", "s", "--json"]).ok().json();
        assert_eq!(
            (&status["state"], &status["next"]["do"]),
            (&json!("parked"), &json!("unpark")),
            "gone {gone}"
        );
        // Its key may have been anything, so nothing new begins before a person ended it.
        let again = ["admit", "s", "--delivery", "d1", "--text", "Pay it", "--owner-pid", "none"];
        session.sandbox.run(again).exits(4);
        let go = ["recover", "s", "--unpark", "--by", "ada", "--why", "looked", "--owner-pid", "none"];
        let ticket = session.sandbox.run(go).ok().line();
        session.sandbox.step(&ticket, ["settle", "--status", "failed"]).ok();
        assert_eq!(session.sandbox.run(["verify", "s"]).code(), 0, "gone {gone}");
    }
}

#[test]
fn a_branch_whose_record_is_lost_is_gone_on_with() {
    let sandbox = Sandbox::new();
    sandbox.write("chat.jsonl", crate::kit::small_tree());
    let nobody = ["admit", "s", "--text", "Pay it", "--tree", "chat.jsonl", "--owner-pid", "none"];
    let ticket = sandbox.run(nobody).ok().line();
    sandbox.announce(&ticket, &[("c1", "mail", json!({}))]);
    sandbox.step(&ticket, ["claim", "c1"]).ok();
    sandbox.run(["recover", "s", "--owner-pid", "none"]).ok();
    let text = String::from_utf8(sandbox.journal_bytes("s")).unwrap();
    std::fs::write(
        sandbox.journal_path("s"),
        text.replace("The outcome is unknown", "The outcome is unknowN"),
    )
    .unwrap();
    sandbox.run(["recover", "s", "--owner-pid", "none", "--salvage", "--why", "x"]).exits(14);
    let go = ["recover", "s", "--unpark", "--by", "ada", "--why", "looked", "--owner-pid", "none"];
    sandbox.run(go).ok();
    assert_eq!(sandbox.run(["verify", "s"]).code(), 0);
}

/// A closed turn, one whose delivery is begun, and an open one in which much has happened; nothing may run again.
fn eventful() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([
        {"tool": "read", "replay": "safe"},
        {"tool": "pay", "replay": "never", "unknown": "hold"},
        {"tool": "deploy", "replay": "never", "approval": "required"},
    ]));
    let admit = |turn: &str, more: &[&str]| {
        let words = ["admit", "s", "--turn", turn, "--text", turn, "--owner-pid", "none"];
        sandbox.run(words.iter().chain(more)).ok().line()
    };
    for (turn, key) in [("t0", "k0"), ("t1", "k1")] {
        let ticket = admit(turn, &["--delivery", key]);
        sandbox.step_in(&ticket, ["message", "-"], assistant("Yes.", &[]).to_string()).ok();
        sandbox.step(&ticket, ["settle"]).ok();
        sandbox.step(&ticket, ["deliver", "--begin"]).ok();
        if turn == "t0" {
            sandbox.step(&ticket, ["deliver", "--receipt", "r"]).ok();
        }
    }
    admit("t2", &["--delivery", "k2"]);
    let ticket = sandbox.run(["recover", "s:t2", "--owner-pid", "none", "--force", "--why", "w"]).ok().line();
    let calls = [("c1", "read"), ("c2", "send"), ("c3", "pay"), ("c4", "deploy"), ("c5", "send")];
    let calls = calls.map(|(id, tool)| (id, tool, json!({})));
    sandbox.announce(&ticket, &calls);
    for call in ["c1", "c2", "c3"] {
        sandbox.step(&ticket, ["claim", call]).ok();
    }
    sandbox.step_in(&ticket, ["result", "c1", "-"], "read").ok();
    sandbox.step_in(&ticket, ["result", "c2", "-"], "sent").ok();
    sandbox.run(["step", "approve", "c4", "--by", "ada", "--session", "s"]).ok();
    sandbox.step(&ticket, ["dispatch", "c4", "--to", "farm"]).ok();
    sandbox.run(["step", "steer", "--text", "also", "--session", "s"]).ok();
    sandbox.step(&ticket, ["claim", "c5"]).ok();
    sandbox
}

/// Does what `next` says about each turn that is not closed, as driver and as person, until all are.
fn follow_to_the_end(sandbox: &Sandbox) {
    for _ in 0..60 {
        let status = sandbox.run(["inspect", "s", "--json"]).ok().json();
        let (turn, refs) = (text(&status["turn"]), status["next"]["refs"].as_array().unwrap().clone());
        let named = format!("s:{turn}");
        let ticket = format!("{named}:{}", status["attempt"]);
        let each = |act: &dyn Fn(&str)| refs.iter().for_each(|call| act(call.as_str().unwrap()));
        let person = ["--by", "ada", "--session", &named];
        let word = text(&status["next"]["do"]);
        match word.as_str() {
            "done" => return,
            "unpark" => {
                let words =
                    ["recover", &named, "--unpark", "--by", "ada", "--why", "w", "--owner-pid", "none"];
                let code = sandbox.run(words).code();
                assert!([0, 14].contains(&code), "{code}");
            }
            "recover" => {
                sandbox.run(["recover", &named, "--owner-pid", "none"]).ok();
            }
            "reconcile" => each(&|call| {
                let words = ["step", "reconcile", call, "--outcome", "unknown"];
                sandbox.run(words.iter().chain(&person)).ok();
            }),
            "ask" => each(&|call| {
                sandbox.run(["step", "deny", call].iter().chain(&person)).ok();
            }),
            "await" => each(&|call| {
                sandbox.step_in(&ticket, ["result", call, "-"], "came").ok();
            }),
            "run_calls" => each(&|call| panic!("call {call} may have run: {status}")),
            "call_model" => {
                sandbox.step_in(&ticket, ["message", "-"], assistant("Done.", &[]).to_string()).ok();
            }
            "settle" => {
                sandbox.step(&ticket, ["settle"]).ok();
            }
            "deliver" => {
                sandbox.step(&ticket, ["deliver", "--", "true"]).ok();
            }
            "reconcile_delivery" => {
                let words = ["step", "deliver", "--waive", "--why", "w"];
                sandbox.run(words.iter().chain(&person)).ok();
            }
            other => panic!("{other}: {status}"),
        }
    }
    panic!("next leads nowhere: {}", sandbox.run(["inspect", "s"]).stdout);
}

/// Whichever lines are lost: the others count, nothing runs twice, old tickets are fenced, and each turn can be closed.
#[test]
fn every_line_may_be_lost_and_every_two_in_a_row() {
    let sandbox = eventful();
    let whole = sandbox.journal_bytes("s");
    let lines: Vec<Vec<u8>> = whole.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    // Two in a row take as long again.
    let longest = if std::env::var_os("TURNKEEP_SLOW").is_some() { 2 } else { 1 };
    for (first, count) in (1..lines.len()).flat_map(|first| (1..=longest).map(move |count| (first, count))) {
        let mut damaged = lines.clone();
        damaged.iter_mut().skip(first).take(count).for_each(|line| line[40] ^= 1);
        std::fs::write(sandbox.journal_path("s"), damaged.concat()).unwrap();
        let words = ["recover", "s", "--owner-pid", "none", "--salvage", "--why", "the disk"];
        let code = sandbox.run(words).code();
        assert!([0, 10, 14].contains(&code), "line {first}: {code}");
        let verdict = sandbox.run(["verify", "s"]).ok();
        let lost = verdict.stdout.lines().filter(|line| line.starts_with("TK050"));
        assert_eq!(lost.count(), count.min(lines.len() - first), "line {first}: {}", verdict.stdout);
        let kept = sandbox.journal_bytes("s");
        let status = sandbox.run(["inspect", "s", "--turn", "t2", "--json"]).all();
        if status.contains(r#""state":"parked""#) {
            for ticket in ["s:t2:1", "s:t2:2"] {
                let ran = sandbox.step(ticket, ["heartbeat"]);
                assert!([5, 6, 14].contains(&ran.code()), "line {first}: {ticket}: {}", ran.all());
            }
        }
        assert!(sandbox.journal_bytes("s") == kept, "line {first}");
        follow_to_the_end(&sandbox);
        sandbox.run(["verify", "s"]).ok();
        for key in ["k0", "k1", "k2"] {
            let found = sandbox.run(["inspect", "--delivery", key]).code();
            assert!(found == 0 || found == 8, "line {first}: {key}");
        }
    }
}

/// The first `attempt` of a turn is lost: what was done under it stands, and its ticket is nobody's any more.
#[test]
fn a_lost_first_attempt_takes_nothing_with_it() {
    let sandbox = Sandbox::new();
    let old = sandbox.run(["admit", "s", "--text", "hi", "--owner-pid", "none"]).ok().line();
    sandbox.announce(&old, &[("a", "send", json!({}))]);
    sandbox.step(&old, ["run", "a", "--", "sh", "-c", "cat; echo sent >>effects"]).ok();
    let mut bytes = sandbox.journal_bytes("s");
    let at = bytes.windows(7).position(|word| word == b"attempt").unwrap();
    bytes[at] ^= 1;
    std::fs::write(sandbox.journal_path("s"), &bytes).unwrap();
    sandbox.run(["recover", "s", "--salvage", "--why", "disk", "--owner-pid", "none"]).exits(14);
    let words = ["recover", "s", "--unpark", "--by", "me", "--why", "looked", "--owner-pid", "none"];
    let new = sandbox.run(words).ok().line();
    assert_ne!(old, new);
    assert_eq!(sandbox.run(["inspect", "s", "--json"]).ok().json()["calls"][0]["state"], "result");
    sandbox.step(&new, ["run", "a", "--", "sh", "-c", "echo sent >>effects"]).exits(10);
    for words in [&["run", "a", "--", "sh", "-c", "echo sent >>effects"][..], &["settle"]] {
        let code = sandbox.step(&old, words).code();
        assert!([5, 10].contains(&code), "{words:?}: {code}");
    }
    assert_eq!(std::fs::read_to_string(sandbox.path("effects")).unwrap(), "sent\n");
}

/// What came of a call is known although its message is lost, and an operator sees that it was.
#[test]
fn a_call_whose_message_is_lost_is_shown() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "s", "--text", "hi", "--owner-pid", "none"]).ok().line();
    sandbox.announce(&ticket, &[("a", "send", json!({})), ("b", "send", json!({}))]);
    sandbox.step(&ticket, ["claim", "b"]).ok();
    let key = text(&sandbox.last("s")["key"]);
    let mut bytes = sandbox.journal_bytes("s");
    let at = bytes.windows(9).position(|word| word == b"\"message\"").unwrap();
    bytes[at + 1] ^= 1;
    std::fs::write(sandbox.journal_path("s"), &bytes).unwrap();
    sandbox.run(["recover", "s", "--salvage", "--why", "disk", "--owner-pid", "none"]).exits(14);
    let words = ["recover", "s", "--unpark", "--by", "me", "--why", "looked", "--owner-pid", "none"];
    sandbox.run(words).exits(14);
    let status = sandbox.run(["inspect", "s", "--json"]).ok().json();
    let calls = status["calls"].as_array().unwrap();
    assert_eq!((&calls[1]["key"], &calls[1]["state"]), (&json!(key), &json!("claimed")));
    assert_eq!(status["next"]["do"], "reconcile");
    let refs = status["next"]["refs"].as_array().unwrap();
    assert_eq!(refs.len(), 2, "either may have run");
    for call in refs {
        let call = call.as_str().unwrap();
        let words = ["step", "reconcile", call, "--outcome", "not_applied", "--by", "me", "--session", "s"];
        sandbox.run(words).ok();
    }
    // What it asked for is lost, so it is not run now either.
    assert_eq!(sandbox.run(["inspect", "s", "--next"]).ok().stdout, "recover\n");
    sandbox.run(["recover", "s", "--owner-pid", "none", "--force", "--why", "w"]).ok();
    assert_eq!(sandbox.run(["inspect", "s", "--next"]).ok().stdout, "call_model\n");
}

/// The session file still has a message whose record is lost: its calls may have been claimed in what is lost, too.
#[test]
fn a_message_found_again_in_the_session_file_does_not_make_its_calls_new() {
    for (mode, lost) in [("append", &[3, 4][..]), ("append", &[3]), ("branch", &[3, 4]), ("branch", &[3])] {
        let sandbox = Sandbox::new();
        sandbox.write("chat.jsonl", small_tree());
        let tree = ["--tree", "chat.jsonl", "--tree-mode", mode];
        let admit = ["admit", "s", "--text", "hi", "--owner-pid", "none"];
        let ticket = sandbox.run(admit.iter().chain(&tree)).ok().line();
        let said = assistant("Sending.", &[("a", "send", json!({}))]);
        if mode == "append" {
            sandbox.step_in(&ticket, ["message", "-"], said.to_string()).ok();
        } else {
            let line = entry("m1", Some("a2"), &said).to_string() + "\n";
            let old = std::fs::read_to_string(sandbox.path("chat.jsonl")).unwrap();
            sandbox.write("chat.jsonl", old + &line);
            sandbox.step_in(&ticket, ["entry", "-"], line).ok();
        }
        sandbox.step(&ticket, ["run", "a", "--", "sh", "-c", "cat; echo sent >>effects"]).ok();
        let bytes = sandbox.journal_bytes("s");
        let mut lines: Vec<Vec<u8>> =
            bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        lost.iter().for_each(|line| lines[*line][20] ^= 1);
        std::fs::write(sandbox.journal_path("s"), lines.concat()).unwrap();
        sandbox.run(["recover", "s", "--salvage", "--why", "disk", "--owner-pid", "none"]).exits(14);
        follow_to_the_end(&sandbox);
        assert_eq!(std::fs::read_to_string(sandbox.path("effects")).unwrap(), "sent\n", "{mode} {lost:?}");
        sandbox.run(["verify", "s", "--with-tree"]).ok();
    }
}

/// Damage that grew is acknowledged anew, as a whole.
#[test]
fn damage_that_grew_is_acknowledged_anew() {
    let session = Session::new();
    let mut lines = session.lines();
    lines[5][40] ^= 1;
    session.put(&lines);
    session.salvage(&[]).exits(14);
    let mut lines = session.lines();
    for line in &mut lines[5..7] {
        let size = line.len();
        line[..size - 1].fill(0);
    }
    session.put(&lines);
    session.sandbox.run(["verify", "s"]).exits(3);
    session.salvage(&[]).exits(14);
    session.sandbox.run(["verify", "s"]).ok();
    session.sandbox.run(["verify", "s", "--strict"]).exits(3);
    follow_to_the_end(&session.sandbox);
}

/// Whoever was taken over in a record that is lost does not come back.
#[test]
fn a_takeover_that_is_lost_fences_all_the_same() {
    let sandbox = Sandbox::new();
    let first = sandbox.run(["admit", "s", "--text", "hi", "--owner-pid", "none"]).ok().line();
    let take = ["recover", "s", "--owner-pid", "none", "--force", "--why", "w"];
    let second = sandbox.run(take).ok().line();
    sandbox.step(&second, ["claim", "c", "--tool", "pay", "--args", "{}"]).ok();
    sandbox.step_in(&second, ["note", "-"], "x").ok();
    let bytes = sandbox.journal_bytes("s");
    let mut lines: Vec<Vec<u8>> = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    // Its attempt, its decisions, its claim, and the note by which it would be known.
    (3..lines.len()).for_each(|line| lines[line][20] ^= 1);
    std::fs::write(sandbox.journal_path("s"), lines.concat()).unwrap();
    sandbox.run(["recover", "s", "--salvage", "--why", "disk", "--owner-pid", "none"]).exits(14);
    let (said, who) = (assistant("x", &[]).to_string(), ["--by", "me", "--why", "w", "--owner-pid", "none"]);
    let unparked = sandbox.run(["recover", "s", "--unpark"].iter().chain(&who));
    assert!([0, 14].contains(&unparked.code()), "{}", unparked.all());
    for ticket in [&first, &second] {
        let ran = sandbox.step_in(ticket, ["message", "-"], &*said);
        assert_eq!(ran.code(), 5, "{ticket}: {}", ran.all());
    }
    follow_to_the_end(&sandbox);
}

/// Nothing tells any more that the turn had no delivery key; once that is acknowledged, it is closed.
#[test]
fn a_closed_turn_whose_admission_is_lost_is_gone_on_behind() {
    for later in [false, true] {
        let sandbox = Sandbox::new();
        let admit = ["admit", "s", "--text", "hi", "--owner-pid", "none"];
        let ticket = sandbox.run(admit).ok().line();
        sandbox.step_in(&ticket, ["message", "-"], assistant("Done.", &[]).to_string()).ok();
        sandbox.step(&ticket, ["settle"]).ok();
        if later {
            sandbox.run(["admit", "s", "--turn", "t2", "--text", "more", "--owner-pid", "none"]).ok();
        }
        let mut bytes = sandbox.journal_bytes("s");
        let at = bytes.windows(8).position(|word| word == b"admitted").unwrap();
        bytes[at] ^= 1;
        std::fs::write(sandbox.journal_path("s"), &bytes).unwrap();
        let words = ["recover", "s", "--salvage", "--why", "disk", "--owner-pid", "none"];
        sandbox.run(words).exits(if later { 0 } else { 10 });
        sandbox.run(["verify", "s"]).ok();
        follow_to_the_end(&sandbox);
    }
}

/// The turn that is named, or of a ticket that a shell still has, may be another one than the damage is in.
#[test]
fn salvage_does_not_depend_on_the_turn_that_is_named() {
    let ended = |named: &str, ticket: &str| {
        let sandbox = Sandbox::new();
        let owner = Owner::start();
        let first = sandbox.admit(&owner, "s", &["--turn", "t1"]);
        sandbox.step(&first, ["settle", "--status", "failed"]).ok();
        sandbox.admit(&owner, "s", &["--turn", "t2", "--text", "Damaged"]);
        owner.die();
        let journal = String::from_utf8(sandbox.journal_bytes("s")).unwrap();
        std::fs::write(sandbox.journal_path("s"), journal.replace("Damaged", "damaged")).unwrap();
        let words = ["recover", named, "--salvage", "--why", "seen", "--owner-pid", "none"];
        let code = sandbox.cmd(words).env("TURNKEEP_TICKET", ticket).go().code();
        (code, sandbox.kinds("s").contains(&"repaired".to_owned()))
    };
    assert_eq!(ended("s", ""), (14, true), "the turn that lost records waits for a person");
    assert_eq!(ended("s:t1", ""), (10, true));
    assert_eq!(ended("s", "s:t1:1"), (10, true));
    assert_eq!(ended("s:t9", ""), (8, false), "there is no such turn");
}
