//! The host that most suites use: `stress_host.c`.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use memprof_host::client::{Client, ClientError};
use memprof_host::protocol::OUT_OF_MEMORY;
use memprof_host::protocol::TOO_MANY_CONNECTIONS;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::host_dir::HostDir;
use testkit::LineReader;
use testkit::processes::{descriptor_count, status_number, threads, wait_for_exit};
use xtask::dist::dist_dir;

pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Time that a host may take to serve. Long suites let it allocate from many stacks before.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Last lines of a host's log that an error shows.
const MAX_LOG_LINES: usize = 20;

/// Options for the start of a host.
#[derive(Debug)]
pub(super) struct HostSetup {
    /// `stress_host`, or `stress_host_static`, which has a second jemalloc beside the preloaded one.
    pub(super) program: &'static str,
    /// `OPTION=VALUE` of `stress_host.c`.
    pub(super) options: Vec<String>,
    /// A command that runs the host, for example `unshare --pid --fork`.
    pub(super) wrapper: Vec<String>,
    /// Additional lines of `[plugin.config]`.
    pub(super) config: &'static str,
    /// Environment variables: the allocator, and its options.
    pub(super) env: &'static [(&'static str, &'static str)],
}

/// Environment with a jemalloc that can profile.
const JEMALLOC: &[(&str, &str)] = &[
    ("LD_PRELOAD", "libjemalloc.so.2"),
    // The short sample interval gives the first dump hundreds of stacks.
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
    /// Returns the setup of a host with these options of `stress_host.c`, separated by blanks.
    pub(super) fn with_options(options: &str) -> Self {
        Self {
            options: options.split(' ').map(str::to_owned).collect(),
            ..Self::default()
        }
    }

    /// Starts the host in a new directory, and waits until it serves. Fails, with its log, if it exits before, or takes
    /// longer than [`START_TIMEOUT`].
    pub(super) fn start(self) -> Result<StressHost> {
        self.start_in(HostDir::new()?)
    }

    /// Starts the host in a directory that may be another host's, and waits until it serves. Fails, with its log, if it
    /// exits before, or takes longer than [`START_TIMEOUT`].
    pub(super) fn start_in(self, dir: HostDir) -> Result<StressHost> {
        let config = dir.path().join("host.toml");
        let text = format!(
            "[control]\nsocket = {:?}\n[[plugin]]\npath = {:?}\n[plugin.config]\ndump_dir = {:?}\n{}\n",
            dir.socket_path(),
            dist_dir().join("plugins/memory_profile.so"),
            dir.dump_dir(),
            self.config
        );
        fs::write(&config, text).with_context(|| config.display().to_string())?;
        let program = dist_dir().join("torture").join(self.program);
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
            .arg(dir.counters_file())
            .args(&self.options)
            .envs(self.env.iter().copied())
            .env("MEMPROF_SOCKET_DIR", dir.path().join("run"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("failed to start {command:?}"))?;
        let stderr = child.stderr.take().context("stderr is piped")?;
        let mut host = StressHost {
            child,
            log: Arc::default(),
            dir: Some(dir),
        };
        host.wait_until_ready(stderr)?;
        Ok(host)
    }
}

/// A running host; dropping it kills it.
#[derive(Debug)]
pub(super) struct StressHost {
    child: Child,
    log: Arc<Mutex<VecDeque<String>>>,
    /// `None` only after [`StressHost::kill`].
    dir: Option<HostDir>,
}

/// Counters of a host, in the order of `stress_host.c`.
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

impl StressHost {
    /// Waits until the host writes `ready` to its standard error. Collects the log lines before it, and the later ones
    /// on a thread. Fails if the host ends before it is ready, or after [`START_TIMEOUT`].
    fn wait_until_ready(&mut self, stderr: ChildStderr) -> Result<()> {
        let mut lines = LineReader::new(stderr);
        let ready = lines.find_line(START_TIMEOUT, |line| {
            if line != "ready" {
                push_log_line(&self.log, line.to_owned());
            }
            (line == "ready").then_some(())
        });
        match ready {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                let status = self.wait_for_exit()?;
                bail!(
                    "the host exited before it was ready: {status}; {}",
                    self.log()
                );
            }
            ready => ready.with_context(|| format!("the host is not ready; {}", self.log()))?,
        }
        let log = Arc::clone(&self.log);
        // A line that is no text must not end the thread: the host would block on a full pipe.
        let lines = lines.into_inner().split(b'\n').map_while(Result::ok);
        thread::Builder::new().spawn(move || {
            for line in lines {
                push_log_line(&log, String::from_utf8_lossy(&line).into_owned());
            }
        })?;
        Ok(())
    }

    /// Waits until the host exits. Fails after [`REPLY_TIMEOUT`].
    fn wait_for_exit(&mut self) -> Result<ExitStatus> {
        let ended = wait_for_exit(&mut self.child, REPLY_TIMEOUT)?;
        ended.with_context(|| format!("the host does not exit; {}", self.log()))
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn dir(&self) -> &HostDir {
        self.dir.as_ref().expect("only `kill` takes the directory")
    }

    /// Returns the last lines of the host's log, as the end of an error's text.
    pub(super) fn log(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<&str> = log.iter().map(String::as_str).collect();
        format!("its log ends with:\n{}", lines.join("\n"))
    }

    /// Connects to the host's control socket; a reply that takes longer than [`REPLY_TIMEOUT`] is an error.
    pub(super) fn client(&self) -> Result<Client> {
        connect(&self.dir().socket_path())
    }

    /// Reads the counters that the host writes to its file. Fails if the file has another number of them.
    pub(super) fn counters(&self) -> Result<Counters> {
        let bytes = fs::read(self.dir().counters_file())?;
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

    /// Id of the thread with this name. Fails if the host has none.
    pub(super) fn thread_id(&self, name: &str) -> Result<u32> {
        let mut threads = threads(self.pid())?.into_iter();
        let thread = threads.find(|(_, known)| known == name);
        let (task, _) = thread.with_context(|| format!("the host has no thread {name}"))?;
        let id = task.file_name().and_then(|id| id.to_str());
        Ok(id.context("a task is a number")?.parse()?)
    }

    /// First number in a line of the host's /proc/PID/status, in KiB for memory.
    pub(super) fn status_field(&self, field: &str) -> Result<u64> {
        status_number(self.pid(), field)
    }

    /// Returns the number of descriptors that the host has open.
    pub(super) fn descriptor_count(&self) -> Result<usize> {
        Ok(descriptor_count(self.pid())?)
    }

    /// Returns the files that the host has open.
    pub(super) fn open_files(&self) -> Result<Vec<PathBuf>> {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.pid()))?;
        // A descriptor may have been closed since.
        let files = descriptors
            .flatten()
            .flat_map(|entry| fs::read_link(entry.path()));
        Ok(files.collect())
    }

    /// Whether the host has the memfd of a dump open.
    pub(super) fn has_dump_in_memory(&self) -> Result<bool> {
        let files = self.open_files()?;
        let is_dump = |file: &PathBuf| file.to_string_lossy().starts_with("/memfd:memprof-dump");
        Ok(files.iter().any(is_dump))
    }

    /// Waits until at most `count` descriptors are open; returns false after [`REPLY_TIMEOUT`].
    pub(super) fn wait_for_descriptors(&self, count: usize) -> Result<bool> {
        let start = Instant::now();
        while self.descriptor_count()? > count {
            if start.elapsed() > REPLY_TIMEOUT {
                return Ok(false);
            }
            testkit::pause();
        }
        Ok(true)
    }

    /// Fails, with the end of the log, if the host has exited.
    pub(super) fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the host died: {status}; {}", self.log()),
        }
    }

    /// Sets a resource limit of the running host by an option of prlimit(1), such as `--nofile=10:1024`.
    pub(super) fn set_limit(&self, option: &str) -> Result<()> {
        // The host's own user may do this; root in a container may not.
        let owner = u32::try_from(self.status_field("Uid:")?)?;
        let pid = self.pid().to_string();
        let mut prlimit = Command::new("prlimit");
        prlimit.args(["--pid", &pid, option]);
        xtask::run::run(prlimit.uid(owner).gid(owner))
    }

    /// Kills the host with SIGKILL, and returns its directory. Fails if the host has exited before.
    pub(super) fn kill(mut self) -> Result<HostDir> {
        self.check_alive()?;
        self.child.kill()?;
        self.child.wait()?;
        Ok(self.dir.take().expect("a host is killed once"))
    }

    /// Sends SIGTERM, as an operator would, and waits for the exit. Fails after [`REPLY_TIMEOUT`].
    pub(super) fn terminate(&mut self) -> Result<ExitStatus> {
        kill(Pid::from_raw(self.pid().cast_signed()), Signal::SIGTERM)?;
        self.wait_for_exit().context("after SIGTERM")
    }
}

