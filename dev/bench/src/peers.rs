//! Time and memory of the reader, against jeprof, `pprof_util`, blazesym and memchr.
//!
//! Processes are measured from outside: this program starts itself once more. That process runs a role ([`roles`]) or
//! the other tool as its child, and reads the child's resource usage.

mod big_dump;
mod process_usage;
mod roles;
mod symbolizing;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use xtask::dist::dist_dir;
use xtask::run::{output, project_root};

use self::process_usage::{ProcessUsage, role_command};
use crate::limits::Measurements;

pub(crate) use self::roles::run_role;

/// Program of cc1plus.heap, for jeprof. If it is missing, jeprof finds fewer names.
const PROGRAM: &str = "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus";

/// Records memprof's time and memory beside those of jeprof, `pprof_util` and memchr, and prints those of blazesym.
pub(crate) fn measure_peers(measurements: &mut Measurements) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (real_dump, big_dump) = write_dumps(directory.path())?;
    let memprof = dist_dir().join("bin/memprof");
    let report = |arguments: &[&str], file: &Path| {
        let mut report = Command::new(&memprof);
        report.arg("report").args(arguments).arg(file);
        ProcessUsage::measure_fastest_run(&report, 5)
    };
    for (file, figure) in [
        (&real_dump, "jeprof's seconds / memprof's, cc1plus.heap"),
        (&big_dump, "jeprof's seconds / memprof's, big.heap"),
    ] {
        let mut jeprof = Command::new("jeprof");
        jeprof.args(["--collapsed", PROGRAM]).arg(file);
        let peer = ProcessUsage::measure_fastest_run(&jeprof, 1)
            .context("jeprof is in the package libjemalloc-dev")?;
        report(&["--format=collapsed"], file)?.record_against(figure, peer, measurements)?;
    }
    let peer = ProcessUsage::measure_fastest_run(
        &role_command(&["pprof_util".as_ref(), big_dump.as_ref()])?,
        5,
    )?;
    let memprof_usage = report(&["--format=pprof", "--no-symbols"], &big_dump)?;
    memprof_usage.record_against(
        "pprof_util's seconds / memprof's, big.heap",
        peer,
        measurements,
    )?;
    for reader in ["memprof", "blazesym"] {
        let mut symbolizer = role_command(&["names".as_ref(), reader.as_ref()])?;
        let usage = ProcessUsage::measure_fastest_run(&symbolizer, 3)?;
        println!(
            "10,000 addresses of this program by {reader}: {usage}; seconds of naming and names: {}",
            output(&mut symbolizer)?.trim()
        );
    }
    measure_parsing(&big_dump, measurements)
}

/// Records the time in which memprof-report parses, unsamples and interns a dump, as a multiple of the time in which
/// memchr finds its line ends, and the peak memory as a multiple of its bytes.
fn measure_parsing(file: &Path, measurements: &mut Measurements) -> Result<()> {
    let mut seconds = role_command(&["memchr".as_ref(), file.as_ref()])?;
    // The tunables keep freed memory mapped (mallopt(3)), so that the fastest of twenty runs has no page faults; memchr
    // has none either.
    let tunables = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=2147483648";
    let seconds = output(seconds.env("GLIBC_TUNABLES", tunables))?;
    let seconds: Vec<f64> = seconds
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let [parse, lines, absent_byte] = seconds[..] else {
        bail!("not three numbers: {seconds:?}");
    };
    measurements.record(
        "parsing / memchr_iter for line ends, big.heap",
        parse / lines,
        format_args!(
            "{:.1} ms; {:.1} passes of memchr for a byte that does not occur",
            parse * 1e3,
            parse / absent_byte
        ),
    )?;
    let parse =
        ProcessUsage::measure_fastest_run(&role_command(&["parse".as_ref(), file.as_ref()])?, 3)?;
    let size = fs::metadata(file)?.len() as f64;
    measurements.record(
        "memory of parsing / bytes, big.heap",
        parse.peak / size,
        parse,
    )
}

/// Writes cc1plus.heap from the corpus, and big.heap, which is generated from it. Prints their sizes, and returns both
/// paths.
fn write_dumps(directory: &Path) -> Result<(PathBuf, PathBuf)> {
    let (real_dump, big_dump) = (directory.join("cc1plus.heap"), directory.join("big.heap"));
    let packed = project_root().join("outside/memprof-report/tests/corpus/cc1plus.heap.gz");
    let text = output(Command::new("gzip").arg("-dc").arg(packed))?;
    fs::write(&real_dump, &text)?;
    let mut out = BufWriter::new(File::create(&big_dump)?);
    big_dump::write_big_dump(&text, &mut out)?;
    out.flush()?;
    for file in [&real_dump, &big_dump] {
        let size = fs::metadata(file)?.len() as f64 / 1e6;
        println!(
            "{}: {size:.1} MB",
            file.file_name().unwrap_or_default().display()
        );
    }
    Ok((real_dump, big_dump))
}
