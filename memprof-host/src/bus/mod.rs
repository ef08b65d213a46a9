//! Programs that were not written for memprof, and the buses on which they already load plugins.
//!
//! [`export_buses!`](crate::export_buses) gives a plugin's library the entry points that these
//! programs look for. Behind them, this module plays the host: it makes the plugin's one
//! instance in the process and passes the program's messages to it.
//!
//! - [`preload`]: any program, by `LD_PRELOAD`; its bus is the control socket.
//!
//! Loading never fails the program. Whatever is wrong is logged in one line, and every message
//! is answered with it.

mod door;
mod guest;
mod lines;
#[cfg(feature = "bus-preload")]
pub mod preload;
mod words;

use std::panic::{self, AssertUnwindSafe};

/// Makes a plugin's library loadable by other programs' own buses. `$entry` is the plugin's
/// `memprof_plugin_entry`; the buses are chosen after a colon, all of them by default. Call it
/// once, in the cdylib, beside `export_plugin!`; each bus needs its feature of this crate.
///
/// ```ignore
/// memprof_plugin_abi::export_plugin!(Greeter);
/// memprof_host::export_buses!(memprof_plugin_entry: redis, preload);
/// ```
#[macro_export]
macro_rules! export_buses {
    ($entry:path) => {
        $crate::export_buses!($entry: preload);
    };
    ($entry:path: $($bus:ident),+ $(,)?) => {
        $($crate::__export_bus!($bus, $entry);)+
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_bus {
    (preload, $entry:path) => {
        /// What the dynamic loader calls when it has loaded this library.
        #[used]
        #[unsafe(link_section = ".init_array")]
        static MEMPROF_PRELOAD: extern "C" fn() = {
            extern "C" fn loaded() {
                $crate::bus::preload::loaded(&$entry);
            }
            loaded
        };
    };
}

/// Runs the code of an exported function; should it panic, the program gets `otherwise`.
fn contain<T>(otherwise: T, work: impl FnOnce() -> T) -> T {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        // Dropping a payload runs foreign code, which may panic again.
        std::mem::forget(payload);
        otherwise
    })
}
