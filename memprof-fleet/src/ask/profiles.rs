//! The rows of PROFILES that a question is about.

use crate::ask::Asked;
use crate::columns::Columns;
use crate::scan::{files, scan};
use crate::schema::Table;
use crate::time::Instant;

/// A clock that is further off than this is told of.
const CLOCK_MS: i64 = 2000;

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

/// A dump, without its samples.
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
}

impl Profile {
    /// The build as it is shown.
    pub(crate) fn build(&self) -> &str {
        match self.build_id.get(..12) {
            Some(start) => start,
            None if self.build_id.is_empty() => "unknown",
            None => &self.build_id,
        }
    }
}

/// All profiles that are asked for, by process and time.
pub(crate) fn profiles(asked: &Asked) -> anyhow::Result<Vec<Profile>> {
    let found = files(&asked.store, Table::Profiles, (asked.from, asked.to))?;
    for name in &found.foreign {
        asked
            .notes
            .add(format!("{name} is not a file of memprof's, and is ignored"));
    }
    for (name, why) in &found.damaged {
        asked.notes.add(format!("{name} is not counted: {why}"));
    }
    let mut profiles = Vec::new();
    let mut clocks = Vec::new();
    for (_, object) in &found.counted {
        let mut of_file = Vec::new();
        let read = scan(
            &asked.store,
            object,
            &COLUMNS,
            asked.target.service(),
            |batch| {
                of_file.extend(rows(&Columns(batch), asked, &mut clocks)?);
                Ok(())
            },
        );
        match read {
            Ok(_) => profiles.extend(of_file),
            Err(error) => asked
                .notes
                .add(format!("{} is not counted: {error:#}", object.name)),
        }
    }
    clocks.sort();
    clocks.dedup_by(|(host, _), (next, _)| host == next);
    for (host, offset) in clocks {
        asked.notes.add(format!(
            "the clock of {host} differed by {:.1} s from the store's; times are shown by the clock of {host}",
            offset as f64 / 1000.0
        ));
    }
    profiles.sort_by(|a: &Profile, b| (&a.instance, a.time).cmp(&(&b.instance, b.time)));
    Ok(profiles)
}

fn rows(
    columns: &Columns<'_>,
    asked: &Asked,
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
    let mut rows = Vec::new();
    for (at, time) in times.iter().enumerate() {
        let time = Instant(*time);
        let is_meant = asked.target.takes(service.get(at), host.get(at), pid[at]);
        if !is_meant || time < asked.from || asked.to < time {
            continue;
        }
        if let Some(offset) = clock[at].filter(|offset| offset.abs() > CLOCK_MS) {
            clocks.push((host.get(at).to_owned(), offset));
        }
        rows.push(Profile {
            time,
            service: service.get(at).to_owned(),
            instance: instance.get(at).to_owned(),
            host: host.get(at).to_owned(),
            pid: pid[at],
            build_id: build_id.get(at).to_owned(),
            sample_interval: interval[at],
            inuse_bytes: inuse_bytes[at],
            rss_bytes: rss[at],
        });
    }
    Ok(rows)
}
