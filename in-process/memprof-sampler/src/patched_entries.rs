//! Patched entry points of an allocator, for calls that go through no GOT slot: of one that is linked statically into
//! the program, and by addresses that the program keeps. Each function begins with a jump to a trampoline, which jumps
//! to the target in the function's row of a table: a hook, or the function's relocated prologue.
//!
//! memprof-attach writes the table and the jumps while all threads are stopped. Enabling or disabling a hook
//! here is one store of a word per function, as with a slot. The table and the relocated prologues stay
//! mapped until the process ends.
#![expect(unsafe_code, reason = "code and a table that another process wrote")]

use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};

use crate::hooks::{HOOK_COUNT, Hook, Role, hooks};

/// First bytes of a table. The last one is the version of this layout.
pub const TABLE_MARK: [u8; 16] = *b"memprof entries1";
/// Bytes of a table, before the trampolines.
pub const TABLE_SIZE: usize = 2 << 12;

/// Table of an allocator's patched functions, as memprof-attach writes it.
#[derive(Debug)]
#[repr(C)]
pub struct EntryTable {
    /// [`TABLE_MARK`], written after everything else.
    pub mark: [u8; 16],
    /// Number of `entries` in use.
    pub count: u64,
    /// One row per function, in the order of their addresses.
    pub entries: [EntryRow; Self::MAX_ENTRIES],
}

/// Row of a function that begins with a jump.
#[derive(Debug)]
#[repr(C)]
pub struct EntryRow {
    /// Address to which its trampoline jumps: `moved`, or a hook.
    pub target: AtomicU64,
    /// Address of its relocated prologue, which ends with a jump to the rest of the function.
    pub moved: u64,
    /// Address of the jump: the function's, or behind its `endbr64`.
    pub function: u64,
    /// Original first bytes, replaced by the jump.
    pub original: [u8; Self::JUMP_SIZE],
    /// 1 if it calls other functions of the table, directly or not.
    pub is_outer: u8,
    /// Zeros.
    pub reserved: [u8; 2],
    /// Symbol whose hook serves it, padded with zeros.
    pub name: [u8; 56],
}

impl EntryTable {
    /// Rows of a table, at least as many as there are hooks.
    pub const MAX_ENTRIES: usize = 64;
}

impl EntryRow {
    /// Bytes of a `jmp` with a 32-bit distance.
    pub const JUMP_SIZE: usize = 5;
}

const _: () =
    assert!(size_of::<EntryTable>() <= TABLE_SIZE && HOOK_COUNT <= EntryTable::MAX_ENTRIES);
const _: () = assert!(size_of::<EntryRow>() == 88);

/// Returns the offset of an entry's trampoline from the table's start, in bytes. A trampoline is `jmp *target(%rip)`,
/// at byte 8 the table's address, at byte 16 the relocated prologue.
pub const fn trampoline_offset(index: usize) -> usize {
    TABLE_SIZE + index * 128
}

/// The process's table, and the hooks for its functions.
#[derive(Clone, Debug)]
pub struct PatchedEntries {
    table: &'static EntryTable,
    hooks: [Hook; HOOK_COUNT],
}

impl PatchedEntries {
    /// Finds the table by an entry point. `None` unless `function` begins with a jump that memprof-attach
    /// wrote.
    pub fn find(function: usize) -> Option<Self> {
        let hooks = hooks();
        Some(Self {
            table: find_table(function)?,
            hooks,
        })
    }

    /// Whether all functions still begin with their jumps. False if memprof-attach was killed while it wrote
    /// them, or has restored the functions.
    pub fn is_complete(&self) -> bool {
        let mut entries = self.entries().iter().enumerate();
        entries.all(|(index, entry)| {
            jump_target(entry.function as usize) == Some(self.trampoline_address(index))
        })
    }

    /// Address by which a hook calls the function that is defined at `definition`: the relocated prologue, because the
    /// function itself jumps to the hook. `definition` for a function without a jump.
    pub(crate) fn call_address(&self, definition: usize) -> usize {
        let jump = jump_address(definition) as u64;
        let mut entries = self.entries().iter();
        let entry = entries.find(|entry| entry.function == jump);
        entry.map_or(definition, |entry| entry.moved as usize)
    }

    /// Makes the hooks call the relocated prologues.
    fn set_originals(&self) {
        for entry in self.entries() {
            if let Some(hook) = self.find_hook(entry) {
                hook.original.store(entry.moved as usize, Relaxed);
            }
        }
    }

