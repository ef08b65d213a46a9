//! The tables, as Parquet files: SAMPLES, PROFILES and STACKS. No unsigned types, which Spark and Trino
//! do not have; date and hour are directories, as Hive has them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use anyhow::Context as _;
use arrow_array::builder::{
    Int32Builder, Int64Builder, ListBuilder, MapBuilder, StringBuilder, StringDictionaryBuilder,
    TimestampMillisecondBuilder,
};
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::ArrowError;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use sha2::{Digest, Sha256};

use crate::process_profile::{ProcessProfile, ProfileContext, Sample, Stack};
use crate::time::Hour;

/// A table, and the prefix of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Table {
    /// What each stack held in each dump.
    Samples,
    /// A row for each dump.
    Profiles,
    /// The frames of each stack. One stack may be there several times, with the same frames.
    Stacks,
}

/// Where agents put files, before they are merged by the hour.
pub(crate) const INCOMING: &str = "incoming";

/// The key of a merged file's metadata that lists the files that are in it.
pub(crate) const SOURCES: &str = "memprof.sources";

/// Columns of PROFILES that files of older agents lack: samples that memprof's sampler took, and lost.
pub(crate) const SAMPLER_COUNTS: [&str; 2] = ["taken_samples", "lost_samples"];

/// The most rows of a page in an agent's file, so that a query of one service reads little of it.
const PAGE: usize = 2048;
/// The same of a merged file, of which a service has many more rows: what a page takes for itself in each column, with
/// its least and greatest value, is half a byte a row where pages are small.
const MERGED_PAGE: usize = 16 * 1024;
const ZSTD: i32 = 3;

impl Table {
    pub(crate) const ALL: [Self; 3] = [Self::Samples, Self::Profiles, Self::Stacks];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::Profiles => "profiles",
            Self::Stacks => "stacks",
        }
    }
}

/// The rows of some files, of any tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    /// Those of samples, with the index of their context.
    pub(crate) samples: Vec<(usize, Sample)>,
    /// Those of profiles: the sums of bytes and objects in use, and allocated.
    pub(crate) profiles: Vec<(usize, Totals)>,
    pub(crate) stacks: Vec<Stack>,
    /// What rows of samples and profiles have in common.
    pub(crate) contexts: Vec<ProfileContext>,
}

/// What a dump held in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) samples: i64,
    pub(crate) inuse: [i64; 2],
    pub(crate) alloc: Option<[i64; 2]>,
}

/// The files of a batch of dumps: their names in the store, and their bytes, the same for the same dumps.
/// `known` are stacks that are in the store already.
pub(crate) fn files(
    dumped: &[ProcessProfile],
    known: &HashSet<(Hour, i64)>,
) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut by_hour: BTreeMap<Hour, Rows> = BTreeMap::new();
    for one in dumped {
        let hour = one.context.time.hour();
        let rows = by_hour.entry(hour.clone()).or_default();
        let index = rows.contexts.len();
        rows.contexts.push(one.context.clone());
        rows.samples
            .extend(one.samples.iter().map(|sample| (index, *sample)));
        rows.profiles.push((index, Totals::of(one)));
        let fresh = |stack: &&Stack| !known.contains(&(hour.clone(), stack.stack_id));
        rows.stacks.extend(one.stacks.iter().filter(fresh).cloned());
    }
    let mut files = Vec::new();
    for (hour, mut rows) in by_hour {
        for table in Table::ALL {
            if let Some(bytes) = rows.write(table, None)? {
                let (name, directory) = (content_name(&bytes), hour.directory());
                let name = format!("{INCOMING}/{}/{directory}/{name}.parquet", table.name());
                files.push((name, bytes));
            }
        }
    }
    Ok(files)
}

