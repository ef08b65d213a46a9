//! A store on S3 that fails: what was dumped is there once.

use std::process::Command;

use testkit::s3::{BUCKET, S3, WriteFault};

use crate::place::{CART, HOUR, Place, Run, START};

/// A store on S3, and an agent's place.
struct Bucket {
    place: Place,
    s3: S3,
}

impl Bucket {
    fn new() -> Self {
        Self {
            place: Place::new(),
            s3: S3::start().unwrap(),
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let url = format!("s3://{BUCKET}/prod");
        let mut command = self.place.command(args);
        command.args(["--store", &url]).envs(self.s3.environment());
        command
    }

    fn run(&self, args: &[&str]) -> Run {
        Run::of(self.command(args).output().unwrap())
    }

    /// The bytes of all samples.
    fn total(&self) -> i64 {
        let day = ["--at", "2026-11-21T23:00:00Z", "--for", "24h"];
        let flame = ["fleet", "flame", "--format", "collapsed"];
        let run = self.run(&[&flame[..], &day].concat()).exits(0);
        let lines = run.stdout.lines();
        let values = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<i64>().unwrap());
        values.sum()
    }

    /// Two hours of a process that holds the same all the time.
    fn spool(&self) {
        for at in 0..4 {
            self.place.spool(
                CART,
                START + at * HOUR / 2,
                &[("leak", 1000), ("load", 500)],
            );
        }
    }
}

#[test]
fn what_a_failing_store_takes_is_there_once() {
    let faults = [
        WriteFault::Conflict,
        WriteFault::ConflictAfterWriting,
        WriteFault::DroppedAfterWriting,
        WriteFault::DroppedBeforeWriting,
        WriteFault::InternalError,
        WriteFault::Forbidden,
    ];
    for fault in faults {
        for failing in [1, 4] {
            let bucket = Bucket::new();
            bucket.spool();
            bucket.s3.set_faults(&vec![fault; failing]);
            let mut runs = Vec::new();
            // Whatever does not arrive stays in the spool, and comes the next time.
            while !bucket.place.is_drained() {
                assert!(runs.len() < 12, "{fault:?}: {runs:?}");
                runs.push(bucket.run(&["agent", "--once"]));
            }
            let names = bucket.s3.object_names();
            // Three tables, two hours.
            assert_eq!(names.len(), 6, "{fault:?} {failing}: {names:?}");
            assert_eq!(bucket.total(), 1500, "{fault:?} {failing}");
            // Merging meets the faults that are left; what is in two files counts once.
            bucket.run(&["fleet", "compact"]);
            assert_eq!(bucket.total(), 1500, "{fault:?} {failing}, merging");
            bucket.s3.set_faults(&[]);
            bucket.run(&["fleet", "compact"]).exits(0);
            assert_eq!(bucket.s3.object_names().len(), 6, "{fault:?} {failing}");
            assert_eq!(bucket.total(), 1500, "{fault:?} {failing}, merged");
        }
    }
}

#[test]
fn credentials_that_a_store_refuses_are_named() {
    let bucket = Bucket::new();
    bucket.spool();
    bucket.s3.set_faults(&[WriteFault::Forbidden; 9]);
    let refused = bucket.run(&["agent", "--once"]).exits(3).stderr;
    assert!(refused.contains("AccessDenied: scripted"), "{refused}");
    assert!(refused.contains("AWS_ACCESS_KEY_ID"), "{refused}");
    assert!(!bucket.place.is_drained());
}

#[test]
fn a_store_that_is_not_there_is_named_and_nothing_is_lost() {
    let bucket = Bucket::new();
    bucket.spool();
    let mut agent = bucket.command(&["agent", "--once"]);
    agent.env("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
    let refused = Run::of(agent.output().unwrap()).exits(3).stderr;
    assert!(
        refused.contains(&format!("s3://{BUCKET}/prod: failed to")),
        "{refused}"
    );
    bucket.run(&["agent", "--once"]).exits(5);
    assert_eq!(bucket.total(), 1500);
}
