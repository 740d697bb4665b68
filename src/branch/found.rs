//! What of a branch is on the file already, and how it hangs together.

use super::chain::{self, Link, Memory};
use super::script::{Form, Ids, Part, Script};
use super::{Extent, Trouble};
use crate::draft::History;
use crate::tree::{self, Parent, Tree, check};
use crate::turn::Turn;
use std::collections::{BTreeSet, HashMap, HashSet};

/// What of the branch is on the file.
#[derive(Default)]
pub(super) struct Found {
    pub(super) present: HashMap<String, usize>,
    /// Results that the agent itself put on the branch, by its own ids.
    pub(super) own: HashSet<String>,
    /// Parts that stand on the live branch, by the id of their first form.
    pub(super) live: HashSet<String>,
    /// Markers of this turn and what they say.
    pub(super) markers: HashMap<usize, tree::Marker>,
    /// What is there, from the top down, with its gaps.
    pub(super) links: Vec<Link>,
    /// Ids that stood in the gaps.
    pub(super) lost: HashSet<String>,
    /// A result of the agent's behind the last entry of ours, which the branch goes on from.
    pub(super) behind: Option<usize>,
    pub(super) count: u64,
}

/// What a branch goes on from.
pub(super) struct Base<'a> {
    /// The entry that it hangs on; `None` is the root.
    pub(super) from: Option<&'a str>,
    /// Parts that stand above that in the agent's own entries, by the id of their first form.
    pub(super) live: HashSet<String>,
}

impl Found {
    pub(super) fn on(
        session: &str,
        turn: &Turn,
        history: &History,
        tree: &Tree,
        script: &Script<'_>,
        base: Base<'_>,
        extent: Extent,
    ) -> Result<Self, Trouble> {
        let Base { from, live } = base;
        let mut found = Self { live, ..Self::default() };
        for form in script.parts.iter().flat_map(|part| &part.forms) {
            if let Some(index) = tree.find(&form.id) {
                found.present.insert(form.id.clone(), index);
            }
        }
        found.markers = markers(session, turn, tree).collect();
        found.check_markers(turn, history, tree)?;
        found.count = (found.present.len() + found.markers.len()) as u64;
        let ours: BTreeSet<usize> = found.present.values().chain(found.markers.keys()).copied().collect();
        let doubled = |index: &usize| id_of(tree, *index).is_some_and(|id| tree.doubled(&id).is_some());
        let doubled: Vec<usize> = ours.iter().copied().filter(doubled).collect();
        if !doubled.is_empty() {
            return Err(damaged(check::damaged_entries(tree, &doubled)));
        }
        let memory = memory(turn);
        found.links = chain::links(tree, &ours, from, memory)?;
        found.lost.extend(found.links.iter().filter_map(|link| link.lost.as_deref()).map(str::to_owned));
        let standing: Vec<usize> = found.links.iter().flat_map(|link| link.entries.iter().copied()).collect();
        found.take_in(tree, script, &standing, extent);
        found.check_content(tree, script)?;
        let mut damage = check::damaged_entries(tree, &standing);
        // The entry that a turn was admitted on is looked at by itself.
        if let Some(top) = from.and_then(|from| tree.find(from)).filter(|_| !standing.is_empty()) {
            damage.extend(check::damaged_path(tree, top));
        }
        if damage.is_empty() { Ok(found) } else { Err(damaged(damage)) }
    }

    fn check_markers(&self, turn: &Turn, history: &History, tree: &Tree) -> Result<(), Trouble> {
        let mut indices: Vec<&usize> = self.markers.keys().collect();
        indices.sort();
        for index in indices {
            let Some((marker, entry)) = self.markers.get(index).zip(tree.entries.get(*index)) else {
                continue;
            };
            let known = marker.head.split_once(':').and_then(|(seq, hash)| {
                history.get(seq.parse().ok()?).filter(|record| record.hash.as_str() == hash)
            });
            // Behind acknowledged damage the record may be among those that are lost.
            if known.is_none() && !turn.lost_records {
                let (line, id, head) = (entry.line, entry.id.to_string(), marker.head.clone());
                return Err(Trouble::Marker { line, id, head });
            }
        }
        Ok(())
    }

