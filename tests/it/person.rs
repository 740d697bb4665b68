//! A person's acts: reconcile, cancel, steer.

use crate::kit::{Owner, Sandbox, assistant, at, text};
use serde_json::json;

struct Held {
    sandbox: Sandbox,
    ticket: String,
    call: String,
    owner: Option<Owner>,
}

/// A claimed call that a policy holds.
fn held() -> Held {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "charge", "replay": "never", "unknown": "hold"}]));
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t"]);
    let seq = sandbox.announce(&ticket, &[("c1", "charge", json!({}))]);
    sandbox.step(&ticket, ["claim", "c1"]).ok();
    Held { sandbox, ticket, call: format!("{seq}.0"), owner: Some(owner) }
}

impl Held {
    fn die(mut self) -> Self {
        self.owner.take().unwrap().die();
        self
    }

    fn reconcile(&self, words: &[&str]) -> crate::kit::Ran {
        self.reconcile_in(words, "")
    }

    fn reconcile_in(&self, words: &[&str], stdin: &str) -> crate::kit::Ran {
        let words = [&["step", "reconcile", &self.call, "--by", "ann", "--session", "s"], words].concat();
        self.sandbox.cmd(words).stdin(stdin).go()
    }
}

#[test]
fn a_living_claimant_is_not_decided_about_over_its_head() {
    let held = held();
    held.sandbox.unchanged("s", || {
        held.reconcile(&["--outcome", "unknown", "--json"]).exits(4).error("claimant_alive");
        held.reconcile(&["--outcome", "unknown", "--force"]).exits(2);
    });
    held.reconcile(&["--outcome", "unknown", "--force", "--why", "it hangs"]).ok();
    let late = held.sandbox.step_in(&held.ticket, ["--json", "result", &held.call, "-"], "x").exits(5);
    late.error("straggler");
}

#[test]
fn applied_needs_content_and_answers() {
    let held = held().die();
    held.sandbox.unchanged("s", || {
        let ran = held.reconcile(&["--outcome", "applied", "--json"]).exits(2);
        ran.error("no_content");
        held.reconcile(&["--outcome", "maybe"]).exits(2);
    });
    let words = ["--outcome", "applied", "--receipt", "tx-1", "-"];
    let ran = held.reconcile_in(&words, "charged 5").ok();
    ran.says(&format!("session s, turn t, call {} (charge)", held.call)).repeat_is_told(&held, &words);
    let record = held.sandbox.last("s");
    assert_eq!(
        (&record["outcome"], &record["content"], &record["receipt"]),
        (&json!("applied"), &json!("charged 5"), &json!("tx-1"))
    );
    assert!(record.get("attempt").is_none());
    held.sandbox.unchanged("s", || {
        held.reconcile(&["--outcome", "not_applied"]).exits(6).says("stands");
        held.reconcile(&["--outcome", "unknown"]).exits(6);
        held.reconcile_in(&words, "charged 6").exits(6);
    });
}

trait Told {
    fn repeat_is_told(self, held: &Held, words: &[&str]);
}

impl Told for crate::kit::Ran {
    fn repeat_is_told(self, held: &Held, words: &[&str]) {
        let seq = self.seq();
        held.sandbox.unchanged("s", || {
            assert_eq!(held.reconcile_in(words, "charged 5").ok().repeated(), seq);
        });
    }
}

#[test]
fn not_applied_makes_it_a_call_that_was_never_claimed() {
    let held = held().die();
    let seq = held.reconcile(&["--outcome", "not_applied"]).ok().seq();
    held.sandbox.unchanged("s", || {
        assert_eq!(held.reconcile(&["--outcome", "not_applied"]).ok().repeated(), seq);
    });
    // Its result comes after all.
    held.sandbox.step_in(&held.ticket, ["result", &held.call, "-"], "x").exits(5);
    let owner = Owner::start();
    let ticket = held.sandbox.recover(&owner, "s", &[]);
    held.sandbox.step(&ticket, ["claim", &held.call]).ok();
    owner.die();
    held.sandbox.unchanged("s", || {
        let again = held.reconcile(&["--outcome", "not_applied", "--json"]).exits(6);
        again.error("said_before");
    });
    held.reconcile(&["--outcome", "not_applied", "--force", "--why", "looked again"]).ok();
    // Not yet claimed again behind a `not_applied`: another outcome may still be found.
    held.reconcile_in(&["--outcome", "applied", "-"], "it was").ok();
}

#[test]
fn what_was_never_claimed_or_is_answered_is_not_reconciled() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "s", "--text", "Hi"]).ok().line();
    let seq = sandbox.announce(&ticket, &[("c1", "bash", json!({}))]);
    let call = format!("{seq}.0");
    let words =
        ["--json", "step", "reconcile", &call, "--by", "ann", "--session", "s", "--outcome", "unknown"];
    sandbox.unchanged("s", || sandbox.run(words).exits(6).error("never_claimed"));
    sandbox.step(&ticket, ["claim", "c1"]).ok();
    sandbox.step(&ticket, ["result", "c1"]).ok();
    sandbox.unchanged("s", || sandbox.run(words).exits(6).error("answered"));
    sandbox.unchanged("s", || {
        let unknown = ["step", "reconcile", "99.0", "--by", "ann", "--session", "s", "--outcome", "unknown"];
        sandbox.run(unknown).exits(8);
    });
}

