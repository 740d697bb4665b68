//! `turnkeep` keeps a crash-safe journal of agent turns.

pub mod json;
pub mod message;
pub mod policy;
pub mod record;
