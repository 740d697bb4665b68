//! Bodies are kept as the bytes given.

use crate::fixtures::journal::{Journal, SESSION};
use crate::kit::{Sandbox, assistant, at, header, objects, string, text};
use serde_json::{Value, json};

fn ticket(sandbox: &Sandbox) -> String {
    sandbox.run(["admit", "s", "--turn", "t", "--text", "Hi"]).ok().line()
}

/// The newest line of the journal.
fn last_line(sandbox: &Sandbox) -> String {
    let bytes = string(sandbox.journal_bytes("s"));
    bytes.trim_end().rsplit('\n').next().unwrap().to_owned()
}

/// An Anthropic message with one call, its `input` spelled as given.
fn with_input(input: &str) -> String {
    format!(
        r#"{{"type":"message","role":"assistant","stop_reason":"tool_use","content":[{{"type":"tool_use","id":"c","name":"bash","input":{input}}}]}}"#
    )
}

/// Demands that the newest record has these bytes, as they were given.
#[track_caller]
fn keeps(sandbox: &Sandbox, bytes: &str) {
    let line = last_line(sandbox);
    assert!(line.contains(bytes), "{bytes} is not in {line}");
}

/// Mistakes on purpose: a body that means the same and is spelled otherwise is objected to.
#[test]
fn a_body_that_is_spelled_otherwise_is_found() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let input = r#"{"z":12345678901234567890,"f":0.10,"e":1e2,"a":1,"a":2,"s":"\u00e9"}"#;
    sandbox.step_in(&ticket, ["message", "-"], with_input(input)).ok();
    keeps(&sandbox, input);
    let journal = sandbox.journal_bytes("s");
    for (from, to) in [
        ("12345678901234567890", "12345678901234567000"),
        (r#""f":0.10"#, r#""f":0.1 "#),
        ("1e2", "100"),
        (r#""a":1,"a":2"#, r#""a":2,"a":1"#),
        (r#""f":0.10,"e":1e2"#, r#""e":1e2,"f":0.10"#),
        ("\\u00e9", "\\u00E9"),
    ] {
        let spoilt = crate::forge::replaced_later(&journal, from, to);
        std::fs::write(sandbox.journal_path("s"), spoilt).unwrap();
        objects("is not in", || keeps(&sandbox, input));
    }
    std::fs::write(sandbox.journal_path("s"), &journal).unwrap();
    // And a command that should write nothing, and does.
    objects("the journal was written", || {
        sandbox.unchanged("s", || sandbox.step(&ticket, ["heartbeat"]).ok());
    });
    for text in ["\u{1b}[2J", "a\u{202e}b", "a\rb", "\u{9b}", "\u{7}"] {
        assert!(obeyed(text), "{text:?}");
    }
    assert!(!obeyed("plain text, \u{e9}\n"));
}

#[test]
fn numbers_key_order_and_doubled_keys_survive() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let input = r#"{"zeta":2512292042121000001,"alpha":18446744073709551616,"f":0.10,"e":1e400,"one":1e2,"neg":-0,"a":1,"a":2}"#;
    let seq = sandbox.step_in(&ticket, ["message", "-"], with_input(input)).ok().seq();
    keeps(&sandbox, &format!("\"input\":{input}"));
    let digest = sandbox.program("sha256sum", [""; 0]).stdin(input).go().ok();
    let digest = digest.stdout.split(' ').next().unwrap().to_owned();
    assert_eq!(text(at(&parsed_calls(&sandbox), "/0/args_sha256")), digest);
    let ran = sandbox.step(&ticket, ["run", &format!("{seq}.0"), "--", "cat"]).ok();
    assert_eq!(ran.stdout, input, "CMD gets every digit");
}

#[test]
fn lone_surrogates_survive_in_bodies() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let input = r#"{"x":"a\ud83d b \udc00"}"#;
    let seq = sandbox.step_in(&ticket, ["message", "-"], with_input(input)).ok().seq();
    keeps(&sandbox, input);
    let ran = sandbox.step(&ticket, ["run", &format!("{seq}.0"), "--", "cat"]).ok();
    assert_eq!(ran.stdout, input);
    // In a tool's name or a call's id it is U+FFFD.
    let odd =
        with_input("{}").replace("\"bash\"", r#""ba\ud800sh""#).replace("\"id\":\"c\"", r#""id":"c\udfff""#);
    sandbox.step_in(&ticket, ["message", "-"], odd).ok();
    assert_eq!(at(&parsed_calls(&sandbox), "/0/tool"), "ba\u{fffd}sh");
    assert_eq!(at(&parsed_calls(&sandbox), "/0/id"), "c\u{fffd}");
    sandbox.step(&ticket, ["claim", "c\u{fffd}"]).ok();
}

/// `calls` of the newest record; its body may be what serde_json refuses.
fn parsed_calls(sandbox: &Sandbox) -> serde_json::Value {
    let line = last_line(sandbox);
    let from = line.find("\"calls\":").unwrap() + "\"calls\":".len();
    let to = line.rfind(",\"base\":").unwrap();
    serde_json::from_str(&line[from..to]).unwrap()
}

#[test]
fn white_space_outside_strings_goes_and_inside_stays() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let spaced = with_input(" {\r\n\t\"a b\" :\t[ 1 ,  2 ] , \"c\":\" d  e \" } ");
    sandbox.step_in(&ticket, ["message", "-"], format!("\r\n {spaced}\r\n")).ok();
    assert!(last_line(&sandbox).contains(r#""input":{"a b":[1,2],"c":" d  e "}"#), "{}", last_line(&sandbox));
}

#[test]
fn deep_bodies_are_kept_and_bottomless_ones_refused() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let note = |levels: usize| sandbox.step_in(&ticket, ["--json", "note", "-"], nested(levels));
    note(200).ok();
    note(1_000).ok();
    sandbox.unchanged("s", || {
        note(1_001).exits(2).error("too_deep");
        note(100_000).exits(2).error("too_deep");
        sandbox.step_in(&ticket, ["message", "-"], with_input(&nested(100_000))).exits(2);
        sandbox
            .step_in(
                &ticket,
                ["entry", "-"],
                format!("{{\"type\":\"x\",\"id\":\"y\",\"z\":{}}}", nested(100_000)),
            )
            .exits(2);
        sandbox.step(&ticket, ["claim", "x", "--tool", "y", "--args", &nested(10_000)]).exits(2);
    });
}

#[test]
fn a_record_has_a_longest_length() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    sandbox.unchanged("s", || {
        let ran = sandbox.cmd(["--json", "--max-record", "2000", "step", "--ticket", &ticket, "note", "-"]);
        let error = ran.stdin("x".repeat(2_000)).go().exits(2).error("too_long");
        assert!(text(&error["hint"]).contains("--max-record"), "{error}");
    });
    sandbox.step_in(&ticket, ["note", "-"], "x".repeat(2_000)).ok();
    // What stands there already is read whatever the limit.
    sandbox.cmd(["--max-record", "2000", "step", "--ticket", &ticket, "heartbeat"]).go().ok();
}

