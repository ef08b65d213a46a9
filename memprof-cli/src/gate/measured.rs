//! What a run of the command took.

use std::collections::HashMap;

use memprof_report::SampleType;
use serde::Serialize;

/// A total that a budget limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    /// The most bytes that live at the same time.
    Peak,
    /// The bytes that are allocated, be they freed or not.
    Allocated,
}

/// A run of the command, with all programs that it executed.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// Of the process in which most lived at the same time.
    pub(super) peak: u64,
    pub(super) allocated: u64,
    /// Processes that were counted.
    pub(super) processes: usize,
    pub(super) stacks_at_peak: Vec<Stack>,
    pub(super) stacks_in_all: Vec<Stack>,
    /// How far several runs lie apart, as shares of their median: peak, allocated. None of one run.
    pub(super) spread: Option<[f64; 2]>,
    /// What the reader should know of it.
    pub(super) notes: Vec<String>,
}

/// Samples of one stack.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stack {
    /// Functions of the program, root first.
    pub(super) functions: Vec<String>,
    /// An estimate, and the square of its standard error.
    pub(super) bytes: u64,
    pub(super) variance: f64,
}

/// What the stacks that end in a function hold together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// The standard error.
    pub(super) error: f64,
}

impl What {
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

impl Measured {
    pub(super) fn total(&self, what: What) -> u64 {
        match what {
            What::Peak => self.peak,
            What::Allocated => self.allocated,
        }
    }

    pub(super) fn stacks(&self, what: What) -> &[Stack] {
        match what {
            What::Peak => &self.stacks_at_peak,
            What::Allocated => &self.stacks_in_all,
        }
    }

    /// The largest first.
    pub(super) fn functions(&self, what: What) -> Vec<Row> {
        let mut rows: HashMap<&str, (u64, f64)> = HashMap::new();
        for stack in self.stacks(what) {
            let name = stack.functions.last().map_or("", String::as_str);
            let (bytes, variance) = rows.entry(name).or_default();
            *bytes += stack.bytes;
            *variance += stack.variance;
        }
        let row = |(name, (bytes, variance)): (&str, (u64, f64))| Row {
            name: name.to_owned(),
            bytes,
            error: variance.sqrt(),
        };
        let mut rows: Vec<Row> = rows.into_iter().map(row).collect();
        rows.sort_by(|a, b| (b.bytes, &a.name).cmp(&(a.bytes, &b.name)));
        rows
    }

    /// The stack of a function that holds most.
    pub(super) fn heaviest(&self, what: What, function: &str) -> Option<&Stack> {
        let stacks = self.stacks(what).iter();
        let of_it =
            stacks.filter(|stack| stack.functions.last().is_some_and(|last| last == function));
        of_it.max_by_key(|stack| stack.bytes)
    }
}

/// The run in the middle, each total the median of its own.
pub(super) fn median(mut runs: Vec<Measured>) -> Option<Measured> {
    let middle = |what: What, runs: &mut Vec<Measured>| {
        runs.sort_by_key(|run| run.total(what));
        let (least, most) = (runs.first()?.total(what), runs.last()?.total(what));
        let median = runs.get(runs.len() / 2)?.total(what);
        Some((median, (most - least) as f64 / (median as f64).max(1.0)))
    };
    let count = runs.len();
    let (allocated, of_allocated) = middle(What::Allocated, &mut runs)?;
    let (peak, of_peak) = middle(What::Peak, &mut runs)?;
    let run = runs.swap_remove(count / 2);
    Some(Measured {
        peak,
        allocated,
        spread: (count > 1).then_some([of_peak, of_allocated]),
        ..run
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Each function with so many bytes, allocated and at the peak, below `main`.
    pub(in crate::gate) fn measured(
        peak: u64,
        allocated: u64,
        functions: &[(&str, u64)],
    ) -> Measured {
        let stack = |(name, bytes): &(&str, u64)| Stack {
            functions: vec!["main".to_owned(), (*name).to_owned()],
            bytes: *bytes,
            variance: 0.0,
        };
        let stacks: Vec<Stack> = functions.iter().map(stack).collect();
        Measured {
            peak,
            allocated,
            processes: 1,
            stacks_at_peak: stacks.clone(),
            stacks_in_all: stacks,
            ..Measured::default()
        }
    }

    #[test]
    fn each_total_is_the_median_of_its_own() {
        let runs =
            [(1, 30), (3, 10), (2, 20)].map(|(peak, allocated)| measured(peak, allocated, &[]));
        let median = median(runs.to_vec()).unwrap();
        assert_eq!(
            (median.peak, median.allocated, median.spread),
            (2, 20, Some([1.0, 1.0]))
        );
        assert_eq!(
            super::median(vec![measured(1, 1, &[])]).unwrap().spread,
            None
        );
        assert!(super::median(Vec::new()).is_none());
    }
}
