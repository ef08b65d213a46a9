//! Checks of a process that touch nothing in it, from /proc and its executable.

use std::fs::File;
use std::io;
use std::iter;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use object::ReadCache;

use crate::auxiliary::{AT_SYSINFO_EHDR, auxv_value};
use crate::executable::{find_glibc_by_name, has_plugin, loader_name, require_glibc};
use crate::frame_memory::loaded_libraries;
use crate::maps::{Mapping, mappings};
use crate::memory::Memory;
use crate::proc_dir::ProcDir;
use crate::process::{ProcStat, ProcStatus, ProcessState, SeccompMode, shares_memory_with_parent};
use crate::refusal::{Denial, Refusal};
use crate::sanitizer;
use crate::tracer::TracerCredentials;

/// A process that passed the checks for a purpose.
#[derive(Clone, Debug)]
pub struct ExaminedProcess {
    /// Pid in this process's pid namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot; differs for another process with the pid.
    pub start_time: u64,
    /// Contents of /proc/PID/status.
    pub status: ProcStatus,
    /// Whether the plugin is mapped in it, active or not.
    pub has_plugin: bool,
}

impl ExaminedProcess {
    /// Returns whether its main thread has a seccomp filter. [`crate::seccomp::require_plugin_calls`] reads the filter
    /// once a thread is stopped.
    pub fn has_seccomp_filter(&self) -> bool {
        self.status.seccomp == SeccompMode::Filter
    }
}

/// Planned use of a process. It decides which checks the process must pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Loading a library into it, which needs glibc 2.34 and its loader.
    Load,
    /// Reading its memory. The program may be linked statically, with any C library.
    Read,
    /// Listing it with the result of the checks for [`Self::Load`]. Its memory is not read: a page of a file may never
    /// arrive (FUSE), and not even SIGKILL ends that wait.
    List,
}

/// Examines a process for [`Purpose::Load`] without stopping it.
///
/// # Errors
/// The reason why no library can be loaded into it.
pub fn examine_process_for_load(pid: u32) -> Result<ExaminedProcess, Refusal> {
    examine_process_for(Purpose::Load, pid)
}

/// Checks from /proc, without stopping the process, whether this one may and can use it for `purpose`. Returns what it
/// has learned of the process.
///
/// # Errors
/// The reason why the process is unsuitable, or that this process's own credentials cannot be read.
pub fn examine_process_for(purpose: Purpose, pid: u32) -> Result<ExaminedProcess, Refusal> {
    TracerCredentials::current()?.examine_process(purpose, pid)
}

/// Builds the refusal for a file of /proc/PID that could not be opened. `file` is its name, other than `mem`, and
/// `errno` is `EACCES` or `EPERM`. The security module Yama is no possible reason: it does not restrict files other
/// than `mem`. The reason is [`Denial::Unknown`] if the file `status`, which shows it, cannot be read either.
pub fn proc_denied_refusal(pid: u32, file: &str, errno: Errno) -> Refusal {
    let proc_dir = ProcDir::for_pid(pid);
    let denial = TracerCredentials::current().and_then(|caller| {
        let status = proc_dir.parse_file("status", ProcStatus::parse)?;
        Ok(caller
            .without_yama()
            .denial_reason(&status, proc_dir.file_owner()))
    });
    Refusal::Denied {
        file: proc_dir.file_path(file),
        errno,
        denial: match denial {
            Ok(denial) | Err(Refusal::Denied { denial, .. }) => denial,
            Err(_) => Denial::Unknown,
        },
    }
}

impl TracerCredentials {
    /// Examines a process for a purpose, with these credentials. Fails with the reason why it is unsuitable.
    pub(crate) fn examine_process(
        &self,
        purpose: Purpose,
        pid: u32,
    ) -> Result<ExaminedProcess, Refusal> {
        let proc_dir = ProcDir::for_pid(pid);
        match proc_dir.parse_file("status", ProcStatus::parse) {
            Ok(status) => self.examine_process_with_status(purpose, &proc_dir, pid, status),
            Err(refusal) => Err(process_gone_refusal(pid).unwrap_or(refusal)),
        }
    }

    /// Examines a process whose status was read already. Fails with the reason why it is unsuitable. If it ends during
    /// the checks, the error says so.
    pub(crate) fn examine_process_with_status(
        &self,
        purpose: Purpose,
        proc_dir: &ProcDir,
        pid: u32,
        status: ProcStatus,
    ) -> Result<ExaminedProcess, Refusal> {
        self.check_process(purpose, proc_dir, pid, status)
            .map_err(|refusal| match refusal {
                // If the process ends during the checks, a check fails with one of these.
                Refusal::NoSuchProcess | Refusal::Unreadable { .. } | Refusal::NoGlibc => {
                    process_gone_refusal(pid).unwrap_or(refusal)
                }
                refusal => refusal,
            })
    }

