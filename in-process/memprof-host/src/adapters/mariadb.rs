//! MariaDB and MySQL: `CREATE FUNCTION memory_profile RETURNS STRING SONAME 'memory_profile.so'`.
//!
//! `SELECT memory_profile('stats')` returns what a person reads of the reply, and fails with the reason where the
//! message does. Everybody may call a loadable function, so it takes only messages that read, and those that `allow`
//! in the config names. The server's process gets a control socket with the first call. The config comes
//! from the environment.
#![expect(unsafe_code, reason = "the structs of loadable functions")]

use std::ffi::{CString, c_char, c_int, c_uchar, c_uint, c_ulong, c_void};
use std::{ptr, slice};

use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::host_symbols::find;
use super::log::{c_text, one_line};
use super::{catch_panic, delayed_start};
use crate::protocol::split_message;

/// Messages that change nothing and show nobody's data but figures of the process.
const READING: [&str; 6] = ["help", "stats", "status", "ledger", "doctor", "list"];

/// `mysql_com.h`, `STRING_RESULT`.
const STRING: c_int = 0;
/// `mysqld_error.h`, `ER_UNKNOWN_ERROR`: its text is the one that is given.
const UNKNOWN_ERROR: c_uint = 1105;
/// `mysql_com.h`, `MYSQL_ERRMSG_SIZE`, without the NUL.
const ERROR_LIMIT: usize = 500;
/// Beyond 64 KiB the server takes the column for a LONGTEXT.
const LENGTH_LIMIT: c_ulong = 16 << 20;

const PANICKED: &str = "the answer panicked";

type PrintError = unsafe extern "C" fn(c_uint, *const c_char, c_ulong, ...);

/// mysql_com.h, `UDF_INIT`.
#[doc(hidden)]
#[repr(C)]
#[derive(Debug)]
pub struct Init {
    maybe_null: c_char,
    decimals: c_uint,
    max_length: c_ulong,
    /// The reply, until the next row or the end of the statement: of [`CString::into_raw`].
    reply: *mut c_char,
    const_item: c_char,
    extension: *mut c_void,
}

/// mysql_com.h, `UDF_ARGS`.
#[doc(hidden)]
#[repr(C)]
#[derive(Debug)]
pub struct Args {
    count: c_uint,
    kinds: *mut c_int,
    values: *const *const c_char,
    lengths: *const c_ulong,
}

/// Checks the arguments of a statement, and makes the plugin; 1 refuses it with the text in `error`.
///
/// # Safety
/// The server calls it as it calls the `_init` of a loadable function.
#[doc(hidden)]
pub unsafe fn init(
    entry: &'static memprof_plugin_entry_t,
    init: *mut Init,
    args: *const Args,
    error: *mut c_char,
) -> c_char {
    // SAFETY: promised by the caller.
    let args = unsafe { &*args };
    if args.count != 1 {
        let text = c"it takes one message, as in memory_profile('stats')";
        // SAFETY: `MYSQL_ERRMSG_SIZE` bytes; the text is shorter.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), error, text.count_bytes() + 1) };
        return 1;
    }
    // SAFETY: `count` of them; the server converts the argument to what is asked for.
    unsafe { *args.kinds = STRING };
    // SAFETY: promised by the caller.
    let init = unsafe { &mut *init };
    init.maybe_null = 1;
    init.max_length = LENGTH_LIMIT;
    init.reply = ptr::null_mut();
    init.const_item = 0;
    delayed_start::ensure_instance(entry);
    0
}

