//! State of this process that the kernel reports (memory cgroup, seccomp filters), the times of its clock, and the
//! cancellation of memprof's threads.

pub(crate) mod cancellation;
pub(crate) mod cgroup;
pub(crate) mod clock;
pub(crate) mod seccomp;