    /// Makes all checks of a process for a purpose: identity, permission, state, executable, C library and seccomp.
    /// Fails with the refusal of the first check that fails, which may be because the process has ended meanwhile.
    fn check_process(
        &self,
        purpose: Purpose,
        proc_dir: &ProcDir,
        pid: u32,
        status: ProcStatus,
    ) -> Result<ExaminedProcess, Refusal> {
        let stat = proc_dir.parse_file("stat", ProcStat::parse)?;
        require_process(pid, &status, stat)?;
        // The file itself is not needed: this checks that the kernel permits tracing.
        self.open_memory(proc_dir, &status)?;
        require_running(pid, &status)?;
        self.require_thawed(proc_dir)?;
        if stat.has_never_executed() && is_in_vfork(pid, &status) {
            return Err(Refusal::Vfork);
        }
        let file = ReadCache::new(proc_dir.open_executable()?);
        let name = proc_dir.executable_name()?;
        let loader = loader_name(&name, &file);
        let maps = proc_dir.read("maps")?;
        require_no_valgrind(&maps)?;
        match (purpose, loader) {
            // Reading does not depend on the C library.
            (Purpose::Read, Ok(_) | Err(Refusal::Static)) => {}
            // By the file's name only: the version of glibc is in the process's memory, which a list does not read.
            (Purpose::List, loader) => {
                find_glibc_by_name(loader?, &maps)?;
            }
            (_, loader) => {
                let loader = loader?;
                let unreadable = |error: io::Error| Refusal::Unreadable {
                    file: proc_dir.file_path("mem"),
                    cause: error.to_string(),
                };
                // A child reads the memory, because a page may never arrive.
                let memory = Memory::open_by_child(pid).map_err(unreadable)?;
                let images = loaded_libraries(&memory, &maps).map_err(unreadable);
                let checked = images.and_then(|images| {
                    require_glibc(loader, &maps, &images, |mapping, limit| {
                        read_first_bytes(&memory, mapping, limit)
                    })
                });
                checked.map_err(|refusal| memory.explain_error(refusal))?;
            }
        }
        if purpose != Purpose::Read {
            sanitizer::require_no_sanitizer_mapped(&maps)?;
            require_vdso(&proc_dir.read("auxv")?, &maps)?;
        }
        if status.has_shadow_stack {
            return Err(Refusal::ShadowStack);
        }
        self.require_readable_filter(proc_dir, &status)?;
        Ok(ExaminedProcess {
            pid,
            start_time: stat.start_time,
            has_plugin: has_plugin(&maps),
            status,
        })
    }

    /// Opens the process's memory for reading and writing, for which the kernel requires the right to trace the
    /// process. Fails with `NoSuchProcess` if the process has ended, else with `Denied` and the reason.
    fn open_memory(&self, proc_dir: &ProcDir, status: &ProcStatus) -> Result<File, Refusal> {
        proc_dir.open_memory().map_err(|errno| match errno {
            Errno::ESRCH | Errno::ENOENT => Refusal::NoSuchProcess,
            errno => Refusal::Denied {
                file: proc_dir.file_path("mem"),
                errno,
                denial: self.denial_reason(status, proc_dir.file_owner()),
            },
        })
    }

    /// Fails if a cgroup has frozen the process, or if /proc/PID/cgroup cannot be read. A freezer whose state cannot be
    /// read counts as thawed.
    fn require_thawed(&self, proc_dir: &ProcDir) -> Result<(), Refusal> {
        let cgroups = proc_dir.read("cgroup")?;
        match self.freezers.is_frozen(&String::from_utf8_lossy(&cgroups)) {
            true => Err(Refusal::Frozen),
            false => Ok(()),
        }
    }

    /// Fails if each thread is in strict seccomp mode, or has a filter that this user cannot read. `status` is that of
    /// the main thread; the others are read only if that one does not suffice.
    fn require_readable_filter(
        &self,
        proc_dir: &ProcDir,
        status: &ProcStatus,
    ) -> Result<(), Refusal> {
        let other_threads = iter::once_with(|| proc_dir.thread_statuses()).flatten();
        let other_threads = other_threads.filter_map(|text| ProcStatus::parse(&text).ok());
        let modes = other_threads.map(|thread| thread.seccomp);
        require_usable_mode(
            iter::once(status.seccomp).chain(modes),
            self.can_read_seccomp_filters(),
        )
    }
}

