//! Symbolizes addresses of ELF files, from symbol tables alone or from debug information.

use std::cell::LazyCell;
use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::thread;
use std::time::Instant;

use object::Object as _;

use super::address::LinkedAddress;
use super::call_shapes::{LeafCall, read_call_shapes};
use super::dwarf::Dwarf;
use super::frames::{CollectedFrames, Frames};
use super::image::Image;
use super::limited_file::LimitedFile;
use super::minidebug;
use super::object_files::{CodeQuery, ObjectFile};
use super::regular_file::READ_LIMIT;
use super::search::Binary;
use super::symbol_matcher::{FoundSymbol, SymbolCode, SymbolMatcher};
use super::time_limit_note;
use super::unwinding_rules::{FunctionCode, UnwindingRules};
use crate::call_shape::CallShape;
use crate::profile::Mapping;
use crate::stacks::AddressId;

/// Fewest addresses for which another thread reads debug information.
const MIN_PART: usize = 1000;
/// Parts of the answer that only debug information has.
const LATE_PARTS: &str = "source lines and inlined functions";

/// Frames, shapes of calls, and notes of one binary.
type SymbolizedQueries = (
    Vec<CollectedFrames>,
    Vec<(AddressId, CallShape)>,
    Vec<String>,
);

/// Symbolizes the addresses in one binary, as far as possible, by its symbols and debug information and those of its
/// debug file. Returns the frames, the shapes of calls near leaves, and notes: on parts that could not be read and, for
/// the main program, that it is stripped. After the deadline, only symbols give names. Fails if the binary is no valid
/// ELF file.
pub(super) fn symbolize_file(
    binary: &Binary,
    object_file: &ObjectFile<'_>,
    deadline: Instant,
) -> object::Result<SymbolizedQueries> {
    let cache = LimitedFile::new(&binary.file, READ_LIMIT);
    let file = object::File::parse(&cache)?;
    let debug_cache = binary.debug.as_ref();
    let debug_cache = debug_cache.map(|file| LimitedFile::new(file, READ_LIMIT));
    // A damaged debug file counts as missing.
    let debug = debug_cache
        .as_ref()
        .and_then(|cache| object::File::parse(cache).ok());

    let image = Image::new(&file);
    let mut queries = to_linked_addresses(&image, object_file);
    queries.sort_unstable();
    let mut symbols = SymbolMatcher::new(&queries, deadline);
    symbols.add_file(&file);
    if let Some(debug) = &debug {
        symbols.add_file(debug);
    }
    let inner = match symbols.is_complete() {
        true => Ok(None),
        false => minidebug::embedded_elf(&file),
    };
    if let Ok(Some(bytes)) = &inner {
        // `embedded_elf` has checked that they are an ELF file.
        symbols.add_file(&object::File::parse(bytes.as_slice())?);
    }
    let mut notes = Vec::new();
    if let Err(error) = &inner {
        notes.push(format!("its .gnu_debugdata cannot be read: {error}"));
    }
    let is_stripped = file.symbol_table().is_none() && debug.is_none();
    if queries.is_empty() {
        notes.push(wrong_file_note(object_file));
    } else if is_stripped && object_file.is_main && !symbols.is_complete() {
        notes.push(
            "it is stripped, so functions that it does not export are numbers; its debug package, or --binary \
             with the file as it was built, names them"
                .into(),
        );
    }
    // They have megabytes, and are not needed if every address has a symbol with a size.
    let rules = LazyCell::new(|| UnwindingRules::find(&file));
    let near_leaf = object_file
        .queries
        .iter()
        .filter(|query| query.is_near_leaf);
    let near_leaf: HashSet<AddressId> = near_leaf.map(|query| query.id).collect();
    let mut calls = Vec::new();
    let mut named: Vec<Query<'_>> = Vec::with_capacity(queries.len());
    for (&(address, id), symbol) in queries.iter().zip(symbols.symbols()) {
        let last_function = || rules.as_ref()?.last_function(address);
        let symbol = symbol.filter(|symbol| is_nearest_function_start(symbol, last_function));
        if near_leaf.contains(&id) {
            let symbol = symbol.map(|symbol| symbol.code);
            calls.push(LeafCall {
                address,
                id,
                symbol,
            });
        }
        named.push(((address, id), symbol.map(|symbol| symbol.name)));
    }
    let queries = named;

    let addresses: Vec<LinkedAddress> = queries.iter().map(|((address, _), _)| *address).collect();
    let is_late = Instant::now() > deadline;
    if is_late && !queries.is_empty() {
        notes.push(time_limit_note(LATE_PARTS, queries.len()));
    }
    let files = debug.iter().chain([&file]).filter(|_| !is_late);
    let mut loaded = files.map(|file| Dwarf::load(file, &addresses, &binary.companions));
    let dwarf = loaded.find_map(|loaded| {
        loaded.unwrap_or_else(|error| {
            notes.push(format!("its debug information is not read: {error}"));
            None
        })
    });
    // Go's table of functions, which a stripped program has, too.
    let is_go = file.section_by_name(".gopclntab").is_some();
    let (frames, missing) = find_frames_parallel(&queries, dwarf.as_ref(), is_go, deadline);
    notes.extend(
        dwarf
            .iter()
            .flat_map(|dwarf| dwarf.missing_functions_notes(missing.nameless)),
    );
    notes.extend((missing.late > 0).then(|| time_limit_note(LATE_PARTS, missing.late)));
    let function_at = |address| rules.as_ref()?.function_at(address);
    let shapes = read_call_shapes(&file, &cache, function_at, &calls);
    Ok((frames, shapes, notes))
}

