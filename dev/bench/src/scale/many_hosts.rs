//! Commands that query many hosts, and one host with many clients.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;
use testkit::LineReader;
use xtask::dist::dist_dir;

use super::Growth;
use super::host::{
    Host, connect, measure_median_milliseconds, plugin_path, preload_command, socket_dir,
};
use crate::limits::Measurements;

/// Client threads. Each of them repeatedly connects, sends a message and disconnects.
const CLIENTS: usize = 64;
/// Time for which the clients reconnect.
const RECONNECT_TIME: Duration = Duration::from_secs(10);

/// Time that `memprof serve` may take for its address or for a list of a thousand hosts, and a host to end the threads
/// of clients that have gone.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for which the host's own leak is measured.
const LEAK_TIME: Duration = Duration::from_secs(10);

/// Records how the times of commands that query all hosts, and of one that queries a single host, grow with the number
/// of hosts: 1, 100 and 1000.
pub(super) fn time_queries(dir: &Path, measurements: &mut Measurements) -> Result<()> {
    let (mut ps, mut one, mut listed) = (Growth::default(), Growth::default(), Growth::default());
    let sleep = || {
        let mut command = preload_command(dir, Path::new("sleep"));
        Host::start(command.arg("infinity"), dir)
    };
    let mut hosts = Vec::new();
    for count in [1, 100, 1000] {
        while hosts.len() < count {
            hosts.push(sleep()?);
        }
        for host in &hosts {
            // A host that still searches for its allocators replies later than `ps` waits on a busy machine.
            let mut client = host.client(dir)?;
            let reply = client.message("memory_profile", "status", "", None)?;
            ensure!(reply.result.status_code == 0, "{:?}", reply.result);
        }
        let memprof = |args: &[&str]| -> Result<String> {
            let mut command = Command::new(dist_dir().join("bin/memprof"));
            let output = command
                .args(args)
                .env("MEMPROF_SOCKET_DIR", socket_dir(dir));
            let output = output.output()?;
            ensure!(output.status.success(), "memprof {args:?}: {output:?}");
            Ok(String::from_utf8(output.stdout)?)
        };
        let found = memprof(&["ps"])?.lines().count();
        ensure!(found >= count, "memprof ps shows {found} lines");
        ps.add(
            count,
            measure_median_milliseconds(|| memprof(&["ps"]).map(drop))?,
        );
        let pid = hosts[0].0.id().to_string();
        one.add(
            count,
            measure_median_milliseconds(|| memprof(&["status", "-t", &pid]).map(drop))?,
        );
        listed.add(count, time_http_list(dir, count)?);
    }
    ps.record_exponent("exponent of memprof ps, by hosts", measurements)?;
    one.record_exponent("exponent of memprof status PID, by hosts", measurements)?;
    listed.record_exponent("exponent of /api/v1/hosts, by hosts", measurements)
}

/// Starts `memprof serve`, and returns the median milliseconds of a request for the list of all hosts. Fails if the
/// list has fewer than `count` hosts.
fn time_http_list(dir: &Path, count: usize) -> Result<f64> {
    let http = dir.join("scale.sock");
    let mut serve = Command::new(dist_dir().join("bin/memprof"));
    serve.arg("serve").arg("--socket").arg(&http);
    serve.env("MEMPROF_SOCKET_DIR", socket_dir(dir));
    let mut server = Host::start(serve.stderr(Stdio::piped()), dir)?;
    let stderr = server.0.stderr.take().context("it has no stderr")?;
    let line = LineReader::new(stderr).read_line(REPLY_TIMEOUT)?;
    ensure!(line.contains("serving "), "{line}");
    measure_median_milliseconds(|| {
        let mut stream = UnixStream::connect(&http)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.write_all(
            b"GET /api/v1/hosts HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        )?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        let found = reply.matches("\"command\"").count();
        ensure!(found >= count, "{found} hosts: {reply}");
        Ok(())
    })
}

/// Records by how much a host's memory has grown after [`CLIENTS`] clients have come and gone for [`RECONNECT_TIME`].
/// Its growth in the time before, from a leak of its own, is extrapolated and left out.
pub(super) fn measure_memory_after_reconnects(
    dir: &Path,
    measurements: &mut Measurements,
) -> Result<()> {
    let (config, socket) = (dir.join("host.toml"), dir.join("host.sock"));
    let text = format!(
        "[control]\nsocket = {socket:?}\n[[plugin]]\npath = {:?}\n[plugin.config]\ndump_dir = {:?}\n",
        plugin_path(),
        dir.join("dumps")
    );
    fs::write(&config, text)?;
    let mut command = Command::new(dist_dir().join("examples/rust_host"));
    command.arg("--config").arg(&config).stderr(Stdio::null());
    let host = Host(command.spawn()?);
    connect(&socket)?;
    let (start, before, threads) = (
        Instant::now(),
        host.status_field("RssAnon:")?,
        host.status_field("Threads:")?,
    );
    let growth = || -> Result<f64> { Ok(host.status_field("RssAnon:")? as f64 - before as f64) };
    let seconds = || start.elapsed().as_secs_f64();
    thread::sleep(LEAK_TIME);
    let leak_rate = growth()? / seconds();
    let growth_without_leak =
        || -> Result<f64> { Ok((growth()? - leak_rate * seconds()) / 1024.0) };
    let replies = run_clients(&socket, Instant::now() + RECONNECT_TIME);
    ensure!(replies > 0, "no client got a reply");
    let at_end = growth_without_leak()?;
    let ended = Instant::now();
    while host.status_field("Threads:")? > threads {
        ensure!(
            ended.elapsed() < REPLY_TIMEOUT,
            "the host keeps the threads of clients that have gone"
        );
        thread::sleep(Duration::from_millis(50));
    }
    // jemalloc keeps free pages for this time.
    thread::sleep(Duration::from_secs(10));
    measurements.record(
        "memory that 64 clients that come and go leave",
        growth_without_leak()?,
        format_args!(
            "{at_end:.0} MiB at their end, {replies} replies; the host's own leak, {:.1} MiB/s, left out",
            leak_rate / 1024.0
        ),
    )
}

/// Runs clients that connect, request the status and disconnect, until `end`; returns the number of replies.
fn run_clients(socket: &Path, end: Instant) -> usize {
    let client = || {
        let mut replies = 0;
        while Instant::now() < end {
            let reply = Client::connect(socket)
                .and_then(|mut client| client.message("memory_profile", "status", "", None));
            // There are more clients than connections, so the host refuses some.
            replies += usize::from(reply.is_ok_and(|reply| reply.result.status_code == 0));
        }
        replies
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let counts = clients.into_iter().map(|client| client.join().unwrap_or(0));
        counts.sum()
    })
}
