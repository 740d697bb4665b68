//! Files that are larger than the memory that a command may have: it works with a part of them at a time, or ends with
//! 1 and says so. It never ends with an abort, and changes nothing that it could not look at.

use crate::kit::{BIN, Ran, Sandbox};
use std::io::Write as _;
use std::path::Path;

const MIB: u64 = 1 << 20;
/// What a command may have.
const LIMIT: u64 = 64 * MIB;
/// Longer than that; NULs of which the disk knows nothing, where it can.
const LONG: u64 = 80 * MIB;

/// Runs a command with so many bytes of memory.
fn within(sandbox: &Sandbox, limit: u64, words: &[&str]) -> Ran {
    let limit = format!("--as={limit}");
    sandbox.program("prlimit", [&[limit.as_str(), BIN], words].concat()).go()
}

fn can_limit(sandbox: &Sandbox) -> bool {
    let can = sandbox.has("prlimit");
    if !can {
        eprintln!("skipped: there is no prlimit(1) here");
    }
    can
}

/// A session with an open turn that was admitted on a small session file.
fn admitted() -> (Sandbox, String) {
    let sandbox = Sandbox::new();
    sandbox.write("chat.jsonl", crate::kit::small_tree());
    let words = ["admit", "s", "--text", "Hi", "--owner-pid", "none", "--tree", "chat.jsonl"];
    let ticket = sandbox.run(words).ok().line();
    (sandbox, ticket)
}

