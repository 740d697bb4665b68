//! Mistakes on purpose: a body whose subject lies panics.

use turnkeep::journal::load::Reach;
use turnkeep::turn::Retain;
use turnkeep::{chain, tree};
use turnkeep_fuzz::{history, record, scan, verify};

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
