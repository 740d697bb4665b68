//! From the facts of a turn to the parts of its branch: what comes first, what stands for what, what is left out.

use super::script::{Form, How, Part, Role, Script, Shape};
use super::{Extent, last_branch};
use crate::draft::History;
use crate::json::Raw;
use crate::message::{self, Ending, Format};
use crate::record::{At, Kind, Outcome, ReconciledOutcome, Record};
use crate::turn::{Call, Fact, Mark, Said, Stands, Turn, What};
use std::collections::{HashMap, HashSet};

pub(super) struct Composer<'a> {
    pub(super) turn: &'a Turn,
    pub(super) history: &'a History,
    pub(super) parts: Vec<Part>,
    pub(super) left_out: HashSet<String>,
    /// Messages that joined and that the agent did not repeat, by the seq of the fact they stand behind.
    pub(super) anchored: HashMap<u64, Vec<usize>>,
    /// A call is unanswered: nothing but results may follow.
    pub(super) waiting: bool,
}

pub(super) fn anchored(turn: &Turn) -> HashMap<u64, Vec<usize>> {
    let repeated: HashSet<usize> = turn
        .facts
        .iter()
        .filter_map(|fact| match &fact.what {
            What::Said(Said { stands: Stands::Steered(index), .. }) => Some(*index),
            _ => None,
        })
        .collect();
    let mut anchored: HashMap<u64, Vec<usize>> = HashMap::new();
    for (index, steered) in turn.steered.iter().enumerate().filter(|(index, _)| !repeated.contains(index)) {
        if let Some(anchor) = turn.anchor_of(steered) {
            anchored.entry(anchor).or_default().push(index);
        }
    }
    anchored
}

