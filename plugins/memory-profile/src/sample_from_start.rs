//! Samples from the first allocations of a program on, under `memprof run --active` and `memprof test`: the plugin itself
//! comes later, on a thread that leaves the program alone for a while.
#![expect(unsafe_code, reason = "what the dynamic loader calls")]

use std::panic;

use memprof_core::{SampleInterval, sample_from_start};
use memprof_host::adapters::preload;

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    let begun = panic::catch_unwind(|| {
        if let Some(lg_sample) = preload::is_active_at_once() {
            let interval = lg_sample.and_then(|lg| SampleInterval::from_lg(lg).ok());
            // What stands against it is told when the plugin comes.
            let _refused = sample_from_start(interval, preload::is_tallied());
            preload::set_sampling_started();
        }
    });
    if let Err(payload) = begun {
        // Dropping a payload runs foreign code, which may panic again.
        std::mem::forget(payload);
    }
}
