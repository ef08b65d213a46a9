//! Names of allocators, profiles, samplers and states.

use crate::open_enum::named_enums;

named_enums! {
    /// An allocator that memprof knows.
    AllocatorKind {
        /// jemalloc, with any prefix of its functions.
        Jemalloc = "jemalloc",
        /// tcmalloc of gperftools.
        Tcmalloc = "tcmalloc",
        /// mimalloc of Microsoft.
        Mimalloc = "mimalloc",
        /// The allocator of glibc.
        Glibc = "glibc",
    }

    /// Data in a profile.
    #[derive(Default)]
    ProfileKind {
        /// Live memory by stack, sampled.
        #[default]
        Heap = "heap",
        /// Growth of the heap by stack, since the start of the process.
        Growth = "growth",
        /// Objects by stack that keep nearly empty slabs of jemalloc in use, sampled. Their sum is jemalloc's.
        Pinned = "pinned",
    }

    /// Provider of a sampler or walker.
    Provider {
        /// The allocator.
        Allocator = "allocator",
        /// memprof.
        Memprof = "memprof" | "ours",
    }

    /// Walker of the stacks of samples, as requested.
    #[derive(Default)]
    UnwinderChoice {
        /// memprof's walker where it is sound, otherwise the allocator's.
        #[default]
        Auto = "auto",
        /// memprof's walker, also in place of one that the program installed. If that is impossible, a warning is
        /// returned.
        Memprof = "memprof" | "ours",
        /// The allocator's built-in walker or sampler.
        Allocator = "allocator",
    }

    /// Whether stacks name the functions of an interpreter's program.
    #[derive(Default)]
    LanguagesChoice {
        /// Those of each interpreter whose structures are known.
        #[default]
        Auto = "auto",
        /// No: stacks are those of the interpreter.
        Off = "off",
    }

    /// Sampler of allocations, as requested.
    #[derive(Default)]
    SamplerChoice {
        /// The allocator's sampler if it has one, otherwise memprof's.
        #[default]
        Auto = "auto",
        /// The allocator's built-in walker or sampler.
        Allocator = "allocator",
        /// memprof's sampler.
        Memprof = "memprof" | "ours",
    }

    /// Method by which calls of `malloc` and its relatives reach memprof's sampler.
    #[derive(Default)]
    InterceptionKind {
        /// The GOT slots of the allocator's functions are patched.
        #[default]
        Slots = "slots",
        /// jemalloc calls the sampler through its hooks, because it is statically linked.
        JemallocHooks = "jemalloc_hooks",
        /// The first instructions of the allocator's functions are replaced with jumps, because it is statically
        /// linked.
        Entries = "entry_patches" | "entries",
    }

    /// Reason for which stacks of samples end before their outermost frame.
    EarlyEndReason {
        /// They have more than 128 frames, and the outermost ones are left out.
        TooManyFrames = "too-many-frames",
        /// The next word of the stack is in unreadable memory.
        UnreadableStack = "unreadable-stack",
        /// The call frame information cannot be read, or needs a register that is unknown.
        UnreadableFrameInformation = "unreadable-frame-information",
        /// The code is in no file, such as a just-in-time compiler's, and keeps no frame pointer.
        UnknownCode = "unknown-code",
        /// The code has no call frame information, and keeps no frame pointer.
        NoFrameInformation = "no-frame-information",
    }

    /// State of profiling.
    Profiling {
        /// Allocations are sampled.
        Active = "active",
        /// Allocations are not sampled, but can be.
        Inactive = "inactive",
        /// Allocations cannot be sampled in this process.
        Unavailable = "unavailable",
    }

    /// State of a switch.
    OnOff {
        /// On.
        On = "on",
        /// Off.
        Off = "off",
    }

    /// Reason for which a dump was taken, as its file name and `list` show it.
    TriggerKind {
        /// A message requested it.
        Message = "message",
        /// A rule: a fixed interval elapsed.
        Every = "every",
        /// A rule: resident memory exceeded a threshold.
        RssAbove = "rss-above",
        /// A rule: resident memory grew by a step.
        RssGrowth = "rss-growth",
        /// A rule: the memory use of the cgroup exceeded a threshold.
        CgroupAbove = "cgroup-above",
        /// `gdump`: a new high-water mark of the resident memory.
        Gdump = "gdump",
        /// A rule: the program ended.
        AtExit = "at-exit",
    }
}

impl AllocatorKind {
    /// Whether some builds of the allocator contain a profiler.
    pub const fn has_profiler(self) -> bool {
        matches!(self, Self::Jemalloc | Self::Tcmalloc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_names_are_still_read() {
        let check = |older: &str, name: &str| {
            assert_eq!(older.parse::<SamplerChoice>().unwrap().name(), name);
            assert_eq!(older.parse::<UnwinderChoice>().unwrap().name(), name);
            assert_eq!(older.parse::<Provider>().unwrap().name(), name);
        };
        check("ours", "memprof");
        check("memprof", "memprof");
        let entries: InterceptionKind = "entries".parse().unwrap();
        assert_eq!(entries.name(), "entry_patches");
        assert!(!SamplerChoice::NAMES.contains(&"ours"));
    }
}
