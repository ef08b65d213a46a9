//! mimalloc: statistics and purging. It has no profiler.
#![expect(unsafe_code, reason = "the allocator calls")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::hint::black_box;
use std::mem::transmute;
use std::ptr;

use crate::allocators::printout::Printout;
use crate::allocators::symbols::ObjectSymbols;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::AllocatorIdentity;
use memprof_messages::{AllocatorKind, HeapUsage};

/// Function that every mimalloc exports.
pub(crate) const ANCHOR: &CStr = c"mi_version";
/// All symbols to search for.
pub(crate) const NAMES: &[&CStr] = &[ANCHOR, IS_OWN, PROCESS_INFO, STATS, COLLECT];

/// Whether a function name is one of mimalloc's own: it begins with `mi_` or `_mi_`.
pub(crate) fn is_mimalloc_function(name: &[u8]) -> bool {
    name.starts_with(b"mi_") || name.starts_with(b"_mi_")
}

/// Names of the C functions to look up.
const IS_OWN: &CStr = c"mi_is_in_heap_region";
const PROCESS_INFO: &CStr = c"mi_process_info";
const STATS: &CStr = c"mi_stats_print_out";
const COLLECT: &CStr = c"mi_collect";

/// `mi_output_fun` of mimalloc.h.
type OutputFn = unsafe extern "C" fn(*const c_char, *mut c_void);
type Out = *mut usize;

/// Functions of one mimalloc (mimalloc.h); `None` for those that the build lacks.
#[derive(Debug)]
#[repr(C)]
struct Functions {
    version: Option<unsafe extern "C" fn() -> c_int>,
    /// Declared as returning a byte, because a broken function may return a value other than 0 and 1.
    is_own: Option<unsafe extern "C" fn(*const c_void) -> u8>,
    process_info: Option<unsafe extern "C" fn(Out, Out, Out, Out, Out, Out, Out, Out)>,
    stats: Option<unsafe extern "C" fn(OutputFn, *mut c_void)>,
    collect: Option<unsafe extern "C" fn(bool)>,
}

#[derive(Debug)]
pub(crate) struct Mimalloc {
    pub identity: AllocatorIdentity,
    functions: Functions,
    /// Symbols that memprof did not find.
    pub missing: Vec<&'static str>,
}

impl Mimalloc {
    /// Identifies the mimalloc with these symbols. `None` if they lack [`ANCHOR`], the function that returns the
    /// version.
    pub(crate) fn identify(symbols: &ObjectSymbols<'_>) -> Option<Self> {
        // In the order of the fields of `Functions`.
        const NAMES: [&CStr; 5] = [ANCHOR, IS_OWN, PROCESS_INFO, STATS, COLLECT];
        let addresses = NAMES.map(|name| symbols.function_address(name).unwrap_or(0));
        let absent = NAMES
            .iter()
            .zip(addresses)
            .filter(|(_, address)| *address == 0);
        let missing = absent.filter_map(|(name, _)| name.to_str().ok()).collect();
        let pointers = addresses.map(ptr::with_exposed_provenance);
        // SAFETY: the struct consists of five nullable function pointers. Each address is 0 or code that its object
        // names as this function of mimalloc.h, which gives the type.
        let functions = unsafe { transmute::<[*const c_void; 5], Functions>(pointers) };
        let identity = AllocatorIdentity {
            kind: AllocatorKind::Mimalloc,
            version: read_version(&functions)?,
            found_by: symbols.found_by(),
            owns_malloc: owns_malloc(&functions),
            address: symbols.function_address(ANCHOR)?,
        };
        Some(Self {
            identity,
            functions,
            missing,
        })
    }

    /// `Unsupported` error for the C function `name`, which this build lacks.
    fn missing_symbol_error(&self, name: &CStr) -> Error {
        let name = name.to_string_lossy();
        let message = format!("{} lacks {name}", self.identity);
        Error::new(ErrorKind::Unsupported, message)
            .with_remedy("its library is incomplete or too old: use mimalloc 2.0.2 or newer")
    }
}

/// Version as text, such as `2.0.9`. `None` if the build lacks `mi_version`.
fn read_version(functions: &Functions) -> Option<String> {
    // SAFETY: mimalloc.h: the function takes no arguments.
    Some(version_text(unsafe { functions.version?() }))
}

