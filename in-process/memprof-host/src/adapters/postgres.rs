//! PostgreSQL 12 to 18: `LOAD '/path/memory_profile.so'`, or one of the settings that preload libraries, and
//! `CREATE FUNCTION memory_profile(text) … AS '/path/memory_profile.so', 'pg_memory_profile' LANGUAGE C STRICT`.
//!
//! The function sends the message to the backend that runs the query, and returns the text of the reply or fails. A
//! second function sends it to all processes of the server, over the control sockets that each of them opens 100 ms
//! after it loaded the library or was forked. The config is the file in the setting `memory_profile.config`, otherwise
//! it comes from the environment.
#![expect(unsafe_code, reason = "the API of PostgreSQL extensions")]

mod magic;
mod server;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use memprof_own::LockFreeOnce;
use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::host_symbols::find_symbol;
use super::{catch_panic, config, delayed_start, environment};
use magic::Magic;
use server::{Outcome, Server};

#[doc(hidden)]
pub use server::{Call, Datum};

type GetConfigOption = unsafe extern "C-unwind" fn(*const c_char, bool, bool) -> *const c_char;
type FindRendezvousVariable = unsafe extern "C-unwind" fn(*const c_char) -> *mut *mut c_void;
type DefineCustomStringVariable = unsafe extern "C-unwind" fn(
    *const c_char,
    *const c_char,
    *const c_char,
    *mut *mut c_char,
    *const c_char,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    *const c_void,
);

/// fmgr.h, `Pg_finfo_record`: the calling convention of a function. There is only version 1.
#[doc(hidden)]
pub static CALLING_CONVENTION: c_int = 1;

/// guc.h, `PGC_SIGHUP`: a setting of the server's files, which a session cannot change.
const PGC_SIGHUP: c_int = 2;

/// Implements `Pg_magic_func` of fmgr.h: returns the block that states for which server the library was built, as this
/// server expects it.
#[doc(hidden)]
pub fn magic_block_address() -> *const c_void {
    static MAGIC: LockFreeOnce<Magic> = LockFreeOnce::new();
    // A version of 0 gets the block of the oldest known version.
    let magic = MAGIC.get_or_set(magic::magic_block(server_version().unwrap_or_default()));
    ptr::from_ref(magic).cast()
}

/// Returns the `server_version_num` of this server, such as 160002. `None` if the process is no PostgreSQL server, or
/// reports no number.
fn server_version() -> Option<c_int> {
    // SAFETY: guc.h declares a function of this type.
    let get: GetConfigOption = unsafe { find_symbol(c"GetConfigOption") }?;
    // SAFETY: guc.h: on the server's thread; returns null if there is no such setting.
    let text = unsafe { get(c"server_version_num".as_ptr(), true, false) };
    // SAFETY: guc.h: not null, NUL-terminated, and valid until the next call.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })?;
    text.to_str().ok()?.parse().ok()
}

/// Defines the setting called `name`, and starts the plugin after a delay. The setting names the config file; if it is
/// not set, the config is that of the environment. If a process has several copies of the library, the first one
/// defines the setting. Does nothing if the process is no server.
///
/// # Safety
/// The server calls `_PG_init`.
#[doc(hidden)]
pub unsafe fn init_extension(entry: &'static memprof_plugin_entry_t, name: &'static CStr) {
    // No value in this function may need a drop: the server's functions fail by longjmp.
    static CONFIG: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());
    // SAFETY: fmgr.h declares a function of this type.
    let find_shared: Option<FindRendezvousVariable> =
        unsafe { find_symbol(c"find_rendezvous_variable") };
    // SAFETY: guc.h declares a function of this type, since version 9.1.
    let define: Option<DefineCustomStringVariable> =
        unsafe { find_symbol(c"DefineCustomStringVariable") };
    let (Some(find_shared), Some(define)) = (find_shared, define) else {
        return;
    };
    // SAFETY: fmgr.h: on the server's thread, with a NUL-terminated name.
    let shared = unsafe { find_shared(name.as_ptr()) };
    // SAFETY: fmgr.h: a variable that lives as long as the process.
    let shared = unsafe { &mut *shared };
    if shared.is_null() {
        *shared = CONFIG.as_ptr().cast();
        // SAFETY: guc.h: on the server's thread, with static texts and a static variable for the value.
        unsafe {
            define(
                name.as_ptr(),
                c"File with the configuration of memory profiling.".as_ptr(),
                ptr::null(),
                CONFIG.as_ptr(),
                ptr::null(),
                PGC_SIGHUP,
                0,
                ptr::null(),
                ptr::null(),
                ptr::null(),
            );
        }
    }
    // SAFETY: the variable of the first copy, which is never unloaded.
    let config: &AtomicPtr<c_char> = unsafe { AtomicPtr::from_ptr(shared.cast()) };
    let config = config.load(Ordering::Relaxed);
    catch_panic((), || {
        // SAFETY: guc.h: not null, NUL-terminated, and valid while the setting is unchanged.
        let file = (!config.is_null()).then(|| unsafe { CStr::from_ptr(config) }.to_string_lossy());
        let settings = || match file.filter(|file| !file.is_empty()) {
            Some(file) => config::parse_setting_pairs([("config", &*file)]),
            None => environment::read_settings(),
        };
        delayed_start::start_plugin_delayed_with_settings(entry, settings);
    });
}

