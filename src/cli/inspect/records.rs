//! `--records` and `--follow`: the lines of the journal as they are.

use super::super::args::InspectArgs;
use super::super::context::Context;
use super::super::error::{Exit, Failure};
use super::super::output::Reader;
use super::find::{self, Place};
use super::{Seen, named_turn, watch};
use crate::chain;
use crate::journal::load::Lines;
use crate::journal::{JournalError, Reach};
use crate::record::{Kind, Record, TurnId};
use crate::turn::Retain;
use std::ops::Range;

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

fn filter(args: &InspectArgs, place: &Place, from: u64) -> Result<Filter, Failure> {
    if let Some(kind) = args.kind.as_deref().filter(|kind| !Kind::WORDS.contains(kind)) {
        let known = Kind::WORDS.join(", ");
        return Err(Failure::usage("no_kind", format!("there is no kind {kind:?}"))
            .hint(format!("the kinds are {known}")));
    }
    let turn = named_turn(args, place)?;
    Ok(Filter { from: args.from.unwrap_or(from), kind: args.kind.clone(), turn })
}

/// Prints what is there.
pub(super) fn run(context: &Context, args: &InspectArgs, place: &Place) -> Result<Exit, Failure> {
    let filter = filter(args, place, 0)?;
    let seen = match args.at {
        Some(seq) => find::as_of(context, place, seq)?,
        None => Seen::read(context, place, Reach::All(Retain::Unclosed))?,
    };
    print(context, place, &filter, 0..seen.end, &mut |_| Ok(()))?;
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

/// Prints what comes, until nobody wants more of it. Nothing is locked, and nothing tells the writer.
pub(super) fn follow(context: &Context, args: &InspectArgs, place: &Place) -> Result<Exit, Failure> {
    let mut size = watch::length(context, place)?;
    let mut seen = Seen::read(context, place, Reach::Base)?;
    let next = seen.session.as_ref().map_or(0, |session| session.head.seq + 1);
    let filter = filter(args, place, next)?;
    let (mut passed, mut newest) = (0, None);
    loop {
        seen.refuse_damage()?;
        let reader = print(context, place, &filter, passed..seen.end, &mut |record| {
            let follows = |record: &&Record| newest.as_ref().is_none_or(|newest| *newest == record.prev);
            let record = record.filter(follows).ok_or_else(|| replaced(place))?;
            newest = Some(record.hash.clone());
            Ok(())
        })?;
        if reader == Reader::Left {
            return Ok(Exit::Done);
        }
        passed = seen.end;
        while watch::length(context, place)? == size {
            std::thread::sleep(watch::PAUSE);
        }
        size = watch::length(context, place)?;
        seen = Seen::read(context, place, Reach::Base)?;
        if seen.end < passed {
            return Err(replaced(place));
        }
    }
}

fn replaced(place: &Place) -> Failure {
    let message = format!("{} is not the journal any more whose records were shown", place.path.display());
    Failure::of(Exit::Damaged, "journal_replaced", message)
        .hint("somebody cut or replaced it: `turnkeep verify --expect-head SEQ:HASH` tells what it lacks")
}

/// Prints the records of a range that the filter takes. Each line is checked first: `None` is one that is no record.
fn print(
    context: &Context,
    place: &Place,
    filter: &Filter,
    range: Range<u64>,
    check: &mut dyn FnMut(Option<&Record>) -> Result<(), Failure>,
) -> Result<Reader, Failure> {
    let failed =
        |source| Failure::from(JournalError::Io { action: "read", path: place.path.clone(), source });
    let file = context.storage.open_read(&place.path).map_err(failed)?;
    let mut lines = Lines::new(file.as_ref(), range.start).map_err(failed)?;
    let mut gathered = Vec::new();
    while let Some((offset, _)) = lines.advance().map_err(failed)? {
        if offset >= range.end {
            break;
        }
        let line = lines.line();
        if line.is_empty() {
            // A record that lacked its newline got it.
            continue;
        }
        let record = chain::decode(line).ok();
        check(record.as_ref())?;
        if record.is_some_and(|record| filter.takes(&record)) {
            gathered.extend_from_slice(line);
            gathered.push(b'\n');
        }
        if gathered.len() >= CHUNK {
            if context.out.foreign_bytes_for_a_reader(&gathered)? == Reader::Left {
                return Ok(Reader::Left);
            }
            gathered.clear();
        }
    }
    context.out.foreign_bytes_for_a_reader(&gathered)
}
