//! The real disk.
//!
//! Every open closes on exec and follows no link at the end of its path. The lock is `flock`: it belongs to the
//! open file, so a second open in the same process is shut out too. It is given back by name when the file is
//! dropped: a child between fork and exec still has a copy of the descriptor, and closing ours would not do.
//! What a signal interrupted before it did anything is done again. A sync is not, and std would: what went wrong
//! with the pages is told once, and a second sync on the same descriptor could say that all is well.

use super::{DIR_MODE, FILE_MODE, Identity, Item, ItemKind, LockKind, Meta, Refused, Storage, StoredFile};
use rustix::fs::{Access, AtFlags, CWD, OFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The real disk.
#[derive(Debug, Clone, Copy, Default)]
pub struct FileStorage;

/// An open file on the real disk.
#[derive(Debug)]
struct DiskFile {
    file: File,
    locked: AtomicBool,
}

impl Storage for FileStorage {
    fn open_read(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        open_regular(OpenOptions::new().read(true), path)
    }

    fn open_append(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        open_regular(OpenOptions::new().read(true).append(true), path)
    }

    fn create_new(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        let file = OpenOptions::new().read(true).append(true).create_new(true).mode(FILE_MODE).open(path)?;
        // The umask, or an access control list of the folder, may have narrowed or widened it.
        if permissions(file.metadata()?.mode()) != FILE_MODE {
            file.set_permissions(Permissions::from_mode(FILE_MODE))?;
        }
        Ok(Box::new(DiskFile::new(file)))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::DirBuilder::new().mode(DIR_MODE).create(path)?;
        if permissions(fs::symlink_metadata(path)?.mode()) != DIR_MODE {
            fs::set_permissions(path, Permissions::from_mode(DIR_MODE))?;
        }
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let folder =
            OpenOptions::new().read(true).custom_flags(OFlags::DIRECTORY.bits().cast_signed()).open(path)?;
        Ok(rustix::fs::fsync(folder)?)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Item>> {
        let mut items = fs::read_dir(path)?
            .map(|entry| {
                entry.and_then(|entry| Ok(Item { name: entry.file_name(), kind: kind(entry.file_type()?) }))
            })
            .collect::<io::Result<Vec<_>>>()?;
        items.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(items)
    }

    fn inspect(&self, path: &Path) -> io::Result<Meta> {
        let meta = fs::symlink_metadata(path)?;
        Ok(Meta {
            kind: kind(meta.file_type()),
            len: meta.len(),
            mode: permissions(meta.mode()),
            uid: meta.uid(),
            dev: meta.dev(),
            ino: meta.ino(),
            names: meta.nlink(),
            mtime_ns: meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec()),
        })
    }

    fn link_target(&self, path: &Path) -> io::Result<PathBuf> {
        fs::read_link(path)
    }

    fn may_create(&self, folder: &Path) -> io::Result<()> {
        Ok(rustix::fs::accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(path)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }
}

impl StoredFile for DiskFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        retried(|| self.file.read_at(buf, offset))
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        retried(|| self.file.write(bytes))
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.file)?)
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.file)?)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn identity(&self) -> io::Result<Identity> {
        let meta = self.file.metadata()?;
        Ok(Identity { dev: meta.dev(), ino: meta.ino() })
    }

    fn try_lock(&self, kind: LockKind) -> io::Result<bool> {
        // By its full name: std has methods of the same names, with other errors.
        let tried = retried(|| match kind {
            LockKind::Shared => fs2::FileExt::try_lock_shared(&self.file),
            LockKind::Exclusive => fs2::FileExt::try_lock_exclusive(&self.file),
        });
        match tried {
            Ok(()) => {
                self.locked.store(true, Ordering::Relaxed);
                Ok(true)
            }
            Err(error) if error.raw_os_error() == fs2::lock_contended_error().raw_os_error() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn unlock(&self) -> io::Result<()> {
        fs2::FileExt::unlock(&self.file)?;
        self.locked.store(false, Ordering::Relaxed);
        Ok(())
    }
}

impl DiskFile {
    fn new(file: File) -> Self {
        Self { file, locked: AtomicBool::new(false) }
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        if *self.locked.get_mut() {
            // Nothing more can be done here; the close that follows gives the lock back as a rule.
            let _best_effort = fs2::FileExt::unlock(&self.file);
        }
    }
}

/// Opens what must be a regular file and no link.
fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<Box<dyn StoredFile>> {
    // Without NONBLOCK a pipe in the place of a journal would hold the command for ever.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let not_a_file = || Refused::NotAFile { path: path.to_owned() }.into();
    let file = options.custom_flags(flags.bits().cast_signed()).open(path).map_err(|error| {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::LOOP) => match fs::read_link(path) {
                Ok(target) => Refused::Link { path: path.to_owned(), target }.into(),
                // A loop before the last component.
                Err(_) => error,
            },
            // A folder, or a socket or a pipe that nobody reads.
            Some(Errno::ISDIR | Errno::NXIO) => not_a_file(),
            _ => error,
        }
    })?;
    if file.metadata()?.is_file() { Ok(Box::new(DiskFile::new(file))) } else { Err(not_a_file()) }
}

