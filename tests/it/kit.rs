//! What every test works with: a sandbox, processes that own turns, journals as values, session files.
//!
//! Nothing here knows the library: the command is a black box, and its files are read as any script would read them.
#![allow(dead_code, reason = "each test module uses its part")]

use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The command under test.
pub const BIN: &str = env!("CARGO_BIN_EXE_turnkeep");

/// The same, or the release build that `TURNKEEP_BIN` names: several times as fast, for loops that start thousands.
pub fn bin() -> &'static str {
    static BUILD: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| match std::env::var("TURNKEEP_BIN") {
            Ok(build) => string(std::fs::canonicalize(build).unwrap().into_os_string().into_encoded_bytes()),
            Err(_) => BIN.to_owned(),
        });
    &BUILD
}

/// Longer than anything here takes; a test that hangs fails instead.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A private folder with a state root in it.
pub struct Sandbox {
    dir: tempfile::TempDir,
}

impl Sandbox {
    pub fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("tk-it-").tempdir().unwrap() }
    }

    /// The same in memory where there is such a place: for loops that lay thousands of files out.
    pub fn in_memory() -> Self {
        let memory = tempfile::Builder::new().prefix("tk-it-").tempdir_in("/dev/shm");
        memory.map_or_else(|_| Self::new(), |dir| Self { dir })
    }

    /// The folder itself: HOME and the working folder of every command.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir().join(name)
    }

    pub fn root(&self) -> PathBuf {
        self.path("state")
    }

    /// Writes a file into the sandbox.
    pub fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Writes an executable shell script.
    pub fn script(&self, name: impl AsRef<Path>, body: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.write(name, format!("#!/bin/sh\nset -eu\n{body}\n"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// The policy in force by default.
    pub fn policy(&self, rules: Value) {
        use std::os::unix::fs::PermissionsExt as _;
        let policy = json!({"format": "turnkeep-policy/1", "rules": rules}).to_string();
        let path = self.write("state/policy.json", policy);
        std::fs::set_permissions(self.root(), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// `turnkeep ARGS`, to be refined and then run with [`Run::go`] or [`Run::start`].
    pub fn cmd<I: IntoIterator<Item: AsRef<OsStr>>>(&self, args: I) -> Run {
        self.program(bin(), args)
    }

    /// Another program in the same surroundings, with `turnkeep` first in its PATH.
    pub fn program<I: IntoIterator<Item: AsRef<OsStr>>>(&self, program: impl AsRef<OsStr>, args: I) -> Run {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.dir()).env_clear();
        let bin = Path::new(bin()).parent().unwrap();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(bin.to_owned()).chain(std::env::split_paths(&path));
        command
            .env("PATH", std::env::join_paths(path).unwrap())
            .env("HOME", self.dir())
            .env("LC_ALL", "C.UTF-8")
            .env("TURNKEEP_ROOT", self.root());
        // Where tests/coverage.sh counts what ran.
        if let Some(profile) = std::env::var_os("LLVM_PROFILE_FILE") {
            command.env("LLVM_PROFILE_FILE", profile);
        }
        Run { command, stdin: None }
    }

    /// Whether a program is there that a test can do without.
    pub fn has(&self, program: &str) -> bool {
        self.program("sh", ["-c", &format!("command -v {program}")]).go().code() == 0
    }

    /// A POSIX shell script in the same surroundings.
    pub fn sh(&self, script: &str) -> Ran {
        self.program("sh", ["-c", script]).go()
    }

    /// `turnkeep ARGS`
    pub fn run<I: IntoIterator<Item: AsRef<OsStr>>>(&self, args: I) -> Ran {
        self.cmd(args).go()
    }

    /// `turnkeep step --ticket TICKET ARGS`
    pub fn step<I: IntoIterator<Item: AsRef<OsStr>>>(&self, ticket: &str, args: I) -> Ran {
        self.step_cmd(ticket, args).go()
    }

    pub fn step_cmd<I: IntoIterator<Item: AsRef<OsStr>>>(&self, ticket: &str, args: I) -> Run {
        let words: Vec<OsString> = ["step", "--ticket", ticket].iter().map(OsString::from).collect();
        self.cmd(words.into_iter().chain(args.into_iter().map(|word| word.as_ref().to_owned())))
    }

    /// The same with content on stdin; ARGS hold the `-`.
    pub fn step_in<I: IntoIterator<Item: AsRef<OsStr>>>(
        &self,
        ticket: &str,
        args: I,
        stdin: impl Into<Vec<u8>>,
    ) -> Ran {
        self.step_cmd(ticket, args).stdin(stdin).go()
    }

    /// Admits a turn that `owner` holds and answers with its ticket.
    pub fn admit(&self, owner: &Owner, session: &str, args: &[&str]) -> String {
        let pid = owner.pid().to_string();
        let mut words = vec!["admit", session, "--owner-pid", &pid];
        if !args.iter().any(|word| ["--text", "--input"].contains(word)) {
            words.extend(["--text", "Do it"]);
        }
        words.extend(args);
        self.run(words).ok().line()
    }

    /// Takes a turn over for `owner` and answers with its ticket.
    pub fn recover(&self, owner: &Owner, session: &str, args: &[&str]) -> String {
        let pid = owner.pid().to_string();
        let mut words = vec!["recover", session, "--owner-pid", &pid];
        words.extend(args);
        self.run(words).ok().line()
    }

    /// Records a Pi message with these calls (id, tool, arguments) and answers with its seq.
    pub fn announce(&self, ticket: &str, calls: &[(&str, &str, Value)]) -> u64 {
        self.step_in(ticket, ["message", "-"], assistant("", calls).to_string()).ok().seq()
    }

    /// The file of a session whose id needs no escapes.
    pub fn journal_path(&self, session: &str) -> PathBuf {
        self.root().join("sessions").join(format!("{session}.jsonl"))
    }

    pub fn journal_bytes(&self, session: &str) -> Vec<u8> {
        std::fs::read(self.journal_path(session)).unwrap()
    }

    /// The records of a session.
    pub fn journal(&self, session: &str) -> Vec<Value> {
        lines(&self.journal_bytes(session))
    }

    /// The kinds of a session's records, in order.
    pub fn kinds(&self, session: &str) -> Vec<String> {
        self.journal(session).iter().map(|record| text(&record["kind"])).collect()
    }

    /// The newest record of a session.
    pub fn last(&self, session: &str) -> Value {
        self.journal(session).pop().unwrap()
    }

    /// The lines of a session file.
    pub fn tree(&self, name: &str) -> Vec<Value> {
        lines(&std::fs::read(self.path(name)).unwrap())
    }

    /// Demands that `act` changes no byte of a session's journal.
    #[track_caller]
    pub fn unchanged<T>(&self, session: &str, act: impl FnOnce() -> T) -> T {
        let path = self.journal_path(session);
        let before = std::fs::read(&path).unwrap_or_default();
        let done = act();
        let after = std::fs::read(&path).unwrap_or_default();
        if before != after {
            let behind = after.strip_prefix(before.as_slice()).map_or(after.clone(), <[u8]>::to_vec);
            panic!("the journal was written:\n{}", string(behind));
        }
        done
    }

    /// Every file and folder of the sandbox with its bytes, for "nothing was touched".
    pub fn everything(&self) -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let mut found = Vec::new();
        let mut folders = vec![self.dir().to_owned()];
        while let Some(folder) = folders.pop() {
            for item in std::fs::read_dir(folder).unwrap() {
                let path = item.unwrap().path();
                if path.is_dir() && !path.is_symlink() {
                    folders.push(path.clone());
                    found.push((path, None));
                } else {
                    let bytes = std::fs::read(&path).unwrap_or_default();
                    found.push((path, Some(bytes)));
                }
            }
        }
        found.sort();
        found
    }
}

/// A command in the making.
pub struct Run {
    command: Command,
    stdin: Option<Vec<u8>>,
}

impl Run {
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    pub fn env_remove(mut self, key: &str) -> Self {
        self.command.env_remove(key);
        self
    }

    pub fn cwd(mut self, folder: impl AsRef<Path>) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// As the leader of a process group of its own, which can be killed as a whole.
    pub fn in_a_group(mut self) -> Self {
        use std::os::unix::process::CommandExt as _;
        self.command.process_group(0);
        self
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Where stdout goes instead of into [`Ran::stdout`].
    pub fn stdout(self, stdout: impl Into<Stdio>) -> Ran {
        let Self { mut command, stdin } = self;
        command.stdout(stdout);
        Running::start(command, stdin, false).wait()
    }

    /// Runs it to its end. Without [`Run::stdin`] its stdin is empty.
    pub fn go(self) -> Ran {
        self.start().wait()
    }

    pub fn start(self) -> Running {
        let Self { mut command, stdin } = self;
        command.stdout(Stdio::piped());
        Running::start(command, stdin, true)
    }
}

/// A command that runs.
pub struct Running {
    child: Option<Child>,
    readers: Vec<mpsc::Receiver<Vec<u8>>>,
    words: String,
}

impl Running {
    fn start(mut command: Command, stdin: Option<Vec<u8>>, piped: bool) -> Self {
        let words = format!("{:?}", command.get_args().collect::<Vec<_>>());
        command.stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() }).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{words}: {error}"));
        if let Some(bytes) = stdin {
            let mut pipe = child.stdin.take().unwrap();
            // A command that refuses before it reads closes the pipe: no error of the test.
            std::thread::spawn(move || pipe.write_all(&bytes));
        }
        let stdout = child.stdout.take().filter(|_| piped);
        let readers = vec![read_all(stdout), read_all(child.stderr.take())];
        Self { child: Some(child), readers, words }
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub fn is_done(&mut self) -> bool {
        self.child.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Sends a signal: "KILL", "TERM" …
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits for its end; after [`PATIENCE`] it is ended and the test fails.
    pub fn wait(mut self) -> Ran {
        let mut child = self.child.take().unwrap();
        let status = wait(&mut child, &self.words);
        let words = &self.words;
        let ended = |reader: &mpsc::Receiver<Vec<u8>>| {
            reader
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|_| panic!("{words}: somebody keeps its output open"))
        };
        let (stdout, stderr) = (ended(&self.readers[0]), ended(&self.readers[1]));
        Ran { status, stdout: string(stdout.clone()), stdout_bytes: stdout, stderr: string(stderr) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _gone = child.kill();
            let _reaped = child.wait();
        }
    }
}

/// Reads a stream to its end on another thread; an absent one is empty.
fn read_all(stream: Option<impl std::io::Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (done, reader) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _ended = stream.read_to_end(&mut bytes);
        }
        // Nobody listens any more where the test has failed.
        let _heard = done.send(bytes);
    });
    reader
}

