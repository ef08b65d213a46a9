//! Memory for a walk that is not on its thread's stack: in a coroutine with 4 KiB of stack, the allocator already uses
//! part of it.
#![expect(unsafe_code, reason = "memory that one walk uses at a time")]

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::complex_frames::ComplexFrames;
use crate::last_walk::{MAX_STEPS, StackPointers, WalkStep};
use crate::spare_stack::SpareStack;
use crate::thread::Thread;
use crate::walk::Frame;

/// Maximum number of frames per workspace.
pub const WORKSPACE_FRAMES: usize = 144;

/// Number of words in a workspace for work on a walked stack.
pub const SCRATCH_WORDS: usize = 448;

/// Maximum number of walks at the same time, including those of signal handlers that interrupted a walk. Further walks
/// fail.
const WORKSPACES: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 5;

// All large tables share a section: a small variable between two of them would make a page of its own resident.
#[unsafe(link_section = ".bss.tables")]
static CELLS: [WorkspaceCell; WORKSPACES] = [const { WorkspaceCell::new() }; WORKSPACES];

#[repr(C, align(64))]
struct WorkspaceCell {
    is_acquired: AtomicBool,
    memory: UnsafeCell<WorkspaceMemory>,
}

// SAFETY: `memory` is reached only through a `Workspace`, and `is_acquired` admits one per cell.
unsafe impl Sync for WorkspaceCell {}

/// Buffers for one walk.
struct WorkspaceMemory {
    frames: [Frame; WORKSPACE_FRAMES],
    steps: [MaybeUninit<WalkStep>; MAX_STEPS],
    complex: ComplexFrames,
    stack: SpareStack,
    scratch: [usize; SCRATCH_WORDS],
}

/// Buffers for one walk, except for its frames.
pub(crate) struct WalkBuffers<'a> {
    /// Steps of this walk.
    pub(crate) steps: &'a mut [MaybeUninit<WalkStep>; MAX_STEPS],
    pub(crate) complex: &'a mut ComplexFrames,
    pub(crate) stack: &'a mut SpareStack,
}

/// Exclusive access to the memory for one walk, until it is dropped.
#[derive(Debug)]
pub struct Workspace {
    cell: &'static WorkspaceCell,
}

impl core::fmt::Debug for WorkspaceCell {
    // Inlined, so that code that runs inside malloc contains it only if something formats the value.
    #[inline]
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Cell").finish_non_exhaustive()
    }
}

impl Workspace {
    /// Acquires a free workspace without waiting. `None` if all are in use. Probes the cells from the thread's own
    /// index on, so that threads rarely compete for one.
    #[inline(always)]
    pub fn acquire() -> Option<Self> {
        let first = Thread::current().index(INDEX_BITS);
        let mut cells = (0..WORKSPACES).map(|probe| &CELLS[(first + probe) % WORKSPACES]);
        let cell = cells.find(|cell| {
            let acquired = cell
                .is_acquired
                .compare_exchange(false, true, Acquire, Relaxed);
            acquired.is_ok()
        })?;
        Some(Self { cell })
    }

    /// Releases all workspaces in a forked child, because their threads do not exist there.
    pub fn release_all_in_child() {
        for cell in &CELLS {
            cell.is_acquired.store(false, Relaxed);
        }
    }

    /// Borrows the memory of the cell that this workspace has acquired.
    fn memory(&mut self) -> &mut WorkspaceMemory {
        // SAFETY: `is_acquired` reserves the cell for this workspace.
        unsafe { &mut *self.cell.memory.get() }
    }

    /// Returns the buffer into which a walk writes its frames, the innermost first.
    #[inline(always)]
    pub fn frames(&mut self) -> &mut [Frame; WORKSPACE_FRAMES] {
        &mut self.memory().frames
    }

    /// Returns the first `count` frames of the walk, their stack pointers, and [`SCRATCH_WORDS`] words of scratch
    /// memory for work on them.
    ///
    /// # Safety
    /// A walk has written `count` frames since the workspace was acquired.
    #[inline(always)]
    pub unsafe fn walked_frames(
        &mut self,
        count: usize,
    ) -> (&[usize], StackPointers<'_>, &mut [usize]) {
        let memory = self.memory();
        let frames = memory.frames.get(..count).unwrap_or_default();
        let steps = memory.steps.get(..count.min(MAX_STEPS)).unwrap_or_default();
        // SAFETY: the caller guarantees that a walk wrote these frames.
        let frames = unsafe { &*(&raw const *frames as *const [usize]) };
        // SAFETY: a walk writes a step, which is one word, for each of its first frames. All other words are zero.
        let steps = unsafe { &*(&raw const *steps as *const [usize]) };
        (
            frames,
            StackPointers::from_steps(steps),
            &mut memory.scratch,
        )
    }

    /// Replaces the frames by `words`, a range of the scratch memory that [`walked_frames`](Self::walked_frames)
    /// returned. Returns the number of frames now, at most [`WORKSPACE_FRAMES`].
    pub fn set_frames_from_scratch(&mut self, words: Range<usize>) -> usize {
        let memory = self.memory();
        let words = memory.scratch.get(words).unwrap_or_default();
        for (frame, word) in memory.frames.iter_mut().zip(words) {
            frame.write(*word);
        }
        words.len().min(WORKSPACE_FRAMES)
    }

    /// Returns the buffer for the frames of a walk, and the buffers for the rest of its state.
    #[inline(always)]
    pub(crate) fn frames_and_buffers(
        &mut self,
    ) -> (&mut [Frame; WORKSPACE_FRAMES], WalkBuffers<'_>) {
        let memory = self.memory();
        let buffers = WalkBuffers {
            steps: &mut memory.steps,
            complex: &mut memory.complex,
            stack: &mut memory.stack,
        };
        (&mut memory.frames, buffers)
    }
}

impl Drop for Workspace {
    #[inline(always)]
    fn drop(&mut self) {
        self.cell.is_acquired.store(false, Release);
    }
}

impl WorkspaceCell {
    const fn new() -> Self {
        Self {
            is_acquired: AtomicBool::new(false),
            memory: UnsafeCell::new(WorkspaceMemory {
                frames: [const { MaybeUninit::zeroed() }; WORKSPACE_FRAMES],
                steps: [const { MaybeUninit::zeroed() }; MAX_STEPS],
                complex: ComplexFrames::new(),
                stack: SpareStack::new(),
                scratch: [0; SCRATCH_WORDS],
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn workspace_acquire_fails_when_all_are_in_use() {
        let acquired: Vec<_> = (0..WORKSPACES)
            .map_while(|_| Workspace::acquire())
            .collect();
        assert!(acquired.len() > WORKSPACES / 2, "other tests have few");
        if acquired.len() == WORKSPACES {
            assert!(Workspace::acquire().is_none());
        }
        drop(acquired);
        assert!(Workspace::acquire().is_some());
    }
}
