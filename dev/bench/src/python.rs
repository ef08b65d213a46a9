//! `cargo xtask bench python`: processor time of pyperformance's benchmarks in a Python under memprof, and under other
//! profilers, against a Python without one, in alternating rounds.

mod rounds;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use testkit::python;
use xtask::dist::dist_dir;
use xtask::packages;
use xtask::run::{output, run};

use crate::limits::Measurements;

use self::rounds::{Benchmarks, LeastTimes};

/// Environment variable with an interpreter that has [`PACKAGES`], for another one than Debian's.
const INTERPRETER: &str = "MEMPROF_PYTHON";

const PACKAGES: &[&str] = &["pyperformance==1.14.0", "memray==1.20.0", "scalene==2.4.0"];

/// Processes of each profiler, which differ in where their memory lies.
const GENERATIONS: usize = 2;
/// Rounds of each process without a profiler, and of each with memprof.
const ROUNDS: usize = 5;
/// Rounds of each process with another profiler, whose costs are larger than the differences between rounds.
const PEER_ROUNDS: usize = 1;

/// Benchmark of pyperformance, with its argument behind a colon, and calls of it in a round, for 30 to 100 ms.
const BENCHMARKS: &[(&str, u32)] = &[
    ("chaos", 1),
    ("deepcopy", 100),
    ("deltablue", 10),
    ("float", 1),
    ("hexiom", 5),
    ("json_dumps", 2),
    ("json_loads", 100),
    ("logging:format", 500),
    ("pickle:pickle", 200),
    ("pickle:unpickle", 200),
    ("regex_effbot", 1),
    ("richards", 1),
    ("spectral_norm", 1),
    ("sqlite_synth", 10_000),
    ("telco", 5),
    ("typing_runtime_protocols", 50),
    ("unpack_sequence", 2000),
    ("xml_etree:generate", 1),
];

/// State of memprof in a process, and the messages that lead to it from the one before.
const STATES: &[(&str, &[&[&str]])] = &[
    ("attached", &[&["attach"]]),
    (
        "sampled without functions and objects of Python",
        &[&["activate", "sample_interval=512KiB", "languages=off"]],
    ),
    (
        "sampled",
        &[
            &["deactivate"],
            &["activate", "sample_interval=512KiB", "languages=auto"],
        ],
    ),
    ("after detach", &[&["detach"]]),
];

/// Profiler of another project, and the interpreter's arguments for it.
const PEERS: &[(&str, &[&str])] = &[
    ("tracemalloc", &["-X", "tracemalloc"]),
    (
        "memray",
        &["-m", "memray", "run", "-q", "-f", "-o", "memray.bin"],
    ),
    (
        "memray --native",
        &[
            "-m",
            "memray",
            "run",
            "-q",
            "-f",
            "--native",
            "-o",
            "native.bin",
        ],
    ),
    (
        "memray --trace-python-allocators",
        &[
            "-m",
            "memray",
            "run",
            "-q",
            "-f",
            "--trace-python-allocators",
            "-o",
            "all.bin",
        ],
    ),
    ("Scalene", &["-m", "scalene", "run", "-o", "scalene.json"]),
];

/// Records for each state of memprof the ratio of processor time to that of a Python without a profiler, and prints
/// that of each peer.
pub(crate) fn measure_python_benchmarks(measurements: &mut Measurements) -> Result<()> {
    packages::ensure_installed(packages::TEST)?;
    let interpreter = match env::var_os(INTERPRETER) {
        Some(interpreter) => interpreter.into(),
        None => python::install_packages(PACKAGES)?,
    };
    let directory = tempfile::tempdir()?;
    copy_benchmarks(&interpreter, directory.path())?;
    let start = |arguments: &[&str]| {
        let mut command = Command::new(&interpreter);
        command.args(arguments).arg("rounds.py");
        command.args(
            BENCHMARKS
                .iter()
                .map(|(name, calls)| format!("{name}={calls}")),
        );
        Benchmarks::start(command.current_dir(directory.path()))
    };
    let mut times: BTreeMap<&str, LeastTimes> = BTreeMap::new();
    for _ in 0..GENERATIONS {
        let mut bare = start(&[])?;
        let mut profiled = start(&[])?;
        let mut peers = Vec::new();
        for (name, arguments) in PEERS {
            peers.push((*name, start(arguments).context(*name)?));
        }
        for round in 0..ROUNDS {
            times.entry("bare").or_default().add(bare.run_round()?);
            for (state, messages) in STATES {
                for message in *messages {
                    run_memprof(message, profiled.pid(), directory.path())?;
                }
                times.entry(state).or_default().add(profiled.run_round()?);
            }
            if round < PEER_ROUNDS {
                for (name, peer) in &mut peers {
                    times.entry(name).or_default().add(peer.run_round()?);
                }
            }
        }
    }
    let bare = &times["bare"];
    for (state, _) in STATES {
        let ratios = times[state].ratios(bare);
        let figure = format!("Python's benchmarks, {state} / bare");
        measurements.record(&figure, ratios.mean(), &ratios)?;
    }
    for (name, _) in PEERS {
        let ratios = times[name].ratios(bare);
        println!(
            "Python's benchmarks, {name} / bare: {:.3}; {ratios}",
            ratios.mean()
        );
    }
    Ok(())
}

/// Copies the benchmarks, and the program that runs them, into a directory: Scalene counts a program's own directory
/// only.
fn copy_benchmarks(interpreter: &Path, directory: &Path) -> Result<()> {
    fs::write(
        directory.join("rounds.py"),
        include_str!("python/rounds.py"),
    )?;
    let find = "import pyperformance; print(pyperformance.__path__[0])";
    let package = output(Command::new(interpreter).args(["-c", find]))?;
    let source = Path::new(package.trim_end()).join("data-files/benchmarks");
    for (name, _) in BENCHMARKS {
        let (name, _) = name.split_once(':').unwrap_or((name, ""));
        let benchmark = source.join(format!("bm_{name}"));
        run(Command::new("cp").arg("-r").arg(benchmark).arg(directory))?;
    }
    Ok(())
}

/// Runs a command of `memprof` on a process: `attach`, `detach`, or a message to the plugin with its arguments. The
/// control sockets are in `directory`. Fails if the command fails.
fn run_memprof(command: &[&str], pid: u32, directory: &Path) -> Result<()> {
    let (name, arguments) = command.split_first().context("a message")?;
    let mut memprof = Command::new(dist_dir().join("bin/memprof"));
    memprof.arg(name).arg(pid.to_string()).args(arguments);
    memprof.env("MEMPROF_SOCKET_DIR", directory.join("run"));
    output(&mut memprof).map(drop)
}
