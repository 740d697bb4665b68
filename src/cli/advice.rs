//! The exact command that comes next, ready to be typed: for people, and for hints of other commands.
//!
//! Pure. Words in capitals are for the reader to fill in; everything else is quoted for a shell.

use crate::record::TurnId;
use crate::status::NextAct;

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
    fn a_session_id_is_one_word_for_a_shell() {
        assert_eq!(said("recover", &[]).expect("a command"), r"turnkeep recover 'room '\''x'\'':t1' -- CMD");
        assert_eq!(quoted("-x"), "'-x'");
        assert_eq!(quoted(""), "''");
    }
}
