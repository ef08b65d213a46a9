//! `memprof fleet prune`: the hours that are older than the retention.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;

use crate::config::Config;
use crate::output::print;
use crate::scan::files;
use crate::schema::Table;
use crate::store::Store;
use crate::time::{Hour, Instant};

/// The greatest difference between this machine's clock and the store's at which files are deleted.
const TOLERANCE: Duration = Duration::from_secs(3600);

pub(crate) fn run(config: &Config, keep: Option<Duration>) -> anyhow::Result<ExitCode> {
    let store = Arc::new(Store::open(&config.store)?);
    let keep = keep.unwrap_or(config.keep);
    let now = Instant::now();
    let deleted = prune(&store, keep, now)?;
    for (hour, files) in &deleted {
        print(&format!("{}: {files} files", hour.directory()))?;
    }
    print(&format!(
        "deleted {} files from before {}",
        deleted.values().sum::<usize>(),
        now.before(keep).text()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Deletes the files of hours that ended more than `keep` ago and that were written as long ago, by the store's
/// clock. Returns how many of each hour. `here` is this machine's clock: one that is wrong deletes nothing.
pub(crate) fn prune(
    store: &Arc<Store>,
    keep: Duration,
    here: Instant,
) -> anyhow::Result<BTreeMap<Hour, usize>> {
    let now = store.now()?;
    agree(here, now)?;
    let before = now.before(keep);
    let mut deleted = BTreeMap::new();
    for table in Table::ALL {
        let found = files(store, table, (Instant(0), before))?;
        // Their rows are in merged files. They go first: without these they would count again.
        for object in &found.merged {
            store.delete(&object.name)?;
        }
        for (hour, object) in found.counted {
            if hour.end().is_some_and(|end| end <= before) && object.written <= before {
                store.delete(&object.name)?;
                *deleted.entry(hour).or_default() += 1;
            }
        }
    }
    Ok(deleted)
}

/// An error where this machine's clock and the store's differ so much that one of them is wrong.
fn agree(here: Instant, store: Instant) -> anyhow::Result<()> {
    let difference = Duration::from_millis(here.0.abs_diff(store.0));
    if difference > TOLERANCE {
        let direction = if here > store { "ahead of" } else { "behind" };
        bail!(
            "nothing was pruned: this machine's clock is {} {direction} the store's: set the one that is wrong",
            humantime::format_duration(Duration::from_secs(difference.as_secs()))
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_differ_by_more_than_an_hour_stop_pruning() {
        let now = Instant(1_795_000_000_000);
        let check = |seconds: i64, agrees: bool| {
            let here = Instant(now.0 + seconds * 1000);
            assert_eq!(agree(here, now).is_ok(), agrees, "{seconds}");
        };
        for seconds in [0, 60, 3600, -3600] {
            check(seconds, true);
        }
        for seconds in [3601, -3601, 30 * 24 * 3600, -30 * 24 * 3600, -1_795_000_000] {
            check(seconds, false);
        }
        let error = agree(Instant(now.0 + 86_400_000), now).unwrap_err();
        assert!(error.to_string().contains("1day ahead of"), "{error}");
    }
}
