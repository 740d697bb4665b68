//! Whether journals, session files and a state root are what they should be: findings with stable codes.
//!
//! Reads and never writes. A journal goes through the same decoding, the same tail and the same fold as in writing
//! and recovering, so that they cannot disagree. What it proves are the records that are there: a chain cannot show
//! that its own tail is complete, so heads are kept elsewhere and demanded ([`Head`]), or the session tree is asked.

pub mod code;

mod around;
mod pass;
#[cfg(test)]
mod tests;
mod trees;

pub use around::{Place, root};
pub use code::{Code, Severity};

use crate::chain::Fault;
use crate::journal::{Flaw, Range, Setting, load};
use crate::lock;
use crate::paths;
use crate::record::{FORMAT, Hash, Repaired, TurnId, decimal};
use crate::scan::{Tail, TailFault};
use crate::storage::{Refused, StoredFile};
use crate::treefile;
use crate::turn::decide::{Holder, Now};
use crate::turn::{Rule, Session, Turn};
use pass::Passed;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// What a check without an outside anchor proves.
pub const PROVES: &str = "this proves the records that are here, not that none were removed from the end: keep \
                          heads elsewhere and demand them (--expect-head, --heads), or ask the session file (--with-tree)";

/// A record that a journal must contain: `SEQ:HASH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Its number.
    pub seq: u64,
    /// Its hash.
    pub hash: Hash,
}

impl FromStr for Head {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (seq, hash) = text.split_once(':').ok_or("a head is SEQ:HASH")?;
        let seq = decimal(seq).ok_or("SEQ is not a plain decimal")?;
        let hash = hash.parse().map_err(|_| "HASH is not 64 lower-case hex digits")?;
        Ok(Self { seq, hash })
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, self.hash)
    }
}

/// What is asked about every journal.
pub struct Ask<'a> {
    /// Whether damage that somebody went on behind still counts.
    pub acknowledged: Acknowledged,
    /// Whether session trees are looked at.
    pub trees: Trees<'a>,
    /// Time and processes, for the notes.
    pub now: &'a Now<'a>,
    /// The user that files should belong to.
    pub user: u32,
    /// Hears how many bytes of a journal are done.
    pub progress: &'a dyn Fn(u64),
}

/// What acknowledged damage is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledged {
    /// A warning.
    Warning,
    /// Damage: `--strict`.
    Damage,
}

/// Which session trees are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trees<'a> {
    /// None.
    No,
    /// Those that the journal names.
    Recorded,
    /// That of the newest turn, at the place to which it was moved.
    At(&'a Path),
}

/// One remark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub code: Code,
    /// How bad it is here.
    pub severity: Severity,
    /// The file or folder.
    pub path: PathBuf,
    /// Line number, from 1.
    pub line: Option<u64>,
    /// Where it begins, in bytes.
    pub offset: Option<u64>,
    /// How many bytes it spans.
    pub bytes: Option<u64>,
    /// What happened, and why it matters.
    pub message: String,
    /// Turns that may have lost something.
    pub turns: Vec<TurnId>,
    /// What to do about it.
    pub hint: &'static str,
}

impl Finding {
    /// About a file as a whole.
    fn new(code: Code, path: &Path, message: impl fmt::Display) -> Self {
        Self {
            code,
            severity: code.severity(),
            path: path.to_owned(),
            line: None,
            offset: None,
            bytes: None,
            message: message.to_string(),
            turns: Vec::new(),
            hint: code.what_to_do(),
        }
    }

    /// About a part of a file.
    fn at(mut self, line: u64, offset: u64, bytes: u64) -> Self {
        (self.line, self.offset, self.bytes) = (Some(line), Some(offset), Some(bytes));
        self
    }
}

/// What a report is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A journal.
    Journal,
    /// A session file.
    Tree,
    /// A state root.
    Root,
}

impl What {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::Tree => "tree",
            Self::Root => "root",
        }
    }
}

