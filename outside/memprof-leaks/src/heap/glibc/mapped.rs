//! Chunks with a mapping of their own.

use std::ops::Range;

use super::chunks::{ALIGNMENT, HEADER_SIZE, MAPPED_FLAG, MIN_CHUNK, SIZE_FIELD, SIZE_FLAGS};
use super::parameters::Parameters;
use super::private_runs::{PrivateRun, private_runs};
use crate::heap::FoundHeap;
use crate::objects::Span;
use crate::resident_pages::PAGE_SIZE;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Flag in a mapped chunk's first word, which is otherwise its offset from the mapping's start: the mapping has huge
/// pages (glibc 2.43).
const HUGE_FLAG: u64 = 1;

/// Chunk with a mapping of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MappedChunk {
    /// Addresses that its user may use.
    object: Range<u64>,
    /// The whole mapping. The part before the chunk is unused: it aligns the chunk.
    mapping: Range<u64>,
}

/// Adds the chunks with a mapping of their own to `heap`. Returns the objects whose mapping is one page: these may be
/// thread caches.
///
/// `counted` has the number of such chunks that glibc counts. If it is `None`, or if more are found, none of those
/// found is certain: none is added, and they are recorded as unproven. If fewer are found, the missing ones are
/// recorded as unproven. `tail` are the bytes at a mapping's end that the chunk's size does not count. `others` is the
/// memory of other allocators.
pub(super) fn add_mapped_chunks(
    view: &SnapshotMemory,
    counted: Option<&Parameters>,
    tail: u64,
    others: &[Range<u64>],
    heap: &mut FoundHeap,
) -> Vec<u64> {
    if counted.is_some_and(|counted| counted.mapped_count == 0) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut memory = CachedReader::new(view);
    let excluded = [&heap.excluded, others].concat();
    for run in private_runs(view) {
        add_chunks_in_run(&mut memory, &run, &excluded, tail, &mut found);
    }
    let count = found.len() as u64;
    let bytes: u64 = found.iter().map(|chunk| range_length(&chunk.mapping)).sum();
    let large = "large blocks of glibc's malloc";
    let unproven = match counted {
        None if count == 0 => return Vec::new(),
        None => Some(format!(
            "{count} {large}, {} KiB, of which memprof does not find how many it counts",
            bytes >> 10
        )),
        Some(counted) if count > counted.mapped_count || bytes > counted.mapped_bytes => {
            Some(format!(
                "{large}: it counts {} mappings, but {count} look like one",
                counted.mapped_count,
            ))
        }
        Some(_) => None,
    };
    if let Some(unproven) = unproven {
        heap.unproven.push(unproven);
        return Vec::new();
    }
    if let Some(counted) = counted.filter(|counted| counted.mapped_count > count) {
        heap.unproven.push(format!(
            "{} {large}, {} KiB, which memprof does not find",
            counted.mapped_count - count,
            (counted.mapped_bytes - bytes) >> 10
        ));
    }
    let mut small = Vec::new();
    for chunk in found {
        if range_length(&chunk.mapping) == PAGE_SIZE {
            small.push(chunk.object.start);
        }
        heap.spans.push(Span::single_object(chunk.object));
        heap.excluded.push(chunk.mapping);
    }
    small
}

/// Length of a range in bytes.
fn range_length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// Appends the mapped chunks in a run of private memory to `found`, except those that overlap an `excluded` range.
/// `tail` are the bytes at a mapping's end that the chunk's size does not count.
fn add_chunks_in_run(
    memory: &mut CachedReader<'_>,
    run: &PrivateRun,
    excluded: &[Range<u64>],
    tail: u64,
    found: &mut Vec<MappedChunk>,
) {
    let mut end = run.range.start;
    for page in run.pages_from(run.range.start) {
        if page < end {
            continue;
        }
        let read_word = |address: u64| memory.read_word(address);
        let Some(chunk) =
            find_mapped_chunk(read_word, run.pages_from(page), page, run.range.end, tail)
        else {
            continue;
        };
        let shares = |own: &Range<u64>| own.start < chunk.mapping.end && page < own.end;
        if !excluded.iter().any(shares) {
            end = chunk.mapping.end;
            found.push(chunk);
        }
    }
}

