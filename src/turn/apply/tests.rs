//! The transition table: each rule that the fold can see, once kept and once broken.

use crate::chain;
use crate::draft::{Draft, History};
use crate::json::Raw;
use crate::message::Format;
use crate::record::{
    Admitted, Approval, ApprovalDecision, Attempt, CallRef, Cause, Claimed, Decision, Delivery,
    DeliveryState, Dispatched, Hash, Kind, Message, NotRunWhy, Outcome, Reconciled, ReconciledOutcome,
    Repaired, SettledStatus, Steered, TreeMode,
};
use crate::testkit::{File, Kit, at, call, entry, model, other_entry, tool_result, turn_id, user};
use crate::turn::{AnswerKind, Declared, Retain, Session, Source, Stands, What};

fn last_said(kit: &Kit) -> Stands {
    match &kit.turn().facts.last().expect("a fact").what {
        What::Said(said) => said.stands.clone(),
        other => panic!("{other:?}"),
    }
}

fn settle_and_close(kit: &mut Kit) {
    kit.push(kit.settled(SettledStatus::Failed, None));
}

// 3.1: base.

#[test]
fn base_is_the_oldest_turn_that_is_not_closed() {
    let mut kit = Kit::with_key();
    let first = kit.turn().admitted.offset;
    let base = |kit: &Kit| kit.draft.history.iter().next_back().expect("a record").1.base;
    assert_eq!(base(&kit), first);
    kit.push(kit.settled(SettledStatus::Completed, Some("done")));
    assert_eq!(base(&kit), first, "settled, and not delivered");
    kit.turn = turn_id("t2");
    kit.push(Admitted { delivery: Some("k2".to_owned()), ..kit.admitted("more") });
    assert_eq!(base(&kit), first);
    let second = kit.turn().admitted.offset;
    kit.push(kit.attempt(1));
    let mut second_closed = kit.clone();
    settle_and_close(&mut second_closed);
    assert_eq!(base(&second_closed), first, "the older one is still not delivered");
    kit.turn = turn_id("t1");
    kit.push(kit.delivery(DeliveryState::Begun));
    kit.push(kit.delivery(DeliveryState::Sent));
    assert_eq!(base(&kit), second, "the first is closed, the second open");
    kit.turn = turn_id("t2");
    let own = kit.draft.end();
    kit.push(kit.settled(SettledStatus::Failed, None));
    assert_eq!(base(&kit), own, "closed at once: there is no reply");
    let own = kit.draft.end();
    kit.push(kit.note(1));
    assert_eq!(base(&kit), own);
}

#[test]
fn a_wrong_base_is_illegal_and_changes_nothing() {
    let kit = Kit::new();
    let (line, _) = chain::encode(
        kit.draft.next_seq(),
        &at(0),
        &kit.note(1).into(),
        kit.turn().admitted.offset + 1,
        &kit.session().head.hash,
    );
    let record = chain::decode(&line).expect("a record");
    let mut session = kit.session().clone();
    let before = format!("{session:?}");
    let error = session.apply(&record, kit.draft.end()).expect_err("a wrong base");
    assert!(error.why.contains("its base is"), "{error}");
    assert_eq!(format!("{session:?}"), before);
}

#[test]
fn what_is_read_from_a_base_on_means_the_same() {
    // t1 is closed behind the base of t2, so its records are strangers to who reads from there.
    let mut kit = Kit::with_key();
    kit.push(kit.settled(SettledStatus::Completed, Some("done")));
    kit.turn = turn_id("t2");
    kit.push(kit.admitted("more"));
    kit.push(kit.attempt(1));
    kit.turn = turn_id("t1");
    kit.push(kit.attempt(2));
    kit.push(kit.recovered(&[]));
    kit.push(kit.delivery(DeliveryState::Begun));
    kit.push(kit.delivery(DeliveryState::Sent));
    kit.turn = turn_id("t2");
    let open = kit.ask_one("never");
    kit.push(kit.not_run(open, NotRunWhy::Refused));
    let base = kit.draft.history.iter().next_back().expect("a record").1.base;
    let mut session: Option<Session> = None;
    for (offset, record) in kit.draft.history.iter().filter(|(offset, _)| *offset >= base) {
        let session = session.get_or_insert_with(|| {
            let genesis = kit.draft.bytes.split(|byte| *byte == b'\n').next().expect("a line");
            let genesis = chain::decode(genesis).expect("a genesis");
            let mut session = Session::begin("room".to_owned(), &genesis, Retain::Unclosed);
            session.skip_to_base();
            session
        });
        session.apply(record, offset).expect("legal, as far as can be seen");
        assert!(session.turns.iter().all(|turn| turn.lost_numbers == 0), "what was not read is not lost");
    }
    let session = session.expect("records");
    assert!(!session.is_complete() && kit.session().is_complete(), "whether closed turns are known too");
    let turn = session.turn(&kit.turn).expect("the open turn");
    assert_eq!(format!("{turn:?}"), format!("{:?}", kit.turn()));
    assert_eq!(session.head, kit.session().head);
    assert_eq!(session.turns.len(), 1);
    // A base is judged unless it stands before what was read.
    let fits = |kind: Kind, base: u64| {
        let (line, _) = chain::encode(session.next_seq(), &at(0), &kind, base, &session.head.hash);
        let record = chain::decode(&line).expect("a record");
        session.clone().apply(&record, kit.draft.end()).is_ok()
    };
    let (note, closing) = (Kind::from(kit.note(1)), Kind::from(kit.settled(SettledStatus::Failed, None)));
    assert_eq!([base - 1, base, base + 1].map(|base| fits(note.clone(), base)), [true, true, false]);
    assert_eq!([base, kit.draft.end()].map(|base| fits(closing.clone(), base)), [false, true]);
}

