//! Set of address ranges with false positives: one bit for each 2 MiB.

use std::ops::Range;

/// Number of units in user space (47 bits).
const UNIT_COUNT: usize = 1 << (47 - UNIT_SHIFT);
/// log2 of the bytes of a unit.
const UNIT_SHIFT: u32 = 21;

/// One bit per unit. Pages of the bitmap that stay 0 use no memory.
#[derive(Debug, Default)]
pub(crate) struct AddressFilter(Vec<u64>);

impl AddressFilter {
    /// Creates the set of all units of 2 MiB that the ranges touch. No range may be empty.
    pub(crate) fn new<'a>(ranges: impl Iterator<Item = &'a Range<u64>>) -> Self {
        let mut units = vec![0; UNIT_COUNT / 64];
        for range in ranges {
            for unit in range.start >> UNIT_SHIFT..=(range.end - 1) >> UNIT_SHIFT {
                // Addresses beyond the bitmap are the kernel's.
                let Some(word) = units.get_mut((unit / 64) as usize) else {
                    break;
                };
                *word |= 1 << (unit % 64);
            }
        }
        Self(units)
    }

    /// Returns false only if the address is in none of the ranges. May return true for an address near one.
    #[inline]
    pub(crate) fn may_contain(&self, address: u64) -> bool {
        let unit = address >> UNIT_SHIFT;
        (unit as usize) < UNIT_COUNT && self.0[(unit / 64) as usize] >> (unit % 64) & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_units_of_ranges_are_contained() {
        let ranges = [0x1000..0x2000, 0x40_0000..0x60_0001, u64::MAX - 1..u64::MAX];
        let units = AddressFilter::new(ranges.iter());
        let check =
            |address, expected| assert_eq!(units.may_contain(address), expected, "{address:#x}");
        check(0, true);
        check(0x20_0000, false);
        check(0x40_0000, true);
        check(0x7f_ffff, true);
        check(0x80_0000, false);
        check(1 << 47, false);
        check(u64::MAX, false);
    }
}
