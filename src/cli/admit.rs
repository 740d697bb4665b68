//! `turnkeep admit`

use super::args::AdmitArgs;
use super::context::Context;
use super::error::{Exit, Failure};

/// Runs the command.
pub fn run(_context: &Context, _args: AdmitArgs) -> Result<Exit, Failure> {
    Err(Failure::usage("unfinished", "not there yet"))
}
