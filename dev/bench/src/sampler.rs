//! `cargo xtask bench sampler`: cost of a pair of malloc and free under memprof's sampler, against the same program
//! without a profiler and against jemalloc's sampling, in alternating rounds.

mod programs;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use xtask::dist::{self, dist_dir};
use xtask::packages;
use xtask::run::{output, project_root};

use crate::limits::Measurements;
use crate::ratios::Ratios;

const ROUNDS: &str = "15";
/// Rounds with profilers of other projects.
const PEER_ROUNDS: &str = "3";

/// Share of the allocations of 64 bytes that is sampled at an interval of 1 KiB: 1 - exp(-64 / 1024).
const SAMPLED_SHARE: f64 = 0.0606;

/// States of sampling that the program measures: a sample interval, sampling stopped, and after `reset`.
const STATES: [&str; 5] = ["512KiB", "64KiB", "16KiB", "deactivated", "after"];

/// Records the cost of each state of sampling for each kind of block, beside jemalloc's, then the cost in programs.
pub(crate) fn measure_sampler(measurements: &mut Measurements) -> Result<()> {
    packages::ensure_installed(packages::TEST)?;
    packages::ensure_installed(packages::BENCH)?;
    build_pairs()?;
    let memprof = measure_ratios_to_bare("ours", &[])?;
    let peer = [
        ("LD_PRELOAD", "libjemalloc.so.2"),
        ("MALLOC_CONF", "prof:true,prof_active:false"),
    ];
    let jemalloc = measure_ratios_to_bare("allocator", &peer)?;
    for (state, blocks) in STATES
        .iter()
        .flat_map(|state| [(state, "64"), (state, "mixed")])
    {
        let key = ((*state).to_owned(), blocks.to_owned());
        let memprof_ratios = Ratios::new(&memprof[&key]);
        measurements.record(
            &format!("sampled pair / bare, {blocks} bytes, {state}"),
            memprof_ratios.median(),
            format_args!(
                "{memprof_ratios}; jemalloc's sampling: {}",
                Ratios::new(&jemalloc[&key])
            ),
        )?;
    }
    for state in STATES {
        let key = (state.to_owned(), "freed-at-once".to_owned());
        let (memprof, jemalloc) = (Ratios::new(&memprof[&key]), Ratios::new(&jemalloc[&key]));
        println!(
            "mixed bytes that are freed at once, {state}: {memprof}; jemalloc's sampling: {jemalloc}"
        );
    }
    measure_peers()?;
    for (sampler, costs) in [("memprof's sampler", &memprof), ("jemalloc's", &jemalloc)] {
        let costs = &costs[&("marked".to_owned(), "64".to_owned())];
        let costs = Ratios::new(costs);
        let figure = format!("age and label of a sample, {sampler}");
        measurements.record(&figure, costs.median(), format_args!("{costs}"))?;
    }
    programs::measure_programs(measurements)
}

/// Builds the program that measures pairs of malloc and free.
fn build_pairs() -> Result<()> {
    let library = dist::host_library_path()?;
    let options = dist::host_link_args(&library);
    dist::compile("cc", "dev/bench/src/pairs.c", "bench/pairs", &options)
}

/// Prints the cost of profilers that a running program cannot start and stop, each against the same program without
/// it.
fn measure_peers() -> Result<()> {
    let tcmalloc = ("LD_PRELOAD", "libtcmalloc.so.4");
    let samples = ("TCMALLOC_SAMPLE_PARAMETER", "524288");
    let directory = tempfile::tempdir()?;
    let recording = directory.path().join("heaptrack");
    let recording = recording.to_str().context("the path is not UTF-8")?;
    let peers = [
        (
            "tcmalloc's own sampling, 512KiB",
            measure_round_times(&[], &[tcmalloc])?,
            measure_round_times(&[], &[tcmalloc, samples])?,
        ),
        (
            "heaptrack",
            measure_round_times(&[], &[])?,
            measure_round_times(&["heaptrack", "--raw", "-o", recording], &[])?,
        ),
    ];
    for (peer, without, with) in &peers {
        for (blocks, without) in without {
            println!(
                "{peer}, {blocks}: {:.3}",
                Ratios::new(&with[blocks]).median() / Ratios::new(without).median()
            );
        }
    }
    Ok(())
}

/// Runs the program `pairs`, and returns the times of all rounds in nanoseconds, by kind of block. `command` starts it
/// under another profiler, and is empty for none; `env` are variables for it. Only lines of the state `off`, in which
/// memprof does not sample, count.
fn measure_round_times(
    command: &[&str],
    env: &[(&str, &str)],
) -> Result<BTreeMap<String, Vec<f64>>> {
    let pairs = dist_dir().join("bench/pairs");
    let pairs = pairs.to_str().context("the path is not UTF-8")?;
    let arguments = [command, &[pairs, PEER_ROUNDS]].concat();
    let mut program = Command::new(arguments[0]);
    program.args(&arguments[1..]).envs(env.iter().copied());
    let mut times: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    // Other profilers print lines too.
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

/// Runs the program `pairs`, which measures each state of sampling in each round. Returns, by state and kind of block,
/// the ratios of the times to those of the same round without sampling; for the state `marked`, the nanoseconds that
/// age and label add to a sample. `sampler` is the argument of `activate` that selects memprof's sampler or the
/// allocator's; `env` are variables of the program.
fn measure_ratios_to_bare(
    sampler: &str,
    env: &[(&str, &str)],
) -> Result<BTreeMap<(String, String), Vec<f64>>> {
    let directory = tempfile::tempdir()?;
    let config = directory.path().join("pairs.toml");
    let text = format!(
        "[control]\nsocket = {:?}\n[[plugin]]\npath = {:?}\n[plugin.config]\ndump_dir = {:?}\n",
        directory.path().join("socket"),
        dist_dir().join("plugins/memory_profile.so"),
        directory.path().join("dumps"),
    );
    fs::write(&config, text)?;
    let mut program = Command::new(dist_dir().join("bench/pairs"));
    program.arg(&config).args([sampler, ROUNDS]);
    program
        .envs(env.iter().copied())
        .current_dir(project_root());
    program.env("MEMPROF_SOCKET_DIR", directory.path().join("run"));
    let mut ratios: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    let mut off = BTreeMap::new();
    let mut plain = BTreeMap::new();
    for line in output(&mut program)?.lines() {
        let mut fields = line.split(' ').map(str::to_owned);
        let mut field = || fields.next().context("a state, blocks and a time");
        let (state, blocks, time) = (field()?, field()?, field()?.parse::<f64>()?);
        let value = match &*state {
            "off" => {
                off.insert(blocks, time);
                continue;
            }
            "plain" => {
                plain.insert(blocks, time);
                continue;
            }
            "marked" => (time - plain[&blocks]) / SAMPLED_SHARE,
            _ => time / off[&blocks],
        };
        ratios.entry((state, blocks)).or_default().push(value);
    }
    Ok(ratios)
}
