//! A person's acts: approve, deny, reconcile, cancel, steer.
//!
//! They need no attempt and no living owner, but a session named by hand: a ticket in the environment is a
//! driver's. What a living process is at is not decided over its head without `--force --why`.

use super::super::args::{ApproveArgs, CancelArgs, DenyArgs, PersonArgs, ReconcileArgs, SteerArgs};
use super::super::context::{Context, json_or_text, milliseconds};
use super::super::desk::Desk;
use super::super::error::{Exit, Failure};
use super::super::select::{self, Ticket};
use super::{Step, Tickets, content, no_content};
use crate::draft::History;
use crate::explain;
use crate::json::Raw;
use crate::message;
use crate::record::{
    Approval, ApprovalDecision, At, Cancelled, Decision, Kind, NotRunWhy, Reconciled, ReconciledOutcome,
    Steered, TurnId,
};
use crate::turn::decide;
use crate::turn::{Call, Mark, Retain, Session, Turn, next};

/// `turnkeep step approve`
pub(super) fn approve(context: &Context, tickets: &Tickets, args: &ApproveArgs) -> Result<Exit, Failure> {
    context.arm()?;
    let signal = || context.signal();
    let mut step = open(context, tickets, args.person.session.as_deref(), open_turn, &signal)?;
    let turn = step.open_turn()?;
    let call = open_call(&turn, &args.call)?;
    if let Some(word) = &call.approved
        && word.decision == ApprovalDecision::Granted
        && word.by == args.by
        && word.reason == args.why
        && word.expires.is_none()
        && args.r#for.is_none()
    {
        let mark = word.mark.clone();
        return step.repeat(&mark);
    }
    check_decidable(&step, &turn, &call, &args.person)?;
    let expires = args.r#for.map(|seconds| {
        let micros = i64::try_from(milliseconds(seconds)).unwrap_or(i64::MAX).saturating_mul(1_000);
        At::from_micros(step.desk.at.micros().saturating_add(micros))
    });
    check_not_contradicted(&step, &call, ApprovalDecision::Granted)?;
    let approval = Approval {
        turn: turn.id.clone(),
        r#ref: call.r#ref,
        decision: ApprovalDecision::Granted,
        by: args.by.clone(),
        expires,
        reason: args.why.clone(),
    };
    let told = said(&step, &turn, "approved", Some(&call));
    telling(step, approval.into(), &told)
}

