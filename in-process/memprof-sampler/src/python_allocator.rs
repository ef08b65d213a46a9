//! Installs the hooks of `python_objects` with `PyMem_SetAllocator`, which is made for hooks that wrap the present
//! allocator.
//!
//! The interpreter's global lock is not taken: both allocators that a thread may read meanwhile serve the same blocks.
//! Waiting for that lock, or for a pending call, would end programs that are finalizing. Only the domains of objects
//! are wrapped; `CPython` itself swaps the third one, `RAW`.
//!
//! From 3.12 on the functions take a mutex of the interpreter's for the copy of a structure of five words. A child that
//! is forked meanwhile waits for it for ever, so the caller keeps forks away.
#![expect(unsafe_code, reason = "functions of the interpreter")]

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::hooks::original_function;
use crate::python_objects::{
    hooks, originals, set_object_leaf, set_recording, store_originals_once,
};

/// `PYMEM_DOMAIN_MEM` and `PYMEM_DOMAIN_OBJ` of cpython/pymem.h.
const DOMAINS: [c_int; 2] = [1, 2];

/// Whether the interpreter was seen to be initialized.
static WAS_INITIALIZED: AtomicBool = AtomicBool::new(false);

/// `PyMemAllocatorEx` of cpython/pymem.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ObjectAllocator {
    /// Passed on to each function.
    context: usize,
    /// malloc, calloc, realloc, free.
    functions: [usize; 4],
}

type GetAllocator = unsafe extern "C" fn(c_int, *mut ObjectAllocator);
type SetAllocator = unsafe extern "C" fn(c_int, *mut ObjectAllocator);
type AllocatorName = unsafe extern "C" fn() -> *const c_char;
type IsInitialized = unsafe extern "C" fn() -> c_int;

/// Addresses of the functions of one `CPython` that read and set its allocators.
#[derive(Clone, Copy, Debug)]
pub struct PythonFunctions {
    /// `PyMem_GetAllocator`.
    pub get: usize,
    /// `PyMem_SetAllocator`.
    pub set: usize,
    /// `_PyMem_GetCurrentAllocatorName`.
    pub name: usize,
    /// `Py_IsInitialized`.
    pub is_initialized: usize,
    /// Start and end of the interpreter's code, in which these functions are, and those of pymalloc.
    pub code: [usize; 2],
}

/// The functions of one `CPython` that read and set its allocators.
#[derive(Clone, Copy, Debug)]
pub struct PythonAllocator {
    get: GetAllocator,
    set: SetAllocator,
    name: AllocatorName,
    is_initialized: IsInitialized,
    /// Start and end of the interpreter's code.
    code: [usize; 2],
}

/// Reason why pymalloc is not wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwrappedPython {
    /// Objects come from malloc: `PYTHONMALLOC=malloc`.
    UsesMalloc,
    /// A debug build, or `PYTHONMALLOC=debug`, has its checks around each object.
    Debug,
    /// A hook of another tool, such as tracemalloc or memray, is installed, or was at this moment.
    OtherHook,
    /// An allocator that is not known, as that of free-threaded builds.
    OtherAllocator,
    /// The interpreter was ended, and may be freeing the mutex that the functions take.
    Ended,
}

impl PythonAllocator {
    /// Converts the addresses of the functions by which the interpreter returns and changes its allocators.
    ///
    /// # Safety
    /// The addresses are those of one `CPython`, 3.8 to 3.14, which stays loaded.
    pub unsafe fn new(functions: PythonFunctions) -> Self {
        Self {
            // SAFETY: the caller names the function, whose type pymem.h gives.
            get: unsafe { original_function(functions.get) },
            // SAFETY: the caller names the function, whose type pymem.h gives.
            set: unsafe { original_function(functions.set) },
            // SAFETY: the caller names the function, whose type pycore_pymem.h gives.
            name: unsafe { original_function(functions.name) },
            // SAFETY: the caller names the function, whose type pylifecycle.h gives.
            is_initialized: unsafe { original_function(functions.is_initialized) },
            code: functions.code,
        }
    }

