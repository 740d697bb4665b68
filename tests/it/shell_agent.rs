//! The agent of `docs/examples/shell-agent` under a model that refuses what strict providers refuse: killed with its
//! whole process group around each command it calls, and at random times, and started again until it is done.
//!
//! `TURNKEEP_SLOW=1` kills at every point instead of some. Where curl or jq is missing the tests say so and pass.

use crate::kit::*;
use crate::strict::{Provider, Use};
use crate::strict_server::{Answer, Server};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

const INPUT: &str = "Tell Ada what the file says";
const REPLY: &str = "Ada knows it now.";
/// Starts and helps of one turn; one that needs more is stuck.
const STARTS_MAX: usize = 60;

fn example() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/examples/shell-agent")
}

/// Whether what the agent needs is there.
fn can_run() -> bool {
    let missing: Vec<&str> =
        ["bash", "curl", "jq"].into_iter().filter(|tool| !Sandbox::new().has(tool)).collect();
    if !missing.is_empty() {
        eprintln!("skipped: the shell agent needs {}, which is not here", missing.join(" and "));
    }
    missing.is_empty()
}

/// A call that is counted outside, made with the tool `bash`.
fn counted() -> Value {
    json!({"command": r#"curl -sS -H "Idempotency-Key: $TURNKEEP_KEY" --data-binary ran "$BOX/bash""#})
}

/// What the model says: each of its ways to ask, with ids as some providers give them, always the same.
fn answers() -> Vec<Answer> {
    vec![
        Answer::calls(&[("call_0", "read", json!({"path": "file.txt"}))]),
        Answer::calls(&[
            ("call_0", "send_message", json!({"text": "It says: hello"})),
            ("call_1", "bash", counted()),
            ("call_2", "read", json!({"path": "nowhere"})),
            ("call_3", "no_such_tool", json!({})),
        ]),
        Answer::raw_call("call_0", "send_message", r#"{"text": "cut o"#).finishing("length"),
        Answer::raw_call("call_0", "send_message", r#"{"text": nothing}"#),
        Answer::calls(&[("call_0", "send_message", json!({"text": "That is all."}))]),
        Answer::text(REPLY),
    ]
}

/// A sandbox with the agent, its server, and a gate in front of `turnkeep` and `curl`.
struct Stage {
    sandbox: Sandbox,
    server: Server,
    policy: PathBuf,
    stream: &'static str,
}

impl Stage {
    fn new(stream: &'static str, answers: Vec<Answer>) -> Self {
        let sandbox = Sandbox::new();
        sandbox.write("file.txt", "hello\n");
        std::fs::create_dir(sandbox.path("points")).unwrap();
        // Counts each kind of call by itself: in a pipeline they come at the same time.
        let gate = r#"name=${0##*/}
for last; do :; done
case $name:$1 in
  turnkeep:inspect) case "$*" in *--context*) kind=inspect-context ;; *) kind=inspect-next ;; esac ;;
  turnkeep:step) kind=step-$2 ;;
  turnkeep:*) kind=$1 ;;
  *) kind=curl-${last##*/} ;;
esac
n=1
until mkdir "$POINTS/$kind.$n" 2>/dev/null; do n=$((n + 1)); done
# The agent's group, then our own: `timeout` gives the tool bash one of its own.
die() { kill -s KILL -- "-$(cat "$GROUP")"; kill -s KILL 0; }
[ "$KILL" != "before $kind.$n" ] || die
if [ "$kind" = admit ]; then echo $$ >"$GROUP"; exec "$REAL" "$@"; fi
program=$REAL
[ "$name" = turnkeep ] || program=$CURL
code=0
if [ "$kind" = inspect-context ] && [ "$FAULT" = orphan ]; then
  "$program" "$@" | jq -c 'map(select(.role != "assistant"))' || code=$?
else
  "$program" "$@" || code=$?
fi
[ "$KILL" != "after $kind.$n" ] || die
exit $code"#;
        sandbox.script("bin/turnkeep", gate);
        sandbox.script("bin/curl", gate);
        let policy = example().join("policy.json");
        Self { server: Server::start(answers), sandbox, policy, stream }
    }

    fn admit(&self, kill: &str, fault: &str) -> Run {
        let agent = example().join("agent.sh");
        let words = ["admit", "s", "--turn", "t1", "--delivery", "msg-1", "--tree", "chat.jsonl"];
        let rest = ["--tree-mode", "append", "--text", INPUT, "--resume", "--", agent.to_str().unwrap()];
        self.surround(self.sandbox.program(self.sandbox.path("bin/turnkeep"), words.into_iter().chain(rest)))
            .env("KILL", kill)
            .env("FAULT", fault)
            .in_a_group()
    }

    fn surround(&self, run: Run) -> Run {
        let old = std::env::var("PATH").unwrap();
        let found = self.sandbox.sh("command -v curl").ok().line();
        let bin = Path::new(BIN).parent().unwrap();
        run.env("PATH", format!("{}:{}:{old}", self.sandbox.path("bin").display(), bin.display()))
            .env("REAL", BIN)
            .env("CURL", found)
            .env("POINTS", self.sandbox.path("points"))
            .env("GROUP", self.sandbox.path("group"))
            .env("TURNKEEP_POLICY", &self.policy)
            .env("OPENAI_BASE_URL", self.server.url("/v1"))
            .env("OPENAI_API_KEY", "secret")
            .env("OPENAI_MODEL", "m")
            .env("AGENT_STREAM", self.stream)
            .env("AGENT_TRIES", "2")
            .env("AGENT_OUTBOX", self.server.url("/send"))
            .env("AGENT_REPLIES", self.server.url("/reply"))
            .env("BOX", self.server.url(""))
    }

    /// Starts the agent, killed at a point, or undisturbed.
    fn start(&self, kill: &str) -> Ran {
        self.admit(kill, "none").go()
    }

    /// The kinds of calls that there were, each with its number.
    fn points(&self) -> BTreeSet<String> {
        let folder = std::fs::read_dir(self.sandbox.path("points")).unwrap();
        folder.map(|item| item.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Starts it again and does what only a person can, until the turn is closed.
    fn finish(&self) -> Result<(), String> {
        for _ in 0..STARTS_MAX {
            let ran = self.start("never");
            match ran.code() {
                10 => return Ok(()),
                0 | 14 => self.help()?,
                _ => return Err(format!("it stopped: {}", ran.all())),
            }
        }
        Err("it does not come to an end".to_owned())
    }

    fn help(&self) -> Result<(), String> {
        let ran = self.surround(self.sandbox.cmd(["inspect", "s", "--next"])).go();
        if ran.code() == 8 {
            // Killed before there was a session.
            return Ok(());
        }
        let next = ran.ok().stdout;
        match next.split_whitespace().next().unwrap_or_default() {
            // A person looks where the reply would be, and says so.
            "reconcile_delivery" => {
                let say = |more: &[&str]| {
                    let there = self.server.posted("/reply").iter().any(|posted| posted.key == "msg-1");
                    let said: &[&str] = if there { &["--receipt", "it is there"] } else { &["--not-sent"] };
                    let words = ["step", "deliver", "--session", "s:t1", "--by", "ada"];
                    self.sandbox.run([&words, said, more].concat())
                };
                let ran = say(&[]);
                // 6: the same was said of an earlier try. The publisher is gone, so a second look is the last word.
                let ran = if ran.code() == 6 { say(&["--force", "--why", "looked again"]) } else { ran };
                // 4: the publisher is dying, and not dead yet.
                if [0, 4].contains(&ran.code()) { Ok(()) } else { Err(ran.all()) }
            }
            "unpark" => {
                let unpark = ["recover", "s", "--unpark", "--by", "ada", "--why", "a test", "--", "true"];
                let ran = self.surround(self.sandbox.cmd(unpark)).go();
                if [0, 14].contains(&ran.code()) { Ok(()) } else { Err(ran.all()) }
            }
            "ask" | "reconcile" => Err(format!("it waits for a person: {next}")),
            // Done, or somebody is dying and not dead yet.
            _ => Ok(()),
        }
    }

    /// What is wrong with a finished turn.
    fn judge(&self) -> Result<(), String> {
        for asked in self.server.asked() {
            if let Some(why) = asked.refused {
                return Err(format!("the model refused a request: {why}"));
            }
        }
        self.judge_effects()?;
        let replies = self.server.posted("/reply");
        if replies.len() != 1 || replies[0].key != "msg-1" || replies[0].text.trim_end() != REPLY {
            return Err(format!("not the one reply: {replies:?}"));
        }
        let journal = self.sandbox.journal("s");
        let settled: Vec<&Value> = journal.iter().filter(|record| record["kind"] == "settled").collect();
        if settled.len() != 1 || settled[0]["status"] != "completed" {
            return Err(format!("settled: {settled:?}"));
        }
        let verified = self.sandbox.run(["verify", "s", "--with-tree"]);
        if verified.code() != 0 {
            return Err(verified.all());
        }
        self.judge_transcript()
    }

    /// Each effect at most once, and once where a result says that it happened.
    fn judge_effects(&self) -> Result<(), String> {
        let mut keys: HashMap<String, (String, String)> = HashMap::new();
        for record in self.sandbox.journal("s") {
            for call in record["calls"].as_array().into_iter().flatten() {
                keys.insert(text(&call["ref"]), (text(&call["tool"]), text(&call["key"])));
            }
        }
        let mut answers: HashMap<String, Value> = HashMap::new();
        for record in self.sandbox.journal("s") {
            if ["result", "interrupted", "not_run"].contains(&record["kind"].as_str().unwrap()) {
                answers.insert(text(&record["ref"]), record);
            }
        }
        for (call, (tool, key)) in &keys {
            let place = match tool.as_str() {
                "send_message" => "/send",
                "bash" => "/bash",
                _ => continue,
            };
            let times = self.server.posted(place).iter().filter(|posted| posted.key == *key).count();
            let answer = answers.get(call).ok_or_else(|| format!("{tool} {call} has no answer"))?;
            let allowed = match answer["kind"].as_str().unwrap() {
                "result" if answer["error"] == false => 1..=1,
                "not_run" => 0..=0,
                _ => 0..=1,
            };
            if !allowed.contains(&times) {
                return Err(format!("{tool} {call} took effect {times} times: {answer}"));
            }
        }
        Ok(())
    }

    /// The branch that ends on the last line is a conversation that a provider takes.
    fn judge_transcript(&self) -> Result<(), String> {
        let entries = self.sandbox.tree("chat.jsonl");
        let by_id: HashMap<&str, &Value> =
            entries.iter().map(|entry| (entry["id"].as_str().unwrap(), entry)).collect();
        let mut messages = Vec::new();
        let mut at = entries.last();
        while let Some(entry) = at {
            messages.extend(entry.get("message").cloned());
            at = entry["parentId"].as_str().map(|parent| by_id[parent]);
        }
        messages.reverse();
        if let Some(why) = Provider::Pi.refusal(&messages, Use::History) {
            return Err(format!("the transcript: {why}"));
        }
        let last = messages.last().unwrap();
        let said = last["content"][0]["text"] == REPLY;
        if said { Ok(()) } else { Err(format!("the transcript ends otherwise: {last}")) }
    }

    fn finished(&self, how: &str) {
        let done = self.finish().and_then(|()| self.judge());
        if let Err(why) = done {
            let next = self.sandbox.run(["inspect", "s"]).all();
            panic!("{how}: {why}\n{next}\n{}", string(self.sandbox.journal_bytes("s")));
        }
    }
}

fn is_slow() -> bool {
    std::env::var_os("TURNKEEP_SLOW").is_some()
}

#[test]
fn the_agent_is_short() {
    let scripts = ["agent.sh", "tool.sh", "post.sh"];
    let lines: usize = scripts
        .map(|name| std::fs::read_to_string(example().join(name)).unwrap().lines().count())
        .iter()
        .sum();
    assert!(lines < 100, "{lines} lines");
}

#[test]
fn undisturbed_it_does_everything_once() {
    if !can_run() {
        return;
    }
    for stream in ["true", "false"] {
        let stage = Stage::new(stream, answers());
        stage.start("never").ok();
        stage.start("never").exits(10);
        stage.judge().unwrap();
        let sent: Vec<String> =
            stage.server.posted("/send").iter().map(|posted| posted.text.clone()).collect();
        assert_eq!(sent, ["It says: hello", "That is all."]);
        assert_eq!(stage.server.posted("/bash").len(), 1);
        // What went wrong is told to the model as it is.
        let told = stage.server.asked().pop().unwrap().messages;
        let told = Value::from(told).to_string();
        for words in
            ["hello", "No such file", "there is no tool no_such_tool", "cut off", "is needed, a string"]
        {
            assert!(told.contains(words), "{words:?} is not in {told}");
        }
    }
}

/// Kills it at each point, or at some, `when` is before or after a command.
fn killed_around(when: &str, some: &[&str]) {
    if !can_run() {
        return;
    }
    let whole = Stage::new("false", answers());
    whole.start("never").ok();
    let points = whole.points();
    assert!(points.len() > 40, "{points:?}");
    // Behind and before a look is before and behind what stands beside it.
    let acts = |point: &&String| !point.starts_with("admit") && !point.starts_with("inspect-next");
    for point in points.iter().filter(acts).filter(|point| is_slow() || some.contains(&point.as_str())) {
        let kill = format!("{when} {point}");
        let stage = Stage::new("true", answers());
        assert_eq!(stage.start(&kill).code(), 137, "{kill}: it was to be killed");
        stage.finished(&kill);
    }
}

#[test]
fn killed_before_any_command_it_finishes_the_turn() {
    killed_around("before", &["step-run.3", "curl-send.1", "step-settle.1", "curl-reply.1"]);
}

#[test]
fn killed_after_any_command_it_finishes_the_turn() {
    killed_around("after", &["step-message.2", "step-run.2", "curl-bash.1", "curl-reply.1"]);
}

/// A person says of each try that nothing was sent, and of the second one on purpose.
#[test]
fn killed_twice_before_its_reply_it_finishes_the_turn() {
    if !can_run() {
        return;
    }
    let stage = Stage::new("false", answers());
    for kill in ["before curl-reply.1", "before curl-reply.2"] {
        assert_eq!(stage.start(kill).code(), 137, "{kill}: it was to be killed");
        stage.help().unwrap();
    }
    assert!(stage.server.posted("/reply").is_empty());
    stage.finished("twice");
}

/// Kills a whole group that this test started.
fn kill_group(leader: u32) {
    let killed = std::process::Command::new("kill").args(["-KILL", "--", &format!("-{leader}")]).status();
    assert!(killed.unwrap().success(), "kill -KILL -{leader}");
}

#[test]
fn killed_at_random_times_it_finishes_the_turn() {
    if !can_run() {
        return;
    }
    let seeds = if is_slow() { 1..=20_u64 } else { 1..=2 };
    for seed in seeds {
        let mut dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut draw = move |below: u64| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            dice % below
        };
        let stage = Stage::new(if seed % 2 == 0 { "true" } else { "false" }, answers());
        let mut kills = Vec::new();
        for _ in 0..=draw(5) {
            let pause = draw(700);
            kills.push(pause);
            let running = stage.admit("never", "none").start();
            // The time itself is what is tried; nothing waits for it.
            std::thread::sleep(Duration::from_millis(pause));
            // Not reaped before `wait`, so its number is nobody else's.
            kill_group(running.pid());
            let code = running.wait().code();
            assert!([0, 10, 14, 137].contains(&code), "seed {seed}: exit {code}");
            stage.help().unwrap();
        }
        stage.finished(&format!("seed {seed}, killed after {kills:?} ms"));
    }
}

