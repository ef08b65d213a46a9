//! What each profile counts in an answer, and the sum of samples by stack.

use std::collections::HashMap;

use crate::columns::Columns;
use crate::query::{Profile, ProfileQuery};
use crate::scan::{files, scan};
use crate::schema::Table;
use crate::time::Instant;

const COLUMNS: [&str; 6] = [
    "service",
    "instance",
    "time",
    "stack_id",
    "inuse_bytes",
    "inuse_objects",
];

/// How much each profile counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weighting {
    /// The newest of each process counts once, the others do not.
    Newest,
    /// Each process is the mean of its profiles.
    Mean,
    /// So it is, and the answer is the mean process.
    MeanOfProcesses,
}

/// By process and time: what a profile is multiplied with.
#[derive(Debug, Default)]
pub(crate) struct Weights(HashMap<String, HashMap<i64, f64>>);

/// The weighted sums of bytes and objects in use.
#[derive(Debug, Default)]
pub(crate) struct WeightedSums {
    pub(crate) by_stack: HashMap<i64, [f64; 2]>,
    /// Mean bytes between samples, where that is the same in all of them.
    pub(crate) sample_interval: Option<i64>,
}

impl Weights {
    pub(crate) fn new(profiles: &[Profile], each: Weighting) -> Self {
        match each {
            Weighting::Newest => Self::newest(profiles),
            Weighting::Mean => Self::mean(profiles),
            Weighting::MeanOfProcesses => Self::mean_process(profiles),
        }
    }

    /// The newest profile of each process, once.
    fn newest(profiles: &[Profile]) -> Self {
        let mut weights = Self::default();
        // They come by process and time.
        for one in profiles {
            weights
                .0
                .insert(one.instance.clone(), HashMap::from([(one.time.0, 1.0)]));
        }
        weights
    }

    /// Each process as the mean of its profiles.
    fn mean(profiles: &[Profile]) -> Self {
        let mut weights = Self::default();
        for one in profiles {
            weights
                .0
                .entry(one.instance.clone())
                .or_default()
                .insert(one.time.0, 1.0);
        }
        for times in weights.0.values_mut() {
            let count = times.len() as f64;
            times.values_mut().for_each(|weight| *weight /= count);
        }
        weights
    }

    /// The mean of all processes, each as the mean of its profiles.
    fn mean_process(profiles: &[Profile]) -> Self {
        let mut weights = Self::mean(profiles);
        let count = weights.processes() as f64;
        let each = weights.0.values_mut().flat_map(HashMap::values_mut);
        each.for_each(|weight| *weight /= count);
        weights
    }

    pub(crate) fn processes(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn profiles(&self) -> usize {
        self.0.values().map(HashMap::len).sum()
    }

    /// When the first and the last profile that counts were taken.
    fn time(&self) -> Option<(Instant, Instant)> {
        let times = || self.0.values().flat_map(HashMap::keys).copied();
        Some((Instant(times().min()?), Instant(times().max()?)))
    }

    fn weight(&self, profile: &Profile) -> f64 {
        let times = self.0.get(&profile.instance);
        times
            .and_then(|times| times.get(&profile.time.0))
            .copied()
            .unwrap_or_default()
    }
}

/// Sums the samples of profiles, and says where some are missing.
pub(crate) fn sums(
    asked: &ProfileQuery,
    profiles: &[Profile],
    weights: &Weights,
) -> anyhow::Result<WeightedSums> {
    let mut sums = WeightedSums::default();
    // Of the hours that are asked for, few have a process's newest profile.
    let time = weights.time().unwrap_or((asked.from, asked.to));
    let found = files(&asked.store, Table::Samples, time)?;
    for (name, why) in &found.damaged {
        asked.notes.add(format!("{name} is not counted: {why}"));
    }
    for (_, object) in &found.counted {
        let mut of_file = HashMap::new();
        let read = scan(
            &asked.store,
            object,
            &COLUMNS,
            asked.target.service(),
            |batch| add(&Columns(batch), weights, &mut of_file),
        );
        match read {
            Err(error) => asked
                .notes
                .add(format!("{} is not counted: {error:#}", object.name)),
            Ok(_) => {
                for (stack, [bytes, objects]) in of_file {
                    let sum: &mut [f64; 2] = sums.by_stack.entry(stack).or_default();
                    *sum = [sum[0] + bytes, sum[1] + objects];
                }
            }
        }
    }
    let found: f64 = sums.by_stack.values().map(|[bytes, _]| bytes).sum();
    let weighted = profiles
        .iter()
        .map(|one| one.inuse_bytes as f64 * weights.weight(one));
    let expected: f64 = weighted.sum();
    // Half a byte for each profile is the fractions'.
    if (found - expected).abs() > 0.5 + profiles.len() as f64 / 2.0 {
        asked.notes.add(format!(
            "the profiles hold {expected:.0} bytes, but only {found:.0} of them have samples in the store: a file is \
             missing or damaged; run `memprof fleet doctor`"
        ));
    }
    let mut intervals = profiles.iter().map(|one| one.sample_interval);
    let first = intervals.next();
    sums.sample_interval = first.filter(|first| intervals.all(|other| other == *first));
    Ok(sums)
}

fn add(
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
    for (at, key) in instance.keys().iter().enumerate() {
        let times_of = by_key[*key as usize];
        if let Some(weight) = times_of.and_then(|times_of| times_of.get(&times[at])) {
            let sum = sums.entry(stacks[at]).or_default();
            *sum = [
                sum[0] + bytes[at] as f64 * weight,
                sum[1] + objects[at] as f64 * weight,
            ];
        }
    }
    Ok(())
}
