//! The plain script of ten steps (`docs/examples/script`), killed at every step and started again.

use crate::kit::{BIN, Ran, Sandbox, until};
use std::path::PathBuf;

/// What happens, in order, when nothing goes wrong.
const EFFECTS: [&str; 7] = ["snapshot", "report", "pack-a", "pack-b", "charge", "mail", "clean"];
/// Steps of the script that run a command.
const STEPS: usize = 11;

struct Nightly {
    sandbox: Sandbox,
    example: PathBuf,
}

impl Nightly {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        sandbox.write("work/inbox/a", "one\n");
        sandbox.write("work/inbox/b", "two\n");
        let example = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/examples/script");
        // Stands in front of turnkeep: kills the script around its N-th call.
        sandbox.script(
            "bin/turnkeep",
            r#"n=$(($(cat "$WORK/calls" 2>/dev/null || echo 0) + 1)); echo $n >"$WORK/calls"
case "$KILL" in before-$n) kill -9 "$PPID"; exit 1 ;; esac
code=0; "$REAL" "$@" || code=$?
case "$KILL" in after-$n) kill -9 "$PPID" ;; esac
exit $code"#,
        );
        // Stands in front of the shell that runs each step: kills runner and script behind the N-th effect.
        sandbox.script(
            "bin/sh",
            r#"n=$(($(cat "$WORK/shells" 2>/dev/null || echo 0) + 1)); echo $n >"$WORK/shells"
code=0; /bin/sh "$@" || code=$?
case "$KILL" in inside-$n)
  gate=$(ps -o ppid= -p "$PPID"); script=$(ps -o ppid= -p $gate)
  echo "$PPID" >"$WORK/runner"
  # The script first: it must not see its step fail.
  kill -9 $script $gate "$PPID" ;;
esac
exit $code"#,
        );
        Self { sandbox, example }
    }

    fn start(&self, kill: &str) -> Ran {
        let path = format!("{}:{}", self.sandbox.path("bin").display(), std::env::var("PATH").unwrap());
        let script = self.example.join("nightly.sh");
        let script = script.to_str().unwrap();
        let policy = self.example.join("policy.json");
        let args = ["admit", "nightly", "--delivery", "d1", "--text", "nightly", "--resume", "--", script];
        self.sandbox
            .cmd(args)
            .env("PATH", path)
            .env("WORK", self.sandbox.path("work"))
            .env("TURNKEEP_BIN", self.sandbox.path("bin/turnkeep"))
            .env("TURNKEEP_POLICY", policy)
            .env("REAL", BIN)
            .env("KILL", kill)
            .go()
    }

    fn effects(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.sandbox.path("work/effects.txt")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn finished(&self, how: &str) {
        assert_eq!(self.effects(), EFFECTS, "{how}");
        let report = std::fs::read_to_string(self.sandbox.path("work/report.txt")).unwrap();
        assert_eq!(report, "lines: 2\n", "{how}");
        let last = self.sandbox.last("nightly");
        assert_eq!(
            (last["kind"].as_str(), last["status"].as_str()),
            (Some("settled"), Some("completed")),
            "{how}"
        );
        assert_eq!(self.sandbox.run(["verify", "nightly"]).code(), 0, "{how}");
    }
}

/// Whether a process is gone, or a zombie without other threads, whenever it is reaped.
fn has_ended(pid: &str) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<&str> = fields.split(' ').collect();
    // Of proc(5)'s fields the third and the twentieth: its first thread ends before the others.
    fields[0] == "Z" && ["0", "1"].contains(&fields[17])
}

#[test]
fn it_runs_once_and_then_answers_from_the_journal() {
    let nightly = Nightly::new();
    nightly.start("never").exits(0);
    nightly.finished("undisturbed");
    nightly.start("never").exits(10);
    nightly.finished("started again");
}

#[test]
fn killed_around_any_call_it_goes_on_and_repeats_nothing() {
    for n in 1..=STEPS + 1 {
        for when in ["before", "after"] {
            let nightly = Nightly::new();
            let kill = format!("{when}-{n}");
            let killed = nightly.start(&kill);
            assert!(killed.status.code() != Some(0) || n > STEPS, "{kill}: the script was to be killed");
            let again = nightly.start("never");
            // Killed behind the settlement there is nothing left to do.
            assert!([0, 10].contains(&again.code()), "{kill}: {}", again.all());
            nightly.finished(&kill);
        }
    }
}

#[test]
fn killed_behind_an_effect_it_stops_until_a_person_looked() {
    for n in 1..=STEPS {
        let nightly = Nightly::new();
        let kill = format!("inside-{n}");
        nightly.start(&kill);
        let runner = std::fs::read_to_string(nightly.sandbox.path("work/runner")).unwrap();
        until("the end of the runner", || has_ended(runner.trim()));
        let last = nightly.sandbox.last("nightly");
        assert_eq!(last["kind"], "claimed", "{kill}");
        let done = nightly.effects();
        let again = nightly.start("never");
        if again.code() == 0 {
            // A step that only looks is run again by itself.
            nightly.finished(&kill);
            continue;
        }
        // The others stop at the start, before anything runs, and say what to type.
        let again = again.exits(14).says("turnkeep step reconcile");
        assert!(again.stdout.is_empty(), "{kill}");
        assert_eq!(nightly.effects(), done, "{kill}");
        let call = last["ref"].as_str().unwrap();
        let content = nightly.sandbox.write("content", "");
        let content = content.to_str().unwrap();
        let found = [
            "step",
            "reconcile",
            call,
            "--outcome",
            "applied",
            "--by",
            "ada",
            "--session",
            "nightly",
            content,
        ];
        nightly.sandbox.run(found).ok();
        nightly.start("never").exits(0);
        nightly.finished(&kill);
    }
}
