//! The server's functions and structs, and the results of a function that it calls.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use crate::adapters::host_symbols::find_symbol;
use crate::adapters::log::to_truncated_c_string;

/// postgres.h, `Datum`.
#[doc(hidden)]
pub type Datum = usize;

/// fmgr.h, `FunctionCallInfoBaseData`, since version 12.
#[doc(hidden)]
#[repr(C)]
#[derive(Debug)]
pub struct Call {
    function: *const c_void,
    context: *const c_void,
    result: *const c_void,
    collation: u32,
    is_null: bool,
    count: i16,
    arguments: [Argument; 1],
}

impl Call {
    /// Sets the SQL function's result to NULL, and returns its datum. Without the former, the server would read the
    /// text at address 0.
    pub(super) fn return_null(&mut self) -> Datum {
        self.is_null = true;
        0
    }
}

/// postgres.h, `NullableDatum`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Argument {
    value: Datum,
    is_null: bool,
}

/// palloc.h, `MCXT_ALLOC_NO_OOM`.
const MCXT_ALLOC_NO_OOM: c_int = 2;
/// `pg_wchar.h`, `PG_UTF8`.
const PG_UTF8: c_int = 6;
/// `external_routine_exception`, 38000, as elog.h packs it: six bits for each character.
const EXTERNAL_ROUTINE_EXCEPTION: c_int = 3 | 8 << 6;
/// `out_of_memory`, 53200.
const OUT_OF_MEMORY: c_int = 5 | 3 << 6 | 2 << 12;
/// memutils.h, `MaxAllocSize`: for a larger block, `palloc_extended` raises an error, by longjmp.
const MAX_BLOCK_BYTES: usize = 0x3fff_ffff;
/// Largest length of an error in bytes: clients show the whole text.
const ERROR_LIMIT: usize = 4000;

/// Result of a call. It needs no drop.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// A text in memory of the server.
    Text(*const c_void),
    /// The reason for a failure, NUL-terminated, in memory of the server.
    Failed(*const c_char),
    /// There is no memory for the result.
    NoMemory,
}

/// Functions of the server. Those of type `C-unwind` fail by longjmp.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    text_to_cstring: unsafe extern "C-unwind" fn(Datum) -> *mut c_char,
    process_interrupts: unsafe extern "C-unwind" fn(),
    /// Returns null, with the flag that is used here, if there is no memory and the size is at most
    /// [`MAX_BLOCK_BYTES`].
    palloc_extended: unsafe extern "C" fn(usize, c_int) -> *mut c_void,
    get_database_encoding: unsafe extern "C" fn() -> c_int,
    /// miscadmin.h, `volatile sig_atomic_t InterruptPending`.
    interrupt_pending: *const c_int,
    error: ErrorApi,
}

/// Functions of elog.h that raise an error.
#[derive(Clone, Copy, Debug)]
struct ErrorApi {
    begin: ErrorFunctions,
    code: unsafe extern "C-unwind" fn(c_int) -> c_int,
    message: unsafe extern "C-unwind" fn(*const c_char, ...) -> c_int,
}

/// Functions that start and finish an error, with the number of the level `ERROR`.
#[derive(Clone, Copy, Debug)]
enum ErrorFunctions {
    /// Up to version 12: the start has the file, line and function as arguments. The level is 20.
    LocationAtStart(
        unsafe extern "C-unwind" fn(c_int, Text, c_int, Text, Text) -> bool,
        unsafe extern "C-unwind" fn(c_int, ...),
    ),
    /// Since version 13: the finish has them as arguments.
    LocationAtFinish(
        c_int,
        unsafe extern "C-unwind" fn(c_int, Text) -> bool,
        unsafe extern "C-unwind" fn(Text, c_int, Text),
    ),
}

type Text = *const c_char;

