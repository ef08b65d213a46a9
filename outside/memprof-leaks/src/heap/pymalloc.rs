//! Pools of pymalloc, the allocator of Python 3.7 and later for objects of up to 512 bytes (`struct pool_header` of
//! obmalloc.c).
//!
//! A pool is recognized by its header alone, which needs no symbol: the number of its used blocks must be that of its
//! blocks without those in its list of free ones.

use std::mem;

use super::FoundHeap;
use crate::address_ranges::merge_ranges;
use crate::budget::MemoryBudget;
use crate::error::Error;
use crate::objects::Span;
use crate::regions::Region;
use crate::snapshot_memory::SnapshotMemory;

/// Bytes of a pool's header.
const HEADER_SIZE: u64 = 48;
/// Bytes of which the sizes of all blocks are multiples.
const ALIGNMENT: u64 = 16;
/// Largest size of a block, in bytes.
const MAX_BLOCK_SIZE: u64 = 512;
/// Largest size of a pool, in bytes.
const MAX_POOL_SIZE: u64 = 16 << 10;
/// Most blocks of a pool.
const MAX_BLOCKS: usize = (MAX_POOL_SIZE / ALIGNMENT) as usize;

/// Header of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolHeader {
    /// Number of the arena of which the pool is a part.
    pub(crate) arena: u32,
    /// Size of the pool in bytes: 16 KiB since Python 3.10, 4 KiB before.
    pub(crate) size: u64,
    /// Bytes of a block.
    block: u64,
    /// Number of used blocks.
    used: u64,
    /// Address of the first block in the list of free ones, or 0.
    free: u64,
    /// Offset of the first block that was never used.
    next: u64,
}

impl PoolHeader {
    /// Parses the header of a pool at `address` from the pool's first six words. `None` unless its fields are
    /// consistent.
    pub(crate) fn parse(address: u64, words: [u64; 6]) -> Option<Self> {
        // `ref.count`, `freeblock`, links to two pools, `arenaindex` and `szidx`, `nextoffset` and `maxnextoffset`: the
        // last four have 32 bits, and so has `ref.count`.
        let [used, free, _, _, arena_and_class, offsets] = words;
        let high = |word: u64| word >> 32;
        let block = (high(arena_and_class) + 1) * ALIGNMENT;
        let (next, last) = (offsets & 0xffff_ffff, high(offsets));
        let (used, size) = (used & 0xffff_ffff, last + block);
        let is_pool = (size == 4 << 10 || size == MAX_POOL_SIZE)
            && block <= MAX_BLOCK_SIZE
            && address.is_multiple_of(size)
            && (HEADER_SIZE + block..=size).contains(&next)
            && used * block <= size
            && (free == 0 || (address + HEADER_SIZE..address + size).contains(&free));
        is_pool.then_some(Self {
            arena: arena_and_class as u32,
            size,
            block,
            used,
            free,
            next,
        })
    }

    /// Parses the header of a pool at `address` from its first bytes, at least [`HEADER_SIZE`]. `None` unless its
    /// fields are consistent.
    fn parse_bytes(address: u64, bytes: &[u8]) -> Option<Self> {
        let mut words = [0; 6];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        Self::parse(address, words)
    }
}

/// A pool whose list of free blocks agrees with its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pool {
    start: u64,
    size: u64,
    block: u64,
    /// Number of blocks that were ever used.
    blocks: usize,
    /// One bit for each free one of them.
    free: [u64; MAX_BLOCKS / 64],
}

