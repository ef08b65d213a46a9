//! Pointers that a program disguises: with a tag in their upper bits, shifted, byte-swapped, in 32 bits, at an address
//! that is no multiple of 4, mangled by glibc, or as an interpreter's number; also the `XOR`ed neighbours of a list's
//! node. An object that only such a word holds is no proven leak. Complements (`~p`) hold nothing: programs store them
//! so that a search does not count them, as weak references.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::analysis::AnalyzedSnapshot;
use crate::error::Error;
use crate::objects::Objects;
use crate::resident_pages::PAGE_SIZE;
use crate::saved_contexts::{MANGLE_ROTATION, SavedContexts};
use crate::snapshot_memory::{BLOCK_SIZE, CachedReader, SnapshotMemory};
use crate::words::word_between;
use crate::xor_lists::mark_xor_lists;

/// Bits of an address in user space.
const ADDRESS_BITS: u32 = 47;
/// Bits below an address that a tag shifted in: those of `PackedSyncPtr` in Folly, and of lists without locks.
const SHIFT: u32 = 16;
/// Bits of a digit in `CPython`'s integers (`PyLong_SHIFT`), each of which takes 32.
const DIGIT_BITS: u32 = 30;
/// End of the addresses that a word of 32 bits can have.
const LOW_END: u64 = 1 << 32;
/// Distance of the pointer guard from the thread's control block (`tcbhead_t` of glibc).
const POINTER_GUARD_OFFSET: u64 = 0x30;
/// Bytes at an object's start to which a disguised pointer may point: a header of the program's own. More would make
/// large objects appear held by any number.
const MAX_HEADER_SIZE: u64 = 64;
/// Bytes of a word that may be the highest of an address's six, if the address lies at no multiple of 4: all but the
/// second and the sixth. The upper bit of each.
const UNALIGNED_TOP_BYTES: u64 = 0x8080_0080_8080_0080;
/// A word with 1 in each byte.
const EACH_BYTE: u64 = 0x0101_0101_0101_0101;
/// Most different sixth bytes of the objects' addresses. Programs have two: of the heap behind the program, and of
/// mappings.
const MAX_TOP_BYTES: usize = 4;
/// Largest gap between objects that are read at once, in bytes.
const MAX_GAP: u64 = PAGE_SIZE;
/// Most objects in the queue of unscanned ones.
const MAX_QUEUED: usize = 1 << 18;
/// Bytes that are read between two checks of the machine's available memory.
const HEADROOM_CHECK_BYTES: u64 = 64 << 20;

/// Count of objects and their usable bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldObjects {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

/// Addresses that words may stand for.
struct Decoder<'a> {
    objects: &'a Objects,
    /// Pointer guards of the threads: one for all, unless a process has two C libraries.
    guards: BTreeSet<u64>,
    /// Whether objects are below 4 GiB, as in a program that is not position independent.
    has_low_objects: bool,
    /// Sixth bytes of the unreachable objects' addresses, each repeated in all bytes of a word.
    top_bytes: Vec<u64>,
}

impl<'a> Decoder<'a> {
    /// Creates a decoder of pointers to `objects`, and finds the highest bytes of the unreachable ones' addresses.
    /// `guards` are the values with which glibc mangles pointers in the process.
    fn new(guards: BTreeSet<u64>, objects: &'a Objects) -> Self {
        Self {
            objects,
            guards,
            has_low_objects: objects
                .all()
                .next()
                .is_some_and(|first| first.range.start < LOW_END),
            top_bytes: repeated_top_bytes(objects),
        }
    }

