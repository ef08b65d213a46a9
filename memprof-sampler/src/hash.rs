//! Where the tables have a block's place. What is allocated together is mostly freed together, so blocks that lie near
//! each other have places that do.

/// So near: log2 of bytes.
pub(crate) const NEAR: u32 = 12;

/// Of an address that an allocator gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hash(u64);

impl Hash {
    #[inline(always)]
    pub(crate) fn of(address: usize) -> Self {
        Self(address as u64)
    }

    /// So many bits, which it shares with its neighbours.
    #[inline(always)]
    pub(crate) fn shared(self, bits: u32) -> usize {
        (scattered(self.0 >> NEAR) >> (u64::BITS - bits)) as usize
    }

    /// So many bits by which it differs from its neighbours.
    #[inline(always)]
    pub(crate) fn own(self, bits: u32) -> usize {
        (scattered(self.0 >> 4) >> (u64::BITS - bits)) as usize
    }

    /// So many bits that tell nothing of where it lies: mixed twice, because one multiplication leaves addresses that
    /// begin a page side by side.
    pub(crate) fn mixed(self, bits: u32) -> usize {
        let hash = scattered(self.0 >> 4);
        let hash = (hash ^ (hash >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (hash >> (u64::BITS - bits)) as usize
    }
}

/// The upper bits depend on all.
#[inline(always)]
pub(crate) fn scattered(bits: u64) -> u64 {
    bits.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_pages_are_spread() {
        let check = |of: fn(Hash) -> usize| {
            let mut used = [false; 256];
            for page in 0..4096 {
                used[of(Hash::of(0x7f00_0000_0010 + page * 4096))] = true;
            }
            assert_eq!(used.iter().filter(|used| **used).count(), 256);
        };
        check(|hash| hash.mixed(8));
        check(|hash| hash.shared(8));
    }

    #[test]
    fn neighbours_share_what_they_should() {
        let blocks = (0..1 << (NEAR - 4)).map(|at| Hash::of(0x7f00_0000_0000 + at * 16));
        let first = Hash::of(0x7f00_0000_0000);
        assert!(
            blocks
                .clone()
                .all(|block| block.shared(64) == first.shared(64))
        );
        let mut own: [u8; 64] = [0; 64];
        blocks.for_each(|block| own[block.own(6)] += 1);
        assert!(own.iter().all(|count| (3..=5).contains(count)), "{own:?}");
    }
}
