//! Reasons why a process cannot be attached to.

use nix::errno::Errno;

use crate::limit::Limit;
use crate::reader::MEMORY_TIMEOUT;

/// Reason why memprof does not attach to a process. The text is a predicate about the process (`is a kernel thread`) or
/// a clause. Nothing in the process was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No process has the pid.
    #[error("no such process")]
    NoSuchProcess,
    /// The process ended during the attempt.
    #[error("has ended meanwhile")]
    Ended,
    /// The process called execve(2) during the attempt, so addresses of its old program are void.
    #[error("has executed another program meanwhile")]
    Executed,
    /// The number is a thread ID, and no process has it as pid.
    #[error("is a thread of process {process}")]
    Thread {
        /// Process that the thread belongs to.
        process: u32,
    },
    /// A process cannot trace itself.
    #[error("is memprof itself")]
    Itself,
    /// The process ended, and its parent has not waited for it.
    #[error("has ended (zombie)")]
    Zombie,
    /// Other threads go on, but /proc shows nothing of the process's memory any more.
    #[error("its main thread has ended, so /proc shows nothing of the process")]
    MainThreadEnded,
    /// The kernel denies tracing it to this user.
    #[error("{file}: {}", .errno.desc())]
    Denied {
        /// File that could not be opened.
        file: String,
        /// Errno of open(2).
        errno: Errno,
        /// Reason for which the kernel denies it.
        denial: Denial,
    },
    /// Another process traces it.
    #[error("process {tracer} already traces {pid} (a debugger, strace?); only one can")]
    Traced {
        /// Pid of the tracer: `TracerPid` of /proc/PID/status.
        tracer: u32,
        /// Pid of the traced process.
        pid: u32,
    },
    /// Stopped by SIGSTOP, or by the terminal.
    #[error("process is stopped; continue it first (kill -CONT {pid})")]
    Stopped {
        /// Pid of the process.
        pid: u32,
    },
    /// Frozen by its cgroup: no signal or tracer wakes it.
    #[error("is frozen by its cgroup; thaw it first (docker unpause, systemctl thaw)")]
    Frozen,
    /// A kernel thread has no user memory.
    #[error("is a kernel thread")]
    KernelThread,
    /// The process runs in its parent's memory, so an attachment would change the parent too.
    #[error("is between vfork and exec and runs in its parent's memory")]
    Vfork,
    /// The program has no loader; includes Go programs.
    #[error("is linked statically: nothing in it can load a library")]
    Static,
    /// Valgrind executes a translation of the program: its threads are never at the program's own code.
    #[error("runs in valgrind, which executes a translation of its code")]
    Valgrind,
    /// The C library is musl.
    #[error("uses musl")]
    Musl,
    /// glibc before 2.34 has the functions of threads and of the loader in libraries other than libc.so.6.
    #[error("has a glibc before 2.34")]
    OldGlibc,
    /// Another C library, or none is loaded yet.
    #[error("has no glibc loaded")]
    NoGlibc,
    /// The program is for 32 bit, or runs in an emulator.
    #[error("is a program for {0}")]
    OtherArchitecture(&'static str),
    /// Remote calls return without a matching call, at which the processor would kill the process.
    #[error("has a shadow stack (CET), so memprof cannot make calls in it")]
    ShadowStack,
    /// The filter answers a system call that attaching needs with an error or a signal.
    #[error("its seccomp filter forbids {call}")]
    ForbiddenCall {
        /// Name of the system call.
        call: &'static str,
    },
    /// `PR_SET_SYSCALL_USER_DISPATCH` of prctl(2) is on: a call from code outside its range gets a SIGSYS.
    #[error("handles system calls itself (syscall user dispatch, as Wine does)")]
    UserDispatch,
    /// Another namespace for children, by unshare(2) or setns(2), in which memprof's thread or copy would change what
    /// the program can do.
    #[error(
        "makes its children in another {kind} namespace (unshare(2), setns(2)), where memprof makes neither a thread nor a copy"
    )]
    ChildNamespace {
        /// `pid` or `time`.
        kind: &'static str,
    },
    /// The C library would jump to where the vDSO was.
    #[error("has unmapped its vDSO (vdso(7)), by which its C library reads clocks")]
    NoVdso,
    /// The kernel lets no thread of this policy make threads or processes.
    #[error("has no thread that may make another one: they are of the policy SCHED_DEADLINE")]
    Deadline,
    /// The sanitizer ends the process at the first thread whose creation it did not see.
    #[error(
        "was built with {sanitizer}, which ends it when a thread comes by another way than its own"
    )]
    Sanitizer {
        /// Name of the sanitizer.
        sanitizer: &'static str,
    },
    /// The strict mode allows only four system calls.
    #[error("is in seccomp's strict mode, which forbids clone3")]
    StrictSeccomp,
    /// A filter exists, and whether it allows attaching is unknown without reading it.
    #[error("its seccomp filter cannot be read by this user")]
    UnreadFilter,
    /// The kernel returns the filter in another form, or not at all.
    #[error("its seccomp filter cannot be read: {0}")]
    UnreadableFilter(String),
    /// Every thread was running, or waited where it must not be stopped.
    #[error("no thread came to a safe point in time: {reason}")]
    NoSafePoint {
        /// State of the threads.
        reason: String,
    },
    /// The process can open neither a file in memory nor one in its root directory.
    #[error("sees no /proc, and no directory in its root can hold the plugin's file: {cause}")]
    NoFile {
        /// Reason for the last of the tried directories.
        cause: String,
    },
    /// The loader could open neither the path nor a file in memory.
    #[error("may not load the plugin's file ({file_error}), nor a file in memory ({memfd_error})")]
    NotOpened {
        /// Message of the loader about the path.
        file_error: String,
        /// Message of the loader about the file in memory.
        memfd_error: String,
    },
    /// `RLIMIT_NPROC` allows no further thread. `HAProxy` sets such a limit for itself.
    #[error("may have no more threads (RLIMIT_NPROC is {limit}), and the limit could not be raised: {}", .errno.desc())]
    ThreadLimit {
        /// The soft limit.
        limit: u64,
        /// Errno of raising the limit.
        errno: Errno,
    },
    /// `pthread_create(3)` failed, with another error than out of memory.
    #[error("could not make a thread: {}", .errno.desc())]
    NoThread {
        /// Errno of `pthread_create(3)`.
        errno: Errno,
    },
    /// A limit leaves less than an attachment needs.
    #[error(
        "has no room for memprof: {limit} is {value}, {used} of it are used, and memprof takes up to {needed}"
    )]
    NoRoom {
        /// Pid of the process.
        pid: u32,
        /// The limit.
        limit: Limit,
        /// Value of the limit.
        value: u64,
        /// Hard limit, up to which the process may raise it; `None` if unlimited.
        hard: Option<u64>,
        /// Amount in use.
        used: u64,
        /// Largest amount that an attachment adds.
        needed: u64,
    },
    /// Compiled C and Rust code may use instructions that fault on memory without 16-byte alignment.
    #[error(
        "its malloc ({allocator}) does not align to 16 bytes as the C ABI requires, so a library could crash in it"
    )]
    Misaligned {
        /// File that contains the allocator.
        allocator: String,
    },
    /// A page of its memory does not arrive: it belongs to a file whose server does not answer, or to
    /// userfaultfd(2).
    #[error("has memory that did not come for {} s (files of FUSE or of the network, userfaultfd)", MEMORY_TIMEOUT.as_secs())]
    SilentMemory {
        /// Pid of the process.
        pid: u32,
    },
    /// A file of /proc could not be read or parsed.
    #[error("failed to read {file}: {cause}")]
    Unreadable {
        /// Path under /proc.
        file: String,
        /// Error text.
        cause: String,
    },
}

