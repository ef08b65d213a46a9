//! A Python that runs the benchmarks, and their times.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use testkit::LineReader;

/// Time of a round, which some profilers make a hundred times longer.
const ROUND_TIMEOUT: Duration = Duration::from_secs(1800);

/// Process of `rounds.py`; dropping it kills it.
pub(super) struct Benchmarks {
    process: Child,
    requests: ChildStdin,
    times: LineReader<ChildStdout>,
}

impl Benchmarks {
    /// Starts the process, and waits until it has loaded the benchmarks.
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        // The fixed seed gives sets and dicts of strings the same order in all processes.
        command.env("PYTHONHASHSEED", "0");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let shown = format!("{command:?}");
        let mut process = command.spawn().with_context(|| shown.clone())?;
        let requests = process.stdin.take().context("no stdin")?;
        let times = LineReader::new(process.stdout.take().context("no stdout")?);
        let mut started = Self {
            process,
            requests,
            times,
        };
        started.read_until("ready").context(shown)?;
        Ok(started)
    }

    /// Pid of the process that was started; a profiler may run the benchmarks in a child.
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Runs all benchmarks once, and returns the processor time of each in seconds.
    pub(super) fn run_round(&mut self) -> Result<BTreeMap<String, f64>> {
        self.requests.write_all(b"round\n")?;
        self.read_until("end")
    }

    /// Reads the output up to the line `last`, and returns the seconds of each benchmark, from the lines of the form
    /// `time NAME SECONDS`. Fails if the process ends before, or after [`ROUND_TIMEOUT`].
    fn read_until(&mut self, last: &str) -> Result<BTreeMap<String, f64>> {
        let mut lines = Vec::new();
        let read = self.times.find_line(ROUND_TIMEOUT, |line| {
            lines.push(line.to_owned());
            (line.trim_end() == last).then_some(())
        });
        read.with_context(|| format!("the process printed no line {last:?}"))?;
        let mut times = BTreeMap::new();
        for line in lines {
            if let ["time", name, seconds] = line.split_whitespace().collect::<Vec<_>>()[..] {
                times.insert(name.to_owned(), seconds.parse()?);
            }
        }
        Ok(times)
    }
}

impl Drop for Benchmarks {
    fn drop(&mut self) {
        if let Err(error) = self
            .process
            .kill()
            .and_then(|()| self.process.wait().map(drop))
        {
            eprintln!("failed to kill {}: {error}", self.process.id());
        }
    }
}

/// Least time of each benchmark in seconds, over rounds: other load on the machine only adds time.
#[derive(Debug, Default)]
pub(super) struct LeastTimes(BTreeMap<String, f64>);

impl LeastTimes {
    /// Takes over each time of a round that is less than the least one so far.
    pub(super) fn add(&mut self, round: BTreeMap<String, f64>) {
        for (name, seconds) in round {
            let least = self.0.entry(name).or_insert(seconds);
            *least = least.min(seconds);
        }
    }

    /// Ratio of each benchmark's time to that in `bare`. Benchmarks that `bare` lacks are left out.
    pub(super) fn ratios(&self, bare: &Self) -> BenchmarkRatios<'_> {
        let ratios = self.0.iter();
        BenchmarkRatios(
            ratios
                .filter_map(|(name, seconds)| Some((&**name, seconds / bare.0.get(name)?)))
                .collect(),
        )
    }
}

/// Ratio of each benchmark. Prints the least and the largest with their names.
#[derive(Debug)]
pub(super) struct BenchmarkRatios<'a>(Vec<(&'a str, f64)>);

impl BenchmarkRatios<'_> {
    /// Geometric mean, as pyperformance compares interpreters.
    pub(super) fn mean(&self) -> f64 {
        let logarithms = self.0.iter().map(|(_, ratio)| ratio.ln());
        (logarithms.sum::<f64>() / self.0.len() as f64).exp()
    }
}

impl fmt::Display for BenchmarkRatios<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by_ratio = |(_, one): &&(&str, f64), (_, other): &&(&str, f64)| one.total_cmp(other);
        let (least, most) = (
            self.0.iter().min_by(by_ratio),
            self.0.iter().max_by(by_ratio),
        );
        let (Some((least, smallest)), Some((most, largest))) = (least, most) else {
            return f.write_str("no benchmarks");
        };
        write!(
            f,
            "mean of {}; {smallest:.3} {least} .. {largest:.3} {most}",
            self.0.len()
        )
    }
}
