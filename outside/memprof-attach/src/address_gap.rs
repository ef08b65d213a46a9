//! Finds unused addresses of a process.

use std::ops::Range;

use memprof_ptrace::maps::mappings;

/// End of the addresses that every x86-64 kernel gives to processes.
const MAX_ADDRESS: u64 = 0x7fff_ffff_f000;
/// Start of the addresses that may be mapped (`vm.mmap_min_addr`).
const MIN_ADDRESS: u64 = 0x10_0000;

/// Returns the address of `length` bytes that are not mapped; it is the start of a page. The bytes are in the middle of
/// the largest gap between the mappings in `maps`, where the target's own mmap(2) does not search first. `None` unless
/// that gap is longer than four times `length`.
pub(crate) fn find_unmapped_gap(maps: &[u8], length: u64) -> Option<u64> {
    let mut last_end = MIN_ADDRESS;
    let mut largest: Range<u64> = 0..0;
    let mut consider = |gap: Range<u64>| {
        if gap.end.saturating_sub(gap.start) > largest.end - largest.start {
            largest = gap;
        }
    };
    for mapping in mappings(maps).filter(|mapping| mapping.range.end <= MAX_ADDRESS) {
        consider(last_end..mapping.range.start);
        last_end = last_end.max(mapping.range.end);
    }
    consider(last_end..MAX_ADDRESS);
    let gap_size = largest.end - largest.start;
    let middle = largest.start + gap_size / 2;
    (gap_size > 4 * length).then_some(middle & !0xfff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_gap_is_used() {
        let check =
            |maps: &str, expected| assert_eq!(find_unmapped_gap(maps.as_bytes(), 0x1000), expected);
        let line = |range: &str| format!("{range} rw-p 00000000 00:00 0 \n");
        let low = line("000000400000-000000500000");
        let high = line("7ffff0000000-7ffff0100000");
        let kernel = line("ffffffffff600000-ffffffffff601000");
        let expected = (0x50_0000_u64 + 0x7fff_f000_0000) / 2;
        check(&[low, high, kernel].concat(), Some(expected));
        check(&line("000000100000-7ffffffff000"), None);
    }
}
