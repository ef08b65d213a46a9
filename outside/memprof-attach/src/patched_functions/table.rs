//! The table of patched functions in the process, and the code after it: for each function a trampoline and its
//! relocated prologue.

use std::io;
use std::mem::offset_of;

use memprof_ptrace::maps::{Mapping, mappings};
use memprof_ptrace::memory::Memory;
use memprof_sampler::{
    EntryRow, EntryTable, TABLE_MARK, TABLE_SIZE, prologue_offset, slot_offset, trampoline,
    trampoline_offset,
};

use super::plan::PatchPlan;
use super::prologue::NotRelocatable;

/// Size of the table and its code, in bytes.
pub(crate) const TABLE_AND_CODE_SIZE: u64 = slot_offset(EntryTable::MAX_ENTRIES) as u64;
const ENTRY_SIZE: usize = size_of::<EntryRow>();
/// Largest length of a row's name, which ends with a zero.
const MAX_NAME_LENGTH: usize = ENTRY_SIZE - offset_of!(EntryRow, name) - 1;

/// Bytes of a table and its code for one address.
#[derive(Debug)]
pub(crate) struct TableImage {
    pub(crate) table: Vec<u8>,
    pub(crate) code: Vec<u8>,
    /// For each function the original and the relocated address of its prologue's instructions.
    pub(crate) addresses: Vec<Vec<(u64, u64)>>,
}

/// An entry of a table in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InstalledEntry {
    pub(crate) function: u64,
    /// Address of the word that holds the address of the hook.
    pub(crate) hook: u64,
    pub(crate) original: [u8; EntryRow::JUMP_SIZE],
    pub(crate) jump: [u8; EntryRow::JUMP_SIZE],
}

impl TableImage {
    /// Builds the table of a plan for the address `base`, and the code after it: for each function a trampoline and the
    /// relocated prologue. Writes nothing to the process.
    ///
    /// # Errors
    /// The name of the first function that cannot be relocated, and the reason.
    pub(crate) fn new(plan: &PatchPlan, base: u64) -> Result<Self, (String, NotRelocatable)> {
        let mut table = vec![0; TABLE_SIZE];
        // `int3` between the pieces of code.
        let mut code = vec![0xcc; TABLE_AND_CODE_SIZE as usize - TABLE_SIZE];
        let mut addresses = Vec::new();
        let put = |bytes: &mut [u8], offset: usize, part: &[u8]| {
            bytes[offset..offset + part.len()].copy_from_slice(part)
        };
        for (index, function) in plan.functions.iter().enumerate() {
            let failed = |reason| (function.name.clone(), reason);
            let start = base + trampoline_offset(index) as u64;
            let relocated = base + prologue_offset(index) as u64;
            let prologue = function.prologue.relocate_to(relocated).map_err(failed)?;
            let room = slot_offset(index + 1) - prologue_offset(index);
            if prologue.bytes.len() > room
                || encode_jump(function.prologue.range.start, start).is_none()
            {
                return Err(failed(NotRelocatable::Far));
            }
            let entry = offset_of!(EntryTable, entries) + index * ENTRY_SIZE;
            let mut set = |offset: usize, part: &[u8]| put(&mut code, offset - TABLE_SIZE, part);
            set(slot_offset(index), &trampoline(base, index));
            set(prologue_offset(index), &prologue.bytes);
            let mut set = |offset: usize, part: &[u8]| put(&mut table, entry + offset, part);
            set(offset_of!(EntryRow, moved), &relocated.to_le_bytes());
            set(
                offset_of!(EntryRow, function),
                &function.prologue.range.start.to_le_bytes(),
            );
            set(offset_of!(EntryRow, original), function.original_bytes());
            set(offset_of!(EntryRow, is_outer), &[function.is_outer.into()]);
            set(offset_of!(EntryRow, shape), &[function.shape as u8]);
            // Names of hooks are shorter, so a cut name is none of them.
            let length = function.name.len().min(MAX_NAME_LENGTH);
            set(
                offset_of!(EntryRow, name),
                &function.name.as_bytes()[..length],
            );
            addresses.push(prologue.addresses);
        }
        let count = plan.functions.len() as u64;
        put(
            &mut table,
            offset_of!(EntryTable, count),
            &count.to_le_bytes(),
        );
        Ok(Self {
            table,
            code,
            addresses,
        })
    }

