//! Cost of the loaded plugin in its host: memory, wakeups, and the time of a message.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use memprof_host::client::Client;
use memprof_host::{Config, HostProgram};
use testkit::LineReader;

use xtask::dist::dist_dir;
use xtask::run::project_root;

use crate::limits::Measurements;

const ROUND_TRIPS: u32 = 50_000;
const DISPATCHES: u32 = 500_000;
/// Time that a host may take to open its socket.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which wakeups are counted.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// Records the cost of messages, the plugin's memory, and the wakeups of an idle host.
pub(crate) fn measure_plugin(measurements: &mut Measurements) -> Result<()> {
    measure_dispatch(measurements)?;
    measure_memory(measurements)?;
    let host = Host::start()?;
    measure_round_trips(&host, measurements)?;
    measure_wakeups(&host, measurements)
}

/// A host's log that counts its lines.
#[derive(Debug)]
struct LineCounter(AtomicU64);

static LINES: LineCounter = LineCounter(AtomicU64::new(0));

impl log::Log for LineCounter {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        black_box(record);
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn flush(&self) {}
}

/// This process as a host whose log writes nothing, and counts its lines in [`LINES`].
fn host_that_counts_log_lines() -> HostProgram {
    HostProgram {
        name: "bench",
        version: "0",
        log: &LINES,
        jemalloc: None,
    }
}

/// Loads a plugin into this process as its host. `plugin` is its path below `target/dist`, `config` the TOML of its
/// configuration.
pub(crate) fn load_plugin(plugin: &str, config: &str) -> Result<memprof_host::Instance> {
    let text = format!(
        "[[plugin]]\npath = {:?}\n[plugin.config]\n{config}",
        dist_dir().join(plugin)
    );
    let config = Config::parse(&text).map_err(anyhow::Error::msg)?;
    memprof_host::load(&config.plugin[0], host_that_counts_log_lines()).context(plugin.to_owned())
}

/// Records the time of a message from the host to a plugin that writes a line into the host's log and replies, as a
/// multiple of the time that the host takes for the line and the reply alone.
fn measure_dispatch(measurements: &mut Measurements) -> Result<()> {
    let plugin = load_plugin("plugins/hello_c.so", "")?;
    let status = plugin.message("hello", "").status_code;
    ensure!(status == 0, "hello_c does not reply: status {status}");
    let via_plugin = measure_fastest_nanoseconds(|| drop(black_box(plugin.message("hello", ""))));
    let direct = measure_fastest_nanoseconds(|| drop(black_box(log_and_reply())));
    measurements.record(
        "host -> plugin -> host log -> reply / the same in the host",
        via_plugin / direct,
        format_args!("{via_plugin:.0} ns and {direct:.0}"),
    )
}

/// Does the work of the plugin `hello_c`: a line in the log, and a reply.
fn log_and_reply() -> (Cow<'static, str>, Vec<u8>) {
    let mut line = log::Record::builder();
    line.level(log::Level::Info).target("hello_c");
    log::Log::log(&LINES, &line.args(format_args!("greeting from C")).build());
    ("text/plain".into(), b"hello from C".to_vec())
}

/// Calls a function [`DISPATCHES`] times in each of nine rounds. Returns the nanoseconds of a call in the fastest
/// round, because other load on the machine only adds time.
fn measure_fastest_nanoseconds(call: impl Fn()) -> f64 {
    let rounds = (0..9).map(|_| {
        let start = Instant::now();
        (0..DISPATCHES).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(DISPATCHES)
    });
    rounds.fold(f64::INFINITY, f64::min)
}

/// Loads the plugin into this process, and records by how much its anonymous resident memory has grown.
fn measure_memory(measurements: &mut Measurements) -> Result<()> {
    let before = anonymous_kib()?;
    let directory = project_root().join("target/bench");
    let plugin = load_plugin(
        "plugins/memory_profile.so",
        &format!("dump_dir = {directory:?}"),
    )?;
    let status = plugin.message("status", "").status_code;
    ensure!(
        status == 0,
        "memory_profile does not reply: status {status}"
    );
    measurements.record(
        "private memory of the idle plugin",
        (anonymous_kib()? - before) as f64,
        format_args!(
            "loaded, after one status; and {} KiB of its file's pages, which all processes share",
            shared_file_kib("/memory_profile.so")?
        ),
    )
}

/// Anonymous resident memory of this process, in KiB (`proc_pid_smaps(5)`).
fn anonymous_kib() -> Result<i64> {
    // This file is exact; /proc/self/status may be off by many pages (proc_pid_status(5)).
    let rollup = fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"));
    let value = line.and_then(|line| line.split_whitespace().next());
    Ok(value.context("Anonymous is missing")?.parse()?)
}

/// Resident memory in KiB of this process's mappings of files whose paths end with `name` (`proc_pid_smaps(5)`),
/// without the pages that it has changed: processes share only unchanged pages.
fn shared_file_kib(name: &str) -> Result<i64> {
    let smaps = fs::read_to_string("/proc/self/smaps")?;
    let mut inside = false;
    let mut total = 0;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("Rss:"), Some(kib)) if inside => total += kib.parse::<i64>()?,
            (Some("Anonymous:"), Some(kib)) if inside => total -= kib.parse::<i64>()?,
            (Some(range), _) if range.contains('-') => inside = line.ends_with(name),
            _ => {}
        }
    }
    Ok(total)
}

