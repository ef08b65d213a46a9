//! A server that runs already, sampled: what is seen of its load, and that nothing of us stays.

use std::fmt;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::{RunningServer, Server};

use super::tools::Tools;
use crate::slots::Slots;

pub(super) const FINE: [&str; 2] = ["sampler=memprof", "sample_interval=16KiB"];

/// A load is seen when its function holds so much, in per cent: named builds a whole view when it
/// loads a zone.
const LEAST_SHARE: f64 = 1.0;

/// What was seen.
#[derive(Debug)]
pub(super) struct SampleReport {
    patched: u64,
    foreign: u64,
    samples: u64,
    live: u64,
    lost: u64,
    /// The function under which most is held that belongs to the load, and its share in per cent.
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

/// Activates, lets it do its work, dumps, and gives everything back.
pub(super) fn sample(
    tools: &Tools,
    server: &Server,
    running: &mut RunningServer,
) -> Result<SampleReport> {
    let pid = running.pid()?;
    let before = Slots::read(pid)?;
    let active = tools.send(pid, "activate", &FINE)?;
    ensure!(active["profiling"] == "active", "{active}");
    running.run_load()?;
    let during = own_sampler_status(&tools.send(pid, "status", &[])?)?;
    let dump = tools.file("dump.heap")?;
    tools.memprof(&["dump", "-t", &pid.to_string(), "-o", &dump])?;
    let report = tools.memprof(&["report", &dump, "--format", "json", "--cum"])?;
    let (function, share) = found(&serde_json::from_str(&report)?, server.load_symbol)?;
    tools.send(pid, "deactivate", &[])?;
    tools.send(pid, "reset", &[])?;
    let after = own_sampler_status(&tools.send(pid, "status", &[])?)?;
    ensure!(after["slots"]["patched"] == 0, "not given back: {after}");
    Slots::read(pid)?.check_equal(&before)?;
    running.check_alive()?;
    let number = |value: &Value| value.as_u64().context("a number");
    let seen = SampleReport {
        patched: number(&during["slots"]["patched"])?,
        foreign: number(&during["slots"]["foreign"])?,
        samples: number(&during["samples"])?,
        live: number(&during["live_samples"])?,
        lost: number(&during["lost"])?,
        function,
        share,
    };
    ensure!(seen.lost == 0 && seen.live > 0, "{seen}");
    ensure!(seen.share >= LEAST_SHARE, "{seen}");
    Ok(seen)
}

/// The allocator that memprof samples.
fn own_sampler_status(status: &Value) -> Result<Value> {
    let allocators = status["allocators"].as_array().context("allocators")?;
    let ours = allocators.iter().find(|each| each["sampler"] == "memprof");
    ours.cloned()
        .with_context(|| format!("no allocator is sampled by memprof: {status}"))
}

/// The function with that part in its name that holds most, and its share of all.
fn found(report: &Value, part: &str) -> Result<(String, f64)> {
    let functions = report["functions"].as_array().context("functions")?;
    let name = |function: &Value| function["name"].as_str().unwrap_or_default().to_owned();
    let all: Vec<_> = functions.iter().map(name).collect();
    let function = functions.iter().find(|each| name(each).contains(part));
    let function = function.with_context(|| format!("no {part} among {all:?}"))?;
    let total = report["totals"]["inuse_space"].as_f64().context("total")?;
    let held = function["cum"].as_f64().context("cum")?;
    Ok((name(function), 100.0 * held / total))
}
