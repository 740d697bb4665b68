//! `turnkeep` keeps a crash-safe journal of agent turns.

pub mod branch;
pub mod chain;
pub mod cli;
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
