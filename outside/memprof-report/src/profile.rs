//! A heap profile: samples of stacks, and the mappings their addresses lie in.

use std::ops::{AddAssign, Index, IndexMut};

pub use crate::address::Address;
use crate::alloc_time::{AgeBuckets, AllocTime};
use crate::label::{LabelId, Labels};
use crate::limits::MemoryLeft;
use crate::names::Names;
use crate::stacks::{AddressId, StackId, Stacks};

/// An offset in a mapped file: what a normalized [`Address`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileOffset(pub u64);

/// What is counted. The order is Go's, and that of [`SampleValues`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SampleType {
    /// Objects allocated since activation; needs `opt.prof_accum`.
    AllocObjects,
    /// Bytes allocated since activation; needs `opt.prof_accum`.
    AllocSpace,
    /// Objects alive.
    InuseObjects,
    /// Bytes alive.
    #[default]
    InuseSpace,
}

impl SampleType {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [
        Self::AllocObjects,
        Self::AllocSpace,
        Self::InuseObjects,
        Self::InuseSpace,
    ];

    /// The name in options, in JSON and in pprof.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllocObjects => "alloc_objects",
            Self::AllocSpace => "alloc_space",
            Self::InuseObjects => "inuse_objects",
            Self::InuseSpace => "inuse_space",
        }
    }

    /// pprof's unit: `count` or `bytes`.
    pub fn unit(self) -> &'static str {
        match self {
            Self::AllocObjects | Self::InuseObjects => "count",
            Self::AllocSpace | Self::InuseSpace => "bytes",
        }
    }

    /// Whether only a profile with `opt.prof_accum` has it.
    pub(crate) fn is_alloc(self) -> bool {
        matches!(self, Self::AllocObjects | Self::AllocSpace)
    }
}

/// One number per [`SampleType`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleValues(pub [i64; 4]);

impl Index<SampleType> for SampleValues {
    type Output = i64;

    fn index(&self, sample_type: SampleType) -> &i64 {
        &self.0[sample_type as usize]
    }
}

impl IndexMut<SampleType> for SampleValues {
    fn index_mut(&mut self, sample_type: SampleType) -> &mut i64 {
        &mut self.0[sample_type as usize]
    }
}

impl SampleValues {
    /// The sum, unless it overflows.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        let mut sum = Self::default();
        for (sum, (a, b)) in sum.0.iter_mut().zip(self.0.into_iter().zip(other.0)) {
            *sum = a.checked_add(b)?;
        }
        Some(sum)
    }
}

/// For values whose total is known to fit, as that of a [`Profile`] is.
impl AddAssign for SampleValues {
    fn add_assign(&mut self, other: Self) {
        for (a, b) in self.0.iter_mut().zip(other.0) {
            *a += b;
        }
    }
}

/// One stack with its values.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Where.
    pub stack: StackId,
    /// How many objects were sampled here, of those allocated and of those in use; 0 where the profile does not
    /// tell.
    pub(crate) counts: [u32; 2],
    /// When they were allocated, where the profile tells.
    pub(crate) birth: Option<AllocTime>,
    /// The labels of who allocated them, where the profile tells.
    pub(crate) label: Option<LabelId>,
    /// How much.
    pub values: SampleValues,
}

impl Sample {
    /// Of a stack, with these values, of which no more is known.
    pub fn new(stack: StackId, values: SampleValues) -> Self {
        Self {
            stack,
            counts: [0; 2],
            birth: None,
            label: None,
            values,
        }
    }
}

// A profile may have a sample for every four of its bytes: the reader's memory is bounded by a multiple of them.
const _: () = assert!(size_of::<Sample>() <= 56);

/// A range of addresses and what was mapped there.
#[derive(Clone, Debug, Default)]
pub struct Mapping {
    /// First address.
    pub start: Address,
    /// First address behind it.
    pub end: Address,
    /// The file offset of `start`.
    pub offset: u64,
    /// Whether code may run in it.
    pub executable: bool,
    /// The path, `[vdso]` and the like, or empty for anonymous memory.
    pub path: String,
    /// In hex, where the profile tells.
    pub build_id: Option<String>,
}

impl Mapping {
    /// The file offset of an address inside.
    pub fn normalize(&self, address: Address) -> FileOffset {
        FileOffset((address.0 - self.start.0).wrapping_add(self.offset))
    }

    /// The last part of the path, or what stands for it.
    pub fn file_name(&self) -> &str {
        match self.path.trim_end_matches(" (deleted)").rsplit('/').next() {
            None | Some("") => "[anonymous]",
            Some(name) => name,
        }
    }

    /// Whether a file is mapped, rather than `[heap]`, `[vdso]`, `//anon` or nothing.
    pub fn is_file(&self) -> bool {
        self.path.starts_with('/') && !self.path.starts_with("//")
    }
}

/// How the allocator drew its samples; decides how they are unsampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// Every allocation counted, or values unsampled already.
    None,
    /// Bytes are shares of what is known; objects are the samples that tell them.
    Shared,
    /// A Poisson process over bytes (`heap_v2`): the mean distance in bytes.
    Poisson(u64),
    /// tcmalloc's first version (`heap/N`): the mean distance in bytes, N/2.
    Uniform(u64),
}

