//! PostgreSQL 12 to 18: `LOAD '/path/memory_profile.so'`, or one of the settings that preload libraries, and
//! `CREATE FUNCTION memory_profile(text) … AS '/path/memory_profile.so', 'pg_memory_profile' LANGUAGE C STRICT`.
//!
//! The function answers for the backend that runs the query: what a person reads of the reply, or an error. A
//! second one asks all processes of the server, over the control sockets that each of them opens 100 ms
//! after it loaded the library or was forked. The config is the setting `memory_profile.config`, a file, else the
//! environment's.
#![expect(unsafe_code, reason = "functions that the server calls, and calls")]

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

/// fmgr.h, `Pg_finfo_record`: how a function is called. There is one way.
#[doc(hidden)]
pub static CALLING_CONVENTION: c_int = 1;

/// guc.h, `PGC_SIGHUP`: a setting of the server's files, which no session can change.
const BY_FILE: c_int = 2;

/// fmgr.h, `Pg_magic_func`: for which server the library was made.
#[doc(hidden)]
pub fn magic() -> *const c_void {
    static MAGIC: LockFreeOnce<Magic> = LockFreeOnce::new();
    let magic = MAGIC.get_or_set(magic::magic(version().unwrap_or_default()));
    ptr::from_ref(magic).cast()
}

/// The `server_version_num` of the server that this process is.
fn version() -> Option<c_int> {
    // SAFETY: guc.h declares it so.
    let get: GetConfigOption = unsafe { find_symbol(c"GetConfigOption") }?;
    // SAFETY: null where there is no such setting.
    let text = unsafe { get(c"server_version_num".as_ptr(), true, false) };
    // SAFETY: NUL-terminated, and kept until the next call.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })?;
    text.to_str().ok()?.parse().ok()
}

/// Reads the setting called `name`, and begins. Of several copies of the library in a process, the first
/// one defines the setting.
///
/// # Safety
/// The server calls `_PG_init`.
#[doc(hidden)]
pub unsafe fn init(entry: &'static memprof_plugin_entry_t, name: &'static CStr) {
    // Nothing here may have to be dropped: the server's functions leave by longjmp where they fail.
    static CONFIG: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());
    // SAFETY: fmgr.h declares it so.
    let find_shared: Option<FindRendezvousVariable> =
        unsafe { find_symbol(c"find_rendezvous_variable") };
    // SAFETY: guc.h declares it so, since version 9.1.
    let define: Option<DefineCustomStringVariable> =
        unsafe { find_symbol(c"DefineCustomStringVariable") };
    let (Some(find_shared), Some(define)) = (find_shared, define) else {
        return;
    };
    // SAFETY: fmgr.h: on the server's thread.
    let shared = unsafe { find_shared(name.as_ptr()) };
    // SAFETY: a place of the process's, for as long as it lives.
    let shared = unsafe { &mut *shared };
    if shared.is_null() {
        *shared = CONFIG.as_ptr().cast();
        // SAFETY: as above; static texts, and a place for the value that is static too.
        unsafe {
            define(
                name.as_ptr(),
                c"File with the configuration of memory profiling.".as_ptr(),
                ptr::null(),
                CONFIG.as_ptr(),
                ptr::null(),
                BY_FILE,
                0,
                ptr::null(),
                ptr::null(),
                ptr::null(),
            );
        }
    }
    // SAFETY: of the first copy, which is never unloaded.
    let config: &AtomicPtr<c_char> = unsafe { AtomicPtr::from_ptr(shared.cast()) };
    let config = config.load(Ordering::Relaxed);
    catch_panic((), || {
        // SAFETY: null, or NUL-terminated and kept while the setting is unchanged.
        let file = (!config.is_null()).then(|| unsafe { CStr::from_ptr(config) }.to_string_lossy());
        let settings = || match file.filter(|file| !file.is_empty()) {
            Some(file) => config::parse([("config", &*file)]),
            None => environment::settings(),
        };
        delayed_start::start_delayed_with(entry, settings);
    });
}

/// Answers a message for this process.
///
/// # Safety
/// The server calls it as a function of one text that returns a text.
#[doc(hidden)]
pub unsafe fn answer(call: *mut Call) -> Datum {
    // SAFETY: promised by the caller.
    unsafe { run(call, |_, message| delayed_start::send(message)) }
}

/// Answers a message for all processes of the server: JSON, an array of objects.
///
/// # Safety
/// As [`answer`].
#[doc(hidden)]
pub unsafe fn answer_for_all(call: *mut Call) -> Datum {
    // SAFETY: promised by the caller.
    unsafe {
        run(call, |server, message| {
            delayed_start::send_to_server_processes(message, || server.is_interrupted())
        })
    }
}

/// # Safety
/// As [`answer`].
unsafe fn run(
    call: *mut Call,
    work: impl FnOnce(Server, &[u8]) -> Result<String, String> + Copy,
) -> Datum {
    // Nothing here may have to be dropped: the server's functions leave by longjmp where they fail.
    // SAFETY: promised by the caller.
    let called = version().and_then(|version| unsafe { Server::of(call, version) });
    let Some((server, argument)) = called else {
        return 0;
    };
    // SAFETY: a text, and the server's thread.
    let message = unsafe { server.text(argument) };
    let outcome = catch_panic(Outcome::NoMemory, || {
        // SAFETY: NUL-terminated, and the server's until the function returns.
        let message = unsafe { CStr::from_ptr(message) };
        server.outcome(work(server, message.to_bytes()))
    });
    // SAFETY: as above.
    unsafe { server.finish(outcome) }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_postgres {
    ($how:ident, $entry:path) => {
        const _: () = {
            use $crate::adapters::postgres;

            #[unsafe(export_name = "Pg_magic_func")]
            extern "C" fn magic() -> *const ::std::ffi::c_void {
                postgres::magic()
            }

            #[unsafe(export_name = "_PG_init")]
            unsafe extern "C-unwind" fn init() {
                const SETTING: &::std::ffi::CStr = $crate::__library_name!("", ".config");
                // SAFETY: the server calls.
                unsafe { postgres::init(&$entry, SETTING) }
            }

            #[unsafe(export_name = concat!("pg_", env!("CARGO_CRATE_NAME")))]
            unsafe extern "C-unwind" fn answer(call: *mut postgres::Call) -> postgres::Datum {
                // SAFETY: the argument of the server, unchanged.
                unsafe { postgres::answer(call) }
            }

            #[unsafe(export_name = concat!("pg_", env!("CARGO_CRATE_NAME"), "_all"))]
            unsafe extern "C-unwind" fn answer_for_all(
                call: *mut postgres::Call,
            ) -> postgres::Datum {
                // SAFETY: the argument of the server, unchanged.
                unsafe { postgres::answer_for_all(call) }
            }

            #[unsafe(export_name = concat!("pg_finfo_pg_", env!("CARGO_CRATE_NAME")))]
            extern "C" fn of_answer() -> *const ::std::ffi::c_int {
                &postgres::CALLING_CONVENTION
            }

            #[unsafe(export_name = concat!("pg_finfo_pg_", env!("CARGO_CRATE_NAME"), "_all"))]
            extern "C" fn of_answer_for_all() -> *const ::std::ffi::c_int {
                &postgres::CALLING_CONVENTION
            }
        };
    };
}
