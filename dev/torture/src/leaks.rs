//! Suite `leaks`: repeated `memprof leaks --prove` on a program with known leaks, on servers under load, which have
//! none, and with kills at random moments.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::{LineReader, SERVERS, Server, limit_time, planted};

use super::SuiteLength;
use super::host::REPLY_TIMEOUT;
use super::servers::install;
use xtask::dist::dist_dir;
use xtask::packages;

mod interpreters;

use interpreters::INTERPRETERS;

/// Library that is preloaded, by its name in Debian's package.
const JEMALLOC_LIBRARY: &str = "libjemalloc.so.2";
/// Minimum share of the planted objects that must be found, in thousandths.
const MIN_FOUND_PER_1000: u64 = 999;
/// Time limit of a proof.
const PROOF_TIMEOUT: Duration = Duration::from_secs(300);
/// Servers without leaks, and without a memory pool that hides objects. V8 keeps node's heap in memory that a forked
/// copy does not get, so only the objects outside that heap are checked.
const LEAK_FREE_SERVERS: [&str; 5] = ["redis", "memcached", "nginx worker", "mariadb", "node"];

/// Runs the suite `leaks`, and returns its figures in one line. Fails if too few planted leaks are found, if something
/// else is reported as a leak, or if a program does not answer afterwards.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let (rounds, times, kills) = (length.pick(1, 50), length.pick(1, 50), length.pick(6, 100));
    let mut stops = Vec::new();
    let (mut found, mut planted) = (0, 0);
    for (preload, expected) in [
        ("", planted::IN_GLIBC),
        (JEMALLOC_LIBRARY, planted::IN_JEMALLOC),
    ] {
        for _ in 0..rounds {
            let mut target = PlantedProgram::start(preload)?;
            found += count_found_planted(&prove_leaks(target.pid(), &mut stops)?, expected)?;
            planted += expected.iter().map(|(_, count)| count).sum::<u64>();
            target.ping()?;
        }
    }
    ensure!(
        found * 1000 >= planted * MIN_FOUND_PER_1000,
        "{found} of {planted} planted objects were found"
    );
    let servers = LEAK_FREE_SERVERS.map(|name| SERVERS.iter().find(|server| server.name == name));
    let servers: Vec<&Server> = servers.into_iter().flatten().collect();
    ensure!(
        servers.len() == LEAK_FREE_SERVERS.len(),
        "one of {LEAK_FREE_SERVERS:?} is no server"
    );
    install(&servers)?;
    packages::ensure_installed(&INTERPRETERS.map(|interpreter| interpreter.package))?;
    for server in servers {
        let mut running = server.start()?;
        let pid = running.pid()?;
        running.run_load()?;
        check_no_leaks(pid, times, &mut stops, || running.query().map(drop))
            .context(server.name)?;
    }
    for interpreter in INTERPRETERS {
        let mut running = interpreter.start().context(interpreter.name)?;
        check_no_leaks(running.pid(), times, &mut stops, || running.run_round())
            .context(interpreter.name)?;
    }
    let late = kill_while_proving(kills)?;
    stops.sort_by(f64::total_cmp);
    let (median, longest) = (stops[stops.len() / 2], stops[stops.len() - 1]);
    Ok(format!(
        "{found} of {planted} planted objects in {} runs, 0 others; 0 leaked in {}, {} {times} times each; \
         killed {} of {kills} times at work: alive each time; stopped {median:.1} ms (median), {longest:.1} ms (longest)",
        2 * rounds,
        LEAK_FREE_SERVERS.join(", "),
        INTERPRETERS.map(|interpreter| interpreter.name).join(", "),
        kills - late,
    ))
}

/// Process of `planted.c` with leaks, killed when dropped.
pub(super) struct PlantedProgram {
    child: Child,
    input: ChildStdin,
    output: LineReader<ChildStdout>,
}

