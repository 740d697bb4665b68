//! What a writing command works on: the open journal, the turn's session tree, and the answer.
//!
//! Every step goes the same way: bring a branch that is behind up to date, record, write what the tree now lacks,
//! answer. What the journal acknowledged stands, whatever happens to the tree behind it.

use super::context::Context;
use super::error::{Exit, Failure};
use crate::branch::{self, Extent};
use crate::draft::History;
use crate::journal::Journal;
use crate::record::{At, Kind, TurnId};
use crate::recovery;
use crate::status::{self, Receipt, Status};
use crate::tree::Tree;
use crate::treefile;
use crate::turn::decide::Now;
use crate::turn::next::{Asker, BranchState};
use crate::turn::{Mark, Session, Turn};
use std::cell::Cell;
use std::path::{Path, PathBuf};

/// An open journal and what belongs to it.
pub struct Desk<'a> {
    /// The surroundings.
    pub context: &'a Context,
    /// The journal.
    pub journal: Journal<'a>,
    /// The time of this command.
    pub at: At,
    /// Where the session file was moved to, if a person says so.
    pub tree_file: Option<PathBuf>,
    /// The session file as this command read it last.
    seen: Cell<Option<Tree>>,
}

impl<'a> Desk<'a> {
    /// Works on an open journal.
    pub fn new(context: &'a Context, journal: Journal<'a>) -> Self {
        Self { context, journal, at: context.at(), tree_file: None, seen: Cell::default() }
    }

    /// The state. A journal whose genesis is still to be written has none.
    pub fn session(&self) -> Result<&Session, Failure> {
        self.journal.session().ok_or_else(|| {
            Failure::of(Exit::NotFound, "no_turn", "the journal is empty: no turn was ever admitted")
                .hint("`turnkeep admit` begins one")
        })
    }

    /// A turn that is not closed.
    pub fn turn(&self, id: &TurnId) -> Option<&Turn> {
        self.journal.session().and_then(|session| session.turn(id)).filter(|turn| !turn.is_closed())
    }

    /// Records some facts at once; they are durable when this returns.
    pub fn record(&mut self, kinds: Vec<Kind>) -> Result<Vec<Mark>, Failure> {
        Ok(self.journal.record(self.at.clone(), &self.context.fresh_id(), kinds)?)
    }

    /// Records some facts and then what the session tree lacks; answers with the receipt of the last one.
    ///
    /// A branch that was behind before was brought up to date when the turn was chosen.
    pub fn step(&mut self, turn: &TurnId, kinds: Vec<Kind>) -> Result<Receipt, Failure> {
        let marks = self.record(kinds)?;
        self.update_tree(turn);
        let mark = marks.last().ok_or_else(|| Failure::unexpected("nothing recorded"))?;
        Ok(receipt(mark, Repeated::No))
    }

    /// Writes what the branch lacks outside a recovery. What goes wrong is told, and `next` then is `recover`.
    pub fn update_tree(&self, id: &TurnId) {
        let _told = self.update_tree_or_tell(id);
    }

    /// The same, for one who has to know.
    pub fn update_tree_or_tell(&self, id: &TurnId) -> Result<(), Failure> {
        let updated = self.try_update_tree(id);
        if let Err(failure) = &updated {
            let text = if failure.exit == Exit::Damaged {
                format!(
                    "nothing was written to the session file: {}; what was recorded stands",
                    failure.message
                )
            } else {
                format!(
                    "the session file is behind the journal ({}); what was recorded stands, and `turnkeep recover` \
                     brings the file up to date",
                    failure.message
                )
            };
            self.context.out.note(&text);
        }
        updated
    }

    fn try_update_tree(&self, id: &TurnId) -> Result<(), Failure> {
        let Some(session) = self.journal.session() else { return Ok(()) };
        let Some(turn) = session.turn(id) else { return Ok(()) };
        let Some(path) = tree_path(turn, self.tree_file.as_deref()) else { return Ok(()) };
        if !branch::steps_write(turn) || !recovery::owns_tree(session, turn) {
            return Ok(());
        }
        let history = self.journal.history();
        let storage = self.context.storage.as_ref();
        // Most often nobody wrote to it since this command began.
        let tree = match self.seen.take() {
            Some(seen) => treefile::read_again(storage, &path, seen)?,
            None => treefile::read(storage, &path)?,
        };
        let extent = turn.tree.as_ref().map_or(Extent::Late, |tree| branch::extent_of(tree.mode));
        let written = write_branch(self.context, session, turn, history, &tree, &path, extent);
        self.seen.set(Some(tree));
        written
    }

