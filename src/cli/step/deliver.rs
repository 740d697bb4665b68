//! `step deliver`: the reply is published once, or a person says what became of it.
//!
//! Publishing begins with a durable `begun`. Between that and a receipt nobody knows whether the reply is out, and
//! it is never sent again by itself.

use super::super::args::DeliverArgs;
use super::super::context::{Context, json_or_text};
use super::super::desk::{self, Desk};
use super::super::error::{Exit, Failure};
use super::super::select::Ticket;
use super::person::{self, told};
use super::{Step, Tickets};
use crate::draft::History;
use crate::journal::Journal;
use crate::json::{ObjectWriter, Raw};
use crate::message;
use crate::owner;
use crate::record::{Delivery, DeliveryState, Kind, Owner, Straggler, TurnId};
use crate::run::{self, Command, Echo, Finished, KEEP_BYTES_MAX, RunError};
use crate::status;
use crate::turn::decide::{Now, Sighting};
use crate::turn::{Mark, Session, Turn, next};
use std::time::Duration;

/// `turnkeep step deliver`
pub(super) fn deliver(context: &Context, tickets: &Tickets, args: &DeliverArgs) -> Result<Exit, Failure> {
    let receipt = args.receipt.as_deref().map(json_or_text).transpose()?;
    context.arm()?;
    if args.begin || !args.cmd.is_empty() {
        return publish(context, tickets, args);
    }
    let signal = || context.signal();
    let by_person = tickets.given.is_some() || args.person.session.is_some();
    let mut step = if by_person {
        person::open(context, tickets, args.person.session.as_deref(), oldest_begun, &signal)?
    } else {
        Step::open(context, tickets.any()?, &signal)?
    };
    let (turn, history) = match step.turn() {
        Some(turn) => (turn.clone(), step.desk.journal.history().clone()),
        None => step.closed_turn()?,
    };
    let state = match (receipt.is_some(), args.not_sent) {
        (true, _) => DeliveryState::Sent,
        (false, true) => DeliveryState::NotSent,
        (false, false) => DeliveryState::Waived,
    };
    let wanted = Wanted { state, receipt, args, by_person };
    wanted.say(step, &turn, &history)
}

/// What is said about a delivery that was begun, or never will be.
struct Wanted<'a> {
    state: DeliveryState,
    receipt: Option<Raw>,
    args: &'a DeliverArgs,
    by_person: bool,
}

