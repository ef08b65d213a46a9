//! Addresses that a process does not use.

use std::ops::Range;

use memprof_ptrace::maps::mappings;

/// Behind the addresses that every x86-64 kernel gives to processes lie its own.
const END: u64 = 0x7fff_ffff_f000;
/// Below, nothing may be mapped (`vm.mmap_min_addr`).
const START: u64 = 0x10_0000;

/// So many bytes in the midst of the largest hole, where the next mmap(2) of the process's own does not
/// look first.
pub(crate) fn find_gap(maps: &[u8], length: u64) -> Option<u64> {
    let mut end_of_last = START;
    let mut largest: Range<u64> = 0..0;
    let mut consider = |hole: Range<u64>| {
        if hole.end.saturating_sub(hole.start) > largest.end - largest.start {
            largest = hole;
        }
    };
    for mapping in mappings(maps).filter(|mapping| mapping.range.end <= END) {
        consider(end_of_last..mapping.range.start);
        end_of_last = end_of_last.max(mapping.range.end);
    }
    consider(end_of_last..END);
    let room = largest.end - largest.start;
    let middle = largest.start + room / 2;
    (room > 4 * length).then_some(middle & !0xfff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_hole_is_taken() {
        let check = |maps: &str, expected| assert_eq!(find_gap(maps.as_bytes(), 0x1000), expected);
        let line = |range: &str| format!("{range} rw-p 00000000 00:00 0 \n");
        let low = line("000000400000-000000500000");
        let high = line("7ffff0000000-7ffff0100000");
        let kernel = line("ffffffffff600000-ffffffffff601000");
        let expected = (0x50_0000_u64 + 0x7fff_f000_0000) / 2;
        check(&[low, high, kernel].concat(), Some(expected));
        check(&line("000000100000-7ffffffff000"), None);
    }
}
