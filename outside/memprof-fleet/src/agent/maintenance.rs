//! Merging and pruning of the store, on a thread of its own: that takes minutes where the store is slow, in which the
//! agent would miss profiles.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::anyhow;
use memprof_output::print_stderr;

use crate::compact::{GRACE_PERIOD, compact};
use crate::policy::elect_machine;
use crate::prune::prune;
use crate::query::machines_writing_since;
use crate::store::ProfileStore;
use crate::time::{Instant, Uptime};

/// Time between two runs.
const INTERVAL: Duration = Duration::from_secs(1800);
/// Delay of the first run, longer than the default period of dumps. Runs read other agents' files: if
/// one of them crashed the agent at each start, it would still take profiles in between.
const FIRST_DELAY: Duration = Duration::from_secs(660);

/// The runs of an agent, one at a time. A run may be killed at the agent's end, as at any time.
#[derive(Debug)]
pub(super) struct Maintenance {
    next: Uptime,
    running: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Maintenance {
    /// Plans the first run for [`FIRST_DELAY`] (11 minutes) from now.
    pub(super) fn new() -> Self {
        Self {
            next: Uptime::now().plus(FIRST_DELAY),
            running: None,
        }
    }

    /// Starts a run if one is due, without waiting for its end. Returns the outcome of a run that has ended since the
    /// last call, or an error if a run is due while the previous one still works; in both cases, starts no run. `None`
    /// if there is nothing to report.
    pub(super) fn start_if_due(
        &mut self,
        store: &Arc<ProfileStore>,
        machine: &str,
        keep: Duration,
    ) -> Option<anyhow::Result<()>> {
        if let Some(ended) = self.running.take_if(|thread| thread.is_finished()) {
            let outcome = ended.join();
            return Some(outcome.unwrap_or_else(|_| Err(anyhow!("it panicked"))));
        }
        let now = Uptime::now();
        if now < self.next {
            return None;
        }
        self.next = now.plus(INTERVAL);
        if self.running.is_some() {
            let minutes = INTERVAL.as_secs() / 60;
            return Some(Err(anyhow!("it has not ended for {minutes} minutes")));
        }
        let (store, machine) = (Arc::clone(store), machine.to_owned());
        let run = move || compact_and_prune(&store, &machine, keep, Instant::now());
        // A lack of threads passes, and must not end the agent.
        match thread::Builder::new().spawn(run) {
            Ok(thread) => {
                self.running = Some(thread);
                None
            }
            Err(error) => Some(Err(anyhow!("failed to start a thread: {error}"))),
        }
    }
}

/// Merges and prunes the files of the store on one elected machine of those that wrote within the last hour; does
/// nothing on the others. A store on a disk is no exception, because machines may share the disk. But if no machine has
/// written to it, this one does the work. Fails if a request to the store fails, or if the clocks differ too much for
/// pruning.
fn compact_and_prune(
    store: &Arc<ProfileStore>,
    machine: &str,
    keep: Duration,
    now: Instant,
) -> anyhow::Result<()> {
    let writing = machines_writing_since(store, now.minus(Duration::from_secs(3600)))?;
    let task = now.hour().directory();
    let elected = elect_machine(writing.iter().map(String::as_str), &task);
    let is_alone = store.is_local() && writing.is_empty();
    if elected != Some(machine) && !is_alone {
        return Ok(());
    }
    let compacted = compact(store, now.minus(GRACE_PERIOD));
    // The current time, because merging may take hours, and pruning compares this machine's clock with the store's.
    for (hour, files) in prune(store, keep, Instant::now())? {
        print_stderr(&format!(
            "memprof: {}: deleted {files} files of {}: older than `keep`",
            store.url(),
            hour.directory()
        ));
    }
    compacted.map(drop)
}
