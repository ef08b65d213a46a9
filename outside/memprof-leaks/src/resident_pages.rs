//! Which pages of a mapping there are (Documentation/admin-guide/mm/pagemap.rst).
#![expect(unsafe_code, reason = "ioctl(2)")]

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;

pub(crate) const PAGE: u64 = 4096;

/// Entries of /proc/PID/pagemap that are read at once.
const ENTRIES: usize = 32 << 10;
const PRESENT_OR_SWAPPED: u64 = 3 << 62;
const OF_A_FILE_OR_SHARED: u64 = 1 << 61;

/// Runs of pages that one call of `PAGEMAP_SCAN` tells.
const RUNS: usize = 1024;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;

/// `struct pm_scan_arg` of linux/fs.h.
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

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRun {
    start: u64,
    end: u64,
    categories: u64,
}

nix::ioctl_readwrite!(pagemap_scan, b'f', 16, PagemapScan);

/// The pages of a mapping that exist, and are its own unless it is shared. Without the right to look, all.
pub(crate) fn resident(pagemap: &File, range: &Range<u64>, is_shared: bool) -> Vec<Range<u64>> {
    let found = scanned(pagemap, range, is_shared)
        .or_else(|_| read(pagemap, range, is_shared))
        .ok();
    found.unwrap_or_else(|| vec![range.clone()])
}

/// Since Linux 6.7. What is not mapped to any page costs nothing, so that terabytes of reserved addresses,
/// as sanitizers and garbage collectors have, take no time.
fn scanned(pagemap: &File, range: &Range<u64>, is_shared: bool) -> Result<Vec<Range<u64>>, Errno> {
    let is_file = if is_shared { 0 } else { IS_FILE };
    let mut found = Vec::new();
    let mut runs = vec![PageRun::default(); RUNS];
    let mut at = range.start;
    while at < range.end {
        let mut scan = PagemapScan {
            size: size_of::<PagemapScan>() as u64,
            start: at,
            end: range.end,
            vec: runs.as_mut_ptr() as u64,
            vec_len: RUNS as u64,
            category_inverted: is_file,
            category_mask: is_file,
            category_anyof_mask: IS_PRESENT | IS_SWAPPED,
            ..PagemapScan::default()
        };
        // SAFETY: the kernel fills at most `vec_len` of `runs`, and `walk_end`; both live until it returns.
        let filled = unsafe { pagemap_scan(pagemap.as_raw_fd(), &raw mut scan) }?;
        let filled = &runs[..filled as usize];
        for run in filled {
            add(&mut found, run.start..run.end);
        }
        // Not `walk_end`, which the kernel leaves at an earlier page where it took several steps.
        at = match filled.last() {
            Some(last) if filled.len() == RUNS => last.end,
            _ => range.end,
        };
    }
    Ok(found)
}

fn read(pagemap: &File, range: &Range<u64>, is_shared: bool) -> std::io::Result<Vec<Range<u64>>> {
    let mut found = Vec::new();
    let mut entries = vec![0; ENTRIES * 8];
    let mut at = range.start;
    while at < range.end {
        let length = (((range.end - at) / PAGE) as usize).min(ENTRIES) * 8;
        pagemap.read_exact_at(&mut entries[..length], at / PAGE * 8)?;
        for entry in entries[..length].chunks_exact(8) {
            let entry = u64::from_le_bytes(entry.try_into().expect("eight bytes"));
            let exists = entry & PRESENT_OR_SWAPPED != 0;
            if exists && (is_shared || entry & OF_A_FILE_OR_SHARED == 0) {
                add(&mut found, at..at + PAGE);
            }
            at += PAGE;
        }
    }
    Ok(found)
}

fn add(found: &mut Vec<Range<u64>>, run: Range<u64>) {
    match found.last_mut() {
        Some(last) if last.end == run.start => last.end = run.end,
        _ => found.push(run),
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    /// A mapping of this process of so many pages, some of which exist.
    fn mapped(pages: u64, touched: &[u64]) -> Range<u64> {
        let (length, access) = ((pages * PAGE) as usize, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: new memory, which stays until the test ends.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: as above. Huge pages would make more pages exist.
        let advised = unsafe { libc::madvise(start, length, libc::MADV_NOHUGEPAGE) };
        assert_eq!(advised, 0);
        let start = start as u64;
        for page in touched {
            // SAFETY: within the mapping.
            unsafe { ((start + page * PAGE) as *mut u8).write_volatile(1) };
        }
        start..start + pages * PAGE
    }

    fn check(pages: u64, touched: &[u64], expected: &[Range<u64>]) {
        let range = mapped(pages, touched);
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let at = |page: u64| range.start + page * PAGE;
        let expected: Vec<_> = expected
            .iter()
            .map(|run| at(run.start)..at(run.end))
            .collect();
        assert!(resident(&pagemap, &range, false) == expected, "{pages}");
        if pages <= 1 << 20 {
            assert!(
                read(&pagemap, &range, false).unwrap() == expected,
                "{pages}"
            );
        }
    }

    #[test]
    fn pages_that_exist_are_found() {
        check(1, &[], &[]);
        check(8, &[0, 1, 5], &[0..2, 5..6]);
        check(8, &[0, 7], &[0..1, 7..8]);
        let every_other: Vec<u64> = (0..5000).map(|page| page * 2).collect();
        let runs: Vec<_> = every_other.iter().map(|page| *page..page + 1).collect();
        check(10_000, &every_other, &runs);
    }

    /// Reading an entry for each page of 16 TiB takes longer than a minute.
    #[test]
    fn reserved_terabytes_take_no_time() {
        let terabyte = 1 << 28;
        check(
            16 * terabyte,
            &[0, 9 * terabyte],
            &[0..1, 9 * terabyte..9 * terabyte + 1],
        );
    }
}