    /// Marks the unreachable objects to which the words of a block point in disguise, and calls `found` with the start
    /// of each. If `has_new_owner`, the block is that of an object that was just marked, so nothing has followed its
    /// pointers: then also marks the objects to which plain pointers point.
    fn mark_from_block(&self, block: &[u8], has_new_owner: bool, found: &mut impl FnMut(u64)) {
        let mut before = 0;
        for word in block.chunks_exact(8) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            let is_plain = |word| has_new_owner && self.objects.may_contain(word);
            let start = match is_plain(word) {
                true => self.objects.mark_target(word),
                false => self.mark_from_word(word),
            };
            start.into_iter().for_each(&mut *found);
            // A packed structure may have a pointer at an odd multiple of 4.
            let packed = Some(word_between(before, word)).filter(|packed| is_plain(*packed));
            let start = packed.and_then(|packed| self.objects.mark_target(packed));
            start.into_iter().for_each(&mut *found);
            self.mark_from_unaligned(before, word, found);
            before = word;
        }
    }

    /// Follows the pointers that are stored at an address that is no multiple of 4, and whose highest byte, the sixth,
    /// is in `word`. Their lower bytes may be in `before`, the word in front of it. Marks each unreachable object to
    /// whose first [`MAX_HEADER_SIZE`] bytes such a pointer points, and calls `found` with the object's start.
    fn mark_from_unaligned(&self, before: u64, word: u64, found: &mut impl FnMut(u64)) {
        for top in &self.top_bytes {
            // Sets the upper bit of each byte of `word` that equals the sixth byte, among those that may be one. A
            // borrow may also set the bit of the byte above: the check of the whole address decides.
            let difference = word ^ top;
            let mut equal = difference.wrapping_sub(EACH_BYTE) & !difference & UNALIGNED_TOP_BYTES;
            while equal != 0 {
                // The address's five other bytes lie before this one.
                let shift = 64 + (equal.trailing_zeros() & !7) - 40;
                let pair = u128::from(word) << 64 | u128::from(before);
                let address = (pair >> shift) as u64 & ((1 << (ADDRESS_BITS + 1)) - 1);
                // The lower bytes of other addresses and numbers often are addresses below 4 GiB.
                let start = (address >= LOW_END)
                    .then(|| self.mark_near_start(address))
                    .flatten();
                start.into_iter().for_each(&mut *found);
                equal &= equal - 1;
            }
        }
    }

    /// Marks the object to whose first [`MAX_HEADER_SIZE`] bytes an address points, unless the object was marked
    /// before. Returns the object's start; `None` if nothing was marked.
    fn mark_near_start(&self, address: u64) -> Option<u64> {
        if !self.objects.may_contain(address) {
            return None;
        }
        let start = self.objects.unmarked_start(address)?;
        let is_near = address - start < MAX_HEADER_SIZE;
        is_near.then(|| self.objects.mark_target(start)).flatten()
    }

    /// Marks the unreachable object to which a word points in disguise: by one of its halves, or encoded
    /// ([`Self::mark_from_encoded`]). Returns the object's start; `None` if there is no such object.
    fn mark_from_word(&self, word: u64) -> Option<u64> {
        self.mark_from_half(word)
            .or_else(|| self.mark_from_encoded(word))
    }

    /// Marks the unreachable object whose start is the lower or upper 32 bits of a word. Returns that start. `None` if
    /// there is no such object, if no object lies below 4 GiB, or if the upper half is 0: then the word is a plain
    /// pointer or number.
    fn mark_from_half(&self, word: u64) -> Option<u64> {
        if !self.has_low_objects || word < LOW_END {
            return None;
        }
        [word % LOW_END, word / LOW_END]
            .into_iter()
            .filter(|address| self.objects.may_contain(*address))
            // Among numbers of 32 bits, many are addresses in an object.
            .filter(|address| self.objects.unmarked_start(*address) == Some(*address))
            .find_map(|start| self.objects.mark_target(start))
    }

    /// Marks the unreachable object near whose start a word points with a tag in its upper bits, shifted, byte-swapped,
    /// mangled by glibc, or as an interpreter's number. Returns the object's start; `None` if there is no such object.
    fn mark_from_encoded(&self, word: u64) -> Option<u64> {
        // A plain pointer or a small number.
        if word >> ADDRESS_BITS == 0 {
            return None;
        }
        let mangled = word.rotate_right(MANGLE_ROTATION);
        let mangled = self.guards.iter().map(|guard| mangled ^ guard);
        [
            word & ((1 << ADDRESS_BITS) - 1),
            word >> SHIFT,
            word.swap_bytes(),
            // Integers with a type in the lowest bits: of Ruby and SBCL, and of Guile and Racket.
            word >> 1,
            word >> 2,
            python_integer_value(word),
            // Numbers of JavaScript, Lua before 5.3, and R. The conversion saturates, and makes 0 of what is no number.
            f64::from_bits(word) as u64,
        ]
        .into_iter()
        .chain(mangled)
        .find_map(|address| self.mark_near_start(address))
    }
}

