//! `recover --onto live`: what the agent's own file holds already is not copied.

use crate::kit::{Owner, Sandbox, assistant, entry, small_tree, text, tool_result, user};
use serde_json::{Value, json};

/// A turn whose agent wrote its question and answer itself; one call finished, one was running.
struct Crashed {
    sandbox: Sandbox,
}

impl Crashed {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        sandbox.policy(json!([{"tool": "read", "replay": "safe"}]));
        sandbox.write("chat.jsonl", small_tree());
        let agent = Owner::start();
        let ticket = sandbox.admit(&agent, "s", &["--tree", "chat.jsonl", "--text", "Pay it"]);
        let calls = [("c1", "read", json!({"path": "order"})), ("c2", "charge", json!({"cents": 995}))];
        let own =
            [entry("b1", Some("a2"), &user("Pay it")), entry("b2", Some("b1"), &assistant("Two.", &calls))];
        let lines: Vec<String> = own.iter().map(|entry| format!("{entry}\n")).collect();
        let file = std::fs::read_to_string(sandbox.path("chat.jsonl")).unwrap() + &lines.concat();
        sandbox.write("chat.jsonl", file);
        sandbox.step_in(&ticket, ["entry", "-"], lines.concat()).ok();
        for call in ["c1", "c2"] {
            sandbox.step(&ticket, ["claim", call]).ok();
        }
        sandbox.step_in(&ticket, ["result", "c1", "-"], "order 17").ok();
        agent.die();
        Self { sandbox }
    }

    fn tree(&self) -> Vec<Value> {
        self.sandbox.tree("chat.jsonl")
    }

    fn sound(&self) {
        let verified = self.sandbox.run(["verify", "s", "--with-tree"]);
        assert_eq!(verified.code(), 0, "{}", verified.all());
    }
}

fn ids(tree: &[Value]) -> Vec<String> {
    tree.iter().skip(1).map(|entry| text(&entry["id"])).collect()
}

#[test]
fn only_what_is_missing_is_appended() {
    let crashed = Crashed::new();
    let before = crashed.tree();
    let driver = Owner::start();
    let ticket = crashed.sandbox.recover(&driver, "s", &["--onto", "live"]);
    let tree = crashed.tree();
    assert_eq!(tree[..before.len()], before[..]);
    let added = &tree[before.len()..];
    let roles: Vec<&str> =
        added.iter().map(|entry| entry["message"]["role"].as_str().unwrap_or("-")).collect();
    assert_eq!(roles, ["toolResult", "toolResult", "-"]);
    assert_eq!(added[0]["parentId"], "b2");
    assert_eq!(
        (&added[0]["message"]["toolCallId"], &added[0]["message"]["isError"]),
        (&json!("c1"), &json!(false))
    );
    assert_eq!(
        (&added[1]["message"]["toolCallId"], &added[1]["message"]["isError"]),
        (&json!("c2"), &json!(true))
    );
    assert_eq!(added[2]["customType"], "turnkeep.branch");
    let recovered = crashed.sandbox.last("s");
    assert_eq!(recovered["branch"]["from"], "b2");
    crashed.sound();

    // Whatever comes later goes on there, and nothing is written a second time.
    crashed.sandbox.step_in(&ticket, ["message", "-"], assistant("Look it up.", &[]).to_string()).ok();
    driver.die();
    let driver = Owner::start();
    crashed.sandbox.recover(&driver, "s", &[]);
    let again = crashed.tree();
    assert_eq!(again[..tree.len()], tree[..]);
    let added = &again[tree.len()..];
    assert_eq!(added.len(), 2, "{added:?}");
    assert_eq!(added[0]["parentId"], tree.last().unwrap()["id"]);
    assert_eq!(added[0]["message"]["content"][0]["text"], "Look it up.");
    let all = ids(&again);
    assert_eq!(all.iter().collect::<std::collections::HashSet<_>>().len(), all.len(), "{all:?}");
    crashed.sound();
}

