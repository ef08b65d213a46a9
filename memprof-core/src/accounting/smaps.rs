//! The kernel's sums over all mappings: exact but expensive.

use memprof_messages::Smaps;

use crate::error::{Error, ErrorKind, Result};

/// Reads the sums over the calling process's mappings from /proc/thread-self/smaps_rollup, for which the kernel walks
/// every page.
///
/// # Errors
/// `Io`: the file cannot be read, or a sum is missing.
pub(crate) fn read_current_smaps() -> Result<Smaps> {
    const ROLLUP: &str = "/proc/thread-self/smaps_rollup";
    let text = std::fs::read_to_string(ROLLUP)
        .map_err(|error| Error::io(&format!("read {ROLLUP}"), &error))?;
    parse_rollup(&text)
        .ok_or_else(|| Error::new(ErrorKind::Io, format!("{ROLLUP} lacks one of the sums")))
}

/// Parses the text of `smaps_rollup`, whose sums are in KiB, and converts them to bytes. `None` if a sum is missing or
/// malformed.
fn parse_rollup(text: &str) -> Option<Smaps> {
    let field = |name: &str| -> Option<u64> {
        let value = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    Some(Smaps {
        pss_bytes: field("Pss:")?,
        private_dirty_bytes: field("Private_Dirty:")?,
        lazy_free_bytes: field("LazyFree:")?,
        anon_huge_pages_bytes: field("AnonHugePages:")?,
        swap_bytes: field("Swap:")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_rollup_is_refused() {
        let text = "5581f0a-7ffd ---p 00000000 00:00 0 [rollup]\nRss: 9 kB\nPss:        5 kB\n\
                    Pss_Dirty: 1 kB\nPrivate_Dirty:  4 kB\nLazyFree: 3 kB\nAnonHugePages: 2 kB\n\
                    Swap:  1 kB\nSwapPss: 0 kB\n";
        let expected = Smaps {
            pss_bytes: 5 * 1024,
            private_dirty_bytes: 4 * 1024,
            lazy_free_bytes: 3 * 1024,
            anon_huge_pages_bytes: 2 * 1024,
            swap_bytes: 1024,
        };
        assert_eq!(parse_rollup(text), Some(expected));
        assert_eq!(parse_rollup("Pss: 5 kB\n"), None);
        assert!(read_current_smaps().unwrap().private_dirty_bytes > 0);
    }
}
