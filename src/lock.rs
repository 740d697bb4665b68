//! One writer at a time: the advisory lock on the journal file itself.
//!
//! No lock files; neither a pid nor an age ever decides who has the lock, they only name the holder for people.
//! Invariants: a [`Locked`] file was, when it was handed out, the one under its path; it is never handed out
//! without a lock, also where the file system has none; the lock ends with the value.

use crate::owner;
use crate::storage::{Identity, LockKind, Storage, StoredFile};
use rustix::io::Errno;
use std::fmt;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The first wait between two tries.
const SLEEP_FIRST: Duration = Duration::from_micros(200);
/// Waits double up to this one, so a freed lock is noticed soon and a long wait costs nothing.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// The kernel's list of locks is looked at this often for a holder.
const LOOKS: usize = 3;
/// More than the kernel hands out of that list at a time.
const LIST_BYTES: usize = 64 * 1024;

/// Time that only goes forward, and how a wait ends before its time.
pub trait Clock {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;
    /// Lets time pass.
    fn sleep(&self, time: Duration);
    /// Whether the waiting is to end now, because a signal came.
    fn stopped(&self) -> bool {
        false
    }
}

/// The system's monotonic clock; no signal ends the waiting.
#[derive(Debug, Clone, Copy)]
pub struct Monotonic(Instant);

/// A file that no other process appends to while this value lives.
pub struct Locked {
    path: PathBuf,
    identity: Identity,
    file: Box<dyn StoredFile>,
}

/// Who has a lock, as far as the system tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The process that took it.
    pub pid: u32,
    /// Its command line, unless it is gone (a child may have kept its lock).
    pub cmd: Option<String>,
    /// Whether it is stopped, and will not give the lock back before it goes on.
    pub stopped: bool,
}

