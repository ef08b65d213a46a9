//! A jemalloc that misbehaves as a real one cannot be made to.
#![expect(unsafe_code, reason = "plays the allocator's side of the calls")]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::allocators::mallctl::{Mallctl, StatsCallback};
use crate::allocators::printout::Printout;
use crate::allocators::stats::Readers;
use memprof_messages::HeapTotals;

/// Readers that find nothing.
pub(crate) const READERS: Readers = Readers {
    figures: |_| Ok(HeapTotals::default()),
    report: |_| Ok(Printout::default()),
};

/// What a fake does.
pub(crate) trait Behaviour {
    /// The value of `opt.prof`.
    const OPT_PROF: bool = true;
    /// What it answers to a write of `prof.active`; the value never changes.
    const ACTIVATION: c_int = 0;
    /// What it answers to `prof.dump`.
    const DUMPED: c_int = 0;
    /// What it writes then.
    const DUMP: &'static str = "heap_v2/512\n  t*: 1: 100 [0: 0]\n@ 0x1\n  t*: 1: 100 [0: 0]\n";
    /// The pieces in which it prints its statistics.
    const PRINTED: &'static [&'static CStr] = &[];
}

/// The control functions of a fake.
pub(crate) fn fake<B: Behaviour + 'static>() -> Mallctl {
    // SAFETY: static functions, which do what jemalloc(3) says of these two.
    unsafe { Mallctl::new(mallctl::<B>, Some(stats_print::<B>)) }
}

unsafe extern "C" fn mallctl<B: Behaviour>(
    name: *const c_char,
    old: *mut c_void,
    _: *mut usize,
    new: *mut c_void,
    _: usize,
) -> c_int {
    // SAFETY: callers pass a C string.
    let name = unsafe { CStr::from_ptr(name) };
    match name.to_bytes() {
        b"prof.dump" => {
            // SAFETY: `write_path` passes a pointer to a C string's address.
            let path = unsafe { new.cast::<*const c_char>().read() };
            // SAFETY: as above.
            let path = unsafe { CStr::from_ptr(path) };
            std::fs::write(Path::new(OsStr::from_bytes(path.to_bytes())), B::DUMP).unwrap();
            B::DUMPED
        }
        b"prof.active" if !new.is_null() => B::ACTIVATION,
        b"version" => {
            // SAFETY: `read_text` passes room for a pointer.
            unsafe { old.cast::<*const c_char>().write(c"5.2.1-fake".as_ptr()) };
            0
        }
        b"prof.active" | b"config.prof" | b"config.stats" | b"opt.prof" => {
            let value = match name.to_bytes() {
                b"prof.active" => false,
                b"opt.prof" => B::OPT_PROF,
                _ => true,
            };
            // SAFETY: `read_bool` passes room for a byte.
            unsafe { old.cast::<bool>().write(value) };
            0
        }
        _ => libc::ENOENT,
    }
}

unsafe extern "C" fn stats_print<B: Behaviour>(
    write: StatsCallback,
    opaque: *mut c_void,
    _: *const c_char,
) {
    for piece in B::PRINTED {
        // SAFETY: the caller's callback, with the caller's pointer.
        unsafe { write.unwrap()(opaque, piece.as_ptr()) };
    }
}
