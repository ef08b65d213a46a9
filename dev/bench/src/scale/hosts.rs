//! What asks hosts, and a host that many ask.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;
use xtask::dist::dist;

use super::Growth;
use super::host::{Host, connect, median, plugin, preloaded, sockets};
use crate::limits::Measurements;

/// Clients that each connect, ask and leave, for so long.
const CLIENTS: usize = 64;
const RECONNECTED: Duration = Duration::from_secs(10);

/// So long a host's own leak is measured.
const ALONE: Duration = Duration::from_secs(10);

/// The times of what asks every host, and of what asks one, where so many run.
pub(super) fn questions(place: &Path, figures: &mut Measurements) -> Result<()> {
    let (mut ps, mut one, mut listed) = (Growth::default(), Growth::default(), Growth::default());
    let sleep = || {
        let mut command = preloaded(place, Path::new("sleep"));
        Host::start(command.arg("infinity"), place)
    };
    let mut hosts = Vec::new();
    for count in [1, 100, 1000] {
        while hosts.len() < count {
            hosts.push(sleep()?);
        }
        for host in &hosts {
            // One that still looks for its allocators answers later than `ps` waits on a busy machine.
            host.client(place)?
                .message("memory_profile", "status", "", None)?;
        }
        let memprof = |args: &[&str]| -> Result<String> {
            let mut command = Command::new(dist().join("bin/memprof"));
            let output = command.args(args).env("MEMPROF_SOCKET_DIR", sockets(place));
            let output = output.output()?;
            ensure!(output.status.success(), "memprof {args:?}: {output:?}");
            Ok(String::from_utf8(output.stdout)?)
        };
        let found = memprof(&["ps"])?.lines().count();
        ensure!(found >= count, "memprof ps shows {found} lines");
        ps.add(count, median(|| memprof(&["ps"]).map(drop))?);
        let pid = hosts[0].0.id().to_string();
        one.add(
            count,
            median(|| memprof(&["status", "-t", &pid]).map(drop))?,
        );
        listed.add(count, list(place, count)?);
    }
    ps.record_exponent("exponent of memprof ps, by hosts", figures)?;
    one.record_exponent("exponent of memprof status -t PID, by hosts", figures)?;
    listed.record_exponent("exponent of /api/v1/hosts, by hosts", figures)
}

/// The time of a list over HTTP.
fn list(place: &Path, count: usize) -> Result<f64> {
    let http = place.join("scale.sock");
    let mut serve = Command::new(dist().join("bin/memprof"));
    serve.arg("serve").arg("--socket").arg(&http);
    serve.env("MEMPROF_SOCKET_DIR", sockets(place));
    let mut server = Host::start(serve.stderr(Stdio::piped()), place)?;
    let mut said = String::new();
    let stderr = server.0.stderr.take().context("it has no stderr")?;
    BufReader::new(stderr).read_line(&mut said)?;
    ensure!(said.contains("serving "), "{said}");
    median(|| {
        let mut stream = UnixStream::connect(&http)?;
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

/// What a host grows by, beside its own leak, while clients come and go, and what of it stays.
pub(super) fn clients_that_come_and_go(place: &Path, figures: &mut Measurements) -> Result<()> {
    let (config, socket) = (place.join("host.toml"), place.join("host.sock"));
    let text = format!(
        "[control]\nsocket = {socket:?}\n[[plugin]]\npath = {:?}\n[plugin.config]\ndump_dir = {:?}\n",
        plugin(),
        place.join("dumps")
    );
    fs::write(&config, text)?;
    let mut command = Command::new(dist().join("examples/rust_host"));
    command.arg("--config").arg(&config).stderr(Stdio::null());
    let host = Host(command.spawn()?);
    connect(&socket)?;
    let (begun, before, threads) = (Instant::now(), host.kib("RssAnon:")?, host.kib("Threads:")?);
    let grown = || -> Result<f64> { Ok(host.kib("RssAnon:")? as f64 - before as f64) };
    let seconds = || begun.elapsed().as_secs_f64();
    thread::sleep(ALONE);
    let leak = grown()? / seconds();
    let beside_the_leak = || -> Result<f64> { Ok((grown()? - leak * seconds()) / 1024.0) };
    let answered = come_and_go(&socket, Instant::now() + RECONNECTED);
    let held = beside_the_leak()?;
    while host.kib("Threads:")? > threads {
        thread::sleep(Duration::from_millis(50));
    }
    // As long as jemalloc keeps pages that are free.
    thread::sleep(Duration::from_secs(10));
    figures.record(
        "memory that 64 clients that come and go leave",
        beside_the_leak()?,
        format_args!(
            "{held:.0} MiB at their end, {answered} answers; the host's own leak, {:.1} MiB/s, left out",
            leak / 1024.0
        ),
    )
}

/// Clients that connect, ask for the status and leave, until `end`: how many were answered.
fn come_and_go(socket: &Path, end: Instant) -> usize {
    let client = || {
        let mut answered = 0;
        while Instant::now() < end {
            let reply = Client::connect(socket).and_then(|mut client| {
                client
                    .message("memory_profile", "status", "", None)
                    .map(drop)
            });
            // More clients than connections: some are turned away.
            answered += usize::from(reply.is_ok());
        }
        answered
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let counts = clients.into_iter().map(|client| client.join().unwrap_or(0));
        counts.sum()
    })
}
