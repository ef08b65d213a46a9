//! Writing data: to stdout, or to a file that appears complete or not at all.

use std::io::{self, Write};
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
    let failed = || format!("failed to write {}", path.display());
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut file = tempfile::NamedTempFile::new_in(directory).with_context(failed)?;
    let length = io::copy(data, &mut file).with_context(failed)?;
    file.as_file().sync_all().with_context(failed)?;
    file.persist(path).with_context(failed)?;
    Ok(length)
}

/// True when the reader of stdout went away, as `head` does.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
