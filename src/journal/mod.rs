//! The journal of a session: opened under its lock, appended to, never rewritten.
//!
//! The order of durability lives here: the tail is checked, records are encoded and checked, one `write`, one
//! fdatasync, and only then is anything acknowledged. What was found is synced before it is acted on, since the
//! last writer may have died between its write and its sync. After a failed write or sync the journal is poisoned.

pub mod load;

pub use load::{Damage, Flaw, Loaded, Range, Reach};

use crate::draft::{Draft, DraftError, History};
use crate::lock::{self, Clock, LockError, Locked};
use crate::paths::{self, PathError, Root};
use crate::record::{At, FORMAT, Hash, Kind, Opened, Repaired};
use crate::scan::Tail;
use crate::storage::{self, Storage, StoredFile};
use crate::turn::{Mark, Retain, Session};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a journal could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// There is no such session.
    #[error("there is no session {id:?} in {}", root.display())]
    NoSession {
        /// The session id.
        id: String,
        /// The state root.
        root: PathBuf,
    },
    /// The journal under this name is another session's.
    #[error("{} is the journal of session {found:?}, not of {asked:?}", path.display())]
    OtherSession {
        /// The file.
        path: PathBuf,
        /// The session in its genesis.
        found: String,
        /// The session that was asked for.
        asked: String,
    },
    /// The journal is damaged.
    #[error("{} is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// All of the damage.
        damage: Vec<Damage>,
    },
    /// Another version wrote the journal.
    #[error("{} is of format {found:?}, this version knows {FORMAT:?}", path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: String,
    },
    /// The lock was not to be had.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A name, folder or link is not as it must be.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A record could not be drafted; nothing was written.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// Nothing was acknowledged, since this failed.
    #[error("could not {action} {}", path.display())]
    NotDurable {
        /// What failed.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The journal could not be looked at.
    #[error("could not {action} {}", path.display())]
    Io {
        /// What failed.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A write or sync failed before; this handle writes nothing more.
    #[error("{} is not written to any more, since a write to it failed", path.display())]
    Poisoned {
        /// The file.
        path: PathBuf,
    },
    /// A signal came before anything was written.
    #[error("ended by signal {signal} before anything was written")]
    Signal {
        /// Its number.
        signal: i32,
    },
}

/// What a journal needs from its surroundings.
#[derive(Clone, Copy)]
pub struct Setting<'s> {
    /// The disk.
    pub storage: &'s dyn Storage,
    /// The state root.
    pub root: &'s Root,
    /// Time for the lock, and how a wait ends early.
    pub clock: &'s dyn Clock,
    /// How long to wait for the lock.
    pub wait: Duration,
    /// Longest line, in bytes.
    pub line_bytes_max: u64,
    /// The signal that asks this process to end, if one came.
    pub signal: &'s dyn Fn() -> Option<i32>,
}

/// A journal that only this process writes to.
pub struct Journal<'s> {
    setting: Setting<'s>,
    id: String,
    path: PathBuf,
    locked: Locked,
    session: Option<Session>,
    history: History,
    tail: Tail,
    end: u64,
    health: Health,
    /// Damage that nobody acknowledged yet.
    damaged: Vec<Range>,
}

/// What to do about damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnDamage {
    Refuse,
    Keep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Sound,
    Poisoned,
}

/// A draft, together with what has to happen to the file before it is written.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The records.
    pub draft: Draft,
    repair: Option<Repair>,
    lead: &'static [u8],
    written: usize,
}

/// Bytes that are cut off and kept.
#[derive(Debug, Clone)]
struct Repair {
    range: Range,
    sha256: Hash,
    saved_as: PathBuf,
}

impl<'s> Journal<'s> {
    /// Opens the journal of a session that exists. What it holds is durable when this returns.
    pub fn open(setting: Setting<'s>, id: &str) -> Result<Self, JournalError> {
        Self::open_with(setting, id, OnDamage::Refuse)
    }

    /// The same for a journal that may be damaged: the whole of it is read, and its damaged ranges are kept for
    /// [`Journal::salvage`], without which nothing may be written. A damaged genesis is refused all the same.
    pub fn open_to_salvage(setting: Setting<'s>, id: &str) -> Result<Self, JournalError> {
        Self::open_with(setting, id, OnDamage::Keep)
    }

