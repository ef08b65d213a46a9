//! A heap profile of one dump, as the rows of the tables have it.

use std::collections::HashMap;
use std::mem;

use memprof_report::{
    CodeOrigin, Folded, Granularity, Input, Options, OriginRules, ProfileOrigin, SampleType,
    Sources, StringId, SymbolizedProfile, drop_memprof_stacks,
};
use serde::{Deserialize, Serialize};

use crate::process_profile::{Frame, Sample, SamplerCounts, Stack, stack_id};

/// Samples and stacks of one process, by the ids of the stacks.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heap {
    /// That of the program's file; empty where it has none.
    pub(crate) build_id: String,
    pub(crate) sampler: Option<SamplerCounts>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) stacks: Vec<Stack>,
}

impl Heap {
    /// Adds another allocator's of the same process.
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
        let mut both: Vec<_> = samples.zip(stacks).collect();
        both.sort_by_key(|(sample, _)| sample.stack_id);
        both.dedup_by(|(later, _), (first, _)| {
            let is_same = later.stack_id == first.stack_id;
            if is_same {
                *first = first.plus(*later);
            }
            is_same
        });
        (self.samples, self.stacks) = both.into_iter().unzip();
    }
}

/// Reads a dump. Its functions have names where there are `sources`.
pub(crate) fn read(mut bytes: &[u8], sources: Option<&Sources>) -> anyhow::Result<Heap> {
    let input = Input {
        name: "the dump",
        bytes: &mut bytes,
    };
    let mut named = memprof_report::read(input, sources, &Options::default(), &|_, _| ())?;
    drop_memprof_stacks(&mut named.profile, &named.names, &named.depths);
    let main = named.profile.main_file();
    let build_id = main.and_then(|main| main.build_id.clone());
    let sampler = sampler_counts(&named.profile.origin);
    let mut sums = StackSums::default();
    sums.add(&named);
    let (samples, stacks) = sums.into_parts();
    Ok(Heap {
        build_id: build_id.unwrap_or_default(),
        sampler,
        samples,
        stacks,
    })
}

fn sampler_counts(origin: &ProfileOrigin) -> Option<SamplerCounts> {
    let count = |count: Option<u64>| count.and_then(|count| i64::try_from(count).ok());
    SamplerCounts::new(count(origin.samples), count(origin.lost_samples))
}

/// Profiles of one process, summed by stack.
#[derive(Default)]
struct StackSums {
    by_stack: HashMap<i64, (Sample, Stack)>,
}

impl StackSums {
    fn add(&mut self, named: &SymbolizedProfile) {
        let whose = function_origins(named);
        let profile = &named.profile;
        for sample in &profile.samples {
            let frames = frames(named, sample.stack);
            let id = stack_id(&frames);
            let [alloc_objects, alloc_bytes, inuse_objects, inuse_bytes] = sample.values.0;
            let alloc = [alloc_bytes, alloc_objects];
            let (sum, _) = self.by_stack.entry(id).or_insert_with(|| {
                let sample = Sample {
                    stack_id: id,
                    alloc: profile.has_alloc.then_some([0; 2]),
                    ..Sample::default()
                };
                let stack = Stack {
                    stack_id: id,
                    function: row_function(&frames, &whose),
                    frames,
                };
                (sample, stack)
            });
            sum.inuse_bytes += inuse_bytes;
            sum.inuse_objects += inuse_objects;
            sum.alloc = match (sum.alloc, profile.has_alloc) {
                (Some(known), true) => Some([known[0] + alloc[0], known[1] + alloc[1]]),
                _ => None,
            };
        }
    }

    fn into_parts(self) -> (Vec<Sample>, Vec<Stack>) {
        let mut both: Vec<_> = self.by_stack.into_values().collect();
        both.sort_by_key(|(sample, _)| sample.stack_id);
        both.into_iter().unzip()
    }
}

/// Whose each function is.
fn function_origins(named: &SymbolizedProfile) -> HashMap<String, CodeOrigin> {
    let blame = OriginRules::default();
    let functions = Granularity::Functions;
    let folded = Folded::new(named, None, SampleType::InuseSpace, functions, &blame);
    let name = |index: usize| folded.functions.get(StringId(index as u32)).to_owned();
    let whose = folded.origins.iter().enumerate();
    whose.map(|(index, whose)| (name(index), *whose)).collect()
}

/// The leaf-most function of the most telling kind.
fn row_function(frames: &[Frame], whose: &HashMap<String, CodeOrigin>) -> String {
    let kind = |frame: &&Frame| whose.get(&frame.function).copied().unwrap_or_default();
    // The last one of equals.
    let frame = frames.iter().max_by_key(kind);
    frame
        .map(|frame| frame.function.clone())
        .unwrap_or_default()
}

/// A stack's functions, root first, without the allocator's.
fn frames(named: &SymbolizedProfile, stack: memprof_report::StackId) -> Vec<Frame> {
    let profile = &named.profile;
    let depth = named.depths[stack.0 as usize] as usize;
    let addresses = &profile.stacks.frames(stack)[depth..];
    let mut frames = Vec::new();
    for &id in addresses {
        let mut call = profile.stacks.address(id);
        call.0 = call.0.wrapping_sub(1);
        let mapping = profile
            .mapping_of(call)
            .map(|index| &profile.mappings[index]);
        let module = mapping.map_or("", |mapping| mapping.file_name());
        frames.extend(named.names.frames(id).iter().map(|frame| Frame {
            function: named.names.strings.get(frame.function).to_owned(),
            module: module.to_owned(),
        }));
    }
    frames.reverse();
    frames
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// 400 bytes in use: 300 of `cart`, called by `libshop.so`, and 100 of that.
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
        memprof_report::read(input, None, &options, &|_, _| ()).unwrap()
    }

    #[test]
    fn a_profile_becomes_rows() {
        let named = two_stacks();
        let mut sums = StackSums::default();
        sums.add(&named);
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
    fn the_heaps_of_two_allocators_are_one() {
        let heap = |stack_id, inuse_bytes, alloc| Heap {
            build_id: String::new(),
            sampler: SamplerCounts::new(Some(3), Some(1)),
            samples: vec![Sample {
                stack_id,
                inuse_bytes,
                inuse_objects: 1,
                alloc,
            }],
            stacks: vec![Stack {
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
        assert_eq!(sum.sampler, SamplerCounts::new(Some(9), Some(3)));
    }
}
