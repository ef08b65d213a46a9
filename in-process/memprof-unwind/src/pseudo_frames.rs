//! Pseudo frames: values above a stack's outermost frame that are data, not code. Allocators keep
//! stacks apart that differ only in their last frames, so a profile reports the data of each.

use crate::alloc_time::alloc_time_frame;
use crate::label::label_frame;
use crate::walk::Frame;

/// Pseudo frames to append at the root of the current sample's stack: label set, then allocation
/// time; at most two.
#[derive(Clone, Copy, Debug)]
pub struct PseudoFrames([Option<usize>; 2]);

impl PseudoFrames {
    /// Returns the pseudo frames of a sample that the calling thread takes now.
    #[inline(always)]
    pub fn for_this_thread() -> Self {
        Self([label_frame(), alloc_time_frame()])
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
