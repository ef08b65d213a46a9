//! Writes output files: a file appears complete or not at all, and only regular files are replaced.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use rustix::fs::OFlags;

/// Size of the write buffer in bytes.
const BUFFER_SIZE: usize = 256 << 10;
/// Largest number of links that the kernel follows (`path_resolution(7)`).
const MAX_LINKS: usize = 40;
/// Mode of a directory in which all users may create files: sticky, and writable for others.
const SHARED_DIR_MODE: u32 = 0o1002;

/// Way in which the file at the end of an output path is written.
#[derive(Debug)]
enum OutputTarget {
    /// No file yet, or a regular one of this mode: it is replaced by a rename in its directory.
    Replaced { path: PathBuf, mode: Option<u32> },
    /// A device, a FIFO or a terminal, opened for writing.
    Written(File),
}

/// Calls `write` with a writer to the file at `path`. A regular file appears there only once it is complete; anything
/// else is written to directly. Links are followed. Fails if `write` or writing fails, or another user may have planted
/// the link or file.
pub fn publish_file<T>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let failed = || format!("failed to write {}", path.display());
    match resolve_output_path(path).with_context(failed)? {
        OutputTarget::Replaced { path, mode } => replace_file(&path, mode, write, failed),
        OutputTarget::Written(file) => {
            let mut out = BufWriter::with_capacity(BUFFER_SIZE, file);
            let value = write(&mut out)?;
            out.flush().with_context(failed)?;
            Ok(value)
        }
    }
}

/// Writes a temporary file in the directory of `path`, syncs it, and renames it to `path`. `mode` is the mode of the
/// file to replace, and the new file gets it. With `None`, there is no such file, and the umask decides. `failed`
/// returns the text of errors.
fn replace_file<T>(
    path: &Path,
    mode: Option<u32>,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
    failed: impl Fn() -> String + Copy,
) -> anyhow::Result<T> {
    let file = tempfile::Builder::new()
        .prefix(".memprof-")
        // In place of 0600, the default of `tempfile`. The umask applies, as for any new file.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(parent_dir(path))
        .map_err(|error| anyhow!("{}", without_temporary_path(&error.to_string())))
        .with_context(|| {
            format!(
                "{}: no file can be made in {}",
                failed(),
                parent_dir(path).display()
            )
        })?;
    // Not to the `NamedTempFile` itself, whose errors contain its temporary path.
    let mut out = BufWriter::with_capacity(BUFFER_SIZE, file.as_file());
    let value = write(&mut out)?;
    out.flush().with_context(failed)?;
    drop(out);
    if let Some(mode) = mode {
        // Keep the mode of the replaced file, which may exclude other users.
        let permissions = Permissions::from_mode(mode & 0o777);
        file.as_file()
            .set_permissions(permissions)
            .with_context(failed)?;
    }
    file.as_file().sync_all().with_context(failed)?;
    file.persist(path).with_context(failed)?;
    Ok(value)
}

/// Returns the text of an error without the temporary path that the crate `tempfile` adds.
pub fn without_temporary_path(error: &str) -> &str {
    error
        .split_once(" at path ")
        .map_or(error, |(text, _)| text)
}

/// Follows the links of an output path. Opens the file at their end for writing, unless it is regular or does not exist
/// yet. Fails for links and files that another user may have planted, and if a link or the file cannot be read or
/// opened.
fn resolve_output_path(path: &Path) -> io::Result<OutputTarget> {
    let mut end = path.to_owned();
    for _ in 0..MAX_LINKS {
        let metadata = match end.symlink_metadata() {
            // Neither the text of the links nor the kernel leads to a file: it will be a new one.
            Err(error) if error.kind() == io::ErrorKind::NotFound && path.metadata().is_err() => {
                return Ok(OutputTarget::Replaced {
                    path: end,
                    mode: None,
                });
            }
            // The kernel finds a file, but the link's text is no path, as in /proc/self/fd for a pipe.
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            metadata => metadata?,
        };
        // A link in /proc may lead to another file than the one that its text names.
        if metadata.is_file() && is_same_file(&metadata, path) {
            return Ok(OutputTarget::Replaced {
                path: end,
                mode: Some(metadata.mode()),
            });
        }
        reject_planted_file(&end, &metadata)?;
        if !metadata.is_symlink() {
            break;
        }
        end = parent_dir(&end).join(end.read_link()?);
    }
    // After too many links, the kernel refuses to open the path (ELOOP). A terminal that is opened must not become the
    // controlling terminal of this process (NOCTTY).
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(OFlags::NOCTTY.bits().cast_signed())
        .open(path)?;
    Ok(OutputTarget::Written(file))
}

