//! The samples of a profile and of its base in the order of their function names, so that those of one folded stack are
//! neighbours. Four bytes each, and up to 32 while they are sorted.

use super::folded_stack::TimedAmounts;
use super::profile_side::{ProfileSide, StackPlace};
use crate::comparison::Comparison;
use crate::names::StringId;

/// Samples with a value other than 0, sorted.
#[derive(Debug)]
pub(super) struct SampleStacks<'p> {
    profile: ProfileSide<'p>,
    base: Option<ProfileSide<'p>>,
    order: Vec<SampleEntry>,
    stack_count: usize,
}

/// Number of a sample; those of the base follow those of the profile. The highest bit says that the sample has the
/// stack of the one before it, which leaves room for 2^31 samples: [`Limits`](crate::Limits) has 50 million a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SampleEntry(u32);

const SAME_STACK: u32 = 1 << 31;

/// A sample while samples are sorted.
#[derive(Clone, Copy, Debug)]
struct SortableSample {
    entry: SampleEntry,
    /// Place in its stack behind the functions by which it is sorted.
    place: StackPlace,
    /// Ranks of the last two of these functions, the first in the upper half. They count from 1; 0 if the stack has
    /// ended before.
    ranks: u64,
}

impl SampleEntry {
    /// Number of the sample, without the mark: samples of the profile come first, then those of the base.
    fn number(self) -> usize {
        (self.0 & !SAME_STACK) as usize
    }

    /// Returns whether the sample has the same stack as the sample before it, by the mark in the highest bit.
    fn continues_stack(self) -> bool {
        self.0 & SAME_STACK != 0
    }
}

impl SortableSample {
    /// Returns whether all functions of the sample's stack were read: the last rank is 0.
    fn has_read_whole_stack(&self) -> bool {
        self.ranks as u32 == 0
    }
}

impl<'p> SampleStacks<'p> {
    /// Sorts the samples of the profile and its base whose value is not 0 by the names of their functions, root first.
    /// `ranks` has, by function id, the position of the name in sorted order.
    pub(super) fn new(
        profile: ProfileSide<'p>,
        base: Option<ProfileSide<'p>>,
        ranks: &[u32],
    ) -> Self {
        let mut stacks = Self {
            profile,
            base,
            order: Vec::new(),
            stack_count: 0,
        };
        let first_of_base = stacks.profile.sample_count();
        let of_profile = stacks.profile.nonzero_sample_indexes();
        let of_base = stacks
            .base
            .iter()
            .flat_map(ProfileSide::nonzero_sample_indexes);
        let numbers = of_profile.chain(of_base.map(|number| first_of_base + number));
        let mut samples = Vec::with_capacity(numbers.clone().count());
        samples.extend(numbers.map(|number| stacks.sortable_sample(number)));
        stacks.sort_by_functions(&mut samples, ranks);
        stacks.order = samples.iter().map(|sample| sample.entry).collect();
        let starts = stacks.order.iter();
        stacks.stack_count = starts.filter(|entry| !entry.continues_stack()).count();
        stacks
    }

    /// Prepares a sample for sorting: no function of its stack is read yet. `number` counts the samples of the profile,
    /// then those of the base.
    fn sortable_sample(&self, number: usize) -> SortableSample {
        let entry = SampleEntry(number as u32);
        let (side, sample) = self.locate_sample(entry);
        SortableSample {
            entry,
            place: side.place_at_root(sample),
            ranks: 0,
        }
    }

