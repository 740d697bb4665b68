//! Every kind of record asked for a second time: a repeat, a gate, a contradiction, or one more record.
//!
//! Each story of [`STORIES`] is about one kind, in a session of its own. An act is written as it is typed:
//!
//! - `admit` and `recover` are commands of their own, `person ACT` is a person's act, `old ACT` a step of the first
//!   ticket, and all else is a step of the newest one; what follows `<<<` is its stdin, a word of [`body`] or text;
//! - `again` is the newest act that wrote a record of the kind, word for word;
//! - `die` ends the owner, `takeover` has a new one recover the turn, `owner` only starts it.
//!
//! Behind `=>` stands what has to come of it:
//!
//! - `ok`, `CODE ok`: exit 0, or with CODE, as preparation;
//! - `written`: exit 0, a record of the kind that was not there, and no word of a repeat;
//! - `repeated`: exit 0 with the receipt that `written` had, `"repeated":true`, and not a byte written;
//! - `ticket`: exit 0 with the ticket that `written` had, and not a byte written;
//! - `CODE status`: exit CODE with the status document, no ticket, and not a byte written;
//! - `CODE NAME`: exit CODE with an error of this name, and not a byte written;
//! - `kept CODE NAME`: the same, but for one record of the kind, which stays.

use crate::kit::{Owner, Ran, Sandbox, assistant, assistant_ending, at, entry, text};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Stories, an empty line between two; a line with `#` is a remark.
const STORIES: &str = r#"
# By its key and by its id. Who asks goes on, or is told that somebody does.
admitted:
    admit s --delivery k --text Hi --owner-pid OWNER            => written
    again                                                       => 10 status
    admit s --delivery k --text Hi --resume --owner-pid TEST    => 4 owner_alive
    admit s --delivery k --text Ho --owner-pid OWNER            => 6 other_input
    admit s --delivery k --text Hi --turn t2 --owner-pid OWNER  => 6 other_turn

admitted:
    admit s --turn t --text Hi --owner-pid OWNER                => written
    again                                                       => 10 status
    admit s --turn t --text Ho --owner-pid OWNER                => 6 other_input
    admit s --turn t --text Hi --delivery k2 --owner-pid OWNER  => 6 other_key
    settle                                                      => ok
    again                                                       => 10 status

# Only the newest record of the turn; its own `not_run` aside.
message:
    message - <<< CALLS  => written
    again                => repeated
    message - <<< SAID   => 6 message_refused
    claim c1             => ok
    again                => 6 message_refused

message:
    message - <<< SAID  => written
    again               => repeated
    note - <<< x        => ok
    again               => written
    message - <<< CUT   => written
    again               => repeated
    message - <<< SAID  => written

# Passed over by its id, whatever else it says.
entry:
    entry - <<< ENTRY    => written
    again                => repeated
    entry - <<< RETOLD   => repeated
    message - <<< CALLS  => ok
    again                => repeated
    entry - <<< SECOND   => 6 message_refused

# The declaration stands where the claim waits for a person, and where it is made.
intent:
    claim x --tool deploy --args {"n":1}  => kept 11 approval_needed
    again                                 => 11 approval_needed
    claim x --tool deploy --args {"n":2}  => 6 other_call
    claim x --tool look --args {"n":1}    => 6 other_call
    claim y --tool look --args {"n":1}    => written
    again                                 => 7 claimed
    claim y --tool look --args {"n":2}    => 6 other_call
    result y - <<< seen                   => ok
    again                                 => 10 answered
    claim y --tool look --args {"n":2}    => 6 other_call

claimed:
    message - <<< CALLS     => ok
    claim c1                => written
    again                   => 7 claimed
    claim c1 --link 1       => 7 claimed
    run c1 -- touch ran     => 7 claimed
    dispatch c1 --to farm   => 7 claimed
    result c1 - <<< out     => ok
    again                   => 10 answered
    run c1 -- touch ran     => 10 answered
    dispatch c1 --to farm   => 10 answered
    person cancel --by ann  => ok
    again                   => 10 answered
    claim look              => 6 may_not_run

