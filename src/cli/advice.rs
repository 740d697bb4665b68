//! The command to type next.

use crate::record::TurnId;
use crate::status::NextAct;

/// The command that does what comes next, where a person types one.
pub fn command(session: &str, turn: &TurnId, next: &NextAct) -> Option<String> {
    let call = next.refs.first().map(ToString::to_string).unwrap_or_default();
    Some(match next.r#do {
        "recover" => format!("turnkeep recover {session} -- CMD"),
        "unpark" => format!("turnkeep recover {session}:{turn} --unpark --by WHO --why TEXT -- CMD"),
        "ask" => format!("turnkeep step approve {call} --by WHO --session {session}:{turn}"),
        "reconcile" => format!(
            "turnkeep step reconcile {call} --outcome applied|not_applied|unknown --by WHO --session {session}:{turn}"
        ),
        "reconcile_delivery" => format!(
            "turnkeep step deliver --session {session}:{turn} --receipt R | --not-sent | --waive --why TEXT"
        ),
        _ => return None,
    })
}
