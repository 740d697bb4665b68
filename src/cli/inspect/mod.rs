//! `turnkeep inspect`: sessions, turns and calls as they stand, and what comes next.
//!
//! Reads and never writes (but for the page that `--html` names): no byte, no lock file, no folder, no modification time. On a damaged journal it shows
//! what is readable around the damage; only what a driver would act on (`--next`, `--context`) is refused then.

mod call;
mod draw;
mod find;
mod html;
mod records;
mod show;
mod table;
mod watch;

use super::args::InspectArgs;
use super::context::Context;
use super::desk;
use super::error::{Exit, Failure, TURN_ID_HINT, chain, damaged};
use super::replace::replace;
use super::select::{self, Ticket};
use crate::context as conversation;
use crate::draft::History;
use crate::journal::{Damage, Loaded, Reach};
use crate::json::Raw;
use crate::record::{At, TurnId};
use crate::scan::Tail;
use crate::status::{self, NextAct, Status};
use crate::turn::decide::Now;
use crate::turn::next::Asker;
use crate::turn::{Retain, Session, Turn};
use crate::{tree, treefile};
use find::{Found, Place};
use std::path::Path;

/// Runs the command.
pub fn run(context: &Context, args: &InspectArgs) -> Result<Exit, Failure> {
    let view = View::of(args)?;
    let Some(name) = &args.session else {
        return match (&args.delivery, view) {
            (Some(key), view) if view.is_of_turn() => by_delivery(context, args, None, key, view),
            (None, View::State) if args.turn.is_none() && args.at.is_none() => table::run(context),
            _ => Err(Failure::usage("no_session_given", "name the session that this is about")
                .hint("`turnkeep inspect` without anything lists the sessions")),
        };
    };
    let place = match find::named(context, name)? {
        Found::Journal(place) => place,
        Found::SessionFile(path) => {
            let of_a_turn = args.delivery.is_some() || args.turn.is_some() || args.at.is_some();
            if !of_a_turn && matches!(view, View::State | View::Tree) {
                return draw::file(context, &path);
            }
            let message = format!("{} is a session file, not a journal", path.display());
            return Err(Failure::usage("session_file", message)
                .hint("`turnkeep inspect FILE` draws it, and `turnkeep verify FILE` checks it"));
        }
    };
    match (&args.delivery, view) {
        (Some(key), view) if view.is_of_turn() => by_delivery(context, args, Some(&place), key, view),
        (Some(_), _) => Err(Failure::usage("one_view", "--delivery finds a turn and shows one of its views")
            .hint("give the view of the turn, or leave --delivery out")),
        (None, View::Records) => records::run(context, args, &place),
        (None, View::Follow) => records::follow(context, args, &place),
        (None, View::Change(seconds)) => watch::run(context, &place, seconds),
        (None, view) => one(context, args, &place, view),
    }
}

/// One view of the turn that has a delivery key.
fn by_delivery(
    context: &Context,
    args: &InspectArgs,
    place: Option<&Place>,
    key: &str,
    view: View,
) -> Result<Exit, Failure> {
    find::by_delivery(context, place, key, &|place| one(context, args, place, view))
}

/// What is to be shown.
#[derive(Debug, Clone, Copy, PartialEq)]
enum View {
    State,
    Next,
    Call,
    Records,
    Follow,
    Tree,
    Context,
    Page,
    Change(f64),
}

impl View {
    /// Whether it shows one turn.
    fn is_of_turn(self) -> bool {
        matches!(self, Self::State | Self::Next | Self::Call | Self::Tree | Self::Context)
    }

    fn of(args: &InspectArgs) -> Result<Self, Failure> {
        let asked = [
            args.next.then_some(Self::Next),
            args.call.is_some().then_some(Self::Call),
            (args.records && !args.follow).then_some(Self::Records),
            args.follow.then_some(Self::Follow),
            args.draw_tree.then_some(Self::Tree),
            args.context.then_some(Self::Context),
            args.html.is_some().then_some(Self::Page),
            args.until_change.map(Self::Change),
        ];
        let mut asked = asked.into_iter().flatten();
        match (asked.next(), asked.next()) {
            (None, _) => Ok(Self::State),
            (Some(view), None) => Ok(view),
            (Some(_), Some(_)) => Err(Failure::usage(
                "one_view",
                "--next, --call, --records, --follow, --draw-tree, --context, --html and --until-change are views of \
                 their own",
            )
            .hint("give one of them")),
        }
    }
}

