//! A jemalloc in the program that no symbol leads to: its file was stripped, or the linker left
//! its control functions out. What it gives out is in no profile.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use memchr::memmem::Finder;
use memmap2::MmapMut;

use crate::allocators::loaded_objects::{self, EXECUTABLE, LoadedObject};
use crate::allocators::symbols::real_path;

/// Texts that every jemalloc 4 and 5 contains: what its complaints start with, and an option.
/// Either alone may be in a program that only writes about it.
const TEXTS: [&[u8]; 2] = [b"<jemalloc>: ", b"narenas"];

/// How much of the file is looked at at a time, in memory of the kernel's: what is taken from the host's malloc for
/// a moment stays resident in it.
const CHUNK: usize = 1 << 17;

/// The program's file, where it contains a jemalloc and none of `driven`, which are addresses of
/// the found ones, lies in it.
pub(crate) fn find_stripped_jemalloc(driven: impl Iterator<Item = usize>) -> Option<PathBuf> {
    let objects = loaded_objects::loaded();
    let program = objects.first()?;
    let mut driven = driven;
    if driven.any(|address| program.contains(address)) {
        return None;
    }
    let file = File::open(EXECUTABLE).ok()?;
    let has = |text: &&[u8]| contains(&file, program, text).unwrap_or(false);
    TEXTS
        .iter()
        .all(has)
        .then(|| real_path(EXECUTABLE.as_ref()))
}

/// Searches what is loaded of the file and never written. It is read, not mapped: its pages would count as this
/// process's, and where the file is truncated meanwhile there would be none.
fn contains(file: &File, program: &LoadedObject, text: &[u8]) -> io::Result<bool> {
    let finder = Finder::new(text);
    let mut chunk = MmapMut::map_anon(CHUNK)?;
    for segment in program.constants() {
        let end = segment.offset + segment.range.len() as u64;
        let mut at = segment.offset;
        while at < end {
            let wanted = CHUNK.min((end - at) as usize);
            let length = file.read_at(&mut chunk[..wanted], at)?;
            if finder.find(&chunk[..length]).is_some() {
                return Ok(true);
            }
            if length < text.len() {
                break;
            }
            // A text may lie across two chunks.
            at += (length + 1 - text.len()) as u64;
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_program_are_found() {
        let objects = loaded_objects::loaded();
        let file = File::open(EXECUTABLE).unwrap();
        let check = |text: &[u8], expected| {
            assert_eq!(contains(&file, &objects[0], text).unwrap(), expected);
        };
        check(b"a text that only this test contains", true);
        // Put together at run time, so that no file contains it.
        let absent: Vec<u8> = b"niatnoc margorp on txet a".iter().rev().copied().collect();
        check(&absent, false);
    }

    #[test]
    fn a_program_whose_jemalloc_is_driven_is_not_searched() {
        let here = contains as *const () as usize;
        assert_eq!(find_stripped_jemalloc(std::iter::once(here)), None);
    }
}
