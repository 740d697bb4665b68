//! The only door to the disk: what a store of files must do, in terms of system calls.
//!
//! No meaning lives here: no journal, no retry, no repair, no locking policy. [`FileStorage`] is the real disk
//! and [`MemoryStorage`] a tree in memory whose every operation a test can make fail. Invariants: an append is
//! one `write`; a link as last component is never opened; files are made with mode 0600 and folders with 0700
//! whatever the umask; nothing is durable before a sync says so.

mod durable;
mod file;
mod memory;

pub use durable::{Prefixes, Remains};
pub use file::FileStorage;
pub use memory::{Fault, MemoryStorage, Op, OpKind, PowerCut};

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Mode of every file that is created.
pub const FILE_MODE: u32 = 0o600;
/// Mode of every folder that is created.
pub const DIR_MODE: u32 = 0o700;

/// A tree of files and folders.
pub trait Storage: Send + Sync {
    /// Opens a file for reading. A link, a folder or a pipe at the end of `path` is refused.
    fn open_read(&self, path: &Path) -> io::Result<Box<dyn StoredFile>>;
    /// Opens a file that exists for reading and appending. Refuses what [`Storage::open_read`] refuses.
    fn open_append(&self, path: &Path) -> io::Result<Box<dyn StoredFile>>;
    /// Creates a file for reading and appending; it must not exist yet. Durable once the file *and* its folder
    /// are synced.
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn StoredFile>>;
    /// Creates one folder; it must not exist yet. Durable once its parent is synced.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// What a folder holds, sorted by name.
    fn list(&self, path: &Path) -> io::Result<Vec<Item>>;
    /// What `path` is; a link at its end is not followed.
    fn inspect(&self, path: &Path) -> io::Result<Meta>;
    /// Where a link points, as it is spelled in the link.
    fn link_target(&self, path: &Path) -> io::Result<PathBuf>;
    /// Whether names may be made in a folder, as far as that can be told without making one.
    fn may_create(&self, folder: &Path) -> io::Result<()> {
        self.resolve(folder).map(|_| ())
    }
    /// The absolute path without links or dots; everything on it must exist.
    fn resolve(&self, path: &Path) -> io::Result<PathBuf>;
    /// Removes a name. Durable once its folder is synced.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Renames, replacing what has the new name. Durable once both folders are synced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
}

/// An open file. A lock on it ends when it is dropped.
#[expect(clippy::len_without_is_empty, reason = "a file's length is asked for, never its emptiness")]
pub trait StoredFile: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Reads once at `offset`; may read less than `buf` holds, and 0 bytes at the end.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// One `write` at the end of the file; may write less than given. Not durable.
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Makes content and length durable.
    fn sync_data(&self) -> io::Result<()>;
    /// Makes content and all metadata of the file durable; its name needs [`Storage::sync_dir`].
    fn sync_all(&self) -> io::Result<()>;
    /// Cuts the file, or extends it by zeros, to `len` bytes. Not durable.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
    /// Which file this is, whatever its name is by now.
    fn identity(&self) -> io::Result<Identity>;
    /// Tries once to take an advisory lock on the whole file, without waiting; false if another open file has it.
    fn try_lock(&self, kind: LockKind) -> io::Result<bool>;
    /// Gives the lock back.
    fn unlock(&self) -> io::Result<()>;
}

/// How a lock excludes others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Excludes exclusive locks.
    Shared,
    /// Excludes every other lock.
    Exclusive,
}

/// Which file something is: two that are equal are the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

/// What stands under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemKind {
    /// A regular file.
    File,
    /// A folder.
    Dir,
    /// A symbolic link.
    Link,
    /// A pipe, socket or device.
    Other,
}

/// One name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The name; it need not be UTF-8.
    pub name: OsString,
    /// What it names.
    pub kind: ItemKind,
}

