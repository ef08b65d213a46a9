//! Layouts of glibc's structures, by release.

use std::collections::BTreeSet;

use memchr::memmem;

use crate::c_library::is_c_library;
use crate::regions::Region;
use crate::snapshot_memory::{BLOCK_SIZE, SnapshotMemory};

/// First release whose malloc is known: the one with the thread caches of today.
const OLDEST: Release = Release(2, 27);
/// Newest release whose malloc is known.
const NEWEST: Release = Release(2, 44);

/// Start of glibc's version text, and the words in it before the version (csu/version.c).
const BANNER: &[u8] = b"GNU C Library ";
const BEFORE_VERSION: &[u8] = b"release version ";
/// Most bytes of that text up to the version.
const MAX_BANNER: usize = 160;

/// Layout of an arena (`struct malloc_state`), and of the chunks beside it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Offset of `top` in an arena, in bytes. The bins are addressed like chunks, so the first one begins there, too.
    pub(super) top_offset: u64,
    /// Offset of the fast bins. `None` if there are none.
    pub(super) fast_bins_offset: Option<u64>,
    /// Bytes at the end of a mapping with one chunk that the chunk's size does not count.
    pub(super) mapped_tail: u64,
    /// Whether the first free of a thread creates its cache, so that a process may have none.
    pub(super) has_late_caches: bool,
}

/// Layouts, of the newest release first.
pub(super) const LAYOUTS: [Layout; 2] = [
    // glibc 2.43
    Layout {
        top_offset: 0x8,
        fast_bins_offset: None,
        mapped_tail: 16,
        has_late_caches: true,
    },
    // glibc 2.27
    Layout {
        top_offset: 0x60,
        fast_bins_offset: Some(0x10),
        mapped_tail: 0,
        has_late_caches: false,
    },
];

/// Layout of a thread's cache: the counts of its lists, then their first entries.
#[derive(Debug)]
pub(super) struct CacheLayout {
    /// Size of the chunk that contains the cache.
    pub(super) chunk_size: u64,
    /// Number of lists.
    pub(super) lists: u64,
    /// Bytes of a count.
    pub(super) count_width: u64,
    /// Meaning of the counts.
    pub(super) counts: CacheCounts,
}

/// Meaning of a list's count.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CacheCounts {
    /// Number of its entries.
    Entries,
    /// Number of entries that may still be added.
    FreeSlots,
}

/// Layouts of a thread's cache, of the newest release first.
pub(super) const CACHE_LAYOUTS: [CacheLayout; 3] = [
    // glibc 2.42
    CacheLayout {
        chunk_size: 0x300,
        lists: 76,
        count_width: 2,
        counts: CacheCounts::FreeSlots,
    },
    // glibc 2.30
    CacheLayout {
        chunk_size: 0x290,
        lists: LIST_COUNT,
        count_width: 2,
        counts: CacheCounts::Entries,
    },
    // glibc 2.26
    CacheLayout {
        chunk_size: 0x250,
        lists: LIST_COUNT,
        count_width: 1,
        counts: CacheCounts::Entries,
    },
];

/// Number of a cache's lists that hold chunks of one size. Each further list holds chunks of up to twice the size of
/// the list before.
pub(super) const LIST_COUNT: u64 = 64;
/// Version of glibc, e.g. 2.36.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Release(u32, u32);

impl Release {
    /// Reads the versions of the C libraries of a process. Empty if it has no library with a version of glibc.
    pub(super) fn read_all(view: &SnapshotMemory) -> BTreeSet<Self> {
        let mut all = BTreeSet::new();
        let constants = view.regions.iter().filter(|region| {
            is_in_c_library(region) && !region.is_writable && !region.is_executable
        });
        let mut block = vec![0; BLOCK_SIZE];
        for region in constants {
            // Blocks overlap, because the text may lie across two.
            for start in region.range.clone().step_by(BLOCK_SIZE - MAX_BANNER) {
                let length = BLOCK_SIZE.min((region.range.end - start) as usize);
                let read = view.read(start, &mut block[..length]);
                if let Some(release) = Self::find_in_library(&block[..read]) {
                    all.insert(release);
                    break;
                }
            }
        }
        all
    }

    /// Finds the version in bytes of a library, e.g. 2.36 in `GNU C Library (Debian GLIBC 2.36-9) stable release
    /// version 2.36.` `None` if they do not contain such a text.
    fn find_in_library(bytes: &[u8]) -> Option<Self> {
        let banner = &bytes[memmem::find(bytes, BANNER)?..];
        let banner = &banner[..banner.len().min(MAX_BANNER)];
        let version = &banner[memmem::find(banner, BEFORE_VERSION)? + BEFORE_VERSION.len()..];
        let mut numbers = version.split(|byte| !byte.is_ascii_digit());
        let mut number = || std::str::from_utf8(numbers.next()?).ok()?.parse().ok();
        Some(Self(number()?, number()?))
    }

    /// Whether memprof knows the malloc of this release.
    pub(super) fn is_known(self) -> bool {
        (OLDEST..=NEWEST).contains(&self)
    }

    /// Reason why a heap is not found, or may be misread: the release is unknown. `None` if it is known.
    pub(super) fn reason_if_unknown(self) -> Option<String> {
        let known = format!("memprof knows glibc {OLDEST} to {NEWEST}");
        (!self.is_known()).then(|| format!("its C library is glibc {self}, and {known}"))
    }
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Whether a mapping is one of glibc's main library, by the name of its file.
pub(super) fn is_in_c_library(region: &Region) -> bool {
    region.is_file && is_c_library(region.name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_is_parsed_from_banner() {
        let check = |text: &str, expected: Option<Release>| {
            assert_eq!(
                Release::find_in_library(text.as_bytes()),
                expected,
                "{text}"
            );
        };
        let debian = "\0GNU C Library (Debian GLIBC 2.36-9+deb12u14) stable release version 2.36.\nCopyright";
        check(debian, Some(Release(2, 36)));
        let ubuntu = "GNU C Library (Ubuntu GLIBC 2.35-0ubuntu3.8) stable release version 2.35.";
        check(ubuntu, Some(Release(2, 35)));
        let development = "GNU C Library (GNU libc) development release version 2.42.9000.";
        check(development, Some(Release(2, 42)));
        check("GNU C Library (GNU libc)", None);
        check("release version 2.36.", None);
        check("", None);
    }

    #[test]
    fn unknown_releases_are_named() {
        for known in [OLDEST, Release(2, 36), NEWEST] {
            assert_eq!(known.reason_if_unknown(), None);
        }
        let note = Release(2, 99).reason_if_unknown();
        let expected = "its C library is glibc 2.99, and memprof knows glibc 2.27 to 2.44";
        assert_eq!(note.as_deref(), Some(expected));
        assert!(Release(2, 26).reason_if_unknown().is_some());
    }
}
