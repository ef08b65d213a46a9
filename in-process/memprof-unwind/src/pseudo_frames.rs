//! Pseudo frames: values above a stack's outermost frame that are data, not code. Allocators treat stacks as different
//! even if they differ only in their last frames, so a profile has separate counts for each value.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::label::label_frame;
use crate::walk::Frame;

/// Upper 24 bits of a pseudo frame of the kind "allocation time". They are part of no valid address.
const ALLOC_TIME: usize = 0x4d_5002;
/// Upper 24 bits of a pseudo frame of the kind "code generation".
const CODE_GENERATION: usize = 0x4d_5003;

/// Pseudo frame of all samples from now on; 0 for none.
static ALLOC_TIME_FRAME: AtomicUsize = AtomicUsize::new(0);
static CODE_GENERATION_FRAME: AtomicUsize = AtomicUsize::new(0);

/// Sets the allocation time of samples from now on, in seconds since 1970. `None`: samples have no time.
pub fn set_alloc_time(second: Option<u32>) {
    ALLOC_TIME_FRAME.store(encode_frame(ALLOC_TIME, second), Relaxed);
}

/// Sets the generation of the loaded code for samples from now on. The generation distinguishes stacks with addresses
/// that belonged to different code at different times. `None`: the first generation.
pub fn set_code_generation(generation: Option<u32>) {
    CODE_GENERATION_FRAME.store(encode_frame(CODE_GENERATION, generation), Relaxed);
}

/// Returns the frames of a stack without its code generation, which is the last frame if there is one.
pub fn without_code_generation(frames: &[u64]) -> &[u64] {
    match frames {
        [rest @ .., last] if last >> 40 == CODE_GENERATION as u64 => rest,
        _ => frames,
    }
}

/// Encodes a pseudo frame; returns 0 if `value` is `None`. Bits 1 to 32 hold the value, the bits from 40 on the kind.
/// Bit 0 is set, because tools subtract 1 from a return address to show the caller: the other bits then stay the same.
fn encode_frame(kind: usize, value: Option<u32>) -> usize {
    value.map_or(0, |value| kind << 40 | (value as usize) << 1 | 1)
}

/// Pseudo frames to append at the root of the current sample's stack: label set, allocation time, then code generation.
/// At most three.
#[derive(Clone, Copy, Debug)]
pub struct PseudoFrames([Option<usize>; 3]);

impl PseudoFrames {
    /// Returns the pseudo frames for a sample that the calling thread is taking: those of its labels, of the time of
    /// the allocation and of the code generation, as far as each is recorded.
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

    /// Returns the number of frames in a buffer of `buffer_len` that remain for the stack itself.
    #[inline(always)]
    pub fn frames_left_for_stack(self, buffer_len: usize) -> usize {
        let frames = self.0.into_iter().flatten();
        buffer_len.saturating_sub(frames.count())
    }

    /// Writes the pseudo frames after the first `count` frames, as far as they fit. Returns the new count.
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
