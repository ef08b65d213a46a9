//! Functions of an allocator that is linked into the program, whose calls lead through no slot: each begins with a jump
//! to a stub, which jumps on to where its entry of a table says: to a hook, or to its own first instructions, which were
//! moved away.
//!
//! memprof-attach makes the table and writes the jumps, while all threads stand still. What is done here is one store of
//! a word for each function, as with a slot. The table and the moved instructions stay for the life of the process.
#![expect(unsafe_code, reason = "code and a table that another process wrote")]

use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};

use crate::hooks::{COUNT, Hook, Role, hooks};

/// What a table begins with. Its last number is that of this layout.
pub const TABLE_MARK: [u8; 16] = *b"memprof entries1";
/// From a table's start to the code behind it.
pub const TABLE_SIZE: usize = 2 << 12;

/// The functions of an allocator, as memprof-attach writes them.
#[derive(Debug)]
#[repr(C)]
pub struct EntryTable {
    /// [`TABLE_MARK`], written when all else is.
    pub mark: [u8; 16],
    /// How many of `entries` are in use.
    pub count: u64,
    /// Of each function, in the order of the addresses.
    pub entries: [EntryRow; Self::MOST],
}

/// A function that begins with a jump.
#[derive(Debug)]
#[repr(C)]
pub struct EntryRow {
    /// Where its stub jumps to: `moved`, or a hook.
    pub target: AtomicU64,
    /// Its moved instructions, which end with a jump to the rest of it.
    pub moved: u64,
    /// The function.
    pub function: u64,
    /// Its first bytes, in place of which stands a jump.
    pub was: [u8; Self::JUMP],
    /// 1 where it calls other functions of the table, directly or not.
    pub is_outer: u8,
    /// Zeros.
    pub reserved: [u8; 2],
    /// The symbol whose hook serves it, and zeros.
    pub name: [u8; 56],
}

impl EntryTable {
    /// More than there are hooks.
    pub const MOST: usize = 64;
}

impl EntryRow {
    /// `jmp`, with the distance in 32 bits.
    pub const JUMP: usize = 5;
}

const _: () = assert!(size_of::<EntryTable>() <= TABLE_SIZE && COUNT <= EntryTable::MOST);
const _: () = assert!(size_of::<EntryRow>() == 88);

/// Where the stub of an entry lies, from the table's start: `jmp *target(%rip)` and the table's address at 8. What
/// was moved lies at 16.
pub const fn trampoline_offset(index: usize) -> usize {
    TABLE_SIZE + index * 128
}

/// The table of this process, and the hooks for its functions.
#[derive(Debug)]
pub struct PatchedEntries {
    table: &'static EntryTable,
    hooks: [Hook; COUNT],
}

impl PatchedEntries {
    /// None unless `function` begins with a jump of memprof-attach's.
    pub fn find(function: usize) -> Option<Self> {
        let hooks = hooks();
        Some(Self {
            table: find_table(function)?,
            hooks,
        })
    }

    /// Whether all functions begin with their jumps now. Not where memprof-attach was killed while it wrote them, or
    /// has taken them away.
    pub fn is_complete(&self) -> bool {
        let mut entries = self.entries().iter().enumerate();
        entries.all(|(index, entry)| {
            jump_target(entry.function as usize) == Some(self.trampoline(index))
        })
    }

    /// Has the hooks call what was moved, not the functions, which lead to them.
    pub(crate) fn set_originals(&self) {
        for hook in &self.hooks {
            hook.real.store(0, Relaxed);
        }
        for entry in self.entries() {
            if let Some(hook) = self.hook(entry) {
                hook.real.store(entry.moved as usize, Relaxed);
            }
        }
    }

    /// How many functions lead to their hooks.
    pub fn count(&self) -> usize {
        let taken = self
            .entries()
            .iter()
            .filter(|entry| entry.target.load(Relaxed) != entry.moved);
        taken.count()
    }

    /// Leads all functions to their hooks, unless a jump is missing: None then.
    pub fn enable(&self) -> Option<usize> {
        if !self.is_complete() {
            return None;
        }
        self.set_originals();
        for entry in self.entries() {
            if let Some(hook) = self.hook(entry) {
                let hook = if entry.is_outer == 0 {
                    hook.address
                } else {
                    hook.outer
                };
                entry.target.store(hook as u64, Release);
            }
        }
        Some(self.count())
    }

    /// Leads the functions with that role, or all, past their hooks.
    pub fn disable(&self, role: Option<Role>) {
        for entry in self.entries() {
            let own = self.hook(entry).map(|hook| hook.role);
            if role.is_none() || role == own {
                entry.target.store(entry.moved, Release);
            }
        }
    }

    fn entries(&self) -> &[EntryRow] {
        let count = self.table.count as usize;
        self.table.entries.get(..count).unwrap_or_default()
    }

    fn trampoline(&self, index: usize) -> usize {
        ptr::from_ref(self.table) as usize + trampoline_offset(index)
    }

    fn hook(&self, entry: &EntryRow) -> Option<&Hook> {
        let length = entry.name.iter().position(|byte| *byte == 0)?;
        let name = &entry.name[..length];
        self.hooks.iter().find(|hook| hook.name.to_bytes() == name)
    }
}

/// Where a function's first instruction jumps to, if it is `jmp` with 32 bits.
fn jump_target(function: usize) -> Option<usize> {
    // SAFETY: code of a function that has at least so many bytes, or more code behind it.
    let [0xe9, distance @ ..] = (unsafe { (function as *const [u8; EntryRow::JUMP]).read() })
    else {
        return None;
    };
    let distance = i32::from_le_bytes(distance) as isize;
    Some(
        function
            .wrapping_add(EntryRow::JUMP)
            .wrapping_add_signed(distance),
    )
}

fn find_table(function: usize) -> Option<&'static EntryTable> {
    let stub = jump_target(function)?;
    // SAFETY: code that is jumped to, with at least one instruction; a stub of ours has 16 bytes. Read byte by byte up to
    // the first that is no stub's.
    let byte = |at: usize| unsafe { ((stub + at) as *const u8).read() };
    if byte(0) != 0xff || byte(1) != 0x25 {
        return None;
    }
    let distance = i32::from_le_bytes([byte(2), byte(3), byte(4), byte(5)]) as isize;
    let target = stub.wrapping_add(6).wrapping_add_signed(distance);
    if byte(6) != 0x0f || byte(7) != 0x0b {
        return None;
    }
    let table = usize::from_le_bytes(core::array::from_fn(|at| byte(8 + at)));
    let index = stub.wrapping_sub(table).wrapping_sub(TABLE_SIZE) / 128;
    let expected = table
        .wrapping_add(offset_of!(EntryTable, entries))
        .wrapping_add(index.wrapping_mul(size_of::<EntryRow>()));
    let is_aligned = table.is_multiple_of(1 << 12);
    if !is_aligned
        || index >= EntryTable::MOST
        || target != expected
        || stub != table + trampoline_offset(index)
    {
        return None;
    }
    // SAFETY: the code that leads to it says so three times over; it stays mapped, and only `target`s change.
    let table = unsafe { &*(table as *const EntryTable) };
    (table.mark == TABLE_MARK).then_some(table)
}
