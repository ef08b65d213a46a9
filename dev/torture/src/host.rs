//! A host under torture: `stress_host.c`, ended when dropped.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use memprof_host::client::{Client, ClientError};
use memprof_host::protocol::OUT_OF_MEMORY;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::host_dir::HostDir;
use xtask::dist::dist;

/// An answer that takes longer never comes.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// How many lines of a host's log a failure shows.
const LOG_LINES: usize = 20;

/// How to start a host.
#[derive(Debug)]
pub(super) struct HostSetup {
    /// `stress_host`, or `stress_host_static`: then the preloaded jemalloc is the second one.
    pub(super) program: &'static str,
    /// `OPTION=VALUE` of `stress_host.c`.
    pub(super) options: Vec<String>,
    /// A command that runs the host, for example `unshare --pid --fork`.
    pub(super) wrapper: Vec<String>,
    /// More lines of `[plugin.config]`.
    pub(super) config: &'static str,
    /// Variables of its environment: the allocator, and its options.
    pub(super) env: &'static [(&'static str, &'static str)],
}

/// With a jemalloc that can profile.
const JEMALLOC: &[(&str, &str)] = &[
    ("LD_PRELOAD", "libjemalloc.so.2"),
    // Samples often, so that a dump has hundreds of stacks at once.
    (
        "MALLOC_CONF",
        "prof:true,prof_active:false,lg_prof_sample:13",
    ),
];

impl Default for HostSetup {
    fn default() -> Self {
        Self {
            program: "stress_host",
            options: vec!["allocate=2".to_owned()],
            wrapper: Vec::new(),
            config: "activate_at_start = true",
            env: JEMALLOC,
        }
    }
}

impl HostSetup {
    /// A host whose options are the words of `options`.
    pub(super) fn with(options: &str) -> Self {
        Self {
            options: options.split(' ').map(str::to_owned).collect(),
            ..Self::default()
        }
    }

    pub(super) fn start(self) -> Result<Host> {
        self.start_in(HostDir::new()?)
    }

    /// Starts the host where another one may have been before, and waits until it serves.
    pub(super) fn start_in(self, place: HostDir) -> Result<Host> {
        let config = place.path().join("host.toml");
        let text = format!(
            "[control]\nsocket = {:?}\n[[plugin]]\npath = {:?}\n[plugin.config]\ndump_dir = {:?}\n{}\n",
            place.socket(),
            dist().join("plugins/memory_profile.so"),
            place.dumps(),
            self.config
        );
        fs::write(&config, text).with_context(|| config.display().to_string())?;
        let program = dist().join("torture").join(self.program);
        let mut command = match self.wrapper.split_first() {
            Some((wrapper, args)) => {
                let mut command = Command::new(wrapper);
                command.args(args).arg(program);
                command
            }
            None => Command::new(program),
        };
        let mut child = command
            .arg(&config)
            .arg(place.counters())
            .args(&self.options)
            .envs(self.env.iter().copied())
            .env("MEMPROF_SOCKET_DIR", place.path().join("run"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("failed to start {command:?}"))?;
        let stderr = child.stderr.take().context("stderr is piped")?;
        let mut host = Host {
            child,
            log: Arc::default(),
            place: Some(place),
        };
        host.wait_until_ready(stderr)?;
        Ok(host)
    }
}

/// A running host.
#[derive(Debug)]
pub(super) struct Host {
    child: Child,
    log: Arc<Mutex<VecDeque<String>>>,
    /// Taken by [`Host::kill`].
    place: Option<HostDir>,
}

/// What a host counted; the same order as in `stress_host.c`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counters {
    pub(super) allocations: u64,
    pub(super) forks: u64,
    pub(super) slowest_fork: Duration,
    pub(super) messages: u64,
    pub(super) dumps: u64,
    pub(super) failures: u64,
    pub(super) alarms: u64,
    pub(super) reloads: u64,
}

