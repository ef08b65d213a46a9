//! From the spool to the store: each file once, whatever is killed when.

use std::fs;

use anyhow::{Context, bail};
use bytes::Bytes;

use crate::spool::Spool;
use crate::store::{CreateOutcome, Store};
use crate::time::Instant;

/// How many files reached the store, and what its clock showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DrainStats {
    pub(crate) files: usize,
    /// How far this machine's clock is ahead of the store's, where that is another machine.
    pub(crate) clock_offset_ms: Option<i64>,
}

/// Moves every file of the outbox to the store. A file leaves the spool when the store has shown one of the
/// same bytes: neither the answer to a write, which may be lost, nor "exists" is believed.
pub(crate) fn drain(spool: &Spool, store: &Store) -> anyhow::Result<DrainStats> {
    let mut drained = DrainStats::default();
    let mut foreign = None;
    for outgoing in spool.outgoing()? {
        let failed = || outgoing.file.display().to_string();
        let bytes = Bytes::from(fs::read(&outgoing.file).with_context(failed)?);
        let before = Instant::now();
        let created = store.create(&outgoing.name, bytes.clone())?;
        let shown = store.head(&outgoing.name)?;
        let shown = shown.filter(|object| object.size == bytes.len() as u64);
        let is_same = match (created, &shown) {
            (_, None) => false,
            (CreateOutcome::New, Some(_)) => true,
            (CreateOutcome::Exists, Some(_)) => store.read(&outgoing.name)? == bytes,
        };
        if !is_same {
            // An operator must look at it; the files behind it need not wait for that.
            foreign = Some(format!(
                "{}: {} is not what was written; {} stays in the spool; move the store's file away if it is foreign",
                store.url(),
                outgoing.name,
                outgoing.file.display()
            ));
            continue;
        }
        if created == CreateOutcome::New
            && let Some(object) = shown
        {
            drained.clock_offset_ms = Some(before.0 - object.written.0);
        }
        fs::remove_file(&outgoing.file).with_context(failed)?;
        drained.files += 1;
    }
    match foreign {
        Some(foreign) => bail!(foreign),
        None => Ok(drained),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_object_in_the_store_keeps_no_other_file_in_the_spool() {
        let check = |foreign: &[u8]| {
            let place = tempfile::tempdir().unwrap();
            let (spool, objects) = (place.path().join("spool"), place.path().join("store"));
            let store = Store::open(&format!("file://{}", objects.display())).unwrap();
            let spool = Spool::open(&spool).unwrap();
            let outbox = place.path().join("spool/outbox");
            for name in ["a", "b", "c"] {
                fs::write(outbox.join(format!("samples!{name}")), "written").unwrap();
            }
            let foreign = Bytes::copy_from_slice(foreign);
            store.create("samples/a", foreign.clone()).unwrap();
            let error = drain(&spool, &store).unwrap_err().to_string();
            assert!(
                error.contains("samples/a is not what was written"),
                "{error}"
            );
            let left = spool.outgoing().unwrap();
            let left: Vec<_> = left.iter().map(|one| one.name.as_str()).collect();
            assert_eq!(left, ["samples/a"]);
            assert_eq!(store.read("samples/a").unwrap(), foreign);
            assert_eq!(store.read("samples/c").unwrap(), "written");
        };
        for foreign in ["", "x", "writteN", "written and more"] {
            check(foreign.as_bytes());
        }
    }
}
