//! Hooks of pymalloc, `CPython`'s own allocator: it serves objects of up to 512 bytes from arenas, of which malloc's
//! hooks see nothing.
//!
//! The hooks are installed with `PyMem_SetAllocator`, which is made for hooks that wrap the present allocator. The
//! interpreter's global lock is not taken: its functions only copy a structure of five words, and both allocators that
//! a thread may read meanwhile serve the same blocks. Waiting for that lock, or for a pending call, would end programs
//! that are finalizing. Only the domains of objects are wrapped; `CPython` itself swaps the third one, `RAW`.
#![expect(unsafe_code, reason = "functions of the interpreter")]

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::countdown::{self, count_down, start_next_countdown};
use crate::hooks::original_function;
use crate::sampler::{may_be_sample, record_stack, remove_sample, restore_sample};

/// `SMALL_REQUEST_THRESHOLD` of obmalloc.c, from 3.8 to 3.13. Larger requests go on to malloc, whose hooks count them.
const MAX_PYMALLOC: usize = 512;

/// `PYMEM_DOMAIN_MEM` and `PYMEM_DOMAIN_OBJ` of cpython/pymem.h.
const DOMAINS: [c_int; 2] = [1, 2];

/// pymalloc's functions, at which the hooks call it: malloc, calloc, realloc, free. Written once, because two values
/// would let a hook of another tool and these call each other without end.
static ORIGINALS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

/// Frame in front of the stacks of objects; 0 before one is wrapped.
static OBJECT_LEAF: AtomicUsize = AtomicUsize::new(0);

/// `PyMemAllocatorEx` of cpython/pymem.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ObjectAllocator {
    /// Passed on to each function.
    context: usize,
    malloc: usize,
    calloc: usize,
    realloc: usize,
    free: usize,
}

type GetAllocator = unsafe extern "C" fn(c_int, *mut ObjectAllocator);
type SetAllocator = unsafe extern "C" fn(c_int, *mut ObjectAllocator);
type AllocatorName = unsafe extern "C" fn() -> *const c_char;

/// The functions of one `CPython` that read and set its allocators.
#[derive(Clone, Copy, Debug)]
pub struct PythonAllocator {
    get: GetAllocator,
    set: SetAllocator,
    name: AllocatorName,
}

/// Reason why pymalloc is not wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwrappedPython {
    /// Objects come from malloc: `PYTHONMALLOC=malloc`.
    UsesMalloc,
    /// A debug build, or `PYTHONMALLOC=debug`, has its checks around each object.
    Debug,
    /// A hook of another tool, such as tracemalloc or memray, is installed.
    OtherHook,
    /// An allocator that is not known, as that of free-threaded builds.
    OtherAllocator,
}

impl PythonAllocator {
    /// Uses the functions at these addresses.
    ///
    /// # Safety
    /// They are `PyMem_GetAllocator`, `PyMem_SetAllocator` and `_PyMem_GetCurrentAllocatorName` of one `CPython`, 3.8
    /// to 3.13, which stays loaded.
    pub unsafe fn new(get: usize, set: usize, name: usize) -> Self {
        Self {
            // SAFETY: the caller names the function, whose type pymem.h gives.
            get: unsafe { original_function(get) },
            // SAFETY: as above.
            set: unsafe { original_function(set) },
            // SAFETY: as above; pycore_pymem.h.
            name: unsafe { original_function(name) },
        }
    }

    /// Installs the hooks. Idempotent. `leaf` is the frame that marks the stack of each object. One thread at a time
    /// calls this and the other functions.
    ///
    /// # Errors
    /// The reason why nothing is installed.
    pub fn wrap(&self, leaf: usize) -> Result<(), UnwrappedPython> {
        let current = DOMAINS.map(|domain| self.get(domain));
        if !current.iter().all(is_wrapped) {
            self.require_pymalloc()?;
            let [memory, objects] = current;
            let functions = [
                objects.malloc,
                objects.calloc,
                objects.realloc,
                objects.free,
            ];
            if memory != objects || !keep_originals(functions) {
                return Err(UnwrappedPython::OtherHook);
            }
        }
        OBJECT_LEAF.store(leaf, Relaxed);
        let hooks = [
            malloc as *const () as usize,
            calloc as *const () as usize,
            realloc as *const () as usize,
            free as *const () as usize,
        ];
        self.set_both(current, hooks);
        Ok(())
    }

