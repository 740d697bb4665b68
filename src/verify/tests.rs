//! Every cut, every flipped bit, and every code at least once.

use super::*;
use crate::branch::{self, Extent};
use crate::chain;
use crate::draft::Draft;
use crate::json::Raw;
use crate::lock::Monotonic;
use crate::paths::Root;
use crate::policy::Policy;
use crate::record::{
    Admitted, AdmittedTree, At, Attempt, Branch, CallRef, Cause, Claimed, Decided, Decision, Delivery,
    DeliveryState, Intent, Kind, Message, Note, Opened, Owner, Parked, Recovered, Replay, Settled,
    SettledStatus, TreeMode,
};
use crate::storage::{FileStorage, MemoryStorage, Storage};
use crate::tree;
use crate::turn::decide::Sighting;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

fn at() -> At {
    At::from_micros(1_796_000_000_000_000)
}

fn turn() -> TurnId {
    "t1".parse().expect("an id")
}

fn genesis() -> Draft {
    let opened = Opened { format: FORMAT.into(), session: "s".into(), id: "u-1".into() };
    Draft::genesis(opened, at(), 1 << 20).expect("a genesis")
}

fn sha(raw: &Raw) -> Hash {
    raw.sha256().parse().expect("a hash")
}

fn admitted(turn: &str, delivery: Option<&str>, tree: Option<AdmittedTree>) -> Admitted {
    let input = Raw::text("結果をまとめて");
    Admitted {
        turn: turn.parse().expect("an id"),
        delivery: delivery.map(str::to_owned),
        input_sha256: sha(&input),
        input,
        tree,
        policy_sha256: None,
        meta: None,
    }
}

fn attempt(number: u64, cause: Cause) -> Attempt {
    let owner =
        Owner { pid: 7, started: 1, boot: "b".into(), pidns: 1, host: "h".into(), cmd: "driver".into() };
    Attempt { turn: turn(), attempt: number, cause, why: None, owner: Some(owner), lease_ms: None }
}

fn said(text: &str) -> Message {
    let message = format!(
        r#"{{"role":"assistant","content":[{{"type":"text","text":"{text}"}}],"stopReason":"stop","timestamp":3}}"#
    );
    Message {
        turn: turn(),
        attempt: 1,
        format: "pi".into(),
        role: "assistant".into(),
        message: Raw::parse(&message).expect("JSON"),
        calls: None,
    }
}

fn settled() -> Settled {
    let reply = Some(Raw::text("done"));
    Settled { turn: turn(), attempt: 1, status: SettledStatus::Completed, reply, reason: None }
}

fn note(text: &str) -> Note {
    Note { turn: turn(), attempt: 1, content: Raw::text(text) }
}

/// A finished turn, and an open one with a text of many bytes a character.
fn small() -> Draft {
    let mut draft = genesis();
    draft.push(admitted("t1", None, None)).expect("fits");
    draft.push(attempt(1, Cause::Admit)).expect("fits");
    draft.push(said("ok")).expect("fits");
    draft.push(settled()).expect("fits");
    draft.push(admitted("t2", None, None)).expect("fits");
    draft
}

/// A call declared by the driver, claimed.
fn claimed(replay: Replay) -> Draft {
    let mut draft = genesis();
    draft.push(admitted("t1", None, None)).expect("fits");
    draft.push(attempt(1, Cause::Admit)).expect("fits");
    let args = Raw::parse("{}").expect("JSON");
    let call = CallRef { seq: draft.next_seq(), position: 0 };
    let key = chain::call_key(&draft.session.genesis, &turn(), call);
    let intent = Intent {
        turn: turn(),
        attempt: 1,
        id: "c".into(),
        tool: "deploy".into(),
        args_sha256: sha(&args),
        args,
        replay,
        approval: None,
        unknown: None,
        key: key.clone(),
        parent: None,
    };
    draft.push(intent).expect("fits");
    let claim = Claimed { turn: turn(), attempt: 1, r#ref: call, key, link: None, runner: None };
    draft.push(claim).expect("fits");
    draft
}

/// A line that nobody checked: behind the last record of a draft.
fn forced(draft: &Draft, kind: impl Into<Kind>, base: u64) -> Vec<u8> {
    let head = &draft.session.head;
    let (line, _) = chain::encode(head.seq + 1, &at(), &kind.into(), base, &head.hash);
    [draft.bytes.as_slice(), &line, b"\n"].concat()
}

/// Bytes of the lines of a journal, their newlines included.
fn lines(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// Puts a hash that holds behind a changed line.
fn rehashed(line: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = std::str::from_utf8(line).expect("text");
    let covered = &text[..text.len() - 1 - chain::HASH_SUFFIX_BYTES];
    assert!(covered.contains(from), "{from} in {covered}");
    let covered = covered.replacen(from, to, 1);
    format!("{covered},\"hash\":\"{}\"}}\n", chain::digest(covered.as_bytes())).into_bytes()
}

fn put(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("changed");
}

struct World {
    dir: tempfile::TempDir,
    root: Root,
}

/// How a check is asked for.
struct Wish<'a> {
    heads: Vec<Head>,
    acknowledged: Acknowledged,
    trees: Trees<'a>,
}

fn plain() -> Wish<'static> {
    Wish { heads: Vec::new(), acknowledged: Acknowledged::Warning, trees: Trees::No }
}

