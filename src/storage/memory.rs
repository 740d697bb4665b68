//! A tree in memory, for tests: fast, and every operation can be made to fail.
//!
//! It behaves as [`super::FileStorage`] does, down to error numbers, and knows what a power cut may leave of it
//! ([`MemoryStorage::power_cuts`]). Files that lost their name stay readable through open handles.

use super::durable::{Content, Names, Prefixes, Remains};
use super::{DIR_MODE, FILE_MODE, Identity, Item, ItemKind, LockKind, Meta, Refused, Storage, StoredFile};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// No real file system has this device number.
const DEV: u64 = u64::MAX;
const ROOT: u64 = 1;
/// Links that one path may lead through, as in Linux.
const LINKS_MAX: usize = 40;

/// A tree in memory. Clones share it.
#[derive(Clone, Default)]
pub struct MemoryStorage {
    shared: Arc<Mutex<Tree>>,
}

/// One operation that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// Number of operations before it.
    pub index: usize,
    /// What was asked for.
    pub kind: OpKind,
    /// Where; the new name of a rename.
    pub path: PathBuf,
    /// Which open file was asked; each open has a number of its own.
    pub handle: Option<u64>,
    /// Whether the hook made it go wrong.
    pub faulty: bool,
}

/// What an operation does; named as the methods of [`Storage`] and [`StoredFile`].
#[expect(missing_docs, reason = "each is the method of the same name")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpKind {
    OpenRead,
    OpenAppend,
    CreateNew,
    CreateDir,
    SyncDir,
    List,
    Inspect,
    LinkTarget,
    Resolve,
    RemoveFile,
    Rename,
    Len,
    ReadAt,
    Append,
    SyncData,
    SyncAll,
    Truncate,
    Identity,
    TryLock,
    Unlock,
}

/// How an operation goes wrong.
#[derive(Debug)]
pub enum Fault {
    /// Nothing happens and this is the answer.
    Error(io::Error),
    /// A read or an append moves at most this many bytes; other operations succeed.
    Short(usize),
}

type Hook = Box<dyn FnMut(&Op) -> Option<Fault> + Send>;

struct Tree {
    nodes: BTreeMap<u64, Node>,
    ops: Vec<Op>,
    hook: Option<Hook>,
    handles: u64,
    changes: i64,
}

#[derive(Clone)]
struct Node {
    body: Body,
    mode: u32,
    mtime_ns: i64,
    shared: BTreeSet<u64>,
    exclusive: Option<u64>,
}

#[derive(Clone)]
enum Body {
    File(Content),
    Dir(Names),
    Link(PathBuf),
}

/// One thing that a power cut may leave of a tree.
pub struct PowerCut {
    /// The tree as the next start finds it; all of it is durable.
    pub storage: MemoryStorage,
    /// Whether an interrupted write explains all of it.
    pub remains: Remains,
}

#[derive(Clone, Copy)]
enum LastLink {
    Keep,
    Follow,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Append,
}

struct MemoryFile {
    shared: Arc<Mutex<Tree>>,
    ino: u64,
    handle: u64,
    path: PathBuf,
    access: Access,
}

impl MemoryStorage {
    /// An empty tree: `/` alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks `hook` before each operation from now on. It must not use the storage itself.
    pub fn set_hook(&self, hook: impl FnMut(&Op) -> Option<Fault> + Send + 'static) {
        self.tree().hook = Some(Box::new(hook));
    }

    /// No faults from now on.
    pub fn clear_hook(&self) {
        self.tree().hook = None;
    }

    /// Every operation so far, those that failed too.
    pub fn ops(&self) -> Vec<Op> {
        self.ops_from(0)
    }

    /// The same without the first ones.
    pub fn ops_from(&self, first: usize) -> Vec<Op> {
        self.tree().ops.get(first..).unwrap_or_default().to_vec()
    }

    /// How many operations there were so far.
    pub fn ops_count(&self) -> usize {
        self.tree().ops.len()
    }

    /// Content of a file, not counted as an operation.
    ///
    /// # Panics
    /// If there is no such file: a test that asks knows that there is.
    pub fn read(&self, path: impl AsRef<Path>) -> Vec<u8> {
        let tree = self.tree();
        let node = tree.walk(path.as_ref(), LastLink::Follow).ok().and_then(|ino| tree.nodes.get(&ino));
        match node.map(|node| &node.body) {
            Some(Body::File(content)) => content.bytes.clone(),
            _ => panic!("no file {}", path.as_ref().display()),
        }
    }

