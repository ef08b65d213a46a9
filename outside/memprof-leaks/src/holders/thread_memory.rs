//! Stacks and thread-local variables of a process's threads.

use std::ops::Range;

use object::Endianness;
use object::elf::{FileHeader64, PT_TLS};
use object::read::elf::{FileHeader, ProgramHeader};

use crate::python::FrameMemory;
use crate::snapshot::Registers;
use crate::snapshot_memory::SnapshotMemory;

/// Bytes below the stack pointer that a function may use (System V ABI, red zone).
const RED_ZONE: u64 = 128;
/// Size limit of `struct pthread` in glibc 2.27 to 2.44, rounded up, in bytes.
const MAX_DESCRIPTOR_SIZE: u64 = 4096;
/// Bytes of a file's first page, which has its program headers.
const HEADERS_SIZE: usize = 4096;

/// Addresses that belong to one thread. The kernel merges mappings, so other memory may lie beside them in the same
/// one.
#[derive(Debug, Default)]
pub(super) struct ThreadMemory {
    /// Ranges with their threads' ids, by address.
    parts: Vec<(Range<u64>, u32)>,
}

impl ThreadMemory {
    /// Finds the memory of all threads. A thread has three parts: its stack, from the red zone below the stack pointer
    /// to the end; its thread-local variables, with the thread's descriptor behind them; and the local variables of its
    /// functions in Python, which are in `frames`. Omits a stack whose end is not known.
    pub(super) fn new(
        view: &SnapshotMemory,
        threads: &[Registers],
        frames: &[FrameMemory],
    ) -> Self {
        let variables = total_tls_size(view);
        let frames = frames.iter().filter_map(|frames| {
            let mut threads = threads.iter();
            let thread = threads.find(|thread| thread.control_block == frames.thread)?;
            Some((frames.range.clone(), thread.tid))
        });
        let mut parts: Vec<_> = frames.collect();
        for thread in threads {
            let descriptor = thread.control_block;
            let descriptor_end = descriptor.saturating_add(MAX_DESCRIPTOR_SIZE);
            if let Some(region) = view.region(descriptor) {
                let start = descriptor.saturating_sub(variables).max(region.range.start);
                parts.push((start..descriptor_end.min(region.range.end), thread.tid));
            }
            if let Some(region) = view.region(thread.stack) {
                let has_descriptor =
                    region.range.contains(&descriptor) && thread.stack < descriptor;
                let end = match region.name.as_str() {
                    "[stack]" => region.range.end,
                    _ if has_descriptor => descriptor_end.min(region.range.end),
                    // The end of a stack without a descriptor is not known.
                    _ => continue,
                };
                let start = thread
                    .stack
                    .saturating_sub(RED_ZONE)
                    .max(region.range.start);
                parts.push((start..end, thread.tid));
            }
        }
        parts.sort_by_key(|(range, _)| range.start);
        Self { parts }
    }

    /// Id of the thread to which an address belongs. `None` if it belongs to no thread.
    pub(super) fn owner_thread(&self, address: u64) -> Option<u32> {
        let mut parts = self.parts.iter();
        let found = parts.find(|(range, _)| range.contains(&address));
        found.map(|(_, thread)| *thread)
    }

    /// First address behind `address`, at most `limit`, from which on memory may belong to another owner.
    pub(super) fn next_boundary(&self, address: u64, limit: u64) -> u64 {
        let bounds = self
            .parts
            .iter()
            .flat_map(|(range, _)| [range.start, range.end]);
        bounds
            .filter(|bound| *bound > address)
            .fold(limit, u64::min)
    }
}

/// Bytes of the thread-local variables of all files of a process, with their alignment.
fn total_tls_size(view: &SnapshotMemory) -> u64 {
    let files = view
        .regions
        .iter()
        .filter(|region| region.is_file && region.offset == 0);
    let mut bytes = vec![0; HEADERS_SIZE];
    let sizes = files.filter_map(|region| {
        let read = view.read(region.range.start, &mut bytes);
        file_tls_size(&bytes[..read])
    });
    sizes.fold(0, u64::saturating_add)
}

/// Bytes of the thread-local variables of a file, with their alignment. `bytes` is its first page. `None` if it has no
/// such variables, or is no 64-bit ELF file.
fn file_tls_size(bytes: &[u8]) -> Option<u64> {
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, bytes).ok()?;
    let variables = segments
        .iter()
        .find(|segment| segment.p_type(endian) == PT_TLS)?;
    Some(
        variables
            .p_memsz(endian)
            .saturating_add(variables.p_align(endian)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_between_parts_has_no_owner() {
        let memory = ThreadMemory {
            parts: vec![(0x1000..0x2000, 7), (0x5000..0x6000, 8)],
        };
        let check = |address, owner, boundary| {
            assert_eq!(memory.owner_thread(address), owner, "{address:#x}");
            assert_eq!(
                memory.next_boundary(address, 0x9000),
                boundary,
                "{address:#x}"
            );
        };
        check(0x0ff8, None, 0x1000);
        check(0x1000, Some(7), 0x2000);
        check(0x2000, None, 0x5000);
        check(0x5ff8, Some(8), 0x6000);
        check(0x6000, None, 0x9000);
    }
}
