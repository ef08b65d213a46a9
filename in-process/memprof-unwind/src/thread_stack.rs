//! Cache of the readable parts of the threads' own stacks, so that memory that was once checked up to the top is not
//! checked again.
//!
//! A thread's stack ends at its control block, to which `fs` points (ELF TLS for x86-64). The main thread's stack ends
//! at the data that the kernel put above it. While the thread runs, the memory between its stack pointer and that top
//! stays readable. Other stacks, those of coroutines and signal handlers, do not extend to the top without a gap.
//!
//! A known limit: if a thread ended, and another thread has its control block at the same address but a smaller stack,
//! the memory below that stack counts as readable until [`clear_known_stacks`]. A walk would read unmapped memory only
//! if it left a coroutine's stack exactly there.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::stack_memory::{PAGE, is_readable, page_of};
use crate::thread::Thread;

/// One word per thread. Threads with the same index share one.
static KNOWN: [AtomicU64; 1 << INDEX_BITS] = [const { AtomicU64::new(0) }; 1 << INDEX_BITS];
const INDEX_BITS: u32 = 9;

/// Number of low bits of a word, which hold the number of readable pages up to the top. The bits above hold the
/// thread's id.
const COUNT_BITS: u32 = u64::BITS - Thread::ID_BITS;

/// End of the topmost page of the main thread's stack; 0 before [`set_main_stack_top`].
static MAIN_STACK_TOP: AtomicUsize = AtomicUsize::new(0);

/// Maximum size of a stack, in bytes.
const MAX_STACK_SIZE: usize = 1 << 30;
/// Maximum number of bytes between the outermost frame and the top: variables of the thread, or the environment.
const MAX_BYTES_ABOVE: usize = 32 * PAGE;
/// Maximum number of bytes that one sample checks.
const MAX_BYTES_PER_SAMPLE: usize = 4096 * PAGE;

/// Sets the top of the main thread's stack. `address` is in its topmost page, for example `AT_RANDOM`.
pub(crate) fn set_main_stack_top(address: usize) {
    MAIN_STACK_TOP.store(page_of(address) + PAGE, Relaxed);
}

/// Forgets, for all threads, which stack memory is known to be readable, because threads may have ended.
pub(crate) fn clear_known_stacks() {
    for word in &KNOWN {
        word.store(0, Relaxed);
    }
}

/// The calling thread's own stack, if it is running on it.
#[derive(Debug)]
pub(crate) struct ThreadStack {
    thread: Thread,
    word: &'static AtomicU64,
    /// Addresses that are known to be readable. May be empty.
    pub(crate) known: Range<usize>,
}

impl ThreadStack {
    /// Describes the stack on which the calling thread, `thread`, runs, and in which `sp` is an address. The part known
    /// to be readable is empty if none was recorded, or if `sp` is not in the thread's own stack, as on a signal stack.
    #[inline(always)]
    pub(crate) fn for_thread(sp: usize, thread: Thread) -> Self {
        Self::with_word(sp, thread, &KNOWN[thread.index(INDEX_BITS)])
    }

    /// Returns the calling thread's stack, which contains `sp`. `word` has a thread id and a number of pages. If the id
    /// is the thread's, that many pages below the top of the stack are known to be readable.
    #[inline(always)]
    fn with_word(sp: usize, thread: Thread, word: &'static AtomicU64) -> Self {
        let top = stack_top(sp, thread);
        let bits = word.load(Relaxed);
        let pages = if bits >> COUNT_BITS == thread.id() {
            bits as usize & ((1 << COUNT_BITS) - 1)
        } else {
            0
        };
        Self {
            thread,
            word,
            known: top.wrapping_sub(pages * PAGE)..top,
        }
    }

    /// Checks whether every page from `sp` to the top of the stack is readable, and stores the number of these pages if
    /// so. `reached` is the end of the memory that a walk has read. Does nothing if that is not near the top, if the
    /// pages are already known to be readable, or if more than [`MAX_BYTES_PER_SAMPLE`] would have to be checked.
    #[cold]
    #[inline(never)]
    pub(crate) fn save_readable_pages(&self, sp: usize, reached: usize) {
        let Range { start, end: top } = self.known;
        let is_near_top = top
            .checked_sub(reached)
            .is_some_and(|above| above <= MAX_BYTES_ABOVE);
        let unknown = page_of(sp)..start;
        if !is_near_top || unknown.is_empty() || unknown.len() > MAX_BYTES_PER_SAMPLE {
            return;
        }
        if unknown.step_by(PAGE).all(is_readable) {
            let pages = ((top - page_of(sp)) / PAGE) as u64;
            let bits = self.thread.id() << COUNT_BITS | pages;
            self.word.store(bits, Relaxed);
        }
    }
}

/// Returns the end of the topmost page of the stack that contains `sp`, if that is the thread's own stack or the main
/// thread's. Otherwise 0.
#[inline(always)]
fn stack_top(sp: usize, thread: Thread) -> usize {
    let thread = page_of(thread.control_block) + PAGE;
    let main = MAIN_STACK_TOP.load(Relaxed);
    let reaches = |top: usize| top.wrapping_sub(sp) < MAX_STACK_SIZE;
    match (reaches(thread), reaches(main)) {
        (true, _) => thread,
        (false, true) => main,
        (false, false) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_read_to_top_is_known() {
        static WORD: AtomicU64 = AtomicU64::new(0);
        let local = 0_usize;
        let sp = &raw const local as usize;
        let stack_of = |thread| ThreadStack::with_word(sp, thread, &WORD);
        let own = stack_of(Thread::current());
        assert!(own.known.is_empty());
        own.save_readable_pages(sp, own.known.end - PAGE);
        let own = stack_of(Thread::current());
        assert!(own.known.contains(&sp));
        assert!(own.known.contains(&Thread::current().control_block));
        // Another thread has an entry of its own.
        let control_block = Thread::current().control_block + 64;
        assert!(stack_of(Thread { control_block }).known.is_empty());
    }

    #[test]
    fn walk_that_ended_far_from_top_saves_nothing() {
        static WORD: AtomicU64 = AtomicU64::new(0);
        let local = 0_usize;
        let sp = &raw const local as usize;
        let own = ThreadStack::with_word(sp, Thread::current(), &WORD);
        own.save_readable_pages(sp, own.known.end - MAX_BYTES_ABOVE - PAGE);
        assert_eq!(WORD.load(Relaxed), 0);
    }
}