#[test]
fn a_file_with_anything_else_in_it_gets_a_branch_of_its_own() {
    let crashed = Crashed::new();
    let note = json!({"type": "custom", "customType": "x", "id": "n1", "parentId": "a2",
                      "timestamp": "2026-01-05T09:00:01.000Z"});
    let file = std::fs::read_to_string(crashed.sandbox.path("chat.jsonl")).unwrap() + &format!("{note}\n");
    crashed.sandbox.write("chat.jsonl", file);
    let before = crashed.tree().len();
    let driver = Owner::start();
    crashed.sandbox.recover(&driver, "s", &["--onto", "live"]);
    let tree = crashed.tree();
    assert_eq!(tree[before]["parentId"], "a2");
    assert_eq!(tree[before]["message"]["role"], "user");
    assert_eq!(crashed.sandbox.last("s")["branch"]["from"], "a2");
    crashed.sound();
}

#[test]
fn a_dry_run_shows_it() {
    let crashed = Crashed::new();
    let shown =
        crashed.sandbox.run(["recover", "s", "--onto", "live", "--dry-run", "--json", "--owner-pid", "none"]);
    let document = shown.ok().json();
    let entries = document["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 3);
    assert_eq!(entries[0]["parentId"], "b2");
}

/// Parallel tools finish in any order, and the agent may have died before it journaled what it wrote.
#[test]
fn results_that_stand_in_another_order_are_not_written_again() {
    for journaled in [true, false] {
        let sandbox = Sandbox::new();
        sandbox.policy(json!([{"tool": "put", "replay": "keyed"}]));
        sandbox.write("chat.jsonl", small_tree());
        let agent = Owner::start();
        let ticket = sandbox.admit(&agent, "s", &["--tree", "chat.jsonl", "--text", "Put it"]);
        let calls = ["c1", "c2", "c3", "c4"].map(|id| (id, "put", json!({})));
        let writes = |entries: &[Value], journaled: bool| {
            let lines: String = entries.iter().map(|entry| format!("{entry}\n")).collect();
            let file = std::fs::read_to_string(sandbox.path("chat.jsonl")).unwrap() + &lines;
            sandbox.write("chat.jsonl", file);
            if journaled {
                sandbox.step_in(&ticket, ["entry", "-"], lines).ok();
            }
        };
        let asked = assistant("All.", &calls);
        writes(&[entry("b1", Some("a2"), &user("Put it")), entry("b2", Some("b1"), &asked)], true);
        for id in ["c1", "c2", "c3", "c4"] {
            sandbox.step(&ticket, ["claim", id]).ok();
        }
        let told = |id: &str, at: &str, on: &str| entry(at, Some(on), &tool_result(id, "put", "done", false));
        writes(&[told("c3", "b3", "b2")], journaled);
        agent.die();
        let driver = Owner::start();
        let ticket = sandbox.recover(&driver, "s", &["--onto", "live"]);
        for id in ["c4", "c1", "c2"] {
            sandbox.step(&ticket, ["claim", id]).ok();
            sandbox.step_in(&ticket, ["result", id, "-"], "done").ok();
        }
        let seen: Vec<Value> = sandbox
            .tree("chat.jsonl")
            .into_iter()
            .skip(5)
            .map(|entry| entry["message"]["toolCallId"].clone())
            .collect();
        assert_eq!(json!(seen), json!(["c3", null, "c4", "c1", "c2"]), "journaled: {journaled}");
        assert_eq!(sandbox.run(["verify", "s", "--with-tree"]).code(), 0);
        driver.die();
        sandbox.recover(&Owner::start(), "s", &[]);
        assert_eq!(sandbox.tree("chat.jsonl").len(), 11, "a marker and nothing else");
        assert_eq!(sandbox.run(["verify", "s", "--with-tree"]).code(), 0);
    }
}
