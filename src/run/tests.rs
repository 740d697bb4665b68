//! Real children under `/bin/sh`. What concerns our own signals, limits or death runs in a copy of this test binary.

use super::*;
use crate::json;
use rustix::process::{Signal, kill_process};
use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command as Process;
use std::sync::mpsc;
use std::time::Instant;
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(60);
const HELPER_SCRIPT: &str = "TURNKEEP_TEST_RUN_SCRIPT";
const HELPER_FOLDER: &str = "TURNKEEP_TEST_RUN_FOLDER";

/// A run and what our stdout and stderr got of it.
struct Ran {
    finished: Finished,
    out: Vec<u8>,
    err: Vec<u8>,
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

fn command(argv: &[OsString]) -> Command<'_> {
    Command {
        argv,
        stdin: b"",
        env_set: Vec::new(),
        env_remove: Vec::new(),
        echo: Echo::Through,
        spool: None,
        keep_bytes_max: KEEP_BYTES_MAX,
    }
}

fn spool_in(folder: &Path) -> SpoolPaths {
    SpoolPaths { out: folder.join("out"), err: folder.join("err") }
}

fn collect(mut pipe: PipeReader) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        pipe.read_to_end(&mut all).unwrap();
        all
    })
}

fn try_run(command: &Command<'_>) -> Result<Ran, RunError> {
    let (out, our_out) = io::pipe().unwrap();
    let (err, our_err) = io::pipe().unwrap();
    let (out, err) = (collect(out), collect(err));
    let shown = Pair { out: our_out.as_fd(), err: our_err.as_fd() };
    let finished = run_into(command, &shown, &mut || {}, LONG);
    drop((our_out, our_err));
    let (out, err) = (out.join().unwrap(), err.join().unwrap());
    finished.map(|finished| Ran { finished, out, err })
}

fn run_sh(script: &str) -> Ran {
    try_run(&command(&words(&["/bin/sh", "-c", script]))).unwrap()
}

fn sha256_of(parts: &[&[u8]]) -> String {
    json::sha256_hex(&parts.concat())
}

fn hex(hash: Option<&Hash>) -> Option<String> {
    hash.map(|hash| hash.as_str().to_owned())
}

// Output.

#[test]
fn bytes_pass_through_as_they_are() {
    let ran = run_sh(r"printf 'a\377\000\r\n\nb\303'; printf 'no end \200' >&2");
    assert_eq!(ran.out, b"a\xff\0\r\n\nb\xc3");
    assert_eq!(ran.err, b"no end \x80");
    let finished = ran.finished;
    assert_eq!(finished.stdout.text, "a\u{fffd}\0\r\n\nb\u{fffd}");
    assert_eq!(finished.stderr.text, "no end \u{fffd}");
    assert_eq!((finished.stdout.bytes, finished.stderr.bytes), (8, 8));
    assert_eq!(hex(finished.output_sha256.as_ref()), Some(sha256_of(&[&ran.out, &ran.err])));
    assert_eq!((finished.exit, finished.signal, finished.signal_number), (Some(0), None, None));
    assert_eq!((finished.truncated, finished.spool_error, finished.echo_error), (false, None, None));
}

#[test]
fn each_echo_shows_what_it_says() {
    let argv = words(&["/bin/sh", "-c", "echo said; echo warned >&2"]);
    let shown = |echo| {
        let ran = try_run(&Command { echo, ..command(&argv) }).unwrap();
        assert_eq!((&*ran.finished.stdout.text, &*ran.finished.stderr.text), ("said\n", "warned\n"));
        let mut lines: Vec<String> = String::from_utf8(ran.err).unwrap().lines().map(str::to_owned).collect();
        lines.sort();
        (String::from_utf8(ran.out).unwrap(), lines)
    };
    assert_eq!(shown(Echo::Through), ("said\n".to_owned(), vec!["warned".to_owned()]));
    assert_eq!(shown(Echo::ToStderr), (String::new(), vec!["said".to_owned(), "warned".to_owned()]));
    assert_eq!(shown(Echo::CaptureOnly), (String::new(), vec!["warned".to_owned()]));
}