# A rerun is one claim; what needs an approval asks for it before it tells of the claim.
claimed:
    message - <<< CALLS           => ok
    claim look                    => written
    takeover                      => ok
    again                         => written
    again                         => 7 claimed
    person approve peek --by ann  => ok
    claim peek                    => written
    again                         => 11 approval_needed
    old claim peek                => 5 fenced

result:
    message - <<< CALLS          => ok
    claim c1                     => ok
    result c1 - <<< out          => written
    again                        => repeated
    result c1 - <<< other        => 6 other_result
    result c1 --error - <<< out  => 6 other_result
    result c1                    => 6 other_result
    result c1 --not-run          => 6 answered
    settle --status failed       => ok
    again                        => repeated

result:
    message - <<< CALLS    => ok
    run c1 -- echo out     => written
    again                  => 10 answered
    result c1 - <<< other  => 6 other_result
    result c1              => 6 other_result

not_run:
    message - <<< CALLS                               => ok
    result c1 --not-run                               => written
    again                                             => repeated
    claim c1                                          => 10 answered
    claim look                                        => ok
    result look --not-run                             => written
    again                                             => repeated
    person reconcile look --by ann --outcome unknown  => 6 answered

dispatched:
    message - <<< CALLS                  => ok
    dispatch c1 --to farm                => written
    again                                => 7 claimed
    dispatch c1 --to mill                => 7 claimed
    claim c1                             => 7 claimed
    dispatch c1 --to farm --receipt r    => written
    again                                => repeated
    dispatch c1 --to farm --receipt q    => 6 other_receipt
    dispatch c1 --to mill --receipt r    => 7 claimed
    result c1 --not-run                  => 6 may_have_run
    dispatch look --to farm --receipt r  => written
    again                                => repeated
    result look - <<< out                => ok
    again                                => 10 answered

# Not one that is spent or run out.
approval:
    message - <<< CALLS                 => ok
    person approve peek --by ann        => written
    again                               => repeated
    person deny peek --by ann           => 6 decided
    claim peek                          => ok
    again                               => 4 claimant_alive
    die                                 => ok
    again                               => written
    again                               => repeated
    person approve c2 --by ann --for 0  => written
    again                               => written
    person approve c2 --by ann          => written
    again                               => repeated

approval:
    message - <<< CALLS         => ok
    person approve c2 --by ann  => written
    claim c2                    => ok
    again                       => 6 claimed
    result c2 - <<< out         => ok
    again                       => 6 answered

approval:
    message - <<< CALLS                     => ok
    person deny c2 --by ann --reason no     => written
    again                                   => repeated
    person deny c2 --by bob --reason no     => 6 answered
    person deny c2 --by ann --reason never  => 6 answered
    person approve c2 --by ann              => 6 answered
    claim c2                                => 10 answered

reconciled:
    message - <<< CALLS                                              => ok
    claim c1                                                         => ok
    person reconcile c1 --by ann --outcome unknown                   => 4 claimant_alive
    die                                                              => ok
    person reconcile c1 --by ann --outcome applied - <<< paid        => written
    again                                                            => repeated
    person reconcile c1 --by ann --outcome applied - <<< paid twice  => 6 answered
    person reconcile c1 --by bob --outcome applied - <<< paid        => 6 answered
    person reconcile c1 --by ann --outcome not_applied               => 6 answered
    person reconcile c1 --by ann --outcome unknown                   => 6 answered

reconciled:
    message - <<< CALLS                                         => ok
    dispatch c1 --to farm                                       => ok
    person reconcile c1 --by ann --outcome unknown              => written
    again                                                       => repeated
    person reconcile c1 --by ann --outcome unknown --receipt r  => 6 answered
    person reconcile c1 --by ann --outcome applied - <<< paid   => 6 answered
    person reconcile c1 --by ann --outcome not_applied          => 6 answered
    claim c1                                                    => 10 answered

