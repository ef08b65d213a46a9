//! What HTTP adds to a dump, and how long a listing takes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use torture::many_stacks::{ManyStacks, Server};
use xtask::run::root;

use crate::limits::Measurements;

/// Each leaves one dump, and as many are kept unless configured otherwise.
const ROUNDS: usize = KEPT;
const KEPT: usize = 32;

/// In the profile.
const STACKS: usize = 1 << 14;

/// Until then the server has given back what it does not need.
const IDLE: Duration = Duration::from_secs(4);

/// Measures.
pub(crate) fn measure(figures: &mut Measurements) -> Result<()> {
    let place = root().join("target/bench");
    let host = ManyStacks::start(&place, STACKS)?;
    let http = place.join("http.sock");
    let path = http.to_str().context("the path is not UTF-8")?;
    let server = Server::start(&host, &["--socket", path])?;

    let mut client = host.client()?;
    let mut bare = Vec::new();
    let mut served = Vec::new();
    let mut length = 0;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        client.message("memory_profile", "dump", "", None)?;
        bare.push(begun.elapsed());
        let begun = Instant::now();
        length = count(ask(&http, "/pprof/heap")?)?;
        served.push(begun.elapsed());
    }
    let ratio = |served: Duration, bare: Duration| served.as_secs_f64() / bare.as_secs_f64();
    bare.sort();
    served.sort();
    // What else runs on the machine only adds: the fastest round tells what each costs.
    figures.record(
        "/pprof/heap / a bare dump",
        ratio(served[0], bare[0]),
        format_args!(
            "median {:.3}; {:.1} MB in {} ms, a bare dump in {} ms",
            ratio(served[ROUNDS / 2], bare[ROUNDS / 2]),
            length as f64 / 1e6,
            served[0].as_millis(),
            bare[0].as_millis(),
        ),
    )?;
    list(&http, figures)?;
    reports(&http, &server, figures)
}

/// What the server keeps of the memory that reports take.
fn reports(http: &Path, server: &Server, figures: &mut Measurements) -> Result<()> {
    let list = String::from_utf8(get(http, "/api/v1/dumps")?)?;
    let id = list
        .split("\"id\":\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let id = id.context("no dump is kept")?;
    let before = server.status("RssAnon:")?;
    for format in ["html", "text", "pprof", "json"] {
        get(http, &format!("/api/v1/dumps/{id}?format={format}"))?;
    }
    let during = server.status("VmHWM:")?;
    thread::sleep(IDLE);
    figures.record(
        "memprof serve after four reports",
        (server.status("RssAnon:")? >> 10) as f64,
        format_args!(
            "anonymous; {} before, {} resident at most",
            before >> 10,
            during >> 10
        ),
    )
}

fn list(http: &Path, figures: &mut Measurements) -> Result<()> {
    let mut times = Vec::new();
    let mut kept = 0;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let list = get(http, "/api/v1/dumps")?;
        times.push(begun.elapsed());
        let list = String::from_utf8(list)?;
        kept = list.matches("\"id\"").count();
    }
    ensure!(kept == KEPT, "{kept} dumps are kept, not {KEPT}");
    times.sort();
    let time = times[ROUNDS / 2].as_secs_f64() * 1e3;
    figures.record("32 kept dumps listed over HTTP", time, "")
}

/// The length of a reply, whose bytes are read into one place: room for all of them would be the reader's cost.
fn count(mut reply: UnixStream) -> Result<usize> {
    let mut piece = vec![0; 1 << 20];
    let mut length = reply.read(&mut piece)?;
    ensure!(piece.starts_with(b"HTTP/1.1 200 "), "a request failed");
    loop {
        match reply.read(&mut piece)? {
            0 => return Ok(length),
            read => length += read,
        }
    }
}

/// A reply, which ends with the connection.
fn get(http: &Path, path: &str) -> Result<Vec<u8>> {
    let mut stream = ask(http, path)?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    ensure!(reply.starts_with(b"HTTP/1.1 200 "), "{path} failed");
    Ok(reply)
}

fn ask(http: &Path, path: &str) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(http)?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )?;
    Ok(stream)
}
