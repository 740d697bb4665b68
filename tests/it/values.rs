//! Bodies are kept as the bytes given.

use crate::kit::{Sandbox, assistant, at, string, text};

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

#[test]
fn numbers_key_order_and_doubled_keys_survive() {
    let sandbox = Sandbox::new();
    let ticket = ticket(&sandbox);
    let input = r#"{"zeta":2512292042121000001,"alpha":18446744073709551616,"f":0.10,"e":1e400,"one":1e2,"neg":-0,"a":1,"a":2}"#;
    let seq = sandbox.step_in(&ticket, ["message", "-"], with_input(input)).ok().seq();
    assert!(last_line(&sandbox).contains(&format!("\"input\":{input}")), "{}", last_line(&sandbox));
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
    assert!(last_line(&sandbox).contains(input));
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
    // An output that is too long to be recorded: 124 for a script, which may not run it again.
    let words = [
        "--max-record",
        "3000",
        "step",
        "--ticket",
        &ticket,
        "run",
        "--tool",
        "x",
        "one",
        "--",
        "head",
        "-c",
        "9000",
        "/dev/zero",
    ];
    sandbox
        .run(words)
        .exits(124)
        .says("could not be recorded")
        .says("recover")
        .says_not("nothing was written");
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
