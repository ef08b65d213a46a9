//! The lock of the loader's list, in a forked child.
//!
//! fork(2) makes the loader's locks anew in the child, but for the one under which its list is read and changed
//! (glibc 2.36): held by another thread of the parent at that moment, it is held in the child for ever. The
//! loader's locks lie side by side in what it exports as `_rtld_global`; so this one is found there, and given
//! back where its owner is no thread of the process.
#![expect(unsafe_code, reason = "a lock of the loader's")]

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

/// `pthread_mutex_t` of x86-64, in words: lock and depth, owner and users, kind and spins, and a list.
const WORDS: usize = 5;
/// The kind `PTHREAD_MUTEX_RECURSIVE`.
const RECURSIVE: usize = 1;
/// Looks at what another thread holds: 100 ms in all, far longer than reading or changing the list, or a fork, takes.
pub(crate) const LOOKS: u32 = 2000;
pub(crate) const BETWEEN_LOOKS: Duration = Duration::from_micros(50);
/// Deeper than the loader calls itself.
const DEEPEST: usize = 64;
/// dlfcn.h.
const RTLD_DL_SYMENT: c_int = 1;

unsafe extern "C" {
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: c_int,
    ) -> c_int;
}

/// Of the list; null where it was not found.
static LOCK: AtomicPtr<PthreadMutex> = AtomicPtr::new(ptr::null_mut());

/// The first words of `pthread_mutex_t`.
#[repr(C)]
struct PthreadMutex {
    lock: AtomicU32,
    depth: AtomicU32,
    owner: AtomicU32,
    users: AtomicU32,
}

/// Looks for it. Takes no lock that a child may find held, and allocates nothing.
pub(crate) fn find_loader_lock() {
    if !cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        return;
    }
    if let Some(words) = loader_state()
        && let Some(at) = second_mutex_of_run(words)
    {
        LOCK.store(
            ptr::from_ref(&words[at]).cast_mut().cast(),
            Ordering::Release,
        );
    }
}

/// Forgets it unless it is the one that is held while the list is read.
pub(crate) fn verify_loader_lock() {
    // SAFETY: dl_iterate_phdr(3): calls `compare` synchronously.
    unsafe { libc::dl_iterate_phdr(Some(compare), ptr::null_mut()) };
}

unsafe extern "C" fn compare(_: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    if lock().is_some_and(|lock| lock.owner.load(Ordering::Relaxed) != current_tid()) {
        LOCK.store(ptr::null_mut(), Ordering::Release);
    }
    1
}

/// Gives it back where nobody of this process has it. `is_alone`: no other thread of the process is about to take
/// it just now.
pub(crate) fn release_orphaned(is_alone: bool) {
    let wait = || thread::sleep(BETWEEN_LOOKS);
    let Some(lock) = lock().filter(|lock| is_orphaned(lock, is_alone, wait, is_live_thread)) else {
        return;
    };
    for word in [&lock.depth, &lock.owner, &lock.users] {
        word.store(0, Ordering::Relaxed);
    }
    lock.lock.store(0, Ordering::Release);
    // It fails for addresses only that are none.
    let _ = futex::wake(&lock.lock, Flags::PRIVATE, u32::MAX >> 1);
}

/// A lock that is lost stays as it is, and threads give theirs back soon: so the kernel is asked about the owner only
/// of one that stays for long. A seccomp filter may end the process for the question.
fn is_orphaned(
    lock: &PthreadMutex,
    is_alone: bool,
    wait: impl Fn(),
    is_thread_here: impl FnOnce(u32) -> bool,
) -> bool {
    let owner =
        || (lock.lock.load(Ordering::Acquire) != 0).then(|| lock.owner.load(Ordering::Acquire));
    let Some(first) = owner() else {
        return false;
    };
    let looks = if is_alone { 0 } else { LOOKS };
    for _ in 0..looks {
        wait();
        if owner() != Some(first) {
            return false;
        }
    }
    match first {
        0 => is_alone,
        first => !is_thread_here(first),
    }
}

