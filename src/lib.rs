//! `turnkeep` keeps a crash-safe journal of agent turns.

pub mod chain;
pub mod json;
pub mod lock;
pub mod owner;
pub mod paths;
pub mod message;
pub mod policy;
pub mod record;
pub mod scan;
pub mod storage;
pub mod run;
