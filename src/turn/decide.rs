//! The decision table: what may be done about a call after its agent died.
//!
//! A pure function of what is recorded, the policy in force now and who lives. The first row that fits decides.
//! The policy now can veto and never upgrade. Decisions are per call, never per batch.

use super::{Attempt, Call, Source, Turn};
use crate::policy::{Policy, Rule};
use crate::record::{ApprovalDecision, At, Decision, Owner, Replay};
use std::collections::HashSet;

/// Lease of an owner that cannot be looked at from here, in milliseconds, unless one was asked for.
pub const LEASE_MS_DEFAULT: u64 = 120_000;

/// Whether a process can be seen to live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sighting {
    /// It is here and lives.
    Alive,
    /// It is gone for certain.
    Gone,
    /// It is on another host or in another pid namespace.
    Elsewhere,
}

/// What is true at the moment of a decision and stands in no record.
pub struct Now<'a> {
    /// The time.
    pub at: At,
    /// The policy in force.
    pub policy: &'a Policy,
    /// Looks for a process.
    pub look: &'a dyn Fn(&Owner) -> Sighting,
}

/// How it stands with the owner of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// Held by nobody: never gone.
    Nobody,
    /// It lives, or its lease does where it cannot be looked at.
    Alive,
    /// It lives, but a lease that was asked for has run out.
    Lapsed,
    /// It is gone.
    Gone,
}

/// A decision and what it rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    /// What was decided.
    pub decision: Decision,
    /// Why, for people.
    pub why: String,
    /// Replay policy stored with the intent, or never where nested calls or lost records make it that.
    pub stored: Replay,
    /// Replay policy in force now.
    pub now: Replay,
}

impl Now<'_> {
    /// How it stands with the owner of an attempt.
    pub fn holder(&self, attempt: &Attempt) -> Holder {
        let Some(owner) = &attempt.owner else { return Holder::Nobody };
        let lapsed = self.at.micros() >= lease_until(attempt).micros();
        match (self.look)(owner) {
            Sighting::Gone => Holder::Gone,
            Sighting::Elsewhere if lapsed => Holder::Gone,
            Sighting::Alive if lapsed && attempt.lease_ms.is_some() => Holder::Lapsed,
            Sighting::Alive | Sighting::Elsewhere => Holder::Alive,
        }
    }

    /// Whether a runner of an attempt lives.
    pub fn runner_lives(&self, turn: &Turn, attempt: u64, runner: &Owner) -> bool {
        match (self.look)(runner) {
            Sighting::Alive => true,
            Sighting::Gone => false,
            Sighting::Elsewhere => {
                turn.attempt(attempt).is_some_and(|attempt| self.at.micros() < lease_until(attempt).micros())
            }
        }
    }

    /// Whether a call is safe by its stored policy and by the one in force now.
    pub fn is_safe(&self, call: &Call) -> bool {
        call.replay.min(self.rule_of(call).replay) == Replay::Safe
    }

    /// The rule in force now for a call.
    pub fn rule_of(&self, call: &Call) -> Rule {
        self.policy.classify(&call.tool, call.args.get())
    }
}

/// When the lease of an attempt runs out.
pub fn lease_until(attempt: &Attempt) -> At {
    let lease_ms = attempt.lease_ms.unwrap_or(LEASE_MS_DEFAULT);
    let micros = i64::try_from(lease_ms).unwrap_or(i64::MAX).saturating_mul(1_000);
    At::from_micros(attempt.renewed.micros().saturating_add(micros))
}

/// Decides about one call.
pub fn rule(turn: &Turn, call: &Call, now: &Now<'_>) -> Ruling {
    let current = now.rule_of(call);
    let stored = stored_replay(turn, call, now);
    let (decision, why) = decide(turn, call, now, current, stored);
    Ruling { decision, why, stored, now: current.replay }
}

fn decide(turn: &Turn, call: &Call, now: &Now<'_>, current: Rule, stored: Replay) -> (Decision, String) {
    // 1
    if call.answer.is_some() {
        return (Decision::Redeliver, "its answer is stored".into());
    }
    // 2
    if call.is_cut_off() {
        return (Decision::NotRun, "its message was cut off".into());
    }
    // 3
    if let Some(dispatch) = &call.dispatch {
        return (Decision::Await, format!("dispatched to {}", dispatch.to));
    }
    // 4
    if let Some(claim) = call.live_claim()
        && let Some(runner) = &claim.runner
        && now.runner_lives(turn, claim.attempt, runner)
    {
        return (Decision::Await, format!("its runner lives (pid {})", runner.pid));
    }
    if call.source == Source::Lost && !call.may_have_run() {
        return (Decision::NotRun, "what it asked for is lost".into());
    }
    if call.may_have_run() {
        claimed(turn, call, now, current, stored)
    } else {
        unclaimed(turn, call, now, current)
    }
}

