//! Why a process cannot be attached to.

use nix::errno::Errno;

use crate::limit::Limit;
use crate::reader::PATIENCE;

/// Why a process is left alone. Each says it as a sentence whose subject is the process, and nothing in
/// the process was touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is none.
    #[error("no such process")]
    NoSuchProcess,
    /// It was there when it was looked at first.
    #[error("has ended meanwhile")]
    Ended,
    /// By execve(2): what was looked up is another program's.
    #[error("has executed another program meanwhile")]
    Executed,
    /// The number names a thread, and there is none that names its process.
    #[error("is a thread of process {process}")]
    Thread {
        /// The process that the thread is of.
        process: u32,
    },
    /// Nobody traces himself.
    #[error("is memprof itself")]
    Itself,
    /// It ended, and its parent has not asked for its exit status.
    #[error("has ended (zombie)")]
    Zombie,
    /// It goes on in other threads, and /proc tells nothing of its memory any more.
    #[error("its main thread has ended, so /proc shows nothing of the process")]
    MainThreadEnded,
    /// The kernel does not let this user trace it.
    #[error("{file}: {}", .errno.desc())]
    Denied {
        /// What could not be opened.
        file: String,
        /// With what.
        errno: Errno,
        /// What stands against it.
        denial: Denial,
    },
    /// Another process traces it.
    #[error("process {tracer} already traces {pid} (a debugger, strace?); only one can")]
    Traced {
        /// `TracerPid` of /proc/PID/status.
        tracer: u32,
        /// As it was asked for.
        pid: u32,
    },
    /// By SIGSTOP, or at a terminal.
    #[error("process is stopped; continue it first (kill -CONT {pid})")]
    Stopped {
        /// As it was asked for.
        pid: u32,
    },
    /// By its cgroup: nothing wakes it.
    #[error("is frozen by its cgroup; thaw it first (docker unpause, systemctl thaw)")]
    Frozen,
    /// It has no memory of its own.
    #[error("is a kernel thread")]
    KernelThread,
    /// Whatever is done to its memory, its parent has too.
    #[error("is between vfork and exec and runs in its parent's memory")]
    Vfork,
    /// No loader: also of Go programs.
    #[error("is linked statically: nothing in it can load a library")]
    Static,
    /// The other C library.
    #[error("uses musl")]
    Musl,
    /// Threads and the loader's functions lie in libc.so.6 since 2.34.
    #[error("has a glibc before 2.34")]
    OldGlibc,
    /// Another C library, or none was loaded yet.
    #[error("has no glibc loaded")]
    NoGlibc,
    /// 32 bit, or run by an emulator.
    #[error("is a program for {0}")]
    OtherArchitecture(&'static str),
    /// The processor would end it at the first return that it has no call for.
    #[error("has a shadow stack (CET), so memprof cannot make calls in it")]
    ShadowStack,
    /// A system call that attaching needs is answered with an error, or by a signal.
    #[error("its seccomp filter forbids {call}")]
    ForbiddenCall {
        /// The system call.
        call: &'static str,
    },
    /// By `PR_SET_SYSCALL_USER_DISPATCH` of prctl(2): calls from code that is not its own end it.
    #[error("handles system calls itself (syscall user dispatch, as Wine does)")]
    UserDispatch,
    /// Threads that the sanitizer did not see being made end the process.
    #[error(
        "was built with {sanitizer}, which ends it when a thread comes by another way than its own"
    )]
    Sanitizer {
        /// Its name.
        sanitizer: &'static str,
    },
    /// Only four system calls are left to it.
    #[error("is in seccomp's strict mode, which forbids clone3")]
    StrictSeccomp,
    /// It has a filter, and whether that lets it live is not known without reading it.
    #[error("its seccomp filter cannot be read by this user")]
    UnreadFilter,
    /// The kernel hands out the filter in another form, or not at all.
    #[error("its seccomp filter cannot be read: {0}")]
    UnreadableFilter(String),
    /// Every thread runs, or waits where it must not be borrowed.
    #[error("no thread came to a safe point in time: {reason}")]
    NoSafePoint {
        /// Where they were.
        reason: String,
    },
    /// Neither a file in memory nor one in its root directory can be opened by it.
    #[error("sees no /proc, and no directory in its root can hold the plugin's file: {cause}")]
    NoFile {
        /// Why the last one cannot.
        cause: String,
    },
    /// Neither by its path nor as a file in memory.
    #[error("may not load the plugin's file ({said}), nor a file in memory ({in_memory})")]
    NotOpened {
        /// The loader's words of the file.
        said: String,
        /// The same of the file in memory.
        in_memory: String,
    },
    /// `HAProxy` sets it for itself.
    #[error("may have no more threads (RLIMIT_NPROC is {limit}), and the limit could not be raised: {}", .errno.desc())]
    ThreadLimit {
        /// The soft limit.
        limit: u64,
        /// Why it could not be raised.
        errno: Errno,
    },
    /// `pthread_create(3)` failed, and not for want of memory.
    #[error("could not make a thread: {}", .errno.desc())]
    NoThread {
        /// Why.
        errno: Errno,
    },
    /// A limit leaves less than an attachment takes.
    #[error(
        "has no room for memprof: {limit} is {is}, {used} of it are used, and memprof takes up to {needed}"
    )]
    NoRoom {
        /// The process.
        pid: u32,
        /// Which limit.
        limit: Limit,
        /// The limit's value.
        is: u64,
        /// What the process may raise it to (its hard limit); `None` without a limit.
        hard: Option<u64>,
        /// How much of it is used.
        used: u64,
        /// How much more an attachment takes at the most.
        needed: u64,
    },
    /// Code of C and Rust counts on 16, with instructions that end the process otherwise.
    #[error(
        "its malloc ({allocator}) does not align to 16 bytes as the C ABI requires, so a library could crash in it"
    )]
    Misaligned {
        /// The file that the allocator is in.
        allocator: String,
    },
    /// A page of it does not come: it is of a file whose server does not answer, or of userfaultfd(2).
    /// A page of it lies where nothing answers.
    #[error("has memory that did not come for {} s (files of FUSE or of the network, userfaultfd)", PATIENCE.as_secs())]
    SilentMemory {
        /// The process.
        pid: u32,
    },
    /// A file of /proc that could not be read or understood.
    #[error("failed to read {file}: {cause}")]
    Unreadable {
        /// The path under /proc.
        file: String,
        /// Why.
        cause: String,
    },
}

