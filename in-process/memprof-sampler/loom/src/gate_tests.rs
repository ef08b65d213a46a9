//! Hooks that use the tables, or enter them, while these are cleared.

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

/// Tables and their gate. Loom fails if one thread writes `records` while another accesses them.
struct GatedTables {
    gate: Gate,
    bucket: Bucket,
    records: UnsafeCell<u32>,
}

impl GatedTables {
    fn new() -> Self {
        Self {
            gate: Gate {
                is_closed: AtomicBool::new(false),
            },
            bucket: Bucket::default(),
            records: UnsafeCell::new(0),
        }
    }

    /// Inserts a sample of `BLOCK`, as a hook does. If the gate is closed, gives its cell up and inserts none.
    fn insert_sample(&self) {
        let claim = self.bucket.claim_empty_cell(BLOCK).unwrap();
        if self.gate.may_pass() {
            self.records.with(|_| ());
            claim.fill(SAMPLE);
        }
    }

    /// Removes the sample of `BLOCK`, as a free does. loom reports an access of the records without the claim.
    fn remove_sample(&self) {
        if let Some(_claim) = self.bucket.claim_sample_cell(BLOCK) {
            self.records.with(|_| ());
        }
    }

    /// Clears the tables, as the sampler does. loom reports a hook that accesses the records at the same time.
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

/// Checks in all interleavings that `hook` runs safely beside [`GatedTables::clear`]. No sample must be left after a
/// second clear. `prepare` fills the tables first.
fn check_hook_beside_clear(
    prepare: impl Fn(&GatedTables) + Sync + Send + 'static,
    hook: fn(&GatedTables),
) {
    model(move || {
        let tables = Arc::new(GatedTables::new());
        prepare(&tables);
        let other = {
            let tables = Arc::clone(&tables);
            thread::spawn(move || hook(&tables))
        };
        tables.clear();
        other.join().unwrap();
        tables.clear();
        tables
            .bucket
            .visit_samples(|address, _| panic!("{address:x} is left"));
    });
}

#[test]
fn concurrent_sample_is_not_in_records_during_clear() {
    check_hook_beside_clear(|_| {}, GatedTables::insert_sample);
}

#[test]
fn concurrent_remove_is_not_in_records_during_clear() {
    check_hook_beside_clear(GatedTables::insert_sample, GatedTables::remove_sample);
}

#[test]
fn drain_that_times_out_keeps_claim() {
    model(|| {
        let tables = GatedTables::new();
        let claim = tables.bucket.claim_empty_cell(BLOCK).unwrap();
        tables.gate.close();
        assert!(
            !tables
                .bucket
                .drain(|_| panic!("no cell is filled"), || false)
        );
        tables.gate.open();
        claim.fill(SAMPLE);
        tables.remove_sample();
        assert!(tables.bucket.drain(|_| panic!("it was removed"), || false));
    });
}

#[test]
fn forked_child_clears_claims_of_other_threads() {
    model(|| {
        let tables = GatedTables::new();
        mem::forget(tables.bucket.claim_empty_cell(BLOCK));
        tables.bucket.clear_claimed_cells();
        tables.clear();
    });
}
