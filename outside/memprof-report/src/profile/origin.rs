//! Process that a profile covers, and the counts of its sampler.

/// Exact counts of all allocations of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationTally {
    /// Number of allocations; a reallocation counts as one.
    pub objects: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Highest number of live bytes, as the allocator rounds sizes.
    pub peak: u64,
}

/// Frees that a sampler did not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnseenFrees {
    /// Sampled blocks that were allocated again although no free of them had been seen.
    pub samples: u64,
    /// Bytes by which the profile exceeds what the allocator held, beyond chance.
    pub bytes: u64,
}

/// Samples whose stacks end early for one reason in one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyEnds {
    /// Number of samples, including freed ones.
    pub samples: u64,
    /// Reason by its name in memprof's dumps: `no-frame-information`.
    pub reason: String,
    /// Path of the file in which they end. `None` if the code is in no file.
    pub object: Option<String>,
}

/// Process of a profile that covers several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfiledProcess {
    /// Name of the host program. `None` if the dump lacks it.
    pub host: Option<String>,
    /// Process id of the host. `None` if the dump lacks it.
    pub pid: Option<u32>,
    /// Estimated bytes in use.
    pub inuse_space: i64,
}

/// Origin of a profile, from the comment lines of memprof's dumps. Fields are `None` if the profile lacks the line. Of
/// several processes, names and times are those of the first, counts the sums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileOrigin {
    /// Name of the host program.
    pub host: Option<String>,
    /// Process id of the host.
    pub pid: Option<u32>,
    /// Node name of the host's machine, from uname(2).
    pub machine: Option<String>,
    /// Start time of the host.
    pub started: Option<String>,
    /// Time at which the profile was taken.
    pub taken: Option<String>,
    /// Trigger of the dump.
    pub trigger: Option<String>,
    /// Name and version of the allocator.
    pub allocator: Option<String>,
    /// Time since which the allocator has sampled.
    pub active_since: Option<String>,
    /// Time since which memprof's own sampler has sampled: the profile lacks earlier allocations.
    pub sampling_since: Option<String>,
    /// Samples that the sampler took, including freed ones.
    pub samples: Option<u64>,
    /// Samples that the sampler lost because its tables were full.
    pub lost_samples: Option<u64>,
    /// Frees that the sampler did not see.
    pub unseen_frees: Option<UnseenFrees>,
    /// Bytes in use that the sampler did not see when they were allocated.
    pub unseen_allocation_bytes: Option<u64>,
    /// Samples whose stacks lack their outermost frames, most first.
    pub early_ends: Vec<EarlyEnds>,
    /// Exact count of all allocations, if it was enabled. The profile is then of the peak.
    pub tally: Option<AllocationTally>,
    /// Path of the mapped plugin file that took the profile.
    pub image: Option<String>,
    /// The processes of a profile of several; empty for one.
    pub processes: Vec<ProfiledProcess>,
}