/// What was found about one file.
#[derive(Debug, Clone)]
pub struct Report {
    /// What it is.
    pub what: What,
    /// The file.
    pub path: PathBuf,
    /// The session in its genesis.
    pub session: Option<String>,
    /// How many records, or entries, it has.
    pub records: u64,
    /// How many bytes were looked at.
    pub bytes: u64,
    /// The newest record; of a damaged journal the last one that checks.
    pub head: Option<Head>,
    /// All remarks, in file order.
    pub findings: Vec<Finding>,
    /// Files in quarantine that it names, relative to the state root.
    pub saved: Vec<String>,
}

impl Report {
    fn new(what: What, path: &Path) -> Self {
        Self {
            what,
            path: path.to_owned(),
            session: None,
            records: 0,
            bytes: 0,
            head: None,
            findings: Vec::new(),
            saved: Vec::new(),
        }
    }

    /// A journal that must be there and is not.
    pub fn missing(path: &Path) -> Self {
        let mut report = Self::new(What::Journal, path);
        report.add(Finding::new(
            Code::FileMissing,
            path,
            "a head of it was written down, and the file is gone",
        ));
        report
    }

    /// The worst severity of its findings.
    pub fn worst(&self) -> Severity {
        self.findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Note)
    }

    /// The verdict in a word.
    pub fn verdict(&self) -> &'static str {
        match self.worst() {
            Severity::Note | Severity::Warning => "sound",
            Severity::NeedsRecovery => "needs-recovery",
            Severity::OtherFormat => "other-format",
            Severity::Unreadable => "unreadable",
            Severity::Conflict => "conflict",
            Severity::Damage => "damaged",
        }
    }

    fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    fn could_not(&mut self, action: &str, path: &Path, error: &io::Error) {
        let code = match Refused::of(error) {
            Some(Refused::Link { .. }) => Code::Link,
            Some(Refused::NotAFile { .. }) | None => Code::Unreadable,
        };
        self.add(Finding::new(code, path, format!("could not {action}: {error}")));
    }
}

/// Checks a journal. Of a live one only what was there at the start is judged.
pub fn journal(setting: Setting<'_>, path: &Path, place: Place<'_>, heads: &[Head], ask: &Ask<'_>) -> Report {
    let mut report = Report::new(What::Journal, path);
    if around::journal(setting.storage, path, place, ask.user, &mut report).is_err() {
        return report;
    }
    let file = match setting.storage.open_read(path) {
        Ok(file) => file,
        Err(error) => {
            report.could_not("open", path, &error);
            return report;
        }
    };
    let wanted: Vec<(u64, Hash)> = heads.iter().map(|head| (head.seq, head.hash.clone())).collect();
    let (passed, bytes) = match steady_pass(setting, file.as_ref(), &wanted, ask.progress) {
        Ok(passed) => passed,
        Err(error) => {
            report.could_not("read", path, &error);
            return report;
        }
    };
    report.bytes = bytes;
    report.records = passed.records;
    report.head = passed.head.clone().map(|(seq, hash)| Head { seq, hash });
    report.session = passed.follower.session.as_ref().map(|session| session.id.clone());
    if let Some(found) = &passed.follower.other_format {
        let message = format!("its genesis says format {found:?}, this version knows {FORMAT:?}");
        report.add(Finding::new(Code::OtherFormat, path, message).at(1, 0, passed.follower.end));
        return report;
    }
    let is_its_own = passed.follower.session.as_ref().is_none_or(|session| name(place, session, &mut report));
    // What another session's journal cut off is kept under the name of that one.
    let kept_beside = if is_its_own { place } else { Place::Alone };
    let repairs = check_repairs(setting, file.as_ref(), kept_beside, &passed, &mut report);
    damage(&passed, &repairs, ask.acknowledged, &mut report);
    tail(file.as_ref(), &passed, bytes, &mut report);
    for (head, found) in heads.iter().zip(&passed.found) {
        if !found {
            let message = format!("record {head} was to be in it and is not; it ends with {}", told(&report));
            report.add(Finding::new(Code::HeadMissing, path, message));
        }
    }
    if let Some(session) = &passed.follower.session {
        state(session, ask.now, &mut report);
    }
    if ask.trees != Trees::No {
        trees::check(setting, file.as_ref(), ask.trees, &mut report);
    }
    report
}

