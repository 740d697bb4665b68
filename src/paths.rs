//! Where things are in a state root, and how a session id becomes a file name.
//!
//! Which folder is the state root is the command line's to say, and no file is opened here. Invariants: two ids
//! never share a name; nothing inside a state root is reached through a link; a folder that was ensured is
//! durable, name included, before anything is put into it.

use crate::json::sha256_hex;
use crate::record::Hash;
use crate::storage::{ItemKind, Storage};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

/// Longest session id, in bytes.
pub const ID_BYTES_MAX: usize = 4_096;
/// Folder of the journals inside a state root.
pub const SESSIONS: &str = "sessions";
/// Folder of cut-off bytes inside a state root.
pub const QUARANTINE: &str = "quarantine";
/// Folder of the output of unfinished runs inside a state root.
pub const SPOOL: &str = "spool";
/// The default policy file inside a state root.
pub const POLICY: &str = "policy.json";

/// Longest name of a journal without its ending, in bytes.
const NAME_BYTES_MAX: usize = 200;
/// What is kept of a longer name: with `~` and 64 hex it makes [`NAME_BYTES_MAX`].
const CUT_BYTES_MAX: usize = 135;
const ENDING: &str = ".jsonl";

/// The private folder that holds everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    path: PathBuf,
}

/// A name in the folder of journals that ends as journals do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFile {
    /// The whole path.
    pub path: PathBuf,
    /// The name without its ending; other people's files may have names that are not UTF-8.
    pub name: OsString,
    /// What it names; only a file can be a journal.
    pub kind: ItemKind,
    /// The session id, where the name tells it; a shortened name does not, and the genesis does.
    pub id: Option<String>,
}

