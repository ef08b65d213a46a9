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

#[path = "../../src/live/bucket.rs"]
mod bucket;
#[path = "../../src/records/free.rs"]
mod free;
#[path = "../../src/gate.rs"]
mod gate;
#[path = "../../src/hash.rs"]
mod hash;
#[path = "../../src/records/life.rs"]
mod life;

mod of_bucket;
mod of_gate;
mod of_records;
