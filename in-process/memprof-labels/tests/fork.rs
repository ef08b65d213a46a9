//! A child that is forked while another thread gives its first label does not wait for that thread.
#![expect(unsafe_code, reason = "an allocator that stops a thread, and fork(2)")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Barrier;
use std::thread;

use memprof_labels::{Labels, label};

/// Seconds; longer than a child takes that does not wait for anybody.
const PATIENCE: u32 = 10;

thread_local! {
    static STOPS: Cell<bool> = const { Cell::new(false) };
}

static IS_INSIDE: Barrier = Barrier::new(2);
static GOES_ON: Barrier = Barrier::new(2);

/// The system's; a thread that asks for it stops in its next allocation until it is told to go on.
struct Stopping;

#[global_allocator]
static ALLOCATOR: Stopping = Stopping;

// SAFETY: the system's allocator does all of it.
unsafe impl GlobalAlloc for Stopping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if STOPS.replace(false) {
            IS_INSIDE.wait();
            GOES_ON.wait();
        }
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: promised by the caller; of `alloc`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[test]
fn a_child_labels_while_a_thread_of_its_parent_set_the_first_key() {
    let first = thread::spawn(|| {
        STOPS.set(true);
        let _label = label("first", "value");
        assert!(!STOPS.get(), "a new key takes memory");
    });
    IS_INSIDE.wait();
    // SAFETY: fork(2): the C library's malloc can be used in the child, which ends below.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: alarm(2) ends a child that waits.
        unsafe { libc::alarm(PATIENCE) };
        let label = label("second", "value");
        let has_none = Labels::current() == Labels::new();
        drop(label);
        // SAFETY: _exit(2) runs nothing of this process.
        unsafe { libc::_exit(has_none.into()) };
    }
    let mut status = -1;
    // SAFETY: waitpid(2) fills in the status of a child of ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    GOES_ON.wait();
    first.join().unwrap();
    assert_eq!(status, 0, "exit status of the child");
}
