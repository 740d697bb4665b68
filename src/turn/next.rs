//! What a driver or a person does next about a turn: `next` of the status document. Pure.

use super::decide::{self, Holder, Now};
use super::{Attempt, Call, Source, Turn};
use crate::message::Ending;
use crate::record::{CallRef, Decision, DeliveryState, TreeMode};

/// The act that comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Do {
    /// Nothing.
    Done,
    /// `turnkeep recover`.
    Recover,
    /// `turnkeep recover SESSION --unpark`.
    Unpark,
    /// Start the script again.
    RunScript,
    /// Run the calls in `refs`.
    RunCalls,
    /// A person approves or denies the calls in `refs`.
    Ask,
    /// A person reconciles the calls in `refs`.
    Reconcile,
    /// Wait for the calls in `refs`, or for the publisher.
    Await,
    /// Ask the model.
    CallModel,
    /// `turnkeep step settle`.
    Settle,
    /// `turnkeep step deliver`.
    Deliver,
    /// A person finds out whether the reply was published.
    ReconcileDelivery,
}

impl Do {
    /// Every act, in the order of the documentation.
    pub const ALL: [Self; 12] = [
        Self::Done,
        Self::Recover,
        Self::Unpark,
        Self::RunScript,
        Self::RunCalls,
        Self::Ask,
        Self::Reconcile,
        Self::Await,
        Self::CallModel,
        Self::Settle,
        Self::Deliver,
        Self::ReconcileDelivery,
    ];

    /// The word in `next.do`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Recover => "recover",
            Self::Unpark => "unpark",
            Self::RunScript => "run_script",
            Self::RunCalls => "run_calls",
            Self::Ask => "ask",
            Self::Reconcile => "reconcile",
            Self::Await => "await",
            Self::CallModel => "call_model",
            Self::Settle => "settle",
            Self::Deliver => "deliver",
            Self::ReconcileDelivery => "reconcile_delivery",
        }
    }
}

/// The next act, for which calls, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Next {
    /// The act.
    pub r#do: Do,
    /// The calls that it is about.
    pub refs: Vec<CallRef>,
    /// Why, for people.
    pub why: String,
}

/// How the session tree stands to the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BranchState {
    /// There is no tree, no branch of ours yet, or it is complete.
    UpToDate,
    /// The tree lacks something of ours, or a foreign line is its last one.
    Behind,
    /// The dead agent wrote entries that the journal lacks, and with them counted a recover would not wait.
    Ahead,
}

/// Who asks what comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// The holder of the current ticket: a lease that ran out does not end its own steps.
    Owner,
    /// Anybody else.
    Other,
}

/// Says what comes next; `None` for no turn at all.
pub fn next(turn: Option<&Turn>, now: &Now<'_>, branch: BranchState, asker: Asker) -> Next {
    let turn = match turn {
        Some(turn) if turn.is_closed() => return says(Do::Done, Vec::new(), "the turn is closed"),
        Some(turn) => turn,
        None => return says(Do::Done, Vec::new(), "there is no turn that is not closed"),
    };
    let outlook = Outlook::of(turn, now, asker);
    if let Some(why) = outlook.recover_is_due(branch) {
        return says(Do::Recover, Vec::new(), &why);
    }
    if let Some(parked) = &turn.parked {
        return says(Do::Unpark, Vec::new(), &parked.why);
    }
    if turn.settled.is_some() { outlook.next_of_settled() } else { outlook.next_of_open() }
}

