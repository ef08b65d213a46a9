//! tcmalloc's legacy text format, which gperftools writes too:
//!
//! ```text
//! heap profile:   1246:  8800744 [  1246:  8800744] @ heap_v2/524288
//!      3:     4096 [     3:     4096] @ 0x4005d0 0x4004f1
//!
//! MAPPED_LIBRARIES:
//! ```
//!
//! The text after the `@` of the header selects the unsampling, as in jeprof's `ReadHeapProfile`.

use super::numbers::{Counts, parse_counts, parse_decimal};
use super::{DumpReader, DumpSection};
use crate::error::Result;
use crate::profile::{SampleValues, Sampling};

/// tcmalloc's interval if the header says `heap` without one; jeprof's default too.
const DEFAULT_INTERVAL: u64 = 128 << 10;

impl DumpReader<'_> {
    /// Reads the totals and the sampling method from `text`, the first line after `heap profile:`. Fails if they are
    /// malformed; an unknown method counts as no sampling.
    pub(super) fn read_legacy_header(&mut self, text: &[u8]) -> Result<()> {
        let Some((counts, rest)) = parse_counts(text) else {
            return Err(self.unexpected_error("'objects: bytes [objects: bytes]'", text));
        };
        let kind = rest
            .trim_ascii()
            .strip_prefix(b"@")
            .unwrap_or_default()
            .trim_ascii();
        let (name, interval) = match memchr::memchr(b'/', kind) {
            None => (kind, None),
            Some(slash) => match parse_decimal(&kind[slash + 1..]) {
                Some((interval @ 1.., [])) => (&kind[..slash], Some(interval as u64)),
                _ => {
                    return Err(self.unexpected_error("a sample interval of at least 1 byte", kind));
                }
            },
        };
        let is_repeated =
            counts.objects == counts.accum_objects && counts.bytes == counts.accum_bytes;
        self.profile.sampling = match name {
            b"heap_v2" => Sampling::Poisson(interval.unwrap_or(DEFAULT_INTERVAL)),
            b"heap" => Sampling::Uniform(interval.map_or(DEFAULT_INTERVAL, |i| (i / 2).max(1))),
            b"" if is_repeated => Sampling::Uniform(DEFAULT_INTERVAL),
            _ => Sampling::None,
        };
        self.profile.interval = match self.profile.sampling {
            Sampling::None | Sampling::Shared => None,
            Sampling::Poisson(interval) | Sampling::Uniform(interval) => Some(interval),
        };
        self.profile.has_alloc = !is_repeated && counts.accum_objects > 0;
        self.profile.header = Some(self.legacy_values(counts));
        self.section = DumpSection::Legacy;
        Ok(())
    }

    /// Reads a line of a stack with its values. Skips an empty line; the header of the mappings ends the stacks.
    pub(super) fn read_legacy(&mut self, line: &[u8]) -> Result<()> {
        if line.trim_ascii().is_empty() || self.enter_mappings(line) {
            return Ok(());
        }
        let Some((counts, rest)) = parse_counts(line) else {
            return Err(self.unexpected_error("'objects: bytes [objects: bytes] @ 0x…'", line));
        };
        let Some(addresses) = rest.trim_ascii().strip_prefix(b"@") else {
            return Err(self.unexpected_error("'@'", rest));
        };
        self.read_stack(addresses.trim_ascii())?;
        self.push_sample(self.legacy_values(counts))
    }

    /// Converts the counts of a line. A sampling tcmalloc repeats the live values in the second pair, which are
    /// then no `alloc_*`.
    fn legacy_values(&self, counts: Counts) -> SampleValues {
        if self.profile.has_alloc {
            SampleValues([
                counts.accum_objects,
                counts.accum_bytes,
                counts.objects,
                counts.bytes,
            ])
        } else {
            SampleValues([0, 0, counts.objects, counts.bytes])
        }
    }
}