    /// The damaged ranges as records that acknowledge them, to be drafted before anything else.
    pub fn salvage(&mut self, why: &str) -> Result<Vec<Repaired>, JournalError> {
        let acknowledge = |range: &Range| -> Result<Repaired, JournalError> {
            let sha256 = load::digest_ended(self.locked.file(), range)
                .map_err(|source| cannot("read", &self.path, source))?;
            Ok(Repaired {
                offset: range.offset,
                bytes: range.bytes,
                sha256,
                saved_as: None,
                why: why.to_owned(),
            })
        };
        std::mem::take(&mut self.damaged).iter().map(acknowledge).collect()
    }

    fn open_with(setting: Setting<'s>, id: &str, on_damage: OnDamage) -> Result<Self, JournalError> {
        setting.root.refuse_links(setting.storage)?;
        let path = setting.root.journal(id)?;
        paths::refuse_link(setting.storage, &path)?;
        let mut locked = lock::lock_exclusive(setting.storage, &path, setting.wait, setting.clock).map_err(
            |source| match (source, (setting.signal)()) {
                (LockError::NotFound { .. }, _) => {
                    JournalError::NoSession { id: id.to_owned(), root: setting.root.path().to_owned() }
                }
                (LockError::Stopped { .. }, Some(signal)) => JournalError::Signal { signal },
                (source, _) => source.into(),
            },
        )?;
        let reach = match on_damage {
            OnDamage::Refuse => Reach::Base,
            OnDamage::Keep => Reach::All(Retain::Unclosed),
        };
        let mut loaded = load::load(locked.file(), reach).map_err(|source| cannot("read", &path, source))?;
        let mut damaged = Vec::new();
        if on_damage == OnDamage::Keep && loaded.session.is_some() {
            damaged = Range::of(&std::mem::take(&mut loaded.damage));
        }
        refuse_unsound(&path, id, &loaded)?;
        let journal = Self {
            damaged,
            setting,
            id: id.to_owned(),
            path,
            locked,
            session: loaded.session,
            history: loaded.history,
            tail: loaded.tail,
            end: loaded.end,
            health: Health::Sound,
        };
        journal.sync_found()
    }

