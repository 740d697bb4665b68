//! Which process an attempt belongs to, and whether it still lives.
//!
//! A pid alone names nobody: it is given out again, counts anew after a boot and means another process in
//! another pid namespace. So start time, boot id, namespace and host stand beside it. Nothing is decided about
//! leases here, and nothing is signalled. Invariant: whatever cannot be seen counts as alive, since taking a
//! living owner for a dead one runs effects twice.

use crate::record::Owner;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A command line is kept up to this length.
pub const CMD_CHARS_MAX: usize = 200;

/// Whether an owner lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It runs on this host.
    Alive,
    /// It ended, or this host was booted anew since.
    Gone,
    /// It is on another host or in another pid namespace: only its lease can tell.
    Elsewhere,
}

/// The kernel and namespace that pids have their meaning in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Here {
    /// Machine id, else the host name.
    pub host: String,
    /// Boot id of the kernel.
    pub boot: String,
    /// Inode number of the pid namespace.
    pub pidns: u64,
}

/// What looking for a pid on this host found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// No such process.
    Nobody,
    /// A process that ended and was not waited for yet.
    Zombie,
    /// A process, and its start time in clock ticks after boot.
    Process {
        /// The start time.
        started: u64,
    },
    /// There is such a process, but it is hidden from us.
    Hidden,
}

/// A look at a process for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glance {
    /// Its command line.
    pub cmd: String,
    /// Whether it is stopped.
    pub stopped: bool,
}

/// Why a process cannot be an owner.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// There is none with this pid, or it ended.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The pid.
        pid: u32,
    },
    /// The parent is out of sight.
    #[error("the parent process is outside this pid namespace, so it cannot be the owner")]
    NoParent,
    /// `/proc` shows other processes than ours.
    #[error("/proc belongs to another pid namespace: it shows this process ({pid}) as {shown}")]
    ForeignProc {
        /// Our own pid.
        pid: u32,
        /// What `/proc/self` points to.
        shown: String,
    },
    /// A file of the system cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file of the system says something else than we understand.
    #[error("{} says {text:?}, which is not understood", path.display())]
    Odd {
        /// The file.
        path: PathBuf,
        /// What it says.
        text: String,
    },
}

/// Describes a process of this host.
pub fn process(pid: u32) -> Result<Owner, OwnerError> {
    let here = Here::read()?;
    let path = proc_file(pid, "stat");
    let stat = match fs::read(&path) {
        Ok(bytes) => Stat::parse(&bytes).ok_or_else(|| odd(path, &bytes))?,
        Err(error) if is_gone(&error) => return Err(OwnerError::NoProcess { pid }),
        Err(source) => return Err(OwnerError::Read { path, source }),
    };
    if stat.ended() {
        return Err(OwnerError::NoProcess { pid });
    }
    Ok(Owner {
        pid: u64::from(pid),
        started: stat.started,
        boot: here.boot,
        // Ours, also for a process that is in one below: the number is the one that it has in ours, and in
        // its own it would name somebody else.
        pidns: here.pidns,
        host: here.host,
        cmd: command(pid, &stat),
    })
}

/// Describes this process.
pub fn this_process() -> Result<Owner, OwnerError> {
    process(std::process::id())
}

/// Describes the parent of this process, as it is now: it may have changed when asked again.
pub fn parent() -> Result<Owner, OwnerError> {
    let parent = rustix::process::getppid().ok_or(OwnerError::NoParent)?;
    process(parent.as_raw_nonzero().get().unsigned_abs())
}

/// Whether two are the same process; the command line does not count, a process may change its own.
pub fn same(left: &Owner, right: &Owner) -> bool {
    let identity = |owner: &Owner| (owner.pid, owner.started, owner.pidns);
    identity(left) == identity(right) && left.boot == right.boot && left.host == right.host
}

/// Whether an owner lives, seen from here. Where nothing can be seen it counts as alive.
pub fn liveness(owner: &Owner) -> Liveness {
    Here::read().map_or(Liveness::Alive, |here| here.liveness(owner))
}

