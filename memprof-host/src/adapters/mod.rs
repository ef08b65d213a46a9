//! Adapters to programs that were not written for memprof, but load plugins of other kinds.
//!
//! [`export_adapters!`](crate::export_adapters) gives a plugin's library the entry points that these
//! programs look for. Behind them, this module plays the host: it makes the plugin's one
//! instance in the process and passes the program's messages to it.
//!
//! - [`attached`]: a process that nobody prepared; its messages come over the control socket.
//! - [`ffi`]: any language that calls C functions; the reply is what the function returns.
//! - [`java`]: an agent of a JVM, or a class; the reply goes to standard error, or is a string.
//! - [`lua`]: a module of Lua or `LuaJIT`; the reply is a string.
//! - [`node`]: an addon of Node; the reply is a string or an object.
//! - [`preload`]: any program, by `LD_PRELOAD`; its messages come over the control socket.
//! - [`python`]: a module of Python; the reply is a str or a dict.
//! - [`postgres`]: a PostgreSQL extension; the reply is a text of SQL, or of all backends a table.
//! - [`mariadb`]: a loadable function of MariaDB or MySQL; the reply is a text of SQL.
//! - [`nginx`], [`httpd`]: modules that open the control socket of each worker.
//! - [`redis`]: a Redis module; the reply goes to the client.
//! - [`ruby`]: an extension of Ruby; the reply is a string.
//! - [`mosquitto`]: a Mosquitto plugin; the reply goes to the client.
//! - [`traffic_server`]: an Apache Traffic Server plugin; the reply goes to the log.
//!
//! Loading never fails the program. Whatever is wrong is logged in one line, and every message
//! is answered with it.

#![cfg_attr(
    not(all(
        feature = "adapter-attached",
        feature = "adapter-ffi",
        feature = "adapter-httpd",
        feature = "adapter-java",
        feature = "adapter-lua",
        feature = "adapter-mariadb",
        feature = "adapter-mosquitto",
        feature = "adapter-nginx",
        feature = "adapter-node",
        feature = "adapter-postgres",
        feature = "adapter-preload",
        feature = "adapter-python",
        feature = "adapter-redis",
        feature = "adapter-ruby",
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
#[cfg(feature = "adapter-httpd")]
pub mod httpd;
#[doc(hidden)]
pub mod instance;
#[cfg(feature = "adapter-java")]
pub mod java;
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
#[cfg(feature = "adapter-postgres")]
pub mod postgres;
#[cfg(feature = "adapter-preload")]
pub mod preload;
#[cfg(feature = "adapter-python")]
pub mod python;
#[cfg(feature = "adapter-redis")]
pub mod redis;
#[cfg(feature = "adapter-ruby")]
pub mod ruby;
#[cfg(feature = "adapter-postgres")]
mod siblings;
#[doc(hidden)]
pub mod symbol;
#[cfg(feature = "adapter-traffic-server")]
pub mod traffic_server;

#[cfg(any(feature = "adapter-java", feature = "adapter-ruby"))]
use std::ffi::{CStr, CString};
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
        $crate::__export_java!(optional, $entry);
        $crate::__export_lua!(optional, $entry);
        $crate::__export_node!(optional, $entry);
        $crate::__export_preload!(optional, $entry);
        $crate::__export_python!(optional, $entry);
        $crate::__export_redis!(optional, $entry);
        $crate::__export_ruby!(optional, $entry);
        $crate::__export_httpd!(optional, $entry);
        $crate::__export_mariadb!(optional, $entry);
        $crate::__export_nginx!(optional, $entry);
        $crate::__export_postgres!(optional, $entry);
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
    (java, $entry:path) => {
        $crate::__export_java!(named, $entry);
    };
    (lua, $entry:path) => {
        $crate::__export_lua!(named, $entry);
    };
    (node, $entry:path) => {
        $crate::__export_node!(named, $entry);
    };
    (preload, $entry:path) => {
        $crate::__export_preload!(named, $entry);
    };
    (python, $entry:path) => {
        $crate::__export_python!(named, $entry);
    };
    (redis, $entry:path) => {
        $crate::__export_redis!(named, $entry);
    };
    (ruby, $entry:path) => {
        $crate::__export_ruby!(named, $entry);
    };
    (httpd, $entry:path) => {
        $crate::__export_httpd!(named, $entry);
    };
    (mariadb, $entry:path) => {
        $crate::__export_mariadb!(named, $entry);
    };
    (nginx, $entry:path) => {
        $crate::__export_nginx!(named, $entry);
    };
    (postgres, $entry:path) => {
        $crate::__export_postgres!(named, $entry);
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
without!(__export_java, "adapter-java");
without!(__export_lua, "adapter-lua");
without!(__export_node, "adapter-node");
without!(__export_preload, "adapter-preload");
without!(__export_python, "adapter-python");
without!(__export_redis, "adapter-redis");
without!(__export_ruby, "adapter-ruby");
without!(__export_httpd, "adapter-httpd");
without!(__export_mariadb, "adapter-mariadb");
without!(__export_nginx, "adapter-nginx");
without!(__export_postgres, "adapter-postgres");
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

#[cfg(feature = "adapter-java")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_java {
    ($how:ident, $entry:path) => {
        /// What a JVM calls when a class has loaded this library.
        ///
        /// # Safety
        /// Only a JVM calls it, as the Java Native Interface says.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn JNI_OnLoad(
            vm: $crate::adapters::java::Vm,
            _reserved: *mut ::std::ffi::c_void,
        ) -> ::std::ffi::c_int {
            let name = $crate::__library_name!();
            // SAFETY: the argument of the JVM, unchanged.
            unsafe { $crate::adapters::java::load(&$entry, name, vm) }
        }

        /// What a JVM calls at its start with this library as an agent. Another result than 0 would end it.
        ///
        /// # Safety
        /// Only a JVM calls it, as the JVM Tool Interface says.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn Agent_OnLoad(
            _vm: *mut ::std::ffi::c_void,
            options: *const ::std::ffi::c_char,
            _reserved: *mut ::std::ffi::c_void,
        ) -> ::std::ffi::c_int {
            // SAFETY: the argument of the JVM, unchanged.
            unsafe { $crate::adapters::java::agent(&$entry, options) };
            0
        }

        /// What a running JVM calls that was told to load this library as an agent.
        ///
        /// # Safety
        /// Only a JVM calls it, as the JVM Tool Interface says.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn Agent_OnAttach(
            _vm: *mut ::std::ffi::c_void,
            options: *const ::std::ffi::c_char,
            _reserved: *mut ::std::ffi::c_void,
        ) -> ::std::ffi::c_int {
            // SAFETY: the argument of the JVM, unchanged.
            unsafe { $crate::adapters::java::agent(&$entry, options) }
        }
    };
}

