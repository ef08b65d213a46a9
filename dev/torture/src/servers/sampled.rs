//! Samples a running server: the report names the load's function, and all GOT slots are restored afterwards.

use std::fmt;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::{RunningServer, Server};

use super::tools::Tools;
use crate::slots::Slots;

/// Arguments of `activate`, with a short sample interval.
pub(super) const ACTIVATE_ARGS: [&str; 2] = ["sampler=memprof", "sample_interval=16KiB"];

/// Minimum share of the load's function, in per cent. It is small because `named` builds a whole view when it loads a
/// zone.
const MIN_SHARE: f64 = 1.0;

/// Figures of a sampled server.
#[derive(Debug)]
pub(super) struct SampleReport {
    patched: u64,
    foreign: u64,
    samples: u64,
    live: u64,
    lost: u64,
    /// Function of the load with the most live bytes below it, and its share in per cent.
    function: String,
    share: f64,
}

impl fmt::Display for SampleReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} slots patched, {} foreign; {} samples, {} live, {} lost; {:.0} % under {}",
            self.patched,
            self.foreign,
            self.samples,
            self.live,
            self.lost,
            self.share,
            self.function
        )
    }
}

/// Activates sampling, runs the load, dumps, deactivates and resets. Fails if a sample is lost, if too little of the
/// live memory is attributed to the load, or if the GOT slots are not restored.
pub(super) fn sample(
    tools: &Tools,
    server: &Server,
    running: &mut RunningServer,
) -> Result<SampleReport> {
    let pid = running.pid()?;
    let before = Slots::read(pid)?;
    let active = tools.send(pid, "activate", &ACTIVATE_ARGS)?;
    ensure!(active["profiling"] == "active", "{active}");
    running.run_load()?;
    let during = sampled_allocator_status(&tools.send(pid, "status", &[])?)?;
    let dump = tools.file_path("dump.heap")?;
    tools.run_memprof(&["dump", "-t", &pid.to_string(), "-o", &dump])?;
    let json = tools.run_memprof(&["report", &dump, "--format", "json", "--cum"])?;
    let (function, share) =
        find_largest_function(&serde_json::from_str(&json)?, server.load_symbol)?;
    tools.send(pid, "deactivate", &[])?;
    tools.send(pid, "reset", &[])?;
    let after = sampled_allocator_status(&tools.send(pid, "status", &[])?)?;
    ensure!(
        after["slots"]["patched"] == 0,
        "slots are not restored: {after}"
    );
    Slots::read(pid)?.check_equal(&before)?;
    running.check_alive()?;
    let number = |value: &Value| value.as_u64().context("a number");
    let report = SampleReport {
        patched: number(&during["slots"]["patched"])?,
        foreign: number(&during["slots"]["foreign"])?,
        samples: number(&during["samples"])?,
        live: number(&during["live_samples"])?,
        lost: number(&during["lost"])?,
        function,
        share,
    };
    ensure!(report.lost == 0 && report.live > 0, "{report}");
    ensure!(report.share >= MIN_SHARE, "{report}");
    Ok(report)
}

/// Returns the part of a reply to `status` about the allocator that memprof's sampler serves. Fails if there is none.
fn sampled_allocator_status(status: &Value) -> Result<Value> {
    let allocators = status["allocators"].as_array().context("allocators")?;
    let status_of_sampler = allocators.iter().find(|each| each["sampler"] == "memprof");
    status_of_sampler
        .cloned()
        .with_context(|| format!("no allocator is sampled by memprof: {status}"))
}

/// Returns the first function in a report's order, by live bytes, whose name contains `part`, and its share of all live
/// bytes in per cent. Fails if there is none.
fn find_largest_function(report: &Value, part: &str) -> Result<(String, f64)> {
    let functions = report["functions"].as_array().context("functions")?;
    let name = |function: &Value| function["name"].as_str().unwrap_or_default().to_owned();
    let all: Vec<_> = functions.iter().map(name).collect();
    let function = functions.iter().find(|each| name(each).contains(part));
    let function = function.with_context(|| format!("no {part} among {all:?}"))?;
    let total = report["totals"]["inuse_space"].as_f64().context("total")?;
    let held = function["cum"].as_f64().context("cum")?;
    Ok((name(function), 100.0 * held / total))
}
