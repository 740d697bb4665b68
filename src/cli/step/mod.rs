//! `turnkeep step`

use super::args::StepArgs;
use super::context::Context;
use super::error::{Exit, Failure};

/// Runs the command.
pub fn run(_context: &Context, _args: StepArgs) -> Result<Exit, Failure> {
    Err(Failure::usage("unfinished", "not there yet"))
}
