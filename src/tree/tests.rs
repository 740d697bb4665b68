//! Every rule of the session tree, on small files.

mod requests;

use super::*;
use crate::json::Raw;
use crate::message;

const HEADER: &str =
    r#"{"type":"session","version":3,"id":"s-1","timestamp":"2026-11-29T15:00:00.000Z","cwd":"/w"}"#;

/// A file of the header and these lines.
fn file(lines: &[&str]) -> String {
    std::iter::once(&HEADER).chain(lines).fold(String::new(), |text, line| text + line + "\n")
}

fn entry(kind: &str, id: &str, parent: Option<&str>, rest: &str) -> String {
    let parent = parent.map_or_else(|| "null".to_owned(), |parent| format!("\"{parent}\""));
    format!(
        r#"{{"type":"{kind}","id":"{id}","parentId":{parent},"timestamp":"2026-11-29T15:00:01.000Z"{rest}}}"#
    )
}

fn said(role: &str, id: &str, parent: Option<&str>) -> String {
    entry("message", id, parent, &format!(r#","message":{{"role":"{role}","content":"x"}}"#))
}

fn asks(id: &str, parent: &str, calls: &[&str], stop: &str) -> String {
    let calls: Vec<String> = calls
        .iter()
        .map(|call| format!(r#"{{"type":"toolCall","id":"{call}","name":"t","arguments":{{}}}}"#))
        .collect();
    let message =
        format!(r#","message":{{"role":"assistant","content":[{}],"stopReason":"{stop}"}}"#, calls.join(","));
    entry("message", id, Some(parent), &message)
}

fn answers(id: &str, parent: &str, call: &str) -> String {
    let message = format!(r#","message":{{"role":"toolResult","toolCallId":"{call}","content":[]}}"#);
    entry("message", id, Some(parent), &message)
}

fn tree(lines: &[String]) -> Tree {
    read(file(&lines.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// Code, severity and line of all findings.
fn codes(tree: &Tree) -> Vec<(&'static str, Severity, Option<usize>)> {
    check(tree).into_iter().map(|finding| (finding.code, finding.severity, finding.line)).collect()
}

fn only(tree: &Tree) -> Finding {
    let found = check(tree);
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().expect("one")
}

fn refused(tree: &Tree, leaf: Option<&str>) -> Vec<(&'static str, Option<usize>)> {
    match check_path(tree, leaf) {
        Err(Refusal::Damage(found)) => found.iter().map(|finding| (finding.code, finding.line)).collect(),
        other => panic!("{other:?}"),
    }
}

fn ids(tree: &Tree, indices: &[usize]) -> Vec<String> {
    indices.iter().map(|index| tree.entries[*index].id.to_string()).collect()
}

fn plain() -> Vec<String> {
    vec![said("user", "a", None), said("assistant", "b", Some("a")), said("user", "c", Some("b"))]
}

#[test]
fn a_sound_file_has_nothing_to_say_for_itself() {
    let lines = plain();
    let tree = tree(&lines);
    assert_eq!(codes(&tree), []);
    assert_eq!(check_path(&tree, Some("c")), Ok(()));
    assert_eq!(check_path(&tree, None), Ok(()));
    assert_eq!((tree.leaf(), tree.tail, tree.writable()), (Leaf::Entry(2), Tail::Clean, Writable::Yes));
    let header = tree.header.as_ref().expect("header");
    assert_eq!((header.id.as_deref(), header.version, header.line), (Some("s-1"), Some(3), 1));
    assert_eq!(tree.header_text(), Some(HEADER));
    let b = tree.entry("b").expect("there");
    let offset = HEADER.len() + 1 + lines[0].len() + 1;
    assert_eq!((b.line, b.offset, b.len), (3, offset as u64, lines[1].len() as u64));
    assert_eq!(tree.text(1), lines[1]);
    assert_eq!(tree.message(1), Some(r#"{"role":"assistant","content":"x"}"#));
    assert_eq!(tree.role(1).as_deref(), Some("assistant"));
    assert_eq!(tree.role(9), None);
    assert!(!tree.needs_newline());
}

#[test]
fn children_and_paths_follow_the_parents() {
    let tree = tree(&[
        said("user", "a", None),
        said("user", "c", Some("b")),
        said("user", "b", Some("a")),
        said("user", "d", Some("b")),
        said("user", "r", None),
    ]);
    assert_eq!(ids(&tree, tree.children(2)), ["c", "d"]);
    assert_eq!(ids(&tree, tree.roots()), ["a", "r"]);
    assert_eq!(tree.children(1), [0usize; 0]);
    // Behind the last entry there is none, and the roots are not its children.
    assert_eq!((tree.children(5), tree.children(99)), (&[][..], &[][..]));
    let path = tree.path(3);
    assert_eq!(
        (ids(&tree, &path.entries), path.top),
        (["a", "b", "d"].map(String::from).to_vec(), Top::Root)
    );
}

#[test]
fn a_torn_tail_is_named_and_cut_from_nothing() {
    for torn in [r#"{"type":"message","id":"#, "{\"x\":\"\u{e6}", "garbage\0\0"] {
        let whole = file(&[&plain()[0]]);
        let mut bytes = whole.clone().into_bytes();
        bytes.extend(torn.as_bytes());
        if torn.ends_with('\u{e6}') {
            bytes.pop();
        }
        let len = (bytes.len() - whole.len()) as u64;
        let tree = read(bytes);
        let offset = whole.len() as u64;
        assert_eq!(tree.tail, Tail::Torn { offset, len });
        let finding = only(&tree);
        assert_eq!((finding.code, finding.severity), ("tree-torn-tail", Severity::NeedsRecovery));
        assert_eq!((finding.line, finding.offset, finding.len), (Some(3), offset, len));
        assert_eq!(tree.leaf(), Leaf::Entry(0));
        assert!(tree.needs_newline());
        assert_eq!(check_path(&tree, Some("a")), Ok(()));
    }
}

#[test]
fn a_nul_tail_and_a_missing_newline_are_told_apart() {
    let whole = file(&[&plain()[0]]);
    let tree = read(whole.clone() + "\0\0\0");
    assert_eq!(tree.tail, Tail::Nul { offset: whole.len() as u64, len: 3 });
    assert_eq!(codes(&tree), [("tree-nul-tail", Severity::NeedsRecovery, Some(3))]);
    let tree = read(whole.trim_end());
    assert_eq!((tree.tail, tree.leaf()), (Tail::NoNewline, Leaf::Entry(0)));
    let finding = only(&tree);
    assert_eq!((finding.code, finding.severity), ("tree-no-newline", Severity::Note));
    assert_eq!(
        (finding.offset, finding.len),
        (HEADER.len() as u64 + 1, (whole.len() - HEADER.len() - 2) as u64)
    );
    assert!(tree.needs_newline());
}

#[test]
fn what_is_only_odd_about_an_entry_keeps_nobody_from_writing_behind_it() {
    let odd = r#"{"id":"d","parentId":"b"}"#.to_owned();
    let tree = tree(&[plain(), vec![odd]].concat());
    assert_eq!(codes(&tree)[0], ("tree-type-missing", Severity::Warning, Some(5)));
    assert_eq!(check_path(&tree, Some("d")), Ok(()));
    assert_eq!(check::damaged_path(&tree, 3), []);
}

#[test]
fn a_dead_line_hurts_only_where_an_entry_may_need_it() {
    let [a, b, _] = &plain()[..] else { panic!("three") };
    for (dead, code) in [("\0\0\0\0", "tree-nul-line"), (r#"{"type":"mess"#, "tree-dead-line")] {
        let tree = read(file(&[a, dead, b]));
        let finding = only(&tree);
        assert_eq!((finding.code, finding.severity), (code, Severity::Warning));
        assert_eq!((finding.line, finding.len), (Some(3), dead.len() as u64));
        assert!(finding.message.contains("1 entries stand before it and 1 behind it"), "{finding:?}");
        assert_eq!(check_path(&tree, Some("b")), Ok(()));
        let tree = read(file(&[a, dead, &said("user", "z", Some("lost"))]));
        assert_eq!(
            codes(&tree),
            [(code, Severity::Damage, Some(3)), ("tree-unknown-parent", Severity::Damage, Some(4))]
        );
        assert_eq!(refused(&tree, Some("z")), [("tree-unknown-parent", Some(4))]);
        assert_eq!(check_path(&tree, Some("a")), Ok(()));
    }
}

#[test]
fn a_dead_line_says_why_it_is_dead() {
    let [a, b, _] = &plain()[..] else { panic!("three") };
    for (dead, why) in [
        (r#"{"type":"mess"#, "unreadable, 13 bytes: not JSON at column 13;"),
        ("5\0\0", "unreadable, 3 bytes: it holds 2 NUL bytes;"),
        ("\u{feff}{}", "unreadable, 5 bytes: it begins with a byte order mark;"),
    ] {
        let found = only(&read(file(&[a, dead, b])));
        assert!(found.message.contains(why), "{found:?}");
    }
}

#[test]
fn a_dead_line_says_who_may_miss_it() {
    let a = &plain()[0];
    let (cut_off, whole) = (said("user", "z", Some("lost")), said("user", "y", Some("a")));
    let missed = |behind: &[&str]| {
        let found = check(&read(file(&[&[a.as_str(), "{"], behind].concat())));
        found.into_iter().find(|found| found.code == "tree-dead-line").expect("dead").message
    };
    assert!(missed(&[&whole]).contains("; no entry names a parent that was on it; "));
    assert!(missed(&[&cut_off, &whole]).contains("; an entry of another branch than the active one names "));
    assert!(missed(&[&cut_off]).contains("; an entry names a parent that is not in the file "));
}

#[test]
fn what_was_glued_to_a_torn_line_is_named() {
    let [a, b, _] = &plain()[..] else { panic!("three") };
    let tree = read(file(&[a, &format!(r#"{{"type":"message","id":"q","mess{b}"#), &format!("\0\0{b}")]));
    let found = check(&tree);
    assert!(found[0].message.contains("entry b was glued to it"), "{found:?}");
    assert!(found[1].message.contains("2 NUL bytes; entry b was glued to it"), "{found:?}");
    assert_eq!(tree.entries.len(), 1);
}

#[test]
fn lines_are_split_before_they_are_decoded() {
    let [a, b, c] = &plain()[..] else { panic!("three") };
    let mut bytes = file(&[a]).into_bytes();
    bytes.extend(b.replace('x', "?").bytes().map(|byte| if byte == b'?' { 0xE6 } else { byte }));
    bytes.extend(format!("\n{}\n", c.replace('x', "\u{2028}\u{85}")).into_bytes());
    let tree = read(&bytes[..]);
    assert_eq!(tree.message(1), Some("{\"role\":\"assistant\",\"content\":\"\u{fffd}\"}"));
    assert_eq!(codes(&tree), [("tree-invalid-utf8", Severity::Note, Some(3))]);
    let last = bytes.rsplit(|byte| *byte == b'\n').nth(1).expect("a line");
    assert_eq!(tree.text(2).as_bytes(), last);
    assert_eq!(tree.entries[2].offset + tree.entries[2].len + 1, bytes.len() as u64);
    assert_eq!(tree.entries[2].len, last.len() as u64);
}

#[test]
fn carriage_returns_and_blank_lines_are_notes() {
    let [a, b, c] = &plain()[..] else { panic!("three") };
    let tree = read(file(&[a, b]).replace('\n', "\r\n"));
    assert_eq!((tree.crlf, tree.leaf()), (Crlf { first: 1, lines: 3 }, Leaf::Entry(1)));
    assert_eq!(codes(&tree), [("tree-crlf", Severity::Note, None)]);
    assert_eq!(tree.object(1).string("id").as_deref(), Some("b"));
    let unended = read(file(&[a, b]).trim_end().replace('\n', "\r\n") + "\r");
    assert_eq!(unended.crlf, Crlf { first: 1, lines: 2 }, "the last line does not end");
    let tree = read(file(&[a, "", "  \t", b, "", c]));
    let found = check(&tree);
    assert_eq!(
        codes(&tree),
        [("tree-blank-line", Severity::Note, Some(3)), ("tree-blank-line", Severity::Note, Some(6))]
    );
    assert_eq!(found[0].message, "lines 3 to 4 are blank");
    assert_eq!(found[0].len, 4);
}

#[test]
fn json_that_is_no_entry_is_damage_where_it_takes_the_leaf_away() {
    let [a, b, _] = &plain()[..] else { panic!("three") };
    for (odd, why) in [
        ("5", "it is a number"),
        ("true", "it is true"),
        ("\"text\"", "it is a string"),
        ("[]", "it is an array"),
        ("{}", "it has no id"),
        (r#"{"type":"message"}"#, "it has no id"),
        (r#"{"type":"message","id":7,"parentId":null}"#, "its id is not a string"),
        (r#"{"type":"message","id":"","parentId":null}"#, "its id is empty"),
    ] {
        let tree = read(file(&[a, odd]));
        assert_eq!(tree.leaf(), Leaf::Undefined { line: 3, why }, "{odd}");
        assert_eq!(tree.last_entry(), Some(0));
        assert_eq!(
            codes(&tree),
            [
                ("tree-no-entry", Severity::Damage, Some(3)),
                ("tree-leaf-undefined", Severity::Damage, Some(3))
            ]
        );
        let found = check(&read(file(&[a, b, odd])));
        assert!(found[1].message.ends_with("; the last entry is b on line 3"), "{found:?}");
        let found = check(&read(file(&[odd])));
        assert!(found[1].message.ends_with("; there is no entry"), "{found:?}");
        let tree = read(file(&[a, odd, b]));
        assert_eq!(codes(&tree), [("tree-no-entry", Severity::Warning, Some(3))]);
        assert_eq!(tree.leaf(), Leaf::Entry(1));
        // An entry behind it that hangs on nothing may have hung there.
        let cut_off = b.replace(r#""parentId":"a","#, "");
        assert_ne!(*b, cut_off);
        let found = codes(&read(file(&[a, odd, &cut_off])));
        let expected = [
            ("tree-no-entry", Severity::Damage, Some(3)),
            ("tree-parent-missing", Severity::Damage, Some(4)),
        ];
        assert_eq!(found, expected);
    }
    // Values that JavaScript takes for false are passed over by Pi and leave the leaf alone.
    for odd in ["null", "false", "0", "-0.0", "\"\""] {
        let tree = read(file(&[a, odd]));
        assert_eq!(tree.leaf(), Leaf::Entry(0), "{odd}");
        assert_eq!(codes(&tree), [("tree-no-entry", Severity::Warning, Some(3))]);
        assert_eq!(read(format!("{odd}\n{}", file(&[a]))).header_fault, None);
    }
}

#[test]
fn entries_that_lack_something_are_damage() {
    let a = &plain()[0];
    for (line, code) in [
        (r#"{"type":"message","id":"x","message":{"role":"user"}}"#, "tree-parent-missing"),
        (r#"{"type":"custom","id":"x","parentId":7}"#, "tree-parent-missing"),
        (r#"{"type":"custom","id":"x","parentId":""}"#, "tree-parent-missing"),
        (r#"{"type":"message","id":"x","parentId":"a"}"#, "tree-message-missing"),
        (r#"{"type":"message","id":"x","parentId":"a","message":null}"#, "tree-message-missing"),
    ] {
        let tree = read(file(&[a, line]));
        assert_eq!(tree.leaf(), Leaf::Entry(1));
        let found = codes(&tree);
        assert!(found.contains(&(code, Severity::Damage, Some(3))), "{line}: {found:?}");
        assert_eq!(refused(&tree, Some("x")), [(code, Some(3))]);
        assert_eq!(check_path(&tree, Some("a")), Ok(()));
    }
    let tree = read(file(&[a, r#"{"type":"message","id":"x","message":{"role":"user"}}"#]));
    assert_eq!(tree.path(1).top, Top::Missing);
    let empty = r#"{"type":"message","id":"x","parentId":"a"}"#;
    assert!(only(&read(file(&[a, empty]))).message.ends_with("; Pi fails on it"));
    let elsewhere = only(&read(file(&[a, empty, &said("user", "y", Some("a"))])));
    assert!(elsewhere.message.ends_with("; Pi would fail on a branch that leads through it"));
}

#[test]
fn a_file_whose_first_writes_were_cut_off_is_still_to_be_begun() {
    let severity = |text: &str| {
        let tree = read(text);
        let found = check(&tree).into_iter().find(|found| found.code == "tree-header-missing");
        (tree.is_unbegun(), found.map(|found| found.severity))
    };
    let [a, ..] = &plain()[..] else { panic!("an entry") };
    for cut in [
        "{",
        "{\"type\":\"sess",
        "x",
        "\0\0",
        "{\n",
        "{\"ty\n{\"type\":",
        "{\"ty\n{\"type\":\n",
        "{\"t\n\0\0",
    ] {
        assert_eq!(severity(cut), (true, Some(Severity::NeedsRecovery)), "{cut:?}");
    }
    for other in ["x\n", "x\n{", "[]\n", "{}\n{", &format!("{{\n{a}\n"), "\u{feff}{"] {
        assert_eq!(severity(other), (false, Some(Severity::Damage)), "{other:?}");
    }
    assert!(read("").is_unbegun() && !read(file(&[])).is_unbegun());
}

#[test]
fn what_no_pi_opens_is_damage() {
    let [a, b, _] = &plain()[..] else { panic!("three") };
    let cases = [
        (format!("{a}\n{b}\n"), HeaderFault::Missing, "tree-header-missing"),
        (format!("{a}\n{}", file(&[b])), HeaderFault::Behind { line: 1 }, "tree-header-missing"),
        (format!("[]\n{}", file(&[a])), HeaderFault::Behind { line: 1 }, "tree-header-missing"),
        (
            file(&[a]).replace("\"s-1\"", "7"),
            HeaderFault::Invalid { why: "its id is not a string" },
            "tree-header-invalid",
        ),
        (
            file(&[a]).replace("\"version\":3", "\"version\":\"x\""),
            HeaderFault::Invalid { why: "its version is not a whole number" },
            "tree-header-invalid",
        ),
    ];
    for (text, fault, code) in cases {
        let tree = read(text);
        assert_eq!(tree.header_fault, Some(fault));
        assert_eq!(tree.writable(), Writable::NoHeader);
        assert!(
            check(&tree).iter().any(|finding| finding.code == code && finding.severity == Severity::Damage)
        );
        assert_eq!(refused(&tree, Some("a"))[0].0, code);
    }
    let tree = read(format!("garbage\n{}", file(&[a])));
    assert_eq!(tree.header_fault, None);
    assert_eq!(codes(&tree), [("tree-dead-line", Severity::Warning, Some(1))]);
}

#[test]
fn a_byte_order_mark_is_damage_and_hides_nothing() {
    let tree = read(format!("\u{feff}{}", file(&[&plain()[0]])));
    assert!(tree.bom);
    assert_eq!(codes(&tree), [("tree-bom", Severity::Damage, Some(1))]);
    assert_eq!((only(&tree).offset, only(&tree).len), (0, 3));
    assert_eq!(refused(&tree, Some("a")), [("tree-bom", Some(1))]);
    assert_eq!((tree.leaf(), tree.header_text()), (Leaf::Entry(0), Some(HEADER)));
    assert_eq!(tree.entries[0].offset, HEADER.len() as u64 + 4);
}

#[test]
fn files_whose_first_write_was_cut_need_recovery() {
    let tree = read("");
    assert_eq!((tree.tail, tree.leaf(), tree.needs_newline()), (Tail::Empty, Leaf::None, false));
    assert_eq!(codes(&tree), [("tree-empty", Severity::NeedsRecovery, None)]);
    assert_eq!(refused(&tree, None), [("tree-empty", None)]);
    for cut in [&HEADER[..30], "\0\0\0"] {
        assert!(check(&read(cut)).iter().all(|finding| finding.severity == Severity::NeedsRecovery), "{cut}");
        assert!(check_path(&read(cut), None).is_err());
    }
    assert_eq!(read(file(&[])).leaf(), Leaf::None);
    assert_eq!(codes(&read(file(&[]))), []);
}

#[test]
fn other_versions_are_read_and_not_written() {
    let lines = plain();
    let text = file(&[&lines[0], &lines[1]]);
    let tree = read(text.replace("\"version\":3", "\"version\":2"));
    assert_eq!(tree.writable(), Writable::Older { version: 2 });
    assert_eq!(codes(&tree), [("tree-older-version", Severity::Note, Some(1))]);
    assert_eq!(
        only(&tree).message,
        "session version 2; version 3 is needed for writing, let Pi convert the file first"
    );
    assert_eq!(check_path(&tree, Some("b")), Err(Refusal::Older { version: 2 }));
    let tree = read(text.replace("\"version\":3", "\"version\":4"));
    assert_eq!(tree.writable(), Writable::Newer { version: 4 });
    assert_eq!(codes(&tree), [("tree-newer-version", Severity::Warning, Some(1))]);
    assert_eq!(check_path(&tree, Some("b")), Err(Refusal::Newer { version: 4 }));
    assert_eq!(read(text.replace("\"version\":3", "\"version\":3.0")).writable(), Writable::Yes);
}

#[test]
fn version_1_is_a_list_without_ids() {
    let tree = read(concat!(
        r#"{"type":"session","id":"s"}"#,
        "\n",
        r#"{"type":"message","message":{"role":"user","content":"x"}}"#,
        "\n",
        r#"{"type":"message","id":"kept-by-nobody","message":{"role":"assistant","content":[]}}"#,
        "\n"
    ));
    assert_eq!(tree.writable(), Writable::Older { version: 1 });
    assert_eq!(tree.path(1).entries, [0, 1]);
    assert_eq!(tree.find("kept-by-nobody"), None);
    assert!(matches!(tree.leaf(), Leaf::Undefined { line: 3, .. }));
    let finding = only(&tree);
    assert_eq!((finding.code, finding.severity), ("tree-older-version", Severity::Note));
    assert!(finding.message.contains("no leaf to admit on"), "{finding:?}");
}

#[test]
fn the_last_of_doubled_ids_wins() {
    let mut lines = plain();
    lines.insert(2, said("user", "b", Some("a")));
    let tree = tree(&lines);
    assert_eq!((tree.find("b"), tree.doubled("b")), (Some(2), Some(&[1, 2][..])));
    assert_eq!(tree.doubled("a"), None);
    assert_eq!(tree.path(3).entries, [0, 2, 3]);
    let finding = only(&tree);
    assert_eq!((finding.code, finding.severity), ("tree-doubled-id", Severity::Damage));
    assert!(finding.message.contains("lines 3, 4"), "{finding:?}");
    assert_eq!(refused(&tree, Some("c")), [("tree-doubled-id", Some(4))]);
    assert_eq!(check_path(&tree, Some("a")), Ok(()));
    lines.push(said("user", "d", Some("a")));
    assert_eq!(codes(&self::tree(&lines)), [("tree-doubled-id", Severity::Warning, Some(4))]);
}

#[test]
fn doubled_keys_count_on_the_path_and_in_the_entry_itself() {
    let mut lines = plain();
    lines[1] = lines[1].replace("\"parentId\":\"a\"", "\"parentId\":null,\"p\\u0061rentId\":\"a\"");
    let doubled = tree(&lines);
    assert_eq!(codes(&doubled), [("tree-doubled-key", Severity::Damage, Some(3))]);
    assert_eq!(refused(&doubled, Some("c")), [("tree-doubled-key", Some(3))]);
    assert_eq!(check_path(&doubled, Some("a")), Ok(()));
    lines.push(said("user", "d", Some("a")));
    assert_eq!(codes(&tree(&lines)), [("tree-doubled-key", Severity::Warning, Some(3))]);
    // Bodies are the agent's: there the last one counts, as in Pi.
    let mut lines = plain();
    lines[1] = lines[1].replace("\"content\":\"x\"", "\"content\":\"x\",\"content\":\"y\"");
    assert_eq!(codes(&tree(&lines)), []);
}

#[test]
fn an_unknown_parent_cuts_the_history() {
    let mut lines = vec![
        said("user", "a", None),
        said("user", "b", Some("gone")),
        said("user", "c", Some("b")),
        said("user", "d", Some("a")),
    ];
    let tree = self::tree(&lines);
    let finding = only(&tree);
    // Pi goes on from `d`, and misses nothing.
    assert_eq!(
        (finding.code, finding.severity, finding.line),
        ("tree-unknown-parent", Severity::Warning, Some(3))
    );
    lines.pop();
    assert_eq!(only(&self::tree(&lines)).severity, Severity::Damage);
    assert!(finding.message.contains("1 more entries hang on it"), "{finding:?}");
    assert_eq!(tree.path(2).top, Top::Unknown { id: "gone".into() });
    let refusal = check_path(&tree, Some("c")).expect_err("cut off");
    assert_eq!(refusal, Refusal::Damage(check::damaged_path(&tree, 2)));
    assert_eq!(
        refusal.to_string(),
        "session file is damaged: entry b on line 3 names the parent gone, which is not in the file: \
         the history above it is cut off"
    );
    assert_eq!(check_path(&tree, Some("d")), Ok(()));
    assert_eq!(refused(&tree, Some("nobody")), [("tree-leaf-missing", None)]);
}

#[test]
fn a_loop_is_told_once_and_in_order() {
    let looped = tree(&[
        said("user", "r", None),
        said("user", "c", Some("b")),
        said("user", "a", Some("c")),
        said("user", "b", Some("a")),
        said("user", "x", Some("b")),
        said("user", "y", Some("x")),
        said("user", "s", Some("s")),
    ]);
    let found = check(&looped);
    assert_eq!(
        codes(&looped),
        [("tree-cycle", Severity::Warning, Some(3)), ("tree-cycle", Severity::Damage, Some(8))],
        "Pi opens the last one"
    );
    assert_eq!(
        found[0].message,
        "a loop of 3 entries on lines 3, 4, 5, each the parent of the next: c, a, b; Pi never ends on it; \
         5 entries reach no root: those of the loop and x, y"
    );
    assert_eq!(
        found[1].message,
        "entry s on line 8 is its own parent; Pi never ends on it; 1 entry reaches no root"
    );
    let path = looped.path(5);
    assert_eq!(path.top, Top::Cycle { len: 3 });
    assert_eq!(ids(&looped, &path.entries), ["c", "a", "b", "x", "y"]);
    assert_eq!(refused(&looped, Some("y")), [("tree-cycle", Some(3))]);
    assert_eq!(refused(&looped, Some("a")), [("tree-cycle", Some(3))]);
    assert_eq!(check_path(&looped, Some("r")), Ok(()));
}

#[test]
fn of_many_names_twenty_are_told() {
    let ring = |count: usize| {
        let entry =
            |at: usize| said("user", &format!("e{at}"), Some(&format!("e{}", (at + count - 1) % count)));
        only(&tree(&(0..count).map(entry).collect::<Vec<_>>())).message
    };
    assert!(ring(20).contains(" e18, e19; Pi never ends on it"), "{}", ring(20));
    assert!(ring(21).contains(" e18, e19 and 1 more; Pi never ends on it"), "{}", ring(21));
}

#[test]
fn a_compaction_keeps_from_its_own_branch() {
    let compaction = |kept: &str| {
        entry("compaction", "k", Some("c"), &format!(r#","summary":"s","firstKeptEntryId":"{kept}""#))
    };
    let with = |kept: &str, more: &[String]| {
        let mut lines = plain();
        lines.insert(1, said("user", "side", Some("a")));
        lines.push(compaction(kept));
        lines.extend(more.iter().cloned());
        codes(&tree(&lines)).into_iter().filter(|(code, ..)| *code != "tree-forked").collect::<Vec<_>>()
    };
    for kept in ["a", "c", "k"] {
        assert_eq!(with(kept, &[]), [], "{kept}");
    }
    for kept in ["0ddba11f", "side"] {
        assert_eq!(with(kept, &[]), [("tree-compaction-target", Severity::Damage, Some(6))], "{kept}");
        assert_eq!(
            with(kept, &[said("user", "z", Some("a"))]),
            [("tree-compaction-target", Severity::Warning, Some(6))]
        );
    }
    let mut lines = plain();
    lines.push(compaction("later"));
    lines.push(said("user", "later", Some("k")));
    assert_eq!(codes(&tree(&lines)), [("tree-compaction-target", Severity::Damage, Some(5))]);
}

#[test]
fn a_compaction_in_a_loop_keeps_from_nothing() {
    let looped = tree(&[
        said("user", "a", Some("k")),
        entry("compaction", "k", Some("a"), r#","summary":"s","firstKeptEntryId":"a""#),
    ]);
    let expected =
        [("tree-cycle", Severity::Damage, Some(2)), ("tree-compaction-target", Severity::Damage, Some(3))];
    assert_eq!(codes(&looped), expected);
}

#[test]
fn a_result_on_a_sibling_is_damage() {
    let lines = |stop: &str| {
        vec![
            said("user", "u", None),
            asks("a", "u", &["c1", "c2"], stop),
            answers("r1", "a", "c1"),
            answers("r2", "a", "c2"),
            said("assistant", "end", Some("r2")),
        ]
    };
    let found = only(&tree(&lines("toolUse")));
    assert_eq!(
        (found.code, found.severity, found.line),
        ("tree-result-elsewhere", Severity::Damage, Some(3))
    );
    assert_eq!(
        found.message,
        "call c1 of a has no result on the active branch, which goes on with r2, but one on another: r1"
    );
    let left_out = [("tree-result-orphan", Severity::Damage, Some(5))];
    assert_eq!(codes(&tree(&lines("aborted"))), left_out, "nobody asks, and the result is sent");
    let mut chained = lines("toolUse");
    chained[3] = answers("r2", "r1", "c2");
    assert_eq!(codes(&tree(&chained)), []);
    // A result that does not stand below its call is not that call's.
    let stray = tree(&[
        said("user", "u", None),
        asks("a", "u", &["c1"], "toolUse"),
        answers("r1", "u", "c1"),
        said("assistant", "end", Some("a")),
    ]);
    let expected =
        [("tree-forked", Severity::Note, Some(2)), ("tree-call-unanswered", Severity::Note, Some(3))];
    assert_eq!(codes(&stray), expected);
    // A call id used again belongs to the message nearest above.
    chained.insert(4, asks("again", "r2", &["c1"], "toolUse"));
    chained.insert(5, answers("r3", "again", "c1"));
    chained[6] = said("assistant", "end", Some("again"));
    let found = only(&tree(&chained));
    assert!(found.message.starts_with("call c1 of again has no result"), "{found:?}");
}

#[test]
fn a_user_message_between_call_and_result_is_a_note() {
    let in_order = [
        said("user", "u", None),
        asks("a", "u", &["c1"], "toolUse"),
        answers("r1", "a", "c1"),
        said("user", "more", Some("r1")),
    ];
    assert_eq!(codes(&tree(&in_order)), []);
    let found = only(&tree(&[
        said("user", "u", None),
        asks("a", "u", &["c1"], "toolUse"),
        said("user", "news", Some("a")),
        answers("r1", "news", "c1"),
        said("user", "more", Some("r1")),
    ]));
    assert_eq!((found.code, found.severity, found.line), ("tree-user-between", Severity::Note, Some(4)));
    assert!(found.message.contains("user message news stands between call c1 of a"), "{found:?}");
    let besides = [
        said("user", "u", None),
        asks("a", "u", &["c1"], "toolUse"),
        said("user", "news", Some("a")),
        said("user", "s1", Some("u")),
        said("user", "s2", Some("s1")),
        said("user", "s3", Some("s2")),
        answers("r1", "news", "c1"),
    ];
    let expected = [("tree-forked", Severity::Note, Some(2)), ("tree-user-between", Severity::Note, Some(4))];
    assert_eq!(codes(&tree(&besides)), expected, "what is said on another branch changes nothing");
}

#[test]
fn branches_whose_lines_alternate_are_a_note() {
    let lines = [
        said("user", "a", None),
        said("user", "c1", Some("a")),
        said("user", "d1", Some("a")),
        said("user", "c2", Some("c1")),
        said("user", "d2", Some("d1")),
    ];
    let found = only(&tree(&lines));
    assert_eq!((found.code, found.severity, found.line), ("tree-forked", Severity::Note, Some(2)));
    assert!(found.message.ends_with("their leaves: c2, d2"), "{found:?}");
    let [a, c1, d1, c2, d2] = lines;
    assert_eq!(codes(&tree(&[a, c1, c2, d1, d2])), []);
    let roots = [
        said("user", "a", None),
        said("user", "b", None),
        said("user", "a2", Some("a")),
        said("user", "b2", Some("b")),
    ];
    assert_eq!(codes(&tree(&roots)), [("tree-forked", Severity::Note, None)]);
}

#[test]
fn a_record_without_a_message_may_have_moved_the_leaf() {
    let mut lines = plain();
    lines.push(entry("label", "l", Some("c"), r#","targetId":"a""#));
    assert_eq!(codes(&tree(&lines)), []);
    lines[3] = entry("custom", "l", Some("a"), "");
    let found = only(&tree(&lines));
    assert_eq!((found.code, found.severity, found.line), ("tree-bookkeeping-leaf", Severity::Note, Some(5)));
    assert!(
        found.message.contains("l, is a record (custom)")
            && found.message.contains("hangs on a; the newest message is c"),
        "{found:?}"
    );
    lines[3] = said("user", "l", Some("a"));
    assert_eq!(codes(&tree(&lines)), []);
}

#[test]
fn half_a_surrogate_pair_is_a_note() {
    for (text, lone) in [
        (r"\ud83d cut", true),
        (r"\ude00", true),
        (r"\uD83D\u0041", true),
        (r"\ud83d\ude00", false),
        (r"\\ud83d", false),
        (r"\u0041\n", false),
    ] {
        let mut lines = plain();
        lines[2] = lines[2].replace('x', text);
        let expected: &[_] = if lone { &[("tree-lone-surrogate", Severity::Note, Some(4))] } else { &[] };
        let tree = tree(&lines);
        assert_eq!(codes(&tree), expected, "{text}");
        assert!(tree.text(2).contains(text), "the escape stays as it was");
    }
}

#[test]
fn nesting_costs_no_stack() {
    let nested = |levels: usize| {
        let mut lines = plain();
        // What stands beside the deepest makes a line no deeper.
        let content = "[".repeat(levels) + &"]".repeat(levels) + r#","details":[[]]"#;
        lines[2] = lines[2].replace("\"x\"", &content);
        tree(&lines)
    };
    assert_eq!(codes(&nested(DEPTH_MAX - 2)), []);
    for levels in [DEPTH_MAX - 1, 100_000] {
        let found = only(&nested(levels));
        assert_eq!((found.code, found.severity, found.line), ("tree-too-deep", Severity::Damage, Some(4)));
        assert!(found.message.contains(&format!("nests {} levels deep", levels + 2)), "{found:?}");
    }
    let deep = nested(100_000);
    assert_eq!((deep.raw(2), deep.raw_message(2)), (None, None), "it is not read");
    assert!(same_entry(deep.text(2), deep.text(2)));
    assert!(!same_entry(deep.text(2), deep.text(1)));
    let torn = read(file(&["[".repeat(100_000).as_str()]));
    assert_eq!(codes(&torn), [("tree-dead-line", Severity::Warning, Some(2))]);
}

#[test]
fn the_deepest_arguments_of_a_call_are_read_where_they_stand() {
    let deepest = Raw::text(&("[".repeat(json::DEPTH_MAX) + &"]".repeat(json::DEPTH_MAX)));
    let function = format!(r#"{{"name":"t","arguments":{}}}"#, deepest.get());
    let call = format!(r#"{{"id":"c1","type":"function","function":{function}}}"#);
    let asks = format!(r#"{{"role":"assistant","tool_calls":[{call}]}}"#);
    let (raw, meaning) = message::take(&asks, None, None).expect("a message");
    let line = message_entry("d", Some("c"), "t", &message::pi_message(&meaning, &raw, &[], 1));
    let tree = tree(&[plain(), vec![line.get().to_owned()]].concat());
    assert_eq!(json::depth(tree.text(3)), DEPTH_MAX);
    assert_eq!(codes(&tree), []);
    assert_eq!(tree.raw(3).as_ref(), Some(&line));
    assert_eq!(tree.raw_message(3).as_ref().map(Raw::get), tree.message(3));
    let elsewhere = message_entry("d", None, "later", &message::pi_message(&meaning, &raw, &[], 2));
    assert!(same_entry(line.get(), elsewhere.get()));
}

#[test]
fn a_long_chain_costs_no_stack() {
    let mut text = file(&[]);
    let mut parent = "null".to_owned();
    for number in 0..50_000 {
        text = text + &format!(r#"{{"type":"custom","id":"{number}","parentId":{parent}}}"#) + "\n";
        parent = format!("\"{number}\"");
    }
    let tree = read(text);
    assert_eq!(codes(&tree), []);
    assert_eq!(tree.path(49_999).entries.len(), 50_000);
}

#[test]
fn a_second_header_is_ignored() {
    let [a, b, _] = &plain()[..] else { panic!("three") };
    let tree = read(file(&[a, HEADER, b, HEADER]));
    assert_eq!(
        codes(&tree),
        [("tree-second-header", Severity::Note, Some(3)), ("tree-second-header", Severity::Note, Some(5))]
    );
    assert_eq!((tree.leaf(), tree.entries.len()), (Leaf::Entry(1), 2));
}

#[test]
fn no_cut_and_no_flipped_byte_makes_reading_fail() {
    let lines = [
        said("user", "a", None),
        asks("b", "a", &["c1"], "toolUse"),
        answers("c", "b", "c1"),
        entry("compaction", "d", Some("c"), r#","firstKeptEntryId":"b""#),
    ];
    let whole = file(&lines.iter().map(String::as_str).collect::<Vec<_>>()).into_bytes();
    for at in 0..whole.len() {
        let tree = read(&whole[..at]);
        let _every_cut_is_judged = check(&tree);
        assert_eq!(tree.size, at as u64);
        for flip in [0x01, 0x20, 0x80, 0xFF] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            let tree = read(bytes);
            let _every_flip_is_judged = check(&tree);
            for index in 0..tree.entries.len() {
                assert!(!tree.path(index).entries.is_empty());
            }
        }
    }
}

#[test]
fn ids_come_from_what_an_entry_stands_for() {
    let admitted = "8e68e991bfb9e302f139b1a0765ce19bf7a3f9b486ff81aa82ff5f0e89eea51b";
    assert_eq!(entry_id("t1", admitted, "entry"), "bcf38acc24306360");
    let interrupted = "daeb49174621685667c3a60f245ae7116e7f1ef39e9d2b0102e7d93b9342d20f";
    assert_eq!(entry_id("t1", interrupted, "499cbcc2987b38e6"), "8bba031908cddfb7");
}

#[test]
fn lines_of_ours_have_one_spelling() {
    let message = Raw::parse(r#"{ "role":"user", "content":"\ud800" }"#).expect("json");
    assert_eq!(
        message_entry("i\"d", Some("p"), "2026-11-29T15:30:00.000Z", &message).get(),
        r#"{"type":"message","id":"i\"d","parentId":"p","timestamp":"2026-11-29T15:30:00.000Z","message":{"role":"user","content":"\ud800"}}"#
    );
    assert!(message_entry("i", None, "t", &message).get().contains(r#""parentId":null,"#));
    assert_eq!(header_line("s-1", "2026-11-29T15:00:00.000Z", "/w").get(), HEADER);
    let entry = marker_entry("m", Some("p"), "t", "room-42", "t1", "8:daeb");
    assert_eq!(
        entry.get(),
        r#"{"type":"custom","customType":"turnkeep.branch","data":{"session":"room-42","turn":"t1","head":"8:daeb"},"id":"m","parentId":"p","timestamp":"t"}"#
    );
    let said = Marker { session: "room-42".into(), turn: "t1".into(), head: "8:daeb".into() };
    assert_eq!(marker(entry.get()), Some(said));
    assert_eq!(marker(&entry.get().replace("turnkeep.branch", "other")), None);
    assert_eq!(marker(&entry.get().replace("\"custom\"", "\"message\"")), None);
    assert_eq!(marker(&entry.get().replace("\"8:daeb\"", "8")), None);
    assert_eq!(marker("5"), None);
}

#[test]
fn a_copy_changes_ids_and_nothing_else() {
    let map = |id: &str| match id {
        "left-out" => None,
        "old" => Some("new".to_owned()),
        other => Some(other.to_owned()),
    };
    let copy = |entry: &str| entry_with(entry, "I", Some("P"), &map).map(|raw| raw.get().to_owned());
    assert_eq!(
        copy(r#" {"u\u0073age": 1e2, "type":"message","id":"x","parentId":null,"z":[],"message":{"id":"x","targetId":"old"}} "#)
            .as_deref(),
        Some(r#"{"u\u0073age":1e2,"type":"message","id":"I","parentId":"P","z":[],"message":{"id":"x","targetId":"old"}}"#)
    );
    for key in ["firstKeptEntryId", "targetId", "fromId"] {
        let target = |id: &str| format!(r#"{{"{key}":{id},"id":"x","parentId":"y"}}"#);
        let mapped = |id: &str| Some(format!(r#"{{"{key}":{id},"id":"I","parentId":"P"}}"#));
        assert_eq!(copy(&target("\"old\"")), mapped("\"new\""));
        assert_eq!(copy(&target("\"root\"")), mapped("\"root\""));
        assert_eq!(copy(&target("\"x\"")), mapped("\"I\""), "its own id");
        assert_eq!(copy(&target("null")), mapped("null"));
        assert_eq!(copy(&target("\"left-out\"")), None);
    }
    let label = |target, id, parent| {
        format!(r#"{{"targetId":"{target}","label":"old","id":"{id}","parentId":"{parent}"}}"#)
    };
    assert_eq!(copy(&label("old", "x", "y")), Some(label("new", "I", "P")), "a label may read like an id");
    assert_eq!(copy(r#"{"type":"custom"}"#).as_deref(), Some(r#"{"type":"custom","id":"I","parentId":"P"}"#));
    assert_eq!(copy("{ }").as_deref(), Some(r#"{"id":"I","parentId":"P"}"#));
    assert_eq!(
        copy(r#"{"id":"x","id":"y","parentId":"z"}"#).as_deref(),
        Some(r#"{"id":"I","parentId":"P"}"#),
        "the last of doubled keys counts"
    );
    assert_eq!(
        copy(r#"{"a":[1],"id":"x","parentId":"z","a":{"b":1,"b":2}}"#).as_deref(),
        Some(r#"{"id":"I","parentId":"P","a":{"b":1,"b":2}}"#),
        "and bodies keep theirs"
    );
    assert_eq!(copy("[]"), None);
    let root = entry_with(r#"{"id":"x","parentId":"y"}"#, "I", None, &map).expect("an object");
    assert_eq!(root.get(), r#"{"id":"I","parentId":null}"#);
}

#[test]
fn a_copied_message_has_content_that_pi_can_go_on_from() {
    let entry = |kind, content| {
        let message = format!(r#"{{"role":"assistant","content":{content}}}"#);
        format!(r#"{{"type":"{kind}","id":"I","parentId":null,"message":{message}}}"#)
    };
    let copy = |entry: &str| entry_with(entry, "I", None, &|id| Some(id.to_owned())).expect("an object");
    assert_eq!(copy(&entry("message", r#""x""#)).get(), entry("message", r#"[{"type":"text","text":"x"}]"#));
    // What an extension keeps under that name is its own.
    assert_eq!(copy(&entry("custom", r#""x""#)).get(), entry("custom", r#""x""#));
}

#[test]
fn the_same_entry_may_hang_elsewhere_and_be_of_another_time() {
    let one = r#"{"type":"message","id":"i","parentId":"p","timestamp":"1","message":{"role":"user","content":"x","timestamp":1}}"#;
    let other = r#"{"message":{"timestamp":2,"content":"\u0078","role":"user"},"id":"i","parentId":null,"timestamp":"2","type":"message"}"#;
    assert!(same_entry(one, other));
    for (from, to) in [
        ("\"x\"", "\"y\""),
        ("\"i\"", "\"j\""),
        ("\"user\"", "\"assistant\""),
        ("\"type\"", "\"kind\""),
        ("\"message\":", "\"messages\":"),
        ("\"content\":\"x\"", "\"content\":{\"timestamp\":1}"),
    ] {
        assert!(!same_entry(&one.replace(from, to), other), "{from} {to}");
    }
    let nested = |time| format!(r#"{{"id":"i","message":{{"details":{{"timestamp":{time}}}}}}}"#);
    assert!(!same_entry(&nested(1), &nested(2)));
    let custom = |time| format!(r#"{{"id":"i","data":1,"timestamp":"{time}"}}"#);
    assert!(same_entry(&custom(1), &custom(2)));
}

#[test]
fn memory_is_asked_for_by_bytes_and_by_lines() {
    assert_eq!(memory_for(b""), 1024);
    assert_eq!(memory_for(b"ab"), 2 * 4 + 1024);
    assert_eq!(memory_for(b"ab\n\n"), 4 * 4 + 3 * 1024);
    // Each byte that is no text is read as three.
    assert_eq!(memory_for(b"\xff\xff"), 2 * 12 + 1024);
}