fn with_tree() -> Wish<'static> {
    Wish { trees: Trees::Recorded, ..plain() }
}

fn ask_of(
    storage: &dyn Storage,
    root: &Root,
    path: &Path,
    place: Place<'_>,
    user: u32,
    wish: &Wish<'_>,
) -> Report {
    let clock = Monotonic::new();
    let setting = Setting {
        storage,
        root,
        clock: &clock,
        wait: Duration::ZERO,
        line_bytes_max: 1 << 20,
        signal: &|| None,
    };
    let policy = Policy::built_in();
    let now = Now { at: at(), policy: &policy, look: &|_| Sighting::Gone };
    let ask = Ask { acknowledged: wish.acknowledged, trees: wish.trees, now: &now, user, progress: &|_| () };
    journal(setting, path, place, &wish.heads, &ask)
}

/// A journal alone, in memory.
fn alone(bytes: &[u8]) -> Report {
    let storage = MemoryStorage::new();
    storage.write("/j", bytes);
    ask_of(&storage, &Root::new("/r"), Path::new("/j"), Place::Alone, 0, &plain())
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let root = Root::new(dir.path().join("root"));
        for folder in [root.path().to_owned(), root.sessions_dir(), root.quarantine_dir()] {
            FileStorage.create_dir(&folder).expect("made");
        }
        Self { dir, root }
    }

    fn user(&self) -> u32 {
        FileStorage.inspect(self.root.path()).expect("there").uid
    }

    fn journal(&self, bytes: &[u8], wish: &Wish<'_>) -> Report {
        let path = self.root.journal("s").expect("an id");
        put(&path, bytes);
        self.look(&path, wish)
    }

    fn look(&self, path: &Path, wish: &Wish<'_>) -> Report {
        ask_of(&FileStorage, &self.root, path, Place::InRoot(&self.root), self.user(), wish)
    }

    fn chat(&self) -> PathBuf {
        self.dir.path().join("chat.jsonl")
    }

    fn tree(&self) -> tree::Tree {
        tree::read(fs::read(self.chat()).unwrap_or_default())
    }
}

fn codes(report: &Report) -> Vec<Code> {
    report.findings.iter().map(|finding| finding.code).collect()
}

fn is(report: &Report, verdict: &str, expected: &[Code]) {
    assert_eq!((report.verdict(), codes(report)), (verdict, expected.to_vec()), "{:#?}", report.findings);
}

#[test]
fn a_sound_journal_tells_its_head() {
    let draft = small();
    let report = World::new().journal(&draft.bytes, &plain());
    is(&report, "sound", &[Code::OpenTurn]);
    assert_eq!(report.session.as_deref(), Some("s"));
    assert_eq!((report.records, report.bytes), (6, draft.bytes.len() as u64));
    assert_eq!(report.head.expect("a head").to_string(), draft.session.head.head());
}

#[test]
fn every_cut_is_a_crash_or_a_shorter_journal() {
    let bytes = small().bytes;
    for cut in 0..bytes.len() {
        let report = alone(&bytes[..cut]);
        let told: Vec<Code> =
            codes(&report).into_iter().filter(|code| code.severity() > Severity::Warning).collect();
        let (verdict, expected) = match bytes.get(cut) {
            _ if cut == 0 => ("needs-recovery", vec![Code::EmptyJournal]),
            _ if bytes[cut - 1] == b'\n' => ("sound", vec![]),
            Some(b'\n') => ("needs-recovery", vec![Code::MissingNewline]),
            _ => ("needs-recovery", vec![Code::TornTail]),
        };
        assert_eq!((report.verdict(), told), (verdict, expected), "cut at {cut}");
        let whole = memchr::memchr_iter(b'\n', &bytes[..cut]).count() as u64;
        let counted = whole + u64::from(bytes[cut] == b'\n' && cut > 0);
        assert_eq!(report.records, counted, "cut at {cut}");
    }
}

