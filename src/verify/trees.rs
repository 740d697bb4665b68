//! What a journal and its session tree say about each other.
//!
//! A tree is judged together with a journal that did not grow meanwhile. Only the newest turn that was admitted on
//! a file owns it and may be behind; of older ones what was recovered must still be there, as the journal has it.

use super::{Code, Finding, Report, Severity, Trees};
use crate::branch::{self, Extent, Plan, Trouble};
use crate::draft::History;
use crate::journal::load::{self, Reach};
use crate::journal::{Loaded, Setting};
use crate::json::Raw;
use crate::lock;
use crate::record::Kind;
use crate::recovery;
use crate::storage::{Storage, StoredFile};
use crate::tree::finding::list;
use crate::tree::{self, Parent, Tail, Tree};
use crate::treefile;
use crate::turn::{Retain, Session, Turn};
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is to be said about a session file as such.
pub(super) fn file(path: &Path, tree: &Tree, report: &mut Report) {
    report.records = tree.entries.len() as u64;
    report.bytes = tree.size;
    report.session = tree.header.as_ref().and_then(|header| header.id.clone());
    for found in tree::check(tree) {
        report.add(finding(path, found));
    }
}

/// Checks the session trees of a journal.
pub(super) fn check(setting: Setting<'_>, journal: &dyn StoredFile, which: Trees<'_>, report: &mut Report) {
    if report.worst() > Severity::NeedsRecovery {
        let message = "the session tree was not compared with the journal, which does not check itself";
        report.add(Finding::new(Code::TreeUnchecked, &report.path, message));
        return;
    }
    match steady(setting, journal, which, report) {
        Ok(findings) => report.findings.extend(findings),
        Err(error) => report.could_not("read", &report.path.clone(), &error),
    }
}

/// A journal goes first, its tree behind it: compared where nobody is between the two.
fn steady(
    setting: Setting<'_>,
    journal: &dyn StoredFile,
    which: Trees<'_>,
    report: &Report,
) -> io::Result<Vec<Finding>> {
    let started = setting.clock.now();
    loop {
        let before = journal.len()?;
        let loaded = load::load(journal, Reach::All(Retain::All))?;
        let findings = compare(setting.storage, &loaded, which, report);
        let waited = setting.clock.now().saturating_sub(started) > setting.wait;
        let sound = findings.iter().all(|finding| finding.severity < Severity::NeedsRecovery);
        let calm = || lock::try_shared_once(journal).unwrap_or(true);
        if waited || (journal.len()? == before && (sound || calm())) {
            return Ok(findings);
        }
        setting.clock.sleep(Duration::from_millis(1));
    }
}

fn compare(storage: &dyn Storage, loaded: &Loaded, which: Trees<'_>, report: &Report) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(session) = &loaded.session else {
        // The genesis is still to be written: the file at hand may know better.
        if let Trees::At(path) = which {
            let known = Known { session: session_of_name(&report.path), ..Known::default() };
            match treefile::load(storage, path) {
                Ok(tree) => known.check(path, &tree, &mut findings),
                Err(error) => findings.push(unreadable(path, &error)),
            }
        }
        return findings;
    };
    let known = Known::of(session, &loaded.history);
    let owners = owners(session, which);
    if let (true, Trees::At(path)) = (owners.is_empty(), which) {
        // No turn has a tree, at least none that is left.
        match treefile::load(storage, path) {
            Ok(tree) => known.check(path, &tree, &mut findings),
            Err(error) => findings.push(unreadable(path, &error)),
        }
    }
    for (path, owner) in owners {
        let tree = match treefile::load(storage, &path) {
            Ok(tree) => Some(tree),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                findings.push(unreadable(&path, &error));
                continue;
            }
        };
        let mut pair =
            Pair { path: &path, session, turn: owner, history: &loaded.history, findings: &mut findings };
        match tree.filter(|tree| tree.tail != Tail::Empty) {
            Some(tree) => {
                pair.file(&tree);
                known.check(&path, &tree, pair.findings);
                pair.branch(&tree);
                for turn in earlier(session, &loaded.history, owner, &tree) {
                    pair.turn = turn;
                    pair.earlier(&tree);
                }
            }
            None => pair.missing(),
        }
    }
    findings
}

/// Which file is whose: the newest turn that was admitted on it owns it.
fn owners<'s>(session: &'s Session, which: Trees<'_>) -> BTreeMap<PathBuf, &'s Turn> {
    let of_trees = session.turns.iter().filter(|turn| recovery::owns_tree(session, turn));
    let path = |turn: &Turn| turn.tree.as_ref().map(|tree| PathBuf::from(&tree.path)).unwrap_or_default();
    match which {
        Trees::No => BTreeMap::new(),
        Trees::Recorded => of_trees.map(|turn| (path(turn), turn)).collect(),
        Trees::At(moved) => of_trees.rev().take(1).map(|turn| (moved.to_owned(), turn)).collect(),
    }
}

