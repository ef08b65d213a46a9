//! Heap profile of one dump, in the form of the tables' rows.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;

use memprof_report::{
    CodeOrigins, Input, Options, OriginRules, ProfileOrigin, Sources, SymbolizedProfile,
    drop_memprof_stacks,
};
use serde::{Deserialize, Serialize};

use crate::process_profile::{Frame, NamedStack, Sample, SamplerCounts, stack_id};

/// Samples and stacks of one process, sorted by stack id.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heap {
    /// Build id of the program's file; empty if it has none.
    pub(crate) build_id: String,
    pub(crate) sampler: Option<SamplerCounts>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) stacks: Vec<NamedStack>,
}

impl Heap {
    /// Adds the heap of another allocator in the same process: sums the samples of equal stacks, and the counts of the
    /// samplers. A build id in `other` replaces that of this heap.
    pub(crate) fn add(&mut self, other: Self) {
        if !other.build_id.is_empty() {
            self.build_id = other.build_id;
        }
        let counts = self.sampler.into_iter().chain(other.sampler);
        self.sampler = counts.reduce(SamplerCounts::plus);
        let samples = mem::take(&mut self.samples)
            .into_iter()
            .chain(other.samples);
        let stacks = mem::take(&mut self.stacks).into_iter().chain(other.stacks);
        let mut rows: Vec<_> = samples.zip(stacks).collect();
        rows.sort_by_key(|(sample, _)| sample.stack_id);
        rows.dedup_by(|(later, _), (first, _)| {
            let is_same_stack = later.stack_id == first.stack_id;
            if is_same_stack {
                *first = first.plus(*later);
            }
            is_same_stack
        });
        (self.samples, self.stacks) = rows.into_iter().unzip();
    }
}

/// Reads a dump, and leaves out the stacks of memprof's own allocations. Functions get their names from `sources`;
/// without sources, they are offsets in their modules. Fails if the dump is malformed.
pub(crate) fn read_heap(mut bytes: &[u8], sources: Option<&Sources>) -> anyhow::Result<Heap> {
    let input = Input {
        name: "the dump",
        bytes: &mut bytes,
    };
    let mut symbolized =
        memprof_report::read_profile(input, sources, &Options::default(), &|_, _| ())?;
    drop_memprof_stacks(
        &mut symbolized.profile,
        &symbolized.names,
        &symbolized.depths,
    );
    let main = symbolized.profile.main_file();
    let build_id = main.and_then(|main| main.build_id.clone());
    let sampler = sampler_counts(&symbolized.profile.origin);
    let mut sums = StackSums::default();
    sums.add(&symbolized);
    let (samples, stacks) = sums.into_parts();
    Ok(Heap {
        build_id: build_id.unwrap_or_default(),
        sampler,
        samples,
        stacks,
    })
}

/// Returns the counts of memprof's sampler in a dump. `None` if the dump has none, because the allocator sampled.
fn sampler_counts(origin: &ProfileOrigin) -> Option<SamplerCounts> {
    let early_ends = origin.early_ends.iter().map(|each| each.samples);
    let early_ends = early_ends.fold(0, u64::saturating_add);
    let unseen = origin.unseen_frees.unwrap_or_default();
    let counts = [
        origin.samples,
        origin.lost_samples,
        Some(unseen.samples),
        Some(unseen.bytes),
        origin.unseen_allocation_bytes,
        Some(early_ends),
    ];
    SamplerCounts::from_row(counts.map(|count| i64::try_from(count?).ok()))
}

/// Samples of one process, summed by stack.
#[derive(Default)]
struct StackSums {
    by_stack: HashMap<i64, (Sample, NamedStack)>,
}

impl StackSums {
    /// Adds the samples of a profile, summed by the names of their stacks. A sum has no allocations if one of its
    /// samples has none.
    fn add(&mut self, symbolized: &SymbolizedProfile) {
        let origins = CodeOrigins::new(symbolized, &OriginRules::default());
        let profile = &symbolized.profile;
        for sample in &profile.samples {
            let addresses = sample.stack;
            let frames = named_frames(symbolized, addresses);
            let id = stack_id(&frames);
            // In the order of `SampleType`.
            let [alloc_objects, alloc_bytes, inuse_objects, inuse_bytes] = sample.values.0;
            let sample = Sample {
                stack_id: id,
                inuse_bytes,
                inuse_objects,
                alloc: profile.has_alloc.then_some([alloc_bytes, alloc_objects]),
            };
            match self.by_stack.entry(id) {
                Entry::Occupied(mut known) => {
                    let (sum, _) = known.get_mut();
                    *sum = sum.plus(sample);
                }
                Entry::Vacant(new) => {
                    let stack = NamedStack {
                        stack_id: id,
                        function: attributed_function(symbolized, addresses, &origins),
                        frames,
                    };
                    new.insert((sample, stack));
                }
            }
        }
    }

