//! SIGKILL at any moment of a dump.

use std::hash::{BuildHasher, RandomState};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::Form;
use super::host::{Place, Setup, dump, survey};

/// A host must serve again this soon.
const BACK: Duration = Duration::from_secs(1);

/// The longest life after the first dump.
const LIFE: Duration = Duration::from_millis(150);

pub(super) fn run(form: Form) -> Result<String> {
    let kills = form.pick(10, 200);
    let random = RandomState::new();
    let mut place = Place::new()?;
    let mut slowest = Duration::ZERO;
    for round in 0..kills {
        let begun = Instant::now();
        let host = Setup::default().start_in(place)?;
        let mut client = host.client()?;
        client.host()?;
        slowest = slowest.max(begun.elapsed());
        let dumps = thread::spawn(move || {
            // Ends with the host.
            while dump(&mut client).is_ok() {}
        });
        let life = random.hash_one(round) % LIFE.as_micros() as u64;
        thread::sleep(Duration::from_micros(life));
        place = host.kill()?;
        dumps.join().expect("no panic");
        let found = survey(&place.dumps())?;
        ensure!(
            found.bad.is_empty(),
            "kill {round}: bad files: {:?}",
            found.bad
        );
    }
    // The last one's socket and lock are what a host that died leaves.
    let mut last = Setup::default().start_in(place)?;
    last.client()?.host()?;
    last.terminate()?;
    let left = survey(&last.place().path().join("run"))?;
    ensure!(left.bad.is_empty(), "left over: {:?}", left.bad);
    let whole = survey(&last.place().dumps())?.whole;
    ensure!(whole > 0, "no host lived to dump");
    ensure!(slowest < BACK, "a host took {slowest:?} to serve again");
    Ok(format!(
        "{kills} kills: 0 partial files, 0 left over, {whole} whole dumps kept; \
         slowest start until served {} ms",
        slowest.as_millis()
    ))
}