/// The turns that were admitted on the same file before its owner, and that were on what stands there now.
fn earlier<'s>(session: &'s Session, history: &History, owner: &Turn, tree: &Tree) -> Vec<&'s Turn> {
    let of_owner = owner.tree.as_ref().map(|tree| &tree.path);
    let is_on_it = |turn: &&Turn| {
        let Some(admitted) = turn.tree.as_ref().filter(|_| turn.tree_passed_on) else { return false };
        // A file that was not there yet had no header to tell it by.
        let had_header = admitted.header_id.is_some();
        Some(&admitted.path) == of_owner
            && recovery::check_header(turn, tree).is_ok()
            && (had_header || !branch::ours(&session.id, turn, history, tree).is_empty())
    };
    session.turns.iter().filter(is_on_it).collect()
}

fn session_of_name(path: &Path) -> Option<String> {
    crate::paths::session_id(path.file_stem()?.to_str()?)
}

fn unreadable(path: &Path, error: &io::Error) -> Finding {
    Finding::new(Code::Unreadable, path, format!("could not read the session file: {error}"))
}

/// A turn and the file that it owns.
struct Pair<'a> {
    path: &'a Path,
    session: &'a Session,
    turn: &'a Turn,
    history: &'a History,
    findings: &'a mut Vec<Finding>,
}

