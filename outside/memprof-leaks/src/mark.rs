//! Mark phase: marks objects that can be reached from the roots, by words that point to an object's start or
//! into it, also with tag bits in the lowest bits.

mod follow;
mod pointer_table;
mod shortage;
mod sweep;
mod worker;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use self::shortage::Shortage;
use self::sweep::LinkTargets;
use self::worker::MarkWorker;
use crate::error::Error;
use crate::objects::Objects;
use crate::resident_pages::PAGE_SIZE;
use crate::roots::Roots;
use crate::snapshot::Snapshot;
use crate::snapshot_memory::{BLOCK_SIZE, SnapshotMemory, split_into_blocks};

/// Most threads that scan memory; with more, memory bandwidth is the limit.
const MAX_THREADS: usize = 8;
/// Objects that a thread scans at a time.
const OBJECTS_PER_BATCH: usize = 1024;
/// Largest gap between two objects that are read at once, in bytes.
const MAX_GAP: u64 = PAGE_SIZE;
/// Most objects in the queue of unscanned ones. Further ones are found later by their marks.
const MAX_QUEUED: usize = 1 << 16;
/// Size in bytes above which only the resident pages of an object are read.
const LARGE_OBJECT_SIZE: u64 = 1 << 20;
/// Bytes that are read at once if objects are near each other: the nodes of a list were mostly allocated in a
/// row.
const READ_AHEAD_BYTES: u64 = 16 << 10;
/// Most sweeps of a search: one may find no room for what it needs, because of leaked objects.
const MAX_SWEEPS: usize = 8;
/// Share of the time of a search for which its first sweep counts, in percent.
const SWEPT_PERCENT: u8 = 50;
/// Bytes that a thread reads between two checks of the machine's available memory.
const HEADROOM_CHECK_BYTES: usize = 64 << 20;

/// Counts of a mark phase.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MarkStats {
    pub(crate) bytes: usize,
    /// Reads of the snapshot's memory.
    pub(crate) reads: usize,
    /// Bytes outside the heap that could not be read.
    pub(crate) unread: usize,
}

/// Callback that gets the percent of the work that is done.
pub(crate) type OnPercent<'a> = &'a dyn Fn(u8);

/// State of a mark phase that its threads share.
struct Marker<'a> {
    snapshot: &'a Snapshot,
    view: &'a SnapshotMemory,
    objects: &'a Objects,
    bytes: AtomicUsize,
    reads: AtomicUsize,
    unread: AtomicUsize,
    /// Objects whose pointers in the table were followed.
    followed: AtomicUsize,
    shortage: Shortage,
}

/// Marks all objects that the roots reach. Uses up to eight threads, and up to `max_bytes` for the objects' pointers.
/// Calls `progress` several times a second in a large heap. Fails with `Headroom` if the process writes so much that
/// its copy takes too much memory, and with `CopyEnded` if the copy was killed.
pub(crate) fn mark_reachable(
    snapshot: &Snapshot,
    view: &SnapshotMemory,
    objects: &Objects,
    roots: &Roots,
    max_bytes: u64,
    progress: OnPercent<'_>,
) -> Result<MarkStats, Error> {
    let marker = Marker {
        snapshot,
        view,
        objects,
        bytes: AtomicUsize::new(0),
        reads: AtomicUsize::new(0),
        unread: AtomicUsize::new(0),
        followed: AtomicUsize::new(0),
        shortage: Shortage::default(),
    };
    let mut found = Vec::new();
    marker.mark_from_words(&roots.kernel, &mut found);
    for thread in &snapshot.threads {
        marker.mark_from_words(&thread.words, &mut found);
    }
    found.extend(marker.mark_from_ranges(&roots.ranges));
    marker.shortage.require_none()?;
    let mut table = marker.sweep_into_table(max_bytes, LinkTargets::All, progress);
    let swept = objects.count().max(1);
    let mut sweeps = 1;
    let mut last_percent = SWEPT_PERCENT;
    // Small batches, e.g. the nodes of a linked list, are scanned in this thread: starting threads would cost more.
    let mut alone = MarkWorker::new(&marker);
    loop {
        while !found.is_empty() {
            marker.shortage.require_none()?;
            if table.is_some() {
                let followed = marker.followed.load(Ordering::Relaxed) as u64;
                let rest = u64::from(100 - SWEPT_PERCENT);
                let percent = SWEPT_PERCENT + (followed * rest / swept).min(rest) as u8;
                // In a chain of objects, each round follows only one: report only a new percentage.
                if percent != last_percent {
                    last_percent = percent;
                    progress(percent);
                }
            }
            found.sort_unstable();
            let pieces = follow::objects_per_batch(found.len(), table.as_ref());
            if found.len() <= pieces {
                marker.follow_pointers(table.as_ref(), &found, &mut alone);
                found.clear();
                found.append(&mut alone.found);
            } else {
                found = marker.run_on_threads(&found, pieces, |starts, worker| {
                    marker.follow_pointers(table.as_ref(), starts, worker)
                });
            }
        }
        if let Some(postponing) = table.take_if(|table| table.postpones_unread_objects()) {
            let is_last = sweeps == MAX_SWEEPS;
            table = marker.sweep_into_new_table(postponing, max_bytes, is_last);
            sweeps += 1;
            marker.shortage.require_none()?;
        }
        // Marked objects that did not fit into a full queue.
        found.extend(objects.marked_unscanned_starts().take(MAX_QUEUED));
        if found.is_empty() {
            break;
        }
    }
    // If the copy was killed, its memory cannot be read, and all objects seem unreachable.
    marker.shortage.record_shortage_if_any(snapshot);
    marker.shortage.require_none()?;
    Ok(MarkStats {
        bytes: marker.bytes.into_inner(),
        reads: marker.reads.into_inner(),
        unread: marker.unread.into_inner(),
    })
}

