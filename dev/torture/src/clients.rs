//! Clients of `memprof serve` that send or read too slowly, beside one that does neither.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::SuiteLength;
use crate::many_stacks::{ManyStacks, Server};

/// In the profile that is asked for.
const STACKS: usize = 1 << 14;

/// Of each kind.
const CLIENTS: usize = 64;
/// How long an honest request may wait for its reply, on a machine that has other work too.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the server may have in memory while all of them are there.
const RESIDENT_MIB: u64 = 400;

/// What a slow client does with its connection until the server has enough of it, or the end comes.
type Slow = fn(&mut TcpStream, &dyn Fn() -> bool) -> std::io::Result<()>;

const KINDS: [(&str, Slow); 4] = [
    ("half a head", half_head),
    ("half a body", half_body),
    ("drip", drip),
    ("reads nothing", never_read),
];

/// What an honest client asks for, again and again.
const PROBES: [&str; 3] = [
    "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "POST /api/v1/activate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
    "GET /pprof/heap HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
];

pub(super) fn run(form: SuiteLength) -> Result<String> {
    let time = form.pick(Duration::from_secs(4), Duration::from_secs(60));
    let place = tempfile::tempdir()?;
    let host = ManyStacks::start(place.path(), STACKS)?;
    let mut lines = Vec::new();
    let cases = KINDS.iter().map(|kind| std::slice::from_ref(kind));
    for kinds in cases.chain([&KINDS[..]]) {
        let mut server = Server::start(&host, &["--listen", "127.0.0.1:0"])?;
        let name = if kinds.len() == 1 {
            kinds[0].0
        } else {
            "all at once"
        };
        let line = storm(&server, kinds, time).with_context(|| name.to_owned())?;
        server.check_alive()?;
        let resident = server.status("VmHWM:")? >> 10;
        ensure!(resident < RESIDENT_MIB, "{name}: {resident} MiB resident");
        lines.push(format!("{name}: {line}, at most {resident} MiB resident"));
    }
    Ok(format!(
        "{CLIENTS} clients of each kind; {}",
        lines.join("; ")
    ))
}

fn storm(server: &Server, kinds: &[(&str, Slow)], time: Duration) -> Result<String> {
    let address = server.place.trim_start_matches("http://");
    let (address, _) = address.split_once('/').context("an address has a path")?;
    let is_over = AtomicBool::new(false);
    let here = AtomicUsize::new(0);
    thread::scope(|scope| {
        for (_, slow) in kinds {
            for _ in 0..CLIENTS {
                scope.spawn(|| visit(address, *slow, &|| is_over.load(Relaxed), &here));
            }
        }
        // All of them are connected before the first probe.
        while here.load(Relaxed) < kinds.len() * CLIENTS {
            thread::yield_now();
        }
        let answered = probe_for(time, address);
        is_over.store(true, Relaxed);
        let (probes, slowest) = answered?;
        Ok(format!(
            "{probes} of {probes} honest requests answered, the slowest in {:.0} ms, {} slow visits",
            slowest.as_secs_f64() * 1e3,
            here.load(Relaxed)
        ))
    })
}

/// How many replies came, all of them, and how long the slowest took.
fn probe_for(time: Duration, address: &str) -> Result<(usize, Duration)> {
    let (mut probes, mut slowest) = (0, Duration::ZERO);
    let until = Instant::now() + time;
    while Instant::now() < until {
        for probe in PROBES {
            let begun = Instant::now();
            let status = ask(address, probe).with_context(|| format!("{probe:?}"))?;
            ensure!(status == "200", "{probe:?}: {status}");
            slowest = slowest.max(begun.elapsed());
            probes += 1;
        }
    }
    Ok((probes, slowest))
}

/// The status of the whole reply.
fn ask(address: &str, request: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    let status = reply.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    Ok(String::from_utf8_lossy(status).into_owned())
}

/// Comes back as often as the server has enough of it.
fn visit(address: &str, slow: Slow, is_over: &(dyn Fn() -> bool + Sync), here: &AtomicUsize) {
    while !is_over() {
        // A server that does not even accept it shows in the probes.
        let Ok(mut stream) = TcpStream::connect(address) else {
            continue;
        };
        here.fetch_add(1, Relaxed);
        if slow(&mut stream, is_over).is_ok() {
            linger(&mut stream, is_over);
        }
    }
}

/// Waits for the server to hang up.
fn linger(stream: &mut TcpStream, is_over: &(dyn Fn() -> bool + Sync)) {
    let patience = Some(Duration::from_millis(100));
    while !is_over() && stream.set_read_timeout(patience).is_ok() {
        match stream.peek(&mut [0]) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            // What it says is not read, but it may say more.
            Ok(1) => thread::sleep(Duration::from_millis(100)),
            Ok(_) | Err(_) => return,
        }
    }
}

fn half_head(stream: &mut TcpStream, _: &dyn Fn() -> bool) -> std::io::Result<()> {
    stream.write_all(b"GET /api/v1/status HTTP/1.1\r\nHost: local")
}

/// Half of the largest that may be sent.
fn half_body(stream: &mut TcpStream, is_over: &dyn Fn() -> bool) -> std::io::Result<()> {
    let head = "POST /debug/prof/mem/symbol HTTP/1.1\r\nHost: localhost\r\nContent-Length: 67000000\r\n\r\n";
    stream.write_all(head.as_bytes())?;
    stream.set_write_timeout(Some(Duration::from_millis(500)))?;
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..32 {
        if is_over() {
            break;
        }
        stream.write_all(&piece)?;
    }
    Ok(())
}

fn drip(stream: &mut TcpStream, is_over: &dyn Fn() -> bool) -> std::io::Result<()> {
    for byte in b"GET /api/v1/status HTTP/1.1\r\n"
        .iter()
        .chain(b"X".iter().cycle())
    {
        if is_over() {
            break;
        }
        stream.write_all(&[*byte])?;
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Asks for what is larger than the kernel's buffers.
fn never_read(stream: &mut TcpStream, _: &dyn Fn() -> bool) -> std::io::Result<()> {
    stream.write_all(b"GET /pprof/heap HTTP/1.1\r\nHost: localhost\r\n\r\n")
}