fn retried<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn permissions(mode: u32) -> u32 {
    mode & 0o777
}

fn kind(found: fs::FileType) -> ItemKind {
    if found.is_file() {
        ItemKind::File
    } else if found.is_dir() {
        ItemKind::Dir
    } else if found.is_symlink() {
        ItemKind::Link
    } else {
        debug_assert!(
            found.is_fifo() || found.is_socket() || found.is_block_device() || found.is_char_device()
        );
        ItemKind::Other
    }
}

#[cfg(test)]
mod tests {
    use super::super::{append_all, read_exact_range};
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    /// Set for the child that runs with another umask.
    const CHILD_FOLDER: &str = "TURNKEEP_TEST_UMASK_FOLDER";

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    #[test]
    fn what_is_appended_is_read_back_by_another_open() {
        let folder = folder();
        let path = folder.path().join("f");
        let mut file = FileStorage.create_new(&path).expect("created");
        append_all(file.as_mut(), b"one\n").expect("appended");
        drop(file);

        let mut file = FileStorage.open_append(&path).expect("opened");
        append_all(file.as_mut(), b"two\n").expect("appended");
        file.sync_data().expect("synced");
        file.sync_all().expect("synced");
        FileStorage.sync_dir(folder.path()).expect("synced");

        let reader = FileStorage.open_read(&path).expect("opened");
        assert_eq!(reader.len().expect("length"), 8);
        assert_eq!(read_exact_range(reader.as_ref(), 2, 6).expect("read"), b"e\ntw");
        file.truncate(4).expect("cut");
        append_all(file.as_mut(), b"2").expect("appended behind the cut");
        assert_eq!(std::fs::read(&path).expect("read"), b"one\n2");
    }

