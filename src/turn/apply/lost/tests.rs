//! What intact records behind lost ones presuppose: a journal is made whole, then some of its records are lost.

use super::*;
use crate::chain;
use crate::record::{Approval, Claimed, Decision, NotRunWhy, ReconciledOutcome};
use crate::testkit::{Kit, turn_id};
use crate::turn::{Call, Retain, Session};

fn read_without(kit: &Kit, lost: &[u64]) -> Result<Session, String> {
    kit.reread(Retain::All, lost)
}

fn without(kit: &Kit, lost: &[u64]) -> Turn {
    let session = read_without(kit, lost).unwrap_or_else(|why| panic!("without {lost:?}: {why}"));
    session.turn(&kit.turn).expect("the turn").clone()
}

fn call(turn: &Turn, r#ref: CallRef) -> &Call {
    turn.call(r#ref).unwrap_or_else(|| panic!("there is no call {ref}"))
}

fn newest(kit: &Kit) -> u64 {
    kit.session().head.seq
}

/// The turn behind one record more, which stands behind what is lost.
fn push_unseen(kit: &Kit, kind: impl Into<Kind>, lost: &[u64]) -> Result<Turn, String> {
    let mut session = read_without(kit, lost)?;
    let (seq, head) = (session.next_seq(), session.head.hash.clone());
    let base = session.turn(&kit.turn).map_or(0, |turn| turn.admitted.offset);
    let (line, _) = chain::encode(seq, &kit.draft.at, &kind.into(), base, &head);
    let record = chain::decode(&line).expect("a record");
    session.apply(&record, kit.draft.end()).map_err(|error| error.to_string())?;
    Ok(session.turn(&kit.turn).expect("the turn").clone())
}

#[test]
fn whatever_names_a_call_proves_that_its_message_was_there() {
    let named: [fn(&mut Kit, CallRef); 9] = [
        |kit, call| drop(kit.claim(call)),
        |kit, call| {
            kit.claim(call);
            kit.answer(call, "x");
        },
        |kit, call| {
            kit.claim(call);
            kit.push(kit.attempt(2));
            kit.push(kit.interrupted(call));
        },
        |kit, call| drop(kit.push(kit.not_run(call, NotRunWhy::Refused))),
        |kit, call| drop(kit.push(kit.dispatched(call, None))),
        |kit, call| drop(kit.push(kit.approval(call, ApprovalDecision::Denied))),
        |kit, call| {
            kit.claim(call);
            kit.recover(&[(call, Decision::Hold)]);
            kit.push(kit.reconciled(call, ReconciledOutcome::Applied));
        },
        |kit, call| {
            kit.claim(call);
            kit.push(kit.intent("n", "safe", Some(call)));
        },
        |kit, call| {
            kit.claim(call);
            kit.recover(&[(call, Decision::Hold)]);
            kit.push(kit.reconciled(call, ReconciledOutcome::NotApplied));
        },
    ];
    for (row, act) in named.into_iter().enumerate() {
        let mut kit = Kit::new();
        let asked = kit.ask(&["a:never", "b:never", "c:never"]);
        let message = newest(&kit);
        act(&mut kit, asked[1]);
        // All between the message and the newest record is lost with it.
        let lost: Vec<u64> = (message..newest(&kit)).collect();
        let turn = without(&kit, &lost);
        let supposed: Vec<_> = turn.calls.iter().filter(|call| call.source == Source::Lost).collect();
        let refs: Vec<CallRef> = supposed.iter().map(|call| call.r#ref).collect();
        assert_eq!(refs, asked[..2], "row {row}: those before it in its message too");
        for call in supposed {
            assert_eq!(
                (call.tool.as_str(), call.replay, call.id.as_deref()),
                ("(lost)", Replay::Never, None)
            );
            assert_eq!(call.key, call_key(&kit.session().genesis, &kit.turn, call.r#ref));
        }
        assert!(!call(&turn, asked[0]).may_have_run(), "row {row}");
    }
}

#[test]
fn calls_of_one_lost_message_are_supposed_once_and_in_order() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:never", "c:never", "d:never"]);
    let message = newest(&kit);
    kit.claim(asked[1]);
    kit.claim(asked[3]);
    kit.claim(asked[0]);
    let turn = without(&kit, &[message]);
    let refs: Vec<CallRef> = turn.calls.iter().map(|call| call.r#ref).collect();
    assert_eq!(refs, asked);
    let ran: Vec<bool> = turn.calls.iter().map(Call::may_have_run).collect();
    assert_eq!(ran, [true, true, false, true]);
}

/// A message of the turn stands behind its admission and before whoever names its calls, and behind older calls.
#[test]
fn a_call_is_supposed_only_where_a_lost_message_can_have_asked() {
    let mut kit = Kit::new();
    let asked = kit.ask_one("never");
    kit.claim(asked);
    kit.answer(asked, "x");
    kit.push(kit.note(1));
    kit.push(kit.note(1));
    let note = newest(&kit);
    let named = |seq: u64, position: u64| {
        let r#ref = CallRef { seq, position };
        push_unseen(&kit, kit.claimed(r#ref), &[note])
    };
    assert!(named(note, 0).is_ok());
    assert!(named(note, POSITION_MAX).is_ok(), "no message has more calls");
    assert!(named(note, POSITION_MAX + 1).is_err());
    assert!(named(note + 1, 0).is_err(), "its own number");
    assert!(named(note + 2, 0).is_err(), "behind it");
    assert!(named(1, 0).is_err(), "the admission");
    assert!(named(asked.seq, 1).is_err(), "a message that is there, and has one call");
    // The same, with the older message lost too: what is there is newer than it.
    let older = push_unseen(&kit, kit.claimed(CallRef { seq: asked.seq - 1, position: 0 }), &[note]);
    assert!(older.is_err(), "an attempt stands there");
}

#[test]
fn what_an_attempt_wrote_proves_that_it_began() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:never"]);
    kit.push(kit.attempt(2));
    let lost = newest(&kit);
    kit.push(kit.recovered(&[(asked[0], Decision::Run), (asked[1], Decision::Run)]));
    kit.push(kit.note(2));
    assert!(read_without(&kit, &[lost, lost + 1]).is_err(), "a note proves nothing");
    kit.claim(asked[0]);
    let turn = without(&kit, &[lost, lost + 1, lost + 2]);
    assert_eq!((turn.current_number(), turn.attempts.len()), (2, 2));
    let attempt = turn.current().expect("an attempt");
    assert!(attempt.owner.is_none() && !attempt.unfinished(), "whoever claims has recovered");
    // Evidence of an older attempt, and a step of the attempt that is there, begin nothing.
    kit.push(kit.straggler(None, 1));
    kit.claim(asked[1]);
    assert_eq!(without(&kit, &[newest(&kit) - 1]).attempts.len(), 2);
}

#[test]
fn a_step_of_a_parked_turn_proves_that_it_was_unparked() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:never"]);
    kit.push(kit.parked());
    kit.push(kit.unparked());
    let lost = newest(&kit);
    kit.push(kit.note(1));
    assert!(without(&kit, &[lost]).parked.is_some(), "a note may stand in a parked turn");
    kit.claim(asked[0]);
    assert!(without(&kit, &[lost]).parked.is_none());
}

#[test]
fn a_step_proves_that_the_recover_before_it_ended() {
    let mut kit = Kit::with_key();
    let asked = kit.ask(&["a:never", "b:never"]);
    kit.claim(asked[0]);
    kit.push(kit.attempt(2));
    kit.push(kit.interrupted(asked[0]));
    let answered = newest(&kit);
    kit.push(kit.recovered(&[(asked[0], Decision::Interrupt), (asked[1], Decision::Run)]));
    let recovered = newest(&kit);
    // What a recover writes itself proves nothing about its end.
    let unfinished = push_unseen(&kit, kit.not_run(asked[1], NotRunWhy::Refused), &[answered, recovered]);
    assert!(unfinished.expect("a turn").current().expect("an attempt").unfinished());
    kit.claim(asked[1]);
    let turn = without(&kit, &[recovered]);
    assert!(!turn.current().expect("an attempt").unfinished());
    assert!(call(&turn, asked[1]).may_have_run());
}

#[test]
fn a_recover_may_have_decided_about_what_is_lost() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:never"]);
    let message = newest(&kit);
    kit.claim(asked[0]);
    kit.push(kit.attempt(2));
    kit.push(kit.interrupted(asked[0]));
    let answered = newest(&kit);
    kit.push(kit.recovered(&[(asked[0], Decision::Interrupt), (asked[1], Decision::Run)]));
    for lost in [vec![answered], vec![message, message + 1, answered]] {
        let turn = without(&kit, &lost);
        assert!(!turn.current().expect("an attempt").unfinished(), "without {lost:?}");
    }
}

#[test]
fn a_delivery_that_begins_proves_that_the_recover_before_it_ended() {
    let mut kit = Kit::with_key();
    kit.push(kit.settled(SettledStatus::Completed, Some("r")));
    kit.push(kit.attempt(2));
    kit.push(kit.recovered(&[]));
    let lost = newest(&kit);
    kit.push(kit.delivery(DeliveryState::Begun));
    let turn = without(&kit, &[lost]);
    assert!(!turn.current().expect("an attempt").unfinished() && crate::turn::next::begun(&turn));
}

#[test]
fn a_claim_proves_an_approval_where_one_was_asked_for() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:ask", "b:never", "c:ask"]);
    kit.push(kit.approval(asked[0], ApprovalDecision::Granted));
    let lost = newest(&kit);
    let expires = Some(crate::testkit::at(1_000));
    kit.push(Approval { expires, ..kit.approval(asked[2], ApprovalDecision::Granted) });
    for call in &asked {
        kit.claim(*call);
    }
    let turn = without(&kit, &[lost]);
    let by = |index: usize| call(&turn, asked[index]).approved.as_ref().map(|approved| approved.by.as_str());
    assert!(asked.iter().all(|asked| call(&turn, *asked).may_have_run()));
    assert_eq!((by(0), by(1)), (None, None), "it is for one claim");
    assert_eq!(by(2), Some("ann"), "the one that is there stays");
    // A dispatch too, behind a denial that somebody took back.
    let mut kit = Kit::new();
    let asked = kit.ask_one("ask");
    kit.push(kit.approval(asked, ApprovalDecision::Denied));
    kit.push(Approval { by: "bob".to_owned(), ..kit.approval(asked, ApprovalDecision::Granted) });
    let lost = newest(&kit);
    kit.push(kit.dispatched(asked, None));
    let turn = without(&kit, &[lost]);
    assert!(call(&turn, asked).dispatch.is_some());
}

#[test]
fn a_second_claim_proves_that_a_recover_let_it_run_again() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:safe", "b:safe"]);
    kit.claim(asked[0]);
    kit.push(kit.attempt(2));
    kit.push(kit.recovered(&[(asked[0], Decision::Rerun), (asked[1], Decision::Run)]));
    let lost = newest(&kit);
    kit.claim(asked[0]);
    kit.claim(asked[1]);
    let turn = without(&kit, &[lost]);
    for call in &asked {
        let attempt = turn.call(*call).and_then(Call::live_claim).map(|claim| claim.attempt);
        assert_eq!(attempt, Some(2), "{call}");
    }
    assert_eq!(call(&turn, asked[1]).rerun_by, None, "the first claim of it");
}

#[test]
fn a_result_proves_its_claim() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:safe", "b:safe", "c:safe"]);
    kit.claim(asked[0]);
    let lost = newest(&kit);
    kit.push(Claimed { link: Some(Raw::text("there")), ..kit.claimed(asked[1]) });
    kit.push(kit.dispatched(asked[2], None));
    for call in &asked {
        kit.answer(*call, "x");
    }
    let turn = without(&kit, &[lost]);
    let claims: Vec<Option<&Claim>> = asked.iter().map(|asked| call(&turn, *asked).claim.as_ref()).collect();
    assert!(asked.iter().all(|asked| call(&turn, *asked).answer.is_some()));
    assert!(claims[0].is_some_and(|claim| claim.attempt == 1 && !claim.repeated));
    assert!(claims[1].is_some_and(|claim| claim.link.is_some()), "the one that is there stays");
    assert!(claims[2].is_none(), "it was dispatched");
    // The claim of an older attempt is not the one.
    let mut kit = Kit::new();
    let asked = kit.ask_one("safe");
    kit.claim(asked);
    kit.recover(&[(asked, Decision::Rerun)]);
    kit.claim(asked);
    let lost = newest(&kit);
    kit.answer(asked, "x");
    let turn = without(&kit, &[lost]);
    assert!(call(&turn, asked).claim.as_ref().is_some_and(|claim| claim.attempt == 2 && claim.repeated));
}

