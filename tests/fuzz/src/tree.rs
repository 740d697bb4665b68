//! Any bytes as a session file: every line is accounted for, every path ends, nothing is written twice.
//!
//! What stands behind a line `#journal` is a journal (see `history.rs`), and its turn has the file as its tree.

use crate::history;
use crate::world::{at, now, policy};
use std::collections::HashSet;
use turnkeep::branch::{self, Extent};
use turnkeep::context;
use turnkeep::draft::Draft;
use turnkeep::json::Raw;
use turnkeep::message::Format;
use turnkeep::record::Kind;
use turnkeep::recovery::{self, CloseCalls, Onto, Request, Surroundings};
use turnkeep::tree::{self, Leaf, Parent, Severity, Tail, Top, Tree};
use turnkeep::turn::{Retain, Session, Turn};

const SEPARATOR: &[u8] = b"#journal\n";

pub fn run(bytes: &[u8]) {
    let (file, journal) = match bytes.windows(SEPARATOR.len()).position(|window| window == SEPARATOR) {
        Some(at) => (&bytes[..at], &bytes[at + SEPARATOR.len()..]),
        None => (bytes, &b""[..]),
    };
    let tree = tree::read(file);
    judge(file, &tree);
    if let Some(draft) = history::drafted(journal, Retain::All) {
        for turn in draft.session.turns.clone() {
            with_turn(file, &tree, &draft, &turn);
        }
    }
}

/// What is demanded of a tree that was read from these bytes.
pub fn judge(file: &[u8], tree: &Tree) {
    shape(file, tree);
    findings(file, tree);
}

/// Every line is the header, an entry or something else, once.
fn shape(file: &[u8], tree: &Tree) {
    assert_eq!(tree.size, file.len() as u64);
    let mut lines: Vec<(usize, u64, u64)> =
        tree.entries.iter().map(|entry| (entry.line, entry.offset, entry.len)).collect();
    lines.extend(tree.others.iter().map(|other| (other.line, other.offset, other.len)));
    lines.extend(tree.header.iter().map(|header| (header.line, header.offset, header.len)));
    lines.sort_unstable();
    let mut at = 0;
    for (index, line) in file.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let len = line.strip_suffix(b"\n").unwrap_or(line).len() as u64;
        assert_eq!(lines.get(index), Some(&(index + 1, at, len)), "line {}", index + 1);
        at += line.len() as u64;
    }
    assert_eq!(lines.len(), file.split_inclusive(|byte| *byte == b'\n').count());
    assert_eq!(tree.needs_newline(), !file.is_empty() && !file.ends_with(b"\n"));
    assert_eq!(tree.tail == Tail::Empty, file.is_empty());
    let mut children = 0;
    for (index, entry) in tree.entries.iter().enumerate() {
        let path = tree.path(index);
        let once: HashSet<_> = path.entries.iter().collect();
        assert!(once.len() == path.entries.len() && path.entries.last() == Some(&index));
        match path.top {
            Top::Unknown { id } => assert!(tree.find(&id).is_none()),
            Top::Cycle { len } => assert!(len > 0 && len <= path.entries.len()),
            Top::Root | Top::Missing => {}
        }
        if let (Parent::Id(id), Some(parent)) = (&entry.parent, tree.parent(index)) {
            assert!(entry.id.is_empty() || tree.entries[parent].id == *id || tree.doubled(id).is_some());
        }
        assert!(tree.children(index).iter().all(|child| tree.parent(*child) == Some(index)));
        children += tree.children(index).len();
        let _shown = (tree.text(index), tree.object(index), tree.role(index));
        if let Some(message) = tree.message(index) {
            assert!(tree.text(index).contains(message));
        }
    }
    assert_eq!(children + tree.roots().len(), tree.entries.len(), "each entry hangs once");
    if let Leaf::Entry(index) = tree.leaf() {
        assert!(index < tree.entries.len());
    }
}

