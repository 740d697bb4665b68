//! What the README shows is run: the quickstart, and the loop of a driver.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const BIN: &str = env!("CARGO_BIN_EXE_turnkeep");

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A command that inherits nothing of a turn that this test may run in.
fn command(program: impl AsRef<std::ffi::OsStr>, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("HOME", home).env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.current_dir(home);
    command
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn told(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    format!("{}\n{}\n{stderr}", output.status, String::from_utf8_lossy(&output.stdout))
}

fn count(text: &str, what: &str) -> usize {
    text.lines().filter(|line| line.contains(what)).count()
}

#[test]
fn the_quickstart_does_everything_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let demo = folder.path().join("demo");
    let script = project().join("docs/examples/quickstart.sh");
    let output = command("bash", folder.path())
        .arg(script)
        .env("TURNKEEP_BIN", BIN)
        .env("DEMO", &demo)
        .output()
        .expect("started");
    assert!(output.status.success(), "{}", told(&output));

    let effects = text(&demo.join("effects.txt"));
    assert_eq!(
        effects.lines().collect::<Vec<_>>(),
        [
            "read",
            "charge",
            "mail",
            "posted: The receipt is mailed. Whether the charge went through is unknown: please look it up before anybody repeats it."
        ]
    );
    let journal = text(&demo.join("state/sessions/room-42.jsonl"));
    for (what, times) in [
        (r#""kind":"admitted""#, 1),
        (r#""kind":"attempt""#, 2),
        (r#""kind":"claimed""#, 3),
        (r#""kind":"result""#, 2),
        (r#""kind":"interrupted""#, 1),
        (r#""kind":"recovered""#, 1),
        (r#""kind":"settled""#, 1),
        (r#""state":"sent""#, 1),
    ] {
        assert_eq!(count(&journal, what), times, "{what} in\n{journal}");
    }
    let tree = text(&demo.join("chat.jsonl"));
    assert!(tree.contains("is unknown"), "{tree}");
    let mut parts = tree.lines().map(|line| &line[..line.len().min(20)]);
    assert!(parts.next().is_some_and(|line| line.starts_with(r#"{"type":"session""#)), "{tree}");
}

#[test]
fn the_loop_in_the_readme_runs() {
    let readme = text(&project().join("README.md"));
    let (_, rest) = readme.split_once("```sh\n# driver.sh").expect("the loop");
    let (driver, _) = rest.split_once("```").expect("its end");

    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path();
    let script = |name: &str, text: &str| {
        let path = home.join(name);
        fs::write(&path, format!("#!/usr/bin/env bash\n{text}")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("executable");
    };
    script("driver.sh", driver);
    script("tool.sh", "cat >/dev/null; echo \"$TURNKEEP_TOOL\" >>effects; echo done\n");
    script("post-reply.sh", "cat >>effects; echo posted\n");
    script("turnkeep", &format!("exec '{BIN}' \"$@\"\n"));
    script(
        "ask_my_model",
        r#"if [ -e asked ]; then echo '{"role":"assistant","content":"Restarted."}'; else
touch asked
echo '{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"restart","arguments":"{}"}}]}'; fi
"#,
    );
    let path = format!("{}:{}", home.display(), std::env::var("PATH").expect("a path"));
    let run = |words: &[&str]| {
        command(home.join("turnkeep"), home)
            .env("PATH", &path)
            .env("TURNKEEP_ROOT", home.join("state"))
            .args(words)
            .output()
            .expect("started")
    };
    let admit = [
        "admit",
        "room-42",
        "--delivery",
        "msg-981",
        "--tree",
        "chat.jsonl",
        "--tree-mode",
        "append",
        "--text",
        "Restart web and tell me",
        "--resume",
        "--",
        "./driver.sh",
    ];
    let output = run(&admit);
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(text(&home.join("effects")), "restart\nRestarted.", "{}", told(&output));
    assert_eq!(run(&admit).status.code(), Some(10));
    assert_eq!(run(&["recover", "--all", "--match", "room-*", "--", "./driver.sh"]).status.code(), Some(0));
    assert_eq!(text(&home.join("effects")), "restart\nRestarted.");
}
