//! Where files are, who may read them, and what links and odd ids do.

use crate::kit::{Sandbox, lines, objects, text};
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

/// Demands that everything in the root is its owner's alone; how many files and folders that are.
#[track_caller]
fn private(sandbox: &Sandbox, what: &str) -> usize {
    let all = sandbox.everything();
    let inside: Vec<_> = all.iter().filter(|(path, _)| path.starts_with(sandbox.root())).collect();
    for (path, bytes) in &inside {
        let wanted = if bytes.is_none() { 0o700 } else { 0o600 };
        assert_eq!(mode(path), wanted, "{} under {what}", path.display());
    }
    inside.len()
}

/// Demands that a file system is as it was.
#[track_caller]
fn untouched(sandbox: &Sandbox, before: &crate::points::Files, what: &str) {
    assert!(*before == sandbox.everything(), "{what}: something was written");
}

/// Mistakes on purpose: a mode, a byte, a file or a link that should not be.
#[test]
fn modes_and_writes_that_should_not_be_are_found() {
    let sandbox = Sandbox::new();
    furnished(&sandbox);
    assert!(private(&sandbox, "no mistake") >= 5);
    for place in ["", "sessions", "sessions/s.jsonl", "quarantine", "policy.json"] {
        let path = sandbox.root().join(place);
        let right = mode(&path);
        for wrong in [right | 0o040, right | 0o004, right | 0o001] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(wrong)).unwrap();
            objects(place, || private(&sandbox, "a wrong mode"));
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(right)).unwrap();
    }
    private(&sandbox, "no mistake");
    let before = sandbox.everything();
    untouched(&sandbox, &before, "nothing");
    let journal = sandbox.journal_bytes("s");
    let spoilt: [&dyn Fn(); 4] = [
        &|| std::fs::write(sandbox.journal_path("s"), &journal[1..]).unwrap(),
        &|| std::fs::remove_file(sandbox.journal_path("s")).unwrap(),
        &|| drop(sandbox.write("elsewhere/new", "")),
        &|| symlink("nothing", sandbox.root().join("sessions/link")).unwrap(),
    ];
    for spoil in spoilt {
        spoil();
        objects("something was written", || untouched(&sandbox, &before, "spoilt"));
        crate::points::restore(&sandbox, &before);
        untouched(&sandbox, &before, "put back");
    }
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
        let files = private(&sandbox, &format!("umask {umask}"));
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
        untouched(&sandbox, &before, place);
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

/// Two ids are two sessions, however alike they look, and none of them is a path.
#[test]
fn ids_that_differ_in_case_encoding_or_one_byte_are_different() {
    let sandbox = Sandbox::new();
    let long = |last: &str| format!("{}{last}", "/..".repeat(1_365));
    assert_eq!(long("a").len(), 4_096);
    let ids = [
        // Composed, decomposed, of another alphabet, of full width, and their escapes as text.
        "\u{e9}",
        "e\u{301}",
        "%C3%A9",
        "%c3%a9",
        "a",
        "A",
        "\u{430}",
        "\u{ff41}",
        "\u{212b}",
        "\u{c5}",
        "%61",
        // Paths, dots, blanks, and what a command line or a name of ours could be.
        "/",
        "//",
        "/etc/passwd",
        "..",
        "...",
        "./a",
        "a/.",
        "a/",
        "~",
        "~root",
        "-",
        "--help",
        " ",
        "a ",
        " a",
        "*",
        "$HOME",
        "a.jsonl",
        "a.jsonl.jsonl",
        ".jsonl",
        "sessions",
        "policy.json",
        "a\\b",
        "con",
        "a:b:c",
        "\u{202e}",
        "\u{feff}",
    ];
    let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).chain([long("a"), long("b")]).collect();
    // What begins with a dash is an option to the command line, behind `--` too, where CMD stands.
    let made: Vec<&String> = ids.iter().filter(|id| !id.starts_with('-')).collect();
    for id in &made {
        sandbox.run(["admit", id, "--text", &format!("I am {id}"), "--owner-pid", "none"]).ok();
    }
    // The reading commands take `./` for a path.
    for id in made.iter().filter(|id| !id.starts_with("./")) {
        let status = sandbox.run(["--json", "inspect", id]).ok().json();
        assert_eq!(text(&status["session"]), **id);
        assert_eq!(text(&status["input"]), format!("I am {id}"));
    }
    let found = names(&sandbox.root().join("sessions"));
    assert_eq!(found.len(), made.len(), "{found:?}");
    let folded: std::collections::BTreeSet<String> = found.iter().map(|name| name.to_lowercase()).collect();
    assert!(folded.len() < found.len(), "a file system that folds case is told by the genesis");
    assert!(found.iter().all(|name| name.len() <= 206 && name.is_ascii()), "{found:?}");
    // Nothing stands anywhere else.
    let outside: Vec<_> = sandbox
        .everything()
        .into_iter()
        .filter(|(path, bytes)| bytes.is_some() && !path.starts_with(sandbox.root().join("sessions")))
        .collect();
    assert!(outside.is_empty(), "{outside:?}");
    // What is no UTF-8 is no id.
    use std::os::unix::ffi::OsStrExt as _;
    let bad = std::ffi::OsStr::from_bytes(b"a\xff");
    sandbox.run(["admit".as_ref(), bad, "--text".as_ref(), "x".as_ref()]).exits(2);
}