    /// Returns the samples and their stacks, both sorted by stack id: a stack has the index of its sample.
    fn into_parts(self) -> (Vec<Sample>, Vec<NamedStack>) {
        let mut rows: Vec<_> = self.by_stack.into_values().collect();
        rows.sort_by_key(|(sample, _)| sample.stack_id);
        rows.into_iter().unzip()
    }
}

/// Returns the name of the function to which a table attributes a stack: of its functions with the highest code origin
/// (the program's own before libraries, before others), the one nearest to the leaf. Empty if the stack is empty.
fn attributed_function(
    symbolized: &SymbolizedProfile,
    stack: memprof_report::StackId,
    origins: &CodeOrigins,
) -> String {
    let depth = symbolized.depths[stack.0 as usize] as usize;
    let addresses = symbolized.profile.stacks.frames(stack)[depth..].iter();
    let frames = addresses.flat_map(|&id| origins.origins(id).zip(symbolized.names.frames(id)));
    // From the root, because `max_by_key` returns the last of equal frames.
    let frames: Vec<_> = frames.collect();
    let row = frames.iter().rev().max_by_key(|(origin, _)| *origin);
    row.map(|(_, frame)| symbolized.names.strings.get(frame.function).to_owned())
        .unwrap_or_default()
}

/// Returns the named functions of a stack, root first, without the allocator's frames at its leaf.
fn named_frames(symbolized: &SymbolizedProfile, stack: memprof_report::StackId) -> Vec<Frame> {
    let profile = &symbolized.profile;
    let depth = symbolized.depths[stack.0 as usize] as usize;
    let addresses = &profile.stacks.frames(stack)[depth..];
    let mut frames = Vec::new();
    for &id in addresses {
        let mapping = profile
            .mapping_of_frame(id)
            .map(|index| &profile.mappings[index]);
        let module = mapping.map_or("", |mapping| mapping.file_name());
        frames.extend(symbolized.names.frames(id).iter().map(|frame| Frame {
            function: symbolized.names.strings.get(frame.function).to_owned(),
            module: module.to_owned(),
        }));
    }
    frames.reverse();
    frames
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Profile with 400 bytes in use: 300 of `cart` called by `libshop.so`, and 100 of `libshop.so` itself.
    pub(crate) fn two_stacks() -> SymbolizedProfile {
        let text = "heap profile: 4: 400 [4: 400] @ heapprofile\n\
                    3: 300 [3: 300] @ 0x1001 0x2001\n1: 100 [1: 100] @ 0x2001\n\
                    \nMAPPED_LIBRARIES:\n1000-2000 r-xp 0 00:00 1 /bin/cart\n\
                    2000-3000 r-xp 0 00:00 2 /lib/libshop.so\n";
        let mut bytes = text.as_bytes();
        let input = Input {
            name: "t",
            bytes: &mut bytes,
        };
        let options = Options::default();
        memprof_report::read_profile(input, None, &options, &|_, _| ()).unwrap()
    }

    #[test]
    fn profile_is_summed_to_rows_by_stack() {
        let symbolized = two_stacks();
        let mut sums = StackSums::default();
        sums.add(&symbolized);
        let (samples, stacks) = sums.into_parts();
        assert_eq!(
            samples.iter().map(|sample| sample.inuse_bytes).sum::<i64>(),
            400
        );
        let deep = stacks.iter().find(|stack| stack.frames.len() == 2).unwrap();
        assert_eq!(deep.frames[0].module, "libshop.so");
        assert_eq!(deep.function, "cart+0x0");
        assert_eq!(deep.stack_id, stack_id(&deep.frames));
    }

    #[test]
    fn heaps_of_two_allocators_are_summed() {
        let counts = |samples, lost| SamplerCounts {
            samples,
            lost,
            unseen_free_bytes: 7 * lost,
            ..SamplerCounts::default()
        };
        let heap = |stack_id, inuse_bytes, alloc| Heap {
            build_id: String::new(),
            sampler: Some(counts(3, 1)),
            samples: vec![Sample {
                stack_id,
                inuse_bytes,
                inuse_objects: 1,
                alloc,
            }],
            stacks: vec![NamedStack {
                stack_id,
                function: "cart".to_owned(),
                frames: Vec::new(),
            }],
        };
        let mut sum = Heap::default();
        sum.add(heap(7, 100, Some([1, 2])));
        sum.add(heap(5, 10, None));
        sum.add(heap(7, 200, Some([3, 4])));
        let found: Vec<_> = sum
            .samples
            .iter()
            .map(|one| (one.stack_id, one.inuse_bytes, one.alloc))
            .collect();
        assert_eq!(found, [(5, 10, None), (7, 300, Some([4, 6]))]);
        assert_eq!(sum.stacks.len(), 2);
        assert_eq!(sum.sampler, Some(counts(9, 3)));
    }
}