/// Answers the message of one row; null with `is_null` or `error` set.
///
/// # Safety
/// The server calls it as it calls a loadable function, after `init`.
#[doc(hidden)]
pub unsafe fn answer(
    init: *mut Init,
    args: *const Args,
    length: *mut c_ulong,
    is_null: *mut c_uchar,
    error: *mut c_uchar,
) -> *const c_char {
    // SAFETY: promised by the caller, who gives it to nobody else meanwhile.
    let init = unsafe { &mut *init };
    init.free_reply();
    // SAFETY: as above.
    let args = unsafe { &*args };
    // SAFETY: as above; `init` saw that there is one.
    let value = unsafe { *args.values };
    if value.is_null() {
        // SAFETY: promised by the caller.
        unsafe { *is_null = 1 };
        return ptr::null();
    }
    // SAFETY: as above.
    let size = unsafe { *args.lengths } as usize;
    // SAFETY: a text of that length, which the server keeps during the call.
    let message = unsafe { slice::from_raw_parts(value.cast::<u8>(), size) };
    match catch_panic(Err(PANICKED.to_owned()), || send(message)) {
        Ok(reply) => {
            let reply = c_text(&reply, LENGTH_LIMIT as usize);
            // SAFETY: promised by the caller.
            unsafe { *length = reply.count_bytes() as c_ulong };
            init.reply = reply.into_raw();
            init.reply
        }
        Err(why) => {
            // SAFETY: promised by the caller.
            unsafe { *error = 1 };
            fail(&why);
            ptr::null()
        }
    }
}

/// Frees the reply at the end of a statement.
///
/// # Safety
/// The server calls it as it calls the `_deinit` of a loadable function.
#[doc(hidden)]
pub unsafe fn deinit(init: *mut Init) {
    // SAFETY: promised by the caller.
    unsafe { &mut *init }.free_reply();
}

impl Init {
    fn free_reply(&mut self) {
        let reply = std::mem::replace(&mut self.reply, ptr::null_mut());
        if !reply.is_null() {
            // SAFETY: of `CString::into_raw`.
            drop(unsafe { CString::from_raw(reply) });
        }
    }
}

fn send(message: &[u8]) -> Result<String, String> {
    let text = String::from_utf8_lossy(message);
    let (name, _) = split_message(&text);
    if READING.contains(&name) || delayed_start::allows(name) {
        return delayed_start::send(message);
    }
    let shown: String = name.chars().take(40).collect();
    Err(format!(
        "{shown:?} is not a message for everybody, who may call this function: it takes {}; allow = [{shown:?}] in the \
         file that MEMPROF_CONFIG names lets it through, and memprof sends it over the control socket",
        READING.join(", ")
    ))
}

/// Fails the statement.
fn fail(why: &str) {
    let text = c_text(&one_line(why), ERROR_LIMIT);
    // SAFETY: my_sys.h declares it so.
    if let Some(print) = unsafe { find::<PrintError>(c"my_printf_error") } {
        // SAFETY: on a thread of the server's that runs a statement; the text is no format.
        unsafe { print(UNKNOWN_ERROR, c"%s".as_ptr(), 0, text.as_ptr()) };
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_mariadb {
    ($how:ident, $entry:path) => {
        const _: () = {
            use ::std::ffi::{c_char, c_uchar, c_ulong};
            use $crate::adapters::mariadb;

            #[unsafe(export_name = concat!(env!("CARGO_CRATE_NAME"), "_init"))]
            unsafe extern "C" fn init(
                init: *mut mariadb::Init,
                args: *const mariadb::Args,
                error: *mut c_char,
            ) -> c_char {
                // SAFETY: the arguments of the server, unchanged.
                unsafe { mariadb::init(&$entry, init, args, error) }
            }

            #[unsafe(export_name = env!("CARGO_CRATE_NAME"))]
            unsafe extern "C" fn answer(
                init: *mut mariadb::Init,
                args: *const mariadb::Args,
                _result: *mut c_char,
                length: *mut c_ulong,
                is_null: *mut c_uchar,
                error: *mut c_uchar,
            ) -> *const c_char {
                // SAFETY: the arguments of the server, unchanged.
                unsafe { mariadb::answer(init, args, length, is_null, error) }
            }

            #[unsafe(export_name = concat!(env!("CARGO_CRATE_NAME"), "_deinit"))]
            unsafe extern "C" fn deinit(init: *mut mariadb::Init) {
                // SAFETY: the argument of the server, unchanged.
                unsafe { mariadb::deinit(init) }
            }
        };
    };
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!(offset_of!(Init, decimals), 4);
        assert_eq!(offset_of!(Init, max_length), 8);
        assert_eq!(offset_of!(Init, reply), 16);
        assert_eq!(offset_of!(Init, const_item), 24);
        assert_eq!(size_of::<Init>(), 40);
        assert_eq!(offset_of!(Args, kinds), 8);
        assert_eq!(offset_of!(Args, values), 16);
        assert_eq!(offset_of!(Args, lengths), 24);
    }
}
