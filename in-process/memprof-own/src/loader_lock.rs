//! The lock of the loader's list of objects, in a forked child.
//!
//! fork(2) resets the loader's locks in the child, except the one that is held while the list of objects is read or
//! changed (glibc 2.36). If another thread of the parent held that lock, it stays locked in the child forever. The
//! loader exports its locks side by side in `_rtld_global`. memprof finds the lock there, and releases it if its owner
//! is not a thread of this process.
#![expect(unsafe_code, reason = "a lock of the loader")]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::thread::futex::{self, Flags};

use crate::libc_symbol::libc_symbol;

/// Size of `pthread_mutex_t` on x86-64 in words: lock and depth, owner and users, kind and spins, and two list
/// pointers.
const WORDS: usize = 5;
/// Value of `PTHREAD_MUTEX_RECURSIVE` in a mutex.
const RECURSIVE: usize = 1;
/// Maximum number of polls of another thread's state. They take 100 ms, far longer than a fork or an access to the
/// list.
pub(crate) const MAX_POLLS: u32 = 2000;
pub(crate) const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Maximum plausible depth of the recursive lock. The loader nests less deeply.
const MAX_DEPTH: usize = 64;
/// Flag from dlfcn.h: dladdr1(3) returns the symbol's table entry.
const RTLD_DL_SYMENT: c_int = 1;

unsafe extern "C" {
    /// dlfcn.h: like dladdr(3), and stores in `extra` the information that `flags` selects. Returns 0 on failure.
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: c_int,
    ) -> c_int;
}

/// The lock of the loader's list; null if it was not found.
static LOCK: AtomicPtr<PthreadMutex> = AtomicPtr::new(ptr::null_mut());

/// The first fields of glibc's `pthread_mutex_t`.
#[repr(C)]
struct PthreadMutex {
    lock: AtomicU32,
    depth: AtomicU32,
    owner: AtomicU32,
    users: AtomicU32,
}

/// Finds the loader's lock and stores its address in [`LOCK`]. Requires glibc on x86-64; otherwise [`LOCK`] stays null.
/// Allocates nothing, and takes no lock that may be held forever in a forked child.
pub(crate) fn find_and_store_loader_lock() {
    if !cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        return;
    }
    if let Some(words) = loader_state()
        && let Some(index) = second_mutex_of_run(words)
    {
        LOCK.store(
            ptr::from_ref(&words[index]).cast_mut().cast(),
            Ordering::Release,
        );
    }
}

/// Resets [`LOCK`] unless it is the lock that `dl_iterate_phdr(3)` holds while it reads the loader's list of objects.
pub(crate) fn forget_loader_lock_unless_verified() {
    // SAFETY: dl_iterate_phdr(3) calls `forget_lock_unless_held` synchronously.
    unsafe { libc::dl_iterate_phdr(Some(forget_lock_unless_held), ptr::null_mut()) };
}

/// Callback of `dl_iterate_phdr(3)`, which holds the lock of its list during the call. Resets [`LOCK`] if the calling
/// thread does not hold it: then it is another lock. Returns 1 to end the iteration.
unsafe extern "C" fn forget_lock_unless_held(
    _: *mut libc::dl_phdr_info,
    _: usize,
    _: *mut c_void,
) -> c_int {
    if loader_lock().is_some_and(|lock| lock.owner.load(Ordering::Relaxed) != current_tid()) {
        LOCK.store(ptr::null_mut(), Ordering::Release);
    }
    1
}

/// Releases the loader's lock if it is locked, but no thread of this process holds it, and wakes all threads that wait
/// for it. Unless `is_alone`, waits up to 100 ms to see whether the lock is in use. `is_alone`: no other thread of the
/// process can be about to acquire the lock.
pub(crate) fn release_orphaned_lock(is_alone: bool) {
    let wait = || thread::sleep(POLL_INTERVAL);
    let Some(lock) = loader_lock().filter(|lock| is_orphaned(lock, is_alone, wait, is_live_thread))
    else {
        return;
    };
    for word in [&lock.depth, &lock.owner, &lock.users] {
        word.store(0, Ordering::Relaxed);
    }
    lock.lock.store(0, Ordering::Release);
    // futex(2) takes the number of threads as an `int`, and fails only for invalid addresses.
    let _ = futex::wake(&lock.lock, Flags::PRIVATE, u32::MAX >> 1);
}

