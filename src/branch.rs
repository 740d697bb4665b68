//! The branch of a turn on its session tree: what it has to hold, what is there, and what is to be written.
//!
//! Pure. Ids come from the records that entries stand for, so whatever was written before is found again, and a
//! plan made twice writes nothing twice. A line that is there keeps its place. The abandoned branch stays.

use crate::draft::History;
use crate::json::Raw;
use crate::message::{self, Ending, Format};
use crate::record::{At, Kind, Outcome, Record, TreeMode};
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

/// Plans the branch of a turn.
pub fn plan(
    session: &str,
    turn: &Turn,
    history: &History,
    tree: &Tree,
    extent: Extent,
) -> Result<Plan, Trouble> {
    let script = Script::of(turn, history, extent);
    let from = turn.tree.as_ref().and_then(|tree| tree.leaf.clone());
    let found = Found::on(session, turn, history, tree, &script)?;
    let mut plan =
        Plan { from: from.clone(), write: Vec::new(), leaf: found.tail.clone(), entries: found.count };
    let mut head = found.head.clone();
    let mut parent = found.tail.clone().or(from);
    let mut ids = script.ids(&found);
    for part in script.parts.iter().filter(|part| !found.has(part)) {
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
        head = newest(head, &form.mark);
    }
    if extent == Extent::Recover {
        let head = head.unwrap_or_else(|| turn.admitted.clone());
        mark_end(&mut plan, session, turn, tree, parent.as_deref(), &head);
    }
    Ok(plan)
}

/// Whether the file holds everything that the turn committed, in whatever form.
///
/// Asked for a settled turn that the agent wrote itself.
pub fn lacks_nothing(turn: &Turn, history: &History, tree: &Tree) -> bool {
    let script = Script::of(turn, history, Extent::Steps);
    let since = turn.tree.as_ref().map_or(0, |tree| tree.bytes);
    let later: Vec<usize> = (0..tree.entries.len())
        .filter(|index| tree.entries.get(*index).is_some_and(|e| e.offset >= since))
        .collect();
    script.parts.iter().all(|part| later.iter().any(|index| part.stands_in(tree, *index)))
}

