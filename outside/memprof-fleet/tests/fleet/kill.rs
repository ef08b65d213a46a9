//! An agent or a merge that is killed at any step: every sample is in the store once, for SQL engines too.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use testkit::python;

use crate::place::{CART, HOUR, Place, Run, START};

/// The calls by which the agent changes what is on a disk.
const CALLS: [&str; 3] = [
    "rename,renameat2,linkat,link",
    "unlink,unlinkat",
    "fsync,fdatasync",
];

/// A command with a fault in these calls, in strace's words.
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

/// Why strace could not be started.
const NO_STRACE: &str = "strace: run `cargo xtask test`, or apt-get install strace";

/// Runs a command that is killed when it makes one of these calls for the `count`th time. Returns whether it
/// came so far.
fn killed(command: &Command, calls: &str, count: usize) -> bool {
    let fault = format!("signal=SIGKILL:when={count}");
    let mut strace = with_fault(command, calls, &fault);
    let status = strace.output().expect(NO_STRACE).status;
    status.signal() == Some(9) || status.code() == Some(137)
}

/// Has DuckDB add up the bytes of all samples, through the views of the moment.
fn ask_duckdb(place: &Place) -> Run {
    let views = place.run(&["fleet", "views", "--for", "duckdb"]).exits(0);
    let sum = "SELECT sum(inuse_bytes) FROM samples";
    let program = "import duckdb, sys\nduckdb.execute(sys.argv[1])\nprint(duckdb.execute(sys.argv[2]).fetchone()[0])";
    let mut python = Command::new(python::interpreter(&["duckdb==2.0.0"]).unwrap());
    python.args(["-c", program, &views.stdout, sum]);
    Run::of(python.output().unwrap())
}

fn total_of_duckdb(place: &Place) -> i64 {
    let answered = ask_duckdb(place).exits(0);
    answered.stdout.trim().parse().unwrap()
}

/// Fills a spool: four profiles of two hours.
fn filled() -> Place {
    let place = Place::new();
    for at in 0..4 {
        place.spool(
            CART,
            START + at * HOUR / 2,
            &[("leak", 1000 + at), ("load", 500)],
        );
    }
    place
}

#[test]
fn an_agent_that_is_killed_at_any_step_puts_each_sample_into_the_store_once() {
    let whole = filled();
    whole.drain();
    let expected = whole.total();
    let mut kills = 0;
    for calls in CALLS {
        for count in 1.. {
            let place = filled();
            let agent = place.command(&["agent", "--once"]);
            if !killed(&agent, calls, count) {
                break;
            }
            kills += 1;
            // What was there may have been merged before the next agent comes.
            if count % 2 == 0 {
                place.run(&["fleet", "compact"]).exits(0);
            }
            place.drain();
            assert_eq!(place.total(), expected, "{calls} {count}");
            place.run(&["fleet", "compact"]).exits(0);
            assert_eq!(place.total(), expected, "{calls} {count}, merged");
            assert_eq!(place.growth()[0]["growth_bytes"], 3, "{calls} {count}");
        }
    }
    assert!(kills > 20, "only {kills} steps");
}

#[test]
fn a_merge_that_is_killed_at_any_step_changes_no_answer() {
    let whole = filled();
    whole.drain();
    let (expected, bytes) = (whole.total(), total_of_duckdb(&whole));
    assert_eq!(bytes, 4 * 1500 + 6);
    for calls in CALLS {
        for count in 1.. {
            let place = filled();
            place.drain();
            let merge = place.command(&["fleet", "compact"]);
            if !killed(&merge, calls, count) {
                break;
            }
            assert_eq!(place.total(), expected, "{calls} {count}");
            assert_eq!(total_of_duckdb(&place), bytes, "{calls} {count}");
            place.run(&["fleet", "compact"]).exits(0);
            assert_eq!(place.total(), expected, "{calls} {count}, merged");
            assert!(
                place.files("incoming").is_empty(),
                "{:?}",
                place.files("incoming")
            );
        }
    }
}

#[test]
fn a_merge_at_work_changes_no_answer() {
    let place = filled();
    place.drain();
    let (expected, bytes) = (place.total(), total_of_duckdb(&place));
    let merge = place.command(&["fleet", "compact"]);
    // Long enough for a question between two steps.
    let mut merge = with_fault(&merge, CALLS[1], "delay_enter=500000");
    let mut merge = merge.spawn().expect(NO_STRACE);
    let mut asked = 0;
    while merge.try_wait().unwrap().is_none() {
        assert_eq!(place.total(), expected);
        // An engine reads the list of files once: one that is gone is an error of its, never another sum.
        let answered = ask_duckdb(&place);
        match answered.code {
            0 => assert_eq!(answered.stdout.trim(), bytes.to_string()),
            _ => assert!(answered.stderr.contains(".parquet"), "{answered:?}"),
        }
        asked += 1;
    }
    assert!(asked > 2, "{asked}");
    assert_eq!(place.total(), expected);
    assert_eq!(total_of_duckdb(&place), bytes);
}