/// Returns whether the lock is held, but by no thread of the process. An orphaned lock never changes, whereas a thread
/// soon releases its lock. So the lock is polled, with a call of `wait` before each poll, unless `is_alone` (no other
/// thread can be about to acquire it). Only if the lock did not change, calls `is_live_thread` with its owner. That
/// function asks the kernel, for which a seccomp filter may end the process.
fn is_orphaned(
    lock: &PthreadMutex,
    is_alone: bool,
    wait: impl Fn(),
    is_live_thread: impl FnOnce(u32) -> bool,
) -> bool {
    let owner =
        || (lock.lock.load(Ordering::Acquire) != 0).then(|| lock.owner.load(Ordering::Acquire));
    let Some(first) = owner() else {
        return false;
    };
    let polls = if is_alone { 0 } else { MAX_POLLS };
    for _ in 0..polls {
        wait();
        if owner() != Some(first) {
            return false;
        }
    }
    // Owner 0: locked by a thread that has not stored its id yet. If there is no other thread, it never will.
    match first {
        0 => is_alone,
        first => !is_live_thread(first),
    }
}

/// Borrows the loader's lock. `None` if [`find_and_store_loader_lock`] has not found it.
fn loader_lock() -> Option<&'static PthreadMutex> {
    // SAFETY: null, or in the loader's state, which stays mapped. glibc also changes these words atomically.
    unsafe { LOCK.load(Ordering::Acquire).as_ref() }
}

/// Returns the id of the calling thread, by locking a mutex in which the C library stores it. A seccomp filter may
/// forbid gettid(2), and end the process for it.
fn current_tid() -> u32 {
    let mut mutex = libc::PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    // SAFETY: pthread_mutex_lock(3) with an initialized mutex that no other thread uses.
    unsafe { libc::pthread_mutex_lock(&raw mut mutex) };
    // SAFETY: `PthreadMutex` has the first fields of the mutex, and no other thread changes them.
    let owner = unsafe {
        (*(&raw const mutex).cast::<PthreadMutex>())
            .owner
            .load(Ordering::Relaxed)
    };
    // SAFETY: pthread_mutex_unlock(3) of a mutex that this thread holds.
    unsafe { libc::pthread_mutex_unlock(&raw mut mutex) };
    owner
}

/// Returns whether this process has a thread with this id. True if that cannot be determined. Needs a system call,
/// because the C library does not export its list of threads. Of the calls that take a thread id, seccomp filters allow
/// tgkill(2) most often, because abort(3) needs it.
fn is_live_thread(thread: u32) -> bool {
    let process = std::process::id();
    // SAFETY: tgkill(2) with signal 0 sends no signal.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
    sent == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Returns the words of `_rtld_global`, the loader's state, which it exports for the C library. `None` if glibc does
/// not export that name, or if its size is unknown.
fn loader_state() -> Option<&'static [AtomicUsize]> {
    let start = libc_symbol(c"_rtld_global")?.as_ptr();
    let mut info = MaybeUninit::uninit();
    let mut symbol = ptr::null_mut();
    // SAFETY: dladdr1(3) fills both, or returns 0.
    let result = unsafe { dladdr1(start, info.as_mut_ptr(), &raw mut symbol, RTLD_DL_SYMENT) };
    // SAFETY: dladdr1(3) sets it to the entry of the symbol that contains `start`, or to null.
    let symbol = unsafe { symbol.cast::<libc::Elf64_Sym>().as_ref() };
    let size = symbol.filter(|_| result != 0)?.st_size as usize;
    // SAFETY: the symbol has the size of the loader's state, which is never unmapped and is aligned for pointers. The
    // loader writes it word by word, and each word is read atomically.
    Some(unsafe { slice::from_raw_parts(start.cast(), size / size_of::<usize>()) })
}

/// Returns the index of the second mutex in the only run of adjacent mutexes. In the loader's state, that is the lock
/// of its list. `None` if there is no run, or more than one.
fn second_mutex_of_run(words: &[AtomicUsize]) -> Option<usize> {
    let is_mutex = |index: usize| words.get(index..index + WORDS).is_some_and(is_mutex);
    let starts_run = |index: &usize| {
        let follows_mutex = index.checked_sub(WORDS).is_some_and(is_mutex);
        is_mutex(*index) && is_mutex(index + WORDS) && !follows_mutex
    };
    let mut runs = (0..words.len()).filter(starts_run);
    let first = runs.next()?;
    runs.next().is_none().then_some(first + WORDS)
}

