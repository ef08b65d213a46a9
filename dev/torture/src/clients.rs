//! Suite `clients`: slow clients of `memprof serve`, beside a client that sends and reads at once.

use std::io::{ErrorKind, Read, Write};
use std::mem;
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::SuiteLength;
use crate::many_stacks::{ManyStacks, Server};

/// Stacks of the requested profile.
const STACKS: usize = 1 << 14;

/// Clients of each kind.
const CLIENTS: usize = 64;
/// Timeout of the response to a prompt client, on a busy machine.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum resident memory of the server with all clients connected: in the short and the long form.
const MAX_RESIDENT_MIB: [u64; 2] = [512, 400];

/// Behaviour of a slow client until the server closes the connection or the second argument returns true.
type SlowClient = fn(&mut TcpStream, &dyn Fn() -> bool) -> std::io::Result<()>;

const KINDS: [(&str, SlowClient); 4] = [
    ("half a head", send_half_head),
    ("half a body", send_half_body),
    ("drip", send_byte_by_byte),
    ("reads nothing", request_without_reading),
];

/// Requests of the prompt client.
const PROBES: [&str; 3] = [
    "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "POST /api/v1/activate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
    "GET /pprof/heap HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
];

/// Runs the suite `clients` with each kind of slow client, and with all at once. Returns its figures in one line. Fails
/// if the server dies, refuses too many requests of a client that reads at once, or takes too much memory.
pub(super) fn run_suite(length: SuiteLength) -> Result<String> {
    let time = length.pick(Duration::from_secs(4), Duration::from_secs(60));
    // The short form has few requests, beside other tests: the host may be too busy for dumps to 64 clients that do not
    // read them within the 10 s that a request waits.
    let max_refused_percent = length.pick(34, 0);
    let max_resident = length.pick(MAX_RESIDENT_MIB[0], MAX_RESIDENT_MIB[1]);
    let dir = tempfile::tempdir()?;
    let host = ManyStacks::start(dir.path(), STACKS)?;
    let mut lines = Vec::new();
    let cases = KINDS.iter().map(|kind| std::slice::from_ref(kind));
    for kinds in cases.chain([&KINDS[..]]) {
        let mut server = Server::start(&host, &["--listen", "127.0.0.1:0"])?;
        let name = if kinds.len() == 1 {
            kinds[0].0
        } else {
            "all at once"
        };
        let line = run_clients(&server, kinds, time, max_refused_percent)
            .with_context(|| name.to_owned())?;
        server.check_alive()?;
        let resident = server.status_field("VmHWM:")? >> 10;
        ensure!(resident < max_resident, "{name}: {resident} MiB resident");
        lines.push(format!("{name}: {line}, at most {resident} MiB resident"));
    }
    Ok(format!(
        "{CLIENTS} clients of each kind; {}",
        lines.join("; ")
    ))
}

/// Runs [`CLIENTS`] slow clients of each of these kinds. Once all have connected, sends [`PROBES`] from a prompt client
/// for a time. Returns the figures as text. Fails if the clients cannot connect, or if more than `max_refused_percent`
/// of the probes are refused.
fn run_clients(
    server: &Server,
    kinds: &[(&str, SlowClient)],
    time: Duration,
    max_refused_percent: usize,
) -> Result<String> {
    let address = server.address.trim_start_matches("http://");
    let (address, _) = address.split_once('/').context("an address has a path")?;
    let is_over = AtomicBool::new(false);
    let (clients, connections) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for (_, slow) in kinds {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let is_over = || is_over.load(Relaxed);
                    connect_repeatedly(address, *slow, &is_over, &clients, &connections);
                });
            }
        }
        // All clients connect before the first probe.
        let result = wait_for_clients(&clients, kinds.len() * CLIENTS)
            .and_then(|()| send_probes_for(time, address));
        // The clients end only now, also after an error.
        is_over.store(true, Relaxed);
        let (answered, probes, slowest) = result?;
        ensure!(
            (probes - answered) * 100 <= probes * max_refused_percent,
            "{} of {probes} requests of a prompt client refused",
            probes - answered
        );
        Ok(format!(
            "{answered} of {probes} requests of a prompt client answered, the slowest in {:.0} ms, {} slow connections",
            slowest.as_secs_f64() * 1e3,
            connections.load(Relaxed)
        ))
    })
}

