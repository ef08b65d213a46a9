//! Writes the sampler's profile as text, in tcmalloc's legacy format, which jeprof, google-pprof, `go tool pprof` and
//! memprof read.
//!
//! ```text
//! heap profile:      2:     1000 [     5:     2000] @ heap_v2/524288
//!      1:      500 [     1:      500] @ 0x4005d0 0x4004f1
//! ```
//!
//! A stack has one line per size class, because readers scale a line by its mean size.
//!
//! Python's objects have their types as leaf frames: a stack has one line per type, too, and one for the rest.
//!
//! With a tally, the live values are those at the peak of live bytes.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use memprof_sampler::{StackRecord, StackRecordId};

use super::object_types::{ObjectTypes, TypedObjects};
use super::pinned::{PinnedProfile, PinnedShare};
use super::python_objects::{ObjectMark, object_mark};
use super::unseen_calls::SampledBytes;
use crate::dumps::heap::{ProfileSummary, estimate_unsampled_bytes};
use crate::unwinder::ChangedCode;

/// Characters per number in the header. Fixed, so that the header can be rewritten when the totals are known.
const NUMBER_WIDTH: usize = 20;

/// Writes a heap profile of all samples, live and freed, to `file`. Writes the header twice, because its totals are
/// known only at the end. `interval` is the sample interval in bytes. Also returns the bytes in use that the samples
/// represent, without Python's small objects.
pub(super) fn write_heap_profile(
    interval: u64,
    file: &File,
) -> io::Result<(ProfileSummary, SampledBytes)> {
    let mark = object_mark();
    let mut lines = ProfileWriter {
        text: BufWriter::new(file),
        changed_code: ChangedCode::from_history(),
        summary: ProfileSummary {
            sample_interval: interval,
            ..ProfileSummary::default()
        },
        totals: [0; 4],
        sampled: SampledBytes::default(),
        is_tallied: memprof_sampler::tally().is_some(),
        mark,
        types: mark.map(ObjectTypes::read_live_types).unwrap_or_default(),
        outcome: Ok(()),
    };
    lines.write_header()?;
    // SAFETY: `DumpSlot::acquire` keeps samples from being cleared during a dump.
    #[expect(unsafe_code, reason = "the sampler's tables")]
    unsafe {
        memprof_sampler::for_each_record(|record| lines.add_record(&record));
    }
    lines.outcome?;
    let end = lines.text.stream_position()?;
    lines.summary.profile_len = end;
    lines.text.seek(SeekFrom::Start(0))?;
    // The `?` above moved the outcome out of `lines`.
    lines.outcome = Ok(());
    lines.write_header()?;
    lines.text.flush()?;
    Ok((lines.summary, lines.sampled))
}

/// Returns the bytes in use that the samples represent now, without Python's small objects. `interval` is the sample
/// interval in bytes. The estimate is the one that a heap profile would contain.
pub(super) fn sum_sampled_bytes(interval: u64) -> SampledBytes {
    let mut sampled = SampledBytes::default();
    let mark = object_mark();
    // SAFETY: `DumpSlot::acquire` keeps samples from being cleared during a dump.
    #[expect(unsafe_code, reason = "the sampler's tables")]
    unsafe {
        memprof_sampler::for_each_record(|record| {
            if !is_python_object_stack(record.frames, mark) {
                sampled.add_objects(record.objects, record.bytes, interval);
            }
        });
    }
    sampled
}

/// Whether a stack is that of Python's small objects, which the allocator's total does not contain: its leaf frame is
/// that of `mark`. False without `mark`, because none were sampled then.
fn is_python_object_stack(frames: &[u64], mark: Option<ObjectMark>) -> bool {
    mark.is_some_and(|mark| frames.first() == Some(&mark.leaf))
}

