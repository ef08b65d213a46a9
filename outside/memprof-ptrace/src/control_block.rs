//! Check that a thread's control block belongs to the thread and to glibc.
#![expect(unsafe_code, reason = "get_robust_list(2) has no wrapper")]

use std::io;
use std::ptr;

use nix::errno::Errno;

use crate::memory::Memory;

/// Upper bound of the size of `struct pthread` in glibc 2.34 to 2.42, in bytes. It contains the list of robust locks.
const MAX_CONTROL_BLOCK_SIZE: u64 = 4096;
/// Offset of `self` in `tcbhead_t`.
const SELF_OFFSET: u64 = 16;

/// Returns whether a thread may call functions of the C library, which find the thread's variables by its `fs_base`.
/// `control_block` is this register. It must be the address of a block that glibc allocated for this thread: after
/// clone(2) alone, it is the address of the creator's block or of something else.
///
/// The block is this thread's if it contains its own address and the thread's list of robust locks
/// (`set_robust_list(2)`). A main thread without such a list may call, too: it belongs to a process that was created
/// without glibc's fork(3), and has a copy of its creator's block. False if the memory cannot be read.
pub fn can_call_glibc(memory: &Memory, thread: u32, is_main: bool, control_block: u64) -> bool {
    let has_self = memory
        .read_u64(control_block.wrapping_add(SELF_OFFSET))
        .is_ok_and(|this| this == control_block);
    has_self
        && robust_list_address(thread).is_ok_and(|list| match list {
            0 => is_main,
            list => (1..MAX_CONTROL_BLOCK_SIZE).contains(&list.wrapping_sub(control_block)),
        })
}

/// Reads the address of a thread's list of robust locks (`get_robust_list(2)`); 0 if it has none.
///
/// # Errors
/// The thread has ended, or this user may not trace it.
pub fn robust_list_address(thread: u32) -> io::Result<u64> {
    let (mut head, mut length) = (0_u64, 0_usize);
    let (head_out, length_out) = (ptr::from_mut(&mut head), ptr::from_mut(&mut length));
    // SAFETY: get_robust_list(2) writes one pointer and one size, which both locals hold.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, thread, head_out, length_out) };
    Errno::result(result)?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_block_of_another_thread_is_rejected() {
        let identity = || {
            // SAFETY: gettid(2) takes no arguments.
            let tid = unsafe { libc::gettid() }.cast_unsigned();
            // The address of glibc's control block is the thread's pthread_t.
            // SAFETY: pthread_self(3) takes no arguments.
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
        assert!(can_call_glibc(&memory, tid, false, own));
        assert!(can_call_glibc(&memory, other_tid, false, other));
        // The block of the creator, no block, and another address.
        assert!(!can_call_glibc(&memory, other_tid, false, own));
        assert!(!can_call_glibc(&memory, tid, false, 0));
        let word = 0_u64;
        assert!(!can_call_glibc(
            &memory,
            tid,
            false,
            ptr::from_ref(&word) as u64
        ));
        drop(release);
        thread.join().unwrap();
    }
}
