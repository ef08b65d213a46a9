//! Cost of a dump and of a list over HTTP, and the memory of `memprof serve`.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use torture::many_stacks::{ManyStacks, Server};
use xtask::run::project_root;

use crate::limits::Measurements;

/// Rounds; each keeps one dump.
const ROUNDS: usize = KEPT_DUMPS;
/// Dumps that a host keeps by default.
const KEPT_DUMPS: usize = 32;

/// Stacks of the profile.
const STACKS: usize = 1 << 14;

/// Time after which the server has released unused memory.
const RELEASE_DELAY: Duration = Duration::from_secs(4);

/// Records the cost of a dump over HTTP against a bare one, of a list, and the server's memory after reports.
pub(crate) fn measure_server(measurements: &mut Measurements) -> Result<()> {
    let directory = project_root().join("target/bench");
    let host = ManyStacks::start(&directory, STACKS)?;
    let http = directory.join("http.sock");
    let path = http.to_str().context("the path is not UTF-8")?;
    let server = Server::start(&host, &["--socket", path])?;

    let mut client = host.client()?;
    let mut bare = Vec::new();
    let mut served = Vec::new();
    let mut bytes = 0;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let reply = client.message("memory_profile", "dump", "", None)?;
        bare.push(start.elapsed());
        ensure!(
            reply.result.status_code == 0,
            "a dump failed: {:?}",
            reply.result
        );
        let start = Instant::now();
        bytes = count_response_bytes(send_request(&http, "/pprof/heap")?)?;
        served.push(start.elapsed());
    }
    let ratio = |served: Duration, bare: Duration| served.as_secs_f64() / bare.as_secs_f64();
    bare.sort();
    served.sort();
    // Other load on the machine only adds time, so the fastest round is used.
    measurements.record(
        "/pprof/heap / a bare dump",
        ratio(served[0], bare[0]),
        format_args!(
            "median {:.3}; {:.1} MB in {} ms, a bare dump in {} ms",
            ratio(served[ROUNDS / 2], bare[ROUNDS / 2]),
            bytes as f64 / 1e6,
            served[0].as_millis(),
            bare[0].as_millis(),
        ),
    )?;
    measure_list(&http, measurements)?;
    measure_reports(&http, &server, measurements)
}

/// Requests reports of a dump in four formats, and records the memory that the server keeps [`RELEASE_DELAY`] later.
fn measure_reports(http: &Path, server: &Server, measurements: &mut Measurements) -> Result<()> {
    let list = String::from_utf8(get(http, "/api/v1/dumps")?)?;
    let id = list
        .split("\"id\":\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let id = id.context("no dump is kept")?;
    let before = server.status_field("RssAnon:")?;
    for format in ["html", "text", "pprof", "json"] {
        get(http, &format!("/api/v1/dumps/{id}?format={format}"))?;
    }
    let during = server.status_field("VmHWM:")?;
    thread::sleep(RELEASE_DELAY);
    measurements.record(
        "memprof serve after four reports",
        (server.status_field("RssAnon:")? >> 10) as f64,
        format_args!(
            "anonymous; {} before, {} resident at most",
            before >> 10,
            during >> 10
        ),
    )
}

/// Records the median time of a request for the list of kept dumps. Fails unless the list has [`KEPT_DUMPS`].
fn measure_list(http: &Path, measurements: &mut Measurements) -> Result<()> {
    let mut times = Vec::new();
    let mut kept = 0;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let list = get(http, "/api/v1/dumps")?;
        times.push(start.elapsed());
        let list = String::from_utf8(list)?;
        kept = list.matches("\"id\"").count();
    }
    ensure!(
        kept == KEPT_DUMPS,
        "{kept} dumps are kept, not {KEPT_DUMPS}"
    );
    times.sort();
    let time = times[ROUNDS / 2].as_secs_f64() * 1e3;
    measurements.record("32 kept dumps listed over HTTP", time, "")
}

/// Reads a response to its end and returns its length in bytes, with its head. Fails if its status is not 200. Each
/// piece overwrites the one before, because a buffer for the whole response would add to the measured time.
fn count_response_bytes(mut response: UnixStream) -> Result<usize> {
    let mut piece = vec![0; 1 << 20];
    let mut bytes = response.read(&mut piece)?;
    ensure!(piece.starts_with(b"HTTP/1.1 200 "), "a request failed");
    loop {
        match response.read(&mut piece)? {
            0 => return Ok(bytes),
            read => bytes += read,
        }
    }
}

/// Requests a path over the Unix socket `http`, and returns the response with its head. Fails if its status is not 200.
fn get(http: &Path, path: &str) -> Result<Vec<u8>> {
    let mut stream = send_request(http, path)?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    ensure!(response.starts_with(b"HTTP/1.1 200 "), "{path} failed");
    Ok(response)
}

/// Connects to the Unix socket `http`, and sends a GET request, after whose response the server closes the connection.
fn send_request(http: &Path, path: &str) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(http)?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )?;
    Ok(stream)
}
