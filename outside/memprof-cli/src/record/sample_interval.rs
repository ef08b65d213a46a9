//! Finds the sample interval of a recording by the rate at which the process allocates: as fine as 2 % of a processor
//! allow, so that a slow leak has samples, and a fast program is not slowed down.

use std::thread;
use std::time::{Duration, Instant};

use memprof_host::client::Client;
use memprof_messages::{ProfilerStatus, Provider, SamplerChoice};
use memprof_plugin_abi::raw::MEMPROF_BUSY;
use memprof_plugin_abi::{Arguments, Status};

use super::sampling_options::SamplingOptions;
use crate::output;
use crate::quantities::format_size;
use crate::reply::send_request;

/// Sample interval in bytes at first: a sample in 4 KiB shows a leak of 30 KiB per second within 30 s.
const FIRST: u64 = 4 << 10;
/// Finest and coarsest interval that the plugin takes, in bytes.
const FINEST: u64 = 1 << 10;
const COARSEST: u64 = 16 << 20;

/// Share of a processor's time that samples may take.
const MAX_COST: f64 = 0.02;
/// Assumed time of a sample in seconds. In loops of C with 2 to 60 frames it took 0.2 to 0.6 µs; elsewhere its memory is
/// rarely in the processor's caches.
const SAMPLE_TIME: f64 = 2.5e-6;
/// Assumed time of a sample in seconds if an interpreter's frames are read. In loops with 2, 10 and 40 frames of Python it
/// took 4, 6 and 12 µs.
const INTERPRETED_SAMPLE_TIME: f64 = 12.5e-6;
/// Samples in a recording of which the sampler can hold those that stay live, unless more than a sixth does.
const MAX_SAMPLES: f64 = 8_000_000.0;

/// Time of the first check, which ends the first interval if it is too fine; age at which a finer one is set if there is
/// no sample; and time between further checks.
const FIRST_CHECK: Duration = Duration::from_millis(20);
const REFINE_TIME: Duration = Duration::from_millis(200);
const CHECK_TIME: Duration = Duration::from_secs(1);

/// The sample interval of a recording.
#[derive(Debug)]
pub(super) struct SampleInterval {
    /// The interval that was found. `None`: the user, the process or its allocator determines it.
    found: Option<FoundInterval>,
    /// Duration of the recording.
    duration: Duration,
    /// End of the recording.
    end: Instant,
    /// The argument `allocator=NAME` of the recording.
    allocator: Option<String>,
    /// Whether no note tells the interval.
    is_hidden: bool,
    /// Interval in bytes that the host had before. `None` if it had none, or keeps it.
    before: Option<u64>,
}

/// An interval, and the samples at it until the last check.
#[derive(Clone, Copy, Debug)]
struct FoundInterval {
    bytes: u64,
    start: Instant,
    checked: Instant,
    samples: u64,
    /// Whether the interval was printed.
    is_noted: bool,
}

impl FoundInterval {
    /// Starts an interval of `bytes`, at which no sample was taken yet.
    fn new(bytes: u64) -> Self {
        let start = Instant::now();
        Self {
            bytes,
            start,
            checked: start,
            samples: 0,
            is_noted: false,
        }
    }
}

impl SampleInterval {
    /// Decides whether the recording chooses the interval by itself: only if memprof's sampler samples, holds no
    /// samples yet, and the options set no interval. `status` is that before the activation. `was_active` says that the
    /// host samples already, and so keeps its interval.
    pub(super) fn new(
        status: &ProfilerStatus,
        options: &SamplingOptions,
        was_active: bool,
    ) -> Self {
        let samples_itself = status
            .allocators
            .iter()
            .any(|allocator| allocator.sampler == Some(Provider::Allocator.into()));
        let mut sampled = status
            .allocators
            .iter()
            .filter_map(|row| row.sampled.as_ref());
        let has_samples = sampled.any(|sampled| sampled.samples > 0);
        let mut own = status.allocators.iter().filter(|row| row.sampled.is_some());
        let is_own = match options.sampler {
            SamplerChoice::Memprof => true,
            SamplerChoice::Auto => !samples_itself,
            SamplerChoice::Allocator => false,
        };
        let is_found = is_own && !has_samples && !was_active && options.lg_sample.is_none();
        Self {
            found: is_found.then(|| FoundInterval::new(FIRST)),
            duration: options.duration,
            end: Instant::now() + options.duration,
            allocator: options.allocator.clone(),
            is_hidden: options.hides_interval,
            before: is_found
                .then(|| own.find_map(|row| row.sample_interval))
                .flatten(),
        }
    }

    /// Returns the argument of `activate` that sets the initial interval. `None` if the recording does not choose the
    /// interval.
    pub(super) fn initial_interval_argument(&self) -> Option<String> {
        let found = self.found.as_ref();
        found.map(|found| format!("sample_interval={}", found.bytes))
    }

