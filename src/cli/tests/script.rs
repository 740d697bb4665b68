//! The workloads: what drivers do, command by command.

use super::world::{self, JOURNAL, ROOT, TREE, Trouble};
use crate::cli::error::Exit;
use crate::storage::MemoryStorage;
use crate::testkit;
use std::path::PathBuf;

pub(super) const HEADER: &str =
    r#"{"type":"session","version":3,"id":"chat-1","timestamp":"2026-11-29T15:00:00.000Z","cwd":"/home/me"}"#;

/// A workload.
pub(super) struct Script {
    pub(super) name: &'static str,
    /// The disk before the first command.
    pub(super) disk: MemoryStorage,
    pub(super) commands: Vec<Vec<String>>,
    /// The ticket before the first command.
    pub(super) ticket: String,
    /// What commands read, and what they run leaves; no part of the disk that is judged.
    folder: tempfile::TempDir,
}

/// How each CMD ends: not as any answer of our own would.
pub(super) const CMD_EXIT: u8 = 33;

/// Stands for the newest ticket.
pub(super) const TICKET: &str = "TICKET";

impl Script {
    fn new(name: &'static str) -> Self {
        let disk = MemoryStorage::new();
        disk.write("/home/me/notes", b"");
        Self {
            name,
            disk,
            commands: Vec::new(),
            ticket: String::new(),
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn then(&mut self, words: &[&str]) -> &mut Self {
        self.commands.push(words.iter().map(|word| (*word).to_owned()).collect());
        self
    }

    fn step(&mut self, words: &[&str]) -> &mut Self {
        self.then(&[&["step", "--ticket", TICKET], words].concat())
    }

    fn step_with(&mut self, words: &[&str], body: &str) -> &mut Self {
        let path: PathBuf = self.folder.path().join(format!("{}.json", self.commands.len()));
        std::fs::write(&path, body).expect("written");
        let path = path.to_str().expect("text").to_owned();
        self.step(&[words, &[path.as_str()]].concat())
    }

    fn says(&mut self, text: &str, stop: &str, calls: &[&str]) -> &mut Self {
        self.step_with(&["message"], &testkit::model(text, stop, calls))
    }

    /// A person's act.
    fn person(&mut self, words: &[&str]) -> &mut Self {
        self.then(&[&["step"], words, &["--session", "s"]].concat())
    }

    /// Runs what leaves a trace of its effect.
    fn runs(&mut self, words: &[&str]) -> &mut Self {
        let effect = format!(": >'{}'; exit {CMD_EXIT}", self.effect().to_str().expect("text"));
        self.step(&[&["run", "--json"], words, &["--", "sh", "-c", effect.as_str()]].concat())
    }

    /// Where a CMD of this workload leaves a trace.
    fn effect(&self) -> PathBuf {
        self.folder.path().join("effect")
    }

    /// Forgets the trace of a CMD; says whether there was one.
    pub(super) fn take_effect(&self) -> bool {
        std::fs::remove_file(self.effect()).is_ok()
    }

    fn answers(&mut self, call: &str) -> &mut Self {
        self.step_with(&["result", call], &testkit::tool_result(call, "it is done"))
    }
}

impl Script {
    /// Leaves out the commands that are not at these places.
    pub(super) fn keep(&mut self, places: &[usize]) {
        let all = std::mem::take(&mut self.commands).into_iter().enumerate();
        self.commands = all.filter(|(place, _)| places.contains(place)).map(|(_, words)| words).collect();
    }

    /// Plays the first commands and keeps the rest.
    pub(super) fn begin_at(&mut self, command: usize) {
        for words in self.commands.drain(..command) {
            let came =
                world::run(&self.disk, &world::honest, &with_ticket(&words, &self.ticket), Trouble::Nothing);
            assert!(matches!(came.exit, Some(Exit::Done | Exit::Waiting)), "{came:?}");
            self.ticket = came.ticket().unwrap_or(std::mem::take(&mut self.ticket));
        }
        self.disk = self.disk.fork();
    }
}

/// A new state root and a new session file that turnkeep writes.
pub(super) fn fresh() -> Script {
    let mut script = Script::new("fresh");
    script
        .then(&[
            "admit",
            "s",
            "--json",
            "--turn",
            "t1",
            "--delivery",
            "k1",
            "--text",
            "restart web",
            "--tree",
            TREE,
            "--tree-mode",
            "append",
            "--tree-header",
            HEADER,
            "--owner-pid",
            "none",
        ])
        .says("two things", "toolUse", &["c1:read", "c2:deploy"])
        .step(&["claim", "c1"])
        .answers("c1")
        .step(&["claim", "c2"])
        .answers("c2")
        .says("done", "stop", &[])
        .step(&["settle"])
        .step(&["deliver", "--begin"])
        .step(&["deliver", "--receipt", "sent-1"]);
    script
}

/// A session file of the agent's, and a driver that dies between claim and result.
pub(super) fn branch() -> Script {
    let mut script = Script::new("branch");
    script.disk.write(TREE, tree(true).as_bytes());
    let policy = r#"{"format":"turnkeep-policy/1","rules":[{"tool":"put","replay":"keyed"},{"tool":"read","replay":"safe"}]}"#;
    script.disk.write(format!("{ROOT}/policy.json"), policy.as_bytes());
    script
        .then(&[
            "admit",
            "s",
            "--json",
            "--turn",
            "t1",
            "--delivery",
            "k1",
            "--text",
            "restart web",
            "--tree",
            TREE,
            "--owner-pid",
            "none",
        ])
        .says("four things", "toolUse", &["c1:deploy", "c2:put", "c3:read", "c4:put"])
        .step(&["claim", "c1"])
        .step(&["claim", "c2"])
        .step(&["claim", "c4"])
        .answers("c4")
        .then(&["recover", "s", "--json", "--owner-pid", "none"])
        .step(&["claim", "c3"])
        .answers("c3")
        .step(&["claim", "c2"])
        .answers("c2")
        .says("done", "stop", &[])
        .step(&["settle"])
        .step(&["deliver", "--begin"])
        .step(&["deliver", "--receipt", "sent-1"]);
    script
}

/// A journal and a session file that both end in a torn line, as a power cut left them.
pub(super) fn torn() -> Script {
    let mut script = branch();
    script.name = "torn";
    script.begin_at(4);
    let disk = script.disk.fork();
    let mut journal = disk.read(JOURNAL);
    journal.extend_from_slice(br#"{"seq":6,"at":"2026-11-29T15:26:34.123456Z","kind":"cla"#);
    disk.write(JOURNAL, &journal);
    disk.write(TREE, tree(false).as_bytes());
    script.disk = disk;
    // What the dead driver would have done next comes behind the recover.
    let recover = script.commands.remove(2);
    script.commands.insert(0, recover);
    script
}

/// People and other machines have their say: approvals, a dispatch, a remark, what was found out, a message that joins,
/// a stop. First nobody but they can move the turn, then one call is run again.
pub(super) fn asked() -> Script {
    let mut script = Script::new("asked");
    let policy = r#"{"format":"turnkeep-policy/1","rules":[{"tool":"ship","replay":"never","approval":"required"},{"tool":"put","replay":"keyed","approval":"required"},{"tool":"charge","replay":"never","unknown":"hold"}]}"#;
    script.disk.write(format!("{ROOT}/policy.json"), policy.as_bytes());
    script
        .then(&[
            "admit",
            "s",
            "--json",
            "--turn",
            "t1",
            "--text",
            "restart web",
            "--tree",
            TREE,
            "--tree-mode",
            "append",
            "--tree-header",
            HEADER,
            "--owner-pid",
            "none",
        ])
        .says("six things", "toolUse", &["c1:ship", "c2:put", "c3:charge", "c4:far", "c5:ship", "c6:charge"])
        .step_with(&["note"], "a remark")
        .person(&["approve", "c1", "--by", "ann"])
        .step(&["claim", "c1"])
        .person(&["approve", "c2", "--by", "ann"])
        .step(&["claim", "c2"])
        .step(&["claim", "c3"])
        .step(&["dispatch", "c4", "--to", "ci"])
        .person(&["deny", "c5", "--by", "ann"])
        .answers("c1")
        .step(&["claim", "c6"])
        .person(&["steer", "--text", "and hurry"])
        .then(&["recover", "s", "--json", "--owner-pid", "none"])
        .person(&["approve", "c2", "--by", "bob"])
        .then(&["recover", "s", "--json", "--owner-pid", "none"])
        .step(&["claim", "c2"])
        .answers("c2")
        .person(&["reconcile", "c3", "--outcome", "not_applied", "--by", "bob"])
        .step(&["claim", "c3"])
        .step_with(&["reconcile", "c6", "--outcome", "applied", "--by", "bob"], "it is paid")
        .step(&["dispatch", "c4", "--to", "ci", "--receipt", "job-7"])
        .person(&["cancel", "--by", "ann"])
        .step(&["settle"]);
    script
}

/// Calls that turnkeep runs itself, the last one declared by a script. There is no session file: its entries have ids
/// of the very records, which a judge of this workload needs to be of another time.
pub(super) fn runs() -> Script {
    let mut script = Script::new("runs");
    let policy = r#"{"format":"turnkeep-policy/1","rules":[{"tool":"put","replay":"keyed"},{"tool":"read","replay":"safe"}]}"#;
    script.disk.write(format!("{ROOT}/policy.json"), policy.as_bytes());
    script
        .then(&["admit", "s", "--json", "--turn", "t1", "--text", "restart web", "--owner-pid", "none"])
        .says("three things", "toolUse", &["c1:deploy", "c2:read", "c3:put"])
        .runs(&["c1"])
        .runs(&["c2"])
        .runs(&["c3"])
        .runs(&["d1", "--tool", "script"]);
    script
}

/// The words with the ticket in its place.
pub(super) fn with_ticket(words: &[String], ticket: &str) -> Vec<String> {
    words.iter().map(|word| if word == TICKET { ticket.to_owned() } else { word.clone() }).collect()
}

fn tree(whole: bool) -> String {
    let lines = [
        HEADER.to_owned(),
        testkit::entry("aa000001", "null", &testkit::user("hello")),
        testkit::entry("aa000002", "aa000001", &testkit::model("hello you", "stop", &[])),
    ];
    let tail = if whole { "" } else { r#"{"type":"message","id":"aa0"# };
    lines.join("\n") + "\n" + tail
}
