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
        /// glibc's malloc.
        Glibc = "glibc",
    }

    /// Data in a profile.
    #[derive(Default)]
    ProfileKind {
        /// Live memory by stack, sampled.
        #[default]
        Heap = "heap",
        /// Growth of the heap since the start of the process, by stack.
        Growth = "growth",
        /// Objects that keep nearly empty slabs of jemalloc in use, by stack, sampled. jemalloc reports their total.
        Pinned = "pinned",
    }

    /// Provider of a sampler or walker.
    Provider {
        /// The allocator.
        Allocator = "allocator",
        /// memprof.
        Memprof = "memprof" | "ours",
    }

    /// Requested walker for the stacks of samples.
    #[derive(Default)]
    UnwinderChoice {
        /// memprof's walker if it is sound, otherwise the allocator's.
        #[default]
        Auto = "auto",
        /// memprof's walker, even in place of a walker that the program installed. If that is impossible, the reply
        /// contains a warning.
        Memprof = "memprof" | "ours",
        /// The allocator's built-in walker.
        Allocator = "allocator",
    }

    /// Whether stacks contain the function names of an interpreted program.
    #[derive(Default)]
    LanguagesChoice {
        /// Yes, for each interpreter that memprof knows.
        #[default]
        Auto = "auto",
        /// No: stacks contain the functions of the interpreter.
        Off = "off",
    }

    /// Requested sampler of allocations.
    #[derive(Default)]
    SamplerChoice {
        /// The allocator's sampler if it has one, otherwise memprof's.
        #[default]
        Auto = "auto",
        /// The allocator's built-in sampler.
        Allocator = "allocator",
        /// memprof's sampler.
        Memprof = "memprof" | "ours",
    }

    /// Method by which calls of `malloc` and related functions reach memprof's sampler.
    #[derive(Default)]
    InterceptionKind {
        /// The GOT slots of the allocator's functions are patched.
        #[default]
        Slots = "slots",
        /// jemalloc calls the sampler through its hooks, because it is statically linked.
        JemallocHooks = "jemalloc_hooks",
        /// Jumps replace the first instructions of the allocator's functions, because it is statically linked.
        Entries = "entry_patches" | "entries",
    }

    /// Reason why stacks of samples end before their outermost frame.
    EarlyEndReason {
        /// They have more than 128 frames; the outermost frames are omitted.
        TooManyFrames = "too-many-frames",
        /// The next word of the stack is in unreadable memory.
        UnreadableStack = "unreadable-stack",
        /// The call frame information cannot be read, or needs an unknown register.
        UnreadableFrameInformation = "unreadable-frame-information",
        /// The code is in no file and keeps no frame pointer, for example code from a just-in-time compiler.
        UnknownCode = "unknown-code",
        /// The code has no call frame information and keeps no frame pointer.
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

    /// Reason why a dump was taken, as its file name and `list` show it.
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
    /// Returns whether some builds of the allocator contain a profiler.
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
