//! The stacks that jemalloc's profiler keeps (`prof_structs.h` of 5.3.0 and 5.3.1): a sample's context leads to that
//! of all threads, which holds the stack.

use super::{Stack, is_code};
use crate::snapshot_memory::SnapshotMemory;

/// Where `prof_tctx_t` has its `prof_gctx_t`.
const OF_ALL_THREADS: u64 = 96;
/// Where that one has its stack (`bt`): the address of the frames, and their number; they lie right behind.
const FRAMES: u64 = 104;
const COUNT: u64 = FRAMES + 8;
const FIRST: u64 = COUNT + 8;
/// jemalloc keeps 128 of a stack unless it is told otherwise.
const MOST: u32 = 1024;

/// The stack of a context, which proves itself: its frames lie where it says, and the first one is code.
pub(super) fn stack(view: &SnapshotMemory, context: u64) -> Option<Stack> {
    let whole = view.word(context.checked_add(OF_ALL_THREADS)?)?;
    let word = |offset: u64| view.word(whole.checked_add(offset)?);
    let frames = whole.checked_add(FIRST)?;
    let count = word(COUNT)? as u32;
    if word(FRAMES)? != frames || !(1..=MOST).contains(&count) {
        return None;
    }
    let mut bytes = vec![0; 8 * count as usize];
    if view.read(frames, &mut bytes) < bytes.len() {
        return None;
    }
    let frames = bytes.chunks_exact(8);
    let frames = frames.map(|frame| u64::from_le_bytes(frame.try_into().expect("eight bytes")));
    let frames: Stack = frames.collect();
    is_code(view, frames[0]).then_some(frames)
}
