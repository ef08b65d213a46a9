//! Static probes in `SystemTap`'s format (`.note.stapsdt`), which pass the samples to tracers outside the process, for
//! example to eBPF programs. The probes follow OpenTelemetry's contract for heap profiles: `otel_memory:alloc(ptr,
//! size, weighted bytes)` and `otel_memory:free(ptr)`. A tracer increments a probe's semaphore while it listens.
#![expect(
    unsafe_code,
    reason = "probes are instructions, and their semaphores have a section"
)]

use core::arch::asm;
use core::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// Number of tracers that listen to the probe `alloc`.
#[unsafe(link_section = ".probes")]
static ALLOC_SEMAPHORE: AtomicU16 = AtomicU16::new(0);
/// Number of tracers that listen to the probe `free`.
#[unsafe(link_section = ".probes")]
static FREE_SEMAPHORE: AtomicU16 = AtomicU16::new(0);

/// Defines a probe: its name, its semaphore, and the registers that hold its arguments (`$locations` in the note).
macro_rules! probe {
    ($name:literal, $semaphore:ident, $locations:literal, $($register:tt = $value:expr),*) => {
        // SAFETY: a `nop`; the other lines only describe it in a note.
        unsafe {
            asm!(
                "990: nop",
                ".pushsection .note.stapsdt, \"\", \"note\"",
                ".balign 4",
                ".4byte 992f-991f, 994f-993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b",
                ".8byte _.stapsdt.base",
                ".8byte {semaphore}",
                ".asciz \"otel_memory\"",
                concat!(".asciz \"", $name, "\""),
                concat!(".asciz \"", $locations, "\""),
                "994: .balign 4",
                ".popsection",
                ".ifndef _.stapsdt.base",
                // Retained (R), although no code refers to it: tracers read it.
                ".pushsection .stapsdt.base, \"aGR\", \"progbits\", .stapsdt.base, comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base, 1",
                ".popsection",
                ".endif",
                semaphore = sym $semaphore,
                $(in($register) $value,)*
                options(readonly, nostack, preserves_flags),
            );
        }
    };
}

/// Fires the probe of a sampled allocation, if a tracer listens. The probe's arguments are the block's address, its
/// size, and the number of bytes that the sample represents at the mean sample distance `interval`, in bytes.
pub(crate) fn fire_allocation_probe(block: usize, size: u64, interval: u64) {
    if ALLOC_SEMAPHORE.load(Relaxed) != 0 {
        let weight = represented_bytes(size, interval);
        probe!(
            "alloc",
            ALLOC_SEMAPHORE,
            "8@%rdi 8@%rsi 8@%rdx",
            "rdi" = block,
            "rsi" = size,
            "rdx" = weight
        );
    }
}

/// Fires the probe of a sampled block that is about to be freed, if a tracer listens.
pub(crate) fn fire_free_probe(block: usize) {
    if FREE_SEMAPHORE.load(Relaxed) != 0 {
        probe!("free", FREE_SEMAPHORE, "8@%rdi", "rdi" = block);
    }
}

/// Returns the number of bytes that a sample represents: its size divided by the probability that a block of that size
/// is sampled, with a mean of `interval` bytes between samples. Returns `size` if either argument is 0.
fn represented_bytes(size: u64, interval: u64) -> u64 {
    if size == 0 || interval == 0 {
        return size;
    }
    // 1 - exp(-size / interval).
    let chance = -libm::expm1(-(size as f64) / interval as f64);
    (size as f64 / chance) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weighted_size_is_divided_by_sampling_probability() {
        assert_eq!(represented_bytes(0, 4096), 0);
        assert_eq!(represented_bytes(1, 4096), 4096);
        assert_eq!(represented_bytes(4096, 4096), 6479);
        assert_eq!(represented_bytes(1 << 30, 4096), 1 << 30);
    }

    #[test]
    fn probes_fired_without_tracer_do_nothing() {
        ALLOC_SEMAPHORE.store(1, Relaxed);
        FREE_SEMAPHORE.store(1, Relaxed);
        fire_allocation_probe(1, 2, 3);
        fire_free_probe(1);
        ALLOC_SEMAPHORE.store(0, Relaxed);
        FREE_SEMAPHORE.store(0, Relaxed);
    }
}
