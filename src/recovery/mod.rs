//! A recovery as a value: what would be written, where, and why; or why it cannot be.
//!
//! Planning reads the state and the session tree and writes nothing. Everything that can refuse has refused before
//! there is a plan, and a plan holds the very bytes of its records and entries, so a dry run shows what is written.
//! Carrying it out is the shell's: records up to the branch, the branch, and last of all `recovered`.

mod adopt;
mod file;

pub use adopt::{Adoption, adopt, close_cut_off, entry_record, intents, meaning_of};
pub use file::{branch_behind, check_header, check_tree, header_for, is_ahead, needs_header, owns_tree};

use crate::branch::{self, Extent};
use crate::draft::{Draft, DraftError};
use crate::explain;
use crate::json::Raw;
use crate::record::{
    ApprovalDecision, Attempt, Branch, Cause, Decided, Decision, NotRunWhy, Owner, Parked, Recovered, Replay,
    TreeMode, TurnId, Unparked,
};
use crate::tree::{self, Tree};
use crate::turn::decide::{self, Holder, Now, Ruling, Sighting};
use crate::turn::{AnswerKind, Call, Session, Turn, next};

/// What a person or a driver asked for.
#[derive(Debug, Clone)]
pub struct Request {
    /// Who will hold the turn.
    pub owner: Option<Owner>,
    /// The lease that was asked for.
    pub lease_ms: Option<u64>,
    /// `--force --why TEXT`.
    pub force: Option<String>,
    /// `--close-calls`.
    pub calls: CloseCalls,
    /// `--onto`.
    pub onto: Onto,
    /// `--unpark`: who and why.
    pub unpark: Option<(String, String)>,
    /// Where the session file was moved to; `None` is where it was.
    pub tree_path: Option<String>,
}

/// Where the branch of a recovery begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Onto {
    /// At the entry that the turn was admitted on, or where a recovery before put it.
    Admission,
    /// Behind what the file holds of the turn, where that is exactly its beginning; else as [`Onto::Admission`].
    Live,
}

/// Whether the agent can run calls that a recovery lets run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseCalls {
    /// It can.
    No,
    /// It cannot run a call outside its own loop: what would run is closed.
    Yes,
}

/// What a plan is made from, beside the journal.
pub struct Surroundings<'a> {
    /// Time, policy and processes.
    pub now: Now<'a>,
    /// The session tree of the turn; `None` where it has none.
    pub tree: Option<&'a Tree>,
    /// What a dead runner's tool had printed.
    pub output_so_far: &'a dyn Fn(&Call) -> Option<String>,
}

/// A recovery that can be carried out.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How it ends.
    pub verdict: Verdict,
    /// Who asked: the living owner gets its ticket again, whatever the verdict.
    pub asker: next::Asker,
    /// The records, in the order of writing.
    pub draft: Draft,
    /// How many bytes of the draft come before the branch.
    pub before_branch: usize,
    /// The header of a session file that is not there yet.
    pub header: Option<Raw>,
    /// The branch.
    pub branch: Option<branch::Plan>,
    /// A decision for each call of the turn.
    pub decisions: Vec<Decided>,
    /// What a person should know.
    pub notes: Vec<String>,
}

/// How a recovery ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The turn has an attempt again.
    Ready,
    /// Only somebody else can move the turn.
    Waiting,
    /// The attempt limit was reached: the turn is parked now.
    Parked(String),
}