/// Checks a session file as such.
pub fn tree(setting: Setting<'_>, path: &Path) -> Report {
    let mut report = Report::new(What::Tree, path);
    match treefile::load(setting.storage, path) {
        Ok(tree) => trees::file(path, &tree, &mut report),
        Err(error) => report.could_not("read", path, &error),
    }
    report
}

/// Passes over the file until nobody is in the middle of a write.
fn steady_pass(
    setting: Setting<'_>,
    file: &dyn StoredFile,
    wanted: &[(u64, Hash)],
    progress: &dyn Fn(u64),
) -> io::Result<(Passed, u64)> {
    let started = setting.clock.now();
    let mut calm = false;
    loop {
        let end = file.len()?;
        let passed = pass::pass(file, end, wanted, progress)?;
        let whole = passed.tail == Tail::Clean && passed.damage.is_empty() && end > 0;
        let late = setting.clock.now().saturating_sub(started) > setting.wait;
        if whole || calm || late {
            return Ok((passed, end));
        }
        // Where locks do not work nobody can be writing through this tool. If nobody was writing a moment ago,
        // what the file holds now is what counts.
        calm = lock::try_shared_once(file).unwrap_or(true);
        if !calm {
            setting.clock.sleep(Duration::from_millis(1));
        }
    }
}

fn told(report: &Report) -> String {
    report.head.as_ref().map_or_else(|| "no record".to_owned(), |head| format!("record {head}"))
}

/// Checks what `repaired` records say: bytes in quarantine, and ranges that were acknowledged as damaged.
fn check_repairs(
    setting: Setting<'_>,
    file: &dyn StoredFile,
    place: Place<'_>,
    passed: &Passed,
    report: &mut Report,
) -> Vec<Range> {
    let acknowledged: Vec<Range> = passed
        .repaired
        .iter()
        .filter_map(|(_, offset, repaired)| load::acknowledged(file, repaired, *offset).ok().flatten())
        .collect();
    // Where the damage grew, a later acknowledgement of the whole of it stands for the earlier one.
    let stands = |repaired: &Repaired| {
        let end = repaired.offset.saturating_add(repaired.bytes);
        acknowledged.iter().any(|range| range.offset <= repaired.offset && end <= range.end())
    };
    for (line, offset, repaired) in &passed.repaired {
        let Some(saved_as) = &repaired.saved_as else {
            if !stands(repaired) {
                let message = format!(
                    "the {} bytes from byte {}, which this record acknowledges, are not those any more",
                    repaired.bytes, repaired.offset
                );
                report.add(Finding::new(Code::RepairMismatch, &report.path, message).at(*line, *offset, 0));
            }
            continue;
        };
        report.saved.push(saved_as.clone());
        if let Some((code, message)) = quarantine(setting, &report.path, place, repaired, saved_as) {
            report.add(Finding::new(code, &report.path, message).at(*line, *offset, 0));
        }
    }
    acknowledged
}

