//! `struct malloc_par`, the state of glibc's malloc that all arenas share.

use super::arena::Arena;
use super::chunks::{ALIGNMENT, MIN_CHUNK};
use crate::regions::Region;
use crate::resident_pages::PAGE_SIZE;
use crate::snapshot_memory::{CachedReader, SnapshotMemory};

/// Largest distance from the main arena, in bytes: both are variables of malloc.c with an initial value.
const MAX_DISTANCE: u64 = 64 << 10;

/// Distance in bytes from `n_mmaps` to `sbrk_base`: in glibc 2.35 and newer, and before. `n_mmaps_max`, `max_n_mmaps`
/// and `no_dyn_threshold` follow `n_mmaps`; all have 32 bits.
const COUNTS_OFFSETS: [u64; 2] = [36, 32];
/// Offset back from `sbrk_base` to the bytes of these mappings, and to the most bytes so far.
const BYTES_OFFSET: u64 = 16;
const MAX_BYTES_OFFSET: u64 = 8;
/// Offsets from `sbrk_base` to the number of lists in a thread's cache, to the largest cached size in bytes, and to the
/// most entries of a list.
const CACHE_LISTS_OFFSET: u64 = 8;
const CACHE_SIZE_OFFSET: u64 = 16;
const CACHE_COUNT_OFFSET: u64 = 24;
/// Lists of small chunks in a thread's cache (`TCACHE_SMALL_BINS`), each for one size.
const MAX_CACHE_LISTS: u64 = 64;
/// Largest cached size, with lists of large chunks, and most entries of a list (`MAX_TCACHE_COUNT`).
const MAX_CACHE_SIZE: u64 = 8 << 20;
const MAX_CACHE_COUNT: u64 = u16::MAX as u64;
/// `DEFAULT_MMAP_MAX`, the limit of mapped chunks; mallopt(3) sets `no_dyn_threshold` when it changes it.
const DEFAULT_MAX_COUNT: u64 = 65536;

/// Values of `struct malloc_par`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    /// First address that the main arena got from the kernel, rounded up to that of a chunk; 0 if it got none.
    pub(super) first_chunk: u64,
    /// Chunks with mappings of their own.
    pub(super) mapped_count: u64,
    /// Bytes of these mappings.
    pub(super) mapped_bytes: u64,
    /// Most entries in a list of a thread's cache; 0 if there are no caches.
    pub(super) cache_count: u64,
}

impl Parameters {
    /// Finds `struct malloc_par` near the main arena, by fields that fit together. `None` if no fields fit, or if the
    /// arena cannot be read.
    pub(super) fn find(view: &SnapshotMemory, main: &Arena) -> Option<Self> {
        let arena = main.struct_range();
        let has_memory = main.top_chunk(view)?.is_some();
        let mut memory = CachedReader::new(view);
        let is_base = |base: u64| {
            let is_private = |region: &Region| region.is_writable && !region.is_shared;
            (base != 0) == has_memory && (base == 0 || view.region(base).is_some_and(is_private))
        };
        let near = arena.start.saturating_sub(MAX_DISTANCE)..arena.end + MAX_DISTANCE;
        near.step_by(8)
            .filter(|field| !arena.contains(field))
            .find_map(|field| Self::read(|address| memory.read_word(address), field, is_base))
    }

    /// Adds the counts of mapped chunks of another copy of glibc. Of the list lengths, the larger one stays; the first
    /// chunk stays that of `self`.
    pub(super) fn add_counts(self, other: &Self) -> Self {
        Self {
            mapped_count: self.mapped_count + other.mapped_count,
            mapped_bytes: self.mapped_bytes.saturating_add(other.mapped_bytes),
            cache_count: self.cache_count.max(other.cache_count),
            ..self
        }
    }

