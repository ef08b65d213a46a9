//! Reads the selected rows of the table PROFILES.

use crate::columns::Columns;
use crate::process_profile::SamplerCounts;
use crate::query::ProfileQuery;
use crate::scan::{files, scan};
use crate::schema::{SAMPLER_COUNTS, Table};
use crate::time::Instant;

/// Largest deviation of a clock, in milliseconds, that is not noted.
const MAX_CLOCK_OFFSET_MS: i64 = 2000;

/// Columns that are read.
const COLUMNS: [&str; 13] = [
    "time",
    "service",
    "instance",
    "host",
    "build_id",
    "pid",
    "sample_interval",
    "inuse_bytes",
    "inuse_objects",
    "rss_bytes",
    "clock_offset_ms",
    SAMPLER_COUNTS[0],
    SAMPLER_COUNTS[1],
];

/// Profile without its samples.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) time: Instant,
    pub(crate) service: String,
    pub(crate) instance: String,
    pub(crate) host: String,
    pub(crate) pid: i32,
    pub(crate) build_id: String,
    pub(crate) sample_interval: i64,
    pub(crate) inuse_bytes: i64,
    pub(crate) rss_bytes: Option<i64>,
    /// Counts of memprof's sampler. `None` if the allocator sampled.
    pub(crate) sampler: Option<SamplerCounts>,
}

impl Profile {
    /// Build id as tables show it: its first 12 characters, or "unknown".
    pub(crate) fn build(&self) -> &str {
        match self.build_id.get(..12) {
            Some(start) => start,
            None if self.build_id.is_empty() => "unknown",
            None => &self.build_id,
        }
    }
}

/// Reads the selected profiles, sorted by process and time. Files that cannot be read are left out; they, wrong clocks
/// and lost samples are noted. Empty if there are none.
pub(crate) fn profiles(query: &ProfileQuery) -> anyhow::Result<Vec<Profile>> {
    let found = files(&query.store, Table::Profiles, (query.from, query.to))?;
    for name in &found.foreign {
        query
            .notes
            .add(format!("{name} is not a file of memprof's, and is ignored"));
    }
    for (name, reason) in &found.damaged {
        query.notes.add(format!("{name} is not counted: {reason}"));
    }
    let mut profiles = Vec::new();
    let mut clocks = Vec::new();
    for (_, object) in &found.counted {
        let mut file_rows = Vec::new();
        let read = scan(
            &query.store,
            object,
            &COLUMNS,
            query.target.service(),
            |batch| {
                file_rows.extend(selected_rows(&Columns(batch), query, &mut clocks)?);
                Ok(())
            },
        );
        match read {
            Ok(_) => profiles.extend(file_rows),
            Err(error) => query
                .notes
                .add(format!("{} is not counted: {error:#}", object.name)),
        }
    }
    clocks.sort();
    clocks.dedup_by(|(host, _), (next, _)| host == next);
    for (host, offset) in clocks {
        query.notes.add(format!(
            "the clock of {host} differed by {:.1} s from the store's; times are shown by the clock of {host}",
            offset as f64 / 1000.0
        ));
    }
    profiles.sort_by(|a: &Profile, b| (&a.instance, a.time).cmp(&(&b.instance, b.time)));
    if let Some(note) = lost_note(&profiles) {
        query.notes.add(note);
    }
    Ok(profiles)
}

/// Newest profile of each process. `profiles` are sorted by process and time.
pub(crate) fn newest(profiles: &[Profile]) -> impl Iterator<Item = &Profile> {
    let processes = profiles.chunk_by(|a, b| a.instance == b.instance);
    processes.filter_map(<[Profile]>::last)
}

