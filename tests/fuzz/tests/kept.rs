//! The bodies of the fuzz targets over every kept input, and that a body can fail.
//!
//! Kept inputs: `fixtures/corpus/TARGET/`, and each journal, session file and policy of the fixtures. One test alone,
//! since memory is measured for the whole process.

use std::path::{Path, PathBuf};
use turnkeep_fuzz::{TARGETS, run};

fn files(at: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for item in std::fs::read_dir(at).expect("a folder") {
        let path = item.expect("an item").path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Which targets an input is for.
fn targets(path: &Path, corpus: &Path) -> Vec<&'static str> {
    if let Ok(below) = path.strip_prefix(corpus) {
        let folder = below.components().next().expect("a folder").as_os_str();
        let target = TARGETS.iter().find(|(name, _)| **name == *folder);
        return vec![target.unwrap_or_else(|| panic!("{} is for no target", path.display())).0];
    }
    match path.file_name().and_then(|name| name.to_str()) {
        Some("journal.jsonl") => vec!["scan", "history", "record"],
        Some("policy.json") => vec!["policy"],
        Some(name)
            if name.ends_with(".jsonl") && path.parent().is_some_and(|at| at.ends_with("sessions")) =>
        {
            vec!["scan", "history"]
        }
        Some(name) if name.ends_with(".jsonl") => vec!["tree"],
        _ => Vec::new(),
    }
}

#[test]
fn every_kept_input_holds() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let corpus = fixtures.join("corpus");
    let mut wrong = Vec::new();
    let mut seen = std::collections::BTreeMap::new();
    for path in files(&fixtures) {
        for target in targets(&path, &corpus) {
            let bytes = std::fs::read(&path).expect("read");
            let mut hold = |target: &str, bytes: &[u8]| {
                if std::panic::catch_unwind(|| run(target, bytes)).is_err() {
                    wrong.push(format!("{target}: {}", path.display()));
                }
            };
            hold(target, &bytes);
            *seen.entry(target).or_insert(0) += 1;
            // Its lines one by one, and a session file together with its journal.
            match (target, path.file_name().and_then(|name| name.to_str())) {
                ("record", Some("journal.jsonl")) => {
                    bytes.split(|byte| *byte == b'\n').for_each(|line| hold("record", line));
                }
                ("tree", Some("tree.jsonl")) => {
                    if let Ok(journal) = std::fs::read(path.with_file_name("journal.jsonl")) {
                        hold("tree", &[bytes.as_slice(), b"#journal\n", &journal].concat());
                    }
                }
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (target, _) in TARGETS {
        assert!(seen.get(target).is_some_and(|count| *count > 0), "no input for {target}: {seen:?}");
    }
    println!("{seen:?}");
}
