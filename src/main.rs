//! The command line of `turnkeep`.
fn main() {}
