//! Any program, by `LD_PRELOAD`: it is not changed, and gets a control socket.
//!
//! The library does nothing unless `MEMPROF_RUN=1` is in the environment (`memprof run` sets it), so that a program
//! that loads it for another purpose is not affected.
//!
//! - An executed program inherits the environment, so it does the same.
//! - `MEMPROF_TALLY=1` (`memprof test` sets it) is for a program of which only the measurements are wanted: the plugin
//!   is created at once, and an exit waits until it is. Its forked children get none.
//! - Limits: a process has a thread of memprof's from its start, so `unshare(CLONE_NEWUSER)` and `setns` into a user
//!   namespace fail as in any program with threads. A seccomp filter that the program sets on all its threads applies
//!   to memprof's.

use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::environment::{ACTIVE, LG_SAMPLE, environment_variable};
use super::{catch_panic, delayed_start};

pub use super::delayed_start::{set_sampling_started, use_own_descriptors};

const RUN: &str = "MEMPROF_RUN";
const TALLY: &str = "MEMPROF_TALLY";

/// Starts the plugin if the environment requests it. Runs when the library is loaded.
#[doc(hidden)]
pub fn start_if_requested(entry: &'static memprof_plugin_entry_t) {
    catch_panic((), || match (has_value(RUN, "1"), is_tallied()) {
        (true, true) => delayed_start::start_now(entry),
        (true, false) => delayed_start::start_delayed(entry),
        (false, _) => {}
    });
}

/// Returns whether the program is sampled from its start on, with the base-2 logarithm of the sample interval if the
/// environment contains a valid one. `None` if it is not sampled. Call it while the library is loaded, before the
/// environment may change.
#[doc(hidden)]
pub fn startup_sampling() -> Option<Option<u64>> {
    let is_requested = has_value(RUN, "1") && has_value(ACTIVE, "on");
    is_requested.then(|| environment_variable(LG_SAMPLE)?.parse().ok())
}

/// Returns whether all allocations are counted. Call it while the library is loaded, before the environment may change.
#[doc(hidden)]
pub fn is_tallied() -> bool {
    has_value(TALLY, "1")
}

fn has_value(name: &str, value: &str) -> bool {
    environment_variable(name).is_some_and(|found| found == value)
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_preload {
    ($how:ident, $entry:path) => {
        /// Constructor that the dynamic loader calls when it loads this library.
        #[used]
        #[unsafe(link_section = ".init_array")]
        static MEMPROF_PRELOAD: extern "C" fn() = {
            extern "C" fn loaded() {
                $crate::adapters::preload::start_if_requested(&$entry);
            }
            loaded
        };
    };
}
