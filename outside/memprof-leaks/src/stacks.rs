//! Stacks that allocated objects, from the live samples of a profiler: jemalloc's or memprof's sampler. They
//! are read from the snapshot; the profiler in the process is not called.

mod jemalloc_profiler;
mod memprof_sampler;

use std::collections::HashMap;
use std::rc::Rc;

use memprof_report::{Address, Mapping, NamedStack, Sources, symbolize_stacks};

pub(crate) use self::memprof_sampler::SamplerTables;
use crate::snapshot_memory::SnapshotMemory;

/// Return addresses, leaf first, and pseudo frames.
pub(crate) type Stack = Rc<[u64]>;

/// Stacks of a snapshot's objects, with a cache.
pub(crate) struct Stacks<'a> {
    view: &'a SnapshotMemory,
    /// Addresses of objects, each with its context of jemalloc's profiler, sorted.
    contexts: &'a [(u64, u64)],
    known: HashMap<u64, Option<Stack>>,
    sampled: &'a SamplerTables,
}

impl<'a> Stacks<'a> {
    /// Creates a reader of the stacks of sampled objects. `contexts` are the addresses of the objects that jemalloc's
    /// profiler sampled, each with its context, sorted; `sampled` are the tables of memprof's sampler.
    pub(crate) fn new(
        view: &'a SnapshotMemory,
        contexts: &'a [(u64, u64)],
        sampled: &'a SamplerTables,
    ) -> Self {
        Self {
            view,
            contexts,
            known: HashMap::new(),
            sampled,
        }
    }

    /// Stack that allocated the object at `start`, from jemalloc's profiler or else from memprof's sampler. `None` if
    /// neither sampled the object, or the stack cannot be read.
    pub(crate) fn stack_of(&mut self, start: u64) -> Option<Stack> {
        self.jemalloc_stack(start)
            .or_else(|| self.sampled.read_stack(self.view, start))
    }

    /// Mean bytes between the samples of memprof's sampler, the least one if there are several. `None` if there is no
    /// sampler, or jemalloc's profiler took samples: it gives a sampled object another size than other objects of its
    /// kind have.
    pub(crate) fn sample_interval(&self) -> Option<u64> {
        self.sampled
            .min_sample_interval()
            .filter(|_| self.contexts.is_empty())
    }

    /// Stack of the object at `start` from jemalloc's profiler. `None` if the object is not sampled, or its
    /// stack cannot be read.
    fn jemalloc_stack(&mut self, start: u64) -> Option<Stack> {
        let index = self
            .contexts
            .binary_search_by_key(&start, |(object, _)| *object);
        let (_, context) = self.contexts[index.ok()?];
        let known = self.known.entry(context);
        known
            .or_insert_with(|| jemalloc_profiler::read_stack(self.view, context))
            .clone()
    }
}

/// Addresses at which sampled objects may start, unsorted. Some belong to no live object.
pub(crate) fn candidate_starts<'a>(
    view: &'a SnapshotMemory,
    contexts: &'a [(u64, u64)],
    sampled: &'a SamplerTables,
) -> impl Iterator<Item = u64> + 'a {
    let of_jemalloc = contexts.iter().map(|(start, _)| *start);
    of_jemalloc.chain(sampled.candidate_sample_addresses(view))
}

/// Symbolizes stacks by the files of a process. Returns the functions of each stack, in the order of `stacks`.
///
/// # Errors
/// A reason why the stacks have no names, as a sentence.
pub(crate) fn symbolize<'a>(
    stacks: impl Iterator<Item = &'a Stack>,
    mappings: Vec<Mapping>,
    pid: u32,
) -> Result<Vec<NamedStack>, String> {
    let stacks: Vec<_> = stacks.map(|stack| stack.to_vec()).collect();
    let sources = Sources::for_process(Some(pid));
    symbolize_stacks(&stacks, mappings, &sources)
        .map_err(|error| format!("the stacks of samples have no names: {error}"))
}

/// Executable mappings of a snapshot, by address.
pub(crate) fn executable_mappings(view: &SnapshotMemory) -> Vec<Mapping> {
    let regions = view.regions.iter().filter(|region| region.is_executable);
    let mappings = regions.map(|region| Mapping {
        start: Address(region.range.start),
        end: Address(region.range.end),
        offset: region.offset,
        executable: true,
        path: region.name.clone(),
        build_id: None,
    });
    mappings.collect()
}

/// Whether an address may be a return address: the byte before it is in executable memory.
fn may_be_return_address(view: &SnapshotMemory, address: u64) -> bool {
    let region = address.checked_sub(1).and_then(|call| view.region(call));
    region.is_some_and(|region| region.is_executable)
}