/// Note on processes that lost samples: no value contains these, so values may fall because of them. `None`
/// if no process did.
fn lost_note(profiles: &[Profile]) -> Option<String> {
    let share = |counts: &SamplerCounts| counts.lost as f64 / counts.samples.max(1) as f64;
    let counted = newest(profiles).filter_map(|profile| Some((profile, profile.sampler?)));
    let losing: Vec<_> = counted.filter(|(_, counts)| counts.lost > 0).collect();
    let worst = losing
        .iter()
        .max_by(|(_, a), (_, b)| share(a).total_cmp(&share(b)));
    let (profile, SamplerCounts { samples, lost }) = worst?;
    Some(format!(
        "{} of {} processes lost samples, because memprof's tables were full: their values are too low, and may fall \
         while memory grows; most in {} ({lost} of {samples}): sample more coarsely (`memprof activate \
         sample_interval=4MiB`)",
        losing.len(),
        newest(profiles).count(),
        profile.instance
    ))
}

/// Returns the selected rows of a batch. Adds clocks that are wrong to `clocks`: the machine and the offset in ms.
fn selected_rows(
    columns: &Columns<'_>,
    query: &ProfileQuery,
    clocks: &mut Vec<(String, i64)>,
) -> anyhow::Result<Vec<Profile>> {
    let times = columns.times("time")?;
    let [service, instance] = [columns.texts("service")?, columns.texts("instance")?];
    let [host, build_id] = [columns.texts("host")?, columns.texts("build_id")?];
    let (pid, interval) = (columns.pids()?, columns.numbers("sample_interval")?);
    let inuse_bytes = columns.numbers("inuse_bytes")?;
    let (rss, clock) = (
        columns.nullable("rss_bytes")?,
        columns.nullable("clock_offset_ms")?,
    );
    let [taken, lost] = SAMPLER_COUNTS.map(|name| columns.nullable_or_missing(name));
    let (taken, lost) = (taken?, lost?);
    let mut rows = Vec::new();
    for (row, time) in times.iter().enumerate() {
        let time = Instant(*time);
        let is_selected = query
            .target
            .matches(service.get(row), host.get(row), pid[row]);
        if !is_selected || time < query.from || query.to < time {
            continue;
        }
        if let Some(offset) = clock[row].filter(|offset| offset.abs() > MAX_CLOCK_OFFSET_MS) {
            clocks.push((host.get(row).to_owned(), offset));
        }
        rows.push(Profile {
            time,
            service: service.get(row).to_owned(),
            instance: instance.get(row).to_owned(),
            host: host.get(row).to_owned(),
            pid: pid[row],
            build_id: build_id.get(row).to_owned(),
            sample_interval: interval[row],
            inuse_bytes: inuse_bytes[row],
            rss_bytes: rss[row],
            sampler: SamplerCounts::new(taken[row], lost[row]),
        });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(instance: &str, time: i64, sampler: Option<SamplerCounts>) -> Profile {
        Profile {
            time: Instant(time),
            service: "cart".to_owned(),
            instance: instance.to_owned(),
            host: "node".to_owned(),
            pid: 7,
            build_id: String::new(),
            sample_interval: 1,
            inuse_bytes: 1,
            rss_bytes: None,
            sampler,
        }
    }

    #[test]
    fn lost_samples_of_newest_profiles_are_noted_once() {
        let check = |rows: &[(&str, Option<(i64, i64)>)], expected: Option<&str>| {
            let rows = rows.iter().enumerate().map(|(time, (instance, counts))| {
                let sampler = counts.map(|(samples, lost)| SamplerCounts { samples, lost });
                profile(instance, time as i64, sampler)
            });
            let note = lost_note(&rows.collect::<Vec<_>>());
            assert_eq!(note.is_some(), expected.is_some(), "{note:?}");
            assert!(note.unwrap_or_default().contains(expected.unwrap_or("")));
        };
        check(&[], None);
        check(&[("a", None), ("b", Some((10, 0)))], None);
        // The sampler was restarted before the second profile.
        check(&[("a", Some((10, 9))), ("a", Some((1, 0)))], None);
        let rows = [("a", Some((100, 9))), ("b", Some((10, 5))), ("c", None)];
        check(&rows, Some("2 of 3 processes lost samples"));
        check(&rows, Some("most in b (5 of 10)"));
    }
}
