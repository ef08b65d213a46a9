//! Suite `disk`: an ext4 file system is frozen before and during a dump. Only the dump waits for it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::unistd::geteuid;

use super::SuiteLength;
use super::dump_dir::scan_dump_dir;
use super::host::{HostSetup, StressHost, dump, require_success, send_message};
use super::host_dir::{HostDir, create_private_dir};
use xtask::run::run as run_command;

/// Size of the disk's sparse image, in bytes.
const IMAGE_BYTES: u64 = 1 << 30;
/// Maximum time without an allocation in the host, longer than the scheduler's delays on a busy machine.
const MAX_PAUSE: Duration = Duration::from_millis(700);

/// Runs the suite `disk`, and returns its figures in one line. Only root can freeze a file system; for other users
/// there is no case. Fails if a dump is damaged, or if the host allocates nothing for too long.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    if !geteuid().is_root() {
        eprintln!("not root: no file system can be frozen");
        return Ok("0 cases".to_owned());
    }
    let dir = HostDir::new()?;
    create_private_dir(&dir.dump_dir())?;
    let disk = Disk::mount(dir.path(), &dir.dump_dir())?;
    // The dump of the long suite has more than 64 MiB.
    let options = length.pick("allocate=4 stacks=14", "allocate=4 stacks=18");
    let mut host = HostSetup::with_options(options).start_in(dir)?;
    let first = dump(&mut host.client()?)?;
    require_success("dump", &first)?;
    let freeze_time = length.pick(Duration::from_secs(1), Duration::from_secs(5));
    let mut longest = Duration::ZERO;
    for moment in [FreezeMoment::Before, FreezeMoment::While] {
        longest = longest.max(dump_while_frozen(&host, &disk, moment, freeze_time)?);
        host.check_alive()?;
    }
    ensure!(
        longest < MAX_PAUSE,
        "nothing was allocated for {longest:?}; {}",
        host.log()
    );
    let found = scan_dump_dir(&host.dir().dump_dir())?;
    ensure!(found.bad.is_empty(), "bad files: {:?}", found.bad);
    let whole = found.complete;
    drop((host, disk));
    Ok(format!(
        "disk frozen for {} s before and during a dump of {:.0} MB: no thread stopped for longer than \
         {} ms, status all the while, {whole} whole dumps",
        freeze_time.as_secs(),
        first["bytes"].as_f64().context("bytes")? / 1e6,
        longest.as_millis()
    ))
}

/// Moment at which the disk freezes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FreezeMoment {
    Before,
    While,
}

/// Freezes the disk for a time before or during a dump. Returns the longest time in which the host allocated nothing.
/// Fails if the dump fails, or if the host answers no status while the dump waits for the disk. A dump must wait if the
/// disk was frozen before it; otherwise it may have ended before the freeze.
fn dump_while_frozen(
    host: &StressHost,
    disk: &Disk,
    moment: FreezeMoment,
    freeze_time: Duration,
) -> Result<Duration> {
    thread::scope(|scope| {
        if moment == FreezeMoment::Before {
            disk.freeze()?;
        }
        let reply = scope.spawn(|| dump(&mut host.client()?));
        if moment == FreezeMoment::While {
            while !reply.is_finished() && !is_dumping(host)? {
                thread::yield_now();
            }
            disk.freeze()?;
        }
        let pause = measure_longest_pause(host, freeze_time);
        let has_waited = !reply.is_finished();
        let status = send_message(&mut host.client()?, "status", "");
        // The disk is thawed before any check, because a thread that waits for it cannot even be killed.
        disk.thaw()?;
        let reply = reply.join().expect("no panic")?;
        ensure!(reply["status"] == "ok", "{reply}");
        ensure!(
            has_waited || moment == FreezeMoment::While,
            "the dump did not wait"
        );
        ensure!(
            !has_waited || status?["busy"] == true,
            "no status while the dump waits"
        );
        pause
    })
}

/// Whether the host has a dump's file open: a memfd, or a file in the dump directory.
fn is_dumping(host: &StressHost) -> Result<bool> {
    let dumps = host.dir().dump_dir();
    let is_on_disk = host
        .open_files()?
        .iter()
        .any(|file| file.starts_with(&dumps));
    Ok(is_on_disk || host.has_dump_in_memory()?)
}

/// Returns the longest time in which the host allocated nothing, within the next `time`, which this function waits.
/// Reads the host's counter of allocations every 2 ms.
fn measure_longest_pause(host: &StressHost, time: Duration) -> Result<Duration> {
    let start = Instant::now();
    let (mut last, mut since) = (host.counters()?.allocations, start);
    let mut longest = Duration::ZERO;
    while start.elapsed() < time {
        thread::sleep(Duration::from_millis(2));
        let now = host.counters()?.allocations;
        longest = longest.max(since.elapsed());
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(longest)
}

/// A mounted ext4 file system in an image file; dropping it thaws and unmounts it.
#[derive(Debug)]
struct Disk(PathBuf);

impl Disk {
    /// Creates an ext4 file system in a file in `dir`, and mounts it. Needs root.
    fn mount(dir: &Path, mount_point: &Path) -> Result<Self> {
        let image = dir.join("disk");
        File::create(&image)?.set_len(IMAGE_BYTES)?;
        run_command(Command::new("mkfs.ext4").arg("-q").arg(&image))?;
        run_command(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&image)
                .arg(mount_point),
        )?;
        let disk = Self(mount_point.to_owned());
        run_command(Command::new("chmod").arg("0700").arg(mount_point))?;
        // mkfs.ext4 creates this directory, which the scan of the dump directory would report as a bad file.
        fs::remove_dir(mount_point.join("lost+found"))?;
        Ok(disk)
    }

    /// Freezes the file system by fsfreeze(8): writes wait until [`thaw`](Self::thaw).
    fn freeze(&self) -> Result<()> {
        run_command(Command::new("fsfreeze").arg("-f").arg(&self.0))
    }

    /// Ends [`freeze`](Self::freeze): writes that wait continue.
    fn thaw(&self) -> Result<()> {
        run_command(Command::new("fsfreeze").arg("-u").arg(&self.0))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // After an error the disk may still be frozen.
        let mut thaw = Command::new("fsfreeze");
        if let Err(error) = thaw.arg("-u").arg(&self.0).output() {
            eprintln!("failed to thaw {}: {error}", self.0.display());
        }
        // A host that was just killed may still have files open.
        let mut unmount = Command::new("umount");
        if let Err(error) = run_command(unmount.arg("--lazy").arg(&self.0)) {
            eprintln!("{error:#}");
        }
    }
}
