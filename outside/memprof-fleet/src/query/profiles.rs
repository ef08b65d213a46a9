//! Reads the selected rows of the table PROFILES.

use std::collections::BTreeMap;

use crate::columns::Columns;
use crate::process_profile::SamplerCounts;
use crate::query::ProfileQuery;
use crate::query::table::format_bytes;
use crate::scan::{list_table_files, scan_file};
use crate::schema::Table;
use crate::time::Instant;

/// Largest deviation of a clock, in milliseconds, that is not noted.
const MAX_CLOCK_OFFSET_MS: i64 = 2000;

/// Columns that are read.
const COLUMNS: [&str; 11] = [
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
    /// Returns the id of the machine, container and boot in the process key; empty if an older agent, which left it
    /// out, wrote the profile.
    fn machine_id(&self) -> &str {
        // The host name may contain dots; the rest of the key is `/PID.START.ID`.
        let key = self.instance.strip_prefix(&self.host);
        let parts = key.and_then(|key| key.splitn(3, '.').nth(2));
        parts.unwrap_or("")
    }

    /// Returns the build id as tables show it: its first 12 characters, or "unknown".
    pub(crate) fn short_build_id(&self) -> &str {
        match self.build_id.get(..12) {
            Some(start) => start,
            None if self.build_id.is_empty() => "unknown",
            None => &self.build_id,
        }
    }
}

