//! Spool: profiles on this machine's disk, until they are in a file of the store.
//!
//! ```text
//! lock       locked by the agent
//! dumps/     a file for each profile
//! batch/     formerly dumps/: profiles that are being converted to files of the store
//! done/      formerly batch/: profiles that have been converted
//! outbox/    files for the store, with `!` for `/` in their names
//! damaged/   files that cannot be read
//! ```
//!
//! Every step is a rename, so that the next agent continues if one is killed: the profiles in batch/ are
//! converted again, to the same bytes under the same names, and no file leaves outbox/ while batch/ exists.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::process_profile::ProcessProfile;

/// Spool of a machine, locked by one agent.
#[derive(Debug)]
pub(crate) struct Spool {
    directory: PathBuf,
    /// Lock file, which is unlocked when it is closed.
    _lock: File,
    /// Number of profiles that this agent added.
    added: u64,
}

/// File for the store.
#[derive(Debug)]
pub(crate) struct OutgoingFile {
    pub(crate) path: PathBuf,
    /// Name of the file in the store.
    pub(crate) name: String,
}

impl Spool {
    /// Opens and locks the spool in the directory `root`, and creates its directories. Fails if another agent has
    /// locked it, or a directory cannot be created.
    pub(crate) fn open(root: &Path) -> anyhow::Result<Self> {
        let failed = || format!("failed to open the spool {}", root.display());
        for directory in ["dumps", "outbox", "damaged"] {
            fs::create_dir_all(root.join(directory)).with_context(failed)?;
        }
        let mut options = File::options();
        let lock = options.create(true).truncate(false).write(true);
        let lock = lock.open(root.join("lock")).with_context(failed)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!(
                "another agent has the spool {}: one agent serves a machine; `spool` in its configuration \
                 gives a second one a place of its own",
                root.display()
            );
        }
        Ok(Self {
            directory: root.to_owned(),
            _lock: lock,
            added: 0,
        })
    }

    /// Writes a profile to the spool, and waits until it is on the disk. Fails if the disk is full or cannot be
    /// written.
    pub(crate) fn add(&mut self, profile: &ProcessProfile) -> anyhow::Result<()> {
        self.added += 1;
        let (time, added) = (profile.context.time.0, self.added);
        let name = format!("{time:015}.{}.{added}.json", std::process::id());
        write_file_durably(
            &self.directory.join("dumps"),
            &name,
            &serde_json::to_vec(profile)?,
        )
    }

    /// Returns the total size in bytes of all files that wait for a batch or for the store.
    pub(crate) fn pending_bytes(&self) -> anyhow::Result<u64> {
        pending_bytes(&self.directory)
    }

    /// Returns the total size in bytes of the profiles that wait for a batch.
    pub(crate) fn pending_profile_bytes(&self) -> anyhow::Result<u64> {
        total_bytes_in(&self.directory.join("dumps"))
    }

    /// Converts the waiting profiles to files for the store. `convert` gets all profiles of a batch, and returns names
    /// and bytes. For equal profiles, it must return equal files, because a batch that a killed agent left is converted
    /// again. Fails if `convert` fails, or the spool cannot be read or written.
    pub(crate) fn convert_batch(
        &self,
        convert: impl Fn(&[ProcessProfile]) -> anyhow::Result<Vec<(String, Vec<u8>)>>,
    ) -> anyhow::Result<()> {
        let (dumps, batch) = (self.directory.join("dumps"), self.directory.join("batch"));
        self.remove_converted_profiles()?;
        // The first iteration finishes a batch that a killed agent left behind.
        for _ in 0..2 {
            if batch.exists() {
                let profiles = self.read_profiles(&batch)?;
                if !profiles.is_empty() {
                    for (name, bytes) in convert(&profiles)? {
                        write_file_durably(
                            &self.directory.join("outbox"),
                            &name.replace('/', "!"),
                            &bytes,
                        )?;
                    }
                }
                rename_durably(&batch, &self.directory.join("done"))?;
                self.remove_converted_profiles()?;
            }
            if files_in(&dumps)?.is_empty() {
                break;
            }
            rename_durably(&dumps, &batch)?;
            fs::create_dir_all(&dumps).with_context(|| dumps.display().to_string())?;
        }
        Ok(())
    }

    /// Returns the files for the store, sorted by name. Empty while a batch is unfinished, because some of its files
    /// may be missing. Fails if the spool cannot be read.
    pub(crate) fn outgoing_files(&self) -> anyhow::Result<Vec<OutgoingFile>> {
        if self.directory.join("batch").exists() {
            return Ok(Vec::new());
        }
        let paths = files_in(&self.directory.join("outbox"))?.into_iter();
        // Each file is named by this program: in UTF-8, with `!` for `/`.
        let outgoing = paths.filter_map(|path| {
            let name = path.file_name()?.to_str()?.replace('!', "/");
            Some(OutgoingFile { path, name })
        });
        Ok(outgoing.collect())
    }

    /// Reads the profiles of a directory, in the order of their names. Moves files that are damaged to damaged/, and
    /// prints their names. Fails if the machine's state prevents reading, for example too many open files: the profile
    /// may be intact then.
    fn read_profiles(&self, directory: &Path) -> anyhow::Result<Vec<ProcessProfile>> {
        let mut profiles = Vec::new();
        for file in files_in(directory)? {
            let read = match fs::read(&file) {
                Err(error) if is_transient_read_error(&error) => {
                    return Err(error).with_context(|| file.display().to_string());
                }
                read => read.map_err(anyhow::Error::from),
            };
            match read.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)) {
                Ok(one) => profiles.push(one),
                Err(error) => {
                    let damaged = self.directory.join("damaged");
                    fs::create_dir_all(&damaged).with_context(|| damaged.display().to_string())?;
                    let aside = damaged.join(file_name(&file));
                    let (from, to) = (file.display(), aside.display());
                    memprof_output::note(&format!("{from} is damaged, and now {to}: {error}"));
                    rename_durably(&file, &aside)?;
                }
            }
        }
        Ok(profiles)
    }

    /// Deletes the profiles in done/, whose files for the store are complete. Does nothing if there are none. Fails if
    /// they cannot be deleted.
    fn remove_converted_profiles(&self) -> anyhow::Result<()> {
        let done = self.directory.join("done");
        match fs::remove_dir_all(&done) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.with_context(|| done.display().to_string()),
        }
    }
}