    /// Installs the hooks around pymalloc, unless they are installed already, and samples Python objects from now on.
    /// `leaf` is the frame that marks the stack of each object. Only one thread at a time may call this or
    /// [`remove_hooks`](Self::remove_hooks). No thread may fork meanwhile: from 3.12 on the interpreter's functions
    /// take a mutex, which a child would find locked for ever.
    ///
    /// # Errors
    /// The reason why no objects are sampled. If another tool has wrapped memprof's hooks, they stay, but do not
    /// sample.
    pub fn install_hooks(&self, leaf: usize) -> Result<(), UnwrappedPython> {
        let installed = self.wrap_pymalloc(leaf);
        set_recording(installed.is_ok());
        installed
    }

    /// Installs the hooks around pymalloc, unless they are installed already, and sets the leaf frame of objects. Does
    /// not start to record samples. Fails if the interpreter was ended, if its objects do not come from pymalloc alone,
    /// or if another tool sets an allocator meanwhile.
    fn wrap_pymalloc(&self, leaf: usize) -> Result<(), UnwrappedPython> {
        if self.has_interpreter_ended() {
            return Err(UnwrappedPython::Ended);
        }
        let current = self.current_allocators();
        if !current.iter().all(is_wrapped_by_memprof) {
            self.require_pymalloc()?;
            let [memory, objects] = current;
            // The name is that of the same functions only if they did not change meanwhile.
            let is_same = memory == objects && self.current_allocators() == current;
            if !is_same {
                return Err(UnwrappedPython::OtherHook);
            }
            // pymalloc is part of the interpreter's code. The functions of a file that only claims to be CPython may be
            // elsewhere.
            let [start, end] = self.code;
            let is_own = |function: usize| (start..end).contains(&function);
            if !objects.functions.into_iter().all(is_own) {
                return Err(UnwrappedPython::OtherAllocator);
            }
            if !store_originals_once(objects.functions) {
                return Err(UnwrappedPython::OtherHook);
            }
        }
        set_object_leaf(leaf);
        let next = current.map(|before| before.with_functions(hooks()));
        let is_set = self.replace_allocators(current, next);
        is_set.then_some(()).ok_or(UnwrappedPython::OtherHook)
    }

    /// Stops the sampling of objects, and removes the hooks. With `keeps_frees`, the hooks of `realloc` and `free`
    /// stay, to notice when sampled objects are freed.
    ///
    /// Returns false if another tool has wrapped the hooks since, or sets an allocator meanwhile: then all hooks stay,
    /// and record nothing new. Returns true with nothing removed if no hook was ever installed, or if the interpreter
    /// was ended. Only one thread at a time may call this or [`install_hooks`](Self::install_hooks), and no thread may
    /// fork meanwhile: the interpreter's functions may take a mutex.
    pub fn remove_hooks(&self, keeps_frees: bool) -> bool {
        set_recording(false);
        if originals()[0] == 0 || self.has_interpreter_ended() {
            return true;
        }
        let mut functions = originals();
        if keeps_frees {
            // `realloc` and `free`.
            functions[2..].copy_from_slice(&hooks()[2..]);
        }
        let current = self.current_allocators();
        let next = current.map(|before| match is_wrapped_by_memprof(&before) {
            true => before.with_functions(functions),
            false => before,
        });
        let is_known = |allocator: &ObjectAllocator| {
            is_wrapped_by_memprof(allocator) || allocator.functions == originals()
        };
        self.replace_allocators(current, next) && next.iter().all(is_known)
    }

    /// Stops the sampling of objects. The hooks stay installed, to notice when sampled objects are freed.
    pub fn stop_recording() {
        set_recording(false);
    }

