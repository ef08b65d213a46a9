//! Symbolizes addresses of ELF files, from symbol tables alone or from debug information.

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::thread;

use object::{Object as _, ObjectSegment as _, ReadRef, SymbolKind};

use super::address::LinkedAddress;
use super::dwarf::Dwarf;
use super::frames::{CollectedFrames, Frames};
use super::limited_file::LimitedFile;
use super::minidebug;
use super::search::{Binary, READ_LIMIT};
use super::segment_tree::SegmentTree;
use crate::profile::FileOffset;
use crate::stacks::AddressId;

/// Fewest addresses for which another thread reads debug information.
const MIN_PART: usize = 1000;

/// Symbolizes offsets of one binary, as far as possible. Returns the frames, and notes about what could not be read
/// and, for the main program, that it is stripped. Fails if the binary is no valid ELF file.
pub(super) fn symbolize_offsets(
    binary: &Binary,
    queries: &[(FileOffset, AddressId)],
    is_main: bool,
) -> object::Result<(Vec<CollectedFrames>, Vec<String>)> {
    let cache = LimitedFile::new(&binary.file, READ_LIMIT);
    let file = object::File::parse(&cache)?;
    let debug_cache = binary.debug.as_ref();
    let debug_cache = debug_cache.map(|file| LimitedFile::new(file, READ_LIMIT));
    let debug = debug_cache
        .as_ref()
        .and_then(|cache| object::File::parse(cache).ok());

    let mut queries = to_linked_addresses(&file, queries);
    queries.sort_unstable();
    let mut symbols = SymbolMatcher::new(&queries);
    symbols.add_symbols(file.dynamic_symbols());
    symbols.add_symbols(file.symbols());
    if let Some(debug) = &debug {
        symbols.add_symbols(debug.symbols());
    }
    let inner = match symbols.is_complete() {
        true => Ok(None),
        false => minidebug::embedded_elf(&file),
    };
    if let Ok(Some(bytes)) = &inner {
        symbols.add_symbols(object::File::parse(bytes.as_slice())?.symbols());
    }
    let mut notes = Vec::new();
    if let Err(error) = &inner {
        notes.push(format!("its .gnu_debugdata cannot be read: {error}"));
    }
    let is_stripped = file.symbol_table().is_none() && debug.is_none();
    if is_stripped && is_main && !symbols.is_complete() {
        notes.push(
            "it is stripped, so functions that it does not export are numbers; its debug package, or --binary \
             with the file as it was built, names them"
                .into(),
        );
    }
    let queries: Vec<Query<'_>> = queries.iter().copied().zip(symbols.names()).collect();

    let addresses: Vec<LinkedAddress> = queries.iter().map(|((address, _), _)| *address).collect();
    let mut loaded = debug
        .iter()
        .chain([&file])
        .map(|file| Dwarf::load(file, &addresses));
    let dwarf = loaded.find_map(|loaded| {
        loaded.unwrap_or_else(|error| {
            notes.push(format!("its debug information is not read: {error}"));
            None
        })
    });
    Ok((
        with_inlined_frames_parallel(&queries, dwarf.as_ref()),
        notes,
    ))
}

/// Symbolizes the addresses, split between cores by ranges, because neighbours share debug information. Returns the
/// frames of each range.
fn with_inlined_frames_parallel(
    queries: &[Query<'_>],
    dwarf: Option<&Dwarf<'_>>,
) -> Vec<CollectedFrames> {
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let size = queries.len().div_ceil(cores).max(MIN_PART);
    thread::scope(|scope| {
        let threads: Vec<_> = queries
            .chunks(size)
            .map(|part| scope.spawn(|| with_inlined_frames(part, dwarf)))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join();
        let results = threads.into_iter().map(join);
        results
            .map(|frames| frames.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

/// An address with the symbol that contains it.
type Query<'s> = ((LinkedAddress, AddressId), Option<&'s str>);

/// Returns the inlined functions at each address or, where debug information has none, the symbol alone. An address
/// with neither gets no frame.
fn with_inlined_frames(queries: &[Query<'_>], dwarf: Option<&Dwarf<'_>>) -> CollectedFrames {
    let context = dwarf.and_then(Dwarf::context);
    let mut frames = Frames::default();
    for &(query, symbol) in queries {
        let symbol = symbol.map(str::as_bytes);
        let before = frames.len();
        if let Some(context) = &context {
            context.add_frames(query, symbol, &mut frames);
        }
        if let Some(symbol) = symbol
            && frames.len() == before
        {
            frames.push(query.1, symbol, None, 0);
        }
    }
    frames.finish()
}

/// Converts file offsets to linked addresses, by the loadable segments. Offsets in no segment are left out.
fn to_linked_addresses<'d, R: ReadRef<'d>>(
    file: &object::File<'d, R>,
    queries: &[(FileOffset, AddressId)],
) -> Vec<(LinkedAddress, AddressId)> {
    let segments: Vec<(u64, u64, u64)> = file
        .segments()
        .map(|segment| {
            let (offset, size) = segment.file_range();
            (offset, size, segment.address())
        })
        .collect();
    let find = |offset: u64| {
        let inside =
            |&&(start, size, _): &&(u64, u64, u64)| offset >= start && offset - start < size;
        segments
            .iter()
            .find(inside)
            .map(|&(start, _, address)| address.wrapping_add(offset - start))
    };
    queries
        .iter()
        .filter_map(|&(offset, id)| Some((find(offset.0)?, id)))
        .collect()
}

/// Finds the best symbol for each address. The addresses are sorted, not the symbols: a symbol table of any size is
/// read once, and neither copied nor sorted.
struct SymbolMatcher<'q, 'd> {
    queries: &'q [(LinkedAddress, AddressId)],
    best: SegmentTree<Candidate<'d>>,
}

/// Symbol, ordered by preference: the narrower range, the exported name, the name with fewer leading underscores.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate<'d> {
    size: u64,
    is_local: bool,
    underscores: usize,
    name: &'d str,
}

impl<'q, 'd> SymbolMatcher<'q, 'd> {
    /// Prepares for `queries`, with ascending addresses.
    fn new(queries: &'q [(LinkedAddress, AddressId)]) -> Self {
        Self {
            queries,
            best: SegmentTree::new(queries.len()),
        }
    }

    /// Offers symbols to the addresses that they contain. A symbol without a size contains none.
    fn add_symbols<S: object::ObjectSymbol<'d>>(&mut self, symbols: impl Iterator<Item = S>) {
        for symbol in symbols {
            let (start, size) = (symbol.address(), symbol.size());
            if size == 0 || symbol.kind() != SymbolKind::Text || !symbol.is_definition() {
                continue;
            }
            let first = self
                .queries
                .partition_point(|&(address, _)| address < start);
            let contained =
                self.queries[first..].partition_point(|&(address, _)| address - start < size);
            if contained == 0 {
                continue;
            }
            let Ok(name) = symbol.name() else {
                continue;
            };
            let candidate = Candidate {
                size,
                is_local: symbol.is_local(),
                underscores: name.bytes().take_while(|&byte| byte == b'_').count(),
                name,
            };
            self.best.insert(first..first + contained, candidate);
        }
    }

    /// Returns whether every address has a symbol.
    fn is_complete(&self) -> bool {
        self.best.best().all(|best| best.is_some())
    }

    /// Returns the name of each address, in the order of the queries. `None` if no symbol contains it.
    fn names(&self) -> impl Iterator<Item = Option<&'d str>> {
        let best = self.best.best();
        best.map(|best| best.map(|candidate| candidate.name))
    }
}