fn quarantine(
    setting: Setting<'_>,
    path: &Path,
    place: Place<'_>,
    repaired: &Repaired,
    saved_as: &str,
) -> Option<(Code, String)> {
    let Place::InRoot(root) = place else {
        return Some((
            Code::QuarantineUnchecked,
            format!("{saved_as} is in a state root that was not named"),
        ));
    };
    let name = saved_as.strip_prefix(paths::QUARANTINE).and_then(|rest| rest.strip_prefix('/'));
    let journal = path.file_stem().and_then(|stem| stem.to_str());
    let expected = journal.map(|journal| paths::quarantine_name(journal, repaired.offset, &repaired.sha256));
    if name.is_none() || name != expected.as_deref() {
        let message = format!("{saved_as} is not the name under which such bytes are kept");
        return Some((Code::QuarantineDiffers, message));
    }
    let kept = root.path().join(saved_as);
    let file = match setting.storage.open_read(&kept) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Some((Code::QuarantineMissing, format!("{saved_as} is gone")));
        }
        Err(error) if Refused::of(&error).is_some() => {
            return Some((Code::QuarantineDiffers, error.to_string()));
        }
        Err(error) => return Some((Code::Unreadable, format!("could not open {saved_as}: {error}"))),
    };
    let bytes = match file.len() {
        Ok(bytes) => bytes,
        Err(error) => return Some((Code::Unreadable, format!("could not look at {saved_as}: {error}"))),
    };
    match load::digest_range(file.as_ref(), &Range { offset: 0, bytes }) {
        Ok(digest) if bytes == repaired.bytes && digest == repaired.sha256 => None,
        Ok(digest) => Some((
            Code::QuarantineDiffers,
            format!(
                "{saved_as} has {bytes} bytes of sha256 {digest}, the record says {} of {}",
                repaired.bytes, repaired.sha256
            ),
        )),
        Err(error) => Some((Code::Unreadable, format!("could not read {saved_as}: {error}"))),
    }
}

fn damage(passed: &Passed, repairs: &[Range], acknowledged: Acknowledged, report: &mut Report) {
    for damage in &passed.damage {
        let code = code_of(&damage.flaw);
        let mut finding =
            Finding::new(code, &report.path, &damage.flaw).at(damage.line, damage.offset, damage.bytes);
        finding.turns.clone_from(&damage.turns);
        // Nothing goes on behind a first record that is damaged; one of an unknown kind is another version's.
        if damage.line == 1 && code != Code::UnknownKind {
            finding.hint = Code::NoGenesis.what_to_do();
        }
        if repairs.iter().any(|range| range.covers(damage)) {
            finding.message = format!("acknowledged {} {}: {}", code.code(), code.name(), finding.message);
            finding.code = Code::AcknowledgedDamage;
            finding.hint = finding.code.what_to_do();
            finding.severity = match acknowledged {
                Acknowledged::Warning => Severity::Warning,
                Acknowledged::Damage => Severity::Damage,
            };
        }
        report.add(finding);
    }
    if passed.more > 0 {
        let message = format!("{} more lines do not check and are not listed", passed.more);
        report.add(Finding::new(Code::Framing, &report.path, message));
    }
}

fn code_of(flaw: &Flaw) -> Code {
    match flaw {
        Flaw::Line(fault) | Flaw::Tail(TailFault::Line(fault)) => match fault {
            Fault::Utf8(_) => Code::NotUtf8,
            Fault::Suffix => Code::Framing,
            Fault::Hash { .. } => Code::HashMismatch,
            Fault::Envelope(_) | Fault::OtherFormat(_) => Code::Envelope,
            Fault::UnknownKind(_) => Code::UnknownKind,
            Fault::Fields { .. } => Code::Fields,
            Fault::TooDeep(_) => Code::TooDeep,
            Fault::Spelling(_) => Code::Spelling,
        },
        Flaw::Tail(TailFault::RecordWithin) => Code::DamagedTail,
        Flaw::Chain { .. } => Code::Chain,
        Flaw::Illegal(illegal) => match illegal.rule {
            Rule::Transition => Code::IllegalTransition,
            Rule::Policy => Code::Policy,
            Rule::Base => Code::Base,
        },
        Flaw::NoGenesis => Code::NoGenesis,
    }
}

