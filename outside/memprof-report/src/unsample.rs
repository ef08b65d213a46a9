//! Undoes the sampling bias: a sampler by bytes takes few small objects and nearly all large ones.

use crate::error::{Error, Result};
use crate::profile::{DeclaredContents, Profile, SampleType, SampleValues, Sampling};

/// Converts raw values to estimates, in place, and stores the numbers of sampled objects as the samples' counts. If the
/// values contradict the header or the dump's declaration, adds a warning.
///
/// For a Poisson process with mean P bytes and a stack with n objects of s bytes on average, the scale is 1/(1 −
/// exp(−s/P)): the formula of jeprof's `AdjustSamples`. Values are rounded to whole numbers, so that all views of a
/// profile have the same total. The rounding error of one sample's objects is carried to the next: most samples have
/// few objects, and without the carry the total was 1 % off in a real dump. Bytes are rounded without a carry, so that
/// an unchanged stack has the same value in two profiles.
///
/// # Errors
/// A sum passes 63 bits.
pub fn unsample(profile: &mut Profile) -> Result<()> {
    let sampling = profile.sampling;
    let raw = profile.totals().ok_or_else(overflow_error)?;
    let mut carry = Carry::default();
    let mut tolerance = TotalsTolerance::default();
    for sample in &mut profile.samples {
        if let Sampling::Poisson(interval) = sampling {
            tolerance.add_stack(sample.values, interval);
        }
        if sampling != Sampling::None {
            sample.counts = [SampleType::AllocObjects, SampleType::InuseObjects]
                .map(|objects| u32::try_from(sample.values[objects]).unwrap_or(u32::MAX));
        }
        sample.values =
            unsample_values(sample.values, sampling, &mut carry).ok_or_else(overflow_error)?;
    }
    let totals = profile.totals().ok_or_else(overflow_error)?;
    let damage = declared_contents_warning(profile, totals).or_else(|| {
        let (header, Sampling::Poisson(interval)) = (profile.header?, sampling) else {
            return None;
        };
        header_mismatch_warning(header, raw, totals, tolerance, interval)
    });
    profile.warnings.extend(damage);
    profile.sampling = Sampling::None;
    Ok(())
}

/// Describes how the raw stacks agree with the totals in the header. `None` if they differ by more than rounding, if a
/// sum overflows, or if there is no header.
pub(crate) fn describe_header_agreement(profile: &Profile) -> Option<String> {
    let (header, raw) = (profile.header?, profile.totals()?);
    if raw == header {
        return Some("its stacks add up to its header".into());
    }
    let Sampling::Poisson(interval) = profile.sampling else {
        return None;
    };
    let mut tolerance = TotalsTolerance::default();
    let mut estimated = SampleValues::default();
    for sample in &profile.samples {
        tolerance.add_stack(sample.values, interval);
        let values = unsample_values(sample.values, profile.sampling, &mut Carry::default())?;
        estimated = estimated.checked_add(values)?;
    }
    let expected = unsample_values(header, profile.sampling, &mut Carry::default())?;
    let space = SampleType::InuseSpace;
    let difference = (estimated[space] - expected[space]).unsigned_abs() as f64;
    // With few samples, the tolerance covers the loss of one.
    let is_close = difference <= MAX_ROUNDING * expected[space] as f64;
    let warning = header_mismatch_warning(header, raw, estimated, tolerance, interval);
    (is_close && warning.is_none()).then(|| {
        format!(
            "its stacks add up to {} bytes, its header to {}",
            estimated[space], expected[space]
        )
    })
}

/// Error for a sum of estimates that passes 63 bits.
pub(crate) fn overflow_error() -> Error {
    Error::Overflow {
        problem: "the sum over all stacks passes 63 bits".into(),
    }
}

/// Rounding error so far, of allocated objects and of those in use.
type Carry = [f64; 2];

/// Unsamples the values of one sample; `carry` is the rounding error of the objects so far. `None` if they overflow.
fn unsample_values(
    values: SampleValues,
    sampling: Sampling,
    carry: &mut Carry,
) -> Option<SampleValues> {
    let mut scaled = SampleValues::default();
    for (objects, space) in [
        (SampleType::InuseObjects, SampleType::InuseSpace),
        (SampleType::AllocObjects, SampleType::AllocSpace),
    ] {
        let scale = sample_weight(values[objects], values[space], sampling);
        // Sample types come in pairs of objects and bytes: allocated ones, then those in use.
        let carried = &mut carry[objects as usize / 2];
        scaled[objects] = round_with_carry(values[objects], scale, carried)?;
        scaled[space] = round_with_carry(values[space], scale, &mut 0.0)?;
    }
    Some(scaled)
}

/// Number of allocations for which one of the sampled `objects` stands, by their mean size. It is 1 if nothing was
/// sampled, or if the amounts are known and only shared out by samples.
fn sample_weight(objects: i64, bytes: i64, sampling: Sampling) -> f64 {
    if objects <= 0 || bytes <= 0 {
        return 1.0;
    }
    let size = bytes as f64 / objects as f64;
    match sampling {
        Sampling::None | Sampling::Shared => 1.0,
        Sampling::Poisson(interval) => -1.0 / libm::expm1(-size / interval as f64),
        Sampling::Uniform(interval) => (interval as f64 / size).max(1.0),
    }
}

