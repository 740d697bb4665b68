//! Messages of ours in Pi's form, composed from the records they stand for when somebody asks for one.
//!
//! A turn may hold many large bodies, and most questions about its branch are answered by the ids of its entries alone.
//! So a body is composed where an entry of ours is written or compared, and nowhere else.

use super::compose::{content_of, unknown_text};
use crate::json::Raw;
use crate::message::{self, Answered, Format, Meaning};
use crate::record::{Kind, Message, ReconciledOutcome};
use crate::turn::Call;

/// A message of ours, and the time that it carries.
pub(super) struct Body<'a> {
    source: Source<'a>,
    timestamp: i64,
}

/// What a message of ours says.
pub(super) enum Source<'a> {
    /// What a user says.
    Words(Raw),
    /// A message of whatever format.
    Said { message: &'a Message, calls: &'a [Call] },
    /// The result at this position of a message that tells results.
    Told { message: &'a Message, position: usize, call: &'a Call },
    /// What a record answered a call with.
    Answer { kind: &'a Kind, call: &'a Call },
}

impl<'a> Body<'a> {
    pub(super) fn new(source: Source<'a>, timestamp: i64) -> Self {
        Self { source, timestamp }
    }

    /// The message; `None` for a record that is none, which the state does not take.
    pub(super) fn compose(&self) -> Option<Raw> {
        #[cfg(test)]
        count::one_more();
        match &self.source {
            Source::Words(words) => Some(message::pi_user(words, self.timestamp)),
            Source::Said { message, calls } => {
                let meaning = meaning(message)?.with_role(&message.role);
                let ids: Vec<Option<String>> = calls.iter().map(|call| call.id.clone()).collect();
                Some(message::pi_message(&meaning, &message.message, &ids, self.timestamp))
            }
            Source::Told { message, position, call } => {
                let Answered { raw, error, .. } = meaning(message)?.answers.into_iter().nth(*position)?;
                Some(self.result(call, &raw, error))
            }
            Source::Answer { kind, call } => self.answer(kind, call),
        }
    }

    /// The Pi tool-result message that a recorded answer becomes.
    fn answer(&self, kind: &Kind, call: &Call) -> Option<Raw> {
        let message = match kind {
            Kind::Outcome(result) => self.result(call, &content_of(result), result.error),
            Kind::Interrupted(interrupted) => self.result(call, &Raw::text(&interrupted.explanation), true),
            Kind::NotRun(not_run) => self.result(call, &Raw::text(&not_run.explanation), true),
            Kind::Reconciled(reconciled) => match &reconciled.content {
                Some(content) => self.result(call, content, reconciled.outcome == ReconciledOutcome::Unknown),
                None => self.result(call, &Raw::text(&unknown_text(call, &reconciled.by)), true),
            },
            _ => return None,
        };
        Some(message)
    }

    fn result(&self, call: &Call, content: &Raw, error: bool) -> Raw {
        let id = call.id.as_deref().unwrap_or_default();
        message::pi_result(id, &call.tool, content, error, self.timestamp)
    }
}

/// Whether a record answers a call with something that can stand on a branch.
pub(super) fn is_answer(kind: &Kind) -> bool {
    matches!(kind, Kind::Outcome(_) | Kind::Interrupted(_) | Kind::NotRun(_) | Kind::Reconciled(_))
}

/// What a message means; the state takes none that means nothing.
pub(super) fn meaning(message: &Message) -> Option<Meaning> {
    let format: Format = message.format.parse().ok()?;
    message::meaning(format, &message.message).ok()
}

/// How many bodies were composed.
#[cfg(test)]
pub(super) mod count {
    use std::cell::Cell;

    thread_local!(static COMPOSED: Cell<usize> = const { Cell::new(0) });

    pub(in crate::branch) fn one_more() {
        COMPOSED.set(COMPOSED.get() + 1);
    }

    /// How many are composed while this runs.
    pub(in crate::branch) fn during<T>(run: impl FnOnce() -> T) -> (T, usize) {
        let before = COMPOSED.get();
        let ran = run();
        (ran, COMPOSED.get() - before)
    }
}
