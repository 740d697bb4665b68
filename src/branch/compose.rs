//! From the facts of a turn to the parts of its branch: what comes first, what stands for what, what is left out.

use super::body::{self, Body, Source};
use super::script::{Form, How, Part, Role, Script, Shape};
use super::{Extent, last_branch};
use crate::draft::History;
use crate::json::Raw;
use crate::message::Ending;
use crate::record::{At, Kind, Message, Outcome, Record};
use crate::turn::{Call, Fact, Mark, Said, Stands, Turn, What};
use std::collections::{HashMap, HashSet};

pub(super) struct Composer<'a> {
    pub(super) turn: &'a Turn,
    pub(super) history: &'a History,
    pub(super) parts: Vec<Part<'a>>,
    pub(super) left_out: HashSet<String>,
    /// Messages that joined and that the agent did not repeat, by the seq of the fact they stand behind.
    pub(super) anchored: HashMap<u64, Vec<usize>>,
    /// What is said, by the seq of its record.
    pub(super) said: HashMap<u64, &'a Said>,
    /// A call is unanswered: nothing but results may follow.
    pub(super) waiting: bool,
}

pub(super) fn said(turn: &Turn) -> HashMap<u64, &Said> {
    let facts = turn.facts.iter().filter_map(|fact| match &fact.what {
        What::Said(said) => Some((fact.mark.seq, said)),
        What::Attempt | What::Steered(_) | What::Answer(_) => None,
    });
    facts.collect()
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

impl<'a> Composer<'a> {
    pub(super) fn compose(mut self, horizon: &Horizon) -> Script<'a> {
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
            self.push(forms, Vec::new(), Role::Input, self.input_shape());
        }
        for fact in &turn.facts {
            if !leads(fact) && horizon.holds(fact) {
                self.fact(fact, horizon);
            }
            self.steered_behind(fact, horizon);
        }
        Script { parts: self.parts, left_out: self.left_out }
    }

    pub(super) fn fact(&mut self, fact: &'a Fact, horizon: &Horizon) {
        let What::Said(said) = &fact.what else { return };
        match &said.stands {
            Stands::Model(Ending::Failed(_)) => self.leave_out(said),
            Stands::Model(_) => self.model(fact, said, horizon),
            // Results follow their message, wherever the agent put them.
            Stands::Results(_) if said.words => self.words_beside(fact),
            Stands::Header | Stands::Results(_) => {}
            Stands::Input => {
                let forms = self.said_forms(fact, self.input_form());
                self.push_said(forms, said, Role::Input, self.input_shape());
            }
            Stands::Steered(index) => {
                let steered = self.turn.steered.get(*index);
                let own = steered.map(|steered| self.user_form(&steered.mark, &steered.input));
                let input = steered.map_or_else(|| Raw::text(""), |steered| steered.input.clone());
                let forms = self.said_forms(fact, own);
                self.push_said(forms, said, Role::Other, Shape::User(input));
            }
            Stands::System | Stands::User | Stands::Other => self.copy(fact, Role::Other),
        }
    }

    /// A model's message and, directly behind it, each known result in the order of its calls.
    pub(super) fn model(&mut self, fact: &'a Fact, said: &'a Said, horizon: &Horizon) {
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
    pub(super) fn words_beside(&mut self, fact: &'a Fact) {
        let Some(Kind::Message(message)) = self.record(&fact.mark).map(|record| &record.kind) else { return };
        let Some(meaning) = body::meaning(message) else { return };
        let words = Raw::text(&meaning.text);
        let how = how(Source::Words(words.clone()), &fact.mark);
        let form = Form::apart(self.turn, &fact.mark, "entry.words", how);
        self.push(vec![form], Vec::new(), Role::Other, Shape::User(words));
    }

    /// Messages that joined the turn and whose place is directly behind this fact.
    pub(super) fn steered_behind(&mut self, fact: &'a Fact, horizon: &Horizon) {
        let turn = self.turn;
        if !horizon.reaches(fact.mark.seq) {
            return;
        }
        for index in self.anchored.remove(&fact.mark.seq).unwrap_or_default() {
            let Some(steered) = turn.steered.get(index) else { continue };
            let forms = vec![self.user_form(&steered.mark, &steered.input)];
            self.push(forms, Vec::new(), Role::Other, Shape::User(steered.input.clone()));
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

    pub(super) fn copy(&mut self, fact: &'a Fact, role: Role) {
        let What::Said(said) = &fact.what else { return };
        let forms = self.said_forms(fact, None);
        let shape = match self.record(&fact.mark).map(|record| &record.kind) {
            Some(Kind::Message(message)) => Shape::message(self.as_pi(message, said, &fact.mark)),
            _ => Shape::Entry,
        };
        self.push_said(forms, said, role, shape);
    }

    pub(super) fn push_said(&mut self, forms: Vec<Form<'a>>, said: &Said, role: Role, shape: Shape<'a>) {
        self.push(forms, said.entry_id.iter().cloned().collect(), role, shape);
    }

    pub(super) fn push(
        &mut self,
        forms: Vec<Form<'a>>,
        agent_ids: Vec<String>,
        role: Role,
        shape: Shape<'a>,
    ) {
        if !self.waiting && !forms.is_empty() {
            self.parts.push(Part { forms, agent_ids, role, shape, answered: None, told_by_message: false });
        }
    }

    /// The form of a message or entry, then the one of the record that it repeats.
    pub(super) fn said_forms(&self, fact: &'a Fact, repeated: Option<Form<'a>>) -> Vec<Form<'a>> {
        let What::Said(said) = &fact.what else { return Vec::new() };
        let how = match self.record(&fact.mark).map(|record| &record.kind) {
            Some(Kind::Entry(entry)) => Some(How::Copy(&entry.entry)),
            Some(Kind::Message(message)) => Some(How::Message(self.as_pi(message, said, &fact.mark))),
            _ => None,
        };
        how.map(|how| Form::new(self.turn, &fact.mark, how)).into_iter().chain(repeated).collect()
    }

    /// The agent's own tool-result message first, then the recorded answer.
    pub(super) fn result_forms(&self, call: &'a Call) -> Vec<Form<'a>> {
        let told = call.told.as_ref().and_then(|mark| match &self.record(mark)?.kind {
            Kind::Entry(entry) => Some(Form::new(self.turn, mark, How::Copy(&entry.entry))),
            Kind::Message(message) => self.told_in_message(message, call, mark),
            _ => None,
        });
        let answered = call.answer.as_ref().and_then(|answer| {
            let kind =
                self.record(&answer.mark).map(|record| &record.kind).filter(|kind| body::is_answer(kind))?;
            Some(Form::new(self.turn, &answer.mark, how(Source::Answer { kind, call }, &answer.mark)))
        });
        let same = |first: &Form<'_>, second: &Form<'_>| first.id == second.id;
        match (told, answered) {
            (Some(told), Some(answered)) if same(&told, &answered) => vec![told],
            (told, answered) => told.into_iter().chain(answered).collect(),
        }
    }

    /// A message may hold several results; the first has the id of its record, as a message of one has.
    pub(super) fn told_in_message(
        &self,
        message: &'a Message,
        call: &'a Call,
        mark: &Mark,
    ) -> Option<Form<'a>> {
        // One for each result of the message, in its order.
        let position = match &self.said.get(&mark.seq)?.stands {
            Stands::Results(told) => told
                .iter()
                .position(|index| self.turn.calls.get(*index).is_some_and(|c| c.r#ref == call.r#ref)),
            _ => None,
        }?;
        let suffix = if position == 0 { "entry".to_owned() } else { format!("entry.{position}") };
        let how = how(Source::Told { message, position, call }, mark);
        Some(Form::apart(self.turn, mark, &suffix, how))
    }

    pub(super) fn as_pi(&self, message: &'a Message, said: &Said, mark: &Mark) -> Body<'a> {
        let calls = self.turn.calls.get(said.calls.clone()).unwrap_or_default();
        Body::new(Source::Said { message, calls }, milliseconds_of(&mark.at))
    }

    pub(super) fn input_form(&self) -> Option<Form<'a>> {
        match &self.record(&self.turn.admitted)?.kind {
            Kind::Admitted(admitted) => Some(self.user_form(&self.turn.admitted, &admitted.input)),
            _ => None,
        }
    }

    pub(super) fn input_shape(&self) -> Shape<'a> {
        match self.record(&self.turn.admitted).map(|record| &record.kind) {
            Some(Kind::Admitted(admitted)) => Shape::User(admitted.input.clone()),
            _ => Shape::User(Raw::text("")),
        }
    }

    pub(super) fn user_form(&self, mark: &Mark, input: &Raw) -> Form<'a> {
        Form::new(self.turn, mark, how(Source::Words(input.clone()), mark))
    }

    pub(super) fn record(&self, mark: &Mark) -> Option<&'a Record> {
        self.history.get(mark.seq)
    }

    pub(super) fn entry_id(&self, mark: &Mark) -> Option<String> {
        match &self.record(mark)?.kind {
            Kind::Entry(_) => self.said.get(&mark.seq)?.entry_id.clone(),
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

/// As a message of ours, from the time of its record.
fn how<'a>(source: Source<'a>, mark: &Mark) -> How<'a> {
    How::Message(Body::new(source, milliseconds_of(&mark.at)))
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