    /// Sleeps for [`FIRST_CHECK`], then checks the initial interval: a program that allocates much soon has too many
    /// samples. The time of the interval counts from this call.
    ///
    /// # Errors
    /// The host did not reply, so the connection cannot be used any more.
    pub(super) fn check_first_interval(&mut self, client: &mut Client) -> anyhow::Result<()> {
        let Some(found) = self.found.map(|found| FoundInterval::new(found.bytes)) else {
            return Ok(());
        };
        thread::sleep(FIRST_CHECK);
        self.adjust_to_rate(client, found)
    }

    /// Checks the interval if that is due, and sets another one if necessary: a coarser one if there are too many
    /// samples, or a finer one as long as there is none. Samples at the previous interval are dropped, because a
    /// profile has only one interval.
    ///
    /// # Errors
    /// The host did not reply, so the connection cannot be used any more.
    pub(super) fn adjust_if_due(&mut self, client: &mut Client) -> anyhow::Result<()> {
        match self.found {
            Some(found)
                if found.checked.elapsed() >= CHECK_TIME
                    || found.bytes == FIRST && found.samples == 0 =>
            {
                self.adjust_to_rate(client, found)
            }
            _ => Ok(()),
        }
    }

    /// Sets a coarser interval if the samples since the last check come too fast, or the finest one if there are none
    /// after [`REFINE_TIME`]. Otherwise keeps the interval, and prints a note about it once. Stops adjusting for good
    /// if memprof's sampler samples no allocator any more. Fails if the host did not reply.
    fn adjust_to_rate(&mut self, client: &mut Client, found: FoundInterval) -> anyhow::Result<()> {
        let status = client.status()?;
        let Some(samples) = count_samples(&status) else {
            self.found = None;
            return Ok(());
        };
        let (time, age) = (found.checked.elapsed(), found.start.elapsed());
        let rate = samples.saturating_sub(found.samples) as f64 / time.as_secs_f64();
        let rest = self.end.saturating_duration_since(Instant::now());
        let max_rate = max_sample_rate(self.duration, assumed_sample_time(&status));
        let coarser = choose_coarser_interval(found.bytes, rate, max_rate);
        if let Some(coarser) = coarser.filter(|_| can_drop_samples(age, rest)) {
            if self.set_interval(client, coarser)? && found.is_noted {
                print_note(&format!(
                    "it allocates much more now, so the profile begins anew, with one sample per {}",
                    format_size(coarser)
                ));
            }
        } else if samples == 0 && found.bytes > FINEST && age >= REFINE_TIME {
            self.set_interval(client, FINEST)?;
        } else {
            let is_noted = found.is_noted || age >= CHECK_TIME;
            if is_noted && !found.is_noted && !self.is_hidden {
                print_note(&format!(
                    "one sample per {}, {rate:.0} in a second; --sample-interval SIZE fixes that",
                    format_size(found.bytes)
                ));
            }
            self.found = Some(FoundInterval {
                checked: Instant::now(),
                samples,
                is_noted,
                ..found
            });
        }
        Ok(())
    }

    /// Sets the interval that the host had before the recording, if it had one. Call this after the sampling has ended.
    ///
    /// # Errors
    /// The host did not reply.
    pub(super) fn restore_previous(&self, client: &mut Client) -> anyhow::Result<()> {
        if let Some(bytes) = self.before {
            self.send_reset(client, bytes)?;
        }
        Ok(())
    }

    /// Sets an interval, and drops the samples of another one. Returns whether it was set. If the host is busy, the
    /// next check tries again; if it refuses, the interval stays for good.
    fn set_interval(&mut self, client: &mut Client, bytes: u64) -> anyhow::Result<bool> {
        let status = self.send_reset(client, bytes)?;
        match status {
            0 => self.found = Some(FoundInterval::new(bytes)),
            // Another client takes a dump: the next check tries again.
            MEMPROF_BUSY => {}
            // The samples go on as before.
            _ => self.found = None,
        }
        Ok(status == 0)
    }

    /// Sends the message `reset` with an interval of `bytes`, which drops the host's samples. Returns the status of the
    /// reply.
    fn send_reset(&self, client: &mut Client, bytes: u64) -> anyhow::Result<Status> {
        let args = reset_arguments(self.allocator.as_deref(), bytes);
        Ok(send_request(client, "reset", &args)?.status)
    }
}

/// Returns the arguments of `reset` for an interval of `bytes`. `allocator` is the argument `allocator=NAME` of the
/// recording, if it has one.
fn reset_arguments(allocator: Option<&str>, bytes: u64) -> String {
    let interval = format!("sample_interval={bytes}");
    Arguments::join(allocator.into_iter().chain([interval.as_str()]))
}

/// Clears the progress line, and prints a note.
fn print_note(text: &str) {
    output::clear_progress();
    output::note(text);
}

