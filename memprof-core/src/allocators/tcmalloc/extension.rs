//! The C functions of gperftools (`gperftools/malloc_extension_c.h`, `gperftools/tcmalloc.h`).
#![expect(unsafe_code, reason = "the allocator calls")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::hint::black_box;
use std::mem::transmute;
use std::ptr;

use crate::allocators::printout::Printout;
use crate::allocators::symbols::ObjectSymbols;

/// Names of the C functions to look up.
pub(super) const SET: &CStr = c"MallocExtension_SetNumericProperty";
pub(super) const STATS: &CStr = c"MallocExtension_GetStats";
pub(super) const OWNERSHIP: &CStr = c"MallocExtension_GetOwnership";
pub(super) const RELEASE: &CStr = c"MallocExtension_ReleaseFreeMemory";
pub(super) const VERSION: &CStr = c"tc_version";

/// `MallocExtension_kOwned` of `malloc_extension_c.h`.
const OWNED: c_int = 1;

/// Size of the buffer for `MallocExtension_GetStats`, in bytes. With 10,000 bytes or more, the text would also list
/// each size class.
const STATS_CAPACITY: usize = 8 << 10;

type GetFn = unsafe extern "C" fn(*const c_char, *mut usize) -> c_int;
type SetFn = unsafe extern "C" fn(*const c_char, usize) -> c_int;
type StatsFn = unsafe extern "C" fn(*mut c_char, c_int);
type OwnershipFn = unsafe extern "C" fn(*const c_void) -> c_int;
type ReleaseFn = unsafe extern "C" fn();
type VersionFn = unsafe extern "C" fn(*mut c_int, *mut c_int, *mut *const c_char) -> *const c_char;

/// C functions of one gperftools.
#[derive(Debug)]
pub(super) struct Extension {
    /// `None` for functions that the build lacks.
    functions: Functions,
    /// Names of the functions that the build lacks.
    pub missing: Vec<&'static str>,
}

#[derive(Debug)]
#[repr(C)]
struct Functions {
    get: Option<GetFn>,
    set: Option<SetFn>,
    stats: Option<StatsFn>,
    ownership: Option<OwnershipFn>,
    release: Option<ReleaseFn>,
    version: Option<VersionFn>,
}

impl Extension {
    /// Finds the functions among `symbols`. Absent ones are listed in `missing`.
    pub(super) fn find(symbols: &ObjectSymbols<'_>) -> Self {
        // In the order of the fields of `Functions`.
        const NAMES: [&CStr; 6] = [super::ANCHOR, SET, STATS, OWNERSHIP, RELEASE, VERSION];
        let addresses = NAMES.map(|name| symbols.function_address(name).unwrap_or(0));
        let absent = NAMES
            .iter()
            .zip(addresses)
            .filter(|(_, address)| *address == 0);
        let missing = absent.filter_map(|(name, _)| name.to_str().ok()).collect();
        // SAFETY: `Functions` is six nullable function pointers. Each address is 0 or code that its object
        // names as this function of gperftools' headers, which give the type.
        let functions = unsafe {
            transmute::<[*const c_void; 6], Functions>(addresses.map(ptr::with_exposed_provenance))
        };
        Self { functions, missing }
    }

    /// Reads a numeric property. `None` if this build lacks it, or the function that reads properties.
    pub(super) fn get_property(&self, name: &CStr) -> Option<u64> {
        let get = self.functions.get?;
        let mut value = 0;
        // SAFETY: malloc_extension_c.h: the function takes a C string and a pointer to a size_t.
        let known = unsafe { get(name.as_ptr(), &raw mut value) };
        (known != 0).then_some(value as u64)
    }

    /// Sets a numeric property. Returns false if this build lacks it, or the function that sets properties.
    pub(super) fn set_property(&self, name: &CStr, value: u64) -> bool {
        let Some(set) = self.functions.set else {
            return false;
        };
        // SAFETY: malloc_extension_c.h: the function takes a C string and a size_t.
        unsafe { set(name.as_ptr(), value as usize) != 0 }
    }

    /// Text of `MallocExtension_GetStats`. `None` if the build lacks that function.
    pub(super) fn stats_text(&self) -> Option<Printout> {
        let stats = self.functions.stats?;
        let mut text = vec![0u8; STATS_CAPACITY];
        // SAFETY: malloc_extension_c.h: the function writes at most the given number of bytes. It is one less than the
        // buffer's length, so the text ends with NUL even if the allocator writes none.
        unsafe { stats(text.as_mut_ptr().cast(), (STATS_CAPACITY - 1) as c_int) };
        let length = text.iter().position(|byte| *byte == 0).unwrap_or(0);
        Some(Printout::from_text(&text[..length]))
    }

    /// Releases free pages to the kernel. Returns `None` and does nothing if the build lacks the function.
    pub(super) fn release_free_memory(&self) -> Option<()> {
        // SAFETY: malloc_extension_c.h: the function takes no arguments.
        self.functions.release.map(|release| unsafe { release() })
    }

    /// Whether this tcmalloc owns a block that `malloc` returns. False if the build lacks the function that tests a
    /// block.
    pub(super) fn owns_malloc(&self) -> bool {
        let Some(ownership) = self.functions.ownership else {
            return false;
        };
        // SAFETY: malloc(3) takes any size; `black_box` keeps the compiler from removing the pair.
        let block = black_box(unsafe { libc::malloc(1) });
        // SAFETY: malloc_extension_c.h: the function takes any pointer to allocated memory, or null.
        let owner = unsafe { ownership(block) };
        // SAFETY: free(3) gets the block that malloc(3) returned, or null.
        unsafe { libc::free(block) };
        !block.is_null() && owner == OWNED
    }

    /// Major and minor version, such as `2.10`. `None` if the build lacks the function.
    pub(super) fn version(&self) -> Option<String> {
        let version = self.functions.version?;
        let (mut major, mut minor, mut patch) = (0, 0, ptr::null());
        // SAFETY: tcmalloc.h: the function takes pointers to two ints and a string, each of which may be null.
        let text = unsafe { version(&raw mut major, &raw mut minor, &raw mut patch) };
        (!text.is_null()).then(|| format!("{major}.{minor}"))
    }
}
