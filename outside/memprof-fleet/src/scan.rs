//! Reads tables of the store: selects the files that count, and reads the rows of one.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Arc, Once};

use anyhow::Context as _;
use arrow_array::RecordBatch;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowSelection, RowSelector,
};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};
use parquet::file::page_index::column_index::ColumnIndexMetaData;

use crate::footer::check_footer;
use crate::object_reader::ObjectReader;
use crate::schema::{INCOMING_FOLDER, SOURCES_KEY, Table};
use crate::store::{Object, ProfileStore};
use crate::time::{Hour, Instant};

/// Most rows that are decoded at a time.
const BATCH_ROWS: usize = 32 << 10;
/// Most rows per byte of a file. memprof's own files have fewer.
const MAX_ROWS_PER_BYTE: u64 = 4;
/// Number of rows that any file may have.
const MIN_ROW_LIMIT: u64 = 64 << 10;
/// Most uncompressed bytes per byte of a file. memprof's own files have fewer.
const MAX_COMPRESSION_RATIO: u64 = 200;
/// Number of uncompressed bytes that any file may have.
const MIN_UNPACKED_LIMIT: u64 = 64 << 20;

/// Files of a table.
#[derive(Debug, Default)]
pub(crate) struct TableFiles {
    /// Files whose rows count, with their hours.
    pub(crate) counted: Vec<(Hour, Object)>,
    /// Agents' files whose rows are in merged files.
    pub(crate) merged: Vec<Object>,
    /// Names of objects that are no files of memprof.
    pub(crate) foreign: Vec<String>,
    /// Names of copies of other files, which would count twice.
    pub(crate) copies: Vec<String>,
    /// Names of unreadable files, with the reasons.
    pub(crate) damaged: Vec<(String, String)>,
    /// Number after that of the last merged file of each hour. Numbers may be missing, because files were deleted by
    /// hand.
    pub(crate) next_numbers: HashMap<Hour, u32>,
}

impl TableFiles {
    /// Describes the files that do not count, each with the reason or a remedy.
    pub(crate) fn findings(&self) -> impl Iterator<Item = String> {
        let foreign = self.foreign.iter();
        let foreign = foreign.map(|name| {
            format!("{name} is not a file of memprof's, and is not counted: move it away")
        });
        let copies = self.copies.iter();
        let copies = copies
            .map(|name| format!("{name} is a copy of another file, and is not counted: delete it"));
        let damaged = self.damaged.iter();
        let damaged = damaged
            .map(|(name, reason)| format!("{name} is damaged, and is not counted: {reason}"));
        foreign.chain(copies).chain(damaged)
    }
}

