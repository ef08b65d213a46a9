//! Adapters to programs that were not built for memprof, but load plugins of other kinds.
//!
//! [`export_adapters!`](crate::export_adapters) adds the entry points that these programs look for to a plugin's
//! library. They call this module, which is the host: it creates the plugin's one instance in the process and passes
//! the program's messages to it.
//!
//! - [`attachment`]: a running process; its messages come over the control socket.
//! - [`ffi`]: any language that calls C functions; the function returns the reply.
//! - [`java`]: an agent of a JVM, or a class; the reply goes to standard error, or is a string.
//! - [`lua`]: a module of Lua or `LuaJIT`; the reply is a string.
//! - [`node`]: an addon of Node; the reply is a string or an object.
//! - [`preload`]: any program, by `LD_PRELOAD`; its messages come over the control socket.
//! - [`python`]: a module of Python; the reply is a str or a dict.
//! - [`postgres`]: a PostgreSQL extension; the reply is a text of SQL, or a table of all backends' replies.
//! - [`mariadb`]: a loadable function of MariaDB or MySQL; the reply is a text of SQL.
//! - [`nginx`], [`httpd`]: modules that open the control socket of each worker.
//! - [`redis`]: a Redis module; the reply goes to the client.
//! - [`ruby`]: an extension of Ruby; the reply is a string.
//! - [`mosquitto`]: a Mosquitto plugin; the reply goes to the client.
//! - [`traffic_server`]: an Apache Traffic Server plugin; the reply goes to the log.
//!
//! An adapter never fails the program's start. A failure is logged in one line, and is the reply to every message.

#![cfg_attr(
    not(feature = "all-adapters"),
    allow(dead_code, reason = "each adapter uses a part of the shared code")
)]

#[cfg(feature = "adapter-attached")]
pub mod attachment;
mod config;
mod control;
mod delayed_start;
mod environment;
mod export;
#[cfg(feature = "adapter-ffi")]
pub mod ffi;
#[doc(hidden)]
pub mod host_symbols;
#[cfg(feature = "adapter-httpd")]
pub mod httpd;
#[doc(hidden)]
pub mod instance;
#[cfg(feature = "adapter-java")]
pub mod java;
mod library_copies;
mod log;
#[cfg(feature = "adapter-lua")]
pub mod lua;
#[cfg(feature = "adapter-mariadb")]
pub mod mariadb;
#[cfg(feature = "adapter-mosquitto")]
pub mod mosquitto;
#[cfg(feature = "adapter-nginx")]
pub mod nginx;
#[cfg(feature = "adapter-node")]
pub mod node;
mod one_time_event;
mod own_sockets;
mod pending_request;
#[cfg(feature = "adapter-postgres")]
pub mod postgres;
#[cfg(feature = "adapter-preload")]
pub mod preload;
#[cfg(feature = "adapter-python")]
pub mod python;
#[cfg(feature = "adapter-redis")]
pub mod redis;
mod rendered_reply;
#[cfg(feature = "adapter-ruby")]
pub mod ruby;
#[cfg(feature = "adapter-postgres")]
mod server_processes;
mod startup_delay;
mod stderr_log;
#[cfg(feature = "adapter-traffic-server")]
pub mod traffic_server;

#[cfg(any(feature = "adapter-java", feature = "adapter-ruby"))]
use std::ffi::{CStr, CString};
use std::panic::{self, AssertUnwindSafe};

#[doc(hidden)]
pub use memprof_own::bind_imports;

/// Runs the code of an exported function. Returns `on_panic` if it panics: a panic must not reach the program.
fn catch_panic<T>(on_panic: T, work: impl FnOnce() -> T) -> T {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        // Dropping the payload would run foreign code, which may panic again.
        std::mem::forget(payload);
        on_panic
    })
}

/// Returns the name of a class or module for a plugin: `MemoryProfile` for `memory_profile`.
#[cfg(any(feature = "adapter-java", feature = "adapter-ruby"))]
fn to_camel_case(name: &CStr) -> CString {
    let name = name.to_string_lossy();
    let capital = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().into_iter().flat_map(char::to_uppercase);
        first.chain(letters).collect::<String>()
    };
    let words = name.split('_').filter(|word| !word.is_empty());
    log::to_truncated_c_string(&words.map(capital).collect::<String>(), usize::MAX)
}

#[cfg(all(test, any(feature = "adapter-java", feature = "adapter-ruby")))]
mod tests {
    use super::to_camel_case;

    #[test]
    fn camel_case_accepts_any_letters() {
        let check = |name: &std::ffi::CStr, expected: &str| {
            assert_eq!(to_camel_case(name).to_str(), Ok(expected));
        };
        check(c"memory_profile", "MemoryProfile");
        check(c"_x__y_", "XY");
        check(c"\u{e9}tat_\u{df}_\u{1f980}", "\u{c9}tatSS\u{1f980}");
        check(c"", "");
    }
}
