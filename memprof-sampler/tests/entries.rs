//! Functions that begin with jumps, as memprof-attach writes them.
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#![expect(unsafe_code, reason = "machine code")]

use std::mem::{offset_of, transmute};
use std::ptr;
use std::slice;

use memprof_sampler::{Entries, Entry, Role, TABLE_MARK, Table, stub_offset};

/// `mov %rdi,%rax`, and what fills the room of a jump.
const MOVED: [u8; 5] = [0x48, 0x89, 0xf8, 0x90, 0x90];
const RET: u8 = 0xc3;

/// Two functions that return their argument, behind a table for them.
struct Program {
    memory: &'static mut [u8],
}

impl Program {
    fn new() -> Self {
        let length = stub_offset(Table::MOST) + 4096;
        let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: mmap(2): new memory.
        let memory = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: so many bytes, which nobody else has.
        let memory = unsafe { slice::from_raw_parts_mut(memory.cast::<u8>(), length) };
        let mut program = Self { memory };
        for (index, name) in ["malloc", "realloc"].iter().enumerate() {
            program.put(program.function(index), &MOVED);
            program.put(program.function(index) + MOVED.len(), &[RET]);
            program.enter(index, name);
        }
        program.put(offset_of!(Table, count), &2_u64.to_le_bytes());
        program.put(0, &TABLE_MARK);
        program
    }

    fn enter(&mut self, index: usize, name: &str) {
        let entry = offset_of!(Table, entries) + index * size_of::<Entry>();
        let stub = stub_offset(index);
        let target = entry + offset_of!(Entry, target);
        let distance = (target as i32 - stub as i32 - 6).to_le_bytes();
        self.put(
            stub,
            &[&[0xff, 0x25][..], &distance, &[0x0f, 0x0b]].concat(),
        );
        self.put(stub + 8, &self.address(0).to_le_bytes());
        let back = (self.function(index) as i32 + 5 - (stub as i32 + 26)).to_le_bytes();
        self.put(stub + 16, &[&MOVED[..], &[0xe9], &back].concat());
        for (offset, address) in [
            (offset_of!(Entry, target), stub + 16),
            (offset_of!(Entry, moved), stub + 16),
            (offset_of!(Entry, function), self.function(index)),
        ] {
            self.put(entry + offset, &self.address(address).to_le_bytes());
        }
        self.put(entry + offset_of!(Entry, was), &MOVED);
        self.put(entry + offset_of!(Entry, name), name.as_bytes());
    }

    fn jump(&mut self, index: usize) {
        let at = self.function(index);
        let distance = (stub_offset(index) as i32 - at as i32 - 5).to_le_bytes();
        self.put(at, &[&[0xe9][..], &distance].concat());
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn function(&self, index: usize) -> usize {
        stub_offset(Table::MOST) + 64 * index
    }

    fn address(&self, at: usize) -> usize {
        self.memory.as_ptr() as usize + at
    }

    fn call(&self, index: usize, argument: usize) -> usize {
        // SAFETY: code that returns its argument, through hooks too.
        let function = unsafe {
            transmute::<usize, extern "C" fn(usize, usize) -> usize>(
                self.address(self.function(index)),
            )
        };
        function(argument, 8)
    }
}

#[test]
fn functions_lead_to_hooks_and_back() {
    let mut program = Program::new();
    let malloc = program.address(program.function(0));
    assert!(Entries::of(malloc).is_none());
    program.jump(0);
    let entries = Entries::of(malloc).unwrap();
    // The jump of the other one is missing: memprof-attach was killed.
    assert!(!entries.are_complete());
    assert_eq!(entries.take(), None);
    assert_eq!((entries.count(), program.call(0, 7)), (0, 7));
    program.jump(1);
    assert_eq!(entries.take(), Some(2));
    assert_eq!((program.call(0, 7), program.call(1, 9)), (7, 9));
    entries.give_back(Some(Role::Allocates));
    assert_eq!(
        (entries.count(), program.call(0, 7), program.call(1, 9)),
        (1, 7, 9)
    );
    entries.give_back(None);
    assert_eq!(
        (entries.count(), program.call(0, 7), program.call(1, 9)),
        (0, 7, 9)
    );
    // Other code that begins with a jump.
    let own = program.function(0);
    program.put(own, &[0xe9, 0, 0, 0, 0]);
    assert!(Entries::of(malloc).is_none());
    program.put(program.function(0), &MOVED);
    assert_eq!(program.call(0, 7), 7);
}