#[test]
fn a_torn_record_is_told_by_place_and_kind() {
    let draft = small();
    let cut = draft.bytes.len() - 100;
    let begin = draft.bytes[..cut].iter().rposition(|byte| *byte == b'\n').expect("a line") + 1;
    let report = alone(&draft.bytes[..cut]);
    let torn = report.findings.first().expect("a finding");
    assert_eq!(
        (torn.line, torn.offset, torn.bytes),
        (Some(6), Some(begin as u64), Some((cut - begin) as u64))
    );
    assert_eq!(
        torn.message,
        format!(
            "torn tail at byte {begin} after record 4: {} bytes of a write that was never acknowledged; \
             it was to be a \"admitted\" record",
            cut - begin
        )
    );
}

#[test]
fn every_flipped_bit_is_damage() {
    let bytes = lines(&small().bytes)[..4].concat();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(alone(&flipped).verdict(), "damaged", "bit {bit}");
    }
}

#[test]
fn every_line_taken_out_but_the_last_is_damage() {
    let lines = lines(&small().bytes);
    for out in 0..lines.len() {
        let bytes: Vec<u8> = lines
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != out)
            .flat_map(|(_, line)| line.clone())
            .collect();
        let verdict = if out + 1 == lines.len() { "sound" } else { "damaged" };
        assert_eq!(alone(&bytes).verdict(), verdict, "line {out}");
    }
}

#[test]
fn nothing_makes_it_panic() {
    let bytes = small().bytes;
    for junk in [
        b"\n".as_slice(),
        b"\n\n\n",
        b"{}\n",
        b"\0\0\0\n\0",
        b"\xff\xfe\n",
        br#"{"seq":18446744073709551615,"at":""#,
        br#","hash":"}"#,
    ] {
        alone(junk);
        alone(&[bytes.as_slice(), junk].concat());
        alone(&[junk, bytes.as_slice()].concat());
    }
}

#[test]
fn two_cores_find_what_one_finds() {
    let mut draft = genesis();
    draft.push(admitted("t1", None, None)).expect("fits");
    draft.push(attempt(1, Cause::Admit)).expect("fits");
    let text = "x".repeat(400);
    // Each draft is checked record by record, so one line is copied with its own numbers instead.
    let (mut bytes, mut head) = (draft.bytes.clone(), draft.session.head.clone());
    let base = draft.session.base_after(&note("").into(), 0);
    for _ in 0..12_000 {
        let (line, hash) = chain::encode(head.seq + 1, &at(), &note(&text).into(), base, &head.hash);
        (head.seq, head.hash) = (head.seq + 1, hash);
        bytes.extend_from_slice(&line);
        bytes.push(b'\n');
    }
    assert!(bytes.len() > 5 * 1024 * 1024, "more than one batch");
    let report = alone(&bytes);
    assert_eq!((report.verdict(), report.records), ("sound", 12_003));
    assert_eq!(report.head.expect("a head").to_string(), head.head());
    let place = bytes.len() - 2_000;
    bytes[place] ^= 1;
    let report = alone(&bytes);
    let flipped: Vec<_> = report.findings.iter().filter(|found| found.severity == Severity::Damage).collect();
    assert_eq!(flipped.len(), 1, "{flipped:#?}");
    assert!(flipped[0].offset.expect("an offset") <= place as u64);
}

#[test]
fn heads_must_be_in_it() {
    let draft = small();
    let head: Head = draft.session.head.head().parse().expect("a head");
    let old: Head = format!("0:{}", draft.session.genesis).parse().expect("a head");
    let wish = |heads: Vec<Head>| Wish { heads, ..plain() };
    let world = World::new();
    is(&world.journal(&draft.bytes, &wish(vec![old, head.clone()])), "sound", &[Code::OpenTurn]);
    let cut: Vec<u8> = lines(&draft.bytes)[..4].concat();
    let report = world.journal(&cut, &wish(vec![head]));
    assert_eq!((report.verdict(), codes(&report)[0]), ("conflict", Code::HeadMissing));
}

