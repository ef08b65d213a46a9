//! Native and managed frames, merged to one stack.

use core::ops::Range;

use crate::reader::PAGES;

/// Most managed frames of one stack: as many as a stack record has frames. A stack with more than these has native
/// frames besides, so the sampler counts it as one with too many frames.
pub(crate) const MAX_MANAGED: usize = 128;
/// Most frames of a merged stack: as many as a walk has.
pub(crate) const MAX_MERGED: usize = memprof_unwind::WORKSPACE_FRAMES;
/// Words of memory that [`merge_interpreted_frames`](crate::merge_interpreted_frames) needs.
pub const SCRATCH_WORDS: usize = PAGES + 2 * MAX_MANAGED + MAX_MERGED;
const _: () = assert!(SCRATCH_WORDS <= memprof_unwind::SCRATCH_WORDS);

/// A function of the program on a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ManagedFrame {
    /// Managed word of its name.
    pub(crate) word: usize,
    /// Address in the native frame of the interpreter's function that executes it. 0 if none is known: each frame has
    /// a native one of its own then. [`NEXT_NATIVE`] for the interpreter's next native frame.
    pub(crate) native: usize,
}

/// Stands for an address in the interpreter's next native frame, which executes this managed frame and those that
/// follow with the same value: the walk of the managed frames ended before it read the address.
pub(crate) const NEXT_NATIVE: usize = usize::MAX;

/// Managed frames of a stack, leaf first, as pairs of words in memory that is reused.
#[derive(Debug)]
pub(crate) struct ManagedFrames<'a> {
    words: &'a mut [usize],
    count: usize,
}

impl<'a> ManagedFrames<'a> {
    /// Creates an empty list in the memory `words`. Each frame takes two words.
    pub(crate) fn new(words: &'a mut [usize]) -> Self {
        Self { words, count: 0 }
    }

    /// Adds a frame. Returns false, with nothing added, if there is no room.
    pub(crate) fn push(&mut self, frame: ManagedFrame) -> bool {
        match self.words.get_mut(2 * self.count..2 * self.count + 2) {
            Some(pair) => {
                pair.copy_from_slice(&[frame.word, frame.native]);
                self.count += 1;
                true
            }
            None => false,
        }
    }

    /// Sets the native frame, at address `native`, of all managed frames from index `start` on.
    pub(crate) fn set_native_frame_from(&mut self, start: usize, native: usize) {
        for index in start..self.count {
            // A frame's first word is its name, and the second is the native frame.
            self.words[2 * index + 1] = native;
        }
    }

    /// Returns the number of frames that were added.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns the frame at an index. `None` beyond the last one.
    fn get(&self, index: usize) -> Option<ManagedFrame> {
        let [word, native] = *self.words.get(2 * index..2 * self.count)?.first_chunk()?;
        Some(ManagedFrame { word, native })
    }
}

/// A walked stack of native frames, leaf first.
#[derive(Clone, Copy, Debug)]
pub struct NativeStack<'a> {
    /// Program counters, as return addresses.
    pub frames: &'a [usize],
    /// Stack pointer of each frame, as far as they are known.
    pub stack_pointers: memprof_unwind::StackPointers<'a>,
}

impl NativeStack<'_> {
    /// Returns the index of the first frame, from index `from` on, with stack memory that contains `address`. `None` if
    /// there is none.
    fn frame_with_address(&self, from: usize, address: usize) -> Option<usize> {
        let contains = |index: &usize| {
            // A frame's memory reaches from its stack pointer to that of its caller, the next frame.
            let bounds = [*index, index + 1].map(|index| self.stack_pointers.get(index));
            matches!(bounds, [Some(start), Some(end)] if (start..end).contains(&address))
        };
        (from..self.frames.len().saturating_sub(1)).find(contains)
    }

    /// Returns the index of the first frame, from index `from` on, whose function is in the range `code`. `None` if
    /// there is none.
    pub(crate) fn frame_in_code(&self, from: usize, code: &Range<usize>) -> Option<usize> {
        // If a call is a function's last instruction, the return address is the byte behind the function.
        let is_in = |frame: &usize| code.contains(&frame.wrapping_sub(1));
        let rest = self.frames.get(from..)?;
        Some(from + rest.iter().position(is_in)?)
    }
}

