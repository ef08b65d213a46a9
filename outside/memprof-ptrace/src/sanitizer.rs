//! Recognizes sanitizers that record each thread at its creation by `pthread_create(3)`, which they replace. A
//! thread that was created otherwise has no record: the first replaced function that it calls ends the process.

use memchr::memmem;

use crate::maps::{Mapping, mappings};
use crate::memory::Memory;
use crate::refusal::Refusal;

/// A sanitizer that records threads.
struct Sanitizer {
    name: &'static str,
    /// Prefixes of the file name of its runtime library.
    files: &'static [&'static [u8]],
    /// Text that only the runtime contains; names of its functions are also in compilers. `_` replaces each space, so
    /// that memprof's own table is no match.
    text: &'static str,
}

/// Sanitizers that end a process in which memprof creates a thread.
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
/// Largest part of a program's constants that is searched, in bytes. The runtimes are linked before the program's
/// own code.
const SEARCH_LIMIT: u64 = 64 << 20;

/// Fails if the runtime library of a sanitizer is mapped, by the file names in the text of /proc/PID/maps.
///
/// # Errors
/// `Sanitizer`: the program was built with one.
pub fn require_no_sanitizer_mapped(maps: &[u8]) -> Result<(), Refusal> {
    for mapping in mappings(maps) {
        let name = mapping.file_name();
        let is_runtime = |each: &&Sanitizer| each.files.iter().any(|file| name.starts_with(file));
        if let Some(Sanitizer { name, .. }) = SANITIZERS.iter().find(is_runtime) {
            return Err(Refusal::Sanitizer { sanitizer: name });
        }
    }
    Ok(())
}

/// Fails if the runtime of a sanitizer is linked into the program, stripped or not. Searches up to 64 MiB of each
/// mapping of the program's constants for a text of the runtime. `maps` is the text of /proc/PID/maps, `program` the
/// path of the executed file in it.
///
/// # Errors
/// `Sanitizer`: the program was built with one.
pub fn require_no_sanitizer_linked(
    memory: &Memory,
    maps: &[u8],
    program: &[u8],
) -> Result<(), Refusal> {
    let is_constant = |mapping: &Mapping<'_>| mapping.access == *b"r--p" && mapping.path == program;
    for mapping in mappings(maps).filter(is_constant) {
        let length = (mapping.range.end - mapping.range.start).min(SEARCH_LIMIT);
        let mut bytes = vec![0; length as usize];
        // Pages beyond the end of a truncated file cannot be read.
        if memory.read(mapping.range.start, &mut bytes).is_err() {
            continue;
        }
        if let Some(Sanitizer { name, .. }) = find_linked_runtime(&bytes) {
            return Err(Refusal::Sanitizer { sanitizer: name });
        }
    }
    Ok(())
}

/// Finds the sanitizer whose runtime is linked into a program, by a text among the program's constants. `None` if there
/// is none.
fn find_linked_runtime(constants: &[u8]) -> Option<&'static Sanitizer> {
    SANITIZERS.iter().find(|sanitizer| {
        // `Sanitizer::text` has underscores in place of spaces.
        let text = sanitizer.text.replace('_', " ");
        memmem::find(constants, text.as_bytes()).is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_with_this_table_is_no_runtime() {
        let program = std::fs::read("/proc/self/exe").unwrap();
        assert!(find_linked_runtime(&program).is_none());
        let words = [
            "FATAL:",
            "ThreadSanitizer:",
            "unexpected",
            "memory",
            "mapping",
            "0x%zx",
        ];
        let found = find_linked_runtime(words.join(" ").as_bytes()).unwrap();
        assert_eq!(found.name, "ThreadSanitizer");
    }

    #[test]
    fn runtimes_are_recognized_by_file_name() {
        let check = |path: &str, expected: Option<&str>| {
            let maps = format!("7f0000-7f2000 r-xp 00000000 fe:01 7     {path}\n");
            let found = require_no_sanitizer_mapped(maps.as_bytes()).err();
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
