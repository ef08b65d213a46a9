//! Suite `attach`: repeated `memprof attach` and `detach` in programs that check themselves, and kills at random
//! moments.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use memprof_ptrace::maps::mappings;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testkit::processes::plugin_threads;
use testkit::{LineReader, limit_time};

use super::SuiteLength;
use super::host::REPLY_TIMEOUT;
use super::host_dir::{HostDir, create_private_dir};
use xtask::dist::dist_dir;

/// Time limit of each command of `memprof`.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs the suite `attach`, and returns its figures in one line. Fails if a program notices an attachment: a call of it
/// fails or returns early, a value or its code changes, or it dies.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let (waits, weather) = (length.pick(5, 60), length.pick(5, 100));
    let mut stops = Vec::new();
    let seen = attach_while_waiting(waits, &mut stops)?;
    let storm = attach_under_load("weather", weather, &mut stops)?;
    let computing = length.pick(5, 200);
    let mut running = Vec::new();
    for kind in COMPUTE_KINDS {
        attach_while_computing(kind, computing, &mut running)?;
    }
    let (median_running, longest_running) = median_and_longest(&mut running);
    let kills = length.pick(10, 200);
    let tries = kill_while_attaching("weather", kills)?;
    let mut all_stopped = Vec::new();
    attach_under_load(LINKED_PROGRAM, weather, &mut all_stopped)?;
    let linked_tries = kill_while_attaching(LINKED_PROGRAM, kills)?;
    let (median, longest) = median_and_longest(&mut stops);
    let (all_median, all_longest) = median_and_longest(&mut all_stopped);
    Ok(format!(
        "{waits} times in {seen} calls that wait: 0 EINTR, 0 early; {weather} times in a storm: {storm}; \
         {computing} times in each of {} programs that only compute: 0 deaths, 0 wrong sums, stopped {median_running:.1} \
         ms (median), {longest_running:.1} ms (longest); \
         {kills} of {tries} killed: alive each time, the next one works; stopped {median:.1} ms \
         (median), {longest:.1} ms (longest); with an allocator that is linked in {weather} times and {kills} of \
         {linked_tries} killed: alive, 0 values changed, its code as before; all stopped {all_median:.1} ms (median), \
         {all_longest:.1} ms (longest)",
        COMPUTE_KINDS.len()
    ))
}

/// Arguments of `computes.c`, one for each kind of computation.
const COMPUTE_KINDS: [&str; 3] = ["one", "two", "allocates"];

/// Program of `weather.c` with tcmalloc linked statically, whose functions memprof patches.
const LINKED_PROGRAM: &str = "weather_linked";

/// Returns the median and the maximum of the stop times, and sorts them. There must be at least one.
fn median_and_longest(stops: &mut [f64]) -> (f64, f64) {
    stops.sort_by(f64::total_cmp);
    (stops[stops.len() / 2], stops[stops.len() - 1])
}

/// Running program to attach to, killed when dropped.
struct AttachTarget {
    child: Child,
    input: ChildStdin,
    output: LineReader<ChildStdout>,
    dir: HostDir,
    is_linked: bool,
}

