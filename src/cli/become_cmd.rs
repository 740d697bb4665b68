//! `-- CMD`: this process becomes the driver, so that the owner that was recorded is the driver itself.

use super::context::Context;
use super::error::{Exit, Failure};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Whether CMD can be started; asked before anything is written.
pub fn check(cmd: &[OsString]) -> Result<(), Failure> {
    let Some(program) = cmd.first() else { return Ok(()) };
    if find(program).is_some() {
        return Ok(());
    }
    let named = program.to_string_lossy();
    let text = if named.contains('/') && Path::new(program).exists() {
        format!("{named} is no file that can be executed")
    } else {
        format!("there is no command {named}")
    };
    Err(Failure::usage("no_command", text).hint("nothing was written"))
}

/// Becomes CMD. Comes back only where that fails.
pub fn exec(context: &Context, cmd: &[OsString], session: &str, ticket: &str) -> Failure {
    let Some((program, words)) = cmd.split_first() else {
        return Failure::usage("no_command", "there is no command to become").hint("give it behind `--`");
    };
    let mut command = Command::new(program);
    command.args(words);
    environment(context, &mut command, session, ticket);
    let error = command.exec();
    Failure::of(
        Exit::Unexpected,
        "command_not_started",
        format!("the turn is recorded, but {} could not be started: {error}", program.to_string_lossy()),
    )
    .hint(format!("`turnkeep recover {session} -- CMD` goes on with it"))
}

/// What a driver is told: its ticket and session, and where the state root is if that was named.
pub fn environment(context: &Context, command: &mut Command, session: &str, ticket: &str) {
    command.env("TURNKEEP_TICKET", ticket).env("TURNKEEP_SESSION", session);
    if context.root_given.is_some() {
        command.env("TURNKEEP_ROOT", context.root.path());
    }
    if let Some(policy) = &context.policy_given {
        command.env("TURNKEEP_POLICY", policy);
    }
}

fn find(program: &OsStr) -> Option<PathBuf> {
    let runnable = |path: &Path| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if program.to_string_lossy().contains('/') {
        let path = PathBuf::from(program);
        return runnable(&path).then_some(path);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| runnable(path))
}
