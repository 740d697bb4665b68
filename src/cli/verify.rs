//! `turnkeep verify`: what is to be checked, and how it is told.
//!
//! A session of the root wins over a path of the same name. Nothing is written but the file that `--heads` names,
//! and that only when every verdict is sound, and the one that `--report` names.

mod junit;

use super::args::VerifyArgs;
use super::context::Context;
use super::error::{Exit, Failure};
use super::output::one_line;
use super::replace::{replace, spelled_once};
use crate::paths::{PathError, Root};
use crate::storage::{Growth, ItemKind, Reading};
use crate::verify::{self, Acknowledged, Ask, Finding, Head, PROVES, Place, Report, Severity, Trees, What};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Shorter journals are done before a progress bar is seen.
const PROGRESS_BYTES_MIN: u64 = 64 * 1024 * 1024;
/// How much of a file is looked at to tell a session file from a journal.
const SNIFFED_BYTES: usize = 64 * 1024;
/// Longest line of a heads file: a number, a hash, and a path longer than systems open.
const HEADS_LINE_MAX: u64 = 64 * 1024;
/// What a head that is demanded takes beside the bytes of its line, its verdict included.
const HEAD_COST: u64 = 1024;

/// What to make of a file beside the verdicts that could not be written.
const VERDICTS_STAND: &str = "every verdict above stands";

/// Runs the command.
pub fn run(context: &Context, args: &VerifyArgs) -> Result<Exit, Failure> {
    let demanded =
        args.heads.as_deref().map(|path| read_heads(context, path)).transpose()?.unwrap_or_default();
    let targets = targets(context, args, &demanded)?;
    let expected = expected_head(args, &targets)?;
    let at = context.at();
    let now = context.now(at);
    let user = rustix::process::geteuid().as_raw();

    let mut reports = Vec::with_capacity(targets.len());
    for target in &targets {
        let mut heads = demanded.get(&target.path).cloned().unwrap_or_default();
        heads.extend(expected.clone());
        let report = check(context, args, target, &heads, &now, user);
        print(context, &report)?;
        reports.push(report);
    }
    if args.all {
        let saved: BTreeSet<String> =
            reports.iter().flat_map(|report| report.saved.iter().cloned()).collect();
        let report = verify::root(context.storage.as_ref(), &context.root, &saved, user);
        if !report.findings.is_empty() {
            print(context, &report)?;
            reports.push(report);
        }
    }
    let exit = reports.iter().map(Report::worst).max().map_or(Exit::Done, exit_of);
    // Whoever asks the session file need not be told to.
    let asks_trees = args.with_tree || args.tree_file.is_some();
    if exit == Exit::Done {
        if let Some(path) = &args.heads {
            write_heads(context, path, &reports)?;
        } else if expected.is_none()
            && !asks_trees
            && reports.iter().any(|report| report.what == What::Journal)
        {
            context.out.note(PROVES);
        }
    }
    if let Some(path) = &args.report {
        match write_report(context, path, &reports) {
            // What the files are like is worse than that nobody can read it there.
            Err(failure) if exit != Exit::Done => context.out.note(&failure.message),
            written => written?,
        }
    }
    Ok(exit)
}

fn write_report(context: &Context, path: &Path, reports: &[Report]) -> Result<(), Failure> {
    let document = junit::document(reports).map_err(Failure::unexpected)?;
    replace(context, path, document.as_bytes(), "report_not_written", VERDICTS_STAND)
}

/// Something to check.
struct Target {
    path: PathBuf,
    kind: Kind,
}

enum Kind {
    /// A journal inside a state root.
    InRoot(Root),
    /// A journal anywhere else.
    Alone,
    /// A session file.
    Tree,
    /// A journal that only the heads file names, and that is gone.
    Missing,
}

impl Target {
    fn is_journal(&self) -> bool {
        !matches!(self.kind, Kind::Tree)
    }
}

