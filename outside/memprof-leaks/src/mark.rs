//! The flood: what is reached from the roots, by pointers to the beginning, the middle, or with a mark in the
//! lowest bits.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::error::Error;
use crate::objects::Objects;
use crate::resident_pages::PAGE;
use crate::roots::Roots;
use crate::snapshot::Snapshot;
use crate::snapshot_memory::{BLOCK, SnapshotMemory};

/// Threads that search; more would be limited by the memory.
const THREADS: usize = 8;
/// Objects that one thread takes at once.
const BATCH: usize = 1024;
/// An object that is not read with those before it lies farther away.
const GAP: u64 = PAGE;
/// Objects that wait to be searched, at the most; others are found again by their marks.
const WAITING: usize = 1 << 18;
/// Of an object that is larger, only pages that exist are read.
const LARGE: u64 = 1 << 20;
/// What is read at once where each object lies near the one before: a list is mostly allocated in a row.
const AHEAD: u64 = 16 << 10;
/// Bytes between two looks at the memory that the machine has left.
const LOOK: usize = 64 << 20;

/// What was searched.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MarkStats {
    pub(crate) bytes: usize,
}

/// One search.
struct Marker<'a> {
    snapshot: &'a Snapshot,
    view: &'a SnapshotMemory,
    objects: &'a Objects,
    bytes: AtomicUsize,
    is_short_of_memory: AtomicBool,
}

/// Marks what is reached.
///
/// # Errors
/// `Headroom`: the process writes so much that its copy takes too much memory.
pub(crate) fn mark_reachable(
    snapshot: &Snapshot,
    view: &SnapshotMemory,
    objects: &Objects,
    roots: &Roots,
) -> Result<MarkStats, Error> {
    let flood = Marker {
        snapshot,
        view,
        objects,
        bytes: AtomicUsize::new(0),
        is_short_of_memory: AtomicBool::new(false),
    };
    let mut found = Vec::new();
    flood.mark_words(&roots.kernel, &mut found);
    for thread in &snapshot.threads {
        flood.mark_words(&thread.words, &mut found);
    }
    found.extend(flood.roots(&roots.ranges));
    // A list is reached one object at a time: that is not worth threads.
    let mut alone = MarkWorker::new(&flood);
    loop {
        while !found.is_empty() {
            flood.require_memory()?;
            found.sort_unstable();
            if found.len() <= BATCH {
                flood.batch(&found, &mut alone);
                found.clear();
                found.append(&mut alone.found);
            } else {
                found =
                    flood.run_parallel(&found, BATCH, |starts, search| flood.batch(starts, search));
            }
        }
        found.extend(objects.pending().take(WAITING));
        if found.is_empty() {
            break;
        }
    }
    flood.require_memory()?;
    Ok(MarkStats {
        bytes: flood.bytes.into_inner(),
    })
}

impl Marker<'_> {
    fn require_memory(&self) -> Result<(), Error> {
        match self.is_short_of_memory.load(Ordering::Relaxed) {
            true => self.snapshot.require_room(),
            false => Ok(()),
        }
    }

    /// Reaches what the words point to.
    fn mark_words(&self, words: &[u64], found: &mut Vec<u64>) {
        for word in words {
            if self.objects.may_contain(*word)
                && let Some(start) = self.objects.mark(*word)
                && found.len() < WAITING
            {
                found.push(start);
            }
        }
    }

    /// Searches memory outside of the heap.
    fn roots(&self, ranges: &[Range<u64>]) -> Vec<u64> {
        let blocks: Vec<Range<u64>> = ranges
            .iter()
            .flat_map(|range| blocks(range.clone()))
            .collect();
        self.run_parallel(&blocks, 1, |blocks, search| {
            for block in blocks {
                search.range(block.clone());
            }
        })
    }

    /// Searches objects, which are sorted by address.
    fn batch(&self, starts: &[u64], search: &mut MarkWorker<'_>) {
        let mut near: Vec<Range<u64>> = Vec::new();
        for start in starts {
            let Some(object) = self.objects.mark_scanned(*start) else {
                continue;
            };
            if object.end - object.start > LARGE {
                search.large(object);
                continue;
            }
            let is_near = near.last().is_some_and(|last| {
                object.start - last.end.min(object.start) <= GAP
                    && object.end - near[0].start <= BLOCK as u64
            });
            if !is_near {
                search.objects(&near);
                near.clear();
            }
            near.push(object);
        }
        search.objects(&near);
    }

    /// Shares work among threads, a few pieces at a time.
    fn run_parallel<T: Sync>(
        &self,
        work: &[T],
        pieces: usize,
        run: impl Fn(&[T], &mut MarkWorker<'_>) + Sync,
    ) -> Vec<u64> {
        let parts = work.len().div_ceil(pieces);
        let threads = thread::available_parallelism()
            .map_or(1, usize::from)
            .min(THREADS)
            .min(parts);
        let next = AtomicUsize::new(0);
        let one = || {
            let mut search = MarkWorker::new(self);
            loop {
                let part = next.fetch_add(1, Ordering::Relaxed);
                if part >= parts || self.is_short_of_memory.load(Ordering::Relaxed) {
                    return search.found;
                }
                let end = work.len().min((part + 1) * pieces);
                run(&work[part * pieces..end], &mut search);
            }
        };
        if threads <= 1 {
            return one();
        }
        thread::scope(|scope| {
            let others: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
            let mut found = Vec::new();
            for other in others {
                found.extend(other.join().expect("no search panics"));
            }
            found
        })
    }
}