/// The rule behind [`liveness`]; `look` is asked for the pid only where the pid means something.
pub fn judge(owner: &Owner, here: &Here, look: impl FnOnce(u64) -> Seen) -> Liveness {
    if owner.host != here.host {
        return Liveness::Elsewhere;
    }
    if owner.boot != here.boot {
        return Liveness::Gone;
    }
    if owner.pidns != here.pidns {
        return Liveness::Elsewhere;
    }
    match look(owner.pid) {
        Seen::Process { started } if started == owner.started => Liveness::Alive,
        Seen::Hidden => Liveness::Alive,
        Seen::Process { .. } | Seen::Zombie | Seen::Nobody => Liveness::Gone,
    }
}

/// A look at a process for people, if it can be seen.
pub fn glance(pid: u32) -> Option<Glance> {
    let stat = Stat::parse(&fs::read(proc_file(pid, "stat")).ok()?)?;
    Some(Glance { cmd: command(pid, &stat), stopped: matches!(stat.state, b'T' | b't') })
}

impl Here {
    /// Reads where we are.
    pub fn read() -> Result<Self, OwnerError> {
        let pid = std::process::id();
        let own = Path::new("/proc/self");
        let shown = fs::read_link(own).map_err(|source| OwnerError::Read { path: own.to_owned(), source })?;
        // In a new pid namespace with the old /proc every pid would be looked up among other processes.
        if shown.as_os_str() != pid.to_string().as_str() {
            return Err(OwnerError::ForeignProc { pid, shown: shown.display().to_string() });
        }
        Ok(Self {
            host: host(Path::new("/etc/machine-id"), Path::new("/proc/sys/kernel/hostname"))?,
            boot: word(Path::new("/proc/sys/kernel/random/boot_id"))?,
            pidns: namespace(Path::new("/proc/self/ns/pid"))?,
        })
    }

    /// As the function [`liveness`], for many owners at a time.
    pub fn liveness(&self, owner: &Owner) -> Liveness {
        judge(owner, self, look_for)
    }
}

/// The line of `/proc/PID/stat`, as far as it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stat {
    name: String,
    state: u8,
    threads: u64,
    started: u64,
}

impl Stat {
    /// `PID (NAME) STATE …`, where the name may hold spaces, parentheses, newlines and broken UTF-8.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(bytes);
        let (before, behind) = text.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        // The first field behind the name is number 3 in proc(5).
        let mut fields = behind.split_ascii_whitespace();
        let state = *fields.next()?.as_bytes().first()?;
        let threads = fields.nth(20 - 4)?.parse().ok()?;
        let started = fields.nth(22 - 21)?.parse().ok()?;
        Some(Self { name: name.to_owned(), state, threads, started })
    }

    /// A first thread that ended while others of its process go on looks like a zombie and is none.
    fn ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x') && self.threads <= 1
    }
}

/// Looks for a pid in `/proc`.
fn look_for(pid: u64) -> Seen {
    let Some(raw) = i32::try_from(pid).ok().filter(|raw| *raw > 0) else { return Seen::Nobody };
    let Some(pid) = rustix::process::Pid::from_raw(raw) else { return Seen::Nobody };
    match fs::read(proc_file(raw.unsigned_abs(), "stat")) {
        Ok(bytes) => match Stat::parse(&bytes) {
            Some(stat) if stat.ended() => Seen::Zombie,
            Some(stat) => Seen::Process { started: stat.started },
            None => Seen::Hidden,
        },
        // A /proc mounted with `hidepid` has no sign of other users' processes; the kernel still knows them.
        Err(_) => match rustix::process::test_kill_process(pid) {
            Err(rustix::io::Errno::SRCH) => Seen::Nobody,
            Ok(()) | Err(_) => Seen::Hidden,
        },
    }
}

/// The command line for people: printable, of limited length, never empty.
fn command(pid: u32, stat: &Stat) -> String {
    let bytes = fs::read(proc_file(pid, "cmdline")).unwrap_or_default();
    let cmd = printable(&bytes);
    if cmd.is_empty() { printable(format!("[{}]", stat.name).as_bytes()) } else { cmd }
}

/// Words ended by NULs, joined by spaces.
fn printable(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let text = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default());
    let shown = |char: char| match char {
        '\0' => ' ',
        char if char.is_control() => char::REPLACEMENT_CHARACTER,
        char => char,
    };
    let mut chars = text.chars().map(shown);
    let mut cmd: String = chars.by_ref().take(CMD_CHARS_MAX).collect();
    if chars.next().is_some() {
        cmd.pop();
        cmd.push('…');
    }
    cmd
}

