//! glibc's malloc: statistics and purging. It has no profiler.
#![expect(unsafe_code, reason = "the allocator calls")]

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use crate::allocators::loaded_objects::ForkGuard;
use crate::allocators::printout::Printout;
use crate::allocators::symbols::{self, ObjectSymbols, as_function};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::AllocatorIdentity;
use memprof_messages::{AllocatorKind, HeapTotals, HeapUsage};

/// Function that every glibc exports.
pub(crate) const ANCHOR: &CStr = c"gnu_get_libc_version";

/// glibc's malloc functions, taken from its own symbols because another malloc may interpose them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Functions {
    /// Since glibc 2.33.
    mallinfo: Option<unsafe extern "C" fn() -> libc::mallinfo2>,
    trim: Option<unsafe extern "C" fn(usize) -> c_int>,
    info: Option<unsafe extern "C" fn(c_int, *mut libc::FILE) -> c_int>,
}

/// glibc's malloc in this process.
#[derive(Debug)]
pub(crate) struct Glibc {
    pub identity: AllocatorIdentity,
    functions: Functions,
}

impl Glibc {
    /// Identifies glibc's malloc. `None` if the symbols are not glibc's. Also `None` if another allocator serves
    /// `malloc`, and glibc's holds no memory or does not report its memory.
    pub(crate) fn identify(symbols: &ObjectSymbols<'_>) -> Option<Self> {
        let version = symbols.function_address(ANCHOR)?;
        // SAFETY: gnu_get_libc_version(3): this function has this type.
        let version: unsafe extern "C" fn() -> *const c_char = unsafe { as_function(version) };
        // SAFETY: gnu_get_libc_version(3): the function takes no arguments.
        let version = unsafe { version() };
        // SAFETY: gnu_get_libc_version(3): the function returns a constant string.
        let version = unsafe { CStr::from_ptr(version) };
        let functions = Functions {
            mallinfo: symbols
                .function_address(c"mallinfo2")
                // SAFETY: mallinfo2(3): this function of the C library has this type.
                .map(|address| unsafe { as_function(address) }),
            trim: symbols
                .function_address(c"malloc_trim")
                // SAFETY: malloc_trim(3): this function of the C library has this type.
                .map(|address| unsafe { as_function(address) }),
            info: symbols
                .function_address(c"malloc_info")
                // SAFETY: malloc_info(3): this function of the C library has this type.
                .map(|address| unsafe { as_function(address) }),
        };
        let glibc = Self {
            identity: AllocatorIdentity {
                kind: AllocatorKind::Glibc,
                version: version.to_string_lossy().into_owned(),
                found_by: symbols.found_by(),
                owns_malloc: symbols.function_address(c"malloc") == symbols::malloc_address(),
                address: symbols.function_address(ANCHOR)?,
            },
            functions,
        };
        let is_in_use = || {
            glibc
                .heap_totals()
                .is_some_and(|heap_totals| heap_totals.mapped > 0)
        };
        (glibc.identity.owns_malloc || is_in_use()).then_some(glibc)
    }

    /// Heap totals in jemalloc's terms. Free pages at the top of the main arena count as dirty. Other free memory
    /// counts as fragmentation, although part of it may be untouched or released. `None` if glibc lacks `mallinfo2`.
    fn heap_totals(&self) -> Option<HeapTotals> {
        // mallinfo2 initializes an unused malloc. A child forked during that would inherit a half-initialized malloc,
        // and crash in mallinfo2.
        let _no_fork = ForkGuard::acquire();
        // SAFETY: mallinfo2(3): the function takes no arguments.
        let info = unsafe { self.functions.mallinfo?() };
        let resident = info.arena.saturating_add(info.hblkhd) as u64;
        Some(HeapTotals {
            allocated: info.uordblks.saturating_add(info.hblkhd) as u64,
            active: resident.saturating_sub(info.keepcost as u64),
            metadata: 0,
            resident,
            mapped: resident,
            ..HeapTotals::default()
        })
    }

