//! The server's functions and structs, and what a function of ours returns to it.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use crate::adapters::host_symbols::find_symbol;
use crate::adapters::log::c_text;

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

/// postgres.h, `NullableDatum`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Argument {
    value: Datum,
    is_null: bool,
}

/// palloc.h, `MCXT_ALLOC_NO_OOM`.
const RETURN_NULL: c_int = 2;
/// `pg_wchar.h`, `PG_UTF8`.
const UTF8: c_int = 6;
/// `external_routine_exception`, 38000, as elog.h packs it: six bits for each character.
const FAILED: c_int = 3 | 8 << 6;
/// `out_of_memory`, 53200.
const OUT_OF_MEMORY: c_int = 5 | 3 << 6 | 2 << 12;
/// Clients show an error whole.
const ERROR_LIMIT: usize = 4000;

/// What a call of ours leads to; it needs no drop.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// A text of the server's.
    Text(*const c_void),
    /// Why there is none, NUL-terminated, in memory of the server's.
    Failed(*const c_char),
    NoMemory,
}

/// Functions of the server. Those of `C-unwind` leave by longjmp where they fail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    text_to_cstring: unsafe extern "C-unwind" fn(Datum) -> *mut c_char,
    process_interrupts: unsafe extern "C-unwind" fn(),
    /// Returns null with the flag that is used here, if the size is below 1 GB.
    palloc_extended: unsafe extern "C" fn(usize, c_int) -> *mut c_void,
    get_database_encoding: unsafe extern "C" fn() -> c_int,
    /// miscadmin.h, `volatile sig_atomic_t InterruptPending`.
    interrupt_pending: *const c_int,
    error: Error,
}

/// elog.h: how an error is raised.
#[derive(Clone, Copy, Debug)]
struct Error {
    begin: Begin,
    code: unsafe extern "C-unwind" fn(c_int) -> c_int,
    message: unsafe extern "C-unwind" fn(*const c_char, ...) -> c_int,
}

/// The functions that begin and end an error, and the number of its level.
#[derive(Clone, Copy, Debug)]
enum Begin {
    /// Up to version 12: file, line and function are given at the beginning.
    WithPlace(
        unsafe extern "C-unwind" fn(c_int, Text, c_int, Text, Text) -> bool,
        unsafe extern "C-unwind" fn(c_int, ...),
    ),
    /// And at the end since then.
    Alone(
        c_int,
        unsafe extern "C-unwind" fn(c_int, Text) -> bool,
        unsafe extern "C-unwind" fn(Text, c_int, Text),
    ),
}

type Text = *const c_char;

impl Server {
    /// The functions, and the argument of a call that has one text.
    ///
    /// # Safety
    /// The server of that version, its `server_version_num`, calls.
    pub(super) unsafe fn of(call: *mut Call, version: c_int) -> Option<(Self, Datum)> {
        // SAFETY: promised by the caller.
        let call = unsafe { &mut *call };
        // SAFETY: as above.
        let server = unsafe { Self::find(version) };
        match (server, &call.arguments) {
            (Some(server), [argument]) if call.count == 1 && !argument.is_null => {
                Some((server, argument.value))
            }
            _ => {
                call.is_null = true;
                None
            }
        }
    }

    /// # Safety
    /// As [`Server::of`].
    unsafe fn find(version: c_int) -> Option<Self> {
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
        // SAFETY: builtins.h, palloc.h, mb/pg_wchar.h, miscadmin.h and elog.h declare them so in all versions.
        Some(unsafe {
            Self {
                text_to_cstring: find_symbol(c"text_to_cstring")?,
                process_interrupts: find_symbol(c"ProcessInterrupts")?,
                palloc_extended: find_symbol(c"palloc_extended")?,
                get_database_encoding: find_symbol(c"GetDatabaseEncoding")?,
                interrupt_pending: find_symbol(c"InterruptPending")?,
                error: Error {
                    begin: match version / 10_000 {
                        ..13 => {
                            Begin::WithPlace(find_symbol(c"errstart")?, find_symbol(c"errfinish")?)
                        }
                        13 => {
                            Begin::Alone(20, find_symbol(c"errstart")?, find_symbol(c"errfinish")?)
                        }
                        14.. => {
                            Begin::Alone(21, find_symbol(c"errstart")?, find_symbol(c"errfinish")?)
                        }
                    },
                    code: find_symbol(c"errcode")?,
                    message: find_symbol(c"errmsg_internal")?,
                },
            }
        })
    }

