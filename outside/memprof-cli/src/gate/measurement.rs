//! Memory that a run of the command took.

use std::path::PathBuf;

use memprof_report::SampleType;
use serde::Serialize;
use tempfile::TempDir;

use crate::exit::{UNAVAILABLE, with_exit_code};

/// A total that a budget limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BudgetedTotal {
    /// Most bytes live at the same time.
    Peak,
    /// Bytes allocated, whether freed or not.
    Allocated,
}

/// Totals of a run of the command, with all programs that it executed.
#[derive(Debug, Default)]
pub(super) struct Measurement {
    /// Peak of the process with the largest one, in bytes.
    pub(super) peak: u64,
    /// Bytes allocated by all processes.
    pub(super) allocated: u64,
    /// Number of counted processes.
    pub(super) processes: usize,
    /// Dumps of these processes.
    pub(super) dumps: Dumps,
    /// Range of several runs, as a share of their median: peak, allocated. `None` for one run.
    pub(super) spread: Option<[f64; 2]>,
    /// Names of processes that are in no total.
    pub(super) uncounted: Vec<String>,
    /// Notes for the user.
    pub(super) notes: Vec<String>,
}

/// One dump of each counted process.
#[derive(Debug, Default)]
pub(super) struct Dumps {
    pub(super) files: Vec<PathBuf>,
    /// Index of the dump of the process with the largest peak.
    pub(super) peak_index: Option<usize>,
    /// Directory of the dumps, removed when this value is dropped.
    pub(super) dir: Option<TempDir>,
}

impl BudgetedTotal {
    pub(super) const ALL: [Self; 2] = [Self::Peak, Self::Allocated];

    /// Returns the key in the budget file.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Peak => "peak",
            Self::Allocated => "allocated",
        }
    }

    /// Returns the sample type that estimates the total by function.
    pub(super) fn sample_type(self) -> SampleType {
        match self {
            Self::Peak => SampleType::InuseSpace,
            Self::Allocated => SampleType::AllocSpace,
        }
    }
}

impl Measurement {
    /// Returns the measured bytes of a total.
    pub(super) fn total(&self, total: BudgetedTotal) -> u64 {
        match total {
            BudgetedTotal::Peak => self.peak,
            BudgetedTotal::Allocated => self.allocated,
        }
    }

    /// Fails unless the allocations of every process were counted. Otherwise, the totals are too low, and if they
    /// became limits, a later run that counts more processes would fail.
    pub(super) fn require_all_counted(&self) -> anyhow::Result<()> {
        let Some(first) = self.uncounted.first() else {
            return Ok(());
        };
        let more = match self.uncounted.len() - 1 {
            0 => String::new(),
            more => format!(", nor were {more} more"),
        };
        let message = format!(
            "no budget is written: {first} was not counted{more}, because its allocator cannot report the size of a \
             block; test a command that does not run it, or link it with the allocator of the system"
        );
        Err(with_exit_code(UNAVAILABLE, message))
    }
}

/// Returns the run with the median peak, of an even number of runs the upper one. Its allocated bytes are replaced by
/// the median of all runs. With several runs, it also gets the spread of each total: the range as a share of the
/// median. `None` without runs.
pub(super) fn median_run(mut runs: Vec<Measurement>) -> Option<Measurement> {
    let median_and_spread = |total: BudgetedTotal, runs: &mut Vec<Measurement>| {
        runs.sort_by_key(|run| run.total(total));
        let (least, most) = (runs.first()?.total(total), runs.last()?.total(total));
        let median = runs.get(runs.len() / 2)?.total(total);
        // A median of 0 must not be a divisor.
        Some((median, (most - least) as f64 / (median as f64).max(1.0)))
    };
    let count = runs.len();
    let (allocated, allocated_spread) = median_and_spread(BudgetedTotal::Allocated, &mut runs)?;
    let (peak, peak_spread) = median_and_spread(BudgetedTotal::Peak, &mut runs)?;
    let run = runs.swap_remove(count / 2);
    Some(Measurement {
        peak,
        allocated,
        spread: (count > 1).then_some([peak_spread, allocated_spread]),
        ..run
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::gate) fn measured(peak: u64, allocated: u64) -> Measurement {
        Measurement {
            peak,
            allocated,
            processes: 1,
            ..Measurement::default()
        }
    }

    #[test]
    fn each_total_has_its_own_median() {
        let runs = [(1, 30), (3, 10), (2, 20)].map(|(peak, allocated)| measured(peak, allocated));
        let median = median_run(runs.into()).unwrap();
        assert_eq!(
            (median.peak, median.allocated, median.spread),
            (2, 20, Some([1.0, 1.0]))
        );
        assert_eq!(
            super::median_run(vec![measured(1, 1)]).unwrap().spread,
            None
        );
        assert!(super::median_run(Vec::new()).is_none());
    }
}
