//! Latency of a message: over the control socket, as a command of Redis, and as a call of hosts in Rust, C, Python,
//! Ruby and Node, beside Redis' own PING in the same run.

use std::fs;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use memprof_host::client::Client;
use tempfile::TempDir;
use testkit::LineReader;
use xtask::dist::{compile, dist_dir, host_library_path, host_link_args};
use xtask::run::output;

use crate::limits::Measurements;
use crate::plugin::{Host, config_text, load_plugin};

/// Rounds, in each of which every path has its messages, so that load on the machine meets all.
const ROUNDS: usize = 20;
const MESSAGES_PER_ROUND: usize = 500;

/// Time that Redis may take to start, and to reply.
const REDIS_TIMEOUT: Duration = Duration::from_secs(60);

/// Path of a message, and the function that sends one and waits for its reply.
type MessagePath<'a> = (&'static str, Box<dyn FnMut() -> Result<()> + 'a>);

/// Interpreters with the plugin in their process: the path's name, the program, and a script whose arguments are the
/// plugin's file and the number of messages, and which prints the nanoseconds of each.
const INTERPRETERS: &[(&str, &str, &str)] = &[
    (
        "call in Python, memory_profile status",
        "python3",
        "import sys; from time import perf_counter_ns as now
sys.path.insert(0, sys.argv[1].rpartition('/')[0])
import memory_profile
for _ in range(int(sys.argv[2])):
    start = now(); memory_profile.send('status'); print(now() - start)",
    ),
    (
        "call in Ruby, memory_profile status",
        "ruby",
        "require ARGV[0]
now = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) }
ARGV[1].to_i.times { start = now.(); MemoryProfile.send_message('status'); puts now.() - start }",
    ),
    (
        "call in Node, memory_profile status",
        "node",
        "const [path, count] = process.argv.slice(1), plugin = { exports: {} }, taken = [];
process.dlopen(plugin, path);
for (let left = Number(count); left > 0; left--) {
    const start = process.hrtime.bigint(); plugin.exports.send('status'); taken.push(process.hrtime.bigint() - start);
}
console.log(taken.join('\\n'));",
    ),
];

/// Records the time of a message over each path, relative to a PING of Redis.
pub(crate) fn measure_latencies(measurements: &mut Measurements) -> Result<()> {
    let redis = Redis::start()?;
    let host = Host::start()?;
    let directory = tempfile::tempdir()?;
    let profiler = load_plugin(
        "plugins/memory_profile.so",
        &format!("dump_dir = {:?}", directory.path()),
    )?;
    let hello = load_plugin("plugins/hello_c.so", "")?;
    let mut paths: Vec<MessagePath<'_>> = Vec::new();
    for (name, command) in [
        ("Redis PING", "PING"),
        ("Redis HELLO_RUST hello", "HELLO_RUST hello"),
        ("Redis MEMORY_PROFILE status", "MEMORY_PROFILE status"),
    ] {
        let mut client = redis.connect()?;
        paths.push((name, Box::new(move || client.send_command(command))));
    }
    for (name, plugin, message) in [
        ("control socket, hello_c hello", "hello_c", "hello"),
        (
            "control socket, memory_profile status",
            "memory_profile",
            "status",
        ),
    ] {
        let mut client = Client::connect(&host.socket)?;
        paths.push((
            name,
            Box::new(move || {
                let reply = client.message(plugin, message, "", None)?;
                ensure!(reply.result.status_code == 0, "{message} is refused");
                Ok(())
            }),
        ));
    }
    for (name, plugin, message) in [
        ("call in Rust, hello_c hello", &hello, "hello"),
        ("call in Rust, memory_profile status", &profiler, "status"),
    ] {
        paths.push((
            name,
            Box::new(move || {
                let reply = black_box(plugin.message(message, ""));
                ensure!(reply.status_code == 0, "{message} is refused");
                Ok(())
            }),
        ));
    }
    let mut measured = measure_paths(&mut paths)?;
    let config = directory.path().join("host.toml");
    fs::write(&config, config_text(directory.path()))?;
    for (name, plugin, message) in [
        ("call in C, hello_c hello", "hello_c", "hello"),
        (
            "call in C, memory_profile status",
            "memory_profile",
            "status",
        ),
    ] {
        measured.push((name, measure_calls_in_c(&config, plugin, message)?));
    }
    for (name, program, script) in INTERPRETERS {
        measured.push((
            name,
            measure_calls_in_interpreter(program, script, directory.path())?,
        ));
    }
    record_latencies(&measured, measurements)
}

