//! `turnkeep recover --all`: every session, without waiting for locks.
//!
//! Without CMD it prints the plan and writes nothing. With CMD each turn that a driver can advance gets a process of
//! its own, which recovers the turn and becomes CMD, so that each CMD is the owner of its turn.

use super::super::advice;
use super::super::args::RecoverArgs;
use super::super::context::Context;
use super::super::desk;
use super::super::error::{Exit, Failure};
use crate::journal::Reach;
use crate::record::TurnId;
use crate::recovery::{self, CloseCalls, Plan, Request, Surroundings, Verdict};
use crate::status;
use crate::treefile;
use crate::turn::decide::Holder;
use crate::turn::next::Asker;
use crate::turn::{Retain, Session};
use serde::Serialize;
use std::process::{Child, Command};

/// Runs the command.
pub fn run(context: &Context, args: &RecoverArgs) -> Result<Exit, Failure> {
    for (given, option) in [
        (args.unpark, "--unpark"),
        (args.salvage, "--salvage"),
        (args.tree_file.is_some(), "--tree-file"),
        (args.owner.owner_pid.is_some(), "--owner-pid"),
    ] {
        if given {
            return Err(Failure::usage("all_of_one", format!("{option} is for one session, not for --all"))
                .hint("`turnkeep recover SESSION` takes it; nothing was done"));
        }
    }
    let pattern = args.r#match.as_deref().map(glob::Pattern::new).transpose();
    let pattern = pattern.map_err(|error| {
        Failure::usage("bad_match", format!("--match: {error}")).hint("give a pattern of `*`, `?` and `[…]`")
    })?;
    let mut children = Vec::new();
    let starts = !args.cmd.is_empty() && !args.dry_run;
    let mut worst = Worst { exit: Exit::Done, documents: context.out.json && !starts };
    for id in sessions(context, pattern.as_ref(), &mut worst)? {
        let plans = match plans(context, &id, args) {
            Ok(plans) => plans,
            Err(failure) => {
                worst.note(context, &id, failure);
                continue;
            }
        };
        // Nobody's lock is waited for, but siblings on one session get out of each other's way.
        let wait = if plans.len() > 1 { "2" } else { "0" };
        for planned in plans {
            let planned = match planned {
                Ok(planned) => planned,
                Err(failure) => {
                    worst.note(context, &id, failure);
                    continue;
                }
            };
            if planned.verdict != Verdict::Ready {
                worst.count(Exit::Waiting);
                // A plan says it on stdout, and a child says it itself.
                if starts && !planned.writes {
                    say_waiting(context, &planned);
                }
            }
            if !starts {
                print(context, &planned)?;
            } else if planned.verdict == Verdict::Ready || planned.writes {
                children.push((start(context, args, &planned, wait)?, planned));
            }
        }
    }
    for (mut child, planned) in children {
        let status = child.wait().map_err(Failure::unexpected)?;
        if !became_owner(context, &planned, child.id()) {
            worst.of_child(context, &planned, status.code());
        }
    }
    Ok(worst.exit)
}

/// What a recovery of one turn would do.
struct Planned {
    session: String,
    turn: TurnId,
    verdict: Verdict,
    /// Whether there is something to record or to write, also where the turn waits.
    writes: bool,
    line: Line,
}

#[derive(Serialize)]
struct Line {
    session: String,
    turn: TurnId,
    decisions: Vec<status::DecidedNow>,
    next: status::NextAct,
}

