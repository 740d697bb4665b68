//! The command line: five subcommands over the library.
//!
//! Only this part knows text for people, the clock and the environment. Errors become exit codes in [`error`], and
//! nothing prints but `output`.

mod admit;
mod advice;
mod args;
mod become_cmd;
mod context;
mod desk;
pub mod error;
mod inspect;
mod output;
mod outside;
mod recover;
mod select;
mod spool;
mod step;
#[cfg(test)]
mod tests;
mod verify;

use args::{Cli, Command};
use clap::Parser;
use context::Context;
use error::{Exit, Failure};
use output::Output;
use outside::Outside;
use std::ffi::OsString;

/// Runs one command line and says how it ended.
pub fn run(words: impl IntoIterator<Item = OsString>) -> Exit {
    run_in(&Outside::process(), words)
}

/// The same with a disk, streams, time and ids of somebody's choice.
fn run_in(outside: &Outside, words: impl IntoIterator<Item = OsString>) -> Exit {
    let words: Vec<OsString> = words.into_iter().collect();
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) => return usage(outside, &error, &words),
    };
    run_parsed(outside, cli)
}

fn run_parsed(outside: &Outside, cli: Cli) -> Exit {
    let output = Output::new(&outside.streams, cli.global.json, cli.global.quiet, cli.global.color);
    let as_seen = match &cli.command {
        Command::Step(args) => step::as_its_caller_sees(args),
        _ => std::convert::identity,
    };
    let ended = Context::new(&cli.global, cli.command.uses_policy(), outside, output.clone())
        .and_then(|context| dispatch(&context, cli.command));
    ended.unwrap_or_else(|failure| {
        let failure = as_seen(failure);
        output.failure(&failure);
        failure.exit
    })
}

/// The whole command, as clap knows it: the documentation is checked against it.
pub fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

fn dispatch(context: &Context, command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Admit(args) => admit::run(context, args),
        Command::Step(args) => step::run(context, args),
        Command::Recover(args) => recover::run(context, args),
        Command::Inspect(args) => inspect::run(context, &args),
        Command::Verify(args) => verify::run(context, &args),
    }
}

/// Help and version are answers; anything else that clap refuses is usage.
fn usage(outside: &Outside, error: &clap::Error, words: &[OsString]) -> Exit {
    let json = words.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    if error.use_stderr() && json {
        let text = error.render().to_string();
        let output = Output::new(&outside.streams, true, false, args::Color::Never);
        output.failure(&Failure::usage("usage", text.trim_start_matches("error: ").trim_end()));
        return Exit::Usage;
    }
    // The streams may be closed; nobody can be told then.
    let _unheard = error.print();
    if error.use_stderr() { Exit::Usage } else { Exit::Done }
}
