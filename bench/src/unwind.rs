//! `cargo xtask bench unwind`: what our walk costs beside jemalloc's own, both in one run, and
//! beside each speed how many stacks were the same: a short stack is always fast.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use torture::probe::{self, Mode, Report};
use torture::programs::build_probe;
use xtask::dist::{self, Profile, dist};
use xtask::packages;
use xtask::run::{output, root};

use crate::limits::Figures;
use crate::ratios::Ratios;

/// Each round of the micro benchmark allocates so often, for about 0.6 GB.
const ALLOCATIONS: &str = "1000000";
const ROUNDS: &str = "21";
/// Each program runs so often.
const RUNS: usize = 5;
/// log2 of the sample interval in real programs, with which the walk is most of a sample.
const LG_SAMPLE: u32 = 14;

/// Enough work for a compiler, an interpreter of Perl and one of Python.
const TEMPLATES: &str = "bench/src/unwind/templates.cc";
const PERL: &str = "my %h; for my $i (1..2000000) { $h{\"k$i\"} = [$i, 'x' x ($i % 100)]; \
                    delete $h{'k' . ($i - 1000)} if $i > 1000; }";
const PYTHON: &str = "import json\nkept = {}\n\
                      def deep(n): return [n] + (deep(n - 1) if n else [])\n\
                      for i in range(150000):\n \
                      kept[i] = json.loads('{\"a\": [1, 2, 3], \"b\": \"%d\"}' % i)\n \
                      kept.pop(i - 2000, None)\n \
                      if i % 1000 == 0: deep(100)\n";

/// Measures and prints.
pub(crate) fn measure(figures: &mut Figures) -> Result<()> {
    packages::require(packages::TEST)?;
    build_probe(Profile::Release)?;
    let threads = ["-lpthread", "-ldl"];
    dist::compile("cc", "bench/src/unwind/micro.c", "bench/micro", &threads)?;
    for lg_sample in [19, 17, 14, 12] {
        micro(lg_sample, figures)?;
    }
    let perl = real("perl", || shell_free("perl", &["-e", PERL]))?;
    figures.tell("our walk / jemalloc's, perl", perl.ratios.median(), perl)?;
    let compiler = real("cc1plus", || {
        shell_free("g++", &["-O2", "-S", "-o", "/dev/null", TEMPLATES])
    })?;
    let median = compiler.ratios.median();
    figures.tell("our walk / jemalloc's, cc1plus", median, compiler)?;
    let python = real("python3", || {
        let mut python = shell_free("/usr/bin/python3", &["-c", PYTHON]);
        python.env("PYTHONMALLOC", "malloc");
        python
    })?;
    println!("our walk / jemalloc's, python3: {python}");
    println!("our walk / jemalloc's, redis-server: {}", redis()?);
    Ok(())
}

fn shell_free(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// What a sample costs at the end of twenty calls: (ours − off) / (theirs − off).
fn micro(lg_sample: u32, figures: &mut Figures) -> Result<()> {
    let micro = dist().join("bench/micro");
    let place = tempfile::tempdir()?;
    let mut timed = shell_free(&micro.to_string_lossy(), &[ROUNDS, ALLOCATIONS]);
    probe::preload(
        &mut timed,
        Mode::Theirs,
        lg_sample,
        &place.path().join("reports"),
    );
    let (mut ours, mut none) = (Vec::new(), Vec::new());
    let text = output(&mut timed)?;
    for line in text.lines() {
        let costs: Vec<f64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [theirs, nobody, own] = costs[..] else {
            anyhow::bail!("micro printed {line:?}");
        };
        none.push(nobody / theirs);
        ours.push(own / theirs);
    }
    let compared = shell_free(&micro.to_string_lossy(), &["0", "3000000"]);
    let report = probe::run(compared, "micro", Mode::Compared, lg_sample)?;
    let ours = Ratios::of(&ours);
    figures.tell(
        &format!("our walk / jemalloc's, micro, lg {lg_sample}"),
        ours.median(),
        format_args!(
            "{ours} of what a sample after 20 calls costs; no walk at all {}; same {}",
            Ratios::of(&none),
            report.agreement()
        ),
    )
}

/// The walk alone in a real program, and whether it finds the same.
struct Walk {
    ratios: Ratios,
    compared: Report,
}

impl fmt::Display for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ratios, compared } = self;
        write!(
            f,
            "{ratios}, lg {LG_SAMPLE}; same {}, {} left to jemalloc, {} cut",
            compared.agreement(),
            compared.fallbacks,
            compared.cut
        )
    }
}

fn real(program: &str, command: impl Fn() -> Command) -> Result<Walk> {
    Walk::of(|mode| probe::run(command(), program, mode, LG_SAMPLE))
}

impl Walk {
    fn of(run: impl Fn(Mode) -> Result<Report>) -> Result<Self> {
        let timed = (0..RUNS).map(|_| run(Mode::Timed));
        let timed = timed.collect::<Result<Vec<_>>>()?;
        let ratios = timed
            .iter()
            .map(|report| report.our_ticks / report.their_ticks);
        Ok(Self {
            ratios: Ratios::of(&ratios.collect::<Vec<_>>()),
            compared: run(Mode::Compared)?,
        })
    }
}

/// redis-server under its own benchmark.
fn redis() -> Result<Walk> {
    Walk::of(redis_once)
}

fn redis_once(mode: Mode) -> Result<Report> {
    let place = tempfile::tempdir()?;
    let reports = place.path().join("reports");
    let socket = place.path().join("redis.sock");
    let path = socket.to_string_lossy();
    let mut server = shell_free(
        "redis-server",
        &[
            "--port",
            "0",
            "--unixsocket",
            &path,
            "--save",
            "",
            "--daemonize",
            "no",
        ],
    );
    probe::preload(&mut server, mode, LG_SAMPLE, &reports);
    let mut server = server
        .stdout(std::process::Stdio::null())
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
    output(&mut shell_free("redis-benchmark", &load))?;
    output(&mut shell_free("redis-cli", &["-s", &path, "info"]))?;
    // Answers nothing: it ends.
    let ended = shell_free("redis-cli", &["-s", &path, "shutdown", "nosave"]).output()?;
    let status = server.wait()?;
    ensure!(status.success(), "redis-server: {status}; {ended:?}");
    probe::read(&reports, "redis-server")
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
