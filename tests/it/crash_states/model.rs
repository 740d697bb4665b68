//! What the calls of a log did to the watched folder, and what was acknowledged meanwhile.
//!
//! Descriptors, duplicates, working folders and `exec` are followed for each process; strace's own word on what a
//! descriptor is (`-y`) is held against it. A call that touches the watched folder and is not modelled is an error.
//! Modes, owners and times are not modelled.

use super::strace::{self, Call, Line, Seen};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

pub type Ino = usize;
/// The watched folder itself.
pub const ROOT: Ino = 0;

/// A name in a folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    pub dir: Ino,
    pub name: String,
}

/// One operation on the watched folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Create {
        name: Name,
        ino: Ino,
    },
    Mkdir {
        name: Name,
        ino: Ino,
    },
    Write {
        ino: Ino,
        at: usize,
        bytes: Vec<u8>,
    },
    /// Cut or extended to a length.
    Length {
        ino: Ino,
        len: usize,
    },
    Rename {
        from: Name,
        to: Name,
        ino: Ino,
    },
    Unlink {
        name: Name,
    },
    /// A file's content and length are durable.
    Sync(Ino),
    /// A folder's names are durable.
    SyncDir(Ino),
}

/// What happened.
#[derive(Debug, Clone)]
pub enum What {
    Did(Op),
    /// Somebody was told that so many bytes of the journal stand: by a receipt, a ticket, an exit of 0, or a CMD
    /// that was started behind a claim.
    Acked(usize),
}

#[derive(Debug, Clone)]
pub struct Event {
    /// The same for the same operation in every edited history.
    pub id: usize,
    /// For people.
    pub label: String,
    pub what: What,
    /// Whether a turnkeep is at work behind it.
    pub working: bool,
    /// Whether another program did it: the agent, which never syncs.
    pub foreign: bool,
}

/// Folders and files, some of which may have no name.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    pub dirs: HashMap<Ino, BTreeMap<String, Ino>>,
    pub files: HashMap<Ino, Vec<u8>>,
}

impl Disk {
    /// The watched folder, empty.
    pub fn new() -> Self {
        Self { dirs: HashMap::from([(ROOT, BTreeMap::new())]), files: HashMap::new() }
    }

    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Create { name, ino } => {
                self.files.entry(*ino).or_default();
                self.put(name, *ino);
            }
            Op::Mkdir { name, ino } => {
                self.dirs.entry(*ino).or_default();
                self.put(name, *ino);
            }
            Op::Write { ino, at, bytes } => {
                let file = self.files.entry(*ino).or_default();
                if file.len() < at + bytes.len() {
                    file.resize(at + bytes.len(), 0);
                }
                file[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            Op::Length { ino, len } => self.files.entry(*ino).or_default().resize(*len, 0),
            Op::Rename { from, to, ino } => {
                let old = self.dirs.entry(from.dir).or_default();
                if old.get(&from.name) == Some(ino) {
                    old.remove(&from.name);
                }
                self.put(to, *ino);
            }
            Op::Unlink { name } => {
                self.dirs.entry(name.dir).or_default().remove(&name.name);
            }
            Op::Sync(_) | Op::SyncDir(_) => {}
        }
    }

    fn put(&mut self, name: &Name, ino: Ino) {
        self.dirs.entry(name.dir).or_default().insert(name.name.clone(), ino);
    }

    /// What can be reached by name: path, and the file if it is one.
    pub fn reachable(&self) -> Vec<(String, Option<Ino>)> {
        let (mut found, mut folders) = (Vec::new(), vec![(String::new(), ROOT)]);
        while let Some((path, dir)) = folders.pop() {
            for (name, ino) in self.dirs.get(&dir).into_iter().flatten() {
                let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                if self.dirs.contains_key(ino) {
                    found.push((path.clone(), None));
                    folders.push((path, *ino));
                } else {
                    found.push((path, Some(*ino)));
                }
            }
        }
        found.sort();
        found
    }

