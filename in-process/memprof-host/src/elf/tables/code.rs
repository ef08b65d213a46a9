//! Pages of code.

use object::elf::{PF_X, PT_GNU_EH_FRAME};
use object::endian::{I32, LittleEndian, U32};
use object::read::elf::ProgramHeader as _;

use super::{LE, Library, Result, damaged};

const PAGE: usize = 4096;

impl Library<'_> {
    /// Whether code may begin at `address`: not in a page of zeros, which are instructions that write to memory.
    pub(super) fn has_code(&self, address: u64) -> bool {
        let mut segments = self.loaded();
        let place = segments.find_map(|segment| {
            let inside = address.checked_sub(segment.p_vaddr(LE))?;
            let is_code = segment.p_flags(LE).0 & PF_X.0 != 0 && inside < segment.p_filesz(LE);
            is_code.then(|| (segment.p_offset(LE) + inside) as usize)
        });
        let page = place.and_then(|place| {
            let start = place / PAGE * PAGE;
            self.bytes.get(start..self.bytes.len().min(start + PAGE))
        });
        page.is_some_and(|page| page.iter().any(|&byte| byte != 0))
    }

    /// No function has a page of zeros, which are instructions that write to memory. The unwind table names the
    /// functions, sorted (LSB, "`.eh_frame_hdr`"); between them there may be anything.
    pub(super) fn check_functions(&self) -> Result<()> {
        const TABLE: &str = "unwind table";
        // Version 1; a pointer and the entries as all linkers encode them: 4 bytes each, from the table's start.
        const HEAD: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
        let mut tables = self.segments.iter();
        let Some(table) = tables.find(|segment| segment.p_type(LE) == PT_GNU_EH_FRAME) else {
            return Ok(());
        };
        let start = table.p_vaddr(LE);
        let bytes = self.from(start, TABLE)?;
        match bytes.get(..4) {
            Some(head) if head == HEAD => {}
            Some([1, ..]) => return Ok(()),
            _ => return damaged(TABLE),
        }
        let count = self.slice::<U32<LittleEndian>>(start.saturating_add(8), 1, TABLE)?[0].get(LE);
        let place = start.saturating_add(12);
        let entries: &[[I32<LittleEndian>; 2]] = self.slice(place, count as usize, TABLE)?;
        for [function, account] in entries {
            let place =
                |offset: &I32<LittleEndian>| start.wrapping_add_signed(offset.get(LE).into());
            let (function, account) = (place(function), place(account));
            let words: &[U32<LittleEndian>] = self.slice(account, 4, TABLE)?;
            // Its own size, the place of what it shares with others, the function's place from here, its size.
            let [size, _, begin, length] = [0, 1, 2, 3].map(|at| words[at].get(LE));
            let begin = account
                .wrapping_add(8)
                .wrapping_add_signed((begin as i32).into());
            if size == 0 || begin != function {
                return damaged(TABLE);
            }
            let end = function.saturating_add(length.into());
            let last = (length > 0).then(|| end - 1);
            let mut pages = (function..end).step_by(PAGE).chain(last);
            if !pages.all(|address| self.has_code(address)) {
                return damaged("code");
            }
        }
        Ok(())
    }
}
