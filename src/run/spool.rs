//! Spool files: the output so far of a running command, for whoever finds its runner dead.
//!
//! Written before the output is shown. Not synced: they outlive a killed process, not a power cut. A spool that
//! cannot be made or written is noted and ends nothing.

use super::LeftOut;
use super::keep::{end_line, without_cut_start};
use super::pump::Pair;
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const READ_BYTES: usize = 64 * 1024;

/// Where the output so far is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolPaths {
    /// Of stdout.
    pub out: PathBuf,
    /// Of stderr.
    pub err: PathBuf,
}

/// The output so far of a dead runner: stdout's text, then stderr's, the last `max` bytes of each, with a line that
/// says how many bytes before them were left out. None if there is neither file; a link is not followed.
pub fn read_spool(out: &Path, err: &Path, max: usize) -> Option<String> {
    let texts = [out, err].map(|path| read_tail(path, max));
    if texts.iter().all(Option::is_none) {
        return None;
    }
    Some(texts.into_iter().flatten().fold(String::new(), |mut all, text| {
        if !text.is_empty() {
            end_line(&mut all);
        }
        all + &text
    }))
}

/// Removes the spool files; that they are not there is no error.
pub fn remove_spool(out: &Path, err: &Path) -> io::Result<()> {
    let removed = [out, err].map(remove);
    removed.into_iter().collect()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// None if there is no such file; what could not be read is said in the text.
fn read_tail(path: &Path, max: usize) -> Option<String> {
    match read_last_bytes(path, max) {
        Ok((bytes, 0)) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Ok((bytes, before)) => {
            let tail = without_cut_start(&bytes);
            let left_out = LeftOut(before + (bytes.len() - tail.len()) as u64).to_string();
            Some(left_out + &String::from_utf8_lossy(tail))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            Some(format!("[turnkeep: output so far cannot be read: {}: {error}]\n", path.display()))
        }
    }
}

/// The last bytes of a file and how many there are before them.
fn read_last_bytes(path: &Path, max: usize) -> io::Result<(Vec<u8>, u64)> {
    let mut file =
        OpenOptions::new().read(true).custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK)).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let before = metadata.len().saturating_sub(max as u64);
    file.seek(SeekFrom::Start(before))?;
    let mut bytes = Vec::new();
    file.take(max as u64).read_to_end(&mut bytes)?;
    Ok((bytes, before))
}

/// Flags as `open` takes them.
fn flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

/// The spool of one stream.
#[derive(Debug)]
pub(super) struct Spool {
    path: PathBuf,
    /// None after the first failure, so that a spool never has a hole.
    file: Option<File>,
    error: Option<String>,
}

impl Spool {
    /// Makes both files anew, readable for their owner only.
    pub(super) fn create(paths: Option<&SpoolPaths>) -> Pair<Option<Self>> {
        Pair {
            out: paths.map(|paths| Self::open(&paths.out)),
            err: paths.map(|paths| Self::open(&paths.err)),
        }
    }

    fn open(path: &Path) -> Self {
        let mut spool = Self { path: path.to_owned(), file: None, error: None };
        match create_private(path) {
            Ok(file) => spool.file = Some(file),
            Err(error) => spool.fail(&error),
        }
        spool
    }

    /// Appends; a failure is remembered.
    pub(super) fn write(&mut self, chunk: &[u8]) {
        if let Some(file) = &mut self.file
            && let Err(error) = file.write_all(chunk)
        {
            self.fail(&error);
        }
    }

    /// Feeds all that was written to the hasher; false if it is not all there.
    pub(super) fn hash(&mut self, hasher: &mut Sha256, bytes: u64) -> bool {
        let Some(file) = &mut self.file else { return false };
        match hash_file(file, hasher) {
            Ok(read) if read == bytes => true,
            Ok(_) => {
                self.fail(&io::Error::other("changed by somebody else"));
                false
            }
            Err(error) => {
                self.fail(&error);
                false
            }
        }
    }

    /// What went wrong first.
    pub(super) fn error(self) -> Option<String> {
        self.error
    }

    fn fail(&mut self, error: &io::Error) {
        self.file = None;
        self.error = Some(format!("{}: {error}", self.path.display()));
    }
}

/// A file that was not there before, so never somebody's link; 0600 whatever the umask.
fn create_private(path: &Path) -> io::Result<File> {
    remove(path)?;
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

fn hash_file(file: &mut File, hasher: &mut Sha256) -> io::Result<u64> {
    file.seek(SeekFrom::Start(0))?;
    let mut buffer = vec![0; READ_BYTES];
    let mut bytes = 0;
    loop {
        let read = match file.read(&mut buffer) {
            Ok(0) => return Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        hasher.update(buffer.split_at(read).0);
        bytes += read as u64;
    }
}