impl Server {
    /// Returns the server's functions, and the argument of a call with one text. `None` if the call has another number
    /// of arguments or a NULL, or a function is missing.
    ///
    /// # Safety
    /// The server, whose `server_version_num` is `version`, is calling.
    pub(super) unsafe fn from_call(call: *const Call, version: c_int) -> Option<(Self, Datum)> {
        // SAFETY: the caller promises a call by the server, which passes a whole struct.
        let call = unsafe { &*call };
        if call.count != 1 {
            return None;
        }
        let [argument] = call.arguments;
        if argument.is_null {
            return None;
        }
        // SAFETY: the caller promises the server's version.
        Some((unsafe { Self::find(version) }?, argument.value))
    }

    /// Looks up PostgreSQL's functions in the host. `None` if one is missing.
    ///
    /// # Safety
    /// `version` is the `server_version_num` of the server that is calling.
    unsafe fn find(version: c_int) -> Option<Self> {
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
        // SAFETY: builtins.h, palloc.h, mb/pg_wchar.h, miscadmin.h and elog.h declare them with these types in all
        // versions.
        Some(unsafe {
            Self {
                text_to_cstring: find_symbol(c"text_to_cstring")?,
                process_interrupts: find_symbol(c"ProcessInterrupts")?,
                palloc_extended: find_symbol(c"palloc_extended")?,
                get_database_encoding: find_symbol(c"GetDatabaseEncoding")?,
                interrupt_pending: find_symbol(c"InterruptPending")?,
                error: ErrorApi {
                    // elog.h: `ERROR` is 20 up to version 13, and 21 since 14.
                    begin: match version / 10_000 {
                        ..13 => ErrorFunctions::LocationAtStart(
                            find_symbol(c"errstart")?,
                            find_symbol(c"errfinish")?,
                        ),
                        13 => ErrorFunctions::LocationAtFinish(
                            20,
                            find_symbol(c"errstart")?,
                            find_symbol(c"errfinish")?,
                        ),
                        14.. => ErrorFunctions::LocationAtFinish(
                            21,
                            find_symbol(c"errstart")?,
                            find_symbol(c"errfinish")?,
                        ),
                    },
                    code: find_symbol(c"errcode")?,
                    message: find_symbol(c"errmsg_internal")?,
                },
            }
        })
    }

    /// Converts an argument to a C string, which the server frees with the query's memory.
    ///
    /// # Safety
    /// `argument` is a text; no value on the stack up to the server's frames needs a drop.
    pub(super) unsafe fn copy_argument(self, argument: Datum) -> *const c_char {
        // SAFETY: the caller promises a text, and that a longjmp skips no drop.
        unsafe { (self.text_to_cstring)(argument) }
    }

    /// Returns whether the query should end: it was cancelled or timed out, or the session ends.
    pub(super) fn is_interrupted(self) -> bool {
        // SAFETY: miscadmin.h: an initialized variable, which signal handlers of this thread set.
        unsafe { self.interrupt_pending.read_volatile() != 0 }
    }

    /// Copies a reply or an error to memory of the server. Returns [`Outcome::NoMemory`] if the server has no memory
    /// for it.
    pub(super) fn copy_outcome(self, reply: Result<String, String>) -> Outcome {
        match reply {
            Ok(text) => {
                let bytes = self.replace_unencodable(text).into_bytes();
                // postgres.h, `SET_VARSIZE_4B`: the size with these 4 bytes, shifted by 2 bits for flags. The size of a
                // text that fits in a block does not wrap.
                let head = ((bytes.len() as u32).wrapping_add(4) << 2).to_ne_bytes();
                self.copy_to_server(&[&head, &bytes]).map(Outcome::Text)
            }
            Err(reason) => {
                let reason = to_truncated_c_string(&self.replace_unencodable(reason), ERROR_LIMIT);
                let copied = self.copy_to_server(&[reason.to_bytes_with_nul()]);
                copied.map(|reason| Outcome::Failed(reason.cast()))
            }
        }
        .unwrap_or(Outcome::NoMemory)
    }

