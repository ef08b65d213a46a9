//! Functions patched with jumps, as memprof-attach does.

use std::mem::offset_of;
use std::ptr;
use std::slice;

use memprof_sampler::{
    EntryRow, EntryTable, Shape, TABLE_MARK, prologue_offset, slot_offset, trampoline,
    trampoline_offset,
};

/// `mov %rdi,%rax` and padding up to the size of a `write_jump`: the functions' first instructions.
pub(crate) const MOVED: [u8; 5] = [0x48, 0x89, 0xf8, 0x90, 0x90];
pub(crate) const RET: u8 = 0xc3;

/// Functions that begin with `MOVED`, behind a table of patched entries.
pub(crate) struct Program {
    memory: &'static mut [u8],
}

impl Program {
    /// Writes functions with these names and shapes, and their table. `code` follows their first instructions. No jump
    /// is written yet.
    pub(crate) fn new(functions: &[(&str, Shape, Vec<u8>)]) -> Self {
        let length = slot_offset(EntryTable::MAX_ENTRIES) + 8192;
        let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: mmap(2): new memory.
        let memory = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: mmap(2) has mapped `length` bytes that nothing else refers to.
        let memory = unsafe { slice::from_raw_parts_mut(memory.cast::<u8>(), length) };
        let mut program = Self { memory };
        for (index, (name, shape, code)) in functions.iter().enumerate() {
            program.write(program.function(index), &MOVED);
            program.write(program.function(index) + MOVED.len(), code);
            program.write_entry(index, name, *shape);
        }
        let count = functions.len() as u64;
        program.write(offset_of!(EntryTable, count), &count.to_le_bytes());
        program.write(0, &TABLE_MARK);
        program
    }

    /// Writes the row, the trampoline and the relocated prologue of the function number `index`.
    fn write_entry(&mut self, index: usize, name: &str, shape: Shape) {
        let entry = offset_of!(EntryTable, entries) + index * size_of::<EntryRow>();
        let code = trampoline(self.address(0) as u64, index);
        self.write(slot_offset(index), &code);
        let moved = prologue_offset(index);
        let back = (self.function(index) as i32 + 5 - (moved as i32 + 10)).to_le_bytes();
        self.write(moved, &[&MOVED[..], &[0xe9], &back].concat());
        for (offset, address) in [
            (offset_of!(EntryRow, moved), moved),
            (offset_of!(EntryRow, function), self.function(index)),
        ] {
            self.write(entry + offset, &self.address(address).to_le_bytes());
        }
        self.write(entry + offset_of!(EntryRow, original), &MOVED);
        self.write(entry + offset_of!(EntryRow, shape), &[shape as u8]);
        self.write(entry + offset_of!(EntryRow, name), name.as_bytes());
    }

    /// Writes the jump to its trampoline over the first instructions of the function number `index`.
    pub(crate) fn write_jump(&mut self, index: usize) {
        let offset = self.function(index);
        let distance = (trampoline_offset(index) as i32 - offset as i32 - 5).to_le_bytes();
        self.write(offset, &[&[0xe9][..], &distance].concat());
    }

    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.memory[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Returns the offset of the function number `index` from the table's start, in bytes.
    pub(crate) fn function(&self, index: usize) -> usize {
        slot_offset(EntryTable::MAX_ENTRIES) + 64 * index
    }

    /// Converts an offset from the table's start to an address.
    pub(crate) fn address(&self, at: usize) -> usize {
        self.memory.as_ptr() as usize + at
    }
}
