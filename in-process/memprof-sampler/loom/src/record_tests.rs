//! Stack records that are used, read and evicted at the same time.

use loom::model;
use loom::sync::Arc;
use loom::thread;

use crate::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release, fence};
use crate::free_segments::FreeSegments;
use crate::life::Life;

/// Record whose stack is two equal words.
struct Record {
    life: Life,
    stack: [AtomicU64; 2],
}

impl Record {
    fn new() -> Self {
        let record = Self {
            life: Life(AtomicU64::new(0)),
            stack: [AtomicU64::new(0), AtomicU64::new(0)],
        };
        record.write(7);
        record.life.begin(1);
        record.life.release();
        record
    }

    /// Writes the record's stack: both words get the value `stack`.
    fn write(&self, stack: u64) {
        fence(Release);
        for word in &self.stack {
            word.store(stack, Relaxed);
        }
    }

    fn words(&self) -> [u64; 2] {
        [self.stack[0].load(Relaxed), self.stack[1].load(Relaxed)]
    }

    /// Evicts the record if it has no user, and writes another stack in the generation `generation`. Returns whether it
    /// did.
    fn replace(&self, stack: u64, generation: u32) -> bool {
        let idle = self.life.idle_generation();
        let is_evicted = idle.is_some_and(|idle| self.life.evict(idle));
        if is_evicted {
            self.write(stack);
            self.life.begin(generation);
        }
        is_evicted
    }
}

fn spawn_with_record(record: &Arc<Record>, work: fn(&Record) -> bool) -> thread::JoinHandle<bool> {
    let record = Arc::clone(record);
    thread::spawn(move || work(&record))
}

#[test]
fn record_in_use_is_not_evicted() {
    model(|| {
        let record = Arc::new(Record::new());
        let other = spawn_with_record(&record, |record| record.replace(8, 2));
        if record.life.acquire_generation(1) {
            assert_eq!(record.words(), [7, 7]);
            assert_eq!(record.life.release(), 1);
        }
        if record.life.acquire() {
            let words = record.words();
            assert!([[7, 7], [8, 8]].contains(&words), "{words:?}");
            record.life.release();
        }
        other.join().unwrap();
    });
}

#[test]
fn record_read_during_eviction_is_one_of_both_or_none() {
    model(|| {
        let record = Arc::new(Record::new());
        let other = spawn_with_record(&record, |record| record.replace(8, 2));
        let read = |_| Some(record.words());
        if let Some(words) = record.life.read_unless_evicted(read) {
            assert!([[7, 7], [8, 8]].contains(&words), "{words:?}");
        }
        assert!(other.join().unwrap());
    });
}

#[test]
fn record_read_while_freed_is_old_one_or_none() {
    model(|| {
        let record = Arc::new(Record::new());
        let other = spawn_with_record(&record, |record| {
            let is_evicted = record.life.evict(1);
            // The store stands for `FreeSegments::push`, which writes a segment's link.
            record.stack[0].store(8, Relaxed);
            is_evicted
        });
        if let Some(words) = record.life.read_unless_evicted(|_| Some(record.words())) {
            assert_eq!(words, [7, 7]);
        }
        assert!(other.join().unwrap());
    });
}

#[test]
fn concurrent_eviction_succeeds_once() {
    model(|| {
        let record = Arc::new(Record::new());
        let other = spawn_with_record(&record, |record| record.life.evict(1));
        let own = record.life.evict(1);
        assert!(own != other.join().unwrap());
    });
}

struct Segments {
    free: FreeSegments,
    next: [AtomicU64; 4],
}

impl Segments {
    fn pop(&self) -> Option<u32> {
        self.free.pop(|segment| self.next.get(segment as usize))
    }

    fn push(&self, segment: u32) {
        self.free
            .push(segment, segment, |segment| self.next.get(segment as usize));
    }
}

#[test]
fn segment_pushed_again_is_popped_once() {
    model(|| {
        let segments = Arc::new(Segments {
            free: FreeSegments(AtomicU64::new(0)),
            next: [0; 4].map(AtomicU64::new),
        });
        (1..4).for_each(|segment| segments.push(segment));
        let other = {
            let segments = Arc::clone(&segments);
            thread::spawn(move || {
                let first = segments.pop().unwrap();
                let second = segments.pop().unwrap();
                segments.push(first);
                second
            })
        };
        let own = segments.pop().unwrap();
        let others = other.join().unwrap();
        let mut all = vec![own, others];
        all.extend(std::iter::from_fn(|| segments.pop()));
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3]);
    });
}
