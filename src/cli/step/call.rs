//! `step claim`, `step result`, `step dispatch`: what happened to a call.

use super::super::args::{ClaimArgs, DispatchArgs, ResultArgs};
use super::super::context::{Context, json_option, json_or_text};
use super::super::error::{Exit, Failure};
use super::super::select;
use super::{Step, Tickets, content};
use crate::chain::call_key;
use crate::draft::History;
use crate::json::Raw;
use crate::message;
use crate::record::{
    CallRef, Claimed, Decision, Dispatched, Intent, Kind, Outcome, Record, Straggler, TurnId,
};
use crate::turn::decide;
use crate::turn::{Answer, AnswerKind, Call, Declared, Mark, Turn};

/// `turnkeep step claim`
pub(super) fn claim(context: &Context, tickets: &Tickets, args: &ClaimArgs) -> Result<Exit, Failure> {
    let link = args.link.as_deref().map(|link| json_option("--link", link)).transpose()?;
    let declared_args = args.args.as_deref().map(|args| json_option("--args", args)).transpose()?;
    context.arm()?;
    let signal = || context.signal();
    let mut step = Step::open(context, tickets.any()?, &signal)?;
    let (turn, history) = step.any_turn()?;
    step.fence_attempt(&turn)?;
    if !turn.is_closed() {
        step.fence_owner(&turn)?;
    }
    let claimed = |call: &Call, ticket: u64| Claimed {
        turn: turn.id.clone(),
        attempt: ticket,
        r#ref: call.r#ref,
        key: call.key.clone(),
        link: link.clone(),
        runner: None,
    };
    let Some(tool) = &args.tool else {
        let call = begun_call(&step, &turn, &args.call)?;
        gate(&step, &turn, &call, &history)?;
        let record = claimed(&call, step.ticket.attempt);
        return step.commit(vec![record.into()]);
    };
    let parent = args
        .parent
        .as_deref()
        .map(|parent| select::call(&turn, parent).map(|call| call.r#ref))
        .transpose()?;
    let declared_args = declared_args.map_or_else(|| Raw::parse("{}"), Ok)?;
    let declaration = Declaration { id: &args.call, tool, args: declared_args, parent };
    match declaration.known(&step, &turn)? {
        Some(call) => {
            gate(&step, &turn, call, &history)?;
            let record = claimed(call, step.ticket.attempt);
            step.commit(vec![record.into()])
        }
        None if turn.is_closed() => Err(step.closed(&turn)),
        None => {
            let mut prepared = step.desk.journal.prepare(step.desk.at.clone(), "")?;
            let seq = prepared.draft.next_seq();
            let intent = declaration.intent(context, &step, &turn.id, seq)?;
            prepared.draft.push(intent)?;
            let drafted = prepared.draft.session.turn(&turn.id).cloned();
            let call = drafted.as_ref().and_then(|turn| turn.call(CallRef { seq, position: 0 }));
            let (Some(drafted), Some(call)) = (&drafted, call) else {
                return Err(Failure::unexpected("the declared call is gone"));
            };
            let gated = gate(&step, drafted, call, &history);
            if gated.is_ok() {
                prepared.draft.push(claimed(call, step.ticket.attempt))?;
            }
            // The declaration stands also where the claim waits for an approval.
            match &gated {
                Err(failure) if failure.exit != Exit::NotPermitted => return gated.map(|()| Exit::Done),
                _ => {}
            }
            step.desk.journal.write(&mut prepared)?;
            step.desk.update_tree(&turn.id);
            gated?;
            let mark = prepared.draft.session.head.clone();
            step.answer(super::desk::receipt(&mark, super::Repeated::No))
        }
    }
}

/// A call that is declared without a model message.
pub(super) struct Declaration<'a> {
    pub(super) id: &'a str,
    pub(super) tool: &'a str,
    pub(super) args: Raw,
    pub(super) parent: Option<CallRef>,
}

impl Declaration<'_> {
    /// The call that was declared under this id; other arguments, another tool or another parent under it are a
    /// conflict. What an earlier run of its parent declared is no longer meant: a rerun declares anew.
    pub(super) fn known<'t>(&self, step: &Step<'_>, turn: &'t Turn) -> Result<Option<&'t Call>, Failure> {
        if self.id.is_empty() {
            return Err(Failure::usage("bad_call_id", "the id of a call is not empty")
                .hint("give it an id of your own, such as 5-mail"));
        }
        if self.id.parse::<CallRef>().is_ok() {
            return Err(Failure::usage("bad_call_id", format!("{:?} looks like a ref", self.id))
                .hint("give the call another id: SEQ.POS names a call that a record declared"));
        }
        let changed = |what: String| {
            Err(Failure::conflict("other_call", format!("call {:?} was declared {what}", self.id))
                .hint("an id names one call for ever: give the changed one another id"))
        };
        let now = step.desk.context.now(step.desk.at.clone());
        match turn.declared_before(self.id, self.parent) {
            None => Ok(None),
            Some((call, Declared::Elsewhere)) => {
                changed(call.parent.map_or("nested in no call".into(), |outer| format!("nested in {outer}")))
            }
            // A rerun declares anew, but for what may have run and must not run again.
            Some((call, Declared::InEarlierRun)) if !call.may_have_run() || now.is_safe(call) => Ok(None),
            Some((call, _)) if call.tool != self.tool || call.args != self.args => {
                changed(format!("as {} with {}", call.tool, call.args.get()))
            }
            Some((call, _)) => Ok(Some(call)),
        }
    }

    /// Its `intent`, as the record of this seq.
    pub(super) fn intent(
        &self,
        context: &Context,
        step: &Step<'_>,
        turn: &TurnId,
        seq: u64,
    ) -> Result<Intent, Failure> {
        let rule = context.policy.classify(self.tool, self.args.get());
        let r#ref = CallRef { seq, position: 0 };
        Ok(Intent {
            turn: turn.clone(),
            attempt: step.ticket.attempt,
            id: self.id.to_owned(),
            tool: self.tool.to_owned(),
            args: self.args.clone(),
            args_sha256: super::super::admit::digest(&self.args),
            replay: rule.replay,
            approval: rule.approval,
            unknown: rule.unknown,
            key: call_key(&step.desk.session()?.genesis, turn, r#ref),
            parent: self.parent,
        })
    }
}

/// The call that is to be begun. Of a closed turn there is none but those that are answered.
pub(super) fn begun_call(step: &Step<'_>, turn: &Turn, word: &str) -> Result<Call, Failure> {
    match select::call(turn, word) {
        Err(_) if turn.is_closed() => Err(step.closed(turn)),
        found => found.cloned(),
    }
}

/// Whether this attempt may begin a call now.
///
/// An answered call answers (10), one that needs an approval asks (11), one that may have run is refused (7), and
/// any other that the table does not let run is refused too (6).
pub(super) fn gate(step: &Step<'_>, turn: &Turn, call: &Call, history: &History) -> Result<(), Failure> {
    let context = step.desk.context;
    let now = context.now(step.desk.at.clone());
    let named = format!("call {} ({})", call.r#ref, call.tool);
    if let Some(answer) = &call.answer {
        return Err(answered(step, call, answer, history)?);
    }
    // A recovery never runs a nested call by itself; the tool that it is nested in, alive here, may.
    let by_itself = Call { parent: None, ..call.clone() };
    let ruling = decide::rule(turn, if call.may_have_run() { call } else { &by_itself }, &now);
    let rerun = ruling.decision == Decision::Rerun && call.rerun_by == Some(step.ticket.attempt);
    match ruling.decision {
        Decision::Ask => {
            Err(Failure::of(Exit::NotPermitted, "approval_needed", format!("{named} needs an approval"))
                .with("ref", &call.r#ref)
                .hint(format!(
                    "a person types: turnkeep step approve {} --by WHO --session {}:{}",
                    call.r#ref, step.ticket.session, turn.id
                )))
        }
        _ if call.may_have_run() && !rerun => Err(uncertain(step, turn, call, &named)),
        Decision::Run => step.refuse_lost_records(),
        Decision::Rerun if rerun => step.refuse_lost_records(),
        _ => Err(Failure::conflict("may_not_run", format!("{named} may not run: {}", ruling.why))
            .with("decision", ruling.decision.word())
            .hint("`turnkeep inspect SESSION --next` says what comes first")),
    }
}

/// The answer that is stored: people get its text, scripts the error document.
fn answered(step: &Step<'_>, call: &Call, answer: &Answer, history: &History) -> Result<Failure, Failure> {
    let state = crate::status::call_state(call);
    let failure = Failure::of(
        Exit::AlreadyDone,
        "answered",
        format!("call {} ({}) is answered: {state}", call.r#ref, call.tool),
    )
    .with("ref", &call.r#ref)
    .with("seq", &answer.mark.seq)
    .with("state", state)
    .hint("use the answer that is stored; do not run the call");
    let Some(stored) = answer_of(call, history) else { return Ok(failure) };
    if !step.desk.context.out.json {
        step.desk.context.out.foreign_bytes(message::text_of(&stored).as_bytes())?;
    }
    Ok(failure.with("answer", &stored))
}

fn uncertain(step: &Step<'_>, turn: &Turn, call: &Call, named: &str) -> Failure {
    let since = match (&call.claim, &call.dispatch) {
        (_, Some(dispatch)) => format!("was dispatched to {} at {}", dispatch.to, dispatch.mark.at),
        (Some(claim), None) => format!("is claimed by attempt {} since {}", claim.attempt, claim.mark.at),
        (None, None) => "may have been claimed in a record that was lost".to_owned(),
    };
    Failure::of(Exit::Unknown, "claimed", format!("{named} {since}, and its outcome is unknown"))
        .with("ref", &call.r#ref)
        .with("key", &call.key)
        .hint(format!(
            "{}, or a person types: turnkeep step reconcile {} --outcome applied|not_applied|unknown --by WHO \
             --session {}:{}",
            match call.dispatch {
                Some(_) => format!("`turnkeep step result {}` when its answer comes", call.r#ref),
                None => format!("if whoever claimed it is gone: `turnkeep recover {}`", step.ticket.session),
            },
            call.r#ref,
            step.ticket.session,
            turn.id
        ))
}

/// What a stored answer says.
pub(super) fn answer_of(call: &Call, history: &History) -> Option<Raw> {
    Some(match &history.get(call.answer.as_ref()?.mark.seq)?.kind {
        Kind::Outcome(result) => crate::branch::content_of(result),
        Kind::Interrupted(interrupted) => Raw::text(&interrupted.explanation),
        Kind::NotRun(not_run) => Raw::text(&not_run.explanation),
        Kind::Reconciled(reconciled) => reconciled
            .content
            .clone()
            .unwrap_or_else(|| Raw::text(&crate::branch::unknown_text(call, &reconciled.by))),
        Kind::Entry(entry) => entry.entry.clone(),
        Kind::Message(message) => message.message.clone(),
        _ => return None,
    })
}

/// `turnkeep step result`
pub(super) fn result(context: &Context, tickets: &Tickets, args: &ResultArgs) -> Result<Exit, Failure> {
    let text = content(context, args.file.as_ref())?;
    let body = text.as_deref().map(message::result_body).transpose()?;
    if body.is_some() && args.not_run {
        return Err(Failure::usage("usage", "--not-run has no content: the call never started")
            .hint("leave FILE out, or --not-run"));
    }
    context.arm()?;
    let signal = || context.signal();
    let mut step = Step::open(context, tickets.any()?, &signal)?;
    let (turn, history) = step.any_turn()?;
    let call = select::call(&turn, &args.call)?.clone();
    step.check_attempt_exists(&turn)?;
    if args.not_run {
        return not_run(step, &turn, &call);
    }
    let error = args.error || body.as_ref().and_then(message::result_is_error).unwrap_or(false);
    let outcome = told_outcome(turn.id.clone(), step.ticket.attempt, call.r#ref, error, body);
    record_outcome(step, &turn, &call, &history, outcome)
}

/// Records a result, repeats it, or keeps it as evidence that came too late.
fn record_outcome(
    step: Step<'_>,
    turn: &Turn,
    call: &Call,
    history: &History,
    outcome: Outcome,
) -> Result<Exit, Failure> {
    match judge_outcome(history, call, &outcome) {
        Judged::Accept => step.commit(vec![outcome.into()]),
        Judged::Repeats(mark) => step.repeat(&mark),
        Judged::Refused(failure) => Err(failure),
        Judged::Straggler(why) => Err(keep_straggler(step, turn, history, &outcome, why)),
    }
}

/// A result that is its content, without a process behind it.
pub(super) fn told_outcome(
    turn: TurnId,
    attempt: u64,
    r#ref: CallRef,
    error: bool,
    content: Option<Raw>,
) -> Outcome {
    Outcome {
        turn,
        attempt,
        r#ref,
        error,
        content,
        exit: None,
        signal: None,
        stdout: None,
        stderr: None,
        truncated: None,
        output_sha256: None,
        duration_ms: None,
    }
}

/// What becomes of a result.
pub(super) enum Judged {
    /// It is the call's answer.
    Accept,
    /// It is stored already, here.
    Repeats(Mark),
    /// It contradicts, or its call was never begun.
    Refused(Failure),
    /// It came too late: kept as evidence.
    Straggler(String),
}

/// Judges a result by who holds the call.
pub(super) fn judge_outcome(history: &History, call: &Call, outcome: &Outcome) -> Judged {
    let named = format!("call {} ({})", call.r#ref, call.tool);
    let attempt = outcome.attempt;
    if let Some(answer) = &call.answer {
        let stored = history.get(answer.mark.seq).map(|record| &record.kind);
        return match (answer.kind, stored) {
            (AnswerKind::Result, Some(Kind::Outcome(stored))) if same_outcome(stored, outcome) => {
                Judged::Repeats(answer.mark.clone())
            }
            (AnswerKind::Result, _) if answer.attempt == attempt => Judged::Refused(
                Failure::conflict(
                    "other_result",
                    format!("{named} has another result already (record {})", answer.mark.seq),
                )
                .hint("what was answered first stands; `turnkeep inspect SESSION --call REF` shows it"),
            ),
            (AnswerKind::Result, _) => {
                Judged::Straggler(format!("{named} was answered by attempt {}", answer.attempt))
            }
            _ => Judged::Straggler(format!(
                "{named} is settled already as {}",
                crate::status::call_state(call)
            )),
        };
    }
    if let Some(dispatch) = &call.dispatch {
        if attempt >= dispatch.attempt {
            return Judged::Accept;
        }
        return Judged::Straggler(format!("{named} was dispatched by attempt {}", dispatch.attempt));
    }
    match (&call.claim, call.live_claim()) {
        (_, Some(claim)) if claim.attempt == attempt => Judged::Accept,
        (_, Some(claim)) => Judged::Straggler(format!("{named} is claimed by attempt {}", claim.attempt)),
        (Some(_), None) => Judged::Straggler(format!("{named} is to be run again, which ended that claim")),
        (None, None) if call.not_applied.is_some() => {
            Judged::Straggler(format!("{named} was reconciled as not applied"))
        }
        (None, None) if call.lost => {
            Judged::Straggler(format!("no record that is left says that attempt {attempt} claimed {named}"))
        }
        (None, None) => {
            Judged::Refused(Failure::conflict("unclaimed_result", format!("{named} was never claimed")).hint(
                "`turnkeep step claim` comes before the effect; --not-run answers a call that never started",
            ))
        }
    }
}

/// How long it took is no part of what it answered.
fn same_outcome(stored: &Outcome, given: &Outcome) -> bool {
    let timeless = |outcome: &Outcome| Outcome { duration_ms: None, ..outcome.clone() };
    timeless(stored) == timeless(given)
}

/// Evidence, never an answer: kept once, and the sender is told.
pub(super) fn keep_straggler(
    step: Step<'_>,
    turn: &Turn,
    history: &History,
    outcome: &Outcome,
    why: String,
) -> Failure {
    let mut content =
        crate::json::ObjectWriter::default().raw("error", if outcome.error { "true" } else { "false" });
    content = content.raw("content", crate::branch::content_of(outcome).inside_one().get());
    let straggler = Straggler {
        turn: turn.id.clone(),
        attempt: step.ticket.attempt,
        r#ref: Some(outcome.r#ref),
        content: content.finish(),
        why: why.clone(),
    };
    match keep_once(step, history, straggler) {
        Ok(seq) => {
            Failure::of(Exit::Fenced, "straggler", format!("too late: {why}; the result is kept as evidence"))
                .with("ref", &outcome.r#ref)
                .with("straggler", &seq)
                .hint("it is no answer; `turnkeep inspect` shows it")
        }
        Err(failure) => failure,
    }
}

/// Records evidence unless the same stands already; says where it stands.
pub(super) fn keep_once(mut step: Step<'_>, history: &History, straggler: Straggler) -> Result<u64, Failure> {
    let same = |record: &Record| match &record.kind {
        Kind::Straggler(kept) => {
            kept.turn == straggler.turn
                && kept.attempt == straggler.attempt
                && kept.r#ref == straggler.r#ref
                && kept.content == straggler.content
        }
        _ => false,
    };
    if let Some((_, kept)) = history.iter().find(|(_, record)| same(record)) {
        return Ok(kept.seq);
    }
    let marks = step.desk.record(vec![straggler.into()])?;
    marks.last().map(|mark| mark.seq).ok_or_else(|| Failure::unexpected("nothing recorded"))
}

/// A call that never started: blocked, an unknown tool, bad arguments.
fn not_run(step: Step<'_>, turn: &Turn, call: &Call) -> Result<Exit, Failure> {
    let named = format!("call {} ({})", call.r#ref, call.tool);
    if let Some(answer) = &call.answer {
        return match answer.kind {
            AnswerKind::NotRun(_) if answer.attempt == step.ticket.attempt => {
                let mark = answer.mark.clone();
                step.repeat(&mark)
            }
            _ => {
                step.fence_attempt(turn)?;
                Err(Failure::conflict(
                    "answered",
                    format!("{named} is answered already: {}", crate::status::call_state(call)),
                )
                .hint("what was answered once stands; go on with the next call"))
            }
        };
    }
    step.fence(turn)?;
    let own = call.claim.as_ref().is_some_and(|claim| {
        claim.attempt == step.ticket.attempt && claim.runner.is_none() && claimed_once(&step, call)
    });
    if call.may_have_run() && (!own || call.dispatch.is_some()) {
        return Err(Failure::conflict(
            "may_have_run",
            format!("{named} may have run, so it cannot be called not run"),
        )
        .hint("record its result, or let a person `turnkeep step reconcile` it"));
    }
    let record = crate::explain::refused(
        turn,
        call,
        "the agent did not start it (blocked, an unknown tool or bad arguments)",
    );
    step.commit(vec![record.into()])
}

/// Whether the claim that stands is the only one the call ever had.
fn claimed_once(step: &Step<'_>, call: &Call) -> bool {
    let claims = step.desk.journal.history().iter().filter(|(_, record)| match &record.kind {
        Kind::Claimed(claimed) => claimed.r#ref == call.r#ref,
        Kind::Dispatched(dispatched) => dispatched.r#ref == call.r#ref,
        _ => false,
    });
    claims.count() == 1
}

/// `turnkeep step dispatch`
pub(super) fn dispatch(context: &Context, tickets: &Tickets, args: &DispatchArgs) -> Result<Exit, Failure> {
    let receipt = args.receipt.as_deref().map(json_or_text).transpose()?;
    context.arm()?;
    let signal = || context.signal();
    let mut step = Step::open(context, tickets.any()?, &signal)?;
    let (turn, history) = step.any_turn()?;
    let call = begun_call(&step, &turn, &args.call)?;
    step.check_attempt_exists(&turn)?;
    let record = Dispatched {
        turn: turn.id.clone(),
        attempt: step.ticket.attempt,
        r#ref: call.r#ref,
        to: args.to.clone(),
        receipt: receipt.clone(),
    };
    let open = call.dispatch.as_ref().filter(|_| call.answer.is_none());
    if let (Some(known), Some(receipt)) = (open, &receipt)
        && known.to == args.to
        && [known.attempt, turn.current_number()].contains(&step.ticket.attempt)
    {
        return match &known.receipt {
            None => step.commit(vec![record.into()]),
            Some(stored) if stored == receipt => {
                let mark = receipt_mark(&history, &call).unwrap_or_else(|| known.mark.clone());
                step.repeat(&mark)
            }
            Some(_) => Err(Failure::conflict(
                "other_receipt",
                format!("call {} has another receipt of its dispatch already", call.r#ref),
            )
            .hint("the first one stands: ask with it, and look up what the second one stands for")),
        };
    }
    step.fence_attempt(&turn)?;
    if !turn.is_closed() {
        step.fence_owner(&turn)?;
    }
    gate(&step, &turn, &call, &history)?;
    step.commit(vec![record.into()])
}

/// The record that brought the receipt of a dispatch, which may be a later one than the dispatch.
fn receipt_mark(history: &History, call: &Call) -> Option<Mark> {
    let (offset, record) = history.iter().rev().find(|(_, record)| {
        matches!(&record.kind, Kind::Dispatched(known) if known.r#ref == call.r#ref && known.receipt.is_some())
    })?;
    Some(Mark { seq: record.seq, hash: record.hash.clone(), at: record.at.clone(), offset })
}