    /// Removes the hooks, or only those of functions that merely allocate: the others see which samples are freed. Where
    /// another tool has wrapped them since, they stay, and only pass calls on. Returns whether none is left.
    pub fn unwrap(&self, keeps_frees: bool) -> bool {
        let current = DOMAINS.map(|domain| self.get(domain));
        if current.iter().all(is_wrapped) {
            let mut functions = ORIGINALS.each_ref().map(|function| function.load(Relaxed));
            if keeps_frees {
                functions[2] = realloc as *const () as usize;
                functions[3] = free as *const () as usize;
            }
            self.set_both(current, functions);
            return !keeps_frees;
        }
        ORIGINALS[0].load(Relaxed) == 0 || self.require_pymalloc().is_ok()
    }

    /// Checks that objects come from pymalloc, without a hook.
    fn require_pymalloc(&self) -> Result<(), UnwrappedPython> {
        // SAFETY: the function reads structures of the interpreter, and needs no lock.
        let name = unsafe { (self.name)() };
        if name.is_null() {
            return Err(UnwrappedPython::OtherHook);
        }
        // SAFETY: it returns null or a literal.
        match unsafe { CStr::from_ptr(name) }.to_bytes() {
            b"pymalloc" => Ok(()),
            b"malloc" => Err(UnwrappedPython::UsesMalloc),
            b"pymalloc_debug" | b"malloc_debug" => Err(UnwrappedPython::Debug),
            _ => Err(UnwrappedPython::OtherAllocator),
        }
    }

    fn get(&self, domain: c_int) -> ObjectAllocator {
        let mut found = ObjectAllocator::default();
        // SAFETY: the function copies a structure to this one.
        unsafe { (self.get)(domain, &raw mut found) };
        found
    }

    /// Sets the functions of both domains, whose contexts stay.
    fn set_both(&self, current: [ObjectAllocator; 2], functions: [usize; 4]) {
        let [malloc, calloc, realloc, free] = functions;
        for (domain, before) in DOMAINS.into_iter().zip(current) {
            let mut next = ObjectAllocator {
                context: before.context,
                malloc,
                calloc,
                realloc,
                free,
            };
            if next != before {
                // SAFETY: the function copies this structure, of functions that stay loaded and serve the same blocks
                // as those before.
                unsafe { (self.set)(domain, &raw mut next) };
            }
        }
    }
}

/// Whether frees go to these hooks, so that they or no other tool's are installed last.
fn is_wrapped(allocator: &ObjectAllocator) -> bool {
    allocator.free == free as *const () as usize
}

/// Stores the functions of pymalloc. Returns false if others are stored.
fn keep_originals(functions: [usize; 4]) -> bool {
    ORIGINALS.iter().zip(functions).all(|(original, function)| {
        // No hook is installed while one of them is 0.
        let before = original.compare_exchange(0, function, Relaxed, Relaxed);
        function != 0 && before.map_or_else(|before| before == function, |_| true)
    })
}

type Malloc = unsafe extern "C" fn(usize, usize) -> usize;
type Calloc = unsafe extern "C" fn(usize, usize, usize) -> usize;
type Realloc = unsafe extern "C" fn(usize, usize, usize) -> usize;
type Free = unsafe extern "C" fn(usize, usize);

/// Returns the function number `index` of [`ORIGINALS`].
///
/// # Safety
/// `F` is its type.
#[inline(always)]
unsafe fn original<F: Copy>(index: usize) -> F {
    // SAFETY: the caller names the type. `keep_originals` stored the function before any hook was installed.
    unsafe { original_function(ORIGINALS[index & 3].load(Relaxed)) }
}

