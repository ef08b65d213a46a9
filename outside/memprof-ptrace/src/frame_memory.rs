//! Memory of a process for the frames of remote calls, which the program does not use meanwhile.

use std::collections::HashSet;
use std::io;

use crate::auxiliary::{self, AT_BASE, AT_PHDR};
use crate::library_image::LibraryImage;
use crate::maps::{Mapping, mappings};
use crate::memory::Memory;

/// `e_type` of a program that is loaded at the addresses in its file, and its offset in the ELF header.
const ET_EXEC: u16 = 2;
const TYPE_OFFSET: u64 = 16;
const PT_LOAD: u32 = 1;
const PF_W: u32 = 2;
/// Bytes of a program header (`Elf64_Phdr`).
const PROGRAM_HEADER_SIZE: u64 = 56;
const PAGE_SIZE: u64 = 4096;
/// Largest distance of a thread's stack pointer and its control block, in bytes.
const MAX_STACK_SIZE: u64 = 64 << 20;
/// Largest number of libraries in the loader's list. Each has a mapping at least, and by default the kernel allows a
/// process 65,530 (`vm.max_map_count`).
const MAX_LIBRARIES: usize = 1 << 16;

/// A thread, with the part of its stack that is free for frames.
#[derive(Clone, Copy, Debug)]
pub struct StackOwner {
    /// Whether the thread is its process's main thread.
    pub is_main: bool,
    /// Highest address that the thread does not use: [`crate::remote_call::top_below_red_zone`].
    pub stack_end: u64,
    /// Address of the thread's control block (`fs_base`).
    pub control_block: u64,
}

/// Finds `length` bytes of memory that the program does not use, and returns the address behind them. They are on the
/// thread's own stack if that certainly has room. Otherwise they are behind the variables of the program, or of a
/// library that is never unloaded, in the last page of the variables. `None` if `owner.stack_end` is not mapped, or if
/// neither place has room.
///
/// A stack that the program allocated itself is not used: below a coroutine's stack of 4 KiB lies the heap.
pub fn find_frame_memory(
    memory: &Memory,
    maps: &[u8],
    owner: StackOwner,
    length: u64,
) -> Option<u64> {
    let end = owner.stack_end;
    let stack = mapping_at(maps, end)?;
    let has_room = stack.range.start + length < end;
    let is_main = owner.is_main && stack.path == b"[stack]";
    if has_room && (is_main || is_libc_stack(maps, &stack, end, owner.control_block)) {
        return Some(end);
    }
    find_bss_slack(memory, maps, length)
}

/// Returns the mapping that contains an address; `None` if there is none.
fn mapping_at(maps: &[u8], address: u64) -> Option<Mapping<'_>> {
    mappings(maps).find(|mapping| mapping.range.contains(&address))
}

/// Returns whether libc allocated a thread's stack: a guard page lies below the mapping `stack`, and the thread's
/// control block in the mapping, less than [`MAX_STACK_SIZE`] above `end`, the highest address that the thread does not
/// use.
fn is_libc_stack(maps: &[u8], stack: &Mapping<'_>, end: u64, control_block: u64) -> bool {
    let guard = stack.range.start.checked_sub(1);
    let guard = guard.and_then(|below| mapping_at(maps, below));
    let has_guard = guard.is_some_and(|guard| guard.access == *b"---p");
    let is_below = end < control_block && control_block - end < MAX_STACK_SIZE;
    has_guard && is_below && stack.range.contains(&control_block)
}

/// Returns the end of `length` free bytes in the last page of the variables of the program, or of a library that was
/// loaded at its start. `None` if no such page has room, or if the loader's list of libraries cannot be read or does
/// not contain the loader.
fn find_bss_slack(memory: &Memory, maps: &[u8], length: u64) -> Option<u64> {
    let images = startup_libraries(memory, maps).ok()??;
    let mut images = images
        .into_iter()
        .filter_map(|base| bss_slack(memory, base).ok()?);
    let (_, end) = images.find(|(start, end)| {
        let is_private = |mapping: Mapping<'_>| mapping.access == *b"rw-p";
        end - start > length && mapping_at(maps, *start).is_some_and(is_private)
    })?;
    Some(end)
}

/// Returns the load addresses of the program and of the libraries that were loaded at its start. These precede the
/// loader in the loader's list. A library behind the loader may be unloaded at any moment, and the loader uses the end
/// of its own last page for early allocations. Without glibc's loader, returns the program alone.
///
/// A load address is what the loader adds to the addresses in a file, but for a program that is not position
/// independent the start of its mapping. `None` if the loader is not in its own list.
///
/// # Errors
/// The loader's list cannot be read.
pub fn startup_libraries(memory: &Memory, maps: &[u8]) -> io::Result<Option<Vec<u64>>> {
    let (bases, loader) = read_loader_list(memory, maps)?;
    let Some(loader) = loader else {
        return Ok(Some(bases));
    };
    let index = bases.iter().position(|base| *base == loader);
    Ok(index.map(|index| bases[..index].to_vec()))
}

