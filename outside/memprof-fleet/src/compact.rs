//! Merges the small files of agents into one per hour, after the hour.
//!
//! A merged file lists the files that it contains, and these do not count once it exists: its single write is the
//! moment of the change. They are deleted afterwards. Merged files of an hour are numbered, and one is created only if
//! the number is free that followed the last one when the files were listed, so that only one of two concurrent merges
//! succeeds: a file that the other one merged is not in its listing as merged.

use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use memprof_output::{note, print};

use crate::columns::Columns;
use crate::config::Config;
use crate::process_profile::{Frame, NamedStack, ProfileContext, Sample, SamplerCounts};
use crate::scan::{scan, table_files};
use crate::schema::{INCOMING_FOLDER, Rows, Table, Totals};
use crate::store::{CreateOutcome, Object, ProfileStore};
use crate::time::{Hour, Instant};

/// Time after an hour's end in which its files may still arrive.
pub(crate) const GRACE_PERIOD: Duration = Duration::from_secs(20 * 60);

/// Numbers of merged files, and of files into which they were merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompactStats {
    pub(crate) files: usize,
    pub(crate) merged_into: usize,
}

/// Runs `memprof fleet compact`: merges the files of past hours, and prints their number. Fails if the store cannot be
/// read or written.
pub(crate) fn run(config: &Config) -> anyhow::Result<ExitCode> {
    let store = Arc::new(ProfileStore::open(&config.store)?);
    let stats = compact(&store, Instant::now().before(GRACE_PERIOD))?;
    print(&format!(
        "merged {} files into {}",
        stats.files, stats.merged_into
    ));
    Ok(ExitCode::SUCCESS)
}

/// Merges the files of all hours that ended before `until`, and deletes the merged ones. Files that cannot be read are
/// noted and left as they are. Fails if a request to the store fails.
pub(crate) fn compact(store: &Arc<ProfileStore>, until: Instant) -> anyhow::Result<CompactStats> {
    let mut stats = CompactStats::default();
    for table in Table::ALL {
        let found = table_files(store, table, (Instant(0), until))?;
        // These files were merged before, but not deleted.
        for object in &found.merged {
            store.delete(&object.name)?;
        }
        for (name, reason) in &found.damaged {
            note(&format!("{name} is left as it is: {reason}"));
        }
        let mut by_hour: BTreeMap<&Hour, Vec<&Object>> = BTreeMap::new();
        for (hour, object) in &found.counted {
            let is_over = hour.end().is_some_and(|end| end <= until);
            if is_over && object.name.starts_with(INCOMING_FOLDER) {
                by_hour.entry(hour).or_default().push(object);
            }
        }
        for (hour, objects) in by_hour {
            let number = found.next_numbers.get(hour).copied().unwrap_or(0);
            let merged = merge_hour(store, table, hour, number, &objects)?;
            stats.files += merged;
            stats.merged_into += usize::from(merged > 0);
        }
    }
    Ok(stats)
}

/// Merges the files of an hour into the file with this number, and deletes them. Files that cannot be read are noted
/// and left out. Returns the number of merged files; 0 if there was nothing to merge, or another agent has merged the
/// hour since the files were listed. Fails if a request to the store fails.
fn merge_hour(
    store: &Arc<ProfileStore>,
    table: Table,
    hour: &Hour,
    number: u32,
    objects: &[&Object],
) -> anyhow::Result<usize> {
    let mut rows = Rows::default();
    let mut contexts = HashMap::new();
    let mut sources = Vec::new();
    for object in objects {
        match read_rows(store, table, object) {
            Ok(file_rows) => {
                rows.add(file_rows, &mut contexts);
                sources.push(object.name.clone());
            }
            Err(error) => note(&format!("{} is left as it is: {error:#}", object.name)),
        }
    }
    let Some(bytes) = rows.encode(table, Some(&sources))? else {
        return Ok(0);
    };
    let name = format!("{}/{}/{number:05}.parquet", table.name(), hour.directory());
    if store.create(&name, bytes.into())? == CreateOutcome::Exists {
        // The file may be this agent's, if the reply to its write was lost. The next run finds out from the sources
        // that the file lists.
        note(&format!(
            "{name} was written meanwhile: that hour is looked at the next time"
        ));
        return Ok(0);
    }
    for source in &sources {
        store.delete(source)?;
    }
    Ok(sources.len())
}

impl Rows {
    /// Adds the rows of another file. `known` has the index in `self` of each context, found by process and time;
    /// contexts that it lacks are added to both.
    fn add(&mut self, other: Self, known: &mut HashMap<(String, Instant), usize>) {
        let contexts: Vec<usize> = other
            .contexts
            .into_iter()
            .map(|context| {
                let key = (context.instance.clone(), context.time);
                *known.entry(key).or_insert_with(|| {
                    self.contexts.push(context);
                    self.contexts.len() - 1
                })
            })
            .collect();
        let samples = other.samples.into_iter();
        self.samples
            .extend(samples.map(|(index, sample)| (contexts[index], sample)));
        let profiles = other.profiles.into_iter();
        self.profiles
            .extend(profiles.map(|(index, totals)| (contexts[index], totals)));
        self.stacks.extend(other.stacks);
    }
}