    /// Sorts samples by the ranks of their functions, root first, and marks each sample that has the same stack as the
    /// sample before it. `ranks` has the rank of each function by its id. Sorts by two functions at a time, and then
    /// sorts on only the runs of samples that are equal so far: so each function of a sample is read only once.
    fn sort_by_functions(&self, samples: &mut [SortableSample], ranks: &[u32]) {
        let mut runs = vec![(0, samples.len() as u32)];
        while let Some((mut start, end)) = runs.pop() {
            let run = &mut samples[start as usize..end as usize];
            for sample in run.iter_mut() {
                let (side, index) = self.locate_sample(sample.entry);
                let mut functions = side.functions_after(index, sample.place);
                let mut next_rank = || {
                    let function = functions.next();
                    // 0 stands for the end of the stack, so a stack comes before its continuations.
                    function.map_or(0, |id| u64::from(ranks[id.0 as usize]) + 1)
                };
                sample.ranks = next_rank() << 32 | next_rank();
                sample.place = functions.place();
            }
            // Equal stacks in the order of their samples, so that sums of floating-point numbers do not depend on
            // chance.
            run.sort_unstable_by_key(|sample| (sample.ranks, sample.entry));
            for equal in run.chunk_by_mut(|one, other| one.ranks == other.ranks) {
                let end = start + equal.len() as u32;
                match equal {
                    [_] => {}
                    [first, rest @ ..] if first.has_read_whole_stack() => {
                        rest.iter_mut().for_each(|same| same.entry.0 |= SAME_STACK);
                    }
                    _ => runs.push((start, end)),
                }
                start = end;
            }
        }
    }

    /// Number of different stacks.
    pub(super) fn stack_count(&self) -> usize {
        self.stack_count
    }

    /// Reads the stack that starts at the index `next` of the sorted samples, and moves `next` behind its samples.
    /// Appends the stack's functions, root first, to `functions` and its memory in use to `alloc_times`, and returns
    /// the sum of its values. `None` after the last stack.
    pub(super) fn read_stack(
        &self,
        next: &mut usize,
        functions: &mut Vec<StringId>,
        alloc_times: &mut Vec<TimedAmounts>,
    ) -> Option<Comparison> {
        let first = *self.order.get(*next)?;
        let (side, index) = self.locate_sample(first);
        side.append_functions(index, functions);
        let mut values = Comparison::default();
        let mut add = |entry| {
            let (side, index) = self.locate_sample(entry);
            values += side.value(index);
            alloc_times.extend(side.timed_amounts(index));
        };
        add(first);
        *next += 1;
        while let Some(entry) = self
            .order
            .get(*next)
            .filter(|entry| entry.continues_stack())
        {
            add(*entry);
            *next += 1;
        }
        // Equal values mean the same samples, so chance has no part in their difference.
        if self.base.is_some() && values.new == values.base {
            values.confidence.variance = 0.0;
        }
        Some(values)
    }

    /// Returns the profile or the base, whichever contains the sample, and the sample's index in it.
    fn locate_sample(&self, entry: SampleEntry) -> (&ProfileSide<'p>, usize) {
        let number = entry.number();
        match (number.checked_sub(self.profile.sample_count()), &self.base) {
            (Some(index), Some(base)) => (base, index),
            _ => (&self.profile, number),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::{Folded, Granularity};
    use crate::allocator_frames::{allocator_depths, is_allocator_function};
    use crate::code_origin::OriginRules;
    use crate::names::{Frame, Names};
    use crate::profile::{Address, Profile, Sample, SampleType, SampleValues};
    use crate::stacks::AddressId;
    use crate::symbolized_profile::SymbolizedProfile;

    /// Functions of which one name begins with another, the allocator's, and closures that the type in a caller's name
    /// completes.
    const FUNCTIONS: [&str; 9] = [
        "a",
        "a b",
        "b",
        "malloc",
        "je_malloc",
        "shop::{closure#0}",
        "map<shop::load::{closure_env#0}>",
        "map<shop::keep::{closure_env#0}>",
        "c",
    ];

    /// Returns a profile of random stacks, whose addresses have up to three functions each.
    fn random_profile(seed: u64, addresses: usize, samples: usize) -> SymbolizedProfile {
        let mut state = seed;
        let mut random = |limit: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) as usize % limit
        };
        let (mut profile, mut names) = (Profile::default(), Names::default());
        for index in 0..addresses {
            let id = profile
                .stacks
                .intern_address(Address(0x1000 + index as u64));
            let frame = |function: &str, names: &mut Names| Frame {
                function: names.strings.intern(function),
                linkage: None,
                file: None,
                line: 0,
                named: true,
            };
            let frames: Vec<_> = (0..1 + random(3))
                .map(|_| frame(FUNCTIONS[random(FUNCTIONS.len())], &mut names))
                .collect();
            names.set_frames(id, &frames);
        }
        for _ in 0..samples {
            for _ in 0..1 + random(5) {
                profile
                    .stacks
                    .push_frame(AddressId(random(addresses) as u32));
            }
            let stack = profile.stacks.finish_stack();
            let values = SampleValues([0, 0, 1, random(4) as i64]);
            profile.samples.push(Sample::new(stack, values));
        }
        let depths = allocator_depths(&profile, &names);
        SymbolizedProfile {
            profile,
            names,
            depths,
        }
    }

