//! The program's jemalloc, which it passes to the plugins.

use memprof_plugin_abi::raw::{memprof_jemalloc_t, memprof_stats_callback_t};
use std::ffi::{c_char, c_void};
use tikv_jemalloc_sys as jemalloc;

/// Returns the functions of the statically linked jemalloc.
pub(crate) fn jemalloc_functions() -> memprof_jemalloc_t {
    memprof_jemalloc_t {
        struct_size: size_of::<memprof_jemalloc_t>(),
        mallctl: Some(jemalloc::mallctl),
        mallctlnametomib: Some(jemalloc::mallctlnametomib),
        mallctlbymib: Some(jemalloc::mallctlbymib),
        malloc_stats_print: Some(stats_print),
    }
}

/// Forwards to jemalloc's `malloc_stats_print`, which declares the callback with another type.
#[expect(unsafe_code, reason = "an allocator call with the plugin's callback")]
unsafe extern "C" fn stats_print(
    write: memprof_stats_callback_t,
    opaque: *mut c_void,
    opts: *const c_char,
) {
    // SAFETY: jemalloc(3); the plugin promises that the callback fits `opaque`.
    unsafe { jemalloc::malloc_stats_print(write.0, opaque, opts) }
}
