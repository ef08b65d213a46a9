//! Frames that are no code, above a stack's outermost one: allocators keep samples of one stack and different last
//! frames apart, so a profile tells of each what they say.

use crate::alloc_time::alloc_time_frame;
use crate::label::label_frame;
use crate::walk::Frame;

/// What the stack of a sample that is taken now ends in.
#[derive(Clone, Copy, Debug)]
pub struct PseudoFrames([Option<usize>; 2]);

impl PseudoFrames {
    /// That of the calling thread.
    #[inline(always)]
    pub fn for_this_thread() -> Self {
        Self([label_frame(), alloc_time_frame()])
    }

    /// Room for so many frames is left to the stack, so that it ends in these.
    #[inline(always)]
    pub fn frames_left(self, room: usize) -> usize {
        let frames = self.0.into_iter().flatten();
        room.saturating_sub(frames.count())
    }

    /// Writes them after the first `count` of the frames; returns how many there are then.
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
