//! What `recover` does about the end of a journal, and about journals that it must not write to.

use crate::forge;
use crate::kit::*;
use serde_json::json;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

/// A turn with a claimed call whose owner is gone; the last record holds multibyte text.
fn crashed(sandbox: &Sandbox) -> String {
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--text", "Grüße ☃ 🦀"]);
    let seq = sandbox.announce(&ticket, &[("c1", "bash", json!({"command": "echo ☃🦀"}))]);
    sandbox.step(&ticket, ["claim", &format!("{seq}.0"), "--link", r#"{"job":"ü☃🦀"}"#]).ok();
    owner.die();
    ticket
}

/// Every one of them where there is time, else some.
fn stride(quick: usize) -> usize {
    if std::env::var_os("TURNKEEP_SLOW").is_some() { 1 } else { quick }
}

fn quarantine(sandbox: &Sandbox) -> Vec<String> {
    let Ok(folder) = std::fs::read_dir(sandbox.root().join("quarantine")) else { return Vec::new() };
    let mut names: Vec<String> =
        folder.map(|item| item.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn last_line(journal: &[u8]) -> usize {
    journal[..journal.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1
}

/// Whether the last good record has its newline.
#[derive(PartialEq, Eq)]
enum Newline {
    There,
    Missing,
}

/// Puts a torn journal in place and demands that `recover` keeps every byte of it.
#[track_caller]
fn demand_repair(sandbox: &Sandbox, owner: &Owner, good: &[u8], torn: &[u8], newline: Newline) {
    let path = sandbox.journal_path("s");
    std::fs::write(&path, [good, torn].concat()).unwrap();
    let _none = std::fs::remove_dir_all(sandbox.root().join("quarantine"));
    sandbox.recover(owner, "s", &[]);
    if torn.len().is_multiple_of(7) {
        sandbox.run(["verify", "s"]).ok();
    }
    let after = std::fs::read(&path).unwrap();
    let lead: &[u8] = if newline == Newline::Missing { b"\n" } else { b"" };
    assert!(after.starts_with(&[good, lead].concat()), "an acknowledged record was touched");
    let fresh = lines(&after[good.len() + lead.len()..]);
    let repaired = &fresh[0];
    assert_eq!(repaired["kind"], "repaired");
    assert_eq!(repaired["offset"], good.len(), "{repaired}");
    assert_eq!(repaired["bytes"], torn.len(), "{repaired}");
    let digest = forge::sha256(torn);
    assert_eq!(repaired["sha256"], digest, "{repaired}");
    let name = format!("s.{}.{}", good.len(), &digest[..16]);
    assert_eq!(repaired["saved_as"], format!("quarantine/{name}"), "{repaired}");
    assert_eq!(quarantine(sandbox), std::slice::from_ref(&name));
    let saved = sandbox.root().join("quarantine").join(name);
    assert_eq!(std::fs::read(&saved).unwrap(), torn, "bytes were lost");
    assert_eq!(saved.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let folder = sandbox.root().join("quarantine").metadata().unwrap();
    assert_eq!(folder.permissions().mode() & 0o777, 0o700);
    let kinds: Vec<_> = fresh.iter().map(|record| text(&record["kind"])).collect();
    assert_eq!(&kinds[..2], ["repaired", "attempt"]);
    assert_eq!(kinds.last().unwrap(), "recovered");
}

#[test]
fn every_cut_of_the_last_record_is_repaired_and_kept() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    let journal = sandbox.journal_bytes("s");
    let start = last_line(&journal);
    let owner = Owner::start();
    for cut in start + 1..journal.len() - 1 {
        demand_repair(&sandbox, &owner, &journal[..start], &journal[start..cut], Newline::There);
        // The claim was never acknowledged: the call is to be run.
        let recovered = sandbox.last("s");
        assert_eq!(recovered["decisions"][0]["decision"], "run", "cut at {cut}");
    }
}

#[test]
fn a_whole_record_without_its_newline_counts() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    let journal = sandbox.journal_bytes("s");
    std::fs::write(sandbox.journal_path("s"), &journal[..journal.len() - 1]).unwrap();
    let owner = Owner::start();
    sandbox.recover(&owner, "s", &[]);
    assert!(sandbox.journal_bytes("s").starts_with(&journal), "the newline comes first");
    assert!(!sandbox.kinds("s").contains(&"repaired".to_owned()), "nothing was torn");
    assert_eq!(sandbox.last("s")["decisions"][0]["decision"], "interrupt", "the claim counts");
    assert!(quarantine(&sandbox).is_empty());
}

#[test]
fn nul_tails_are_torn_tails() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    let journal = sandbox.journal_bytes("s");
    let start = last_line(&journal);
    let owner = Owner::start();
    for nuls in [1, 74, 75, 4096] {
        demand_repair(&sandbox, &owner, &journal, &vec![0; nuls], Newline::There);
        let torn = [&journal[start..start + 40], &vec![0; nuls]].concat();
        demand_repair(&sandbox, &owner, &journal[..start], &torn, Newline::There);
        // Behind a whole record whose newline is missing, the record stays.
        demand_repair(&sandbox, &owner, &journal[..journal.len() - 1], &vec![0; nuls], Newline::Missing);
        assert_eq!(sandbox.last("s")["decisions"][0]["decision"], "interrupt", "the claim counts");
    }
}

#[test]
fn a_torn_genesis_is_kept_behind_a_new_one() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    let journal = sandbox.journal_bytes("s");
    let end = journal.iter().position(|byte| *byte == b'\n').unwrap();
    let path = sandbox.journal_path("s");
    for cut in (1..end).step_by(stride(5)) {
        std::fs::write(&path, &journal[..cut]).unwrap();
        let _none = std::fs::remove_dir_all(sandbox.root().join("quarantine"));
        sandbox.run(["recover", "s"]).exits(10);
        let records = sandbox.journal("s");
        assert_eq!(sandbox.kinds("s"), ["opened", "repaired"], "cut at {cut}");
        assert_eq!(records[0]["session"], "s");
        assert_eq!(records[1]["offset"], 0);
        assert_eq!(records[1]["bytes"], cut);
        let saved = sandbox.root().join(text(&records[1]["saved_as"]));
        assert_eq!(std::fs::read(saved).unwrap(), &journal[..cut]);
        // The session can be used.
        let owner = Owner::start();
        sandbox.admit(&owner, "s", &[]);
    }
}

#[test]
fn an_empty_journal_has_nothing_to_recover_and_can_be_admitted_to() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    std::fs::write(sandbox.journal_path("s"), "").unwrap();
    let shown = sandbox.run(["recover", "s", "--dry-run", "--json"]).exits(10).json();
    assert_eq!(shown["records"][0]["kind"], "opened");
    assert!(sandbox.journal_bytes("s").is_empty());
    let owner = Owner::start();
    sandbox.admit(&owner, "s", &[]);
    assert_eq!(&sandbox.kinds("s")[..2], ["opened", "admitted"]);
    // Recovered, it is a sound journal.
    std::fs::write(sandbox.journal_path("s"), "").unwrap();
    let status = sandbox.run(["recover", "s", "--json"]).exits(10).says("nothing to recover").json();
    assert_eq!((&status["session"], &status["next"]["do"]), (&json!("s"), &json!("done")));
    assert_eq!(sandbox.kinds("s"), ["opened"]);
    sandbox.run(["verify", "s"]).ok();
    sandbox.run(["recover", "s"]).exits(10);
    assert_eq!(sandbox.kinds("s"), ["opened"], "and nothing more is written");
}

#[test]
fn the_newline_of_a_closed_session_is_added() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    sandbox.step_in(&ticket, ["message", "-"], assistant("Done.", &[]).to_string()).ok();
    sandbox.step(&ticket, ["settle"]).ok();
    let journal = sandbox.journal_bytes("s");
    std::fs::write(sandbox.journal_path("s"), &journal[..journal.len() - 1]).unwrap();
    sandbox.run(["recover", "s", "--dry-run"]).exits(10);
    assert_eq!(sandbox.journal_bytes("s").len(), journal.len() - 1, "a dry run writes nothing");
    sandbox.run(["recover", "s"]).exits(10);
    assert_eq!(string(sandbox.journal_bytes("s")), string(journal.clone()));
    // A torn tail behind it is repaired too, and that alone is written.
    let torn = [&journal[..], b"{\"seq\":9,"].concat();
    std::fs::write(sandbox.journal_path("s"), torn).unwrap();
    let ran = sandbox.run(["recover", "s", "--json"]).exits(10);
    assert_eq!(ran.json()["state"], "closed");
    assert_eq!(lines(&sandbox.journal_bytes("s")[journal.len()..]).len(), 1);
    assert_eq!(sandbox.last("s")["kind"], "repaired");
}