/// Why there is no lock, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else has it, up to the deadline.
    #[error("{} is locked by {}", path.display(), told(holder.as_ref()))]
    Busy {
        /// The file.
        path: PathBuf,
        /// Who has it.
        holder: Option<Holder>,
    },
    /// A signal came while waiting.
    #[error("the wait for the lock on {} was ended by a signal", path.display())]
    Stopped {
        /// The file.
        path: PathBuf,
    },
    /// The file system cannot lock, so nothing may be written there.
    #[error("{} is on a file system without locks ({filesystem})", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The type of its file system.
        filesystem: String,
        /// What the system said.
        source: io::Error,
    },
    /// The path names another file by now.
    #[error("{} was replaced by another file while it was being locked or was locked", path.display())]
    Replaced {
        /// The path.
        path: PathBuf,
    },
    /// There is no such file, or none any more.
    #[error("there is no {}", path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// Anything else.
    #[error("cannot lock {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Monotonic {
    /// A clock that begins now.
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for Monotonic {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Opens a file for appending and locks it, waiting for other holders until `deadline` from now has passed.
///
/// There is at least one try, and [`Duration::MAX`] waits as long as it takes. A file that was replaced while
/// we waited is let go and the new one tried.
pub fn lock_exclusive(
    storage: &dyn Storage,
    path: &Path,
    deadline: Duration,
    clock: &dyn Clock,
) -> Result<Locked, LockError> {
    let end = clock.now().saturating_add(deadline);
    let mut sleep = SLEEP_FIRST;
    let mut file = open(storage, path)?;
    loop {
        let refused = match try_once(storage, path, file)? {
            Tried::Locked(locked) => return Ok(locked),
            Tried::Replaced => {
                file = open(storage, path)?;
                None
            }
            Tried::Busy(same) => {
                file = same;
                Some(file.identity())
            }
        };
        if clock.stopped() {
            return Err(LockError::Stopped { path: path.to_owned() });
        }
        let left = end.saturating_sub(clock.now());
        if left.is_zero() {
            return Err(match refused {
                None => LockError::Replaced { path: path.to_owned() },
                Some(identity) => {
                    LockError::Busy { path: path.to_owned(), holder: identity.ok().and_then(holder) }
                }
            });
        }
        clock.sleep(sleep.min(left));
        sleep = (sleep * 2).min(SLEEP_MAX);
    }
}

/// For readers: whether nobody is writing. The lock is tried without waiting and given back at once.
pub fn try_shared_once(file: &dyn StoredFile) -> io::Result<bool> {
    let free = file.try_lock(LockKind::Shared)?;
    if free {
        file.unlock()?;
    }
    Ok(free)
}

impl Locked {
    /// The file, to read from and append to.
    pub fn file(&mut self) -> &mut dyn StoredFile {
        self.file.as_mut()
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which file it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Demands that the path still names this file. To be asked before anything is acknowledged: bytes in a
    /// file that nobody will find again are lost, however durable.
    pub fn check_same(&self, storage: &dyn Storage) -> Result<(), LockError> {
        let path = || self.path.clone();
        match storage.inspect(&self.path) {
            Ok(meta) if meta.identity() == self.identity => Ok(()),
            Ok(_) => Err(LockError::Replaced { path: path() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(LockError::NotFound { path: path() })
            }
            Err(source) => Err(LockError::Io { path: path(), source }),
        }
    }
}

impl fmt::Debug for Locked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locked")
            .field("path", &self.path)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

enum Tried {
    Locked(Locked),
    Busy(Box<dyn StoredFile>),
    Replaced,
}

fn try_once(storage: &dyn Storage, path: &Path, file: Box<dyn StoredFile>) -> Result<Tried, LockError> {
    match file.try_lock(LockKind::Exclusive) {
        Ok(true) => {}
        Ok(false) => return Ok(Tried::Busy(file)),
        Err(source) => return Err(refusal(path, source)),
    }
    let identity = file.identity().map_err(|source| LockError::Io { path: path.to_owned(), source })?;
    let locked = Locked { path: path.to_owned(), identity, file };
    // Whoever had the lock may have put another file in the place of this one.
    match locked.check_same(storage) {
        Ok(()) => Ok(Tried::Locked(locked)),
        Err(LockError::Replaced { .. }) => Ok(Tried::Replaced),
        Err(error) => Err(error),
    }
}

fn open(storage: &dyn Storage, path: &Path) -> Result<Box<dyn StoredFile>, LockError> {
    storage.open_append(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => LockError::NotFound { path: path.to_owned() },
        _ => LockError::Io { path: path.to_owned(), source },
    })
}

/// Tells a file system without locks from other trouble.
fn refusal(path: &Path, source: io::Error) -> LockError {
    let path = path.to_owned();
    // BADF: some network file systems, of a descriptor that is good for everything else.
    match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOLCK | Errno::NOSYS | Errno::BADF | Errno::OPNOTSUPP | Errno::INVAL) => {
            LockError::Unsupported { filesystem: filesystem(&path), path, source }
        }
        _ => LockError::Io { path, source },
    }
}

/// The type of the file system that holds `path`, for people.
fn filesystem(path: &Path) -> String {
    let Ok(found) = rustix::fs::statfs(path) else { return "of an unknown type".to_owned() };
    // The word is signed on some machines, and the numbers have 32 bits.
    let magic = found.f_type & 0xFFFF_FFFF;
    let name = match magic {
        0x6969 => "nfs",
        0xFF53_4D42 => "cifs",
        0xFE53_4D42 => "smb2",
        0x517B => "smb",
        0x0102_1997 => "9p",
        0x6573_5546 => "fuse",
        0xEF53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0x0102_1994 => "tmpfs",
        0x794C_7630 => "overlay",
        0x2FC1_2FC1 => "zfs",
        0x00C3_6400 => "ceph",
        0x5346_414F => "afs",
        0x0BD0_0BD0 => "lustre",
        0x4D44 => "vfat",
        0x2011_BAB0 => "exfat",
        _ => return format!("of type 0x{magic:x}"),
    };
    name.to_owned()
}

/// Who has a lock on the file. Best effort: other users' processes may be hidden, and so may other namespaces'.
fn holder(identity: Identity) -> Option<Holder> {
    let look = || pick(&kernel_locks().ok()?, identity, |pid| has_open(pid, identity));
    let pid = (0..LOOKS).find_map(|_| look())?;
    let (cmd, stopped) = match owner::glance(pid) {
        Some(glance) => (Some(glance.cmd), glance.stopped),
        None => (None, false),
    };
    Some(Holder { pid, cmd, stopped })
}

