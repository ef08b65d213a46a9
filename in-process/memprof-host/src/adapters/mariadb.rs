//! MariaDB and MySQL: `CREATE FUNCTION memory_profile RETURNS STRING SONAME 'memory_profile.so'`.
//!
//! `SELECT memory_profile('stats')` returns the text of the reply, and fails with the reason if the message fails.
//! Every user may call a loadable function, so it accepts only read-only messages and those that `allow` in the config
//! lists. The first call creates the plugin and the server's control socket. The config comes from the environment.
#![expect(unsafe_code, reason = "the structs of loadable functions")]

use std::ffi::{CString, c_char, c_int, c_uchar, c_uint, c_ulong, c_void};
use std::{ptr, slice};

use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::host_symbols::find_symbol;
use super::log::{one_line, to_truncated_c_string};
use super::{catch_panic, delayed_start};
use crate::protocol::split_message;

/// Messages that change nothing and show only measurements of the process.
const READ_ONLY_MESSAGES: [&str; 6] = ["help", "stats", "status", "ledger", "doctor", "list"];

/// `mysql_com.h`, `STRING_RESULT`.
const STRING_RESULT: c_int = 0;
/// `mysqld_error.h`, `ER_UNKNOWN_ERROR`, whose text is an argument.
const UNKNOWN_ERROR: c_uint = 1105;
/// `mysql_com.h`, `MYSQL_ERRMSG_SIZE`, without the NUL.
const ERROR_LIMIT: usize = 500;
/// Largest length of a reply in bytes. Beyond 64 KiB the server uses a LONGTEXT column.
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
    /// The reply, until the next row or the end of the statement; from [`CString::into_raw`].
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

/// Checks the arguments of a statement, and creates the plugin. Returns 0, or 1 to refuse the statement with the text
/// in `error`.
///
/// # Safety
/// The server calls it as the `_init` of a loadable function.
#[doc(hidden)]
pub unsafe fn init_statement(
    entry: &'static memprof_plugin_entry_t,
    init: *mut Init,
    args: *const Args,
    error: *mut c_char,
) -> c_char {
    // SAFETY: udf API: the server passes whole arguments, which are valid during the call.
    let args = unsafe { &*args };
    if args.count != 1 {
        let text = c"it takes one message, as in memory_profile('stats')";
        // SAFETY: udf API: `error` has room for `MYSQL_ERRMSG_SIZE` bytes; the text is shorter.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), error, text.count_bytes() + 1) };
        return 1;
    }
    // SAFETY: udf API: `kinds` has `count` elements; the server converts the argument to this type.
    unsafe { *args.kinds = STRING_RESULT };
    // SAFETY: udf API: the server passes its whole struct, which no other code uses during the call.
    let init = unsafe { &mut *init };
    // The reply may be NULL, and differs from call to call.
    init.maybe_null = 1;
    init.max_length = LENGTH_LIMIT;
    init.reply = ptr::null_mut();
    init.const_item = 0;
    delayed_start::ensure_instance(entry);
    0
}

/// Sends the message of one row and returns its reply. Returns null and sets `is_null` if the message is an SQL NULL.
/// Returns null and sets `error` if the message is not allowed for all users, or failed.
///
/// # Safety
/// The server calls it as a loadable function, after `init_statement`.
#[doc(hidden)]
pub unsafe fn reply_to_row(
    init: *mut Init,
    args: *const Args,
    length: *mut c_ulong,
    is_null: *mut c_uchar,
    error: *mut c_uchar,
) -> *const c_char {
    // SAFETY: udf API: the server passes its whole struct, which no other code uses during the call.
    let init = unsafe { &mut *init };
    init.free_reply();
    // SAFETY: udf API: the server passes whole arguments, which are valid during the call.
    let args = unsafe { &*args };
    // SAFETY: udf API: there is one value, as `init_statement` has checked.
    let value = unsafe { *args.values };
    if value.is_null() {
        // SAFETY: udf API: the server passes a writable `is_null`.
        unsafe { *is_null = 1 };
        return ptr::null();
    }
    // SAFETY: udf API: there is one length, as `init_statement` has checked.
    let size = unsafe { *args.lengths } as usize;
    // SAFETY: udf API: a text of that length, which is valid during the call.
    let message = unsafe { slice::from_raw_parts(value.cast::<u8>(), size) };
    match catch_panic(Err(PANICKED.to_owned()), || send_if_allowed(message)) {
        Ok(reply) => {
            let reply = to_truncated_c_string(&reply, LENGTH_LIMIT as usize);
            // SAFETY: udf API: the server passes a writable `length`.
            unsafe { *length = reply.count_bytes() as c_ulong };
            init.reply = reply.into_raw();
            init.reply
        }
        Err(reason) => {
            // SAFETY: udf API: the server passes a writable `error`.
            unsafe { *error = 1 };
            fail_statement(&reason);
            ptr::null()
        }
    }
}