    /// Number of functions whose hooks are enabled.
    pub fn enabled_count(&self) -> usize {
        let enabled = self
            .entries()
            .iter()
            .filter(|entry| entry.target.load(Relaxed) != entry.moved);
        enabled.count()
    }

    /// Enables the hooks of all functions and returns their number. `None`, with nothing changed, if a jump
    /// is missing.
    pub fn enable(&self) -> Option<usize> {
        if !self.is_complete() {
            return None;
        }
        self.set_originals();
        for entry in self.entries() {
            if let Some(hook) = self.find_hook(entry) {
                let hook = if entry.is_outer == 0 {
                    hook.address
                } else {
                    hook.outer
                };
                entry.target.store(hook as u64, Release);
            }
        }
        Some(self.enabled_count())
    }

    /// Disables the hooks of functions with `role`, or all.
    pub fn disable(&self, role: Option<Role>) {
        for entry in self.entries() {
            let own = self.find_hook(entry).map(|hook| hook.role);
            if role.is_none() || role == own {
                entry.target.store(entry.moved, Release);
            }
        }
    }

    /// Rows of the table that are in use.
    fn entries(&self) -> &[EntryRow] {
        let count = self.table.count as usize;
        self.table.entries.get(..count).unwrap_or_default()
    }

    /// Address of a row's trampoline.
    fn trampoline_address(&self, index: usize) -> usize {
        ptr::from_ref(self.table) as usize + trampoline_offset(index)
    }

    /// Returns the hook for a row, by the name of its symbol. `None` if no hook has that name.
    fn find_hook(&self, entry: &EntryRow) -> Option<&Hook> {
        let length = entry.name.iter().position(|byte| *byte == 0)?;
        let name = &entry.name[..length];
        self.hooks.iter().find(|hook| hook.name.to_bytes() == name)
    }
}

/// Address at which memprof-attach writes a function's jump: behind its `endbr64`, if it begins with one.
fn jump_address(function: usize) -> usize {
    const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    // SAFETY: the caller passes the address of a function. Its code has at least four bytes, or other code follows.
    let first = unsafe { (function as *const [u8; 4]).read() };
    function + if first == ENDBR { ENDBR.len() } else { 0 }
}

/// Address to which an instruction jumps. `None` unless it is `jmp` with a 32-bit distance.
fn jump_target(function: usize) -> Option<usize> {
    // SAFETY: the caller passes an address in a function. Its code has at least five bytes there, or other code
    // follows.
    let [0xe9, distance @ ..] = (unsafe { (function as *const [u8; EntryRow::JUMP_SIZE]).read() })
    else {
        return None;
    };
    let distance = i32::from_le_bytes(distance) as isize;
    Some(
        function
            .wrapping_add(EntryRow::JUMP_SIZE)
            .wrapping_add_signed(distance),
    )
}

/// Finds the table through the trampoline to which a function jumps. `None` unless jump, trampoline and table are as
/// memprof-attach writes them.
fn find_table(function: usize) -> Option<&'static EntryTable> {
    let trampoline = jump_target(jump_address(function))?;
    // SAFETY: the target of a jump is code, with at least one instruction. The bytes are read in order, and
    // no further than the first that differs from a trampoline of memprof-attach, which has 16.
    let byte = |index: usize| unsafe { ((trampoline + index) as *const u8).read() };
    if byte(0) != 0xff || byte(1) != 0x25 {
        return None;
    }
    let distance = i32::from_le_bytes([byte(2), byte(3), byte(4), byte(5)]) as isize;
    let target = trampoline.wrapping_add(6).wrapping_add_signed(distance);
    if byte(6) != 0x0f || byte(7) != 0x0b {
        return None;
    }
    let table = usize::from_le_bytes(core::array::from_fn(|index| byte(8 + index)));
    let index = trampoline.wrapping_sub(table).wrapping_sub(TABLE_SIZE) / 128;
    let expected = table
        .wrapping_add(offset_of!(EntryTable, entries))
        .wrapping_add(index.wrapping_mul(size_of::<EntryRow>()));
    let is_aligned = table.is_multiple_of(1 << 12);
    if !is_aligned
        || index >= EntryTable::MAX_ENTRIES
        || target != expected
        || trampoline != table + trampoline_offset(index)
    {
        return None;
    }
    // SAFETY: the trampoline's jump, its copy of the address and its position agree on the table, which stays
    // mapped and of which only `target`s change.
    let table = unsafe { &*(table as *const EntryTable) };
    (table.mark == TABLE_MARK).then_some(table)
}
