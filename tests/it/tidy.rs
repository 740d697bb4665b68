//! Rules of the sources that no compiler checks: layers, sizes, openings, what documents may name.
//!
//! A rule is a table with its exceptions, each with a reason. Test code is not judged: it may do what it likes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules of the library, lowest first: a module uses only those before it.
const LAYERS: &[&str] = &[
    "json", "record", "chain", "scan", "storage", "paths", "owner", "lock", "policy", "message", "run",
    "turn", "draft", "journal", "explain", "tree", "branch", "recovery", "treefile", "context", "status",
    "verify", "cli",
];

/// Words of the system, and who may name them: modules or files below `src`.
const DOORS: &[(&str, &[&str])] = &[
    // `storage` is the door to the disk. Beside it: `/proc` in `lock.rs`, `owner.rs` and `run/pump.rs`; the spools of
    // running commands, which are a cache, in `run/spool.rs`; what a person names as FILE or policy, which may be a
    // pipe and is only read, in `cli/context.rs`; links and modes of a CMD on the PATH.
    ("std::fs", &["storage/file.rs", "lock.rs", "owner.rs", "run/pump.rs", "run/spool.rs", "cli/context.rs"]),
    ("std::os::unix::fs", &["storage/file.rs", "lock.rs", "run/spool.rs", "cli/become_cmd.rs"]),
    ("OpenOptions", &["storage/file.rs", "run/spool.rs"]),
    ("rustix::fs", &["storage", "lock.rs", "run.rs", "run/spool.rs"]),
    ("std::process", &["owner.rs", "run.rs", "cli"]),
    // The store in memory tells the error numbers of the real one.
    ("rustix", &["storage", "lock.rs", "owner.rs", "run", "cli"]),
    // A command is looked for on the PATH before a call is claimed for it.
    ("std::env", &["run.rs", "cli"]),
    ("signal_hook", &["run", "cli"]),
    // The only clocks below the command line: how long a lock is waited for, and how long a command ran.
    ("Instant", &["lock.rs", "run", "cli"]),
    ("SystemTime", &["cli"]),
    ("Utc", &["cli"]),
    // Times are spelled and read there, never asked for.
    ("chrono", &["record.rs", "context/entries.rs", "cli"]),
    ("clap", &["cli"]),
    ("anyhow", &["cli"]),
    ("uuid", &["cli"]),
    ("std::net", &[]),
    ("serde_json::Value", &[]),
    ("todo!", &[]),
    ("dbg!", &[]),
    ("FIXME", &[]),
];

/// Most lines of a file, its tests not counted.
const LINES_MAX: usize = 650;

struct Source {
    /// Path below `src`.
    name: String,
    text: String,
    /// Without tests and comments.
    code: String,
}

impl Source {
    fn module(&self) -> &str {
        let first = self.name.split('/').next().expect("a name");
        first.strip_suffix(".rs").unwrap_or(first)
    }

    fn is_of(&self, place: &str) -> bool {
        self.name == place || self.module() == place
    }
}

fn project() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for item in fs::read_dir(folder).expect("a folder") {
        let path = item.expect("an item").path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn sources() -> Vec<Source> {
    let src = project().join("src");
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("text");
        let name = path.strip_prefix(&src).expect("below src").to_string_lossy().into_owned();
        let code = if is_test_code(&name) { String::new() } else { without_tests(&text) };
        Source { name, text, code }
    };
    files(&src, ".rs").into_iter().map(read).collect()
}

fn is_test_code(name: &str) -> bool {
    name.ends_with("tests.rs") || name.contains("tests/") || name == "testkit.rs"
}

/// The lines that are built without `cfg(test)`, comments left out.
fn without_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" {
            let item = lines.by_ref().find(|line| !line.starts_with("#[")).unwrap_or_default();
            if !item.ends_with(';') {
                lines.by_ref().find(|line| *line == "}");
            }
        } else if !line.trim_start().starts_with("//") {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// Whether a word stands in code, not as a part of a longer one.
fn names(code: &str, word: &str) -> bool {
    let part = |char: char| char.is_alphanumeric() || char == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back().is_some_and(part);
        let behind = code[at + word.len()..].chars().next().is_some_and(part);
        !before && !behind
    })
}

/// Sources that are in no layer.
fn is_entrance(source: &Source) -> bool {
    // Generated histories are tests, and tests may use everything.
    matches!(source.module(), "lib" | "main" | "testkit") || source.name.ends_with("properties.rs")
}

/// The modules of the library that code names.
fn uses(code: &str) -> BTreeSet<String> {
    let name = |text: &str| -> String {
        text.chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect()
    };
    let mut found = BTreeSet::new();
    for (at, prefix) in code.match_indices("crate::") {
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{') {
            Some(group) => {
                let group = group.split('}').next().unwrap_or_default();
                found.extend(group.split(',').map(|part| name(part.trim())));
            }
            None => {
                found.insert(name(rest));
            }
        }
    }
    found
}

fn rank(module: &str) -> usize {
    let place = LAYERS.iter().position(|layer| *layer == module);
    place.unwrap_or_else(|| panic!("module {module} has no place in LAYERS"))
}

#[test]
fn modules_use_only_those_below_them() {
    for source in sources().iter().filter(|source| !is_entrance(source)) {
        for used in uses(&source.code).iter().filter(|used| *used != source.module()) {
            assert!(rank(used) < rank(source.module()), "{} uses {used}, which is above it", source.name);
        }
    }
}

