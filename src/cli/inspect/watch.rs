//! `--until-change`: waits for the next record. Nothing is locked, and nothing tells the writer.

use super::super::context::Context;
use super::super::error::{Exit, Failure};
use super::{Chosen, Place, Seen, print_state};
use crate::journal::{JournalError, Reach};
use crate::turn::Retain;
use std::time::{Duration, Instant};

/// How often the size of the file is asked for.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

pub(super) fn run(context: &Context, place: &Place, seconds: f64) -> Result<Exit, Failure> {
    let deadline = Instant::now() + Duration::from_secs_f64(seconds);
    let mut size = length(context, place)?;
    let before = head(&Seen::read(context, place, Reach::Base)?)?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return answer(context, place, Exit::Waiting);
        }
        std::thread::sleep(PAUSE.min(left));
        let now = length(context, place)?;
        if now != size {
            size = now;
            if head(&Seen::read(context, place, Reach::Base)?)? != before {
                return answer(context, place, Exit::Done);
            }
        }
    }
}

/// For scripts the state too, so that they need not ask again.
fn answer(context: &Context, place: &Place, exit: Exit) -> Result<Exit, Failure> {
    if context.out.json {
        let mut seen = Seen::read(context, place, Reach::Base)?;
        let now = context.now(seen.at.clone());
        if !matches!(seen.chosen(&now, None)?, Chosen::Turn(_)) {
            seen = Seen::read(context, place, Reach::All(Retain::All))?;
        }
        let turn = match seen.chosen(&now, None)? {
            Chosen::Turn(turn) => Some(turn),
            Chosen::Closed | Chosen::None => None,
        };
        print_state(context, &seen, turn)?;
    }
    Ok(exit)
}

fn head(seen: &Seen) -> Result<Option<(u64, String)>, Failure> {
    seen.refuse_damage()?;
    Ok(seen.session.as_ref().map(|session| (session.head.seq, session.head.hash.to_string())))
}

pub(super) fn length(context: &Context, place: &Place) -> Result<u64, Failure> {
    let found = context.storage.inspect(&place.path);
    found
        .map(|meta| meta.len)
        .map_err(|source| JournalError::Io { action: "look at", path: place.path.clone(), source }.into())
}
