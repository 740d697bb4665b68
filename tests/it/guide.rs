//! The guide is run as it stands: each block of commands in one shell, and what it prints compared with the block of
//! text behind it.

use crate::kit::{BIN, Sandbox};
use crate::strict_server::{Answer, Server};
use serde_json::json;
use std::fmt::Write as _;
use std::path::Path;

const GUIDE: &str = include_str!("../../docs/guide.md");

/// One block of commands, and what it is said to print.
struct Block {
    commands: String,
    printed: Option<String>,
}

fn blocks() -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut lines = GUIDE.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else { continue };
        let body: String =
            lines.by_ref().take_while(|line| *line != "```").flat_map(|line| [line, "\n"]).collect();
        match (language, blocks.last_mut()) {
            ("sh", _) => blocks.push(Block { commands: body, printed: None }),
            ("text", Some(block)) if block.printed.is_none() => block.printed = Some(body),
            other => panic!("a block that no test runs: {:?}", other.0),
        }
    }
    blocks
}

/// Hashes are others each time, no line of the guide ends in blanks, and how bash tells that a job was killed varies.
fn masked(text: &str) -> String {
    let is_hash = |word: &str| word.len() == 64 && word.chars().all(|char| char.is_ascii_hexdigit());
    let mut masked = String::new();
    for line in text.lines().filter(|line| !line.contains("Killed")) {
        let words: Vec<&str> =
            line.split('"').map(|word| if is_hash(word) { "HASH" } else { word }).collect();
        writeln!(masked, "{}", words.join("\"").trim_end()).unwrap();
    }
    masked
}

#[test]
fn every_block_of_the_guide_does_what_it_says() {
    let sandbox = Sandbox::new();
    let mut blocks = blocks();
    assert!(blocks.len() > 10, "{}", blocks.len());
    if !["curl", "jq"].iter().all(|tool| sandbox.has(tool)) {
        eprintln!("skipped: the agent at the end of the guide, since curl or jq is not here");
        blocks.retain(|block| !block.commands.contains("shell-agent"));
    }
    let server = Server::start(vec![
        Answer::calls(&[("call_0", "read", json!({"path": "note.txt"}))]),
        Answer::calls(&[("call_0", "send_message", json!({"text": "Your cake is in the oven."}))]),
        Answer::text("I told Ada."),
    ]);
    let mut script = String::from("exec 2>&1\n");
    for (number, block) in blocks.iter().enumerate() {
        let path = sandbox.write(format!("block-{number}"), &block.commands);
        let out = sandbox.path(format!("printed-{number}"));
        writeln!(
            script,
            ". '{}' >'{}' 2>&1 || echo \"block {number}: exit $?\"",
            path.display(),
            out.display()
        )
        .unwrap();
    }
    let script = sandbox.write("guide", script);
    let path = format!("{}:{}", Path::new(BIN).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let ran = sandbox
        .program("bash", [&script])
        .cwd(env!("CARGO_MANIFEST_DIR"))
        .env("PATH", path)
        .env_remove("TURNKEEP_ROOT")
        .env("OPENAI_BASE_URL", server.url("/v1"))
        .env("OPENAI_API_KEY", "secret")
        .env("OPENAI_MODEL", "m")
        .go()
        .ok();
    assert_eq!(ran.stdout, "", "a block that failed");
    for (number, block) in blocks.iter().enumerate() {
        let printed = std::fs::read_to_string(sandbox.path(format!("printed-{number}"))).unwrap();
        let wanted = block.printed.clone().unwrap_or_default();
        assert_eq!(masked(&printed), masked(&wanted), "{}", block.commands);
    }
}
