//! Roles of this program as a child of itself: `bench as ROLE …`.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, BufReader, Write};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use memprof_report::{Limits, parse_profile, unsample};

use super::{process_usage, symbolizing};

/// Runs the role for which the bench has started this process: its name, then its arguments.
pub(crate) fn run_role(role: &[&str]) -> Result<()> {
    match *role {
        ["measure", ref command @ ..] => process_usage::measure_command(command),
        ["parse", file] => parse_file(file),
        ["pprof_util", file] => convert_by_pprof_util(file),
        ["names", "memprof"] => symbolizing::symbolize_by_memprof(),
        ["names", "blazesym"] => symbolizing::symbolize_by_blazesym(),
        ["memchr", file] => print_parse_and_memchr_seconds(file),
        _ => bail!("no role: {role:?}"),
    }
}

/// Parses, unsamples and interns a dump, and prints nothing: the parent process measures time and memory.
fn parse_file(file: &str) -> Result<()> {
    let mut bytes = BufReader::with_capacity(256 << 10, File::open(file)?);
    let mut profile = parse_profile(&mut bytes, &Limits::default(), false)?;
    unsample(&mut profile)?;
    Ok(())
}

/// Converts a dump to pprof with the crate `pprof_util`, and writes it to stdout.
fn convert_by_pprof_util(file: &str) -> Result<()> {
    let profile = pprof_util::parse_jeheap(BufReader::new(File::open(file)?), None)?;
    let pprof = profile.to_pprof(("inuse_space", "bytes"), ("space", "bytes"), None);
    io::stdout().write_all(&pprof)?;
    Ok(())
}

/// Prints three times in seconds, each the fastest of several runs: to parse and unsample the file, to find its line
/// ends with memchr, which any parser must do, and to scan it with memchr for a byte that does not occur.
fn print_parse_and_memchr_seconds(file: &str) -> Result<()> {
    let bytes = fs::read(file)?;
    let parsing = measure_fastest_seconds(|| {
        let mut profile = parse_profile(&mut &bytes[..], &Limits::default(), false)?;
        unsample(&mut profile)
    })?;
    let lines = measure_fastest_seconds(|| {
        for end in memchr::memchr_iter(b'\n', &bytes) {
            black_box(end);
        }
        Ok(())
    })?;
    let absent_byte = measure_fastest_seconds(|| {
        black_box(memchr::memchr(0, black_box(&bytes)));
        Ok(())
    })?;
    println!("{parsing} {lines} {absent_byte}");
    Ok(())
}

/// Calls a function 20 times and returns the seconds of the fastest call.
fn measure_fastest_seconds(mut run: impl FnMut() -> memprof_report::Result<()>) -> Result<f64> {
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed());
    }
    Ok(best.as_secs_f64())
}