/// A journal as it was read.
struct Seen {
    place: Place,
    /// The session id: that of the genesis, where there is one.
    id: String,
    session: Option<Session>,
    history: History,
    tail: Tail,
    end: u64,
    damage: Vec<Damage>,
    as_of: AsOf,
    at: At,
}

/// Of which moment the state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AsOf {
    Head,
    Record(u64),
}

/// Which turn of a session is meant.
enum Chosen<'a> {
    Turn(&'a Turn),
    /// It is closed and was not read.
    Closed,
    /// The session has no turn to speak of.
    None,
}

impl Seen {
    fn read(context: &Context, place: &Place, reach: Reach) -> Result<Self, Failure> {
        Ok(Self::of(context, place, find::load(context, place, reach)?, AsOf::Head))
    }

    fn of(context: &Context, place: &Place, mut loaded: Loaded, as_of: AsOf) -> Self {
        find::doubt(&mut loaded);
        let genesis = loaded.session.as_ref().map(|session| session.id.clone());
        Self {
            place: place.clone(),
            id: genesis.unwrap_or_else(|| place.name()),
            session: loaded.session,
            history: loaded.history,
            tail: loaded.tail,
            end: loaded.end,
            damage: loaded.damage,
            as_of,
            at: context.at(),
        }
    }

    /// The exit code that the state of the file itself asks for.
    fn exit(&self) -> Exit {
        if self.damage.is_empty() { Exit::Done } else { Exit::Damaged }
    }

    /// What a driver acts on must rest on a journal that checks.
    fn refuse_damage(&self) -> Result<(), Failure> {
        if self.damage.is_empty() { Ok(()) } else { Err(damaged(&self.place.path, &self.damage)) }
    }

    /// What is to be said about the damage of the file.
    fn damage_note(&self) -> Option<String> {
        (!self.damage.is_empty()).then(|| damaged(&self.place.path, &self.damage).message)
    }