# Found not applied, it may be claimed again: what was said of the claim before is not said of this one.
reconciled:
    message - <<< CALLS                                                      => ok
    claim c1                                                                 => ok
    die                                                                      => ok
    person reconcile c1 --by ann --outcome not_applied                       => written
    again                                                                    => repeated
    takeover                                                                 => ok
    again                                                                    => repeated
    claim c1                                                                 => ok
    die                                                                      => ok
    again                                                                    => 6 said_before
    person reconcile c1 --by ann --outcome not_applied --force --why looked  => written
    again                                                                    => repeated
    person reconcile c1 --by ann --outcome applied - <<< paid                => written
    person reconcile c1 --by ann --outcome not_applied                       => 6 answered

# Also when its turn is long closed.
steered:
    person steer --text More --delivery k2  => written
    again                                   => repeated
    person steer --text Less --delivery k2  => 6 other_input
    person steer --text Hi --delivery k     => 6 other_input
    admit s --text More --delivery k2       => 10 status
    settle                                  => ok
    again                                   => repeated
    person steer --text Less --delivery k2  => 6 other_input

steered:
    admit s --text More --delivery k2 --when-busy steer  => written
    again                                                => 10 status
    person steer --text More --delivery k2               => repeated
    admit s --text Less --delivery k2 --when-busy steer  => 6 other_input

steered:
    person steer --text More  => written
    again                     => written

heartbeat:
    heartbeat  => written
    again      => written

note:
    note - <<< x  => written
    again         => written

cancelled:
    person cancel --by ann --reason enough  => written
    again                                   => repeated
    person cancel --by ann                  => 6 cancelled
    person cancel --by bob --reason enough  => 6 cancelled
    settle                                  => ok
    again                                   => repeated
    person cancel --by bob                  => 6 cancelled

settled:
    message - <<< SAID         => ok
    settle                     => written
    again                      => repeated
    settle --status completed  => repeated
    settle --status failed     => 6 settled
    settle - <<< other         => 6 settled
    settle --reason because    => 6 settled
    deliver --begin            => ok
    deliver --receipt r        => ok
    again                      => repeated
    settle --status failed     => 6 settled

# Of an old attempt, what contradicts is fenced.
settled:
    message - <<< SAID          => ok
    takeover                    => ok
    settle                      => written
    again                       => repeated
    old settle --status failed  => 5 fenced

# Its open calls are closed with it, once.
settled:
    message - <<< CALLS                    => ok
    claim c1                               => ok
    settle --status failed --reason stuck  => written
    again                                  => repeated
    settle                                 => 6 settled

delivery:
    message - <<< SAID            => ok
    settle                        => ok
    deliver --begin               => written
    again                         => 7 delivery_begun
    deliver -- touch ran          => 7 delivery_begun
    person deliver --not-sent     => 4 publisher_alive
    deliver --receipt r           => written
    again                         => repeated
    deliver --receipt r --by ann  => repeated
    deliver --begin               => 10 delivered
    deliver -- touch ran          => 10 delivered
    deliver --not-sent            => 6 delivered
    deliver --waive --why old     => 6 delivered

# What a person said of one try is not said of the next; who began it says it of each.
delivery:
    message - <<< SAID                                => ok
    settle                                            => ok
    deliver --begin                                   => ok
    deliver --not-sent --by ann                       => written
    again                                             => repeated
    deliver --not-sent --by bob                       => 6 not_begun
    deliver --begin                                   => ok
    again                                             => 6 said_before
    deliver --not-sent --by ann --force --why looked  => written
    deliver --begin                                   => written
    deliver --not-sent                                => written
    again                                             => repeated
    deliver --begin                                   => ok
    again                                             => written
    deliver --receipt r                               => written
    again                                             => repeated

delivery:
    message - <<< SAID                    => ok
    settle                                => ok
    deliver --waive --why old --by ann    => written
    again                                 => repeated
    deliver --waive --why older --by ann  => 6 delivered
    deliver --not-sent                    => 6 delivered
    deliver --begin                       => 10 delivered

