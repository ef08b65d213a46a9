//! Cost of memprof's sampler in real programs, against the same programs without it, in alternating rounds.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use xtask::dist::dist_dir;

use crate::limits::Measurements;
use crate::ratios::Ratios;
use crate::work;

const ROUNDS: usize = 15;

/// Name and command of a program.
type Program = (&'static str, fn() -> Command);

const PROGRAMS: [Program; 3] = [
    ("perl", work::perl_command),
    ("python3", work::python_command),
    ("cc1plus", work::compiler_command),
];

/// Kind of a run.
#[derive(Clone, Copy)]
enum Variant {
    /// Without the plugin.
    Bare,
    /// With the plugin, which does not sample. Because of the plugin's thread, glibc uses its locks even in a program
    /// with one thread.
    Loaded,
    /// With sampling from the start, at the default interval.
    Sampled,
}

use Variant::{Bare, Loaded, Sampled};

/// Records the processor time of programs that are sampled, relative to the same programs with only the plugin loaded.
pub(super) fn measure_programs(measurements: &mut Measurements) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let socket_dir = directory.path().join("run");
    for (name, command) in PROGRAMS {
        record_program(name, measurements, |variant| {
            work::measure_cpu_seconds(&mut variant_command(variant, command(), &socket_dir))
        })?;
    }
    record_program("redis-server", measurements, |variant| {
        work::measure_redis_cpu_seconds(|server| variant_command(variant, server, &socket_dir))
    })
}

/// Times a program in all variants, and records the ratio of the processor times with and without sampling.
fn record_program(
    program: &str,
    measurements: &mut Measurements,
    time: impl Fn(Variant) -> Result<f64>,
) -> Result<()> {
    let (mut loaded, mut sampled) = (Vec::new(), Vec::new());
    let orders = [
        [Bare, Loaded, Sampled],
        [Sampled, Bare, Loaded],
        [Loaded, Sampled, Bare],
    ];
    // Each variant comes first equally often.
    for order in orders.into_iter().cycle().take(ROUNDS) {
        let (mut bare, mut idle, mut active) = (0.0, 0.0, 0.0);
        for variant in order {
            let seconds = time(variant)?;
            match variant {
                Bare => bare = seconds,
                Loaded => idle = seconds,
                Sampled => active = seconds,
            }
        }
        loaded.push(idle / bare);
        sampled.push(active / idle);
    }
    let (loaded, sampled) = (Ratios::new(&loaded), Ratios::new(&sampled));
    measurements.record(
        &format!("time of the processor, sampled / only loaded, {program}"),
        sampled.median(),
        format_args!("{sampled}; only loaded / bare: {loaded}"),
    )
}

/// Returns the command of a program as this variant starts it.
fn variant_command(variant: Variant, command: Command, socket_dir: &Path) -> Command {
    let mut run = Command::new(dist_dir().join("bin/memprof"));
    run.args(["run", "--socket-dir"]).arg(socket_dir);
    match variant {
        Bare => return command,
        Loaded => {}
        Sampled => drop(run.arg("--active")),
    }
    run.arg("--")
        .arg(command.get_program())
        .args(command.get_args());
    let set = command.get_envs();
    run.envs(set.filter_map(|(key, value)| Some((key, value?))));
    if let Some(directory) = command.get_current_dir() {
        run.current_dir(directory);
    }
    run
}