/// Why there is no plan. Where several hold, the first of these is told.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The owner lives and is somebody else.
    #[error("turn {turn} is held by attempt {attempt}, whose owner lives")]
    OwnerAlive {
        /// The turn.
        turn: TurnId,
        /// The attempt.
        attempt: u64,
        /// Its owner.
        owner: Option<Box<Owner>>,
    },
    /// The session tree is damaged, or of another version.
    #[error(transparent)]
    Tree(#[from] tree::Refusal),
    /// The session tree holds something that the journal contradicts.
    #[error(transparent)]
    Branch(#[from] branch::Trouble),
    /// The file that the turn was admitted on is gone.
    #[error("the session file {path} is gone or empty")]
    TreeMissing {
        /// Its path.
        path: String,
        /// How many committed records the journal has for it.
        committed: usize,
    },
    /// Another session file stands where that of the turn was.
    #[error("the turn was admitted on session file {expected:?}, and this is {found:?}")]
    OtherTree {
        /// The id in the header of the turn's file.
        expected: String,
        /// The id in the header of this one.
        found: String,
    },
    /// A user's message was added to the tree that the journal does not know.
    #[error(
        "the conversation moved on: line {line} of the session file is a user's message that is not of this turn{}",
        std::iter::once("").chain(notes.iter().map(String::as_str)).collect::<Vec<_>>().join("; ")
    )]
    MovedOn {
        /// Its line.
        line: usize,
        /// What else there is that the turn does not have.
        notes: Vec<String>,
    },
    /// The tree holds a result of a call that nobody claimed.
    #[error(
        "line {line} of the session file is a result of call {id:?}, which was neither claimed nor answered"
    )]
    Unjournaled {
        /// Its line.
        line: usize,
        /// The provider's id of the call.
        id: String,
    },
    /// A person's act came at the wrong time.
    #[error("turn {0} is not parked")]
    NotParked(TurnId),
    /// A record could not be drafted.
    #[error(transparent)]
    Draft(#[from] DraftError),
}

/// Plans the recovery of a turn on top of a draft that may hold repairs already.
pub fn plan(
    draft: Draft,
    id: &TurnId,
    request: &Request,
    around: &Surroundings<'_>,
) -> Result<Plan, Refusal> {
    let mut planner = Planner {
        plan: Plan {
            verdict: Verdict::Ready,
            asker: next::Asker::Other,
            draft,
            before_branch: 0,
            header: None,
            branch: None,
            decisions: Vec::new(),
            notes: Vec::new(),
        },
        id: id.clone(),
        request,
        around,
    };
    planner.run()?;
    Ok(planner.plan)
}

struct Planner<'a> {
    plan: Plan,
    id: TurnId,
    request: &'a Request,
    around: &'a Surroundings<'a>,
}

/// How an attempt comes about.
enum Beginning {
    /// A new one.
    Attempt { number: u64, cause: Cause },
    /// The current owner asks again.
    SameOwner,
}

