//! The one integration binary: the command as scripts see it, from outside.
//!
//! Every test has a sandbox of its own, a cleared environment, and ends only processes that it started.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::needless_raw_string_hashes,
    reason = "a test that cannot go on panics"
)]

mod admit;
mod call;
mod contention;
mod deliver;
mod docs;
mod fixtures;
mod forge;
mod format;
mod io;
mod kit;
mod message;
mod owner;
mod paths;
mod person;
mod quickstart;
mod recover_owner;
mod recover_tail;
mod run;
mod script;
mod settle;
mod tidy;
mod values;
