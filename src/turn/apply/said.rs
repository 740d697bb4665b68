//! The transitions of what is said: messages, raw entries, the calls in them and the results they tell.

use super::super::{AnswerKind, Attempt, Call, Fact, Gap, Mark, Said, Source, Stands, Steered, Turn, What};
use super::{Checked, ensure};
use crate::chain::call_key;
use crate::json::Raw;
use crate::message::{self, Ending, Format, Meaning, Role};
use crate::record::{self, CallIntent, CallRef, Hash};

impl Turn {
    pub(super) fn take_message(&mut self, said: &record::Message, mark: &Mark, genesis: &Hash) -> Checked {
        let format: Format = said.format.parse().map_err(|_| format!("unknown format {:?}", said.format))?;
        let meaning = message::meaning(format, &said.message)
            .map_err(|source| format!("message is not of format {format}: {source}"))?
            .with_role(&said.role);
        ensure(meaning.role_word == said.role, || {
            format!("role says {:?}, the message {:?}", said.role, meaning.role_word)
        })?;
        self.take_said(None, &meaning, said.calls.as_deref(), mark, genesis)
    }

    pub(super) fn take_entry(&mut self, said: &record::Entry, mark: &Mark, genesis: &Hash) -> Checked {
        let object = said.entry.view().object().ok_or("an entry is an object")?;
        let kind = object.string("type").unwrap_or_default();
        let id = object.string("id");
        if kind != "message" {
            ensure(said.calls.is_none(), || format!("an entry of type {kind:?} has no calls"))?;
            let stands = if kind == "session" { Stands::Header } else { Stands::Other };
            let calls = self.calls.len()..self.calls.len();
            self.say(Said { entry_id: id, stands, calls, words: false }, mark);
            return Ok(());
        }
        let raw = object.get("message").ok_or("a message entry holds a message")?;
        let raw = Raw::parse(raw).map_err(|source| source.to_string())?;
        let meaning = message::meaning(Format::Pi, &raw).map_err(|source| source.to_string())?;
        self.take_said(id, &meaning, said.calls.as_deref(), mark, genesis)
    }

    pub(super) fn take_said(
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
        let words = meaning.role_word == "user" && !meaning.text.is_empty();
        self.say(Said { entry_id, stands, calls: first..self.calls.len(), words }, mark);
        Ok(())
    }

    pub(super) fn say(&mut self, said: Said, mark: &Mark) {
        self.facts.push(Fact { mark: mark.clone(), what: What::Said(said) });
    }

    /// A model's message needs every call answered, and after a cancellation no calls that could run.
    pub(crate) fn check_model_message(&self, meaning: &Meaning) -> Checked {
        if let Some(open) = self.open_calls().next().filter(|_| self.gap == Gap::None) {
            return Err(format!("call {} has no answer yet", open.r#ref));
        }
        let runnable = !meaning.calls.is_empty() && !meaning.ending.is_cut_off();
        ensure(self.cancelled.is_none() || !runnable, || "the turn was cancelled".into())
    }

    pub(super) fn ask(
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
        // A recovery behind lost records journals what the agent's file has: it may have been journaled, and its calls
        // claimed, in what is lost.
        let found_again = self.lost_records && self.current().is_some_and(Attempt::unfinished);
        let mut calls = Vec::with_capacity(intents.len());
        for (position, (asked, intent)) in meaning.calls.iter().zip(intents).enumerate() {
            let r#ref = CallRef { seq: mark.seq, position: position as u64 };
            ensure(intent.r#ref == r#ref, || format!("call {} should be named {ref}", intent.r#ref))?;
            // Only an id that does not tell its call apart may have been replaced.
            let given = asked.id.as_deref().filter(|id| !id.is_empty());
            let unique =
                given.is_some() && meaning.calls.iter().filter(|other| other.id == asked.id).count() == 1;
            ensure(!unique || intent.id == asked.id, || format!("call {ref} has another id in its message"))?;
            ensure(intent.tool == asked.tool, || format!("call {ref} is of tool {:?}", asked.tool))?;
            ensure(intent.args_sha256.as_str() == asked.args.sha256(), || {
                format!("args_sha256 of call {ref} is not the digest of its arguments")
            })?;
            ensure(intent.key == call_key(genesis, &self.id, r#ref), || format!("key of call {ref}"))?;
            let mut call = new_call(r#ref, intent, asked.args.clone(), source, entry_id);
            call.lost = found_again;
            calls.push(call);
        }
        self.calls.extend(calls);
        Ok(())
    }

    pub(super) fn user_message(&self, entry_id: Option<&str>, meaning: &Meaning) -> Stands {
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

    pub(super) fn take_results(&mut self, meaning: &Meaning, mark: &Mark) -> Result<Vec<usize>, String> {
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
    pub(super) fn call_told_apart(&self, id: &str, taken: &[usize]) -> Option<usize> {
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
}

pub(super) fn new_call(
    r#ref: CallRef,
    intent: &CallIntent,
    args: Raw,
    source: Source,
    entry_id: Option<&str>,
) -> Call {
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
        parent_run: 0,
        declared_first: r#ref,
        runs: 0,
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
