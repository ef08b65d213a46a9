//! Weights of profiles in a result, and weighted sums of samples by stack.

use std::collections::HashMap;

use crate::columns::Columns;
use crate::query::{Profile, ProfileQuery};
use crate::scan::{list_table_files, scan_file};
use crate::schema::Table;
use crate::time::Instant;

/// Columns of samples that are read.
const COLUMNS: [&str; 6] = [
    "service",
    "instance",
    "time",
    "stack_id",
    "inuse_bytes",
    "inuse_objects",
];

/// Method by which the profiles of processes are weighted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weighting {
    /// The newest profile of each process counts once, older ones do not.
    Newest,
    /// Each process counts as the mean of its profiles.
    Mean,
    /// Like [`Self::Mean`], but the result is the mean of all processes.
    MeanOfProcesses,
}

/// Factor of each profile, by process key and time.
#[derive(Debug, Default)]
pub(crate) struct Weights(HashMap<String, HashMap<i64, f64>>);

/// Weighted sums of bytes and objects in use, by stack.
#[derive(Debug, Default)]
pub(crate) struct WeightedSums {
    pub(crate) by_stack: HashMap<i64, [f64; 2]>,
    /// Mean bytes between samples. `None` if the profiles differ in it.
    pub(crate) sample_interval: Option<i64>,
}

impl Weights {
    /// Computes the weights of `profiles` by the method `weighting`. `profiles` are sorted by process and time.
    pub(crate) fn new(profiles: &[Profile], weighting: Weighting) -> Self {
        match weighting {
            Weighting::Newest => Self::for_newest(profiles),
            Weighting::Mean => Self::for_mean(profiles),
            Weighting::MeanOfProcesses => Self::for_mean_process(profiles),
        }
    }

    /// Returns the weights for [`Weighting::Newest`]: 1 for the newest profile of each process.
    fn for_newest(profiles: &[Profile]) -> Self {
        let mut weights = Self::default();
        // Profiles are sorted by process and time, so the newest one of a process is inserted last.
        for profile in profiles {
            weights.0.insert(
                profile.instance.clone(),
                HashMap::from([(profile.time.0, 1.0)]),
            );
        }
        weights
    }

    /// Returns the weights for [`Weighting::Mean`]: 1/n for each of the n profiles of a process.
    fn for_mean(profiles: &[Profile]) -> Self {
        let mut weights = Self::default();
        for profile in profiles {
            weights
                .0
                .entry(profile.instance.clone())
                .or_default()
                .insert(profile.time.0, 1.0);
        }
        for times in weights.0.values_mut() {
            let count = times.len() as f64;
            times.values_mut().for_each(|weight| *weight /= count);
        }
        weights
    }

    /// Returns the weights for [`Weighting::MeanOfProcesses`]: 1/n for each of the n profiles of a process, divided by
    /// the number of processes.
    fn for_mean_process(profiles: &[Profile]) -> Self {
        let mut weights = Self::for_mean(profiles);
        let count = weights.process_count() as f64;
        let each = weights.0.values_mut().flat_map(HashMap::values_mut);
        each.for_each(|weight| *weight /= count);
        weights
    }

    /// Returns the number of processes with a weight.
    pub(crate) fn process_count(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of profiles with a weight.
    pub(crate) fn profile_count(&self) -> usize {
        self.0.values().map(HashMap::len).sum()
    }

    /// Returns the times of the earliest and the latest profile with a weight. `None` if no profile has one.
    fn time_range(&self) -> Option<(Instant, Instant)> {
        let times = || self.0.values().flat_map(HashMap::keys).copied();
        Some((Instant(times().min()?), Instant(times().max()?)))
    }

    /// Returns the weight of a profile; 0 if the profile does not count.
    fn weight(&self, profile: &Profile) -> f64 {
        let times = self.0.get(&profile.instance);
        times
            .and_then(|times| times.get(&profile.time.0))
            .copied()
            .unwrap_or_default()
    }
}

/// Sums the samples of `profiles`, times their weights, by stack. The result has the sample interval of the profiles if
/// it is the same for all. Adds notes about unreadable files and missing samples. Fails if the files cannot be listed.
pub(crate) fn read_weighted_sums(
    query: &ProfileQuery,
    profiles: &[Profile],
    weights: &Weights,
) -> anyhow::Result<WeightedSums> {
    let mut sums = WeightedSums::default();
    // Only the hours of weighted profiles are read: the newest profiles of processes lie in few of the
    // selected hours.
    let time = weights.time_range().unwrap_or((query.from, query.to));
    let found = list_table_files(&query.store, Table::Samples, time)?;
    for (name, reason) in &found.damaged {
        query.notes.add(format!("{name} is not counted: {reason}"));
    }
    for (_, object) in &found.counted {
        let mut file_sums = HashMap::new();
        let read = scan_file(
            &query.store,
            object,
            &COLUMNS,
            query.target.service(),
            |batch| add_weighted_batch(&Columns(batch), weights, &mut file_sums),
        );
        match read {
            Err(error) => query
                .notes
                .add(format!("{} is not counted: {error:#}", object.name)),
            Ok(_) => {
                for (stack, [bytes, objects]) in file_sums {
                    let sum: &mut [f64; 2] = sums.by_stack.entry(stack).or_default();
                    *sum = [sum[0] + bytes, sum[1] + objects];
                }
            }
        }
    }
    let found = sum_numbers(sums.by_stack.values().map(|[bytes, _]| *bytes));
    let weighted = profiles
        .iter()
        .map(|profile| profile.inuse_bytes as f64 * weights.weight(profile));
    let expected = sum_numbers(weighted);
    // Rounding may contribute half a byte per profile.
    if (found - expected).abs() > 0.5 + profiles.len() as f64 / 2.0 {
        query.notes.add(format!(
            "the profiles hold {expected:.0} bytes, but only {found:.0} of them have samples in the store: a file is \
             missing or damaged; run `memprof fleet doctor`"
        ));
    }
    let mut intervals = profiles.iter().map(|profile| profile.sample_interval);
    let first = intervals.next();
    sums.sample_interval = first.filter(|first| intervals.all(|other| other == *first));
    Ok(sums)
}

/// Returns the sum of numbers. The sum of no numbers is 0, while that of [`Iterator::sum`] is -0, which notes would
/// show.
fn sum_numbers(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, std::ops::Add::add)
}

/// Adds the samples of a batch, times their weights, to `sums`: [bytes, objects] by stack id. Samples of profiles
/// without a weight do not count. Fails if a column is missing or of another type.
fn add_weighted_batch(
    columns: &Columns<'_>,
    weights: &Weights,
    sums: &mut HashMap<i64, [f64; 2]>,
) -> anyhow::Result<()> {
    let instance = columns.texts("instance")?;
    let values = instance.values().iter();
    let by_key: Vec<_> = values.map(|instance| weights.0.get(*instance)).collect();
    let (times, stacks) = (columns.times("time")?, columns.numbers("stack_id")?);
    let (bytes, objects) = (
        columns.numbers("inuse_bytes")?,
        columns.numbers("inuse_objects")?,
    );
    for (row, key) in instance.keys().iter().enumerate() {
        let weights_by_time = by_key[*key as usize];
        if let Some(weight) = weights_by_time.and_then(|weights| weights.get(&times[row])) {
            let sum = sums.entry(stacks[row]).or_default();
            *sum = [
                sum[0] + bytes[row] as f64 * weight,
                sum[1] + objects[row] as f64 * weight,
            ];
        }
    }
    Ok(())
}
