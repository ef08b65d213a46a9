//! `cargo xtask bench`: what the plugin costs its host, how fast the reader and the page are, and how cost grows.
//! Each figure stands beside its limit ([`limits`]) or its peer, both measured in this run.

mod fleet;
mod gate;
mod limits;
#[cfg(feature = "peers")]
mod peers;
mod plugin;
mod ratios;
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
use xtask::run::root;

use crate::limits::Measurements;

/// A part: its name, and what measures and prints it.
type Part = (&'static str, fn(&mut Measurements) -> Result<()>);

/// The parts, in the order in which they run.
const PARTS: &[Part] = &[
    ("plugin", plugin::measure),
    ("answers", response_times::measure),
    ("server", server::measure),
    ("scale", scale::measure),
    ("viewer", viewer::measure),
    ("sampler", sampler::measure),
    ("unwind", unwind::measure),
    ("gate", gate::measure),
    ("fleet", fleet::measure),
    #[cfg(feature = "peers")]
    ("peers", peers::measure),
];

/// Those that run unless one is named: a quarter of an hour.
const UNASKED: &[&str] = &["plugin", "answers", "server", "scale", "viewer", "peers"];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match bench(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `[PART…] [--check]`.
fn bench(args: &[&str]) -> Result<()> {
    #[cfg(feature = "peers")]
    if let ["as", role @ ..] = args {
        return peers::play(role);
    }
    let (mut wanted, mut is_checked) = (Vec::new(), false);
    for arg in args {
        match *arg {
            "--check" => is_checked = true,
            part if PARTS.iter().any(|(known, _)| *known == part) => wanted.push(part),
            other => {
                let known: Vec<_> = PARTS.iter().map(|(name, _)| *name).collect();
                bail!(
                    "unknown argument {other:?}; valid: --check, {}",
                    known.join(", ")
                );
            }
        }
    }
    if wanted.is_empty() {
        wanted = UNASKED.to_vec();
    }
    dist::build(Profile::Release)?;
    let place = root().join("target/bench");
    std::fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    let load = std::fs::read_to_string("/proc/loadavg")?;
    println!("load average at the start: {}", load.trim_end());
    let mut figures = Measurements::default();
    for (name, measure) in PARTS.iter().filter(|(name, _)| wanted.contains(name)) {
        measure(&mut figures).with_context(|| (*name).to_owned())?;
    }
    if is_checked {
        println!("{}", figures.check()?);
    }
    Ok(())
}
