//! The branch of a turn on its session tree: what it has to hold, what is there, and what is to be written.
//!
//! Pure. Ids come from the records that entries stand for, so whatever was written before is found again, and a
//! plan made twice writes nothing twice. A line that is there keeps its place. The abandoned branch stays.

use crate::draft::History;
use crate::json::Raw;
use crate::message::{self, Ending, Format};
use crate::record::{At, Kind, Outcome, ReconciledOutcome, Record, TreeMode};
use crate::tree::{self, Tree};
use crate::turn::{Call, Fact, Mark, Said, Stands, Turn, What};
use std::collections::{HashMap, HashSet};

/// How much of the turn is ours to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Everything committed, and a marker at the end: what `recover` does.
    Recover,
    /// Everything committed: each step in `append` mode.
    Steps,
    /// What the last recovery committed, and answers of calls that were open then: `branch` mode otherwise.
    Late,
}

/// What is to be done to a session file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The entry that the branch hangs on; `None` is the root.
    pub from: Option<String>,
    /// Lines to append, in order.
    pub write: Vec<Raw>,
    /// The last entry of the branch once they are there; `None` for a branch without entries.
    pub leaf: Option<String>,
    /// How many entries the branch then has.
    pub entries: u64,
    /// The newest record that it then carries.
    pub head: Option<Mark>,
}

/// Why a branch cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// An id of ours stands for something else.
    #[error("line {line}: entry {id} has an id of this journal and other content")]
    Content {
        /// Its line.
        line: usize,
        /// Its id.
        id: String,
    },
    /// A marker of this turn names a record that the journal lacks.
    #[error("line {line}: marker {id} carries record {head}, which the journal lacks")]
    Marker {
        /// Its line.
        line: usize,
        /// Its id.
        id: String,
        /// The record it names.
        head: String,
    },
}

/// Plans the branch of a turn, where its newest recovery put it.
pub fn plan(
    session: &str,
    turn: &Turn,
    history: &History,
    tree: &Tree,
    extent: Extent,
) -> Result<Plan, Trouble> {
    let tip = recovered_onto(turn, history);
    plan_onto(session, turn, history, tree, extent, tip.as_deref())
}

/// Plans the branch of a turn behind what the agent wrote of it itself, up to the entry `tip`; without a tip from
/// the admission leaf on.
pub fn plan_onto(
    session: &str,
    turn: &Turn,
    history: &History,
    tree: &Tree,
    extent: Extent,
    tip: Option<&str>,
) -> Result<Plan, Trouble> {
    let script = Script::of(turn, history, extent);
    let admitted = turn.tree.as_ref().and_then(|tree| tree.leaf.clone());
    let from = tip.map(str::to_owned).or(admitted);
    let live = tip.map_or_else(HashSet::new, |tip| standing_above(turn, tree, &script, tip));
    let found = Found::on(session, turn, history, tree, &script, extent)?.with_live(live);
    let mut plan = Plan {
        from: from.clone(),
        write: Vec::new(),
        leaf: found.tail.clone(),
        entries: found.count,
        head: found.head.clone(),
    };
    let mut parent = found.tail.clone().or(from);
    let mut ids = script.ids(&found);
    for part in script.missing(&found, extent) {
        let Some(form) = part.forms.first() else { continue };
        let Some(entry) = form.build(parent.as_deref(), &|id| ids.map(id)) else {
            // It points at an entry that is left out, so it is left out too.
            ids.leave_out(part);
            continue;
        };
        plan.write.push(entry);
        plan.entries += 1;
        parent = Some(form.id.clone());
        plan.leaf.clone_from(&parent);
        plan.head = Some(newest(plan.head.take(), &form.mark));
    }
    if extent == Extent::Recover {
        end_with_marker(&mut plan, session, turn, tree);
    }
    Ok(plan)
}

