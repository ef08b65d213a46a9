//! Checks jemalloc's heap_v2 text for completeness, and summarizes it in one pass without storing it. For full parsing
//! of profiles, see `memprof-report`.

use std::io::{self, BufRead};
use std::time::{Duration, SystemTime};

use memprof_messages::{EarlyEnds, UnseenFrees};

/// Header, size and totals of a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProfileSummary {
    /// Mean bytes between samples; 0 if the profile is not sampled.
    pub sample_interval: u64,
    /// Number of stacks (`@` lines).
    pub stacks: u64,
    /// Live bytes, corrected for sampling stack by stack, as in jeprof and `memprof report`. An estimate from the
    /// header's totals would differ, because it would average objects of all sizes.
    pub estimated_inuse_bytes: u64,
    /// Length of the stacks in bytes: up to the blank line before `MAPPED_LIBRARIES:`. It is the length of the whole
    /// text if jemalloc failed to read its mappings, which it does not report.
    pub profile_len: u64,
    /// False if jemalloc could not read its mappings, or if the text ends early after a complete line.
    pub has_mappings: bool,
    /// Counts of memprof's sampler. `None` if the allocator's sampler took the samples.
    pub own_sampler: Option<SamplerSummary>,
    /// Longest time for which the allocator may have held locks that its samples need. `None` if memprof's sampler took
    /// the samples: writing them locks nothing.
    pub stall: Option<Duration>,
}

/// The samples of memprof's sampler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SamplerSummary {
    /// Number of samples, including those freed since.
    pub samples: u64,
    /// Samples that were not recorded because a table was full.
    pub lost: u64,
    /// Frees that no hook saw.
    pub unseen_frees: UnseenFrees,
    /// Bytes in use whose allocation no hook saw.
    pub unseen_allocation_bytes: u64,
    /// Samples whose stacks lack their outermost frames, largest counts first.
    pub early_ends: Vec<EarlyEnds>,
    /// Time when sampling started: all samples are newer.
    pub since: SystemTime,
    /// Exact totals of all allocations. `None` if they are not counted.
    pub tally: Option<Tally>,
}

/// Exact totals of a process's allocations; every allocation is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    pub objects: u64,
    /// Bytes as requested by the callers.
    pub bytes: u64,
    /// Maximum number of bytes allocated at one time, as the allocator rounds them.
    pub peak: u64,
}

/// Estimates the allocated bytes from a sample of `objects` with `bytes` in total, at one sample per `sample_interval`
/// bytes. Returns `bytes` if one of the three is 0. The result is exactly that of `memprof-report`, because both use
/// the same `expm1`; C libraries differ in theirs.
pub(crate) fn estimate_unsampled_bytes(objects: u64, bytes: u64, sample_interval: u64) -> u64 {
    if objects == 0 || bytes == 0 || sample_interval == 0 {
        return bytes;
    }
    let mean_size = bytes as f64 / objects as f64;
    let scale = -1.0 / libm::expm1(-mean_size / sample_interval as f64);
    (bytes as f64 * scale).round() as u64
}

/// Checks a heap profile of jemalloc line by line up to its mappings, and counts its stacks and bytes.
///
/// # Errors
/// `InvalidData`: a line is malformed; the message quotes the first such line. Otherwise the reader's error.
pub(crate) fn summarize_heap_v2(mut text: impl BufRead) -> io::Result<ProfileSummary> {
    let mut line = Vec::new();
    let mut number = 0;
    let mut summary = ProfileSummary::default();
    let mut next = |line: &mut Vec<u8>| -> io::Result<usize> {
        line.clear();
        number += 1;
        let read = text.read_until(b'\n', line)?;
        if read > 0 && line.last() != Some(&b'\n') {
            return Err(damaged_profile_error(number, "a whole line", line));
        }
        Ok(read)
    };

    summary.profile_len += next(&mut line)? as u64;
    summary.sample_interval = parse_interval(&line)
        .ok_or_else(|| damaged_profile_error(1, "heap_v2/<sample interval>", &line))?;
    summary.profile_len += next(&mut line)? as u64;
    parse_totals(&line).ok_or_else(|| damaged_profile_error(2, "t*: <objects>: <bytes>", &line))?;

    let mut stack_open = false;
    // Length of a blank line that may precede the mappings.
    let mut blank = 0;
    loop {
        let read = next(&mut line)?;
        if stack_open {
            let (objects, bytes) = parse_totals(&line)
                .ok_or_else(|| damaged_profile_error(0, "the counts of a stack", &line))?;
            let estimate = estimate_unsampled_bytes(objects, bytes, summary.sample_interval);
            summary.estimated_inuse_bytes = summary.estimated_inuse_bytes.saturating_add(estimate);
        }
        match line.first() {
            None => break,
            Some(b'@') => summary.stacks += 1,
            Some(b'M') if line == b"MAPPED_LIBRARIES:\n" => {
                summary.profile_len -= blank;
                summary.has_mappings = true;
                break;
            }
            Some(b' ' | b'\n') => {}
            Some(_) => return Err(damaged_profile_error(0, "'@' or MAPPED_LIBRARIES:", &line)),
        }
        stack_open = line[0] == b'@';
        blank = if line == b"\n" { 1 } else { 0 };
        summary.profile_len += read as u64;
    }
    Ok(summary)
}

