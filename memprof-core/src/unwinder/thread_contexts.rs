//! Where threads tell their labels: thread-local pointers to records, as the loader counts such variables. Programs
//! that use memprof's label calls have one, and OpenTelemetry's thread context is one (OTEP 4947).
#![expect(
    unsafe_code,
    reason = "the loader's list and symbols, and functions of the program"
)]

use std::ffi::{c_int, c_void};
use std::ptr;

use memprof_plugin_abi::raw::{memprof_labels_t, memprof_str_t};

use super::{LabelKeyNames, ThreadContext};
use crate::allocators::loaded_objects::{self, ForkGuard};

/// All of the process, each once.
pub(crate) fn thread_contexts() -> Vec<ThreadContext> {
    // SAFETY: dlsym(3) with a NUL-terminated name. Of a thread-local variable it gives the calling thread's.
    let variable = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"otel_thread_ctx_v1".as_ptr()) };
    let of_open_telemetry = context_at(variable.addr(), LabelKeyNames::OpenTelemetry);
    let of_programs = loaded_objects::list().into_iter().filter_map(|object| {
        let labels = ptr::with_exposed_provenance::<memprof_labels_t>(object.labels?);
        // SAFETY: memprof.h: what an object's note leads to is this struct; `objects` looked that it can be read,
        // and the plugin keeps no library from being unloaded, which this contract forbids it.
        let labels = unsafe { labels.read() };
        if labels.struct_size < size_of::<memprof_labels_t>() {
            return None;
        }
        // SAFETY: memprof.h: a thread-safe function that lives as long as the process.
        let variable = unsafe { labels.place?() };
        context_at(
            variable.addr(),
            LabelKeyNames::Program(LabelKeyRegistry(labels.key?)),
        )
    });
    let mut found: Vec<ThreadContext> = Vec::new();
    for context in of_programs.chain(of_open_telemetry) {
        let is_same = |known: &ThreadContext| {
            (known.module, known.offset) == (context.module, context.offset)
        };
        if !found.iter().any(is_same) {
            found.push(context);
        }
    }
    found
}

/// The numbers that a program gives its keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LabelKeyRegistry(unsafe extern "C" fn(memprof_str_t) -> i32);

impl LabelKeyRegistry {
    /// That of a key, made where it is new; none where the program has no number left.
    pub(crate) fn of(self, key: &str) -> Option<u8> {
        // SAFETY: memprof.h, `memprof_labels_t.key`: thread-safe, and the text is borrowed for the call.
        let number = unsafe { (self.0)(memprof_str_t::new(key)) };
        u8::try_from(number).ok().filter(|number| *number < u8::MAX)
    }
}

/// Whose variable the calling thread has at that address; none for null and what is no thread-local variable.
fn context_at(variable: usize, keys: LabelKeyNames) -> Option<ThreadContext> {
    let mut search = TlsSearch {
        variable,
        found: None,
    };
    if variable != 0 {
        let _reading = ForkGuard::acquire();
        // SAFETY: dl_iterate_phdr(3): `visit` gets this search, and calls nothing of the loader's.
        unsafe { libc::dl_iterate_phdr(Some(visit_object), ptr::from_mut(&mut search).cast()) };
    }
    let (module, offset) = search.found?;
    Some(ThreadContext {
        module,
        offset,
        keys,
    })
}

struct TlsSearch {
    variable: usize,
    found: Option<(usize, usize)>,
}

unsafe extern "C" fn visit_object(
    info: *mut libc::dl_phdr_info,
    _: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: dl_iterate_phdr(3) passes an object's description.
    let info = unsafe { &*info };
    // SAFETY: dl_iterate_phdr(3) passes what it was given, which nobody else uses meanwhile.
    let search = unsafe { &mut *search.cast::<TlsSearch>() };
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
