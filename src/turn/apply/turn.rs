//! The transitions of a turn as a whole: phases, attempts, steering, settlement, delivery, recoveries, progress.

use super::super::{
    AnswerKind, Attempt, Call, Cancelled, Delivery, Fact, Gap, Mark, Parked, Settled, Stands, Steered, Turn,
    What,
};
use super::{Checked, ensure};
use crate::record::{self, Cause, Decided, Decision, DeliveryState, Hash, Kind, NotRunWhy, SettledStatus};
use std::collections::HashSet;

impl Turn {
    pub(super) fn take(&mut self, kind: &Kind, mark: &Mark, genesis: &Hash, lost: u64) -> Checked {
        self.check_phase(kind)?;
        match kind {
            Kind::Attempt(attempt) => return self.begin_attempt(attempt, mark, lost),
            Kind::Message(message) => self.take_message(message, mark, genesis)?,
            Kind::Entry(entry) => self.take_entry(entry, mark, genesis)?,
            Kind::Intent(intent) => self.take_intent(intent, mark, genesis)?,
            Kind::Claimed(claimed) => self.take_claim(claimed, mark)?,
            Kind::Dispatched(dispatched) => self.take_dispatch(dispatched, mark)?,
            Kind::Outcome(result) => {
                let index = self.answerable(result.r#ref)?;
                self.check_result_attempt(index, result.attempt)?;
                self.answer(index, mark, result.attempt, AnswerKind::Result);
            }
            Kind::Interrupted(interrupted) => {
                let index = self.answerable(interrupted.r#ref)?;
                let ran = self.calls.get(index).is_some_and(Call::may_have_run);
                ensure(ran, || format!("call {} was never claimed", interrupted.r#ref))?;
                self.answer(index, mark, interrupted.attempt, AnswerKind::Interrupted);
            }
            Kind::NotRun(not_run) => {
                let index = self.answerable(not_run.r#ref)?;
                self.check_not_run(index, not_run.attempt)?;
                self.check_reason(index, not_run.why)?;
                self.answer(index, mark, not_run.attempt, AnswerKind::NotRun(not_run.why));
            }
            Kind::Approval(approval) => self.take_approval(approval, mark)?,
            Kind::Reconciled(reconciled) => self.take_reconciled(reconciled, mark)?,
            Kind::Straggler(straggler) => self.stragglers.push((straggler.r#ref, mark.clone())),
            Kind::Steered(steered) => self.take_steered(steered, mark)?,
            Kind::Cancelled(cancelled) => {
                ensure(self.cancelled.is_none(), || "the turn was cancelled before".into())?;
                self.cancelled = Some(Cancelled {
                    mark: mark.clone(),
                    by: cancelled.by.clone(),
                    reason: cancelled.reason.clone(),
                });
            }
            Kind::Settled(settled) => self.take_settled(settled, mark)?,
            Kind::Delivery(delivery) => self.take_delivery(delivery, mark)?,
            Kind::Recovered(recovered) => self.take_recovered(recovered, mark)?,
            Kind::Parked(parked) => {
                ensure(self.parked.is_none(), || "the turn is parked already".into())?;
                self.parked =
                    Some(Parked { mark: mark.clone(), why: parked.why.clone(), by: parked.by.clone() });
            }
            Kind::Unparked(_) => {
                ensure(self.parked.take().is_some(), || "the turn is not parked".into())?;
                self.unparked_behind = self.current_number();
            }
            Kind::Heartbeat(heartbeat) => {
                // Without a lease that was asked for, a heartbeat makes none: it would end a living owner.
                if let Some(lease) = self.attempts.last_mut().and_then(|attempt| attempt.lease_ms.as_mut()) {
                    *lease = heartbeat.lease_ms;
                }
            }
            Kind::Note(_) | Kind::Opened(_) | Kind::Admitted(_) | Kind::Repaired(_) => {}
        }
        self.count_progress(kind, mark);
        let renews = renews_lease(kind).then(|| kind.attempt()).flatten();
        if let Some(attempt) = self.attempts.iter_mut().find(|known| Some(known.number) == renews) {
            attempt.renewed = mark.at.clone();
        }
        Ok(())
    }

    /// What settling, parking, cancelling and fencing forbid for whole kinds.
    pub(super) fn check_phase(&self, kind: &Kind) -> Checked {
        if self.settled.is_some() {
            let allowed = matches!(
                kind,
                Kind::Attempt(_)
                    | Kind::Recovered(_)
                    | Kind::Delivery(_)
                    | Kind::Parked(_)
                    | Kind::Unparked(_)
                    | Kind::Straggler(_)
                    | Kind::Note(_)
                    | Kind::Heartbeat(_)
            );
            ensure(allowed, || "the turn is settled".into())?;
        }
        if self.parked.is_some() {
            let by_person =
                matches!(kind, Kind::Delivery(delivery) if delivery.state != DeliveryState::Begun);
            // A denial writes the `not_run` of its call.
            let denied = matches!(kind, Kind::NotRun(not_run) if not_run.why == NotRunWhy::Denied);
            let allowed = by_person
                || denied
                || matches!(
                    kind,
                    Kind::Unparked(_)
                        | Kind::Note(_)
                        | Kind::Straggler(_)
                        | Kind::Approval(_)
                        | Kind::Reconciled(_)
                        | Kind::Cancelled(_)
                        | Kind::Steered(_)
                        | Kind::Outcome(_)
                );
            ensure(allowed, || "the turn is parked".into())?;
        }
        let Some(attempt) = kind.attempt() else { return Ok(()) };
        let newest = self.current_number();
        match kind {
            Kind::Attempt(_) => return Ok(()),
            _ if newest == 0 => return Err("no attempt began yet".into()),
            // Results and evidence may come from older attempts; each has its own rule.
            Kind::Outcome(_)
            | Kind::Straggler(_)
            | Kind::Note(_)
            | Kind::Dispatched(_)
            | Kind::Delivery(_) => {
                ensure((1..=newest).contains(&attempt), || format!("there is no attempt {attempt}"))?;
            }
            _ => {
                ensure(attempt == newest, || format!("attempt {attempt} is not the current one, {newest}"))?;
            }
        }
        // What recover writes itself, and what is evidence or a person's.
        let is_no_step = matches!(
            kind,
            Kind::Entry(_)
                | Kind::Interrupted(_)
                | Kind::NotRun(_)
                | Kind::Recovered(_)
                | Kind::Straggler(_)
                | Kind::Delivery(_)
        );
        let unfinished = attempt == newest && self.current().is_some_and(Attempt::unfinished);
        ensure(is_no_step || !unfinished, || format!("the recover of attempt {attempt} is unfinished"))
    }

    pub(super) fn begin_attempt(&mut self, begun: &record::Attempt, mark: &Mark, lost: u64) -> Checked {
        let newest = self.current_number();
        let again = self.current().is_some_and(Attempt::unfinished) && begun.attempt == newest;
        // Attempts whose records were lost to acknowledged damage leave gaps in the numbers.
        let follows = begun.attempt == newest + 1 || (lost > 0 && begun.attempt > newest);
        ensure(again || follows, || format!("attempt {} cannot follow attempt {newest}", begun.attempt))?;
        ensure(begun.cause != Cause::Admit || newest == 0, || {
            "only the first attempt can have the cause admit".into()
        })?;
        self.lost_numbers = 0;
        let before = if again { self.attempts.pop() } else { None };
        self.attempts.push(Attempt {
            number: begun.attempt,
            begun: mark.clone(),
            first_seq: before.as_ref().map_or(mark.seq, |before| before.first_seq),
            cause: begun.cause,
            owner: begun.owner.clone(),
            lease_ms: begun.lease_ms,
            renewed: mark.at.clone(),
            progress: before.is_some_and(|before| before.progress),
            recovered: None,
            branched: None,
        });
        self.facts.push(Fact { mark: mark.clone(), what: What::Attempt });
        Ok(())
    }

    pub(super) fn take_steered(&mut self, steered: &record::Steered, mark: &Mark) -> Checked {
        ensure(self.cancelled.is_none(), || "the turn was cancelled".into())?;
        ensure(steered.input.sha256() == steered.input_sha256.as_str(), || {
            "input_sha256 is not the digest of input".into()
        })?;
        self.facts.push(Fact { mark: mark.clone(), what: What::Steered(self.steered.len()) });
        self.steered.push(Steered {
            mark: mark.clone(),
            delivery: steered.delivery.clone(),
            input: steered.input.clone(),
        });
        Ok(())
    }

    /// Whether the turn may be settled so now.
    pub(crate) fn check_settle(&self, status: SettledStatus) -> Checked {
        if self.gap != Gap::None {
            return Ok(());
        }
        if let Some(open) = self.open_calls().next() {
            return Err(format!("call {} has no answer yet", open.r#ref));
        }
        if status != SettledStatus::Completed {
            return Ok(());
        }
        ensure(self.cancelled.is_none(), || "the turn was cancelled".into())?;
        let unseen = (0..self.steered.len()).any(|index| !self.steered_seen(index));
        ensure(!(self.has_model_message() && unseen), || "the model has not seen a steered input".into())
    }

    pub(super) fn take_settled(&mut self, settled: &record::Settled, mark: &Mark) -> Checked {
        self.check_settle(settled.status)?;
        self.settled =
            Some(Settled { mark: mark.clone(), status: settled.status, has_reply: settled.reply.is_some() });
        Ok(())
    }

    pub(super) fn take_delivery(&mut self, delivery: &record::Delivery, mark: &Mark) -> Checked {
        ensure(self.settled.as_ref().is_some_and(|settled| settled.has_reply), || {
            "there is no reply to deliver".into()
        })?;
        ensure(self.delivery_key.as_deref() == Some(&delivery.key), || "it is another delivery key".into())?;
        let known = self.delivery.as_ref();
        // What was begun ends under the attempt that began it; who that was may be lost.
        if let Some(begun) = known.filter(|known| known.state == DeliveryState::Begun && !self.lost_records) {
            let number = begun.attempt;
            ensure(delivery.attempt == number, || format!("the delivery was begun by attempt {number}"))?;
        }
        let newest = self.current_number();
        let unfinished = self.current().is_some_and(Attempt::unfinished);
        match (delivery.state, known.map(|known| known.state)) {
            (DeliveryState::Begun, None | Some(DeliveryState::NotSent)) => {
                ensure(delivery.attempt == newest && !unfinished, || {
                    format!("attempt {} is not the current one, {newest}", delivery.attempt)
                })?;
            }
            (DeliveryState::Sent, Some(DeliveryState::Begun | DeliveryState::NotSent))
            | (DeliveryState::NotSent, Some(DeliveryState::Begun))
            | (DeliveryState::Waived, _) => {}
            (state, known) => {
                let known = known.map_or("not begun", DeliveryState::word);
                return Err(format!("{state} cannot follow {known}"));
            }
        }
        let runner = match delivery.state {
            DeliveryState::Begun => delivery.runner.clone(),
            DeliveryState::Sent | DeliveryState::NotSent | DeliveryState::Waived => None,
        };
        self.delivery =
            Some(Delivery { mark: mark.clone(), state: delivery.state, attempt: delivery.attempt, runner });
        Ok(())
    }

    pub(super) fn take_recovered(&mut self, recovered: &record::Recovered, mark: &Mark) -> Checked {
        let mut found = Vec::with_capacity(recovered.decisions.len());
        for decided in &recovered.decisions {
            match self.index_of(decided.r#ref) {
                Some(index) => found.push((index, decided)),
                None if self.gap != Gap::None => {}
                None => return Err(format!("there is no call {}", decided.r#ref)),
            }
        }
        self.check_all_decided(&found)?;
        for (index, decided) in &found {
            let settled = matches!(decided.decision, Decision::Interrupt | Decision::NotRun);
            let answered = self.calls.get(*index).is_some_and(|call| call.answer.is_some());
            ensure(!settled || answered || self.gap != Gap::None, || {
                format!("call {} was decided about and not answered", decided.r#ref)
            })?;
        }
        for (index, decided) in found {
            let Some(call) = self.calls.get_mut(index).filter(|call| call.answer.is_none()) else { continue };
            let rerun = decided.decision == Decision::Rerun;
            call.rerun_by = rerun.then_some(recovered.attempt);
            if let Some(claim) = call.claim.as_mut().filter(|_| rerun) {
                claim.ended = true;
            }
        }
        if let (Some(tree), Some(branch)) = (&mut self.tree, &recovered.branch) {
            // The file may have been moved since.
            tree.path.clone_from(&branch.path);
        }
        if let Some(attempt) = self.attempts.last_mut() {
            let before = attempt.recovered.take().map(|(_, decisions)| decisions).unwrap_or_default();
            let anew =
                |known: &Decided| recovered.decisions.iter().any(|decided| decided.r#ref == known.r#ref);
            let mut decisions: Vec<Decided> = before.into_iter().filter(|known| !anew(known)).collect();
            decisions.extend(recovered.decisions.iter().cloned());
            attempt.recovered = Some((mark.clone(), decisions));
            if recovered.branch.is_some() {
                attempt.branched = Some(mark.clone());
            }
        }
        Ok(())
    }

    /// Each call is decided about once, and the `recovered` that a recovery waits for leaves none out.
    ///
    /// One by which the same owner asked again holds what was decided then.
    fn check_all_decided(&self, found: &[(usize, &Decided)]) -> Checked {
        let distinct: HashSet<usize> = found.iter().map(|(index, _)| *index).collect();
        ensure(distinct.len() == found.len(), || "a call is decided about twice".into())?;
        let first = self.current().is_some_and(Attempt::unfinished);
        let open = self.calls.iter().enumerate().filter(|(_, call)| call.answer.is_none());
        let mut left_out = open.filter(|(index, _)| !distinct.contains(index)).map(|(_, call)| call.r#ref);
        // What a lost record had decided need not be decided again.
        match left_out.next().filter(|_| first && !self.lost_records) {
            Some(call) => Err(format!("call {call} is open and was not decided about")),
            None => Ok(()),
        }
    }

    /// A claim is no progress: a call that kills its agent each time must not look like work.
    pub(super) fn count_progress(&mut self, kind: &Kind, mark: &Mark) {
        let answered_here = |index: &usize| {
            let answer = self.calls.get(*index).and_then(|call| call.answer.as_ref());
            answer.is_some_and(|answer| answer.mark.seq == mark.seq)
        };
        let said = || match self.facts.last().map(|fact| &fact.what) {
            Some(What::Said(said)) => match &said.stands {
                Stands::Model(ending) => !ending.is_failed(),
                // It is the result where none was stored.
                Stands::Results(told) => told.iter().any(answered_here),
                _ => false,
            },
            _ => false,
        };
        let number = match kind {
            Kind::Message(_) | Kind::Entry(_) => said().then_some(self.current_number()),
            Kind::Intent(_)
            | Kind::Dispatched(_)
            | Kind::Outcome(_)
            | Kind::Settled(_)
            | Kind::Delivery(_) => kind.attempt(),
            Kind::Reconciled(_) | Kind::Approval(_) | Kind::Steered(_) => Some(self.current_number()),
            Kind::Opened(_)
            | Kind::Admitted(_)
            | Kind::Attempt(_)
            | Kind::Claimed(_)
            | Kind::Interrupted(_)
            | Kind::NotRun(_)
            | Kind::Straggler(_)
            | Kind::Heartbeat(_)
            | Kind::Cancelled(_)
            | Kind::Recovered(_)
            | Kind::Parked(_)
            | Kind::Unparked(_)
            | Kind::Repaired(_)
            | Kind::Note(_) => None,
        };
        if let Some(attempt) = self.attempts.iter_mut().find(|attempt| Some(attempt.number) == number) {
            attempt.progress = true;
        }
    }
}

/// Evidence that came too late is no accepted step, and a person's act is not the owner's.
fn renews_lease(kind: &Kind) -> bool {
    match kind {
        Kind::Straggler(_) => false,
        Kind::NotRun(not_run) => not_run.why != NotRunWhy::Denied,
        Kind::Delivery(delivery) => delivery.by.is_none(),
        _ => true,
    }
}