/// Returns the load addresses of the program and the libraries in its namespace, without those of dlmopen(3) and
/// `LD_AUDIT`. Without glibc's loader, returns the program alone.
///
/// # Errors
/// The loader's list cannot be read, or has no end.
pub fn loaded_libraries(memory: &Memory, maps: &[u8]) -> io::Result<Vec<u64>> {
    Ok(read_loader_list(memory, maps)?.0)
}

/// Reads the load addresses in the loader's list of libraries, in its order, and the load address of the loader.
/// Without a loader that defines the list (`_r_debug`), returns the program alone and `None`. Finds the loader by the
/// auxiliary vector, because a file with the loader's name may be mapped as data, and the loader may have another name.
/// Fails if the memory cannot be read, or the list has no end.
fn read_loader_list(memory: &Memory, maps: &[u8]) -> io::Result<(Vec<u64>, Option<u64>)> {
    let vector = memory.auxiliary_vector()?;
    let mut images = mappings(maps).filter(|mapping| mapping.offset == 0 && mapping.inode != 0);
    let program = match auxiliary::auxv_value(&vector, AT_PHDR) {
        Some(headers) => images.find(|image| image.range.contains(&headers)),
        None => images.next(),
    };
    let program = program.map(|image| image.range.start);
    // If the loader was executed itself, with a program as its argument, the kernel sees it as the program. A
    // program without a loader does not define `_r_debug`.
    let loader = auxiliary::auxv_value(&vector, AT_BASE).or(program);
    let symbol = |base| {
        LibraryImage::read(memory, base)
            .ok()?
            .symbol_address("_r_debug")
    };
    let Some((loader, list)) = loader.and_then(|base| Some((base, symbol(base)?))) else {
        return Ok((program.into_iter().collect(), None));
    };
    // `r_map` of `struct r_debug`: the first `struct link_map`.
    let mut bases = read_link_maps(memory, memory.read_u64(list.wrapping_add(8))?)?;
    // `l_addr` is the distance to the addresses in the file: 0 for a program that is not position independent, whose
    // load address the caller needs.
    if let (Some(first @ 0), Some(program)) = (bases.first_mut(), program)
        && memory.read_array(program + TYPE_OFFSET)? == ET_EXEC.to_le_bytes()
    {
        *first = program;
    }
    Ok((bases, Some(loader)))
}

/// Reads the load addresses in a list of `struct link_map`, of which `entry` is the address of the first. Fails if the
/// memory cannot be read, or the list has no end.
fn read_link_maps(memory: &Memory, mut entry: u64) -> io::Result<Vec<u64>> {
    let (mut bases, mut visited) = (Vec::new(), HashSet::new());
    while entry != 0 {
        // A loader's own list has an end: at the next dlopen(3) the loader would follow a cycle for ever.
        if bases.len() == MAX_LIBRARIES || !visited.insert(entry) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "its loader's list of libraries has no end",
            ));
        }
        // `l_addr` is at offset 0, `l_next` at 24.
        bases.push(memory.read_u64(entry)?);
        entry = memory.read_u64(entry.wrapping_add(24))?;
    }
    Ok(bases)
}

