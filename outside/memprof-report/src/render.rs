//! Renders a symbolized profile: one function per format, each writing to a writer.

mod collapsed;
mod dot;
mod flamegraph;
mod graph;
mod html;
mod jeprof;
mod json;
mod negative;
mod peek;
mod pprof;
mod svg;
mod text;
mod tree;

pub use flamegraph::FLAMEGRAPH_POLICY;
pub(crate) use negative::negative_values_note;

pub use html::{Cells, Column, Outline, OutlinePage, POLICY, VIEWER};

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io::Write;

use crate::code_origin::explain_origin;
use crate::error::Result;
use crate::fold::Folded;
use crate::limits::MemoryLeft;
use crate::names::StringId;
use crate::options::{Format, Options};
use crate::plural::pluralize;
use crate::profile::sample_types::{Unit, ValueType};
use crate::profile::{Sample, SampleType, SampleValues};
use crate::short_names::{cut_name, short_name};
use crate::stacks::StackId;
use crate::symbolized_profile::SymbolizedProfile;
use crate::unsample::overflow_error;

/// Profile to render, with its base for a comparison.
#[derive(Clone, Debug)]
pub struct RenderInput<'a> {
    /// File name of the profile.
    pub name: String,
    /// Symbolized profile.
    pub profile: &'a SymbolizedProfile,
    /// File name of the base.
    pub base_name: Option<String>,
    /// Symbolized profile that is subtracted.
    pub base: Option<&'a SymbolizedProfile>,
}

impl RenderInput<'_> {
    /// Checks that no sum over samples of the profile and its base can overflow, and fails otherwise: the sum of all
    /// absolute values must fit in 64 bits.
    fn check_sums_cannot_overflow(&self) -> Result<()> {
        let mut named = [Some(self.profile), self.base].into_iter().flatten();
        let sum = named.try_fold(SampleValues::default(), |sum, named| {
            sum.checked_add(named.profile.absolute_totals()?)
        });
        sum.map(|_| ()).ok_or_else(overflow_error)
    }

    /// Totals of all sample types; differences if there is a base.
    fn totals(&self) -> SampleValues {
        let sum = |named: &SymbolizedProfile| {
            named
                .profile
                .samples
                .iter()
                .fold(SampleValues::default(), |mut sum, sample| {
                    sum += sample.values;
                    sum
                })
        };
        let mut totals = sum(self.profile);
        if let Some(base) = self.base {
            let base = sum(base);
            for (total, base) in totals.0.iter_mut().zip(base.0) {
                *total -= base;
            }
        }
        totals
    }

    /// Returns the amount of which the percentages of a report are shares: the sum of the stacks' absolute values,
    /// which is the total unless some values are negative, as in a difference. In a comparison, the larger one of the
    /// two sums.
    fn amount_for_percentages(&self, sample_type: SampleType) -> i64 {
        let sum = |named: &SymbolizedProfile| {
            let samples = &named.profile.samples;
            let value = |sample: &Sample| sample.values[sample_type];
            let sizes = samples.iter().map(|sample| value(sample).unsigned_abs());
            if samples.iter().all(|sample| value(sample) >= 0) {
                return sizes.fold(0, u64::saturating_add);
            }
            // A file of `go tool pprof -diff_base` has two samples for a stack: its value and, with the label
            // `pprof::base`, the negated value of the base.
            let mut stacks: HashMap<StackId, i64> = HashMap::new();
            for sample in samples {
                let sum = stacks.entry(sample.stack).or_default();
                *sum = sum.saturating_add(value(sample));
            }
            let sizes = stacks.into_values().map(i64::unsigned_abs);
            sizes.fold(0, u64::saturating_add)
        };
        let whole = sum(self.profile).max(self.base.map_or(0, sum));
        i64::try_from(whole).unwrap_or(i64::MAX)
    }

    /// Returns the type, with its name and unit, of the values that the profile has as `sample_type`: the file's own,
    /// or the one that was selected in its place.
    fn value_type(&self, sample_type: SampleType) -> ValueType {
        self.profile.profile.value_type(sample_type)
    }

    /// Memory budget that is left for the report.
    fn memory_left(&self) -> MemoryLeft {
        self.profile.profile.memory_left
    }

    /// Folds the profile and its base, with all functions of each stack.
    fn fold_stacks(&self, options: &Options) -> Folded<'_> {
        Folded::new(
            self.profile,
            self.base,
            options.sample_type,
            options.granularity,
            &options.origin_rules,
        )
    }

    /// Folds stacks for a table: of the functions with the highest code origin in each stack, usually the program's
    /// own, or with `flat` of all functions. Keeps the stacks whole, so that the table can count callees.
    fn fold_for_table(&self, options: &Options) -> Folded<'_> {
        let folded = self.fold_stacks(options);
        match options.origin_rules.flat {
            true => folded,
            false => folded.with_origin_filter(),
        }
    }

    /// Folds each stack to its functions of the highest code origin, which are the program's own if it has any. With
    /// `flat`, keeps whole stacks.
    fn fold_by_origin(&self, options: &Options) -> Folded<'_> {
        let folded = self.fold_stacks(options);
        match options.origin_rules.flat {
            true => folded,
            false => folded.into_origin_filtered(),
        }
    }

    /// Warnings of the profile, then those of its base, for the reader of the report: one line each, without adjacent
    /// duplicates.
    pub(crate) fn notes(&self) -> Vec<&str> {
        let named = [Some(self.profile), self.base];
        let notes = named.into_iter().flatten();
        let mut notes: Vec<_> = notes
            .flat_map(|named| &named.profile.warnings)
            .map(String::as_str)
            .collect();
        notes.dedup();
        notes
    }

    /// Formats the numbers of samples and stacks with a value as `71 samples in 1 stack`; only the stacks if the
    /// profile has no sample counts.
    fn sample_count_text(&self, sample_type: SampleType) -> String {
        // The counts of a sample are of allocated objects, then of those in use.
        let index = usize::from(!sample_type.is_alloc());
        let is_held = |sample: &&Sample| sample.values[sample_type] != 0;
        // A text dump has a line for each object size of a stack, and lines of stacks without live objects.
        let samples = || self.profile.profile.samples.iter().filter(is_held);
        let stacks: HashSet<_> = samples().map(|sample| sample.stack).collect();
        let stacks = pluralize(stacks.len() as u64, "stack");
        match samples()
            .map(|sample| u64::from(sample.counts[index]))
            .sum()
        {
            0 => stacks,
            count => format!("{} in {stacks}", pluralize(count, "sample")),
        }
    }

    /// Returns the heading that every format for people begins with: the sample type, the amount or change, the number
    /// of processes, how the amount was estimated, and the numbers of samples and stacks. If known, also the time since
    /// which memory was sampled.
    fn heading(&self, options: &Options) -> String {
        let sample_type = options.sample_type;
        let total = self.totals()[sample_type];
        let value_type = self.value_type(sample_type);
        let amount = match (&value_type.unit, sample_type.name() == value_type.name) {
            (Unit::Bytes, _) => format!("{total} bytes ({})", format_amount(total, sample_type)),
            (Unit::Other(_), true) => format!("{total} objects"),
            (Unit::Other(unit), false) => format!("{total} {unit}").trim_end().to_owned(),
        };
        let is_pinned = self.profile.profile.is_pinned;
        let (what, sampling) = match self.profile.profile.interval {
            _ if is_pinned => (
                "pinned",
                "free beside live objects as the allocator counts it, shared out by samples".into(),
            ),
            Some(1) if self.profile.profile.value_types.is_some() => {
                (value_type.name.as_str(), "not sampled".into())
            }
            Some(interval) => (
                value_type.name.as_str(),
                format!("estimated, 1 sample per {interval} bytes"),
            ),
            None if self.profile.profile.value_types.is_some() => {
                (value_type.name.as_str(), "as the file has it".into())
            }
            None => (value_type.name.as_str(), "not sampled".into()),
        };
        let samples = self.sample_count_text(sample_type);
        let since = match &self.profile.profile.origin.sampling_since {
            Some(since) => format!(", only memory allocated since {since}"),
            None => String::new(),
        };
        let base_since = self
            .base
            .and_then(|base| base.profile.origin.sampling_since.as_ref());
        let since = match base_since
            .filter(|base| Some(*base) != self.profile.profile.origin.sampling_since.as_ref())
        {
            Some(base_since) => format!("{since}, in the base since {base_since}"),
            None => since,
        };
        let processes = match self.profile.profile.origin.processes.len() {
            0 => String::new(),
            count => format!(" of {count} processes"),
        };
        match &self.base_name {
            None => format!("{what}: {amount}{processes}, {sampling}, {samples}{since}"),
            Some(base) => format!(
                "{what}: changed by {amount}{processes} from base {base}, {sampling}, {samples}{since}"
            ),
        }
    }
}

