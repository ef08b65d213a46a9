//! Patched entry points of an allocator, for calls that use no GOT slot: calls to an allocator linked statically into
//! the program or a library, and calls through stored function addresses. Each patched function begins with a jump to a
//! trampoline. The trampoline jumps to the hook in the function's row of a table, or continues in the function's
//! relocated prologue if the row has none. Each file with patched functions has its own table, because a jump reaches
//! only 2 GiB.
//!
//! memprof-attach writes the table and the jumps while all threads are stopped. Enabling or disabling a hook then takes
//! one store per function, as for a slot. The table and the relocated prologues stay mapped until the process ends.
#![expect(unsafe_code, reason = "code and a table that another process wrote")]

use core::ptr;
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::allocator_functions::{PREFIXES, Shape};
use crate::entry_hooks::entry_hook;
use crate::entry_table::{
    EntryRow, EntryTable, HOOK_JUMP_SIZE, SLOT_SIZE, TABLE_MARK, TABLE_OFFSET, TABLE_SIZE,
    trampoline, trampoline_offset,
};
use crate::hooks::{HOOK_COUNT, Hook, Role, hooks};

/// Symbol name of [`memprof_entry_tables`].
pub const TABLES_SYMBOL: &str = "memprof_entry_tables";

/// Addresses of the tables of allocators that do not serve `malloc`, such as the jemalloc of a Rust program
/// (`_rjem_malloc`); 0 for an unused element. memprof-attach writes them.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a symbol")]
pub static memprof_entry_tables: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

/// Table of one allocator's patched functions in this process.
#[derive(Clone, Debug)]
pub struct PatchedEntries {
    table: &'static EntryTable,
    /// Hooks of slots, which may still be called through copied addresses. `None` for an allocator that serves no slot.
    hooks: Option<[Hook; HOOK_COUNT]>,
}

impl PatchedEntries {
    /// Finds the table through `function`, the address of one of its patched functions. `None` unless `function` begins
    /// with a jump that memprof-attach wrote, and the jump leads to an intact trampoline and table.
    pub fn find(function: usize) -> Option<Self> {
        Some(Self {
            table: find_table(function)?,
            hooks: Some(hooks()),
        })
    }

    /// Iterates over the tables of allocators that do not serve `malloc`. Skips a table without [`TABLE_MARK`], and one
    /// whose functions do not all begin with their jumps.
    pub fn iter_beside_malloc() -> impl Iterator<Item = Self> {
        let tables = memprof_entry_tables.iter().filter_map(|word| {
            let table = word.load(Acquire) as *const EntryTable;
            // SAFETY: memprof-attach stored the address after it wrote the table, which stays for the life of the
            // process.
            let table = unsafe { table.as_ref() }?;
            (table.mark == TABLE_MARK).then_some(Self { table, hooks: None })
        });
        tables.filter(Self::is_complete)
    }

    /// Returns the address of the table's first patched function; 0 if the table is empty.
    pub fn first_function(&self) -> usize {
        self.entries()
            .first()
            .map_or(0, |entry| entry.function as usize)
    }

    /// Returns whether all functions still begin with their jumps. False if memprof-attach was killed while it wrote
    /// them, or has restored the functions.
    pub fn is_complete(&self) -> bool {
        let mut entries = self.entries().iter().enumerate();
        entries.all(|(index, entry)| {
            jump_target(entry.function as usize) == Some(self.trampoline_address(index))
        })
    }

    /// Returns the address at which a hook calls the function defined at `definition`. For a patched function this is
    /// the relocated prologue, because the function itself jumps to the hook. An unpatched function is called at
    /// `definition`.
    pub(crate) fn call_address(&self, definition: usize) -> usize {
        let jump = patched_jump_address(definition) as u64;
        let mut entries = self.entries().iter();
        let entry = entries.find(|entry| entry.function == jump);
        entry.map_or(definition, |entry| entry.moved as usize)
    }

