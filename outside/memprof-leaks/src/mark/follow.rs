//! Follows the pointers of a table, for a group of objects at a time. Each step loads a word for all objects of the
//! group before the next step uses it, so that the processor waits for the memory of many at once, not of one after
//! another.

use std::hint::black_box;
use std::sync::atomic::Ordering;

use super::pointer_table::PointerTable;
use super::{MAX_QUEUED, MarkWorker, Marker, OBJECTS_PER_BATCH};
use crate::objects::{ObjectPosition, Objects};

/// Most objects of a group: some times the cache misses that a core can wait for.
const MAX_GROUP: usize = 64;
/// Most objects whose pointers are followed at a time, so that the rest can be divided among the threads.
const MAX_FOLLOWED: usize = 1 << 16;

impl Marker<'_> {
    /// Marks the objects that the objects at `starts` reach, by their pointers in the table. Reads the objects that are
    /// not in the table; if `table` is `None`, reads all at `starts` and marks only the objects to which these point.
    /// After [`MAX_FOLLOWED`] objects, appends those that are left to the worker's `found`.
    pub(super) fn follow_pointers(
        &self,
        table: Option<&PointerTable>,
        starts: &[u64],
        worker: &mut MarkWorker<'_>,
    ) {
        let Some(table) = table else {
            self.mark_from_objects(starts, worker);
            return;
        };
        let mut open = starts.to_vec();
        let mut unread = Vec::new();
        let mut group = FollowedGroup::default();
        let mut followed = 0;
        let mut rest = MAX_FOLLOWED.max(starts.len());
        while rest > 0 && !open.is_empty() {
            let first = open.len() - open.len().min(MAX_GROUP).min(rest);
            rest -= open.len() - first;
            followed += open.len() - first;
            group.load_objects(self.objects, table, open.drain(first..));
            group.mark_targets(self.objects, table, &mut open, &mut unread);
            if unread.len() >= OBJECTS_PER_BATCH {
                unread.sort_unstable();
                self.mark_from_objects(&unread, worker);
                unread.clear();
            }
        }
        unread.sort_unstable();
        self.mark_from_objects(&unread, worker);
        worker.queue_starts(&open);
        self.followed.fetch_add(followed, Ordering::Relaxed);
    }
}

/// Object of a group, with the numbers of the table in which its pointers are.
struct FollowedObject<'t> {
    start: u64,
    position: ObjectPosition,
    numbers: Option<&'t [u8]>,
}

/// Objects whose pointers are followed together. Its buffers are used again.
#[derive(Default)]
struct FollowedGroup<'t> {
    objects: Vec<FollowedObject<'t>>,
    links: Vec<u64>,
    targets: Vec<(u64, (usize, u64))>,
}

impl<'t> FollowedGroup<'t> {
    /// Replaces the objects by those at `starts` that are not scanned yet. Reads the position and the first number of
    /// each beforehand, so that the processor waits for all of them at once.
    fn load_objects(
        &mut self,
        objects: &Objects,
        table: &'t PointerTable,
        starts: impl Iterator<Item = u64>,
    ) {
        self.objects.clear();
        self.objects.extend(starts.filter_map(|start| {
            let position = objects.unscanned_position(start)?;
            Some(FollowedObject {
                start,
                position,
                numbers: table.encoded_pointers(position),
            })
        }));
        let numbers = self.objects.iter().filter_map(|object| object.numbers);
        // Nothing uses the result: `black_box` keeps the compiler from removing the reads.
        black_box(numbers.fold(0, |read, numbers| {
            read ^ numbers.first().copied().unwrap_or(0)
        }));
    }

    /// Marks the objects to which the group's objects point, and appends those that were not marked before to `open`,
    /// while that has fewer than [`MAX_QUEUED`]. If an object of the group is not in the table, appends it to `unread`,
    /// or lets it wait for another sweep if the table postpones it.
    fn mark_targets(
        &mut self,
        objects: &Objects,
        table: &PointerTable,
        open: &mut Vec<u64>,
        unread: &mut Vec<u64>,
    ) {
        self.links.clear();
        for object in &self.objects {
            let (start, position) = (object.start, object.position);
            if !objects.begin_scan(position) {
                continue;
            }
            let numbers = object.numbers;
            match numbers.and_then(|numbers| table.decode_links(start, position, numbers)) {
                Some(links) => self.links.extend(links),
                None if table.postpones_unread_objects() => objects.cancel_scan(position),
                None => unread.push(start),
            }
        }
        let mut push = |start| {
            // Further ones are found later by their marks.
            if open.len() < MAX_QUEUED {
                open.push(start);
            }
        };
        if table.shift() == 0 {
            let found = self
                .links
                .iter()
                .filter_map(|word| objects.mark_target(*word));
            found.for_each(push);
            return;
        }
        // Each step handles all links, so that the processor waits for the bitmaps of many at once.
        self.targets.clear();
        self.targets.extend(self.links.iter().filter_map(|link| {
            let object = objects.unmarked_target(*link)?;
            Some((objects.start_of_target(object), object))
        }));
        for (start, object) in self.targets.drain(..) {
            if objects.mark_found_target(object) {
                push(start);
            }
        }
    }
}

/// Number of objects that a thread gets at a time, if `found` objects wait. With a table, the number is smaller for few
/// objects, because each may reach many. `table` is `None` if each object is read.
pub(super) fn objects_per_batch(found: usize, table: Option<&PointerTable>) -> usize {
    match table {
        Some(_) => (found / 16).clamp(1, OBJECTS_PER_BATCH),
        None => OBJECTS_PER_BATCH,
    }
}
