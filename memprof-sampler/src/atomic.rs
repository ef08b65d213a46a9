//! The atomics of what `loom/` tries in every order in which threads may meet; it has others in their place.

pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
