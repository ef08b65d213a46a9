//! Hash of block addresses, which selects their cells in the tables. Blocks allocated together are mostly freed
//! together, so neighbouring blocks get neighbouring cells.

/// log2 of the bytes of a neighbourhood. Its blocks share their locality bits.
pub(crate) const NEIGHBOURHOOD_BITS: u32 = 13;

/// Golden ratio φ times 2^32, rounded. The fractional parts of multiples of φ leave no large gap.
const GOLDEN_RATIO: u64 = 6_949_403_065;

/// Hash of an address that an allocator returned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressHash(u64);

impl AddressHash {
    /// Wraps an address; each method computes its own hash of it.
    #[inline(always)]
    pub(crate) fn new(address: usize) -> Self {
        Self(address as u64)
    }

    /// Returns `bits` bits that are equal for all blocks of a neighbourhood (8 KiB). The next neighbourhood's value is
    /// larger by one or two, so the cells of one heap lie in few pages, which need few TLB entries. `bits` is at least
    /// 1.
    #[inline(always)]
    pub(crate) fn locality_bits(self, bits: u32) -> usize {
        // ⌊n × φ⌋ modulo 2^bits, for neighbourhood number n, where φ is the golden ratio. `factor` is φ in fixed point,
        // with 32 - `bits` binary places.
        let factor = (GOLDEN_RATIO >> bits) as u32;
        ((self.0 >> NEIGHBOURHOOD_BITS) as u32).wrapping_mul(factor) as usize >> (u32::BITS - bits)
    }

    /// Returns `bits` bits that distinguish blocks of one neighbourhood (8 KiB), mixed from bits 4 to 35 of the block's
    /// address.
    #[inline(always)]
    pub(crate) fn block_bits(self, bits: u32) -> usize {
        // The lowest four bits are 0 in nearly every address that malloc returns.
        hash_lower_half(self.0 >> 4, bits)
    }

    /// Returns `bits` bits that are unrelated for neighbouring blocks. Mixes twice: after one multiplication, blocks at
    /// the start of neighbouring pages would still get neighbouring values.
    pub(crate) fn mixed_bits(self, bits: u32) -> usize {
        let hash = multiply_by_golden_ratio(self.0 >> 4);
        let hash = (hash ^ (hash >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (hash >> (u64::BITS - bits)) as usize
    }
}

/// Multiplies by 2^64 divided by the golden ratio. A hash must use the upper bits of the product, because they depend
/// on all bits of the argument.
#[inline(always)]
pub(crate) fn multiply_by_golden_ratio(bits: u64) -> u64 {
    bits.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Returns `bits` hash bits of the lower 32 bits of `number`: the upper bits of its product with 2^32 divided by the
/// golden ratio. A 32-bit factor fits into the instruction.
#[inline(always)]
pub(crate) fn hash_lower_half(number: u64, bits: u32) -> usize {
    ((number as u32).wrapping_mul(0x9E37_79B1) >> (u32::BITS - bits)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_pages_are_distributed() {
        let check = |of: fn(AddressHash) -> usize| {
            let mut used = [false; 256];
            for page in 0..4096 {
                used[of(AddressHash::new(0x7f00_0000_0010 + page * 4096))] = true;
            }
            assert_eq!(used.iter().filter(|used| **used).count(), 256);
        };
        check(|hash| hash.mixed_bits(8));
        check(|hash| hash.locality_bits(8));
    }

    #[test]
    fn locality_of_next_neighbourhood_is_one_or_two_more() {
        let shared = |index: usize| {
            AddressHash::new(0x7f00_0000_0000 + (index << NEIGHBOURHOOD_BITS)).locality_bits(11)
        };
        for index in 0..10_000 {
            let step = (shared(index + 1) + (1 << 11) - shared(index)) % (1 << 11);
            assert!([1, 2].contains(&step), "{index}: {step}");
        }
    }

    #[test]
    fn hashes_of_neighbours_share_locality_and_differ_in_offset() {
        let blocks = (0..1 << (NEIGHBOURHOOD_BITS - 4))
            .map(|index| AddressHash::new(0x7f00_0000_0000 + index * 16));
        let first = AddressHash::new(0x7f00_0000_0000);
        assert!(
            blocks
                .clone()
                .all(|block| block.locality_bits(32) == first.locality_bits(32))
        );
        let mut own: [i32; 64] = [0; 64];
        let mean = blocks.len() as i32 / 64;
        blocks.for_each(|block| own[block.block_bits(6)] += 1);
        assert!(own.iter().all(|count| (count - mean).abs() <= 2), "{own:?}");
    }
}