impl Composer<'_> {
    pub(super) fn compose(mut self, horizon: &Horizon) -> Script {
        let turn = self.turn;
        if horizon.is_empty() {
            return Script { parts: self.parts, left_out: self.left_out };
        }
        let first_model = turn.facts.iter().find(|fact| is_model(fact)).map(|fact| fact.mark.seq);
        let leads = |fact: &Fact| {
            matches!(&fact.what, What::Said(said) if said.stands == Stands::System)
                && first_model.is_none_or(|model| fact.mark.seq < model)
        };
        for fact in turn.facts.iter().filter(|fact| leads(fact)) {
            self.copy(fact, Role::Other);
        }
        let has_input = turn
            .facts
            .iter()
            .any(|fact| matches!(&fact.what, What::Said(said) if said.stands == Stands::Input));
        if !has_input {
            let forms = self.input_form().into_iter().collect();
            self.push(forms, Vec::new(), Role::Input, Shape::User(self.input_text()));
        }
        for fact in &turn.facts {
            if !leads(fact) && horizon.holds(fact) {
                self.fact(fact, horizon);
            }
            self.steered_behind(fact, horizon);
        }
        Script { parts: self.parts, left_out: self.left_out }
    }

    pub(super) fn fact(&mut self, fact: &Fact, horizon: &Horizon) {
        let What::Said(said) = &fact.what else { return };
        match &said.stands {
            Stands::Header => {}
            Stands::Model(Ending::Failed(_)) => self.leave_out(said),
            Stands::Model(_) => self.model(fact, said, horizon),
            // Results follow their message, wherever the agent put them.
            Stands::Results(_) => self.words_beside(fact),
            Stands::Input => {
                let forms = self.said_forms(fact, self.input_form());
                self.push_said(forms, said, Role::Input, Shape::User(self.input_text()));
            }
            Stands::Steered(index) => {
                let steered = self.turn.steered.get(*index);
                let own = steered.map(|steered| self.user_form(&steered.mark, &steered.input));
                let text = steered.map(|steered| message::text_of(&steered.input)).unwrap_or_default();
                let forms = self.said_forms(fact, own);
                self.push_said(forms, said, Role::Other, Shape::User(text));
            }
            Stands::System | Stands::User | Stands::Other => self.copy(fact, Role::Other),
        }
    }

    /// A model's message and, directly behind it, each known result in the order of its calls.
    pub(super) fn model(&mut self, fact: &Fact, said: &Said, horizon: &Horizon) {
        if self.waiting {
            return;
        }
        let asked = self.parts.len();
        self.copy(fact, Role::Model);
        let role = if self.parts.len() > asked { Role::ResultOf(asked) } else { Role::Other };
        let calls = self.turn.calls.get(said.calls.clone()).unwrap_or_default();
        for call in calls {
            if !horizon.holds_answer(call) {
                self.waiting |= call.answer.is_none();
                continue;
            }
            let forms = self.result_forms(call);
            if forms.is_empty() {
                self.waiting = true;
                continue;
            }
            let agent_ids = call.told.iter().filter_map(|mark| self.entry_id(mark)).collect();
            // Only a result may stand behind an unanswered call.
            self.parts.push(Part {
                forms,
                agent_ids,
                role,
                shape: Shape::Result(call.id.clone().unwrap_or_default()),
                answered: call.answer.as_ref().map(|answer| answer.mark.seq),
                told_by_message: call.told.as_ref().is_some_and(|mark| self.entry_id(mark).is_none()),
            });
        }
    }

    /// A user's words in the same message as results.
    pub(super) fn words_beside(&mut self, fact: &Fact) {
        let Some(Kind::Message(message)) = self.record(&fact.mark).map(|record| &record.kind) else { return };
        let meaning = message
            .format
            .parse()
            .ok()
            .and_then(|format: Format| message::meaning(format, &message.message).ok());
        let Some(words) = meaning.filter(|meaning| meaning.role_word == "user" && !meaning.text.is_empty())
        else {
            return;
        };
        let body = message::pi_user(&Raw::text(&words.text), milliseconds_of(&fact.mark.at));
        let form = Form::apart(self.turn, &fact.mark, "entry.words", How::Message(body));
        self.push(vec![form], Vec::new(), Role::Other, Shape::User(words.text));
    }

    /// Messages that joined the turn and whose place is directly behind this fact.
    pub(super) fn steered_behind(&mut self, fact: &Fact, horizon: &Horizon) {
        let turn = self.turn;
        if !horizon.reaches(fact.mark.seq) {
            return;
        }
        for index in self.anchored.remove(&fact.mark.seq).unwrap_or_default() {
            let Some(steered) = turn.steered.get(index) else { continue };
            let forms = vec![self.user_form(&steered.mark, &steered.input)];
            self.push(forms, Vec::new(), Role::Other, Shape::User(message::text_of(&steered.input)));
        }
    }

    pub(super) fn leave_out(&mut self, said: &Said) {
        self.left_out.extend(said.entry_id.clone());
        let calls = self.turn.calls.get(said.calls.clone()).unwrap_or_default();
        let told: Vec<String> = calls
            .iter()
            .filter_map(|call| call.told.as_ref())
            .filter_map(|mark| self.entry_id(mark))
            .collect();
        self.left_out.extend(told);
    }

    pub(super) fn copy(&mut self, fact: &Fact, role: Role) {
        let What::Said(said) = &fact.what else { return };
        let forms = self.said_forms(fact, None);
        let shape = match self.record(&fact.mark).map(|record| &record.kind) {
            Some(Kind::Message(message)) => {
                self.as_pi(message, said, &fact.mark).map_or(Shape::Entry, Shape::Message)
            }
            _ => Shape::Entry,
        };
        self.push_said(forms, said, role, shape);
    }

    pub(super) fn push_said(&mut self, forms: Vec<Form>, said: &Said, role: Role, shape: Shape) {
        self.push(forms, said.entry_id.iter().cloned().collect(), role, shape);
    }

    pub(super) fn push(&mut self, forms: Vec<Form>, agent_ids: Vec<String>, role: Role, shape: Shape) {
        if !self.waiting && !forms.is_empty() {
            self.parts.push(Part { forms, agent_ids, role, shape, answered: None, told_by_message: false });
        }
    }

    /// The form of a message or entry, then the one of the record that it repeats.
    pub(super) fn said_forms(&self, fact: &Fact, repeated: Option<Form>) -> Vec<Form> {
        let What::Said(said) = &fact.what else { return Vec::new() };
        let how = match self.record(&fact.mark).map(|record| &record.kind) {
            Some(Kind::Entry(entry)) => Some(How::Copy(entry.entry.clone())),
            Some(Kind::Message(message)) => self.as_pi(message, said, &fact.mark).map(How::Message),
            _ => None,
        };
        how.map(|how| Form::new(self.turn, &fact.mark, how)).into_iter().chain(repeated).collect()
    }

    /// The agent's own tool-result message first, then the recorded answer.
    pub(super) fn result_forms(&self, call: &Call) -> Vec<Form> {
        let told = call.told.as_ref().and_then(|mark| match &self.record(mark)?.kind {
            Kind::Entry(entry) => Some(Form::new(self.turn, mark, How::Copy(entry.entry.clone()))),
            Kind::Message(message) => self.told_in_message(message, call, mark),
            _ => None,
        });
        let answered = call.answer.as_ref().and_then(|answer| {
            let message = answer_message(call, self.record(&answer.mark)?)?;
            Some(Form::new(self.turn, &answer.mark, How::Message(message)))
        });
        let same = |first: &Form, second: &Form| first.id == second.id;
        match (told, answered) {
            (Some(told), Some(answered)) if same(&told, &answered) => vec![told],
            (told, answered) => told.into_iter().chain(answered).collect(),
        }
    }

    /// A message may hold several results; the first has the id of its record, as a message of one has.
    pub(super) fn told_in_message(
        &self,
        message: &crate::record::Message,
        call: &Call,
        mark: &Mark,
    ) -> Option<Form> {
        let format: Format = message.format.parse().ok()?;
        let meaning = message::meaning(format, &message.message).ok()?;
        let told = self.turn.facts.iter().find(|fact| fact.mark.seq == mark.seq && is_said(fact));
        let position = match &told?.what {
            What::Said(Said { stands: Stands::Results(told), .. }) => told
                .iter()
                .position(|index| self.turn.calls.get(*index).is_some_and(|c| c.r#ref == call.r#ref)),
            _ => None,
        }?;
        let answer = meaning.answers.into_iter().nth(position)?;
        let id = call.id.as_deref().unwrap_or_default();
        let how = message::pi_result(id, &call.tool, &answer.raw, answer.error, milliseconds_of(&mark.at));
        let suffix = if position == 0 { "entry".to_owned() } else { format!("entry.{position}") };
        Some(Form::apart(self.turn, mark, &suffix, How::Message(how)))
    }

    pub(super) fn as_pi(&self, message: &crate::record::Message, said: &Said, mark: &Mark) -> Option<Raw> {
        let format: Format = message.format.parse().ok()?;
        let meaning = message::meaning(format, &message.message).ok()?.with_role(&message.role);
        let calls = self.turn.calls.get(said.calls.clone()).unwrap_or_default();
        let ids: Vec<Option<String>> = calls.iter().map(|call| call.id.clone()).collect();
        Some(message::pi_message(&meaning, &message.message, &ids, milliseconds_of(&mark.at)))
    }

    pub(super) fn input_form(&self) -> Option<Form> {
        match &self.record(&self.turn.admitted)?.kind {
            Kind::Admitted(admitted) => Some(self.user_form(&self.turn.admitted, &admitted.input)),
            _ => None,
        }
    }

    pub(super) fn input_text(&self) -> String {
        match self.record(&self.turn.admitted).map(|record| &record.kind) {
            Some(Kind::Admitted(admitted)) => message::text_of(&admitted.input),
            _ => String::new(),
        }
    }

    pub(super) fn user_form(&self, mark: &Mark, input: &Raw) -> Form {
        Form::new(self.turn, mark, How::Message(message::pi_user(input, milliseconds_of(&mark.at))))
    }

    pub(super) fn record(&self, mark: &Mark) -> Option<&Record> {
        self.history.get(mark.seq)
    }

    pub(super) fn entry_id(&self, mark: &Mark) -> Option<String> {
        match &self.record(mark)?.kind {
            Kind::Entry(entry) => entry.entry.view().object()?.string("id"),
            _ => None,
        }
    }
}

/// Up to where the turn is ours to write.
pub(super) struct Horizon {
    /// Facts up to this seq; `None` is all.
    pub(super) facts: Option<u64>,
    /// Answers of calls asked for up to this seq, and what was said up to it; `None` is all.
    pub(super) calls: Option<u64>,
}

impl Horizon {
    pub(super) fn of(turn: &Turn, extent: Extent) -> Self {
        match extent {
            Extent::Recover | Extent::Steps => Self { facts: None, calls: None },
            Extent::Late => {
                let Some(recovered) = last_branch(turn) else {
                    return Self { facts: Some(0), calls: Some(0) };
                };
                // What waited behind calls that were open at the recover follows the last answer.
                let open = turn.calls.iter().filter(|call| {
                    call.r#ref.seq < recovered
                        && call.answer.as_ref().is_none_or(|answer| answer.mark.seq > recovered)
                });
                let last =
                    open.map(|call| call.answer.as_ref().map_or(recovered, |answer| answer.mark.seq)).max();
                Self { facts: Some(last.unwrap_or(recovered)), calls: Some(recovered) }
            }
        }
    }

    /// No branch of ours was ever begun.
    pub(super) fn is_empty(&self) -> bool {
        self.calls == Some(0)
    }

    /// What is said behind the recover is the agent's to write.
    pub(super) fn holds(&self, fact: &Fact) -> bool {
        let said_behind = is_said(fact) && self.calls.is_some_and(|recovered| fact.mark.seq > recovered);
        self.reaches(fact.mark.seq) && !said_behind
    }

    pub(super) fn reaches(&self, seq: u64) -> bool {
        self.facts.is_none_or(|facts| seq <= facts)
    }

    pub(super) fn holds_answer(&self, call: &Call) -> bool {
        self.calls.is_none_or(|calls| call.r#ref.seq <= calls)
    }
}

/// The Pi tool-result message that a recorded answer becomes.
pub(super) fn answer_message(call: &Call, record: &Record) -> Option<Raw> {
    let id = call.id.as_deref().unwrap_or_default();
    let timestamp = milliseconds_of(&record.at);
    let pi = |content: &Raw, error: bool| message::pi_result(id, &call.tool, content, error, timestamp);
    let message = match &record.kind {
        Kind::Outcome(result) => pi(&content_of(result), result.error),
        Kind::Interrupted(interrupted) => pi(&Raw::text(&interrupted.explanation), true),
        Kind::NotRun(not_run) => pi(&Raw::text(&not_run.explanation), true),
        Kind::Reconciled(reconciled) => match &reconciled.content {
            Some(content) => pi(content, reconciled.outcome == ReconciledOutcome::Unknown),
            None => pi(&Raw::text(&unknown_text(call, &reconciled.by)), true),
        },
        _ => return None,
    };
    Some(message)
}

/// What is told of a call about which a person could find out nothing.
pub(crate) fn unknown_text(call: &Call, by: &str) -> String {
    format!(
        "The outcome of this {} call is unknown, and {by} could not find out either: it may have happened. \
         Repeating it is not advised.",
        call.tool
    )
}

/// What a result says to the model: its content, or the output of a `step run`.
pub fn content_of(result: &Outcome) -> Raw {
    if let Some(content) = &result.content {
        return content.clone();
    }
    let mut text = result.stdout.clone().unwrap_or_default();
    text.push_str(result.stderr.as_deref().unwrap_or_default());
    let ended = match (&result.signal, result.exit) {
        (Some(signal), _) => Some(format!("ended by {signal}")),
        (None, Some(0) | None) => None,
        (None, Some(exit)) => Some(format!("exit status {exit}")),
    };
    if let Some(ended) = ended {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.extend(["[", &ended, "]"]);
    }
    Raw::text(&text)
}

pub(super) fn is_model(fact: &Fact) -> bool {
    matches!(&fact.what, What::Said(said) if matches!(said.stands, Stands::Model(_)))
}

pub(super) fn is_said(fact: &Fact) -> bool {
    matches!(fact.what, What::Said(_))
}

/// The spelling of times on the tree: `2026-11-29T15:26:34.123Z`.
pub(super) fn milliseconds(at: &At) -> String {
    let spelled = at.as_str();
    format!("{}Z", spelled.get(..23).unwrap_or(spelled))
}

pub(super) fn milliseconds_of(at: &At) -> i64 {
    at.micros().div_euclid(1_000)
}
