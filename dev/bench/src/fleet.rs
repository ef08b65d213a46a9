//! Fleet store with ten hours of a thousand processes: bytes of a sample, time of queries, and a comparison of the sums
//! with those of other engines.

mod processes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use xtask::dist::{self, Profile, dist_dir};
use xtask::packages;
use xtask::run::project_root;

use crate::limits::Measurements;
use processes::{MACHINES, PROCESSES, Processes};

/// Hours of profiles, at most 24, because all are of one day.
const HOURS: i64 = 10;
/// Start of the profiles, 2026-11-21T00:00:00Z, in milliseconds since 1970.
const START_TIME: i64 = 1_795_219_200_000;
const MILLIS_PER_HOUR: i64 = 3_600_000;
/// Programs of memprof-report's corpus.
const PROGRAMS: [&str; 5] = ["cc1plus", "gs-pdf", "node", "redis", "sqlite"];
const ENGINES: [&str; 3] = ["chdb==4.4.0", "duckdb==2.0.0", "pyarrow==26.0.1"];
const ROUNDS: usize = 3;
/// Exit code of an agent that found no process.
const NO_DATA_EXIT_CODE: i32 = 5;

/// Fills a store, records the size of a sample and the times of queries, and fails unless all engines compute the same
/// sums.
pub(crate) fn measure_fleet_store(measurements: &mut Measurements) -> Result<()> {
    packages::ensure_installed(&["python3-venv"])?;
    let interpreter = testkit::python::install_packages(&ENGINES)?;
    dist::build_all(Profile::Release)?;
    let directory = tempfile::tempdir_in(project_root().join("target/bench"))?;
    let store = Store::create(directory.path())?;
    let processes = store.fill()?;
    let samples = processes.totals.samples;
    let bytes = directory_size(&directory.path().join("store/samples"))?;
    let more = format!("{samples} samples of {PROCESSES} processes, {HOURS} h");
    let bytes_per_sample = bytes as f64 / samples as f64;
    measurements.record("compacted bytes of a sample", bytes_per_sample, more)?;

    // This service has a new build from the middle of the time on.
    let (service, [base, build]) = processes.service_and_builds(0);
    let service = format!("@{service}");
    let all = format!("{HOURS}h");
    let [service_args, all_hours] = [["-t", &service], ["--for", &all]];
    let flame = ["flame", "--format", "collapsed"];
    let diff = ["diff", "--build", build, "--base", base];
    let queries: [(&str, Vec<&str>); 5] = [
        ("fleet top, 1 h", vec!["top"]),
        ("fleet growth, 1 h", vec!["growth"]),
        (
            "fleet flame of a service, 1 h",
            [&flame[..], &service_args].concat(),
        ),
        (
            "fleet flame of a service, 10 h",
            [&flame[..], &service_args, &all_hours].concat(),
        ),
        (
            "fleet diff of a service, 10 h",
            [&diff[..], &service_args, &all_hours].concat(),
        ),
    ];
    for (figure, args) in queries {
        measurements.record(figure, store.measure_median_time(&args)?, "")?;
    }
    store.compare_sums(&interpreter, &processes)
}

/// Directory with a store, the spool of an agent, and their configuration.
struct Store<'p> {
    directory: &'p Path,
}

impl<'p> Store<'p> {
    /// Prepares an empty store in `directory`, and the configuration of `memprof-fleet` for it.
    fn create(directory: &'p Path) -> Result<Self> {
        let path = |name: &str| directory.join(name);
        // Without a rule, the agent dumps no process of this machine.
        let config = format!(
            "store = \"file://{}\"\nspool = {:?}\nservice = []\n",
            path("store").display(),
            path("spool")
        );
        fs::write(path("fleet.toml"), config)?;
        fs::create_dir_all(path("spool/dumps"))?;
        Ok(Self { directory })
    }

    /// Generates the profiles of each machine and hour, lets an agent write them to the store, and compacts the store
    /// after each hour. Prints the times of these steps. Returns the generated processes, with the totals of their
    /// profiles.
    fn fill(&self) -> Result<Processes> {
        let programs: Vec<_> = PROGRAMS
            .iter()
            .map(|name| corpus_stacks(name))
            .collect::<Result<_>>()?;
        let mut processes = Processes::new(&programs, START_TIME, HOURS);
        let mut seconds = [0.0; 3];
        for hour in 0..HOURS {
            for machine in 0..MACHINES {
                let start = Instant::now();
                processes.write_hour(machine, hour, &self.directory.join("spool/dumps"))?;
                seconds[0] += start.elapsed().as_secs_f64();
                let start = Instant::now();
                let agent = self.run_program(&["agent", "--once"])?;
                let code = agent.status.code();
                ensure!(code == Some(NO_DATA_EXIT_CODE), "agent --once: {agent:?}");
                seconds[1] += start.elapsed().as_secs_f64();
            }
            let start = Instant::now();
            self.run_fleet(&["compact"])?;
            seconds[2] += start.elapsed().as_secs_f64();
        }
        let [generation, agents, compact] = seconds;
        println!(
            "{HOURS} h: {generation:.0} s to generate {} profiles, {agents:.0} s in agents, {compact:.0} s in compact",
            processes.totals.profiles
        );
        Ok(processes)
    }

