//! Files of the sampler with the atomics of [loom](https://docs.rs/loom): each test runs in every order in
//! which its threads may interleave, and with every value that an atomic may return in that order.
#![cfg(test)]

mod atomic {
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };

    /// Orders memory accesses after the preceding exchange, by a fence: loom's exchanges are not fences.
    pub(crate) fn fence_after_exchange() {
        fence(Ordering::SeqCst);
    }
}

#[path = "../../src/address_hash.rs"]
mod address_hash;
#[path = "../../src/live_table/bucket.rs"]
mod bucket;
#[path = "../../src/stack_table/free_segments.rs"]
mod free_segments;
#[path = "../../src/gate.rs"]
mod gate;
#[path = "../../src/stack_table/life.rs"]
mod life;

mod bucket_tests;
mod gate_tests;
mod record_tests;
