//! What the kernel tells of this process and lets it do.

pub(crate) mod cancellation;
pub(crate) mod cgroup;
pub(crate) mod seccomp;
