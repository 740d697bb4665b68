//! What a word names, where a journal is, and which one holds a delivery key.

use super::super::context::Context;
use super::super::error::{Exit, Failure, chain};
use super::super::select;
use super::super::verify::is_tree;
use super::{AsOf, Seen};
use crate::journal::load::{self, Lines, Loaded};
use crate::journal::{JournalError, Reach};
use crate::json::Raw;
use crate::paths;
use crate::record::TurnId;
use crate::storage::{Identity, ItemKind, LockKind, StoredFile};
use crate::turn::Retain;
use memchr::memmem;
use std::io;
use std::path::{Path, PathBuf};

/// A journal that is to be looked at.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// The file.
    pub(super) path: PathBuf,
    /// The session, where the state root names it.
    pub(super) id: Option<String>,
    /// The turn, where `SESSION:TURN` was given.
    pub(super) turn: Option<TurnId>,
}

impl Place {
    /// The session id, as far as the name of the file tells it.
    pub(super) fn name(&self) -> String {
        let stem = self.path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        self.id.clone().or_else(|| paths::session_id(&stem)).unwrap_or(stem)
    }
}

/// What a word names.
pub(super) enum Found {
    Journal(Place),
    SessionFile(PathBuf),
}

/// Finds what a word names: a session of the root, else a file; `./` forces a file.
pub(super) fn named(context: &Context, name: &str) -> Result<Found, Failure> {
    let file = Path::new(name);
    let is_file = || context.kind_of(file).is_ok_and(|kind| kind == ItemKind::File);
    if name.starts_with("./") {
        return if is_file() { Ok(a_file(context, file)) } else { Err(no_file(file)) };
    }
    let exists = |id: &str| context.has_session(id);
    if !exists(name) && is_file() {
        return Ok(a_file(context, file));
    }
    let (id, turn) = select::session_and_turn(name, exists);
    let (id, turn) = if turn.is_some() && !exists(&id) { (name.to_owned(), None) } else { (id, turn) };
    let path = context.root.journal(&id)?;
    if !exists(&id) {
        // Behind a link that leads nowhere there may be such a session.
        context.root.check_absent(context.storage.as_ref(), &id)?;
        return Err(no_session(context, &id));
    }
    Ok(Found::Journal(Place { path, id: Some(id), turn }))
}

/// A journal anywhere, or a session file.
fn a_file(context: &Context, path: &Path) -> Found {
    if is_tree(context, path) {
        return Found::SessionFile(path.to_owned());
    }
    Found::Journal(Place { path: path.to_owned(), id: None, turn: None })
}

fn no_file(path: &Path) -> Failure {
    Failure::of(Exit::NotFound, "no_file", format!("there is no file {}", path.display()))
        .hint("a word with a `/` names a file; `turnkeep inspect` lists the sessions")
}

fn no_session(context: &Context, id: &str) -> Failure {
    let root = context.root.path().to_owned();
    let failure = Failure::from(JournalError::NoSession { id: id.to_owned(), root });
    let near: Vec<String> = context
        .root
        .sessions(context.storage.as_ref())
        .unwrap_or_default()
        .into_iter()
        .filter_map(|file| file.id)
        .filter(|known| is_near(known, id))
        .take(3)
        .collect();
    if near.is_empty() {
        return failure;
    }
    Failure { hint: format!("near matches: {}", near.join(", ")), ..failure }
}

/// A part of it, or a few characters apart.
fn is_near(known: &str, asked: &str) -> bool {
    let (known, asked) = (known.to_lowercase(), asked.to_lowercase());
    known.contains(&asked) || asked.contains(&known) || distance(&known, &asked) <= 2
}

