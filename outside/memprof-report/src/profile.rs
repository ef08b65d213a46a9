//! A heap profile: samples of stacks, and the mappings that contain their addresses.

mod origin;
pub(crate) mod sample_types;
mod sample_values;

pub use self::origin::{AllocationTally, EarlyEnds, ProfileOrigin, ProfiledProcess, UnseenFrees};
use self::sample_types::ValueTypes;
pub use self::sample_values::SampleValues;
pub use crate::address::Address;
use crate::alloc_time::{AgeBuckets, AllocTime};
use crate::label::{LabelId, Labels};
use crate::limits::MemoryLeft;
use crate::names::Names;
use crate::stacks::{AddressId, StackId, Stacks};

/// Offset in a mapped file, in bytes; see [`Mapping::file_offset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileOffset(pub u64);

/// Quantity that a profile counts. The order is Go's, and that of [`SampleValues`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SampleType {
    /// Objects allocated since activation; needs `opt.prof_accum`.
    AllocObjects,
    /// Bytes allocated since activation; needs `opt.prof_accum`.
    AllocSpace,
    /// Live objects.
    InuseObjects,
    /// Live bytes.
    #[default]
    InuseSpace,
}

impl SampleType {
    /// All types, in order.
    pub const ALL: [Self; 4] = [
        Self::AllocObjects,
        Self::AllocSpace,
        Self::InuseObjects,
        Self::InuseSpace,
    ];

    /// Name in options, in JSON and in pprof.
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

    /// Returns whether the values are bytes, not objects.
    pub(crate) fn is_space(self) -> bool {
        matches!(self, Self::AllocSpace | Self::InuseSpace)
    }

    /// Returns whether the values count all allocations, also of blocks that were freed. jemalloc writes such values
    /// only with `opt.prof_accum`.
    pub(crate) fn is_alloc(self) -> bool {
        matches!(self, Self::AllocObjects | Self::AllocSpace)
    }
}

/// One stack with its values.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The stack, in the profile's [`Stacks`].
    pub stack: StackId,
    /// Number of sampled objects, of those allocated and of those in use; 0 if the profile has no counts.
    pub(crate) counts: [u32; 2],
    /// Allocation time of the objects. `None` if the profile has none.
    pub(crate) alloc_time: Option<AllocTime>,
    /// Labels of the thread that allocated the objects. `None` if the profile has none.
    pub(crate) label: Option<LabelId>,
    /// Row of the values that the file has beside `values`, in its [`ValueTypes`].
    pub(crate) row: u32,
    /// Objects and bytes, by [`SampleType`].
    pub values: SampleValues,
}

impl Sample {
    /// Creates a sample without counts, allocation time and labels.
    pub fn new(stack: StackId, values: SampleValues) -> Self {
        Self {
            stack,
            counts: [0; 2],
            alloc_time: None,
            label: None,
            row: 0,
            values,
        }
    }
}

// A profile may have one sample per four bytes of input, and the reader's memory is bounded by a multiple of the
// input.
const _: () = assert!(size_of::<Sample>() <= 56);

/// A mapped range of addresses.
#[derive(Clone, Debug, Default)]
pub struct Mapping {
    /// First address.
    pub start: Address,
    /// Address after the last one.
    pub end: Address,
    /// File offset of `start`, in bytes.
    pub offset: u64,
    /// Whether the mapping is executable.
    pub executable: bool,
    /// Path, a name such as `[vdso]`, or empty for anonymous memory.
    pub path: String,
    /// Build id in hex. `None` if the profile has none.
    pub build_id: Option<String>,
}

impl Mapping {
    /// Converts an address, which must be in this mapping, to its offset in the mapped file.
    pub fn file_offset(&self, address: Address) -> FileOffset {
        FileOffset(
            address
                .0
                .wrapping_sub(self.start.0)
                .wrapping_add(self.offset),
        )
    }

    /// Returns whether an address lies in this mapping. Always true for a mapping of linked addresses, which spans the
    /// whole address space. A pprof location may name a mapping in which it does not lie.
    pub(crate) fn contains(&self, address: Address) -> bool {
        self.has_linked_addresses() || (self.start..self.end).contains(&address)
    }

    /// Last component of the path, without the kernel's ` (deleted)`; `[anonymous]` if there is none.
    pub fn file_name(&self) -> &str {
        let path = self.path.trim_end_matches(" (deleted)");
        let is_separator = |c: char| c == '/' || c == '\\' && self.is_windows_file();
        match path.rsplit(is_separator).next() {
            None | Some("") => "[anonymous]",
            Some(name) => name,
        }
    }