/// Waits until `clients` is `expected`. Fails after [`RESPONSE_TIMEOUT`].
fn wait_for_clients(clients: &AtomicUsize, expected: usize) -> Result<()> {
    let start = Instant::now();
    while clients.load(Relaxed) < expected {
        ensure!(
            start.elapsed() < RESPONSE_TIMEOUT,
            "only {} of {expected} clients have connected after {RESPONSE_TIMEOUT:?}",
            clients.load(Relaxed)
        );
        testkit::pause();
    }
    Ok(())
}

/// Sends [`PROBES`] in turn for a time. Returns how many got status 200, how many were sent, and the time of the
/// slowest response. Fails if a status is neither 200 nor 503, by which an overloaded server refuses.
fn send_probes_for(time: Duration, address: &str) -> Result<(usize, usize, Duration)> {
    let (mut answered, mut probes, mut slowest) = (0, 0, Duration::ZERO);
    let end = Instant::now() + time;
    while Instant::now() < end {
        for probe in PROBES {
            let start = Instant::now();
            let status = request_status(address, probe).with_context(|| format!("{probe:?}"))?;
            ensure!(["200", "503"].contains(&&*status), "{probe:?}: {status}");
            answered += usize::from(status == "200");
            slowest = slowest.max(start.elapsed());
            probes += 1;
        }
    }
    Ok((answered, probes, slowest))
}

/// Sends a request, reads the whole response and returns its status code: the second word of its first line, or an
/// empty text. Fails if the server sends nothing for [`RESPONSE_TIMEOUT`].
fn request_status(address: &str, request: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    let status = reply.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    Ok(String::from_utf8_lossy(status).into_owned())
}

/// Connects as a slow client, and again whenever the server closes the connection, until `is_over` returns true. Counts
/// itself in `clients` once it has connected, and each connection in `connections`.
fn connect_repeatedly(
    address: &str,
    slow: SlowClient,
    is_over: &(dyn Fn() -> bool + Sync),
    clients: &AtomicUsize,
    connections: &AtomicUsize,
) {
    let mut has_connected = false;
    while !is_over() {
        // The probes fail if the server accepts no connections.
        let Ok(mut stream) = TcpStream::connect(address) else {
            continue;
        };
        if !mem::replace(&mut has_connected, true) {
            clients.fetch_add(1, Relaxed);
        }
        connections.fetch_add(1, Relaxed);
        if slow(&mut stream, is_over).is_ok() {
            wait_for_close(&mut stream, is_over);
        }
    }
}

/// Waits until the server closes the connection, or until `is_over` returns true.
fn wait_for_close(stream: &mut TcpStream, is_over: &(dyn Fn() -> bool + Sync)) {
    let timeout = Some(Duration::from_millis(100));
    while !is_over() && stream.set_read_timeout(timeout).is_ok() {
        match stream.peek(&mut [0]) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            // The response is not read, so the connection stays open on this side.
            Ok(1) => thread::sleep(Duration::from_millis(100)),
            Ok(_) | Err(_) => return,
        }
    }
}

/// Sends the beginning of a request, without the end of its headers.
fn send_half_head(stream: &mut TcpStream, _: &dyn Fn() -> bool) -> std::io::Result<()> {
    stream.write_all(b"GET /api/v1/status HTTP/1.1\r\nHost: local")
}

/// Sends the head of a request with a body of 67 MB, and at most half of that body. Stops when `is_over` returns true;
/// fails if the server reads nothing for 500 ms, or closes the connection.
fn send_half_body(stream: &mut TcpStream, is_over: &dyn Fn() -> bool) -> std::io::Result<()> {
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

/// Sends a request head one byte each 100 ms, until `is_over` returns true. Fails when the server closes the
/// connection.
fn send_byte_by_byte(stream: &mut TcpStream, is_over: &dyn Fn() -> bool) -> std::io::Result<()> {
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

/// Requests a response that is larger than the kernel's socket buffers, and does not read it.
fn request_without_reading(stream: &mut TcpStream, _: &dyn Fn() -> bool) -> std::io::Result<()> {
    stream.write_all(b"GET /pprof/heap HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_that_reconnects_is_one_client() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (clients, connections) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let is_over = || connections.load(Relaxed) == 3;
        // The slow client fails at once, as when the server closes the connection.
        let fails: SlowClient = |_, _| Err(ErrorKind::BrokenPipe.into());
        connect_repeatedly(&address, fails, &is_over, &clients, &connections);
        assert_eq!((clients.into_inner(), connections.into_inner()), (1, 3));
    }
}
