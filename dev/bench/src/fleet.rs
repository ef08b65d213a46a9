//! Ten hours of a thousand processes in a store: what a sample takes there, how long questions take, and whether other
//! engines count the same.

mod processes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use xtask::dist::{self, Profile, dist};
use xtask::packages;
use xtask::run::root;

use crate::limits::Measurements;
use processes::{MACHINES, PROCESSES, Processes};

/// At most 24: they are those of one day.
const HOURS: i64 = 10;
/// 2026-11-21T00:00:00Z
const START: i64 = 1_795_219_200_000;
const HOUR: i64 = 3_600_000;
/// The programs of memprof-report's corpus.
const PROGRAMS: [&str; 5] = ["cc1plus", "gs-pdf", "node", "redis", "sqlite"];
const ENGINES: [&str; 3] = ["chdb==4.4.0", "duckdb==2.0.0", "pyarrow==26.0.1"];
const ROUNDS: usize = 3;
/// What an agent exits with that found no process.
const NO_DATA: i32 = 5;

/// Measures.
pub(crate) fn measure(figures: &mut Measurements) -> Result<()> {
    packages::require(&["python3-venv"])?;
    let engines = testkit::python::interpreter(&ENGINES)?;
    dist::build_all(Profile::Release)?;
    let place = tempfile::tempdir_in(root().join("target/bench"))?;
    let store = Store::new(place.path())?;
    let processes = store.fill()?;
    let samples = processes.totals.samples;
    let bytes = size(&place.path().join("store/samples"))?;
    let more = format!("{samples} samples of {PROCESSES} processes, {HOURS} h");
    let each = bytes as f64 / samples as f64;
    figures.record("compacted bytes of a sample", each, more)?;

    // A service that was deployed in the middle of the time.
    let (service, [base, build]) = processes.builds(0);
    let service = format!("@{service}");
    let all = format!("{HOURS}h");
    let [of_service, long] = [["-t", &service], ["--for", &all]];
    let flame = ["flame", "--format", "collapsed"];
    let diff = ["diff", "--build", build, "--base", base];
    let questions: [(&str, Vec<&str>); 5] = [
        ("fleet top, 1 h", vec!["top"]),
        ("fleet growth, 1 h", vec!["growth"]),
        (
            "fleet flame of a service, 1 h",
            [&flame[..], &of_service].concat(),
        ),
        (
            "fleet flame of a service, 10 h",
            [&flame[..], &of_service, &long].concat(),
        ),
        (
            "fleet diff of a service, 10 h",
            [&diff[..], &of_service, &long].concat(),
        ),
    ];
    for (figure, args) in questions {
        figures.record(figure, store.time(&args)?, "")?;
    }
    store.compare(&engines, &processes)
}

/// A store in a directory, and an agent's spool.
struct Store<'p> {
    place: &'p Path,
}

impl<'p> Store<'p> {
    fn new(place: &'p Path) -> Result<Self> {
        let of = |name: &str| place.join(name);
        // No rule: the processes of this machine are left alone.
        let config = format!(
            "store = \"file://{}\"\nspool = {:?}\nservice = []\n",
            of("store").display(),
            of("spool")
        );
        fs::write(of("fleet.toml"), config)?;
        fs::create_dir_all(of("spool/dumps"))?;
        Ok(Self { place })
    }

    /// Has an agent write each machine's profiles of each hour, and merges them hour by hour.
    fn fill(&self) -> Result<Processes> {
        let programs: Vec<_> = PROGRAMS
            .iter()
            .map(|name| stacks(name))
            .collect::<Result<_>>()?;
        let mut processes = Processes::new(&programs, START, HOURS);
        let mut seconds = [0.0; 3];
        for hour in 0..HOURS {
            for machine in 0..MACHINES {
                let begun = Instant::now();
                processes.write(machine, hour, &self.place.join("spool/dumps"))?;
                seconds[0] += begun.elapsed().as_secs_f64();
                let begun = Instant::now();
                let agent = self.run(&["agent", "--once"])?;
                let code = agent.status.code();
                ensure!(code == Some(NO_DATA), "agent --once: {agent:?}");
                seconds[1] += begun.elapsed().as_secs_f64();
            }
            let begun = Instant::now();
            self.ask(&["compact"])?;
            seconds[2] += begun.elapsed().as_secs_f64();
        }
        let [made, agents, compact] = seconds;
        println!(
            "{HOURS} h: {made:.0} s to make {} profiles, {agents:.0} s in agents, {compact:.0} s in compact",
            processes.totals.profiles
        );
        Ok(processes)
    }