    /// Every file with its content, not counted as operations.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        self.tree().collect(ROOT, Path::new("/"), &mut files);
        files
    }

    /// The same tree on its own, with what of it is durable; nobody has it open, and nothing was asked of it yet.
    #[must_use]
    pub fn fork(&self) -> Self {
        let tree = self.tree();
        let nodes = tree.nodes.iter().map(|(ino, node)| (*ino, node.closed(node.body.clone()))).collect();
        Self::of(Tree { nodes, handles: tree.handles, changes: tree.changes, ..Tree::default() })
    }

    /// Everything that a power cut may leave now. The first is what was synced, and nothing else.
    pub fn power_cuts(&self, prefixes: Prefixes) -> Vec<PowerCut> {
        let tree = self.tree();
        let mut cuts = vec![(BTreeMap::new(), Remains::Explained)];
        for (ino, node) in &tree.nodes {
            let bodies = node.remains(prefixes);
            let with = |(nodes, remains): &(BTreeMap<u64, Node>, Remains)| {
                let (nodes, remains) = (nodes.clone(), *remains);
                bodies.clone().into_iter().map(move |(body, of_node)| {
                    let mut nodes = nodes.clone();
                    nodes.insert(*ino, node.closed(body));
                    (nodes, remains.max(of_node))
                })
            };
            cuts = cuts.iter().flat_map(with).collect();
        }
        let storage =
            |nodes| Self::of(Tree { nodes, handles: tree.handles, changes: tree.changes, ..Tree::default() });
        cuts.into_iter().map(|(nodes, remains)| PowerCut { storage: storage(nodes), remains }).collect()
    }

    /// Whether a power cut now would leave everything as it is.
    pub fn is_durable(&self) -> bool {
        self.tree().nodes.values().all(|node| match &node.body {
            Body::File(content) => content.is_durable(),
            Body::Dir(names) => names.is_durable(),
            Body::Link(_) => true,
        })
    }

    /// Whether bytes are still seen whose sync failed: no later sync says anything about them.
    pub fn is_doubtful(&self) -> bool {
        let doubtful = |node: &Node| matches!(&node.body, Body::File(content) if content.is_doubtful());
        self.tree().nodes.values().any(doubtful)
    }

    /// Puts a file there, and its folders, durably and not counted as operations. A name that is taken gets a new
    /// file.
    pub fn write(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        self.put(path.as_ref(), Body::File(Content::durable(bytes.to_vec())));
    }

    /// Puts a link there, and its folders, durably and not counted as operations.
    pub fn link(&self, path: impl AsRef<Path>, target: impl Into<PathBuf>) {
        self.put(path.as_ref(), Body::Link(target.into()));
    }

    fn put(&self, path: &Path, body: Body) {
        let mut tree = self.tree();
        let folders: Vec<_> = path.ancestors().skip(1).collect();
        for folder in folders.into_iter().rev() {
            if tree.walk(folder, LastLink::Follow).is_err() {
                tree.replace(folder, Body::Dir(Names::default()));
            }
        }
        tree.replace(path, body);
    }

    fn of(tree: Tree) -> Self {
        Self { shared: Arc::new(Mutex::new(tree)) }
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        locked(&self.shared)
    }

    fn begin(&self, kind: OpKind, path: &Path) -> io::Result<MutexGuard<'_, Tree>> {
        let mut tree = self.tree();
        tree.begin(kind, path, None)?;
        Ok(tree)
    }

    fn open(&self, path: &Path, kind: OpKind, access: Access) -> io::Result<Box<dyn StoredFile>> {
        let mut tree = self.begin(kind, path)?;
        let ino = tree.walk(path, LastLink::Keep)?;
        match &tree.node(ino)?.body {
            Body::File(_) => Ok(self.handle(&mut tree, ino, path, access)),
            Body::Dir(_) => Err(Refused::NotAFile { path: path.to_owned() }.into()),
            Body::Link(target) => Err(Refused::Link { path: path.to_owned(), target: target.clone() }.into()),
        }
    }

    fn handle(&self, tree: &mut Tree, ino: u64, path: &Path, access: Access) -> Box<dyn StoredFile> {
        tree.handles += 1;
        let handle = tree.handles;
        Box::new(MemoryFile { shared: Arc::clone(&self.shared), ino, handle, path: path.to_owned(), access })
    }
}

