//! Suite `kill`: SIGKILL at random moments of a dump.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::unistd::geteuid;

use super::SuiteLength;
use super::dump_dir::scan_dump_dir;
use super::host::{HostSetup, StressHost, dump, require_success};
use super::host_dir::HostDir;

/// Maximum time from a host's start until it serves.
const MAX_START_TIME: Duration = Duration::from_secs(1);

/// Maximum delay of the kill after the start of the first dump.
const MAX_DELAY: Duration = Duration::from_millis(150);

/// Directories and options of the hosts that are killed.
struct KillSetup {
    dir: HostDir,
    options: String,
    dumps: PathBuf,
    /// Whether a file may stay in the dump directory until the next dump.
    may_remain: fn(&Path) -> bool,
}

/// Runs the suite `kill`, and returns its figures in one line. Fails if a killed host leaves an incomplete dump or a
/// socket, or if the next one takes too long to serve.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let kills = length.pick(10, 200);
    let dir = HostDir::new()?;
    let (mut last, slowest) = kill_often(
        kills,
        KillSetup {
            options: "allocate=2".to_owned(),
            dumps: dir.dump_dir(),
            dir,
            may_remain: |_| false,
        },
    )?;
    ensure!(
        slowest < MAX_START_TIME,
        "a host took {slowest:?} to serve again"
    );
    let complete = scan_dump_dir(&last.dir().dump_dir())?.complete;
    last.terminate()?;
    let sockets = scan_dump_dir(&last.dir().path().join("run"))?;
    ensure!(sockets.bad.is_empty(), "left over: {:?}", sockets.bad);
    let mut without_proc = 0;
    if geteuid().is_root() {
        let dir = HostDir::new_in_memory()?;
        let root = dir.create_root_without_proc()?;
        without_proc = kills / 5;
        kill_often(
            without_proc,
            KillSetup {
                options: format!("allocate=2 chroot={}", root.display()),
                dumps: dir.dump_dir_in_root(),
                dir,
                may_remain: is_hidden_file,
            },
        )?;
    }
    Ok(format!(
        "{kills} kills, {without_proc} more without /proc: 0 partial files, 0 left over, \
         {complete} complete dumps kept; slowest start until served {} ms",
        slowest.as_millis()
    ))
}

/// Starts `kills` hosts one after the other in one directory, and kills each while it dumps. Then starts one more,
/// which must dump. Returns this last host, and the longest time from a start to the first reply. Fails if a dump fails
/// before the kill, if a killed host leaves a bad file that may not remain, or if a bad file is left after the last
/// dump.
fn kill_often(kills: u32, setup: KillSetup) -> Result<(StressHost, Duration)> {
    let KillSetup {
        mut dir,
        options,
        dumps,
        may_remain,
    } = setup;
    let random = RandomState::new();
    let mut slowest = Duration::ZERO;
    for round in 0..kills {
        let start = Instant::now();
        let host = HostSetup::with_options(&options).start_in(dir)?;
        let mut client = host.client()?;
        client.host_info()?;
        slowest = slowest.max(start.elapsed());
        let dumper = thread::spawn(move || {
            // The loop ends when the host is killed: it then sends no reply.
            while let Ok(reply) = dump(&mut client) {
                require_success("dump", &reply)?;
            }
            anyhow::Ok(())
        });
        let delay = random.hash_one(round) % MAX_DELAY.as_micros() as u64;
        thread::sleep(Duration::from_micros(delay));
        dir = host.kill()?;
        let dumped = dumper.join().expect("no panic");
        dumped.with_context(|| format!("before kill {round}"))?;
        let mut bad = scan_dump_dir(&dumps)?.bad;
        bad.retain(|path| !may_remain(path));
        ensure!(bad.is_empty(), "kill {round}: bad files: {bad:?}");
    }
    let last = HostSetup::with_options(&options).start_in(dir)?;
    require_success("dump", &dump(&mut last.client()?)?)?;
    let found = scan_dump_dir(&dumps)?;
    ensure!(found.bad.is_empty(), "left over: {:?}", found.bad);
    Ok((last, slowest))
}

/// Whether a name begins with a point, as those of incomplete dumps do.
fn is_hidden_file(path: &Path) -> bool {
    let name = path.file_name();
    name.is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}
