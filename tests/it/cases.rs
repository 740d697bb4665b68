//! What public bug reports of agents, their session files and their journals were about: one test for each kind.
//!
//! A report that is about files is here with files of its own making; one that is about a scenario is played.

mod calls;
mod files;
mod surroundings;

use crate::kit::{Owner, Ran, Sandbox, assistant, entry, header, tool_result, user};
use serde_json::{Value, json};

/// A session file: header, question, call, result, answer; `a1` to `a4`.
pub fn whole() -> Vec<Value> {
    vec![
        header(),
        entry("a1", None, &user("Where are the logs?")),
        entry("a2", Some("a1"), &assistant("", &[("call_1", "bash", json!({"command": "ls"}))])),
        entry("a3", Some("a2"), &tool_result("call_1", "bash", "/var/log", false)),
        entry("a4", Some("a3"), &assistant("In /var/log.", &[])),
    ]
}

/// Lines of a session file as they are.
pub fn text(lines: &[Value]) -> String {
    crate::kit::tree(lines)
}

/// `verify ./NAME` and the names of its findings; `inspect ./NAME` judges alike, and shows what is there.
pub fn verify(sandbox: &Sandbox, name: &str, exit: i32) -> (Ran, Vec<String>) {
    let file = format!("./{name}");
    let ran = sandbox.unchanged_files(|| sandbox.run(["--json", "verify", &file])).exits(exit);
    let shown = sandbox.unchanged_files(|| sandbox.run(["inspect", &file]));
    let shown = shown.exits(if exit == 3 { 3 } else { 0 });
    assert!(shown.stdout.starts_with(&file), "{}", shown.all());
    let found = ran.json()["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| crate::kit::text(&finding["name"]))
        .collect();
    (ran, found)
}

/// A turn admitted on a session file, its only call asked for and claimed; its owner dies.
pub fn claimed_and_dead(sandbox: &Sandbox, tool: &str, args: &[&str]) -> u64 {
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", args);
    let seq = sandbox.announce(&ticket, &[("call_1", tool, json!({"path": "a"}))]);
    sandbox.step(&ticket, ["claim", "call_1"]).ok();
    owner.die();
    seq
}

/// What `recover` decided, by provider id.
pub fn decisions(document: &Value) -> Vec<(String, String)> {
    let decisions = document["decisions"].as_array().unwrap_or_else(|| panic!("no decisions: {document}"));
    decisions.iter().map(|one| (crate::kit::text(&one["id"]), crate::kit::text(&one["decision"]))).collect()
}

impl Sandbox {
    /// Demands that no file or folder of the sandbox changes.
    fn unchanged_files<T>(&self, act: impl FnOnce() -> T) -> T {
        let before = self.everything();
        let done = act();
        assert!(before == self.everything(), "a file was touched");
        done
    }

    fn recover_json(&self, owner: &Owner, args: &[&str]) -> Value {
        let pid = owner.pid().to_string();
        let mut words = vec!["--json", "recover", "s", "--owner-pid", &pid];
        words.extend(args);
        self.run(words).ok().json()
    }
}