impl AttachTarget {
    /// Starts a program of `target/dist/torture` with pipes for its input and output. Once memprof is attached, the
    /// program's control socket is in a new directory.
    fn start(name: &str, args: &[&str]) -> Result<Self> {
        let dir = HostDir::new()?;
        let sockets = dir.path().join("run");
        create_private_dir(&sockets)?;
        let mut child = Command::new(dist_dir().join("torture").join(name))
            .args(args)
            .env("MEMPROF_SOCKET_DIR", &sockets)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| name.to_owned())?;
        let input = child.stdin.take().context("no input")?;
        let output = LineReader::new(child.stdout.take().context("no output")?);
        Ok(Self {
            child,
            input,
            output,
            dir,
            is_linked: name == LINKED_PROGRAM,
        })
    }

    /// Command `memprof` with these arguments, which finds the program's control socket.
    fn memprof_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(dist_dir().join("bin/memprof"));
        command
            .args(args)
            .env("MEMPROF_SOCKET_DIR", self.dir.path().join("run"));
        command
    }

    /// Process id of the program, as an argument of `memprof`.
    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Runs `memprof`, and returns its standard output; fails unless it succeeds within [`COMMAND_TIMEOUT`].
    fn run_memprof(&self, args: &[&str]) -> Result<String> {
        let output = limit_time(&self.memprof_command(args), COMMAND_TIMEOUT).output()?;
        let (status, errors) = (output.status, String::from_utf8_lossy(&output.stderr));
        ensure!(status.success(), "memprof {args:?}: {status}: {errors}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Attaches memprof, and returns for how many milliseconds it stopped a thread; for [`LINKED_PROGRAM`], in which it
    /// patches functions, for how many it stopped all threads.
    fn attach(&self) -> Result<f64> {
        let pid = self.pid();
        let dumps = format!("dump_dir={}", self.dir.dump_dir().display());
        let reply = self.run_memprof(&["attach", &pid, "--json", &dumps])?;
        let reply: Value = serde_json::from_str(&reply)?;
        let stopped = match self.is_linked {
            true => &reply["entries"]["stopped_ms"],
            false => &reply["stopped_ms"],
        };
        let stopped = stopped.as_f64();
        stopped.with_context(|| format!("no stopped_ms: {reply}"))
    }

    /// Reads the machine code of the program from its memory: the executable mappings of its own file, without
    /// libraries. Fails if the program has ended.
    fn read_code(&self) -> Result<Vec<u8>> {
        let pid = self.pid();
        let program = std::fs::read_link(format!("/proc/{pid}/exe"))?;
        let maps = std::fs::read(format!("/proc/{pid}/maps"))?;
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let own = program.as_os_str().as_encoded_bytes();
        let mut code = Vec::new();
        for mapping in mappings(&maps).filter(|each| each.path == own && each.is_executable()) {
            let mut bytes = vec![0; (mapping.range.end - mapping.range.start) as usize];
            memory.read_exact_at(&mut bytes, mapping.range.start)?;
            code.extend(bytes);
        }
        Ok(code)
    }

    /// Detaches by `memprof detach`; fails unless that succeeds.
    fn detach(&self) -> Result<()> {
        self.run_memprof(&["detach", &self.pid()]).map(drop)
    }

    /// Sends a ping, and returns how often the program has found one of its values changed. Fails if the program has
    /// ended, or does not reply within [`REPLY_TIMEOUT`].
    fn ping(&mut self) -> Result<u64> {
        self.input.write_all(b"ping\n").context("it is dead")?;
        let line = self.output.read_line(REPLY_TIMEOUT)?;
        let answer = line.trim_end().strip_prefix("pong ");
        let bad = answer.with_context(|| format!("it answered {line:?}"))?;
        Ok(bad.parse()?)
    }

    /// Waits until the program prints `ready`. Fails after [`REPLY_TIMEOUT`].
    fn wait_until_ready(&mut self) -> Result<()> {
        let line = self.output.read_line(REPLY_TIMEOUT)?;
        ensure!(line == "ready\n", "it printed {line:?}, not ready");
        Ok(())
    }

    /// Ends the program by SIGTERM, and returns the rest of its output. Fails if the program goes on for longer than
    /// [`REPLY_TIMEOUT`].
    fn terminate(&mut self) -> Result<String> {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, Signal::SIGTERM)?;
        Ok(self.output.read_to_end(REPLY_TIMEOUT)?)
    }
}

