//! `step run`: claim, run, record. At most once for each claim.
//!
//! The lock is not held while CMD runs, and recording waits for it as long as it takes. A call whose outcome is
//! unknown is never run here unless a recovery decided so.

use super::super::args::RunArgs;
use super::super::context::{Context, json_option};
use super::super::error::{Exit, Failure, chain};
use super::super::select::Ticket;
use super::super::spool;
use super::call::{
    Declaration, Judged, answer_of, begun_call, gate, judge_outcome, keep_straggler, told_outcome,
};
use super::{Step, Tickets};
use crate::draft::History;
use crate::journal::Journal;
use crate::json::{ObjectWriter, Raw};
use crate::owner;
use crate::record::{CallRef, Claimed, Heartbeat, Kind, Outcome, Owner};
use crate::run::{self, Command, Echo, Finished, RunError};
use crate::status::Receipt;
use crate::turn::{AnswerKind, Call, Turn};
use std::ffi::OsString;
use std::time::Duration;

/// What `env` uses, and what a script is told about us.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
const NOT_STARTED: u8 = 125;
const NOT_RECORDED: u8 = 124;

/// A script sees CMD's exit statuses, so ours must be told apart from them.
///
/// 125 = CMD was not started, for any reason that has no code of its own; stderr names it.
pub(super) fn as_script_sees(failure: Failure) -> Failure {
    match failure.exit {
        Exit::OfCommand(_) | Exit::Unknown | Exit::Signal(_) => failure,
        Exit::Usage | Exit::Conflict if SCRIPT_KINDS.contains(&failure.kind) => failure,
        _ => Failure { exit: Exit::OfCommand(NOT_STARTED), ..failure },
    }
}

/// Refusals that a script has to mend keep their own codes.
const SCRIPT_KINDS: [&str; 4] = ["other_call", "bad_call_id", "not_json", "too_deep"];

