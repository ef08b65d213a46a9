//! Programs with the plugin loaded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use memprof_host::client::Client;
use testkit::processes::status_number;
use xtask::dist::dist_dir;

/// Rounds of each measurement, of which the median is used.
const ROUNDS: usize = 7;

/// Time that a host may take to open its socket.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Path of the built plugin in `target/dist`.
pub(super) fn plugin_path() -> PathBuf {
    dist_dir().join("plugins/memory_profile.so")
}

/// Directory of the hosts' control sockets in the measurement's directory.
pub(super) fn socket_dir(dir: &Path) -> PathBuf {
    dir.join("run")
}

/// Returns the command of a program with the plugin preloaded, without output. Its socket and its dumps are in `dir`.
pub(super) fn preload_command(dir: &Path, program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", plugin_path())
        // Without this variable, the preloaded plugin does nothing.
        .env("MEMPROF_RUN", "1")
        .env("MEMPROF_SOCKET_DIR", socket_dir(dir))
        .env("MEMPROF_DUMP_DIR", dir.join("dumps"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Calls a function [`ROUNDS`] times and returns the median of its milliseconds.
pub(super) fn measure_median_milliseconds(mut once: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        once()?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[ROUNDS / 2].as_secs_f64() * 1e3)
}

/// Connects to a host. Waits for up to [`START_TIMEOUT`] until it has opened its socket.
pub(super) fn connect(socket: &Path) -> Result<Client> {
    let start = Instant::now();
    loop {
        match Client::connect(socket) {
            Ok(client) => return Ok(client),
            Err(error) if start.elapsed() > START_TIMEOUT => return Err(error.into()),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// A child process; dropping it kills it.
pub(super) struct Host(pub(super) Child);

impl Host {
    /// Creates the directory `dumps` in `dir`, and starts a host by this command.
    pub(super) fn start(command: &mut Command, dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir.join("dumps"))?;
        Ok(Self(
            command.spawn().with_context(|| format!("{command:?}"))?,
        ))
    }

    /// Connects to the host's control socket in `dir`.
    pub(super) fn client(&self, dir: &Path) -> Result<Client> {
        connect(&socket_dir(dir).join(format!("{}.sock", self.0.id())))
    }

    /// Number in the line `field` of the process's /proc/PID/status: KiB for memory.
    pub(super) fn status_field(&self, field: &str) -> Result<u64> {
        status_number(self.0.id(), field)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait().map(drop)) {
            eprintln!("failed to kill {}: {error}", self.0.id());
        }
    }
}