impl Marker<'_> {
    /// Marks the objects to which words point. Appends the starts of the newly marked ones to `found`, up to
    /// [`MAX_QUEUED`]; [`Objects::marked_unscanned_starts`] finds the others.
    fn mark_from_words(&self, words: &[u64], found: &mut Vec<u64>) {
        for word in words {
            if self.objects.may_contain(*word)
                && let Some(start) = self.objects.mark_target(*word)
                && found.len() < MAX_QUEUED
            {
                found.push(start);
            }
        }
    }

    /// Marks the objects to which ranges outside the heap point, and counts the bytes that cannot be read. Returns the
    /// starts of the newly marked ones, at most [`MAX_QUEUED`] per thread; [`Objects::marked_unscanned_starts`] finds
    /// the others.
    fn mark_from_ranges(&self, ranges: &[Range<u64>]) -> Vec<u64> {
        let blocks: Vec<Range<u64>> = ranges
            .iter()
            .flat_map(|range| split_into_blocks(range.clone()))
            .collect();
        self.run_on_threads(&blocks, 1, |blocks, worker| {
            for block in blocks {
                let unread = worker.mark_from_block(block.clone());
                self.unread.fetch_add(unread, Ordering::Relaxed);
            }
        })
    }

    /// Marks the objects at `starts` as scanned, and the objects to which they point as reachable. `starts` are sorted,
    /// so that neighbours are read at once.
    fn mark_from_objects(&self, starts: &[u64], worker: &mut MarkWorker<'_>) {
        let mut near: Vec<Range<u64>> = Vec::new();
        for start in starts {
            let Some(object) = self.objects.mark_scanned(*start) else {
                continue;
            };
            if object.end - object.start > LARGE_OBJECT_SIZE {
                worker.mark_from_large_object(object);
                continue;
            }
            let is_near = near.last().is_some_and(|last| {
                object.start - last.end.min(object.start) <= MAX_GAP
                    && object.end - near[0].start <= BLOCK_SIZE as u64
            });
            if !is_near {
                worker.mark_from_near_objects(&near);
                near.clear();
            }
            near.push(object);
        }
        worker.mark_from_near_objects(&near);
    }

    /// Calls `run` on several threads, each time with `pieces` elements of `work`; work for one thread runs in the
    /// calling one. Returns the starts of the objects that the workers have queued. Ends early if memory is short.
    fn run_on_threads<T: Sync>(
        &self,
        work: &[T],
        pieces: usize,
        run: impl Fn(&[T], &mut MarkWorker<'_>) + Sync,
    ) -> Vec<u64> {
        let parts = work.len().div_ceil(pieces);
        let threads = thread_count().min(parts);
        let next = AtomicUsize::new(0);
        let one = || {
            let mut worker = MarkWorker::new(self);
            loop {
                let part = next.fetch_add(1, Ordering::Relaxed);
                if part >= parts || self.shortage.is_recorded() {
                    return worker.found;
                }
                let end = work.len().min((part + 1) * pieces);
                run(&work[part * pieces..end], &mut worker);
            }
        };
        if threads <= 1 {
            return one();
        }
        thread::scope(|scope| {
            let others: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
            let mut found = Vec::new();
            for other in others {
                found.extend(other.join().expect("no worker panics"));
            }
            found
        })
    }
}

/// Number of threads that scan memory: one for each processor, but at most [`MAX_THREADS`].
fn thread_count() -> usize {
    thread::available_parallelism().map_or(1, |count| usize::from(count).min(MAX_THREADS))
}
