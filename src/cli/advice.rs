//! The exact command that comes next, ready to be typed, and who is waited for: for people, and for hints of other
//! commands.
//!
//! Pure. Words in capitals are for the reader to fill in; everything else is quoted for a shell.

use crate::record::{At, TurnId};
use crate::status::NextAct;
use crate::turn::decide::Now;
use crate::turn::{Call, Turn, next};

/// The command for what comes next, one per line where several calls are meant; `None` where there is nothing to
/// type.
pub fn command(session: &str, turn: &TurnId, next: &NextAct) -> Option<String> {
    let whole = quoted(&format!("{session}:{turn}"));
    let session = quoted(session);
    let each = |line: &dyn Fn(&str) -> String| {
        let lines: Vec<String> = next.refs.iter().map(|call| line(&call.to_string())).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    };
    match next.r#do {
        "recover" => Some(format!("turnkeep recover {whole} -- CMD")),
        "unpark" => Some(format!("turnkeep recover {whole} --unpark --by WHO --why TEXT -- CMD")),
        "run_calls" => each(&|call| format!("turnkeep step run {call} -- CMD")),
        "ask" => each(&|call| format!("turnkeep step approve {call} --by WHO --session {session}")),
        "reconcile" => each(&|call| {
            format!(
                "turnkeep step reconcile {call} --outcome applied|not_applied|unknown --by WHO --session {session}"
            )
        }),
        "await" => Some(format!("turnkeep inspect {session} --until-change SECS")),
        "call_model" => Some("turnkeep step message FILE".to_owned()),
        "settle" => Some("turnkeep step settle".to_owned()),
        "deliver" => Some("turnkeep step deliver -- CMD".to_owned()),
        "reconcile_delivery" => Some(format!(
            "turnkeep step deliver --session {whole} --receipt R|--not-sent|--waive --why T --by WHO"
        )),
        // A script goes on by itself: its owner lives, or it holds the ticket.
        _ => None,
    }
}

