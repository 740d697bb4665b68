//! The tree seen from its roots: who is above whom, and what is on the active branch.
//!
//! Everything is found in one walk without recursion, so a chain of a million entries costs no stack and each
//! question afterwards is answered at once.

use super::{Leaf, Tree};

/// What a walk over the tree does.
#[derive(Clone, Copy)]
pub(super) enum Step {
    Enter(usize),
    Leave(usize),
}

/// Walks from the roots down, children in file order, without recursion.
pub(super) fn walk(tree: &Tree, mut visit: impl FnMut(Step)) {
    let mut stack: Vec<Step> = tree.roots().iter().rev().map(|root| Step::Enter(*root)).collect();
    while let Some(step) = stack.pop() {
        visit(step);
        if let Step::Enter(index) = step {
            stack.push(Step::Leave(index));
            stack.extend(tree.children(index).iter().rev().map(|child| Step::Enter(*child)));
        }
    }
}

/// The tree seen from its roots. Entries that end in a loop are not in it.
pub(super) struct Shape {
    /// The branch that ends on the leaf that Pi would open, else on the last entry.
    pub(super) active: Vec<usize>,
    /// Where an entry stands in `active`, plus one.
    place: Vec<usize>,
    /// When an entry was entered, counted from 1; 0 where no root leads to it.
    enter: Vec<usize>,
    /// How many entries there are below an entry.
    size: Vec<usize>,
    /// The last entry of the file at or below an entry.
    last: Vec<usize>,
    /// The first one.
    first: Vec<usize>,
}

impl Shape {
    pub(super) fn of(tree: &Tree) -> Self {
        let count = tree.entries.len();
        let leaf = match tree.leaf() {
            Leaf::Entry(index) => Some(index),
            Leaf::None | Leaf::Undefined { .. } => tree.last_entry(),
        };
        let active = leaf.map(|leaf| tree.path(leaf).entries).unwrap_or_default();
        let mut shape = Self {
            active,
            place: vec![0; count],
            enter: vec![0; count],
            size: vec![0; count],
            last: (0..count).collect(),
            first: (0..count).collect(),
        };
        for (place, index) in shape.active.iter().enumerate() {
            set(&mut shape.place, *index, place + 1);
        }
        let mut order = Vec::with_capacity(count);
        walk(tree, |step| {
            if let Step::Enter(index) = step {
                order.push(index);
            }
        });
        for (position, index) in order.iter().enumerate() {
            set(&mut shape.enter, *index, position + 1);
        }
        // Children come behind their parents in `order`, so backwards each is complete before it is added up.
        for index in order.iter().rev() {
            if let Some(parent) = tree.parent(*index) {
                let size = shape.below(parent) + shape.below(*index) + 1;
                set(&mut shape.size, parent, size);
                let last = shape.last(parent).max(shape.last(*index));
                let first = shape.first(parent).min(shape.first(*index));
                set(&mut shape.last, parent, last);
                set(&mut shape.first, parent, first);
            }
        }
        shape
    }

    /// Whether `above` is `index` or an ancestor of it.
    pub(super) fn is_above(&self, above: usize, index: usize) -> bool {
        let (from, at) = (get(&self.enter, above), get(&self.enter, index));
        from > 0 && (from..=from + self.below(above)).contains(&at)
    }

    pub(super) fn is_active(&self, index: usize) -> bool {
        self.place(index) > 0
    }

    /// The entry behind one of the active branch.
    pub(super) fn next(&self, index: usize) -> Option<usize> {
        self.active.get(self.place(index)).copied()
    }

    /// Where an entry stands on the active branch, counted from 1; 0 for one of another branch.
    pub(super) fn place(&self, index: usize) -> usize {
        get(&self.place, index)
    }

    pub(super) fn below(&self, index: usize) -> usize {
        get(&self.size, index)
    }

    pub(super) fn last(&self, index: usize) -> usize {
        get(&self.last, index)
    }

    pub(super) fn first(&self, index: usize) -> usize {
        get(&self.first, index)
    }
}

fn get(list: &[usize], index: usize) -> usize {
    list.get(index).copied().unwrap_or(0)
}

pub(super) fn set<T>(list: &mut [T], index: usize, value: T) {
    if let Some(slot) = list.get_mut(index) {
        *slot = value;
    }
}
