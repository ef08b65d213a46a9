//! `cargo xtask bench`: measures the cost of the plugin in its host, the speed of the reader and of the page, and how
//! cost grows with the work. Each figure is printed beside its limit ([`limits`]) or the figure of another tool,
//! measured in the same run.

mod address_dump;
mod fleet;
mod gate;
mod latency;
mod limits;
#[cfg(feature = "peers")]
mod peers;
mod plugin;
mod python;
mod ratios;
mod report;
mod response_times;
mod sampler;
mod scale;
mod server;
mod synthetic;
mod unwind;
mod viewer;
mod work;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use xtask::dist::{self, Profile};
use xtask::run::project_root;

use crate::limits::Measurements;

/// Name of a part, and the function that measures and prints it.
type Part = (&'static str, fn(&mut Measurements) -> Result<()>);

/// All parts, in the order in which they run.
const PARTS: &[Part] = &[
    ("plugin", plugin::measure_plugin),
    ("latency", latency::measure_latencies),
    ("answers", response_times::measure_response_times),
    ("server", server::measure_server),
    ("scale", scale::measure_growth),
    ("viewer", viewer::measure_viewer),
    ("sampler", sampler::measure_sampler),
    ("unwind", unwind::measure_walks),
    ("python", python::measure_python_benchmarks),
    ("gate", gate::measure_gate),
    ("fleet", fleet::measure_fleet_store),
    ("report", report::measure_reports),
    #[cfg(feature = "peers")]
    ("peers", peers::measure_peers),
];

/// Parts that run by default, about 15 minutes in all.
const DEFAULT_PARTS: &[&str] = &[
    "plugin", "latency", "answers", "server", "scale", "viewer", "peers",
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run_parts(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the parts that `args` name, `[PART…] [--check] [--no-build]`, or [`DEFAULT_PARTS`] if they name none. With
/// `--check`, fails if a limit is broken; with `--no-build`, measures what lies in target/dist. `as ROLE …` runs a role
/// of `peers` in place of the parts.
fn run_parts(args: &[&str]) -> Result<()> {
    #[cfg(feature = "peers")]
    if let ["as", role @ ..] = args {
        return peers::run_role(role);
    }
    let (mut wanted, mut check_limits, mut builds) = (Vec::new(), false, true);
    for arg in args {
        match *arg {
            "--check" => check_limits = true,
            "--no-build" => builds = false,
            part if PARTS.iter().any(|(known, _)| *known == part) => wanted.push(part),
            other => {
                let known: Vec<_> = PARTS.iter().map(|(name, _)| *name).collect();
                bail!(
                    "unknown argument {other:?}; valid: --check, --no-build, {}",
                    known.join(", ")
                );
            }
        }
    }
    if wanted.is_empty() {
        wanted = DEFAULT_PARTS.to_vec();
    }
    if builds {
        dist::build_without_fleet(Profile::Release)?;
    }
    let directory = project_root().join("target/bench");
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let load = std::fs::read_to_string("/proc/loadavg")?;
    println!("load average at the start: {}", load.trim_end());
    let mut measurements = Measurements::default();
    for (name, measure) in PARTS.iter().filter(|(name, _)| wanted.contains(name)) {
        measure(&mut measurements).with_context(|| (*name).to_owned())?;
    }
    if check_limits {
        println!("{}", measurements.check()?);
    }
    Ok(())
}