#[test]
fn output_is_shown_live_and_in_order() {
    let folder = TempDir::new().unwrap();
    let fifo = folder.path().join("fifo");
    let script = format!(
        "mkfifo {0}one {0}two && printf one; read line <{0}one; printf two >&2; read line <{0}two; printf three",
        fifo.display()
    );
    let argv = words(&["/bin/sh", "-c", &script]);
    let (mut ours, shown) = io::pipe().unwrap();
    // Lets CMD go on only when it has seen what CMD said last, though that has no newline. Each time by another fifo: of
    // one that is still open for writing CMD would read the end.
    let reader = thread::spawn(move || {
        let mut seen = Vec::new();
        for part in ["one", "two", "three"] {
            let mut piece = vec![0; part.len()];
            ours.read_exact(&mut piece).unwrap();
            seen.extend(piece);
            if part != "three" {
                let fifo = format!("{}{part}", fifo.display());
                writeln!(File::options().write(true).open(fifo).unwrap(), "go on").unwrap();
            }
        }
        seen
    });
    let both = Pair { out: shown.as_fd(), err: shown.as_fd() };
    let finished =
        run_into(&Command { echo: Echo::ToStderr, ..command(&argv) }, &both, &mut || {}, LONG).unwrap();
    assert_eq!(reader.join().unwrap(), b"onetwothree");
    assert_eq!((&*finished.stdout.text, &*finished.stderr.text), ("onethree", "two"));
}

#[test]
fn much_output_waits_for_a_slow_reader() {
    const BYTES: usize = 10 * 1024 * 1024;
    let folder = TempDir::new().unwrap();
    let argv = words(&["/bin/sh", "-c", &format!("yes 0123456789abcde | head -c {BYTES}; printf end >&2")]);
    let (mut out, our_out) = io::pipe().unwrap();
    let (err, our_err) = io::pipe().unwrap();
    let err = collect(err);
    let (start, started) = mpsc::channel::<()>();
    // Reads nothing before CMD waits: no more is spooled from one tick to the next.
    let reader = thread::spawn(move || {
        started.recv().unwrap();
        let mut all = Vec::new();
        out.read_to_end(&mut all).unwrap();
        all
    });
    let spool = spool_in(folder.path());
    let asked = Command { spool: Some(spool.clone()), keep_bytes_max: 1000, ..command(&argv) };
    let (mut spooled, mut spooled_unread) = (0, None);
    let finished = run_into(
        &asked,
        &Pair { out: our_out.as_fd(), err: our_err.as_fd() },
        &mut || {
            let before = spooled;
            spooled = fs::metadata(&spool.out).unwrap().len();
            if spooled > 0 && spooled == before && spooled_unread.is_none() {
                spooled_unread = Some(spooled);
                start.send(()).unwrap();
            }
        },
        Duration::from_millis(20),
    )
    .unwrap();
    drop((our_out, our_err));
    let expected = b"0123456789abcde\n".repeat(BYTES / 16);
    assert!(reader.join().unwrap() == expected, "what is shown differs");
    assert_eq!(err.join().unwrap(), b"end");
    assert!(spooled_unread.unwrap() < 1_000_000, "CMD did not wait: {spooled_unread:?}");
    assert!(fs::read(&spool.out).unwrap() == expected, "what is spooled differs");
    assert_eq!(hex(finished.output_sha256.as_ref()), Some(sha256_of(&[&expected, b"end"])));
    assert_eq!((finished.stdout.bytes, finished.stdout.left_out), (BYTES as u64, BYTES as u64 - 1000));
    assert!(finished.truncated);
}

#[test]
fn the_digest_is_of_all_bytes_where_the_text_is_cut() {
    let folder = TempDir::new().unwrap();
    let argv = words(&["/bin/sh", "-c", r"printf 'o%.0s' 1 2 3 4 5 6; printf '\377%.0s' 1 2 3 4 5 6 >&2"]);
    let asked = |spool| Command { spool, keep_bytes_max: 4, ..command(&argv) };
    let spooled = try_run(&asked(Some(spool_in(folder.path())))).unwrap().finished;
    assert_eq!(spooled.stdout.text, "oo\n[turnkeep: 2 bytes left out]\noo");
    assert_eq!(hex(spooled.output_sha256.as_ref()), Some(sha256_of(&[b"oooooo", &[0xff; 6]])));
    // Without a spool there is nothing to make it of, and no digest is better than a wrong one.
    assert_eq!(hex(try_run(&asked(None)).unwrap().finished.output_sha256.as_ref()), None);
}