/// The end of the live branch, if the file holds exactly the beginning of the committed turn below the admission
/// leaf, in the agent's own entries and without anything else: then only what is missing needs to be written there.
pub fn live_tip(turn: &Turn, history: &History, tree: &Tree) -> Option<String> {
    let script = Script::of(turn, history, Extent::Steps);
    let later = behind_admission(turn, tree);
    let leaf = turn.tree.as_ref().and_then(|tree| tree.leaf.as_deref());
    let mut tip = leaf.map(|leaf| tree.find(leaf)).unwrap_or_default();
    let mut parts = script.parts.iter();
    for index in &later {
        let continues = tree.parent(*index) == tip;
        let part = parts.next().filter(|part| continues && part.stands_at(tree, *index))?;
        // A line of ours begins a branch of ours, which is gone on with.
        let entry = tree.entries.get(*index)?;
        if part.forms.iter().any(|form| form.id == *entry.id) {
            return None;
        }
        tip = Some(*index);
    }
    later.last().and_then(|last| tree.entries.get(*last)).map(|entry| entry.id.to_string())
}

/// The entry that the newest recovery with a branch went on from, where that is not the admission leaf.
fn recovered_onto(turn: &Turn, history: &History) -> Option<String> {
    let recovered = match &history.get(last_branch(turn)?)?.kind {
        Kind::Recovered(recovered) => recovered.branch.as_ref()?,
        _ => return None,
    };
    let admitted = turn.tree.as_ref().and_then(|tree| tree.leaf.as_ref());
    recovered.from.clone().filter(|from| Some(from) != admitted)
}

/// The parts that stand, in the agent's own entries, from admission up to `tip`; by the id of their first form.
fn standing_above(turn: &Turn, tree: &Tree, script: &Script, tip: &str) -> HashSet<String> {
    let since = turn.tree.as_ref().map_or(0, |tree| tree.bytes);
    let path = tree.find(tip).map(|tip| tree.path(tip).entries).unwrap_or_default();
    let mut later =
        path.into_iter().filter(|index| tree.entries.get(*index).is_some_and(|e| e.offset >= since));
    let mut standing = HashSet::new();
    let mut parts = script.parts.iter();
    while let (Some(index), Some(part)) = (later.next(), parts.next()) {
        if part.stands_at(tree, index) {
            standing.extend(part.forms.first().map(|form| form.id.clone()));
        }
    }
    standing
}

/// Whether the file holds everything that the turn committed, in whatever form.
///
/// Asked for a settled turn that the agent wrote itself.
pub fn lacks_nothing(turn: &Turn, history: &History, tree: &Tree) -> bool {
    let script = Script::of(turn, history, Extent::Steps);
    let later = behind_admission(turn, tree);
    script.parts.iter().all(|part| {
        part.ids().any(|id| tree.find(id).is_some())
            || later.iter().any(|index| part.says_the_same(tree, *index))
    })
}

/// Entries behind admission that the agent wrote itself and that say what the journal holds as a message.
///
/// An agent may journal what it says and keep its file by itself: then nothing in the file is new. Results that no
/// message told are not among them, since the agent's own form of a result is worth journaling.
pub fn echoes(turn: &Turn, history: &History, tree: &Tree) -> HashSet<usize> {
    let script = Script::of(turn, history, Extent::Steps);
    let known: HashSet<&str> = script.parts.iter().flat_map(Part::ids).collect();
    let mut unknown = behind_admission(turn, tree);
    unknown.retain(|index| tree.entries.get(*index).is_some_and(|entry| !known.contains(&*entry.id)));
    let mut echoes = HashSet::new();
    for part in script.parts.iter().filter(|part| part.agent_ids.is_empty() && part.may_echo(turn)) {
        let found =
            unknown.iter().find(|index| !echoes.contains(*index) && part.says_the_same(tree, **index));
        echoes.extend(found.copied());
    }
    echoes
}

fn behind_admission(turn: &Turn, tree: &Tree) -> Vec<usize> {
    let since = turn.tree.as_ref().map_or(0, |tree| tree.bytes);
    let later = |index: &usize| tree.entries.get(*index).is_some_and(|entry| entry.offset >= since);
    (0..tree.entries.len()).filter(later).collect()
}

/// The ids of ours on a file: entries of the branch and markers.
pub fn ours(session: &str, turn: &Turn, history: &History, tree: &Tree) -> HashSet<String> {
    let script = Script::of(turn, history, Extent::Steps);
    let forms = script.parts.iter().flat_map(|part| &part.forms);
    let mut ids: HashSet<String> =
        forms.map(|form| form.id.clone()).filter(|id| tree.find(id).is_some()).collect();
    ids.extend(
        markers(session, turn, tree)
            .filter_map(|(index, _)| tree.entries.get(index))
            .map(|entry| entry.id.to_string()),
    );
    ids
}

