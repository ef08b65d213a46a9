//! Hooks that patched slots call, one for each function of `malloc`. A hook counts the call, calls the allocator's
//! function, and records or removes a sample. [`entry_hooks`](crate::entry_hooks) does this for patched entry points.
//!
//! C++ exceptions can unwind through the hooks, because `operator new` throws.
#![expect(
    unsafe_code,
    reason = "other code calls them in place of its allocator"
)]

use core::arch::naked_asm;
use core::ffi::{CStr, c_int};
use core::mem;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::aligned::call_aligned;
use crate::countdown::{CountdownPause, count_down, start_next_countdown};
use crate::sampler::{may_be_sampled, record_sample, remove_sample, restore_sample};
use crate::tally;

/// Role of a function. Hooks are enabled and disabled by role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The function only allocates: its hook is needed while sampling is on.
    Allocates,
    /// The function frees, and may allocate too: its hook is needed as long as there are live samples.
    Frees,
}

/// One function of `malloc` and its hook.
#[derive(Clone, Debug)]
pub(crate) struct Hook {
    pub(crate) name: &'static CStr,
    pub(crate) role: Role,
    pub(crate) address: usize,
    /// Address at which the allocator defines the function; 0 if it lacks the function or the address is unknown.
    pub(crate) definition: usize,
    /// Address at which the hook calls the function: `definition`, or the relocated prologue.
    pub(crate) original: &'static AtomicUsize,
}

/// Registers in which an allocator's function returns its result (rax and rdx).
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Returned {
    /// Block address or number that the function returns.
    pub(crate) word: usize,
    _second: usize,
}

/// Converts the address of one of the allocator's functions to a function pointer.
///
/// # Safety
/// `F` is the function's type.
#[inline(always)]
pub(crate) unsafe fn original_function<F: Copy>(address: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    // SAFETY: the caller names the function's type, and the sizes are equal.
    unsafe { mem::transmute_copy(&address) }
}

/// Declares a module for each hook, and the list of hooks. A line gives the parameters of the allocator's function,
/// each one word, then the operands for `body!`.
macro_rules! hooks {
    ($($kind:ident $name:ident($($arg:ident),*) => $($operand:expr),+;)*) => {
        $(
            #[allow(non_snake_case, reason = "C++ calls some of them so")]
            mod $name {
                use super::*;

                type Function = unsafe extern "C-unwind" fn($(word!($arg)),*) -> Returned;
                pub(super) static ORIGINAL: AtomicUsize = AtomicUsize::new(0);

                hook_functions! {
                    $kind ($($arg),*) => $($operand),+;
                    // SAFETY: the hook's caller passed these arguments, for a function of this type.
                    unsafe { original_function::<Function>(ORIGINAL.load(Relaxed))($($arg),*) }
                }
            }
        )*

        /// Returns one hook for each hooked function of `malloc`. The addresses of the functions' definitions are still
        /// unknown (0). If the tally is enabled, the hooks count every call.
        pub(crate) fn hooks() -> [Hook; HOOK_COUNT] {
            let is_tallied = tally::is_enabled();
            [$(Hook {
                name: name!($name),
                role: role!($kind),
                address: match is_tallied {
                    true => $name::hook::<true, false> as *const () as usize,
                    false => $name::hook::<false, false> as *const () as usize,
                },
                definition: 0,
                original: &$name::ORIGINAL,
            }),*]
        }

        pub(crate) const HOOK_COUNT: usize = [$(stringify!($name)),*].len();
    };
}

macro_rules! name {
    ($name:ident) => {{
        const NAME: &str = concat!(stringify!($name), "\0");
        match CStr::from_bytes_with_nul(NAME.as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        }
    }};
}

macro_rules! role {
    (allocate) => {
        Role::Allocates
    };
    (store) => {
        Role::Allocates
    };
    (free) => {
        Role::Frees
    };
    (reallocate) => {
        Role::Frees
    };
    (expand) => {
        Role::Frees
    };
}

/// Type of every parameter: one word.
macro_rules! word {
    ($arg:ident) => {
        usize
    };
}

