//! Table of the figures that have a limit; `--check` enforces it.

use std::fmt::Display;

use anyhow::{Context, Result, ensure};

/// Limit of a figure, inclusive.
#[derive(Clone, Copy, Debug)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

use Bound::{AtLeast, AtMost};

/// Figure, bound, unit, and the decimals that are printed.
type Limit = (&'static str, Bound, &'static str, usize);

#[rustfmt::skip]
const LIMITS: &[Limit] = &[
    ("host -> plugin -> host log -> reply / the same in the host", AtMost(5.0), "", 2),
    ("private memory of the idle plugin", AtMost(150.0), "KiB", 0),
    ("control round trips, one client", AtLeast(5000.0), "/s", 0),
    ("a message over the control socket / Redis PING", AtMost(5.0), "", 2),
    ("a message as a command of Redis / Redis PING", AtMost(2.0), "", 2),
    ("a message by a call in C / Redis PING", AtMost(0.5), "", 3),
    ("wakeups of an idle plugin in 10 s", AtMost(0.0), "", 0),
    ("status + ledger with 100 arenas, 90 %", AtMost(1000.0), "us", 0),
    ("stats with 100 arenas, 90 %", AtMost(5000.0), "us", 0),
    ("/pprof/heap / a bare dump", AtMost(1.1), "", 3),
    ("32 kept dumps listed over HTTP", AtMost(50.0), "ms", 1),
    ("memprof serve after four reports", AtMost(32.0), "MiB", 0),
    ("viewer in gzip", AtMost(25.0), "kB", 1),
    ("viewer, first paint", AtMost(300.0), "ms", 0),
    ("viewer, zoom into a callee", AtMost(50.0), "ms", 0),
    ("viewer, zoom out to the whole", AtMost(50.0), "ms", 0),
    ("viewer, search", AtMost(50.0), "ms", 0),
    ("viewer, search that finds everything", AtMost(50.0), "ms", 0),
    ("exponent of a dump, by stacks", AtMost(1.1), "", 2),
    ("exponent of a dump, by loaded libraries", AtMost(1.1), "", 2),
    ("exponent of a search for allocators, by loaded libraries", AtMost(1.1), "", 2),
    ("exponent of a list, by kept dumps", AtMost(1.1), "", 2),
    ("exponent of a report, by bytes", AtMost(1.1), "", 2),
    ("exponent of memprof ps, by hosts", AtMost(1.1), "", 2),
    ("exponent of memprof status PID, by hosts", AtMost(1.1), "", 2),
    ("exponent of /api/v1/hosts, by hosts", AtMost(1.1), "", 2),
    ("memory that 64 clients that come and go leave", AtMost(16.0), "MiB", 1),
    ("sampled pair / bare, 64 bytes, 512KiB", AtMost(1.18), "", 3),
    ("sampled pair / bare, 64 bytes, 64KiB", AtMost(1.22), "", 3),
    ("sampled pair / bare, 64 bytes, 16KiB", AtMost(1.30), "", 3),
    ("sampled pair / bare, 64 bytes, deactivated", AtMost(1.15), "", 3),
    ("sampled pair / bare, 64 bytes, after", AtMost(1.05), "", 3),
    ("sampled pair / bare, mixed bytes, 512KiB", AtMost(1.26), "", 3),
    ("sampled pair / bare, mixed bytes, 64KiB", AtMost(1.30), "", 3),
    ("sampled pair / bare, mixed bytes, 16KiB", AtMost(1.38), "", 3),
    ("sampled pair / bare, mixed bytes, deactivated", AtMost(1.23), "", 3),
    ("sampled pair / bare, mixed bytes, after", AtMost(1.13), "", 3),
    ("time of the processor, sampled / only loaded, perl", AtMost(1.03), "", 3),
    ("time of the processor, sampled / only loaded, python3", AtMost(1.03), "", 3),
    ("time of the processor, sampled / only loaded, cc1plus", AtMost(1.03), "", 3),
    ("time of the processor, sampled / only loaded, redis-server", AtMost(1.03), "", 3),
    ("Python's benchmarks, attached / bare", AtMost(1.02), "", 3),
    ("Python's benchmarks, sampled without functions and objects of Python / bare", AtMost(1.05), "", 3),
    ("Python's benchmarks, sampled / bare", AtMost(1.10), "", 3),
    ("Python's benchmarks, after detach / bare", AtMost(1.02), "", 3),
    ("age and label of a sample, memprof's sampler", AtMost(50.0), "ns", 0),
    ("age and label of a sample, jemalloc's", AtMost(50.0), "ns", 0),
    ("memprof's walk / jemalloc's, micro, lg 19", AtMost(0.40), "", 3),
    ("memprof's walk / jemalloc's, micro, lg 17", AtMost(0.30), "", 3),
    ("memprof's walk / jemalloc's, micro, lg 14", AtMost(0.30), "", 3),
    ("memprof's walk / jemalloc's, micro, lg 12", AtMost(0.30), "", 3),
    ("memprof's walk / jemalloc's, perl", AtMost(0.20), "", 3),
    ("memprof's walk / jemalloc's, cc1plus", AtMost(0.20), "", 3),
    ("run time under memprof test / bare, C++", AtMost(1.10), "", 3),
    ("run time under memprof test / bare, Rust", AtMost(1.10), "", 3),
    ("run time under memprof test / bare, Python", AtMost(1.10), "", 3),
    ("run time under memprof test / bare, Node", AtMost(1.10), "", 3),
    ("5 % more caught in 100 runs, C++", AtLeast(99.0), "", 0),
    ("false alarms in 100 runs, C++", AtMost(1.0), "", 0),
    ("5 % more caught in 100 runs, Rust", AtLeast(99.0), "", 0),
    ("false alarms in 100 runs, Rust", AtMost(1.0), "", 0),
    ("5 % more caught in 100 runs, Python", AtLeast(99.0), "", 0),
    ("false alarms in 100 runs, Python", AtMost(1.0), "", 0),
    ("5 % more caught in 100 runs, Node", AtLeast(99.0), "", 0),
    ("false alarms in 100 runs, Node", AtMost(1.0), "", 0),
    ("compacted bytes of a sample", AtMost(4.0), "", 2),
    ("fleet top, 1 h", AtMost(1000.0), "ms", 0),
    ("fleet growth, 1 h", AtMost(1000.0), "ms", 0),
    ("fleet flame of a service, 1 h", AtMost(1000.0), "ms", 0),
    ("fleet flame of a service, 10 h", AtMost(1000.0), "ms", 0),
    ("fleet diff of a service, 10 h", AtMost(1000.0), "ms", 0),
    ("time of a report, after / before, cc1plus.heap", AtMost(1.03), "", 3),
    ("time of a report, after / before, stacks with names", AtMost(1.03), "", 3),
    ("time of names and lines, after / before", AtMost(1.03), "", 3),
    ("jeprof's seconds / memprof's, cc1plus.heap", AtLeast(60.0), "", 1),
    ("jeprof's seconds / memprof's, big.heap", AtLeast(100.0), "", 1),
    ("pprof_util's seconds / memprof's, big.heap", AtLeast(3.0), "", 1),
    ("parsing / memchr_iter for line ends, big.heap", AtMost(10.0), "", 1),
    ("memory of parsing / bytes, big.heap", AtMost(1.1), "", 2),
];

