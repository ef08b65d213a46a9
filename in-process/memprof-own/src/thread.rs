//! How every thread of ours is made.
#![expect(unsafe_code, reason = "pthread_create(3), and what goes with it")]

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::mem::{self, MaybeUninit};
use std::panic::{self, AssertUnwindSafe};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::libc_symbol::libc_symbol;
use crate::lock_free_once::LockFreeOnce;
use crate::memory::{allocate_thread_locals, require_memory};
use crate::privileges::Privileges;
use crate::reserve::MEMORY_POLL_INTERVAL;

/// For our own frames.
const STACK: usize = 256 << 10;

/// For the frames of plugins, as memprof.h promises them. Address space only: the kernel gives a page when it
/// is touched, unless the program locks all its memory (mlockall(2)).
const STACK_FOR_PLUGINS: usize = 1 << 20;

/// What an allocator maps for a new thread, at the most: jemalloc 2 MiB for a new arena, of which
/// it maps twice as much to align it.
const FOR_THE_ALLOCATOR: usize = 8 << 20;

/// A thread of ours: every signal is blocked from its first instruction on, its stack has room
/// beside the program's thread-local variables, and it has few capabilities. Dropped, it goes on
/// by itself.
#[derive(Debug)]
pub struct Thread {
    id: libc::pthread_t,
    /// The process that has it: a forked child does not.
    process: u32,
}

/// The needs of a thread beside those of all of ours.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// It calls plugins, whose frames may be large.
    pub calls_plugins: bool,
    /// It keeps the capabilities of the thread that makes it: its plugins do what they do on the program's own
    /// threads.
    pub keeps_capabilities: bool,
}

impl Needs {
    fn stack(self) -> usize {
        let own = match self.calls_plugins {
            true => STACK_FOR_PLUGINS,
            false => STACK,
        };
        (own + min_stack_size()).next_multiple_of(rustix::param::page_size())
    }

    fn privileges(self) -> Privileges {
        match self.keeps_capabilities {
            true => Privileges::of_program(),
            false => Privileges::drop_unneeded(),
        }
    }
}

/// A thread that can be made without allocating, as in a handler of fork(2).
#[derive(Debug)]
pub struct ThreadSpec {
    /// At most 15 bytes.
    pub name: &'static CStr,
    /// What it does.
    pub work: fn(&mut Privileges),
}