/// `turnkeep step deny`
pub(super) fn deny(context: &Context, tickets: &Tickets, args: &DenyArgs) -> Result<Exit, Failure> {
    context.arm()?;
    let signal = || context.signal();
    let mut step = open(context, tickets, args.person.session.as_deref(), open_turn, &signal)?;
    let turn = step.open_turn()?;
    let call = select::call(&turn, &args.call)?.clone();
    // Who denies against a living claimant has said why in any case.
    let reason = args.reason.clone().or_else(|| args.why.clone());
    if let Some(word) = &call.approved
        && word.decision == ApprovalDecision::Denied
        && word.by == args.by
        && word.reason == reason
    {
        let mark = word.mark.clone();
        return step.repeat(&mark);
    }
    let call = open_call(&turn, &args.call)?;
    check_decidable(&step, &turn, &call, &args.person)?;
    check_not_contradicted(&step, &call, ApprovalDecision::Denied)?;
    let mut prepared = step.desk.journal.prepare(step.desk.at.clone(), "")?;
    let mark = prepared.draft.push(Approval {
        turn: turn.id.clone(),
        r#ref: call.r#ref,
        decision: ApprovalDecision::Denied,
        by: args.by.clone(),
        expires: None,
        reason,
    })?;
    // A call that nobody claimed will never run now; the model is told so.
    let denied = prepared.draft.session.turn(&turn.id).cloned();
    if let Some(denied) = denied.filter(|_| !call.may_have_run() && turn.current().is_some())
        && let Some(call) = denied.call(call.r#ref)
    {
        prepared.draft.push(explain::not_run(&denied, call, NotRunWhy::Denied))?;
    }
    step.desk.journal.write(&mut prepared)?;
    context.out.note(&said(&step, &turn, "denied", Some(&call)));
    step.desk.update_tree(&turn.id);
    step.answer(super::desk::receipt(&mark, super::Repeated::No))
}

/// `turnkeep step reconcile`
pub(super) fn reconcile(context: &Context, tickets: &Tickets, args: &ReconcileArgs) -> Result<Exit, Failure> {
    let body = content(context, args.file.as_ref())?.as_deref().map(message::result_body).transpose()?;
    let receipt = args.receipt.as_deref().map(json_or_text).transpose()?;
    if args.outcome == ReconciledOutcome::Applied && body.is_none() {
        return Err(Failure {
            hint: "an applied call needs content: FILE or -".to_owned(),
            ..no_content("what the tool answered")
        });
    }
    context.arm()?;
    let signal = || context.signal();
    let mut step = open(context, tickets, args.person.session.as_deref(), open_turn, &signal)?;
    let (turn, history) = step.any_turn()?;
    let call = select::call(&turn, &args.call)?.clone();
    let record = Reconciled {
        turn: turn.id.clone(),
        r#ref: call.r#ref,
        outcome: args.outcome,
        by: args.by.clone(),
        receipt,
        content: body,
    };
    let standing = call.answer.as_ref().map(|answer| answer.mark.clone()).or(call.not_applied.clone());
    if let Some(mark) = standing.filter(|mark| says_same(&history, mark.seq, &record)) {
        return step.repeat(&mark);
    }
    let call = open_call(&turn, &args.call)?;
    if !call.may_have_run() && call.not_applied.is_none() {
        return Err(Failure::conflict(
            "never_claimed",
            format!("call {} ({}) was never claimed, so there is nothing to find out", call.r#ref, call.tool),
        )
        .hint("it has not run: claim it, or settle the turn"));
    }
    let said_before = args.outcome == ReconciledOutcome::NotApplied
        && call.not_applied.is_none()
        && past_not_applied(&step, &record);
    if said_before && !args.person.force {
        return Err(Failure::conflict(
            "said_before",
            format!("call {} was found not applied before and was claimed again since", call.r#ref),
        )
        .hint("if it is true of the new claim too, say so with --force --why TEXT"));
    }
    check_claimant(&step, &turn, &call, &args.person)?;
    let told = said(&step, &turn, &format!("reconciled as {}", args.outcome), Some(&call));
    telling(step, record.into(), &told)
}

/// `turnkeep step cancel`
pub(super) fn cancel(context: &Context, tickets: &Tickets, args: &CancelArgs) -> Result<Exit, Failure> {
    context.arm()?;
    let signal = || context.signal();
    let mut step = open(context, tickets, args.session.as_deref(), open_turn, &signal)?;
    let (turn, _) = step.any_turn()?;
    if let Some(cancelled) = &turn.cancelled {
        let mark = cancelled.mark.clone();
        if cancelled.by == args.by && cancelled.reason == args.reason {
            return step.repeat(&mark);
        }
        return Err(Failure::conflict(
            "cancelled",
            format!("turn {} was cancelled before by {}", turn.id, cancelled.by),
        )
        .hint("the first cancel stands, and its reason; nothing more has to be done"));
    }
    if turn.is_closed() {
        return Err(step.closed(&turn));
    }
    let cancelled = Cancelled { turn: turn.id.clone(), by: args.by.clone(), reason: args.reason.clone() };
    let told = said(&step, &turn, "cancelled", None);
    telling(step, cancelled.into(), &told)
}

/// `turnkeep step steer`
pub(super) fn steer(context: &Context, tickets: &Tickets, args: &SteerArgs) -> Result<Exit, Failure> {
    let input = super::super::admit::input(context, args.text.as_deref(), args.file.as_deref())?;
    super::super::admit::check_key(args.delivery.as_deref())?;
    context.arm()?;
    let signal = || context.signal();
    let mut named = Named::open(context, tickets, args.session.as_deref(), &signal)?;
    // The key is looked at first: a message that joined a turn may be sent again when that turn is long closed.
    if let Some(known) =
        args.delivery.as_deref().map(|key| known_steer(&mut named, key, &input)).transpose()?
        && let Some((turn, mark)) = known
    {
        return named.step(turn)?.repeat(&mark);
    }
    let mut step = named.choose(open_turn)?;
    let turn = step.open_turn()?;
    let steered = Steered {
        turn: turn.id.clone(),
        delivery: args.delivery.clone(),
        input_sha256: super::super::admit::digest(&input),
        input,
    };
    let told = said(&step, &turn, "joined by a message", None);
    telling(step, steered.into(), &told)
}

/// The turn and record of a message that joined under this key; the key names one input for ever.
fn known_steer(named: &mut Named<'_>, key: &str, input: &Raw) -> Result<Option<(TurnId, Mark)>, Failure> {
    let loaded = named.desk.journal.load_all(Retain::All)?;
    let Some(session) = &loaded.session else { return Ok(None) };
    let Some(turn) = session.turn_of_key(key).and_then(|turn| session.turn(turn)) else { return Ok(None) };
    let same = turn.steered.iter().find(|steered| steered.delivery.as_deref() == Some(key));
    match same.filter(|steered| steered.input == *input) {
        Some(steered) => Ok(Some((turn.id.clone(), steered.mark.clone()))),
        None => Err(Failure::conflict(
            "other_input",
            format!("delivery key {key:?} was used before, in turn {}", turn.id),
        )
        .with("turn", &turn.id)
        .hint("a delivery key names one input for ever; use a fresh key for a new one")),
    }
}

/// Opens the journal that a person named, on the turn that `choose` takes where none is named.
pub(super) fn open<'a>(
    context: &'a Context,
    tickets: &Tickets,
    session: Option<&str>,
    choose: impl Fn(&Session) -> Option<TurnId>,
    signal: &'a dyn Fn() -> Option<i32>,
) -> Result<Step<'a>, Failure> {
    Named::open(context, tickets, session, signal)?.choose(choose)
}

/// The journal of the session that a person named.
struct Named<'a> {
    desk: Desk<'a>,
    session: String,
    turn: Option<TurnId>,
    /// Of a ticket given by hand.
    attempt: Option<u64>,
}