impl Wanted<'_> {
    fn say(&self, mut step: Step<'_>, turn: &Turn, history: &History) -> Result<Exit, Failure> {
        let key = delivery_key(turn)?;
        let known = turn.delivery.as_ref();
        let stored = known.and_then(|known| match &history.get(known.mark.seq)?.kind {
            Kind::Delivery(stored) => Some(stored.clone()),
            _ => None,
        });
        if let (Some(known), Some(stored)) = (known, &stored)
            && self.repeats(stored)
        {
            let mark = known.mark.clone();
            return step.repeat(&mark);
        }
        if turn.is_closed() {
            return self.too_late(step, turn);
        }
        step.check_attempt_exists(turn)
            .or_else(|failure| if self.by_person { Ok(()) } else { Err(failure) })?;
        let began = known.map(|known| known.attempt);
        let by_beginner = !self.by_person || began == Some(step.ticket.attempt);
        match (self.state, known.map(|known| known.state)) {
            (DeliveryState::Waived, _)
            | (DeliveryState::Sent | DeliveryState::NotSent, Some(DeliveryState::Begun))
            | (DeliveryState::Sent, Some(DeliveryState::NotSent)) => {}
            _ => {
                if !self.by_person {
                    step.fence_attempt(turn)?;
                }
                return Err(Failure::conflict(
                    "not_begun",
                    format!("the delivery of turn {} was never begun", turn.id),
                )
                .hint("`turnkeep step deliver --begin` comes before publishing"));
            }
        }
        if !self.by_person && began.is_some_and(|began| began != step.ticket.attempt) {
            return Err(Failure::new(
                Exit::Fenced,
                "fenced",
                format!(
                    "attempt {} began the delivery, not attempt {}",
                    began.unwrap_or(0),
                    step.ticket.attempt
                ),
            )
            .hint("a person says what became of it, with --session"));
        }
        if self.state == DeliveryState::Waived && !self.by_person && known.is_none() {
            step.fence(turn)?;
        }
        self.check_publisher(&step, turn, by_beginner)?;
        self.check_said_before(&step, turn)?;
        let record = Delivery {
            turn: turn.id.clone(),
            attempt: began.unwrap_or(turn.current_number()),
            state: self.state,
            key,
            receipt: self.receipt.clone(),
            by: self.args.by.clone(),
            why: self.args.why.clone(),
            runner: None,
        };
        if self.by_person {
            told(&step, turn, &format!("delivery {}", self.state), None);
        }
        let receipt = step.desk.step(&turn.id, vec![record.into()])?;
        step.answer(receipt)
    }

    fn repeats(&self, stored: &Delivery) -> bool {
        stored.state == self.state
            && stored.receipt == self.receipt
            && stored.by == self.args.by
            && stored.why == self.args.why
    }

    /// The delivery was ended otherwise: a receipt is kept as evidence, anything else is a contradiction.
    fn too_late(&self, mut step: Step<'_>, turn: &Turn) -> Result<Exit, Failure> {
        let Some(receipt) = &self.receipt else {
            return Err(Failure::conflict(
                "delivered",
                format!("the delivery of turn {} has ended", turn.id),
            ));
        };
        let attempt = if self.by_person { turn.current_number() } else { step.ticket.attempt };
        let why = "the delivery was ended before otherwise".to_owned();
        let straggler = Straggler {
            turn: turn.id.clone(),
            attempt,
            r#ref: None,
            content: ObjectWriter::default().raw("receipt", receipt.get()).finish(),
            why,
        };
        step.desk.record(vec![straggler.into()])?;
        Err(Failure::new(
            Exit::Fenced,
            "straggler",
            "the delivery has ended otherwise; the receipt is kept as evidence",
        ))
    }

    /// A publisher that lives may still bring its receipt.
    fn check_publisher(&self, step: &Step<'_>, turn: &Turn, by_beginner: bool) -> Result<(), Failure> {
        let context = step.desk.context;
        let look = |owner: &Owner| -> Sighting { context.look(owner) };
        let now = Now { at: step.desk.at.clone(), policy: &context.policy, look: &look };
        let own_command = turn.delivery.as_ref().is_some_and(|delivery| delivery.runner.is_none());
        if (by_beginner && own_command) || self.args.person.force || !next::publisher_lives(turn, &now) {
            return Ok(());
        }
        Err(Failure::new(
            Exit::Busy,
            "publisher_alive",
            "whoever began the delivery lives and may still end it",
        )
        .hint("wait for it or end it; `--force --why TEXT` decides all the same"))
    }

    /// The same `not_sent` about a later try is said on purpose, or not at all.
    fn check_said_before(&self, step: &Step<'_>, turn: &Turn) -> Result<(), Failure> {
        if self.state != DeliveryState::NotSent || self.args.person.force {
            return Ok(());
        }
        let before = step.desk.journal.history().iter().any(|(_, record)| match &record.kind {
            Kind::Delivery(stored) => stored.turn == turn.id && self.repeats(stored),
            _ => false,
        });
        if !before {
            return Ok(());
        }
        Err(Failure::conflict(
            "said_before",
            "the same was said about an earlier try, and it was begun again since",
        )
        .hint("if it is true of the new try too, say so with --force --why TEXT"))
    }
}

/// `--begin`, or `-- CMD`, which begins, publishes and records.
fn publish(context: &Context, tickets: &Tickets, args: &DeliverArgs) -> Result<Exit, Failure> {
    let signal = || context.signal();
    let ticket = match &args.person.session {
        None => tickets.any()?,
        Some(_) => {
            return Err(Failure::usage("usage", "publishing needs a ticket, not --session")
                .hint("`turnkeep recover` gives one"));
        }
    };
    let mut step = Step::open(context, ticket.clone(), &signal)?;
    let (turn, history) = match step.turn() {
        Some(turn) => (turn.clone(), step.desk.journal.history().clone()),
        None => step.closed_turn()?,
    };
    let key = delivery_key(&turn)?;
    check_begin(&step, &turn)?;
    step.fence(&turn)?;
    let reply = status::reply(&turn, &history)
        .ok_or_else(|| Failure::conflict("no_reply", format!("turn {} has no reply to deliver", turn.id)))?;
    let runner = if args.cmd.is_empty() {
        None
    } else {
        super::super::become_cmd::check(&args.cmd)?;
        Some(owner::this_process().map_err(|error| Failure::new(Exit::Unexpected, "unexpected", error))?)
    };
    let begun = Delivery {
        turn: turn.id.clone(),
        attempt: ticket.attempt,
        state: DeliveryState::Begun,
        key: key.clone(),
        receipt: None,
        by: args.by.clone(),
        why: None,
        runner,
    };
    if args.cmd.is_empty() {
        return step.commit(vec![begun.into()]);
    }
    step.desk.step(&turn.id, vec![begun.clone().into()])?;
    drop(step);
    let lease_ms = turn.current().and_then(|attempt| attempt.lease_ms);
    let finished = start(context, &ticket, args, &reply, &key, lease_ms);
    end(context, &ticket, finished, begun)
}

