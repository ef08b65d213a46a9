//! The sampler's own files, with atomics of [loom](https://docs.rs/loom) in place of the processor's: each test runs in
//! every order in which its threads may meet, and with every value that an atomic may give in that order.
#![cfg(test)]

mod atomic {
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };

    /// Loom's exchanges are no fences.
    pub(crate) fn fence_after_exchange() {
        fence(Ordering::SeqCst);
    }
}

#[path = "../../src/address_hash.rs"]
mod address_hash;
#[path = "../../src/live_table/bucket.rs"]
mod bucket;
#[path = "../../src/stack_table/free.rs"]
mod free;
#[path = "../../src/gate.rs"]
mod gate;
#[path = "../../src/stack_table/life.rs"]
mod life;

mod of_bucket;
mod of_gate;
mod of_records;
