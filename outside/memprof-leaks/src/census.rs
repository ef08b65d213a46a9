//! Counts the objects of a Python process by their types.

mod unread;

use std::collections::HashMap;
use std::rc::Rc;

use memprof_ptrace::ProgramWatch;

use self::unread::Unread;
use crate::analysis::{AnalysisOptions, AnalysisReport, AnalyzedSnapshot, OnPhase, Phase};
use crate::error::Error;
use crate::objects::{Object, Objects};
use crate::python::{ObjectSize, size_of_object};
use crate::snapshot::CopyTarget;
use crate::snapshot_memory::CachedReader;

/// Objects between two checks of the memory that the copy takes.
const HEADROOM_INTERVAL: usize = 1 << 20;
/// Most types that are counted each for itself; those of further ones are [`OTHER_TYPES`].
const MAX_TYPES: usize = 1 << 16;
/// Name for the objects of types beyond [`MAX_TYPES`].
const OTHER_TYPES: &str = "(other types)";

/// Objects of a Python process, by type.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// Facts of the analysis.
    pub report: AnalysisReport,
    /// `CPython`'s minor version: 8 for 3.8.
    pub minor: u32,
    /// Types with most bytes first.
    pub types: Vec<TypeTotals>,
    /// Bytes of used blocks in pymalloc's pools: objects of up to 512 bytes, and tables and buffers of others.
    pub pool_used: u64,
    /// Bytes of pymalloc's pools.
    pub pools: u64,
}

/// Objects of types with one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeTotals {
    /// Name of the type, as `type.__name__` or with its module.
    pub name: String,
    /// Number of objects.
    pub objects: u64,
    /// Bytes as `sys.getsizeof()` counts them.
    pub bytes: u64,
}

/// Takes a snapshot of a Python process, and counts its objects that are in use.
///
/// # Errors
/// A reason why the process was not analyzed; it runs on as before. `NoPython`: it has no interpreter that memprof can
/// read.
pub fn take_census(
    pid: u32,
    options: AnalysisOptions,
    progress: OnPhase<'_>,
) -> Result<Census, Error> {
    let program = ProgramWatch::open(pid);
    let census = count_in_snapshot(pid, options, progress);
    census.map_err(|error| program.explain_error(error, Error::may_be_exit_or_exec))
}

/// Takes a snapshot and counts its Python objects. An error does not say yet whether the process ended or executed
/// another program meanwhile: the caller adds that.
fn count_in_snapshot(
    pid: u32,
    options: AnalysisOptions,
    progress: OnPhase<'_>,
) -> Result<Census, Error> {
    let target = CopyTarget::inspect(pid)?;
    let mut report = AnalysisReport::new(&target.status, options);
    let census = report.with_snapshot(&target, options, progress, |report, analyzed| {
        progress(Phase::Count(report.objects));
        count_objects(&analyzed, report)
    })?;
    Ok(Census { report, ..census })
}

/// Counts the Python objects of a snapshot. Types beyond the first [`MAX_TYPES`] are counted together. An object whose
/// size cannot be read counts with the size of its memory in the heap. Warnings of the `report` say what could not be
/// read, with its size. Fails with `NoPython` if no interpreter was found, and with `Headroom` or `CopyEnded` if memory
/// runs short meanwhile.
fn count_objects(
    analyzed: &AnalyzedSnapshot<'_>,
    report: &mut AnalysisReport,
) -> Result<Census, Error> {
    let view = &analyzed.view;
    let interpreters = analyzed.python.as_ref().ok_or(Error::NoPython)?;
    let mut types = interpreters.new_type_reader(view);
    let mut census = Census {
        minor: interpreters.minor_version(),
        pools: interpreters
            .pools
            .iter()
            .map(|pool| pool.end - pool.start)
            .sum(),
        ..Census::default()
    };
    let mut counts: HashMap<Rc<str>, [u64; 2]> = HashMap::new();
    let mut unread = Unread::default();
    let mut memory = CachedReader::new(view);
    for (index, object) in analyzed.objects.all().enumerate() {
        if index % HEADROOM_INTERVAL == 0 {
            analyzed.snapshot.require_headroom()?;
        }
        if types.is_in_pool(object.range.start) {
            census.pool_used += object.size();
        }
        let unread_before = types.unread_types();
        let Some((prefix, found)) = types.find_type(&mut memory, &object) else {
            if types.unread_types() > unread_before {
                unread.untyped.add_item(object.size());
            }
            continue;
        };
        let start = object.range.start + prefix;
        let size = size_of_object(view, &mut memory, interpreters, start, &found);
        // Without the data of Python's debug hooks (`PYTHONMALLOC=debug`), which do not belong to the object.
        let own_prefix = found.prefix_size(Some(interpreters.minor_version()));
        let bytes = size
            .as_ref()
            .map(|size| counted_bytes(size, own_prefix, &object, &analyzed.objects));
        match &size {
            Some(size) => unread.add_foreign_tables(size, &analyzed.objects, view),
            None => unread.inconsistent.add_item(object.size()),
        }
        let bytes = bytes.unwrap_or_else(|| object.size());
        let is_new = counts.len() >= MAX_TYPES && !counts.contains_key(&found.name);
        let name = if is_new {
            unread.other_types.add_item(bytes);
            OTHER_TYPES.into()
        } else {
            found.name
        };
        let [count, sum] = counts.entry(name).or_default();
        *count += 1;
        *sum = sum.saturating_add(bytes);
    }
    let unread = unread.warnings().into_iter().chain(types.warnings());
    unread.for_each(|warning| report.add_warning(warning));
    let totals = counts
        .into_iter()
        .map(|(name, [objects, bytes])| TypeTotals {
            name: name.to_string(),
            objects,
            bytes,
        });
    census.types = totals.collect();
    census
        .types
        .sort_by(|one, other| (other.bytes, &one.name).cmp(&(one.bytes, &other.name)));
    Ok(census)
}

/// Returns the bytes that count for an object: its own with the `prefix` bytes in front of it, at most the size of its
/// memory in the heap, and those of its tables. A table counts at most up to the end of the memory in which it lies; a
/// table outside the heap counts 0.
fn counted_bytes(size: &ObjectSize, prefix: u64, object: &Object, objects: &Objects) -> u64 {
    let own = size.own.saturating_add(prefix).min(object.size());
    let tables = size.tables.iter().flatten().map(|(table, size)| {
        let memory = objects.object_at(*table);
        memory.map_or(0, |memory| (memory.range.end - table).min(*size))
    });
    own + tables.sum::<u64>()
}