/// A journal with damage in line 4, and a `repaired` that acknowledges it.
fn salvaged(sha_of: &[u8]) -> Vec<u8> {
    let mut draft = genesis();
    draft.push(admitted("t1", None, None)).expect("fits");
    draft.push(attempt(1, Cause::Admit)).expect("fits");
    let before = draft.clone();
    draft.push(note("lost")).expect("fits");
    let mut broken = lines(&draft.bytes)[3].clone();
    broken[40] ^= 1;
    let offset = before.bytes.len() as u64;
    let bad = if sha_of.is_empty() { broken.as_slice() } else { sha_of };
    let repaired = Repaired {
        offset,
        bytes: broken.len() as u64,
        sha256: chain::digest(bad),
        saved_as: None,
        why: "salvage".into(),
    };
    let head = &before.session.head;
    let base = before.session.base_after(&note("").into(), 0);
    let (line, _) = chain::encode(head.seq + 2, &at(), &repaired.into(), base, &head.hash);
    [before.bytes.as_slice(), &broken, &line, b"\n"].concat()
}

#[test]
fn acknowledged_damage_is_a_warning_unless_strict() {
    let world = World::new();
    let bytes = salvaged(b"");
    let notes = [Code::OpenTurn, Code::Parked, Code::OwnerGone];
    let told = |first: &[Code]| [first, &notes].concat();
    let acknowledged = [Code::AcknowledgedDamage];
    is(&world.journal(&bytes, &plain()), "sound", &told(&acknowledged));
    let strict = Wish { acknowledged: Acknowledged::Damage, ..plain() };
    is(&world.journal(&bytes, &strict), "damaged", &told(&acknowledged));
    let other = world.journal(&salvaged(b"other bytes"), &plain());
    is(&other, "damaged", &told(&[Code::RepairMismatch, Code::HashMismatch]));
}

#[test]
fn cut_bytes_are_in_quarantine() {
    let cut = b"{\"seq\":";
    let repaired = |name: &str| Repaired {
        offset: 0,
        bytes: cut.len() as u64,
        sha256: chain::digest(cut),
        saved_as: Some(name.to_owned()),
        why: "torn tail".into(),
    };
    let with = |name: &str| {
        let mut draft = genesis();
        draft.push(repaired(name)).expect("fits");
        draft.bytes
    };
    let world = World::new();
    let kept = format!("quarantine/s.0.{}", &chain::digest(cut).as_str()[..16]);
    is(&world.journal(&with(&kept), &plain()), "damaged", &[Code::QuarantineMissing]);
    put(&world.root.path().join(&kept), cut);
    is(&world.journal(&with(&kept), &plain()), "sound", &[]);
    put(&world.root.path().join(&kept), b"{\"seq\"!");
    is(&world.journal(&with(&kept), &plain()), "damaged", &[Code::QuarantineDiffers]);
    // Its bytes alone do not make it the file that a repair kept.
    put(&world.root.path().join("loose"), cut);
    put(&world.root.path().join("quarantine/s.0.x"), cut);
    for name in ["quarantine/../loose", "loose", "quarantine/", "quarantine/..", "quarantine/s.0.x"] {
        is(&world.journal(&with(name), &plain()), "damaged", &[Code::QuarantineDiffers]);
    }
    is(&alone(&with(&kept)), "sound", &[Code::QuarantineUnchecked]);
}

/// A state root, a session file, and the journal of a turn that was admitted on its last entry.
fn chat() -> (World, Draft) {
    let world = World::new();
    let lines = [
        r#"{"type":"session","version":3,"id":"sess-1","timestamp":"2026-11-29T15:00:00.000Z","cwd":"/"}"#,
        r#"{"type":"message","id":"aa000001","parentId":null,"timestamp":"2026-11-29T15:00:00.000Z","message":{"role":"user","content":"hi","timestamp":1}}"#,
    ];
    fs::write(world.chat(), lines.join("\n") + "\n").expect("written");
    let read = world.tree();
    let admitted_on = AdmittedTree {
        path: world.chat().to_string_lossy().into_owned(),
        format: "pi/3".into(),
        header_id: Some("sess-1".into()),
        leaf: Some("aa000001".into()),
        leaf_at: Some(read.entries[0].offset),
        bytes: read.size,
        mode: TreeMode::Append,
    };
    let mut draft = genesis();
    draft.push(admitted("t1", None, Some(admitted_on))).expect("fits");
    draft.push(attempt(1, Cause::Admit)).expect("fits");
    (world, draft)
}

/// Writes what the branch lacks.
fn write_branch(world: &World, draft: &Draft, extent: Extent) -> branch::Plan {
    let turn = draft.session.turn(&turn()).expect("a turn");
    let plan = branch::plan("s", turn, &draft.history, &world.tree(), extent).expect("a plan");
    let mut bytes = fs::read(world.chat()).unwrap_or_default();
    for entry in &plan.write {
        bytes.extend_from_slice(entry.get().as_bytes());
        bytes.push(b'\n');
    }
    fs::write(world.chat(), bytes).expect("written");
    plan
}

