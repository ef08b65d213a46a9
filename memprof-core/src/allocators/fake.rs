//! A jemalloc for tests, which misbehaves in ways that a real jemalloc cannot be forced to.
#![expect(unsafe_code, reason = "plays the allocator's side of the calls")]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::allocators::mallctl::{Mallctl, StatsCallback};
use crate::allocators::printout::JemallocReaders;
use crate::allocators::printout::Printout;
use memprof_messages::HeapTotals;

/// Readers that return empty statistics.
pub(crate) const READERS: JemallocReaders = JemallocReaders {
    totals: |_| Ok(HeapTotals::default()),
    printout: |_| Ok(Printout::default()),
};

/// Behaviour of a fake jemalloc. The defaults are those of a working one.
pub(crate) trait Behaviour {
    /// Value of `opt.prof`.
    const OPT_PROF: bool = true;
    /// Return value of a write to `prof.active`.
    const ACTIVATION_STATUS: c_int = 0;
    /// Return value of `prof.dump`.
    const DUMP_STATUS: c_int = 0;
    /// Content that `prof.dump` writes.
    const DUMP: &'static str = "heap_v2/512\n  t*: 1: 100 [0: 0]\n@ 0x1\n  t*: 1: 100 [0: 0]\n";
    /// Pieces of the statistics printout, in the order of the callbacks.
    const PRINTOUT_PIECES: &'static [&'static CStr] = &[];

    /// Value of `prof.active`. `None`: it is always false.
    fn prof_active() -> Option<&'static AtomicBool> {
        None
    }

    /// Return value of a write to `experimental.hooks.prof_backtrace`, whose value changes if it is 0. `None`: there is
    /// no such mallctl, as before jemalloc 5.3.
    fn backtrace_hook_status() -> Option<c_int> {
        None
    }
}

/// Control functions of a fake jemalloc.
pub(crate) fn fake_mallctl<B: Behaviour + 'static>() -> Mallctl {
    // SAFETY: jemalloc(3): both static functions have the types and behave as documented there.
    unsafe { Mallctl::new(mallctl::<B>, Some(stats_print::<B>)) }
}

/// Walker that was written to `experimental.hooks.prof_backtrace`; 0 for the fake's own.
static WALKER: AtomicUsize = AtomicUsize::new(0);

/// `mallctl` of the fake, for the names that tests use.
unsafe extern "C" fn mallctl<B: Behaviour>(
    name: *const c_char,
    old: *mut c_void,
    _: *mut usize,
    new: *mut c_void,
    _: usize,
) -> c_int {
    // SAFETY: jemalloc(3): the name is a C string; the callers are in `Mallctl`.
    let name = unsafe { CStr::from_ptr(name) };
    match name.to_bytes() {
        b"prof.dump" => {
            // SAFETY: `Mallctl::write_path` passes a pointer to a C string's address.
            let path = unsafe { new.cast::<*const c_char>().read() };
            // SAFETY: `Mallctl::write_path` passes the address of a C string.
            let path = unsafe { CStr::from_ptr(path) };
            std::fs::write(Path::new(OsStr::from_bytes(path.to_bytes())), B::DUMP).unwrap();
            B::DUMP_STATUS
        }
        b"prof.active" if !new.is_null() => {
            if let Some(value) = B::prof_active() {
                // SAFETY: `Mallctl::write_bool` passes a pointer to a bool.
                value.store(unsafe { new.cast::<bool>().read() }, Ordering::Relaxed);
            }
            B::ACTIVATION_STATUS
        }
        b"experimental.hooks.prof_backtrace" => match B::backtrace_hook_status() {
            None => libc::ENOENT,
            Some(0) if !new.is_null() => {
                // SAFETY: `Mallctl::write` passes a pointer to the address of a walker.
                WALKER.store(unsafe { new.cast::<usize>().read() }, Ordering::Relaxed);
                0
            }
            Some(status) if !new.is_null() => status,
            Some(_) => {
                let own = stats_print::<B> as *const () as usize;
                let current = match WALKER.load(Ordering::Relaxed) {
                    0 => own,
                    walker => walker,
                };
                // SAFETY: `Mallctl::read` passes space for an address.
                unsafe { old.cast::<usize>().write(current) };
                0
            }
        },
        b"version" => {
            // SAFETY: `Mallctl::read_text` passes space for a pointer.
            unsafe { old.cast::<*const c_char>().write(c"5.2.1-fake".as_ptr()) };
            0
        }
        b"prof.active" | b"config.prof" | b"config.stats" | b"opt.prof" => {
            let value = match name.to_bytes() {
                b"prof.active" => {
                    B::prof_active().is_some_and(|value| value.load(Ordering::Relaxed))
                }
                b"opt.prof" => B::OPT_PROF,
                _ => true,
            };
            // SAFETY: `Mallctl::read_bool` passes space for a byte.
            unsafe { old.cast::<bool>().write(value) };
            0
        }
        _ => libc::ENOENT,
    }
}

/// `malloc_stats_print` of the fake.
unsafe extern "C" fn stats_print<B: Behaviour>(
    write: StatsCallback,
    opaque: *mut c_void,
    _: *const c_char,
) {
    for piece in B::PRINTOUT_PIECES {
        // SAFETY: jemalloc(3): the callback is called with the pointer that came with it.
        unsafe { write.unwrap()(opaque, piece.as_ptr()) };
    }
}
