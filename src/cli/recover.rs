//! `turnkeep recover`: decide, bring the session tree up to date, take the turn over.
//!
//! The plan is made by the library and shown or carried out here, in this order: a torn tail, the records up to the
//! branch, the branch, and last `recovered`; only then is there a ticket.

mod all;

use super::args::{AdmitArgs, Onto, OwnerArgs, RecoverArgs};
use super::become_cmd;
use super::context::{Context, WithCmd, milliseconds, nameable};
use super::desk::{self, Desk};
use super::error::{Exit, Failure, NOT_PARKED_HINT};
use super::select;
use crate::branch::{self, Extent};
use crate::journal::{Journal, Prepared};
use crate::json::Raw;
use crate::record::{Decision, Kind, Owner, Repaired, TurnId, Unparked};
use crate::recovery::{self, CloseCalls, Plan, Request, Surroundings, Verdict};
use crate::status::{self, Status};
use crate::tree::Tree;
use crate::treefile;
use crate::turn::decide;
use crate::turn::next::Asker;
use crate::turn::{Call, Retain, Session, Turn};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What a recovery was asked for.
#[derive(Debug, Clone)]
pub struct Recovery<'a> {
    session: String,
    turn: Option<TurnId>,
    owner: &'a OwnerArgs,
    cmd: &'a [OsString],
    force: Option<String>,
    salvage: Option<String>,
    unpark: Option<(String, String)>,
    calls: CloseCalls,
    onto: recovery::Onto,
    wait_result: Duration,
    tree_file: Option<PathBuf>,
    mode: Mode,
}

/// Whether a plan is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Carry,
    Show,
}

impl<'a> Recovery<'a> {
    /// A turn that was admitted before and is gone on with.
    pub fn resuming(args: &'a AdmitArgs, turn: TurnId) -> Self {
        Self {
            session: args.session.clone(),
            turn: Some(turn),
            owner: &args.owner,
            cmd: &args.cmd,
            force: None,
            salvage: None,
            unpark: None,
            calls: CloseCalls::No,
            onto: recovery::Onto::Admission,
            wait_result: Duration::ZERO,
            tree_file: None,
            mode: Mode::Carry,
        }
    }

    fn asked(context: &Context, args: &'a RecoverArgs) -> Result<Self, Failure> {
        if args.r#match.is_some() {
            // The parser lets it pass where a session is named, too.
            return Err(Failure::usage("match_of_one", "--match goes with --all")
                .hint("leave it out, or name no session and give --all"));
        }
        let tree_file = args.tree_file.as_deref().map(nameable).transpose()?.map(|(path, _)| path);
        let why = || args.why.clone().unwrap_or_default();
        let exists = |id: &str| context.has_session(id);
        let (session, turn) = select::session_and_turn(args.session.as_deref().unwrap_or_default(), exists);
        // Of several turns it is the parked one that a person lets go on.
        let turn = turn.or_else(|| select::turn_of_ticket(&session).filter(|_| !args.unpark));
        Ok(Self {
            session,
            turn,
            owner: &args.owner,
            cmd: &args.cmd,
            force: args.force.then(why),
            salvage: args.salvage.then(why),
            unpark: args.unpark.then(|| (args.by.clone().unwrap_or_default(), why())),
            calls: if args.close_calls { CloseCalls::Yes } else { CloseCalls::No },
            onto: match args.onto {
                Onto::Admission => recovery::Onto::Admission,
                Onto::Live => recovery::Onto::Live,
            },
            wait_result: Duration::from_secs_f64(args.wait_result.unwrap_or(0.0)),
            tree_file,
            mode: if args.dry_run { Mode::Show } else { Mode::Carry },
        })
    }
}