/// What is wrong with an id, a folder or a link.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// An id must name something.
    #[error("a session id is empty; it has 1 to {ID_BYTES_MAX} bytes")]
    IdEmpty,
    /// The id is too long.
    #[error("a session id has {bytes} bytes, more than the {ID_BYTES_MAX} that are allowed")]
    IdTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The id has a control character.
    #[error("a session id has the control character U+{:04X} at byte {at}", u32::from(*found))]
    IdControl {
        /// The character.
        found: char,
        /// Where, in bytes.
        at: usize,
    },
    /// A link where none may be.
    #[error(
        "{} is a link to {}, and links inside a state root are refused",
        path.display(), target.display()
    )]
    Link {
        /// The link.
        path: PathBuf,
        /// Where it points.
        target: PathBuf,
    },
    /// Something else stands where a folder belongs.
    #[error("{} is not a folder", path.display())]
    NotAFolder {
        /// What stands there.
        path: PathBuf,
    },
    /// There is no such state root.
    #[error("there is no state root {}", path.display())]
    NoRoot {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// It cannot be looked at.
    #[error("cannot look at {}", path.display())]
    Inspect {
        /// What was looked at.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A folder cannot be made.
    #[error("cannot create the folder {}", path.display())]
    Create {
        /// The folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The names in a folder cannot be made durable.
    #[error("cannot sync the folder {}", path.display())]
    Sync {
        /// The folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl Root {
    /// The state root at `path`, whether it exists or not.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The folder itself; what records call relative to the root is joined to it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The journal of a session.
    pub fn journal(&self, id: &str) -> Result<PathBuf, PathError> {
        Ok(self.sessions_dir().join(session_file_name(id)?))
    }

    /// The folder of journals.
    pub fn sessions_dir(&self) -> PathBuf {
        self.path.join(SESSIONS)
    }

    /// The folder of cut-off bytes.
    pub fn quarantine_dir(&self) -> PathBuf {
        self.path.join(QUARANTINE)
    }

    /// The folder of the output of unfinished runs.
    pub fn spool_dir(&self) -> PathBuf {
        self.path.join(SPOOL)
    }

    /// The default policy file.
    pub fn policy_file(&self) -> PathBuf {
        self.path.join(POLICY)
    }

    /// All names that end as journals do, sorted. No folder of journals yet means none.
    pub fn sessions(&self, storage: &dyn Storage) -> Result<Vec<SessionFile>, PathError> {
        let folder = self.sessions_dir();
        if !refuse_linked_folder(storage, &folder)? {
            return match storage.resolve(&self.path) {
                Ok(_) => Ok(Vec::new()),
                // The root may be a link, and one that leads nowhere is no root.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Err(PathError::NoRoot { path: self.path.clone() })
                }
                Err(source) => Err(PathError::Inspect { path: self.path.clone(), source }),
            };
        }
        let items =
            storage.list(&folder).map_err(|source| PathError::Inspect { path: folder.clone(), source })?;
        let session = |item: crate::storage::Item| {
            let path = folder.join(&item.name);
            let name = path.file_stem()?.to_owned();
            // A file called `.jsonl` has no ending, and no session is called nothing.
            let ours = path.extension() == Some(OsStr::new(ENDING.trim_start_matches('.')));
            let id = name.to_str().and_then(session_id);
            ours.then_some(SessionFile { path, name, kind: item.kind, id })
        };
        Ok(items.into_iter().filter_map(session).collect())
    }

    /// Refuses links in the place of anything that a state root holds; the root itself may be one.
    ///
    /// Journals are looked at one by one, by [`refuse_link`], and [`Storage::open_append`] refuses them again.
    pub fn refuse_links(&self, storage: &dyn Storage) -> Result<(), PathError> {
        for folder in [self.sessions_dir(), self.quarantine_dir(), self.spool_dir()] {
            refuse_linked_folder(storage, &folder)?;
        }
        refuse_link(storage, &self.policy_file())
    }

    /// That a session is not there is known only where its place can be looked at.
    pub fn check_absent(&self, storage: &dyn Storage, id: &str) -> Result<(), PathError> {
        self.refuse_links(storage)?;
        let path = self.journal(id)?;
        match storage.inspect(&path) {
            Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Err(PathError::Inspect { path, source: error })
            }
            _ => Ok(()),
        }
    }
}

/// The name of a session's journal without its ending. One id has one name, and two never share one.
pub fn session_name(id: &str) -> Result<String, PathError> {
    check_id(id)?;
    let mut name = String::with_capacity(id.len());
    // Where the name may be cut: behind the last whole character that still fits.
    let mut cut = 0;
    for (position, byte) in id.bytes().enumerate() {
        let plain =
            byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') || (byte == b'.' && position > 0);
        if plain {
            name.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _infallible = write!(name, "%{byte:02X}");
        }
        if name.len() <= CUT_BYTES_MAX {
            cut = name.len();
        }
    }
    if name.len() > NAME_BYTES_MAX {
        name.truncate(cut);
        name.push('~');
        name.push_str(&sha256_hex(id.as_bytes()));
    }
    Ok(name)
}

/// The file name of a session's journal.
pub fn session_file_name(id: &str) -> Result<String, PathError> {
    Ok(session_name(id)? + ENDING)
}

/// The id behind a name without its ending: none if the name was shortened, or is not one that we give.
pub fn session_id(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        if *first == b'%' {
            let (digits, behind) = behind.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = behind;
        } else {
            bytes.push(*first);
            rest = behind;
        }
    }
    let id = String::from_utf8(bytes).ok()?;
    // Only the spelling that we give counts: no lower-case hex, no escaped letter, no `~`.
    (session_name(&id).ok()? == name).then_some(id)
}

/// The name under which bytes cut from a journal at `offset` are kept; `name` is the journal's without ending.
pub fn quarantine_name(name: &str, offset: u64, sha256: &Hash) -> String {
    format!("{name}.{offset}.{}", sha256.as_str().get(..16).unwrap_or(sha256.as_str()))
}

/// Refuses a link at the end of `path`; what is missing is no link.
pub fn refuse_link(storage: &dyn Storage, path: &Path) -> Result<(), PathError> {
    match kind_of(storage, path)? {
        Some(ItemKind::Link) => Err(linked(storage, path)),
        Some(ItemKind::File | ItemKind::Dir | ItemKind::Other) | None => Ok(()),
    }
}

