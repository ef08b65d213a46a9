//! Hooks that are in the tables, or come, while these are cleared.

use core::mem;

use loom::cell::UnsafeCell;
use loom::model;
use loom::sync::Arc;
use loom::thread;

use crate::atomic::AtomicBool;
use crate::bucket::{Bucket, Sample};
use crate::gate::Gate;

const BLOCK: usize = 0x7f00_0000_1000;
const SAMPLE: Sample = Sample { size: 1, record: 1 };

/// Loom fails where one writes to the records while another looks into them.
struct Shared {
    gate: Gate,
    bucket: Bucket,
    records: UnsafeCell<u32>,
}

impl Shared {
    fn new() -> Self {
        Self {
            gate: Gate {
                is_closed: AtomicBool::new(false),
            },
            bucket: Bucket::default(),
            records: UnsafeCell::new(0),
        }
    }

    fn sample(&self) {
        let claim = self.bucket.claim(BLOCK).unwrap();
        if self.gate.may_pass() {
            self.records.with(|_| ());
            claim.fill(SAMPLE);
        }
    }

    fn forget(&self) {
        if let Some(_claim) = self.bucket.find(BLOCK) {
            self.records.with(|_| ());
        }
    }

    fn clear(&self) {
        self.gate.close();
        let is_empty = self.bucket.drain(
            |claim| {
                assert_eq!(claim.address(), BLOCK);
                self.records.with(|_| ());
            },
            || {
                thread::yield_now();
                true
            },
        );
        assert!(is_empty);
        self.records.with_mut(|_| ());
        self.gate.open();
    }
}

fn check(before: impl Fn(&Shared) + Sync + Send + 'static, hook: fn(&Shared)) {
    model(move || {
        let shared = Arc::new(Shared::new());
        before(&shared);
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || hook(&shared))
        };
        shared.clear();
        other.join().unwrap();
        shared.clear();
        shared
            .bucket
            .visit(|address, _| panic!("{address:x} is left"));
    });
}

#[test]
fn nobody_who_samples_is_in_the_records_while_they_are_cleared() {
    check(|_| {}, Shared::sample);
}

#[test]
fn nobody_who_forgets_is_in_the_records_while_they_are_cleared() {
    check(Shared::sample, Shared::forget);
}

#[test]
fn who_waits_no_longer_leaves_a_claim_alone() {
    model(|| {
        let shared = Shared::new();
        let claim = shared.bucket.claim(BLOCK).unwrap();
        shared.gate.close();
        assert!(
            !shared
                .bucket
                .drain(|_| panic!("nothing is filled"), || false)
        );
        shared.gate.open();
        claim.fill(SAMPLE);
        shared.forget();
        assert!(
            shared
                .bucket
                .drain(|_| panic!("it was forgotten"), || false)
        );
    });
}

#[test]
fn a_forked_child_forgets_who_was_inside() {
    model(|| {
        let shared = Shared::new();
        mem::forget(shared.bucket.claim(BLOCK));
        shared.bucket.clear_claimed();
        shared.clear();
    });
}