/// Value of the `CPython` integer whose two digits (`ob_digit`, 30 bits in 32 each) are the halves of `word`. 0 if the
/// lower half is no digit, or the value has more than 47 bits and so is no address.
fn python_integer_value(word: u64) -> u64 {
    let (low, high) = (word % LOW_END, word / LOW_END);
    match low >> DIGIT_BITS == 0 && high >> (ADDRESS_BITS - DIGIT_BITS) == 0 {
        true => high << DIGIT_BITS | low,
        false => 0,
    }
}

/// Marks the unreachable objects that disguised pointers in the roots and in reachable objects hold, the nodes of lists
/// with exclusive-or links, objects that only frames of suspended contexts hold, and all that these reach. Returns
/// their number and size. Reads the roots and the reachable objects once more, unless every object is reachable.
///
/// # Errors
/// `Headroom`: the process writes so much that its copy takes too much memory.
pub(crate) fn follow_disguised_pointers(
    analyzed: &AnalyzedSnapshot<'_>,
) -> Result<HeldObjects, Error> {
    let (view, objects) = (&analyzed.view, &analyzed.objects);
    let before = unreachable_total(objects);
    if before.objects == 0 {
        return Ok(before);
    }
    let threads = &analyzed.snapshot.threads;
    let guards = threads.iter().filter_map(|thread| {
        view.read_word(thread.control_block.checked_add(POINTER_GUARD_OFFSET)?)
    });
    let guards: BTreeSet<u64> = guards.collect();
    let unused_stacks = analyzed.roots.unused_stacks.clone();
    let mut contexts = SavedContexts::new(guards.iter().copied().collect(), unused_stacks);
    let decoder = Decoder::new(guards, objects);
    let mut memory = CachedReader::new(view);
    let mut reader = RangeReader::new(view);
    let mut found = Vec::new();
    let words = threads.iter().flat_map(|thread| &thread.words);
    words
        .chain(&analyzed.roots.kernel)
        .for_each(|word| queue_start(&mut found, decoder.mark_from_word(*word)));
    let mut visit = |address: u64, block: &[u8]| {
        contexts.search_block(address, block, |field| memory.read_word(field));
        decoder.mark_from_block(block, false, &mut |start| {
            queue_start(&mut found, Some(start))
        });
    };
    let mut unchecked = 0;
    let mut check_headroom = |range: &Range<u64>| {
        unchecked += range.end - range.start;
        match unchecked > HEADROOM_CHECK_BYTES {
            true => {
                unchecked = 0;
                analyzed.snapshot.require_headroom()
            }
            false => Ok(()),
        }
    };
    for range in &analyzed.roots.ranges {
        check_headroom(range)?;
        reader.visit_range(range.clone(), &mut visit);
    }
    for object in objects.reachable() {
        check_headroom(&object.range)?;
        reader.add_object(object.range, &mut visit);
    }
    reader.read_pending_objects(&mut visit);
    let nodes = mark_xor_lists(objects, &mut |address| memory.read_word(address));
    nodes
        .into_iter()
        .for_each(|node| queue_start(&mut found, Some(node)));
    loop {
        // Follow the new objects and frames until they hold nothing more.
        let starts = std::mem::take(&mut found).into_iter();
        let mut ranges = contexts.take_frames();
        ranges.extend(starts.filter_map(|start| objects.mark_scanned(start)));
        let mut visit = |address: u64, block: &[u8]| {
            contexts.search_block(address, block, |field| memory.read_word(field));
            decoder.mark_from_block(block, true, &mut |start| {
                queue_start(&mut found, Some(start))
            });
        };
        // The ranges are in no order, so each is read alone.
        for range in &ranges {
            reader.add_object(range.clone(), &mut visit);
            reader.read_pending_objects(&mut visit);
        }
        if found.is_empty() {
            found.extend(objects.marked_unscanned_starts().take(MAX_QUEUED));
        }
        if found.is_empty() && ranges.is_empty() {
            break;
        }
    }
    let after = unreachable_total(objects);
    Ok(HeldObjects {
        objects: before.objects - after.objects,
        bytes: before.bytes - after.bytes,
    })
}