/// Why the kernel does not let this user trace a process (`man 2 ptrace`, Ptrace access mode checking).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// It runs as this other user, or may.
    OtherUser(u32),
    /// It has let nobody look into it, or changed its user.
    NotDumpable,
    /// It has capabilities that the caller lacks.
    MoreCapabilities,
    /// /proc shows nothing of it.
    Hidden,
    /// Yama's `ptrace_scope`, 1 to 3.
    Yama(u8),
    /// The caller is root without `CAP_SYS_PTRACE`, as in a container.
    WithoutPtrace,
    /// Another namespace of users, or a security module.
    Unknown,
}

impl Refusal {
    /// The exit code of `memprof`: 3 where the process is out of reach, 4 where it is not one that can
    /// be attached to.
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

    /// What to do about it, where anything can be done.
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
            Self::Musl => "run a build of it for glibc".to_owned(),
            Self::OldGlibc => {
                "attach needs glibc 2.34, which Debian 12, Ubuntu 22.04 and RHEL 9 have".to_owned()
            }
            Self::NoGlibc => {
                "try again if it has just started; attach needs glibc 2.34 or newer".to_owned()
            }
            Self::ShadowStack => "start it without SHSTK in GLIBC_TUNABLES".to_owned(),
            // Allowed in itself, mostly: the family is what is forbidden.
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
            } => format!("raise it as root: {}", limit.raise(*pid, used + needed + limit.spare(), *hard)),
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
            | Self::Unreadable { .. } => return None,
        };
        Some(remedy)
    }
}

impl Denial {
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
