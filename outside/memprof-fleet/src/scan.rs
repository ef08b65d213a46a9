//! Reading the store's tables: which files count, and the rows of one.

use std::cell::Cell;
use std::collections::HashSet;
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Arc, Once};

use anyhow::Context as _;
use arrow_array::RecordBatch;
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowSelection, RowSelector,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::reader::{ChunkReader, Length};

use crate::schema::{INCOMING, SOURCES, Table};
use crate::store::{Object, Store};
use crate::time::{Hour, Instant};

/// Rows that are decoded at a time.
const BATCH: usize = 32 << 10;
/// Files up to this size are read at once: a request takes longer than their bytes.
const WHOLE: u64 = 4 << 20;
/// The most rows for each byte of a file, and a number of rows that any file may have.
const MOST_ROWS: u64 = 4;
const LEAST_ROWS: u64 = 64 << 10;
/// The most bytes for each byte of a file, and a number of them that any file may have.
const MOST_PACKED: u64 = 200;
const LEAST_PACKED: u64 = 64 << 20;
/// How much is read where the length of what is needed is not known.
const PIECE: u64 = 64 << 10;

/// The files of a table.
#[derive(Debug, Default)]
pub(crate) struct TableFiles {
    /// Those that count, with their hours.
    pub(crate) counted: Vec<(Hour, Object)>,
    /// Those of agents whose rows are in merged files.
    pub(crate) merged: Vec<Object>,
    /// What is no file of memprof's.
    pub(crate) foreign: Vec<String>,
    /// What could not be read, and why.
    pub(crate) damaged: Vec<(String, String)>,
}

/// The files of a table with rows of these times, and none whose rows are in another one.
pub(crate) fn files(
    store: &Arc<Store>,
    table: Table,
    (from, to): (Instant, Instant),
) -> anyhow::Result<TableFiles> {
    let mut files = TableFiles::default();
    let mut sources = HashSet::new();
    for prefix in [
        table.name().to_owned(),
        format!("{INCOMING}/{}", table.name()),
    ] {
        for object in store.list(&prefix)? {
            let Some(hour) = hour(&object.name, &prefix) else {
                files.foreign.push(object.name);
                continue;
            };
            let is_meant = |(start, end): (Instant, Instant)| start <= to && from < end;
            if !hour.start().zip(hour.end()).is_some_and(is_meant) {
                continue;
            }
            if prefix == table.name() {
                match read_sources(store, &object) {
                    Ok(of) => sources.extend(of),
                    Err(error) => {
                        files.damaged.push((object.name, format!("{error:#}")));
                        continue;
                    }
                }
            } else if sources.contains(&object.name) {
                files.merged.push(object);
                continue;
            }
            files.counted.push((hour, object));
        }
    }
    Ok(files)
}

/// The hour of `PREFIX/date=2026-11-21/hour=07/NAME.parquet`.
fn hour(name: &str, prefix: &str) -> Option<Hour> {
    let rest = name.strip_prefix(prefix)?.strip_prefix("/date=")?;
    let (date, rest) = rest.split_once("/hour=")?;
    let (hour, file) = rest.split_once('/')?;
    let is_file = file.ends_with(".parquet") && !file.contains('/');
    let hour = Hour {
        date: date.to_owned(),
        hour: hour.to_owned(),
    };
    (is_file && hour.start().is_some()).then_some(hour)
}

/// The files that are in a merged one.
fn read_sources(store: &Arc<Store>, object: &Object) -> anyhow::Result<Vec<String>> {
    contain(|| read_sources_of(store, object))
}

fn read_sources_of(store: &Arc<Store>, object: &Object) -> anyhow::Result<Vec<String>> {
    let reader = open(store, object)?;
    let entries = reader.metadata().file_metadata().key_value_metadata();
    let mut entries = entries.into_iter().flatten();
    let sources = entries.find(|entry| entry.key == SOURCES);
    let sources = sources.and_then(|entry| entry.value.as_deref());
    Ok(sources
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect())
}

/// Reads columns of a file, batch by batch; of a service, only pages that may hold it. Returns how many rows
/// were read. A damaged file may have given some of its rows before that is noticed.
pub(crate) fn scan(
    store: &Arc<Store>,
    object: &Object,
    columns: &[&str],
    service: Option<&str>,
    each: impl FnMut(&RecordBatch) -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    contain(|| scan_rows(store, object, columns, service, each))
}

thread_local! {
    /// Whether a panic of this thread is caught and told as an error.
    static IS_CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Reads a file. The Parquet reader panics on some that are damaged: that is an error of the file.
fn contain<T>(read: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let hook = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_CONTAINED.get() {
                hook(panic);
            }
        }));
    });
    let outer = IS_CONTAINED.replace(true);
    // What `read` changed is rows of that file, which an error may leave incomplete as well.
    let outcome = catch_unwind(AssertUnwindSafe(read));
    IS_CONTAINED.set(outer);
    outcome.unwrap_or_else(|panic| {
        let why = panic.downcast_ref::<String>().map(String::as_str);
        let why = why.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(anyhow::anyhow!(
            "the reader gave up: {}",
            why.unwrap_or("it panicked")
        ))
    })
}

