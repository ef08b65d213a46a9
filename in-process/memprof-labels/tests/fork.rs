//! A forked child does not wait for a thread of its parent that was adding its first label.
#![expect(unsafe_code, reason = "an allocator that stops a thread, and fork(2)")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Barrier;
use std::thread;

use memprof_labels::{Labels, label};

/// Timeout in seconds; far longer than a child takes that waits for no other thread.
const CHILD_TIMEOUT_SECONDS: u32 = 10;

thread_local! {
    static STOPS: Cell<bool> = const { Cell::new(false) };
}

static STOPPED: Barrier = Barrier::new(2);
static RESUMED: Barrier = Barrier::new(2);

/// The system's allocator, whose next allocation on a thread with `STOPS` set waits until the test resumes it.
struct StoppingAllocator;

#[global_allocator]
static ALLOCATOR: StoppingAllocator = StoppingAllocator;

// SAFETY: the system's allocator, to which all calls are forwarded, fulfils the contract of GlobalAlloc.
unsafe impl GlobalAlloc for StoppingAllocator {
    /// Allocates. On a thread with `STOPS` set, clears it and first waits until the test resumes the thread.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if STOPS.replace(false) {
            STOPPED.wait();
            RESUMED.wait();
        }
        // SAFETY: the caller's promises to GlobalAlloc::alloc are those that System.alloc needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller of GlobalAlloc::dealloc passes a block that `alloc` got from System.
        unsafe { System.dealloc(block, layout) }
    }
}

#[test]
fn child_forked_while_key_is_added_can_add_label() {
    let first = thread::spawn(|| {
        STOPS.set(true);
        let _label = label("first", "value");
        assert!(!STOPS.get(), "a new key takes memory");
    });
    STOPPED.wait();
    // SAFETY: fork(2): malloc of the C library can be used in the child, which ends below.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: alarm(2) ends a child that waits.
        unsafe { libc::alarm(CHILD_TIMEOUT_SECONDS) };
        let label = label("second", "value");
        let has_none = Labels::current() == Labels::new();
        drop(label);
        // SAFETY: _exit(2) runs nothing of this process.
        unsafe { libc::_exit(has_none.into()) };
    }
    let mut status = -1;
    // SAFETY: waitpid(2) fills in the status of a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    RESUMED.wait();
    first.join().unwrap();
    assert_eq!(status, 0, "exit status of the child");
}
