//! Heads kept elsewhere: the one thing that shows a journal cut on a line boundary.

use crate::kit::{Owner, Sandbox, small_tree};

fn session() -> (Sandbox, String) {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "s", "--text", "x", "--owner-pid", "none"]).ok().line();
    sandbox.step_in(&ticket, ["note", "-"], "one").ok();
    (sandbox, ticket)
}

fn cut_last_line(sandbox: &Sandbox) {
    let bytes = sandbox.journal_bytes("s");
    let end = bytes[..bytes.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    std::fs::write(sandbox.journal_path("s"), &bytes[..end]).unwrap();
}

#[test]
fn an_expected_head_must_be_contained() {
    let (sandbox, ticket) = session();
    let last = sandbox.last("s");
    let head = format!("{}:{}", last["seq"], last["hash"].as_str().unwrap());
    sandbox.run(["verify", "s", "--expect-head", &head]).ok();
    // Containing it is enough: the journal may have grown since.
    sandbox.step_in(&ticket, ["note", "-"], "two").ok();
    sandbox.run(["verify", "s", "--expect-head", &head]).ok();
    cut_last_line(&sandbox);
    cut_last_line(&sandbox);
    sandbox.run(["verify", "s"]).ok();
    sandbox.run(["verify", "s", "--expect-head", &head]).exits(6);
    sandbox.run(["verify", "s", "--expect-head", "nonsense"]).exits(2);
}

#[test]
fn a_file_of_heads_is_demanded_and_rewritten_when_all_is_sound() {
    let (sandbox, ticket) = session();
    let heads = sandbox.path("heads");
    let heads = heads.to_str().unwrap();
    let read = || std::fs::read_to_string(heads).unwrap_or_default();
    sandbox.run(["verify", "--all", "--heads", heads]).ok();
    let first = read();
    let last = sandbox.last("s");
    assert!(first.starts_with(&format!("{}:{} ", last["seq"], last["hash"].as_str().unwrap())), "{first}");
    sandbox.step_in(&ticket, ["note", "-"], "two").ok();
    sandbox.run(["verify", "--all", "--heads", heads]).ok();
    let second = read();
    assert_ne!(first, second);
    cut_last_line(&sandbox);
    sandbox.run(["verify", "--all", "--heads", heads]).exits(6);
    assert_eq!(read(), second, "what was not found is demanded again");
}

#[test]
fn a_session_that_the_heads_know_and_that_is_gone_is_told_whatever_is_named() {
    let (sandbox, _) = session();
    sandbox.run(["verify", "--all", "--heads", "heads"]).ok();
    let before = std::fs::read(sandbox.path("heads")).unwrap();
    std::fs::remove_file(sandbox.journal_path("s")).unwrap();
    for words in [&["s"][..], &["state/sessions/s.jsonl"], &["--all"], &["s", "--all"], &[]] {
        let ran = sandbox.run([&["verify", "--heads", "heads"][..], words].concat()).exits(6);
        assert!(ran.stdout.contains("TK033 file-missing"), "{words:?}: {}", ran.stdout);
    }
    // What nobody ever wrote down is just not there.
    sandbox.run(["verify", "t", "--heads", "heads"]).exits(8);
    assert_eq!(std::fs::read(sandbox.path("heads")).unwrap(), before);
}

/// A CI server shows the verdicts, one case for each file.
#[test]
fn a_report_tells_the_verdicts_as_junit() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    for session in ["sound", "torn"] {
        sandbox.admit(&owner, session, &[]);
    }
    let torn = [&sandbox.journal_bytes("torn")[..], b"{\"seq\":"].concat();
    std::fs::write(sandbox.journal_path("torn"), &torn).unwrap();
    sandbox.write("chat.jsonl", small_tree().trim_end());
    sandbox.write("odd.jsonl", "no <journal> & \u{1b}[31m\n");
    let all = ["verify", "sound", "torn", "./chat.jsonl", "./odd.jsonl", "--report", "junit=report.xml"];
    let ran = sandbox.run(all).exits(3);
    assert_eq!(sandbox.journal_bytes("torn"), torn);
    let xml = std::fs::read_to_string(sandbox.path("report.xml")).unwrap();
    let cases: Vec<&str> = xml.split("<testcase ").skip(1).collect();
    let told = |case: &str, words: &[&str]| {
        assert!(words.iter().all(|word| case.contains(word)), "{words:?} in {case}");
    };
    assert!(xml.contains(r#"tests="4""#) && xml.contains(r#"failures="2""#), "{xml}");
    assert!(!cases[0].contains("<failure"), "{xml}");
    told(cases[1], &[r#"<failure message=""#, r#"type="needs-recovery""#, "TK001 torn-tail", "hint: "]);
    told(cases[2], &["<system-out>", "TK083 tree-no-newline"]);
    told(cases[3], &[r#"type="damaged""#, "/odd.jsonl"]);
    assert!(!xml.contains('\u{1b}'), "XML has no such character: {xml}");
    assert!(ran.stdout.lines().count() > 4, "and it is told as ever: {}", ran.stdout);
    // Written anew each time, by a name of its own first.
    sandbox.run(["verify", "sound", "--report", "junit=report.xml"]).ok();
    let again = std::fs::read_to_string(sandbox.path("report.xml")).unwrap();
    assert!(again.contains(r#"tests="1""#) && again.contains(r#"failures="0""#), "{again}");
    // A verdict is not lost with a report.
    let nowhere = "junit=nowhere/report.xml";
    sandbox.run(["--json", "verify", "sound", "--report", nowhere]).exits(1);
    sandbox.run(["verify", "sound", "torn", "--report", nowhere]).exits(13).says("could not write nowhere");
    for wrong in ["report.xml", "junit=", "html=report.html"] {
        sandbox.run(["verify", "sound", "--report", wrong]).exits(2).says("junit=FILE");
    }
}