/// Reads all rows of a file. Fails if it is damaged or lacks a column.
pub(crate) fn read_rows(
    store: &Arc<ProfileStore>,
    table: Table,
    object: &Object,
) -> anyhow::Result<Rows> {
    let mut rows = Rows::default();
    let mut known = HashMap::new();
    scan(store, object, &column_names(table), None, |batch| {
        let columns = Columns(batch);
        match table {
            Table::Samples => read_samples(&columns, &mut rows, &mut known),
            Table::Profiles => read_profiles(&columns, &mut rows),
            Table::Stacks => read_stacks(&columns, &mut rows),
        }
    })?;
    Ok(rows)
}

/// Returns the names of the columns that are read of a table: all but `leaf`, which is computed from `frames`.
fn column_names(table: Table) -> Vec<&'static str> {
    match table {
        Table::Stacks => vec!["stack_id", "function", "frames", "modules"],
        Table::Samples => vec![
            "time",
            "start_time",
            "service",
            "instance",
            "host",
            "build_id",
            "trigger",
            "pid",
            "labels",
            "sample_interval",
            "stack_id",
            "inuse_bytes",
            "inuse_objects",
            "alloc_bytes",
            "alloc_objects",
        ],
        Table::Profiles => [
            &[
                "time",
                "start_time",
                "service",
                "instance",
                "host",
                "build_id",
                "trigger",
                "pid",
                "labels",
                "sample_interval",
                "samples",
                "inuse_bytes",
                "inuse_objects",
                "alloc_bytes",
                "alloc_objects",
                "rss_bytes",
                "clock_offset_ms",
            ][..],
            &SamplerCounts::COLUMNS,
        ]
        .concat(),
    }
}

/// Adds the rows of a batch of samples to `rows`. `known` has the index of each context, by process and time. Fails if
/// a column is missing or of another type.
fn read_samples(
    columns: &Columns<'_>,
    rows: &mut Rows,
    known: &mut HashMap<(String, Instant), usize>,
) -> anyhow::Result<()> {
    let (instance, times) = (columns.texts("instance")?, columns.times("time")?);
    let ids = columns.numbers("stack_id")?;
    let inuse = [
        columns.numbers("inuse_bytes")?,
        columns.numbers("inuse_objects")?,
    ];
    let alloc = [
        columns.nullable_numbers("alloc_bytes")?,
        columns.nullable_numbers("alloc_objects")?,
    ];
    let contexts = ContextColumns::new(columns)?;
    // Rows of one profile often follow each other, and then need no lookup by text.
    let mut last = None;
    for (row, time) in times.iter().enumerate() {
        let run = (instance.keys()[row], *time);
        let index = match last {
            Some((same, index)) if same == run => index,
            _ => {
                let key = (instance.get(row).to_owned(), Instant(*time));
                *known.entry(key).or_insert_with(|| {
                    rows.contexts.push(contexts.context(row));
                    rows.contexts.len() - 1
                })
            }
        };
        last = Some((run, index));
        let sample = Sample {
            stack_id: ids[row],
            inuse_bytes: inuse[0][row],
            inuse_objects: inuse[1][row],
            alloc: alloc[0][row]
                .zip(alloc[1][row])
                .map(|(bytes, objects)| [bytes, objects]),
        };
        rows.samples.push((index, sample));
    }
    Ok(())
}

/// Adds the rows of a batch of profiles to `rows`, each with a context. Fails if a column is missing or of another
/// type.
fn read_profiles(columns: &Columns<'_>, rows: &mut Rows) -> anyhow::Result<()> {
    let samples = columns.numbers("samples")?;
    let inuse = [
        columns.numbers("inuse_bytes")?,
        columns.numbers("inuse_objects")?,
    ];
    let alloc = [
        columns.nullable_numbers("alloc_bytes")?,
        columns.nullable_numbers("alloc_objects")?,
    ];
    let (rss, clock) = (
        columns.nullable_numbers("rss_bytes")?,
        columns.nullable_numbers("clock_offset_ms")?,
    );
    let sampler = columns.sampler_counts()?;
    let contexts = ContextColumns::new(columns)?;
    for (row, samples) in samples.iter().enumerate() {
        rows.contexts.push(ProfileContext {
            rss_bytes: rss[row],
            clock_offset_ms: clock[row],
            sampler: sampler[row],
            ..contexts.context(row)
        });
        let totals = Totals {
            samples: *samples,
            inuse: [inuse[0][row], inuse[1][row]],
            alloc: alloc[0][row]
                .zip(alloc[1][row])
                .map(|(bytes, objects)| [bytes, objects]),
        };
        rows.profiles.push((rows.contexts.len() - 1, totals));
    }
    Ok(())
}

