//! A report as JSON for scripts. `schema_version` changes when a field changes its meaning or is removed.

use std::collections::BTreeMap;
use std::io::Write;

use serde::Serialize;

use super::RenderInput;
use crate::ages::{Cohort, Cohorts};
use crate::code_origin::CodeOrigin;
use crate::comparison::Comparison;
use crate::error::{Error, Result};
use crate::label_shares::shares_by_label;
use crate::options::Options;
use crate::profile::{self, Profile};
use crate::symbolized_profile::SymbolizedProfile;
use crate::table::function_rows;

const SCHEMA_VERSION: u32 = 1;

/// The JSON document.
#[derive(Serialize)]
struct Report<'a> {
    schema_version: u32,
    profile: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<&'a str>,
    sample_interval: Option<u64>,
    estimated: bool,
    /// The values are free bytes that live objects keep from being released.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pinned: bool,
    stacks: usize,
    sample_type: String,
    unit: String,
    totals: Totals,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_totals: Option<Totals>,
    origin: Origin<'a>,
    mappings: Vec<Mapping<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<JsonLabelShares<'a>>,
    functions: Vec<Function<'a>>,
    functions_left_out: usize,
    warnings: &'a [String],
}

/// Memory by the values of a label.
#[derive(Serialize)]
struct JsonLabelShares<'a> {
    label: &'a str,
    values: Vec<JsonLabelShare>,
}

#[derive(Serialize)]
struct JsonLabelShare {
    value: String,
    flat: i64,
    samples: u64,
    error: i64,
}

/// Totals by the names of the sample types that the profile has.
type Totals = BTreeMap<String, i64>;

#[derive(Serialize)]
struct Origin<'a> {
    host: Option<&'a str>,
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    processes: Vec<JsonProcess<'a>>,
    machine: Option<&'a str>,
    started: Option<&'a str>,
    taken: Option<&'a str>,
    trigger: Option<&'a str>,
    allocator: Option<&'a str>,
    active_since: Option<&'a str>,
    /// Start of memprof's own sampler: the profile lacks earlier allocations.
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_since: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_samples: Option<u64>,
    unseen_frees: Option<UnseenFrees>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unseen_allocation_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    early_ends: Vec<EarlyEnds<'a>>,
}

/// Process of a profile that covers several; `inuse_space` is its estimated bytes in use.
#[derive(Serialize)]
struct JsonProcess<'a> {
    host: Option<&'a str>,
    pid: Option<u32>,
    inuse_space: i64,
}

/// Samples whose stacks end early for one reason in one file; null if the code is in none.
#[derive(Serialize)]
struct EarlyEnds<'a> {
    samples: u64,
    reason: &'a str,
    object: Option<&'a str>,
}

/// Frees that the sampler did not see: sampled blocks that were allocated again, and bytes that are too many.
#[derive(Serialize)]
struct UnseenFrees {
    samples: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Mapping<'a> {
    start: String,
    end: String,
    offset: u64,
    path: &'a str,
    build_id: Option<&'a str>,
}

/// Row of a function.
#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    /// Language, file and line of a function of an interpreted program.
    #[serde(skip_serializing_if = "Option::is_none")]
    language: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    /// Whether the code origin is the program.
    own: bool,
    flat: i64,
    cum: i64,
    /// Number of samples of `flat`, those of the base included; null if the profile has no counts.
    samples: Option<u64>,
    /// Standard error of `flat`, in its unit; null if the profile has no counts.
    error: Option<i64>,
    cum_samples: Option<u64>,
    cum_error: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    diff: Option<Diff>,
    /// Ages, young to old, without empty ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    ages: Option<Vec<Age>>,
}

/// Live memory that was allocated between `to_s` and `from_s` seconds before the dump.
#[derive(Serialize)]
struct Age {
    from_s: u32,
    to_s: u32,
    bytes: i64,
    objects: i64,
}

impl From<Cohort> for Age {
    fn from(cohort: Cohort) -> Self {
        let Cohort {
            from,
            to,
            bytes,
            objects,
        } = cohort;
        Self {
            from_s: from,
            to_s: to,
            bytes,
            objects,
        }
    }
}

/// Change of a function from the base.
#[derive(Serialize)]
struct Diff {
    change: &'static str,
    /// Whether the change is at most what sampling alone can cause: two standard errors.
    noise: bool,
    base_flat: i64,
    new_flat: i64,
    base_cum: i64,
    new_cum: i64,
}

/// Most age spans per function.
const MAX_COHORTS: u32 = 60;

