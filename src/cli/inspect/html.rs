//! `--html`: one page that needs nothing else, with the time line of each turn, its attempts and its calls.
//!
//! Pure. What came from outside is escaped twice over: for people who read it, and for HTML.

use super::super::output::brief;
use super::Seen;
use super::show::{short_time, size_text, uncertain};
use crate::message;
use crate::record::{At, CallRef};
use crate::status::{self, Status};
use crate::turn::decide::Now;
use crate::turn::{Attempt, Call, Turn};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::collections::HashMap;

const STYLE: &str = "
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; }
h2 { border-top: 1px solid #8886; padding-top: .7em; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; }
td { padding: .15em .5em .15em 0; vertical-align: top; overflow-wrap: anywhere; }
td:first-child { width: 42%; }
.line { background: #8882; height: 1.2em; position: relative; }
.bar { background: #47a; height: 100%; min-width: 3px; position: absolute; }
.attempt .bar { background: #888; }
.uncertain .bar { background: #c52; }
.uncertain td:first-child, .damage { color: #c52; font-weight: 600; }
";

/// The page.
pub(super) fn page(seen: &Seen, status: &Status, now: &Now<'_>) -> String {
    let turns: Vec<&Turn> = seen.session.iter().flat_map(|session| &session.turns).collect();
    let title = format!("session {}", brief(&seen.id, 100));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                p { (head(seen)) }
                p { "next: " (status.next.r#do) " - " (brief(&status.next.why, 200)) }
                @for note in &status.notes { p .damage[!seen.damage.is_empty()] { "note: " (brief(note, 400)) } }
                @if turns.is_empty() { p { "no turn was ever admitted" } }
                @for turn in turns { (one_turn(seen, turn, now)) }
            }
        }
    };
    page.into_string()
}

fn head(seen: &Seen) -> String {
    let path = brief(&seen.place.path.display().to_string(), 400);
    let head = seen.session.as_ref().map(|session| format!(", head {}", session.head.head()));
    format!("{path}: {}{}, as of {}", size_text(seen.end), head.unwrap_or_default(), short_time(&seen.at))
}

fn one_turn(seen: &Seen, turn: &Turn, now: &Now<'_>) -> Markup {
    let span = Span::of(turn);
    let input = status::input(turn, &seen.history).map(|input| message::text_of(&input)).unwrap_or_default();
    let uncertain: HashMap<CallRef, String> =
        uncertain(turn, now).into_iter().map(|(call, why)| (call.r#ref, why)).collect();
    html! {
        h2 { "turn " (turn.id) ": " (status::state(turn)) }
        p { (brief(&input, 400)) }
        p {
            (short_time(&turn.admitted.at)) " to " (short_time(&turn.newest.at))
            @if let Some(settled) = &turn.settled { ", " (settled.status) }
            @if let Some(delivery) = &turn.delivery { ", delivery " (delivery.state) }
        }
        table {
            @for (index, attempt) in turn.attempts.iter().enumerate() {
                tr .attempt {
                    td { (attempt_text(attempt)) }
                    td { (span.bar(&attempt.begun.at, turn.attempts.get(index + 1).map(|next| &next.begun.at))) }
                }
            }
            @for call in &turn.calls {
                @let why = uncertain.get(&call.r#ref);
                tr .uncertain[why.is_some()] {
                    td { (call_text(call)) @if let Some(why) = why { ": " (why) } }
                    td { (call_bar(&span, call)) }
                }
            }
        }
    }
}

fn attempt_text(attempt: &Attempt) -> String {
    let owner = match &attempt.owner {
        Some(owner) => format!("pid {} ({})", owner.pid, brief(&owner.cmd, 60)),
        None => "nobody".to_owned(),
    };
    format!("attempt {} ({}): {owner}", attempt.number, attempt.cause)
}

fn call_text(call: &Call) -> String {
    let tool = brief(&call.tool, 30);
    format!("{} {tool} {}, {}", call.r#ref, brief(call.args.get(), 80), status::call_state(call))
}

fn call_bar(span: &Span, call: &Call) -> Markup {
    let begun = match (&call.claim, &call.dispatch) {
        (Some(claim), _) => Some(&claim.mark.at),
        (None, Some(dispatch)) => Some(&dispatch.mark.at),
        (None, None) => None,
    };
    let answered = call.answer.as_ref().map(|answer| &answer.mark.at);
    match begun.or(answered) {
        Some(begun) => span.bar(begun, answered),
        None => html! { "not begun" },
    }
}

/// The time from the first to the last record of a turn, in microseconds. Clocks may run backwards.
struct Span {
    from: i64,
    length: i64,
}

impl Span {
    fn of(turn: &Turn) -> Self {
        let from = turn.admitted.at.micros();
        Self { from, length: (turn.newest.at.micros() - from).max(1) }
    }

    /// Where a moment is, in thousandths.
    fn place(&self, at: &At) -> i64 {
        (at.micros() - self.from).clamp(0, self.length).saturating_mul(1_000) / self.length
    }

    /// From one moment to another, or to the end.
    fn bar(&self, from: &At, to: Option<&At>) -> Markup {
        let from_place = self.place(from);
        let width = to.map_or(1_000, |to| self.place(to)).saturating_sub(from_place).max(0);
        let left = format!("left: {}.{}%", from_place / 10, from_place % 10);
        let width = format!("width: {}.{}%", width / 10, width % 10);
        let until = to.map(short_time).unwrap_or_default();
        html! {
            div .line title={ (short_time(from)) " - " (until) } { div .bar style={ (left) "; " (width) } {} }
        }
    }
}