/// Whether a delivery may begin: not one that may be out already.
fn check_begin(step: &Step<'_>, turn: &Turn) -> Result<(), Failure> {
    let Some(known) = &turn.delivery else {
        if turn.settled.is_none() {
            return Err(Failure::conflict("not_settled", format!("turn {} is not settled", turn.id))
                .hint("`turnkeep step settle` comes before its delivery"));
        }
        return Ok(());
    };
    let session = format!("{}:{}", step.ticket.session, turn.id);
    match known.state {
        DeliveryState::NotSent => Ok(()),
        DeliveryState::Begun => Err(Failure::new(
            Exit::Unknown,
            "delivery_begun",
            format!("the delivery of turn {} was begun at {}; the reply may be out", turn.id, known.mark.at),
        )
        .hint(format!(
            "a person finds out and types: turnkeep step deliver --session {session} --receipt R | --not-sent | \
             --waive --why TEXT"
        ))),
        DeliveryState::Sent | DeliveryState::Waived => Err(Failure::new(
            Exit::AlreadyDone,
            "delivered",
            format!("the delivery of turn {} has ended: {}", turn.id, known.state),
        )),
    }
}

fn start(
    context: &Context,
    ticket: &Ticket,
    args: &DeliverArgs,
    reply: &Raw,
    key: &str,
    lease_ms: Option<u64>,
) -> Result<Finished, RunError> {
    let text = if args.raw { reply.get().to_owned() } else { message::text_of(reply) };
    let command = Command {
        argv: &args.cmd,
        stdin: text.as_bytes(),
        env_set: vec![("TURNKEEP_KEY".into(), key.into())],
        env_remove: vec!["TURNKEEP_TICKET"],
        echo: Echo::CaptureOnly,
        spool: None,
        keep_bytes_max: KEEP_BYTES_MAX,
    };
    let tick = lease_ms.map_or(Duration::from_secs(3_600), |lease| Duration::from_millis(lease / 3));
    run::run(
        &command,
        &mut || super::run::renew_lease(context, ticket, lease_ms),
        tick.max(Duration::from_millis(50)),
    )
}

/// Exit 0 is sent, with stdout as its receipt; anything else stays begun.
fn end(
    context: &Context,
    ticket: &Ticket,
    finished: Result<Finished, RunError>,
    begun: Delivery,
) -> Result<Exit, Failure> {
    let told = match &finished {
        Ok(finished) if finished.exit == Some(0) => None,
        Ok(finished) => Some(match (finished.exit, finished.signal) {
            (Some(exit), _) => format!("the publisher ended with {exit}"),
            (None, signal) => format!("the publisher was ended by {}", signal.unwrap_or("a signal")),
        }),
        Err(error) => Some(super::super::error::chain(error)),
    };
    if let Some(told) = told {
        return Err(Failure::new(Exit::Unknown, "delivery_unknown", format!("{told}; the reply may be out")).hint(
            format!(
                "a person finds out and types: turnkeep step deliver --session {}:{} --receipt R | --not-sent | \
                 --waive --why TEXT",
                ticket.session, ticket.turn
            ),
        ));
    }
    let output = finished.map(|finished| finished.stdout.text).unwrap_or_default();
    let output = output.strip_suffix('\n').unwrap_or(&output);
    let receipt = if output.is_empty() { None } else { Some(json_or_text(output)?) };
    let signal = || None;
    let journal = Journal::open(context.patient_setting(&signal), &ticket.session)?;
    let mut step = Step { desk: Desk::new(context, journal), ticket: ticket.clone() };
    let sent = Delivery { state: DeliveryState::Sent, receipt, runner: None, ..begun };
    let marks: Vec<Mark> = step.desk.record(vec![sent.into()])?;
    let mark =
        marks.last().ok_or_else(|| Failure::new(Exit::Unexpected, "unexpected", "nothing recorded"))?;
    step.answer(desk::receipt(mark, desk::Repeated::No))
}

fn delivery_key(turn: &Turn) -> Result<String, Failure> {
    turn.delivery_key.clone().ok_or_else(|| {
        Failure::conflict("no_delivery_key", format!("turn {} was admitted without a delivery key", turn.id))
            .hint("`turnkeep admit --delivery KEY` gives one; without it the reply is the driver's to show")
    })
}

fn oldest_begun(session: &Session) -> Option<TurnId> {
    let begun = session.unclosed().find(|turn| next::begun(turn));
    begun.or_else(|| session.unclosed().find(|turn| turn.settled.is_some())).map(|turn| turn.id.clone())
}
