//! Frames that are no code, above a stack's outermost one: allocators keep samples of one stack and different last
//! frames apart, so a profile tells of each what they say.

use crate::birth::birth_frame;
use crate::label::label_frame;
use crate::walk::Frame;

/// What the stack of a sample that is taken now ends in.
#[derive(Clone, Copy, Debug)]
pub struct Tail([Option<usize>; 2]);

impl Tail {
    /// That of the calling thread.
    #[inline(always)]
    pub fn now() -> Self {
        Self([label_frame(), birth_frame()])
    }

    /// Room for so many frames is left to the stack, so that it ends in these.
    #[inline(always)]
    pub fn room_before(self, room: usize) -> usize {
        let frames = self.0.into_iter().flatten();
        room.saturating_sub(frames.count())
    }

    /// Writes them after the first `count` of the frames; returns how many there are then.
    #[inline(always)]
    pub fn end(self, frames: &mut [Frame], mut count: usize) -> usize {
        for frame in self.0.into_iter().flatten() {
            if let Some(next) = frames.get_mut(count) {
                next.write(frame);
                count += 1;
            }
        }
        count
    }
}
