//! Turns behind lost records: what the intact records behind a gap presuppose, and what the lost ones may have been.
//!
//! Those who wrote behind the gap knew what is lost now, so their records count, and what these need to fit is
//! supposed. Once a person has acknowledged the gap, nothing is supposed any more.

use super::super::{Approved, Attempt, Claim, Delivery, Gap, Mark, Parked, Settled, Source, Turn};
use super::said::new_call;
use crate::chain::call_key;
use crate::json::Raw;
use crate::record::{
    ApprovalDecision, CallIntent, CallRef, Cause, DeliveryState, Hash, Kind, Replay, SettledStatus,
};

/// How a call is called whose message is lost.
const LOST_TOOL: &str = "(lost)";
/// No message has so many calls.
const POSITION_MAX: u64 = 10_000;

impl Turn {
    /// Supposes what lost records must have held for this one to be written.
    pub(super) fn presuppose(&mut self, kind: &Kind, mark: &Mark, genesis: &Hash) {
        let evidence = matches!(kind, Kind::Attempt(_) | Kind::Straggler(_) | Kind::Note(_));
        if let Some(number) = kind.attempt().filter(|number| !evidence && *number > self.current_number()) {
            self.begin_unseen_attempt(number, mark);
        }
        if self.parked.is_some() && self.check_phase(kind).is_err() {
            self.parked = None;
        }
        let publishes = matches!(kind, Kind::Delivery(delivery) if delivery.state == DeliveryState::Begun);
        let unready = publishes || self.check_phase(kind).is_err();
        if let Some(attempt) = self.attempts.last_mut().filter(|attempt| unready && attempt.unfinished()) {
            attempt.recovered = Some((mark.clone(), Vec::new()));
        }
        for call in calls_named(kind) {
            self.ask_unseen(call, mark, genesis);
        }
        self.presuppose_about_call(kind, mark);
        self.presuppose_about_delivery(kind, mark);
    }

    /// An attempt whose record is lost: nobody is known to hold it.
    fn begin_unseen_attempt(&mut self, number: u64, mark: &Mark) {
        self.lost_numbers = 0;
        self.attempts.push(Attempt {
            number,
            begun: mark.clone(),
            first_seq: mark.seq,
            cause: Cause::Admit,
            owner: None,
            lease_ms: None,
            renewed: mark.at.clone(),
            progress: false,
            recovered: None,
            branched: None,
        });
    }