/// Reads the selected profiles, sorted by process and time. Leaves out files that cannot be read. Adds notes about such
/// files, wrong clocks, and what memprof's sampler missed. Fails if the files cannot be listed.
pub(crate) fn read_profiles(query: &ProfileQuery) -> anyhow::Result<Vec<Profile>> {
    let found = list_table_files(&query.store, Table::Profiles, (query.from, query.to))?;
    for finding in found.findings() {
        query.notes.add(finding);
    }
    let mut profiles = Vec::new();
    let mut clocks = Vec::new();
    let names = [&COLUMNS[..], &SamplerCounts::COLUMNS].concat();
    for (_, object) in &found.counted {
        let mut file_rows = Vec::new();
        let read = scan_file(
            &query.store,
            object,
            &names,
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
    // One note for each machine.
    clocks.sort();
    clocks.dedup_by(|(host, _), (next, _)| host == next);
    for (host, offset) in clocks {
        query.notes.add(format!(
            "the clock of {host} differed by {:.1} s from the store's; times are shown by the clock of {host}",
            offset as f64 / 1000.0
        ));
    }
    profiles.sort_by(|a: &Profile, b| (&a.instance, a.time).cmp(&(&b.instance, b.time)));
    for (host, machines) in shared_machine_names(&profiles) {
        query.notes.add(format!(
            "{host} is the name of {machines} machines; their processes are counted apart"
        ));
    }
    for note in sampler_notes(&profiles) {
        query.notes.add(note);
    }
    Ok(profiles)
}

/// Returns the names that several machines had at the same time, with the number of these machines. A machine that
/// restarts gets a new id, but its profiles with the old and the new id do not overlap in time.
pub(crate) fn shared_machine_names(profiles: &[Profile]) -> BTreeMap<&str, usize> {
    let mut times: BTreeMap<&str, BTreeMap<&str, [Instant; 2]>> = BTreeMap::new();
    for profile in profiles {
        let time = profile.time;
        let machines = times.entry(&profile.host).or_default();
        let [first, last] = machines.entry(profile.machine_id()).or_insert([time; 2]);
        (*first, *last) = (time.min(*first), time.max(*last));
    }
    let counts = times.into_iter().map(|(host, machines)| {
        let overlapping = machines.values().map(|[first, last]| {
            let others = machines.values();
            // More than one, because a machine also overlaps with itself.
            usize::from(
                others
                    .filter(|[start, end]| start <= last && first <= end)
                    .count()
                    > 1,
            )
        });
        (host, overlapping.sum())
    });
    counts.filter(|(_, machines)| *machines > 1).collect()
}

/// Returns the newest profile of each process. `profiles` are sorted by process and time.
pub(crate) fn newest_profiles(profiles: &[Profile]) -> impl Iterator<Item = &Profile> {
    let processes = profiles.chunk_by(|a, b| a.instance == b.instance);
    processes.filter_map(<[Profile]>::last)
}

/// Something that memprof's sampler missed, and how it is noted.
struct Shortfall {
    /// Size of what was missed; 0 if nothing was.
    size: fn(&SamplerCounts) -> f64,
    /// Predicate whose subject are processes, and consequence.
    text: &'static str,
    /// Formats the size, for the process where it is largest.
    format_size: fn(&SamplerCounts) -> String,
    remedy: &'static str,
}

/// Remedy for calls that the sampler does not see.
const SEE_EVERY_CALL: &str = "`memprof attach PID --entries` there lets it see every call";

const SHORTFALLS: [Shortfall; 5] = [
    Shortfall {
        size: |counts| counts.unseen_free_bytes as f64,
        text: "show memory in use that was freed: more than their allocators hold, so none of their rows proves a leak",
        format_size: |counts| format!("about {}", format_bytes(counts.unseen_free_bytes)),
        remedy: SEE_EVERY_CALL,
    },
    Shortfall {
        size: |counts| match counts.unseen_free_bytes {
            // If bytes are known, the entry before this one reports them.
            0 => counts.unseen_free_samples as f64,
            _ => 0.0,
        },
        text: "may show freed memory in use: sampled blocks were given out again though memprof saw no free of them",
        format_size: |counts| counts.unseen_free_samples.to_string(),
        remedy: SEE_EVERY_CALL,
    },
    Shortfall {
        size: |counts| counts.unseen_allocation_bytes as f64,
        text: "lack memory in use that was allocated while memprof sampled, by calls that it does not see",
        format_size: |counts| format!("about {}", format_bytes(counts.unseen_allocation_bytes)),
        remedy: SEE_EVERY_CALL,
    },
    Shortfall {
        size: |counts| counts.early_end_samples as f64 / counts.samples.max(1) as f64,
        text: "have samples whose stacks end early, so their outer callers are missing",
        format_size: |counts| format!("{} of {}", counts.early_end_samples, counts.samples),
        remedy: "`memprof record PID` there names the reasons",
    },
    Shortfall {
        size: |counts| counts.lost as f64 / counts.samples.max(1) as f64,
        text: "lost samples, because memprof's tables were full: their values are too low, and may fall while memory \
               grows",
        format_size: |counts| format!("{} of {}", counts.lost, counts.samples),
        remedy: "sample more coarsely there; `memprof dump` names an interval at which the tables suffice",
    },
];

/// Returns notes about what memprof's sampler missed in the newest profile of each process, so that its values are too
/// high or too low. There is one note for each kind of loss in any process, which names the process with the largest.
fn sampler_notes(profiles: &[Profile]) -> Vec<String> {
    let count = newest_profiles(profiles).count();
    let notes = SHORTFALLS.iter().filter_map(|shortfall| {
        let sized = newest_profiles(profiles).filter_map(|profile| {
            let counts = profile.sampler?;
            let size = (shortfall.size)(&counts);
            (size > 0.0).then_some((size, profile, counts))
        });
        let sized: Vec<_> = sized.collect();
        let (_, profile, counts) = sized.iter().max_by(|(a, ..), (b, ..)| a.total_cmp(b))?;
        Some(format!(
            "{} of {count} processes {}; most in {} ({}): {}",
            sized.len(),
            shortfall.text,
            profile.instance,
            (shortfall.format_size)(counts),
            shortfall.remedy
        ))
    });
    notes.collect()
}

/// Returns the selected rows of a batch. Adds each clock that deviates by more than 2 s to `clocks`: the machine's name
/// and the offset in milliseconds. Fails if a column is missing or of another type.
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
        columns.nullable_numbers("rss_bytes")?,
        columns.nullable_numbers("clock_offset_ms")?,
    );
    let sampler = columns.sampler_counts()?;
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
            sampler: sampler[row],
        });
    }
    Ok(rows)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::query) fn profile(
        instance: &str,
        time: i64,
        sampler: Option<SamplerCounts>,
    ) -> Profile {
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
    fn name_of_machines_at_the_same_time_is_shared() {
        let check = |rows: &[(&str, i64)], expected: &[(&str, usize)]| {
            let rows = rows
                .iter()
                .map(|(key, time)| profile(&format!("node/{key}"), *time, None));
            let profiles: Vec<_> = rows.collect();
            assert!(
                shared_machine_names(&profiles)
                    .into_iter()
                    .eq(expected.iter().copied()),
                "{profiles:?}"
            );
        };
        check(&[], &[]);
        check(&[("7.1.aa", 1), ("8.1.aa", 5)], &[]);
        check(
            &[("7.1.aa", 1), ("7.1.bb", 3), ("8.2.aa", 5)],
            &[("node", 2)],
        );
        // It restarted.
        check(
            &[("7.1.aa", 1), ("8.1.aa", 2), ("7.1.bb", 3), ("7.1.bb", 4)],
            &[],
        );
        check(
            &[("7.1.aa", 1), ("7.1.aa", 4), ("7.1.bb", 3), ("7.1.cc", 4)],
            &[("node", 3)],
        );
        // Older agents wrote no id.
        check(&[("7.1", 1), ("8.1", 5)], &[]);
    }

    #[test]
    fn what_samplers_of_newest_profiles_missed_is_noted_once() {
        // Samples, lost ones, unseen frees, their bytes, bytes allocated unseen, early ends.
        let check = |rows: &[(&str, Option<[i64; 6]>)], expected: &[&str]| {
            let rows = rows.iter().enumerate().map(|(time, (instance, counts))| {
                let sampler = counts.and_then(|counts| SamplerCounts::from_row(counts.map(Some)));
                profile(instance, time as i64, sampler)
            });
            let notes = sampler_notes(&rows.collect::<Vec<_>>());
            assert_eq!(notes.len(), expected.len(), "{notes:?}");
            for (note, expected) in notes.iter().zip(expected) {
                assert!(note.contains(expected), "{note}");
            }
        };
        let lost = |samples, lost| Some([samples, lost, 0, 0, 0, 0]);
        check(&[], &[]);
        check(&[("a", None), ("b", lost(10, 0))], &[]);
        // The sampler was restarted before the second profile.
        check(&[("a", lost(10, 9)), ("a", lost(1, 0))], &[]);
        let rows = [("a", lost(100, 9)), ("b", lost(10, 5)), ("c", None)];
        check(&rows, &["2 of 3 processes lost samples"]);
        check(&rows, &["most in b (5 of 10)"]);
        let unseen = [("a", Some([9, 0, 2, 5 << 30, 0, 0])), ("b", lost(9, 0))];
        check(
            &unseen,
            &["1 of 2 processes show memory in use that was freed"],
        );
        check(&unseen, &["most in a (about 5.00GiB)"]);
        let again = [("a", Some([9, 0, 2, 0, 3 << 20, 4]))];
        let expected = [
            "most in a (2)",
            "most in a (about 3.00MiB)",
            "stacks end early, so their outer callers are missing; most in a (4 of 9)",
        ];
        check(&again, &expected);
    }
}