#[test]
fn closed_turns_are_let_go_but_for_the_newest_unless_all_are_wanted() {
    let mut kit = Kit::new();
    settle_and_close(&mut kit);
    kit.turn = turn_id("t2");
    kit.push(Admitted { delivery: Some("k2".to_owned()), ..kit.admitted("more") });
    kit.push(kit.attempt(1));
    kit.push(kit.settled(SettledStatus::Completed, Some("not delivered")));
    kit.turn = turn_id("t3");
    kit.push(kit.admitted("yet more"));
    kit.push(kit.attempt(1));
    settle_and_close(&mut kit);
    let kept = |retain| {
        let turns = kit.reread(retain, &[]).expect("legal records").turns;
        turns.iter().map(|turn| turn.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(kept(Retain::Unclosed), ["t2", "t3"]);
    assert_eq!(kept(Retain::All), ["t1", "t2", "t3"]);
}

#[test]
fn reading_the_bytes_again_gives_the_same_state() {
    let mut kit = Kit::with_key();
    let calls = kit.ask(&["a:safe", "b:never"]);
    kit.claim(calls[0]);
    kit.answer(calls[0], "x");
    kit.push(kit.steered("and?", Some("k9")));
    kit.recover(&[(calls[1], Decision::Run)]);
    assert_eq!(
        format!("{:?}", kit.reread(Retain::Unclosed, &[]).expect("legal records").turns),
        format!("{:?}", kit.session().turns)
    );
}

// 3.2, 3.3: digests, names, keys.

#[test]
fn digests_and_keys_are_those_of_the_bodies() {
    let mut kit = Kit::empty();
    let wrong = chain::digest(b"another");
    kit.refuse(Admitted { input_sha256: wrong.clone(), ..kit.admitted("go") });
    kit.push(kit.admitted("go"));
    kit.push(kit.attempt(1));
    let steered = kit.steered("x", None);
    kit.refuse(Steered { input_sha256: wrong.clone(), ..steered });
    let body = model("x", "toolUse", &["a:never"]);
    for spoil in [
        |calls: &mut crate::record::CallIntent| calls.args_sha256 = chain::digest(b"another"),
        |calls: &mut crate::record::CallIntent| calls.key = "tk_0".to_owned(),
        |calls: &mut crate::record::CallIntent| calls.tool = "another".to_owned(),
        |calls: &mut crate::record::CallIntent| calls.r#ref = call("9.0"),
    ] {
        let mut message = kit.message(&body);
        spoil(&mut message.calls.as_mut().expect("calls")[0]);
        kit.refuse(message);
    }
    kit.refuse(Message { calls: None, ..kit.message(&body) });
    let intent = kit.intent("i", "never", None);
    kit.refuse(crate::record::Intent { args_sha256: wrong, ..intent.clone() });
    kit.refuse(crate::record::Intent { key: "tk_1".to_owned(), ..intent });
    let asked = kit.ask_one("never");
    kit.refuse(Claimed { key: "tk_2".to_owned(), ..kit.claimed(asked) });
    let expected = chain::call_key(&kit.session().genesis, &kit.turn, asked);
    assert_eq!(kit.at_ref(asked).map(|call| call.key.clone()), Some(expected));
}

/// Providers double and omit ids; one that tells its call apart stays what it is.
#[test]
fn an_id_is_replaced_only_where_it_does_not_tell_its_call_apart() {
    let kit = Kit::new();
    let with_id = |calls: &[&str], id: &str| {
        let mut message = kit.message(&model("x", "toolUse", calls));
        message.calls.as_mut().expect("calls")[0].id = Some(id.to_owned());
        message
    };
    assert!(kit.clone().refuse(with_id(&["a:never"], "b")).contains("another id"));
    assert!(kit.clone().refuse(with_id(&["a:never", "b:never"], "b")).contains("another id"));
    kit.clone().push(with_id(&["a:never", "a:never"], "a-1"));
    kit.clone().push(with_id(&[":never"], "call-1"));
}

#[test]
fn keys_are_equal_across_attempts_and_differ_between_calls() {
    let mut kit = Kit::new();
    let calls = kit.ask(&["a:safe", "b:safe"]);
    kit.claim(calls[0]);
    let key = kit.at_ref(calls[0]).expect("a call").key.clone();
    kit.recover(&[(calls[0], Decision::Rerun)]);
    kit.claim(calls[0]);
    assert_eq!(kit.at_ref(calls[0]).expect("a call").key, key);
    assert_ne!(kit.at_ref(calls[1]).expect("a call").key, key);
}

#[test]
fn turns_and_delivery_keys_are_named_once_in_a_session() {
    let mut kit = Kit::with_key();
    settle_and_close(&mut kit);
    assert!(kit.refuse(kit.admitted("again")).contains("admitted before"));
    kit.turn = turn_id("t2");
    assert!(kit.refuse(Admitted { delivery: Some("k1".to_owned()), ..kit.admitted("x") }).contains("k1"));
    kit.push(kit.admitted("x"));
    assert!(kit.refuse(kit.steered("y", Some("k1"))).contains("k1"));
    kit.push(kit.steered("y", Some("k2")));
    kit.refuse(kit.steered("y", Some("k2")));
    assert_eq!(kit.session().turn_of_key("k2"), Some(&turn_id("t2")));
    assert!(kit.session().knows(&turn_id("t1")) && !kit.session().knows(&turn_id("t3")));
}

#[test]
fn a_second_genesis_an_unknown_turn_and_a_second_open_turn_are_illegal() {
    let mut kit = Kit::new();
    let opened = crate::record::Opened {
        format: crate::record::FORMAT.to_owned(),
        session: "room".to_owned(),
        id: "x".to_owned(),
    };
    kit.refuse(opened);
    kit.turn = turn_id("t2");
    assert!(kit.refuse(kit.admitted("x")).contains("t1 is open"));
    assert!(kit.refuse(kit.note(1)).contains("never admitted"));
    kit.turn = turn_id("t1");
    settle_and_close(&mut kit);
    kit.turn = turn_id("t2");
    kit.push(kit.admitted("x"));
}

#[test]
fn the_tree_of_a_turn_is_of_a_known_format_with_a_whole_leaf() {
    let file = File::new();
    let mut kit = Kit::empty();
    let good = kit.admitted_on(&file, TreeMode::Branch, "go");
    let with = |change: fn(&mut crate::record::AdmittedTree)| {
        let mut admitted = good.clone();
        change(admitted.tree.as_mut().expect("a tree"));
        admitted
    };
    kit.refuse(with(|tree| tree.format = "pi/4".to_owned()));
    kit.refuse(with(|tree| tree.leaf_at = None));
    kit.refuse(with(|tree| tree.leaf = None));
    kit.push(good.clone());
    assert!(!kit.turn().tree_passed_on);
    kit.push(kit.attempt(1));
    settle_and_close(&mut kit);
}

#[test]
fn a_later_turn_on_the_same_tree_takes_it_over_even_when_it_is_closed() {
    let file = File::new();
    let mut kit = Kit::empty();
    let admitted = kit.admitted_on(&file, TreeMode::Branch, "go");
    kit.push(Admitted { delivery: Some("k1".to_owned()), ..admitted });
    kit.push(kit.attempt(1));
    kit.push(kit.settled(SettledStatus::Completed, Some("r")));
    assert!(crate::recovery::owns_tree(kit.session(), kit.turn()));
    kit.turn = turn_id("t2");
    kit.push(kit.admitted_on(&file, TreeMode::Branch, "more"));
    kit.push(kit.attempt(1));
    assert!(crate::recovery::owns_tree(kit.session(), kit.turn()));
    settle_and_close(&mut kit);
    kit.turn = turn_id("t1");
    assert_eq!(kit.session().unclosed().count(), 1, "the later turn is closed");
    assert!(!crate::recovery::owns_tree(kit.session(), kit.turn()));
}

// Attempts.

#[test]
fn attempts_are_counted_without_gaps() {
    let mut kit = Kit::empty();
    kit.push(kit.admitted("go"));
    kit.refuse(kit.attempt(2));
    kit.refuse(kit.message(&model("x", "stop", &[])));
    kit.push(kit.attempt(1));
    kit.refuse(kit.attempt(1));
    kit.refuse(kit.attempt(3));
    kit.refuse(Attempt { cause: Cause::Admit, ..kit.attempt(2) });
    kit.push(Attempt { cause: Cause::Takeover, ..kit.attempt(2) });
}

#[test]
fn only_the_current_attempt_acts() {
    let mut kit = Kit::new();
    let asked = kit.ask_one("never");
    kit.recover(&[(asked, Decision::Run)]);
    let old = kit.clone();
    kit.refuse(Claimed { attempt: 1, ..old.claimed(asked) });
    kit.refuse(Message { attempt: 1, ..old.message(&model("x", "length", &[])) });
    kit.refuse(crate::record::NotRun { attempt: 1, ..old.not_run(asked, NotRunWhy::Refused) });
    kit.refuse(crate::record::Settled { attempt: 1, ..old.settled(SettledStatus::Failed, None) });
    kit.refuse(crate::record::Heartbeat { attempt: 1, ..old.heartbeat(5) });
    kit.refuse(Claimed { attempt: 3, ..old.claimed(asked) });
    kit.push(kit.note(1));
    kit.push(kit.straggler(Some(asked), 1));
    kit.refuse(kit.note(3));
    kit.refuse(kit.straggler(None, 0));
    kit.claim(asked);
}

#[test]
fn an_unfinished_recover_takes_no_steps_and_is_gone_on_with() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:never", "c:never"]);
    kit.push(kit.run_by(asked[1], 77));
    kit.claim(asked[2]);
    kit.push(kit.attempt(2));
    kit.refuse(kit.claimed(asked[0]));
    kit.refuse(kit.message(&model("x", "stop", &[])));
    kit.refuse(kit.heartbeat(5));
    kit.refuse(kit.note(2));
    kit.refuse(kit.settled(SettledStatus::Failed, None));
    kit.push(kit.note(1));
    kit.push(Outcome { attempt: 1, ..kit.result(asked[1], "came meanwhile") });
    kit.push(kit.interrupted(asked[2]));
    let first = kit.turn().current().expect("an attempt").first_seq;
    kit.push(kit.attempt(2));
    assert_eq!(kit.turn().current().expect("an attempt").first_seq, first);
    assert_eq!(kit.turn().attempts.len(), 2);
    kit.push(kit.recovered(&[(asked[0], Decision::Run)]));
    kit.refuse(kit.attempt(2));
    kit.claim(asked[0]);
}

#[test]
fn a_recover_decides_about_calls_that_there_are() {
    let mut kit = Kit::new();
    let asked = kit.ask_one("safe");
    kit.push(kit.attempt(2));
    kit.refuse(kit.recovered_only(&[(asked, Decision::Run), (call("99.0"), Decision::Run)]));
    kit.push(kit.recovered(&[(asked, Decision::Run)]));
}

#[test]
fn a_rerun_is_decided_only_where_both_policies_let_it() {
    use crate::record::Replay::{Keyed, Never, Safe};
    let mut kit = Kit::new();
    let asked = kit.ask_one("keyed");
    kit.claim(asked);
    kit.push(kit.attempt(2));
    for (stored, now, fits) in [
        (Keyed, Keyed, true),
        (Keyed, Safe, true),
        (Keyed, Never, false),
        (Never, Safe, false),
        (Safe, Safe, false),
    ] {
        let mut recovered = kit.recovered(&[(asked, Decision::Rerun)]);
        (recovered.decisions[0].replay_stored, recovered.decisions[0].replay_now) = (stored, now);
        assert_eq!(kit.draft.clone().push(recovered).is_ok(), fits, "stored {stored}, now {now}");
    }
    kit.push(kit.cancelled());
    kit.refuse(kit.recovered(&[(asked, Decision::Rerun)]));
}

#[test]
fn the_same_attempt_may_decide_again_and_nothing_told_before_is_lost() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:safe", "b:never"]);
    kit.push(kit.run_by(asked[0], 77));
    kit.recover(&[(asked[0], Decision::Await), (asked[1], Decision::Run)]);
    kit.push(kit.recovered_only(&[(asked[0], Decision::Rerun)]));
    let (_, told) = kit.turn().current().and_then(|attempt| attempt.recovered.clone()).expect("decisions");
    let told: Vec<_> = told.iter().map(|decided| (decided.r#ref, decided.decision)).collect();
    assert_eq!(told, [(asked[1], Decision::Run), (asked[0], Decision::Rerun)]);
}

// Messages and entries.

#[test]
fn a_models_message_waits_for_every_answer() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:never"]);
    kit.claim(asked[0]);
    kit.answer(asked[0], "x");
    assert!(kit.refuse(kit.message(&model("more", "stop", &[]))).contains("3.1"));
    kit.refuse(kit.entry(&entry("e1", "a2", &model("more", "stop", &[]))));
    kit.push(kit.message(&user("wait")));
    kit.push(kit.not_run(asked[1], NotRunWhy::Refused));
    kit.say("more");
}

#[test]
fn only_a_models_message_has_calls() {
    let mut kit = Kit::new();
    let calls = kit.message(&model("x", "toolUse", &["a:never"])).calls;
    kit.refuse(Message { calls: calls.clone(), ..kit.message(&user("x")) });
    let custom = other_entry("custom", "e1", "a2", "");
    kit.refuse(crate::record::Entry { calls, ..kit.entry(&custom) });
    kit.push(kit.entry(&custom));
    assert_eq!(last_said(&kit), Stands::Other);
}

#[test]
fn a_message_is_of_the_format_it_says() {
    let mut kit = Kit::new();
    kit.refuse(Message { format: "morse".to_owned(), ..kit.message(&user("x")) });
    kit.refuse(crate::record::Entry {
        entry: Raw::text("no object"),
        ..kit.entry(&entry("e", "a2", &user("x")))
    });
    kit.refuse(kit.entry(&other_entry("message", "e", "a2", "")));
}

#[test]
fn cut_off_and_failed_messages_have_calls_that_never_run() {
    for (stop, source) in [("length", Source::CutOff), ("aborted", Source::Failed)] {
        let mut kit = Kit::new();
        let mark = kit.push(kit.message(&model("x", stop, &["a:safe"])));
        let asked = CallRef { seq: mark.seq, position: 0 };
        assert_eq!(kit.at_ref(asked).expect("a call").source, source);
        kit.refuse(kit.claimed(asked));
        kit.refuse(kit.dispatched(asked, None));
        kit.push(kit.not_run(asked, NotRunWhy::CutOff));
        assert_eq!(kit.turn().has_model_message(), stop == "length");
    }
}

#[test]
fn what_a_user_says_is_the_input_a_steered_message_or_news() {
    let mut kit = Kit::new();
    kit.push(kit.message(&user("something else")));
    assert_eq!(last_said(&kit), Stands::User, "a message that says something else is no form of the input");
    kit.push(kit.entry(&entry("e1", "a2", &user("go, in the agent's words"))));
    assert_eq!(last_said(&kit), Stands::Input, "a user's entry before the first model message is");
    kit.push(kit.entry(&entry("e2", "e1", &user("go"))));
    assert_eq!(last_said(&kit), Stands::User, "once");
    kit.say("hm");
    kit.push(kit.steered("also", None));
    kit.push(kit.entry(&entry("e3", "e2", &user("also"))));
    assert_eq!(last_said(&kit), Stands::Steered(0));
    kit.push(kit.entry(&entry("e4", "e3", &user("also"))));
    assert_eq!(last_said(&kit), Stands::User, "repeated once");
    let mut kit = Kit::new();
    kit.push(kit.message(&user("go")));
    assert_eq!(last_said(&kit), Stands::Input, "a message of the same text");
    let mut kit = Kit::new();
    kit.say("hm");
    kit.push(kit.entry(&entry("e1", "a2", &user("go"))));
    assert_eq!(last_said(&kit), Stands::User, "behind the first model message");
    let newest = kit.session().head.seq;
    assert!(kit.turn().user_message_behind(newest - 1) && !kit.turn().user_message_behind(newest));
}

#[test]
fn headers_system_messages_and_the_rest_are_told_apart() {
    let mut kit = Kit::new();
    kit.push(kit.entry(r#"{"type":"session","version":3,"id":"s","timestamp":"t","cwd":"/"}"#));
    assert_eq!(last_said(&kit), Stands::Header);
    kit.push(kit.message(r#"{"role":"system","content":"be brief"}"#));
    assert_eq!(last_said(&kit), Stands::System);
    kit.push(kit.entry(&entry("e", "a2", r#"{"role":"bashExecution","command":"ls"}"#)));
    assert_eq!(last_said(&kit), Stands::Other);
}

#[test]
fn a_tool_result_message_needs_a_call_that_was_claimed_or_answered() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:never", "c:never", "d:safe"]);
    kit.refuse(kit.message(&tool_result("a", "x")));
    kit.refuse(kit.message(&tool_result("nobody", "x")));
    kit.claim(asked[0]);
    kit.push(kit.message(&tool_result("a", "x")));
    assert_eq!(
        kit.at_ref(asked[0]).and_then(|call| call.answer.clone()).expect("it is the result").kind,
        AnswerKind::Result
    );
    kit.claim(asked[1]);
    let stored = kit.answer(asked[1], "y");
    kit.push(kit.entry(&entry("e1", "a2", &tool_result("b", "y"))));
    let told = kit.at_ref(asked[1]).expect("a call");
    assert_eq!(told.answer.as_ref().expect("an answer").mark, stored, "the stored one stays the answer");
    let first = told.told.clone();
    kit.push(kit.entry(&entry("e2", "e1", &tool_result("b", "again"))));
    assert_eq!(kit.at_ref(asked[1]).expect("a call").told, first, "told twice, the first form stands");
    kit.push(kit.dispatched(asked[2], None));
    kit.push(kit.message(&tool_result("c", "z")));
    kit.claim(asked[3]);
    kit.recover(&[(asked[3], Decision::Rerun)]);
    kit.refuse(kit.message(&tool_result("d", "of the old claim")));
}

#[test]
fn results_belong_to_the_newest_message_that_asked_under_their_id() {
    let mut kit = Kit::new();
    let old = kit.ask_one("never");
    kit.claim(old);
    kit.answer(old, "x");
    let new = kit.ask(&["c:never", "c:never"]);
    assert_eq!((kit.turn().call_told("c"), kit.turn().call_told("d")), (Some(1), None));
    kit.claim(new[0]);
    kit.claim(new[1]);
    kit.push(kit.message(&tool_result("c", "1")));
    assert!(
        kit.at_ref(new[0]).expect("a call").answer.is_some()
            && kit.at_ref(new[1]).expect("a call").answer.is_none()
    );
    kit.push(kit.message(&tool_result("c", "2")));
    assert!(kit.at_ref(new[1]).expect("a call").answer.is_some());
    assert!(kit.at_ref(old).expect("a call").told.is_none());
}

#[test]
fn one_message_may_hold_the_results_of_doubled_ids_and_declared_calls_do_not_hide_them() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["c:never", "c:never"]);
    kit.claim(asked[0]);
    kit.claim(asked[1]);
    let nested = kit.push(kit.intent("c", "never", Some(asked[0])));
    kit.push(kit.message_of(
        Format::Anthropic,
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"1"},{"type":"tool_result","tool_use_id":"c","content":"2"}]}"#,
    ));
    assert_eq!(last_said(&kit), Stands::Results(vec![0, 1]));
    kit.push(kit.message_of(
        Format::Anthropic,
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"1"},{"type":"text","text":"go"}]}"#,
    ));
    assert_eq!(last_said(&kit), Stands::Results(vec![1]), "whatever a user says beside it");
    assert!(kit.at_ref(CallRef { seq: nested.seq, position: 0 }).expect("a call").answer.is_none());
}

