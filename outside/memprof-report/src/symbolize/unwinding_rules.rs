//! The unwinding rules of a file (`.eh_frame`), which say where functions start and end.

use addr2line::gimli::{
    BaseAddresses, EhFrame, EhFrameHdr, EndianSlice, ParsedEhFrameHdr, RunTimeEndian, UnwindSection,
};
use object::{Object, ObjectSection, ReadRef};

type Slice<'d> = EndianSlice<'d, RunTimeEndian>;

/// Unwinding rules, with the table by which they are searched.
pub(super) struct UnwindingRules<'d> {
    header: ParsedEhFrameHdr<Slice<'d>>,
    rules: EhFrame<Slice<'d>>,
    bases: BaseAddresses,
}

/// Address and length of a function's code, as linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FunctionCode {
    pub(super) start: u64,
    pub(super) bytes: u64,
}

impl<'d> UnwindingRules<'d> {
    /// Finds the unwinding rules of a file. `None` if the file is not of a 64-bit machine, lacks `.eh_frame_hdr`,
    /// `.eh_frame` or `.text`, or their table is damaged.
    pub(super) fn find<R: ReadRef<'d>>(file: &object::File<'d, R>) -> Option<Self> {
        if !file.is_64() {
            return None;
        }
        let section = |name| file.section_by_name(name);
        let (header, rules) = (section(".eh_frame_hdr")?, section(".eh_frame")?);
        let text = section(".text")?;
        let bases = BaseAddresses::default()
            .set_eh_frame_hdr(header.address())
            .set_eh_frame(rules.address())
            .set_text(text.address());
        let endian = match file.is_little_endian() {
            true => RunTimeEndian::Little,
            false => RunTimeEndian::Big,
        };
        let slice = |section: &object::Section<'d, '_, R>| {
            Some(EndianSlice::new(section.data().ok()?, endian))
        };
        let header = EhFrameHdr::from(slice(&header)?);
        Some(Self {
            header: header.parse(&bases, 8).ok()?,
            rules: slice(&rules)?.into(),
            bases,
        })
    }

    /// Returns the code of the last function that starts at or before an address; the function may also end before the
    /// address. `None` if no function starts there, or the table is damaged.
    pub(super) fn last_function(&self, address: u64) -> Option<FunctionCode> {
        let table = self.header.table()?;
        let pointer = table.lookup(address, &self.bases).ok()?;
        let offset = table.pointer_to_offset(pointer).ok()?;
        let cie = EhFrame::cie_from_offset;
        let rule = self.rules.fde_from_offset(&self.bases, offset, cie).ok()?;
        let code = FunctionCode {
            start: rule.initial_address(),
            bytes: rule.len(),
        };
        (code.start <= address).then_some(code)
    }

    /// Returns the code of the function that contains an address. `None` if no unwinding rule covers the address, or
    /// the table is damaged.
    pub(super) fn function_at(&self, address: u64) -> Option<FunctionCode> {
        let code = self.last_function(address)?;
        (address - code.start < code.bytes).then_some(code)
    }
}
