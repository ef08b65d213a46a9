//! Reads and exchanges one word of an object's data that holds a function's address, while the program may use it.
#![expect(unsafe_code, reason = "words of other objects, and system calls")]

use core::ffi::c_void;
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use super::object::ElfObject;

const PAGE_SIZE: usize = 4096;

/// Returns the address that a slot holds, by an atomic load.
pub(super) fn slot_value(word: usize) -> usize {
    as_atomic(word).load(Acquire)
}

/// Replaces a word's value `from` by `to`. If the loader made the word's page read-only, the page is writable during
/// the exchange. Returns false, with nothing changed, if the word has another value or its page cannot be written.
pub(super) fn exchange_word(object: &ElfObject, word: usize, from: usize, to: usize) -> bool {
    if slot_value(word) != from {
        return false;
    }
    let page = (word & !(PAGE_SIZE - 1)) as *mut c_void;
    let protect = |protection| {
        // SAFETY: mprotect(2) on a page of slots. Other threads only read them, which stays allowed.
        let failed = unsafe { libc::mprotect(page, PAGE_SIZE, protection) };
        failed == 0
    };
    let is_protected = object.is_protected(word);
    if is_protected && !protect(libc::PROT_READ | libc::PROT_WRITE) {
        return false;
    }
    if !is_protected && !can_write(word) {
        return false;
    }
    // A compare-and-exchange, because the program may store another address at the same moment; that store must not be
    // lost.
    let exchanged = as_atomic(word).compare_exchange(from, to, AcqRel, Relaxed);
    // If this mprotect(2) fails, the page stays writable, which is harmless.
    let _ = is_protected && protect(libc::PROT_READ);
    exchanged.is_ok()
}

/// Returns whether a word can be written; the program may have made its data read-only. `FUTEX_WAKE_OP` of futex(2)
/// tests this: the kernel atomically adds 0 to the word, and fails with EFAULT if the word is read-only. It wakes no
/// thread.
fn can_write(word: usize) -> bool {
    const ADD_NOTHING: u32 = (libc::FUTEX_OP_ADD as u32) << 28;
    let (nothing, wake_none) = (0_u32, 0_usize);
    // SAFETY: futex(2): the first address is a variable of this function, the second one an aligned word whose value
    // stays the same.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            &raw const nothing,
            libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG,
            wake_none,
            wake_none,
            word,
            ADD_NOTHING,
        )
    };
    result >= 0
}

/// Borrows the word at an address in a loaded object's data. The caller holds the loader's lock.
fn as_atomic(word: usize) -> &'static AtomicUsize {
    // SAFETY: a word of a loaded object is readable and aligned: gABI gives its address. The caller holds the
    // loader's lock, so the object stays loaded.
    unsafe { &*(word as *const AtomicUsize) }
}

#[cfg(test)]
mod tests {
    use core::ptr;

    use super::*;

    #[test]
    fn read_only_page_cannot_be_written() {
        // SAFETY: mmap(2): a new mapping at an address that the kernel chooses.
        let page = unsafe {
            libc::mmap(
                ptr::null_mut(),
                PAGE_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED);
        let word = page as usize + 64;
        as_atomic(word).store(7, Relaxed);
        assert!(can_write(word));
        // SAFETY: mprotect(2): the mapping of this test.
        let protected = unsafe { libc::mprotect(page, PAGE_SIZE, libc::PROT_READ) };
        assert_eq!(protected, 0);
        assert!(!can_write(word));
        assert_eq!(slot_value(word), 7);
    }
}