// Claims, results, answers.

#[test]
fn one_claim_at_a_time_but_for_one_that_a_recover_decided() {
    let mut kit = Kit::new();
    let asked = kit.ask_one("safe");
    kit.claim(asked);
    assert!(kit.refuse(kit.claimed(asked)).contains("claimed already"));
    kit.refuse(kit.dispatched(asked, None));
    kit.recover(&[(asked, Decision::Rerun)]);
    kit.claim(asked);
    kit.refuse(kit.claimed(asked));
    kit.recover(&[(asked, Decision::Rerun)]);
    let spent = kit.clone();
    kit.push(kit.attempt(4));
    kit.push(kit.recovered(&[]));
    assert_eq!(spent.at_ref(asked).expect("a call").rerun_by, Some(3));
    assert!(kit.refuse(kit.claimed(asked)).contains("claimed already"), "another attempt decided that");
}

#[test]
fn claims_need_a_call_that_is_open_and_an_approval_where_one_was_asked_for() {
    let mut kit = Kit::new();
    kit.refuse(kit.claimed(call("1.0")));
    let asked = kit.ask(&["a:ask", "b:never"]);
    kit.refuse(kit.claimed(asked[0]));
    kit.push(kit.approval(asked[0], ApprovalDecision::Denied));
    kit.refuse(kit.claimed(asked[0]));
    kit.push(kit.approval(asked[0], ApprovalDecision::Granted));
    kit.claim(asked[0]);
    assert!(kit.at_ref(asked[0]).expect("a call").approved.is_none(), "spent");
    kit.push(kit.not_run(asked[1], NotRunWhy::Refused));
    kit.refuse(kit.claimed(asked[1]));
    kit.refuse(kit.approval(asked[1], ApprovalDecision::Granted));
}

