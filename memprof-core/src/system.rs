//! What the kernel tells of this process and lets it do.

pub(crate) mod cgroup;
pub(crate) mod leash;
pub(crate) mod seccomp;
