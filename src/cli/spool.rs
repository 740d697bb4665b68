//! Where the output of an unfinished `step run` is kept, so that an interrupted call can show it.

use super::context::Context;
use crate::paths;
use crate::record::{CallRef, TurnId};
use crate::run::{self, SpoolPaths};
use crate::turn::Call;

/// Of each stream this much is shown of an interrupted call, in bytes.
const SHOWN_BYTES_MAX: usize = 64 * 1024;

/// The files of one call; their names hold nothing that could be a path.
pub fn paths(context: &Context, session: &str, turn: &TurnId, call: CallRef) -> SpoolPaths {
    let name = crate::json::sha256_hex(format!("{session}\n{turn}\n{call}").as_bytes());
    let folder = context.root.spool_dir();
    SpoolPaths { out: folder.join(format!("{name}.out")), err: folder.join(format!("{name}.err")) }
}

/// Makes the folder of the spools.
pub fn ensure(context: &Context) -> Result<(), super::error::Failure> {
    Ok(paths::ensure_dir(context.storage.as_ref(), &context.root.spool_dir())?)
}

/// What the tool of a call had printed, if its runner kept it.
pub fn output_so_far(context: &Context, session: &str, turn: &TurnId, call: &Call) -> Option<String> {
    call.claim.as_ref()?.runner.as_ref()?;
    let SpoolPaths { out, err } = paths(context, session, turn, call.r#ref);
    run::read_spool(&out, &err, SHOWN_BYTES_MAX).filter(|output| !output.is_empty())
}

/// Removes the files of a call whose output stands in the journal. A spool that stays is a cache without a reader.
pub fn remove(context: &Context, session: &str, turn: &TurnId, call: CallRef) {
    let SpoolPaths { out, err } = paths(context, session, turn, call);
    let _left_over = run::remove_spool(&out, &err);
}
