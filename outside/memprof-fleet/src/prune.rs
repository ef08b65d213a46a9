//! `memprof fleet prune`: deletes the files of hours that are older than the retention.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use memprof_output::print;

use crate::config::Config;
use crate::scan::list_table_files;
use crate::schema::Table;
use crate::store::ProfileStore;
use crate::time::{Hour, Instant};

/// Largest difference between this machine's clock and the store's with which files are deleted.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(3600);

/// Runs `memprof fleet prune`: deletes old files, and prints their number by hour. `keep` overrides the time in the
/// configuration if it is there. Fails if this machine's clock and the store's differ too much, or a request fails.
pub(crate) fn run(config: &Config, keep: Option<Duration>) -> anyhow::Result<ExitCode> {
    let store = Arc::new(ProfileStore::open(&config.store)?);
    let keep = keep.unwrap_or(config.keep);
    let now = Instant::now();
    let deleted = prune(&store, keep, now)?;
    for (hour, files) in &deleted {
        print(&format!("{}: {files} files", hour.directory()));
    }
    print(&format!(
        "deleted {} files from before {}",
        deleted.values().sum::<usize>(),
        now.minus(keep).to_rfc3339()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Deletes the files of hours that ended more than `keep` ago, if by the store's clock they were also written that long
/// ago. Returns the number of deleted files per hour. Also deletes files whose rows are in merged files, but does not
/// count them. `machine_time` is this machine's clock. Fails, and deletes nothing, if that clock and the store's differ
/// by more than an hour; fails also if a request fails.
pub(crate) fn prune(
    store: &Arc<ProfileStore>,
    keep: Duration,
    machine_time: Instant,
) -> anyhow::Result<BTreeMap<Hour, usize>> {
    let now = store.read_clock()?;
    check_clocks(machine_time, now)?;
    let limit = now.minus(keep);
    let mut deleted = BTreeMap::new();
    for table in Table::ALL {
        let found = list_table_files(store, table, (Instant(0), limit))?;
        // Files whose rows are in merged files are deleted first: without the merged files they would count
        // again.
        for object in &found.merged {
            store.delete(&object.name)?;
        }
        for (hour, object) in found.counted {
            if hour.end().is_some_and(|end| end <= limit) && object.written <= limit {
                store.delete(&object.name)?;
                *deleted.entry(hour).or_default() += 1;
            }
        }
    }
    Ok(deleted)
}

/// Checks that this machine's clock and the store's differ by at most [`CLOCK_TOLERANCE`]. A larger difference means
/// that one of them is wrong, and files could be deleted too early.
fn check_clocks(machine_time: Instant, store_time: Instant) -> anyhow::Result<()> {
    let difference = Duration::from_millis(machine_time.0.abs_diff(store_time.0));
    if difference > CLOCK_TOLERANCE {
        let direction = if machine_time > store_time {
            "ahead of"
        } else {
            "behind"
        };
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
    fn clocks_that_differ_by_more_than_an_hour_are_refused() {
        let now = Instant(1_795_000_000_000);
        let check = |seconds: i64, is_ok: bool| {
            let here = Instant(now.0 + seconds * 1000);
            assert_eq!(check_clocks(here, now).is_ok(), is_ok, "{seconds}");
        };
        for seconds in [0, 60, 3600, -3600] {
            check(seconds, true);
        }
        for seconds in [3601, -3601, 30 * 24 * 3600, -30 * 24 * 3600, -1_795_000_000] {
            check(seconds, false);
        }
        let error = check_clocks(Instant(now.0 + 86_400_000), now).unwrap_err();
        assert!(error.to_string().contains("1day ahead of"), "{error}");
    }
}
