//! What comes next, row by row, for the owner and for everybody else.

use super::*;
use crate::record::{
    Admitted, ApprovalDecision, Attempt as Begun, Branch, Delivery, Owner, Recovered, SettledStatus, TreeMode,
};
use crate::testkit::{File, Kit, model, process, user};

/// A turn whose owner, process 4001, lives.
fn held() -> Kit {
    let mut kit = Kit::with_key();
    kit.living.push(4001);
    kit
}

/// The same admitted on a file.
fn on_file(mode: TreeMode) -> Kit {
    let mut kit = Kit::on(&File::new(), mode);
    kit.living.push(4001);
    kit
}

/// The same under a lease of ten seconds.
fn leased() -> Kit {
    let mut kit = Kit::empty();
    kit.push(Admitted { delivery: Some("k1".to_owned()), ..kit.admitted("go") });
    kit.push(Begun { lease_ms: Some(10_000), ..kit.attempt(1) });
    kit.living.push(4001);
    kit
}

#[track_caller]
fn both(kit: &Kit, expected: Do, why: &str) {
    for asker in [Asker::Owner, Asker::Other] {
        let next = kit.next(asker);
        assert_eq!((next.r#do, next.why.contains(why)), (expected, true), "{asker:?}: {}", next.why);
    }
}

#[track_caller]
fn at_second(kit: &Kit, seconds: i64, owner: Do, other: Do) {
    let ask = |asker| kit.next_at(seconds, BranchState::UpToDate, asker).r#do;
    assert_eq!((ask(Asker::Owner), ask(Asker::Other)), (owner, other), "at {seconds} s");
}

#[test]
fn each_act_has_the_word_that_scripts_know() {
    let words = Do::ALL.map(Do::word);
    assert_eq!(
        words,
        [
            "done",
            "recover",
            "unpark",
            "run_script",
            "run_calls",
            "ask",
            "reconcile",
            "await",
            "call_model",
            "settle",
            "deliver",
            "reconcile_delivery"
        ]
    );
}

#[test]
fn without_a_turn_that_is_open_nothing_is_left_to_do() {
    both(&Kit::empty(), Do::Done, "no turn");
    let mut kit = held();
    kit.push(kit.settled(SettledStatus::Failed, None));
    both(&kit, Do::Done, "closed");
}

#[test]
fn a_turn_is_recovered_where_nobody_is_known_to_hold_it() {
    let mut kit = Kit::empty();
    kit.push(kit.admitted("go"));
    both(&kit, Do::Recover, "no attempt began");
    both(&Kit::new(), Do::Recover, "is gone");
    let mut kit = held();
    both(&kit, Do::CallModel, "no model has spoken");
    kit.draft.session.turns[0].lost_numbers = 1;
    both(&kit, Do::Recover, "lost records");
    let mut kit = held();
    kit.push(kit.attempt(2));
    kit.living.push(4002);
    both(&kit, Do::Recover, "unfinished");
    kit.push(kit.recovered(&[]));
    both(&kit, Do::CallModel, "");
}

/// The lease speaks for the owner towards everybody else; its own steps are accepted until a takeover.
#[test]
fn a_lease_that_ran_out_ends_an_attempt_for_everybody_but_its_owner() {
    let mut kit = leased();
    at_second(&kit, 9, Do::CallModel, Do::CallModel);
    at_second(&kit, 11, Do::CallModel, Do::Recover);
    let asked = kit.ask_one("never");
    kit.claim(asked);
    at_second(&kit, 9, Do::Await, Do::Await);
    at_second(&kit, 11, Do::Await, Do::Recover);
    let lives = |kit: &Kit, seconds| {
        kit.now(seconds, |now| claimant_lives(kit.turn(), kit.at_ref(asked).expect("a call"), now))
    };
    assert!(lives(&kit, 9) && !lives(&kit, 11));
    kit.living.clear();
    assert!(!lives(&kit, 9), "its process is gone");
}

#[test]
fn a_parked_turn_waits_for_a_person_whatever_else_is_due() {
    let mut kit = on_file(TreeMode::Append);
    kit.push(kit.parked());
    for branch in [BranchState::UpToDate, BranchState::Behind, BranchState::Ahead] {
        assert_eq!(kit.next_at(0, branch, Asker::Other).r#do, Do::Unpark);
    }
    kit.living.clear();
    assert_eq!(kit.next(Asker::Other).r#do, Do::Unpark);
    kit.draft.session.turns[0].lost_numbers = 1;
    assert_eq!(kit.next(Asker::Other).r#do, Do::Unpark);
}

/// In `branch` mode the file is the agent's until a recover has begun a branch in it.
#[test]
fn a_branch_that_is_behind_is_a_reason_where_there_is_one() {
    let behind = |kit: &Kit| kit.next_at(0, BranchState::Behind, Asker::Other).r#do;
    assert_eq!(behind(&on_file(TreeMode::Append)), Do::Recover);
    let mut kit = on_file(TreeMode::Branch);
    assert_eq!(behind(&kit), Do::CallModel);
    kit.push(kit.attempt(2));
    kit.living.push(4002);
    let branch =
        Branch { path: "/home/user/chat.jsonl".to_owned(), from: None, leaf: "x".to_owned(), entries: 1 };
    kit.push(Recovered { branch: Some(branch), ..kit.recovered(&[]) });
    assert_eq!(behind(&kit), Do::Recover);
    assert_eq!(kit.next(Asker::Other).r#do, Do::CallModel);
}

#[test]
fn a_turn_that_waits_is_not_recovered_unless_its_file_says_more() {
    let mut kit = on_file(TreeMode::Branch);
    kit.ask_one("ask");
    kit.living.clear();
    both(&kit, Do::Ask, "approval");
    assert_eq!(kit.next_at(0, BranchState::Ahead, Asker::Other).r#do, Do::Recover);
}

#[test]
fn a_living_owner_is_told_about_calls_that_only_a_recover_may_end() {
    let mut kit = held();
    let asked = kit.ask(&["a:safe", "b:never"]);
    kit.push(kit.run_by(asked[0], 77));
    kit.push(kit.not_run(asked[1], crate::record::NotRunWhy::Refused));
    both(&kit, Do::Recover, "has to be decided");
    kit.living.push(77);
    both(&kit, Do::Await, "somebody else");
    // One that a recover of this attempt decided to run again is the owner's to run.
    kit.living.pop();
    kit.push(kit.attempt(2));
    kit.living.push(4002);
    kit.push(kit.recovered(&[(asked[0], Decision::Rerun)]));
    both(&kit, Do::RunCalls, "");
    kit.push(kit.cancelled());
    both(&kit, Do::Settle, "cancelled");
    // One whose runner died, and one whose denial was cut off behind the person's word.
    let mut kit = held();
    let asked = kit.ask_one("never");
    let mut denied = kit.clone();
    kit.push(kit.run_by(asked, 77));
    both(&kit, Do::Recover, "has to be decided");
    denied.push(denied.approval(asked, ApprovalDecision::Denied));
    both(&denied, Do::Recover, "has to be decided");
}

/// Nobody lives, but not where a person has to act.
#[test]
fn what_nobody_claimed_is_awaited_unless_a_person_has_to_act() {
    let claimed = |tool: &str, owner: Option<Owner>| {
        let mut kit = Kit::empty();
        kit.living.push(4001);
        kit.push(kit.admitted("go"));
        kit.push(Begun { owner, ..kit.attempt(1) });
        let asked = kit.ask_one(tool);
        kit.push(kit.approval(asked, ApprovalDecision::Granted));
        kit.claim(asked);
        kit
    };
    for (tool, by_nobody) in [("never", Do::Await), ("hold", Do::Reconcile), ("safe_ask", Do::Ask)] {
        both(&claimed(tool, None), by_nobody, "");
        both(&claimed(tool, Some(process(4001))), Do::Await, "");
    }
}

/// A tool runs the calls that are nested in it; only a person's word is for somebody else.
#[test]
fn a_nested_call_is_its_tools_as_long_as_that_is_at_work() {
    let nested = |tool: &str| {
        let mut kit = held();
        let outer = kit.ask_one("never");
        kit.claim(outer);
        let inner = kit.push(kit.intent("n", tool, Some(outer)));
        (kit, outer, CallRef { seq: inner.seq, position: 0 })
    };
    let (kit, outer, inner) = nested("never");
    both(&kit, Do::Await, "");
    assert_eq!(kit.next(Asker::Other).refs, [outer, inner]);
    let (mut kit, _, inner) = nested("ask");
    both(&kit, Do::Ask, "");
    assert_eq!(kit.next(Asker::Other).refs, [inner]);
    kit.push(kit.approval(inner, ApprovalDecision::Granted));
    both(&kit, Do::Await, "");
    // What became of it is not the tool's to say once it was begun or answered.
    let (mut kit, _, inner) = nested("never");
    kit.push(kit.run_by(inner, 77));
    both(&kit, Do::Recover, "has to be decided");
    let (mut kit, _, inner) = nested("never");
    kit.push(kit.not_run(inner, crate::record::NotRunWhy::Refused));
    let seen = kit.now(0, |now| seen_by(kit.turn(), kit.at_ref(inner).expect("a call"), now, Asker::Owner));
    assert_eq!(seen, Decision::Redeliver);
    // The tool has ended, and left it behind.
    let (mut kit, outer, _) = nested("never");
    kit.answer(outer, "x");
    both(&kit, Do::Recover, "has to be decided");
}

#[test]
fn after_as_many_attempts_without_progress_as_the_policy_says_a_turn_is_parked() {
    let parks = |kit: &Kit| kit.now(0, |now| would_park(kit.turn(), now));
    let mut kit = Kit::new();
    for _ in 2..=4 {
        kit.recover(&[]);
    }
    assert!(!parks(&kit));
    kit.recover(&[]);
    assert!(parks(&kit), "the fifth");
    kit.push(kit.parked());
    assert!(!parks(&kit), "it is parked already");
}

#[test]
fn what_can_be_run_comes_before_what_waits() {
    let mut kit = held();
    let asked = kit.ask(&["a:ask", "b:never", "c:never"]);
    both(&kit, Do::RunCalls, "to be run");
    assert_eq!(kit.next(Asker::Owner).refs, asked[1..]);
    kit.claim(asked[1]);
    kit.claim(asked[2]);
    both(&kit, Do::Ask, "approval");
    assert_eq!(kit.next(Asker::Owner).refs, asked[..1]);
    kit.push(kit.approval(asked[0], ApprovalDecision::Granted));
    kit.claim(asked[0]);
    both(&kit, Do::Await, "");
    assert_eq!(kit.next(Asker::Owner).refs, asked);
}

#[test]
fn a_script_goes_on_unless_it_waits_was_cancelled_or_has_a_model() {
    let declared = |tool: &str| {
        let mut kit = held();
        let call = kit.push(kit.intent("d", tool, None));
        (kit, CallRef { seq: call.seq, position: 0 })
    };
    let (mut kit, call) = declared("never");
    both(&kit, Do::RunScript, "script");
    kit.claim(call);
    both(&kit, Do::Await, "");
    kit.answer(call, "x");
    both(&kit, Do::RunScript, "script");
    kit.push(kit.cancelled());
    both(&kit, Do::Settle, "cancelled");
    let (kit, _) = declared("ask");
    both(&kit, Do::Ask, "");
    let (mut kit, call) = declared("never");
    kit.claim(call);
    kit.answer(call, "x");
    kit.say("done");
    both(&kit, Do::Settle, "the model has spoken");
}

#[test]
fn the_model_is_asked_until_it_has_seen_everything() {
    let mut kit = held();
    let asked = kit.ask_one("never");
    kit.claim(asked);
    kit.answer(asked, "x");
    both(&kit, Do::CallModel, "answers of its calls");
    kit.say("done");
    both(&kit, Do::Settle, "the model has spoken");
    kit.push(kit.steered("and this", None));
    both(&kit, Do::CallModel, "joined the turn");
    kit.say("done too");
    kit.say("really");
    both(&kit, Do::Settle, "");
    kit.push(kit.message(&user("one more thing")));
    both(&kit, Do::CallModel, "user's message");
    kit.push(kit.cancelled());
    both(&kit, Do::Settle, "cancelled");
    let mut paused = held();
    paused.push(paused.message_of(
        crate::message::Format::Anthropic,
        r#"{"role":"assistant","content":[{"type":"text","text":"x"}],"stop_reason":"pause_turn"}"#,
    ));
    both(&paused, Do::CallModel, "paused");
    let failed = {
        let mut kit = held();
        kit.push(kit.message(&model("x", "error", &[])));
        kit
    };
    both(&failed, Do::CallModel, "");
}

#[test]
fn a_reply_is_delivered_and_one_that_may_be_out_is_asked_about() {
    let mut kit = leased();
    kit.push(kit.settled(SettledStatus::Completed, Some("r")));
    both(&kit, Do::Deliver, "not delivered");
    let lives = |kit: &Kit, seconds| kit.now(seconds, |now| publisher_lives(kit.turn(), now));
    assert!(!lives(&kit, 0), "nobody publishes yet");
    let settled = kit.clone();
    kit.push(kit.delivery(DeliveryState::Begun));
    at_second(&kit, 9, Do::Await, Do::Await);
    at_second(&kit, 11, Do::Await, Do::ReconcileDelivery);
    assert!(lives(&kit, 9) && !lives(&kit, 11));
    kit.living.clear();
    both(&kit, Do::ReconcileDelivery, "may have been published");
    assert!(!lives(&kit, 9));
    // A CMD that publishes is its own witness.
    let mut kit = settled;
    kit.living.clear();
    kit.push(Delivery { runner: Some(process(77)), ..kit.delivery(DeliveryState::Begun) });
    both(&kit, Do::ReconcileDelivery, "");
    kit.living.push(77);
    assert!(lives(&kit, 9));
    both(&kit, Do::Await, "being published");
    kit.push(kit.delivery(DeliveryState::NotSent));
    kit.living.push(4001);
    both(&kit, Do::Deliver, "");
    // With nobody named, nobody is known to be at it.
    let mut nobody = Kit::empty();
    nobody.push(Admitted { delivery: Some("k1".to_owned()), ..nobody.admitted("go") });
    nobody.push(Begun { owner: None, ..nobody.attempt(1) });
    nobody.push(nobody.settled(SettledStatus::Completed, Some("r")));
    nobody.push(nobody.delivery(DeliveryState::Begun));
    both(&nobody, Do::ReconcileDelivery, "");
}