impl Host {
    fn wait_until_ready(&mut self, stderr: ChildStderr) -> Result<()> {
        let mut lines = BufReader::new(stderr).lines();
        loop {
            let Some(line) = lines.next().transpose()? else {
                let status = self.child.wait()?;
                bail!(
                    "the host ended before it was ready: {status}; {}",
                    self.log()
                );
            };
            if line == "ready" {
                break;
            }
            remember(&self.log, line);
        }
        let log = Arc::clone(&self.log);
        thread::Builder::new().spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| remember(&log, line));
        })?;
        Ok(())
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn place(&self) -> &HostDir {
        self.place.as_ref().expect("only `kill` takes it")
    }

    /// The last lines of its log.
    pub(super) fn log(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<&str> = log.iter().map(String::as_str).collect();
        format!("its log ends with:\n{}", lines.join("\n"))
    }

    /// A connection on which an answer that does not come is an error.
    pub(super) fn client(&self) -> Result<Client> {
        connect(&self.place().socket())
    }

    pub(super) fn counters(&self) -> Result<Counters> {
        let bytes = fs::read(self.place().counters())?;
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")))
            .collect();
        let [
            allocations,
            forks,
            slowest_fork_us,
            messages,
            dumps,
            failures,
            alarms,
            reloads,
        ] = words[..]
        else {
            bail!("the host has {} counters, not 8", words.len());
        };
        Ok(Counters {
            allocations,
            forks,
            slowest_fork: Duration::from_micros(slowest_fork_us),
            messages,
            dumps,
            failures,
            alarms,
            reloads,
        })
    }

    /// The thread of that name.
    pub(super) fn thread(&self, name: &str) -> Result<u32> {
        for task in fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let task = task?.path();
            if fs::read_to_string(task.join("comm"))?.trim_end() == name {
                let id = task.file_name().and_then(|id| id.to_str());
                return Ok(id.context("a task is a number")?.parse()?);
            }
        }
        bail!("the host has no thread {name}")
    }

    /// The first number of that line of its `/proc/PID/status`.
    pub(super) fn status(&self, field: &str) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let number = status.lines().find_map(|line| line.strip_prefix(field));
        let number = number.and_then(|number| number.split_whitespace().next());
        Ok(number.with_context(|| field.to_owned())?.parse()?)
    }

    /// Its open descriptors.
    pub(super) fn descriptors(&self) -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.pid()))?.count())
    }

    /// Waits until at most `count` descriptors are open; false when that never comes.
    pub(super) fn falls_to(&self, count: usize) -> Result<bool> {
        let begun = Instant::now();
        while self.descriptors()? > count {
            if begun.elapsed() > PATIENCE {
                return Ok(false);
            }
            thread::yield_now();
        }
        Ok(true)
    }

    /// Fails when it has ended.
    pub(super) fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the host died: {status}; {}", self.log()),
        }
    }

    /// Sets a limit of the running process, in the words of prlimit(1).
    pub(super) fn limit(&self, what: &str) -> Result<()> {
        // Its own user may, root in a container may not.
        let owner = u32::try_from(self.status("Uid:")?)?;
        let pid = self.pid().to_string();
        let mut prlimit = Command::new("prlimit");
        prlimit.args(["--pid", &pid, what]);
        xtask::run::run(prlimit.uid(owner).gid(owner))
    }

    /// SIGKILL. Returns where it lived.
    pub(super) fn kill(mut self) -> Result<HostDir> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(self.place.take().expect("a host is killed once"))
    }

    /// Ends it as an operator would.
    pub(super) fn terminate(&mut self) -> Result<ExitStatus> {
        kill(Pid::from_raw(self.pid().cast_signed()), Signal::SIGTERM)?;
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(
                begun.elapsed() < PATIENCE,
                "the host does not end; {}",
                self.log()
            );
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        if let Err(error) = ended {
            eprintln!("failed to end the host: {error}");
        }
    }
}

fn remember(log: &Mutex<VecDeque<String>>, line: String) {
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    if log.len() == LOG_LINES {
        log.pop_front();
    }
    log.push_back(line);
}

pub(super) fn connect(socket: &Path) -> Result<Client> {
    let mut client = Client::connect(socket)?;
    client.set_timeout(PATIENCE);
    Ok(client)
}

/// Sends `dump` and returns the reply's body, which is a success or a named error.
pub(super) fn dump(client: &mut Client) -> Result<Value> {
    send(client, "dump", "")
}

/// Sends a message to the profiler and returns the reply's body.
pub(super) fn send(client: &mut Client, message: &str, args: &str) -> Result<Value> {
    let delivered = client.message("memory_profile", message, args, None)?;
    // A long body comes as a file.
    serde_json::from_slice(&delivered.into_bytes()?).with_context(|| message.to_owned())
}

/// The host refused for want of memory.
pub(super) fn is_out_of_memory(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ClientError::Refused { code, .. }) if *code == OUT_OF_MEMORY)
}

/// A host may end a silent connection when it needs the place.
pub(super) fn is_pushed_out(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.downcast_ref(), Some(ClientError::Unreachable(cause))
        if matches!(cause.kind(), BrokenPipe | ConnectionReset | UnexpectedEof))
}