    /// Replaces characters by `?`: NULs, which no text may contain, and those beyond ASCII if the database's encoding
    /// is not UTF-8.
    fn replace_unencodable(self, text: String) -> String {
        // SAFETY: pg_wchar.h: returns a number of the session.
        let is_utf8 = unsafe { (self.get_database_encoding)() } == PG_UTF8;
        let fits = |c: char| c != '\0' && (is_utf8 || c.is_ascii());
        text.replace(|c| !fits(c), "?")
    }

    /// Copies the parts, one after the other, to a block of the server's memory. `None` if there is no memory, or the
    /// parts are longer than any block.
    fn copy_to_server(self, parts: &[&[u8]]) -> Option<*const c_void> {
        let bytes = parts.concat();
        if bytes.len() > MAX_BLOCK_BYTES {
            return None;
        }
        // SAFETY: palloc.h: up to this size, it returns null if there is no memory.
        let block = unsafe { (self.palloc_extended)(bytes.len(), MCXT_ALLOC_NO_OOM) };
        if block.is_null() {
            return None;
        }
        // SAFETY: the new block has that size.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), block.cast(), bytes.len()) };
        Some(block)
    }

    /// Returns a result to the server, or fails by longjmp if the query should end or has failed.
    ///
    /// # Safety
    /// No value on the stack up to the server's frames needs a drop.
    pub(super) unsafe fn return_or_raise(self, outcome: Outcome) -> Datum {
        if self.is_interrupted() {
            // SAFETY: miscadmin.h, `CHECK_FOR_INTERRUPTS`: on the server's thread.
            unsafe { (self.process_interrupts)() };
        }
        match outcome {
            // SAFETY: the caller promises that a longjmp skips no drop; the text is NUL-terminated.
            Outcome::Failed(reason) => unsafe {
                self.error.raise_error(EXTERNAL_ROUTINE_EXCEPTION, reason)
            },
            // SAFETY: the caller promises that a longjmp skips no drop; the text is NUL-terminated.
            Outcome::NoMemory => unsafe {
                self.error
                    .raise_error(OUT_OF_MEMORY, c"out of memory".as_ptr())
            },
            Outcome::Text(text) => return text as Datum,
        }
        // Not reached: an error does not return.
        0
    }
}

impl ErrorApi {
    /// Raises an error as `ereport(ERROR)` does; does not return.
    ///
    /// # Safety
    /// No value on the stack up to the server's frames needs a drop; `reason` is NUL-terminated.
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
    unsafe fn raise_error(self, code: c_int, reason: *const c_char) {
        let no_location = ptr::null();
        // SAFETY: elog.h, `ereport`: the calls are in its order; the server copies the message.
        unsafe {
            match self.begin {
                ErrorFunctions::LocationAtStart(begin, end) => {
                    // 20 is `ERROR` in these versions.
                    begin(20, no_location, 0, no_location, no_location);
                    end((self.code)(code), (self.message)(c"%s".as_ptr(), reason));
                }
                ErrorFunctions::LocationAtFinish(level, begin, end) => {
                    begin(level, no_location);
                    (self.code)(code);
                    (self.message)(c"%s".as_ptr(), reason);
                    end(no_location, 0, no_location);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::super::{handle_call, handle_send_to_all_processes};
    use super::*;

    #[test]
    fn layout_equals_headers() {
        assert_eq!(offset_of!(Call, collation), 24);
        assert_eq!(offset_of!(Call, is_null), 28);
        assert_eq!(offset_of!(Call, count), 30);
        assert_eq!(offset_of!(Call, arguments), 32);
        assert_eq!(size_of::<Argument>(), 16);
    }

    #[test]
    fn result_is_null_without_a_server() {
        for handle in [handle_call, handle_send_to_all_processes] {
            let argument = Argument {
                value: 0,
                is_null: false,
            };
            let mut call = Call {
                function: ptr::null(),
                context: ptr::null(),
                result: ptr::null(),
                collation: 0,
                is_null: false,
                count: 1,
                arguments: [argument],
            };
            // SAFETY: no function of a server is found here, so the argument is not read.
            assert_eq!(unsafe { handle(&raw mut call) }, 0);
            assert!(call.is_null);
        }
    }
}
