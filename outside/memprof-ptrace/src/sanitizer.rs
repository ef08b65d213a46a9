//! Sanitizers that keep a record of each thread from the call on by which it is made (`pthread_create(3)`, which they
//! replace). A thread that comes by another way has none: the first function that they replace ends the process.

use memchr::memmem;

use crate::maps::{Mapping, mappings};
use crate::memory::Memory;
use crate::refusal::Refusal;

/// A sanitizer that keeps such records.
struct Sanitizer {
    name: &'static str,
    /// How the file of its runtime begins.
    files: &'static [&'static [u8]],
    /// A text that only the runtime has, with `_` for each space, since what includes this table is no runtime. Compilers
    /// have the names of its functions too.
    text: &'static str,
}

const SANITIZERS: [Sanitizer; 3] = [
    Sanitizer {
        name: "ThreadSanitizer",
        files: &[b"libtsan.so", b"libclang_rt.tsan"],
        text: "ThreadSanitizer:_unexpected_memory_mapping",
    },
    Sanitizer {
        name: "MemorySanitizer",
        files: &[b"libclang_rt.msan"],
        text: "MemorySanitizer_can_not_mmap_the_shadow_memory",
    },
    Sanitizer {
        name: "HWAddressSanitizer",
        files: &[b"libhwasan.so", b"libclang_rt.hwasan"],
        text: "HWAddressSanitizer_cannot_mmap_the_shadow_memory",
    },
];
/// How much of a program's constants is searched. The runtimes are linked before the program's own code.
const SEARCH_LIMIT: u64 = 64 << 20;

/// Fails where the runtime of one is mapped.
///
/// # Errors
/// `Sanitizer`.
pub fn require_none_mapped(maps: &[u8]) -> Result<(), Refusal> {
    for mapping in mappings(maps) {
        let name = mapping.file_name();
        let is_its = |each: &&Sanitizer| each.files.iter().any(|file| name.starts_with(file));
        if let Some(Sanitizer { name, .. }) = SANITIZERS.iter().find(is_its) {
            return Err(Refusal::Sanitizer { sanitizer: name });
        }
    }
    Ok(())
}

/// Fails where the runtime of one is linked into the program, stripped or not. `program` is the executed file, as maps
/// names it.
///
/// # Errors
/// `Sanitizer`.
pub fn require_none_linked(memory: &Memory, maps: &[u8], program: &[u8]) -> Result<(), Refusal> {
    let is_constant = |mapping: &Mapping<'_>| mapping.access == *b"r--p" && mapping.path == program;
    for mapping in mappings(maps).filter(is_constant) {
        let length = (mapping.range.end - mapping.range.start).min(SEARCH_LIMIT);
        let mut bytes = vec![0; length as usize];
        // A file that was cut off has nothing there.
        if memory.read(mapping.range.start, &mut bytes).is_err() {
            continue;
        }
        if let Some(Sanitizer { name, .. }) = find_in(&bytes) {
            return Err(Refusal::Sanitizer { sanitizer: name });
        }
    }
    Ok(())
}

fn find_in(constants: &[u8]) -> Option<&'static Sanitizer> {
    SANITIZERS.iter().find(|sanitizer| {
        let text = sanitizer.text.replace('_', " ");
        memmem::find(constants, text.as_bytes()).is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_includes_the_table_is_no_runtime() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        assert!(find_in(&program).is_none());
        let words = [
            "FATAL:",
            "ThreadSanitizer:",
            "unexpected",
            "memory",
            "mapping",
            "0x%zx",
        ];
        let found = find_in(words.join(" ").as_bytes()).unwrap();
        assert_eq!(found.name, "ThreadSanitizer");
    }

    #[test]
    fn runtimes_are_known_by_their_files() {
        let check = |path: &str, expected: Option<&str>| {
            let maps = format!("7f0000-7f2000 r-xp 00000000 fe:01 7     {path}\n");
            let found = require_none_mapped(maps.as_bytes()).err();
            let found = found.map(|refusal| refusal.to_string());
            let named = found
                .as_deref()
                .is_some_and(|text| expected.is_some_and(|sanitizer| text.contains(sanitizer)));
            assert_eq!(named, expected.is_some(), "{path}: {found:?}");
        };
        check(
            "/usr/lib/x86_64-linux-gnu/libtsan.so.2.0.0",
            Some("ThreadSanitizer"),
        );
        check(
            "/opt/llvm/lib/libclang_rt.tsan-x86_64.so",
            Some("ThreadSanitizer"),
        );
        check(
            "/opt/llvm/lib/libclang_rt.msan-x86_64.so",
            Some("MemorySanitizer"),
        );
        check(
            "/usr/lib/libhwasan.so.0 (deleted)",
            Some("HWAddressSanitizer"),
        );
        check("/usr/lib/x86_64-linux-gnu/libasan.so.8", None);
        check("/usr/lib/libc.so.6", None);
    }
}
