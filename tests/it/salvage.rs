//! `recover --salvage`: going on behind damage, with every byte kept and every doubt counted against us.

use crate::kit::{Owner, Ran, Sandbox, assistant};
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
    session.salvage(&[]).exits(3);
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
