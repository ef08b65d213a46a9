//! Calls on a stack with the alignment of the ABI, from a function whose caller may not have kept it.
//!
//! Assembly and old compilers call `malloc` with a stack pointer that is off by 8. glibc and tcmalloc work all the
//! same; code that saves a vector register with `movaps` would end the program.

/// The body of a naked function: calls a function with the same arguments, at most six words, and returns its result.
/// `$first` is an instruction before. Exceptions pass through it.
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
