//! `cargo xtask bench unwind`: cost of memprof's stack walk against jemalloc's own, both in one run, with the share of
//! equal stacks, because a walk that ends too early is always fast.

use std::fmt;
use std::process::Command;

use anyhow::Result;

use torture::probe::{self, Report, WalkMode};
use xtask::dist::{self, Profile, dist_dir};
use xtask::packages;
use xtask::run::output;

use crate::limits::Measurements;
use crate::ratios::Ratios;
use crate::work;

/// Allocations of a round of the micro benchmark, about 0.6 GB.
const ALLOCATIONS: &str = "1000000";
const ROUNDS: &str = "21";
/// Timed runs of each program.
const RUNS: usize = 5;
/// Binary logarithm of the sample interval in real programs, at which the walk is most of a sample's cost.
const LG_SAMPLE: u32 = 14;

/// Records the walk's cost in the micro benchmark and in real programs.
pub(crate) fn measure_walks(measurements: &mut Measurements) -> Result<()> {
    packages::ensure_installed(packages::TEST)?;
    dist::build_unwind_probe(Profile::Release)?;
    let threads = ["-lpthread", "-ldl"];
    dist::compile(
        "cc",
        "dev/bench/src/unwind/micro.c",
        "bench/micro",
        &threads,
    )?;
    for lg_sample in [19, 17, 14, 12] {
        measure_micro(lg_sample, measurements)?;
    }
    let perl = measure_program("perl", work::perl_command)?;
    measurements.record(
        "memprof's walk / jemalloc's, perl",
        perl.ratios.median(),
        perl,
    )?;
    let compiler = measure_program("cc1plus", work::compiler_command)?;
    let median = compiler.ratios.median();
    measurements.record("memprof's walk / jemalloc's, cc1plus", median, compiler)?;
    let python = measure_program("python3", work::python_command)?;
    println!("memprof's walk / jemalloc's, python3: {python}");
    println!(
        "memprof's walk / jemalloc's, redis-server: {}",
        measure_redis()?
    );
    Ok(())
}

/// Records the cost of a sample at a depth of twenty calls: (memprof − no sampling) / (jemalloc − no sampling). The
/// sample interval is 2 to the power of `lg_sample` bytes.
fn measure_micro(lg_sample: u32, measurements: &mut Measurements) -> Result<()> {
    let program = dist_dir().join("bench/micro");
    let directory = tempfile::tempdir()?;
    let mut timed = work::command(&program.to_string_lossy(), &[ROUNDS, ALLOCATIONS]);
    probe::preload(
        &mut timed,
        WalkMode::Allocator,
        lg_sample,
        &directory.path().join("reports"),
    );
    let (mut memprof, mut none) = (Vec::new(), Vec::new());
    let text = output(&mut timed)?;
    for line in text.lines() {
        let costs: Vec<f64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [allocator, no_walk, walk] = costs[..] else {
            anyhow::bail!("micro printed {line:?}");
        };
        none.push(no_walk / allocator);
        memprof.push(walk / allocator);
    }
    let compared = work::command(&program.to_string_lossy(), &["0", "3000000"]);
    let report = probe::run(compared, "micro", WalkMode::Compared, lg_sample)?;
    let memprof = Ratios::new(&memprof);
    measurements.record(
        &format!("memprof's walk / jemalloc's, micro, lg {lg_sample}"),
        memprof.median(),
        format_args!(
            "{memprof} of what a sample after 20 calls costs; no walk at all {}; same {}",
            Ratios::new(&none),
            report.agreement()
        ),
    )
}

/// Cost of the walk in a real program, and how often it finds jemalloc's stack.
struct WalkCost {
    /// Ticks of memprof's walk divided by those of jemalloc's.
    ratios: Ratios,
    compared: Report,
}

impl fmt::Display for WalkCost {
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

/// Measures the walk in the process `program` that `command` starts, with the sample interval of [`LG_SAMPLE`].
fn measure_program(program: &str, command: impl Fn() -> Command) -> Result<WalkCost> {
    WalkCost::measure(|mode| probe::run(command(), program, mode, LG_SAMPLE))
}

impl WalkCost {
    /// Times the walks in [`RUNS`] runs of a program, and compares their stacks in one more.
    fn measure(run: impl Fn(WalkMode) -> Result<Report>) -> Result<Self> {
        let timed = (0..RUNS).map(|_| run(WalkMode::Timed));
        let timed = timed.collect::<Result<Vec<_>>>()?;
        let ratios = timed
            .iter()
            .map(|report| report.memprof_ticks / report.allocator_ticks);
        Ok(Self {
            ratios: Ratios::new(&ratios.collect::<Vec<_>>()),
            compared: run(WalkMode::Compared)?,
        })
    }
}

/// Measures the walk in redis-server under redis-benchmark.
fn measure_redis() -> Result<WalkCost> {
    WalkCost::measure(run_redis)
}

/// Runs redis-benchmark on a server with the probe. Returns the server's report.
fn run_redis(mode: WalkMode) -> Result<Report> {
    let directory = tempfile::tempdir()?;
    let reports = directory.path().join("reports");
    work::measure_redis_cpu_seconds(|mut server| {
        probe::preload(&mut server, mode, LG_SAMPLE, &reports);
        server
    })?;
    probe::read_report(&reports, "redis-server")
}
