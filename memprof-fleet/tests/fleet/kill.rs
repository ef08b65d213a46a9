//! An agent that is killed at any step: every sample is in the store once.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::place::{CART, HOUR, Place, START};

/// The calls by which the agent changes what is on a disk.
const CALLS: [&str; 3] = [
    "rename,renameat2,linkat,link",
    "unlink,unlinkat",
    "fsync,fdatasync",
];

/// Runs a command that is killed when it makes one of these calls for the `count`th time. Returns whether it
/// came so far.
fn killed(command: &Command, calls: &str, count: usize) -> bool {
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "-o", "/dev/null", "-e"])
        .arg(format!("trace={calls}"));
    strace
        .arg("-e")
        .arg(format!("inject={calls}:signal=SIGKILL:when={count}"));
    strace.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    let output = strace
        .output()
        .expect("strace: run `cargo xtask test`, or apt-get install strace");
    output.status.signal() == Some(9) || output.status.code() == Some(137)
}

/// Fills a spool: two hours, two processes.
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
    let expected = whole.total();
    for calls in CALLS {
        for count in 1.. {
            let place = filled();
            place.drain();
            let merge = place.command(&["fleet", "compact"]);
            if !killed(&merge, calls, count) {
                break;
            }
            assert_eq!(place.total(), expected, "{calls} {count}");
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
