//! tcmalloc's profiles, which it returns as C++ strings.
#![expect(unsafe_code, reason = "the allocator calls")]

use std::ffi::{CStr, c_void};
use std::io::{self, Write};
use std::time::Instant;

use super::cxx_string::{CxxString, OperatorDelete};
use crate::allocators::symbols::{ObjectSymbols, as_function};
use crate::dumps::headroom::require_allocatable;
use crate::dumps::heap::ProfileSummary;
use crate::dumps::legacy;
use crate::dumps::scratch::Scratch;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::AllocatorIdentity;
use memprof_messages::ProfileKind;

/// Function that only the full library has; the minimal library returns empty profiles. Only its presence matters. It
/// is never called, because it makes each allocation hundreds of times slower.
pub(super) const HEAP_PROFILER: &CStr = c"HeapProfilerStart";
/// `MallocExtension::instance()`.
pub(super) const INSTANCE: &CStr = c"_ZN15MallocExtension8instanceEv";
/// `MallocExtension::GetHeapSample(std::string*)`, with libstdc++'s string.
pub(super) const HEAP_SAMPLE: &CStr =
    c"_ZN15MallocExtension13GetHeapSampleEPNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
/// `MallocExtension::GetHeapGrowthStacks(std::string*)`.
pub(super) const GROWTH_STACKS: &CStr = c"_ZN15MallocExtension19GetHeapGrowthStacksEPNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";

/// Bytes per record in a growth profile: tcmalloc grows by whole MiB (`kMinSystemAlloc` pages).
const GROWTH_STEP: u64 = 1 << 20;
/// Maximum memory per line of a profile, in bytes. A line has at most 31 frames. A string that grows needs three times
/// its length: its old buffer, and a new one of twice that size.
const BYTES_PER_LINE: u64 = 3 * 700;

type InstanceFn = unsafe extern "C" fn() -> *mut c_void;
type FillFn = unsafe extern "C" fn(*mut c_void, *mut c_void);

/// Functions that return profiles.
#[derive(Debug)]
pub(super) struct ProfileFunctions {
    instance: InstanceFn,
    heap_sample: FillFn,
    growth_stacks: FillFn,
    delete: OperatorDelete,
}

impl ProfileFunctions {
    /// Finds the functions that return profiles among `symbols`.
    ///
    /// # Errors
    /// `Unsupported`: the profiler, its functions for libstdc++'s `std::string`, or `operator delete` is missing.
    pub(super) fn find(symbols: &ObjectSymbols<'_>, allocator: &AllocatorIdentity) -> Result<Self> {
        let unsupported = |reason: &str, remedy: &str| {
            Error::new(ErrorKind::Unsupported, format!("{allocator} {reason}")).with_remedy(remedy)
        };
        if symbols.function_address(HEAP_PROFILER).is_none() {
            return Err(unsupported(
                "was built without its profiler: it is libtcmalloc_minimal, or linked in statically",
                "if it is linked in, use `memprof attach`; else start the program with \
                 LD_PRELOAD=libtcmalloc.so.4 (Debian: libgoogle-perftools4), or with `memprof run --allocator \
                 tcmalloc`",
            ));
        }
        let names = [INSTANCE, HEAP_SAMPLE, GROWTH_STACKS];
        let [Some(instance), Some(heap_sample), Some(growth_stacks)] =
            names.map(|name| symbols.function_address(name))
        else {
            return Err(unsupported(
                "hands profiles over in another std::string than libstdc++'s: it was built with \
                 libc++, or is damaged",
                "use a gperftools that was built with libstdc++, or `memprof run --allocator jemalloc`",
            ));
        };
        let Some(delete) = OperatorDelete::find() else {
            return Err(unsupported(
                "is there, but its C++ library is not: nothing frees a std::string",
                "load libstdc++ with RTLD_GLOBAL, or link the program to it",
            ));
        };
        Ok(Self {
            // SAFETY: the object names this code as `MallocExtension::instance()`, which has this type.
            instance: unsafe { as_function(instance) },
            // SAFETY: the object names this code as `GetHeapSample`, mangled with its arguments; `this` is the first.
            heap_sample: unsafe { as_function(heap_sample) },
            // SAFETY: the object names this code as `GetHeapGrowthStacks`, mangled with its arguments; `this`
            // is the first.
            growth_stacks: unsafe { as_function(growth_stacks) },
            delete,
        })
    }