    /// What is to be said about the file otherwise.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        match &self.tail {
            Tail::Torn { offset, bytes } => notes.push(format!(
                "torn tail: {bytes} bytes from byte {offset} on were never acknowledged; the next writing command keeps a copy and cuts them"
            )),
            Tail::NoNewline { record, .. } => notes.push(format!(
                "record {} lacks its newline and stands; the next write begins with it",
                record.seq
            )),
            Tail::Clean | Tail::Damaged { .. } => {}
        }
        if let AsOf::Record(seq) = self.as_of {
            notes.push(format!(
                "the state as of record {seq}; processes and policy are those of now, and the session file is not looked at"
            ));
        }
        notes
    }

    /// The turn that is named, else the ticket's, else the one that `recover` would take.
    fn chosen(&self, now: &Now<'_>, named: Option<&TurnId>) -> Result<Chosen<'_>, Failure> {
        let Some(session) = &self.session else { return Ok(Chosen::None) };
        if let Some(id) = named {
            return match session.turn(id) {
                Some(turn) => Ok(Chosen::Turn(turn)),
                None if session.knows(id) => Ok(Chosen::Closed),
                None => Err(Failure::of(
                    Exit::NotFound,
                    "no_turn",
                    format!("session {:?} has no turn {id}", session.id),
                )
                .hint(select::no_turn_hint(&session.id))),
            };
        }
        if let Some(ticket) = Ticket::from_env().filter(|ticket| ticket.session == session.id) {
            match session.turn(&ticket.turn) {
                Some(turn) => return Ok(Chosen::Turn(turn)),
                // A ticket is of a turn that was admitted, so one that is not unclosed is closed.
                None if session.knows(&ticket.turn) || !session.is_complete() => return Ok(Chosen::Closed),
                None => {}
            }
        }
        Ok(match select::free_turn(session, now, None).or_else(|| session.turns.last()) {
            Some(turn) => Chosen::Turn(turn),
            None => Chosen::None,
        })
    }

    /// The status document of a turn; of none where there is none.
    fn status(&self, context: &Context, turn: Option<&Turn>) -> Status {
        let mut status = match &self.session {
            None => empty_status(&self.id),
            Some(session) => {
                let status_of = match self.as_of {
                    AsOf::Head => desk::status_of,
                    AsOf::Record(_) => desk::status_of_records,
                };
                status_of(context, session, turn, &self.history, &self.at, asker(session, turn))
            }
        };
        if let Some(note) = self.damage_note() {
            // Every writing command refuses until a person has looked at it.
            let why = match &self.session {
                Some(_) => "the journal is damaged".to_owned(),
                None => format!("the journal is damaged; {}", crate::verify::Code::NoGenesis.what_to_do()),
            };
            status.next = NextAct { r#do: "recover", refs: Vec::new(), why };
            status.notes.push(note);
        }
        status.notes.extend(self.notes());
        status
    }
}

/// Who asks: the holder of the current ticket, or anybody else.
fn asker(session: &Session, turn: Option<&Turn>) -> Asker {
    let holds = |ticket: &Ticket| {
        ticket.session == session.id
            && turn.is_some_and(|turn| ticket.turn == turn.id && ticket.attempt == turn.current_number())
    };
    if Ticket::from_env().is_some_and(|ticket| holds(&ticket)) { Asker::Owner } else { Asker::Other }
}

/// A session in which nothing was admitted yet, or whose genesis cannot be read.
fn empty_status(id: &str) -> Status {
    Status {
        schema: status::SCHEMA,
        session: id.to_owned(),
        turn: None,
        attempt: None,
        ticket: None,
        state: None,
        next: NextAct { r#do: "done", refs: Vec::new(), why: "no turn was ever admitted".to_owned() },
        owner: None,
        input: None,
        steered: Vec::new(),
        calls: Vec::new(),
        reply: None,
        tree: None,
        delivery: None,
        head: None,
        notes: Vec::new(),
        receipt: None,
        decisions: None,
        records: None,
        entries: None,
    }
}

/// The views of one turn. What is not found in a damaged journal may be in what cannot be read.
fn one(context: &Context, args: &InspectArgs, place: &Place, view: View) -> Result<Exit, Failure> {
    one_of_sound(context, args, place, view).or_else(|failure| {
        if failure.exit != Exit::NotFound {
            return Err(failure);
        }
        Seen::read(context, place, Reach::All(Retain::Unclosed))?.refuse_damage()?;
        Err(failure)
    })
}

fn one_of_sound(context: &Context, args: &InspectArgs, place: &Place, view: View) -> Result<Exit, Failure> {
    let named = named_turn(args, place)?;
    let now = context.now(context.at());
    // Unclosed turns are at hand whatever the length of the journal; for the others all of it is read.
    let brief = view == View::Next || (view == View::State && context.out.json && named.is_none());
    let mut seen = match args.at {
        Some(seq) => find::as_of(context, place, seq)?,
        None if brief => Seen::read(context, place, Reach::Base)?,
        None => Seen::read(context, place, Reach::All(Retain::All))?,
    };
    if view == View::Next {
        seen.refuse_damage()?;
        // What a driver does next is about its own turn, or about none.
        let own = || select::turn_of_ticket(&seen.id).filter(|_| args.at.is_none());
        return print_next(context, &seen, &now, named.or_else(own).as_ref());
    }
    if brief && args.at.is_none() && !matches!(seen.chosen(&now, named.as_ref())?, Chosen::Turn(_)) {
        // All turns are closed: the newest of them is shown.
        seen = Seen::read(context, place, Reach::All(Retain::All))?;
    }
    let turn = match seen.chosen(&now, named.as_ref())? {
        Chosen::Turn(turn) => Some(turn),
        Chosen::Closed | Chosen::None => None,
    };
    match view {
        View::Call => {
            let word = args.call.as_deref().unwrap_or_default();
            call::run(context, &seen, turn, named.as_ref(), word)?;
        }
        View::Tree => {
            let exit = draw::run(context, &seen, with_turn(&seen, turn)?)?;
            if exit != Exit::Done {
                return Ok(exit);
            }
        }
        View::Context => {
            seen.refuse_damage()?;
            print_context(context, args, &seen, with_turn(&seen, turn)?)?;
        }
        View::Page => {
            let written = |path| write_page(context, path, &seen, turn, &now);
            args.html.as_deref().map_or(Ok(()), written)?;
        }
        View::State | View::Next | View::Records | View::Follow | View::Change(_) => {
            print_state(context, &seen, turn)?;
        }
    }
    Ok(seen.exit())
}

fn named_turn(args: &InspectArgs, place: &Place) -> Result<Option<TurnId>, Failure> {
    match &args.turn {
        Some(text) => {
            text.parse().map(Some).map_err(|why| Failure::usage("bad_turn_id", why).hint(TURN_ID_HINT))
        }
        None => Ok(place.turn.clone()),
    }
}

fn with_turn<'a>(seen: &Seen, turn: Option<&'a Turn>) -> Result<&'a Turn, Failure> {
    turn.ok_or_else(|| {
        Failure::of(Exit::NotFound, "no_turn", format!("session {:?} has no turn to show", seen.id))
            .hint("`turnkeep inspect SESSION` shows its turns; `turnkeep admit` begins one")
    })
}