    /// Returns whether a file is mapped, rather than `[heap]`, `[vdso]`, `//anon`, `anon_inode:[perf_event]` or
    /// anonymous memory. The path may be relative, or one of Windows.
    pub fn is_file(&self) -> bool {
        let is_pseudo = self.path.starts_with('[') || self.path.starts_with("//");
        !self.path.is_empty() && !is_pseudo && !self.path.contains(":[")
    }

    /// Returns whether addresses in the mapping are the linked ones of its file: the mapping spans the whole address
    /// space, as `jemalloc_pprof` writes the mappings of addresses that it has normalized. Source: `GetBase` of pprof's
    /// `elfexec`.
    pub(crate) fn has_linked_addresses(&self) -> bool {
        self.start.0 == 0 && self.offset == 0 && matches!(self.end.0, 0 | u64::MAX)
    }

    /// Returns whether the path is one of Windows: `C:\…`, `C:/…` or `\\server\…`.
    fn is_windows_file(&self) -> bool {
        match self.path.as_bytes() {
            [drive, b':', b'\\' | b'/', ..] => drive.is_ascii_alphabetic(),
            path => path.starts_with(br"\\"),
        }
    }
}

/// Sampling method of the allocator; selects the formula that undoes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// Every allocation was counted, or the values are unsampled already.
    None,
    /// Bytes are shares of a known amount; objects are the samples by which it was shared out.
    Shared,
    /// A Poisson process over bytes (`heap_v2`), with the mean interval in bytes.
    Poisson(u64),
    /// First version of tcmalloc's format (`heap/N`), with the mean interval in bytes, N/2.
    Uniform(u64),
}

/// Fields of a pprof profile that concern no sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PprofHeader {
    /// Time of the profile, in nanoseconds since 1970; 0 if unknown.
    pub(crate) time_nanos: i64,
    /// Duration of the profile, in nanoseconds; 0 if unknown.
    pub(crate) duration_nanos: i64,
    pub(crate) comments: Vec<String>,
}

/// Contents that memprof's dumps declare in comment lines. A difference means that the dump is damaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeclaredContents {
    /// Number of stacks.
    pub(crate) stacks: Option<u64>,
    /// Bytes in use, unsampled.
    pub(crate) inuse_space: Option<i64>,
}

/// Pseudo frame of memory without a known holder, in a profile that [is pinned](Profile::is_pinned).
pub(crate) const UNATTRIBUTED: Address = Address(0x100);

/// Pseudo frame for the stacks that memprof's sampler evicted from its tables; their memory was freed.
pub(crate) const EVICTED_STACKS: Address = Address(0x101);

/// Pseudo frame of samples without a stack. The top of the lower half of the address space: no processor has code
/// there, and no system maps it.
pub(crate) const NO_STACK: Address = Address(i64::MAX as u64);

/// A heap profile. Parsers return raw values; [`unsample`](crate::unsample()) converts them to estimates.
#[derive(Debug)]
pub struct Profile {
    /// Sampling method of the allocator.
    pub(crate) sampling: Sampling,
    /// Mean bytes between samples; of several processes, the largest. `None` if nothing was sampled.
    pub interval: Option<u64>,
    /// Raw totals from the file's header.
    pub(crate) header: Option<SampleValues>,
    /// Contents that the file's comment lines declare.
    pub(crate) declared: DeclaredContents,
    /// Interned stacks and addresses.
    pub stacks: Stacks,
    /// Samples in the file's order. Several may have the same stack.
    pub samples: Vec<Sample>,
    /// Mappings, ascending and disjoint; those of a pprof profile may overlap.
    pub mappings: Vec<Mapping>,
    /// By [`AddressId`]: the mapping that the file names for the address, as an index into `mappings`. `None` if the
    /// file has addresses only: each then lies in the mapping that contains it.
    pub(crate) address_mappings: Option<Vec<Option<u32>>>,
    /// Sample types of a pprof profile. `None` for other formats, whose types are those of [`SampleType`].
    pub(crate) value_types: Option<ValueTypes>,
    /// Times and comments of a pprof profile.
    pub(crate) pprof: PprofHeader,
    /// Age buckets of the samples' allocation times. `None` if they have none.
    pub(crate) ages: Option<AgeBuckets>,
    /// Label sets of the samples.
    pub(crate) labels: Labels,
    /// Whether `alloc_*` was counted.
    pub has_alloc: bool,
    /// Whether the values are free bytes that lie among live objects, which keep them from being released; each
    /// sample has the share of one holder.
    pub is_pinned: bool,
    /// Process and time of the profile.
    pub origin: ProfileOrigin,
    /// Path of the main program. `None` if the file does not say.
    pub(crate) program: Option<String>,
    /// Names from the file: of a pprof profile or a symbolized jeprof file.
    pub(crate) names: Option<Names>,
    /// Whether the mappings have file offsets, which some memory maps lack.
    pub(crate) has_file_offsets: bool,
    /// Warnings for the reader of a report, one line each.
    pub warnings: Vec<String>,
    /// Memory budget that is left for the report.
    pub(crate) memory_left: MemoryLeft,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            sampling: Sampling::None,
            interval: None,
            header: None,
            declared: DeclaredContents::default(),
            stacks: Stacks::default(),
            samples: Vec::new(),
            mappings: Vec::new(),
            address_mappings: None,
            value_types: None,
            pprof: PprofHeader::default(),
            ages: None,
            labels: Labels::default(),
            has_alloc: false,
            is_pinned: false,
            origin: ProfileOrigin::default(),
            program: None,
            names: None,
            has_file_offsets: true,
            warnings: Vec::new(),
            memory_left: MemoryLeft::default(),
        }
    }
}