#[test]
fn an_answer_that_breaks_off_is_asked_for_again() {
    if !can_run() {
        return;
    }
    for stream in ["true", "false"] {
        let mut cut = answers();
        cut[1] = cut[1].clone().cut_once();
        let stage = Stage::new(stream, cut);
        let asked = stage.start("never").ok();
        assert!(
            asked.stderr.contains("turnkeep: the event stream is broken")
                || asked.stderr.contains("curl: (18)")
        );
        stage.finished(stream);
        assert_eq!(stage.server.asked().len(), answers().len() + 1, "one more than without");
    }
}

#[test]
fn recover_starts_it_too() {
    if !can_run() {
        return;
    }
    let stage = Stage::new("false", answers());
    assert_eq!(stage.start("after step-message.2").code(), 137);
    let agent = example().join("agent.sh");
    let words = ["recover", "s", "--", agent.to_str().unwrap()];
    stage.surround(stage.sandbox.cmd(words)).env("KILL", "never").env("FAULT", "none").go().ok();
    stage.judge().unwrap();
}

// That these checks can fail.

#[test]
fn a_policy_that_calls_sending_safe_is_found_out() {
    if !can_run() {
        return;
    }
    let mut stage = Stage::new("false", answers());
    let text = std::fs::read_to_string(&stage.policy).unwrap();
    let lax = text.replace(r#""send_message","replay":"never""#, r#""send_message","replay":"safe""#);
    assert_ne!(lax, text);
    stage.policy = stage.sandbox.write("lax.json", lax);
    assert_eq!(stage.start("after curl-send.1").code(), 137);
    stage.finish().unwrap();
    let why = stage.judge().unwrap_err();
    assert!(why.contains("took effect 2 times"), "{why}");
}

#[test]
fn a_claim_that_was_not_kept_is_found_out() {
    if !can_run() {
        return;
    }
    let stage = Stage::new("false", answers());
    assert_eq!(stage.start("after curl-send.1").code(), 137);
    let journal = string(stage.sandbox.journal_bytes("s"));
    let (kept, last) = journal.trim_end().rsplit_once('\n').unwrap();
    assert!(last.contains(r#""kind":"claimed""#), "{last}");
    std::fs::write(stage.sandbox.journal_path("s"), format!("{kept}\n")).unwrap();
    stage.finish().unwrap();
    let why = stage.judge().unwrap_err();
    assert!(why.contains("took effect 2 times"), "{why}");
}

#[test]
fn results_without_their_calls_are_refused_by_the_model() {
    if !can_run() {
        return;
    }
    let stage = Stage::new("false", answers());
    let ran = stage.admit("never", "orphan").go().exits(1);
    assert!(ran.stderr.contains("which is no open call"), "{}", ran.stderr);
    let why = stage.judge().unwrap_err();
    assert!(why.contains("the model refused a request"), "{why}");
}
