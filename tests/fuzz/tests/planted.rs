//! Mistakes on purpose: a body whose subject lies panics.

use turnkeep::journal::load::Reach;
use turnkeep::json::{Raw, RawError};
use turnkeep::policy::{Policy, Rule};
use turnkeep::record::Replay;
use turnkeep::turn::Retain;
use turnkeep::{chain, message, tree};
use turnkeep_fuzz::message::{self as message_body, Take, ToPi};
use turnkeep_fuzz::{body, history, policy, record, scan, verify};

fn fixture(name: &str) -> Vec<u8> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/every-kind");
    std::fs::read(folder.join(name)).expect("read")
}

/// Demands that a body objects.
#[track_caller]
fn objects(words: &str, body: impl FnOnce()) {
    let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    let said = said.expect_err("nothing was said against it");
    let text =
        said.downcast_ref::<String>().map(String::as_str).or_else(|| said.downcast_ref::<&str>().copied());
    assert!(text.is_some_and(|text| text.contains(words)), "{words:?} is not in {text:?}");
}

/// A journal without damage.
fn sound() -> Vec<u8> {
    history::drafted(&fixture("journal.jsonl"), Retain::All).expect("a journal").bytes
}

fn flipped(bytes: &[u8]) -> Vec<u8> {
    let mut flipped = bytes.to_vec();
    flipped[bytes.len() / 2] ^= 1;
    flipped
}

#[test]
fn scan_finds_who_judges_another_journal() {
    let journal = sound();
    scan::judge_by(&journal, |bytes| verify(bytes, &[]), scan::loaded);
    // One calls damage sound, the other sees it; and the other way round.
    let blind = |_: &[u8]| verify(&journal, &[]);
    objects("verify and load", || scan::judge_by(&flipped(&journal), blind, scan::loaded));
    let loads_another = |_: &[u8], reach| scan::loaded(&journal, reach);
    objects("verify and load", || {
        scan::judge_by(&flipped(&journal), |bytes| verify(bytes, &[]), loads_another);
    });
    // Both call it sound: it does not decode.
    objects("is sound and does not decode", || scan::judge_by(&flipped(&journal), blind, loads_another));
    // From the newest base another state than from the beginning.
    let genesis = journal.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
    let from_base = |bytes: &[u8], reach| match reach {
        Reach::Base => scan::loaded(&bytes[..genesis], reach),
        Reach::All(_) => scan::loaded(bytes, reach),
    };
    objects("from base and from the beginning", || {
        scan::judge_by(&journal, |bytes| verify(bytes, &[]), from_base);
    });
}

#[test]
fn record_finds_who_decodes_wrongly() {
    let journal = sound();
    let lines: Vec<&[u8]> = journal.split(|byte| *byte == b'\n').collect();
    record::line_by(lines[1], chain::decode);
    objects("spelled otherwise", || record::line_by(lines[1], |_| chain::decode(lines[2])));
    objects("bit", || record::line_by(lines[1], |_| chain::decode(lines[1])));
    objects("", || record::line_by(lines[1], |_| chain::decode(&flipped(lines[1]))));
}

#[test]
fn history_finds_who_sees_no_flip_and_no_cut() {
    let journal = sound();
    let honest = |bytes: &[u8]| verify(bytes, &[]).verdict();
    let place = journal.len() / 2;
    history::spoilt_by(&journal, place, honest);
    objects("bit", || history::spoilt_by(&journal, place, |_| "sound"));
    objects("bit", || history::spoilt_by(&journal, place, |_| "needs-recovery"));
    objects("cut at", || history::spoilt_by(&journal, place, |_| "damaged"));
}

