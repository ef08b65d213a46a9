//! Hooks for jemalloc's own hook interface (`experimental.hooks.install`; hook.h of 5.2 and newer), for a statically
//! linked jemalloc whose callers use no GOT slot.
//!
//! jemalloc calls the hooks after an allocation and before a free, but never recursively.
#![expect(unsafe_code, reason = "jemalloc calls them")]

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};

use crate::aligned::call_aligned;
use crate::countdown::{count_down, start_next_countdown};
use crate::sampler::{may_be_sampled, record_sample, remove_sample};

/// jemalloc's `hooks_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct JemallocHooks {
    allocated: unsafe extern "C" fn(*mut c_void, c_int, usize, usize, *const usize),
    freed: unsafe extern "C" fn(*mut c_void, c_int, usize, *const usize),
    expanded: unsafe extern "C" fn(*mut c_void, c_int, usize, usize, usize, usize, *const usize),
    /// Passed to each hook as the first argument, which memprof ignores.
    extra: usize,
}

/// Returns the three hooks of the sampler, in the form that `experimental.hooks.install` of jemalloc takes.
pub fn jemalloc_hooks() -> JemallocHooks {
    JemallocHooks {
        allocated: allocation_hook,
        freed: free_hook,
        expanded: expansion_hook,
        extra: 0,
    }
}

/// Values of `hook_alloc_t`: the called function, which determines the meaning of its arguments.
mod function {
    use core::ffi::c_int;

    pub(super) const POSIX_MEMALIGN: c_int = 1;
    pub(super) const ALIGNED_ALLOC: c_int = 2;
    pub(super) const CALLOC: c_int = 3;
    pub(super) const MEMALIGN: c_int = 4;
    pub(super) const REALLOC: c_int = 8;
    pub(super) const RALLOCX: c_int = 9;
}

/// Hook that jemalloc calls after an allocation. Aligns the stack for [`on_allocated`].
#[unsafe(naked)]
unsafe extern "C" fn allocation_hook(
    _: *mut c_void,
    _: c_int,
    _: usize,
    _: usize,
    _: *const usize,
) {
    call_aligned!(on_allocated)
}

/// Hook that jemalloc calls before a free. Aligns the stack for [`on_freed`].
#[unsafe(naked)]
unsafe extern "C" fn free_hook(_: *mut c_void, _: c_int, _: usize, _: *const usize) {
    call_aligned!(on_freed)
}

/// Hook that jemalloc calls after a change of a block's size in place. Aligns the stack for [`on_expanded`].
#[unsafe(naked)]
unsafe extern "C" fn expansion_hook(
    _: *mut c_void,
    _: c_int,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    _: *const usize,
) {
    // The seventh argument is on the stack. It replaces the sixth, which `on_expanded` does not need.
    call_aligned!(on_expanded, "mov r9, [rsp + 8]")
}

/// Counts an allocation, and samples it if the countdown expires. `function` says which function of jemalloc the
/// program called, and `args` are the arguments of that call, among them the requested size.
unsafe extern "C" fn on_allocated(
    _: *mut c_void,
    function: c_int,
    block: usize,
    _: usize,
    args: *const usize,
) {
    // SAFETY: hook.h: an array of at least three words.
    let [first, second, third] = unsafe { args.cast::<[usize; 3]>().read() };
    let size = match function {
        function::POSIX_MEMALIGN => third,
        function::CALLOC => first.wrapping_mul(second),
        function::ALIGNED_ALLOC | function::MEMALIGN | function::REALLOC | function::RALLOCX => {
            second
        }
        // malloc, mallocx and the others take the size as the first argument.
        _ => first,
    };
    sample_if_due(block, size);
}

/// Removes the sample of a block that is about to be freed.
unsafe extern "C" fn on_freed(_: *mut c_void, _: c_int, block: usize, _: *const usize) {
    if may_be_sampled(block) {
        remove_sample(block);
    }
}

/// Handles a block that was resized in place like a free followed by an allocation. Does nothing if the size is
/// unchanged. `before` and `after` are the block's usable sizes, `args` the arguments of the call.
unsafe extern "C" fn on_expanded(
    _: *mut c_void,
    _: c_int,
    block: usize,
    before: usize,
    after: usize,
    args: *const usize,
) {
    // xallocx calls the hook even if it could not resize the block.
    if before == after {
        return;
    }
    // SAFETY: hook.h: an array of four words. The second one is the size in all three functions that resize in place
    // (realloc, rallocx, xallocx).
    let [_, size] = unsafe { args.cast::<[usize; 2]>().read() };
    if may_be_sampled(block) {
        remove_sample(block);
    }
    sample_if_due(block, size);
}

/// Counts an allocation of `size` requested bytes, and samples the block if the thread's countdown expires.
fn sample_if_due(block: usize, size: usize) {
    if !count_down(size) && start_next_countdown(size) {
        record_sample(block, size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_layout_matches_jemalloc() {
        assert_eq!(size_of::<JemallocHooks>(), 4 * size_of::<usize>());
        assert_eq!(align_of::<JemallocHooks>(), align_of::<usize>());
    }
}