/// The ids of ours on a file: entries of the branch and markers.
pub fn ours(session: &str, turn: &Turn, history: &History, tree: &Tree) -> HashSet<String> {
    let script = Script::of(turn, history, Extent::Steps);
    let forms = script.parts.iter().flat_map(|part| &part.forms);
    let mut ids: HashSet<String> =
        forms.map(|form| form.id.clone()).filter(|id| tree.find(id).is_some()).collect();
    ids.extend(
        markers(session, turn, tree)
            .map(|(index, _)| tree.entries.get(index).map(|e| e.id.to_string()))
            .flatten(),
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
        let id = tree::entry_id(turn.id.as_str(), mark.hash.as_str(), "entry");
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
    fn stands_in(&self, tree: &Tree, index: usize) -> bool {
        let Some(entry) = tree.entries.get(index) else { return false };
        let known = |id: &str| *id == *entry.id;
        if self.forms.iter().any(|form| known(&form.id)) || self.agent_ids.iter().any(|id| known(id)) {
            return true;
        }
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
        Composer { turn, history, parts: Vec::new(), left_out: HashSet::new(), waiting: false }
            .compose(extent)
    }

    fn ids(&self, found: &Found) -> Ids {
        let mut mapped = HashMap::new();
        for part in &self.parts {
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
    /// A call is unanswered: nothing but results may follow.
    waiting: bool,
}

impl Composer<'_> {
    fn compose(mut self, extent: Extent) -> Script {
        let turn = self.turn;
        let horizon = Horizon::of(turn, extent);
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
            if !leads(fact) && horizon.holds(fact, turn) {
                self.fact(fact, &horizon);
            }
            self.steered_behind(fact, &horizon);
        }
        Script { parts: self.parts, left_out: self.left_out }
    }

    fn fact(&mut self, fact: &Fact, horizon: &Horizon) {
        let What::Said(said) = &fact.what else { return };
        match &said.stands {
            Stands::Header => {}
            Stands::Model(Ending::Failed(_)) => self.leave_out(said),
            Stands::Model(_) => self.model(fact, said, horizon),
            // Results follow their message, wherever the agent put them; a user's words beside them stay.
            Stands::Results(_) => {}
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
            });
        }
    }

    /// Messages that joined the turn and whose place is directly behind this fact.
    fn steered_behind(&mut self, fact: &Fact, horizon: &Horizon) {
        let turn = self.turn;
        for (index, steered) in turn.steered.iter().enumerate() {
            let told = turn
                .facts
                .iter()
                .any(|fact| matches!(&fact.what, What::Said(said) if said.stands == Stands::Steered(index)));
            if told || turn.anchor_of(steered) != Some(fact.mark.seq) || !horizon.reaches(fact.mark.seq) {
                continue;
            }
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
            self.parts.push(Part { forms, agent_ids, shape });
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
        let told = call.told.as_ref().and_then(|mark| {
            let how = match &self.record(mark)?.kind {
                Kind::Entry(entry) => How::Copy(entry.entry.clone()),
                Kind::Message(message) => How::Message(self.told_in_message(message, call, mark)?),
                _ => return None,
            };
            Some(Form::new(self.turn, mark, how))
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

    fn told_in_message(&self, message: &crate::record::Message, call: &Call, mark: &Mark) -> Option<Raw> {
        let format: Format = message.format.parse().ok()?;
        let meaning = message::meaning(format, &message.message).ok()?;
        let answer = meaning.answers.into_iter().find(|answer| Some(&answer.call_id) == call.id.as_ref())?;
        let id = call.id.as_deref().unwrap_or_default();
        Some(message::pi_result(id, &call.tool, &answer.raw, answer.error, milliseconds_of(&mark.at)))
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
    /// Answers of calls asked for up to this seq; `None` is all.
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

    /// A model's message behind the recover is the agent's to write.
    fn holds(&self, fact: &Fact, turn: &Turn) -> bool {
        let behind_recover = last_branch(turn).is_some_and(|recovered| fact.mark.seq > recovered);
        self.reaches(fact.mark.seq) && !(self.facts.is_some() && behind_recover && is_said(fact))
    }

    fn reaches(&self, seq: u64) -> bool {
        self.facts.is_none_or(|facts| seq <= facts)
    }

    fn holds_answer(&self, call: &Call) -> bool {
        self.calls.is_none_or(|calls| call.r#ref.seq <= calls)
    }
}

/// Seq of the newest `recovered` of the turn.
fn last_branch(turn: &Turn) -> Option<u64> {
    turn.attempts.iter().rev().find_map(|attempt| attempt.recovered.as_ref()).map(|(mark, _)| mark.seq)
}

/// What of the branch is on the file.
#[derive(Default)]
struct Found {
    present: HashMap<String, usize>,
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
    ) -> Result<Self, Trouble> {
        let mut found = Self { present: HashMap::new(), count: 0, tail: None, head: None };
        let mut last = None;
        for form in script.parts.iter().flat_map(|part| &part.forms) {
            if let Some(index) = tree.find(&form.id) {
                found.present.insert(form.id.clone(), index);
                found.head = newest(found.head.take(), &form.mark);
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
        found.tail = last.and_then(|index| tree.entries.get(index)).map(|entry| entry.id.to_string());
        Ok(found)
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
    }

    fn form_of<'p>(&self, part: &'p Part) -> Option<&'p Form> {
        part.forms.iter().find(|form| self.present.contains_key(&form.id))
    }
}

/// Ends the branch with a marker, unless one is the last line already.
fn mark_end(plan: &mut Plan, session: &str, turn: &Turn, tree: &Tree, parent: Option<&str>, head: &Mark) {
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
    let pi = |content: &Raw, error: bool| Some(message::pi_result(id, &call.tool, content, error, timestamp));
    match &record.kind {
        Kind::Outcome(result) => pi(&content_of(result), result.error),
        Kind::Interrupted(interrupted) => pi(&Raw::text(&interrupted.explanation), true),
        Kind::NotRun(not_run) => pi(&Raw::text(&not_run.explanation), true),
        Kind::Reconciled(reconciled) => match &reconciled.content {
            Some(content) => pi(content, reconciled.outcome == crate::record::ReconciledOutcome::Unknown),
            None => pi(&Raw::text(&unknown_text(call, &reconciled.by)), true),
        },
        _ => None,
    }
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
        text.push_str(&format!("[{ended}]"));
    }
    Raw::text(&text)
}

fn newest(head: Option<Mark>, mark: &Mark) -> Option<Mark> {
    match head {
        Some(head) if head.seq >= mark.seq => Some(head),
        _ => Some(mark.clone()),
    }
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