#[test]
fn what_only_a_claimed_call_gets_proves_that_it_may_have_run() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:never"]);
    let message = newest(&kit);
    kit.claim(asked[0]);
    kit.claim(asked[1]);
    kit.push(kit.attempt(2));
    kit.push(kit.interrupted(asked[0]));
    kit.push(kit.interrupted(asked[1]));
    let turn = without(&kit, &[message + 1]);
    assert!(call(&turn, asked[0]).lost && call(&turn, asked[0]).answer.is_some());
    assert!(!call(&turn, asked[1]).lost, "its claim is there");
    let mut kit = Kit::new();
    let asked = kit.ask_one("never");
    kit.claim(asked);
    let claimed = newest(&kit);
    kit.recover(&[(asked, Decision::Hold)]);
    kit.push(kit.reconciled(asked, ReconciledOutcome::NotApplied));
    let turn = without(&kit, &[claimed, claimed + 1, claimed + 2]);
    let known = call(&turn, asked);
    assert!(
        known.not_applied.is_some() && !known.may_have_run(),
        "a person found out that it had not happened"
    );
}

#[test]
fn a_delivery_proves_a_settlement_with_a_reply_and_its_own_beginning() {
    use DeliveryState::{Begun, NotSent, Sent};
    let mut kit = Kit::with_key();
    kit.push(kit.settled(SettledStatus::Completed, Some("r")));
    let settled = newest(&kit);
    kit.push(kit.delivery(Begun));
    let turn = without(&kit, &[settled]);
    let supposed = turn.settled.as_ref().expect("settled");
    assert!(supposed.has_reply && supposed.status == SettledStatus::Failed && !turn.is_closed());
    kit.push(kit.delivery(NotSent));
    kit.push(kit.delivery(Begun));
    // not_sent is lost: the second beginning proves that the first one ended.
    let turn = without(&kit, &[settled + 2]);
    assert!(crate::turn::next::begun(&turn));
    assert_eq!(turn.settled.as_ref().map(|settled| settled.status), Some(SettledStatus::Completed));
    assert!(crate::turn::next::begun(&without(&kit, &[settled + 1, settled + 2])));
    // A beginning is lost: what ended it proves it.
    let turn = without(&kit, &[settled + 1, settled + 3]);
    assert_eq!(turn.delivery.as_ref().map(|delivery| delivery.state), Some(NotSent));
    kit.push(kit.delivery(Sent));
    assert!(read_without(&kit, &[settled + 3]).is_ok());
    assert!(read_without(&kit, &[settled, settled + 1, settled + 2, settled + 3]).is_ok());
}

