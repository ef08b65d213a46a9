//! Runs code under the loader's lock.
//!
//! `dl_iterate_phdr(3)` alone would show objects that are loaded but not yet relocated. dlsym(3) holds the lock that
//! dlopen(3) and dlclose(3) acquire, and calls the resolver of an indirect function (IFUNC) while it holds it.
#![expect(unsafe_code, reason = "an indirect function, and dlsym")]

use core::arch::naked_asm;
use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};

use crate::thread_pointer::thread_pointer;

/// Name of the indirect function below.
const RESOLVER_NAME: &CStr = c"memprof_loader_is_locked";

/// Job that the resolver runs in the thread that set it; null if there is none.
static PENDING_JOB: AtomicPtr<LockedJob<'static>> = AtomicPtr::new(ptr::null_mut());
/// Thread pointer of the thread that set the job; 0 if there is none.
static JOB_THREAD: AtomicUsize = AtomicUsize::new(0);

/// Work to run under the loader's lock.
struct LockedJob<'a> {
    work: &'a mut dyn FnMut(),
    is_done: bool,
}

/// Runs `work` while no other thread loads, relocates or unloads an object. To do this, it looks up [`RESOLVER_NAME`]
/// with dlsym(3), which calls this library's IFUNC resolver with the loader's lock held; the resolver runs `work`.
/// Returns false if `work` did not run: if this library is loaded twice, dlsym finds the other copy's resolver. `work`
/// must not allocate. Only one thread at a time may call this function.
pub(super) fn with_loader_locked(work: &mut dyn FnMut()) -> bool {
    let mut job = LockedJob {
        work,
        is_done: false,
    };
    JOB_THREAD.store(thread_pointer(), SeqCst);
    PENDING_JOB.store((&raw mut job).cast(), SeqCst);
    // SAFETY: dlsym(3) with a NUL-terminated name, searched in all objects.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, RESOLVER_NAME.as_ptr()) };
    PENDING_JOB.store(ptr::null_mut(), SeqCst);
    JOB_THREAD.store(0, SeqCst);
    job.is_done
}

/// Indirect function (IFUNC), exported so that dlsym(3) finds it. When it does, the loader calls this code as the
/// function's resolver. The code jumps to [`run_job_as_resolver`]. It is in assembly, because the directive `.type` is
/// the only way to make the symbol an IFUNC.
///
/// # Safety
/// Only the loader calls it.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn memprof_loader_is_locked() -> *const c_void {
    naked_asm!(
        ".type memprof_loader_is_locked, @gnu_indirect_function",
        "jmp {resolve}",
        resolve = sym run_job_as_resolver,
    )
}

/// Runs the job that [`with_loader_locked`] has set on this thread, and marks it as done. The loader calls this
/// resolver of an indirect function with its own lock held, so the job runs under that lock. Runs nothing on a thread
/// that has no job. Returns the address of [`do_nothing`], because a resolver must return a function.
extern "C" fn run_job_as_resolver() -> *const c_void {
    if JOB_THREAD.load(SeqCst) == thread_pointer() {
        let job = PENDING_JOB.swap(ptr::null_mut(), SeqCst);
        // SAFETY: null, or the job of this thread, which waits in `with_loader_locked`.
        if let Some(job) = unsafe { job.as_mut() } {
            (job.work)();
            job.is_done = true;
        }
    }
    do_nothing as *const () as *const c_void
}

/// Function that the resolver returns as the definition of the name. It is never called.
extern "C" fn do_nothing() {}