fn append(path: &Path, bytes: &[u8]) {
    std::fs::OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

/// Makes a file longer by NULs.
fn extend(path: &Path, to: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(to).unwrap();
}

/// Names and sizes of all files: enough to tell that nothing was written.
fn sizes(sandbox: &Sandbox) -> Vec<(std::path::PathBuf, u64)> {
    let mut folders = vec![sandbox.dir().to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for item in std::fs::read_dir(folder).unwrap() {
            let path = item.unwrap().path();
            let meta = std::fs::symlink_metadata(&path).unwrap();
            if meta.is_dir() {
                folders.push(path.clone());
            }
            found.push((path, if meta.is_dir() { 0 } else { meta.len() }));
        }
    }
    found.sort();
    found
}

/// Demands that each command ends with 1, names the lack of memory, and changes nothing.
fn all_could_not_look(sandbox: &Sandbox, what: &str, commands: &[&[&str]]) {
    let before = sizes(sandbox);
    for words in commands {
        let ran = within(sandbox, LIMIT, words);
        let all = ran.all();
        assert_eq!(ran.code(), 1, "{what} {words:?}: {all}");
        assert!(all.contains("bytes of memory") && all.contains("hint: "), "{what} {words:?}: {all}");
        assert_eq!(before, sizes(sandbox), "{what} {words:?}: something was written");
    }
}

#[test]
fn a_tail_of_nuls_is_torn_however_long_it_is() {
    for begun in ["", r#"{"seq":3,"at":"2026"#] {
        let (sandbox, ticket) = admitted();
        if !can_limit(&sandbox) {
            return;
        }
        let journal = sandbox.journal_path("s");
        let whole = sandbox.journal_bytes("s");
        append(&journal, begun.as_bytes());
        extend(&journal, LONG);
        within(&sandbox, LIMIT, &["verify", "s"]).exits(13);
        within(&sandbox, LIMIT, &["verify", "s", "--with-tree"]).exits(13);
        within(&sandbox, LIMIT, &["inspect", "s"]).ok();
        let plan = within(&sandbox, LIMIT, &["recover", "s", "--dry-run", "--owner-pid", "none"]).ok();
        let bytes = LONG - whole.len() as u64;
        assert!(plan.stdout.contains(&format!("\"bytes\":{bytes}")), "{}", plan.all());
        within(&sandbox, LIMIT, &["step", "--ticket", &ticket, "heartbeat"]).ok();
        // Every byte is kept, and the record tells its digest.
        assert!(sandbox.journal_bytes("s").starts_with(&whole));
        sandbox.run(["verify", "s"]).ok();
        let kept = sandbox.root().join("quarantine");
        let kept = std::fs::read_dir(kept).unwrap().next().unwrap().unwrap();
        assert_eq!(kept.metadata().unwrap().len(), bytes);
    }
}

#[test]
fn a_whole_record_before_a_long_run_of_nuls_counts() {
    let (sandbox, ticket) = admitted();
    if !can_limit(&sandbox) {
        return;
    }
    sandbox.step(&ticket, ["note", "chat.jsonl"]).ok();
    let whole = sandbox.journal_bytes("s");
    let journal = sandbox.journal_path("s");
    extend(&journal, whole.len() as u64 - 1);
    extend(&journal, LONG);
    let verdict = within(&sandbox, LIMIT, &["verify", "s"]).exits(13);
    assert!(verdict.stdout.contains("is whole and counts"), "{}", verdict.all());
    within(&sandbox, LIMIT, &["recover", "s", "--owner-pid", "none"]).ok();
    assert!(sandbox.journal_bytes("s").starts_with(&whole));
    sandbox.run(["verify", "s"]).ok();
}

#[test]
fn a_line_that_does_not_fit_is_an_error_and_no_abort() {
    for what in ["NULs within", "a line of garbage", "an unended line of garbage"] {
        let (sandbox, ticket) = admitted();
        if !can_limit(&sandbox) {
            return;
        }
        let journal = sandbox.journal_path("s");
        if what == "NULs within" {
            extend(&journal, LONG);
        } else {
            append(&journal, &vec![b'x'; usize::try_from(LONG).unwrap()]);
        }
        if !what.starts_with("an ") {
            append(&journal, b"\n");
        }
        let commands: [&[&str]; 7] = [
            &["verify", "s"],
            &["verify", "s", "--with-tree"],
            &["inspect", "s"],
            &["recover", "s", "--dry-run"],
            &["recover", "s", "--owner-pid", "none"],
            &["recover", "s", "--salvage", "--why", "test", "--owner-pid", "none"],
            &["step", "--ticket", &ticket, "heartbeat"],
        ];
        all_could_not_look(&sandbox, what, &commands);
    }
}

#[test]
fn a_session_file_that_does_not_fit_is_an_error_and_no_abort() {
    for what in ["NULs", "one line", "many lines", "many entries", "bytes that are no text"] {
        let (sandbox, _) = admitted();
        if !can_limit(&sandbox) {
            return;
        }
        let chat = sandbox.path("chat.jsonl");
        let entries = |count: u32| -> Vec<u8> {
            let entry = |n| format!("{{\"type\":\"custom\",\"id\":\"e{n}\",\"parentId\":\"a1\"}}\n");
            (0..count).map(entry).collect::<String>().into_bytes()
        };
        match what {
            "NULs" => extend(&chat, LONG),
            "one line" => append(&chat, &vec![b'x'; usize::try_from(LONG).unwrap()]),
            "many lines" => append(&chat, &vec![b'\n'; 4 << 20]),
            "many entries" => append(&chat, &entries(100_000)),
            _ => append(&chat, &vec![0xff; 12 << 20]),
        }
        let commands: [&[&str]; 5] = [
            &["verify", "s", "--with-tree"],
            &["verify", "./chat.jsonl"],
            &["inspect", "s", "--draw-tree"],
            &["recover", "s", "--dry-run"],
            &["recover", "s", "--owner-pid", "none"],
        ];
        all_could_not_look(&sandbox, what, &commands);
    }
}

#[test]
fn a_heads_file_is_read_line_by_line() {
    let (sandbox, _) = admitted();
    if !can_limit(&sandbox) {
        return;
    }
    let words = ["verify", "s", "--heads", "heads"];
    let heads = sandbox.write("heads", "");
    extend(&heads, LONG);
    let before = sizes(&sandbox);
    within(&sandbox, LIMIT, &words).exits(2).says("line 1: it is longer than");
    // Heads of one journal without end.
    let found = sandbox.run(["--json", "verify", "s"]).ok().json();
    let hash = found["head"]["hash"].as_str().unwrap();
    let line = format!("{}:{hash} {}\n", found["head"]["seq"], sandbox.journal_path("s").display());
    assert_eq!(before, sizes(&sandbox));
    sandbox.write("heads", line.repeat(200_000));
    all_could_not_look(&sandbox, "heads", &[&words]);
    // Blank lines are none, however many.
    sandbox.write("heads", "\n".repeat(1 << 20) + &line);
    within(&sandbox, LIMIT, &words).ok();
    assert_eq!(std::fs::read(heads).unwrap(), line.as_bytes());
}

#[test]
fn whatever_the_limit_a_command_does_not_abort() {
    let (sandbox, ticket) = admitted();
    if !can_limit(&sandbox) {
        return;
    }
    sandbox.write("long.txt", "x".repeat(3 << 20));
    for _ in 0..2 {
        sandbox.step(&ticket, ["note", "long.txt"]).ok();
    }
    let entry = |n| format!("{{\"type\":\"custom\",\"id\":\"e{n}\",\"parentId\":\"a1\"}}\n");
    append(&sandbox.path("chat.jsonl"), (0..5_000).map(entry).collect::<String>().as_bytes());
    append(&sandbox.path("chat.jsonl"), &vec![0xff; 1 << 20]);
    // What the process itself needs.
    let least = (4..).map(|mib| mib * MIB).find(|limit| within(&sandbox, *limit, &["--version"]).code() == 0);
    let least = least.unwrap() + 12 * MIB;
    let commands: [&[&str]; 4] = [
        &["verify", "s"],
        &["verify", "./chat.jsonl"],
        &["inspect", "s"],
        &["recover", "s", "--dry-run", "--owner-pid", "none"],
    ];
    for words in commands {
        let mut codes = Vec::new();
        for limit in (0..10).map(|step| least + step * 8 * MIB) {
            let ran = within(&sandbox, limit, words);
            assert!([0, 1, 3, 13].contains(&ran.code()), "{words:?} within {limit}: {}", ran.all());
            codes.push(ran.code());
        }
        assert!(codes[0] == 1 && codes.last() != Some(&1), "{words:?}: {codes:?}");
    }
}
