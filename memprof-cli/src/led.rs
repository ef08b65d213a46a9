//! The functions of an allocator that is linked into the program, led to memprof's sampler when the plugin comes and
//! given back when it goes.

use std::time::Duration;

use memprof_attach::{Led, lead_entries, require_symbols, restore_entries};
use memprof_messages::{AllocatorStatus, SamplerChoice, Status, Through};
use serde_json::{Value, json};

use crate::refused::refused;

/// Whether the functions lead to the sampler now.
pub(crate) enum Entries {
    /// The plugin needs none of it.
    NotNeeded,
    Led(Led),
    /// Why the program's own calls cannot be sampled.
    Not(anyhow::Error),
}

/// Leads the program's own `malloc` to memprof where `status` says that nothing else does, or memprof is to sample in
/// place of its own sampler, unless its threads would stand still for longer than `most`.
pub(crate) fn lead(pid: u32, status: &Status, sampler: SamplerChoice, most: Duration) -> Entries {
    let needs_it =
        |allocator: &AllocatorStatus| allocator.owns_malloc && !has_way(allocator, sampler);
    let led = if status.allocators.iter().any(needs_it) {
        lead_entries(pid, most)
    } else if status.unknown_malloc.is_some() {
        // It may be one that memprof knows by its symbols.
        require_symbols(pid).map(|()| None)
    } else {
        return Entries::NotNeeded;
    };
    match led {
        Ok(Some(led)) => Entries::Led(led),
        Ok(None) => Entries::NotNeeded,
        Err(error) => Entries::Not(refused(pid, &error)),
    }
}

/// It samples by itself, or slots lead to memprof. Jumps that lead there may not be complete.
fn has_way(allocator: &AllocatorStatus, sampler: SamplerChoice) -> bool {
    match &allocator.sampled {
        None => allocator.sampler.is_some() && sampler != SamplerChoice::Ours,
        Some(sampled) => sampled.through == Through::Slots,
    }
}

/// Gives the program its first instructions back. Whether any were away.
///
/// # Errors
/// Why they still are.
pub(crate) fn restore(pid: u32) -> anyhow::Result<bool> {
    let restored = restore_entries(pid).map_err(|error| refused(pid, &error))?;
    Ok(restored.is_some())
}

impl Entries {
    /// For people: lines to be told behind others.
    pub(crate) fn lines(&self, pid: u32) -> String {
        match self {
            Self::NotNeeded => String::new(),
            Self::Not(why) => format!("\nnote: {why:#}"),
            Self::Led(led) => {
                let left_out: Vec<_> = led
                    .left_out
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
            Self::Not(why) => json!({ "error": format!("{why:#}") }),
            Self::Led(led) => json!({
                "functions": led.functions,
                "stopped_ms": milliseconds(led),
                "left_out": led.left_out,
            }),
        }
    }
}

fn milliseconds(led: &Led) -> f64 {
    led.stop.as_micros() as f64 / 1000.0
}
