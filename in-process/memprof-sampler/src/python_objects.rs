//! Hooks of pymalloc, `CPython`'s own allocator: it serves objects of up to 512 bytes from arenas, of which malloc's
//! hooks see nothing. `python_allocator` installs them.
#![expect(unsafe_code, reason = "functions of the interpreter")]

use core::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Relaxed, Release},
};

use crate::countdown::{self, count_down, start_next_countdown};
use crate::hooks::original_function;
use crate::sampler::{may_be_sampled, record_sample_with_leaf, remove_sample, restore_sample};

/// `SMALL_REQUEST_THRESHOLD` of obmalloc.c, from 3.8 to 3.14. Larger requests go on to malloc, whose hooks count them.
const MAX_PYMALLOC: usize = 512;

/// pymalloc's functions, at which the hooks call it: malloc, calloc, realloc, free. Written once, because two values
/// would let a hook of another tool and these call each other without end.
static ORIGINALS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

/// Frame in front of the stacks of objects; 0 before one is wrapped.
static OBJECT_LEAF: AtomicUsize = AtomicUsize::new(0);

/// Whether objects are sampled. Hooks that stay below another tool's see frees, and sample nothing: a profile without
/// objects must not have some.
static RECORDS: AtomicBool = AtomicBool::new(false);

/// Returns the addresses of the hooks, in the order of [`ORIGINALS`].
pub(crate) fn hooks() -> [usize; 4] {
    [
        malloc as *const () as usize,
        calloc as *const () as usize,
        realloc as *const () as usize,
        free as *const () as usize,
    ]
}

/// Returns the addresses of pymalloc's functions, in the order of [`ORIGINALS`]; zeros before they were stored.
pub(crate) fn originals() -> [usize; 4] {
    ORIGINALS.each_ref().map(|function| function.load(Relaxed))
}

/// Stores the addresses of pymalloc's functions, in the order of [`ORIGINALS`], unless some are stored already. Returns
/// whether exactly these addresses are stored now. False also if one of them is 0.
pub(crate) fn store_originals_once(functions: [usize; 4]) -> bool {
    ORIGINALS.iter().zip(functions).all(|(original, function)| {
        // If this fails halfway, that does no harm: no hook is installed before all are stored.
        let before = original.compare_exchange(0, function, Relaxed, Relaxed);
        function != 0 && before.map_or_else(|before| before == function, |_| true)
    })
}

/// Sets the frame that is put in front of the stack of each sampled object; 0 for none.
pub(crate) fn set_object_leaf(leaf: usize) {
    OBJECT_LEAF.store(leaf, Relaxed);
}

/// Starts the sampling of objects by the hooks if `records` is true, otherwise stops it. Installs and removes no hooks.
pub(crate) fn set_recording(records: bool) {
    RECORDS.store(records, Release);
}

type Malloc = unsafe extern "C" fn(usize, usize) -> usize;
type Calloc = unsafe extern "C" fn(usize, usize, usize) -> usize;
type Realloc = unsafe extern "C" fn(usize, usize, usize) -> usize;
type Free = unsafe extern "C" fn(usize, usize);

/// Returns the function of pymalloc with the number `index`, 0 to 3, in [`ORIGINALS`].
///
/// # Safety
/// `F` is its type.
#[inline(always)]
unsafe fn pymalloc_function<F: Copy>(index: usize) -> F {
    // SAFETY: the caller names the type. `store_originals_once` stored the function before any hook was installed. The
    // mask spares the code for an index out of bounds: a hook must not panic.
    unsafe { original_function(ORIGINALS[index & 3].load(Relaxed)) }
}

/// Samples an object of `size` bytes at `block`, with the stack of this call, unless objects are not sampled now.
fn record_object(block: usize, size: usize) {
    if RECORDS.load(Relaxed) {
        record_sample_with_leaf(block, size, OBJECT_LEAF.load(Relaxed));
    }
}

// The hooks are short and keep no frame: what a sample needs is in functions of its own.

/// Hook of pymalloc's malloc. Counts a request of up to 512 bytes, which pymalloc serves itself, and samples it if the
/// countdown expires. Passes `context` on to pymalloc.
unsafe extern "C" fn malloc(context: usize, size: usize) -> usize {
    if size <= MAX_PYMALLOC && !count_down(size) {
        // SAFETY: the hook's caller passed these arguments.
        return unsafe { malloc_and_sample(context, size) };
    }
    // SAFETY: pymem.h gives the type.
    let call = unsafe { pymalloc_function::<Malloc>(0) };
    // SAFETY: the hook's caller passed these arguments for this function.
    unsafe { call(context, size) }
}

