//! Tables of the store as Parquet files: samples, profiles and stacks. Their columns have no unsigned types,
//! which Spark and Trino lack. Date and hour are folders, as in Hive.

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

use crate::process_profile::{NamedStack, ProcessProfile, ProfileContext, Sample, SamplerCounts};
use crate::store::file_name_from_content;
use crate::time::Hour;

/// Table, whose name is the prefix of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Table {
    /// Values of each stack in each profile.
    Samples,
    /// One row per profile.
    Profiles,
    /// Frames of each stack. A stack may have several rows, with equal frames.
    Stacks,
}

/// Folder of agents' files, until they are merged by hour.
pub(crate) const INCOMING_FOLDER: &str = "incoming";

/// Metadata key of a merged file, whose value lists the merged files.
pub(crate) const SOURCES_KEY: &str = "memprof.sources";

/// Most rows of a page in an agent's file. Pages are small, so that a query of one service reads little of the file.
const PAGE_ROWS: usize = 2048;
/// Most rows of a page in a merged file, in which a service has many more rows. Each page has an overhead per column,
/// with the least and greatest value; in small pages it would be half a byte per row.
const MERGED_PAGE_ROWS: usize = 16 * 1024;
/// Level of Zstandard; 3 is the default of its own tools.
const ZSTD_LEVEL: i32 = 3;

impl Table {
    pub(crate) const ALL: [Self; 3] = [Self::Samples, Self::Profiles, Self::Stacks];

    /// Returns the name of the table, which is also that of its folder in the store.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::Profiles => "profiles",
            Self::Stacks => "stacks",
        }
    }
}

/// Rows of some files, of any tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    /// Rows of samples, each with the index of its context.
    pub(crate) samples: Vec<(usize, Sample)>,
    /// Rows of profiles, each with the index of its context.
    pub(crate) profiles: Vec<(usize, Totals)>,
    pub(crate) stacks: Vec<NamedStack>,
    /// Columns that rows of samples and profiles have in common.
    pub(crate) contexts: Vec<ProfileContext>,
}

/// Sums of a profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Number of samples.
    pub(crate) samples: i64,
    /// Bytes and objects in use.
    pub(crate) inuse: [i64; 2],
    /// Bytes and objects allocated. `None` if the allocator does not count them.
    pub(crate) alloc: Option<[i64; 2]>,
}

/// Converts profiles to files of the store, one for each hour and table, and returns their names and bytes. Equal
/// profiles give equal files. `known` has the hour and id of the stacks that are in the store already; these are left
/// out.
pub(crate) fn build_store_files(
    profiles: &[ProcessProfile],
    known: &HashSet<(Hour, i64)>,
) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut by_hour: BTreeMap<Hour, Rows> = BTreeMap::new();
    for profile in profiles {
        let hour = profile.context.time.hour();
        let rows = by_hour.entry(hour.clone()).or_default();
        let index = rows.contexts.len();
        rows.contexts.push(profile.context.clone());
        rows.samples
            .extend(profile.samples.iter().map(|sample| (index, *sample)));
        rows.profiles.push((index, Totals::from_profile(profile)));
        let fresh = |stack: &&NamedStack| !known.contains(&(hour.clone(), stack.stack_id));
        rows.stacks
            .extend(profile.stacks.iter().filter(fresh).cloned());
    }
    let mut files = Vec::new();
    for (hour, mut rows) in by_hour {
        for table in Table::ALL {
            if let Some(bytes) = rows.encode(table, None)? {
                let (name, directory) = (file_name_from_content(&bytes), hour.directory());
                let name = format!(
                    "{INCOMING_FOLDER}/{}/{directory}/{name}.parquet",
                    table.name()
                );
                files.push((name, bytes));
            }
        }
    }
    Ok(files)
}

impl Totals {
    /// Sums the samples of a profile, which has one for each stack.
    fn from_profile(profile: &ProcessProfile) -> Self {
        Self {
            samples: profile.samples.len() as i64,
            inuse: profile.sum_inuse(),
            alloc: profile.sum_alloc(),
        }
    }
}

impl Rows {
    /// Sorts the rows of a table, and encodes them as a Parquet file. `None` if the table has no row. For a merged
    /// file, `sources` are the names of the files that it contains; `None` is for an agent's file.
    pub(crate) fn encode(
        &mut self,
        table: Table,
        sources: Option<&[String]>,
    ) -> anyhow::Result<Option<Vec<u8>>> {
        let batch = match table {
            Table::Samples => self.build_samples_batch(),
            Table::Profiles => self.build_profiles_batch(),
            Table::Stacks => self.build_stacks_batch(),
        };
        let batch = batch.context("failed to build a table")?;
        match batch.num_rows() {
            0 => Ok(None),
            _ => encode_batch(&batch, sources).map(Some),
        }
    }

