//! Growth of cost with the amount of work: the slope of the line through the logarithms of both. With an exponent of 1,
//! twice the work costs twice as much.

mod host;
mod many_hosts;
mod plugin;
mod report;

use std::fmt;

use anyhow::{Context, Result};

use crate::limits::Measurements;

/// Records how time and memory grow with the amount of work.
pub(crate) fn measure_growth(measurements: &mut Measurements) -> Result<()> {
    let dir = tempfile::tempdir()?;
    plugin::measure_dumps_by_stacks(dir.path(), measurements)?;
    plugin::measure_dumps_and_searches_by_libraries(dir.path(), measurements)?;
    plugin::measure_lists_by_dumps(dir.path(), measurements)?;
    report::measure_reports_by_bytes(dir.path(), measurements)?;
    many_hosts::time_queries(dir.path(), measurements)?;
    many_hosts::measure_memory_after_reconnects(dir.path(), measurements)
}

/// Pairs of an amount of work and the milliseconds that it took.
#[derive(Debug, Default)]
struct Growth(Vec<(f64, f64)>);

impl Growth {
    /// Adds the time that an amount of work took.
    fn add(&mut self, work: usize, milliseconds: f64) {
        self.0.push((work as f64, milliseconds));
    }

    /// Slope of the least-squares line through the logarithms. `None` unless there are two different amounts of work.
    fn exponent(&self) -> Option<f64> {
        let logs: Vec<(f64, f64)> = self.0.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
        let count = logs.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|log| log.0), mean(|log| log.1));
        let covariance: f64 = logs.iter().map(|log| (log.0 - x) * (log.1 - y)).sum();
        let variance: f64 = logs.iter().map(|log| (log.0 - x).powi(2)).sum();
        (variance > 0.0).then_some(covariance / variance)
    }

    /// Records the exponent as a figure. Fails if only one amount of work was measured.
    fn record_exponent(&self, figure: &str, measurements: &mut Measurements) -> Result<()> {
        let exponent = self.exponent().context("one amount of work")?;
        measurements.record(figure, exponent, self)
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (work, milliseconds)) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{work}: {milliseconds:.1} ms")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Growth;

    #[test]
    fn exponent_of_power_law() {
        let check = |cost: fn(f64) -> f64, expected: f64| {
            let points = [10.0, 100.0, 1000.0].map(|work| (work, cost(work)));
            let exponent = Growth(points.to_vec()).exponent().unwrap();
            assert!((exponent - expected).abs() < 1e-9, "{exponent}");
        };
        check(|work| 3.0 * work, 1.0);
        check(|work| work * work, 2.0);
        check(|_| 7.0, 0.0);
        assert_eq!(Growth(vec![(1.0, 1.0)]).exponent(), None);
    }
}
