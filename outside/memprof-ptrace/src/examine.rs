//! What is known of a process before anything is done to it.

use std::fs::File;
use std::io;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use object::ReadCache;

use crate::executable::{glibc_by_name, has_plugin, loader, require_glibc};
use crate::frame_memory::loaded;
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::proc_dir::ProcDir;
use crate::process::{ProcStat, ProcStatus, ProcessState, SeccompMode, shares_memory_with_parent};
use crate::refusal::{Denial, Refusal};
use crate::sanitizer;
use crate::tracer::TracerCredentials;

/// A process that can be attached to, as far as /proc tells.
#[derive(Clone, Debug)]
pub struct ExaminedProcess {
    /// Its pid here.
    pub pid: u32,
    /// When it was started: another process with the same pid has another time.
    pub start_time: u64,
    /// What /proc/PID/status says.
    pub status: ProcStatus,
    /// Whether the plugin is mapped in it, be it at work or asleep.
    pub has_plugin: bool,
}

impl ExaminedProcess {
    /// Whether it has a seccomp filter, which [`crate::seccomp::require_calls`] reads once a thread is
    /// stopped.
    pub fn has_filter(&self) -> bool {
        self.status.seccomp == SeccompMode::Filter
    }
}

/// What is to be done with a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A library is loaded into it, which needs glibc 2.34 and its loader.
    Load,
    /// Its memory is read. It may be linked statically, with whatever C library.
    Read,
    /// It is listed among all others as one to load a library into. Nothing of its memory is read: a page of a
    /// file may never come (FUSE), and not even SIGKILL ends that wait.
    List,
}

/// Looks at a process without stopping it.
///
/// # Errors
/// Why no library can be loaded into it.
pub fn examine(pid: u32) -> Result<ExaminedProcess, Refusal> {
    examine_for(Purpose::Load, pid)
}

/// The same for another purpose.
///
/// # Errors
/// Why it does not do for that.
pub fn examine_for(purpose: Purpose, pid: u32) -> Result<ExaminedProcess, Refusal> {
    TracerCredentials::current()?.examine(purpose, pid)
}

/// Why a file of a process in /proc that is not about its memory could not be read: `file` failed with `errno`,
/// `EACCES` or `EPERM`. Yama has no say in that.
pub fn denied_to_read(pid: u32, file: &str, errno: Errno) -> Refusal {
    let of = ProcDir::for_pid(pid);
    let denial = TracerCredentials::current().and_then(|caller| {
        let status = of.parse("status", ProcStatus::parse)?;
        Ok(caller.without_yama().denial_reason(&status, of.owner()))
    });
    Refusal::Denied {
        file: of.file(file),
        errno,
        denial: denial.unwrap_or(Denial::Unknown),
    }
}

impl TracerCredentials {
    pub(crate) fn examine(&self, purpose: Purpose, pid: u32) -> Result<ExaminedProcess, Refusal> {
        let of = ProcDir::for_pid(pid);
        match of.parse("status", ProcStatus::parse) {
            Ok(status) => self.examine_with_status(purpose, &of, pid, status),
            Err(refusal) => Err(process_gone_refusal(&of, pid).unwrap_or(refusal)),
        }
    }

    /// The same for a process whose status is known.
    pub(crate) fn examine_with_status(
        &self,
        purpose: Purpose,
        of: &ProcDir,
        pid: u32,
        status: ProcStatus,
    ) -> Result<ExaminedProcess, Refusal> {
        self.check_all(purpose, of, pid, status)
            .map_err(|refusal| match refusal {
                // A process that ends meanwhile makes any of the steps fail.
                Refusal::NoSuchProcess | Refusal::Unreadable { .. } | Refusal::NoGlibc => {
                    process_gone_refusal(of, pid).unwrap_or(refusal)
                }
                refusal => refusal,
            })
    }

    fn check_all(
        &self,
        purpose: Purpose,
        of: &ProcDir,
        pid: u32,
        status: ProcStatus,
    ) -> Result<ExaminedProcess, Refusal> {
        let stat = of.parse("stat", ProcStat::parse)?;
        require_process(pid, &status, stat)?;
        self.require_access(of, &status)?;
        require_running(pid, &status)?;
        self.require_thawed(of)?;
        if stat.has_never_executed() && is_vfork(pid, &status) {
            return Err(Refusal::Vfork);
        }
        let file = ReadCache::new(of.open_executable()?);
        let name = of.executable_name()?;
        let loader = loader(&name, &file);
        let maps = of.read("maps")?;
        match (purpose, loader) {
            (Purpose::Read, Ok(_) | Err(Refusal::Static)) => {}
            (Purpose::List, loader) => {
                glibc_by_name(loader?, &maps)?;
            }
            (_, loader) => {
                let loader = loader?;
                let unreadable = |error: io::Error| Refusal::Unreadable {
                    file: of.file("mem"),
                    cause: error.to_string(),
                };
                let memory = Memory::open_by_child(pid).map_err(unreadable)?;
                let loaded = loaded(&memory, &maps).map_err(unreadable);
                let found = loaded.and_then(|loaded| {
                    require_glibc(loader, &maps, &loaded, |mapping, limit| {
                        first_bytes(&memory, mapping, limit)
                    })
                });
                found.map_err(|refusal| memory.explain(refusal))?;
            }
        }
        if purpose != Purpose::Read {
            sanitizer::require_none_mapped(&maps)?;
        }
        if status.has_shadow_stack {
            return Err(Refusal::ShadowStack);
        }
        self.require_readable_filter(of, &status)?;
        Ok(ExaminedProcess {
            pid,
            start_time: stat.start_time,
            has_plugin: has_plugin(&maps),
            status,
        })
    }