/// The kernel's list of locks. A list that changes between two reads may lack a lock that is held all the time,
/// so reads are few and large; [`LOOKS`] does the rest.
fn kernel_locks() -> io::Result<String> {
    let mut bytes = Vec::with_capacity(LIST_BYTES);
    std::fs::File::open("/proc/locks")?.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The pid behind a line of `/proc/locks` such as `7: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF`.
///
/// The device there is that of the disk; on file systems with device numbers of their own it differs from what
/// the file itself tells. There a process with the right inode counts if it has the very file open.
fn pick(locks: &str, identity: Identity, has_open: impl Fn(u32) -> bool) -> Option<u32> {
    let device = (rustix::fs::major(identity.dev), rustix::fs::minor(identity.dev));
    let mut elsewhere = Vec::new();
    for line in locks.lines() {
        let mut words = line.split_whitespace().skip(1);
        // A waiting process has `->` here.
        if words.next() != Some("FLOCK") {
            continue;
        }
        let mut words = words.skip(2);
        let Some((pid, place)) = words.next().zip(words.next()) else { continue };
        // Holders in other pid namespaces have 0 or less.
        let Some(pid) = pid.parse().ok().filter(|pid| *pid > 0) else { continue };
        let mut parts = place.split(':');
        let mut number = |radix| u64::from_str_radix(parts.next()?, radix).ok();
        let (Some(major), Some(minor), Some(ino)) = (number(16), number(16), number(10)) else { continue };
        if ino != identity.ino {
            continue;
        }
        if (major, minor) == (u64::from(device.0), u64::from(device.1)) {
            return Some(pid);
        }
        elsewhere.push(pid);
    }
    elsewhere.into_iter().find(|pid| has_open(*pid))
}

fn has_open(pid: u32, identity: Identity) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors
        .filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok())
        .any(|meta| Identity { dev: meta.dev(), ino: meta.ino() } == identity)
}