/// A state root with a finished run, a quarantined tail, and a policy.
fn furnished(sandbox: &Sandbox) -> String {
    let ticket = sandbox.run(["admit", "s", "--text", "Hi", "--owner-pid", "none"]).ok().line();
    sandbox.step(&ticket, ["run", "--tool", "true", "one", "--", "true"]).ok();
    let mut torn = sandbox.journal_bytes("s");
    torn.extend(b"torn");
    std::fs::write(sandbox.journal_path("s"), torn).unwrap();
    sandbox.step(&ticket, ["heartbeat"]).ok();
    sandbox.policy(serde_json::json!([]));
    ticket
}

#[test]
fn links_at_each_place_in_the_root_are_refused() {
    let quarantined = |sandbox: &Sandbox| {
        let folder = sandbox.root().join("quarantine");
        folder.join(names(&folder).pop().expect("a quarantined tail"))
    };
    for place in ["sessions", "quarantine", "spool", "policy.json", "sessions/s.jsonl", "a quarantined file"]
    {
        for kind in ["to what was there", "to nothing", "to itself"] {
            let sandbox = Sandbox::new();
            let ticket = furnished(&sandbox);
            let link =
                if place.starts_with("a ") { quarantined(&sandbox) } else { sandbox.root().join(place) };
            let target = sandbox.path("elsewhere");
            std::fs::rename(&link, &target).unwrap();
            match kind {
                "to what was there" => symlink(&target, &link).unwrap(),
                "to nothing" => symlink(sandbox.path("nothing"), &link).unwrap(),
                _ => symlink(&link, &link).unwrap(),
            }
            let before = sandbox.everything();
            let verdict = sandbox.run(["--json", "verify", "--all"]);
            let found = verdict.stdout.contains("\"TK032\"") || verdict.stdout.contains("\"link_in_root\"");
            if place.starts_with("a ") {
                // It belongs to a record, whose digest it cannot be compared with.
                assert!([3, 6].contains(&verdict.code()), "{place} {kind}: {}", verdict.all());
            } else {
                // A policy that cannot be read ends every command before it looks at anything else.
                let unreadable = (place, kind) == ("policy.json", "to itself");
                if unreadable {
                    verdict.exits(1).error("io");
                    untouched(&sandbox, &before, &format!("{place} {kind}"));
                    continue;
                }
                assert!(found && verdict.code() == 6, "{place} {kind}: {}", verdict.all());
                let admit = ["--json", "admit", "new", "--text", "x", "--owner-pid", "none"];
                let admitted = if place == "sessions/s.jsonl" {
                    sandbox.run(["--json", "admit", "s", "--text", "x", "--owner-pid", "none"])
                } else {
                    sandbox.run(admit)
                };
                admitted.exits(6).error("link_in_root");
                sandbox.step(&ticket, ["run", "--tool", "true", "two", "--", "true"]).exits(125);
                sandbox.step(&ticket, ["heartbeat"]).exits(6);
            }
            untouched(&sandbox, &before, &format!("{place} {kind}"));
        }
    }
}

