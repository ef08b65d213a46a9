//! Sweep: reads all objects once, in the order of their addresses, and keeps the pointers of those that are not
//! reached yet. A list whose objects lie anywhere in the heap would else need a read of the snapshot for each.

use super::pointer_table::{PartEncoder, PointerTable, SpanPart};
use super::{MAX_GAP, MAX_QUEUED, MarkWorker, Marker, OnPercent, SWEPT_PERCENT, thread_count};
use crate::objects::{Object, ObjectPosition};
use crate::snapshot_memory::BLOCK_SIZE;
use crate::words::{WORD, WORD_STEP};

/// Number of unmarked objects from which a sweep is worth its tables.
const MIN_SWEPT_OBJECTS: u64 = 1 << 14;
/// Bytes of a thread of the search: its block, its queue and the objects that it follows.
const THREAD_BYTES: usize = BLOCK_SIZE + 2 * MAX_QUEUED * size_of::<u64>();
/// Number of reached objects without known pointers from which another sweep is faster than reading each.
const MIN_POSTPONED: usize = 1 << 16;

/// Fewest parts that the threads sweep between two reports of the progress: 128 MiB of a heap with 16 bytes per bit.
const MIN_PARTS_PER_STEP: usize = 32;

/// Links that a sweep keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkTargets {
    /// To all objects, unresolved: in the first sweep, hardly one is marked.
    All,
    /// To objects that are not marked: in a later sweep they are few, and memory is short.
    Unmarked,
}

impl Marker<'_> {
    /// Reads the pointers of all objects into a table of at most `max_bytes`; `links` says which pointers are kept. The
    /// pointers of objects that are marked already are followed at once instead. `None` if there are too few objects
    /// for a table, so that reading each when it is reached is faster.
    pub(super) fn sweep_into_table(
        &self,
        max_bytes: u64,
        links: LinkTargets,
        progress: OnPercent<'_>,
    ) -> Option<PointerTable> {
        if self.objects.unreachable_count() < MIN_SWEPT_OBJECTS {
            return None;
        }
        // Queues of the threads, and of the thread that starts them.
        let queues = (thread_count() + 1) * THREAD_BYTES;
        let (mut table, parts) =
            PointerTable::new(self.objects, max_bytes.saturating_sub(queues as u64));
        let percent = usize::from(SWEPT_PERCENT);
        let per_step = parts.len().div_ceil(percent).max(MIN_PARTS_PER_STEP);
        for (step, some) in parts.chunks(per_step).enumerate() {
            let done = step * per_step * percent / parts.len();
            progress(done as u8);
            // Workers mark the objects that they find, so their queues are not needed: the objects are pending by their
            // marks.
            self.run_on_threads(some, 1, |parts, worker| {
                let mut encoder = table.new_encoder();
                for part in parts {
                    if !table.is_full() {
                        self.sweep_part(part, worker, &mut encoder, links);
                        table.add_part(part, &mut encoder);
                    }
                    worker.found.clear();
                }
            });
        }
        table.postpone_unread_objects_if_full();
        Some(table)
    }

    /// Replaces the table by one of another [`sweep_into_table`](Self::sweep_into_table), if many reached objects are
    /// not in it. By then most others are scanned, so there is room for more. If few are missing, or if `is_last`,
    /// returns the table as it is: then objects that it lacks are read one by one. `None` if too few unreachable
    /// objects are left for a table.
    pub(super) fn sweep_into_new_table(
        &self,
        mut table: PointerTable,
        max_bytes: u64,
        is_last: bool,
    ) -> Option<PointerTable> {
        if is_last
            || self
                .objects
                .marked_unscanned_starts()
                .take(MIN_POSTPONED)
                .count()
                < MIN_POSTPONED
        {
            table.stop_postponing_unread_objects();
            return Some(table);
        }
        drop(table);
        self.sweep_into_table(max_bytes, LinkTargets::Unmarked, &|_| {})
    }

    /// Reads the objects of a part, and encodes the pointers of those that are not marked. Of objects that are marked
    /// but not scanned, marks the targets at once. Encodes large objects, and those that cannot be read, as unread.
    fn sweep_part(
        &self,
        part: &SpanPart,
        worker: &mut MarkWorker<'_>,
        encoder: &mut PartEncoder,
        links: LinkTargets,
    ) {
        let objects: Vec<_> = self
            .objects
            .used_objects_in(part.span, part.words.clone())
            .collect();
        let is_small = |object: &Object| object.size() <= BLOCK_SIZE as u64;
        let mut rest = objects.as_slice();
        while let Some(((position, first), others)) = rest.split_first() {
            if !is_small(first) {
                encoder.begin_word(position.word_index() - part.words.start);
                encoder.add_unread_object();
                rest = others;
                continue;
            }
            let mut end = first.range.end;
            let near = others.iter().take_while(|(_, object)| {
                let is_near = object.range.start.saturating_sub(end) <= MAX_GAP
                    && object.range.end - first.range.start <= BLOCK_SIZE as u64;
                end = object.range.end;
                is_near
            });
            let count = 1 + near.count();
            let (near, others) = rest.split_at(count);
            self.sweep_near_objects(near, part, worker, encoder, links);
            rest = others;
        }
    }

    /// Reads objects that are near each other in one read, and encodes their pointers. Of an object that is marked but
    /// not scanned, marks the targets instead. If the read is not complete, encodes all objects that are not scanned as
    /// unread. Encodes a scanned object as one without pointers.
    fn sweep_near_objects(
        &self,
        near: &[(ObjectPosition, Object)],
        part: &SpanPart,
        worker: &mut MarkWorker<'_>,
        encoder: &mut PartEncoder,
        links: LinkTargets,
    ) {
        let [(_, first), ..] = near else { return };
        let base = first.range.start;
        let end = near.last().map_or(base, |(_, last)| last.range.end);
        let bytes = worker.read_block(&(base..end));
        let is_whole = bytes.len() as u64 == end - base;
        for (position, object) in near {
            encoder.begin_word(position.word_index() - part.words.start);
            let start = object.range.start;
            let (is_marked, is_scanned) = self.objects.marks_of_object(*position);
            let offset = bytes.start + (start - base) as usize;
            let own = offset..offset + object.size() as usize;
            if is_scanned {
                encoder.add_object_without_pointers();
            } else if !is_whole {
                // Later objects may be readable.
                encoder.add_unread_object();
            } else if is_marked {
                self.objects.begin_scan(*position);
                worker.mark_from_block_words(own, WORD_STEP);
                encoder.add_object_without_pointers();
            } else {
                self.encode_words(start, &worker.block[own], encoder, links);
            }
        }
    }

    /// Encodes the words of an object that point to objects. `links` says to which ones: to all, or to those that are
    /// not marked. If the table keeps words as they are, encodes only those that would still mark or record an object,
    /// whatever `links` says.
    fn encode_words(
        &self,
        start: u64,
        bytes: &[u8],
        encoder: &mut PartEncoder,
        links: LinkTargets,
    ) {
        let shift = encoder.shift();
        let link = |word| match links {
            LinkTargets::All if shift != 0 => self.objects.unresolved_link(word, shift),
            _ => self.objects.resolved_link(word, shift),
        };
        for first in (0..WORD).step_by(WORD_STEP) {
            for word in bytes.get(first..).unwrap_or_default().chunks_exact(WORD) {
                let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
                if self.objects.may_contain(word)
                    && let Some(link) = link(word)
                {
                    encoder.add_link(start, link);
                }
            }
        }
        encoder.end_object();
    }
}