fn lock() -> Option<&'static PthreadMutex> {
    // SAFETY: null, or in the loader's state, which stays; everybody changes these words atomically.
    unsafe { LOCK.load(Ordering::Acquire).as_ref() }
}

/// The thread that runs this, as the C library writes it into a mutex: gettid(2) may be forbidden, and end the
/// process.
fn current_tid() -> u32 {
    let mut mutex = libc::PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    // SAFETY: pthread_mutex_lock(3) with an initialized mutex that nobody else knows.
    unsafe { libc::pthread_mutex_lock(&raw mut mutex) };
    // SAFETY: `PthreadMutex` is its first words; nobody changes them while it is held.
    let owner = unsafe {
        (*(&raw const mutex).cast::<PthreadMutex>())
            .owner
            .load(Ordering::Relaxed)
    };
    // SAFETY: pthread_mutex_unlock(3) of the mutex that this thread holds.
    unsafe { libc::pthread_mutex_unlock(&raw mut mutex) };
    owner
}

/// Where it cannot be told, it is one. No way without a system call is known: the C library's list of its threads has no
/// place that it tells, and filters allow other calls that take a thread's id more rarely than tgkill(2), which
/// abort(3) needs.
fn is_live_thread(thread: u32) -> bool {
    let process = std::process::id();
    // SAFETY: tgkill(2): no signal is sent.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
    sent == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// What the loader exports for the C library.
fn loader_state() -> Option<&'static [AtomicUsize]> {
    let start = libc_symbol(c"_rtld_global")?.as_ptr();
    let mut info = MaybeUninit::uninit();
    let mut symbol = ptr::null_mut();
    // SAFETY: dladdr1(3): fills both, or returns 0.
    let found = unsafe { dladdr1(start, info.as_mut_ptr(), &raw mut symbol, RTLD_DL_SYMENT) };
    // SAFETY: dladdr1(3): the symbol that `start` is in, or null.
    let symbol = unsafe { symbol.cast::<libc::Elf64_Sym>().as_ref() };
    let size = symbol.filter(|_| found != 0)?.st_size as usize;
    // SAFETY: so large is what lies there, for the process's life, and aligned for pointers, of which it is full. Words
    // that the loader writes are read one by one.
    Some(unsafe { slice::from_raw_parts(start.cast(), size / size_of::<usize>()) })
}

/// Where the second mutex of the only run of mutexes is.
fn second_mutex_of_run(words: &[AtomicUsize]) -> Option<usize> {
    let is_mutex = |at: usize| words.get(at..at + WORDS).is_some_and(is_mutex);
    let begins = |at: &usize| {
        let goes_on = at.checked_sub(WORDS).is_some_and(is_mutex);
        is_mutex(*at) && is_mutex(at + WORDS) && !goes_on
    };
    let mut runs = (0..words.len()).filter(begins);
    let first = runs.next()?;
    runs.next().is_none().then_some(first + WORDS)
}

