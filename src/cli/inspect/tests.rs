//! What each view shows, and that none of them writes.

use super::*;
use crate::chain::{LINE_BYTES_MAX, digest};
use crate::draft::Draft;
use crate::message::Format;
use crate::policy::Policy;
use crate::record::{
    Admitted, Attempt, CallRef, Cause, Claimed, FORMAT, Kind, Message, Opened, Owner, Parked, Settled,
};
use crate::recovery::intents;
use crate::turn::decide::Sighting;
use crate::turn::next;

fn raw(text: &str) -> Raw {
    Raw::parse(text).expect("JSON")
}

fn at(text: &str) -> At {
    text.parse().expect("a time")
}

/// A turn that asked for two calls and died in the first.
fn crashed() -> Draft {
    let opened = Opened { format: FORMAT.into(), session: "room 42".into(), id: "i".into() };
    let mut draft =
        Draft::genesis(opened, at("2026-11-29T15:26:00.123456Z"), LINE_BYTES_MAX).expect("a genesis");
    let turn: TurnId = "t1".parse().expect("an id");
    let owner = Owner {
        pid: 4711,
        started: 1,
        boot: "b".into(),
        pidns: 1,
        host: "h".into(),
        cmd: "./driver.sh \u{1b}[31m".into(),
    };
    admit(&mut draft, "t1", Some(owner));
    let message = raw(
        r#"{"role":"assistant","content":[{"type":"toolCall","id":"call_1","name":"charge","arguments":{"cents":995}},{"type":"toolCall","id":"call_2","name":"read","arguments":{"path":"a\u001b[2Jb"}}],"stopReason":"toolUse"}"#,
    );
    let meaning = crate::message::meaning(Format::Pi, &message).expect("a message");
    let calls = intents(&draft.session, &turn, 3, &meaning, &Policy::built_in());
    let key = calls.first().expect("a call").key.clone();
    push(
        &mut draft,
        Message {
            turn: turn.clone(),
            attempt: 1,
            format: "pi".into(),
            role: "assistant".into(),
            message,
            calls: Some(calls),
        },
    );
    let r#ref = CallRef { seq: 3, position: 0 };
    push(
        &mut draft,
        Claimed { turn, attempt: 1, r#ref, key, link: Some(raw(r#""https://x/1""#)), runner: None },
    );
    draft
}

fn admit(draft: &mut Draft, turn: &str, owner: Option<Owner>) {
    let turn: TurnId = turn.parse().expect("an id");
    let input = raw(r#""Charge it\nnow""#);
    let input_sha256 = digest(input.get().as_bytes());
    push(
        draft,
        Admitted {
            turn: turn.clone(),
            delivery: Some(format!("msg-{turn}")),
            input,
            input_sha256,
            tree: None,
            policy_sha256: None,
            meta: None,
        },
    );
    push(draft, Attempt { turn, attempt: 1, cause: Cause::Admit, why: None, owner, lease_ms: None });
}

fn settle(draft: &mut Draft, turn: &str) {
    let turn = turn.parse().expect("an id");
    push(
        draft,
        Settled { turn, attempt: 1, status: crate::record::SettledStatus::Failed, reply: None, reason: None },
    );
}

fn push(draft: &mut Draft, kind: impl Into<Kind>) {
    draft.push(kind).expect("a legal record");
}

fn seen(draft: Draft) -> Seen {
    Seen {
        place: Place {
            path: "/state/sessions/room%2042.jsonl".into(),
            id: Some("room 42".into()),
            turn: None,
        },
        id: "room 42".into(),
        end: draft.end(),
        at: at("2026-11-29T16:00:00.000000Z"),
        session: Some(draft.session),
        history: draft.history,
        tail: Tail::Clean,
        damage: Vec::new(),
        as_of: AsOf::Head,
    }
}

fn shown(seen: &Seen, sighting: Sighting) -> String {
    let policy = Policy::built_in();
    let look = |_: &Owner| sighting;
    let now = Now { at: seen.at.clone(), policy: &policy, look: &look };
    let session = seen.session.as_ref().expect("a session");
    let turn = session.turns.first();
    let status = status::of(session, turn, &seen.history, &now, next::BranchState::UpToDate, Asker::Other);
    let hash = session.head.hash.to_string();
    let text = show::session(seen, turn, &status, &now, show::Style::Plain).replace(&hash, "HASH");
    let keys = session.turns.iter().flat_map(|turn| &turn.calls).map(|call| &call.key);
    keys.fold(text, |text, key| text.replace(key.as_str(), "KEY"))
}

#[test]
fn a_crashed_turn_is_told_with_the_command_to_type() {
    assert_eq!(
        shown(&seen(crashed()), Sighting::Gone),
        "session room 42
/state/sessions/room%2042.jsonl: 5 records, 2.1 KiB, head 4:HASH

TURN  STATE  ATTEMPTS  CALLS  ADMITTED              LAST RECORD           DELIVERY  INPUT
t1    open   1         2      2026-11-29T15:26:00Z  2026-11-29T15:26:00Z  msg-t1    Charge it now

turn t1 is open; attempt 1: its owner, pid 4711, is gone (./driver.sh \\u{1b}[31m)
input: Charge it now

CALL  TOOL    STATE    DO         REPLAY  CLAIMED               ID      ARGUMENTS
3.0   charge  claimed  interrupt  never   2026-11-29T15:26:00Z  call_1  {\"cents\":995}
3.1   read    intent   run        safe                          call_2  {\"path\":\"a\\u001b[2Jb\"}

uncertain:
  3.0 charge: claimed by attempt 1 at 2026-11-29T15:26:00.123456Z, no result; key KEY, look it up: \"https://x/1\"

next: recover - the owner of attempt 1 is gone
  turnkeep recover 'room 42:t1' -- CMD
note: the built-in replay policy is in force: give --policy or put policy.json into the root
"
    );
}

#[test]
fn what_a_living_owner_is_at_is_not_uncertain() {
    let text = shown(&seen(crashed()), Sighting::Alive);
    assert!(!text.contains("uncertain:"), "{text}");
    assert!(text.contains("held by pid 4711, which lives"), "{text}");
    assert!(
        text.contains("next: run_calls - calls are to be run\n  turnkeep step run 3.1 -- CMD\n"),
        "{text}"
    );
}

#[test]
fn damage_leaves_nothing_to_a_driver() {
    let mut seen = seen(crashed());
    seen.session.as_mut().expect("a session").lose_records();
    seen.damage.push(Damage {
        line: 4,
        offset: 100,
        bytes: 10,
        flaw: crate::journal::Flaw::NoGenesis,
        turns: Vec::new(),
    });
    assert_eq!(seen.exit(), Exit::Damaged);
    assert_eq!(seen.refuse_damage().expect_err("refused").exit, Exit::Damaged);
    let text = shown(&seen, Sighting::Gone);
    assert!(text.contains("3.1 read: a record that was lost may have claimed it"), "{text}");
    assert!(text.contains("  turnkeep recover 'room 42' --salvage --why TEXT\n"), "{text}");
}

#[test]
fn the_named_turn_wins_then_one_that_can_go_on_then_the_newest_closed_one() {
    let mut draft = crashed();
    // The fold of a draft drops what is closed, as reading from the newest base does.
    push(&mut draft, Parked { turn: "t1".parse().expect("an id"), why: "w".into(), by: "b".into() });
    let seen = seen(draft);
    let policy = Policy::built_in();
    let look = |_: &Owner| Sighting::Gone;
    let now = Now { at: seen.at.clone(), policy: &policy, look: &look };
    let named: TurnId = "t2".parse().expect("an id");
    let failure = seen.chosen(&now, Some(&named)).err().expect("no such turn");
    assert_eq!((failure.exit, failure.kind), (Exit::NotFound, "no_turn"));
    match seen.chosen(&now, None) {
        Ok(Chosen::Turn(turn)) => assert_eq!(turn.id.as_str(), "t1"),
        _ => panic!("the only turn"),
    }
}

#[test]
fn a_closed_turn_that_was_dropped_is_known_as_closed() {
    // The one that closed last is kept, so a second one drops the first.
    let opened = Opened { format: FORMAT.into(), session: "room 42".into(), id: "i".into() };
    let mut draft =
        Draft::genesis(opened, at("2026-11-29T15:26:00.123456Z"), LINE_BYTES_MAX).expect("a genesis");
    admit(&mut draft, "t1", None);
    settle(&mut draft, "t1");
    admit(&mut draft, "t2", None);
    settle(&mut draft, "t2");
    let seen = seen(draft);
    let policy = Policy::built_in();
    let look = |_: &Owner| Sighting::Gone;
    let now = Now { at: seen.at.clone(), policy: &policy, look: &look };
    let named: TurnId = "t1".parse().expect("an id");
    assert!(matches!(seen.chosen(&now, Some(&named)), Ok(Chosen::Closed)));
}

#[test]
fn sizes_have_one_decimal() {
    assert_eq!(show::size_text(1023), "1023 B");
    assert_eq!(show::size_text(1536), "1.5 KiB");
    assert_eq!(show::size_text(3 * 1024 * 1024 * 1024), "3.0 GiB");
}
