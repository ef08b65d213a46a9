//! What the loaded plugin costs its host: memory, wakeups, and the way of a message.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use memprof_host::client::Client;
use memprof_host::{Config, HostProgram};

use xtask::dist::dist;
use xtask::run::root;

use crate::limits::Measurements;

const ROUND_TRIPS: u32 = 50_000;
const DISPATCHES: u32 = 500_000;
const IDLE: Duration = Duration::from_secs(10);

/// Measures.
pub(crate) fn measure(figures: &mut Measurements) -> Result<()> {
    dispatch(figures)?;
    resident(figures)?;
    let host = Host::start()?;
    round_trips(&host, figures)?;
    idle(&host, figures)
}

/// A log that counts its lines.
#[derive(Debug)]
struct Counter(AtomicU64);

static LINES: Counter = Counter(AtomicU64::new(0));

impl log::Log for Counter {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        black_box(record);
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn flush(&self) {}
}

fn program() -> HostProgram {
    HostProgram {
        name: "bench",
        version: "0",
        log: &LINES,
        jemalloc: None,
    }
}

fn load(plugin: &str, config: &str) -> Result<memprof_host::Instance> {
    let text = format!(
        "[[plugin]]\npath = {:?}\n[plugin.config]\n{config}",
        dist().join(plugin)
    );
    let config = Config::parse(&text).map_err(anyhow::Error::msg)?;
    memprof_host::load(&config.plugin[0], program()).context(plugin.to_owned())
}

/// From the host into the plugin, from there into the host's log, and back with a reply.
fn dispatch(figures: &mut Measurements) -> Result<()> {
    let plugin = load("plugins/hello_c.so", "")?;
    let over = fastest(|| drop(black_box(plugin.message("hello", ""))));
    let direct = fastest(|| drop(black_box(hello())));
    figures.record(
        "host -> plugin -> host log -> reply / the same in the host",
        over / direct,
        format_args!("{over:.0} ns and {direct:.0}"),
    )
}

/// What `hello_c` does: a line in the log, and a reply.
fn hello() -> (Cow<'static, str>, Vec<u8>) {
    let mut line = log::Record::builder();
    line.level(log::Level::Info).target("hello_c");
    log::Log::log(&LINES, &line.args(format_args!("greeting from C")).build());
    ("text/plain".into(), b"hello from C".to_vec())
}

/// Nanoseconds of a call: what else runs on the machine only adds.
fn fastest(call: impl Fn()) -> f64 {
    let rounds = (0..9).map(|_| {
        let begun = Instant::now();
        (0..DISPATCHES).for_each(|_| call());
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(DISPATCHES)
    });
    rounds.fold(f64::INFINITY, f64::min)
}

/// What the loaded plugin adds to the resident memory of a process.
fn resident(figures: &mut Measurements) -> Result<()> {
    let before = anonymous_kib()?;
    let place = root().join("target/bench");
    let plugin = load(
        "plugins/memory_profile.so",
        &format!("dump_dir = {place:?}"),
    )?;
    black_box(plugin.message("status", ""));
    figures.record(
        "private memory of the idle plugin",
        (anonymous_kib()? - before) as f64,
        format_args!(
            "loaded and asked for its status; {} KiB of its file's pages besides, which all processes share",
            file_kib("/memory_profile.so")?
        ),
    )
}

/// Anonymous resident memory of this process (`proc_pid_smaps(5)`).
fn anonymous_kib() -> Result<i64> {
    // Counted page by page; what /proc/self/status tells may be off by many.
    let rollup = fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"));
    let value = line.and_then(|line| line.split_whitespace().next());
    Ok(value.context("Anonymous is missing")?.parse()?)
}

/// Resident pages that a file's mappings share with its cache (`proc_pid_smaps(5)`).
fn file_kib(name: &str) -> Result<i64> {
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

/// One client, one request after the other, beside a bare ping-pong of as many bytes.
fn round_trips(host: &Host, figures: &mut Measurements) -> Result<()> {
    let mut client = Client::connect(&host.socket)?;
    let begun = Instant::now();
    for _ in 0..ROUND_TRIPS {
        client.message("hello_c", "hello", "", None)?;
    }
    let ours = f64::from(ROUND_TRIPS) / begun.elapsed().as_secs_f64();
    let bare = bare_round_trips()?;
    figures.record(
        "control round trips, one client",
        ours,
        format_args!(
            "bare socket ping-pong {bare:.0} /s, ratio {:.2}",
            ours / bare
        ),
    )
}

fn bare_round_trips() -> Result<f64> {
    let (mut here, mut there) = UnixStream::pair()?;
    let echo = thread::spawn(move || -> std::io::Result<()> {
        let mut bytes = [0; 128];
        while there.read_exact(&mut bytes).is_ok() {
            there.write_all(&bytes)?;
        }
        Ok(())
    });
    let begun = Instant::now();
    let mut bytes = [7; 128];
    for _ in 0..ROUND_TRIPS {
        here.write_all(&bytes)?;
        here.read_exact(&mut bytes)?;
    }
    let rate = f64::from(ROUND_TRIPS) / begun.elapsed().as_secs_f64();
    drop(here);
    match echo.join() {
        Ok(ended) => ended?,
        Err(_) => bail!("the echo panicked"),
    }
    Ok(rate)
}

/// How often memprof's own threads wake up while nobody talks to the host.
fn idle(host: &Host, figures: &mut Measurements) -> Result<()> {
    let before = wakeups(host.child.id())?;
    thread::sleep(IDLE);
    let after = wakeups(host.child.id())?;
    let woken: u64 = after
        .iter()
        .map(|(task, count)| count - before.get(task).unwrap_or(&0))
        .sum();
    figures.record(
        "wakeups of an idle plugin in 10 s",
        woken as f64,
        format_args!("of {} threads", after.len()),
    )
}

/// memprof's threads in a process, and their context switches so far.
fn wakeups(pid: u32) -> Result<BTreeMap<OsString, u64>> {
    let mut switches = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        // A connection's thread may just have ended.
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

/// A c_host with both plugins, ended when dropped.
struct Host {
    child: Child,
    socket: std::path::PathBuf,
}

impl Host {
    fn start() -> Result<Self> {
        let place = root().join("target/bench");
        fs::create_dir_all(&place)?;
        let config = place.join("host.toml");
        fs::write(&config, config_text(&place))?;
        let mut child = Command::new(dist().join("examples/c_host"))
            .arg("--config")
            .arg(&config)
            .env("LD_PRELOAD", "libjemalloc.so.2")
            .env("MALLOC_CONF", "prof:true,prof_active:false")
            .stderr(Stdio::piped())
            .spawn()
            .context("failed to start c_host")?;
        let mut log = BufReader::new(child.stderr.take().context("c_host has no stderr")?);
        let mut line = String::new();
        let socket = loop {
            line.clear();
            if log.read_line(&mut line)? == 0 {
                bail!("c_host ended");
            }
            if let Some((_, socket)) = line.trim_end().split_once("control socket ") {
                break socket.into();
            }
        };
        // The log goes on; nobody reads it, but its pipe must not fill up.
        thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Ok(Self { child, socket })
    }
}

fn config_text(place: &Path) -> String {
    format!(
        "[log]\nlevel = \"info\"\n[[plugin]]\npath = {:?}\n[plugin.config]\ndump_dir = {:?}\n\
         [[plugin]]\npath = {:?}\n",
        dist().join("plugins/memory_profile.so"),
        place.join("dumps"),
        dist().join("plugins/hello_c.so")
    )
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait().map(drop)) {
            eprintln!("failed to end c_host: {error}");
        }
    }
}
