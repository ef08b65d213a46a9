//! How cost grows: a dump with the libraries that are loaded, a question with the hosts that run, a host
//! with the clients that come and go.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use memprof_host::client::Client;

use crate::dist::{self, Profile, dist};
use crate::run::{root, run};

/// Of each figure the middle one is printed.
const ROUNDS: usize = 7;

/// Clients that each connect, ask and leave, for so long.
const CLIENTS: usize = 64;
const RECONNECTED: Duration = Duration::from_secs(2);

/// How long a host may take to open its socket.
const START: Duration = Duration::from_secs(60);

/// Builds for release and measures.
pub(crate) fn run_growth() -> Result<()> {
    dist::build(Profile::Release)?;
    measure()
}

/// Measures.
pub(crate) fn measure() -> Result<()> {
    let place = tempfile::tempdir()?;
    for count in [10, 1000, 2000] {
        dump_with_objects(place.path(), count)?;
    }
    for count in [1, 100, 300] {
        questions_with_hosts(place.path(), count)?;
    }
    clients_that_come_and_go(place.path())
}

/// The time of a dump of a program that has loaded so many libraries.
fn dump_with_objects(place: &Path, count: usize) -> Result<()> {
    let (program, library) = (place.join("many_objects"), place.join("object.so"));
    let source = root().join("xtask/src/bench/many_objects.c");
    run(Command::new("cc").arg("-o").arg(&program).arg(&source))?;
    run(Command::new("cc")
        .args(["-shared", "-fPIC", "-DLIBRARY", "-o"])
        .arg(&library)
        .arg(&source))?;
    // The loader knows a file by its inode, so each is a copy.
    let objects: Vec<PathBuf> = (0..count)
        .map(|number| place.join(format!("object-{number}.so")))
        .collect();
    for object in &objects {
        fs::copy(&library, object)?;
    }
    let mut command = preloaded(place, &program);
    command.args(&objects);
    command.env("MALLOC_CONF", "prof:true,lg_prof_sample:12");
    let preload = format!("libjemalloc.so.2:{}", plugin().display());
    let host = Host::start(command.env("LD_PRELOAD", preload), place)?;
    let mut client = host.client(place)?;
    client.message("memory_profile", "dump", "", None)?;
    let time = median(|| {
        let reply = client.message("memory_profile", "dump", "", None)?;
        ensure!(reply.result.status_code == 0, "dump failed");
        Ok(())
    })?;
    println!("a dump with {count} loaded libraries: {time:.1} ms");
    Ok(())
}

/// The times of what asks every host, and of what asks one, where so many run.
fn questions_with_hosts(place: &Path, count: usize) -> Result<()> {
    let sleep = |_| {
        let mut command = preloaded(place, Path::new("sleep"));
        command.arg("infinity").env("LD_PRELOAD", plugin());
        Host::start(&mut command, place)
    };
    let hosts: Vec<Host> = (0..count).map(sleep).collect::<Result<_>>()?;
    for host in &hosts {
        host.client(place)?;
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
    let ps = median(|| memprof(&["ps"]).map(drop))?;
    let pid = hosts[0].0.id().to_string();
    let status = median(|| memprof(&["status", "-t", &pid]).map(drop))?;

    let http = place.join("growth.sock");
    let mut serve = Command::new(dist().join("bin/memprof"));
    serve.arg("serve").arg("--socket").arg(&http);
    serve.env("MEMPROF_SOCKET_DIR", sockets(place));
    let mut server = Host(serve.stderr(Stdio::piped()).spawn()?);
    let mut said = String::new();
    let stderr = server.0.stderr.take().context("it has no stderr")?;
    BufReader::new(stderr).read_line(&mut said)?;
    ensure!(said.contains("serving "), "{said}");
    let listed = median(|| {
        let mut stream = UnixStream::connect(&http)?;
        stream.write_all(
            b"GET /api/v1/hosts HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        )?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        let found = reply.matches("\"command\"").count();
        ensure!(found >= count, "{found} hosts: {reply}");
        Ok(())
    })?;
    println!(
        "{count} hosts: memprof ps {ps:.1} ms, status -t PID {status:.1} ms, /api/v1/hosts {listed:.1} ms"
    );
    Ok(())
}

/// What a host grows by, beside its own leak, while clients come and go.
fn clients_that_come_and_go(place: &Path) -> Result<()> {
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
    let before = host.kib("RssAnon:")?;
    thread::sleep(RECONNECTED);
    let alone = host.kib("RssAnon:")?;
    let end = Instant::now() + RECONNECTED;
    let answered: usize = thread::scope(|scope| {
        let come_and_go = || {
            let mut answered = 0;
            while Instant::now() < end {
                let reply = Client::connect(&socket).and_then(|mut client| {
                    client
                        .message("memory_profile", "status", "", None)
                        .map(drop)
                });
                // More clients than connections: some are turned away.
                answered += usize::from(reply.is_ok());
            }
            answered
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(come_and_go)).collect();
        let counts = clients.into_iter().map(|client| client.join().unwrap_or(0));
        counts.sum()
    });
    println!(
        "{CLIENTS} clients that come and go, {answered} answers: from {} to {} MiB anonymous, {} resident at \
         most; in as much time it grew by {} MiB alone",
        alone >> 10,
        host.kib("RssAnon:")? >> 10,
        host.kib("VmHWM:")? >> 10,
        (alone - before) >> 10
    );
    Ok(())
}

fn plugin() -> PathBuf {
    dist().join("plugins/memory_profile.so")
}

fn sockets(place: &Path) -> PathBuf {
    place.join("run")
}

/// A program that the plugin will be preloaded into.
fn preloaded(place: &Path, program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("MEMPROF_RUN", "1")
        .env("MEMPROF_SOCKET_DIR", sockets(place))
        .env("MEMPROF_DUMP_DIR", place.join("dumps"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Milliseconds.
fn median(mut once: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        once()?;
        times.push(begun.elapsed());
    }
    times.sort();
    Ok(times[ROUNDS / 2].as_secs_f64() * 1e3)
}

/// A connection, once there is a socket.
fn connect(socket: &Path) -> Result<Client> {
    let begun = Instant::now();
    loop {
        match Client::connect(socket) {
            Ok(client) => return Ok(client),
            Err(error) if begun.elapsed() > START => return Err(error.into()),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// A process, ended when dropped.
struct Host(Child);

impl Host {
    fn start(command: &mut Command, place: &Path) -> Result<Self> {
        fs::create_dir_all(place.join("dumps"))?;
        Ok(Self(
            command.spawn().with_context(|| format!("{command:?}"))?,
        ))
    }

    fn client(&self, place: &Path) -> Result<Client> {
        connect(&sockets(place).join(format!("{}.sock", self.0.id())))
    }

    /// That line of its `/proc/PID/status`.
    fn kib(&self, field: &str) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let number = status.lines().find_map(|line| line.strip_prefix(field));
        let number = number.and_then(|number| number.split_whitespace().next());
        Ok(number.with_context(|| field.to_owned())?.parse()?)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait().map(drop)) {
            eprintln!("failed to end {}: {error}", self.0.id());
        }
    }
}