/// `InvalidData` error with the expected form and up to 60 bytes of the found `line`. A `number` of 0 leaves the line
/// number out of the message.
fn damaged_profile_error(number: u64, expected: &str, line: &[u8]) -> io::Error {
    let position = if number == 0 {
        String::new()
    } else {
        format!("line {number} of ")
    };
    let found = String::from_utf8_lossy(&line[..line.len().min(60)]).into_owned();
    let message = format!(
        "{position}jemalloc's heap profile is damaged: expected {expected}, found {found:?}"
    );
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Parses the sample interval, in bytes, from the first line of a profile. `None` if the line is malformed.
fn parse_interval(line: &[u8]) -> Option<u64> {
    line_text(line)?
        .strip_prefix("heap_v2/")?
        .trim_end()
        .parse()
        .ok()
}

/// Parses live objects and bytes of a `t*:` line. `None` if the line is malformed.
fn parse_totals(line: &[u8]) -> Option<(u64, u64)> {
    let (objects, rest) = line_text(line)?
        .trim()
        .strip_prefix("t*: ")?
        .split_once(": ")?;
    let bytes = rest.split(' ').next()?;
    Some((objects.parse().ok()?, bytes.parse().ok()?))
}

/// The line as text. `None` if it is not UTF-8.
fn line_text(line: &[u8]) -> Option<&str> {
    std::str::from_utf8(line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "heap_v2/524288\n  t*: 3: 3000000 [0: 0]\n  t0: 3: 3000000 [0: 0]\n\
                           @ 0x1 0x2\n  t*: 1: 1000000 [0: 0]\n  t0: 1: 1000000 [0: 0]\n\
                           @ 0x3\n  t*: 2: 2000000 [0: 0]\n";
    const MAPS: &str = "\nMAPPED_LIBRARIES:\n55-56 r-xp 00000000 00:00 0 /bin/x\n";

    #[test]
    fn complete_profiles_are_summarized() {
        let expected = ProfileSummary {
            sample_interval: 524_288,
            stacks: 2,
            estimated_inuse_bytes: 3_523_085,
            profile_len: PROFILE.len() as u64,
            has_mappings: true,
            own_sampler: None,
            stall: None,
        };
        let check = |text: &str, has_mappings| {
            let expected = ProfileSummary {
                has_mappings,
                ..expected.clone()
            };
            assert_eq!(
                summarize_heap_v2(text.as_bytes()).unwrap(),
                expected,
                "{text}"
            );
        };
        check(PROFILE, false);
        check(&format!("{PROFILE}{MAPS}"), true);
        check(&format!("{PROFILE}\nMAPPED_LIBRARIES:\n"), true);
    }

    /// One average over the small objects and the large one would give 1.6 MB.
    #[test]
    fn estimate_is_the_sum_over_the_stacks() {
        let text = "heap_v2/524288\n  t*: 2: 1048592 [0: 0]\n@ 0x1\n  t*: 1: 16 [0: 0]\n\
                    @ 0x2\n  t*: 1: 1048576 [0: 0]\n\nMAPPED_LIBRARIES:\n";
        let summary = summarize_heap_v2(text.as_bytes()).unwrap();
        assert_eq!(summary.estimated_inuse_bytes, 524_296 + 1_212_697);
    }

    #[test]
    fn empty_profile_is_complete() {
        let text = "heap_v2/512\n  t*: 0: 0 [0: 0]\n\nMAPPED_LIBRARIES:\n";
        let summary = summarize_heap_v2(text.as_bytes()).unwrap();
        assert_eq!((summary.stacks, summary.profile_len), (0, 30));
    }

    #[test]
    fn cut_anywhere_inside_a_line_is_an_error() {
        for length in 0..PROFILE.len() {
            let cut = &PROFILE[..length];
            let at_line_end = cut.ends_with('\n') && length > "heap_v2/524288\n".len();
            let inside_stack = cut.rfind('@') > cut.rfind("t*");
            let whole = summarize_heap_v2(cut.as_bytes()).is_ok();
            assert_eq!(whole, at_line_end && !inside_stack, "{cut:?}");
        }
    }

    #[test]
    fn foreign_text_is_quoted() {
        let check = |text: &str, expected: &str| {
            let error = summarize_heap_v2(text.as_bytes()).unwrap_err().to_string();
            assert!(error.ends_with(expected), "{error}");
        };
        check("", "expected heap_v2/<sample interval>, found \"\"");
        check(
            "heap_v2/x\n",
            "expected heap_v2/<sample interval>, found \"heap_v2/x\\n\"",
        );
        check(
            "heap_v2/1\n@ 0x1\n",
            "expected t*: <objects>: <bytes>, found \"@ 0x1\\n\"",
        );
        check(
            "heap_v2/1\n  t*: 1: 1 [0: 0]\njunk\n",
            "expected '@' or MAPPED_LIBRARIES:, found \"junk\\n\"",
        );
    }

    #[test]
    fn estimate_corrects_for_sampling() {
        let check = |objects, bytes, interval, expected| {
            assert_eq!(estimate_unsampled_bytes(objects, bytes, interval), expected);
        };
        check(0, 0, 524_288, 0);
        // 1 - exp(-1) of the objects of this size are sampled.
        check(10, 5_242_880, 524_288, 8_294_114);
        check(1, 1 << 30, 512, 1 << 30);
    }
}
