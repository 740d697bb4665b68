//! The transitions of a call: declared, claimed, dispatched, answered, approved, reconciled.

use super::super::{
    Answer, AnswerKind, Approved, Attempt, Call, Claim, Dispatch, Fact, Mark, Source, Turn, What,
};
use super::said::new_call;
use super::{Checked, ensure};
use crate::chain::call_key;
use crate::record::{self, ApprovalDecision, CallIntent, CallRef, Hash, NotRunWhy, ReconciledOutcome};

impl Turn {
    pub(super) fn take_intent(&mut self, intent: &record::Intent, mark: &Mark, genesis: &Hash) -> Checked {
        ensure(self.cancelled.is_none(), || "the turn was cancelled".into())?;
        let r#ref = CallRef { seq: mark.seq, position: 0 };
        ensure(intent.args_sha256.as_str() == intent.args.sha256(), || {
            "args_sha256 is not the digest of args".into()
        })?;
        ensure(intent.key == call_key(genesis, &self.id, r#ref), || format!("key of call {ref}"))?;
        let mut around = None;
        if let Some(parent) = intent.parent {
            let outer =
                self.call(parent).ok_or_else(|| format!("there is no call {parent} to be nested in"))?;
            ensure(outer.answer.is_none(), || {
                format!("call {parent}, to be nested in, is answered already")
            })?;
            around = Some(outer);
        }
        let parent_run = around.map_or(0, Call::run_at_work);
        let place = (around.map(|outer| outer.declared_first), intent.id.clone());
        let as_call = CallIntent {
            r#ref,
            id: Some(intent.id.clone()),
            tool: intent.tool.clone(),
            args_sha256: intent.args_sha256.clone(),
            replay: intent.replay,
            approval: intent.approval,
            unknown: intent.unknown,
            key: intent.key.clone(),
        };
        let mut call = new_call(r#ref, &as_call, intent.args.clone(), Source::Declared, None);
        call.parent = intent.parent;
        call.parent_run = parent_run;
        call.declared_first = *self.declared.entry(place).or_insert(r#ref);
        self.calls.push(call);
        Ok(())
    }

    pub(super) fn take_claim(&mut self, claimed: &record::Claimed, mark: &Mark) -> Checked {
        ensure(self.cancelled.is_none(), || "the turn was cancelled".into())?;
        let index = self.answerable(claimed.r#ref)?;
        let Some(call) = self.calls.get_mut(index) else { return Ok(()) };
        ensure(claimed.key == call.key, || format!("key of call {}", call.r#ref))?;
        check_claimable(call, claimed.attempt)?;
        call.claim = Some(Claim {
            mark: mark.clone(),
            attempt: claimed.attempt,
            runner: claimed.runner.clone(),
            link: claimed.link.clone(),
            ended: false,
            repeated: call.may_have_run(),
        });
        begin_run(call);
        Ok(())
    }

    pub(super) fn take_dispatch(&mut self, dispatched: &record::Dispatched, mark: &Mark) -> Checked {
        let newest = self.current_number();
        let ready = !self.current().is_some_and(Attempt::unfinished);
        let (cancelled, parked) = (self.cancelled.is_some(), self.parked.is_some());
        let index = self.answerable(dispatched.r#ref)?;
        let Some(call) = self.calls.get_mut(index) else { return Ok(()) };
        if let Some(known) = &mut call.dispatch {
            ensure(known.to == dispatched.to, || {
                format!("call {} was dispatched to {}", call.r#ref, known.to)
            })?;
            ensure(known.receipt.is_none() && dispatched.receipt.is_some(), || {
                format!("call {} was dispatched before", call.r#ref)
            })?;
            ensure([known.attempt, newest].contains(&dispatched.attempt), || {
                format!("attempt {} did not dispatch call {}", dispatched.attempt, call.r#ref)
            })?;
            known.receipt.clone_from(&dispatched.receipt);
            return Ok(());
        }
        ensure(!cancelled, || "the turn was cancelled".into())?;
        ensure(!parked, || "the turn is parked".into())?;
        ensure(dispatched.attempt == newest && ready, || {
            format!("attempt {} is not the current one, {newest}", dispatched.attempt)
        })?;
        check_claimable(call, dispatched.attempt)?;
        call.claim = None;
        call.dispatch = Some(Dispatch {
            mark: mark.clone(),
            attempt: dispatched.attempt,
            to: dispatched.to.clone(),
            receipt: dispatched.receipt.clone(),
        });
        begin_run(call);
        Ok(())
    }

    pub(super) fn check_result_attempt(&self, index: usize, attempt: u64) -> Checked {
        let Some(call) = self.calls.get(index) else { return Ok(()) };
        if let Some(dispatch) = &call.dispatch {
            return ensure(attempt >= dispatch.attempt, || {
                format!("attempt {attempt} is older than the dispatch of call {}", call.r#ref)
            });
        }
        let live = call.live_claim().is_some_and(|claim| claim.attempt == attempt);
        ensure(live, || format!("attempt {attempt} holds no claim of call {}", call.r#ref))
    }

    /// Never claimed, or claimed by this attempt alone and without a runner.
    pub(super) fn check_not_run(&self, index: usize, attempt: u64) -> Checked {
        let Some(call) = self.calls.get(index) else { return Ok(()) };
        let own = call.claim.as_ref().is_some_and(|claim| {
            claim.attempt == attempt && claim.runner.is_none() && !claim.repeated && !claim.ended
        });
        // A call of a message that was cut off is never claimed, also where a record was lost.
        let never = !call.may_have_run() || call.is_cut_off();
        ensure(never || (own && call.dispatch.is_none()), || format!("call {} may have run", call.r#ref))
    }

    /// The reason must be one that the records before show.
    pub(super) fn check_reason(&self, index: usize, why: NotRunWhy) -> Checked {
        let Some(call) = self.calls.get(index) else { return Ok(()) };
        let shown = match why {
            NotRunWhy::CutOff => call.is_cut_off(),
            NotRunWhy::Denied => call.word() == Some(ApprovalDecision::Denied) || self.lost_records,
            NotRunWhy::Cancelled | NotRunWhy::Refused => true,
        };
        ensure(shown, || format!("call {} was not {why}", call.r#ref))
    }

    pub(super) fn take_approval(&mut self, approval: &record::Approval, mark: &Mark) -> Checked {
        let index = self.answerable(approval.r#ref)?;
        if let Some(call) = self.calls.get_mut(index) {
            call.approved = Some(Approved {
                mark: mark.clone(),
                decision: approval.decision,
                by: approval.by.clone(),
                expires: approval.expires.clone(),
                reason: approval.reason.clone(),
            });
        }
        Ok(())
    }

    pub(super) fn take_reconciled(&mut self, reconciled: &record::Reconciled, mark: &Mark) -> Checked {
        let index = self.answerable(reconciled.r#ref)?;
        let Some(call) = self.calls.get_mut(index) else { return Ok(()) };
        ensure(call.may_have_run() || call.not_applied.is_some(), || {
            format!("call {} was never claimed", call.r#ref)
        })?;
        match reconciled.outcome {
            ReconciledOutcome::NotApplied => {
                call.claim = None;
                call.dispatch = None;
                // What is lost may have been a run.
                call.runs += u64::from(call.lost);
                call.lost = false;
                call.rerun_by = None;
                call.not_applied = Some(mark.clone());
            }
            ReconciledOutcome::Applied => {
                ensure(reconciled.content.is_some(), || "applied needs content".into())?;
                self.answer(index, mark, 0, AnswerKind::Applied);
            }
            ReconciledOutcome::Unknown => self.answer(index, mark, 0, AnswerKind::Unknown),
        }
        Ok(())
    }

    pub(super) fn answerable(&self, call: CallRef) -> Result<usize, String> {
        let index = self.index_of(call).ok_or_else(|| format!("there is no call {call}"))?;
        let open = self.calls.get(index).is_some_and(|call| call.answer.is_none());
        ensure(open, || format!("call {call} is answered already")).map(|()| index)
    }

    pub(super) fn answer(&mut self, index: usize, mark: &Mark, attempt: u64, kind: AnswerKind) {
        if let Some(call) = self.calls.get_mut(index) {
            call.answer = Some(Answer { mark: mark.clone(), attempt, kind });
        }
        self.facts.push(Fact { mark: mark.clone(), what: What::Answer(index) });
    }
}

/// One claim at a time, but for one that a recovery decided on.
fn check_claimable(call: &Call, attempt: u64) -> Checked {
    let rerun = call.rerun_by == Some(attempt);
    ensure(!call.may_have_run() || rerun, || format!("call {} is claimed already", call.r#ref))?;
    ensure(matches!(call.source, Source::Model | Source::Declared | Source::Lost), || {
        format!("the message of call {} was cut off", call.r#ref)
    })?;
    let granted = call.word() == Some(ApprovalDecision::Granted);
    ensure(call.approval.is_none() || granted, || format!("call {} has no approval", call.r#ref))
}

/// A claim or dispatch begins a run and uses up what let it happen; an approval for a time is valid for that time.
fn begin_run(call: &mut Call) {
    call.runs += 1;
    call.rerun_by = None;
    call.not_applied = None;
    call.approved = call.approved.take().filter(|word| word.expires.is_some());
    call.lost = false;
}