    /// Opens the journal of a session, and makes an empty one if there is none.
    pub fn open_or_create(setting: Setting<'s>, id: &str) -> Result<Self, JournalError> {
        let path = setting.root.journal(id)?;
        setting.root.refuse_links(setting.storage)?;
        paths::ensure_dir(setting.storage, setting.root.path())?;
        paths::ensure_dir(setting.storage, &setting.root.sessions_dir())?;
        match setting.storage.create_new(&path) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(JournalError::NotDurable { action: "create", path, source }),
        }
        Self::open(setting, id)
    }

    /// The state; `None` while the genesis is still to be written.
    pub fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// The records that were read.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What stands behind the last newline.
    pub fn tail(&self) -> &Tail {
        &self.tail
    }

    /// The same journal with every turn, closed ones too.
    pub fn load_all(&mut self, retain: crate::turn::Retain) -> Result<Loaded, JournalError> {
        let loaded = load::load(self.locked.file(), Reach::All(retain))
            .map_err(|source| cannot("read", &self.path, source))?;
        refuse_unsound(&self.path, &self.id, &loaded)?;
        Ok(loaded)
    }

    /// Begins records that will stand behind what is here; `fresh_id` becomes the `id` of a genesis.
    ///
    /// A torn tail brings its `repaired`. Nothing is written yet.
    pub fn prepare(&mut self, at: At, fresh_id: &str) -> Result<Prepared, JournalError> {
        let repair = self.repair()?;
        let unended = matches!(self.tail, Tail::NoNewline { .. } | Tail::Damaged { .. });
        let lead: &[u8] = if unended { b"\n" } else { b"" };
        let line_bytes_max = self.setting.line_bytes_max;
        let mut draft = match &self.session {
            Some(session) => {
                let offset = self.end + lead.len() as u64;
                Draft::new(session.clone(), self.history.clone(), at, offset, line_bytes_max)
            }
            None => {
                let opened =
                    Opened { format: FORMAT.to_owned(), session: self.id.clone(), id: fresh_id.to_owned() };
                Draft::genesis(opened, at, line_bytes_max)?
            }
        };
        if let Some(repair) = &repair {
            draft.push(self.repaired(repair))?;
        }
        Ok(Prepared { draft, repair, lead, written: 0 })
    }

    /// Writes all that was drafted and not written yet. It is durable when this returns.
    pub fn write(&mut self, prepared: &mut Prepared) -> Result<(), JournalError> {
        self.write_part(prepared, prepared.draft.bytes.len())?;
        self.session = Some(prepared.draft.session.clone());
        self.history = prepared.draft.history.clone();
        Ok(())
    }

    /// Writes the first `upto` bytes of what was drafted; a line ends there. They are durable when this returns.
    ///
    /// The state that this handle tells is the one before, until [`Journal::write`] has written the rest.
    pub fn write_part(&mut self, prepared: &mut Prepared, upto: usize) -> Result<(), JournalError> {
        if self.health == Health::Poisoned {
            return Err(JournalError::Poisoned { path: self.path.clone() });
        }
        if let Some(signal) = (self.setting.signal)() {
            return Err(JournalError::Signal { signal });
        }
        if let Some(repair) = prepared.repair.take() {
            self.save_and_cut(&repair)?;
        }
        let fresh = prepared.draft.bytes.get(prepared.written..upto).unwrap_or_default();
        let bytes = [prepared.lead, fresh].concat();
        if bytes.is_empty() {
            return Ok(());
        }
        self.append(&bytes)?;
        if self.session.is_none()
            && let Err(error) = self.sync_folders()
        {
            self.cut_back();
            return Err(error);
        }
        prepared.lead = b"";
        prepared.written = upto;
        self.tail = Tail::Clean;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Drafts and writes some records at once. They are durable when this returns.
    pub fn record(&mut self, at: At, fresh_id: &str, kinds: Vec<Kind>) -> Result<Vec<Mark>, JournalError> {
        let mut prepared = self.prepare(at, fresh_id)?;
        let marks = kinds.into_iter().map(|kind| prepared.draft.push(kind)).collect::<Result<_, _>>()?;
        self.write(&mut prepared)?;
        Ok(marks)
    }

    /// One write, one sync; cut back where either fails.
    fn append(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        let written = storage::append_all(self.locked.file(), bytes)
            .map_err(|error| ("write to", error.source))
            .and_then(|()| self.locked.file().sync_data().map_err(|error| ("sync", error)));
        if let Err((action, source)) = written {
            return Err(self.poison(action, source));
        }
        self.locked.check_same(self.setting.storage).map_err(|source| {
            self.health = Health::Poisoned;
            JournalError::from(source)
        })
    }

    /// Nothing that this handle wrote last can be trusted.
    fn poison(&mut self, action: &'static str, source: io::Error) -> JournalError {
        self.cut_back();
        JournalError::NotDurable { action, path: self.path.clone(), source }
    }

    /// What was written last and is not acknowledged goes, if that works.
    fn cut_back(&mut self) {
        self.health = Health::Poisoned;
        let end = self.end;
        // If the cut fails too, what is left is a torn tail, which the next command keeps and cuts, or whole
        // records, which stand as those of a writer that was killed.
        let _best_effort = self.locked.file().truncate(end);
    }

    fn repair(&mut self) -> Result<Option<Repair>, JournalError> {
        let (offset, bytes) = match self.tail {
            Tail::Torn { offset, bytes } => (offset, bytes),
            Tail::NoNewline { end, nuls, .. } if nuls > 0 => (end, nuls),
            Tail::Clean | Tail::NoNewline { .. } | Tail::Damaged { .. } => return Ok(None),
        };
        let range = Range { offset, bytes };
        let sha256 = load::digest_range(self.locked.file(), &range)
            .map_err(|source| cannot("read", &self.path, source))?;
        let name = paths::quarantine_name(&paths::session_name(&self.id)?, offset, &sha256);
        Ok(Some(Repair { range, sha256, saved_as: self.setting.root.quarantine_dir().join(name) }))
    }

    fn repaired(&self, repair: &Repair) -> Repaired {
        let saved_as = repair.saved_as.strip_prefix(self.setting.root.path()).unwrap_or(&repair.saved_as);
        Repaired {
            offset: repair.range.offset,
            bytes: repair.range.bytes,
            sha256: repair.sha256.clone(),
            saved_as: Some(saved_as.to_string_lossy().into_owned()),
            why: "torn tail: the bytes of a write that was never acknowledged".to_owned(),
        }
    }

    /// Every byte is kept, durably, before it is cut off.
    fn save_and_cut(&mut self, repair: &Repair) -> Result<(), JournalError> {
        let storage = self.setting.storage;
        let folder = self.setting.root.quarantine_dir();
        paths::ensure_dir(storage, &folder)?;
        let failed =
            |action, path: &Path, source| JournalError::NotDurable { action, path: path.to_owned(), source };
        save(storage, &repair.saved_as, self.locked.file(), repair)
            .map_err(|source| failed("save", &repair.saved_as, source))?;
        storage.sync_dir(&folder).map_err(|source| failed("sync", &folder, source))?;
        let path = self.path.clone();
        let file = self.locked.file();
        if let Err(source) = file.truncate(repair.range.offset).and_then(|()| file.sync_all()) {
            self.health = Health::Poisoned;
            return Err(failed("cut", &path, source));
        }
        self.end = repair.range.offset;
        Ok(())
    }

    /// The last writer may have died between its write and its sync, or before it synced the folders.
    fn sync_found(mut self) -> Result<Self, JournalError> {
        let path = self.path.clone();
        self.locked.file().sync_data().map_err(|source| JournalError::NotDurable {
            action: "sync",
            path,
            source,
        })?;
        self.sync_folders()?;
        Ok(self)
    }

    fn sync_folders(&self) -> Result<(), JournalError> {
        for folder in [self.setting.root.sessions_dir(), self.setting.root.path().to_owned()] {
            self.setting.storage.sync_dir(&folder).map_err(|source| JournalError::NotDurable {
                action: "sync",
                path: folder.clone(),
                source,
            })?;
        }
        Ok(())
    }
}