/// Who is at the open calls of a turn that are with somebody, and since when.
pub fn elsewhere(turn: &Turn, now: &Now<'_>) -> Vec<String> {
    turn.open_calls()
        .filter_map(|call| Some(format!("{} {}: {}", call.r#ref, call.tool, with_whom(turn, call, now)?)))
        .collect()
}

fn with_whom(turn: &Turn, call: &Call, now: &Now<'_>) -> Option<String> {
    if let Some(dispatch) = &call.dispatch {
        let receipt = dispatch.receipt.as_ref().map(|receipt| format!(", receipt {}", receipt.get()));
        let (to, since) = (&dispatch.to, since(&dispatch.mark.at, &now.at));
        return Some(format!("dispatched to {to} {since}{}", receipt.unwrap_or_default()));
    }
    let claim = call.live_claim().filter(|_| next::claimant_lives(turn, call, now))?;
    let since = since(&claim.mark.at, &now.at);
    let owner = || turn.attempt(claim.attempt).and_then(|attempt| attempt.owner.as_ref());
    Some(match (&claim.runner, owner()) {
        (Some(runner), _) => format!("run by pid {} ({}), claimed {since}", runner.pid, runner.cmd),
        (None, Some(owner)) => format!("claimed {since} by attempt {}, pid {}", claim.attempt, owner.pid),
        (None, None) => format!("claimed {since} by attempt {}, which nobody holds", claim.attempt),
    })
}

/// How long ago something was, in the two largest units; a clock that was set back makes it no time at all.
pub fn since(then: &At, at: &At) -> String {
    const UNITS: [(&str, i64); 4] = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];
    let mut rest = (at.micros().saturating_sub(then.micros()) / 1_000_000).max(0);
    let largest = UNITS.iter().position(|(_, seconds)| rest >= *seconds).unwrap_or(UNITS.len() - 1);
    let mut parts = Vec::new();
    for (unit, seconds) in UNITS.iter().skip(largest).take(2) {
        if rest >= *seconds || parts.is_empty() {
            parts.push(format!("{} {unit}", rest / seconds));
        }
        rest %= seconds;
    }
    format!("{} ago", parts.join(" "))
}

/// A word as a shell takes it.
pub fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:/@%+=,".contains(&byte);
    if !word.is_empty() && !word.starts_with('-') && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(word: &'static str, refs: &[&str]) -> NextAct {
        let refs = refs.iter().map(|call| call.parse().expect("a ref")).collect();
        NextAct { r#do: word, refs, why: String::new() }
    }

    fn said(word: &'static str, refs: &[&str]) -> Option<String> {
        command("room 'x'", &"t1".parse().expect("an id"), &act(word, refs))
    }

    #[test]
    fn each_act_has_its_command() {
        let turn = "t1".parse().expect("an id");
        let plain = |word, refs: &[&str]| command("room-42", &turn, &act(word, refs));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(plain("recover", &[]), some("turnkeep recover room-42:t1 -- CMD"));
        assert_eq!(
            plain("unpark", &[]),
            some("turnkeep recover room-42:t1 --unpark --by WHO --why TEXT -- CMD")
        );
        assert_eq!(
            plain("ask", &["3.0", "3.1"]),
            some(
                "turnkeep step approve 3.0 --by WHO --session room-42\nturnkeep step approve 3.1 --by WHO --session room-42"
            )
        );
        assert_eq!(
            plain("reconcile", &["3.0"]),
            some(
                "turnkeep step reconcile 3.0 --outcome applied|not_applied|unknown --by WHO --session room-42"
            )
        );
        assert_eq!(
            plain("reconcile_delivery", &[]),
            some(
                "turnkeep step deliver --session room-42:t1 --receipt R|--not-sent|--waive --why T --by WHO"
            )
        );
        assert_eq!(plain("await", &["3.0"]), some("turnkeep inspect room-42 --until-change SECS"));
        for nothing in ["done", "run_script"] {
            assert_eq!(plain(nothing, &[]), None, "{nothing}");
        }
    }

    #[test]
    fn ages_have_two_units_and_no_sign() {
        let at = |seconds: i64| At::from_micros(seconds * 1_000_000 + 500_000);
        let cases =
            [(-5, "0 s"), (0, "0 s"), (59, "59 s"), (60, "1 min"), (61, "1 min 1 s"), (7_265, "2 h 1 min")];
        for (seconds, told) in
            cases.into_iter().chain([(3_600, "1 h"), (90_000, "1 d 1 h"), (864_060, "10 d")])
        {
            assert_eq!(since(&at(1_000), &at(1_000 + seconds)), format!("{told} ago"));
        }
    }

    #[test]
    fn who_is_at_a_call_is_told() {
        use crate::record::Dispatched;
        use crate::testkit::Kit;
        let mut kit = Kit::new();
        let calls = kit.ask(&["a:never", "b:never", "c:never", "d:never"]);
        kit.claim(calls[1]);
        kit.push(kit.run_by(calls[2], 7000));
        kit.push(Dispatched { to: "worker".to_owned(), ..kit.dispatched(calls[3], Some("r1")) });
        let told = |kit: &Kit, at: i64| kit.now(at, |now| elsewhere(kit.turn(), now));
        kit.living = vec![4001, 7000];
        assert_eq!(
            told(&kit, 65),
            [
                "3.1 never: claimed 1 min 5 s ago by attempt 1, pid 4001",
                "3.2 never: run by pid 7000 (./driver.sh), claimed 1 min 5 s ago",
                "3.3 never: dispatched to worker 1 min 5 s ago, receipt \"r1\"",
            ]
        );
        kit.living.clear();
        assert_eq!(told(&kit, 0), ["3.3 never: dispatched to worker 0 s ago, receipt \"r1\""]);
    }

    #[test]
    fn a_session_id_is_one_word_for_a_shell() {
        assert_eq!(said("recover", &[]).expect("a command"), r"turnkeep recover 'room '\''x'\'':t1' -- CMD");
        assert_eq!(quoted("-x"), "'-x'");
        assert_eq!(quoted(""), "''");
    }
}
