//! Findings about one allocator.

use memprof_messages::{AllocatorKind, Finding, Severity};

use super::{AllocatorFacts, Facts, JemallocFacts, malloc_conf, new_finding, unprofilable_finding};
use crate::allocators::tcmalloc;
use crate::allocators::unprofilable::{PROFILING_CONF, Unprofilable};

/// Number of samples of the live heap below which a profile is imprecise.
const MIN_SAMPLES: u64 = 100;
/// log2 of 4 KiB. A sample interval below that noticeably slows the host down.
const FINE_LG_SAMPLE: u64 = 12;

/// Adds findings about an allocator of any kind: functions that its build lacks, memprof's sampler in place of the
/// allocator's, and too small a sample interval. For a jemalloc, [`check_jemalloc`] reports the replaced sampler.
pub(super) fn check_allocator(allocator: &AllocatorFacts, findings: &mut Vec<Finding>) {
    let name = &allocator.name;
    if !allocator.missing.is_empty() {
        findings.push(new_finding(
            "incomplete_allocator",
            Severity::Warning,
            format!("{name} lacks {}", allocator.missing.join(", ")),
            "what needs them is refused; use a whole and newer build of it",
        ));
    }
    // For a jemalloc, `check_jemalloc` reports this.
    if let Some(reason) = &allocator.fallback_reason
        && allocator.kind != AllocatorKind::Jemalloc
    {
        findings.push(new_finding(
            "sampled_by_memprof",
            Severity::Notice,
            format!("{}: memprof's own sampler serves it", reason.message()),
            own_sampler_remedy(reason),
        ));
    }
    // Smallest interval without a warning, and the consequence of a smaller one.
    let (finest, catch) = match allocator.kind {
        AllocatorKind::Tcmalloc => (
            tcmalloc::FINE_INTERVAL,
            "which gives each sampled object a page of its own",
        ),
        _ => (1 << FINE_LG_SAMPLE, "which slows allocations down"),
    };
    if let Some(interval) = allocator
        .sample_interval
        .filter(|interval| *interval < finest)
    {
        findings.push(new_finding(
            "fine_interval",
            Severity::Warning,
            format!("{name} takes one sample for each {interval} bytes, {catch}"),
            "`activate sample_interval=512KiB` samples once for 512 KiB",
        ));
    }
}

/// Remedy for an allocator that only memprof's sampler can sample: the simplest method first.
fn own_sampler_remedy(reason: &Unprofilable) -> String {
    format!(
        "`activate` is all it takes, by memprof's own sampler; for a profile of the allocator's own, {}",
        reason.remedy()
    )
}

