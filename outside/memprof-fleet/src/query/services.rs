//! Questions about services: what each holds, and over the time.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::query::processes::by_process;
use crate::query::{Profile, ProfileQuery};
use crate::time::Instant;

/// The points of a history.
const POINTS: i64 = 60;

/// A service, as the newest profile of each of its processes shows it.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Service {
    service: String,
    processes: usize,
    /// By build: how many processes.
    builds: BTreeMap<String, usize>,
    inuse_bytes: i64,
    /// The sum of all processes that have two profiles.
    growth_bytes: i64,
    /// RFC 3339.
    newest: String,
}

/// The services, those that hold most first.
pub(crate) fn services(profiles: &[Profile]) -> Vec<Service> {
    let mut services: BTreeMap<&str, Service> = BTreeMap::new();
    for (first, last, _) in by_process(profiles) {
        let of = services.entry(&last.service).or_default();
        of.service.clone_from(&last.service);
        of.processes += 1;
        *of.builds.entry(last.build().to_owned()).or_default() += 1;
        of.inuse_bytes += last.inuse_bytes;
        of.growth_bytes += last.inuse_bytes - first.inuse_bytes;
        of.newest = last.time.text().max(std::mem::take(&mut of.newest));
    }
    let mut services: Vec<_> = services.into_values().collect();
    services.sort_by_key(|of| std::cmp::Reverse(of.inuse_bytes));
    services
}

/// What all processes held at the end of a part of the time.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Point {
    /// RFC 3339.
    time: String,
    inuse_bytes: i64,
    processes: usize,
}

/// The time in equal parts. Each process counts from its first profile to its last one, with the newest that
/// it had then.
pub(crate) fn history(asked: &ProfileQuery, profiles: &[Profile]) -> Vec<Point> {
    let (Instant(from), Instant(to)) = (asked.from, asked.to);
    let points = (1..=POINTS).map(|at| Instant(from + (to - from) * at / POINTS));
    let mut points: Vec<_> = points.map(|end| (end, 0, 0)).collect();
    for one in profiles.chunk_by(|a, b| a.instance == b.instance) {
        let mut newest = None;
        let mut left = one.iter().peekable();
        for (end, bytes, processes) in &mut points {
            let was_over = left.peek().is_none();
            while let Some(next) = left.next_if(|next| next.time <= *end) {
                newest = Some(next);
            }
            if let Some(newest) = newest.filter(|_| !was_over) {
                *bytes += newest.inuse_bytes;
                *processes += 1;
            }
        }
    }
    let points = points.into_iter();
    let points = points.map(|(time, inuse_bytes, processes)| Point {
        time: time.text(),
        inuse_bytes,
        processes,
    });
    points.collect()
}
