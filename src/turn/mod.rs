//! What the records of a session mean: its turns, their attempts and calls.
//!
//! A pure fold. It keeps facts and the places of records, and of bodies only inputs and the arguments of calls;
//! whoever needs another body looks the record up by its seq. It judges whether a record may follow what stands
//! before it (`apply`), so that writing, recovering and verifying cannot disagree.

mod apply;
pub mod decide;
pub mod next;
#[cfg(test)]
mod properties;

pub use apply::{Illegal, Rule};

use crate::json::Raw;
use crate::message::{self, Ending};
use crate::record::{
    AdmittedTree, ApprovalDecision, ApprovalRule, At, CallRef, Cause, Decided, DeliveryState, Hash,
    NotRunWhy, Owner, Record, Replay, SettledStatus, TurnId, UnknownRule,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// Where a record stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Its number.
    pub seq: u64,
    /// Its hash.
    pub hash: Hash,
    /// When it was written.
    pub at: At,
    /// Offset of its line in the journal, in bytes.
    pub offset: u64,
}

impl Mark {
    /// `seq:hash`, the way heads are written.
    pub fn head(&self) -> String {
        format!("{}:{}", self.seq, self.hash)
    }
}

/// Which turns a fold keeps in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retain {
    /// Those that are not closed, and the one that closed last.
    Unclosed,
    /// All of them.
    All,
}

/// The state of a session.
#[derive(Debug, Clone)]
pub struct Session {
    /// Session id.
    pub id: String,
    /// Hash of the genesis.
    pub genesis: Hash,
    /// The newest record.
    pub head: Mark,
    /// The turns that are kept, in the order of their admission.
    pub turns: Vec<Turn>,
    retain: Retain,
    /// Whether every record from the genesis on was folded; else closed turns are unknown.
    complete: bool,
    /// Offset of the first record that was folded behind a gap in the reading.
    read_from: Option<u64>,
    ids: HashSet<TurnId>,
    keys: HashMap<String, TurnId>,
    closed_attempts: HashMap<TurnId, u64>,
    lost: u64,
    /// Where the newest damaged range begins.
    damage_from: Option<u64>,
    /// Lines behind the head that are no records: each may have had a number.
    seqs_passed: u64,
}

/// One turn.
#[derive(Debug, Clone)]
pub struct Turn {
    /// Its id.
    pub id: TurnId,
    /// Its `admitted`.
    pub admitted: Mark,
    /// Its delivery key.
    pub delivery_key: Option<String>,
    /// Its input.
    pub input: Raw,
    /// Digest of its input.
    pub input_sha256: Hash,
    /// The session tree it was admitted on; its path is where the newest recovery wrote.
    pub tree: Option<AdmittedTree>,
    /// Whether a later turn was admitted on the same tree: it is not this turn's to touch any more.
    pub tree_passed_on: bool,
    /// Its attempts, in order.
    pub attempts: Vec<Attempt>,
    /// What happened, in journal order, as far as the conversation is concerned.
    pub facts: Vec<Fact>,
    /// Its calls, in the order they were asked for.
    pub calls: Vec<Call>,
    /// For [`Call::declared_first`]: by that of the parent, and the id.
    declared: BTreeMap<(Option<CallRef>, String), CallRef>,
    /// Messages that joined it.
    pub steered: Vec<Steered>,
    /// Its cancellation.
    pub cancelled: Option<Cancelled>,
    /// Its settlement.
    pub settled: Option<Settled>,
    /// The delivery of its reply.
    pub delivery: Option<Delivery>,
    /// Its `parked`, while that stands.
    pub parked: Option<Parked>,
    /// The number of the newest attempt when it was last unparked.
    pub unparked_behind: u64,
    /// Its newest record.
    pub newest: Mark,
    /// Late evidence, by call (`None`: a delivery receipt).
    pub stragglers: Vec<(Option<CallRef>, Mark)>,
    /// Whether a damaged range that was acknowledged may have held records of it.
    pub lost_records: bool,
    /// What stands before the next record that nobody acknowledged yet.
    pub gap: Gap,
    /// How many records were lost since its newest attempt: each may have been an attempt.
    pub lost_numbers: u64,
}

