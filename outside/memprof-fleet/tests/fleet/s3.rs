//! Failures of a store on S3: every profile is stored once.

use std::process::Command;

use testkit::s3::{BUCKET, S3, WriteFault};

use crate::test_dir::{CART, HOUR, Run, START, TestDir};

/// Store on S3, and a directory of an agent.
struct Bucket {
    dir: TestDir,
    s3: S3,
}

impl Bucket {
    fn new() -> Self {
        Self {
            dir: TestDir::new(),
            s3: S3::start().unwrap(),
        }
    }

    /// Builds a command of the program with the store in S3.
    fn command(&self, args: &[&str]) -> Command {
        let url = format!("s3://{BUCKET}/prod");
        let mut command = self.dir.command(args);
        command.args(["--store", &url]).envs(self.s3.environment());
        command
    }

    fn run(&self, args: &[&str]) -> Run {
        Run::from_output(self.command(args).output().unwrap())
    }

    /// Sum of the bytes of all samples.
    fn total(&self) -> i64 {
        let day = ["--at", "2026-11-21T23:00:00Z", "--for", "24h"];
        let flame = ["fleet", "flame", "--format", "collapsed"];
        let run = self.run(&[&flame[..], &day].concat()).exits(0);
        let lines = run.stdout.lines();
        let values = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<i64>().unwrap());
        values.sum()
    }

    /// Writes four profiles from two hours into the spool, of a process that always holds 1500 bytes.
    fn spool(&self) {
        for index in 0..4 {
            self.dir.spool(
                CART,
                START + index * HOUR / 2,
                &[("leak", 1000), ("load", 500)],
            );
        }
    }
}

#[test]
fn failing_store_has_each_profile_once() {
    for fault in WriteFault::ALL {
        for failing in [1, 4] {
            let bucket = Bucket::new();
            bucket.spool();
            bucket.s3.set_faults(&vec![fault; failing]);
            let mut runs = Vec::new();
            // Profiles that did not arrive stay in the spool, and are sent by the next run.
            while !bucket.dir.is_drained() {
                assert!(runs.len() < 12, "{fault:?}: {runs:?}");
                runs.push(bucket.run(&["agent", "--once"]));
            }
            let names = bucket.s3.object_names();
            // There are three tables with two hours each.
            assert_eq!(names.len(), 6, "{fault:?} {failing}: {names:?}");
            assert_eq!(bucket.total(), 1500, "{fault:?} {failing}");
            // The merge meets the remaining faults; rows that are in two files count once.
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
fn refused_credentials_are_named() {
    let bucket = Bucket::new();
    bucket.spool();
    bucket.s3.set_faults(&[WriteFault::Forbidden; 9]);
    let refused = bucket.run(&["agent", "--once"]).exits(3).stderr;
    assert!(refused.contains("AccessDenied: scripted"), "{refused}");
    assert!(refused.contains("AWS_ACCESS_KEY_ID"), "{refused}");
    assert!(!bucket.dir.is_drained());
}

#[test]
fn unreachable_store_is_named_and_nothing_is_lost() {
    let bucket = Bucket::new();
    bucket.spool();
    let mut agent = bucket.command(&["agent", "--once"]);
    agent.env("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
    let refused = Run::from_output(agent.output().unwrap()).exits(3).stderr;
    assert!(
        refused.contains(&format!("s3://{BUCKET}/prod: failed to")),
        "{refused}"
    );
    bucket.run(&["agent", "--once"]).exits(5);
    assert_eq!(bucket.total(), 1500);
}