/// Makes a folder and those above it, each with mode 0700; all of them are durable when this returns.
///
/// Each folder is made and its parent synced before the next one below is made, and whoever puts something into
/// a folder calls this first. So a folder that holds anything of ours is durable already, and of the folders
/// found here only the lowest may not be: its maker may have died, or not come further yet, between making it
/// and syncing its parent. That one parent is therefore always synced, at the price of one sync for each new
/// journal, not for each record. Links are followed, since a linked state root is fine.
pub fn ensure_dir(storage: &dyn Storage, path: &Path) -> Result<(), PathError> {
    let mut missing = Vec::new();
    let mut lowest = path;
    while kind_of(storage, lowest)?.is_none() {
        missing.push(lowest);
        lowest = match parent(lowest) {
            Some(above) if above != lowest => above,
            // Not even where we stand exists.
            _ => return Err(PathError::NotAFolder { path: lowest.to_owned() }),
        };
    }
    sync_found(storage, lowest)?;
    for folder in missing.into_iter().rev() {
        match storage.create_dir(folder) {
            Ok(()) => {}
            // Somebody else was faster; whether they synced its name is not known.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => expect_folder(storage, folder)?,
            Err(source) => return Err(PathError::Create { path: folder.to_owned(), source }),
        }
        if let Some(above) = parent(folder) {
            storage.sync_dir(above).map_err(|source| PathError::Sync { path: above.to_owned(), source })?;
        }
    }
    Ok(())
}

fn check_id(id: &str) -> Result<(), PathError> {
    if id.is_empty() {
        return Err(PathError::IdEmpty);
    }
    if id.len() > ID_BYTES_MAX {
        return Err(PathError::IdTooLong { bytes: id.len() });
    }
    match id.char_indices().find(|(_, char)| char.is_control()) {
        Some((at, found)) => Err(PathError::IdControl { found, at }),
        None => Ok(()),
    }
}

/// Makes the name of a folder durable that was there already.
fn sync_found(storage: &dyn Storage, folder: &Path) -> Result<(), PathError> {
    expect_folder(storage, folder)?;
    let Some(above) = parent(folder) else { return Ok(()) };
    match storage.sync_dir(above) {
        Ok(()) => Ok(()),
        // A parent that we may not read is somebody else's, and so is the folder.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(source) => Err(PathError::Sync { path: above.to_owned(), source }),
    }
}

/// Demands a folder, or a link to one.
fn expect_folder(storage: &dyn Storage, path: &Path) -> Result<(), PathError> {
    let kind = match kind_of(storage, path)? {
        Some(ItemKind::Link) => match storage.resolve(path) {
            Ok(target) => kind_of(storage, &target)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(PathError::Inspect { path: path.to_owned(), source }),
        },
        kind => kind,
    };
    match kind {
        Some(ItemKind::Dir) => Ok(()),
        Some(ItemKind::File | ItemKind::Link | ItemKind::Other) | None => {
            Err(PathError::NotAFolder { path: path.to_owned() })
        }
    }
}

/// Whether the folder is there; anything else in its place is refused.
fn refuse_linked_folder(storage: &dyn Storage, path: &Path) -> Result<bool, PathError> {
    match kind_of(storage, path)? {
        None => Ok(false),
        Some(ItemKind::Dir) => Ok(true),
        Some(ItemKind::Link) => Err(linked(storage, path)),
        Some(ItemKind::File | ItemKind::Other) => Err(PathError::NotAFolder { path: path.to_owned() }),
    }
}

fn linked(storage: &dyn Storage, path: &Path) -> PathError {
    match storage.link_target(path) {
        Ok(target) => PathError::Link { path: path.to_owned(), target },
        Err(source) => PathError::Inspect { path: path.to_owned(), source },
    }
}

fn kind_of(storage: &dyn Storage, path: &Path) -> Result<Option<ItemKind>, PathError> {
    match storage.inspect(path) {
        Ok(meta) => Ok(Some(meta.kind)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PathError::Inspect { path: path.to_owned(), source }),
    }
}