/// Number and size of the unreachable objects.
fn unreachable_total(objects: &Objects) -> HeldObjects {
    let mut total = HeldObjects::default();
    for object in objects.unreachable() {
        total.objects += 1;
        total.bytes += object.size();
    }
    total
}

/// Queues the start of an object that was marked; does nothing for `None`. Drops the start if [`MAX_QUEUED`] are in the
/// queue: [`follow_disguised_pointers`] finds the object again by its mark.
fn queue_start(found: &mut Vec<u64>, start: Option<u64>) {
    if found.len() < MAX_QUEUED {
        found.extend(start);
    }
}

/// Reads the words of objects and other ranges; objects that are near each other at once.
struct RangeReader<'a> {
    view: &'a SnapshotMemory,
    block: Vec<u8>,
    /// Objects that are not read yet, near each other.
    pending: Vec<Range<u64>>,
}

impl<'a> RangeReader<'a> {
    /// Creates a reader of a snapshot, without pending objects.
    fn new(view: &'a SnapshotMemory) -> Self {
        Self {
            view,
            block: vec![0; BLOCK_SIZE],
            pending: Vec::new(),
        }
    }

    /// Adds an object, which must lie behind the pending ones. If it is not near these, first reads them and passes
    /// their addresses and bytes to `visit`. An object larger than [`BLOCK_SIZE`] never waits: its resident pages are
    /// read before this returns.
    fn add_object(&mut self, object: Range<u64>, visit: &mut impl FnMut(u64, &[u8])) {
        let is_near = self.pending.last().is_some_and(|last| {
            object.start.saturating_sub(last.end) <= MAX_GAP
                && object.end - self.pending[0].start <= BLOCK_SIZE as u64
        });
        if !is_near {
            self.read_pending_objects(visit);
        }
        if object.end - object.start <= BLOCK_SIZE as u64 {
            self.pending.push(object);
            return;
        }
        let region = self.view.region(object.start);
        let pages = region.map_or(&[][..], |region| &region.pages);
        let first = pages.partition_point(|pages| pages.end <= object.start);
        for pages in pages[first..]
            .iter()
            .take_while(|pages| pages.start < object.end)
        {
            let part = pages.start.max(object.start)..pages.end.min(object.end);
            self.visit_range(part, visit);
        }
    }

    /// Reads the pending objects, calls `visit` with the address and bytes of each, and removes them from the pending
    /// ones. Omits the rest of an object from its first unreadable byte on.
    fn read_pending_objects(&mut self, visit: &mut impl FnMut(u64, &[u8])) {
        let (Some(first), Some(last)) = (self.pending.first(), self.pending.last()) else {
            return;
        };
        let base = first.start;
        let length = (last.end - base) as usize;
        let read = self.view.read(base, &mut self.block[..length]);
        for object in std::mem::take(&mut self.pending) {
            let (start, end) = ((object.start - base) as usize, (object.end - base) as usize);
            match self.block[..read].get(start..end) {
                Some(bytes) => visit(object.start, bytes),
                // The gap in front of the object may be unreadable: read the object alone.
                None => {
                    let read = self.view.read(object.start, &mut self.block[start..end]);
                    visit(object.start, &self.block[start..start + read]);
                }
            }
        }
    }

    /// Calls `visit` with the addresses and bytes of a range of any length, block by block. Each block begins with the
    /// last word of the block before, because a pointer at no multiple of 4 may lie in both. In each block, omits the
    /// rest from the first unreadable byte on.
    fn visit_range(&mut self, range: Range<u64>, visit: &mut impl FnMut(u64, &[u8])) {
        let end = range.end;
        for start in range.step_by(BLOCK_SIZE - size_of::<u64>()) {
            let length = BLOCK_SIZE.min((end - start) as usize);
            let read = self.view.read(start, &mut self.block[..length]);
            visit(start, &self.block[..read]);
        }
    }
}

