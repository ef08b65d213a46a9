//! memprof's own sampler before the allocator that serves `malloc`: for one that has no profiler, or
//! was started without it, or where it is asked for.

mod choice;
#[cfg(target_arch = "x86_64")]
mod chosen;
mod driven;
#[cfg(target_arch = "x86_64")]
mod forked;
#[cfg(target_arch = "x86_64")]
mod hooked;
#[cfg(target_arch = "x86_64")]
mod installed;
#[cfg_attr(target_arch = "x86_64", path = "sampler/ours.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "sampler/elsewhere.rs")]
mod ours;
#[cfg(target_arch = "x86_64")]
mod pinned;
#[cfg(target_arch = "x86_64")]
mod profile;
#[cfg(target_arch = "x86_64")]
mod slabs;

pub(crate) use choice::Samples;
pub(crate) use driven::Driven;
pub use ours::sample_at_once;
pub(crate) use ours::{end_in_children, leave_this_thread_out};
