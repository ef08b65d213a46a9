//! Writes to pages of this library that the loader has made read-only after relocation.

use std::arch::asm;
use std::ops::Range;
use std::ptr;

use super::object::{program_headers, read_memory};

const PAGE_BYTES: usize = 4096;

/// The pages of `PT_GNU_RELRO`. The first write that changes a word in them makes them writable. Dropping this makes
/// them read-only again.
#[derive(Debug)]
pub(super) struct WritableRelro {
    pages: Range<usize>,
    is_writable: bool,
}

impl WritableRelro {
    /// Finds the pages that the loader made read-only after relocation (RELRO), in the library with its ELF header at
    /// `header`; none if the library has no such segment. The library's virtual addresses must start at 0, because they
    /// are added to the header's address.
    pub(super) fn for_library(header: usize) -> Self {
        let relro = program_headers(header).find(|segment| segment.p_type == libc::PT_GNU_RELRO);
        let pages = relro.map_or(0..0, |segment| {
            let start = header + segment.p_vaddr as usize;
            let end = start + segment.p_memsz as usize;
            // The loader rounds both down (dl-reloc.c, `_dl_protect_relro`).
            start & !(PAGE_BYTES - 1)..end & !(PAGE_BYTES - 1)
        });
        Self {
            pages,
            is_writable: false,
        }
    }

    /// Writes a word unless it already has that value. First makes the RELRO pages writable if the word is in them.
    /// Does nothing if the kernel refuses that.
    ///
    /// # Safety
    /// The word belongs to the object, and no other thread uses it.
    pub(super) unsafe fn write_word(&mut self, address: usize, value: usize) {
        if read_memory::<usize>(address) == value {
            return;
        }
        if self.pages.contains(&address) && !self.is_writable {
            self.is_writable = self.set_access(libc::PROT_READ | libc::PROT_WRITE);
            if !self.is_writable {
                return;
            }
        }
        // SAFETY: the caller promises that the word belongs to the object, and its page is writable now.
        unsafe { ptr::write_volatile(address as *mut usize, value) };
    }

    /// Sets the access rights of all pages. Makes the system call mprotect(2) directly, because libc's function is an
    /// import, which cannot be called yet. Returns whether it succeeded.
    fn set_access(&self, access: i32) -> bool {
        let result: isize;
        // SAFETY: mprotect(2) of pages of this library, which stay readable.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") libc::SYS_mprotect as isize => result,
                in("rdi") self.pages.start,
                in("rsi") self.pages.end - self.pages.start,
                in("rdx") access as isize,
                lateout("rcx") _,
                lateout("r11") _,
            );
        }
        result == 0
    }
}

impl Drop for WritableRelro {
    fn drop(&mut self) {
        if self.is_writable {
            // If this fails, the pages stay writable, which is harmless.
            self.set_access(libc::PROT_READ);
        }
    }
}