/// Lost records: what the next one presupposes may have been in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap {
    /// None.
    None,
    /// Records of the turn may be among them.
    Records,
    /// Its `admitted` is among them, so that its input, tree and delivery key are not known.
    Admission,
}

/// One attempt.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Its number, the fencing token.
    pub number: u64,
    /// Its newest `attempt` record.
    pub begun: Mark,
    /// Seq of its first `attempt` record: a recover that was killed goes on with its attempt.
    pub first_seq: u64,
    /// Why it began.
    pub cause: Cause,
    /// Who holds it; `None` is nobody.
    pub owner: Option<Owner>,
    /// The lease that was asked for, in milliseconds.
    pub lease_ms: Option<u64>,
    /// When a step of it was last accepted.
    pub renewed: At,
    /// Whether it got anywhere: a claim alone is no progress.
    pub progress: bool,
    /// Its newest `recovered`, and the newest decision about each call of all of them.
    pub recovered: Option<(Mark, Vec<Decided>)>,
    /// The newest of its `recovered` that made sure of a branch.
    pub branched: Option<Mark>,
}

impl Attempt {
    /// A recover's attempt whose `recovered` is not there: it accepts no steps yet.
    pub fn unfinished(&self) -> bool {
        self.cause != Cause::Admit && self.recovered.is_none()
    }
}

/// Something that happened in the conversation.
#[derive(Debug, Clone)]
pub struct Fact {
    /// Its record.
    pub mark: Mark,
    /// What it was.
    pub what: What,
}

/// What a [`Fact`] was.
#[derive(Debug, Clone)]
pub enum What {
    /// An attempt began.
    Attempt,
    /// A message joined the turn; index into [`Turn::steered`].
    Steered(usize),
    /// A message or an entry.
    Said(Said),
    /// A call was answered; index into [`Turn::calls`].
    Answer(usize),
}

/// A message or a raw entry.
#[derive(Debug, Clone)]
pub struct Said {
    /// The agent's own id, for an entry.
    pub entry_id: Option<String>,
    /// What it stands for.
    pub stands: Stands,
    /// Its calls: a range of [`Turn::calls`].
    pub calls: Range<usize>,
    /// Whether a user says something in it, be it beside results.
    pub words: bool,
}

/// What a message or entry stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stands {
    /// The header of the agent's file; on no branch.
    Header,
    /// A system message.
    System,
    /// The input of the turn: a user's entry before the first model message, or a message of the same text.
    Input,
    /// A message that joined; index into [`Turn::steered`].
    Steered(usize),
    /// Another user message.
    User,
    /// A model's message.
    Model(Ending),
    /// Results of calls: indices into [`Turn::calls`].
    Results(Vec<usize>),
    /// Anything else that the agent keeps in its file.
    Other,
}

/// A message that joined the open turn.
#[derive(Debug, Clone)]
pub struct Steered {
    /// Its record.
    pub mark: Mark,
    /// Its own delivery key.
    pub delivery: Option<String>,
    /// What it says.
    pub input: Raw,
}

/// Who stopped a turn.
#[derive(Debug, Clone)]
pub struct Cancelled {
    /// Its record.
    pub mark: Mark,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
}

/// How a turn ended.
#[derive(Debug, Clone)]
pub struct Settled {
    /// Its record.
    pub mark: Mark,
    /// How.
    pub status: SettledStatus,
    /// Whether there is a reply.
    pub has_reply: bool,
}

/// How far a delivery came.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Its newest record.
    pub mark: Mark,
    /// How far.
    pub state: DeliveryState,
    /// The attempt that began it, or ended it unbegun.
    pub attempt: u64,
    /// The process that publishes, for `deliver -- CMD`.
    pub runner: Option<Owner>,
}

/// Why a turn is parked.
#[derive(Debug, Clone)]
pub struct Parked {
    /// Its record.
    pub mark: Mark,
    /// Why.
    pub why: String,
    /// Who.
    pub by: String,
}

/// Where a call was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A message or entry of a model that ended properly.
    Model,
    /// A message or entry that was cut off.
    CutOff,
    /// A message that ended in error or abort: it and its calls are on no branch.
    Failed,
    /// Declared without a model message.
    Declared,
    /// In a record that is lost: only its name and what came of it are known.
    Lost,
}

