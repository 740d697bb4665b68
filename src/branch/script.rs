//! What the branch of a turn has to hold, in order: one part for each fact, in each form in which it may stand.

use super::Extent;
use super::body::Body;
use super::compose::{Composer, Horizon, anchored, milliseconds, said};
use super::found::Found;
use crate::draft::History;
use crate::json::Raw;
use crate::message;
use crate::tree::{self, Tree};
use crate::turn::{Mark, Turn};
use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

/// One fact, with the forms in which it may stand on the tree; the first is the one to write.
pub(super) struct Part<'a> {
    pub(super) forms: Vec<Form<'a>>,
    /// The agent's own ids of it.
    pub(super) agent_ids: Vec<String>,
    pub(super) role: Role,
    pub(super) shape: Shape<'a>,
    /// For a result, the record that answered its call first.
    pub(super) answered: Option<u64>,
    /// A result that a message told.
    pub(super) told_by_message: bool,
}

/// What a part is for the order of the branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// What the turn answers.
    Input,
    /// A model's message.
    Model,
    /// The result of a call of the model's message with this place in the script.
    ResultOf(usize),
    /// All else: where it stands may have changed since it was written.
    Other,
}

/// What a part looks like to somebody who wrote it without us.
pub(super) enum Shape<'a> {
    /// A user's message with the text of this.
    User(Raw),
    /// A message like this one, which is composed for the first entry that it is compared with.
    Message(Body<'a>, OnceCell<Option<Raw>>),
    /// The result of the call with this id.
    Result(String),
    Entry,
}

impl<'a> Shape<'a> {
    pub(super) fn message(body: Body<'a>) -> Self {
        Self::Message(body, OnceCell::new())
    }
}

pub(super) struct Form<'a> {
    pub(super) mark: Mark,
    pub(super) id: String,
    pub(super) how: How<'a>,
}

pub(super) enum How<'a> {
    /// The agent's own entry under our id.
    Copy(&'a Raw),
    /// A message of ours.
    Message(Body<'a>),
}

impl<'a> Form<'a> {
    pub(super) fn new(turn: &Turn, mark: &Mark, how: How<'a>) -> Self {
        Self::apart(turn, mark, "entry", how)
    }

    /// A record that stands as several entries needs an id for each.
    pub(super) fn apart(turn: &Turn, mark: &Mark, suffix: &str, how: How<'a>) -> Self {
        let id = tree::entry_id(turn.id.as_str(), mark.hash.as_str(), suffix);
        Self { mark: mark.clone(), id, how }
    }

    pub(super) fn build(&self, parent: Option<&str>, map: &dyn Fn(&str) -> Option<String>) -> Option<Raw> {
        match &self.how {
            How::Copy(entry) => tree::entry_with(entry.get(), &self.id, parent, map),
            How::Message(body) => {
                Some(tree::message_entry(&self.id, parent, &milliseconds(&self.mark.at), &body.compose()?))
            }
        }
    }
}

impl Part<'_> {
    /// The ids under which it may stand on the tree.
    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.forms.iter().map(|form| form.id.as_str()).chain(self.agent_ids.iter().map(String::as_str))
    }

    /// Whether an entry of the agent's that says the same would be its second record.
    pub(super) fn may_echo(&self, turn: &Turn) -> bool {
        match &self.shape {
            Shape::Message(..) => true,
            // Before the model speaks, a user's entry is journaled and becomes the form of the input.
            Shape::User(_) => turn.settled.is_some() || turn.has_model_message(),
            Shape::Result(_) => turn.settled.is_some() || self.told_by_message,
            Shape::Entry => false,
        }
    }

    /// Whether an entry is this part, in whatever form.
    pub(super) fn stands_at(&self, tree: &Tree, index: usize) -> bool {
        let known = tree.entries.get(index).is_some_and(|entry| self.ids().any(|id| *id == *entry.id));
        known || self.says_the_same(tree, index)
    }

    pub(super) fn says_the_same(&self, tree: &Tree, index: usize) -> bool {
        let Some(raw) = tree.raw_message(index) else { return false };
        let role = tree.role(index);
        match &self.shape {
            Shape::User(words) => {
                role.as_deref() == Some("user") && message::text_of(&raw) == message::text_of(words)
            }
            // The agent may spell content that is a string as one, and we never do.
            Shape::Message(body, composed) => {
                let message = composed.get_or_init(|| body.compose());
                let same = |message: &Raw| {
                    crate::json::same(message.get(), message::pi_opened(&raw).get(), &["timestamp"])
                };
                message.as_ref().is_some_and(same)
            }
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
pub(super) struct Script<'a> {
    pub(super) parts: Vec<Part<'a>>,
    /// The agent's ids of entries that are left out.
    pub(super) left_out: HashSet<String>,
}

impl<'a> Script<'a> {
    pub(super) fn of(turn: &'a Turn, history: &'a History, extent: Extent) -> Self {
        let horizon = Horizon::of(turn, extent);
        Composer {
            turn,
            history,
            parts: Vec::new(),
            left_out: HashSet::new(),
            anchored: anchored(turn),
            said: said(turn),
            waiting: false,
        }
        .compose(&horizon)
    }

    /// What is not there yet, in the order of writing.
    ///
    /// Results that come later than their message follow in the order they come; a recovery writes them in the order
    /// of their calls.
    pub(super) fn missing(&self, found: &Found, extent: Extent) -> Vec<&Part<'a>> {
        let mut missing: Vec<&Part<'a>> = Vec::new();
        let (mut late, mut asked_before): (Vec<&Part<'a>>, bool) = (Vec::new(), false);
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

    /// Where a record's entry stands in the script, by its id.
    pub(super) fn places(&self) -> HashMap<&str, usize> {
        let parts = self.parts.iter().enumerate();
        parts.flat_map(|(place, part)| part.forms.iter().map(move |form| (form.id.as_str(), place))).collect()
    }

    pub(super) fn ids(&self, found: &Found) -> Ids {
        let mut mapped = HashMap::new();
        // What stands in the agent's own entries keeps the agent's own id.
        for part in self.parts.iter().filter(|part| !found.is_the_agents(part)) {
            let Some(form) = found.form_of(part).or(part.forms.first()) else { continue };
            for id in &part.agent_ids {
                mapped.insert(id.clone(), form.id.clone());
            }
        }
        Ids { mapped, left_out: self.left_out.clone() }
    }
}

/// Where ids inside copied entries lead.
pub(super) struct Ids {
    pub(super) mapped: HashMap<String, String>,
    pub(super) left_out: HashSet<String>,
}

impl Ids {
    pub(super) fn map(&self, id: &str) -> Option<String> {
        if self.left_out.contains(id) {
            return None;
        }
        Some(self.mapped.get(id).cloned().unwrap_or_else(|| id.to_owned()))
    }

    pub(super) fn leave_out(&mut self, part: &Part<'_>) {
        self.left_out.extend(part.agent_ids.iter().cloned());
    }
}