fn told(holder: Option<&Holder>) -> String {
    match holder {
        None => "another process".to_owned(),
        Some(Holder { pid, cmd: None, .. }) => format!("a child of process {pid}, which is gone"),
        Some(Holder { pid, cmd: Some(cmd), stopped: false }) => format!("process {pid} ({cmd})"),
        Some(Holder { pid, cmd: Some(cmd), stopped: true }) => {
            format!("process {pid} ({cmd}), which is stopped; `kill -CONT {pid}` lets it go on")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{Fault, FileStorage, MemoryStorage, Op, OpKind};
    use std::cell::{Cell, RefCell};
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    /// Time passes only in sleep, and what happens meanwhile is the test's to say.
    struct Paused<F> {
        now: Cell<Duration>,
        sleeps: RefCell<Vec<Duration>>,
        meanwhile: F,
        signal: bool,
    }

    impl<F: Fn(usize)> Paused<F> {
        fn new(meanwhile: F) -> Self {
            // Not zero, so that a deadline is a span and no point in time.
            let now = Cell::new(Duration::from_secs(5));
            Self { now, sleeps: RefCell::default(), meanwhile, signal: false }
        }
    }

    impl<F: Fn(usize)> Clock for Paused<F> {
        fn now(&self) -> Duration {
            self.now.get()
        }
        fn sleep(&self, time: Duration) {
            self.now.set(self.now.get() + time);
            self.sleeps.borrow_mut().push(time);
            (self.meanwhile)(self.sleeps.borrow().len());
        }
        fn stopped(&self) -> bool {
            self.signal
        }
    }

    fn nothing(_: usize) {}

    const JOURNAL: &str = "/j";

    fn with_journal() -> MemoryStorage {
        let storage = MemoryStorage::new();
        storage.write(JOURNAL, b"old\n");
        storage
    }

    fn lock(storage: &MemoryStorage, millis: u64, clock: &dyn Clock) -> Result<Locked, LockError> {
        lock_exclusive(storage, Path::new(JOURNAL), Duration::from_millis(millis), clock)
    }

    fn held(storage: &MemoryStorage) -> Box<dyn StoredFile> {
        let other = storage.open_append(Path::new(JOURNAL)).expect("opened");
        assert!(other.try_lock(LockKind::Exclusive).expect("tried"));
        other
    }

    #[test]
    fn a_free_file_is_locked_at_once_until_dropped() {
        let storage = with_journal();
        let clock = Paused::new(nothing);
        let mut locked = lock(&storage, 0, &clock).expect("free");
        assert_eq!(*clock.sleeps.borrow(), []);
        assert_eq!(locked.path(), Path::new(JOURNAL));
        locked.check_same(&storage).expect("the same");
        locked.file().append(b"new\n").expect("appended");
        assert_eq!(storage.read(JOURNAL), b"old\nnew\n");

        assert!(matches!(lock(&storage, 0, &clock), Err(LockError::Busy { .. })));
        drop(locked);
        lock(&storage, 0, &clock).expect("free again");
    }

    #[test]
    fn waits_grow_and_end_at_the_deadline() {
        let storage = with_journal();
        let _other = held(&storage);
        let clock = Paused::new(nothing);
        let error = lock(&storage, 100, &clock).expect_err("busy");
        assert_eq!(error.to_string(), "/j is locked by another process");
        let micros: Vec<_> = clock.sleeps.borrow().iter().map(Duration::as_micros).collect();
        assert_eq!(micros, [200, 400, 800, 1600, 3200, 6400, 12800, 20000, 20000, 20000, 14600]);
        let tries = storage.ops().iter().filter(|op| op.kind == OpKind::TryLock).count();
        assert_eq!(tries, 1 + 12);
    }

    #[test]
    fn a_lock_given_back_while_waiting_is_taken() {
        let storage = with_journal();
        let other = RefCell::new(Some(held(&storage)));
        let clock = Paused::new(|sleeps| {
            if sleeps == 3 {
                other.take();
            }
        });
        // Without end, as for a result that must be recorded.
        let path = Path::new(JOURNAL);
        lock_exclusive(&storage, path, Duration::MAX, &clock).expect("free by then");
        assert_eq!(clock.sleeps.borrow().len(), 3);
    }

    #[test]
    fn a_signal_ends_the_waiting() {
        let storage = with_journal();
        let mut clock = Paused::new(nothing);
        clock.signal = true;
        lock(&storage, 100, &clock).expect("free, so nobody waited");
        let _other = held(&storage);
        let error = lock(&storage, 100, &clock).expect_err("stopped");
        assert_eq!(error.to_string(), "the wait for the lock on /j was ended by a signal");
        assert_eq!(*clock.sleeps.borrow(), []);
    }

    #[test]
    fn a_file_replaced_while_waiting_is_not_the_one_that_is_locked() {
        let storage = with_journal();
        let other = RefCell::new(Some(held(&storage)));
        let clock = Paused::new(|sleeps| {
            if sleeps == 1 {
                storage.write(JOURNAL, b"new\n");
                other.take();
            }
        });
        let mut locked = lock(&storage, 100, &clock).expect("the new one");
        locked.file().append(b"more\n").expect("appended");
        assert_eq!(storage.read(JOURNAL), b"new\nmore\n");
        locked.check_same(&storage).expect("the same");
        // The old file was let go.
        assert!(matches!(lock(&storage, 0, &clock), Err(LockError::Busy { .. })));
    }

    #[test]
    fn a_file_replaced_again_and_again_is_given_up_at_the_deadline() {
        let storage = with_journal();
        let replacing = Replacing(storage.clone());
        let clock = Paused::new(nothing);
        let path = Path::new(JOURNAL);
        let error = lock_exclusive(&replacing, path, Duration::from_millis(1), &clock).expect_err("replaced");
        assert!(matches!(error, LockError::Replaced { .. }), "{error}");
        let now = clock.now();
        assert_eq!(now, Duration::from_secs(5) + Duration::from_millis(1));
    }

    /// Replaces the journal before each look at it.
    struct Replacing(MemoryStorage);

    impl Storage for Replacing {
        fn inspect(&self, path: &Path) -> io::Result<crate::storage::Meta> {
            self.0.write(path, b"other\n");
            self.0.inspect(path)
        }
        fn open_append(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
            self.0.open_append(path)
        }
        fn open_read(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
            self.0.open_read(path)
        }
        fn create_new(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
            self.0.create_new(path)
        }
        fn create_dir(&self, path: &Path) -> io::Result<()> {
            self.0.create_dir(path)
        }
        fn sync_dir(&self, path: &Path) -> io::Result<()> {
            self.0.sync_dir(path)
        }
        fn list(&self, path: &Path) -> io::Result<Vec<crate::storage::Item>> {
            self.0.list(path)
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
    fn a_missing_file_is_told_also_when_it_goes_while_waiting() {
        let clock = Paused::new(nothing);
        let error = lock(&MemoryStorage::new(), 100, &clock).expect_err("missing");
        assert_eq!(error.to_string(), "there is no /j");

        let storage = with_journal();
        let other = RefCell::new(Some(held(&storage)));
        let clock = Paused::new(|_| {
            storage.remove_file(Path::new(JOURNAL)).expect("removed");
            other.take();
        });
        assert!(matches!(lock(&storage, 100, &clock), Err(LockError::NotFound { .. })));
    }

    #[test]
    fn a_file_replaced_or_removed_under_the_lock_is_noticed() {
        let storage = with_journal();
        let locked = lock(&storage, 0, &Paused::new(nothing)).expect("free");
        storage.write(JOURNAL, b"other\n");
        assert!(matches!(locked.check_same(&storage), Err(LockError::Replaced { .. })));
        storage.remove_file(Path::new(JOURNAL)).expect("removed");
        assert!(matches!(locked.check_same(&storage), Err(LockError::NotFound { .. })));
        storage.set_hook(|op| (op.kind == OpKind::Inspect).then(|| Fault::Error(Errno::IO.into())));
        assert!(matches!(locked.check_same(&storage), Err(LockError::Io { .. })));
    }

    #[test]
    fn links_are_refused_with_the_stores_words() {
        let storage = MemoryStorage::new();
        storage.link(JOURNAL, "/elsewhere");
        let Err(LockError::Io { source, .. }) = lock(&storage, 0, &Paused::new(nothing)) else {
            panic!("not refused");
        };
        assert_eq!(source.to_string(), "/j is a link to /elsewhere, and links are refused here");
    }

    #[test]
    fn a_file_system_without_locks_is_told_from_other_trouble() {
        let failing = |errno: Errno| {
            let storage = with_journal();
            storage.set_hook(move |op: &Op| (op.kind == OpKind::TryLock).then(|| Fault::Error(errno.into())));
            lock(&storage, 100, &Paused::new(nothing)).expect_err("a fault")
        };
        for errno in [Errno::NOLCK, Errno::NOSYS, Errno::BADF, Errno::OPNOTSUPP, Errno::INVAL] {
            let error = failing(errno);
            assert_eq!(error.to_string(), "/j is on a file system without locks (of an unknown type)");
            let LockError::Unsupported { source, .. } = error else { panic!("{error}") };
            assert_eq!(source.raw_os_error(), Some(errno.raw_os_error()));
        }
        assert!(matches!(failing(Errno::IO), LockError::Io { .. }));
        assert_eq!(filesystem(Path::new("/proc")), "of type 0x9fa0");
        assert_eq!(filesystem(Path::new("/dev/shm")), "tmpfs");
    }

    #[test]
    fn readers_try_once_and_give_back() {
        let storage = with_journal();
        let reader = storage.open_read(Path::new(JOURNAL)).expect("opened");
        assert!(try_shared_once(reader.as_ref()).expect("tried"));
        let writer = held(&storage);
        assert!(!try_shared_once(reader.as_ref()).expect("tried"));
        drop(writer);
        assert!(try_shared_once(reader.as_ref()).expect("tried"));
        lock(&storage, 0, &Paused::new(nothing)).expect("given back");
    }

    #[test]
    fn the_holder_is_picked_from_the_kernels_list() {
        let locks = "\
1: POSIX  ADVISORY  WRITE 10 08:01:77 0 EOF
2: FLOCK  ADVISORY  WRITE 11 08:01:78 0 EOF
3: FLOCK  ADVISORY  WRITE 0 08:01:77 0 EOF
4: FLOCK  ADVISORY  WRITE 12 00:2f:77 0 EOF
4: -> FLOCK  ADVISORY  WRITE 13 08:01:77 0 EOF
5: FLOCK  ADVISORY  WRITE 14 00:30:77 0 EOF
6: FLOCK  ADVISORY
7: FLOCK  ADVISORY  WRITE 15 fe:10:77 0 EOF
8: FLOCK  ADVISORY  READ  16 08:02:79 0 EOF
";
        let on = |major, minor, ino| Identity { dev: rustix::fs::makedev(major, minor), ino };
        let nowhere = |_: u32| false;
        assert_eq!(pick(locks, on(0xfe, 0x10, 77), nowhere), Some(15));
        assert_eq!(pick(locks, on(8, 1, 78), nowhere), Some(11));
        assert_eq!(pick(locks, on(8, 2, 79), nowhere), Some(16));
        assert_eq!(pick(locks, on(8, 1, 77), nowhere), None);
        // The file tells another device than the list: whoever has it open.
        assert_eq!(pick(locks, on(8, 1, 77), |pid| pid == 14), Some(14));
        assert_eq!(pick("", on(8, 1, 77), |_| true), None);
    }

    #[test]
    fn messages_name_the_holder() {
        let told =
            |cmd: Option<&str>, stopped| told(Some(&Holder { pid: 7, cmd: cmd.map(str::to_owned), stopped }));
        assert_eq!(told(Some("sleep 9"), false), "process 7 (sleep 9)");
        assert_eq!(
            told(Some("sleep 9"), true),
            "process 7 (sleep 9), which is stopped; `kill -CONT 7` lets it go on"
        );
        assert_eq!(told(None, false), "a child of process 7, which is gone");
    }

    /// Another process that holds the lock on a file.
    struct Other(Child);

    impl Other {
        fn holding(path: &Path) -> Self {
            let mut child = Command::new("flock")
                .arg("--no-fork")
                .arg(path)
                .args(["sh", "-c", "echo locked; exec sleep 600"])
                .stdout(Stdio::piped())
                .spawn()
                .expect("flock of util-linux");
            let mut line = String::new();
            BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("read");
            assert_eq!(line, "locked\n");
            Self(child)
        }
    }

    impl Drop for Other {
        fn drop(&mut self) {
            // It may be gone already.
            let _ended = self.0.kill();
            let _reaped = self.0.wait();
        }
    }

    #[test]
    fn on_the_real_disk_another_process_is_waited_for_and_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("j");
        drop(FileStorage.create_new(&path).expect("created"));
        let mut other = Other::holding(&path);
        let pid = other.0.id();
        let busy = || match lock_exclusive(&FileStorage, &path, Duration::ZERO, &Monotonic::new()) {
            Err(LockError::Busy { holder, .. }) => holder.expect("a holder"),
            done => panic!("{done:?}"),
        };
        let holder = busy();
        assert_eq!((holder.pid, holder.stopped), (pid, false));
        assert!(holder.cmd.is_some());

        let raw = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
        rustix::process::kill_process(raw, rustix::process::Signal::STOP).expect("stopped");
        rustix::process::waitid(rustix::process::WaitId::Pid(raw), rustix::process::WaitIdOptions::STOPPED)
            .expect("waited");
        assert!(busy().stopped);

        // While we wait, the holder dies.
        let clock = Paused::new(|sleeps| {
            if sleeps == 2 {
                rustix::process::kill_process(raw, rustix::process::Signal::KILL).expect("killed");
                let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
                rustix::process::waitid(rustix::process::WaitId::Pid(raw), ended).expect("waited");
            }
        });
        lock_exclusive(&FileStorage, &path, Duration::from_secs(1), &clock).expect("free by then");
        assert_eq!(clock.sleeps.borrow().len(), 2);
        other.0.wait().expect("reaped");
    }

    #[test]
    fn the_real_clock_goes_forward_and_waits() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("j");
        let holder = FileStorage.create_new(&path).expect("created");
        assert!(holder.try_lock(LockKind::Exclusive).expect("tried"));
        let clock = Monotonic::new();
        let error = lock_exclusive(&FileStorage, &path, Duration::from_millis(1), &clock).expect_err("busy");
        let LockError::Busy { holder: Some(named), .. } = error else { panic!("{error}") };
        assert_eq!(named.pid, std::process::id());
        assert!(clock.now() >= Duration::from_millis(1));
        drop(holder);
        lock_exclusive(&FileStorage, &path, Duration::ZERO, &clock).expect("free");
    }
}