/// Whether it may be a recursive mutex, free or held.
fn is_mutex(words: &[AtomicUsize]) -> bool {
    let value = |at: usize| words[at].load(Ordering::Relaxed);
    let halves = |at: usize| (value(at) & 0xffff_ffff, value(at) >> 32);
    let ((lock, depth), (_, users)) = (halves(0), halves(1));
    lock <= 2
        && depth <= DEEPEST
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

    /// Longer than a child takes that does not wait for anybody.
    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn the_lock_is_the_one_that_is_held_while_the_list_is_read() {
        drop(ForkGuard::acquire());
        assert!(lock().is_some());
    }

    #[test]
    fn the_kernel_is_asked_about_owners_only_that_stay() {
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
            let (waits, asked) = (Cell::new(0), Cell::new(None));
            let wait = || {
                waits.set(waits.get() + 1);
                change(&lock);
            };
            let ask = |owner| {
                asked.set(Some(owner));
                is_here
            };
            let is_lost = is_orphaned(&lock, is_alone, wait, ask);
            assert_eq!((is_lost, waits.get(), asked.get()), expected);
        };
        let given_back = |lock: &PthreadMutex| lock.lock.store(0, Ordering::Relaxed);
        let taken_over = |lock: &PthreadMutex| lock.owner.store(OWNER + 1, Ordering::Relaxed);
        let stays = |_: &PthreadMutex| ();
        check(OWNER, false, &given_back, false, (false, 1, None));
        check(OWNER, false, &taken_over, false, (false, 1, None));
        check(OWNER, false, &stays, true, (false, LOOKS, Some(OWNER)));
        check(OWNER, false, &stays, false, (true, LOOKS, Some(OWNER)));
        check(OWNER, true, &stays, false, (true, 0, Some(OWNER)));
        check(0, false, &stays, false, (false, LOOKS, None));
        check(0, true, &stays, false, (true, 0, None));
    }

    /// Reads the list and stays there until it is told to go on.
    fn stay_in_list(inside: &mpsc::Sender<()>, go_on: &mpsc::Receiver<()>) {
        type Ends<'a> = (&'a mpsc::Sender<()>, &'a mpsc::Receiver<()>);
        unsafe extern "C" fn stay(
            _: *mut libc::dl_phdr_info,
            _: usize,
            ends: *mut c_void,
        ) -> c_int {
            // SAFETY: `stay_in_list` passes its own.
            let (inside, go_on) = unsafe { *ends.cast::<Ends<'_>>() };
            inside.send(()).unwrap();
            // Also where the test failed, and dropped the other end.
            let _ = go_on.recv();
            1
        }
        let mut ends: Ends<'_> = (inside, go_on);
        // SAFETY: dl_iterate_phdr(3): calls `stay` synchronously with the pointer passed here.
        unsafe { libc::dl_iterate_phdr(Some(stay), (&raw mut ends).cast()) };
    }

    unsafe extern "C" fn nothing(_: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
        1
    }

    /// Whether a child that reads the list comes to an end; `fork` makes it.
    fn child_ends(fork: unsafe extern "C" fn() -> libc::pid_t, reads: fn()) -> bool {
        let (inside, is_inside) = mpsc::channel();
        let (goes_on, go_on) = mpsc::channel();
        let reader = thread::spawn(move || stay_in_list(&inside, &go_on));
        is_inside.recv().unwrap();
        // SAFETY: fork(3): the child reads the list, which takes no other lock, and ends.
        let child = unsafe { fork() };
        if child == 0 {
            reads();
            // SAFETY: dl_iterate_phdr(3) with a function that does nothing.
            unsafe { libc::dl_iterate_phdr(Some(nothing), ptr::null_mut()) };
            // SAFETY: _exit(2) runs nothing of this process.
            unsafe { libc::_exit(0) };
        }
        let begun = Instant::now();
        let mut status = -1;
        // SAFETY: waitpid(2) fills the status of a child of ours.
        while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
            if begun.elapsed() > PATIENCE {
                // SAFETY: kill(2) of a child that was not waited for yet.
                unsafe { libc::kill(child, libc::SIGKILL) };
            }
            thread::yield_now();
        }
        goes_on.send(()).unwrap();
        reader.join().unwrap();
        status == 0
    }

    #[test]
    fn a_child_reads_the_list_that_another_thread_read_at_the_fork() {
        unsafe extern "C" {
            fn fork() -> libc::pid_t;
            fn _Fork() -> libc::pid_t;
        }
        drop(ForkGuard::acquire());
        assert!(child_ends(fork, || {}), "after fork");
        // It runs no handlers, like a fork that was under way when they were registered.
        assert!(
            child_ends(_Fork, || drop(ForkGuard::acquire())),
            "after _Fork"
        );
    }
}
