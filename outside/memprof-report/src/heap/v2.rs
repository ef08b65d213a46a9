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
    /// Forgets the threads of the stack before, and stores `all`, the text of the values in the next `t*` line.
    fn start_next_stack(&mut self, all: &[u8]) {
        self.all.clear();
        self.all.extend_from_slice(all);
        self.count = 0;
    }

    /// Counts a thread, and compares the text of its values with that of the `t*` line.
    fn add_thread(&mut self, values: &[u8]) {
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
    /// Reads the header: `interval` is the rest of the line after `heap_v2/`, the mean number of bytes between samples.
    /// The next line must have the totals. Fails unless the interval is a number of at least 1.
    pub(super) fn read_v2_header(&mut self, interval: &[u8]) -> Result<()> {
        let sampling = match parse_decimal(interval) {
            Some((interval @ 1.., rest)) if rest.trim_ascii().is_empty() => interval as u64,
            _ => {
                return Err(
                    self.unexpected_text_error("a sample interval of at least 1 byte", interval)
                );
            }
        };
        self.profile.sampling = Sampling::Poisson(sampling);
        self.profile.interval = Some(sampling);
        self.section = DumpSection::V2(Expected::Totals);
        Ok(())
    }

    /// Reads a line before the mappings: the totals, a stack, its values, the values of one thread, or the blank line
    /// after the stacks. The mappings' header, too, ends the stacks. Sets the kind of line that may come next. Fails if
    /// the line is not of the kind `expected`.
    pub(super) fn read_v2_line(&mut self, expected: Expected, line: &[u8]) -> Result<()> {
        if line.first() != Some(&b' ') {
            self.record_thread_contradiction(self.line);
        }
        match (expected, line.first()) {
            (Expected::Totals | Expected::StackTotals, _) => {
                let Some(text) = line.trim_ascii_start().strip_prefix(b"t*:") else {
                    return Err(self.unexpected_text_error("'t*:'", line));
                };
                let values = self.read_v2_values(text, line)?;
                self.threads.start_next_stack(text.trim_ascii());
                if expected == Expected::Totals {
                    self.profile.header = Some(values);
                } else {
                    self.push_sample(values)?;
                }
                self.section = DumpSection::V2(Expected::Any);
                Ok(())
            }
            (Expected::Any, Some(b'@')) => self.read_v2_stack(line),
            (Expected::Any, Some(b' ')) => self.read_v2_thread(line),
            (Expected::Any, None) => {
                self.section = DumpSection::V2(Expected::Maps);
                Ok(())
            }
            (Expected::Maps, None) => Ok(()),
            _ if self.enter_mappings_at_header(line) => Ok(()),
            (Expected::Maps, _) => Err(self.unexpected_text_error("'MAPPED_LIBRARIES:'", line)),
            (Expected::Any, _) => Err(self.unexpected_text_error("'@'", line)),
        }
    }

    /// Reads a line `@ 0x… 0x…` with the addresses of a stack. The next line must have the stack's values.
    fn read_v2_stack(&mut self, line: &[u8]) -> Result<()> {
        self.read_stack(line[1..].trim_ascii())?;
        self.section = DumpSection::V2(Expected::StackTotals);
        Ok(())
    }

    /// Adds the values of a thread, `tN: objects: bytes [objects: bytes] NAME`, to the check of the totals. The name
    /// may be missing and is ignored. Fails if the line has another form.
    fn read_v2_thread(&mut self, line: &[u8]) -> Result<()> {
        let text = line.trim_ascii_start();
        let is_thread = matches!(text, [b't', b'0'..=b'9', ..]);
        // The values end at the first `]`; the name may have others.
        let end = memchr::memchr(b']', text).map(|index| index + 1);
        let end = end.filter(|end| is_thread && matches!(text.get(*end), None | Some(b' ')));
        let Some(end) = end else {
            return Err(
                self.unexpected_text_error("'tN: objects: bytes [objects: bytes]' or '@'", line)
            );
        };
        let values = memchr::memchr(b':', &text[..end]).map(|index| &text[index + 1..end]);
        self.threads
            .add_thread(values.unwrap_or_default().trim_ascii());
        Ok(())
    }

    /// Records where a `t*` line first differs from the line of its only thread, if the lines of the threads read last
    /// do. `next_line` is the number of the line after them.
    pub(super) fn record_thread_contradiction(&mut self, next_line: u64) {
        if self.threads.contradicts_total() {
            self.contradictory_line.get_or_insert(next_line);
        }
    }

    /// Parses `text`, the values after `t*:`, and records whether the dump has accumulated values, which count freed
    /// objects, too. Fails if the text has another form, or a value is negative; the error quotes `line`.
    fn read_v2_values(&mut self, text: &[u8], line: &[u8]) -> Result<SampleValues> {
        match parse_counts(text) {
            Some((counts, rest)) if rest.trim_ascii().is_empty() && !counts.has_negative() => {
                self.profile.has_alloc |= counts.accum_objects > 0;
                Ok(counts.values())
            }
            _ => Err(self.unexpected_text_error("'objects: bytes [objects: bytes]'", line)),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::heap::parse_dumps;
    use crate::limits::Limits;

    #[test]
    fn contradiction_of_only_thread_is_noted_however_its_stack_ends() {
        let check = |thread: &str, rest: &str, is_noted: bool| {
            let text = format!(
                "heap_v2/1\n  t*: 1: 64 [0: 0]\n@ 0x1\n  t*: 1: 64 [0: 0]\n  t0: 1: {thread} [0: 0]\n{rest}"
            );
            let dumps = parse_dumps(&mut text.as_bytes(), &Limits::default(), false).unwrap();
            let note =
                "the values before line 6 are not those of their only thread: the dump is damaged";
            let warnings = &dumps[0].warnings;
            let found = warnings.iter().any(|warning| warning == note);
            assert_eq!(found, is_noted, "{rest:?}: {warnings:?}");
        };
        let maps = "MAPPED_LIBRARIES:\n1000-2000 r-xp 0 00:00 0 /x\n";
        let blank = format!("\n{maps}");
        let stack = format!("@ 0x2\n  t*: 0: 0 [0: 0]\n\n{maps}");
        for rest in [maps, &blank, &stack, "", "\n"] {
            check("64", rest, false);
            check("63", rest, true);
        }
    }
    #[test]
    fn thread_may_have_any_name() {
        for name in [
            "",
            " main",
            " worker[3]",
            " [main]",
            " a] b",
            " a] b]",
            " ]",
        ] {
            let values = "1: 8 [0: 0]";
            let text = format!(
                "heap_v2/1\n  t*: {values}\n  t0: {values}{name}\n@ 0x1\n  t*: {values}\n  t0: {values}\n\n\
                 MAPPED_LIBRARIES:\n"
            );
            let dumps = parse_dumps(&mut text.as_bytes(), &Limits::default(), false).unwrap();
            assert_eq!(dumps[0].warnings, Vec::<String>::new(), "{name}");
        }
    }
}
