//! What the model is told about calls that have no result of their own.
//!
//! An explanation never says that a call worked, failed, or should be repeated when nobody knows. Pure.

use crate::json::Raw;
use crate::record::{ApprovalDecision, Interrupted, NotRun, NotRunWhy};
use crate::turn::{Call, Turn};

/// Of the output so far, this much goes into the explanation itself, in bytes.
const SHOWN_BYTES_MAX: usize = 4 * 1024;

/// Settles a call whose outcome is unknown.
pub fn interrupted(turn: &Turn, call: &Call, output_so_far: Option<String>) -> Interrupted {
    let since = match (&call.claim, &call.dispatch) {
        (Some(claim), _) => format!(
            "was claimed at {} by attempt {}, and no result was stored before that attempt ended.",
            claim.mark.at, claim.attempt
        ),
        (None, Some(dispatch)) => {
            format!("was dispatched to {} at {}, and no result came.", dispatch.to, dispatch.mark.at)
        }
        (None, None) => "may have been claimed in a part of the journal that was lost.".to_owned(),
    };
    let mut text = format!("{} (arguments sha256 {}) {since}", call.tool, call.args_sha256);
    if turn.cancelled.is_some() {
        text.push_str(" The turn was cancelled.");
    }
    text.push_str(
        " The outcome is unknown: it may have taken effect in full, in part or not at all, and it may still be \
         running.",
    );
    match &output_so_far {
        Some(output) => {
            text.push_str(" Its output so far:\n");
            text.push_str(last_part(output));
            if !output.ends_with('\n') {
                text.push('\n');
            }
        }
        None => text.push_str(" No output of it is known. "),
    }
    text.extend(["Look it up by its key ", &call.key]);
    if let Some(link) = call.claim.as_ref().and_then(|claim| claim.link.as_ref()) {
        text.extend([" and at ", &plain(link)]);
    }
    if let Some(receipt) = call.dispatch.as_ref().and_then(|dispatch| dispatch.receipt.as_ref()) {
        text.extend([" and by the receipt ", &plain(receipt)]);
    }
    text.push_str(" before anything else; repeating it before that is not advised.");
    Interrupted {
        turn: turn.id.clone(),
        attempt: turn.current_number(),
        r#ref: call.r#ref,
        explanation: text,
        output_so_far: output_so_far.map(|output| Raw::text(&output)),
    }
}

/// Settles a call that was never started, and says why in the words of whoever did not start it.
pub fn refused(turn: &Turn, call: &Call, because: &str) -> NotRun {
    not_run_because(turn, call, NotRunWhy::Refused, because)
}

/// Settles a call that never ran and never will.
pub fn not_run(turn: &Turn, call: &Call, why: NotRunWhy) -> NotRun {
    let because = match why {
        NotRunWhy::CutOff => "the message that asked for it was cut off, so it may be incomplete".to_owned(),
        NotRunWhy::Cancelled => "the turn was cancelled before it began".to_owned(),
        NotRunWhy::Denied => match &call.approved {
            Some(word) if word.decision == ApprovalDecision::Denied => {
                let reason = word.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
                format!("{} denied it{reason}", word.by)
            }
            _ => "it was denied".to_owned(),
        },
        NotRunWhy::Refused => "the agent ended before it began, and it was not started afterwards".to_owned(),
    };
    not_run_because(turn, call, why, &because)
}

fn not_run_because(turn: &Turn, call: &Call, why: NotRunWhy, because: &str) -> NotRun {
    NotRun {
        turn: turn.id.clone(),
        attempt: turn.current_number(),
        r#ref: call.r#ref,
        why,
        explanation: format!("{} was not run: {because}. It had no effect.", call.tool),
    }
}

/// A JSON string as its text, anything else as JSON.
fn plain(raw: &Raw) -> String {
    raw.view().string().unwrap_or_else(|| raw.get().to_owned())
}

fn last_part(output: &str) -> &str {
    let from = output.len().saturating_sub(SHOWN_BYTES_MAX);
    let from = (from..output.len()).find(|at| output.is_char_boundary(*at)).unwrap_or(0);
    output.get(from..).unwrap_or(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_begins_on_a_character() {
        let long = "語".repeat(SHOWN_BYTES_MAX);
        let shown = last_part(&long);
        assert!(shown.len() <= SHOWN_BYTES_MAX && shown.chars().all(|char| char == '語'));
        assert_eq!(last_part("short"), "short");
    }
}
