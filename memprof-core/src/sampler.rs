//! memprof's own sampler, which intercepts the calls to the allocator of `malloc`. Used for an allocator without a
//! profiler, for one that was started without its profiler, or on request.

#[cfg(target_arch = "x86_64")]
mod allocated_bytes;
mod backend;
#[cfg(target_arch = "x86_64")]
mod checked_memory;
#[cfg(target_arch = "x86_64")]
mod early_ends;
#[cfg(target_arch = "x86_64")]
mod entries_beside_malloc;
#[cfg(target_arch = "x86_64")]
mod fork;
#[cfg(target_arch = "x86_64")]
mod interception;
mod interception_error;
#[cfg(target_arch = "x86_64")]
mod jemalloc_hooks;
#[cfg_attr(target_arch = "x86_64", path = "sampler/languages.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "sampler/no_languages.rs")]
pub(crate) mod languages;
#[cfg(target_arch = "x86_64")]
mod loaded_libraries;
#[cfg(target_arch = "x86_64")]
mod object_types;
#[cfg_attr(target_arch = "x86_64", path = "sampler/own_sampler.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "sampler/unsupported.rs")]
mod own_sampler;
#[cfg(target_arch = "x86_64")]
mod pinned;
#[cfg(target_arch = "x86_64")]
mod profile;
#[cfg(target_arch = "x86_64")]
mod python_objects;
#[cfg(target_arch = "x86_64")]
mod sampled_allocator;
#[cfg(target_arch = "x86_64")]
mod selected_sampler;
mod selection;
#[cfg(target_arch = "x86_64")]
mod slabs;
#[cfg(target_arch = "x86_64")]
mod unseen_calls;

pub(crate) use backend::Backend;
pub use own_sampler::{StartScope, sample_from_start};
pub(crate) use own_sampler::{
    exclude_this_thread, patched_allocators_beside_malloc, stop_sampling_in_children,
    touch_hooked_jemalloc,
};
pub(crate) use selection::SamplerSelection;
