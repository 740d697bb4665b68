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
mod replace;
mod select;
mod spool;
mod step;
#[cfg(test)]
mod tests;
mod verify;

use args::{Cli, Color, Command};
use clap::builder::{Resettable, Styles};
use clap::{CommandFactory as _, FromArgMatches as _, ValueEnum as _};
use context::Context;
use error::{Exit, Failure};
use output::Output;
use outside::Outside;
use std::ffi::{OsStr, OsString};

/// Runs one command line and says how it ended.
pub fn run(words: impl IntoIterator<Item = OsString>) -> Exit {
    run_in(&Outside::process(), words)
}

/// The same with a disk, streams, time and ids of somebody's choice.
fn run_in(outside: &Outside, words: impl IntoIterator<Item = OsString>) -> Exit {
    let words: Vec<OsString> = words.into_iter().collect();
    let cli = match parsed(&words) {
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

fn parsed(words: &[OsString]) -> Result<Cli, clap::Error> {
    let matches = asked().try_get_matches_from(words)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command()))
}

/// The whole command, as clap knows it: the documentation is checked against it.
pub fn command() -> clap::Command {
    Cli::command()
}

/// The command that words are parsed by: a variable that is set and empty counts as one that is not set.
fn asked() -> clap::Command {
    let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    command().mut_args(|arg| match arg.get_env() {
        Some(name) if is_empty(name) => arg.env(Resettable::Reset),
        _ => arg,
    })
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

/// What clap says of words, without any styling, so that an escape in it can only be one of theirs.
fn unstyled(error: &clap::Error, words: impl Iterator<Item = OsString>) -> String {
    let same = asked().styles(Styles::plain()).try_get_matches_from(words).err();
    same.as_ref().unwrap_or(error).render().ansi().to_string()
}

/// Help and version are answers; anything else that clap refuses is usage.
fn usage(outside: &Outside, error: &clap::Error, words: &[OsString]) -> Exit {
    let options = || words.iter().take_while(|word| *word != "--");
    let json = options().any(|word| word == "--json");
    let output = Output::new(&outside.streams, json, false, args::Color::Never);
    let verbatim = unstyled(error, words.iter().cloned());
    if error.use_stderr() && json {
        let usage = Failure::usage("usage", verbatim.trim_start_matches("error: ").trim_end());
        output.failure(&usage.hint("`turnkeep help COMMAND` shows what it takes; nothing was done"));
        return Exit::Usage;
    }
    // Each word is one line of text.
    let spelled = words.iter().map(|word| output::one_line(&word.to_string_lossy()).into());
    let plain = output::escaped(&unstyled(error, spelled));
    let streams = &outside.streams;
    let terminal = if error.use_stderr() { streams.err_is_terminal() } else { streams.out_is_terminal() };
    // Where a word holds what a terminal obeys, it cannot be told from the styling any more.
    let styled = verbatim == plain && output::shows_color(color_in(options()), terminal);
    let text = if styled { error.render().ansi().to_string() } else { plain };
    if error.use_stderr() {
        // The stream may be closed; nobody can be told then.
        let _unheard = streams.err(text.as_bytes());
        return Exit::Usage;
    }
    match output::answered(streams.out(text.as_bytes())) {
        Ok(()) => Exit::Done,
        Err(failure) => {
            output.failure(&failure);
            failure.exit
        }
    }
}

/// What words that clap refuses ask of colour; the last one counts.
fn color_in<'w>(words: impl Iterator<Item = &'w OsString>) -> Color {
    let words: Vec<&str> = words.filter_map(|word| word.to_str()).collect();
    let asked = words.iter().enumerate().rev().find_map(|(at, word)| match word.strip_prefix("--color")? {
        "" => words.get(at + 1).copied(),
        value => value.strip_prefix('='),
    });
    asked.and_then(|asked| Color::from_str(asked, false).ok()).unwrap_or(Color::Auto)
}
