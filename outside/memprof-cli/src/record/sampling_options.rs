//! Sampling that a recording requests.

use std::time::Duration;

use memprof_messages::SamplerChoice;

use crate::output;

/// Wanted sampling.
#[derive(Clone, Debug, Default)]
pub(crate) struct SamplingOptions {
    pub(crate) duration: Duration,
    pub(crate) sampler: SamplerChoice,
    /// Base-2 logarithm of the sample interval in bytes. `None`: found by the rate at which the process allocates.
    pub(crate) lg_sample: Option<u8>,
    /// The argument `allocator=NAME`.
    pub(crate) allocator: Option<String>,
    /// Further arguments of `activate`.
    pub(crate) arguments: Vec<String>,
    /// Whether no note tells the interval that was found: of many processes, one such note suffices.
    pub(crate) hides_interval: bool,
}

impl SamplingOptions {
    /// Returns the arguments of the message `activate`, without the time limit.
    pub(super) fn activate_arguments(&self) -> Vec<String> {
        let mut arguments = self.arguments.clone();
        arguments.extend(self.allocator.clone());
        arguments.extend(self.lg_sample.map(|lg| format!("lg_sample={lg}")));
        if self.sampler != SamplerChoice::default() {
            arguments.push(format!("sampler={}", self.sampler));
        }
        arguments
    }

    /// Prints a note with the options that have no effect, because the process samples already. Prints nothing if there
    /// are none.
    pub(super) fn note_ignored_options(&self, pid: u32) {
        let mut ignored = self.arguments.clone();
        ignored.extend(self.lg_sample.map(|_| "--sample-interval".to_owned()));
        if self.sampler != SamplerChoice::default() {
            ignored.push(format!("sampler={}", self.sampler));
        }
        if !ignored.is_empty() {
            output::note(&format!(
                "{pid} samples already, as it was activated: {} changes nothing",
                ignored.join(", ")
            ));
        }
    }
}