/// The same turn, recovered: a branch with a marker, and the record of it.
fn recovered() -> (World, Draft) {
    let (world, mut draft) = chat();
    draft.push(said("so far")).expect("fits");
    draft.push(attempt(2, Cause::Recover)).expect("fits");
    let plan = write_branch(&world, &draft, Extent::Recover);
    let branch = Branch {
        path: world.chat().to_string_lossy().into_owned(),
        from: plan.from.clone(),
        leaf: plan.leaf.clone().expect("a leaf"),
        entries: plan.entries,
    };
    draft
        .push(Recovered { turn: turn(), attempt: 2, decisions: Vec::new(), branch: Some(branch) })
        .expect("fits");
    (world, draft)
}

/// What is told beside the state of the turn.
fn told(report: &Report) -> Vec<Code> {
    let state = [Code::OpenTurn, Code::OwnerGone, Code::RecoverUnfinished, Code::TreeForked];
    codes(report).into_iter().filter(|code| !state.contains(code)).collect()
}

fn edit(world: &World, change: impl FnOnce(String) -> String) {
    let text = fs::read_to_string(world.chat()).expect("read");
    let changed = change(text.clone());
    assert_ne!(text, changed);
    fs::write(world.chat(), changed).expect("written");
}

#[test]
fn a_branch_that_says_what_the_journal_says_is_sound() {
    let (world, draft) = recovered();
    assert_eq!(told(&world.journal(&draft.bytes, &with_tree())), []);
    let moved = world.dir.path().join("moved.jsonl");
    fs::rename(world.chat(), &moved).expect("moved");
    let report = world.journal(&draft.bytes, &with_tree());
    assert_eq!((report.verdict(), told(&report)), ("damaged", vec![Code::TreeMissing]));
    let at = Wish { trees: Trees::At(&moved), ..plain() };
    assert_eq!(told(&world.journal(&draft.bytes, &at)), []);
}

#[test]
fn steps_that_the_file_lacks_are_named() {
    let (world, mut draft) = chat();
    write_branch(&world, &draft, Extent::Steps);
    let before = draft.bytes.len();
    draft.push(said("not there")).expect("fits");
    let report = world.journal(&draft.bytes, &with_tree());
    assert_eq!((report.verdict(), told(&report)), ("needs-recovery", vec![Code::BranchBehind]));
    let id = tree::entry_id("t1", draft.session.head.hash.as_str(), "entry");
    assert!(report.findings.iter().any(|found| found.message.contains(&id)), "{:#?}", report.findings);
    // The same file with the step in it, and a journal that lost it.
    write_branch(&world, &draft, Extent::Steps);
    assert_eq!(told(&world.journal(&draft.bytes, &with_tree())), []);
    let report = world.journal(&draft.bytes[..before], &with_tree());
    assert_eq!((report.verdict(), told(&report)), ("damaged", vec![Code::EntryUnknown]));
}

#[test]
fn a_new_file_that_a_crash_kept_from_being_made_is_behind() {
    let (world, _) = chat();
    fs::remove_file(world.chat()).expect("removed");
    let tree = AdmittedTree {
        path: world.chat().to_string_lossy().into_owned(),
        format: "pi/3".into(),
        header_id: None,
        leaf: None,
        leaf_at: None,
        bytes: 0,
        mode: TreeMode::Append,
    };
    let mut draft = genesis();
    draft.push(admitted("t1", None, Some(tree))).expect("fits");
    let report = world.journal(&draft.bytes, &with_tree());
    assert_eq!((report.verdict(), told(&report)), ("needs-recovery", vec![Code::BranchBehind]));
}

#[test]
fn a_changed_entry_and_a_lost_one_are_damage() {
    let (world, draft) = recovered();
    let whole = fs::read_to_string(world.chat()).expect("read");
    edit(&world, |text| text.replace("so far", "so good"));
    let report = world.journal(&draft.bytes, &with_tree());
    assert_eq!((report.verdict(), told(&report)), ("damaged", vec![Code::BranchContent]));
    // The marker is gone.
    let cut = whole.trim_end().rfind('\n').expect("lines") + 1;
    fs::write(world.chat(), &whole[..cut]).expect("written");
    let report = world.journal(&draft.bytes, &with_tree());
    assert_eq!((report.verdict(), told(&report)), ("damaged", vec![Code::BranchEntryMissing]));
    fs::write(world.chat(), whole.replace("sess-1", "sess-2")).expect("written");
    let report = world.journal(&draft.bytes, &with_tree());
    assert_eq!((report.verdict(), told(&report)), ("damaged", vec![Code::TreeOther]));
    fs::write(world.chat(), whole.replace("\"aa000001\",\"parentId\":null", "\"ab\",\"parentId\":null"))
        .expect("written");
    let report = world.journal(&draft.bytes, &with_tree());
    assert!(told(&report).contains(&Code::TreeLeafMissing), "{:#?}", report.findings);
}

