//! Notes on memory that a report lacks, or cannot attribute to a function.

use crate::profile::{Address, NO_STACK, Profile, Sample, SampleType, UNATTRIBUTED};
use crate::render::format_amount;

/// Returns a note on the samples that the sampler lost, which are in no row. `None` if it lost none or did not count
/// them.
pub(super) fn lost_samples_note(profile: &Profile) -> Option<String> {
    let (lost, samples) = (profile.origin.lost_samples?, profile.origin.samples?);
    let remedy = match profile.interval {
        Some(interval) => format!(
            "sample_interval={}",
            sufficient_interval(interval, samples, lost)
        ),
        None => "a larger sample_interval".to_owned(),
    };
    (lost > 0).then(|| {
        format!(
            "{lost} of {samples} samples were lost, because memprof's tables were full: sample more coarsely ({remedy})"
        )
    })
}

/// Returns the interval at which the tables would probably have held all samples, as the option takes it: a power of
/// two with its unit, at least twice `interval`, from 1 KiB to 16 MiB.
fn sufficient_interval(interval: u64, samples: u64, lost: u64) -> String {
    let kept = samples.saturating_sub(lost).max(1);
    let factor = samples.div_ceil(kept).max(2);
    let bytes = interval.saturating_mul(factor).clamp(1 << 10, 16 << 20);
    match bytes.next_power_of_two() {
        bytes if bytes < 1 << 20 => format!("{}KiB", bytes >> 10),
        bytes => format!("{}MiB", bytes >> 20),
    }
}

/// Returns a note on the bytes in the row `[not attributable]` of a profile of pinned slabs, slabs that few live
/// objects keep from being released. `None` if there are no such bytes, or for any other profile.
pub(super) fn unattributed_note(profile: &Profile) -> Option<String> {
    let space = SampleType::InuseSpace;
    let unknown = sum_of_samples_with_frame(profile, UNATTRIBUTED, space);
    (profile.is_pinned && unknown > 0).then(|| {
        format!(
            "{} are not attributable: their size classes have too few samples to show who holds what; sample more \
             finely, before the program allocates it: activate sampler=memprof with a smaller sample_interval",
            format_amount(unknown, space)
        )
    })
}

/// Returns a note on the samples without a stack, which are in the row `[no stack]`: their value and its share of the
/// total. `None` if their value is 0.
pub(super) fn missing_stacks_note(profile: &Profile, sample_type: SampleType) -> Option<String> {
    let missing = sum_of_samples_with_frame(profile, NO_STACK, sample_type);
    // The values of a difference may be negative, and cancel out: a share is one of the sum of their sizes.
    let samples = profile.samples.iter();
    let total = samples.fold(0_u64, |total, sample| {
        total.saturating_add(sample.values[sample_type].unsigned_abs())
    });
    (missing != 0).then(|| {
        format!(
            "{} ({:.1} %) have no stack, row [no stack]: the allocator's unwinder found no caller, most often in code \
             without frame pointers or unwind tables, such as JIT code or assembly",
            format_amount(missing, sample_type),
            100.0 * missing as f64 / total as f64
        )
    })
}

/// Returns the sum of the values of the samples whose stack contains this pseudo frame.
fn sum_of_samples_with_frame(
    profile: &Profile,
    pseudo_frame: Address,
    sample_type: SampleType,
) -> i64 {
    let has_frame = |sample: &&Sample| {
        let frames = profile.stacks.frames(sample.stack).iter();
        frames
            .map(|id| profile.stacks.address(*id))
            .any(|address| address == pseudo_frame)
    };
    let samples = profile.samples.iter().filter(has_frame);
    let values = samples.map(|sample| sample.values[sample_type]);
    values.fold(0, i64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::{missing_stacks_note, sufficient_interval};
    use crate::profile::{Address, Profile, Sample, SampleType, SampleValues};

    #[test]
    fn advised_interval_follows_the_lost_share() {
        let check = |interval, samples, lost, expected: &str| {
            assert_eq!(sufficient_interval(interval, samples, lost), expected);
        };
        check(1 << 10, 400_000, 270_000, "4KiB");
        check(512 << 10, 9, 2, "1MiB");
        check(1 << 10, 140_000, 9_000, "2KiB");
        check(4 << 20, 100, 99, "16MiB");
        check(1, 10, 10, "1KiB");
        check(3 << 10, 10, 5, "8KiB");
    }

    #[test]
    fn share_without_stack_is_one_of_the_sum_of_sizes() {
        let check = |without_stack, other_bytes, expected: Option<&str>| {
            let mut profile = Profile::default();
            let no_stack = profile.stacks.finish_stack();
            let frame = profile.stacks.intern_address(Address(0x10));
            profile.stacks.push_frame(frame);
            let other = profile.stacks.finish_stack();
            let sample = |stack, bytes| Sample::new(stack, SampleValues([0, 0, 0, bytes]));
            profile.samples = vec![sample(no_stack, without_stack), sample(other, other_bytes)];
            profile.mark_missing_stacks();
            let note = missing_stacks_note(&profile, SampleType::InuseSpace);
            let share = note.as_deref().and_then(|note| note.split(" have").next());
            assert_eq!(share, expected);
        };
        check(0, 300, None);
        check(100, 300, Some("100B (25.0 %)"));
        check(300, -300, Some("300B (50.0 %)"));
        check(300, -100, Some("300B (75.0 %)"));
    }
}