impl Drop for StressHost {
    fn drop(&mut self) {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        if let Err(error) = ended {
            eprintln!("failed to kill the host: {error}");
        }
    }
}

/// Appends a line, and removes the oldest one if there are [`MAX_LOG_LINES`].
fn push_log_line(log: &Mutex<VecDeque<String>>, line: String) {
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    if log.len() == MAX_LOG_LINES {
        log.pop_front();
    }
    log.push_back(line);
}

/// Connects to a control socket; a reply that takes longer than [`REPLY_TIMEOUT`] is an error.
pub(super) fn connect(socket: &Path) -> Result<Client> {
    let mut client = Client::connect(socket)?;
    client.set_timeout(REPLY_TIMEOUT);
    Ok(client)
}

/// Lets the host write a heap profile by the message `dump`, and returns the reply's body, which is a success or a
/// named error. Fails if there is no reply.
pub(super) fn dump(client: &mut Client) -> Result<Value> {
    send_message(client, "dump", "")
}

/// Sends a message to the profiler, and returns the body of its reply. Fails if there is no reply, or if it is an
/// error.
pub(super) fn send_successfully(client: &mut Client, message: &str, args: &str) -> Result<Value> {
    let reply = send_message(client, message, args)?;
    require_success(message, &reply)?;
    Ok(reply)
}

