//! Checks tcmalloc's legacy text for completeness, and summarizes its header. For full parsing, see `memprof-report`.
//!
//! ```text
//! heap profile:      2:     1000 [     2:     1000] @ heap_v2/524288
//!      1:      500 [     1:      500] @ 0x4005d0 0x4004f1
//! ```
//!
//! The header of a growth profile ends with `@ growth`, because growth is not sampled.

use std::io;

use crate::dumps::heap::{ProfileSummary, estimate_unsampled_bytes};

const HEAP_V2: &str = "heap_v2/";
const GROWTH: &str = "growth";
const MAPPED_LIBRARIES: &str = "MAPPED_LIBRARIES:";

/// Checks every line of a profile in tcmalloc's format up to its mappings, and compares the header with the sum of the
/// stacks. Counts the stacks and bytes. `interval` replaces a sample interval of 0 in the header, which tcmalloc writes
/// while sampling is off.
///
/// # Errors
/// `InvalidData`: a line is malformed, or the sums differ; the message quotes the first such line, or both sums.
pub(crate) fn summarize_legacy_profile(text: &[u8], interval: u64) -> io::Result<ProfileSummary> {
    let mut lines = text.split_inclusive(|byte| *byte == b'\n');
    let header = lines.next().unwrap_or_default();
    let (total, written) = parse_header(header).ok_or_else(|| {
        damaged_profile_error("heap profile: … @ heap_v2/<sample interval>", header)
    })?;
    let interval = match written {
        Some(0) => interval,
        Some(written) => written,
        None => 0,
    };
    let mut summary = ProfileSummary {
        sample_interval: interval,
        profile_len: header.len() as u64,
        ..ProfileSummary::default()
    };
    let mut sum = LegacyCounts::default();
    for line in lines {
        if line == b"\n" || line.starts_with(MAPPED_LIBRARIES.as_bytes()) {
            summary.has_mappings = true;
            break;
        }
        let counts = parse_stack_counts(line)
            .ok_or_else(|| damaged_profile_error("objects: bytes [objects: bytes] @ 0x…", line))?;
        sum.objects = sum.objects.saturating_add(counts.objects);
        sum.bytes = sum.bytes.saturating_add(counts.bytes);
        let estimate = estimate_unsampled_bytes(counts.objects, counts.bytes, interval);
        summary.estimated_inuse_bytes = summary.estimated_inuse_bytes.saturating_add(estimate);
        summary.stacks += 1;
        summary.profile_len += line.len() as u64;
    }
    // The sums differ if the profile was cut off after a complete line.
    if sum != total {
        let expected = format!("{} objects of {} bytes", total.objects, total.bytes);
        let found = format!("{} objects of {} bytes", sum.objects, sum.bytes);
        return Err(damaged_profile_error(&expected, found.as_bytes()));
    }
    Ok(summary)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LegacyCounts {
    objects: u64,
    bytes: u64,
}

/// `InvalidData` error with the expected form and up to 60 bytes of the `found` text.
fn damaged_profile_error(expected: &str, found: &[u8]) -> io::Error {
    let found = String::from_utf8_lossy(&found[..found.len().min(60)]).into_owned();
    let message = format!("its profile is damaged: expected {expected}, found {found:?}");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Parses the first line. Returns the totals and the sample interval, which a growth profile lacks. `None` if the line
/// is malformed.
fn parse_header(line: &[u8]) -> Option<(LegacyCounts, Option<u64>)> {
    let (counts, kind) = parse_counts(line_text(line)?.strip_prefix("heap profile:")?)?;
    if kind == GROWTH {
        return Some((counts, None));
    }
    Some((counts, Some(kind.strip_prefix(HEAP_V2)?.parse().ok()?)))
}

/// Parses the counts of one stack. `None` if the line is malformed: it lacks its newline, a count is not a number, or a
/// frame does not begin with `0x`.
fn parse_stack_counts(line: &[u8]) -> Option<LegacyCounts> {
    let (counts, stack) = parse_counts(line_text(line)?)?;
    let mut frames = stack.split_ascii_whitespace();
    frames
        .all(|frame| frame.starts_with("0x"))
        .then_some(counts)
}

/// Parses `objects: bytes [objects: bytes] @`. Returns the live counts, and the text after the `@`. `None` if the text
/// has another form.
fn parse_counts(text: &str) -> Option<(LegacyCounts, &str)> {
    let (counts, rest) = text.split_once('@')?;
    let (live, _allocated) = counts.split_once('[')?;
    let (objects, bytes) = live.split_once(':')?;
    let counts = LegacyCounts {
        objects: objects.trim().parse().ok()?,
        bytes: bytes.trim().parse().ok()?,
    };
    Some((counts, rest.trim()))
}

/// Returns the text of a complete line, without its newline. `None` if the line has no newline or is not UTF-8.
fn line_text(line: &[u8]) -> Option<&str> {
    std::str::from_utf8(line.strip_suffix(b"\n")?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAP: &str = "heap profile:      3:     1600 [     3:     1600] @ heap_v2/524288\n\
                        \x20    1:      500 [     1:      500] @ 0x7f12 0x5576\n\
                        \x20    2:     1100 [     2:     1100] @ 0x7f12\n";
    const GROWTH: &str = "heap profile:      1:  1048576 [     1:  1048576] @ growth\n\
                          \x20    1:  1048576 [     1:  1048576] @ 0x7f12 0x5576\n";

    #[test]
    fn complete_profiles_are_summarized() {
        let check = |text: &str, interval, stacks, estimated_inuse_bytes| {
            for (tail, has_mappings) in [("", false), ("\nMAPPED_LIBRARIES:\n55-56\n", true)] {
                let expected = ProfileSummary {
                    sample_interval: interval,
                    stacks,
                    estimated_inuse_bytes,
                    profile_len: text.len() as u64,
                    has_mappings,
                    own_sampler: None,
                    stall: None,
                };
                let whole = format!("{text}{tail}");
                assert_eq!(
                    summarize_legacy_profile(whole.as_bytes(), 4096).unwrap(),
                    expected,
                    "{whole}"
                );
            }
        };
        // A sample of objects that are small against the interval stands for one interval.
        check(HEAP, 524_288, 2, 524_538 + 1_049_126);
        check(GROWTH, 0, 1, 1 << 20);
        let empty = "heap profile:      0:        0 [     0:        0] @ heap_v2/0\n";
        check(empty, 4096, 0, 0);
        let off = HEAP.replace("524288", "0");
        check(&off, 4096, 2, 4_351 + 8_754);
    }

    #[test]
    fn cut_anywhere_is_an_error() {
        for length in 0..HEAP.len() {
            let cut = &HEAP[..length];
            assert!(
                summarize_legacy_profile(cut.as_bytes(), 4096).is_err(),
                "{cut:?}"
            );
        }
    }

    #[test]
    fn foreign_text_is_quoted() {
        let check = |text: &str, expected: &str| {
            let error = summarize_legacy_profile(text.as_bytes(), 4096)
                .unwrap_err()
                .to_string();
            assert!(error.ends_with(expected), "{error}");
        };
        check("", "@ heap_v2/<sample interval>, found \"\"");
        check("This malloc\n", "found \"This malloc\\n\"");
        let header = "heap profile: 1: 2 [1: 2] @ heap_v2/9\n";
        check(
            header,
            "expected 1 objects of 2 bytes, found \"0 objects of 0 bytes\"",
        );
        let junk = format!("{header}1: 2 [1: 2] @ 7\n");
        check(
            &junk,
            "expected objects: bytes [objects: bytes] @ 0x…, found \"1: 2 [1: 2] @ 7\\n\"",
        );
        check(
            "heap profile: 1: 2 [1: 2] @ heap_v2/x\n",
            "@ heap_v2/x\\n\"",
        );
    }
}
