//! How cost grows with the work: of each, the exponent of the line through the logarithms. Twice the work costs
//! twice as much where that is 1.

mod host;
mod hosts;
mod plugin;
mod report;

use std::fmt;

use anyhow::{Context, Result};

use crate::limits::Measurements;

/// Measures.
pub(crate) fn measure(figures: &mut Measurements) -> Result<()> {
    let place = tempfile::tempdir()?;
    plugin::dump_with_stacks(place.path(), figures)?;
    plugin::with_libraries(place.path(), figures)?;
    plugin::kept_dumps(place.path(), figures)?;
    report::by_size(place.path(), figures)?;
    hosts::questions(place.path(), figures)?;
    hosts::clients_that_come_and_go(place.path(), figures)
}

/// Work and the milliseconds that it took.
#[derive(Debug, Default)]
struct Growth(Vec<(f64, f64)>);

impl Growth {
    fn add(&mut self, work: usize, milliseconds: f64) {
        self.0.push((work as f64, milliseconds));
    }

    /// By least squares.
    fn exponent(&self) -> Option<f64> {
        let logs: Vec<(f64, f64)> = self.0.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
        let count = logs.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|log| log.0), mean(|log| log.1));
        let along: f64 = logs.iter().map(|log| (log.0 - x) * (log.1 - y)).sum();
        let square: f64 = logs.iter().map(|log| (log.0 - x).powi(2)).sum();
        (square > 0.0).then_some(along / square)
    }

    fn record_exponent(&self, figure: &str, figures: &mut Measurements) -> Result<()> {
        let exponent = self.exponent().context("one amount of work")?;
        figures.record(figure, exponent, self)
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
    fn the_exponent_of_what_grows() {
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