    fn run(&self, args: &[&str]) -> Result<Output> {
        let mut command = Command::new(dist().join("bin/memprof-fleet"));
        command.args(args).arg("--config");
        command
            .arg(self.place.join("fleet.toml"))
            .env_remove("MEMPROF_STORE")
            .env("MEMPROF_SOCKET_DIR", self.place.join("run"));
        Ok(command.output()?)
    }

    /// What `memprof fleet` prints.
    fn ask(&self, args: &[&str]) -> Result<String> {
        let output = self.run(&[&["fleet"], args].concat())?;
        ensure!(output.status.success(), "fleet {args:?}: {output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The same at the end of the time.
    fn query_at_end(&self, args: &[&str]) -> Result<String> {
        let at = format!("2026-11-21T{:02}:59:59.999Z", HOURS - 1);
        self.ask(&[args, &["--at", &at]].concat())
    }

    /// The median of several rounds, in milliseconds.
    fn time(&self, args: &[&str]) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            self.query_at_end(args)?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[ROUNDS / 2])
    }

    /// Asks every engine for the same sums.
    fn compare(&self, engines: &Path, processes: &Processes) -> Result<()> {
        let mut views = Vec::new();
        for engine in ["duckdb", "clickhouse"] {
            let file = self.place.join(engine);
            fs::write(&file, self.ask(&["views", "--for", engine])?)?;
            views.push(file);
        }
        let end = START + HOURS * HOUR - 1;
        let mut python = Command::new(engines);
        python
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/src/fleet/totals.py"))
            .arg(self.place.join("store"))
            .args(views)
            .args([end - HOUR, end].map(|time| time.to_string()));
        let output = python.output()?;
        ensure!(output.status.success(), "totals.py: {output:?}");
        let counted: Value = serde_json::from_slice(&output.stdout)?;

        let newest: Value = serde_json::from_str(&self.query_at_end(&["top", "--json"])?)?;
        let newest = ["inuse_space", "inuse_objects"].map(|kind| newest["totals"][kind].as_f64());
        let all = format!("{HOURS}h");
        let flame = ["flame", "--format", "collapsed", "--for", &all];
        let flame = self.query_at_end(&flame)?;
        let values = flame.lines().filter_map(|line| line.rsplit(' ').next());
        let mean: f64 = values.map(|value| value.parse().unwrap_or(f64::NAN)).sum();
        let written = processes.totals;
        let written = [written.samples, written.bytes, written.objects].map(|sum| sum as f64);
        for engine in ["duckdb", "chdb", "pyarrow"] {
            let of = &counted[engine];
            let sums = |name: &str| [0, 1, 2].map(|at| of[name][at].as_f64());
            let told = || format!("{engine}: {of}");
            ensure!(sums("all") == written.map(Some), "{}", told());
            ensure!(sums("newest")[1..] == newest, "{}: {newest:?}", told());
            // Each stack of a sum is rounded.
            let (theirs, most) = (of["mean"].as_f64(), flame.lines().count() as f64);
            let differs = theirs.is_none_or(|theirs| (theirs - mean).abs() > most);
            ensure!(!differs, "{}: {mean}", told());
        }
        println!("memprof-fleet, duckdb, chdb and pyarrow count the same: {counted}");
        Ok(())
    }
}

/// The stacks of a program of the corpus.
fn stacks(program: &str) -> Result<Vec<String>> {
    let dump = root().join(format!(
        "outside/memprof-report/tests/corpus/{program}.heap.gz"
    ));
    let mut report = Command::new(dist().join("bin/memprof"));
    report.args(["report", "--no-symbols", "--format", "collapsed"]);
    let output = report.arg(dump).output()?;
    ensure!(output.status.success(), "{program}: {output:?}");
    let text = String::from_utf8(output.stdout)?;
    let stacks = text.lines().filter_map(|line| line.rsplit_once(' '));
    Ok(stacks.map(|(stack, _)| stack.to_owned()).collect())
}

/// Bytes of all files in a directory, and in those below.
fn size(directory: &Path) -> Result<u64> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut bytes = 0;
    for entry in entries {
        let path: PathBuf = entry?.path();
        bytes += match path.is_dir() {
            true => size(&path)?,
            false => path.metadata()?.len(),
        };
    }
    Ok(bytes)
}