/// Samples an object.
fn record_object(block: usize, size: usize) {
    record_stack(block, size, OBJECT_LEAF.load(Relaxed));
}

// The hooks are short and keep no frame: what a sample needs is in functions of its own.

unsafe extern "C" fn malloc(context: usize, size: usize) -> usize {
    if size <= MAX_PYMALLOC && !count_down(size) {
        // SAFETY: the hook's caller passed these arguments.
        return unsafe { sampled_malloc(context, size) };
    }
    // SAFETY: pymem.h gives the type.
    let call = unsafe { original::<Malloc>(0) };
    // SAFETY: the hook's caller passed these arguments for this function.
    unsafe { call(context, size) }
}

/// Allocates after the countdown expired.
///
/// # Safety
/// The arguments are those of the hook's caller.
#[cold]
#[inline(never)]
unsafe extern "C" fn sampled_malloc(context: usize, size: usize) -> usize {
    let is_due = start_next_countdown(size);
    // SAFETY: pymem.h gives the type.
    let call = unsafe { original::<Malloc>(0) };
    // SAFETY: the caller guarantees it.
    let block = unsafe { call(context, size) };
    if is_due {
        record_object(block, size);
    }
    block
}

unsafe extern "C" fn calloc(context: usize, count: usize, size: usize) -> usize {
    let bytes = count.saturating_mul(size);
    if bytes <= MAX_PYMALLOC && !count_down(bytes) {
        // SAFETY: the hook's caller passed these arguments.
        return unsafe { sampled_calloc(context, count, size) };
    }
    // SAFETY: pymem.h gives the type.
    let call = unsafe { original::<Calloc>(1) };
    // SAFETY: the hook's caller passed these arguments for this function.
    unsafe { call(context, count, size) }
}

/// Like [`sampled_malloc`].
///
/// # Safety
/// The arguments are those of the hook's caller.
#[cold]
#[inline(never)]
unsafe extern "C" fn sampled_calloc(context: usize, count: usize, size: usize) -> usize {
    let bytes = count.saturating_mul(size);
    let is_due = start_next_countdown(bytes);
    // SAFETY: pymem.h gives the type.
    let call = unsafe { original::<Calloc>(1) };
    // SAFETY: the caller guarantees it.
    let block = unsafe { call(context, count, size) };
    if is_due {
        record_object(block, bytes);
    }
    block
}

/// A block of malloc stays one where it shrinks to the size of a small object. malloc's hooks count it then, which
/// the countdown shows.
unsafe extern "C" fn realloc(context: usize, old: usize, size: usize) -> usize {
    // SAFETY: pymem.h gives the type.
    let call = unsafe { original::<Realloc>(2) };
    let removed = may_be_sample(old).then(|| remove_sample(old)).flatten();
    let before = countdown::remaining();
    // SAFETY: the hook's caller passed these arguments for this function.
    let block = unsafe { call(context, old, size) };
    match removed {
        // The old block is unchanged.
        Some(removed) if block == 0 => restore_sample(old, removed),
        _ => {}
    }
    let is_new = block != 0 && size <= MAX_PYMALLOC && countdown::remaining() == before;
    if is_new && !count_down(size) && start_next_countdown(size) {
        record_object(block, size);
    }
    block
}

unsafe extern "C" fn free(context: usize, block: usize) {
    if may_be_sample(block) {
        // SAFETY: the hook's caller passed these arguments.
        return unsafe { free_sample(context, block) };
    }
    // SAFETY: pymem.h gives the type.
    let call = unsafe { original::<Free>(3) };
    // SAFETY: the hook's caller passed these arguments for this function.
    unsafe { call(context, block) }
}

/// Frees a block that may be sampled.
///
/// # Safety
/// The arguments are those of the hook's caller.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_sample(context: usize, block: usize) {
    // Removed before the call: once the block is free, another thread may get the same address.
    remove_sample(block);
    // SAFETY: pymem.h gives the type.
    let call = unsafe { original::<Free>(3) };
    // SAFETY: the caller guarantees it.
    unsafe { call(context, block) }
}
