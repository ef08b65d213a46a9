//! Detects allocators with heaps that memprof cannot read.

use std::ops::Range;

use memchr::memmem::find;

use crate::regions::Region;
use crate::snapshot_memory::{BLOCK_SIZE, SnapshotMemory};

/// Names of libraries with such allocators.
const LIBRARIES: [&str; 4] = ["libtcmalloc", "libmimalloc", "libsnmalloc", "libhoard"];
/// Texts that every jemalloc 4 and 5 contains: the prefix of its error messages, and an option. A program
/// that only writes about jemalloc may contain one of them.
const JEMALLOC_TEXTS: [&[u8]; 2] = [b"<jemalloc>: ", b"narenas"];

/// Name of a mapped library with an unsupported allocator; `None` if there is none.
pub(super) fn library(view: &SnapshotMemory) -> Option<&'static str> {
    LIBRARIES
        .into_iter()
        .find(|name| view.regions.iter().any(|region| region.name.contains(name)))
}

/// Path of the file that contains a jemalloc: a library of that name, or the program. `None` if there is none.
pub(super) fn jemalloc(view: &SnapshotMemory) -> Option<&str> {
    let file = |region: &Region| region.is_file && region.name.contains("/libjemalloc");
    let library = view.regions.iter().find(|region| file(region));
    let library = library.map(|region| region.name.as_str());
    library.or_else(|| {
        // The program has the lowest addresses, below its heap.
        let program = &view.regions.iter().find(|region| region.is_file)?.name;
        let constants = || {
            let of_program = view.regions.iter();
            of_program.filter(|region| region.name == *program && !region.is_writable)
        };
        let has = |text: &&[u8]| constants().any(|region| contains(view, region, text));
        JEMALLOC_TEXTS.iter().all(has).then_some(program)
    })
}

/// Whether a mapping contains a text.
fn contains(view: &SnapshotMemory, region: &Region, text: &[u8]) -> bool {
    range_contains(&region.range, text, |start, block| view.read(start, block))
}

/// Whether a range contains a text. `read` reads from an address and returns the number of bytes read. Does not
/// read beyond the range: a program may be mapped in tens of thousands of pieces.
fn range_contains(
    range: &Range<u64>,
    text: &[u8],
    mut read: impl FnMut(u64, &mut [u8]) -> usize,
) -> bool {
    let mut block = vec![0; BLOCK_SIZE];
    // Blocks overlap by the text's length, because it may lie across two.
    let mut starts = range.clone().step_by(BLOCK_SIZE - text.len());
    starts.any(|start| {
        let length = BLOCK_SIZE.min((range.end - start) as usize);
        let read = read(start, &mut block[..length]);
        find(&block[..read], text).is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_contains_reads_nothing_beyond_range() {
        let check = |length: u64, position: u64, expected: bool| {
            let mut bytes = vec![0; length as usize + BLOCK_SIZE];
            bytes[position as usize..][..4].copy_from_slice(b"text");
            let read = |start: u64, block: &mut [u8]| {
                assert!(start + block.len() as u64 <= length, "{length} {start}");
                block.copy_from_slice(&bytes[start as usize..][..block.len()]);
                block.len()
            };
            assert_eq!(
                range_contains(&(0..length), b"text", read),
                expected,
                "{length}"
            );
        };
        let block = BLOCK_SIZE as u64;
        check(4096, 0, true);
        check(4096, 4092, true);
        check(4096, 4093, false);
        check(3 * block, block - 2, true);
        check(3 * block, 2 * block - 8, true);
        check(3 * block, 3 * block - 4, true);
        check(3 * block + 1, 3 * block, false);
    }
}
