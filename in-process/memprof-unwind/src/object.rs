//! Finds the call frame information of code that is loaded in this process.
#![expect(
    unsafe_code,
    reason = "the loader's answers, and what they point to in memory"
)]

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::slice;

use crate::cfi::{CodeUnwinding, Section, caller_at, rule_at};
use crate::register_file::RegisterFile;
use crate::rule::Rule;
use crate::stack_memory::{PAGE, is_readable};
use crate::walk::StackReader;

/// `_dl_find_object` of glibc 2.35 and newer (`dlfcn.h`). It takes no lock and allocates nothing.
pub type FindObject = unsafe extern "C" fn(*mut c_void, *mut FoundObject) -> c_int;

/// `struct dl_find_object`, without `dlfo_eh_dbase`, which x86-64 lacks.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FoundObject {
    flags: u64,
    map_start: usize,
    map_end: usize,
    link_map: *const c_void,
    /// Address of `.eh_frame_hdr`; null if the object has none.
    eh_frame: *const u8,
    reserved: [u64; 7],
}

/// Reads the rule at an address of this process. `find` is the loader's `_dl_find_object`. Returns [`Rule::Unknown`] if
/// no loaded object contains the address, [`Rule::Undescribed`] if the object has no call frame information, and
/// [`Rule::Unsupported`] if the information cannot be read. Also returns [`Rule::Unsupported`] if the information
/// describes a signal's frame, but the code is not the kernel's return from a signal.
pub(crate) fn loaded_rule_at(find: FindObject, address: usize) -> Rule {
    let (object, information, hdr) = match FoundObject::find_unwind_info(find, address) {
        Ok(found) => found,
        Err(rule) => return rule,
    };
    let rule = rule_at(
        hdr,
        |eh_frame| information.readable_memory_from(eh_frame as usize),
        address as u64,
    );
    if rule == Rule::Signal && !object.is_signal_return(address + 1) {
        return Rule::Unsupported;
    }
    rule
}

/// Returns the start address of the loaded object that contains `address`. If the object has gaps between its segments,
/// returns the start of the segment. `None` if the loader knows no such object. `find` is the loader's
/// `_dl_find_object`.
pub(crate) fn loaded_object_start(find: FindObject, address: usize) -> Option<usize> {
    FoundObject::find(find, address).map(|object| object.map_start)
}

/// Returns the registers of the caller of a frame at an address of this process, and whether a signal interrupted that
/// caller. `find` is the loader's `_dl_find_object`. The error is the rule of code without call frame information, or
/// [`Rule::Unsupported`] if the information cannot be read, or needs an unknown register or unreadable memory.
pub(crate) fn loaded_caller_at(
    find: FindObject,
    address: usize,
    callee: &RegisterFile,
    memory: &mut impl StackReader,
) -> Result<(RegisterFile, bool), Rule> {
    let (object, information, hdr) = FoundObject::find_unwind_info(find, address)?;
    let unwinding = caller_at(
        hdr,
        |eh_frame| information.readable_memory_from(eh_frame as usize),
        address as u64,
        callee,
        memory,
    );
    let before_signal = |memory: &mut _| {
        let sp = callee.get(gimli::X86_64::RSP)?;
        RegisterFile::before_signal(sp, memory)
    };
    match unwinding.ok_or(Rule::Unsupported)? {
        CodeUnwinding::Row(caller) => Ok((caller, false)),
        CodeUnwinding::Undescribed => Err(Rule::Undescribed),
        CodeUnwinding::Signal if object.is_signal_return(address + 1) => {
            let caller = before_signal(memory).ok_or(Rule::Unsupported)?;
            Ok((caller, true))
        }
        CodeUnwinding::Signal => Err(Rule::Unsupported),
    }
}

