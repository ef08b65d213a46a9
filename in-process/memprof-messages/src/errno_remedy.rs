//! Remedies for errors of the kernel: the meaning of each errno for an operation, and the command that helps. The
//! plugin and the program report the same texts.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit};

/// Operation that the kernel refused, as far as the remedy depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opening, creating, writing or naming a file, or a socket.
    File,
    /// Creating or writing a file in memory (`memfd_create(2)`, tmpfs).
    MemoryFile,
    /// Starting a thread (`pthread_create(3)`).
    Thread,
    /// Requesting memory (`mmap(2)`).
    Memory,
}

use Operation::{File, Memory, MemoryFile, Thread};

/// Minimum number of open files to suggest as the new limit.
const MIN_OPEN_FILES: u64 = 65_536;

const ANY: &[Operation] = &[File, MemoryFile, Thread, Memory];

/// Remedies by errno and operation. `{prlimit}` is replaced by the command that changes this process's limits, and
/// `{nofile}` by its option that raises the limit of open files.
const REMEDIES: &[(Errno, &[Operation], &str)] = &[
    (
        Errno::MFILE,
        ANY,
        "raise its limit of open files (RLIMIT_NOFILE), {prlimit} {nofile}",
    ),
    (
        Errno::NFILE,
        ANY,
        "raise the machine's limit of open files, as root: sysctl fs.file-max=N",
    ),
    (
        Errno::NOMEM,
        ANY,
        "raise its limits of memory (RLIMIT_AS, RLIMIT_DATA), {prlimit} --as=unlimited --data=unlimited; or its number \
         of mappings: sysctl vm.max_map_count=N",
    ),
    (
        Errno::AGAIN,
        &[Thread],
        "raise the number of threads of its user (RLIMIT_NPROC), {prlimit} --nproc=unlimited; or of its cgroup \
         (pids.max; systemd: TasksMax=)",
    ),
    (
        Errno::FBIG,
        ANY,
        "raise its limit of file sizes (RLIMIT_FSIZE), {prlimit} --fsize=unlimited",
    ),
    (
        Errno::NOSPC,
        &[MemoryFile],
        "make room in the memory file system (df /dev/shm), or mount a larger one",
    ),
    (
        Errno::NOSPC,
        &[File],
        "free space or inodes on that file system (df, df -i), or choose a directory on another",
    ),
    (
        Errno::DQUOT,
        &[File, MemoryFile],
        "the disk quota of its user is used up (quota -s): delete files, raise the quota, or choose a directory on \
         another file system",
    ),
    (
        Errno::ROFS,
        &[File],
        "that file system is read-only: choose a directory on a writable one (systemd: ReadWritePaths=; containers: \
         mount a volume)",
    ),
    (
        Errno::PERM,
        &[MemoryFile],
        "its seccomp filter forbids memfd_create: allow it, or mount a tmpfs at /dev/shm",
    ),
    (
        Errno::NOSYS,
        &[MemoryFile],
        "allow memfd_create to this program, or mount a tmpfs at /dev/shm",
    ),
    (
        Errno::ACCESS,
        &[File, MemoryFile],
        "its user lacks the permission (namei -l PATH shows where): change owner or mode, or choose a directory that \
         this user can write to",
    ),
    (
        Errno::PERM,
        &[File],
        "its user may not do that (an immutable file, a security module, or a missing capability): choose a directory \
         that this user can write to",
    ),
    (
        Errno::NAMETOOLONG,
        &[File],
        "choose a shorter path: a name has at most 255 bytes, a path 4095, a socket's path 107",
    ),
    (
        Errno::NOTDIR,
        &[File],
        "a part of the path is no directory: choose another path",
    ),
    (
        Errno::LOOP,
        &[File],
        "the path has a symbolic link that must not be followed, or a loop of them: choose a path without links",
    ),
    (
        Errno::IO,
        &[File],
        "the device reported an error (dmesg): choose a directory on another one",
    ),
    (
        Errno::STALE,
        &[File],
        "the server of that NFS directory no longer knows it: mount it again, or choose a local directory",
    ),
];