/// Formats `MI_MALLOC_VERSION` of mimalloc.h: 209 as `2.0.9`, and 30401 as `3.4.1`, because minor and patch numbers
/// have two digits since 3.1. Other numbers are printed unchanged.
fn version_text(number: c_int) -> String {
    match number {
        100..1000 => format!("{}.{}.{}", number / 100, number / 10 % 10, number % 10),
        10_000.. => format!(
            "{}.{}.{}",
            number / 10_000,
            number / 100 % 100,
            number % 100
        ),
        other => other.to_string(),
    }
}

/// Whether this mimalloc owns a block that `malloc` returns. False if the build lacks the function that tests a block.
fn owns_malloc(functions: &Functions) -> bool {
    let Some(is_own) = functions.is_own else {
        return false;
    };
    // SAFETY: malloc(3) takes any size; `black_box` keeps the compiler from removing the pair.
    let block = black_box(unsafe { libc::malloc(1) });
    // SAFETY: mimalloc.h: the function takes any pointer.
    let own = unsafe { is_own(block) };
    // SAFETY: free(3) gets the block that malloc(3) returned, or null.
    unsafe { libc::free(block) };
    own != 0
}

impl Mimalloc {
    /// Committed bytes of the process, not divided into live and free memory: release builds of mimalloc count neither
    /// objects nor free pages.
    ///
    /// # Errors
    /// `Unsupported`: the build lacks `mi_process_info`.
    pub(crate) fn heap_usage(&self) -> Result<HeapUsage> {
        let process_info = self
            .functions
            .process_info
            .ok_or_else(|| self.missing_symbol_error(PROCESS_INFO))?;
        let mut values = [0usize; 8];
        let [a, b, c, d, e, committed, f, g] = values.each_mut().map(ptr::from_mut);
        // SAFETY: mimalloc.h: the function takes pointers to elapsed, user and system time, current and peak
        // RSS, current and peak commit, and page faults.
        unsafe { process_info(a, b, c, d, e, committed, f, g) };
        Ok(HeapUsage::CommittedOnly {
            committed: values[5] as u64,
        })
    }

    /// Output of `mi_stats_print_out`.
    ///
    /// # Errors
    /// `Unsupported`: the build lacks the function.
    pub(crate) fn printout(&self) -> Result<Printout> {
        let stats = self
            .functions
            .stats
            .ok_or_else(|| self.missing_symbol_error(STATS))?;
        let mut printout = Printout::default();
        // SAFETY: mimalloc.h: the function calls `forward_printout_piece` with the printout, which lives until it
        // returns.
        unsafe { stats(forward_printout_piece, (&raw mut printout).cast()) };
        Ok(printout)
    }

    /// Releases the free pages of this thread's heap, of ended threads and of the arenas. Other running threads keep
    /// their free pages, because only a thread itself can release those of its heap.
    ///
    /// # Errors
    /// `Unsupported`: the build lacks `mi_collect`.
    pub(crate) fn purge_free_pages(&self) -> Result<()> {
        let collect = self
            .functions
            .collect
            .ok_or_else(|| self.missing_symbol_error(COLLECT))?;
        // SAFETY: mimalloc.h: the argument forces a full collection.
        unsafe { collect(true) };
        Ok(())
    }
}

/// Appends a piece of `mi_stats_print_out` to the printout behind `opaque`. Ignores a null piece.
unsafe extern "C" fn forward_printout_piece(piece: *const c_char, opaque: *mut c_void) {
    if piece.is_null() {
        return;
    }
    // SAFETY: mimalloc.h: a piece is NUL-terminated and valid during the call.
    let piece = unsafe { CStr::from_ptr(piece) }.to_bytes();
    // SAFETY: `printout` passed a pointer to its value, which nothing else uses during the call.
    let printout = unsafe { &mut *opaque.cast::<Printout>() };
    printout.push(piece);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_has_three_parts() {
        let check = |number, expected: &str| assert_eq!(version_text(number), expected);
        check(209, "2.0.9");
        check(187, "1.8.7");
        check(316, "3.1.6");
        check(20_304, "2.3.4");
        check(30_401, "3.4.1");
        check(31_012, "3.10.12");
        check(7, "7");
    }
}