#[test]
fn a_repair_that_was_killed_half_way_is_made_whole() {
    let sandbox = Sandbox::new();
    let (journal, torn, saved) = torn_at_the_end(&sandbox);
    let owner = Owner::start();
    for copied in [0, 7, 60] {
        std::fs::write(&saved, &torn[..copied]).unwrap();
        std::fs::write(sandbox.journal_path("s"), &journal).unwrap();
        sandbox.recover(&owner, "s", &[]);
        assert_eq!(std::fs::read(&saved).unwrap(), torn, "{copied} bytes were copied before");
    }
}

/// A crashed journal whose last record is torn behind 60 bytes, these bytes, and where a repair keeps them.
fn torn_at_the_end(sandbox: &Sandbox) -> (Vec<u8>, Vec<u8>, PathBuf) {
    crashed(sandbox);
    let mut journal = sandbox.journal_bytes("s");
    let start = last_line(&journal);
    journal.truncate(start + 60);
    let torn = journal[start..].to_vec();
    let folder = sandbox.root().join("quarantine");
    std::fs::create_dir_all(&folder).unwrap();
    let saved = folder.join(format!("s.{start}.{}", &forge::sha256(&torn)[..16]));
    (journal, torn, saved)
}

#[test]
fn a_repair_writes_nothing_through_a_second_name() {
    let sandbox = Sandbox::new();
    let (journal, torn, saved) = torn_at_the_end(&sandbox);
    let other = sandbox.write("mine", "precious");
    std::fs::hard_link(&other, &saved).unwrap();
    std::fs::write(sandbox.journal_path("s"), &journal).unwrap();
    sandbox.recover(&Owner::start(), "s", &[]);
    assert_eq!(std::fs::read(&saved).unwrap(), torn);
    assert_eq!(std::fs::read(&other).unwrap(), b"precious");
}

