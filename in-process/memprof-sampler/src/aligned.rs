//! Calls with an ABI-aligned stack, from a function whose caller may have misaligned it.
//!
//! Assembly and old compilers call `malloc` with a stack pointer that is off by 8. glibc's and tcmalloc's functions
//! tolerate that, but code that saves a vector register with `movaps` would crash the program.

/// Body of a naked function that calls `$callee` with its own arguments, at most six words, and returns the result.
/// `$first` is an instruction to run before the call. C++ exceptions can unwind through the frame.
macro_rules! call_aligned {
    ($callee:expr $(, $first:literal)?) => {
        naked_asm!(
            ".cfi_startproc",
            $($first,)?
            "push rbp",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset rbp, -16",
            "mov rbp, rsp",
            ".cfi_def_cfa_register rbp",
            "and rsp, -16",
            "call {callee}",
            "leave",
            ".cfi_def_cfa rsp, 8",
            "ret",
            ".cfi_endproc",
            callee = sym $callee,
        )
    };
}

pub(crate) use call_aligned;