#[test]
fn a_journal_cut_on_a_line_is_seen_in_the_tree() {
    let (world, draft) = recovered();
    let lines = lines(&draft.bytes);
    // The marker carries the newest record in front of `recovered`, or an older one.
    for kept in 1..=lines.len() {
        let bytes = lines[..kept].concat();
        let chat = world.chat();
        let at = Wish { trees: Trees::At(&chat), ..plain() };
        let report = world.journal(&bytes, &at);
        let verdict = if kept < 4 { "damaged" } else { "sound" };
        assert_eq!(report.verdict(), verdict, "{kept} lines: {:#?}", report.findings);
        if kept < 4 {
            assert!(codes(&report).contains(&Code::BranchMarker));
        }
        assert_eq!(world.journal(&bytes, &plain()).verdict(), "sound", "alone nothing shows");
    }
    let chat = world.chat();
    let empty = world.journal(b"", &Wish { trees: Trees::At(&chat), ..plain() });
    is(&empty, "damaged", &[Code::EmptyJournal, Code::BranchMarker]);
}

#[test]
fn a_damaged_journal_is_not_held_against_its_tree() {
    let (world, draft) = recovered();
    let without_genesis = lines(&draft.bytes)[1..].concat();
    let report = world.journal(&without_genesis, &with_tree());
    is(&report, "damaged", &[Code::NoGenesis, Code::TreeUnchecked]);
}

#[test]
fn the_worked_example_is_sound() {
    let journal = include_bytes!("../../fixtures/worked-example/journal.jsonl");
    let tree = include_bytes!("../../fixtures/worked-example/tree.jsonl");
    let world = World::new();
    fs::write(world.chat(), tree).expect("written");
    let path = world.root.journal("room-42").expect("an id");
    put(&path, journal);
    is(&world.look(&path, &plain()), "sound", &[]);
    let chat = world.chat();
    let at = Wish { trees: Trees::At(&chat), ..plain() };
    is(&world.look(&path, &at), "sound", &[]);
    let text = String::from_utf8(tree.to_vec()).expect("text");
    fs::write(&chat, text.replace("order 17", "order 18")).expect("written");
    is(&world.look(&path, &at), "damaged", &[Code::BranchContent]);
}

#[test]
fn who_may_read_a_state_root() {
    let world = World::new();
    let draft = small();
    let path = world.root.journal("s").expect("an id");
    put(&path, &draft.bytes);
    for (name, mode) in
        [(path.clone(), 0o644), (world.root.sessions_dir(), 0o750), (world.root.path().to_owned(), 0o701)]
    {
        let before = fs::metadata(&name).expect("there").permissions();
        fs::set_permissions(&name, fs::Permissions::from_mode(mode)).expect("changed");
        let report = world.look(&path, &plain());
        is(&report, "sound", &[Code::OpenToOthers, Code::OpenTurn]);
        assert_eq!(report.findings[0].path.file_name(), name.file_name());
        fs::set_permissions(&name, before).expect("changed back");
    }
    let stranger =
        ask_of(&FileStorage, &world.root, &path, Place::InRoot(&world.root), world.user() + 1, &plain());
    is(&stranger, "sound", &[Code::ForeignOwner, Code::ForeignOwner, Code::ForeignOwner, Code::OpenTurn]);
}

#[test]
fn links_and_other_things_in_the_place_of_a_journal() {
    let world = World::new();
    let outside = world.dir.path().join("victim.jsonl");
    put(&outside, &small().bytes);
    let path = world.root.journal("s").expect("an id");
    symlink(&outside, &path).expect("linked");
    is(&world.look(&path, &plain()), "conflict", &[Code::Link]);
    let folder = world.root.journal("folder").expect("an id");
    FileStorage.create_dir(&folder).expect("made");
    is(&world.look(&folder, &plain()), "unreadable", &[Code::Unreadable]);
    let gone = world.root.journal("gone").expect("an id");
    is(&world.look(&gone, &plain()), "unreadable", &[Code::Unreadable]);
    is(&Report::missing(&gone), "conflict", &[Code::FileMissing]);
}

