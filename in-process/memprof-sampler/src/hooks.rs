//! Hooks that patched slots and entry points call: one for each function of `malloc`, which counts the call,
//! calls the allocator's function, and records or removes a sample.
//!
//! They unwind as the allocator's functions do: `operator new` throws.
#![expect(
    unsafe_code,
    reason = "other code calls them in place of its allocator"
)]

use core::arch::naked_asm;
use core::ffi::{CStr, c_int, c_void};
use core::mem;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::aligned::call_aligned;
use crate::countdown::{CountdownPause, count_down, start_next_countdown};
use crate::sampler::{may_be_sample, record_sample, remove_sample, restore_sample};
use crate::tally;

/// Role of a function, by which its hook is enabled and disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It only allocates: its hook is needed while sampling is on.
    Allocates,
    /// It frees, or frees and allocates: its hook is needed as long as there are live samples.
    Frees,
}

/// One function of `malloc` and its hook.
#[derive(Clone, Debug)]
pub(crate) struct Hook {
    pub(crate) name: &'static CStr,
    pub(crate) role: Role,
    pub(crate) address: usize,
    /// Address of the hook for a function of the allocator that calls other hooked functions: their nested
    /// allocations are not counted.
    pub(crate) outer: usize,
    /// Address at which the allocator defines the function; 0 if it does not, or if that is unknown.
    pub(crate) definition: usize,
    /// Address by which the hook calls the function: `definition`, or its relocated prologue.
    pub(crate) original: &'static AtomicUsize,
}

/// Function that can be hooked, as memprof-attach needs it to patch an entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Symbol name.
    pub name: &'static str,
    /// Whether it allocates or frees.
    pub role: Role,
    kind: &'static str,
    arguments: &'static [&'static str],
    operand: &'static str,
}

impl Signature {
    /// Number of arguments.
    pub fn arguments(&self) -> usize {
        self.arguments.len()
    }

    /// Whether it only frees.
    pub fn is_free(&self) -> bool {
        self.kind == "free"
    }

    /// Whether one hook can serve both functions, where two names have one address: they find the size and
    /// the block in the same arguments.
    pub fn has_same_shape(&self, other: &Self) -> bool {
        let position = |one: &Self| one.arguments.iter().position(|name| *name == one.operand);
        let is_same_position = match (position(self), position(other)) {
            (None, None) => self.arguments == other.arguments,
            (one, other) => one == other,
        };
        (self.kind, self.operand) == (other.kind, other.operand) && is_same_position
    }
}

/// Address of a block, as `malloc` returns it.
type Block = *mut c_void;

/// Returns the allocator's function behind a hook.
///
/// # Safety
/// `F` is the function's type, and `GotSlots::find` or `PatchedEntries::enable` stored its address before the
/// hook could be called.
#[inline(always)]
unsafe fn original_function<F: Copy>(original: &AtomicUsize) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let original = original.load(Relaxed);
    // SAFETY: the caller names the function's type, and the sizes are equal.
    unsafe { mem::transmute_copy(&original) }
}

