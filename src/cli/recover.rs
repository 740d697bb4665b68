//! `turnkeep recover`

use super::args::RecoverArgs;
use super::context::Context;
use super::error::{Exit, Failure};

/// Runs the command.
pub fn run(_context: &Context, _args: RecoverArgs) -> Result<Exit, Failure> {
    Err(Failure::usage("unfinished", "not there yet"))
}
