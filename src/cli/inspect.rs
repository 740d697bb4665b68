//! `turnkeep inspect`

use super::args::InspectArgs;
use super::context::Context;
use super::error::{Exit, Failure};

/// Runs the command.
pub fn run(_context: &Context, _args: &InspectArgs) -> Result<Exit, Failure> {
    Err(Failure::usage("unfinished", "not there yet"))
}