/// Frees the reply at the end of a statement.
///
/// # Safety
/// The server calls it as the `_deinit` of a loadable function.
#[doc(hidden)]
pub unsafe fn deinit_statement(init: *mut Init) {
    // SAFETY: udf API: the server passes its whole struct, which no other code uses during the call.
    unsafe { &mut *init }.free_reply();
}

impl Init {
    /// Frees the reply of the previous row, if there is one.
    fn free_reply(&mut self) {
        let reply = std::mem::replace(&mut self.reply, ptr::null_mut());
        if !reply.is_null() {
            // SAFETY: `reply_to_row` stored a pointer from `CString::into_raw`.
            drop(unsafe { CString::from_raw(reply) });
        }
    }
}

/// Sends a message that is in [`READ_ONLY_MESSAGES`], or that all users may send. Fails for others with a text that
/// says how to allow the message.
fn send_if_allowed(message: &[u8]) -> Result<String, String> {
    let text = String::from_utf8_lossy(message);
    let (name, _) = split_message(&text);
    if READ_ONLY_MESSAGES.contains(&name) || delayed_start::is_allowed_for_all_users(name) {
        return delayed_start::send_message(message);
    }
    // The name is cut, because any user may have sent a long one.
    let shown: String = name.chars().take(40).collect();
    Err(format!(
        "{shown:?} is not a message for everybody, who may call this function: it takes {}; allow = [{shown:?}] in the \
         file that MEMPROF_CONFIG names lets it through, and memprof sends it over the control socket",
        READ_ONLY_MESSAGES.join(", ")
    ))
}

/// Fails the statement with a reason. In a server without `my_printf_error`, it fails without a text.
fn fail_statement(reason: &str) {
    let text = to_truncated_c_string(&one_line(reason), ERROR_LIMIT);
    // SAFETY: my_sys.h declares a function of this type.
    if let Some(print) = unsafe { find_symbol::<PrintError>(c"my_printf_error") } {
        // SAFETY: the thread is running a statement of the server; the text is an argument, not a format.
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

            /// Entry point that the server calls at the start of a statement with the function.
            #[unsafe(export_name = concat!(env!("CARGO_CRATE_NAME"), "_init"))]
            unsafe extern "C" fn init(
                init: *mut mariadb::Init,
                args: *const mariadb::Args,
                error: *mut c_char,
            ) -> c_char {
                // SAFETY: the arguments of the server, unchanged.
                unsafe { mariadb::init_statement(&$entry, init, args, error) }
            }

            /// Entry point that the server calls for each row.
            #[unsafe(export_name = env!("CARGO_CRATE_NAME"))]
            unsafe extern "C" fn reply_to_row(
                init: *mut mariadb::Init,
                args: *const mariadb::Args,
                _result: *mut c_char,
                length: *mut c_ulong,
                is_null: *mut c_uchar,
                error: *mut c_uchar,
            ) -> *const c_char {
                // SAFETY: the arguments of the server, unchanged.
                unsafe { mariadb::reply_to_row(init, args, length, is_null, error) }
            }

            /// Entry point that the server calls at the end of the statement.
            #[unsafe(export_name = concat!(env!("CARGO_CRATE_NAME"), "_deinit"))]
            unsafe extern "C" fn deinit(init: *mut mariadb::Init) {
                // SAFETY: the argument of the server, unchanged.
                unsafe { mariadb::deinit_statement(init) }
            }
        };
    };
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn layout_equals_header() {
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
