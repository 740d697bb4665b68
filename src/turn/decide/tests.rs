//! The decision table row by row, and every combination of its inputs against an oracle that is written down as the
//! table itself: a list of rows, of which the first that fits decides.

use super::*;
use crate::record::{ApprovalRule, CallRef, ReconciledOutcome, UnknownRule};
use crate::testkit::{Kit, at, process, rule_for};
use crate::turn::{Answer, AnswerKind, Approved, Claim, Dispatch, Mark};

/// What decides about a call, in the words of the table.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "the table asks yes-or-no questions")]
struct Case {
    answered: bool,
    cut_off: bool,
    dispatched: bool,
    claim: Claimed,
    cancelled: bool,
    stored: u8,
    current: u8,
    approval_stored: bool,
    approval_now: bool,
    word: Word,
    hold_stored: bool,
    hold_now: bool,
    declared: bool,
    nested: Nested,
    lost: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Claimed {
    Never,
    Plain,
    RunnerLives,
    RunnerDead,
    AfterNotApplied,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Word {
    Nobody,
    Granted,
    Expired,
    Denied,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Nested {
    Alone,
    Child,
    ParentOfSafe,
    ParentOfUnsafe,
    ParentOfUnsafeNeverClaimed,
}

const NEVER: u8 = 0;
const KEYED: u8 = 1;
const SAFE: u8 = 2;

impl Case {
    fn claimed(&self) -> bool {
        matches!(self.claim, Claimed::Plain | Claimed::RunnerLives | Claimed::RunnerDead) || self.lost
    }
    fn least(&self) -> u8 {
        let counts_as_never = self.lost || self.nested == Nested::ParentOfUnsafe;
        if counts_as_never { NEVER } else { self.stored.min(self.current) }
    }
    fn none_valid(&self) -> bool {
        (self.approval_stored || self.approval_now) && self.word != Word::Granted
    }
}

type Row = (&'static str, fn(&Case) -> bool, Decision);

/// Table 4.2; the rule about nested calls stands where its two exceptions leave it.
const TABLE: &[Row] = &[
    ("1", |c| c.answered, Decision::Redeliver),
    ("2", |c| c.cut_off, Decision::NotRun),
    ("3", |c| c.dispatched, Decision::Await),
    ("4", |c| c.claim == Claimed::RunnerLives, Decision::Await),
    ("nested, claimed", |c| c.nested == Nested::Child && c.claimed(), Decision::Interrupt),
    ("nested", |c| c.nested == Nested::Child, Decision::NotRun),
    ("5", |c| c.claimed() && c.cancelled, Decision::Interrupt),
    ("6, denied", |c| c.claimed() && c.least() > NEVER && c.word == Word::Denied, Decision::Interrupt),
    ("6", |c| c.claimed() && c.least() > NEVER && c.none_valid(), Decision::Ask),
    ("7", |c| c.claimed() && c.least() == SAFE, Decision::Rerun),
    ("8", |c| c.claimed() && c.least() == KEYED, Decision::Rerun),
    ("9", |c| c.claimed() && (c.hold_stored || c.hold_now || c.declared), Decision::Hold),
    ("10", |c| c.claimed(), Decision::Interrupt),
    ("11", |c| c.cancelled, Decision::NotRun),
    ("12", |c| c.word == Word::Denied, Decision::NotRun),
    ("13", |c| c.none_valid(), Decision::Ask),
    ("14", |_| true, Decision::Run),
];

fn oracle(case: &Case) -> (&'static str, Decision) {
    let (row, _, decision) = TABLE.iter().find(|(_, fits, _)| fits(case)).expect("the last row fits all");
    (row, *decision)
}

const REPLAYS: [Replay; 3] = [Replay::Never, Replay::Keyed, Replay::Safe];
const BOTH: [bool; 2] = [false, true];

fn mark() -> Mark {
    Mark { seq: 9, hash: crate::record::Hash::none(), at: at(0), offset: 900 }
}

fn claim_by(runner: Option<u64>) -> Claim {
    let runner = runner.map(process);
    Claim { mark: mark(), attempt: 1, runner, link: None, ended: false, repeated: false }
}

/// Turns with a call to decide about, and what stands around it; in each the call is the one of this name.
fn turns(kit: &Kit, nested: Nested) -> (Turn, CallRef) {
    let mut kit = kit.clone();
    let outer = kit.push(kit.intent("outer", "tool", None));
    let outer = CallRef { seq: outer.seq, position: 0 };
    let inner_tool = if nested == Nested::ParentOfSafe { "safe" } else { "never" };
    if nested == Nested::Alone {
        return (kit.turn().clone(), outer);
    }
    let tool = if nested == Nested::Child { "tool" } else { inner_tool };
    let inner = kit.push(kit.intent("inner", tool, Some(outer)));
    let inner = CallRef { seq: inner.seq, position: 0 };
    if matches!(nested, Nested::ParentOfSafe | Nested::ParentOfUnsafe) {
        kit.claim(inner);
    }
    (kit.turn().clone(), if nested == Nested::Child { inner } else { outer })
}

/// The policy of a case: its own tool, and tools of known worth for nested calls.
fn policy_of(current: Replay, approval: bool, hold: bool) -> Policy {
    let approval = if approval { r#","approval":"required""# } else { "" };
    let hold = if hold { r#","unknown":"hold""# } else { "" };
    crate::testkit::policy(&format!(
        r#"{{"format":"turnkeep-policy/1","rules":[{{"tool":"safe","replay":"safe"}},
            {{"tool":"tool","replay":"{current}"{approval}{hold}}}]}}"#
    ))
}

fn sight(owner: &Owner) -> Sighting {
    if owner.pid == 1 { Sighting::Alive } else { Sighting::Gone }
}

fn set(turn: &mut Turn, name: CallRef, case: &Case) {
    let mark = mark();
    turn.cancelled =
        case.cancelled.then(|| crate::turn::Cancelled { mark: mark.clone(), by: "ann".into(), reason: None });
    let index = turn.index_of(name).expect("the call");
    let call = &mut turn.calls[index];
    call.answer = case.answered.then(|| Answer { mark: mark.clone(), attempt: 1, kind: AnswerKind::Result });
    call.source = match (case.cut_off, case.declared) {
        (true, _) => Source::CutOff,
        (false, true) => Source::Declared,
        (false, false) => Source::Model,
    };
    call.dispatch = case.dispatched.then(|| Dispatch {
        mark: mark.clone(),
        attempt: 1,
        to: "farm".into(),
        receipt: None,
    });
    call.claim = match case.claim {
        Claimed::Never | Claimed::AfterNotApplied => None,
        Claimed::Plain => Some(claim_by(None)),
        Claimed::RunnerLives => Some(claim_by(Some(1))),
        Claimed::RunnerDead => Some(claim_by(Some(2))),
    };
    call.not_applied = (case.claim == Claimed::AfterNotApplied).then(|| mark.clone());
    call.replay = REPLAYS[usize::from(case.stored)];
    call.approval = case.approval_stored.then_some(ApprovalRule::Required);
    call.unknown = case.hold_stored.then_some(UnknownRule::Hold);
    let decision = match case.word {
        Word::Nobody => None,
        Word::Granted | Word::Expired => Some(ApprovalDecision::Granted),
        Word::Denied => Some(ApprovalDecision::Denied),
    };
    call.approved = decision.map(|decision| Approved {
        mark,
        decision,
        by: "ann".into(),
        expires: (case.word == Word::Expired).then(|| at(50)),
        reason: None,
    });
    call.lost = case.lost;
}

/// Every combination with this nesting; the two who know it well are asked and have to agree.
fn all_combinations(nested: Nested) -> u64 {
    let mut count = 0;
    let (mut turn, name) = turns(&Kit::new(), nested);
    for (current, approval_now, hold_now) in
        product3([NEVER, KEYED, SAFE].as_slice(), BOTH.as_slice(), BOTH.as_slice())
    {
        let policy = policy_of(REPLAYS[usize::from(current)], approval_now, hold_now);
        let now = Now { at: at(100), policy: &policy, look: &sight };
        for (stored, word, claim) in product3(
            &[NEVER, KEYED, SAFE],
            &[Word::Nobody, Word::Granted, Word::Expired, Word::Denied],
            &[
                Claimed::Never,
                Claimed::Plain,
                Claimed::RunnerLives,
                Claimed::RunnerDead,
                Claimed::AfterNotApplied,
            ],
        ) {
            for bits in 0..256_u32 {
                let bit = |at: u32| bits & (1 << at) != 0;
                let case = Case {
                    answered: bit(0),
                    cut_off: bit(1),
                    dispatched: bit(2),
                    claim,
                    cancelled: bit(3),
                    stored,
                    current,
                    approval_stored: bit(4),
                    approval_now,
                    word,
                    hold_stored: bit(5),
                    hold_now,
                    declared: bit(6),
                    nested,
                    lost: bit(7),
                };
                set(&mut turn, name, &case);
                let call = turn.call(name).expect("the call");
                let (row, expected) = oracle(&case);
                let (decision, _) =
                    decide(&turn, call, &now, now.rule_of(call), stored_replay(&turn, call, &now));
                assert_eq!(decision, expected, "row {row}: {case:?}");
                count += 1;
            }
        }
    }
    count
}

fn product3<A: Copy, B: Copy, C: Copy>(a: &[A], b: &[B], c: &[C]) -> Vec<(A, B, C)> {
    a.iter().flat_map(|a| b.iter().flat_map(move |b| c.iter().map(move |c| (*a, *b, *c)))).collect()
}

#[test]
fn all_combinations_of_a_plain_call() {
    assert_eq!(all_combinations(Nested::Alone), 12 * 60 * 256);
}

#[test]
fn all_combinations_of_a_nested_call() {
    all_combinations(Nested::Child);
}

#[test]
fn all_combinations_of_a_call_around_a_safe_one() {
    all_combinations(Nested::ParentOfSafe);
}

#[test]
fn all_combinations_of_a_call_around_an_unsafe_one() {
    all_combinations(Nested::ParentOfUnsafe);
}

#[test]
fn all_combinations_of_a_call_around_one_that_was_never_claimed() {
    all_combinations(Nested::ParentOfUnsafeNeverClaimed);
}

/// How bold a decision about a claimed call is: whether anything may happen again.
fn boldness(decision: Decision) -> u8 {
    match decision {
        Decision::Rerun | Decision::Run => 2,
        Decision::Ask => 1,
        _ => 0,
    }
}

#[test]
fn the_current_policy_can_veto_and_never_upgrade() {
    for (stored, claimed, asked_for) in product3(&REPLAYS, &BOTH, &BOTH) {
        let mut kit = Kit::new();
        kit.policy = rule_for("tool", stored, asked_for, false);
        let call = kit.ask_one("tool");
        if claimed {
            kit.push(kit.approval(call, ApprovalDecision::Granted));
            kit.push(kit.run_by(call, 2));
        }
        let under_own = boldness(kit.decision(call));
        let mut before = None;
        for current in REPLAYS {
            for (approval, hold) in [(false, false), (true, false), (false, true), (true, true)] {
                kit.policy = rule_for("tool", current, approval, hold);
                let decision = kit.decision(call);
                assert!(boldness(decision) <= under_own, "{stored} {current} {decision}");
                if current > stored && !approval && !hold {
                    assert_eq!(boldness(decision), under_own, "a lower policy only: {stored} {current}");
                }
                if !approval && !hold {
                    assert!(before.is_none_or(|before| before <= boldness(decision)), "{stored} {current}");
                    before = Some(boldness(decision));
                }
            }
        }
        kit.policy = rule_for("another", Replay::Safe, false, false);
        if claimed {
            assert_eq!(kit.decision(call), Decision::Interrupt, "a tool that is not listed is never");
        }
    }
}

#[test]
fn row_01_an_answer_is_redelivered_whatever_the_policies_say() {
    let mut kit = Kit::new();
    let calls = kit.ask(&["a:safe", "b:never", "c:never", "d:never", "e:never"]);
    for call in &calls[..4] {
        kit.claim(*call);
    }
    kit.answer(calls[0], "42");
    kit.push(kit.interrupted(calls[1]));
    kit.push(kit.reconciled(calls[2], ReconciledOutcome::Applied));
    kit.push(kit.reconciled(calls[3], ReconciledOutcome::Unknown));
    kit.push(kit.not_run(calls[4], crate::record::NotRunWhy::Refused));
    kit.policy = Policy::built_in();
    for call in calls {
        assert_eq!(kit.decision(call), Decision::Redeliver, "{call}");
    }
}

#[test]
fn row_02_a_call_of_a_message_that_was_cut_off_is_not_run() {
    for stop in ["length", "error", "aborted", "anything"] {
        let mut kit = Kit::new();
        let mark = kit.push(kit.message(&crate::testkit::model("x", stop, &["c:safe"])));
        assert_eq!(kit.decision(CallRef { seq: mark.seq, position: 0 }), Decision::NotRun, "{stop}");
    }
}

#[test]
fn row_03_a_dispatched_call_is_awaited_whoever_lives_and_whatever_happened_to_the_turn() {
    let mut kit = Kit::new();
    let call = kit.ask_one("safe");
    kit.push(kit.dispatched(call, None));
    assert_eq!(kit.decision(call), Decision::Await);
    kit.push(kit.cancelled());
    assert_eq!(kit.decision(call), Decision::Await);
    kit.push(kit.reconciled(call, ReconciledOutcome::NotApplied));
    assert_eq!(kit.decision(call), Decision::NotRun, "cancelled, and not dispatched any more");
}

#[test]
fn row_04_a_call_whose_runner_lives_is_awaited() {
    let mut kit = Kit::new();
    let call = kit.ask_one("safe");
    kit.push(kit.run_by(call, 77));
    assert_eq!(kit.decision(call), Decision::Rerun, "the runner is gone");
    kit.living.push(77);
    assert_eq!(kit.decision(call), Decision::Await);
}

#[test]
fn row_04_the_lease_speaks_for_a_runner_elsewhere() {
    let mut kit = Kit::new();
    let call = kit.ask_one("safe");
    kit.push(kit.run_by(call, 9001));
    let decide_at = |kit: &Kit, seconds: i64| {
        kit.now(seconds, |now| rule(kit.turn(), kit.at_ref(call).expect("the call"), now).decision)
    };
    assert_eq!(decide_at(&kit, 119), Decision::Await);
    assert_eq!(decide_at(&kit, 120), Decision::Rerun);
}

#[test]
fn row_04_ends_with_the_claim() {
    let mut kit = Kit::new();
    let call = kit.ask_one("safe");
    kit.push(kit.run_by(call, 77));
    kit.recover(&[(call, Decision::Rerun)]);
    kit.living.push(77);
    assert_eq!(kit.decision(call), Decision::Rerun, "its result would be a straggler");
}

#[test]
fn row_05_a_claimed_call_of_a_cancelled_turn_is_interrupted() {
    let mut kit = Kit::new();
    let call = kit.ask_one("safe");
    kit.claim(call);
    kit.push(kit.cancelled());
    assert_eq!(kit.decision(call), Decision::Interrupt);
}

#[test]
fn row_06_a_claimed_call_that_could_be_rerun_asks_again() {
    for tool in ["safe_ask", "keyed_ask"] {
        let mut kit = Kit::new();
        let call = kit.ask_one(tool);
        assert_eq!(kit.decision(call), Decision::Ask);
        kit.push(kit.approval(call, ApprovalDecision::Granted));
        assert_eq!(kit.decision(call), Decision::Run);
        kit.claim(call);
        assert_eq!(kit.decision(call), Decision::Ask, "the claim used the approval up");
        let mut denied = kit.clone();
        kit.push(kit.approval(call, ApprovalDecision::Granted));
        assert_eq!(kit.decision(call), Decision::Rerun);
        denied.push(denied.approval(call, ApprovalDecision::Denied));
        assert_eq!(denied.decision(call), Decision::Interrupt);
    }
}

#[test]
fn row_06_an_approval_for_a_time_is_valid_for_that_time() {
    let mut kit = Kit::new();
    let call = kit.ask_one("safe_ask");
    let granted = kit.approval(call, ApprovalDecision::Granted);
    kit.push(crate::record::Approval { expires: Some(at(60)), ..granted });
    kit.claim(call);
    let decide_at = |seconds: i64| {
        kit.now(seconds, |now| rule(kit.turn(), kit.at_ref(call).expect("the call"), now).decision)
    };
    assert_eq!((decide_at(59), decide_at(60)), (Decision::Rerun, Decision::Ask));
}

#[test]
fn rows_07_and_08_rerun_what_both_policies_let_run_again() {
    for (stored, current, expected) in [
        ("safe", Replay::Safe, Decision::Rerun),
        ("safe", Replay::Keyed, Decision::Rerun),
        ("keyed", Replay::Safe, Decision::Rerun),
        ("safe", Replay::Never, Decision::Interrupt),
        ("never", Replay::Safe, Decision::Interrupt),
    ] {
        let mut kit = Kit::new();
        let call = kit.ask_one(stored);
        kit.claim(call);
        kit.policy = rule_for(stored, current, false, false);
        assert_eq!(kit.decision(call), expected, "{stored} {current}");
    }
}

#[test]
fn row_09_holds_where_a_rule_says_so_or_no_model_can_be_told() {
    let mut kit = Kit::new();
    let calls = kit.ask(&["a:hold", "b:never"]);
    let intent = kit.push(kit.intent("i", "never", None));
    let declared = CallRef { seq: intent.seq, position: 0 };
    for call in [calls[0], calls[1], declared] {
        kit.claim(call);
    }
    assert_eq!(kit.decision(calls[0]), Decision::Hold);
    assert_eq!(kit.decision(declared), Decision::Hold);
    kit.policy = rule_for("never", Replay::Never, false, true);
    assert_eq!(kit.decision(calls[0]), Decision::Hold, "the stored rule stands");
    assert_eq!(kit.decision(calls[1]), Decision::Hold, "the current rule is asked too");
}

#[test]
fn row_10_interrupts_what_is_left() {
    let mut kit = Kit::new();
    let call = kit.ask_one("never");
    kit.claim(call);
    assert_eq!(kit.decision(call), Decision::Interrupt);
}

#[test]
fn row_11_what_never_began_in_a_cancelled_turn_is_not_run() {
    let mut kit = Kit::new();
    let call = kit.ask_one("safe");
    kit.push(kit.cancelled());
    assert_eq!(kit.decision(call), Decision::NotRun);
}

#[test]
fn row_12_what_was_denied_is_not_run() {
    let mut kit = Kit::new();
    let call = kit.ask_one("ask");
    kit.push(kit.approval(call, ApprovalDecision::Denied));
    assert_eq!(kit.decision(call), Decision::NotRun);
}

#[test]
fn row_13_asks_where_the_stored_or_the_current_rule_does() {
    let mut kit = Kit::new();
    let calls = kit.ask(&["a:ask", "b:never"]);
    kit.policy = rule_for("never", Replay::Never, true, false);
    assert_eq!(kit.decision(calls[0]), Decision::Ask);
    assert_eq!(kit.decision(calls[1]), Decision::Ask);
}

#[test]
fn row_14_what_was_never_claimed_runs() {
    let mut kit = Kit::new();
    let call = kit.ask_one("never");
    assert_eq!(kit.decision(call), Decision::Run);
    kit.claim(call);
    kit.push(kit.reconciled(call, ReconciledOutcome::NotApplied));
    assert_eq!(kit.decision(call), Decision::Run, "claimed means since the last not_applied");
}

#[test]
fn decisions_are_per_call_and_finished_siblings_are_kept() {
    let mut kit = Kit::new();
    let calls = kit.ask(&["1:safe", "2:never", "3:never", "4:safe"]);
    for call in [calls[0], calls[1], calls[3]] {
        kit.claim(call);
    }
    kit.answer(calls[0], "A");
    let decided: Vec<Decision> = calls.iter().map(|call| kit.decision(*call)).collect();
    assert_eq!(decided, [Decision::Redeliver, Decision::Interrupt, Decision::Run, Decision::Rerun]);
}

#[test]
fn a_call_around_an_unsafe_one_counts_as_never_however_deep_it_is_nested() {
    let mut kit = Kit::new();
    let outer = kit.ask_one("safe");
    kit.claim(outer);
    let nested = |kit: &mut Kit, tool: &str, parent: CallRef| {
        let mark = kit.push(kit.intent("n", tool, Some(parent)));
        CallRef { seq: mark.seq, position: 0 }
    };
    let inner = nested(&mut kit, "safe", outer);
    kit.claim(inner);
    assert_eq!(kit.decision(outer), Decision::Rerun);
    let innermost = nested(&mut kit, "never", inner);
    assert_eq!(kit.decision(outer), Decision::Rerun, "nobody claimed it");
    kit.claim(innermost);
    assert_eq!(kit.decision(outer), Decision::Interrupt);
    kit.answer(innermost, "done");
    assert_eq!(kit.decision(outer), Decision::Interrupt, "it ran, and would run again under another key");
}

/// Operators and models read why.
#[test]
fn a_ruling_says_what_it_rests_on() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:keyed", "b:safe", "c:safe", "d:safe"]);
    kit.claim(asked[0]);
    kit.claim(asked[1]);
    kit.claim(asked[2]);
    kit.recover(&[(asked[2], Decision::Hold)]);
    kit.push(kit.reconciled(asked[2], crate::record::ReconciledOutcome::NotApplied));
    let why = |call: CallRef| kit.now(0, |now| rule(kit.turn(), kit.at_ref(call).expect("a call"), now)).why;
    for (call, said, unsaid) in [
        (asked[0], "with the same key", "never claimed"),
        (asked[1], "claimed", "same key"),
        (asked[2], "it was not applied", "never claimed"),
        (asked[3], "never claimed", "not applied"),
    ] {
        assert!(why(call).contains(said) && !why(call).contains(unsaid), "{call}: {}", why(call));
    }
}

#[test]
fn a_nested_call_that_is_not_safe_any_more_makes_its_parent_never() {
    let mut kit = Kit::new();
    let outer = kit.ask_one("safe");
    kit.claim(outer);
    let inner = kit.push(kit.intent("n", "inner", Some(outer)));
    kit.claim(CallRef { seq: inner.seq, position: 0 });
    let mut policy =
        String::from(r#"{"format":"turnkeep-policy/1","rules":[{"tool":"safe","replay":"safe"}"#);
    policy.push_str("]}");
    kit.policy = crate::testkit::policy(&policy);
    assert_eq!(kit.decision(outer), Decision::Interrupt);
}

#[test]
fn the_lease_replaces_an_owner_that_cannot_be_seen_or_that_asked_for_it() {
    let mut kit = Kit::empty();
    kit.push(kit.admitted("go"));
    let held = |kit: &Kit, pid: u64, lease_ms: Option<u64>, seconds: i64| {
        let mut kit = kit.clone();
        kit.living.push(4001);
        kit.push(crate::record::Attempt {
            owner: (pid > 0).then(|| process(pid)),
            lease_ms,
            ..kit.attempt(1)
        });
        kit.now(seconds, |now| now.holder(kit.turn().current().expect("an attempt")))
    };
    assert_eq!(held(&kit, 4001, None, 999), Holder::Alive, "no lease was asked for");
    assert_eq!(held(&kit, 4001, Some(60_000), 59), Holder::Alive);
    assert_eq!(held(&kit, 4001, Some(60_000), 60), Holder::Lapsed);
    assert_eq!(held(&kit, 4002, Some(60_000), 1), Holder::Gone, "dead at once");
    assert_eq!(held(&kit, 9001, None, 119), Holder::Alive);
    assert_eq!(held(&kit, 9001, None, 120), Holder::Gone);
    assert_eq!(held(&kit, 0, None, 9999), Holder::Nobody);
}

#[test]
fn a_heartbeat_renews_a_lease_and_makes_none() {
    let mut kit = Kit::new();
    kit.living.push(4001);
    kit.push(kit.heartbeat(1));
    let holder = kit.now(999, |now| now.holder(kit.turn().current().expect("an attempt")));
    assert_eq!(holder, Holder::Alive, "no lease was asked for, so none ends a living owner");
    kit.push(crate::record::Attempt { lease_ms: Some(60_000), ..kit.attempt(2) });
    kit.push(kit.recovered(&[]));
    kit.living.push(4002);
    kit.draft.at = at(50);
    kit.push(kit.heartbeat(30_000));
    let holder = |seconds| kit.now(seconds, |now| now.holder(kit.turn().current().expect("an attempt")));
    assert_eq!(
        (holder(79), holder(80)),
        (Holder::Alive, Holder::Lapsed),
        "the lease that the heartbeat says"
    );
}

/// The policies are told as they are, and what else makes a call count as never beside them.
#[test]
fn why_a_call_counts_as_never_is_told() {
    let why = |nested: Option<&str>, lost: bool| {
        let mut kit = Kit::new();
        let outer = kit.ask_one("safe");
        kit.claim(outer);
        if let Some(policy) = nested {
            kit.push(kit.intent("n", policy, Some(outer)));
            let inner = kit.turn().calls[1].r#ref;
            kit.claim(inner);
        }
        let mut call = kit.at_ref(outer).expect("a call").clone();
        call.lost = lost;
        kit.now(0, |now| rule(kit.turn(), &call, now).why)
    };
    for (nested, lost, beside) in [
        (None, false, None),
        (Some("safe"), false, None),
        (Some("never"), false, Some("nested in it")),
        (None, true, Some("lost records")),
        (Some("never"), true, Some("lost records")),
    ] {
        let told = why(nested, lost);
        assert!(told.contains("replay stored safe, now safe"), "{told}");
        assert_eq!(
            told.split_once(", but never ").is_some_and(|(_, why)| why.contains(beside.unwrap_or_default())),
            beside.is_some(),
            "{told}"
        );
    }
}
