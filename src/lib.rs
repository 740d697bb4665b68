//! `turnkeep` keeps a crash-safe journal of agent turns.

pub mod json;
pub mod record;
pub mod tree;
