//! SIGKILL at any moment of a dump.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::unistd::geteuid;

use super::SuiteLength;
use super::dump_dir::survey;
use super::host::{Host, HostSetup, dump};
use super::host_dir::HostDir;

/// A host must serve again this soon.
const BACK: Duration = Duration::from_secs(1);

/// The longest life after the first dump.
const LIFE: Duration = Duration::from_millis(150);

/// Where hosts are killed.
struct KillSetup {
    place: HostDir,
    options: String,
    dumps: PathBuf,
    /// What may lie there until the next dump.
    may_wait: fn(&Path) -> bool,
}

pub(super) fn run(form: SuiteLength) -> Result<String> {
    let kills = form.pick(10, 200);
    let place = HostDir::new()?;
    let (mut last, slowest) = kill_often(
        kills,
        KillSetup {
            options: "allocate=2".to_owned(),
            dumps: place.dumps(),
            place,
            may_wait: |_| false,
        },
    )?;
    ensure!(slowest < BACK, "a host took {slowest:?} to serve again");
    let whole = survey(&last.place().dumps())?.whole;
    last.terminate()?;
    let sockets = survey(&last.place().path().join("run"))?;
    ensure!(sockets.bad.is_empty(), "left over: {:?}", sockets.bad);
    let mut without_proc = 0;
    if geteuid().is_root() {
        let place = HostDir::in_memory()?;
        let root = place.jail()?;
        without_proc = kills / 5;
        kill_often(
            without_proc,
            KillSetup {
                options: format!("allocate=2 chroot={}", root.display()),
                dumps: place.jailed_dumps(),
                place,
                may_wait: is_hidden,
            },
        )?;
    }
    Ok(format!(
        "{kills} kills, {without_proc} more without /proc: 0 partial files, 0 left over, \
         {whole} whole dumps kept; slowest start until served {} ms",
        slowest.as_millis()
    ))
}

/// Starts hosts and kills them while they dump. Returns the one that came after them, which has
/// dumped, and the longest time that a host took to answer.
fn kill_often(kills: u32, ground: KillSetup) -> Result<(Host, Duration)> {
    let KillSetup {
        mut place,
        options,
        dumps,
        may_wait,
    } = ground;
    let random = RandomState::new();
    let mut slowest = Duration::ZERO;
    for round in 0..kills {
        let begun = Instant::now();
        let host = HostSetup::with(&options).start_in(place)?;
        let mut client = host.client()?;
        client.host()?;
        slowest = slowest.max(begun.elapsed());
        let dumper = thread::spawn(move || {
            // Ends with the host.
            while dump(&mut client).is_ok() {}
        });
        let life = random.hash_one(round) % LIFE.as_micros() as u64;
        thread::sleep(Duration::from_micros(life));
        place = host.kill()?;
        dumper.join().expect("no panic");
        let mut bad = survey(&dumps)?.bad;
        bad.retain(|path| !may_wait(path));
        ensure!(bad.is_empty(), "kill {round}: bad files: {bad:?}");
    }
    let last = HostSetup::with(&options).start_in(place)?;
    let reply = dump(&mut last.client()?)?;
    ensure!(reply["status"] == "ok", "{reply}");
    let found = survey(&dumps)?;
    ensure!(found.bad.is_empty(), "left over: {:?}", found.bad);
    Ok((last, slowest))
}

fn is_hidden(path: &Path) -> bool {
    let name = path.file_name();
    name.is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}