    /// Returns the name of the allocator, known by the prefix of its functions. `None` if no prefix is known.
    pub fn allocator_name(&self) -> Option<&'static str> {
        self.entries().iter().find_map(|entry| {
            let mut known = PREFIXES.iter();
            let known = known.find(|(prefix, _)| entry.name().starts_with(prefix.as_bytes()))?;
            Some(known.1)
        })
    }

    /// Makes the hooks that GOT slots may hold call the relocated prologues. The functions themselves now jump to
    /// hooks, so calling these would count twice.
    fn make_hooks_call_prologues(&self) {
        for entry in self.entries() {
            let mut hooks = self.hooks.iter().flatten();
            if let Some(hook) = hooks.find(|hook| hook.name.to_bytes() == entry.name()) {
                hook.original.store(entry.moved as usize, Relaxed);
            }
        }
    }

    /// Returns the number of functions whose trampolines jump to their hooks.
    pub fn enabled_count(&self) -> usize {
        let enabled = self
            .entries()
            .iter()
            .filter(|entry| entry.hook.load(Relaxed) != 0);
        enabled.count()
    }

    /// Enables the hooks of all functions whose shape is known, and returns the number of enabled hooks. `None`, with
    /// nothing changed, if a jump is missing.
    pub fn enable(&self) -> Option<usize> {
        if !self.is_complete() {
            return None;
        }
        self.make_hooks_call_prologues();
        for entry in self.entries() {
            if let Some(shape) = entry.shape() {
                let hook = entry_hook(shape, entry.is_outer != 0);
                entry.hook.store(hook as u64, Release);
            }
        }
        Some(self.enabled_count())
    }

    /// Disables the hooks of functions with `role`, or all hooks if it is `None`.
    pub fn disable(&self, role: Option<Role>) {
        for entry in self.entries() {
            let own = entry.shape().map(Shape::role);
            if role.is_none() || role == own {
                entry.hook.store(0, Release);
            }
        }
    }

    /// Returns the rows of the table that are in use. Empty if the table's count is larger than the table.
    fn entries(&self) -> &[EntryRow] {
        let count = self.table.count as usize;
        self.table.entries.get(..count).unwrap_or_default()
    }

    /// Returns the address of the trampoline of the row `index` in this process.
    fn trampoline_address(&self, index: usize) -> usize {
        ptr::from_ref(self.table) as usize + trampoline_offset(index)
    }
}

/// Returns the address at which memprof-attach writes a function's jump: after the `endbr64`, if the function begins
/// with one.
fn patched_jump_address(function: usize) -> usize {
    const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    // SAFETY: the caller passes the address of a function. Its code has at least four bytes, or other code follows.
    let first = unsafe { (function as *const [u8; 4]).read() };
    function + if first == ENDBR { ENDBR.len() } else { 0 }
}

/// Returns the target of the jump at an address in code. `None` unless the instruction is a `jmp` with a 32-bit
/// distance.
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

/// Finds the table through the trampoline to which a function jumps. `None` unless the jump, the trampoline and the
/// table are as memprof-attach writes them.
fn find_table(function: usize) -> Option<&'static EntryTable> {
    let start = jump_target(patched_jump_address(function))?;
    let slot = start.wrapping_sub(HOOK_JUMP_SIZE);
    // SAFETY: a jump leads to code, which has at least one instruction. The first bytes are read in order, and reading
    // stops at the first byte that differs from memprof-attach's trampoline. The `jne` at its end leads to the slot's
    // start, so all bytes from there are code as well.
    let byte = |offset: usize| unsafe { (slot.wrapping_add(offset) as *const u8).read() };
    // Bytes of a trampoline that do not depend on the table's address.
    let fixed = [0, 1, 2, 7, 8, 9, 10, 11].map(|offset| HOOK_JUMP_SIZE + offset);
    let expected = trampoline(0, 0);
    if fixed
        .iter()
        .any(|offset| byte(*offset) != expected[*offset])
    {
        return None;
    }
    let table = usize::from_le_bytes(core::array::from_fn(|index| byte(TABLE_OFFSET + index)));
    let index = slot.wrapping_sub(table).wrapping_sub(TABLE_SIZE) / SLOT_SIZE;
    if !table.is_multiple_of(1 << 12)
        || index >= EntryTable::MAX_ENTRIES
        || start != table + trampoline_offset(index)
        || core::array::from_fn(byte) != trampoline(table as u64, index)
    {
        return None;
    }
    // SAFETY: the jump, the trampoline's copy of the address and the trampoline's position agree on the table. It stays
    // mapped, and only its `hook`s change.
    let table = unsafe { &*(table as *const EntryTable) };
    (table.mark == TABLE_MARK).then_some(table)
}
