//! Findings about the process as a whole.

use std::path::{Path, PathBuf};

use super::{Facts, new_finding, unprofilable_finding};
use crate::allocators::loaded_objects::EXECUTABLE;
use crate::allocators::unprofilable::Unprofilable;
use memprof_messages::{AllocatorKind, Finding, Severity};

/// Adds findings about the process: why it cannot be profiled, several or unknown allocators, unread variables, seccomp
/// filters, and unwinders.
pub(super) fn check_process(facts: &Facts, findings: &mut Vec<Finding>) {
    use Severity::{Error, Warning};
    if let Some(reason) = &facts.unavailable {
        findings.push(unprofilable_finding(reason, Error));
    } else if let Some(path) = &facts.stripped_jemalloc {
        // Other allocators can be profiled, but their profiles miss the program's own allocations.
        findings.push(unprofilable_finding(
            &Unprofilable::StrippedJemalloc(path.clone()),
            Warning,
        ));
    }
    check_environment_variables(facts, findings);
    // Every glibc process also has glibc's malloc, so it does not count.
    let serving = facts
        .allocators
        .iter()
        .filter(|each| each.kind != AllocatorKind::Glibc);
    let serving: Vec<&str> = serving.map(|each| each.name.as_str()).collect();
    if serving.len() > 1 {
        findings.push(new_finding(
            "several_allocators",
            Warning,
            format!(
                "{} allocators serve this process ({}); a profile of one shows nothing of the others",
                serving.len(),
                serving.join(", ")
            ),
            "`dump` writes one file for each that memprof can profile; `status` shows which one serves malloc; \
             allocator=NAME selects another",
        ));
    }
    // A stripped jemalloc that is also the process's malloc was reported above.
    let was_reported =
        |path: &PathBuf| facts.stripped_jemalloc.is_some() && path == Path::new(EXECUTABLE);
    if let Some(path) = facts
        .unknown_malloc
        .as_ref()
        .filter(|path| !was_reported(path))
    {
        let unknown = Unprofilable::UnknownMalloc(path.clone());
        if facts.unavailable.as_ref() != Some(&unknown) {
            findings.push(unprofilable_finding(&unknown, Warning));
        }
    }
    if facts.jemallocs.iter().any(|jemalloc| jemalloc.opt_prof) {
        findings.extend(unwinder_finding(facts));
    }
    if facts.has_seccomp_filter {
        findings.push(new_finding(
            "seccomp_filter",
            Warning,
            "a seccomp filter limits the system calls of this process; memprof tried those that it needs in a \
             forked process, and all are allowed",
            "nothing to do, unless the filter changes: a filter that kills for a call which threads need ends the \
             process when memprof starts its next thread",
        ));
    }
    for walk in &facts.walker_disagreements {
        findings.push(new_finding(
            "unwinder_given_up",
            Warning,
            format!("memprof's own stack walk was given up, the allocator walks since: {walk}"),
            "nothing is lost but speed; unwinder=allocator (in [plugin.config], or with \
             `activate`) does not try again",
        ));
    }
}

/// Adds findings about environment variables that configure a build of jemalloc other than the process's. Adds none if
/// the variable of some jemalloc in the process is unknown, because it may be any of them. Skips a variable that the
/// finding about profiling already names.
fn check_environment_variables(facts: &Facts, findings: &mut Vec<Finding>) {
    let read: Option<Vec<&str>> = facts
        .jemallocs
        .iter()
        .map(|jemalloc| jemalloc.conf_variable.as_deref())
        .collect();
    // A jemalloc whose variable is unknown may read any of them.
    let Some(read) = read.filter(|_| facts.stripped_jemalloc.is_none()) else {
        return;
    };
    // If a variable would enable profiling, the finding that profiling is off already names it.
    let is_unprofilable = facts.jemallocs.iter().any(|jemalloc| !jemalloc.opt_prof);
    for (name, value) in &facts.environment {
        if read.contains(&name.as_str()) || is_unprofilable && value.contains("prof:true") {
            continue;
        }
        findings.push(new_finding(
            "unread_variable",
            Severity::Warning,
            format!("{name} is set, but no jemalloc of this process reads it"),
            match read.first() {
                Some(read) => format!("set {read} instead"),
                None => "no jemalloc was found: start the program with `memprof run --allocator jemalloc`"
                    .to_owned(),
            },
        ));
    }
}

/// Returns a finding about an unwinder that may lock or run foreign code during a sample: the C library is musl, lacks
/// `_dl_find_object`, or has an interposed `dl_iterate_phdr`. Only the first of them is reported. `None` if none
/// applies.
fn unwinder_finding(facts: &Facts) -> Option<Finding> {
    use Severity::Warning;
    if facts.is_musl {
        return Some(new_finding(
            "musl",
            Warning,
            "the C library is musl: a sample that is taken during dlopen may deadlock or crash",
            "run the program with glibc (a Debian image instead of Alpine), or activate only \
             after it has loaded everything",
        ));
    }
    if !facts.lock_free_unwinding {
        return Some(new_finding(
            "exposed_unwinder",
            Warning,
            "this C library has no _dl_find_object (glibc 2.35): a sample that is taken during \
             dlopen takes the loader's lock",
            "activate when no library is being loaded, or use a newer glibc",
        ));
    }
    let interposer = facts.interposer.as_ref()?;
    Some(new_finding(
        "interposed_unwinder",
        Warning,
        format!(
            "{interposer} replaces the C library's dl_iterate_phdr: an unwinder that calls it runs that code in \
             each sample, inside of malloc"
        ),
        "that code must neither allocate nor lock; try `activate` on a test instance first",
    ))
}