/// Runs `recover` and demands that it refuses and touches nothing.
#[track_caller]
fn refused(sandbox: &Sandbox, code: i32, kind: &str) -> serde_json::Value {
    let before = sandbox.everything();
    let ran = sandbox.run(["recover", "s", "--json"]).exits(code);
    assert_eq!(sandbox.everything(), before, "something was written");
    ran.error(kind)
}

#[test]
fn damage_is_told_with_its_place_and_the_next_command() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    let journal = sandbox.journal_bytes("s");
    let offsets: Vec<usize> = std::iter::once(0)
        .chain(journal.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1))
        .collect();
    let lines = &offsets[..offsets.len() - 1];
    for (line, offset) in lines.iter().enumerate() {
        // A body changed in place: its hash does not fit any more.
        let mut broken = journal.clone();
        let at = offset + 20;
        broken[at] ^= 1;
        std::fs::write(sandbox.journal_path("s"), &broken).unwrap();
        let error = refused(&sandbox, 3, "damaged");
        assert_eq!(error["line"], line + 1, "{error}");
        assert_eq!(error["offset"], *offset, "{error}");
        assert_eq!(error["path"], sandbox.journal_path("s").display().to_string());
        let message = text(&error["message"]);
        assert!(message.contains("hash"), "which check failed: {message}");
        if line > 0 {
            assert_eq!(error["turns"], json!(["t1"]), "line {}: {error}", line + 1);
            assert!(message.contains("t1"), "{message}");
        }
        // Nothing goes on behind a first record that is damaged.
        let next = if line == 0 { "bring back a copy" } else { "turnkeep recover s --salvage" };
        assert!(text(&error["hint"]).contains(next), "{error}");
        let human = sandbox.run(["recover", "s"]).exits(3);
        assert!(human.stdout.is_empty());
        human.says(&format!("line {}", line + 1)).says(next);
    }
}