impl Storage for MemoryStorage {
    fn open_read(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        self.open(path, OpKind::OpenRead, Access::Read)
    }

    fn open_append(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        self.open(path, OpKind::OpenAppend, Access::Append)
    }

    fn create_new(&self, path: &Path) -> io::Result<Box<dyn StoredFile>> {
        let mut tree = self.begin(OpKind::CreateNew, path)?;
        let ino = tree.create(path, Body::File(Content::durable(Vec::new())))?;
        Ok(self.handle(&mut tree, ino, path, Access::Append))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.begin(OpKind::CreateDir, path)?.create(path, Body::Dir(Names::default())).map(drop)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut tree = self.begin(OpKind::SyncDir, path)?;
        let ino = tree.walk(path, LastLink::Follow)?;
        tree.folder_mut(ino)?.synced();
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Item>> {
        let tree = self.begin(OpKind::List, path)?;
        let names = tree.names(tree.walk(path, LastLink::Follow)?)?;
        names
            .iter()
            .map(|(name, ino)| Ok(Item { name: name.clone(), kind: tree.node(*ino)?.kind() }))
            .collect()
    }

    fn inspect(&self, path: &Path) -> io::Result<Meta> {
        let tree = self.begin(OpKind::Inspect, path)?;
        let ino = tree.walk(path, LastLink::Keep)?;
        let node = tree.node(ino)?;
        let len = match &node.body {
            Body::File(content) => content.bytes.len(),
            Body::Dir(names) => names.now.len(),
            Body::Link(target) => target.as_os_str().len(),
        };
        Ok(Meta {
            kind: node.kind(),
            len: len as u64,
            mode: node.mode,
            uid: rustix::process::geteuid().as_raw(),
            dev: DEV,
            ino,
            names: 1,
            mtime_ns: node.mtime_ns,
        })
    }

    fn link_target(&self, path: &Path) -> io::Result<PathBuf> {
        let tree = self.begin(OpKind::LinkTarget, path)?;
        match &tree.node(tree.walk(path, LastLink::Keep)?)?.body {
            Body::Link(target) => Ok(target.clone()),
            Body::File(_) | Body::Dir(_) => Err(Errno::INVAL.into()),
        }
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        self.begin(OpKind::Resolve, path)?.resolve(path)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut tree = self.begin(OpKind::RemoveFile, path)?;
        if tree.node(tree.walk(path, LastLink::Keep)?)?.kind() == ItemKind::Dir {
            return Err(Errno::ISDIR.into());
        }
        let (folder, name) = tree.place(path)?;
        tree.folder_mut(folder)?.change(vec![(name, None)]);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut tree = self.begin(OpKind::Rename, to)?;
        let ino = tree.walk(from, LastLink::Keep)?;
        let (old, old_name) = tree.place(from)?;
        let (new, new_name) = tree.place(to)?;
        let (gone, there) = ((old_name, None), (new_name, Some(ino)));
        if old == new {
            tree.folder_mut(old)?.change(vec![gone, there]);
        } else {
            tree.folder_mut(old)?.change(vec![gone]);
            tree.folder_mut(new)?.change(vec![there]);
        }
        Ok(())
    }
}

impl StoredFile for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        self.begin(OpKind::Len)?.0.content(self.ino).map(|content| content.bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let (mut tree, at_most) = self.begin(OpKind::ReadAt)?;
        let content = tree.content(self.ino)?;
        let rest =
            usize::try_from(offset).ok().and_then(|offset| content.bytes.get(offset..)).unwrap_or_default();
        let read = rest.len().min(buf.len()).min(at_most);
        buf.iter_mut().zip(rest.iter().take(read)).for_each(|(to, from)| *to = *from);
        Ok(read)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (mut tree, at_most) = self.begin_change(OpKind::Append)?;
        let taken = bytes.get(..at_most).unwrap_or(bytes);
        tree.content(self.ino)?.append(taken);
        tree.touch(self.ino);
        Ok(taken.len())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(OpKind::SyncData)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync(OpKind::SyncAll)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let (mut tree, _) = self.begin_change(OpKind::Truncate)?;
        let len = usize::try_from(len).map_err(|_| Errno::FBIG)?;
        tree.content(self.ino)?.truncate(len);
        tree.touch(self.ino);
        Ok(())
    }