/// Returns start and end of the free addresses between a library's variables and the end of their page. `None` if the
/// file at `base` is no ELF file of 64 bits, is not position independent, has program headers of another size than
/// `Elf64_Phdr`, or has no writable segment within the address space. Fails if its headers cannot be read.
fn bss_slack(memory: &Memory, base: u64) -> io::Result<Option<(u64, u64)>> {
    let header: [u8; 64] = memory.read_array(base)?;
    let read_u64 = |bytes: &[u8], offset: usize| {
        u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
    };
    let read_u32 = |bytes: &[u8], offset: usize| {
        u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
    };
    // Only for a shared object (ET_DYN) are the addresses in the file relative to its base.
    if header[..5] != *b"\x7fELF\x02" || header[16] != 3 {
        return Ok(None);
    }
    let read_u16 = |offset: usize| u16::from_le_bytes([header[offset], header[offset + 1]]);
    // `e_phentsize` and `e_phnum`; `e_phoff` is at 32.
    let (entry_size, count) = (u64::from(read_u16(54)), u64::from(read_u16(56)));
    if entry_size != PROGRAM_HEADER_SIZE {
        return Ok(None);
    }
    let mut last = None;
    for index in 0..count {
        let headers = base.wrapping_add(read_u64(&header, 32));
        let segment: [u8; 56] =
            memory.read_array(headers.wrapping_add(index * PROGRAM_HEADER_SIZE))?;
        if read_u32(&segment, 0) == PT_LOAD && read_u32(&segment, 4) & PF_W != 0 {
            // `p_vaddr` and `p_memsz`. The last writable segment holds the variables.
            let start = base.checked_add(read_u64(&segment, 16));
            let end = start.and_then(|start| start.checked_add(read_u64(&segment, 40)));
            last = end.and_then(|end| Some((end, end.checked_next_multiple_of(PAGE_SIZE)?)));
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
    fn loader_list_is_read_whole_or_not_at_all() {
        let memory = Memory::open(std::process::id()).unwrap();
        let check = |count: u64, last_next: usize, expected: Option<usize>| {
            // `l_addr` and, behind two other words, `l_next`.
            let mut list: Vec<[u64; 4]> = (0..count).map(|base| [base, 0, 0, 0]).collect();
            let addresses: Vec<_> = list.iter().map(|entry| entry.as_ptr() as u64).collect();
            for (entry, next) in list.iter_mut().zip(&addresses[1..]) {
                entry[3] = *next;
            }
            list.last_mut().unwrap()[3] = addresses.get(last_next).copied().unwrap_or(0);
            let bases = read_link_maps(&memory, addresses[0]).ok();
            assert_eq!(bases.map(|bases| bases.len()), expected, "{count}");
        };
        check(1, usize::MAX, Some(1));
        check(5000, usize::MAX, Some(5000));
        check(5, 2, None);
        check(MAX_LIBRARIES as u64 + 1, usize::MAX, None);
    }

    #[test]
    fn library_opened_later_is_no_startup_library() {
        // SAFETY: this library of glibc has no constructors that could break an invariant.
        #[expect(unsafe_code, reason = "the loader's function")]
        let library = unsafe { libc::dlopen(c"libBrokenLocale.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null());
        let memory = Memory::open(std::process::id()).unwrap();
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let bases = startup_libraries(&memory, &maps).unwrap().unwrap();
        let is_startup_library = |name: &[u8]| {
            let mut images = mappings(&maps).filter(|mapping| mapping.offset == 0);
            let image = images.find(|mapping| mapping.file_name() == name);
            bases.contains(&image.unwrap().range.start)
        };
        let program = std::env::current_exe().unwrap();
        assert!(is_startup_library(
            program.file_name().unwrap().as_encoded_bytes()
        ));
        assert!(is_startup_library(b"libc.so.6"));
        assert!(!is_startup_library(b"libBrokenLocale.so.1"));
    }

    /// Returns whether the loader's list has a process's libc.
    fn has_libc(pid: u32) -> bool {
        let memory = Memory::open(pid).unwrap();
        let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap();
        let loaded = loaded_libraries(&memory, &maps).unwrap();
        let mut libcs = mappings(&maps).filter(|image| image.file_name() == b"libc.so.6");
        libcs.any(|image| loaded.contains(&image.range.start))
    }

    const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

    #[test]
    fn loader_file_mapped_as_data_is_ignored() {
        let file = std::fs::File::open(LOADER).unwrap();
        // Below every address that the kernel chooses itself.
        let low = std::ptr::without_provenance_mut(0x1000_0000);
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: mmap(2) with MAP_FIXED_NOREPLACE replaces no mapping.
        #[expect(unsafe_code, reason = "a mapping at an address")]
        let mapped = unsafe { libc::mmap(low, 4096, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
        assert_eq!(mapped, low);
        assert!(has_libc(std::process::id()));
    }

    #[test]
    fn loader_of_another_name_is_found_even_if_executed() {
        let dir = tempfile::tempdir().unwrap();
        let renamed = dir.path().join("loader");
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

    /// ELF header with the given number and size of program headers, of which only the last is writable.
    #[test]
    fn slack_follows_the_last_writable_segment() {
        let check = |count: u16, entry_size: u16, expected: bool| {
            let mut object = vec![0_u8; 64 + usize::from(count) * 56];
            object[..5].copy_from_slice(b"\x7fELF\x02");
            object[16] = 3;
            object[32..40].copy_from_slice(&64_u64.to_le_bytes());
            object[54..56].copy_from_slice(&entry_size.to_le_bytes());
            object[56..58].copy_from_slice(&count.to_le_bytes());
            let last = object.len() - 56;
            object[last..last + 4].copy_from_slice(&PT_LOAD.to_le_bytes());
            object[last + 4..last + 8].copy_from_slice(&PF_W.to_le_bytes());
            object[last + 40..last + 48].copy_from_slice(&0x10_0010_u64.to_le_bytes());
            let memory = Memory::open(std::process::id()).unwrap();
            let base = object.as_ptr() as u64;
            let found = bss_slack(&memory, base).unwrap();
            let end = base + 0x10_0010;
            let slack = (end, end.next_multiple_of(PAGE_SIZE));
            assert_eq!(found, expected.then_some(slack), "{count} of {entry_size}");
        };
        check(1, 56, true);
        check(255, 56, true);
        check(256, 56, true);
        check(300, 56, true);
        check(1, 32, false);
        check(1, 0, false);
    }
}