    /// Runs `memprof-fleet` with the store's configuration. Returns its exit status and output, also if it fails.
    fn run_program(&self, args: &[&str]) -> Result<Output> {
        let mut command = Command::new(dist_dir().join("bin/memprof-fleet"));
        command.args(args).arg("--config");
        command
            .arg(self.directory.join("fleet.toml"))
            .env_remove("MEMPROF_STORE")
            .env("MEMPROF_SOCKET_DIR", self.directory.join("run"));
        Ok(command.output()?)
    }

    /// Runs `memprof-fleet fleet` and returns its standard output. Fails if the command fails.
    fn run_fleet(&self, args: &[&str]) -> Result<String> {
        let output = self.run_program(&[&["fleet"], args].concat())?;
        ensure!(output.status.success(), "fleet {args:?}: {output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs `memprof-fleet fleet` as if now were the end of the generated profiles, and returns its standard output.
    fn query_at_end(&self, args: &[&str]) -> Result<String> {
        let at = format!("2026-11-21T{:02}:59:59.999Z", HOURS - 1);
        self.run_fleet(&[args, &["--at", &at]].concat())
    }

    /// Runs a query [`ROUNDS`] times, and returns the median of its times in milliseconds.
    fn measure_median_time(&self, args: &[&str]) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            self.query_at_end(args)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[ROUNDS / 2])
    }

    /// Lets other engines sum up the store's files. Fails unless their totals are those of the generated profiles, and
    /// their totals of the newest profiles and means those of `memprof-fleet`. `interpreter` is a Python with the
    /// engines.
    fn compare_sums(&self, interpreter: &Path, processes: &Processes) -> Result<()> {
        let mut views = Vec::new();
        for engine in ["duckdb", "clickhouse"] {
            let file = self.directory.join(engine);
            fs::write(&file, self.run_fleet(&["views", "--for", engine])?)?;
            views.push(file);
        }
        let end = START_TIME + HOURS * MILLIS_PER_HOUR - 1;
        let mut python = Command::new(interpreter);
        python
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/src/fleet/totals.py"))
            .arg(self.directory.join("store"))
            .args(views)
            .args([end - MILLIS_PER_HOUR, end].map(|time| time.to_string()));
        let output = python.output()?;
        ensure!(output.status.success(), "totals.py: {output:?}");
        let counted: Value = serde_json::from_slice(&output.stdout)?;

        let newest: Value = serde_json::from_str(&self.query_at_end(&["top", "--json"])?)?;
        let newest = ["inuse_space", "inuse_objects"].map(|kind| newest["totals"][kind].as_f64());
        ensure!(!newest.contains(&None), "fleet top has no totals");
        let all = format!("{HOURS}h");
        let flame = ["flame", "--format", "collapsed", "--for", &all];
        let flame = self.query_at_end(&flame)?;
        let values = flame.lines().filter_map(|line| line.rsplit(' ').next());
        let mean: f64 = values.map(|value| value.parse().unwrap_or(f64::NAN)).sum();
        let written = processes.totals;
        let written = [written.samples, written.bytes, written.objects].map(|sum| sum as f64);
        for engine in ["duckdb", "chdb", "pyarrow"] {
            let totals = &counted[engine];
            let sums = |name: &str| [0, 1, 2].map(|index| totals[name][index].as_f64());
            let message = || format!("{engine}: {totals}");
            ensure!(sums("all") == written.map(Some), "{}", message());
            ensure!(sums("newest")[1..] == newest, "{}: {newest:?}", message());
            // memprof-fleet rounds the value of each stack.
            let max_difference = flame.lines().count() as f64;
            let is_equal = is_near(totals["mean"].as_f64(), mean, max_difference);
            ensure!(is_equal, "{}: {mean}", message());
        }
        println!("memprof-fleet, duckdb, chdb and pyarrow count the same: {counted}");
        Ok(())
    }
}

/// Whether a value differs from the expected one by `max_difference` at most. False if one of them is missing: `None`,
/// or NaN.
fn is_near(value: Option<f64>, expected: f64, max_difference: f64) -> bool {
    value.is_some_and(|value| (value - expected).abs() <= max_difference)
}

/// Returns the stacks of a program's dump in memprof-report's corpus, as `ROOT;…;LEAF`.
fn corpus_stacks(program: &str) -> Result<Vec<String>> {
    let dump = project_root().join(format!(
        "outside/memprof-report/tests/corpus/{program}.heap.gz"
    ));
    let mut report = Command::new(dist_dir().join("bin/memprof"));
    report.args(["report", "--no-symbols", "--format", "collapsed"]);
    let output = report.arg(dump).output()?;
    ensure!(output.status.success(), "{program}: {output:?}");
    let text = String::from_utf8(output.stdout)?;
    let stacks = text.lines().filter_map(|line| line.rsplit_once(' '));
    Ok(stacks.map(|(stack, _)| stack.to_owned()).collect())
}

/// Bytes of all files below a directory.
fn directory_size(directory: &Path) -> Result<u64> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut bytes = 0;
    for entry in entries {
        let path: PathBuf = entry?.path();
        bytes += match path.is_dir() {
            true => directory_size(&path)?,
            false => path.metadata()?.len(),
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::is_near;

    #[test]
    fn missing_number_is_not_near() {
        assert!(is_near(Some(7.0), 8.0, 1.0));
        assert!(!is_near(Some(7.0), 8.1, 1.0));
        assert!(!is_near(None, 8.0, 1.0));
        assert!(!is_near(Some(7.0), f64::NAN, 1.0));
    }
}
