//! Layout of the table of patched functions, and the code of its trampolines. memprof-attach writes both into the
//! process.

use core::mem::offset_of;
use core::sync::atomic::AtomicU64;

use crate::allocator_functions::Shape;

/// First bytes of a table. The last byte is the version of this layout.
pub const TABLE_MARK: [u8; 16] = *b"memprof entries3";
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
    /// Address of the hook to which the trampoline jumps; 0 while the hook is disabled.
    pub hook: AtomicU64,
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

    /// Returns the shape of the function. `None` for a number that this version does not define.
    pub(crate) fn shape(&self) -> Option<Shape> {
        Shape::ALL
            .into_iter()
            .find(|shape| *shape as u8 == self.shape)
    }

    /// Returns the symbol of the function, without the zeros that pad it. Empty if no zero follows the symbol;
    /// memprof-attach always writes one.
    pub(crate) fn name(&self) -> &[u8] {
        let length = self.name.iter().position(|byte| *byte == 0);
        self.name.get(..length.unwrap_or(0)).unwrap_or_default()
    }
}

const _: () = assert!(size_of::<EntryTable>() <= TABLE_SIZE);
const _: () = assert!(size_of::<EntryRow>() == 88);

/// Bytes of an entry's slot, which holds the code of [`trampoline`] and then the relocated prologue.
pub(crate) const SLOT_SIZE: usize = 128;

/// Returns the offset of the code slot of the row `index`, in bytes from the table's start.
pub const fn slot_offset(index: usize) -> usize {
    TABLE_SIZE + index * SLOT_SIZE
}

/// Returns the offset of the trampoline of the row `index`, in bytes from the table's start. The jump at the start of
/// the patched function leads to it.
pub const fn trampoline_offset(index: usize) -> usize {
    slot_offset(index) + HOOK_JUMP_SIZE
}

/// Returns the offset of the relocated prologue of the row `index`, in bytes from the table's start. It directly
/// follows the trampoline.
pub const fn prologue_offset(index: usize) -> usize {
    slot_offset(index) + TRAMPOLINE_SIZE
}

/// Bytes of a slot before the trampoline. A multiple of 32: processors decode code in pieces that are aligned so.
pub(crate) const HOOK_JUMP_SIZE: usize = 32;

/// Offset of the table's address in a slot, in bytes.
pub(crate) const TABLE_OFFSET: usize = 16;

/// Bytes of the code of [`trampoline`].
pub(crate) const TRAMPOLINE_SIZE: usize = HOOK_JUMP_SIZE + 12;

/// Returns the code of the slot with this index up to its relocated prologue, for a table at address `base`. The code
/// consists of the jump to the hook, the number `base`, by which the sampler finds the table, and the trampoline.
///
/// While the hook is disabled, the trampoline continues in the relocated prologue behind the trampoline; a call then
/// costs two more jumps and a test. The trampoline loads the hook's address only once, because another thread may
/// disable the hook at any time. The trampoline changes r11 and the flags, which no caller expects to be kept. The jump
/// to the hook passes the address of the row as the sixth argument, in r9; the patched functions have at most five.
pub const fn trampoline(base: u64, index: usize) -> [u8; TRAMPOLINE_SIZE] {
    let row = offset_of!(EntryTable, entries) + index * size_of::<EntryRow>();
    // The `lea` and the `mov` have seven bytes each.
    let [a, b, c, d] = encode_distance(slot_offset(index) + 7, row);
    let hook = row + offset_of!(EntryRow, hook);
    let [e, f, g, h] = encode_distance(trampoline_offset(index) + 7, hook);
    let [i, j, k, l, m, n, o, p] = base.to_le_bytes();
    // Distance of the backward jump: from the end of the `jne`, which ends the trampoline, to the slot's start.
    let slot = (TRAMPOLINE_SIZE as u8).wrapping_neg();
    #[rustfmt::skip]
    let code = [
        0x4c, 0x8d, 0x0d, a, b, c, d, // lea row(%rip),%r9
        0x41, 0xff, 0xe3, // jmp *%r11
        0x0f, 0x0b, 0xcc, 0xcc, 0xcc, 0xcc, // ud2; int3
        i, j, k, l, m, n, o, p,
        0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
        0x4c, 0x8b, 0x1d, e, f, g, h, // mov hook(%rip),%r11
        0x4d, 0x85, 0xdb, // test %r11,%r11
        0x75, slot, // jne slot
    ];
    code
}

/// Encodes the distance from the end of an instruction to its operand, as x86-64 encodes RIP-relative operands: 32
/// bits, little endian. `end` (the instruction's) and `offset` (the operand's) are in bytes from the table's start.
const fn encode_distance(end: usize, offset: usize) -> [u8; 4] {
    (offset as i32 - end as i32).to_le_bytes()
}
