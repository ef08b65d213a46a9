//! What the sampler costs real programs, beside the same programs without it, in turns.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use xtask::dist::dist;

use crate::limits::Measurements;
use crate::ratios::Ratios;
use crate::work;

const ROUNDS: usize = 15;

/// A program: its name, and how it is started.
type Program = (&'static str, fn() -> Command);

const PROGRAMS: [Program; 3] = [
    ("perl", work::perl),
    ("python3", work::python),
    ("cc1plus", work::compiler),
];

/// What a program runs with.
#[derive(Clone, Copy)]
enum Variant {
    Nothing,
    /// The plugin, which does not sample. A program of one thread has two then, and glibc takes its locks.
    Plugin,
    /// From its start, at the interval that one gets unasked.
    Samples,
}

use Variant::{Nothing, Plugin, Samples};

pub(super) fn measure(figures: &mut Measurements) -> Result<()> {
    let place = tempfile::tempdir()?;
    let socket_dir = place.path().join("run");
    for (name, command) in PROGRAMS {
        record_program(name, figures, |with| {
            work::seconds(&mut started(with, command(), &socket_dir))
        })?;
    }
    record_program("redis-server", figures, |with| {
        work::redis(|server| started(with, server, &socket_dir))
    })
}

fn record_program(
    program: &str,
    figures: &mut Measurements,
    time: impl Fn(Variant) -> Result<f64>,
) -> Result<()> {
    let (mut loaded, mut sampled) = (Vec::new(), Vec::new());
    let orders = [
        [Nothing, Plugin, Samples],
        [Samples, Nothing, Plugin],
        [Plugin, Samples, Nothing],
    ];
    // Each comes first as often as the others.
    for order in orders.into_iter().cycle().take(ROUNDS) {
        let (mut bare, mut idle, mut active) = (0.0, 0.0, 0.0);
        for with in order {
            let seconds = time(with)?;
            match with {
                Nothing => bare = seconds,
                Plugin => idle = seconds,
                Samples => active = seconds,
            }
        }
        loaded.push(idle / bare);
        sampled.push(active / idle);
    }
    let (loaded, sampled) = (Ratios::of(&loaded), Ratios::of(&sampled));
    figures.record(
        &format!("time of the processor, sampled / only loaded, {program}"),
        sampled.median(),
        format_args!("{sampled}; only loaded / bare: {loaded}"),
    )
}

fn started(with: Variant, command: Command, socket_dir: &Path) -> Command {
    let mut run = Command::new(dist().join("bin/memprof"));
    run.args(["run", "--socket-dir"]).arg(socket_dir);
    match with {
        Nothing => return command,
        Plugin => {}
        Samples => drop(run.arg("--active")),
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