/// Rows 5 to 10.
fn claimed(turn: &Turn, call: &Call, now: &Now<'_>, current: Rule, stored: Replay) -> (Decision, String) {
    let since = match &call.claim {
        Some(claim) => format!("claimed by attempt {} at {}, no result", claim.attempt, claim.mark.at),
        None => "a record that was lost may have claimed it".to_owned(),
    };
    if turn.cancelled.is_some() {
        return (Decision::Interrupt, format!("{since}; the turn was cancelled"));
    }
    if call.parent.is_some() {
        return (Decision::Interrupt, format!("{since}; a nested call is never run by itself"));
    }
    let bolder = stored.min(current.replay);
    let both = format!("replay stored {}, now {}", call.replay, current.replay);
    let both = match stored {
        _ if stored == call.replay => both,
        _ if call.lost => format!("{both}, but never behind lost records"),
        _ => format!("{both}, but never since a call nested in it was begun and is not safe"),
    };
    if bolder > Replay::Never {
        match approval(call, now, current) {
            Word::Missing => return (Decision::Ask, format!("{since}; {both}; it needs an approval")),
            Word::Denied => return (Decision::Interrupt, format!("{since}; {both}; denied")),
            Word::Given | Word::NotNeeded => {}
        }
        let same_key = if bolder == Replay::Keyed { ", with the same key" } else { "" };
        return (Decision::Rerun, format!("{since}; {both}{same_key}"));
    }
    if call.unknown.is_some() || current.unknown.is_some() {
        return (Decision::Hold, format!("{since}; {both}; its policy says hold"));
    }
    if !call.from_model() {
        return (Decision::Hold, format!("{since}; {both}; no model can be told"));
    }
    (Decision::Interrupt, format!("{since}; {both}"))
}

/// Rows 11 to 14.
fn unclaimed(turn: &Turn, call: &Call, now: &Now<'_>, current: Rule) -> (Decision, String) {
    if turn.cancelled.is_some() {
        return (Decision::NotRun, "never claimed; the turn was cancelled".into());
    }
    if call.parent.is_some() {
        return (Decision::NotRun, "never claimed; a nested call is never run by itself".into());
    }
    match approval(call, now, current) {
        Word::Denied => (Decision::NotRun, "never claimed; denied".into()),
        Word::Missing => (Decision::Ask, "never claimed; it needs an approval".into()),
        Word::Given | Word::NotNeeded if call.not_applied.is_some() => {
            (Decision::Run, "it was not applied, and not claimed since".into())
        }
        Word::Given | Word::NotNeeded => (Decision::Run, "never claimed".into()),
    }
}

/// What people said about a call.
enum Word {
    NotNeeded,
    Missing,
    Given,
    Denied,
}

fn approval(call: &Call, now: &Now<'_>, current: Rule) -> Word {
    match standing_approval(call, now) {
        Some(ApprovalDecision::Denied) => Word::Denied,
        Some(ApprovalDecision::Granted) => Word::Given,
        None if call.approval.is_some() || current.approval.is_some() => Word::Missing,
        None => Word::NotNeeded,
    }
}

/// What a person said about the call, as far as it still stands: a word for a time runs out.
pub fn standing_approval(call: &Call, now: &Now<'_>) -> Option<ApprovalDecision> {
    let word = call.approved.as_ref()?;
    let over = |expires: &At| now.at.micros() >= expires.micros();
    let run_out = word.decision == ApprovalDecision::Granted && word.expires.as_ref().is_some_and(over);
    (!run_out).then_some(word.decision)
}

/// A call that others were nested in counts as never, unless each nested call that was claimed is safe: a rerun
/// declares them anew, under other keys. So does one that a lost record may have claimed.
fn stored_replay(turn: &Turn, call: &Call, now: &Now<'_>) -> Replay {
    if call.answer.is_some() {
        return call.replay;
    }
    // A nested call stands behind the one that it is nested in, so one pass finds those nested in nested ones.
    let mut family = HashSet::from([call.r#ref]);
    let mut unsafe_nested = false;
    for nested in turn.calls.iter().skip_while(|other| other.r#ref <= call.r#ref) {
        if nested.parent.is_some_and(|parent| family.contains(&parent)) {
            family.insert(nested.r#ref);
            unsafe_nested |= nested.may_have_run() && !now.is_safe(nested);
        }
    }
    if call.lost || unsafe_nested { Replay::Never } else { call.replay }
}

#[cfg(test)]
mod tests;
