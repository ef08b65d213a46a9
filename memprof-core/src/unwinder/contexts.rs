//! Where libraries keep OpenTelemetry's thread context: a thread-local variable, as the loader counts them.
#![expect(unsafe_code, reason = "the loader's list, and its symbols")]

use std::ffi::{c_int, c_void};
use std::ptr;

/// Of each library that has one: its number (`dlpi_tls_modid`), and where in its variables it lies.
pub(crate) fn thread_contexts() -> Vec<(usize, usize)> {
    // SAFETY: dlsym(3) with a NUL-terminated name. Of a thread-local variable it gives the calling thread's.
    let variable = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"otel_thread_ctx_v1".as_ptr()) };
    let mut search = Search {
        variable: variable as usize,
        found: None,
    };
    if !variable.is_null() {
        // SAFETY: dl_iterate_phdr(3): `visit` gets this search, and calls nothing of the loader's.
        unsafe { libc::dl_iterate_phdr(Some(visit), ptr::from_mut(&mut search).cast()) };
    }
    search.found.into_iter().collect()
}

struct Search {
    variable: usize,
    found: Option<(usize, usize)>,
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr(3) passes an object's description.
    let info = unsafe { &*info };
    // SAFETY: dl_iterate_phdr(3) passes what it was given, which nobody else uses meanwhile.
    let search = unsafe { &mut *search.cast::<Search>() };
    if info.dlpi_tls_data.is_null() || info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: so many program headers of a loaded object.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let offset = search.variable.wrapping_sub(info.dlpi_tls_data as usize);
    let variables = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_TLS);
    for header in variables {
        if offset.saturating_add(size_of::<usize>()) as u64 <= header.p_memsz {
            search.found = Some((info.dlpi_tls_modid, offset));
        }
    }
    0
}