/// Writes the frames of `native` to `merged`, leaf first, with the frames of `managed` in place of the native frames
/// that execute them. `interpreter` is the code of the interpreter's function, which executes managed frames. Returns
/// the number of written frames. Drops the outermost ones if `merged` is full.
///
/// The native frame of a managed one may be missing because the walk ended before it: then the managed frame comes
/// after all native ones. If the native frame is not found for another reason, the managed frame is written at the
/// current position, before the remaining native ones.
pub(crate) fn merge_frames(
    native: NativeStack<'_>,
    managed: &ManagedFrames<'_>,
    interpreter: &Range<usize>,
    merged: &mut [usize],
) -> usize {
    let (mut count, mut next, mut last) = (0, 0, 0);
    let mut push = |frame: usize| {
        if let Some(cell) = merged.get_mut(count) {
            *cell = frame;
            count += 1;
        }
    };
    for index in 0..managed.len() {
        let Some(frame) = managed.get(index) else {
            break;
        };
        // Frames of one activation of the interpreter have one native frame.
        if frame.native == 0 || frame.native != last {
            last = frame.native;
            let found = match frame.native {
                0 | NEXT_NATIVE => native.frame_in_code(next, interpreter),
                address => native.frame_with_address(next, address),
            };
            let end = found.unwrap_or(if is_beyond_walk(native, frame.native) {
                native.frames.len()
            } else {
                next
            });
            for frame in native.frames.get(next..end).unwrap_or_default() {
                push(*frame);
            }
            next = end + usize::from(found.is_some());
        }
        push(frame.word);
    }
    for frame in native.frames.get(next..).unwrap_or_default() {
        push(*frame);
    }
    count
}

/// Returns whether an address on the stack is beyond the outermost frame with a known stack pointer. Also true for the
/// address 0, which stands for an unknown one. False for any other address if no stack pointer is known.
fn is_beyond_walk(native: NativeStack<'_>, address: usize) -> bool {
    let pointers = (0..native.frames.len()).map_while(|index| native.stack_pointers.get(index));
    address == 0 || pointers.last().is_some_and(|last| address >= last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges native frames, of 16 bytes each from address 160 on, with managed ones.
    fn check(native: &[usize], managed: &[(usize, usize)], expected: &[usize]) {
        let mut words = [0; 2 * MAX_MANAGED];
        let mut frames = ManagedFrames::new(&mut words);
        for (word, native) in managed {
            let (word, native) = (*word, *native);
            assert!(frames.push(ManagedFrame { word, native }));
        }
        let pointers: [usize; 16] = core::array::from_fn(|index| 160 + 16 * index);
        let native = NativeStack {
            frames: native,
            stack_pointers: memprof_unwind::StackPointers::from_words(&pointers[..native.len()]),
        };
        let mut merged = [0; MAX_MERGED];
        let count = merge_frames(native, &frames, &(0x500..0x600), &mut merged);
        assert_eq!(&merged[..count], expected, "{native:?}");
    }

    #[test]
    fn managed_frames_replace_the_native_ones_that_execute_them() {
        let native = [0x100, 0x511, 0x200, 0x511, 0x300, 0x301];
        check(&native, &[], &native);
        // By address: two functions in the first activation, one in the second.
        check(
            &native,
            &[(1, 180), (2, 180), (3, 210)],
            &[0x100, 1, 2, 0x200, 3, 0x300, 0x301],
        );
        // By function: one native frame each.
        check(
            &native,
            &[(1, 0), (2, 0)],
            &[0x100, 1, 0x200, 2, 0x300, 0x301],
        );
        // The end of the second activation was not read.
        check(
            &native,
            &[(1, 180), (2, NEXT_NATIVE), (3, NEXT_NATIVE)],
            &[0x100, 1, 0x200, 2, 3, 0x300, 0x301],
        );
    }

    #[test]
    fn frames_beyond_the_end_of_a_walk_follow_it() {
        check(
            &[0x100, 0x511],
            &[(1, 400), (2, 500)],
            &[0x100, 0x511, 1, 2],
        );
        check(&[0x100, 0x511], &[(1, 0), (2, 0)], &[0x100, 1, 2]);
        check(&[], &[(1, 400)], &[1]);
        // An address on another stack, below all frames.
        check(&[0x100, 0x511, 0x300], &[(1, 8)], &[1, 0x100, 0x511, 0x300]);
    }

    #[test]
    fn merged_stack_ends_with_its_buffer() {
        let mut words = [0; 2 * MAX_MANAGED];
        let mut frames = ManagedFrames::new(&mut words);
        let frame = ManagedFrame { word: 7, native: 0 };
        let pushed = (0..1000).filter(|_| frames.push(frame)).count();
        assert_eq!(pushed, MAX_MANAGED);
        let native = NativeStack {
            frames: &[0x511; 100],
            stack_pointers: memprof_unwind::StackPointers::from_words(&[]),
        };
        let mut merged = [0; 10];
        assert_eq!(
            merge_frames(native, &frames, &(0x500..0x600), &mut merged),
            10
        );
    }
}