#[test]
fn an_approval_for_a_time_outlives_a_claim() {
    let mut kit = Kit::new();
    let asked = kit.ask_one("safe_ask");
    let granted = kit.approval(asked, ApprovalDecision::Granted);
    kit.push(Approval { expires: Some(at(60)), ..granted });
    kit.claim(asked);
    assert!(kit.at_ref(asked).expect("a call").approved.is_some());
}

#[test]
fn a_result_comes_from_the_attempt_that_holds_the_claim() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:safe"]);
    kit.refuse(kit.result(asked[0], "never claimed"));
    kit.refuse(kit.result(call("9.9"), "unknown"));
    kit.push(kit.run_by(asked[0], 77));
    kit.push(kit.run_by(asked[1], 78));
    kit.recover(&[(asked[0], Decision::Await), (asked[1], Decision::Rerun)]);
    kit.refuse(kit.result(asked[0], "of attempt 2, which claimed nothing"));
    kit.push(Outcome { attempt: 1, ..kit.result(asked[0], "in time") });
    kit.refuse(Outcome { attempt: 1, ..kit.result(asked[0], "twice") });
    kit.refuse(Outcome { attempt: 1, ..kit.result(asked[1], "a straggler") });
    kit.push(kit.straggler(Some(asked[1]), 1));
    kit.claim(asked[1]);
    kit.answer(asked[1], "again");
    assert_eq!(kit.turn().stragglers.len(), 1);
}

#[test]
fn a_claim_that_a_rerun_ended_stays_ended_whatever_is_decided_later() {
    let mut kit = Kit::new();
    let asked = kit.ask_one("safe");
    kit.push(kit.run_by(asked, 77));
    kit.recover(&[(asked, Decision::Rerun)]);
    kit.recover(&[(asked, Decision::Hold)]);
    assert!(kit.at_ref(asked).expect("a call").live_claim().is_none());
    kit.refuse(Outcome { attempt: 1, ..kit.result(asked, "late") });
    assert!(kit.at_ref(asked).expect("a call").may_have_run(), "it stays claimed for the table");
}

#[test]
fn a_dispatched_call_is_answered_by_any_attempt_not_older() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:never"]);
    kit.recover(&[]);
    kit.push(kit.dispatched(asked[0], None));
    kit.push(kit.dispatched(asked[1], Some("r-1")));
    kit.refuse(Outcome { attempt: 1, ..kit.result(asked[0], "older") });
    kit.recover(&[]);
    kit.answer(asked[0], "newer");
    kit.push(Outcome { attempt: 2, ..kit.result(asked[1], "the same") });
}

#[test]
fn the_current_attempt_dispatches_once_its_recover_is_done() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:never"]);
    kit.push(kit.attempt(2));
    kit.refuse(Dispatched { attempt: 2, ..kit.dispatched(asked[0], None) });
    kit.refuse(Dispatched { attempt: 1, ..kit.dispatched(asked[0], None) });
    let mut done = Kit::new();
    let asked = done.ask_one("never");
    done.recover(&[(asked, Decision::Run)]);
    done.refuse(Dispatched { attempt: 1, ..done.dispatched(asked, None) });
    done.push(Dispatched { attempt: 2, ..done.dispatched(asked, None) });
}

