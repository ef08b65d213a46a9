//! Freed chunks whose headers say that they are used: those in a thread's cache (`struct
//! tcache_perthread_struct`), and those in an arena's fast bins.

use std::ops::Range;

use super::chunks::{ALIGNMENT, HEADER_SIZE, MAPPED_FLAG, MIN_CHUNK, SIZE_FLAGS};
use super::glibc_copy::GlibcCopy;
use super::layout::{CACHE_LAYOUTS, CacheCounts, CacheLayout, LIST_COUNT};
use crate::heap::FoundHeap;
use crate::objects::{Object, Span};
use crate::snapshot::Registers;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Size of the largest chunk in a list for one size, in bytes.
const MAX_SMALL_SIZE: u64 = MIN_CHUNK + (LIST_COUNT - 1) * ALIGNMENT;
/// Size of the largest chunk in a cache, in bytes.
const MAX_LARGE_SIZE: u64 = 4 << 20;
/// Most entries that are followed in one list; glibc keeps 7 or 16 by default.
const MAX_ENTRIES: u64 = 1 << 16;
/// Most lists of a cache that may be inconsistent, because a thread was changing one.
const MAX_INCONSISTENT_LISTS: usize = 1;

/// A thread's cache: the first entry of each list that is not empty, and its index.
#[derive(Debug, Default, PartialEq, Eq)]
struct Cache {
    lists: Vec<(u64, u64)>,
}

/// Form of the pointers in a free list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListPointers {
    /// Plain addresses (before glibc 2.32).
    Plain,
    /// Exclusive or with the page number of the pointer's own address (`PROTECT_PTR` in malloc.c).
    Xored,
}

impl ListPointers {
    /// Returns the pointer that a free list stores as `value` at `address`.
    pub(super) fn decode_pointer(self, value: u64, address: u64) -> u64 {
        match self {
            Self::Plain => value,
            // `PROTECT_PTR` of glibc's malloc.c.
            Self::Xored => value ^ (address >> 12),
        }
    }

    /// Recognizes the form by the end of a list: a plain list ends with 0, a xored one never does. `lists` are the
    /// first entry of each list and the list's index. The form counts as xored unless a plain list is found.
    fn recognize(view: &SnapshotMemory, mut lists: impl Iterator<Item = (u64, u64)>) -> Self {
        let is_plain = |(first, index): (u64, u64)| {
            let mut entry = first;
            for _ in 0..MAX_ENTRIES {
                match view.read_word(entry) {
                    Some(0) => return true,
                    Some(next) if has_list_size(view, next, index) => entry = next,
                    _ => return false,
                }
            }
            false
        };
        match lists.any(is_plain) {
            true => Self::Plain,
            false => Self::Xored,
        }
    }
}

/// Adds the freed objects in the thread caches and fast bins of a copy of glibc to `heap.cached`, those in fast bins
/// also to `heap.fast_bins`. `candidates` are objects that may be caches. If none of them is a cache, and
/// `may_have_none` returns false, empties the heap, so that its memory is a root, and records it as unproven: its
/// cached objects would count as leaked.
pub(super) fn add_cached_objects(
    view: &SnapshotMemory,
    copy: &GlibcCopy,
    candidates: &[u64],
    may_have_none: impl FnOnce() -> bool,
    heap: &mut FoundHeap,
) {
    let caches = candidates.iter();
    let caches: Vec<_> = caches
        .filter_map(|object| read_thread_cache(view, *object))
        .collect();
    if caches.is_empty() && !heap.spans.is_empty() && !may_have_none() {
        let ranges = heap.spans.iter().map(Span::range);
        let bytes: u64 = ranges.map(|range| range.end - range.start).sum();
        heap.spans.clear();
        heap.excluded.clear();
        heap.unproven.push(format!(
            "{} KiB of glibc's heap: memprof does not know the form of the thread caches",
            bytes >> 10
        ));
        return;
    }
    let lists = || caches.iter().flat_map(|cache| cache.lists.iter().copied());
    let pointers = ListPointers::recognize(view, lists());
    let mut keys = Vec::new();
    for (first, _) in lists() {
        // The second word of a cache entry is its key (`struct tcache_entry`).
        keys.extend(view.read_word(first + 8));
        walk_free_list(view, pointers, first, 0, &mut heap.cached);
    }
    // All entries have one key since glibc 2.34. By it, entries are found also if a thread was changing a
    // list, or a cache was not found.
    keys.sort_unstable();
    keys.dedup();
    if let [key] = keys[..]
        && key != 0
    {
        let has_large = lists().any(|(_, index)| index >= LIST_COUNT);
        let max_size = if has_large {
            MAX_LARGE_SIZE
        } else {
            MAX_SMALL_SIZE
        };
        let cached = objects_with_key(view, &heap.spans, key, max_size);
        heap.cached.extend(cached);
    }
    let known = heap.fast_bins.len();
    let arenas = copy.arenas();
    for chunk in arenas.flat_map(|arena| arena.fast_bin_heads(view)) {
        let entry = chunk.wrapping_add(HEADER_SIZE);
        walk_free_list(view, pointers, entry, HEADER_SIZE, &mut heap.fast_bins);
    }
    heap.cached.extend_from_slice(&heap.fast_bins[known..]);
}