#[test]
fn a_byte_order_mark_and_bad_utf_8_are_told() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let body = assistant("x", &[]).to_string();
    // JSON in a file that a Windows tool wrote.
    sandbox.step_in(&ticket, ["message", "-"], format!("\u{feff}{body}")).ok();
    assert!(last_line(&sandbox).contains("\"message\":{\"api\""), "{}", last_line(&sandbox));
    let mut bytes = with_input(r#"{"p":"a?b"}"#).into_bytes();
    let place = bytes.iter().position(|byte| *byte == b'?').unwrap();
    bytes[place] = 0xff;
    let ran = sandbox.step_in(&ticket, ["message", "-"], bytes).ok();
    assert!(last_line(&sandbox).contains("a\u{fffd}b"));
    ran.says("UTF-8");
}

#[test]
fn any_json_is_a_body() {
    let sandbox = Sandbox::new();
    for (session, meta) in [("a", "null"), ("b", "1"), ("c", "\"x\""), ("d", "[]"), ("e", "false")] {
        sandbox.run(["admit", session, "--text", "Hi", "--meta", meta]).ok();
        assert!(string(sandbox.journal_bytes(session)).contains(&format!("\"meta\":{meta},\"base\"")));
    }
    // U+2028 and raw control-free text stay on one line.
    sandbox.run(["admit", "f", "--text", "a\u{2028}b\n\"\\\u{1}c"]).ok();
    assert_eq!(sandbox.journal("f")[1]["input"], "a\u{2028}b\n\"\\\u{1}c");
    assert_eq!(sandbox.journal("f").len(), 3);
    sandbox.run(["admit", "g", "--text", "Hi", "--meta", "{\"a\":}"]).exits(2);
}

