//! Hooks for `dlopen(3)`, `dlclose(3)`, `dlsym(3)` and their variants. A program looks up the functions of a newly
//! loaded library before it calls them, so these hooks can patch the library's slots in time. Only allocations of the
//! library's constructors come earlier. Between two of these calls, the loaded code does not change, unless libc itself
//! loads or unloads a library.
#![expect(
    unsafe_code,
    reason = "other code calls them in place of the loader's functions"
)]

use core::arch::naked_asm;
use core::ffi::CStr;
use core::mem;
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::countdown;
use crate::hooks::{Hook, Role};

pub(crate) const HOOK_COUNT: usize = 5;

/// Names of the hooked functions. None has more than three arguments.
const NAMES: [&CStr; HOOK_COUNT] = [c"dlsym", c"dlvsym", c"dlopen", c"dlmopen", c"dlclose"];
static HOOKS: [unsafe extern "C" fn(); HOOK_COUNT] =
    [hook::<0>, hook::<1>, hook::<2>, hook::<3>, hook::<4>];
/// Addresses of the program's functions, in the order of [`NAMES`]; 0 if there is none, or [`UNHOOKABLE`].
static ORIGINALS: [AtomicUsize; HOOK_COUNT] = [const { AtomicUsize::new(0) }; HOOK_COUNT];
/// Marks a function whose first definition is indirect (IFUNC) or a variable: its address is unknown, and calls must
/// not reach a later object's.
const UNHOOKABLE: usize = usize::MAX;
/// Function that [`set_function_before_loader_calls`] stored; 0 if none was stored.
static BEFORE_CALL: AtomicUsize = AtomicUsize::new(0);

/// Sets a function to call before each call that the program makes to the loader while sampling is on. `function` may
/// wait for the loader's lock, because the loader waits for that lock anyway.
pub fn set_function_before_loader_calls(function: extern "C" fn()) {
    BEFORE_CALL.store(function as usize, Release);
}

/// Stores the addresses of the functions in [`NAMES`] that an object defines, except those that an earlier object
/// defined. `definition` returns the object's own definition of a name: the function's address, or `Some(None)` if that
/// is unknown.
pub(crate) fn store_original_functions(definition: impl Fn(&CStr) -> Option<Option<usize>>) {
    for (name, original) in NAMES.iter().zip(&ORIGINALS) {
        let found = definition(name).map_or(0, |function| function.unwrap_or(UNHOOKABLE));
        // The exchange fails if an earlier object defined the function.
        let _known = original.compare_exchange(0, found, Relaxed, Relaxed);
    }
}

/// Returns the hooks of the functions in [`NAMES`]. Call it after [`store_original_functions`] for every object.
pub(crate) fn hooks() -> [Hook; HOOK_COUNT] {
    core::array::from_fn(|index| {
        let address = HOOKS[index] as *const () as usize;
        Hook {
            name: NAMES[index],
            // Needed only while sampling is on, like the hooks of functions that allocate.
            role: Role::Allocates,
            address,
            definition: match ORIGINALS[index].load(Relaxed) {
                UNHOOKABLE => 0,
                function => function,
            },
            original: &ORIGINALS[index],
        }
    })
}

/// Calls [`run_before_loader_call`] on an aligned stack, then jumps to the program's function. At the jump the stack is
/// as the caller left it, because the loader finds the calling object by the return address. Of the registers for
/// arguments only the first three are kept: no hooked function has more arguments.
///
/// # Safety
/// Only slots of function number `INDEX` hold this hook's address, and the original function was stored before.
#[unsafe(naked)]
unsafe extern "C" fn hook<const INDEX: usize>() {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "push rdi",
        "push rsi",
        "push rdx",
        "and rsp, -16",
        "call {before}",
        "mov rdi, [rbp - 8]",
        "mov rsi, [rbp - 16]",
        "mov rdx, [rbp - 24]",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "jmp qword ptr [rip + {originals} + {offset}]",
        ".cfi_endproc",
        before = sym run_before_loader_call,
        originals = sym ORIGINALS,
        offset = const INDEX * size_of::<AtomicUsize>(),
    )
}

/// Calls the function set by [`set_function_before_loader_calls`] if sampling is on. Preserves `errno`.
extern "C" fn run_before_loader_call() {
    let function = BEFORE_CALL.load(Acquire);
    if function == 0 || countdown::interval() == 0 {
        return;
    }
    // SAFETY: `set_function_before_loader_calls` stored a function of this type.
    let function = unsafe { mem::transmute::<usize, extern "C" fn()>(function) };
    // SAFETY: errno(3) of the calling thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `__errno_location` returns the address of a number.
    let before = unsafe { errno.read() };
    function();
    // SAFETY: `__errno_location` returned this address in the same thread.
    unsafe { errno.write(before) };
}
