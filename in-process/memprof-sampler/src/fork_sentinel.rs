//! Detects without a system call whether this is the sampling process: by a word that the kernel zeroes in every forked
//! child (`MADV_WIPEONFORK`). A child of vfork(2) shares this word and the heap with its parent, and counts as the
//! parent.
#![expect(unsafe_code, reason = "a mapping, and getpid(2)")]

use core::ptr;
use core::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use rustix::mm::Advice;

use crate::mapping;

/// Distinguishes the process that called [`Self::adopt_process`] from its forked children. This includes children of
/// `_Fork(3)`, in which no fork handler runs.
pub(crate) struct ForkSentinel {
    /// Points to 1 in this process, and to 0 in a child. Null on kernels without `MADV_WIPEONFORK`.
    mark: AtomicPtr<AtomicU64>,
    /// Id of the sampling process, compared if there is no mark.
    id: AtomicI32,
}

/// Words of an x86-64 page: madvise(2) works on whole pages.
const PAGE_WORDS: usize = 4096 / size_of::<AtomicU64>();

impl ForkSentinel {
    pub(crate) const fn new() -> Self {
        Self {
            mark: AtomicPtr::new(ptr::null_mut()),
            id: AtomicI32::new(0),
        }
    }

    /// Makes the calling process the sampling process; a forked child calls this to take over from its parent. The
    /// first call maps the page of the mark, where the kernel supports it.
    pub(crate) fn adopt_process(&self) {
        self.id.store(current_pid(), Relaxed);
        if self.mark.load(Acquire).is_null()
            && let Some(fresh) = map_mark()
            && self
                .mark
                .compare_exchange(ptr::null_mut(), fresh, AcqRel, Acquire)
                .is_err()
        {
            // SAFETY: only this thread has the address of `fresh`, because another thread's mapping was stored.
            unsafe { mapping::unmap(fresh, PAGE_WORDS) };
        }
        if let Some(mark) = self.mark_word() {
            mark.store(1, Relaxed);
        }
    }

    /// Returns whether the calling process is the sampling process, by the mark, the word that the kernel zeroes in
    /// forked children. Without a mark, the process id decides, which costs a system call.
    #[inline(always)]
    pub(crate) fn is_sampling_process(&self) -> bool {
        match self.mark_word() {
            Some(mark) => mark.load(Relaxed) == 1,
            None => self.id.load(Relaxed) == current_pid(),
        }
    }

    /// Returns the word that the kernel zeroes in forked children. `None` before [`Self::adopt_process`], or if the
    /// kernel lacks `MADV_WIPEONFORK` or had no memory.
    #[inline(always)]
    fn mark_word(&self) -> Option<&AtomicU64> {
        let mark = self.mark.load(Acquire);
        // SAFETY: null, or a mapping of `map_mark`, which is never unmapped and whose zeros are valid.
        unsafe { mark.as_ref() }
    }
}

/// Maps a page of zeros that the kernel zeroes again in each forked child. `None` if the kernel is older than 4.14 and
/// lacks `MADV_WIPEONFORK`, or has no memory.
fn map_mark() -> Option<*mut AtomicU64> {
    let mark = mapping::map_zeros::<AtomicU64>(PAGE_WORDS)?;
    // SAFETY: madvise(2) on a whole mapping whose address only this thread has.
    let advised = unsafe { rustix::mm::madvise(mark.cast(), 4096, Advice::LinuxWipeOnFork) };
    if advised.is_err() {
        // SAFETY: only this thread has the mapping's address.
        unsafe { mapping::unmap(mark, PAGE_WORDS) };
        return None;
    }
    Some(mark)
}

/// Returns the id of the calling process, by getpid(2).
fn current_pid() -> i32 {
    // SAFETY: getpid(2) reads a number.
    unsafe { libc::getpid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a forked child counts itself as the process that samples. No handler of [`ForkSentinel`] runs in it.
    fn child_is_current(process: &ForkSentinel) -> bool {
        // SAFETY: fork(2): the child calls nothing but _exit(2).
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: _exit(2) takes a number.
            unsafe { libc::_exit(i32::from(process.is_sampling_process())) };
        }
        let mut status = 0;
        // SAFETY: waitpid(2): a child of this process, and room for a number.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status));
        libc::WEXITSTATUS(status) == 1
    }

    #[test]
    fn forked_child_is_not_current() {
        let marked = ForkSentinel::new();
        marked.adopt_process();
        assert!(marked.mark_word().is_some());
        let without_mark = ForkSentinel::new();
        without_mark.id.store(current_pid(), Relaxed);
        for process in [marked, without_mark] {
            assert!(process.is_sampling_process());
            assert!(!child_is_current(&process));
            assert!(process.is_sampling_process(), "the child's page is its own");
        }
    }
}