/// Slow path of [`malloc`]: starts the next countdown, calls pymalloc's malloc, and samples the block if
/// [`start_next_countdown`] says so.
///
/// # Safety
/// The arguments are those of the hook's caller.
#[cold]
#[inline(never)]
unsafe extern "C" fn malloc_and_sample(context: usize, size: usize) -> usize {
    let is_due = start_next_countdown(size);
    // SAFETY: pymem.h gives the type.
    let call = unsafe { pymalloc_function::<Malloc>(0) };
    // SAFETY: the caller guarantees it.
    let block = unsafe { call(context, size) };
    if is_due {
        record_object(block, size);
    }
    block
}

/// Hook of pymalloc's calloc. Counts a request of up to 512 bytes, which pymalloc serves itself, and samples it if the
/// countdown expires. Passes `context` on to pymalloc.
unsafe extern "C" fn calloc(context: usize, count: usize, size: usize) -> usize {
    let bytes = count.saturating_mul(size);
    if bytes <= MAX_PYMALLOC && !count_down(bytes) {
        // SAFETY: the hook's caller passed these arguments.
        return unsafe { calloc_and_sample(context, count, size) };
    }
    // SAFETY: pymem.h gives the type.
    let call = unsafe { pymalloc_function::<Calloc>(1) };
    // SAFETY: the hook's caller passed these arguments for this function.
    unsafe { call(context, count, size) }
}

/// Slow path of [`calloc`]: starts the next countdown, calls pymalloc's calloc for `count` elements of `size` bytes,
/// and samples the block if [`start_next_countdown`] says so.
///
/// # Safety
/// The arguments are those of the hook's caller.
#[cold]
#[inline(never)]
unsafe extern "C" fn calloc_and_sample(context: usize, count: usize, size: usize) -> usize {
    let bytes = count.saturating_mul(size);
    let is_due = start_next_countdown(bytes);
    // SAFETY: pymem.h gives the type.
    let call = unsafe { pymalloc_function::<Calloc>(1) };
    // SAFETY: the caller guarantees it.
    let block = unsafe { call(context, count, size) };
    if is_due {
        record_object(block, bytes);
    }
    block
}

/// Hook of pymalloc's realloc. Removes the sample of the old block, and restores it if the call fails. Counts the new
/// block if it is a small object.
///
/// A shrunk block must not be counted twice: if malloc served the old block, malloc also serves the smaller one, and
/// malloc's hooks have counted it. They have if the countdown changed during the call.
unsafe extern "C" fn realloc(context: usize, old: usize, size: usize) -> usize {
    // SAFETY: pymem.h gives the type.
    let call = unsafe { pymalloc_function::<Realloc>(2) };
    let removed = may_be_sampled(old).then(|| remove_sample(old)).flatten();
    let before = countdown::remaining_bytes();
    // SAFETY: the hook's caller passed these arguments for this function.
    let block = unsafe { call(context, old, size) };
    match removed {
        // The old block is unchanged.
        Some(removed) if block == 0 => restore_sample(old, removed),
        _ => {}
    }
    let is_new = block != 0 && size <= MAX_PYMALLOC && countdown::remaining_bytes() == before;
    if is_new && !count_down(size) && start_next_countdown(size) {
        record_object(block, size);
    }
    block
}

/// Hook of pymalloc's free. Removes the block's sample, if there is one, and frees the block.
unsafe extern "C" fn free(context: usize, block: usize) {
    if may_be_sampled(block) {
        // SAFETY: the hook's caller passed these arguments.
        return unsafe { free_possibly_sampled(context, block) };
    }
    // SAFETY: pymem.h gives the type.
    let call = unsafe { pymalloc_function::<Free>(3) };
    // SAFETY: the hook's caller passed these arguments for this function.
    unsafe { call(context, block) }
}

/// Slow path of [`free`], for a block that is possibly sampled. Removes the block's sample, if there is one, and frees
/// the block.
///
/// # Safety
/// The arguments are those of the hook's caller.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_possibly_sampled(context: usize, block: usize) {
    // Removed before the call: once the block is free, another thread may get the same address.
    remove_sample(block);
    // SAFETY: pymem.h gives the type.
    let call = unsafe { pymalloc_function::<Free>(3) };
    // SAFETY: the caller guarantees it.
    unsafe { call(context, block) }
}