/// Fails, with the message and the reply to it, unless the reply says that it succeeded.
pub(super) fn require_success(message: &str, reply: &Value) -> Result<()> {
    ensure!(reply["status"] == "ok", "{message} failed: {reply}");
    Ok(())
}

/// Sends a message to the profiler, and returns the body of its reply, which may be an error: the caller must look at
/// it. Fails if there is no reply.
pub(super) fn send_message(client: &mut Client, message: &str, args: &str) -> Result<Value> {
    let reply = client.message("memory_profile", message, args, None)?;
    // A long body arrives as a file.
    serde_json::from_slice(&reply.into_bytes()?).with_context(|| message.to_owned())
}

/// Whether the host refused a request because it has no memory.
pub(super) fn is_out_of_memory(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ClientError::Refused { code, .. }) if *code == OUT_OF_MEMORY)
}

/// Whether other clients took the connection's slot: the host closed it, or refused it because all are in use.
pub(super) fn is_evicted(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match error.downcast_ref() {
        Some(ClientError::Unreachable(cause)) => {
            matches!(cause.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
        }
        Some(ClientError::Refused { code, .. }) => *code == TOO_MANY_CONNECTIONS,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::require_success;

    #[test]
    fn reply_without_success_fails() {
        let check = |reply, is_success| {
            let result = require_success("deactivate", &reply);
            assert_eq!(result.is_ok(), is_success, "{reply}");
        };
        check(json!({ "status": "ok", "profiling": "inactive" }), true);
        check(
            json!({ "status": "error", "error": { "kind": "io", "message": "no" } }),
            false,
        );
        check(json!({}), false);
    }
}
