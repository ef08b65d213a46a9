//! Call frame information of the code that is loaded in this process.
#![expect(
    unsafe_code,
    reason = "the loader's answers, and what they point to in memory"
)]

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::slice;

use crate::cfi::{Section, rule_at};
use crate::rule::Rule;
use crate::stack_memory::{PAGE, is_readable};

/// `_dl_find_object` of glibc 2.35 and newer (`dlfcn.h`): takes no lock, allocates nothing.
pub type FindObject = unsafe extern "C" fn(*mut c_void, *mut FoundObject) -> c_int;

/// `struct dl_find_object`, without `dlfo_eh_dbase`, which x86-64 does not have.
#[derive(Debug)]
#[repr(C)]
pub struct FoundObject {
    flags: u64,
    map_start: usize,
    map_end: usize,
    link_map: *const c_void,
    /// `.eh_frame_hdr`; null where the object has none.
    eh_frame: *const u8,
    reserved: [u64; 7],
}

/// The rule at an address of this process, where `find` is its loader's.
pub(crate) fn loaded_rule_at(find: FindObject, address: usize) -> Rule {
    let Some(object) = FoundObject::find(find, address) else {
        return Rule::Unknown;
    };
    if object.eh_frame.is_null() {
        return Rule::Outermost;
    }
    let hdr = object.eh_frame as usize;
    // Of an object with holes between its segments, each is an answer of its own.
    let segment = if object.contains(hdr) {
        None
    } else {
        FoundObject::find(find, hdr).filter(|segment| segment.link_map == object.link_map)
    };
    let information = segment.as_ref().unwrap_or(&object);
    let Some(hdr) = information.from(hdr) else {
        return Rule::Unsupported;
    };
    let rule = rule_at(
        hdr,
        |eh_frame| information.from(eh_frame as usize),
        address as u64,
    );
    if rule == Rule::Signal && !object.is_signal_return(address + 1) {
        return Rule::Unsupported;
    }
    rule
}

impl FoundObject {
    /// The object, or the segment of an object with holes, that has an address.
    fn find(find: FindObject, address: usize) -> Option<Self> {
        let mut found = MaybeUninit::<Self>::zeroed();
        // SAFETY: dlfcn.h: any address may be asked for; fills in the object on success.
        if unsafe { find(address as *mut c_void, found.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: zeros are a valid value, and so is what the loader wrote.
        Some(unsafe { found.assume_init() })
    }

    fn contains(&self, address: usize) -> bool {
        (self.map_start..self.map_end).contains(&address)
    }

    /// What is mapped from `address` to the end of its readable segment.
    fn from(&self, address: usize) -> Option<Section<'static>> {
        let end = self.segment_end(address)?;
        let length = end.checked_sub(address)?;
        // SAFETY: dlfcn.h: the object is loaded, and stays so while a frame of its code is on this
        // thread's stack; this part of it is a readable segment.
        let bytes = unsafe { slice::from_raw_parts(address as *const u8, length) };
        Some(Section {
            address: address as u64,
            bytes,
        })
    }

    /// Where the readable segment with `address` ends in memory.
    fn segment_end(&self, address: usize) -> Option<usize> {
        if !self.contains(address) || !is_readable(self.map_start) {
            return None;
        }
        // SAFETY: a whole page, which can be read.
        let page = unsafe { &*(self.map_start as *const [u8; PAGE]) };
        if !page.starts_with(ELF64) {
            // A segment that the loader told apart.
            return is_readable(self.map_end - 1).then_some(self.map_end);
        }
        // SAFETY: link.h: `l_addr`, what is added to the file's addresses, is the first field.
        let bias = unsafe { self.link_map.cast::<usize>().read() };
        let end = readable_segment_end(page, address.checked_sub(bias)? as u64)?;
        let end = bias.checked_add(usize::try_from(end).ok()?)?;
        (end <= self.map_end).then_some(end)
    }

    /// Whether the code at `address` is the kernel's way back from a signal handler, after which
    /// the registers lie where [`Rule::Signal`] expects them.
    fn is_signal_return(&self, address: usize) -> bool {
        // mov rax, 15 (rt_sigreturn); syscall
        const CODE: [u8; 9] = [0x48, 0xC7, 0xC0, 15, 0, 0, 0, 0x0F, 0x05];
        let code = self.from(address);
        code.is_some_and(|section| section.bytes.starts_with(&CODE))
    }
}

const ELF64: &[u8] = b"\x7fELF\x02";

/// The end of the readable `PT_LOAD` with `address`, in the addresses of the file whose first page
/// this is (gABI, "ELF Header" and "Program Header").
fn readable_segment_end(page: &[u8; PAGE], address: u64) -> Option<u64> {
    const HEADER_SIZE: u16 = 56;
    const PT_LOAD: u32 = 1;
    const PF_R: u32 = 4;
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

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes_at(bytes, at).map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes_at(bytes, at).map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes_at(bytes, at).map(u64::from_ne_bytes)
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}
