//! Memory for the frames of remote calls, which the program does not use meanwhile.

use std::io;

use crate::auxiliary::{self, AT_BASE, AT_PHDR};
use crate::library_image::LibraryImage;
use crate::maps::{Mapping, mappings};
use crate::memory::Memory;

const PT_LOAD: u32 = 1;
const WRITABLE: u32 = 2;
/// Bytes of a program header (`Elf64_Phdr`).
const ENTRY_SIZE: u64 = 56;
const PAGE: u64 = 4096;
/// A thread's stack is not larger than that between what it uses and its control block.
const LARGEST_STACK: u64 = 64 << 20;
/// Of libraries that are loaded with a program: office suites have some 200.
const LIST_LIMIT: usize = 4096;

/// A thread whose stack may be used.
#[derive(Clone, Copy, Debug)]
pub struct StackOwner {
    /// Whether it is the main thread of its process.
    pub is_main: bool,
    /// The highest address that it does not use: [`crate::remote_call::stack_limit`].
    pub end_on_stack: u64,
    /// Its control block (`fs_base`).
    pub control_block: u64,
}

/// The end of so many bytes: on the thread's own stack where that is certain, else behind the variables of the
/// program or of a library that stays, where the page ends later than they do.
///
/// A stack is not certain where a program made it itself: below a coroutine's of 4 KiB lies the heap.
pub fn find_frame_memory(
    memory: &Memory,
    maps: &[u8],
    owner: StackOwner,
    length: u64,
) -> Option<u64> {
    let end = owner.end_on_stack;
    let stack = mapping(maps, end)?;
    let has_room = stack.range.start + length < end;
    let is_main = owner.is_main && stack.path == b"[stack]";
    if has_room && (is_main || is_libc_stack(maps, &stack, end, owner.control_block)) {
        return Some(end);
    }
    find_bss_slack(memory, maps, length)
}

fn mapping(maps: &[u8], address: u64) -> Option<Mapping<'_>> {
    mappings(maps).find(|mapping| mapping.range.contains(&address))
}

/// libc puts a guard page below a stack that it makes, and the thread's control block on top.
fn is_libc_stack(maps: &[u8], stack: &Mapping<'_>, at: u64, control_block: u64) -> bool {
    let guard = stack.range.start.checked_sub(1);
    let guard = guard.and_then(|below| mapping(maps, below));
    let has_guard = guard.is_some_and(|guard| guard.access == *b"---p");
    let is_below = at < control_block && control_block - at < LARGEST_STACK;
    has_guard && is_below && stack.range.contains(&control_block)
}

fn find_bss_slack(memory: &Memory, maps: &[u8], length: u64) -> Option<u64> {
    let images = startup_libraries(memory, maps).ok()??;
    let mut images = images
        .into_iter()
        .filter_map(|base| bss_slack(memory, base).ok()?);
    let (_, end) = images.find(|(start, end)| {
        let is_ours = |mapping: Mapping<'_>| mapping.access == *b"rw-p";
        end - start > length && mapping(maps, *start).is_some_and(is_ours)
    })?;
    Some(end)
}

/// Where the program and the libraries that were loaded with it begin, up to the loader itself, which gives its own
/// rest away to early allocations. What comes after it in the loader's list may be closed at any moment. Of a program
/// without glibc's loader only itself is known.
///
/// What counts is what the loader has added to the addresses in a file: nothing for a program that is not position
/// independent.
///
/// # Errors
/// The loader's list cannot be read.
pub fn startup_libraries(memory: &Memory, maps: &[u8]) -> io::Result<Option<Vec<u64>>> {
    let (bases, loader) = list(memory, maps)?;
    let Some(loader) = loader else {
        return Ok(Some(bases));
    };
    let place = bases.iter().position(|base| *base == loader);
    Ok(place.map(|place| bases[..place].to_vec()))
}

/// Where the program and the libraries begin that are in its own namespace, not one of dlmopen(3) or `LD_AUDIT`.
///
/// # Errors
/// The loader's list cannot be read.
pub fn loaded(memory: &Memory, maps: &[u8]) -> io::Result<Vec<u64>> {
    Ok(list(memory, maps)?.0)
}

/// The loader's list, and where the loader itself begins, by what the kernel told the program: a file of the loader's
/// name may be mapped as data, and the loader may have another name.
fn list(memory: &Memory, maps: &[u8]) -> io::Result<(Vec<u64>, Option<u64>)> {
    let vector = memory.auxiliary_vector()?;
    let mut images = mappings(maps).filter(|mapping| mapping.offset == 0 && mapping.inode != 0);
    let program = match auxiliary::value(&vector, AT_PHDR) {
        Some(headers) => images.find(|image| image.range.contains(&headers)),
        None => images.next(),
    };
    let program = program.map(|image| image.range.start);
    // A loader that was executed itself, with a program as its argument, is the program as the kernel sees it. A program
    // without a loader has no symbols of one.
    let loader = auxiliary::value(&vector, AT_BASE).or(program);
    let symbol = |base| LibraryImage::read(memory, base).ok()?.symbol("_r_debug");
    let Some((loader, list)) = loader.and_then(|base| Some((base, symbol(base)?))) else {
        return Ok((program.into_iter().collect(), None));
    };
    let mut bases = Vec::new();
    let mut entry = memory.word(list.wrapping_add(8))?;
    for _ in 0..LIST_LIMIT {
        if entry == 0 {
            break;
        }
        bases.push(memory.word(entry)?);
        entry = memory.word(entry.wrapping_add(24))?;
    }
    Ok((bases, Some(loader)))
}