    /// A call whose message is lost, and those before it in that message.
    fn ask_unseen(&mut self, call: CallRef, mark: &Mark, genesis: &Hash) {
        let newest = self.calls.last().map(|call| call.r#ref);
        let seen = self.facts.iter().any(|fact| fact.mark.seq == call.seq);
        let lies_between = call.seq > self.admitted.seq && call.seq < mark.seq && newest < Some(call);
        if seen || !lies_between || call.position > POSITION_MAX {
            return;
        }
        let first = newest.filter(|newest| newest.seq == call.seq).map_or(0, |newest| newest.position + 1);
        let args = Raw::text("");
        let args_sha256 = crate::chain::digest(args.get().as_bytes());
        for position in first..=call.position {
            let r#ref = CallRef { seq: call.seq, position };
            let intent = CallIntent {
                r#ref,
                id: None,
                tool: LOST_TOOL.to_owned(),
                args_sha256: args_sha256.clone(),
                replay: Replay::Never,
                approval: None,
                unknown: None,
                key: call_key(genesis, &self.id, r#ref),
            };
            self.calls.push(new_call(r#ref, &intent, args.clone(), Source::Lost, None));
        }
    }

    fn presuppose_about_call(&mut self, kind: &Kind, mark: &Mark) {
        let Some(call) = calls_named(kind).first().and_then(|named| self.index_of(*named)) else { return };
        let Some(call) = self.calls.get_mut(call).filter(|call| call.answer.is_none()) else { return };
        match kind {
            Kind::Claimed(_) | Kind::Dispatched(_) => {
                let granted = ApprovalDecision::Granted;
                if call.approval.is_some() && call.word() != Some(granted) {
                    let (mark, by) = (mark.clone(), "(lost)".to_owned());
                    call.approved =
                        Some(Approved { mark, decision: granted, by, expires: None, reason: None });
                }
                if call.may_have_run() && call.dispatch.is_none() {
                    call.rerun_by = kind.attempt();
                }
            }
            Kind::Outcome(result) if call.dispatch.is_none() => {
                let (attempt, repeated) = (result.attempt, call.may_have_run());
                if call.live_claim().is_none_or(|claim| claim.attempt != attempt) {
                    let mark = mark.clone();
                    call.claim =
                        Some(Claim { mark, attempt, runner: None, link: None, ended: false, repeated });
                }
            }
            Kind::Interrupted(_) | Kind::Reconciled(_) if !call.may_have_run() => call.lost = true,
            _ => {}
        }
    }

    fn presuppose_about_delivery(&mut self, kind: &Kind, mark: &Mark) {
        let Kind::Delivery(delivery) = kind else { return };
        self.delivery_key.get_or_insert_with(|| delivery.key.clone());
        if self.settled.as_ref().is_none_or(|settled| !settled.has_reply) {
            let (mark, status) = (mark.clone(), SettledStatus::Failed);
            self.settled = Some(Settled { mark, status, has_reply: true });
        }
        let known = self.delivery.as_ref().map(|known| known.state);
        match delivery.state {
            DeliveryState::Begun if known == Some(DeliveryState::Begun) => self.delivery = None,
            DeliveryState::Sent | DeliveryState::NotSent if known != Some(DeliveryState::Begun) => {
                let (mark, state) = (mark.clone(), DeliveryState::Begun);
                self.delivery = Some(Delivery { mark, state, attempt: delivery.attempt, runner: None });
            }
            _ => {}
        }
    }

    /// What a person acknowledged to be lost may have been anything that this turn could have had.
    pub(super) fn count_as_lost(&mut self, mark: &Mark) {
        self.lost_records = true;
        self.gap = Gap::None;
        if self.attempts.is_empty() {
            // Its ticket must not be one that somebody may hold already.
            let lost = self.lost_numbers;
            self.begin_unseen_attempt(1, mark);
            self.lost_numbers = lost;
        }
        for call in self.calls.iter_mut().filter(|call| call.answer.is_none()) {
            call.lost = true;
            call.approved = None;
        }
        self.begin_lost_delivery(mark);
        if self.settled.is_none() && self.parked.is_none() {
            let why = "records of it are lost: what they held may have happened".to_owned();
            self.parked = Some(Parked { mark: mark.clone(), why, by: "turnkeep".to_owned() });
        }
    }

    /// The delivery may have been begun in a record that is lost.
    pub(super) fn begin_lost_delivery(&mut self, mark: &Mark) {
        let replies = self.settled.as_ref().is_none_or(|settled| settled.has_reply);
        if self.delivery_key.is_some() && replies {
            let attempt = self.current_number().max(1);
            let state = DeliveryState::Begun;
            self.delivery = Some(Delivery { mark: mark.clone(), state, attempt, runner: None });
        }
    }
}

/// The calls that a record is about.
fn calls_named(kind: &Kind) -> Vec<CallRef> {
    match kind {
        Kind::Claimed(claimed) => vec![claimed.r#ref],
        Kind::Outcome(result) => vec![result.r#ref],
        Kind::Interrupted(interrupted) => vec![interrupted.r#ref],
        Kind::NotRun(not_run) => vec![not_run.r#ref],
        Kind::Dispatched(dispatched) => vec![dispatched.r#ref],
        Kind::Approval(approval) => vec![approval.r#ref],
        Kind::Reconciled(reconciled) => vec![reconciled.r#ref],
        Kind::Intent(intent) => intent.parent.into_iter().collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