// Once a person has acknowledged the loss, nothing is supposed any more.

fn counted(mut turn: Turn) -> Turn {
    let mark = turn.admitted.clone();
    turn.gap = Gap::Records;
    turn.count_as_lost(&mark);
    turn
}

#[test]
fn acknowledged_losses_park_what_is_open_and_count_a_reply_as_begun() {
    let mut kit = Kit::with_key();
    let open = counted(kit.turn().clone());
    assert!(open.parked.is_some() && open.lost_records && open.gap == Gap::None);
    assert!(open.delivery.is_some(), "it may have been settled and begun");
    // Whoever parked it before says why.
    kit.push(kit.parked());
    let parked = counted(kit.turn().clone()).parked.expect("parked");
    assert_eq!(parked.why, "enough");
    kit.push(kit.unparked());
    kit.push(kit.settled(SettledStatus::Completed, Some("r")));
    let settled = counted(kit.turn().clone());
    assert!(settled.parked.is_none() && crate::turn::next::begun(&settled));
    // Nobody waits for a reply: nothing was begun.
    assert!(counted(Kit::new().turn().clone()).delivery.is_none());
    let mut silent = Kit::with_key();
    silent.push(silent.settled(SettledStatus::Failed, None));
    assert!(counted(silent.turn().clone()).delivery.is_none());
}