impl PlantedProgram {
    /// Starts the program, and waits until it is ready. `preload` is a library, or empty for none.
    pub(super) fn start(preload: &str) -> Result<Self> {
        let mut command = Command::new(dist_dir().join("torture/planted"));
        command.arg("leaks").env("LD_PRELOAD", preload);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut target = Self {
            input: child.stdin.take().context("no input")?,
            output: LineReader::new(child.stdout.take().context("no output")?),
            child,
        };
        let line = target.output.read_line(REPLY_TIMEOUT)?;
        ensure!(line.starts_with("ready "), "it said {line:?}");
        Ok(target)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a ping to the program. Fails unless it answers within [`REPLY_TIMEOUT`].
    pub(super) fn ping(&mut self) -> Result<()> {
        self.input.write_all(b"ping\n").context("it is dead")?;
        let line = self.output.read_line(REPLY_TIMEOUT)?;
        ensure!(line == "ping\n", "it answered {line:?}");
        Ok(())
    }
}

impl Drop for PlantedProgram {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Command `memprof leaks --prove` for a process, with its result as JSON.
fn leaks_command(pid: u32) -> Command {
    let mut command = Command::new(dist_dir().join("bin/memprof"));
    // Stopping all threads takes long on a busy machine, so the default of --max-pause is too short.
    command.args([
        "leaks",
        "--prove",
        &pid.to_string(),
        "--json",
        "--max-pause",
        "10s",
    ]);
    command
}

/// Runs `memprof leaks --prove` on a process. Returns its result, and adds the milliseconds of each stop to `stops`.
/// Fails unless the command succeeds within [`PROOF_TIMEOUT`].
fn prove_leaks(pid: u32, stops: &mut Vec<f64>) -> Result<Value> {
    let output = limit_time(&leaks_command(pid), PROOF_TIMEOUT).output()?;
    let (status, errors) = (output.status, String::from_utf8_lossy(&output.stderr));
    ensure!(status.success(), "{status}: {errors}");
    let reply: Value = serde_json::from_slice(&output.stdout)?;
    let stopped = reply["stopped_ms"].as_array().context("no stopped_ms")?;
    stops.extend(stopped.iter().filter_map(Value::as_f64));
    Ok(reply)
}

/// Counts the planted objects in a reply of `memprof leaks`. `planted` has the size and the number of each kind. Fails
/// if the reply has other objects, or more of a size than were planted.
fn count_found_planted(reply: &Value, planted: &[(u64, u64)]) -> Result<u64> {
    let mut found: BTreeMap<u64, u64> = BTreeMap::new();
    for group in reply["leaked"]["by"].as_array().context("no groups")? {
        let number = |name: &str| group[name].as_u64().context("no number");
        let size = number("size")?;
        // glibc does not split off a remainder smaller than a block, so a block may be 16 bytes larger.
        let mut sizes = planted.iter().map(|(size, _)| *size);
        let planted = sizes.find(|planted| [*planted, *planted + 16].contains(&size));
        *found.entry(planted.unwrap_or(size)).or_default() += number("objects")?;
    }
    let planted: BTreeMap<_, _> = planted.iter().copied().collect();
    for (size, objects) in &found {
        let expected = planted.get(size).copied().unwrap_or(0);
        ensure!(
            *objects <= expected,
            "{objects} objects of {size} bytes, {expected} planted"
        );
    }
    Ok(found.into_values().sum())
}

/// Runs `memprof leaks --prove` `times` times on a process. Meanwhile calls `work` repeatedly, which gives the process
/// something to do. Adds the milliseconds of each stop to `stops`. Fails if a leak is reported, or if `work` fails.
fn check_no_leaks(
    pid: u32,
    times: usize,
    stops: &mut Vec<f64>,
    mut work: impl FnMut() -> Result<()>,
) -> Result<()> {
    for _ in 0..times {
        let reply = thread::scope(|scope| {
            let proof = scope.spawn(|| prove_leaks(pid, stops));
            while !proof.is_finished() {
                work()?;
            }
            proof.join().expect("no proof panics")
        })?;
        let leaked = &reply["leaked"];
        ensure!(leaked["objects"] == 0, "{leaked}");
    }
    Ok(())
}

/// Starts `memprof leaks --prove` `kills` times, and kills it at a random moment of its work. Returns how often it had
/// ended before the kill. Fails if the program does not answer after a kill, or if a last proof finds other objects
/// than the planted ones.
fn kill_while_proving(kills: usize) -> Result<usize> {
    let mut target = PlantedProgram::start("")?;
    let start = Instant::now();
    prove_leaks(target.pid(), &mut Vec::new())?;
    let proof_time = start.elapsed();
    let mut late = 0;
    for _ in 0..kills {
        let mut tool = leaks_command(target.pid());
        let mut tool = tool.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        // Each `RandomState` has new random keys, so the hash of 0 is a random number.
        let delay = proof_time.mul_f64(RandomState::new().hash_one(0) as f64 / u64::MAX as f64);
        let start = Instant::now();
        while start.elapsed() < delay && tool.try_wait()?.is_none() {
            thread::sleep(Duration::from_micros(100));
        }
        late += usize::from(tool.try_wait()?.is_some());
        // `memprof` may have ended.
        let _ = tool.kill();
        tool.wait()?;
        target.ping()?;
    }
    let reply = prove_leaks(target.pid(), &mut Vec::new())?;
    count_found_planted(&reply, planted::IN_GLIBC).context("after the last kill")?;
    Ok(late)
}