fn findings(file: &[u8], tree: &Tree) {
    let lines = file.iter().filter(|byte| **byte == b'\n').count() + 1;
    let found = tree::check(tree);
    for finding in &found {
        assert!(
            !finding.message.is_empty() && finding.line.is_none_or(|line| line >= 1 && line <= lines),
            "{finding:?}"
        );
        assert!(finding.offset + finding.len <= tree.size, "{finding:?}");
    }
    // What is sound may be written behind, at least where Pi would write next.
    let sound = !found.iter().any(|finding| finding.severity <= Severity::NeedsRecovery);
    for (index, entry) in tree.entries.iter().enumerate() {
        let judged = tree::check_path(tree, Some(&entry.id));
        let refused = matches!(judged, Err(tree::Refusal::Damage(_)));
        assert!(!(sound && refused && tree.leaf() == Leaf::Entry(index)), "{}: {judged:?}", entry.id);
    }
    let _root = tree::check_path(tree, None);
}

fn with_turn(file: &[u8], tree: &Tree, draft: &Draft, turn: &Turn) {
    let session = &draft.session;
    let _behind = recovery::branch_behind(session, turn, &draft.history, tree);
    let _known = branch::ours(&session.id, turn, &draft.history, tree);
    for format in [Format::Pi, Format::Anthropic, Format::OpenaiChat, Format::OpenaiResponses] {
        if let Ok(context) = context::build(turn, &draft.history, Some(tree), format) {
            assert!(context.messages.iter().all(|message| Raw::parse(message.get()).is_ok()));
        }
    }
    if recovery::check_tree(turn, tree).is_ok() {
        branch_twice(file, tree, session, draft, turn);
        recover_twice(file, tree, draft, turn);
    }
}

/// What was written is found again.
fn branch_twice(file: &[u8], tree: &Tree, session: &Session, draft: &Draft, turn: &Turn) {
    let Ok(plan) = branch::plan(&session.id, turn, &draft.history, tree, Extent::Recover) else { return };
    let after = tree::read(appended(file, tree, &plan.write));
    let again = branch::plan(&session.id, turn, &draft.history, &after, Extent::Recover);
    let again = again.expect("what was written is ours");
    assert!(again.write.is_empty(), "written twice: {:?}", again.write);
    assert_eq!((again.entries, &again.leaf), (plan.entries, &plan.leaf));
}

fn appended(file: &[u8], tree: &Tree, lines: &[Raw]) -> Vec<u8> {
    let mut bytes = file.to_vec();
    bytes.extend(tree.needs_newline().then_some(b'\n'));
    for line in lines {
        bytes.extend(line.get().bytes());
        bytes.push(b'\n');
    }
    bytes
}

/// A recovery that is asked for again after all of it was written writes neither a record nor an entry.
fn recover_twice(file: &[u8], tree: &Tree, draft: &Draft, turn: &Turn) {
    let policy = policy();
    let request = Request {
        owner: None,
        lease_ms: None,
        force: Some("fuzz".to_owned()),
        calls: CloseCalls::No,
        onto: Onto::Admission,
        unpark: None,
        tree_path: None,
    };
    let plan = |draft: Draft, tree: &Tree| {
        let around = Surroundings {
            now: now(&policy),
            tree: turn.tree.as_ref().map(|_| tree),
            output_so_far: &|_| None,
        };
        recovery::plan(draft, &turn.id, &request, &around)
    };
    let begin = |session: &Session, end: u64| {
        Draft::new(session.clone(), draft.history.clone(), at(), end, turnkeep::chain::LINE_BYTES_MAX)
    };
    if turn.is_closed() {
        return;
    }
    let Ok(first) = plan(begin(&draft.session, draft.end()), tree) else { return };
    let write: Vec<Raw> = first
        .header
        .iter()
        .cloned()
        .chain(first.branch.iter().flat_map(|branch| branch.write.clone()))
        .collect();
    let after = tree::read(appended(file, tree, &write));
    // The journal that comes of it is sound.
    let journal = [draft.bytes.as_slice(), &first.draft.bytes].concat();
    assert!(history::drafted(&journal, Retain::All).is_some());
    assert_eq!(crate::world::verify(&journal, &[]).verdict(), "sound", "behind a recovery");
    let turn = first.draft.session.turn(&turn.id).expect("it is still there").clone();
    if first.branch.is_some() && recovery::owns_tree(&first.draft.session, &turn) {
        let decided =
            first.draft.history.iter().last().map(|(_, record)| matches!(record.kind, Kind::Recovered(_)));
        let behind = recovery::branch_behind(&first.draft.session, &turn, &first.draft.history, &after);
        assert!(behind != Ok(true) || decided != Some(true), "the branch is behind right after a recovery");
    }
}
