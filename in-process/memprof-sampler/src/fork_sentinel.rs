//! Whether this is the process that samples, without a system call: a word that the kernel makes 0 in every
//! forked child. A child of vfork(2) shares the word as it shares the heap, and is taken for its parent.
#![expect(unsafe_code, reason = "a mapping, and getpid(2)")]

use core::ptr;
use core::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use rustix::mm::Advice;

use crate::mapping;

/// What tells the process that entered (`ForkSentinel::adopt_process`) from its forked children, also those of `_Fork(3)`,
/// in which no handler of fork(2) runs.
pub(crate) struct ForkSentinel {
    /// 1 in this process, 0 in a child; null where the kernel cannot do that.
    mark: AtomicPtr<AtomicU64>,
    /// Compared where there is no mark.
    id: AtomicI32,
}

/// A page of x86-64 in words: advice concerns whole ones.
const PAGE: usize = 4096 / size_of::<AtomicU64>();

impl ForkSentinel {
    pub(crate) const fn new() -> Self {
        Self {
            mark: AtomicPtr::new(ptr::null_mut()),
            id: AtomicI32::new(0),
        }
    }

    /// It is this one from now on.
    pub(crate) fn adopt_process(&self) {
        self.id.store(id(), Relaxed);
        if self.mark.load(Acquire).is_null()
            && let Some(fresh) = map_mark()
            && self
                .mark
                .compare_exchange(ptr::null_mut(), fresh, AcqRel, Acquire)
                .is_err()
        {
            // SAFETY: nobody else has seen it; another thread's is in its place.
            unsafe { mapping::unmap(fresh, PAGE) };
        }
        if let Some(mark) = self.mark() {
            mark.store(1, Relaxed);
        }
    }

    /// Whether it is this one.
    #[inline(always)]
    pub(crate) fn is_current(&self) -> bool {
        match self.mark() {
            Some(mark) => mark.load(Relaxed) == 1,
            None => self.id.load(Relaxed) == id(),
        }
    }

    #[inline(always)]
    fn mark(&self) -> Option<&AtomicU64> {
        let mark = self.mark.load(Acquire);
        // SAFETY: null, or a mapping of `marks`, which is never unmapped; zeros are valid.
        unsafe { mark.as_ref() }
    }
}

/// Zeros that are zeros again in a forked child. None where the kernel has no `MADV_WIPEONFORK` (4.14).
fn map_mark() -> Option<*mut AtomicU64> {
    let marks = mapping::zeroed::<AtomicU64>(PAGE)?;
    // SAFETY: madvise(2): the whole of a mapping that nobody has seen.
    let advised = unsafe { rustix::mm::madvise(marks.cast(), 4096, Advice::LinuxWipeOnFork) };
    if advised.is_err() {
        // SAFETY: as above.
        unsafe { mapping::unmap(marks, PAGE) };
        return None;
    }
    Some(marks)
}

fn id() -> i32 {
    // SAFETY: getpid(2) reads a number.
    unsafe { libc::getpid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a child of `_Fork(3)`, in which no handler runs, says of itself.
    fn child_is_this(process: &ForkSentinel) -> bool {
        // SAFETY: fork(2): the child calls nothing but _exit(2).
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: _exit(2) takes a number.
            unsafe { libc::_exit(i32::from(process.is_current())) };
        }
        let mut status = 0;
        // SAFETY: waitpid(2): a child of this process, and room for a number.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status));
        libc::WEXITSTATUS(status) == 1
    }

    #[test]
    fn a_forked_child_is_another_process() {
        let marked = ForkSentinel::new();
        marked.adopt_process();
        assert!(marked.mark().is_some());
        let without_mark = ForkSentinel::new();
        without_mark.id.store(id(), Relaxed);
        for process in [marked, without_mark] {
            assert!(process.is_current());
            assert!(!child_is_this(&process));
            assert!(process.is_current(), "the child's page is its own");
        }
    }
}