/// Figures that were measured in this run.
#[derive(Debug, Default)]
pub(crate) struct Measurements {
    measured: Vec<&'static str>,
    /// Lines of the figures that break their limit.
    broken: Vec<String>,
}

impl Measurements {
    /// Prints a figure of the table beside its limit, followed by `more`, and notes whether the limit holds.
    ///
    /// # Errors
    /// The table has no such figure.
    pub(crate) fn record(&mut self, figure: &str, value: f64, more: impl Display) -> Result<()> {
        let found = LIMITS.iter().find(|(known, ..)| *known == figure);
        let (known, bound, unit, digits) =
            found.with_context(|| format!("the table of limits has no {figure:?}"))?;
        let (word, limit, holds) = match bound {
            AtMost(most) => ("at most", most, value <= *most),
            AtLeast(least) => ("at least", least, value >= *least),
        };
        let space = if unit.is_empty() { "" } else { " " };
        let line = format!("{figure}: {value:.digits$}{space}{unit} ({word} {limit}); {more}");
        println!("{}", line.trim_end_matches("; "));
        self.measured.push(*known);
        if !holds {
            self.broken.push(line);
        }
        Ok(())
    }

    /// Returns the number of limits that hold, and the names of the figures that were not measured.
    ///
    /// # Errors
    /// A limit is broken.
    pub(crate) fn check(&self) -> Result<String> {
        ensure!(
            self.broken.is_empty(),
            "{} of {} limits are broken:\n{}",
            self.broken.len(),
            self.measured.len(),
            self.broken.join("\n")
        );
        let mut summary = format!("{} of {} limits hold", self.measured.len(), LIMITS.len());
        let all = LIMITS.iter().map(|(figure, ..)| figure);
        for figure in all.filter(|figure| !self.measured.contains(figure)) {
            summary.push_str("\nnot measured: ");
            summary.push_str(figure);
        }
        Ok(summary)
    }
}

#[cfg(test)]
mod tests {
    use super::{LIMITS, Measurements};

    #[test]
    fn figure_has_one_limit() {
        for (index, (figure, ..)) in LIMITS.iter().enumerate() {
            let duplicate = LIMITS[..index].iter().find(|(other, ..)| other == figure);
            assert!(duplicate.is_none(), "{figure}");
        }
    }

    #[test]
    fn broken_limit_is_reported() {
        let mut measurements = Measurements::default();
        measurements.record("viewer in gzip", 25.0, "").unwrap();
        measurements
            .record("control round trips, one client", 5000.0, "")
            .unwrap();
        let summary = measurements.check().unwrap();
        let count = LIMITS.len();
        assert!(
            summary.starts_with(&format!("2 of {count} limits hold\n")),
            "{summary}"
        );
        assert_eq!(
            summary.matches("\nnot measured: ").count(),
            count - 2,
            "{summary}"
        );
        assert!(!summary.contains("viewer in gzip"), "{summary}");
        measurements.record("viewer in gzip", 25.1, "more").unwrap();
        measurements
            .record("control round trips, one client", 4999.0, "")
            .unwrap();
        let error = measurements.check().unwrap_err().to_string();
        assert!(error.contains("2 of 4"), "{error}");
        assert!(
            error.contains("viewer in gzip: 25.1 kB (at most 25); more"),
            "{error}"
        );
        assert!(measurements.record("speed of light", 3e8, "").is_err());
    }
}
