//! A program with a large heap profile, and `memprof serve` in front of it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;

use xtask::dist::dist;
use xtask::run::{root, run};

/// How long the preloaded plugin may take to open its socket.
const START: Duration = Duration::from_secs(10);

/// The program, ended when dropped.
#[derive(Debug)]
pub struct ManyStacks {
    _child: KillOnDrop,
    /// Its control socket.
    pub control: PathBuf,
}

impl ManyStacks {
    /// Starts it with so many stacks; its socket and its dumps go to `place`.
    pub fn start(place: &Path, stacks: usize) -> Result<Self> {
        let program = place.join("many_stacks");
        let source = root().join("dev/torture/src/many_stacks.c");
        run(Command::new("cc")
            .args(["-O1", "-o"])
            .arg(&program)
            .arg(source))?;
        let state = place.join("state");
        if state.exists() {
            fs::remove_dir_all(&state)?;
        }
        let mut child = KillOnDrop(
            Command::new(dist().join("bin/memprof"))
                .args(["run", "--allocator=jemalloc", "--active", "--lg-sample=10"])
                .arg("--socket-dir")
                .arg(place.join("run"))
                .arg("--")
                .arg(&program)
                .arg(stacks.to_string())
                .env("XDG_STATE_HOME", &state)
                .stdout(Stdio::piped())
                .spawn()?,
        );
        let mut ready = String::new();
        let stdout = child.0.stdout.take().context("it has no stdout")?;
        BufReader::new(stdout).read_line(&mut ready)?;
        let control = place.join(format!("run/{}.sock", child.0.id()));
        let host = Self {
            _child: child,
            control,
        };
        host.client()?;
        Ok(host)
    }

    /// A connection, once there is a socket.
    pub fn client(&self) -> Result<Client> {
        let begun = Instant::now();
        loop {
            match Client::connect(&self.control) {
                Ok(client) => return Ok(client),
                Err(error) if begun.elapsed() > START => return Err(error.into()),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// A `memprof serve`, ended when dropped.
#[derive(Debug)]
pub struct Server {
    child: KillOnDrop,
    /// What it printed of where it listens.
    pub place: String,
}

impl Server {
    /// Serves that host alone.
    pub fn start(host: &ManyStacks, args: &[&str]) -> Result<Self> {
        let mut child = KillOnDrop(
            Command::new(dist().join("bin/memprof"))
                .arg("serve")
                .args(args)
                .arg("-t")
                .arg(&host.control)
                .stderr(Stdio::piped())
                .spawn()?,
        );
        let mut said = String::new();
        let stderr = child.0.stderr.take().context("it has no stderr")?;
        let mut stderr = BufReader::new(stderr);
        stderr.read_line(&mut said)?;
        let place = said
            .split_once("serving ")
            .map(|(_, place)| place.trim_end());
        let place = place.with_context(|| said.clone())?.to_owned();
        thread::spawn(move || io::copy(&mut stderr, &mut io::sink()));
        Ok(Self { child, place })
    }

    /// The first number of that line of its `/proc/PID/status`.
    pub fn status(&self, field: &str) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.0.id()))?;
        let number = status.lines().find_map(|line| line.strip_prefix(field));
        let number = number.and_then(|number| number.split_whitespace().next());
        Ok(number.with_context(|| field.to_owned())?.parse()?)
    }

    /// Fails when it has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        let ended = self.child.0.try_wait()?;
        ensure!(ended.is_none(), "memprof serve died: {ended:?}");
        Ok(())
    }
}

/// A process that is ended when it is dropped.
#[derive(Debug)]
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait().map(drop)) {
            eprintln!("failed to end {}: {error}", self.0.id());
        }
    }
}
