//! Suite `attach`: repeated `memprof attach` and `detach` in programs that check themselves, and kills at random
//! moments.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use memprof_ptrace::maps::mappings;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::SuiteLength;
use super::host_dir::{HostDir, create_private_dir};
use xtask::dist::dist;

/// Timeout of a program's reply, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn run(length: SuiteLength) -> Result<String> {
    let (waits, weather) = (length.pick(5, 60), length.pick(5, 100));
    let mut stops = Vec::new();
    let seen = attach_unnoticed(waits, &mut stops)?;
    let storm = in_a_storm("weather", weather, &mut stops)?;
    let computing = length.pick(5, 200);
    let mut running = Vec::new();
    for kind in KINDS {
        computes(kind, computing, &mut running)?;
    }
    let (median_running, longest_running) = median_and_longest(&mut running);
    let kills = length.pick(10, 200);
    let tries = killed("weather", kills)?;
    let mut all_stopped = Vec::new();
    in_a_storm(LINKED, weather, &mut all_stopped)?;
    let linked_tries = killed(LINKED, kills)?;
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
        KINDS.len()
    ))
}

/// Kinds of computes.c.
const KINDS: [&str; 3] = ["one", "two", "allocates"];

/// weather.c with tcmalloc linked statically, whose functions memprof patches.
const LINKED: &str = "weather_linked";

fn median_and_longest(stops: &mut [f64]) -> (f64, f64) {
    stops.sort_by(f64::total_cmp);
    (stops[stops.len() / 2], stops[stops.len() - 1])
}

/// A program to attach to.
struct AttachTarget {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    dir: HostDir,
    is_linked: bool,
}

