//! Which turn a command is about, and which call.

use super::error::{Exit, Failure};
use crate::owner;
use crate::record::{CallRef, Owner, TurnId};
use crate::turn::decide::{Holder, Now};
use crate::turn::{Attempt, Call, Session, Turn, next};
use std::collections::HashSet;

/// A parsed ticket: `SESSION:TURN:ATTEMPT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// Session id, which may hold colons.
    pub session: String,
    /// The turn.
    pub turn: TurnId,
    /// The attempt, the fencing token.
    pub attempt: u64,
}

impl Ticket {
    /// Parses a ticket from the right.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let wrong = || {
            Failure::usage("bad_ticket", format!("{text:?} is no ticket: SESSION:TURN:ATTEMPT"))
                .hint("admit and recover print the ticket; pass it as --ticket or in TURNKEEP_TICKET")
        };
        let mut parts = text.rsplitn(3, ':');
        let attempt = parts.next().and_then(crate::record::decimal).ok_or_else(wrong)?;
        let turn = parts.next().and_then(|turn| turn.parse().ok()).ok_or_else(wrong)?;
        let session = parts.next().filter(|session| !session.is_empty()).ok_or_else(wrong)?.to_owned();
        Ok(Self { session, turn, attempt })
    }

    /// The ticket in the environment, if there is a good one.
    pub fn from_env() -> Option<Self> {
        std::env::var("TURNKEEP_TICKET").ok().and_then(|text| Self::parse(&text).ok())
    }
}

/// Splits `SESSION[:TURN]`: at the last colon, and only where no session of the whole name exists.
pub fn session_and_turn(name: &str, exists: impl Fn(&str) -> bool) -> (String, Option<TurnId>) {
    if !exists(name)
        && let Some((session, turn)) = name.rsplit_once(':')
        && let Ok(turn) = turn.parse()
        && !session.is_empty()
    {
        return (session.to_owned(), Some(turn));
    }
    (name.to_owned(), None)
}

/// What to do about a turn that the journal does not know.
pub fn no_turn_hint(session: &str) -> String {
    format!(
        "`turnkeep inspect {}` lists the turns; if it was admitted, its records are lost here, as of an older copy \
         of the journal: bring the newest one back",
        super::advice::quoted(session)
    )
}

/// The turn that the ticket in the environment names, if it is of the session. A driver whose turn is closed, or
/// lost, is not sent to work on another one.
pub fn turn_of_ticket(session: &str) -> Option<TurnId> {
    Ticket::from_env().filter(|ticket| ticket.session == session).map(|ticket| ticket.turn)
}

/// The turn that `recover` and `next` take where none is named: the oldest unclosed one that a driver can advance and
/// no living owner holds, else the oldest unclosed one. A recover that was killed holds its turn from nobody who asks
/// again: run once more, it goes on with the same turn.
pub fn free_turn<'a>(session: &'a Session, now: &Now<'_>, asking: Option<&Owner>) -> Option<&'a Turn> {
    let is_of_asking = |attempt: &Attempt| match (&attempt.owner, asking) {
        (Some(owner), Some(asking)) => attempt.unfinished() && owner::same(asking, owner),
        _ => false,
    };
    let free = |turn: &&Turn| {
        let held = |attempt: &Attempt| now.holder(attempt) == Holder::Alive && !is_of_asking(attempt);
        !turn.current().is_some_and(held) && !next::waits(turn, now)
    };
    session.unclosed().find(free).or_else(|| session.unclosed().next())
}

/// The call that a word on the command line names: a ref, `ENTRYID.POS`, or the provider's id where exactly one
/// live call has it.
pub fn call<'a>(turn: &'a Turn, word: &str) -> Result<&'a Call, Failure> {
    // Pi's entry ids are eight hex digits: now and then all of them are decimal, and `ENTRYID.POS` looks like a ref.
    if let Some(call) = word.parse::<CallRef>().ok().and_then(|found| turn.call(found)) {
        return Ok(call);
    }
    if let Some((entry, position)) = word.rsplit_once('.')
        && let Some(position) = crate::record::decimal(position)
    {
        let of_entry =
            |call: &&Call| call.entry_id.as_deref() == Some(entry) && call.r#ref.position == position;
        if let Some(call) = turn.calls.iter().rev().find(of_entry) {
            return Ok(call);
        }
    }
    // Of what was declared anew the newest is meant; the others have their refs.
    let mut declared = HashSet::new();
    let by_id = turn.calls.iter().rev().filter(|call| call.id.as_deref() == Some(word));
    let mut named: Vec<&Call> = by_id.filter(|call| declared.insert(call.declared_first)).collect();
    named.reverse();
    let open: Vec<&Call> = named.iter().copied().filter(|call| call.answer.is_none()).collect();
    match (open.as_slice(), named.as_slice()) {
        ([call], _) => Ok(call),
        ([], []) => Err(unknown(turn, word)),
        // All answered: the newest message that asked under this id is meant, if it asked once.
        ([], named) => {
            let newest = named.iter().map(|call| call.r#ref.seq).max().unwrap_or(0);
            let mut of_newest = named.iter().filter(|call| call.r#ref.seq == newest);
            match (of_newest.next(), of_newest.next()) {
                (Some(call), None) => Ok(call),
                _ => Err(ambiguous(word, named)),
            }
        }
        (open, _) => Err(ambiguous(word, open)),
    }
}

fn unknown(turn: &Turn, word: &str) -> Failure {
    let refs: Vec<String> = turn.calls.iter().rev().take(8).map(|call| call.r#ref.to_string()).collect();
    let known =
        if refs.is_empty() { "it has no calls".to_owned() } else { format!("it has {}", refs.join(", ")) };
    Failure::of(Exit::NotFound, "no_call", format!("turn {} has no call {word:?}; {known}", turn.id))
        .hint("`turnkeep inspect SESSION` lists the calls")
}

fn ambiguous(word: &str, calls: &[&Call]) -> Failure {
    let refs: Vec<String> = calls.iter().map(|call| call.r#ref.to_string()).collect();
    Failure::usage("ambiguous_call", format!("{word:?} names several calls: {}", refs.join(", ")))
        .hint("name the call by its ref")
}
