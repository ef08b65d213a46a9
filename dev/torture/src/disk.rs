//! A disk that stops in the middle of everything: a frozen ext4. Only the dump waits for it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::unistd::geteuid;

use super::SuiteLength;
use super::dump_dir::survey;
use super::host::{Host, HostSetup, dump, send};
use super::host_dir::{HostDir, make_private};
use xtask::run::run as run_command;

/// Of the disk, of which only what is written takes room.
const SIZE: u64 = 1 << 30;
/// Longer than any thread of a busy machine waits for its turn.
const LONGEST_GAP: Duration = Duration::from_millis(700);

pub(super) fn run(form: SuiteLength) -> Result<String> {
    if !geteuid().is_root() {
        eprintln!("not root: no file system can be frozen");
        return Ok("0 cases".to_owned());
    }
    let place = HostDir::new()?;
    make_private(&place.dumps())?;
    let disk = Disk::mount(place.path(), &place.dumps())?;
    // In the long form more than 64 MiB.
    let options = form.pick("allocate=4 stacks=14", "allocate=4 stacks=18");
    let mut host = HostSetup::with(options).start_in(place)?;
    let first = dump(&mut host.client()?)?;
    ensure!(first["status"] == "ok", "{first}");
    let frozen = form.pick(Duration::from_secs(1), Duration::from_secs(5));
    let mut longest = Duration::ZERO;
    for when in [FreezeMoment::Before, FreezeMoment::While] {
        longest = longest.max(freeze(&host, &disk, when, frozen)?);
        host.check_alive()?;
    }
    ensure!(
        longest < LONGEST_GAP,
        "nothing was allocated for {longest:?}; {}",
        host.log()
    );
    let found = survey(&host.place().dumps())?;
    ensure!(found.bad.is_empty(), "bad files: {:?}", found.bad);
    let whole = found.whole;
    drop((host, disk));
    Ok(format!(
        "disk frozen for {} s before and during a dump of {:.0} MB: no thread stopped for longer than \
         {} ms, status all the while, {whole} whole dumps",
        frozen.as_secs(),
        first["bytes"].as_f64().context("bytes")? / 1e6,
        longest.as_millis()
    ))
}

/// When the disk stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FreezeMoment {
    Before,
    While,
}

/// Freezes the disk for so long, and dumps. Returns the longest time without an allocation.
fn freeze(host: &Host, disk: &Disk, when: FreezeMoment, frozen: Duration) -> Result<Duration> {
    thread::scope(|scope| {
        if when == FreezeMoment::Before {
            disk.freeze()?;
        }
        let reply = scope.spawn(|| dump(&mut host.client()?));
        if when == FreezeMoment::While {
            while !reply.is_finished() && !is_dumping(host)? {
                thread::yield_now();
            }
            disk.freeze()?;
        }
        let gap = longest_pause(host, frozen);
        let waited = !reply.is_finished();
        let status = send(&mut host.client()?, "status", "");
        // Before anything is judged: what waits for the disk cannot even be killed.
        disk.thaw()?;
        let reply = reply.join().expect("no panic")?;
        ensure!(reply["status"] == "ok", "{reply}");
        ensure!(
            waited || when == FreezeMoment::While,
            "the dump did not wait"
        );
        ensure!(
            !waited || status?["busy"] == true,
            "no status while it waits"
        );
        gap
    })
}

/// Whether a file for a dump is open: in memory, or without a name on the disk.
fn is_dumping(host: &Host) -> Result<bool> {
    let dumps = host.place().dumps();
    for descriptor in fs::read_dir(format!("/proc/{}/fd", host.pid()))? {
        // It may have been closed meanwhile.
        let file = fs::read_link(descriptor?.path()).unwrap_or_default();
        let is_memory = file.to_string_lossy().starts_with("/memfd:memprof-dump");
        if is_memory || file.starts_with(&dumps) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn longest_pause(host: &Host, time: Duration) -> Result<Duration> {
    let begun = Instant::now();
    let (mut last, mut since) = (host.counters()?.allocations, begun);
    let mut longest = Duration::ZERO;
    while begun.elapsed() < time {
        thread::sleep(Duration::from_millis(2));
        let now = host.counters()?.allocations;
        longest = longest.max(since.elapsed());
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(longest)
}

/// An ext4 of its own, which is thawed and unmounted when dropped.
#[derive(Debug)]
struct Disk(PathBuf);

impl Disk {
    fn mount(place: &Path, at: &Path) -> Result<Self> {
        let image = place.join("disk");
        File::create(&image)?.set_len(SIZE)?;
        run_command(Command::new("mkfs.ext4").arg("-q").arg(&image))?;
        run_command(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&image)
                .arg(at),
        )?;
        let disk = Self(at.to_owned());
        run_command(Command::new("chmod").arg("0700").arg(at))?;
        // No dump.
        fs::remove_dir(at.join("lost+found"))?;
        Ok(disk)
    }

    fn freeze(&self) -> Result<()> {
        run_command(Command::new("fsfreeze").arg("-f").arg(&self.0))
    }

    fn thaw(&self) -> Result<()> {
        run_command(Command::new("fsfreeze").arg("-u").arg(&self.0))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // It is thawed unless something went wrong.
        let mut thaw = Command::new("fsfreeze");
        if let Err(error) = thaw.arg("-u").arg(&self.0).output() {
            eprintln!("failed to thaw {}: {error}", self.0.display());
        }
        // Of a host that was just killed something may still be open.
        let mut unmount = Command::new("umount");
        if let Err(error) = run_command(unmount.arg("--lazy").arg(&self.0)) {
            eprintln!("{error:#}");
        }
    }
}