/// Lists the files of a table with rows in a time range, and sorts out those that do not count: files with other names
/// than memprof's; merged files whose sources cannot be read; agents' files that a merged file lists as its sources;
/// and copies. A copy is an agent's file with the name of another one, which is the hash of its bytes, or a merged file
/// that shares a source with another one.
///
/// Fails if the files cannot be listed.
pub(crate) fn list_table_files(
    store: &Arc<ProfileStore>,
    table: Table,
    (from, to): (Instant, Instant),
) -> anyhow::Result<TableFiles> {
    let mut files = TableFiles::default();
    let mut sources = HashSet::new();
    let mut contents = HashSet::new();
    for prefix in [
        table.name().to_owned(),
        format!("{INCOMING_FOLDER}/{}", table.name()),
    ] {
        for object in store.list(&prefix)? {
            let is_merged = prefix == table.name();
            let Some((hour, stem)) = parse_hour_and_stem(&object.name, &prefix)
                .filter(|(_, stem)| is_file_stem(stem, is_merged))
            else {
                files.foreign.push(object.name);
                continue;
            };
            // Stacks have no time, so equal files of two hours are no copies.
            let is_timed = table != Table::Stacks;
            if !is_merged && is_timed && !contents.insert(stem.to_owned()) {
                files.copies.push(object.name);
                continue;
            }
            let is_in_range = |(start, end): (Instant, Instant)| start <= to && from < end;
            if !hour.start().zip(hour.end()).is_some_and(is_in_range) {
                continue;
            }
            if is_merged {
                let number = stem.parse::<u32>().unwrap_or(u32::MAX).saturating_add(1);
                let next = files.next_numbers.entry(hour.clone()).or_default();
                *next = number.max(*next);
                match read_sources(store, &object) {
                    // Each agent's file is merged once, so a second merged file with it is a copy.
                    Ok(names) if names.iter().any(|name| sources.contains(name)) => {
                        files.copies.push(object.name);
                        continue;
                    }
                    Ok(names) => sources.extend(names),
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

/// Parses a file's name of the form `PREFIX/date=2026-11-21/hour=07/STEM.parquet`, where PREFIX is `prefix`. Returns
/// the hour and STEM; `None` if the name has another form.
fn parse_hour_and_stem<'n>(name: &'n str, prefix: &str) -> Option<(Hour, &'n str)> {
    let rest = name.strip_prefix(prefix)?.strip_prefix("/date=")?;
    let (date, rest) = rest.split_once("/hour=")?;
    let (hour, file) = rest.split_once('/')?;
    let stem = file.strip_suffix(".parquet")?;
    let hour = Hour {
        date: date.to_owned(),
        hour: hour.to_owned(),
    };
    (!stem.contains('/') && hour.start().is_some()).then_some((hour, stem))
}

/// Returns whether `stem`, a file's name without its extension, is one that memprof gives: for a merged file, a number
/// of five digits or more, otherwise a hash of 32 hexadecimal digits.
fn is_file_stem(stem: &str, is_merged: bool) -> bool {
    match is_merged {
        true => stem.len() >= 5 && stem.bytes().all(|byte| byte.is_ascii_digit()),
        false => stem.len() == 32 && stem.bytes().all(|byte| byte.is_ascii_hexdigit()),
    }
}

/// Reads the names of the files that a merged file contains; none if it is no merged file. Fails if the file is
/// damaged, also if the Parquet reader panics.
fn read_sources(store: &Arc<ProfileStore>, object: &Object) -> anyhow::Result<Vec<String>> {
    catch_panic(|| read_sources_or_panic(store, object))
}

/// Reads the names of the files that a merged file contains; none if it is no merged file. Fails or panics if the file
/// is damaged.
fn read_sources_or_panic(
    store: &Arc<ProfileStore>,
    object: &Object,
) -> anyhow::Result<Vec<String>> {
    let reader = open_parquet_file(store, object)?;
    let entries = reader.metadata().file_metadata().key_value_metadata();
    let mut entries = entries.into_iter().flatten();
    let sources = entries.find(|entry| entry.key == SOURCES_KEY);
    let sources = sources.and_then(|entry| entry.value.as_deref());
    Ok(sources
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect())
}

/// Reads the named columns of a file, and calls `visit` for each batch of rows. With `service`, skips pages that have
/// no row of that service; `None` reads all. Returns the number of rows. Fails if the file is damaged or `visit` fails;
/// some rows may have been visited before.
pub(crate) fn scan_file(
    store: &Arc<ProfileStore>,
    object: &Object,
    columns: &[&str],
    service: Option<&str>,
    visit: impl FnMut(&RecordBatch) -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    catch_panic(|| scan_file_or_panic(store, object, columns, service, visit))
}

thread_local! {
    /// Whether a panic of this thread is converted to an error, so that the panic hook is silent.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Calls `read`, and converts its panic to an error: the Parquet reader panics on some damaged files. The first call
/// installs a panic hook, which prints nothing for such a panic.
fn catch_panic<T>(read: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_CAUGHT.get() {
                hook(panic);
            }
        }));
    });
    let outer = IS_CAUGHT.replace(true);
    // This is unwind-safe: a panic leaves some of the file's rows in the caller's collection, as an error does.
    let outcome = catch_unwind(AssertUnwindSafe(read));
    IS_CAUGHT.set(outer);
    outcome.unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(anyhow::anyhow!(
            "the reader gave up: {}",
            message.unwrap_or("it panicked")
        ))
    })
}

/// Like [`scan_file`], but does not catch the panics of the Parquet reader on damaged files.
fn scan_file_or_panic(
    store: &Arc<ProfileStore>,
    object: &Object,
    columns: &[&str],
    service: Option<&str>,
    mut visit: impl FnMut(&RecordBatch) -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    let reader = open_parquet_file(store, object)?;
    let schema = reader.parquet_schema();
    let mask = ProjectionMask::columns(schema, columns.iter().copied());
    let selection = service.and_then(|service| {
        let column = schema
            .columns()
            .iter()
            .position(|column| column.name() == "service")?;
        pages_with_value(reader.metadata(), column, service.as_bytes())
    });
    let mut reader = reader.with_projection(mask).with_batch_size(BATCH_ROWS);
    if let Some(selection) = selection {
        reader = reader.with_row_selection(selection);
    }
    let mut rows = 0;
    for batch in reader.build()? {
        let batch = batch?;
        rows += batch.num_rows();
        visit(&batch)?;
    }
    Ok(rows)
}