fn scan_rows(
    store: &Arc<Store>,
    object: &Object,
    columns: &[&str],
    service: Option<&str>,
    mut each: impl FnMut(&RecordBatch) -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    let reader = open(store, object)?;
    let schema = reader.parquet_schema();
    let mask = ProjectionMask::columns(schema, columns.iter().copied());
    let selection = service.and_then(|service| {
        let column = schema
            .columns()
            .iter()
            .position(|column| column.name() == "service")?;
        pages(reader.metadata(), column, service.as_bytes())
    });
    let mut reader = reader.with_projection(mask).with_batch_size(BATCH);
    if let Some(selection) = selection {
        reader = reader.with_row_selection(selection);
    }
    let mut rows = 0;
    for batch in reader.build()? {
        let batch = batch?;
        rows += batch.num_rows();
        each(&batch)?;
    }
    Ok(rows)
}

fn open(
    store: &Arc<Store>,
    object: &Object,
) -> anyhow::Result<ParquetRecordBatchReaderBuilder<ObjectReader>> {
    let whole = match object.size <= WHOLE {
        true => Some(store.read(&object.name)?),
        false => None,
    };
    let chunks = ObjectReader {
        store: Arc::clone(store),
        name: object.name.clone(),
        size: whole
            .as_ref()
            .map_or(object.size, |bytes| bytes.len() as u64),
        whole,
    };
    let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
    let reader = ParquetRecordBatchReaderBuilder::try_new_with_options(chunks, options)
        .with_context(|| format!("{} is not a Parquet file that can be read", object.name))?;
    let groups = reader.metadata().row_groups().iter();
    let claimed = groups.fold((0, 0), |(rows, bytes): (u64, u64), group| {
        (
            rows.saturating_add(group.num_rows().max(0).unsigned_abs()),
            bytes.saturating_add(group.total_byte_size().max(0).unsigned_abs()),
        )
    });
    limit(object.size, claimed)?;
    Ok(reader)
}

/// An error where a file claims more rows or bytes than memprof's own files of its size have: what is packed
/// so much would take all memory when it is read.
fn limit(size: u64, (rows, bytes): (u64, u64)) -> anyhow::Result<()> {
    let most = size.saturating_mul(MOST_ROWS).max(LEAST_ROWS);
    anyhow::ensure!(
        rows <= most,
        "it is too large: {rows} rows in {size} bytes, and at most {most} are read"
    );
    let most = size.saturating_mul(MOST_PACKED).max(LEAST_PACKED);
    anyhow::ensure!(
        bytes <= most,
        "it is too large: {bytes} bytes packed into {size}, and at most {most} are read"
    );
    Ok(())
}

/// The rows of pages that may hold `value` in a column of text.
fn pages(metadata: &ParquetMetaData, column: usize, value: &[u8]) -> Option<RowSelection> {
    let mut rows = Vec::new();
    for (at, group) in metadata.row_groups().iter().enumerate() {
        let of_group = metadata.page_index_for_row_group(at);
        let ColumnIndexMetaData::BYTE_ARRAY(index) = of_group.column_index(column)? else {
            return None;
        };
        let pages = of_group.offset_index(column)?.page_locations();
        for (page, location) in pages.iter().enumerate() {
            let end = pages
                .get(page + 1)
                .map_or(group.num_rows(), |next| next.first_row_index);
            let count = usize::try_from(end - location.first_row_index).ok()?;
            let may_hold = index.min_value(page).is_none_or(|least| least <= value)
                && index.max_value(page).is_none_or(|most| value <= most);
            rows.push(match may_hold {
                true => RowSelector::select(count),
                false => RowSelector::skip(count),
            });
        }
    }
    Some(rows.into())
}

/// The bytes of an object, for the Parquet reader.
struct ObjectReader {
    store: Arc<Store>,
    name: String,
    size: u64,
    whole: Option<Bytes>,
}

impl ObjectReader {
    fn read(&self, start: u64, length: u64) -> Result<Bytes, ParquetError> {
        let end = start.checked_add(length).filter(|end| *end <= self.size);
        let end = end.ok_or_else(|| ParquetError::EOF("a part lies behind the end".to_owned()))?;
        match &self.whole {
            Some(bytes) => Ok(bytes.slice(start as usize..end as usize)),
            None => self
                .store
                .read_range(&self.name, start, length)
                .map_err(|error| ParquetError::General(format!("{error:#}"))),
        }
    }
}

impl Length for ObjectReader {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for ObjectReader {
    type T = Cursor<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let length = self.size.saturating_sub(start).min(PIECE);
        self.read(start, length).map(Cursor::new)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.read(start, length as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_reader_is_an_error_of_the_file() {
        let check = |read: fn() -> anyhow::Result<()>, expected: &str| {
            let error = contain(read).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(|| panic!("negative"), "negative");
        check(|| panic!("column {}", 7), "column 7");
        check(|| std::panic::panic_any(7), "panicked");
        check(|| Err(anyhow::anyhow!("an error")), "an error");
    }

    #[test]
    fn a_file_that_claims_too_much_is_not_read() {
        let check = |size, claimed, is_read: bool| {
            assert_eq!(limit(size, claimed).is_ok(), is_read, "{size} {claimed:?}");
        };
        check(2_000, (20, 4_000), true);
        check(2_000, (64 << 10, 64 << 20), true);
        check(1_300_000, (20_000_000, 1_000_000), false);
        check(1_300_000, (20_000, 6 << 30), false);
        check(100, (u64::MAX, 0), false);
        check(u64::MAX, (u64::MAX, u64::MAX), true);
    }
}