impl Pair<'_> {
    fn add(&mut self, code: Code, message: impl std::fmt::Display) -> &mut Finding {
        let mut finding = Finding::new(code, self.path, message);
        finding.turns = vec![self.turn.id.clone()];
        self.findings.push(finding);
        #[expect(clippy::expect_used, reason = "it was pushed in the line before")]
        self.findings.last_mut().expect("a finding")
    }

    /// There is no file, or not one byte in it.
    fn missing(&mut self) {
        let Some(admitted) = &self.turn.tree else { return };
        let committed = self.turn.facts.len();
        if admitted.bytes > 0 || self.recovered_branch().is_some() {
            self.add(
                Code::TreeMissing,
                format!("the session file is gone or empty; {committed} committed steps of turn {} are safe in the journal", self.turn.id),
            );
        } else {
            // It was never there before: a crash between journal and tree explains that.
            self.behind(&tree::read(Vec::new()));
        }
    }

    /// The file itself, and whether it is the one of the admission.
    fn file(&mut self, tree: &Tree) {
        let recorded = self.turn.tree.as_ref().and_then(|admitted| admitted.header_id.as_ref());
        let since = self.turn.tree.as_ref().map_or(0, |admitted| admitted.bytes);
        for mut found in tree::check(tree).into_iter().map(|found| finding(self.path, found)) {
            // The turn was admitted on it as it was; what matters to its path is looked at below.
            let of_old = found.offset.is_some_and(|offset| offset < since);
            let as_it_was = match found.code {
                Code::TreeResultElsewhere
                | Code::TreeResultOrphan
                | Code::TreeResultDoubled
                | Code::TreeTooDeep => of_old,
                // A copy says what the agent's own entry says.
                Code::TreeCompactionTarget | Code::TreeCompactionCut => {
                    of_old || self.is_ours(tree, found.line)
                }
                _ => false,
            };
            if as_it_was {
                found.severity = Severity::Warning;
            }
            if let (Code::TreeHeaderMissing | Code::TreeHeaderInvalid, Some(id)) = (found.code, recorded) {
                found.message.push_str(&format!("; the journal recorded the session id {id:?}"));
            }
            self.findings.push(found);
        }
        let Some(admitted) = &self.turn.tree else { return };
        if let Err(other @ recovery::Refusal::OtherTree { .. }) = recovery::check_header(self.turn, tree) {
            self.add(Code::TreeOther, other);
        }
        if let Err(tree::Refusal::Damage(path)) = tree::check_path(tree, admitted.leaf.as_deref()) {
            self.damage(path);
        }
    }

    fn is_ours(&self, tree: &Tree, line: Option<u64>) -> bool {
        let entry = tree.entries.iter().find(|entry| Some(entry.line as u64) == line);
        let ours = || branch::ours(&self.session.id, self.turn, self.history, tree);
        entry.is_some_and(|entry| ours().contains(&*entry.id))
    }

    /// Damage on the path that is written behind, which may be told already as that of the file.
    fn damage(&mut self, path: Vec<tree::Finding>) {
        for found in path.into_iter().map(|found| finding(self.path, found)) {
            let told =
                self.findings.iter_mut().find(|known| known.code == found.code && known.line == found.line);
            match told {
                Some(known) => known.severity = known.severity.max(found.severity),
                None => self.findings.push(found),
            }
        }
    }

    /// Whether the branch says what the journal says.
    fn branch(&mut self, tree: &Tree) {
        if self.stands(tree).is_some() {
            self.behind(tree);
        }
    }

    /// The same of a turn that a later one was admitted behind. What turnkeep wrote step by step and is gone from the
    /// end cannot be told from what came late and was never written.
    fn earlier(&mut self, tree: &Tree) {
        let Some(plan) = self.stands(tree).filter(|_| branch::steps_write(self.turn)) else { return };
        let lacking: Vec<String> = plan.write.iter().filter_map(entry_id).collect();
        if !lacking.is_empty() {
            let message = format!(
                "the branch of turn {} lacks {}, and a later turn was admitted behind it: they were lost from its end, or came too late to be written",
                self.turn.id,
                list(lacking.into_iter())
            );
            self.add(Code::BranchEntryMissing, message).severity = Severity::Warning;
        }
    }

    /// Whether what is on the branch is what the journal says, and what was recovered is still there.
    fn stands(&mut self, tree: &Tree) -> Option<Plan> {
        let there = match branch::plan(&self.session.id, self.turn, self.history, tree, Extent::Steps) {
            Ok(plan) => plan,
            Err(trouble) => {
                self.trouble(trouble);
                return None;
            }
        };
        if !there.lost.is_empty() {
            let message = format!(
                "entries were lost in the middle of the branch, and what stands behind them still names them: {}",
                list(there.lost.iter().cloned())
            );
            self.add(Code::BranchEntryMissing, message);
            return None;
        }
        let count = there.entries - there.write.len() as u64;
        let recovered = self.recovered_branch();
        let lost = recovered
            .filter(|branch| tree.find(&branch.leaf).is_none() || count < branch.entries)
            .map(|branch| (branch.leaf.clone(), branch.entries));
        if let Some((leaf, entries)) = lost {
            let message = format!(
                "the branch that ended in entry {leaf} had {entries} entries when it was recovered, and some are gone"
            );
            self.add(Code::BranchEntryMissing, message);
            return None;
        }
        Some(there)
    }

    fn trouble(&mut self, trouble: Trouble) {
        match &trouble {
            Trouble::Content { line, .. } => {
                self.add(Code::BranchContent, &trouble).line = Some(*line as u64);
            }
            // That the entry is gone on which the turn was admitted explains it.
            Trouble::Lost { .. } if self.findings.iter().any(|told| told.code == Code::TreeLeafMissing) => {}
            Trouble::Place { line, .. } | Trouble::Lost { line, .. } => {
                self.add(Code::BranchPlace, &trouble).line = Some(*line as u64);
            }
            // Every marker, and every entry that nobody explains, is looked at by itself.
            Trouble::Marker { .. } | Trouble::Unexplained { .. } => {}
            Trouble::Damage(_) => {
                if let Trouble::Damage(tree::Refusal::Damage(path)) = trouble {
                    self.damage(path);
                }
            }
        }
    }

    fn behind(&mut self, tree: &Tree) {
        match recovery::branch_behind(self.session, self.turn, self.history, tree) {
            Ok(false) => {}
            Ok(true) => {
                let lacking = self.lacking(tree);
                self.add(Code::BranchBehind, format!("the session file is behind the journal{lacking}"));
            }
            Err(trouble) => self.trouble(trouble),
        }
    }

    /// Which entries `recover` would write.
    fn lacking(&self, tree: &Tree) -> String {
        let planned = branch::plan(&self.session.id, self.turn, self.history, tree, Extent::Recover);
        let ids: Vec<String> = planned.iter().flat_map(|plan| &plan.write).filter_map(entry_id).collect();
        match ids.len() {
            0 => ": another writer's line is its last one".to_owned(),
            _ => format!("; it lacks {}", list(ids.into_iter())),
        }
    }

    fn recovered_branch(&self) -> Option<&crate::record::Branch> {
        self.turn.attempts.iter().rev().find_map(|attempt| {
            let (mark, _) = attempt.recovered.as_ref()?;
            match &self.history.get(mark.seq)?.kind {
                Kind::Recovered(recovered) => recovered.branch.as_ref(),
                _ => None,
            }
        })
    }
}

/// What the journal knows of entries that it, or the agent under it, wrote.
#[derive(Default)]
struct Known<'a> {
    session: Option<String>,
    history: Option<&'a History>,
    turns: HashSet<&'a str>,
    /// Ids of ours that a record explains.
    ids: HashSet<String>,
    /// The agent's own ids that are journaled.
    agent_ids: HashSet<String>,
    /// The entries that turns were admitted on.
    leaves: HashSet<&'a str>,
}

