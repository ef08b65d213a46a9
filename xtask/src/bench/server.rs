//! What HTTP adds to a dump, and how long a listing takes.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;

use crate::dist::dist;
use crate::run::{root, run};

/// Two dumps each: as many as are kept.
const ROUNDS: usize = KEPT / 2;
/// As many as are kept unless configured otherwise.
const KEPT: usize = 32;

/// Measures.
pub(super) fn measure(place: &Path) -> Result<()> {
    let program = place.join("many_stacks");
    let source = root().join("xtask/src/bench/many_stacks.c");
    run(Command::new("cc")
        .args(["-O1", "-o"])
        .arg(&program)
        .arg(source))?;
    let state = place.join("state");
    if state.exists() {
        fs::remove_dir_all(&state)?;
    }
    let mut host = Ended(
        Command::new(dist().join("bin/memprof"))
            .args(["run", "--active", "--lg-sample=10", "--socket-dir"])
            .arg(place.join("run"))
            .arg("--")
            .arg(&program)
            .env("XDG_STATE_HOME", &state)
            .stdout(Stdio::piped())
            .spawn()?,
    );
    let mut ready = String::new();
    let stdout = host.0.stdout.take().context("it has no stdout")?;
    BufReader::new(stdout).read_line(&mut ready)?;
    let control = place.join(format!("run/{}.sock", host.0.id()));
    let (_server, http) = serve(place, &control)?;

    let mut client = connect(&control)?;
    let mut bare = Vec::new();
    let mut served = Vec::new();
    let mut length = 0;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        client.message("memory_profile", "dump", "", None)?;
        bare.push(begun.elapsed());
        let begun = Instant::now();
        length = get(&http, "/pprof/heap")?.len();
        served.push(begun.elapsed());
    }
    let ratio = |served: Duration, bare: Duration| served.as_secs_f64() / bare.as_secs_f64();
    bare.sort();
    served.sort();
    // What else runs on the machine only adds: the fastest round tells what each costs.
    println!(
        "/pprof/heap of {:.1} MB: {} ms, a bare dump {} ms, ratio {:.3} (median {:.3}), limit 1.100",
        length as f64 / 1e6,
        served[0].as_millis(),
        bare[0].as_millis(),
        ratio(served[0], bare[0]),
        ratio(served[ROUNDS / 2], bare[ROUNDS / 2])
    );
    list(&http)
}

fn list(http: &Path) -> Result<()> {
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
    println!("{kept} kept dumps listed over HTTP in {time:.1} ms, limit 50 ms");
    Ok(())
}

fn serve(place: &Path, control: &Path) -> Result<(Ended, PathBuf)> {
    let http = place.join("http.sock");
    let mut server = Ended(
        Command::new(dist().join("bin/memprof"))
            .args(["serve", "--socket"])
            .arg(&http)
            .arg("-t")
            .arg(control)
            .stderr(Stdio::piped())
            .spawn()?,
    );
    let mut said = String::new();
    let stderr = server.0.stderr.take().context("it has no stderr")?;
    let mut stderr = BufReader::new(stderr);
    stderr.read_line(&mut said)?;
    ensure!(said.contains("serving"), "{said}");
    thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    Ok((server, http))
}

/// The preloaded plugin opens its socket a moment after the program's start.
fn connect(control: &Path) -> Result<Client> {
    let begun = Instant::now();
    loop {
        match Client::connect(control) {
            Ok(client) => return Ok(client),
            Err(error) if begun.elapsed() > Duration::from_secs(10) => return Err(error.into()),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// The body of a reply, which ends with the connection.
fn get(http: &Path, path: &str) -> Result<Vec<u8>> {
    let mut stream = UnixStream::connect(http)?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    ensure!(reply.starts_with(b"HTTP/1.1 200 "), "{path} failed");
    Ok(reply)
}

/// A process that is ended when it is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait().map(drop)) {
            eprintln!("failed to end {}: {error}", self.0.id());
        }
    }
}
