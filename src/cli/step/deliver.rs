//! `step deliver`: the reply is published once, or a person says what became of it.
//!
//! Publishing begins with a durable `begun`. Between that and a receipt nobody knows whether the reply is out, and
//! it is never sent again by itself.

use super::super::args::DeliverArgs;
use super::super::context::{Context, json_or_text};
use super::super::desk::Desk;
use super::super::error::{Exit, Failure, chain};
use super::super::select::Ticket;
use super::call::keep_once;
use super::person::{self, said};
use super::{Step, Tickets};
use crate::draft::History;
use crate::journal::Journal;
use crate::json::{ObjectWriter, Raw};
use crate::message;
use crate::owner;
use crate::record::{Delivery, DeliveryState, Kind, Straggler, TurnId};
use crate::run::{self, Command, Echo, Finished, RunError};
use crate::status;
use crate::turn::{Session, Turn, next};
use std::time::Duration;

/// `turnkeep step deliver`
pub(super) fn deliver(context: &Context, tickets: &Tickets, args: &DeliverArgs) -> Result<Exit, Failure> {
    let receipt = args.receipt.as_deref().map(json_or_text).transpose()?;
    context.arm()?;
    if args.begin || !args.cmd.is_empty() {
        return publish(context, tickets, args);
    }
    let signal = || context.signal();
    let session = args.person.session.as_deref();
    let speaker = match (&tickets.given, session) {
        (Some(_), _) => Speaker::Hand,
        (None, Some(_)) => Speaker::Person,
        (None, None) => Speaker::Driver,
    };
    let step = match speaker {
        Speaker::Hand | Speaker::Person => person::open(context, tickets, session, oldest_begun, &signal)?,
        Speaker::Driver | Speaker::Publisher => Step::open(context, tickets.any()?, &signal)?,
    };
    let state = match (receipt.is_some(), args.not_sent) {
        (true, _) => DeliveryState::Sent,
        (false, true) => DeliveryState::NotSent,
        (false, false) => DeliveryState::Waived,
    };
    Wanted { state, receipt, args, speaker }.say(step)
}

/// Who says something about a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaker {
    /// A driver, by the ticket in its environment.
    Driver,
    /// A ticket given by hand: the driver that began it, else a person.
    Hand,
    /// A person who named the session.
    Person,
    /// `deliver -- CMD`, about its own command.
    Publisher,
}

/// What is said about a delivery that was begun, or never will be.
struct Wanted<'a> {
    state: DeliveryState,
    receipt: Option<Raw>,
    args: &'a DeliverArgs,
    speaker: Speaker,
}

