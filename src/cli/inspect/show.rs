//! One session for people: its turns, the calls of the one that matters, what is uncertain, what to type next.
//!
//! Pure. What came from outside is escaped and cut to a line.

use super::super::advice;
use super::super::output::{Output, brief, escaped};
use super::Seen;
use crate::message;
use crate::record::{At, Decision, Kind};
use crate::status::{self, Status};
use crate::turn::decide::Now;
use crate::turn::next::{self, Asker};
use crate::turn::{AnswerKind, Call, Turn};
use comfy_table::{Attribute, Cell, Table};
use std::fmt::Write as _;

/// Whether headings stand out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Colour,
}

impl Style {
    pub(super) fn of(out: &Output) -> Self {
        if out.color { Self::Colour } else { Self::Plain }
    }
}

/// What `inspect SESSION` prints.
pub(super) fn session(
    seen: &Seen,
    turn: Option<&Turn>,
    status: &Status,
    now: &Now<'_>,
    style: Style,
) -> String {
    // Writing to a String cannot fail.
    let mut text = format!("session {}\n", escaped(&seen.id));
    let path = escaped(&seen.place.path.display().to_string());
    let held = match &status.head {
        Some(head) => {
            // Around damage nobody has counted them.
            let records = match seen.damage.as_slice() {
                [] => format!("{} records", head.seq + 1),
                _ => format!("records up to {}", head.seq),
            };
            format!("{records}, {}, head {}:{}", size_text(seen.end), head.seq, head.hash)
        }
        None if seen.damage.is_empty() => "no records yet".to_owned(),
        None => "no genesis that can be read".to_owned(),
    };
    let _infallible = writeln!(text, "{path}: {held}");
    let turns: Vec<&Turn> = seen.session.iter().flat_map(|session| &session.turns).collect();
    if !turns.is_empty() {
        text.push('\n');
        text.push_str(&turn_table(seen, &turns, style));
    }
    if let Some(turn) = turn {
        text.push('\n');
        text.push_str(&one_turn(seen, turn, status, now, style));
    }
    let _infallible = writeln!(text, "\nnext: {} - {}", status.next.r#do, escaped(&status.next.why));
    let command = match (&status.turn, seen.damage.is_empty()) {
        (_, false) if seen.session.is_none() => Some(format!("turnkeep verify {}", advice::quoted(&seen.id))),
        (_, false) => Some(format!("turnkeep recover {} --salvage --why TEXT", advice::quoted(&seen.id))),
        (Some(turn), true) => advice::command(&seen.id, turn, &status.next),
        (None, true) => None,
    };
    for line in command.iter().flat_map(|command| command.lines()) {
        let _infallible = writeln!(text, "  {}", escaped(line));
    }
    for note in &status.notes {
        let _infallible = writeln!(text, "note: {}", escaped(note));
    }
    text
}

/// A call whose outcome is not known, and why.
pub(super) fn uncertain<'a>(turn: &'a Turn, now: &Now<'_>) -> Vec<(&'a Call, String)> {
    let why = |call: &Call| match call.answer.as_ref().map(|answer| answer.kind) {
        Some(AnswerKind::Interrupted) => Some("interrupted: nobody knows whether it happened".to_owned()),
        Some(AnswerKind::Unknown) => Some("a person looked and could not find out".to_owned()),
        Some(AnswerKind::Result | AnswerKind::NotRun(_) | AnswerKind::Applied) => None,
        // Somebody is at it.
        None if next::seen_by(turn, call, now, Asker::Other) == Decision::Await => None,
        None if !call.may_have_run() => None,
        None => Some(match &call.claim {
            Some(claim) => format!("claimed by attempt {} at {}, no result", claim.attempt, claim.mark.at),
            None => "a record that was lost may have claimed it".to_owned(),
        }),
    };
    turn.calls.iter().filter_map(|call| Some((call, why(call)?))).collect()
}

fn turn_table(seen: &Seen, turns: &[&Turn], style: Style) -> String {
    let mut table = plain_table(
        &["TURN", "STATE", "ATTEMPTS", "CALLS", "ADMITTED", "LAST RECORD", "DELIVERY", "INPUT"],
        style,
    );
    for turn in turns {
        let input = status::input(turn, &seen.history).map(|input| message::text_of(&input));
        table.add_row(vec![
            turn.id.to_string(),
            status::state(turn).to_owned(),
            turn.attempts.len().to_string(),
            turn.calls.len().to_string(),
            short_time(&turn.admitted.at),
            short_time(&turn.newest.at),
            delivery(turn),
            brief(&input.unwrap_or_default(), 40),
        ]);
    }
    format!("{}\n", table.trim_fmt())
}

fn delivery(turn: &Turn) -> String {
    match (&turn.delivery_key, &turn.delivery) {
        (None, _) => String::new(),
        (Some(key), None) => brief(key, 24),
        (Some(key), Some(delivery)) => format!("{} {}", brief(key, 24), delivery.state),
    }
}

