//! Allocators that are in a process and whose heaps are of no form that is known here.

use std::ops::Range;

use memchr::memmem::find;

use crate::regions::Region;
use crate::snapshot_memory::{BLOCK, SnapshotMemory};

/// Of which no heap can be walked, by what their libraries are called.
const LIBRARIES: [&str; 4] = ["libtcmalloc", "libmimalloc", "libsnmalloc", "libhoard"];
/// What every jemalloc 4 and 5 contains: what its complaints start with, and an option. Either alone may be in a
/// program that only writes about it.
const JEMALLOC: [&[u8]; 2] = [b"<jemalloc>: ", b"narenas"];

/// An allocator that nothing is known of here.
pub(super) fn library(view: &SnapshotMemory) -> Option<&'static str> {
    LIBRARIES
        .into_iter()
        .find(|name| view.regions.iter().any(|region| region.name.contains(name)))
}

/// The file that has a jemalloc in it: a library of that name, or the program.
pub(super) fn jemalloc(view: &SnapshotMemory) -> Option<&str> {
    let file = |region: &Region| region.is_file && region.name.contains("/libjemalloc");
    let library = view.regions.iter().find(|region| file(region));
    let library = library.map(|region| region.name.as_str());
    library.or_else(|| {
        // The program is mapped first, below its heap.
        let program = &view.regions.iter().find(|region| region.is_file)?.name;
        let constants = || {
            let of_program = view.regions.iter();
            of_program.filter(|region| region.name == *program && !region.is_writable)
        };
        let has = |text: &&[u8]| constants().any(|region| contains(view, region, text));
        JEMALLOC.iter().all(has).then_some(program)
    })
}

fn contains(view: &SnapshotMemory, region: &Region, text: &[u8]) -> bool {
    holds(&region.range, text, |start, block| view.read(start, block))
}

/// Whether a range has a text. Nothing behind its end is read: a program may be mapped in tens of thousands of pieces.
fn holds(range: &Range<u64>, text: &[u8], mut read: impl FnMut(u64, &mut [u8]) -> usize) -> bool {
    let mut block = vec![0; BLOCK];
    // A text may lie across two blocks.
    let mut starts = range.clone().step_by(BLOCK - text.len());
    starts.any(|start| {
        let length = BLOCK.min((range.end - start) as usize);
        let read = read(start, &mut block[..length]);
        find(&block[..read], text).is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_search_reads_no_byte_behind_its_range() {
        let check = |length: u64, at: u64, expected: bool| {
            let mut bytes = vec![0; length as usize + BLOCK];
            bytes[at as usize..][..4].copy_from_slice(b"text");
            let read = |start: u64, block: &mut [u8]| {
                assert!(start + block.len() as u64 <= length, "{length} {start}");
                block.copy_from_slice(&bytes[start as usize..][..block.len()]);
                block.len()
            };
            assert_eq!(holds(&(0..length), b"text", read), expected, "{length}");
        };
        let block = BLOCK as u64;
        check(4096, 0, true);
        check(4096, 4092, true);
        check(4096, 4093, false);
        check(3 * block, block - 2, true);
        check(3 * block, 2 * block - 8, true);
        check(3 * block, 3 * block - 4, true);
        check(3 * block + 1, 3 * block, false);
    }
}
