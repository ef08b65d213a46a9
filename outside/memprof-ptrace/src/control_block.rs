//! Whether a thread's control block is its own and the C library's.
#![expect(unsafe_code, reason = "get_robust_list(2) has no wrapper")]

use std::io;
use std::ptr;

use nix::errno::Errno;

use crate::memory::Memory;

/// `struct pthread` of glibc 2.34 to 2.42, rounded up: the list of robust locks is in it.
const CONTROL_BLOCK: u64 = 4096;
/// `self` in `tcbhead_t`.
const SELF: u64 = 16;

/// Whether functions of the C library may be called by a thread: they find its variables by `fs_base`. A thread that
/// was made by clone(2) alone has that of its maker, or points to something else.
///
/// The kernel knows by `set_robust_list(2)` which block glibc made for the thread. The only thread of a process that was
/// made without glibc's fork(3) has none, and a copy of the block of its maker.
pub fn is_of_c_library(memory: &Memory, thread: u32, is_main: bool, control_block: u64) -> bool {
    let has_self = memory
        .word(control_block.wrapping_add(SELF))
        .is_ok_and(|this| this == control_block);
    has_self
        && robust_list(thread).is_ok_and(|list| match list {
            0 => is_main,
            list => (1..CONTROL_BLOCK).contains(&list.wrapping_sub(control_block)),
        })
}

/// The list of robust locks of a thread; 0 where it has none.
fn robust_list(thread: u32) -> io::Result<u64> {
    let (mut head, mut length) = (0_u64, 0_usize);
    let (head_at, length_at) = (ptr::from_mut(&mut head), ptr::from_mut(&mut length));
    // SAFETY: get_robust_list(2) writes a pointer and a size there, no more.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, thread, head_at, length_at) };
    Errno::result(result)?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_block_that_glibc_made_for_the_thread_is_its_own() {
        let identity = || {
            // SAFETY: a call without arguments.
            let tid = unsafe { libc::gettid() }.cast_unsigned();
            // The address of glibc's own block is its handle.
            // SAFETY: a call without arguments.
            (tid, unsafe { libc::pthread_self() })
        };
        let memory = Memory::open(std::process::id()).unwrap();
        let (tid, own) = identity();
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let (tell, other) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(identity()).unwrap();
            wait.recv().unwrap_err();
        });
        let (other_tid, other) = other.recv().unwrap();
        assert!(is_of_c_library(&memory, tid, false, own));
        assert!(is_of_c_library(&memory, other_tid, false, other));
        // Its maker's block; none; something else.
        assert!(!is_of_c_library(&memory, other_tid, false, own));
        assert!(!is_of_c_library(&memory, tid, false, 0));
        let word = 0_u64;
        assert!(!is_of_c_library(
            &memory,
            tid,
            false,
            ptr::from_ref(&word) as u64
        ));
        drop(release);
        thread.join().unwrap();
    }
}
