//! Hostile clients of a host, beside a client that must still get its replies in time.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::SuiteLength;
use crate::dump_dir::scan_dump_dir;
use crate::host::{HostSetup, REPLY_TIMEOUT, connect, is_evicted, send_successfully};

const PROBE_INTERVAL: Duration = Duration::from_millis(10);
/// Most echoes that may pass during a message without other clients, its JSON and the plugin's work: in the short form,
/// which runs beside the tests, and in the long one.
const MAX_ECHOES_PER_MESSAGE: [f64; 2] = [1000.0, 100.0];
/// Most time that 99 of 100 probes take under attack, beyond that of as many echoes: in the short form, which runs
/// beside the tests, and in the long one.
const MAX_DELAYS: [Duration; 2] = [Duration::from_secs(2), Duration::from_millis(50)];
const MAX_ECHOES_PER_PROBE: u32 = 10;
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
    (request_without_reading, 8),
    (request_dump_and_close, 2),
    (stay_silent, 16),
];

/// Runs all attacks on a host at the same time. Returns the figures as text. Fails if a client that behaves well does
/// not get its replies in time, if a message costs too much, or if the host dies, leaks descriptors or leaves a bad
/// file.
pub(super) fn attack_host(length: SuiteLength) -> Result<String> {
    let time = length.pick(Duration::from_secs(3), Duration::from_secs(15));
    let mut host = HostSetup::default().start()?;
    let before = host.descriptor_count()?;
    let cost = measure_message_cost(&host.dir().socket_path(), length.pick(10, 100))?;
    ensure!(
        cost <= length.pick(MAX_ECHOES_PER_MESSAGE[0], MAX_ECHOES_PER_MESSAGE[1]),
        "a message takes as long as {cost:.1} echoes"
    );

    let socket = host.dir().socket_path();
    let deadline = Instant::now() + time;
    let (probes, echoes, attacks) = thread::scope(|scope| {
        let attackers: Vec<_> = ATTACKS
            .iter()
            .flat_map(|(attack, count)| std::iter::repeat_n(*attack, *count))
            .map(|attack| {
                let socket = &socket;
                scope.spawn(move || attack_host_until(deadline, socket, attack))
            })
            .collect();
        let echoes = scope.spawn(move || time_echoes_until(deadline));
        let probes = time_probes_until(deadline, &socket);
        let attacks: Result<usize> = attackers
            .into_iter()
            .map(|attacker| attacker.join().expect("no panic"))
            .sum();
        let echoes = echoes.join().expect("no panic");
        anyhow::Ok((probes?, echoes?, attacks?))
    })?;
    host.check_alive()?;
    ensure!(
        host.wait_for_descriptors(before)?,
        "{} descriptors, {before} before",
        host.descriptor_count()?
    );
    let found = scan_dump_dir(&host.dir().dump_dir())?;
    ensure!(found.bad.is_empty(), "bad files: {:?}", found.bad);
    let count = probes.len();
    let (p99, of_echoes) = (p99(probes), p99(echoes));
    let max_delay = length.pick(MAX_DELAYS[0], MAX_DELAYS[1]);
    ensure!(
        p99 < max_delay + MAX_ECHOES_PER_PROBE * of_echoes,
        "p99 is {p99:?}, that of echoes {of_echoes:?}"
    );
    Ok(format!(
        "{attacks} hostile visits in {} s: 100 % of {count} probes answered, p99 {:.1} ms (echoes {:.1} ms), \
         descriptors back to {before}; a message takes as long as {cost:.1} echoes",
        time.as_secs(),
        p99.as_secs_f64() * 1000.0,
        of_echoes.as_secs_f64() * 1000.0
    ))
}

/// Returns the time that 99 of 100 times do not exceed. There must be at least one.
fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// Returns the time of a message to the host as a multiple of the time of an [`Echo`]. Each time is the minimum of
/// several rounds, in which both run in turn, so that other load on the machine slows both.
fn measure_message_cost(socket: &Path, rounds: usize) -> Result<f64> {
    const MESSAGES_PER_ROUND: u32 = 300;
    let mut client = connect(socket)?;
    let mut echo = Echo::start()?;
    let (mut message, mut echoed) = (Duration::MAX, Duration::MAX);
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..MESSAGES_PER_ROUND {
            send_successfully(&mut client, "status", "")?;
        }
        message = message.min(start.elapsed());
        let start = Instant::now();
        for _ in 0..MESSAGES_PER_ROUND {
            echo.send()?;
        }
        echoed = echoed.min(start.elapsed());
    }
    Ok(message.as_secs_f64() / echoed.as_secs_f64())
}

