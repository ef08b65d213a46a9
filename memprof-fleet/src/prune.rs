//! `memprof fleet prune`: the hours that are older than the retention.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::output::print;
use crate::scan::files;
use crate::schema::Table;
use crate::store::Store;
use crate::time::Instant;

pub(crate) fn run(config: &Config, keep: Option<Duration>) -> anyhow::Result<ExitCode> {
    let store = Arc::new(Store::open(&config.store)?);
    let before = Instant::now().before(keep.unwrap_or(config.keep));
    let deleted = prune(&store, before)?;
    print(&format!(
        "deleted {deleted} files from before {}",
        before.text()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Deletes the files of hours that ended before `before`, and no other ones. Returns how many.
pub(crate) fn prune(store: &Arc<Store>, before: Instant) -> anyhow::Result<usize> {
    let mut deleted = 0;
    for table in Table::ALL {
        let found = files(store, table, (Instant(0), before))?;
        let counted = found.counted.into_iter();
        let old = counted.filter(|(hour, _)| hour.end().is_some_and(|end| end <= before));
        // Those whose rows are in merged files first: without these they would count again.
        for object in found
            .merged
            .iter()
            .chain(old.map(|(_, object)| object).collect::<Vec<_>>().iter())
        {
            store.delete(&object.name)?;
            deleted += 1;
        }
    }
    Ok(deleted)
}