/// How many characters have to be put in, taken out or replaced.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().take(256).collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (count, from) in left.chars().take(256).enumerate() {
        let mut diagonal = count;
        let mut left = count + 1;
        for (to, above) in right.iter().zip(row.iter_mut().skip(1)) {
            left = (diagonal + usize::from(from != *to)).min(*above + 1).min(left + 1);
            diagonal = *above;
            *above = left;
        }
        if let Some(first) = row.first_mut() {
            *first = count + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

/// Reads a journal without a lock; another format and another session's journal are refused.
pub(super) fn load(context: &Context, place: &Place, reach: Reach) -> Result<Loaded, Failure> {
    let loaded = match &place.id {
        Some(id) => context.read(id, reach)?,
        None => context.read_at(&place.path, reach)?,
    };
    match &loaded.other_format {
        Some(found) => {
            Err(JournalError::OtherFormat { path: place.path.clone(), found: found.clone() }.into())
        }
        None => Ok(loaded),
    }
}

/// The state as of a record: what the same reader makes of the file up to the end of that line.
pub(super) fn as_of(context: &Context, place: &Place, seq: u64) -> Result<Seen, Failure> {
    let whole = load(context, place, Reach::All(Retain::Unclosed))?;
    let found = whole.history.iter().find(|(_, record)| record.seq == seq).map(|(offset, _)| offset);
    let offset = match found {
        Some(offset) => offset,
        None if seq == 0 && whole.session.is_some() => 0,
        None => {
            let newest = whole.history.iter().next_back().map_or(0, |(_, record)| record.seq);
            let message = format!("there is no record {seq}; the newest is {newest}");
            return Err(Failure::of(Exit::NotFound, "no_record", message)
                .hint("`turnkeep inspect SESSION --records` lists them"));
        }
    };
    let failed =
        |source| Failure::from(JournalError::Io { action: "read", path: place.path.clone(), source });
    let file = context.storage.open_read(&place.path).map_err(failed)?;
    let mut lines = Lines::new(file.as_ref(), offset).map_err(failed)?;
    lines.advance().map_err(failed)?;
    let end = offset + lines.line().len() as u64 + 1;
    drop(lines);
    let loaded = load::load(&Prefix { file, end }, Reach::All(Retain::All)).map_err(failed)?;
    let mut seen = Seen::of(context, place, loaded, AsOf::Record(seq));
    seen.damage = whole.damage;
    Ok(seen)
}

/// What cannot be read may have been anything: calls without an answer count as claimed.
pub(super) fn doubt(loaded: &mut Loaded) {
    if let Some(session) = loaded.session.as_mut().filter(|_| !loaded.damage.is_empty()) {
        session.lose_records();
    }
}

/// The first bytes of a file, and nothing behind them. Only for reading.
struct Prefix {
    file: Box<dyn StoredFile>,
    end: u64,
}

impl StoredFile for Prefix {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.len()?.min(self.end))
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = buf.len().min(left);
        self.file.read_at(offset, buf.get_mut(..wanted).unwrap_or_default())
    }
    fn append(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn sync_data(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn sync_all(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn truncate(&mut self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn identity(&self) -> io::Result<Identity> {
        self.file.identity()
    }
    fn try_lock(&self, _kind: LockKind) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The turns that were admitted, or steered into, under a delivery key, in one session or in all.
/// Each is shown by `view`.
pub(super) fn by_delivery(
    context: &Context,
    place: Option<&Place>,
    key: &str,
    view: &dyn Fn(&Place) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    let places = match place {
        Some(place) => vec![place.clone()],
        None => all(context)?,
    };
    let spelled = format!("\"delivery\":{}", Raw::text(key).get());
    let (mut known, mut failures) = (Vec::new(), Vec::new());
    for place in &places {
        match with_key(context, place, key, spelled.as_bytes()) {
            Ok(place) => known.extend(place),
            Err(failure) => failures.push(failure),
        }
    }
    if known.is_empty() {
        return Err(nobody_has(context, &places, key));
    }
    let mut shown = Vec::new();
    for place in &known {
        match view(place) {
            Ok(exit) => shown.push(exit),
            Err(failure) => failures.push(failure),
        }
    }
    let exit = shown.iter().copied().fold(Exit::Done, worse);
    match worst_of(context, failures) {
        None => Ok(exit),
        Some(failure) if shown.is_empty() => Err(failure),
        Some(failure) => {
            context.out.note(&failure.message);
            Ok(worse(exit, failure.exit))
        }
    }
}

/// The turn of a session that was admitted, or steered into, under a delivery key.
fn with_key(context: &Context, place: &Place, key: &str, spelled: &[u8]) -> Result<Option<Place>, Failure> {
    let failed = |source| JournalError::Io { action: "read", path: place.path.clone(), source };
    if !holds(context, &place.path, spelled).map_err(failed)? {
        return Ok(None);
    }
    let seen = Seen::read(context, place, Reach::All(Retain::All))?;
    let turn = seen.session.as_ref().and_then(|session| session.turn_of_key(key)).cloned();
    Ok(turn.map(|turn| Place { turn: Some(turn), ..place.clone() }))
}

/// No turn that can be read has the key. What cannot be read may hold one that has it, so damage is looked for.
fn nobody_has(context: &Context, places: &[Place], key: &str) -> Failure {
    let message = format!("no turn has the delivery key {key:?}");
    let whole = |place| Seen::read(context, place, Reach::All(Retain::Unclosed));
    let checked = places.iter().map(|place| whole(place).and_then(|seen| seen.refuse_damage()));
    match worst_of(context, checked.filter_map(Result::err).collect()) {
        Some(worst) => Failure { message: format!("{message} that can be read: {}", worst.message), ..worst },
        None => Failure::of(Exit::NotFound, "no_delivery", message).hint(
            "`turnkeep inspect` lists the sessions, and `turnkeep inspect SESSION` the keys of its turns",
        ),
    }
}

/// The worst of several failures; the others become notes.
fn worst_of(context: &Context, failures: Vec<Failure>) -> Option<Failure> {
    failures.into_iter().reduce(|worst, failure| {
        let stays = worse(worst.exit, failure.exit) == worst.exit;
        let (worst, other) = if stays { (worst, failure) } else { (failure, worst) };
        context.out.note(&other.message);
        worst
    })
}

/// Every journal of the root.
pub(super) fn all(context: &Context) -> Result<Vec<Place>, Failure> {
    let files = context.root.sessions(context.storage.as_ref()).map_err(|error| match error {
        paths::PathError::NoRoot { .. } => {
            Failure::of(Exit::NotFound, "no_root", chain(&error)).hint("`turnkeep admit` makes it")
        }
        error => error.into(),
    })?;
    Ok(files.into_iter().map(|file| Place { path: file.path, id: file.id, turn: None }).collect())
}

/// Whether a file holds some bytes in one of its lines.
fn holds(context: &Context, path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let file = context.storage.open_read(path)?;
    let finder = memmem::Finder::new(bytes);
    let mut lines = Lines::new(file.as_ref(), 0)?;
    while lines.advance()?.is_some() {
        if finder.find(lines.line()).is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The worse of two exits, in the order in which `verify` sums up.
pub(super) fn worse(left: Exit, right: Exit) -> Exit {
    const ORDER: [Exit; 5] = [Exit::Damaged, Exit::Conflict, Exit::Unexpected, Exit::OtherFormat, Exit::Done];
    let place = |exit: Exit| ORDER.iter().position(|known| *known == exit).unwrap_or(2);
    if place(left) <= place(right) { left } else { right }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_parts_or_a_slip_away() {
        assert!(is_near("room-42", "room-24"));
        assert!(is_near("room-42", "ROOM"));
        assert!(!is_near("room-42", "hall-7"));
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "ab"), 2);
    }

    #[test]
    fn damage_is_worse_than_another_format() {
        assert_eq!(worse(Exit::OtherFormat, Exit::Damaged), Exit::Damaged);
        assert_eq!(worse(Exit::Done, Exit::OtherFormat), Exit::OtherFormat);
        assert_eq!(worse(Exit::Unexpected, Exit::OtherFormat), Exit::Unexpected);
    }
}