/// Chunk in a mapping that begins at `start` and ends at `limit` or before. The chunk of an aligned allocation may
/// begin behind `start`. `read_word` reads memory; `pages` are the resident pages from `start` on; `tail` are the bytes
/// at the mapping's end that the chunk's size does not count. `None` if no such chunk is there.
fn find_mapped_chunk(
    mut read_word: impl FnMut(u64) -> Option<u64>,
    pages: impl Iterator<Item = u64>,
    start: u64,
    limit: u64,
    tail: u64,
) -> Option<MappedChunk> {
    let whole = read_mapped_chunk(&mut read_word, start, start, tail)?;
    let mut aligned_at = |object: u64| {
        let chunk = read_mapped_chunk(&mut read_word, start, object - HEADER_SIZE, tail)?;
        (chunk.mapping.end <= limit).then_some(chunk)
    };
    // An aligned allocation moves the chunk to where its user's memory is aligned, and leaves the header at the start
    // as it is: its size stays the same also if realloc(3) changes that of the chunk.
    let offsets =
        (ALIGNMENT.trailing_zeros() + 1..PAGE_SIZE.trailing_zeros()).map(|bits| 1 << bits);
    let within_page = offsets.map(|offset| start + offset);
    if let Some(chunk) = within_page.filter_map(&mut aligned_at).next() {
        return Some(chunk);
    }
    // realloc(3), which may move the mapping, keeps only alignments within a page. The gap in front of the chunk is
    // untouched, or filled (mallopt(3), M_PERTURB).
    let filler = read_word(start + HEADER_SIZE)?;
    for page in pages.take_while(|page| *page < whole.mapping.end) {
        let end = page + PAGE_SIZE;
        let aligned = read_mapped_chunk(&mut read_word, start, end - HEADER_SIZE, tail);
        if let Some(chunk) = aligned.filter(|chunk| chunk.mapping.end <= limit) {
            return Some(chunk);
        }
        let mut gap = (page.max(start + HEADER_SIZE)..end).step_by(8);
        if gap.any(|address| read_word(address) != Some(filler)) {
            break;
        }
    }
    Some(whole).filter(|whole| whole.mapping.end <= limit)
}

/// Reads the mapped chunk at `chunk`, in a mapping that begins at `start`. `tail` are the bytes at the mapping's end
/// that the chunk's size does not count. `None` if the header at `chunk` cannot be read, or is not that of such a
/// chunk.
fn read_mapped_chunk(
    read_word: &mut impl FnMut(u64) -> Option<u64>,
    start: u64,
    chunk: u64,
    tail: u64,
) -> Option<MappedChunk> {
    let offset = read_word(chunk)? & !HUGE_FLAG;
    let size = read_word(chunk + 8)?;
    let length = size & !SIZE_FLAGS;
    let end = chunk.checked_add(length)?.checked_add(tail)?;
    let is_mapped = offset == chunk - start
        && size & SIZE_FLAGS == MAPPED_FLAG
        && length >= MIN_CHUNK
        && end.is_multiple_of(PAGE_SIZE);
    // In a tail, the first word belongs to the object: it is where a next chunk would have the size of this one.
    let used_tail = tail.min(SIZE_FIELD);
    is_mapped.then(|| MappedChunk {
        object: chunk + HEADER_SIZE..chunk + length + used_tail,
        mapping: start..end,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const START: u64 = 0x7f00_0000_3000;
    const LIMIT: u64 = START + (64 << 20);

    /// Offsets of the object that is found, and of its mapping's end.
    fn find(words: &[(u64, u64)], tail: u64) -> Option<(u64, u64, u64)> {
        let words: HashMap<_, _> = words
            .iter()
            .map(|(offset, word)| (START + offset, *word))
            .collect();
        let word = |address: u64| Some(words.get(&address).copied().unwrap_or_default());
        let pages = (START..LIMIT).step_by(PAGE_SIZE as usize);
        let found = find_mapped_chunk(word, pages, START, LIMIT, tail)?;
        let object = found.object.start - START..found.object.end - START;
        Some((object.start, object.end, found.mapping.end - START))
    }

    #[test]
    fn block_is_found_by_its_header() {
        assert_eq!(find(&[(8, 0x5002)], 0), Some((16, 0x5000, 0x5000)));
        assert_eq!(find(&[(8, 0x4ff2)], 16), Some((16, 0x4ff8, 0x5000)));
        // Huge pages, glibc 2.43.
        let huge = [(0, 1), (8, 0x1f_fff2)];
        assert_eq!(find(&huge, 16), Some((16, 0x1f_fff8, 0x20_0000)));
        for size in [0, 2, 0x5001, 0x5000, 0x5007, 0x4ff2, (64 << 20) + 0x1002] {
            assert_eq!(find(&[(8, size)], 0), None, "{size:#x}");
        }
        assert_eq!(find(&[(0, 0x10), (8, 0x5002)], 0), None);
    }

    #[test]
    fn aligned_block_has_the_size_in_its_own_header() {
        let check = |object: u64, end: u64, old_end: u64| {
            let chunk = object - 16;
            let words = [
                (8, old_end | 2),
                (chunk, chunk),
                (chunk + 8, (end - chunk) | 2),
            ];
            assert_eq!(find(&words, 0), Some((object, end, end)), "{object:#x}");
            let size = (end - chunk - 16) | 2;
            let words = [(8, (old_end - 16) | 2), (chunk, chunk), (chunk + 8, size)];
            assert_eq!(
                find(&words, 16),
                Some((object, end - 8, end)),
                "{object:#x}"
            );
        };
        for (end, old_end) in [
            (0x9000, 0x9000),
            (0x100_9000, 0x9000),
            (0x9000, 0x8000_0000),
        ] {
            check(0x40, end, old_end);
            check(0x800, end, old_end);
            check(0x1000, end, old_end);
            check(0x5000, end, old_end);
        }
    }
}
