//! Memory of a walk that is not on the stack of its thread: in a coroutine of 4 KiB, the allocator
//! already uses part of the stack.
#![expect(
    unsafe_code,
    reason = "memory that one walk uses at a time, and a call on another stack"
)]

use core::arch::naked_asm;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::last_walk::{MAX_STEPS, WalkStep};
use crate::rule::PackedRule;
use crate::signals::BlockedSignals;
use crate::thread::Thread;
use crate::walk::Frame;

/// Frames per workspace.
pub const WORKSPACE_FRAMES: usize = 144;

/// Most walks at the same time, of threads and of signal handlers that interrupted one. Further
/// ones fail.
const WORKSPACES: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 5;

/// Bytes of [`SpareStack`]: twice what reading a rule needs.
const STACK_SIZE: usize = 5888;

// Next to the other tables: a variable between two of them would dirty a page of its own.
#[unsafe(link_section = ".bss.tables")]
static CELLS: [WorkspaceCell; WORKSPACES] = [const { WorkspaceCell::new() }; WORKSPACES];

#[repr(C, align(64))]
struct WorkspaceCell {
    is_acquired: AtomicBool,
    memory: UnsafeCell<WorkspaceMemory>,
}

// SAFETY: `memory` is reached only through a `Workspace`, and `is_acquired` admits one per cell.
unsafe impl Sync for WorkspaceCell {}

/// Buffers of one walk.
struct WorkspaceMemory {
    frames: [Frame; WORKSPACE_FRAMES],
    steps: [MaybeUninit<WalkStep>; MAX_STEPS],
    stack: SpareStack,
}

/// A stack for the one deep call of a walk, which reads a rule.
#[repr(align(16))]
pub(crate) struct SpareStack([MaybeUninit<u8>; STACK_SIZE]);

/// Memory of one walk, released when dropped.
#[derive(Debug)]
pub struct Workspace {
    cell: &'static WorkspaceCell,
}

impl core::fmt::Debug for WorkspaceCell {
    // Inline, so that code that runs inside malloc does not contain it unless something formats the
    // value.
    #[inline]
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Cell").finish_non_exhaustive()
    }
}

impl Workspace {
    /// Acquires a free workspace. `None` if all are in use.
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

    /// Releases all workspaces in a forked child: their threads do not exist there.
    pub fn enter_child() {
        for cell in &CELLS {
            cell.is_acquired.store(false, Relaxed);
        }
    }

    fn memory(&mut self) -> &mut WorkspaceMemory {
        // SAFETY: `is_acquired` gives the cell to this workspace alone.
        unsafe { &mut *self.cell.memory.get() }
    }

    /// Buffer for frames.
    #[inline(always)]
    pub fn frames(&mut self) -> &mut [Frame; WORKSPACE_FRAMES] {
        &mut self.memory().frames
    }

    /// Buffers for frames and for the steps of this walk, and a stack.
    #[inline(always)]
    pub(crate) fn parts(
        &mut self,
    ) -> (
        &mut [Frame; WORKSPACE_FRAMES],
        &mut [MaybeUninit<WalkStep>; MAX_STEPS],
        &mut SpareStack,
    ) {
        let memory = self.memory();
        (&mut memory.frames, &mut memory.steps, &mut memory.stack)
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
                stack: SpareStack([const { MaybeUninit::zeroed() }; STACK_SIZE]),
            }),
        }
    }
}

impl SpareStack {
    /// Calls `read` on this stack, with `address` as its argument. Signals are blocked meanwhile: their handlers may
    /// need more stack, and one with an alternate stack would start at its top again, though frames below this call may
    /// be there. If they cannot be blocked, the call is made on the current stack.
    pub(crate) fn call(&mut self, read: extern "C" fn(usize) -> u32, address: usize) -> PackedRule {
        let Some(_blocked) = BlockedSignals::block_all() else {
            return PackedRule::from_bits(read(address));
        };
        let end = self.0.as_mut_ptr_range().end;
        // SAFETY: the ABI's alignment holds by `repr(align)`, and this workspace alone uses the
        // stack.
        PackedRule::from_bits(unsafe { call_on(address, read, end.cast()) })
    }
}

/// Calls `read(address)` on the stack that ends at `end`.
///
/// # Safety
/// `end` is aligned to 16 and is the end of a stack that is large enough for the function.
#[unsafe(naked)]
unsafe extern "C" fn call_on(
    address: usize,
    read: extern "C" fn(usize) -> u32,
    end: *mut u8,
) -> u32 {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdx",
        "call rsi",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
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

    #[test]
    fn call_on_other_stack_restores_signal_mask() {
        extern "C" fn read(address: usize) -> u32 {
            let local = 0_u8;
            ((&raw const local) as usize).wrapping_sub(address) as u32
        }
        let mut workspace = Workspace::acquire().unwrap();
        let (_, _, stack) = workspace.parts();
        let start = stack.0.as_ptr() as usize;
        let offset = stack.call(read, start).bits() as usize;
        assert!((STACK_SIZE - 256..STACK_SIZE).contains(&offset), "{offset}");
        assert!(BlockedSignals::block_all().is_some_and(|blocked| !blocked.were_all_blocked()));
    }
}