#[test]
fn the_receipt_of_a_dispatch_is_added_once() {
    let mut kit = Kit::new();
    let asked = kit.ask_one("never");
    kit.push(kit.dispatched(asked, None));
    kit.refuse(kit.dispatched(asked, None));
    kit.refuse(Dispatched { to: "elsewhere".to_owned(), ..kit.dispatched(asked, Some("r")) });
    kit.recover(&[]);
    kit.recover(&[]);
    kit.refuse(Dispatched { attempt: 2, ..kit.dispatched(asked, Some("r")) });
    kit.push(Dispatched { attempt: 1, ..kit.dispatched(asked, Some("r")) });
    kit.refuse(kit.dispatched(asked, Some("r")));
    kit.refuse(kit.claimed(asked));
}

#[test]
fn not_run_is_for_what_never_started() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:never", "c:never", "d:safe", "e:never", "f:never"]);
    kit.push(kit.not_run(asked[0], NotRunWhy::Refused));
    kit.refuse(kit.not_run(asked[0], NotRunWhy::Refused));
    kit.claim(asked[1]);
    kit.push(kit.not_run(asked[1], NotRunWhy::Refused));
    kit.push(kit.run_by(asked[2], 77));
    assert!(kit.refuse(kit.not_run(asked[2], NotRunWhy::Refused)).contains("may have run"));
    kit.push(kit.dispatched(asked[4], None));
    kit.refuse(kit.not_run(asked[4], NotRunWhy::Refused));
    kit.claim(asked[3]);
    kit.claim(asked[5]);
    kit.recover(&[(asked[3], Decision::Rerun)]);
    kit.refuse(kit.not_run(asked[5], NotRunWhy::Refused));
    kit.refuse(kit.not_run(asked[3], NotRunWhy::Refused));
    kit.claim(asked[3]);
    assert!(
        kit.refuse(kit.not_run(asked[3], NotRunWhy::Refused)).contains("may have run"),
        "not its only claim"
    );
}

#[test]
fn interrupted_is_for_what_was_claimed() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:never", "c:never"]);
    kit.refuse(kit.interrupted(asked[0]));
    kit.claim(asked[0]);
    kit.push(kit.dispatched(asked[1], None));
    kit.claim(asked[2]);
    kit.push(kit.reconciled(asked[2], ReconciledOutcome::NotApplied));
    kit.recover(&[]);
    kit.push(kit.interrupted(asked[0]));
    kit.push(kit.interrupted(asked[1]));
    kit.refuse(kit.interrupted(asked[0]));
    kit.refuse(kit.interrupted(asked[2]));
}

#[test]
fn reconciling_is_for_calls_whose_outcome_is_unknown() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:never", "c:never", "d:never"]);
    kit.refuse(kit.reconciled(asked[0], ReconciledOutcome::NotApplied));
    kit.claim(asked[0]);
    kit.refuse(Reconciled { content: None, ..kit.reconciled(asked[0], ReconciledOutcome::Applied) });
    kit.push(kit.reconciled(asked[0], ReconciledOutcome::NotApplied));
    kit.push(kit.reconciled(asked[0], ReconciledOutcome::Applied));
    kit.refuse(kit.reconciled(asked[0], ReconciledOutcome::Unknown));
    kit.push(kit.dispatched(asked[1], None));
    kit.push(kit.reconciled(asked[1], ReconciledOutcome::NotApplied));
    assert!(kit.at_ref(asked[1]).expect("a call").not_applied.is_some());
    kit.claim(asked[1]);
    assert!(kit.at_ref(asked[1]).expect("a call").not_applied.is_none());
    kit.claim(asked[2]);
    kit.answer(asked[2], "known");
    kit.refuse(kit.reconciled(asked[2], ReconciledOutcome::Applied));
    kit.claim(asked[3]);
    kit.push(kit.reconciled(asked[3], ReconciledOutcome::Unknown));
    assert_eq!(
        kit.at_ref(asked[3]).and_then(|call| call.answer.clone()).expect("an answer").kind,
        AnswerKind::Unknown
    );
}

#[test]
fn calls_are_nested_in_calls_that_there_are() {
    let mut kit = Kit::new();
    kit.refuse(kit.intent("n", "never", Some(call("7.0"))));
    let outer = kit.ask_one("never");
    kit.push(kit.intent("n", "never", Some(outer)));
    assert_eq!(kit.turn().calls[1].parent, Some(outer));
    assert_eq!(kit.turn().calls[1].source, Source::Declared);
}

/// Before a rerun is claimed, what is declared is declared for it.
#[test]
fn a_nested_call_belongs_to_one_run_of_its_parent() {
    let mut kit = Kit::new();
    let outer = kit.ask_one("safe");
    let run_of_declared = |kit: &mut Kit, id: &str| {
        kit.push(kit.intent(id, "safe", Some(outer)));
        let nested = kit.turn().calls.last().expect("the call").clone();
        (nested.parent_run, kit.at_ref(outer).expect("the parent").runs)
    };
    assert_eq!(run_of_declared(&mut kit, "before"), (1, 0));
    kit.claim(outer);
    assert_eq!(run_of_declared(&mut kit, "within"), (1, 1));
    kit.recover(&[(outer, Decision::Rerun)]);
    assert_eq!(run_of_declared(&mut kit, "between"), (2, 1));
    kit.push(Claimed { attempt: 2, ..kit.claimed(outer) });
    assert_eq!(run_of_declared(&mut kit, "again"), (2, 2));
    kit.push(kit.reconciled(outer, ReconciledOutcome::NotApplied));
    kit.push(kit.dispatched(outer, None));
    kit.push(kit.dispatched(outer, Some("r")));
    assert_eq!(run_of_declared(&mut kit, "far"), (3, 3), "a receipt begins nothing");
    kit.push(acknowledge(kit.draft.end()));
    kit.push(kit.unparked());
    kit.push(kit.reconciled(outer, ReconciledOutcome::NotApplied));
    assert_eq!(run_of_declared(&mut kit, "behind"), (5, 4), "what is lost may have been a run");
}

