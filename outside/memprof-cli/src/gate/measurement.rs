//! What a run of the command took.

use std::path::PathBuf;

use memprof_report::SampleType;
use serde::Serialize;
use tempfile::TempDir;

/// A total that a budget limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BudgetedTotal {
    /// The most bytes that live at the same time.
    Peak,
    /// The bytes that are allocated, be they freed or not.
    Allocated,
}

/// A run of the command, with all programs that it executed.
#[derive(Debug, Default)]
pub(super) struct Measurement {
    /// Of the process in which most lived at the same time.
    pub(super) peak: u64,
    pub(super) allocated: u64,
    /// Processes that were counted.
    pub(super) processes: usize,
    /// What these left.
    pub(super) dumps: Dumps,
    /// How far several runs lie apart, as shares of their median: peak, allocated. None of one run.
    pub(super) spread: Option<[f64; 2]>,
    /// What the reader should know of it.
    pub(super) notes: Vec<String>,
}

/// One dump of each process that was counted.
#[derive(Debug, Default)]
pub(super) struct Dumps {
    pub(super) files: Vec<PathBuf>,
    /// Which of them is that of the process in which most lived at the same time.
    pub(super) of_peak: Option<usize>,
    /// The directory, which is removed when nobody needs it any more.
    pub(super) place: Option<TempDir>,
}

impl BudgetedTotal {
    pub(super) const ALL: [Self; 2] = [Self::Peak, Self::Allocated];

    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Peak => "peak",
            Self::Allocated => "allocated",
        }
    }

    pub(super) fn sample_type(self) -> SampleType {
        match self {
            Self::Peak => SampleType::InuseSpace,
            Self::Allocated => SampleType::AllocSpace,
        }
    }
}

impl Measurement {
    pub(super) fn total(&self, what: BudgetedTotal) -> u64 {
        match what {
            BudgetedTotal::Peak => self.peak,
            BudgetedTotal::Allocated => self.allocated,
        }
    }
}

/// The run in the middle, each total the median of its own.
pub(super) fn median(mut runs: Vec<Measurement>) -> Option<Measurement> {
    let middle = |what: BudgetedTotal, runs: &mut Vec<Measurement>| {
        runs.sort_by_key(|run| run.total(what));
        let (least, most) = (runs.first()?.total(what), runs.last()?.total(what));
        let median = runs.get(runs.len() / 2)?.total(what);
        Some((median, (most - least) as f64 / (median as f64).max(1.0)))
    };
    let count = runs.len();
    let (allocated, of_allocated) = middle(BudgetedTotal::Allocated, &mut runs)?;
    let (peak, of_peak) = middle(BudgetedTotal::Peak, &mut runs)?;
    let run = runs.swap_remove(count / 2);
    Some(Measurement {
        peak,
        allocated,
        spread: (count > 1).then_some([of_peak, of_allocated]),
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
    fn each_total_is_the_median_of_its_own() {
        let runs = [(1, 30), (3, 10), (2, 20)].map(|(peak, allocated)| measured(peak, allocated));
        let median = median(runs.into()).unwrap();
        assert_eq!(
            (median.peak, median.allocated, median.spread),
            (2, 20, Some([1.0, 1.0]))
        );
        assert_eq!(super::median(vec![measured(1, 1)]).unwrap().spread, None);
        assert!(super::median(Vec::new()).is_none());
    }
}
