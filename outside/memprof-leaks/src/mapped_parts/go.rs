//! The heap of Go, at the addresses that its runtime asks for (`arenaHints` of runtime/malloc.go).

use std::ops::Range;

use memchr::memmem::find;
use memprof_ptrace::maps::mappings;

use super::{AddressSpace, MappedPartKind, MemoryClaim};

/// Addresses of the first arenas on 64-bit systems.
const FIRST_ARENAS: Range<u64> = 0xc0_0000_0000..0xe0_0000_0000;
/// Start of the build information that Go's linker writes (debug/buildinfo).
const BUILD_INFO: &[u8] = b"\xff Go buildinf:";
/// Bytes at the start of the data segment in which it is searched.
const BUILD_INFO_LIMIT: u64 = 64 << 10;

/// Finds the arenas of a Go program, by the addresses at which Go places them. Empty for other programs.
pub(super) fn find_arenas(space: &AddressSpace) -> Vec<MemoryClaim> {
    let arenas = || {
        let anonymous = space.anonymous_mappings();
        anonymous.filter(|mapping| FIRST_ARENAS.contains(&mapping.range.start))
    };
    if arenas().next().is_none() || !has_go_build_info(space) {
        return Vec::new();
    }
    let kind = MappedPartKind::LanguageHeap;
    let claim = |range| MemoryClaim::new(range, kind, "Go heap and goroutine stacks");
    arenas().map(|mapping| claim(mapping.range)).collect()
}

/// Whether a mapped file, the program or a library, has Go's build information.
fn has_go_build_info(space: &AddressSpace) -> bool {
    let is_data = |access: [u8; 4]| access.starts_with(b"r") && access[2] != b'x';
    let mut data =
        mappings(&space.maps).filter(|mapping| mapping.inode != 0 && is_data(mapping.access));
    data.any(|mapping| {
        let length = BUILD_INFO_LIMIT.min(mapping.range.end - mapping.range.start);
        let mut bytes = vec![0; length as usize];
        let read = space.memory.read_some(mapping.range.start, &mut bytes);
        find(&bytes[..read], BUILD_INFO).is_some()
    })
}