/// Runs `work` on a new thread called `name`, which has at most 15 bytes. A panic ends the thread
/// only. Where the program's allocator has nothing for the thread's variables, `work` begins once it has.
///
/// # Errors
/// The system has no memory or no thread left; then nothing was run.
pub fn spawn<W>(name: &'static CStr, work: W) -> io::Result<Thread>
where
    W: FnOnce(&mut Privileges) + Send + 'static,
{
    spawn_with(name, Needs::default(), work)
}

/// As [`spawn`], for a thread with these needs.
///
/// # Errors
/// As [`spawn`].
pub fn spawn_with<W>(name: &'static CStr, needs: Needs, work: W) -> io::Result<Thread>
where
    W: FnOnce(&mut Privileges) + Send + 'static,
{
    let stack = needs.stack();
    require_memory(stack + FOR_THE_ALLOCATOR)?;
    let start = Box::into_raw(Box::new(ThreadStart { name, needs, work }));
    // SAFETY: `run::<W>` takes exactly such a box, and `W` may go to another thread.
    unsafe { create(stack, run::<W>, start.cast()) }.inspect_err(|_| {
        // SAFETY: no thread was made that could have taken it.
        drop(unsafe { Box::from_raw(start) });
    })
}

/// Runs a plan on a new thread. Once a thread was made, this allocates nothing by itself; the C
/// library allocates the thread's control data, for which it makes its allocator ready before it
/// calls a handler of fork(2).
///
/// # Errors
/// As [`spawn`].
pub fn spawn_static(plan: &'static ThreadSpec) -> io::Result<Thread> {
    let stack = Needs::default().stack();
    require_memory(stack + FOR_THE_ALLOCATOR)?;
    // SAFETY: `run_plan` takes a plan, which is static and immutable.
    unsafe { create(stack, run_static, ptr::from_ref(plan).cast_mut().cast()) }
}

struct ThreadStart<W> {
    name: &'static CStr,
    needs: Needs,
    work: W,
}

extern "C" fn run<W: FnOnce(&mut Privileges)>(start: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` gave this thread the box.
    let ThreadStart { name, needs, work } =
        *unsafe { Box::from_raw(start.cast::<ThreadStart<W>>()) };
    run_work(name, needs, work);
    ptr::null_mut()
}

extern "C" fn run_static(plan: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn_plan` passes a static plan.
    let plan = unsafe { &*plan.cast::<ThreadSpec>() };
    run_work(plan.name, Needs::default(), plan.work);
    ptr::null_mut()
}

static AT_START: LockFreeOnce<fn()> = LockFreeOnce::new();

/// Has each thread that is made from now on call `act` before it allocates anything. A second call changes nothing.
pub fn at_thread_start(act: fn()) {
    AT_START.get_or_set(act);
}

fn run_work(name: &CStr, needs: Needs, work: impl FnOnce(&mut Privileges)) {
    // SAFETY: pthread_self(3) has no conditions.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: pthread_setname_np(3): a NUL-terminated name. One that is too long is not taken.
    unsafe { libc::pthread_setname_np(this, name.as_ptr()) };
    if let Some(act) = AT_START.get() {
        act();
    }
    while !allocate_thread_locals() {
        thread::sleep(MEMORY_POLL_INTERVAL);
    }
    do_work(needs, work);
}

/// Has thread-local variables, and is not inlined ([`allocate_thread_locals`]).
#[inline(never)]
fn do_work(needs: Needs, work: impl FnOnce(&mut Privileges)) {
    let mut privileges = needs.privileges();
    let worked = panic::catch_unwind(AssertUnwindSafe(|| work(&mut privileges)));
    if let Err(payload) = worked {
        // The hook has logged it. Dropping a payload runs foreign code, which may panic again.
        mem::forget(payload);
    }
}

/// # Safety
/// `entry` may be called once, on another thread, with `argument`.
unsafe fn create(
    stack: usize,
    entry: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> io::Result<Thread> {
    let mut attributes = Attributes::new()?;
    attributes.set_stack_size(stack)?;
    let mut id = 0;
    let created = {
        // Before, because the new thread inherits the mask: it never has a signal open.
        let _blocked = BlockedSignals::block_all()?;
        // SAFETY: pthread_create(3): initialized attributes; the rest is promised by the caller.
        let created =
            unsafe { libc::pthread_create(&raw mut id, &raw const attributes.0, entry, argument) };
        check(created)
    };
    created.map(|()| Thread {
        id,
        process: std::process::id(),
    })
}

/// The least size of a stack, with the thread-local variables of the program and its libraries, which the C
/// library puts there.
fn min_stack_size() -> usize {
    type GetMinstack = unsafe extern "C" fn(*const libc::pthread_attr_t) -> libc::size_t;
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    // Asked once: the loader has a lock, which a handler of fork(2) must not wait for.
    let known = KNOWN.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let least = match libc_symbol(c"__pthread_get_minstack") {
        None => libc::PTHREAD_STACK_MIN,
        Some(found) => {
            // SAFETY: glibc's function of that name has this type, on which Rust's standard library relies too.
            let get_minstack = unsafe { mem::transmute::<NonNull<c_void>, GetMinstack>(found) };
            // SAFETY: it reads nothing of the attributes.
            unsafe { get_minstack(ptr::null()) }
        }
    };
    KNOWN.store(least, Ordering::Relaxed);
    least
}

impl Thread {
    /// Waits until it has ended.
    pub fn join(self) {
        if self.process == std::process::id() {
            // SAFETY: a thread of this process, neither joined nor detached.
            unsafe { libc::pthread_join(self.id, ptr::null_mut()) };
        }
        mem::forget(self);
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: as in `join`.
            unsafe { libc::pthread_detach(self.id) };
        }
    }
}

struct Attributes(libc::pthread_attr_t);

impl Attributes {
    fn new() -> io::Result<Self> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: pthread_attr_init(3) fills them.
        check(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: it did.
        Ok(Self(unsafe { attributes.assume_init() }))
    }

    fn set_stack_size(&mut self, bytes: usize) -> io::Result<()> {
        // SAFETY: initialized by `new`.
        check(unsafe { libc::pthread_attr_setstacksize(&raw mut self.0, bytes) })
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: initialized by `new`.
        unsafe { libc::pthread_attr_destroy(&raw mut self.0) };
    }
}

/// Every signal is blocked on this thread, until it is dropped. Not those by which the C library
/// changes the user in all threads.
struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    fn block_all() -> io::Result<Self> {
        let mut all = MaybeUninit::uninit();
        // SAFETY: sigfillset(3) fills it.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        let mut before = MaybeUninit::uninit();
        // SAFETY: pthread_sigmask(3): reads the first set and fills the other.
        check(unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
        })?;
        // SAFETY: it did.
        let before = unsafe { before.assume_init() };
        Ok(Self { before })
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: pthread_sigmask(3): a set that it gave itself.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

fn check(error: c_int) -> io::Result<()> {
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

    fn status_field(name: &str) -> String {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let value = status.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap().trim().to_owned()
    }

    #[test]
    fn a_thread_has_its_name_and_every_signal_blocked() {
        let before = status_field("SigBlk:");
        let (tell, told) = mpsc::channel();
        let thread = spawn(c"memprof-test", move |_| {
            tell.send((status_field("Name:"), status_field("SigBlk:")))
                .unwrap();
        });
        thread.unwrap().join();
        let (name, blocked) = told.recv().unwrap();
        assert_eq!(name, "memprof-test");
        // All but SIGKILL and SIGSTOP, and the C library's own two.
        assert_eq!(blocked, "fffffffe7ffbfeff");
        assert_eq!(status_field("SigBlk:"), before);
    }

    /// Fills so many bytes of the stack.
    #[inline(never)]
    fn use_stack<const BYTES: usize>() -> u8 {
        let filled = std::hint::black_box([1_u8; BYTES]);
        filled[BYTES / 2]
    }

    #[test]
    fn a_thread_that_calls_plugins_has_a_stack_for_large_frames() {
        let (tell, told) = mpsc::channel();
        let needs = Needs {
            calls_plugins: true,
            keeps_capabilities: true,
        };
        let before = status_field("CapEff:");
        let thread = spawn_with(c"memprof-test", needs, move |privileges| {
            privileges.match_main_thread();
            tell.send((use_stack::<1_000_000>(), status_field("CapEff:")))
                .unwrap();
        });
        thread.unwrap().join();
        assert_eq!(told.recv(), Ok((1, before)));
    }

    #[test]
    fn a_panic_ends_the_thread_only() {
        spawn(c"memprof-test", |_| panic!("on purpose"))
            .unwrap()
            .join();
    }

    #[test]
    fn a_plan_is_run() {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        static PLAN: ThreadSpec = ThreadSpec {
            name: c"memprof-test",
            work: |_| {
                RUNS.fetch_add(1, Ordering::Relaxed);
            },
        };
        spawn_static(&PLAN).unwrap().join();
        assert_eq!(RUNS.load(Ordering::Relaxed), 1);
    }
}
