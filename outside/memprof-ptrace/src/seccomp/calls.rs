//! The system calls that memprof's threads make in an attached process while the plugin is loaded, handles every
//! message, dumps, and is unloaded. A test of memprof-cli attaches to a process whose filter kills at every other
//! call.

use libc::c_long;

use super::program::SeccompData;

/// A system call with the arguments that a filter may check; the others are 0.
#[derive(Debug)]
pub(super) struct NamedSyscall {
    pub(super) name: &'static str,
    pub(super) call: SeccompData,
}

/// A requirement without which attaching fails.
#[derive(Debug)]
pub(super) enum SyscallRequirement {
    /// The call must be allowed.
    One(NamedSyscall),
    /// The first call must be allowed, or if the kernel does not know it (`ENOSYS`), the next one.
    InTurn(&'static [NamedSyscall]),
}

impl SyscallRequirement {
    /// Returns the alternative calls, in the order in which the C library tries them.
    pub(super) fn calls(&self) -> &[NamedSyscall] {
        match self {
            Self::One(call) => std::slice::from_ref(call),
            Self::InTurn(calls) => calls,
        }
    }
}

/// Flags that glibc's `pthread_create(3)` passes to clone(2).
const THREAD_FLAGS: c_long = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as c_long;

/// Arguments of the calls below.
const ANONYMOUS_FLAGS: c_long = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as c_long;
const STACK_FLAGS: c_long = ANONYMOUS_FLAGS | libc::MAP_STACK as c_long;
const FIXED_FLAGS: c_long = (libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_DENYWRITE) as c_long;
const NO_ACCESS: c_long = libc::PROT_NONE as c_long;
const READ: c_long = libc::PROT_READ as c_long;
const WRITE: c_long = (libc::PROT_READ | libc::PROT_WRITE) as c_long;
const EXECUTE: c_long = (libc::PROT_READ | libc::PROT_EXEC) as c_long;
const STREAM_SOCKET: c_long = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as c_long;
const UNIX: c_long = libc::AF_UNIX as c_long;
const READ_ONLY: c_long = (libc::O_RDONLY | libc::O_CLOEXEC) as c_long;
const CURRENT_DIR: c_long = libc::AT_FDCWD as c_long;

/// Builds a call from its number and its first four arguments; the other two are 0.
const fn named_syscall(name: &'static str, number: c_long, first: [c_long; 4]) -> NamedSyscall {
    let [a, b, c, d] = first;
    NamedSyscall {
        name,
        call: SeccompData {
            number: number as u32,
            arguments: [a as u64, b as u64, c as u64, d as u64, 0, 0],
        },
    }
}

/// Builds a requirement of a single call.
const fn single_call_requirement(
    name: &'static str,
    number: c_long,
    first: [c_long; 4],
) -> SyscallRequirement {
    SyscallRequirement::One(named_syscall(name, number, first))
}

/// Calls to create a thread, load a library in it and listen at a socket, and calls that any thread makes.
pub(super) const REQUIRED: &[SyscallRequirement] = &[
    SyscallRequirement::InTurn(&[
        named_syscall("clone3", libc::SYS_clone3, [0, 88, 0, 0]),
        named_syscall("clone", libc::SYS_clone, [THREAD_FLAGS, 0, 0, 0]),
    ]),
    single_call_requirement("mmap", libc::SYS_mmap, [0, 4096, EXECUTE, ANONYMOUS_FLAGS]),
    single_call_requirement("mmap", libc::SYS_mmap, [0, 4096, WRITE, ANONYMOUS_FLAGS]),
    single_call_requirement("mmap", libc::SYS_mmap, [0, 4096, NO_ACCESS, STACK_FLAGS]),
    single_call_requirement("mmap", libc::SYS_mmap, [0, 4096, EXECUTE, FIXED_FLAGS]),
    single_call_requirement("mmap", libc::SYS_mmap, [0, 4096, WRITE, FIXED_FLAGS]),
    single_call_requirement("mprotect", libc::SYS_mprotect, [0, 4096, READ, 0]),
    single_call_requirement("mprotect", libc::SYS_mprotect, [0, 4096, WRITE, 0]),
    single_call_requirement("munmap", libc::SYS_munmap, [0, 4096, 0, 0]),
    single_call_requirement("rt_sigprocmask", libc::SYS_rt_sigprocmask, [2, 0, 0, 8]),
    single_call_requirement("rt_sigreturn", libc::SYS_rt_sigreturn, [0; 4]),
    single_call_requirement("set_robust_list", libc::SYS_set_robust_list, [0, 24, 0, 0]),
    single_call_requirement("futex", libc::SYS_futex, [0, 128, 0, 0]),
    single_call_requirement("futex", libc::SYS_futex, [0, 129, 1, 0]),
    single_call_requirement("futex", libc::SYS_futex, [0, 137, 0, 0]),
    // sleep(3) and similar functions; Rust's standard library panics if these calls fail.
    SyscallRequirement::InTurn(&[
        named_syscall("clock_nanosleep", libc::SYS_clock_nanosleep, [0; 4]),
        named_syscall("nanosleep", libc::SYS_nanosleep, [0; 4]),
    ]),
    single_call_requirement("exit", libc::SYS_exit, [0; 4]),
    single_call_requirement("openat", libc::SYS_openat, [CURRENT_DIR, 0, READ_ONLY, 0]),
    single_call_requirement("read", libc::SYS_read, [0; 4]),
    single_call_requirement("pread64", libc::SYS_pread64, [0; 4]),
    SyscallRequirement::InTurn(&[
        named_syscall(
            "newfstatat",
            libc::SYS_newfstatat,
            [0, 0, 0, libc::AT_EMPTY_PATH as c_long],
        ),
        named_syscall("fstat", libc::SYS_fstat, [0; 4]),
    ]),
    single_call_requirement("close", libc::SYS_close, [0; 4]),
    single_call_requirement("fcntl", libc::SYS_fcntl, [0, libc::F_GETFD as c_long, 0, 0]),
    single_call_requirement("getpid", libc::SYS_getpid, [0; 4]),
    single_call_requirement("geteuid", libc::SYS_geteuid, [0; 4]),
    single_call_requirement("socket", libc::SYS_socket, [UNIX, STREAM_SOCKET, 0, 0]),
    single_call_requirement("bind", libc::SYS_bind, [0; 4]),
    single_call_requirement("listen", libc::SYS_listen, [0; 4]),
    single_call_requirement(
        "accept4",
        libc::SYS_accept4,
        [0, 0, 0, libc::SOCK_CLOEXEC as c_long],
    ),
    single_call_requirement(
        "getsockopt",
        libc::SYS_getsockopt,
        [0, 1, libc::SO_PEERCRED as c_long, 0],
    ),
    single_call_requirement("ppoll", libc::SYS_ppoll, [0; 4]),
    single_call_requirement("ioctl", libc::SYS_ioctl, [0, libc::FIONBIO as c_long, 0, 0]),
    single_call_requirement("recvfrom", libc::SYS_recvfrom, [0; 4]),
    single_call_requirement("sendmsg", libc::SYS_sendmsg, [0; 4]),
];

/// Calls that create a copy of the process and reap it, for `snapshot`.
pub(super) const SNAPSHOT: &[SyscallRequirement] = &[
    single_call_requirement(
        "clone",
        libc::SYS_clone,
        [libc::CLONE_FILES as c_long, 4096, 0, 0],
    ),
    single_call_requirement("rt_sigreturn", libc::SYS_rt_sigreturn, [0; 4]),
    single_call_requirement("exit_group", libc::SYS_exit_group, [0; 4]),
    single_call_requirement(
        "wait4",
        libc::SYS_wait4,
        [0, 0, (libc::__WALL | libc::WNOHANG) as c_long, 0],
    ),
];

/// Calls that read a thread's alternate signal stack.
pub(super) const SIGNAL_STACK: &[SyscallRequirement] = &[
    single_call_requirement("sigaltstack", libc::SYS_sigaltstack, [0, 4096, 0, 0]),
    single_call_requirement("rt_sigreturn", libc::SYS_rt_sigreturn, [0; 4]),
];

/// Calls that give a thread a descriptor table of its own.
pub(super) const OWN_DESCRIPTORS: &[SyscallRequirement] = &[
    single_call_requirement(
        "close_range",
        libc::SYS_close_range,
        [
            0,
            u32::MAX as c_long,
            libc::CLOSE_RANGE_UNSHARE as c_long,
            0,
        ],
    ),
    single_call_requirement(
        "pipe2",
        libc::SYS_pipe2,
        [0, libc::O_CLOEXEC as c_long, 0, 0],
    ),
    single_call_requirement("dup2", libc::SYS_dup2, [0, 1, 0, 0]),
];

/// `PR_SET_TSC` with `PR_TSC_ENABLE`, by which a thread may execute RDTSC.
pub(super) const ENABLE_TIME_STAMPS: &[SyscallRequirement] = &[single_call_requirement(
    "prctl",
    libc::SYS_prctl,
    [
        libc::PR_SET_TSC as c_long,
        libc::PR_TSC_ENABLE as c_long,
        0,
        0,
    ],
)];

/// `ARCH_SET_CPUID` (asm/prctl.h) with 1, by which a thread may execute CPUID.
pub(super) const ENABLE_CPUID: &[SyscallRequirement] = &[single_call_requirement(
    "arch_prctl",
    libc::SYS_arch_prctl,
    [0x1012, 1, 0, 0],
)];

/// First call of each glibc thread, if glibc uses rseq(2).
pub(super) const RSEQ: SyscallRequirement =
    single_call_requirement("rseq", libc::SYS_rseq, [0, 32, 0, 0x5305_3053]);

/// Call that unlocks the sampler's memory if mlockall(2) has locked it.
pub(super) const MUNLOCK: NamedSyscall =
    named_syscall("munlock", libc::SYS_munlock, [0, 4096, 0, 0]);

/// Calls that may fail, because memprof can do without them, but must not end the process.
pub(super) const OPTIONAL: &[NamedSyscall] = &[
    named_syscall("brk", libc::SYS_brk, [0; 4]),
    named_syscall("capset", libc::SYS_capset, [0; 4]),
    named_syscall("connect", libc::SYS_connect, [0; 4]),
    named_syscall("exit_group", libc::SYS_exit_group, [0; 4]),
    named_syscall("faccessat2", libc::SYS_faccessat2, [CURRENT_DIR, 0, 0, 0]),
    named_syscall("fallocate", libc::SYS_fallocate, [0; 4]),
    named_syscall("fchmod", libc::SYS_fchmod, [0, 0o600, 0, 0]),
    named_syscall("flock", libc::SYS_flock, [0, 6, 0, 0]),
    named_syscall("fstat", libc::SYS_fstat, [0; 4]),
    named_syscall("fstatfs", libc::SYS_fstatfs, [0; 4]),
    named_syscall("fsync", libc::SYS_fsync, [0; 4]),
    named_syscall("ftruncate", libc::SYS_ftruncate, [0; 4]),
    named_syscall("getdents64", libc::SYS_getdents64, [0; 4]),
    named_syscall("getrandom", libc::SYS_getrandom, [0; 4]),
    named_syscall("getsockname", libc::SYS_getsockname, [0; 4]),
    named_syscall("gettid", libc::SYS_gettid, [0; 4]),
    named_syscall("linkat", libc::SYS_linkat, [0; 4]),
    named_syscall("lseek", libc::SYS_lseek, [0; 4]),
    named_syscall(
        "madvise",
        libc::SYS_madvise,
        [0, 4096, libc::MADV_DONTNEED as c_long, 0],
    ),
    named_syscall("memfd_create", libc::SYS_memfd_create, [0, 1, 0, 0]),
    named_syscall("mkdir", libc::SYS_mkdir, [0, 0o700, 0, 0]),
    named_syscall("nanosleep", libc::SYS_nanosleep, [0; 4]),
    named_syscall("newfstatat", libc::SYS_newfstatat, [CURRENT_DIR, 0, 0, 0]),
    named_syscall("open", libc::SYS_open, [0, READ_ONLY, 0, 0]),
    named_syscall(
        "prctl",
        libc::SYS_prctl,
        [libc::PR_SET_NAME as c_long, 0, 0, 0],
    ),
    named_syscall("prlimit64", libc::SYS_prlimit64, [0; 4]),
    named_syscall("readlink", libc::SYS_readlink, [0; 4]),
    named_syscall("renameat2", libc::SYS_renameat2, [0; 4]),
    named_syscall("restart_syscall", libc::SYS_restart_syscall, [0; 4]),
    named_syscall("rt_sigaction", libc::SYS_rt_sigaction, [0, 0, 0, 8]),
    named_syscall("sched_yield", libc::SYS_sched_yield, [0; 4]),
    named_syscall("shutdown", libc::SYS_shutdown, [0, 2, 0, 0]),
    named_syscall("statx", libc::SYS_statx, [CURRENT_DIR, 0, 0, 0]),
    named_syscall("tgkill", libc::SYS_tgkill, [0; 4]),
    named_syscall("uname", libc::SYS_uname, [0; 4]),
    named_syscall("unlink", libc::SYS_unlink, [0; 4]),
    named_syscall("unlinkat", libc::SYS_unlinkat, [CURRENT_DIR, 0, 0, 0]),
    named_syscall("wait4", libc::SYS_wait4, [0; 4]),
    named_syscall("write", libc::SYS_write, [0; 4]),
];
