//! `--records`: the lines of the journal as they are.

use super::super::args::InspectArgs;
use super::super::context::Context;
use super::super::error::{Exit, Failure};
use super::find::{self, Place};
use super::{Seen, named_turn};
use crate::chain;
use crate::journal::load::Lines;
use crate::journal::{JournalError, Reach};
use crate::record::{Kind, Record, TurnId};
use crate::turn::Retain;

/// How many bytes are gathered before they are printed.
const CHUNK: usize = 64 * 1024;

/// Which records are meant.
struct Filter {
    from: u64,
    kind: Option<String>,
    turn: Option<TurnId>,
}

impl Filter {
    fn takes(&self, record: &Record) -> bool {
        record.seq >= self.from
            && self.kind.as_deref().is_none_or(|kind| kind == record.kind.word())
            && self.turn.as_ref().is_none_or(|turn| record.kind.turn() == Some(turn))
    }
}

pub(super) fn run(context: &Context, args: &InspectArgs, place: &Place) -> Result<Exit, Failure> {
    if let Some(kind) = args.kind.as_deref().filter(|kind| !Kind::WORDS.contains(kind)) {
        let known = Kind::WORDS.join(", ");
        return Err(Failure::usage("no_kind", format!("there is no kind {kind:?}"))
            .hint(format!("the kinds are {known}")));
    }
    let turn = named_turn(args, place)?;
    let filter = Filter { from: args.from.unwrap_or(0), kind: args.kind.clone(), turn };
    let seen = match args.at {
        Some(seq) => find::as_of(context, place, seq)?,
        None => Seen::read(context, place, Reach::All(Retain::Unclosed))?,
    };
    print(context, place, &filter, seen.end)?;
    for damage in &seen.damage {
        context.out.note(&format!(
            "damage in line {}, {} bytes from byte {}: {}",
            damage.line, damage.bytes, damage.offset, damage.flaw
        ));
    }
    for note in seen.notes() {
        context.out.note(&note);
    }
    Ok(seen.exit())
}

fn print(context: &Context, place: &Place, filter: &Filter, end: u64) -> Result<(), Failure> {
    let failed =
        |source| Failure::from(JournalError::Io { action: "read", path: place.path.clone(), source });
    let file = context.storage.open_read(&place.path).map_err(failed)?;
    let mut lines = Lines::new(file.as_ref(), 0).map_err(failed)?;
    let mut gathered = Vec::new();
    while let Some((offset, _)) = lines.advance().map_err(failed)? {
        if offset >= end {
            break;
        }
        let line = lines.line();
        if chain::decode(line).is_ok_and(|record| filter.takes(&record)) {
            gathered.extend_from_slice(line);
            gathered.push(b'\n');
        }
        if gathered.len() >= CHUNK {
            context.out.foreign_bytes(&gathered)?;
            gathered.clear();
        }
    }
    context.out.foreign_bytes(&gathered)
}