/// One entry that the branch has to hold, and the record whose form it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The entry, under our id and without a parent.
    pub(crate) entry: Raw,
    /// Seq of the record.
    pub(crate) seq: u64,
}

/// What the branch of a turn holds of its conversation, whatever is on the file already.
pub(crate) fn pieces(turn: &Turn, history: &History) -> Vec<Piece> {
    let script = Script::of(turn, history, Extent::Steps);
    let mut ids = script.ids(&Found::default());
    let mut pieces = Vec::new();
    for part in &script.parts {
        let Some(form) = part.forms.first() else { continue };
        match form.build(None, &|id| ids.map(id)) {
            Some(entry) => pieces.push(Piece { entry, seq: form.mark.seq }),
            // It points at an entry that is left out, so it is left out too.
            None => ids.leave_out(part),
        }
    }
    pieces
}

/// A recovered branch: does the last line of the file continue it?
pub fn last_line_continues(plan: &Plan, tree: &Tree) -> bool {
    let Some(last) = tree.last_entry() else { return true };
    let Some(leaf) = plan.leaf.as_deref().or(plan.from.as_deref()).and_then(|id| tree.find(id)) else {
        return true;
    };
    tree.path(last).entries.contains(&leaf)
}

/// One fact, with the forms in which it may stand on the tree; the first is the one to write.
struct Part {
    forms: Vec<Form>,
    /// The agent's own ids of it.
    agent_ids: Vec<String>,
    shape: Shape,
    /// For a result, the record that answered its call first.
    answered: Option<u64>,
    /// A result that a message told.
    told_by_message: bool,
}

/// What a part looks like to somebody who wrote it without us.
enum Shape {
    User(String),
    Message(Raw),
    Result(String),
    Entry,
}

struct Form {
    mark: Mark,
    id: String,
    how: How,
}

enum How {
    /// The agent's own entry under our id.
    Copy(Raw),
    /// A message of ours.
    Message(Raw),
}

impl Form {
    fn new(turn: &Turn, mark: &Mark, how: How) -> Self {
        Self::apart(turn, mark, "entry", how)
    }

    /// A record that stands as several entries needs an id for each.
    fn apart(turn: &Turn, mark: &Mark, suffix: &str, how: How) -> Self {
        let id = tree::entry_id(turn.id.as_str(), mark.hash.as_str(), suffix);
        Self { mark: mark.clone(), id, how }
    }

    fn build(&self, parent: Option<&str>, map: &dyn Fn(&str) -> Option<String>) -> Option<Raw> {
        match &self.how {
            How::Copy(entry) => tree::entry_with(entry.get(), &self.id, parent, map),
            How::Message(message) => {
                Some(tree::message_entry(&self.id, parent, &milliseconds(&self.mark.at), message))
            }
        }
    }
}

impl Part {
    /// The ids under which it may stand on the tree.
    fn ids(&self) -> impl Iterator<Item = &str> {
        self.forms.iter().map(|form| form.id.as_str()).chain(self.agent_ids.iter().map(String::as_str))
    }

    /// Whether an entry of the agent's that says the same would be its second record.
    fn may_echo(&self, turn: &Turn) -> bool {
        match &self.shape {
            Shape::Message(_) => true,
            // Before the model speaks, a user's entry is journaled and becomes the form of the input.
            Shape::User(_) => turn.settled.is_some() || turn.has_model_message(),
            Shape::Result(_) => turn.settled.is_some() || self.told_by_message,
            Shape::Entry => false,
        }
    }

    /// Whether an entry is this part, in whatever form.
    fn stands_at(&self, tree: &Tree, index: usize) -> bool {
        let known = tree.entries.get(index).is_some_and(|entry| self.ids().any(|id| *id == *entry.id));
        known || self.says_the_same(tree, index)
    }

    fn says_the_same(&self, tree: &Tree, index: usize) -> bool {
        let Some(raw) = tree.message(index).and_then(|text| Raw::parse(text).ok()) else { return false };
        let role = tree.role(index);
        match &self.shape {
            Shape::User(text) => role.as_deref() == Some("user") && message::text_of(&raw) == *text,
            Shape::Message(message) => crate::json::same(message.get(), raw.get(), &["timestamp"]),
            Shape::Result(call) => {
                role.as_deref() == Some("toolResult")
                    && raw.view().object().and_then(|object| object.string("toolCallId")).as_deref()
                        == Some(call)
            }
            Shape::Entry => false,
        }
    }
}