/// `turnkeep step run`
pub(super) fn run(context: &Context, tickets: &Tickets, args: &RunArgs) -> Result<Exit, Failure> {
    if let Some(word) = args.cmd.first().filter(|word| word.as_encoded_bytes().starts_with(b"-")) {
        return Err(Failure::usage(
            "usage",
            format!("{} is no option of `step run`, and no command", word.display()),
        )
        .hint("options stand before CMD; nothing was written"));
    }
    let ticket = tickets.any()?;
    let declared_args = args.args.as_deref().map(|args| json_option("--args", args)).transpose()?;
    context.arm()?;
    let signal = || context.signal();
    let mut step = Step::open(context, ticket.clone(), &signal)?;
    let (turn, history) = step.any_turn()?;
    step.fence_attempt(&turn)?;
    let chosen = match &args.tool {
        None => {
            let call = begun_call(&step, &turn, &args.call)?;
            if let Some(exit) = stored(&step, &turn, &call, &history)? {
                return Ok(exit);
            }
            step.fence_owner(&turn)?;
            gate(&step, &turn, &call, &history)?;
            Chosen { call: call.r#ref, intent: None }
        }
        Some(tool) => {
            let given = declared_args.map_or_else(|| argv(&args.cmd), Ok)?;
            let declaration = Declaration { id: &args.call, tool, args: given, parent: None };
            match choose(context, &mut step, (&turn, &history), &declaration, args)? {
                Ok(chosen) => chosen,
                Err(exit) => return Ok(exit),
            }
        }
    };
    spool::ensure(context)?;
    let runner = owner::this_process().map_err(|error| Failure::unexpected(chain(&error)))?;
    let claimed = claim(&mut step, &turn, chosen, runner)?;
    drop(step);
    execute(context, &ticket, args, &claimed)
}

/// The call that is to be claimed, and its declaration if it has none yet.
struct Chosen {
    call: CallRef,
    intent: Option<crate::record::Intent>,
}

/// A call that is claimed now.
struct ClaimedCall {
    call: Call,
    lease_ms: Option<u64>,
}

/// The default arguments of a script's step: the command itself.
fn argv(cmd: &[OsString]) -> Result<Raw, Failure> {
    let words: Vec<String> = cmd.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let list = serde_json::to_string(&words).map_err(|error| Failure::unexpected(chain(&error)))?;
    Ok(ObjectWriter::default().raw("argv", &list).finish())
}

/// What is to be done about a step of a script: run it, or answer from what is stored.
fn choose(
    context: &Context,
    step: &mut Step<'_>,
    (turn, history): (&Turn, &History),
    declaration: &Declaration<'_>,
    args: &RunArgs,
) -> Result<Result<Chosen, Exit>, Failure> {
    let known = declaration.known(step, turn)?;
    if let Some(call) = known {
        let again = args.retry_failed && failed(call, history);
        if !again {
            if let Some(exit) = stored_of_script(step, call, history)? {
                return Ok(Err(exit));
            }
            step.fence_owner(turn)?;
            gate(step, turn, call, history).map_err(|failure| held(failure, call))?;
            return Ok(Ok(Chosen { call: call.r#ref, intent: None }));
        }
    }
    if turn.is_closed() {
        return Err(step.closed(turn));
    }
    step.fence_owner(turn)?;
    let prepared = step.desk.journal.prepare(step.desk.at.clone(), "")?;
    let seq = prepared.draft.next_seq();
    let intent = declaration.intent(context, step, &turn.id, seq)?;
    Ok(Ok(Chosen { call: CallRef { seq, position: 0 }, intent: Some(intent) }))
}

/// A call that is not answered and may not run is of unknown outcome for a script.
fn held(failure: Failure, call: &Call) -> Failure {
    if failure.exit == Exit::Conflict && call.may_have_run() {
        return Failure { exit: Exit::Unknown, ..failure };
    }
    failure
}

fn failed(call: &Call, history: &History) -> bool {
    let Some(answer) = &call.answer else { return false };
    match history.get(answer.mark.seq).map(|record| &record.kind) {
        Some(Kind::Outcome(outcome)) => outcome.error,
        _ => false,
    }
}

/// A stored result is printed again and nothing runs: an announced call.
fn stored(step: &Step<'_>, turn: &Turn, call: &Call, history: &History) -> Result<Option<Exit>, Failure> {
    let Some(answer) = &call.answer else { return Ok(None) };
    let Some(record) = history.get(answer.mark.seq) else { return Ok(None) };
    if let Kind::Outcome(outcome) = &record.kind
        && !step.desk.context.out.json
    {
        print_outcome(step.desk.context, outcome)?;
        step.desk.context.out.note(&format!("call {} is answered already; it was not run", call.r#ref));
        return Ok(Some(Exit::AlreadyDone));
    }
    gate(step, turn, call, history).map(|()| None)
}

/// The same for a step of a script, whose exit status is CMD's.
fn stored_of_script(step: &mut Step<'_>, call: &Call, history: &History) -> Result<Option<Exit>, Failure> {
    let Some(answer) = &call.answer else { return Ok(None) };
    let context = step.desk.context;
    let named = format!("call {} ({})", call.r#ref, call.tool);
    let exit = match (answer.kind, history.get(answer.mark.seq).map(|record| &record.kind)) {
        (AnswerKind::Result, Some(Kind::Outcome(outcome))) => {
            print_outcome(context, outcome)?;
            Exit::OfCommand(status_of(outcome))
        }
        (AnswerKind::Result | AnswerKind::Applied, _) => {
            if let Some(content) = answer_of(call, history) {
                print_text(context, &content)?;
            }
            Exit::Done
        }
        (AnswerKind::NotRun(_), _) => {
            // Known not to have run, so this is no unknown outcome.
            return Err(Failure::conflict("not_run", format!("{named} was not run and will not be"))
                .with("ref", &call.r#ref)
                .hint("give the step another id, or end the turn"));
        }
        (AnswerKind::Interrupted | AnswerKind::Unknown, _) => {
            return Err(Failure::of(
                Exit::Unknown,
                "outcome_unknown",
                format!("{named} has an outcome that is unknown and stays so"),
            )
            .with("ref", &call.r#ref)
            .hint("this 7 is turnkeep's, not the command's: give the step another id, or end the turn"));
        }
    };
    if context.out.json {
        step.answer(super::desk::receipt(&answer.mark, super::Repeated::Yes))?;
    }
    Ok(Some(exit))
}

/// Text where the output of CMD would stand.
fn print_text(context: &Context, content: &Raw) -> Result<(), Failure> {
    let text = crate::message::text_of(content);
    if context.out.json {
        context.out.stderr(text.as_bytes())
    } else {
        context.out.foreign_bytes(text.as_bytes())
    }
}

fn print_outcome(context: &Context, outcome: &Outcome) -> Result<(), Failure> {
    match (&outcome.stdout, &outcome.content) {
        (None, Some(content)) => print_text(context, content),
        (stdout, _) => {
            let bytes = stdout.as_deref().unwrap_or_default().as_bytes();
            if context.out.json { context.out.stderr(bytes) } else { context.out.foreign_bytes(bytes) }
        }
    }?;
    context.out.stderr(outcome.stderr.as_deref().unwrap_or_default().as_bytes())
}

/// The status that a shell would give a stored outcome.
fn status_of(outcome: &Outcome) -> u8 {
    if let Some(exit) = outcome.exit {
        return u8::try_from(exit).unwrap_or(u8::MAX);
    }
    let number =
        outcome.signal.as_deref().and_then(|name| (1..=64).find(|n| run::signal_name(*n) == Some(name)));
    match number.and_then(|number| u8::try_from(number).ok()) {
        Some(signal) => 128_u8.saturating_add(signal),
        None => u8::from(outcome.error),
    }
}

/// Records the claim, and the declaration with it; durable when this returns.
fn claim(step: &mut Step<'_>, turn: &Turn, chosen: Chosen, runner: Owner) -> Result<ClaimedCall, Failure> {
    let mut prepared = step.desk.journal.prepare(step.desk.at.clone(), "")?;
    if let Some(intent) = chosen.intent {
        prepared.draft.push(intent)?;
    }
    let drafted = prepared.draft.session.turn(&turn.id).cloned();
    let call = drafted.as_ref().and_then(|turn| turn.call(chosen.call)).cloned();
    let (Some(drafted), Some(call)) = (drafted, call) else {
        return Err(Failure::unexpected("the call is gone"));
    };
    let gated = gate(step, &drafted, &call, &prepared.draft.history);
    if gated.is_ok() {
        prepared.draft.push(Claimed {
            turn: turn.id.clone(),
            attempt: step.ticket.attempt,
            r#ref: call.r#ref,
            key: call.key.clone(),
            link: None,
            runner: Some(runner),
        })?;
    } else if !matches!(&gated, Err(failure) if failure.exit == Exit::NotPermitted) {
        return Err(gated.map_or_else(|failure| failure, |()| unreachable_gate()));
    }
    // The declaration stands also where the claim waits for an approval.
    step.desk.journal.write(&mut prepared)?;
    gated?;
    let lease_ms = drafted.current().and_then(|attempt| attempt.lease_ms);
    Ok(ClaimedCall { call, lease_ms })
}

fn unreachable_gate() -> Failure {
    Failure::unexpected("the call may run after all")
}

/// Runs CMD and records how it ended.
fn execute(
    context: &Context,
    ticket: &Ticket,
    args: &RunArgs,
    claimed: &ClaimedCall,
) -> Result<Exit, Failure> {
    let call = &claimed.call;
    let command = Command {
        argv: &args.cmd,
        stdin: call.args.get().as_bytes(),
        env_set: vec![
            ("TURNKEEP_TOOL".into(), call.tool.clone().into()),
            ("TURNKEEP_KEY".into(), call.key.clone().into()),
            ("TURNKEEP_CALL".into(), call.r#ref.to_string().into()),
        ],
        env_remove: vec!["TURNKEEP_TICKET"],
        echo: if context.out.json { Echo::ToStderr } else { Echo::Through },
        spool: Some(spool::paths(context, &ticket.session, &ticket.turn, call.r#ref)),
        keep_bytes_max: run::keep_bytes_max(context.line_bytes_max),
    };
    let tick = claimed.lease_ms.map_or(Duration::from_secs(3_600), |lease| Duration::from_millis(lease / 3));
    let mut on_tick = || renew_lease(context, ticket, claimed.lease_ms);
    match run::run(&command, &mut on_tick, tick.max(Duration::from_millis(50))) {
        Ok(finished) => record(context, ticket, args, call, &finished),
        Err(error) => not_started(context, ticket, args, call, &error),
    }
}

/// Keeps the attempt while CMD runs. A lease that cannot be renewed is not worth ending CMD for.
pub(super) fn renew_lease(context: &Context, ticket: &Ticket, lease_ms: Option<u64>) {
    let Some(lease_ms) = lease_ms else { return };
    let Ok(mut journal) = Journal::open(context.setting(&|| None), &ticket.session) else { return };
    let heartbeat = Heartbeat { turn: ticket.turn.clone(), attempt: ticket.attempt, lease_ms };
    let _renewed = journal.record(context.at(), "", vec![heartbeat.into()]);
}

/// Records the result, waiting for the lock as long as it takes.
fn record(
    context: &Context,
    ticket: &Ticket,
    args: &RunArgs,
    call: &Call,
    finished: &Finished,
) -> Result<Exit, Failure> {
    let outcome = Outcome {
        turn: ticket.turn.clone(),
        attempt: ticket.attempt,
        r#ref: call.r#ref,
        error: finished.exit != Some(0),
        content: None,
        exit: finished.exit.and_then(|exit| u64::try_from(exit).ok()),
        signal: finished.signal.map(str::to_owned),
        stdout: Some(finished.stdout.text.clone()),
        stderr: Some(finished.stderr.text.clone()),
        truncated: finished.truncated.then_some(true),
        output_sha256: finished.output_sha256.clone(),
        duration_ms: Some(finished.duration_ms),
    };
    let status = status_of(&outcome);
    let recorded = append_outcome(context, ticket, call, outcome);
    let receipt = match recorded {
        Ok(receipt) => receipt,
        Err(failure) => return Err(not_recorded(failure, ticket, args, status)),
    };
    spool::remove(context, &ticket.session, &ticket.turn, call.r#ref);
    if let Some(error) = &finished.echo_error {
        return Err(Failure::of(
            Exit::Unexpected,
            "answer_lost",
            format!("the result is recorded, but the output could not be shown: {error}"),
        )
        .hint("do not run it again: `turnkeep inspect SESSION --call REF` shows what it answered"));
    }
    if context.out.json {
        answer_json(context, ticket, receipt)?;
    }
    if args.tool.is_some() || args.preserve_status {
        return Ok(Exit::OfCommand(status));
    }
    Ok(Exit::Done)
}

/// CMD ended, and the journal does not say how: its outcome stays unknown to everybody else.
fn not_recorded(failure: Failure, ticket: &Ticket, args: &RunArgs, status: u8) -> Failure {
    let message =
        format!("the command ended with {status} and that could not be recorded: {}", failure.message);
    let exit = match failure.exit {
        _ if args.tool.is_some() => Exit::OfCommand(NOT_RECORDED),
        // It was no bad input of the caller's, and the claim was written.
        Exit::Usage => Exit::Unexpected,
        exit => exit,
    };
    // What was kept as evidence has its own hint.
    let hint = match failure.exit {
        Exit::Fenced => failure.hint,
        Exit::Conflict | Exit::NotFound => {
            "the journal does not have the claim any more: it was replaced; bring the newest copy back before anybody \
             goes on, or the call may run again"
                .to_owned()
        }
        _ => format!("the call stays claimed; `turnkeep recover {}` decides about it", ticket.session),
    };
    Failure { exit, message, hint, ..failure }
}

fn append_outcome(
    context: &Context,
    ticket: &Ticket,
    call: &Call,
    outcome: Outcome,
) -> Result<Receipt, Failure> {
    let signal = || None;
    let journal = Journal::open(context.patient_setting(&signal), &ticket.session)?;
    let mut step = Step::on(super::desk::Desk::new(context, journal), ticket.clone());
    let (turn, history) = step.any_turn()?;
    let known = turn.call(call.r#ref).cloned().ok_or_else(|| {
        Failure::of(Exit::NotFound, "no_call", format!("turn {} has no call {}", turn.id, call.r#ref))
            .hint("`turnkeep inspect SESSION` lists the calls")
    })?;
    match judge_outcome(&history, &known, &outcome) {
        Judged::Accept => step.desk.step(&turn.id, vec![outcome.into()]),
        Judged::Repeats(mark) => Ok(super::desk::receipt(&mark, super::Repeated::Yes)),
        Judged::Refused(failure) => Err(failure),
        Judged::Straggler(why) => Err(keep_straggler(step, &turn, &history, &outcome, why)),
    }
}

fn answer_json(context: &Context, ticket: &Ticket, receipt: Receipt) -> Result<(), Failure> {
    let signal = || None;
    let journal = Journal::open(context.patient_setting(&signal), &ticket.session)?;
    let desk = super::desk::Desk::new(context, journal);
    let mut step = Step { desk, ticket: ticket.clone(), records_lost: None };
    step.answer(receipt).map(|_| ())
}

/// CMD never ran: that is known, so the call is answered as a failure that had no effect.
fn not_started(
    context: &Context,
    ticket: &Ticket,
    args: &RunArgs,
    call: &Call,
    error: &RunError,
) -> Result<Exit, Failure> {
    let text = chain(error);
    let code = match error {
        RunError::NotFound { .. } => NOT_FOUND,
        RunError::NotExecutable { .. } => NOT_EXECUTABLE,
        RunError::NotStarted { .. } => NOT_STARTED,
        // It may have had its effect: the claim stands, and the outcome is unknown.
        RunError::Lost { .. } => {
            return Err(Failure::of(Exit::Unknown, "outcome_unknown", text)
                .with("ref", &call.r#ref)
                .hint(format!("`turnkeep recover {}` decides about the call", ticket.session)));
        }
    };
    spool::remove(context, &ticket.session, &ticket.turn, call.r#ref);
    let outcome = Outcome {
        exit: Some(u64::from(code)),
        ..told_outcome(
            ticket.turn.clone(),
            ticket.attempt,
            call.r#ref,
            true,
            Some(Raw::text(&format!("the command was not started: {text}"))),
        )
    };
    let receipt = append_outcome(context, ticket, call, outcome)?;
    if context.out.json {
        answer_json(context, ticket, receipt)?;
    }
    let exit = if args.tool.is_some() || args.preserve_status { Exit::OfCommand(code) } else { Exit::Done };
    context.out.note(&text);
    Ok(exit)
}
