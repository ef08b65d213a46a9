//! Agents and merges that are killed at any step: every sample is in the store once, also for SQL engines.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use testkit::python;

use crate::test_dir::{CART, HOUR, Run, START, TestDir};

/// System calls by which an agent changes files.
const CALLS: [&str; 3] = [
    "rename,renameat2,linkat,link",
    "unlink,unlinkat",
    "fsync,fdatasync",
];

/// Builds a command that runs `command` under strace(1), which injects `fault` into the system calls `calls`.
fn with_fault(command: &Command, calls: &str, fault: &str) -> Command {
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "-o", "/dev/null", "-e"])
        .arg(format!("trace={calls}"));
    strace.arg("-e").arg(format!("inject={calls}:{fault}"));
    strace.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    strace
}

/// Message if strace is missing.
const NO_STRACE: &str = "strace: run `cargo xtask test`, or apt-get install strace";

/// Runs a command that strace(1) kills at number `count` of the system calls `calls`. Returns whether it was killed:
/// false if it made fewer.
fn killed(command: &Command, calls: &str, count: usize) -> bool {
    let fault = format!("signal=SIGKILL:when={count}");
    let mut strace = with_fault(command, calls, &fault);
    let status = strace.output().expect(NO_STRACE).status;
    status.signal() == Some(9) || status.code() == Some(137)
}

/// Returns the views for DuckDB that the program prints now.
fn duckdb_views(dir: &TestDir) -> String {
    let views = dir.run(&["fleet", "views", "--for", "duckdb"]);
    views.exits(0).stdout
}

/// Sums the bytes of all samples in DuckDB by `views`. The result may be a failure.
fn run_duckdb(views: &str) -> Run {
    let sum = "SELECT sum(inuse_bytes) FROM samples";
    let program = "import duckdb, sys\nduckdb.execute(sys.argv[1])\nprint(duckdb.execute(sys.argv[2]).fetchone()[0])";
    let mut python = Command::new(python::install_packages(&["duckdb==2.0.0"]).unwrap());
    python.args(["-c", program, views, sum]);
    Run::from_output(python.output().unwrap())
}

/// Returns the sum of the bytes of all samples, as DuckDB reads them by the views.
pub(crate) fn duckdb_total(dir: &TestDir) -> i64 {
    let result = run_duckdb(&duckdb_views(dir)).exits(0);
    result.stdout.trim().parse().unwrap()
}

/// Spool with four profiles from two hours.
fn dir_with_spool() -> TestDir {
    let dir = TestDir::new();
    spool_profiles(&dir, START);
    dir
}

/// Spools four profiles, one each half an hour from `start` on.
fn spool_profiles(dir: &TestDir, start: i64) {
    for index in 0..4 {
        let held = [("leak", 1000 + index), ("load", 500)];
        dir.spool(CART, start + index * HOUR / 2, &held);
    }
}

#[test]
fn killed_agent_stores_each_sample_once() {
    let whole = dir_with_spool();
    whole.drain();
    let expected = whole.total();
    let mut kills = 0;
    for calls in CALLS {
        for count in 1.. {
            let dir = dir_with_spool();
            let agent = dir.command(&["agent", "--once"]);
            if !killed(&agent, calls, count) {
                break;
            }
            kills += 1;
            // Another agent may merge the stored files before the next one starts here.
            if count % 2 == 0 {
                dir.run(&["fleet", "compact"]).exits(0);
            }
            dir.drain();
            assert_eq!(dir.total(), expected, "{calls} {count}");
            dir.run(&["fleet", "compact"]).exits(0);
            assert_eq!(dir.total(), expected, "{calls} {count}, merged");
            assert_eq!(dir.growth()[0]["growth_bytes"], 3, "{calls} {count}");
        }
    }
    assert!(kills > 20, "only {kills} steps");
}

#[test]
fn killed_merge_changes_no_result() {
    let whole = dir_with_spool();
    whole.drain();
    let (expected, bytes) = (whole.total(), duckdb_total(&whole));
    assert_eq!(bytes, 4 * 1500 + 6);
    for calls in CALLS {
        for count in 1.. {
            let dir = dir_with_spool();
            dir.drain();
            let merge = dir.command(&["fleet", "compact"]);
            if !killed(&merge, calls, count) {
                break;
            }
            assert_eq!(dir.total(), expected, "{calls} {count}");
            assert_eq!(duckdb_total(&dir), bytes, "{calls} {count}");
            dir.run(&["fleet", "compact"]).exits(0);
            assert_eq!(dir.total(), expected, "{calls} {count}, merged");
            assert!(
                dir.files("incoming").is_empty(),
                "{:?}",
                dir.files("incoming")
            );
        }
    }
}

#[test]
fn running_merge_changes_no_result() {
    let dir = dir_with_spool();
    dir.drain();
    // Views of a store without merged files would not read those of the merge that begins meanwhile.
    dir.run(&["fleet", "compact"]).exits(0);
    let mut queries = 0;
    // On a loaded machine, a merge may end before a query does: more merges then.
    for round in 1..=5 {
        spool_profiles(&dir, START + round * 2 * HOUR);
        dir.drain();
        queries += query_while_merging(&dir);
        if queries > 2 {
            return;
        }
    }
    panic!("only {queries} queries beside merges");
}

/// Queries the store until a merge has ended, and asserts that no sum changes. Returns the number of the queries that
/// began before its end.
fn query_while_merging(dir: &TestDir) -> usize {
    let (expected, bytes) = (dir.total(), duckdb_total(dir));
    let merge = dir.command(&["fleet", "compact"]);
    // The delay leaves time for a query between two steps.
    let mut merge = with_fault(&merge, CALLS[1], "delay_enter=500000");
    let mut merge = merge.spawn().expect(NO_STRACE);
    let mut queries = 0;
    while merge.try_wait().unwrap().is_none() {
        assert_eq!(dir.total(), expected);
        // An engine lists the files once: a deleted one is an error, but never changes a sum.
        let result = run_duckdb(&duckdb_views(dir));
        match result.code {
            0 => assert_eq!(result.stdout.trim(), bytes.to_string()),
            _ => assert!(result.stderr.contains(".parquet"), "{result:?}"),
        }
        queries += 1;
    }
    assert_eq!(dir.total(), expected);
    assert_eq!(duckdb_total(dir), bytes);
    queries
}
