//! Any program, by `LD_PRELOAD`: it is not changed, and gets a control socket.
//!
//! The library does nothing unless `MEMPROF_RUN=1` is in the environment (`memprof run` sets it), so that a program
//! that loads it for another purpose is not affected.
//!
//! - An executed program inherits the environment, so it does the same.
//! - `MEMPROF_TALLY=1` (`memprof test` sets it) is for a program of which only the measurements are wanted: the plugin
//!   is created at once, and an exit waits until it is. Its forked children get none.
//! - `MEMPROF_SAMPLED_CHILD=PID:LG_SAMPLE` (`memprof leaks --prove --at-exit` sets it) samples a process whose parent has
//!   that pid, and creates no plugin: no thread, no socket, nothing in the processes that it starts.
//! - Limits: a process has a thread of memprof's from its start, so `unshare(CLONE_NEWUSER)` and `setns` into a user
//!   namespace fail as in any program with threads. A seccomp filter that the program sets on all its threads applies
//!   to memprof's.

use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::environment::{ACTIVE, LG_SAMPLE, environment_variable};
use super::{catch_panic, delayed_start};

pub use super::delayed_start::{end_wait_for_sampling, use_own_descriptors};

const RUN: &str = "MEMPROF_RUN";
const TALLY: &str = "MEMPROF_TALLY";
const SAMPLED_CHILD: &str = "MEMPROF_SAMPLED_CHILD";

/// Starts the plugin if the environment requests it: at once if all allocations are counted, otherwise after a delay.
/// Runs when the library is loaded.
#[doc(hidden)]
pub fn start_if_requested(entry: &'static memprof_plugin_entry_t) {
    // Reads CPUID now, because the program may later forbid it to its threads, and a forked child inherits that.
    memprof_own::detect_processor_features();
    catch_panic((), || match (variable_has_value(RUN, "1"), is_tallied()) {
        (true, true) => delayed_start::start_plugin_after_sampling_start(entry),
        (true, false) => delayed_start::start_plugin_delayed(entry),
        (false, _) => {}
    });
}

/// Sampling from the start of a program on. `lg_sample` is the base-2 logarithm of the sample interval.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupSampling {
    /// Until the plugin takes over.
    Program {
        /// `None` if the environment does not contain it.
        lg_sample: Option<u64>,
    },
    /// Without the plugin.
    Process {
        #[expect(missing_docs, reason = "documented above")]
        lg_sample: u64,
    },
}

/// Returns the sampling that the environment requests from the program's start on. It is that of the program if
/// `memprof run` has started it with sampling on, and of this process alone if the environment names its parent's pid
/// (`MEMPROF_SAMPLED_CHILD`). `None` if the environment requests no sampling. Call it in a constructor of the library,
/// before the environment may change.
#[doc(hidden)]
pub fn startup_sampling() -> Option<StartupSampling> {
    match (
        variable_has_value(RUN, "1"),
        variable_has_value(ACTIVE, "on"),
    ) {
        (true, true) => Some(StartupSampling::Program {
            lg_sample: environment_variable(LG_SAMPLE).and_then(|lg| lg.parse().ok()),
        }),
        (true, false) => None,
        (false, _) => {
            let value = environment_variable(SAMPLED_CHILD)?;
            let lg_sample = parse_sampled_child(&value, std::os::unix::process::parent_id())?;
            Some(StartupSampling::Process { lg_sample })
        }
    }
}

/// Parses `PID:LG_SAMPLE`, and returns `LG_SAMPLE`. `None` if `PID` is not `parent`, or if the text is malformed.
fn parse_sampled_child(value: &str, parent: u32) -> Option<u64> {
    let (pid, lg_sample) = value.split_once(':')?;
    let is_child = pid.parse() == Ok(parent);
    is_child.then(|| lg_sample.parse().ok()).flatten()
}

/// Returns whether the environment requests that all allocations are counted (`MEMPROF_TALLY`). Call it in a
/// constructor of the library, before the environment may change.
#[doc(hidden)]
pub fn is_tallied() -> bool {
    variable_has_value(TALLY, "1")
}

/// Returns whether an environment variable has this value. Always false in a process with more privileges than the user
/// who started it.
fn variable_has_value(name: &str, value: &str) -> bool {
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
            /// Starts the plugin if the environment requests it.
            extern "C" fn on_load() {
                $crate::adapters::preload::start_if_requested(&$entry);
            }
            on_load
        };
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_child_itself_is_sampled() {
        let check =
            |value, expected| assert_eq!(parse_sampled_child(value, 7), expected, "{value}");
        check("7:0", Some(0));
        check("7:19", Some(19));
        check("8:0", None);
        check("7", None);
        check("7:", None);
        check("7:-1", None);
        check(":0", None);
    }
}
