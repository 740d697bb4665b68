//! The session tree: of a turn (`--draw-tree`) with the admission leaf, our branch and the active leaf marked, or of
//! any session file.
//!
//! A chain goes straight down; only where it forks do the branches step to the right.

use super::super::context::Context;
use super::super::desk;
use super::super::error::{Exit, Failure};
use super::super::output::{brief, escaped};
use super::Seen;
use crate::branch;
use crate::message;
use crate::tree::{self, Finding, Leaf, Severity, Tail, Tree};
use crate::treefile;
use crate::turn::Turn;
use serde::Serialize;
use std::collections::HashSet;
use std::path::Path;

/// `turnkeep.tree/1`
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    session: Option<&'a str>,
    turn: Option<&'a str>,
    path: &'a str,
    admission_leaf: Option<&'a str>,
    active_leaf: Option<&'a str>,
    branch: Vec<&'a str>,
    entries: Vec<Entry<'a>>,
    findings: Vec<Told>,
}

/// Something that is wrong with the file.
#[derive(Serialize)]
struct Told {
    code: &'static str,
    line: Option<usize>,
    message: String,
}

#[derive(Serialize)]
struct Entry<'a> {
    id: &'a str,
    parent: Option<&'a str>,
    kind: &'a str,
    role: Option<String>,
    line: usize,
}

/// What is marked.
struct Marks<'a> {
    admission: Option<&'a str>,
    active: Option<usize>,
    ours: HashSet<String>,
}

/// Draws that of a turn.
pub(super) fn run(context: &Context, seen: &Seen, turn: &Turn) -> Result<Exit, Failure> {
    let Some(path) = desk::tree_path(turn, None) else {
        let message = format!("turn {} has no session tree", turn.id);
        return Err(Failure::of(Exit::NotFound, "no_tree", message)
            .hint("a turn has one where it was admitted with --tree; `turnkeep inspect` shows its calls"));
    };
    let tree = treefile::read(context.storage.as_ref(), &path)?;
    let admitted = turn.tree.as_ref();
    if tree.tail == Tail::Empty && admitted.is_some_and(|admitted| admitted.bytes > 0) {
        let message = format!("the session file {} is gone or empty", path.display());
        return Err(Failure::of(Exit::NotFound, "tree_missing", message).hint(
            "put the file back, or let `turnkeep recover SESSION --tree-file FILE` go on with its new place",
        ));
    }
    let marks = Marks {
        admission: admitted.and_then(|admitted| admitted.leaf.as_deref()),
        active: active(&tree),
        ours: branch::ours(&seen.id, turn, &seen.history, &tree),
    };
    // Remarks on what changes nothing for the turn are left out.
    let worth_telling = |finding: &Finding| finding.severity != Severity::Note;
    show(context, &path, &tree, &marks, Some((seen, turn)), &worth_telling)
}

/// Draws any session file.
pub(super) fn file(context: &Context, path: &Path) -> Result<Exit, Failure> {
    let tree = treefile::read(context.storage.as_ref(), path)?;
    let marks = Marks { admission: None, active: active(&tree), ours: HashSet::new() };
    show(context, path, &tree, &marks, None, &|_| true)
}

fn active(tree: &Tree) -> Option<usize> {
    match tree.leaf() {
        Leaf::Entry(index) => Some(index),
        Leaf::None | Leaf::Undefined { .. } => None,
    }
}

/// Shows it, with what is wrong with the file behind it; a damaged file is drawn as far as it can be read.
fn show(
    context: &Context,
    path: &Path,
    tree: &Tree,
    marks: &Marks<'_>,
    of: Option<(&Seen, &Turn)>,
    worth_telling: &dyn Fn(&Finding) -> bool,
) -> Result<Exit, Failure> {
    let path = path.display().to_string();
    let findings = tree::check(tree);
    let damaged = findings.iter().any(|finding| finding.severity == Severity::Damage);
    let exit = if damaged { Exit::Damaged } else { Exit::Done };
    let told: Vec<Told> = findings
        .into_iter()
        .filter(worth_telling)
        .map(|finding| Told { code: finding.code, line: finding.line, message: finding.message })
        .collect();
    if context.out.json {
        let (session, turn) = of.map(|(seen, turn)| (&*seen.id, turn.id.as_str())).unzip();
        let drawn = Document { session, turn, findings: told, ..document(tree, marks, &path) };
        return context.out.document(&drawn).map(|()| exit);
    }
    let mut text = match of {
        Some((_, turn)) => format!("{} (* is ours, for turn {})\n", escaped(&path), turn.id),
        None => format!("{}\n", escaped(&path)),
    };
    if tree.entries.is_empty() {
        text.push_str("no entries yet\n");
    }
    text.push_str(&drawn(tree, marks));
    for Told { line, message, .. } in told {
        let place = match line {
            Some(_) if message.starts_with("line") => String::new(),
            Some(line) => format!("line {line}: "),
            None => "the file: ".to_owned(),
        };
        text.push_str(&format!("{place}{}\n", escaped(&message)));
    }
    context.out.bytes(text.as_bytes()).map(|()| exit)
}