    /// `Unsupported` error for the C function `name`, which this glibc lacks.
    fn missing_symbol_error(&self, name: &str) -> Error {
        let message = format!("{} lacks {name}", self.identity);
        Error::new(ErrorKind::Unsupported, message).with_remedy("use a newer C library")
    }
}

impl Glibc {
    /// Heap totals. Locks each arena while counting its free chunks: about 1 µs for a new arena, 30 ms for 40,000
    /// chunks. `None` if glibc lacks `mallinfo2`.
    pub(crate) fn heap_usage(&self) -> Option<HeapUsage> {
        self.heap_totals().map(HeapUsage::Detailed)
    }

    /// Output of `malloc_info(3)`, which is XML.
    ///
    /// # Errors
    /// `Unsupported`: glibc lacks the function. `Io`: there is no memory for the stream, or glibc failed to print to
    /// it.
    pub(crate) fn printout(&self) -> Result<Printout> {
        let info = self
            .functions
            .info
            .ok_or_else(|| self.missing_symbol_error("malloc_info"))?;
        let last_error = |act: &str| Error::io(act, &std::io::Error::last_os_error());
        let (mut text, mut length) = (ptr::null_mut::<c_char>(), 0);
        // SAFETY: open_memstream(3): the pointer and the size outlive the stream.
        let stream = unsafe { libc::open_memstream(&raw mut text, &raw mut length) };
        if stream.is_null() {
            return Err(last_error("open a stream in memory"));
        }
        // SAFETY: malloc_info(3): options must be 0; the stream is open.
        let printed = unsafe { info(0, stream) };
        // SAFETY: fclose(3): the stream is open and is closed once.
        let closed = unsafe { libc::fclose(stream) };
        let bytes = if text.is_null() {
            &[]
        } else {
            // SAFETY: open_memstream(3): after fclose, `length` bytes are valid at `text`.
            unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) }
        };
        let printout = Printout::from_text(bytes);
        // SAFETY: open_memstream(3): the caller must free the text, which may be null.
        unsafe { libc::free(text.cast()) };
        if printed == 0 && closed == 0 {
            Ok(printout)
        } else {
            Err(last_error("print malloc_info"))
        }
    }

    /// Releases free pages of all arenas by `malloc_trim(3)`.
    ///
    /// # Errors
    /// `Unsupported`: glibc lacks the function.
    pub(crate) fn purge_free_pages(&self) -> Result<()> {
        let trim = self
            .functions
            .trim
            .ok_or_else(|| self.missing_symbol_error("malloc_trim"))?;
        // SAFETY: malloc_trim(3): takes the number of bytes to keep at the top of the heap. A result of 0 means that
        // nothing was released, which is no error.
        unsafe { trim(0) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::allocator::Allocator;
    use crate::allocators::loaded_objects;

    fn glibc_of_process() -> Glibc {
        let objects = loaded_objects::list_loaded_objects();
        Glibc::identify(&ObjectSymbols::of_object_exporting(&objects, ANCHOR).unwrap()).unwrap()
    }

    #[test]
    fn glibc_counts_allocations_of_test() {
        let glibc = glibc_of_process();
        assert!(glibc.identity.owns_malloc);
        let before = glibc.heap_totals().unwrap();
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = glibc.heap_totals().unwrap();
        drop(block);
        let grown = after.allocated.saturating_sub(before.allocated);
        assert!(grown >= 32 << 20, "{before:?} {after:?}");
        let report = glibc.printout().unwrap().into_text();
        assert!(report.starts_with("<malloc version=\"1\">"), "{report}");
        glibc.purge_free_pages().unwrap();
    }

    #[test]
    fn activation_of_glibc_has_remedy() {
        let error = Allocator::Glibc(glibc_of_process())
            .start_sampling(None)
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported);
        assert!(error.message.starts_with("glibc 2."), "{error}");
        assert!(error.remedy.contains("memprof run"), "{error:?}");
    }
}