#[test]
fn tree_finds_what_is_not_accounted_for() {
    let file = fixture("tree.jsonl");
    let judge = |tree: &tree::Tree| turnkeep_fuzz::tree::judge(&file, tree);
    judge(&tree::read(file.clone()));
    let mut lost = tree::read(file.clone());
    lost.entries.pop();
    objects("", || judge(&lost));
    let mut moved = tree::read(file.clone());
    moved.entries[0].offset += 1;
    objects("line", || judge(&moved));
    let mut headless = tree::read(file.clone());
    headless.header = None;
    objects("line 1", || judge(&headless));
    objects("", || judge(&tree::read(&file[..file.len() - 1])));
}

#[test]
fn policy_finds_who_is_bolder_than_the_rules() {
    let file = br#"{"format":"turnkeep-policy/1","rules":[
        {"tool":"memory","where":{"action":"search"},"replay":"safe"}]}"#;
    let input = [&file[..], br#"{"action":"write"}"#].join(&0);
    let safe = Rule { replay: Replay::Safe, approval: None, unknown: None };
    policy::judge_by(&input, Policy::classify);
    objects("no such tool", || policy::judge_by(&input, |_, _, _| safe));
    // Safe unless the same rule says otherwise of this spelling.
    let bold_where = |means_it: fn(&str) -> bool| {
        move |policy: &Policy, tool: &str, args: &str| {
            if tool != "no such tool" && means_it(args) { safe } else { policy.classify(tool, args) }
        }
    };
    objects("white space", || policy::judge_by(&input, bold_where(|args| args.ends_with('\n'))));
    objects("doubled", || policy::judge_by(&input, bold_where(|args| args.matches("action").count() > 1)));
    objects("no object", || policy::judge_by(&input, bold_where(|args| args == "\"text\"")));
}

#[test]
fn body_finds_what_is_not_kept() {
    let text = br#" {"a b" : [1 , 2.50], "c" : "d  e"}"#;
    body::judge_by(text, Raw::parse);
    let edited = |edit: fn(&str) -> String| move |text: &str| Raw::parse(&edit(text));
    objects("more than white space went", || {
        body::judge_by(text, edited(|text| text.replace("2.50", "2.5")));
    });
    objects("not the same as itself", || body::judge_by(text, edited(|text| text.replace("d  e", "d e"))));
    objects("too deep", || {
        body::judge_by(text, |_| Err(RawError::TooDeep { depth: 3 }));
    });
    objects("no reason", || body::judge_by(text, |_| Err(RawError::Syntax(String::new()))));
    objects("too deep", || body::judge_by(&b"[".repeat(100_000), |_| Raw::parse("[]")));
}

#[test]
fn message_finds_what_changes_on_its_way() {
    let said = br#"2{"id":"m","type":"message","role":"assistant","content":[{"type":"text","text":"On it."},
        {"type":"tool_use","id":"c1","name":"bash","input":{"command":"make"}}],"stop_reason":"tool_use"}"#;
    message_body::judge_by(said, &message::take, &message::pi_message);
    // A call is lost once the message is read again.
    let forgetful: Take = &|text, format, role| {
        let (raw, mut meaning) = message::take(text, format, role)?;
        meaning.calls.pop();
        Ok((raw, meaning))
    };
    objects("read again", || message_body::judge_by(said, forgetful, &message::pi_message));
    // It is stored otherwise than it is read.
    let restless: Take = &|text, format, role| {
        let (raw, meaning) = message::take(text, format, role)?;
        Ok((if text.contains('\n') { raw } else { Raw::parse("{}").expect("an object") }, meaning))
    };
    objects("taken again", || message_body::judge_by(said, restless, &message::pi_message));
    // Its form for Pi has another tool, or is none.
    let renamed: ToPi = &|meaning, raw, ids, at| {
        let pi = message::pi_message(meaning, raw, ids, at);
        Raw::parse(&pi.get().replace("bash", "rm")).expect("JSON")
    };
    objects("the same calls", || message_body::judge_by(said, &message::take, renamed));
    let torn: ToPi = &|_, _, _, _| Raw::parse("[]").expect("JSON");
    objects("a message in Pi's format is one", || message_body::judge_by(said, &message::take, torn));
}
