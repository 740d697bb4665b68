//! The status document, `turnkeep.status/1`: one shape for all commands. Pure.
//!
//! Number, JSON and text agree because all three are made from this.

use crate::draft::History;
use crate::json::Raw;
use crate::record::{
    ApprovalDecision, At, CallRef, Decided, DeliveryState, Kind, Replay, TurnId, UnknownRule,
};
use crate::turn::decide::{self, Holder, Now};
use crate::turn::next::{self, Asker, BranchState};
use crate::turn::{AnswerKind, Call, Session, Turn};
use serde::Serialize;

/// Its schema.
pub const SCHEMA: &str = "turnkeep.status/1";

/// A session and one of its turns, as things stand.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Session id.
    pub session: String,
    /// The turn that this is about.
    pub turn: Option<TurnId>,
    /// Its newest attempt.
    pub attempt: Option<u64>,
    /// The handle for `step`; given by admit, step and recover alone.
    pub ticket: Option<String>,
    /// open, parked, settled or closed.
    pub state: Option<&'static str>,
    /// What comes next.
    pub next: NextAct,
    /// Who holds the newest attempt.
    pub owner: Option<OwnerNow>,
    /// The input.
    pub input: Option<Raw>,
    /// Messages that joined the turn.
    pub steered: Vec<SteeredNow>,
    /// Its calls.
    pub calls: Vec<CallNow>,
    /// The reply it was settled with.
    pub reply: Option<Raw>,
    /// Its session tree.
    pub tree: Option<TreeNow>,
    /// The delivery of its reply.
    pub delivery: Option<DeliveryNow>,
    /// The newest record of the journal.
    pub head: Option<HeadNow>,
    /// What a person should know.
    pub notes: Vec<String>,
    /// Proof of the append, where something was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
    /// What a recovery decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decisions: Option<Vec<DecidedNow>>,
    /// The records that a recovery would write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<Vec<Raw>>,
    /// The lines that it would write onto the session tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entries: Option<Vec<Raw>>,
}

/// What comes next.
#[derive(Debug, Clone, Serialize)]
pub struct NextAct {
    /// The act.
    pub r#do: &'static str,
    /// The calls that it is about.
    pub refs: Vec<CallRef>,
    /// Why, for people.
    pub why: String,
}

/// An owner.
#[derive(Debug, Clone, Serialize)]
pub struct OwnerNow {
    /// Process id; null for nobody.
    pub pid: Option<u64>,
    /// Command line.
    pub cmd: Option<String>,
    /// Whether it is taken to live; null for nobody.
    pub alive: Option<bool>,
    /// When its lease runs out, where one was asked for or it cannot be looked at.
    pub lease_until: Option<At>,
}

/// A message that joined the turn.
#[derive(Debug, Clone, Serialize)]
pub struct SteeredNow {
    /// Its own delivery key.
    pub delivery: Option<String>,
    /// Its record.
    pub seq: u64,
    /// Whether a model has seen it.
    pub answered: bool,
}

/// A call.
#[derive(Debug, Clone, Serialize)]
pub struct CallNow {
    /// Its name in the journal.
    pub r#ref: CallRef,
    /// The provider's id.
    pub id: Option<String>,
    /// Tool name.
    pub tool: String,
    /// Arguments.
    pub args: Raw,
    /// intent, claimed, dispatched, `not_applied`, result, interrupted, `not_run`, applied or unknown.
    pub state: &'static str,
    /// What the decision table says about it now.
    pub r#do: &'static str,
    /// Replay policy stored with it.
    pub replay_stored: Replay,
    /// Replay policy in force now.
    pub replay_now: Replay,
    /// Stored rule for an unknown outcome.
    pub unknown: Option<UnknownRule>,
    /// required, granted or denied.
    pub approval: Option<&'static str>,
    /// Idempotency key.
    pub key: String,
    /// The attempt that claimed or dispatched it last.
    pub attempt: Option<u64>,
    /// When.
    pub claimed_at: Option<At>,
    /// Id of its message's entry in the agent's file.
    pub entry: Option<String>,
    /// The call that it is nested in.
    pub parent: Option<CallRef>,
    /// Where to look it up.
    pub link: Option<Raw>,
}

/// A session tree.
#[derive(Debug, Clone, Serialize)]
pub struct TreeNow {
    /// The session file.
    pub path: String,
    /// The entry that the turn was admitted on.
    pub leaf: Option<String>,
    /// The last entry of the branch of the newest `recovered`.
    pub branch_leaf: Option<String>,
}

