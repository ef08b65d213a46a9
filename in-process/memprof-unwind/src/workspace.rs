//! Memory of a walk that does not lie on the stack of its thread: of a coroutine's 4 KiB, the allocator has its share.
#![expect(
    unsafe_code,
    reason = "memory that one walk has at a time, and a call on another stack"
)]

use core::arch::naked_asm;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::last_walk::{MOST_STEPS, WalkStep};
use crate::rule::PackedRule;
use crate::signals::BlockedSignals;
use crate::thread::Thread;
use crate::walk::Frame;

/// Frames that a workspace has room for.
pub const WORKSPACE_FRAMES: usize = 144;

/// More walks at the same time fail: of threads, and of signal handlers that interrupted one.
const COUNT: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 5;

/// Twice of what reading a rule takes.
const STACK_SIZE: usize = 5888;

// Among the other tables: what lies between two of them would have a page of its own as soon as it is written.
#[unsafe(link_section = ".bss.tables")]
static CELLS: [Cell; COUNT] = [const { Cell::new() }; COUNT];

#[repr(C, align(64))]
struct Cell {
    is_taken: AtomicBool,
    memory: UnsafeCell<Memory>,
}

// SAFETY: `memory` is reached through a `Workspace`, which is the only one of its cell.
unsafe impl Sync for Cell {}

struct Memory {
    frames: [Frame; WORKSPACE_FRAMES],
    steps: [MaybeUninit<WalkStep>; MOST_STEPS],
    stack: Stack,
}

/// A stack for the one deep call of a walk, which reads a rule.
#[repr(align(16))]
pub(crate) struct Stack([MaybeUninit<u8>; STACK_SIZE]);

/// Memory of one walk, until it is dropped.
#[derive(Debug)]
pub struct Workspace {
    cell: &'static Cell,
}

impl core::fmt::Debug for Cell {
    // Inline: what nothing formats is not compiled into code that runs inside of malloc.
    #[inline]
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Cell").finish_non_exhaustive()
    }
}

impl Workspace {
    /// `None` if all are in use.
    #[inline(always)]
    pub fn acquire() -> Option<Self> {
        let first = Thread::this().index(INDEX_BITS);
        let mut cells = (0..COUNT).map(|probe| &CELLS[(first + probe) % COUNT]);
        let cell = cells.find(|cell| {
            let taken = cell
                .is_taken
                .compare_exchange(false, true, Acquire, Relaxed);
            taken.is_ok()
        })?;
        Some(Self { cell })
    }

    /// Frees all in a forked child: the threads that had them are not there.
    pub fn enter_child() {
        for cell in &CELLS {
            cell.is_taken.store(false, Relaxed);
        }
    }

    fn memory(&mut self) -> &mut Memory {
        // SAFETY: the cell is this workspace's alone.
        unsafe { &mut *self.cell.memory.get() }
    }

    /// Room for frames, of which a walk writes the first ones.
    #[inline(always)]
    pub fn frames(&mut self) -> &mut [Frame; WORKSPACE_FRAMES] {
        &mut self.memory().frames
    }

    /// Room for frames, for the steps of a trail, and a stack.
    #[inline(always)]
    pub(crate) fn parts(
        &mut self,
    ) -> (
        &mut [Frame; WORKSPACE_FRAMES],
        &mut [MaybeUninit<WalkStep>; MOST_STEPS],
        &mut Stack,
    ) {
        let memory = self.memory();
        (&mut memory.frames, &mut memory.steps, &mut memory.stack)
    }
}

impl Drop for Workspace {
    #[inline(always)]
    fn drop(&mut self) {
        self.cell.is_taken.store(false, Release);
    }
}

impl Cell {
    const fn new() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            memory: UnsafeCell::new(Memory {
                frames: [const { MaybeUninit::zeroed() }; WORKSPACE_FRAMES],
                steps: [const { MaybeUninit::zeroed() }; MOST_STEPS],
                stack: Stack([const { MaybeUninit::zeroed() }; STACK_SIZE]),
            }),
        }
    }
}

impl Stack {
    /// Calls `read` with an address on this stack. Signals wait: their handlers may need more room, and one with an
    /// alternate stack would begin it anew, though the calls below this one may lie there.
    pub(crate) fn call(&mut self, read: extern "C" fn(usize) -> u32, address: usize) -> PackedRule {
        let Some(_blocked) = BlockedSignals::all() else {
            return PackedRule::from_bits(read(address));
        };
        let end = self.0.as_mut_ptr_range().end;
        // SAFETY: a stack with the alignment of the ABI, which nobody else uses.
        PackedRule::from_bits(unsafe { call_on(address, read, end.cast()) })
    }
}

/// # Safety
/// `end` is aligned to 16, and below it lies a stack for the function.
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
    fn workspaces_exhausted_are_refused() {
        let taken: Vec<_> = (0..COUNT).map_while(|_| Workspace::acquire()).collect();
        assert!(taken.len() > COUNT / 2, "other tests have few");
        if taken.len() == COUNT {
            assert!(Workspace::acquire().is_none());
        }
        drop(taken);
        assert!(Workspace::acquire().is_some());
    }

    #[test]
    fn function_on_another_stack_returns_with_signals_as_before() {
        extern "C" fn read(address: usize) -> u32 {
            let local = 0_u8;
            ((&raw const local) as usize).wrapping_sub(address) as u32
        }
        let mut workspace = Workspace::acquire().unwrap();
        let (_, _, stack) = workspace.parts();
        let start = stack.0.as_ptr() as usize;
        let offset = stack.call(read, start).bits() as usize;
        assert!((STACK_SIZE - 256..STACK_SIZE).contains(&offset), "{offset}");
        assert!(BlockedSignals::all().is_some_and(|blocked| !blocked.were_all()));
    }
}