#[test]
fn a_reader_that_went_away_ends_nothing() {
    let argv = words(&["/bin/sh", "-c", "head -c 1000000 /dev/zero; exit 5"]);
    let (reader, shown) = io::pipe().unwrap();
    drop(reader);
    let both = Pair { out: shown.as_fd(), err: shown.as_fd() };
    let finished = run_into(&command(&argv), &both, &mut || {}, LONG).unwrap();
    assert_eq!((finished.exit, finished.stdout.bytes), (Some(5), 1_000_000));
    assert_eq!(finished.echo_error, None);
}

#[test]
fn a_full_device_is_told_and_ends_nothing() {
    let argv = words(&["/bin/sh", "-c", "head -c 1000000 /dev/zero; exit 5"]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let both = Pair { out: full.as_fd(), err: full.as_fd() };
    let finished = run_into(&command(&argv), &both, &mut || {}, LONG).unwrap();
    assert_eq!((finished.exit, finished.stdout.bytes), (Some(5), 1_000_000));
    assert_eq!(finished.echo_error.as_deref(), Some("No space left on device (os error 28)"));
}

// Input and environment.

#[test]
fn stdin_that_is_not_read_is_no_error() {
    let argv = words(&["true"]);
    let megabyte = vec![b'x'; 1024 * 1024];
    let ran = try_run(&Command { stdin: &megabyte, ..command(&argv) }).unwrap();
    assert_eq!(ran.finished.exit, Some(0));
}

#[test]
fn stdin_comes_whole_and_ends() {
    let megabyte: Vec<u8> = (0..1024 * 1024_u32).flat_map(|number| [number.to_le_bytes()[1]]).collect();
    for stdin in [&b""[..], b"{\"path\":\"a\"}", &megabyte] {
        let ran = try_run(&Command { stdin, ..command(&words(&["cat"])) }).unwrap();
        assert!(ran.out == stdin, "{} bytes came as {}", stdin.len(), ran.out.len());
    }
}

#[test]
fn the_environment_is_as_asked() {
    // PWD is set for every test run by cargo's shell or by sh itself; CARGO_MANIFEST_DIR by cargo.
    let argv = words(&["/bin/sh", "-c", "echo $TURNKEEP_TOOL,${PATH:+path},${HOME-gone}"]);
    let asked = Command {
        env_set: vec![("TURNKEEP_TOOL".to_owned(), OsString::from("a b"))],
        env_remove: vec!["HOME"],
        ..command(&argv)
    };
    assert_eq!(try_run(&asked).unwrap().out, b"a b,path,gone\n");
}

#[test]
fn cmd_starts_with_plain_signals() {
    let ran = run_sh("grep -E '^Sig(Blk|Ign)' /proc/self/status");
    let status = String::from_utf8(ran.out).unwrap();
    assert!(status.contains("SigBlk:\t0000000000000000"), "{status}");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    let pipe_bit = 1 << (13 - 1);
    assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & pipe_bit, 0, "SIGPIPE is ignored");
}

// The end.

#[test]
fn exits_and_deaths_are_told_apart() {
    for code in [0, 1, 7, 125, 255] {
        let finished = run_sh(&format!("exit {code}")).finished;
        assert_eq!((finished.exit, finished.signal, finished.signal_number), (Some(code), None, None));
    }
    for (name, number) in [("KILL", 9), ("TERM", 15), ("SEGV", 11)] {
        let finished = run_sh(&format!("echo said; kill -{name} $$")).finished;
        let signal = format!("SIG{name}");
        assert_eq!((finished.exit, finished.signal), (None, Some(&*signal)));
        assert_eq!((finished.signal_number, &*finished.stdout.text), (Some(number), "said\n"));
    }
}

#[test]
fn signals_have_names() {
    assert_eq!(
        [1, 2, 9, 13, 15, 25].map(signal_name),
        [Some("SIGHUP"), Some("SIGINT"), Some("SIGKILL"), Some("SIGPIPE"), Some("SIGTERM"), Some("SIGXFSZ"),]
    );
    assert_eq!([-1, 0, 65, i32::MIN, i32::MAX].map(signal_name), [None; 5]);
    assert!((1..=64).all(|number| signal_name(number).is_some_and(|name| name.starts_with("SIG"))));
}

#[test]
fn the_end_of_cmd_is_the_end_though_its_pipes_stay_open() {
    let began = Instant::now();
    let ran = run_sh("sleep 30 & echo $!; echo said >&2");
    let pid = ran.finished.stdout.text.trim().parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    assert!(began.elapsed() < Duration::from_secs(20), "waited for the process left behind");
    assert_eq!((ran.finished.exit, ran.err), (Some(0), b"said\n".to_vec()));
}

