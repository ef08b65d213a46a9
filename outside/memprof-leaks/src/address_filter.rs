//! Which parts of all addresses are of interest: quick, and mostly right.

use std::ops::Range;

/// Addresses of user space, in units of 2 MiB.
const UNITS: usize = 1 << (47 - SHIFT);
const SHIFT: u32 = 21;

/// A bit for each unit. Untouched pages of them take no memory.
#[derive(Debug, Default)]
pub(crate) struct AddressFilter(Vec<u64>);

impl AddressFilter {
    /// The units of ranges, none of which is empty.
    pub(crate) fn of<'a>(ranges: impl Iterator<Item = &'a Range<u64>>) -> Self {
        let mut units = vec![0; UNITS / 64];
        for range in ranges {
            for unit in range.start >> SHIFT..=(range.end - 1) >> SHIFT {
                // The kernel's own lie above.
                let Some(word) = units.get_mut((unit / 64) as usize) else {
                    break;
                };
                *word |= 1 << (unit % 64);
            }
        }
        Self(units)
    }

    /// Whether an address may lie in one of the ranges.
    #[inline]
    pub(crate) fn has(&self, address: u64) -> bool {
        let unit = address >> SHIFT;
        (unit as usize) < UNITS && self.0[(unit / 64) as usize] >> (unit % 64) & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_near_a_range_may_lie_in_it() {
        let ranges = [0x1000..0x2000, 0x40_0000..0x60_0001, u64::MAX - 1..u64::MAX];
        let units = AddressFilter::of(ranges.iter());
        let check = |address, expected| assert_eq!(units.has(address), expected, "{address:#x}");
        check(0, true);
        check(0x20_0000, false);
        check(0x40_0000, true);
        check(0x7f_ffff, true);
        check(0x80_0000, false);
        check(1 << 47, false);
        check(u64::MAX, false);
    }
}