/// Returns the most samples in a second that a recording of `duration` may take, if each takes `sample_time` seconds:
/// the smaller of the rates that [`MAX_COST`] and [`MAX_SAMPLES`] allow.
fn max_sample_rate(duration: Duration, sample_time: f64) -> f64 {
    (MAX_COST / sample_time).min(MAX_SAMPLES / duration.as_secs_f64().max(1.0))
}

/// Returns the assumed time of a sample in the process, in seconds. It is longer if samples have frames of an
/// interpreter.
fn assumed_sample_time(status: &ProfilerStatus) -> f64 {
    let mut languages = status.languages.iter();
    match languages.any(|language| language.with_frames > 0) {
        true => INTERPRETED_SAMPLE_TIME,
        false => SAMPLE_TIME,
    }
}

/// Returns the number of samples that memprof's sampler has taken, in all allocators together. `None` if it samples no
/// allocator now.
fn count_samples(status: &ProfilerStatus) -> Option<u64> {
    let sampled = status.allocators.iter().filter_map(|allocator| {
        let sampled = allocator.sampled.as_ref()?;
        allocator.prof_active.then_some(sampled.samples)
    });
    // All have the same counts: there is one sampler.
    sampled.max()
}

/// Returns whether the samples so far may be dropped for a coarser interval. They may if the rest of the recording,
/// `rest`, is at least as long as `age`, the time in which they were taken, or as [`CHECK_TIME`]. A second of too many
/// samples costs the program less than an empty profile.
fn can_drop_samples(age: Duration, rest: Duration) -> bool {
    rest >= age.min(CHECK_TIME)
}

/// Returns a coarser interval than `bytes`, the present one, at which `rate` samples come in a second. The new rate is at
/// most half of `max_rate`, so that the interval stays if the program then allocates somewhat more. `None` if `rate` is at
/// most `max_rate`, or if no coarser interval is allowed.
fn choose_coarser_interval(bytes: u64, rate: f64, max_rate: f64) -> Option<u64> {
    let excess = rate / max_rate;
    let coarser = (bytes as f64 * 2.0 * excess).ceil() as u64;
    let coarser = coarser.clamp(FINEST, COARSEST).next_power_of_two();
    (excess > 1.0 && coarser > bytes).then_some(coarser)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_kept_at_the_end_of_a_recording() {
        let check = |age, rest, expected| {
            let [age, rest] = [age, rest].map(Duration::from_millis);
            assert_eq!(can_drop_samples(age, rest), expected, "{age:?} {rest:?}");
        };
        // The first check, and the one after a second, of a recording of a second.
        check(20, 980, true);
        check(980, 0, false);
        // Of two seconds, and of thirty.
        check(1_000, 980, false);
        check(1_000, 28_980, true);
        check(20_000, 9_000, true);
        check(29_000, 500, false);
    }

    #[test]
    fn allocator_with_blank_is_quoted_for_reset() {
        let check = |allocator, expected: &str| {
            assert_eq!(reset_arguments(allocator, 4096), expected);
        };
        check(None, "sample_interval=4096");
        check(
            Some("allocator=/a b/libc.so"),
            "allocator=\"/a b/libc.so\" sample_interval=4096",
        );
    }

    #[test]
    fn interval_becomes_coarser_only_for_too_many_samples() {
        let check_time = |bytes, rate, seconds, sample_time, expected| {
            let max_rate = max_sample_rate(Duration::from_secs(seconds), sample_time);
            let coarser = choose_coarser_interval(bytes, rate, max_rate);
            assert_eq!(coarser, expected, "{bytes} {rate} {sample_time}");
            let rate = rate * bytes as f64 / coarser.unwrap_or(bytes) as f64;
            let is_coarsest = coarser.unwrap_or(bytes) == COARSEST;
            assert!(
                rate * sample_time <= MAX_COST || is_coarsest,
                "{bytes} {rate}"
            );
        };
        let check = |bytes, rate, seconds, expected| {
            check_time(bytes, rate, seconds, SAMPLE_TIME, expected);
        };
        // A leak of 100 KiB in a second.
        check(FIRST, 25.0, 30, None);
        check(FIRST, 7_900.0, 30, None);
        check(FIRST, 9_000.0, 30, Some(16 << 10));
        // 1 GiB in a second.
        check(FIRST, 262_144.0, 30, Some(512 << 10));
        check(FINEST, 4_000_000.0, 30, Some(1 << 20));
        check(COARSEST, 4_000_000.0, 30, None);
        // A day of them would not fit into the sampler's tables.
        check(FIRST, 1_000.0, 86_400, Some(128 << 10));
        // With frames of an interpreter, for which a sample takes longer.
        let check = |bytes, rate, expected| {
            check_time(bytes, rate, 30, INTERPRETED_SAMPLE_TIME, expected);
        };
        check(FIRST, 25.0, None);
        check(FIRST, 1_500.0, None);
        check(FIRST, 1_700.0, Some(16 << 10));
        check(FIRST, 8_000.0, Some(64 << 10));
        check(FIRST, 262_144.0, Some(2 << 20));
    }
}
