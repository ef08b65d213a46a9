//! Samples a program from its first allocations, under `memprof run --active` and `memprof test`. The plugin itself is
//! created later, on a thread that waits until the program has started.
#![expect(unsafe_code, reason = "what the dynamic loader calls")]

use std::panic;

use memprof_core::{SampleInterval, sample_from_start};
use memprof_host::adapters::preload;

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = on_load;

/// Constructor that the loader runs. Declares that the plugin needs no descriptor of the program's, and starts sampling
/// if the environment requests it.
extern "C" fn on_load() {
    preload::use_own_descriptors();
    let outcome = panic::catch_unwind(|| {
        if let Some(lg_sample) = preload::startup_sampling() {
            let interval = lg_sample.and_then(|lg| SampleInterval::from_lg(lg).ok());
            // If this fails, the profiler will report the reason.
            let _refused = sample_from_start(interval, preload::is_tallied());
            preload::set_sampling_started();
        }
    });
    if let Err(payload) = outcome {
        // The payload is leaked, because dropping it runs foreign code, which may panic again.
        std::mem::forget(payload);
    }
}
