//! Samples a program from its first allocations, under `memprof run --active` and `memprof test`: the plugin itself is
//! created later, on a thread that first lets the program start. Under `memprof leaks --prove --at-exit`, it is never
//! created.
#![expect(unsafe_code, reason = "what the dynamic loader calls")]

use std::panic;

use memprof_core::{SampleInterval, StartScope, sample_from_start};
use memprof_host::adapters::preload::{self, StartupSampling};

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = start_sampling_if_requested;

/// Constructor of the library, which the loader runs: declares that the plugin needs no descriptor of the program's,
/// starts sampling if the environment requests it, and then lets the plugin be created. Logs nothing: the profiler
/// reports later why sampling could not start.
extern "C" fn start_sampling_if_requested() {
    preload::use_own_descriptors();
    let outcome = panic::catch_unwind(|| {
        let (interval, scope) = match preload::startup_sampling() {
            None => return,
            Some(StartupSampling::Process { lg_sample }) => (
                SampleInterval::for_own_sampler(lg_sample).ok(),
                StartScope::Process,
            ),
            Some(StartupSampling::Program { lg_sample }) => (
                lg_sample.and_then(|lg| SampleInterval::from_lg(lg).ok()),
                match preload::is_tallied() {
                    true => StartScope::Tally,
                    false => StartScope::Program,
                },
            ),
        };
        // If this fails, the profiler reports the reason later. `memprof leaks` creates no profiler: its objects then
        // have no stacks.
        let _refused = sample_from_start(interval, scope);
        preload::end_wait_for_sampling();
    });
    if let Err(payload) = outcome {
        // The payload is leaked, because dropping it runs foreign code, which may panic again.
        std::mem::forget(payload);
    }
}
