//! Creates memprof's threads.
#![expect(unsafe_code, reason = "pthread_create(3) and its relatives")]

use std::ffi::{CStr, c_int, c_void};
use std::hint::black_box;
use std::io;
use std::mem::{self, MaybeUninit};
use std::panic::{self, AssertUnwindSafe};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::clocks::page_size;
use crate::inherited_settings::{allow_all_protection_keys, reset_inherited_settings};
use crate::libc_symbol::libc_symbol;
use crate::lock_free_once::LockFreeOnce;
use crate::memory::{allocate_thread_locals, require_mappings, require_memory};
use crate::privileges::Privileges;
use crate::reserve::MEMORY_POLL_INTERVAL;

/// Stack size for memprof's frames, in bytes.
const STACK_BYTES: usize = 256 << 10;

/// Stack size for the frames of plugins, in bytes, as memprof.h promises, besides [`STACK_BYTES`]. The kernel allocates
/// a page only when it is touched, unless the program locks all its memory (mlockall(2)).
const PLUGIN_STACK_BYTES: usize = 1 << 20;

/// Maximum number of bytes that an allocator maps for a new thread: jemalloc needs 2 MiB for a new arena, and maps
/// twice as much to align it.
const ALLOCATOR_BYTES: usize = 8 << 20;

/// Bytes without which a new thread does not allocate. Half of what was there when it was created: with all of it, a
/// thread would wait for ever because of its own stack.
const LEAST_ALLOCATOR_BYTES: usize = ALLOCATOR_BYTES / 2;

/// A thread of memprof's. All signals are blocked from its first instruction on. Its stack has room for the program's
/// thread-local variables, and it has few capabilities. Dropping this detaches the thread, which continues.
#[derive(Debug)]
pub struct Thread {
    id: libc::pthread_t,
    /// Id of the process that created it. The thread does not exist in a forked child.
    process: u32,
}

/// Additional resources that a thread needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// Whether it calls plugins, which may have large frames.
    pub calls_plugins: bool,
    /// Whether it keeps the capabilities of the thread that creates it, so that plugins can do the same as on the
    /// program's own threads.
    pub keeps_capabilities: bool,
}

impl Needs {
    /// Resources of a thread that calls plugins in a foreign program, and of that of a [`ThreadSpec`].
    pub const FOR_PLUGINS: Self = Self {
        calls_plugins: true,
        keeps_capabilities: false,
    };

    /// Returns the size of the stack in bytes, a multiple of the page size: room for memprof's frames and those of
    /// plugins, plus the C library's minimum.
    fn stack_size(self) -> usize {
        let plugins = match self.calls_plugins {
            true => PLUGIN_STACK_BYTES,
            false => 0,
        };
        (STACK_BYTES + plugins + min_stack_size()).next_multiple_of(page_size())
    }

    /// Drops the capabilities that the calling thread does not need. Returns those that it keeps.
    fn limit_privileges(self) -> Privileges {
        match self.keeps_capabilities {
            true => Privileges::keep_all(),
            false => Privileges::drop_unneeded(),
        }
    }
}

/// Specification of a thread that can be created without allocating, as in a fork handler. It may call plugins, as the
/// thread does that creates them in a foreign program, and has few capabilities.
#[derive(Debug)]
pub struct ThreadSpec {
    /// Name of the thread, at most 15 bytes.
    pub name: &'static CStr,
    /// Function that the thread runs.
    pub work: fn(&mut Privileges),
}