#[test]
fn what_a_state_root_holds_beside_journals() {
    let world = World::new();
    let check = |saved: &[&str]| {
        let saved: BTreeSet<String> = saved.iter().map(|name| (*name).to_owned()).collect();
        root(&FileStorage, &world.root, &saved, world.user())
    };
    is(&check(&[]), "sound", &[]);
    put(&world.root.quarantine_dir().join("s.0.abc"), b"x");
    is(&check(&["quarantine/s.0.abc"]), "sound", &[]);
    is(&check(&[]), "sound", &[Code::LeftoverFile]);
    put(&world.root.sessions_dir().join("s.jsonl~"), b"x");
    put(&world.root.path().join("heads.1.tmp"), b"x");
    is(&check(&["quarantine/s.0.abc"]), "sound", &[Code::LeftoverFile, Code::LeftoverFile]);
    symlink("/nowhere", world.root.quarantine_dir().join("a")).expect("linked");
    assert!(codes(&check(&["quarantine/s.0.abc"])).contains(&Code::Link));
}

/// Journals that show one code each. The codes of session files have their tests with the tree.
fn specimens(world: &World) -> Vec<(Code, Report)> {
    let draft = small();
    let all = lines(&draft.bytes);
    let instead = |line: usize, new: Vec<u8>| {
        let mut all = all.clone();
        all[line] = new;
        world.journal(&all.concat(), &plain())
    };
    let hash_holds = |bytes: &[u8]| {
        let mut line = bytes.to_vec();
        line.extend_from_slice(format!(",\"hash\":\"{}\"}}\n", chain::digest(bytes)).as_bytes());
        line
    };
    let deep = "[".repeat(1_001) + &"]".repeat(1_001);
    let mut flipped = all[3].clone();
    flipped[30] ^= 1;
    let mut unended = draft.bytes.clone();
    unended.pop();
    unended.push(b' ');
    let base = |draft: &Draft| draft.session.base_after(&note("").into(), draft.end());
    let mut open = genesis();
    open.push(admitted("t1", Some("k"), None)).expect("fits");
    open.push(attempt(1, Cause::Admit)).expect("fits");
    let mut undelivered = open.clone();
    undelivered.push(settled()).expect("fits");
    let sent = Delivery {
        turn: turn(),
        attempt: 1,
        state: DeliveryState::Sent,
        key: "k".into(),
        receipt: None,
        by: None,
        why: None,
        runner: None,
    };
    let mut parked = open.clone();
    parked.push(Parked { turn: turn(), why: "no progress".into(), by: "turnkeep".into() }).expect("fits");
    let mut unfinished = open.clone();
    unfinished.push(attempt(2, Cause::Recover)).expect("fits");
    let rerun = |replay: Replay| {
        let mut draft = claimed(replay);
        draft.push(attempt(2, Cause::Recover)).expect("fits");
        let decided = Decided {
            r#ref: CallRef { seq: 3, position: 0 },
            decision: Decision::Rerun,
            why: "-".into(),
            replay_stored: replay,
            replay_now: Replay::Safe,
        };
        let recovered = Recovered { turn: turn(), attempt: 2, decisions: vec![decided], branch: None };
        world.journal(&forced(&draft, recovered, base(&draft)), &plain())
    };
    assert_eq!(rerun(Replay::Safe).verdict(), "sound", "the policy allows it");
    let mut without_newline = draft.bytes.clone();
    without_newline.pop();
    vec![
        (Code::TornTail, world.journal(&draft.bytes[..draft.bytes.len() - 9], &plain())),
        (Code::MissingNewline, world.journal(&without_newline, &plain())),
        (Code::EmptyJournal, world.journal(b"", &plain())),
        (Code::NotUtf8, instead(3, hash_holds(b"{\"seq\":3,\xff"))),
        (Code::Framing, instead(3, b"\n".to_vec())),
        (Code::HashMismatch, instead(3, flipped)),
        (Code::Envelope, instead(3, rehashed(&all[3], "\"seq\":3", "\"seq\":03"))),
        (Code::UnknownKind, instead(3, rehashed(&all[3], "\"kind\":\"message\"", "\"kind\":\"thought\""))),
        (Code::Fields, instead(3, rehashed(&all[3], "\"attempt\":1", "\"attempt\":1,\"more\":1"))),
        (Code::TooDeep, instead(3, rehashed(&all[3], "\"format\"", &format!("\"deep\":{deep},\"format\"")))),
        (Code::Spelling, instead(3, rehashed(&all[3], "\"attempt\":1", "\"attempt\": 1"))),
        (Code::Chain, world.journal(&[all[..3].concat(), all[4..].concat()].concat(), &plain())),
        (Code::Base, world.journal(&forced(&open, note("x"), 0), &plain())),
        (Code::IllegalTransition, world.journal(&forced(&undelivered, sent, 3), &plain())),
        (Code::Policy, rerun(Replay::Never)),
        (Code::NoGenesis, world.journal(&all[1..].concat(), &plain())),
        (Code::DamagedTail, world.journal(&unended, &plain())),
        (Code::OtherSession, {
            let path = world.root.journal("other").expect("an id");
            put(&path, &draft.bytes);
            world.look(&path, &plain())
        }),
        (Code::OtherFormat, {
            let newer = rehashed(&all[0], "turnkeep/1", "turnkeep/2");
            world.journal(&[newer, b"whatever".to_vec()].concat(), &plain())
        }),
        (Code::OpenTurn, world.journal(&draft.bytes, &plain())),
        (Code::OwnerGone, world.journal(&open.bytes, &plain())),
        (Code::Undelivered, world.journal(&undelivered.bytes, &plain())),
        (Code::Parked, world.journal(&parked.bytes, &plain())),
        (Code::RecoverUnfinished, world.journal(&unfinished.bytes, &plain())),
    ]
}

