//! The transition table: which record may follow, and what it changes.
//!
//! Anything not listed is illegal and says so with the state and the record. The checks hold for writers and for
//! verification alike; what only a writer can know (who is alive, the policy in force now, the tree) is not here.

use super::{
    Answer, AnswerKind, Approved, Attempt, Call, Cancelled, Claim, Delivery, Dispatch, Fact, Mark, Parked,
    Retain, Said, Session, Settled, Source, Stands, Steered, Turn, What,
};
use crate::chain::call_key;
use crate::json::Raw;
use crate::message::{self, Ending, Format, Meaning, Role};
use crate::record::{
    self, ApprovalDecision, CallIntent, CallRef, Cause, Decided, Decision, DeliveryState, Hash, Kind,
    NotRunWhy, ReconciledOutcome, Record, SettledStatus, TurnId,
};

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
    pub fn pass_damage(&mut self) {
        self.pass_break();
        self.seqs_passed += 1;
    }

    /// A break in the chain stands behind the newest record: records are lost there.
    pub fn pass_break(&mut self) {
        self.lost += 1;
        for turn in self.turns.iter_mut().filter(|turn| !turn.is_closed()) {
            turn.lost_records = true;
        }
    }

    /// A record of this seq that does not fit stands behind the newest one: as good as lost.
    pub fn pass_illegal(&mut self, seq: u64) {
        self.pass_break();
        self.seqs_passed = seq.saturating_sub(self.head.seq).max(self.seqs_passed + 1);
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
            let Some(call) = turn.call(decided.r#ref) else {
                // It may have been asked for in a record that was lost.
                ensure(self.lost > 0, || format!("there is no call {} to decide about", decided.r#ref))?;
                continue;
            };
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
            id: admitted.turn.clone(),
            admitted: mark.clone(),
            delivery_key: admitted.delivery.clone(),
            input: admitted.input.clone(),
            input_sha256: admitted.input_sha256.clone(),
            tree: admitted.tree.clone(),
            tree_passed_on: false,
            attempts: Vec::new(),
            facts: Vec::new(),
            calls: Vec::new(),
            steered: Vec::new(),
            cancelled: None,
            settled: None,
            delivery: None,
            parked: None,
            unparked_behind: 0,
            newest: mark,
            stragglers: Vec::new(),
            lost_records: false,
            lost_numbers: 0,
        });
        Ok(())
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
        turn.take(&record.kind, &mark, &genesis, lost)?;
        turn.newest = mark;
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

impl Turn {
    fn take(&mut self, kind: &Kind, mark: &Mark, genesis: &Hash, lost: u64) -> Checked {
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

    /// What a person acknowledged to be lost may have been anything that this turn could have had.
    fn count_as_lost(&mut self, mark: &Mark) {
        self.lost_records = true;
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
    fn begin_lost_delivery(&mut self, mark: &Mark) {
        let replies = self.settled.as_ref().is_none_or(|settled| settled.has_reply);
        if self.delivery_key.is_some() && replies {
            let attempt = self.current_number().max(1);
            let state = DeliveryState::Begun;
            self.delivery = Some(Delivery { mark: mark.clone(), state, attempt, runner: None });
        }
    }

    /// What settling, parking, cancelling and fencing forbid for whole kinds.
    fn check_phase(&self, kind: &Kind) -> Checked {
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

    fn begin_attempt(&mut self, begun: &record::Attempt, mark: &Mark, lost: u64) -> Checked {
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

    fn take_message(&mut self, said: &record::Message, mark: &Mark, genesis: &Hash) -> Checked {
        let format: Format = said.format.parse().map_err(|_| format!("unknown format {:?}", said.format))?;
        let meaning = message::meaning(format, &said.message)
            .map_err(|source| format!("message is not of format {format}: {source}"))?
            .with_role(&said.role);
        self.take_said(None, &meaning, said.calls.as_deref(), mark, genesis)
    }

    fn take_entry(&mut self, said: &record::Entry, mark: &Mark, genesis: &Hash) -> Checked {
        let object = said.entry.view().object().ok_or("an entry is an object")?;
        let kind = object.string("type").unwrap_or_default();
        let id = object.string("id");
        if kind != "message" {
            ensure(said.calls.is_none(), || format!("an entry of type {kind:?} has no calls"))?;
            let stands = if kind == "session" { Stands::Header } else { Stands::Other };
            self.say(Said { entry_id: id, stands, calls: self.calls.len()..self.calls.len() }, mark);
            return Ok(());
        }
        let raw = object.get("message").ok_or("a message entry holds a message")?;
        let raw = Raw::parse(raw).map_err(|source| source.to_string())?;
        let meaning = message::meaning(Format::Pi, &raw).map_err(|source| source.to_string())?;
        self.take_said(id, &meaning, said.calls.as_deref(), mark, genesis)
    }

    fn take_said(
        &mut self,
        entry_id: Option<String>,
        meaning: &Meaning,
        calls: Option<&[CallIntent]>,
        mark: &Mark,
        genesis: &Hash,
    ) -> Checked {
        let calls = calls.unwrap_or_default();
        let first = self.calls.len();
        let stands = match &meaning.role {
            Role::Assistant => {
                self.check_model_message(meaning)?;
                self.ask(entry_id.as_deref(), meaning, calls, mark, genesis)?;
                Stands::Model(meaning.ending.clone())
            }
            _ if !calls.is_empty() => return Err("only a model's message has calls".into()),
            Role::System => Stands::System,
            Role::ToolResult => Stands::Results(self.take_results(meaning, mark)?),
            // A provider may put results into a user message.
            Role::User if !meaning.answers.is_empty() => Stands::Results(self.take_results(meaning, mark)?),
            Role::User => self.user_message(entry_id.as_deref(), meaning),
            Role::Other(_) => Stands::Other,
        };
        self.say(Said { entry_id, stands, calls: first..self.calls.len() }, mark);
        Ok(())
    }

    fn say(&mut self, said: Said, mark: &Mark) {
        self.facts.push(Fact { mark: mark.clone(), what: What::Said(said) });
    }

    /// A model's message needs every call answered, and after a cancellation no calls that could run.
    pub(crate) fn check_model_message(&self, meaning: &Meaning) -> Checked {
        if let Some(open) = self.open_calls().next() {
            return Err(format!("call {} has no answer yet", open.r#ref));
        }
        let runnable = !meaning.calls.is_empty() && !meaning.ending.is_cut_off();
        ensure(self.cancelled.is_none() || !runnable, || "the turn was cancelled".into())
    }

    fn ask(
        &mut self,
        entry_id: Option<&str>,
        meaning: &Meaning,
        intents: &[CallIntent],
        mark: &Mark,
        genesis: &Hash,
    ) -> Checked {
        ensure(meaning.calls.len() == intents.len(), || {
            format!("the message has {} calls, the record {}", meaning.calls.len(), intents.len())
        })?;
        let source = match meaning.ending {
            Ending::Complete | Ending::Paused => Source::Model,
            Ending::CutOff(_) => Source::CutOff,
            Ending::Failed(_) => Source::Failed,
        };
        let mut calls = Vec::with_capacity(intents.len());
        for (position, (asked, intent)) in meaning.calls.iter().zip(intents).enumerate() {
            let r#ref = CallRef { seq: mark.seq, position: position as u64 };
            ensure(intent.r#ref == r#ref, || format!("call {} should be named {ref}", intent.r#ref))?;
            ensure(intent.tool == asked.tool, || format!("call {ref} is of tool {:?}", asked.tool))?;
            ensure(intent.args_sha256.as_str() == asked.args.sha256(), || {
                format!("args_sha256 of call {ref} is not the digest of its arguments")
            })?;
            ensure(intent.key == call_key(genesis, &self.id, r#ref), || format!("key of call {ref}"))?;
            calls.push(new_call(r#ref, intent, asked.args.clone(), source, entry_id));
        }
        self.calls.extend(calls);
        Ok(())
    }

    fn user_message(&self, entry_id: Option<&str>, meaning: &Meaning) -> Stands {
        let taken = |stands: &Stands| {
            self.facts.iter().any(|fact| matches!(&fact.what, What::Said(said) if said.stands == *stands))
        };
        // The agent's own entry may say the input in other words; a message is the input if it says the same.
        let may_be_input = || entry_id.is_some() || message::text_of(&self.input) == meaning.text;
        if !self.has_model_message() && !taken(&Stands::Input) && may_be_input() {
            return Stands::Input;
        }
        let repeats = |steered: &Steered| message::text_of(&steered.input) == meaning.text;
        let of_index = |(index, steered)| repeats(steered).then_some(Stands::Steered(index));
        let mut repeated = self.steered.iter().enumerate().filter_map(of_index);
        repeated.find(|stands| !taken(stands)).unwrap_or(Stands::User)
    }

    fn take_results(&mut self, meaning: &Meaning, mark: &Mark) -> Result<Vec<usize>, String> {
        let mut told = Vec::with_capacity(meaning.answers.len());
        for answer in &meaning.answers {
            let index = self
                .call_told_apart(&answer.call_id, &told)
                .ok_or_else(|| format!("a result for {:?}, which no call waits for", answer.call_id))?;
            self.check_told(index)?;
            told.push(index);
        }
        for index in &told {
            let unanswered = self.calls.get(*index).is_some_and(|call| call.answer.is_none());
            if unanswered {
                self.answer(*index, mark, self.current_number(), AnswerKind::Result);
            }
            // Told twice, the first form stands: it may be on the branch already.
            if let Some(call) = self.calls.get_mut(*index) {
                call.told.get_or_insert_with(|| mark.clone());
            }
        }
        Ok(told)
    }

    /// The call that a tool-result message of this provider id stands for: of the newest message that asked, the
    /// first of that id that the agent has not told yet.
    pub(crate) fn call_told(&self, id: &str) -> Option<usize> {
        self.call_told_apart(id, &[])
    }

    /// The same, where the calls of `taken` are told by the same message.
    fn call_told_apart(&self, id: &str, taken: &[usize]) -> Option<usize> {
        let named = |call: &&Call| call.id.as_deref() == Some(id);
        let mut backwards = self.calls.iter().rev().filter(named);
        // A model is told about what it asked for; declared calls may have any id.
        let newest = backwards.clone().find(|call| call.from_model()).or_else(|| backwards.next())?.r#ref.seq;
        let of_it = |call: &Call| call.r#ref.seq == newest && call.id.as_deref() == Some(id);
        let mut indexed = self.calls.iter().enumerate();
        let untold =
            indexed.find(|(index, call)| of_it(call) && call.told.is_none() && !taken.contains(index));
        untold.map(|(index, _)| index).or_else(|| self.calls.iter().rposition(of_it))
    }

    /// A tool-result message needs a call that was claimed or answered.
    pub(crate) fn check_told(&self, index: usize) -> Checked {
        let Some(call) = self.calls.get(index) else { return Ok(()) };
        let known =
            call.answer.is_some() || call.live_claim().is_some() || call.dispatch.is_some() || call.lost;
        ensure(known, || format!("call {} was neither claimed nor answered", call.r#ref))
    }

    fn take_intent(&mut self, intent: &record::Intent, mark: &Mark, genesis: &Hash) -> Checked {
        ensure(self.cancelled.is_none(), || "the turn was cancelled".into())?;
        let r#ref = CallRef { seq: mark.seq, position: 0 };
        ensure(intent.args_sha256.as_str() == intent.args.sha256(), || {
            "args_sha256 is not the digest of args".into()
        })?;
        ensure(intent.key == call_key(genesis, &self.id, r#ref), || format!("key of call {ref}"))?;
        if let Some(parent) = intent.parent {
            ensure(self.call(parent).is_some(), || format!("there is no call {parent} to be nested in"))?;
        }
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
        self.calls.push(call);
        Ok(())
    }

    fn take_claim(&mut self, claimed: &record::Claimed, mark: &Mark) -> Checked {
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
        use_up(call);
        Ok(())
    }

    fn take_dispatch(&mut self, dispatched: &record::Dispatched, mark: &Mark) -> Checked {
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
        use_up(call);
        Ok(())
    }

    fn check_result_attempt(&self, index: usize, attempt: u64) -> Checked {
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
    fn check_not_run(&self, index: usize, attempt: u64) -> Checked {
        let Some(call) = self.calls.get(index) else { return Ok(()) };
        let own = call.claim.as_ref().is_some_and(|claim| {
            claim.attempt == attempt && claim.runner.is_none() && !claim.repeated && !claim.ended
        });
        // A call of a message that was cut off is never claimed, also where a record was lost.
        let never = !call.may_have_run() || matches!(call.source, Source::CutOff | Source::Failed);
        ensure(never || (own && call.dispatch.is_none()), || format!("call {} may have run", call.r#ref))
    }

    fn take_approval(&mut self, approval: &record::Approval, mark: &Mark) -> Checked {
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

    fn take_reconciled(&mut self, reconciled: &record::Reconciled, mark: &Mark) -> Checked {
        let index = self.answerable(reconciled.r#ref)?;
        let Some(call) = self.calls.get_mut(index) else { return Ok(()) };
        ensure(call.may_have_run() || call.not_applied.is_some(), || {
            format!("call {} was never claimed", call.r#ref)
        })?;
        match reconciled.outcome {
            ReconciledOutcome::NotApplied => {
                call.claim = None;
                call.dispatch = None;
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

    fn take_steered(&mut self, steered: &record::Steered, mark: &Mark) -> Checked {
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

    fn take_settled(&mut self, settled: &record::Settled, mark: &Mark) -> Checked {
        self.check_settle(settled.status)?;
        self.settled =
            Some(Settled { mark: mark.clone(), status: settled.status, has_reply: settled.reply.is_some() });
        Ok(())
    }

    fn take_delivery(&mut self, delivery: &record::Delivery, mark: &Mark) -> Checked {
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

    fn take_recovered(&mut self, recovered: &record::Recovered, mark: &Mark) -> Checked {
        let mut indices = Vec::with_capacity(recovered.decisions.len());
        for decided in &recovered.decisions {
            let index = self.index_of(decided.r#ref);
            indices.push(index.ok_or_else(|| format!("there is no call {}", decided.r#ref))?);
        }
        for (index, decided) in indices.into_iter().zip(&recovered.decisions) {
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

    fn answerable(&self, call: CallRef) -> Result<usize, String> {
        let index = self.index_of(call).ok_or_else(|| format!("there is no call {call}"))?;
        let open = self.calls.get(index).is_some_and(|call| call.answer.is_none());
        ensure(open, || format!("call {call} is answered already")).map(|()| index)
    }

    fn answer(&mut self, index: usize, mark: &Mark, attempt: u64, kind: AnswerKind) {
        if let Some(call) = self.calls.get_mut(index) {
            call.answer = Some(Answer { mark: mark.clone(), attempt, kind });
        }
        self.facts.push(Fact { mark: mark.clone(), what: What::Answer(index) });
    }

    /// A claim is no progress: a call that kills its agent each time must not look like work.
    fn count_progress(&mut self, kind: &Kind, mark: &Mark) {
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

/// Where a record stands, as the fold keeps it.
fn mark(record: &Record, offset: u64) -> Mark {
    Mark { seq: record.seq, hash: record.hash.clone(), at: record.at.clone(), offset }
}

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(why()) }
}

/// One claim at a time, but for one that a recovery decided on.
fn check_claimable(call: &Call, attempt: u64) -> Checked {
    let rerun = call.rerun_by == Some(attempt);
    ensure(!call.may_have_run() || rerun, || format!("call {} is claimed already", call.r#ref))?;
    ensure(call.source == Source::Model || call.source == Source::Declared, || {
        format!("the message of call {} was cut off", call.r#ref)
    })?;
    let granted = || call.approved.as_ref().is_some_and(|word| word.decision == ApprovalDecision::Granted);
    ensure(call.approval.is_none() || granted(), || format!("call {} has no approval", call.r#ref))
}

/// A claim uses up what let it happen; an approval for a time is valid for that time.
fn use_up(call: &mut Call) {
    call.rerun_by = None;
    call.not_applied = None;
    call.approved = call.approved.take().filter(|word| word.expires.is_some());
    call.lost = false;
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

fn new_call(r#ref: CallRef, intent: &CallIntent, args: Raw, source: Source, entry_id: Option<&str>) -> Call {
    Call {
        r#ref,
        id: intent.id.clone(),
        tool: intent.tool.clone(),
        args,
        args_sha256: intent.args_sha256.clone(),
        replay: intent.replay,
        approval: intent.approval,
        unknown: intent.unknown,
        key: intent.key.clone(),
        source,
        entry_id: entry_id.map(str::to_owned),
        parent: None,
        claim: None,
        dispatch: None,
        not_applied: None,
        approved: None,
        rerun_by: None,
        answer: None,
        told: None,
        lost: false,
    }
}

#[cfg(test)]
mod tests;