/// A delivery.
#[derive(Debug, Clone, Serialize)]
pub struct DeliveryNow {
    /// The delivery key.
    pub key: String,
    /// How far; null before it was begun.
    pub state: Option<DeliveryState>,
    /// Proof of publishing.
    pub receipt: Option<Raw>,
}

/// The newest record.
#[derive(Debug, Clone, Serialize)]
pub struct HeadNow {
    /// Its number.
    pub seq: u64,
    /// Its hash.
    pub hash: String,
}

/// Proof of a durable append.
#[derive(Debug, Clone, Serialize)]
pub struct Receipt {
    /// The record.
    pub seq: u64,
    /// Its hash.
    pub hash: String,
    /// It stood there before; nothing was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeated: Option<bool>,
}

/// A decision, as a document shows it.
#[derive(Debug, Clone, Serialize)]
pub struct DecidedNow {
    /// The call.
    pub r#ref: CallRef,
    /// The provider's id.
    pub id: Option<String>,
    /// What was decided.
    pub decision: &'static str,
    /// Why.
    pub why: String,
    /// Replay policy stored with it.
    pub replay_stored: Replay,
    /// Replay policy in force at the decision.
    pub replay_now: Replay,
}

/// Makes the document for one turn of a session; `None` for a session without one to speak of.
pub fn of(
    session: &Session,
    turn: Option<&Turn>,
    history: &History,
    now: &Now<'_>,
    branch: BranchState,
    asker: Asker,
) -> Status {
    let next = next::next(turn, now, branch, asker);
    Status {
        schema: SCHEMA,
        session: session.id.clone(),
        turn: turn.map(|turn| turn.id.clone()),
        attempt: turn.and_then(Turn::current).map(|attempt| attempt.number),
        ticket: None,
        state: turn.map(state),
        next: NextAct { r#do: next.r#do.word(), refs: next.refs, why: next.why },
        owner: turn.and_then(|turn| owner(turn, now, asker)),
        input: turn.and_then(|turn| input(turn, history)),
        steered: turn.map(steered).unwrap_or_default(),
        calls: turn
            .map(|turn| turn.calls.iter().map(|call| call_now(turn, call, now, asker)).collect())
            .unwrap_or_default(),
        reply: turn.and_then(|turn| reply(turn, history)),
        tree: turn.and_then(|turn| tree(turn, history)),
        delivery: turn.and_then(|turn| delivery(turn, history)),
        head: Some(HeadNow { seq: session.head.seq, hash: session.head.hash.to_string() }),
        notes: notes(turn, now),
        receipt: None,
        decisions: None,
        records: None,
        entries: None,
    }
}

/// The ticket of a turn's newest attempt.
pub fn ticket(session: &str, turn: &Turn) -> String {
    format!("{session}:{}:{}", turn.id, turn.current_number())
}

/// open, parked, settled or closed.
pub fn state(turn: &Turn) -> &'static str {
    if turn.is_closed() {
        "closed"
    } else if turn.parked.is_some() {
        "parked"
    } else if turn.settled.is_some() {
        "settled"
    } else {
        "open"
    }
}

/// The state of a call.
pub fn call_state(call: &Call) -> &'static str {
    match call.answer.as_ref().map(|answer| answer.kind) {
        Some(AnswerKind::Result) => "result",
        Some(AnswerKind::Interrupted) => "interrupted",
        Some(AnswerKind::NotRun(_)) => "not_run",
        Some(AnswerKind::Applied) => "applied",
        Some(AnswerKind::Unknown) => "unknown",
        None if call.dispatch.is_some() => "dispatched",
        None if call.claim.is_some() || call.lost => "claimed",
        None if call.not_applied.is_some() => "not_applied",
        None => "intent",
    }
}

/// The reply that a turn was settled with.
pub fn reply(turn: &Turn, history: &History) -> Option<Raw> {
    match &history.get(turn.settled.as_ref()?.mark.seq)?.kind {
        Kind::Settled(settled) => settled.reply.clone(),
        _ => None,
    }
}

/// The input of a turn.
pub fn input(turn: &Turn, history: &History) -> Option<Raw> {
    match &history.get(turn.admitted.seq)?.kind {
        Kind::Admitted(admitted) => Some(admitted.input.clone()),
        _ => None,
    }
}