fn one_turn(seen: &Seen, turn: &Turn, status: &Status, now: &Now<'_>, style: Style) -> String {
    let mut text = String::new();
    let _infallible = writeln!(text, "turn {} is {}{}", turn.id, status::state(turn), holder(status));
    let mut line = |label: &str, said: String| {
        let _infallible = writeln!(text, "{label}: {said}");
    };
    if let Some(input) = &status.input {
        line("input", brief(&message::text_of(input), 100));
    }
    for (steered, now) in turn.steered.iter().zip(&status.steered) {
        let seen = if now.answered { "seen by the model" } else { "not seen by the model yet" };
        line("steered", format!("{} ({seen})", brief(&message::text_of(&steered.input), 80)));
    }
    if let Some(tree) = &status.tree {
        let leaf = tree.leaf.as_deref().unwrap_or("its root");
        let branch = tree.branch_leaf.as_ref().map(|leaf| format!(", branch ends at {leaf}"));
        line("tree", escaped(&format!("{} on {leaf}{}", tree.path, branch.unwrap_or_default())));
    }
    if let Some(settled) = &turn.settled {
        let reason = match seen.history.get(settled.mark.seq).map(|record| &record.kind) {
            Some(Kind::Settled(settled)) => settled.reason.clone(),
            _ => None,
        };
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        line("settled", brief(&format!("{}{reason}", settled.status), 100));
    }
    if let Some(reply) = &status.reply {
        line("reply", brief(&message::text_of(reply), 100));
    }
    if !status.calls.is_empty() {
        text.push('\n');
        text.push_str(&call_table(status, style));
    }
    text.push_str(&elsewhere_text(turn, now));
    text.push_str(&uncertain_text(turn, now));
    text
}

fn elsewhere_text(turn: &Turn, now: &Now<'_>) -> String {
    let lines: Vec<String> =
        advice::elsewhere(turn, now).iter().map(|line| format!("  {}\n", brief(line, 200))).collect();
    if lines.is_empty() { String::new() } else { format!("\nwith somebody:\n{}", lines.concat()) }
}

fn holder(status: &Status) -> String {
    let Some(attempt) = status.attempt else { return ", no attempt yet".to_owned() };
    let held = match &status.owner {
        Some(owner) => match (owner.pid, owner.alive) {
            (Some(pid), Some(true)) => format!("held by pid {pid}, which lives"),
            (Some(pid), _) if let Some(until) = &owner.lease_until => {
                format!("its owner, pid {pid}, let its lease run out at {until}")
            }
            (Some(pid), _) => format!("its owner, pid {pid}, is gone"),
            (None, _) => "held by nobody".to_owned(),
        },
        None => "held by nobody".to_owned(),
    };
    let cmd = status.owner.as_ref().and_then(|owner| owner.cmd.as_ref());
    let cmd = cmd.map(|cmd| format!(" ({})", brief(cmd, 60))).unwrap_or_default();
    format!("; attempt {attempt}: {held}{cmd}")
}

fn call_table(status: &Status, style: Style) -> String {
    let mut table =
        plain_table(&["CALL", "TOOL", "STATE", "DO", "REPLAY", "CLAIMED", "ID", "ARGUMENTS"], style);
    for call in &status.calls {
        let replay = if call.replay_stored == call.replay_now {
            call.replay_stored.to_string()
        } else {
            format!("{}, now {}", call.replay_stored, call.replay_now)
        };
        table.add_row(vec![
            call.r#ref.to_string(),
            brief(&call.tool, 30),
            call.state.to_owned(),
            call.r#do.to_owned(),
            replay,
            call.claimed_at.as_ref().map(short_time).unwrap_or_default(),
            brief(call.id.as_deref().unwrap_or_default(), 30),
            brief(call.args.get(), 60),
        ]);
    }
    format!("{}\n", table.trim_fmt())
}

fn uncertain_text(turn: &Turn, now: &Now<'_>) -> String {
    let mut text = String::new();
    for (call, why) in uncertain(turn, now) {
        let link = call.claim.as_ref().and_then(|claim| claim.link.as_ref());
        let link = link.map(|link| format!(", look it up: {}", link.get())).unwrap_or_default();
        let _infallible = writeln!(
            text,
            "  {} {}: {why}; key {}{}",
            call.r#ref,
            brief(&call.tool, 30),
            call.key,
            brief(&link, 100)
        );
    }
    if next::begun(turn) && !next::publisher_lives(turn, now) {
        text.push_str(
            "  the delivery: begun, and its publisher is gone; the reply may have been published\n",
        );
    }
    if text.is_empty() { text } else { format!("\nuncertain:\n{text}") }
}

/// A table without lines, one row a line however wide.
pub(super) fn plain_table(header: &[&str], style: Style) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    match style {
        Style::Colour => table.enforce_styling(),
        Style::Plain => table.force_no_tty(),
    };
    table.set_header(header.iter().map(|word| Cell::new(word).add_attribute(Attribute::Bold)));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// A time to the second, in UTC.
pub(super) fn short_time(at: &At) -> String {
    format!("{}Z", at.as_str().get(..19).unwrap_or(at.as_str()))
}

/// A size for people.
#[expect(clippy::cast_precision_loss, reason = "one decimal of a size for people")]
pub(super) fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next().unwrap_or(&"KiB");
    while size >= 1024.0
        && let Some(larger) = units.next()
    {
        size /= 1024.0;
        unit = larger;
    }
    format!("{size:.1} {unit}")
}