fn document<'a>(tree: &'a Tree, marks: &Marks<'a>, path: &'a str) -> Document<'a> {
    let entry = |index: usize| {
        let entry = tree.entries.get(index)?;
        let parent = tree.parent(index).and_then(|parent| tree.entries.get(parent)).map(|parent| &*parent.id);
        Some(Entry { id: &entry.id, parent, kind: &entry.kind, role: tree.role(index), line: entry.line })
    };
    let entries: Vec<Entry<'a>> = (0..tree.entries.len()).filter_map(entry).collect();
    Document {
        schema: "turnkeep.tree/1",
        session: None,
        turn: None,
        path,
        admission_leaf: marks.admission,
        active_leaf: marks.active.and_then(|index| tree.entries.get(index)).map(|entry| &*entry.id),
        branch: entries.iter().map(|entry| entry.id).filter(|id| marks.ours.contains(*id)).collect(),
        entries,
        findings: Vec::new(),
    }
}

/// One line an entry, without recursion: chains may be as long as the file.
fn drawn(tree: &Tree, marks: &Marks<'_>) -> String {
    let mut text = String::new();
    let step = |indices: &[usize], depth: usize| -> Vec<(usize, usize)> {
        let depth = depth + usize::from(indices.len() > 1);
        indices.iter().rev().map(|index| (*index, depth)).collect()
    };
    let mut waiting: Vec<(usize, usize)> = tree.roots().iter().rev().map(|index| (*index, 0)).collect();
    let mut drawn = HashSet::new();
    while let Some((index, depth)) = waiting.pop() {
        // Entries of a loop hang on no root and are never met; one that is met twice cannot be.
        if drawn.insert(index) {
            line(tree, marks, index, depth, &mut text);
            waiting.extend(step(tree.children(index), depth));
        }
    }
    let lost: Vec<usize> = (0..tree.entries.len()).filter(|index| !drawn.contains(index)).collect();
    if !lost.is_empty() {
        text.push_str("in a loop, or hanging on one:\n");
        for index in lost {
            line(tree, marks, index, 0, &mut text);
        }
    }
    text
}

fn line(tree: &Tree, marks: &Marks<'_>, index: usize, depth: usize, text: &mut String) {
    let Some(entry) = tree.entries.get(index) else { return };
    let is_ours = marks.ours.contains(&*entry.id);
    let mut tags = Vec::new();
    if marks.admission == Some(&*entry.id) {
        tags.push("<- admission leaf");
    }
    if marks.active == Some(index) {
        tags.push("<- active leaf");
    }
    let what = tree.role(index).unwrap_or_else(|| entry.kind.to_string());
    let said =
        tree.raw_message(index).map(|message| brief(&message::text_of(&message), 60)).unwrap_or_default();
    let mark = if is_ours { '*' } else { ' ' };
    let row = format!("{mark} {}{} {what} {said}", "  ".repeat(depth), entry.id);
    let row = format!("{} {}", escaped(row.trim_end()), tags.join(" "));
    text.push_str(row.trim_end());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_steps_to_the_right_and_marks_are_shown() {
        let file = r#"{"type":"session","version":3,"id":"s"}
{"type":"message","id":"a","parentId":null,"message":{"role":"user","content":"hi\u001b[31m"}}
{"type":"message","id":"b","parentId":"a","message":{"role":"assistant","content":[{"type":"text","text":"yes"}]}}
{"type":"message","id":"c","parentId":"a","message":{"role":"user","content":"again"}}
{"type":"custom","id":"d","parentId":"c"}
"#;
        let tree = crate::tree::read(file.as_bytes().to_vec());
        let marks = Marks {
            admission: Some("a"),
            active: Some(3),
            ours: HashSet::from(["c".to_owned(), "d".to_owned()]),
        };
        assert_eq!(
            drawn(&tree, &marks),
            "  a user hi\\u{1b}[31m <- admission leaf\n    b assistant yes\n*   c user again\n*   d custom <- active leaf\n"
        );
    }

    #[test]
    fn a_loop_ends_and_is_told() {
        let file = "{\"type\":\"session\",\"version\":3,\"id\":\"s\"}\n{\"type\":\"custom\",\"id\":\"a\",\"parentId\":\"b\"}\n{\"type\":\"custom\",\"id\":\"b\",\"parentId\":\"a\"}\n";
        let tree = crate::tree::read(file.as_bytes().to_vec());
        let marks = Marks { admission: None, active: None, ours: HashSet::new() };
        assert_eq!(drawn(&tree, &marks), "in a loop, or hanging on one:\n  a custom\n  b custom\n");
    }
}
