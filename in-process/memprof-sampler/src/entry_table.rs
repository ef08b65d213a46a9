//! Layout of the table of patched functions, and the code of its trampolines. memprof-attach writes both into the
//! process.

use core::mem::offset_of;
use core::sync::atomic::AtomicU64;

use crate::allocator_functions::Shape;

/// First bytes of a table. The last byte is the version of this layout.
pub const TABLE_MARK: [u8; 16] = *b"memprof entries2";
/// Bytes reserved for a table; the trampolines follow.
pub const TABLE_SIZE: usize = 4 << 12;
/// Table of one allocator's patched functions, as memprof-attach writes it.
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

/// Row of a patched function, which begins with a jump to its trampoline.
#[derive(Debug)]
#[repr(C)]
pub struct EntryRow {
    /// Address to which the trampoline jumps: a hook, or `moved` while the hook is disabled.
    pub target: AtomicU64,
    /// Address of the relocated prologue, which ends with a jump to the rest of the function.
    pub moved: u64,
    /// Address of the patched jump: the start of the function, or the end of its `endbr64`.
    pub function: u64,
    /// Original bytes that the jump replaced.
    pub original: [u8; Self::JUMP_SIZE],
    /// 1 if the function calls other functions of the table, directly or not.
    pub is_outer: u8,
    /// [`Shape`] of the function.
    pub shape: u8,
    /// Zero.
    pub reserved: u8,
    /// Symbol of the function, padded with zeros.
    pub name: [u8; 56],
}

impl EntryTable {
    /// Rows of a table.
    pub const MAX_ENTRIES: usize = 160;
}

impl EntryRow {
    /// Bytes of a `jmp` with a 32-bit distance.
    pub const JUMP_SIZE: usize = 5;

    /// Shape of the function. `None` for a number that this version does not define.
    pub(crate) fn shape(&self) -> Option<Shape> {
        Shape::ALL
            .into_iter()
            .find(|shape| *shape as u8 == self.shape)
    }

    /// Symbol of the function, without the zeros that pad it. Empty if there is no zero.
    pub(crate) fn name(&self) -> &[u8] {
        let length = self.name.iter().position(|byte| *byte == 0);
        self.name.get(..length.unwrap_or(0)).unwrap_or_default()
    }
}

const _: () = assert!(size_of::<EntryTable>() <= TABLE_SIZE);
const _: () = assert!(size_of::<EntryRow>() == 88);

/// Returns the offset of an entry's trampoline from the table's start, in bytes. The slot of 128 bytes holds the code
/// of [`trampoline`], then the relocated prologue.
pub const fn trampoline_offset(index: usize) -> usize {
    TABLE_SIZE + index * 128
}

/// Bytes of the trampoline's code, which the relocated prologue follows.
pub const TRAMPOLINE_SIZE: usize = 24;

/// Code of the trampoline of the entry with this index, for a table at `base`. It loads the address of the row into r11
/// and jumps to `target`. The last eight bytes are `base`, from which the sampler finds the table.
pub const fn trampoline(base: u64, index: usize) -> [u8; TRAMPOLINE_SIZE] {
    let row = offset_of!(EntryTable, entries) + index * size_of::<EntryRow>();
    let start = trampoline_offset(index);
    // `lea` ends at byte 7, and `jmp` at byte 13.
    let [a, b, c, d] = distance_from(start + 7, row);
    let target = row + offset_of!(EntryRow, target);
    let [e, f, g, h] = distance_from(start + 13, target);
    let [i, j, k, l, m, n, o, p] = base.to_le_bytes();
    [
        // lea row(%rip),%r11
        0x4c, 0x8d, 0x1d, a, b, c, d, // jmp *target(%rip); ud2; int3
        0xff, 0x25, e, f, g, h, 0x0f, 0x0b, 0xcc, i, j, k, l, m, n, o, p,
    ]
}

/// Distance from the end of an instruction to an offset of the table, as the instruction encodes it.
const fn distance_from(end: usize, offset: usize) -> [u8; 4] {
    (offset as i32 - end as i32).to_le_bytes()
}
