//! What Pi would send of a branch, and what a strict provider refuses in it.
//!
//! Pi sends what the newest compaction leaves, edits applied, without messages that ended in error or abort. A call
//! without a result before the next message gets one that is made up. Results are sent as they stand, so one that
//! does not answer a call of the message right before it is sent too, and refused. Linear in the branch.

use super::finding::{Finding, Severity, at_entry, list, name};
use super::said::{Said, call_ids, said};
use super::shape::set;
use super::{EntryLine, Tree, Writable};
use crate::json::{Object, View};
use std::collections::{HashMap, HashSet};

const ORPHAN: &str = "tree-result-orphan";
const DOUBLED: &str = "tree-result-doubled";
const CUT: &str = "tree-compaction-cut";
const UNANSWERED: &str = "tree-call-unanswered";

/// What makes strict providers refuse the request that Pi would build from `leaf` on, and where to go on instead.
pub fn refused(tree: &Tree, leaf: Option<&str>) -> Option<String> {
    let leaf = leaf?;
    let path = tree.path(tree.find(leaf)?).entries;
    let mut says: Vec<Option<Said>> = Vec::new();
    says.resize_with(tree.entries.len(), || None);
    for index in &path {
        set(&mut says, *index, said(tree, *index));
    }
    let (mut way, first, more) = first_refused(tree, &path, &says)?;
    // What a compaction hid is sent again above it; so this ends after as many rounds as there are compactions.
    while let Some((above, ..)) = first_refused(tree, path.get(..way)?, &says) {
        way = above;
    }
    let way = way.checked_sub(1).and_then(|above| tree.entries.get(*path.get(above)?));
    let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
    Some(format!(
        "a strict provider refuses what Pi would send from entry {leaf}: on line {}, {}{more}; go back before it, with \
         /tree in Pi or `--leaf {}` at the next admit; `turnkeep inspect SESSION --context` leaves such results out",
        first.line?,
        first.message,
        way.map_or("root", name)
    ))
}

/// The place on a path of the first entry for which its request is refused, why, and how many more there are.
fn first_refused(tree: &Tree, path: &[usize], said: &[Option<Said>]) -> Option<(usize, Finding, usize)> {
    let mut found = Vec::new();
    sent(tree, path, said, &mut found);
    // Pi mends the rest.
    found.retain(|finding| finding.code != UNANSWERED);
    let mut by_line: HashMap<Option<usize>, Finding> =
        found.into_iter().map(|finding| (finding.line, finding)).collect();
    let line = |index: &usize| tree.entries.get(*index).map(|entry| entry.line);
    let place = path.iter().position(|index| by_line.contains_key(&line(index)))?;
    let first = by_line.remove(&line(path.get(place)?))?;
    Some((place, first, by_line.len()))
}

/// Calls and results on a path from a root down, as Pi would send them. `said` has what each of its entries says.
pub(super) fn sent(tree: &Tree, path: &[usize], said: &[Option<Said>], found: &mut Vec<Finding>) {
    let compaction = path.iter().rposition(|index| is(tree, *index, "compaction"));
    let first = compaction.map_or(0, |place| first_kept(tree, path, place));
    let edited = edited(tree, path.get(first..).unwrap_or_default());
    let branch = Branch::of(tree, path, compaction, first, said, &edited);
    let mut request = Request {
        branch: &branch,
        calls: HashMap::new(),
        behind: HashMap::new(),
        model: None,
        cut: Vec::new(),
        found,
    };
    for (place, said) in branch.said.iter().enumerate().skip(branch.first) {
        match said {
            Some(Said::Model { calls, sent }) => request.asks(place, calls, *sent),
            Some(Said::Result(id)) => request.answers(place, id),
            Some(Said::User) => request.goes_on(place),
            None => {}
        }
    }
    request.without_calls();
    request.without_results();
}

/// What is said along a path, and which model messages ask for which call. A place is a position on the path.
struct Branch<'a> {
    tree: &'a Tree,
    path: &'a [usize],
    /// The newest compaction.
    compaction: Option<usize>,
    /// The first place of which anything is sent.
    first: usize,
    /// What is sent of each place from there on.
    said: Vec<Option<&'a Said>>,
    /// Who asks for an id, sent or not.
    asking: HashMap<&'a str, Vec<usize>>,
}

