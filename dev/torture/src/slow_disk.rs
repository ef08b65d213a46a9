//! Suite `stall`: a disk whose syncs take seconds. Only the reply to the dump waits for it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::SuiteLength;
use super::dump_dir::scan_dump_dir;
use super::host::{Counters, HostSetup, StressHost, send_successfully};
use super::strace::Tracer;

/// Syncs of a dump: of the file and of its directory.
const SYNCS: u32 = 2;

/// Runs the suite `stall`, and returns its figures in one line. Fails if the host allocates, forks or replies too
/// slowly while a dump waits for the disk, or if the dump fails or was not stalled.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let stall = length.pick(Duration::from_secs(2), Duration::from_secs(10));
    // In CI, tests share the cores; the rate of a host that waits would fall to zero.
    let least_rate = length.pick(0.2, 0.9);
    let slowest_fork = length.pick(Duration::from_millis(500), Duration::from_millis(100));
    let host = HostSetup::with_options("allocate=8 fork=1").start()?;
    send_successfully(&mut host.client()?, "dump", "")?;
    let (usual, _) = measure_allocation_rate(&host, || {
        thread::sleep(stall / 2);
        Ok(())
    })?;

    let delay = format!("inject=fsync:delay_enter={}", (stall / SYNCS).as_micros());
    let tracer = Tracer::attach(host.thread_id("memprof-dumper")?, &["-e", &delay])?;
    let (rate, after) = measure_allocation_rate(&host, || {
        thread::scope(|scope| {
            let reply = scope.spawn(|| send_successfully(&mut host.client()?, "dump", ""));
            let answered = poll_status(&host, || !reply.is_finished());
            let reply = reply.join().expect("no panic")?;
            let took = Duration::from_millis(reply["duration_ms"].as_u64().context("duration")?);
            ensure!(
                took >= stall,
                "the dump took {took:?}: the disk did not stall"
            );
            answered
        })
    })?;
    tracer.detach()?;
    let found = scan_dump_dir(&host.dir().dump_dir())?;
    ensure!(found.bad.is_empty(), "bad files: {:?}", found.bad);
    let share = rate / usual;
    ensure!(
        share > least_rate,
        "allocations fell to {:.0} %",
        share * 100.0
    );
    let fork = after.slowest_fork;
    ensure!(fork < slowest_fork, "a fork took {fork:?}");
    Ok(format!(
        "disk stalled for {} s: allocation rate {:.0} %, slowest of {} forks {:.1} ms, status all the while",
        stall.as_secs(),
        share * 100.0,
        after.forks,
        fork.as_secs_f64() * 1000.0
    ))
}

/// Runs `work`. Returns the host's allocations per second meanwhile, and its counters afterwards.
fn measure_allocation_rate(
    host: &StressHost,
    work: impl FnOnce() -> Result<()>,
) -> Result<(f64, Counters)> {
    let (before, start) = (host.counters()?, Instant::now());
    work()?;
    let elapsed = start.elapsed();
    let after = host.counters()?;
    let allocations = after.allocations - before.allocations;
    Ok((allocations as f64 / elapsed.as_secs_f64(), after))
}

/// Requests the status every 50 ms while `is_dump_running` returns true. Fails if a reply
/// takes longer than a second, or if no reply says that the host is busy with a dump.
fn poll_status(host: &StressHost, is_dump_running: impl Fn() -> bool) -> Result<()> {
    let mut client = host.client()?;
    let mut seen_busy = false;
    while is_dump_running() {
        let start = Instant::now();
        let status = send_successfully(&mut client, "status", "")?;
        seen_busy |= status["busy"] == true;
        ensure!(
            start.elapsed() < Duration::from_secs(1),
            "status took {:?}",
            start.elapsed()
        );
        // The delay keeps this loop from slowing the host.
        thread::sleep(Duration::from_millis(50));
    }
    ensure!(seen_busy, "no status said that a dump runs");
    Ok(())
}
