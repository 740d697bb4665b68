//! Session files beside their journals: every bit of our lines flipped, and the file cut at every byte.
//!
//! Each is found by comparing with the journal, but for a short list of what no record vouches for: time stamps, and the
//! id of the newest line of a settled turn, which may as well be the agent's own. What the agent wrote before the turn was
//! admitted is held by nothing but its place. The same is asked of the command, about a branch that `recover` wrote, in
//! `tests/it/bytes.rs`.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use turnkeep::storage::MemoryStorage;
use turnkeep::verify::{Code, Report, Trees};
use turnkeep_fuzz::verify_with;

/// Fixtures whose session file holds a branch, and the first line of it, from 0.
const PAIRS: [(&str, usize); 5] =
    [("every-kind", 5), ("branch", 5), ("branch-append", 5), ("branch-settled", 5), ("worked-example", 4)];

struct Pair {
    name: &'static str,
    journal: Vec<u8>,
    tree: Vec<u8>,
    /// Where our lines begin.
    ours: usize,
}

impl Pair {
    fn read((name, first): (&'static str, usize)) -> Self {
        let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
        let file = |name| std::fs::read(folder.join(name)).expect("read");
        let tree = file("tree.jsonl");
        let ours = tree.split_inclusive(|byte| *byte == b'\n').take(first).map(<[u8]>::len).sum();
        Self { name, journal: file("journal.jsonl"), tree, ours }
    }

    fn judge(&self, tree: &[u8]) -> Report {
        let storage = MemoryStorage::new();
        storage.write("/journal.jsonl", &self.journal);
        storage.write("/tree.jsonl", tree);
        verify_with(&storage, &[], Trees::At(Path::new("/tree.jsonl")))
    }

    /// What no record vouches for in our lines.
    fn unheld(&self) -> Vec<Range<usize>> {
        let text = std::str::from_utf8(&self.tree).expect("text");
        let member = |(at, key): (usize, &str)| {
            let value = &text[at + key.len()..];
            let end = if let Some(string) = value.strip_prefix('"') {
                string.find('"').expect("an end") + 2
            } else {
                value.find([',', '}']).expect("an end")
            };
            at..at + key.len() + end
        };
        let mut unheld: Vec<_> = text.match_indices("\"timestamp\":").map(member).collect();
        if self.name == "branch-settled" {
            let last = text.trim_end().rfind('\n').expect("lines");
            let at = last + text[last..].find(r#""id":""#).expect("an id") + 6;
            unheld.push(at..at + 16);
        }
        unheld
    }
}

/// Calls `check` with each number, on two threads.
fn each(numbers: Range<usize>, check: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for first in 0..2 {
            let (check, numbers) = (&check, numbers.clone());
            scope.spawn(move || numbers.skip(first).step_by(2).for_each(check));
        }
    });
}

#[test]
fn every_flipped_bit_of_our_lines_is_found() {
    for pair in PAIRS.map(Pair::read) {
        let unheld = pair.unheld();
        let passed_over = AtomicUsize::new(0);
        assert_eq!(pair.judge(&pair.tree).verdict(), "sound", "{}", pair.name);
        each(pair.ours * 8..pair.tree.len() * 8, |bit| {
            let byte = bit / 8;
            let mut flipped = pair.tree.clone();
            flipped[byte] ^= 1 << (bit % 8);
            if pair.judge(&flipped).verdict() != "sound" {
                return;
            }
            // The newline at the end of the file is a note where it is missing, and so is a carriage return.
            let held = !unheld.iter().any(|range| range.contains(&byte)) && byte + 1 < pair.tree.len();
            assert!(!held, "{}: bit {bit}: {}", pair.name, String::from_utf8_lossy(&flipped[pair.ours..]));
            passed_over.fetch_add(1, Ordering::Relaxed);
        });
        println!(
            "{}: {} bits, {:?} cannot be shown",
            pair.name,
            (pair.tree.len() - pair.ours) * 8,
            passed_over
        );
    }
}

#[test]
fn every_cut_is_found_but_the_last_newline() {
    for pair in PAIRS.map(Pair::read) {
        each(0..pair.tree.len(), |cut| {
            let report = pair.judge(&pair.tree[..cut]);
            let newline_only = cut + 1 == pair.tree.len();
            assert_eq!(report.verdict() == "sound", newline_only, "{}: cut at {cut}: {report:?}", pair.name);
            if newline_only {
                assert!(report.findings.iter().any(|found| found.code == Code::TreeNoNewline));
            }
        });
    }
}
