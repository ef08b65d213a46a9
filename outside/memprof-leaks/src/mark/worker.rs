//! One thread of a mark phase: reads memory in blocks, and marks the objects to which its words point.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::{HEADROOM_CHECK_BYTES, MAX_QUEUED, Marker, READ_AHEAD_BYTES};
use crate::snapshot_memory::{BLOCK_SIZE, MAX_BLOCK_LEN, split_into_blocks};
use crate::words::{WORD, WORD_STEP};

/// State of one thread of a mark phase.
pub(super) struct MarkWorker<'a> {
    marker: &'a Marker<'a>,
    pub(super) block: Vec<u8>,
    /// Addresses of the bytes in `block`.
    cached: Range<u64>,
    pub(super) found: Vec<u64>,
    /// Bytes read since the last check of the available memory.
    unchecked: usize,
}

impl<'a> MarkWorker<'a> {
    /// Creates the worker of one thread, with a buffer of its own and no queued objects.
    pub(super) fn new(marker: &'a Marker<'a>) -> Self {
        Self {
            marker,
            block: vec![0; MAX_BLOCK_LEN],
            cached: 0..0,
            found: Vec::new(),
            unchecked: 0,
        }
    }

    /// Queues marked objects, up to [`MAX_QUEUED`]. None is lost:
    /// [`Objects::marked_unscanned_starts`](crate::objects::Objects::marked_unscanned_starts) finds the others by their
    /// marks.
    pub(super) fn queue_starts(&mut self, starts: &[u64]) {
        let room = MAX_QUEUED.saturating_sub(self.found.len());
        self.found.extend(starts.iter().take(room));
    }

    /// Reads a range of at most a block, unless the last read had it. Returns its position in `block`, shortened if the
    /// memory cannot be read completely. Counts the bytes, and checks every [`HEADROOM_CHECK_BYTES`] whether memory is
    /// short.
    pub(super) fn read_block(&mut self, range: &Range<u64>) -> Range<usize> {
        let length = (range.end - range.start) as usize;
        self.marker.bytes.fetch_add(length, Ordering::Relaxed);
        self.unchecked += length;
        if self.unchecked > HEADROOM_CHECK_BYTES {
            self.unchecked = 0;
            self.marker
                .shortage
                .record_shortage_if_any(self.marker.snapshot);
        }
        let is_cached = self.cached.start <= range.start && range.end <= self.cached.end;
        if !is_cached {
            self.marker.reads.fetch_add(1, Ordering::Relaxed);
            let around = self.read_ahead_range(range);
            let length = (around.end - around.start) as usize;
            let read = self
                .marker
                .view
                .read(around.start, &mut self.block[..length]);
            self.cached = around.start..around.start + read as u64;
        }
        let position = |address: u64| {
            (address.clamp(self.cached.start, self.cached.end) - self.cached.start) as usize
        };
        position(range.start)..position(range.end)
    }

    /// Range to read for `range`. If `range` is near the last read, the surrounding [`READ_AHEAD_BYTES`] are read with
    /// it, because the next objects are probably there.
    fn read_ahead_range(&self, range: &Range<u64>) -> Range<u64> {
        let is_near = range.start.abs_diff(self.cached.start) <= 2 * READ_AHEAD_BYTES;
        let region = self.marker.view.region(range.start).filter(|_| is_near);
        let around = region.map(|region| {
            let start = range.start & !(READ_AHEAD_BYTES - 1);
            start.max(region.range.start)..region.range.end.min(start + READ_AHEAD_BYTES)
        });
        let around = around.filter(|around| range.end <= around.end);
        around.unwrap_or_else(|| range.clone())
    }

    /// Marks the objects to which the words of a range of at most a block point. Returns the number of bytes that could
    /// not be read.
    pub(super) fn mark_from_block(&mut self, range: Range<u64>) -> usize {
        let step = self.marker.view.word_step(range.start);
        let start = range.start.next_multiple_of(step as u64);
        if start >= range.end {
            return 0;
        }
        let bytes = self.read_block(&(start..range.end));
        self.mark_from_block_words(bytes.clone(), step);
        (range.end - start) as usize - bytes.len()
    }

    /// Marks the objects to which the words of a range of any length point.
    pub(super) fn mark_from_range(&mut self, range: Range<u64>) {
        for block in split_into_blocks(range) {
            self.mark_from_block(block);
        }
    }

    /// Marks the objects to which words of the block point, and queues those that were not marked before. `bytes` are
    /// positions in the block; `step` is the distance of words in bytes.
    pub(super) fn mark_from_block_words(&mut self, bytes: Range<usize>, step: usize) {
        let marker = self.marker;
        let bytes = &self.block[bytes];
        for first in (0..WORD).step_by(step) {
            for word in bytes.get(first..).unwrap_or_default().chunks_exact(WORD) {
                let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
                if marker.objects.may_contain(word)
                    && let Some(start) = marker.objects.mark_target(word)
                    && self.found.len() < MAX_QUEUED
                {
                    self.found.push(start);
                }
            }
        }
    }

    /// Marks the objects to which `objects` point. `objects` are sorted and near each other, so that one read gets them
    /// all.
    pub(super) fn mark_from_near_objects(&mut self, objects: &[Range<u64>]) {
        let (Some(first), Some(last)) = (objects.first(), objects.last()) else {
            return;
        };
        let base = first.start;
        // A range longer than a block is a single object: callers group only objects that fit in one. It is read block
        // by block; no word crosses the end of a block.
        if last.end - base > BLOCK_SIZE as u64 {
            self.mark_from_range(base..last.end);
            return;
        }
        let bytes = self.read_block(&(base..last.end));
        if (bytes.len() as u64) < last.end - base && objects.len() > 1 {
            // Unreadable memory ends a read, but objects behind it may be readable.
            for object in objects {
                self.mark_from_range(object.clone());
            }
            return;
        }
        for object in objects {
            let start = bytes.start + (object.start - base) as usize;
            let end = (bytes.start + (object.end - base) as usize).min(bytes.end);
            self.mark_from_block_words(start.min(end)..end, WORD_STEP);
        }
    }

    /// Marks the objects to which the resident pages of a large object point.
    pub(super) fn mark_from_large_object(&mut self, object: Range<u64>) {
        let Some(region) = self.marker.view.region(object.start) else {
            return;
        };
        let first = region
            .pages
            .partition_point(|pages| pages.end <= object.start);
        for pages in region.pages[first..]
            .iter()
            .take_while(|pages| pages.start < object.end)
        {
            let range = pages.start.max(object.start)..pages.end.min(object.end);
            self.mark_from_range(range);
        }
    }
}