/// Adds to `heap.cached` the objects of a fast bin that a thread has taken out of its arena to merge them
/// (`malloc_consolidate`): only the thread's registers point to the next chunk. Recognizes such a list because its
/// chunks have one size, to its end. Finds only xored lists, those of glibc 2.32 and newer.
pub(super) fn add_detached_fast_bin(
    view: &SnapshotMemory,
    threads: &[Registers],
    heap: &mut FoundHeap,
) {
    let size_of = |entry: u64| {
        let size = view.read_word(entry.checked_sub(8)?)? & !SIZE_FLAGS;
        (entry.is_multiple_of(ALIGNMENT) && (MIN_CHUNK..=MAX_SMALL_SIZE).contains(&size))
            .then_some(size)
    };
    let is_in_heap = |entry: u64| heap.excluded.iter().any(|own| own.contains(&entry));
    let words = threads.iter().flat_map(|thread| &thread.words);
    for first in words.filter_map(|word| word.checked_add(HEADER_SIZE)) {
        let Some(size) = size_of(first).filter(|_| is_in_heap(first)) else {
            continue;
        };
        let mut list = Vec::new();
        walk_free_list(view, ListPointers::Xored, first, HEADER_SIZE, &mut list);
        let is_whole = list.iter().all(|entry| size_of(*entry) == Some(size));
        let last = list.last().copied().unwrap_or(first);
        // The last pointer of a xored list is 0, stored as its page number.
        if is_whole && view.read_word(last) == Some(last >> 12) {
            heap.cached.extend(list);
        }
    }
}

/// Appends the entries of the free list that begins with `first` to `found`. `back` is the distance from the address in
/// a pointer to the entry behind it: the size of a chunk's header in a fast bin, 0 in a thread's cache. Ends at a
/// pointer that is 0, misaligned or unreadable, and after [`MAX_ENTRIES`].
fn walk_free_list(
    view: &SnapshotMemory,
    pointers: ListPointers,
    first: u64,
    back: u64,
    found: &mut Vec<u64>,
) {
    let mut entry = first;
    for _ in 0..MAX_ENTRIES {
        found.push(entry);
        let next = view
            .read_word(entry)
            .map(|next| pointers.decode_pointer(next, entry));
        match next.filter(|next| *next != 0 && next.is_multiple_of(ALIGNMENT)) {
            Some(next) => entry = next.wrapping_add(back),
            None => return,
        }
    }
}

/// Reads the thread cache in the object at an address. `None` if the object cannot be read, has the size of no cache,
/// or has too many inconsistent lists.
fn read_thread_cache(view: &SnapshotMemory, address: u64) -> Option<Cache> {
    let size = view.read_word(address - 8)?;
    // A chunk with a mapping of its own has the size of the mapping, whole pages.
    let mut layouts = CACHE_LAYOUTS
        .iter()
        .filter(|layout| layout.chunk_size == size & !SIZE_FLAGS || size & MAPPED_FLAG != 0);
    let has_size = |entry: u64, index: u64| has_list_size(view, entry, index);
    layouts.find_map(|layout| {
        let mut bytes = vec![0; (layout.lists * (layout.count_width + 8)) as usize];
        let is_read = view.read(address, &mut bytes) == bytes.len();
        is_read.then(|| layout.parse(&bytes, has_size)).flatten()
    })
}

impl CacheLayout {
    /// Parses the bytes of a cache. `has_size` gets an address and a list's index, and says whether a chunk there has
    /// the size for that list. `None` if more than [`MAX_INCONSISTENT_LISTS`] are inconsistent, or if no list has a
    /// free slot although the counts are those of free slots.
    fn parse(&self, bytes: &[u8], has_size: impl Fn(u64, u64) -> bool) -> Option<Cache> {
        let (counts, entries) = bytes.split_at((self.lists * self.count_width) as usize);
        let counts = counts.chunks_exact(self.count_width as usize);
        let counts: Vec<u64> = counts
            .map(|count| u64::from(count[0]) | count.get(1).map_or(0, |high| u64::from(*high) << 8))
            .collect();
        // In an empty list, all slots are free: no list has a larger count.
        let empty = match self.counts {
            CacheCounts::Entries => 0,
            CacheCounts::FreeSlots => counts.iter().copied().max().filter(|most| *most > 0)?,
        };
        let entries = entries.chunks_exact(8);
        let entries =
            entries.map(|entry| u64::from_le_bytes(entry.try_into().expect("eight bytes")));
        let mut cache = Cache::default();
        let mut inconsistent = 0;
        for (index, (first, count)) in entries.zip(counts).enumerate() {
            let index = index as u64;
            match first {
                0 if count == empty => {}
                0 => inconsistent += 1,
                _ if count != empty && has_size(first, index) => cache.lists.push((first, index)),
                _ => inconsistent += 1,
            }
        }
        (inconsistent <= MAX_INCONSISTENT_LISTS).then_some(cache)
    }
}