#[test]
fn behind_a_lost_attempt_the_next_number_is_one_that_nobody_holds() {
    let mut kit = Kit::empty();
    kit.push(kit.admitted("go"));
    let mut turn = kit.turn().clone();
    turn.lost_numbers = 3;
    let turn = counted(turn);
    assert_eq!((turn.current_number(), turn.lost_numbers), (1, 3));
    assert!(turn.current().expect("an attempt").owner.is_none());
    // Where an attempt is known, it stays the newest.
    let mut kit = Kit::new();
    kit.push(kit.attempt(2));
    let counted = counted(kit.turn().clone());
    assert_eq!((counted.current_number(), counted.attempts.len()), (2, 2));
}

// A turn whose admission is lost.

#[test]
fn a_turn_goes_on_though_its_admission_is_lost() {
    let mut kit = Kit::with_key();
    let admitted = kit.turn().admitted.offset;
    let asked = kit.ask_one("never");
    kit.claim(asked);
    for lost in [vec![1], vec![1, 2], vec![1, 2, 3]] {
        let session = read_without(&kit, &lost).unwrap_or_else(|why| panic!("{lost:?}: {why}"));
        let turn = session.turn(&kit.turn).expect("the turn");
        assert_eq!((turn.gap, turn.lost_records, turn.input.get()), (Gap::Admission, true, "\"\""));
        assert_eq!(turn.admitted.offset, admitted, "from where it may have begun");
        assert_eq!(turn.current_number(), 1);
        assert!(call(turn, asked).may_have_run());
        assert!(session.knows(&kit.turn) && session.turn_of_key("k1").is_none());
    }
    // The admission may have been the first of what is lost, so the first call is of the record behind it.
    let named = |seq| push_unseen(&kit, kit.claimed(CallRef { seq, position: 0 }), &[1, 2, 3, 4]);
    assert!(named(1).is_err() && named(2).is_ok());
    // Its key is known again once a record tells it.
    kit.answer(asked, "x");
    kit.push(kit.settled(SettledStatus::Completed, Some("r")));
    kit.push(kit.delivery(DeliveryState::Begun));
    let session = read_without(&kit, &[1]).expect("a session");
    assert_eq!(session.turn_of_key("k1"), Some(&kit.turn));
}