/// Prints each path beside the first one, PING, and records those with a limit.
fn record_latencies(
    measured: &[(&'static str, Latency)],
    measurements: &mut Measurements,
) -> Result<()> {
    let ping = measured.first().context("no path was measured")?.1;
    for (name, latency) in measured {
        println!(
            "{name}: {:.1} us, 99 % {:.1} us; {:.2} and {:.2} of PING",
            latency.median / 1e3,
            latency.p99 / 1e3,
            latency.median / ping.median,
            latency.p99 / ping.p99
        );
    }
    let ratio = |path: &str| -> Result<f64> {
        let found = measured.iter().find(|(name, _)| *name == path);
        Ok(found.context(path.to_owned())?.1.median / ping.median)
    };
    let socket = ratio("control socket, hello_c hello")?;
    measurements.record("a message over the control socket / Redis PING", socket, "")?;
    let command = ratio("Redis HELLO_RUST hello")?;
    measurements.record("a message as a command of Redis / Redis PING", command, "")?;
    let call = ratio("call in C, hello_c hello")?;
    measurements.record("a message by a call in C / Redis PING", call, "")
}

/// Nanoseconds of a path's messages.
#[derive(Clone, Copy, Debug)]
struct Latency {
    median: f64,
    /// Time within which 99 of 100 messages have their reply.
    p99: f64,
}

impl Latency {
    /// Finds the median and the 99th percentile. Fails if there are fewer than 100 messages.
    fn new(mut nanoseconds: Vec<f64>) -> Result<Self> {
        ensure!(nanoseconds.len() >= 100, "too few messages");
        nanoseconds.sort_by(f64::total_cmp);
        Ok(Self {
            median: nanoseconds[nanoseconds.len() / 2],
            p99: nanoseconds[nanoseconds.len() * 99 / 100],
        })
    }
}

/// Sends messages over all paths, and returns the latency of each. The paths take turns in [`ROUNDS`] rounds, so that
/// other load on the machine slows all of them.
fn measure_paths(paths: &mut [MessagePath<'_>]) -> Result<Vec<(&'static str, Latency)>> {
    let mut taken = vec![Vec::new(); paths.len()];
    for _ in 0..ROUNDS {
        for ((name, send), taken) in paths.iter_mut().zip(&mut taken) {
            for _ in 0..MESSAGES_PER_ROUND {
                let start = Instant::now();
                send().with_context(|| (*name).to_owned())?;
                taken.push(start.elapsed().as_nanos() as f64);
            }
        }
    }
    let paths = paths.iter().zip(taken);
    paths
        .map(|((name, _), taken)| Ok((*name, Latency::new(taken)?)))
        .collect()
}

/// Compiles a host in C, and measures its calls of a plugin in a process of its own.
fn measure_calls_in_c(config: &Path, plugin: &str, message: &str) -> Result<Latency> {
    let library = host_library_path()?;
    compile(
        "cc",
        "dev/bench/src/latency.c",
        "bench/latency",
        &host_link_args(&library),
    )?;
    let mut program = Command::new(dist_dir().join("bench/latency"));
    program.arg(config).args([plugin, message]);
    run_for_latency(&mut program)
}

/// Measures calls of the plugin by a script, in an interpreter that loads the plugin. Dumps are in `directory`.
fn measure_calls_in_interpreter(
    interpreter: &str,
    script: &str,
    directory: &Path,
) -> Result<Latency> {
    let mut program = Command::new(interpreter);
    let option = if interpreter == "python3" { "-c" } else { "-e" };
    program
        .args([option, script])
        .arg(dist_dir().join("plugins/memory_profile.so"))
        .env("MEMPROF_DUMP_DIR", directory);
    run_for_latency(&mut program)
}

/// Runs a program with the number of messages as its last argument. Returns the latency by the nanoseconds that it
/// prints for each message, one a line.
fn run_for_latency(program: &mut Command) -> Result<Latency> {
    let count = ROUNDS * MESSAGES_PER_ROUND;
    let taken = output(program.arg(count.to_string()))?;
    let taken = taken.lines().map(str::parse);
    Latency::new(taken.collect::<Result<Vec<f64>, _>>()?)
}

/// A Redis with two of the plugins; dropping it kills it.
struct Redis {
    child: Child,
    directory: TempDir,
}

impl Redis {
    /// Starts redis-server with two plugins as modules, and waits until it accepts connections.
    fn start() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--unixsocket"]);
        command.arg(directory.path().join("socket"));
        for plugin in ["hello_rust.so", "memory_profile.so"] {
            command
                .arg("--loadmodule")
                .arg(dist_dir().join("plugins").join(plugin));
        }
        command.env("XDG_STATE_HOME", directory.path());
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .context("redis-server")?;
        let mut log = LineReader::new(child.stdout.take().context("redis-server has no stdout")?);
        // From here on, the process is killed on an error.
        let redis = Self { child, directory };
        // Older versions of Redis log this with a small letter.
        log.find_line(REDIS_TIMEOUT, |line| {
            line.contains("eady to accept connections").then_some(())
        })
        .context("redis-server is not ready")?;
        // Redis logs each message, and would block on a full pipe.
        thread::spawn(move || std::io::copy(&mut log.into_inner(), &mut std::io::sink()));
        Ok(redis)
    }

    /// Connects to the server's Unix socket.
    fn connect(&self) -> Result<RedisClient> {
        let stream = UnixStream::connect(self.directory.path().join("socket"))?;
        stream.set_read_timeout(Some(REDIS_TIMEOUT))?;
        Ok(RedisClient(BufReader::new(stream)))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait().map(drop)) {
            eprintln!("failed to kill redis-server: {error}");
        }
    }
}

/// Connection to Redis, for inline commands (its protocol, RESP2).
struct RedisClient(BufReader<UnixStream>);

impl RedisClient {
    /// Sends a command and reads its whole reply. Fails if Redis replies with an error, or if the connection ends.
    fn send_command(&mut self, command: &str) -> Result<()> {
        self.0
            .get_mut()
            .write_all(format!("{command}\r\n").as_bytes())?;
        self.read_reply().with_context(|| command.to_owned())
    }

    /// Reads a reply: a line, a bulk string with its length, or an array with the number of its replies. Fails if it is
    /// an error.
    fn read_reply(&mut self) -> Result<()> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        match line.trim_end().split_at_checked(1) {
            Some(("+" | ":", _)) => Ok(()),
            Some(("$", length)) => {
                // The string ends with CR and LF.
                let length = length.parse::<u64>()? + 2;
                let read = std::io::copy(&mut (&mut self.0).take(length), &mut std::io::sink())?;
                ensure!(read == length, "the reply is cut");
                Ok(())
            }
            Some(("*", count)) => (0..count.parse()?).try_for_each(|_: u64| self.read_reply()),
            _ => bail!("{line:?}"),
        }
    }
}
