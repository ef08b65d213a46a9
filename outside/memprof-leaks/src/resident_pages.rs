//! Finds the resident pages of a mapping (Documentation/admin-guide/mm/pagemap.rst).
#![expect(unsafe_code, reason = "ioctl(2)")]

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;

/// Bytes of a page.
pub(crate) const PAGE_SIZE: u64 = 4096;

/// Entries of /proc/PID/pagemap that are read at a time.
const ENTRIES_PER_READ: usize = 32 << 10;
/// Bit of an entry: the page is in memory.
const PRESENT: u64 = 1 << 63;
/// Bit of an entry: the page is swapped out.
const SWAPPED: u64 = 1 << 62;
/// Bit of an entry: the page belongs to a file or is shared.
const FILE_OR_SHARED: u64 = 1 << 61;

/// Most runs of pages that one call of `PAGEMAP_SCAN` returns.
const MAX_RUNS: usize = 1024;
/// Categories of pages (`PAGE_IS_FILE` and others).
const PAGE_IS_FILE: u64 = 1 << 2;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;

/// Argument of `PAGEMAP_SCAN`, `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct PagemapScan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// Run of pages that `PAGEMAP_SCAN` returns, `struct page_region` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRun {
    start: u64,
    end: u64,
    categories: u64,
}

nix::ioctl_readwrite!(pagemap_scan, b'f', 16, PagemapScan);

/// Finds the pages of a mapping that are in memory or swapped out; in a private mapping, only those without a file.
/// Returns runs of them by address; the whole mapping if the pagemap cannot be read.
pub(crate) fn find_resident_or_swapped_pages(
    pagemap: &File,
    range: &Range<u64>,
    is_shared: bool,
) -> Vec<Range<u64>> {
    let pages = match is_shared {
        true => Pages::ANY,
        false => Pages::PRIVATE,
    };
    let found = find_pages(pagemap, range, pages).ok();
    found.unwrap_or_else(|| vec![range.clone()])
}

/// Finds the private pages of a mapping that the kernel counts as resident anonymous memory. Returns runs of them by
/// address; none if the pagemap cannot be read.
pub(crate) fn find_resident_anonymous_pages(pagemap: &File, range: &Range<u64>) -> Vec<Range<u64>> {
    find_pages(pagemap, range, Pages::RESIDENT_ANONYMOUS).unwrap_or_default()
}

/// Kind of pages to find.
#[derive(Clone, Copy, Debug)]
struct Pages {
    /// Categories of which a page has at least one.
    any: u64,
    /// Categories that exclude a page.
    excluded: u64,
}

impl Pages {
    /// In memory or swapped out.
    const ANY: Self = Self {
        any: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
        excluded: 0,
    };
    /// Like [`Self::ANY`], but neither of a file nor shared.
    const PRIVATE: Self = Self {
        excluded: PAGE_IS_FILE,
        ..Self::ANY
    };
    /// In memory, private, and not the page of zeros that all reads of untouched memory share.
    const RESIDENT_ANONYMOUS: Self = Self {
        any: PAGE_IS_PRESENT,
        excluded: PAGE_IS_FILE | PAGE_IS_PFNZERO,
    };

    /// Whether a page with this pagemap entry is of this kind. The kernel's shared page of zeros looks like any other
    /// page there, so it counts too.
    fn contains_entry(self, entry: u64) -> bool {
        let categories = [
            (PRESENT, PAGE_IS_PRESENT),
            (SWAPPED, PAGE_IS_SWAPPED),
            (FILE_OR_SHARED, PAGE_IS_FILE),
        ];
        let set = categories.iter().filter(|(bit, _)| entry & bit != 0);
        let set = set.fold(0, |all, (_, category)| all | category);
        set & self.any != 0 && set & self.excluded == 0
    }
}

/// Finds pages of a kind, by `PAGEMAP_SCAN`. If that fails, as in kernels without it, reads the pagemap entry of each
/// page. Fails if the pagemap cannot be read.
fn find_pages(
    pagemap: &File,
    range: &Range<u64>,
    pages: Pages,
) -> std::io::Result<Vec<Range<u64>>> {
    scan_pagemap(pagemap, range, pages).or_else(|_| read_pagemap(pagemap, range, pages))
}