/// The machine id where there is one, else the host name.
///
/// One that is there and cannot be read now (no descriptor left, say) is an error: under another name this host
/// would be a strange one, on which nobody can be looked for.
fn host(machine_id: &Path, hostname: &Path) -> Result<String, OwnerError> {
    match word(machine_id) {
        // What systemd writes into an image that was not booted yet.
        Ok(id) if id != "uninitialized" => Ok(id),
        Err(OwnerError::Read { source, path })
            if !matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
        {
            Err(OwnerError::Read { path, source })
        }
        _ => word(hostname),
    }
}

/// The one word of a file.
fn word(path: &Path) -> Result<String, OwnerError> {
    let text =
        fs::read_to_string(path).map_err(|source| OwnerError::Read { path: path.to_owned(), source })?;
    match text.trim() {
        "" => Err(odd(path.to_owned(), text.as_bytes())),
        word => Ok(word.to_owned()),
    }
}

/// The inode number in a link such as `pid:[4026531836]`.
fn namespace(path: &Path) -> Result<u64, OwnerError> {
    let target = fs::read_link(path).map_err(|source| OwnerError::Read { path: path.to_owned(), source })?;
    let text = target.to_string_lossy();
    let number =
        text.strip_prefix("pid:[").and_then(|rest| rest.strip_suffix(']')).and_then(|n| n.parse().ok());
    number.ok_or_else(|| odd(path.to_owned(), text.as_bytes()))
}

fn odd(path: PathBuf, bytes: &[u8]) -> OwnerError {
    OwnerError::Odd { path, text: String::from_utf8_lossy(bytes).into_owned() }
}

/// A process may also end between opening and reading its file.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

