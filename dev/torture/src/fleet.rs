//! An agent that is killed again and again while dumps arrive, a store that fails in every way or is gone, and a NATS
//! server that is gone meanwhile: each sample is in the store once.

use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use testkit::s3::{S3, WriteFault};
use testkit::seaweedfs::SeaweedFs;

use crate::SuiteLength;

mod fixture;
mod nats;

use fixture::FleetFixture;
pub(crate) use fixture::dumped;
use nats::Nats;

const FAULTS: [WriteFault; 6] = [
    WriteFault::Conflict,
    WriteFault::ConflictAfterWriting,
    WriteFault::DroppedAfterWriting,
    WriteFault::DroppedBeforeWriting,
    WriteFault::InternalError,
    WriteFault::Forbidden,
];

pub(super) fn run(form: SuiteLength) -> Result<String> {
    // Both wait most of the time.
    let [killed, gone] = thread::scope(|scope| {
        let runs = [killed, gone].map(|run| scope.spawn(move || run(form)));
        runs.map(|run| run.join().unwrap_or_else(|_| Err(anyhow!("it panicked"))))
    });
    Ok(format!("{}; {}", killed?, gone?))
}

/// Agents are killed, and the store fails.
fn killed(form: SuiteLength) -> Result<String> {
    let s3 = S3::start()?;
    let fleet = FleetFixture::new(s3.environment())?;
    let nats = Nats::of_debian(&fleet)?;
    let mut dumped = Vec::new();
    let kills = form.pick(20, 200);
    for kill in 0..kills {
        dumped.push(fleet.dump(kill)?);
        let fault = FAULTS[kill as usize % FAULTS.len()];
        s3.set_faults(&[fault, FAULTS[kill as usize / 7 % FAULTS.len()]]);
        let mut agent = fleet.agent(&nats.url())?;
        // Each kill meets another step of the agent's.
        thread::sleep(Duration::from_millis(20 + kill * 37 % 900));
        agent.end()?;
        if kill % 5 == 4 {
            // What the agent was killed before it met; a merge ends at a refusal.
            s3.set_faults(&[]);
            fleet.run(&["fleet", "compact"])?;
        }
    }
    s3.set_faults(&[]);
    let mut agent = fleet.agent(&nats.url())?;
    nats.answers(&fleet)?;
    fleet.drained()?;
    agent.end()?;
    fleet.total(&dumped)?;
    Ok(format!(
        "{kills} agents killed, {} writes tried: {} dumps once each",
        s3.write_count(),
        dumped.len()
    ))
}

/// The servers are killed and stopped, and the agent goes on.
fn gone(form: SuiteLength) -> Result<String> {
    let time = Duration::from_secs(form.pick(2, 30));
    let mut store = SeaweedFs::start()?;
    let fleet = FleetFixture::new(store.environment())?;
    let mut dumped = Vec::new();
    for nats in &[Nats::newest, Nats::of_debian][..form.pick(1, 2)] {
        let mut nats = nats(&fleet)?;
        let mut agent = fleet.agent(&nats.url())?;
        nats.answers(&fleet)?;
        let mut dump = || {
            let number = dumped.len() as u64;
            dumped.push(fleet.dump(number)?);
            anyhow::Ok(())
        };
        // What the agent has begun to write when the server goes, and what comes meanwhile.
        dump()?;
        store.kill()?;
        dump()?;
        thread::sleep(time);
        store.restart()?;
        fleet.drained()?;

        dump()?;
        store.stop()?;
        dump()?;
        thread::sleep(time);
        store.resume()?;
        fleet.drained()?;

        dump()?;
        nats.go();
        dump()?;
        fleet.drained()?;
        thread::sleep(time);
        nats.come_back(&fleet)?;
        nats.answers(&fleet)?;
        agent.end()?;
    }
    fleet.total(&dumped)?;
    fleet.run(&["fleet", "compact"])?;
    fleet.total(&dumped)?;
    Ok(format!(
        "SeaweedFS killed and stopped, NATS killed, for {} s each: {} dumps once each",
        time.as_secs(),
        dumped.len()
    ))
}
