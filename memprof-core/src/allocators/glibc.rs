//! The C library's own malloc: figures and purging. It has no profiler.
#![expect(unsafe_code, reason = "the allocator calls")]

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use crate::allocators::loaded_objects::ForkGuard;
use crate::allocators::printout::Printout;
use crate::allocators::symbols::{self, ObjectSymbols, as_function};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::AllocatorIdentity;
use memprof_messages::{AllocatorKind, HeapTotals, HeapUsage};

/// What every glibc names.
pub(crate) const ANCHOR: &CStr = c"gnu_get_libc_version";

/// glibc's functions, which another malloc may hide from the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Functions {
    /// Since glibc 2.33.
    mallinfo: Option<unsafe extern "C" fn() -> libc::mallinfo2>,
    trim: Option<unsafe extern "C" fn(usize) -> c_int>,
    info: Option<unsafe extern "C" fn(c_int, *mut libc::FILE) -> c_int>,
}

/// The C library's malloc in this process.
#[derive(Debug)]
pub(crate) struct Glibc {
    pub identity: AllocatorIdentity,
    functions: Functions,
}

impl Glibc {
    /// None where it holds nothing, because another one is `malloc`.
    pub(crate) fn identify(symbols: &ObjectSymbols<'_>) -> Option<Self> {
        let version = symbols.function(ANCHOR)?;
        // SAFETY: gnu_get_libc_version(3).
        let version: unsafe extern "C" fn() -> *const c_char = unsafe { as_function(version) };
        // SAFETY: gnu_get_libc_version(3): takes nothing.
        let version = unsafe { version() };
        // SAFETY: gnu_get_libc_version(3): a constant text.
        let version = unsafe { CStr::from_ptr(version) };
        let functions = Functions {
            mallinfo: symbols
                .function(c"mallinfo2")
                // SAFETY: mallinfo2(3), in the C library.
                .map(|address| unsafe { as_function(address) }),
            trim: symbols
                .function(c"malloc_trim")
                // SAFETY: malloc_trim(3), in the C library.
                .map(|address| unsafe { as_function(address) }),
            info: symbols
                .function(c"malloc_info")
                // SAFETY: malloc_info(3), in the C library.
                .map(|address| unsafe { as_function(address) }),
        };
        let glibc = Self {
            identity: AllocatorIdentity {
                kind: AllocatorKind::Glibc,
                version: version.to_string_lossy().into_owned(),
                found_by: symbols.found_by(),
                owns_malloc: symbols.function(c"malloc") == symbols::malloc(),
                address: symbols.function(ANCHOR)?,
            },
            functions,
        };
        let is_in_use = || glibc.figures().is_some_and(|figures| figures.mapped > 0);
        (glibc.identity.owns_malloc || is_in_use()).then_some(glibc)
    }

    /// In jemalloc's words. Free pages at the top of the main arena are dirty; what is free
    /// elsewhere counts as fragmentation, though some of it was never touched, or given back.
    fn figures(&self) -> Option<HeapTotals> {
        // Where nothing has allocated by it, it is made ready now: a child that is forked meanwhile finds half of it, and
        // crashes in mallinfo2.
        let _no_fork = ForkGuard::acquire();
        // SAFETY: mallinfo2(3): takes nothing.
        let info = unsafe { self.functions.mallinfo?() };
        let held = info.arena.saturating_add(info.hblkhd) as u64;
        Some(HeapTotals {
            allocated: info.uordblks.saturating_add(info.hblkhd) as u64,
            active: held.saturating_sub(info.keepcost as u64),
            metadata: 0,
            resident: held,
            mapped: held,
            retained: 0,
        })
    }

    fn missing_symbol_error(&self, name: &str) -> Error {
        let message = format!("{} lacks {name}", self.identity);
        Error::new(ErrorKind::Unsupported, message).remedy("use a newer C library")
    }
}

impl Glibc {
    /// Locks each arena for as long as it takes to count its free chunks: 1 µs for a fresh one,
    /// 30 ms for 40,000 chunks.
    pub(crate) fn totals(&self) -> Option<HeapUsage> {
        self.figures().map(HeapUsage::Detailed)
    }

    pub(crate) fn report(&self) -> Result<Printout> {
        let info = self
            .functions
            .info
            .ok_or_else(|| self.missing_symbol_error("malloc_info"))?;
        let failed = |act: &str| Error::io(act, &std::io::Error::last_os_error());
        let (mut text, mut length) = (ptr::null_mut::<c_char>(), 0);
        // SAFETY: open_memstream(3): room for a pointer and a size, which outlive the stream.
        let stream = unsafe { libc::open_memstream(&raw mut text, &raw mut length) };
        if stream.is_null() {
            return Err(failed("open a stream in memory"));
        }
        // SAFETY: malloc_info(3): options must be 0; the stream is open.
        let printed = unsafe { info(0, stream) };
        // SAFETY: fclose(3): closes the stream once.
        let closed = unsafe { libc::fclose(stream) };
        let bytes = if text.is_null() {
            &[]
        } else {
            // SAFETY: open_memstream(3): after fclose, `length` bytes lie at `text`.
            unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) }
        };
        let printout = Printout::from(bytes);
        // SAFETY: open_memstream(3): the text is the caller's to free; it may be null.
        unsafe { libc::free(text.cast()) };
        if printed == 0 && closed == 0 {
            Ok(printout)
        } else {
            Err(failed("print malloc_info"))
        }
    }

    pub(crate) fn purge(&self) -> Result<()> {
        let trim = self
            .functions
            .trim
            .ok_or_else(|| self.missing_symbol_error("malloc_trim"))?;
        // SAFETY: malloc_trim(3): takes how much to leave at the top; 0 also says that there was
        // nothing to give back.
        unsafe { trim(0) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::allocator::Allocator;
    use crate::allocators::loaded_objects;

    fn here() -> Glibc {
        let objects = loaded_objects::loaded();
        Glibc::identify(&ObjectSymbols::exported(&objects, ANCHOR).unwrap()).unwrap()
    }

    #[test]
    fn it_serves_this_test_and_counts_what_it_gave() {
        let glibc = here();
        assert!(glibc.identity.owns_malloc);
        let before = glibc.figures().unwrap();
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = glibc.figures().unwrap();
        drop(block);
        let grown = after.allocated.saturating_sub(before.allocated);
        assert!(grown >= 32 << 20, "{before:?} {after:?}");
        let report = glibc.report().unwrap().into_text();
        assert!(report.starts_with("<malloc version=\"1\">"), "{report}");
        glibc.purge().unwrap();
    }

    #[test]
    fn activation_says_what_would_help() {
        let error = Allocator::Glibc(here()).activate(None).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported);
        assert!(error.message.starts_with("glibc 2."), "{error}");
        assert!(error.remedy.contains("memprof run"), "{error:?}");
    }
}