/// Reads the journal of a session without a lock.
///
/// A tail in the middle of a write is read again until it is whole, or until nobody is writing.
pub fn read(setting: Setting<'_>, path: &Path, reach: Reach) -> Result<Loaded, JournalError> {
    let file = setting.storage.open_read(path).map_err(|source| cannot("open", path, source))?;
    let started = setting.clock.now();
    loop {
        let loaded = load::load(file.as_ref(), reach).map_err(|source| cannot("read", path, source))?;
        let in_flux = match loaded.tail {
            Tail::Clean => !loaded.damage.is_empty(),
            Tail::Torn { .. } | Tail::NoNewline { .. } | Tail::Damaged { .. } => true,
        };
        let waited = setting.clock.now().saturating_sub(started) > setting.wait;
        // Where locks do not work nobody can be writing through this tool.
        if !in_flux || waited || lock::try_shared_once(file.as_ref()).unwrap_or(true) {
            return settle_read(file.as_ref(), path, reach, loaded);
        }
        setting.clock.sleep(Duration::from_millis(1));
    }
}

/// Nobody was writing a moment ago: what the file holds now is what counts.
fn settle_read(
    file: &dyn StoredFile,
    path: &Path,
    reach: Reach,
    loaded: Loaded,
) -> Result<Loaded, JournalError> {
    if loaded.tail == Tail::Clean && loaded.damage.is_empty() {
        return Ok(loaded);
    }
    load::load(file, reach).map_err(|source| cannot("read", path, source))
}

/// Refuses a journal that may not be written to.
fn refuse_unsound(path: &Path, id: &str, loaded: &Loaded) -> Result<(), JournalError> {
    let path = path.to_owned();
    if let Some(found) = &loaded.other_format {
        return Err(JournalError::OtherFormat { path, found: found.clone() });
    }
    if !loaded.damage.is_empty() {
        return Err(JournalError::Damaged { path, damage: loaded.damage.clone() });
    }
    match &loaded.session {
        Some(session) if session.id != id => {
            Err(JournalError::OtherSession { path, found: session.id.clone(), asked: id.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Copies bytes of a journal to a name that tells their digest; a copy that is there in full is kept.
fn save(storage: &dyn Storage, path: &Path, journal: &dyn StoredFile, repair: &Repair) -> io::Result<()> {
    let mut file = match storage.create_new(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = storage.open_append(path)?;
            let there = Range { offset: 0, bytes: file.len()? };
            if there.bytes == repair.range.bytes
                && load::digest_range(file.as_ref(), &there)? == repair.sha256
            {
                return file.sync_all();
            }
            // An earlier try died in the middle of the copy; what it copied is still in the journal. Anew, since the
            // file may have another name too.
            storage.remove_file(path)?;
            storage.create_new(path)?
        }
        Err(error) => return Err(error),
    };
    load::each_chunk(journal, &repair.range, |chunk| {
        storage::append_all(file.as_mut(), chunk).map_err(|error| error.source)
    })?;
    file.sync_all()
}

fn cannot(action: &'static str, path: &Path, source: io::Error) -> JournalError {
    JournalError::Io { action, path: path.to_owned(), source }
}