fn says(r#do: Do, refs: Vec<CallRef>, why: &str) -> Next {
    Next { r#do, refs, why: why.to_owned() }
}

/// Whether a recover of the turn would wait for somebody else: exit 14, and no attempt.
///
/// Parking by the attempt limit is not waiting: it writes a record.
pub fn waits(turn: &Turn, now: &Now<'_>) -> bool {
    if turn.parked.is_some() || begun(turn) {
        return true;
    }
    let mut open = turn.open_calls().peekable();
    turn.settled.is_none()
        && open.peek().is_some()
        && open.all(|call| {
            matches!(decide::rule(turn, call, now).decision, Decision::Ask | Decision::Await | Decision::Hold)
        })
}

/// Whether the next recover that would begin an attempt parks the turn instead.
pub fn would_park(turn: &Turn, now: &Now<'_>) -> bool {
    turn.parked.is_none() && turn.fruitless_attempts() >= now.policy.attempts_max()
}

/// Settled, its delivery begun and not known to have ended.
pub fn begun(turn: &Turn) -> bool {
    let state = turn.delivery.as_ref().map(|delivery| delivery.state);
    turn.settled.is_some() && state == Some(DeliveryState::Begun)
}

/// Whether the process that claimed a call lives, for everybody but its owner: its runner, else the owner of its
/// attempt.
///
/// Nobody (`--owner-pid none`) lives here; nobody claimed a dispatched call.
pub fn claimant_lives(turn: &Turn, call: &Call, now: &Now<'_>) -> bool {
    claimant_lives_for(turn, call, now, Asker::Other)
}

fn claimant_lives_for(turn: &Turn, call: &Call, now: &Now<'_>, asker: Asker) -> bool {
    let Some(claim) = call.live_claim() else { return false };
    match &claim.runner {
        Some(runner) => now.runner_lives(turn, claim.attempt, runner),
        None => {
            turn.attempt(claim.attempt).is_some_and(|attempt| holder_for(attempt, now, asker) != Holder::Gone)
        }
    }
}

/// Whether the process that publishes the reply lives, for everybody but the owner of the turn.
pub fn publisher_lives(turn: &Turn, now: &Now<'_>) -> bool {
    publisher_lives_for(turn, now, Asker::Other)
}

fn publisher_lives_for(turn: &Turn, now: &Now<'_>, asker: Asker) -> bool {
    let Some(delivery) = turn.delivery.as_ref().filter(|_| begun(turn)) else { return false };
    match &delivery.runner {
        Some(runner) => now.runner_lives(turn, delivery.attempt, runner),
        None => turn
            .attempt(delivery.attempt)
            .is_some_and(|attempt| matches!(holder_for(attempt, now, asker), Holder::Alive | Holder::Lapsed)),
    }
}

/// An owner whose lease ran out is gone for everybody else.
fn holder_for(attempt: &Attempt, now: &Now<'_>, asker: Asker) -> Holder {
    match now.holder(attempt) {
        Holder::Lapsed if asker == Asker::Other => Holder::Gone,
        holder => holder,
    }
}

/// A turn with a decision for each open call.
struct Outlook<'a> {
    turn: &'a Turn,
    now: &'a Now<'a>,
    asker: Asker,
    holder: Holder,
    open: Vec<(&'a Call, Decision)>,
}

impl<'a> Outlook<'a> {
    fn of(turn: &'a Turn, now: &'a Now<'a>, asker: Asker) -> Self {
        let holder = turn.current().map_or(Holder::Gone, |attempt| holder_for(attempt, now, asker));
        let open = turn.open_calls().map(|call| (call, seen_by(turn, call, now, asker))).collect();
        Self { turn, now, asker, holder, open }
    }

    fn recover_is_due(&self, branch: BranchState) -> Option<String> {
        let Some(current) = self.turn.current() else {
            return self.turn.parked.is_none().then(|| "it was admitted and no attempt began".into());
        };
        // Parked behind lost records, it is not gone on with before a person says so.
        if current.unfinished() && self.turn.parked.is_none() {
            return Some(format!("the recover of attempt {} is unfinished", current.number));
        }
        // A parked turn waits for a person first; its branch is brought up to date behind that.
        if branch == BranchState::Behind && self.has_branch() && self.turn.parked.is_none() {
            return Some("the session tree is behind the journal".into());
        }
        // Where it would park, it would act too: a turn that waits is never parked.
        if waits(self.turn, self.now) && branch != BranchState::Ahead {
            return None;
        }
        if self.turn.lost_numbers > 0 && self.turn.parked.is_none() {
            return Some("lost records may have been a later attempt".to_owned());
        }
        if self.holder == Holder::Gone {
            return Some(format!("the owner of attempt {} is gone", current.number));
        }
        let due = |call: &Call, decision: Decision| match decision {
            Decision::Interrupt | Decision::NotRun => true,
            Decision::Rerun => call.rerun_by != Some(current.number),
            _ => false,
        };
        let call = self.open.iter().find(|(call, decision)| due(call, *decision))?.0;
        (self.turn.cancelled.is_none() && self.turn.settled.is_none())
            .then(|| format!("call {} has to be decided about", call.r#ref))
    }

    /// In `branch` mode the file is the agent's, and a branch of ours begins with a recovery.
    fn has_branch(&self) -> bool {
        let appends = self.turn.tree.as_ref().is_some_and(|tree| tree.mode == TreeMode::Append);
        appends || self.turn.attempts.iter().any(|attempt| attempt.branched.is_some())
    }

    fn next_of_open(&self) -> Next {
        if let Some(next) = self.next_of_script() {
            return next;
        }
        let run = self.refs(|decision| matches!(decision, Decision::Run | Decision::Rerun));
        if !run.is_empty() {
            return says(Do::RunCalls, run, "calls are to be run");
        }
        for (decision, r#do, why) in [
            (Decision::Ask, Do::Ask, "calls need an approval"),
            (Decision::Hold, Do::Reconcile, "the outcome of calls is unknown and held"),
            (Decision::Await, Do::Await, "calls are with somebody else"),
        ] {
            let refs = self.refs(|found| found == decision);
            if !refs.is_empty() {
                return says(r#do, refs, why);
            }
        }
        let turn_cancelled = self.turn.cancelled.is_some();
        match self.model_is_due() {
            Some(why) => says(Do::CallModel, Vec::new(), why),
            None if turn_cancelled => says(Do::Settle, Vec::new(), "the turn was cancelled"),
            None => says(Do::Settle, Vec::new(), "all calls are answered and the model has spoken"),
        }
    }

    /// A turn of a plain script: calls declared without a model, and no model message.
    fn next_of_script(&self) -> Option<Next> {
        let turn = self.turn;
        let declared = turn.calls.iter().any(|call| call.source == Source::Declared);
        let blocked = self
            .open
            .iter()
            .any(|(_, decision)| matches!(decision, Decision::Ask | Decision::Hold | Decision::Await));
        (declared && !turn.has_model_message() && turn.cancelled.is_none() && !blocked)
            .then(|| says(Do::RunScript, Vec::new(), "the script goes on where it was"))
    }

    fn model_is_due(&self) -> Option<&'static str> {
        let turn = self.turn;
        if turn.cancelled.is_some() {
            return None;
        }
        let Some((fact, said, ending)) = turn.last_model() else { return Some("no model has spoken yet") };
        if !said.calls.is_empty() {
            return Some("the model has not seen the answers of its calls");
        }
        if *ending == Ending::Paused {
            return Some("the model paused its turn");
        }
        if (0..turn.steered.len()).any(|index| !turn.steered_seen(index)) {
            return Some("the model has not seen a message that joined the turn");
        }
        turn.user_message_behind(fact.mark.seq).then_some("the model has not seen a user's message")
    }

    fn next_of_settled(&self) -> Next {
        if !begun(self.turn) {
            return says(Do::Deliver, Vec::new(), "the reply is not delivered");
        }
        if publisher_lives_for(self.turn, self.now, self.asker) {
            says(Do::Await, Vec::new(), "the reply is being published")
        } else {
            says(Do::ReconcileDelivery, Vec::new(), "the reply may have been published")
        }
    }

    fn refs(&self, wanted: impl Fn(Decision) -> bool) -> Vec<CallRef> {
        self.open.iter().filter(|(_, decision)| wanted(*decision)).map(|(call, _)| call.r#ref).collect()
    }
}

/// The decision about a call, but that one which the current attempt is at is awaited, while whoever claimed it lives:
/// for others than its owner, a claim under a lease that ran out is nobody's.
pub fn seen_by(turn: &Turn, call: &Call, now: &Now<'_>, asker: Asker) -> Decision {
    if let Some(decision) = nested_in_running(turn, call, now, asker) {
        return decision;
    }
    let decision = decide::rule(turn, call, now).decision;
    let own = call.live_claim().is_some_and(|claim| claim.attempt == turn.current_number());
    if !own || !claimant_lives_for(turn, call, now, asker) {
        return decision;
    }
    let by_nobody = turn.current().is_some_and(|attempt| now.holder(attempt) == Holder::Nobody)
        && call.claim.as_ref().is_some_and(|claim| claim.runner.is_none());
    match decision {
        Decision::Ask | Decision::Hold if by_nobody => decision,
        _ => Decision::Await,
    }
}

/// A nested call that has not begun is for the tool that it is nested in, as long as that one is at work.
fn nested_in_running(turn: &Turn, call: &Call, now: &Now<'_>, asker: Asker) -> Option<Decision> {
    let parent = turn.call(call.parent?)?;
    if call.answer.is_some() || call.may_have_run() || seen_by(turn, parent, now, asker) != Decision::Await {
        return None;
    }
    let by_itself = Call { parent: None, ..call.clone() };
    match decide::rule(turn, &by_itself, now).decision {
        Decision::Ask => Some(Decision::Ask),
        _ => Some(Decision::Await),
    }
}

#[cfg(test)]
mod tests;