/// Returns the different sixth bytes of the unreachable objects' addresses above 4 GiB, at most [`MAX_TOP_BYTES`], each
/// repeated in all bytes of a word.
fn repeated_top_bytes(objects: &Objects) -> Vec<u64> {
    const TOP_SHIFT: u32 = 40;
    let mut tops = Vec::new();
    for object in objects.unreachable() {
        let top = (object.range.start >> TOP_SHIFT) * EACH_BYTE;
        if object.range.start >= LOW_END && !tops.contains(&top) && tops.len() < MAX_TOP_BYTES {
            tops.push(top);
        }
    }
    tops
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Span;

    const START: u64 = 0x5555_5000_1000;
    const LOW_START: u64 = 0x0200_1000;
    const GUARD: u64 = 0x1234_5678_9abc_def0;

    #[track_caller]
    fn check_in(start: u64, word: u64, expected: Option<u64>) {
        let mut span = Span::new(start..start + 0x1000, 16, 0);
        span.add_object(start, true);
        let objects = Objects::new(vec![span]);
        let decoder = Decoder::new([1, GUARD].into(), &objects);
        assert_eq!(decoder.mark_from_word(word), expected, "{word:#x}");
    }

    #[track_caller]
    fn check(word: u64, expected: Option<u64>) {
        check_in(START, word, expected);
    }

    #[test]
    fn disguised_pointers_are_decoded() {
        for word in [
            START | 0xa001 << 48,
            // NaN boxes of SpiderMonkey, and of LuaJIT.
            START | 0x1_fff5 << 47,
            START | 0xfff8 << 48 | 5,
            START << 16 | 7,
            (START ^ GUARD).rotate_left(17),
            START.swap_bytes(),
            START << 1 | 1,
            START << 2 | 2,
            (START >> 30) << 32 | START & 0x3fff_ffff,
            (START as f64).to_bits(),
            // Behind a header.
            (START + 16) | 1 << 63,
        ] {
            check(word, Some(START));
        }
    }

    #[test]
    fn unaligned_pointers_are_found_at_each_offset() {
        for start in [START, LOW_START] {
            for offset in 0..24 {
                let mut block = [0x7f; 40];
                block[offset..offset + 6].copy_from_slice(&start.to_le_bytes()[..6]);
                let mut span = Span::new(start..start + 0x1000, 16, 0);
                span.add_object(start, true);
                let objects = Objects::new(vec![span]);
                let mut found = Vec::new();
                let decoder = Decoder::new([].into(), &objects);
                decoder.mark_from_block(&block, false, &mut |start| found.push(start));
                // A plain pointer at a multiple of 4 is found before. Below 4 GiB, halves of words are decoded.
                let is_found = match start < LOW_END {
                    true => offset % 4 == 0,
                    false => offset % 8 != 4,
                };
                assert_eq!(found.len(), usize::from(is_found), "{start:x} {offset}");
            }
        }
    }

    #[test]
    fn plain_pointers_of_new_owner_are_found_at_multiples_of_4() {
        for offset in (0..24).step_by(4) {
            let mut block = [0x7f; 40];
            block[offset..offset + 8].copy_from_slice(&START.to_le_bytes());
            let mut span = Span::new(START..START + 0x1000, 16, 0);
            span.add_object(START, true);
            let objects = Objects::new(vec![span]);
            let mut found = Vec::new();
            let decoder = Decoder::new([].into(), &objects);
            decoder.mark_from_block(&block, true, &mut |start| found.push(start));
            assert_eq!(found, [START], "{offset}");
        }
    }

    #[test]
    fn halves_of_words_are_addresses_below_four_gib() {
        let check = |word, expected| check_in(LOW_START, word, expected);
        check(5 << 32 | LOW_START, Some(LOW_START));
        check(LOW_START << 32 | 0x11, Some(LOW_START));
        check(5 << 32 | (LOW_START + 8), None);
        check(LOW_START, None);
    }

    #[test]
    fn other_words_are_no_disguised_pointers() {
        for word in [
            0,
            START,
            1.0_f64.to_bits(),
            u64::MAX,
            (START + 0x40) | 1 << 63,
            (START - 8) | 1 << 63,
            !START,
        ] {
            check(word, None);
        }
    }
}
