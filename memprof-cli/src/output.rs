//! Writing data: to stdout, or to a file that appears complete or not at all.

use std::fs::Permissions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;

/// Writes text to stdout; a newline is added where it lacks one.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        stdout.write_all(b"\n")?;
    }
    Ok(stdout.flush()?)
}

/// Copies `data` to `path`, or to stdout for `-`. Returns its length.
pub(crate) fn save(data: &mut dyn io::Read, path: &Path) -> anyhow::Result<u64> {
    if path == Path::new("-") {
        let mut stdout = io::stdout().lock();
        let length = io::copy(data, &mut stdout)?;
        stdout.flush()?;
        return Ok(length);
    }
    publish(path, |out| Ok(io::copy(data, out)?))
}

/// Lets `write` fill a file beside `path` and renames it, so that `path` never holds half of it.
pub(crate) fn publish<T>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let failed = || format!("failed to write {}", path.display());
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let file = tempfile::Builder::new()
        .prefix(".memprof-")
        // The user's umask decides, as for any file.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory)
        .with_context(failed)?;
    let mut out = BufWriter::with_capacity(256 << 10, file);
    let value = write(&mut out)?;
    let file = out
        .into_inner()
        .map_err(|error| error.into_error())
        .with_context(failed)?;
    file.as_file().sync_all().with_context(failed)?;
    file.persist(path).with_context(failed)?;
    Ok(value)
}

/// True when the reader of stdout went away, as `head` does.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