impl FoundObject {
    /// Finds the object that contains an address, or its segment if the object has gaps. `find` is the loader's
    /// `_dl_find_object`. `None` if the loader knows no such object.
    fn find(find: FindObject, address: usize) -> Option<Self> {
        let mut found = MaybeUninit::<Self>::zeroed();
        // SAFETY: dlfcn.h: the function takes any address, and fills in the object if it returns 0.
        if unsafe { find(address as *mut c_void, found.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: all zeros are a valid value, and so is the loader's result.
        Some(unsafe { found.assume_init() })
    }

    /// Finds the object that contains an address, the segment with its call frame information, and the sorted table of
    /// that information (`.eh_frame_hdr`). The error is [`Rule::Unknown`] if no object contains the address,
    /// [`Rule::Undescribed`] if the object has no call frame information, and [`Rule::Unsupported`] if that information
    /// cannot be read.
    fn find_unwind_info(
        find: FindObject,
        address: usize,
    ) -> Result<(Self, Self, Section<'static>), Rule> {
        let object = Self::find(find, address).ok_or(Rule::Unknown)?;
        if object.eh_frame.is_null() {
            return Err(Rule::Undescribed);
        }
        let hdr = object.eh_frame as usize;
        // If an object has gaps between its segments, glibc reports each segment separately.
        let segment = if object.contains(hdr) {
            None
        } else {
            Self::find(find, hdr).filter(|segment| segment.link_map == object.link_map)
        };
        let information = segment.unwrap_or(object);
        let hdr = information
            .readable_memory_from(hdr)
            .ok_or(Rule::Unsupported)?;
        Ok((object, information, hdr))
    }

    /// Returns whether an address is in the object, or in its segment if the object has gaps.
    fn contains(&self, address: usize) -> bool {
        (self.map_start..self.map_end).contains(&address)
    }

    /// Returns the memory from `address` to the end of its readable segment. `None` if no readable segment of the
    /// object contains the address.
    fn readable_memory_from(&self, address: usize) -> Option<Section<'static>> {
        let end = self.segment_end(address)?;
        let length = end.checked_sub(address)?;
        // SAFETY: dlfcn.h: the object stays loaded while a frame of its code is on this thread's stack. These bytes are
        // within a readable segment.
        let bytes = unsafe { slice::from_raw_parts(address as *const u8, length) };
        Some(Section {
            address: address as u64,
            bytes,
        })
    }

    /// Returns the end of the readable segment that contains `address`. If the loader reported a segment without the
    /// object's headers, returns the end of that segment. `None` if no readable segment contains the address, or if the
    /// headers cannot be read.
    fn segment_end(&self, address: usize) -> Option<usize> {
        if !self.contains(address) || !is_readable(self.map_start) {
            return None;
        }
        // SAFETY: `is_readable` checked this page.
        let page = unsafe { &*(self.map_start as *const [u8; PAGE]) };
        if !page.starts_with(ELF64) {
            // The loader reported a segment that does not start with the object's ELF header.
            return is_readable(self.map_end - 1).then_some(self.map_end);
        }
        // SAFETY: link.h: the first field is `l_addr`, the load bias.
        let bias = unsafe { self.link_map.cast::<usize>().read() };
        let end = readable_segment_end(page, address.checked_sub(bias)? as u64)?;
        let end = bias.checked_add(usize::try_from(end).ok()?)?;
        (end <= self.map_end).then_some(end)
    }

    /// Returns whether the code at `address` is the kernel's return from a signal handler. Only there are the registers
    /// at the offsets that [`Rule::Signal`] assumes. A walk looks up the byte before that code, as before a return
    /// address, so callers pass the address after the one that they looked up.
    fn is_signal_return(&self, address: usize) -> bool {
        // mov rax, 15 (rt_sigreturn); syscall
        const CODE: [u8; 9] = [0x48, 0xC7, 0xC0, 15, 0, 0, 0, 0x0F, 0x05];
        let code = self.readable_memory_from(address);
        code.is_some_and(|section| section.bytes.starts_with(&CODE))
    }
}

const ELF64: &[u8] = b"\x7fELF\x02";

/// Returns the end of the readable `PT_LOAD` segment that contains `address`. Addresses are those of the file, and
/// `page` is its first page (gABI, "ELF Header" and "Program Header"). `None` if there is no such segment, or if the
/// headers are invalid or not all in that page.
fn readable_segment_end(page: &[u8; PAGE], address: u64) -> Option<u64> {
    const HEADER_SIZE: u16 = 56;
    const PT_LOAD: u32 = 1;
    const PF_R: u32 = 4;
    // Offsets in `Elf64_Ehdr`: `e_phoff` 32, `e_phentsize` 54, `e_phnum` 56. In `Elf64_Phdr`: `p_type` 0, `p_flags` 4,
    // `p_vaddr` 16, `p_filesz` 32.
    if !page.starts_with(ELF64) || u16_at(page, 54)? != HEADER_SIZE {
        return None;
    }
    let headers = page.get(usize::try_from(u64_at(page, 32)?).ok()?..)?;
    let mut headers = headers
        .chunks_exact(HEADER_SIZE.into())
        .take(u16_at(page, 56)?.into());
    headers.find_map(|header| {
        let (start, size) = (u64_at(header, 16)?, u64_at(header, 32)?);
        let is_readable = u32_at(header, 0)? == PT_LOAD && u32_at(header, 4)? & PF_R != 0;
        let covers = address.checked_sub(start)? < size;
        (is_readable && covers).then(|| start.checked_add(size))?
    })
}

/// Reads a number of 16 bits at an offset, aligned or not. `None` beyond the end.
fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes_at(bytes, offset).map(u16::from_ne_bytes)
}

/// Reads a number of 32 bits at an offset, aligned or not. `None` beyond the end.
fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes_at(bytes, offset).map(u32::from_ne_bytes)
}

/// Reads a number of 64 bits at an offset, aligned or not. `None` beyond the end.
fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes_at(bytes, offset).map(u64::from_ne_bytes)
}

/// Copies `N` bytes from an offset on. `None` beyond the end.
fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}
