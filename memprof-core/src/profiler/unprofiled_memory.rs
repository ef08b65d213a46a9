//! Explains which live memory a dump lacks, as far as the numbers prove it.

use std::sync::Arc;

use memprof_messages::AllocatorKind;

use super::START_ACTIVE_HINT;
use crate::allocators::jemalloc::Jemalloc;
use crate::allocators::tcmalloc;
use crate::sampler::Backend;

/// Number of live bytes missing in the dumps from which a warning is given.
const NOTABLE_UNSEEN_BYTES: u64 = 16 << 20;

/// Like [`NOTABLE_UNSEEN_BYTES`], for tcmalloc, whose first samples come late.
const NOTABLE_TCMALLOC_BYTES: u64 = 4 << 20;
/// tcmalloc adds at most one part in this many to the live bytes, by rounding sizes up to its classes.
const TCMALLOC_ROUNDING: u64 = 8;

/// Live memory, and the part of it that the dumps show.
#[derive(Clone, Debug)]
pub(super) struct UnprofiledMemory {
    /// Live bytes of the dumped allocators.
    pub(super) live: u64,
    /// Estimated bytes in the dumps.
    pub(super) shown: u64,
    /// Stacks in the dumps. tcmalloc's have one for each sampled object.
    pub(super) stacks: u64,
    /// Live bytes when sampling began. `None` if sampling began before memprof was loaded, or if unknown.
    pub(super) before: Option<u64>,
    /// Samplers of the allocators. memprof's own sampler is not among them, because it reports the calls that it
    /// misses.
    pub(super) samplers: Vec<BuiltinSampler>,
}

/// Built-in sampler of an allocator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BuiltinSampler {
    kind: AllocatorKind,
    /// Whether the sampler is a jemalloc's and does not sample some threads.
    may_skip_threads: bool,
}

/// The built-in samplers of the backends that memprof's sampler does not sample. An allocator without a built-in
/// sampler also has an element.
pub(super) fn builtin_samplers(backends: &[Arc<Backend>]) -> Vec<BuiltinSampler> {
    let builtin = backends
        .iter()
        .filter(|each| each.sampler_status().is_none());
    let sampler = |each: &Arc<Backend>| BuiltinSampler {
        kind: each.identity().kind,
        may_skip_threads: each
            .allocator
            .as_jemalloc()
            .is_some_and(Jemalloc::may_skip_threads),
    };
    builtin.map(sampler).collect()
}

/// Warnings about live bytes that are missing in the dumps. Empty if the dumps show at least half of the live bytes, or
/// if only few bytes are missing. For tcmalloc, a smaller missing part also has a warning.
///
/// The missing bytes are divided into those that may have been allocated before sampling began and those that were
/// allocated later. Each of the two parts has a warning of its own, if it is notable.
pub(super) fn unprofiled_warnings(memory: &UnprofiledMemory) -> Vec<String> {
    let unseen = memory.live.saturating_sub(memory.shown);
    let mut kinds = memory.samplers.iter().map(|each| each.kind);
    let tcmalloc = kinds.find(|kind| *kind == AllocatorKind::Tcmalloc);
    if tcmalloc.is_some() && unseen <= memory.shown {
        // tcmalloc rounds each sampled object up to pages, and counts these as live.
        let unseen = unseen.saturating_sub(memory.stacks.saturating_mul(tcmalloc::PAGE));
        let is_notable = unseen >= NOTABLE_TCMALLOC_BYTES.max(memory.live / TCMALLOC_ROUNDING);
        return Vec::from_iter(is_notable.then(|| {
            format!(
                "up to {} MiB of {} MiB live bytes may be missing in it: tcmalloc samples no block that is aligned to \
                 more than 8 KiB, and a thread that ran before only after its next 16 MiB of allocations; \
                 `activate sampler=memprof` samples all blocks and threads",
                unseen >> 20,
                memory.live >> 20
            )
        }));
    }
    if unseen < NOTABLE_UNSEEN_BYTES || unseen <= memory.shown {
        return Vec::new();
    }
    let mib = |bytes: u64| bytes >> 20;
    let early = memory.before.map_or(0, |before| before.min(unseen));
    let late = unseen - early;
    let mut warnings = Vec::new();
    if early >= NOTABLE_UNSEEN_BYTES {
        warnings.push(format!(
            "about {} MiB of {} MiB live bytes are not in it: they were allocated before profiling became active, \
             {START_ACTIVE_HINT}",
            mib(early),
            mib(memory.live)
        ));
    }
    let is_proven = memory.before.is_some();
    if late >= NOTABLE_UNSEEN_BYTES && late > memory.shown {
        let since = match is_proven {
            true => ", though they were allocated since profiling became active",
            false => "",
        };
        let reasons: Vec<_> = memory
            .samplers
            .iter()
            .filter_map(|each| each.missed_allocations_reason())
            .collect();
        let reasons = match reasons.is_empty() {
            true => String::new(),
            false => format!(": {}", reasons.join("; ")),
        };
        warnings.push(format!(
            "about {} MiB of {} MiB live bytes are not in it{since}{reasons}",
            mib(late),
            mib(memory.live)
        ));
    }
    warnings
}

