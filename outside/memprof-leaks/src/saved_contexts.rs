//! Frames of contexts that a program has suspended deeper in a stack than where its thread runs now: setjmp(3),
//! getcontext(3), swapcontext(3). Their memory otherwise counts as unused.

use std::ops::Range;

/// Rotation of `PTR_MANGLE` in glibc, to the left.
pub(crate) const MANGLE_ROTATION: u32 = 17;
/// Bytes below the stack pointer that the ABI lets a function use.
pub(crate) const RED_ZONE: u64 = 128;
/// Offsets in `ucontext_t` of the stack pointer, of the pointer to the floating point state, and of that state, to
/// which getcontext(3) lets it point.
const STACK_POINTER_OFFSET: u64 = 0xa0;
const FLOAT_POINTER_OFFSET: u64 = 0xe0;
const FLOAT_STATE_OFFSET: u64 = 0x1a8;

/// Search for stack pointers that lie in the unused parts of stacks.
pub(crate) struct SavedContexts {
    /// Values with which glibc mangles the stack pointer in a `jmp_buf`.
    guards: Vec<u64>,
    /// Parts of stacks below the frames that are known, by address.
    unused: Vec<Range<u64>>,
    /// Addresses from the first of these parts to the end of the last one.
    hull: Range<u64>,
    /// Lowest stack pointer that was found in each.
    lowest: Vec<Option<u64>>,
}

impl SavedContexts {
    /// Prepares a search for contexts in the `unused` parts of stacks, which are sorted by address. `guards` are the
    /// values with which glibc mangles the stack pointers that it saves.
    pub(crate) fn new(guards: Vec<u64>, unused: Vec<Range<u64>>) -> Self {
        let hull = match unused.as_slice() {
            [first, .., last] => first.start..last.end,
            [only] => only.clone(),
            [] => 0..0,
        };
        Self {
            guards,
            hull,
            lowest: vec![None; unused.len()],
            unused,
        }
    }

    /// Searches the words of a block that begins at `address` for saved stack pointers: the mangled ones in a
    /// `jmp_buf`, and those in a `ucontext_t`. Records those that lie in an unused part. `read` returns the word at an
    /// address near the block.
    pub(crate) fn search_block(
        &mut self,
        address: u64,
        block: &[u8],
        mut read: impl FnMut(u64) -> Option<u64>,
    ) {
        if self.unused.is_empty() {
            return;
        }
        let words = block.chunks_exact(8);
        for (address, word) in (address..).step_by(8).zip(words) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            // In a `ucontext_t`, this pointer points to the floating point state in the same structure.
            if word.wrapping_sub(address) == FLOAT_STATE_OFFSET - FLOAT_POINTER_OFFSET {
                let field = address - (FLOAT_POINTER_OFFSET - STACK_POINTER_OFFSET);
                if let Some(saved) = read(field) {
                    self.record_stack_pointer(saved);
                }
            }
            // A plain pointer or a small number; only one mangled pointer of 2^17 looks so.
            if word >> 47 == 0 {
                continue;
            }
            let rotated = word.rotate_right(MANGLE_ROTATION);
            let mut decoded = self.guards.iter().map(|guard| rotated ^ guard);
            if let Some(saved) = decoded.find(|saved| self.hull.contains(saved)) {
                self.record_stack_pointer(saved);
            }
        }
    }

    /// Records a stack pointer, if it lies in an unused part.
    fn record_stack_pointer(&mut self, saved: u64) {
        let index = self.unused.partition_point(|part| part.end <= saved);
        if self
            .unused
            .get(index)
            .is_some_and(|part| part.contains(&saved))
        {
            let lowest = &mut self.lowest[index];
            *lowest = Some(lowest.map_or(saved, |lowest| lowest.min(saved)));
        }
    }

    /// Returns the frames of the contexts that were found since the last call, each with all memory above it in the
    /// same unused part. From then on, these no longer count as unused.
    pub(crate) fn take_frames(&mut self) -> Vec<Range<u64>> {
        let parts = self.unused.iter_mut().zip(&mut self.lowest);
        let frames = parts.filter_map(|(part, lowest)| {
            let start = (lowest.take()? - RED_ZONE).max(part.start) & !7;
            let end = std::mem::replace(&mut part.end, start);
            Some(start..end)
        });
        frames.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNUSED: Range<u64> = 0x7fff_0000_0000..0x7fff_0001_0000;
    const SAVED: u64 = 0x7fff_0000_8000;
    const GUARD: u64 = 0x1234_5678_9abc_def0;
    const BLOCK: u64 = 0x5555_0000_0000;

    /// Frames that are found in a block with one word, and the saved stack pointer at `field`.
    #[track_caller]
    fn check(offset: u64, word: u64, field: u64, expected: &[Range<u64>]) {
        let mut contexts = SavedContexts::new(vec![GUARD], vec![0x1000..0x2000, UNUSED]);
        let mut block = vec![0; 512];
        block[offset as usize..][..8].copy_from_slice(&word.to_le_bytes());
        contexts.search_block(BLOCK, &block, |address| (address == field).then_some(SAVED));
        assert_eq!(contexts.take_frames(), expected);
        assert_eq!(contexts.take_frames(), []);
    }

    #[test]
    fn saved_stack_pointers_are_found() {
        let frames = SAVED - 128..UNUSED.end;
        let mangled = |value: u64| (value ^ GUARD).rotate_left(17);
        check(8, mangled(SAVED), 0, std::slice::from_ref(&frames));
        let context = BLOCK + 0x20;
        check(0x100, context + 0x1a8, context + 0xa0, &[frames]);
        // Another pointer, a plain stack pointer, and one above the unused part.
        check(0x100, context + 0x1b0, context + 0xa0, &[]);
        check(8, SAVED, 0, &[]);
        check(8, mangled(UNUSED.end), 0, &[]);
    }

    #[test]
    fn deeper_context_adds_frames_below() {
        let mut contexts = SavedContexts::new(Vec::new(), vec![UNUSED]);
        contexts.record_stack_pointer(SAVED);
        contexts.record_stack_pointer(SAVED + 8);
        assert_eq!(
            contexts.take_frames(),
            std::slice::from_ref(&(SAVED - 128..UNUSED.end))
        );
        contexts.record_stack_pointer(SAVED + 8);
        assert_eq!(contexts.take_frames(), []);
        contexts.record_stack_pointer(UNUSED.start);
        assert_eq!(
            contexts.take_frames(),
            std::slice::from_ref(&(UNUSED.start..SAVED - 128))
        );
    }
}
