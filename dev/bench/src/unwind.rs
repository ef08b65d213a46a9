//! `cargo xtask bench unwind`: what our walk costs beside jemalloc's own, both in one run, and
//! beside each speed how many stacks were the same: a short stack is always fast.

use std::fmt;
use std::process::Command;

use anyhow::Result;

use torture::probe::{self, Mode, Report};
use torture::programs::build_probe;
use xtask::dist::{self, Profile, dist};
use xtask::packages;
use xtask::run::output;

use crate::limits::Measurements;
use crate::ratios::Ratios;
use crate::work;

/// Each round of the micro benchmark allocates so often, for about 0.6 GB.
const ALLOCATIONS: &str = "1000000";
const ROUNDS: &str = "21";
/// Each program runs so often.
const RUNS: usize = 5;
/// log2 of the sample interval in real programs, with which the walk is most of a sample.
const LG_SAMPLE: u32 = 14;

/// Measures and prints.
pub(crate) fn measure(figures: &mut Measurements) -> Result<()> {
    packages::require(packages::TEST)?;
    build_probe(Profile::Release)?;
    let threads = ["-lpthread", "-ldl"];
    dist::compile(
        "cc",
        "dev/bench/src/unwind/micro.c",
        "bench/micro",
        &threads,
    )?;
    for lg_sample in [19, 17, 14, 12] {
        micro(lg_sample, figures)?;
    }
    let perl = real("perl", work::perl)?;
    figures.record("our walk / jemalloc's, perl", perl.ratios.median(), perl)?;
    let compiler = real("cc1plus", work::compiler)?;
    let median = compiler.ratios.median();
    figures.record("our walk / jemalloc's, cc1plus", median, compiler)?;
    let python = real("python3", work::python)?;
    println!("our walk / jemalloc's, python3: {python}");
    println!("our walk / jemalloc's, redis-server: {}", redis()?);
    Ok(())
}

/// What a sample costs at the end of twenty calls: (ours − off) / (theirs − off).
fn micro(lg_sample: u32, figures: &mut Measurements) -> Result<()> {
    let micro = dist().join("bench/micro");
    let place = tempfile::tempdir()?;
    let mut timed = work::command(&micro.to_string_lossy(), &[ROUNDS, ALLOCATIONS]);
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
    let compared = work::command(&micro.to_string_lossy(), &["0", "3000000"]);
    let report = probe::run(compared, "micro", Mode::Compared, lg_sample)?;
    let ours = Ratios::of(&ours);
    figures.record(
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
struct WalkCost {
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

fn real(program: &str, command: impl Fn() -> Command) -> Result<WalkCost> {
    WalkCost::of(|mode| probe::run(command(), program, mode, LG_SAMPLE))
}

impl WalkCost {
    fn of(run: impl Fn(Mode) -> Result<Report>) -> Result<Self> {
        let timed = (0..RUNS).map(|_| run(Mode::Timed));
        let timed = timed.collect::<Result<Vec<_>>>()?;
        let ratios = timed
            .iter()
            .map(|report| report.memprof_ticks / report.allocator_ticks);
        Ok(Self {
            ratios: Ratios::of(&ratios.collect::<Vec<_>>()),
            compared: run(Mode::Compared)?,
        })
    }
}

/// redis-server under its own benchmark.
fn redis() -> Result<WalkCost> {
    WalkCost::of(redis_once)
}

fn redis_once(mode: Mode) -> Result<Report> {
    let place = tempfile::tempdir()?;
    let reports = place.path().join("reports");
    work::redis(|mut server| {
        probe::preload(&mut server, mode, LG_SAMPLE, &reports);
        server
    })?;
    probe::read(&reports, "redis-server")
}
