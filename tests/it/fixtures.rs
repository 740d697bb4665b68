//! Every fixture is what its maker makes, and the command judges it as the files beside it say.
//!
//! `TURNKEEP_UPDATE_FIXTURES=1` writes journals, session files and expected documents anew; what changes then is to
//! be read by a person. A file that nothing lists, or that is missing, fails.

mod damage;
pub mod journal;
mod kinds;
mod sound;
mod trees;

use crate::kit::{Run, Sandbox};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// One folder of `fixtures/`.
pub struct Fixture {
    name: &'static str,
    about: &'static str,
    files: Vec<(String, Vec<u8>)>,
}

impl Fixture {
    pub fn new(name: &'static str, about: &'static str) -> Self {
        Self { name, about, files: Vec::new() }
    }

    pub fn file(mut self, name: &str, bytes: impl AsRef<[u8]>) -> Self {
        self.files.push((name.to_owned(), bytes.as_ref().to_owned()));
        self
    }

    fn has(&self, name: &str) -> bool {
        self.files.iter().any(|(file, _)| file == name)
    }
}

/// A journal with nothing beside it.
pub fn fixture(name: &'static str, about: &'static str, journal: impl Into<Vec<u8>>) -> Fixture {
    Fixture::new(name, about).file("journal.jsonl", journal.into())
}

impl From<journal::Journal> for Vec<u8> {
    fn from(journal: journal::Journal) -> Self {
        journal.bytes
    }
}

/// Folders whose journals and session files are not made here.
const KEPT: [(&str, &str); 2] = [
    (
        "worked-example",
        "A batch of three calls, killed, recovered, gone on with and published; written by another program.",
    ),
    ("pi-sessions", "Session files that real Pi wrote."),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn updates() -> bool {
    std::env::var_os("TURNKEEP_UPDATE_FIXTURES").is_some()
}

fn all() -> Vec<Fixture> {
    let made = [sound::all(), damage::all(), trees::all(), vec![kinds::every_kind()]].into_iter().flatten();
    let kept = KEPT.map(|(name, about)| Fixture {
        files: files(&folder().join(name), "jsonl"),
        ..Fixture::new(name, about)
    });
    made.chain(kept).collect()
}

/// The files of a folder with this ending, by name relative to it.
fn files(at: &Path, ending: &str) -> Vec<(String, Vec<u8>)> {
    let found = everything(at).into_iter().filter(|(name, _)| name.ends_with(ending));
    found.map(|(name, (bytes, _))| (name, bytes)).collect()
}

/// Every file below a folder with its bytes and modification time.
fn everything(at: &Path) -> BTreeMap<String, (Vec<u8>, SystemTime)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![at.to_owned()];
    while let Some(folder) = folders.pop() {
        for item in std::fs::read_dir(folder).into_iter().flatten() {
            let path = item.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(at).unwrap().to_str().unwrap().to_owned();
                let changed = path.metadata().unwrap().modified().unwrap();
                found.insert(name, (std::fs::read(&path).unwrap(), changed));
            }
        }
    }
    found
}

/// Makes a file what it has to be, or tells what it is instead.
fn settle(name: &str, wanted: &[u8], wrong: &mut Vec<String>) {
    let path = folder().join(name);
    let is = std::fs::read(&path).ok();
    if is.as_deref() == Some(wanted) {
        return;
    }
    if updates() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, wanted).unwrap();
    } else {
        let is = is.map_or("missing".to_owned(), |is| String::from_utf8_lossy(&is).into_owned());
        let wanted = String::from_utf8_lossy(wanted);
        wrong.push(format!("fixtures/{name} is\n{is}\nand has to be\n{wanted}"));
    }
}

/// What is wrong with the files that are made; in an update they are written, once.
fn made() -> &'static [String] {
    static MADE: std::sync::OnceLock<Vec<String>> = std::sync::OnceLock::new();
    MADE.get_or_init(|| {
        let mut wrong = Vec::new();
        for fixture in all() {
            settle(
                &format!("{}/about.md", fixture.name),
                format!("{}\n", fixture.about).as_bytes(),
                &mut wrong,
            );
            for (name, bytes) in &fixture.files {
                settle(&format!("{}/{name}", fixture.name), bytes, &mut wrong);
            }
        }
        wrong
    })
}

