//! The transition table: which record may follow, and what it changes.
//!
//! Anything not listed is illegal and says so with the state and the record. The checks hold for writers and for
//! verification alike; what only a writer can know (who is alive, the policy in force now, the tree) is not here.

mod calls;
mod lost;
mod said;
mod turn;

use super::{Gap, Mark, Retain, Session, Settled, Turn};
use crate::json::Raw;
use crate::record::{self, Decision, DeliveryState, Hash, Kind, Record, SettledStatus, TurnId};
use std::collections::BTreeMap;

/// A record that may not follow what stands before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} does not fit: {why}")]
pub struct Illegal {
    /// The record's kind.
    pub kind: &'static str,
    /// Which rule it breaks.
    pub rule: Rule,
    /// What it runs into.
    pub why: String,
}

/// What a record is judged by, beside its chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Which record may follow which.
    Transition,
    /// What was decided must follow from the policies that stand in the records.
    Policy,
    /// `base` names the oldest unclosed turn.
    Base,
}

type Checked = Result<(), String>;

impl Session {
    /// Takes one more record, whose line begins at `offset`.
    ///
    /// On an error the session is unchanged. Chain and framing were judged before.
    pub fn apply(&mut self, record: &Record, offset: u64) -> Result<(), Illegal> {
        let illegal = |rule| move |why: String| Illegal { kind: record.kind.word(), rule, why };
        let base = self.base_after(&record.kind, offset);
        self.check_policy(&record.kind).map_err(illegal(Rule::Policy))?;
        if record.base != base && self.can_judge_base(record.base) {
            // What is wrong with the record itself says more than its base does.
            self.clone().transition(record, offset).map_err(illegal(Rule::Transition))?;
            let why = format!("its base is {}, the state after it begins at {base}", record.base);
            return Err(illegal(Rule::Base)(why));
        }
        self.transition(record, offset).map_err(illegal(Rule::Transition))?;
        self.count_gap(record);
        self.head = mark(record, offset);
        if !self.complete && self.read_from.is_none() {
            self.read_from = Some(offset);
        }
        Ok(())
    }

    /// Attempts that were lost have numbers too: the next one goes on behind them.
    fn count_gap(&mut self, record: &Record) {
        self.seqs_passed = 0;
        let read_before = self.complete || self.read_from.is_some();
        let gap = record.seq.saturating_sub(self.head.seq + 1);
        if gap == 0 || !read_before {
            return;
        }
        for turn in self.turns.iter_mut().filter(|turn| !turn.is_closed()) {
            turn.lost_numbers += gap;
        }
    }

    /// The seq that the next record gets: behind one for each line that was lost.
    pub fn next_seq(&self) -> u64 {
        self.head.seq + 1 + self.seqs_passed
    }

    /// A base before the first record that was read, or behind records that were lost, may be right.
    fn can_judge_base(&self, base: u64) -> bool {
        let unread = !self.complete && self.read_from.is_none_or(|from| base < from);
        self.lost == 0 && !unread
    }

    /// `base` of a record of this kind whose line begins at `offset`.
    pub fn base_after(&self, kind: &Kind, offset: u64) -> u64 {
        let closes = |turn: &Turn| match kind {
            Kind::Settled(settled) if settled.turn == turn.id => {
                turn.delivery_key.is_none() || settled.reply.is_none()
            }
            Kind::Delivery(delivery) if delivery.turn == turn.id => {
                matches!(delivery.state, DeliveryState::Sent | DeliveryState::Waived)
            }
            _ => false,
        };
        self.unclosed().find(|turn| !closes(turn)).map_or(offset, |turn| turn.admitted.offset)
    }

    /// A damaged range stands behind the newest record: what follows it may presuppose records that are lost.
    pub fn pass_damage(&mut self, offset: u64) {
        self.pass_break(offset);
        self.seqs_passed += 1;
    }

    /// A break in the chain stands behind the newest record: records are lost there.
    pub fn pass_break(&mut self, offset: u64) {
        self.lost += 1;
        if self.damage_from.is_none() || self.seqs_passed == 0 {
            self.damage_from = Some(offset);
        }
        for turn in self.turns.iter_mut().filter(|turn| !turn.is_closed()) {
            turn.lost_records = true;
            if turn.gap == Gap::None {
                turn.gap = Gap::Records;
            }
        }
    }

    /// A record of this seq that does not fit stands behind the newest one: as good as lost.
    pub fn pass_illegal(&mut self, seq: u64, offset: u64) {
        self.pass_break(offset);
        self.seqs_passed = seq.saturating_sub(self.head.seq).max(self.seqs_passed + 1);
    }

    /// Whether records are lost among those that were read.
    pub fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// There is damage that nobody acknowledged: for whoever only looks, all that it may have touched is uncertain.
    pub fn lose_records(&mut self) {
        self.acknowledge_loss(u64::MAX);
    }