#[test]
fn a_dispatched_call_is_reconciled_whoever_lives() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "s", "--text", "Hi"]).ok().line();
    sandbox.announce(&ticket, &[("c1", "bash", json!({}))]);
    sandbox.step(&ticket, ["dispatch", "c1", "--to", "farm"]).ok();
    let words = ["step", "reconcile", "c1", "--by", "ann", "--session", "s", "--outcome", "not_applied"];
    sandbox.run(words).ok();
    sandbox.step(&ticket, ["dispatch", "c1", "--to", "farm"]).ok();
}

#[test]
fn nobody_is_not_alive() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "s", "--text", "Hi", "--owner-pid", "none"]).ok().line();
    sandbox.announce(&ticket, &[("c1", "bash", json!({}))]);
    sandbox.step(&ticket, ["claim", "c1"]).ok();
    sandbox.run(["step", "reconcile", "c1", "--by", "ann", "--session", "s", "--outcome", "unknown"]).ok();
}

#[test]
fn cancel_stops_the_turn_once() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "s", "--turn", "t", "--text", "Hi"]).ok().line();
    sandbox.announce(&ticket, &[("c1", "bash", json!({})), ("c2", "bash", json!({}))]);
    sandbox.step(&ticket, ["claim", "c1"]).ok();
    let words = ["step", "cancel", "--by", "ann", "--reason", "enough", "--session", "s"];
    let ran = sandbox.run(words).ok();
    let seq = ran.seq();
    ran.says("session s, turn t");
    sandbox.unchanged("s", || {
        assert_eq!(sandbox.run(words).ok().repeated(), seq);
        sandbox
            .run(["--json", "step", "cancel", "--by", "bob", "--session", "s"])
            .exits(6)
            .error("cancelled");
        sandbox.step(&ticket, ["claim", "c2"]).exits(6);
        sandbox.step(&ticket, ["dispatch", "c2", "--to", "x"]).exits(6);
        let env = sandbox.cmd(["step", "cancel", "--by", "ann"]).env("TURNKEEP_TICKET", &ticket);
        env.go().exits(2);
    });
    // What was claimed may still answer.
    sandbox.step_in(&ticket, ["result", "c1", "-"], "out").ok();
    sandbox.step(&ticket, ["settle"]).ok();
    assert_eq!(sandbox.last("s")["status"], "cancelled");
    sandbox.unchanged("s", || {
        sandbox
            .run(["--json", "step", "cancel", "--by", "ann", "--session", "s"])
            .exits(6)
            .error("no_such_turn");
        sandbox.run(words.map(|word| if word == "s" { "s:t" } else { word })).ok().repeated();
    });
}

#[test]
fn steer_is_idempotent_by_its_key() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "s", "--turn", "t", "--delivery", "k", "--text", "Hi"]).ok().line();
    let steer = |more: &[&str]| sandbox.run([&["step", "steer", "--session", "s"], more].concat());
    let seq = steer(&["--text", "More", "--delivery", "k2"]).ok().seq();
    sandbox.unchanged("s", || {
        assert_eq!(steer(&["--text", "More", "--delivery", "k2"]).ok().repeated(), seq);
        steer(&["--text", "Other", "--delivery", "k2", "--json"]).exits(6).error("other_input");
        steer(&["--text", "Hi", "--delivery", "k"]).exits(6);
        steer(&["--json"]).exits(2).error("no_input");
        steer(&["--text", ""]).exits(2);
    });
    // Without a key it never repeats.
    let first = steer(&["--text", "Again"]).ok().seq();
    assert!(steer(&["--text", "Again"]).ok().seq() > first);
    let ran = sandbox.cmd(["step", "steer", "--session", "s", "-"]).stdin("{\"x\":1}").go().ok();
    assert_eq!(sandbox.journal("s")[usize::try_from(ran.seq()).unwrap()]["input"], json!({"x": 1}));
    let status = sandbox.step(&ticket, ["--json", "heartbeat"]).ok().json();
    assert_eq!(at(&status, "/steered/0/answered"), false);
    // A web handler may ask again when the turn is long closed.
    sandbox.step(&ticket, ["settle"]).ok();
    sandbox.unchanged("s", || {
        assert_eq!(steer(&["--text", "More", "--delivery", "k2"]).ok().repeated(), seq);
        steer(&["--text", "Other", "--delivery", "k2"]).exits(6);
        steer(&["--text", "New", "--delivery", "k3"]).exits(6);
    });
}

