//! Detects a jemalloc in the program that no symbol reveals: the file was stripped, or the linker omitted the control
//! functions. Its allocations are in no profile.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use memchr::memmem::Finder;
use memmap2::MmapMut;

use crate::allocators::loaded_objects::{self, EXECUTABLE, LoadedObject};
use crate::allocators::symbols::resolve_executable_link;

/// Texts that every jemalloc 4 and 5 contains: the start of its error messages, and the name of an option. Both are
/// required, because a program that only mentions jemalloc may contain one of them.
const TEXTS: [&[u8]; 2] = [b"<jemalloc>: ", b"narenas"];

/// Bytes of the file to search at a time. The buffer is a mapping, because the host's malloc may keep freed memory
/// resident.
const CHUNK_SIZE: usize = 1 << 17;

/// Returns the path of the program if its file contains a jemalloc that no symbol names: the file has jemalloc's
/// constant texts, but none of the known jemallocs is inside the program. `known` has the addresses of the known
/// jemallocs. `None` also if the file cannot be read.
pub(crate) fn find_stripped_jemalloc(known: impl Iterator<Item = usize>) -> Option<PathBuf> {
    let objects = loaded_objects::list_loaded_objects();
    let program = objects.first()?;
    let mut known = known;
    if known.any(|address| program.contains(address)) {
        return None;
    }
    let file = File::open(EXECUTABLE).ok()?;
    let contains_text = |text: &&[u8]| file_contains_text(&file, program, text).unwrap_or(false);
    TEXTS
        .iter()
        .all(contains_text)
        .then(|| resolve_executable_link(EXECUTABLE.as_ref()))
}

/// Whether `text` is in the constant segments of the program's file. Reads the file instead of mapping it: mapped pages
/// would count as this process's memory, and fault if the file is truncated. Fails if the file cannot be read.
fn file_contains_text(file: &File, program: &LoadedObject, text: &[u8]) -> io::Result<bool> {
    let finder = Finder::new(text);
    let mut chunk = MmapMut::map_anon(CHUNK_SIZE)?;
    for segment in program.constant_segments() {
        let end = segment.offset + segment.range.len() as u64;
        let mut offset = segment.offset;
        while offset < end {
            let wanted = CHUNK_SIZE.min((end - offset) as usize);
            let length = file.read_at(&mut chunk[..wanted], offset)?;
            if finder.find(&chunk[..length]).is_some() {
                return Ok(true);
            }
            // Too little is left of the file for another match.
            if length < text.len() {
                break;
            }
            // Chunks overlap, because the text may cross a boundary.
            offset += (length + 1 - text.len()) as u64;
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_program_is_found() {
        let objects = loaded_objects::list_loaded_objects();
        let file = File::open(EXECUTABLE).unwrap();
        let check = |text: &[u8], expected| {
            assert_eq!(
                file_contains_text(&file, &objects[0], text).unwrap(),
                expected
            );
        };
        check(b"a text that only this test contains", true);
        // Reversed at run time, so that no file contains it.
        let absent: Vec<u8> = b"niatnoc margorp on txet a".iter().rev().copied().collect();
        check(&absent, false);
    }

    #[test]
    fn program_with_known_jemalloc_is_not_searched() {
        let here = file_contains_text as *const () as usize;
        assert_eq!(find_stripped_jemalloc(std::iter::once(here)), None);
    }
}