    fn find(&self, relative: &str) -> Option<Ino> {
        let names = relative.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(ROOT, |dir, name| self.dirs.get(&dir)?.get(name).copied())
    }
}

/// Calls that change nothing we look at, whatever they touch.
const HARMLESS: &[&str] = &[
    "access",
    "faccessat",
    "faccessat2",
    "fadvise64",
    "fchmod",
    "fchmodat",
    "chmod",
    "flock",
    "fstat",
    "fstatfs",
    "getcwd",
    "getdents64",
    "lstat",
    "newfstatat",
    "poll",
    "ppoll",
    "pread64",
    "pselect6",
    "readlink",
    "readlinkat",
    "select",
    "stat",
    "statfs",
    "statx",
    "umask",
];
/// Calls that touch no file whatever words they take.
const ELSEWHERE: &[&str] = &["getrandom", "prctl", "recvfrom", "sendto", "uname", "pipe", "pipe2"];
/// Calls that make a process or a thread.
const CLONES: &[&str] = &["clone", "clone3", "fork", "vfork"];
/// What may be asked of a terminal that is none.
const ASKED: &[&str] = &["TCGETS", "TIOCGPGRP", "TIOCGWINSZ"];

/// An open file description: shared by what `dup` and `fork` make of a descriptor.
struct Description {
    ino: Ino,
    append: bool,
    at: usize,
}

#[derive(Clone)]
struct Descriptor {
    description: Rc<RefCell<Description>>,
    close_on_exec: bool,
}

type Table = HashMap<i64, Descriptor>;

#[derive(Clone)]
struct Process {
    descriptors: Rc<RefCell<Table>>,
    cwd: Rc<RefCell<PathBuf>>,
    /// The words of the turnkeep that it is, or was forked from.
    turnkeep: Option<Vec<String>>,
    thread: bool,
}

/// The events of a log.
pub struct Model {
    watched: PathBuf,
    journal: String,
    disk: Disk,
    inodes: usize,
    processes: HashMap<u32, Process>,
    /// Copies for children whose parent was killed before anybody saw `clone` return.
    unborn: Vec<Process>,
    events: Vec<Event>,
}

type Done = Result<(), String>;

impl Model {
    /// Reads a log of processes that began in the folder `cwd`, while `watched` was empty.
    pub fn read(log: &str, watched: &Path, journal: &str, cwd: &Path) -> Result<Vec<Event>, String> {
        let lines = strace::read(log)?;
        let mut model = Self {
            watched: watched.to_owned(),
            journal: journal.to_owned(),
            disk: Disk::new(),
            inodes: 1,
            processes: HashMap::new(),
            unborn: Vec::new(),
            events: Vec::new(),
        };
        let first = Process {
            descriptors: Rc::default(),
            cwd: Rc::new(RefCell::new(cwd.to_owned())),
            turnkeep: None,
            thread: false,
        };
        model.processes.insert(lines[0].pid, first);
        let children = children(&lines);
        for (at, line) in lines.iter().enumerate() {
            model
                .line(line, children.get(&at).copied())
                .map_err(|why| format!("line {} of the log: {why}", line.number))?;
        }
        Ok(model.events)
    }

    fn line(&mut self, line: &Line, child: Option<u32>) -> Done {
        if !self.processes.contains_key(&line.pid) {
            let process = self.unborn.pop();
            let process = process.ok_or_else(|| format!("process {} came from nowhere", line.pid))?;
            self.processes.insert(line.pid, process);
        }
        match &line.seen {
            Seen::Began(call) => self.began(line, call, child),
            Seen::Ended(call) => self.ended(line, call),
            Seen::Gone(code) => {
                let process = self.processes.remove(&line.pid);
                let ended = process.filter(|process| !process.thread && *code == Some(0));
                if ended.is_some_and(|process| process.writes()) {
                    self.acked_all(line, "exit 0");
                }
                Ok(())
            }
        }
    }