#[test]
fn an_admission_is_lost_in_the_newest_damage_before_what_its_turn_did() {
    let mut kit = Kit::new();
    let older = kit.push(kit.note(1));
    kit.push(kit.settled(SettledStatus::Failed, None));
    kit.turn = turn_id("t2");
    let admitted = kit.push(kit.admitted("more"));
    kit.push(kit.attempt(1));
    assert_eq!(without(&kit, &[older.seq, admitted.seq]).admitted.offset, admitted.offset);
}

#[test]
fn behind_damage_a_turn_that_is_known_to_be_closed_stays_closed() {
    let mut kit = Kit::new();
    kit.push(kit.settled(SettledStatus::Failed, None));
    kit.draft.session.pass_damage(kit.draft.end());
    assert!(kit.refuse(kit.attempt(2)).contains("is closed"));
    // What cannot be, whatever is lost, begins no turn either.
    kit.turn = turn_id("t9");
    kit.refuse(kit.unparked());
}

#[test]
fn what_is_no_step_proves_no_admission() {
    let mut kit = Kit::new();
    kit.push(kit.note(1));
    assert!(read_without(&kit, &[1, 2]).is_err());
    let mut kit = Kit::new();
    kit.push(kit.straggler(None, 1));
    assert!(read_without(&kit, &[1, 2]).is_err());
    // Without a loss there is no turn that was never admitted.
    let mut kit = Kit::new();
    kit.turn = turn_id("t9");
    kit.refuse(kit.attempt(1));
}

