//! Python's own small objects among the samples: objects of up to 512 bytes, which pymalloc serves.

use std::ffi::CStr;
use std::sync::Mutex;

use memprof_languages::intern_object_type;
use memprof_sampler::{PythonAllocator, PythonFunctions, UnwrappedPython};

use super::sampled_allocator;
use crate::allocators::loaded_objects::{ForkGuard, LoadedObject};
use crate::allocators::symbols::ExportedSymbols;
use crate::lock::lock;

/// Leaf frame of an object's stack, until its type is known.
const UNTYPED: &[u8] = b"(untyped)";

/// Reason for an interpreter without the functions of [`PythonFunctions`].
const NO_FUNCTIONS: &str = "the interpreter does not export PyMem_SetAllocator";

/// Most waits of 100 ms each for a moment without a fork.
const FORK_WAITS: u32 = 10;

static STATE: Mutex<State> = Mutex::new(State {
    objects: None,
    minor: 0,
    unwanted_because: None,
    off_because: None,
    leaf: 0,
    are_hooks_left: false,
});

/// A `CPython`'s allocator, and the type of its types.
#[derive(Clone, Copy, Debug)]
pub(super) struct PythonObjects {
    allocator: PythonAllocator,
    /// Address of `PyType_Type`.
    type_type: u64,
}

/// Newest minor version of `CPython` 3 in which setting hooks without the GIL was tried: with threads, forks,
/// collections and other tools.
const NEWEST_MINOR: u8 = 14;

/// Reason why objects are not sampled in a program without Python.
const NO_INTERPRETER: &str = "there is no interpreter";

/// Reason why objects of newer versions are not sampled.
const TOO_NEW: &str = "hooks of its allocator were not tried with a version newer than 3.14";

/// The objects of the interpreter whose frames are read.
#[derive(Debug)]
struct State {
    /// `None` if no interpreter was found, or not its functions.
    objects: Option<PythonObjects>,
    /// Minor version of `CPython` 3.
    minor: u8,
    /// Reason why nothing may be sampled.
    unwanted_because: Option<String>,
    /// Reason why objects are not sampled.
    off_because: Option<String>,
    /// Leaf frame of the stacks of objects; 0 before there are any.
    leaf: u64,
    /// Whether the log says that the hooks could not be removed.
    are_hooks_left: bool,
}

/// The leaf frame of objects' stacks, and the `CPython` that has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectMark {
    pub(super) leaf: u64,
    /// Its minor version.
    pub(super) minor: u8,
    /// Address of its `PyType_Type`.
    pub(super) type_type: u64,
}

/// Finds the symbols that a `CPython` in `object` exports for the sampling of its objects. `None` if it lacks one. The
/// functions are not called here, and never for a version whose frames are not read.
#[expect(unsafe_code, reason = "functions by their names")]
pub(super) fn find_object_allocator(
    exported: &ExportedSymbols,
    object: &LoadedObject,
) -> Option<PythonObjects> {
    let address = |name: &CStr| exported.find(name).map(|(address, _)| address);
    let functions = PythonFunctions {
        get: address(c"PyMem_GetAllocator")?,
        set: address(c"PyMem_SetAllocator")?,
        name: address(c"_PyMem_GetCurrentAllocatorName")?,
        is_initialized: address(c"Py_IsInitialized")?,
        code: object.code_bounds()?,
    };
    Some(PythonObjects {
        // SAFETY: the object exports the functions by these names, and `exported` keeps it loaded.
        allocator: unsafe { PythonAllocator::new(functions) },
        type_type: address(c"PyType_Type")? as u64,
    })
}

/// Sets the `CPython`, of this minor version, whose objects are sampled once [`install_hooks`] is called. `objects` is
/// `None` if that `CPython` lacks the symbols for it. `off_because` is a reason not to sample its objects, if there is
/// one. If another `CPython` was set before, it stays, because only its frames are read.
pub(super) fn set_sampled_objects(
    objects: Option<PythonObjects>,
    minor: u8,
    off_because: Option<String>,
) {
    let mut state = lock(&STATE);
    let no_functions = || objects.is_none().then(|| NO_FUNCTIONS.to_owned());
    let too_new = || (minor > NEWEST_MINOR).then(|| TOO_NEW.to_owned());
    let off_because = off_because.or_else(no_functions).or_else(too_new);
    state.off_because.clone_from(&off_because);
    state.unwanted_because = off_because;
    // The first one stays, because only its frames are read.
    if state.objects.is_none() {
        state.objects = objects;
        state.minor = minor;
    }
}

/// Stores that no objects may be sampled, because there is no interpreter.
pub(super) fn set_no_interpreter() {
    let mut state = lock(&STATE);
    state.unwanted_because = Some(NO_INTERPRETER.to_owned());
    state.off_because = None;
}

/// Returns a guard that delays forks while the interpreter's functions are called, which takes a few microseconds: from
/// 3.12 on they take a mutex, which a forked child would find locked for ever. Waits up to a second for a moment
/// without a fork; `None` if there is none.
///
/// A thread that holds that mutex copies a structure; it neither forks nor waits for the interpreter's global lock. So
/// the mutex becomes free even while another thread, which holds the global lock, waits in its fork handler.
fn acquire_fork_guard() -> Option<ForkGuard> {
    (0..FORK_WAITS).find_map(|_| {
        // Waits until no fork is in progress; after 100 ms it returns though one is.
        drop(ForkGuard::acquire());
        ForkGuard::try_acquire()
    })
}

