//! `turnkeep verify`

use super::args::VerifyArgs;
use super::context::Context;
use super::error::{Exit, Failure};

/// Runs the command.
pub fn run(_context: &Context, _args: &VerifyArgs) -> Result<Exit, Failure> {
    Err(Failure::usage("unfinished", "not there yet"))
}
