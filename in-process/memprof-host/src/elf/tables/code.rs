//! Checks the pages of code.

use object::elf::{PF_X, PT_GNU_EH_FRAME};
use object::endian::{I32, LittleEndian, U32};
use object::read::elf::ProgramHeader as _;

use super::{LE, Library, Result, damaged_table_error};

/// Size of a page in bytes.
const PAGE_BYTES: usize = 4096;

impl Library<'_> {
    /// Returns whether code may begin at `address`. False in a page of zeros, which the CPU would execute as writes to
    /// memory (`add [rax], al`).
    pub(super) fn has_code(&self, address: u64) -> bool {
        let mut segments = self.loaded_segments();
        let offset = segments.find_map(|segment| {
            let offset = address.checked_sub(segment.p_vaddr(LE))?;
            let is_code = segment.p_flags(LE).0 & PF_X.0 != 0 && offset < segment.p_filesz(LE);
            is_code.then(|| (segment.p_offset(LE) + offset) as usize)
        });
        let page = offset.and_then(|offset| {
            let start = offset / PAGE_BYTES * PAGE_BYTES;
            self.bytes
                .get(start..self.bytes.len().min(start + PAGE_BYTES))
        });
        page.is_some_and(|page| page.iter().any(|&byte| byte != 0))
    }

    /// Fails if a function contains a page of zeros, which the CPU would execute as writes to memory, or if the unwind
    /// table is damaged. That table lists the functions in order (LSB, "`.eh_frame_hdr`"); other bytes between them are
    /// not checked. Succeeds without a check if the library has no such table, or one in an unusual encoding.
    pub(super) fn check_functions(&self) -> Result<()> {
        const TABLE: &str = "unwind table";
        // Version 1, and the encodings that all linkers use: 4 bytes each, relative to the table.
        const HEAD: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
        let mut tables = self.segments.iter();
        let Some(table) = tables.find(|segment| segment.p_type(LE) == PT_GNU_EH_FRAME) else {
            return Ok(());
        };
        let start = table.p_vaddr(LE);
        let bytes = self.bytes_from(start, TABLE)?;
        match bytes.get(..4) {
            Some(head) if head == HEAD => {}
            // Other encodings are not checked.
            Some([1, ..]) => return Ok(()),
            _ => return damaged_table_error(TABLE),
        }
        // The address of `.eh_frame` at offset 4 is skipped; the number of entries is at 8, and the entries are at 12.
        let count =
            self.read_array::<U32<LittleEndian>>(start.saturating_add(8), 1, TABLE)?[0].get(LE);
        let entries_start = start.saturating_add(12);
        let entries: &[[I32<LittleEndian>; 2]] =
            self.read_array(entries_start, count as usize, TABLE)?;
        for [function, description] in entries {
            let resolve =
                |offset: &I32<LittleEndian>| start.wrapping_add_signed(offset.get(LE).into());
            let (function, description) = (resolve(function), resolve(description));
            let words: &[U32<LittleEndian>] = self.read_array(description, 4, TABLE)?;
            // Fields of an FDE: its size, the offset of its CIE, the function's offset from here, the function's size.
            let [size, _, begin, length] = [0, 1, 2, 3].map(|index| words[index].get(LE));
            let begin = description
                .wrapping_add(8)
                .wrapping_add_signed((begin as i32).into());
            if size == 0 || begin != function {
                return damaged_table_error(TABLE);
            }
            let end = function.saturating_add(length.into());
            // One address in each page of the function.
            let last = (length > 0).then(|| end - 1);
            let mut pages = (function..end).step_by(PAGE_BYTES).chain(last);
            if !pages.all(|address| self.has_code(address)) {
                return damaged_table_error("code");
            }
        }
        Ok(())
    }
}