    /// Takes in results that the agent itself put on the branch, so that none stands there a second time.
    ///
    /// A recovery has everything on a branch of its own: it takes in only what stands between entries of ours.
    fn take_in(&mut self, tree: &Tree, script: &Script<'_>, standing: &[usize], extent: Extent) {
        let results = script.parts.iter().filter(|part| part.answered.is_some() && !self.has(part));
        let mut results: Vec<usize> =
            results.flat_map(|part| &part.agent_ids).filter_map(|id| tree.find(id)).collect();
        results.sort_unstable();
        let mut on_path: HashSet<usize> = standing.iter().copied().collect();
        let mut end = self.links.last().and_then(Link::tip);
        for result in results {
            let goes_on = || {
                let mut at = Some(result);
                let mut above = HashSet::new();
                while let Some(index) = at.filter(|at| !on_path.contains(at) && above.insert(*at)) {
                    at = tree.parent(index);
                }
                (at.is_some() && at == end).then_some(above)
            };
            if on_path.contains(&result) {
                self.own.extend(id_of(tree, result));
            } else if extent != Extent::Recover
                && let Some(above) = goes_on()
            {
                on_path.extend(above);
                self.own.extend(id_of(tree, result));
                end = Some(result);
                self.behind = end;
            }
        }
    }

    /// Whether a part stands in the agent's own entries alone.
    pub(super) fn is_the_agents(&self, part: &Part<'_>) -> bool {
        let own = || part.agent_ids.iter().any(|id| self.own.contains(id));
        self.is_live(part) || (self.form_of(part).is_none() && own())
    }

    pub(super) fn is_live(&self, part: &Part<'_>) -> bool {
        part.forms.first().is_some_and(|form| self.live.contains(&form.id))
    }

    pub(super) fn check_content(&self, tree: &Tree, script: &Script<'_>) -> Result<(), Trouble> {
        let ids = script.ids(self);
        for form in script.parts.iter().flat_map(|part| &part.forms) {
            let Some(index) = self.present.get(&form.id) else { continue };
            if !stands_unchanged(form, tree, *index, &ids) {
                let line = tree.entries.get(*index).map_or(0, |entry| entry.line);
                return Err(Trouble::Content { line, id: form.id.clone() });
            }
        }
        Ok(())
    }

    pub(super) fn has(&self, part: &Part<'_>) -> bool {
        self.form_of(part).is_some()
            || self.is_live(part)
            || part.agent_ids.iter().any(|id| self.own.contains(id))
    }

    /// The form in which a part is there, or was before its line was lost.
    pub(super) fn form_of<'p>(&self, part: &'p Part<'_>) -> Option<&'p Form<'p>> {
        part.forms.iter().find(|form| self.present.contains_key(&form.id) || self.lost.contains(&form.id))
    }
}

/// Whether an entry of ours says what the journal has it say; one that points at what is left out is not judged.
fn stands_unchanged(form: &Form<'_>, tree: &Tree, index: usize, ids: &Ids) -> bool {
    let parent = match tree.entries.get(index).map(|entry| &entry.parent) {
        Some(Parent::Id(id)) => Some(&**id),
        Some(Parent::Root | Parent::Missing) | None => None,
    };
    // Its parent is of no account here. With the one that it names, a line that nobody touched is the same text, and need
    // not be taken apart.
    let expected = form.build(parent, &|id| ids.map(id));
    let standing = tree.text(index);
    expected.is_none_or(|expected| expected.get() == standing || tree::same_entry(expected.get(), standing))
}

pub(super) fn damaged(found: Vec<tree::Finding>) -> Trouble {
    Trouble::Damage(tree::Refusal::Damage(found))
}

fn id_of(tree: &Tree, index: usize) -> Option<String> {
    tree.entries.get(index).map(|entry| entry.id.to_string())
}

/// Behind records that are lost, entries that stood for them are strangers.
pub(super) fn memory(turn: &Turn) -> Memory {
    if turn.lost_records { Memory::Lost } else { Memory::Whole }
}

pub(super) fn markers<'t>(
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
