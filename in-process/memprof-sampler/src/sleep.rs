//! Sleeping without the standard library.
#![expect(unsafe_code, reason = "a system call")]

/// Lets the calling thread sleep for a millisecond.
pub(crate) fn wait_a_millisecond() {
    let millisecond = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    // SAFETY: nanosleep(2) reads `millisecond`, and accepts null for the remaining time.
    unsafe { libc::nanosleep(&raw const millisecond, core::ptr::null_mut()) };
}
