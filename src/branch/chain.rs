//! How what is there of a branch hangs together: one chain, from where it leaves the tree down to its end.
//!
//! Every entry of ours hangs on the one before, or on what the agent put behind that. Where a line in between is gone,
//! the chain has a gap: what stands behind it names the lost entry and can be joined again. Anything else that does
//! not form one chain was changed by somebody, and is refused. Linear in what the chain holds.

use super::Trouble;
use crate::tree::{Parent, Tree, check};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Entries that hang on each other, ours and what stands between them, from the top down; the last one is ours.
pub(super) struct Link {
    /// The entry that the first one names and that is gone; `None` where it hangs on what the branch leaves.
    pub(super) lost: Option<Arc<str>>,
    pub(super) entries: Vec<usize>,
}

impl Link {
    pub(super) fn tip(&self) -> Option<usize> {
        self.entries.last().copied()
    }
}

/// Whether the journal knows everything that it wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// It does: what is there is judged.
    Whole,
    /// Records were lost, and entries that stood for them are strangers now.
    Lost,
}

/// Where a walk up from an entry ended.
enum End {
    /// Where the branch leaves the tree.
    Base,
    /// On an entry that was walked over before.
    Joined(usize),
    Lost(Arc<str>),
    /// On a root, though the branch leaves the tree at an entry.
    Adrift,
}

/// The links of a branch that leaves the tree at `from`, `None` being the root; one without a gap comes first.
pub(super) fn links(
    tree: &Tree,
    ours: &BTreeSet<usize>,
    from: Option<&str>,
    memory: Memory,
) -> Result<Vec<Link>, Trouble> {
    let mut links: Vec<Link> = Vec::new();
    let mut walked_by: HashMap<usize, usize> = HashMap::new();
    // What was written last stands behind all else, so most often one walk sees everything.
    for start in ours.iter().rev() {
        if walked_by.contains_key(start) {
            continue;
        }
        let (mut walked, end) = walk(tree, *start, from, links.len(), &mut walked_by)?;
        walked.reverse();
        let top = walked.iter().copied().find(|index| ours.contains(index)).unwrap_or(*start);
        match end {
            End::Base => links.push(Link { lost: None, entries: walked }),
            End::Lost(id) => links.push(Link { lost: Some(id), entries: walked }),
            End::Joined(at) => {
                let number = walked_by.get(&at).copied().unwrap_or_default();
                match links.get_mut(number).filter(|link| link.tip() == Some(at)) {
                    Some(link) => {
                        walked_by.extend(walked.iter().map(|index| (*index, number)));
                        link.entries.extend(walked);
                    }
                    None if memory == Memory::Lost => links.push(Link { lost: None, entries: Vec::new() }),
                    None => return Err(misplaced(tree, top, "what came before it is not above it")),
                }
            }
            End::Adrift if memory == Memory::Lost => links.push(Link { lost: None, entries: Vec::new() }),
            End::Adrift => {
                return Err(misplaced(tree, top, "it does not hang below where the branch leaves"));
            }
        }
    }
    links.retain(|link| !link.entries.is_empty());
    links.sort_by_key(|link| link.lost.is_some());
    one_beginning(tree, ours, links, memory)
}

fn walk(
    tree: &Tree,
    start: usize,
    from: Option<&str>,
    number: usize,
    walked_by: &mut HashMap<usize, usize>,
) -> Result<(Vec<usize>, End), Trouble> {
    let (mut at, mut walked) = (start, Vec::new());
    loop {
        if tree.entries.get(at).is_some_and(|entry| Some(&*entry.id) == from) {
            return Ok((walked, End::Base));
        }
        match walked_by.get(&at) {
            Some(known) if *known == number => {
                return Err(super::found::damaged(check::damaged_path(tree, start)));
            }
            Some(_) => return Ok((walked, End::Joined(at))),
            None => {}
        }
        walked_by.insert(at, number);
        walked.push(at);
        match (tree.parent(at), tree.entries.get(at).map(|entry| &entry.parent)) {
            (Some(parent), _) => at = parent,
            (None, Some(Parent::Id(id))) => return Ok((walked, End::Lost(id.clone()))),
            (None, Some(Parent::Root)) if from.is_none() => return Ok((walked, End::Base)),
            (None, _) => return Ok((walked, End::Adrift)),
        }
    }
}

/// A branch leaves the tree once.
fn one_beginning(
    tree: &Tree,
    ours: &BTreeSet<usize>,
    mut links: Vec<Link>,
    memory: Memory,
) -> Result<Vec<Link>, Trouble> {
    let rooted = links.iter().filter(|link| link.lost.is_none()).count();
    if rooted < 2 {
        return Ok(links);
    }
    if memory == Memory::Whole {
        let second = links.first().and_then(|link| link.entries.iter().find(|index| ours.contains(index)));
        let why = "not everything of the branch is on one path with it";
        return Err(misplaced(tree, second.copied().unwrap_or_default(), why));
    }
    // The first link is the one that was walked from the end of the file.
    links.drain(1..rooted);
    Ok(links)
}

/// That an entry of ours hangs where the journal does not have it.
pub(super) fn misplaced(tree: &Tree, index: usize, why: &'static str) -> Trouble {
    let entry = tree.entries.get(index);
    Trouble::Place {
        line: entry.map_or(0, |entry| entry.line),
        id: entry.map(|entry| entry.id.to_string()).unwrap_or_default(),
        why,
    }
}