/// Runs the command.
pub fn run(context: &Context, args: RecoverArgs) -> Result<Exit, Failure> {
    become_cmd::check(&args.cmd)?;
    if args.why.is_some() && !(args.force || args.salvage || args.unpark) {
        return Err(Failure::usage("why_of_nothing", "--why goes with --force, --salvage or --unpark")
            .hint("give the act that it is the reason for, or leave it out"));
    }
    if args.by.is_some() && !args.unpark {
        return Err(Failure::usage("by_of_nothing", "--by goes with --unpark")
            .hint("leave it out: a takeover has an owner"));
    }
    if args.all {
        return all::run(context, &args);
    }
    match recover(context, &Recovery::asked(context, &args)?) {
        Err(failure) if args.one_of_all && failure.exit == Exit::Busy => Ok(failure.exit),
        ended => ended,
    }
}

/// Recovers one turn.
pub fn recover(context: &Context, recovery: &Recovery<'_>) -> Result<Exit, Failure> {
    let with_cmd = WithCmd::of(recovery.cmd);
    let owner = context.owner(recovery.owner, with_cmd)?;
    context.arm()?;
    let signal = || context.signal();
    let deadline = Instant::now() + recovery.wait_result;
    loop {
        let mut journal = match &recovery.salvage {
            None => context.open(&recovery.session, &signal)?,
            Some(_) => Journal::open_to_salvage(context.setting(&signal), &recovery.session)?,
        };
        let salvaged = match &recovery.salvage {
            None => Vec::new(),
            Some(why) => journal.salvage(why)?,
        };
        let mut desk = Desk::new(context, journal);
        desk.tree_file.clone_from(&recovery.tree_file);
        let mut run = Run { context, recovery, owner: owner.clone(), with_cmd, desk, salvaged };
        if Instant::now() < deadline && run.awaits_result() && context.signal().is_none() {
            // The lock is given back, so that the result can be recorded.
            drop(run);
            std::thread::sleep(Duration::from_millis(20).min(deadline - Instant::now()));
            continue;
        }
        return run.recover();
    }
}

struct Run<'a, 'r> {
    context: &'a Context,
    recovery: &'r Recovery<'r>,
    owner: Option<Owner>,
    with_cmd: WithCmd,
    desk: Desk<'a>,
    /// Acknowledgements of damage, still to be written.
    salvaged: Vec<Repaired>,
}

impl Run<'_, '_> {
    fn recover(&mut self) -> Result<Exit, Failure> {
        let Some(id) = self.turn()? else { return self.nothing() };
        let tree = self.tree(&id)?;
        let prepared = self.prepare()?;
        if prepared.draft.session.turn(&id).is_none_or(Turn::is_closed) {
            // What was acknowledged just now closes it: a key that a lost admission may have told is none.
            return self.acknowledge(prepared);
        }
        let context = self.context;
        let request = Request {
            owner: self.owner.clone(),
            lease_ms: self.recovery.owner.lease.map(milliseconds),
            force: self.recovery.force.clone(),
            calls: self.recovery.calls,
            onto: self.recovery.onto,
            unpark: self.recovery.unpark.clone(),
            tree_path: self.recovery.tree_file.as_deref().map(|path| path.to_string_lossy().into_owned()),
        };
        let session = self.recovery.session.clone();
        let output = |call: &Call| super::spool::output_so_far(context, &session, &id, call);
        let around = Surroundings {
            now: context.now(self.desk.at.clone()),
            tree: tree.as_ref(),
            output_so_far: &output,
        };
        let planned = recovery::plan(prepared.draft.clone(), &id, &request, &around);
        if let Err(recovery::Refusal::OwnerAlive { .. }) = planned {
            self.unpark_alone(&id)?;
        }
        let plan = planned?;
        // What cannot be written is found out before anything is.
        if let Some(path) = self.written_tree(&id, &plan) {
            treefile::check_writable(self.context.storage.as_ref(), &path)?;
        }
        for note in &plan.notes {
            self.context.out.note(note);
        }
        match self.recovery.mode {
            Mode::Show => self.show(&id, &plan),
            Mode::Carry => self.carry_out(&id, prepared, plan, tree.as_ref()),
        }
    }

