//! The reader beside jeprof, `pprof_util`, blazesym and memchr: how long each takes, and how much memory.
//!
//! Processes are measured from outside: this program starts itself with a role ([`roles`]), or the peer, under
//! itself, and reads what its child used.

mod big;
mod measure;
mod names;
mod roles;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use xtask::dist::dist;
use xtask::run::{output, root};

use self::measure::{ProcessUsage, in_role};
use crate::limits::Measurements;

pub(crate) use self::roles::play;

/// The program of cc1plus.heap, for jeprof. Any executable does where it is missing, with fewer names.
const PROGRAM: &str = "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus";

/// Measures.
pub(crate) fn measure(figures: &mut Measurements) -> Result<()> {
    let place = tempfile::tempdir()?;
    let (real, big) = dumps(place.path())?;
    let memprof = dist().join("bin/memprof");
    let report = |arguments: &[&str], file: &Path| {
        let mut report = Command::new(&memprof);
        report.arg("report").args(arguments).arg(file);
        ProcessUsage::of(&report, 5)
    };
    for (file, figure) in [
        (&real, "jeprof's seconds / ours, cc1plus.heap"),
        (&big, "jeprof's seconds / ours, big.heap"),
    ] {
        let mut jeprof = Command::new("jeprof");
        jeprof.args(["--collapsed", PROGRAM]).arg(file);
        let peer =
            ProcessUsage::of(&jeprof, 1).context("jeprof is in the package libjemalloc-dev")?;
        report(&["--format=collapsed"], file)?.record_against(figure, peer, figures)?;
    }
    let peer = ProcessUsage::of(&in_role(&["pprof_util".as_ref(), big.as_ref()])?, 5)?;
    let ours = report(&["--format=pprof", "--no-symbols"], &big)?;
    ours.record_against("pprof_util's seconds / ours, big.heap", peer, figures)?;
    for reader in ["memprof", "blazesym"] {
        let mut naming = in_role(&["names".as_ref(), reader.as_ref()])?;
        let usage = ProcessUsage::of(&naming, 3)?;
        println!(
            "10,000 addresses of this program by {reader}: {usage}; seconds of naming and names: {}",
            output(&mut naming)?.trim()
        );
    }
    parsing(&big, figures)
}

/// Parse, unsample and intern: against memchr, and their memory.
fn parsing(file: &Path, figures: &mut Measurements) -> Result<()> {
    let mut seconds = in_role(&["memchr".as_ref(), file.as_ref()])?;
    // Freed memory stays mapped (mallopt(3)): of twenty runs the fastest pays for its own work, not for page
    // faults, as memchr does not.
    let tunables = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=2147483648";
    let seconds = output(seconds.env("GLIBC_TUNABLES", tunables))?;
    let seconds: Vec<f64> = seconds
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let [ours, lines, nothing] = seconds[..] else {
        bail!("not three numbers: {seconds:?}");
    };
    figures.record(
        "parsing / memchr_iter for line ends, big.heap",
        ours / lines,
        format_args!(
            "{:.1} ms; {:.1} passes of memchr for a byte that never comes",
            ours * 1e3,
            ours / nothing
        ),
    )?;
    let parse = ProcessUsage::of(&in_role(&["parse".as_ref(), file.as_ref()])?, 3)?;
    let size = fs::metadata(file)?.len() as f64;
    figures.record(
        "memory of parsing / bytes, big.heap",
        parse.peak / size,
        parse,
    )
}

/// cc1plus.heap, and big.heap, which is made of it.
fn dumps(place: &Path) -> Result<(PathBuf, PathBuf)> {
    let (real, big) = (place.join("cc1plus.heap"), place.join("big.heap"));
    let packed = root().join("outside/memprof-report/tests/corpus/cc1plus.heap.gz");
    let text = output(Command::new("gzip").arg("-dc").arg(packed))?;
    fs::write(&real, &text)?;
    let mut out = BufWriter::new(File::create(&big)?);
    big::write(&text, &mut out)?;
    out.flush()?;
    for file in [&real, &big] {
        let size = fs::metadata(file)?.len() as f64 / 1e6;
        println!(
            "{}: {size:.1} MB",
            file.file_name().unwrap_or_default().display()
        );
    }
    Ok((real, big))
}
