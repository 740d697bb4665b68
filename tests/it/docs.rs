//! Documents that repeat what the code says are compared with it.
//!
//! `TURNKEEP_UPDATE_DOCS=1 cargo test --test it docs` writes the generated parts anew instead.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use turnkeep::cli::error::Exit;
use turnkeep::policy::Policy;
use turnkeep::record::{Kind, Replay};
use turnkeep::verify::Code;

const BEGIN: &str = "<!-- generated: TURNKEEP_UPDATE_DOCS=1 cargo test --test it docs -->\n";
const END: &str = "<!-- end of the generated part -->\n";

fn document(name: &str) -> (PathBuf, String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    let text = fs::read_to_string(&path).expect("a document");
    (path, text)
}

/// The generated part of a document must be this.
fn generated(name: &str, wanted: &str) {
    let (path, text) = document(name);
    let (head, rest) = text.split_once(BEGIN).expect("a beginning of the generated part");
    let (found, foot) = rest.split_once(END).expect("an end of the generated part");
    let wanted = format!("\n{}\n\n", wanted.trim());
    if std::env::var_os("TURNKEEP_UPDATE_DOCS").is_some() {
        fs::write(path, format!("{head}{BEGIN}{wanted}{END}{foot}")).expect("written");
    } else {
        assert!(
            found == wanted,
            "docs/{name} does not say what the code says; run the tests once with TURNKEEP_UPDATE_DOCS=1\n--- wanted\n{wanted}\n--- found\n{found}"
        );
    }
}

#[test]
fn the_reference_is_what_the_command_line_says() {
    let mut root = turnkeep::cli::command().term_width(96).disable_help_subcommand(true);
    root.build();
    let mut text = String::new();
    render(&mut text, &mut root, 2);
    generated("cli.md", &text);
}

/// The help of a command and of those below it.
fn render(text: &mut String, command: &mut clap::Command, level: usize) {
    let is_root = level == 2;
    // What the environment holds here is nobody's business; options of all commands are told once.
    let mut shown = command.clone().mut_args(|arg| {
        let hidden = arg.is_hide_set() || arg.get_id() == "help" || (!is_root && arg.is_global_set());
        arg.hide_env_values(true).hide(hidden)
    });
    let path = shown.get_bin_name().unwrap_or("turnkeep").to_owned();
    let help = shown.render_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    writeln!(text, "{} {path}\n\n```text\n{}\n```\n", "#".repeat(level.min(3)), lines.join("\n").trim_end())
        .expect("text");
    for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
        render(text, below, level + 1);
    }
}

#[test]
fn the_exit_codes_are_those_of_the_code() {
    let mut table = "| code | meaning |\n| --- | --- |\n".to_owned();
    for exit in Exit::ALL {
        writeln!(table, "| {} | {} |", exit.code(), exit.meaning()).expect("text");
    }
    writeln!(table, "| 128+n | {} |", Exit::Signal(1).meaning()).expect("text");
    assert_eq!((Exit::Signal(9).code(), Exit::OfCommand(7).code()), (137, 7));
    generated("exit-codes.md", &table);
}

#[test]
fn the_format_lists_every_kind() {
    let (_, text) = document("format.md");
    let rows = text.split("| kind |").nth(1).expect("the table of kinds").lines().skip(2);
    let kinds: Vec<&str> = rows.map_while(|row| row.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(kinds, Kind::WORDS);
}

#[test]
fn the_policies_in_the_documents_are_policies() {
    let (_, text) = document("cli.md");
    let shown = text.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a policy");
    let policy = Policy::parse(shown.as_bytes(), "docs/cli.md").expect("a policy");
    assert_eq!(policy.classify("memory", r#"{"action":"search"}"#).replay, Replay::Safe);
    assert_eq!(policy.classify("memory", "{}").replay, Replay::Never);
    assert_eq!((policy.classify("read", "{}").replay, policy.attempts_max()), (Replay::Never, 5));
    for example in ["policy", "quickstart", "script", "shell-agent"] {
        let name = format!("examples/{example}/policy.json");
        let (_, text) = document(&name);
        Policy::parse(text.as_bytes(), &name).expect("a policy");
    }
}

#[test]
fn the_version_table_knows_this_format() {
    let (_, text) = document("format.md");
    assert!(text.contains(&format!("| `{}` |", turnkeep::record::FORMAT)));
}

#[test]
fn the_findings_are_those_of_the_code() {
    let mut table = "| code | name | severity | what to do |\n| --- | --- | --- | --- |\n".to_owned();
    for code in Code::ALL {
        let (name, severity) = (code.name(), code.severity().word());
        writeln!(table, "| {} | {name} | {severity} | {} |", code.code(), code.what_to_do()).expect("text");
    }
    generated("verify-codes.md", &table);
}

#[test]
fn every_act_that_may_come_next_is_explained() {
    let (_, text) = document("recovery.md");
    let rows: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("| `")?.split("` | ").next()).collect();
    let words: Vec<&str> = turnkeep::turn::next::Do::ALL.iter().map(|act| act.word()).collect();
    assert_eq!(rows, words);
}

/// Each harness has a row that says what it finds, what it cannot find, and how long it takes.
#[test]
fn the_testing_guide_tells_of_every_harness() {
    let (_, text) = document("testing.md");
    let heading = "| harness | finds | cannot find | seconds |";
    let rows: Vec<&str> = text.lines().skip_while(|line| *line != heading).skip(2).collect();
    let rows: Vec<&str> = rows.into_iter().take_while(|line| line.starts_with('|')).collect();
    assert!(rows.iter().all(|row| row.split(" | ").count() == 4 && !row.contains("|  |")), "{rows:#?}");
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    for file in fs::read_dir(folder).expect("a folder") {
        let path = file.expect("a file").path();
        // What has no tests of its own is no harness.
        let has_tests = path.is_file() && fs::read_to_string(&path).expect("text").contains("#[test]");
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(!has_tests || rows.iter().any(|row| row.contains(&format!("`{name}`"))), "{name} has no row");
    }
}