struct ProfileWriter<W: Write> {
    text: BufWriter<W>,
    changed_code: ChangedCode,
    summary: ProfileSummary,
    /// Live objects, live bytes, all objects, all bytes.
    totals: [u64; 4],
    sampled: SampledBytes,
    is_tallied: bool,
    mark: Option<ObjectMark>,
    types: ObjectTypes,
    outcome: io::Result<()>,
}

impl<W: Write> ProfileWriter<W> {
    /// Writes the header line with the totals so far, as numbers of a fixed width.
    fn write_header(&mut self) -> io::Result<()> {
        let [objects, bytes, total_objects, total_bytes] = self.totals;
        writeln!(
            self.text,
            "heap profile: {objects:NUMBER_WIDTH$}: {bytes:NUMBER_WIDTH$} [{total_objects:NUMBER_WIDTH$}: \
             {total_bytes:NUMBER_WIDTH$}] @ heap_v2/{}",
            self.summary.sample_interval
        )
    }

    /// Writes a record unless an earlier one failed. Stores an error in `outcome`.
    fn add_record(&mut self, record: &StackRecord<'_>) {
        if self.outcome.is_ok() {
            self.outcome = self.write_record(record);
        }
    }

    /// Writes the lines of a record, one for each type of Python's objects or else a single one. Adds the record to the
    /// totals. With a tally (exact counts of all allocations), the live values are those at the peak, and there is a
    /// single line. Skips a record without samples.
    fn write_record(&mut self, record: &StackRecord<'_>) -> io::Result<()> {
        let [objects, bytes] = match self.is_tallied {
            true => record.at_peak,
            false => [record.objects, record.bytes],
        };
        let counts = [objects, bytes, record.total_objects, record.total_bytes];
        // Counters change concurrently: a new record may have no samples yet.
        if record.total_objects == 0 {
            return Ok(());
        }
        for (total, count) in self.totals.iter_mut().zip(counts) {
            *total += count;
        }
        let frames = self.changed_code.frames_to_write(record.frames);
        let is_object = is_python_object_stack(frames, self.mark);
        match is_object && !self.is_tallied {
            true => {
                let lines =
                    split_counts_by_type(counts, self.types.objects_by_leaf_frame(record.id));
                for (leaf, counts) in lines {
                    let mut frames = frames.to_vec();
                    frames[0] = leaf.unwrap_or(frames[0]);
                    write_and_count_stack(&mut self.text, &mut self.summary, counts, &frames)?;
                }
            }
            false => write_and_count_stack(&mut self.text, &mut self.summary, counts, frames)?,
        }
        if !is_object {
            self.sampled
                .add_objects(objects, bytes, self.summary.sample_interval);
        }
        Ok(())
    }
}

/// Writes the line of a stack, and adds it to the summary's number of stacks and bytes in use. Estimates the bytes as
/// readers do, which scale each line by its own mean size.
fn write_and_count_stack(
    text: &mut impl Write,
    summary: &mut ProfileSummary,
    counts: [u64; 4],
    frames: &[u64],
) -> io::Result<()> {
    write_stack_line(text, counts, frames)?;
    let [objects, bytes, ..] = counts;
    summary.stacks += 1;
    summary.estimated_inuse_bytes +=
        estimate_unsampled_bytes(objects, bytes, summary.sample_interval);
    Ok(())
}

/// Splits the counts of a stack by the types of its live objects. Counts are live objects, live bytes, all objects and
/// all bytes. Each element has the leaf frame of a type; the last element, with the rest, has none. Freed objects
/// belong to the rest.
fn split_counts_by_type(
    mut rest: [u64; 4],
    types: impl Iterator<Item = (u64, TypedObjects)>,
) -> Vec<(Option<u64>, [u64; 4])> {
    let mut lines = Vec::new();
    for (leaf, TypedObjects { objects, bytes }) in types {
        let counts = [objects, bytes, objects, bytes];
        // The types were read first, and the program may have freed objects before the stack's counts were read: a type
        // with more objects than the rest is left to it.
        if rest.iter().zip(&counts).all(|(rest, count)| count <= rest) {
            for (rest, count) in rest.iter_mut().zip(counts) {
                *rest -= count;
            }
            lines.push((Some(leaf), counts));
        }
    }
    if rest[2] > 0 || rest[3] > 0 {
        lines.push((None, rest));
    }
    lines
}

