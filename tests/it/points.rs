//! Points of a command: its k-th system call of a kind, and strace, which kills, fails or lies there.
//!
//! A command runs once to find its points; each is then a run of its own from the same beginning, and at each it is
//! demanded that something happened. Calls before `main` are the loader's and no points; neither are calls of the
//! commands that a command starts. Where strace cannot be used the tests say so and pass.

use crate::kit::*;
use std::path::PathBuf;

/// The system calls that write, sync, cut, create, remove, rename or lock.
pub const CHANGING: &[&str] = &[
    "write",
    "pwrite64",
    "fdatasync",
    "fsync",
    "ftruncate",
    "mkdir",
    "rename",
    "unlink",
    "fchmod",
    "chmod",
    "flock",
    "openat",
    "close",
];

/// The k-th call of a kind of the first thread of a command.
#[derive(Debug, Clone)]
pub struct Point {
    /// Its name.
    pub call: String,
    /// Which one of its name, from 1.
    pub index: usize,
    /// Its arguments, as strace shows them; descriptors with their paths.
    pub args: String,
}

impl Point {
    /// The path of its descriptor.
    pub fn path(&self) -> &str {
        let path = self.args.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
        path.map_or("", |(path, _)| path)
    }
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({})", self.call, self.index, self.args)
    }
}

/// How a command ended that was interfered with.
pub struct Interfered {
    pub ran: Ran,
    /// The traced calls, in order.
    pub trace: String,
}

impl Interfered {
    /// The calls that strace answered in the system's place.
    pub fn injected(&self) -> usize {
        self.trace.lines().filter(|line| line.ends_with("(INJECTED)")).count()
    }
}

/// Everything, not just a part: set in the stage of slow tests.
pub fn slow() -> bool {
    std::env::var_os("TURNKEEP_SLOW").is_some()
}

/// Whether system calls can be interfered with here; said where not.
pub fn can_trace() -> bool {
    let traced = std::process::Command::new("strace").args(["-f", "-o", "/dev/null", "true"]).status();
    let can = traced.is_ok_and(|status| status.success());
    if !can {
        eprintln!("skipped: strace cannot be used here, so no process is interfered with at a system call");
    }
    can
}

fn strace(sandbox: &Sandbox, options: &[&str], words: &[&str], stdin: &str) -> Interfered {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut all = vec!["-y", "-s", "200", "-o", log.path().to_str().unwrap()];
    all.extend(options);
    all.push(bin());
    all.extend(words);
    let ran = sandbox.program("strace", all).stdin(stdin).go();
    let trace = String::from_utf8_lossy(&std::fs::read(log.path()).unwrap()).into_owned();
    Interfered { ran, trace }
}

/// The points of a command, which is run once to its end for that.
pub fn points(sandbox: &Sandbox, calls: &[&str], words: &[&str], stdin: &str) -> (Vec<Point>, Ran) {
    let trace = format!("trace=openat,{}", calls.join(","));
    let whole = strace(sandbox, &["-e", &trace], words, stdin);
    let mut counts = std::collections::HashMap::new();
    let mut points = Vec::new();
    let mut in_main = false;
    for line in whole.trace.lines() {
        let Some((call, rest)) = line.split_once('(') else { continue };
        if !call.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
            continue;
        }
        let index = counts.entry(call.to_owned()).or_insert(0);
        *index += 1;
        // The last thing the runtime does before `main`.
        if !in_main {
            in_main = call == "openat" && rest.contains("\"/proc/self/maps\"");
        } else if calls.contains(&call) {
            // The result is no part of it; strace pads short lines before it.
            let args = rest.rsplit_once(" = ").map_or(rest, |(args, _)| args.trim_end());
            let args = args.strip_suffix(')').unwrap_or(args);
            points.push(Point { call: call.to_owned(), index: *index, args: args.to_owned() });
        }
    }
    assert!(in_main, "no beginning of main in the trace of {words:?}:\n{}\n{}", whole.trace, whole.ran.all());
    (points, whole.ran)
}

/// Runs a command and does something at one of its points: `signal=KILL`, `error=EIO`, `retval=50` …
pub fn at_point(sandbox: &Sandbox, point: &Point, what: &str, words: &[&str], stdin: &str) -> Interfered {
    let Point { call, index, .. } = point;
    let (trace, inject) = (format!("trace={call}"), format!("inject={call}:{what}:when={index}"));
    strace(sandbox, &["-e", &trace, "-e", &inject], words, stdin)
}

/// From the `index`-th call on one of `paths` on, for ever, and at each of the `others` too.
pub fn from_point(
    sandbox: &Sandbox,
    (call, index): (&str, usize),
    what: &str,
    paths: &[&str],
    others: &[&str],
    words: &[&str],
) -> Interfered {
    let trace = format!("trace={call},{}", others.join(","));
    let first = format!("inject={call}:{what}:when={index}+");
    let then = others.iter().map(|call| format!("inject={call}:{what}"));
    let injects: Vec<String> = std::iter::once(first).chain(then).collect();
    let mut options = vec!["-e", &trace];
    for inject in &injects {
        options.extend(["-e", inject]);
    }
    for path in paths {
        options.extend(["-P", path]);
    }
    strace(sandbox, &options, words, "")
}

/// The calls of all processes of a command on one file: each process's own `index`-th is interfered with, if any.
pub fn on_file(
    sandbox: &Sandbox,
    calls: &[&str],
    path: &str,
    interfere: Option<(&Point, &str)>,
    words: &[&str],
) -> Interfered {
    let trace = format!("trace={}", calls.join(","));
    let inject = interfere
        .map(|(point, what)| format!("inject={}:{what}:when={}", point.call, point.index))
        .unwrap_or_default();
    let mut options = vec!["-f", "-P", path, "-e", &trace];
    if interfere.is_some() {
        options.extend(["-e", &inject]);
    }
    strace(sandbox, &options, words, "")
}

pub type Files = Vec<(PathBuf, Option<Vec<u8>>)>;

/// Puts every file of the sandbox back as it was.
pub fn restore(sandbox: &Sandbox, files: &Files) {
    for item in std::fs::read_dir(sandbox.dir()).unwrap() {
        let path = item.unwrap().path();
        let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        removed.unwrap();
    }
    for (path, bytes) in files {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = match bytes {
            None => std::fs::create_dir(path).map(|()| 0o700).unwrap(),
            Some(bytes) => {
                std::fs::write(path, bytes).unwrap();
                if bytes.starts_with(b"#!") { 0o700 } else { 0o600 }
            }
        };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}