/// What all allocations of a process add up to: exact, where a profile estimates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationTally {
    /// Allocations; one that grows or shrinks a block is another.
    pub objects: u64,
    /// What these asked for, in bytes.
    pub bytes: u64,
    /// The most bytes that lived at the same time, as the allocator rounds them.
    pub peak: u64,
}

/// Where and when a profile was taken, as far as it tells: our own dumps' comment lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileOrigin {
    /// The host program's name.
    pub host: Option<String>,
    /// Its process id.
    pub pid: Option<u32>,
    /// The node name that uname(2) told the host.
    pub machine: Option<String>,
    /// When the host started.
    pub started: Option<String>,
    /// When the profile was taken.
    pub taken: Option<String>,
    /// Why.
    pub trigger: Option<String>,
    /// The allocator and its version.
    pub allocator: Option<String>,
    /// Since when the allocator sampled.
    pub active_since: Option<String>,
    /// Since when memprof's own sampler took the samples: what was allocated before is not in it.
    pub sampling_since: Option<String>,
    /// How many samples it took, those that were freed too.
    pub samples: Option<u64>,
    /// How many of them it did not remember, because its tables were full.
    pub lost_samples: Option<u64>,
    /// How many blocks were allocated again while their samples lived, because a free of them was not seen.
    pub unseen_frees: Option<u64>,
    /// What all allocations were counted to, where they were: then what is told to live did at the peak.
    pub tally: Option<AllocationTally>,
    /// The file of the plugin that took it, as mapped.
    pub image: Option<String>,
}

/// What a dump of ours says that it holds, in comment lines: what a reader finds else is damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeclaredContents {
    /// The number of stacks.
    pub(crate) stacks: Option<u64>,
    /// Bytes in use, unsampled.
    pub(crate) inuse_space: Option<i64>,
}

/// The frame of what nobody is known to hold, in a profile that [is pinned](Profile::is_pinned).
pub(crate) const NOBODY: Address = Address(0x100);

/// The frame of all stacks that memprof's sampler evicted from its tables: what they allocated was freed.
pub(crate) const EVICTED: Address = Address(0x101);

/// A heap profile. The parsers give raw values; [`unsample`](crate::unsample()) makes estimates of them.
#[derive(Debug)]
pub struct Profile {
    /// How its samples were drawn.
    pub(crate) sampling: Sampling,
    /// Mean bytes between samples.
    pub interval: Option<u64>,
    /// The totals its header claims; raw.
    pub(crate) header: Option<SampleValues>,
    /// What its tail claims.
    pub(crate) claims: DeclaredContents,
    /// The stacks and addresses, interned.
    pub stacks: Stacks,
    /// In the file's order. Several may have the same stack.
    pub samples: Vec<Sample>,
    /// Ascending and disjoint.
    pub mappings: Vec<Mapping>,
    /// How the births of its samples are to be read, where they have some.
    pub(crate) ages: Option<AgeBuckets>,
    /// What the labels of its samples say.
    pub(crate) labels: Labels,
    /// Whether `alloc_*` was counted.
    pub has_alloc: bool,
    /// Its bytes are free ones that lie among live objects and cannot be given back because of these: who holds how
    /// many.
    pub is_pinned: bool,
    /// Where and when it was taken.
    pub origin: ProfileOrigin,
    /// Names that came with it: a pprof profile or a symbolized jeprof file.
    pub(crate) names: Option<Names>,
    /// What a reader should know before believing it.
    pub warnings: Vec<String>,
    /// What a report may still take in memory.
    pub(crate) room: MemoryLeft,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            sampling: Sampling::None,
            interval: None,
            header: None,
            claims: DeclaredContents::default(),
            stacks: Stacks::default(),
            samples: Vec::new(),
            mappings: Vec::new(),
            ages: None,
            labels: Labels::default(),
            has_alloc: false,
            is_pinned: false,
            origin: ProfileOrigin::default(),
            names: None,
            warnings: Vec::new(),
            room: MemoryLeft::default(),
        }
    }
}

impl Profile {
    /// The sum over all samples, unless it overflows.
    pub fn totals(&self) -> Option<SampleValues> {
        self.samples
            .iter()
            .try_fold(SampleValues::default(), |sum, s| sum.checked_add(s.values))
    }

    /// The mapping of the main program, where there is one.
    pub fn main_file(&self) -> Option<&Mapping> {
        self.mappings.iter().find(|mapping| mapping.is_file())
    }

    /// The mapping of the call that a frame returns to, as an index into `mappings`.
    pub(crate) fn mapping_of_frame(&self, frame: AddressId) -> Option<usize> {
        self.mapping_of(Address(self.stacks.address(frame).0.wrapping_sub(1)))
    }

    /// The mapping an address lies in, as an index into `mappings`.
    pub fn mapping_of(&self, address: Address) -> Option<usize> {
        let after = self.mappings.partition_point(|m| m.start <= address);
        let index = after.checked_sub(1)?;
        (address < self.mappings[index].end).then_some(index)
    }
}
