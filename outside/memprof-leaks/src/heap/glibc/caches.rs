//! Freed chunks whose headers say that they are used: those in a thread's cache (`struct
//! tcache_perthread_struct`), and those in an arena's fast bins.

use super::arena::Arena;
use super::{ALIGNMENT, FoundHeap, HEADER_SIZE, MIN_CHUNK, SIZE_FLAGS, reveal_pointer};
use crate::objects::{Object, Span};
use crate::snapshot::Registers;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Sizes of the chunk that contains a thread's cache: in glibc 2.30 and newer, and in 2.26 to 2.29.
pub(super) const CACHE_SIZES: [u64; 2] = [0x290, 0x250];
/// Number of a cache's lists, one per chunk size.
const LIST_COUNT: u64 = 64;
/// Size of the largest chunk in a cache.
const MAX_CACHED_SIZE: u64 = MIN_CHUNK + (LIST_COUNT - 1) * ALIGNMENT;
/// Most entries that are followed in one list; glibc keeps 7 by default.
const MAX_ENTRIES: u64 = 1 << 16;

/// A thread's cache: the first entry and the length of each list that is not empty.
struct Cache {
    lists: Vec<(u64, u64)>,
}

/// Adds the objects in thread caches and fast bins to `heap.cached`. `chunks` are used chunks of the size of a
/// cache. If none of them is a cache, the heap is emptied and recorded as unproven.
pub(super) fn exclude_cached(
    view: &SnapshotMemory,
    arenas: &[Arena],
    chunks: &[u64],
    heap: &mut FoundHeap,
) {
    let caches: Vec<_> = chunks
        .iter()
        .filter_map(|chunk| read_cache(view, *chunk))
        .collect();
    if caches.is_empty() && !heap.spans.is_empty() {
        heap.spans.clear();
        heap.excluded.clear();
        let message = "glibc's heap: memprof does not know the form of the thread caches";
        heap.unproven = vec![message.to_owned()];
        return;
    }
    let mut keys = Vec::new();
    for (first, count) in caches.iter().flat_map(|cache| &cache.lists) {
        keys.extend(view.word(first + 8));
        walk_free_list(view, *first, 0, *count, &mut heap.cached);
    }
    // All entries have one key since glibc 2.34. By it, entries are found also if a thread was changing a
    // list, or a cache was not found.
    keys.sort_unstable();
    keys.dedup();
    if let [key] = keys[..]
        && key != 0
    {
        let cached = objects_with_key(view, &heap.spans, key);
        heap.cached.extend(cached);
    }
    for chunk in arenas.iter().flat_map(|arena| arena.fast_bins(view)) {
        let entry = chunk.wrapping_add(HEADER_SIZE);
        walk_free_list(view, entry, HEADER_SIZE, MAX_ENTRIES, &mut heap.fast_bins);
    }
    heap.cached.extend_from_slice(&heap.fast_bins);
}

/// Adds the objects of a fast bin that a thread is about to merge (`malloc_consolidate`) to `heap.cached`:
/// only the thread's registers point to the next chunk. Such a list is recognized because its chunks have one
/// size, to its end.
pub(super) fn exclude_detached(view: &SnapshotMemory, threads: &[Registers], heap: &mut FoundHeap) {
    let size_of = |entry: u64| {
        let size = view.word(entry.checked_sub(8)?)? & !SIZE_FLAGS;
        (entry.is_multiple_of(ALIGNMENT) && (MIN_CHUNK..=MAX_CACHED_SIZE).contains(&size))
            .then_some(size)
    };
    let is_in_heap = |entry: u64| heap.excluded.iter().any(|own| own.contains(&entry));
    let words = threads.iter().flat_map(|thread| &thread.words);
    for first in words.filter_map(|word| word.checked_add(HEADER_SIZE)) {
        let Some(size) = size_of(first).filter(|_| is_in_heap(first)) else {
            continue;
        };
        let mut list = Vec::new();
        walk_free_list(view, first, HEADER_SIZE, MAX_ENTRIES, &mut list);
        let is_whole = list.iter().all(|entry| size_of(*entry) == Some(size));
        let last = list.last().copied().unwrap_or(first);
        if is_whole && view.word(last) == Some(last >> 12) {
            heap.cached.extend(list);
        }
    }
}

/// Appends the entries of a free list to `found`, at most `count`. Its pointers point `back` bytes in front
/// of an entry.
fn walk_free_list(view: &SnapshotMemory, first: u64, back: u64, count: u64, found: &mut Vec<u64>) {
    let mut entry = first;
    for _ in 0..count.min(MAX_ENTRIES) {
        found.push(entry);
        let next = view.word(entry).map(|next| reveal_pointer(next, entry));
        match next.filter(|next| *next != 0) {
            Some(next) => entry = next.wrapping_add(back),
            None => return,
        }
    }
}

/// Reads the cache at an address. `None` if it is inconsistent.
fn read_cache(view: &SnapshotMemory, address: u64) -> Option<Cache> {
    let size = view.word(address - 8)? & !SIZE_FLAGS;
    let width = if size == CACHE_SIZES[0] { 2 } else { 1 };
    let mut bytes = vec![0; (LIST_COUNT * (width + 8)) as usize];
    if view.read(address, &mut bytes) < bytes.len() {
        return None;
    }
    let (counts, entries) = bytes.split_at((LIST_COUNT * width) as usize);
    let counts = counts.chunks_exact(width as usize);
    let counts = counts
        .map(|count| u64::from(count[0]) | count.get(1).map_or(0, |high| u64::from(*high) << 8));
    let entries = entries.chunks_exact(8);
    let entries = entries.map(|entry| u64::from_le_bytes(entry.try_into().expect("eight bytes")));
    let mut lists = Vec::new();
    for (list, (first, count)) in entries.zip(counts).enumerate() {
        if (count == 0) != (first == 0) {
            return None;
        }
        if first != 0 {
            let length = view.word(first.wrapping_sub(8))? & !SIZE_FLAGS;
            if !first.is_multiple_of(ALIGNMENT) || length != MIN_CHUNK + list as u64 * ALIGNMENT {
                return None;
            }
            lists.push((first, count));
        }
    }
    Some(Cache { lists })
}

/// Starts of the small used objects that have the caches' key where a cache entry has it, in their second word.
fn objects_with_key(view: &SnapshotMemory, spans: &[Span], key: u64) -> Vec<u64> {
    let mut memory = CachedReader::new(view);
    let small = spans
        .iter()
        .flat_map(Span::used)
        .filter(|object| object.size() <= MAX_CACHED_SIZE);
    let starts = small.map(|Object { range }| range.start);
    starts
        .filter(|start| memory.word(start + 8) == Some(key))
        .collect()
}
