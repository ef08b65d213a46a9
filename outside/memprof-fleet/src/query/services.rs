//! Queries of services: what each holds now, and held over time.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::query::processes::first_and_last_by_process;
use crate::query::{Profile, ProfileQuery};
use crate::time::Instant;

/// Number of points of a history.
const POINT_COUNT: i64 = 60;

/// Service, summed over the newest profiles of its processes.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Service {
    service: String,
    processes: usize,
    /// Number of processes by build.
    builds: BTreeMap<String, usize>,
    inuse_bytes: i64,
    /// Sum of the growth of its processes, each from its first to its last profile.
    growth_bytes: i64,
    /// Time of the newest profile (RFC 3339).
    newest: String,
}

/// Summarizes the processes of each service. The service with most bytes in use comes first. `profiles` are sorted by
/// process and time.
pub(crate) fn summarize_services(profiles: &[Profile]) -> Vec<Service> {
    let mut services: BTreeMap<&str, Service> = BTreeMap::new();
    for (first, last, _) in first_and_last_by_process(profiles) {
        let service = services.entry(&last.service).or_default();
        service.service.clone_from(&last.service);
        service.processes += 1;
        *service
            .builds
            .entry(last.short_build_id().to_owned())
            .or_default() += 1;
        // Saturates, because a file of the store may have any numbers.
        service.inuse_bytes = service.inuse_bytes.saturating_add(last.inuse_bytes);
        let growth = last.inuse_bytes.saturating_sub(first.inuse_bytes);
        service.growth_bytes = service.growth_bytes.saturating_add(growth);
        service.newest = last
            .time
            .to_rfc3339()
            .max(std::mem::take(&mut service.newest));
    }
    let mut services: Vec<_> = services.into_values().collect();
    services.sort_by_key(|service| std::cmp::Reverse(service.inuse_bytes));
    services
}

/// Sum over processes at one time.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    /// End of a part of the time window (RFC 3339).
    time: String,
    inuse_bytes: i64,
    processes: usize,
}

/// Returns the bytes in use of the selected profiles at 60 times: the ends of equal parts of the time window. A process
/// counts from its first to its last profile, each time with the newest one before. `profiles` are sorted by process
/// and time.
pub(crate) fn inuse_history(query: &ProfileQuery, profiles: &[Profile]) -> Vec<Point> {
    let (Instant(from), Instant(to)) = (query.from, query.to);
    let length = to.saturating_sub(from);
    // The parts are equal but for the remainder of the division; their product would not fit for the longest window.
    let points = (1..=POINT_COUNT).map(|point| {
        let remainder = length % POINT_COUNT * point / POINT_COUNT;
        Instant(from + length / POINT_COUNT * point + remainder)
    });
    let mut points: Vec<_> = points.map(|end| (end, 0, 0)).collect();
    for process in profiles.chunk_by(|a, b| a.instance == b.instance) {
        let mut newest = None;
        let mut remaining = process.iter().peekable();
        for (end, bytes, processes) in &mut points {
            let has_ended = remaining.peek().is_none();
            while let Some(next) = remaining.next_if(|next| next.time <= *end) {
                newest = Some(next);
            }
            if let Some(newest) = newest.filter(|_| !has_ended) {
                *bytes = newest.inuse_bytes.saturating_add(*bytes);
                *processes += 1;
            }
        }
    }
    let points = points.into_iter();
    let points = points.map(|(time, inuse_bytes, processes)| Point {
        time: time.to_rfc3339(),
        inuse_bytes,
        processes,
    });
    points.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::query::Notes;
    use crate::query::processes::processes_by_growth;
    use crate::query::profiles::tests::profile;
    use crate::store::ProfileStore;
    use crate::target::Target;

    /// Two processes that grow from the smallest number of bytes to the largest.
    fn profiles() -> Vec<Profile> {
        let row = |instance, time, inuse_bytes| Profile {
            inuse_bytes,
            ..profile(instance, time, None)
        };
        let rows = ["node/7.1", "node/8.1"].map(|instance| {
            [
                row(instance, i64::MAX - 120, i64::MIN),
                row(instance, i64::MAX - 60, i64::MAX),
                row(instance, i64::MAX, i64::MAX),
            ]
        });
        rows.into_iter().flatten().collect()
    }

    #[test]
    fn sums_of_largest_profiles_are_limited() {
        let [service] = &summarize_services(&profiles())[..] else {
            panic!("one service");
        };
        assert_eq!(
            (service.inuse_bytes, service.growth_bytes),
            (i64::MAX, i64::MAX)
        );
        let growths = processes_by_growth(&profiles());
        assert_eq!(growths.len(), 2);
        let growths = serde_json::to_value(&growths[0]).unwrap();
        assert_eq!(growths["growth_bytes"], i64::MAX);
    }

    #[test]
    fn history_of_longest_window_ends_at_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("file://{}", directory.path().display());
        let query = ProfileQuery {
            store: Arc::new(ProfileStore::open(&url).unwrap()),
            from: Instant(0),
            to: Instant(i64::MAX),
            target: Target::All,
            notes: Notes::Print,
        };
        let history = inuse_history(&query, &profiles());
        assert_eq!(history.len(), 60);
        let last = history.last().unwrap();
        assert_eq!((last.inuse_bytes, last.processes), (i64::MAX, 2));
    }
}
