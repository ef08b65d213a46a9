//! Finds the thread-local variables through which threads publish their labels, by the loader's module ID and the
//! offset. Programs that use memprof's label calls have one; another is OpenTelemetry's thread context (OTEP 4947).
#![expect(
    unsafe_code,
    reason = "the loader's list and symbols, and functions of the program"
)]

use std::ffi::{c_int, c_void};
use std::ptr;

use memprof_plugin_abi::raw::{memprof_labels_t, memprof_str_t};

use super::{LabelKeyNames, ThreadContext};
use crate::allocators::loaded_objects::{self, ForkGuard};

/// Finds the thread-local variables in which threads store labels: those of programs with memprof's label calls, and
/// that of OpenTelemetry. Lists each variable once.
pub(crate) fn find_thread_contexts() -> Vec<ThreadContext> {
    // SAFETY: dlsym(3) gets a NUL-terminated name. For a thread-local variable, it returns the address of the calling
    // thread's instance.
    let variable = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"otel_thread_ctx_v1".as_ptr()) };
    let of_open_telemetry = thread_context_at(variable.addr(), LabelKeyNames::OpenTelemetry);
    let of_programs = loaded_objects::list_loaded_objects()
        .into_iter()
        .filter_map(|object| {
            let labels = ptr::with_exposed_provenance::<memprof_labels_t>(object.labels?);
            // SAFETY: memprof.h: the note of an object points to this struct, and a library with such a note must not
            // be unloaded. `loaded_objects` checked that the struct is readable.
            let labels = unsafe { labels.read() };
            if labels.struct_size < size_of::<memprof_labels_t>() {
                return None;
            }
            // SAFETY: memprof.h: the function is thread-safe and lives as long as the process.
            let variable = unsafe { labels.place?() };
            thread_context_at(
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

/// Function of a program that assigns numbers to label keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LabelKeyRegistry(unsafe extern "C" fn(memprof_str_t) -> i32);

impl LabelKeyRegistry {
    /// Number of a key, assigned at its first use. `None` if the program has no number left.
    pub(crate) fn assign_key_number(self, key: &str) -> Option<u8> {
        // SAFETY: memprof.h, `memprof_labels_t.key`: the function is thread-safe, and borrows the text only during the
        // call.
        let number = unsafe { (self.0)(memprof_str_t::new(key)) };
        // The largest number stands for an absent key.
        u8::try_from(number).ok().filter(|number| *number < u8::MAX)
    }
}

/// Module and offset of the thread-local variable that is at the address `variable` in the calling thread. `keys` is
/// stored in the result. `None` if the address is 0, or in no thread-local block of this thread.
fn thread_context_at(variable: usize, keys: LabelKeyNames) -> Option<ThreadContext> {
    let mut search = TlsSearch {
        variable,
        found: None,
    };
    if variable != 0 {
        // A child that is forked meanwhile would inherit the loader's lock locked.
        let _no_fork = ForkGuard::acquire();
        // SAFETY: dl_iterate_phdr(3) passes `search` to `find_in_tls_block`, which calls no function of the loader.
        unsafe {
            libc::dl_iterate_phdr(Some(find_in_tls_block), ptr::from_mut(&mut search).cast())
        };
    }
    let (module, offset) = search.found?;
    Some(ThreadContext {
        module,
        offset,
        keys,
    })
}

/// A search for the module of a thread-local variable. `found` is the module ID and the offset.
struct TlsSearch {
    variable: usize,
    found: Option<(usize, usize)>,
}

/// Callback that stores the variable's module and offset if this object's thread-local block (`PT_TLS`) contains the
/// whole pointer. Returns 0 to continue the iteration.
unsafe extern "C" fn find_in_tls_block(
    info: *mut libc::dl_phdr_info,
    _: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: dl_iterate_phdr(3): `info` is valid during the callback.
    let info = unsafe { &*info };
    // SAFETY: `thread_context_at` passes a pointer to its search, which nothing else uses during the call.
    let search = unsafe { &mut *search.cast::<TlsSearch>() };
    if info.dlpi_tls_data.is_null() || info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: dl_iterate_phdr(3): `dlpi_phnum` headers are at `dlpi_phdr`.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let offset = search.variable.wrapping_sub(info.dlpi_tls_data as usize);
    let tls_segments = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_TLS);
    for header in tls_segments {
        if offset.saturating_add(size_of::<usize>()) as u64 <= header.p_memsz {
            search.found = Some((info.dlpi_tls_modid, offset));
        }
    }
    0
}