delivery:
    message - <<< SAID  => ok
    settle              => ok
    deliver -- true     => written
    again               => 10 delivered
    deliver --begin     => 10 delivered

# Evidence is kept once, and other evidence too: it contradicts nothing, since it answers nothing.
straggler:
    message - <<< CALLS        => ok
    claim c1                   => ok
    takeover                   => ok
    old result c1 - <<< late   => kept 5 straggler
    again                      => 5 straggler
    old result c1 - <<< later  => kept 5 straggler
    result c1 - <<< late       => kept 5 straggler
    again                      => 5 straggler
    result look --not-run      => ok
    result look - <<< late     => kept 5 straggler
    again                      => 5 straggler
    settle --status failed     => ok
    again                      => 5 straggler
    old result c1 - <<< late   => 5 straggler

straggler:
    message - <<< CALLS                                        => ok
    dispatch c1 --to farm                                      => ok
    person reconcile c1 --by ann --outcome applied - <<< paid  => ok
    result c1 - <<< paid                                       => kept 5 straggler
    again                                                      => 5 straggler

straggler:
    message - <<< SAID   => ok
    settle               => ok
    deliver --begin      => ok
    deliver --receipt r  => ok
    deliver --receipt q  => kept 5 straggler
    again                => 5 straggler
    deliver --receipt r  => ok

# The same owner gets its ticket again, and nobody else does.
recovered:
    message - <<< CALLS          => ok
    claim c1                     => ok
    die                          => ok
    owner                        => ok
    recover s --owner-pid OWNER  => written
    again                        => ticket
    recover s --owner-pid TEST   => 4 owner_alive
    recover s --owner-pid none   => 4 owner_alive
    die                          => ok
    owner                        => ok
    again                        => written
    again                        => ticket

# What is not parked is not let go on.
unparked:
    die                                                         => ok
    owner                                                       => ok
    recover s --owner-pid OWNER --policy once.json              => 14 ok
    recover s --owner-pid OWNER                                 => 14 status
    recover s --owner-pid OWNER --unpark --by ann --why go      => written
    again                                                       => 6 not_parked
    recover s:t --owner-pid OWNER --unpark --by bob --why stop  => 6 not_parked
"#;

/// Kinds that nobody asks for by name: `turnkeep` writes them as part of something else.
const UNASKED: &[(&str, &str)] = &[
    ("opened", "the genesis of a new journal, behind which nothing opens it again"),
    ("repaired", "what a writing command found of a torn tail, or a salvage of damage: gone with it"),
    ("attempt", "a number that `admit` and `recover` give out; asking again is told under `recovered`"),
    ("interrupted", "what `recover` or a settlement decides about a call that has no answer then"),
    ("parked", "what `recover` decides at the limit of attempts; the next one is 14"),
];

#[test]
fn each_kind_is_written_once_or_is_known_to_be_written_again() {
    let mut produced = BTreeSet::new();
    for (index, story) in STORIES.trim().split("\n\n").enumerate() {
        let mut lines = story.lines().filter(|line| !line.starts_with('#'));
        let kind = lines.next().and_then(|line| line.strip_suffix(':')).expect("KIND:");
        Story::begin(kind, index).play(lines);
        produced.insert(kind.to_owned());
    }
    let unasked: BTreeSet<String> = UNASKED.iter().map(|(kind, _)| (*kind).to_owned()).collect();
    assert!(produced.is_disjoint(&unasked), "both asked for and not");
    let all = kinds_of_the_format();
    let told: BTreeSet<String> = produced.union(&unasked).cloned().collect();
    assert_eq!(told, all, "a kind of the format without a story, or a story without a kind");
}

/// The kinds in the journal that holds every one of them; some of its lines are made to be unreadable.
fn kinds_of_the_format() -> BTreeSet<String> {
    let journal = include_str!("../../fixtures/every-kind/journal.jsonl");
    let kind = |line: &str| Some(line.split_once("\"kind\":\"")?.1.split_once('"')?.0.to_owned());
    journal.lines().filter_map(kind).collect()
}

