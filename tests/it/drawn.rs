//! `inspect --draw-tree` of files that are whole, and of files that are not.

use crate::kit::{Owner, Sandbox, assistant, entry, header, small_tree, tree, user};
use serde_json::json;

#[test]
fn a_damaged_session_file_is_drawn_as_far_as_it_can_be_read() {
    let whole = small_tree();
    let looped = tree(&[
        header(),
        entry("a1", Some("a2"), &user("What changed today?")),
        entry("a2", Some("a1"), &assistant("Nothing.", &[])),
    ]);
    for (name, file, code, said) in [
        ("whole", whole.clone(), 0, "a2"),
        ("no entry", format!("{whole}123\n"), 3, "line 4"),
        ("a loop", looped, 3, "loop"),
        ("no header", whole.split_once('\n').unwrap().1.to_owned(), 3, "header"),
    ] {
        let sandbox = Sandbox::new();
        let owner = Owner::start();
        sandbox.write("chat.jsonl", &whole);
        sandbox.admit(&owner, "s", &["--tree", "chat.jsonl"]);
        sandbox.write("chat.jsonl", &file);
        let before = sandbox.everything();
        let drawn = sandbox.run(["inspect", "s", "--draw-tree"]).exits(code);
        assert!(drawn.stdout.contains(said), "{name}: {}", drawn.stdout);
        let document = sandbox.run(["inspect", "s", "--draw-tree", "--json"]).exits(code).json();
        assert_eq!(document["findings"] == json!([]), code == 0, "{name}: {document}");
        assert_eq!(sandbox.everything(), before, "{name}");
    }
}