/// Returns the name of a function for a table: the whole one with `flat`, else a short one, with a suffix if the
/// function is not the program's own. Overlong names are cut.
fn function_label<'f>(
    folded: &'f Folded<'_>,
    function: StringId,
    options: &Options,
) -> Cow<'f, str> {
    let name = folded.functions.get(function);
    if options.origin_rules.flat {
        return cut_name(name);
    }
    let short = short_name(name);
    match folded.origins[function.0 as usize].row_suffix() {
        "" => short,
        suffix => Cow::Owned(format!("{short}{suffix}")),
    }
}

/// Writes the report in the format that `options` selects or, with `why`, the explanation of a function's code origin
/// in its place.
///
/// # Errors
/// A sum of values passes 63 bits, the profile lacks what the options name, or `out` fails.
pub fn render(input: &RenderInput<'_>, options: &Options, out: &mut dyn Write) -> Result<()> {
    input.check_sums_cannot_overflow()?;
    if let Some(function) = &options.why {
        return explain_origin(input.profile, &options.origin_rules, function, out);
    }
    match options.format {
        Format::Text => text::write_text(input, options, out),
        Format::Tree => tree::write_tree(input, options, out),
        Format::Peek => peek::write_peek(input, options, out),
        Format::Collapsed => collapsed::write_collapsed(&input.fold_stacks(options), out),
        Format::Flamegraph => flamegraph::write_flamegraph(input, options, out),
        Format::Html => html::write_html(input, options, out),
        Format::View => html::write_view(input, options, out),
        Format::Dot => dot::write_dot(input, options, out),
        Format::Svg => svg::write_svg(input, options, out),
        Format::Pprof => pprof::write_pprof(input, options, out),
        Format::Jeprof => jeprof::write_jeprof(input, options, out),
        Format::Json => json::write_json(input, options, out),
    }
}

/// Formats a value for people: `1.50MiB`, or a plain count.
pub fn format_amount(value: i64, sample_type: SampleType) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if sample_type.unit() != "bytes" {
        return value.to_string();
    }
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled.abs() >= 1024.0 {
        scaled /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{value}B"),
        _ => format!("{scaled:.2}{}", UNITS[unit]),
    }
}

/// Percentage of `part` in `whole`; 0 if `whole` is 0.
fn percent(part: i64, whole: i64) -> f64 {
    match whole {
        0 => 0.0,
        _ => 100.0 * part as f64 / whole as f64,
    }
}
