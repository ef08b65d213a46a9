//! Queries of processes: which ones have profiles, and which grow.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use memprof_output::{NO_DATA, format_table, print, with_exit_code};
use serde::Serialize;

use crate::args::{GrowthArgs, TimeWindow};
use crate::config::Config;
use crate::process_profile::SamplerCounts;
use crate::query::table::{format_bytes, format_signed_bytes};
use crate::query::{Profile, ProfileQuery};
use crate::target::Target;

/// Age of profiles up to which `fleet ps` lists their processes.
const PS_WINDOW: Duration = Duration::from_secs(24 * 3600);

/// Counts of what memprof's sampler missed until a profile: values are wrong by them. Null if the allocator sampled.
#[derive(Serialize)]
struct MissedCounts {
    lost_samples: Option<i64>,
    unseen_free_samples: Option<i64>,
    unseen_free_bytes: Option<i64>,
    unseen_allocation_bytes: Option<i64>,
    early_end_samples: Option<i64>,
}

/// Process, with values of its newest profile.
#[derive(Serialize)]
pub(crate) struct Process {
    service: String,
    instance: String,
    host: String,
    pid: i32,
    build_id: String,
    /// Time of the newest profile (RFC 3339).
    time: String,
    profiles: usize,
    inuse_bytes: i64,
    rss_bytes: Option<i64>,
    #[serde(flatten)]
    missed: MissedCounts,
}

/// Growth of a process between its first and last profile.
#[derive(Serialize)]
pub(crate) struct Growth {
    service: String,
    instance: String,
    build_id: String,
    from: String,
    to: String,
    inuse_bytes: [i64; 2],
    growth_bytes: i64,
    growth_bytes_per_hour: i64,
    #[serde(flatten)]
    missed: MissedCounts,
}

impl MissedCounts {
    /// Takes the counts from a profile. Each is `None` if memprof's sampler did not take the profile.
    fn from_profile(profile: &Profile) -> Self {
        let count = |count: fn(SamplerCounts) -> i64| profile.sampler.map(count);
        Self {
            lost_samples: count(|counts| counts.lost),
            unseen_free_samples: count(|counts| counts.unseen_free_samples),
            unseen_free_bytes: count(|counts| counts.unseen_free_bytes),
            unseen_allocation_bytes: count(|counts| counts.unseen_allocation_bytes),
            early_end_samples: count(|counts| counts.early_end_samples),
        }
    }
}

/// Runs `memprof fleet ps` on the store: prints the processes with a profile in the last [`PS_WINDOW`] (24 h), as a
/// table or, if `json`, as JSON. Fails if there is none (exit code 5).
pub(crate) fn run_ps(config: &Config, target: &Target, json: bool) -> anyhow::Result<ExitCode> {
    let window = TimeWindow {
        until: None,
        length: PS_WINDOW,
    };
    let profiles = ProfileQuery::new(config, &window, target)?.read_selected_profiles(None)?;
    let rows = summarize_processes(&profiles);
    if json {
        print(&serde_json::to_string(&rows)?);
        return Ok(ExitCode::SUCCESS);
    }
    let cells = rows.iter().map(|row| {
        [
            row.service.clone(),
            row.instance.clone(),
            row.build_id.clone(),
            row.profiles.to_string(),
            format_bytes(row.inuse_bytes),
            row.rss_bytes.map(format_bytes).unwrap_or_default(),
            row.time.clone(),
        ]
    });
    let heads = [
        "SERVICE", "PROCESS", "BUILD", "PROFILES", "IN USE", "RSS", "NEWEST",
    ];
    print(&format_table(heads, &cells.collect::<Vec<_>>()));
    Ok(ExitCode::SUCCESS)
}