fn wait(child: &mut Child, words: &str) -> ExitStatus {
    let started = Instant::now();
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if started.elapsed() > PATIENCE {
            let _gone = child.kill();
            panic!("{words} did not end");
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
}

/// How a command ended and what it said.
#[derive(Debug)]
pub struct Ran {
    pub status: ExitStatus,
    pub stdout: String,
    pub stdout_bytes: Vec<u8>,
    pub stderr: String,
}

impl Ran {
    /// The exit code; 128+n where a signal ended it.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap())
    }

    /// Demands an exit code.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "exit\n--- stdout\n{}\n--- stderr\n{}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    pub fn ok(self) -> Self {
        self.exits(0)
    }

    /// Demands words on stderr.
    #[track_caller]
    pub fn says(self, words: &str) -> Self {
        assert!(self.stderr.contains(words), "{words:?} is not on stderr:\n{}", self.stderr);
        self
    }

    /// Demands that the words are not on stderr.
    #[track_caller]
    pub fn says_not(self, words: &str) -> Self {
        assert!(!self.stderr.contains(words), "{words:?} is on stderr:\n{}", self.stderr);
        self
    }

    /// The one line of stdout.
    #[track_caller]
    pub fn line(&self) -> String {
        let line = self.stdout.strip_suffix('\n').unwrap_or_else(|| panic!("no line: {:?}", self.stdout));
        assert!(!line.contains('\n') && !line.is_empty(), "not one line: {:?}", self.stdout);
        line.to_owned()
    }

    /// The one JSON document of stdout.
    #[track_caller]
    pub fn json(&self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// The seq of the receipt on stdout.
    #[track_caller]
    pub fn seq(&self) -> u64 {
        let document = self.json();
        let receipt = document.get("receipt").unwrap_or(&document);
        receipt["seq"].as_u64().unwrap_or_else(|| panic!("no receipt: {document}"))
    }

    /// Demands a receipt of a record that stood there before.
    #[track_caller]
    pub fn repeated(&self) -> u64 {
        assert_eq!(self.json()["repeated"], true, "{}", self.stdout);
        self.seq()
    }

    /// Demands `turnkeep.error/1` with this kind and the exit code that the process really had.
    #[track_caller]
    pub fn error(&self, kind: &str) -> Value {
        let document = self.json();
        assert_eq!(document["schema"], "turnkeep.error/1", "{document}");
        assert_eq!(document["kind"], kind, "{document}");
        assert_eq!(document["exit"], self.code(), "{document}");
        assert!(!document["message"].as_str().unwrap().is_empty());
        document
    }

    /// Status, stdout and stderr together, for snapshots.
    pub fn all(&self) -> String {
        format!("exit {}\n--- stdout\n{}--- stderr\n{}", self.code(), self.stdout, self.stderr)
    }
}