    /// Writes the acknowledgements alone: the turn that was open by them is closed, and another run takes the next.
    fn acknowledge(&mut self, mut prepared: Prepared) -> Result<Exit, Failure> {
        if self.recovery.mode == Mode::Show {
            self.print(&records(&prepared.draft.bytes), &[])?;
            return Ok(Exit::AlreadyDone);
        }
        self.desk.journal.write(&mut prepared)?;
        match self.turn()? {
            Some(_) => self.recover(),
            None => self.nothing(),
        }
    }

    /// A draft that begins with the acknowledgements of damage.
    fn prepare(&mut self) -> Result<Prepared, Failure> {
        let mut prepared = self.desk.journal.prepare(self.desk.at.clone(), &self.context.fresh_id())?;
        for repaired in std::mem::take(&mut self.salvaged) {
            self.context.out.note(&format!(
                "acknowledged as damaged: {} bytes from byte {}; nothing was removed",
                repaired.bytes, repaired.offset
            ));
            prepared.draft.push(repaired)?;
        }
        Ok(prepared)
    }

    /// The session file, if the plan writes to it.
    fn written_tree(&self, id: &TurnId, plan: &Plan) -> Option<PathBuf> {
        plan.branch.as_ref().filter(|branch| !branch.write.is_empty())?;
        desk::tree_path(plan.draft.session.turn(id)?, self.desk.tree_file.as_deref())
    }

    /// The turn to recover; `None` where nothing is unclosed.
    fn turn(&mut self) -> Result<Option<TurnId>, Failure> {
        let context = self.context;
        let now = context.now(self.desk.at.clone());
        let asking = self.owner.as_ref();
        let Some(session) = self.desk.journal.session() else { return Ok(None) };
        match &self.recovery.turn {
            None => {
                let unparks = self.recovery.unpark.is_some();
                let parked = session.unclosed().find(|turn| unparks && turn.parked.is_some());
                let found = parked.or_else(|| select::free_turn(session, &now, asking));
                Ok(found.map(|turn| turn.id.clone()))
            }
            Some(id) if session.turn(id).is_some_and(|turn| !turn.is_closed()) => Ok(Some(id.clone())),
            Some(id) => {
                let id = id.clone();
                // What is salvaged was read as a whole, and cannot be read again before its damage is acknowledged.
                let is_known = if session.is_complete() {
                    session.knows(&id)
                } else {
                    let whole = self.desk.journal.load_all(Retain::Unclosed)?.session;
                    whole.is_some_and(|session| session.knows(&id))
                };
                if is_known {
                    return Ok(None);
                }
                Err(Failure::of(Exit::NotFound, "no_turn", format!("there is no turn {id}"))
                    .hint(select::no_turn_hint(&self.recovery.session)))
            }
        }
    }

    /// A person's act stands also where a living owner is in the way of what would follow.
    fn unpark_alone(&mut self, id: &TurnId) -> Result<(), Failure> {
        if self.recovery.mode == Mode::Carry
            && let Some((by, why)) = self.recovery.unpark.clone()
        {
            self.desk.record(vec![Kind::from(Unparked { turn: id.clone(), why, by })])?;
        }
        Ok(())
    }

    fn tree(&self, id: &TurnId) -> Result<Option<Tree>, Failure> {
        let path = self.desk.turn(id).and_then(|turn| desk::tree_path(turn, self.desk.tree_file.as_deref()));
        Ok(path.map(|path| treefile::read(self.context.storage.as_ref(), &path)).transpose()?)
    }

    fn awaits_result(&self) -> bool {
        let context = self.context;
        let now = context.now(context.at());
        let Some(session) = self.desk.journal.session() else { return false };
        let named = self.recovery.turn.as_ref().and_then(|id| session.turn(id));
        let turn = named.or_else(|| select::free_turn(session, &now, self.owner.as_ref()));
        turn.is_some_and(|turn| {
            turn.open_calls().any(|call| decide::rule(turn, call, &now).decision == Decision::Await)
        })
    }