#[test]
fn a_record_behind_lost_ones_has_a_number_behind_theirs() {
    let mut kit = Kit::new();
    kit.push(kit.note(1));
    kit.push(kit.note(1));
    kit.push(kit.note(1));
    let newest = newest(&kit);
    let session = read_without(&kit, &[newest - 1, newest]).expect("a session");
    assert_eq!((session.head.seq, session.next_seq()), (newest - 2, newest + 1));
    assert_eq!(session.turn(&kit.turn).expect("the turn").lost_numbers, 0, "nothing stands behind them yet");
    let session = read_without(&kit, &[newest - 2, newest - 1]).expect("a session");
    assert_eq!(session.next_seq(), newest + 1);
    assert_eq!(session.turn(&kit.turn).expect("the turn").lost_numbers, 2);
    // A record that does not fit has the number that it says, or at least one of its own.
    let mut session = kit.session().clone();
    assert!(!session.has_lost());
    session.pass_illegal(newest + 3, kit.draft.end());
    assert_eq!((session.has_lost(), session.next_seq()), (true, newest + 4));
    session.pass_illegal(newest, kit.draft.end());
    assert_eq!(session.next_seq(), newest + 5);
}

#[test]
fn a_call_of_which_all_is_lost_is_run_only_where_it_may_have_begun() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:safe", "b:safe"]);
    let message = newest(&kit);
    kit.claim(asked[1]);
    let turn = without(&kit, &[message]);
    let decide = |asked: CallRef| kit.now(0, |now| crate::turn::decide::rule(&turn, call(&turn, asked), now));
    assert_eq!(decide(asked[0]).decision, Decision::NotRun);
    assert_eq!(decide(asked[1]).decision, Decision::Hold, "no model can be told of it");
}

/// Read from a base on, the records before it are not lost: a first attempt whose base lies before it began there.
#[test]
fn behind_a_base_only_an_attempt_of_a_turn_that_began_before_begins_one() {
    let kit = Kit::new();
    let base = kit.turn().admitted.offset;
    let from_attempt = |base: u64, offset: u64| {
        let genesis = kit.draft.bytes.split(|byte| *byte == b'\n').next().expect("a genesis");
        let genesis = chain::decode(genesis).expect("a record");
        let mut session = Session::begin("room".to_owned(), &genesis, Retain::All);
        session.skip_to_base();
        let (_, record) = kit.draft.history.iter().next_back().expect("an attempt");
        let (line, _) = chain::encode(record.seq, &record.at, &record.kind, base, &record.prev);
        let record = chain::decode(&line).expect("a record");
        session.apply(&record, offset).map(|()| session)
    };
    let session = from_attempt(base, base + 1).expect("its admission stands before what is read");
    assert!(session.turn(&kit.turn).is_some_and(|turn| turn.gap == Gap::Admission));
    for (base, offset) in [(base, base), (base + 1, base)] {
        let begun = from_attempt(base, offset).is_ok_and(|session| session.turn(&kit.turn).is_some());
        assert!(!begun, "nothing begins with an attempt at {offset}, base {base}");
    }
}
