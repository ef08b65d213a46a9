//! Latency of a message: over the control socket, as a command of Redis, and as a call of hosts in Rust and C, beside
//! Redis' own PING in the same run.

use std::fs;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;
use tempfile::TempDir;
use xtask::dist::{compile, dist, host_library, host_link_args};
use xtask::run::output;

use crate::limits::Measurements;
use crate::plugin::{Host, config_text, load_plugin};

/// Rounds. Each sends messages by every way, so that other load on the machine slows all of them.
const ROUNDS: usize = 20;
const MESSAGES_PER_ROUND: usize = 500;
/// Timeout for Redis to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Name of a way, and the function that sends a message by it and waits for the reply.
type Way<'a> = (&'static str, Box<dyn FnMut() -> Result<()> + 'a>);

pub(crate) fn measure(measurements: &mut Measurements) -> Result<()> {
    let redis = Redis::start()?;
    let host = Host::start()?;
    let directory = tempfile::tempdir()?;
    let profiler = load_plugin(
        "plugins/memory_profile.so",
        &format!("dump_dir = {:?}", directory.path()),
    )?;
    let hello = load_plugin("plugins/hello_c.so", "")?;
    let mut ways: Vec<Way<'_>> = Vec::new();
    for (name, command) in [
        ("Redis PING", "PING"),
        ("Redis HELLO_RUST hello", "HELLO_RUST hello"),
        ("Redis MEMORY_PROFILE status", "MEMORY_PROFILE status"),
    ] {
        let mut client = redis.connect()?;
        ways.push((name, Box::new(move || client.command(command))));
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
        ways.push((
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
        ways.push((
            name,
            Box::new(move || {
                black_box(plugin.message(message, ""));
                Ok(())
            }),
        ));
    }
    let mut measured = measure_ways(&mut ways)?;
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
        measured.push((name, calls_in_c(&config, plugin, message)?));
    }
    report(&measured, measurements)
}

/// Prints the latency of each way beside that of the first one, PING, and records the ratios that have a limit.
fn report(measured: &[(&'static str, Latency)], measurements: &mut Measurements) -> Result<()> {
    let ping = measured.first().context("no way was measured")?.1;
    for (name, latency) in measured {
        println!(
            "{name}: {:.1} us, 99 % {:.1} us; {:.2} and {:.2} of PING",
            latency.median / 1e3,
            latency.most / 1e3,
            latency.median / ping.median,
            latency.most / ping.most
        );
    }
    let ratio = |way: &str| -> Result<f64> {
        let found = measured.iter().find(|(name, _)| *name == way);
        Ok(found.context(way.to_owned())?.1.median / ping.median)
    };
    let socket = ratio("control socket, hello_c hello")?;
    measurements.record("a message over the control socket / Redis PING", socket, "")?;
    let command = ratio("Redis HELLO_RUST hello")?;
    measurements.record("a message as a command of Redis / Redis PING", command, "")?;
    let call = ratio("call in C, hello_c hello")?;
    measurements.record("a message by a call in C / Redis PING", call, "")
}

/// Nanoseconds of a way's messages.
#[derive(Clone, Copy, Debug)]
struct Latency {
    median: f64,
    /// 99 of 100 messages take no longer.
    most: f64,
}

impl Latency {
    fn new(mut nanoseconds: Vec<f64>) -> Result<Self> {
        ensure!(nanoseconds.len() >= 100, "too few messages");
        nanoseconds.sort_by(f64::total_cmp);
        Ok(Self {
            median: nanoseconds[nanoseconds.len() / 2],
            most: nanoseconds[nanoseconds.len() * 99 / 100],
        })
    }
}

fn measure_ways(ways: &mut [Way<'_>]) -> Result<Vec<(&'static str, Latency)>> {
    let mut taken = vec![Vec::new(); ways.len()];
    for _ in 0..ROUNDS {
        for ((name, send), taken) in ways.iter_mut().zip(&mut taken) {
            for _ in 0..MESSAGES_PER_ROUND {
                let start = Instant::now();
                send().with_context(|| (*name).to_owned())?;
                taken.push(start.elapsed().as_nanos() as f64);
            }
        }
    }
    let ways = ways.iter().zip(taken);
    ways.map(|((name, _), taken)| Ok((*name, Latency::new(taken)?)))
        .collect()
}

/// Measures calls by a host in C, in a process of its own.
fn calls_in_c(config: &Path, plugin: &str, message: &str) -> Result<Latency> {
    let library = host_library()?;
    compile(
        "cc",
        "dev/bench/src/latency.c",
        "bench/latency",
        &host_link_args(&library),
    )?;
    let mut program = Command::new(dist().join("bench/latency"));
    let count = ROUNDS * MESSAGES_PER_ROUND;
    let taken = output(
        program
            .arg(config)
            .args([plugin, message, &count.to_string()]),
    )?;
    let taken = taken.lines().map(str::parse);
    Latency::new(taken.collect::<Result<Vec<f64>, _>>()?)
}

/// A Redis with two of the plugins; dropping it kills it.
struct Redis {
    child: Child,
    directory: TempDir,
}

impl Redis {
    fn start() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--unixsocket"]);
        command.arg(directory.path().join("socket"));
        for plugin in ["hello_rust.so", "memory_profile.so"] {
            command
                .arg("--loadmodule")
                .arg(dist().join("plugins").join(plugin));
        }
        command.env("XDG_STATE_HOME", directory.path());
        let child = command
            .stdout(Stdio::null())
            .spawn()
            .context("redis-server")?;
        Ok(Self { child, directory })
    }

    /// Connects as soon as the server listens.
    fn connect(&self) -> Result<RedisClient> {
        let start = Instant::now();
        loop {
            match UnixStream::connect(self.directory.path().join("socket")) {
                Ok(stream) => return Ok(RedisClient(BufReader::new(stream))),
                Err(error) if start.elapsed() > START_TIMEOUT => {
                    return Err(error).context("Redis does not listen");
                }
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
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
    /// Sends a command and reads its whole reply, which is a line or a bulk string.
    fn command(&mut self, command: &str) -> Result<()> {
        self.0
            .get_mut()
            .write_all(format!("{command}\r\n").as_bytes())?;
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        ensure!(!line.starts_with('-'), "{command}: {line}");
        if let Some(length) = line.strip_prefix('$') {
            let length: u64 = length.trim().parse()?;
            let read = std::io::copy(&mut (&mut self.0).take(length + 2), &mut std::io::sink())?;
            ensure!(read == length + 2, "{command}: the reply is cut");
        }
        Ok(())
    }
}
