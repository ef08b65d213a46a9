//! Hooks that patched entry points call, one for each [`Shape`]. A trampoline passes the address of the function's row in
//! register r11, which no argument takes and each call may change. So one hook serves functions of several allocators.
#![expect(
    unsafe_code,
    reason = "other code calls them in place of its allocator"
)]

use core::arch::naked_asm;
use core::ffi::c_int;

use crate::aligned::call_aligned;
use crate::allocator_functions::Shape;
use crate::countdown::{CountdownPause, count_down, start_next_countdown};
use crate::entry_table::EntryRow;
use crate::hooks::{Returned, body, hook_functions, is_usual, original_function, word};
use crate::sampler::{may_be_sample, record_sample, remove_sample, restore_sample};
use crate::tally;

/// Type of an allocator's functions: all that it has take five arguments or fewer.
type Function = unsafe extern "C-unwind" fn(usize, usize, usize, usize, usize) -> Returned;

/// Returns the function behind a row's jump.
///
/// # Safety
/// memprof-attach wrote the row, which stays for the life of the process.
#[inline(always)]
unsafe fn moved(row: usize) -> Function {
    // SAFETY: the caller passes a row that is never unmapped.
    let row = unsafe { &*(row as *const EntryRow) };
    // SAFETY: the relocated prologue of a function with this type.
    unsafe { original_function::<Function>(row.moved as usize) }
}

/// Declares a module for each shape, with its operands as for `body!`. The last argument is the row.
macro_rules! entry_hooks {
    ($($kind:ident $shape:ident($($arg:ident),*; $row:ident) => $($operand:expr),+;)*) => {
        $(
            #[allow(non_snake_case, reason = "named as the shapes")]
            #[allow(unused_variables, reason = "not all are operands")]
            mod $shape {
                use super::*;

                /// Passes the row on as the sixth argument.
                #[unsafe(naked)]
                pub(super) unsafe extern "C-unwind" fn entry<const TALLIED: bool, const OUTER: bool>() {
                    naked_asm!(
                        ".cfi_startproc",
                        "mov r9, r11",
                        "jmp {hook}",
                        ".cfi_endproc",
                        hook = sym hook::<TALLIED, OUTER>,
                    )
                }

                hook_functions! {
                    $kind ($($arg,)* $row) => $($operand),+;
                    // SAFETY: the trampoline passes its row, and the hook's caller the arguments.
                    unsafe { moved($row)($($arg),*) }
                }
            }
        )*

        /// Address of the hook for functions of a shape. Allocations within one that `is_outer` are not counted.
        pub(crate) fn entry_hook(shape: Shape, is_outer: bool) -> usize {
            let hook = match (shape, is_outer, tally::is_enabled()) {
                $(
                    (Shape::$shape, true, _) => $shape::entry::<false, true> as *const (),
                    (Shape::$shape, false, true) => $shape::entry::<true, false> as *const (),
                    (Shape::$shape, false, false) => $shape::entry::<false, false> as *const (),
                )*
            };
            hook as usize
        }
    };
}

entry_hooks! {
    allocate Size(a, b, c, d, e; row) => a;
    allocate SecondSize(a, b, c, d, e; row) => b;
    allocate Count(a, b, c, d, e; row) => a.wrapping_mul(b);
    allocate SecondCount(a, b, c, d, e; row) => b.wrapping_mul(c);
    store Stored(a, b, c, d, e; row) => a, c;
    free Free(a, b, c, d, e; row) => a;
    reallocate Resize(a, b, c, d, e; row) => a, b;
    reallocate ResizeThird(a, b, c, d, e; row) => a, c;
    reallocate ResizeFourth(a, b, c, d, e; row) => a, d;
    reallocate ResizeCount(a, b, c, d, e; row) => a, b.wrapping_mul(c);
    reallocate SecondResize(a, b, c, d, e; row) => b, c;
    reallocate SecondResizeCount(a, b, c, d, e; row) => b, c.wrapping_mul(d);
    expand Expand(a, b, c, d, e; row) => a, b, c;
}
