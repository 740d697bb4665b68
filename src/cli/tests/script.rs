//! The workloads: what drivers do, command by command.

use super::world::{self, Ack, JOURNAL, POLICY, TREE, Trouble};
use crate::cli::error::Exit;
use crate::storage::{MemoryStorage, Storage};
use crate::testkit;
use std::path::{Path, PathBuf};

pub(super) const HEADER: &str =
    r#"{"type":"session","version":3,"id":"chat-1","timestamp":"2026-11-29T15:00:00.000Z","cwd":"/home/me"}"#;

/// A workload.
pub(super) struct Script {
    pub(super) name: &'static str,
    /// The disk before the first command.
    pub(super) disk: MemoryStorage,
    pub(super) commands: Vec<Act>,
    /// The ticket before the first command.
    pub(super) ticket: String,
    /// What happens before the next command that is added.
    coming: Vec<Event>,
    /// What commands read, and what they run leaves; no part of the disk that is judged.
    folder: tempfile::TempDir,
}

/// A command of a workload.
pub(super) struct Act {
    /// What others do first.
    pub(super) before: Vec<Event>,
    pub(super) words: Vec<String>,
}

/// What happens between two commands.
pub(super) enum Event {
    /// The agent writes lines to its session file. It never syncs one; those that it wrote before are durable by now.
    AgentWrites(String),
    /// Somebody writes another policy.
    Policy(&'static str),
    /// Time passes, in seconds.
    Passes(i64),
    /// The disk loses bytes of the record of this seq.
    BadSector(u64),
}

impl Event {
    pub(super) fn happen(&self, disk: &MemoryStorage, acked: &mut Vec<Ack>) {
        match self {
            Self::AgentWrites(lines) => {
                disk.write(TREE, &disk.read(TREE));
                let mut file = disk.open_append(Path::new(TREE)).expect("a session file");
                file.append(format!("{lines}\n").as_bytes()).expect("written");
            }
            Self::Policy(policy) => disk.write(POLICY, policy.as_bytes()),
            Self::Passes(seconds) => world::set_clock(world::clock() + seconds * 1_000_000),
            Self::BadSector(seq) => {
                let journal = String::from_utf8(disk.read(JOURNAL)).expect("text");
                let place = journal.find(&format!(r#"{{"seq":{seq},"#)).expect("a record");
                let mut journal = journal.into_bytes();
                journal[place + 5..place + 25].fill(b'?');
                disk.write(JOURNAL, &journal);
                acked.retain(|ack| ack.seq != *seq);
            }
        }
    }
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
            coming: Vec::new(),
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn then(&mut self, words: &[&str]) -> &mut Self {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        self.commands.push(Act { before: std::mem::take(&mut self.coming), words });
        self
    }

    fn happens(&mut self, event: Event) -> &mut Self {
        self.coming.push(event);
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

    /// The agent writes entries to its session file, and tells them.
    fn hands_in(&mut self, entries: &[String]) -> &mut Self {
        let lines = entries.join("\n");
        self.happens(Event::AgentWrites(lines.clone())).step_with(&["entry"], &lines)
    }

    fn answers(&mut self, call: &str) -> &mut Self {
        self.step_with(&["result", call], &testkit::tool_result(call, "it is done"))
    }
}

impl Script {
    /// Leaves out the commands that are not at these places.
    pub(super) fn keep(&mut self, places: &[usize]) {
        let all = std::mem::take(&mut self.commands).into_iter().enumerate();
        self.commands = all.filter(|(place, _)| places.contains(place)).map(|(_, act)| act).collect();
    }

    /// Plays the first commands and keeps the rest.
    pub(super) fn begin_at(&mut self, command: usize) {
        for Act { before, words } in self.commands.drain(..command) {
            for event in before {
                event.happen(&self.disk, &mut Vec::new());
            }
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
    script.disk.write(POLICY, policy.as_bytes());
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
    script.disk.write(POLICY, policy.as_bytes());
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
    script.disk.write(POLICY, policy.as_bytes());
    script
        .then(&["admit", "s", "--json", "--turn", "t1", "--text", "restart web", "--owner-pid", "none"])
        .says("three things", "toolUse", &["c1:deploy", "c2:read", "c3:put"])
        .runs(&["c1"])
        .runs(&["c2"])
        .runs(&["c3"])
        .runs(&["d1", "--tool", "script"]);
    script
}

/// An agent that writes its own session file and hands its entries in, and dies between the two; what it did is gone on
/// with where it stands, and a message is cut off.
pub(super) fn entries() -> Script {
    let mut script = Script::new("entries");
    script.disk.write(TREE, tree(true).as_bytes());
    script.then(&[
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
    ]);
    let asks = testkit::model("two things", "toolUse", &["c1:read", "c2:deploy"]);
    let remark = testkit::other_entry("custom", "bb000002", "bb000001", r#","customType":"remark","data":1"#);
    script
        .hands_in(&[testkit::entry("bb000001", "aa000002", &testkit::user("restart web"))])
        .hands_in(&[remark, testkit::entry("bb000003", "bb000002", &asks)])
        .step(&["claim", "c1"])
        .hands_in(&[testkit::entry("bb000004", "bb000003", &testkit::tool_result("c1", "it is done"))])
        .step(&["claim", "c2"])
        .then(&["recover", "s", "--json", "--onto", "live", "--owner-pid", "none"])
        .says("too much", "length", &["c3:deploy"])
        .says("done", "stop", &[])
        .step(&["settle"]);
    script
}

/// An owner whose lease runs out, one that is sent away by force, a result that comes too late; calls that are nested in
/// others; and a policy that others wrote meanwhile, stricter and laxer.
pub(super) fn forced() -> Script {
    let mut script = Script::new("forced");
    let policy = r#"{"format":"turnkeep-policy/1","rules":[{"tool":"put","replay":"safe"},{"tool":"read","replay":"safe"}]}"#;
    script.disk.write(POLICY, policy.as_bytes());
    let other = world::other_process().to_string();
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
            "--lease",
            "60",
            "--owner-pid",
            &other,
        ])
        .says("four things", "toolUse", &["c1:read", "c2:put", "c3:deploy", "c4:read"])
        .step(&["claim", "c1"])
        .step(&["claim", "n1", "--tool", "read", "--parent", "c1"])
        .step(&["claim", "c2"])
        .step(&["claim", "c3"])
        .happens(Event::Passes(50))
        .step(&["heartbeat"])
        .step(&["claim", "c4"])
        .step(&["claim", "n2", "--tool", "pay", "--parent", "c4"])
        .happens(Event::Policy(CHANGED_POLICY))
        .happens(Event::Passes(61))
        .then(&["recover", "s", "--json", "--owner-pid", "none"])
        .then(&["step", "--ticket", "s:t1:1", "--json", "result", "c3"])
        .step(&["claim", "c1"])
        .then(&["recover", "s", "--json", "--owner-pid", &other])
        .then(&["recover", "s", "--json", "--force", "--why", "it hangs", "--owner-pid", "none"])
        .step(&["claim", "c1"])
        .answers("c1")
        .says("done", "stop", &[])
        .step(&["settle"]);
    script
}

/// What was safe may not be run again, and what never was may; as long as the other way round.
pub(super) const CHANGED_POLICY: &str = r#"{"format":"turnkeep-policy/1","rules":[{"tool":"put","replay":"never"},{"tool":"read","replay":"safe"},{"tool":"deploy","replay":"safe"}]}"#;

/// A turn that is settled and that the session file lacks, with another behind it; that one comes to nothing until it is
/// parked, and a person looks.
pub(super) fn parked() -> Script {
    let mut script = Script::new("parked");
    script.disk.write(TREE, tree(true).as_bytes());
    let policy =
        r#"{"format":"turnkeep-policy/1","rules":[{"tool":"read","replay":"safe"}],"limits":{"attempts":2}}"#;
    script.disk.write(POLICY, policy.as_bytes());
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
        .says("done", "stop", &[])
        .step(&["settle"])
        .then(&["admit", "s", "--json", "--turn", "t2", "--text", "and mail", "--owner-pid", "none"])
        .says("two things", "toolUse", &["c1:read", "c2:mail"])
        .then(&["recover", "s", "--json", "--owner-pid", "none"])
        .step(&["deliver", "--begin"])
        .then(&["step", "--ticket", "s:t2:1", "--json", "claim", "c1"])
        .then(&["step", "deliver", "--json", "--session", "s:t1", "--receipt", "sent-1", "--by", "ann"])
        .then(&["recover", "s", "--json", "--owner-pid", "none"])
        .step(&["claim", "c1"])
        .then(&["recover", "s", "--json", "--owner-pid", "none"])
        .then(&["recover", "s", "--json", "--owner-pid", "none"])
        .then(&[
            "recover",
            "s",
            "--json",
            "--unpark",
            "--by",
            "ann",
            "--why",
            "she looked",
            "--owner-pid",
            "none",
        ])
        .step(&["claim", "c1"])
        .answers("c1")
        .step(&["claim", "c2"])
        .answers("c2");
    script
}

/// A bad sector in the middle of the journal: what it held may have been anything.
pub(super) fn salvaged() -> Script {
    let mut script = Script::new("salvaged");
    let policy = r#"{"format":"turnkeep-policy/1","rules":[{"tool":"read","replay":"safe"}]}"#;
    script.disk.write(POLICY, policy.as_bytes());
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
        .says("three things", "toolUse", &["c1:read", "c2:deploy", "c3:read"])
        .step(&["claim", "c1"])
        .answers("c1")
        .step(&["claim", "c2"])
        .step_with(&["note"], "a remark")
        .happens(Event::BadSector(CLAIM))
        .then(&["recover", "s", "--json", "--salvage", "--why", "a bad sector", "--owner-pid", "none"])
        .person(&["reconcile", "c3", "--outcome", "not_applied", "--by", "ann"])
        .then(&[
            "recover",
            "s",
            "--json",
            "--unpark",
            "--by",
            "ann",
            "--why",
            "she looked",
            "--owner-pid",
            "none",
        ])
        .step(&["claim", "c3"])
        .answers("c3")
        .says("done", "stop", &[])
        .step(&["settle"])
        .person(&["deliver", "--receipt", "sent-1", "--by", "ann"]);
    script
}

/// The record that a bad sector takes: the claim of a call that has no answer.
const CLAIM: u64 = 7;

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