fn targets(
    context: &Context,
    args: &VerifyArgs,
    demanded: &BTreeMap<PathBuf, Vec<Head>>,
) -> Result<Vec<Target>, Failure> {
    let mut found = Vec::new();
    if args.all {
        match context.root.sessions(context.storage.as_ref()) {
            Ok(sessions) => {
                let kind = || Kind::InRoot(context.root.clone());
                found.extend(sessions.into_iter().map(|file| Target { path: file.path, kind: kind() }));
            }
            Err(error @ PathError::NoRoot { .. }) => {
                return Err(Failure::of(Exit::NotFound, "no_root", &error)
                    .hint("`turnkeep admit` makes one; --root names another"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    for word in &args.targets {
        target(context, word, demanded, &mut found)?;
    }
    for path in demanded.keys() {
        let kind = match context.storage.inspect(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Kind::Missing,
            _ => journal_kind(context, path),
        };
        found.push(Target { path: path.clone(), kind });
    }
    let mut seen = HashSet::new();
    for target in &mut found {
        target.path = spelled_once(context, &target.path);
    }
    found.retain(|target| seen.insert(target.path.clone()));
    if found.is_empty() {
        return Err(Failure::of(Exit::NotFound, "nothing_to_verify", "there is nothing to verify")
            .hint("name sessions, files or folders, or give --all"));
    }
    Ok(found)
}

/// A session of the root, else an existing path; `./` forces a path.
fn target(
    context: &Context,
    word: &str,
    demanded: &BTreeMap<PathBuf, Vec<Head>>,
    found: &mut Vec<Target>,
) -> Result<(), Failure> {
    let forced = word.starts_with("./");
    if !forced
        && let Ok(path) = context.root.journal(word)
        && context.storage.inspect(&path).is_ok()
    {
        found.push(Target { path, kind: Kind::InRoot(context.root.clone()) });
        return Ok(());
    }
    let path = Path::new(word);
    let of_root =
        context.root.journal(word).ok().filter(|_| !forced).map(|path| spelled_once(context, &path));
    let known =
        demanded.keys().any(|known| *known == spelled_once(context, path) || Some(known) == of_root.as_ref());
    match context.kind_of(path) {
        Ok(ItemKind::Dir) => {
            let mut files = Vec::new();
            walk(context, path, &mut files)?;
            files.sort();
            found.extend(files.into_iter().map(|path| file(context, &path)));
            Ok(())
        }
        Ok(_) => {
            found.push(file(context, path));
            Ok(())
        }
        // The heads file knows it, and that is where it is told to be gone.
        Err(error) if error.kind() == io::ErrorKind::NotFound && known => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Behind a link that leads nowhere there may be such a session.
            match of_root {
                Some(_) => context.root.check_absent(context.storage.as_ref(), word)?,
                None => context.root.refuse_links(context.storage.as_ref())?,
            }
            let root = context.root.path().display();
            let message = format!("there is neither a session {word:?} in {root} nor a file of that name");
            Err(Failure::of(Exit::NotFound, "no_session", message)
                .hint("`turnkeep inspect` lists the sessions"))
        }
        Err(error) => Err(Failure::io(format!("could not look at {word}: {error}"))),
    }
}

/// Every `*.jsonl` below a folder; links to folders are not followed.
fn walk(context: &Context, folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::io(format!("could not list {}: {error}", folder.display()));
    for item in context.storage.list(folder).map_err(failed)? {
        let path = folder.join(item.name);
        if item.kind == ItemKind::Dir {
            walk(context, &path, files)?;
        } else if path.extension() == Some(OsStr::new("jsonl")) {
            files.push(path);
        }
    }
    Ok(())
}

/// What a path outside the naming of sessions is.
fn file(context: &Context, path: &Path) -> Target {
    let path = spelled_once(context, path);
    let kind = match journal_kind(context, &path) {
        // Pi calls its folder `sessions` too.
        Kind::InRoot(root) if same(context, root.path(), context.root.path()) => Kind::InRoot(root),
        _ if is_tree(context, &path) => Kind::Tree,
        kind => kind,
    };
    // A link that a person names is followed; inside a state root it is a finding.
    let path = match kind {
        Kind::InRoot(_) => path,
        _ => context.storage.resolve(&path).unwrap_or(path),
    };
    Target { path, kind }
}

/// Whether a journal lies in a state root: its own, or another one.
fn journal_kind(context: &Context, path: &Path) -> Kind {
    let folder = path.parent();
    let named = folder.is_some_and(|folder| folder.file_name() == Some(OsStr::new(crate::paths::SESSIONS)));
    match folder.and_then(Path::parent) {
        Some(root) if named && same(context, root, context.root.path()) => Kind::InRoot(context.root.clone()),
        Some(root) if named => Kind::InRoot(Root::new(root)),
        _ => Kind::Alone,
    }
}

fn same(context: &Context, left: &Path, right: &Path) -> bool {
    let real = |path: &Path| context.storage.resolve(path).ok();
    left == right || (real(left).is_some() && real(left) == real(right))
}

/// Whether the first line that can be told is one of a session file.
pub(super) fn is_tree(context: &Context, path: &Path) -> bool {
    let mut head = vec![0; SNIFFED_BYTES];
    let read = context
        .storage
        .resolve(path)
        .and_then(|path| context.storage.open_read(&path))
        .and_then(|file| file.read_at(0, &mut head));
    let Ok(read) = read else { return false };
    let head = head.get(..read).unwrap_or_default();
    let head = head.strip_prefix("\u{feff}".as_bytes()).unwrap_or(head);
    let told = head.split(|byte| *byte == b'\n').find_map(|line| {
        let line = line.trim_ascii();
        if line.starts_with(br#"{"seq":"#) {
            Some(false)
        } else {
            // Pi puts the type first, and a line may be cut; other writers have other orders.
            (line.starts_with(br#"{"type":"#) || has_type(line)).then_some(true)
        }
    });
    told.unwrap_or(false)
}

/// Every line of a session file has a type, and no record of a journal has one.
fn has_type(line: &[u8]) -> bool {
    let object = std::str::from_utf8(line).ok().and_then(|text| crate::json::View::of(text).object());
    object.is_some_and(|object| object.string("type").is_some())
}

fn expected_head(args: &VerifyArgs, targets: &[Target]) -> Result<Option<Head>, Failure> {
    let journals = targets.iter().filter(|target| target.is_journal()).count();
    if args.tree_file.is_some() && journals != 1 {
        return Err(Failure::usage("one_journal", "--tree-file needs exactly one journal")
            .hint("name the session that the file belongs to"));
    }
    let Some(text) = &args.expect_head else { return Ok(None) };
    if journals != 1 {
        return Err(Failure::usage("one_journal", "--expect-head needs exactly one journal")
            .hint("heads of several journals stand in a file: --heads FILE"));
    }
    let head = text.parse().map_err(|why| {
        Failure::usage("bad_head", format!("{text:?}: {why}"))
            .hint("a head is SEQ:HASH, as `verify --json` and `inspect --json` print it")
    })?;
    Ok(Some(head))
}

fn check(
    context: &Context,
    args: &VerifyArgs,
    target: &Target,
    heads: &[Head],
    now: &crate::turn::decide::Now<'_>,
    user: u32,
) -> Report {
    let setting = context.setting(&|| None);
    let place = match &target.kind {
        Kind::Missing => return Report::missing(&target.path),
        Kind::Tree => return verify::tree(setting, &target.path),
        Kind::InRoot(root) => Place::InRoot(root),
        Kind::Alone => Place::Alone,
    };
    let trees = match &args.tree_file {
        Some(path) => Trees::At(path),
        None if args.with_tree => Trees::Recorded,
        None => Trees::No,
    };
    let bytes = context.storage.inspect(&target.path).map_or(0, |meta| meta.len);
    let bar = if bytes < PROGRESS_BYTES_MIN { None } else { context.out.progress(bytes) };
    let progress = |done: u64| {
        if let Some(bar) = &bar {
            bar.set_position(done);
        }
    };
    let acknowledged = if args.strict { Acknowledged::Damage } else { Acknowledged::Warning };
    let ask = Ask { acknowledged, trees, now, user, progress: &progress };
    let report = verify::journal(setting, &target.path, place, heads, &ask);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    report
}

fn exit_of(severity: Severity) -> Exit {
    match severity {
        Severity::Note | Severity::Warning => Exit::Done,
        Severity::NeedsRecovery => Exit::NeedsRecovery,
        Severity::OtherFormat => Exit::OtherFormat,
        Severity::Unreadable => Exit::Unexpected,
        Severity::Conflict => Exit::Conflict,
        Severity::Damage => Exit::Damaged,
    }
}

/// `turnkeep.verify/1`
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    exit: u8,
    verdict: &'static str,
    r#type: &'static str,
    path: String,
    session: Option<&'a str>,
    records: u64,
    bytes: u64,
    head: Option<HeadDocument<'a>>,
    findings: Vec<FindingDocument<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proves: Option<&'static str>,
}

#[derive(Serialize)]
struct HeadDocument<'a> {
    seq: u64,
    hash: &'a str,
}

#[derive(Serialize)]
struct FindingDocument<'a> {
    code: &'static str,
    name: &'static str,
    severity: &'static str,
    path: String,
    line: Option<u64>,
    offset: Option<u64>,
    bytes: Option<u64>,
    message: &'a str,
    turns: Vec<&'a str>,
    hint: &'static str,
}

impl<'a> Document<'a> {
    fn of(report: &'a Report) -> Self {
        Self {
            schema: "turnkeep.verify/1",
            exit: exit_of(report.worst()).code(),
            verdict: report.verdict(),
            r#type: report.what.word(),
            path: report.path.display().to_string(),
            session: report.session.as_deref(),
            records: report.records,
            bytes: report.bytes,
            head: report.head.as_ref().map(|head| HeadDocument { seq: head.seq, hash: head.hash.as_str() }),
            findings: report.findings.iter().map(FindingDocument::of).collect(),
            proves: (report.what == What::Journal).then_some(PROVES),
        }
    }
}

impl<'a> FindingDocument<'a> {
    fn of(finding: &'a Finding) -> Self {
        Self {
            code: finding.code.code(),
            name: finding.code.name(),
            severity: finding.severity.word(),
            path: finding.path.display().to_string(),
            line: finding.line,
            offset: finding.offset,
            bytes: finding.bytes,
            message: &finding.message,
            turns: finding.turns.iter().map(crate::record::TurnId::as_str).collect(),
            hint: finding.hint,
        }
    }
}

fn print(context: &Context, report: &Report) -> Result<(), Failure> {
    if context.out.json {
        return context.out.document(&Document::of(report));
    }
    for finding in &report.findings {
        context.out.line(&told(finding))?;
    }
    context.out.line(&verdict_line(report))
}

/// `TK012 hash-mismatch damage FILE:3 (byte 1234): …`
fn told(finding: &Finding) -> String {
    let (code, name) = (finding.code.code(), finding.code.name());
    let line = finding.line.map(|line| format!(":{line}")).unwrap_or_default();
    let offset = finding.offset.map(|offset| format!(" (byte {offset})")).unwrap_or_default();
    let place = format!("{}{line}{offset}", finding.path.display());
    let turns: Vec<&str> = finding.turns.iter().map(crate::record::TurnId::as_str).collect();
    let touched = match turns.as_slice() {
        [] => String::new(),
        turns => format!("; turns touched: {}", turns.join(", ")),
    };
    let severity = finding.severity.word();
    let found = one_line(&format!("{code} {name} {severity} {place}: {}{touched}", finding.message));
    format!("{found}\n  hint: {}", finding.hint)
}

fn verdict_line(report: &Report) -> String {
    let units = match report.what {
        What::Journal => "records",
        What::Tree => "entries",
        What::Root => return one_line(&format!("{}: {}", report.path.display(), report.verdict())),
    };
    let head = match (&report.head, report.what) {
        (Some(head), _) => format!(", head {head}"),
        (None, What::Journal) => ", no head".to_owned(),
        (None, What::Tree | What::Root) => String::new(),
    };
    let (path, verdict) = (report.path.display(), report.verdict());
    one_line(&format!("{path}: {verdict}, {} {units} in {} bytes{head}", report.records, report.bytes))
}

/// The heads that were written down, by journal. No file yet means none.
fn read_heads(context: &Context, path: &Path) -> Result<BTreeMap<PathBuf, Vec<Head>>, Failure> {
    let unreadable = |error: io::Error| {
        let message = format!("could not read {}: {error}", path.display());
        Failure::of(Exit::Unexpected, "heads_unreadable", message)
            .hint("nothing was verified, and the file was not touched")
    };
    let mut file = match Reading::of(context.storage.as_ref(), path) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut heads: BTreeMap<PathBuf, Vec<Head>> = BTreeMap::new();
    let mut growth = Growth::default();
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let read = file.by_ref().take(HEADS_LINE_MAX + 1).read_until(b'\n', &mut line).map_err(unreadable)?;
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        if read == 0 {
            break;
        }
        if line.is_empty() {
            continue;
        }
        let (journal, head) = head_line(line).map_err(|why| {
            Failure::usage("bad_heads", format!("{} line {number}: {why}", path.display()))
                .hint("each line is SEQ:HASH PATH; the file was not touched")
        })?;
        growth.take(HEAD_COST + line.len() as u64).map_err(unreadable)?;
        heads.entry(spelled_once(context, journal)).or_default().push(head);
    }
    Ok(heads)
}

/// The journal that a line of a heads file names, and its head.
fn head_line(line: &[u8]) -> Result<(&Path, Head), &'static str> {
    if line.len() as u64 > HEADS_LINE_MAX {
        return Err("it is longer than any head and path");
    }
    let space = line.iter().position(|byte| *byte == b' ').ok_or("there is no path")?;
    let (head, journal) = line.split_at(space);
    let head = std::str::from_utf8(head).map_err(|_| "not text")?.parse()?;
    match journal.get(1..).unwrap_or_default() {
        [] => Err("there is no path"),
        journal => Ok((Path::new(OsStr::from_bytes(journal)), head)),
    }
}

/// Replaces the heads file: a temporary file, synced and renamed. Durable when this returns.
fn write_heads(context: &Context, path: &Path, reports: &[Report]) -> Result<(), Failure> {
    let mut lines: BTreeMap<&Path, Vec<u8>> = BTreeMap::new();
    for report in reports.iter().filter(|report| report.what == What::Journal) {
        let Some(head) = &report.head else { continue };
        let name = report.path.as_os_str().as_bytes();
        if name.contains(&b'\n') {
            let message = format!("{} has a line feed in its name", report.path.display());
            return Err(Failure::usage("bad_heads", message).hint("the heads file was not touched"));
        }
        let line = [head.to_string().as_bytes(), b" ", name, b"\n"].concat();
        lines.insert(&report.path, line);
    }
    let bytes: Vec<u8> = lines.into_values().flatten().collect();
    replace(context, path, &bytes, "heads_not_written", VERDICTS_STAND)
}
