//! All registers of a frame that call frame information may mention, for frames that a [`Rule`](crate::Rule) cannot
//! express.

use gimli::{Register, X86_64};

use crate::walk::{Registers, StackReader};

/// Number of registers in the DWARF mapping for x86-64 (psABI, figure 3.36): 16 general registers and the return
/// address.
const COUNT: usize = 17;

/// Offsets of the registers in Linux's `rt_sigframe`, in the order of their DWARF numbers. They are in bytes from the
/// stack pointer in the signal trampoline, and lead to `uc_mcontext.gregs` of `ucontext_t`.
const SIGNAL_OFFSETS: [usize; COUNT] = [
    144, 136, 152, 128, 112, 104, 120, 160, 40, 48, 56, 64, 72, 80, 88, 96, 168,
];

/// Registers that a function must restore before it returns (psABI, figure 3.4).
pub(crate) const CALLEE_SAVED: [Register; 6] = [
    X86_64::RBX,
    X86_64::RBP,
    X86_64::R12,
    X86_64::R13,
    X86_64::R14,
    X86_64::R15,
];

/// Values of `rbx` and `r12` to `r15`. A function must restore these before it returns.
pub type SavedRegisters = [usize; CALLEE_SAVED.len() - 1];

/// Values of registers, as far as they are known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegisterFile {
    values: [usize; COUNT],
    /// One bit per register, set if its value is known.
    known: u32,
}

impl RegisterFile {
    /// A file without known registers.
    pub(crate) const UNKNOWN: Self = Self {
        values: [0; COUNT],
        known: 0,
    };

    /// Creates a file with the registers of a frame, and with `others`, the values of `rbx` and `r12` to `r15`.
    pub(crate) fn from_all_registers(registers: Registers, others: SavedRegisters) -> Self {
        let mut file = Self::from_registers(registers);
        let names = CALLEE_SAVED
            .iter()
            .filter(|register| **register != X86_64::RBP);
        for (register, value) in names.zip(others) {
            file.set(*register, Some(value));
        }
        file
    }

    /// Creates a file in which only the program counter, the stack pointer and the frame pointer of a frame are known.
    pub(crate) fn from_registers(registers: Registers) -> Self {
        let mut file = Self::UNKNOWN;
        file.set(X86_64::RA, Some(registers.pc));
        file.set(X86_64::RSP, Some(registers.sp));
        file.set(X86_64::RBP, Some(registers.bp));
        file
    }

    /// Reads the registers that a function had when a signal interrupted it, from the signal's frame. `sp` is the stack
    /// pointer of that frame. `None` if the stack cannot be read.
    pub(crate) fn before_signal(sp: usize, memory: &mut impl StackReader) -> Option<Self> {
        let mut file = Self::UNKNOWN;
        for (value, offset) in file.values.iter_mut().zip(SIGNAL_OFFSETS) {
            *value = memory.read_word(sp.wrapping_add(offset))?;
        }
        file.known = (1 << COUNT) - 1;
        Some(file)
    }

    /// Returns the value of a register. `None` if it is unknown.
    pub(crate) fn get(&self, register: Register) -> Option<usize> {
        let index = usize::from(register.0);
        let value = *self.values.get(index)?;
        (self.known >> index & 1 != 0).then_some(value)
    }

    /// Sets a register's value; `None` makes it unknown. Ignores registers that are not in this file.
    pub(crate) fn set(&mut self, register: Register, value: Option<usize>) {
        let index = usize::from(register.0);
        if let Some(cell) = self.values.get_mut(index) {
            *cell = value.unwrap_or(0);
            self.known = self.known & !(1 << index) | u32::from(value.is_some()) << index;
        }
    }

    /// Makes all registers unknown, as at the start of a walk.
    #[inline(always)]
    pub(crate) fn forget_all(&mut self) {
        self.known = 0;
    }

    /// Returns the registers that a walk tracks. An unknown frame pointer becomes 0. `None` if the program counter or
    /// the stack pointer is unknown.
    pub(crate) fn walk_registers(&self) -> Option<Registers> {
        Some(Registers {
            pc: self.get(X86_64::RA)?,
            sp: self.get(X86_64::RSP)?,
            bp: self.get(X86_64::RBP).unwrap_or(0),
        })
    }
}
