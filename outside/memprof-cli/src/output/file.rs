//! Where `-o` leads, and writing there: a file appears complete or not at all, and nothing but a
//! file is ever replaced.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::OFlags;

const BUFFER: usize = 256 << 10;
/// What the kernel follows (`path_resolution(7)`).
const LINKS: usize = 40;
/// The mode of a directory in which everybody may make files: sticky, and writable for others.
const SHARED: u32 = 0o1002;

/// What is at the end of a path.
#[derive(Debug)]
enum OutputTarget {
    /// Nothing or a regular file: it is replaced at once, by a rename in its directory.
    Replaced { path: PathBuf, mode: Option<u32> },
    /// A device, a FIFO, a terminal: it is opened and written to.
    Written(File),
}

/// Lets `write` fill the file at `path`, which never holds half of it; what is there and is no
/// regular file is written to. Links are followed.
pub(crate) fn publish<T>(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let failed = || format!("failed to write {}", path.display());
    match target(path).with_context(failed)? {
        OutputTarget::Replaced { path, mode } => replace(&path, mode, write, failed),
        OutputTarget::Written(file) => {
            let mut out = BufWriter::with_capacity(BUFFER, file);
            let value = write(&mut out)?;
            out.flush().with_context(failed)?;
            Ok(value)
        }
    }
}

fn replace<T>(
    path: &Path,
    mode: Option<u32>,
    write: impl FnOnce(&mut dyn Write) -> anyhow::Result<T>,
    failed: impl Fn() -> String + Copy,
) -> anyhow::Result<T> {
    let file = tempfile::Builder::new()
        .prefix(".memprof-")
        // The user's umask decides, as for any file.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(parent(path))
        .map_err(|error| without_path(&error))
        .with_context(|| {
            format!(
                "{}: no file can be made in {}",
                failed(),
                parent(path).display()
            )
        })?;
    let mut out = BufWriter::with_capacity(BUFFER, file);
    let value = write(&mut out)?;
    let file = out
        .into_inner()
        .map_err(|error| error.into_error())
        .with_context(failed)?;
    if let Some(mode) = mode {
        // A file that was kept from others stays so.
        let permissions = Permissions::from_mode(mode & 0o777);
        file.as_file()
            .set_permissions(permissions)
            .with_context(failed)?;
    }
    file.as_file().sync_all().with_context(failed)?;
    file.persist(path).with_context(failed)?;
    Ok(value)
}

/// What happened, without the path of a file that nobody asked for, which tempfile adds.
fn without_path(error: &io::Error) -> anyhow::Error {
    let told = error.to_string();
    let (told, _) = told.split_once(" at path ").unwrap_or((&told, ""));
    anyhow::anyhow!("{told}")
}

fn target(path: &Path) -> io::Result<OutputTarget> {
    let mut end = path.to_owned();
    for _ in 0..LINKS {
        let found = match end.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && path.metadata().is_err() => {
                return Ok(OutputTarget::Replaced {
                    path: end,
                    mode: None,
                });
            }
            // A link that names no path, as those in /proc/self/fd do for pipes.
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            found => found?,
        };
        if found.is_file() && is_same(&found, path) {
            return Ok(OutputTarget::Replaced {
                path: end,
                mode: Some(found.mode()),
            });
        }
        refuse_planted(&end, &found)?;
        if !found.is_symlink() {
            break;
        }
        end = parent(&end).join(end.read_link()?);
    }
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(OFlags::NOCTTY.bits().cast_signed())
        .open(path)?;
    Ok(OutputTarget::Written(file))
}

/// Whether following `path` leads to that file.
fn is_same(found: &Metadata, path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|end| (end.dev(), end.ino()) == (found.dev(), found.ino()))
}

/// In `/tmp` and its like anybody may have put a link or a FIFO under the name: as the kernel does
/// (proc(5), `protected_symlinks` and `protected_fifos`), only those are followed and opened that this
/// user or the directory's owner made.
fn refuse_planted(path: &Path, found: &Metadata) -> io::Result<()> {
    let directory = parent(path).metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if !is_planted(directory.mode(), directory.uid(), found.uid(), own) {
        return Ok(());
    }
    let message = format!(
        "uid {} put it into a directory that everybody may write to",
        found.uid()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

fn is_planted(directory_mode: u32, directory_owner: u32, owner: u32, own: u32) -> bool {
    directory_mode & SHARED == SHARED && owner != own && owner != directory_owner
}

fn parent(path: &Path) -> &Path {
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

    fn put(path: &Path, text: &str) -> anyhow::Result<()> {
        publish(path, |out| Ok(out.write_all(text.as_bytes())?))
    }

    #[test]
    fn links_are_followed_and_stay_links() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        std::fs::create_dir(path("dir")).unwrap();
        std::fs::write(path("dir/file"), "before").unwrap();
        symlink("dir/file", path("link")).unwrap();
        symlink(path("link"), path("twice")).unwrap();
        symlink("dir/new", path("dangling")).unwrap();
        let check = |name: &str, end: &str| {
            put(&path(name), name).unwrap();
            assert!(path(name).is_symlink(), "{name}");
            assert_eq!(std::fs::read_to_string(path(end)).unwrap(), name);
        };
        check("link", "dir/file");
        check("twice", "dir/file");
        check("dangling", "dir/new");
        symlink("round", path("round")).unwrap();
        put(&path("round"), "x").unwrap_err();
    }

    #[test]
    fn a_directory_that_does_not_exist_is_named() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("absent").join("x.heap");
        let told = format!("{:#}", put(&path, "x").unwrap_err());
        let (path, absent) = (path.display(), path.parent().unwrap().display());
        assert_eq!(
            told,
            format!(
                "failed to write {path}: no file can be made in {absent}: No such file or directory (os error 2)"
            )
        );
    }

    #[test]
    fn what_is_no_file_is_written_to_and_stays() {
        let place = tempfile::tempdir().unwrap();
        let fifo = place.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| std::fs::read_to_string(&fifo).unwrap());
            put(&fifo, "through").unwrap();
            assert_eq!(reader.join().unwrap(), "through");
        });
        assert!(fifo.symlink_metadata().unwrap().file_type().is_fifo());

        let null = place.path().join("null");
        symlink("/dev/null", &null).unwrap();
        put(&null, "away").unwrap();
        assert!(null.is_symlink());
        let device = Path::new("/dev/null").symlink_metadata().unwrap();
        assert!(device.file_type().is_char_device());
        put(place.path(), "x").unwrap_err();
    }

    #[test]
    fn descriptors_in_proc_are_written_to() {
        use std::os::fd::AsRawFd;
        let (mut reader, writer) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
        put(Path::new(&path), "through").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn a_file_is_replaced_whole_and_keeps_its_mode() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("secret");
        std::fs::write(&file, "before").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let half = publish(&file, |out| -> anyhow::Result<()> {
            out.write_all(b"half")?;
            anyhow::bail!("the host went away")
        });
        half.unwrap_err();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "before");
        put(&file, "after").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "after");
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_others_planted_in_a_shared_directory_is_refused() {
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
