//! The hashes by which the loader looks names up (`DT_GNU_HASH`).

use object::elf::{DT_GNU_HASH, GnuHashHeader, Sym64};
use object::endian::{LittleEndian, U32, U64};

use super::{Dynamic, LE, Library, Result, Strings, damaged};

impl Library<'_> {
    /// Each hash is that of its symbol, and each chain ends.
    pub(super) fn check_hashes(
        &self,
        dynamic: &Dynamic<'_>,
        strings: &Strings<'_>,
        symbols: &[Sym64<LittleEndian>],
    ) -> Result<()> {
        const TABLE: &str = "table of hashes";
        let Some(address) = dynamic.one(DT_GNU_HASH) else {
            // A library for loaders of before 2006 has another table, which this one reads too.
            return Err("it has no DT_GNU_HASH; link it with -Wl,--hash-style=gnu".to_owned());
        };
        let header: &GnuHashHeader<LittleEndian> = &self.slice(address, 1, TABLE)?[0];
        let [buckets, first, bloom] = [
            header.bucket_count.get(LE),
            header.symbol_base.get(LE),
            header.bloom_count.get(LE),
        ]
        .map(|count| count as usize);
        if buckets == 0 || !bloom.is_power_of_two() {
            return damaged(TABLE);
        }
        let filter_at = address.saturating_add(size_of::<GnuHashHeader<LittleEndian>>() as u64);
        let filter: &[U64<LittleEndian>] = self.slice(filter_at, bloom, TABLE)?;
        let heads_at = filter_at.saturating_add(8 * bloom as u64);
        let heads: &[U32<LittleEndian>] = self.slice(heads_at, buckets, TABLE)?;
        if heads.iter().all(|head| head.get(LE) == 0) {
            // It exports nothing.
            return Ok(());
        }
        let Some(exported) = symbols.get(first..) else {
            return damaged(TABLE);
        };
        let chains_at = heads_at.saturating_add(4 * buckets as u64);
        let chains: &[U32<LittleEndian>] = self.slice(chains_at, exported.len(), TABLE)?;
        let shift = header.bloom_shift.get(LE) & 63;
        for (at, (symbol, chain)) in exported.iter().zip(chains).enumerate() {
            let name = strings.name(symbol.st_name.get(LE).into(), TABLE)?;
            let hash = object::elf::gnu_hash(name);
            let bucket = hash as usize % buckets;
            let head = heads[bucket].get(LE) as usize;
            let word = filter[hash as usize / 64 % bloom].get(LE);
            let bits = 1 << (hash % 64) | 1 << (hash.checked_shr(shift).unwrap_or(0) % 64);
            let is_found = (first..=first + at).contains(&head) && word & bits == bits;
            if chain.get(LE) | 1 != hash | 1 || !is_found {
                return damaged(TABLE);
            }
        }
        let ends = chains.last().is_none_or(|last| last.get(LE) & 1 == 1);
        let known = |head: &U32<LittleEndian>| match head.get(LE) as usize {
            0 => true,
            head => (first..symbols.len()).contains(&head),
        };
        if ends && heads.iter().all(known) {
            Ok(())
        } else {
            damaged(TABLE)
        }
    }
}
