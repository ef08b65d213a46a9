//! Samples that come and go at the same time.

use loom::model;
use loom::sync::Arc;
use loom::thread;

use crate::bucket::{Bucket, Sample};

const BLOCK: usize = 0x7f00_0000_1000;
const FIRST: Sample = Sample { size: 1, record: 1 };
const SECOND: Sample = Sample { size: 2, record: 2 };

fn insert(bucket: &Bucket, address: usize, sample: Sample) {
    bucket.claim(address).unwrap().fill(sample);
}

fn take(bucket: &Bucket, address: usize) -> Option<Sample> {
    Some(bucket.find(address)?.sample())
}

#[test]
fn two_that_insert_at_once_are_both_found() {
    model(|| {
        let bucket = Arc::new(Bucket::default());
        let other = {
            let bucket = Arc::clone(&bucket);
            thread::spawn(move || insert(&bucket, BLOCK, FIRST))
        };
        insert(&bucket, 2 * BLOCK, SECOND);
        other.join().unwrap();
        assert_eq!(take(&bucket, BLOCK), Some(FIRST));
        assert_eq!(take(&bucket, 2 * BLOCK), Some(SECOND));
    });
}

#[test]
fn of_two_that_take_one_gets_it() {
    model(|| {
        let bucket = Arc::new(Bucket::default());
        insert(&bucket, BLOCK, FIRST);
        let other = {
            let bucket = Arc::clone(&bucket);
            thread::spawn(move || take(&bucket, BLOCK))
        };
        let taken = [take(&bucket, BLOCK), other.join().unwrap()];
        assert_eq!(taken.into_iter().flatten().collect::<Vec<_>>(), [FIRST]);
    });
}

#[test]
fn a_block_that_is_freed_and_given_again_is_seen_as_one_of_both() {
    model(|| {
        let bucket = Arc::new(Bucket::default());
        insert(&bucket, BLOCK, FIRST);
        let reader = {
            let bucket = Arc::clone(&bucket);
            thread::spawn(move || {
                bucket.visit(|address, sample| {
                    assert_eq!(address, BLOCK);
                    assert!([FIRST, SECOND].contains(&sample), "{sample:?}");
                });
            })
        };
        assert_eq!(take(&bucket, BLOCK), Some(FIRST));
        insert(&bucket, BLOCK, SECOND);
        reader.join().unwrap();
        assert_eq!(take(&bucket, BLOCK), Some(SECOND));
    });
}