fn blocks(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range
        .step_by(BLOCK)
        .map(move |start| start..end.min(start + BLOCK as u64))
}

/// What one thread needs.
struct MarkWorker<'a> {
    flood: &'a Marker<'a>,
    block: Vec<u8>,
    /// What lies in it.
    held: Range<u64>,
    found: Vec<u64>,
    unchecked: usize,
}

impl<'a> MarkWorker<'a> {
    fn new(flood: &'a Marker<'a>) -> Self {
        Self {
            flood,
            block: vec![0; BLOCK],
            held: 0..0,
            found: Vec::new(),
            unchecked: 0,
        }
    }

    /// Reads a range of a block's length at the most; where in the block it lies then, as far as it can be read.
    fn read(&mut self, range: &Range<u64>) -> Range<usize> {
        let length = (range.end - range.start) as usize;
        self.flood.bytes.fetch_add(length, Ordering::Relaxed);
        self.unchecked += length;
        if self.unchecked > LOOK {
            self.unchecked = 0;
            let is_short = self.flood.snapshot.require_room().is_err();
            self.flood
                .is_short_of_memory
                .fetch_or(is_short, Ordering::Relaxed);
        }
        let is_held = self.held.start <= range.start && range.end <= self.held.end;
        if !is_held {
            let wanted = self.read_range(range);
            let length = (wanted.end - wanted.start) as usize;
            let read = self
                .flood
                .view
                .read(wanted.start, &mut self.block[..length]);
            self.held = wanted.start..wanted.start + read as u64;
        }
        let place = |address: u64| {
            (address.clamp(self.held.start, self.held.end) - self.held.start) as usize
        };
        place(range.start)..place(range.end)
    }

    /// What to read for a range: with what lies around it where it is near to what was read before.
    fn read_range(&self, range: &Range<u64>) -> Range<u64> {
        let is_near = range.start.abs_diff(self.held.start) <= 2 * AHEAD;
        let region = self.flood.view.region(range.start).filter(|_| is_near);
        let around = region.map(|region| {
            let start = range.start & !(AHEAD - 1);
            start.max(region.range.start)..region.range.end.min(start + AHEAD)
        });
        let around = around.filter(|around| range.end <= around.end);
        around.unwrap_or_else(|| range.clone())
    }

    fn range(&mut self, range: Range<u64>) {
        let start = range.start.next_multiple_of(8);
        if start >= range.end {
            return;
        }
        let place = self.read(&(start..range.end));
        self.words(place);
    }

    fn words(&mut self, bytes: Range<usize>) {
        let flood = self.flood;
        for word in self.block[bytes].chunks_exact(8) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            if flood.objects.may_contain(word)
                && let Some(start) = flood.objects.mark(word)
                && self.found.len() < WAITING
            {
                self.found.push(start);
            }
        }
    }

    /// Objects that lie close to each other.
    fn objects(&mut self, objects: &[Range<u64>]) {
        let (Some(first), Some(last)) = (objects.first(), objects.last()) else {
            return;
        };
        let base = first.start;
        // The size of an object is a whole number of words.
        if last.end - base > BLOCK as u64 {
            blocks(base..last.end).for_each(|block| self.range(block));
            return;
        }
        let place = self.read(&(base..last.end));
        if (place.len() as u64) < last.end - base && objects.len() > 1 {
            // Not beyond a hole, where others begin again.
            for object in objects {
                blocks(object.clone()).for_each(|block| self.range(block));
            }
            return;
        }
        for object in objects {
            let start = place.start + (object.start - base) as usize;
            let end = (place.start + (object.end - base) as usize).min(place.end);
            self.words(start.min(end)..end);
        }
    }

    fn large(&mut self, object: Range<u64>) {
        let Some(region) = self.flood.view.region(object.start) else {
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
            blocks(range).for_each(|block| self.range(block));
        }
    }
}