fn tail(file: &dyn StoredFile, passed: &Passed, bytes: u64, report: &mut Report) {
    let line = passed.follower.line;
    let finding = match &passed.tail {
        Tail::Clean if bytes == 0 => Finding::new(
            Code::EmptyJournal,
            &report.path,
            "the file is empty: its genesis is still to be written",
        ),
        Tail::Clean | Tail::Damaged { .. } => return,
        Tail::Torn { offset, bytes } => {
            let behind = match &report.head {
                Some(head) => format!("after record {}", head.seq),
                None => "with no record before it".to_owned(),
            };
            let kind = torn_kind(file, *offset, *bytes)
                .map_or_else(String::new, |kind| format!("; it was to be a {kind:?} record"));
            let message = format!(
                "torn tail at byte {offset} {behind}: {bytes} bytes of a write that was never acknowledged{kind}"
            );
            Finding::new(Code::TornTail, &report.path, message).at(line + 1, *offset, *bytes)
        }
        Tail::NoNewline { record, offset, end, nuls } => {
            let nuls = if *nuls > 0 { format!(", and {nuls} NULs follow") } else { String::new() };
            let message =
                format!("record {} is whole and counts; only its newline is missing{nuls}", record.seq);
            Finding::new(Code::MissingNewline, &report.path, message).at(line, *offset, end - offset)
        }
    };
    report.add(finding);
}

/// The kind that a torn record was to have, if so much of it is there.
fn torn_kind(file: &dyn StoredFile, offset: u64, bytes: u64) -> Option<String> {
    const KEY: &[u8] = br#","kind":""#;
    let mut head = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX).min(256)];
    let read = file.read_at(offset, &mut head).ok()?;
    head.truncate(read);
    let at = memchr::memmem::find(&head, KEY)? + KEY.len();
    let rest = head.get(at..)?;
    let kind = std::str::from_utf8(rest.get(..memchr::memchr(b'"', rest)?)?).ok()?;
    kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_').then(|| kind.to_owned())
}

/// Inside a state root a journal has the name that its genesis gives it.
fn name(place: Place<'_>, session: &Session, report: &mut Report) -> bool {
    let Place::InRoot(_) = place else { return true };
    let belongs = paths::session_file_name(&session.id).ok();
    let has = report.path.file_name().map(|name| name.to_string_lossy().into_owned());
    if belongs != has {
        let belongs = belongs.unwrap_or_else(|| "no name at all".to_owned());
        let message = format!("its genesis names session {:?}, whose journal is {belongs}", session.id);
        report.add(Finding::new(Code::OtherSession, &report.path, message));
        return false;
    }
    true
}

/// What is under way: notes, whatever they say.
fn state(session: &Session, now: &Now<'_>, report: &mut Report) {
    for turn in session.unclosed() {
        for (code, message) in state_of(turn, now) {
            let mut finding = Finding::new(code, &report.path, format!("turn {} {message}", turn.id));
            finding.offset = Some(turn.admitted.offset);
            finding.turns = vec![turn.id.clone()];
            report.add(finding);
        }
    }
}

fn state_of(turn: &Turn, now: &Now<'_>) -> Vec<(Code, String)> {
    let mut notes = Vec::new();
    let number = turn.current_number();
    match (&turn.settled, turn.open_calls().count()) {
        (Some(_), _) => notes.push((Code::Undelivered, "is settled, and its reply not sent".to_owned())),
        (None, _) if turn.current().is_none() => {
            notes.push((Code::OpenTurn, "is open, and no attempt at it has begun".to_owned()));
        }
        (None, 0) => notes.push((Code::OpenTurn, format!("is open under attempt {number}"))),
        (None, calls) => {
            notes.push((
                Code::OpenTurn,
                format!("is open under attempt {number}, {calls} calls have no answer"),
            ));
        }
    }
    if let Some(parked) = &turn.parked {
        notes.push((Code::Parked, format!("is parked by {}: {}", parked.by, parked.why)));
    }
    if let Some(attempt) = turn.current() {
        if attempt.unfinished() {
            notes.push((Code::RecoverUnfinished, format!("has an unfinished recover: attempt {number}")));
        }
        if now.holder(attempt) == Holder::Gone {
            let pid = attempt.owner.as_ref().map_or(0, |owner| owner.pid);
            notes.push((
                Code::OwnerGone,
                format!("is held by attempt {number}, whose owner (pid {pid}) is gone"),
            ));
        }
    }
    notes
}