    /// Nothing is unclosed: the tail is repaired and a branch that is behind completed, and CMD is not started.
    fn nothing(&mut self) -> Result<Exit, Failure> {
        if self.recovery.unpark.is_some() {
            return Err(Failure::conflict("not_parked", "no turn is parked").hint(NOT_PARKED_HINT));
        }
        if !self.salvaged.is_empty() {
            let mut prepared = self.prepare()?;
            if self.recovery.mode == Mode::Show {
                self.print(&records(&prepared.draft.bytes), &[])?;
                return Ok(Exit::AlreadyDone);
            }
            // A person's act: it stands, whatever follows.
            self.desk.journal.write(&mut prepared)?;
        }
        let loaded = self.desk.journal.load_all(Retain::All)?;
        let wanted = self.recovery.turn.as_ref();
        let newest = |session: &'_ Session| -> Option<TurnId> {
            let of_name = wanted.and_then(|id| session.turn(id));
            of_name.or_else(|| session.turns.last()).map(|turn| turn.id.clone())
        };
        let id = loaded.session.as_ref().and_then(newest);
        let mut prepared = self.desk.journal.prepare(self.desk.at.clone(), &self.context.fresh_id())?;
        // A journal without a genesis gets one, and a tail is made whole.
        let session = loaded.session.as_ref().unwrap_or(&prepared.draft.session).clone();
        let branch = match &id {
            Some(id) => self.missing_branch(&session, id, &loaded.history)?,
            None => None,
        };
        if self.recovery.mode == Mode::Carry {
            self.desk.journal.write(&mut prepared)?;
            if let Some(branch) = &branch {
                branch.write(self.context)?;
            }
        }
        self.context.out.note(&match wanted {
            Some(id) => format!("turn {id} is closed: there is nothing to recover"),
            None => "every turn is closed: there is nothing to recover".to_owned(),
        });
        let records = records(&prepared.draft.bytes);
        let entries = branch.map(Missing::entries).unwrap_or_default();
        let shown = self.recovery.mode == Mode::Show;
        if self.context.out.json {
            let turn = id.as_ref().and_then(|id| session.turn(id));
            let (history, at) = (&loaded.history, &self.desk.at);
            let status = desk::status_of(self.context, &session, turn, history, at, Asker::Other);
            self.context.out.document(&Status {
                decisions: Some(Vec::new()),
                records: shown.then_some(records),
                entries: shown.then_some(entries),
                ..status
            })?;
        } else if shown {
            self.print(&records, &entries)?;
        }
        Ok(Exit::AlreadyDone)
    }

    /// What the session file of a closed turn lacks.
    fn missing_branch(
        &self,
        session: &Session,
        id: &TurnId,
        history: &crate::draft::History,
    ) -> Result<Option<Missing>, Failure> {
        let Some(turn) = session.turn(id).filter(|turn| recovery::owns_tree(session, turn)) else {
            return Ok(None);
        };
        let Some(path) = desk::tree_path(turn, self.desk.tree_file.as_deref()) else { return Ok(None) };
        let tree = treefile::read(self.context.storage.as_ref(), &path)?;
        let refused = |trouble| Failure::from(recovery::Refusal::Branch(trouble));
        if !recovery::branch_behind(session, turn, history, &tree).map_err(refused)? {
            return Ok((tree.size > 0).then(|| Missing { path, tree, header: None, write: Vec::new() }));
        }
        recovery::check_tree(turn, &tree)?;
        let plan = branch::plan(&session.id, turn, history, &tree, Extent::Recover).map_err(refused)?;
        let header = recovery::needs_header(&tree).then(|| recovery::header_for(turn, history));
        // What cannot be written is found out before anything is.
        treefile::check_writable(self.context.storage.as_ref(), &path)?;
        Ok(Some(Missing { path, tree, header, write: plan.write }))
    }

    fn carry_out(
        &mut self,
        id: &TurnId,
        mut prepared: crate::journal::Prepared,
        plan: Plan,
        tree: Option<&Tree>,
    ) -> Result<Exit, Failure> {
        self.context.check_parent(self.recovery.owner, self.with_cmd, self.owner.as_ref())?;
        prepared.draft = plan.draft.clone();
        self.desk.journal.write_part(&mut prepared, plan.before_branch)?;
        if let Some(tree) = tree {
            self.write_branch(id, &plan, tree)?;
        }
        self.desk.journal.write(&mut prepared)?;
        self.remove_spools(id, &plan);
        match &plan.verdict {
            Verdict::Ready => self.hand_over(id, &plan),
            Verdict::Waiting | Verdict::Parked(_) => self.wait(id, &plan),
        }
    }

    fn write_branch(&self, id: &TurnId, plan: &Plan, tree: &Tree) -> Result<(), Failure> {
        let session = &plan.draft.session;
        let turn = session.turn(id).filter(|turn| recovery::owns_tree(session, turn));
        let path = turn.and_then(|turn| desk::tree_path(turn, self.desk.tree_file.as_deref()));
        let (Some(path), storage) = (path, self.context.storage.as_ref()) else { return Ok(()) };
        let writes = plan.branch.as_ref().is_some_and(|branch| !branch.write.is_empty());
        // A torn last line of somebody else gets its newline also where nothing follows it.
        if let Some(branch) = plan.branch.as_ref().filter(|_| writes || tree.needs_newline()) {
            let header = plan.header.as_ref().filter(|_| writes);
            treefile::append(storage, &path, tree, header, &branch.write)?;
        }
        // What was found may be of a writer that died before its sync, and `recovered` vouches for all of it.
        if writes || tree.size > 0 { Ok(treefile::sync(storage, &path)?) } else { Ok(()) }
    }

    /// The output of a call that is settled stands in the journal now.
    fn remove_spools(&self, id: &TurnId, plan: &Plan) {
        for decided in plan.decisions.iter().filter(|decided| decided.decision == Decision::Interrupt) {
            super::spool::remove(self.context, &self.recovery.session, id, decided.r#ref);
        }
    }

    fn hand_over(&self, id: &TurnId, plan: &Plan) -> Result<Exit, Failure> {
        let turn = plan.draft.session.turn(id);
        let ticket = turn.map(|turn| status::ticket(&self.recovery.session, turn)).unwrap_or_default();
        match self.with_cmd {
            WithCmd::Yes => {
                Err(become_cmd::exec(self.context, self.recovery.cmd, &self.recovery.session, &ticket))
            }
            WithCmd::No => {
                let document = self.document(id, plan, Asker::Owner);
                if self.context.out.json {
                    self.context.out.document(&Status { ticket: Some(ticket), ..document })?;
                } else {
                    self.context.out.line(&ticket)?;
                }
                for decided in &plan.decisions {
                    let what = turn.and_then(|turn| turn.call(decided.r#ref)).map(|call| call.tool.clone());
                    self.context.out.note(&format!(
                        "{} {}: {} ({})",
                        decided.r#ref,
                        what.unwrap_or_default(),
                        decided.decision,
                        decided.why
                    ));
                }
                Ok(Exit::Done)
            }
        }
    }

    /// Somebody else has to act: who, and the command to type.
    fn wait(&self, id: &TurnId, plan: &Plan) -> Result<Exit, Failure> {
        let document = self.document(id, plan, plan.asker);
        self.context.out.note(&format!("waiting: next is {} ({})", document.next.r#do, document.next.why));
        if let Some(turn) = plan.draft.session.turn(id) {
            let context = self.context;
            let now = context.now(self.desk.at.clone());
            for line in super::advice::elsewhere(turn, &now) {
                context.out.note(&line);
            }
        }
        if let Some(command) = super::advice::command(&self.recovery.session, id, &document.next) {
            self.context.out.note(&format!("type: {command}"));
        }
        let turn = plan.draft.session.turn(id).filter(|_| plan.asker == Asker::Owner);
        let ticket = turn.map(|turn| status::ticket(&self.recovery.session, turn));
        if self.context.out.json {
            self.context.out.document(&Status { ticket, ..document })?;
        } else if let Some(ticket) = ticket.filter(|_| self.with_cmd == WithCmd::No) {
            self.context.out.line(&ticket)?;
        }
        Ok(Exit::Waiting)
    }

    fn document(&self, id: &TurnId, plan: &Plan, asker: Asker) -> Status {
        let (mut session, history) = (plan.draft.session.clone(), &plan.draft.history);
        if let Some(moved) = self.desk.tree_file.as_deref().and_then(std::path::Path::to_str) {
            let trees =
                session.turns.iter_mut().filter(|turn| turn.id == *id).filter_map(|turn| turn.tree.as_mut());
            trees.for_each(|tree| moved.clone_into(&mut tree.path));
        }
        let session = &session;
        let turn = session.turn(id);
        let status_of = match self.recovery.mode {
            Mode::Carry => desk::status_of,
            // The branch of the plan counts as written.
            Mode::Show => desk::status_of_records,
        };
        let mut status = status_of(self.context, session, turn, history, &self.desk.at, asker);
        status.notes.extend(plan.notes.iter().cloned());
        status.decisions = turn.map(|turn| decisions(turn, plan));
        status
    }

    /// Prints the plan with the exact records and entries.
    fn show(&self, id: &TurnId, plan: &Plan) -> Result<Exit, Failure> {
        let exit = match plan.verdict {
            Verdict::Ready => Exit::Done,
            Verdict::Waiting | Verdict::Parked(_) => Exit::Waiting,
        };
        let records = records(&plan.draft.bytes);
        let branch = plan.branch.as_ref().map(|branch| branch.write.clone()).unwrap_or_default();
        let header = plan.header.clone().filter(|_| !branch.is_empty());
        let entries: Vec<Raw> = header.into_iter().chain(branch).collect();
        let document = self.document(id, plan, Asker::Owner);
        if self.context.out.json {
            return self
                .context
                .out
                .document(&Status { records: Some(records), entries: Some(entries), ..document })
                .map(|()| exit);
        }
        let out = &self.context.out;
        out.line(&format!("turn {id}: next would be {}", document.next.r#do))?;
        for decided in &plan.decisions {
            // The reason names where a call was dispatched to, in the words of a driver.
            out.foreign(&format!("decision {}: {} ({})", decided.r#ref, decided.decision, decided.why))?;
        }
        self.print(&records, &entries)?;
        Ok(exit)
    }

    fn print(&self, records: &[Raw], entries: &[Raw]) -> Result<(), Failure> {
        let out = &self.context.out;
        for record in records {
            out.json(&format!("record {}", record.get()))?;
        }
        for entry in entries {
            out.json(&format!("entry {}", entry.get()))?;
        }
        Ok(())
    }
}

/// Lines that the session file of a closed turn lacks; none where they were found there.
struct Missing {
    path: PathBuf,
    tree: Tree,
    header: Option<Raw>,
    write: Vec<Raw>,
}

impl Missing {
    fn write(&self, context: &Context) -> Result<(), Failure> {
        let storage = context.storage.as_ref();
        if self.write.is_empty() {
            // What was found may be of a writer that died before its sync.
            return Ok(treefile::sync(storage, &self.path)?);
        }
        Ok(treefile::append(storage, &self.path, &self.tree, self.header.as_ref(), &self.write)?)
    }

    fn entries(self) -> Vec<Raw> {
        self.header.into_iter().chain(self.write).collect()
    }
}

/// The lines of a draft, as a dry run shows them.
fn records(bytes: &[u8]) -> Vec<Raw> {
    let lines = bytes.split(|byte| *byte == b'\n');
    lines.filter_map(|line| Raw::composed(std::str::from_utf8(line).ok()?)).collect()
}

fn decisions(turn: &Turn, plan: &Plan) -> Vec<status::DecidedNow> {
    plan.decisions.iter().map(|decided| status::decided_now(turn, decided)).collect()
}
