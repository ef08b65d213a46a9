//! Stacks of threads, up to the control block that glibc puts at the end of each, also after the thread has ended. The
//! kernel merges mappings, so other memory may follow a stack in the same one.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::ops::Range;

use memprof_ptrace::maps::{Mapping, mappings};

use super::{AddressSpace, MappedPartKind, MemoryClaim};

pub(super) const OWNER: &str = "thread stacks";
/// Most bytes of the control block: `struct pthread` of glibc has 2,304.
const CONTROL_BLOCK_SIZE: u64 = 4096;
/// Alignment of the control block (`TLS_TCB_ALIGN`).
const CONTROL_BLOCK_ALIGNMENT: usize = 64;
/// Most bytes above a stack pointer in which the control block is searched.
const SEARCH_LIMIT: u64 = 64 << 20;
/// Bytes that are read at a time.
const BLOCK_SIZE: u64 = 64 << 10;

/// Finds the stacks of threads, up to the control block of each. Leaves out the main thread's stack, whose mapping the
/// kernel names. A stack is found by the stack pointer of a thread that waits in a system call. A stack is also found,
/// even after the thread's end, if a guard lies below its mapping and the control block on the mapping's last page.
pub(super) fn find_stacks(space: &AddressSpace) -> Vec<MemoryClaim> {
    let pointers = read_stack_pointers(space.pid);
    let guard_ends = guard_ends(space);
    let unnamed = || {
        space
            .anonymous_mappings()
            .filter(|mapping| mapping.path.is_empty())
    };
    let running = unnamed().flat_map(|mapping| {
        let range = mapping.range;
        let stacks = pointers.range(range.clone()).filter_map(|pointer| {
            let end = find_control_block(space, *pointer..range.end)?;
            // With a guard right below the mapping, the stack begins at its start.
            let start = match guard_ends.contains(&range.start) {
                true => range.start,
                false => *pointer,
            };
            Some(start..end)
        });
        stacks.collect::<Vec<_>>()
    });
    let ended = unnamed().filter_map(|mapping: Mapping<'_>| {
        let range = mapping.range;
        let last = range
            .end
            .saturating_sub(CONTROL_BLOCK_SIZE)
            .max(range.start);
        let has_guard = guard_ends.contains(&range.start);
        let end = has_guard.then(|| find_control_block(space, last..range.end))??;
        Some(range.start..end)
    });
    running
        .chain(ended)
        .map(|range| MemoryClaim::new(range, MappedPartKind::ThreadStacks, OWNER))
        .collect()
}

/// Ends of the inaccessible mappings. Glibc puts such a guard right below each stack.
fn guard_ends(space: &AddressSpace) -> HashSet<u64> {
    mappings(&space.maps)
        .filter(|mapping| mapping.access.starts_with(b"---"))
        .map(|mapping| mapping.range.end)
        .collect()
}

/// Stack pointers of the threads that wait in a system call (/proc/PID/task/TID/syscall). The file of a running thread
/// has none.
fn read_stack_pointers(pid: u32) -> BTreeSet<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let pointer = |text: String| {
        // "NUMBER ARGUMENTS… SP PC", or "running".
        let pointer = text.split_ascii_whitespace().rev().nth(1)?;
        u64::from_str_radix(pointer.strip_prefix("0x")?, 16).ok()
    };
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("syscall")).ok());
    texts.filter_map(pointer).collect()
}

/// Finds the first control block of a thread (`tcbhead_t`) in the resident pages of a range, in its first 64 MiB. The
/// first and third word of a control block are its own address. Returns the end of its memory, at most the end of the
/// range. `None` if no control block is found, or a page cannot be read.
fn find_control_block(space: &AddressSpace, range: Range<u64>) -> Option<u64> {
    let limit = range.end.min(range.start.saturating_add(SEARCH_LIMIT));
    let pages = space.resident_runs(&(range.start & !(CONTROL_BLOCK_SIZE - 1)..limit));
    let blocks = pages.iter().flat_map(|run| {
        let starts = run.clone().step_by(BLOCK_SIZE as usize);
        starts.map(move |start| start..(start + BLOCK_SIZE).min(run.end))
    });
    for block in blocks {
        let mut bytes = vec![0; (block.end - block.start) as usize];
        space.memory.read(block.start, &mut bytes).ok()?;
        let word = |at: usize| {
            let word = bytes.get(at..at + 8)?.try_into();
            Some(u64::from_le_bytes(word.expect("eight bytes")))
        };
        let mut places = (0..bytes.len()).step_by(CONTROL_BLOCK_ALIGNMENT);
        let found = places.find(|at| {
            let address = Some(block.start + *at as u64);
            word(*at) == address && word(*at + 16) == address
        });
        if let Some(at) = found {
            // The stack's memory ends with the page of the control block.
            let end = block.start + at as u64 + CONTROL_BLOCK_SIZE;
            return Some((end & !(CONTROL_BLOCK_SIZE - 1)).min(range.end));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::super::find_mapped_parts;
    use super::*;

    #[test]
    fn stack_of_a_thread_is_found() {
        let stacks = || {
            let parts = find_mapped_parts(std::process::id(), None).unwrap();
            let mut stacks = parts.into_iter();
            stacks
                .find(|part| part.kind == MappedPartKind::ThreadStacks)
                .map_or(0, |part| part.mapped)
        };
        let (end, ended) = channel::<()>();
        let (begin, begun) = channel();
        let thread = std::thread::Builder::new().stack_size(96 << 20);
        let thread = thread.spawn(move || {
            begin.send(()).unwrap();
            let _ = ended.recv();
        });
        begun.recv().unwrap();
        let during = stacks();
        assert!(during >= 96 << 20, "{during}");
        drop(end);
        thread.unwrap().join().unwrap();
    }
}