/// A process that owns turns. It ends when dropped.
pub struct Owner {
    child: Child,
}

impl Owner {
    /// `sleep`, which does nothing and lives as long as it is needed.
    pub fn start() -> Self {
        let child = Command::new("sleep")
            .arg("1000")
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Dies and is reaped, as after `kill -9` and `wait`.
    pub fn die(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sends a signal to a process that the test started.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().unwrap();
    assert!(status.success(), "kill -{name} {pid}");
}

/// Waits for a condition that another process brings about; not for time.
#[track_caller]
pub fn until(what: &str, mut come: impl FnMut() -> bool) {
    let started = Instant::now();
    while !come() {
        assert!(started.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What a check says against something spoilt: one that does not object is no check.
#[track_caller]
pub fn objection<T>(check: impl FnOnce() -> T) -> String {
    let Err(said) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)) else {
        panic!("nothing was said against it");
    };
    let text = said.downcast_ref::<String>().cloned();
    text.or_else(|| Some((*said.downcast_ref::<&str>()?).to_owned())).unwrap_or_default()
}

/// Demands that a check objects with these words.
#[track_caller]
pub fn objects<T>(words: &str, check: impl FnOnce() -> T) {
    let said = objection(check);
    assert!(said.contains(words), "it was objected to, but {words:?} is not said: {said}");
}

/// JSON lines as values.
pub fn lines(bytes: &[u8]) -> Vec<Value> {
    assert!(bytes.is_empty() || bytes.ends_with(b"\n"), "the last line has no newline");
    let parse = |line: &[u8]| serde_json::from_slice(line).unwrap();
    bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(parse).collect()
}

/// A string value's text.
#[track_caller]
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no string: {value}")).to_owned()
}

/// The value at a JSON pointer.
#[track_caller]
pub fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or_else(|| panic!("nothing at {pointer}: {value}"))
}

pub fn string(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A Pi assistant message: text, then calls (id, tool, arguments).
pub fn assistant(said: &str, calls: &[(&str, &str, Value)]) -> Value {
    let stop = if calls.is_empty() { "stop" } else { "toolUse" };
    assistant_ending(stop, said, calls)
}

/// The same with another stop reason.
pub fn assistant_ending(stop: &str, said: &str, calls: &[(&str, &str, Value)]) -> Value {
    let mut content = Vec::new();
    if !said.is_empty() {
        content.push(json!({"type": "text", "text": said}));
    }
    content.extend(
        calls
            .iter()
            .map(|(id, name, args)| json!({"type": "toolCall", "id": id, "name": name, "arguments": args})),
    );
    json!({
        "role": "assistant", "content": content, "api": "anthropic-messages", "provider": "demo",
        "model": "demo-1", "usage": {"input": 1, "output": 1, "cacheRead": 0, "cacheWrite": 0,
        "totalTokens": 2, "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": 0}},
        "stopReason": stop, "timestamp": 1_767_603_602_000_u64,
    })
}

/// A Pi tool result message.
pub fn tool_result(id: &str, tool: &str, said: &str, is_error: bool) -> Value {
    json!({
        "role": "toolResult", "toolCallId": id, "toolName": tool, "isError": is_error,
        "content": [{"type": "text", "text": said}], "timestamp": 1_767_603_603_000_u64,
    })
}

/// A Pi user message.
pub fn user(said: &str) -> Value {
    json!({"role": "user", "content": said, "timestamp": 1_767_603_601_000_u64})
}

/// The header of a Pi session file of version 3.
pub fn header() -> Value {
    json!({"type": "session", "version": 3, "id": "0190a000-0000-7000-8000-000000000001",
           "timestamp": "2026-01-05T09:00:00.000Z", "cwd": "/proj/demo"})
}

/// A message entry of a session file.
pub fn entry(id: &str, parent: Option<&str>, message: &Value) -> Value {
    json!({"type": "message", "id": id, "parentId": parent, "timestamp": "2026-01-05T09:00:01.000Z",
           "message": message})
}

/// A session file: header, question `a1`, answer `a2` (the leaf).
pub fn small_tree() -> String {
    tree(&[
        header(),
        entry("a1", None, &user("What changed today?")),
        entry("a2", Some("a1"), &assistant("Nothing.", &[])),
    ])
}

/// Lines of a session file.
pub fn tree(entries: &[Value]) -> String {
    entries.iter().flat_map(|entry| [entry.to_string(), "\n".to_owned()]).collect()
}

/// What differs from run to run, for insta.
pub fn filters(sandbox: &Sandbox) -> Vec<(String, &'static str)> {
    let dir = sandbox.dir().display().to_string();
    vec![
        (dir.replace('.', "\\."), "[DIR]"),
        ("[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}".into(), "[UUID]"),
        ("tk_[0-9a-f]{32}".into(), "[KEY]"),
        ("[0-9a-f]{64}".into(), "[HASH]"),
        ("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(\\.[0-9]+)?Z".into(), "[TIME]"),
        ("pid [0-9]+".into(), "pid [PID]"),
        (r#""pid":[0-9]+"#.into(), r#""pid":[PID]"#),
    ]
}

/// An inline snapshot of status, stdout and stderr together.
#[macro_export]
macro_rules! snapshot {
    ($sandbox:expr, $ran:expr, @$snapshot:literal) => {
        insta::with_settings!({ filters => $crate::kit::filters(&$sandbox) }, {
            insta::assert_snapshot!($ran.all(), @$snapshot);
        });
    };
}