/// Writes the JSON document, with all functions unless `top` limits them. Fails if the profile lacks the label of
/// `--by`.
pub(super) fn write_json(
    input: &RenderInput<'_>,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let folded = input.fold_for_table(options);
    let rows = function_rows(&folded, options.by_cum);
    let shown = options.top.unwrap_or(rows.len()).min(rows.len());
    let profile = &input.profile.profile;
    let diff = |flat: Comparison, cum: Comparison| Diff {
        change: if flat.value() != 0 {
            flat.change().name()
        } else {
            cum.change().name()
        },
        noise: if flat.value() != 0 {
            flat.is_noise()
        } else {
            cum.is_noise()
        },
        base_flat: flat.base,
        new_flat: flat.new,
        base_cum: cum.base,
        new_cum: cum.new,
    };
    let ages = profile.ages.filter(|_| options.ages);
    let cohorts = ages.map(|ages| Cohorts::new(&folded, ages, MAX_COHORTS, options.by_cum));
    // In a sampled profile, a function without a value of its own has 0 samples and no error, not null.
    let is_estimated = rows.iter().any(|row| row.cum.confidence.samples > 0);
    let samples = |pair: Comparison| is_estimated.then_some(pair.confidence.samples);
    let error = |pair: Comparison| is_estimated.then(|| pair.confidence.error().round() as i64);
    let value_type = profile.value_type(options.sample_type);
    let report = Report {
        schema_version: SCHEMA_VERSION,
        profile: &input.name,
        base: input.base_name.as_deref(),
        sample_interval: profile.interval,
        estimated: profile.interval.is_some() || profile.is_pinned,
        pinned: profile.is_pinned,
        stacks: profile.samples.len(),
        sample_type: value_type.name,
        unit: value_type.unit.name().to_owned(),
        totals: totals_by_type(input.profile, input.base),
        base_totals: input.base.map(|base| totals_by_type(base, None)),
        origin: origin_fields(profile),
        mappings: mapping_rows(profile),
        by: options
            .by
            .as_deref()
            .map(|key| label_shares(profile, key, options))
            .transpose()?,
        functions: rows[..shown]
            .iter()
            .map(|row| (row, folded.places.get(&row.function)))
            .map(|(row, place)| Function {
                name: folded.functions.get(row.function),
                language: place.map(|place| place.language.as_str()),
                file: place.and_then(|place| place.file.as_deref()),
                line: place.map(|place| place.line).filter(|line| *line > 0),
                own: folded.origins[row.function.0 as usize] == CodeOrigin::Program,
                flat: row.flat.value(),
                cum: row.cum.value(),
                samples: samples(row.flat),
                error: error(row.flat),
                cum_samples: samples(row.cum),
                cum_error: error(row.cum),
                diff: input.base.map(|_| diff(row.flat, row.cum)),
                ages: cohorts.as_ref().map(|cohorts| {
                    let ages = cohorts.function_cohorts(row.function.0 as usize);
                    ages.map(Age::from).collect()
                }),
            })
            .collect(),
        functions_left_out: rows.len() - shown,
        warnings: &profile.warnings,
    };
    serde_json::to_writer_pretty(&mut *out, &report)
        .map_err(|error| Error::failed_to("write the report")(error.into()))?;
    writeln!(out)?;
    Ok(())
}

/// Computes the shares of a label's values for the JSON document. Fails if the profile has no such label.
fn label_shares<'a>(
    profile: &Profile,
    key: &'a str,
    options: &Options,
) -> Result<JsonLabelShares<'a>> {
    let shares = shares_by_label(profile, key, options.sample_type)?.into_iter();
    let values = shares.map(|share| JsonLabelShare {
        value: share.value,
        flat: share.amount,
        samples: share.confidence.samples,
        error: share.confidence.error().round() as i64,
    });
    Ok(JsonLabelShares {
        label: key,
        values: values.collect(),
    })
}

/// Returns, for each sample type of the profile by its name, the sum over all samples, less the base's sum if there is
/// a base. A sum that overflows is the largest or smallest number.
fn totals_by_type(named: &SymbolizedProfile, base: Option<&SymbolizedProfile>) -> Totals {
    let sum = |named: &SymbolizedProfile, column| {
        let samples = named.profile.samples.iter();
        let values = samples.map(|sample| named.profile.value(sample, column));
        values.fold(0, i64::saturating_add)
    };
    let base_totals = base.map(|base| totals_by_type(base, None));
    let in_base = |name: &str| base_totals.as_ref().and_then(|totals| totals.get(name));
    let mut totals = Totals::new();
    for (column, value_type) in named.profile.columns() {
        let less = in_base(&value_type.name).copied().unwrap_or(0);
        let total = sum(named, column).saturating_sub(less);
        // A report shows the first of several types with one name.
        totals.entry(value_type.name).or_insert(total);
    }
    totals
}

/// Converts the profile's origin for the JSON document. A part that is unknown is `None`.
fn origin_fields(profile: &Profile) -> Origin<'_> {
    let origin = &profile.origin;
    Origin {
        host: origin.host.as_deref(),
        pid: origin.pid,
        processes: origin
            .processes
            .iter()
            .map(|process| JsonProcess {
                host: process.host.as_deref(),
                pid: process.pid,
                inuse_space: process.inuse_space,
            })
            .collect(),
        machine: origin.machine.as_deref(),
        started: origin.started.as_deref(),
        taken: origin.taken.as_deref(),
        trigger: origin.trigger.as_deref(),
        allocator: origin.allocator.as_deref(),
        active_since: origin.active_since.as_deref(),
        sampling_since: origin.sampling_since.as_deref(),
        samples: origin.samples,
        lost_samples: origin.lost_samples,
        unseen_frees: origin
            .unseen_frees
            .map(|profile::UnseenFrees { samples, bytes }| UnseenFrees { samples, bytes }),
        unseen_allocation_bytes: origin.unseen_allocation_bytes,
        early_ends: origin
            .early_ends
            .iter()
            .map(|each| EarlyEnds {
                samples: each.samples,
                reason: &each.reason,
                object: each.object.as_deref(),
            })
            .collect(),
    }
}

/// Converts the profile's mappings for the JSON document. Addresses are texts such as `0x7f00`.
fn mapping_rows(profile: &Profile) -> Vec<Mapping<'_>> {
    let mappings = profile.mappings.iter();
    mappings
        .map(|mapping| Mapping {
            start: mapping.start.to_string(),
            end: mapping.end.to_string(),
            offset: mapping.offset,
            path: &mapping.path,
            build_id: mapping.build_id.as_deref(),
        })
        .collect()
}
