//! A journal of every kind of record: every bit flipped, and cut at every byte.
//!
//! Each is found, but for a cut behind a whole line, which a kept head and the session file show. The same is asked of
//! the command, about some of the bits, in `tests/it/bytes.rs`.

use std::path::{Path, PathBuf};
use turnkeep::storage::MemoryStorage;
use turnkeep::verify::{Code, Severity, Trees};
use turnkeep_fuzz::{verify, verify_with};

fn fixture(name: &str) -> Vec<u8> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/every-kind").join(name);
    std::fs::read(path).expect("read")
}

/// Calls `check` with each number, on two threads.
fn each(count: usize, check: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for first in 0..2 {
            let check = &check;
            scope.spawn(move || (first..count).step_by(2).for_each(check));
        }
    });
}

#[test]
fn every_flipped_bit_is_found() {
    let journal = fixture("journal.jsonl");
    assert_eq!(verify(&journal, &[]).verdict(), "sound");
    each(journal.len() * 8, |bit| {
        let mut flipped = journal.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let report = verify(&flipped, &[]);
        assert_eq!(report.verdict(), "damaged", "bit {bit}");
        let byte = (bit / 8) as u64;
        let near = report.findings.iter().filter(|found| found.severity == Severity::Damage).any(|found| {
            let (offset, bytes) = (found.offset.unwrap_or(0), found.bytes.unwrap_or(0));
            offset <= byte && byte <= offset + bytes || found.code == Code::RepairMismatch
        });
        assert!(near, "bit {bit}: {:?}", report.findings);
    });
    println!("{} bits", journal.len() * 8);
}

#[test]
fn every_cut_is_found_but_those_behind_a_line() {
    let journal = fixture("journal.jsonl");
    let head = verify(&journal, &[]).head.expect("a head");
    each(journal.len(), |cut| {
        let cut_off = &journal[..cut];
        let alone = verify(cut_off, &[]);
        let clean = cut_off.ends_with(b"\n");
        let whole_lines = if alone.worst() == Severity::Damage {
            // Behind the line that is lost, before the record that acknowledges it.
            assert!(
                alone.findings.iter().any(|found| found.code == Code::HashMismatch),
                "cut at {cut}: {alone:?}"
            );
            return;
        } else {
            alone.verdict() == "sound"
        };
        assert_eq!(whole_lines, clean, "cut at {cut}: {alone:?}");
        if !clean {
            return;
        }
        // What the chain cannot show.
        let by_head = verify(cut_off, std::slice::from_ref(&head));
        assert!(by_head.findings.iter().any(|found| found.code == Code::HeadMissing), "cut at {cut}");
        let storage = MemoryStorage::new();
        storage.write("/journal.jsonl", cut_off);
        storage.write("/tree.jsonl", &fixture("tree.jsonl"));
        let by_tree = verify_with(&storage, &[], Trees::At(Path::new("/tree.jsonl")));
        let seen = [Code::BranchMarker, Code::EntryUnknown];
        assert!(by_tree.findings.iter().any(|found| seen.contains(&found.code)), "cut at {cut}: {by_tree:?}");
    });
}