/// Returns whether the [`WORDS`] words can be a recursive mutex, free or locked: its kind and its values are plausible,
/// and it is in no list. The lock word is 0 (free), 1 (locked) or 2 (locked, with waiting threads).
fn is_mutex(words: &[AtomicUsize]) -> bool {
    let value = |index: usize| words[index].load(Ordering::Relaxed);
    let halves = |index: usize| (value(index) & 0xffff_ffff, value(index) >> 32);
    let ((lock, depth), (_, users)) = (halves(0), halves(1));
    lock <= 2
        && depth <= MAX_DEPTH
        && users <= 1
        && value(2) == RECURSIVE
        && value(3) == 0
        && value(4) == 0
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;
    use crate::ForkGuard;

    /// Far longer than a child takes that waits for no other thread.
    const CHILD_TIMEOUT: Duration = Duration::from_secs(10);

    #[test]
    fn loader_lock_is_found() {
        drop(ForkGuard::acquire());
        assert!(loader_lock().is_some());
    }

    #[test]
    fn kernel_is_queried_only_for_lasting_owner() {
        const OWNER: u32 = 7;
        let check = |owner: u32,
                     is_alone: bool,
                     change: &dyn Fn(&PthreadMutex),
                     is_here: bool,
                     expected| {
            let lock = PthreadMutex {
                lock: AtomicU32::new(1),
                depth: AtomicU32::new(1),
                owner: AtomicU32::new(owner),
                users: AtomicU32::new(1),
            };
            let (waits, queried) = (Cell::new(0), Cell::new(None));
            let wait = || {
                waits.set(waits.get() + 1);
                change(&lock);
            };
            let query = |owner| {
                queried.set(Some(owner));
                is_here
            };
            let is_orphaned = is_orphaned(&lock, is_alone, wait, query);
            assert_eq!((is_orphaned, waits.get(), queried.get()), expected);
        };
        let released = |lock: &PthreadMutex| lock.lock.store(0, Ordering::Relaxed);
        let changes_owner = |lock: &PthreadMutex| lock.owner.store(OWNER + 1, Ordering::Relaxed);
        let stays = |_: &PthreadMutex| ();
        check(OWNER, false, &released, false, (false, 1, None));
        check(OWNER, false, &changes_owner, false, (false, 1, None));
        check(OWNER, false, &stays, true, (false, MAX_POLLS, Some(OWNER)));
        check(OWNER, false, &stays, false, (true, MAX_POLLS, Some(OWNER)));
        check(OWNER, true, &stays, false, (true, 0, Some(OWNER)));
        check(0, false, &stays, false, (false, MAX_POLLS, None));
        check(0, true, &stays, false, (true, 0, None));
    }

    /// Reads the list and stays there until `resume` receives.
    fn stay_in_list(reached: &mpsc::Sender<()>, resume: &mpsc::Receiver<()>) {
        type Ends<'a> = (&'a mpsc::Sender<()>, &'a mpsc::Receiver<()>);
        unsafe extern "C" fn stay(
            _: *mut libc::dl_phdr_info,
            _: usize,
            ends: *mut c_void,
        ) -> c_int {
            // SAFETY: `stay_in_list` passes its own `ends`.
            let (reached, resume) = unsafe { *ends.cast::<Ends<'_>>() };
            reached.send(()).unwrap();
            // It fails if the test failed and dropped the sender.
            let _ = resume.recv();
            1
        }
        let mut ends: Ends<'_> = (reached, resume);
        // SAFETY: dl_iterate_phdr(3): calls `stay` synchronously with the pointer passed here.
        unsafe { libc::dl_iterate_phdr(Some(stay), (&raw mut ends).cast()) };
    }

    /// Callback of `dl_iterate_phdr(3)` that ends the iteration at once.
    unsafe extern "C" fn nothing(_: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
        1
    }

    /// Returns whether a forked child that reads the list ends by itself. `before_reading` runs in the child first.
    fn ends_in_child(fork: unsafe extern "C" fn() -> libc::pid_t, before_reading: fn()) -> bool {
        let (reached, is_reached) = mpsc::channel();
        let (resume, resumed) = mpsc::channel();
        let reader = thread::spawn(move || stay_in_list(&reached, &resumed));
        is_reached.recv().unwrap();
        // SAFETY: fork(3): the child reads the list, which takes no other lock, and ends.
        let child = unsafe { fork() };
        if child == 0 {
            before_reading();
            // SAFETY: dl_iterate_phdr(3) with a function that does nothing.
            unsafe { libc::dl_iterate_phdr(Some(nothing), ptr::null_mut()) };
            // SAFETY: _exit(2) runs nothing of this process.
            unsafe { libc::_exit(0) };
        }
        let start = Instant::now();
        let mut status = -1;
        // SAFETY: waitpid(2) fills the status of a child of this process.
        while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
            if start.elapsed() > CHILD_TIMEOUT {
                // SAFETY: kill(2) of a child that was not waited for yet.
                unsafe { libc::kill(child, libc::SIGKILL) };
            }
            thread::yield_now();
        }
        resume.send(()).unwrap();
        reader.join().unwrap();
        status == 0
    }

    #[test]
    fn child_forked_during_read_can_read_list() {
        unsafe extern "C" {
            fn fork() -> libc::pid_t;
            fn _Fork() -> libc::pid_t;
        }
        drop(ForkGuard::acquire());
        assert!(ends_in_child(fork, || {}), "after fork");
        // _Fork runs no handlers, like a fork that was under way when they were registered.
        assert!(
            ends_in_child(_Fork, || drop(ForkGuard::acquire())),
            "after _Fork"
        );
    }
}