/// One call.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its name in the journal.
    pub r#ref: CallRef,
    /// The provider's or driver's id.
    pub id: Option<String>,
    /// Tool name.
    pub tool: String,
    /// Its arguments.
    pub args: Raw,
    /// Their digest.
    pub args_sha256: Hash,
    /// Stored replay policy.
    pub replay: Replay,
    /// Stored approval rule.
    pub approval: Option<ApprovalRule>,
    /// Stored rule for an unknown outcome.
    pub unknown: Option<UnknownRule>,
    /// Idempotency key.
    pub key: String,
    /// Where it was asked for.
    pub source: Source,
    /// Its message's entry id in the agent's file, for `ENTRYID.POS`.
    pub entry_id: Option<String>,
    /// The call that it is nested in.
    pub parent: Option<CallRef>,
    /// The run of that call to which it belongs: the one at work when it was declared, else the one to come.
    pub parent_run: u64,
    /// The first call that was declared under its id in the same call, if in any: a rerun and a retry declare anew.
    /// For what a model asked for, its own ref.
    pub declared_first: CallRef,
    /// How often it was begun: claimed, dispatched, or maybe so in a record that was lost.
    pub runs: u64,
    /// Its newest claim since the last `not_applied`.
    pub claim: Option<Claim>,
    /// Its dispatch since the last `not_applied`.
    pub dispatch: Option<Dispatch>,
    /// A `not_applied` that no claim stands behind.
    pub not_applied: Option<Mark>,
    /// The newest word of a person about it, until a claim uses it up.
    pub approved: Option<Approved>,
    /// The attempt that decided to rerun it, until a claim uses that up.
    pub rerun_by: Option<u64>,
    /// Its answer.
    pub answer: Option<Answer>,
    /// The record whose tool-result message the agent's own file has for it.
    pub told: Option<Mark>,
    /// Whether a lost record may have claimed it.
    pub lost: bool,
}

/// How a call that was declared under an id stands to one that is declared under it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declared {
    /// It is that one.
    Now,
    /// An earlier run of its parent declared it: a rerun declares anew.
    InEarlierRun,
    /// It is nested in another call.
    Elsewhere,
}

/// A claim.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Its record.
    pub mark: Mark,
    /// The attempt that holds it.
    pub attempt: u64,
    /// The process of `step run`.
    pub runner: Option<Owner>,
    /// Where to look it up.
    pub link: Option<Raw>,
    /// A decision to rerun the call ended it: its result comes too late.
    pub ended: bool,
    /// An earlier claim of the call may have run too.
    pub repeated: bool,
}

/// A dispatch to a remote executor.
#[derive(Debug, Clone)]
pub struct Dispatch {
    /// Its record.
    pub mark: Mark,
    /// The attempt that dispatched.
    pub attempt: u64,
    /// The executor.
    pub to: String,
    /// Its receipt.
    pub receipt: Option<Raw>,
}

/// A person's word about a call.
#[derive(Debug, Clone)]
pub struct Approved {
    /// Its record.
    pub mark: Mark,
    /// Yes or no.
    pub decision: ApprovalDecision,
    /// Who.
    pub by: String,
    /// Until when.
    pub expires: Option<At>,
    /// Why.
    pub reason: Option<String>,
}

/// The answer of a call.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its record.
    pub mark: Mark,
    /// The attempt that it stands under; 0 for a person's.
    pub attempt: u64,
    /// What it is.
    pub kind: AnswerKind,
}

/// What answered a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    /// A `result`, or a tool-result message.
    Result,
    /// An `interrupted`.
    Interrupted,
    /// A `not_run`.
    NotRun(NotRunWhy),
    /// A person found it applied.
    Applied,
    /// A person found that nobody can tell.
    Unknown,
}

