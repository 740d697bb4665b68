//! `turnkeep step`: one fact of a turn, recorded before anybody acts on it.
//!
//! Every step names its turn by a ticket, whose attempt fences it. Repeating a step that stands answers with its
//! receipt and writes nothing; contradicting one is refused.

mod call;
mod deliver;
mod message;
mod person;
mod run;
mod settle;

use super::args::{StepArgs, StepKind};
use super::context::{Context, read_file};
use super::desk::{self, Desk, Repeated};
use super::error::{Exit, Failure, RECORDS_LOST};
use super::select::Ticket;
use crate::draft::History;
use crate::json::Raw;
use crate::record::{Heartbeat, Kind, Note};
use crate::status::{Receipt, Status};
use crate::turn::decide::{Holder, LEASE_MS_DEFAULT, Sighting};
use crate::turn::next::Asker;
use crate::turn::{Mark, Retain, Turn};
use std::path::PathBuf;

/// Runs the command.
pub fn run(context: &Context, args: StepArgs) -> Result<Exit, Failure> {
    let given = args.ticket.as_deref().map(Ticket::parse).transpose()?;
    let ticket = Tickets { given };
    match args.kind {
        StepKind::Message(args) => message::message(context, &ticket, &args),
        StepKind::Entry(args) => message::entry(context, &ticket, &args),
        StepKind::Claim(args) => call::claim(context, &ticket, &args),
        StepKind::Result(args) => call::result(context, &ticket, &args),
        StepKind::Dispatch(args) => call::dispatch(context, &ticket, &args),
        StepKind::Run(args) => run::run(context, &ticket, &args),
        StepKind::Settle(args) => settle::settle(context, &ticket, &args),
        StepKind::Deliver(args) => deliver::deliver(context, &ticket, &args),
        StepKind::Heartbeat => heartbeat(context, &ticket),
        StepKind::Note(args) => note(context, &ticket, args.file.as_ref()),
        StepKind::Approve(args) => person::approve(context, &ticket, &args),
        StepKind::Deny(args) => person::deny(context, &ticket, &args),
        StepKind::Reconcile(args) => person::reconcile(context, &ticket, &args),
        StepKind::Cancel(args) => person::cancel(context, &ticket, &args),
        StepKind::Steer(args) => person::steer(context, &ticket, &args),
    }
}

/// How the caller of a step sees its failures, also those from before it began.
pub fn as_its_caller_sees(args: &StepArgs) -> fn(Failure) -> Failure {
    match &args.kind {
        StepKind::Run(args) if args.tool.is_some() => run::as_script_sees,
        _ => std::convert::identity,
    }
}

/// Where the ticket comes from.
pub(super) struct Tickets {
    /// By hand.
    pub(super) given: Option<Ticket>,
}

impl Tickets {
    /// The ticket given by hand, else the one in the environment.
    pub(super) fn any(&self) -> Result<Ticket, Failure> {
        if let Some(given) = &self.given {
            return Ok(given.clone());
        }
        match std::env::var("TURNKEEP_TICKET") {
            Ok(text) if !text.is_empty() => Ticket::parse(&text),
            _ => Err(Failure::usage("no_ticket", "there is no ticket")
                .hint("pass what admit or recover printed as --ticket, or in TURNKEEP_TICKET")),
        }
    }
}

/// A step in the making: its desk and its ticket.
pub(super) struct Step<'a> {
    pub(super) desk: Desk<'a>,
    pub(super) ticket: Ticket,
    /// What on the session file tells that the journal lost records.
    records_lost: Option<Failure>,
}

impl<'a> Step<'a> {
    /// Works on an open journal. A step that was killed between journal and tree left the branch behind, and it is
    /// brought up to date first, whatever becomes of this one.
    pub(super) fn on(desk: Desk<'a>, ticket: Ticket) -> Self {
        let records_lost =
            desk.update_tree_or_tell(&ticket.turn).err().filter(|failure| failure.kind == RECORDS_LOST);
        Self { desk, ticket, records_lost }
    }

    /// Opens the journal of the ticket's session.
    pub(super) fn open(
        context: &'a Context,
        ticket: Ticket,
        signal: &'a dyn Fn() -> Option<i32>,
    ) -> Result<Self, Failure> {
        let journal = context.open(&ticket.session, signal)?;
        Ok(Self::on(Desk::new(context, journal), ticket))
    }

