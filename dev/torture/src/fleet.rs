//! Suite `fleet`: while dumps arrive, the agent is killed repeatedly, the store fails or is down, and the NATS server
//! is down. The store has each sample once.

use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use testkit::s3::{S3, WriteFault};
use testkit::seaweedfs::SeaweedFs;

use crate::SuiteLength;

mod fixture;
mod machine;
mod machines;
mod nats;
mod process;

use fixture::FleetFixture;
pub(crate) use fixture::dump_json;
pub(super) use machines::run_machines;
use nats::Nats;

/// Runs the suite `fleet`, and returns its figures in one line. Fails if a store lacks a dump, or has one twice.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    // Both wait most of the time, so they run in parallel.
    let [kill_agents, stop_servers] = thread::scope(|scope| {
        let runs =
            [kill_agents_often, stop_servers_often].map(|run| scope.spawn(move || run(length)));
        runs.map(|run| run.join().unwrap_or_else(|_| Err(anyhow!("it panicked"))))
    });
    Ok(format!("{}; {}", kill_agents?, stop_servers?))
}

/// Kills agents again and again while writes to the store fail, then lets one agent empty the spool (its directory of
/// profiles that wait). Returns the figures as text. Fails unless the store then has each dump once.
fn kill_agents_often(length: SuiteLength) -> Result<String> {
    let s3 = S3::start()?;
    let fleet = FleetFixture::with_s3_store(s3.environment())?;
    let nats = Nats::start_debian_package(&fleet)?;
    let mut dumped = Vec::new();
    let kills = length.pick(20, 200);
    for kill in 0..kills {
        dumped.push(fleet.add_dump(kill)?);
        // The next two writes fail; the divisor 7 pairs each fault with different ones.
        let fault = WriteFault::ALL[kill as usize % WriteFault::ALL.len()];
        s3.set_faults(&[
            fault,
            WriteFault::ALL[kill as usize / 7 % WriteFault::ALL.len()],
        ]);
        let mut agent = fleet.start_agent(&nats.url())?;
        // The delays differ, so that each kill interrupts another step of the agent.
        thread::sleep(Duration::from_millis(20 + kill * 37 % 900));
        agent.kill()?;
        if kill % 5 == 4 {
            // Faults that the agent did not reach are cleared, because compaction stops at a refusal.
            s3.set_faults(&[]);
            fleet.run_fleet(&["fleet", "compact"])?;
        }
    }
    s3.set_faults(&[]);
    let mut agent = fleet.start_agent(&nats.url())?;
    nats.wait_for_agent(&fleet)?;
    fleet.wait_until_drained()?;
    agent.kill()?;
    fleet.check_total(&dumped)?;
    Ok(format!(
        "{kills} agents killed, {} writes tried: {} dumps once each",
        s3.write_count(),
        dumped.len()
    ))
}

/// While an agent runs, kills the store and starts it again, stops it by SIGSTOP and resumes it, and does the former
/// with the NATS server. Returns the figures as text. Fails unless the store has each dump once, before and after
/// compaction.
fn stop_servers_often(length: SuiteLength) -> Result<String> {
    let time = Duration::from_secs(length.pick(2, 30));
    let mut store = SeaweedFs::start()?;
    let fleet = FleetFixture::with_s3_store(store.environment())?;
    let mut dumped = Vec::new();
    for nats in &[Nats::start_newest_release, Nats::start_debian_package][..length.pick(1, 2)] {
        let mut nats = nats(&fleet)?;
        let mut agent = fleet.start_agent(&nats.url())?;
        nats.wait_for_agent(&fleet)?;
        let mut dump = || {
            let number = dumped.len() as u64;
            dumped.push(fleet.add_dump(number)?);
            anyhow::Ok(())
        };
        // One dump arrives just before the server is killed, one while it is down.
        dump()?;
        store.kill()?;
        dump()?;
        thread::sleep(time);
        store.restart()?;
        fleet.wait_until_drained()?;

        dump()?;
        store.stop()?;
        dump()?;
        thread::sleep(time);
        store.resume()?;
        fleet.wait_until_drained()?;

        dump()?;
        nats.kill();
        dump()?;
        fleet.wait_until_drained()?;
        thread::sleep(time);
        nats.restart(&fleet)?;
        nats.wait_for_agent(&fleet)?;
        agent.kill()?;
    }
    fleet.check_total(&dumped)?;
    fleet.run_fleet(&["fleet", "compact"])?;
    fleet.check_total(&dumped)?;
    Ok(format!(
        "SeaweedFS killed and stopped, NATS killed, for {} s each: {} dumps once each",
        time.as_secs(),
        dumped.len()
    ))
}