impl Wanted<'_> {
    fn say(&self, mut step: Step<'_>) -> Result<Exit, Failure> {
        let (turn, history) = step.any_turn()?;
        let key = delivery_key(&turn)?;
        let known = turn.delivery.as_ref();
        let stored = known.and_then(|known| match &history.get(known.mark.seq)?.kind {
            Kind::Delivery(stored) => Some(stored),
            _ => None,
        });
        if self.speaker != Speaker::Person {
            step.check_attempt_exists(&turn)?;
        }
        if let (Some(known), Some(stored)) = (known, stored)
            && self.repeats(stored)
        {
            let mark = known.mark.clone();
            return step.repeat(&mark);
        }
        if turn.is_closed() {
            return self.too_late(step, &turn, &history);
        }
        if let Err(failure) = self.check_state(&step, &turn).and_then(|()| self.check_attempt(&step, &turn)) {
            return Err(self.refused(step, &turn, &history, failure));
        }
        self.check_publisher(&step, &turn)?;
        self.check_said_before(&step, &turn)?;
        let record = Delivery {
            turn: turn.id.clone(),
            attempt: known.map_or(turn.current_number(), |known| known.attempt),
            state: self.state,
            key,
            receipt: self.receipt.clone(),
            by: self.args.by.clone(),
            why: self.args.why.clone(),
            runner: None,
        };
        let receipt = step.desk.step(&turn.id, vec![record.into()])?;
        if matches!(self.speaker, Speaker::Person | Speaker::Hand) {
            step.desk.context.out.note(&said(&step, &turn, &format!("delivery {}", self.state), None));
        }
        // With a CMD that was started nothing of ours is on stdout, unless it is asked for.
        if self.speaker == Speaker::Publisher && !step.desk.context.out.json {
            return Ok(Exit::Done);
        }
        step.answer(receipt)
    }

    /// What was never begun can only be waived.
    fn check_state(&self, step: &Step<'_>, turn: &Turn) -> Result<(), Failure> {
        if turn.settled.is_none() {
            return Err(not_settled(turn));
        }
        match (self.state, turn.delivery.as_ref().map(|known| known.state)) {
            (DeliveryState::Waived, _)
            | (DeliveryState::Sent | DeliveryState::NotSent, Some(DeliveryState::Begun))
            | (DeliveryState::Sent, Some(DeliveryState::NotSent)) => Ok(()),
            _ => {
                if self.speaker != Speaker::Person {
                    step.fence_attempt(turn)?;
                }
                let said = match turn.delivery {
                    Some(_) => "is not begun: it was found not sent",
                    None => "was never begun",
                };
                Err(Failure::conflict("not_begun", format!("the delivery of turn {} {said}", turn.id))
                    .hint("`turnkeep step deliver --begin` comes before publishing"))
            }
        }
    }

    /// A driver speaks of what its own attempt began; only a person speaks of another's.
    fn check_attempt(&self, step: &Step<'_>, turn: &Turn) -> Result<(), Failure> {
        let asking = step.ticket.attempt;
        match (self.speaker, &turn.delivery) {
            (Speaker::Person, _) | (Speaker::Hand, Some(_)) => Ok(()),
            // Whoever only started a publisher has not seen more of it than anybody else.
            (Speaker::Driver, Some(known))
                if known.state == DeliveryState::Begun && known.runner.is_some() =>
            {
                Err(person::no_session_named())
            }
            (Speaker::Driver | Speaker::Publisher, Some(known)) if known.attempt == asking => Ok(()),
            (Speaker::Driver | Speaker::Publisher, Some(known)) => Err(Failure::of(
                Exit::Fenced,
                "fenced",
                format!("attempt {} began the delivery, not attempt {asking}", known.attempt),
            )
            .with("current", &turn.current_number())
            .hint("a person says what became of it, with --session")),
            (Speaker::Hand, None) => step.fence_attempt(turn),
            (Speaker::Driver | Speaker::Publisher, None) => step.fence(turn),
        }
    }

    /// A receipt that was fenced off is kept as evidence.
    fn refused(&self, step: Step<'_>, turn: &Turn, history: &History, failure: Failure) -> Failure {
        if failure.exit != Exit::Fenced {
            return failure;
        }
        let why = failure.message.clone();
        match self.keep_receipt(step, turn, history, why) {
            Ok(Some(seq)) => failure.with("straggler", &seq),
            Ok(None) => failure,
            Err(failure) => failure,
        }
    }

    fn keep_receipt(
        &self,
        step: Step<'_>,
        turn: &Turn,
        history: &History,
        why: String,
    ) -> Result<Option<u64>, Failure> {
        let Some(receipt) = &self.receipt else { return Ok(None) };
        let attempt =
            if self.speaker == Speaker::Person { turn.current_number() } else { step.ticket.attempt };
        let straggler = Straggler {
            turn: turn.id.clone(),
            attempt,
            r#ref: None,
            content: ObjectWriter::default().raw("receipt", receipt.inside_one().get()).finish(),
            why,
        };
        keep_once(step, history, straggler).map(Some)
    }

    fn repeats(&self, stored: &Delivery) -> bool {
        // A receipt proves the same whoever brings it.
        let proved = self.receipt.is_some() && stored.receipt == self.receipt;
        let said =
            || stored.receipt == self.receipt && stored.by == self.args.by && stored.why == self.args.why;
        stored.state == self.state && (proved || said())
    }

    /// The delivery was ended otherwise: a receipt is kept as evidence, anything else is a contradiction.
    fn too_late(&self, step: Step<'_>, turn: &Turn, history: &History) -> Result<Exit, Failure> {
        let ended = match &turn.delivery {
            Some(known) => format!("the delivery of turn {} has ended: {}", turn.id, known.state),
            None => format!("turn {} is closed, and it has no reply to deliver", turn.id),
        };
        if turn.delivery.is_none() || self.receipt.is_none() {
            if self.speaker != Speaker::Person {
                step.fence_attempt(turn)?;
            }
            return Err(
                Failure::conflict("delivered", ended).hint("how it ended stands: do not send it again")
            );
        }
        let seq = self.keep_receipt(step, turn, history, ended.clone())?;
        Err(Failure::of(
            Exit::Fenced,
            "straggler",
            format!("{ended}; this receipt is another one and is kept as evidence"),
        )
        .with("straggler", &seq)
        .hint("it may have been published twice: look it up by both receipts"))
    }

    /// A publisher that lives may still bring its receipt.
    fn check_publisher(&self, step: &Step<'_>, turn: &Turn) -> Result<(), Failure> {
        let context = step.desk.context;
        let now = context.now(step.desk.at.clone());
        if self.is_its_own(step, turn) || self.args.person.force || !next::publisher_lives(turn, &now) {
            return Ok(());
        }
        Err(Failure::of(
            Exit::Busy,
            "publisher_alive",
            "whoever began the delivery lives and may still end it",
        )
        .hint("wait for it or end it; `--force --why TEXT` decides all the same"))
    }

    /// Whether whoever began the delivery speaks of it: no person's act.
    fn is_its_own(&self, step: &Step<'_>, turn: &Turn) -> bool {
        let began = turn.delivery.as_ref().is_some_and(|known| known.attempt == step.ticket.attempt);
        let by_hand = turn.delivery.as_ref().is_some_and(|known| known.runner.is_none());
        match self.speaker {
            Speaker::Publisher => true,
            Speaker::Driver | Speaker::Hand => began && by_hand,
            Speaker::Person => false,
        }
    }

    /// The same `not_sent` of a person about a later try is said on purpose, or not at all.
    fn check_said_before(&self, step: &Step<'_>, turn: &Turn) -> Result<(), Failure> {
        // Whoever began it and names nobody says what became of its own try.
        let own = self.is_its_own(step, turn) && self.args.by.is_none();
        if self.state != DeliveryState::NotSent || own || self.args.person.force {
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
    let (turn, history) = step.any_turn()?;
    step.fence_attempt(&turn)?;
    let key = delivery_key(&turn)?;
    check_begin(&step, &turn)?;
    step.fence_owner(&turn)?;
    let reply = status::reply(&turn, &history).ok_or_else(|| {
        Failure::conflict("no_reply", format!("turn {} has no reply to deliver", turn.id))
            .hint("the turn is closed: nothing has to be delivered")
    })?;
    let runner = if args.cmd.is_empty() {
        None
    } else {
        super::super::become_cmd::check(&args.cmd)?;
        Some(owner::this_process().map_err(|error| Failure::unexpected(chain(&error)))?)
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
    step.desk.step(&turn.id, vec![begun.into()])?;
    drop(step);
    let lease_ms = turn.current().and_then(|attempt| attempt.lease_ms);
    let finished = start(context, &ticket, args, &reply, &key, lease_ms);
    end(context, &ticket, finished, args)
}

/// Whether a delivery may begin: not one that may be out already.
fn check_begin(step: &Step<'_>, turn: &Turn) -> Result<(), Failure> {
    let Some(known) = &turn.delivery else {
        if turn.settled.is_none() {
            return Err(not_settled(turn));
        }
        return Ok(());
    };
    let session = format!("{}:{}", step.ticket.session, turn.id);
    match known.state {
        DeliveryState::NotSent => Ok(()),
        DeliveryState::Begun => Err(Failure::of(
            Exit::Unknown,
            "delivery_begun",
            format!("the delivery of turn {} was begun at {}; the reply may be out", turn.id, known.mark.at),
        )
        .hint(format!(
            "a person finds out and types: turnkeep step deliver --session {session} --receipt R | --not-sent | \
             --waive --why TEXT"
        ))),
        DeliveryState::Sent | DeliveryState::Waived => Err(Failure::of(
            Exit::AlreadyDone,
            "delivered",
            format!("the delivery of turn {} has ended: {}", turn.id, known.state),
        )
        .hint("do not send it again")),
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
        keep_bytes_max: run::keep_bytes_max(context.line_bytes_max),
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
    args: &DeliverArgs,
) -> Result<Exit, Failure> {
    let told = match &finished {
        Ok(finished) if finished.exit == Some(0) => None,
        Ok(finished) => Some(match (finished.exit, finished.signal) {
            (Some(exit), _) => format!("the publisher ended with {exit}"),
            (None, signal) => format!("the publisher was ended by {}", signal.unwrap_or("a signal")),
        }),
        Err(error) => Some(chain(error)),
    };
    if let Some(told) = told {
        return Err(Failure::of(Exit::Unknown, "delivery_unknown", format!("{told}; the reply may be out")).hint(
            format!(
                "a person finds out and types: turnkeep step deliver --session {}:{} --receipt R | --not-sent | \
                 --waive --why TEXT",
                ticket.session, ticket.turn
            ),
        ));
    }
    let output = finished.map(|finished| finished.stdout.text).unwrap_or_default();
    let output = output.strip_suffix('\n').unwrap_or(&output);
    // The reply is out, whatever its publisher printed: what no body can be is kept as text.
    let receipt =
        (!output.is_empty()).then(|| Raw::structured_or_text(output).unwrap_or_else(|_| Raw::text(output)));
    let signal = || None;
    let journal = Journal::open(context.patient_setting(&signal), &ticket.session)?;
    let step = Step::on(Desk::new(context, journal), ticket.clone());
    Wanted { state: DeliveryState::Sent, receipt, args, speaker: Speaker::Publisher }.say(step)
}

fn not_settled(turn: &Turn) -> Failure {
    Failure::conflict("not_settled", format!("turn {} is not settled", turn.id))
        .hint("`turnkeep step settle` comes before its delivery")
}

fn delivery_key(turn: &Turn) -> Result<String, Failure> {
    turn.delivery_key.clone().ok_or_else(|| {
        Failure::conflict("no_delivery_key", format!("turn {} was admitted without a delivery key", turn.id))
            .hint("`turnkeep admit --delivery KEY` gives one; without it the reply is the driver's to show")
    })
}

fn oldest_begun(session: &Session) -> Option<TurnId> {
    session.unclosed().find(|turn| next::begun(turn)).map(|turn| turn.id.clone())
}