    fn identity(&self) -> io::Result<Identity> {
        self.begin(OpKind::Identity).map(|_| Identity { dev: DEV, ino: self.ino })
    }

    fn try_lock(&self, kind: LockKind) -> io::Result<bool> {
        let (mut tree, _) = self.begin(OpKind::TryLock)?;
        let node = tree.node_mut(self.ino)?;
        let others_shared = node.shared.iter().any(|handle| *handle != self.handle);
        let other_exclusive = node.exclusive.is_some_and(|handle| handle != self.handle);
        let free = match kind {
            LockKind::Shared => !other_exclusive,
            LockKind::Exclusive => !other_exclusive && !others_shared,
        };
        // As with flock, the lock that was held is gone also when the other kind is not to be had.
        node.release(self.handle);
        if free {
            match kind {
                LockKind::Shared => drop(node.shared.insert(self.handle)),
                LockKind::Exclusive => node.exclusive = Some(self.handle),
            }
        }
        Ok(free)
    }

    fn unlock(&self) -> io::Result<()> {
        self.begin(OpKind::Unlock)?.0.node_mut(self.ino)?.release(self.handle);
        Ok(())
    }
}

impl MemoryFile {
    fn begin(&self, kind: OpKind) -> io::Result<(MutexGuard<'_, Tree>, usize)> {
        let mut tree = locked(&self.shared);
        let at_most = tree.begin(kind, &self.path, Some(self.handle))?;
        Ok((tree, at_most))
    }

    fn sync(&self, kind: OpKind) -> io::Result<()> {
        let asked = self.begin(kind).map(drop);
        let mut tree = locked(&self.shared);
        let content = tree.content(self.ino)?;
        match &asked {
            Ok(()) => content.synced(),
            Err(_) => content.sync_failed(),
        }
        asked
    }

    fn begin_change(&self, kind: OpKind) -> io::Result<(MutexGuard<'_, Tree>, usize)> {
        let begun = self.begin(kind)?;
        if self.access == Access::Append { Ok(begun) } else { Err(Errno::BADF.into()) }
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        if let Ok(node) = locked(&self.shared).node_mut(self.ino) {
            node.release(self.handle);
        }
    }
}

impl Default for Tree {
    fn default() -> Self {
        let root = Node::new(Body::Dir(Names::default()), 0);
        Self { nodes: BTreeMap::from([(ROOT, root)]), ops: Vec::new(), hook: None, handles: 0, changes: 0 }
    }
}

impl Tree {
    /// Counts an operation and asks the hook; gives how many bytes it may move.
    fn begin(&mut self, kind: OpKind, path: &Path, handle: Option<u64>) -> io::Result<usize> {
        let op = Op { index: self.ops.len(), kind, path: path.to_owned(), handle, faulty: false };
        let fault = self.hook.as_mut().and_then(|hook| hook(&op));
        self.ops.push(Op { faulty: fault.is_some(), ..op });
        match fault {
            None => Ok(usize::MAX),
            Some(Fault::Short(bytes)) => Ok(bytes),
            Some(Fault::Error(error)) => Err(error),
        }
    }

    fn node(&self, ino: u64) -> io::Result<&Node> {
        self.nodes.get(&ino).ok_or_else(|| Errno::NOENT.into())
    }

