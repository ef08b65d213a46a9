//! Commands of real programs with work that allocates.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use xtask::run::{output, project_root, run};

/// Source for the compiler, some seconds of work.
const TEMPLATES: &str = "dev/bench/src/unwind/templates.cc";
const PERL: &str = "my %h; for my $i (1..4000000) { $h{\"k$i\"} = [$i, 'x' x ($i % 100)]; \
                    delete $h{'k' . ($i - 1000)} if $i > 1000; }";
const PYTHON: &str = "import json\nkept = {}\n\
                      def deep(n): return [n] + (deep(n - 1) if n else [])\n\
                      for i in range(600000):\n \
                      kept[i] = json.loads('{\"a\": [1, 2, 3], \"b\": \"%d\"}' % i)\n \
                      kept.pop(i - 2000, None)\n \
                      if i % 1000 == 0: deep(100)\n";

/// Returns the command that runs a program, without a shell, in the root of the source tree.
pub(crate) fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(project_root());
    command
}

/// Perl with a hash of a thousand short-lived entries.
pub(crate) fn perl_command() -> Command {
    command("perl", &["-e", PERL])
}

/// Python with short-lived objects; `PYTHONMALLOC` makes each object an allocation of malloc.
pub(crate) fn python_command() -> Command {
    let mut python = command("/usr/bin/python3", &["-c", PYTHON]);
    python.env("PYTHONMALLOC", "malloc");
    python
}

/// The C++ compiler with templates.
pub(crate) fn compiler_command() -> Command {
    command("g++", &["-O2", "-S", "-o", "/dev/null", TEMPLATES])
}

/// Runs a command and returns the processor time of it and its children, in seconds.
pub(crate) fn measure_cpu_seconds(command: &mut Command) -> Result<f64> {
    let before = cpu_ticks("self", CHILDREN_TIME)?;
    run(command)?;
    Ok((cpu_ticks("self", CHILDREN_TIME)? - before) / TICKS_PER_SECOND)
}

/// Starts redis-server by the command that `prepare` returns for the usual one, loads it by redis-benchmark, and ends
/// it. Returns the server's processor time in seconds.
pub(crate) fn measure_redis_cpu_seconds(prepare: impl FnOnce(Command) -> Command) -> Result<f64> {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("redis.sock");
    let path = socket.to_string_lossy();
    let args = ["--port", "0", "--unixsocket", &path, "--save", ""];
    let mut server = prepare(command("redis-server", &args));
    let mut server = server
        .stdout(Stdio::null())
        .spawn()
        .context("redis-server")?;
    wait_for_socket(&socket)?;
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
    let server_ticks = cpu_ticks(&server.id().to_string(), OWN_TIME)?;
    // The server exits without a reply, so redis-cli fails.
    let ended = command("redis-cli", &["-s", &path, "shutdown", "nosave"]).output()?;
    let status = server.wait()?;
    ensure!(status.success(), "redis-server: {status}; {ended:?}");
    Ok(server_ticks / TICKS_PER_SECOND)
}

/// Waits until redis-server has created its socket. Fails after 30 seconds.
fn wait_for_socket(socket: &Path) -> Result<()> {
    let start = Instant::now();
    while !socket.exists() {
        ensure!(
            start.elapsed() < Duration::from_secs(30),
            "redis-server does not start"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// `USER_HZ`, which is 100 on x86-64.
const TICKS_PER_SECOND: f64 = 100.0;

/// Index of `utime`, which `stime` follows, in the fields of `proc_pid_stat(5)` after the name.
const OWN_TIME: usize = 11;
/// Index of `cutime`, which `cstime` follows.
const CHILDREN_TIME: usize = 13;

/// Returns the time in user mode and in the kernel, in clock ticks: of a process if `first` is [`OWN_TIME`], of its
/// children that were waited for if `first` is [`CHILDREN_TIME`]. `process` is a pid, or `self`.
fn cpu_ticks(process: &str, first: usize) -> Result<f64> {
    let path = format!("/proc/{process}/stat");
    let stat = fs::read_to_string(&path).context(path)?;
    // The name is in parentheses, and may have some itself.
    let (_, after_name) = stat.rsplit_once(") ").context("stat has no name")?;
    let times = after_name.split(' ').skip(first).take(2);
    let times: Vec<f64> = times.map(str::parse).collect::<Result<_, _>>()?;
    Ok(times.iter().sum())
}