fn print_state(context: &Context, seen: &Seen, turn: Option<&Turn>) -> Result<(), Failure> {
    let status = seen.status(context, turn);
    if context.out.json {
        return context.out.document(&status);
    }
    let now = context.now(seen.at.clone());
    let text = show::session(seen, turn, &status, &now, show::Style::of(&context.out));
    context.out.bytes(text.as_bytes())
}

/// What comes next on the first line, then one call a line.
fn print_next(
    context: &Context,
    seen: &Seen,
    now: &Now<'_>,
    named: Option<&TurnId>,
) -> Result<Exit, Failure> {
    let chosen = match seen.chosen(now, named) {
        // A turn that closed before the first record that was read is known to the whole journal alone.
        Err(_) if seen.session.as_ref().is_some_and(|session| !session.is_complete()) => {
            let whole = Seen::read(context, &seen.place, Reach::All(Retain::Unclosed))?;
            return print_next(context, &whole, now, named);
        }
        chosen => chosen?,
    };
    let (turn, closed) = match chosen {
        Chosen::Turn(turn) => (Some(turn), None),
        Chosen::Closed => (None, named),
        Chosen::None => (None, None),
    };
    let mut status = seen.status(context, turn);
    if let Some(id) = closed {
        status.next.why = format!("turn {id} is closed");
    }
    if context.out.json {
        context.out.document(&status)?;
    } else {
        let refs = status.next.refs.iter().map(ToString::to_string);
        let lines: Vec<String> = [status.next.r#do.to_owned()].into_iter().chain(refs).collect();
        context.out.line(&lines.join("\n"))?;
    }
    Ok(Exit::Done)
}

fn write_page(
    context: &Context,
    path: &Path,
    seen: &Seen,
    turn: Option<&Turn>,
    now: &Now<'_>,
) -> Result<(), Failure> {
    let page = html::page(seen, &seen.status(context, turn), now);
    let hint = "give a file in a folder that can be written to; nothing else was touched";
    replace(context, path, page.as_bytes(), "page_not_written", hint)
}

/// The messages for the next model request.
fn print_context(context: &Context, args: &InspectArgs, seen: &Seen, turn: &Turn) -> Result<(), Failure> {
    let format = args.format.unwrap_or_else(|| conversation::format_of(turn, &seen.history));
    let tree = match desk::tree_path(turn, None) {
        Some(path) => {
            let tree = treefile::read(context.storage.as_ref(), &path)?;
            check_tree(turn, &tree, &path)?;
            Some(tree)
        }
        None => None,
    };
    let built = conversation::build(turn, &seen.history, tree.as_ref(), format)
        .map_err(|error| no_context(&error))?;
    for note in &built.notes {
        context.out.note(note);
    }
    let messages: Vec<&str> = built.messages.iter().map(Raw::get).collect();
    context.out.json(&format!("[{}]", messages.join(",")))
}

/// A conversation whose beginning cannot be read is not handed out as if it were whole.
fn check_tree(turn: &Turn, tree: &tree::Tree, path: &std::path::Path) -> Result<(), Failure> {
    let Some(admitted) = turn.tree.as_ref().filter(|admitted| admitted.leaf.is_some()) else { return Ok(()) };
    if tree.tail == tree::Tail::Empty {
        return Err(Failure::of(
            Exit::Damaged,
            "tree_missing",
            format!("the session file {} is gone or empty", path.display()),
        )
        .hint("put the file back: what was said before this turn is in it"));
    }
    match tree::check_path(tree, admitted.leaf.as_deref()) {
        // Older versions are read, never written to.
        Ok(()) | Err(tree::Refusal::Older { .. }) => Ok(()),
        Err(refusal) => Err(refusal.into()),
    }
}

fn no_context(error: &conversation::ContextError) -> Failure {
    match error {
        conversation::ContextError::Unanswered(calls) => {
            let refs: Vec<String> = calls.iter().map(|(call, _)| call.to_string()).collect();
            Failure::conflict("unanswered", error)
                .with("refs", &refs)
                .hint("`turnkeep inspect SESSION --next` says what to do about them")
        }
        conversation::ContextError::NoLeaf(_) => Failure::of(Exit::Damaged, "tree_damaged", chain(error))
            .hint("`turnkeep verify --with-tree` lists what is wrong with the session file"),
    }
}

#[cfg(test)]
mod tests;