/// Reason why the kernel denies tracing to this user (`man 2 ptrace`, Ptrace access mode checking).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The process runs as this other user, or may change to it.
    OtherUser(u32),
    /// The process is not dumpable: by prctl(2) `PR_SET_DUMPABLE`, or because it changed its user.
    NotDumpable,
    /// The process has capabilities that the caller lacks.
    MoreCapabilities,
    /// /proc does not show the process.
    Hidden,
    /// Yama's `ptrace_scope` forbids it; the value is 1 to 3.
    Yama(u8),
    /// The caller is root without `CAP_SYS_PTRACE`, as in a container.
    WithoutPtrace,
    /// Cause unknown: another user namespace, or a security module.
    Unknown,
}

impl Refusal {
    /// Returns the exit code of `memprof`: 3 if the process cannot be reached, 4 if it cannot be attached to.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoSuchProcess
            | Self::Ended
            | Self::Thread { .. }
            | Self::Zombie
            | Self::Denied { .. } => 3,
            _ => 4,
        }
    }

    /// Returns whether the cause may be that the process is about to end or to execute a program, has just started, or
    /// is busy. The refusal may then change after a moment.
    pub fn may_be_exit_or_exec(&self) -> bool {
        matches!(
            self,
            Self::NoSuchProcess
                | Self::Ended
                | Self::Executed
                | Self::Zombie
                | Self::MainThreadEnded
                | Self::NoGlibc
                | Self::OldGlibc
                | Self::NoSafePoint { .. }
                | Self::Unreadable { .. }
        )
    }

    /// Returns how the user can fix the cause, as one line without a final dot. `None` if nothing can be done, or
    /// if the error text says it already.
    pub fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::NoSuchProcess => "`memprof ps --all` lists those there are".to_owned(),
            Self::Thread { process } => format!("use the pid of its process, {process}"),
            Self::Denied { denial, .. } => denial.remedy(),
            Self::Traced { tracer, .. } => format!("end process {tracer}, or have it detach"),
            Self::Vfork => "try again in a moment, after it has executed a program".to_owned(),
            Self::Static => "link it dynamically, or build memprof-host into it; a Go program has \
                             net/http/pprof of its own"
                .to_owned(),
            Self::Valgrind => "use valgrind's own tools (massif, dhat, memcheck), or run it without valgrind".to_owned(),
            Self::Musl => "run a build of it for glibc".to_owned(),
            Self::OldGlibc => {
                "attach needs glibc 2.34, which Debian 12, Ubuntu 22.04 and RHEL 9 have".to_owned()
            }
            Self::NoGlibc => {
                "try again if it has just started; attach needs glibc 2.34 or newer".to_owned()
            }
            Self::ShadowStack => "start it without SHSTK in GLIBC_TUNABLES".to_owned(),
            // The filter mostly allows socket(2) itself, and forbids the address family.
            Self::ForbiddenCall { call: "socket" } => {
                "allow sockets of AF_UNIX in the filter (systemd: RestrictAddressFamilies=AF_UNIX, beside those that the \
                 service has), or start the program with `memprof run`".to_owned()
            }
            Self::ForbiddenCall { call } => format!(
                "allow {call} in the filter (systemd: SystemCallFilter={call}), or start the program \
                 with `memprof run`"
            ),
            Self::Sanitizer { .. } => {
                "use a build without it, or start the program with `memprof run`".to_owned()
            }
            Self::StrictSeccomp => "start the program with `memprof run`".to_owned(),
            Self::UnreadFilter => {
                "run memprof as root, outside of a container, so that it can read the filter"
                    .to_owned()
            }
            Self::NoFile { .. } => {
                "mount /proc there, or make a directory /tmp that is not mounted noexec".to_owned()
            }
            Self::NotOpened { .. } => {
                "give it a copy by --plugin that its user may read, on a file system that is not mounted noexec \
                 and that its security module (Landlock, AppArmor, SELinux) lets it map, or start the program with \
                 `memprof run`".to_owned()
            }
            Self::ThreadLimit { .. } => {
                "run memprof as root with CAP_SYS_RESOURCE, or raise it where the program is configured \
                 (HAProxy: insecure-fork-wanted)".to_owned()
            }
            Self::NoThread { .. } => {
                "raise the number of threads that its cgroup allows (pids.max; systemd: TasksMax=), that its user may \
                 have (prlimit --nproc), or that the machine has (sysctl kernel.threads-max)".to_owned()
            }
            Self::NoRoom {
                pid,
                limit,
                hard,
                used,
                needed,
                ..
            } => format!("raise it as root: {}", limit.raise_command(*pid, used + needed + limit.headroom(), *hard)),
            Self::Deadline => {
                "start it with reset-on-fork (chrt --deadline --reset-on-fork, or SCHED_FLAG_RESET_ON_FORK in \
                 sched_setattr(2))".to_owned()
            }
            Self::ChildNamespace { .. } => {
                "name a process that it has started".to_owned()
            }
            Self::Misaligned { .. } => {
                "start it with an allocator that aligns to 16 (Electric Fence: EF_ALIGNMENT=16)".to_owned()
            }
            Self::SilentMemory { pid } => format!(
                "see which file systems it has (grep -E ' (fuse|nfs|9p|ceph|cifs)' /proc/{pid}/mountinfo), and mend the \
                 server of the one that does not answer, or end its connection (FUSE: echo 1 > \
                 /sys/fs/fuse/connections/N/abort, where its line begins with M K 0:N)"
            ),
            Self::Executed => "try again".to_owned(),
            Self::NoSafePoint { .. } => "try again while it is less busy".to_owned(),
            Self::Itself
            | Self::Ended
            | Self::Zombie
            | Self::MainThreadEnded
            | Self::Stopped { .. }
            | Self::Frozen
            | Self::KernelThread
            | Self::OtherArchitecture(_)
            | Self::UnreadableFilter(_)
            | Self::UserDispatch
            | Self::NoVdso
            | Self::Unreadable { .. } => return None,
        };
        Some(remedy)
    }
}