impl Drop for AttachTarget {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Attaches to `waits.c`, whose threads wait in system calls, and detaches, `times` times. Adds the milliseconds of
/// each stop to `stops`. Returns the number of kinds of calls. Fails if one of these calls failed or returned early.
fn attach_while_waiting(times: u32, stops: &mut Vec<f64>) -> Result<usize> {
    let mut target = AttachTarget::start("waits", &[])?;
    target.wait_until_ready()?;
    for _ in 0..times {
        stops.push(target.attach()?);
        target.detach()?;
    }
    let counts = target.terminate()?;
    // A line has the kind of call, the number of calls, and how many ended with EINTR, early, or with another error.
    for line in counts.lines() {
        let numbers: Vec<&str> = line.split(' ').skip(2).collect();
        ensure!(numbers == ["0"; 3], "EINTR, early returns, errors: {line}");
    }
    // waits.c prints a line for each of its 17 kinds of calls.
    ensure!(counts.lines().count() == 17, "it told {counts:?}");
    Ok(counts.lines().count())
}

/// Attaches to `computes.c`, whose threads make no system call, and detaches, `times` times. `kind` selects what it
/// computes. Adds the milliseconds of each stop to `stops`. Fails if the program ended, computed nothing, or computed a
/// wrong sum.
fn attach_while_computing(kind: &str, times: u32, stops: &mut Vec<f64>) -> Result<()> {
    let mut target = AttachTarget::start("computes", &[kind])?;
    target.wait_until_ready()?;
    for time in 0..times {
        let attached = target.attach();
        stops.push(attached.with_context(|| format!("{kind}, time {time}"))?);
        target.detach()?;
    }
    let counts = target.terminate()?;
    let counts = counts.trim_end().split_once(' ');
    let (rounds, wrong) = counts.with_context(|| format!("{kind} is dead"))?;
    ensure!(
        wrong == "0" && rounds != "0",
        "{kind}: {wrong} wrong sums in {rounds} rounds"
    );
    Ok(())
}

/// Attaches to the program `name`, samples it and detaches, `times` times, while it forks, loads libraries and handles
/// signals. Adds the milliseconds of each stop to `stops`. Returns a summary.
///
/// # Errors
/// A value that the program checks or its code changed, or a thread of memprof remains.
fn attach_under_load(name: &str, times: u32, stops: &mut Vec<f64>) -> Result<String> {
    let mut target = AttachTarget::start(name, &[])?;
    target.ping()?;
    let code = target.read_code()?;
    let pid = target.pid();
    for time in 0..times {
        stops.push(target.attach().with_context(|| format!("time {time}"))?);
        target.run_memprof(&["activate", "-t", &pid, "sample_interval=4KiB"])?;
        let bad = target.ping()?;
        target.detach()?;
        ensure!(bad == 0 && target.ping()? == 0, "{bad} values changed");
        ensure!(
            target.read_code()? == code,
            "the code of {name} is not what it was, time {time}"
        );
    }
    let threads = plugin_threads(pid.parse()?)?;
    ensure!(
        threads.is_empty(),
        "threads of memprof are left: {threads:?}"
    );
    Ok("0 deaths, 0 values changed".to_owned())
}

/// Kills `memprof attach` at random moments until `times` of these commands were killed before their end. Returns the
/// number of commands started. Fails if a value or the code of the program changed, if the attachment after a kill
/// fails, or if nine of ten commands end before they are killed.
fn kill_while_attaching(name: &str, times: u32) -> Result<u32> {
    let mut target = AttachTarget::start(name, &[])?;
    // The reply shows that execve(2) is over and the program runs.
    target.ping()?;
    let code = target.read_code()?;
    let pid = target.pid();
    let start = Instant::now();
    target.attach()?;
    let attach_time = start.elapsed();
    target.detach()?;
    let random = RandomState::new();
    let (mut killed, mut tries) = (0, 0);
    while killed < times {
        tries += 1;
        ensure!(
            tries < 10 * times,
            "{killed} of {tries} were killed in time"
        );
        let mut attach = target
            .memprof_command(&["attach", &pid])
            .stdout(Stdio::null())
            .spawn()?;
        // The delay is random, up to 120 % of the time of an attachment.
        let share = (random.hash_one(tries) % 120) as u32;
        thread::sleep(attach_time * share / 100);
        let was_attaching = attach.try_wait()?.is_none();
        attach.kill()?;
        attach.wait()?;
        killed += u32::from(was_attaching);
        let bad = target
            .ping()
            .with_context(|| format!("after kill {killed}"))?;
        ensure!(bad == 0, "{bad} values changed");
        // The thread that the killed command created in the program may still start the plugin.
        let attached = target.run_memprof(&["attach", &pid]);
        attached.with_context(|| format!("after kill {killed}"))?;
        detach_leftover(&target)?;
    }
    ensure!(
        target.read_code()? == code,
        "the code of {name} is not what it was after {tries} kills"
    );
    Ok(tries)
}

/// Detaches the plugin that a killed attachment may have left in the program. Runs `memprof detach` again until no
/// thread of memprof is left; fails after [`REPLY_TIMEOUT`].
fn detach_leftover(target: &AttachTarget) -> Result<()> {
    let start = Instant::now();
    loop {
        let detach = target.memprof_command(&["detach", &target.pid()]);
        let output = limit_time(&detach, COMMAND_TIMEOUT).output()?;
        match output.status.code() {
            // 3 means that there was no plugin to detach.
            Some(0 | 3) if plugin_threads(target.pid().parse()?)?.is_empty() => return Ok(()),
            _ if start.elapsed() < REPLY_TIMEOUT => thread::sleep(Duration::from_millis(5)),
            _ => bail!("memprof detach leaves threads, or fails: {output:?}"),
        }
    }
}