    fn require_access(&self, of: &ProcDir, status: &ProcStatus) -> Result<File, Refusal> {
        of.open_memory().map_err(|errno| match errno {
            Errno::ESRCH | Errno::ENOENT => Refusal::NoSuchProcess,
            errno => Refusal::Denied {
                file: of.file("mem"),
                errno,
                denial: self.denial_reason(status, of.owner()),
            },
        })
    }

    fn require_thawed(&self, of: &ProcDir) -> Result<(), Refusal> {
        let cgroups = of.read("cgroup")?;
        match self.freezers.is_frozen(&String::from_utf8_lossy(&cgroups)) {
            true => Err(Refusal::Frozen),
            false => Ok(()),
        }
    }

    /// Where some thread has no filter, that one can be borrowed.
    fn require_readable_filter(&self, of: &ProcDir, status: &ProcStatus) -> Result<(), Refusal> {
        let is_free = |text: Vec<u8>| {
            ProcStatus::parse(&text).is_ok_and(|thread| thread.seccomp == SeccompMode::Off)
        };
        match status.seccomp {
            SeccompMode::Off => Ok(()),
            SeccompMode::Filter if self.reads_filters() => Ok(()),
            _ if of.thread_statuses().any(is_free) => Ok(()),
            SeccompMode::Filter => Err(Refusal::UnreadFilter),
            SeccompMode::Strict => Err(Refusal::StrictSeccomp),
        }
    }
}

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

fn require_running(pid: u32, status: &ProcStatus) -> Result<(), Refusal> {
    match (status.tracer, status.state) {
        (Some(thread), _) => Err(Refusal::Traced {
            tracer: ProcStatus::read_thread(thread).map_or(thread, |tracer| tracer.thread_group),
            pid,
        }),
        (None, ProcessState::Stopped) => Err(Refusal::Stopped { pid }),
        _ => Ok(()),
    }
}

fn is_vfork(pid: u32, status: &ProcStatus) -> bool {
    let parent = ProcDir::for_pid(status.parent).parse("status", ProcStatus::parse);
    // A parent outside of our pid namespace is not to be seen, and one that has ended waits for nobody.
    parent.is_ok_and(|parent| shares_memory_with_parent(pid, status, &parent))
}

/// What may be read of the first bytes of a mapping.
fn first_bytes(memory: &Memory, mapping: &Mapping<'_>, limit: u64) -> Vec<u8> {
    let length = (mapping.range.end - mapping.range.start).min(limit);
    let mut bytes = vec![0; length as usize];
    let read = memory.read_some(mapping.range.start, &mut bytes);
    bytes.truncate(read);
    bytes
}

/// Why nothing is to be seen of a process, if it has ended or is hidden.
fn process_gone_refusal(of: &ProcDir, pid: u32) -> Option<Refusal> {
    match of.parse("status", ProcStatus::parse) {
        Ok(status) if status.state == ProcessState::Zombie => Some(Refusal::Zombie),
        Err(Refusal::NoSuchProcess) if exists_hidden(pid) => Some(Refusal::Denied {
            file: of.file("status"),
            errno: Errno::EACCES,
            denial: Denial::Hidden,
        }),
        Err(Refusal::NoSuchProcess) => Some(Refusal::NoSuchProcess),
        _ => None,
    }
}

/// Also of a process that /proc hides (its mount option hidepid).
fn exists_hidden(pid: u32) -> bool {
    // 0 and negative numbers mean groups of processes.
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0);
    pid.is_some_and(|pid| kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of /proc with one line replaced.
    fn status(name: &str, value: &str) -> ProcStatus {
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        let lines = own.lines().map(|line| match line.split_once(':') {
            Some((field, _)) if field == name => format!("{name}:\t{value}"),
            _ => line.to_owned(),
        });
        ProcStatus::parse(lines.collect::<Vec<_>>().join("\n").as_bytes()).unwrap()
    }

    #[test]
    fn a_process_in_no_state_for_it() {
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
    fn a_process_does_not_attach_to_itself() {
        assert_eq!(examine(std::process::id()).unwrap_err(), Refusal::Itself);
    }

    #[test]
    fn numbers_that_are_no_process() {
        for pid in [0, 1 << 22, i32::MAX as u32, 1 << 31, u32::MAX] {
            let refusal = examine(pid).unwrap_err();
            assert_eq!(refusal, Refusal::NoSuchProcess, "{pid}");
            assert_eq!(refusal.exit_code(), 3);
        }
    }
}
