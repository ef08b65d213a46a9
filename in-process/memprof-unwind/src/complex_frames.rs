//! Frames that no [`Rule`] can express. Their call frame information is read again in each walk.
//!
//! Most of them need only the registers that a walk tracks. If a frame needs another register, for example a CFA in
//! `rbx`, the stack is walked again from its innermost frame, with all registers that functions restore. That takes
//! about a microsecond per frame.
#![expect(unsafe_code, reason = "an argument that is passed to another stack")]

use crate::object::{FindObject, loaded_caller_at};
use crate::register_file::{RegisterFile, SavedRegisters};
use crate::rule::Rule;
use crate::spare_stack::SpareStack;
use crate::walk::{Registers, StackReader, caller_by_frame_pointer, may_have_frame_pointer};

/// Position of the walk with all registers, which follows the normal walk as far as needed.
#[derive(Debug)]
pub(crate) struct ComplexFrames {
    /// Registers of frame number `depth`.
    registers: RegisterFile,
    depth: usize,
    /// 1 if that frame called another one; 0 if a signal interrupted it.
    into_call: usize,
    /// Registers of the innermost frame; `None` after the walk with all registers has started.
    start: Option<(Registers, SavedRegisters)>,
}

/// Arguments and result of unwinding one frame, which runs on another stack.
struct UnwindStep<'a, M> {
    find: FindObject,
    address: usize,
    callee: &'a RegisterFile,
    memory: &'a mut M,
    caller: Result<(RegisterFile, bool), Rule>,
}

impl ComplexFrames {
    pub(crate) const fn new() -> Self {
        Self {
            registers: RegisterFile::UNKNOWN,
            depth: 0,
            into_call: 0,
            start: None,
        }
    }

    /// Sets the registers of the innermost frame of a walk. `saved` has the values of `rbx` and `r12` to `r15`. If it
    /// is `None`, frames that need them cannot be unwound.
    #[inline(always)]
    pub(crate) fn set_start(&mut self, start: Registers, saved: Option<SavedRegisters>) {
        self.registers.forget_all();
        self.start = saved.map(|saved| (start, saved));
    }

    /// Returns the registers of the caller of `callee`, frame number `depth` from the innermost one, 0. `into_call` is
    /// 1 if the frame called another one, and 0 if a signal interrupted it. `find` is the loader's `_dl_find_object`.
    ///
    /// First uses only the registers in `callee`. If they do not suffice, walks with all registers from the innermost
    /// frame to this one. `None` if that fails too, or if the two walks disagree about the frame.
    #[cold]
    #[inline(never)]
    pub(crate) fn caller_registers(
        &mut self,
        find: FindObject,
        callee: Registers,
        (into_call, depth): (usize, usize),
        stack: &mut SpareStack,
        memory: &mut impl StackReader,
    ) -> Option<Registers> {
        let address = callee.pc.wrapping_sub(into_call);
        let partial = RegisterFile::from_registers(callee);
        // Nearly all frames need only the registers that the normal walk tracks.
        if let Ok((caller, _)) = unwind_step(find, address, &partial, stack, memory) {
            return caller.walk_registers();
        }
        if let Some((start, saved)) = self.start.take() {
            self.registers = RegisterFile::from_all_registers(start, saved);
            (self.depth, self.into_call) = (0, 1);
        }
        while self.depth < depth {
            self.advance_to_caller(find, stack, memory)?;
        }
        let own = self.registers.walk_registers()?;
        // The two walks differ, so these registers may belong to another frame.
        if (own.pc, own.sp) != (callee.pc, callee.sp) {
            return None;
        }
        let (caller, _) = unwind_step(find, address, &self.registers, stack, memory).ok()?;
        caller.walk_registers()
    }

    /// Advances by one frame the walk that tracks all registers. Follows the frame pointer through code without call
    /// frame information. `None` if the caller cannot be found.
    fn advance_to_caller(
        &mut self,
        find: FindObject,
        stack: &mut SpareStack,
        memory: &mut impl StackReader,
    ) -> Option<()> {
        let callee = self.registers.walk_registers()?;
        let address = callee.pc.wrapping_sub(self.into_call);
        let was_interrupted;
        (self.registers, was_interrupted) =
            match unwind_step(find, address, &self.registers, stack, memory) {
                Ok(found) => found,
                Err(Rule::Undescribed | Rule::Unknown) if may_have_frame_pointer(callee) => {
                    let caller = caller_by_frame_pointer(callee, memory)?;
                    (RegisterFile::from_registers(caller), false)
                }
                Err(_) => return None,
            };
        self.depth += 1;
        self.into_call = usize::from(!was_interrupted);
        Some(())
    }
}

/// Returns the registers of the caller of a frame at `address`, and whether a signal interrupted that caller. Reads the
/// call frame information on `stack`, because that needs more stack than a thread may have. The error is the rule of
/// code without such information, or [`Rule::Unsupported`] if the information is unreadable or needs an unknown
/// register.
fn unwind_step<M: StackReader>(
    find: FindObject,
    address: usize,
    callee: &RegisterFile,
    stack: &mut SpareStack,
    memory: &mut M,
) -> Result<(RegisterFile, bool), Rule> {
    let mut step = UnwindStep {
        find,
        address,
        callee,
        memory,
        caller: Err(Rule::Unsupported),
    };
    stack.call(run_unwind_step::<M>, &raw mut step as usize);
    step.caller
}

/// Runs the [`UnwindStep`] at the address `step`, and stores the result in it. Returns 0: [`SpareStack::call`] expects
/// the bits of a rule, which `unwind_step` ignores.
extern "C" fn run_unwind_step<M: StackReader>(step: usize) -> u32 {
    // SAFETY: `unwind_step` passes the address of its variable, and does not use the variable during the call.
    let step = unsafe { &mut *(step as *mut UnwindStep<'_, M>) };
    step.caller = loaded_caller_at(step.find, step.address, step.callee, step.memory);
    0
}