/// Somebody else has to act: who, and the command to type.
fn say_waiting(context: &Context, planned: &Planned) {
    let Planned { session, turn, line, .. } = planned;
    let next = &line.next;
    context
        .out
        .note(&format!("turn {turn} of session {session} waits: next is {} ({})", next.r#do, next.why));
    if let Some(command) = advice::command(session, turn, next) {
        context.out.note(&format!("type: {command}"));
    }
}

/// What is told of all sessions together: each failure, and 0 or the worst of damage, unexpected, waiting.
struct Worst {
    exit: Exit,
    /// Scripts that read a plan get a document of each failure, too.
    documents: bool,
}

impl Worst {
    fn count(&mut self, exit: Exit) {
        let rank = |exit| match exit {
            Exit::Done | Exit::Busy | Exit::AlreadyDone => 0,
            Exit::Waiting => 1,
            Exit::Damaged => 3,
            _ => 2,
        };
        if rank(exit) > rank(self.exit) {
            self.exit = if rank(exit) == 2 { Exit::Unexpected } else { exit };
        }
    }

    fn note(&mut self, context: &Context, session: &str, failure: Failure) {
        context.out.note(&format!("session {session}: {}", failure.message));
        self.document(context, &failure.with("session", session));
    }

    fn document(&mut self, context: &Context, failure: &Failure) {
        self.count(failure.exit);
        if self.documents {
            context.out.failure_document(failure);
        }
    }

    fn of_child(&mut self, context: &Context, planned: &Planned, code: Option<i32>) {
        let Planned { session, turn, .. } = planned;
        let code = code.and_then(|code| u8::try_from(code).ok());
        let exit = Exit::ALL.into_iter().find(|exit| Some(exit.code()) == code).unwrap_or(Exit::Unexpected);
        let told = match (exit, code) {
            (Exit::Busy, _) => "is busy: another process has its lock or has taken it".to_owned(),
            (Exit::AlreadyDone, _) => "was finished meanwhile".to_owned(),
            (_, Some(code)) => format!("was not recovered (exit {code})"),
            (_, None) => "was not recovered (ended by a signal)".to_owned(),
        };
        context.out.note(&format!("turn {turn} of session {session} {told}"));
        self.count(exit);
    }
}

fn sessions(
    context: &Context,
    pattern: Option<&glob::Pattern>,
    worst: &mut Worst,
) -> Result<Vec<String>, Failure> {
    let mut ids = Vec::new();
    for file in context.root.sessions(context.storage.as_ref())? {
        let id = match file.id.clone() {
            Some(id) => Some(id),
            // A shortened name does not tell its id; the genesis does.
            None => match context.read_at(&file.path, Reach::Base) {
                Ok(loaded) => loaded.session.map(|session| session.id),
                Err(failure) if failure.exit == Exit::Conflict => {
                    worst.note(context, &file.name.to_string_lossy(), failure);
                    continue;
                }
                Err(_) => None,
            },
        };
        match id {
            Some(id) if pattern.is_none_or(|pattern| pattern.matches(&id)) => ids.push(id),
            Some(_) => {}
            None => {
                let message = format!("{} is no journal that can be read", file.path.display());
                context.out.note(&message);
                let hint = "`turnkeep verify --all` tells what it is; nothing there was touched";
                worst.document(context, &Failure::of(Exit::Damaged, "damaged", message).hint(hint));
            }
        }
    }
    Ok(ids)
}

/// The plan of each unclosed turn that no living owner holds.
fn plans(context: &Context, id: &str, args: &RecoverArgs) -> Result<Vec<Result<Planned, Failure>>, Failure> {
    let loaded = context.read(id, Reach::Base)?;
    if let Some(found) = &loaded.other_format {
        let path = context.root.journal(id)?;
        return Err(crate::journal::JournalError::OtherFormat { path, found: found.clone() }.into());
    }
    if !loaded.damage.is_empty() {
        return Err(super::super::error::damaged(&context.root.journal(id)?, &loaded.damage));
    }
    let Some(session) = &loaded.session else { return Ok(Vec::new()) };
    let at = context.at();
    let now = context.now(at.clone());
    let mut planned = Vec::new();
    for turn in session.unclosed() {
        let held = turn.current().is_some_and(|attempt| now.holder(attempt) == Holder::Alive);
        if held && !args.force {
            continue;
        }
        let draft = crate::draft::Draft::new(
            session.clone(),
            loaded.history.clone(),
            at.clone(),
            loaded.end,
            context.line_bytes_max,
        );
        planned.push(plan(context, session, draft, &turn.id, args));
    }
    Ok(planned)
}

fn plan(
    context: &Context,
    session: &Session,
    draft: crate::draft::Draft,
    turn: &TurnId,
    args: &RecoverArgs,
) -> Result<Planned, Failure> {
    let path = session.turn(turn).and_then(|turn| desk::tree_path(turn, None));
    let tree = path.map(|path| treefile::read(context.storage.as_ref(), &path)).transpose()?;
    let at = draft.at.clone();
    let request = Request {
        owner: None,
        lease_ms: None,
        force: args.force.then(|| args.why.clone().unwrap_or_default()),
        calls: if args.close_calls { CloseCalls::Yes } else { CloseCalls::No },
        onto: recovery::Onto::Admission,
        unpark: None,
        tree_path: None,
    };
    let output =
        |call: &crate::turn::Call| super::super::spool::output_so_far(context, &session.id, turn, call);
    let around = Surroundings { now: context.now(at.clone()), tree: tree.as_ref(), output_so_far: &output };
    let plan: Plan = recovery::plan(draft, turn, &request, &around)?;
    let (after, history) = (&plan.draft.session, &plan.draft.history);
    let found = after.turn(turn);
    let status = desk::status_of_records(context, after, found, history, &at, Asker::Owner);
    let decisions = found
        .map(|found| plan.decisions.iter().map(|decided| status::decided_now(found, decided)).collect())
        .unwrap_or_default();
    Ok(Planned {
        session: session.id.clone(),
        turn: turn.clone(),
        writes: !plan.draft.bytes.is_empty()
            || plan.branch.as_ref().is_some_and(|branch| !branch.write.is_empty()),
        verdict: plan.verdict,
        line: Line { session: session.id.clone(), turn: turn.clone(), decisions, next: status.next },
    })
}

fn print(context: &Context, planned: &Planned) -> Result<(), Failure> {
    if context.out.json {
        return context.out.document(&planned.line);
    }
    let decisions: Vec<String> = planned
        .line
        .decisions
        .iter()
        .map(|decided| format!("{} {}", decided.r#ref, decided.decision))
        .collect();
    context.out.line(&super::super::output::escaped(&format!(
        "{}:{}  next {}  {}",
        planned.session,
        planned.turn,
        planned.line.next.r#do,
        decisions.join(", ")
    )))
}

/// A process that recovers the turn and becomes CMD.
fn start(context: &Context, args: &RecoverArgs, planned: &Planned, wait: &str) -> Result<Child, Failure> {
    let own = std::env::current_exe().map_err(Failure::unexpected)?;
    let mut command = Command::new(own);
    command.arg("--root").arg(context.root.path()).args(["--wait", wait]);
    command.arg("--max-record").arg(context.line_bytes_max.to_string());
    if context.out.quiet {
        command.arg("--quiet");
    }
    command.args(["recover", "--one-of-all"]);
    if let Some(policy) = &context.policy_given {
        command.arg("--policy").arg(policy);
    }
    if let Some(why) = args.why.as_ref().filter(|_| args.force) {
        command.args(["--force", "--why", why]);
    }
    if args.close_calls {
        command.arg("--close-calls");
    }
    if let Some(lease) = args.owner.lease {
        command.arg("--lease").arg(lease.to_string());
    }
    command.arg(format!("{}:{}", planned.session, planned.turn)).arg("--").args(&args.cmd);
    command.env_remove("TURNKEEP_TICKET");
    command.spawn().map_err(Failure::unexpected)
}

/// Whether the process that was started got the turn and wrote all of its takeover: then its exit status is CMD's, and
/// nobody's business here.
fn became_owner(context: &Context, planned: &Planned, pid: u32) -> bool {
    let Ok(loaded) = context.read(&planned.session, Reach::All(Retain::All)) else { return false };
    let turn = loaded.session.as_ref().and_then(|session| session.turn(&planned.turn));
    turn.is_some_and(|turn| {
        turn.attempts
            .iter()
            .filter(|attempt| !attempt.unfinished())
            .filter_map(|attempt| attempt.owner.as_ref())
            .any(|owner| owner.pid == u64::from(pid))
    })
}