#[test]
fn a_process_left_behind_that_never_stops_talking_does_not_hold_us() {
    let began = Instant::now();
    // It dies of SIGPIPE when the pipe is closed.
    let ran = run_sh("yes & exec head -c 100000 /dev/zero");
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(ran.finished.stdout.bytes >= 100_000);
    assert_eq!(ran.out.len() as u64, ran.finished.stdout.bytes);
}

#[test]
fn no_zombie_is_left() {
    let pid = run_sh("echo $$").finished.stdout.text;
    assert!(!Path::new("/proc").join(pid.trim()).exists());
}

#[test]
fn ticks_come_while_cmd_runs() {
    let folder = TempDir::new().unwrap();
    let fifo = folder.path().join("fifo");
    assert!(Process::new("mkfifo").arg(&fifo).status().unwrap().success());
    let argv = words(&["/bin/sh", "-c", &format!("read line <{}; echo $line", fifo.display())]);
    let ticked = Cell::new(false);
    let null = File::options().write(true).open("/dev/null").unwrap();
    let finished = run_into(
        &command(&argv),
        &Pair { out: null.as_fd(), err: null.as_fd() },
        &mut || {
            if !ticked.replace(true) {
                writeln!(File::options().write(true).open(&fifo).unwrap(), "ticked").unwrap();
            }
        },
        Duration::from_millis(1),
    );
    assert_eq!(finished.unwrap().stdout.text, "ticked\n");
}

// Not started.

/// A file that sh writes, since a descriptor of ours that is open for writing may be in a child of another test.
fn written_by_sh(path: &Path, text: &str, mode: &str) {
    let script = format!("printf '{text}' >{0}; chmod {mode} {0}", path.display());
    assert!(Process::new("/bin/sh").args(["-c", &script]).status().unwrap().success());
}

#[test]
fn what_cannot_start_is_told_apart_as_env_does() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, text: &str, mode: &str| {
        let path = folder.path().join(name);
        written_by_sh(&path, text, mode);
        path.into_os_string()
    };
    let start = |program: OsString| try_run(&command(&[program])).map(|ran| ran.finished.exit);
    let plain = file("plain", "echo", "644");
    assert!(matches!(start("no-such-command-anywhere".into()), Err(RunError::NotFound { .. })));
    assert!(matches!(start("/no/such/file".into()), Err(RunError::NotFound { .. })));
    assert!(matches!(start(file("lost", "#!/no/such/sh\\n", "755")), Err(RunError::NotFound { .. })));
    assert!(matches!(start(folder.path().into()), Err(RunError::NotExecutable { .. })));
    assert!(matches!(start(Path::new(&plain).join("x").into()), Err(RunError::NotExecutable { .. })));
    let Err(error @ RunError::NotExecutable { .. }) = start(plain) else { panic!("it is not executable") };
    assert!(error.to_string().ends_with("plain\" cannot be executed"), "{error}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(source, "Permission denied (os error 13)");
    assert!(matches!(try_run(&command(&[])), Err(RunError::NotStarted { .. })));
}

#[test]
fn a_script_without_interpreter_line_runs() {
    let folder = TempDir::new().unwrap();
    let script = folder.path().join("script");
    written_by_sh(&script, "echo \"$1,$2\"; exit 3", "755");
    let argv = [script.into_os_string(), OsString::from("a b"), OsString::from("c")];
    let ran = try_run(&command(&argv)).unwrap();
    assert_eq!((ran.finished.exit, &*ran.finished.stdout.text), (Some(3), "a b,c\n"));
}

// The spool.

#[test]
fn spools_are_private_and_new() {
    let folder = TempDir::new().unwrap();
    let spool = spool_in(folder.path());
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, "precious").unwrap();
    symlink(&elsewhere, &spool.out).unwrap();
    fs::write(&spool.err, "of an earlier run, and longer").unwrap();
    let argv = words(&["/bin/sh", "-c", "echo said; echo warned >&2"]);
    let finished = try_run(&Command { spool: Some(spool.clone()), ..command(&argv) }).unwrap().finished;
    assert_eq!(finished.spool_error, None);
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "precious");
    for (path, text) in [(&spool.out, "said\n"), (&spool.err, "warned\n")] {
        let metadata = fs::symlink_metadata(path).unwrap();
        assert!(metadata.is_file());
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_to_string(path).unwrap(), text);
    }
    assert_eq!(read_spool(&spool.out, &spool.err, 100).as_deref(), Some("said\nwarned\n"));
    remove_spool(&spool.out, &spool.err).unwrap();
    assert_eq!(read_spool(&spool.out, &spool.err, 100), None);
    remove_spool(&spool.out, &spool.err).unwrap();
}

