//! Unused parts of the threads' stacks.

use std::ops::Range;

use crate::saved_contexts::RED_ZONE;
use crate::snapshot::Registers;
use crate::snapshot_memory::SnapshotMemory;

/// Segment registers of 64-bit code in a signal frame (`cs`, `gs`, `fs`, `ss` of asm/sigcontext.h), and their distance
/// from its stack pointer in words.
const USER_SEGMENTS: u64 = 0x002b_0000_0000_0033;
const SEGMENTS_DISTANCE: usize = 3;
/// Most bytes of a stack that are searched for signal frames.
const MAX_SEARCHED_STACK: u64 = 64 << 20;
/// Size limit of `struct pthread` in glibc 2.27 to 2.42, rounded up, in bytes.
const MAX_DESCRIPTOR_SIZE: usize = 4096;
/// Least size of a thread's stack (`PTHREAD_STACK_MIN`), in bytes.
const MIN_STACK_SIZE: u64 = 16 << 10;

/// Finds the part of each thread's stack below its stack pointer, by address: old frames, which hold no pointers of the
/// program. `main` is the id of the main thread. A program may have its own data, or suspended coroutines, below a
/// stack in the same mapping; so a part counts only down to the end that is known of this stack.
pub(super) fn unused_stack_parts(
    view: &SnapshotMemory,
    threads: &[Registers],
    main: u32,
) -> Vec<Range<u64>> {
    let unused = |thread: &Registers| {
        let region = view.region(thread.stack)?;
        let start = match region.name.as_str() {
            // The kernel maps it for the main thread alone.
            "[stack]" => (thread.tid == main).then_some(region.range.start)?,
            _ => {
                let mut bytes = vec![0; MAX_DESCRIPTOR_SIZE];
                let read = view.read(thread.control_block, &mut bytes);
                stack_block_start(&bytes[..read], thread, &region.range)?
            }
        };
        let end = thread.stack.min(lowest_interrupted_stack_pointer(
            view,
            thread.stack..region.range.end,
        ));
        let part = start..end.saturating_sub(RED_ZONE) & !7;
        // Another thread that runs there proves that the part is used.
        let is_used = threads.iter().any(|other| part.contains(&other.stack));
        (part.start < part.end && !is_used).then_some(part)
    };
    let mut parts: Vec<_> = threads.iter().filter_map(unused).collect();
    parts.sort_by_key(|part| part.start);
    parts
}

/// Lowest stack pointer in the signal frames of the used part of a stack; `u64::MAX` without one. A handler's alternate
/// stack may be a variable in this stack: the frames that it has interrupted lie below, and are used, too.
fn lowest_interrupted_stack_pointer(view: &SnapshotMemory, used: Range<u64>) -> u64 {
    let mut bytes = vec![0; (used.end - used.start).min(MAX_SEARCHED_STACK) as usize];
    let read = view.read(used.start, &mut bytes);
    let words = bytes[..read].chunks_exact(8);
    let words: Vec<_> = words
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect();
    let frames = words.windows(SEGMENTS_DISTANCE + 1);
    let frames = frames.filter(|words| words[SEGMENTS_DISTANCE] == USER_SEGMENTS);
    frames.map(|words| words[0]).min().unwrap_or(u64::MAX)
}

/// Lowest address of a thread's stack, above its guard area. The stack lies in a block that `pthread_create(3)`
/// allocated, or that the program passed by `pthread_attr_setstack(3)`. `descriptor` is the thread's `struct pthread`,
/// behind the stack in that block. It holds the block's address, its size and the guard area's size in adjacent words
/// (`stackblock`, `stackblock_size` and `guardsize` in `nptl/descr.h`), at an offset that differs between versions.
/// `None` if it has no such words.
fn stack_block_start(descriptor: &[u8], thread: &Registers, mapping: &Range<u64>) -> Option<u64> {
    let words: Vec<u64> = descriptor
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect();
    let blocks = words.windows(3).filter_map(|words| {
        let [start, size, guard] = words.try_into().expect("three words");
        let is_block = size >= MIN_STACK_SIZE
            && guard < size
            && start <= thread.stack
            && thread.stack < thread.control_block
            && start
                .checked_add(size)
                .is_some_and(|end| thread.control_block < end && end <= mapping.end);
        is_block.then(|| (start + guard).max(mapping.start))
    });
    // The block with the highest start is the smallest: it excludes least.
    blocks.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_block_is_read_from_descriptor() {
        let thread = Registers {
            tid: 1,
            stack: 0x7_8000,
            control_block: 0x7_f000,
            words: Vec::new(),
            kernel_words: Vec::new(),
        };
        let check = |fields: [u64; 3], expected| {
            let words = [[0x7_f000, 0, 7], fields, [1, 2, 3]].concat();
            let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            let found = stack_block_start(&bytes, &thread, &(0x1_0000..0x8_0000));
            assert_eq!(found, expected, "{fields:x?}");
        };
        check([0x7_0000, 0x1_0000, 0], Some(0x7_0000));
        // The guard page is a part of the block, but may have been merged with the mapping below it.
        check([0x7_0000, 0x1_0000, 0x1000], Some(0x7_1000));
        check([0, 0x8_0000, 0], Some(0x1_0000));
        // The stack pointer or the descriptor lies outside of the block, or its end outside of the mapping.
        check([0x7_9000, 0x7000, 0], None);
        check([0x7_0000, 0xf000, 0], None);
        check([0x7_0000, 0x2_0000, 0], None);
        check([0x7_0000, u64::MAX, 0], None);
        check([0, 0, 0], None);
    }
}
