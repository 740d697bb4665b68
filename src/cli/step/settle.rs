//! `step settle`: the end of a turn.

use super::super::args::SettleArgs;
use super::super::context::Context;
use super::super::error::{Exit, Failure};
use super::message::last_model_body;
use super::{Step, Tickets, content};
use crate::explain;
use crate::json::Raw;
use crate::message::{self, Ending, Meaning, MessageError, Role};
use crate::record::{Kind, Message, NotRunWhy, Settled, SettledStatus};
use crate::turn::Turn;

/// `turnkeep step settle`
pub(super) fn settle(context: &Context, tickets: &Tickets, args: &SettleArgs) -> Result<Exit, Failure> {
    let text = content(context, args.file.as_ref())?;
    let given = text.as_deref().map(Given::read).transpose()?;
    context.arm()?;
    let signal = || context.signal();
    let mut step = Step::open(context, tickets.any()?, &signal)?;
    let (turn, history) = step.any_turn()?;
    step.check_attempt_exists(&turn)?;
    let default = if turn.cancelled.is_some() { SettledStatus::Cancelled } else { SettledStatus::Completed };
    let status = args.status.unwrap_or(default);
    let last = last_model_body(&turn, &history).map(|(_, body)| body);
    let reply = match (&given, status) {
        (Some(given), _) => Some(given.body().clone()),
        (None, SettledStatus::Completed) => last.clone(),
        (None, SettledStatus::Failed | SettledStatus::Cancelled) => None,
    };
    if let Some(settled) = &turn.settled {
        let stored = history.get(settled.mark.seq).map(|record| &record.kind);
        let same = matches!(stored, Some(Kind::Settled(stored))
            if stored.status == status && stored.reply == reply && stored.reason == args.reason);
        let mark = settled.mark.clone();
        if same {
            return step.repeat(&mark);
        }
        step.fence_attempt(&turn)?;
        return Err(Failure::conflict(
            "settled",
            format!("turn {} is settled already as {} (record {})", turn.id, settled.status, mark.seq),
        )
        .hint("how it was settled stands; a new input is a new turn: `turnkeep admit`"));
    }
    step.fence(&turn)?;
    let mut prepared = step.desk.journal.prepare(step.desk.at.clone(), "")?;
    // The open calls are answered first: no message but results follows while one is not.
    if status != SettledStatus::Completed {
        for record in close_calls(context, &step, &turn, status) {
            prepared.draft.push(record)?;
        }
    }
    if let Some(Given::Message(raw, meaning)) =
        given.as_ref().filter(|given| last.as_ref() != Some(given.body()))
    {
        check_last_message(meaning, status)?;
        let drafted = prepared.draft.session.turn(&turn.id).unwrap_or(&turn);
        drafted.check_model_message(meaning).map_err(|why| super::message::refused(drafted, why))?;
        prepared.draft.push(Message {
            turn: turn.id.clone(),
            attempt: step.ticket.attempt,
            format: meaning.format.to_string(),
            role: meaning.role_word.clone(),
            message: raw.clone(),
            calls: None,
        })?;
    }
    let drafted = prepared.draft.session.turn(&turn.id).cloned().unwrap_or(turn);
    drafted.check_settle(status).map_err(|why| {
        Failure::conflict(
            "not_settleable",
            format!("turn {} cannot be settled as {status}: {why}", drafted.id),
        )
        .hint("`turnkeep inspect SESSION --next` says what comes first")
    })?;
    let reason = args.reason.clone();
    let record = Settled { turn: drafted.id.clone(), attempt: step.ticket.attempt, status, reply, reason };
    let mark = prepared.draft.push(record)?;
    step.desk.journal.write(&mut prepared)?;
    step.desk.update_tree(&drafted.id);
    step.answer(super::desk::receipt(&mark, super::Repeated::No))
}

/// A message can be the last word only if it asks for nothing, and a reply only if it did not end in error.
fn check_last_message(meaning: &Meaning, status: SettledStatus) -> Result<(), Failure> {
    if !meaning.calls.is_empty() {
        return Err(Failure::conflict("message_refused", "a message with calls does not end a turn")
            .hint("record it with `turnkeep step message` and run its calls"));
    }
    match &meaning.ending {
        Ending::Failed(why) if status == SettledStatus::Completed => Err(Failure::conflict(
            "message_refused",
            format!("the message ended with {why:?}, so it is no reply"),
        )
        .hint("ask the model again, or settle with --status failed")),
        Ending::Complete | Ending::Paused | Ending::CutOff(_) | Ending::Failed(_) => Ok(()),
    }
}

/// What FILE holds.
enum Given {
    /// A model's message.
    Message(Raw, Box<Meaning>),
    /// The reply itself.
    Reply(Raw),
}

impl Given {
    fn read(text: &str) -> Result<Self, Failure> {
        match message::take(text, None, None) {
            Ok((raw, meaning)) if meaning.role == Role::Assistant => {
                Ok(Self::Message(raw, Box::new(meaning)))
            }
            // It is plainly meant to be a message.
            Err(MessageError::PiContent { role, found }) if Role::of(&role) == Role::Assistant => {
                Err(MessageError::PiContent { role, found }.into())
            }
            _ => Ok(Self::Reply(Raw::structured_or_text(text)?)),
        }
    }

    fn body(&self) -> &Raw {
        match self {
            Self::Message(raw, _) | Self::Reply(raw) => raw,
        }
    }
}

/// A turn that fails or is cancelled answers its open calls first, truly.
fn close_calls(context: &Context, step: &Step<'_>, turn: &Turn, status: SettledStatus) -> Vec<Kind> {
    let close = |call: &crate::turn::Call| -> Kind {
        if call.may_have_run() {
            let session = &step.ticket.session;
            let output = super::super::spool::output_so_far(context, session, &turn.id, call);
            explain::interrupted(turn, call, output).into()
        } else {
            match status {
                SettledStatus::Cancelled => explain::not_run(turn, call, NotRunWhy::Cancelled).into(),
                SettledStatus::Completed | SettledStatus::Failed => {
                    explain::refused(turn, call, "the turn was settled before it began").into()
                }
            }
        }
    };
    turn.open_calls().map(close).collect()
}
