//! Hook for `dlsym(3)`: a program looks up the functions of a library that it has just loaded before it calls them, so
//! the library's slots are patched by then. Only what the library's constructors allocate comes earlier.
#![expect(unsafe_code, reason = "other code calls it in place of dlsym")]

use core::arch::naked_asm;
use core::mem;
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::countdown;
use crate::hooks::{Hook, Role};

/// Address of the program's `dlsym`; 0 if there is none.
static ORIGINAL: AtomicUsize = AtomicUsize::new(0);
/// Function that [`set_before_lookup`] stored; 0 if none.
static BEFORE_LOOKUP: AtomicUsize = AtomicUsize::new(0);

/// Sets a function that is called before each `dlsym(3)` of the program while sampling is on. It may wait for the
/// loader's lock, for which `dlsym` waits too.
pub fn set_before_lookup(function: extern "C" fn()) {
    BEFORE_LOOKUP.store(function as usize, Release);
}

/// Hook for `dlsym`, given the address of the program's; `None` if there is none.
pub(crate) fn lookup_hook(dlsym: Option<usize>) -> Hook {
    let address = hook as *const () as usize;
    let definition = dlsym.unwrap_or(0);
    ORIGINAL.store(definition, Relaxed);
    Hook {
        name: c"dlsym",
        role: Role::Allocates,
        address,
        outer: address,
        definition,
        original: &ORIGINAL,
    }
}

/// Calls [`before_lookup`] on an aligned stack, then jumps to the program's `dlsym` with the stack as its caller left
/// it: `dlsym` finds the calling object by its return address.
///
/// # Safety
/// Only slots of `dlsym` hold its address, and `ORIGINAL` was stored before.
#[unsafe(naked)]
unsafe extern "C" fn hook() {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "push rdi",
        "push rsi",
        "and rsp, -16",
        "call {before}",
        "mov rdi, [rbp - 8]",
        "mov rsi, [rbp - 16]",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "jmp qword ptr [rip + {original}]",
        ".cfi_endproc",
        before = sym before_lookup,
        original = sym ORIGINAL,
    )
}

/// Calls the function that was set, while sampling is on. Leaves `errno` as it is.
extern "C" fn before_lookup() {
    let function = BEFORE_LOOKUP.load(Acquire);
    if function == 0 || countdown::interval() == 0 {
        return;
    }
    // SAFETY: `set_before_lookup` stored a function of this type.
    let function = unsafe { mem::transmute::<usize, extern "C" fn()>(function) };
    // SAFETY: errno(3) of the calling thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `__errno_location` returns the address of a number.
    let before = unsafe { errno.read() };
    function();
    // SAFETY: as above.
    unsafe { errno.write(before) };
}
