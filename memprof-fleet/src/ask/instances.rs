//! Questions about processes: which there are, and which grow.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use memprof_report::{SampleType, amount};
use serde::Serialize;

use crate::args::{GrowthArgs, Window};
use crate::ask::{Asked, Profile};
use crate::config::Config;
use crate::output::print;
use crate::target::Target;
use crate::time::Instant;

/// How far back `fleet ps` looks.
const LOOK: Duration = Duration::from_secs(24 * 3600);

#[derive(Serialize)]
struct Process {
    service: String,
    instance: String,
    host: String,
    pid: i32,
    build_id: String,
    /// The newest profile's, RFC 3339.
    time: String,
    profiles: usize,
    inuse_bytes: i64,
    rss_bytes: Option<i64>,
}

#[derive(Serialize)]
struct Growth {
    service: String,
    instance: String,
    build_id: String,
    from: String,
    to: String,
    inuse_bytes: [i64; 2],
    growth_bytes: i64,
    growth_bytes_per_hour: i64,
}

/// `memprof fleet ps`
pub(crate) fn ps(config: &Config, target: &Target, json: bool) -> anyhow::Result<ExitCode> {
    let window = Window {
        until: None,
        length: LOOK,
    };
    let asked = Asked::new(config, &window, target)?;
    let profiles = asked.profiles(None)?;
    let mut rows: Vec<_> = by_process(&profiles)
        .into_iter()
        .map(|(first, newest, profiles)| {
            debug_assert_eq!(first.instance, newest.instance);
            Process {
                service: newest.service.clone(),
                instance: newest.instance.clone(),
                host: newest.host.clone(),
                pid: newest.pid,
                build_id: newest.build().to_owned(),
                time: newest.time.text(),
                profiles,
                inuse_bytes: newest.inuse_bytes,
                rss_bytes: newest.rss_bytes,
            }
        })
        .collect();
    rows.sort_by(|a, b| b.time.cmp(&a.time));
    if json {
        print(&serde_json::to_string(&rows)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let cells = rows.iter().map(|row| {
        [
            row.service.clone(),
            row.instance.clone(),
            row.build_id.clone(),
            row.profiles.to_string(),
            bytes(row.inuse_bytes),
            row.rss_bytes.map(bytes).unwrap_or_default(),
            row.time.clone(),
        ]
    });
    let heads = [
        "SERVICE", "PROCESS", "BUILD", "PROFILES", "IN USE", "RSS", "NEWEST",
    ];
    print(&table(heads, cells.collect()))?;
    Ok(ExitCode::SUCCESS)
}

/// `memprof fleet growth`
pub(crate) fn growth(args: &GrowthArgs) -> anyhow::Result<ExitCode> {
    let asked = Asked::new(&Config::read(&args.at)?, &args.window, &args.target)?;
    let profiles = asked.profiles(None)?;
    let rows = by_process(&profiles).into_iter();
    let mut rows: Vec<_> = rows
        .filter_map(|(first, last, _)| grown(first, last))
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.growth_bytes));
    if args.shown.json {
        print(&serde_json::to_string(&rows)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let cells = rows.iter().take(args.shown.top).map(|row| {
        [
            signed(row.growth_bytes),
            signed(row.growth_bytes_per_hour),
            bytes(row.inuse_bytes[0]),
            bytes(row.inuse_bytes[1]),
            row.service.clone(),
            row.instance.clone(),
            row.build_id.clone(),
        ]
    });
    let heads = [
        "GROWTH", "PER HOUR", "FIRST", "LAST", "SERVICE", "PROCESS", "BUILD",
    ];
    print(&table(heads, cells.collect()))?;
    Ok(ExitCode::SUCCESS)
}

/// A process's first and last profile of the time, where these are two.
fn grown(first: &Profile, last: &Profile) -> Option<Growth> {
    let Instant(length) = Instant(last.time.0 - first.time.0);
    let growth = last.inuse_bytes - first.inuse_bytes;
    (length > 0).then(|| Growth {
        service: last.service.clone(),
        instance: last.instance.clone(),
        build_id: last.build().to_owned(),
        from: first.time.text(),
        to: last.time.text(),
        inuse_bytes: [first.inuse_bytes, last.inuse_bytes],
        growth_bytes: growth,
        growth_bytes_per_hour: (growth as f64 * 3_600_000.0 / length as f64) as i64,
    })
}

/// The first and the last profile of each process, and how many there are.
fn by_process(profiles: &[Profile]) -> Vec<(&Profile, &Profile, usize)> {
    let mut processes: BTreeMap<&str, (&Profile, &Profile, usize)> = BTreeMap::new();
    for one in profiles {
        let entry = processes.entry(&one.instance).or_insert((one, one, 0));
        entry.1 = one;
        entry.2 += 1;
    }
    processes.into_values().collect()
}

pub(super) fn bytes(bytes: i64) -> String {
    amount(bytes, SampleType::InuseSpace)
}

fn signed(value: i64) -> String {
    let sign = if value < 0 { "" } else { "+" };
    format!("{sign}{}", bytes(value))
}

/// Columns as wide as their longest cell.
pub(super) fn table<const N: usize>(heads: [&str; N], rows: Vec<[String; N]>) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].len()]).max().unwrap_or_default()
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let heads = heads.map(str::to_owned);
    let lines = std::iter::once(&heads).chain(&rows).map(|row| {
        let cells = row.iter().zip(widths);
        let cells = cells.map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![
            ["a".to_owned(), "long".to_owned()],
            ["bcd".to_owned(), String::new()],
        ];
        assert_eq!(table(["X", "Y"], rows), "X    Y\na    long\nbcd");
    }
}
