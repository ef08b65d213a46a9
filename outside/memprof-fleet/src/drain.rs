//! Moves files from the spool to the store, each exactly once, no matter when the agent is killed.

use std::fs;

use anyhow::{Context, bail};
use bytes::Bytes;

use crate::spool::Spool;
use crate::store::{CreateOutcome, ProfileStore};
use crate::time::Instant;

/// Number of files that were moved, and a comparison of the clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DrainStats {
    pub(crate) files: usize,
    /// Milliseconds by which this machine's clock is ahead of the store's. `None` if no file was created.
    pub(crate) clock_offset_ms: Option<i64>,
}

/// Moves every file that waits in the spool's outbox to the store. A file leaves the spool only when the store shows an
/// object with the same bytes: the reply to a write may be lost, and an existing object may be foreign. Fails if a
/// request fails. If the store has an object with other bytes, moves the remaining files and then fails.
pub(crate) fn drain_spool(spool: &Spool, store: &ProfileStore) -> anyhow::Result<DrainStats> {
    let mut stats = DrainStats::default();
    let mut foreign = None;
    for outgoing in spool.outgoing_files()? {
        let failed = || outgoing.path.display().to_string();
        let bytes = Bytes::from(fs::read(&outgoing.path).with_context(failed)?);
        let before = Instant::now();
        let created = store.create(&outgoing.name, bytes.clone())?;
        let stored = store.find_object(&outgoing.name)?;
        let stored = stored.filter(|object| object.size == bytes.len() as u64);
        let is_same = match (created, &stored) {
            (_, None) => false,
            (CreateOutcome::New, Some(_)) => true,
            (CreateOutcome::Exists, Some(_)) => {
                store.read(&outgoing.name, bytes.len() as u64)? == bytes
            }
        };
        if !is_same {
            // An operator must look at the object; the following files do not wait for that.
            foreign = Some(format!(
                "{}: {} is not what was written; {} stays in the spool; move the store's file away if it is foreign",
                store.url(),
                outgoing.name,
                outgoing.path.display()
            ));
            continue;
        }
        if created == CreateOutcome::New
            && let Some(object) = stored
        {
            stats.clock_offset_ms = Some(before.0 - object.written.0);
        }
        fs::remove_file(&outgoing.path).with_context(failed)?;
        stats.files += 1;
    }
    match foreign {
        Some(foreign) => bail!(foreign),
        None => Ok(stats),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_object_in_store_does_not_block_other_files() {
        let check = |foreign: &[u8]| {
            let directory = tempfile::tempdir().unwrap();
            let (spool, objects) = (
                directory.path().join("spool"),
                directory.path().join("store"),
            );
            let store = ProfileStore::open(&format!("file://{}", objects.display())).unwrap();
            let spool = Spool::open(&spool).unwrap();
            let outbox = directory.path().join("spool/outbox");
            for name in ["a", "b", "c"] {
                fs::write(outbox.join(format!("samples!{name}")), "written").unwrap();
            }
            let foreign = Bytes::copy_from_slice(foreign);
            store.create("samples/a", foreign.clone()).unwrap();
            let error = drain_spool(&spool, &store).unwrap_err().to_string();
            assert!(
                error.contains("samples/a is not what was written"),
                "{error}"
            );
            let remaining = spool.outgoing_files().unwrap();
            let remaining: Vec<_> = remaining.iter().map(|file| file.name.as_str()).collect();
            assert_eq!(remaining, ["samples/a"]);
            assert_eq!(store.read("samples/a", 100).unwrap(), foreign);
            assert_eq!(store.read("samples/c", 100).unwrap(), "written");
        };
        for foreign in ["", "x", "writteN", "written and more"] {
            check(foreign.as_bytes());
        }
    }
}
