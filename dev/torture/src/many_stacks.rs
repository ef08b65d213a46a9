//! A program with a large heap profile, and `memprof serve` in front of it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;
use testkit::LineReader;
use testkit::processes::status_number;
use xtask::dist::dist_dir;
use xtask::run::{project_root, run};

/// Time that the preloaded plugin may take to open its socket.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Time that the program may take to allocate from all of its stacks, and the server to print its address.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// The program; dropping it kills it.
#[derive(Debug)]
pub struct ManyStacks {
    _child: KillOnDrop,
    /// Path of the control socket.
    pub control: PathBuf,
}

impl ManyStacks {
    /// Compiles and starts the program with live blocks from `stacks` stacks, and waits until it has them and its
    /// control socket is open. The socket and the dumps are in `dir`; dumps of an earlier start there are removed.
    ///
    /// # Errors
    /// The compiler or the start fails, or the program is not ready within two minutes, or its socket not open within
    /// 10 seconds after that.
    pub fn start(dir: &Path, stacks: usize) -> Result<Self> {
        let program = dir.join("many_stacks");
        let source = project_root().join("dev/torture/src/many_stacks.c");
        run(Command::new("cc")
            .args(["-O1", "-o"])
            .arg(&program)
            .arg(source))?;
        let state = dir.join("state");
        if state.exists() {
            fs::remove_dir_all(&state)?;
        }
        let mut child = KillOnDrop(
            Command::new(dist_dir().join("bin/memprof"))
                .args(["run", "--allocator=jemalloc", "--active", "--lg-sample=10"])
                .arg("--socket-dir")
                .arg(dir.join("run"))
                .arg("--")
                .arg(&program)
                .arg(stacks.to_string())
                .env("XDG_STATE_HOME", &state)
                .stdout(Stdio::piped())
                .spawn()?,
        );
        let stdout = child.0.stdout.take().context("it has no stdout")?;
        LineReader::new(stdout)
            .find_line(READY_TIMEOUT, |line| (line == "ready").then_some(()))
            .context("many_stacks is not ready")?;
        let control = dir.join(format!("run/{}.sock", child.0.id()));
        let host = Self {
            _child: child,
            control,
        };
        host.client()?;
        Ok(host)
    }

    /// Connects to the control socket; waits until it is open.
    ///
    /// # Errors
    /// The socket does not open within 10 seconds.
    pub fn client(&self) -> Result<Client> {
        let start = Instant::now();
        loop {
            match Client::connect(&self.control) {
                Ok(client) => return Ok(client),
                Err(error) if start.elapsed() > START_TIMEOUT => return Err(error.into()),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// A process of `memprof serve`; dropping it kills it.
#[derive(Debug)]
pub struct Server {
    child: KillOnDrop,
    /// Address that it printed.
    pub address: String,
}

impl Server {
    /// Starts a server for this host only, and waits until it prints its address. `args` are further arguments of
    /// `memprof serve`.
    ///
    /// # Errors
    /// The server cannot be started, or its first line has no address or does not come within two minutes.
    pub fn start(host: &ManyStacks, args: &[&str]) -> Result<Self> {
        let mut child = KillOnDrop(
            Command::new(dist_dir().join("bin/memprof"))
                .arg("serve")
                .args(args)
                .arg("-t")
                .arg(&host.control)
                .stderr(Stdio::piped())
                .spawn()?,
        );
        let stderr = child.0.stderr.take().context("it has no stderr")?;
        let mut stderr = LineReader::new(stderr);
        let line = stderr.read_line(READY_TIMEOUT)?;
        let address = line
            .split_once("serving ")
            .map(|(_, address)| address.trim_end());
        let address = address.with_context(|| line.clone())?.to_owned();
        // Without a reader, the server would block on a full pipe.
        thread::spawn(move || io::copy(&mut stderr.into_inner(), &mut io::sink()));
        Ok(Self { child, address })
    }

    /// First number in a line of the server's /proc/PID/status, in KiB for memory.
    pub fn status_field(&self, field: &str) -> Result<u64> {
        status_number(self.child.0.id(), field)
    }

    /// Fails, with its status, if the server has exited.
    pub fn check_alive(&mut self) -> Result<()> {
        let ended = self.child.0.try_wait()?;
        ensure!(ended.is_none(), "memprof serve died: {ended:?}");
        Ok(())
    }
}

#[derive(Debug)]
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait().map(drop)) {
            eprintln!("failed to kill {}: {error}", self.0.id());
        }
    }
}