/// A thread that sends back each byte: the least that a request to another thread takes on this machine.
struct Echo(UnixStream);

impl Echo {
    /// Starts the thread, which ends when this value is dropped.
    fn start() -> Result<Self> {
        let (near, mut far) = UnixStream::pair()?;
        thread::spawn(move || {
            let mut byte = [0];
            while far.read_exact(&mut byte).is_ok() && far.write_all(&byte).is_ok() {}
        });
        Ok(Self(near))
    }

    /// Sends a byte to the thread, and waits until it has sent it back.
    fn send(&mut self) -> std::io::Result<()> {
        self.0.write_all(b"x")?;
        self.0.read_exact(&mut [0])
    }
}

/// Sends a byte to an [`Echo`] every [`PROBE_INTERVAL`] until the deadline, as [`time_probes_until`] sends requests.
/// Returns the time of each echo.
fn time_echoes_until(deadline: Instant) -> Result<Vec<Duration>> {
    let mut echo = Echo::start()?;
    let mut times = Vec::new();
    while Instant::now() < deadline {
        let start = Instant::now();
        echo.send()?;
        times.push(start.elapsed());
        thread::sleep(PROBE_INTERVAL);
    }
    Ok(times)
}

/// Requests the status every [`PROBE_INTERVAL`] until the deadline, each time on a new connection, and returns the time
/// of each reply. If the host closes the connection in favour of another client's, connects again; the time of the
/// reply includes that.
///
/// # Errors
/// A reply is missing or is not ok, or the host evicts connections for longer than [`REPLY_TIMEOUT`].
fn time_probes_until(deadline: Instant, socket: &Path) -> Result<Vec<Duration>> {
    let mut answers = Vec::new();
    while Instant::now() < deadline {
        let start = Instant::now();
        loop {
            match send_successfully(&mut connect(socket)?, "status", "") {
                // The host closed this connection in favour of another one before the request came.
                Err(error) if is_evicted(&error) && start.elapsed() < REPLY_TIMEOUT => {}
                answer => break answer.map(drop)?,
            }
        }
        answers.push(start.elapsed());
        thread::sleep(PROBE_INTERVAL);
    }
    Ok(answers)
}

/// Repeats an attack on new connections until the deadline. Returns the number of connections, most of which the host
/// closed. Fails if the host refuses a connection, or on an error that neither a closed connection nor a timeout gives.
fn attack_host_until(deadline: Instant, socket: &Path, attack: Attack) -> Result<usize> {
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

/// Sends 4 KiB of pseudo-random bytes, and closes the connection 5 ms later.
fn send_garbage(mut stream: UnixStream) -> std::io::Result<()> {
    let lines: Vec<u8> = (0..4096u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    stream.write_all(&lines)?;
    thread::sleep(Duration::from_millis(5));
    Ok(())
}

/// Sends 1 MiB without a newline, 5 ms after it has connected.
fn send_long_line(mut stream: UnixStream) -> std::io::Result<()> {
    thread::sleep(Duration::from_millis(5));
    stream.write_all(&vec![b'x'; LONG_LINE_BYTES])
}

/// Sends requests until the socket is full, reads no reply, and closes the connection after 500 ms.
fn request_without_reading(mut stream: UnixStream) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    while stream.write(PLUGINS_REQUEST).is_ok() {}
    thread::sleep(Duration::from_millis(500));
    Ok(())
}

/// Requests a dump, and closes the connection 20 ms later without reading the reply.
fn request_dump_and_close(mut stream: UnixStream) -> std::io::Result<()> {
    stream.write_all(DUMP)?;
    thread::sleep(Duration::from_millis(20));
    Ok(())
}

/// Sends nothing for 300 ms, or until the host closes the connection.
fn stay_silent(mut stream: UnixStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_millis(300)))?;
    stream.read(&mut [0]).map(drop)
}
