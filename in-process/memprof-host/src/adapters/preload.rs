//! Any program, by `LD_PRELOAD`: nothing in it changes, and it gets a control socket.
//!
//! The library does nothing unless `MEMPROF_RUN=1` is in the environment (`memprof run` sets it),
//! so that a program which merely loads it is left alone.
//!
//! - An executed program inherits the environment, so it does the same.
//! - `MEMPROF_TALLY=1` (`memprof test` sets it) is for a program whose figures matter and not its rest:
//!   the plugin comes at once, and an exit waits until it is there. Its forked children get none.
//! - Limits: a process has a thread of ours from its start, so `unshare(CLONE_NEWUSER)` and
//!   `setns` into a user namespace fail as they do in any program with threads. A seccomp filter
//!   that the program puts on all its threads holds for ours.

use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::environment::{ACTIVE, LG_SAMPLE, variable};
use super::{catch_panic, delayed_start};

pub use super::delayed_start::set_sampling_started;

const RUN: &str = "MEMPROF_RUN";
const TALLY: &str = "MEMPROF_TALLY";

/// Runs when the library is loaded.
#[doc(hidden)]
pub fn loaded(entry: &'static memprof_plugin_entry_t) {
    catch_panic((), || match (is_on(RUN, "1"), is_tallied()) {
        (true, true) => delayed_start::start_now(entry),
        (true, false) => delayed_start::start_delayed(entry),
        (false, _) => {}
    });
}

/// Whether the program is sampled from its start on, and the log2 of the interval where it is named.
/// Asked while the library is loaded.
#[doc(hidden)]
pub fn is_active_at_once() -> Option<Option<u64>> {
    let is_asked = is_on(RUN, "1") && is_on(ACTIVE, "on");
    is_asked.then(|| variable(LG_SAMPLE)?.parse().ok())
}

/// Whether all allocations are counted. Asked while the library is loaded.
#[doc(hidden)]
pub fn is_tallied() -> bool {
    is_on(TALLY, "1")
}

fn is_on(name: &str, value: &str) -> bool {
    variable(name).is_some_and(|found| found == value)
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_preload {
    ($how:ident, $entry:path) => {
        /// What the dynamic loader calls when it has loaded this library.
        #[used]
        #[unsafe(link_section = ".init_array")]
        static MEMPROF_PRELOAD: extern "C" fn() = {
            extern "C" fn loaded() {
                $crate::adapters::preload::loaded(&$entry);
            }
            loaded
        };
    };
}
