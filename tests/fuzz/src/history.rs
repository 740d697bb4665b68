//! Any lines as the records of a journal: what the transition table lets stand is judged as a whole journal is.
//!
//! From each line only its kind and its fields are taken; numbers, digests, keys and the chain are made right, so
//! that inputs get behind the hashes. Then one bit is flipped and one cut is made, and both are found.

use crate::scan;
use crate::world::{at, now, policy, verify};
use turnkeep::chain;
use turnkeep::context;
use turnkeep::draft::Draft;
use turnkeep::json::Raw;
use turnkeep::message::{self, Format};
use turnkeep::record::{Hash, Kind, Opened};
use turnkeep::recovery;
use turnkeep::status;
use turnkeep::turn::next::{Asker, BranchState};
use turnkeep::turn::{Retain, Session};

/// Lines that are taken: the fold is linear, but everything is judged several times.
const LINES_MAX: usize = 64;

pub fn run(bytes: &[u8]) {
    let Some(draft) = drafted(bytes, Retain::All) else { return };
    let journal = &draft.bytes;
    assert_ne!(verify(journal, &[]).verdict(), "damaged", "what was drafted is sound");
    scan::judge(journal);
    told(&draft);
    let place = bytes.iter().fold(0usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    spoilt_by(journal, place, |bytes| verify(bytes, &[]).verdict());
    let (flipped, cut) = (flipped(journal, place), place % journal.len());
    scan::judge(&flipped);
    scan::judge(&journal[..cut]);
}

fn flipped(journal: &[u8], place: usize) -> Vec<u8> {
    let mut flipped = journal.to_vec();
    let bit = place % (journal.len() * 8);
    flipped[bit / 8] ^= 1 << (bit % 8);
    flipped
}

/// What is demanded of somebody who judges a journal with a flipped bit, and one that was cut.
pub fn spoilt_by(journal: &[u8], place: usize, verdict: impl Fn(&[u8]) -> &'static str) {
    let said = verdict(&flipped(journal, place));
    assert!(!["sound", "needs-recovery"].contains(&said), "bit {}: {said}", place % (journal.len() * 8));
    let cut = place % journal.len();
    let clean = cut > 0 && journal[cut - 1] == b'\n';
    assert_eq!(verdict(&journal[..cut]), if clean { "sound" } else { "needs-recovery" }, "cut at {cut}");
}

/// The journal that comes of the lines of an input, as far as they may follow each other.
pub fn drafted(bytes: &[u8], retain: Retain) -> Option<Draft> {
    let opened = Opened { format: "turnkeep/1".into(), session: "room-7".into(), id: "u-1".into() };
    let genesis = Draft::genesis(opened, at(), chain::LINE_BYTES_MAX).ok()?;
    let record = chain::decode(genesis.bytes.strip_suffix(b"\n")?).ok()?;
    let mut draft = Draft::new(
        Session::begin("room-7".to_owned(), &record, retain),
        genesis.history.clone(),
        at(),
        genesis.end(),
        chain::LINE_BYTES_MAX,
    );
    let mut whole = genesis.bytes.clone();
    for line in bytes.split(|byte| *byte == b'\n').take(LINES_MAX) {
        let Some(kind) = kind(line) else { continue };
        let fits = matches!(&kind, Kind::Repaired(repaired) if repaired.saved_as.is_none());
        // What acknowledges damage has to find it; `scan` sees to that.
        if !fits {
            let _refused = draft.push(mended(kind, &draft));
        }
    }
    whole.extend_from_slice(&draft.bytes);
    draft.bytes = whole;
    Some(draft)
}

/// The kind and the fields of a line, whatever stands around them.
fn kind(line: &[u8]) -> Option<Kind> {
    let text = std::str::from_utf8(line).ok()?;
    let from = text.find(r#","kind":""#)?;
    let to = text.rfind(r#","base":"#).filter(|to| *to > from)?;
    let covered = format!(
        r#"{{"seq":1,"at":"{}"{},"base":0,"prev":"{}""#,
        at().as_str(),
        text.get(from..to)?,
        Hash::none()
    );
    let line = format!(r#"{covered},"hash":"{}"}}"#, chain::digest(covered.as_bytes()));
    Some(chain::decode(line.as_bytes()).ok()?.kind)
}

fn digest(raw: &Raw) -> Hash {
    chain::digest(raw.get().as_bytes())
}

/// With digests, refs and keys as they have to be.
fn mended(kind: Kind, draft: &Draft) -> Kind {
    let key = |turn, call| chain::call_key(&draft.session.genesis, turn, call);
    let calls = |turn, meaning: &message::Meaning| {
        let calls = recovery::intents(&draft.session, turn, draft.next_seq(), meaning, &policy());
        (!calls.is_empty()).then_some(calls)
    };
    match kind {
        Kind::Admitted(mut admitted) => {
            admitted.input_sha256 = digest(&admitted.input);
            admitted.into()
        }
        Kind::Steered(mut steered) => {
            steered.input_sha256 = digest(&steered.input);
            steered.into()
        }
        Kind::Message(mut said) => {
            let meaning = said
                .format
                .parse::<Format>()
                .ok()
                .and_then(|format| message::meaning(format, &said.message).ok());
            said.calls = meaning.and_then(|meaning| calls(&said.turn, &meaning));
            said.into()
        }
        Kind::Entry(mut entry) => {
            entry.calls = recovery::meaning_of(&entry.entry).and_then(|meaning| calls(&entry.turn, &meaning));
            entry.into()
        }
        Kind::Intent(mut intent) => {
            intent.args_sha256 = digest(&intent.args);
            intent.key = key(&intent.turn, turnkeep::record::CallRef { seq: draft.next_seq(), position: 0 });
            intent.into()
        }
        Kind::Claimed(mut claimed) => {
            claimed.key = key(&claimed.turn, claimed.r#ref);
            claimed.into()
        }
        other => other,
    }
}

/// What a reader is told about every turn.
fn told(draft: &Draft) {
    let policy = policy();
    let now = now(&policy);
    let history = &draft.history;
    for turn in &draft.session.turns {
        for asker in [Asker::Owner, Asker::Other] {
            for branch in [BranchState::UpToDate, BranchState::Behind] {
                let document = status::of(&draft.session, Some(turn), history, &now, branch, asker);
                serde_json::to_string(&document).expect("a document");
            }
        }
        for format in [Format::Pi, Format::Anthropic, Format::OpenaiChat, Format::OpenaiResponses] {
            if let Ok(context) = context::build(turn, history, None, format) {
                assert!(context.messages.iter().all(|message| Raw::parse(message.get()).is_ok()));
            }
        }
    }
}
