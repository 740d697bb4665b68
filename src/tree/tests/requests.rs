//! What Pi would send of a branch, where a strict provider refuses it or Pi mends it.

use super::*;

/// A branch in file order, each line under the one before: what it is under the id `e1`, `e2` and so on.
fn branch(lines: &[&str]) -> Vec<String> {
    let line = |(at, line): (usize, &&str)| {
        let (id, parent) = (format!("e{}", at + 1), format!("e{at}"));
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["user"] if at == 0 => said("user", &id, None),
            ["asks", ref calls @ ..] => asks(&id, &parent, calls, "toolUse"),
            ["fails", ref calls @ ..] => asks(&id, &parent, calls, "error"),
            ["aborts", ref calls @ ..] => asks(&id, &parent, calls, "aborted"),
            ["result", call] => answers(&id, &parent, call),
            ["keeps", kept] => {
                let rest = format!(r#","summary":"s","firstKeptEntryId":"{kept}","tokensBefore":9"#);
                entry("compaction", &id, Some(&parent), &rest)
            }
            ["edits", target, with] => {
                let rest = format!(r#","targetId":"{target}","replacement":{with}"#);
                entry("context_edit", &id, Some(&parent), &rest)
            }
            [role @ ("user" | "system" | "assistant")] => said(role, &id, Some(&parent)),
            [kind] => entry(kind, &id, Some(&parent), r#","summary":"s""#),
            _ => panic!("{line}"),
        }
    };
    lines.iter().enumerate().map(line).collect()
}

fn of(lines: &[&str]) -> Vec<(&'static str, Severity, Option<usize>)> {
    codes(&tree(&branch(lines)))
}

fn one(lines: &[&str], code: &str, severity: Severity, line: usize, says: &str) {
    let found = only(&tree(&branch(lines)));
    assert_eq!((found.code, found.severity, found.line), (code, severity, Some(line)), "{lines:?}");
    assert!(found.message.contains(says), "{lines:?}: {}", found.message);
}

fn orphan(lines: &[&str], line: usize, says: &str) {
    one(lines, "tree-result-orphan", Severity::Damage, line, says);
}

fn unanswered(lines: &[&str], line: usize, says: &str) {
    one(lines, "tree-call-unanswered", Severity::Note, line, says);
}

#[test]
fn what_pi_sends_as_providers_want_it_is_no_finding() {
    for sound in [
        &["user", "asks c1 c2", "result c2", "result c1", "assistant"][..],
        // The last message may wait for its results.
        &["user", "asks c1 c2"],
        &["user", "asks c1 c2", "result c2"],
        &["user", "asks c1 c2", "result c2", "custom", "label"],
        // Pi holds a system message back until the results are sent.
        &["user", "asks c1", "system", "result c1", "assistant"],
        &["user", "asks c1", "custom", "result c1", "user"],
        // A provider uses its ids again.
        &["user", "asks c1", "result c1", "asks c1", "result c1", "user"],
        // Two calls of one id have two results, or one.
        &["user", "asks c1 c1", "result c1", "result c1", "user"],
        &["user", "asks c1 c1", "result c1", "user"],
        // What ended badly asks for nothing.
        &["user", "aborts c1", "user", "fails c2", "user"],
        &["user", "aborts c1", "asks c1", "result c1", "user"],
        // The compaction goes to the front, and what it leaves out is not sent.
        &["user", "asks c1", "keeps e2", "result c1", "user"],
        &["user", "asks c1", "result c1", "keeps e4", "user"],
        &["user", "result c9", "asks c1", "user", "keeps e4", "user"],
        &["user", "result c9", "asks c1", "result c1", "keeps e3", "user"],
        &["user", "asks c1", "result c1", "keeps e3", "asks c2", "result c2", "keeps e5", "user"],
        // An edit takes a result out that nobody asked for, or changes what is said.
        &["user", "result c9", "edits e2 null", "user"],
        &["user", "asks c1", "result c1", r#"edits e3 {"content":"cut"}"#, "user"],
    ] {
        assert_eq!(of(sound), [], "{sound:?}");
    }
}

#[test]
fn a_result_without_its_call_is_damage() {
    orphan(&["user", "result c1", "user"], 3, "entry e2 is a result without its call c1: no message");
    orphan(&["user", "result c1", "asks c1", "user"][..3], 3, "comes only behind it, in e3");
    for bad in ["aborts c1", "fails c1"] {
        orphan(&["user", bad, "result c1", "user"], 4, "is of e2, which ended in error or abort");
    }
    orphan(&["user", "asks c1", "result c1", "aborts c1", "result c1"], 6, "is of e4, which ended");
    // Too late: Pi has put a result in its place already.
    let late = ["user", "asks c1", "assistant", "result c1", "user"];
    orphan(&late, 5, "its call is of e2, and e3 stands between the two");
    orphan(&["user", "asks c1", "aborts", "result c1"], 5, "e3 stands between the two");
    orphan(&["user", "asks c1", "user", "assistant", "result c1"], 6, "e3 stands between the two");
    let edited = ["user", "asks c1", "result c1", r#"edits e2 {"content":"cut"}"#, "user"];
    orphan(&edited, 4, "a context edit took its call out of e2");
    orphan(&["user", "asks c1", "result c1", "edits e2 null", "user"], 4, "a context edit took its call out");
    // One that names no call answers none.
    let mut nameless = branch(&["user", "result c1"]);
    nameless[1] = nameless[1].replace(r#""toolCallId":"c1","#, "");
    assert_eq!(codes(&tree(&nameless)), [("tree-result-orphan", Severity::Damage, Some(3))]);
}

#[test]
fn results_of_other_branches_do_not_matter() {
    let mut lines = branch(&["user", "asks c1", "result c1", "user"]);
    lines.insert(1, answers("x", "e1", "c9"));
    lines.insert(4, answers("y", "e3", "c1"));
    assert_eq!(codes(&tree(&lines)), []);
}

#[test]
fn one_result_too_many_is_damage() {
    let doubled = |lines: &[&str], line| {
        one(
            lines,
            "tree-result-doubled",
            Severity::Damage,
            line,
            "one more result of call c1 of e2, which e3 answers",
        );
    };
    doubled(&["user", "asks c1", "result c1", "result c1", "user"], 5);
    doubled(&["user", "asks c1", "result c1", "assistant", "result c1"], 6);
    doubled(&["user", "asks c1 c2", "result c1", "result c2", "result c1"], 6);
    doubled(&["user", "asks c1 c1", "result c1", "result c1", "result c1"], 6);
}

#[test]
fn a_compaction_that_cuts_calls_off_their_results_is_damage() {
    let cut = |lines: &[&str], line, says| one(lines, "tree-compaction-cut", Severity::Damage, line, says);
    let kept = ["user", "asks c1 c2", "result c1", "result c2", "assistant", "keeps e3"];
    cut(
        &kept,
        7,
        "entry e6 is a compaction that cuts off the calls of results that it keeps: e3 (called by e2), e4 (called by e2)",
    );
    cut(&[&kept[..5], &["keeps e4"]].concat(), 7, "keeps: e4 (called by e2)");
    cut(&["user", "asks c1", "keeps e3", "result c1"], 4, "keeps: e4 (called by e2)");
    // The newest compaction counts.
    cut(&[&kept[..], &["user", "keeps e4"]].concat(), 9, "entry e8 is");
    assert_eq!(of(&[&kept[..], &["user", "keeps e7"]].concat()), []);
}

#[test]
fn a_version_that_counts_lines_cuts_off_nothing() {
    let lines = branch(&["user", "asks c1", "result c1", "keeps e3", "user"]);
    let old =
        lines.iter().map(|line| line.replace(r#""firstKeptEntryId":"e3""#, r#""firstKeptEntryIndex":3"#));
    let text = file(&old.collect::<Vec<_>>().iter().map(String::as_str).collect::<Vec<_>>());
    let found = codes(&read(text.replace(r#""version":3"#, r#""version":1"#)));
    assert!(found.iter().all(|(code, ..)| *code == "tree-older-version"), "{found:?}");
    assert!(codes(&read(text)).is_empty(), "without a bound nothing before it is kept");
}

#[test]
fn a_call_that_the_branch_went_on_without_is_a_note() {
    for next in ["user", "assistant", "aborts c9", "custom_message", "branch_summary"] {
        unanswered(&["user", "asks c1 c2 c3", "result c2", next], 3, "entry e2 asks for calls");
        unanswered(&["user", "asks c1 c2 c3", "result c2", next], 3, "goes on with e4; Pi puts");
        unanswered(&["user", "asks c1 c2 c3", "result c2", next], 3, "in their place: c1, c3");
    }
    unanswered(&["user", "asks c1", "result c1", "edits e3 null", "user"], 3, "in their place: c1");
    // What is told of as standing elsewhere is not told twice.
    let mut lines = branch(&["user", "asks c1", "user"]);
    lines.insert(2, answers("x", "e2", "c1"));
    assert_eq!(codes(&tree(&lines)), [("tree-result-elsewhere", Severity::Damage, Some(3))]);
}

#[test]
fn what_pi_sends_as_a_user_message_may_stand_between_too() {
    for between in ["user", "custom_message", "branch_summary"] {
        let lines = ["user", "asks c1", between, "result c1", "assistant"];
        one(&lines, "tree-user-between", Severity::Note, 4, "user message e3 stands between call c1 of e2");
    }
    let role = |role: &str, more: &str| {
        let mut lines = branch(&["user", "asks c1", "user", "result c1"]);
        lines[2] = entry("message", "e3", Some("e2"), &format!(r#","message":{{"role":"{role}"{more}}}"#));
        codes(&tree(&lines))
    };
    for said in ["custom", "branchSummary", "compactionSummary", "bashExecution"] {
        assert_eq!(role(said, ""), [("tree-user-between", Severity::Note, Some(4))], "{said}");
    }
    assert_eq!(role("bashExecution", r#","excludeFromContext":true"#), []);
    assert_eq!(role("unheard", ""), []);
}

#[test]
fn a_refused_request_is_told_with_a_way_on() {
    let told = |lines: &[&str], leaf| sent::refused(&tree(&branch(lines)), leaf);
    let lines = ["user", "asks c1", "result c1", "result c1", "user", "result c7", "assistant"];
    assert_eq!(
        told(&lines, Some("e7")).as_deref(),
        Some(
            "a strict provider refuses what Pi would send from entry e7: on line 5, entry e4 is one more result of \
             call c1 of e2, which e3 answers (and 1 more); go back before it, with /tree in Pi or `--leaf e3` at the \
             next admit; `turnkeep inspect SESSION --context` leaves such results out"
        )
    );
    for sound in [None, Some("e3"), Some("elsewhere")] {
        assert_eq!(told(&lines, sound), None);
    }
    // What Pi mends is not told.
    assert_eq!(told(&["user", "asks c1", "user", "asks c2", "user"], Some("e5")), None);
    let between = told(&["user", "asks c1", "user", "result c1"], Some("e4")).expect("a user between");
    assert!(between.contains("on line 4, user message e3") && between.contains("`--leaf e2`"), "{between}");
    let mut first = branch(&["user", "user"]);
    first[0] = answers("e1", "x", "c1").replace(r#""parentId":"x""#, r#""parentId":null"#);
    assert!(sent::refused(&tree(&first), Some("e2")).expect("an orphan").contains("`--leaf root`"));
}

/// One message as it goes to a provider.
enum Wire<'a> {
    Model(Vec<&'a str>),
    Result(&'a str),
    Other,
}

/// What Pi makes of a branch: its context, and then the results that lack.
fn pi_sends<'a>(lines: &[&'a str]) -> Vec<Wire<'a>> {
    let compaction = lines.iter().rposition(|line| line.starts_with("keeps"));
    let first = compaction.map_or(0, |at| {
        let kept = lines[at].trim_start_matches("keeps e").parse::<usize>().expect("a number") - 1;
        if kept < at { kept } else { at + 1 }
    });
    let mut wire = Vec::new();
    let mut pending: Vec<&str> = Vec::new();
    let mut answered: Vec<&str> = Vec::new();
    for line in lines[first..].iter().chain([&"end"]) {
        let mut words = line.split(' ');
        match words.next() {
            Some("result") => {
                let id = words.next().expect("an id");
                answered.push(id);
                wire.push(Wire::Result(id));
            }
            Some(kind @ ("asks" | "aborts" | "user" | "end")) => {
                let lacking = pending.drain(..).filter(|id| !answered.contains(id));
                wire.extend(lacking.map(Wire::Result));
                answered.clear();
                if kind == "asks" {
                    pending = words.collect();
                    wire.push(Wire::Model(pending.clone()));
                } else if kind != "aborts" {
                    wire.push(Wire::Other);
                }
            }
            _ => {}
        }
    }
    wire
}

fn provider_refuses(wire: &[Wire<'_>]) -> bool {
    let mut open: Vec<&str> = Vec::new();
    wire.iter().any(|message| match message {
        Wire::Result(id) => {
            let at = open.iter().position(|open| open == id);
            at.map(|at| open.remove(at)).is_none()
        }
        Wire::Model(_) | Wire::Other if !open.is_empty() => true,
        Wire::Model(calls) => {
            open.clone_from(calls);
            false
        }
        Wire::Other => false,
    })
}

/// Every branch of five lines: what is found is what a provider refuses, and the way back is one that it takes.
#[test]
fn every_short_branch_is_judged_as_a_provider_would() {
    const LINES: [&str; 8] =
        ["user", "asks c1", "asks c1 c2", "aborts c1", "result c1", "result c2", "keeps e2", "keeps e3"];
    let mut both = [0, 0];
    for number in 0..LINES.len().pow(4) {
        let line = |at: u32| LINES[number / LINES.len().pow(at) % LINES.len()];
        let lines: Vec<&str> = std::iter::once("user").chain((0..4).map(line)).collect();
        let refuses = provider_refuses(&pi_sends(&lines));
        let tree = tree(&branch(&lines));
        let told = sent::refused(&tree, Some("e5"));
        assert_eq!(told.is_some(), refuses, "{lines:?}: {told:?}");
        both[usize::from(refuses)] += 1;
        let refusals = ["result-orphan", "result-doubled", "compaction-cut", "user-between"];
        let is_one = |code: &str| refusals.iter().any(|refusal| code.ends_with(refusal));
        assert_eq!(codes(&tree).iter().any(|(code, ..)| is_one(code)), refuses, "{lines:?}");
        if let Some(told) = told {
            let way = told.split("`--leaf ").nth(1).and_then(|rest| rest.split('`').next()).expect("a way");
            assert_eq!(sent::refused(&tree, Some(way)), None, "{lines:?}: {told}");
        }
    }
    assert!(both.iter().all(|count| *count > 500), "{both:?}");
}