/// What stands for a body of several words.
fn body(word: &str) -> String {
    let calls = [("c1", "bash"), ("c2", "deploy"), ("look", "look"), ("peek", "peek")];
    let calls = calls.map(|(id, tool)| (id, tool, json!({"path": "a"})));
    let told = |id: &str, said: &str| entry(id, None, &assistant(said, &[])).to_string();
    match word {
        "SAID" => assistant("Done.", &[]).to_string(),
        "CALLS" => assistant("", &calls).to_string(),
        "CUT" => assistant_ending("length", "", &calls).to_string(),
        "ENTRY" => told("e1", "Done."),
        "RETOLD" => told("e1", "Not done."),
        "SECOND" => told("e2", "Done."),
        text => text.to_owned(),
    }
}

struct Story {
    sandbox: Sandbox,
    kind: String,
    owner: Option<Owner>,
    /// The first ticket and the newest.
    tickets: (String, String),
    /// The newest act that wrote a record of the kind, and what it said.
    written: Option<(String, String)>,
    place: String,
}

impl Story {
    fn begin(kind: &str, index: usize) -> Self {
        let sandbox = Sandbox::in_memory();
        sandbox.policy(json!([
            {"tool": "look", "replay": "safe"},
            {"tool": "peek", "replay": "safe", "approval": "required"},
            {"tool": "deploy", "replay": "never", "approval": "required"},
        ]));
        let once = json!({"format": "turnkeep-policy/1", "rules": [], "limits": {"attempts": 1}});
        sandbox.write("once.json", once.to_string());
        let owner = Owner::start();
        let ticket = match kind {
            "admitted" => "s:t:1".to_owned(),
            _ => sandbox.admit(&owner, "s", &["--turn", "t", "--delivery", "k", "--text", "Hi"]),
        };
        let tickets = (ticket.clone(), ticket);
        let place = format!("story {index} of {kind}");
        Self { sandbox, kind: kind.to_owned(), owner: Some(owner), tickets, written: None, place }
    }