impl<'a> Branch<'a> {
    fn of(
        tree: &'a Tree,
        path: &'a [usize],
        compaction: Option<usize>,
        first: usize,
        said: &'a [Option<Said>],
        edited: &'a HashMap<usize, Option<Said>>,
    ) -> Self {
        let before = |index: &usize| said.get(*index).and_then(Option::as_ref);
        let mut asking: HashMap<&str, Vec<usize>> = HashMap::new();
        for (place, said) in path.iter().map(before).enumerate() {
            if let Some(Said::Model { calls, .. }) = said {
                for id in calls {
                    asking.entry(id).or_default().push(place);
                }
            }
        }
        let after = |index: &usize| edited.get(index).map_or_else(|| before(index), Option::as_ref);
        let said = path.iter().map(after).collect();
        Self { tree, path, compaction, first, said, asking }
    }

    fn entry(&self, place: usize) -> Option<&'a EntryLine> {
        self.tree.entries.get(*self.path.get(place)?)
    }

    fn name(&self, place: usize) -> &'a str {
        self.entry(place).map_or("nothing", name)
    }

    fn spot(&self, place: usize) -> String {
        format!("entry {}", self.name(place))
    }
}

/// The first place that a compaction keeps.
fn first_kept(tree: &Tree, path: &[usize], compaction: usize) -> usize {
    let index = path.get(compaction).copied().unwrap_or_default();
    let Some(kept) = tree.object(index).string("firstKeptEntryId") else {
        // Version 1 counts lines instead: it is taken as if nothing was cut off.
        return if tree.writable() == (Writable::Older { version: 1 }) { 0 } else { compaction + 1 };
    };
    let is_kept = |index: &usize| tree.entries.get(*index).is_some_and(|entry| *entry.id == *kept);
    path.iter().take(compaction).position(is_kept).unwrap_or(compaction + 1)
}

/// What entries say instead by the newest edits among those that are sent: nothing, or other content.
fn edited(tree: &Tree, sent: &[usize]) -> HashMap<usize, Option<Said>> {
    let mut edited = HashMap::new();
    for object in
        sent.iter().filter(|index| is(tree, **index, "context_edit")).map(|index| tree.object(*index))
    {
        let target = object.string("targetId").and_then(|target| tree.find(&target));
        let (Some(target), Some(with)) = (target, object.view("replacement")) else { continue };
        let said = match (said(tree, target), with) {
            (_, View::Null) => None,
            (Some(Said::Model { sent, .. }), with) => {
                let calls = call_ids(&with.object().unwrap_or(Object(Vec::new())));
                Some(Said::Model { calls, sent })
            }
            (said, _) => said,
        };
        edited.insert(target, said);
    }
    edited
}

fn is(tree: &Tree, index: usize, kind: &str) -> bool {
    tree.entries.get(index).is_some_and(|entry| &*entry.kind == kind)
}

/// What became of the calls of one message that have the same id.
#[derive(Default)]
struct Call {
    /// How many there are: each may have a result.
    asked: usize,
    results: usize,
    first_result: Option<usize>,
}

/// The messages of a request, as they come.
struct Request<'b, 'f> {
    branch: &'b Branch<'b>,
    /// By the place of the message that asks, and the id.
    calls: HashMap<(usize, &'b str), Call>,
    /// What was said behind a message that is no result, by its place.
    behind: HashMap<usize, usize>,
    /// The newest message of the model that is sent.
    model: Option<usize>,
    /// Results whose calls the compaction leaves out, with the place of the message that asks.
    cut: Vec<(usize, usize)>,
    found: &'f mut Vec<Finding>,
}

impl<'b> Request<'b, '_> {
    fn asks(&mut self, place: usize, calls: &'b [String], sent: bool) {
        self.goes_on(place);
        if sent {
            self.model = Some(place);
            for id in calls {
                self.calls.entry((place, id)).or_default().asked += 1;
            }
        }
    }

    /// Something other than a result is said: Pi makes up the results that lack.
    fn goes_on(&mut self, place: usize) {
        if let Some(model) = self.model {
            self.behind.entry(model).or_insert(place);
        }
    }