    /// Writes the table and the code to the process, and last the mark by which [`find_tables`] recognizes a complete
    /// table. Fails if the process's memory cannot be written.
    pub(crate) fn write(&self, memory: &Memory, base: u64) -> io::Result<()> {
        memory.write(base + TABLE_SIZE as u64, &self.code)?;
        memory.write(base, &self.table)?;
        memory.write(base + offset_of!(EntryTable, mark) as u64, &TABLE_MARK)
    }

    /// Returns whether the process has this table and its code at `base`. Ignores the addresses of hooks, which
    /// the plugin may have set. Fails if the process's memory cannot be read.
    pub(crate) fn matches(&self, memory: &Memory, base: u64) -> io::Result<bool> {
        let mut code = vec![0; self.code.len()];
        memory.read(base + TABLE_SIZE as u64, &mut code)?;
        let mut table = vec![0; self.table.len()];
        memory.read(base, &mut table)?;
        let mut expected = self.table.clone();
        // [`Self::write`] adds the mark.
        expected[..TABLE_MARK.len()].copy_from_slice(&TABLE_MARK);
        for index in 0..EntryTable::MAX_ENTRIES {
            let hook =
                offset_of!(EntryTable, entries) + index * ENTRY_SIZE + offset_of!(EntryRow, hook);
            table[hook..hook + 8].fill(0);
        }
        Ok((code, table) == (self.code.clone(), expected))
    }
}

/// Finds the addresses of the tables that attachments have written to a process, by their marks. Skips a table without
/// a mark, which is incomplete.
pub(crate) fn find_tables(memory: &Memory, maps: &[u8]) -> impl Iterator<Item = u64> {
    candidate_table_addresses(maps).filter(|base| {
        memory
            .read_array(*base)
            .is_ok_and(|mark| mark == TABLE_MARK)
    })
}

/// Iterates over the addresses at which a table may lie: right below anonymous code. The table's mapping may begin
/// lower, because the kernel merges it with one that the program has mapped below.
fn candidate_table_addresses(maps: &[u8]) -> impl Iterator<Item = u64> {
    let mut before: Option<Mapping<'_>> = None;
    mappings(maps).filter_map(move |mapping| {
        let is_code = mapping.inode == 0 && mapping.access == *b"r-xp";
        let code = mapping.range.start;
        let base = code.checked_sub(TABLE_SIZE as u64)?;
        let data = before.replace(mapping)?;
        let is_data = data.inode == 0 && data.access == *b"rw-p";
        let is_table = is_data && data.range.contains(&base) && data.range.end == code;
        (is_code && is_table).then_some(base)
    })
}

/// Reads the entries of the table at `base` in the process. Fails if the memory cannot be read, or with `InvalidData`
/// if a function's jump cannot reach its trampoline.
pub(crate) fn read_entries(memory: &Memory, base: u64) -> io::Result<Vec<InstalledEntry>> {
    let count = memory.read_u64(base + offset_of!(EntryTable, count) as u64)?;
    let count = (count as usize).min(EntryTable::MAX_ENTRIES);
    let read_entry = |index: usize| {
        let entry = base + (offset_of!(EntryTable, entries) + index * ENTRY_SIZE) as u64;
        let field = |offset: usize| entry + offset as u64;
        let function = memory.read_u64(field(offset_of!(EntryRow, function)))?;
        let start = base + trampoline_offset(index) as u64;
        let far = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "a function is too far from its stub",
            )
        };
        Ok(InstalledEntry {
            function,
            hook: field(offset_of!(EntryRow, hook)),
            original: memory.read_array(field(offset_of!(EntryRow, original)))?,
            jump: encode_jump(function, start).ok_or_else(far)?,
        })
    };
    (0..count).map(read_entry).collect()
}

/// Encodes a `jmp` from one address to another; `None` if they are more than 2 GiB apart.
fn encode_jump(from: u64, to: u64) -> Option<[u8; EntryRow::JUMP_SIZE]> {
    let distance = to.wrapping_sub(from + EntryRow::JUMP_SIZE as u64) as i64;
    let [a, b, c, d] = i32::try_from(distance).ok()?.to_le_bytes();
    Some([0xe9, a, b, c, d])
}

