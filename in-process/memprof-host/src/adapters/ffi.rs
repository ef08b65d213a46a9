//! Any language that calls C functions: `char *memory_profile_send(const char *message)`, whose text is given
//! back by `memory_profile_free`. The functions are named after the library.
//!
//! A message that fails has a text that begins with `error: `; with `format=json` it is the JSON object.
//! Any thread may call, which waits for the answer.
#![expect(unsafe_code, reason = "C strings of the program")]

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::{catch_panic, delayed_start};

/// Answers a message. Null only where the memory is missing, or the answer panicked.
///
/// # Safety
/// `message` is null or NUL-terminated.
#[doc(hidden)]
pub unsafe fn send(entry: &'static memprof_plugin_entry_t, message: *const c_char) -> *mut c_char {
    catch_panic(ptr::null_mut(), || {
        // SAFETY: promised by the caller.
        let message = (!message.is_null()).then(|| unsafe { CStr::from_ptr(message) });
        let message = message.map_or(b"".as_slice(), CStr::to_bytes);
        delayed_start::ensure_instance(entry);
        let text = match delayed_start::send(message) {
            Ok(text) => text,
            Err(json) if json.starts_with('{') => json,
            Err(text) => format!("error: {text}"),
        };
        let text = CString::new(text.replace('\0', " "));
        text.map_or(ptr::null_mut(), CString::into_raw)
    })
}

/// Frees the text of an answer.
///
/// # Safety
/// `reply` is null, or what [`send`] returned, and is freed once.
#[doc(hidden)]
pub unsafe fn free(reply: *mut c_char) {
    if !reply.is_null() {
        // SAFETY: made by `CString::into_raw` in `send`, as the caller promises.
        drop(unsafe { CString::from_raw(reply) });
    }
}

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
