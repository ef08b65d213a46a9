//! A host process of `target/dist/examples`, ended when dropped.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use memprof_host::client::Client;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use testkit::processes;

use crate::dist::dist;
use crate::memprof::{Run, memprof};

/// Longer than anything here takes on a busy machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Options to start a host with.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    /// The program: its name in `target/dist/examples`, or its path.
    pub(crate) program: PathBuf,
    /// Its environment.
    pub(crate) env: Vec<(&'a str, String)>,
    /// Lines of `[plugin.config]`, besides `dump_dir`.
    pub(crate) config: String,
    /// More of the host's config, after the memory_profile plugin.
    pub(crate) more: String,
    /// Shell commands to run before it, in mounts of its own; `$DUMPS` is the dump directory.
    pub(crate) mounts: String,
    /// Directory of its control socket, if not its own directory.
    pub(crate) sockets: Option<PathBuf>,
}

/// Samples often, so that a dump has something in it at once.
const CONF: &str = "prof:true,prof_active:false,lg_prof_sample:12";

impl<'a> Setup<'a> {
    /// A host of that name, with profiling possible.
    pub(crate) fn of(program: &'a str) -> Self {
        let preload = |env: &mut Vec<_>| env.push(("LD_PRELOAD", "libjemalloc.so.2".to_owned()));
        let mut env = Vec::new();
        match program {
            "rust_host" | "rust_http" => env.push(("_RJEM_MALLOC_CONF", CONF.to_owned())),
            "c_host_static" => env.push(("MALLOC_CONF", CONF.to_owned())),
            _ => {
                env.push(("MALLOC_CONF", CONF.to_owned()));
                preload(&mut env);
            }
        }
        Self {
            program: program.into(),
            env,
            config: String::new(),
            more: String::new(),
            mounts: String::new(),
            sockets: None,
        }
    }

    /// Like [`of`](Self::of), without any environment for an allocator.
    pub(crate) fn without_profiling(program: &'a str) -> Self {
        Self {
            env: Vec::new(),
            ..Self::of(program)
        }
    }

    /// Like [`without_profiling`](Self::without_profiling), without memprof's sampler in the allocator's place.
    pub(crate) fn that_cannot_profile(program: &'a str) -> Self {
        Self::without_profiling(program).config("sampler = \"allocator\"")
    }

    pub(crate) fn env(mut self, name: &'a str, value: &str) -> Self {
        self.env.retain(|(known, _)| *known != name);
        self.env.push((name, value.to_owned()));
        self
    }

    pub(crate) fn config(mut self, lines: &str) -> Self {
        self.config = lines.to_owned();
        self
    }

    pub(crate) fn more(mut self, lines: &str) -> Self {
        self.more = lines.to_owned();
        self
    }

    pub(crate) fn mounts(mut self, script: &str) -> Self {
        self.mounts = script.to_owned();
        self
    }

    pub(crate) fn sockets(mut self, directory: &Path) -> Self {
        self.sockets = Some(directory.to_owned());
        self
    }

    pub(crate) fn program_at(mut self, path: &Path) -> Self {
        self.program = path.to_owned();
        self
    }

    /// Starts it and waits until its control socket is open.
    pub(crate) fn start(self) -> Host {
        let place = tempfile::tempdir().unwrap();
        let config = place.path().join("host.toml");
        let own_dir = self.config.contains("dump_dir");
        let dumps = if own_dir {
            String::new()
        } else {
            format!("dump_dir = {:?}", place.path().join("dumps"))
        };
        let text = format!(
            "[log]\nlevel = \"debug\"\n[[plugin]]\npath = {:?}\n[plugin.config]\n{dumps}\n{}\n{}\n",
            dist("plugins/memory_profile.so"),
            self.config,
            self.more
        );
        std::fs::write(&config, text).unwrap();
        // A path that is absolute replaces what it is joined to.
        let program = dist("examples").join(self.program);
        let mut command = if self.mounts.is_empty() {
            Command::new(program)
        } else {
            in_own_mounts(&self.mounts, &program, &place.path().join("dumps"))
        };
        command.arg("--config").arg(&config).envs(self.env);
        let sockets = self.sockets.unwrap_or_else(|| place.path().join("run"));
        let host = Host::spawn_in(command, place, sockets);
        host.wait_for_log("control socket ");
        host
    }
}

/// Runs `script`, then `program` in its place, where what the script mounts is not seen outside.
fn in_own_mounts(script: &str, program: &Path, dumps: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args([
        "sh",
        "-ec",
        &format!("mkdir -m 700 $DUMPS; {script}; exec \"$0\" \"$@\""),
    ]);
    command.arg(program).env("DUMPS", dumps);
    command
}

#[derive(Debug)]
pub(crate) struct Host {
    child: Child,
    place: TempDir,
    sockets: PathBuf,
    log: Arc<(Mutex<Vec<String>>, Condvar)>,
}

impl Host {
    /// Starts an unmodified program under `memprof run` with these arguments, and waits until its control socket
    /// is open. What it reads is [typed](Self::type_line).
    pub(crate) fn run(program: &Path, args: &[&str], place: TempDir) -> Self {
        let mut command = Command::new(dist("bin/memprof"));
        command.arg("run").args(args).arg("--").arg(program);
        command.env("MEMPROF_LOG", "info").stdin(Stdio::piped());
        let host = Self::spawn(command, place);
        host.wait_for_log("control socket ");
        host
    }

