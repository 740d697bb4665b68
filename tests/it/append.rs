//! A session tree that turnkeep writes itself (`--tree-mode append`), and what stands in its way.

use crate::kit::{Owner, Sandbox};
use serde_json::json;

fn admitted(sandbox: &Sandbox, owner: &Owner, tree: &str) -> String {
    sandbox.admit(owner, "s", &["--tree", tree, "--tree-mode", "append"])
}

#[test]
fn whatever_a_step_answers_a_branch_that_is_behind_is_brought_up_to_date_first() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = admitted(&sandbox, &owner, "chat.jsonl");
    sandbox.announce(&ticket, &[("c1", "mail", json!({}))]);
    sandbox.step(&ticket, ["run", "c1", "--", "true"]).ok();
    let whole = std::fs::read_to_string(sandbox.path("chat.jsonl")).unwrap();
    let cut = whole.trim_end().rsplit_once('\n').unwrap().0.to_owned() + "\n";
    for (words, code) in [
        (vec!["claim", "c1"], 10),
        (vec!["run", "c1", "--", "true"], 10),
        (vec!["result", "c1", "--not-run"], 6),
        (vec!["claim", "nobody"], 8),
    ] {
        sandbox.write("chat.jsonl", &cut);
        sandbox.step(&ticket, words.clone()).exits(code);
        assert_eq!(std::fs::read_to_string(sandbox.path("chat.jsonl")).unwrap(), whole, "{words:?}");
    }
}

#[test]
fn a_session_file_that_cannot_be_written_is_found_out_before_anything_is() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let nowhere = ["admit", "s", "--text", "x", "--tree", "no/such/chat.jsonl", "--tree-mode", "append"];
    sandbox.run(nowhere).exits(2).says("no/such");
    assert!(!sandbox.root().exists());
    sandbox.write("chats/keep", "");
    admitted(&sandbox, &owner, "chats/chat.jsonl");
    owner.die();
    std::fs::remove_dir_all(sandbox.path("chats")).unwrap();
    for _ in 0..2 {
        sandbox
            .unchanged("s", || sandbox.run(["recover", "s", "--owner-pid", "none"]).exits(1).says("chats"));
    }
    sandbox.run(["recover", "s", "--owner-pid", "none", "--dry-run"]).exits(1);
    std::fs::create_dir(sandbox.path("chats")).unwrap();
    sandbox.run(["recover", "s", "--owner-pid", "none"]).ok();
    assert_eq!(sandbox.run(["verify", "s", "--with-tree"]).code(), 0);
}

#[test]
fn a_session_file_is_no_file_of_the_state_root() {
    let sandbox = Sandbox::new();
    let inside = sandbox.root().join("sessions/chat.jsonl");
    let words = ["admit", "s", "--text", "x", "--tree", inside.to_str().unwrap(), "--owner-pid", "none"];
    sandbox.run(words).exits(2);
}

#[test]
fn a_mistyped_option_of_run_is_no_command() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    sandbox.announce(&ticket, &[("c1", "mail", json!({}))]);
    sandbox.unchanged("s", || sandbox.step(&ticket, ["run", "c1", "--bogus", "--", "true"]).exits(2));
    sandbox.step(&ticket, ["run", "c1", "--preserve-status", "--", "true"]).ok();
}