/// Returns whether no other function starts between a symbol and the address for which it was found. `last_function`
/// returns the last function before the address by the file's unwinding rules, and is asked if the symbol has no size.
fn is_nearest_function_start(
    symbol: &FoundSymbol<'_>,
    last_function: impl Fn() -> Option<FunctionCode>,
) -> bool {
    match symbol.code {
        SymbolCode::Sized(_) => true,
        SymbolCode::Unsized { start } => last_function().is_none_or(|last| last.start <= start),
    }
}

/// Numbers of names that are missing.
#[derive(Clone, Copy, Default)]
struct MissingNames {
    /// Inlined functions without a name.
    nameless: usize,
    /// Addresses that were not looked up in debug information before the deadline.
    late: usize,
}

/// Calls [`find_frames`] on several threads, each with a range of the addresses, because neighbours share debug
/// information. Blocks until all threads are done. Returns the frames of each range, and the numbers of names that are
/// missing in all ranges together.
fn find_frames_parallel(
    queries: &[Query<'_>],
    dwarf: Option<&Dwarf<'_>>,
    has_dotted_names: bool,
    deadline: Instant,
) -> (Vec<CollectedFrames>, MissingNames) {
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let size = queries.len().div_ceil(cores).max(MIN_PART);
    thread::scope(|scope| {
        let threads: Vec<_> = queries
            .chunks(size)
            .map(|part| scope.spawn(move || find_frames(part, dwarf, has_dotted_names, deadline)))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join();
        let results = threads.into_iter().map(join);
        let results = results.map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)));
        let (frames, missing): (_, Vec<MissingNames>) = results.unzip();
        let sum = |count: fn(&MissingNames) -> usize| missing.iter().map(count).sum();
        let missing = MissingNames {
            nameless: sum(|missing| missing.nameless),
            late: sum(|missing| missing.late),
        };
        (frames, missing)
    })
}

/// An address with the symbol that contains it.
type Query<'s> = ((LinkedAddress, AddressId), Option<&'s [u8]>);

/// Returns the functions at each address, with the inlined ones, or the symbol alone where debug information (`dwarf`)
/// is missing or has no function. An address with neither gets no frame. After the deadline, only symbols are used.
/// `has_dotted_names` says that in names of the file, dots separate packages. Also returns the numbers of inlined
/// functions without a name and of addresses after the deadline.
fn find_frames(
    queries: &[Query<'_>],
    dwarf: Option<&Dwarf<'_>>,
    has_dotted_names: bool,
    deadline: Instant,
) -> (CollectedFrames, MissingNames) {
    let context = dwarf.and_then(Dwarf::prepare_context);
    let mut frames = Frames::new(has_dotted_names);
    let mut missing = MissingNames::default();
    for &(query, symbol) in queries {
        let before = frames.len();
        match &context {
            Some(_) if Instant::now() > deadline => missing.late += 1,
            Some(context) => missing.nameless += context.add_frames(query, symbol, &mut frames),
            None => {}
        }
        if let Some(symbol) = symbol
            && frames.len() == before
        {
            frames.push(query.1, symbol, None, 0);
        }
    }
    (frames.finish(), missing)
}

/// Converts addresses in memory to linked ones, those in the file's own tables, by their offsets in the file. If
/// offsets are unknown, or the file is a debug file, the load address is used instead. Addresses that the profile's
/// writer has converted already stay as they are. Leaves out addresses in no segment.
fn to_linked_addresses(
    image: &Image,
    object_file: &ObjectFile<'_>,
) -> Vec<(LinkedAddress, AddressId)> {
    let has_offsets = image.has_code && object_file.has_offsets;
    let bias = match has_offsets {
        true => None,
        false => image.bias_without_offsets(object_file.mappings.iter().copied()),
    };
    let is_linked = |mapping: &&Mapping| mapping.has_linked_addresses();
    let are_linked = object_file.mappings.first().is_some_and(is_linked);
    let linked = |query: &CodeQuery| {
        if are_linked {
            let linked = query.address.0;
            return image.has_code_at(linked).then_some((linked, query.id));
        }
        let by_bias = || {
            let linked = query.address.0.wrapping_sub(bias?);
            image.has_code_at(linked).then_some(linked)
        };
        let by_offset = image
            .linked_address(query.offset)
            .filter(|_| object_file.has_offsets);
        let linked = by_offset.or_else(by_bias)?;
        Some((linked, query.id))
    };
    object_file.queries.iter().filter_map(linked).collect()
}

/// Returns a note that no address lies in the segments of the file that was found.
fn wrong_file_note(object_file: &ObjectFile<'_>) -> String {
    let count = object_file.queries.len();
    format!(
        "it names nothing, for none of the {count} addresses lies in its segments: it is another file than was mapped"
    )
}
