//! Answers that memprof-report shows: the sum of many profiles, or the difference of two such sums.

use memprof_report::{Options, RenderInput, SymbolizedProfile, render};

use crate::process_profile::SamplerCounts;
use crate::query::symbolized::to_symbolized;
use crate::query::weights::{Weighting, Weights, sums};
use crate::query::{Profile, ProfileQuery, newest};

/// A sum, or what it is more than another one.
pub(crate) struct QueryResult {
    name: String,
    pub(crate) profile: SymbolizedProfile,
    base: Option<(String, SymbolizedProfile)>,
}

/// The sum of the profiles that are asked for.
pub(crate) fn sum_profiles(
    asked: &ProfileQuery,
    build: Option<&str>,
    each: Weighting,
) -> anyhow::Result<QueryResult> {
    Ok(QueryResult {
        name: asked.to_string(),
        profile: sum(asked, build, each)?,
        base: None,
    })
}

/// What the mean process of a build holds more than that of another one.
pub(crate) fn compare_builds(
    asked: &ProfileQuery,
    build: &str,
    base: &str,
) -> anyhow::Result<QueryResult> {
    let base_name = format!("{base}, each the mean of its processes");
    Ok(QueryResult {
        name: format!("a process of build {build}"),
        profile: sum(asked, Some(build), Weighting::MeanOfProcesses)?,
        base: Some((
            base_name,
            sum(asked, Some(base), Weighting::MeanOfProcesses)?,
        )),
    })
}

/// What a process of the one time holds more than one of the other time.
pub(crate) fn compare_windows(
    asked: &ProfileQuery,
    before: &ProfileQuery,
    build: Option<&str>,
) -> anyhow::Result<QueryResult> {
    Ok(QueryResult {
        name: format!("a process of {asked}"),
        profile: sum(asked, build, Weighting::MeanOfProcesses)?,
        base: Some((
            format!("{} to {}", before.from.text(), before.to.text()),
            sum(before, build, Weighting::MeanOfProcesses)?,
        )),
    })
}

fn sum(
    asked: &ProfileQuery,
    build: Option<&str>,
    each: Weighting,
) -> anyhow::Result<SymbolizedProfile> {
    let profiles = asked.profiles(build)?;
    let weights = Weights::new(&profiles, each);
    note_counts(asked, &profiles, &weights);
    let mut named = to_symbolized(asked, &sums(asked, &profiles, &weights)?)?;
    let counts = newest(&profiles).filter_map(|one| one.sampler);
    // Errors of values are as much larger as samples were lost.
    if let Some(sum) = counts.reduce(SamplerCounts::plus) {
        let origin = &mut named.profile.origin;
        origin.samples = u64::try_from(sum.samples).ok();
        origin.lost_samples = u64::try_from(sum.lost).ok();
    }
    Ok(named)
}

impl QueryResult {
    /// The answer in the format of `options`, with the notes that were kept.
    pub(crate) fn render(
        &self,
        asked: &ProfileQuery,
        mut options: Options,
    ) -> anyhow::Result<Vec<u8>> {
        options.time_nanos = asked.to.0.saturating_mul(1_000_000);
        let (base_name, base) = self.base.as_ref().map(|(name, base)| (name, base)).unzip();
        let subject = RenderInput {
            name: self.name.clone(),
            profile: &self.profile,
            base_name: base_name.cloned(),
            base,
        };
        let mut bytes = Vec::new();
        render(&subject, &options, &mut bytes)?;
        Ok(bytes)
    }

    /// Puts notes into what is rendered.
    pub(crate) fn with_notes(mut self, notes: Vec<String>) -> Self {
        self.profile.profile.warnings.extend(notes);
        self
    }
}

fn note_counts(asked: &ProfileQuery, profiles: &[Profile], weights: &Weights) {
    let (processes, dumps) = (weights.processes(), weights.profiles());
    let mut builds: Vec<_> = profiles.iter().map(|one| one.build()).collect();
    builds.sort_unstable();
    builds.dedup();
    asked.notes.add(format!(
        "{dumps} profiles of {processes} processes, builds {}",
        builds.join(", ")
    ));
}