    #[test]
    fn opening_creates_nothing_and_creating_opens_nothing() {
        let folder = folder();
        let path = folder.path().join("f");
        for opened in [FileStorage.open_read(&path), FileStorage.open_append(&path)] {
            assert_eq!(opened.err().expect("missing").kind(), io::ErrorKind::NotFound);
        }
        drop(FileStorage.create_new(&path).expect("created"));
        let again = FileStorage.create_new(&path).err().expect("exists");
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        let again = FileStorage.create_dir(&path).expect_err("exists");
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_reader_cannot_write() {
        let folder = folder();
        let path = folder.path().join("f");
        drop(FileStorage.create_new(&path).expect("created"));
        let mut reader = FileStorage.open_read(&path).expect("opened");
        assert!(reader.append(b"x").is_err());
        assert!(reader.truncate(0).is_err());
        assert_eq!(std::fs::read(&path).expect("read"), b"");
    }

    #[test]
    fn links_are_refused_with_their_target() {
        let folder = folder();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        drop(FileStorage.create_new(&real).expect("created"));
        std::os::unix::fs::symlink("real", &link).expect("linked");
        for opened in [FileStorage.open_read(&link), FileStorage.open_append(&link)] {
            let error = opened.err().expect("refused");
            let expected = Refused::Link { path: link.clone(), target: "real".into() };
            assert_eq!(Refused::of(&error), Some(&expected));
            assert_eq!(
                error.to_string(),
                format!("{} is a link to real, and links are refused here", link.display())
            );
        }
        let created = FileStorage.create_new(&link).err().expect("a name that is taken");
        assert_eq!(created.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(FileStorage.link_target(&link).expect("target"), Path::new("real"));
        assert_eq!(FileStorage.resolve(&link).expect("resolved"), real.canonicalize().expect("resolved"));
    }

    #[test]
    fn a_link_further_up_is_followed_and_a_loop_there_is_the_systems_error() {
        let folder = folder();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("up")).expect("linked");
        std::os::unix::fs::symlink("loop", folder.path().join("loop")).expect("linked");
        drop(FileStorage.create_new(&folder.path().join("up/f")).expect("created"));
        FileStorage.open_read(&folder.path().join("up/f")).expect("opened");
        let error = FileStorage.open_read(&folder.path().join("loop/f")).err().expect("a loop");
        assert_eq!((error.raw_os_error(), Refused::of(&error)), (Some(Errno::LOOP.raw_os_error()), None));
    }

    #[test]
    fn folders_pipes_and_sockets_are_refused_at_once() {
        let folder = folder();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
        let socket = folder.path().join("socket");
        let _listener = UnixListener::bind(&socket).expect("bound");
        for path in [folder.path(), &pipe, &socket] {
            for opened in [FileStorage.open_read(path), FileStorage.open_append(path)] {
                let error = opened.err().expect("refused");
                assert_eq!(Refused::of(&error), Some(&Refused::NotAFile { path: path.to_owned() }));
            }
        }
    }

    #[test]
    fn inspect_and_list_tell_kinds_and_follow_nothing() {
        let folder = folder();
        let path = |name: &str| folder.path().join(name);
        let mut file = FileStorage.create_new(&path("b")).expect("created");
        append_all(file.as_mut(), b"12345").expect("appended");
        FileStorage.create_dir(&path("a")).expect("created");
        std::os::unix::fs::symlink("nowhere", path("c")).expect("linked");
        let _listener = UnixListener::bind(path("d")).expect("bound");

        let items = FileStorage.list(folder.path()).expect("listed");
        let expected =
            [("a", ItemKind::Dir), ("b", ItemKind::File), ("c", ItemKind::Link), ("d", ItemKind::Other)]
                .map(|(name, kind)| Item { name: name.into(), kind });
        assert_eq!(items, expected);
        for item in items {
            assert_eq!(
                FileStorage.inspect(&folder.path().join(item.name)).expect("inspected").kind,
                item.kind
            );
        }
        let meta = FileStorage.inspect(&path("b")).expect("inspected");
        let real = std::fs::metadata(path("b")).expect("metadata");
        let nanoseconds =
            real.modified().expect("time").duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        assert_eq!(
            meta,
            Meta {
                kind: ItemKind::File,
                len: 5,
                mode: 0o600,
                uid: rustix::process::geteuid().as_raw(),
                dev: real.dev(),
                ino: real.ino(),
                names: 1,
                mtime_ns: i64::try_from(nanoseconds.as_nanos()).expect("before 2262"),
            }
        );
        assert_eq!(file.identity().expect("identity"), meta.identity());
    }

    #[test]
    fn a_name_can_be_replaced_and_removed() {
        let folder = folder();
        let path = |name: &str| folder.path().join(name);
        let old = FileStorage.create_new(&path("old")).expect("created");
        drop(FileStorage.create_new(&path("new")).expect("created"));
        FileStorage.rename(&path("old"), &path("new")).expect("renamed");
        let found = FileStorage.inspect(&path("new")).expect("inspected").identity();
        assert_eq!(found, old.identity().expect("identity"));
        FileStorage.remove_file(&path("new")).expect("removed");
        assert_eq!(FileStorage.list(folder.path()).expect("listed"), []);
    }

    #[test]
    fn locks_exclude_other_opens_of_the_same_process() {
        let folder = folder();
        let path = folder.path().join("f");
        let writer = FileStorage.create_new(&path).expect("created");
        let reader = FileStorage.open_read(&path).expect("opened");
        assert!(writer.try_lock(LockKind::Exclusive).expect("tried"));
        assert!(!reader.try_lock(LockKind::Shared).expect("tried"));
        assert!(!reader.try_lock(LockKind::Exclusive).expect("tried"));
        writer.unlock().expect("unlocked");
        assert!(reader.try_lock(LockKind::Shared).expect("tried"));
        assert!(writer.try_lock(LockKind::Shared).expect("shared twice"));
        assert!(!writer.try_lock(LockKind::Exclusive).expect("tried"));
        drop(reader);
        assert!(writer.try_lock(LockKind::Exclusive).expect("dropped means unlocked"));
    }

    #[test]
    fn descriptors_close_on_exec() {
        let folder = folder();
        let path = |name: &str| folder.path().join(name);
        let _created = FileStorage.create_new(&path("a")).expect("created");
        let _reader = FileStorage.open_read(&path("a")).expect("opened");
        let _writer = FileStorage.open_append(&path("a")).expect("opened");
        let mut child = Command::new("sleep").arg("600").spawn().expect("a child");
        let inherited: Vec<_> = std::fs::read_dir(format!("/proc/{}/fd", child.id()))
            .expect("the child's descriptors")
            .filter_map(|entry| std::fs::read_link(entry.expect("an entry").path()).ok())
            .filter(|target| target.starts_with(folder.path()))
            .collect();
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert_eq!(inherited, [] as [PathBuf; 0]);
    }

    #[test]
    fn dropping_unlocks_though_another_process_has_a_copy_of_the_descriptor() {
        let folder = folder();
        let file =
            File::options().append(true).create_new(true).open(folder.path().join("f")).expect("created");
        let copy = file.try_clone().expect("a copy");
        let held = DiskFile::new(file);
        assert!(held.try_lock(LockKind::Exclusive).expect("tried"));
        drop(held);
        let next = FileStorage.open_append(&folder.path().join("f")).expect("opened");
        assert!(next.try_lock(LockKind::Exclusive).expect("tried"));
        drop(copy);
    }

    /// The body runs in a child, since the umask belongs to the whole process.
    #[test]
    fn modes_do_not_depend_on_the_umask() {
        if let Some(folder) = std::env::var_os(CHILD_FOLDER) {
            let folder = Path::new(&folder);
            FileStorage.create_dir(&folder.join("dir")).expect("created");
            drop(FileStorage.create_new(&folder.join("dir/file")).expect("created"));
            return;
        }
        for umask in ["000", "022", "077", "377", "777"] {
            let folder = folder();
            let this = std::env::current_exe().expect("this test");
            let output = Command::new("sh")
                .args(["-c", "umask \"$1\" && exec \"$2\" --exact \"$3\"", "sh", umask])
                .arg(this)
                .arg(
                    concat!(module_path!(), "::modes_do_not_depend_on_the_umask")
                        .trim_start_matches("turnkeep::"),
                )
                .env(CHILD_FOLDER, folder.path())
                .output()
                .expect("a child");
            assert!(output.status.success(), "umask {umask}: {output:?}");
            let mode = |name: &str| FileStorage.inspect(&folder.path().join(name)).expect("inspected").mode;
            assert_eq!((mode("dir"), mode("dir/file")), (0o700, 0o600), "umask {umask}");
        }
    }
}
