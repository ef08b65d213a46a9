//! Samples a program from its first allocations, under `memprof run --active` and `memprof test`: the plugin
//! itself is created later, on a thread that first lets the program start.
#![expect(unsafe_code, reason = "what the dynamic loader calls")]

use std::panic;

use memprof_core::{SampleInterval, sample_from_start};
use memprof_host::adapters::preload;

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = on_load;

/// Constructor that the loader runs: declares that the plugin needs no descriptor of the program's, and starts sampling
/// if the environment requests it.
extern "C" fn on_load() {
    preload::use_own_descriptors();
    let outcome = panic::catch_unwind(|| {
        if let Some(lg_sample) = preload::startup_sampling() {
            let interval = lg_sample.and_then(|lg| SampleInterval::from_lg(lg).ok());
            // The profiler will report the reason if this fails.
            let _refused = sample_from_start(interval, preload::is_tallied());
            preload::set_sampling_started();
        }
    });
    if let Err(payload) = outcome {
        // Forgotten: dropping a payload runs foreign code, which may panic again.
        std::mem::forget(payload);
    }
}
