//! Programs with the plugin in them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use memprof_host::client::Client;
use xtask::dist::dist;

/// Of each figure the middle one is printed.
const ROUNDS: usize = 7;

/// How long a host may take to open its socket.
const START: Duration = Duration::from_secs(60);

pub(super) fn plugin() -> PathBuf {
    dist().join("plugins/memory_profile.so")
}

pub(super) fn sockets(place: &Path) -> PathBuf {
    place.join("run")
}

/// A program that the plugin will be preloaded into.
pub(super) fn preloaded(place: &Path, program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", plugin())
        .env("MEMPROF_RUN", "1")
        .env("MEMPROF_SOCKET_DIR", sockets(place))
        .env("MEMPROF_DUMP_DIR", place.join("dumps"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Milliseconds.
pub(super) fn median(mut once: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        once()?;
        times.push(begun.elapsed());
    }
    times.sort();
    Ok(times[ROUNDS / 2].as_secs_f64() * 1e3)
}

/// A connection, once there is a socket.
pub(super) fn connect(socket: &Path) -> Result<Client> {
    let begun = Instant::now();
    loop {
        match Client::connect(socket) {
            Ok(client) => return Ok(client),
            Err(error) if begun.elapsed() > START => return Err(error.into()),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// A process, ended when dropped.
pub(super) struct Host(pub(super) Child);

impl Host {
    pub(super) fn start(command: &mut Command, place: &Path) -> Result<Self> {
        fs::create_dir_all(place.join("dumps"))?;
        Ok(Self(
            command.spawn().with_context(|| format!("{command:?}"))?,
        ))
    }

    pub(super) fn client(&self, place: &Path) -> Result<Client> {
        connect(&sockets(place).join(format!("{}.sock", self.0.id())))
    }

    /// That line of its `/proc/PID/status`.
    pub(super) fn kib(&self, field: &str) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let number = status.lines().find_map(|line| line.strip_prefix(field));
        let number = number.and_then(|number| number.split_whitespace().next());
        Ok(number.with_context(|| field.to_owned())?.parse()?)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait().map(drop)) {
            eprintln!("failed to end {}: {error}", self.0.id());
        }
    }
}
