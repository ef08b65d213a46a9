//! The threads' own stacks: once read to the top, they need not be asked for again.
//!
//! A thread's stack ends at its control block, to which `fs` points (ELF TLS for x86-64), the main
//! thread's at what the kernel left there. While the thread lives, what lies between its stack
//! pointer and that top stays readable. Other stacks, of coroutines and signal handlers, do not
//! reach up to it without a gap.
//!
//! A limit: when a thread ended, and another one has its control block at the same address but a
//! smaller stack, what lay below is taken for known until [`clear`]. Only a walk that leaves a
//! coroutine's stack in that very place at its top would read what is not there.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::stack_memory::{PAGE, is_readable, page_of};
use crate::thread::Thread;

/// One word for each thread, or for some of the threads if there are more.
static KNOWN: [AtomicU64; 1 << INDEX_BITS] = [const { AtomicU64::new(0) }; 1 << INDEX_BITS];
const INDEX_BITS: u32 = 9;

/// A word holds a thread's id, and how many pages up to the top are known.
const COUNT_BITS: u32 = u64::BITS - Thread::ID_BITS;

static MAIN_STACK_TOP: AtomicUsize = AtomicUsize::new(0);

/// No stack is larger.
const LARGEST: usize = 1 << 30;
/// What lies between the outermost frame and the top is not more: variables of the thread, or
/// the environment.
const MOST_ABOVE: usize = 32 * PAGE;
/// More is not asked for in one sample.
const MOST_AT_ONCE: usize = 4096 * PAGE;

/// `address` lies at the top of the main thread's stack, as that of `AT_RANDOM` does.
pub(crate) fn set_main_stack_top(address: usize) {
    MAIN_STACK_TOP.store(page_of(address) + PAGE, Relaxed);
}

/// Forgets all threads: some may have ended.
pub(crate) fn clear() {
    for word in &KNOWN {
        word.store(0, Relaxed);
    }
}

/// The stack of the calling thread, if it runs on its own.
#[derive(Debug)]
pub(crate) struct ThreadStack {
    thread: Thread,
    word: &'static AtomicU64,
    /// All of it can be read; empty when nothing is known.
    pub(crate) known: Range<usize>,
}

impl ThreadStack {
    #[inline(always)]
    pub(crate) fn of_thread(sp: usize, thread: Thread) -> Self {
        Self::of(sp, thread, &KNOWN[thread.index(INDEX_BITS)])
    }

    #[inline(always)]
    fn of(sp: usize, thread: Thread, word: &'static AtomicU64) -> Self {
        let top = top_of(sp, thread);
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

    /// Remembers the stack from `sp` on, if a walk that ended at `reached` came near the top, and
    /// all that lies between can be read.
    #[cold]
    #[inline(never)]
    pub(crate) fn save_known(&self, sp: usize, reached: usize) {
        let Range { start, end: top } = self.known;
        let came_near = top
            .checked_sub(reached)
            .is_some_and(|above| above <= MOST_ABOVE);
        let unknown = page_of(sp)..start;
        if !came_near || unknown.is_empty() || unknown.len() > MOST_AT_ONCE {
            return;
        }
        if unknown.step_by(PAGE).all(is_readable) {
            let pages = ((top - page_of(sp)) / PAGE) as u64;
            let bits = self.thread.id() << COUNT_BITS | pages;
            self.word.store(bits, Relaxed);
        }
    }
}

/// The page above the stack on which `sp` lies, were it the thread's own; 0 if it is not.
#[inline(always)]
fn top_of(sp: usize, thread: Thread) -> usize {
    let thread = page_of(thread.control_block) + PAGE;
    let main = MAIN_STACK_TOP.load(Relaxed);
    let reaches = |top: usize| top.wrapping_sub(sp) < LARGEST;
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
    fn a_stack_that_was_read_to_the_top_is_known_from_there_on() {
        static WORD: AtomicU64 = AtomicU64::new(0);
        let local = 0_usize;
        let sp = &raw const local as usize;
        let around = |thread| ThreadStack::of(sp, thread, &WORD);
        let own = around(Thread::this());
        assert!(own.known.is_empty());
        own.save_known(sp, own.known.end - PAGE);
        let own = around(Thread::this());
        assert!(own.known.contains(&sp));
        assert!(own.known.contains(&Thread::this().control_block));
        // Another thread knows nothing of it.
        let control_block = Thread::this().control_block + 64;
        assert!(around(Thread { control_block }).known.is_empty());
    }

    #[test]
    fn a_stack_that_the_walk_left_far_from_the_top_is_not_remembered() {
        static WORD: AtomicU64 = AtomicU64::new(0);
        let local = 0_usize;
        let sp = &raw const local as usize;
        let own = ThreadStack::of(sp, Thread::this(), &WORD);
        own.save_known(sp, own.known.end - MOST_ABOVE - PAGE);
        assert_eq!(WORD.load(Relaxed), 0);
    }
}
