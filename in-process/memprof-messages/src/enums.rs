//! What allocators, profiles and those who sample are called.

use crate::open_enum::words;

words! {
    /// The allocators that memprof knows.
    AllocatorKind {
        /// Of any prefix.
        Jemalloc = "jemalloc",
        /// Of gperftools.
        Tcmalloc = "tcmalloc",
        /// Microsoft's.
        Mimalloc = "mimalloc",
        /// The C library's own.
        Glibc = "glibc",
    }

    /// What a profile tells.
    #[derive(Default)]
    ProfileKind {
        /// Which stacks hold live memory, by samples.
        #[default]
        Heap = "heap",
        /// Which stacks made the heap grow, since the start.
        Growth = "growth",
        /// Which stacks hold slabs of jemalloc's that are nearly empty, by samples; the sum is jemalloc's own.
        Pinned = "pinned",
    }

    /// Whose part of the work it is.
    Provider {
        /// The allocator's.
        Allocator = "allocator",
        /// memprof's.
        Memprof = "memprof" | "ours",
    }

    /// Who shall walk stacks.
    #[derive(Default)]
    UnwinderChoice {
        /// Ours where it is sound, else the allocator.
        #[default]
        Auto = "auto",
        /// Ours, also in place of a walker that the program installed itself; a warning where that
        /// cannot be.
        Memprof = "memprof" | "ours",
        /// The walker or sampler that the allocator has itself.
        Allocator = "allocator",
    }

    /// Who shall sample.
    #[derive(Default)]
    SamplerChoice {
        /// The allocator where it can, else ours.
        #[default]
        Auto = "auto",
        /// The walker or sampler that the allocator has itself.
        Allocator = "allocator",
        /// Ours.
        Memprof = "memprof" | "ours",
    }

    /// How memprof's sampler sees allocations.
    #[derive(Default)]
    InterceptionKind {
        /// The slots of the dynamic linker are patched.
        #[default]
        Slots = "slots",
        /// jemalloc calls the sampler: it is linked into the program.
        JemallocHooks = "jemalloc_hooks",
        /// The first instructions of the allocator's functions were replaced with jumps: it is linked into the program.
        Entries = "entry_patches" | "entries",
    }

    /// Whether allocations are sampled.
    Profiling {
        /// They are.
        Active = "active",
        /// They could be.
        Inactive = "inactive",
        /// They cannot be in this process.
        Unavailable = "unavailable",
    }

    /// The position of a switch.
    OnOff {
        /// It is on.
        On = "on",
        /// It is off.
        Off = "off",
    }

    /// Why a dump was taken, as its name and `list` tell it.
    TriggerKind {
        /// Somebody asked.
        Message = "message",
        /// A rule: its time had come.
        Every = "every",
        /// A rule: resident memory passed a threshold.
        RssAbove = "rss-above",
        /// A rule: resident memory grew by a step.
        RssGrowth = "rss-growth",
        /// A rule: what the cgroup uses passed a threshold.
        CgroupAbove = "cgroup-above",
        /// `gdump`: a new high-water mark.
        Gdump = "gdump",
        /// A rule: the program ended.
        AtExit = "at-exit",
    }
}

impl AllocatorKind {
    /// Whether some build of it has a profiler.
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
        assert!(!SamplerChoice::WORDS.contains(&"ours"));
    }
}
