//! Whether a state that a crash left is one that may be: `verify`, `recover`, and what was acknowledged.

use super::model::{Event, Model};
use super::states::State;
use super::{JOURNAL, ROOT};
use crate::kit::*;
use serde_json::Value;
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

/// The judge of one history. It lays each state out where the history took place.
pub struct Judge {
    sandbox: Sandbox,
    /// The watched folder.
    work: PathBuf,
    /// The journal as it stood at the end.
    whole: Vec<u8>,
    /// Whether turnkeep itself writes each step onto the session tree.
    appends: bool,
    /// Takes the turn over in each state: it knows nothing of the others.
    owner: Owner,
}

impl Judge {
    pub fn new(sandbox: Sandbox, work: PathBuf, appends: bool) -> Self {
        let whole = std::fs::read(work.join(JOURNAL)).unwrap();
        Self { sandbox, work, whole, appends, owner: Owner::start() }
    }

    /// The log of the history.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.sandbox.path("log")).unwrap()
    }

    /// What a log says that happened.
    pub fn read(&self, log: &str) -> Result<Vec<Event>, String> {
        Model::read(log, &self.work, JOURNAL, self.sandbox.dir())
    }

    /// Whether all that was acknowledged is there: the cheap half, without a process.
    pub fn kept(&self, state: &State) -> Result<(), String> {
        let acked = &self.whole[..state.acked];
        let journal = state.bytes(JOURNAL).unwrap_or_default();
        if journal.starts_with(acked) {
            return Ok(());
        }
        let lines = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
        Err(format!("{} records were acknowledged, {} are there", lines(acked), lines(journal)))
    }

    /// Whether the state is sound and recovers, and nothing is done twice.
    pub fn judge(&self, state: &State) -> Result<(), String> {
        self.kept(state)?;
        self.lay_out(state);
        let Some(before) = state.bytes(JOURNAL) else {
            return self.answers(&["recover", "s"], &[8]).map(|_| ());
        };
        // Holes in what the agent never synced are damage of its file, and of nothing else.
        let lost = state.agent_lost && !self.appends;
        if lost {
            self.answers(&["verify", "s"], &[0, 13])?;
        }
        let found: &[i32] = match state.quiet && self.appends {
            true => &[0],
            false if lost => &[0, 3, 13],
            false => &[0, 13],
        };
        self.answers(&["verify", "s", "--with-tree"], found)?;

        let pid = self.owner.pid().to_string();
        let words = ["recover", "s", "--owner-pid", &pid, "--json"];
        let first = self.answers(&words, &[0, 10, 14])?;
        self.nothing_removed(state, before)?;
        self.decided(state, &first)?;
        let done = self.sandbox.everything();
        // What the first one decided may leave nothing but what a person must do.
        let second = self.answers(&words, &[first.code(), 14])?;
        if self.sandbox.everything() != done {
            return Err(format!("the second recover wrote: {}", second.all()));
        }
        self.answers(&["verify", "s", "--with-tree"], if lost { found } else { &[0] })?;
        Ok(())
    }

    fn answers(&self, words: &[&str], codes: &[i32]) -> Result<Ran, String> {
        let root = self.work.join(ROOT);
        let policy = format!("{}/tests/crash/policy.json", env!("CARGO_MANIFEST_DIR"));
        let ran = self.sandbox.cmd(words).env("TURNKEEP_ROOT", root).env("TURNKEEP_POLICY", policy).go();
        if codes.contains(&ran.code()) { Ok(ran) } else { Err(format!("{words:?}: {}", ran.all())) }
    }

    fn lay_out(&self, state: &State) {
        std::fs::remove_dir_all(&self.work).unwrap();
        std::fs::create_dir(&self.work).unwrap();
        for (path, ino) in state.disk.reachable() {
            let path = self.work.join(path);
            let mode = match ino {
                None => {
                    std::fs::create_dir(&path).unwrap();
                    0o700
                }
                Some(ino) => {
                    std::fs::write(&path, state.disk.files.get(&ino).map_or(&[][..], Vec::as_slice)).unwrap();
                    0o600
                }
            };
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    }

    /// Journal and session file have lost nothing, and a torn tail is in quarantine.
    fn nothing_removed(&self, state: &State, before: &[u8]) -> Result<(), String> {
        let now = std::fs::read(self.work.join(JOURNAL)).unwrap();
        let end = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let (records, tail) = before.split_at(end);
        if !now.starts_with(records) {
            return Err("recover removed a record".to_owned());
        }
        let tail_kept = || {
            let items = std::fs::read_dir(self.work.join(ROOT).join("quarantine"));
            items.into_iter().flatten().any(|item| std::fs::read(item.unwrap().path()).unwrap() == tail)
        };
        if !now.starts_with(before) && !tail_kept() {
            return Err("recover threw a torn tail away".to_owned());
        }
        let tree = std::fs::read(self.work.join("chat.jsonl")).unwrap_or_default();
        if tree.starts_with(state.bytes("chat.jsonl").unwrap_or_default()) {
            Ok(())
        } else {
            Err("recover removed something from the session file".to_owned())
        }
    }

    /// Nothing that was acknowledged as begun is done once more.
    fn decided(&self, state: &State, ran: &Ran) -> Result<(), String> {
        let known = Known::of(&lines(&self.whole[..state.acked]));
        let document = ran.json();
        for decided in document["decisions"].as_array().into_iter().flatten() {
            let (call, decision) = (text(&decided["ref"]), text(&decided["decision"]));
            let allowed: &[&str] = match known.calls.get(&call).map(String::as_str) {
                None => continue,
                Some("answered") => &["redeliver"],
                Some("look") => &["redeliver", "rerun"],
                Some(_) => &["redeliver", "interrupt", "hold"],
            };
            if !allowed.contains(&decision.as_str()) {
                return Err(format!("{call} was claimed or answered, and now the decision is {decision}"));
            }
        }
        let again = document["next"]["do"] == "deliver" && known.delivery == document["turn"];
        if again { Err("a delivery that was begun is to be done again".to_owned()) } else { Ok(()) }
    }
}

/// What was acknowledged of calls and of the newest delivery.
struct Known {
    /// By ref: the tool of a call that was claimed, or `answered`.
    calls: HashMap<String, String>,
    /// The turn whose delivery was begun.
    delivery: Value,
}

impl Known {
    fn of(records: &[Value]) -> Self {
        let mut tools = HashMap::new();
        let mut known = Self { calls: HashMap::new(), delivery: Value::from("none") };
        for record in records {
            for call in record["calls"].as_array().into_iter().flatten() {
                tools.insert(text(&call["ref"]), text(&call["tool"]));
            }
            match record["kind"].as_str() {
                Some("claimed") => {
                    let call = text(&record["ref"]);
                    let tool = tools[&call].clone();
                    known.calls.insert(call, tool);
                }
                Some("result" | "interrupted" | "reconciled") => {
                    known.calls.insert(text(&record["ref"]), "answered".to_owned());
                }
                Some("delivery") => known.delivery = record["turn"].clone(),
                _ => {}
            }
        }
        known
    }
}

impl State {
    /// A file's bytes, if it is there.
    pub fn bytes(&self, path: &str) -> Option<&[u8]> {
        let reachable = self.disk.reachable();
        let (_, ino) = reachable.iter().find(|(found, _)| found == path)?;
        Some(self.disk.files.get(&(*ino)?).map_or(&[][..], Vec::as_slice))
    }
}