    /// A person acknowledged damage at `offset`: a lost record may have been anything.
    fn acknowledge_loss(&mut self, offset: u64) {
        self.lost += 1;
        let touched = |turn: &&mut Turn| !turn.is_closed() && turn.admitted.offset <= offset;
        let head = self.head.clone();
        for turn in self.turns.iter_mut().filter(touched) {
            turn.count_as_lost(&head);
            if turn.is_closed() {
                self.closed_attempts.insert(turn.id.clone(), turn.current_number());
            }
        }
    }

    fn transition(&mut self, record: &Record, offset: u64) -> Checked {
        match &record.kind {
            Kind::Opened(_) => Err("a journal has one genesis, its first record".into()),
            Kind::Repaired(repaired) => {
                if repaired.saved_as.is_none() {
                    self.acknowledge_loss(repaired.offset);
                }
                Ok(())
            }
            Kind::Admitted(admitted) => self.admit(admitted, record, offset),
            kind => {
                let Some(id) = kind.turn() else { return Ok(()) };
                if self.turns.iter().any(|turn| turn.id == *id && !turn.is_closed()) {
                    self.advance(id, record, offset)
                } else if let Some(from) = self.admission_lost(id, record, offset) {
                    self.admit_unseen(id, record, from);
                    let fits = self.advance(id, record, offset);
                    if fits.is_err() {
                        self.turns.retain(|turn| turn.id != *id);
                        self.ids.remove(id);
                    }
                    fits
                } else {
                    self.after_closed(id, kind)
                }
            }
        }
    }