#[test]
fn the_code_map_has_every_module_in_this_order() {
    let text = fs::read_to_string(project().join("docs/ARCHITECTURE.md")).expect("text");
    let map = text.split("## Code map").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("a map");
    let files = map.lines().filter_map(|row| row.strip_prefix("| `")?.split('`').next());
    let mut modules: Vec<&str> =
        files.filter_map(|file| file.split('/').next()).map(|part| part.trim_end_matches(".rs")).collect();
    modules.dedup();
    assert_eq!(modules, LAYERS);
    let built: BTreeSet<String> = sources()
        .iter()
        .filter(|source| !is_entrance(source))
        .map(|source| source.module().to_owned())
        .collect();
    let known: BTreeSet<String> = LAYERS.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(built, known);
}

#[test]
fn only_these_files_name_the_system() {
    for source in sources() {
        for (word, places) in DOORS {
            let allowed = source.name == "main.rs" || places.iter().any(|place| source.is_of(place));
            assert!(allowed || !names(&source.code, word), "{} names {word}", source.name);
        }
    }
}

/// Methods of a path that ask the disk, and what stands in front of them where `storage` answers instead.
const PATH_METHODS: &[&str] = &[
    ".exists()",
    ".try_exists()",
    ".is_dir()",
    ".is_file()",
    ".is_symlink()",
    ".canonicalize()",
    ".metadata()",
    ".symlink_metadata()",
    ".read_dir()",
    ".read_link()",
];

#[test]
fn no_path_asks_the_disk_by_itself() {
    // A CMD on the PATH is no file of ours, and a spool is a cache.
    let allowed = ["storage/file.rs", "cli/become_cmd.rs", "run.rs", "run/spool.rs"];
    for source in sources().iter().filter(|source| !allowed.contains(&source.name.as_str())) {
        let asked: Vec<_> = PATH_METHODS.iter().filter(|method| source.code.contains(**method)).collect();
        assert!(asked.is_empty(), "{} goes around storage: {asked:?}", source.name);
    }
}

#[test]
fn only_one_file_prints() {
    for source in sources().iter().filter(|source| source.name != "cli/outside.rs") {
        let prints = ["println!", "eprintln!", "io::stdout()", "io::stderr()"]
            .into_iter()
            .filter(|word| source.code.contains(word));
        let prints: Vec<&str> = prints.collect();
        // The output of a running tool is passed through as bytes, not printed.
        assert!(prints.is_empty() || source.is_of("run"), "{} prints: {prints:?}", source.name);
    }
}

#[test]
fn every_source_opens_with_its_purpose() {
    for source in sources() {
        assert!(source.text.starts_with("//! "), "{} does not open with //!", source.name);
    }
}

#[test]
fn files_are_short() {
    for source in sources() {
        let lines = source.code.lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines without tests", source.name);
    }
}

fn documents() -> Vec<(PathBuf, String)> {
    let mut found = files(&project().join("docs"), ".md");
    found.push(project().join("README.md"));
    found.into_iter().map(|path| (path.clone(), fs::read_to_string(&path).expect("text"))).collect()
}

/// Targets of the links of a document, without anchors.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty())
        .collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    for (path, text) in documents() {
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let target = path.parent().expect("a folder").join(link);
            assert!(target.exists(), "{} links to {link}, which is not there", path.display());
        }
    }
}

#[test]
fn every_document_is_linked() {
    let mut linked = BTreeSet::new();
    for entrance in ["README.md", "docs/ARCHITECTURE.md"] {
        let path = project().join(entrance);
        let text = fs::read_to_string(&path).expect("text");
        let folder = path.parent().expect("a folder");
        let targets = links(&text).into_iter().filter_map(|link| folder.join(link).canonicalize().ok());
        linked.extend(targets.collect::<Vec<_>>());
    }
    for path in files(&project().join("docs"), ".md") {
        let real = path.canonicalize().expect("a path");
        assert!(linked.contains(&real), "{} is linked from neither entrance", path.display());
    }
}

#[test]
fn documents_and_scripts_name_no_path_of_one_machine() {
    let mut texts = documents();
    for ending in [".sh", ".rs", ".ts", ".toml"] {
        for folder in ["src", "tests", "docs"] {
            let read = |path: PathBuf| (path.clone(), fs::read_to_string(&path).unwrap_or_default());
            let own = |path: &PathBuf| {
                !path.ends_with("tests/it/tidy.rs")
                    && !path.components().any(|part| part.as_os_str() == "lab")
            };
            texts.extend(files(&project().join(folder), ending).into_iter().filter(own).map(read));
        }
    }
    let ci = project().join(".ci/run");
    texts.push((ci.clone(), fs::read_to_string(&ci).expect("text")));
    let project = project();
    let here = project.to_string_lossy().into_owned();
    let home = format!("{}/", project.parent().expect("a folder").display());
    for (path, text) in texts {
        for place in [here.as_str(), home.as_str(), "registry.npmjs", "index.crates.io"] {
            // A path of a machine begins there; behind a variable it is a folder of a script's own.
            let begins =
                |at: usize| !text[..at].ends_with(|c: char| c.is_alphanumeric() || "_.$}/-".contains(c));
            let named = text.match_indices(place).any(|(at, _)| begins(at));
            assert!(!named, "{} names {place}", path.display());
        }
    }
}

#[test]
fn the_rules_see_what_they_should() {
    let code = without_tests(
        "use std::fs;\n// std::env\n#[cfg(test)]\nmod tests {\n    use clap;\n}\nlet x = crate::{json, turn::Turn};\n",
    );
    assert!(names(&code, "std::fs") && !names(&code, "std::env") && !names(&code, "clap"));
    assert!(!names("std::fs2", "std::fs") && !names("my_dbg!", "dbg!"));
    assert_eq!(uses(&code), BTreeSet::from(["json".to_owned(), "turn".to_owned()]));
    assert_eq!(links("[a](b.md#c) [d](e)"), ["b.md", "e"]);
}
