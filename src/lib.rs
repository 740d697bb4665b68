//! `turnkeep` keeps a crash-safe journal of agent turns.
//!
//! # Model
//!
//! A *session* is one conversation lane and has one *journal*: an append-only, synced, hash-chained file of
//! [`record`]s. A *turn* is one admitted input and all that is done to answer it. A model asks for *calls*, which
//! are durable as intents before anything is dispatched; a *claim* is durable before the effect of a call; then
//! comes its result. So after any crash a call was never started, has its result, or has an unknown outcome.
//! [`turn`] folds records to that state, [`turn::decide`] says what may be done about each call, and [`recovery`]
//! makes a plan of it that holds every byte that will be written.
//!
//! # Guarantees
//!
//! - What [`journal::Journal`] acknowledged was synced, and is there after a crash.
//! - What was not acknowledged is there whole or not at all; bytes of a torn write are kept in quarantine.
//! - Damage is found and named, and nothing is written behind it unless a person says so.
//! - A record that does not fit the state before it is refused before it is written.
//!
//! Nothing here promises that an effect happens exactly once: no local record can be atomic with an effect in
//! another system. A deliberate forgery by the owner of the files is not found.
//!
//! # Example
//!
//! A turn is admitted, and read back by another process.
//!
//! ```
//! use std::time::Duration;
//! use turnkeep::journal::{self, Journal, Reach, Setting};
//! use turnkeep::json::Raw;
//! use turnkeep::lock::Monotonic;
//! use turnkeep::paths::Root;
//! use turnkeep::record::{Admitted, At, Kind};
//! use turnkeep::storage::FileStorage;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let root = Root::new(folder.path());
//! let setting = Setting {
//!     storage: &FileStorage,
//!     root: &root,
//!     clock: &Monotonic::new(),
//!     wait: Duration::from_secs(10),
//!     line_bytes_max: turnkeep::chain::LINE_BYTES_MAX,
//!     signal: &|| None,
//! };
//! let input = Raw::text("Restart web and tell me");
//! let admitted = Admitted {
//!     turn: "t1".parse()?,
//!     delivery: Some("msg-981".to_owned()),
//!     input_sha256: turnkeep::chain::digest(input.get().as_bytes()),
//!     input,
//!     tree: None,
//!     policy_sha256: None,
//!     meta: None,
//! };
//!
//! let mut journal = Journal::open_or_create(setting, "room-42")?;
//! let at = At::from_micros(1_795_967_194_123_456);
//! let marks = journal.record(at, "01934c5e-0000-7000-8000-00000000002a", vec![Kind::from(admitted)])?;
//! assert_eq!(marks[0].seq, 1); // durable; 0 is the genesis
//!
//! let loaded = journal::read(setting, &root.journal("room-42")?, Reach::Base)?;
//! let session = loaded.session.ok_or("no genesis")?;
//! assert_eq!(session.head, marks[0]);
//! assert_eq!(session.open().map(|turn| turn.id.as_str()), Some("t1"));
//! # Ok(())
//! # }
//! ```
//!
//! The command line is [`cli`]; formats and decisions are told in the `docs` folder of the project.

pub mod branch;
pub mod chain;
pub mod cli;
pub mod context;
pub mod draft;
pub mod explain;
pub mod journal;
pub mod json;
pub mod lock;
pub mod message;
pub mod owner;
pub mod paths;
pub mod policy;
pub mod record;
pub mod recovery;
pub mod run;
pub mod scan;
pub mod status;
pub mod storage;
#[cfg(test)]
pub(crate) mod testkit;
pub mod tree;
pub mod treefile;
pub mod turn;
pub mod verify;