    /// Adds the values of the stacks by their names, without the completion of closures.
    fn add_stacks(
        named: &SymbolizedProfile,
        side: usize,
        sums: &mut BTreeMap<Vec<String>, [i64; 2]>,
    ) {
        let inuse_space = SampleType::InuseSpace;
        let samples = named.profile.samples.iter();
        for sample in samples.filter(|sample| sample.values[inuse_space] != 0) {
            let addresses = named.program_frames(sample.stack).iter();
            let frames = addresses.flat_map(|id| named.names.frames(*id));
            let functions = frames.map(|frame| named.names.strings.get(frame.function).to_owned());
            let mut functions: Vec<String> = functions.collect();
            let leading = functions
                .iter()
                .take_while(|name| is_allocator_function(name));
            let trimmed = leading.count().min(functions.len() - 1);
            functions.drain(..trimmed);
            functions.reverse();
            sums.entry(functions).or_default()[side] += sample.values[inuse_space];
        }
    }

    /// Returns the folded stacks by their names, in their order. With `with_closures`, as they are; otherwise with the
    /// closures' short names.
    fn fold(
        profile: &SymbolizedProfile,
        base: Option<&SymbolizedProfile>,
        with_closures: bool,
    ) -> Vec<(Vec<String>, [i64; 2])> {
        let rules = OriginRules::default();
        let by = Granularity::Functions;
        let folded = Folded::new(profile, base, SampleType::InuseSpace, by, &rules);
        let mut stacks = Vec::new();
        folded.stacks.for_each(|stack| {
            let names = stack.functions.iter().map(|id| folded.functions.get(*id));
            let short = |name: &str| match name.contains("::{closure#0}") && !with_closures {
                true => FUNCTIONS[5].to_owned(),
                false => name.to_owned(),
            };
            let sums = [stack.values.new, stack.values.base];
            stacks.push((names.map(short).collect(), sums));
        });
        assert_eq!(stacks.len(), folded.stacks.len());
        stacks
    }

    #[test]
    fn stacks_are_merged_and_sorted_by_their_names() {
        for seed in 0..40 {
            let profile = random_profile(seed, 1 + seed as usize, 300);
            let base = random_profile(seed + 99, 2 + seed as usize, 200);
            for base in [None, Some(&base)] {
                let mut expected = BTreeMap::new();
                add_stacks(&profile, 0, &mut expected);
                base.inspect(|base| add_stacks(base, 1, &mut expected));
                let mut sums: BTreeMap<_, [i64; 2]> = BTreeMap::new();
                for (stack, [new, base]) in fold(&profile, base, false) {
                    let sum = sums.entry(stack).or_default();
                    *sum = [sum[0] + new, sum[1] + base];
                }
                assert!(sums == expected, "{seed}");
                let stacks = fold(&profile, base, true);
                assert!(stacks.is_sorted_by(|one, other| one.0 < other.0), "{seed}");
            }
        }
    }

    #[test]
    fn closure_is_completed_by_the_caller_in_its_stack() {
        let profile = random_profile(7, 30, 2000);
        let stacks = fold(&profile, None, true);
        for name in [
            "shop::load::{closure#0}",
            "shop::keep::{closure#0}",
            FUNCTIONS[5],
        ] {
            let has_name = |(stack, _): &(Vec<String>, _)| stack.iter().any(|each| each == name);
            assert!(stacks.iter().any(has_name), "{name}");
        }
    }
}
