//! What is written of a branch: first what its gaps lack, each entry behind the one that came before it, so that what
//! names it hangs together again; then what is new, at the end.

use super::chain::{Link, Memory, misplaced};
use super::found::{Found, memory};
use super::script::{Form, Ids, Part, Role, Script, Shape};
use super::{Plan, Trouble, newest};
use crate::tree::{self, Tree};
use crate::turn::{Mark, Turn};
use std::collections::{HashMap, HashSet};

/// Markers in a row that are looked for in a gap.
const MARKERS_MAX: usize = 64;

pub(super) struct Writer<'a> {
    session: &'a str,
    turn: &'a Turn,
    tree: &'a Tree,
    /// All parts of the turn, also those that are not to be written now.
    script: &'a Script<'a>,
    found: &'a Found,
    places: HashMap<&'a str, usize>,
    ids: Ids,
    plan: Plan,
    /// Ids of what is planned.
    planned: HashSet<String>,
    /// The last place of the script that was passed.
    passed: Option<usize>,
    order: Order,
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        session: &'a str,
        turn: &'a Turn,
        tree: &'a Tree,
        script: &'a Script<'a>,
        found: &'a Found,
        from: Option<String>,
    ) -> Self {
        let plan =
            Plan { from, write: Vec::new(), lost: Vec::new(), leaf: None, entries: found.count, head: None };
        let (ids, places) = (script.ids(found), script.places());
        let (planned, order) = (HashSet::new(), Order::new(memory(turn)));
        Self { session, turn, tree, script, found, places, ids, plan, planned, passed: None, order }
    }

    /// Follows what is there down to its end, and plans what its gaps lack.
    pub(super) fn follow(&mut self) -> Result<(), Trouble> {
        let found = self.found;
        let mut links: Vec<&Link> = found.links.iter().collect();
        links.sort_by_key(|link| (link.lost.is_some(), self.beginning(link)));
        for link in links {
            if let Some(lost) = &link.lost {
                self.close_gap(link, lost)?;
            }
            self.pass(link)?;
        }
        if let Some(own) = found.behind.and_then(|index| self.tree.entries.get(index)) {
            self.plan.leaf = Some(own.id.to_string());
        }
        Ok(())
    }

    /// Plans what is missing at the end.
    pub(super) fn append(mut self, missing: &[&Part<'_>]) -> Result<Plan, Trouble> {
        for part in missing {
            if part.forms.iter().any(|form| self.planned.contains(&form.id)) {
                continue;
            }
            self.write(part, part.forms.first())?;
        }
        Ok(self.plan)
    }

    fn parent(&self) -> Option<String> {
        self.plan.leaf.clone().or_else(|| self.plan.from.clone())
    }

    fn id(&self, index: usize) -> Option<&'a str> {
        self.tree.entries.get(index).map(|entry| &*entry.id)
    }

    fn place(&self, index: usize) -> Option<usize> {
        self.places.get(self.id(index)?).copied()
    }

    /// Where in the script a link begins, twice; one of markers alone begins behind what they carry.
    fn beginning(&self, link: &Link) -> usize {
        let place = link.entries.iter().filter_map(|index| self.place(*index)).min();
        place.map_or_else(|| 2 * self.carried(link) + 1, |place| 2 * place)
    }

    /// The last place in the script that the first marker of a link can carry.
    fn carried(&self, link: &Link) -> usize {
        let marker = link.entries.iter().find_map(|index| self.found.markers.get(index));
        let seq = marker.and_then(|marker| marker.head.split_once(':')?.0.parse::<u64>().ok());
        let carries = |part: &Part<'_>| part.forms.iter().any(|form| Some(form.mark.seq) <= seq);
        self.script.parts.iter().rposition(carries).unwrap_or(0)
    }

    /// Goes over what stands there.
    fn pass(&mut self, link: &Link) -> Result<(), Trouble> {
        for index in &link.entries {
            let id = self.id(*index).unwrap_or_default();
            if let Some(place) = self.places.get(id).copied() {
                let part = self.script.parts.get(place);
                if let Some(form) = part.and_then(|part| part.forms.iter().find(|form| form.id == id)) {
                    self.plan.head = Some(newest(self.plan.head.take(), &form.mark));
                }
                self.passed = self.passed.max(Some(place));
                self.order
                    .takes(self.script, place, Some(*index))
                    .map_err(|why| self.misplaced(why, *index))?;
            } else if self.is_strange(*index) {
                return Err(misplaced(self.tree, *index, "it stands between entries of ours"));
            }
        }
        self.plan.leaf = link.tip().and_then(|tip| self.id(tip)).map(str::to_owned);
        Ok(())
    }

    /// A message between ours that neither the agent nor we put there.
    fn is_strange(&self, index: usize) -> bool {
        let own = self.id(index).is_some_and(|id| self.found.own.contains(id));
        let said = || matches!(self.tree.role(index).as_deref(), Some("user" | "assistant" | "toolResult"));
        memory(self.turn) == Memory::Whole && !self.found.markers.contains_key(&index) && !own && said()
    }

    fn misplaced(&self, wrong: Wrong, index: usize) -> Trouble {
        misplaced(self.tree, wrong.at.unwrap_or(index), wrong.why)
    }

    /// Plans the entry that is gone under the id that is named, and what came before it and is gone too.
    fn close_gap(&mut self, link: &Link, lost: &str) -> Result<(), Trouble> {
        let (bound, before) = (self.beginning(link).div_ceil(2), self.plan.write.len());
        let top = link.entries.first().copied().unwrap_or_default();
        if self.planned.contains(lost) {
            return Err(misplaced(self.tree, top, "not everything of the branch is on one path with it"));
        }
        // The input alone may stand elsewhere than the journal has it: before what came with it.
        let elsewhere = |place: &usize| {
            let between = self.passed <= Some(*place) && *place < bound;
            !between && self.script.parts.get(*place).is_some_and(|part| part.role != Role::Input)
        };
        if self.places.get(lost).is_some_and(elsewhere) {
            return Err(misplaced(
                self.tree,
                top,
                "what it hangs on does not come between what is around it",
            ));
        }
        match self.places.get(lost).copied() {
            Some(place) => {
                self.write_before(bound, Some(place))?;
                let part = self.script.parts.get(place);
                if let Some(part) = part {
                    self.write(part, part.forms.iter().find(|form| form.id == lost))?;
                }
            }
            None => {
                let rows = |writer: &Self| writer.markers_up_to(lost);
                if rows(self).is_empty() {
                    self.write_before(bound, None)?;
                }
                for (id, head) in rows(self) {
                    self.write_marker(id, &head);
                }
            }
        }
        let anew = self.plan.write.get(before..).unwrap_or_default();
        self.plan.lost.extend(anew.iter().filter_map(|entry| entry.view().object()?.string("id")));
        if self.plan.leaf.as_deref() == Some(lost) {
            return Ok(());
        }
        let top = self.tree.entries.get(top);
        Err(Trouble::Lost {
            line: top.map_or(0, |entry| entry.line),
            id: top.map(|entry| entry.id.to_string()).unwrap_or_default(),
            parent: lost.to_owned(),
        })
    }

    /// Plans what is missing before a place of the script; behind `last` only results of the same message.
    fn write_before(&mut self, bound: usize, last: Option<usize>) -> Result<(), Trouble> {
        let script = self.script;
        let asked = last.and_then(|last| script.parts.get(last)).map(|part| part.role);
        for (place, part) in script.parts.iter().enumerate().take(bound) {
            let beside = matches!(part.role, Role::ResultOf(_)) && Some(part.role) == asked;
            let before = last.is_none_or(|last| place < last || beside);
            let planned = part.forms.iter().any(|form| self.planned.contains(&form.id));
            if before && !self.found.has(part) && !planned {
                self.write(part, part.forms.first())?;
            }
        }
        Ok(())
    }

    /// The markers that stood here, down to the one with this id; none where there is no way to it.
    fn markers_up_to(&self, id: &str) -> Vec<(String, Mark)> {
        let head = self.plan.head.as_ref().unwrap_or(&self.turn.admitted);
        let mut parent = self.parent().unwrap_or_else(|| "root".to_owned());
        let mut row = Vec::new();
        for _ in 0..MARKERS_MAX {
            let marker = tree::entry_id(self.turn.id.as_str(), head.hash.as_str(), &parent);
            row.push((marker.clone(), head.clone()));
            if marker == id {
                return row;
            }
            parent = marker;
        }
        Vec::new()
    }

    fn write_marker(&mut self, id: String, head: &Mark) {
        let parent = self.parent();
        self.plan.write.push(super::marker_entry(&id, parent.as_deref(), self.session, self.turn, head));
        self.plan.entries += 1;
        self.planned.insert(id.clone());
        self.plan.leaf = Some(id);
    }

    fn write(&mut self, part: &Part<'_>, form: Option<&Form<'_>>) -> Result<(), Trouble> {
        let Some(form) = form else { return Ok(()) };
        let parent = self.parent();
        let Some(entry) = form.build(parent.as_deref(), &|id| self.ids.map(id)) else {
            // It points at an entry that is left out, so it is left out too.
            self.ids.leave_out(part);
            return Ok(());
        };
        if let Some(place) = self.places.get(form.id.as_str()).copied() {
            self.order.takes(self.script, place, None).map_err(|wrong| self.misplaced(wrong, 0))?;
        }
        self.plan.write.push(entry);
        self.plan.entries += 1;
        self.plan.leaf = Some(form.id.clone());
        self.plan.head = Some(newest(self.plan.head.take(), &form.mark));
        self.planned.insert(form.id.clone());
        Ok(())
    }
}