/// Returns the remedy for an error of the kernel. A command in the remedy has this process's id. A command that raises
/// the limit of open files also has the new limit, computed from the present one (`getrlimit(2)`). `None` if the table
/// has no remedy for this errno and operation.
pub fn errno_remedy(errno: Errno, operation: Operation) -> Option<String> {
    let mut rows = REMEDIES.iter();
    let (_, _, text) =
        rows.find(|(each, operations, _)| *each == errno && operations.contains(&operation))?;
    let prlimit = format!("as root: prlimit --pid {}", std::process::id());
    let text = text.replace("{prlimit}", &prlimit);
    Some(match text.contains("{nofile}") {
        true => text.replace("{nofile}", &nofile_option(getrlimit(Resource::Nofile))),
        false => text,
    })
}

/// Returns the option of prlimit(1) that doubles the soft limit of open files, or raises it to [`MIN_OPEN_FILES`] if
/// that is more. If the new limit is at most the hard limit, the option is `--nofile=N:`, which changes only the soft
/// limit. Otherwise the option is `--nofile=N`, which sets both limits.
fn nofile_option(limit: Rlimit) -> String {
    // The limit of open files is never infinite (`None`): setrlimit(2) refuses more than /proc/sys/fs/nr_open.
    let raised = limit
        .current
        .unwrap_or(0)
        .saturating_mul(2)
        .max(MIN_OPEN_FILES);
    match limit.maximum.is_none_or(|hard| raised <= hard) {
        true => format!("--nofile={raised}:"),
        false => format!("--nofile={raised}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_depends_on_errno_and_operation() {
        let check = |errno, operation, words: &[&str]| {
            let remedy = errno_remedy(errno, operation).unwrap_or_default();
            for word in words {
                assert!(remedy.contains(word), "{errno}: {remedy}");
            }
            assert!(!remedy.contains(['{', '}']), "{remedy}");
        };
        let pid = format!("prlimit --pid {} --", std::process::id());
        for operation in [File, MemoryFile, Thread] {
            check(
                Errno::MFILE,
                operation,
                &["RLIMIT_NOFILE", &pid, "--nofile="],
            );
            check(Errno::NFILE, operation, &["fs.file-max"]);
        }
        check(
            Errno::NOMEM,
            Memory,
            &["RLIMIT_AS", "RLIMIT_DATA", &pid, "vm.max_map_count"],
        );
        check(Errno::AGAIN, Thread, &["RLIMIT_NPROC", "pids.max", &pid]);
        check(Errno::FBIG, File, &["RLIMIT_FSIZE", &pid, "--fsize="]);
        check(Errno::NOSPC, File, &["df -i"]);
        check(Errno::NOSPC, MemoryFile, &["/dev/shm"]);
        check(Errno::DQUOT, File, &["quota"]);
        check(Errno::ROFS, File, &["read-only"]);
        check(Errno::ACCESS, File, &["permission"]);
        check(Errno::PERM, MemoryFile, &["seccomp", "memfd_create"]);
        check(Errno::NAMETOOLONG, File, &["107"]);
        assert_eq!(errno_remedy(Errno::AGAIN, File), None);
        assert_eq!(errno_remedy(Errno::NOENT, File), None);
    }

    #[test]
    fn nofile_option_never_lowers_hard_limit() {
        let check = |current, maximum, expected: &str| {
            assert_eq!(nofile_option(Rlimit { current, maximum }), expected);
        };
        check(Some(1024), Some(1024), "--nofile=65536");
        check(Some(1024), Some(4096), "--nofile=65536");
        check(Some(1024), Some(65_536), "--nofile=65536:");
        check(Some(1024), Some(1 << 20), "--nofile=65536:");
        check(Some(1024), None, "--nofile=65536:");
        check(Some(65_536), Some(65_536), "--nofile=131072");
        check(Some(1 << 19), Some(1 << 20), "--nofile=1048576:");
    }
}