impl Session {
    /// Folds the genesis of a journal.
    ///
    /// Behind it come either all records, or those from a `base` on ([`Session::skip_to_base`]).
    pub fn begin(id: String, genesis: &Record, retain: Retain) -> Self {
        let head = Mark { seq: 0, hash: genesis.hash.clone(), at: genesis.at.clone(), offset: 0 };
        Self {
            id,
            genesis: genesis.hash.clone(),
            head,
            turns: Vec::new(),
            retain,
            complete: true,
            read_from: None,
            ids: HashSet::new(),
            keys: HashMap::new(),
            closed_attempts: HashMap::new(),
            lost: 0,
            damage_from: None,
            seqs_passed: 0,
        }
    }

    /// The records up to a `base` are not read: turns that closed before are unknown from now on.
    pub fn skip_to_base(&mut self) {
        self.complete = false;
    }

    /// Whether closed turns are known too.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The turn with this id, if it is kept.
    pub fn turn(&self, id: &TurnId) -> Option<&Turn> {
        self.turns.iter().find(|turn| turn.id == *id)
    }

    /// The open turn.
    pub fn open(&self) -> Option<&Turn> {
        self.turns.iter().find(|turn| turn.settled.is_none())
    }

    /// The turns that are not closed, oldest first.
    pub fn unclosed(&self) -> impl Iterator<Item = &Turn> {
        self.turns.iter().filter(|turn| !turn.is_closed())
    }

    /// The turn that was admitted, or steered into, under a delivery key; needs a complete fold.
    pub fn turn_of_key(&self, key: &str) -> Option<&TurnId> {
        self.keys.get(key)
    }

    /// Whether a turn of this id was ever admitted; needs a complete fold.
    pub fn knows(&self, turn: &TurnId) -> bool {
        self.ids.contains(turn)
    }
}

impl Turn {
    /// Settled, and its reply sent or waived if there is a delivery key and a reply.
    pub fn is_closed(&self) -> bool {
        let Some(settled) = &self.settled else { return false };
        // A record behind the gap may tell the key.
        let may_have_key = self.gap == Gap::Admission;
        if !settled.has_reply || (self.delivery_key.is_none() && !may_have_key) {
            return true;
        }
        self.delivery
            .as_ref()
            .is_some_and(|delivery| matches!(delivery.state, DeliveryState::Sent | DeliveryState::Waived))
    }

    /// The newest attempt.
    pub fn current(&self) -> Option<&Attempt> {
        self.attempts.last()
    }

    /// Number of the newest attempt; 0 when there is none.
    pub fn current_number(&self) -> u64 {
        self.current().map_or(0, |attempt| attempt.number)
    }

