//! The sampler's profile as text: tcmalloc's legacy format, which jeprof, google-pprof, `go tool
//! pprof` and memprof read.
//!
//! ```text
//! heap profile:      2:     1000 [     5:     2000] @ heap_v2/524288
//!      1:      500 [     1:      500] @ 0x4005d0 0x4004f1
//! ```
//!
//! Each stack has a line for each of its size classes: readers unsample a line by its mean size.
//!
//! Where all allocations are tallied, what is told to live is what did when most lived.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use memprof_sampler::{StackRecord, StackRecordId};

use super::pinned::{PinnedProfile, PinnedShare};
use crate::dumps::heap::{ProfileSummary, unsampled};

/// What a header's numbers take, so that it can be written before they are known.
const WIDTH: usize = 20;

/// Writes all samples, live and freed ones.
pub(super) fn write(interval: u64, file: &File) -> io::Result<ProfileSummary> {
    let mut lines = ProfileWriter {
        text: BufWriter::new(file),
        summary: ProfileSummary {
            sample_interval: interval,
            ..ProfileSummary::default()
        },
        totals: [0; 4],
        is_tallied: memprof_sampler::tally().is_some(),
        outcome: Ok(()),
    };
    lines.header()?;
    // SAFETY: what clears the samples, and a dump, exclude each other (`DumpSlot::take`).
    #[expect(unsafe_code, reason = "the sampler's tables")]
    unsafe {
        memprof_sampler::for_each_record(|record| lines.add(&record));
    }
    lines.outcome?;
    let end = lines.text.stream_position()?;
    lines.summary.profile_len = end;
    lines.text.seek(SeekFrom::Start(0))?;
    lines.outcome = Ok(());
    lines.header()?;
    lines.text.flush()?;
    Ok(lines.summary)
}

struct ProfileWriter<W: Write> {
    text: BufWriter<W>,
    summary: ProfileSummary,
    /// Objects and bytes, live and in all.
    totals: [u64; 4],
    is_tallied: bool,
    outcome: io::Result<()>,
}

impl<W: Write> ProfileWriter<W> {
    fn header(&mut self) -> io::Result<()> {
        let [objects, bytes, total_objects, total_bytes] = self.totals;
        writeln!(
            self.text,
            "heap profile: {objects:WIDTH$}: {bytes:WIDTH$} [{total_objects:WIDTH$}: \
             {total_bytes:WIDTH$}] @ heap_v2/{}",
            self.summary.sample_interval
        )
    }

    fn add(&mut self, record: &StackRecord<'_>) {
        if self.outcome.is_ok() {
            self.outcome = self.line(record);
        }
    }

    fn line(&mut self, record: &StackRecord<'_>) -> io::Result<()> {
        let [objects, bytes] = match self.is_tallied {
            true => record.at_peak,
            false => [record.objects, record.bytes],
        };
        let counts = [objects, bytes, record.total_objects, record.total_bytes];
        // Its counters move while a sample comes or goes.
        if record.total_objects == 0 {
            return Ok(());
        }
        for (total, count) in self.totals.iter_mut().zip(counts) {
            *total += count;
        }
        write_stack(&mut self.text, counts, record.frames)?;
        let summary = &mut self.summary;
        summary.stacks += 1;
        summary.estimated_inuse_bytes += unsampled(objects, bytes, summary.sample_interval);
        Ok(())
    }
}

/// The stack of what nobody is known to hold: an address at which there is nothing.
const NOBODY: u64 = 0x100;

/// Writes what the stacks of the sampler's records hold of `pinned`, as a profile of growth is written: readers take
/// its values as they are. The objects of a line are the samples that tell its bytes.
pub(super) fn write_pinned(
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
    // SAFETY: as in `write`.
    #[expect(unsafe_code, reason = "the sampler's tables")]
    unsafe {
        memprof_sampler::for_each_record(|record| {
            if outcome.is_ok()
                && let Some(id) = &record.id
                && let Some(PinnedShare { samples, bytes }) = pinned.shares.get(id)
            {
                let counts = [*samples, *bytes, *samples, *bytes];
                outcome = write_stack(&mut text, counts, record.frames);
                stacks += 1;
            }
        });
    }
    outcome?;
    let unknown = pinned.unknown();
    if unknown > 0 {
        // Other readers refuse bytes of no object, and leave out what has no stack.
        write_stack(&mut text, [1, unknown, 1, unknown], &[NOBODY])?;
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

fn write_stack(text: &mut impl Write, counts: [u64; 4], frames: &[u64]) -> io::Result<()> {
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
