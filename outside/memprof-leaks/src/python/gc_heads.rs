//! Heads of Python's collector (`PyGC_Head`), in front of each object that it knows: pointers to the next and the
//! previous object in its list. They link each object to all others, but hold none.

use super::python_type::TypeFlag;
use super::types::{PythonTypes, reference_count};
use crate::budget::MemoryBudget;
use crate::error::Error;
use crate::objects::{GC_HEAD_PLACES, GC_HEAD_SIZE, Object, Objects};
use crate::snapshot_memory::CachedReader;

/// Offset of the previous object.
const PREVIOUS_OFFSET: u64 = 8;
/// Flags of the collector in the lowest bits of these pointers.
const LINK_FLAGS: u64 = 0b11;
/// `_PyGC_PREV_MASK_COLLECTING`: in place of the previous object is, above the flags, a number of references.
const COLLECTING: u64 = 0b10;
const REFERENCES_SHIFT: u32 = 2;

impl PythonTypes<'_> {
    /// Records where the `PyGC_Head` of each object is, so that the links of the collector's lists count as no
    /// references. Fails with `Memory` if the bitmaps of these heads need more than `budget` has left.
    pub(crate) fn record_gc_heads(
        &mut self,
        objects: &Objects,
        budget: &mut MemoryBudget,
    ) -> Result<(), Error> {
        // A head begins at the start of its block or one head behind; only the allocator's debug hooks move it farther.
        const USUAL_PLACES: u64 = 2;
        budget.reserve(objects.bitmap_bytes(USUAL_PLACES))?;
        let mut is_usual = true;
        let mut memory = CachedReader::new(self.view);
        for object in objects.all() {
            let Some(head) = self.find_gc_head(&mut memory, &object) else {
                continue;
            };
            if is_usual && head - object.range.start >= USUAL_PLACES * GC_HEAD_SIZE {
                is_usual = false;
                budget.reserve(objects.bitmap_bytes(GC_HEAD_PLACES as u64 - USUAL_PLACES))?;
            }
            objects.set_gc_head(head);
        }
        Ok(())
    }

    /// Address of an object's `PyGC_Head`. `None` if it has none, or the head is in no list of the collector.
    fn find_gc_head(&mut self, memory: &mut CachedReader<'_>, object: &Object) -> Option<u64> {
        let (before, object_type) = self.find_type(memory, object)?;
        let head = object.range.start + before.checked_sub(GC_HEAD_SIZE)?;
        let is_head = object_type.has_flag(TypeFlag::Collected) && is_linked_gc_head(memory, head)?;
        is_head.then_some(head)
    }
}

/// Whether the words at `head` link the object behind them into a list of the collector: the next object's head points
/// back to `head`, or the previous one's points forward to it. The check is needed because below 4 GiB two pointers to
/// types, as in a module's state, look like an object behind a head.
///
/// While a collection counts references, an object that it examines has a number in place of the pointer to the
/// previous object. Such a head counts if the number is at most the object's reference count. `None` if the words
/// cannot be read.
fn is_linked_gc_head(memory: &mut CachedReader<'_>, head: u64) -> Option<bool> {
    let next = memory.read_word(head)? & !LINK_FLAGS;
    let previous = memory.read_word(head + PREVIOUS_OFFSET)?;
    if next == 0 {
        return Some(false);
    }
    let points_here = |memory: &CachedReader<'_>, link: Option<u64>| {
        let word = link.and_then(|link| memory.word_without_caching(link));
        word.is_some_and(|word| word & !LINK_FLAGS == head)
    };
    if points_here(memory, next.checked_add(PREVIOUS_OFFSET)) {
        return Some(true);
    }
    if previous & COLLECTING != 0 {
        let references = reference_count(memory, head + GC_HEAD_SIZE);
        return Some(previous >> REFERENCES_SHIFT <= u64::from(references));
    }
    Some(points_here(memory, Some(previous & !LINK_FLAGS)))
}
