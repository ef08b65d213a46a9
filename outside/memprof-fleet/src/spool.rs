//! What waits for the store, on this machine's disk: each dump, until it is in a file of the store.
//!
//! ```text
//! lock       held by the agent
//! dumps/     a file for each dump
//! batch/     dumps/ by another name: they become files of the store
//! done/      batch/ by another name: they have become such files
//! outbox/    files of the store, `/` in their names written as `!`
//! damaged/   what cannot be read
//! ```
//!
//! Every step is a rename, so that wherever an agent is killed the next one goes on: what is in batch/ is made
//! again, to the same bytes with the same names, and nothing leaves outbox/ while there is a batch/.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::output;
use crate::process_profile::ProcessProfile;

/// The spool, which one agent has.
#[derive(Debug)]
pub(crate) struct Spool {
    place: PathBuf,
    /// Unlocked when it is closed.
    _lock: File,
    /// How many dumps this agent added.
    added: u64,
}

/// A file for the store.
#[derive(Debug)]
pub(crate) struct OutgoingFile {
    pub(crate) file: PathBuf,
    /// What it is called in the store.
    pub(crate) name: String,
}

impl Spool {
    /// Takes the spool.
    pub(crate) fn open(place: &Path) -> anyhow::Result<Self> {
        let failed = || format!("failed to open the spool {}", place.display());
        for directory in ["dumps", "outbox", "damaged"] {
            fs::create_dir_all(place.join(directory)).with_context(failed)?;
        }
        let mut options = File::options();
        let lock = options.create(true).truncate(false).write(true);
        let lock = lock.open(place.join("lock")).with_context(failed)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!(
                "another agent has the spool {}: one agent serves a machine; `spool` in its configuration \
                 gives a second one a place of its own",
                place.display()
            );
        }
        Ok(Self {
            place: place.to_owned(),
            _lock: lock,
            added: 0,
        })
    }

    /// Keeps a dump: it is on the disk when this returns.
    pub(crate) fn add(&mut self, dumped: &ProcessProfile) -> anyhow::Result<()> {
        self.added += 1;
        let (time, added) = (dumped.context.time.0, self.added);
        let name = format!("{time:015}.{}.{added}.json", std::process::id());
        publish(
            &self.place.join("dumps"),
            &name,
            &serde_json::to_vec(dumped)?,
        )
    }

    /// The size of all files that wait, in bytes.
    pub(crate) fn bytes(&self) -> anyhow::Result<u64> {
        pending_bytes(&self.place)
    }

    /// How many bytes of dumps wait for a batch.
    pub(crate) fn dump_bytes(&self) -> anyhow::Result<u64> {
        bytes_in(&self.place.join("dumps"))
    }

    /// Makes files of the dumps that wait. `convert` gets all of a batch, and returns names and bytes, which
    /// must be the same each time.
    pub(crate) fn batch(
        &self,
        convert: impl Fn(&[ProcessProfile]) -> anyhow::Result<Vec<(String, Vec<u8>)>>,
    ) -> anyhow::Result<()> {
        let (dumps, batch) = (self.place.join("dumps"), self.place.join("batch"));
        self.remove_sent()?;
        // One that was not finished comes first.
        for _ in 0..2 {
            if batch.exists() {
                let dumped = self.read(&batch)?;
                if !dumped.is_empty() {
                    for (name, bytes) in convert(&dumped)? {
                        publish(&self.place.join("outbox"), &name.replace('/', "!"), &bytes)?;
                    }
                }
                rename(&batch, &self.place.join("done"))?;
                self.remove_sent()?;
            }
            if entries(&dumps)?.is_empty() {
                break;
            }
            rename(&dumps, &batch)?;
            fs::create_dir_all(&dumps).with_context(|| dumps.display().to_string())?;
        }
        Ok(())
    }

    /// The files for the store, by name; none while a batch is not finished.
    pub(crate) fn outgoing(&self) -> anyhow::Result<Vec<OutgoingFile>> {
        if self.place.join("batch").exists() {
            return Ok(Vec::new());
        }
        let files = entries(&self.place.join("outbox"))?.into_iter();
        let outgoing = files.filter_map(|file| {
            let name = file.file_name()?.to_str()?.replace('!', "/");
            Some(OutgoingFile { file, name })
        });
        Ok(outgoing.collect())
    }

    /// The dumps of a directory, in order. One that cannot be read is put aside.
    fn read(&self, directory: &Path) -> anyhow::Result<Vec<ProcessProfile>> {
        let mut dumped = Vec::new();
        for file in entries(directory)? {
            let read = match fs::read(&file) {
                Err(error) if is_of_this_moment(&error) => {
                    return Err(error).with_context(|| file.display().to_string());
                }
                read => read.map_err(anyhow::Error::from),
            };
            match read.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)) {
                Ok(one) => dumped.push(one),
                Err(error) => {
                    let damaged = self.place.join("damaged");
                    fs::create_dir_all(&damaged).with_context(|| damaged.display().to_string())?;
                    let aside = damaged.join(file_name(&file));
                    let (from, to) = (file.display(), aside.display());
                    output::note(&format!("{from} is damaged, and now {to}: {error}"));
                    rename(&file, &aside)?;
                }
            }
        }
        Ok(dumped)
    }

    fn remove_sent(&self) -> anyhow::Result<()> {
        let done = self.place.join("done");
        match fs::remove_dir_all(&done) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.with_context(|| done.display().to_string()),
        }
    }
}

