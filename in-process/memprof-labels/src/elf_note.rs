//! The ELF note through which plugins find the labels of this program or library (`memprof.h`, `memprof_labels_t`).
#![expect(unsafe_code, reason = "the ABI boundary")]

use std::arch::global_asm;
use std::ffi::c_void;

use memprof_plugin_abi::raw::{
    MEMPROF_INVALID_ARGUMENT, MEMPROF_UNAVAILABLE, memprof_labels_t, memprof_str_t,
};

use crate::{key, record};

static LABELS: memprof_labels_t = memprof_labels_t {
    struct_size: size_of::<memprof_labels_t>(),
    place: Some(address_of_context_pointer),
    key: Some(intern_key),
};

/// Implements `place` of `memprof_labels_t`: returns the address of the calling thread's pointer to its record.
unsafe extern "C" fn address_of_context_pointer() -> *const *const c_void {
    record::address_of_context_pointer()
}

/// Implements `key` of `memprof_labels_t`: returns the number of a key, or a negative status. `MEMPROF_UNAVAILABLE`:
/// there are too many keys. `MEMPROF_INVALID_ARGUMENT`: the text is not UTF-8.
unsafe extern "C" fn intern_key(key: memprof_str_t) -> i32 {
    // SAFETY: memprof.h: the caller lends the text for the call.
    match unsafe { key.as_str() } {
        Ok(key) => key::intern_key(key).map_or(MEMPROF_UNAVAILABLE, i32::from),
        Err(_) => MEMPROF_INVALID_ARGUMENT,
    }
}

// The symbol is weak, because a program may contain two versions of this crate, each with its note.
global_asm!(
    ".pushsection .note.memprof, \"a\", %note",
    ".balign 4",
    ".weak memprof_labels_note",
    ".hidden memprof_labels_note",
    "memprof_labels_note:",
    // Lengths of the owner and of the content, and the type of the note.
    ".long 8, 8, 1",
    ".asciz \"memprof\"",
    ".quad {labels} - .",
    ".popsection",
    labels = sym LABELS,
);