/// Returns the total size in bytes of all files that wait in a spool. Does not lock it.
pub(crate) fn pending_bytes(spool: &Path) -> anyhow::Result<u64> {
    let parts = ["dumps", "batch", "outbox"].iter();
    parts.map(|name| total_bytes_in(&spool.join(name))).sum()
}

/// Returns the last component of a path; empty if there is none.
fn file_name(path: &Path) -> &std::ffi::OsStr {
    path.file_name().unwrap_or_default()
}

/// Returns the files of a directory, sorted by name, without those that are still being written (`.…`). Empty if there
/// is no such directory. Fails if the directory cannot be read.
fn files_in(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let failed = || format!("failed to read {}", directory.display());
    let mut files = Vec::new();
    match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        found => {
            for entry in found.with_context(failed)? {
                let path = entry.with_context(failed)?.path();
                if !file_name(&path).as_encoded_bytes().starts_with(b".") {
                    files.push(path);
                }
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the total size in bytes of the files in a directory. Files that vanish meanwhile do not count. Fails if the
/// directory cannot be read.
fn total_bytes_in(directory: &Path) -> anyhow::Result<u64> {
    let files = files_in(directory)?.into_iter();
    Ok(files
        .filter_map(|file| Some(file.metadata().ok()?.len()))
        .sum())
}

/// Returns whether a failure to read is due to the machine's state, for example a lack of memory, and not to the file.
fn is_transient_read_error(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR | Errno::AGAIN)
    )
}

/// Writes a file under a hidden name, waits until it is on the disk, and renames it, so that it is never seen
/// incomplete. Creates the directory if it is missing: a disk that was full for a moment may have left the spool
/// without it.
fn write_file_durably(directory: &Path, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let (fresh, path) = (directory.join(".new"), directory.join(name));
    let failed = || format!("failed to write {}", path.display());
    fs::create_dir_all(directory).with_context(failed)?;
    let mut file = File::create(&fresh).with_context(failed)?;
    file.write_all(bytes).with_context(failed)?;
    file.sync_all().with_context(failed)?;
    rename_durably(&fresh, &path)
}

/// Renames a file or directory, and waits until the change is on the disk: syncs both parent directories.
fn rename_durably(from: &Path, to: &Path) -> anyhow::Result<()> {
    let failed = || format!("failed to rename {} to {}", from.display(), to.display());
    fs::rename(from, to).with_context(failed)?;
    for directory in [from.parent(), to.parent()].into_iter().flatten() {
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .with_context(failed)?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Path, ProcessProfile, Spool, fs};
    use crate::process_profile::ProfileContext;
    use crate::time::Instant;

    pub(crate) fn profile() -> ProcessProfile {
        ProcessProfile {
            context: ProfileContext {
                time: Instant(0),
                start_time: Instant(0),
                service: "cart".to_owned(),
                instance: "node/7.1".to_owned(),
                host: "node".to_owned(),
                pid: 7,
                build_id: String::new(),
                trigger: "agent".to_owned(),
                labels: std::collections::BTreeMap::new(),
                sample_interval: 1,
                rss_bytes: None,
                clock_offset_ms: None,
                sampler: None,
            },
            samples: Vec::new(),
            stacks: Vec::new(),
        }
    }

    #[test]
    fn spool_without_directories_recreates_them() {
        for lost in ["dumps", "outbox", "damaged"] {
            let root = tempfile::tempdir().unwrap();
            let mut spool = Spool::open(root.path()).unwrap();
            fs::remove_dir_all(root.path().join(lost)).unwrap();
            spool.add(&profile()).unwrap();
            fs::write(root.path().join("dumps/0.json"), "{").unwrap();
            let file = ("samples/x".to_owned(), b"x".to_vec());
            spool.convert_batch(|_| Ok(vec![file.clone()])).unwrap();
            assert_eq!(spool.outgoing_files().unwrap().len(), 1, "{lost}");
        }
    }

    #[test]
    fn unreadable_dump_is_moved_to_damaged() {
        let check = |what: &str, make: fn(&Path)| {
            let root = tempfile::tempdir().unwrap();
            let mut spool = Spool::open(root.path()).unwrap();
            make(&root.path().join("dumps/0.json"));
            spool.add(&profile()).unwrap();
            let read = std::cell::Cell::new(0);
            let count = |profiles: &[ProcessProfile]| {
                read.set(profiles.len());
                Ok(Vec::new())
            };
            spool.convert_batch(count).unwrap();
            assert_eq!(read.get(), 1, "{what}");
            let aside = root.path().join("damaged/0.json");
            assert!(fs::symlink_metadata(aside).is_ok(), "{what}");
        };
        check("half of it", |file| fs::write(file, "{").unwrap());
        check("empty", |file| fs::write(file, "").unwrap());
        check("no text", |file| fs::write(file, [0xff; 8]).unwrap());
        check("a directory", |file| fs::create_dir(file).unwrap());
        check("a link to nothing", |file| {
            std::os::unix::fs::symlink("/nonexistent", file).unwrap();
        });
    }
}
