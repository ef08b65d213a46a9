//! `cargo xtask bench unwind`: what our walk costs beside jemalloc's own, both in one run, and
//! beside each speed how many stacks were the same: a short stack is always fast.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::probe::{self, Mode, Report};
use crate::dist::{self, Profile, dist};
use crate::packages;
use crate::run::{output, root};

/// Each round of the micro benchmark allocates so often, for about 0.6 GB.
const ALLOCATIONS: &str = "1000000";
const ROUNDS: &str = "21";
/// Each program runs so often.
const RUNS: usize = 5;
/// log2 of the sample interval in real programs, with which the walk is most of a sample.
const LG_SAMPLE: u32 = 14;

/// Enough work for a compiler, an interpreter of Perl and one of Python.
const TEMPLATES: &str = "xtask/src/unwind/templates.cc";
const PERL: &str = "my %h; for my $i (1..2000000) { $h{\"k$i\"} = [$i, 'x' x ($i % 100)]; \
                    delete $h{'k' . ($i - 1000)} if $i > 1000; }";
const PYTHON: &str = "import json\nkept = {}\n\
                      def deep(n): return [n] + (deep(n - 1) if n else [])\n\
                      for i in range(150000):\n \
                      kept[i] = json.loads('{\"a\": [1, 2, 3], \"b\": \"%d\"}' % i)\n \
                      kept.pop(i - 2000, None)\n \
                      if i % 1000 == 0: deep(100)\n";

/// Measures and prints.
pub(crate) fn run() -> Result<()> {
    packages::require(packages::BUILD)?;
    packages::require(packages::TEST)?;
    dist::build_unwind(Profile::Release)?;
    println!(
        "load average at the start: {}",
        std::fs::read_to_string("/proc/loadavg")?.trim_end()
    );
    for (lg_sample, limit) in [(19, 0.40), (17, 0.30), (14, 0.30), (12, 0.30)] {
        micro(lg_sample, limit)?;
    }
    real("perl", Some(0.20), || shell_free("perl", &["-e", PERL]))?;
    real("cc1plus", Some(0.20), || {
        shell_free("g++", &["-O2", "-S", "-o", "/dev/null", TEMPLATES])
    })?;
    real("python3", None, || {
        let mut python = shell_free("/usr/bin/python3", &["-c", PYTHON]);
        python.env("PYTHONMALLOC", "malloc");
        python
    })?;
    redis()
}

fn shell_free(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// What a sample costs at the end of twenty calls: (ours − off) / (theirs − off).
fn micro(lg_sample: u32, limit: f64) -> Result<()> {
    let micro = dist().join("torture/micro");
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
    println!(
        "micro, 20 frames, lg {lg_sample}: (ours - off) / (jemalloc's own - off) {}, limit \
         {limit:.2}; no walk at all {}; same {}",
        Ratios::of(ours)?,
        Ratios::of(none)?,
        report.agreement()
    );
    Ok(())
}

/// The walk alone in a real program, and whether it finds the same.
fn real(program: &str, limit: Option<f64>, command: impl Fn() -> Command) -> Result<()> {
    let mut ratios = Vec::new();
    for _ in 0..RUNS {
        let report = probe::run(command(), program_name(program), Mode::Timed, LG_SAMPLE)?;
        ratios.push(report.our_ticks / report.their_ticks);
    }
    let report = probe::run(command(), program_name(program), Mode::Compared, LG_SAMPLE)?;
    print_walk(program, &Ratios::of(ratios)?, limit, &report);
    Ok(())
}

/// A `python3` of a distribution is a link.
fn program_name(program: &str) -> &str {
    program
}

fn print_walk(program: &str, ratios: &Ratios, limit: Option<f64>, report: &Report) {
    let limit = limit.map_or(String::new(), |limit| format!(", limit {limit:.2}"));
    println!(
        "walk only, {program}, lg {LG_SAMPLE}: ours / jemalloc's own {ratios}{limit}; same {}, {} \
         left to jemalloc, {} cut",
        report.agreement(),
        report.fallbacks,
        report.cut
    );
}

/// redis-server under its own benchmark.
fn redis() -> Result<()> {
    let timed = (0..RUNS)
        .map(|_| redis_once(Mode::Timed))
        .collect::<Result<Vec<_>>>()?;
    let ratios = timed
        .iter()
        .map(|report| report.our_ticks / report.their_ticks);
    let report = redis_once(Mode::Compared)?;
    print_walk(
        "redis-server",
        &Ratios::of(ratios.collect())?,
        None,
        &report,
    );
    Ok(())
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

/// Ratios of several rounds; prints as `0.26 (0.25..0.28)`, the median and the range.
struct Ratios(Vec<f64>);

impl Ratios {
    fn of(mut ratios: Vec<f64>) -> Result<Self> {
        ensure!(!ratios.is_empty(), "nothing was measured");
        ratios.sort_by(f64::total_cmp);
        Ok(Self(ratios))
    }
}

impl std::fmt::Display for Ratios {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(sorted) = self;
        write!(
            f,
            "{:.3} ({:.3}..{:.3})",
            sorted[sorted.len() / 2],
            sorted[0],
            sorted[sorted.len() - 1]
        )
    }
}
