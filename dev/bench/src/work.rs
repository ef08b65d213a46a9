//! Real programs at work, which allocate as programs do.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use xtask::run::{output, root, run};

/// Enough work for a compiler, an interpreter of Perl and one of Python.
const TEMPLATES: &str = "dev/bench/src/unwind/templates.cc";
const PERL: &str = "my %h; for my $i (1..4000000) { $h{\"k$i\"} = [$i, 'x' x ($i % 100)]; \
                    delete $h{'k' . ($i - 1000)} if $i > 1000; }";
const PYTHON: &str = "import json\nkept = {}\n\
                      def deep(n): return [n] + (deep(n - 1) if n else [])\n\
                      for i in range(600000):\n \
                      kept[i] = json.loads('{\"a\": [1, 2, 3], \"b\": \"%d\"}' % i)\n \
                      kept.pop(i - 2000, None)\n \
                      if i % 1000 == 0: deep(100)\n";

/// Without a shell between.
pub(crate) fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

pub(crate) fn perl() -> Command {
    command("perl", &["-e", PERL])
}

/// Of Python's objects, each is an allocation of malloc.
pub(crate) fn python() -> Command {
    let mut python = command("/usr/bin/python3", &["-c", PYTHON]);
    python.env("PYTHONMALLOC", "malloc");
    python
}

pub(crate) fn compiler() -> Command {
    command("g++", &["-O2", "-S", "-o", "/dev/null", TEMPLATES])
}

/// Seconds of the processor that a command and its children take.
pub(crate) fn seconds(command: &mut Command) -> Result<f64> {
    let before = ticks("self", CHILDREN)?;
    run(command)?;
    Ok((ticks("self", CHILDREN)? - before) / TICKS_PER_SECOND)
}

/// redis-server under its own benchmark, as `prepare` has it started: the seconds of the processor that it takes.
pub(crate) fn redis(prepare: impl FnOnce(Command) -> Command) -> Result<f64> {
    let place = tempfile::tempdir()?;
    let socket = place.path().join("redis.sock");
    let path = socket.to_string_lossy();
    let args = ["--port", "0", "--unixsocket", &path, "--save", ""];
    let mut server = prepare(command("redis-server", &args));
    let mut server = server
        .stdout(Stdio::null())
        .spawn()
        .context("redis-server")?;
    wait_for(&socket)?;
    let load = [
        "-s",
        &path,
        "-n",
        "100000",
        "-r",
        "10000",
        "-q",
        "-t",
        "set,lpush,hset,zadd",
    ];
    output(&mut command("redis-benchmark", &load))?;
    output(&mut command("redis-cli", &["-s", &path, "info"]))?;
    let taken = ticks(&server.id().to_string(), OWN)?;
    // Answers nothing: it ends.
    let ended = command("redis-cli", &["-s", &path, "shutdown", "nosave"]).output()?;
    let status = server.wait()?;
    ensure!(status.success(), "redis-server: {status}; {ended:?}");
    Ok(taken / TICKS_PER_SECOND)
}

fn wait_for(socket: &Path) -> Result<()> {
    let begun = Instant::now();
    while !socket.exists() {
        ensure!(
            begun.elapsed() < Duration::from_secs(30),
            "redis-server does not start"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// `USER_HZ`, which is 100 on x86-64.
const TICKS_PER_SECOND: f64 = 100.0;

/// Where the first of two times lies in `proc_pid_stat(5)`, in user mode and in the kernel, after the name.
const OWN: usize = 11;
const CHILDREN: usize = 13;

fn ticks(process: &str, first: usize) -> Result<f64> {
    let path = format!("/proc/{process}/stat");
    let stat = fs::read_to_string(&path).context(path)?;
    let (_, behind_name) = stat.rsplit_once(") ").context("stat has no name")?;
    let times = behind_name.split(' ').skip(first).take(2);
    let times: Vec<f64> = times.map(str::parse).collect::<Result<_, _>>()?;
    Ok(times.iter().sum())
}