/// Opens a Parquet file for reading. Fails if it is no Parquet file, or claims to have more rows or bytes than memprof's
/// files of this size.
fn open_parquet_file(
    store: &Arc<ProfileStore>,
    object: &Object,
) -> anyhow::Result<ParquetRecordBatchReaderBuilder<ObjectReader>> {
    let chunks = ObjectReader::open(store, object)?;
    let unreadable = || format!("{} is not a Parquet file that can be read", object.name);
    check_footer(&chunks.read_footer().with_context(unreadable)?)?;
    let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
    let reader = ParquetRecordBatchReaderBuilder::try_new_with_options(chunks, options)
        .with_context(unreadable)?;
    let groups = reader.metadata().row_groups().iter();
    let claimed = groups.fold((0, 0), |(rows, bytes): (u64, u64), group| {
        (
            rows.saturating_add(group.num_rows().max(0).unsigned_abs()),
            bytes.saturating_add(group.total_byte_size().max(0).unsigned_abs()),
        )
    });
    check_claimed_size(object.size, claimed)?;
    Ok(reader)
}

/// Checks the numbers of rows and uncompressed bytes that a file of `size` bytes claims to have. Fails if they are
/// larger than in memprof's own files, because decompressing such a file could exhaust the memory.
fn check_claimed_size(size: u64, (rows, bytes): (u64, u64)) -> anyhow::Result<()> {
    let max = size.saturating_mul(MAX_ROWS_PER_BYTE).max(MIN_ROW_LIMIT);
    anyhow::ensure!(
        rows <= max,
        "it is too large: {rows} rows in {size} bytes, and at most {max} are read"
    );
    let max = size
        .saturating_mul(MAX_COMPRESSION_RATIO)
        .max(MIN_UNPACKED_LIMIT);
    anyhow::ensure!(
        bytes <= max,
        "it is too large: {bytes} bytes packed into {size}, and at most {max} are read"
    );
    Ok(())
}

/// Selects the rows of pages that may contain `value` in a column of text, by the least and greatest value of each
/// page. `None` if the file has no usable index, so that all pages must be read.
fn pages_with_value(
    metadata: &ParquetMetaData,
    column: usize,
    value: &[u8],
) -> Option<RowSelection> {
    let mut rows = Vec::new();
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let of_group = metadata.page_index_for_row_group(number);
        let ColumnIndexMetaData::BYTE_ARRAY(index) = of_group.column_index(column)? else {
            return None;
        };
        let pages = of_group.offset_index(column)?.page_locations();
        for (page, location) in pages.iter().enumerate() {
            let end = pages
                .get(page + 1)
                .map_or(group.num_rows(), |next| next.first_row_index);
            let count = usize::try_from(end - location.first_row_index).ok()?;
            let may_hold = index.min_value(page).is_none_or(|min| min <= value)
                && index.max_value(page).is_none_or(|max| value <= max);
            rows.push(match may_hold {
                true => RowSelector::select(count),
                false => RowSelector::skip(count),
            });
        }
    }
    Some(rows.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_of_reader_is_error() {
        let check = |read: fn() -> anyhow::Result<()>, expected: &str| {
            let error = catch_panic(read).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(|| panic!("negative"), "negative");
        check(|| panic!("column {}", 7), "column 7");
        check(|| std::panic::panic_any(7), "panicked");
        check(|| Err(anyhow::anyhow!("an error")), "an error");
    }

    #[test]
    fn file_that_claims_too_many_rows_is_refused() {
        let check = |size, claimed, is_read: bool| {
            assert_eq!(
                check_claimed_size(size, claimed).is_ok(),
                is_read,
                "{size} {claimed:?}"
            );
        };
        check(2_000, (20, 4_000), true);
        check(2_000, (64 << 10, 64 << 20), true);
        check(1_300_000, (20_000_000, 1_000_000), false);
        check(1_300_000, (20_000, 6 << 30), false);
        check(100, (u64::MAX, 0), false);
        check(u64::MAX, (u64::MAX, u64::MAX), true);
    }
}