/// The bytes between the variables of a library and the end of their page.
fn bss_slack(memory: &Memory, base: u64) -> io::Result<Option<(u64, u64)>> {
    let header: [u8; 64] = memory.bytes(base)?;
    let word = |bytes: &[u8], at: usize| {
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
    };
    let int = |bytes: &[u8], at: usize| {
        u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
    };
    // A shared object: its addresses begin at its base.
    if header[..5] != *b"\x7fELF\x02" || header[16] != 3 {
        return Ok(None);
    }
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    // `e_phentsize` and `e_phnum`.
    let (entry_size, count) = (u64::from(half(54)), u64::from(half(56)));
    if entry_size != ENTRY_SIZE {
        return Ok(None);
    }
    let mut last = None;
    for at in 0..count {
        let headers = base.wrapping_add(word(&header, 32));
        let segment: [u8; 56] = memory.bytes(headers.wrapping_add(at * ENTRY_SIZE))?;
        if int(&segment, 0) == PT_LOAD && int(&segment, 4) & WRITABLE != 0 {
            let start = base.checked_add(word(&segment, 16));
            let end = start.and_then(|start| start.checked_add(word(&segment, 40)));
            last = end.and_then(|end| Some((end, end.checked_next_multiple_of(PAGE)?)));
        }
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_library_that_was_opened_later_does_not_last() {
        // SAFETY: glibc's own, which begins nothing.
        #[expect(unsafe_code, reason = "the loader's function")]
        let library = unsafe { libc::dlopen(c"libBrokenLocale.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null());
        let memory = Memory::open(std::process::id()).unwrap();
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let bases = startup_libraries(&memory, &maps).unwrap().unwrap();
        let lasts = |name: &[u8]| {
            let mut images = mappings(&maps).filter(|mapping| mapping.offset == 0);
            let image = images.find(|mapping| mapping.file_name() == name);
            bases.contains(&image.unwrap().range.start)
        };
        let program = std::env::current_exe().unwrap();
        assert!(lasts(program.file_name().unwrap().as_encoded_bytes()));
        assert!(lasts(b"libc.so.6"));
        assert!(!lasts(b"libBrokenLocale.so.1"));
    }

    /// Where the libc of a process begins, and whether it is known to be loaded.
    fn has_libc(pid: u32) -> bool {
        let memory = Memory::open(pid).unwrap();
        let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap();
        let loaded = loaded(&memory, &maps).unwrap();
        let mut libcs = mappings(&maps).filter(|image| image.file_name() == b"libc.so.6");
        libcs.any(|image| loaded.contains(&image.range.start))
    }

    const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

    #[test]
    fn file_of_the_loader_mapped_as_data_is_no_loader() {
        let file = std::fs::File::open(LOADER).unwrap();
        // Below everything that the kernel maps by itself.
        let low = std::ptr::without_provenance_mut(0x1000_0000);
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: mmap(2) of an address that nothing is mapped at, which it checks.
        #[expect(unsafe_code, reason = "a mapping at an address")]
        let mapped = unsafe { libc::mmap(low, 4096, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
        assert_eq!(mapped, low);
        assert!(has_libc(std::process::id()));
    }

    #[test]
    fn loader_of_another_name_is_known_also_where_it_was_executed() {
        let place = tempfile::tempdir().unwrap();
        let renamed = place.path().join("loader");
        std::fs::copy(LOADER, &renamed).unwrap();
        let mut child = Command::new(&renamed)
            .arg("/bin/cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.as_ref().unwrap().write_all(b"!").unwrap();
        let mut answer = [0];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut answer)
            .unwrap();
        assert!(has_libc(child.id()));
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    /// Of an object with that many program headers of that size, of which the last alone is writable.
    #[test]
    fn the_rest_is_that_behind_the_last_of_all_segments() {
        let check = |count: u16, entry_size: u16, expected: bool| {
            let mut object = vec![0_u8; 64 + usize::from(count) * 56];
            object[..5].copy_from_slice(b"\x7fELF\x02");
            object[16] = 3;
            object[32..40].copy_from_slice(&64_u64.to_le_bytes());
            object[54..56].copy_from_slice(&entry_size.to_le_bytes());
            object[56..58].copy_from_slice(&count.to_le_bytes());
            let last = object.len() - 56;
            object[last..last + 4].copy_from_slice(&PT_LOAD.to_le_bytes());
            object[last + 4..last + 8].copy_from_slice(&WRITABLE.to_le_bytes());
            object[last + 40..last + 48].copy_from_slice(&0x10_0010_u64.to_le_bytes());
            let memory = Memory::open(std::process::id()).unwrap();
            let base = object.as_ptr() as u64;
            let found = bss_slack(&memory, base).unwrap();
            let end = base + 0x10_0010;
            let whole = (end, end.next_multiple_of(PAGE));
            assert_eq!(found, expected.then_some(whole), "{count} of {entry_size}");
        };
        check(1, 56, true);
        check(255, 56, true);
        check(256, 56, true);
        check(300, 56, true);
        check(1, 32, false);
        check(1, 0, false);
    }
}
