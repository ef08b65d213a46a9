//! State of this process that the kernel reports (memory cgroup, seccomp filters), and the cancellation of memprof's
//! threads.

pub(crate) mod cancellation;
pub(crate) mod cgroup;
pub(crate) mod seccomp;
