//! Private memory without a file, in which malloc's mappings lie.

use std::ops::Range;

use crate::regions::Region;
use crate::resident_pages::PAGE_SIZE;
use crate::snapshot_memory::SnapshotMemory;

/// Name that the kernel shows for private huge pages, which have an inode as files do (hugetlbpage.rst).
const HUGE_PAGES: &str = "/anon_hugepage";

/// Adjacent mappings of private memory. The kernel merges mappings of equal properties, and mprotect(2), mlock(2) or
/// madvise(2) split them: the bounds of one say nothing about those of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PrivateRun {
    pub(super) range: Range<u64>,
    /// Resident pages.
    resident: Vec<Range<u64>>,
}

impl PrivateRun {
    /// Addresses of the resident pages from the page at `start` on.
    pub(super) fn pages_from(&self, start: u64) -> impl Iterator<Item = u64> {
        let first = self.resident.partition_point(|pages| pages.end <= start);
        let pages = self.resident[first..].iter();
        pages.flat_map(move |pages| (pages.start.max(start)..pages.end).step_by(PAGE_SIZE as usize))
    }
}

/// Runs of adjacent private mappings without a file, by address. Omits the memory of brk(2).
pub(super) fn private_runs(view: &SnapshotMemory) -> Vec<PrivateRun> {
    let mut runs: Vec<PrivateRun> = Vec::new();
    let of_mappings = view
        .regions
        .iter()
        .filter(|region| may_be_of_malloc(region));
    for region in of_mappings {
        let pages = region.pages.iter().cloned();
        match runs.last_mut() {
            Some(last) if last.range.end == region.range.start => {
                last.range.end = region.range.end;
                last.resident.extend(pages);
            }
            _ => runs.push(PrivateRun {
                range: region.range.clone(),
                resident: pages.collect(),
            }),
        }
    }
    runs
}

/// Whether a mapping may be malloc's: private, and of no file, except for huge pages. False for the memory of brk(2).
fn may_be_of_malloc(region: &Region) -> bool {
    let has_file = region.is_file && !region.name.starts_with(HUGE_PAGES);
    !region.is_shared && !has_file && !region.name.starts_with("[heap")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_memory_without_file_is_malloc_s() {
        let check = |name: &str, is_file, is_shared, expected| {
            let region = Region {
                name: name.to_owned(),
                is_file,
                is_shared,
                ..Region::anonymous(0..PAGE_SIZE)
            };
            assert_eq!(may_be_of_malloc(&region), expected, "{name}");
        };
        check("", false, false, true);
        check("[anon: glibc: malloc]", false, false, true);
        check("/anon_hugepage (deleted)", true, false, true);
        check("/anon_hugepage (deleted)", true, true, false);
        check("/dev/zero (deleted)", true, true, false);
        check("/tmp/data", true, false, false);
        check("[heap]", false, false, false);
    }
}