    fn node_mut(&mut self, ino: u64) -> io::Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or_else(|| Errno::NOENT.into())
    }

    fn names(&self, ino: u64) -> io::Result<&BTreeMap<OsString, u64>> {
        match &self.node(ino)?.body {
            Body::Dir(names) => Ok(&names.now),
            Body::File(_) | Body::Link(_) => Err(Errno::NOTDIR.into()),
        }
    }

    fn folder_mut(&mut self, ino: u64) -> io::Result<&mut Names> {
        match &mut self.node_mut(ino)?.body {
            Body::Dir(names) => Ok(names),
            Body::File(_) | Body::Link(_) => Err(Errno::NOTDIR.into()),
        }
    }

    fn content(&mut self, ino: u64) -> io::Result<&mut Content> {
        match &mut self.node_mut(ino)?.body {
            Body::File(content) => Ok(content),
            Body::Dir(_) | Body::Link(_) => Err(Errno::ISDIR.into()),
        }
    }

    fn collect(&self, folder: u64, path: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for (name, ino) in self.names(folder).into_iter().flatten() {
            let path = path.join(name);
            match self.nodes.get(ino).map(|node| &node.body) {
                Some(Body::File(content)) => drop(files.insert(path, content.bytes.clone())),
                Some(Body::Dir(_)) => self.collect(*ino, &path, files),
                Some(Body::Link(_)) | None => {}
            }
        }
    }

    fn touch(&mut self, ino: u64) {
        self.changes += 1;
        let now = self.changes;
        if let Ok(node) = self.node_mut(ino) {
            node.mtime_ns = now;
        }
    }

    fn create(&mut self, path: &Path, body: Body) -> io::Result<u64> {
        let (folder, name) = self.place(path)?;
        if self.names(folder)?.contains_key(&name) {
            return Err(Errno::EXIST.into());
        }
        self.changes += 1;
        let ino = ROOT + self.nodes.len() as u64;
        self.nodes.insert(ino, Node::new(body, self.changes));
        self.folder_mut(folder)?.change(vec![(name, Some(ino))]);
        Ok(ino)
    }

    fn replace(&mut self, path: &Path, body: Body) {
        let made = self.place(path).and_then(|(folder, name)| {
            self.folder_mut(folder)?.change(vec![(name, None)]);
            self.create(path, body)?;
            self.folder_mut(folder)?.synced();
            Ok(())
        });
        assert!(made.is_ok(), "cannot put {}: {made:?}", path.display());
    }

    /// The folder that a path is in, and its name there.
    fn place(&self, path: &Path) -> io::Result<(u64, OsString)> {
        let name = path.file_name().ok_or(Errno::EXIST)?;
        let folder = self.walk(path.parent().unwrap_or(Path::new("/")), LastLink::Follow)?;
        Ok((folder, name.to_owned()))
    }

    fn walk(&self, path: &Path, last: LastLink) -> io::Result<u64> {
        self.steps(path, last).map(|steps| steps.last().map_or(ROOT, |(_, ino)| *ino))
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        let steps = self.steps(path, LastLink::Follow)?;
        Ok(Path::new("/").join(steps.into_iter().map(|(name, _)| name).collect::<PathBuf>()))
    }

    /// Every folder on the way and the last component, links resolved. Relative paths begin at `/`.
    fn steps(&self, path: &Path, last: LastLink) -> io::Result<Vec<(OsString, u64)>> {
        let mut ahead: VecDeque<OsString> = parts(path).collect();
        let mut steps: Vec<(OsString, u64)> = Vec::new();
        let mut links = 0;
        while let Some(name) = ahead.pop_front() {
            let here = steps.last().map_or(ROOT, |(_, ino)| *ino);
            let names = self.names(here)?;
            if name == OsStr::new("..") {
                steps.pop();
                continue;
            }
            let ino = *names.get(&name).ok_or(Errno::NOENT)?;
            match (&self.node(ino)?.body, last) {
                (Body::Link(_), LastLink::Keep) if ahead.is_empty() => steps.push((name, ino)),
                (Body::Link(target), LastLink::Keep | LastLink::Follow) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    if target.is_absolute() {
                        steps.clear();
                    }
                    parts(target).rev().for_each(|part| ahead.push_front(part));
                }
                (Body::File(_) | Body::Dir(_), _) => steps.push((name, ino)),
            }
        }
        Ok(steps)
    }
}

impl Node {
    fn new(body: Body, mtime_ns: i64) -> Self {
        let mode = match body {
            Body::File(_) => FILE_MODE,
            Body::Dir(_) => DIR_MODE,
            Body::Link(_) => 0o777,
        };
        Self { body, mode, mtime_ns, shared: BTreeSet::new(), exclusive: None }
    }

    /// The same with another body, open to nobody.
    fn closed(&self, body: Body) -> Self {
        Self { body, mode: self.mode, mtime_ns: self.mtime_ns, shared: BTreeSet::new(), exclusive: None }
    }