/// Sends a message to this process. The SQL function's result is the text of the reply.
///
/// # Safety
/// The server calls it as a function with one text argument that returns a text.
#[doc(hidden)]
pub unsafe fn handle_call(call: *mut Call) -> Datum {
    // SAFETY: the caller promises a call by the server.
    unsafe { run_sql_function(call, |_, message| delayed_start::send_message(message)) }
}

/// Sends a message to all processes of the server. The SQL function's result is JSON, an array of objects.
///
/// # Safety
/// The server calls it as a function with one text argument that returns a text.
#[doc(hidden)]
pub unsafe fn handle_send_to_all_processes(call: *mut Call) -> Datum {
    // SAFETY: the caller promises a call by the server.
    unsafe {
        run_sql_function(call, |server, message| {
            delayed_start::send_to_server_processes(message, || server.is_interrupted())
        })
    }
}

/// Passes the argument of a call to `work`, and returns the result of `work` to the server; an error becomes an error
/// of the query, by longjmp. The result is an SQL NULL if the call has not one argument, if the argument is NULL, or if
/// a function of the server is missing.
///
/// # Safety
/// The server calls a function with one text argument that returns a text.
unsafe fn run_sql_function(
    call: *mut Call,
    work: impl FnOnce(Server, &[u8]) -> Result<String, String> + Copy,
) -> Datum {
    // No value in this function may need a drop: the server's functions fail by longjmp.
    // SAFETY: the caller promises a call by the server of this version.
    let server_and_argument =
        server_version().and_then(|version| unsafe { Server::from_call(call, version) });
    let Some((server, argument)) = server_and_argument else {
        // SAFETY: the caller promises a call by the server, which passes a whole struct.
        return unsafe { &mut *call }.return_null();
    };
    // SAFETY: the argument is a text, on the server's thread; no value above needs a drop.
    let message = unsafe { server.copy_argument(argument) };
    let outcome = catch_panic(Outcome::NoMemory, || {
        // SAFETY: the server's text is NUL-terminated, and valid until the function returns.
        let message = unsafe { CStr::from_ptr(message) };
        server.copy_outcome(work(server, message.to_bytes()))
    });
    // SAFETY: on the server's thread; no value above needs a drop.
    unsafe { server.return_or_raise(outcome) }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_postgres {
    ($how:ident, $entry:path) => {
        const _: () = {
            use $crate::adapters::postgres;

            /// Entry point by which the server checks for which version the library was built.
            #[unsafe(export_name = "Pg_magic_func")]
            extern "C" fn magic_block() -> *const ::std::ffi::c_void {
                postgres::magic_block_address()
            }

            /// Entry point that the server calls after it has loaded the library.
            #[unsafe(export_name = "_PG_init")]
            unsafe extern "C-unwind" fn init() {
                const SETTING: &::std::ffi::CStr = $crate::__library_name!("", ".config");
                // SAFETY: only the server calls `_PG_init`.
                unsafe { postgres::init_extension(&$entry, SETTING) }
            }

            /// `pg_memory_profile`: the SQL function that sends a message to this process.
            #[unsafe(export_name = concat!("pg_", env!("CARGO_CRATE_NAME")))]
            unsafe extern "C-unwind" fn handle_call(call: *mut postgres::Call) -> postgres::Datum {
                // SAFETY: the server's argument, unchanged.
                unsafe { postgres::handle_call(call) }
            }

            /// `pg_memory_profile_all`: the SQL function for all processes of the server.
            #[unsafe(export_name = concat!("pg_", env!("CARGO_CRATE_NAME"), "_all"))]
            unsafe extern "C-unwind" fn handle_send_to_all_processes(
                call: *mut postgres::Call,
            ) -> postgres::Datum {
                // SAFETY: the server's argument, unchanged.
                unsafe { postgres::handle_send_to_all_processes(call) }
            }

            /// fmgr.h, `PG_FUNCTION_INFO_V1`: the server requires such a function for each SQL function.
            #[unsafe(export_name = concat!("pg_finfo_pg_", env!("CARGO_CRATE_NAME")))]
            extern "C" fn calling_convention() -> *const ::std::ffi::c_int {
                &postgres::CALLING_CONVENTION
            }

            /// Like `calling_convention`, for `pg_memory_profile_all`: the server looks up one such function for each
            /// SQL function.
            #[unsafe(export_name = concat!("pg_finfo_pg_", env!("CARGO_CRATE_NAME"), "_all"))]
            extern "C" fn calling_convention_for_all() -> *const ::std::ffi::c_int {
                &postgres::CALLING_CONVENTION
            }
        };
    };
}