#[test]
fn a_root_of_somebody_else_or_open_to_others_is_reported() {
    let sandbox = Sandbox::new();
    furnished(&sandbox);
    let clean = sandbox.run(["--json", "verify", "--all"]).ok();
    assert!(!clean.stdout.contains("TK051") && !clean.stdout.contains("TK052"), "{}", clean.stdout);
    let spool = sandbox.root().join("spool");
    let places = [
        (sandbox.root(), 0o755),
        (sandbox.root().join("sessions"), 0o711),
        (sandbox.root().join("quarantine"), 0o770),
        (spool, 0o701),
        (sandbox.root().join("policy.json"), 0o644),
        (sandbox.journal_path("s"), 0o640),
    ];
    // Only root can give files away.
    let root = sandbox.program("id", ["-u"]).go().ok().line() == "0";
    for (place, bits) in places {
        let before = std::fs::metadata(&place).unwrap().permissions();
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(bits)).unwrap();
        let report = sandbox.run(["--json", "verify", "--all"]).ok();
        let named = format!("\"{}\"", place.display());
        let told = report.stdout.lines().any(|line| line.contains("TK051") && line.contains(&named));
        assert!(told, "{} with mode {bits:o}: {}", place.display(), report.stdout);
        std::fs::set_permissions(&place, before).unwrap();
        if root {
            std::os::unix::fs::chown(&place, Some(12_345), None).unwrap();
            let report = sandbox.run(["--json", "verify", "--all"]).ok();
            let told = report
                .stdout
                .lines()
                .any(|line| line.contains("TK052") && line.contains(&named) && line.contains("user 12345"));
            assert!(told, "{} of user 12345: {}", place.display(), report.stdout);
            std::os::unix::fs::chown(&place, Some(0), None).unwrap();
        } else {
            eprintln!("skipped: {} of another user, since this is not root", place.display());
        }
    }
    sandbox.run(["verify", "--all"]).ok();
}

#[test]
fn a_session_that_is_called_like_a_path_is_found_by_every_command() {
    let sandbox = Sandbox::new();
    for id in ["../x", "/etc/passwd", "a/b", ".."] {
        sandbox.run(["admit", id, "--text", "x", "--owner-pid", "none"]).ok();
        for command in ["inspect", "verify"] {
            sandbox.run([command, id]).ok();
        }
    }
}

/// What the commands make of a root: `verify`, `inspect`, of one session and of all, and three that write.
fn codes(sandbox: &Sandbox, ticket: &str) -> Vec<i32> {
    let commands: [&[&str]; 7] = [
        &["verify", "s"],
        &["verify", "--all"],
        &["inspect", "s"],
        &["inspect"],
        &["admit", "s", "--text", "x", "--owner-pid", "none"],
        &["step", "--ticket", ticket, "heartbeat"],
        &["recover", "s", "--owner-pid", "none"],
    ];
    commands.iter().map(|words| sandbox.run(*words).code()).collect()
}

#[test]
fn a_link_that_leads_nowhere_is_the_same_to_every_command() {
    for place in ["sessions", "sessions/s.jsonl", "quarantine", "spool", "policy.json"] {
        let sandbox = Sandbox::new();
        let ticket = furnished(&sandbox);
        std::fs::rename(sandbox.root().join(place), sandbox.path("elsewhere")).unwrap();
        symlink("nowhere", sandbox.root().join(place)).unwrap();
        let before = sandbox.everything();
        assert_eq!(codes(&sandbox, &ticket), [6; 7], "{place}");
        assert!(before == sandbox.everything(), "{place}: something was written");
        // A file elsewhere is no matter of the root.
        if place != "policy.json" {
            sandbox.write("alone.jsonl", "");
            sandbox.run(["verify", "./alone.jsonl"]).exits(13);
        }
    }
    // The root itself may be a link; behind this one there is none.
    let sandbox = Sandbox::new();
    symlink("nowhere", sandbox.root()).unwrap();
    assert_eq!(codes(&sandbox, "s:t:1"), [8, 8, 8, 8, 1, 8, 8]);
    assert!(!sandbox.path("nowhere").exists());
}

