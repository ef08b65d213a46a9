//! Reads jemalloc's `heap_v2`:
//!
//! ```text
//! heap_v2/512
//!   t*: 20919: 880344 [0: 0]
//!   t0: 20919: 880344 [0: 0]
//! @ 0x7f9538aa2630 0x7f9538aa2d21
//!   t*: 9: 412 [0: 0]
//!   t0: 9: 412 [0: 0]
//!
//! MAPPED_LIBRARIES:
//! ```
//!
//! `t*` counts all threads; the lines of single threads are checked against it and not stored.

use super::numbers::{parse_counts, parse_decimal};
use super::{DumpReader, DumpSection};
use crate::error::Result;
use crate::profile::{SampleValues, Sampling};

/// Kind of line that may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// The `t*` line of the whole profile.
    Totals,
    /// The `t*` line of a stack.
    StackTotals,
    /// A `tN` line, a stack, or the end of the stacks.
    Any,
    /// `MAPPED_LIBRARIES`, after a blank line.
    Maps,
}

/// Values of single threads after a `t*` line.
#[derive(Debug, Default)]
pub(super) struct ThreadTotals {
    /// Text of the values in the `t*` line.
    all: Vec<u8>,
    count: usize,
    /// Whether the last thread has the values of `t*`.
    is_equal: bool,
}

impl ThreadTotals {
    /// Starts a new set of threads, after a `t*` line with the values `all`.
    fn reset(&mut self, all: &[u8]) {
        self.all.clear();
        self.all.extend_from_slice(all);
        self.count = 0;
    }

    /// Counts a thread, and compares its values with those of the `t*` line.
    fn add(&mut self, values: &[u8]) {
        self.count += 1;
        self.is_equal = values == self.all;
    }

    /// Returns whether the only thread has other values than `t*`. Several threads are rounded separately, so their
    /// sum is not exact.
    fn contradicts_total(&self) -> bool {
        self.count == 1 && !self.is_equal
    }
}

impl DumpReader<'_> {
    /// Reads the sample interval from the first line after `heap_v2/`. Fails unless it is a number of at least 1.
    pub(super) fn read_v2_header(&mut self, interval: &[u8]) -> Result<()> {
        let sampling = match parse_decimal(interval) {
            Some((interval @ 1.., rest)) if rest.trim_ascii().is_empty() => interval as u64,
            _ => {
                return Err(self.unexpected_error("a sample interval of at least 1 byte", interval));
            }
        };
        self.profile.sampling = Sampling::Poisson(sampling);
        self.profile.interval = Some(sampling);
        self.section = DumpSection::V2(Expected::Totals);
        Ok(())
    }

    /// Reads a line before the mappings: the totals, a stack, its values, one of its threads, or the blank line after
    /// the stacks. The mappings' header, too, ends the stacks. Fails if the line is not what `expected` says.
    pub(super) fn read_v2_line(&mut self, expected: Expected, line: &[u8]) -> Result<()> {
        match (expected, line.first()) {
            (Expected::Totals | Expected::StackTotals, _) => {
                let Some(text) = line.trim_ascii_start().strip_prefix(b"t*:") else {
                    return Err(self.unexpected_error("'t*:'", line));
                };
                let values = self.read_v2_values(text, line)?;
                self.threads.reset(text.trim_ascii());
                if expected == Expected::Totals {
                    self.profile.header = Some(values);
                } else {
                    self.push_sample(values)?;
                }
                self.section = DumpSection::V2(Expected::Any);
                Ok(())
            }
            (Expected::Any, Some(b'@')) => {
                self.record_thread_contradiction();
                self.read_v2_stack(line)
            }
            (Expected::Any, Some(b' ')) => self.read_v2_thread(line),
            (Expected::Any, None) => {
                self.record_thread_contradiction();
                self.section = DumpSection::V2(Expected::Maps);
                Ok(())
            }
            (Expected::Maps, None) => Ok(()),
            _ if self.enter_if_mappings(line) => Ok(()),
            (Expected::Maps, _) => Err(self.unexpected_error("'MAPPED_LIBRARIES:'", line)),
            (Expected::Any, _) => Err(self.unexpected_error("'@'", line)),
        }
    }

    /// Reads the addresses of a stack. The next line must have its values.
    fn read_v2_stack(&mut self, line: &[u8]) -> Result<()> {
        self.read_stack(line[1..].trim_ascii())?;
        self.section = DumpSection::V2(Expected::StackTotals);
        Ok(())
    }

    /// Adds the values of a thread, `tN: objects: bytes [objects: bytes] NAME`, to the check of the totals. The name
    /// may be missing and is ignored. Fails if the line has another form.
    fn read_v2_thread(&mut self, line: &[u8]) -> Result<()> {
        let text = line.trim_ascii_start();
        let end = match text {
            [b't', b'0'..=b'9', .., b']'] => Some(text.len()),
            [b't', b'0'..=b'9', ..] => memchr::memmem::find(text, b"] ").map(|index| index + 1),
            _ => None,
        };
        let Some(end) = end else {
            return Err(self.unexpected_error("'tN: objects: bytes [objects: bytes]' or '@'", line));
        };
        let values = memchr::memchr(b':', &text[..end]).map(|index| &text[index + 1..end]);
        self.threads.add(values.unwrap_or_default().trim_ascii());
        Ok(())
    }

    /// Records the line of the first contradiction between `t*` and its only thread.
    fn record_thread_contradiction(&mut self) {
        if self.threads.contradicts_total() && self.contradictory_line.is_none() {
            self.contradictory_line = Some(self.line);
        }
    }

    /// Parses `text`, the values after `t*:`, and records whether any value is accumulated. An error quotes `line`.
    fn read_v2_values(&mut self, text: &[u8], line: &[u8]) -> Result<SampleValues> {
        match parse_counts(text) {
            Some((counts, rest)) if rest.trim_ascii().is_empty() && !counts.has_negative() => {
                self.profile.has_alloc |= counts.accum_objects > 0;
                Ok(counts.values())
            }
            _ => Err(self.unexpected_error("'objects: bytes [objects: bytes]'", line)),
        }
    }
}