impl<'a> Named<'a> {
    fn open(
        context: &'a Context,
        tickets: &Tickets,
        session: Option<&str>,
        signal: &'a dyn Fn() -> Option<i32>,
    ) -> Result<Self, Failure> {
        let (session, turn, attempt) = match (&tickets.given, session) {
            (Some(given), _) => (given.session.clone(), Some(given.turn.clone()), Some(given.attempt)),
            (None, Some(name)) => {
                let exists = |id: &str| context.has_session(id);
                let (session, turn) = select::session_and_turn(name, exists);
                (session, turn, None)
            }
            (None, None) => {
                return Err(no_session_named());
            }
        };
        let journal = context.open(&session, signal)?;
        Ok(Self { desk: Desk::new(context, journal), session, turn, attempt })
    }

    /// On the turn that was named, else on the one that `choose` takes.
    fn choose(self, choose: impl Fn(&Session) -> Option<TurnId>) -> Result<Step<'a>, Failure> {
        let chosen = self.turn.clone().or_else(|| self.desk.journal.session().and_then(choose));
        let turn = chosen.ok_or_else(|| {
            Failure::conflict("no_such_turn", format!("session {} has no such turn to act on", self.session))
                .hint(format!("`turnkeep inspect {0}` lists the turns; name one as {0}:TURN", self.session))
        })?;
        self.step(turn)
    }

    /// On this turn. A person speaks under the newest attempt.
    fn step(self, turn: TurnId) -> Result<Step<'a>, Failure> {
        let ticket = Ticket { session: self.session, turn, attempt: self.attempt.unwrap_or(0) };
        let mut step = Step::on(self.desk, ticket);
        if self.attempt.is_none() {
            step.ticket.attempt = step.any_turn()?.0.current_number();
        }
        Ok(step)
    }
}

fn open_turn(session: &Session) -> Option<TurnId> {
    session.open().map(|turn| turn.id.clone())
}

