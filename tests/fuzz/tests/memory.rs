//! Memory is bounded by the longest line, whatever the length of the file; a text needs a small multiple of itself.
//!
//! One test alone, since memory is measured for the whole process.

use turnkeep::chain;
use turnkeep::draft::Draft;
use turnkeep::journal::load::{self, Reach};
use turnkeep::json::Raw;
use turnkeep::message;
use turnkeep::policy::Policy;
use turnkeep::record::{Admitted, At, Attempt, Cause, Note, Opened, Settled, SettledStatus};
use turnkeep::storage::{MemoryStorage, Storage as _};
use turnkeep::tree;
use turnkeep::turn::{Retain, Session};
use turnkeep::verify::Trees;
use turnkeep_fuzz::{meter, verify_with};

const MIB: usize = 1 << 20;

/// A closed turn and behind it this many notes of this length.
fn journal(notes: usize, len: usize) -> MemoryStorage {
    let at = At::from_micros(1_796_000_000_000_000);
    let opened = Opened { format: "turnkeep/1".into(), session: "s".into(), id: "u".into() };
    let genesis = Draft::genesis(opened, at.clone(), u64::MAX).expect("a genesis");
    let record = chain::decode(genesis.bytes.strip_suffix(b"\n").expect("a line")).expect("a record");
    let session = Session::begin("s".to_owned(), &record, Retain::Unclosed);
    let mut draft = Draft::new(session, genesis.history.clone(), at.clone(), genesis.end(), u64::MAX);
    let turn: turnkeep::record::TurnId = "t".parse().expect("an id");
    let input = Raw::text("Hi");
    draft
        .push(Admitted {
            turn: turn.clone(),
            delivery: None,
            input_sha256: chain::digest(input.get().as_bytes()),
            input,
            tree: None,
            policy_sha256: None,
            meta: None,
        })
        .expect("fits");
    let (owner, why, lease_ms) = (None, None, None);
    draft
        .push(Attempt { turn: turn.clone(), attempt: 1, cause: Cause::Admit, why, owner, lease_ms })
        .expect("fits");
    let (reply, reason) = (None, Some("x".to_owned()));
    draft
        .push(Settled { turn: turn.clone(), attempt: 1, status: SettledStatus::Failed, reply, reason })
        .expect("fits");
    let mut bytes = genesis.bytes.clone();
    for _ in 0..notes {
        let content = Raw::text(&"x".repeat(len));
        draft.push(Note { turn: turn.clone(), attempt: 1, content }).expect("fits");
        // The draft itself keeps what was drafted; only the file is wanted.
        bytes.append(&mut draft.bytes);
        draft = Draft::new(draft.session, genesis.history.clone(), at.clone(), bytes.len() as u64, u64::MAX);
    }
    let storage = MemoryStorage::new();
    storage.write("/journal.jsonl", &bytes);
    storage
}

fn peak_of_verify(storage: &MemoryStorage) -> usize {
    meter::peak(|| assert_eq!(verify_with(storage, &[], Trees::No).verdict(), "sound"))
}

fn peak_of_step(storage: &MemoryStorage) -> usize {
    let file = storage.open_read("/journal.jsonl".as_ref()).expect("opened");
    meter::peak(|| {
        let loaded = load::load(file.as_ref(), Reach::Base).expect("read");
        assert!(loaded.damage.is_empty() && loaded.session.is_some());
    })
}

#[test]
fn memory_is_bounded_by_the_longest_line() {
    let (short, long) = (journal(4_000, 1_000), journal(48_000, 1_000));
    let (few, many) = (peak_of_verify(&short), peak_of_verify(&long));
    println!("verify 5 MB {few}, 62 MB {many}");
    assert!(many < 12 * MIB && many < few * 3 / 2, "verify: {few} bytes for 5 MB, {many} for 62 MB");
    let (few, many) = (peak_of_step(&short), peak_of_step(&long));
    println!("step 5 MB {few}, 62 MB {many}");
    assert!(many < 4 * MIB && many < few * 3 / 2, "step: {few} bytes for 5 MB, {many} for 62 MB");
    drop((short, long));

    // A disk in memory holds the file itself; only what is taken beside it counts.
    let tail = 64 * MIB;
    let storage = journal(10, 1_000);
    let whole = storage.read("/journal.jsonl");
    for (what, byte, verdict) in [("NULs", 0, "needs-recovery"), ("blank lines", b'\n', "damaged")] {
        let count = if byte == 0 { tail } else { 4 * MIB };
        storage.write("/journal.jsonl", &[whole.as_slice(), &vec![byte; count]].concat());
        let peak = meter::peak(|| assert_eq!(verify_with(&storage, &[], Trees::No).verdict(), verdict));
        println!("verify {count} {what} {peak}");
        assert!(peak < 24 * MIB, "verify: {peak} bytes for {count} {what}");
    }
    storage.write("/journal.jsonl", &[whole.as_slice(), &vec![0; tail]].concat());
    let peak = peak_of_step(&storage);
    println!("step {tail} NULs {peak}");
    assert!(peak < 4 * MIB, "step: {peak} bytes for {tail} NULs");
    drop(storage);

    let line = 16 * MIB;
    let one = journal(1, line);
    let several = journal(4, line);
    for (what, peak) in [("verify", peak_of_verify as fn(&MemoryStorage) -> usize), ("step", peak_of_step)] {
        let (one, several) = (peak(&one), peak(&several));
        println!(
            "{what} 16 MiB line {:.1}, four {:.1}",
            one as f64 / line as f64,
            several as f64 / line as f64
        );
        assert!(
            // What is asked for beforehand, and given back untouched, counts too.
            one < 16 * line && several < 20 * line,
            "{what}: {one} and {several} bytes for lines of {line}"
        );
    }
    drop((one, several));

    let text = "x".repeat(line);
    let pi = format!(
        r#"{{"role":"assistant","content":[{{"type":"text","text":"{text}"}}],"stopReason":"stop"}}"#
    );
    let piece = r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"some words"}}]}"#;
    let stream = format!("{piece}\n\n").repeat(60_000)
        + "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    for (what, body) in [("message", &pi), ("stream", &stream)] {
        let peak = meter::peak(|| drop(message::take(body, None, None).expect("a message")));
        println!("{what} {:.1}", peak as f64 / body.len() as f64);
        assert!(peak < 10 * body.len(), "{what}: {peak} bytes for {}", body.len());
    }
    let entry = format!(r#"{{"type":"message","id":"a1","parentId":null,"message":{pi}}}"#);
    let file = format!("{{\"type\":\"session\",\"version\":3,\"id\":\"s\"}}\n{entry}\n");
    let peak = meter::peak(|| drop(tree::check(&tree::read(file.as_str()))));
    println!("tree {:.1}", peak as f64 / file.len() as f64);
    assert!(peak < 8 * file.len(), "tree: {peak} bytes for {}", file.len());
    let rules: Vec<String> = (0..2_000).map(|n| format!(r#"{{"tool":"t{n}","replay":"safe"}}"#)).collect();
    let policy = format!(r#"{{"format":"turnkeep-policy/1","rules":[{}]}}"#, rules.join(","));
    let peak = meter::peak(|| drop(Policy::parse(policy.as_bytes(), "p").expect("a policy")));
    println!("policy {:.1}", peak as f64 / policy.len() as f64);
    assert!(peak < 20 * policy.len(), "policy: {peak} bytes for {}", policy.len());
}