/// Declares a module for each hook, and the list of them. A line has the arguments of the allocator's
/// function, then the bytes it allocates, or the block it frees, or both.
macro_rules! hooks {
    ($($kind:ident $name:ident($($arg:ident: $type:ty),*) => $operand:expr $(, $bytes:expr)?;)*) => {
        $(hook!($kind $name($($arg: $type),*) => $operand $(, $bytes)?);)*

        /// Hooks of all functions. If the tally is enabled, they count every call.
        pub(crate) fn hooks() -> [Hook; HOOK_COUNT] {
            let is_tallied = tally::is_enabled();
            [$(Hook {
                name: name!($name),
                role: role!($kind),
                address: match is_tallied {
                    true => $name::hook::<true, false> as *const () as usize,
                    false => $name::hook::<false, false> as *const () as usize,
                },
                outer: $name::hook::<false, true> as *const () as usize,
                definition: 0,
                original: &$name::ORIGINAL,
            }),*]
        }

        /// Signatures of all functions that can be hooked.
        pub const SIGNATURES: [Signature; HOOK_COUNT] = [$(Signature {
            name: stringify!($name),
            role: role!($kind),
            kind: stringify!($kind),
            arguments: &[$(stringify!($arg)),*],
            operand: stringify!($operand),
        }),*];

        /// Number of hooks.
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
}

macro_rules! hook {
    (allocate $name:ident($($arg:ident: $type:ty),*) => $bytes:expr) => {
        hook!(@module $name, Block, ($($arg: $type),*), count_down($bytes), {
            let is_due = !count_down($bytes) && start_next_countdown($bytes);
            let pause = OUTER.then(CountdownPause::new);
            // SAFETY: the hook's caller passed these arguments, for a function of this type.
            let block = unsafe { original_function::<Function>(&ORIGINAL)($($arg),*) };
            drop(pause);
            if TALLIED {
                tally::record_alloc(block as usize, $bytes);
            }
            if is_due {
                record_sample(block as usize, $bytes);
            }
            block
        });
    };
    (store $name:ident($($arg:ident: $type:ty),*) => $bytes:expr) => {
        hook!(@module $name, c_int, (result: *mut Block, $($arg: $type),*), count_down($bytes), {
            let is_due = !count_down($bytes) && start_next_countdown($bytes);
            let pause = OUTER.then(CountdownPause::new);
            // SAFETY: the hook's caller passed these arguments, for a function of this type.
            let failed = unsafe { original_function::<Function>(&ORIGINAL)(result, $($arg),*) };
            drop(pause);
            if (is_due || TALLIED) && failed == 0 {
                // SAFETY: posix_memalign(3) stores the block on success.
                let block = unsafe { result.read() } as usize;
                if TALLIED {
                    tally::record_alloc(block, $bytes);
                }
                if is_due {
                    record_sample(block, $bytes);
                }
            }
            failed
        });
    };
    (free $name:ident($($arg:ident: $type:ty),*) => $block:expr) => {
        hook!(@module $name, (), ($($arg: $type),*), !may_be_sample($block as usize), {
            if may_be_sample($block as usize) {
                // Once the block is free, another thread may get it.
                remove_sample($block as usize);
            }
            if TALLIED {
                tally::record_free(tally::block_size($block as usize));
            }
            // SAFETY: the hook's caller passed these arguments, for a function of this type.
            unsafe { original_function::<Function>(&ORIGINAL)($($arg),*) }
        });
    };
    (reallocate $name:ident($($arg:ident: $type:ty),*) => $old:expr, $bytes:expr) => {
        hook!(@module $name, Block, ($($arg: $type),*), !may_be_sample($old as usize) && count_down($bytes), {
            let is_due = !count_down($bytes) && start_next_countdown($bytes);
            let before = match TALLIED {
                true => tally::block_size($old as usize),
                false => 0,
            };
            let removed = may_be_sample($old as usize).then(|| remove_sample($old as usize)).flatten();
            let pause = OUTER.then(CountdownPause::new);
            // SAFETY: the hook's caller passed these arguments, for a function of this type.
            let block = unsafe { original_function::<Function>(&ORIGINAL)($($arg),*) };
            drop(pause);
            if TALLIED && (!block.is_null() || $bytes == 0) {
                tally::record_free(before);
                tally::record_alloc(block as usize, $bytes);
            }
            match removed {
                // The call failed and the old block is unchanged. With a size of 0, the block may have been
                // freed.
                Some(old) if block.is_null() && $bytes != 0 => restore_sample($old as usize, old),
                _ => {}
            }
            if is_due {
                record_sample(block as usize, $bytes);
            }
            block
        });
    };
    (@module $name:ident, $result:ty, ($($arg:ident: $type:ty),*), $is_usual:expr, $hook_cold:block) => {
        #[allow(non_snake_case, reason = "C++ calls some of them so")]
        mod $name {
            use super::*;

            pub(super) type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
            pub(super) static ORIGINAL: AtomicUsize = AtomicUsize::new(0);

            /// Tail-calls without a frame of its own, because the caller's stack may be misaligned.
            pub(super) unsafe extern "C-unwind" fn hook<const TALLIED: bool, const OUTER: bool>(
                $($arg: $type),*
            ) -> $result {
                if !TALLIED && !OUTER && $is_usual {
                    // SAFETY: the hook's caller passed these arguments, for a function of this type.
                    return unsafe { original_function::<Function>(&ORIGINAL)($($arg),*) };
                }
                // SAFETY: `aligned` passes on the arguments of the hook's caller.
                unsafe { aligned::<TALLIED, OUTER>($($arg),*) }
            }

            /// # Safety
            /// The arguments are those of the hook's caller.
            #[cold]
            #[unsafe(naked)]
            unsafe extern "C-unwind" fn aligned<const TALLIED: bool, const OUTER: bool>(
                $($arg: $type),*
            ) -> $result {
                call_aligned!(hook_cold::<TALLIED, OUTER>)
            }

            /// # Safety
            /// The arguments are those of the hook's caller.
            unsafe extern "C-unwind" fn hook_cold<const TALLIED: bool, const OUTER: bool>(
                $($arg: $type),*
            ) -> $result $hook_cold
        }
    };
}

hooks! {
    allocate malloc(size: usize) => size;
    allocate calloc(count: usize, size: usize) => count.wrapping_mul(size);
    allocate memalign(alignment: usize, size: usize) => size;
    allocate aligned_alloc(alignment: usize, size: usize) => size;
    allocate valloc(size: usize) => size;
    allocate pvalloc(size: usize) => size;
    store posix_memalign(alignment: usize, size: usize) => size;
    reallocate realloc(block: Block, size: usize) => block, size;
    reallocate reallocarray(block: Block, count: usize, size: usize) => block, count.wrapping_mul(size);
    free free(block: Block) => block;
    free cfree(block: Block) => block;
    free free_sized(block: Block, size: usize) => block;
    free free_aligned_sized(block: Block, alignment: usize, size: usize) => block;
    // jemalloc(3).
    allocate mallocx(size: usize, flags: c_int) => size;
    reallocate rallocx(block: Block, size: usize, flags: c_int) => block, size;
    free dallocx(block: Block, flags: c_int) => block;
    free sdallocx(block: Block, size: usize, flags: c_int) => block;
    // operator new and new[]: plain, nothrow, aligned, both.
    allocate _Znwm(size: usize) => size;
    allocate _Znam(size: usize) => size;
    allocate _ZnwmRKSt9nothrow_t(size: usize, tag: usize) => size;
    allocate _ZnamRKSt9nothrow_t(size: usize, tag: usize) => size;
    allocate _ZnwmSt11align_val_t(size: usize, alignment: usize) => size;
    allocate _ZnamSt11align_val_t(size: usize, alignment: usize) => size;
    allocate _ZnwmSt11align_val_tRKSt9nothrow_t(size: usize, alignment: usize, tag: usize) => size;
    allocate _ZnamSt11align_val_tRKSt9nothrow_t(size: usize, alignment: usize, tag: usize) => size;
    // operator delete and delete[]: plain, nothrow, sized, aligned, sized and aligned, aligned and nothrow.
    free _ZdlPv(block: Block) => block;
    free _ZdaPv(block: Block) => block;
    free _ZdlPvRKSt9nothrow_t(block: Block, tag: usize) => block;
    free _ZdaPvRKSt9nothrow_t(block: Block, tag: usize) => block;
    free _ZdlPvm(block: Block, size: usize) => block;
    free _ZdaPvm(block: Block, size: usize) => block;
    free _ZdlPvSt11align_val_t(block: Block, alignment: usize) => block;
    free _ZdaPvSt11align_val_t(block: Block, alignment: usize) => block;
    free _ZdlPvmSt11align_val_t(block: Block, size: usize, alignment: usize) => block;
    free _ZdaPvmSt11align_val_t(block: Block, size: usize, alignment: usize) => block;
    free _ZdlPvSt11align_val_tRKSt9nothrow_t(block: Block, alignment: usize, tag: usize) => block;
    free _ZdaPvSt11align_val_tRKSt9nothrow_t(block: Block, alignment: usize, tag: usize) => block;
}