/// What the branch has to hold, in order.
struct Script {
    parts: Vec<Part>,
    /// The agent's ids of entries that are left out.
    left_out: HashSet<String>,
}

impl Script {
    fn of(turn: &Turn, history: &History, extent: Extent) -> Self {
        let horizon = Horizon::of(turn, extent);
        Composer {
            turn,
            history,
            parts: Vec::new(),
            left_out: HashSet::new(),
            anchored: anchored(turn),
            waiting: false,
        }
        .compose(&horizon)
    }

    /// What is not there yet, in the order of writing.
    ///
    /// Results that come later than their message follow in the order they come; a recovery writes them in the order
    /// of their calls.
    fn missing(&self, found: &Found, extent: Extent) -> Vec<&Part> {
        let mut missing: Vec<&Part> = Vec::new();
        let (mut late, mut asked_before): (Vec<&Part>, bool) = (Vec::new(), false);
        for part in &self.parts {
            if part.answered.is_none() {
                missing.append(&mut late);
                asked_before = found.has(part);
            }
            if found.has(part) {
                continue;
            }
            if part.answered.is_some() && asked_before && extent != Extent::Recover {
                late.push(part);
                late.sort_by_key(|part| part.answered);
            } else {
                missing.push(part);
            }
        }
        missing.append(&mut late);
        missing
    }

    fn ids(&self, found: &Found) -> Ids {
        let mut mapped = HashMap::new();
        // What stands on the live branch keeps the agent's own id.
        for part in self.parts.iter().filter(|part| !found.is_live(part)) {
            let Some(form) = found.form_of(part).or(part.forms.first()) else { continue };
            for id in &part.agent_ids {
                mapped.insert(id.clone(), form.id.clone());
            }
        }
        Ids { mapped, left_out: self.left_out.clone() }
    }
}

/// Where ids inside copied entries lead.
struct Ids {
    mapped: HashMap<String, String>,
    left_out: HashSet<String>,
}

impl Ids {
    fn map(&self, id: &str) -> Option<String> {
        if self.left_out.contains(id) {
            return None;
        }
        Some(self.mapped.get(id).cloned().unwrap_or_else(|| id.to_owned()))
    }

    fn leave_out(&mut self, part: &Part) {
        self.left_out.extend(part.agent_ids.iter().cloned());
    }
}

struct Composer<'a> {
    turn: &'a Turn,
    history: &'a History,
    parts: Vec<Part>,
    left_out: HashSet<String>,
    /// Messages that joined and that the agent did not repeat, by the seq of the fact they stand behind.
    anchored: HashMap<u64, Vec<usize>>,
    /// A call is unanswered: nothing but results may follow.
    waiting: bool,
}

