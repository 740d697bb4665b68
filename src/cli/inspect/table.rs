//! All sessions in a table, or a line each for scripts.

use super::super::context::Context;
use super::super::error::{Exit, Failure, damaged};
use super::super::output::brief;
use super::find::{self, Place, worse};
use super::show::{Style, plain_table, short_time, size_text};
use crate::journal::{Damage, Loaded, Reach};
use crate::record::{At, TurnId};
use crate::status::{self, HeadNow};
use crate::turn::decide::Now;
use crate::turn::{Session, Turn};
use serde::Serialize;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A session, briefly.
#[derive(Debug, Serialize)]
struct Row {
    session: String,
    /// open, parked, settled, closed, empty, damaged, `other_format`, `other_session` or unreadable.
    state: &'static str,
    /// The turn that comes first, where one is not closed.
    turn: Option<TurnId>,
    /// How many turns are not closed.
    unclosed: usize,
    /// Calls of these whose outcome is not known.
    uncertain: usize,
    parked: bool,
    last_activity: Option<At>,
    bytes: u64,
    head: Option<HeadNow>,
    notes: Vec<String>,
    #[serde(skip)]
    exit: Exit,
}

pub(super) fn run(context: &Context) -> Result<Exit, Failure> {
    let places = find::all(context)?;
    let rows = rows(context, &places);
    let exit = rows.iter().fold(Exit::Done, |exit, row| worse(exit, row.exit));
    if context.out.json {
        let mut text = String::new();
        for row in &rows {
            text.push_str(&serde_json::to_string(row).map_err(Failure::unexpected)?);
            text.push('\n');
        }
        context.out.bytes(text.as_bytes())?;
        return Ok(exit);
    }
    for note in rows.iter().flat_map(|row| &row.notes) {
        context.out.note(note);
    }
    context.out.bytes(table(&rows, Style::of(&context.out)).as_bytes())?;
    Ok(exit)
}

/// Reads the end of each journal, some at a time.
fn rows(context: &Context, places: &[Place]) -> Vec<Row> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut rows = Vec::new();
        while let Some((index, place)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|index| Some((index, places.get(index)?)))
        {
            rows.push((index, row(context, place)));
        }
        rows
    };
    let mut rows: Vec<(usize, Row)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..workers).map(|_| scope.spawn(work)).collect();
        let mut rows = work();
        for other in others {
            rows.extend(other.join().unwrap_or_default());
        }
        rows
    });
    rows.sort_by_key(|(index, _)| *index);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn row(context: &Context, place: &Place) -> Row {
    let bytes = context.storage.inspect(&place.path).map_or(0, |meta| meta.len);
    match find::load(context, place, Reach::Base) {
        Ok(mut loaded) => {
            find::doubt(&mut loaded);
            let now = context.now(context.at());
            of_loaded(place, bytes, &loaded, &now)
        }
        Err(failure) => {
            let state = match failure.exit {
                Exit::OtherFormat => "other_format",
                _ if failure.kind == "other_session" => "other_session",
                _ => "unreadable",
            };
            let notes = vec![failure.message];
            Row { state, notes, exit: failure.exit, ..blank(place, bytes) }
        }
    }
}

fn blank(place: &Place, bytes: u64) -> Row {
    Row {
        session: place.name(),
        state: "empty",
        turn: None,
        unclosed: 0,
        uncertain: 0,
        parked: false,
        last_activity: None,
        bytes,
        head: None,
        notes: Vec::new(),
        exit: Exit::Done,
    }
}

fn of_loaded(place: &Place, bytes: u64, loaded: &Loaded, now: &Now<'_>) -> Row {
    let blank = blank(place, bytes);
    let mut row = match &loaded.session {
        Some(session) => of_session(session, now, blank),
        None => blank,
    };
    if !loaded.damage.is_empty() {
        let damage: &[Damage] = &loaded.damage;
        row.state = "damaged";
        row.exit = Exit::Damaged;
        row.notes.push(damaged(&place.path, damage).message);
    }
    row
}

fn of_session(session: &Session, now: &Now<'_>, blank: Row) -> Row {
    let unclosed: Vec<&Turn> = session.unclosed().collect();
    // The open one says most about a session; of those that wait for their delivery the oldest.
    let first = session.open().or(unclosed.first().copied());
    Row {
        session: session.id.clone(),
        state: first.map_or("closed", status::state),
        turn: first.map(|turn| turn.id.clone()),
        unclosed: unclosed.len(),
        uncertain: unclosed.iter().map(|turn| super::show::uncertain(turn, now).len()).sum(),
        parked: unclosed.iter().any(|turn| turn.parked.is_some()),
        last_activity: Some(session.head.at.clone()),
        head: Some(HeadNow { seq: session.head.seq, hash: session.head.hash.to_string() }),
        ..blank
    }
}

fn table(rows: &[Row], style: Style) -> String {
    let mut table = plain_table(
        &["SESSION", "STATE", "OPEN TURN", "UNCERTAIN", "PARKED", "LAST ACTIVITY", "SIZE"],
        style,
    );
    for row in rows {
        let more = match row.unclosed {
            0 | 1 => String::new(),
            several => format!(" +{}", several - 1),
        };
        let turn = row.turn.as_ref().map(|turn| format!("{turn}{more}")).unwrap_or_default();
        table.add_row(vec![
            brief(&row.session, 60),
            row.state.to_owned(),
            turn,
            if row.uncertain == 0 { String::new() } else { row.uncertain.to_string() },
            if row.parked { "parked".to_owned() } else { String::new() },
            row.last_activity.as_ref().map(short_time).unwrap_or_default(),
            size_text(row.bytes),
        ]);
    }
    format!("{}\n", table.trim_fmt())
}