/// Runs `memprof fleet growth`: prints the processes by growth, `--top` of them in a table or all as JSON.
///
/// # Errors
/// No process has two profiles (exit code 5), or the store cannot be read.
pub(crate) fn run_growth(args: &GrowthArgs) -> anyhow::Result<ExitCode> {
    let query = ProfileQuery::from_args(&args.select)?;
    let profiles = query.read_selected_profiles(None)?;
    let rows = processes_by_growth(&profiles);
    if rows.is_empty() {
        let message = format!(
            "there is no growth to show: each of {} processes has one profile",
            profiles.len()
        );
        return Err(with_exit_code(
            NO_DATA,
            format!("{message} in {query}; a longer --for may have two of one"),
        ));
    }
    if args.json {
        print(&serde_json::to_string(&rows)?);
        return Ok(ExitCode::SUCCESS);
    }
    let cells = rows.iter().take(args.top).map(|row| {
        [
            format_signed_bytes(row.growth_bytes),
            format_signed_bytes(row.growth_bytes_per_hour),
            format_bytes(row.inuse_bytes[0]),
            format_bytes(row.inuse_bytes[1]),
            row.service.clone(),
            row.instance.clone(),
            row.build_id.clone(),
        ]
    });
    let heads = [
        "GROWTH", "PER HOUR", "FIRST", "LAST", "SERVICE", "PROCESS", "BUILD",
    ];
    print(&format_table(heads, &cells.collect::<Vec<_>>()));
    Ok(ExitCode::SUCCESS)
}

/// Summarizes each process of the profiles by its newest one. The process with the newest profile comes first.
/// `profiles` are sorted by process and time.
pub(crate) fn summarize_processes(profiles: &[Profile]) -> Vec<Process> {
    let rows = first_and_last_by_process(profiles).into_iter();
    let mut rows: Vec<_> = rows
        .map(|(_, newest, profiles)| Process {
            service: newest.service.clone(),
            instance: newest.instance.clone(),
            host: newest.host.clone(),
            pid: newest.pid,
            build_id: newest.short_build_id().to_owned(),
            time: newest.time.to_rfc3339(),
            profiles,
            inuse_bytes: newest.inuse_bytes,
            rss_bytes: newest.rss_bytes,
            missed: MissedCounts::from_profile(newest),
        })
        .collect();
    rows.sort_by(|a, b| b.time.cmp(&a.time));
    rows
}

/// Returns the growth of the processes with at least two profiles, the largest first. `profiles` are sorted by process
/// and time.
pub(crate) fn processes_by_growth(profiles: &[Profile]) -> Vec<Growth> {
    let rows = first_and_last_by_process(profiles).into_iter();
    let mut rows: Vec<_> = rows
        .filter_map(|(first, last, _)| growth_between(first, last))
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.growth_bytes));
    rows
}

/// Returns the growth of a process between its first and last profile. `None` if the last one is not later than the
/// first.
fn growth_between(first: &Profile, last: &Profile) -> Option<Growth> {
    let elapsed_ms = last.time.0.saturating_sub(first.time.0);
    // Saturates, because a file of the store may have any numbers.
    let growth = last.inuse_bytes.saturating_sub(first.inuse_bytes);
    (elapsed_ms > 0).then(|| Growth {
        service: last.service.clone(),
        instance: last.instance.clone(),
        build_id: last.short_build_id().to_owned(),
        from: first.time.to_rfc3339(),
        to: last.time.to_rfc3339(),
        inuse_bytes: [first.inuse_bytes, last.inuse_bytes],
        growth_bytes: growth,
        growth_bytes_per_hour: (growth as f64 * 3_600_000.0 / elapsed_ms as f64) as i64,
        missed: MissedCounts::from_profile(last),
    })
}

/// Returns the first and the last profile of each process, and the number of its profiles, in the order of the process
/// keys. `profiles` are sorted by process and time.
pub(super) fn first_and_last_by_process(profiles: &[Profile]) -> Vec<(&Profile, &Profile, usize)> {
    let mut processes: BTreeMap<&str, (&Profile, &Profile, usize)> = BTreeMap::new();
    for profile in profiles {
        let entry = processes
            .entry(&profile.instance)
            .or_insert((profile, profile, 0));
        entry.1 = profile;
        entry.2 += 1;
    }
    processes.into_values().collect()
}