fn anchored(turn: &Turn) -> HashMap<u64, Vec<usize>> {
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
    fn compose(mut self, horizon: &Horizon) -> Script {
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
            self.copy(fact);
        }
        let has_input = turn
            .facts
            .iter()
            .any(|fact| matches!(&fact.what, What::Said(said) if said.stands == Stands::Input));
        if !has_input {
            let forms = self.input_form().into_iter().collect();
            self.push(forms, Vec::new(), Shape::User(self.input_text()));
        }
        for fact in &turn.facts {
            if !leads(fact) && horizon.holds(fact) {
                self.fact(fact, horizon);
            }
            self.steered_behind(fact, horizon);
        }
        Script { parts: self.parts, left_out: self.left_out }
    }

    fn fact(&mut self, fact: &Fact, horizon: &Horizon) {
        let What::Said(said) = &fact.what else { return };
        match &said.stands {
            Stands::Header => {}
            Stands::Model(Ending::Failed(_)) => self.leave_out(said),
            Stands::Model(_) => self.model(fact, said, horizon),
            // Results follow their message, wherever the agent put them.
            Stands::Results(_) => self.words_beside(fact),
            Stands::Input => {
                let forms = self.said_forms(fact, self.input_form());
                self.push_said(forms, said, Shape::User(self.input_text()));
            }
            Stands::Steered(index) => {
                let steered = self.turn.steered.get(*index);
                let own = steered.map(|steered| self.user_form(&steered.mark, &steered.input));
                let text = steered.map(|steered| message::text_of(&steered.input)).unwrap_or_default();
                let forms = self.said_forms(fact, own);
                self.push_said(forms, said, Shape::User(text));
            }
            Stands::System | Stands::User | Stands::Other => self.copy(fact),
        }
    }

    /// A model's message and, directly behind it, each known result in the order of its calls.
    fn model(&mut self, fact: &Fact, said: &Said, horizon: &Horizon) {
        if self.waiting {
            return;
        }
        self.copy(fact);
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
                shape: Shape::Result(call.id.clone().unwrap_or_default()),
                answered: call.answer.as_ref().map(|answer| answer.mark.seq),
                told_by_message: call.told.as_ref().is_some_and(|mark| self.entry_id(mark).is_none()),
            });
        }
    }

    /// A user's words in the same message as results.
    fn words_beside(&mut self, fact: &Fact) {
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
        self.push(vec![form], Vec::new(), Shape::User(words.text));
    }

    /// Messages that joined the turn and whose place is directly behind this fact.
    fn steered_behind(&mut self, fact: &Fact, horizon: &Horizon) {
        let turn = self.turn;
        if !horizon.reaches(fact.mark.seq) {
            return;
        }
        for index in self.anchored.remove(&fact.mark.seq).unwrap_or_default() {
            let Some(steered) = turn.steered.get(index) else { continue };
            let forms = vec![self.user_form(&steered.mark, &steered.input)];
            self.push(forms, Vec::new(), Shape::User(message::text_of(&steered.input)));
        }
    }

    fn leave_out(&mut self, said: &Said) {
        self.left_out.extend(said.entry_id.clone());
        let calls = self.turn.calls.get(said.calls.clone()).unwrap_or_default();
        let told: Vec<String> = calls
            .iter()
            .filter_map(|call| call.told.as_ref())
            .filter_map(|mark| self.entry_id(mark))
            .collect();
        self.left_out.extend(told);
    }

    fn copy(&mut self, fact: &Fact) {
        let What::Said(said) = &fact.what else { return };
        let forms = self.said_forms(fact, None);
        let shape = match self.record(&fact.mark).map(|record| &record.kind) {
            Some(Kind::Message(message)) => {
                self.as_pi(message, said, &fact.mark).map_or(Shape::Entry, Shape::Message)
            }
            _ => Shape::Entry,
        };
        self.push_said(forms, said, shape);
    }

    fn push_said(&mut self, forms: Vec<Form>, said: &Said, shape: Shape) {
        self.push(forms, said.entry_id.iter().cloned().collect(), shape);
    }

    fn push(&mut self, forms: Vec<Form>, agent_ids: Vec<String>, shape: Shape) {
        if !self.waiting && !forms.is_empty() {
            self.parts.push(Part { forms, agent_ids, shape, answered: None, told_by_message: false });
        }
    }

    /// The form of a message or entry, then the one of the record that it repeats.
    fn said_forms(&self, fact: &Fact, repeated: Option<Form>) -> Vec<Form> {
        let What::Said(said) = &fact.what else { return Vec::new() };
        let how = match self.record(&fact.mark).map(|record| &record.kind) {
            Some(Kind::Entry(entry)) => Some(How::Copy(entry.entry.clone())),
            Some(Kind::Message(message)) => self.as_pi(message, said, &fact.mark).map(How::Message),
            _ => None,
        };
        how.map(|how| Form::new(self.turn, &fact.mark, how)).into_iter().chain(repeated).collect()
    }

    /// The agent's own tool-result message first, then the recorded answer.
    fn result_forms(&self, call: &Call) -> Vec<Form> {
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
    fn told_in_message(&self, message: &crate::record::Message, call: &Call, mark: &Mark) -> Option<Form> {
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

    fn as_pi(&self, message: &crate::record::Message, said: &Said, mark: &Mark) -> Option<Raw> {
        let format: Format = message.format.parse().ok()?;
        let meaning = message::meaning(format, &message.message).ok()?.with_role(&message.role);
        let calls = self.turn.calls.get(said.calls.clone()).unwrap_or_default();
        let ids: Vec<Option<String>> = calls.iter().map(|call| call.id.clone()).collect();
        Some(message::pi_message(&meaning, &message.message, &ids, milliseconds_of(&mark.at)))
    }

    fn input_form(&self) -> Option<Form> {
        match &self.record(&self.turn.admitted)?.kind {
            Kind::Admitted(admitted) => Some(self.user_form(&self.turn.admitted, &admitted.input)),
            _ => None,
        }
    }

    fn input_text(&self) -> String {
        match self.record(&self.turn.admitted).map(|record| &record.kind) {
            Some(Kind::Admitted(admitted)) => message::text_of(&admitted.input),
            _ => String::new(),
        }
    }

    fn user_form(&self, mark: &Mark, input: &Raw) -> Form {
        Form::new(self.turn, mark, How::Message(message::pi_user(input, milliseconds_of(&mark.at))))
    }

    fn record(&self, mark: &Mark) -> Option<&Record> {
        self.history.get(mark.seq)
    }

    fn entry_id(&self, mark: &Mark) -> Option<String> {
        match &self.record(mark)?.kind {
            Kind::Entry(entry) => entry.entry.view().object()?.string("id"),
            _ => None,
        }
    }
}

/// Up to where the turn is ours to write.
struct Horizon {
    /// Facts up to this seq; `None` is all.
    facts: Option<u64>,
    /// Answers of calls asked for up to this seq, and what was said up to it; `None` is all.
    calls: Option<u64>,
}

impl Horizon {
    fn of(turn: &Turn, extent: Extent) -> Self {
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
    fn is_empty(&self) -> bool {
        self.calls == Some(0)
    }

    /// What is said behind the recover is the agent's to write.
    fn holds(&self, fact: &Fact) -> bool {
        let said_behind = is_said(fact) && self.calls.is_some_and(|recovered| fact.mark.seq > recovered);
        self.reaches(fact.mark.seq) && !said_behind
    }

    fn reaches(&self, seq: u64) -> bool {
        self.facts.is_none_or(|facts| seq <= facts)
    }

    fn holds_answer(&self, call: &Call) -> bool {
        self.calls.is_none_or(|calls| call.r#ref.seq <= calls)
    }
}

/// Seq of the newest `recovered` of the turn that made sure of a branch.
pub fn last_branch(turn: &Turn) -> Option<u64> {
    turn.attempts.iter().rev().find_map(|attempt| attempt.branched.as_ref()).map(|mark| mark.seq)
}

/// What of the branch is on the file.
#[derive(Default)]
struct Found {
    present: HashMap<String, usize>,
    /// Results that the agent itself put behind the branch, by its own ids.
    own: HashSet<String>,
    /// Parts that stand on the live branch, by the id of their first form.
    live: HashSet<String>,
    count: u64,
    tail: Option<String>,
    head: Option<Mark>,
}

impl Found {
    fn on(
        session: &str,
        turn: &Turn,
        history: &History,
        tree: &Tree,
        script: &Script,
        extent: Extent,
    ) -> Result<Self, Trouble> {
        let mut found = Self::default();
        let mut last = None;
        for form in script.parts.iter().flat_map(|part| &part.forms) {
            if let Some(index) = tree.find(&form.id) {
                found.present.insert(form.id.clone(), index);
                found.head = Some(newest(found.head.take(), &form.mark));
                last = last.max(Some(index));
            }
        }
        found.count = found.present.len() as u64;
        found.check_content(tree, script)?;
        for (index, marker) in markers(session, turn, tree) {
            let entry = tree.entries.get(index);
            let id = entry.map(|entry| entry.id.to_string()).unwrap_or_default();
            let known = marker.head.split_once(':').and_then(|(seq, hash)| {
                history.get(seq.parse().ok()?).filter(|record| record.hash.as_str() == hash)
            });
            if known.is_none() {
                let line = entry.map_or(0, |entry| entry.line);
                return Err(Trouble::Marker { line, id, head: marker.head });
            }
            found.count += 1;
            last = last.max(Some(index));
        }
        let tail = match (last, extent) {
            // A recovery has everything on a branch of its own.
            (last, Extent::Recover) => last,
            (last, Extent::Steps | Extent::Late) => last.map(|last| found.continued(tree, script, last)),
        };
        found.tail = tail.and_then(|index| tree.entries.get(index)).map(|entry| entry.id.to_string());
        Ok(found)
    }

    fn with_live(mut self, live: HashSet<String>) -> Self {
        self.live = live;
        self
    }

    fn is_live(&self, part: &Part) -> bool {
        part.forms.first().is_some_and(|form| self.live.contains(&form.id))
    }

    /// Takes in results that the agent itself put behind entries of ours, so that none is written a second time.
    fn continued(&mut self, tree: &Tree, script: &Script, last: usize) -> usize {
        let ours: HashSet<usize> = self.present.values().copied().collect();
        let mut tail = last;
        for part in script.parts.iter().filter(|part| part.answered.is_some()) {
            for (id, index) in part.agent_ids.iter().filter_map(|id| Some((id, tree.find(id)?))) {
                let behind_ours = || tree.path(index).entries.iter().any(|above| ours.contains(above));
                if !self.has(part) && behind_ours() {
                    self.own.insert(id.clone());
                    tail = tail.max(index);
                }
            }
        }
        tail
    }

    fn check_content(&self, tree: &Tree, script: &Script) -> Result<(), Trouble> {
        let ids = script.ids(self);
        for form in script.parts.iter().flat_map(|part| &part.forms) {
            let Some(index) = self.present.get(&form.id) else { continue };
            let expected = form.build(None, &|id| ids.map(id));
            let same = expected.is_none_or(|expected| tree::same_entry(expected.get(), tree.text(*index)));
            if !same {
                let line = tree.entries.get(*index).map_or(0, |entry| entry.line);
                return Err(Trouble::Content { line, id: form.id.clone() });
            }
        }
        Ok(())
    }

    fn has(&self, part: &Part) -> bool {
        self.form_of(part).is_some()
            || self.is_live(part)
            || part.agent_ids.iter().any(|id| self.own.contains(id))
    }

    fn form_of<'p>(&self, part: &'p Part) -> Option<&'p Form> {
        part.forms.iter().find(|form| self.present.contains_key(&form.id))
    }
}

/// Ends the branch with a marker, unless one is the last line already.
pub fn end_with_marker(plan: &mut Plan, session: &str, turn: &Turn, tree: &Tree) {
    let parent = plan.leaf.clone().or_else(|| plan.from.clone());
    let (parent, head) = (parent.as_deref(), plan.head.as_ref().unwrap_or(&turn.admitted));
    let last_is_marker = plan.write.is_empty()
        && tree.last_entry().is_some_and(|last| markers(session, turn, tree).any(|(index, _)| index == last));
    if last_is_marker {
        return;
    }
    let id = tree::entry_id(turn.id.as_str(), head.hash.as_str(), parent.unwrap_or("root"));
    let timestamp = milliseconds(&head.at);
    plan.write.push(tree::marker_entry(&id, parent, &timestamp, session, turn.id.as_str(), &head.head()));
    plan.entries += 1;
    plan.leaf = Some(id);
}

fn markers<'t>(
    session: &str,
    turn: &Turn,
    tree: &'t Tree,
) -> impl Iterator<Item = (usize, tree::Marker)> + 't {
    let (session, turn) = (session.to_owned(), turn.id.to_string());
    (0..tree.entries.len())
        .filter(|index| tree.entries.get(*index).is_some_and(|entry| &*entry.kind == "custom"))
        .filter_map(|index| Some((index, tree::marker(tree.text(index))?)))
        .filter(move |(_, marker)| marker.session == session && marker.turn == turn)
}

/// The Pi tool-result message that a recorded answer becomes.
fn answer_message(call: &Call, record: &Record) -> Option<Raw> {
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

fn unknown_text(call: &Call, by: &str) -> String {
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

fn newest(head: Option<Mark>, mark: &Mark) -> Mark {
    head.filter(|head| head.seq >= mark.seq).unwrap_or_else(|| mark.clone())
}

fn is_model(fact: &Fact) -> bool {
    matches!(&fact.what, What::Said(said) if matches!(said.stands, Stands::Model(_)))
}

fn is_said(fact: &Fact) -> bool {
    matches!(fact.what, What::Said(_))
}

/// The spelling of times on the tree: `2026-11-29T15:26:34.123Z`.
fn milliseconds(at: &At) -> String {
    let spelled = at.as_str();
    format!("{}Z", spelled.get(..23).unwrap_or(spelled))
}

fn milliseconds_of(at: &At) -> i64 {
    at.micros().div_euclid(1_000)
}

/// Which extent applies outside a recovery.
pub fn extent_of(mode: TreeMode) -> Extent {
    match mode {
        TreeMode::Append => Extent::Steps,
        TreeMode::Branch => Extent::Late,
    }
}

#[cfg(test)]
mod tests;
