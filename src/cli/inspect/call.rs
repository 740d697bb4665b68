//! `--call`: one call with its arguments and its answer in full.

use super::super::advice;
use super::super::context::Context;
use super::super::error::{Exit, Failure};
use super::super::output::escaped;
use super::super::select;
use super::Seen;
use crate::branch;
use crate::json::{ObjectWriter, Raw, View};
use crate::message;
use crate::record::{At, CallRef, Kind, Record, TurnId};
use crate::status::CallNow;
use crate::turn::{Call, Dispatch, Turn};
use serde::Serialize;
use std::fmt::Write as _;

/// `turnkeep.call/1`
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    session: &'a str,
    turn: &'a TurnId,
    call: &'a CallNow,
    answer: Option<Raw>,
}

pub(super) fn run(
    context: &Context,
    seen: &Seen,
    turn: Option<&Turn>,
    named: Option<&TurnId>,
    word: &str,
) -> Result<(), Failure> {
    let (turn, call) = find(seen, turn, named, word)?;
    let status = seen.status(context, Some(turn));
    let now = status.calls.iter().find(|now| now.r#ref == call.r#ref).ok_or_else(|| gone(word))?;
    let record = call.answer.as_ref().and_then(|answer| seen.history.get(answer.mark.seq));
    if context.out.json {
        let answer = record.map(whole);
        let document =
            Document { schema: "turnkeep.call/1", session: &seen.id, turn: &turn.id, call: now, answer };
        return context.out.document(&document);
    }
    context.out.bytes(text(turn, call, now, record, &seen.at).as_bytes())
}

/// The call in the turn that was chosen, else in any other, newest first, unless a turn was named.
fn find<'a>(
    seen: &'a Seen,
    turn: Option<&'a Turn>,
    named: Option<&TurnId>,
    word: &str,
) -> Result<(&'a Turn, &'a Call), Failure> {
    let chosen = match turn {
        Some(turn) => match select::call(turn, word) {
            Err(failure) if failure.exit == Exit::NotFound && named.is_none() => Err(failure),
            found => return found.map(|call| (turn, call)),
        },
        None => Err(gone(word)),
    };
    let others = seen.session.iter().flat_map(|session| session.turns.iter().rev());
    for other in others {
        match select::call(other, word) {
            Err(failure) if failure.exit == Exit::NotFound => {}
            found => return found.map(|call| (other, call)),
        }
    }
    chosen
}

fn gone(word: &str) -> Failure {
    Failure::of(Exit::NotFound, "no_call", format!("there is no call {word:?}"))
        .hint("`turnkeep inspect SESSION` lists the calls")
}

/// A record without its place in the chain.
fn whole(record: &Record) -> Raw {
    let mut payload = Vec::new();
    let written = record.kind.write(&mut payload);
    let text = String::from_utf8(payload).unwrap_or_default();
    let mut document = ObjectWriter::default()
        .raw("seq", &record.seq.to_string())
        .string("at", record.at.as_str())
        .string("kind", record.kind.word());
    if let (Ok(()), Some(fields)) = (written, View::of(&text).object()) {
        for (key, value) in &fields.0 {
            document = document.raw(key, value);
        }
    }
    document.finish()
}

fn text(turn: &Turn, call: &Call, now: &CallNow, record: Option<&Record>, at: &At) -> String {
    let mut text = String::new();
    let id = call.id.as_deref().map(|id| format!(", id {}", escaped(id))).unwrap_or_default();
    // Writing to a String cannot fail.
    let _infallible = write!(
        text,
        "call {} of turn {}: {}{id}\nstate: {}; a recover would say: {}\nreplay: {} when it was asked for, {} now\nkey: {}\n",
        call.r#ref,
        turn.id,
        escaped(&call.tool),
        now.state,
        now.r#do,
        now.replay_stored,
        now.replay_now,
        call.key
    );
    for line in [
        call.parent.map(|parent| format!("nested in: {parent}")),
        now.approval.map(|approval| format!("approval: {approval}")),
        claimed(call, at),
        call.dispatch.as_ref().map(|dispatch| {
            let Dispatch { to, mark, attempt, .. } = dispatch;
            format!("dispatched to {to} at {} by attempt {attempt}, {}", mark.at, advice::since(&mark.at, at))
        }),
        now.link.as_ref().map(|link| format!("look it up: {}", link.get())),
        stragglers(turn, call.r#ref),
    ]
    .into_iter()
    .flatten()
    {
        text.push_str(&escaped(&line));
        text.push('\n');
    }
    let _infallible = write!(text, "\narguments:\n{}\n", escaped(call.args.get()));
    if let Some(record) = record {
        let said = answer(record);
        let _infallible = write!(
            text,
            "\nanswer (record {}, {}, {}):\n{}\n",
            record.seq,
            record.kind.word(),
            record.at,
            escaped(said.trim_end_matches('\n'))
        );
    } else {
        text.push_str("\nno answer\n");
    }
    text
}

fn claimed(call: &Call, at: &At) -> Option<String> {
    let claim = call.claim.as_ref()?;
    let runner = claim.runner.as_ref().map(|runner| format!(", run by pid {}", runner.pid));
    let (since, runner) = (advice::since(&claim.mark.at, at), runner.unwrap_or_default());
    Some(format!("claimed at {} by attempt {}{runner}, {since}", claim.mark.at, claim.attempt))
}

fn stragglers(turn: &Turn, call: CallRef) -> Option<String> {
    let late: Vec<String> = turn
        .stragglers
        .iter()
        .filter(|(of, _)| *of == Some(call))
        .map(|(_, mark)| format!("record {}", mark.seq))
        .collect();
    (!late.is_empty()).then(|| format!("results that came too late: {}", late.join(", ")))
}

/// What an answer says, as text.
fn answer(record: &Record) -> String {
    match &record.kind {
        Kind::Outcome(result) => message::text_of(&branch::content_of(result)),
        Kind::Interrupted(interrupted) => {
            let output = interrupted.output_so_far.as_ref().map(message::text_of);
            let output = output.map(|output| format!("\n\noutput so far:\n{output}")).unwrap_or_default();
            format!("{}{output}", interrupted.explanation)
        }
        Kind::NotRun(not_run) => not_run.explanation.clone(),
        Kind::Reconciled(reconciled) => {
            let content = reconciled.content.as_ref().map(message::text_of).unwrap_or_default();
            format!("{} (says {})\n{content}", reconciled.outcome, reconciled.by)
        }
        Kind::Message(said) => message::text_of(&said.message),
        Kind::Entry(said) => said.entry.view().object().map_or_else(String::new, |entry| {
            let message = entry.get("message").and_then(|message| Raw::parse(message).ok());
            message.map_or_else(|| said.entry.get().to_owned(), |message| message::text_of(&message))
        }),
        _ => String::new(),
    }
}
