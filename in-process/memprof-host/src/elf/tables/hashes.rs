//! Checks the hash table by which the loader looks up names (`DT_GNU_HASH`, else `DT_HASH`).

use object::elf::{DT_GNU_HASH, DT_HASH, GnuHashHeader, HashHeader, Sym64};
use object::endian::{LittleEndian, U32, U64};

use super::{Dynamic, LE, Library, Result, Strings, damaged_table_error};

/// Name of either table in errors.
const TABLE: &str = "table of hashes";

impl Library<'_> {
    /// Checks the table of `DT_GNU_HASH`, or else that of `DT_HASH`: each hash must be that of its symbol's name, and
    /// each chain must end. Succeeds if the library has neither table, because the loader then finds no name in it.
    pub(super) fn check_hashes(
        &self,
        dynamic: &Dynamic<'_>,
        strings: &Strings<'_>,
        symbols: &[Sym64<LittleEndian>],
    ) -> Result<()> {
        let Some(address) = dynamic.value(DT_GNU_HASH) else {
            return self.check_sysv_hashes(dynamic, strings, symbols);
        };
        let header: &GnuHashHeader<LittleEndian> = &self.read_array(address, 1, TABLE)?[0];
        let [buckets, first, bloom] = [
            header.bucket_count.get(LE),
            header.symbol_base.get(LE),
            header.bloom_count.get(LE),
        ]
        .map(|count| count as usize);
        if buckets == 0 || !bloom.is_power_of_two() {
            return damaged_table_error(TABLE);
        }
        let filter_address =
            address.saturating_add(size_of::<GnuHashHeader<LittleEndian>>() as u64);
        let filter: &[U64<LittleEndian>] = self.read_array(filter_address, bloom, TABLE)?;
        let heads_address = filter_address.saturating_add(8 * bloom as u64);
        let heads: &[U32<LittleEndian>] = self.read_array(heads_address, buckets, TABLE)?;
        if heads.iter().all(|head| head.get(LE) == 0) {
            // The library exports no symbol.
            return Ok(());
        }
        let Some(exported) = symbols.get(first..) else {
            return damaged_table_error(TABLE);
        };
        let chains_address = heads_address.saturating_add(4 * buckets as u64);
        let chains: &[U32<LittleEndian>] =
            self.read_array(chains_address, exported.len(), TABLE)?;
        let shift = header.bloom_shift.get(LE) & 63;
        for (index, (symbol, chain)) in exported.iter().zip(chains).enumerate() {
            let name = strings.read_name(symbol.st_name.get(LE).into(), TABLE)?;
            let hash = object::elf::gnu_hash(name);
            let bucket = hash as usize % buckets;
            let head = heads[bucket].get(LE) as usize;
            // The Bloom filter has two bits of one word for each name, as in dl-lookup.c of glibc, which shifts a
            // 64-bit number: a shift of 32 or more gives 0.
            let word = filter[hash as usize / 64 % bloom].get(LE);
            let bits = 1 << (hash % 64) | 1 << (hash.checked_shr(shift).unwrap_or(0) % 64);
            // The symbols of a bucket are contiguous, so its chain begins at this symbol or before it.
            let is_found = (first..=first + index).contains(&head) && word & bits == bits;
            // The lowest bit of a chain's entry marks the end of the chain.
            if chain.get(LE) | 1 != hash | 1 || !is_found {
                return damaged_table_error(TABLE);
            }
        }
        let is_terminated = chains.last().is_none_or(|last| last.get(LE) & 1 == 1);
        let is_valid_head = |head: &U32<LittleEndian>| match head.get(LE) as usize {
            0 => true,
            head => (first..symbols.len()).contains(&head),
        };
        if is_terminated && heads.iter().all(is_valid_head) {
            Ok(())
        } else {
            damaged_table_error(TABLE)
        }
    }

    /// Checks that each chain of `DT_HASH` ends, and has only symbols whose hash belongs to the chain's bucket.
    /// Succeeds if there is no such table.
    fn check_sysv_hashes(
        &self,
        dynamic: &Dynamic<'_>,
        strings: &Strings<'_>,
        symbols: &[Sym64<LittleEndian>],
    ) -> Result<()> {
        let Some(address) = dynamic.value(DT_HASH) else {
            return Ok(());
        };
        let header: &HashHeader<LittleEndian> = &self.read_array(address, 1, TABLE)?[0];
        let [bucket_count, chain_count] =
            [header.bucket_count, header.chain_count].map(|count| count.get(LE) as usize);
        let heads_address = address.saturating_add(size_of::<HashHeader<LittleEndian>>() as u64);
        let words: &[U32<LittleEndian>] = self.read_array(
            heads_address,
            bucket_count.saturating_add(chain_count),
            TABLE,
        )?;
        let (heads, chains) = words.split_at(bucket_count);
        let mut steps = 0;
        for (bucket, head) in heads.iter().enumerate() {
            let mut index = head.get(LE) as usize;
            while index != 0 {
                let Some((symbol, next)) = symbols.get(index).zip(chains.get(index)) else {
                    return damaged_table_error(TABLE);
                };
                let name = strings.read_name(symbol.st_name.get(LE).into(), TABLE)?;
                steps += 1;
                // Each symbol is in one chain, so more steps than symbols are a circle.
                if object::elf::hash(name) as usize % bucket_count != bucket || steps > chain_count
                {
                    return damaged_table_error(TABLE);
                }
                index = next.get(LE) as usize;
            }
        }
        match bucket_count {
            0 => damaged_table_error(TABLE),
            _ => Ok(()),
        }
    }
}