/// Fails if memprof can use no thread, by the seccomp modes of the threads: one without a filter, or with a filter that
/// `can_read_seccomp_filters` says can be read. A readable filter may still forbid the calls.
fn require_usable_mode(
    modes: impl Iterator<Item = SeccompMode>,
    can_read_seccomp_filters: bool,
) -> Result<(), Refusal> {
    let mut refusal = Refusal::StrictSeccomp;
    for mode in modes {
        match mode {
            SeccompMode::Off => return Ok(()),
            SeccompMode::Filter if can_read_seccomp_filters => return Ok(()),
            SeccompMode::Filter => refusal = Refusal::UnreadFilter,
            SeccompMode::Strict => {}
        }
    }
    Err(refusal)
}

/// Fails if `pid` is this process's own, or that of a kernel thread, of a thread other than a main thread, of a process
/// whose main thread has ended, or of a zombie. `status` and `stat` are the parsed files of /proc/PID.
fn require_process(pid: u32, status: &ProcStatus, stat: ProcStat) -> Result<(), Refusal> {
    if pid == std::process::id() {
        return Err(Refusal::Itself);
    }
    if stat.is_kernel_thread() {
        return Err(Refusal::KernelThread);
    }
    if status.thread_group != pid {
        let process = status.thread_group;
        return Err(Refusal::Thread { process });
    }
    match status.state {
        ProcessState::Zombie if status.threads > 1 => Err(Refusal::MainThreadEnded),
        ProcessState::Zombie => Err(Refusal::Zombie),
        _ => Ok(()),
    }
}

/// Fails if the process is traced by another one, or stopped by a signal.
fn require_running(pid: u32, status: &ProcStatus) -> Result<(), Refusal> {
    match (status.tracer, status.state) {
        (Some(thread), _) => Err(Refusal::Traced {
            tracer: ProcStatus::process_of_thread(thread),
            pid,
        }),
        (None, ProcessState::Stopped) => Err(Refusal::Stopped { pid }),
        _ => Ok(()),
    }
}

/// Fails if valgrind runs the process, by the mapped files in the text of /proc/PID/maps: the executed file is a tool
/// of valgrind, such as `memcheck-amd64-linux` in a directory `valgrind`, and the tool loads the program and the
/// library `vgpreload_core-amd64-linux.so`.
fn require_no_valgrind(maps: &[u8]) -> Result<(), Refusal> {
    let is_of_valgrind = |mapping: Mapping<'_>| {
        let name = mapping.file_name();
        let directory = mapping.path.strip_suffix(name).unwrap_or_default();
        name.starts_with(b"vgpreload_core-")
            || name.ends_with(b"-linux") && directory.ends_with(b"/valgrind/")
    };
    match mappings(maps).any(is_of_valgrind) {
        true => Err(Refusal::Valgrind),
        false => Ok(()),
    }
}

/// Fails if a process has unmapped or moved the vDSO: the functions of its C library that read clocks, which the plugin
/// uses, would still call it at its old address. `vector` is the auxiliary vector, which has no address of a vDSO if
/// the kernel mapped none.
fn require_vdso(vector: &[u8], maps: &[u8]) -> Result<(), Refusal> {
    let is_mapped = |address| mappings(maps).any(|mapping| mapping.range.contains(&address));
    match auxv_value(vector, AT_SYSINFO_EHDR) {
        Some(address) if !is_mapped(address) => Err(Refusal::NoVdso),
        _ => Ok(()),
    }
}

/// Returns whether the process runs in its parent's memory, between vfork(2) and execve(2). False if the parent's
/// status cannot be read.
fn is_in_vfork(pid: u32, status: &ProcStatus) -> bool {
    let parent = ProcDir::for_pid(status.parent).parse_file("status", ProcStatus::parse);
    // A parent outside of this pid namespace is not visible; one that has ended does not wait in vfork(2).
    parent.is_ok_and(|parent| shares_memory_with_parent(pid, status, &parent))
}

/// Reads the first `limit` bytes of a mapping, or as much as can be read.
fn read_first_bytes(memory: &Memory, mapping: &Mapping<'_>, limit: u64) -> Vec<u8> {
    let length = (mapping.range.end - mapping.range.start).min(limit);
    let mut bytes = vec![0; length as usize];
    let read = memory.read_some(mapping.range.start, &mut bytes);
    bytes.truncate(read);
    bytes
}

/// Returns the refusal for a process that has ended, is a zombie, or is hidden by /proc (mount option hidepid). `None`
/// if the process is visible and no zombie, or if its status cannot be read for another reason.
fn process_gone_refusal(pid: u32) -> Option<Refusal> {
    let proc_dir = ProcDir::for_pid(pid);
    match proc_dir.parse_file("status", ProcStatus::parse) {
        Ok(status) if status.state == ProcessState::Zombie => Some(Refusal::Zombie),
        Err(Refusal::NoSuchProcess) if process_exists(pid) => Some(Refusal::Denied {
            file: proc_dir.file_path("status"),
            errno: Errno::EACCES,
            denial: Denial::Hidden,
        }),
        Err(Refusal::NoSuchProcess) => Some(Refusal::NoSuchProcess),
        _ => None,
    }
}

