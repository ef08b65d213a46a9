//! Hooks that patched entry points call, one for each [`Shape`]. A trampoline passes the address of the function's row
//! as the sixth argument. So one hook can serve functions of several allocators.
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
use crate::sampler::{may_be_sampled, record_sample, remove_sample, restore_sample};
use crate::tally;

/// Type of every patched function: none has more than five arguments, and unused ones are ignored.
type Function = unsafe extern "C-unwind" fn(usize, usize, usize, usize, usize) -> Returned;

/// Returns the function that a hook calls for the original one: the copy of its first instructions (relocated
/// prologue), which continues in the original function behind the patched jump. `row` is the address of the function's
/// [`EntryRow`].
///
/// # Safety
/// memprof-attach wrote the row, and never unmaps it.
#[inline(always)]
unsafe fn relocated_function(row: usize) -> Function {
    // SAFETY: the caller passes a row that is never unmapped.
    let row = unsafe { &*(row as *const EntryRow) };
    // SAFETY: the relocated prologue of a function with this type.
    unsafe { original_function::<Function>(row.moved as usize) }
}

/// Declares a module for each shape. A line gives the operands as for `body!`; the last argument is the row.
macro_rules! entry_hooks {
    ($($kind:ident $shape:ident($($arg:ident),*; $row:ident) => $($operand:expr),+;)*) => {
        $(
            #[allow(non_snake_case, reason = "named as the shapes")]
            #[allow(unused_variables, reason = "not all are operands")]
            mod $shape {
                use super::*;

                hook_functions! {
                    $kind ($($arg,)* $row) => $($operand),+;
                    // SAFETY: the trampoline passes its row, and the hook's caller the arguments.
                    unsafe { relocated_function($row)($($arg),*) }
                }
            }
        )*

        /// Returns the address of the hook for functions of a shape. `is_outer`: the function calls other patched
        /// functions, so its hook takes no samples during the call, which would sample one allocation twice. If the
        /// tally (the exact count of calls) is enabled, the hooks of all other functions also count every call.
        pub(crate) fn entry_hook(shape: Shape, is_outer: bool) -> usize {
            let hook = match (shape, is_outer, tally::is_enabled()) {
                $(
                    (Shape::$shape, true, _) => $shape::hook::<false, true> as *const (),
                    (Shape::$shape, false, true) => $shape::hook::<true, false> as *const (),
                    (Shape::$shape, false, false) => $shape::hook::<false, false> as *const (),
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