/// Adds findings about a jemalloc: why it cannot be profiled, its options, and its statistics. If it was started with
/// profiling, also adds those about known faults of its version, its built-in dumps, unsampled threads, and the
/// expected number of samples.
pub(super) fn check_jemalloc(jemalloc: &JemallocFacts, facts: &Facts, findings: &mut Vec<Finding>) {
    use Severity::Warning;
    let version = &jemalloc.version;
    // Skipped if the finding about the whole process already gives this reason.
    if let Some(reason) = jemalloc.unprofilable.as_ref()
        && facts.unavailable.as_ref() != Some(reason)
    {
        let mut finding = unprofilable_finding(reason, Warning);
        let mut fallbacks = facts.allocators.iter().map(|each| &each.fallback_reason);
        if fallbacks.any(|fallback| fallback.as_ref() == Some(reason)) {
            finding.remedy = own_sampler_remedy(reason);
        }
        findings.push(finding);
    }
    check_conf_options(jemalloc, findings);
    if let Some(symbol) = &jemalloc.hidden_conf_symbol {
        findings.push(new_finding(
            "hidden_malloc_conf",
            Warning,
            format!(
                "the program has a variable {symbol}, but does not export it: jemalloc {version}, \
                 which lies in a shared library, does not see it"
            ),
            format!("link the program with -Wl,--export-dynamic-symbol={symbol}"),
        ));
    }
    if !jemalloc.config_stats {
        findings.push(new_finding(
            "no_statistics",
            Warning,
            format!("jemalloc {version} was built without statistics: its figures stay 0"),
            "rebuild it with --enable-stats (Rust: feature \"stats\" of tikv-jemallocator)",
        ));
    }
    if let Some((_, swallowed)) = jemalloc.prefix.split_once(':') {
        findings.push(new_finding(
            "swallowed_option",
            Warning,
            format!(
                "prof_prefix is {:?}: it swallowed {swallowed:?}",
                jemalloc.prefix
            ),
            "separate options by commas: prof_prefix:PATH,OPTION:VALUE",
        ));
    }
    if !jemalloc.opt_prof {
        return;
    }
    if version.starts_with("5.2.") {
        findings.push(new_finding(
            "no_reactivation",
            Warning,
            format!("jemalloc {version} may never sample again once it was deactivated"),
            "use jemalloc 5.3, or leave it active",
        ));
    }
    if jemalloc.has_builtin_dumps && jemalloc.is_prefix_dir_world_writable {
        findings.push(new_finding(
            "shared_dumps",
            Warning,
            format!(
                "jemalloc dumps by itself to {:?}, where others may put files and links",
                jemalloc.prefix
            ),
            "leave prof_final, prof_gdump and lg_prof_interval out, or set prof_prefix to a \
             directory of this user's own",
        ));
    }
    if jemalloc.has_builtin_gdump {
        findings.push(new_finding(
            "builtin_gdump",
            Warning,
            format!(
                "jemalloc {version} writes a dump by itself at each new maximum of its memory (prof_gdump:true), \
                 inside of an allocation and under its locks: hundreds of files a second while the program grows"
            ),
            "`gdump state=off` turns it off; `gdump state=on files=10` takes a limited number of memprof's own dumps \
             instead",
        ));
    }
    if jemalloc.may_skip_threads {
        findings.push(new_finding(
            "threads_left_out",
            Warning,
            format!(
                "jemalloc {version} does not sample threads that started while prof_thread_active_init was false, and \
                 no other thread can switch that on for them"
            ),
            "`activate sampler=memprof` samples all threads, and is what `activate` takes here where it can; for \
             jemalloc's own profiler, start the program with prof_thread_active_init:true",
        ));
    }
    check_sample_count(jemalloc, findings);
}

/// Adds findings about options that jemalloc ignores: malformed ones, those of the environment that the program
/// overrides, and those in a file whose path should be a symbolic link.
fn check_conf_options(jemalloc: &JemallocFacts, findings: &mut Vec<Finding>) {
    let version = &jemalloc.version;
    for source in &jemalloc.sources {
        for fault in malloc_conf::ignored_options(source) {
            findings.push(new_finding(
                "ignored_option",
                Severity::Warning,
                format!("jemalloc {version} ignores in {} {fault}", source.name),
                format!("separate options by commas, without blanks: {PROFILING_CONF}"),
            ));
        }
    }
    // Users expect options of the environment to take effect, so tell them if the program overrides one.
    if let Some((harder, before)) = jemalloc.sources.split_last()
        && harder.name.ends_with("_2_conf_harder")
        && let Some(environment) = before.last().filter(|each| each.is_environment())
    {
        let overridden = malloc_conf::overridden_options(environment, harder);
        findings.extend(overridden.into_iter().map(|fault| {
            new_finding(
                "ignored_option",
                Severity::Warning,
                format!("jemalloc {version} ignores in {} {fault}", environment.name),
                format!("change {}, or leave it out", harder.name),
            )
        }));
    }
    if let Some(path) = &jemalloc.misplaced_conf_file {
        findings.push(new_finding(
            "no_link",
            Severity::Warning,
            format!("{path} is not a symbolic link, so jemalloc {version} reads nothing of it"),
            format!("the options are the name that it links to: ln -s {PROFILING_CONF} {path}"),
        ));
    }
}

/// Adds a finding if fewer than [`MIN_SAMPLES`] samples of the live heap are expected, and the sample interval is
/// longer than 4 KiB. Does nothing if the interval or the size of the live heap is unknown.
fn check_sample_count(jemalloc: &JemallocFacts, findings: &mut Vec<Finding>) {
    use Severity::Warning;
    let Some(lg_sample) = jemalloc.lg_sample else {
        return;
    };
    let interval = 1u64.checked_shl(lg_sample as u32).unwrap_or(u64::MAX);
    if let Some(allocated) = jemalloc.allocated
        && allocated / interval < MIN_SAMPLES
        && lg_sample > FINE_LG_SAMPLE
    {
        let samples = allocated / interval;
        findings.push(new_finding(
            "coarse_interval",
            Warning,
            format!("one sample for each {interval} bytes gives about {samples} samples of {allocated} live bytes"),
            "`reset sample_interval=16KiB` samples more often; it drops the samples so far",
        ));
    }
}