impl Planner<'_> {
    fn run(&mut self) -> Result<(), Refusal> {
        if let Some((by, why)) = self.request.unpark.clone() {
            self.unpark(by, why)?;
        }
        let beginning = self.beginning()?;
        if matches!(beginning, Beginning::SameOwner) {
            self.plan.asker = next::Asker::Owner;
        }
        self.check_tree()?;
        self.warn_of_refused();
        let turn = self.turn().clone();
        let unfinished = turn.current().is_some_and(crate::turn::Attempt::unfinished);
        let adoption = self.adoption()?;
        let parks = !unfinished
            && matches!(beginning, Beginning::Attempt { .. })
            && next::would_park(&turn, &self.around.now);
        if turn.parked.is_some() {
            return self.wait(turn.parked.map(|parked| format!("the turn is parked: {}", parked.why)));
        }
        let at_it =
            matches!(beginning, Beginning::SameOwner) && turn.open_calls().any(|call| own_claim(&turn, call));
        if !unfinished && !at_it && file::waits_with(&self.plan.draft, &turn, &adoption, &self.around.now)? {
            return self.wait(None);
        }
        if parks {
            return self.park(&turn);
        }
        let since = unfinished_since(&turn).unwrap_or(turn.newest.seq);
        match beginning {
            Beginning::Attempt { number, cause } => {
                let (turn, why) = (self.id.clone(), self.request.force.clone());
                let (owner, lease_ms) = (self.request.owner.clone(), self.request.lease_ms);
                self.plan.draft.push(Attempt { turn, attempt: number, cause, why, owner, lease_ms })?;
                self.journal_entries(&adoption)?;
                let decided = self.settle_calls(since)?;
                self.finish(decided)
            }
            Beginning::SameOwner => {
                self.journal_entries(&adoption)?;
                let decided = self.settle_calls(since)?;
                let due: Vec<Decided> = decided.into_iter().filter(|decided| self.due(decided)).collect();
                self.list_again(&turn, &due);
                if due.is_empty() && adoption.entries.is_empty() && !self.branch_is_due() {
                    self.plan.before_branch = self.plan.draft.bytes.len();
                    return Ok(());
                }
                self.finish(due)
            }
        }
    }

    fn turn(&self) -> &Turn {
        #[expect(clippy::expect_used, reason = "the caller names a turn of the session that is not closed")]
        self.plan.draft.session.turn(&self.id).expect("an unclosed turn")
    }

    fn session(&self) -> &Session {
        &self.plan.draft.session
    }

    fn unpark(&mut self, by: String, why: String) -> Result<(), Refusal> {
        if self.turn().parked.is_none() {
            return Err(Refusal::NotParked(self.id.clone()));
        }
        self.plan.draft.push(Unparked { turn: self.id.clone(), why, by })?;
        Ok(())
    }

    fn beginning(&self) -> Result<Beginning, Refusal> {
        let turn = self.turn();
        let Some(current) = turn.current() else {
            return Ok(Beginning::Attempt { number: 1, cause: Cause::Recover });
        };
        let holder = self.around.now.holder(current);
        let same = match (&self.request.owner, &current.owner) {
            (Some(asking), Some(owner)) => crate::owner::same(asking, owner),
            _ => false,
        };
        // Where nobody can look, a lease that ran out proves nothing.
        let seen_gone =
            current.owner.as_ref().is_none_or(|owner| (self.around.now.look)(owner) == Sighting::Gone);
        let may_live = !seen_gone && !same;
        if holder == Holder::Alive && !same && self.request.force.is_none() {
            return Err(Refusal::OwnerAlive {
                turn: turn.id.clone(),
                attempt: current.number,
                owner: current.owner.clone().map(Box::new),
            });
        }
        // Behind lost records nobody knows whether its attempt is the newest one.
        if same && holder != Holder::Gone && !current.unfinished() && turn.lost_numbers == 0 {
            return Ok(Beginning::SameOwner);
        }
        let cause = if may_live { Cause::Takeover } else { Cause::Recover };
        // An unfinished recover is gone on with, but under the next number where the old one may still act.
        // Behind lost records that may have been attempts too.
        let lost = turn.lost_numbers;
        let number = current.number + lost + u64::from(!current.unfinished() || may_live || lost > 0);
        Ok(Beginning::Attempt { number, cause })
    }

    fn check_tree(&self) -> Result<(), Refusal> {
        let Some(tree) = self.tree() else { return Ok(()) };
        check_tree(self.turn(), tree)?;
        let lost = branch::lost_by_journal(&self.session().id, self.turn(), &self.plan.draft.history, tree);
        if let Some(trouble) = lost.filter(|_| self.request.force.is_none()) {
            return Err(trouble.into());
        }
        // Damage to our own entries is told before anything that a person could force.
        branch::plan(&self.session().id, self.turn(), &self.plan.draft.history, tree, Extent::Recover)?;
        Ok(())
    }

    /// A branch cannot mend what stands above it.
    fn warn_of_refused(&mut self) {
        let admitted = self.turn().tree.as_ref();
        let leaf = admitted.and_then(|admitted| admitted.leaf.as_deref());
        let refused = self.tree().and_then(|tree| tree::sent::refused(tree, leaf));
        self.plan.notes.extend(refused);
    }

    /// The tree, if it is this turn's to write: no later turn was admitted on it.
    fn tree(&self) -> Option<&Tree> {
        self.around.tree.filter(|_| owns_tree(self.session(), self.turn()))
    }

    /// What the dead agent wrote itself and the journal does not have yet.
    fn adoption(&self) -> Result<Adoption, Refusal> {
        let Some(tree) = self.tree() else { return Ok(Adoption::default()) };
        let adoption = adopt(&self.plan.draft, &self.id, tree, self.around.now.policy);
        if self.request.force.is_none() && !self.settled_and_whole(tree) {
            if let Some((line, id)) = &adoption.unjournaled {
                return Err(Refusal::Unjournaled { line: *line, id: id.clone() });
            }
            if let Some(line) = adoption.moved_on {
                return Err(Refusal::MovedOn { line, notes: adoption.notes });
            }
        }
        Ok(adoption)
    }

    fn settled_and_whole(&self, tree: &Tree) -> bool {
        self.turn().settled.is_some() && branch::lacks_nothing(self.turn(), &self.plan.draft.history, tree)
    }

    fn wait(&mut self, note: Option<String>) -> Result<(), Refusal> {
        self.plan.verdict = Verdict::Waiting;
        self.plan.notes.extend(note);
        match self.plan.asker {
            next::Asker::Owner => self.list_again(&self.turn().clone(), &[]),
            next::Asker::Other => self.list_decisions(&[]),
        }
        if self.branch_is_there() {
            self.update_branch()?;
        }
        self.plan.before_branch = self.plan.draft.bytes.len();
        Ok(())
    }

    /// Brings a branch that is there up to date, and makes it the one that is opened.
    fn update_branch(&mut self) -> Result<(), Refusal> {
        let mode = self.turn().tree.as_ref().map_or(TreeMode::Branch, |tree| tree.mode);
        self.plan_branch(branch::extent_of(mode))?;
        let (session, turn) = (self.session().id.clone(), self.turn().clone());
        if let (Some(tree), Some(branch)) = (self.around.tree, &mut self.plan.branch)
            && turn.settled.is_none()
            && !branch::last_line_continues(branch, tree)
        {
            branch::end_with_marker(branch, &session, &turn, tree);
        }
        Ok(())
    }

    fn park(&mut self, turn: &Turn) -> Result<(), Refusal> {
        let fruitless = turn.fruitless_attempts();
        let why = format!("the newest {fruitless} attempts made no progress");
        let parked = Parked { turn: self.id.clone(), why: why.clone(), by: "turnkeep".to_owned() };
        self.plan.draft.push(parked)?;
        self.plan.verdict = Verdict::Parked(why);
        self.plan.before_branch = self.plan.draft.bytes.len();
        self.list_decisions(&[]);
        Ok(())
    }

    fn journal_entries(&mut self, adoption: &Adoption) -> Result<(), Refusal> {
        // A cut-off message may stand in the journal without what its step wrote behind it.
        adopt::close_cut_off(&mut self.plan.draft, &self.id)?;
        for entry in &adoption.entries {
            adopt::journal(&mut self.plan.draft, &self.id, entry, self.around.now.policy)?;
        }
        self.plan.notes.extend(adoption.notes.iter().cloned());
        Ok(())
    }

    /// Decides about each call without an answer at `since`, and answers those that are settled by it.
    fn settle_calls(&mut self, since: u64) -> Result<Vec<Decided>, Refusal> {
        let turn = self.turn().clone();
        let answered = |call: &&Call| call.answer.as_ref().is_none_or(|answer| answer.mark.seq > since);
        let listed: Vec<Decided> = turn
            .calls
            .iter()
            .filter(answered)
            .map(|call| self.settle_call(&turn, call))
            .collect::<Result<_, _>>()?;
        self.list_decisions(&listed);
        Ok(listed)
    }

    /// Of what the living owner is told again, what is decided now.
    fn due(&self, decided: &Decided) -> bool {
        match decided.decision {
            Decision::Interrupt | Decision::NotRun => true,
            Decision::Rerun => {
                let turn = self.turn();
                turn.call(decided.r#ref).is_some_and(|call| call.rerun_by != Some(turn.current_number()))
            }
            _ => false,
        }
    }

    fn settle_call(&mut self, turn: &Turn, call: &Call) -> Result<Decided, Refusal> {
        let mut ruling = decide::rule(turn, call, &self.around.now);
        if let Some(answer) = &call.answer {
            // Written by this attempt before it was killed: listed as it was decided.
            let (decision, why) = match answer.kind {
                AnswerKind::Interrupted => (Decision::Interrupt, "decided before, its answer is written"),
                AnswerKind::NotRun(NotRunWhy::CutOff) => (Decision::NotRun, "its message was cut off"),
                AnswerKind::NotRun(_) => (Decision::NotRun, "decided before, its answer is written"),
                _ => (Decision::Redeliver, "its answer came meanwhile"),
            };
            (ruling.decision, ruling.why) = (decision, why.to_owned());
            return Ok(decided(call, ruling));
        }
        if own_claim(turn, call) {
            ruling.decision = Decision::Await;
            "its owner is at it".clone_into(&mut ruling.why);
        }
        let mut why_not = None;
        if self.request.calls == CloseCalls::Yes {
            match ruling.decision {
                Decision::Run => {
                    ruling.decision = Decision::NotRun;
                    why_not = Some(NotRunWhy::Refused);
                    ruling.why.push_str("; this agent cannot run it outside its own loop");
                }
                Decision::Rerun => {
                    ruling.decision = Decision::Interrupt;
                    ruling.why.push_str("; this agent cannot run it again outside its own loop");
                }
                _ => {}
            }
        }
        match ruling.decision {
            Decision::Interrupt => {
                let output = (self.around.output_so_far)(call);
                self.plan.draft.push(explain::interrupted(turn, call, output))?;
            }
            Decision::NotRun => {
                let why = why_not.unwrap_or_else(|| why_not_run(turn, call));
                self.plan.draft.push(explain::not_run(turn, call, why))?;
            }
            _ => {}
        }
        Ok(decided(call, ruling))
    }

    /// The calls that were answered before stand in the list too, as what they are.
    fn list_decisions(&mut self, listed: &[Decided]) {
        let turn = self.turn().clone();
        let decision = |call: &Call| {
            listed
                .iter()
                .find(|decided| decided.r#ref == call.r#ref)
                .cloned()
                .unwrap_or_else(|| decided(call, decide::rule(&turn, call, &self.around.now)))
        };
        self.plan.decisions = turn.calls.iter().map(decision).collect();
    }

    /// What the owner that asks again was told before, with what is decided now.
    fn list_again(&mut self, before: &Turn, due: &[Decided]) {
        let told = before.current().and_then(|attempt| attempt.recovered.as_ref());
        let told = told.map(|(_, decisions)| decisions.as_slice()).unwrap_or_default();
        let anew = |decided: &&Decided| !due.iter().any(|due| due.r#ref == decided.r#ref);
        let mut listed: Vec<Decided> = due.iter().chain(told.iter().filter(anew)).cloned().collect();
        for call in before.open_calls().filter(|call| own_claim(before, call)) {
            let mut ruling = decide::rule(before, call, &self.around.now);
            (ruling.decision, ruling.why) = (Decision::Await, "its owner is at it".to_owned());
            listed.retain(|known| known.r#ref != call.r#ref);
            listed.push(decided(call, ruling));
        }
        self.list_decisions(&listed);
    }

    /// The branch, and the record that ends the recovery.
    fn finish(&mut self, decisions: Vec<Decided>) -> Result<(), Refusal> {
        self.plan.before_branch = self.plan.draft.bytes.len();
        if self.branch_is_wanted() {
            self.plan_branch(Extent::Recover)?;
        }
        let turn = self.turn();
        let attempt = turn.current_number();
        let branch = self.plan.branch.as_ref().and_then(|branch| {
            Some(Branch {
                path: self.request.tree_path.clone().or_else(|| Some(turn.tree.as_ref()?.path.clone()))?,
                from: branch.from.clone(),
                leaf: branch.leaf.clone()?,
                entries: branch.entries,
            })
        });
        self.plan.draft.push(Recovered { turn: self.id.clone(), attempt, decisions, branch })?;
        Ok(())
    }

    /// An open turn always gets its branch; a settled one only if the file lacks it.
    fn branch_is_wanted(&self) -> bool {
        let Some(tree) = self.tree() else { return false };
        !self.settled_and_whole(tree) || self.branch_is_due()
    }

    fn branch_is_there(&self) -> bool {
        let Some(tree) = self.tree() else { return false };
        let turn = self.turn();
        let appends = turn.tree.as_ref().is_some_and(|tree| tree.mode == TreeMode::Append);
        appends || !branch::ours(&self.session().id, turn, &self.plan.draft.history, tree).is_empty()
    }

    fn branch_is_due(&self) -> bool {
        let Some(tree) = self.tree() else { return false };
        branch_behind(self.session(), self.turn(), &self.plan.draft.history, tree).unwrap_or(false)
    }

    fn plan_branch(&mut self, extent: Extent) -> Result<(), Refusal> {
        let Some(tree) = self.tree() else { return Ok(()) };
        let (session, history) = (self.session(), &self.plan.draft.history);
        let header = needs_header(tree).then(|| header_for(self.turn(), history));
        let live = match self.request.onto {
            Onto::Live if extent == Extent::Recover => branch::live_tip(self.turn(), history, tree),
            Onto::Live | Onto::Admission => None,
        };
        let branch = match live {
            Some(tip) => branch::plan_onto(&session.id, self.turn(), history, tree, extent, Some(&tip))?,
            None => branch::plan(&session.id, self.turn(), history, tree, extent)?,
        };
        if !branch.lost.is_empty() {
            self.plan.notes.push(format!(
                "the session file had lost {} entries in the middle of the branch; they are written anew",
                branch.lost.len()
            ));
        }
        self.plan.branch = Some(branch);
        self.plan.header = header;
        Ok(())
    }
}

/// The `not_run` of calls whose message was cut off and that have no answer yet.
fn cut_off_calls(turn: &Turn) -> Vec<crate::record::NotRun> {
    turn.open_calls()
        .filter(|call| call.is_cut_off())
        .map(|call| explain::not_run(turn, call, NotRunWhy::CutOff))
        .collect()
}

/// A claim of the attempt itself, without a runner, whose owner asks again: it is at it, and at what it nests there.
fn own_claim(turn: &Turn, call: &Call) -> bool {
    let current = turn.current_number();
    if !call.may_have_run()
        && let Some(parent) = call.parent.and_then(|parent| turn.call(parent))
    {
        return parent.answer.is_none() && own_claim(turn, parent);
    }
    call.live_claim().is_some_and(|claim| claim.attempt == current && claim.runner.is_none())
}

/// Seq behind which answers are those of a recovery that is still unfinished: of all its attempts, where it had to go
/// on under another number.
fn unfinished_since(turn: &Turn) -> Option<u64> {
    let unfinished = turn.attempts.iter().rev().take_while(|attempt| attempt.unfinished());
    unfinished.last().map(|attempt| attempt.first_seq)
}

fn why_not_run(turn: &Turn, call: &Call) -> NotRunWhy {
    if call.is_cut_off() {
        NotRunWhy::CutOff
    } else if turn.cancelled.is_some() {
        NotRunWhy::Cancelled
    } else if call.word() == Some(ApprovalDecision::Denied) {
        NotRunWhy::Denied
    } else {
        NotRunWhy::Refused
    }
}

fn decided(call: &Call, ruling: Ruling) -> Decided {
    Decided {
        r#ref: call.r#ref,
        decision: ruling.decision,
        why: ruling.why,
        replay_stored: call.replay,
        replay_now: ruling.now,
    }
}

/// Replay policy of a call now, for people who ask without recovering.
pub fn replay_now(call: &Call, now: &Now<'_>) -> Replay {
    now.rule_of(call).replay
}

#[cfg(test)]
mod tests;
