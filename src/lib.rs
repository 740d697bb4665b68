//! `turnkeep` keeps a crash-safe journal of agent turns.

pub mod json;
pub mod paths;
pub mod record;
pub mod storage;