    /// Writes a profile without its mappings to the temporary file `scratch`. `heap` is the size of the heap in bytes;
    /// `interval` is the sample interval in bytes, which a heap profile needs.
    ///
    /// # Errors
    /// Memory is short, tcmalloc returned no profile or a damaged one, or the kernel refused.
    pub(super) fn write_profile(
        &self,
        kind: ProfileKind,
        heap: u64,
        interval: u64,
        allocator: &AllocatorIdentity,
        scratch: &Scratch,
    ) -> Result<ProfileSummary> {
        // Checked first, because running out of memory would throw a C++ exception (`std::bad_alloc`), which would end
        // the process.
        require_allocatable(max_string_bytes(kind, heap, interval))?;
        let start = Instant::now();
        let text = self.fetch_profile(kind, allocator)?;
        let stall = start.elapsed();
        let damaged = || Error::allocator(format!("{allocator} damaged the string of its profile"));
        let text = text.bytes().ok_or_else(damaged)?;
        if text.is_empty() {
            return Err(Error::allocator(format!(
                "{allocator} answered with an empty profile"
            )));
        }
        let invalid = |error: io::Error| Error::allocator(format!("{allocator}: {error}"));
        let summary = ProfileSummary {
            stall: Some(stall),
            ..legacy::summarize_legacy_profile(text, interval).map_err(invalid)?
        };
        let profile = &text[..summary.profile_len as usize];
        write_profile_text(profile, summary, scratch)
            .map_err(|error| Error::io("write the dump", &error))
    }

    /// Makes tcmalloc write the profile's text to a C++ string, and returns the string.
    ///
    /// # Errors
    /// `Allocator`: tcmalloc has no instance.
    fn fetch_profile(&self, kind: ProfileKind, allocator: &AllocatorIdentity) -> Result<CxxString> {
        // SAFETY: malloc_extension.h: the function takes no arguments.
        let instance = unsafe { (self.instance)() };
        if instance.is_null() {
            return Err(Error::allocator(format!("{allocator} has no instance")));
        }
        // `Pinned` does not occur, because `Allocator::require_profile_kind` refuses it.
        let fill = match kind {
            ProfileKind::Heap | ProfileKind::Pinned => self.heap_sample,
            ProfileKind::Growth => self.growth_stacks,
        };
        let mut text = CxxString::new(self.delete);
        // SAFETY: malloc_extension.h: the function appends to a std::string of libstdc++; `instance` is a
        // MallocExtension that lives as long as the process.
        unsafe { fill(instance, text.as_pointer()) };
        Ok(text)
    }
}

/// Maximum memory in bytes for the string of a profile while it grows. `heap` is the size of the heap in bytes;
/// `interval` is the sample interval in bytes.
pub(super) fn max_string_bytes(kind: ProfileKind, heap: u64, interval: u64) -> u64 {
    let step = match kind {
        ProfileKind::Heap | ProfileKind::Pinned => interval,
        ProfileKind::Growth => GROWTH_STEP,
    };
    (heap / step).saturating_mul(BYTES_PER_LINE)
}

/// Writes the profile's text to `scratch`, and returns its summary with the written length. tcmalloc's header contains
/// the current interval, which is 0 while sampling is off. Readers reject 0, so the summary's interval replaces it.
fn write_profile_text(
    profile: &[u8],
    summary: ProfileSummary,
    scratch: &Scratch,
) -> io::Result<ProfileSummary> {
    const OFF: &[u8] = b"heap_v2/0";
    let mut file = scratch.rewind_file()?;
    let end = memchr::memchr(b'\n', profile).unwrap_or(profile.len());
    let (header, stacks) = profile.split_at(end);
    let Some(header) = header.strip_suffix(OFF) else {
        file.write_all(profile)?;
        return Ok(summary);
    };
    let header = [
        header,
        format!("heap_v2/{}", summary.sample_interval).as_bytes(),
    ]
    .concat();
    file.write_all(&header)?;
    file.write_all(stacks)?;
    Ok(ProfileSummary {
        profile_len: (header.len() + stacks.len()) as u64,
        ..summary
    })
}