    /// Fails unless objects come from pymalloc without a hook of any tool, by the interpreter's name of its allocator.
    /// The error says which other allocator or hook is in use.
    fn require_pymalloc(&self) -> Result<(), UnwrappedPython> {
        // SAFETY: the function reads structures of the interpreter.
        let name = unsafe { (self.name)() };
        // CPython has no name for an allocator that is not its own.
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

    /// Returns whether the interpreter has ended after an earlier call of this function found it initialized. Remembers
    /// whether the interpreter is initialized now. An interpreter that was never initialized has not ended: the program
    /// may be sampled from its start.
    fn has_interpreter_ended(&self) -> bool {
        // SAFETY: the function reads a word of the interpreter, at any time.
        let is_initialized = unsafe { (self.is_initialized)() } != 0;
        WAS_INITIALIZED.fetch_or(is_initialized, Relaxed) && !is_initialized
    }

    /// Returns the allocators that are set now for the two domains of [`DOMAINS`].
    fn current_allocators(&self) -> [ObjectAllocator; 2] {
        DOMAINS.map(|domain| {
            let mut found = ObjectAllocator::default();
            // SAFETY: the function copies a structure to this one.
            unsafe { (self.get)(domain, &raw mut found) };
            found
        })
    }

    /// Replaces the allocators of the domains for which `next` differs from `before`. Returns false if another tool has
    /// set one of the allocators meanwhile; then undoes this call's changes. `CPython` has no atomic compare-and-set:
    /// if a tool sets its hook between this call's comparison and its change, nanoseconds later, the tool's hook is
    /// lost.
    fn replace_allocators(&self, before: [ObjectAllocator; 2], next: [ObjectAllocator; 2]) -> bool {
        self.set_allocators_where_unchanged(before, next);
        let now = self.current_allocators();
        if now == next {
            return true;
        }
        let undone = [0, 1].map(|index| match now[index] == next[index] {
            true => before[index],
            false => now[index],
        });
        self.set_allocators_where_unchanged(now, undone);
        false
    }

    /// Sets the allocators for which `next` differs from `before`. Stops at the first domain whose allocator is no
    /// longer the one in `before`.
    fn set_allocators_where_unchanged(
        &self,
        before: [ObjectAllocator; 2],
        next: [ObjectAllocator; 2],
    ) {
        for (index, domain) in DOMAINS.into_iter().enumerate() {
            if self.current_allocators()[index] != before[index] {
                return;
            }
            let mut next = next[index];
            if next != before[index] {
                // SAFETY: the function copies this structure, of functions that stay loaded and serve the same blocks
                // as those before.
                unsafe { (self.set)(domain, &raw mut next) };
            }
        }
    }
}

impl ObjectAllocator {
    /// Returns the allocator with other functions for the same context.
    fn with_functions(self, functions: [usize; 4]) -> Self {
        Self { functions, ..self }
    }
}

/// Returns whether an allocator's functions are memprof's hooks: all four, or only `realloc` and `free`, which see
/// frees. False if another tool has wrapped them.
fn is_wrapped_by_memprof(allocator: &ObjectAllocator) -> bool {
    let ([malloc, calloc, realloc, free], own) = (hooks(), originals());
    let found = allocator.functions;
    found == [malloc, calloc, realloc, free] || found == [own[0], own[1], realloc, free]
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::sync::Mutex;
    use std::sync::atomic::{AtomicI32, AtomicUsize};

    use super::*;

    const PYMALLOC: ObjectAllocator = ObjectAllocator {
        context: 7,
        functions: [0x10, 0x20, 0x30, 0x40],
    };
    /// Another tool's hook.
    const OTHER: ObjectAllocator = ObjectAllocator {
        context: 8,
        functions: [0x11, 0x21, 0x31, 0x41],
    };

    static DOMAIN_ALLOCATORS: Mutex<[ObjectAllocator; 2]> = Mutex::new([PYMALLOC; 2]);
    static SETS: AtomicUsize = AtomicUsize::new(0);
    static INITIALIZED: AtomicI32 = AtomicI32::new(0);
    /// Domain that another tool sets at the next set of the first one; -1: none.
    static INTRUDED: AtomicI32 = AtomicI32::new(-1);

    unsafe extern "C" fn get(domain: c_int, found: *mut ObjectAllocator) {
        let allocators = DOMAIN_ALLOCATORS.lock().unwrap();
        // SAFETY: `current_allocators` passes its own structure.
        unsafe { *found = allocators[domain as usize - 1] };
    }

    unsafe extern "C" fn set(domain: c_int, next: *mut ObjectAllocator) {
        let mut allocators = DOMAIN_ALLOCATORS.lock().unwrap();
        // SAFETY: `set_allocators_where_unchanged` passes its own structure.
        allocators[domain as usize - 1] = unsafe { *next };
        SETS.fetch_add(1, Relaxed);
        if let Some(intruded) = allocators.get_mut(INTRUDED.swap(-1, Relaxed) as usize) {
            *intruded = OTHER;
        }
    }

    unsafe extern "C" fn name() -> *const c_char {
        match *DOMAIN_ALLOCATORS.lock().unwrap() == [PYMALLOC; 2] {
            true => c"pymalloc".as_ptr(),
            false => core::ptr::null(),
        }
    }

    unsafe extern "C" fn is_initialized() -> c_int {
        INITIALIZED.load(Relaxed)
    }

    fn allocators() -> [ObjectAllocator; 2] {
        *DOMAIN_ALLOCATORS.lock().unwrap()
    }

    #[test]
    fn only_pymalloc_and_own_hooks_are_replaced() {
        let python = PythonAllocator {
            get,
            set,
            name,
            is_initialized,
            code: [0x10, 0x41],
        };
        // One function lies elsewhere.
        let foreign = PythonAllocator {
            code: [0x10, 0x40],
            ..python
        };
        assert_eq!(
            foreign.install_hooks(1),
            Err(UnwrappedPython::OtherAllocator)
        );
        assert_eq!(allocators(), [PYMALLOC; 2]);
        let wrapped = [PYMALLOC.with_functions(hooks()); 2];
        // Before the interpreter is initialized, and after that.
        assert_eq!(python.install_hooks(1), Ok(()));
        assert_eq!(allocators(), wrapped);
        INITIALIZED.store(1, Relaxed);
        let sets = SETS.load(Relaxed);
        assert_eq!(python.install_hooks(1), Ok(()));
        assert_eq!(SETS.load(Relaxed), sets, "nothing to set");
        // Another tool's restore, or the interpreter's, took them away.
        *DOMAIN_ALLOCATORS.lock().unwrap() = [PYMALLOC; 2];
        assert_eq!(python.install_hooks(1), Ok(()));
        assert_eq!(allocators(), wrapped);
        // Frees are seen while sampling is off.
        assert!(python.remove_hooks(true));
        assert_eq!(allocators()[0].functions[..2], PYMALLOC.functions[..2]);
        assert_eq!(allocators()[0].functions[2..], hooks()[2..]);
        assert_eq!(python.install_hooks(1), Ok(()));
        assert_eq!(allocators(), wrapped);
        // Another tool's hook in one domain or in both.
        for other in [[OTHER, OTHER], [wrapped[0], OTHER], [OTHER, PYMALLOC]] {
            *DOMAIN_ALLOCATORS.lock().unwrap() = other;
            assert_eq!(python.install_hooks(1), Err(UnwrappedPython::OtherHook));
            assert_eq!(allocators(), other);
        }
        *DOMAIN_ALLOCATORS.lock().unwrap() = [wrapped[0], OTHER];
        assert!(!python.remove_hooks(false));
        assert_eq!(allocators(), [PYMALLOC, OTHER]);
        // Another tool sets its hook in the domain that was just set, or in the next one.
        for (domain, left) in [(0, [OTHER, PYMALLOC]), (1, [PYMALLOC, OTHER])] {
            *DOMAIN_ALLOCATORS.lock().unwrap() = [PYMALLOC; 2];
            INTRUDED.store(domain, Relaxed);
            assert_eq!(python.install_hooks(1), Err(UnwrappedPython::OtherHook));
            assert_eq!(allocators(), left);
        }
        *DOMAIN_ALLOCATORS.lock().unwrap() = [PYMALLOC; 2];
        assert_eq!(python.install_hooks(1), Ok(()));
        // An interpreter that was ended is left alone.
        INITIALIZED.store(0, Relaxed);
        assert_eq!(python.install_hooks(1), Err(UnwrappedPython::Ended));
        assert!(python.remove_hooks(false));
        assert_eq!(allocators(), wrapped);
    }
}