/// Scales a value, adds the rounding error in `carry`, rounds, and stores the new error there. With the scale 1, value
/// and error stay as they are. `None` if the result overflows.
fn round_with_carry(value: i64, scale: f64, carry: &mut f64) -> Option<i64> {
    if scale == 1.0 {
        return Some(value);
    }
    let exact = value as f64 * scale + *carry;
    let whole = exact.round();
    *carry = exact - whole;
    (whole < i64::MAX as f64).then_some(whole as i64)
}

/// Checks a dump against the contents that it declares. Returns a warning if they differ; `None` if they agree or it
/// declares none.
fn declared_contents_warning(profile: &Profile, totals: SampleValues) -> Option<String> {
    let DeclaredContents {
        stacks,
        inuse_space,
    } = profile.declared;
    let (found_stacks, found) = (profile.samples.len() as u64, totals[SampleType::InuseSpace]);
    let differs = stacks.is_some_and(|stacks| stacks != found_stacks)
        || inuse_space.is_some_and(|bytes| bytes != found);
    differs.then(|| {
        let (stacks, bytes) = (stacks.unwrap_or(found_stacks), inuse_space.unwrap_or(found));
        format!(
            "the dump was written with {stacks} stacks of {bytes} bytes, it has {found_stacks} of \
             {found}: it is damaged"
        )
    })
}

/// Largest expected difference between the sum over the stacks and the unsampled header, in an undamaged dump.
///
/// Since 5.3, jemalloc corrects each sample by its own size, and then writes rounded numbers that jeprof's formula
/// converts back to the sum. So the header is exact but for one rounding, and each stack may be off by half an
/// object: little if a stack has many samples, a third if it has one of a small object and one of a large one.
/// Before 5.3 the raw stacks add up to the header.
#[derive(Clone, Copy, Debug, Default)]
struct TotalsTolerance {
    /// Sum of the largest error of each stack, in bytes.
    max: f64,
    /// Sum of the variances of these errors.
    variance: f64,
}

/// Largest difference from the header, as a share of it, that counts as rounding if nothing else shows that a dump is
/// complete.
const MAX_ROUNDING: f64 = 0.05;

/// Standard deviations of the sum from which a difference counts as damage.
const MAX_DEVIATIONS: f64 = 6.0;

/// Largest effect of rounding bytes, as a share of the total.
const MIN_TOLERANCE: f64 = 0.002;

impl TotalsTolerance {
    /// Adds the rounding error of one stack. `values` are its raw values, sampled at a mean interval of `interval`
    /// bytes.
    fn add_stack(&mut self, values: SampleValues, interval: u64) {
        let difference = Self::max_rounding_error(values, interval);
        self.max += difference;
        // The error is distributed uniformly between -difference and +difference.
        self.variance += difference * difference / 3.0;
    }

    /// Largest effect of rounding the objects of a line to a whole number, in bytes.
    fn max_rounding_error(values: SampleValues, interval: u64) -> f64 {
        let objects = values[SampleType::InuseObjects] as f64;
        let bytes = values[SampleType::InuseSpace] as f64;
        if bytes <= 0.0 {
            return 0.0;
        }
        // The bytes of a line, divided by the probability that an object of its mean size is sampled.
        let estimate = |objects: f64| -bytes / libm::expm1(-bytes / objects / interval as f64);
        let middle = estimate(objects.max(1.0));
        let below = middle - estimate((objects - 0.5).max(0.5));
        let above = estimate(objects + 0.5) - middle;
        below.abs().max(above.abs())
    }

    /// Tolerance in bytes, for a total of `expected`.
    fn bytes_for_total(self, expected: f64) -> f64 {
        let likely = MAX_DEVIATIONS * self.variance.sqrt();
        likely.min(self.max) + MIN_TOLERANCE * expected
    }
}