#[test]
fn a_spool_that_cannot_be_made_is_told_and_ends_nothing() {
    let folder = TempDir::new().unwrap();
    let spool = spool_in(&folder.path().join("missing"));
    let path = spool.out.display().to_string();
    let argv = words(&["/bin/sh", "-c", "echo said; exit 4"]);
    let finished = try_run(&Command { spool: Some(spool), ..command(&argv) }).unwrap().finished;
    assert_eq!((finished.exit, &*finished.stdout.text), (Some(4), "said\n"));
    assert_eq!(finished.spool_error, Some(format!("{path}: No such file or directory (os error 2)")));
    assert_eq!(hex(finished.output_sha256.as_ref()), Some(sha256_of(&[b"said\n"])));
}

#[test]
fn a_spool_is_read_from_its_end() {
    let folder = TempDir::new().unwrap();
    let SpoolPaths { out, err } = spool_in(folder.path());
    let read = |max| read_spool(&out, &err, max);
    assert_eq!(read(10), None);
    fs::write(&err, "").unwrap();
    assert_eq!(read(10).as_deref(), Some(""));
    fs::write(&out, "abc\u{20ac}def").unwrap();
    fs::write(&err, b"\xff").unwrap();
    assert_eq!(read(9).as_deref(), Some("abc\u{20ac}def\n\u{fffd}"));
    assert_eq!(read(4).as_deref(), Some("[turnkeep: 6 bytes left out]\ndef\n\u{fffd}"));
    assert_eq!(read(0).as_deref(), Some("[turnkeep: 9 bytes left out]\n[turnkeep: 1 bytes left out]\n"));
    fs::remove_file(&out).unwrap();
    symlink(&err, &out).unwrap();
    let text = read(10).unwrap();
    assert!(text.starts_with("[turnkeep: output so far cannot be read: "), "{text}");
    assert!(text.ends_with("]\n\u{fffd}"), "{text}");
}

// What happens to this process: in a copy of it.

/// Not a test by itself: what the copy of this binary does.
#[test]
fn helper() {
    let Some(script) = std::env::var_os(HELPER_SCRIPT) else { return };
    let folder = PathBuf::from(std::env::var_os(HELPER_FOLDER).unwrap());
    let argv = [OsString::from("/bin/sh"), OsString::from("-c"), script];
    let asked = Command { spool: Some(spool_in(&folder)), ..command(&argv) };
    let finished = run(&asked, &mut || {}, LONG).unwrap();
    let told = format!(
        "exit {:?} signal {:?} stdout {} spool {:?}",
        finished.exit, finished.signal, finished.stdout.bytes, finished.spool_error
    );
    fs::write(folder.join("telling"), told).unwrap();
    fs::rename(folder.join("telling"), folder.join("told")).unwrap();
}

/// Prepares a helper that is started by `through`, such as `env` with options.
fn helper_process(through: &[&str], folder: &Path, script: &str) -> Process {
    let (first, rest) = through.split_first().unwrap();
    let mut process = Process::new(first);
    process.args(rest).arg(std::env::current_exe().unwrap());
    process.args(["--exact", "run::tests::helper", "--nocapture"]);
    process.env(HELPER_SCRIPT, script).env(HELPER_FOLDER, folder);
    process.stdout(Stdio::piped()).stderr(Stdio::null());
    process
}

fn told(folder: &Path) -> String {
    fs::read_to_string(folder.join("told")).unwrap()
}

/// Reads the helper's output up to the line that CMD writes when it is ready.
fn wait_for_line(output: &mut impl BufRead, start: &str) -> String {
    let mut line = String::new();
    while output.read_line(&mut line).unwrap() > 0 {
        if line.starts_with(start) {
            return line;
        }
        line.clear();
    }
    panic!("helper ended without {start:?}");
}