/// What is known of a name without opening it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// What it names.
    pub kind: ItemKind,
    /// Length in bytes.
    pub len: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owning user.
    pub uid: u32,
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// How many names it has.
    pub names: u64,
    /// Last change of the content, in nanoseconds since 1970.
    pub mtime_ns: i64,
}

impl Meta {
    /// Which file it is.
    pub fn identity(&self) -> Identity {
        Identity { dev: self.dev, ino: self.ino }
    }
}

/// Why something that exists was not opened; found inside the [`io::Error`] by [`Refused::of`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is a symbolic link.
    #[error("{} is a link to {}, and links are refused here", path.display(), target.display())]
    Link {
        /// The link.
        path: PathBuf,
        /// Where it points.
        target: PathBuf,
    },
    /// It is a folder, pipe, socket or device.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// What was to be opened.
        path: PathBuf,
    },
}

impl Refused {
    /// The refusal in an error of `open_read` or `open_append`, if it was one.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> Self {
        Self::new(io::ErrorKind::InvalidInput, refused)
    }
}

/// A write that did not bring all its bytes into the file; the caller cuts back to where it began.
#[derive(Debug, thiserror::Error)]
#[error("write stopped after {written} of {asked} bytes")]
pub struct AppendError {
    /// Bytes that reached the file.
    pub written: usize,
    /// Bytes that were to be written.
    pub asked: usize,
    /// What the system said.
    pub source: io::Error,
}

/// Appends all bytes with one `write`.
///
/// A short write is followed by one more for the rest: mostly it fails and so tells why the first one was short
/// (a full device, a size limit). If the rest is taken the bytes are whole, since the lock keeps others away.
/// Nothing is durable when this returns.
pub fn append_all(file: &mut dyn StoredFile, bytes: &[u8]) -> Result<(), AppendError> {
    let asked = bytes.len();
    let written = file.append(bytes).map_err(|source| AppendError { written: 0, asked, source })?;
    let rest = bytes.get(written..).unwrap_or_default();
    if rest.is_empty() {
        return Ok(());
    }
    let more = file.append(rest).map_err(|source| AppendError { written, asked, source })?;
    if more == rest.len() {
        return Ok(());
    }
    Err(AppendError { written: written + more, asked, source: io::ErrorKind::WriteZero.into() })
}

/// Asks whether so much memory is to be had, and gives it back.
///
/// Whoever is about to hold as much as a file is long asks first: what allocates behind it, parsers of foreign text
/// too, could only abort.
pub fn headroom(bytes: u64) -> io::Result<()> {
    let mut room: Vec<u8> = Vec::new();
    let had = usize::try_from(bytes).is_ok_and(|bytes| room.try_reserve_exact(bytes).is_ok());
    // What nobody looks at would not be asked for at all.
    std::hint::black_box(&mut room);
    if had {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::OutOfMemory,
        format!("that takes another {bytes} bytes of memory, which are not to be had"),
    ))
}

/// Watches over what grows with a file, piece by piece.
#[derive(Debug, Default)]
pub struct Growth {
    taken: u64,
    asked: u64,
}

impl Growth {
    /// So much more will be held.
    pub fn take(&mut self, bytes: u64) -> io::Result<()> {
        /// Taken between two questions, and asked for at least.
        const STEP: u64 = 8 * 1024 * 1024;
        self.taken = self.taken.saturating_add(bytes);
        if self.taken - self.asked >= STEP {
            // A list that is full is copied to one of twice its size.
            headroom(self.taken.saturating_add(STEP))?;
            self.asked = self.taken;
        }
        Ok(())
    }
}

/// How many NULs a file of `end` bytes ends in.
pub fn nuls_before(file: &dyn StoredFile, end: u64) -> io::Result<u64> {
    static NULS: [u8; 64 * 1024] = [0; 64 * 1024];
    let mut at = end;
    while at > 0 {
        let from = at.saturating_sub(NULS.len() as u64);
        let chunk = read_exact_range(file, from, at)?;
        // Compared as a whole first: runs of NULs are long where there are any.
        if NULS.get(..chunk.len()) != Some(chunk.as_slice()) {
            let kept = chunk.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            return Ok(end - from - kept as u64);
        }
        at = from;
    }
    Ok(end)
}

