//! `cargo xtask bench sampler`: what a malloc and its free cost under memprof's own sampler, beside
//! the same program without a profiler and beside jemalloc's own sampling, in turns.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use xtask::dist::{self, dist};
use xtask::packages;
use xtask::run::{output, root};

use crate::limits::Figures;
use crate::ratios::Ratios;

const ROUNDS: &str = "15";

/// Of allocations of 64 bytes at a sample per KiB, so many are sampled: 1 - exp(-64 / 1024).
const SAMPLED: f64 = 0.0606;

const STATES: [&str; 5] = ["512KiB", "64KiB", "16KiB", "deactivated", "after"];

/// Measures and prints.
pub(crate) fn measure(figures: &mut Figures) -> Result<()> {
    packages::require(packages::TEST)?;
    build_pairs()?;
    let ours = pairs("ours", &[])?;
    let peer = [
        ("LD_PRELOAD", "libjemalloc.so.2"),
        ("MALLOC_CONF", "prof:true,prof_active:false"),
    ];
    let jemalloc = pairs("allocator", &peer)?;
    for (state, sizes) in STATES
        .iter()
        .flat_map(|state| [(state, "64"), (state, "mixed")])
    {
        let key = ((*state).to_owned(), sizes.to_owned());
        let ours = Ratios::of(&ours[&key]);
        figures.tell(
            &format!("sampled pair / bare, {sizes} bytes, {state}"),
            ours.median(),
            format_args!(
                "{ours}; jemalloc's own sampling: {}",
                Ratios::of(&jemalloc[&key])
            ),
        )?;
    }
    for (whose, costs) in [("memprof's sampler", &ours), ("jemalloc's", &jemalloc)] {
        let costs = &costs[&("marked".to_owned(), "64".to_owned())];
        let costs = Ratios::of(costs);
        let figure = format!("age and label of a sample, {whose}");
        figures.tell(&figure, costs.median(), format_args!("{costs}"))?;
    }
    Ok(())
}

/// A malloc and its free, over and over, without sampling and with it.
fn build_pairs() -> Result<()> {
    let library = dist::host_library()?;
    let options = dist::dynamic(&library);
    dist::compile("cc", "bench/src/pairs.c", "bench/pairs", &options)
}

/// The ratios of each round to the same round without a profiler, by state and sizes; of `marked` the
/// nanoseconds that it adds to a sample.
fn pairs(sampler: &str, env: &[(&str, &str)]) -> Result<BTreeMap<(String, String), Vec<f64>>> {
    let place = tempfile::tempdir()?;
    let config = place.path().join("pairs.toml");
    let text = format!(
        "[control]\nsocket = {:?}\n[[plugin]]\npath = {:?}\n[plugin.config]\ndump_dir = {:?}\n",
        place.path().join("socket"),
        dist().join("plugins/memory_profile.so"),
        place.path().join("dumps"),
    );
    fs::write(&config, text)?;
    let mut program = Command::new(dist().join("bench/pairs"));
    program.arg(&config).args([sampler, ROUNDS]);
    program.envs(env.iter().copied()).current_dir(root());
    program.env("MEMPROF_SOCKET_DIR", place.path().join("run"));
    let mut ratios: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    let mut off = BTreeMap::new();
    let mut plain = BTreeMap::new();
    for line in output(&mut program)?.lines() {
        let mut words = line.split(' ').map(str::to_owned);
        let mut word = || words.next().context("a state, sizes and a time");
        let (state, sizes, time) = (word()?, word()?, word()?.parse::<f64>()?);
        let value = match &*state {
            "off" => {
                off.insert(sizes, time);
                continue;
            }
            "plain" => {
                plain.insert(sizes, time);
                continue;
            }
            "marked" => (time - plain[&sizes]) / SAMPLED,
            _ => time / off[&sizes],
        };
        ratios.entry((state, sizes)).or_default().push(value);
    }
    Ok(ratios)
}