/// Pipes, sockets, devices and folders where files belong, and where folders do: nothing hangs, nothing is written.
#[test]
fn what_is_no_file_is_refused_in_the_place_of_each() {
    type Put = fn(&Sandbox, &Path);
    let kinds: [(&str, Put); 4] = [
        ("pipe", |sandbox, at| drop(sandbox.program("mkfifo", [at]).go().ok())),
        ("socket", |_, at| drop(std::os::unix::net::UnixListener::bind(at).unwrap())),
        // Only root can make a device.
        ("device", |sandbox, at| {
            drop(sandbox.program("mknod", [at.as_os_str(), "c".as_ref(), "1".as_ref(), "5".as_ref()]).go())
        }),
        ("folder", |_, at| std::fs::create_dir(at).unwrap()),
    ];
    let places = [
        ("sessions/s.jsonl", [1, 1, 1, 1, 9, 9, 9]),
        ("policy.json", [1; 7]),
        ("sessions", [1; 7]),
        ("quarantine", [1; 7]),
        ("spool", [1; 7]),
    ];
    for (place, expected) in places {
        for (kind, put) in kinds {
            if kind == "folder" && !place.contains('.') {
                continue;
            }
            let sandbox = Sandbox::new();
            let ticket = furnished(&sandbox);
            let at = sandbox.root().join(place);
            std::fs::rename(&at, sandbox.path("elsewhere")).unwrap();
            put(&sandbox, &at);
            if !at.exists() {
                eprintln!("skipped: {place} as a {kind}, which cannot be made here");
                continue;
            }
            let before = names(&sandbox.root());
            assert_eq!(codes(&sandbox, &ticket), expected, "{place} is a {kind}");
            assert_eq!(before, names(&sandbox.root()), "{place} is a {kind}: something was written");
        }
    }
}

#[test]
fn a_file_with_two_names_is_reported() {
    for place in ["sessions/s.jsonl", "policy.json", "quarantine"] {
        let sandbox = Sandbox::new();
        furnished(&sandbox);
        let at = sandbox.root().join(place);
        let file = if at.is_dir() { at.join(&names(&at)[0]) } else { at };
        assert!(!sandbox.run(["verify", "--all"]).ok().stdout.contains("TK055"));
        std::fs::hard_link(&file, sandbox.path("other")).unwrap();
        let told = sandbox.run(["verify", "--all"]).ok().stdout;
        let named = format!("{}: it has 2 names", file.display());
        assert!(told.contains("TK055 other-name warning") && told.contains(&named), "{told}");
    }
}

/// Scripts export variables that they leave empty.
#[test]
fn an_empty_variable_counts_as_none() {
    let sandbox = Sandbox::new();
    let home = sandbox.path("home");
    let state = home.join(".local/state/turnkeep");
    let with = |name: &str, words: &[&str]| {
        let root = if name == "TURNKEEP_ROOT" { "".into() } else { state.clone() };
        let cmd = sandbox.cmd(words).env("TURNKEEP_ROOT", root).env("HOME", &home);
        cmd.env("XDG_STATE_HOME", "").env(name, "").go()
    };
    for name in ["TURNKEEP_ROOT", "TURNKEEP_POLICY", "TURNKEEP_TICKET"] {
        with(name, &["admit", name, "--text", "Hi", "--owner-pid", "none"]).ok();
        with(name, &["inspect", name, "--next"]).ok();
        assert!(state.join(format!("sessions/{name}.jsonl")).exists(), "{name}");
    }
    // Who gives an option gives a value.
    for option in ["--root", "--policy"] {
        sandbox.run(["inspect", option, ""]).exits(2).says(option);
    }
}