impl BuiltinSampler {
    /// Reason why this sampler misses some allocations, with the remedy. `None` for an allocator without a sampler.
    fn missed_allocations_reason(self) -> Option<&'static str> {
        match (self.kind, self.may_skip_threads) {
            (AllocatorKind::Jemalloc, true) => Some(
                "jemalloc does not sample threads that started while prof_thread_active_init was false; \
                 `activate sampler=memprof` samples all threads",
            ),
            (AllocatorKind::Jemalloc, false) => Some(
                "jemalloc takes a thread's next sample by the interval of its last one, and none in threads whose \
                 thread.prof.active is false; `activate sampler=memprof` samples all threads at once",
            ),
            (AllocatorKind::Tcmalloc, _) => Some(
                "tcmalloc samples a thread only after its next 16 MiB of allocations; dump again later, or start the \
                 program with `memprof run --active --allocator tcmalloc`",
            ),
            (AllocatorKind::Mimalloc | AllocatorKind::Glibc, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explanation_fits_the_figures() {
        let check = |figures: [u64; 2],
                     before: Option<u64>,
                     kind: AllocatorKind,
                     may_skip_threads: bool,
                     expected: &[&str]| {
            let [live, shown] = figures.map(|mib| mib << 20);
            let warnings = unprofiled_warnings(&UnprofiledMemory {
                live,
                shown,
                stacks: 100,
                before: before.map(|mib| mib << 20),
                samplers: vec![BuiltinSampler {
                    kind,
                    may_skip_threads,
                }],
            });
            assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
            for (warning, part) in warnings.iter().zip(expected) {
                assert!(warning.contains(part), "{warning}");
            }
        };
        let jemalloc = AllocatorKind::Jemalloc;
        check([100, 60], Some(100), jemalloc, false, &[]);
        check([10, 0], Some(10), jemalloc, false, &[]);
        let early = "about 90 MiB of 100 MiB live bytes are not in it: they were allocated before";
        check([100, 10], Some(95), jemalloc, false, &[early]);
        // Nothing was live when sampling began.
        let late = "about 143 MiB of 143 MiB live bytes are not in it, though";
        check([143, 0], Some(0), jemalloc, true, &[late]);
        check(
            [143, 0],
            Some(0),
            jemalloc,
            true,
            &["prof_thread_active_init was false"],
        );
        check(
            [143, 0],
            Some(0),
            jemalloc,
            false,
            &["interval of its last one"],
        );
        check(
            [143, 0],
            Some(0),
            AllocatorKind::Tcmalloc,
            false,
            &["16 MiB of allocations"],
        );
        let tcmalloc = AllocatorKind::Tcmalloc;
        let little = "up to 12 MiB of 53 MiB live bytes may be missing in it";
        check([53, 40], Some(0), tcmalloc, false, &[little]);
        check([53, 48], Some(0), tcmalloc, false, &[]);
        check([6, 3], Some(0), tcmalloc, false, &[]);
        check([53, 40], Some(0), jemalloc, false, &[]);
        check(
            [143, 0],
            Some(40),
            jemalloc,
            false,
            &["about 40 MiB", "about 103 MiB"],
        );
        // It is unknown what was live then.
        check(
            [143, 0],
            None,
            jemalloc,
            false,
            &["about 143 MiB of 143 MiB live bytes are not in it: jemalloc"],
        );
    }
}