    /// No call is begun while the session file knows of records that the journal does not have: its claim, and its result,
    /// may be among them.
    pub(super) fn refuse_lost_records(&self) -> Result<(), Failure> {
        self.records_lost.clone().map_or(Ok(()), Err)
    }

    /// The turn, if it is not closed.
    pub(super) fn turn(&self) -> Option<&Turn> {
        self.desk.turn(&self.ticket.turn)
    }

    /// The turn, which must not be closed.
    pub(super) fn open_turn(&mut self) -> Result<Turn, Failure> {
        let (turn, _) = self.any_turn()?;
        if turn.is_closed() { Err(self.closed(&turn)) } else { Ok(turn) }
    }

    /// The turn and its records, closed or not.
    pub(super) fn any_turn(&mut self) -> Result<(Turn, History), Failure> {
        match self.turn() {
            Some(turn) => Ok((turn.clone(), self.desk.journal.history().clone())),
            None => self.closed_turn(),
        }
    }

    /// A closed turn takes no steps; who was fenced before it closed is told that first.
    pub(super) fn closed(&self, turn: &Turn) -> Failure {
        self.fence_attempt(turn).err().unwrap_or_else(|| {
            Failure::conflict("turn_closed", format!("turn {} is closed", turn.id))
                .hint("a new input is a new turn: `turnkeep admit`")
        })
    }

    /// A closed turn with its records: the slow way, through the whole journal.
    fn closed_turn(&mut self) -> Result<(Turn, History), Failure> {
        let loaded = self.desk.journal.load_all(Retain::All)?;
        let id = &self.ticket.turn;
        let turn = loaded.session.as_ref().and_then(|session| session.turn(id)).cloned();
        let turn = turn.ok_or_else(|| {
            Failure::of(Exit::NotFound, "no_turn", format!("there is no turn {id}"))
                .hint(super::select::no_turn_hint(&self.ticket.session))
        })?;
        Ok((turn, loaded.history))
    }

    /// The ticket's attempt must be the current one, ready for steps, and its owner must not be gone.
    pub(super) fn fence(&self, turn: &Turn) -> Result<(), Failure> {
        self.fence_attempt(turn)?;
        self.fence_owner(turn)
    }

    /// The ticket's attempt must be the current one and ready for steps.
    pub(super) fn fence_attempt(&self, turn: &Turn) -> Result<(), Failure> {
        let (asking, newest) = (self.ticket.attempt, turn.current_number());
        self.check_attempt_exists(turn)?;
        if turn.lost_numbers > 0 {
            return Err(Failure::of(
                Exit::Fenced,
                "fenced",
                format!("records behind attempt {newest} are lost, and one may have been a later attempt"),
            )
            .hint(format!("`turnkeep recover {}` begins one that nobody else has", self.ticket.session)));
        }
        if asking < newest {
            return Err(Failure::of(
                Exit::Fenced,
                "fenced",
                format!("attempt {asking} was taken over by attempt {newest}"),
            )
            .with("current", &newest)
            .hint(
                "stop: another worker has this turn. An effect that already began cannot be stopped by this",
            ));
        }
        if turn.current().is_some_and(crate::turn::Attempt::unfinished) {
            return Err(Failure::conflict(
                "recover_unfinished",
                format!("the recover of attempt {newest} is unfinished, so it accepts no steps yet"),
            )
            .hint(format!("`turnkeep recover {}` finishes it", self.ticket.session)));
        }
        Ok(())
    }

    pub(super) fn check_attempt_exists(&self, turn: &Turn) -> Result<(), Failure> {
        // One that is lost was there, and is fenced like any older one.
        let lost = turn.lost_records && self.ticket.attempt <= turn.current_number() + turn.lost_numbers;
        if turn.attempt(self.ticket.attempt).is_some() || lost {
            return Ok(());
        }
        Err(Failure::of(
            Exit::NotFound,
            "no_attempt",
            format!("turn {} has no attempt {}", turn.id, self.ticket.attempt),
        )
        .hint(
            "use the ticket that `admit` or `recover` printed: it was made for another journal, or by hand",
        ))
    }