/// Records how many messages a second one client exchanges with a host, and prints the ratio to messages of 128 bytes
/// over a bare socket.
fn measure_round_trips(host: &Host, measurements: &mut Measurements) -> Result<()> {
    let mut client = Client::connect(&host.socket)?;
    let start = Instant::now();
    for _ in 0..ROUND_TRIPS {
        let reply = client.message("hello_c", "hello", "", None)?;
        ensure!(reply.result.status_code == 0, "{:?}", reply.result);
    }
    let rate = f64::from(ROUND_TRIPS) / start.elapsed().as_secs_f64();
    let bare = measure_bare_round_trips()?;
    measurements.record(
        "control round trips, one client",
        rate,
        format_args!(
            "bare socket ping-pong {bare:.0} /s, ratio {:.2}",
            rate / bare
        ),
    )
}

/// Returns the round trips per second of 128 bytes over a socket pair, to a thread that sends them back.
fn measure_bare_round_trips() -> Result<f64> {
    let (mut near, mut far) = UnixStream::pair()?;
    let echo = thread::spawn(move || -> std::io::Result<()> {
        let mut bytes = [0; 128];
        while far.read_exact(&mut bytes).is_ok() {
            far.write_all(&bytes)?;
        }
        Ok(())
    });
    let start = Instant::now();
    let mut bytes = [7; 128];
    for _ in 0..ROUND_TRIPS {
        near.write_all(&bytes)?;
        near.read_exact(&mut bytes)?;
    }
    let rate = f64::from(ROUND_TRIPS) / start.elapsed().as_secs_f64();
    drop(near);
    match echo.join() {
        Ok(ended) => ended?,
        Err(_) => bail!("the echo panicked"),
    }
    Ok(rate)
}

/// Records how often memprof's threads wake up in [`IDLE_TIME`], in a host without clients.
fn measure_wakeups(host: &Host, measurements: &mut Measurements) -> Result<()> {
    let before = context_switches(host.child.id())?;
    thread::sleep(IDLE_TIME);
    let after = context_switches(host.child.id())?;
    let wakeup_count: u64 = after
        .iter()
        .map(|(task, count)| count - before.get(task).unwrap_or(&0))
        .sum();
    measurements.record(
        "wakeups of an idle plugin in 10 s",
        wakeup_count as f64,
        format_args!("of {} threads", after.len()),
    )
}

/// Context switches so far of memprof's threads in a process, by thread id.
fn context_switches(pid: u32) -> Result<BTreeMap<OsString, u64>> {
    let mut switches = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        // The thread of a closed connection may have exited since.
        let Ok(status) = fs::read_to_string(task.path().join("status")) else {
            continue;
        };
        if !status.starts_with("Name:\tmemprof-") {
            continue;
        }
        let counts = status
            .lines()
            .filter(|line| line.contains("ctxt_switches:"));
        let counts = counts.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok());
        switches.insert(task.file_name(), counts.sum());
    }
    Ok(switches)
}

/// A process of the example `c_host` with both plugins; dropping it kills it.
pub(crate) struct Host {
    child: Child,
    pub(crate) socket: PathBuf,
}

impl Host {
    /// Starts a host in C with two plugins beside jemalloc, and waits until it has opened its socket.
    pub(crate) fn start() -> Result<Self> {
        let directory = project_root().join("target/bench");
        fs::create_dir_all(&directory)?;
        let config = directory.join("host.toml");
        fs::write(&config, config_text(&directory))?;
        let mut child = Command::new(dist_dir().join("examples/c_host"))
            .arg("--config")
            .arg(&config)
            .env("LD_PRELOAD", "libjemalloc.so.2")
            .env("MALLOC_CONF", "prof:true,prof_active:false")
            .stderr(Stdio::piped())
            .spawn()
            .context("failed to start c_host")?;
        let mut log = LineReader::new(child.stderr.take().context("c_host has no stderr")?);
        // From here on, the process is killed on an error.
        let mut host = Self {
            child,
            socket: PathBuf::new(),
        };
        let socket = log.find_line(START_TIMEOUT, |line| {
            let (_, socket) = line.trim_end().split_once("control socket ")?;
            Some(socket.into())
        });
        host.socket = socket.context("c_host has opened no socket")?;
        // The log must be read, or the host would block on a full pipe.
        thread::spawn(move || std::io::copy(&mut log.into_inner(), &mut std::io::sink()));
        Ok(host)
    }
}

/// Config of a host with `memory_profile.so` and `hello_c.so`.
pub(crate) fn config_text(directory: &Path) -> String {
    format!(
        "[log]\nlevel = \"info\"\n[[plugin]]\npath = {:?}\n[plugin.config]\ndump_dir = {:?}\n\
         [[plugin]]\npath = {:?}\n",
        dist_dir().join("plugins/memory_profile.so"),
        directory.join("dumps"),
        dist_dir().join("plugins/hello_c.so")
    )
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait().map(drop)) {
            eprintln!("failed to kill c_host: {error}");
        }
    }
}
