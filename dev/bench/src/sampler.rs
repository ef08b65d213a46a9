//! `cargo xtask bench sampler`: what a malloc and its free cost under memprof's own sampler, beside
//! the same program without a profiler and beside jemalloc's own sampling, in turns.

mod programs;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use xtask::dist::{self, dist};
use xtask::packages;
use xtask::run::{output, root};

use crate::limits::Measurements;
use crate::ratios::Ratios;

const ROUNDS: &str = "15";
const ROUNDS_OF_PEERS: &str = "3";

/// Of allocations of 64 bytes at a sample per KiB, so many are sampled: 1 - exp(-64 / 1024).
const SAMPLED: f64 = 0.0606;

const STATES: [&str; 5] = ["512KiB", "64KiB", "16KiB", "deactivated", "after"];

/// Measures and prints.
pub(crate) fn measure(figures: &mut Measurements) -> Result<()> {
    packages::require(packages::TEST)?;
    packages::require(packages::BENCH)?;
    build_pairs()?;
    let ours = pairs("ours", &[])?;
    let peer = [
        ("LD_PRELOAD", "libjemalloc.so.2"),
        ("MALLOC_CONF", "prof:true,prof_active:false"),
    ];
    let jemalloc = pairs("allocator", &peer)?;
    for (state, blocks) in STATES
        .iter()
        .flat_map(|state| [(state, "64"), (state, "mixed")])
    {
        let key = ((*state).to_owned(), blocks.to_owned());
        let of_ours = Ratios::of(&ours[&key]);
        figures.record(
            &format!("sampled pair / bare, {blocks} bytes, {state}"),
            of_ours.median(),
            format_args!(
                "{of_ours}; jemalloc's own sampling: {}",
                Ratios::of(&jemalloc[&key])
            ),
        )?;
    }
    for state in STATES {
        let key = (state.to_owned(), "freed-at-once".to_owned());
        let (ours, jemalloc) = (Ratios::of(&ours[&key]), Ratios::of(&jemalloc[&key]));
        println!(
            "mixed bytes that are freed at once, {state}: {ours}; jemalloc's own sampling: {jemalloc}"
        );
    }
    measure_peers()?;
    for (whose, costs) in [("memprof's sampler", &ours), ("jemalloc's", &jemalloc)] {
        let costs = &costs[&("marked".to_owned(), "64".to_owned())];
        let costs = Ratios::of(costs);
        let figure = format!("age and label of a sample, {whose}");
        figures.record(&figure, costs.median(), format_args!("{costs}"))?;
    }
    programs::measure(figures)
}

/// A malloc and its free, over and over, without sampling and with it.
fn build_pairs() -> Result<()> {
    let library = dist::host_library()?;
    let options = dist::dynamic(&library);
    dist::compile("cc", "dev/bench/src/pairs.c", "bench/pairs", &options)
}

/// What others cost that cannot be switched on and off in a running program: each beside the same program without it.
fn measure_peers() -> Result<()> {
    let tcmalloc = ("LD_PRELOAD", "libtcmalloc.so.4");
    let samples = ("TCMALLOC_SAMPLE_PARAMETER", "524288");
    let place = tempfile::tempdir()?;
    let recording = place.path().join("heaptrack");
    let recording = recording.to_str().context("a path in UTF-8")?;
    let peers = [
        (
            "tcmalloc's own sampling, 512KiB",
            bare(&[], &[tcmalloc])?,
            bare(&[], &[tcmalloc, samples])?,
        ),
        (
            "heaptrack",
            bare(&[], &[])?,
            bare(&["heaptrack", "--raw", "-o", recording], &[])?,
        ),
    ];
    for (peer, without, with) in &peers {
        for (blocks, without) in without {
            println!(
                "{peer}, {blocks}: {:.3}",
                Ratios::of(&with[blocks]).median() / Ratios::of(without).median()
            );
        }
    }
    Ok(())
}

/// The times of all rounds under another's profiler, or none, by blocks.
fn bare(command: &[&str], env: &[(&str, &str)]) -> Result<BTreeMap<String, Vec<f64>>> {
    let pairs = dist().join("bench/pairs");
    let pairs = pairs.to_str().context("a path in UTF-8")?;
    let words = [command, &[pairs, ROUNDS_OF_PEERS]].concat();
    let mut program = Command::new(words[0]);
    program.args(&words[1..]).envs(env.iter().copied());
    let mut times: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    // Others print lines of their own.
    for line in output(&mut program)?.lines() {
        if let Some(("off", measured)) = line.split_once(' ') {
            let (blocks, time) = measured.split_once(' ').context("blocks and a time")?;
            times
                .entry(blocks.to_owned())
                .or_default()
                .push(time.parse()?);
        }
    }
    Ok(times)
}

/// The ratios of each round to the same round without a profiler, by state and blocks; of `marked` the
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
        let mut word = || words.next().context("a state, blocks and a time");
        let (state, blocks, time) = (word()?, word()?, word()?.parse::<f64>()?);
        let value = match &*state {
            "off" => {
                off.insert(blocks, time);
                continue;
            }
            "plain" => {
                plain.insert(blocks, time);
                continue;
            }
            "marked" => (time - plain[&blocks]) / SAMPLED,
            _ => time / off[&blocks],
        };
        ratios.entry((state, blocks)).or_default().push(value);
    }
    Ok(ratios)
}
