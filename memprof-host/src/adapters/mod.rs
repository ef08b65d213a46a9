//! Adapters to programs that were not written for memprof, but load plugins of other kinds.
//!
//! [`export_adapters!`](crate::export_adapters) gives a plugin's library the entry points that these
//! programs look for. Behind them, this module plays the host: it makes the plugin's one
//! instance in the process and passes the program's messages to it.
//!
//! - [`attached`]: a process that nobody prepared; its messages come over the control socket.
//! - [`ffi`]: any language that calls C functions; the reply is what the function returns.
//! - [`lua`]: a module of Lua or `LuaJIT`; the reply is a string.
//! - [`preload`]: any program, by `LD_PRELOAD`; its messages come over the control socket.
//! - [`redis`]: a Redis module; the reply goes to the client.
//! - [`mosquitto`]: a Mosquitto plugin; the reply goes to the client.
//! - [`traffic_server`]: an Apache Traffic Server plugin; the reply goes to the log.
//!
//! Loading never fails the program. Whatever is wrong is logged in one line, and every message
//! is answered with it.

#![cfg_attr(
    not(all(
        feature = "adapter-attached",
        feature = "adapter-ffi",
        feature = "adapter-lua",
        feature = "adapter-mosquitto",
        feature = "adapter-preload",
        feature = "adapter-redis",
        feature = "adapter-traffic-server"
    )),
    allow(dead_code, reason = "each adapter uses a part of what they share")
)]

mod answer;
mod arrival;
#[cfg(feature = "adapter-attached")]
pub mod attached;
mod config;
mod control;
mod copies;
mod environment;
#[cfg(feature = "adapter-ffi")]
pub mod ffi;
#[doc(hidden)]
pub mod instance;
mod log;
#[cfg(feature = "adapter-lua")]
pub mod lua;
#[cfg(feature = "adapter-mosquitto")]
pub mod mosquitto;
#[cfg(feature = "adapter-preload")]
pub mod preload;
#[cfg(feature = "adapter-redis")]
pub mod redis;
#[doc(hidden)]
pub mod symbol;
#[cfg(feature = "adapter-traffic-server")]
pub mod traffic_server;

use std::panic::{self, AssertUnwindSafe};

/// Makes a plugin's library loadable by other programs. `$entry` is the plugin's
/// `memprof_plugin_entry`; the adapters are chosen after a colon, all of them by default. Call it
/// once, in the cdylib, beside `export_plugin!`. By default they are those whose feature of this crate
/// is on; to name one whose feature is off is an error.
///
/// ```text
/// memprof_plugin_abi::export_plugin!(Greeter);
/// memprof_host::export_adapters!(memprof_plugin_entry: redis, preload);
/// ```
#[macro_export]
macro_rules! export_adapters {
    ($entry:path) => {
        $crate::__export_instance!();
        $crate::__export_attached!(optional, $entry);
        $crate::__export_ffi!(optional, $entry);
        $crate::__export_lua!(optional, $entry);
        $crate::__export_preload!(optional, $entry);
        $crate::__export_redis!(optional, $entry);
        $crate::__export_mosquitto!(optional, $entry);
        $crate::__export_traffic_server!(optional, $entry);
    };
    ($entry:path: $($adapter:ident),+ $(,)?) => {
        $crate::__export_instance!();
        $($crate::__export_adapter!($adapter, $entry);)+
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_adapter {
    (attached, $entry:path) => {
        $crate::__export_attached!(named, $entry);
    };
    (ffi, $entry:path) => {
        $crate::__export_ffi!(named, $entry);
    };
    (lua, $entry:path) => {
        $crate::__export_lua!(named, $entry);
    };
    (preload, $entry:path) => {
        $crate::__export_preload!(named, $entry);
    };
    (redis, $entry:path) => {
        $crate::__export_redis!(named, $entry);
    };
    (mosquitto, $entry:path) => {
        $crate::__export_mosquitto!(named, $entry);
    };
    (traffic_server, $entry:path) => {
        $crate::__export_traffic_server!(named, $entry);
    };
}

/// What stands in the place of an adapter whose feature is off.
macro_rules! without {
    ($macro:ident, $feature:literal) => {
        #[cfg(not(feature = $feature))]
        #[doc(hidden)]
        #[macro_export]
        macro_rules! $macro {
            (optional, $entry:path) => {};
            (named, $entry:path) => {
                compile_error!(concat!(
                    "memprof-host needs the feature ",
                    $feature,
                    " for this adapter"
                ));
            };
        }
    };
}

without!(__export_attached, "adapter-attached");
without!(__export_ffi, "adapter-ffi");
without!(__export_lua, "adapter-lua");
without!(__export_preload, "adapter-preload");
without!(__export_redis, "adapter-redis");
without!(__export_mosquitto, "adapter-mosquitto");
without!(__export_traffic_server, "adapter-traffic-server");

#[doc(hidden)]
#[macro_export]
macro_rules! __export_instance {
    () => {
        /// The plugin, for another copy of this library in the same process; null where there is none.
        #[unsafe(no_mangle)]
        pub extern "C" fn memprof_adapter_instance() -> *mut ::std::ffi::c_void {
            $crate::adapters::instance::shared().cast()
        }
    };
}

/// Exports `$name`, which passes on its arguments, and after them, in `$register`, the address that it
/// returns to: a [`symbol::Caller`]. The name is a text for a compiler: a literal, or `concat!` of some and
/// `env!("CARGO_CRATE_NAME")`, where the program derives it from the name of the library.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_with_caller {
    ($name:expr, $register:literal, $entry_point:path) => {
        const _: () = {
            #[unsafe(naked)]
            #[unsafe(export_name = $name)]
            unsafe extern "C" fn exported() {
                ::std::arch::naked_asm!(
                    concat!("mov ", $register, ", [rsp]"),
                    "jmp {}",
                    sym $entry_point
                )
            }
        };
    };
}

#[cfg(feature = "adapter-ffi")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_ffi {
    ($how:ident, $entry:path) => {
        const _: () = {
            /// Answers a message: a text that is to be freed.
            #[unsafe(export_name = concat!(env!("CARGO_CRATE_NAME"), "_send"))]
            unsafe extern "C" fn send(
                message: *const ::std::ffi::c_char,
            ) -> *mut ::std::ffi::c_char {
                // SAFETY: the argument of the program, unchanged.
                unsafe { $crate::adapters::ffi::send(&$entry, message) }
            }

            /// Frees the text of an answer.
            #[unsafe(export_name = concat!(env!("CARGO_CRATE_NAME"), "_free"))]
            unsafe extern "C" fn free(reply: *mut ::std::ffi::c_char) {
                // SAFETY: the argument of the program, unchanged.
                unsafe { $crate::adapters::ffi::free(reply) }
            }
        };
    };
}