    /// Reads the structure whose `sbrk_base` is at `field`. `read_word` reads memory; `is_base` says whether a value
    /// can be that of `sbrk_base`. `None` if the fields do not fit together or cannot be read.
    fn read(
        mut read_word: impl FnMut(u64) -> Option<u64>,
        field: u64,
        is_base: impl Fn(u64) -> bool,
    ) -> Option<Self> {
        let base = read_word(field).filter(|base| is_base(*base))?;
        let lists = read_word(field + CACHE_LISTS_OFFSET)?;
        let size = read_word(field + CACHE_SIZE_OFFSET)?;
        let cache_count = read_word(field + CACHE_COUNT_OFFSET)?;
        let last_size = MIN_CHUNK + lists.checked_sub(1)?.checked_mul(ALIGNMENT)?;
        let has_large_lists =
            lists == MAX_CACHE_LISTS && (last_size..MAX_CACHE_SIZE).contains(&size);
        let has_caches = lists <= MAX_CACHE_LISTS
            && (size.abs_diff(last_size) <= MIN_CHUNK || has_large_lists)
            && cache_count <= MAX_CACHE_COUNT;
        let (bytes, max_bytes) = (
            read_word(field - BYTES_OFFSET)?,
            read_word(field - MAX_BYTES_OFFSET)?,
        );
        if !has_caches || bytes > max_bytes || bytes % ALIGNMENT != 0 {
            return None;
        }
        // Reads the 32-bit number that lies `back` bytes in front of `sbrk_base`.
        let mut half = |back: u64| {
            let address = field - back;
            Some(read_word(address & !7)? >> (8 * (address % 8)) & 0xffff_ffff)
        };
        for back in COUNTS_OFFSETS {
            // `n_mmaps`, `n_mmaps_max`, `max_n_mmaps` and `no_dyn_threshold`.
            let (count, limit) = (half(back)?, half(back - 4)?);
            let (max_count, is_fixed) = (half(back - 8)?, half(back - 12)?);
            let has_limit = is_fixed == 1 || (is_fixed == 0 && limit == DEFAULT_MAX_COUNT);
            // In glibc 2.43, each realloc(3) of a mapped chunk counts 16 bytes too many.
            let has_bytes = match count {
                0 => bytes == 0 || bytes % PAGE_SIZE != 0,
                _ => bytes >= count * PAGE_SIZE,
            };
            if has_limit && count <= max_count && has_bytes {
                return Some(Self {
                    first_chunk: base.next_multiple_of(ALIGNMENT),
                    mapped_count: count,
                    mapped_bytes: bytes,
                    cache_count,
                });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x5555_0000_1000;

    /// The words around `sbrk_base`, which is the tenth.
    fn read(words: &[u64; 14]) -> Option<(u64, u64, u64, u64)> {
        let word = |address: u64| words.get(address as usize / 8).copied();
        let found = Parameters::read(word, 72, |base| base == 0 || base == BASE)?;
        let Parameters {
            first_chunk,
            mapped_count,
            mapped_bytes,
            cache_count,
        } = found;
        Some((first_chunk, mapped_count, mapped_bytes, cache_count))
    }

    #[test]
    fn parameters_of_all_releases_are_read() {
        let pair = |low: u64, high: u64| low | high << 32;
        // arena_test and arena_max come first until glibc 2.34, then hp_pagesize and hp_flags.
        let until_2_34 = [
            0x20000,
            0x20000,
            0x20000,
            8,
            0,
            pair(3, 65536),
            pair(5, 0),
            0x9000,
            0xa000,
            BASE,
            64,
            1032,
            7,
            0,
        ];
        assert_eq!(read(&until_2_34), Some((BASE, 3, 0x9000, 7)));
        let since_2_35 = [
            8,
            0,
            0,
            0,
            pair(0, 3),
            pair(65536, 5),
            pair(0, 0),
            0x9000,
            0xa000,
            BASE,
            64,
            1032,
            7,
            0,
        ];
        assert_eq!(read(&since_2_35), Some((BASE, 3, 0x9000, 7)));
        let mut other = since_2_35;
        // mallopt(M_MMAP_MAX, 0), and no thread caches.
        (other[5], other[6], other[12]) = (pair(0, 5), 1, 0);
        assert_eq!(read(&other), Some((BASE, 3, 0x9000, 0)));
        // Lists of large chunks, glibc 2.42 and newer.
        (other[11], other[12]) = (4 << 20, 16);
        assert_eq!(read(&other), Some((BASE, 3, 0x9000, 16)));
    }

    #[test]
    fn other_words_are_no_parameters() {
        assert_eq!(read(&[0; 14]), None);
        let words = [
            8,
            0,
            0,
            0,
            3 << 32,
            5 << 32 | 65536,
            0,
            0x9000,
            0xa000,
            BASE,
            64,
            1032,
            7,
            0,
        ];
        for (index, value) in [
            (9, 1),
            (7, 0x9008),
            (7, 0xb000),
            (7, 0x2000),
            (10, 60),
            (10, 0),
            (12, 1 << 16),
            (5, 65535),
        ] {
            let mut other = words;
            other[index] = value;
            assert_eq!(read(&other), None, "{index} {value:#x}");
        }
    }
}
