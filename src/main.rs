//! The command line of `turnkeep`: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(turnkeep::cli::run(std::env::args_os()).code())
}
