//! Processor time of `memprof report`, after a change and before it, in alternating rounds.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use xtask::dist::dist_dir;
use xtask::run::project_root;

use crate::address_dump::dump_of_this_program;
use crate::limits::Measurements;
use crate::ratios::Ratios;
use crate::{synthetic, work};

/// Environment variable with the path of memprof as it was before the change.
const BEFORE: &str = "MEMPROF_BEFORE";

/// Even, so that each of the two programs comes first equally often.
const ROUNDS: usize = 10;

/// Least processor time of the runs of one round, in seconds: /proc has it in hundredths.
const ROUND_SECONDS: f64 = 1.0;

/// Nodes in the tree of the dump that has names.
const TREE_NODES: usize = 300_000;

/// Records the processor time of reports, relative to that of the program in [`BEFORE`].
pub(super) fn measure_reports(measurements: &mut Measurements) -> Result<()> {
    let before = env::var_os(BEFORE).with_context(|| {
        format!("{BEFORE} is not set: the path of memprof as it was before the change")
    })?;
    let directory = tempfile::tempdir()?;
    let named = directory.path().join("named.heap");
    fs::write(&named, synthetic::named_dump(TREE_NODES)?)?;
    let addresses = directory.path().join("addresses.heap");
    fs::write(&addresses, dump_of_this_program()?.0)?;
    let real = project_root().join("outside/memprof-report/tests/corpus/cc1plus.heap.gz");
    let names: &[&str] = &["--flat", "--lines", "--format=collapsed"];
    for (figure, options, file) in [
        (
            "time of a report, after / before, cc1plus.heap",
            &[][..],
            &real,
        ),
        (
            "time of a report, after / before, stacks with names",
            &[],
            &named,
        ),
        ("time of names and lines, after / before", names, &addresses),
    ] {
        let seconds = |program: &OsStr, runs: usize| -> Result<f64> {
            let times = (0..runs)
                .map(|_| work::measure_cpu_seconds(&mut report_command(program, options, file)));
            times.sum()
        };
        let ratios = measure_ratios(&before, dist_dir().join("bin/memprof").as_os_str(), seconds)?;
        measurements.record(figure, ratios.median(), &ratios)?;
    }
    Ok(())
}

/// Returns the ratios of the processor time of `after` to that of `before`, one for each round. `seconds` runs a
/// program the given number of times, and returns the sum of its seconds. The two programs come first in turn.
fn measure_ratios(
    before: &OsStr,
    after: &OsStr,
    seconds: impl Fn(&OsStr, usize) -> Result<f64>,
) -> Result<Ratios> {
    // The first runs also read the files into memory.
    let one = seconds(before, 2)?.max(seconds(after, 2)?) / 2.0;
    let runs = (ROUND_SECONDS / one.max(0.01)).ceil() as usize;
    let ratios = (0..ROUNDS).map(|round| {
        let (first, second) = if round % 2 == 0 {
            (before, after)
        } else {
            (after, before)
        };
        let times = (seconds(first, runs)?, seconds(second, runs)?);
        Ok(if round % 2 == 0 {
            times.1 / times.0
        } else {
            times.0 / times.1
        })
    });
    Ok(Ratios::new(&ratios.collect::<Result<Vec<f64>>>()?))
}

/// Returns the command of a report on a file, whose output is discarded.
fn report_command(program: &OsStr, options: &[&str], file: &Path) -> Command {
    let mut report = Command::new(program);
    report.arg("report").args(options).arg(file);
    report.stdout(Stdio::null()).stderr(Stdio::null());
    report
}