    fn began(&mut self, line: &Line, call: &Call, child: Option<u32>) -> Done {
        if CLONES.contains(&call.name.as_str()) {
            let process = self.fork(line.pid, call);
            match child {
                Some(child) => _ = self.processes.insert(child, process),
                None => self.unborn.push(process),
            }
        }
        if !self.process(line.pid).writes() {
            return Ok(());
        }
        let words = self.process(line.pid).turnkeep.clone().unwrap_or_default();
        match call.name.as_str() {
            "write" if call.args.first().is_some_and(|fd| strace::descriptor(fd).0 == "1") => {
                let said = strace::string(arg(call, 1)?)?;
                match said.split_once(r#""hash":""#).and_then(|(_, rest)| rest.get(..64)) {
                    Some(hash) => self.acked_hash(line, hash)?,
                    None if words.iter().any(|word| word == "step") => {}
                    None => self.acked_all(line, "a ticket"),
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn fork(&self, pid: u32, call: &Call) -> Process {
        let parent = self.process(pid);
        let has = |flag: &str| call.args.iter().any(|word| word.contains(flag));
        let descriptors = if has("CLONE_FILES") {
            Rc::clone(&parent.descriptors)
        } else {
            Rc::new(RefCell::new(parent.descriptors.borrow().clone()))
        };
        let cwd = if has("CLONE_FS") {
            Rc::clone(&parent.cwd)
        } else {
            Rc::new(RefCell::new(parent.cwd.borrow().clone()))
        };
        Process { descriptors, cwd, turnkeep: parent.turnkeep.clone(), thread: has("CLONE_THREAD") }
    }

    fn process(&self, pid: u32) -> &Process {
        &self.processes[&pid]
    }

    fn ended(&mut self, line: &Line, call: &Call) -> Done {
        let pid = line.pid;
        let name = call.name.as_str();
        if name == "sync" {
            return Err("sync is not modelled".to_owned());
        }
        if HARMLESS.contains(&name) || ELSEWHERE.contains(&name) {
            return Ok(());
        }
        let touches = self.touches(pid, call);
        let Some(ret) = call.ret else {
            let waits = ["read", "wait4", "futex", "exit", "exit_group"].contains(&name);
            return match touches {
                Some(path) if !waits => Err(format!("nobody saw whether {name} touched {path}")),
                _ => Ok(()),
            };
        };
        if ret < 0 {
            return Ok(());
        }
        match name {
            "openat" | "open" | "creat" => self.open(line, call, ret),
            "close" => {
                self.table(pid).borrow_mut().remove(&number(call, 0)?);
                Ok(())
            }
            "close_range" => {
                let (from, to) = (number(call, 0)?, number(call, 1).unwrap_or(i64::MAX));
                let marks = call.args.get(2).is_some_and(|flags| flags.contains("CLOEXEC"));
                self.table(pid).borrow_mut().retain(|fd, descriptor| {
                    let meant = (from..=to).contains(fd);
                    descriptor.close_on_exec |= meant && marks;
                    !meant || marks
                });
                Ok(())
            }
            "dup" | "dup2" | "dup3" => {
                let close_on_exec = call.args.get(2).is_some_and(|flags| flags.contains("CLOEXEC"));
                self.duplicate(pid, number(call, 0)?, ret, close_on_exec);
                Ok(())
            }
            "fcntl" => self.fcntl(pid, call, ret, touches),
            "chdir" => {
                let path = self.path(pid, None, &strace::string(arg(call, 0)?)?);
                *self.process(pid).cwd.borrow_mut() = path;
                Ok(())
            }
            "fchdir" => {
                let (_, path) = strace::descriptor(arg(call, 0)?);
                *self.process(pid).cwd.borrow_mut() = path.ok_or("fchdir to nowhere")?.into();
                Ok(())
            }
            "execve" => self.exec(line, call),
            clone if CLONES.contains(&clone) => Ok(()),
            _ => match touches {
                Some(path) => self.touched(line, call, ret, &path),
                None => Ok(()),
            },
        }
    }

    /// A call that touches the watched folder by a descriptor or a path.
    fn touched(&mut self, line: &Line, call: &Call, ret: i64, path: &str) -> Done {
        let pid = line.pid;
        let unknown = || Err(format!("{} touches {path} and is not modelled", call.name));
        let at = |word: usize| -> Result<PathBuf, String> {
            Ok(self.path(pid, Some(arg(call, word)?), &strace::string(arg(call, word + 1)?)?))
        };
        let plain = |word: usize| Ok::<_, String>(self.path(pid, None, &strace::string(arg(call, word)?)?));
        match call.name.as_str() {
            "lseek" => {
                self.description(pid, call)?.borrow_mut().at = size(ret)?;
                Ok(())
            }
            "read" | "readv" => {
                self.description(pid, call)?.borrow_mut().at += size(ret)?;
                Ok(())
            }
            "mmap" => {
                let writes = arg(call, 2)?.contains("PROT_WRITE") && arg(call, 3)?.contains("MAP_SHARED");
                if writes { unknown() } else { Ok(()) }
            }
            "ioctl" if ASKED.contains(&arg(call, 1)?) => Ok(()),
            "write" => self.write(line, call, strace::bytes(arg(call, 1)?)?, ret, None),
            "writev" => {
                let all = arg(call, 1)?.split('"').skip(1).step_by(2);
                let bytes =
                    all.map(|piece| strace::bytes(&format!("\"{piece}\""))).collect::<Result<Vec<_>, _>>()?;
                self.write(line, call, bytes.concat(), ret, None)
            }
            "pwrite64" => {
                let offset = size(number(call, 3)?)?;
                self.write(line, call, strace::bytes(arg(call, 1)?)?, ret, Some(offset))
            }
            "ftruncate" => {
                let ino = self.description(pid, call)?.borrow().ino;
                self.did(line, Op::Length { ino, len: size(number(call, 1)?)? });
                Ok(())
            }
            "fallocate" => {
                let ino = self.description(pid, call)?.borrow().ino;
                let len = size(number(call, 2)?)? + size(number(call, 3)?)?;
                match arg(call, 1)? {
                    "0" if self.disk.files[&ino].len() < len => self.did(line, Op::Length { ino, len }),
                    "0" | "FALLOC_FL_KEEP_SIZE" => {}
                    _ => return unknown(),
                }
                Ok(())
            }
            "fsync" | "fdatasync" => {
                let ino = self.description(pid, call)?.borrow().ino;
                let op = if self.disk.dirs.contains_key(&ino) { Op::SyncDir(ino) } else { Op::Sync(ino) };
                self.did(line, op);
                Ok(())
            }
            "mkdir" => self.mkdir(line, &plain(0)?),
            "mkdirat" => self.mkdir(line, &at(0)?),
            "unlink" => self.unlink(line, &plain(0)?),
            "unlinkat" if arg(call, 2)? == "0" => self.unlink(line, &at(0)?),
            "rename" => self.rename(line, &plain(0)?, &plain(1)?),
            "renameat" => self.rename(line, &at(0)?, &at(2)?),
            "renameat2" if ["0", "RENAME_NOREPLACE"].contains(&arg(call, 4)?) => {
                self.rename(line, &at(0)?, &at(2)?)
            }
            _ => unknown(),
        }
    }

    fn open(&mut self, line: &Line, call: &Call, fd: i64) -> Done {
        let pid = line.pid;
        let (path, flags) = match call.name.as_str() {
            "openat" => (self.path(pid, Some(arg(call, 0)?), &strace::string(arg(call, 1)?)?), arg(call, 2)?),
            "open" => (self.path(pid, None, &strace::string(arg(call, 0)?)?), arg(call, 1)?),
            _ => (self.path(pid, None, &strace::string(arg(call, 0)?)?), "O_WRONLY|O_CREAT|O_TRUNC"),
        };
        let flags: Vec<&str> = flags.split('|').collect();
        let has = |flag: &str| flags.contains(&flag);
        self.table(pid).borrow_mut().remove(&fd);
        if !path.starts_with(&self.watched) {
            return Ok(());
        }
        if let Some(flag) = ["O_SYNC", "O_DSYNC", "O_TMPFILE", "O_DIRECT"].into_iter().find(|flag| has(flag))
        {
            return Err(format!("{flag} is not modelled"));
        }
        let ino = match self.find(&path) {
            Some(ino) => ino,
            None if has("O_CREAT") => {
                let ino = self.inode();
                self.did(line, Op::Create { name: self.name(&path)?, ino });
                ino
            }
            None => return Err(format!("{} was opened and is not there", path.display())),
        };
        if has("O_TRUNC") && self.disk.files.get(&ino).is_some_and(|file| !file.is_empty()) {
            self.did(line, Op::Length { ino, len: 0 });
        }
        let description = Description { ino, append: has("O_APPEND"), at: 0 };
        let descriptor =
            Descriptor { description: Rc::new(RefCell::new(description)), close_on_exec: has("O_CLOEXEC") };
        self.table(pid).borrow_mut().insert(fd, descriptor);
        Ok(())
    }

    fn write(
        &mut self,
        line: &Line,
        call: &Call,
        mut bytes: Vec<u8>,
        ret: i64,
        offset: Option<usize>,
    ) -> Done {
        bytes.truncate(size(ret)?);
        let description = self.description(line.pid, call)?;
        let ino = description.borrow().ino;
        let end = self.disk.files[&ino].len();
        let at = match offset {
            _ if description.borrow().append => end,
            Some(offset) => offset,
            None => description.borrow().at,
        };
        if offset.is_none() {
            description.borrow_mut().at = at + bytes.len();
        }
        if !bytes.is_empty() {
            self.did(line, Op::Write { ino, at, bytes });
        }
        Ok(())
    }

    fn fcntl(&mut self, pid: u32, call: &Call, ret: i64, touches: Option<String>) -> Done {
        match arg(call, 1)? {
            "F_DUPFD" => self.duplicate(pid, number(call, 0)?, ret, false),
            "F_DUPFD_CLOEXEC" => self.duplicate(pid, number(call, 0)?, ret, true),
            "F_SETFD" => {
                if let Some(descriptor) = self.table(pid).borrow_mut().get_mut(&number(call, 0)?) {
                    descriptor.close_on_exec = arg(call, 2)?.contains("FD_CLOEXEC");
                }
            }
            "F_GETFD" | "F_GETFL" => {}
            other => {
                if let Some(path) = touches {
                    return Err(format!("fcntl {other} touches {path} and is not modelled"));
                }
            }
        }
        Ok(())
    }

    fn exec(&mut self, line: &Line, call: &Call) -> Done {
        let pid = line.pid;
        if self.process(pid).writes() {
            let words = self.process(pid).turnkeep.clone().unwrap_or_default();
            self.acked_all(line, &format!("`{}` starts a CMD", words[..2].join(" ")));
        }
        let program = strace::string(arg(call, 0)?)?;
        let words = strace::strings(arg(call, 1)?).split_off(1);
        let ours = Path::new(&program).file_name().is_some_and(|name| name == "turnkeep");
        let process = self.processes.get_mut(&pid).expect("it was looked for");
        process.turnkeep = ours.then_some(words);
        // What it shared with another process stays there as it was.
        let mut kept = process.descriptors.borrow().clone();
        kept.retain(|_, descriptor| !descriptor.close_on_exec);
        process.descriptors = Rc::new(RefCell::new(kept));
        Ok(())
    }

    fn mkdir(&mut self, line: &Line, path: &Path) -> Done {
        let op = Op::Mkdir { name: self.name(path)?, ino: self.inode() };
        self.did(line, op);
        Ok(())
    }

    fn unlink(&mut self, line: &Line, path: &Path) -> Done {
        let op = Op::Unlink { name: self.name(path)? };
        self.did(line, op);
        Ok(())
    }

    fn rename(&mut self, line: &Line, from: &Path, to: &Path) -> Done {
        let ino = self.find(from).ok_or_else(|| format!("{} was renamed from outside", from.display()))?;
        let op = Op::Rename { from: self.name(from)?, to: self.name(to)?, ino };
        self.did(line, op);
        Ok(())
    }

    fn duplicate(&self, pid: u32, old: i64, new: i64, close_on_exec: bool) {
        let mut table = self.process(pid).descriptors.borrow_mut();
        match table.get(&old).map(|old| Rc::clone(&old.description)) {
            Some(description) => table.insert(new, Descriptor { description, close_on_exec }),
            None => table.remove(&new),
        };
    }

    fn did(&mut self, line: &Line, op: Op) {
        self.disk.apply(&op);
        let label = format!("line {}: {}", line.number, self.describe(&op));
        let foreign = self.process(line.pid).turnkeep.is_none();
        self.event(label, What::Did(op), foreign);
    }

    fn acked_all(&mut self, line: &Line, why: &str) {
        let journal = self.journal_bytes();
        let end = journal.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.acked(line, why, end);
    }

    fn acked_hash(&mut self, line: &Line, hash: &str) -> Done {
        let journal = String::from_utf8_lossy(self.journal_bytes()).into_owned();
        let end = format!("\"hash\":\"{hash}\"}}\n");
        let at =
            journal.find(&end).ok_or_else(|| format!("a receipt of a record that is not there: {hash}"))?;
        self.acked(line, "a receipt", at + end.len());
        Ok(())
    }

    fn acked(&mut self, line: &Line, why: &str, end: usize) {
        self.event(format!("line {}: {why}", line.number), What::Acked(end), false);
    }

    fn event(&mut self, label: String, what: What, foreign: bool) {
        let working = self.processes.values().any(|process| process.turnkeep.is_some());
        let id = self.events.len();
        self.events.push(Event { id, label, what, working, foreign });
    }

    fn journal_bytes(&self) -> &[u8] {
        let file = self.disk.find(&self.journal).and_then(|ino| self.disk.files.get(&ino));
        file.map(Vec::as_slice).unwrap_or_default()
    }

    fn describe(&self, op: &Op) -> String {
        let named = |ino: Ino| {
            let dirs = self.disk.dirs.values().flatten();
            let name = dirs.into_iter().find(|(_, found)| **found == ino).map(|(name, _)| name.as_str());
            name.unwrap_or(if ino == ROOT { "the watched folder" } else { "a file without a name" })
        };
        match op {
            Op::Create { name, .. } => format!("create {}", name.name),
            Op::Mkdir { name, .. } => format!("mkdir {}", name.name),
            Op::Write { ino, bytes, .. } => format!("write of {} bytes to {}", bytes.len(), named(*ino)),
            Op::Length { ino, len } => format!("{} is made {len} bytes long", named(*ino)),
            Op::Rename { from, to, .. } => format!("rename {} to {}", from.name, to.name),
            Op::Unlink { name } => format!("unlink {}", name.name),
            Op::Sync(ino) | Op::SyncDir(ino) => format!("sync of {}", named(*ino)),
        }
    }

    /// A path that the call has to do with and that is watched.
    fn touches(&self, pid: u32, call: &Call) -> Option<String> {
        let inside = |path: &Path| path.starts_with(&self.watched);
        let descriptors = call.args.iter().flat_map(|word| {
            // `read` and `write` have foreign bytes in their other words.
            strace::paths(word.split('"').next().unwrap_or_default())
        });
        let by_descriptor = descriptors.map(PathBuf::from).find(|path| inside(path));
        let takes_bytes =
            ["read", "write", "writev", "readv", "pwrite64", "execve"].contains(&call.name.as_str());
        let mut texts = call.args.iter().filter(|_| !takes_bytes).flat_map(|word| strace::strings(word));
        let by_path = || texts.find_map(|text| Some(self.path(pid, None, &text)).filter(|path| inside(path)));
        by_descriptor.or_else(by_path).map(|path| path.display().to_string())
    }

    /// An absolute path without dots, from the folder of a descriptor or the working folder.
    fn path(&self, pid: u32, folder: Option<&str>, text: &str) -> PathBuf {
        let folder =
            folder.filter(|word| !word.starts_with("AT_FDCWD")).and_then(|word| strace::descriptor(word).1);
        let from = folder.map_or_else(|| self.process(pid).cwd.borrow().clone(), PathBuf::from);
        let mut path = PathBuf::new();
        for part in from.join(text).components() {
            match part {
                Component::ParentDir => _ = path.pop(),
                Component::CurDir => {}
                part => path.push(part),
            }
        }
        path
    }

    fn find(&self, path: &Path) -> Option<Ino> {
        self.disk.find(path.strip_prefix(&self.watched).ok()?.to_str()?)
    }

    fn name(&self, path: &Path) -> Result<Name, String> {
        let outside = || format!("{} is not in a folder that is watched", path.display());
        let dir = path.parent().and_then(|folder| self.find(folder)).ok_or_else(outside)?;
        let name = path.file_name().ok_or_else(outside)?.to_string_lossy().into_owned();
        Ok(Name { dir, name })
    }

    fn inode(&mut self) -> Ino {
        self.inodes += 1;
        self.inodes
    }

    fn table(&self, pid: u32) -> Rc<RefCell<Table>> {
        Rc::clone(&self.process(pid).descriptors)
    }

    /// The open file that a call's first word means; strace and we must mean the same.
    fn description(&self, pid: u32, call: &Call) -> Result<Rc<RefCell<Description>>, String> {
        let (_, path) = strace::descriptor(arg(call, 0)?);
        let path = path.ok_or("a descriptor without a path")?;
        let table = self.process(pid).descriptors.borrow();
        let descriptor = table.get(&number(call, 0)?);
        let description = descriptor
            .ok_or_else(|| format!("{} of {path}: nobody opened it", call.name))?
            .description
            .clone();
        match self.find(Path::new(&path)) {
            Some(ino) if ino != description.borrow().ino => {
                Err(format!("{} of {path}: another file", call.name))
            }
            _ => Ok(description),
        }
    }
}

impl Process {
    /// Whether it is a turnkeep that acknowledges.
    fn writes(&self) -> bool {
        let command = self.turnkeep.as_ref().and_then(|words| words.first());
        command.is_some_and(|command| ["admit", "recover", "step"].contains(&command.as_str()))
    }
}

/// Which process each `clone` made, by the place where the call began.
fn children(lines: &[Line]) -> HashMap<usize, u32> {
    let (mut began, mut children) = (HashMap::new(), HashMap::new());
    for (at, line) in lines.iter().enumerate() {
        match &line.seen {
            Seen::Began(call) if CLONES.contains(&call.name.as_str()) => {
                began.insert(line.pid, at);
            }
            Seen::Ended(Call { name, ret: Some(ret), .. }) if CLONES.contains(&name.as_str()) => {
                if let (Some(at), Ok(child)) = (began.remove(&line.pid), u32::try_from(*ret)) {
                    children.insert(at, child);
                }
            }
            _ => {}
        }
    }
    children
}

fn arg(call: &Call, at: usize) -> Result<&str, String> {
    let word = call.args.get(at).ok_or_else(|| format!("{} without its word {at}", call.name))?;
    Ok(word)
}

fn number(call: &Call, at: usize) -> Result<i64, String> {
    let (number, _) = strace::descriptor(arg(call, at)?);
    number.parse().map_err(|_| format!("{}: no number: {number}", call.name))
}

fn size(number: i64) -> Result<usize, String> {
    usize::try_from(number).map_err(|_| format!("no size: {number}"))
}
