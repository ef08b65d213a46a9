//! memprof's own sampler before the allocator that serves `malloc`: for one that has no profiler, or
//! was started without it, or where it is asked for.

mod backend;
mod choice;
#[cfg(target_arch = "x86_64")]
mod chosen;
#[cfg(target_arch = "x86_64")]
mod fork;
#[cfg(target_arch = "x86_64")]
mod hooked;
#[cfg(target_arch = "x86_64")]
mod installed;
#[cfg_attr(target_arch = "x86_64", path = "sampler/ours.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "sampler/unsupported.rs")]
mod ours;
#[cfg(target_arch = "x86_64")]
mod pinned;
#[cfg(target_arch = "x86_64")]
mod profile;
#[cfg(target_arch = "x86_64")]
mod slabs;

pub(crate) use backend::Backend;
pub(crate) use choice::SamplerSelection;
pub use ours::sample_from_start;
pub(crate) use ours::{leave_this_thread_out, stop_sampling_in_children};
