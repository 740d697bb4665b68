//! Any bytes as a journal: as they are, and with the hashes of their lines made right.
//!
//! Nothing is called sound that encoding it again does not give; verifying and loading, from the beginning and from
//! the newest `base`, agree; a writer that opens it keeps every byte.

use crate::world::{at, setting, verify};
use turnkeep::chain::{self, HASH_SUFFIX_BYTES};
use turnkeep::journal::load::{self, Reach};
use turnkeep::journal::{Journal, Loaded};
use turnkeep::paths::Root;
use turnkeep::record::Hash;
use turnkeep::scan::{Expected, Tail, lines};
use turnkeep::storage::{MemoryStorage, Storage as _};
use turnkeep::turn::Retain;
use turnkeep::verify::{Code, Report, Severity};

pub fn run(bytes: &[u8]) {
    judge(bytes);
    judge(&mended(bytes));
}

/// The same lines with `prev` and `hash` as they have to be.
fn mended(bytes: &[u8]) -> Vec<u8> {
    let mut mended = Vec::new();
    let mut prev = Hash::none();
    for line in lines(bytes, 0) {
        match line.bytes.windows(9).rposition(|window| window == br#","prev":""#) {
            Some(at) if line.bytes.starts_with(b"{") => {
                let mut whole = line.bytes[..at].to_vec();
                whole.extend(format!(r#","prev":"{prev}""#).bytes());
                prev = chain::digest(&whole);
                whole.extend(format!(r#","hash":"{prev}"}}"#).bytes());
                mended.extend(whole);
            }
            _ => mended.extend(line.bytes),
        }
        mended.extend(line.ended.then_some(b'\n'));
    }
    mended
}

/// Everything that is demanded of the bytes of a journal.
pub fn judge(bytes: &[u8]) {
    judge_by(bytes, |bytes| verify(bytes, &[]), loaded);
}

/// The same of what somebody says who verifies it, and who loads it.
pub fn judge_by(bytes: &[u8], verify: impl Fn(&[u8]) -> Report, loaded: impl Fn(&[u8], Reach) -> Loaded) {
    let report = verify(bytes);
    let all = loaded(bytes, Reach::All(Retain::All));
    let base = loaded(bytes, Reach::Base);
    assert_eq!(report.worst() == Severity::OtherFormat, all.other_format.is_some(), "of another format");
    if all.other_format.is_some() {
        return;
    }
    let acknowledged = report.findings.iter().any(|found| found.code == Code::AcknowledgedDamage);
    let mismatch = report.findings.iter().any(|found| found.code == Code::RepairMismatch);
    let found = report.worst() == Severity::Damage;
    assert_eq!(
        found && !mismatch,
        !all.damage.is_empty() && !mismatch,
        "verify and load: {report:?} {:?}",
        all.damage
    );
    if found {
        return;
    }
    // A base may lead past damage that somebody acknowledged, but never to another state.
    assert_eq!(
        base.session.as_ref().map(state),
        all.session.as_ref().map(state),
        "from base and from the beginning"
    );
    assert!(base.damage.is_empty() && base.tail == all.tail && base.end == all.end);
    if !acknowledged {
        again(bytes, &all);
    }
    write(bytes, &all);
}

/// What a writer knows of a journal.
pub fn loaded(bytes: &[u8], reach: Reach) -> Loaded {
    let storage = MemoryStorage::new();
    storage.write("/j", bytes);
    let file = storage.open_read("/j".as_ref()).expect("opened");
    load::load(file.as_ref(), reach).expect("memory can be read")
}

/// What decisions are made from: the turns that are not closed.
fn state(session: &turnkeep::turn::Session) -> String {
    let turns: Vec<_> = session.unclosed().collect();
    format!("{} {} {:?} {turns:?}", session.id, session.genesis, session.head)
}

/// What is sound is what encoding gives, byte for byte, from the first line to the last.
fn again(bytes: &[u8], all: &Loaded) {
    let mut next = Expected::genesis();
    let mut written = Vec::new();
    for line in lines(bytes, 0) {
        let ended = line.ended;
        let text = if line.ended { line.bytes } else { without_nuls(line.bytes) };
        let Ok(record) = chain::decode(text) else {
            assert!(!line.ended, "line at byte {} is sound and does not decode", line.offset);
            assert!(matches!(all.tail, Tail::Torn { .. }), "{:?}", all.tail);
            break;
        };
        assert!(next.fits(&record), "the chain at seq {}", record.seq);
        assert!(record.base <= line.offset, "base at seq {}", record.seq);
        let (line, hash) = chain::encode(record.seq, &record.at, &record.kind, record.base, &record.prev);
        assert!(hash == record.hash && line == text, "record {} is spelled otherwise", record.seq);
        assert!(line.len() > HASH_SUFFIX_BYTES);
        written.extend(line);
        written.extend(ended.then_some(b'\n'));
        next = Expected::behind(&record);
    }
    assert!(bytes.starts_with(&written), "the bytes are others");
}

fn without_nuls(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len() - bytes.iter().rev().take_while(|byte| **byte == 0).count()]
}

/// A writer repairs a torn tail, keeps every byte, and leaves something sound.
fn write(bytes: &[u8], all: &Loaded) {
    let id = all.session.as_ref().map_or("room-7", |session| &session.id).to_owned();
    let (storage, root) = (MemoryStorage::new(), Root::new("/root"));
    let Ok(path) = root.journal(&id) else { return };
    storage.write(&path, bytes);
    let setting = setting(&storage, &root);
    let mut journal = Journal::open_or_create(setting, &id).expect("what is not damaged opens");
    journal.record(at(), "01942f5e-0000-7000-8000-00000000000f", Vec::new()).expect("written");
    drop(journal);
    let after = storage.read(&path);
    let kept = match &all.tail {
        Tail::Torn { offset, bytes: many } => {
            let (offset, many) =
                (usize::try_from(*offset).expect("small"), usize::try_from(*many).expect("small"));
            let name = turnkeep::paths::quarantine_name(
                path.file_stem().and_then(|stem| stem.to_str()).expect("a name"),
                offset as u64,
                &chain::digest(&bytes[offset..]),
            );
            assert!(
                storage.read(root.quarantine_dir().join(name)) == bytes[offset..offset + many],
                "what was cut is kept"
            );
            &bytes[..offset]
        }
        Tail::NoNewline { .. } => without_nuls(bytes),
        Tail::Clean | Tail::Damaged { .. } => bytes,
    };
    assert!(after.starts_with(kept), "what was written stays");
    assert_eq!(verify(&after, &[]).verdict(), "sound", "behind a repair");
}
