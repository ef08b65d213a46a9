//! Finds out which process's memory a descriptor of userfaultfd(2) serves. It may be passed to other processes, and
//! /proc says nothing about it.
#![expect(unsafe_code, reason = "an ioctl of userfaultfd(2), and mmap(2)")]

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;

use libc::c_void;
use nix::errno::Errno;

use crate::pidfd::PidFd;

/// `struct uffdio_copy` of linux/userfaultfd.h.
#[repr(C)]
struct UffdioCopy {
    destination: u64,
    source: u64,
    length: u64,
    mode: u64,
    /// Result of the call.
    copied: i64,
}

/// `UFFDIO_COPY`: `_IOWR(0xaa, 3, struct uffdio_copy)`.
const UFFDIO_COPY: libc::c_ulong =
    3 << 30 | (size_of::<UffdioCopy>() as libc::c_ulong) << 16 | 0xaa << 8 | 3;
/// Link of such a descriptor in /proc/PID/fd.
pub const DESCRIPTOR_LINK: &str = "anon_inode:[userfaultfd]";
/// `UFFDIO_COPY_MODE_DONTWAKE`.
const DO_NOT_WAKE: u64 = 1;
const PAGE_SIZE: usize = 4096;

/// Returns whether the userfaultfd(2) descriptor `number` of process `holder` serves a process that has registered
/// memory at `address`, the start of a page. The served process is `holder` if the descriptor is its own, and rarely
/// another process: a relative with the same mappings.
///
/// Requests the kernel to copy to `address` a page that this process cannot read. The kernel first looks up the
/// registered memory (`ENOENT` if there is none), and then fails to read the page (`EFAULT`), so it never copies
/// anything.
///
/// # Errors
/// The process has closed the descriptor, or has another one of that number, this user may not access it, Linux is
/// older than 5.6, or the kernel gives another answer.
pub fn descriptor_serves_address(holder: u32, number: i32, address: u64) -> io::Result<bool> {
    let descriptor = PidFd::open(holder)?.duplicate_descriptor(number)?;
    // The process may have put another one under that number, whose driver would take the ioctl for one of its own.
    let link = fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))?;
    if link != Path::new(DESCRIPTOR_LINK) {
        return Err(io::Error::other("the descriptor is another one by now"));
    }
    let page = UnreadablePage::map()?;
    let mut copy = UffdioCopy {
        destination: address,
        source: page.0.addr() as u64,
        length: PAGE_SIZE as u64,
        mode: DO_NOT_WAKE,
        copied: 0,
    };
    // SAFETY: the argument is the struct of this call, and the descriptor is open and of userfaultfd(2).
    let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), UFFDIO_COPY, &raw mut copy) };
    match Errno::result(result) {
        Err(Errno::EFAULT) => Ok(true),
        // The served process has ended: `ESRCH`.
        Err(Errno::ENOENT | Errno::ESRCH) => Ok(false),
        Err(errno) => Err(errno.into()),
        Ok(_) => Err(io::Error::other("the kernel copied an unreadable page")),
    }
}

/// A page of this process without access rights.
struct UnreadablePage(*mut c_void);

impl UnreadablePage {
    /// Maps the page at an address that the kernel chooses.
    fn map() -> io::Result<Self> {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: mmap(2) chooses an unused address.
        let page = unsafe { libc::mmap(ptr::null_mut(), PAGE_SIZE, libc::PROT_NONE, kind, -1, 0) };
        match page {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            page => Ok(Self(page)),
        }
    }
}

impl Drop for UnreadablePage {
    fn drop(&mut self) {
        // SAFETY: `map` mapped it, and nothing can read or write it.
        unsafe { libc::munmap(self.0, PAGE_SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn descriptor_of_another_kind_is_not_asked() {
        let file = File::open("/dev/null").unwrap();
        let asked = descriptor_serves_address(std::process::id(), file.as_raw_fd(), 0).unwrap_err();
        assert!(asked.to_string().contains("another one"), "{asked}");
    }
}