    /// The argument as a C string, which the server frees with the query's memory.
    ///
    /// # Safety
    /// `argument` is a text; nothing on the stack up to the server's own frames needs to be dropped.
    pub(super) unsafe fn text(self, argument: Datum) -> *const c_char {
        // SAFETY: promised by the caller.
        unsafe { (self.text_to_cstring)(argument) }
    }

    /// Whether the query is to end: it was cancelled, or took too long, or the session ends.
    pub(super) fn is_interrupted(self) -> bool {
        // SAFETY: set by handlers of signals on this thread.
        unsafe { self.interrupt_pending.read_volatile() != 0 }
    }

    /// Copies a reply, or an error, to memory of the server's.
    pub(super) fn outcome(self, reply: Result<String, String>) -> Outcome {
        match reply {
            Ok(text) => {
                let bytes = self.encode(text).into_bytes();
                let head = ((bytes.len() as u32 + 4) << 2).to_ne_bytes();
                self.copy(&[&head, &bytes]).map(Outcome::Text)
            }
            Err(why) => {
                let why = c_text(&self.encode(why), ERROR_LIMIT);
                let copied = self.copy(&[why.to_bytes_with_nul()]);
                copied.map(|why| Outcome::Failed(why.cast()))
            }
        }
        .unwrap_or(Outcome::NoMemory)
    }

    /// Without NULs, which no text has, and without what the database's encoding may not have.
    fn encode(self, text: String) -> String {
        // SAFETY: pg_wchar.h: a number of the session's.
        let is_utf8 = unsafe { (self.get_database_encoding)() } == UTF8;
        let fits = |c: char| c != '\0' && (is_utf8 || c.is_ascii());
        text.replace(|c| !fits(c), "?")
    }

    fn copy(self, parts: &[&[u8]]) -> Option<*const c_void> {
        let bytes = parts.concat();
        // SAFETY: a reply has less than 1 GB; null where there is no memory.
        let place = unsafe { (self.palloc_extended)(bytes.len(), RETURN_NULL) };
        if place.is_null() {
            return None;
        }
        // SAFETY: of that size.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast(), bytes.len()) };
        Some(place)
    }

    /// Returns to the server, by a longjmp where the query ends or has failed.
    ///
    /// # Safety
    /// Nothing on the stack up to the server's own frames needs to be dropped.
    pub(super) unsafe fn finish(self, outcome: Outcome) -> Datum {
        if self.is_interrupted() {
            // SAFETY: miscadmin.h, `CHECK_FOR_INTERRUPTS`.
            unsafe { (self.process_interrupts)() };
        }
        match outcome {
            // SAFETY: promised by the caller.
            Outcome::Failed(why) => unsafe { self.error.raise(FAILED, why) },
            // SAFETY: as above.
            Outcome::NoMemory => unsafe {
                self.error.raise(OUT_OF_MEMORY, c"out of memory".as_ptr())
            },
            Outcome::Text(text) => return text as Datum,
        }
        0
    }
}

impl Error {
    /// `ereport(ERROR)`, which does not return.
    ///
    /// # Safety
    /// As [`Server::finish`]; `why` is NUL-terminated.
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one promise for all")]
    unsafe fn raise(self, code: c_int, why: *const c_char) {
        let nowhere = ptr::null();
        // SAFETY: elog.h, `ereport`; the message is copied.
        unsafe {
            match self.begin {
                Begin::WithPlace(begin, end) => {
                    begin(20, nowhere, 0, nowhere, nowhere);
                    end((self.code)(code), (self.message)(c"%s".as_ptr(), why));
                }
                Begin::Alone(level, begin, end) => {
                    begin(level, nowhere);
                    (self.code)(code);
                    (self.message)(c"%s".as_ptr(), why);
                    end(nowhere, 0, nowhere);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn layouts_are_those_of_the_headers() {
        assert_eq!(offset_of!(Call, collation), 24);
        assert_eq!(offset_of!(Call, is_null), 28);
        assert_eq!(offset_of!(Call, count), 30);
        assert_eq!(offset_of!(Call, arguments), 32);
        assert_eq!(size_of::<Argument>(), 16);
    }
}