#[test]
fn signals_are_passed_on() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let folder = TempDir::new().unwrap();
        // A signal right before `wait` may end it before its trap is run.
        let script = "trap 'kill $!; exit 7' TERM INT HUP; sleep 30 & echo ready; wait; wait; exit 1";
        // Whoever started the tests may ignore one of them, as nohup does, and then CMD would too.
        let through = ["env", "--default-signal=TERM,INT,HUP"];
        let mut helper = helper_process(&through, folder.path(), script).spawn().unwrap();
        let mut output = BufReader::new(helper.stdout.take().unwrap());
        wait_for_line(&mut output, "ready");
        kill_process(Pid::from_child(&helper), signal).unwrap();
        assert!(helper.wait().unwrap().success(), "{signal:?} ended the runner");
        assert_eq!(told(folder.path()), "exit Some(7) signal None stdout 6 spool None", "{signal:?}");
    }
}

#[test]
fn what_we_ignore_cmd_ignores() {
    let folder = TempDir::new().unwrap();
    let script = "kill -HUP $$; echo lives; kill -TERM $$";
    let mut helper = helper_process(&["env", "--ignore-signal=HUP"], folder.path(), script);
    assert!(helper.status().unwrap().success());
    assert_eq!(told(folder.path()), "exit None signal Some(\"SIGTERM\") stdout 6 spool None");
}

#[test]
fn the_status_is_known_though_our_parent_ignored_its_children() {
    let folder = TempDir::new().unwrap();
    let mut helper = helper_process(&["env", "--ignore-signal=CHLD"], folder.path(), "exit 3");
    assert!(helper.status().unwrap().success());
    assert_eq!(told(folder.path()), "exit Some(3) signal None stdout 0 spool None");
}

#[test]
fn a_signal_behind_the_end_gives_up_on_a_reader_that_does_not_read() {
    let folder = TempDir::new().unwrap();
    // More than a pipe holds, and less than two.
    let script = "trap '' TERM; head -c 100000 /dev/zero";
    let mut helper = helper_process(&["env"], folder.path(), script).spawn().unwrap();
    // Those that come while CMD runs are passed on to it, and it ignores them; the handler is there when the
    // first output is spooled.
    let spooled = || fs::metadata(folder.path().join("out")).is_ok_and(|metadata| metadata.len() > 0);
    while !spooled() {
        assert!(helper.try_wait().unwrap().is_none());
        thread::yield_now();
    }
    while helper.try_wait().unwrap().is_none() && !folder.path().join("told").exists() {
        kill_process(Pid::from_child(&helper), Signal::TERM).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    // Nobody has read, so libtest may not get its last words out; what counts is told.
    let _ = helper.kill();
    helper.wait().unwrap();
    assert!(
        told(folder.path()).contains("exit Some(0) signal None stdout 100000"),
        "{}",
        told(folder.path())
    );
}

#[test]
fn output_so_far_survives_the_death_of_the_runner() {
    let folder = TempDir::new().unwrap();
    let SpoolPaths { out, err } = spool_in(folder.path());
    let script = "echo warned >&2; echo pid $$; exec sleep 30";
    let mut helper = helper_process(&["env"], folder.path(), script).spawn().unwrap();
    let mut output = BufReader::new(helper.stdout.take().unwrap());
    let line = wait_for_line(&mut output, "pid ");
    helper.kill().unwrap();
    helper.wait().unwrap();
    // What was seen was spooled before.
    let text = read_spool(&out, &err, 1000).unwrap();
    assert!(text.starts_with(&line), "{text:?}");
    let pid = Pid::from_raw(line.trim_start_matches("pid ").trim().parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    assert!(!folder.path().join("told").exists());
}

#[test]
fn a_full_spool_is_told_and_ends_nothing() {
    let folder = TempDir::new().unwrap();
    // The limit is 100 blocks of 512 or 1024 bytes; going over it is an error where XFSZ is ignored.
    let limited = ["/bin/sh", "-c", "trap '' XFSZ; ulimit -f 100; exec \"$@\"", "sh"];
    let mut helper = helper_process(&limited, folder.path(), "head -c 300000 /dev/zero; exit 6");
    let output = helper.output().unwrap();
    assert!(output.status.success());
    assert!(output.stdout.len() >= 300_000);
    let told = told(folder.path());
    assert!(told.starts_with("exit Some(6) signal None stdout 300000 spool Some("), "{told}");
    assert!(told.contains("/out: File too large (os error 27)"), "{told}");
}