/// Finds free addresses for a table near a function: below its file, where a program's heap does not grow, or in any
/// gap that jumps reach. `None` if there are none, or if no mapping contains the function.
pub(crate) fn find_table_space(maps: &[u8], function: u64) -> Option<u64> {
    const MIN_ADDRESS: u64 = 0x10_0000;
    const MAX_DISTANCE: u64 = 1 << 30;
    const PAGE_SIZE: u64 = 4096;
    let all: Vec<_> = mappings(maps).collect();
    let file = all
        .iter()
        .find(|mapping| mapping.range.contains(&function))?;
    let of_file = all.iter().filter(|mapping| mapping.path == file.path);
    let start = of_file.map(|mapping| mapping.range.start).min()?;
    let is_free = |base: &u64| {
        let (from, to) = (base - PAGE_SIZE, base + TABLE_AND_CODE_SIZE + PAGE_SIZE);
        let next = all.partition_point(|mapping| mapping.range.end <= from);
        all.get(next).is_none_or(|next| next.range.start >= to)
    };
    // Several distances, in bytes, because some addresses may be in use. For example, a command that was killed too
    // early leaves a table without a mark.
    let far = (0..32).map(|step| (16 << 20) - step * (64 << 10));
    let distances = far.chain([1 << 20, 1 << 17]);
    let below = distances.filter_map(|distance| start.checked_sub(distance));
    let gaps = all
        .iter()
        .filter(|mapping| mapping.range.start.abs_diff(start) < MAX_DISTANCE);
    let ends = gaps.map(|mapping| {
        mapping
            .range
            .start
            .saturating_sub(TABLE_AND_CODE_SIZE + PAGE_SIZE)
    });
    let mut ends: Vec<_> = ends.collect();
    ends.sort_by_key(|end| end.abs_diff(start));
    let mut bases = below.chain(ends);
    bases.find(|base| *base >= MIN_ADDRESS && is_free(base))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_placed_near_the_function() {
        let check = |maps: &str, expected| {
            let program = 0x5555_5555_5000;
            assert_eq!(
                find_table_space(maps.as_bytes(), program),
                expected,
                "{maps}"
            );
        };
        let program = "555555554000-555555555000 r--p 00000000 08:01 7 /bin/p\n\
                       555555555000-555555556000 r-xp 00001000 08:01 7 /bin/p\n";
        check(program, Some(0x5555_5455_4000));
        let other = "555554400000-555554560000 rw-p 00000000 00:00 0 \n";
        check(&format!("{other}{program}"), Some(0x5555_5456_4000));
        check("", None);
        // Not position independent: the first of these distances is below zero.
        let low = "000000400000-000000401000 r-xp 00000000 08:01 7 /bin/p\n";
        assert_eq!(find_table_space(low.as_bytes(), 0x40_0000), Some(0x30_0000));
        // Between other mappings: below the nearest one that has room below it.
        let library = "7f0002000000-7f0002001000 r-xp 00000000 08:01 7 /lib/libc.so.6\n";
        let others = "7f0000000000-7f0002000000 rw-p 00000000 00:00 0 \n";
        let space = 0x7f00_0000_0000 - TABLE_AND_CODE_SIZE - 4096;
        let maps = format!("{others}{library}");
        assert_eq!(
            find_table_space(maps.as_bytes(), 0x7f00_0200_0000),
            Some(space)
        );
        let full = "000000101000-7f0002000000 rw-p 00000000 00:00 0 \n";
        let maps = format!("{full}{library}");
        assert_eq!(find_table_space(maps.as_bytes(), 0x7f00_0200_0000), None);
    }

    #[test]
    fn table_is_found_where_its_mapping_was_merged() {
        let check = |maps: &str, expected: &[u64]| {
            let found: Vec<_> = candidate_table_addresses(maps.as_bytes()).collect();
            assert_eq!(found, expected, "{maps}");
        };
        let code = "7f0000004000-7f0000007000 r-xp 00000000 00:00 0 \n";
        let alone = "7f0000000000-7f0000004000 rw-p 00000000 00:00 0 \n";
        check(&format!("{alone}{code}"), &[0x7f00_0000_0000]);
        let merged = "7efffffff000-7f0000004000 rw-p 00000000 00:00 0 \n";
        check(&format!("{merged}{code}"), &[0x7f00_0000_0000]);
        let file = "7f0000000000-7f0000004000 rw-p 00000000 08:01 7 /lib/x.so\n";
        check(&format!("{file}{code}"), &[]);
        let small = "7f0000003000-7f0000004000 rw-p 00000000 00:00 0 \n";
        check(&format!("{small}{code}"), &[]);
        check(code, &[]);
    }

    #[test]
    fn jumps_span_two_gibibytes() {
        assert_eq!(encode_jump(0x1000, 0x1005), Some([0xe9, 0, 0, 0, 0]));
        assert_eq!(
            encode_jump(0x1000, 0x1000),
            Some([0xe9, 0xfb, 0xff, 0xff, 0xff])
        );
        assert_eq!(encode_jump(0x1000, 0x1005 + (1 << 31)), None);
    }
}
