//! Hostile clients of a host, beside a client that must still get its replies in time.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::SuiteLength;
use crate::dump_dir::scan_dump_dir;
use crate::host::{HostSetup, REPLY_TIMEOUT, connect, is_evicted, send_message};

const PROBE_INTERVAL: Duration = Duration::from_millis(10);
const LONG_LINE_BYTES: usize = 1 << 20;

const DUMP: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"memprof.message","params":{"plugin":"memory_profile","message":"dump"}}
"#;
const PLUGINS_REQUEST: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"memprof.plugins\"}\n";

/// Hostile use of one connection. Its error is the socket's, usually because the host closed the connection.
type Attack = fn(UnixStream) -> std::io::Result<()>;

/// Attacks, each with its number of threads: together more than the 32 connections of a host.
const ATTACKS: [(Attack, usize); 6] = [
    (send_byte_by_byte, 16),
    (send_garbage, 2),
    (send_long_line, 2),
    (never_read, 8),
    (dump_and_leave, 2),
    (stay_silent, 16),
];

pub(super) fn run(length: SuiteLength) -> Result<String> {
    let time = length.pick(Duration::from_secs(3), Duration::from_secs(15));
    // In CI, tests share the cores, so the short limits only detect a host that stops answering.
    let max_p99 = length.pick(Duration::from_secs(2), Duration::from_millis(50));
    let min_throughput = length.pick(100.0, 5000.0);
    let mut host = HostSetup::default().start()?;
    let before = host.descriptor_count()?;
    let throughput = measure_throughput(&host.dir().socket_path(), length.pick(3000, 30_000))?;
    ensure!(throughput >= min_throughput, "{throughput:.0} messages/s");

    let socket = host.dir().socket_path();
    let deadline = Instant::now() + time;
    let (mut probes, attacks) = thread::scope(|scope| {
        let attackers: Vec<_> = ATTACKS
            .iter()
            .flat_map(|(attack, count)| std::iter::repeat_n(*attack, *count))
            .map(|attack| {
                let socket = &socket;
                scope.spawn(move || attack_until(deadline, socket, attack))
            })
            .collect();
        let probes = probe_until(deadline, &socket);
        let attacks: Result<usize> = attackers
            .into_iter()
            .map(|attacker| attacker.join().expect("no panic"))
            .sum();
        anyhow::Ok((probes?, attacks?))
    })?;
    host.check_alive()?;
    ensure!(
        host.wait_for_descriptors(before)?,
        "{} descriptors, {before} before",
        host.descriptor_count()?
    );
    let found = scan_dump_dir(&host.dir().dump_dir())?;
    ensure!(found.bad.is_empty(), "bad files: {:?}", found.bad);
    probes.sort_unstable();
    let p99 = probes[probes.len() * 99 / 100];
    ensure!(p99 < max_p99, "p99 is {p99:?}");
    Ok(format!(
        "{attacks} hostile visits in {} s: 100 % of {} probes answered, p99 {:.1} ms, \
         descriptors back to {before}; one client: {throughput:.0} messages/s",
        time.as_secs(),
        probes.len(),
        p99.as_secs_f64() * 1000.0
    ))
}

/// Messages per second of one client that sends `count` messages, one after the other.
fn measure_throughput(socket: &Path, count: u32) -> Result<f64> {
    let mut client = connect(socket)?;
    let start = Instant::now();
    for _ in 0..count {
        send_message(&mut client, "status", "")?;
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

/// Requests the status again and again until the deadline, and returns the time of each reply.
///
/// # Errors
/// A reply is missing or is not ok.
fn probe_until(deadline: Instant, socket: &Path) -> Result<Vec<Duration>> {
    let mut answers = Vec::new();
    while Instant::now() < deadline {
        let start = Instant::now();
        let status = loop {
            match send_message(&mut connect(socket)?, "status", "") {
                // The host evicted this connection for another one before the request came.
                Err(error) if is_evicted(&error) && start.elapsed() < REPLY_TIMEOUT => {}
                answer => break answer?,
            }
        };
        ensure!(status["status"] == "ok", "{status}");
        answers.push(start.elapsed());
        thread::sleep(PROBE_INTERVAL);
    }
    Ok(answers)
}

/// Repeats an attack until the deadline. Returns the number of connections, most of which the host closed.
fn attack_until(deadline: Instant, socket: &Path, attack: Attack) -> Result<usize> {
    let mut visits = 0;
    while Instant::now() < deadline {
        let stream = UnixStream::connect(socket)?;
        match attack(stream) {
            Err(error)
                if !matches!(
                    error.kind(),
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::WouldBlock
                ) =>
            {
                return Err(error.into());
            }
            Ok(()) | Err(_) => visits += 1,
        }
    }
    Ok(visits)
}

/// Sends a byte every 100 ms until the host closes the connection.
fn send_byte_by_byte(mut stream: UnixStream) -> std::io::Result<()> {
    loop {
        stream.write_all(b"[")?;
        thread::sleep(Duration::from_millis(100));
    }
}

/// Sends 4 KiB of pseudo-random bytes.
fn send_garbage(mut stream: UnixStream) -> std::io::Result<()> {
    let lines: Vec<u8> = (0..4096u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    stream.write_all(&lines)?;
    thread::sleep(Duration::from_millis(5));
    Ok(())
}

/// Sends 1 MiB without a newline.
fn send_long_line(mut stream: UnixStream) -> std::io::Result<()> {
    thread::sleep(Duration::from_millis(5));
    stream.write_all(&vec![b'x'; LONG_LINE_BYTES])
}

/// Sends requests until the socket is full, and never reads the replies.
fn never_read(mut stream: UnixStream) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    while stream.write(PLUGINS_REQUEST).is_ok() {}
    thread::sleep(Duration::from_millis(500));
    Ok(())
}

/// Requests a dump, and closes the connection before the reply.
fn dump_and_leave(mut stream: UnixStream) -> std::io::Result<()> {
    stream.write_all(DUMP)?;
    thread::sleep(Duration::from_millis(20));
    Ok(())
}

/// Sends nothing for 300 ms, or until the host closes the connection.
fn stay_silent(mut stream: UnixStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_millis(300)))?;
    stream.read(&mut [0]).map(drop)
}