impl Denial {
    /// Returns how the user can get the right to trace the process. Names the cause first, unless it is plain, because
    /// the error text has only the errno.
    fn remedy(self) -> String {
        match self {
            Self::OtherUser(uid) => format!("run memprof as uid {uid} or as root"),
            Self::NotDumpable => "it lets no other process look into it (prctl PR_SET_DUMPABLE, a \
                                  change of its user, or a file that cannot be read): run memprof as root"
                .to_owned(),
            Self::MoreCapabilities => {
                "it has capabilities that you do not have: run memprof as root".to_owned()
            }
            Self::Hidden => "/proc hides other users' processes (its mount option hidepid): run \
                             memprof as root"
                .to_owned(),
            Self::Yama(1) => "yama lets users trace only their own children: run memprof as root, or \
                              `sysctl kernel.yama.ptrace_scope=0`"
                .to_owned(),
            Self::Yama(2) => "yama lets only root trace (kernel.yama.ptrace_scope=2): run memprof as \
                              root"
                .to_owned(),
            Self::Yama(_) => "yama allows no tracing until this machine is restarted \
                              (kernel.yama.ptrace_scope=3)"
                .to_owned(),
            Self::WithoutPtrace => "root lacks CAP_SYS_PTRACE here: run memprof outside of the \
                                    container, or give it that capability (docker run --cap-add SYS_PTRACE)"
                .to_owned(),
            Self::Unknown => "it is in another user namespace, or a security module (SELinux, \
                              AppArmor) protects it: run memprof as root of the machine"
                .to_owned(),
        }
    }
}