#[cfg(feature = "adapter-node")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_node {
    ($how:ident, $entry:path) => {
        const _: () = {
            unsafe extern "C" fn register(
                env: *mut ::std::ffi::c_void,
                exports: *mut ::std::ffi::c_void,
                caller: $crate::adapters::symbol::Caller,
            ) -> *mut ::std::ffi::c_void {
                // SAFETY: the arguments of Node, unchanged.
                unsafe { $crate::adapters::node::register(&$entry, env, exports, caller) }
            }
            $crate::__export_with_caller!("napi_register_module_v1", "rdx", register);
        };
    };
}

#[cfg(feature = "adapter-python")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_python {
    ($how:ident, $entry:path) => {
        const _: () = {
            unsafe extern "C" fn init(
                caller: $crate::adapters::symbol::Caller,
            ) -> *mut ::std::ffi::c_void {
                // SAFETY: called by Python only.
                unsafe {
                    $crate::adapters::python::init(&$entry, $crate::__library_name!(), caller)
                }
            }
            $crate::__export_with_caller!(
                concat!("PyInit_", env!("CARGO_CRATE_NAME")),
                "rdi",
                init
            );
        };
    };
}

#[cfg(feature = "adapter-ruby")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export_ruby {
    ($how:ident, $entry:path) => {
        const _: () = {
            unsafe extern "C-unwind" fn init(caller: $crate::adapters::symbol::Caller) {
                // SAFETY: called by Ruby only.
                unsafe { $crate::adapters::ruby::init(&$entry, $crate::__library_name!(), caller) }
            }
            $crate::__export_with_caller!(concat!("Init_", env!("CARGO_CRATE_NAME")), "rdi", init);
        };
    };
}

/// The name of the plugin's library as a C string, between two other texts.
#[doc(hidden)]
#[macro_export]
macro_rules! __library_name {
    () => {
        $crate::__library_name!("", "")
    };
    ($before:literal, $after:literal) => {
        const {
            match ::std::ffi::CStr::from_bytes_with_nul(
                concat!($before, env!("CARGO_CRATE_NAME"), $after, "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            }
        }
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

/// The name of a class or module: `MemoryProfile` for `memory_profile`.
#[cfg(any(feature = "adapter-java", feature = "adapter-ruby"))]
fn camel_case(name: &CStr) -> CString {
    let name = name.to_string_lossy();
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    let words = name.split('_').filter(|word| !word.is_empty());
    log::c_text(&words.map(capital).collect::<String>(), usize::MAX)
}