/// A call without an answer.
fn open_call(turn: &Turn, word: &str) -> Result<Call, Failure> {
    let call = select::call(turn, word)?;
    if call.answer.is_none() {
        return Ok(call.clone());
    }
    Err(Failure::conflict(
        "answered",
        format!(
            "call {} ({}) is answered already: {}",
            call.r#ref,
            call.tool,
            crate::status::call_state(call)
        ),
    )
    .hint("what was answered once stands; nothing more has to be done about it"))
}

/// An approval of a claimed call makes sense only where the table asks for one.
fn check_decidable(step: &Step<'_>, turn: &Turn, call: &Call, person: &PersonArgs) -> Result<(), Failure> {
    if !call.may_have_run() {
        return Ok(());
    }
    let context = step.desk.context;
    let now = context.now(step.desk.at.clone());
    let ruling = decide::rule(turn, call, &now);
    if ruling.decision != Decision::Ask {
        return Err(Failure::conflict(
            "claimed",
            format!(
                "call {} ({}) is claimed, and nothing is asked about it: {}",
                call.r#ref, call.tool, ruling.why
            ),
        )
        .hint("wait for its result; `turnkeep step cancel` stops the turn"));
    }
    check_claimant(step, turn, call, person)
}

/// A word that stands is not taken back by its opposite; one that ran out does not stand.
fn check_not_contradicted(step: &Step<'_>, call: &Call, decision: ApprovalDecision) -> Result<(), Failure> {
    let standing = call
        .approved
        .as_ref()
        .filter(|word| word.expires.as_ref().is_none_or(|expires| step.desk.at.micros() < expires.micros()));
    match standing {
        Some(word) if word.decision != decision => Err(Failure::conflict(
            "decided",
            format!("call {} ({}) was {} before by {}", call.r#ref, call.tool, word.decision, word.by),
        )
        .with("seq", &word.mark.seq)
        .hint("`turnkeep step cancel` stops the whole turn")),
        _ => Ok(()),
    }
}

/// A claimant that lives is at it.
fn check_claimant(step: &Step<'_>, turn: &Turn, call: &Call, person: &PersonArgs) -> Result<(), Failure> {
    let context = step.desk.context;
    let now = context.now(step.desk.at.clone());
    let by_nobody = call.live_claim().is_some_and(|claim| {
        claim.runner.is_none() && turn.attempt(claim.attempt).is_some_and(|attempt| attempt.owner.is_none())
    });
    if person.force || by_nobody || call.dispatch.is_some() || !next::claimant_lives(turn, call, &now) {
        return Ok(());
    }
    Err(Failure::of(
        Exit::Busy,
        "claimant_alive",
        format!("whoever claimed call {} ({}) lives and may still answer it", call.r#ref, call.tool),
    )
    .hint("wait for it or end it; `--force --why TEXT` decides all the same"))
}

fn says_same(history: &History, seq: u64, record: &Reconciled) -> bool {
    matches!(history.get(seq).map(|record| &record.kind), Some(Kind::Reconciled(known)) if known == record)
}

/// Whether the same was said before about a claim that was since replaced.
fn past_not_applied(step: &Step<'_>, record: &Reconciled) -> bool {
    step.desk
        .journal
        .history()
        .iter()
        .any(|(_, known)| matches!(&known.kind, Kind::Reconciled(known) if known == record))
}

/// Says what is acted on, so that a mistyped call is seen.
pub(super) fn said(step: &Step<'_>, turn: &Turn, what: &str, call: Option<&Call>) -> String {
    let called = call.map(|call| format!(", call {} ({})", call.r#ref, call.tool)).unwrap_or_default();
    format!("session {}, turn {}{called}: {what}", step.ticket.session, turn.id)
}

/// Records an act, and tells of it once it stands.
fn telling(step: Step<'_>, act: Kind, told: &str) -> Result<Exit, Failure> {
    let context = step.desk.context;
    let exit = step.commit(vec![act])?;
    context.out.note(told);
    Ok(exit)
}

/// A driver's ticket is no person's word.
pub(super) fn no_session_named() -> Failure {
    Failure::usage("no_session_named", "a person's act needs --session S, or a --ticket given by hand")
        .hint("the ticket in TURNKEEP_TICKET is the driver's and is not taken for a person's word")
}
