//! Reads all rows of a file of the store.

use std::collections::HashMap;
use std::sync::Arc;

use crate::columns::{Columns, TextColumn};
use crate::process_profile::{Frame, NamedStack, ProfileContext, Sample, SamplerCounts};
use crate::scan::scan_file;
use crate::schema::{Rows, Table, Totals};
use crate::store::{Object, ProfileStore};
use crate::time::Instant;

/// Reads all rows of a file of `table`. Fails if the file is damaged or lacks a column.
pub(crate) fn read_rows(
    store: &Arc<ProfileStore>,
    table: Table,
    object: &Object,
) -> anyhow::Result<Rows> {
    let mut rows = Rows::default();
    let mut known = HashMap::new();
    scan_file(store, object, &column_names(table), None, |batch| {
        let columns = Columns(batch);
        match table {
            Table::Samples => append_samples(&columns, &mut rows, &mut known),
            Table::Profiles => append_profiles(&columns, &mut rows),
            Table::Stacks => append_stacks(&columns, &mut rows),
        }
    })?;
    Ok(rows)
}

/// Returns the names of a table's columns that are read: all but `leaf` of the stacks, which repeats the last of
/// `frames`.
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

/// Appends the rows of a batch of samples to `rows`. `known` has the index of each context in `rows`, by process key
/// and time; new contexts are added to `rows` and to `known`. Fails if a column is missing or of another type.
fn append_samples(
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

/// Appends the rows of a batch of profiles to `rows`, each with a context of its own. Fails if a column is missing or
/// of another type.
fn append_profiles(columns: &Columns<'_>, rows: &mut Rows) -> anyhow::Result<()> {
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

/// Appends the rows of a batch of stacks to `rows`. Fails if a column is missing or of another type.
fn append_stacks(columns: &Columns<'_>, rows: &mut Rows) -> anyhow::Result<()> {
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
    texts: [TextColumn<'b>; 5],
    pid: &'b [i32],
    labels: Vec<Vec<(String, String)>>,
    interval: &'b [i64],
}

impl<'b> ContextColumns<'b> {
    /// Reads the columns of a batch. Fails if one is missing or of another type.
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

    /// Returns the context of the row `row`, without the columns that only the table of profiles has.
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
