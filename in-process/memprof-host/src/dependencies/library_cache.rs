//! The cache that ldconfig(8) writes, in which the loader looks for libraries before it searches the system's
//! directories (glibc, dl-cache.h).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::search_list::Candidate;

pub(super) const PATH: &str = "/etc/ld.so.cache";

/// Start of the format that all ldconfig since glibc 2.2 write. An older format may precede it, at a multiple of eight.
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// Size of the header in bytes, with the number of entries at offset 20.
const HEADER_BYTES: usize = 48;
/// Size of an entry in bytes: kind, offsets of name and path, version of Linux (4 bytes each), CPU capabilities (8).
const ENTRY_BYTES: usize = 24;
/// Kind of a library for x86-64 that needs glibc (`FLAG_ELF_LIBC6 | FLAG_X8664_LIB64`).
const X86_64: u32 = 0x303;

/// Returns the absolute paths of the libraries called `name` in the content of the cache. Those that only some CPUs can
/// use come first, with `is_certain` false; the others follow. Empty if there are none, or if the cache is damaged.
pub(super) fn find_libraries(cache: &[u8], name: &[u8]) -> Vec<Candidate> {
    // A cache in an older format may precede this one, whose start is aligned to eight bytes.
    let mut starts = (0..cache.len()).step_by(8);
    let start = starts.find(|&start| cache[start..].starts_with(MAGIC));
    let Some(cache) = start.map(|start| &cache[start..]) else {
        return Vec::new();
    };
    let count = u32_at(cache, MAGIC.len()).unwrap_or(0) as usize;
    let entries = cache.get(HEADER_BYTES..).unwrap_or_default();
    let entries = entries.chunks_exact(ENTRY_BYTES).take(count);
    let named = entries.filter_map(|entry| {
        let is_named = u32_at(entry, 0)? == X86_64 && text_at(cache, u32_at(entry, 4)?)? == name;
        let path = text_at(cache, u32_at(entry, 8)?).filter(|_| is_named)?;
        Some(Candidate {
            path: Path::new(OsStr::from_bytes(path)).to_owned(),
            // The CPU capabilities that the library needs.
            is_certain: entry[16..].iter().all(|&byte| byte == 0),
        })
    });
    let mut found: Vec<_> = named.filter(|found| found.path.is_absolute()).collect();
    found.sort_by_key(|found| found.is_certain);
    found
}

/// Reads the content of the system's cache, /etc/ld.so.cache. Empty if it cannot be read.
pub(super) fn read_system_cache() -> Vec<u8> {
    std::fs::read(PATH).unwrap_or_default()
}

/// Returns the little-endian number of four bytes at an offset. `None` if there are fewer than four bytes.
fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let word = bytes.get(offset..)?.first_chunk()?;
    Some(u32::from_le_bytes(*word))
}

/// Returns the text from an offset to the next NUL, or to the end of `bytes`. `None` if the offset is beyond the end.
fn text_at(bytes: &[u8], offset: u32) -> Option<&[u8]> {
    let tail = bytes.get(offset as usize..)?;
    tail.split(|&byte| byte == 0).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a cache with entries: kind, name, path, CPU capabilities.
    fn cache(entries: &[(u32, &str, &str, u64)]) -> Vec<u8> {
        let (mut head, mut texts) = (MAGIC.to_vec(), Vec::new());
        head.extend((entries.len() as u32).to_le_bytes());
        head.resize(HEADER_BYTES, 0);
        let texts_start = HEADER_BYTES + ENTRY_BYTES * entries.len();
        for (kind, name, path, capabilities) in entries {
            head.extend(kind.to_le_bytes());
            for text in [name, path] {
                head.extend(((texts_start + texts.len()) as u32).to_le_bytes());
                texts.extend_from_slice(text.as_bytes());
                texts.push(0);
            }
            head.extend([0; 4]);
            head.extend(capabilities.to_le_bytes());
        }
        [head, texts].concat()
    }

    #[test]
    fn library_is_found_by_its_whole_name() {
        let cache = cache(&[
            (X86_64, "liba.so.1", "/lib/liba.so.1", 0),
            (
                X86_64,
                "liba.so.1",
                "/lib/glibc-hwcaps/x86-64-v3/liba.so.1",
                1 << 62,
            ),
            (3, "liba.so.1", "/lib32/liba.so.1", 0),
            (X86_64, "liba.so", "/lib/liba.so", 0),
        ]);
        let old_format = [b"ld.so-1.7.0\0\0\0\0\0".as_slice(), &cache].concat();
        let check = |cache: &[u8], name: &str, expected: &[(&str, bool)]| {
            let found = find_libraries(cache, name.as_bytes());
            let found: Vec<_> = found
                .iter()
                .map(|found| (found.path.to_str().unwrap(), found.is_certain))
                .collect();
            assert_eq!(found, expected);
        };
        let found = [
            ("/lib/glibc-hwcaps/x86-64-v3/liba.so.1", false),
            ("/lib/liba.so.1", true),
        ];
        check(&cache, "liba.so.1", &found);
        check(&old_format, "liba.so.1", &found);
        check(&cache, "liba", &[]);
        check(b"", "liba.so.1", &[]);
        for length in 0..cache.len() {
            find_libraries(&cache[..length], b"liba.so.1");
        }
    }
}