/// The bytes `from..to` of a file; a file that ends before `to` is [`io::ErrorKind::UnexpectedEof`].
pub fn read_exact_range(file: &dyn StoredFile, from: u64, to: u64) -> io::Result<Vec<u8>> {
    // Asked first, so that an absurd range is an error and not an absurd allocation.
    let len = file.len()?;
    let ends_early = |end: u64| {
        io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("bytes {from}..{to} were asked for, but the file ends at byte {end}"),
        )
    };
    let Some(size) = to.checked_sub(from) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no range of bytes: {from}..{to}")));
    };
    if to > len {
        return Err(ends_early(len));
    }
    headroom(size)?;
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let offset = from + filled as u64;
        match file.read_at(offset, rest) {
            Ok(0) => return Err(ends_early(offset)),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// A file as what the standard library reads from, front to back.
pub struct Reading {
    file: Box<dyn StoredFile>,
    at: u64,
}

impl Reading {
    /// Begins at the front; links are followed.
    pub fn of(storage: &dyn Storage, path: &Path) -> io::Result<Self> {
        Ok(Self { file: storage.open_read(&storage.resolve(path)?)?, at: 0 })
    }
}

impl io::Read for Reading {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(self.at, buf)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// The whole of a file; links are followed.
pub fn read_whole(storage: &dyn Storage, path: &Path) -> io::Result<Vec<u8>> {
    let file = storage.open_read(&storage.resolve(path)?)?;
    read_exact_range(file.as_ref(), 0, file.len()?)
}

/// Whether a file holds exactly these bytes; links are followed. It is not held a second time for that.
pub fn holds(storage: &dyn Storage, path: &Path, bytes: &[u8]) -> io::Result<bool> {
    const PIECE: usize = 1024 * 1024;
    let file = storage.open_read(&storage.resolve(path)?)?;
    if file.len()? != bytes.len() as u64 {
        return Ok(false);
    }
    let mut at = 0;
    for piece in bytes.chunks(PIECE) {
        let end = at + piece.len() as u64;
        if read_exact_range(file.as_ref(), at, end)? != piece {
            return Ok(false);
        }
        at = end;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    fn file_in(storage: &MemoryStorage) -> Box<dyn StoredFile> {
        storage.create_new(Path::new("/f")).expect("created")
    }

    #[test]
    fn one_write_when_the_system_takes_all() {
        let storage = MemoryStorage::new();
        let mut file = file_in(&storage);
        append_all(file.as_mut(), b"hello\n").expect("appended");
        let writes = storage.ops().iter().filter(|op| op.kind == OpKind::Append).count();
        assert_eq!((writes, storage.read("/f")), (1, b"hello\n".to_vec()));
    }

    #[test]
    fn a_short_write_reports_why_and_how_far_it_came() {
        let storage = MemoryStorage::new();
        let mut file = file_in(&storage);
        let mut appends = 0;
        storage.set_hook(move |op| {
            appends += u32::from(op.kind == OpKind::Append);
            match (op.kind, appends) {
                (OpKind::Append, 1) => Some(Fault::Short(2)),
                (OpKind::Append, 2) => Some(Fault::Error(Errno::NOSPC.into())),
                _ => None,
            }
        });
        let error = append_all(file.as_mut(), b"hello\n").expect_err("no room");
        assert_eq!((error.written, error.asked), (2, 6));
        assert_eq!(error.source.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        assert_eq!(error.to_string(), "write stopped after 2 of 6 bytes");
        assert_eq!(storage.read("/f"), b"he");
    }

    #[test]
    fn the_rest_of_a_short_write_is_tried_once() {
        let storage = MemoryStorage::new();
        let mut file = file_in(&storage);
        let mut first = true;
        storage.set_hook(move |op| {
            (op.kind == OpKind::Append && std::mem::take(&mut first)).then_some(Fault::Short(2))
        });
        append_all(file.as_mut(), b"hello\n").expect("the rest was taken");
        assert_eq!(storage.read("/f"), b"hello\n");

        storage.set_hook(|op| (op.kind == OpKind::Append).then_some(Fault::Short(1)));
        let error = append_all(file.as_mut(), b"again\n").expect_err("short for ever");
        assert_eq!((error.written, error.source.kind()), (2, io::ErrorKind::WriteZero));
        assert_eq!(storage.read("/f"), b"hello\nag");
    }

    #[test]
    fn a_write_that_fails_at_once_wrote_nothing() {
        let storage = MemoryStorage::new();
        let mut file = file_in(&storage);
        storage.set_hook(|op| (op.kind == OpKind::Append).then(|| Fault::Error(Errno::IO.into())));
        let error = append_all(file.as_mut(), b"x").expect_err("failed");
        assert_eq!((error.written, error.source.raw_os_error()), (0, Some(Errno::IO.raw_os_error())));
    }

    #[test]
    fn ranges_are_exact_or_an_error() {
        let storage = MemoryStorage::new();
        storage.write("/f", b"0123456789");
        let file = storage.open_read(Path::new("/f")).expect("opened");
        assert_eq!(read_exact_range(file.as_ref(), 3, 7).expect("read"), b"3456");
        assert_eq!(read_exact_range(file.as_ref(), 10, 10).expect("read"), b"");
        // Short reads are continued.
        storage.set_hook(|op| (op.kind == OpKind::ReadAt).then_some(Fault::Short(1)));
        assert_eq!(read_exact_range(file.as_ref(), 0, 10).expect("read"), b"0123456789");
        storage.clear_hook();

        let early = read_exact_range(file.as_ref(), 3, 11).expect_err("ends early");
        assert_eq!(early.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(early.to_string(), "bytes 3..11 were asked for, but the file ends at byte 10");
        let absurd = read_exact_range(file.as_ref(), 0, u64::MAX).expect_err("absurd");
        assert_eq!(absurd.kind(), io::ErrorKind::UnexpectedEof);
        let backwards = read_exact_range(file.as_ref(), 7, 3).expect_err("backwards");
        assert_eq!(backwards.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn nuls_at_the_end_are_counted_across_chunks() {
        const CHUNK: usize = 64 * 1024;
        for nuls in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK] {
            for before in [b"".as_slice(), b"x", b"\0x", &vec![b'x'; CHUNK]] {
                let storage = MemoryStorage::new();
                storage.write("/f", &[before, &vec![0; nuls]].concat());
                let file = storage.open_read(Path::new("/f")).expect("opened");
                let end = file.len().expect("a length");
                assert_eq!(nuls_before(file.as_ref(), end).expect("read"), nuls as u64, "{}", before.len());
            }
        }
    }

    #[test]
    fn more_memory_than_there_is_is_an_error() {
        headroom(0).expect("nothing");
        headroom(1024 * 1024).expect("a little");
        for bytes in [1 << 62, u64::MAX] {
            assert_eq!(headroom(bytes).expect_err("too much").kind(), io::ErrorKind::OutOfMemory);
            let mut growth = Growth::default();
            assert_eq!(growth.take(bytes).expect_err("too much").kind(), io::ErrorKind::OutOfMemory);
        }
        let mut growth = Growth::default();
        (0..10_000).try_for_each(|_| growth.take(1024)).expect("a little");
        let (taken, asked) = (growth.taken, growth.asked);
        assert!(taken == 10_000 * 1024 && asked > 0 && taken - asked < 8 * 1024 * 1024, "{taken}, {asked}");
    }
}