/// Samples Python's small objects from now on, unless there is a reason not to, or another tool's hook is installed.
/// Idempotent. It is called repeatedly while sampling is on: another tool, or a restart of the interpreter, may remove
/// the hooks, and another tool may remove its own.
pub(super) fn install_hooks() {
    // Without a guard, the next call tries again.
    let changed = acquire_fork_guard().and_then(|_no_fork| lock(&STATE).install_hooks());
    // Logged without the guard, because the log may block. A program without Python needs no such line.
    if let Some(reason) = changed.filter(|reason| reason != NO_INTERPRETER) {
        log::info!("Python's objects of up to 512 bytes are not sampled: {reason}");
    }
}

/// Stops sampling Python's small objects, and removes the hooks. With `keeps_frees`, those of functions that free stay,
/// because samples may still be live. Nothing is sampled from now on, even if hooks stay. Logs once if they do.
pub(super) fn uninstall_hooks(keeps_frees: bool) {
    PythonAllocator::stop_recording();
    let is_removed = match acquire_fork_guard() {
        Some(_no_fork) => lock(&STATE).remove_hooks(keeps_frees),
        None => false,
    };
    let were_left = std::mem::replace(&mut lock(&STATE).are_hooks_left, !is_removed);
    if !is_removed && !were_left {
        log::warn!(
            "memprof's hooks of Python's allocator stay, and only pass calls on: another tool has wrapped them, or the \
             program forks all the time"
        );
    }
}

impl State {
    /// Tries to install the hooks of the interpreter's allocator, and stores the reason if Python's objects are not
    /// sampled. Returns that reason if it differs from the one of the last call, so that it is logged once.
    fn install_hooks(&mut self) -> Option<String> {
        let reason = self.try_install_hooks().err();
        let is_new = self.off_because != reason;
        self.off_because.clone_from(&reason);
        reason.filter(|_| is_new)
    }

    /// Installs the hooks in the interpreter's allocator, or fails with the reason why objects are not sampled. Removes
    /// the hooks if objects are not wanted, or while a tally counts all allocations of malloc exactly. Succeeds without
    /// hooks if the interpreter takes its objects from `malloc`, whose calls are sampled anyway, or if no interpreter
    /// was looked for yet.
    fn try_install_hooks(&mut self) -> Result<(), String> {
        let Some(PythonObjects { allocator, .. }) = self.objects else {
            return self.unwanted_because.clone().map_or(Ok(()), Err);
        };
        let tally = "a tally counts the allocations of malloc alone";
        let is_tallied = memprof_sampler::tally().is_some();
        let tallied = || is_tallied.then(|| tally.to_owned());
        if let Some(reason) = self.unwanted_because.clone().or_else(tallied) {
            self.remove_hooks(memprof_sampler::counts().live_samples > 0);
            return Err(reason);
        }
        if self.leaf == 0 {
            let leaf = intern_object_type(UNTYPED);
            self.leaf = leaf.ok_or("the table of names is full")? as u64;
        }
        let reason = match allocator.install_hooks(self.leaf as usize) {
            Ok(()) => {
                self.are_hooks_left = false;
                sampled_allocator::mark_several_allocators();
                return Ok(());
            }
            Err(UnwrappedPython::UsesMalloc) => return Ok(()),
            Err(UnwrappedPython::Debug) => {
                "it checks its objects (a debug build, or PYTHONMALLOC=debug)"
            }
            Err(UnwrappedPython::OtherHook) => {
                "another tool, such as tracemalloc or memray, has wrapped its allocator"
            }
            Err(UnwrappedPython::OtherAllocator) => "its allocator is not known",
            Err(UnwrappedPython::Ended) => "the interpreter was ended",
        };
        Err(reason.to_owned())
    }

    /// Removes the hooks. With `keeps_frees`, those of functions that free stay. Returns false if all stay, because
    /// another tool has wrapped them. Does nothing and returns true if none was ever installed.
    fn remove_hooks(&self, keeps_frees: bool) -> bool {
        let objects = self.objects.filter(|_| self.leaf != 0);
        objects.is_none_or(|objects| objects.allocator.remove_hooks(keeps_frees))
    }
}

/// Returns the reason why Python's objects of up to 512 bytes are not sampled. `None` if no reason is known. Python's
/// larger objects come from malloc, and may be sampled all the same.
pub(super) fn unsampled_objects_reason() -> Option<String> {
    lock(&STATE).off_because.clone()
}

/// Mark by which the stacks of Python's objects are recognized. `None` if no object can have been sampled.
pub(super) fn object_mark() -> Option<ObjectMark> {
    let state = lock(&STATE);
    let objects = state.objects.filter(|_| state.leaf != 0)?;
    Some(ObjectMark {
        leaf: state.leaf,
        minor: state.minor,
        type_type: objects.type_type,
    })
}