#[cfg(feature = "adapter-lua")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_lua {
    ($how:ident, $entry:path) => {
        const _: () = {
            unsafe extern "C-unwind" fn open(
                state: *mut ::std::ffi::c_void,
                caller: $crate::adapters::symbol::Caller,
            ) -> ::std::ffi::c_int {
                // SAFETY: the argument of Lua, unchanged.
                unsafe { $crate::adapters::lua::open(&$entry, state, caller) }
            }
            $crate::__export_with_caller!(
                concat!("luaopen_", env!("CARGO_CRATE_NAME")),
                "rsi",
                open
            );
        };
    };
}

#[cfg(feature = "adapter-attached")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_attached {
    ($how:ident, $entry:path) => {
        /// What `memprof attach` calls when it has put this library into a process.
        ///
        /// # Safety
        /// Only memprof-attach calls it, on a thread of its own, with a NUL-terminated text.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn memprof_attached(
            toml: *const ::std::ffi::c_char,
        ) -> *const ::std::ffi::c_char {
            // SAFETY: the argument of memprof-attach, unchanged.
            unsafe { $crate::adapters::attached::attached(&$entry, toml) }
        }
    };
}

#[cfg(feature = "adapter-preload")]
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

#[cfg(feature = "adapter-redis")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_redis {
    ($how:ident, $entry:path) => {
        /// What Redis calls when it has loaded this library.
        ///
        /// # Safety
        /// Only Redis calls it, as redismodule.h says.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn RedisModule_OnLoad(
            ctx: *mut ::std::ffi::c_void,
            argv: *const *const ::std::ffi::c_void,
            argc: ::std::ffi::c_int,
        ) -> ::std::ffi::c_int {
            // SAFETY: the arguments of Redis, unchanged.
            unsafe { $crate::adapters::redis::load(&$entry, ctx, argv, argc) }
        }
    };
}

#[cfg(feature = "adapter-mosquitto")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_mosquitto {
    ($how:ident, $entry:path) => {
        /// Which interface Mosquitto and this library share.
        ///
        /// # Safety
        /// Only Mosquitto calls it, as mosquitto_plugin.h says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn mosquitto_plugin_version(
            count: ::std::ffi::c_int,
            versions: *const ::std::ffi::c_int,
        ) -> ::std::ffi::c_int {
            // SAFETY: the arguments of Mosquitto, unchanged.
            unsafe { $crate::adapters::mosquitto::version(count, versions) }
        }

        /// What Mosquitto calls when it has loaded this library.
        ///
        /// # Safety
        /// Only Mosquitto calls it, as mosquitto_plugin.h says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn mosquitto_plugin_init(
            identifier: *mut ::std::ffi::c_void,
            _data: *mut *mut ::std::ffi::c_void,
            options: *const $crate::adapters::mosquitto::Opt,
            count: ::std::ffi::c_int,
        ) -> ::std::ffi::c_int {
            // SAFETY: the arguments of Mosquitto, unchanged.
            unsafe { $crate::adapters::mosquitto::init(&$entry, identifier, options, count) }
        }

        /// What Mosquitto calls at its end: nothing is left to do.
        #[unsafe(no_mangle)]
        pub extern "C" fn mosquitto_plugin_cleanup(
            _data: *mut ::std::ffi::c_void,
            _options: *const $crate::adapters::mosquitto::Opt,
            _count: ::std::ffi::c_int,
        ) -> ::std::ffi::c_int {
            0
        }
    };
}

#[cfg(feature = "adapter-traffic-server")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_traffic_server {
    ($how:ident, $entry:path) => {
        /// What Traffic Server calls when it has loaded this library.
        ///
        /// # Safety
        /// Only Traffic Server calls it, as ts/ts.h says.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn TSPluginInit(
            argc: ::std::ffi::c_int,
            argv: *const *const ::std::ffi::c_char,
        ) {
            // SAFETY: the arguments of Traffic Server, unchanged.
            unsafe { $crate::adapters::traffic_server::init(&$entry, argc, argv) }
        }
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