#[test]
fn a_ticket_given_by_hand_names_the_turn_too() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(["admit", "s", "--text", "Hi"]).ok().line();
    let status = sandbox.step(&ticket, ["--json", "steer", "--text", "More"]).ok().json();
    assert_eq!(status["state"], "open");
    sandbox.step(&ticket, ["cancel", "--by", "ann"]).ok();
}

#[test]
fn a_parked_turn_accepts_persons_acts_and_results_of_live_claims() {
    let sandbox = Sandbox::new();
    let policy = json!({"format": "turnkeep-policy/1", "rules": [], "limits": {"attempts": 1}});
    let policy = sandbox.write("p.json", policy.to_string());
    let policy = policy.to_str().unwrap();
    let words = ["admit", "s", "--turn", "t", "--text", "Hi", "--owner-pid", "none"];
    let ticket = sandbox.run(words).ok().line();
    sandbox.run(["--policy", policy, "recover", "s", "--owner-pid", "none"]).exits(14);
    assert_eq!(sandbox.last("s")["kind"], "parked");
    sandbox.unchanged("s", || {
        sandbox.step_in(&ticket, ["message", "-"], assistant("x", &[]).to_string()).exits(6).says("parked");
        sandbox.step(&ticket, ["settle"]).exits(6);
        sandbox.step(&ticket, ["claim", "x", "--tool", "y"]).exits(6);
        sandbox.step(&ticket, ["heartbeat"]).exits(6);
    });
    sandbox.step_in(&ticket, ["note", "-"], "x").ok();
    sandbox.run(["step", "steer", "--text", "More", "--session", "s"]).ok();
    let cancelled = sandbox.run(["--json", "step", "cancel", "--by", "ann", "--session", "s"]).ok().json();
    assert_eq!(cancelled["state"], "parked");
    assert_eq!(at(&cancelled, "/next/do"), "unpark");
    assert!(text(at(&cancelled, "/next/why")).contains("attempt"), "{cancelled}");
}

/// Who acts over the head of a living claimant has to say why, and it is kept.
#[test]
fn a_forced_denial_keeps_its_reason() {
    let sandbox = Sandbox::new();
    sandbox.policy(json!([{"tool": "look", "replay": "safe", "approval": "required"}]));
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &[]);
    let call = format!("{}.0", sandbox.announce(&ticket, &[("c1", "look", json!({}))]));
    let person = ["--by", "ada", "--session", "s"];
    sandbox.run(["step", "approve", &call].iter().chain(&person)).ok();
    sandbox.step(&ticket, ["claim", &call]).ok();
    let deny = ["step", "deny", &call];
    sandbox.run(deny.iter().chain(&person)).exits(4);
    let forced = ["--force", "--why", "stuck"];
    sandbox.run(deny.iter().chain(&person).chain(&forced)).ok();
    let journal = sandbox.journal("s");
    let denied = journal.iter().rfind(|record| record["kind"] == "approval").unwrap();
    assert_eq!((&denied["decision"], &denied["reason"]), (&json!("denied"), &json!("stuck")));
    assert_eq!(
        sandbox.run(deny.iter().chain(&person).chain(&forced)).ok().repeated(),
        denied["seq"].as_u64().unwrap()
    );
}

#[test]
fn a_cancelled_turn_says_so() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    sandbox.admit(&owner, "s", &[]);
    sandbox.run(["step", "cancel", "--by", "ada", "--session", "s"]).ok();
    let status = sandbox.run(["inspect", "s", "--json"]).ok().json();
    assert_eq!(
        (&status["next"]["do"], &status["next"]["why"]),
        (&json!("settle"), &json!("the turn was cancelled"))
    );
    let busy = ["admit", "s", "--text", "x", "--when-busy", "steer", "--owner-pid", "none"];
    let ran = sandbox.run(busy).exits(4);
    assert!(ran.stderr.contains("cancelled") && !ran.stderr.contains("--when-busy"), "{}", ran.stderr);
}

/// A bot that knows nothing but its key asks with it.
#[test]
fn every_view_of_a_turn_is_found_by_its_delivery_key() {
    let sandbox = Sandbox::new();
    let owner = Owner::start();
    let ticket = sandbox.admit(&owner, "s", &["--turn", "t1", "--delivery", "k1"]);
    sandbox.announce(&ticket, &[("c1", "look", json!({}))]);
    for place in [&[][..], &["s"]] {
        let ask =
            |more: &[&str]| sandbox.run([&["inspect"], place, &["--delivery", "k1"], more].concat()).ok();
        assert_eq!(ask(&["--next"]).stdout.lines().next(), Some("run_calls"));
        assert_eq!(ask(&["--call", "c1", "--json"]).json()["turn"], "t1");
        assert_eq!(ask(&["--json"]).json()["turn"], "t1");
    }
    sandbox.run(["inspect", "--delivery", "k2", "--next"]).exits(8);
    sandbox.run(["inspect", "--delivery", "k1", "--records"]).exits(2);
}
