//! tcmalloc's legacy text format, which gperftools and Go's runtime write too:
//!
//! ```text
//! heap profile:   1246:  8800744 [  1246:  8800744] @ heap_v2/524288
//!      3:     4096 [     3:     4096] @ 0x4005d0 0x4004f1
//!
//! MAPPED_LIBRARIES:
//! ```
//!
//! Go's text has comments between the records, and no mappings; see [`go`](super::go).

use super::header_word::{DEFAULT_INTERVAL, HeaderWord};
use super::numbers::{Counts, parse_counts};
use super::{DumpReader, DumpSection};
use crate::error::{Error, Quoted, Result};
use crate::profile::{SampleType, Sampling};

/// Known words of a header, for an error message.
const EXPECTED_WORDS: &str = "heap_v2/N, NAME_heap_v2/N, heap/N, heapz/N, heapprofile or growth";

/// State of a dump in this format.
#[derive(Debug)]
pub(super) struct LegacyDump {
    word: HeaderWord,
    header: Counts,
    /// Whether a number lacks the padding of gperftools' `%6d: %8d`, as in Go's text.
    is_unpadded: bool,
    /// Whether a record has allocated values: they are not 0, and differ from those in use.
    has_alloc: bool,
    /// Sums over the records with negative values, which are left out.
    negative_records: u64,
    negative_objects: i64,
    negative_bytes: i64,
}

impl DumpReader<'_> {
    /// Reads the header: `text` is the rest of the line after `heap profile:`, with the totals and a word that says how
    /// the values are scaled. Fails if it is malformed, or the word is unknown, because its scale would be a guess.
    /// Warns if the word has no sample interval.
    pub(super) fn read_legacy_header(&mut self, text: &[u8]) -> Result<()> {
        let Some((counts, rest)) = parse_counts(text) else {
            return Err(self.unexpected_text_error("'objects: bytes [objects: bytes]'", text));
        };
        let word = rest.trim_ascii().strip_prefix(b"@").unwrap_or_default();
        let word = word.trim_ascii();
        let Some(parsed) = HeaderWord::parse(word) else {
            let problem = format!(
                "unknown kind of profile {}: expected {EXPECTED_WORDS}",
                Quoted(word)
            );
            return Err(Error::malformed_line("heap dump", self.line, problem));
        };
        if parsed.lacks_interval() {
            self.profile.warnings.push(format!(
                "its header has no sampling interval: {DEFAULT_INTERVAL} bytes are assumed, as google-pprof does"
            ));
        }
        self.legacy = Some(LegacyDump {
            word: parsed,
            header: counts,
            is_unpadded: is_unpadded(text, counts),
            has_alloc: has_own_alloc_values(counts),
            negative_records: 0,
            negative_objects: 0,
            negative_bytes: 0,
        });
        self.section = DumpSection::Legacy;
        Ok(())
    }

    /// Reads a line after the header: a stack with its values, a comment, with which Go names the frames of the stack
    /// before it, or the header of the mappings, which ends the stacks. A stack with a negative value gets no sample,
    /// but its values are summed up for a warning. Skips an empty line.
    pub(super) fn read_legacy_line(&mut self, line: &[u8]) -> Result<()> {
        let text = line.trim_ascii();
        if let Some(comment) = text.strip_prefix(b"#") {
            return self.read_go_comment(comment);
        }
        self.finish_go_stack()?;
        if text.is_empty() || self.enter_mappings_at_header(text) {
            return Ok(());
        }
        let Some((counts, rest)) = parse_counts(text) else {
            return Err(self.unexpected_text_error("'objects: bytes [objects: bytes] @ 0x…'", line));
        };
        let Some(addresses) = rest.trim_ascii().strip_prefix(b"@") else {
            return Err(self.unexpected_text_error("'@'", rest));
        };
        self.read_stack(addresses.trim_ascii())?;
        if let Some(legacy) = &mut self.legacy {
            legacy.is_unpadded |= is_unpadded(line, counts);
            if counts.has_negative() {
                legacy.negative_records += 1;
                legacy.negative_objects = legacy.negative_objects.saturating_add(counts.objects);
                legacy.negative_bytes = legacy.negative_bytes.saturating_add(counts.bytes);
                return Ok(());
            }
            legacy.has_alloc |= has_own_alloc_values(counts);
        }
        self.push_sample(counts.values())
    }

    /// Sets the properties that only the whole dump shows: how it was sampled, and whether it has allocated values.
    /// `has_maps` says whether the dump has mappings: Go's text has none, unlike that of gperftools. Scales Go's
    /// samples. Clears allocated values that only repeat those in use. Warns of missing records, and of records with
    /// negative values, which were left out. Fails if sampling was off, or all records have negative values.
    pub(super) fn finish_legacy(&mut self, legacy: &LegacyDump, has_maps: bool) -> Result<()> {
        let is_go = self.has_go_comments || legacy.is_unpadded && !has_maps;
        if legacy.word.is_sampling_off() {
            return Err(self.sampling_off_error(is_go));
        }
        // A dump without mappings that does not add up is truncated.
        let warning = self.missing_records_warning(legacy).filter(|_| has_maps);
        self.profile.warnings.extend(warning);
        let profile = &mut self.profile;
        profile.sampling = legacy
            .word
            .sampling(is_go, !has_own_alloc_values(legacy.header));
        profile.interval = match profile.sampling {
            Sampling::None | Sampling::Shared => None,
            Sampling::Poisson(interval) | Sampling::Uniform(interval) => Some(interval),
        };
        if let Sampling::Poisson(rate) = profile.sampling
            && is_go
            && legacy.word.may_be_written_by_go()
        {
            super::go::scale_samples(profile, rate);
        }
        let mut header = legacy.header.values();
        // Go always counts what was allocated.
        profile.has_alloc = legacy.has_alloc || is_go && legacy.word.may_be_written_by_go();
        if !profile.has_alloc {
            // A sampling tcmalloc writes the values in use a second time.
            let samples = profile.samples.iter_mut().map(|sample| &mut sample.values);
            for values in samples.chain([&mut header]) {
                values[SampleType::AllocObjects] = 0;
                values[SampleType::AllocSpace] = 0;
            }
        }
        profile.header = Some(header);
        if legacy.negative_records > 0 {
            let note = format!(
                "records left out because of negative values: {}, of {} objects and {} bytes in all (gperftools writes \
                 them with HEAP_PROFILE_MMAP where memory was unmapped in more parts than mapped)",
                legacy.negative_records, legacy.negative_objects, legacy.negative_bytes
            );
            if profile.samples.is_empty() {
                return Err(Error::Empty { reason: note });
            }
            profile.warnings.push(note);
        }
        Ok(())
    }

    /// Error for a header whose interval is 0: the process did not sample, or no longer. If the dump has samples, the
    /// remedy is to write their interval into the header. Else it is to switch sampling on: in Go's runtime if `is_go`,
    /// else in tcmalloc.
    fn sampling_off_error(&self, is_go: bool) -> Error {
        let remedy = match is_go {
            true => "leave runtime.MemProfileRate above 0, its default is 524288",
            false => "set TCMALLOC_SAMPLE_PARAMETER=524288 in its environment",
        };
        match self.profile.samples.len() {
            0 => Error::Empty {
                reason: format!("sampling was off in that process: {remedy}"),
            },
            samples => Error::malformed_line(
                "heap dump",
                self.header_line,
                format!(
                    "the sampling interval is 0, for sampling was off when this was written, so the scale of its \
                     {samples} samples is unknown: write the interval at which they were taken in place of the 0"
                ),
            ),
        }
    }

    /// Returns a warning if the records have fewer objects or bytes in use than the header says. `None` if they have as
    /// many or more: with `HEAP_PROFILE_MMAP`, gperftools adds records of mapped memory, which its header leaves out.
    /// Also `None` if records with negative values were left out, which has a warning of its own, or if the word means
    /// a Poisson process, because the report compares its totals.
    fn missing_records_warning(&self, legacy: &LegacyDump) -> Option<String> {
        let is_compared_later = matches!(legacy.word, HeaderWord::Poisson(_));
        let ((objects, bytes), header) = (self.sums_of_records(), legacy.header);
        let is_less = objects < header.objects || bytes < header.bytes;
        (is_less && legacy.negative_records == 0 && !is_compared_later).then(|| {
            format!(
                "records are missing: they add up to {objects} objects and {bytes} bytes, of {} and {} in the header \
                 (gperftools' heap profiler writes 1 MiB of them at most)",
                header.objects, header.bytes
            )
        })
    }

    /// Returns the sums of the objects and of the bytes in use of all records.
    fn sums_of_records(&self) -> (i64, i64) {
        let mut sums = (0_i64, 0_i64);
        for sample in &self.profile.samples {
            sums.0 = sums
                .0
                .saturating_add(sample.values[SampleType::InuseObjects]);
            sums.1 = sums.1.saturating_add(sample.values[SampleType::InuseSpace]);
        }
        sums
    }

    /// Returns whether the values in use of all records add up to those in the header, exactly.
    pub(super) fn is_legacy_complete(&self, legacy: &LegacyDump) -> bool {
        self.sums_of_records() == (legacy.header.objects, legacy.header.bytes)
    }
}