/// How many bytes wait in a spool, which an agent may have.
pub(crate) fn pending_bytes(place: &Path) -> anyhow::Result<u64> {
    let parts = ["dumps", "batch", "outbox"].iter();
    parts.map(|name| bytes_in(&place.join(name))).sum()
}

fn file_name(path: &Path) -> &std::ffi::OsStr {
    path.file_name().unwrap_or_default()
}

/// The files of a directory by name, without those that are being written.
fn entries(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
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

fn bytes_in(directory: &Path) -> anyhow::Result<u64> {
    let files = entries(directory)?.into_iter();
    Ok(files
        .filter_map(|file| Some(file.metadata().ok()?.len()))
        .sum())
}

/// Whether a failure to read is the machine's at this moment, and says nothing of the file.
fn is_of_this_moment(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR | Errno::AGAIN)
    )
}

/// Writes a file that is whole or not there, and on the disk. The directory is made where it is missing: a disk
/// that was full for a moment may have left the spool without it.
fn publish(directory: &Path, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let (fresh, path) = (directory.join(".new"), directory.join(name));
    let failed = || format!("failed to write {}", path.display());
    fs::create_dir_all(directory).with_context(failed)?;
    let mut file = File::create(&fresh).with_context(failed)?;
    file.write_all(bytes).with_context(failed)?;
    file.sync_all().with_context(failed)?;
    rename(&fresh, &path)
}

/// Renames, and waits until it is on the disk.
fn rename(from: &Path, to: &Path) -> anyhow::Result<()> {
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
mod tests {
    use super::{Path, ProcessProfile, Spool, fs};
    use crate::process_profile::ProfileContext;
    use crate::time::Instant;

    fn dumped() -> ProcessProfile {
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
    fn a_spool_that_lost_its_directories_keeps_on() {
        for lost in ["dumps", "outbox", "damaged"] {
            let place = tempfile::tempdir().unwrap();
            let mut spool = Spool::open(place.path()).unwrap();
            fs::remove_dir_all(place.path().join(lost)).unwrap();
            spool.add(&dumped()).unwrap();
            fs::write(place.path().join("dumps/0.json"), "{").unwrap();
            let file = ("samples/x".to_owned(), b"x".to_vec());
            spool.batch(|_| Ok(vec![file.clone()])).unwrap();
            assert_eq!(spool.outgoing().unwrap().len(), 1, "{lost}");
        }
    }

    #[test]
    fn a_dump_that_cannot_be_read_is_put_aside() {
        let check = |what: &str, make: fn(&Path)| {
            let place = tempfile::tempdir().unwrap();
            let mut spool = Spool::open(place.path()).unwrap();
            make(&place.path().join("dumps/0.json"));
            spool.add(&dumped()).unwrap();
            let read = std::cell::Cell::new(0);
            let count = |dumped: &[ProcessProfile]| {
                read.set(dumped.len());
                Ok(Vec::new())
            };
            spool.batch(count).unwrap();
            assert_eq!(read.get(), 1, "{what}");
            let aside = place.path().join("damaged/0.json");
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
