//! What `memprof leaks --prove` and `memprof holders` take of memory themselves.

use std::process::Command;

use serde_json::Value;

use crate::dist::{dist, tool_text};
use crate::processes::{Process, compiled};

/// Default budget according to the help: percent of the process's resident memory, and the least amount.
const SHARE: u64 = 12;
const LEAST: u64 = 128 << 20;

/// Prints the peak of a command in KiB, then what it prints. The kernel counts towards a program what the process
/// had that started it (exec(2) keeps `ru_maxrss`), so that one must be small.
const MEASURED: &str = "import resource, subprocess, sys\n\
                        told = subprocess.run(sys.argv[1:], check=True, stdout=subprocess.PIPE).stdout\n\
                        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, told.decode())";

/// The most memory that `memprof` had at a time, in bytes, as the kernel tells it, and what it printed.
fn run(args: &[&str]) -> (u64, Value) {
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", MEASURED]).arg(dist("bin/memprof"));
    python.args(args).args(["--json", "--max-pause", "10s"]);
    let printed = tool_text("python3", &mut python);
    let (peak, reply) = printed.split_once(' ').unwrap();
    (
        peak.parse::<u64>().unwrap() << 10,
        serde_json::from_str(reply).unwrap(),
    )
}

#[test]
fn memory_stays_within_the_budget() {
    let source = "../../../memprof-leaks/tests/processes/many.c";
    let (_place, program) = compiled("cc", source, &["-O1"]);
    let mut many = Process::start(Command::new(&program), &[]);
    let pid = many.pid.to_string();
    for args in [&["leaks", "--prove", &pid][..], &["holders", &pid]] {
        let (peak, reply) = run(args);
        let rss = reply["rss"].as_u64().unwrap();
        let promised = (rss / 100 * SHARE).max(LEAST);
        assert_eq!(reply["memory_limit_bytes"], promised);
        assert!(rss > 250 << 20, "{rss}");
        assert!(reply["objects"].as_u64().unwrap() > 1_000_000);
        assert!(peak <= promised, "{args:?}: {peak} of {promised}");
        let reported = reply["memory_bytes"].as_u64().unwrap();
        assert!(
            reported <= peak && reported > peak / 2,
            "{reported} of {peak}"
        );
    }
    many.is_unharmed();
}