#[test]
fn what_is_declared_anew_is_known_by_its_id_and_parent() {
    let mut kit = Kit::new();
    let mut declare = |id: &str, parent: Option<CallRef>| {
        kit.push(kit.intent(id, "safe", parent));
        let call = kit.turn().calls.last().expect("the call").clone();
        (call.r#ref, call.declared_first)
    };
    let (first, itself) = declare("outer", None);
    assert_eq!(first, itself);
    let (inner, _) = declare("inner", Some(first));
    let (again, known) = declare("outer", None);
    assert!(again != first && known == first);
    assert_eq!(declare("inner", Some(again)).1, inner, "in the same call, declared anew");
    let (elsewhere, known) = declare("inner", None);
    assert_eq!(elsewhere, known, "in another call it is another");
    let (other, known) = declare("other", Some(first));
    assert_eq!(other, known);
}

#[test]
fn an_id_means_what_the_run_at_work_declared_under_it() {
    let mut kit = Kit::new();
    let outer = kit.ask_one("safe");
    let declare = |kit: &mut Kit, id: &str, parent: Option<CallRef>| {
        kit.push(kit.intent(id, "safe", parent));
        kit.turn().calls.last().expect("the call").r#ref
    };
    let before = |kit: &Kit, id: &str, parent: Option<CallRef>| {
        kit.turn().declared_before(id, parent).map(|(call, how)| (call.r#ref, how))
    };
    kit.claim(outer);
    assert_eq!(before(&kit, "n", Some(outer)), None);
    assert_eq!(before(&kit, "c", None), None, "what a model asked for is not declared");
    let first = declare(&mut kit, "n", Some(outer));
    assert_eq!(before(&kit, "n", Some(outer)), Some((first, Declared::Now)));
    assert_eq!(before(&kit, "n", None), Some((first, Declared::Elsewhere)));
    assert_eq!(before(&kit, "n", Some(first)), Some((first, Declared::Elsewhere)));
    kit.recover(&[(outer, Decision::Rerun)]);
    assert_eq!(before(&kit, "n", Some(outer)), Some((first, Declared::Now)), "the rerun has not begun");
    kit.push(Claimed { attempt: 2, ..kit.claimed(outer) });
    assert_eq!(before(&kit, "n", Some(outer)), Some((first, Declared::InEarlierRun)));
    let again = declare(&mut kit, "n", Some(outer));
    assert_eq!(before(&kit, "n", Some(outer)), Some((again, Declared::Now)));
    // Of both there are nested calls, as where a remote executor is still at the first one.
    let deep = [first, again].map(|parent| declare(&mut kit, "deep", Some(parent)));
    assert_eq!(before(&kit, "deep", Some(first)), Some((deep[0], Declared::Now)));
    assert_eq!(before(&kit, "deep", Some(again)), Some((deep[1], Declared::Now)));
    let third = declare(&mut kit, "n", Some(outer));
    assert_eq!(before(&kit, "deep", Some(third)), Some((deep[1], Declared::InEarlierRun)));
}

#[test]
fn reasons_and_decisions_are_what_the_records_before_show() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:never"]);
    kit.refuse(kit.not_run(asked[0], NotRunWhy::CutOff));
    kit.refuse(kit.not_run(asked[0], NotRunWhy::Denied));
    kit.claim(asked[1]);
    kit.push(kit.attempt(2));
    kit.refuse(kit.recovered(&[(asked[1], Decision::Interrupt)]));
    kit.refuse(kit.recovered(&[(asked[0], Decision::NotRun)]));
    kit.push(kit.interrupted(asked[1]));
    let (run, interrupt) = ((asked[0], Decision::Run), (asked[1], Decision::Interrupt));
    kit.refuse(kit.recovered_only(&[interrupt]));
    kit.refuse(kit.recovered_only(&[run, run, interrupt]));
    kit.push(kit.recovered_only(&[run, interrupt]));
    // The same owner asked again, and this became due.
    kit.push(kit.recovered_only(&[interrupt]));
    kit.push(kit.approval(asked[0], ApprovalDecision::Denied));
    kit.push(kit.not_run(asked[0], NotRunWhy::Denied));
}

// After cancelled, settling, settled, closed, parked.

#[test]
fn after_cancelled_nothing_new_begins_and_what_was_begun_ends() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:never", "c:never", "d:never"]);
    kit.claim(asked[0]);
    kit.claim(asked[1]);
    kit.push(kit.dispatched(asked[3], None));
    kit.push(kit.cancelled());
    kit.refuse(kit.cancelled());
    kit.refuse(kit.claimed(asked[2]));
    kit.refuse(kit.dispatched(asked[2], None));
    kit.refuse(kit.intent("i", "never", None));
    kit.refuse(kit.steered("x", None));
    kit.answer(asked[0], "came");
    kit.push(kit.reconciled(asked[1], ReconciledOutcome::Unknown));
    kit.push(kit.not_run(asked[2], NotRunWhy::Cancelled));
    kit.push(kit.dispatched(asked[3], Some("r")));
    kit.answer(asked[3], "came");
    kit.refuse(kit.message(&model("x", "toolUse", &["e:safe"])));
    kit.refuse(kit.entry(&entry("e1", "a2", &model("x", "toolUse", &["e:safe"]))));
    let cut = kit.push(kit.message(&model("x", "aborted", &["e:safe"])));
    kit.push(kit.not_run(CallRef { seq: cut.seq, position: 0 }, NotRunWhy::CutOff));
    kit.say("stopped");
    kit.refuse(kit.settled(SettledStatus::Completed, None));
    kit.push(kit.settled(SettledStatus::Cancelled, None));
}

#[test]
fn settling_needs_every_answer_and_completing_needs_every_input_seen() {
    let mut kit = Kit::new();
    let asked = kit.ask_one("never");
    for status in [SettledStatus::Completed, SettledStatus::Failed, SettledStatus::Cancelled] {
        assert!(kit.refuse(kit.settled(status, None)).contains("3.0"));
    }
    kit.claim(asked);
    kit.push(kit.steered("also", None));
    kit.answer(asked, "x");
    assert!(kit.refuse(kit.settled(SettledStatus::Completed, None)).contains("steered"));
    let mut failed = kit.clone();
    failed.push(failed.settled(SettledStatus::Failed, None));
    kit.push(kit.message(&model("x", "error", &[])));
    kit.refuse(kit.settled(SettledStatus::Completed, None));
    kit.say("both done");
    kit.push(kit.settled(SettledStatus::Completed, None));
}

#[test]
fn without_a_model_message_an_unseen_input_is_no_reason_to_wait() {
    let mut kit = Kit::new();
    kit.push(kit.steered("also", None));
    kit.push(kit.settled(SettledStatus::Completed, Some("by hand")));
}

#[test]
fn an_input_is_seen_by_a_model_that_was_asked_behind_it() {
    let seen = |kit: &Kit| kit.turn().steered_seen(0);
    let mut under_way = Kit::new();
    under_way.push(under_way.steered("also", None));
    under_way.say("this was under way");
    assert!(!seen(&under_way));
    under_way.say("now");
    assert!(seen(&under_way));

    let mut by_attempt = Kit::new();
    by_attempt.push(by_attempt.steered("also", None));
    by_attempt.recover(&[]);
    assert!(!seen(&by_attempt));
    by_attempt.say("asked anew");
    assert!(seen(&by_attempt));

    let mut by_answer = Kit::new();
    let asked = by_answer.ask_one("never");
    by_answer.claim(asked);
    by_answer.push(by_answer.steered("also", None));
    by_answer.answer(asked, "x");
    let anchor = by_answer.turn().anchor_of(&by_answer.turn().steered[0]);
    assert_eq!(anchor, Some(by_answer.session().head.seq));
    by_answer.push(by_answer.message(&model("x", "aborted", &[])));
    assert!(!seen(&by_answer), "that message is no message of the conversation");
    by_answer.say("now");
    assert!(seen(&by_answer));

    let mut other = Kit::new();
    other.push(other.steered("also", None));
    other.push(other.entry(&other_entry("custom", "e1", "a2", "")));
    other.push(other.note(1));
    assert_eq!(other.turn().anchor_of(&other.turn().steered[0]), None, "no message, answer or attempt");
}

#[test]
fn after_settled_only_delivery_and_recovery_go_on() {
    let mut kit = Kit::with_key();
    let asked = kit.ask_one("never");
    kit.claim(asked);
    kit.answer(asked, "x");
    kit.push(kit.settled(SettledStatus::Completed, Some("r")));
    kit.refuse(kit.message(&model("x", "stop", &[])));
    kit.refuse(kit.entry(&other_entry("custom", "e1", "a2", "")));
    kit.refuse(kit.intent("i", "never", None));
    kit.refuse(kit.claimed(asked));
    kit.refuse(kit.steered("x", None));
    kit.refuse(kit.cancelled());
    kit.refuse(kit.settled(SettledStatus::Failed, None));
    kit.refuse(kit.reconciled(asked, ReconciledOutcome::Unknown));
    kit.refuse(kit.approval(asked, ApprovalDecision::Granted));
    kit.push(kit.heartbeat(9));
    kit.push(kit.note(1));
    kit.push(kit.straggler(Some(asked), 1));
    kit.recover(&[]);
    kit.push(kit.parked());
    kit.push(kit.unparked());
    kit.push(kit.delivery(DeliveryState::Begun));
}

#[test]
fn after_closed_there_are_stragglers_and_notes() {
    let mut kit = Kit::with_key();
    kit.push(kit.settled(SettledStatus::Completed, Some("r")));
    let (begun, sent) = (kit.delivery(DeliveryState::Begun), kit.delivery(DeliveryState::Sent));
    let (attempt, parked, heartbeat) = (kit.attempt(2), kit.parked(), kit.heartbeat(1));
    kit.push(begun.clone());
    kit.push(sent);
    assert!(kit.session().unclosed().next().is_none());
    kit.refuse(begun);
    kit.refuse(attempt);
    kit.refuse(parked);
    kit.refuse(heartbeat);
    kit.push(kit.note(1));
    kit.push(kit.straggler(None, 1));
    kit.refuse(kit.note(2));
}

#[test]
fn a_parked_turn_waits_for_a_person() {
    let mut kit = Kit::new();
    let asked = kit.ask(&["a:never", "b:never", "c:never", "d:never", "e:never"]);
    kit.push(kit.run_by(asked[0], 77));
    kit.claim(asked[1]);
    kit.claim(asked[4]);
    kit.refuse(kit.unparked());
    kit.push(kit.parked());
    kit.refuse(kit.parked());
    kit.refuse(kit.attempt(2));
    kit.refuse(kit.claimed(asked[2]));
    kit.refuse(kit.dispatched(asked[2], None));
    kit.refuse(kit.message(&user("x")));
    kit.refuse(kit.interrupted(asked[1]));
    kit.refuse(kit.not_run(asked[2], NotRunWhy::Refused));
    kit.refuse(kit.heartbeat(1));
    kit.refuse(kit.settled(SettledStatus::Failed, None));
    kit.push(kit.note(1));
    kit.push(kit.straggler(None, 1));
    kit.push(kit.approval(asked[3], ApprovalDecision::Denied));
    kit.push(kit.not_run(asked[3], NotRunWhy::Denied));
    kit.push(kit.reconciled(asked[1], ReconciledOutcome::NotApplied));
    kit.push(kit.steered("x", None));
    kit.answer(asked[0], "the claim lives");
    kit.push(kit.cancelled());
    kit.push(kit.unparked());
    kit.push(kit.attempt(2));
    let mut kit = Kit::with_key();
    kit.push(kit.settled(SettledStatus::Completed, Some("r")));
    kit.push(kit.delivery(DeliveryState::Begun));
    kit.push(kit.parked());
    kit.push(kit.delivery(DeliveryState::NotSent));
    kit.refuse(kit.delivery(DeliveryState::Begun));
}

// Deliveries.

#[test]
fn deliveries_begin_and_end_in_order() {
    let settled = || {
        let mut kit = Kit::with_key();
        kit.push(kit.settled(SettledStatus::Completed, Some("r")));
        kit
    };
    let mut kit = settled();
    kit.refuse(kit.delivery(DeliveryState::Sent));
    kit.refuse(kit.delivery(DeliveryState::NotSent));
    kit.refuse(Delivery { key: "k2".to_owned(), ..kit.delivery(DeliveryState::Begun) });
    kit.push(kit.delivery(DeliveryState::Begun));
    kit.refuse(kit.delivery(DeliveryState::Begun));
    kit.push(kit.delivery(DeliveryState::NotSent));
    kit.refuse(kit.delivery(DeliveryState::NotSent));
    let mut taken_back = kit.clone();
    taken_back.push(taken_back.delivery(DeliveryState::Sent));
    assert!(taken_back.session().unclosed().next().is_none());
    kit.push(kit.delivery(DeliveryState::Begun));
    kit.push(kit.delivery(DeliveryState::Waived));
    assert!(kit.session().unclosed().next().is_none());

    let mut unbegun = settled();
    unbegun.push(unbegun.delivery(DeliveryState::Waived));
    assert!(unbegun.session().unclosed().next().is_none());
}

#[test]
fn there_is_something_to_deliver_where_there_is_a_key_and_a_reply() {
    let mut open = Kit::with_key();
    open.refuse(open.delivery(DeliveryState::Begun));
    let mut keyless = Kit::new();
    keyless.push(keyless.settled(SettledStatus::Completed, Some("r")));
    assert!(keyless.session().unclosed().next().is_none(), "closed at once");
}

#[test]
fn the_current_attempt_begins_a_delivery_and_its_own_attempt_ends_it() {
    let mut kit = Kit::with_key();
    kit.push(kit.settled(SettledStatus::Completed, Some("r")));
    kit.recover(&[]);
    kit.refuse(Delivery { attempt: 1, ..kit.delivery(DeliveryState::Begun) });
    kit.push(kit.delivery(DeliveryState::Begun));
    kit.recover(&[]);
    kit.refuse(kit.delivery(DeliveryState::Sent));
    kit.refuse(kit.delivery(DeliveryState::Waived));
    kit.refuse(Delivery { attempt: 1, ..kit.delivery(DeliveryState::NotSent) });
    kit.push(Delivery { attempt: 2, ..kit.delivery(DeliveryState::NotSent) });
    kit.push(kit.attempt(4));
    kit.refuse(kit.delivery(DeliveryState::Begun));
    kit.push(kit.recovered(&[]));
    kit.push(kit.delivery(DeliveryState::Begun));
}

// Progress.

#[test]
fn a_claim_is_no_progress_and_a_failed_message_neither() {
    let progress = |act: &dyn Fn(&mut Kit)| {
        let mut kit = Kit::new();
        let asked = kit.ask(&["a:safe", "b:ask", "c:never"]);
        kit.claim(asked[2]);
        kit.recover(&[]);
        assert!(!kit.turn().current().expect("an attempt").progress);
        act(&mut kit);
        kit.turn().current().expect("an attempt").progress
    };
    let (a, b, c) = (call("3.0"), call("3.1"), call("3.2"));
    assert!(!progress(&|kit| {
        kit.claim(a);
    }));
    assert!(!progress(&|kit| {
        kit.push(kit.interrupted(c));
    }));
    assert!(!progress(&|kit| {
        kit.push(kit.not_run(a, NotRunWhy::Refused));
    }));
    assert!(!progress(&|kit| {
        kit.push(kit.heartbeat(1));
        kit.push(kit.note(2));
        kit.push(kit.straggler(None, 2));
        kit.push(kit.cancelled());
    }));
    assert!(!progress(&|kit| {
        kit.push(kit.message(&user("x")));
        kit.push(kit.entry(&other_entry("custom", "e", "a2", "")));
    }));
    let answered = |kit: &mut Kit| {
        kit.push(kit.not_run(a, NotRunWhy::Refused));
        kit.push(kit.not_run(b, NotRunWhy::Refused));
        kit.push(kit.interrupted(c));
    };
    assert!(!progress(&|kit| {
        answered(kit);
        kit.push(kit.message(&model("x", "error", &[])));
    }));
    assert!(progress(&|kit| {
        answered(kit);
        kit.say("x");
    }));
    assert!(progress(&|kit| {
        kit.push(kit.intent("i", "never", None));
    }));
    assert!(progress(&|kit| {
        kit.push(kit.dispatched(a, None));
    }));
    assert!(progress(&|kit| {
        kit.push(kit.approval(b, ApprovalDecision::Granted));
    }));
    assert!(progress(&|kit| {
        kit.push(kit.reconciled(c, ReconciledOutcome::NotApplied));
    }));
    assert!(progress(&|kit| {
        kit.push(kit.steered("x", None));
    }));
    assert!(progress(&|kit| {
        kit.claim(a);
        kit.answer(a, "x");
    }));
    assert!(progress(&|kit| {
        kit.claim(a);
        kit.push(kit.entry(&entry("e", "a2", &tool_result("a", "x"))));
    }));
}

#[test]
fn fruitless_attempts_are_counted_from_the_newest_and_anew_behind_an_unpark() {
    let mut kit = Kit::new();
    assert_eq!(kit.turn().fruitless_attempts(), 1);
    let asked = kit.ask_one("safe");
    assert_eq!(kit.turn().fruitless_attempts(), 0);
    for count in 1..=3 {
        kit.recover(&[(asked, Decision::Run)]);
        assert_eq!(kit.turn().fruitless_attempts(), count);
    }
    kit.push(kit.parked());
    kit.push(kit.unparked());
    assert_eq!(kit.turn().fruitless_attempts(), 0);
    kit.recover(&[]);
    assert_eq!(kit.turn().fruitless_attempts(), 1);
    kit.claim(asked);
    kit.answer(asked, "x");
    assert_eq!(kit.turn().fruitless_attempts(), 0);
}

#[test]
fn evidence_and_persons_acts_renew_no_lease() {
    let mut kit = Kit::new();
    let asked = kit.ask_one("ask");
    let renewed = |kit: &Kit| kit.turn().current().expect("an attempt").renewed.clone();
    kit.draft.at = at(10);
    kit.push(kit.straggler(None, 1));
    kit.push(kit.approval(asked, ApprovalDecision::Denied));
    kit.push(kit.not_run(asked, NotRunWhy::Denied));
    assert_eq!(renewed(&kit), at(0));
    kit.push(kit.note(1));
    assert_eq!(renewed(&kit), at(10));
    let mut kit = Kit::with_key();
    kit.push(kit.settled(SettledStatus::Completed, Some("r")));
    kit.push(kit.delivery(DeliveryState::Begun));
    kit.draft.at = at(10);
    kit.push(Delivery { by: Some("ann".to_owned()), ..kit.delivery(DeliveryState::NotSent) });
    assert_eq!(renewed(&kit), at(0));
    kit.push(kit.delivery(DeliveryState::Begun));
    assert_eq!(renewed(&kit), at(10));
}

// Acknowledged damage.

fn acknowledge(offset: u64) -> Repaired {
    Repaired { offset, bytes: 9, sha256: Hash::none(), saved_as: None, why: "salvage".to_owned() }
}

#[test]
fn behind_acknowledged_damage_calls_count_as_claimed_and_the_turn_as_parked() {
    let mut kit = Kit::with_key();
    let asked = kit.ask(&["a:safe", "b:ask", "c:safe", "d:safe"]);
    kit.claim(asked[2]);
    kit.answer(asked[2], "x");
    kit.push(kit.approval(asked[1], ApprovalDecision::Granted));
    kit.push(kit.dispatched(asked[3], None));
    kit.push(acknowledge(kit.draft.end()));
    assert!(kit.turn().parked.is_some() && kit.turn().lost_records);
    kit.push(kit.unparked());
    kit.refuse(kit.claimed(asked[0]));
    assert_eq!(kit.decision(asked[0]), Decision::Interrupt, "claimed, under never");
    assert_eq!(kit.decision(asked[1]), Decision::Interrupt);
    assert!(kit.at_ref(asked[1]).expect("a call").approved.is_none());
    assert_eq!(kit.decision(asked[2]), Decision::Redeliver);
    assert_eq!(kit.decision(asked[3]), Decision::Await);
    kit.push(kit.reconciled(asked[0], ReconciledOutcome::NotApplied));
    assert_eq!(kit.decision(asked[0]), Decision::Run);
    for call in [asked[0], asked[1]] {
        kit.push(kit.reconciled(call, ReconciledOutcome::Unknown));
    }
    kit.answer(asked[3], "x");
    kit.recover(&[]);
    kit.push(kit.settled(SettledStatus::Failed, Some("r")));
    assert!(crate::turn::next::begun(kit.turn()), "its delivery counts as begun");
    kit.refuse(kit.delivery(DeliveryState::Begun));
    kit.push(kit.delivery(DeliveryState::NotSent));
    kit.push(kit.delivery(DeliveryState::Begun));
}

/// The number is the fencing token: whoever holds it already must not share it.
#[test]
fn behind_lost_records_the_numbers_of_attempts_have_gaps_and_stay_apart() {
    let mut kit = Kit::new();
    kit.push(acknowledge(kit.draft.end()));
    kit.push(kit.unparked());
    let cause = Cause::Takeover;
    kit.refuse(Attempt { cause, ..kit.attempt(1) });
    kit.push(kit.attempt(4));
    kit.refuse(Attempt { cause, ..kit.attempt(3) });
}

#[test]
fn behind_acknowledged_damage_a_recover_decides_about_calls_that_are_known() {
    let mut kit = Kit::new();
    kit.push(acknowledge(kit.draft.end()));
    kit.push(kit.unparked());
    kit.push(kit.attempt(2));
    assert!(kit.refuse(kit.recovered_only(&[(call("99.0"), Decision::Run)])).contains("no call 99.0"));
}

/// It may have been journaled before, and its calls claimed, in what is lost.
#[test]
fn a_message_that_a_recover_finds_behind_lost_records_has_calls_that_may_have_run() {
    let may_have_run = |lost: bool, unfinished: bool| {
        let mut kit = Kit::new();
        if lost {
            kit.push(acknowledge(kit.draft.end()));
            kit.push(kit.unparked());
        }
        kit.push(kit.attempt(2));
        if !unfinished {
            kit.push(kit.recovered(&[]));
        }
        let said = kit.push(kit.entry(&entry("e1", "a2", &model("x", "toolUse", &["a:never"]))));
        kit.at_ref(CallRef { seq: said.seq, position: 0 }).expect("a call").may_have_run()
    };
    assert!(may_have_run(true, true));
    assert!(!may_have_run(true, false) && !may_have_run(false, true));
}

#[test]
fn a_torn_tail_that_was_saved_loses_nothing() {
    let mut kit = Kit::new();
    let asked = kit.ask_one("safe");
    let torn = acknowledge(kit.draft.end());
    kit.push(Repaired { saved_as: Some("quarantine/x".to_owned()), ..torn });
    assert!(kit.turn().parked.is_none());
    assert_eq!(kit.decision(asked), Decision::Run);
}

#[test]
fn damage_before_a_turn_was_admitted_is_not_its_own() {
    let mut kit = Kit::new();
    let before = kit.turn().admitted.offset;
    settle_and_close(&mut kit);
    kit.turn = turn_id("t2");
    kit.push(kit.admitted("x"));
    kit.push(acknowledge(before));
    assert!(kit.turn().parked.is_none());
    kit.push(kit.attempt(3));
}

#[test]
fn a_call_of_a_cut_off_message_is_not_run_though_its_record_was_lost() {
    let mut kit = Kit::new();
    let mark = kit.push(kit.message(&model("x", "length", &["a:safe"])));
    kit.push(acknowledge(kit.draft.end()));
    kit.push(kit.unparked());
    kit.push(kit.not_run(CallRef { seq: mark.seq, position: 0 }, NotRunWhy::CutOff));
}

#[test]
fn an_admission_behind_lost_records_proves_that_the_turn_before_was_settled() {
    let mut kit = Kit::with_key();
    kit.draft.session.lose_records();
    kit.turn = turn_id("t2");
    kit.push(kit.admitted("x"));
    let first = kit.session().turn(&turn_id("t1")).expect("its delivery may have begun");
    assert!(first.settled.is_some() && crate::turn::next::begun(first));
    assert_eq!(kit.session().open().map(|turn| turn.id.clone()), Some(turn_id("t2")));
}

// Drafts.

#[test]
fn a_draft_refuses_a_line_that_is_too_long() {
    let kit = Kit::new();
    let mut short = Draft::new(kit.session().clone(), History::default(), at(0), 0, 300);
    assert!(matches!(
        short.push(Kind::from(kit.steered(&"x".repeat(300), None))),
        Err(crate::draft::DraftError::TooLong { max: 300, .. })
    ));
    assert!(short.bytes.is_empty() && short.history.is_empty());
}