/// Returns whether `path`, with links followed, is the file that `metadata` describes.
fn is_same_file(metadata: &Metadata, path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|end| (end.dev(), end.ino()) == (metadata.dev(), metadata.ino()))
}

/// Fails for a link or file that another user may have planted. In `/tmp` and similar directories, any user may create
/// a link or a FIFO under the name of the output. As the kernel does (proc(5), `protected_symlinks` and
/// `protected_fifos`), accepts only links and files of this user or of the directory's owner.
fn reject_planted_file(path: &Path, metadata: &Metadata) -> io::Result<()> {
    let directory = parent_dir(path).metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if !is_planted(directory.mode(), directory.uid(), metadata.uid(), own) {
        return Ok(());
    }
    let message = format!(
        "uid {} put it into a directory that everybody may write to",
        metadata.uid()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// Returns whether another user may have planted a file: all users may create files in its directory, and its `owner`
/// is neither this user (`own`) nor the directory's owner. All three are uids.
fn is_planted(directory_mode: u32, directory_owner: u32, owner: u32, own: u32) -> bool {
    directory_mode & SHARED_DIR_MODE == SHARED_DIR_MODE && owner != own && owner != directory_owner
}

/// Returns the directory of a path; `.` for a name without a directory.
fn parent_dir(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::{FileTypeExt, symlink};

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn publish_text(path: &Path, text: &str) -> anyhow::Result<()> {
        publish_file(path, |out| Ok(out.write_all(text.as_bytes())?))
    }

    #[test]
    fn links_are_followed_and_stay_links() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("dir")).unwrap();
        std::fs::write(path("dir/file"), "before").unwrap();
        symlink("dir/file", path("link")).unwrap();
        symlink(path("link"), path("twice")).unwrap();
        symlink("dir/new", path("dangling")).unwrap();
        let check = |name: &str, end: &str| {
            publish_text(&path(name), name).unwrap();
            assert!(path(name).is_symlink(), "{name}");
            assert_eq!(std::fs::read_to_string(path(end)).unwrap(), name);
        };
        check("link", "dir/file");
        check("twice", "dir/file");
        check("dangling", "dir/new");
        symlink("round", path("round")).unwrap();
        publish_text(&path("round"), "x").unwrap_err();
    }

    #[test]
    fn missing_directory_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("absent").join("x.heap");
        let text = format!("{:#}", publish_text(&path, "x").unwrap_err());
        let (path, absent) = (path.display(), path.parent().unwrap().display());
        assert_eq!(
            text,
            format!(
                "failed to write {path}: no file can be made in {absent}: No such file or directory (os error 2)"
            )
        );
    }

    #[test]
    fn device_is_written_to_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| std::fs::read_to_string(&fifo).unwrap());
            publish_text(&fifo, "through").unwrap();
            assert_eq!(reader.join().unwrap(), "through");
        });
        assert!(fifo.symlink_metadata().unwrap().file_type().is_fifo());

        let null = dir.path().join("null");
        symlink("/dev/null", &null).unwrap();
        publish_text(&null, "away").unwrap();
        assert!(null.is_symlink());
        let device = Path::new("/dev/null").symlink_metadata().unwrap();
        assert!(device.file_type().is_char_device());
        publish_text(dir.path(), "x").unwrap_err();
    }

    #[test]
    fn descriptors_in_proc_are_written_to() {
        use std::os::fd::AsRawFd;
        let (mut reader, writer) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
        publish_text(Path::new(&path), "through").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn replaced_file_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        std::fs::write(&file, "before").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let half = publish_file(&file, |out| -> anyhow::Result<()> {
            out.write_all(b"half")?;
            anyhow::bail!("the host went away")
        });
        half.unwrap_err();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "before");
        publish_text(&file, "after").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "after");
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn planted_file_in_shared_directory_is_rejected() {
        let check = |mode, directory_owner, owner, own, expected| {
            let found = is_planted(mode, directory_owner, owner, own);
            assert_eq!(found, expected, "{mode:o} {directory_owner} {owner} {own}");
        };
        check(0o41777, 0, 1000, 0, true);
        check(0o41777, 0, 1000, 1001, true);
        check(0o41777, 0, 1000, 1000, false);
        check(0o41777, 0, 0, 1000, false);
        check(0o40755, 0, 1000, 0, false);
    }
}
