//! Python's own small objects among the samples: objects of up to 512 bytes, which pymalloc serves.

use std::ffi::CStr;
use std::sync::Mutex;

use memprof_languages::enter_object_type;
use memprof_sampler::{PythonAllocator, UnwrappedPython};

use super::sampled_allocator;
use crate::allocators::symbols::ExportedSymbols;
use crate::lock::lock;

/// Leaf frame of an object's stack, until its type is known.
const UNTYPED: &[u8] = b"(untyped)";

static STATE: Mutex<State> = Mutex::new(State {
    allocator: None,
    minor: 0,
    is_wanted: false,
    off_because: None,
    leaf: 0,
});

/// The allocator of the interpreter whose frames are read.
#[derive(Debug)]
struct State {
    /// `None` if its functions were not found.
    allocator: Option<PythonAllocator>,
    /// Minor version of `CPython` 3.
    minor: u8,
    is_wanted: bool,
    /// Reason why objects are not sampled.
    off_because: Option<&'static str>,
    /// Leaf frame of the stacks of objects; 0 before there are any.
    leaf: u64,
}

/// The leaf frame of objects' stacks, and the minor version of the `CPython` that has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectMark {
    pub(super) leaf: u64,
    pub(super) minor: u8,
}

/// Finds the functions that read and set a `CPython`'s allocators. The version is one whose frames are read.
#[expect(unsafe_code, reason = "functions by their names")]
pub(super) fn find_allocator(exported: &ExportedSymbols) -> Option<PythonAllocator> {
    let address = |name: &CStr| exported.find(name).map(|(address, _)| address);
    let get = address(c"PyMem_GetAllocator")?;
    let set = address(c"PyMem_SetAllocator")?;
    let name = address(c"_PyMem_GetCurrentAllocatorName")?;
    // SAFETY: the object exports the functions by these names, and `exported` keeps it loaded.
    Some(unsafe { PythonAllocator::new(get, set, name) })
}

/// Sets the allocator whose objects are to be sampled, of a `CPython` with this minor version; `None`: none is. An
/// activation installs its hooks.
pub(super) fn choose_allocator(allocator: Option<PythonAllocator>, minor: u8, is_wanted: bool) {
    let mut state = lock(&STATE);
    state.is_wanted = is_wanted && allocator.is_some();
    state.off_because = match allocator {
        None if is_wanted => Some("the interpreter does not export PyMem_SetAllocator"),
        _ => None,
    };
    // The first one stays, as its frames do.
    if state.allocator.is_none() {
        state.allocator = allocator;
        state.minor = minor;
    }
}

/// Samples small objects from now on, if they are to be sampled and no other tool's hook is installed.
pub(super) fn install() {
    let mut state = lock(&STATE);
    if !state.is_wanted {
        return remove(&state, memprof_sampler::counts().live_samples > 0);
    }
    let Some(allocator) = state.allocator else {
        return;
    };
    if memprof_sampler::tally().is_some() {
        state.off_because = Some("a tally counts the allocations of malloc alone");
        return;
    }
    if state.leaf == 0 {
        state.leaf = enter_object_type(UNTYPED) as u64;
    }
    let wrapped = allocator.wrap(state.leaf as usize);
    let reason = match wrapped {
        Ok(()) | Err(UnwrappedPython::UsesMalloc) => None,
        Err(UnwrappedPython::Debug) => {
            Some("it checks its objects (a debug build, or PYTHONMALLOC=debug)")
        }
        Err(UnwrappedPython::OtherHook) => {
            Some("another tool, such as tracemalloc or memray, has wrapped its allocator")
        }
        Err(UnwrappedPython::OtherAllocator) => Some("its allocator is not known"),
    };
    if wrapped.is_ok() {
        sampled_allocator::mark_several_allocators();
    }
    if state.off_because != reason
        && let Some(reason) = reason
    {
        log::info!("Python's objects of up to 512 bytes are not sampled: {reason}");
    }
    state.off_because = reason;
}

/// Removes the hooks, or those of functions that only allocate.
pub(super) fn uninstall(keeps_frees: bool) {
    remove(&lock(&STATE), keeps_frees);
}

fn remove(state: &State, keeps_frees: bool) {
    let Some(allocator) = state.allocator.filter(|_| state.leaf != 0) else {
        return;
    };
    if !allocator.unwrap(keeps_frees) && !keeps_frees {
        log::warn!(
            "another tool has wrapped memprof's hooks of Python's allocator, which stay and only pass calls on"
        );
    }
}

/// Reason why objects of up to 512 bytes are not sampled, though frames of the program are.
pub(super) fn off_because() -> Option<&'static str> {
    lock(&STATE).off_because
}

/// Mark of the stacks of objects. `None` if none was sampled.
pub(super) fn object_mark() -> Option<ObjectMark> {
    let state = lock(&STATE);
    (state.leaf != 0).then_some(ObjectMark {
        leaf: state.leaf,
        minor: state.minor,
    })
}