    /// Sorts the samples by service, process, stack and time, so that a query of one service reads few pages, and
    /// builds their rows.
    fn build_samples_batch(&mut self) -> Result<RecordBatch, ArrowError> {
        let contexts = &self.contexts;
        let key = |(index, sample): &(usize, Sample)| {
            let context = &contexts[*index];
            (
                &context.service,
                &context.instance,
                sample.stack_id,
                context.time,
            )
        };
        self.samples.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
        let rows = &self.samples;
        let context = |index: usize| &contexts[index];
        let mut columns = context_columns(rows.iter().map(|(index, _)| context(*index)));
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

    /// Sorts the profiles by service, process and time, and builds their rows.
    fn build_profiles_batch(&mut self) -> Result<RecordBatch, ArrowError> {
        let contexts = &self.contexts;
        let key = |(index, _): &(usize, Totals)| {
            let context = &contexts[*index];
            (&context.service, &context.instance, context.time)
        };
        self.profiles.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
        let rows = &self.profiles;
        let mut columns = context_columns(rows.iter().map(|(index, _)| &contexts[*index]));
        let mut numbers: [Int64Builder; 7 + SamplerCounts::COLUMNS.len()] = Default::default();
        for (index, totals) in rows {
            let context = &contexts[*index];
            let [bytes, objects] = totals.alloc.map_or([None; 2], |both| both.map(Some));
            let values = [
                Some(totals.samples),
                Some(totals.inuse[0]),
                Some(totals.inuse[1]),
                bytes,
                objects,
                context.rss_bytes,
                context.clock_offset_ms,
            ];
            let counts = match context.sampler {
                Some(counts) => counts.values().map(Some),
                None => [None; SamplerCounts::COLUMNS.len()],
            };
            for (column, value) in numbers.iter_mut().zip(values.into_iter().chain(counts)) {
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
        ];
        columns.extend(
            names
                .into_iter()
                .chain(SamplerCounts::COLUMNS)
                .zip(numbers.map(|mut column| Arc::new(column.finish()) as ArrayRef)),
        );
        RecordBatch::try_from_iter(columns)
    }

    /// Sorts the stacks by id, removes duplicates, and builds their rows. The frames of a stack are root first, so its
    /// leaf is the last one.
    fn build_stacks_batch(&mut self) -> Result<RecordBatch, ArrowError> {
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

/// Builds the columns that samples and profiles have in common, such as service, process and time, with one row for
/// each context.
fn context_columns<'c>(
    contexts: impl Iterator<Item = &'c ProfileContext>,
) -> Vec<(&'static str, ArrayRef)> {
    let time = || TimestampMillisecondBuilder::new().with_timezone("UTC");
    let [mut times, mut starts] = [time(), time()];
    let mut texts: [StringDictionaryBuilder<Int32Type>; 5] = Default::default();
    let mut pid = Int32Builder::new();
    let mut labels = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    let mut interval = Int64Builder::new();
    for context in contexts {
        times.append_value(context.time.0);
        starts.append_value(context.start_time.0);
        let values = [
            &context.service,
            &context.instance,
            &context.host,
            &context.build_id,
            &context.trigger,
        ];
        for (column, value) in texts.iter_mut().zip(values) {
            column.append_value(value);
        }
        pid.append_value(context.pid.cast_signed());
        for (key, value) in &context.labels {
            labels.keys().append_value(key);
            labels.values().append_value(value);
        }
        labels.append(true).expect("as many keys as values");
        interval.append_value(context.sample_interval);
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

/// Encodes rows as a Parquet file. For a merged file, stores `sources`, the names of the files that it contains, in its
/// metadata; `None` is for an agent's file.
fn encode_batch(batch: &RecordBatch, sources: Option<&[String]>) -> anyhow::Result<Vec<u8>> {
    let page_rows = match sources {
        Some(_) => MERGED_PAGE_ROWS,
        None => PAGE_ROWS,
    };
    let sources =
        sources.map(|sources| vec![KeyValue::new(SOURCES_KEY.to_owned(), sources.join("\n"))]);
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_data_page_row_count_limit(page_rows)
        // The writer checks the limit of a page after each batch.
        .set_write_batch_size(page_rows)
        .set_created_by("memprof-fleet".to_owned())
        .set_key_value_metadata(sources)
        .build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties))?;
    writer.write(batch)?;
    writer.close()?;
    Ok(bytes)
}
