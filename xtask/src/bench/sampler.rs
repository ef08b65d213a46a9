//! `cargo xtask bench sampler`: what a malloc and its free cost under memprof's own sampler, beside
//! the same program without a profiler and beside jemalloc's own sampling, in turns.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::dist::{self, Profile, dist};
use crate::packages;
use crate::run::{output, root};

const ROUNDS: &str = "15";

/// State, sizes, and how much more than without a profiler a pair may cost.
const LIMITS: [(&str, f64); 5] = [
    ("512KiB", 1.18),
    ("64KiB", 1.22),
    ("16KiB", 1.30),
    ("deactivated", 1.15),
    ("after", 1.05),
];
/// Of mixed sizes, it may cost so much more.
const MIXED: f64 = 0.08;

/// Measures and prints.
pub(crate) fn run() -> Result<()> {
    packages::require(packages::TEST)?;
    dist::build(Profile::Release)?;
    dist::build_pairs()?;
    println!(
        "load average at the start: {}",
        fs::read_to_string("/proc/loadavg")?.trim_end()
    );
    let ours = pairs("ours", &[])?;
    let peer = [
        ("LD_PRELOAD", "libjemalloc.so.2"),
        ("MALLOC_CONF", "prof:true,prof_active:false"),
    ];
    let jemalloc = pairs("allocator", &peer)?;
    for (state, limit) in LIMITS {
        for (sizes, limit) in [("64", limit), ("mixed", limit + MIXED)] {
            let key = (state.to_owned(), sizes.to_owned());
            println!(
                "malloc and free, {sizes} bytes, {state}: {} of a pair without it (limit \
                 {limit:.2}); jemalloc's own sampling: {}",
                told(&ours[&key]),
                told(&jemalloc[&key])
            );
        }
    }
    Ok(())
}

/// The ratios of each round to the same round without a profiler, by state and sizes.
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
    for line in output(&mut program)?.lines() {
        let mut words = line.split(' ').map(str::to_owned);
        let mut word = || words.next().context("a state, sizes and a time");
        let (state, sizes, time) = (word()?, word()?, word()?.parse::<f64>()?);
        if state == "off" {
            off.insert(sizes, time);
        } else {
            let ratio = time / off[&sizes];
            ratios.entry((state, sizes)).or_default().push(ratio);
        }
    }
    Ok(ratios)
}

/// The median, the least and the largest.
fn told(ratios: &[f64]) -> String {
    let mut ratios = ratios.to_vec();
    ratios.sort_by(f64::total_cmp);
    let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
    format!("{:.3} ({least:.3}..{most:.3})", ratios[ratios.len() / 2])
}
