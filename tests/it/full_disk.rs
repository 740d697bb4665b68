//! Full, small and read-only disks, and processes that may have no more bytes or files.
//!
//! What needs a file system of its own runs in a mount namespace of its own, in which the test starts itself again:
//! the mounts go with it, however it ends. Where that is not permitted (it takes root, or user namespaces) the tests
//! say so and pass. After each refusal: 9 or 1 with the system's words, the journal as it was or explained by a
//! crash, and the same command does its work once there is room.

use crate::kit::*;
use crate::points::{Files, restore, slow};
use serde_json::json;
use std::path::Path;
use std::process::Command;

/// Set for the test that was started again inside.
const INSIDE: &str = "TURNKEEP_TEST_OWN_MOUNTS";

/// Runs `body` where mounts are nobody else's, the test binary being started again for the test of this name.
#[track_caller]
fn with_own_mounts(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        body();
        return;
    }
    let ways: [&[&str]; 2] = [&["-m", "--propagation", "private"], &["-r", "-m", "--propagation", "private"]];
    let works = |way: &&&[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let mut tried = Command::new("unshare");
        tried.args(**way).args(["mount", "-t", "tmpfs", "none"]).arg(folder.path());
        tried.output().is_ok_and(|tried| tried.status.success())
    };
    let Some(way) = ways.iter().find(works) else {
        eprintln!("skipped: nothing can be mounted here (it takes root or user namespaces)");
        return;
    };
    let name = format!("full_disk::{test}");
    let ran = Command::new("unshare")
        .args(*way)
        .arg(std::env::current_exe().unwrap())
        .args([&name, "--exact", "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let (stdout, stderr) = (string(ran.stdout), string(ran.stderr));
    assert!(ran.status.success() && stdout.contains("1 passed"), "{stdout}\n{stderr}");
    eprint!("{}", stderr.lines().filter(|line| line.starts_with("skipped")).collect::<Vec<_>>().join("\n"));
}

fn tool(program: &str, args: &[&str]) -> bool {
    let ran = Command::new(program).args(args).output();
    ran.is_ok_and(|ran| ran.status.success())
}

#[track_caller]
fn must(program: &str, args: &[&str]) {
    let ran = Command::new(program).args(args).output().unwrap();
    assert!(ran.status.success(), "{program} {args:?}: {}", string(ran.stderr));
}

/// A sandbox whose folder is a small file system in memory.
fn small(options: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    must("mount", &["-t", "tmpfs", "-o", options, "none", sandbox.dir().to_str().unwrap()]);
    sandbox
}

fn remount(sandbox: &Sandbox, options: &str) {
    must("mount", &["-o", &format!("remount,{options}"), sandbox.dir().to_str().unwrap()]);
}

fn unmount(sandbox: &Sandbox) {
    must("umount", &[sandbox.dir().to_str().unwrap()]);
}

/// Fills what is free but for some pages.
fn fill(sandbox: &Sandbox, pages_left: u64) {
    use std::io::Write as _;
    let ballast = sandbox.path("ballast");
    let mut file = std::fs::File::create(&ballast).unwrap();
    let page = vec![b'x'; 4096];
    while file.write_all(&page).is_ok() {}
    let pages = file.metadata().unwrap().len() / 4096;
    file.set_len(pages.saturating_sub(pages_left) * 4096).unwrap();
}

fn make_room(sandbox: &Sandbox) {
    std::fs::remove_file(sandbox.path("ballast")).unwrap();
}

fn journal(sandbox: &Sandbox) -> Vec<u8> {
    std::fs::read(sandbox.journal_path("s")).unwrap_or_default()
}

/// What is demanded of a command that was refused: the right code, the system's words, nothing acknowledged, every
/// earlier record there, and a journal that is sound or explained by a crash.
#[track_caller]
fn refused(sandbox: &Sandbox, ran: &Ran, codes: &[i32], words: &str, earlier: &[u8], what: &str) {
    assert!(codes.contains(&ran.code()), "{what}: {}", ran.all());
    assert!(ran.all().contains(words), "{what}: {words:?} is not told: {}", ran.all());
    assert!(!ran.stdout.contains("\"seq\"") && !ran.stdout.contains("s:t1:"), "{what}: {}", ran.all());
    explained(sandbox, earlier, what);
}

#[track_caller]
fn explained(sandbox: &Sandbox, earlier: &[u8], what: &str) {
    assert!(journal(sandbox).starts_with(earlier), "{what}: an earlier record is gone");
    if sandbox.journal_path("s").exists() {
        let verdict = sandbox.run(["verify", "s", "--with-tree"]);
        assert!([0, 13].contains(&verdict.code()), "{what}: {}", verdict.all());
    }
}

/// Mistakes on purpose: each thing that is demanded of a refusal can be missing.
#[test]
fn what_is_wrong_with_a_refusal_is_found() {
    use std::os::unix::process::ExitStatusExt as _;
    let sandbox = Sandbox::in_memory();
    let ticket = sandbox.run(ADMIT).ok().line();
    let acknowledged = sandbox.step(&ticket, ["heartbeat"]).ok().stdout;
    let before = sandbox.everything();
    let earlier = journal(&sandbox);
    let path = sandbox.journal_path("s");
    let ended = |code: i32, stdout: &str, stderr: &str| Ran {
        status: std::process::ExitStatus::from_raw(code << 8),
        stdout: stdout.to_owned(),
        stdout_bytes: stdout.as_bytes().to_vec(),
        stderr: format!("turnkeep: {stderr}\n"),
    };
    let judge = |ran: &Ran| refused(&sandbox, ran, &[9], FULL, &earlier, "planted");
    let good = ended(9, "", FULL);
    judge(&good);
    objects("exit 0", || judge(&ended(0, "", FULL)));
    objects("exit 1", || judge(&ended(1, "", FULL)));
    objects("is not told", || judge(&ended(9, "", "no")));
    objects("\"seq\"", || judge(&ended(9, &acknowledged, FULL)));
    objects("s:t1:1", || judge(&ended(9, "s:t1:1\n", FULL)));
    // The last record is gone, at the end of a line; the journal is gone; a record in its midst was replaced.
    let last = earlier[..earlier.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    std::fs::write(&path, &earlier[..last]).unwrap();
    sandbox.run(["verify", "s"]).ok();
    objects("an earlier record is gone", || judge(&good));
    std::fs::remove_file(&path).unwrap();
    objects("an earlier record is gone", || judge(&good));
    std::fs::write(&path, crate::forge::replaced_later(&earlier, "Hello", "Jello")).unwrap();
    objects("an earlier record is gone", || judge(&good));
    // What no crash explains behind it; what one does.
    std::fs::write(&path, [&earlier[..], b"garbage\n"].concat()).unwrap();
    objects("exit 3", || judge(&good));
    std::fs::write(&path, [&earlier[..], &earlier[..20]].concat()).unwrap();
    judge(&good);
    restore(&sandbox, &before);
    judge(&good);
}

const FULL: &str = "No space left on device";
const ADMIT: [&str; 10] =
    ["admit", "s", "--turn", "t1", "--delivery", "k", "--text", "Hello", "--owner-pid", "none"];

#[test]
fn no_room_for_bytes() {
    with_own_mounts("no_room_for_bytes", || {
        let sandbox = small("size=256k");
        sandbox.write("chat.jsonl", small_tree());
        let owner = Owner::start();
        let tree = ["--turn", "t1", "--delivery", "k", "--tree", "chat.jsonl", "--tree-mode", "append"];
        let ticket = sandbox.admit(&owner, "s", &tree);
        let text = "x".repeat(9_000);
        let calls = [("a", "bash", json!({"text": text})), ("b", "bash", json!({"n": 2}))];
        let message = assistant(&text, &calls).to_string();
        let mut met = [0; 3];
        let mut refuse = |words: &[&str], stdin: &str| {
            let words = [&["step", "--ticket", &ticket], words].concat();
            let before = sandbox.everything();
            let earlier = journal(&sandbox);
            for pages in 0..8 {
                restore(&sandbox, &before);
                fill(&sandbox, pages);
                let what = format!("{pages} pages for {words:?}");
                let ran = sandbox.cmd(&words).stdin(stdin).go();
                make_room(&sandbox);
                match ran.code() {
                    9 => {
                        met[0] += 1;
                        refused(&sandbox, &ran, &[9], FULL, &earlier, &what);
                        assert_eq!(journal(&sandbox), earlier, "{what}: cut back");
                    }
                    // The record stands, the session file is behind, and both are told.
                    0 if ran.stderr.contains(FULL) => met[1] += 1,
                    0 => met[2] += 1,
                    other => panic!("{what}: exit {other}: {}", ran.all()),
                }
                explained(&sandbox, &earlier, &what);
                let again = sandbox.cmd(&words).stdin(stdin).go();
                // A claim that stands is not given twice.
                let claimed = again.code() == 7 && ran.code() == 0 && words[3] == "claim";
                assert!(again.code() == 0 || claimed, "{what}: again: {}", again.all());
                sandbox.run(["verify", "s", "--with-tree"]).ok();
                assert!(journal(&sandbox).len() > earlier.len(), "{what}");
            }
        };
        refuse(&["message", "-"], &message);
        refuse(&["claim", "a", "--link", &json!({"text": text}).to_string()], "");
        refuse(&["result", "a", "-"], &text);
        refuse(&["result", "b", "--not-run"], "");
        refuse(&["note", "-"], &text);
        refuse(&["message", "-"], &assistant(&text, &[]).to_string());
        assert!(met.iter().all(|count| *count > 0), "journal full, tree full, room: {met:?}");
        unmount(&sandbox);
    });
}

#[test]
fn no_room_for_a_torn_tail_that_is_to_be_kept() {
    with_own_mounts("no_room_for_a_torn_tail_that_is_to_be_kept", || {
        let sandbox = small("size=256k");
        let ticket = sandbox.run(ADMIT).ok().line();
        let whole = journal(&sandbox);
        let torn = [&whole[..], b"{\"seq\":3,\"at\":\"2026", &[b'9'; 9_000]].concat();
        std::fs::write(sandbox.journal_path("s"), &torn).unwrap();
        let before = sandbox.everything();
        let mut full = 0;
        for pages in 0..8 {
            restore(&sandbox, &before);
            fill(&sandbox, pages);
            let words = ["step", "--ticket", &ticket, "heartbeat"];
            let ran = sandbox.run(words);
            make_room(&sandbox);
            if ran.code() != 0 {
                full += 1;
                refused(&sandbox, &ran, &[9], FULL, &whole, &format!("{pages} pages"));
                // Not a byte goes before it is kept elsewhere.
                assert_eq!(journal(&sandbox), torn, "{pages} pages");
                sandbox.run(words).ok();
            }
            let kept: Vec<Vec<u8>> = std::fs::read_dir(sandbox.root().join("quarantine"))
                .unwrap()
                .map(|file| std::fs::read(file.unwrap().path()).unwrap())
                .collect();
            assert!(kept == [torn[whole.len()..].to_vec()], "{pages} pages: {} kept", kept.len());
            sandbox.run(["verify", "s"]).ok();
        }
        assert!((2..8).contains(&full), "{full} of 8 were refused");
        unmount(&sandbox);
    });
}

#[test]
fn no_room_for_names() {
    with_own_mounts("no_room_for_names", || {
        // The folder itself takes one, and some are needed for a session.
        let mut refusals = 0;
        for inodes in 1..16 {
            let sandbox = small(&format!("size=1m,nr_inodes={inodes}"));
            let ran = sandbox.run(ADMIT);
            if ran.code() == 0 {
                unmount(&sandbox);
                break;
            }
            refusals += 1;
            refused(&sandbox, &ran, &[9, 1], FULL, &[], &format!("{inodes} names"));
            remount(&sandbox, "nr_inodes=100");
            let ticket = sandbox.run(ADMIT).ok().line();
            sandbox.step(&ticket, ["heartbeat"]).ok();
            sandbox.run(["verify", "s"]).ok();
            unmount(&sandbox);
        }
        assert!((2..12).contains(&refusals), "{refusals} refusals");
    });
}

#[test]
fn no_room_for_output() {
    with_own_mounts("no_room_for_output", || {
        let sandbox = small("size=512k");
        let owner = Owner::start();
        let ticket = sandbox.admit(&owner, "s", &["--turn", "t1"]);
        // Its output so far cannot be kept, and neither can its result: it ran, and that is all that is known.
        let script = sandbox.script(
            "tool.sh",
            "head -c 2000000 /dev/zero | tr '\\0' x >ballast || true; head -c 60000 /dev/zero | tr '\\0' y",
        );
        let words = ["run", "--tool", "sh", "one", "--", script.to_str().unwrap()];
        let ran = sandbox.step(&ticket, words);
        assert_eq!(ran.code(), 124, "{}", ran.stderr);
        assert!(ran.stderr.contains(FULL), "{}", ran.stderr);
        make_room(&sandbox);
        explained(&sandbox, &[], "no room for a result");
        assert!(!sandbox.kinds("s").contains(&"result".to_owned()));
        sandbox.step(&ticket, words).exits(7);
        assert!(!sandbox.path("ballast").exists(), "it was run again");
        unmount(&sandbox);
    });
}

#[test]
fn a_disk_that_became_read_only() {
    with_own_mounts("a_disk_that_became_read_only", || {
        let words = "Read-only file system";
        let sandbox = small("size=1m");
        sandbox.write("chat.jsonl", small_tree());
        sandbox.run(ADMIT.into_iter().chain(["--tree", "chat.jsonl"])).ok();
        let ticket = "s:t1:1";
        sandbox.announce(ticket, &[("a", "bash", json!({}))]);
        let earlier = journal(&sandbox);
        let everything = sandbox.everything();
        remount(&sandbox, "ro");
        let steps: [&[&str]; 6] = [
            &["step", "--ticket", ticket, "claim", "a"],
            &["step", "--ticket", ticket, "heartbeat"],
            &["step", "--ticket", ticket, "run", "a", "--", "touch", "ran"],
            &["recover", "s", "--force", "--why", "x", "--owner-pid", "none"],
            &["admit", "s", "--text", "More", "--when-busy", "steer"],
            &["admit", "new", "--text", "Hello", "--owner-pid", "none"],
        ];
        for step in steps {
            let ran = sandbox.run(step);
            refused(&sandbox, &ran, &[9, 1], words, &earlier, &format!("{step:?}"));
        }
        // Looking works.
        sandbox.run(["verify", "s", "--with-tree"]).ok();
        sandbox.run(["inspect", "s", "--next"]).ok();
        sandbox.run(["recover", "s", "--dry-run", "--force", "--why", "x"]);
        sandbox.run(["verify", "s", "--heads", "heads"]).exits(1);
        remount(&sandbox, "rw");
        assert!(sandbox.everything() == everything, "something was written");
        sandbox.run(steps[0]).ok();
        sandbox.run(["verify", "s", "--with-tree"]).ok();
        unmount(&sandbox);
    });
}

/// `chattr` on a file, where the file system knows the attribute.
fn attribute(path: &Path, change: &str) -> bool {
    tool("chattr", &[change, path.to_str().unwrap()])
}

#[test]
fn a_journal_that_can_only_be_appended_to() {
    with_own_mounts("a_journal_that_can_only_be_appended_to", || {
        let words = "Operation not permitted";
        let sandbox = small("size=1m");
        let ticket = sandbox.run(ADMIT).ok().line();
        let path = sandbox.journal_path("s");
        let heartbeat = ["step", "--ticket", &ticket, "heartbeat"];
        if !attribute(&path, "+a") {
            eprintln!("skipped: files cannot be made append-only here");
            return;
        }
        sandbox.run(heartbeat).ok();
        sandbox.run(["verify", "s"]).ok();
        // A torn tail cannot be cut; its bytes are kept all the same, and nothing is written behind it.
        attribute(&path, "-a");
        let whole = journal(&sandbox);
        let torn = [&whole[..], b"{\"seq\":9"].concat();
        std::fs::write(&path, &torn).unwrap();
        assert!(attribute(&path, "+a"));
        let ran = sandbox.run(heartbeat);
        refused(&sandbox, &ran, &[9], words, &whole, "append-only");
        assert_eq!(journal(&sandbox), torn);
        assert!(attribute(&path, "-a") && attribute(&path, "+i"));
        let ran = sandbox.run(heartbeat);
        refused(&sandbox, &ran, &[9], words, &whole, "immutable");
        assert_eq!(journal(&sandbox), torn);
        sandbox.run(["inspect", "s", "--next"]).ok();
        assert!(attribute(&path, "-i"));
        sandbox.run(heartbeat).ok();
        assert_eq!(sandbox.kinds("s").iter().filter(|kind| *kind == "repaired").count(), 1);
        sandbox.run(["verify", "s"]).ok();
        unmount(&sandbox);
    });
}

/// A real disk gives what is left: a write comes short at the last block.
#[test]
fn a_short_write_on_a_small_disk() {
    with_own_mounts("a_short_write_on_a_small_disk", || {
        let sandbox = Sandbox::in_memory();
        let image = sandbox.path("image");
        let mount = sandbox.path("disk");
        std::fs::create_dir(&mount).unwrap();
        std::fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
        let (image, disk) = (image.to_str().unwrap(), mount.to_str().unwrap());
        if !tool("mkfs.ext4", &["-q", "-F", "-b", "1024", "-m", "0", image])
            || !tool("mount", &["-o", "loop", image, disk])
        {
            eprintln!("skipped: no image can be mounted here");
            return;
        }
        let root = mount.join("state");
        let run =
            |words: &[&str], stdin: &str| sandbox.cmd(words).env("TURNKEEP_ROOT", &root).stdin(stdin).go();
        run(&ADMIT, "").ok();
        let path = root.join("sessions/s.jsonl");
        let note = ["step", "--ticket", "s:t1:1", "note", "-"];
        let mut full = 0;
        for kib in [0_usize, 1, 2, 5] {
            let mut ballast = std::fs::File::create(mount.join("ballast")).unwrap();
            let block = vec![b'x'; 1024];
            let mut blocks = 0_u64;
            while std::io::Write::write_all(&mut ballast, &block).is_ok() {
                blocks += 1;
            }
            ballast.set_len((blocks - kib as u64) * 1024).unwrap();
            ballast.sync_all().unwrap();
            drop(ballast);
            let earlier = std::fs::read(&path).unwrap();
            let text = "y".repeat(7_000);
            let ran = run(&note, &text);
            full += 1;
            assert_eq!(ran.code(), 9, "{kib} KiB: {}", ran.all());
            assert!(ran.stdout.is_empty() && ran.stderr.contains(FULL), "{kib} KiB: {}", ran.all());
            assert_eq!(std::fs::read(&path).unwrap(), earlier, "{kib} KiB: cut back");
            std::fs::remove_file(mount.join("ballast")).unwrap();
            // Freed blocks can be had again once that is committed.
            must("sync", &["-f", disk]);
            run(&note, &text).ok();
            run(&["verify", "s"], "").ok();
        }
        assert_eq!(full, 4);
        must("umount", &[disk]);
    });
}

// Limits of the process: these need nothing.

fn limited(sandbox: &Sandbox, limit: &str, words: &[&str], stdin: &str) -> Ran {
    sandbox.program("prlimit", [&[limit, bin()], words].concat()).stdin(stdin).go()
}

fn has_prlimit(sandbox: &Sandbox) -> bool {
    let has = sandbox.has("prlimit");
    if !has {
        eprintln!("skipped: there is no prlimit(1) here");
    }
    has
}

/// Which sizes to try: each byte, or some.
fn sizes(from: usize, to: usize) -> Vec<usize> {
    let step = if slow() { 1 } else { ((to - from) / 12).max(1) };
    (from..to).step_by(step).chain([from + 1, to - 1]).collect()
}

#[test]
fn at_each_size_that_a_file_may_have() {
    let sandbox = Sandbox::in_memory();
    if !has_prlimit(&sandbox) {
        return;
    }
    sandbox.write("chat.jsonl", small_tree());
    let tree = ["--tree", "chat.jsonl", "--tree-mode", "append"];
    let ticket = sandbox.run(ADMIT.into_iter().chain(tree)).ok().line();
    let words = ["step", "--ticket", &ticket, "message", "-"];
    let message = assistant("Hello.", &[]).to_string();
    let before: Files = sandbox.everything();
    let earlier = journal(&sandbox);
    let tree = std::fs::read(sandbox.path("chat.jsonl")).unwrap();
    sandbox.cmd(words).stdin(message.clone()).go().ok();
    let whole = journal(&sandbox).len();
    assert!(whole > earlier.len() && tree.len() < earlier.len(), "the session file is the smaller one");
    let mut points = 0;
    for size in sizes(earlier.len(), whole) {
        restore(&sandbox, &before);
        let ran = limited(&sandbox, &format!("--fsize={size}:{size}"), &words, &message);
        let what = format!("{size} bytes");
        refused(&sandbox, &ran, &[9], "File too large", &earlier, &what);
        assert_eq!(journal(&sandbox), earlier, "{what}: cut back");
        assert_eq!(std::fs::read(sandbox.path("chat.jsonl")).unwrap(), tree, "{what}");
        points += 1;
    }
    sandbox.cmd(words).stdin(message).go().ok();
    sandbox.run(["verify", "s", "--with-tree"]).ok();
    assert!(points >= 10, "only {points} sizes");
}

#[test]
fn at_each_number_of_files_that_a_process_may_open() {
    let sandbox = Sandbox::in_memory();
    if !has_prlimit(&sandbox) {
        return;
    }
    let words_of_the_system = "Too many open files";
    sandbox.write("chat.jsonl", small_tree());
    let tree = ["--tree", "chat.jsonl", "--tree-mode", "append"];
    let empty = sandbox.everything();
    let admit: Vec<&str> = ADMIT.into_iter().chain(tree).collect();
    let ticket = sandbox.run(&admit).ok().line();
    let admitted = sandbox.everything();
    let message = assistant("", &[("a", "bash", json!({}))]).to_string();
    let called = {
        sandbox.step_in(&ticket, ["message", "-"], message.clone()).ok();
        sandbox.everything()
    };
    let step = |words: &[&'static str]| [&["step", "--ticket", &ticket], words].concat();
    let owner = Owner::start();
    let pid = owner.pid().to_string();
    let commands: [(&Files, Vec<&str>, &str); 5] = [
        (&empty, admit, ""),
        (&admitted, step(&["message", "-"]), &message),
        (&called, step(&["claim", "a"]), ""),
        (&called, step(&["run", "a", "--", "touch", "ran"]), ""),
        (&called, vec!["recover", "s", "--force", "--why", "x", "--owner-pid", &pid], ""),
    ];
    let mut refusals = 0;
    for (before, words, stdin) in commands {
        restore(&sandbox, before);
        let earlier = journal(&sandbox);
        let mut went = false;
        for files in 3..20 {
            restore(&sandbox, before);
            let ran = limited(&sandbox, &format!("--nofile={files}:{files}"), &words, stdin);
            let what = format!("{files} files for {words:?}");
            match ran.code() {
                // The loader could not open a library: it never was ours.
                127 if ran.stderr.contains("shared libraries") => {
                    assert!(sandbox.everything() == *before, "{what}");
                }
                0 => went = true,
                _ => {
                    refusals += 1;
                    refused(&sandbox, &ran, &[9, 1], words_of_the_system, &earlier, &what);
                    sandbox.cmd(&words).stdin(stdin).go().ok();
                    sandbox.run(["verify", "s", "--with-tree"]).ok();
                }
            }
        }
        assert!(went, "{words:?} never went");
    }
    assert!(refusals >= 5, "only {refusals} refusals");
}
