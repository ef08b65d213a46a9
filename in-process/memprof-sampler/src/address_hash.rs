//! Where the tables have a block's place. What is allocated together is mostly freed together, so blocks that lie near
//! each other have places that do.

/// So near: log2 of bytes.
pub(crate) const NEAR: u32 = 13;

/// The golden ratio, times 2^32: its multiples, without their whole part, leave no large gap.
const GOLDEN: u64 = 6_949_403_065;

/// Of an address that an allocator gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressHash(u64);

impl AddressHash {
    #[inline(always)]
    pub(crate) fn of(address: usize) -> Self {
        Self(address as u64)
    }

    /// So many bits, which it shares with its neighbours. Those of the next neighbourhood are one or two more, so a
    /// heap takes few pages of a table: each of them has to be looked up by the processor too.
    #[inline(always)]
    pub(crate) fn locality_bits(self, bits: u32) -> usize {
        let factor = (GOLDEN >> bits) as u32;
        ((self.0 >> NEAR) as u32).wrapping_mul(factor) as usize >> (u32::BITS - bits)
    }

    /// So many bits by which it differs from its neighbours.
    #[inline(always)]
    pub(crate) fn offset_bits(self, bits: u32) -> usize {
        mix_fast(self.0 >> 4, bits)
    }

    /// So many bits that tell nothing of where it lies: mixed twice, because one multiplication leaves addresses that
    /// begin a page side by side.
    pub(crate) fn mixed_bits(self, bits: u32) -> usize {
        let hash = mix(self.0 >> 4);
        let hash = (hash ^ (hash >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (hash >> (u64::BITS - bits)) as usize
    }
}

/// The upper bits depend on all.
#[inline(always)]
pub(crate) fn mix(bits: u64) -> u64 {
    bits.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// So many bits, which depend on the lower 32: a factor of that size stands in the instruction.
#[inline(always)]
pub(crate) fn mix_fast(number: u64, bits: u32) -> usize {
    ((number as u32).wrapping_mul(0x9E37_79B1) >> (u32::BITS - bits)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_pages_are_spread() {
        let check = |of: fn(AddressHash) -> usize| {
            let mut used = [false; 256];
            for page in 0..4096 {
                used[of(AddressHash::of(0x7f00_0000_0010 + page * 4096))] = true;
            }
            assert_eq!(used.iter().filter(|used| **used).count(), 256);
        };
        check(|hash| hash.mixed_bits(8));
        check(|hash| hash.locality_bits(8));
    }

    #[test]
    fn the_next_neighbourhood_is_the_next_line_or_the_one_behind() {
        let shared = |at: usize| AddressHash::of(0x7f00_0000_0000 + (at << NEAR)).locality_bits(11);
        for at in 0..10_000 {
            let step = (shared(at + 1) + (1 << 11) - shared(at)) % (1 << 11);
            assert!([1, 2].contains(&step), "{at}: {step}");
        }
    }

    #[test]
    fn neighbours_share_what_they_should() {
        let blocks = (0..1 << (NEAR - 4)).map(|at| AddressHash::of(0x7f00_0000_0000 + at * 16));
        let first = AddressHash::of(0x7f00_0000_0000);
        assert!(
            blocks
                .clone()
                .all(|block| block.locality_bits(32) == first.locality_bits(32))
        );
        let mut own: [i32; 64] = [0; 64];
        let mean = blocks.len() as i32 / 64;
        blocks.for_each(|block| own[block.offset_bits(6)] += 1);
        assert!(own.iter().all(|count| (count - mean).abs() <= 2), "{own:?}");
    }
}
