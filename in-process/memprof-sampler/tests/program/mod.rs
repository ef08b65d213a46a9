//! Functions that begin with jumps, as memprof-attach writes them.

use std::mem::offset_of;
use std::ptr;
use std::slice;

use memprof_sampler::{EntryRow, EntryTable, TABLE_MARK, trampoline_offset};

/// `mov %rdi,%rax`, and what fills the room of a jump.
pub(crate) const MOVED: [u8; 5] = [0x48, 0x89, 0xf8, 0x90, 0x90];
pub(crate) const RET: u8 = 0xc3;

/// Functions that begin with `MOVED`, behind a table for them.
pub(crate) struct Program {
    memory: &'static mut [u8],
}

impl Program {
    /// Functions of these names, with the code behind their first instruction.
    pub(crate) fn new(functions: &[(&str, Vec<u8>)]) -> Self {
        let length = trampoline_offset(EntryTable::MOST) + 4096;
        let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: mmap(2): new memory.
        let memory = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: so many bytes, which nobody else has.
        let memory = unsafe { slice::from_raw_parts_mut(memory.cast::<u8>(), length) };
        let mut program = Self { memory };
        for (index, (name, code)) in functions.iter().enumerate() {
            program.put(program.function(index), &MOVED);
            program.put(program.function(index) + MOVED.len(), code);
            program.enter(index, name);
        }
        let count = functions.len() as u64;
        program.put(offset_of!(EntryTable, count), &count.to_le_bytes());
        program.put(0, &TABLE_MARK);
        program
    }

    fn enter(&mut self, index: usize, name: &str) {
        let entry = offset_of!(EntryTable, entries) + index * size_of::<EntryRow>();
        let stub = trampoline_offset(index);
        let target = entry + offset_of!(EntryRow, target);
        let distance = (target as i32 - stub as i32 - 6).to_le_bytes();
        self.put(
            stub,
            &[&[0xff, 0x25][..], &distance, &[0x0f, 0x0b]].concat(),
        );
        self.put(stub + 8, &self.address(0).to_le_bytes());
        let back = (self.function(index) as i32 + 5 - (stub as i32 + 26)).to_le_bytes();
        self.put(stub + 16, &[&MOVED[..], &[0xe9], &back].concat());
        for (offset, address) in [
            (offset_of!(EntryRow, target), stub + 16),
            (offset_of!(EntryRow, moved), stub + 16),
            (offset_of!(EntryRow, function), self.function(index)),
        ] {
            self.put(entry + offset, &self.address(address).to_le_bytes());
        }
        self.put(entry + offset_of!(EntryRow, was), &MOVED);
        self.put(entry + offset_of!(EntryRow, name), name.as_bytes());
    }

    pub(crate) fn jump(&mut self, index: usize) {
        let at = self.function(index);
        let distance = (trampoline_offset(index) as i32 - at as i32 - 5).to_le_bytes();
        self.put(at, &[&[0xe9][..], &distance].concat());
    }

    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn function(&self, index: usize) -> usize {
        trampoline_offset(EntryTable::MOST) + 64 * index
    }

    pub(crate) fn address(&self, at: usize) -> usize {
        self.memory.as_ptr() as usize + at
    }
}