impl<'a> Known<'a> {
    fn of(session: &'a Session, history: &'a History) -> Self {
        let mut known = Self { session: Some(session.id.clone()), history: Some(history), ..Self::default() };
        for turn in &session.turns {
            known.turns.insert(turn.id.as_str());
            known.leaves.extend(turn.tree.iter().filter_map(|tree| tree.leaf.as_deref()));
        }
        for (_, record) in history.iter() {
            let Some(turn) = record.kind.turn() else { continue };
            known.ids.insert(tree::entry_id(turn.as_str(), record.hash.as_str(), "entry"));
            // A record that is lost, in front of this one, is known by its hash still.
            known.ids.insert(tree::entry_id(turn.as_str(), record.prev.as_str(), "entry"));
            if let Kind::Entry(entry) = &record.kind {
                known.agent_ids.extend(entry.entry.view().object().and_then(|object| object.string("id")));
            }
        }
        known
    }

    /// The tree holds nothing of ours that the journal lacks: a journal cut on a line boundary is seen here.
    fn check(&self, path: &Path, tree: &Tree, findings: &mut Vec<Finding>) {
        let mut ours: HashSet<&str> = HashSet::new();
        for (index, entry) in tree.entries.iter().enumerate() {
            let marker = if &*entry.kind == "custom" { tree::marker(tree.text(index)) } else { None };
            if let Some(marker) = marker {
                if Some(&marker.session) != self.session.as_ref() {
                    if self.is_ours(entry, &marker) {
                        let message = format!(
                            "marker {} of turn {} says session {:?}, and its id is one of this journal",
                            entry.id, marker.turn, marker.session
                        );
                        findings.push(at(Code::BranchContent, path, entry, message));
                    }
                    continue;
                }
                ours.insert(&entry.id);
                if !self.carries(&marker) {
                    let message = format!(
                        "marker {} carries record {} of turn {}, which the journal lacks",
                        entry.id, marker.head, marker.turn
                    );
                    findings.push(at(Code::BranchMarker, path, entry, message));
                }
                continue;
            }
            if self.ids.contains(&*entry.id) {
                ours.insert(&entry.id);
                continue;
            }
            let hangs = match &entry.parent {
                Parent::Id(parent) => ours.contains(&**parent) || self.leaves.contains(&**parent),
                Parent::Root | Parent::Missing => false,
            };
            if hangs && tree::looks_like_ours(&entry.id) && !self.agent_ids.contains(&*entry.id) {
                ours.insert(&entry.id);
                let message = format!(
                    "entry {} hangs on a branch of this journal under an id as turnkeep gives them, and no record explains it",
                    entry.id
                );
                findings.push(at(Code::EntryUnknown, path, entry, message));
            }
        }
    }

    /// Whether the journal has the record that a marker names, of the turn that it names.
    fn carries(&self, marker: &tree::Marker) -> bool {
        let record = marker.head.split_once(':').and_then(|(seq, hash)| {
            self.history?.get(seq.parse().ok()?).filter(|record| record.hash.as_str() == hash)
        });
        let turn = record.and_then(|record| record.kind.turn());
        turn.is_some_and(|turn| turn.as_str() == marker.turn && self.turns.contains(turn.as_str()))
    }

    /// Whether the id of a marker is the one that this journal gives it, whatever session it says.
    fn is_ours(&self, entry: &tree::EntryLine, marker: &tree::Marker) -> bool {
        let (Parent::Id(parent), Some((_, hash))) = (&entry.parent, marker.head.split_once(':')) else {
            return false;
        };
        self.carries(marker) && tree::entry_id(&marker.turn, hash, parent) == *entry.id
    }
}

fn entry_id(entry: &Raw) -> Option<String> {
    entry.view().object()?.string("id")
}

fn at(code: Code, path: &Path, entry: &tree::EntryLine, message: String) -> Finding {
    Finding::new(code, path, message).at(entry.line as u64, entry.offset, entry.len)
}

fn finding(path: &Path, found: tree::Finding) -> Finding {
    let mut finding = Finding::new(Code::of_tree(found.code), path, found.message);
    finding.severity = match found.severity {
        tree::Severity::Damage => Severity::Damage,
        tree::Severity::NeedsRecovery => Severity::NeedsRecovery,
        tree::Severity::Warning => Severity::Warning,
        tree::Severity::Note => Severity::Note,
    };
    finding.line = found.line.map(|line| line as u64);
    (finding.offset, finding.bytes) = (Some(found.offset), Some(found.len));
    finding
}