/// Returns a warning if the estimated bytes of all stacks (`totals`) differ from those of the `header` by more than the
/// `tolerance` and the header's own rounding. `None` if they do not, or if the `raw` values add up to the header
/// exactly. `interval` is the mean number of bytes between samples.
fn header_mismatch_warning(
    header: SampleValues,
    raw: SampleValues,
    totals: SampleValues,
    tolerance: TotalsTolerance,
    interval: u64,
) -> Option<String> {
    let space = SampleType::InuseSpace;
    if raw == header {
        return None;
    }
    let sampling = Sampling::Poisson(interval);
    let expected = header[space] as f64
        * sample_weight(header[SampleType::InuseObjects], header[space], sampling);
    let difference = totals[space] as f64 - expected;
    let tolerance =
        tolerance.bytes_for_total(expected) + TotalsTolerance::max_rounding_error(header, interval);
    (difference.abs() > tolerance).then(|| {
        format!(
            "the stacks add up to {} bytes, the header says {expected:.0} ({:+.2} %): \
             the dump may be damaged",
            totals[space],
            100.0 * difference / expected.max(1.0)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{Carry, unsample, unsample_values};
    use crate::profile::{
        Address, DeclaredContents, Profile, Sample, SampleType, SampleValues, Sampling,
    };

    #[test]
    fn unsampled_values_equal_those_of_jeprof() {
        let check = |raw, sampling, expected| {
            assert_eq!(
                unsample_values(SampleValues(raw), sampling, &mut Carry::default()),
                Some(SampleValues(expected))
            );
        };
        check([0, 0, 9, 412], Sampling::Poisson(512), [0, 0, 105, 4817]);
        check(
            [0, 0, 1, 1 << 40],
            Sampling::Poisson(512),
            [0, 0, 1, 1 << 40],
        );
        check(
            [0, 0, 1, 1],
            Sampling::Poisson(1 << 20),
            [0, 0, 1_048_577, 1_048_577],
        );
        check([0, 0, 2, 100], Sampling::Uniform(500), [0, 0, 20, 1000]);
        check([4, 40, 2, 100], Sampling::None, [4, 40, 2, 100]);
        assert_eq!(
            unsample_values(
                SampleValues([0, 0, i64::MAX / 8, i64::MAX]),
                Sampling::Poisson(i64::MAX as u64),
                &mut Carry::default()
            ),
            None
        );
    }

    /// A dump as jemalloc 5.3 writes it (`prof_do_unbias`): each sample is corrected by its own size, and the sums
    /// of each stack and of all are written as numbers that jeprof's formula converts back.
    struct Jemalloc {
        stacks: Vec<[f64; 2]>,
    }

    const INTERVAL: u64 = 1 << 19;

    impl Jemalloc {
        /// Random stacks of few samples each, with sizes from 16 bytes to 1 MiB.
        fn random(seed: u64) -> Self {
            let mut state = seed;
            let mut random = |below: u64| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(99);
                (state >> 33) % below
            };
            let count = 1 + random(60);
            let mut stack = || {
                let mut sums = [0.0; 2];
                for _ in 0..1 + random(4) {
                    let size = (16 << random(17)) as f64;
                    let chance = -(-size / INTERVAL as f64).exp_m1();
                    sums[0] += 1.0 / chance;
                    sums[1] += size / chance;
                }
                sums
            };
            let stacks = (0..count).map(|_| stack()).collect();
            Self { stacks }
        }

        fn line([objects, bytes]: [f64; 2]) -> SampleValues {
            let size = bytes / objects;
            let biased = -bytes * (-size / INTERVAL as f64).exp_m1();
            SampleValues([0, 0, (biased / size).round() as i64, biased.round() as i64])
        }

        fn profile(&self) -> Profile {
            let mut profile = Profile {
                sampling: Sampling::Poisson(INTERVAL),
                ..Profile::default()
            };
            let mut sum = [0.0; 2];
            for (index, stack) in self.stacks.iter().enumerate() {
                sum = [sum[0] + stack[0], sum[1] + stack[1]];
                let address = profile.stacks.intern_address(Address(index as u64));
                profile.stacks.push_frame(address);
                profile.samples.push(Sample {
                    stack: profile.stacks.finish_stack(),
                    counts: [0; 2],
                    alloc_time: None,
                    label: None,
                    row: 0,
                    values: Self::line(*stack),
                });
            }
            profile.header = Some(Self::line(sum));
            profile
        }
    }

    fn warnings(mut profile: Profile) -> Vec<String> {
        unsample(&mut profile).expect("it fits");
        profile.warnings
    }

    #[test]
    fn undamaged_dump_of_few_samples_has_no_warning() {
        for seed in 0..2000 {
            let profile = Jemalloc::random(seed).profile();
            assert_eq!(warnings(profile), Vec::<String>::new(), "{seed}");
        }
    }

    #[test]
    fn dump_without_largest_stacks_is_reported_as_damaged() {
        let dumps = (0..200).map(|seed| Jemalloc::random(seed).profile());
        for mut dump in dumps.filter(|dump| dump.samples.len() > 20) {
            let half = dump.samples.len() / 2;
            dump.samples.sort_by_key(|sample| sample.values.0[3]);
            dump.samples.truncate(half);
            let found = warnings(dump);
            assert!(
                found.iter().any(|note| note.contains("damaged")),
                "{half}: {found:?}"
            );
        }
    }

    #[test]
    fn declared_contents_are_checked_to_the_byte() {
        let profile = |claims| Profile {
            declared: claims,
            ..Jemalloc::random(1).profile()
        };
        let mut whole = profile(DeclaredContents::default());
        unsample(&mut whole).expect("it fits");
        let found = whole.totals().expect("it fits")[SampleType::InuseSpace];
        let stacks = whole.samples.len() as u64;
        let check = |stacks, inuse_space, is_whole: bool| {
            let claims = DeclaredContents {
                stacks: Some(stacks),
                inuse_space: Some(inuse_space),
            };
            assert_eq!(warnings(profile(claims)).is_empty(), is_whole);
        };
        check(stacks, found, true);
        check(stacks + 1, found, false);
        check(stacks, found + 1, false);
    }
}