/// Whether the chunk of an object has a size that a thread cache keeps in its list with this index. False if the size
/// cannot be read.
fn has_list_size(view: &SnapshotMemory, object: u64, index: u64) -> bool {
    // A chunk's size is in the word before its object.
    let size = view.read_word(object.wrapping_sub(8));
    let size = size.unwrap_or_default() & !SIZE_FLAGS;
    object.is_multiple_of(ALIGNMENT) && list_sizes(index).contains(&size)
}

/// Sizes in bytes, headers included, of the chunks in a thread cache's list with this index.
fn list_sizes(index: u64) -> Range<u64> {
    match index.checked_sub(LIST_COUNT) {
        None => {
            let size = MIN_CHUNK + index * ALIGNMENT;
            size..size + 1
        }
        // Each list is for the sizes from a power of two up to the next one; the first begins above the small sizes.
        Some(large) => {
            let power = MAX_SMALL_SIZE.ilog2() + large as u32;
            (1 << power).max(MAX_SMALL_SIZE + 1)..2 << power
        }
    }
}

/// Starts of the used objects of up to `max_size` bytes whose second word is `key`, which glibc writes into each entry
/// of a thread's cache.
fn objects_with_key(view: &SnapshotMemory, spans: &[Span], key: u64, max_size: u64) -> Vec<u64> {
    let mut memory = CachedReader::new(view);
    let small = spans
        .iter()
        .flat_map(Span::used_objects)
        .filter(|object| object.size() <= max_size);
    let starts = small.map(|Object { range }| range.start);
    starts
        .filter(|start| memory.read_word(start + 8) == Some(key))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_sizes_are_those_of_csize2tidx() {
        assert_eq!(list_sizes(0), 32..33);
        assert_eq!(list_sizes(63), 1040..1041);
        assert_eq!(list_sizes(64), 1041..2048);
        assert_eq!(list_sizes(65), 2048..4096);
        assert_eq!(list_sizes(75), 2 << 20..4 << 20);
    }

    /// Cache with the given counts and first entries, by index; all other lists are empty.
    fn cache(layout: &CacheLayout, empty: u16, lists: &[(usize, u16, u64)]) -> Vec<u8> {
        let mut counts = vec![empty; layout.lists as usize];
        let mut entries = vec![0_u64; layout.lists as usize];
        for (index, count, first) in lists {
            (counts[*index], entries[*index]) = (*count, *first);
        }
        let width = layout.count_width as usize;
        let counts = counts
            .iter()
            .flat_map(|count| count.to_le_bytes()[..width].to_vec());
        let entries = entries.iter().flat_map(|entry| entry.to_le_bytes());
        counts.chain(entries).collect()
    }

    #[test]
    fn caches_of_all_releases_are_parsed() {
        let has_size = |entry: u64, index: u64| entry == 0x1000 + index;
        let [slots, wide, narrow] = &CACHE_LAYOUTS;
        for (layout, empty, count) in [(slots, 16, 14), (slots, 7, 0), (wide, 0, 2), (narrow, 0, 2)]
        {
            let parse = |lists: &[(usize, u16, u64)]| {
                let bytes = cache(layout, empty, lists);
                layout.parse(&bytes, has_size).map(|cache| cache.lists)
            };
            assert_eq!(parse(&[]), Some(vec![]));
            let two = [(0, count, 0x1000), (63, count, 0x103f)];
            assert_eq!(parse(&two), Some(vec![(0x1000, 0), (0x103f, 63)]));
            // A thread has added an entry, but not counted it yet.
            assert_eq!(
                parse(&[(3, empty, 0x1003), two[0]]),
                Some(vec![(0x1000, 0)])
            );
            // An entry of another size, and a count without an entry.
            assert_eq!(parse(&[(3, count, 0x1004), (4, count, 0)]), None);
        }
        assert_eq!(slots.parse(&cache(slots, 0, &[]), has_size), None);
    }
}
