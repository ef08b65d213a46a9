//! What this program does under itself: `bench as ROLE …`.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, BufReader, Write};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use memprof_report::{Limits, parse, unsample};

use super::{measure, names};

/// Plays a role.
pub(crate) fn play(role: &[&str]) -> Result<()> {
    match *role {
        ["measure", ref command @ ..] => measure::measure(command),
        ["parse", file] => parse_file(file),
        ["pprof_util", file] => pprof_util(file),
        ["names", "memprof"] => names::ours(),
        ["names", "blazesym"] => names::blazesym(),
        ["memchr", file] => parse_and_memchr(file),
        _ => bail!("no role: {role:?}"),
    }
}

fn parse_file(file: &str) -> Result<()> {
    let mut bytes = BufReader::with_capacity(256 << 10, File::open(file)?);
    let mut profile = parse(&mut bytes, &Limits::default(), false)?;
    unsample(&mut profile)?;
    Ok(())
}

fn pprof_util(file: &str) -> Result<()> {
    let profile = pprof_util::parse_jeheap(BufReader::new(File::open(file)?), None)?;
    let pprof = profile.to_pprof(("inuse_space", "bytes"), ("space", "bytes"), None);
    io::stdout().write_all(&pprof)?;
    Ok(())
}

/// Prints the seconds of parse, unsample and intern, and those of one pass of memchr over the same buffer: for its
/// line ends, as any parser must, and for a byte that never comes.
fn parse_and_memchr(file: &str) -> Result<()> {
    let bytes = fs::read(file)?;
    let ours = fastest(|| {
        let mut profile = parse(&mut &bytes[..], &Limits::default(), false)?;
        unsample(&mut profile)
    })?;
    let lines = fastest(|| {
        for end in memchr::memchr_iter(b'\n', &bytes) {
            black_box(end);
        }
        Ok(())
    })?;
    let nothing = fastest(|| {
        black_box(memchr::memchr(0, black_box(&bytes)));
        Ok(())
    })?;
    println!("{ours} {lines} {nothing}");
    Ok(())
}

/// Seconds of the fastest of 20 runs.
fn fastest(mut run: impl FnMut() -> memprof_report::Result<()>) -> Result<f64> {
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed());
    }
    Ok(best.as_secs_f64())
}