fn proc_file(pid: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, Stdio};

    /// A child that is killed and reaped at the end of its test.
    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            // It may be gone already.
            let _ended = self.0.kill();
            let _reaped = self.0.wait();
        }
    }

    /// A child that stands by, and is past its exec: for a moment there is no command line.
    fn standing_by(program: &Path) -> Killed {
        let mut command = Command::new(program);
        command.arg("-").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Killed(command.spawn().expect("a child"));
        child.0.stdin.as_mut().expect("its input").write_all(b"ready\n").expect("written");
        let mut line = String::new();
        let output = child.0.stdout.as_mut().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("read");
        assert_eq!(line, "ready\n");
        child
    }

    fn owner(host: &str, boot: &str, pidns: u64) -> Owner {
        let (host, boot) = (host.to_owned(), boot.to_owned());
        Owner { pid: 7, started: 70, boot, pidns, host, cmd: "c".to_owned() }
    }

    #[test]
    fn the_rule_in_every_combination() {
        use Liveness::{Alive, Elsewhere, Gone};
        let here = Here { host: "h".to_owned(), boot: "b".to_owned(), pidns: 1 };
        let sights = [
            (Seen::Nobody, Gone),
            (Seen::Zombie, Gone),
            (Seen::Process { started: 70 }, Alive),
            (Seen::Process { started: 71 }, Gone),
            (Seen::Hidden, Alive),
        ];
        for host in ["h", "other"] {
            for boot in ["b", "other"] {
                for pidns in [1, 2] {
                    for (seen, from_sight) in sights {
                        let expected = match (host, boot, pidns) {
                            ("other", _, _) | ("h", "b", 2) => Elsewhere,
                            ("h", "other", _) => Gone,
                            _ => from_sight,
                        };
                        let mut asked = None;
                        let judged = judge(&owner(host, boot, pidns), &here, |pid| {
                            asked = Some(pid);
                            seen
                        });
                        assert_eq!(judged, expected, "{host} {boot} {pidns} {seen:?}");
                        // A pid of another kernel or namespace is never looked for here.
                        let meaningful = (host, boot, pidns) == ("h", "b", 1);
                        assert_eq!(asked, meaningful.then_some(7));
                    }
                }
            }
        }
    }

    #[test]
    fn all_but_the_command_line_makes_a_process() {
        let one = owner("h", "b", 1);
        assert!(same(&one, &Owner { cmd: "other".to_owned(), ..one.clone() }));
        for other in [
            Owner { pid: 8, ..one.clone() },
            Owner { started: 71, ..one.clone() },
            Owner { pidns: 2, ..one.clone() },
            owner("h", "other", 1),
            owner("other", "b", 1),
        ] {
            assert!(!same(&one, &other), "{other:?}");
        }
    }

    #[test]
    fn this_process_and_its_parent_are_alive() {
        let this = this_process().expect("this process");
        assert_eq!(this.pid, u64::from(std::process::id()));
        assert_eq!(liveness(&this), Liveness::Alive);
        let words: Vec<String> = std::env::args().collect();
        assert_eq!(this.cmd, printable(words.join("\0").as_bytes()));
        let parent = parent().expect("a parent");
        assert_eq!(parent.pid, u64::from(std::os::unix::process::parent_id()));
        assert!(!same(&this, &parent));
        assert_eq!(liveness(&parent), Liveness::Alive);
    }

    #[test]
    fn a_child_lives_until_it_ended_also_before_it_is_waited_for() {
        let mut child = standing_by(Path::new("cat"));
        let pid = child.0.id();
        let owner = process(pid).expect("a process");
        let here = Here::read().expect("here");
        let rest = (owner.host.as_str(), owner.boot.as_str(), owner.pidns, owner.cmd.as_str());
        assert_eq!(rest, (here.host.as_str(), here.boot.as_str(), here.pidns, "cat -"));
        assert_eq!(liveness(&owner), Liveness::Alive);

        // The pid now belongs to another process, as far as the start time tells.
        for started in [owner.started - 1, owner.started + 1] {
            assert_eq!(liveness(&Owner { started, ..owner.clone() }), Liveness::Gone);
        }

        child.0.kill().expect("killed");
        // Waits until it ended and leaves it a zombie.
        let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        let raw = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
        rustix::process::waitid(rustix::process::WaitId::Pid(raw), ended).expect("waited");
        assert_eq!(look_for(u64::from(pid)), Seen::Zombie);
        assert_eq!(liveness(&owner), Liveness::Gone);
        assert!(matches!(process(pid), Err(OwnerError::NoProcess { .. })));

        child.0.wait().expect("reaped");
        assert_eq!(look_for(u64::from(pid)), Seen::Nobody);
        assert_eq!(liveness(&owner), Liveness::Gone);
        let told = process(pid).expect_err("gone").to_string();
        assert_eq!(told, format!("there is no process {pid}"));
    }

    #[test]
    fn numbers_that_are_no_pid_are_nobody() {
        for pid in [0, u64::from(u32::MAX), u64::MAX, 1 << 31] {
            assert_eq!(look_for(pid), Seen::Nobody, "{pid}");
        }
        assert!(matches!(process(0), Err(OwnerError::NoProcess { pid: 0 })));
        assert!(matches!(process(u32::MAX), Err(OwnerError::NoProcess { .. })));
    }

    #[test]
    fn an_owner_stays_the_same_through_exec() {
        let mut child = Killed(
            Command::new("sh")
                .args(["-c", "echo ready; read go; exec sleep 600"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a child"),
        );
        let mut output = BufReader::new(child.0.stdout.take().expect("its output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("ready");
        let before = process(child.0.id()).expect("a process");
        drop(child.0.stdin.take());
        // The shell's input is closed, so `read` ends and exec follows; both are one process at any moment.
        let after = process(child.0.id()).expect("a process");
        assert!(same(&before, &after));
        assert_eq!(liveness(&before), Liveness::Alive);
    }

    #[test]
    fn a_stopped_process_is_seen_as_one() {
        let child = standing_by(Path::new("cat"));
        let pid = child.0.id();
        let before = glance(pid).expect("a process");
        assert_eq!(before, Glance { cmd: "cat -".to_owned(), stopped: false });
        let raw = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
        rustix::process::kill_process(raw, rustix::process::Signal::STOP).expect("stopped");
        rustix::process::waitid(rustix::process::WaitId::Pid(raw), rustix::process::WaitIdOptions::STOPPED)
            .expect("waited");
        assert_eq!(glance(pid).map(|glance| glance.stopped), Some(true));
        assert_eq!(liveness(&process(pid).expect("a process")), Liveness::Alive);
        assert_eq!(glance(0), None);
    }

    #[test]
    fn names_with_parentheses_and_spaces_do_not_shift_the_fields() {
        let rest = "S 1 2 3 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 5 0 9876 1 2 3";
        for name in ["sleep", "a b", "a) S 1 (b", ")", "((", "x)\ny", ""] {
            let stat = Stat::parse(format!("12 ({name}) {rest}\n").as_bytes()).expect("a line");
            let expected = Stat { name: name.to_owned(), state: b'S', threads: 5, started: 9876 };
            assert_eq!(stat, expected);
        }
        let broken = [b"12 (\xFF) ".as_slice(), rest.as_bytes()].concat();
        assert_eq!(Stat::parse(&broken).map(|stat| stat.started), Some(9876));
        for wrong in ["", "12 sleep S 1", "12 (sleep", "12 (sleep) S 1 2 3", "12 (sleep) "] {
            assert_eq!(Stat::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_first_thread_that_ended_is_no_ended_process() {
        let stat = |state, threads| Stat { name: String::new(), state, threads, started: 1 };
        for (state, threads, ended) in
            [(b'Z', 1, true), (b'Z', 0, true), (b'X', 1, true), (b'Z', 2, false), (b'T', 1, false)]
        {
            assert_eq!(stat(state, threads).ended(), ended, "{} {threads}", char::from(state));
        }
    }

    #[test]
    fn a_process_with_an_odd_name_is_described() {
        let folder = tempfile::tempdir().expect("a folder");
        let odd = folder.path().join("a) Z 1 (b");
        std::os::unix::fs::symlink("/bin/cat", &odd).expect("linked");
        let child = standing_by(&odd);
        let owner = process(child.0.id()).expect("a process");
        assert_eq!(owner.cmd, format!("{} -", odd.display()));
        assert_eq!(liveness(&owner), Liveness::Alive);
    }

    #[test]
    fn command_lines_are_printable_and_limited() {
        assert_eq!(printable(b"sh\0-c\0a\nb\x1b[0m\0"), "sh -c a\u{FFFD}b\u{FFFD}[0m");
        assert_eq!(printable(b"a\0\0b\0"), "a  b");
        assert_eq!(printable(b"\xFFx\xC3\0"), "\u{FFFD}x\u{FFFD}");
        assert_eq!(printable(b"\0\0"), "");
        let full = "é".repeat(200);
        assert_eq!(printable(full.as_bytes()), full);
        assert_eq!(printable("é".repeat(201).as_bytes()), format!("{}…", "é".repeat(199)));
    }

    #[test]
    fn a_process_without_command_line_has_its_name() {
        let stat = Stat { name: "kworker/0".to_owned(), state: b'S', threads: 1, started: 1 };
        assert_eq!(command(0, &stat), "[kworker/0]");
    }

    #[test]
    fn the_host_is_the_machine_id_else_the_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).expect("written");
            folder.path().join(name)
        };
        let name = at("name", "build-7\n");
        let told = |id: &Path| host(id, &name).expect("a host");
        assert_eq!(told(&at("id", "3d1219c7c4c5404aaa1f6d2a48adfda4\n")), "3d1219c7c4c5404aaa1f6d2a48adfda4");
        assert_eq!(told(&at("empty", "")), "build-7");
        assert_eq!(told(&at("fresh", "uninitialized\n")), "build-7");
        assert_eq!(told(&folder.path().join("none")), "build-7");
        // A folder can be opened and not be read.
        assert!(matches!(host(folder.path(), &name), Err(OwnerError::Read { .. })));
        assert!(matches!(host(&at("e", "\n"), &at("n", "\n")), Err(OwnerError::Odd { .. })));
    }

    #[test]
    fn a_namespace_is_the_number_in_its_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let link = folder.path().join("pid");
        std::os::unix::fs::symlink("pid:[4026531836]", &link).expect("linked");
        assert_eq!(namespace(&link).expect("a number"), 4_026_531_836);
        let odd = folder.path().join("odd");
        std::os::unix::fs::symlink("net:[1]", &odd).expect("linked");
        let told = namespace(&odd).expect_err("odd").to_string();
        assert_eq!(told, format!("{} says \"net:[1]\", which is not understood", odd.display()));
    }
}