/// Declares `hook`, which counts a call and makes it with the expression `$call`. The operands are some of the hook's
/// arguments, as `body!` expects them.
macro_rules! hook_functions {
    ($kind:ident ($($arg:ident),*) => $($operand:expr),+; $call:expr) => {
        /// Replaces the allocator's function. Only forwards the call if it needs no sample, removal or count. Makes
        /// tail calls and has no frame of its own, because the caller's stack may be misaligned. `TALLIED`: every call
        /// is counted in the tally. `OUTER`: the function calls other patched functions. Their hooks take no samples
        /// during the call, and count for the tally.
        pub(super) unsafe extern "C-unwind" fn hook<const TALLIED: bool, const OUTER: bool>(
            $($arg: word!($arg)),*
        ) -> Returned {
            if !TALLIED && !OUTER && is_usual!($kind $($operand),+) {
                return $call;
            }
            // SAFETY: `call_slow_path_aligned` passes on the arguments of the hook's caller.
            unsafe { call_slow_path_aligned::<TALLIED, OUTER>($($arg),*) }
        }

        /// Aligns the stack, and calls [`hook_slow_path`] with the arguments.
        ///
        /// # Safety
        /// The arguments are those of the hook's caller.
        #[cold]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn call_slow_path_aligned<const TALLIED: bool, const OUTER: bool>(
            $($arg: word!($arg)),*
        ) -> Returned {
            call_aligned!(hook_slow_path::<TALLIED, OUTER>)
        }

        /// Slow path of the hook: calls the allocator's function, and updates the sample countdown, the tally and the
        /// samples. Needs an aligned stack.
        ///
        /// # Safety
        /// The arguments are those of the hook's caller.
        unsafe extern "C-unwind" fn hook_slow_path<const TALLIED: bool, const OUTER: bool>(
            $($arg: word!($arg)),*
        ) -> Returned {
            body!($kind $($operand),+; $call)
        }
    };
}

/// Fast path: whether the call needs neither a sample nor a removal. If so, the hook only forwards it.
macro_rules! is_usual {
    (allocate $bytes:expr) => {
        count_down($bytes)
    };
    (store $result:expr, $bytes:expr) => {
        count_down($bytes)
    };
    (free $block:expr) => {
        !may_be_sampled($block)
    };
    (reallocate $old:expr, $bytes:expr) => {
        !may_be_sampled($old) && count_down($bytes)
    };
    (expand $block:expr, $bytes:expr, $more:expr) => {
        false
    };
}

/// Slow path: makes the call, and counts it for the countdown, the tally and the samples.
macro_rules! body {
    (allocate $bytes:expr; $call:expr) => {{
        let is_due = !count_down($bytes) && start_next_countdown($bytes);
        let pause = OUTER.then(CountdownPause::new);
        let returned = $call;
        drop(pause);
        if TALLIED {
            tally::record_alloc(returned.word, $bytes);
        }
        if is_due {
            record_sample(returned.word, $bytes);
        }
        returned
    }};
    (store $result:expr, $bytes:expr; $call:expr) => {{
        let is_due = !count_down($bytes) && start_next_countdown($bytes);
        let pause = OUTER.then(CountdownPause::new);
        let returned = $call;
        drop(pause);
        if (is_due || TALLIED) && returned.word as c_int == 0 {
            // SAFETY: posix_memalign(3) stores the block on success.
            let block = unsafe { ($result as *const usize).read() };
            if TALLIED {
                tally::record_alloc(block, $bytes);
            }
            if is_due {
                record_sample(block, $bytes);
            }
        }
        returned
    }};
    (free $block:expr; $call:expr) => {{
        if may_be_sampled($block) {
            // Removed before the call: once the block is free, another thread may get the same address.
            remove_sample($block);
        }
        if TALLIED {
            tally::record_free(tally::block_size($block));
        }
        $call
    }};
    (reallocate $old:expr, $bytes:expr; $call:expr) => {{
        let is_due = !count_down($bytes) && start_next_countdown($bytes);
        let before = match TALLIED {
            true => tally::block_size($old),
            false => 0,
        };
        let removed = may_be_sampled($old).then(|| remove_sample($old)).flatten();
        let pause = OUTER.then(CountdownPause::new);
        let returned = $call;
        drop(pause);
        let block = returned.word;
        if TALLIED && (block != 0 || $bytes == 0) {
            tally::record_free(before);
            tally::record_alloc(block, $bytes);
        }
        match removed {
            // The call failed and the old block is unchanged. (With size 0, null may mean that the block was freed.)
            Some(old) if block == 0 && $bytes != 0 => restore_sample($old, old),
            _ => {}
        }
        if is_due {
            record_sample(block, $bytes);
        }
        returned
    }};
    (expand $block:expr, $bytes:expr, $more:expr; $call:expr) => {{
        let before = match TALLIED {
            true => tally::block_size($block),
            false => 0,
        };
        let pause = OUTER.then(CountdownPause::new);
        let returned = $call;
        drop(pause);
        // New size of the block; smaller than requested if the call failed.
        let size = returned.word;
        if size >= $bytes {
            let bytes = size.min($bytes.saturating_add($more));
            if TALLIED {
                tally::record_free(before);
                tally::record_alloc($block, bytes);
            }
            if may_be_sampled($block) {
                remove_sample($block);
            }
            if !count_down(bytes) && start_next_countdown(bytes) {
                record_sample($block, bytes);
            }
        }
        returned
    }};
}