/// The folder above; of a plain relative name where we stand, of `/` none.
fn parent(path: &Path) -> Option<&Path> {
    path.parent().map(|above| if above.as_os_str().is_empty() { Path::new(".") } else { above })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::OpKind::{CreateDir, SyncDir};
    use crate::storage::{Fault, FileStorage, MemoryStorage, Op, OpKind};
    use proptest::prelude::*;
    use rustix::io::Errno;

    fn name(id: &str) -> String {
        session_name(id).expect("an id")
    }

    #[test]
    fn ids_become_names() {
        for (id, expected) in [
            ("room-42", "room-42"),
            ("Az09._-", "Az09._-"),
            (".", "%2E"),
            ("..", "%2E."),
            (".hidden.x", "%2Ehidden.x"),
            ("a/b c", "a%2Fb%20c"),
            ("100%~", "100%25%7E"),
            ("ü", "%C3%BC"),
            ("語:1", "%E8%AA%9E%3A1"),
        ] {
            assert_eq!(name(id), expected);
            assert_eq!(session_id(expected).as_deref(), Some(id));
            assert_eq!(session_file_name(id).expect("an id"), format!("{expected}.jsonl"));
        }
    }

    #[test]
    fn long_names_are_cut_and_end_in_the_digest() {
        let whole = "a".repeat(200);
        assert_eq!(name(&whole), whole);
        assert_eq!(session_id(&whole).as_deref(), Some(whole.as_str()));

        let long = "a".repeat(201);
        let cut = format!("{}~{}", "a".repeat(135), sha256_hex(long.as_bytes()));
        assert_eq!((name(&long), cut.len()), (cut.clone(), 200));
        assert_eq!(session_id(&cut), None);

        // 134 bytes and then an escape: not one byte of the escape is kept; at 132 all of it is.
        for (letters, kept) in [(132, 135), (133, 133), (134, 134), (135, 135)] {
            let id = format!("{}{}", "b".repeat(letters), "/".repeat(40));
            let expected = format!("{}%2F%2F", "b".repeat(letters));
            let head = expected.get(..kept).expect("long enough");
            assert_eq!(name(&id), format!("{head}~{}", sha256_hex(id.as_bytes())));
        }
        assert_eq!(name(&"é".repeat(2048)).len(), 135 + 65);
    }

    #[test]
    fn what_is_no_id_is_refused() {
        let told = |id: &str| session_name(id).expect_err("refused").to_string();
        assert_eq!(told(""), "a session id is empty; it has 1 to 4096 bytes");
        assert_eq!(
            told(&"a".repeat(4097)),
            "a session id has 4097 bytes, more than the 4096 that are allowed"
        );
        assert_eq!(told("aé\nb"), "a session id has the control character U+000A at byte 3");
        assert_eq!(told("\u{7f}"), "a session id has the control character U+007F at byte 0");
        assert_eq!(told("\u{85}"), "a session id has the control character U+0085 at byte 0");
        assert_eq!(told("\0"), "a session id has the control character U+0000 at byte 0");
        session_name(&"a".repeat(4096)).expect("an id");
    }

    #[test]
    fn names_that_we_do_not_give_have_no_id() {
        for odd in ["", "a b", "%2f", "%61", "a%", "a%2", "%+1", "%FF", "%0A", ".a", "a~b", "%C3", "ü", "%é1"]
        {
            assert_eq!(session_id(odd), None, "{odd}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_id_has_a_name_of_its_own(id in "\\PC{1,90}", other in "\\PC{1,90}") {
            prop_assume!(!id.contains(char::is_control) && !other.contains(char::is_control));
            let name = name(&id);
            prop_assert!(name.len() <= 200 && !name.starts_with('.'));
            prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-%~".contains(&b)));
            prop_assert_eq!(name.contains('~'), session_id(&name).is_none());
            if let Some(decoded) = session_id(&name) {
                prop_assert_eq!(&decoded, &id);
            }
            prop_assert_eq!(id == other, name == session_name(&other).expect("an id"));
        }
    }

    #[test]
    fn places() {
        let root = Root::new("/r");
        assert_eq!(root.path(), Path::new("/r"));
        assert_eq!(root.journal("a/b").expect("an id"), Path::new("/r/sessions/a%2Fb.jsonl"));
        assert_eq!(root.quarantine_dir(), Path::new("/r/quarantine"));
        assert_eq!(root.spool_dir(), Path::new("/r/spool"));
        assert_eq!(root.policy_file(), Path::new("/r/policy.json"));
        // sha256 of "abc"
        assert_eq!(
            quarantine_name("a%2Fb", 4182, &crate::chain::digest(b"abc")),
            "a%2Fb.4182.ba7816bf8f01cfea"
        );
    }

    fn changes(storage: &MemoryStorage, from: usize) -> Vec<(OpKind, String)> {
        let change = |op: Op| {
            matches!(op.kind, OpKind::CreateDir | OpKind::SyncDir)
                .then(|| (op.kind, op.path.to_string_lossy().into_owned()))
        };
        storage.ops().into_iter().skip(from).filter_map(change).collect()
    }

    fn expected(ops: &[(OpKind, &str)]) -> Vec<(OpKind, String)> {
        ops.iter().map(|(kind, path)| (*kind, (*path).to_owned())).collect()
    }

    #[test]
    fn each_new_folder_is_durable_before_the_next_one_is_made() {
        let storage = MemoryStorage::new();
        ensure_dir(&storage, Path::new("/a/b/c")).expect("made");
        let made = [
            (CreateDir, "/a"),
            (SyncDir, "/"),
            (CreateDir, "/a/b"),
            (SyncDir, "/a"),
            (CreateDir, "/a/b/c"),
            (SyncDir, "/a/b"),
        ];
        assert_eq!(changes(&storage, 0), expected(&made));

        // Found: its maker may have died before it synced the parent.
        let before = storage.ops().len();
        ensure_dir(&storage, Path::new("/a/b/c")).expect("there");
        assert_eq!(changes(&storage, before), expected(&[(SyncDir, "/a/b")]));
        let before = storage.ops().len();
        ensure_dir(&storage, Path::new("/a/b/d")).expect("made");
        let made = [(SyncDir, "/a"), (CreateDir, "/a/b/d"), (SyncDir, "/a/b")];
        assert_eq!(changes(&storage, before), expected(&made));
    }

    #[test]
    fn a_relative_folder_is_synced_where_we_stand() {
        let storage = MemoryStorage::new();
        ensure_dir(&storage, Path::new("a/b")).expect("made");
        let made = [(SyncDir, "."), (CreateDir, "a"), (SyncDir, "."), (CreateDir, "a/b"), (SyncDir, "a")];
        // `.` has no parent that can be told from its spelling; it is synced once more, which does no harm.
        assert_eq!(changes(&storage, 0), expected(&made));
    }

    #[test]
    fn any_failure_to_make_or_sync_a_folder_is_told() {
        for (kind, path, error) in [
            (OpKind::CreateDir, "/a", "cannot create the folder /a"),
            (OpKind::CreateDir, "/a/b", "cannot create the folder /a/b"),
            (OpKind::SyncDir, "/", "cannot sync the folder /"),
            (OpKind::SyncDir, "/a", "cannot sync the folder /a"),
            (OpKind::Inspect, "/a", "cannot look at /a"),
        ] {
            for errno in [Errno::IO, Errno::ACCESS] {
                let storage = MemoryStorage::new();
                storage.set_hook(move |op| {
                    (op.kind == kind && op.path == Path::new(path)).then(|| Fault::Error(errno.into()))
                });
                let told = ensure_dir(&storage, Path::new("/a/b")).expect_err("a fault");
                assert_eq!(told.to_string(), error);
            }
        }
    }

    #[test]
    fn a_found_folder_may_be_in_one_that_we_may_not_read() {
        let storage = MemoryStorage::new();
        storage.write("/home/me/x", b"");
        let unreadable = |errno: Errno| {
            storage.set_hook(move |op| {
                (op.kind == OpKind::SyncDir && op.path == Path::new("/home"))
                    .then(|| Fault::Error(errno.into()))
            });
        };
        unreadable(Errno::IO);
        let told = ensure_dir(&storage, Path::new("/home/me/root")).expect_err("a fault");
        assert_eq!(told.to_string(), "cannot sync the folder /home");
        unreadable(Errno::ACCESS);
        ensure_dir(&storage, Path::new("/home/me/root")).expect("made");
    }

    #[test]
    fn a_folder_that_somebody_else_makes_meanwhile_is_taken_and_synced() {
        let racing = Racing(MemoryStorage::new());
        ensure_dir(&racing, Path::new("/a/b")).expect("both made by somebody else");
        let done = [
            (CreateDir, "/a"),
            (CreateDir, "/a"),
            (SyncDir, "/"),
            (CreateDir, "/a/b"),
            (CreateDir, "/a/b"),
            (SyncDir, "/a"),
        ];
        assert_eq!(changes(&racing.0, 0), expected(&done));

        let storage = MemoryStorage::new();
        storage.set_hook(|op| (op.kind == CreateDir).then(|| Fault::Error(Errno::EXIST.into())));
        let told = ensure_dir(&storage, Path::new("/a")).expect_err("taken, and gone again");
        assert_eq!(told.to_string(), "/a is not a folder");
    }

    /// Somebody else makes each folder just before we do.
    struct Racing(MemoryStorage);

    impl Storage for Racing {
        fn create_dir(&self, path: &Path) -> io::Result<()> {
            self.0.create_dir(path)?;
            self.0.create_dir(path)
        }
        fn open_read(&self, path: &Path) -> io::Result<Box<dyn crate::storage::StoredFile>> {
            self.0.open_read(path)
        }
        fn open_append(&self, path: &Path) -> io::Result<Box<dyn crate::storage::StoredFile>> {
            self.0.open_append(path)
        }
        fn create_new(&self, path: &Path) -> io::Result<Box<dyn crate::storage::StoredFile>> {
            self.0.create_new(path)
        }
        fn sync_dir(&self, path: &Path) -> io::Result<()> {
            self.0.sync_dir(path)
        }
        fn list(&self, path: &Path) -> io::Result<Vec<crate::storage::Item>> {
            self.0.list(path)
        }
        fn inspect(&self, path: &Path) -> io::Result<crate::storage::Meta> {
            self.0.inspect(path)
        }
        fn link_target(&self, path: &Path) -> io::Result<PathBuf> {
            self.0.link_target(path)
        }
        fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
            self.0.resolve(path)
        }
        fn remove_file(&self, path: &Path) -> io::Result<()> {
            self.0.remove_file(path)
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.0.rename(from, to)
        }
    }

    #[test]
    fn folders_that_cannot_be_are_refused() {
        let storage = MemoryStorage::new();
        storage.write("/file", b"");
        storage.link("/dangling", "nowhere");
        storage.link("/linked", "file");
        for path in ["/file", "/dangling", "/dangling/x", "/linked"] {
            let told = ensure_dir(&storage, Path::new(path)).expect_err("no folder").to_string();
            let named = path.trim_end_matches("/x");
            assert_eq!(told, format!("{named} is not a folder"));
        }
        assert!(matches!(ensure_dir(&storage, Path::new("/file/x")), Err(PathError::Inspect { .. })));
    }

    #[test]
    fn a_linked_root_is_fine_and_links_inside_are_refused() {
        let root = Root::new("/state");
        let storage = MemoryStorage::new();
        storage.write("/real/sessions/a.jsonl", b"");
        storage.link("/state", "real");
        root.refuse_links(&storage).expect("no links inside");
        ensure_dir(&storage, &root.spool_dir()).expect("made behind the link");
        assert_eq!(root.sessions(&storage).expect("listed").len(), 1);
        refuse_link(&storage, &root.journal("a").expect("an id")).expect("no link");
        refuse_link(&storage, &root.journal("none").expect("an id")).expect("missing is no link");

        for name in ["sessions", "quarantine", "spool", "policy.json"] {
            let storage = MemoryStorage::new();
            storage.write("/state/x", b"");
            storage.link(format!("/state/{name}"), "/elsewhere");
            let told = root.refuse_links(&storage).expect_err("a link").to_string();
            let text = "is a link to /elsewhere, and links inside a state root are refused";
            assert_eq!(told, format!("/state/{name} {text}"));
        }
        storage.link("/real/sessions/b.jsonl", "a.jsonl");
        let told = refuse_link(&storage, &root.journal("b").expect("an id")).expect_err("a link");
        let text = "/state/sessions/b.jsonl is a link to a.jsonl, and links inside a state root are refused";
        assert_eq!(told.to_string(), text);

        storage.write("/other/sessions", b"");
        let told = Root::new("/other").refuse_links(&storage).expect_err("a file");
        assert_eq!(told.to_string(), "/other/sessions is not a folder");
    }

    #[test]
    fn a_session_is_absent_only_where_its_place_could_be_looked_at() {
        let storage = MemoryStorage::new();
        storage.write("/r/sessions/a.jsonl", b"");
        let root = Root::new("/r");
        root.check_absent(&storage, "b").expect("it is not there");
        Root::new("/nowhere").check_absent(&storage, "b").expect("nothing is there");
        storage.set_hook(|op| {
            let denied = || crate::storage::Fault::Error(io::ErrorKind::PermissionDenied.into());
            op.path.ends_with("b.jsonl").then(denied)
        });
        assert!(matches!(root.check_absent(&storage, "b"), Err(PathError::Inspect { .. })));
    }

    #[test]
    fn sessions_are_listed_by_name() {
        let storage = MemoryStorage::new();
        let root = Root::new("/r");
        assert!(matches!(root.sessions(&storage), Err(PathError::NoRoot { .. })));
        storage.write("/r/policy.json", b"{}");
        assert_eq!(root.sessions(&storage).expect("listed"), []);
        storage.link("/dangling", "nowhere");
        assert!(matches!(Root::new("/dangling").sessions(&storage), Err(PathError::NoRoot { .. })));

        let long = session_name(&"x".repeat(300)).expect("an id");
        for file in ["b%20c.jsonl", "a.jsonl", "notes.txt", ".jsonl", "b c.jsonl", "jsonl"] {
            storage.write(format!("/r/sessions/{file}"), b"");
        }
        storage.write(format!("/r/sessions/{long}.jsonl"), b"");
        storage.link("/r/sessions/l.jsonl", "a.jsonl");
        let listed: Vec<_> = root
            .sessions(&storage)
            .expect("listed")
            .into_iter()
            .map(|session| {
                assert_eq!(session.path.file_stem(), Some(session.name.as_os_str()));
                assert_eq!(session.path.parent(), Some(root.sessions_dir().as_path()));
                (session.name.into_string().expect("UTF-8"), session.kind, session.id)
            })
            .collect();
        let row =
            |name: &str, kind: ItemKind, id: Option<&str>| (name.to_owned(), kind, id.map(str::to_owned));
        let expected = [
            row("a", ItemKind::File, Some("a")),
            row("b c", ItemKind::File, None),
            row("b%20c", ItemKind::File, Some("b c")),
            row("l", ItemKind::Link, Some("l")),
            row(&long, ItemKind::File, None),
        ];
        assert_eq!(listed, expected);

        let storage = MemoryStorage::new();
        storage.write("/elsewhere/a.jsonl", b"");
        storage.link("/r/sessions", "/elsewhere");
        assert!(matches!(root.sessions(&storage), Err(PathError::Link { .. })));
    }

    #[test]
    fn on_the_real_disk_folders_are_private() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = Root::new(folder.path().join("state/turnkeep"));
        ensure_dir(&FileStorage, &root.sessions_dir()).expect("made");
        for made in [folder.path().join("state"), root.path().to_owned(), root.sessions_dir()] {
            assert_eq!(FileStorage.inspect(&made).expect("inspected").mode, 0o700, "{}", made.display());
        }
        let longest = root.journal(&"é".repeat(2048)).expect("an id");
        drop(FileStorage.create_new(&longest).expect("a name that the disk takes"));
        assert_eq!(root.sessions(&FileStorage).expect("listed").len(), 1);
    }
}