/// Returns whether allocated values were counted: a writer that does not count them writes zeros, or repeats the values
/// in use.
fn has_own_alloc_values(counts: Counts) -> bool {
    let is_repeated = counts.objects == counts.accum_objects && counts.bytes == counts.accum_bytes;
    !is_repeated && (counts.accum_objects != 0 || counts.accum_bytes != 0)
}

/// Returns whether a line's first number lacks the padding of gperftools' `%6d`: it has fewer than six digits and at
/// most one blank before it, as after the `heap profile:` of a header.
fn is_unpadded(line: &[u8], counts: Counts) -> bool {
    let blanks = line.len() - line.trim_ascii_start().len();
    blanks <= 1 && counts.objects < 100_000
}

#[cfg(test)]
mod tests {
    use crate::heap::parse_dumps;
    use crate::limits::Limits;

    #[test]
    fn dump_whose_records_are_less_than_its_header_is_reported() {
        let check = |header: &str, word: &str, expected: &[&str]| {
            let text = format!(
                "heap profile: {header} [2: 96] @ {word}\n     1:       64 [     1:       64] @ 0x1\n     \
                 1:       32 [     1:       32] @ 0x2\n\nMAPPED_LIBRARIES:\n"
            );
            let dumps = parse_dumps(&mut text.as_bytes(), &Limits::default(), false).unwrap();
            assert_eq!(dumps[0].warnings, expected, "{text}");
        };
        for word in ["heapprofile", "heap/1024"] {
            check("     2:       96", word, &[]);
            check(
                "     9:      960",
                word,
                &[
                    "records are missing: they add up to 2 objects and 96 bytes, of 9 and 960 in the header \
                     (gperftools' heap profiler writes 1 MiB of them at most)",
                ],
            );
            // As with HEAP_PROFILE_MMAP.
            check("     1:       64", word, &[]);
        }
    }
}
