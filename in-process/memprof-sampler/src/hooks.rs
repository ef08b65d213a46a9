//! What the slots point to while they are ours: each function of `malloc`, which counts, calls the
//! allocator's own, and remembers or forgets.
//!
//! They unwind as the allocator's own do: `operator new` throws.
#![expect(
    unsafe_code,
    reason = "other code calls them in place of its allocator"
)]

use core::arch::naked_asm;
use core::ffi::{CStr, c_int, c_void};
use core::mem;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::aligned::call_aligned;
use crate::countdown::{CountdownPause, count_down, is_due};
use crate::sampler::{may_be_sample, remove_sample, restore_sample, sample};
use crate::tally;

/// What a function does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It only gives.
    Allocates,
    /// It takes, or takes and gives: needed as long as there are live samples.
    Frees,
}

/// One function: its name, and ours.
#[derive(Debug)]
pub(crate) struct Hook {
    pub(crate) name: &'static CStr,
    pub(crate) role: Role,
    pub(crate) address: usize,
    /// The same for a function of the allocator that calls others which are hooked: those count nothing meanwhile.
    pub(crate) outer: usize,
    /// The allocator's own; 0 where it has none.
    pub(crate) real: &'static AtomicUsize,
}

/// A function that can be hooked, for whoever leads its calls here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Its symbol.
    pub name: &'static str,
    /// What it does with memory.
    pub role: Role,
    kind: &'static str,
    arguments: &'static [&'static str],
    what: &'static str,
}

impl Signature {
    /// How many arguments it has.
    pub fn arguments(&self) -> usize {
        self.arguments.len()
    }

    /// Whether it only takes memory.
    pub fn is_free(&self) -> bool {
        self.kind == "free"
    }

    /// Whether one hook serves both where they are one function by two names: they find the size and the block in
    /// the same arguments.
    pub fn has_same_shape(&self, other: &Self) -> bool {
        let place = |one: &Self| one.arguments.iter().position(|name| *name == one.what);
        let is_same_place = match (place(self), place(other)) {
            (None, None) => self.arguments == other.arguments,
            (one, other) => one == other,
        };
        (self.kind, self.what) == (other.kind, other.what) && is_same_place
    }
}

type Block = *mut c_void;

/// The allocator's own function.
///
/// # Safety
/// `F` is its type, and it was found before any slot got the hook.
#[inline(always)]
unsafe fn function<F: Copy>(real: &AtomicUsize) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let real = real.load(Relaxed);
    // SAFETY: promised by the caller.
    unsafe { mem::transmute_copy(&real) }
}

/// Declares hooks, and the list of them. In each, the arguments as the allocator's own function
/// has them; then how many bytes it is asked for, or which block it takes, or both.
macro_rules! hooks {
    ($($kind:ident $name:ident($($arg:ident: $type:ty),*) => $what:expr $(, $bytes:expr)?;)*) => {
        $(hook!($kind $name($($arg: $type),*) => $what $(, $bytes)?);)*

        /// All functions that are hooked, by hooks that count every call where a tally is asked for.
        pub(crate) fn hooks() -> [Hook; COUNT] {
            let is_tallied = tally::is_enabled();
            [$(Hook {
                name: name!($name),
                role: role!($kind),
                address: match is_tallied {
                    true => $name::hook::<true, false> as *const () as usize,
                    false => $name::hook::<false, false> as *const () as usize,
                },
                outer: $name::hook::<false, true> as *const () as usize,
                real: &$name::REAL,
            }),*]
        }

        /// All functions that can be hooked.
        pub const SIGNATURES: [Signature; COUNT] = [$(Signature {
            name: stringify!($name),
            role: role!($kind),
            kind: stringify!($kind),
            arguments: &[$(stringify!($arg)),*],
            what: stringify!($what),
        }),*];

        /// How many there are.
        pub(crate) const COUNT: usize = [$(stringify!($name)),*].len();
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
            let is_due = !count_down($bytes) && is_due($bytes);
            let held = OUTER.then(CountdownPause::new);
            // SAFETY: the caller's own arguments.
            let block = unsafe { function::<Real>(&REAL)($($arg),*) };
            drop(held);
            if TALLIED {
                tally::record_alloc(block as usize, $bytes);
            }
            if is_due {
                sample(block as usize, $bytes);
            }
            block
        });
    };
    (store $name:ident($($arg:ident: $type:ty),*) => $bytes:expr) => {
        hook!(@module $name, c_int, (place: *mut Block, $($arg: $type),*), count_down($bytes), {
            let is_due = !count_down($bytes) && is_due($bytes);
            let held = OUTER.then(CountdownPause::new);
            // SAFETY: the caller's own arguments.
            let failed = unsafe { function::<Real>(&REAL)(place, $($arg),*) };
            drop(held);
            if (is_due || TALLIED) && failed == 0 {
                // SAFETY: posix_memalign(3): stored on success.
                let block = unsafe { place.read() } as usize;
                if TALLIED {
                    tally::record_alloc(block, $bytes);
                }
                if is_due {
                    sample(block, $bytes);
                }
            }
            failed
        });
    };
    (free $name:ident($($arg:ident: $type:ty),*) => $block:expr) => {
        hook!(@module $name, (), ($($arg: $type),*), !may_be_sample($block as usize), {
            if may_be_sample($block as usize) {
                // Before the block is free, and another thread gets it.
                remove_sample($block as usize);
            }
            if TALLIED {
                tally::record_free(tally::block_size($block as usize));
            }
            // SAFETY: the caller's own arguments.
            unsafe { function::<Real>(&REAL)($($arg),*) }
        });
    };
    (reallocate $name:ident($($arg:ident: $type:ty),*) => $old:expr, $bytes:expr) => {
        hook!(@module $name, Block, ($($arg: $type),*), !may_be_sample($old as usize) && count_down($bytes), {
            let is_due = !count_down($bytes) && is_due($bytes);
            let before = match TALLIED {
                true => tally::block_size($old as usize),
                false => 0,
            };
            let forgotten = may_be_sample($old as usize).then(|| remove_sample($old as usize)).flatten();
            let held = OUTER.then(CountdownPause::new);
            // SAFETY: the caller's own arguments.
            let block = unsafe { function::<Real>(&REAL)($($arg),*) };
            drop(held);
            if TALLIED && (!block.is_null() || $bytes == 0) {
                tally::record_free(before);
                tally::record_alloc(block as usize, $bytes);
            }
            match forgotten {
                // It failed, and the old block is what it was; with no bytes it may have been freed.
                Some(old) if block.is_null() && $bytes != 0 => restore_sample($old as usize, old),
                _ => {}
            }
            if is_due {
                sample(block as usize, $bytes);
            }
            block
        });
    };
    (@module $name:ident, $result:ty, ($($arg:ident: $type:ty),*), $is_usual:expr, $hook_cold:block) => {
        #[allow(non_snake_case, reason = "C++ calls some of them so")]
        mod $name {
            use super::*;

            pub(super) type Real = unsafe extern "C-unwind" fn($($type),*) -> $result;
            pub(super) static REAL: AtomicUsize = AtomicUsize::new(0);

            /// Jumps on without a frame of its own: the stack of the caller may have any alignment.
            pub(super) unsafe extern "C-unwind" fn hook<const TALLIED: bool, const OUTER: bool>(
                $($arg: $type),*
            ) -> $result {
                if !TALLIED && !OUTER && $is_usual {
                    // SAFETY: the caller's own arguments.
                    return unsafe { function::<Real>(&REAL)($($arg),*) };
                }
                // SAFETY: as above.
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