    fn answers(&mut self, place: usize, id: &'b str) {
        let branch = self.branch;
        let asking = branch.asking.get(id).map_or(&[][..], Vec::as_slice);
        let above = asking.partition_point(|asking| *asking < place);
        let nearest = above.checked_sub(1).and_then(|nearest| asking.get(nearest)).copied();
        let Some(asking) = nearest else {
            return match asking.first() {
                Some(below) => self.orphan(
                    place,
                    id,
                    &format!("its call comes only behind it, in {}", branch.name(*below)),
                ),
                None => self.orphan(place, id, "no message of its branch asks for that call"),
            };
        };
        let Some(call) = self.calls.get_mut(&(asking, id)) else { return self.left_out(place, id, asking) };
        let first = *call.first_result.get_or_insert(place);
        call.results += 1;
        if call.results > call.asked {
            return self.doubled(place, id, asking, first);
        }
        match self.behind.get(&asking).copied() {
            None => {}
            Some(user)
                if self.model == Some(asking) && matches!(branch.said.get(user), Some(Some(Said::User))) =>
            {
                self.behind_user(id, asking, user);
            }
            Some(between) => {
                let why = format!(
                    "its call is of {}, and {} stands between the two",
                    branch.name(asking),
                    branch.name(between)
                );
                self.orphan(place, id, &why);
            }
        }
    }

    /// A result of a call that is on the branch and is not sent.
    fn left_out(&mut self, place: usize, id: &str, asking: usize) {
        let name = self.branch.name(asking);
        if matches!(self.branch.said.get(asking), Some(Some(Said::Model { sent: false, .. }))) {
            self.orphan(
                place,
                id,
                &format!("its call is of {name}, which ended in error or abort and is left out"),
            );
        } else if asking < self.branch.first {
            self.cut.push((place, asking));
        } else {
            self.orphan(place, id, &format!("a context edit took its call out of {name}"));
        }
    }

    fn add(&mut self, place: usize, code: &'static str, severity: Severity, message: String) {
        self.found.extend(self.branch.entry(place).map(|entry| at_entry(entry, code, severity, message)));
    }

    fn orphan(&mut self, place: usize, id: &str, why: &str) {
        let message = format!("{} is a result without its call {id}: {why}", self.branch.spot(place));
        self.add(place, ORPHAN, Severity::Damage, message);
    }

    fn doubled(&mut self, place: usize, id: &str, asking: usize, first: usize) {
        let (branch, asking, first) = (self.branch, self.branch.name(asking), self.branch.name(first));
        let message = format!(
            "{} is one more result of call {id} of {asking}, which {first} answers",
            branch.spot(place)
        );
        self.add(place, DOUBLED, Severity::Damage, message);
    }

    fn behind_user(&mut self, id: &str, asking: usize, user: usize) {
        let message = format!(
            "user message {} stands between call {id} of {} and its result; the result is there, some providers refuse this order",
            self.branch.name(user),
            self.branch.name(asking)
        );
        self.add(user, "tree-user-between", Severity::Note, message);
    }

    /// Results that are sent while the compaction leaves their calls out.
    fn without_calls(&mut self) {
        let (branch, cut) = (self.branch, std::mem::take(&mut self.cut));
        let Some(compaction) = branch.compaction.filter(|_| !cut.is_empty()) else { return };
        let results = cut
            .iter()
            .map(|(place, asking)| format!("{} (called by {})", branch.name(*place), branch.name(*asking)));
        let message = format!(
            "{} is a compaction that cuts off the calls of results that it keeps: {}",
            branch.spot(compaction),
            list(results)
        );
        self.add(compaction, CUT, Severity::Damage, message);
    }

    /// Calls that the branch went on without.
    fn without_results(&mut self) {
        let branch = self.branch;
        let told: HashSet<Option<usize>> = self
            .found
            .iter()
            .filter(|found| found.code == "tree-result-elsewhere")
            .map(|found| found.line)
            .collect();
        for (place, said) in branch.said.iter().enumerate().skip(branch.first) {
            let (Some(Said::Model { calls, .. }), Some(behind)) = (said, self.behind.get(&place).copied())
            else {
                continue;
            };
            let lacks =
                |id: &&String| self.calls.get(&(place, id.as_str())).is_some_and(|call| call.results == 0);
            let lacking: Vec<&String> = calls.iter().filter(lacks).collect();
            if lacking.is_empty() || told.contains(&branch.entry(place).map(|entry| entry.line)) {
                continue;
            }
            let message = format!(
                "{} asks for calls that have no result, and its branch goes on with {}; Pi puts `No result provided` in their place: {}",
                branch.spot(place),
                branch.name(behind),
                list(lacking.into_iter().cloned())
            );
            self.add(place, UNANSWERED, Severity::Note, message);
        }
    }
}