#[test]
fn every_kind_of_damage_is_refused() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    let journal = sandbox.journal_bytes("s");
    let all: Vec<&[u8]> = journal.split_inclusive(|byte| *byte == b'\n').collect();
    let n = all.len();
    let last = all[n - 1];
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("a line is missing", [&all[..2], &all[3..]].concat().concat()),
        ("a line is doubled", [&all[..3], &all[2..]].concat().concat()),
        ("two lines changed places", [&all[..2], &[all[3], all[2]], &all[4..]].concat().concat()),
        ("an empty line", [&journal[..], b"\n"].concat()),
        ("NULs with a newline", [&journal[..], b"\0\0\n"].concat()),
        ("a whole record glued to a torn one", [&all[..n - 1].concat(), &b"{\"seq\":3"[..], last].concat()),
        ("the same without the newline", {
            let glued = [&all[..n - 1].concat(), &b"{\"seq\":3"[..], last].concat();
            glued[..glued.len() - 1].to_vec()
        }),
        ("a whole last record out of the chain", [&journal[..], &last[..last.len() - 1]].concat()),
        ("CRLF", [&journal[..journal.len() - 1], b"\r\n"].concat()),
        ("white space before the newline", [&journal[..journal.len() - 1], b" \n"].concat()),
        ("a byte order mark", [b"\xef\xbb\xbf", &journal[..]].concat()),
        ("no genesis", all[1..].concat()),
        ("a garbage line", [&all[..2].concat(), &b"garbage\n"[..], &all[2..].concat()].concat()),
    ];
    for (what, bytes) in bodies {
        std::fs::write(sandbox.journal_path("s"), bytes).unwrap();
        let error = refused(&sandbox, 3, "damaged");
        assert!(error["line"].is_u64() && error["offset"].is_u64(), "{what}: {error}");
        let admit = sandbox.run(["admit", "s", "--text", "x", "--owner-pid", "none"]);
        assert_eq!(admit.code(), 3, "{what}: admit refuses too");
    }
}

#[test]
fn every_flipped_bit_of_an_open_turn_is_damage_or_a_torn_tail() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    let journal = sandbox.journal_bytes("s");
    for bit in (0..journal.len() * 8).step_by(stride(97)) {
        let mut broken = journal.clone();
        broken[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(sandbox.journal_path("s"), &broken).unwrap();
        let ran = sandbox.run(["recover", "s", "--dry-run", "--owner-pid", "none"]);
        // A last newline that became something else leaves a whole record, which is not torn.
        assert_eq!(ran.code(), 3, "bit {bit}: {}", ran.stderr);
    }
}

#[test]
fn a_newer_format_is_no_damage_and_not_written_to() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    let journal = sandbox.journal_bytes("s");
    let newer = forge::replaced(&journal, "turnkeep/1", "turnkeep/2");
    // Its records may be anything.
    let genesis = newer.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let newer = [&newer[..genesis], b"a line that only the newer version knows\n"].concat();
    std::fs::write(sandbox.journal_path("s"), &newer).unwrap();
    let error = refused(&sandbox, 12, "other_format");
    let message = text(&error["message"]);
    assert!(message.contains("turnkeep/2") && message.contains("turnkeep/1"), "{message}");
    assert_eq!((&error["found"], &error["known"]), (&json!("turnkeep/2"), &json!("turnkeep/1")));
    sandbox.run(["recover", "s", "--dry-run"]).exits(12);
    sandbox.run(["admit", "s", "--text", "x", "--owner-pid", "none"]).exits(12);
    // Its genesis still has to check.
    let mut broken = newer.clone();
    broken[60] ^= 1;
    std::fs::write(sandbox.journal_path("s"), &broken).unwrap();
    refused(&sandbox, 3, "damaged");
}