impl Pool {
    /// Parses the pool at `start` from its bytes, as many as a pool has. `None` if its header or its list of free
    /// blocks is inconsistent.
    fn parse(start: u64, bytes: &[u8]) -> Option<Self> {
        let header = PoolHeader::parse_bytes(start, bytes)?;
        let carved = header.next - HEADER_SIZE;
        if header.size != bytes.len() as u64 || !carved.is_multiple_of(header.block) {
            return None;
        }
        let mut pool = Self {
            start,
            size: header.size,
            block: header.block,
            blocks: (carved / header.block) as usize,
            free: [0; MAX_BLOCKS / 64],
        };
        let mut next = header.free;
        let mut free = 0;
        while next != 0 {
            let offset = next.checked_sub(start + HEADER_SIZE)?;
            let index = (offset / pool.block) as usize;
            let is_new =
                offset.is_multiple_of(pool.block) && index < pool.blocks && !pool.is_free(index);
            if !is_new {
                return None;
            }
            pool.free[index / 64] |= 1 << (index % 64);
            free += 1;
            let at = (next - start) as usize;
            next = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        }
        // A thread that was stopped in pymalloc may have changed only the list or only the number.
        let used = pool.blocks as u64 - free;
        (used.abs_diff(header.used) <= 1).then_some(pool)
    }

    /// Whether the block of that index is in the list of free ones.
    fn is_free(&self, index: usize) -> bool {
        self.free[index / 64] >> (index % 64) & 1 != 0
    }

    /// Address behind the pool's last byte.
    fn end(&self) -> u64 {
        self.start + self.size
    }

    /// Adds the pool's blocks to a span. The pool's header, and the memory that was never used, are unused objects.
    fn add_blocks_to(&self, span: &mut Span) {
        span.add_object(self.start, false);
        let first = self.start + HEADER_SIZE;
        for index in 0..self.blocks {
            span.add_object(first + index as u64 * self.block, !self.is_free(index));
        }
        let end = first + self.blocks as u64 * self.block;
        if end < self.end() {
            span.add_object(end, false);
        }
    }
}

/// Walks the pools in private anonymous memory, except for that of brk(2). `pool_size` are the bytes of a pool.
///
/// # Errors
/// `Memory`: the search needs more memory than `--max-memory`.
pub(super) fn walk_pools(
    view: &SnapshotMemory,
    pool_size: u64,
    budget: &mut MemoryBudget,
) -> Result<FoundHeap, Error> {
    let mut heap = FoundHeap::default();
    let mut run = Vec::new();
    let is_possible = |region: &&Region| {
        let is_anonymous = region.is_writable && !region.is_file && !region.is_shared;
        is_anonymous && !region.name.starts_with("[heap")
    };
    let mut bytes = vec![0; pool_size as usize];
    for region in view.regions.iter().filter(is_possible) {
        let pages = region.pages.iter();
        for address in pages.flat_map(|pages| {
            (pages.start.next_multiple_of(pool_size)..pages.end).step_by(pool_size as usize)
        }) {
            // Reads only the header first, because most memory is in no pool.
            let head = &mut bytes[..HEADER_SIZE as usize];
            let is_inside = region.range.end - address >= pool_size;
            if !is_inside
                || view.read(address, head) < head.len()
                || PoolHeader::parse_bytes(address, head).is_none()
                || view.read(address, &mut bytes) < bytes.len()
            {
                continue;
            }
            let Some(pool) = Pool::parse(address, &bytes) else {
                continue;
            };
            if run.last().is_some_and(|last: &Pool| last.end() != address) {
                add_pool_run(&mem::take(&mut run), &mut heap, budget)?;
            }
            run.push(pool);
            budget.require_bytes((run.len() * size_of::<Pool>()) as u64)?;
        }
    }
    add_pool_run(&run, &mut heap, budget)?;
    heap.pools = merge_ranges(heap.excluded.clone());
    Ok(heap)
}

