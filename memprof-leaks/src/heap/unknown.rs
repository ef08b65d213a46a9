//! Allocators that are in a process and whose heaps are of no form that is known here.

use memchr::memmem::find;

use crate::regions::Region;
use crate::view::{BLOCK, View};

/// Of which no heap can be walked, by what their libraries are called.
const LIBRARIES: [&str; 4] = ["libtcmalloc", "libmimalloc", "libsnmalloc", "libhoard"];
/// What every jemalloc 4 and 5 contains: what its complaints start with, and an option. Either alone may be in a
/// program that only writes about it.
const JEMALLOC: [&[u8]; 2] = [b"<jemalloc>: ", b"narenas"];

/// An allocator that nothing is known of here.
pub(super) fn library(view: &View) -> Option<&'static str> {
    LIBRARIES
        .into_iter()
        .find(|name| view.regions.iter().any(|region| region.name.contains(name)))
}

/// The file that has a jemalloc in it: a library of that name, or the program.
pub(super) fn jemalloc(view: &View) -> Option<&str> {
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

fn contains(view: &View, region: &Region, text: &[u8]) -> bool {
    let mut block = vec![0; BLOCK];
    // A text may lie across two blocks.
    let starts = region.range.clone().step_by(BLOCK - text.len());
    starts.into_iter().any(|start| {
        let read = view.read(start, &mut block);
        find(&block[..read], text).is_some()
    })
}