/// Finds the pages by `PAGEMAP_SCAN` (Linux 6.7 and newer), which skips page tables that do not exist. Reserved
/// terabytes, as sanitizers and garbage collectors have, therefore take no time. Fails in older kernels.
fn scan_pagemap(
    pagemap: &File,
    range: &Range<u64>,
    pages: Pages,
) -> Result<Vec<Range<u64>>, Errno> {
    let mut found = Vec::new();
    let mut runs = vec![PageRun::default(); MAX_RUNS];
    let mut address = range.start;
    while address < range.end {
        let mut scan = PagemapScan {
            size: size_of::<PagemapScan>() as u64,
            start: address,
            end: range.end,
            vec: runs.as_mut_ptr() as u64,
            vec_len: MAX_RUNS as u64,
            // A page must have all categories of the mask, here inverted: none of the excluded ones.
            category_inverted: pages.excluded,
            category_mask: pages.excluded,
            category_anyof_mask: pages.any,
            ..PagemapScan::default()
        };
        // SAFETY: the kernel fills at most `vec_len` elements of `runs`, and `walk_end`; both exist until the
        // call returns.
        let filled = unsafe { pagemap_scan(pagemap.as_raw_fd(), &raw mut scan) }?;
        let filled = &runs[..filled as usize];
        for run in filled {
            push_run(&mut found, run.start..run.end);
        }
        // The next address is not `walk_end`, which the kernel sets too low if it took several steps.
        address = match filled.last() {
            Some(last) if filled.len() == MAX_RUNS => last.end,
            _ => range.end,
        };
    }
    Ok(found)
}

/// Finds the pages of a kind on any Linux, by reading the pagemap entry of each page. Fails if these cannot be read.
fn read_pagemap(
    pagemap: &File,
    range: &Range<u64>,
    pages: Pages,
) -> std::io::Result<Vec<Range<u64>>> {
    let mut found = Vec::new();
    let mut entries = vec![0; ENTRIES_PER_READ * 8];
    let mut address = range.start;
    while address < range.end {
        let length = (((range.end - address) / PAGE_SIZE) as usize).min(ENTRIES_PER_READ) * 8;
        pagemap.read_exact_at(&mut entries[..length], address / PAGE_SIZE * 8)?;
        for entry in entries[..length].chunks_exact(8) {
            let entry = u64::from_le_bytes(entry.try_into().expect("eight bytes"));
            if pages.contains_entry(entry) {
                push_run(&mut found, address..address + PAGE_SIZE);
            }
            address += PAGE_SIZE;
        }
    }
    Ok(found)
}

/// Appends a run of pages, or extends the last run if the new one follows it directly.
fn push_run(found: &mut Vec<Range<u64>>, run: Range<u64>) {
    match found.last_mut() {
        Some(last) if last.end == run.start => last.end = run.end,
        _ => found.push(run),
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    /// Maps `pages` pages in this process, and writes to some of them.
    fn mapped(pages: u64, touched: &[u64]) -> Range<u64> {
        let (length, access) = (
            (pages * PAGE_SIZE) as usize,
            libc::PROT_READ | libc::PROT_WRITE,
        );
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: mmap(2): new memory, which stays mapped until the test ends.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: madvise(2) on that mapping. Huge pages would make further pages resident.
        let advised = unsafe { libc::madvise(start, length, libc::MADV_NOHUGEPAGE) };
        assert_eq!(advised, 0);
        let start = start as u64;
        for page in touched {
            // SAFETY: the page is in the mapping, which is writable.
            unsafe { ((start + page * PAGE_SIZE) as *mut u8).write_volatile(1) };
        }
        start..start + pages * PAGE_SIZE
    }

    fn check(pages: u64, touched: &[u64], expected: &[Range<u64>]) {
        let range = mapped(pages, touched);
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let address = |page: u64| range.start + page * PAGE_SIZE;
        let expected: Vec<_> = expected
            .iter()
            .map(|run| address(run.start)..address(run.end))
            .collect();
        assert!(
            find_resident_or_swapped_pages(&pagemap, &range, false) == expected,
            "{pages}"
        );
        if pages <= 1 << 20 {
            assert!(
                read_pagemap(&pagemap, &range, Pages::PRIVATE).unwrap() == expected,
                "{pages}"
            );
        }
    }

    #[test]
    fn written_pages_are_found() {
        check(1, &[], &[]);
        check(8, &[0, 1, 5], &[0..2, 5..6]);
        check(8, &[0, 7], &[0..1, 7..8]);
        let every_other: Vec<u64> = (0..5000).map(|page| page * 2).collect();
        let runs: Vec<_> = every_other.iter().map(|page| *page..page + 1).collect();
        check(10_000, &every_other, &runs);
    }

    /// Reading an entry for each page of 16 TiB would take longer than a minute.
    #[test]
    fn pages_in_reserved_terabytes_are_found_quickly() {
        let terabyte = 1 << 28;
        check(
            16 * terabyte,
            &[0, 9 * terabyte],
            &[0..1, 9 * terabyte..9 * terabyte + 1],
        );
    }
}
