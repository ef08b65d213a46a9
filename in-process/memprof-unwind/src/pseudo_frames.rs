//! Pseudo frames: values above a stack's outermost frame that are data, not code. Allocators keep
//! stacks apart that differ only in their last frames, so a profile reports the data of each.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::label::label_frame;
use crate::walk::Frame;

/// Upper 24 bits of such a pseudo frame: no address that a processor accepts, and the kind "allocation time".
const ALLOC_TIME: usize = 0x4d_5002;
/// Likewise, with the kind "code generation".
const CODE_GENERATION: usize = 0x4d_5003;

/// Pseudo frames of all stacks from now on; 0 for none.
static ALLOC_TIME_FRAME: AtomicUsize = AtomicUsize::new(0);
static CODE_GENERATION_FRAME: AtomicUsize = AtomicUsize::new(0);

/// Sets the allocation time of the samples from now on, in seconds since 1970. `None`: without a
/// time.
pub fn set_alloc_time(second: Option<u32>) {
    ALLOC_TIME_FRAME.store(encode_frame(ALLOC_TIME, second), Relaxed);
}

/// Sets the generation of the loaded code, by which stacks are apart whose addresses had other code once. `None`: the
/// first one.
pub fn set_code_generation(generation: Option<u32>) {
    CODE_GENERATION_FRAME.store(encode_frame(CODE_GENERATION, generation), Relaxed);
}

/// Returns the frames of a stack without its code generation, which is its last frame if it has one.
pub fn without_code_generation(frames: &[u64]) -> &[u64] {
    match frames {
        [rest @ .., last] if last >> 40 == CODE_GENERATION as u64 => rest,
        _ => frames,
    }
}

/// Encodes a pseudo frame; 0 without a value. The lowest bit is set because tools show a caller as the byte before its
/// return address: the bits above are the same with and without that subtraction.
fn encode_frame(kind: usize, value: Option<u32>) -> usize {
    value.map_or(0, |value| kind << 40 | (value as usize) << 1 | 1)
}

/// Pseudo frames to append at the root of the current sample's stack: label set, allocation time,
/// then code generation; at most three.
#[derive(Clone, Copy, Debug)]
pub struct PseudoFrames([Option<usize>; 3]);

impl PseudoFrames {
    /// Returns the pseudo frames of a sample that the calling thread takes now.
    #[inline(always)]
    pub fn for_this_thread() -> Self {
        let shared = |frame: &AtomicUsize| match frame.load(Relaxed) {
            0 => None,
            frame => Some(frame),
        };
        Self([
            label_frame(),
            shared(&ALLOC_TIME_FRAME),
            shared(&CODE_GENERATION_FRAME),
        ])
    }

    /// Returns how many of `buffer_len` frames remain for the stack itself.
    #[inline(always)]
    pub fn frames_left(self, buffer_len: usize) -> usize {
        let frames = self.0.into_iter().flatten();
        buffer_len.saturating_sub(frames.count())
    }

    /// Writes the pseudo frames after the first `count` frames, as far as there is room. Returns
    /// the new count.
    #[inline(always)]
    pub fn append_to(self, frames: &mut [Frame], mut count: usize) -> usize {
        for frame in self.0.into_iter().flatten() {
            if let Some(next) = frames.get_mut(count) {
                next.write(frame);
                count += 1;
            }
        }
        count
    }
}
