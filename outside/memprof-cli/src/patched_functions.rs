//! Patches the functions of an allocator when the plugin is attached, if it is linked statically into the program or the
//! user wants it, and restores them when it is detached.

use std::time::Duration;

use memprof_attach::{
    AttachError, MallocOwner, PatchReport, patch_entry_points, patch_other_allocators,
    require_allocator_symbols, restore_entry_points,
};
use memprof_messages::{AllocatorStatus, InterceptionKind, ProfilerStatus, SamplerChoice};
use serde_json::{Value, json};

use crate::doctor::{stripped_allocator_remedy, stripped_allocator_text};
use crate::program_kind::stripped_allocator;
use crate::quantities::milliseconds;
use crate::refusal_error::refusal_error;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PatchOptions {
    pub(crate) sampler: SamplerChoice,
    /// Whether the functions of a library are patched too.
    pub(crate) entries: bool,
    /// Longest time for which all threads may be stopped.
    pub(crate) max_pause: Duration,
}

/// Result of patching functions. Empty if the plugin needs none.
#[derive(Debug, Default)]
pub(crate) struct PatchOutcome {
    /// A report for each file.
    reports: Vec<PatchReport>,
    /// Reasons why calls of the program cannot be sampled.
    errors: Vec<anyhow::Error>,
}

/// Patches functions of the allocators in a process, so that memprof sees their calls.
///
/// The program's own `malloc` is patched if by `status` nothing else intercepts it, or if memprof is to sample instead
/// of the allocator's sampler. With `entries`, `malloc` is patched whatever file it is in. Functions of allocators with
/// other names are patched too, unless one of these allocators samples itself, or the allocators' samplers are to be
/// used.
///
/// The outcome also has the errors, such as an allocator without symbols.
pub(crate) fn patch_malloc(
    pid: u32,
    status: &ProfilerStatus,
    options: PatchOptions,
) -> PatchOutcome {
    let mut outcome = PatchOutcome::default();
    let needs_patch = |allocator: &AllocatorStatus| {
        allocator.owns_malloc && !is_sampled_without_patches(allocator, options.sampler)
    };
    let patched = if options.entries {
        patch_entry_points(pid, MallocOwner::First, options.max_pause)
    } else if status.allocators.iter().any(needs_patch) {
        patch_entry_points(pid, MallocOwner::Program, options.max_pause)
    } else if status.unknown_malloc.is_some() {
        // It may be an allocator that memprof knows by its symbols.
        require_allocator_symbols(pid).map(|()| None)
    } else {
        Ok(None)
    };
    outcome.add_result(pid, patched);
    let samples_itself = |allocator: &AllocatorStatus| {
        !allocator.owns_malloc && is_sampled_without_patches(allocator, options.sampler)
    };
    if options.sampler != SamplerChoice::Allocator && !status.allocators.iter().any(samples_itself)
    {
        match patch_other_allocators(pid, options.max_pause) {
            Ok(files) => files
                .into_iter()
                .for_each(|file| outcome.add_result(pid, file.map(Some))),
            Err(error) => outcome.add_result(pid, Err(error)),
        }
        outcome.errors.extend(stripped_allocator_error(pid));
    }
    outcome
}

/// Returns the error that the program contains an allocator whose functions have no symbols. `None` if it contains
/// none, or if that is jemalloc, which the plugin itself reports.
fn stripped_allocator_error(pid: u32) -> Option<anyhow::Error> {
    let name = stripped_allocator(pid).filter(|name| *name != "jemalloc")?;
    let (text, remedy) = (
        stripped_allocator_text(name),
        stripped_allocator_remedy(pid, name),
    );
    Some(anyhow::anyhow!("{text}; {remedy}"))
}

/// Returns whether an allocator is sampled without patches: by its own sampler, if `sampler` allows that, or by memprof
/// through the slots of the GOT. If memprof samples it through patches already, they may be incomplete, so the result
/// is false.
fn is_sampled_without_patches(allocator: &AllocatorStatus, sampler: SamplerChoice) -> bool {
    match &allocator.sampled {
        None => allocator.sampler.is_some() && sampler != SamplerChoice::Memprof,
        Some(sampled) => sampled.interception == InterceptionKind::Slots,
    }
}

/// Restores the first instructions of all patched functions in a process. Returns whether there were any.
///
/// # Errors
/// The functions cannot be restored; the error has the reason and the remedy.
pub(crate) fn restore_functions(pid: u32) -> anyhow::Result<bool> {
    let restored = restore_entry_points(pid).map_err(|error| refusal_error(pid, &error))?;
    Ok(restored.is_some())
}

impl PatchOutcome {
    /// Adds the report or the error of one attempt. Does nothing for `None`: no patch was needed.
    fn add_result(&mut self, pid: u32, patched: Result<Option<PatchReport>, AttachError>) {
        match patched {
            Ok(report) => self.reports.extend(report),
            Err(error) => self.errors.push(refusal_error(pid, &error)),
        }
    }

    /// Returns whether any function was patched, even if others could not be.
    pub(crate) fn is_patched(&self) -> bool {
        !self.reports.is_empty()
    }

    /// Returns the reasons why calls of the program cannot be sampled, as notes.
    pub(crate) fn notes(&self) -> impl Iterator<Item = String> {
        let skipped = self.reports.iter().flat_map(|report| &report.skipped);
        let skipped = skipped.map(|reason| format!("not sampled: {reason}"));
        let errors = self.errors.iter().map(|error| format!("{error:#}"));
        errors.chain(skipped)
    }

    /// Returns the lines of text to append to other output, each with a newline before it; empty if no patch is needed.
    pub(crate) fn lines(&self, pid: u32) -> String {
        let reports = self.reports.iter().map(|report| {
            let (function, functions) = (&report.function, report.functions);
            let owner = match &report.library {
                None => {
                    format!("its {function} is linked into the program: jumps at {functions} functions")
                }
                Some(library) => format!("jumps at {functions} functions of {library}"),
            };
            format!(
                "\n{owner} lead to memprof, written while all threads stood still for {:.1} ms; `memprof detach \
                 {pid}` takes them away",
                milliseconds(report.stop)
            )
        });
        let notes = self.notes().map(|note| format!("\nnote: {note}"));
        reports.chain(notes).collect()
    }

    /// Returns the field `entries` of the JSON output: an object about all patches or, without any, the first error. It
    /// is null if no patch is needed.
    pub(crate) fn json(&self) -> Value {
        let reports = &self.reports;
        match (reports.first(), self.errors.first()) {
            (None, None) => Value::Null,
            (None, Some(error)) => json!({ "error": format!("{error:#}") }),
            (Some(first), _) => json!({
                "library": first.library,
                "functions": reports.iter().map(|report| report.functions).sum::<usize>(),
                "stopped_ms": milliseconds(reports.iter().map(|report| report.stop).sum()),
                "left_out": self.notes().collect::<Vec<_>>(),
            }),
        }
    }
}