pub(crate) use {body, hook_functions, is_usual, word};

hooks! {
    allocate malloc(size) => size;
    allocate calloc(count, size) => count.wrapping_mul(size);
    allocate memalign(alignment, size) => size;
    allocate aligned_alloc(alignment, size) => size;
    allocate valloc(size) => size;
    allocate pvalloc(size) => size;
    store posix_memalign(result, alignment, size) => result, size;
    reallocate realloc(block, size) => block, size;
    reallocate reallocarray(block, count, size) => block, count.wrapping_mul(size);
    free free(block) => block;
    free cfree(block) => block;
    free free_sized(block, size) => block;
    free free_aligned_sized(block, alignment, size) => block;
    // jemalloc(3).
    allocate mallocx(size, flags) => size;
    reallocate rallocx(block, size, flags) => block, size;
    expand xallocx(block, size, extra, flags) => block, size, extra;
    free dallocx(block, flags) => block;
    free sdallocx(block, size, flags) => block;
    // operator new and new[]: plain, nothrow, aligned, both.
    allocate _Znwm(size) => size;
    allocate _Znam(size) => size;
    allocate _ZnwmRKSt9nothrow_t(size, tag) => size;
    allocate _ZnamRKSt9nothrow_t(size, tag) => size;
    allocate _ZnwmSt11align_val_t(size, alignment) => size;
    allocate _ZnamSt11align_val_t(size, alignment) => size;
    allocate _ZnwmSt11align_val_tRKSt9nothrow_t(size, alignment, tag) => size;
    allocate _ZnamSt11align_val_tRKSt9nothrow_t(size, alignment, tag) => size;
    // operator delete and delete[]: plain, nothrow, sized, aligned, sized and aligned, aligned and nothrow.
    free _ZdlPv(block) => block;
    free _ZdaPv(block) => block;
    free _ZdlPvRKSt9nothrow_t(block, tag) => block;
    free _ZdaPvRKSt9nothrow_t(block, tag) => block;
    free _ZdlPvm(block, size) => block;
    free _ZdaPvm(block, size) => block;
    free _ZdlPvSt11align_val_t(block, alignment) => block;
    free _ZdaPvSt11align_val_t(block, alignment) => block;
    free _ZdlPvmSt11align_val_t(block, size, alignment) => block;
    free _ZdaPvmSt11align_val_t(block, size, alignment) => block;
    free _ZdlPvSt11align_val_tRKSt9nothrow_t(block, alignment, tag) => block;
    free _ZdaPvSt11align_val_tRKSt9nothrow_t(block, alignment, tag) => block;
}
