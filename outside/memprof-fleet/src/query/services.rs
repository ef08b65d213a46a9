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

/// Summarizes each service of the profiles, those with most bytes in use first.
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
        service.inuse_bytes += last.inuse_bytes;
        service.growth_bytes += last.inuse_bytes - first.inuse_bytes;
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

/// Returns the history of the selected profiles, at the ends of equal parts of the time window. Each process counts
/// from its first to its last profile, with the newest one at that time.
pub(crate) fn history(query: &ProfileQuery, profiles: &[Profile]) -> Vec<Point> {
    let (Instant(from), Instant(to)) = (query.from, query.to);
    let points = (1..=POINT_COUNT).map(|point| Instant(from + (to - from) * point / POINT_COUNT));
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
                *bytes += newest.inuse_bytes;
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