#[test]
fn every_code_is_found_where_it_belongs() {
    let world = World::new();
    let mut shown = BTreeSet::new();
    for (code, report) in specimens(&world) {
        let found = report.findings.iter().find(|finding| finding.code == code);
        let found = found.unwrap_or_else(|| panic!("{code:?} in {:#?}", report.findings));
        assert_eq!(found.severity, code.severity());
        assert!(report.worst() >= code.severity());
        if code.severity() < Severity::Damage {
            assert_eq!(report.worst(), code.severity(), "{code:?}: {:#?}", report.findings);
        }
        shown.insert(code.code());
    }
    // These have tests of their own above.
    let elsewhere = [
        Code::BranchBehind,
        Code::QuarantineMissing,
        Code::QuarantineDiffers,
        Code::RepairMismatch,
        Code::HeadMissing,
        Code::Link,
        Code::FileMissing,
        Code::Unreadable,
        Code::AcknowledgedDamage,
        Code::OpenToOthers,
        Code::ForeignOwner,
        Code::LeftoverFile,
        Code::QuarantineUnchecked,
        Code::OtherName,
        Code::TreeMissing,
        Code::BranchContent,
        Code::BranchMarker,
        Code::BranchEntryMissing,
        Code::EntryUnknown,
        Code::TreeOther,
        Code::TreeUnchecked,
        Code::BranchPlace,
    ];
    shown.extend(elsewhere.iter().map(|code| code.code()));
    let rest: Vec<&str> =
        Code::ALL.iter().filter(|code| !shown.contains(code.code())).map(|code| code.name()).collect();
    assert!(rest.iter().all(|name| name.starts_with("tree-")), "{rest:?}");
}

#[test]
fn codes_are_stable_and_named_once() {
    let unique = |of: fn(&Code) -> &'static str| Code::ALL.iter().map(of).collect::<BTreeSet<_>>().len();
    assert_eq!(unique(|code| code.code()), Code::ALL.len());
    assert_eq!(unique(|code| code.name()), Code::ALL.len());
    assert_eq!((Code::TornTail.code(), Code::TornTail.name()), ("TK001", "torn-tail"));
}

/// Each remark that a session file can get has a code of its own.
#[test]
fn the_codes_of_session_files_are_those_of_the_tree() {
    let sources =
        [include_str!("../tree/check.rs"), include_str!("../tree/calls.rs"), include_str!("../tree/sent.rs")];
    let mut named = BTreeSet::new();
    for source in sources {
        for part in source.split("\"tree-").skip(1) {
            named.insert(format!("tree-{}", part.split('"').next().expect("a name")));
        }
    }
    assert!(named.len() > 25, "{named:?}");
    for name in &named {
        assert_eq!(Code::of_tree(name).name(), name);
    }
    let ours = ["tree-missing", "tree-other", "tree-unchecked"];
    for code in
        Code::ALL.iter().filter(|code| code.name().starts_with("tree-") && !ours.contains(&code.name()))
    {
        assert!(named.contains(code.name()), "{code:?} is never found");
    }
}