    fn play<'a>(mut self, lines: impl Iterator<Item = &'a str>) {
        let story = self.place.clone();
        for line in lines.map(str::trim) {
            let (act, outcome) = line.split_once(" => ").expect("ACT => OUTCOME");
            self.place = format!("{story}: {line}");
            self.act(act.trim(), outcome);
        }
        self.sandbox.run(["verify", "s"]).ok();
        assert!(self.written.is_some(), "{story}: no {} was written", self.kind);
        assert!(!self.sandbox.path("ran").exists(), "{story}: a gate let it run");
    }

    fn act(&mut self, act: &str, outcome: &str) {
        match act {
            "die" => drop(self.owner.take()),
            "owner" => self.owner = Some(Owner::start()),
            "takeover" => {
                self.owner = Some(Owner::start());
                self.tickets.1 = self.sandbox.recover(self.owner.as_ref().unwrap(), "s", &[]);
            }
            "again" => {
                let (act, _) = self.written.clone().expect("something was written");
                self.demand(&act, outcome);
            }
            _ => self.demand(act, outcome),
        }
    }

    /// Runs an act, with and without `--json` where it may not write.
    fn demand(&mut self, act: &str, outcome: &str) {
        let place = self.place.clone();
        let before = self.journal();
        let untouched = || assert!(before == self.journal(), "{place}: written");
        let exits = |json: bool, code: i32| {
            let ran = self.run(act, json);
            assert_eq!(ran.code(), code, "{place}\n--- stdout\n{}\n--- stderr\n{}", ran.stdout, ran.stderr);
            ran
        };
        let outcome: Vec<&str> = outcome.split(' ').collect();
        match outcome[..] {
            ["ok"] => drop(exits(false, 0)),
            [code, "ok"] => drop(exits(false, code.parse().unwrap())),
            ["written"] => {
                let said = exits(false, 0).stdout;
                self.check_written(&before, &said);
                self.written = Some((act.to_owned(), said));
            }
            ["repeated"] => {
                let mut receipt = self.receipt().expect("a receipt to repeat");
                receipt["repeated"] = json!(true);
                assert_eq!(exits(false, 0).json(), receipt, "{place}");
                assert_eq!(at(&exits(true, 0).json(), "/receipt"), &receipt, "{place}");
                untouched();
            }
            ["ticket"] => {
                assert_eq!(exits(false, 0).stdout, self.written.as_ref().unwrap().1, "{place}");
                untouched();
            }
            [code, "status"] => {
                let code = code.parse().unwrap();
                let status = exits(true, code).json();
                assert_eq!(status["schema"], "turnkeep.status/1", "{place}");
                assert_eq!(status["ticket"], Value::Null, "{place}");
                exits(false, code);
                untouched();
            }
            ["kept", code, name] => {
                self.check_error(&exits(true, code.parse().unwrap()), name);
                assert_eq!(self.check_written(&before, ""), 1, "{place}: one record");
                self.written = Some((act.to_owned(), String::new()));
            }
            [code, name] => {
                self.check_error(&exits(true, code.parse().unwrap()), name);
                exits(false, code.parse().unwrap());
                untouched();
            }
            _ => panic!("{place}: no such outcome"),
        }
    }

    fn run(&self, act: &str, json: bool) -> Ran {
        let (act, stdin) = act.split_once("<<<").unwrap_or((act, ""));
        let owner = self.owner.as_ref().map(|owner| owner.pid().to_string()).unwrap_or_default();
        let word = |word: &str| match word {
            "OWNER" => owner.clone(),
            "TEST" => std::process::id().to_string(),
            word => word.to_owned(),
        };
        let words: Vec<String> = act.split_whitespace().map(word).collect();
        let step = |words: &[&[String]]| [&["step".to_owned()], &words.concat()[..]].concat();
        let given = |name: &str, value: &str| [name.to_owned(), value.to_owned()];
        let mut words = match words[0].as_str() {
            "admit" | "recover" => words,
            "person" => step(&[&words[1..2], &given("--session", "s:t"), &words[2..]]),
            "old" => step(&[&given("--ticket", &self.tickets.0), &words[1..]]),
            _ => step(&[&given("--ticket", &self.tickets.1), &words]),
        };
        if json {
            words.insert(0, "--json".to_owned());
        }
        self.sandbox.cmd(words).stdin(body(stdin.trim())).go()
    }

    fn journal(&self) -> Vec<u8> {
        std::fs::read(self.sandbox.journal_path("s")).unwrap_or_default()
    }

    /// The receipt of the newest act that wrote one.
    fn receipt(&self) -> Option<Value> {
        serde_json::from_str(&self.written.as_ref()?.1).ok().filter(Value::is_object)
    }

    /// Something of the kind was written behind what was there, and what was said of it is true. How many records.
    fn check_written(&self, before: &[u8], said: &str) -> usize {
        let place = &self.place;
        let after = self.sandbox.journal_bytes("s");
        let behind = after.strip_prefix(before).unwrap_or_else(|| panic!("{place}: not behind"));
        let records = crate::kit::lines(behind);
        let kinds: Vec<String> = records.iter().map(|record| text(&record["kind"])).collect();
        assert!(kinds.contains(&self.kind), "{place}: wrote {kinds:?}");
        if let Ok(receipt @ Value::Object(_)) = serde_json::from_str(said) {
            let told = |record: &&Value| record["seq"] == receipt["seq"] && record["hash"] == receipt["hash"];
            assert!(records.iter().any(|record| told(&record)), "{place}: no such record: {receipt}");
            assert_eq!(receipt.get("repeated"), None, "{place}");
        }
        records.len()
    }

    fn check_error(&self, ran: &Ran, name: &str) {
        let error = ran.json();
        let told = (&error["schema"], &error["kind"], &error["exit"]);
        let wanted = (&json!("turnkeep.error/1"), &json!(name), &json!(ran.code()));
        assert_eq!(told, wanted, "{}: {error}", self.place);
        assert!(name != "answered" || ran.code() != 10 || error.get("answer").is_some(), "{error}");
    }
}