fn nested(levels: usize) -> String {
    "[".repeat(levels) + &"]".repeat(levels)
}

/// Wherever a body is read, a bottomless one is refused before anything is written, and nothing runs out of stack.
#[test]
fn bottomless_bodies_are_refused_wherever_they_are_read() {
    let sandbox = Sandbox::new();
    let deep = nested(100_000);
    // The longest word that a command line may have is 128 KiB.
    let word = nested(60_000);
    sandbox.write("deep", &deep);
    sandbox.write("policy", format!(r#"{{"format":"turnkeep-policy/1","rules":{deep}}}"#));
    let admit =
        |words: &[&str]| sandbox.run([&["--json", "admit", "new", "--owner-pid", "none"], words].concat());
    admit(&["--input", "deep"]).exits(2).error("too_deep");
    admit(&["--text", "x", "--meta", &word]).exits(2);
    admit(&["--text", "x", "--tree", "none.jsonl", "--tree-header", &word]).exits(2);
    admit(&["--text", "x", "--policy", "policy"]).exits(2);
    assert!(!sandbox.journal_path("new").exists() && !sandbox.path("none.jsonl").exists());

    let ticket =
        sandbox.run(["admit", "s", "--text", "x", "--delivery", "k", "--owner-pid", "none"]).ok().line();
    sandbox.announce(&ticket, &[("c", "bash", json!({})), ("d", "bash", json!({}))]);
    sandbox.step(&ticket, ["claim", "c"]).ok();
    sandbox.unchanged("s", || {
        for words in [
            vec!["message", "deep"],
            vec!["entry", "deep"],
            vec!["note", "deep"],
            vec!["result", "c", "deep"],
            vec!["settle", "deep"],
            vec!["steer", "deep"],
            vec!["reconcile", "c", "--outcome", "applied", "--by", "ann", "deep", "--force", "--why", "x"],
            vec!["claim", "d", "--link", &word],
            vec!["claim", "new", "--tool", "t", "--args", &word],
            vec!["run", "--tool", "t", "--args", &word, "new", "--", "true"],
        ] {
            let code = sandbox.step(&ticket, &words).code();
            // A script tells what was not started from what its command said.
            assert!(code == 2 || (code == 125 && words[0] == "run"), "{code}: {}", words[0]);
        }
    });

    // A string that holds such arguments is a string.
    let chat = format!(
        r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"e","type":"function","function":{{"name":"bash","arguments":"{deep}"}}}}]}}"#
    );
    let piece = format!(r#"{{\"a\":{deep}}}"#);
    let stream: String = [
        r#"{"type":"message_start","message":{"type":"message","role":"assistant","content":[],"stop_reason":null}}"#.to_owned(),
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"e","name":"bash","input":{}}}"#.to_owned(),
        format!(r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"input_json_delta","partial_json":"{piece}"}}}}"#),
        r#"{"type":"content_block_stop","index":0}"#.to_owned(),
        r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"}}"#.to_owned(),
        r#"{"type":"message_stop"}"#.to_owned(),
    ]
    .iter()
    .map(|event| format!("event: x\ndata: {event}\n\n"))
    .collect();
    for (session, body, args) in
        [("chat", chat, deep.clone()), ("stream", stream, format!(r#"{{"a":{deep}}}"#))]
    {
        let ticket = sandbox.run(["admit", session, "--text", "x", "--owner-pid", "none"]).ok().line();
        let seq = sandbox.step_in(&ticket, ["message", "-"], body).ok().seq();
        let ran = sandbox.step(&ticket, ["run", &format!("{seq}.0"), "--", "cat"]).ok();
        // JSON in a string stays a string: its quotes are escaped.
        assert!(ran.stdout == format!("\"{}\"", args.replace('"', "\\\"")), "{session}");
    }
    // What a publisher prints is its receipt, whatever it is: the reply is out.
    let ticket =
        sandbox.run(["admit", "out", "--text", "x", "--delivery", "k2", "--owner-pid", "none"]).ok().line();
    sandbox.step_in(&ticket, ["message", "-"], assistant("Done.", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    sandbox.step(&ticket, ["deliver", "--", "cat", "deep"]).ok();
    assert_eq!(sandbox.last("out")["state"], "sent");
}

#[test]
fn bottomless_lines_of_files_are_named() {
    let sandbox = Sandbox::new();
    let deep = nested(100_000);
    // A line that another program wrote, its hash as it should be.
    let mut journal = Journal::opened(SESSION);
    journal.admit("t1", None, "\"Hi\"", "");
    let journal =
        journal.attempt(1, "admit").with("note", &format!(r#""turn":"t1","attempt":1,"content":{deep}"#));
    sandbox.run(["admit", SESSION, "--text", "x"]).ok();
    std::fs::write(sandbox.journal_path(SESSION), &journal.bytes).unwrap();
    let document = sandbox.run(["--json", "verify", SESSION]).exits(3).json();
    assert_eq!(
        (&document["findings"][0]["code"], &document["findings"][0]["line"]),
        (&json!("TK016"), &json!(4))
    );
    sandbox.run(["inspect", SESSION]).exits(3);
    sandbox.run(["inspect", SESSION, "--records"]).exits(3);
    sandbox.unchanged(SESSION, || {
        sandbox.run(["recover", SESSION, "--owner-pid", "none"]).exits(3);
        sandbox.run(["admit", SESSION, "--text", "y", "--owner-pid", "none"]).exits(3);
    });
    // An entry of the session file that nothing has to be copied from.
    let entry = format!(
        r#"{{"type":"message","id":"a1","parentId":null,"timestamp":"2026-01-05T09:00:01.000Z","message":{{"role":"user","content":"x","deep":{deep}}}}}"#
    );
    sandbox.write("chat.jsonl", format!("{}\n{entry}\n", header()));
    sandbox.run(["admit", "s", "--text", "x", "--tree", "chat.jsonl", "--owner-pid", "none"]).ok();
    let named = sandbox.run(["verify", "s", "--with-tree"]).ok().stdout;
    assert!(named.contains("TK095") && named.contains("chat.jsonl:2"), "{named}");
    sandbox.run(["inspect", "s", "--context"]).ok();
    sandbox.run(["inspect", "s", "--draw-tree"]).exits(3);
    sandbox.run(["recover", "s", "--owner-pid", "none"]).ok();
}

/// The byte at which a record becomes too long, by the length of a note with `len` letters.
fn note_of(sandbox: &Sandbox, ticket: &str, len: usize) -> usize {
    let before = sandbox.journal_bytes("s").len();
    sandbox.step_in(ticket, ["note", "-"], "x".repeat(len)).ok();
    sandbox.journal_bytes("s").len() - before - 1
}

#[test]
fn the_longest_record_fits_and_one_byte_more_does_not() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let around = note_of(&sandbox, &ticket, 10) - 10;
    let small = ["--max-record", "4000"];
    // 64 MiB take a while in a debug build.
    let slow = std::env::var_os("TURNKEEP_SLOW").is_some();
    for (max, words) in [(4_000, &small[..]), (64 << 20, &[])].into_iter().take(1 + usize::from(slow)) {
        let note = |len: usize| {
            let words = [words, &["--json", "step", "--ticket", &ticket, "note", "-"]].concat();
            sandbox.cmd(words).stdin("x".repeat(len)).go()
        };
        // Its offset is a number in the record, so a longer journal makes longer records: look at the last one.
        let longest = max - around;
        sandbox.unchanged("s", || {
            let error = note(longest + 1).exits(2).error("too_long");
            assert!(text(&error["message"]).contains(&(max + 1).to_string()), "{error}");
        });
        let before = sandbox.journal_bytes("s").len();
        note(longest).ok();
        assert_eq!(sandbox.journal_bytes("s").len() - before, max + 1, "and its newline");
    }
    sandbox.run(["verify", "s"]).ok();
    sandbox.step(&ticket, ["heartbeat"]).ok();
}

/// A call that ran has a result, however long its output is and however it is escaped.
#[test]
fn output_that_no_record_could_hold_is_cut() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let loud = "head -c 50000 /dev/zero | tr '\\0' '\\1'; head -c 50000 /dev/zero | tr '\\0' '\\2' >&2";
    let words = ["--max-record", "4000", "step", "--ticket", &ticket, "run", "--tool", "sh", "loud", "--"];
    let ran = sandbox.run([&words[..], &["sh", "-c", loud]].concat()).ok();
    assert_eq!(ran.stdout.len(), 50_000, "all of it is passed through");
    let result = sandbox.last("s");
    assert_eq!((&result["kind"], &result["truncated"]), (&json!("result"), &json!(true)));
    assert!(text(&result["stdout"]).starts_with('\u{1}') && text(&result["stderr"]).ends_with('\u{2}'));
    sandbox.run(["verify", "s"]).ok();
}

#[test]
fn nul_escapes_survive_and_start_nothing() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let input = r#"{"a\u0000":"\u0000","b":["\u0000"]}"#;
    let seq = sandbox.step_in(&ticket, ["message", "-"], with_input(input)).ok().seq();
    keeps(&sandbox, input);
    assert_eq!(sandbox.step(&ticket, ["run", &format!("{seq}.0"), "--", "cat"]).ok().stdout, input);
    // No process can be told such a name: the call is answered, and its command was not started.
    let odd = with_input("{}").replace("\"bash\"", r#""ba\u0000sh""#).replace("\"id\":\"c\"", "\"id\":\"d\"");
    let seq = sandbox.step_in(&ticket, ["message", "-"], odd).ok().seq();
    sandbox.step(&ticket, ["run", &format!("{seq}.0"), "--", "touch", "ran"]).ok().says("not started");
    assert!(!sandbox.path("ran").exists());
    assert_eq!((&sandbox.last("s")["kind"], &sandbox.last("s")["error"]), (&json!("result"), &json!(true)));
    // Bytes of an output, and of a file that is text.
    sandbox.step(&ticket, ["run", "--tool", "printf", "one", "--", "printf", "a\\0b"]).ok();
    assert_eq!(sandbox.last("s")["stdout"], "a\0b");
    sandbox.step_in(&ticket, ["note", "-"], "a\0b").ok();
    assert_eq!(sandbox.last("s")["content"], "a\0b");
}

#[test]
fn empty_content_marks_and_crlf_in_each_input() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    sandbox.unchanged("s", || {
        for kind in ["message", "entry"] {
            for body in ["", "\n", "\r\n", "\u{feff}", "\u{feff}\r\n"] {
                let code = sandbox.step_in(&ticket, [kind, "-"], body).code();
                assert!(code == 2 || (code == 0 && kind == "entry"), "{kind} {body:?}: {code}");
            }
        }
        sandbox.run(["--json", "admit", "empty", "--input", "-"]).exits(2);
        sandbox.write("none", "");
        sandbox.run(["--json", "admit", "empty", "--input", "none"]).exits(2);
        assert!(!sandbox.journal_path("empty").exists());
    });
    // A tool that says nothing said something.
    let call = format!("{}.0", sandbox.announce(&ticket, &[("c", "bash", json!({}))]));
    sandbox.step(&ticket, ["claim", &call]).ok();
    sandbox.step_in(&ticket, ["result", &call, "-"], "").ok();
    assert_eq!(sandbox.last("s")["content"], "");
    // Lines of a Windows editor.
    let entry = |id: &str| json!({"type": "custom", "id": id, "parentId": null, "timestamp": "2026-01-05T09:00:01.000Z", "customType": "x"});
    let ran =
        sandbox.step_in(&ticket, ["entry", "-"], format!("\u{feff}{}\r\n{}\r\n", entry("e1"), entry("e2")));
    ran.ok();
    let ids: Vec<Value> = sandbox
        .journal("s")
        .iter()
        .filter(|record| record["kind"] == "entry")
        .map(|record| record["entry"]["id"].clone())
        .collect();
    assert_eq!(ids, ["e1", "e2"]);
    assert!(!string(sandbox.journal_bytes("s")).contains("\\r"));
}

/// What a terminal obeys: escape, other control characters, marks that turn the direction of text.
const HOSTILE: &str = "\u{1b}]0;x\u{7}\u{9b}2J\u{202e}\u{2066}\u{200f}\u{61c}\r\u{8}";

fn obeyed(text: &str) -> bool {
    let hostile = |char: char| HOSTILE.contains(char) && !char.is_ascii_graphic() && char != ' ';
    text.chars().any(|char| (char.is_control() && char != '\n') || hostile(char))
}

#[test]
fn nothing_that_people_read_is_obeyed_by_a_terminal() {
    let sandbox = Sandbox::new();
    let odd = |text: &str| format!("{text}{HOSTILE}");
    let mut root = header();
    root["cwd"] = json!(odd("/proj"));
    let lines = [
        root,
        crate::kit::entry(&odd("a1"), None, &crate::kit::user(&odd("hello"))),
        json!({"type": odd("custom"), "id": "a2", "parentId": odd("a1"), "timestamp": odd("t")}),
        json!({"type": "message", "id": odd("a3"), "parentId": odd("nobody"), "message": {"role": odd("user"), "content": odd("x")}}),
        json!({"type": "custom", "id": "a4", "parentId": "a2", "timestamp": "2026-01-05T09:00:01.000Z", "customType": odd("y")}),
    ];
    sandbox.write("chat.jsonl", crate::kit::tree(&lines));
    let meta = json!(odd("meta")).to_string();
    let ticket = sandbox
        .run([
            "admit",
            "s",
            "--text",
            &odd("do"),
            "--meta",
            &meta,
            "--tree",
            "chat.jsonl",
            "--owner-pid",
            "none",
        ])
        .ok()
        .line();
    sandbox.announce(
        &ticket,
        &[(&odd("c1"), &odd("rm"), json!({odd("k"): odd("v")})), ("c2", &odd("mail"), json!({}))],
    );
    sandbox.step(&ticket, ["claim", &odd("c1")]).ok();
    sandbox.step(&ticket, ["dispatch", "c2", "--to", &odd("ci")]).ok();
    sandbox.step(&ticket, ["note", "-"]).code();
    for words in [
        vec!["inspect"],
        vec!["inspect", "s"],
        vec!["inspect", "s", "--draw-tree"],
        vec!["inspect", "s", "--call", "c2"],
        vec!["recover", "s", "--dry-run", "--owner-pid", "none"],
        vec!["verify", "s", "--with-tree"],
        vec!["verify", "./chat.jsonl"],
        vec!["step", "--ticket", &ticket, "settle"],
        vec!["step", "--ticket", &ticket, "claim", "nobody"],
        vec!["inspect", "nobody\u{202e}\u{61c}"],
        vec!["verify", "nobody\u{202e}"],
    ] {
        let ran = sandbox.run(&words);
        assert!(!obeyed(&ran.stderr), "{words:?}: {:?}", ran.stderr);
        assert!(!(ran.stdout + &ran.stderr).is_empty());
        // What a script gets is as it was given; a terminal is another matter.
        if sandbox.has("script") {
            let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
            let line = format!("turnkeep {}", words.join(" "));
            let shown =
                sandbox.program("script", ["-qec", &line, "/dev/null"]).env("TERM", "dumb").go().stdout;
            assert!(!shown.is_empty() && !obeyed(&shown.replace("\r\n", "\n")), "{line}: {shown:?}");
        } else {
            eprintln!("skipped: a terminal, since there is no `script`");
        }
    }
}

/// The same of what is said about words that the command line refuses.
#[test]
fn a_refused_command_line_is_shown_as_text() {
    let sandbox = Sandbox::new();
    for (words, shown) in [
        (vec!["--bad\u{1b}[2J"], r"--bad\u{1b}[2J"),
        (vec!["\u{1b}[2J"], r"\u{1b}[2J"),
        (vec!["step", "message", "--format", "\u{1b}]0;x\u{7}"], r"\u{1b}]0;x\u{7}"),
        (vec!["--color", "\u{9b}31m", "inspect"], r"\u{9b}31m"),
        (vec!["inspect", "--wait", "\u{202e}1"], r"\u{202e}1"),
        (vec!["inspect", "--wait", "1\nturnkeep: recovered"], r"1\nturnkeep: recovered"),
    ] {
        for more in [&[] as &[&str], &["--color=always"]] {
            if words.contains(&"--color") && !more.is_empty() {
                continue;
            }
            let ran = sandbox.run([more, &words].concat()).exits(2).says(shown);
            let obeyed = |char: char| (char.is_control() && char != '\n') || char == '\u{202e}';
            assert!(!ran.stderr.contains(obeyed), "{words:?}: {:?}", ran.stderr);
        }
        // A document has the word as it is, spelled as JSON spells it.
        let ran = sandbox.run([&["--json"], &words[..]].concat()).exits(2);
        let message = text(&ran.error("usage")["message"]);
        assert!(
            words
                .iter()
                .any(|word| message.contains(word) && word.contains(|char: char| !char.is_ascii_graphic())),
            "{message:?}"
        );
    }
}

#[test]
fn a_refused_command_line_and_help_are_coloured_as_asked() {
    let sandbox = Sandbox::new();
    let colored = |text: &str| text.contains("\u{1b}[");
    for words in [&["--bad"] as &[&str], &["--help"], &["step", "--help"], &["step", "nonsense"]] {
        let said = |more: &[&str]| {
            let ran = sandbox.run([more, words].concat());
            ran.stdout + &ran.stderr
        };
        assert!(!colored(&said(&[])) && !colored(&said(&["--color", "never"])), "{words:?} in a pipe");
        assert!(colored(&said(&["--color", "always"])) && colored(&said(&["--color=always"])), "{words:?}");
        assert!(!colored(&said(&["--color=always", "--color=never"])), "{words:?}: the last one counts");
        if !sandbox.has("script") {
            eprintln!("skipped: a terminal, since there is no `script`");
            continue;
        }
        let on_terminal = |more: &str, key: &str, value: &str| {
            let line = format!("turnkeep {more} {}", words.join(" "));
            sandbox
                .program("script", ["-qec", &line, "/dev/null"])
                .env("TERM", "xterm")
                .env(key, value)
                .go()
                .stdout
        };
        assert!(colored(&on_terminal("", "X", "")), "{words:?} on a terminal");
        assert!(!colored(&on_terminal("--color never", "X", "")), "{words:?} without");
        assert!(!colored(&on_terminal("", "NO_COLOR", "1")), "{words:?} with NO_COLOR");
        assert!(!colored(&on_terminal("", "TERM", "dumb")), "{words:?} on a dumb terminal");
    }
}

/// What nobody could record is not read to its end.
#[test]
fn input_without_an_end_is_refused() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let step = format!("turnkeep step --ticket {ticket} note");
    sandbox.unchanged("s", || {
        let ran = sandbox.sh(&format!("ulimit -v 3000000; yes | {step} -"));
        ran.exits(2).says("more than 268435456 bytes").says("nothing was written");
        sandbox
            .sh(&format!("ulimit -v 3000000; {step} /dev/zero"))
            .exits(2)
            .says("more than 268435456 bytes");
    });
}
