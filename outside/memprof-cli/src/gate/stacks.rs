//! Memory of a measurement by stack and function. Functions are symbolized only if they are needed: that takes as
//! long as many tests do, and fails if a binary was replaced meanwhile.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::Context;
use memprof_report::{
    Folded, Granularity, Input, Options, OriginRules, Sources, SymbolizedProfile,
};

use super::measurement::{BudgetedTotal, Measurement};
use crate::output;
use crate::report_form::show_symbolizing_progress;

/// Estimates by stack, from samples.
#[derive(Clone, Debug, Default)]
pub(super) struct Stacks {
    /// Bytes live at the peak of the process with the largest one.
    pub(super) at_peak: Vec<Stack>,
    /// Bytes allocated, of all processes.
    pub(super) allocated: Vec<Stack>,
}

/// Estimate for a stack.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stack {
    /// Functions of the program, root first.
    pub(super) functions: Vec<String>,
    /// Estimated bytes.
    pub(super) bytes: u64,
    /// Square of the estimate's standard error.
    pub(super) variance: f64,
}

/// Sum of the stacks whose leaf is a function.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FunctionRow {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Standard error of `bytes`.
    pub(super) error: f64,
}

impl Stacks {
    /// Reads and symbolizes the dumps of a measurement, with a progress line. The allocated bytes are those of all
    /// processes, the bytes at the peak those of the process with the largest peak.
    ///
    /// # Errors
    /// A dump cannot be read, or a binary differs from the one that ran.
    pub(super) fn read(measured: &Measurement) -> anyhow::Result<Self> {
        let mut all = Self::default();
        for (index, dump) in measured.dumps.files.iter().enumerate() {
            let profile = read_symbolized(dump)?;
            all.allocated
                .extend(fold_stacks(&profile, BudgetedTotal::Allocated));
            if measured.dumps.peak_index == Some(index) {
                all.at_peak = fold_stacks(&profile, BudgetedTotal::Peak);
            }
        }
        output::clear_progress();
        Ok(all)
    }

    /// Returns the stacks with the estimates of a total.
    fn for_total(&self, total: BudgetedTotal) -> &[Stack] {
        match total {
            BudgetedTotal::Peak => &self.at_peak,
            BudgetedTotal::Allocated => &self.allocated,
        }
    }

    /// Returns the bytes and standard error of each function that allocates, the largest first. A stack counts for its
    /// last function, the leaf.
    pub(super) fn function_rows(&self, total: BudgetedTotal) -> Vec<FunctionRow> {
        let mut rows: HashMap<&str, (u64, f64)> = HashMap::new();
        for stack in self.for_total(total) {
            let name = stack.functions.last().map_or("", String::as_str);
            let (bytes, variance) = rows.entry(name).or_default();
            *bytes += stack.bytes;
            *variance += stack.variance;
        }
        let row = |(name, (bytes, variance)): (&str, (u64, f64))| FunctionRow {
            name: name.to_owned(),
            bytes,
            error: variance.sqrt(),
        };
        let mut rows: Vec<FunctionRow> = rows.into_iter().map(row).collect();
        rows.sort_by(|a, b| (b.bytes, &a.name).cmp(&(a.bytes, &b.name)));
        rows
    }

    /// Returns whether `function` is the leaf of a stack that was sampled for one of the [`BudgetedTotal`]s.
    pub(super) fn has_leaf(&self, function: &str) -> bool {
        let mut totals = BudgetedTotal::ALL.into_iter();
        totals.any(|total| self.heaviest_stack(total, function).is_some())
    }

    /// Returns the largest stack whose leaf is a function; `None` if the function has none.
    pub(super) fn heaviest_stack(&self, total: BudgetedTotal, function: &str) -> Option<&Stack> {
        let stacks = self.for_total(total).iter();
        let matching =
            stacks.filter(|stack| stack.functions.last().is_some_and(|last| last == function));
        matching.max_by_key(|stack| stack.bytes)
    }
}

/// Reads the dump of a process that has ended, and symbolizes it with the binaries on this machine.
fn read_symbolized(dump: &Path) -> anyhow::Result<SymbolizedProfile> {
    let failed = || dump.display().to_string();
    let input = Input {
        name: &failed(),
        bytes: &mut BufReader::new(File::open(dump).with_context(failed)?),
    };
    let sources = Sources::for_process(None);
    Ok(memprof_report::read_profile(
        input,
        Some(&sources),
        &Options::default(),
        &show_symbolizing_progress,
    )?)
}

/// Merges the stacks of a profile that have the same functions of the program: frames of libraries and runtimes are
/// left out if a stack has others. Each stack has the estimated bytes of a total; a negative estimate counts as 0.
fn fold_stacks(profile: &SymbolizedProfile, total: BudgetedTotal) -> Vec<Stack> {
    let rules = OriginRules::default();
    let folded = Folded::new(
        profile,
        None,
        total.sample_type(),
        Granularity::Functions,
        &rules,
    )
    .into_origin_filtered();
    let mut stacks = Vec::new();
    folded.stacks.for_each(|stack| {
        let functions = stack.functions.iter();
        stacks.push(Stack {
            functions: functions
                .map(|id| folded.functions.get(*id).to_owned())
                .collect(),
            bytes: u64::try_from(stack.values.new).unwrap_or(0),
            variance: stack.values.confidence.variance,
        });
    });
    stacks
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Stacks of functions below `main`, with bytes that are allocated and live at the peak.
    pub(in crate::gate) fn stacks_with(functions: &[(&str, u64)]) -> Stacks {
        let stack = |(name, bytes): &(&str, u64)| Stack {
            functions: vec!["main".to_owned(), (*name).to_owned()],
            bytes: *bytes,
            variance: 0.0,
        };
        let stacks: Vec<Stack> = functions.iter().map(stack).collect();
        Stacks {
            at_peak: stacks.clone(),
            allocated: stacks,
        }
    }
}