/// What came so far on the way down a branch.
///
/// Only what never changes its place is judged: the input before any message of the model's, these in the order of
/// the journal, results directly behind the message that asked for them, and no user's message further down than the
/// journal has it.
struct Order {
    /// Where records were lost, nothing is judged.
    memory: Memory,
    /// The newest part that is no result, and where it stands if it is there already.
    spoken: Option<(usize, Option<usize>)>,
    /// The newest message of the model's, and where it stands if it is there already.
    model: Option<(usize, Option<usize>)>,
    /// Messages of the model's that are on the branch.
    models: HashSet<usize>,
    /// Results whose message has not come yet, by its place in the script.
    early: HashMap<usize, Option<usize>>,
}

/// An entry that stands in the wrong place; absent where it is the one at hand.
struct Wrong {
    at: Option<usize>,
    why: &'static str,
}

impl Order {
    fn new(memory: Memory) -> Self {
        let (models, early) = (HashSet::new(), HashMap::new());
        Self { memory, spoken: None, model: None, models, early }
    }

    fn takes(&mut self, script: &Script<'_>, place: usize, index: Option<usize>) -> Result<(), Wrong> {
        let Some(part) = script.parts.get(place).filter(|_| self.memory == Memory::Whole) else {
            return Ok(());
        };
        let wrong = |at: Option<usize>, why| Err(Wrong { at, why });
        match part.role {
            Role::ResultOf(asked) if self.models.contains(&asked) => {
                return match (self.spoken, index) {
                    (Some((spoken, _)), _) if spoken == asked => Ok(()),
                    (_, Some(_)) => {
                        wrong(index, "it is a result and does not stand behind the message that asked for it")
                    }
                    (Some((_, at)), None) => wrong(at, "it stands before a result that came before it"),
                    (None, None) => Ok(()),
                };
            }
            Role::ResultOf(asked) => {
                self.early.entry(asked).or_insert(index);
                return Ok(());
            }
            Role::Input if self.model.is_some() => {
                return wrong(
                    self.model.and_then(|(_, at)| at),
                    "it stands before the message that it answers",
                );
            }
            Role::Model => {
                if let Some(result) = self.early.get(&place) {
                    return wrong(*result, "it is a result and stands before the message that asked for it");
                }
                if let Some((_, at)) = self.model.filter(|(newest, _)| *newest > place) {
                    return wrong(at, "it stands before a message that came before it");
                }
                self.models.insert(place);
                self.model = Some((place, index));
            }
            // Its place may have moved to where the agent repeated it, and that is further down.
            Role::Other if matches!(part.shape, Shape::User(_)) => {
                if let Some((_, at)) = self.model.filter(|(newest, _)| *newest > place) {
                    return wrong(at, "it stands before a message that came before it");
                }
            }
            Role::Input | Role::Other => {}
        }
        self.spoken = Some((place, index));
        Ok(())
    }
}
