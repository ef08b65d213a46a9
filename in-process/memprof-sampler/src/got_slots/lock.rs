//! Work under the loader's lock.
//!
//! `dl_iterate_phdr(3)` alone shows objects that are loaded but not yet relocated. dlsym(3) holds the
//! lock that dlopen(3) and dlclose(3) take, and runs the resolver of an indirect function meanwhile.
#![expect(unsafe_code, reason = "an indirect function, and dlsym")]

use core::arch::naked_asm;
use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};

use crate::thread_pointer::thread_pointer;

const NAME: &CStr = c"memprof_loader_is_locked";

/// What the resolver runs, in the thread that asks for it.
static JOB: AtomicPtr<LockedJob<'static>> = AtomicPtr::new(ptr::null_mut());
static THREAD: AtomicUsize = AtomicUsize::new(0);

struct LockedJob<'a> {
    work: &'a mut dyn FnMut(),
    is_done: bool,
}

/// Runs `work` while nobody loads, relocates or unloads. False where that cannot be had: this
/// library was loaded twice, say. It must not allocate, and only one thread may be here.
pub(super) fn with_loader_locked(work: &mut dyn FnMut()) -> bool {
    let mut job = LockedJob {
        work,
        is_done: false,
    };
    THREAD.store(thread_pointer(), SeqCst);
    JOB.store((&raw mut job).cast(), SeqCst);
    // SAFETY: dlsym(3): a NUL-terminated name, looked up from this library on.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, NAME.as_ptr()) };
    JOB.store(ptr::null_mut(), SeqCst);
    THREAD.store(0, SeqCst);
    job.is_done
}

/// An indirect function: looking it up runs [`resolve`].
///
/// # Safety
/// Only the loader calls it.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn memprof_loader_is_locked() -> *const c_void {
    naked_asm!(
        ".type memprof_loader_is_locked, @gnu_indirect_function",
        "jmp {resolve}",
        resolve = sym resolve,
    )
}

extern "C" fn resolve() -> *const c_void {
    if THREAD.load(SeqCst) == thread_pointer() {
        let job = JOB.swap(ptr::null_mut(), SeqCst);
        // SAFETY: null, or the job of this very thread, which waits in `with_loader_locked`.
        if let Some(job) = unsafe { job.as_mut() } {
            (job.work)();
            job.is_done = true;
        }
    }
    nothing as *const () as *const c_void
}

extern "C" fn nothing() {}