/// Adds the rows of a batch of stacks to `rows`. Fails if a column is missing or of another type.
fn read_stacks(columns: &Columns<'_>, rows: &mut Rows) -> anyhow::Result<()> {
    let functions = columns.plain_texts("function")?;
    let lists = columns
        .text_lists("frames")?
        .into_iter()
        .zip(columns.text_lists("modules")?);
    let ids = columns.numbers("stack_id")?.iter().zip(functions);
    for ((id, function), (frames, modules)) in ids.zip(lists) {
        let frames = frames.into_iter().zip(modules);
        rows.stacks.push(NamedStack {
            stack_id: *id,
            function: function.to_owned(),
            frames: frames
                .map(|(function, module)| Frame { function, module })
                .collect(),
        });
    }
    Ok(())
}

/// Columns that samples and profiles have in common.
struct ContextColumns<'b> {
    times: [&'b [i64]; 2],
    texts: [crate::columns::TextColumn<'b>; 5],
    pid: &'b [i32],
    labels: Vec<Vec<(String, String)>>,
    interval: &'b [i64],
}

impl<'b> ContextColumns<'b> {
    /// Takes the columns of a batch. Fails if one is missing or of another type.
    fn new(columns: &Columns<'b>) -> anyhow::Result<Self> {
        Ok(Self {
            times: [columns.times("time")?, columns.times("start_time")?],
            texts: [
                columns.texts("service")?,
                columns.texts("instance")?,
                columns.texts("host")?,
                columns.texts("build_id")?,
                columns.texts("trigger")?,
            ],
            pid: columns.pids()?,
            labels: columns.labels()?,
            interval: columns.numbers("sample_interval")?,
        })
    }

    /// Returns the context of a row, without the columns that only the table of profiles has.
    fn context(&self, row: usize) -> ProfileContext {
        let [service, instance, host, build_id, trigger] = self
            .texts
            .each_ref()
            .map(|column| column.get(row).to_owned());
        ProfileContext {
            time: Instant(self.times[0][row]),
            start_time: Instant(self.times[1][row]),
            service,
            instance,
            host,
            pid: self.pid[row].cast_unsigned(),
            build_id,
            trigger,
            labels: self.labels[row].iter().cloned().collect(),
            sample_interval: self.interval[row],
            rss_bytes: None,
            clock_offset_ms: None,
            sampler: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::TableFiles;

    /// Writes a table of one stack to the store. With `sources` it is a merged file; `None` is for an agent's.
    fn write_stacks(store: &ProfileStore, name: &str, sources: Option<&[String]>) {
        let mut rows = Rows::default();
        rows.stacks.push(NamedStack {
            stack_id: 7,
            function: "grow".to_owned(),
            frames: Vec::new(),
        });
        let bytes = rows.encode(Table::Stacks, sources).unwrap().unwrap();
        store.create(name, bytes.into()).unwrap();
    }

    /// Returns the names of all merged files of stacks, and of all files of agents.
    fn hourly_names(store: &ProfileStore) -> Vec<String> {
        let prefixes = [Table::Stacks.name(), INCOMING_FOLDER];
        let objects = prefixes
            .iter()
            .flat_map(|prefix| store.list(prefix).unwrap());
        objects.map(|object| object.name).collect()
    }

    /// Another machine merges one of two files between this one's listing and its merge.
    #[test]
    fn merge_beside_another_one_loses_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("file://{}", directory.path().display());
        let store = Arc::new(ProfileStore::open(&url).unwrap());
        let hour = "stacks/date=2026-11-21/hour=07";
        let [merged, late] = ["a", "b"]
            .map(|digit| format!("{INCOMING_FOLDER}/{hour}/{}.parquet", digit.repeat(32)));
        write_stacks(&store, &merged, None);
        write_stacks(&store, &late, None);
        let merge_listed = |found: &TableFiles| {
            let objects: Vec<_> = found.counted.iter().map(|(_, object)| object).collect();
            let (hour, _) = &found.counted[0];
            let number = found.next_numbers.get(hour).copied().unwrap_or(0);
            merge_hour(&store, Table::Stacks, hour, number, &objects).unwrap()
        };
        let list = || table_files(&store, Table::Stacks, (Instant(0), Instant::now())).unwrap();
        let listed = list();
        assert_eq!(listed.counted.len(), 2);
        write_stacks(&store, &format!("{hour}/00000.parquet"), Some(&[merged]));
        assert_eq!(merge_listed(&listed), 0);
        assert_eq!(hourly_names(&store).len(), 3);
        // The next run deletes what was merged, and merges the rest.
        let stats = compact(&store, Instant::now()).unwrap();
        assert_eq!((stats.files, stats.merged_into), (1, 1));
        let names = [0, 1].map(|number| format!("{hour}/{number:05}.parquet"));
        assert_eq!(hourly_names(&store), names);
        assert!(list().copies.is_empty());
    }
}