    /// Starts a program whose socket and state go to `place`.
    pub(crate) fn spawn(command: Command, place: TempDir) -> Self {
        let sockets = place.path().join("run");
        Self::spawn_in(command, place, sockets)
    }

    /// Like [`spawn`](Self::spawn), with its socket in a shared directory.
    pub(crate) fn spawn_in(mut command: Command, place: TempDir, sockets: PathBuf) -> Self {
        command
            .env("MEMPROF_SOCKET_DIR", &sockets)
            .env("XDG_STATE_HOME", place.path().join("state"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let log: Arc<(Mutex<Vec<String>>, Condvar)> = Arc::default();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        thread::spawn({
            let log = Arc::clone(&log);
            move || {
                for line in stderr.lines().map_while(Result::ok) {
                    log.0.lock().unwrap().push(line);
                    log.1.notify_all();
                }
            }
        });
        Self {
            child,
            place,
            sockets,
            log,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the host, and returns its directory.
    pub(crate) fn into_place(mut self) -> TempDir {
        let elsewhere = tempfile::tempdir().unwrap();
        std::mem::replace(&mut self.place, elsewhere)
    }

    pub(crate) fn place(&self) -> &Path {
        self.place.path()
    }

    pub(crate) fn dump_dir(&self) -> PathBuf {
        self.place.path().join("dumps")
    }

    pub(crate) fn socket_dir(&self) -> PathBuf {
        self.sockets.clone()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.socket_dir().join(format!("{}.sock", self.pid()))
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.log.0.lock().unwrap().clone()
    }

    /// Waits until a line holds `text`, and returns it.
    pub(crate) fn wait_for_log(&self, text: &str) -> String {
        self.wait_for_any(&[text])
    }

    /// Waits until a line holds one of `texts`, and returns it.
    pub(crate) fn wait_for_any(&self, texts: &[&str]) -> String {
        let has = |line: &&String| texts.iter().any(|text| line.contains(text));
        let (lines, _) = self
            .log
            .1
            .wait_timeout_while(self.log.0.lock().unwrap(), TEST_TIMEOUT, |lines| {
                !lines.iter().any(|line| has(&line))
            })
            .unwrap();
        let found = lines.iter().find(has).cloned();
        found.unwrap_or_else(|| panic!("the log has no line with {texts:?}:\n{}", lines.join("\n")))
    }

    /// Waits until `count` lines hold `text`, and returns them.
    pub(crate) fn wait_for_lines(&self, text: &str, count: usize) -> Vec<String> {
        let those = |lines: &[String]| -> Vec<String> {
            let those = lines.iter().filter(|line| line.contains(text));
            those.cloned().collect()
        };
        let (lines, _) = self
            .log
            .1
            .wait_timeout_while(self.log.0.lock().unwrap(), TEST_TIMEOUT, |lines| {
                those(lines).len() < count
            })
            .unwrap();
        let found = those(&lines);
        assert!(
            found.len() >= count,
            "not {count} lines with {text:?}: {lines:#?}"
        );
        found
    }

    /// Runs `memprof COMMAND -t PID ARGS`.
    pub(crate) fn memprof(&self, command: &str, args: &[&str]) -> Run {
        let pid = self.pid().to_string();
        let args = [&[command, "-t", &pid], args].concat();
        memprof(&self.socket_dir(), &args)
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.socket()).unwrap()
    }

    /// Dumps until at least `bytes` are in use, and returns the reply.
    pub(crate) fn dump_of(&self, bytes: u64) -> Value {
        let begun = Instant::now();
        loop {
            let reply = self.memprof("dump", &["--json"]).json();
            let is_busy = reply["error"]["kind"] == "busy";
            assert!(is_busy || reply["status"] == "ok", "{reply}");
            if reply["estimated_inuse_bytes"]
                .as_u64()
                .is_some_and(|inuse| inuse >= bytes)
            {
                return reply;
            }
            assert!(
                begun.elapsed() < TEST_TIMEOUT,
                "the profile stays small: {reply}"
            );
            testkit::pause();
        }
    }

    pub(crate) fn threads(&self) -> Vec<String> {
        let threads = processes::threads(self.pid()).unwrap().into_iter();
        threads.map(|(_, name)| name).collect()
    }

    /// Waits for a thread of that name, which it takes itself once it runs.
    pub(crate) fn wait_for_thread(&self, name: &str) {
        let begun = Instant::now();
        while !self.threads().iter().any(|thread| thread == name) {
            let (threads, log) = (self.threads(), self.log());
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
            assert!(
                begun.elapsed() < TEST_TIMEOUT,
                "{threads:?} {stat:?} {log:#?}"
            );
            testkit::pause();
        }
    }

    pub(crate) fn descriptors(&self) -> usize {
        processes::descriptor_count(self.pid()).unwrap()
    }

    /// Waits until at most `count` descriptors are open.
    pub(crate) fn wait_for_descriptors(&self, count: usize) {
        let begun = Instant::now();
        while self.descriptors() > count {
            assert!(
                begun.elapsed() < TEST_TIMEOUT,
                "{} descriptors, not {count}",
                self.descriptors()
            );
            testkit::pause();
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().cast_signed()), signal).unwrap();
    }

    /// Writes a line to its standard input, which must be a pipe. One write, because a program may take each read(2)
    /// for a line.
    pub(crate) fn type_line(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Ends it by SIGTERM, as an operator would.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.child.wait().unwrap()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.is_alive() {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}
