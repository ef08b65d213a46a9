//! Stacks of jemalloc's profiler (`prof_structs.h` of 5.3.0 and 5.3.1): a sample's context refers to the
//! context of all threads, which has the stack.

use super::{Stack, may_be_return_address};
use crate::snapshot_memory::SnapshotMemory;

/// Offset in a `prof_tctx_t` of its `prof_gctx_t`.
const GLOBAL_CONTEXT_OFFSET: u64 = 96;
/// Offset in a `prof_gctx_t` of the address of its frames (`bt`).
const FRAMES_OFFSET: u64 = 104;
/// Offset of the number of frames.
const COUNT_OFFSET: u64 = FRAMES_OFFSET + 8;
/// Offset of the first frame.
const FIRST_FRAME_OFFSET: u64 = COUNT_OFFSET + 8;
/// Most frames of a stack; jemalloc keeps 128 by default.
const MAX_FRAMES: u32 = 1024;

/// Reads the stack of a profiler's context at the address `context` (`prof_tctx_t`). `None` if it cannot be read or is
/// inconsistent: it must have 1 to [`MAX_FRAMES`] frames, these must be where the context says, and the first one must
/// be code.
pub(super) fn read_stack(view: &SnapshotMemory, context: u64) -> Option<Stack> {
    let global = view.read_word(context.checked_add(GLOBAL_CONTEXT_OFFSET)?)?;
    let word = |offset: u64| view.read_word(global.checked_add(offset)?);
    let frames = global.checked_add(FIRST_FRAME_OFFSET)?;
    let count = word(COUNT_OFFSET)? as u32;
    if word(FRAMES_OFFSET)? != frames || !(1..=MAX_FRAMES).contains(&count) {
        return None;
    }
    let mut bytes = vec![0; 8 * count as usize];
    if view.read(frames, &mut bytes) < bytes.len() {
        return None;
    }
    let frames = bytes.chunks_exact(8);
    let frames = frames.map(|frame| u64::from_le_bytes(frame.try_into().expect("eight bytes")));
    let frames: Stack = frames.collect();
    may_be_return_address(view, frames[0]).then_some(frames)
}