/// Runs `work` on a new thread called `name`, which has at most 15 bytes. A panic ends only the thread. `work` begins
/// once the program's allocator has memory for the thread's variables.
///
/// # Errors
/// There is no memory for the thread. Otherwise those of `pthread_create(3)`. In both cases `work` was not run.
pub fn spawn<W>(name: &'static CStr, work: W) -> io::Result<Thread>
where
    W: FnOnce(&mut Privileges) + Send + 'static,
{
    spawn_with_needs(name, Needs::default(), work)
}

/// Like [`spawn`], runs `work` on a new thread called `name`, but gives the thread the additional resources in `needs`.
///
/// # Errors
/// Those of [`spawn`].
pub fn spawn_with_needs<W>(name: &'static CStr, needs: Needs, work: W) -> io::Result<Thread>
where
    W: FnOnce(&mut Privileges) + Send + 'static,
{
    let stack = needs.stack_size();
    require_memory(stack + ALLOCATOR_BYTES)?;
    let start = Box::into_raw(Box::new(ThreadStart { name, needs, work }));
    // SAFETY: `run_boxed_thread::<W>` expects exactly this box, and `W` is `Send`.
    unsafe { create_thread(stack, run_boxed_thread::<W>, start.cast()) }.inspect_err(|_| {
        // SAFETY: no thread was created that could own the box.
        drop(unsafe { Box::from_raw(start) });
    })
}

/// Runs `spec` on a new thread. If a thread was created before, allocates nothing, except that the C library allocates
/// the thread's control data. The C library can do so in a fork handler, because it has already reset its allocator's
/// locks.
///
/// # Errors
/// Those of [`spawn`].
pub fn spawn_static(spec: &'static ThreadSpec) -> io::Result<Thread> {
    let stack = Needs::FOR_PLUGINS.stack_size();
    require_memory(stack + ALLOCATOR_BYTES)?;
    // SAFETY: `run_static_thread` accepts a `ThreadSpec` that is static and immutable.
    unsafe {
        create_thread(
            stack,
            run_static_thread,
            ptr::from_ref(spec).cast_mut().cast(),
        )
    }
}

/// Argument of a new thread, which owns it.
struct ThreadStart<W> {
    name: &'static CStr,
    needs: Needs,
    work: W,
}

/// Entry point of a thread that [`spawn_with_needs`] creates. `start` is a box of [`ThreadStart`], which the thread
/// frees. Returns null when the thread's work is done.
extern "C" fn run_boxed_thread<W: FnOnce(&mut Privileges)>(start: *mut c_void) -> *mut c_void {
    // Called before the box is read: the box is in the program's heap, which a protection key may guard.
    allow_all_protection_keys();
    // SAFETY: `spawn_with_needs` passed ownership of the box to this thread.
    let ThreadStart { name, needs, work } =
        *unsafe { Box::from_raw(start.cast::<ThreadStart<W>>()) };
    run_as_memprof_thread(name, needs, work);
    ptr::null_mut()
}

/// Entry point of a thread that [`spawn_static`] creates. `spec` is a static [`ThreadSpec`]. Returns null when the
/// thread's work is done.
extern "C" fn run_static_thread(spec: *mut c_void) -> *mut c_void {
    allow_all_protection_keys();
    // SAFETY: `spawn_static` passes a static `ThreadSpec`.
    let spec = unsafe { &*spec.cast::<ThreadSpec>() };
    run_as_memprof_thread(spec.name, Needs::FOR_PLUGINS, spec.work);
    ptr::null_mut()
}

static AT_START: LockFreeOnce<fn()> = LockFreeOnce::new();
static AT_END: LockFreeOnce<fn()> = LockFreeOnce::new();

/// Makes each thread that this module creates from now on call `act` before it allocates anything. Only the first call
/// of this function has an effect.
pub fn set_thread_start_hook(act: fn()) {
    AT_START.get_or_set(act);
}

/// Makes each thread of this module call `act` as the last thing that it does. Only the first call of this function has
/// an effect.
pub fn set_thread_end_hook(act: fn()) {
    AT_END.get_or_set(act);
}

/// Names the calling thread, calls the function of [`set_thread_start_hook`], waits until the allocator has memory for
/// the thread's variables, and runs `work`. Finally calls the function of [`set_thread_end_hook`].
fn run_as_memprof_thread(name: &CStr, needs: Needs, work: impl FnOnce(&mut Privileges)) {
    // SAFETY: pthread_self(3) has no preconditions.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: pthread_setname_np(3): a NUL-terminated name. If it is too long, the call has no effect.
    unsafe { libc::pthread_setname_np(this, name.as_ptr()) };
    if let Some(act) = AT_START.get() {
        act();
    }
    // `spawn_with_needs` has checked the memory already, but the program may have used it meanwhile, and jemalloc 5.3
    // reads through a null pointer if it gets none for a thread's cache.
    while require_mappings(LEAST_ALLOCATOR_BYTES, 2).is_err() || !allocate_thread_locals() {
        thread::sleep(MEMORY_POLL_INTERVAL);
    }
    run_catching_panic(needs, work);
    // Uses the allocator once more. A change of jemalloc's allocation hooks gives all threads a state
    // (`tsd_state_nominal_recompute`) in which the destructor of a thread's cache does nothing; a thread leaves it at
    // its next use of jemalloc.
    drop(black_box(Box::new(0_u8)));
    if let Some(act) = AT_END.get() {
        act();
    }
}

/// Resets inherited settings, drops capabilities unless `needs` keeps them, runs `work`, and catches its panic.
/// Must not be inlined, because it uses thread-local variables ([`allocate_thread_locals`]).
#[inline(never)]
fn run_catching_panic(needs: Needs, work: impl FnOnce(&mut Privileges)) {
    reset_inherited_settings();
    let mut privileges = needs.limit_privileges();
    let worked = panic::catch_unwind(AssertUnwindSafe(|| work(&mut privileges)));
    if let Err(payload) = worked {
        // The panic hook has logged it. The payload is leaked, because dropping it runs foreign code, which may panic
        // again.
        mem::forget(payload);
    }
}

/// Creates a thread that calls `entry` with `argument`. All signals are blocked in it, and its stack has `stack` bytes.
/// If this fails, `entry` is not called, and `argument` still belongs to the caller.
///
/// # Safety
/// `entry` may be called once, on another thread, with `argument`.
///
/// # Errors
/// Those of `pthread_attr_setstacksize(3)`, `pthread_sigmask(3)` and `pthread_create(3)`.
unsafe fn create_thread(
    stack: usize,
    entry: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> io::Result<Thread> {
    let mut attributes = Attributes::new()?;
    attributes.set_stack_size(stack)?;
    let mut id = 0;
    let created = {
        // Blocked before the thread is created: it inherits the mask, so it never receives a signal.
        let _blocked = BlockedSignals::block_all()?;
        // SAFETY: pthread_create(3): initialized attributes. The caller vouches for `entry` and `argument`.
        let created =
            unsafe { libc::pthread_create(&raw mut id, &raw const attributes.0, entry, argument) };
        check_pthread_result(created)
    };
    created.map(|()| Thread {
        id,
        process: std::process::id(),
    })
}

/// Returns the minimum size of a stack in bytes. In glibc it includes the thread-local variables of the program and its
/// libraries, because glibc stores them on the stack. `PTHREAD_STACK_MIN` in another C library.
fn min_stack_size() -> usize {
    type GetMinstack = unsafe extern "C" fn(*const libc::pthread_attr_t) -> libc::size_t;
    static CACHED: AtomicUsize = AtomicUsize::new(0);
    // Cached, because the lookup takes the loader's lock, for which a fork handler must not wait.
    let cached = CACHED.load(Ordering::Relaxed);
    if cached != 0 {
        return cached;
    }
    let least = match libc_symbol(c"__pthread_get_minstack") {
        None => libc::PTHREAD_STACK_MIN,
        Some(found) => {
            // SAFETY: glibc's function has this type; Rust's standard library relies on it too.
            let get_minstack = unsafe { mem::transmute::<NonNull<c_void>, GetMinstack>(found) };
            // SAFETY: glibc's function does not read the attributes.
            unsafe { get_minstack(ptr::null()) }
        }
    };
    CACHED.store(least, Ordering::Relaxed);
    least
}

impl Thread {
    /// Waits until the thread has ended. Returns immediately in a forked child.
    pub fn join(self) {
        if self.process == std::process::id() {
            // SAFETY: pthread_join(3): a thread of this process. It is neither joined nor detached, because `join`
            // consumes `self`.
            unsafe { libc::pthread_join(self.id, ptr::null_mut()) };
        }
        mem::forget(self);
    }
}

impl Drop for Thread {
    /// Detaches the thread, which then runs on without a join. Does nothing in a forked child.
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: pthread_detach(3): a thread of this process. It is neither joined nor detached before its drop.
            unsafe { libc::pthread_detach(self.id) };
        }
    }
}

/// Initialized attributes of `pthread_attr_init(3)`, destroyed on drop.
struct Attributes(libc::pthread_attr_t);

impl Attributes {
    /// Creates the attributes of a thread with the C library's defaults. Fails with the error of
    /// `pthread_attr_init(3)`.
    fn new() -> io::Result<Self> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: pthread_attr_init(3) writes the attributes.
        check_pthread_result(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: pthread_attr_init(3) succeeded.
        Ok(Self(unsafe { attributes.assume_init() }))
    }

    /// Sets the size of the stack, in bytes. Fails if it is below the C library's minimum.
    fn set_stack_size(&mut self, bytes: usize) -> io::Result<()> {
        // SAFETY: pthread_attr_setstacksize(3): attributes that `new` initialized.
        check_pthread_result(unsafe { libc::pthread_attr_setstacksize(&raw mut self.0, bytes) })
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: pthread_attr_destroy(3): attributes that `new` initialized.
        unsafe { libc::pthread_attr_destroy(&raw mut self.0) };
    }
}

/// Blocks all signals of the calling thread until it is dropped. Exceptions are the two signals with which the C
/// library changes the user in all threads.
struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    /// Blocks all signals of the calling thread until the guard is dropped. Fails with the error of
    /// `pthread_sigmask(3)`.
    fn block_all() -> io::Result<Self> {
        let mut all = MaybeUninit::uninit();
        // SAFETY: sigfillset(3) writes the set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        let mut before = MaybeUninit::uninit();
        // SAFETY: pthread_sigmask(3) reads the first set and writes the other.
        check_pthread_result(unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
        })?;
        // SAFETY: pthread_sigmask(3) succeeded.
        let before = unsafe { before.assume_init() };
        Ok(Self { before })
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: pthread_sigmask(3): a set that pthread_sigmask(3) returned.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

/// Converts the result of a pthread function: 0, or an error number.
fn check_pthread_result(error: c_int) -> io::Result<()> {
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;

    use super::*;

    /// Returns the value of a field of the calling thread's status. `name` includes the colon, as in `SigBlk:`.
    fn status_field(name: &str) -> String {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let value = status.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap().trim().to_owned()
    }

    #[test]
    fn thread_has_name_and_blocked_signals() {
        let before = status_field("SigBlk:");
        let (sender, results) = mpsc::channel();
        let thread = spawn(c"memprof-test", move |_| {
            sender
                .send((status_field("Name:"), status_field("SigBlk:")))
                .unwrap();
        });
        thread.unwrap().join();
        let (name, blocked) = results.recv().unwrap();
        assert_eq!(name, "memprof-test");
        // SIGKILL and SIGSTOP, and the C library's own two, cannot be blocked.
        assert_eq!(blocked, "fffffffe7ffbfeff");
        assert_eq!(status_field("SigBlk:"), before);
    }

    /// Uses `BYTES` bytes of the stack.
    #[inline(never)]
    fn use_stack<const BYTES: usize>() -> u8 {
        let filled = std::hint::black_box([1_u8; BYTES]);
        filled[BYTES / 2]
    }

    #[test]
    fn plugin_thread_has_large_stack_and_capabilities() {
        let (sender, results) = mpsc::channel();
        let needs = Needs {
            calls_plugins: true,
            keeps_capabilities: true,
        };
        let before = status_field("CapEff:");
        let thread = spawn_with_needs(c"memprof-test", needs, move |privileges| {
            privileges.limit_to_main_thread();
            // All that a plugin may use, below frames of memprof's.
            sender
                .send((use_stack::<PLUGIN_STACK_BYTES>(), status_field("CapEff:")))
                .unwrap();
        });
        thread.unwrap().join();
        assert_eq!(results.recv(), Ok((1, before)));
    }

    #[test]
    fn panic_ends_only_thread() {
        spawn(c"memprof-test", |_| panic!("on purpose"))
            .unwrap()
            .join();
    }

    #[test]
    fn spawn_static_runs_work_that_may_call_plugins() {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        static SPEC: ThreadSpec = ThreadSpec {
            name: c"memprof-test",
            work: |_| {
                // As much as the `create` of a plugin may use, below frames of memprof's.
                RUNS.fetch_add(use_stack::<PLUGIN_STACK_BYTES>().into(), Ordering::Relaxed);
            },
        };
        spawn_static(&SPEC).unwrap().join();
        assert_eq!(RUNS.load(Ordering::Relaxed), 1);
    }
}