    /// What a power cut may leave of it.
    fn remains(&self, prefixes: Prefixes) -> Vec<(Body, Remains)> {
        let file = |(bytes, remains)| (Body::File(Content::durable(bytes)), remains);
        match &self.body {
            Body::File(content) => content.remains(prefixes).into_iter().map(file).collect(),
            Body::Dir(names) => {
                let names = names.remains().into_iter();
                names.map(|names| (Body::Dir(Names::durable(names)), Remains::Explained)).collect()
            }
            Body::Link(target) => vec![(Body::Link(target.clone()), Remains::Explained)],
        }
    }

    fn kind(&self) -> ItemKind {
        match self.body {
            Body::File(_) => ItemKind::File,
            Body::Dir(_) => ItemKind::Dir,
            Body::Link(_) => ItemKind::Link,
        }
    }

    fn release(&mut self, handle: u64) {
        self.shared.remove(&handle);
        if self.exclusive == Some(handle) {
            self.exclusive = None;
        }
    }
}

fn locked(shared: &Mutex<Tree>) -> MutexGuard<'_, Tree> {
    // A test that panicked in a hook must not hide its message behind a second panic.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::FileStorage;
    use super::*;

    /// What one operation answered, in words that both storages share.
    fn told<T: std::fmt::Debug>(answer: io::Result<T>) -> String {
        match answer {
            Ok(value) => format!("{value:?}"),
            Err(error) => match Refused::of(&error) {
                Some(Refused::Link { target, .. }) => format!("link to {}", target.display()),
                Some(Refused::NotAFile { .. }) => "not a file".to_owned(),
                None => error.to_string(),
            },
        }
    }

    /// Does the same to any storage and writes down all answers.
    fn story(storage: &dyn Storage, root: &Path, link: &dyn Fn(&Path, &str)) -> Vec<String> {
        let at = |name: &str| root.join(name);
        let done = |answer: io::Result<Box<dyn StoredFile>>| told(answer.map(drop));
        let mut told_all = vec![
            told(storage.create_dir(&at("d"))),
            told(storage.create_dir(&at("d"))),
            told(storage.create_dir(&at("x/y"))),
            done(storage.create_new(&at("d/f"))),
            done(storage.create_new(&at("d/f"))),
            done(storage.create_new(&at("x/f"))),
            done(storage.open_read(&at("d/none"))),
            done(storage.open_append(&at("d"))),
            done(storage.open_read(&at("d/f/g"))),
        ];
        link(&at("l"), "d/f");
        link(&at("ld"), "d");
        link(&at("loop"), "loop");
        link(&at("gone"), "nowhere");
        let mut file = storage.open_append(&at("ld/f")).expect("through a link further up");
        let reader = storage.open_read(&at("d/../d/f")).expect("opened");
        let mut buffer = [0; 4];
        told_all.extend([
            done(storage.open_read(&at("l"))),
            done(storage.open_append(&at("gone"))),
            done(storage.open_read(&at("loop/f"))),
            done(storage.create_new(&at("gone"))),
            told(storage.link_target(&at("l"))),
            told(storage.link_target(&at("d"))),
            told(
                storage
                    .resolve(&at("ld/../l"))
                    .map(|path| path == storage.resolve(&at("d/f")).expect("there")),
            ),
            told(storage.resolve(&at("gone"))),
            told(storage.resolve(&at("loop"))),
            told(file.append(b"hello world")),
            told(file.truncate(5)),
            told(file.append(b"!")),
            told(reader.len()),
            told(reader.read_at(3, &mut buffer)),
            format!("{buffer:?}"),
            told(reader.read_at(6, &mut buffer)),
            told(reader.read_at(60, &mut buffer)),
            told(file.truncate(8)),
            told(reader.read_at(5, &mut buffer)),
            format!("{buffer:?}"),
            told(storage.list(root)),
            told(storage.list(&at("d/f"))),
            told(storage.inspect(&at("l")).map(|meta| (meta.kind, meta.len))),
            told(storage.inspect(&at("d/f")).map(|meta| (meta.kind, meta.len, meta.mode, meta.uid))),
            told(storage.inspect(&at("d")).map(|meta| (meta.kind, meta.mode, meta.uid))),
            told(file.try_lock(LockKind::Exclusive)),
            told(reader.try_lock(LockKind::Shared)),
            told(file.try_lock(LockKind::Shared)),
            told(reader.try_lock(LockKind::Shared)),
            told(file.try_lock(LockKind::Exclusive)),
            told(reader.try_lock(LockKind::Exclusive)),
            told(reader.unlock()),
            told(file.try_lock(LockKind::Exclusive)),
            told(file.sync_data()),
            told(file.sync_all()),
            told(storage.sync_dir(&at("ld"))),
            told(storage.sync_dir(&at("d/f"))),
            done(storage.create_new(&at("g"))),
            told(storage.rename(&at("g"), &at("d/f"))),
            told(storage.rename(&at("none"), &at("d/f"))),
            told(
                storage.inspect(&at("d/f")).map(|meta| meta.identity() == file.identity().expect("identity")),
            ),
            told(reader.len()),
            told(storage.remove_file(&at("d"))),
            told(storage.remove_file(&at("gone"))),
            told(storage.remove_file(&at("gone"))),
        ]);
        drop(file);
        told_all.push(told(reader.try_lock(LockKind::Exclusive)));
        told_all
    }

    #[test]
    fn memory_and_disk_tell_the_same_story() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = story(&FileStorage, folder.path(), &|path, target| {
            std::os::unix::fs::symlink(target, path).expect("linked");
        });
        let memory = MemoryStorage::new();
        let in_memory = story(&memory, Path::new("/"), &|path, target| memory.link(path, target));
        assert_eq!(in_memory, disk);
    }

    #[test]
    fn every_operation_is_counted_and_can_fail() {
        let storage = MemoryStorage::new();
        storage.write("/d/f", b"x");
        let operate = |kind: &OpKind| -> io::Result<()> {
            let path = Path::new("/d/f");
            storage.clear_hook();
            let mut file = storage.open_append(path)?;
            let chosen = *kind;
            storage.set_hook(move |op| (op.kind == chosen).then(|| Fault::Error(Errno::IO.into())));
            match kind {
                OpKind::OpenRead => storage.open_read(path).map(drop),
                OpKind::OpenAppend => storage.open_append(path).map(drop),
                OpKind::CreateNew => storage.create_new(Path::new("/d/g")).map(drop),
                OpKind::CreateDir => storage.create_dir(Path::new("/d/h")),
                OpKind::SyncDir => storage.sync_dir(Path::new("/d")),
                OpKind::List => storage.list(Path::new("/d")).map(drop),
                OpKind::Inspect => storage.inspect(path).map(drop),
                OpKind::LinkTarget => storage.link_target(path).map(drop),
                OpKind::Resolve => storage.resolve(path).map(drop),
                OpKind::RemoveFile => storage.remove_file(path),
                OpKind::Rename => storage.rename(path, Path::new("/d/i")),
                OpKind::Len => file.len().map(drop),
                OpKind::ReadAt => file.read_at(0, &mut [0]).map(drop),
                OpKind::Append => file.append(b"y").map(drop),
                OpKind::SyncData => file.sync_data(),
                OpKind::SyncAll => file.sync_all(),
                OpKind::Truncate => file.truncate(0),
                OpKind::Identity => file.identity().map(drop),
                OpKind::TryLock => file.try_lock(LockKind::Exclusive).map(drop),
                OpKind::Unlock => file.unlock(),
            }
        };
        let all = [
            OpKind::OpenRead,
            OpKind::OpenAppend,
            OpKind::CreateNew,
            OpKind::CreateDir,
            OpKind::SyncDir,
            OpKind::List,
            OpKind::Inspect,
            OpKind::LinkTarget,
            OpKind::Resolve,
            OpKind::RemoveFile,
            OpKind::Rename,
            OpKind::Len,
            OpKind::ReadAt,
            OpKind::Append,
            OpKind::SyncData,
            OpKind::SyncAll,
            OpKind::Truncate,
            OpKind::Identity,
            OpKind::TryLock,
            OpKind::Unlock,
        ];
        for kind in all {
            let error = operate(&kind).expect_err("a fault");
            assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{kind:?}");
            assert_eq!(storage.ops().last().map(|op| op.kind), Some(kind));
        }
        // A fault leaves no trace but in the count.
        storage.clear_hook();
        assert_eq!(storage.read("/d/f"), b"x");
        assert_eq!(storage.list(Path::new("/d")).expect("listed").len(), 1);
        let indexes: Vec<_> = storage.ops().iter().map(|op| op.index).collect();
        assert_eq!(indexes, (0..storage.ops().len()).collect::<Vec<_>>());
    }
}