    /// A policy never makes a later decision bolder than what was stored with the call.
    fn check_policy(&self, kind: &Kind) -> Checked {
        let Kind::Recovered(recovered) = kind else { return Ok(()) };
        let Some(turn) = self.turn(&recovered.turn) else { return Ok(()) };
        for decided in &recovered.decisions {
            // Whether there has to be one is for the transition to say.
            let Some(call) = turn.call(decided.r#ref) else { continue };
            ensure(decided.replay_stored <= call.replay, || {
                format!("call {} was stored as {}, not as {}", call.r#ref, call.replay, decided.replay_stored)
            })?;
            if decided.decision != Decision::Rerun || call.answer.is_some() {
                continue;
            }
            let bolder = decided.replay_stored.min(decided.replay_now);
            ensure(bolder > record::Replay::Never, || {
                format!("call {} may never be run again, and a rerun was decided", call.r#ref)
            })?;
            ensure(turn.cancelled.is_none(), || {
                format!("call {} is rerun in a turn that was cancelled", call.r#ref)
            })?;
        }
        Ok(())
    }

    fn admit(&mut self, admitted: &record::Admitted, record: &Record, offset: u64) -> Checked {
        if let Some(open) = self.open() {
            ensure(open.lost_records, || format!("turn {} is open", open.id))?;
        }
        ensure(!self.ids.contains(&admitted.turn), || format!("turn {} was admitted before", admitted.turn))?;
        if let Some(key) = &admitted.delivery {
            let known = self.keys.get(key);
            ensure(known.is_none(), || format!("delivery key {key:?} was admitted before"))?;
        }
        ensure(admitted.input.sha256() == admitted.input_sha256.as_str(), || {
            "input_sha256 is not the digest of input".into()
        })?;
        if let Some(tree) = &admitted.tree {
            ensure(tree.path.starts_with('/'), || format!("tree path {:?} is not absolute", tree.path))?;
            ensure(tree.format == "pi/3", || format!("unknown tree format {:?}", tree.format))?;
            ensure(tree.leaf.is_some() == tree.leaf_at.is_some(), || "leaf and leaf_at go together".into())?;
        }
        self.ids.insert(admitted.turn.clone());
        if let Some(key) = &admitted.delivery {
            self.keys.insert(key.clone(), admitted.turn.clone());
        }
        let mark = mark(record, offset);
        self.pass_on(admitted, &mark);
        self.turns.push(Turn {
            delivery_key: admitted.delivery.clone(),
            tree: admitted.tree.clone(),
            ..new_turn(&admitted.turn, mark, admitted.input.clone(), admitted.input_sha256.clone())
        });
        Ok(())
    }

    /// Where the turn of a record was admitted, if that record is lost: what it did since is not forgotten.
    fn admission_lost(&self, id: &TurnId, record: &Record, offset: u64) -> Option<u64> {
        let evidence = !matches!(record.kind, Kind::Straggler(_) | Kind::Note(_));
        if self.ids.contains(id) || !evidence {
            return None;
        }
        if self.complete {
            return self.damage_from;
        }
        // Read from a base: that is where the oldest unclosed turn begins, and a first attempt is no admission.
        let first_attempt = matches!(record.kind, Kind::Attempt(_)) && record.base < offset;
        match self.read_from {
            None => self.damage_from.or(first_attempt.then_some(offset)),
            Some(_) => None,
        }
    }

    /// Begins a turn whose admission is lost, from `from` on: nothing is known of its input, delivery key or tree.
    fn admit_unseen(&mut self, id: &TurnId, record: &Record, from: u64) {
        // As early as it can have been: calls of lost messages stand behind it.
        let first = Mark { seq: self.head.seq + 1, ..mark(record, from) };
        let input = Raw::text("");
        let input_sha256 = crate::chain::digest(input.get().as_bytes());
        self.ids.insert(id.clone());
        self.turns.push(Turn {
            lost_records: true,
            gap: Gap::Admission,
            ..new_turn(id, first, input, input_sha256)
        });
    }

    /// What a new turn means for those before it.
    fn pass_on(&mut self, admitted: &record::Admitted, mark: &Mark) {
        // An open turn behind lost records was settled in one of them.
        for turn in self.turns.iter_mut().filter(|turn| turn.settled.is_none()) {
            let (status, has_reply) = (SettledStatus::Failed, turn.delivery_key.is_some());
            turn.settled = Some(Settled { mark: mark.clone(), status, has_reply });
            turn.begin_lost_delivery(mark);
        }
        if let Some(tree) = &admitted.tree {
            let on_it = |turn: &&mut Turn| turn.tree.as_ref().is_some_and(|known| known.path == tree.path);
            self.turns.iter_mut().filter(on_it).for_each(|turn| turn.tree_passed_on = true);
        }
    }

    /// A record of a turn that is not closed.
    fn advance(&mut self, id: &TurnId, record: &Record, offset: u64) -> Checked {
        let (genesis, lost) = (self.genesis.clone(), self.lost);
        if let Kind::Steered(record::Steered { delivery: Some(key), .. }) = &record.kind {
            ensure(!self.keys.contains_key(key), || format!("delivery key {key:?} was admitted before"))?;
        }
        let Some(turn) = self.turns.iter_mut().find(|turn| turn.id == *id) else { return Ok(()) };
        let mark = mark(record, offset);
        if turn.gap == Gap::None {
            turn.take(&record.kind, &mark, &genesis, lost)?;
        } else {
            let mut supposed = turn.clone();
            supposed.presuppose(&record.kind, &mark, &genesis);
            supposed.take(&record.kind, &mark, &genesis, lost)?;
            *turn = supposed;
        }
        turn.newest = mark;
        if let Some(key) = turn.delivery_key.as_ref().filter(|key| !self.keys.contains_key(*key)) {
            self.keys.insert(key.clone(), id.clone());
        }
        if let Kind::Steered(record::Steered { delivery: Some(key), .. }) = &record.kind {
            self.keys.insert(key.clone(), id.clone());
        }
        if turn.is_closed() {
            self.closed_attempts.insert(id.clone(), turn.current_number());
            if self.retain == Retain::Unclosed {
                // The one that closed last stays, for whoever closed it.
                self.turns.retain(|turn| turn.id == *id || !turn.is_closed());
            }
        }
        Ok(())
    }

    /// A record of a turn that is closed, or that closed before the first record that was read.
    fn after_closed(&mut self, id: &TurnId, kind: &Kind) -> Checked {
        let known = self.closed_attempts.get(id).copied();
        if known.is_none() && self.complete {
            return Err(format!("turn {id} was never admitted"));
        }
        match kind {
            Kind::Straggler(_) | Kind::Note(_) => {
                let newest = known.unwrap_or(record::NUMBER_MAX);
                ensure(kind.attempt().is_some_and(|attempt| attempt <= newest), || {
                    format!("turn {id} never had that attempt")
                })
            }
            _ if known.is_some() => Err(format!("turn {id} is closed")),
            _ => Ok(()),
        }
    }
}
/// A turn of which nothing is known but its admission.
fn new_turn(id: &TurnId, admitted: Mark, input: Raw, input_sha256: Hash) -> Turn {
    Turn {
        id: id.clone(),
        newest: admitted.clone(),
        admitted,
        delivery_key: None,
        input,
        input_sha256,
        tree: None,
        tree_passed_on: false,
        attempts: Vec::new(),
        facts: Vec::new(),
        calls: Vec::new(),
        declared: BTreeMap::new(),
        steered: Vec::new(),
        cancelled: None,
        settled: None,
        delivery: None,
        parked: None,
        unparked_behind: 0,
        stragglers: Vec::new(),
        lost_records: false,
        gap: Gap::None,
        lost_numbers: 0,
    }
}

/// Where a record stands, as the fold keeps it.
fn mark(record: &Record, offset: u64) -> Mark {
    Mark { seq: record.seq, hash: record.hash.clone(), at: record.at.clone(), offset }
}

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(why()) }
}

#[cfg(test)]
mod tests;
