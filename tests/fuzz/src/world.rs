//! Surroundings in which everything is fixed: a disk in memory, a clock that stands, processes that are gone.

use std::path::Path;
use std::time::Duration;
use turnkeep::journal::Setting;
use turnkeep::lock::Clock;
use turnkeep::paths::Root;
use turnkeep::policy::Policy;
use turnkeep::record::At;
use turnkeep::storage::MemoryStorage;
use turnkeep::turn::decide::{Now, Sighting};
use turnkeep::verify::{self, Acknowledged, Ask, Head, Place, Report, Trees};

pub const POLICY: &str = r#"{"format":"turnkeep-policy/1","rules":[{"tool":"read","replay":"safe"},{"tool":"put_object","replay":"keyed"},{"tool":"charge","replay":"never","unknown":"hold"},{"tool":"deploy","replay":"never","approval":"required"}]}"#;

/// A clock that stands: nothing here waits for anybody.
pub struct Still;

impl Clock for Still {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _time: Duration) {}
}

pub fn at() -> At {
    At::from_micros(1_796_000_000_000_000)
}

pub fn policy() -> Policy {
    Policy::parse(POLICY.as_bytes(), "fixed").expect("a policy")
}

pub fn now(policy: &Policy) -> Now<'_> {
    Now { at: at(), policy, look: &|_| Sighting::Gone }
}

pub fn setting<'s>(storage: &'s MemoryStorage, root: &'s Root) -> Setting<'s> {
    Setting {
        storage,
        root,
        clock: &Still,
        wait: Duration::ZERO,
        line_bytes_max: turnkeep::chain::LINE_BYTES_MAX,
        signal: &|| None,
    }
}

/// What `verify` says about a journal that stands alone.
pub fn verify(bytes: &[u8], heads: &[Head]) -> Report {
    let storage = MemoryStorage::new();
    storage.write("/journal.jsonl", bytes);
    verify_with(&storage, heads, Trees::No)
}

/// The same of `/journal.jsonl` of a disk, with its session tree or without.
pub fn verify_with(storage: &MemoryStorage, heads: &[Head], trees: Trees<'_>) -> Report {
    let (root, policy) = (Root::new("/root"), policy());
    let ask =
        Ask { acknowledged: Acknowledged::Warning, trees, now: &now(&policy), user: 0, progress: &|_| () };
    verify::journal(setting(storage, &root), Path::new("/journal.jsonl"), Place::Alone, heads, &ask)
}