#[test]
fn a_journal_of_another_session_is_a_conflict() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    std::fs::copy(sandbox.journal_path("s"), sandbox.journal_path("x")).unwrap();
    let before = sandbox.everything();
    sandbox.run(["recover", "x", "--json"]).exits(6).error("other_session");
    sandbox.run(["recover", "x", "--dry-run"]).exits(6);
    assert_eq!(sandbox.everything(), before, "something was written");
}

#[test]
fn a_missing_session_or_root_is_not_made() {
    let sandbox = Sandbox::new();
    sandbox.run(["recover", "nobody"]).exits(8);
    sandbox.run(["recover", "nobody:t1", "--json"]).exits(8).error("no_session");
    assert!(!sandbox.root().exists(), "nothing is created");
    crashed(&sandbox);
    let before = sandbox.everything();
    sandbox.run(["recover", "nobody"]).exits(8).says("nobody");
    sandbox.run(["recover", "s:t9"]).exits(8).says("t9");
    sandbox.run(["recover", "nobody", "--dry-run"]).exits(8);
    sandbox.run(["recover", ""]).exits(2);
    assert_eq!(sandbox.everything(), before);
}

#[test]
fn a_session_id_may_hold_colons() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "irc:net:#room", &["--turn", "t1"]);
    assert_eq!(ticket, "irc:net:#room:t1:1");
    owner.die();
    let owner = Owner::start();
    assert_eq!(sandbox.recover(&owner, "irc:net:#room:t1", &[]), "irc:net:#room:t1:2");
    assert_eq!(sandbox.recover(&owner, "irc:net:#room", &[]), "irc:net:#room:t1:2");
    // A session of the whole name wins over a turn of a shorter one.
    let other = sandbox.admit(&owner, "irc:net:#room:t1", &["--turn", "t2"]);
    assert_eq!(sandbox.recover(&owner, "irc:net:#room:t1", &[]), other);
    sandbox.run(["recover", "irc:net:#room:t7"]).exits(8);
}

#[test]
fn a_link_inside_the_root_is_refused() {
    let sandbox = Sandbox::new();
    crashed(&sandbox);
    let path = sandbox.journal_path("s");
    let elsewhere = sandbox.path("elsewhere.jsonl");
    std::fs::rename(&path, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    let before = std::fs::read(&elsewhere).unwrap();
    let ran = sandbox.run(["recover", "s"]);
    assert_ne!(ran.code(), 0);
    assert_eq!(std::fs::read(&elsewhere).unwrap(), before);
}

/// The record of the turn names the session file's header; the header's own record was torn off behind it.
#[test]
fn a_torn_admission_still_knows_the_header_of_its_session_file() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let header = header().to_string();
    let tree = ["--tree", "chat.jsonl", "--tree-mode", "append", "--tree-header", &header];
    sandbox.admit(&owner, "s", &tree);
    owner.die();
    let journal = sandbox.journal_bytes("s");
    let admitted: Vec<&[u8]> = journal.split_inclusive(|byte| *byte == b'\n').take(2).collect();
    std::fs::write(sandbox.journal_path("s"), admitted.concat()).unwrap();
    std::fs::remove_file(sandbox.path("chat.jsonl")).unwrap();
    let owner = Owner::start();
    sandbox.recover(&owner, "s", &[]);
    assert_eq!(sandbox.tree("chat.jsonl")[0]["id"], self::header()["id"]);
    sandbox.run(["verify", "s", "--with-tree"]).ok();
}
