//! Where files are, who may read them, and what links and odd ids do.

use crate::kit::{Sandbox, lines, text};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|item| item.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn private_whatever_the_umask() {
    for umask in ["000", "777", "027"] {
        let sandbox = Sandbox::new();
        let script = format!(
            "umask {umask}; t=$(turnkeep admit s --text Hi --owner-pid none) || exit
             turnkeep step --ticket \"$t\" run --tool sh one -- sh -c 'ls -lR \"$TURNKEEP_ROOT\"; printf x' || exit
             printf torn >>\"$TURNKEEP_ROOT/sessions/s.jsonl\"
             turnkeep step --ticket \"$t\" heartbeat"
        );
        sandbox.sh(&script).ok();
        let mut files = 0;
        for (path, bytes) in
            sandbox.everything().into_iter().filter(|(path, _)| path.starts_with(sandbox.root()))
        {
            let wanted = if bytes.is_none() { 0o700 } else { 0o600 };
            assert_eq!(mode(&path), wanted, "{} under umask {umask}", path.display());
            files += 1;
        }
        assert!(files >= 5, "root, sessions, journal, quarantine and its file");
        assert_eq!(mode(&sandbox.root()), 0o700);
        let records = sandbox.journal("s");
        let result = records.iter().find(|record| record["kind"] == "result").unwrap();
        let listed = text(&result["stdout"]);
        assert!(
            listed.contains(".out") && !listed.contains("-rw-r"),
            "the live spool is private too: {listed}"
        );
    }
}

#[test]
fn the_name_of_a_journal_says_its_id() {
    let sandbox = Sandbox::new();
    let long = "x".repeat(300);
    let words = "語".repeat(100);
    for (id, name) in [
        ("room-42", "room-42.jsonl"),
        ("My-Bot", "My-Bot.jsonl"),
        ("my-bot", "my-bot.jsonl"),
        ("a:b", "a%3Ab.jsonl"),
        ("a_b", "a_b.jsonl"),
        ("a.b", "a.b.jsonl"),
        (".hidden", "%2Ehidden.jsonl"),
        ("..", "%2E..jsonl"),
        ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd.jsonl"),
        ("a b%~é", "a%20b%25%7E%C3%A9.jsonl"),
        (&"y".repeat(200), &format!("{}.jsonl", "y".repeat(200))),
        (&long, ""),
        (&words, ""),
    ] {
        sandbox.run(["admit", id, "--text", "Hi"]).ok();
        if name.is_empty() {
            let sha = sandbox.program("sha256sum", [""; 0]).stdin(id).go().ok();
            let sha = sha.stdout.split(' ').next().unwrap().to_owned();
            let found = names(&sandbox.root().join("sessions"));
            let file = found.iter().find(|file| file.contains(&sha)).unwrap_or_else(|| panic!("{found:?}"));
            let stem = file.strip_suffix(&format!("~{sha}.jsonl")).unwrap();
            assert!(stem.len() <= 135 && stem.len() > 130, "{stem}");
            assert!(
                !stem.ends_with('%') && stem.as_bytes()[stem.len() - 2] != b'%',
                "cut inside %XX: {stem}"
            );
        } else {
            let bytes = std::fs::read(sandbox.root().join("sessions").join(name)).unwrap();
            assert_eq!(lines(&bytes)[0]["session"], id);
        }
    }
    assert!(
        names(&sandbox.root().join("sessions"))
            .iter()
            .all(|name| Path::new(name).extension() == Some("jsonl".as_ref()))
    );
    for bad in ["", "a\nb", "a\u{7f}", &"z".repeat(4097)] {
        sandbox.run(["--json", "admit", bad, "--text", "Hi"]).exits(2).error("bad_session_id");
    }
    sandbox.run(["admit", &"z".repeat(4096), "--text", "Hi"]).ok();
}

#[test]
fn a_file_whose_genesis_names_another_session_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.run(["admit", "my-bot", "--text", "Hi"]).ok();
    std::fs::copy(sandbox.journal_path("my-bot"), sandbox.journal_path("My-Bot")).unwrap();
    sandbox.unchanged("My-Bot", || {
        let error =
            sandbox.run(["--json", "admit", "My-Bot", "--text", "Hi"]).exits(6).error("other_session");
        assert!(text(&error["message"]).contains("my-bot"), "which session it meets: {error}");
    });
}

#[test]
fn links_inside_the_root_are_refused_and_their_targets_untouched() {
    for place in ["sessions/s.jsonl", "sessions", "quarantine"] {
        let sandbox = Sandbox::new();
        sandbox.run(["admit", "other", "--text", "Hi"]).ok();
        let link = sandbox.root().join(place);
        let target = if place.ends_with("jsonl") {
            sandbox.write("victim.txt", "precious\n")
        } else {
            let target = sandbox.path("outside");
            if link.exists() {
                std::fs::rename(&link, &target).unwrap();
            } else {
                std::fs::create_dir(&target).unwrap();
            }
            target
        };
        symlink(&target, &link).unwrap();
        let before = sandbox.everything();
        let ran = sandbox.run(["--json", "admit", "s", "--text", "Hi"]).exits(6);
        let error = ran.error("link_in_root");
        let message = text(&error["message"]);
        assert!(
            message.contains(place) && message.contains(target.file_name().unwrap().to_str().unwrap()),
            "{message}"
        );
        sandbox.run(["step", "--ticket", "s:t:1", "heartbeat"]).exits(6);
        assert_eq!(before, sandbox.everything(), "{place}");
    }
}

#[test]
fn a_linked_root_is_fine() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("real")).unwrap();
    std::fs::set_permissions(sandbox.path("real"), std::fs::Permissions::from_mode(0o700)).unwrap();
    symlink(sandbox.path("real"), sandbox.root()).unwrap();
    let ticket = sandbox.run(["admit", "s", "--text", "Hi"]).ok().line();
    sandbox.step(&ticket, ["settle"]).ok();
    assert!(sandbox.path("real/sessions/s.jsonl").exists());
}

#[test]
fn the_root_is_found_where_it_is_said_to_be() {
    let sandbox = Sandbox::new();
    let admit = |words: &[&str]| {
        sandbox.cmd([words, &["admit", "s", "--text", "Hi"]].concat()).env_remove("TURNKEEP_ROOT")
    };
    admit(&[]).go().ok();
    assert!(sandbox.path(".local/state/turnkeep/sessions/s.jsonl").exists());
    admit(&[]).env("XDG_STATE_HOME", sandbox.path("xdg")).go().ok();
    assert!(sandbox.path("xdg/turnkeep/sessions/s.jsonl").exists());
    // A relative XDG_STATE_HOME is to be ignored.
    admit(&[]).env("XDG_STATE_HOME", "xdg2").go().exits(4);
    admit(&["--root", "given"]).env("TURNKEEP_ROOT", sandbox.path("env")).go().ok();
    assert!(sandbox.path("given/sessions/s.jsonl").exists() && !sandbox.path("env").exists());
    let none = admit(&["--json"]).env_remove("HOME").go().exits(2);
    none.error("no_root");
}
