//! Functions for any language that calls C: `char *memory_profile_send(const char *message)` returns a text, which
//! `memory_profile_free` frees. The functions are named after the library.
//!
//! If a message fails, the text begins with `error: `, or is the JSON object if the message has `format=json`. Any
//! thread may call them; it waits for the reply.
#![expect(unsafe_code, reason = "C strings of the program")]

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use memprof_plugin_abi::raw::memprof_plugin_entry_t;

use super::{catch_panic, delayed_start};

/// Sends a message and returns its reply, which the program frees with [`free_reply`]. Blocks until the reply. The
/// first call creates the plugin. If the message fails, the reply is the plugin's JSON if `format=json` was requested,
/// otherwise a text that begins with `error: `. Null only if the call panicked. A null `message` counts as an empty
/// one.
///
/// # Safety
/// `message` is null or NUL-terminated.
#[doc(hidden)]
pub unsafe fn send_message(
    entry: &'static memprof_plugin_entry_t,
    message: *const c_char,
) -> *mut c_char {
    catch_panic(ptr::null_mut(), || {
        // SAFETY: not null, and the caller promises a NUL-terminated text.
        let message = (!message.is_null()).then(|| unsafe { CStr::from_ptr(message) });
        let message = message.map_or(b"".as_slice(), CStr::to_bytes);
        delayed_start::ensure_instance(entry);
        let text = match delayed_start::send_message(message) {
            Ok(text) => text,
            Err(json) if json.starts_with('{') => json,
            Err(text) => format!("error: {text}"),
        };
        let text = CString::new(text.replace('\0', " "));
        text.map_or(ptr::null_mut(), CString::into_raw)
    })
}

/// Frees a reply of [`send_message`]. Does nothing if `reply` is null.
///
/// # Safety
/// `reply` is null, or a result of [`send_message`] that was not freed yet.
#[doc(hidden)]
pub unsafe fn free_reply(reply: *mut c_char) {
    if !reply.is_null() {
        // SAFETY: the caller promises a text that `CString::into_raw` returned in `send_message`.
        drop(unsafe { CString::from_raw(reply) });
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __export_ffi {
    ($how:ident, $entry:path) => {
        const _: () = {
            /// Entry point that sends a message, a NUL-terminated text. Its reply must be freed.
            #[unsafe(export_name = concat!(env!("CARGO_CRATE_NAME"), "_send"))]
            unsafe extern "C" fn send(
                message: *const ::std::ffi::c_char,
            ) -> *mut ::std::ffi::c_char {
                // SAFETY: the program's argument, unchanged.
                unsafe { $crate::adapters::ffi::send_message(&$entry, message) }
            }

            /// Entry point that frees a reply of `send`; null is allowed.
            #[unsafe(export_name = concat!(env!("CARGO_CRATE_NAME"), "_free"))]
            unsafe extern "C" fn free(reply: *mut ::std::ffi::c_char) {
                // SAFETY: the program's argument, unchanged.
                unsafe { $crate::adapters::ffi::free_reply(reply) }
            }
        };
    };
}