/// Returns whether the process exists, even if /proc hides it (mount option hidepid). Sends no signal.
fn process_exists(pid: u32) -> bool {
    // kill(2) takes 0 and negative numbers for process groups.
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0);
    pid.is_some_and(|pid| kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Status of this process with one line of the file replaced.
    fn status(name: &str, value: &str) -> ProcStatus {
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        let lines = own.lines().map(|line| match line.split_once(':') {
            Some((field, _)) if field == name => format!("{name}:\t{value}"),
            _ => line.to_owned(),
        });
        ProcStatus::parse(lines.collect::<Vec<_>>().join("\n").as_bytes()).unwrap()
    }

    #[test]
    fn program_in_valgrind_is_recognized_by_its_files() {
        let check = |path: &str, expected| {
            let maps = format!("58000000-58001000 r-xp 00000000 08:01 5 {path}\n");
            assert_eq!(require_no_valgrind(maps.as_bytes()), expected, "{path}");
        };
        check(
            "/usr/libexec/valgrind/none-amd64-linux",
            Err(Refusal::Valgrind),
        );
        check("/opt/valgrind/memcheck-amd64-linux", Err(Refusal::Valgrind));
        check(
            "/usr/libexec/valgrind/vgpreload_core-amd64-linux.so",
            Err(Refusal::Valgrind),
        );
        check("/usr/bin/build-amd64-linux", Ok(()));
        check("/home/me/valgrind/notes", Ok(()));
        check("", Ok(()));
    }

    #[test]
    fn process_in_unsuitable_state_is_refused() {
        let pid = std::os::unix::process::parent_id();
        let stat = ProcStat::parse(&std::fs::read("/proc/self/stat").unwrap()).unwrap();
        let check = |name: &str, value: &str, expected: Result<(), &str>| {
            let mut status = status(name, value);
            if name != "Tgid" {
                status.thread_group = pid;
            }
            status.threads = 2;
            let found = require_process(pid, &status, stat).and(require_running(pid, &status));
            let found = found.map_err(|refusal| refusal.to_string());
            assert_eq!(
                found,
                expected.map_err(|words| words.replace("PID", &pid.to_string()))
            );
        };
        check("State", "S (sleeping)", Ok(()));
        check(
            "State",
            "T (stopped)",
            Err("process is stopped; continue it first (kill -CONT PID)"),
        );
        check(
            "TracerPid",
            "4194305",
            Err("process 4194305 already traces PID (a debugger, strace?); only one can"),
        );
        check("Tgid", "4711", Err("is a thread of process 4711"));
        check(
            "State",
            "Z (zombie)",
            Err("its main thread has ended, so /proc shows nothing of the process"),
        );
    }

    #[test]
    fn one_thread_that_memprof_can_use_suffices() {
        use SeccompMode::{Filter, Off, Strict};
        let check = |modes: &[SeccompMode], as_root: bool, expected| {
            let found = require_usable_mode(modes.iter().copied(), as_root);
            assert_eq!(found, expected, "{modes:?} {as_root}");
        };
        check(&[Off], false, Ok(()));
        check(&[Strict], true, Err(Refusal::StrictSeccomp));
        check(&[Strict, Filter], true, Ok(()));
        check(&[Strict, Filter], false, Err(Refusal::UnreadFilter));
        check(&[Strict, Off], false, Ok(()));
        check(&[Filter, Strict], false, Err(Refusal::UnreadFilter));
        check(&[Filter, Off], false, Ok(()));
        check(&[Filter], true, Ok(()));
    }

    #[test]
    fn process_without_its_vdso_is_refused() {
        let maps = b"7f0000-7f2000 r-xp 00000000 00:00 0     [vdso]\n";
        let check = |address: u64, expected: Result<(), Refusal>| {
            let words = [AT_SYSINFO_EHDR, address, 0, 0];
            let vector: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(require_vdso(&vector, maps), expected, "{address:x}");
        };
        check(0x7f_0000, Ok(()));
        check(0x7e_0000, Err(Refusal::NoVdso));
        check(0, Ok(()));
    }

    #[test]
    fn own_process_is_refused() {
        assert_eq!(
            examine_process_for_load(std::process::id()).unwrap_err(),
            Refusal::Itself
        );
    }

    #[test]
    fn numbers_of_no_process_are_refused() {
        for pid in [0, 1 << 22, i32::MAX as u32, 1 << 31, u32::MAX] {
            let refusal = examine_process_for_load(pid).unwrap_err();
            assert_eq!(refusal, Refusal::NoSuchProcess, "{pid}");
            assert_eq!(refusal.exit_code(), 3);
        }
    }
}