/// Adds adjacent pools to `heap` as one span, and excludes their memory from the roots. Fails with `Memory` if the
/// span's bitmaps need more than `--max-memory`.
fn add_pool_run(
    run: &[Pool],
    heap: &mut FoundHeap,
    budget: &mut MemoryBudget,
) -> Result<(), Error> {
    let (Some(first), Some(last)) = (run.first(), run.last()) else {
        return Ok(());
    };
    let range = first.start..last.end();
    budget.reserve(Span::memory_size(range.end - range.start, ALIGNMENT, 0))?;
    let mut span = Span::new(range.clone(), ALIGNMENT, 0);
    run.iter().for_each(|pool| pool.add_blocks_to(&mut span));
    heap.spans.push(span);
    heap.excluded.push(range);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x7f00_0000_4000;
    const SIZE: u64 = 16 << 10;
    const BLOCK: u64 = 64;

    /// Header of a pool with seven used blocks of 64 bytes, as Python writes it in a pool of that size.
    fn header(size: u64) -> [u64; 6] {
        [
            7,
            0,
            0,
            0,
            3 << 32 | 5,
            (size - BLOCK) << 32 | (48 + 7 * BLOCK),
        ]
    }

    #[test]
    fn header_is_proven_by_consistent_fields() {
        let check = |address, words, expected: Option<u64>| {
            let found = PoolHeader::parse(address, words);
            assert_eq!(found.map(|pool| pool.size), expected, "{words:?}");
        };
        check(0x4000, header(16 << 10), Some(16 << 10));
        check(0x5000, header(4 << 10), Some(4 << 10));
        check(0x5000, header(16 << 10), None);
        check(0x8000, header(8 << 10), None);
        check(0x8000, [0; 6], None);
        for (index, value) in [(0, 1 << 20), (1, 0x100), (4, u64::MAX), (5, 64 << 32)] {
            let mut words = header(16 << 10);
            words[index] = value;
            check(0x4000, words, None);
        }
    }

    /// Pool with nine blocks that were used, of which `free` are in the list of free ones, in that order; the last of
    /// them links to `end`.
    fn pool(used: u64, free: &[u64], end: u64) -> Option<Pool> {
        let mut bytes = vec![0_u8; SIZE as usize];
        let block = |index: u64| HEADER_SIZE + index * BLOCK;
        let mut put = |offset: u64, word: u64| {
            bytes[offset as usize..][..8].copy_from_slice(&word.to_le_bytes());
        };
        let next = |index: usize| free.get(index).map_or(end, |free| START + block(*free));
        let words = [
            used,
            next(0),
            0,
            0,
            3 << 32,
            (SIZE - BLOCK) << 32 | block(9),
        ];
        (0..)
            .zip(words)
            .for_each(|(index, word)| put(8 * index, word));
        for (index, free) in free.iter().enumerate() {
            put(block(*free), next(index + 1));
        }
        Pool::parse(START, &bytes)
    }

    #[test]
    fn blocks_are_used_unless_in_list_of_free_ones() {
        let found = pool(6, &[8, 0, 3], 0).unwrap();
        let free: Vec<_> = (0..found.blocks)
            .filter(|index| found.is_free(*index))
            .collect();
        assert_eq!((found.blocks, free), (9, vec![0, 3, 8]));
        let mut span = Span::new(START..START + SIZE, ALIGNMENT, 0);
        found.add_blocks_to(&mut span);
        let used: Vec<_> = span.used_objects().map(|object| object.range).collect();
        let range = |index| {
            let start = START + HEADER_SIZE + index * BLOCK;
            start..start + BLOCK
        };
        assert_eq!(used, [1, 2, 4, 5, 6, 7].map(range));
        // One of both numbers may have been changed already.
        assert!(pool(5, &[8, 0, 3], 0).is_some());
        assert!(pool(9, &[], 0).is_some());
    }

    #[test]
    fn pool_with_foreign_or_endless_list_is_none() {
        let check =
            |used, free: &[u64], end| assert_eq!(pool(used, free, end), None, "{free:?} {end:#x}");
        check(4, &[8, 0, 3], 0);
        check(8, &[8, 0, 3], 0);
        check(6, &[8, 0, 8], 0);
        check(6, &[0, 1], START + HEADER_SIZE);
        check(6, &[9], 0);
        check(8, &[0], START + SIZE);
        check(8, &[0], START + 8);
        check(8, &[0], u64::MAX);
        check(8, &[0], START + HEADER_SIZE + 8);
    }
}