/// Frame for bytes with unknown holders: an address that is never mapped.
const UNKNOWN_HOLDER: u64 = 0x100;

/// Writes a pinned profile: the free bytes that the objects of each stack keep from being released. It has the format
/// of a growth profile, because readers do not scale its values up. The objects of a line are the samples from which
/// its bytes are estimated.
pub(super) fn write_pinned_profile(
    pinned: &PinnedProfile<StackRecordId>,
    file: &File,
) -> io::Result<ProfileSummary> {
    let mut text = BufWriter::new(file);
    let (total, samples) = (pinned.total, pinned.shares.values());
    let samples: u64 = samples.map(|share| share.samples).sum();
    writeln!(
        text,
        "heap profile: {samples:6}: {total:8} [{samples:6}: {total:8}] @ growth"
    )?;
    let (mut outcome, mut stacks) = (Ok(()), 0);
    let changed_code = ChangedCode::from_history();
    // SAFETY: `DumpSlot::acquire` keeps samples from being cleared during a dump.
    #[expect(unsafe_code, reason = "the sampler's tables")]
    unsafe {
        memprof_sampler::for_each_record(|record| {
            if outcome.is_ok()
                && let Some(id) = &record.id
                && let Some(PinnedShare { samples, bytes }) = pinned.shares.get(id)
            {
                let counts = [*samples, *bytes, *samples, *bytes];
                let frames = changed_code.frames_to_write(record.frames);
                outcome = write_stack_line(&mut text, counts, frames);
                stacks += 1;
            }
        });
    }
    outcome?;
    let unknown = pinned.unknown_bytes();
    if unknown > 0 {
        // Other readers reject bytes without objects, and omit lines without a stack.
        write_stack_line(&mut text, [1, unknown, 1, unknown], &[UNKNOWN_HOLDER])?;
        stacks += 1;
    }
    text.flush()?;
    Ok(ProfileSummary {
        stacks,
        estimated_inuse_bytes: total,
        profile_len: text.stream_position()?,
        ..ProfileSummary::default()
    })
}

/// Writes the line of a stack: live objects and bytes, all objects and bytes, then the frames.
fn write_stack_line(text: &mut impl Write, counts: [u64; 4], frames: &[u64]) -> io::Result<()> {
    let [objects, bytes, total_objects, total_bytes] = counts;
    write!(
        text,
        "{objects:6}: {bytes:8} [{total_objects:6}: {total_bytes:8}] @"
    )?;
    for frame in frames {
        write!(text, " {frame:#x}")?;
    }
    writeln!(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_types_add_up_to_the_stack() {
        let typed = |objects, bytes| TypedObjects { objects, bytes };
        let check =
            |counts, types: &[(u64, TypedObjects)], expected: &[(Option<u64>, [u64; 4])]| {
                assert_eq!(
                    split_counts_by_type(counts, types.iter().copied()),
                    expected
                );
            };
        check([0, 0, 0, 0], &[], &[]);
        check([0, 0, 9, 90], &[], &[(None, [0, 0, 9, 90])]);
        let one = (Some(1), [3, 30, 3, 30]);
        check([3, 30, 3, 30], &[(1, typed(3, 30))], &[one]);
        check(
            [5, 50, 9, 90],
            &[(1, typed(3, 30))],
            &[one, (None, [2, 20, 6, 60])],
        );
        // More objects than the stack has left: some were freed between.
        check(
            [2, 20, 9, 90],
            &[(1, typed(3, 30))],
            &[(None, [2, 20, 9, 90])],
        );
    }
}
