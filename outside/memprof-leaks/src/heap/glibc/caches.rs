//! Freed chunks that look used: those in a thread's cache (`struct tcache_perthread_struct`), and in the lists of
//! an arena for small ones.

use super::arena::Arena;
use super::{ALIGNMENT, FLAGS, FoundHeap, HEADER, LEAST, reveal_pointer};
use crate::objects::{Object, Span};
use crate::snapshot::Registers;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Of the chunk that a cache lies in: glibc 2.30 and newer, 2.26 to 2.29.
pub(super) const SIZES: [u64; 2] = [0x290, 0x250];
const LISTS: u64 = 64;
/// The largest chunk that such a list holds.
const LARGEST: u64 = LEAST + (LISTS - 1) * ALIGNMENT;
/// The entries of one list that are looked at; glibc keeps 7 unless it is told otherwise.
const ENTRY_LIMIT: u64 = 1 << 16;

/// The lists of one cache that are not empty: the first entry, and their number.
struct Cache {
    lists: Vec<(u64, u64)>,
}

/// Tells which objects of the heap are none. `places` are chunks of the size of a cache.
pub(super) fn exclude_cached(
    view: &SnapshotMemory,
    arenas: &[Arena],
    places: &[u64],
    heap: &mut FoundHeap,
) {
    let caches: Vec<_> = places
        .iter()
        .filter_map(|place| cache(view, *place))
        .collect();
    if caches.is_empty() && !heap.spans.is_empty() {
        heap.spans.clear();
        heap.own.clear();
        let message = "glibc's heap: memprof does not know the form of the thread caches";
        heap.unproven = vec![message.to_owned()];
        return;
    }
    let mut keys = Vec::new();
    for (first, count) in caches.iter().flat_map(|cache| &cache.lists) {
        keys.extend(view.word(first + 8));
        walk_free_list(view, *first, 0, *count, &mut heap.cached);
    }
    // The same in every entry since glibc 2.34: so entries are found also where a list is in the midst of a
    // change, or a cache was not found.
    keys.sort_unstable();
    keys.dedup();
    if let [key] = keys[..]
        && key != 0
    {
        let cached = with_key(view, &heap.spans, key);
        heap.cached.extend(cached);
    }
    for chunk in arenas.iter().flat_map(|arena| arena.fast_bins(view)) {
        let entry = chunk.wrapping_add(HEADER);
        walk_free_list(view, entry, HEADER, ENTRY_LIMIT, &mut heap.cached);
    }
}

/// Tells which objects lie in a list of small free chunks that a thread is about to merge (`malloc_consolidate`):
/// only its registers lead there, to the next chunk. Such a list proves itself by chunks of one size to its end.
pub(super) fn exclude_detached(view: &SnapshotMemory, threads: &[Registers], heap: &mut FoundHeap) {
    let size_of = |entry: u64| {
        let size = view.word(entry.checked_sub(8)?)? & !FLAGS;
        (entry.is_multiple_of(ALIGNMENT) && (LEAST..=LARGEST).contains(&size)).then_some(size)
    };
    let is_of_heap = |entry: u64| heap.own.iter().any(|own| own.contains(&entry));
    let words = threads.iter().flat_map(|thread| &thread.words);
    for first in words.filter_map(|word| word.checked_add(HEADER)) {
        let Some(size) = size_of(first).filter(|_| is_of_heap(first)) else {
            continue;
        };
        let mut list = Vec::new();
        walk_free_list(view, first, HEADER, ENTRY_LIMIT, &mut list);
        let is_whole = list.iter().all(|entry| size_of(*entry) == Some(size));
        let last = list.last().copied().unwrap_or(first);
        if is_whole && view.word(last) == Some(last >> 12) {
            heap.cached.extend(list);
        }
    }
}

/// Follows a list; `back` is how far its pointers lie before an entry's first byte.
fn walk_free_list(view: &SnapshotMemory, first: u64, back: u64, count: u64, found: &mut Vec<u64>) {
    let mut entry = first;
    for _ in 0..count.min(ENTRY_LIMIT) {
        found.push(entry);
        let next = view.word(entry).map(|next| reveal_pointer(next, entry));
        match next.filter(|next| *next != 0) {
            Some(next) => entry = next.wrapping_add(back),
            None => return,
        }
    }
}

/// The cache that lies at an address, if one does.
fn cache(view: &SnapshotMemory, address: u64) -> Option<Cache> {
    let size = view.word(address - 8)? & !FLAGS;
    let width = if size == SIZES[0] { 2 } else { 1 };
    let mut bytes = vec![0; (LISTS * (width + 8)) as usize];
    if view.read(address, &mut bytes) < bytes.len() {
        return None;
    }
    let (counts, entries) = bytes.split_at((LISTS * width) as usize);
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
            let length = view.word(first.wrapping_sub(8))? & !FLAGS;
            if !first.is_multiple_of(ALIGNMENT) || length != LEAST + list as u64 * ALIGNMENT {
                return None;
            }
            lists.push((first, count));
        }
    }
    Some(Cache { lists })
}

/// The used objects that hold the key of the caches where their entries have it.
fn with_key(view: &SnapshotMemory, spans: &[Span], key: u64) -> Vec<u64> {
    let mut memory = CachedReader::new(view);
    let small = spans
        .iter()
        .flat_map(Span::used)
        .filter(|object| object.size() <= LARGEST);
    let starts = small.map(|Object { range }| range.start);
    starts
        .filter(|start| memory.word(start + 8) == Some(key))
        .collect()
}