    /// The status document of a turn.
    pub fn status(&self, id: Option<&TurnId>, asker: Asker) -> Result<Status, Failure> {
        let session = self.session()?;
        let turn = id.and_then(|id| session.turn(id));
        Ok(status_of(self.context, session, turn, self.journal.history(), &self.at, asker))
    }
}

/// Whether a receipt is of a record that stood there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeated {
    /// It was written now.
    No,
    /// It stood there before.
    Yes,
}

/// The receipt of a record.
pub fn receipt(mark: &Mark, repeated: Repeated) -> Receipt {
    Receipt {
        seq: mark.seq,
        hash: mark.hash.to_string(),
        repeated: (repeated == Repeated::Yes).then_some(true),
    }
}

/// Where the session file of a turn is.
pub fn tree_path(turn: &Turn, moved: Option<&Path>) -> Option<PathBuf> {
    let admitted = turn.tree.as_ref()?;
    Some(moved.map_or_else(|| PathBuf::from(&admitted.path), Path::to_owned))
}

/// Plans the branch and writes what is missing; durable when this returns.
pub fn write_branch(
    context: &Context,
    session: &Session,
    turn: &Turn,
    history: &History,
    tree: &Tree,
    path: &Path,
    extent: Extent,
) -> Result<(), Failure> {
    if let Some(trouble) = branch::lost_by_journal(&session.id, turn, history, tree) {
        return Err(recovery::Refusal::Branch(trouble).into());
    }
    let plan = branch::plan(&session.id, turn, history, tree, extent);
    if plan.as_ref().is_ok_and(|plan| plan.write.is_empty()) {
        return Ok(());
    }
    // What is wrong with the file as such explains the rest.
    recovery::check_tree(turn, tree)?;
    let plan = plan.map_err(recovery::Refusal::Branch)?;
    let header = recovery::needs_header(tree).then(|| recovery::header_for(turn, history));
    treefile::append(context.storage.as_ref(), path, tree, header.as_ref(), &plan.write)?;
    Ok(())
}

/// The status document of a turn, its session tree looked at.
pub fn status_of(
    context: &Context,
    session: &Session,
    turn: Option<&Turn>,
    history: &History,
    at: &At,
    asker: Asker,
) -> Status {
    let now = context.now(at.clone());
    let (branch, note) = match turn {
        Some(turn) => branch_state(context, session, turn, history, &now),
        None => (BranchState::UpToDate, None),
    };
    let mut status = status::of(session, turn, history, &now, branch, asker);
    status.notes.extend(note);
    status
}

/// The same by the records alone: a branch that belongs to them counts as written, whatever the session file holds.
pub fn status_of_records(
    context: &Context,
    session: &Session,
    turn: Option<&Turn>,
    history: &History,
    at: &At,
    asker: Asker,
) -> Status {
    status::of(session, turn, history, &context.now(at.clone()), BranchState::UpToDate, asker)
}

/// What keeps a recovery from writing to the session file of a turn that is not closed.
fn damaged_tree(session: &Session, turn: &Turn, tree: &Tree) -> Option<recovery::Refusal> {
    let needed = !turn.is_closed() && recovery::owns_tree(session, turn);
    needed.then(|| recovery::check_tree(turn, tree).err()).flatten()
}

/// How the session tree of a turn stands to the journal.
pub fn branch_state(
    context: &Context,
    session: &Session,
    turn: &Turn,
    history: &History,
    now: &Now<'_>,
) -> (BranchState, Option<String>) {
    let Some(path) = tree_path(turn, None) else { return (BranchState::UpToDate, None) };
    let tree = match treefile::read(context.storage.as_ref(), &path) {
        Ok(tree) => tree,
        // Whether it is behind cannot be known, so nobody is told to go on with the model.
        Err(error) => return (BranchState::Behind, Some(super::error::chain(&error))),
    };
    let refused = |refusal: recovery::Refusal| format!("the session file cannot be written to: {refusal}");
    let damaged = || damaged_tree(session, turn, &tree);
    match recovery::branch_behind(session, turn, history, &tree) {
        Ok(false) if recovery::is_ahead(session, turn, history, &tree, now) => {
            let note = "the session file holds entries of the dead agent that the journal lacks";
            (BranchState::Ahead, Some(note.to_owned()))
        }
        Ok(false) => (BranchState::UpToDate, damaged().map(refused)),
        Ok(true) => {
            let behind = "the session file is behind the journal".to_owned();
            (BranchState::Behind, Some(damaged().map_or(behind, refused)))
        }
        Err(trouble) => (BranchState::Behind, Some(refused(damaged().unwrap_or(trouble.into())))),
    }
}