impl AttachTarget {
    fn start(name: &str, words: &[&str]) -> Result<Self> {
        let dir = HostDir::new()?;
        let sockets = dir.path().join("run");
        create_private_dir(&sockets)?;
        let mut child = Command::new(dist().join("torture").join(name))
            .args(words)
            .env("MEMPROF_SOCKET_DIR", &sockets)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| name.to_owned())?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Self {
            child,
            input,
            output,
            dir,
            is_linked: name == LINKED,
        })
    }

    fn memprof(&self, args: &[&str]) -> Command {
        let mut command = Command::new(dist().join("bin/memprof"));
        command
            .args(args)
            .env("MEMPROF_SOCKET_DIR", self.dir.path().join("run"));
        command
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Runs `memprof`, and returns its standard output; fails unless it succeeds.
    fn done(&self, args: &[&str]) -> Result<String> {
        let output = self.memprof(args).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "memprof {args:?}: {errors}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Attaches, and returns the milliseconds for which a thread was stopped, or all threads if functions of the
    /// program
    /// were patched.
    fn attach(&self) -> Result<f64> {
        let pid = self.pid();
        let dumps = format!("dump_dir={}", self.dir.dump_dir().display());
        let reply = self.done(&["attach", &pid, "--json", &dumps])?;
        let reply: Value = serde_json::from_str(&reply)?;
        let stopped = match self.is_linked {
            true => &reply["entries"]["stopped_ms"],
            false => &reply["stopped_ms"],
        };
        let stopped = stopped.as_f64();
        stopped.with_context(|| format!("no stopped_ms: {reply}"))
    }

    /// The program's code.
    fn code(&self) -> Result<Vec<u8>> {
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

    fn detach(&self) -> Result<()> {
        self.done(&["detach", &self.pid()]).map(drop)
    }

    /// Number of times that a value of the program had changed.
    fn ping(&mut self) -> Result<u64> {
        let start = Instant::now();
        self.input.write_all(b"ping\n").context("it is dead")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let answer = line.trim_end().strip_prefix("pong ");
        let bad = answer.with_context(|| format!("it answered {line:?}"))?;
        ensure!(start.elapsed() < PATIENCE, "it took {:?}", start.elapsed());
        Ok(bad.parse()?)
    }
}

impl Drop for AttachTarget {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the number of kinds of calls that were counted.
fn attach_unnoticed(times: u32, stops: &mut Vec<f64>) -> Result<usize> {
    let mut target = AttachTarget::start("waits", &[])?;
    let mut ready = String::new();
    target.output.read_line(&mut ready)?;
    for _ in 0..times {
        stops.push(target.attach()?);
        target.detach()?;
    }
    kill(
        Pid::from_raw(target.child.id().cast_signed()),
        Signal::SIGTERM,
    )?;
    let mut counts = String::new();
    target.output.read_to_string(&mut counts)?;
    for line in counts.lines() {
        let numbers: Vec<&str> = line.split(' ').skip(2).collect();
        ensure!(numbers == ["0"; 3], "EINTR, early returns, errors: {line}");
    }
    ensure!(counts.lines().count() == 17, "it told {counts:?}");
    Ok(counts.lines().count())
}

/// A program whose threads make no system call.
fn computes(kind: &str, times: u32, stops: &mut Vec<f64>) -> Result<()> {
    let mut target = AttachTarget::start("computes", &[kind])?;
    let mut ready = String::new();
    target.output.read_line(&mut ready)?;
    for time in 0..times {
        let attached = target.attach();
        stops.push(attached.with_context(|| format!("{kind}, time {time}"))?);
        target.detach()?;
    }
    kill(
        Pid::from_raw(target.child.id().cast_signed()),
        Signal::SIGTERM,
    )?;
    let mut told = String::new();
    target.output.read_to_string(&mut told)?;
    let told = told.trim_end().split_once(' ');
    let (rounds, wrong) = told.with_context(|| format!("{kind} is dead"))?;
    ensure!(
        wrong == "0" && rounds != "0",
        "{kind}: {wrong} wrong sums in {rounds} rounds"
    );
    Ok(())
}

fn in_a_storm(name: &str, times: u32, stops: &mut Vec<f64>) -> Result<String> {
    let mut target = AttachTarget::start(name, &[])?;
    target.ping()?;
    let code = target.code()?;
    let pid = target.pid();
    for time in 0..times {
        stops.push(target.attach().with_context(|| format!("time {time}"))?);
        target.done(&["activate", "-t", &pid, "sample_interval=4KiB"])?;
        let bad = target.ping()?;
        target.detach()?;
        ensure!(bad == 0 && target.ping()? == 0, "{bad} values changed");
        ensure!(
            target.code()? == code,
            "the code of {name} is not what it was, time {time}"
        );
    }
    let left = memprof_threads(&pid)?;
    ensure!(left.is_empty(), "threads of ours are left: {left:?}");
    Ok("0 deaths, 0 values changed".to_owned())
}

/// Kills `times` attachments before they are done. Returns the number that were started.
fn killed(name: &str, times: u32) -> Result<u32> {
    let mut target = AttachTarget::start(name, &[])?;
    // A process is there before its program is.
    target.ping()?;
    let code = target.code()?;
    let pid = target.pid();
    let start = Instant::now();
    target.attach()?;
    let usual = start.elapsed();
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
            .memprof(&["attach", &pid])
            .stdout(Stdio::null())
            .spawn()?;
        // Up to somewhat longer than it takes.
        let share = (random.hash_one(tries) % 120) as u32;
        thread::sleep(usual * share / 100);
        let was_at_it = attach.try_wait()?.is_none();
        attach.kill()?;
        attach.wait()?;
        killed += u32::from(was_at_it);
        let bad = target
            .ping()
            .with_context(|| format!("after kill {killed}"))?;
        ensure!(bad == 0, "{bad} values changed");
        detach_leftover(&target)?;
    }
    target.attach()?;
    target.detach()?;
    ensure!(
        target.code()? == code,
        "the code of {name} is not what it was after {tries} kills"
    );
    Ok(tries)
}

/// Detaches after a killed attachment, which may have loaded the plugin completely.
fn detach_leftover(target: &AttachTarget) -> Result<()> {
    let start = Instant::now();
    loop {
        let output = target.memprof(&["detach", &target.pid()]).output()?;
        match output.status.code() {
            Some(0 | 3) if memprof_threads(&target.pid())?.is_empty() => return Ok(()),
            _ if start.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(5)),
            _ => bail!("{}", String::from_utf8_lossy(&output.stderr)),
        }
    }
}

fn memprof_threads(pid: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // It may have ended meanwhile.
        let name = std::fs::read_to_string(task?.path().join("comm")).unwrap_or_default();
        if name.starts_with("memprof-") {
            names.push(name);
        }
    }
    Ok(names)
}
