//! Patches the functions of an allocator when the plugin is attached, if it is linked statically into the program or the
//! user wants it, and restores them when it is detached.

use std::time::Duration;

use memprof_attach::{
    MallocOwner, PatchReport, patch_entry_points, require_symbols, restore_entry_points,
};
use memprof_messages::{AllocatorStatus, InterceptionKind, ProfilerStatus, SamplerChoice};
use serde_json::{Value, json};

use crate::refusal_error::refusal_error;

/// Options of patching.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PatchOptions {
    pub(crate) sampler: SamplerChoice,
    /// Whether the functions of a library are patched too.
    pub(crate) entries: bool,
    /// Longest time for which all threads may be stopped.
    pub(crate) max_pause: Duration,
}

/// Result of patching functions.
pub(crate) enum PatchOutcome {
    /// The plugin does not need it.
    NotNeeded,
    Patched(PatchReport),
    /// The reason why the program's own calls cannot be sampled.
    Failed(anyhow::Error),
}

/// Patches the program's own `malloc` if `status` says that nothing else intercepts it, or if memprof is to sample
/// instead of the allocator's sampler; with `entries`, that of any owner.
pub(crate) fn patch_malloc(
    pid: u32,
    status: &ProfilerStatus,
    options: PatchOptions,
) -> PatchOutcome {
    let needs_patch = |allocator: &AllocatorStatus| {
        allocator.owns_malloc && !is_sampled_without_patches(allocator, options.sampler)
    };
    let patched = if options.entries {
        patch_entry_points(pid, MallocOwner::First, options.max_pause)
    } else if status.allocators.iter().any(needs_patch) {
        patch_entry_points(pid, MallocOwner::Program, options.max_pause)
    } else if status.unknown_malloc.is_some() {
        // It may be an allocator that memprof knows by its symbols.
        require_symbols(pid).map(|()| None)
    } else {
        return PatchOutcome::NotNeeded;
    };
    match patched {
        Ok(Some(report)) => PatchOutcome::Patched(report),
        Ok(None) => PatchOutcome::NotNeeded,
        Err(error) => PatchOutcome::Failed(refusal_error(pid, &error)),
    }
}

/// Whether the allocator samples with its own sampler, or GOT slots call memprof's. Entry patches may be incomplete.
fn is_sampled_without_patches(allocator: &AllocatorStatus, sampler: SamplerChoice) -> bool {
    match &allocator.sampled {
        None => allocator.sampler.is_some() && sampler != SamplerChoice::Memprof,
        Some(sampled) => sampled.interception == InterceptionKind::Slots,
    }
}

/// Restores the program's first instructions. Returns whether any was patched.
///
/// # Errors
/// The functions cannot be restored, with the reason.
pub(crate) fn restore_functions(pid: u32) -> anyhow::Result<bool> {
    let restored = restore_entry_points(pid).map_err(|error| refusal_error(pid, &error))?;
    Ok(restored.is_some())
}

impl PatchOutcome {
    /// Lines of text to append to other output, each with a newline before it; empty if no patch is needed.
    pub(crate) fn lines(&self, pid: u32) -> String {
        match self {
            Self::NotNeeded => String::new(),
            Self::Failed(error) => format!("\nnote: {error:#}"),
            Self::Patched(report) => {
                let skipped: Vec<_> = report
                    .skipped
                    .iter()
                    .map(|reason| format!("\nnote: not sampled: {reason}"))
                    .collect();
                let owner = match &report.library {
                    None => format!(
                        "its malloc is linked into the program: jumps at {} functions",
                        report.functions
                    ),
                    Some(library) => {
                        format!("jumps at {} functions of {library}", report.functions)
                    }
                };
                format!(
                    "\n{owner} lead to memprof, written while all threads stood still for {:.1} ms; `memprof detach \
                     {pid}` takes them away{}",
                    stop_milliseconds(report),
                    skipped.concat()
                )
            }
        }
    }

    /// JSON object for scripts; null if no patch is needed.
    pub(crate) fn json(&self) -> Value {
        match self {
            Self::NotNeeded => Value::Null,
            Self::Failed(error) => json!({ "error": format!("{error:#}") }),
            Self::Patched(report) => json!({
                "library": report.library,
                "functions": report.functions,
                "stopped_ms": stop_milliseconds(report),
                "left_out": report.skipped,
            }),
        }
    }
}

/// Duration of the stop of all threads, in milliseconds.
fn stop_milliseconds(report: &PatchReport) -> f64 {
    report.stop.as_micros() as f64 / 1000.0
}
