//! What of a branch is on the file already.

use super::script::{Form, Part, Script};
use super::{Extent, Trouble, newest};
use crate::draft::History;
use crate::tree::{self, Tree};
use crate::turn::{Mark, Turn};
use std::collections::{HashMap, HashSet};

/// What of the branch is on the file.
#[derive(Default)]
pub(super) struct Found {
    pub(super) present: HashMap<String, usize>,
    /// Results that the agent itself put behind the branch, by its own ids.
    pub(super) own: HashSet<String>,
    /// Parts that stand on the live branch, by the id of their first form.
    pub(super) live: HashSet<String>,
    pub(super) count: u64,
    pub(super) tail: Option<String>,
    pub(super) head: Option<Mark>,
}

impl Found {
    pub(super) fn on(
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
            // Behind acknowledged damage the record may be among those that are lost.
            if known.is_none() && !turn.lost_records {
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

    pub(super) fn with_live(mut self, live: HashSet<String>) -> Self {
        self.live = live;
        self
    }

    pub(super) fn is_live(&self, part: &Part) -> bool {
        part.forms.first().is_some_and(|form| self.live.contains(&form.id))
    }

    /// Takes in results that the agent itself put behind entries of ours, so that none is written a second time.
    pub(super) fn continued(&mut self, tree: &Tree, script: &Script, last: usize) -> usize {
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

    pub(super) fn check_content(&self, tree: &Tree, script: &Script) -> Result<(), Trouble> {
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

    pub(super) fn has(&self, part: &Part) -> bool {
        self.form_of(part).is_some()
            || self.is_live(part)
            || part.agent_ids.iter().any(|id| self.own.contains(id))
    }

    pub(super) fn form_of<'p>(&self, part: &'p Part) -> Option<&'p Form> {
        part.forms.iter().find(|form| self.present.contains_key(&form.id))
    }
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
