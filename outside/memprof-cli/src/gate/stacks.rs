//! Who took what was measured. The functions' names are looked up only where somebody asks for them: it takes as
//! long as many a test does, and fails where a binary has been replaced since.

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
use crate::report::progress;

/// What functions hold, as samples tell.
#[derive(Clone, Debug, Default)]
pub(super) struct Stacks {
    pub(super) at_peak: Vec<Stack>,
    pub(super) in_all: Vec<Stack>,
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
pub(super) struct FunctionRow {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// The standard error.
    pub(super) error: f64,
}

impl Stacks {
    /// # Errors
    /// A dump cannot be read; a binary is not the one that ran.
    pub(super) fn of(measured: &Measurement) -> anyhow::Result<Self> {
        let mut all = Self::default();
        for (at, dump) in measured.dumps.files.iter().enumerate() {
            let named = symbolize(dump)?;
            all.in_all.extend(stacks(&named, BudgetedTotal::Allocated));
            if measured.dumps.of_peak == Some(at) {
                all.at_peak = stacks(&named, BudgetedTotal::Peak);
            }
        }
        output::clear();
        Ok(all)
    }

    fn at(&self, what: BudgetedTotal) -> &[Stack] {
        match what {
            BudgetedTotal::Peak => &self.at_peak,
            BudgetedTotal::Allocated => &self.in_all,
        }
    }

    /// The largest first.
    pub(super) fn functions(&self, what: BudgetedTotal) -> Vec<FunctionRow> {
        let mut rows: HashMap<&str, (u64, f64)> = HashMap::new();
        for stack in self.at(what) {
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

    /// The stack of a function that holds most.
    pub(super) fn heaviest(&self, what: BudgetedTotal, function: &str) -> Option<&Stack> {
        let stacks = self.at(what).iter();
        let of_it =
            stacks.filter(|stack| stack.functions.last().is_some_and(|last| last == function));
        of_it.max_by_key(|stack| stack.bytes)
    }
}

fn symbolize(dump: &Path) -> anyhow::Result<SymbolizedProfile> {
    let failed = || dump.display().to_string();
    let input = Input {
        name: &failed(),
        bytes: &mut BufReader::new(File::open(dump).with_context(failed)?),
    };
    let sources = Sources::for_process(None);
    Ok(memprof_report::read(
        input,
        Some(&sources),
        &Options::default(),
        &progress,
    )?)
}

fn stacks(named: &SymbolizedProfile, what: BudgetedTotal) -> Vec<Stack> {
    let blame = OriginRules::default();
    let folded = Folded::new(
        named,
        None,
        what.sample_type(),
        Granularity::Functions,
        &blame,
    )
    .into_origin_filtered();
    let stacks = folded.stacks.iter().map(|stack| Stack {
        functions: stack
            .functions
            .iter()
            .map(|id| folded.functions.get(*id).to_owned())
            .collect(),
        bytes: u64::try_from(stack.values.new).unwrap_or(0),
        variance: stack.values.confidence.variance,
    });
    stacks.collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Each function with so many bytes, allocated and at the peak, below `main`.
    pub(in crate::gate) fn held(functions: &[(&str, u64)]) -> Stacks {
        let stack = |(name, bytes): &(&str, u64)| Stack {
            functions: vec!["main".to_owned(), (*name).to_owned()],
            bytes: *bytes,
            variance: 0.0,
        };
        let stacks: Vec<Stack> = functions.iter().map(stack).collect();
        Stacks {
            at_peak: stacks.clone(),
            in_all: stacks,
        }
    }
}
