//! Samples that are inserted and removed at the same time.

use loom::model;
use loom::sync::Arc;
use loom::thread;

use crate::bucket::{Bucket, Sample};

const BLOCK: usize = 0x7f00_0000_1000;
const FIRST: Sample = Sample { size: 1, record: 1 };
const SECOND: Sample = Sample { size: 2, record: 2 };

/// Inserts a sample. Panics if the bucket is full.
fn insert_sample(bucket: &Bucket, address: usize, sample: Sample) {
    bucket.claim_empty_cell(address).unwrap().fill(sample);
}

/// Removes the sample of an address and returns it. `None` if there is none, or another thread has claimed it.
fn remove_sample(bucket: &Bucket, address: usize) -> Option<Sample> {
    Some(bucket.claim_sample_cell(address)?.sample())
}

#[test]
fn concurrent_inserts_are_both_found() {
    model(|| {
        let bucket = Arc::new(Bucket::default());
        let other = {
            let bucket = Arc::clone(&bucket);
            thread::spawn(move || insert_sample(&bucket, BLOCK, FIRST))
        };
        insert_sample(&bucket, 2 * BLOCK, SECOND);
        other.join().unwrap();
        assert_eq!(remove_sample(&bucket, BLOCK), Some(FIRST));
        assert_eq!(remove_sample(&bucket, 2 * BLOCK), Some(SECOND));
    });
}

#[test]
fn concurrent_remove_succeeds_once() {
    model(|| {
        let bucket = Arc::new(Bucket::default());
        insert_sample(&bucket, BLOCK, FIRST);
        let other = {
            let bucket = Arc::clone(&bucket);
            thread::spawn(move || remove_sample(&bucket, BLOCK))
        };
        let removed = [remove_sample(&bucket, BLOCK), other.join().unwrap()];
        assert_eq!(removed.into_iter().flatten().collect::<Vec<_>>(), [FIRST]);
    });
}

#[test]
fn visit_during_reallocation_sees_one_sample_or_none() {
    model(|| {
        let bucket = Arc::new(Bucket::default());
        insert_sample(&bucket, BLOCK, FIRST);
        let reader = {
            let bucket = Arc::clone(&bucket);
            thread::spawn(move || {
                bucket.visit_samples(|address, sample| {
                    assert_eq!(address, BLOCK);
                    assert!([FIRST, SECOND].contains(&sample), "{sample:?}");
                });
            })
        };
        assert_eq!(remove_sample(&bucket, BLOCK), Some(FIRST));
        insert_sample(&bucket, BLOCK, SECOND);
        reader.join().unwrap();
        assert_eq!(remove_sample(&bucket, BLOCK), Some(SECOND));
    });
}