    /// The attempt of this number.
    pub fn attempt(&self, number: u64) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| attempt.number == number)
    }

    /// The call of this name.
    pub fn call(&self, call: CallRef) -> Option<&Call> {
        self.index_of(call).and_then(|index| self.calls.get(index))
    }

    /// The call that was declared without a model under this id, as one who declares it in `parent` now means it.
    pub fn declared_before(&self, id: &str, parent: Option<CallRef>) -> Option<(&Call, Declared)> {
        let known = |parent: Option<CallRef>| parent.and_then(|parent| self.call(parent));
        let around = known(parent);
        let place = |around: Option<&Call>| around.map(|around| around.declared_first);
        let how = |call: &Call| match place(known(call.parent)) == place(around) {
            false => Declared::Elsewhere,
            true if call.parent == parent && around.is_none_or(|around| call.parent_run >= around.runs) => {
                Declared::Now
            }
            true => Declared::InEarlierRun,
        };
        let of_id = |call: &&Call| !call.from_model() && call.id.as_deref() == Some(id);
        let mut newest_first = self.calls.iter().rev().filter(of_id).map(|call| (call, how(call))).peekable();
        let newest = newest_first.peek().copied();
        newest_first.find(|(_, how)| *how == Declared::Now).or(newest)
    }

    /// Where the call of this name stands in [`Turn::calls`]: they are ordered by it.
    pub(crate) fn index_of(&self, call: CallRef) -> Option<usize> {
        self.calls.binary_search_by_key(&call, |known| known.r#ref).ok()
    }

    /// Whether a user's message stands behind the record of this seq.
    pub fn user_message_behind(&self, seq: u64) -> bool {
        let by_user = |stands: &Stands| matches!(stands, Stands::Input | Stands::User | Stands::Steered(_));
        self.facts.iter().rev().take_while(|fact| fact.mark.seq > seq).any(|fact| match &fact.what {
            What::Said(said) => by_user(&said.stands),
            What::Attempt | What::Steered(_) | What::Answer(_) => false,
        })
    }

    /// The calls without an answer.
    pub fn open_calls(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(|call| call.answer.is_none())
    }

    /// The newest model message that did not end in error or abort.
    pub fn last_model(&self) -> Option<(&Fact, &Said, &Ending)> {
        self.facts.iter().rev().find_map(|fact| match &fact.what {
            What::Said(said) => match &said.stands {
                Stands::Model(ending) if !matches!(ending, Ending::Failed(_)) => Some((fact, said, ending)),
                _ => None,
            },
            _ => None,
        })
    }

    /// Whether a model has said anything in this turn that did not end in error or abort.
    pub fn has_model_message(&self) -> bool {
        self.last_model().is_some()
    }

    /// Whether the steered input of this index was there when a model was asked.
    ///
    /// That needs a model's message newer than the first message, answer or attempt behind the input: what came
    /// first behind it may have been under way already.
    pub fn steered_seen(&self, index: usize) -> bool {
        let Some(steered) = self.steered.get(index) else { return true };
        let Some(anchor) = self.anchor_of(steered) else { return false };
        self.last_model().is_some_and(|(fact, _, _)| fact.mark.seq > anchor)
    }

    /// Whether a message with this text joined the turn and the agent has not repeated it yet.
    pub fn awaits_steered(&self, text: &str) -> bool {
        let repeated = |index: usize| {
            let by =
                |fact: &Fact| matches!(&fact.what, What::Said(said) if said.stands == Stands::Steered(index));
            self.facts.iter().any(by)
        };
        let joined = self.steered.iter().enumerate();
        joined
            .filter(|(_, steered)| message::text_of(&steered.input) == text)
            .any(|(index, _)| !repeated(index))
    }

    /// Seq of the first message, answer or attempt behind a steered input: its place on the branch is behind that.
    pub fn anchor_of(&self, steered: &Steered) -> Option<u64> {
        self.facts
            .iter()
            .find(|fact| fact.mark.seq > steered.mark.seq && fact.is_anchor())
            .map(|fact| fact.mark.seq)
    }

    /// How many of the newest attempts got nowhere, since the turn was last unparked.
    pub fn fruitless_attempts(&self) -> u64 {
        let counted = self
            .attempts
            .iter()
            .rev()
            .take_while(|attempt| !attempt.progress && attempt.number > self.unparked_behind);
        counted.count() as u64
    }
}

impl Fact {
    fn is_anchor(&self) -> bool {
        match &self.what {
            What::Attempt | What::Answer(_) => true,
            What::Steered(_) => false,
            What::Said(said) => !matches!(said.stands, Stands::Other | Stands::Header),
        }
    }
}

impl Call {
    /// Claimed or dispatched since the last `not_applied`, or maybe so in a record that was lost.
    pub fn may_have_run(&self) -> bool {
        self.claim.is_some() || self.dispatch.is_some() || self.lost
    }

    /// The number of the run that is at work, else of the one to come.
    pub fn run_at_work(&self) -> u64 {
        let at_work = self.dispatch.is_some() || self.live_claim().is_some();
        if at_work { self.runs } else { self.runs + 1 }
    }

    /// The claim whose result is still accepted: a decision to rerun has not ended it.
    pub fn live_claim(&self) -> Option<&Claim> {
        self.claim.as_ref().filter(|claim| !claim.ended && self.answer.is_none())
    }

    /// Whether its message was cut off, or ended in error or abort: it never runs.
    pub fn is_cut_off(&self) -> bool {
        matches!(self.source, Source::CutOff | Source::Failed)
    }

    /// What a person said about it, until a claim uses that up; a word for a time may have run out.
    pub fn word(&self) -> Option<ApprovalDecision> {
        self.approved.as_ref().map(|word| word.decision)
    }

    /// Whether it was asked for by a model.
    pub fn from_model(&self) -> bool {
        !matches!(self.source, Source::Declared | Source::Lost)
    }
}