impl Profile {
    /// Returns the sum over all samples. `None` if it, or the sum over some of them, may overflow: in a difference,
    /// some values are negative.
    pub fn totals(&self) -> Option<SampleValues> {
        self.absolute_totals()?;
        let mut totals = SampleValues::default();
        self.samples
            .iter()
            .for_each(|sample| totals += sample.values);
        Some(totals)
    }

    /// Returns the sum of the absolute values of all samples: that of some samples is no larger. `None` if it
    /// overflows.
    pub(crate) fn absolute_totals(&self) -> Option<SampleValues> {
        self.samples
            .iter()
            .try_fold(SampleValues::default(), |sum, sample| {
                sum.checked_add(sample.values.checked_abs()?)
            })
    }

    /// Gives the samples with an empty stack a stack with the pseudo frame [`NO_STACK`], so that all formats show them.
    pub(crate) fn mark_missing_stacks(&mut self) {
        let Self {
            samples, stacks, ..
        } = self;
        let mut marked = None;
        for sample in samples {
            if !stacks.frames(sample.stack).is_empty() {
                continue;
            }
            sample.stack = *marked.get_or_insert_with(|| {
                let frame = stacks.intern_address(NO_STACK);
                stacks.push_frame(frame);
                stacks.finish_stack()
            });
        }
    }

    /// Returns the mapping of a frame, as an index into `mappings`. If the file assigns mappings to its addresses, only
    /// that assignment counts; otherwise it is the mapping that contains the call. `None` if there is none.
    pub fn mapping_of_frame(&self, frame: AddressId) -> Option<usize> {
        match &self.address_mappings {
            Some(named) => named.get(frame.0 as usize)?.map(|index| index as usize),
            None => self.mapping_of_address(self.stacks.call_address(frame)),
        }
    }

    /// Returns the mapping that contains an address, as an index into `mappings`. `None` if no mapping does. Not for
    /// pprof profiles, in which several may.
    pub(crate) fn mapping_of_address(&self, address: Address) -> Option<usize> {
        let after = self.mappings.partition_point(|m| m.start <= address);
        let index = after.checked_sub(1)?;
        (address < self.mappings[index].end).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::Mapping;

    #[test]
    fn files_of_all_systems_have_names() {
        let check = |path: &str, name: &str, is_file: bool| {
            let mapping = Mapping {
                path: path.to_owned(),
                ..Mapping::default()
            };
            assert_eq!(
                (mapping.file_name(), mapping.is_file()),
                (name, is_file),
                "{path}"
            );
        };
        check("/usr/bin/redis-server", "redis-server", true);
        check("/srv/app (deleted)", "app", true);
        check(r"/srv/a\b", r"a\b", true);
        check(r"C:\Program Files\App\app.exe", "app.exe", true);
        check("d:/App/app.dll", "app.dll", true);
        check(r"\\server\share\app.exe", "app.exe", true);
        check("cppbench_server_main", "cppbench_server_main", true);
        check("$source/app", "app", true);
        for pseudo in [
            "[heap]",
            "//anon",
            "anon_inode:[perf_event]",
            "socket:[7]",
            "",
        ] {
            let mapping = Mapping {
                path: pseudo.to_owned(),
                ..Mapping::default()
            };
            assert!(!mapping.is_file(), "{pseudo}");
        }
    }
}
