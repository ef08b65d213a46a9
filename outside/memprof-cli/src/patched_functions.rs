//! The functions of an allocator that is linked into the program, led to memprof's sampler when the plugin comes and
//! given back when it goes.

use std::time::Duration;

use memprof_attach::{PatchReport, patch_entry_points, require_symbols, restore_entry_points};
use memprof_messages::{AllocatorStatus, InterceptionKind, ProfilerStatus, SamplerChoice};
use serde_json::{Value, json};

use crate::refusal_error::refused;

/// Whether the functions lead to the sampler now.
pub(crate) enum PatchOutcome {
    /// The plugin needs none of it.
    NotNeeded,
    Patched(PatchReport),
    /// Why the program's own calls cannot be sampled.
    Failed(anyhow::Error),
}

/// Leads the program's own `malloc` to memprof where `status` says that nothing else does, or memprof is to sample in
/// place of its own sampler, unless its threads would stand still for longer than `most`.
pub(crate) fn patch_malloc(
    pid: u32,
    status: &ProfilerStatus,
    sampler: SamplerChoice,
    most: Duration,
) -> PatchOutcome {
    let needs_it =
        |allocator: &AllocatorStatus| allocator.owns_malloc && !has_way(allocator, sampler);
    let led = if status.allocators.iter().any(needs_it) {
        patch_entry_points(pid, most)
    } else if status.unknown_malloc.is_some() {
        // It may be one that memprof knows by its symbols.
        require_symbols(pid).map(|()| None)
    } else {
        return PatchOutcome::NotNeeded;
    };
    match led {
        Ok(Some(led)) => PatchOutcome::Patched(led),
        Ok(None) => PatchOutcome::NotNeeded,
        Err(error) => PatchOutcome::Failed(refused(pid, &error)),
    }
}

/// It samples by itself, or slots lead to memprof. Jumps that lead there may not be complete.
fn has_way(allocator: &AllocatorStatus, sampler: SamplerChoice) -> bool {
    match &allocator.sampled {
        None => allocator.sampler.is_some() && sampler != SamplerChoice::Memprof,
        Some(sampled) => sampled.interception == InterceptionKind::Slots,
    }
}

/// Gives the program its first instructions back. Whether any were away.
///
/// # Errors
/// Why they still are.
pub(crate) fn restore(pid: u32) -> anyhow::Result<bool> {
    let restored = restore_entry_points(pid).map_err(|error| refused(pid, &error))?;
    Ok(restored.is_some())
}

impl PatchOutcome {
    /// For people: lines to be told behind others.
    pub(crate) fn lines(&self, pid: u32) -> String {
        match self {
            Self::NotNeeded => String::new(),
            Self::Failed(why) => format!("\nnote: {why:#}"),
            Self::Patched(led) => {
                let left_out: Vec<_> = led
                    .skipped
                    .iter()
                    .map(|why| format!("\nnote: not sampled: {why}"))
                    .collect();
                format!(
                    "\nits malloc is linked into the program: jumps at {} functions lead to memprof, written while all \
                     threads stood still for {:.1} ms; `memprof detach {pid}` takes them away{}",
                    led.functions,
                    milliseconds(led),
                    left_out.concat()
                )
            }
        }
    }

    /// For scripts.
    pub(crate) fn json(&self) -> Value {
        match self {
            Self::NotNeeded => Value::Null,
            Self::Failed(why) => json!({ "error": format!("{why:#}") }),
            Self::Patched(led) => json!({
                "functions": led.functions,
                "stopped_ms": milliseconds(led),
                "left_out": led.skipped,
            }),
        }
    }
}

fn milliseconds(led: &PatchReport) -> f64 {
    led.stop.as_micros() as f64 / 1000.0
}
