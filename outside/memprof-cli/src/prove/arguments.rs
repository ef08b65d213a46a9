//! Arguments of `memprof leaks --prove`.

use std::ffi::OsString;
use std::time::Duration;

use crate::analysis_summary::parse_memory_amount;

/// Options of `memprof leaks --prove`.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("subject").args(["pid", "at_exit"]))]
pub(crate) struct ProveArgs {
    /// List the objects of a process that nothing points to any more; the process needs no plugin
    ///
    /// The process is copied twice, at least a second apart, and is stopped while the kernel copies its page tables:
    /// some 60 ms for 1 GiB. An object is reported if nothing points to it in either copy: no register, stack, variable
    /// or other memory, no object that is itself pointed to, nor the kernel (epoll, timers, queues). Nothing is loaded into the
    /// process, and what it allocated before counts too. memprof reads the heaps of glibc's malloc and jemalloc 5.3; a
    /// pool that a program makes in them counts as one object. If a profiler runs in the process, jemalloc's or
    /// memprof's, the objects that it sampled are shown with their stacks.
    #[arg(long, requires = "subject", conflicts_with_all = ["target", "timeout", "last"])]
    pub(crate) prove: bool,

    /// The process: a pid, a name or container:NAME; without --prove a host, not needed while only one runs
    #[arg(value_name = "TARGET", value_parser = crate::process_arg::parse_process)]
    pub(crate) pid: Option<u32>,

    /// With --prove: sample the process for this time first, for example 30s, so that objects which leak meanwhile have
    /// stacks
    ///
    /// A process without the plugin is attached to, and detached from afterwards, as `memprof record` does. Objects without
    /// a sample show who probably allocated them, if enough of their class and size were sampled.
    #[arg(long = "for", value_name = "DURATION", requires = "prove", conflicts_with = "at_exit", value_parser = crate::process_arg::parse_duration)]
    pub(super) duration: Option<Duration>,

    /// With --for or --at-exit: one sample per this many allocated bytes, a power of two from 1 to 16MiB [default: with
    /// --for, found by the rate at which the process allocates; with --at-exit, 1: every allocation]
    #[arg(long, visible_alias = "interval", value_name = "SIZE", requires = "prove", value_parser = crate::run::parse_fine_interval)]
    pub(super) sample_interval: Option<u8>,

    /// With --prove: run a command, and search it once, when it exits
    ///
    /// memprof's sampler is preloaded into it, so that its objects have stacks; what it executes is not sampled.
    /// Prints the leaks to standard error, with --json or another --format to standard output. The exit code is the
    /// command's; with --fail, instead of 0, 1 if there are leaks, and 4 if the command was not searched. Only the process
    /// itself is searched, not its children, and not a command that is ended by a signal. SIGINT, SIGTERM and SIGHUP are
    /// passed on to it.
    #[arg(long, requires_all = ["prove", "command"], conflicts_with_all = ["pid", "max_pause"])]
    pub(super) at_exit: bool,

    /// With --at-exit: preload nothing into the command; its objects have no stacks
    #[arg(long, requires = "at_exit", conflicts_with = "sample_interval")]
    pub(super) no_stacks: bool,

    /// The command that --at-exit runs, and its arguments
    #[arg(last = true, requires = "at_exit", value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,

    /// With --prove: stop the process for this time at most, each time; memprof estimates it first, and refuses if it is
    /// longer
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = crate::process_arg::parse_duration, requires = "prove")]
    pub(super) max_pause: Duration,

    /// With --prove: use this much memory at most, for example 512MiB [default: 12 % of the process's memory, at least
    /// 128MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory_amount, requires = "prove")]
    pub(super) max_memory: Option<u64>,

    /// With --prove: exit with 1 if there are leaks, with 4 if none is found but not all heaps could be searched
    #[arg(long, requires = "prove")]
    pub(super) fail: bool,
}