/// How a decision is shown.
pub fn decided_now(turn: &Turn, decided: &Decided) -> DecidedNow {
    DecidedNow {
        r#ref: decided.r#ref,
        id: turn.call(decided.r#ref).and_then(|call| call.id.clone()),
        decision: decided.decision.word(),
        why: decided.why.clone(),
        replay_stored: decided.replay_stored,
        replay_now: decided.replay_now,
    }
}

fn owner(turn: &Turn, now: &Now<'_>, asker: Asker) -> Option<OwnerNow> {
    let attempt = turn.current()?;
    let holder = now.holder(attempt);
    let leased = attempt.lease_ms.is_some() && holder != Holder::Gone;
    Some(OwnerNow {
        pid: attempt.owner.as_ref().map(|owner| owner.pid),
        cmd: attempt.owner.as_ref().map(|owner| owner.cmd.clone()),
        // With its lease run out it is gone for everybody else.
        alive: attempt.owner.as_ref().map(|_| match holder {
            Holder::Alive => true,
            Holder::Lapsed => asker == Asker::Owner,
            Holder::Gone | Holder::Nobody => false,
        }),
        lease_until: leased.then(|| decide::lease_until(attempt)),
    })
}

fn steered(turn: &Turn) -> Vec<SteeredNow> {
    let seen = turn.steered.iter().enumerate();
    seen.map(|(index, steered)| SteeredNow {
        delivery: steered.delivery.clone(),
        seq: steered.mark.seq,
        answered: turn.steered_seen(index),
    })
    .collect()
}

fn call_now(turn: &Turn, call: &Call, now: &Now<'_>, asker: Asker) -> CallNow {
    let ruling = decide::rule(turn, call, now);
    let required = call.approval.is_some() || now.rule_of(call).approval.is_some();
    let (attempt, at) = match (&call.claim, &call.dispatch) {
        (_, Some(dispatch)) => (Some(dispatch.attempt), Some(dispatch.mark.at.clone())),
        (Some(claim), None) => (Some(claim.attempt), Some(claim.mark.at.clone())),
        (None, None) => (None, None),
    };
    CallNow {
        r#ref: call.r#ref,
        id: call.id.clone(),
        tool: call.tool.clone(),
        args: call.args.clone(),
        state: call_state(call),
        r#do: next::seen_by(turn, call, now, asker).word(),
        replay_stored: call.replay,
        replay_now: ruling.now,
        unknown: call.unknown,
        approval: decide::standing_approval(call, now)
            .map(ApprovalDecision::word)
            .or(required.then_some("required")),
        key: call.key.clone(),
        attempt,
        claimed_at: at,
        entry: call.entry_id.clone(),
        parent: call.parent,
        link: call.claim.as_ref().and_then(|claim| claim.link.clone()),
    }
}

fn tree(turn: &Turn, history: &History) -> Option<TreeNow> {
    let tree = turn.tree.as_ref()?;
    let recovered = turn.attempts.iter().rev().find_map(|attempt| attempt.recovered.as_ref());
    let branch_leaf = recovered.and_then(|(mark, _)| match &history.get(mark.seq)?.kind {
        Kind::Recovered(recovered) => recovered.branch.as_ref().map(|branch| branch.leaf.clone()),
        _ => None,
    });
    Some(TreeNow { path: tree.path.clone(), leaf: tree.leaf.clone(), branch_leaf })
}

fn delivery(turn: &Turn, history: &History) -> Option<DeliveryNow> {
    let key = turn.delivery_key.clone()?;
    let newest = turn.delivery.as_ref();
    let receipt = newest.and_then(|delivery| match &history.get(delivery.mark.seq)?.kind {
        Kind::Delivery(delivery) => delivery.receipt.clone(),
        _ => None,
    });
    Some(DeliveryNow { key, state: newest.map(|delivery| delivery.state), receipt })
}

fn notes(turn: Option<&Turn>, now: &Now<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if now.policy.is_built_in() {
        notes.push(
            "the built-in replay policy is in force: give --policy or put policy.json into the root".into(),
        );
    }
    let Some(turn) = turn else { return notes };
    if let Some(parked) = &turn.parked {
        notes.push(format!("parked by {}: {}", parked.by, parked.why));
    }
    if turn.lost_records {
        notes.push("records of this turn are lost: what they held may have happened".to_owned());
    }
    if let Some(cancelled) = &turn.cancelled {
        let reason = cancelled.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        notes.push(format!("cancelled by {}{reason}", cancelled.by));
    }
    for (call, mark) in &turn.stragglers {
        let what = call.map_or("a delivery receipt".to_owned(), |call| format!("a result of call {call}"));
        notes.push(format!("{what} came too late and is kept as record {}", mark.seq));
    }
    notes
}