    /// A subshell that admitted and ended owns nothing any more: refused before any effect.
    pub(super) fn fence_owner(&self, turn: &Turn) -> Result<(), Failure> {
        let context = self.desk.context;
        let now = context.now(self.desk.at.clone());
        let Some(current) = turn.current() else { return Ok(()) };
        let here = current.owner.as_ref().is_some_and(|owner| context.look(owner) == Sighting::Gone);
        if now.holder(current) != Holder::Gone || !here {
            return Ok(());
        }
        let pid = current.owner.as_ref().map_or(0, |owner| owner.pid);
        Err(Failure::of(
            Exit::Fenced,
            "owner_gone",
            format!(
                "the owner of attempt {} (pid {pid}) is gone",
                current.number
            ),
        )
        .hint(format!(
            "`turnkeep recover {}` takes it over; so that an owner lives on, `admit` and `recover` take --owner-pid $$ or \
             -- CMD",
            super::advice::quoted(&self.ticket.session)
        )))
    }

    /// Records and answers.
    pub(super) fn commit(mut self, kinds: Vec<Kind>) -> Result<Exit, Failure> {
        let receipt = self.desk.step(&self.ticket.turn.clone(), kinds)?;
        self.answer(receipt)
    }

    /// Answers with the receipt of a record that stands already.
    pub(super) fn repeat(mut self, mark: &Mark) -> Result<Exit, Failure> {
        self.answer(desk::receipt(mark, Repeated::Yes))
    }

    /// Prints the receipt, or the status document with it.
    pub(super) fn answer(&mut self, receipt: Receipt) -> Result<Exit, Failure> {
        let context = self.desk.context;
        if context.out.json {
            let status = self.status()?;
            context.out.document(&Status { receipt: Some(receipt), ..status })?;
        } else {
            context.out.document(&receipt)?;
        }
        Ok(Exit::Done)
    }

    pub(super) fn status(&mut self) -> Result<Status, Failure> {
        let id = &self.ticket.turn;
        let Some(turn) = self.turn() else {
            // Of a closed turn, a driver has no ticket to go on with.
            let loaded = self.desk.journal.load_all(Retain::All)?;
            let session = loaded.session.as_ref().map_or_else(|| self.desk.session(), Ok)?;
            let (context, at) = (self.desk.context, &self.desk.at);
            return Ok(desk::status_of(
                context,
                session,
                session.turn(id),
                &loaded.history,
                at,
                Asker::Owner,
            ));
        };
        let ticket = crate::status::ticket(&self.ticket.session, turn);
        Ok(Status { ticket: Some(ticket), ..self.desk.status(Some(id), Asker::Owner)? })
    }
}

fn heartbeat(context: &Context, tickets: &Tickets) -> Result<Exit, Failure> {
    context.arm()?;
    let signal = || context.signal();
    let mut step = Step::open(context, tickets.any()?, &signal)?;
    let turn = step.open_turn()?;
    step.fence(&turn)?;
    let lease_ms = turn.current().and_then(|attempt| attempt.lease_ms).unwrap_or(LEASE_MS_DEFAULT);
    let heartbeat = Heartbeat { turn: turn.id.clone(), attempt: step.ticket.attempt, lease_ms };
    step.commit(vec![heartbeat.into()])
}

fn note(context: &Context, tickets: &Tickets, file: Option<&PathBuf>) -> Result<Exit, Failure> {
    let content = content(context, file)?.ok_or_else(|| no_content("a remark"))?;
    context.arm()?;
    let signal = || context.signal();
    let mut step = Step::open(context, tickets.any()?, &signal)?;
    let (turn, _) = step.any_turn()?;
    step.fence_attempt(&turn)?;
    if !turn.is_closed() {
        step.fence_owner(&turn)?;
    }
    let note =
        Note { turn: turn.id, attempt: step.ticket.attempt, content: Raw::structured_or_text(&content)? };
    step.commit(vec![note.into()])
}

/// What FILE or `-` holds; no file argument means no content.
pub(super) fn content(context: &Context, file: Option<&PathBuf>) -> Result<Option<String>, Failure> {
    file.map(|file| read_file(context, file)).transpose()
}

pub(super) fn no_content(what: &str) -> Failure {
    Failure::usage("no_content", format!("{what} is expected from a FILE, or from stdin for `-`"))
        .hint("nothing was written")
}
