//! Results of queries that memprof-report renders: the sum of profiles, or a comparison of two sums.

use memprof_report::{Options, RenderInput, SymbolizedProfile, UnseenFrees, render};

use crate::process_profile::SamplerCounts;
use crate::query::symbolized::build_symbolized_profile;
use crate::query::weights::{Weighting, Weights, read_weighted_sums};
use crate::query::{Profile, ProfileQuery, newest_profiles};

/// Sum of profiles, perhaps compared with another sum.
pub(crate) struct QueryResult {
    name: String,
    pub(crate) profile: SymbolizedProfile,
    base: Option<(String, SymbolizedProfile)>,
}

/// Sums the selected profiles as `weighting` says. With `build`, only those whose build id begins with it. Fails if
/// there is none (exit code 5).
pub(crate) fn sum_profiles(
    query: &ProfileQuery,
    build: Option<&str>,
    weighting: Weighting,
) -> anyhow::Result<QueryResult> {
    Ok(QueryResult {
        name: query.to_string(),
        profile: sum_by_stack(query, build, weighting)?,
        base: None,
    })
}

/// Compares the mean process of `build` with that of `base`; both are build ids or their beginnings. Fails if one of
/// them has no profile (exit code 5).
pub(crate) fn compare_builds(
    query: &ProfileQuery,
    build: &str,
    base: &str,
) -> anyhow::Result<QueryResult> {
    let base_name = format!("{base}, each the mean of its processes");
    Ok(QueryResult {
        name: format!("a process of build {build}"),
        profile: sum_by_stack(query, Some(build), Weighting::MeanOfProcesses)?,
        base: Some((
            base_name,
            sum_by_stack(query, Some(base), Weighting::MeanOfProcesses)?,
        )),
    })
}

/// Compares the time window of `query` with that of `base`; each is the mean of its processes. With `build`, only
/// profiles whose build id begins with it count. Fails if one window has no profile (exit code 5).
pub(crate) fn compare_windows(
    query: &ProfileQuery,
    base: &ProfileQuery,
    build: Option<&str>,
) -> anyhow::Result<QueryResult> {
    Ok(QueryResult {
        name: format!("a process of {query}"),
        profile: sum_by_stack(query, build, Weighting::MeanOfProcesses)?,
        base: Some((
            format!("{} to {}", base.from.to_rfc3339(), base.to.to_rfc3339()),
            sum_by_stack(base, build, Weighting::MeanOfProcesses)?,
        )),
    })
}

/// Sums the selected profiles by stack as `weighting` says, and adds the counts of memprof's samplers. Adds a note with
/// the numbers of profiles and processes. With `build`, only profiles whose build id begins with it count. Fails if no
/// profile is selected (exit code 5).
fn sum_by_stack(
    query: &ProfileQuery,
    build: Option<&str>,
    weighting: Weighting,
) -> anyhow::Result<SymbolizedProfile> {
    let profiles = query.read_selected_profiles(build)?;
    let weights = Weights::new(&profiles, weighting);
    note_profile_counts(query, &profiles, &weights);
    let mut symbolized =
        build_symbolized_profile(query, &read_weighted_sums(query, &profiles, &weights)?)?;
    let counts = newest_profiles(&profiles).filter_map(|profile| profile.sampler);
    // The report enlarges the errors of values by the share of lost samples.
    if let Some(sum) = counts.reduce(SamplerCounts::plus) {
        let origin = &mut symbolized.profile.origin;
        let count = |count: i64| u64::try_from(count).unwrap_or(0);
        origin.samples = Some(count(sum.samples));
        origin.lost_samples = Some(count(sum.lost));
        let unseen = UnseenFrees {
            samples: count(sum.unseen_free_samples),
            bytes: count(sum.unseen_free_bytes),
        };
        origin.unseen_frees = (unseen != UnseenFrees::default()).then_some(unseen);
        origin.unseen_allocation_bytes =
            Some(count(sum.unseen_allocation_bytes)).filter(|bytes| *bytes > 0);
    }
    Ok(symbolized)
}

impl QueryResult {
    /// Renders the result in the format of `options`, with the end of the time window as its time.
    pub(crate) fn render(
        &self,
        query: &ProfileQuery,
        mut options: Options,
    ) -> anyhow::Result<Vec<u8>> {
        options.time_nanos = query.to.0.saturating_mul(1_000_000);
        let (base_name, base) = self.base.as_ref().map(|(name, base)| (name, base)).unzip();
        let input = RenderInput {
            name: self.name.clone(),
            profile: &self.profile,
            base_name: base_name.cloned(),
            base,
        };
        let mut bytes = Vec::new();
        render(&input, &options, &mut bytes)?;
        Ok(bytes)
    }

    /// Adds notes to the warnings of the profile, which are rendered with it.
    pub(crate) fn with_notes(mut self, notes: Vec<String>) -> Self {
        self.profile.profile.warnings.extend(notes);
        self
    }
}

/// Adds a note with the numbers of profiles and processes, and the builds.
fn note_profile_counts(query: &ProfileQuery, profiles: &[Profile], weights: &Weights) {
    let (processes, count) = (weights.process_count(), weights.profile_count());
    let mut builds: Vec<_> = profiles
        .iter()
        .map(|profile| profile.short_build_id())
        .collect();
    builds.sort_unstable();
    builds.dedup();
    query.notes.add(format!(
        "{count} profiles of {processes} processes, builds {}",
        builds.join(", ")
    ));
}
