//! The one integration binary: the command as scripts see it, from outside.
//!
//! Every test has a sandbox of its own, a cleared environment, and ends only processes that it started.
#![allow(
    missing_docs,
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    clippy::too_many_lines,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::needless_raw_string_hashes,
    reason = "a test that cannot go on panics"
)]

mod admit;
mod append;
mod bytes;
mod call;
mod cases;
mod contention;
mod context;
mod crash_states;
mod deliver;
mod docs;
mod drawn;
mod fixtures;
mod forge;
mod format;
mod full_disk;
mod guide;
mod heads;
mod inspect;
mod io;
mod killed;
mod killed_others;
mod kit;
mod memory;
mod message;
mod nested;
mod onto_live;
mod opened;
mod owner;
mod paths;
mod person;
mod points;
mod quickstart;
mod recover_all;
mod recover_decide;
mod recover_owner;
mod recover_plan;
mod recover_tail;
mod recover_tree;
mod refused_by_system;
mod repeats;
mod run;
mod salvage;
mod script;
mod settle;
mod shell_agent;
mod storm;
mod strict;
mod strict_server;
mod tidy;
mod tree_damage;
mod values;
