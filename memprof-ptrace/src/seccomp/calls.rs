//! The system calls of a process that memprof was attached to: what threads of ours call while the plugin
//! is loaded, is sent every message, dumps, and is taken out again. memprof-cli's tests attach to a process
//! whose filter kills for every other call.

use libc::c_long;

use super::program::Call;

/// A system call with the arguments that a filter may look at; others are 0.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) name: &'static str,
    pub(super) call: Call,
}

/// Something without which attaching fails.
#[derive(Debug)]
pub(super) enum Need {
    /// This call.
    One(Named),
    /// The first, or where the kernel does not know it (`ENOSYS`), the next.
    InTurn(&'static [Named]),
}

impl Need {
    pub(super) fn calls(&self) -> &[Named] {
        match self {
            Self::One(call) => std::slice::from_ref(call),
            Self::InTurn(calls) => calls,
        }
    }
}

/// What `pthread_create(3)` of glibc asks clone(2) for.
const THREAD: c_long = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as c_long;

const ANONYMOUS: c_long = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as c_long;
const STACK: c_long = ANONYMOUS | libc::MAP_STACK as c_long;
const FIXED: c_long = (libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_DENYWRITE) as c_long;
const NONE: c_long = libc::PROT_NONE as c_long;
const READ: c_long = libc::PROT_READ as c_long;
const WRITE: c_long = (libc::PROT_READ | libc::PROT_WRITE) as c_long;
const CODE: c_long = (libc::PROT_READ | libc::PROT_EXEC) as c_long;
const STREAM: c_long = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as c_long;
const UNIX: c_long = libc::AF_UNIX as c_long;
const FILE: c_long = (libc::O_RDONLY | libc::O_CLOEXEC) as c_long;
const HERE: c_long = libc::AT_FDCWD as c_long;

/// A number, its first four arguments.
const fn named(name: &'static str, number: c_long, first: [c_long; 4]) -> Named {
    let [a, b, c, d] = first;
    Named {
        name,
        call: Call {
            number: number as u32,
            arguments: [a as u64, b as u64, c as u64, d as u64, 0, 0],
        },
    }
}

const fn one(name: &'static str, number: c_long, first: [c_long; 4]) -> Need {
    Need::One(named(name, number, first))
}

/// To make a thread, load a library in it, and listen at a socket; and what any thread does.
pub(super) const REQUIRED: &[Need] = &[
    Need::InTurn(&[
        named("clone3", libc::SYS_clone3, [0, 88, 0, 0]),
        named("clone", libc::SYS_clone, [THREAD, 0, 0, 0]),
    ]),
    one("mmap", libc::SYS_mmap, [0, 4096, CODE, ANONYMOUS]),
    one("mmap", libc::SYS_mmap, [0, 4096, WRITE, ANONYMOUS]),
    one("mmap", libc::SYS_mmap, [0, 4096, NONE, STACK]),
    one("mmap", libc::SYS_mmap, [0, 4096, CODE, FIXED]),
    one("mmap", libc::SYS_mmap, [0, 4096, WRITE, FIXED]),
    one("mprotect", libc::SYS_mprotect, [0, 4096, READ, 0]),
    one("mprotect", libc::SYS_mprotect, [0, 4096, WRITE, 0]),
    one("munmap", libc::SYS_munmap, [0, 4096, 0, 0]),
    one("rt_sigprocmask", libc::SYS_rt_sigprocmask, [2, 0, 0, 8]),
    one("rt_sigreturn", libc::SYS_rt_sigreturn, [0; 4]),
    one("set_robust_list", libc::SYS_set_robust_list, [0, 24, 0, 0]),
    one("futex", libc::SYS_futex, [0, 128, 0, 0]),
    one("futex", libc::SYS_futex, [0, 129, 1, 0]),
    one("futex", libc::SYS_futex, [0, 137, 0, 0]),
    // sleep(3) and its kin; Rust's library panics where they fail.
    Need::InTurn(&[
        named("clock_nanosleep", libc::SYS_clock_nanosleep, [0; 4]),
        named("nanosleep", libc::SYS_nanosleep, [0; 4]),
    ]),
    one("exit", libc::SYS_exit, [0; 4]),
    one("openat", libc::SYS_openat, [HERE, 0, FILE, 0]),
    one("read", libc::SYS_read, [0; 4]),
    one("pread64", libc::SYS_pread64, [0; 4]),
    Need::InTurn(&[
        named(
            "newfstatat",
            libc::SYS_newfstatat,
            [0, 0, 0, libc::AT_EMPTY_PATH as c_long],
        ),
        named("fstat", libc::SYS_fstat, [0; 4]),
    ]),
    one("close", libc::SYS_close, [0; 4]),
    one("fcntl", libc::SYS_fcntl, [0, libc::F_GETFD as c_long, 0, 0]),
    one("getpid", libc::SYS_getpid, [0; 4]),
    one("geteuid", libc::SYS_geteuid, [0; 4]),
    one("socket", libc::SYS_socket, [UNIX, STREAM, 0, 0]),
    one("bind", libc::SYS_bind, [0; 4]),
    one("listen", libc::SYS_listen, [0; 4]),
    one(
        "accept4",
        libc::SYS_accept4,
        [0, 0, 0, libc::SOCK_CLOEXEC as c_long],
    ),
    one(
        "getsockopt",
        libc::SYS_getsockopt,
        [0, 1, libc::SO_PEERCRED as c_long, 0],
    ),
    one("ppoll", libc::SYS_ppoll, [0; 4]),
    one("ioctl", libc::SYS_ioctl, [0, libc::FIONBIO as c_long, 0, 0]),
    one("recvfrom", libc::SYS_recvfrom, [0; 4]),
    one("sendmsg", libc::SYS_sendmsg, [0; 4]),
];

/// To make a copy of the process and to have it reaped: `snapshot`'s.
pub(super) const SNAPSHOT: &[Need] = &[
    one(
        "clone",
        libc::SYS_clone,
        [libc::CLONE_FILES as c_long, 4096, 0, 0],
    ),
    one("rt_sigreturn", libc::SYS_rt_sigreturn, [0; 4]),
    one("exit_group", libc::SYS_exit_group, [0; 4]),
    one(
        "wait4",
        libc::SYS_wait4,
        [0, 0, (libc::__WALL | libc::WNOHANG) as c_long, 0],
    ),
];

/// What each thread of glibc's begins with, where it uses that at all.
pub(super) const RSEQ: Need = one("rseq", libc::SYS_rseq, [0, 32, 0, 0x5305_3053]);

/// What the sampler's memory is taken out of the program's locked one by, where mlockall(2) put it there.
pub(super) const UNLOCKS: Named = named("munlock", libc::SYS_munlock, [0, 4096, 0, 0]);

/// What is made too, and may fail: something else is done then, or done without.
pub(super) const OPTIONAL: &[Named] = &[
    named("brk", libc::SYS_brk, [0; 4]),
    named("capset", libc::SYS_capset, [0; 4]),
    named("connect", libc::SYS_connect, [0; 4]),
    named("exit_group", libc::SYS_exit_group, [0; 4]),
    named("faccessat2", libc::SYS_faccessat2, [HERE, 0, 0, 0]),
    named("fallocate", libc::SYS_fallocate, [0; 4]),
    named("fchmod", libc::SYS_fchmod, [0, 0o600, 0, 0]),
    named("flock", libc::SYS_flock, [0, 6, 0, 0]),
    named("fstat", libc::SYS_fstat, [0; 4]),
    named("fstatfs", libc::SYS_fstatfs, [0; 4]),
    named("fsync", libc::SYS_fsync, [0; 4]),
    named("ftruncate", libc::SYS_ftruncate, [0; 4]),
    named("getdents64", libc::SYS_getdents64, [0; 4]),
    named("getrandom", libc::SYS_getrandom, [0; 4]),
    named("getsockname", libc::SYS_getsockname, [0; 4]),
    named("gettid", libc::SYS_gettid, [0; 4]),
    named("linkat", libc::SYS_linkat, [0; 4]),
    named("lseek", libc::SYS_lseek, [0; 4]),
    named(
        "madvise",
        libc::SYS_madvise,
        [0, 4096, libc::MADV_DONTNEED as c_long, 0],
    ),
    named("memfd_create", libc::SYS_memfd_create, [0, 1, 0, 0]),
    named("mkdir", libc::SYS_mkdir, [0, 0o700, 0, 0]),
    named("nanosleep", libc::SYS_nanosleep, [0; 4]),
    named("newfstatat", libc::SYS_newfstatat, [HERE, 0, 0, 0]),
    named("open", libc::SYS_open, [0, FILE, 0, 0]),
    named(
        "prctl",
        libc::SYS_prctl,
        [libc::PR_SET_NAME as c_long, 0, 0, 0],
    ),
    named("prlimit64", libc::SYS_prlimit64, [0; 4]),
    named("readlink", libc::SYS_readlink, [0; 4]),
    named("renameat2", libc::SYS_renameat2, [0; 4]),
    named("restart_syscall", libc::SYS_restart_syscall, [0; 4]),
    named("rt_sigaction", libc::SYS_rt_sigaction, [0, 0, 0, 8]),
    named("sched_yield", libc::SYS_sched_yield, [0; 4]),
    named("shutdown", libc::SYS_shutdown, [0, 2, 0, 0]),
    named("statx", libc::SYS_statx, [HERE, 0, 0, 0]),
    named("tgkill", libc::SYS_tgkill, [0; 4]),
    named("uname", libc::SYS_uname, [0; 4]),
    named("unlink", libc::SYS_unlink, [0; 4]),
    named("unlinkat", libc::SYS_unlinkat, [HERE, 0, 0, 0]),
    named("wait4", libc::SYS_wait4, [0; 4]),
    named("write", libc::SYS_write, [0; 4]),
];