#[test]
fn journals_and_session_files_are_as_they_are_made() {
    let wrong = made();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn every_file_is_listed() {
    let mut wanted = Vec::new();
    for fixture in all() {
        let expected = expectations(&fixture).map(|(name, _)| name.to_owned());
        let names =
            fixture.files.iter().map(|(name, _)| name.clone()).chain(["about.md".to_owned()]).chain(expected);
        wanted.extend(names.map(|name| format!("{}/{name}", fixture.name)));
    }
    wanted.sort();
    let twice: Vec<_> = wanted.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(twice.is_empty(), "{twice:?}");
    // Inputs that fuzzing found are of no journal: `tests/fuzz` has them.
    let is: Vec<String> =
        everything(&folder()).into_keys().filter(|name| !name.starts_with("corpus/")).collect();
    let missing: Vec<_> = wanted.iter().filter(|name| !is.contains(name)).collect();
    let unlisted: Vec<_> = is.iter().filter(|name| !wanted.contains(name)).collect();
    assert!(missing.is_empty() && unlisted.is_empty(), "missing {missing:?}, listed nowhere {unlisted:?}");
}

#[test]
fn every_fixture_is_judged_as_it_says() {
    made();
    let mut wrong = Vec::new();
    for fixture in all() {
        judge(&fixture, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Which documents a fixture has, and by which command.
fn expectations(fixture: &Fixture) -> impl Iterator<Item = (&'static str, Vec<String>)> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let in_root = fixture.files.iter().find_map(|(name, _)| name.strip_prefix("root/sessions/"));
    let mut verify;
    let mut status = None;
    if let Some(name) = in_root {
        verify = words("--json verify --all");
        status = Some(words(&format!("--json inspect {}", name.strip_suffix(".jsonl").unwrap())));
    } else if fixture.has("journal.jsonl") {
        verify = words("--json verify ./journal.jsonl");
        if fixture.has("tree.jsonl") {
            verify.extend(words("--with-tree --tree-file ./tree.jsonl"));
        }
        status = Some(words("--json inspect ./journal.jsonl"));
    } else {
        verify = words("--json verify ./");
    }
    if fixture.has("policy.json") {
        for words in [Some(&mut verify), status.as_mut()].into_iter().flatten() {
            words.extend(["--policy".to_owned(), "./policy.json".to_owned()]);
        }
    }
    [Some(("verify.json", verify)), status.map(|status| ("status.json", status))].into_iter().flatten()
}

/// Runs the commands in the fixture's folder; a state root is copied, for the sake of its modes.
fn judge(fixture: &Fixture, wrong: &mut Vec<String>) {
    let sandbox = Sandbox::new();
    let at = folder().join(fixture.name);
    for (name, bytes) in fixture.files.iter().filter(|(name, _)| name.starts_with("root/")) {
        let path = sandbox.write(name.replacen("root/", "state/", 1), bytes);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::set_permissions(path.parent().unwrap(), PermissionsExt::from_mode(0o700)).unwrap();
        std::fs::set_permissions(sandbox.root(), PermissionsExt::from_mode(0o700)).unwrap();
    }
    let before = (everything(&at), everything(sandbox.dir()));
    let documents: Vec<_> = expectations(fixture)
        .map(|(name, words)| (name, document(sandbox.cmd(&words).cwd(&at), &words, &at, &sandbox)))
        .collect();
    assert_eq!(before, (everything(&at), everything(sandbox.dir())), "{} was touched", fixture.name);
    for (name, document) in documents {
        let spelled = format!("{}\n", serde_json::to_string_pretty(&document).unwrap());
        settle(&format!("{}/{name}", fixture.name), spelled.as_bytes(), wrong);
    }
}

/// What a command said, with the paths of this machine left out.
fn document(run: Run, words: &[String], at: &Path, sandbox: &Sandbox) -> Value {
    let ran = run.go();
    let (here, root) = (at.display().to_string(), sandbox.root().display().to_string());
    let documents: Vec<Value> = ran
        .stdout
        .replace(&here, "FIXTURE")
        .replace(&root, "ROOT")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{words:?}: {error}: {line}")))
        .collect();
    json!({"command": words.join(" "), "exit": ran.code(), "documents": documents})
}

/// Puts a fixture's journal into a state root, and what its repairs kept.
fn place(sandbox: &Sandbox, fixture: &Fixture, journal: &[u8]) -> PathBuf {
    let kept = fixture.files.iter().filter(|(name, _)| name.starts_with("quarantine/"));
    for (name, bytes) in kept.map(|(name, bytes)| (name.as_str(), bytes.as_slice())) {
        private(&sandbox.write(format!("state/{name}"), bytes));
    }
    let path = sandbox.write(format!("state/sessions/{}.jsonl", journal::SESSION), journal);
    private(&path);
    path
}

/// The modes that a file of a state root and its folder have.
fn private(path: &Path) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::set_permissions(path.parent().unwrap(), PermissionsExt::from_mode(0o700)).unwrap();
}

/// What `recover` accepts is sound afterwards: every session file here, found where a turn was admitted on it or where
/// the one that a turn was admitted on stood, and the journals with session files beside them.
#[test]
fn whatever_recover_accepts_of_a_session_file_is_sound_behind_it() {
    let mut recovered = 0;
    let mut judge = |name: &str, sandbox: &Sandbox, session: &str| {
        let file = ["--tree-file", "tree.jsonl"];
        let before = sandbox.everything();
        let ran = sandbox.run([&["recover", session, "--owner-pid", "none"], &file[..]].concat());
        if ran.code() == 3 {
            assert!(sandbox.everything() == before, "{name}: refused, and something was written");
        }
        if ran.code() == 0 {
            recovered += 1;
            let verdict = sandbox.run([&["verify", session, "--with-tree"], &file[..]].concat());
            assert_eq!(verdict.code(), 0, "{name}: {}\n{}", ran.all(), verdict.all());
        }
    };
    let all = all();
    let bytes = |fixture: &Fixture, name: &str| {
        fixture.files.iter().find(|(file, _)| file == name).map(|(_, bytes)| bytes.clone())
    };
    let sound = all.iter().find(|fixture| fixture.name == "tree-sound").and_then(|f| bytes(f, "tree.jsonl"));
    let sound = sound.unwrap();
    for fixture in &all {
        let Some(tree) = bytes(fixture, "tree.jsonl") else { continue };
        let sandbox = Sandbox::new();
        sandbox.policy(json!([]));
        if let Some(journal) = bytes(fixture, "journal.jsonl") {
            place(&sandbox, fixture, &journal);
            sandbox.write("tree.jsonl", &tree);
            judge(fixture.name, &sandbox, journal::SESSION);
            continue;
        }
        let (first, then) = (sandbox.write("tree.jsonl", &tree), [&tree, &sound]);
        for (session, on) in ["found", "exchanged"].iter().zip(then) {
            std::fs::write(&first, on).unwrap();
            let words = ["admit", session, "--text", "x", "--owner-pid", "none", "--tree", "tree.jsonl"];
            let admitted = sandbox.run(words).code() == 0;
            std::fs::write(&first, &tree).unwrap();
            if admitted {
                judge(fixture.name, &sandbox, session);
            }
        }
    }
    assert!(recovered > 40, "{recovered}");
}

/// Journals whose genesis is damaged: nothing stands behind that.
const NO_GENESIS: [&str; 5] = ["bom", "crlf", "genesis-damaged", "genesis-missing", "newer-format-damaged"];

#[test]
fn whatever_is_damaged_can_be_gone_on_behind() {
    let mut seen = 0;
    for fixture in all() {
        let Some((_, bytes)) = fixture.files.iter().find(|(name, _)| name == "journal.jsonl") else {
            continue;
        };
        let sandbox = Sandbox::new();
        sandbox.policy(json!([]));
        let path = place(&sandbox, &fixture, bytes);
        let verify = |more: &[&str]| sandbox.run([&["verify", journal::SESSION], more].concat());
        // What was acknowledged and changed since is said for ever.
        if verify(&[]).code() != 3 || fixture.name == "repair-mismatch" {
            continue;
        }
        seen += 1;
        let salvage = ["recover", journal::SESSION, "--salvage", "--why", "seen", "--owner-pid", "none"];
        let salvaged = sandbox.run(salvage);
        let now = std::fs::read(&path).unwrap();
        if NO_GENESIS.contains(&fixture.name) {
            assert_eq!((salvaged.code(), &now), (3, bytes), "{}", fixture.name);
            continue;
        }
        assert!([0, 10, 14].contains(&salvaged.code()), "{}: {}", fixture.name, salvaged.all());
        assert!(now.starts_with(bytes), "{}: nothing is removed", fixture.name);
        let verdict = verify(&[]);
        assert_eq!(verdict.code(), 0, "{}: {}", fixture.name, verdict.all());
        assert_eq!(verify(&["--strict"]).code(), 3, "{}", fixture.name);
        sandbox.run(salvage);
        assert!(std::fs::read(&path).unwrap() == now, "{}: acknowledged twice", fixture.name);
    }
    assert!(seen > 60, "{seen}");
}