/// What a file of these bytes is called.
pub(crate) fn content_name(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

impl Totals {
    fn of(dumped: &ProcessProfile) -> Self {
        Self {
            samples: dumped.samples.len() as i64,
            inuse: dumped.inuse(),
            alloc: dumped.alloc(),
        }
    }
}

impl Rows {
    /// The file of a table, sorted; none where it has no row. `sources` are the files that are in it.
    pub(crate) fn write(
        &mut self,
        table: Table,
        sources: Option<&[String]>,
    ) -> anyhow::Result<Option<Vec<u8>>> {
        let batch = match table {
            Table::Samples => self.samples(),
            Table::Profiles => self.profiles(),
            Table::Stacks => self.stacks(),
        };
        let batch = batch.context("failed to build a table")?;
        match batch.num_rows() {
            0 => Ok(None),
            _ => write(&batch, sources).map(Some),
        }
    }

    fn samples(&mut self) -> Result<RecordBatch, ArrowError> {
        let contexts = &self.contexts;
        let key = |(index, sample): &(usize, Sample)| {
            let of = &contexts[*index];
            (&of.service, &of.instance, sample.stack_id, of.time)
        };
        self.samples.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
        let rows = &self.samples;
        let of = |index: usize| &contexts[index];
        let mut columns = context_columns(rows.iter().map(|(index, _)| of(*index)));
        let mut numbers: [Int64Builder; 5] = Default::default();
        for (_, sample) in rows {
            let [bytes, objects] = sample.alloc.map_or([None; 2], |both| both.map(Some));
            let values = [
                Some(sample.stack_id),
                Some(sample.inuse_bytes),
                Some(sample.inuse_objects),
                bytes,
                objects,
            ];
            for (column, value) in numbers.iter_mut().zip(values) {
                column.append_option(value);
            }
        }
        let names = [
            "stack_id",
            "inuse_bytes",
            "inuse_objects",
            "alloc_bytes",
            "alloc_objects",
        ];
        columns.extend(
            names
                .into_iter()
                .zip(numbers.map(|mut column| Arc::new(column.finish()) as ArrayRef)),
        );
        RecordBatch::try_from_iter(columns)
    }

    fn profiles(&mut self) -> Result<RecordBatch, ArrowError> {
        let contexts = &self.contexts;
        let key = |(index, _): &(usize, Totals)| {
            let of = &contexts[*index];
            (&of.service, &of.instance, of.time)
        };
        self.profiles.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
        let rows = &self.profiles;
        let mut columns = context_columns(rows.iter().map(|(index, _)| &contexts[*index]));
        let mut numbers: [Int64Builder; 9] = Default::default();
        for (index, totals) in rows {
            let of = &contexts[*index];
            let [bytes, objects] = totals.alloc.map_or([None; 2], |both| both.map(Some));
            let values = [
                Some(totals.samples),
                Some(totals.inuse[0]),
                Some(totals.inuse[1]),
                bytes,
                objects,
                of.rss_bytes,
                of.clock_offset_ms,
                of.sampler.map(|counts| counts.samples),
                of.sampler.map(|counts| counts.lost),
            ];
            for (column, value) in numbers.iter_mut().zip(values) {
                column.append_option(value);
            }
        }
        let names = [
            "samples",
            "inuse_bytes",
            "inuse_objects",
            "alloc_bytes",
            "alloc_objects",
            "rss_bytes",
            "clock_offset_ms",
            SAMPLER_COUNTS[0],
            SAMPLER_COUNTS[1],
        ];
        columns.extend(
            names
                .into_iter()
                .zip(numbers.map(|mut column| Arc::new(column.finish()) as ArrayRef)),
        );
        RecordBatch::try_from_iter(columns)
    }

    fn stacks(&mut self) -> Result<RecordBatch, ArrowError> {
        self.stacks.sort_by_key(|stack| stack.stack_id);
        self.stacks.dedup_by_key(|stack| stack.stack_id);
        let mut id = Int64Builder::new();
        let [mut leaf, mut function] = [StringBuilder::new(), StringBuilder::new()];
        let list = || ListBuilder::new(StringBuilder::new());
        let [mut frames, mut modules] = [list(), list()];
        for stack in &self.stacks {
            id.append_value(stack.stack_id);
            leaf.append_value(stack.frames.last().map_or("", |frame| &frame.function));
            function.append_value(&stack.function);
            for frame in &stack.frames {
                frames.values().append_value(&frame.function);
                modules.values().append_value(&frame.module);
            }
            frames.append(true);
            modules.append(true);
        }
        RecordBatch::try_from_iter([
            ("stack_id", Arc::new(id.finish()) as ArrayRef),
            ("leaf", Arc::new(leaf.finish())),
            ("function", Arc::new(function.finish())),
            ("frames", Arc::new(frames.finish())),
            ("modules", Arc::new(modules.finish())),
        ])
    }
}

/// The columns that samples and profiles have in common.
fn context_columns<'c>(
    contexts: impl Iterator<Item = &'c ProfileContext>,
) -> Vec<(&'static str, ArrayRef)> {
    let time = || TimestampMillisecondBuilder::new().with_timezone("UTC");
    let [mut times, mut starts] = [time(), time()];
    let mut texts: [StringDictionaryBuilder<Int32Type>; 5] = Default::default();
    let mut pid = Int32Builder::new();
    let mut labels = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    let mut interval = Int64Builder::new();
    for of in contexts {
        times.append_value(of.time.0);
        starts.append_value(of.start_time.0);
        let values = [
            &of.service,
            &of.instance,
            &of.host,
            &of.build_id,
            &of.trigger,
        ];
        for (column, value) in texts.iter_mut().zip(values) {
            column.append_value(value);
        }
        pid.append_value(of.pid.cast_signed());
        for (key, value) in &of.labels {
            labels.keys().append_value(key);
            labels.values().append_value(value);
        }
        labels.append(true).expect("as many keys as values");
        interval.append_value(of.sample_interval);
    }
    let names = ["service", "instance", "host", "build_id", "trigger"];
    let texts = names
        .into_iter()
        .zip(texts.map(|mut column| Arc::new(column.finish()) as ArrayRef));
    let mut columns: Vec<(&'static str, ArrayRef)> = texts.collect();
    columns.extend([
        ("time", Arc::new(times.finish()) as ArrayRef),
        ("start_time", Arc::new(starts.finish())),
        ("pid", Arc::new(pid.finish())),
        ("labels", Arc::new(labels.finish())),
        ("sample_interval", Arc::new(interval.finish())),
    ]);
    columns
}

fn write(batch: &RecordBatch, sources: Option<&[String]>) -> anyhow::Result<Vec<u8>> {
    let page = match sources {
        Some(_) => MERGED_PAGE,
        None => PAGE,
    };
    let sources =
        sources.map(|sources| vec![KeyValue::new(SOURCES.to_owned(), sources.join("\n"))]);
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD)?))
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_data_page_row_count_limit(page)
        // The limit is looked at after each of these.
        .set_write_batch_size(page)
        .set_created_by("memprof-fleet".to_owned())
        .set_key_value_metadata(sources)
        .build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties))?;
    writer.write(batch)?;
    writer.close()?;
    Ok(bytes)
}
