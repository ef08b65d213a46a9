//! Reports of dumps of several sizes.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;
use xtask::dist::dist_dir;
use xtask::run::run;

use super::Growth;
use super::host::measure_median_milliseconds;
use crate::limits::Measurements;
use crate::synthetic;

/// Nodes of the call trees of 1, 10 and 100 MB.
const NODES: [usize; 3] = [25_000, 560_000, 5_800_000];

/// Records how the time of `memprof report` grows with the bytes of the dump, from about 1 to 100 MB.
pub(super) fn measure_reports_by_bytes(dir: &Path, measurements: &mut Measurements) -> Result<()> {
    let mut growth = Growth::default();
    let file = dir.join("report.heap");
    for nodes in NODES {
        let dump = synthetic::named_dump(nodes)?;
        fs::write(&file, &dump)?;
        let time = measure_median_milliseconds(|| {
            let mut report = Command::new(dist_dir().join("bin/memprof"));
            report.arg("report").arg("--no-symbols").arg(&file);
            run(report.stdout(Stdio::null()).stderr(Stdio::null()))
        })?;
        growth.add(dump.len(), time);
    }
    growth.record_exponent("exponent of a report, by bytes", measurements)
}
